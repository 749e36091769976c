//! `thalweg limit`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;
use thalweg_control::limit::{self, Depth, Limit, Outcome, Request, WithoutFq};
use thalweg_control::privileges::MissingPrivilege;
use thalweg_link::quantity::Threshold;
use thalweg_units::{Rate, figures};

use crate::failure::Failure;
use crate::options::{Global, cgroup};
use crate::output;

/// A limit to set, or what to do with those there are.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    set: Option<Set>,
}

/// Sub-commands for limits.
#[derive(Debug, Subcommand)]
enum Command {
    /// List all limits.
    List,
    /// Show the settings and figures of one limit.
    Show(Which),
    /// Remove a limit, or all.
    ///
    /// Connections get back the pacing rate that they had before.
    Remove(Remove),
}

#[derive(Debug, Args)]
struct Which {
    /// cgroup: system.slice, or its directory.
    #[arg(long, value_name = "PATH")]
    cgroup: PathBuf,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Remove {
    /// cgroup: system.slice, or its directory.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// All limits.
    #[arg(long)]
    all: bool,
}

/// A limit to set.
///
/// It holds for sockets made in the cgroup. Sockets that its processes brought along from
/// elsewhere are found when the limit is set, and it holds for them too; for those of processes
/// that are moved in later, once it is set again. `list` and `show` say how many pass it by.
#[derive(Debug, Args)]
struct Set {
    /// cgroup, as system.slice or its directory; those below it are included.
    #[arg(long, value_name = "PATH")]
    cgroup: PathBuf,
    /// Bits of IP packets per second (kbit, mbit, gbit).
    #[arg(long, value_name = "RATE")]
    rate: Rate,
    /// Give packets departure times, by which fq spreads them out.
    ///
    /// Needs fq on the devices that packets leave by.
    #[arg(long)]
    edt: bool,
    /// With --edt: the device that must have fq; repeatable.
    ///
    /// Default: all that are up, where the cgroup's processes are.
    #[arg(long, value_name = "NAME", requires = "edt")]
    device: Vec<String>,
    /// Let the rate rise while the machine sends less than 15/16 of --line-rate.
    #[arg(long, requires = "line_rate")]
    work_conserving: bool,
    /// With --work-conserving: what all cgroups together may send.
    #[arg(long, value_name = "RATE", requires = "work_conserving")]
    line_rate: Option<Rate>,
    /// Virtual queue beyond which packets are marked (CE) and TCP without ECN slows down: a time at
    /// the rate (us, ms, s), or bytes (B, kB, …).
    ///
    /// Default: 5ms; with --edt 20ms.
    #[arg(long, value_name = "TIME|SIZE")]
    mark_at: Option<Threshold>,
    /// Virtual queue beyond which packets are dropped. Default: 50ms, with --edt 200ms, but at
    /// least 30 kB, and 10s at most.
    #[arg(long, value_name = "TIME|SIZE")]
    drop_at: Option<Threshold>,
    /// What an idle cgroup may send at once.
    #[arg(long, value_name = "TIME|SIZE", default_value = "10ms")]
    burst: Threshold,
    /// Do not pace TCP at its share of the rate.
    #[arg(long)]
    no_pacing: bool,
    /// Count loopback, too.
    #[arg(long)]
    loopback: bool,
}

/// The action, for `--json`.
#[derive(Serialize)]
struct Done {
    outcome: Outcome,
    limit: Limit,
}

/// Sets, lists, shows or removes limits.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let pin = global.config()?.paths.pin;
    act(global, &pin, options).map_err(classified)
}

fn act(global: &Global, pin: &std::path::Path, options: &Options) -> Result<()> {
    match (&options.command, &options.set) {
        (Some(Command::List), _) => {
            let limits = limit::list(pin)?;
            output::show(global, &limits, || match limits.is_empty() {
                true => "there is no limit\n".to_owned(),
                false => table(&limits),
            })
        }
        (Some(Command::Show(which)), _) => {
            let limit = limit::show(pin, &cgroup(&which.cgroup)?)?;
            output::show(global, &limit, || text(&limit))
        }
        (Some(Command::Remove(remove)), _) => {
            let removed = match &remove.cgroup {
                Some(path) => {
                    limit::remove(pin, &cgroup(path)?)?;
                    1
                }
                None => limit::remove_all(pin)?,
            };
            output::show(global, &serde_json::json!({ "removed": removed }), || {
                format!("limits removed: {removed}\n")
            })
        }
        (None, Some(set)) => {
            let request = set.request(cgroup(&set.cgroup)?);
            let outcome = limit::set(pin, &request)?;
            let limit = limit::show(pin, &request.cgroup)?;
            if global.json {
                return output::print_json(&Done { outcome, limit });
            }
            let what = match outcome {
                Outcome::Created => "set",
                Outcome::Changed => "changed",
            };
            output::print(&format!(
                "limit {what}: {} on {}\n{}",
                set.rate,
                request.cgroup.display(),
                moved(&limit).map_or(String::new(), |moved| format!("{moved}\n"))
            ))
        }
        (None, None) => Err(Failure::Usage(
            "say what to limit (--cgroup and --rate), or list, show or remove".to_owned(),
        )
        .into()),
    }
}

impl Set {
    fn request(&self, cgroup: PathBuf) -> Request {
        // With departure times the queue is real. It holds TCP's bursts, 64 KiB a connection, which
        // are not yet too much.
        let [mark_ms, drop_ms] = if self.edt { [20, 200] } else { [5, 50] };
        let milliseconds = |ms: u64| Depth::Time { ns: ms * 1_000_000 };
        // At a low rate a threshold in time is hardly a packet: TCP's first window must fit twice.
        let windows_ms = 30_000 * 8 * 1000 / self.rate.bps().max(1);
        let drop_ms = drop_ms.max(windows_ms.min(10_000));
        Request {
            cgroup,
            rate_bps: self.rate.bps(),
            line_bps: self.line_rate.map(Rate::bps),
            edt: self.edt,
            devices: self.device.clone(),
            pace: !self.no_pacing,
            loopback: self.loopback,
            mark_at: self.mark_at.map_or(milliseconds(mark_ms), depth),
            drop_at: self.drop_at.map_or(milliseconds(drop_ms), depth),
            burst: depth(self.burst),
        }
    }
}

fn depth(threshold: Threshold) -> Depth {
    match threshold {
        Threshold::Bytes(size) => Depth::Bytes(size.bytes()),
        Threshold::Time(time) => Depth::Time { ns: time.ns() },
    }
}

/// Gives an error its documented exit code.
pub fn classified(error: anyhow::Error) -> anyhow::Error {
    if error.is::<MissingPrivilege>() || error.is::<WithoutFq>() {
        return Failure::Missing(format!("{error:#}")).into();
    }
    error
}

fn rate(bps: u64) -> String {
    figures::rate(bps as f64)
}

fn kind(limit: &Limit) -> String {
    let mut words = Vec::new();
    words.extend(limit.edt.then_some("edt"));
    words.extend(limit.line_bps.map(|_| "work-conserving"));
    words.extend((!limit.pace).then_some("no pacing"));
    words.extend(limit.loopback.then_some("loopback"));
    words.join(", ")
}

/// Sockets outside the cgroup of their creation, in words; none if there are none.
fn moved(limit: &Limit) -> Option<String> {
    let Some(sockets) = limit.sockets else {
        return limit.cgroup.as_ref().map(|_| {
            "not known: sockets made elsewhere pass the limit, and this kernel does not tell of \
             them (CONFIG_INET_DIAG, Linux 5.9)"
                .to_owned()
        });
    };
    let counted = |number: u64, what: &str, more: &str| match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}{more}"),
    };
    let mut words = Vec::new();
    if sockets.sockets > 0 {
        let missed = match sockets.not_reached {
            0 => "the limit holds for all of them".to_owned(),
            missed => format!("{missed} pass the limit: set it again to reach them"),
        };
        words.push(format!(
            "{} made elsewhere, of {}: {missed}",
            counted(sockets.sockets, "socket", "s"),
            counted(sockets.processes, "process", "es"),
        ));
    }
    if sockets.left > 0 {
        words.push(format!(
            "{} that processes elsewhere hold: set the limit again to let go of them",
            counted(sockets.left, "socket", "s")
        ));
    }
    if sockets.not_paced > 0 {
        words.push(format!(
            "{} not paced: set the limit again to pace them",
            counted(sockets.not_paced, "connection", "s")
        ));
    }
    (!words.is_empty()).then(|| words.join("; "))
}

fn place(limit: &Limit) -> String {
    match &limit.cgroup {
        Some(path) => path.display().to_string(),
        None => format!("(cgroup {} is gone)", limit.cgroup_id),
    }
}

fn table(limits: &[Limit]) -> String {
    let rows = limits.iter().map(|limit| {
        vec![
            place(limit),
            rate(limit.rate_bps),
            rate(limit.measured_bps),
            limit.marked_packets.to_string(),
            limit.notified_packets.to_string(),
            limit.dropped_packets.to_string(),
            limit
                .sockets
                .map_or("?".to_owned(), |sockets| sockets.not_reached.to_string()),
            kind(limit),
        ]
    });
    output::table(
        &[
            "cgroup", "Rate", "Measured", "Marked", "Notified", "Dropped", "Pass by", "Options",
        ],
        &[1, 2, 3, 4, 5, 6],
        rows.collect(),
    )
}

fn text(limit: &Limit) -> String {
    let ms = |us: u64| output::milliseconds(u32::try_from(us).unwrap_or(u32::MAX));
    let mut rows = vec![
        ("cgroup", place(limit)),
        ("rate", rate(limit.rate_bps)),
        ("measured", rate(limit.measured_bps)),
    ];
    if let Some(line_bps) = limit.line_bps {
        rows.push((
            "in force",
            format!("{}, line {}", rate(limit.present_rate_bps), rate(line_bps)),
        ));
    }
    if let Some(share_bps) = limit.share_bps {
        rows.push(("pacing", format!("{} a connection", rate(share_bps))));
    }
    let options = kind(limit);
    if !options.is_empty() {
        rows.push(("options", options));
    }
    rows.extend(moved(limit).map(|moved| ("sockets", moved)));
    let credit = limit.average_credit_bytes;
    rows.extend([
        (
            "thresholds",
            format!(
                "mark at {}, drop at {}, burst {}",
                ms(limit.mark_at_us),
                ms(limit.drop_at_us),
                ms(limit.burst_us)
            ),
        ),
        (
            "passed",
            format!(
                "{} in {} packets",
                output::bytes(limit.bytes),
                limit.packets
            ),
        ),
        ("marked", format!("{} packets", limit.marked_packets)),
        ("notified", format!("{} packets", limit.notified_packets)),
        (
            "dropped",
            format!(
                "{} in {} packets",
                output::bytes(limit.dropped_bytes),
                limit.dropped_packets
            ),
        ),
        (
            "queue",
            format!(
                "{}, {}",
                ms(limit.queue_us),
                output::bytes(limit.queue_bytes)
            ),
        ),
        (
            "average",
            format!(
                "{} of {}",
                output::bytes(credit.unsigned_abs()),
                if credit < 0 { "queue" } else { "credit" }
            ),
        ),
    ]);
    output::pairs(rows)
}
