//! Problems with what mends them, and what the programs cost.

use ratatui::style::Style;
use thalweg_agent::view::Status;
use thalweg_control::inventory::{Inventory, RunningProgram};
use thalweg_terminal::output::span_text;
use thalweg_units::figures::{bytes_text, three_digits};

use crate::commands::top::figures::{NONE, count_text, per_second};
use crate::commands::top::scene::{Body, Scene};
use crate::commands::top::seen::Observed;
use crate::commands::top::table::{Cell, Column, Table};

/// In place of what an older agent has none of.
pub const NOT_REPORTED: &str = "Not reported by this agent: it has no /v1/kernel. It is of an \
    earlier version than this command; restart it with the installed one.";
const NO_STATISTICS: &str = "The kernel does not measure programs: \
    sysctl -w kernel.bpf_stats_enabled=1 has it do so, which makes each run a little longer.";

/// The columns.
pub const HELP: [&str; 6] = [
    "Problems: what the agent has to tell, and what mends it.",
    "  `thalweg doctor` says what this machine lacks.",
    "Runs/s: how often the program runs; ns/run: how long, now, or since",
    "  it was loaded where it does not run now.",
    "CPU: share of one processor.",
    "The filter looks at names of programs.",
];

pub fn health_body(scene: &Scene) -> Body {
    let Some(status) = &scene.known.status else {
        return scene.waiting_body();
    };
    let mut body = Body::default();
    add_problems(scene, &status.now, &mut body);
    body.add_gap();
    add_memory(scene, &status.now, &mut body);
    body.add_gap();
    match &scene.known.kernel {
        None => body.lines.extend(scene.waiting_body().fixed),
        Some(seen) => match &seen.now {
            None => body.add_text(NOT_REPORTED, Style::default(), scene.width),
            Some(kernel) => add_programs(scene, seen, kernel, &mut body),
        },
    }
    body
}

fn add_problems(scene: &Scene, status: &Status, body: &mut Body) {
    if status.problems.is_empty() {
        body.add_text("No problems.", Style::default(), scene.width);
    }
    for (index, problem) in status.problems.iter().enumerate() {
        body.add_text(
            &format!("! {problem}"),
            scene.paint.error_style(),
            scene.width,
        );
        if let Some(fix) = status.fixes.get(index).filter(|fix| !fix.is_empty()) {
            body.add_text(&format!("  Fix: {fix}"), Style::default(), scene.width);
        }
    }
}

fn add_memory(scene: &Scene, status: &Status, body: &mut Body) {
    let snapshot = match status.snapshot_age_s {
        Some(age) => format!("{} ago", span_text(age)),
        None => "not yet".to_owned(),
    };
    let text = format!(
        "{} in the kernel, {} in the agent. Hosts saved {snapshot} to {}. Events: {} lost in the \
         kernel, {} not stored.",
        bytes_text(status.map_bytes),
        bytes_text(status.resident_bytes),
        status.store,
        status.counters.events_dropped,
        status.events_lost
    );
    body.add_text(&text, Style::default(), scene.width);
}

fn add_programs(
    scene: &Scene,
    seen: &Observed<Option<Inventory>>,
    kernel: &Inventory,
    body: &mut Body,
) {
    let shown = |program: &&RunningProgram| scene.choice.passes_filter(&[&program.name]);
    let programs: Vec<&RunningProgram> = kernel.programs.iter().filter(shown).collect();
    if programs.is_empty() && !scene.choice.filter.is_empty() {
        body.lines.extend(scene.nothing_passes("program").fixed);
        return;
    }
    if !kernel.statistics {
        body.add_text(NO_STATISTICS, scene.paint.warning_style(), scene.width);
    }
    let mut rows: Vec<(f64, _)> = programs
        .iter()
        .map(|program| program_row(seen, program))
        .collect();
    rows.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let columns = vec![
        Column::text("Program", 16, 0),
        Column::number("Id", 6, 3),
        Column::number("Runs", 7, 2),
        Column::number("Runs/s", 7, 1),
        Column::number("ns/run", 7, 0),
        Column::number("CPU", 7, 0),
    ];
    let rows = rows.into_iter().map(|(_, row)| row).collect();
    body.add_table(&Table { columns, rows }, scene.width);
}

/// A program's share of a processor, and its row.
fn program_row(seen: &Observed<Option<Inventory>>, program: &RunningProgram) -> (f64, Vec<Cell>) {
    let grown = |counter: fn(&RunningProgram) -> Option<u64>| {
        seen.per_second(|kernel| {
            let programs = &kernel.as_ref()?.programs;
            counter(programs.iter().find(|one| one.id == program.id)?)
        })
    };
    let runs = grown(|program| program.runs);
    let time_ns = grown(|program| program.run_time_ns);
    let now = runs.zip(time_ns).filter(|(runs, _)| *runs > 0.0);
    let ever = program
        .runs
        .zip(program.run_time_ns)
        .filter(|(runs, _)| *runs > 0);
    let ever = ever.map(|(runs, ns)| (runs as f64, ns as f64));
    let per_run = now.or(ever).map(|(runs, ns)| ns / runs);
    let share = time_ns.map(|ns| ns / 1e9);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.to_owned());
    let cells = vec![
        program.name.clone().into(),
        program.id.to_string().into(),
        or_none(program.runs.map(count_text)).into(),
        per_second(runs).into(),
        or_none(per_run.map(three_digits)).into(),
        or_none(share.map(|share| format!("{:.2}%", share * 100.0))).into(),
    ];
    (share.unwrap_or(0.0), cells)
}
