//! Pictures over the course of a run: chosen arms, convergence, regret.

use std::fmt::Write;

use thalweg_report::{
    COLOURS, LEFT, RIGHT, Shape, TOP, WIDTH, draw_grid_line, escape_html, open_picture,
};

use crate::outcome::{ModeOutcome, ScenarioOutcome};
use crate::query::{Query, WINDOW, running_median};
use crate::scenario::INCUMBENT;
use crate::statistic::Statistic;

/// Number of parts of a run in the picture of the arms' shares.
pub(crate) const PARTS: u32 = 10;

/// Shares of the arms over the run: a column per part, a row per learning mode; none without
/// learners.
pub(super) fn arms_plot(outcome: &ScenarioOutcome) -> Option<String> {
    const ROW: f64 = 130.0;
    const BAR: f64 = 96.0;
    let learners: Vec<&ModeOutcome> = outcome
        .modes
        .iter()
        .filter(|mode| mode.mode.learns() && mode.measured_connections().next().is_some())
        .collect();
    let all: std::collections::BTreeSet<String> = learners
        .iter()
        .flat_map(|mode| mode.arm_counts())
        .map(|(arm, _)| arm)
        .collect();
    if all.is_empty() {
        return None;
    }
    let names: Vec<&String> = all.iter().collect();
    let mut svg = open_picture(
        TOP + ROW * learners.len() as f64,
        "arms",
        "Shares of the arms over the run",
        "Stacked columns, one per tenth of the run; each part is labelled with its arm.",
    );
    for (row, mode) in learners.iter().enumerate() {
        let top = TOP + ROW * row as f64;
        let _ = write!(
            svg,
            "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 8.0,
            top + BAR / 2.0,
            escape_html(&mode.mode.to_string())
        );
        let parts = mode.arm_shares(PARTS);
        let width = (WIDTH - LEFT - 40.0) / parts.len().max(1) as f64;
        for (column, part) in parts.iter().enumerate() {
            let left = LEFT + width * column as f64;
            let mut bottom = top + BAR;
            for (place, name) in names.iter().enumerate() {
                let share = part.shares.get(*name).copied().unwrap_or(0.0);
                let height = BAR * share;
                if height <= 0.0 {
                    continue;
                }
                bottom -= height;
                let _ = write!(
                    svg,
                    "<g class=\"c{} box\"><rect x=\"{left:.1}\" y=\"{bottom:.1}\" width=\"{:.1}\" height=\"{height:.1}\">\
                     <title>{}: {:.0}% of connections {} to {}</title></rect></g>",
                    place % COLOURS,
                    width - 4.0,
                    escape_html(name),
                    share * 100.0,
                    part.first + 1,
                    part.last + 1,
                );
                if height >= 14.0 {
                    let _ = write!(
                        svg,
                        "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                        left + width / 2.0 - 2.0,
                        bottom + height / 2.0 + 4.0,
                        escape_html(name)
                    );
                }
            }
            let _ = write!(
                svg,
                "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}–{}</text>",
                left + width / 2.0 - 2.0,
                top + BAR + 16.0,
                part.first + 1,
                part.last + 1
            );
        }
    }
    svg.push_str("</svg>");
    Some(svg)
}

/// The running median relative to the best fixed arm's median, with the threshold of convergence;
/// none without a fixed arm.
pub(super) fn convergence_plot(outcome: &ScenarioOutcome) -> Option<String> {
    let (_, best) = Query::from(Statistic::Median).best_fixed(&outcome.modes, 0)?;
    let series = learner_series(outcome, best, |mode| {
        running_median(&mode.goodputs_bps())
            .enumerate()
            .map(|(place, median)| ((place + WINDOW) as f64, median / best))
            .collect()
    })?;
    Some(line_plot(
        "convergence",
        "Running median of 5 connections, to the best fixed arm's median",
        &series,
        Some(0.9),
    ))
}

/// Cumulative regret against the best fixed arm; none without a fixed arm.
pub(super) fn regret_plot(outcome: &ScenarioOutcome) -> Option<String> {
    let (_, best) = Query::from(Statistic::Median).best_fixed(&outcome.modes, 0)?;
    let series = learner_series(outcome, best, |mode| {
        let mut sum = 0.0;
        mode.measured_connections()
            .enumerate()
            .map(|(place, connection)| {
                sum += 1.0 - connection.goodput_bps / best;
                ((place + 1) as f64, sum)
            })
            .collect()
    })?;
    Some(line_plot(
        "regret",
        "Regret, added up: connections of the best fixed arm",
        &series,
        None,
    ))
}

/// The newcomers' share of each round; none without competition.
pub(super) fn shares_plot(outcome: &ScenarioOutcome) -> Option<String> {
    let series: Vec<Series> = outcome
        .modes
        .iter()
        .enumerate()
        .filter_map(|(index, mode)| {
            let points = (0..mode.rounds)
                .filter_map(|round| {
                    let flows = || {
                        mode.connections
                            .iter()
                            .filter(move |one| one.round == round)
                    };
                    let sum = |incumbents: bool| -> f64 {
                        flows()
                            .filter(|one| (one.class == INCUMBENT) == incumbents)
                            .map(|one| one.goodput_bps)
                            .sum()
                    };
                    let (old, new) = (sum(true), sum(false));
                    // Incumbents that got nothing were there.
                    let is_shared = flows().any(|one| one.class == INCUMBENT) && old + new > 0.0;
                    is_shared.then(|| (f64::from(round + 1), new / (old + new)))
                })
                .collect::<Vec<_>>();
            (!points.is_empty()).then(|| Series::for_mode(index, mode, points))
        })
        .collect();
    (!series.is_empty()).then(|| {
        line_plot(
            "shares",
            "The newcomers' share of each round",
            &series,
            None,
        )
    })
}

/// A line of a picture.
struct Series {
    name: String,
    colour: usize,
    class: &'static str,
    points: Vec<(f64, f64)>,
}

impl Series {
    fn for_mode(index: usize, mode: &ModeOutcome, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: mode.mode.to_string(),
            colour: index % COLOURS,
            class: if mode.mode.learns() {
                "learner"
            } else {
                "reference"
            },
            points,
        }
    }

    /// Draws the line through these points, and names it in this row of the legend.
    fn draw_line(&self, svg: &mut String, row: usize, points: &[(f64, f64)]) {
        let path = points
            .iter()
            .map(|(across, up)| format!("{across:.1},{up:.1}"));
        let path: Vec<String> = path.collect();
        let left = WIDTH - RIGHT + 36.0;
        let line = TOP + 8.0 + 20.0 * row as f64;
        let _ = write!(
            svg,
            "<g class=\"c{} {}\"><polyline points=\"{}\"/>\
             <line x1=\"{left}\" x2=\"{}\" y1=\"{line}\" y2=\"{line}\"/>",
            self.colour,
            self.class,
            path.join(" "),
            left + 22.0,
        );
        // A mark at the line's end and beside its name, so that colour is not needed.
        let shape = Shape::at_index(row);
        shape.draw_shape(svg, left + 11.0, line, &self.name);
        if let Some((across, up)) = points.last() {
            shape.draw_shape(svg, *across, *up, &self.name);
        }
        let _ = write!(
            svg,
            "</g><text x=\"{}\" y=\"{}\">{}</text>",
            left + 28.0,
            line + 4.0,
            escape_html(&self.name)
        );
    }
}

/// The lines of all modes but the fixed ones.
fn learner_series(
    outcome: &ScenarioOutcome,
    best: f64,
    points: impl Fn(&ModeOutcome) -> Vec<(f64, f64)>,
) -> Option<Vec<Series>> {
    let series: Vec<Series> = outcome
        .modes
        .iter()
        .enumerate()
        .filter(|(_, mode)| !matches!(mode.mode, crate::Mode::Fixed(_)) && best > 0.0)
        .map(|(index, mode)| Series::for_mode(index, mode, points(mode)))
        .filter(|series| !series.points.is_empty())
        .collect();
    (!series.is_empty()).then_some(series)
}

/// Lines over the number of the connection or round, on a linear scale with zero.
fn line_plot(id: &str, title: &str, series: &[Series], mark: Option<f64>) -> String {
    const HEIGHT: f64 = 260.0;
    const BOTTOM: f64 = 30.0;
    let points = || series.iter().flat_map(|one| &one.points);
    let last = points().map(|(x, _)| *x).fold(2.0, f64::max);
    let low = points().map(|(_, y)| *y).fold(0.0, f64::min);
    let high = points()
        .map(|(_, y)| *y)
        .chain(mark)
        .fold((low + 1e-9).max(0.0), f64::max);
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value - 1.0) / (last - 1.0);
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - low) / (high - low);
    let ends: Vec<String> = series
        .iter()
        .filter_map(|one| {
            let (_, value) = one.points.last()?;
            Some(format!("{} ends at {value:.2}.", one.name))
        })
        .collect();
    let mut svg = open_picture(HEIGHT, id, title, &ends.join(" "));
    let ticks = [low, (low + high) / 2.0, high];
    for tick in ticks {
        draw_grid_line(&mut svg, y(tick), format!("{tick:.2}"));
    }
    if let Some(mark) = mark {
        let place = y(mark);
        let _ = write!(
            svg,
            "<g class=\"plain reference\"><line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{place:.1}\" y2=\"{place:.1}\"/></g>\
             <text x=\"{:.1}\" y=\"{:.1}\">{mark}</text>",
            WIDTH - RIGHT,
            WIDTH - RIGHT + 4.0,
            place + 4.0
        );
    }
    for number in [1.0, ((1.0 + last) / 2.0).round(), last] {
        let _ = write!(
            svg,
            "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{number:.0}</text>",
            x(number),
            HEIGHT - BOTTOM + 18.0
        );
    }
    for (row, one) in series.iter().enumerate() {
        let points = one.points.iter();
        let points: Vec<(f64, f64)> = points.map(|point| (x(point.0), y(point.1))).collect();
        one.draw_line(&mut svg, row, &points);
    }
    svg.push_str("</svg>");
    svg
}
