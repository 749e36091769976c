//! Decisions: the kernel's counters, reasons of the last minute, and the latest events.

use std::collections::BTreeMap;
use thalweg_terminal::output::percent_text;
use thalweg_units::printable;

use ratatui::style::Style;
use ratatui::text::Line;
use thalweg_agent::view::{Counters, Event, Status};

use crate::commands::events;
use crate::commands::top::asker::EVENTS;
use crate::commands::top::figures::{count_text, per_second};
use crate::commands::top::scene::{Body, Scene, style_if};
use crate::commands::top::seen::Observed;
use crate::commands::top::table::{Cell, Column, Table, pad_text};

/// Span of the reasons, ms.
const WINDOW_MS: i64 = 60_000;
/// Columns of the screen from which the two tables stand side by side.
const WIDE: usize = 76;
/// Columns of the counters then.
const LEFT: usize = 36;

/// The columns.
pub const HELP: [&str; 10] = [
    "Left: counters of the kernel since the programs were attached, exact",
    "  at any load, and how fast they grow.",
    "Right: decisions with evidence in the last minute, by reason and by",
    "  arm. Warm-up makes no event. Where the latest 500 events are",
    "  younger than a minute, the figures are of their time.",
    "greedy: the cheapest arm; explore, untried, drawn: a trial;",
    "  application, foreign: left alone; loss, withdrawn: moved mid-flow;",
    "  anew, returned: a long connection moved.",
    "Below: the latest events; the filter looks at these.",
    "  `thalweg events --follow` goes on with them.",
];

type Counter = (&'static str, fn(&Counters) -> u64);

const COUNTERS: [Counter; 16] = [
    ("established", |c| c.established),
    ("decided", |c| c.decided),
    ("changed", |c| c.changed),
    ("refused by kernel", |c| c.refused),
    ("left to application", |c| c.app_owned),
    ("moved mid-flow", |c| c.switched + c.moved),
    ("taken back mid-flow", |c| c.withdrawn),
    ("ended", |c| c.closed),
    ("scored", |c| c.scored),
    ("not scored: small", |c| c.skipped_small),
    ("  app or buffer full", |c| c.skipped_app_limited),
    ("  timed out", |c| c.skipped_timeout),
    ("  not tracked", |c| c.skipped_not_tracked),
    ("  another CC ran", |c| c.skipped_overridden),
    ("  displaced", |c| c.conns_missed),
    ("events lost", |c| c.events_dropped),
];

pub fn decisions_body(scene: &Scene) -> Body {
    let (Some(status), Some(events)) = (&scene.known.status, &scene.known.events) else {
        return scene.waiting_body();
    };
    let counters = counters_table(scene, status);
    let reasons = reasons_table(events, scene.known.time_ms);
    let mut body = Body::default();
    if scene.width < WIDE {
        body.add_table(&counters, scene.width);
        body.add_table(&reasons, scene.width);
    } else {
        body.lines = side_by_side(&counters, &reasons, scene.width);
    }
    body.add_gap();
    add_latest(scene, events, &mut body);
    body
}

fn counters_table(scene: &Scene, status: &Observed<Status>) -> Table {
    let harm = ["refused by kernel", "events lost"];
    let rows = COUNTERS.iter().map(|(name, counter)| {
        let total = counter(&status.now.counters);
        let rate = status.per_second(|status| Some(counter(&status.counters)));
        let is_bad = harm.contains(name) && total > 0;
        let style = style_if(is_bad, scene.paint.warning_style());
        vec![
            (*name).into(),
            Cell::with_style(&count_text(total), style),
            per_second(rate).into(),
        ]
    });
    Table {
        columns: vec![
            Column::text("Connections", 20, 0),
            Column::number("Total", 7, 0),
            Column::number("/s", 6, 0),
        ],
        rows: rows.collect(),
    }
}

/// Decisions by reason and by arm, of the last minute or of the time that the events tell of.
fn reasons_table(events: &[Event], now_ms: i64) -> Table {
    let oldest = events.last().filter(|_| events.len() >= EVENTS);
    let since = oldest
        .map_or(i64::MIN, |event| event.time_ms)
        .max(now_ms - WINDOW_MS);
    let recent = |event: &&Event| event.time_ms >= since && event.kind == "decision";
    let (mut by_reason, mut by_arm) = (BTreeMap::new(), BTreeMap::new());
    let mut all = 0u64;
    for event in events.iter().filter(recent) {
        all += 1;
        *by_reason.entry(event.reason.as_str()).or_insert(0u64) += 1;
        let arm = event.arm.as_deref().unwrap_or("another");
        *by_arm.entry(arm).or_insert(0u64) += 1;
    }
    let seconds = (now_ms - since).max(1000) as f64 / 1e3;
    let row = |name: &str, number: u64| -> Vec<Cell> {
        vec![
            name.into(),
            count_text(number).into(),
            per_second(Some(number as f64 / seconds)).into(),
            percent_text(number as f64 / all.max(1) as f64).into(),
        ]
    };
    let mut rows = vec![row("all", all)];
    rows.extend(most_frequent(by_reason).map(|(reason, number)| row(reason, number)));
    rows.extend(most_frequent(by_arm).map(|(arm, number)| row(&format!("to {arm}"), number)));
    let title = if seconds > 59.0 {
        "Last minute"
    } else {
        "Latest 500 events"
    };
    Table {
        columns: vec![
            Column::text(title, 17, 0),
            Column::number("Count", 6, 0),
            Column::number("/s", 6, 0),
            Column::number("Share", 6, 1),
        ],
        rows,
    }
}

/// The most frequent first.
fn most_frequent(counts: BTreeMap<&str, u64>) -> impl Iterator<Item = (&str, u64)> {
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    counts.into_iter()
}

fn side_by_side(left: &Table, right: &Table, width: usize) -> Vec<Line<'static>> {
    let all = |table: &Table, width| {
        let (header, rows) = table.header_and_rows(width);
        std::iter::once(header).chain(rows).collect::<Vec<_>>()
    };
    let left = all(left, LEFT);
    let mut right = all(right, width - LEFT - 2).into_iter();
    let blank = || Line::raw(" ".repeat(LEFT));
    let height = left.len().max(right.len());
    let mut left = left.into_iter();
    let join = |_| {
        let mut spans = styled_spans(left.next().unwrap_or_else(blank));
        spans.push("  ".into());
        spans.extend(styled_spans(right.next().unwrap_or_default()));
        Line::from(spans)
    };
    (0..height).map(join).collect()
}

/// Spans that keep the style of their line.
fn styled_spans(line: Line<'static>) -> Vec<ratatui::text::Span<'static>> {
    let style = line.style;
    let spans = line.spans.into_iter();
    spans.map(|span| span.patch_style(style)).collect()
}

fn add_latest(scene: &Scene, events: &[Event], body: &mut Body) {
    let lines = events
        .iter()
        .map(|event| printable(events::event_line(event).trim_end()));
    let lines: Vec<String> = lines
        .filter(|line| scene.choice.passes_filter(&[line]))
        .collect();
    match (lines.is_empty(), scene.choice.filter.is_empty()) {
        (true, true) => body.add_text("No events yet.", Style::default(), scene.width),
        (true, false) => {
            let nothing = scene.nothing_passes(&format!("event among the latest {}", events.len()));
            body.lines.extend(nothing.fixed);
        }
        // Without the date, and the two spaces after the time.
        (false, _) => body.lines.extend(lines.into_iter().map(|line| {
            let line = line.get(11..).map_or_else(|| line.clone(), str::to_owned);
            Line::raw(pad_text(&line, scene.width, false))
        })),
    }
}
