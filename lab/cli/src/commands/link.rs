//! `thalweg-lab link`.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use thalweg_link::aqm::Aqm;
use thalweg_link::quantity::{QueueLimit, Threshold};
use thalweg_link::{self as link, Error, Report, Settings, Task};
use thalweg_units::file::Draft;
use thalweg_units::{Delay, Probability, Rate, printable_json};

use thalweg_terminal::{Failure, Format, output, whole_number};

/// The path, the commands at its ends, and the report.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    path: PathOptions,
    /// The far end is this machine's network: end to end as root, through pasta (package passt)
    /// otherwise.
    #[arg(long, conflicts_with_all = ["far", "far_port"])]
    outside: bool,
    /// A line for `sh -c` at the far end; starts first, ends last.
    #[arg(long, value_name = "LINE")]
    far: Option<OsString>,
    /// Start the command once this TCP or UDP port is open at the far end, within 10 s. Default: at
    /// once.
    #[arg(long, value_name = "PORT", requires = "far", value_parser = whole_number(1..=u16::MAX))]
    far_port: Option<u16>,
    /// Logs of the bottleneck in the format of Mahimahi's mm-link: near to far, far to near.
    #[arg(long, value_name = "UP[,DOWN]", value_parser = parse_logs)]
    log: Option<[Option<PathBuf>; 2]>,
    /// File of the report. Default: standard error.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The command at the near end, with its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Effects of the path on packets.
#[derive(Debug, Args)]
pub struct PathOptions {
    /// One-way delay of each direction (us, ms, s).
    #[arg(long, value_name = "TIME", default_value = "0ms")]
    delay: Delay,
    /// Uniform variation of the delay, up to this much either way, without reordering.
    #[arg(long, value_name = "TIME", default_value = "0ms")]
    jitter: Delay,
    /// Rate of each direction in bits of IP packets per second (kbit, mbit, gbit).
    /// Default: no limit.
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Rate from far to near. Default: that of --rate.
    #[arg(long, value_name = "RATE")]
    reverse_rate: Option<Rate>,
    /// Mahimahi traces instead of --rate: near to far, far to near; one file serves both.
    #[arg(long, value_name = "UP[,DOWN]", value_parser = parse_traces)]
    trace: Option<[PathBuf; 2]>,
    /// Independent loss of what the command sends, before the queue.
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    loss: Probability,
    /// Independent loss of what the far end sends.
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    reverse_loss: Probability,
    /// Buffer before --rate or --trace: 1500 bytes or more (B, kB, MB, KiB, MiB), or a multiple of
    /// rate × 2 × delay. Default: 1bdp.
    #[arg(long, value_name = "SIZE|Nbdp")]
    queue: Option<QueueLimit>,
    /// Share of packets that skip --delay.
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    reorder: Probability,
    /// Mark ECN-capable packets beyond this queue: bytes (B, kB, …), or queueing delay (us, ms, s).
    /// Default: never.
    #[arg(long, value_name = "SIZE|TIME")]
    ecn: Option<Threshold>,
    /// Keep the queue short, by CoDel (RFC 8289) or with a queue for each flow (RFC 8290); ECN-capable
    /// packets are marked, not dropped. Defaults: target=5ms,interval=100ms,quantum=1514B,flows=1024,
    /// --queue 15360kB.
    #[arg(long, value_name = "codel|fq_codel[,KEY=VALUE…]")]
    aqm: Option<Aqm>,
    /// Seed of loss, jitter, reordering and hashes of flows.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl PathOptions {
    pub fn link_settings(&self) -> Settings {
        Settings {
            delay: self.delay,
            jitter: self.jitter,
            rate: self.rate,
            reverse_rate: self.reverse_rate,
            traces: self.trace.clone(),
            loss: self.loss,
            reverse_loss: self.reverse_loss,
            queue: self.queue,
            reorder: self.reorder,
            ecn: self.ecn,
            aqm: self.aqm,
            seed: self.seed,
        }
    }
}

fn parse_traces(text: &str) -> Result<[PathBuf; 2], String> {
    match text.split(',').collect::<Vec<_>>()[..] {
        [both] if !both.is_empty() => Ok([both.into(), both.into()]),
        [up, down] if !up.is_empty() && !down.is_empty() => Ok([up.into(), down.into()]),
        _ => Err(format!(
            "expected one trace file, or two with a comma between them, found {text:?}"
        )),
    }
}

fn parse_logs(text: &str) -> Result<[Option<PathBuf>; 2], String> {
    match text.split(',').collect::<Vec<_>>()[..] {
        [up] if !up.is_empty() => Ok([Some(up.into()), None]),
        [up, down] if !up.is_empty() && !down.is_empty() && up != down => {
            Ok([Some(up.into()), Some(down.into())])
        }
        _ => Err(format!(
            "expected one file, or two different ones with a comma between them, found {text:?}"
        )),
    }
}

/// Runs a command behind an emulated path, and returns its exit code.
pub fn run(format: &Format, options: &Options) -> Result<()> {
    let settings = options.path.link_settings();
    let task = Task {
        command: options.command.clone(),
        far: options.far.clone(),
        far_port: options.far_port,
        outside: options.outside,
        logs: options.log.clone().unwrap_or_default(),
    };
    if options.log.is_some() && settings.rate.is_none() && settings.traces.is_none() {
        let why = "--log needs --rate or --trace: it is the log of a bottleneck";
        return Err(Failure::Usage(why.to_owned()).into());
    }
    // Opened before anything runs, so that no result is lost for want of a file.
    let cannot = |path: &Path| format!("cannot write {}", path.display());
    let draft = options.report.as_deref().map(|path| {
        let draft = Draft::new(path, 0o666).with_context(|| cannot(path));
        draft.map(|draft| (path, draft))
    });
    let draft = draft.transpose()?;
    let finished = link::run_task(&settings, &task).map_err(classify_error)?;
    let text = report_text(format, &finished.report)?;
    match draft {
        Some((path, draft)) => {
            let written = draft.replace(text.as_bytes());
            written.with_context(|| cannot(path))?;
        }
        // If standard error is closed, nobody can be told.
        None => drop(std::io::stderr().write_all(text.as_bytes())),
    }
    finished.log.map_err(classify_error)?;
    match finished.exit {
        0 => Ok(()),
        code => Err(Failure::Silent(code).into()),
    }
}

/// Gives an error its documented exit code.
pub fn classify_error(error: Error) -> anyhow::Error {
    match error {
        Error::Options(why) => Failure::Usage(why).into(),
        Error::Missing(why) => Failure::Missing(why).into(),
        Error::Start {
            ref program,
            ref why,
        } => {
            // As in env(1) and the shells.
            let code = if why.kind() == ErrorKind::NotFound {
                127
            } else {
                126
            };
            let program = program.to_string_lossy();
            Failure::with_code(code, format!("cannot start {program}: {why}")).into()
        }
        other => other.into(),
    }
}

/// The text of the report.
pub fn report_text(format: &Format, report: &Report) -> Result<String> {
    Ok(if format.json {
        printable_json(&serde_json::to_string(report)?).into_owned() + "\n"
    } else {
        report_table(report)
    })
}

/// The report as tables of names and values.
fn report_table(report: &Report) -> String {
    let directions = report.directions().map(|(_, direction)| direction);
    let row = |name: &str, value: &dyn Fn(&link::Direction) -> String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(directions.iter().map(|direction| value(direction)));
        cells
    };
    let milliseconds = |us: f64| format!("{:.3}", us / 1e3);
    let rows = vec![
        row("packets in", &|d| d.counters.received.to_string()),
        row("lost at random", &|d| d.counters.lost.to_string()),
        row("dropped, queue full", &|d| {
            d.counters.dropped_queue.to_string()
        }),
        row("dropped by --aqm", &|d| {
            d.counters.dropped_early.to_string()
        }),
        row("marked (ECN)", &|d| d.counters.marked.to_string()),
        row("reordered", &|d| d.counters.reordered.to_string()),
        row("packets out", &|d| d.counters.delivered.to_string()),
        row("rate, Mbit/s", &|d| format!("{:.3}", d.rate_bps / 1e6)),
        row("longest queue, bytes", &|d| {
            d.counters.max_queue_bytes.to_string()
        }),
        row("longest in queue, ms", &|d| {
            milliseconds(d.counters.max_queue_us as f64)
        }),
        row("delay error p50, ms", &|d| {
            milliseconds(d.delay_error.p50_us)
        }),
        row("delay error p90, ms", &|d| {
            milliseconds(d.delay_error.p90_us)
        }),
        row("delay error p99, ms", &|d| {
            milliseconds(d.delay_error.p99_us)
        }),
        row("delay error max, ms", &|d| {
            milliseconds(d.delay_error.max_us)
        }),
    ];
    let [near, far] = report.directions().map(|(name, _)| name);
    let mut text = output::table(&["thalweg-lab link", near, far], &[1, 2], rows);
    if report.outside.is_some_and(|it| !it.tcp_end_to_end) {
        text += "thalweg-lab: note: pasta ended TCP behind the path and connected to the servers itself: \
                 end to end only as root\n";
    }
    if let Some(how) = &report.far_command_failed {
        text += &format!("thalweg-lab: note: the command at the far end ended by itself ({how})\n");
    }
    for warning in &report.warnings {
        text += &format!("thalweg-lab: warning: {warning}\n");
    }
    text
}
