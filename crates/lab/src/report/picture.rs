//! A picture of its own, for pages that have no style sheet: panels of lines over the same
//! few values, with the spread of each point.

use std::fmt::Write as _;

use thalweg_report::escape;

/// One panel.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
}

/// One line: places along the axis, and the least value, the middle and the greatest there.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(usize, [f64; 3])>,
}

const WIDTH: f64 = 430.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;
const LEGEND: f64 = 34.0;
const STYLE: &str = "text{font:13px sans-serif;fill:#222}.end{text-anchor:end}\
.middle{text-anchor:middle}.title{font-weight:bold}.grid{stroke:#ccc;stroke-width:1}\
.line{fill:none;stroke-width:2}.bar{stroke-width:1.5}\
.c0{stroke:#b3420b;fill:#b3420b}.c1{stroke:#0b5cad;fill:#0b5cad}.c2{stroke:#2a7a2a;fill:#2a7a2a}\
.c3{stroke:#8a3c8a;fill:#8a3c8a}.c4{stroke:#7a6300;fill:#7a6300}.c5{stroke:#555;fill:#555}\
.c1.line{stroke-dasharray:7 3}.c2.line{stroke-dasharray:2 3}.c3.line{stroke-dasharray:9 3 2 3}\
.c4.line{stroke-dasharray:4 2}.c5.line{stroke-dasharray:1 2}.page{fill:#fff}";

/// Panels, two in a row, on one file of SVG. Lines differ by colour, dashes and marks.
pub(crate) fn panels(title: &str, across: &str, values: &[String], panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(2);
    let (width, height) = (2.0 * WIDTH, LEGEND + rows as f64 * HEIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\">\n<title>{}</title>\n\
         <style>{STYLE}</style>\n<rect class=\"page\" width=\"{width}\" height=\"{height}\"/>\n",
        escape(title)
    );
    let names = panels.first().map_or(&[][..], |panel| &panel.lines);
    let mut left = LEFT;
    for (number, line) in names.iter().enumerate() {
        let middle = LEGEND / 2.0;
        let _ = writeln!(
            svg,
            "<line class=\"line c{number}\" x1=\"{left}\" x2=\"{}\" y1=\"{middle}\" y2=\"{middle}\"/>\
             {}<text x=\"{}\" y=\"{}\">{}</text>",
            left + 40.0,
            mark(number, left + 20.0, middle),
            left + 48.0,
            middle + 4.0,
            escape(&line.name)
        );
        left += 90.0 + 8.0 * line.name.chars().count() as f64;
    }
    for (number, panel) in panels.iter().enumerate() {
        let (column, row) = ((number % 2) as f64, (number / 2) as f64);
        let _ = writeln!(
            svg,
            "<g transform=\"translate({},{})\">",
            column * WIDTH,
            LEGEND + row * HEIGHT
        );
        one(&mut svg, across, values, panel);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn one(svg: &mut String, across: &str, values: &[String], panel: &Panel) {
    let finite = panel
        .lines
        .iter()
        .flat_map(|line| &line.points)
        .flat_map(|(_, spread)| spread)
        .filter(|value| value.is_finite());
    let step = step(finite.fold(0.0, |most, value| most.max(*value)));
    let steps = panel
        .lines
        .iter()
        .flat_map(|line| &line.points)
        .flat_map(|(_, spread)| spread)
        .filter(|value| value.is_finite())
        .fold(1.0_f64, |most, value| most.max((value / step).ceil()));
    let high = steps * step;
    let x = |place: usize| {
        LEFT + (WIDTH - LEFT - RIGHT) * (place as f64 + 0.5) / values.len().max(1) as f64
    };
    let bottom = HEIGHT - BOTTOM;
    // What was not reached lies at the upper edge.
    let y = |value: f64| bottom - (bottom - TOP) * (value / high).min(1.0);
    let _ = write!(
        svg,
        "<text class=\"title\" x=\"{LEFT}\" y=\"{}\">{}</text>",
        TOP - 14.0,
        escape(&panel.title)
    );
    let digits = (-step.log10().floor()).max(0.0) as usize;
    for number in 0..=steps as u32 {
        let value = f64::from(number) * step;
        let place = y(value);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{place:.1}\" y2=\"{place:.1}\"/>\
             <text class=\"end\" x=\"{}\" y=\"{:.1}\">{value:.digits$}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            place + 4.0
        );
    }
    for (place, value) in values.iter().enumerate() {
        let _ = write!(
            svg,
            "<text class=\"middle\" x=\"{:.1}\" y=\"{}\">{}</text>",
            x(place),
            bottom + 17.0,
            escape(value)
        );
    }
    let _ = write!(
        svg,
        "<text class=\"middle\" x=\"{}\" y=\"{}\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        bottom + 35.0,
        escape(across)
    );
    for (number, line) in panel.lines.iter().enumerate() {
        let way: Vec<String> = line
            .points
            .iter()
            .map(|(place, [_, middle, _])| format!("{:.1},{:.1}", x(*place), y(*middle)))
            .collect();
        let _ = write!(
            svg,
            "<polyline class=\"line c{number}\" style=\"fill:none\" points=\"{}\"/>",
            way.join(" ")
        );
        for (place, [least, middle, greatest]) in &line.points {
            let across = x(*place);
            let _ = write!(
                svg,
                "<line class=\"bar c{number}\" x1=\"{across:.1}\" x2=\"{across:.1}\" \
                 y1=\"{:.1}\" y2=\"{:.1}\"/>{}",
                y(*least),
                y(*greatest),
                mark(number, across, y(*middle))
            );
        }
    }
}

/// The mark of a line.
fn mark(number: usize, x: f64, y: f64) -> String {
    match number {
        0 => format!("<circle class=\"c0\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"),
        _ => format!(
            "<rect class=\"c{number}\" x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\"/>",
            x - 4.0,
            y - 4.0
        ),
    }
}

/// The step of 1, 2 or 5 times a power of ten that divides up to the greatest value into at
/// most five.
fn step(greatest: f64) -> f64 {
    if greatest <= 0.0 {
        return 1.0;
    }
    let rough = greatest / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_at_most_five() {
        for (greatest, expected) in [
            (5.0, 1.0),
            (957.0, 200.0),
            (0.03, 0.01),
            (0.0, 1.0),
            (51.0, 20.0),
        ] {
            assert!((step(greatest) / expected - 1.0).abs() < 1e-9, "{greatest}");
        }
    }

    #[test]
    fn points_lie_where_their_values_are() {
        let line = Line {
            name: "a < b".into(),
            points: vec![
                (0, [0.0, 50.0, 100.0]),
                (1, [100.0, f64::INFINITY, f64::INFINITY]),
            ],
        };
        let values = ["1".to_owned(), "2".to_owned()];
        let panel = Panel {
            title: "figure".into(),
            lines: vec![line],
        };
        let svg = panels("all", "number", &values, &[panel]);
        // Half of 100 is half way between the lower edge of 186 and the upper of 34; the
        // first of two values is a quarter along 358 from 58 on, and infinity at the edge.
        assert!(svg.contains("points=\"147.5,110.0 326.5,34.0\""), "{svg}");
        assert!(
            svg.contains("a &lt; b") && svg.contains(">100</text>"),
            "{svg}"
        );
    }
}
