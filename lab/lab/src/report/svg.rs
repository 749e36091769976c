//! Pictures of single connections and their spread, as inline SVG.
//!
//! Colours come from the page's style sheet (classes `c0`, `c1`, …), for light and dark pages.
//! Nothing depends on colour alone: lines are labelled, arms have shapes, every mark has a tooltip.

use std::fmt::Write;

use thalweg_report::sample::{self, Weighted};
use thalweg_report::{
    COLOURS, LEFT, RIGHT, Scale, Shape, TOP, WIDTH, draw_grid_line, escape_html, open_picture,
};
use thalweg_units::figures::rate_text;

use crate::figure::Unit;
use crate::measure::Measure;
use crate::outcome::{Connection, ModeOutcome, ScenarioOutcome};
use crate::scenario::TrafficKind;

/// Goodput of each connection over the rounds, one line per mode. In learning modes a mark's shape
/// shows the connection's arm.
pub(super) fn rounds_plot(outcome: &ScenarioOutcome) -> String {
    let plane = Plane {
        scale: Scale::for_values(outcome.modes.iter().flat_map(ModeOutcome::goodputs_bps)),
        rounds: outcome.scenario.traffic.connections,
    };
    let arms = arms_of_learners(outcome);

    let mut svg = open_picture(
        Plane::HEIGHT,
        "rounds",
        "Goodput of each connection",
        &format!(
            "Lines over the rounds, {}. {}",
            plane.scale.scale_name(),
            outcome
                .modes
                .iter()
                .map(in_words)
                .collect::<Vec<_>>()
                .join(" ")
        ),
    );
    plane.draw_axes(&mut svg, outcome);
    // Learners are drawn last, on top of their references.
    let mut order: Vec<usize> = (0..outcome.modes.len()).collect();
    order.sort_by_key(|index| outcome.modes[*index].mode.learns());
    for index in order {
        plane.draw_course(&mut svg, &outcome.modes[index], index, &arms);
    }
    draw_legend(&mut svg, outcome, &arms);
    svg.push_str("</svg>");
    svg
}

/// Coordinates of rounds and goodputs.
struct Plane {
    scale: Scale,
    rounds: u32,
}

impl Plane {
    const HEIGHT: f64 = 400.0;
    const AXIS: f64 = Self::HEIGHT - 44.0;

    /// Flows of one round stand side by side.
    fn x(&self, place: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * place / f64::from(self.rounds.max(2))
    }

    fn y(&self, value: f64) -> f64 {
        Self::AXIS - (Self::AXIS - TOP) * self.scale.position_of(value)
    }

    fn draw_axes(&self, svg: &mut String, outcome: &ScenarioOutcome) {
        for tick in self.scale.ticks() {
            draw_grid_line(svg, self.y(tick), rate_text(tick));
        }
        for round in round_ticks(self.rounds) {
            let _ = write!(
                svg,
                "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                self.x(f64::from(round)),
                Self::AXIS + 18.0,
                round + 1
            );
        }
        let _ = write!(
            svg,
            "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            Self::AXIS + 36.0,
            match outcome.scenario.traffic.kind {
                TrafficKind::Bulk => "connection",
                _ => "round",
            }
        );
    }

    /// The line of a mode, and the marks of its connections.
    fn draw_course(&self, svg: &mut String, mode: &ModeOutcome, index: usize, arms: &[&str]) {
        let colour = index % COLOURS;
        let kind = if mode.mode.learns() {
            "learner"
        } else {
            "reference"
        };
        let places = connection_places(mode);
        let points: Vec<String> = places
            .iter()
            .map(|(place, connection)| {
                format!(
                    "{:.1},{:.1}",
                    self.x(*place),
                    self.y(connection.goodput_bps)
                )
            })
            .collect();
        let _ = write!(
            svg,
            "<g class=\"c{colour} {kind}\"><polyline points=\"{}\"/>",
            points.join(" ")
        );
        for (place, connection) in &places {
            let failed = connection.error.is_some();
            let shape = match arms.iter().position(|arm| *arm == connection.arm) {
                _ if failed => Shape::Cross,
                Some(place) if mode.mode.learns() => Shape::at_index(place),
                _ => Shape::Dot,
            };
            let label = format!(
                "{}, connection {}: {} {}",
                mode.mode,
                connection.round + 1,
                rate_text(connection.goodput_bps),
                connection.error.as_deref().unwrap_or(&connection.arm)
            );
            shape.draw_shape(svg, self.x(*place), self.y(connection.goodput_bps), &label);
        }
        svg.push_str("</g>");
    }
}

/// The measured connections of a mode with their places. Those of one round are spread evenly
/// within it.
fn connection_places(mode: &ModeOutcome) -> Vec<(f64, &Connection)> {
    let mut counts: std::collections::BTreeMap<u32, u32> = Default::default();
    for connection in mode.measured_connections() {
        *counts.entry(connection.round).or_default() += 1;
    }
    let mut seen: std::collections::BTreeMap<u32, u32> = Default::default();
    mode.measured_connections()
        .map(|connection| {
            let round = connection.round;
            let number = seen.entry(round).or_default();
            let place = f64::from(*number) / f64::from(counts[&round]);
            *number += 1;
            (f64::from(round) + place, connection)
        })
        .collect()
}

fn draw_legend(svg: &mut String, outcome: &ScenarioOutcome, arms: &[&str]) {
    let left = WIDTH - RIGHT + 18.0;
    let mut line = TOP + 8.0;
    for (index, mode) in outcome.modes.iter().enumerate() {
        let kind = if mode.mode.learns() {
            "learner"
        } else {
            "reference"
        };
        let _ = write!(
            svg,
            "<g class=\"c{} {kind}\"><line x1=\"{left}\" x2=\"{}\" y1=\"{line}\" y2=\"{line}\"/></g>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            index % COLOURS,
            left + 22.0,
            left + 28.0,
            line + 4.0,
            escape_html(&mode.mode.to_string())
        );
        line += 20.0;
    }
    if !arms.is_empty() {
        line += 8.0;
        for (place, arm) in arms.iter().enumerate() {
            svg.push_str("<g class=\"plain\">");
            Shape::at_index(place).draw_shape(svg, left + 11.0, line, arm);
            let _ = write!(
                svg,
                "</g><text x=\"{}\" y=\"{}\">{}</text>",
                left + 28.0,
                line + 4.0,
                escape_html(arm)
            );
            line += 20.0;
        }
    }
}

/// Spread of a measure per mode: minimum, quartiles, median, maximum and mean; none if no mode has
/// it. Infinite values are left out here; the tables have them.
pub(super) fn box_plot(outcome: &ScenarioOutcome, measure: Measure) -> Option<String> {
    const ROW: f64 = 36.0;
    const AXIS: f64 = 34.0;
    let modes: Vec<(usize, &ModeOutcome, Vec<Weighted>)> = outcome
        .modes
        .iter()
        .enumerate()
        .map(|(index, mode)| {
            let mut values = measure.mode_values(mode.measured_connections(), mode);
            values.retain(|(value, _)| value.is_finite());
            (index, mode, values)
        })
        .filter(|(_, _, values)| !values.is_empty())
        .collect();
    if modes.is_empty() {
        return None;
    }
    let height = TOP + ROW * modes.len() as f64 + AXIS;
    // Shares become percentages, as the scale is made for figures of 1 and more.
    let factor = match measure.unit() {
        Unit::Share => 100.0,
        _ => 1.0,
    };
    let show = |value: f64| measure.unit().with_unit(value / factor);
    let all = modes.iter().flat_map(|(_, _, values)| values);
    let scale = Scale::for_values(all.map(|(value, _)| value * factor));
    let x = |value: f64| LEFT + (WIDTH - LEFT - 40.0) * scale.position_of(value);
    let figures = |values: &[Weighted]| {
        let quantile = |share| sample::weighted_quantile(values, share).unwrap_or(0.0) * factor;
        let mean = sample::weighted_mean(values).unwrap_or(0.0) * factor;
        ([0.0, 0.25, 0.5, 0.75, 1.0].map(quantile), mean)
    };
    let words = |mode: &ModeOutcome, values: &[Weighted]| {
        let ([_, low, median, high, _], mean) = figures(values);
        format!(
            "{}: median {}, quartiles {} and {}, mean {}.",
            mode.mode,
            show(median),
            show(low),
            show(high),
            show(mean)
        )
    };
    let mut svg = open_picture(
        height,
        measure.key(),
        &format!("Spread of {} by mode", measure.title()),
        &format!(
            "Box plots, {}: least, quartiles, median, most. {}",
            scale.scale_name(),
            modes
                .iter()
                .map(|(_, mode, values)| words(mode, values))
                .collect::<Vec<_>>()
                .join(" ")
        ),
    );
    let bottom = height - AXIS;
    draw_ticks(&mut svg, &scale, bottom, x, show);
    for (row, (index, mode, values)) in modes.iter().enumerate() {
        let middle = TOP + ROW * (row as f64 + 0.5);
        let (quantiles, mean) = figures(values);
        let words = words(mode, values);
        draw_box(
            &mut svg,
            (mode, *index),
            middle,
            (quantiles.map(x), x(mean)),
            &words,
        );
    }
    svg.push_str("</svg>");
    Some(svg)
}

/// The grid below the boxes, with its labels.
fn draw_ticks(
    svg: &mut String,
    scale: &Scale,
    bottom: f64,
    x: impl Fn(f64) -> f64,
    show: impl Fn(f64) -> String,
) {
    for (number, tick) in scale.ticks().into_iter().enumerate() {
        let place = x(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{place:.1}\" x2=\"{place:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>"
        );
        // Every other label if they would touch.
        if number % 2 == 0 || scale.ticks().len() < 8 {
            let _ = write!(
                svg,
                "<text class=\"middle\" x=\"{place:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 18.0,
                show(tick)
            );
        }
    }
}

/// One mode's box, from minimum to maximum, with the mean; in coordinates.
fn draw_box(
    svg: &mut String,
    (mode, index): (&ModeOutcome, usize),
    middle: f64,
    ([least, low, median, high, most], mean): ([f64; 5], f64),
    words: &str,
) {
    let _ = write!(
        svg,
        "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
         <g class=\"c{} box\"><title>{}</title>\
         <line x1=\"{least:.1}\" x2=\"{most:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\
         <rect x=\"{low:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"18\"/>\
         <line class=\"median\" x1=\"{median:.1}\" x2=\"{median:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
         <circle cx=\"{mean:.1}\" cy=\"{middle}\" r=\"3.5\"/></g>",
        LEFT - 8.0,
        middle + 4.0,
        escape_html(&mode.mode.to_string()),
        index % COLOURS,
        escape_html(words),
        middle - 9.0,
        (high - low).max(1.0),
        middle - 12.0,
        middle + 12.0,
    );
}

fn in_words(mode: &ModeOutcome) -> String {
    match mode.mode_summary() {
        Some(figures) => format!(
            "{}: median {}, quartiles {} and {}, mean {}.",
            mode.mode,
            rate_text(figures.median_bps),
            rate_text(figures.lower_quartile_bps),
            rate_text(figures.upper_quartile_bps),
            rate_text(figures.mean_bps)
        ),
        None => format!("{}: nothing measured.", mode.mode),
    }
}

/// The arms that the learning modes used, in alphabetical order.
fn arms_of_learners(outcome: &ScenarioOutcome) -> Vec<&str> {
    let learners = outcome.modes.iter().filter(|mode| mode.mode.learns());
    let arms: std::collections::BTreeSet<&str> = learners
        .flat_map(|mode| &mode.connections)
        .map(|connection| connection.arm.as_str())
        .filter(|arm| !arm.is_empty())
        .collect();
    arms.into_iter().collect()
}

fn round_ticks(rounds: u32) -> Vec<u32> {
    let step = rounds.div_ceil(12).max(1);
    (0..rounds).step_by(step as usize).collect()
}
