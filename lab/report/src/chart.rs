//! Lines over a common pair of axes.

use std::fmt::Write;

use crate::{
    COLOURS, LEFT, RIGHT, Scale, Shape, TOP, WIDTH, draw_grid_line, escape_html, open_picture,
};

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Name of the line in the legend.
    pub name: String,
    /// Points of the line, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Lines over a common pair of axes, with ticks, labels and a legend.
#[derive(Debug, Clone)]
pub struct Chart<'a> {
    /// Unique in the page.
    pub id: &'a str,
    /// Title of the chart.
    pub title: &'a str,
    /// Label of the horizontal axis, with the unit.
    pub x_label: &'a str,
    /// The horizontal axis.
    pub x: Scale,
    /// Label of the vertical axis, with the unit.
    pub y_label: &'a str,
    /// The vertical axis.
    pub y: Scale,
    /// Lines of the chart.
    pub lines: &'a [Line],
}

const HEIGHT: f64 = 300.0;
const BOTTOM: f64 = 44.0;
/// Characters that fit beside the drawing.
const LETTERS: usize = 17;
/// Names that fit beside the drawing; further lines have tooltips only.
const NAMES: usize = 12;

impl Chart<'_> {
    /// As inline SVG.
    pub fn to_svg(&self) -> String {
        let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * self.x.position_of(value);
        let axis = HEIGHT - BOTTOM;
        let y = |value: f64| axis - (axis - TOP) * self.y.position_of(value);
        let ends: Vec<String> = (self.lines.iter())
            .filter_map(|line| {
                let (across, up) = line.points.last()?;
                Some(format!(
                    "{} ends at {}, {}.",
                    line.name,
                    format_number(*across),
                    format_number(*up)
                ))
            })
            .collect();
        let words = format!(
            "{} on a {} over {} on a {}. {}",
            self.y_label,
            self.y.scale_name(),
            self.x_label,
            self.x.scale_name(),
            ends.join(" ")
        );
        let mut svg = open_picture(HEIGHT, self.id, self.title, &words);
        for tick in self.y.ticks() {
            draw_grid_line(&mut svg, y(tick), format_number(tick));
        }
        for tick in self.x.ticks() {
            let place = x(tick);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{place:.1}\" x2=\"{place:.1}\" y1=\"{TOP}\" y2=\"{axis}\"/>\
                 <text class=\"middle\" x=\"{place:.1}\" y=\"{:.1}\">{}</text>",
                axis + 16.0,
                format_number(tick)
            );
        }
        let _ = write!(
            svg,
            "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <text x=\"4\" y=\"12\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            axis + 36.0,
            escape_html(self.x_label),
            escape_html(self.y_label)
        );
        for (row, line) in self.lines.iter().enumerate() {
            self.draw_line(&mut svg, row, line, &x, &y);
        }
        svg.push_str("</svg>");
        svg
    }

    fn draw_line(
        &self,
        svg: &mut String,
        row: usize,
        line: &Line,
        x: &impl Fn(f64) -> f64,
        y: &impl Fn(f64) -> f64,
    ) {
        let path: Vec<String> = (line.points.iter())
            .map(|(across, up)| format!("{:.1},{:.1}", x(*across), y(*up)))
            .collect();
        let name = escape_html(&line.name);
        let _ = write!(
            svg,
            "<g class=\"c{}\"><polyline points=\"{}\"><title>{name}</title></polyline>",
            row % COLOURS,
            path.join(" ")
        );
        let shape = Shape::at_index(row);
        if let Some((across, up)) = line.points.last() {
            shape.draw_shape(svg, x(*across), y(*up), &line.name);
        }
        if row < NAMES {
            let (left, height) = (WIDTH - RIGHT + 14.0, TOP + 8.0 + 20.0 * row as f64);
            shape.draw_shape(svg, left, height, &line.name);
            let _ = write!(
                svg,
                "</g><text x=\"{}\" y=\"{}\">{}<title>{name}</title></text>",
                left + 12.0,
                height + 4.0,
                escape_html(&short_label(&line.name))
            );
        } else {
            svg.push_str("</g>");
        }
    }
}

/// The part of a name that fits beside the drawing. A path's folders are dropped first.
fn short_label(name: &str) -> String {
    if name.chars().count() <= LETTERS {
        return name.to_owned();
    }
    let file = name.rsplit('/').next().unwrap_or(name);
    if file.chars().count() <= LETTERS {
        return file.to_owned();
    }
    let begin: String = file.chars().take(LETTERS - 1).collect();
    format!("{begin}…")
}

/// A number for a reader, without trailing zeros.
fn format_number(value: f64) -> String {
    if value != 0.0 && (value.abs() >= 1e6 || value.abs() < 1e-3) {
        return format!("{value:.3e}");
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_where_the_axes_say() {
        let lines = [Line {
            name: "a<b".into(),
            points: vec![(0.0, 0.0), (10.0, 50.0)],
        }];
        let svg = Chart {
            id: "one",
            title: "One",
            x_label: "time (ms)",
            x: Scale::linear_to(10.0),
            y_label: "rate (%)",
            y: Scale::linear_to(100.0),
            lines: &lines,
        }
        .to_svg();
        // From (LEFT, axis) to (WIDTH − RIGHT, halfway up to TOP): 256 − (256 − 16)/2.
        assert!(svg.contains("points=\"88.0,256.0 770.0,136.0\""), "{svg}");
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
    }

    #[test]
    fn long_names_fit_beside_the_drawing() {
        for (name, text) in [
            ("dcqcn", "dcqcn"),
            ("seventeen letters", "seventeen letters"),
            ("eighteen letters !", "eighteen letters…"),
            (
                "learned:model=models/strict.safetensors",
                "strict.safetenso…",
            ),
            ("learned:model=/a/b/plus.st", "plus.st"),
        ] {
            assert_eq!(short_label(name), text);
            assert!(text.chars().count() <= LETTERS);
        }
    }

    #[test]
    fn figures() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (1500.0, "1500"),
            (2e6, "2.000e6"),
            (0.0001, "1.000e-4"),
        ] {
            assert_eq!(format_number(value), text);
        }
    }
}
