//! `thalweg status`.

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use thalweg_agent::features;
use thalweg_agent::view::{Newcomers, Repairs, Severity, Status};
use thalweg_terminal::Failure;
use thalweg_terminal::output::{self, bytes_text, span_text};
use thalweg_units::figures::three_digits;
use thalweg_units::one_line;

use crate::client::Client;
use crate::options::{Global, Readable, in_words};

/// The form of the answer.
#[derive(Debug, Args)]
pub struct Options {
    /// One line and an exit code as monitoring plugins have them.
    ///
    /// 0 OK; 1 WARNING: there are problems; 2 CRITICAL: the agent does not run or answer, or its
    /// programs are not attached; 3 UNKNOWN: wrong usage. A fault of the configuration file stands in
    /// the line. After "|" come
    /// figures with their limits.
    #[arg(long, conflicts_with_all = ["json", "json_lines"])]
    check: bool,
}

/// The agent's status, and the fault of the configuration file, which the agent may not know.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    status: &'a Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration_fault: Option<&'a str>,
}

/// Shows the state of the agent.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    if options.check {
        let (line, code) = check_agent(global);
        output::print(&line)?;
        return match code {
            0 => Ok(()),
            code => Err(Failure::Silent(code).into()),
        };
    }
    let status: Status = global.agent_client()?.get("/v1/status")?;
    let fault = global.readable_config()?.fault;
    let answer = Answer {
        status: &status,
        configuration_fault: fault.as_deref(),
    };
    output::show_value(&global.format, &answer, || status_text(&status))
}

/// A line for a monitoring system, and the exit code that goes with it.
fn check_agent(global: &Global) -> (String, u8) {
    let Readable { config, fault } = match global.readable_config() {
        Ok(readable) => readable,
        Err(error) => return (format!("THALWEG CRITICAL - {}\n", in_one_line(&error)), 2),
    };
    let fault = fault.map_or_else(String::new, |fault| {
        format!(" ({})", one_line(&in_words(&fault)).replace('|', "/"))
    });
    let client = Client::new(config.paths.socket, config.paths.pin);
    match client.get::<Status>("/v1/status") {
        Ok(status) => agent_verdict(&status, &fault),
        Err(error) => {
            let line = format!("THALWEG CRITICAL - {}{fault}\n", in_one_line(&error));
            (line, 2)
        }
    }
}

/// A bar would begin the figures.
fn in_one_line(error: &anyhow::Error) -> String {
    one_line(&format!("{error:#}")).replace('|', "/")
}

/// `beside` follows what is said of the agent.
fn agent_verdict(status: &Status, beside: &str) -> (String, u8) {
    let c = &status.counters;
    let figures = format!(
        "hosts={};;;0;{} established={}c decided={}c changed={}c refused={}c events_lost={}c \
         memory={}B uptime={}s",
        status.hosts,
        status.hosts_max,
        c.established,
        c.decided,
        c.changed,
        c.refused,
        c.events_dropped + status.events_lost,
        status.resident_bytes + status.map_bytes,
        status.uptime_s
    );
    if status.problems.is_empty() {
        let told = format!(
            "{} hosts, {} of {} connections changed",
            status.hosts, c.changed, c.established
        );
        return (format!("THALWEG OK - {told}{beside} | {figures}\n"), 0);
    }
    let problems = one_line(&status.problems.join("; ")).replace('|', "/");
    let (word, code) = match status.health {
        Severity::Critical => ("CRITICAL", 2),
        // An agent of an earlier version does not tell.
        Severity::Ok | Severity::Warning => ("WARNING", 1),
    };
    let line = format!("THALWEG {word} - {problems}{beside} | {figures}\n");
    (line, code)
}

fn status_text(status: &Status) -> String {
    let unset = match status.trials {
        _ if status.dry_run => ", dry run: nothing is set".to_owned(),
        Some(0.0) => ", advice only: nothing is set".to_owned(),
        Some(trials) => format!(
            ", advice only: trials on {} % of the hosts",
            three_digits(100.0 * trials)
        ),
        None => String::new(),
    };
    let took_over = if status.took_over {
        ", took over what was in the kernel"
    } else {
        ""
    };
    let snapshot = match status.snapshot_age_s {
        Some(age) => format!("{} ago", span_text(age)),
        None => "none yet".to_owned(),
    };
    let mut rows = vec![
        (
            "agent",
            format!("{}, process {}", status.version, status.pid),
        ),
        ("up", format!("{}{took_over}", span_text(status.uptime_s))),
        ("mode", format!("{}{unset}", status.mode)),
        ("cgroup", status.cgroup.clone()),
        (
            "pinned in",
            format!("{} (interface version {})", status.pin, status.abi_version),
        ),
        ("store", status.store.clone()),
        ("last snapshot", snapshot),
        (
            "hosts",
            format!(
                "{}; beyond {} the least valuable go",
                status.hosts, status.hosts_max
            ),
        ),
        (
            "memory",
            format!(
                "{} in the kernel, {} in the agent",
                bytes_text(status.map_bytes),
                bytes_text(status.resident_bytes)
            ),
        ),
    ];
    rows.extend(counter_rows(status));
    for feature in features::all() {
        let found = status.features.get(feature.name());
        let row = found.and_then(|status| feature.status_row(status));
        rows.extend(row.map(|text| (feature.name(), text)));
    }
    rows.extend(
        status
            .repairs
            .as_ref()
            .map(|it| ("repairs", repairs_text(it))),
    );
    if let Some(Newcomers { names, line }) = &status.newcomers {
        let names = names.join(", ");
        let text = format!("{names}: loaded after the agent's start; [arms] {line} allows it");
        rows.push(("not allowed", text));
    }
    if status.problems.is_empty() {
        rows.push(("problems", "none".to_owned()));
    }
    for (index, problem) in status.problems.iter().enumerate() {
        rows.push((if index == 0 { "problems" } else { "" }, problem.clone()));
    }
    output::pairs_table(rows)
}

/// Programs and pins that were put back.
fn repairs_text(done: &Repairs) -> String {
    let number = output::count_text(done.number, "repair");
    format!(
        "{number}, the last {} ago: {}",
        span_text(done.last_age_s),
        done.last
    )
}

/// Long connections, and what looks at them cost.
fn open_connections_text(status: &Status) -> String {
    let c = &status.counters;
    let Some(looks) = &status.looks else {
        return "scored when they end".to_owned();
    };
    format!(
        "{} scored on their way, {} decided anew, {} moved; looks take {:.3} % of a processor",
        output::count_text(c.stretches, "time"),
        c.anew,
        c.moved,
        looks.processor_percent()
    )
}

/// Counters since the programs were attached.
fn counter_rows(status: &Status) -> Vec<(&'static str, String)> {
    let c = &status.counters;
    let measured_by = if status.kernel_busy_time {
        "busy time"
    } else {
        "wall time"
    };
    let mut rows = vec![
        (
            "connections",
            format!(
                "{} established, {} decided, {} changed, {} left to the application",
                c.established, c.decided, c.changed, c.app_owned
            ),
        ),
        (
            "",
            format!(
                "{} refused by the kernel, {} moved and {} taken back mid-flow",
                c.refused, c.switched, c.withdrawn
            ),
        ),
        (
            "",
            format!("{} decided by what is known of their networks", c.by_group),
        ),
        (
            "",
            match c.windows_refused {
                0 => format!("{} with a larger initial window", c.windows_raised),
                refused => format!(
                    "{} with a larger initial window, {refused} refused by the kernel",
                    c.windows_raised
                ),
            },
        ),
        (
            "",
            match c.control {
                0 => format!("{} in namespaces that are left alone", c.outside),
                control => format!(
                    "{control} in the control group, {} in namespaces that are left alone",
                    c.outside
                ),
            },
        ),
        (
            "measurements",
            format!(
                "{} of {} ended connections scored, by {measured_by}",
                c.scored.saturating_sub(c.stretches),
                c.closed
            ),
        ),
        ("long connections", open_connections_text(status)),
        (
            "not scored",
            format!(
                "{} small, {} limited elsewhere, {} timed out",
                c.skipped_small, c.skipped_app_limited, c.skipped_timeout
            ),
        ),
        (
            "",
            format!(
                "{} not tracked, {} displaced, {} with another CC",
                c.skipped_not_tracked, c.conns_missed, c.skipped_overridden
            ),
        ),
        (
            "records",
            format!(
                "{} created, {} allocations failed",
                c.hosts_created, c.hosts_missed
            ),
        ),
        (
            "events",
            format!(
                "{} from the kernel, {} lost before that, {} stored by this agent, {} not",
                c.events, c.events_dropped, status.events_stored, status.events_lost
            ),
        ),
    ];
    if status.events_share < 1.0 || status.events_left_out > 0 {
        let share = three_digits(100.0 * status.events_share);
        let left_out = status.events_left_out;
        let kept =
            format!("{share} % of the host-hours are kept, {left_out} left out by this agent");
        rows.push(("", kept));
    }
    rows
}
