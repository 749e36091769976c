//! The whole screen: what the agent is, its figures, the view, the keys.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use thalweg_agent::view::Status;
use thalweg_terminal::output::{self, span_text, wrap_text};
use thalweg_units::printable;

use super::choice::{Choice, VIEWS, View};
use super::figures::{count_text, per_second};
use super::scene::{Body, Paint, Scene};
use super::seen::{AgentView, Observed};
use super::table::{columns_of, pad_text};
use super::views;

/// The smallest terminal that shows figures.
const LEAST: (u16, u16) = (40, 8);
/// Lines that problems take at most.
const PROBLEM_LINES: usize = 3;

const KEYS: [&str; 16] = [
    "Tab, 1-5       another view",
    "s              sort hosts by traffic, recent use or cost",
    "/              show only rows with a text; hosts also by prefix,",
    "               as 192.0.2.0/24. Enter keeps it, Esc shows all again",
    "Space, p       freeze, and go on",
    "Up, Down, PageUp, PageDown, Home, End",
    "               scroll",
    "?, h           help, and back",
    "q, Ctrl-C, Esc quit",
    "Ctrl-Z         suspend; fg goes on",
    "",
    "The filter does not look further than what was asked for: the first",
    "1000 hosts. `thalweg hosts --filter` looks at all.",
    "Figures per second are over the last interval (--interval).",
    "",
    "This view:",
];

/// Draws the screen.
pub fn draw_screen(
    buffer: &mut Buffer,
    known: &AgentView,
    choice: &mut Choice,
    paint: Paint,
    every: &str,
) {
    let area = buffer.area;
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!(
            "too small: {} x {}, needs {} x {}; q quits",
            area.width, area.height, LEAST.0, LEAST.1
        );
        put_line(buffer, 0, &Line::raw(text));
        return;
    }
    let width = usize::from(area.width);
    let mut top = vec![title_line(known, choice, paint, every, width)];
    top.push(Line::raw(pad_text(&summary_text(known), width, false)));
    top.extend(trouble_lines(known, paint, every, width));
    let scene = Scene {
        known,
        choice,
        paint,
        width,
    };
    let body = match choice.help {
        true => help_body(choice.view, width),
        false => views::view_body(&scene),
    };
    let rows = area.height as usize - top.len() - 2;
    let room = rows.saturating_sub(body.fixed.len());
    choice.page = room.max(1);
    choice.scroll = choice.scroll.min(body.lines.len().saturating_sub(room));
    top.push(tabs_line(choice, &body, room, width));
    let shown = body.lines.iter().skip(choice.scroll).take(room);
    for (y, line) in top.iter().chain(&body.fixed).chain(shown).enumerate() {
        if y < usize::from(area.height) - 1 {
            put_line(buffer, y as u16, line);
        }
    }
    put_line(buffer, area.height - 1, &keys_line(choice, width));
}

fn put_line(buffer: &mut Buffer, y: u16, line: &Line) {
    let Rect { x, width, .. } = buffer.area;
    if y < buffer.area.height {
        buffer.set_line(x, y, line, width);
    }
}

/// Title: the agent, and the time of the figures.
fn title_line(
    known: &AgentView,
    choice: &Choice,
    paint: Paint,
    every: &str,
    width: usize,
) -> Line<'static> {
    let mut left = "thalweg top".to_owned();
    if let Some(Observed { now, .. }) = &known.status {
        let unset = match now.trials {
            _ if now.dry_run => ", dry run",
            Some(_) => ", advice only",
            None => "",
        };
        if !now.machine.is_empty() {
            left += &format!(" on {}", now.machine);
        }
        left += &format!(
            ": agent {}, {}{unset}, up {}",
            now.version,
            now.mode,
            span_text(now.uptime_s)
        );
    }
    let at = output::time_text(known.time_ms);
    let at = at.get(11..19).unwrap_or_default();
    let (right, style) = match (choice.frozen, &known.trouble) {
        (true, _) => (format!("FROZEN at {at} UTC"), paint.warning_style()),
        (_, Some(_)) => (format!("no answer since {at} UTC"), paint.error_style()),
        _ => (format!("{at} UTC, every {every}"), Style::default()),
    };
    let room = width.saturating_sub(columns_of(&right) + 1);
    let left = pad_text(&printable(&left), room, false) + " ";
    Line::from(vec![Span::raw(left), Span::styled(right, style)])
}

/// The figures of all views.
fn summary_text(known: &AgentView) -> String {
    let Some(seen) = &known.status else {
        return String::new();
    };
    let status = &seen.now;
    let rate = |counter: fn(&Status) -> u64| per_second(seen.per_second(|now| Some(counter(now))));
    format!(
        "Connections {}/s, changed {}/s, scored {}/s  Hosts {} of {}",
        rate(|status| status.counters.established),
        rate(|status| status.counters.changed),
        rate(|status| status.counters.scored),
        count_text(status.hosts),
        count_text(status.hosts_max)
    )
}

/// Why there is no answer, or the first problem.
fn trouble_lines(known: &AgentView, paint: Paint, every: &str, width: usize) -> Vec<Line<'static>> {
    let problems = known
        .status
        .as_ref()
        .map(|status| &status.now.problems[..])
        .unwrap_or_default();
    let (text, style) = match (&known.trouble, problems) {
        (Some(why), _) => {
            let text = format!("NO ANSWER, asking again every {every}. {why}");
            (text, paint.error_style())
        }
        (None, []) => ("No problems".to_owned(), Style::default()),
        (None, [only]) => (format!("PROBLEM: {only}"), paint.warning_style()),
        (None, [first, ..]) => {
            let number = problems.len();
            (
                format!("{number} PROBLEMS (5 shows all): {first}"),
                paint.warning_style(),
            )
        }
    };
    let mut lines = wrap_text(&printable(&text), width);
    if lines.len() > PROBLEM_LINES {
        lines.truncate(PROBLEM_LINES);
        if let Some(last) = lines.last_mut() {
            *last = pad_text(
                &format!("{last} …"),
                last.chars().count().min(width - 2) + 2,
                false,
            );
        }
    }
    lines
        .into_iter()
        .map(|line| Line::styled(line, style))
        .collect()
}

/// The views, and which lines of this one are on the screen.
fn tabs_line(choice: &Choice, body: &Body, room: usize, width: usize) -> Line<'static> {
    let mut spans = Vec::new();
    for (index, (view, name)) in VIEWS.iter().enumerate() {
        let style = match *view == choice.view {
            true => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            false => Style::default(),
        };
        spans.push(Span::styled(format!("{} {name}", index + 1), style));
        spans.push("  ".into());
    }
    let used: usize = spans.iter().map(Span::width).sum();
    let lines = body.lines.len();
    if lines > room {
        let (first, last) = (choice.scroll + 1, (choice.scroll + room).min(lines));
        let text = format!("{first}-{last} of {lines}");
        if used + text.len() <= width {
            spans.push(Span::raw(pad_text(&text, width - used, true)));
        }
    }
    Line::from(spans)
}

fn keys_line(choice: &Choice, width: usize) -> Line<'static> {
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    if choice.writing {
        let text = format!(
            "filter: {}_  Enter keeps, Esc clears",
            printable(&choice.filter)
        );
        return Line::styled(pad_text(&text, width, false), reversed);
    }
    let sort = format!("s sort: {}", choice.sort.name());
    let filter = match choice.filter.is_empty() {
        true => "/ filter".to_owned(),
        false => format!("/ filter: {}", printable(&choice.filter)),
    };
    let freeze = if choice.frozen {
        "Space goes on"
    } else {
        "Space freeze"
    };
    let mut parts = vec!["q quit", "? help", "Tab 1-5 view"];
    if choice.help {
        parts = vec!["? back", "Up Down scroll"];
    } else {
        if matches!(choice.view, View::Hosts | View::Arms) {
            parts.push(&sort);
        }
        parts.extend([filter.as_str(), freeze]);
    }
    Line::styled(pad_text(&parts.join("  "), width, false), reversed)
}

fn help_body(view: View, width: usize) -> Body {
    let mut lines = Vec::new();
    for text in KEYS.iter().chain(views::help_lines(view)) {
        lines.extend(wrap_text(text, width).into_iter().map(Line::raw));
    }
    Body {
        lines,
        ..Body::default()
    }
}
