//! Common parts of pictures: sizes, scales, marks.
//!
//! Colours come from the page's style sheet (classes `c0`, `c1`, …), so that they suit a light and
//! a dark page. Colour alone carries no meaning: lines are labelled, and every mark has a tooltip.

use std::fmt::Write;

use crate::escape_html;

/// Width of every picture, in its own units.
pub const WIDTH: f64 = 920.0;
/// Space left of the drawing, for labels of the vertical axis.
pub const LEFT: f64 = 88.0;
/// Space right of the drawing, for names of lines.
pub const RIGHT: f64 = 150.0;
/// Space above the drawing.
pub const TOP: f64 = 16.0;
/// Distinct colours in the style sheet.
pub const COLOURS: usize = 8;
/// Beyond this ratio of largest to smallest value a linear scale hides the small ones.
const WIDE: f64 = 20.0;

/// Maps a quantity to a length, linearly or by its logarithm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    /// A scale for all values. Zero has no logarithm: it lies at the edge.
    pub fn for_values(values: impl Iterator<Item = f64> + Clone) -> Self {
        let high = values.clone().fold(0.0, f64::max).max(1.0);
        let low = values
            .filter(|value| *value > 0.0)
            .fold(f64::INFINITY, f64::min)
            .min(high);
        if high / low > WIDE {
            let decade = |value: f64, round: fn(f64) -> f64| 10f64.powf(round(value.log10()));
            Self {
                low: decade(low, f64::floor),
                high: decade(high, f64::ceil),
                logarithmic: true,
            }
        } else {
            Self {
                low: 0.0,
                high: high * 1.05,
                logarithmic: false,
            }
        }
    }

    /// A linear scale from 0 to `high`, or to 1 if `high` is not above 0.
    pub fn linear_to(high: f64) -> Self {
        Self {
            low: 0.0,
            high: if high > 0.0 { high } else { 1.0 },
            logarithmic: false,
        }
    }

    /// Position of a value, from 0 to 1.
    pub fn position_of(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            value / self.high
        }
    }

    /// Values to label, 4 to 10 on a linear scale, the powers of ten on a logarithmic one.
    pub fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = (self.high / self.low).log10().round() as i32;
            return (0..=decades)
                .map(|exponent| self.low * 10f64.powi(exponent))
                .collect();
        }
        // The step is 1, 2 or 5 times a power of ten and gives 4 to 10 ticks.
        let rough = self.high / 8.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|factor| factor * power)
            .find(|step| *step >= rough)
            .unwrap_or(10.0 * power);
        (0..)
            .map(|index| f64::from(index) * step)
            .take_while(|tick| *tick <= self.high)
            .collect()
    }

    /// Kind of scale.
    pub fn scale_name(&self) -> &'static str {
        if self.logarithmic {
            "logarithmic scale"
        } else {
            "linear scale"
        }
    }
}

/// Draws a line of the grid at a height, with its label.
pub fn draw_grid_line(svg: &mut String, height: f64, label: impl std::fmt::Display) {
    let _ = write!(
        svg,
        "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{height:.1}\" y2=\"{height:.1}\"/>\
         <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
        WIDTH - RIGHT,
        LEFT - 8.0,
        height + 4.0,
    );
}

/// The start of a picture, with its title and a description in words. `id` is unique in the page.
pub fn open_picture(height: f64, id: &str, title: &str, description: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\
         <title id=\"{id}-title\">{}</title><desc id=\"{id}-desc\">{}</desc>",
        escape_html(title),
        escape_html(description)
    )
}

/// Shape of a mark: colour alone carries no meaning.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum Shape {
    Dot,
    Circle,
    Square,
    Triangle,
    Diamond,
    Down,
    Cross,
}

impl Shape {
    /// The shape of the arm at this index of the legend.
    pub fn at_index(place: usize) -> Self {
        [
            Self::Circle,
            Self::Square,
            Self::Triangle,
            Self::Diamond,
            Self::Down,
        ][place % 5]
    }

    /// Draws it at a place of a picture, with a tooltip.
    pub fn draw_shape(self, svg: &mut String, x: f64, y: f64, label: &str) {
        let title = format!("<title>{}</title>", escape_html(label));
        let path = match self {
            Self::Dot => {
                let _ = write!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1.8\">{title}</circle>"
                );
                return;
            }
            Self::Circle => {
                let _ = write!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\">{title}</circle>"
                );
                return;
            }
            Self::Square => "m-3.6,-3.6h7.2v7.2h-7.2z",
            Self::Triangle => "m0,-4.8l4.4,8h-8.8z",
            Self::Diamond => "m0,-5.2l4.6,5.2l-4.6,5.2l-4.6,-5.2z",
            Self::Down => "m0,4.8l4.4,-8h-8.8z",
            Self::Cross => "m-4,-4l8,8m0,-8l-8,8",
        };
        let _ = write!(svg, "<path d=\"M{x:.1},{y:.1}{path}\">{title}</path>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_range_is_linear_from_zero() {
        let scale = Scale::for_values([80.0, 100.0].into_iter());
        assert!(!scale.logarithmic);
        assert_eq!(scale.position_of(0.0), 0.0);
        assert!((scale.position_of(52.5) - 0.5).abs() < 1e-9);
        assert_eq!(scale.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    }

    #[test]
    fn a_wide_range_is_logarithmic_and_zero_lies_at_the_edge() {
        let scale = Scale::for_values([0.0, 3e6, 4e9].into_iter());
        assert!(scale.logarithmic);
        assert_eq!((scale.low, scale.high), (1e6, 1e10));
        assert_eq!(scale.position_of(0.0), 0.0);
        assert!((scale.position_of(1e8) - 0.5).abs() < 1e-9);
        assert_eq!(scale.ticks().len(), 5);
    }

    #[test]
    fn nothing_measured_still_has_a_scale() {
        let scale = Scale::for_values([].into_iter());
        assert!(scale.position_of(0.0).is_finite());
        assert!(!scale.ticks().is_empty());
        let zeroes = Scale::for_values([0.0, 0.0].into_iter());
        assert!(zeroes.position_of(0.0).is_finite());
    }
}
