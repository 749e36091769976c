//! `thalweg cc`.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use thalweg_control::cc::{self, Control, Decision, ModelReference, Program, State};
use thalweg_control::{Error, system};
use thalweg_terminal::{Failure, output};
use thalweg_units::{Delay, Rate, printable};

use crate::client::check_pins_last;
use crate::options::Global;

/// Sub-commands for congestion controls in BPF.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List all congestion controls of this machine, loaded or not, and their users.
    List,
    /// Load one and register it with TCP.
    ///
    /// It stays until it is unloaded or the machine restarts.
    Load(Load),
    /// Remove a loaded one; refused while sockets use it.
    Unload(Unload),
    /// Replace a loaded one while it is in use.
    ///
    /// Connections keep the old version until they end.
    Swap(Swap),
    /// Show the decisions of learned rate controllers as they are made, until interrupted.
    Trace(Trace),
}

#[derive(Debug, Args)]
struct Load {
    #[command(flatten)]
    what: ProgramArguments,
    /// Name to register it by: up to 15 letters, digits and '_'. Default: the program's own;
    /// a model's is thalweg_rl.
    #[arg(long, value_name = "N")]
    name: Option<String>,
}

/// A congestion control.
#[derive(Debug, Args)]
struct ProgramArguments {
    /// htcp or dctcp; a model (.safetensors); or a BPF object with a struct tcp_congestion_ops in
    /// section ".struct_ops.link" or ".struct_ops".
    #[arg(value_name = "NAME|MODEL|FILE")]
    program: PathBuf,
    /// For a model: the rate that counts as 1, as of the fastest link; the same on all hosts (kbit,
    /// mbit, gbit). Default: 10gbit.
    #[arg(long, value_name = "RATE")]
    reference_rate: Option<Rate>,
    /// For a model: the minimum base round-trip time (us, ms, s). Default: 2ms.
    #[arg(long, value_name = "TIME")]
    reference_rtt: Option<Delay>,
}

impl ProgramArguments {
    fn open_program(&self) -> Result<Program<'static>> {
        let mut reference = ModelReference::default();
        if cc::is_model(&self.program) {
            if let Some(rate) = self.reference_rate {
                reference.rate_bps = rate.bps();
            }
            if let Some(rtt) = self.reference_rtt {
                reference.rtt_us = u32::try_from(rtt.us()).unwrap_or(u32::MAX);
            }
            return Ok(cc::with_model(&self.program, reference)?);
        }
        if self.reference_rate.is_some() || self.reference_rtt.is_some() {
            bail!(
                "--reference-rate and --reference-rtt belong to models; {} is none (a .safetensors \
                 file)",
                self.program.display()
            );
        }
        Ok(cc::named_or_file(&self.program)?)
    }
}

#[derive(Debug, Args)]
struct Unload {
    /// Name it is registered by.
    #[arg(value_name = "NAME")]
    name: String,
    /// Give it to no more connections, and wait for the end of those that have it.
    ///
    /// Ctrl-C ends the wait; the same command takes it up again.
    #[arg(long)]
    drain: bool,
}

#[derive(Debug, Args)]
struct Swap {
    /// Name it is registered by.
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    what: ProgramArguments,
}

#[derive(Debug, Args)]
struct Trace {
    /// Only flows to this host.
    #[arg(value_name = "HOST|ADDRESS")]
    host: Option<String>,
    /// Only the congestion control of this name.
    #[arg(long, value_name = "N")]
    name: Option<String>,
}

/// Lists, loads, unloads or swaps.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    global.expect_configuration()?;
    let pin = match &options.command {
        Command::Load(_) | Command::Swap(_) => global.effective_config()?.paths.pin,
        _ => global.readable_or_warn()?.paths.pin,
    };
    system::check_sees_pins(&pin)?;
    run_command(global, &pin, options).map_err(with_exit_code)
}

fn run_command(global: &Global, pin: &Path, options: &Options) -> Result<()> {
    match &options.command {
        Command::List => {
            let all = cc::list_controls(pin)?;
            output::show_value(&global.format, &all, || controls_table(&all))
        }
        Command::Load(load) => {
            let program = load.what.open_program()?;
            check_pins_last(pin)?;
            let name = cc::load(pin, &program, load.name.as_deref())?;
            show_done(global, "loaded", &name)
        }
        Command::Unload(unload) => {
            let name = &unload.name;
            if unload.drain {
                cc::drain(pin, name, |used| {
                    eprintln!(
                        "{}: waiting for {}",
                        printable(name),
                        cc::describe_sockets(used)
                    );
                })?;
            } else {
                cc::unload(pin, name)?;
            }
            show_done(global, "unloaded", name)
        }
        Command::Swap(swap) => {
            let program = swap.what.open_program()?;
            cc::swap(pin, &swap.name, &program)?;
            show_done(global, "swapped", &swap.name)
        }
        Command::Trace(options) => print_trace(global, pin, options),
    }
}

fn print_trace(global: &Global, pin: &Path, options: &Trace) -> Result<()> {
    let remote = options.host.as_deref().map(resolve_address).transpose()?;
    // Ctrl-C ends the process; the kernel stops tracing a few seconds later.
    cc::stream_decisions(
        pin,
        options.name.as_deref(),
        remote,
        |decision| {
            if global.format.json {
                return output::print_json_line(decision);
            }
            output::print(&decision_line(decision))
        },
        |lost| eprintln!("{lost} decisions came too fast and are not shown"),
        || false,
    )
}

fn resolve_address(host: &str) -> Result<IpAddr> {
    if let Ok(address) = crate::options::parse_address(host) {
        return Ok(address);
    }
    let mut found = (host, 0)
        .to_socket_addrs()
        .with_context(|| format!("looking up {host}"))?;
    let first = found.next();
    Ok(first
        .with_context(|| format!("{host} has no address"))?
        .ip())
}

/// A decision in a line of text.
fn decision_line(decision: &Decision) -> String {
    let mut notes = String::new();
    for (has, note) in [
        (decision.first, " first"),
        (decision.app_limited, " app-limited"),
        (decision.held, " held"),
        (decision.probing, " probing"),
        (decision.competing, " competing"),
    ] {
        notes.push_str(if has { note } else { "" });
    }
    let queue_ns = decision.rtt_ns - decision.base_rtt_ns.min(decision.rtt_ns);
    format!(
        "{:.6} {} {}:{} base {} µs queue {} µs rate {} delivered {} Mbit/s u {:+.3} × {:.3} → {} Mbit/s{notes}\n",
        decision.time_ns as f64 / 1e9,
        decision.name,
        decision.remote,
        decision.remote_port,
        decision.base_rtt_ns / 1000,
        queue_ns / 1000,
        output::megabits_text(decision.rate as f64),
        output::megabits_text(decision.delivered_rate as f64),
        f64::from(decision.action_q15) / 32768.0,
        decision.rate_multiplier(),
        output::megabits_text(decision.next_rate as f64),
    )
}

fn show_done(global: &Global, what: &str, name: &str) -> Result<()> {
    output::show_value(&global.format, &serde_json::json!({ what: name }), || {
        format!("{what} {name}\n")
    })
}

/// Gives an error its documented exit code.
pub(super) fn with_exit_code(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref().map(Error::root) {
        Some(Error::MissingPrivilege(_) | Error::Unavailable(_)) => {
            Failure::Missing(format!("{error:#}")).into()
        }
        _ => error,
    }
}

fn controls_table(all: &[Control]) -> String {
    let rows = all.iter().map(|control| {
        let state = match control.state {
            State::System => "system",
            State::Loaded => "loaded",
            State::Draining => "draining",
            State::Lost => "lost",
            State::Loadable => "can be loaded",
            State::Unavailable => "unavailable",
        };
        let number = |of: fn(&cc::Usage) -> u64| {
            let used = control.used.as_ref().map(of);
            used.map_or("?".to_owned(), |used| used.to_string())
        };
        let mut notes: Vec<String> = Vec::new();
        notes.extend(
            control
                .program
                .as_ref()
                .map(|name| format!("program {name}")),
        );
        notes.extend((control.needs_ecn == Some(true)).then(|| "needs ECN".to_owned()));
        notes.extend(control.model.as_ref().map(|model| {
            format!(
                "model {}, target {:.4}, 1 is {} Mbit/s and {} µs",
                model.name,
                model.target,
                output::megabits_text(model.reference_rate_bps as f64 / 8.0),
                model.reference_rtt_us
            )
        }));
        notes.extend(control.note.clone());
        vec![
            control.name.clone(),
            state.to_owned(),
            number(|used| used.flows),
            number(|used| used.listeners),
            number(|used| used.default_in),
            notes.join(", "),
        ]
    });
    output::table(
        &["Name", "State", "Flows", "Listeners", "Default in", "Notes"],
        &[2, 3, 4],
        rows.collect(),
    )
}
