//! `thalweg cc`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use thalweg_agent::cc::{self, Control, State, Unavailable};
use thalweg_agent::system::MissingPrivilege;

use crate::failure::Failure;
use crate::options::Global;
use crate::output;

/// What to do with congestion controls in BPF.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List congestion controls: the system's, those that are loaded, those that can be, and
    /// what uses each.
    List,
    /// Load one and register it with TCP.
    ///
    /// It stays, without any process, until it is unloaded or the machine restarts.
    Load(Load),
    /// Remove a loaded one; refused while sockets use it.
    Unload(Unload),
    /// Replace a loaded one while it is in use.
    ///
    /// Connections that have the old version keep it until they end; new ones get the new one.
    Swap(Swap),
}

#[derive(Debug, Args)]
struct Load {
    /// htcp or dctcp, which come with Thalweg, or an object file: what clang -target bpf makes
    /// of a struct tcp_congestion_ops in section ".struct_ops.link".
    #[arg(value_name = "NAME|FILE")]
    program: PathBuf,
    /// Name to register it by: up to 15 letters, digits and '_'. Default: the program's own.
    #[arg(long, value_name = "N")]
    name: Option<String>,
}

#[derive(Debug, Args)]
struct Unload {
    /// Name it is registered by.
    #[arg(value_name = "NAME")]
    name: String,
    /// Give it to no more connections at once, and wait for the end of those that have it.
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
    /// The new version: htcp, dctcp, or an object file.
    #[arg(value_name = "NAME|FILE")]
    program: PathBuf,
}

/// Lists, loads, unloads or swaps.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    let pin = global.config()?.paths.pin;
    act(global, &pin, options).map_err(classified)
}

fn act(global: &Global, pin: &Path, options: &Options) -> Result<()> {
    match &options.command {
        Command::List => {
            let all = cc::list(pin)?;
            if global.json {
                return output::print_json(&all);
            }
            output::print(&table(&all))
        }
        Command::Load(load) => {
            let program = cc::named_or_file(&load.program)?;
            let name = cc::load(pin, &program, load.name.as_deref())?;
            done(global, "loaded", &name)
        }
        Command::Unload(unload) => {
            let name = &unload.name;
            if unload.drain {
                cc::drain(pin, name, |used| {
                    eprintln!("{name}: waiting for {}", cc::sockets(used));
                })?;
            } else {
                cc::unload(pin, name)?;
            }
            done(global, "unloaded", name)
        }
        Command::Swap(swap) => {
            let program = cc::named_or_file(&swap.program)?;
            cc::swap(pin, &swap.name, &program)?;
            done(global, "swapped", &swap.name)
        }
    }
}

fn done(global: &Global, what: &str, name: &str) -> Result<()> {
    if global.json {
        return output::print_json(&serde_json::json!({ what: name }));
    }
    output::print(&format!("{what} {name}\n"))
}

/// Gives an error the exit code that is documented for it.
fn classified(error: anyhow::Error) -> anyhow::Error {
    if error.is::<MissingPrivilege>() || error.is::<Unavailable>() {
        return Failure::Missing(format!("{error:#}")).into();
    }
    error
}

fn table(all: &[Control]) -> String {
    let rows = all.iter().map(|control| {
        let state = match control.state {
            State::System => "system",
            State::Loaded => "loaded",
            State::Draining => "draining",
            State::Loadable => "can be loaded",
            State::Unavailable => "unavailable",
        };
        let number = |of: fn(&cc::Use) -> u64| {
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
