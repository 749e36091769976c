//! `thalweg sockops`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde::Serialize;
use thalweg_control::sockops::{self, Loaded};
use thalweg_control::system;
use thalweg_terminal::output;
use thalweg_units::file::{MAX_FILE_BYTES, open_regular};

use super::cc::with_exit_code;
use crate::client::check_pins_last;
use crate::options::{Global, cgroup_directory};

/// Sub-commands for programs of others.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load a compiled object and attach its sockops programs to a cgroup.
    ///
    /// They stay until they are unloaded.
    Load(Load),
    /// Remove what was loaded under a name: programs, then maps.
    Unload(Name),
    /// List what is loaded.
    List,
    /// Show what programs print (bpf_printk), until Ctrl-C.
    ///
    /// The kernel gives each line to one reader only.
    Trace(Trace),
}

#[derive(Debug, Args)]
struct Load {
    /// Object file, made by clang -target bpf of a program with SEC("sockops").
    #[arg(value_name = "OBJ")]
    object: PathBuf,
    /// cgroup whose sockets the programs see: system.slice, or its directory.
    #[arg(long, value_name = "PATH")]
    cgroup: PathBuf,
    /// Name to load it under. Default: that of the file, up to the first dot.
    #[arg(long, value_name = "N")]
    name: Option<String>,
}

#[derive(Debug, Args)]
struct Name {
    /// Name it was loaded under.
    #[arg(value_name = "N")]
    name: String,
}

#[derive(Debug, Args)]
struct Trace {
    /// Only lines that begin as the formats in this object do. Default: all.
    #[arg(value_name = "N")]
    name: Option<String>,
}

/// One printed line.
#[derive(Serialize)]
struct Line<'a> {
    task: &'a str,
    text: &'a str,
}

/// Loads, unloads, lists or prints output.
pub fn run(global: &Global, options: &Options) -> Result<()> {
    global.expect_configuration()?;
    let pin = match &options.command {
        Command::Load(_) => global.effective_config()?.paths.pin,
        _ => global.readable_or_warn()?.paths.pin,
    };
    system::check_sees_pins(&pin)?;
    run_command(global, &pin, options).map_err(with_exit_code)
}

fn run_command(global: &Global, pin: &Path, options: &Options) -> Result<()> {
    match &options.command {
        Command::Load(load) => {
            // Faults of the object are reported first.
            open_regular(&load.object, MAX_FILE_BYTES)?;
            let cgroup = cgroup_directory(&load.cgroup)?;
            check_pins_last(pin)?;
            let loaded = sockops::load(pin, &load.object, &cgroup, load.name.as_deref())?;
            output::show_value(&global.format, &loaded, || {
                let names = loaded.left_out.join(", ");
                let left_out = match names.is_empty() {
                    true => String::new(),
                    false => format!("left out, not sockops: {names}\n"),
                };
                let (name, programs) = (&loaded.name, loaded.programs.join(", "));
                format!(
                    "loaded {name}: {programs} on {}\n{left_out}",
                    cgroup.display()
                )
            })
        }
        Command::Unload(name) => {
            sockops::unload(pin, &name.name)?;
            output::show_value(
                &global.format,
                &serde_json::json!({ "unloaded": name.name }),
                || format!("unloaded {}\n", name.name),
            )
        }
        Command::List => {
            let loaded = sockops::list(pin)?;
            output::show_value(&global.format, &loaded, || match loaded.is_empty() {
                true => "nothing is loaded\n".to_owned(),
                false => objects_table(&loaded) + &problems_text(&loaded),
            })
        }
        Command::Trace(trace) => follow_trace(global, pin, trace),
    }
}

fn objects_table(loaded: &[Loaded]) -> String {
    let rows = loaded.iter().map(|loaded| {
        let cgroup = loaded.cgroup.as_ref();
        vec![
            loaded.name.clone(),
            cgroup.map_or("(gone)".to_owned(), |path| path.display().to_string()),
            loaded.programs.join(" "),
            loaded.maps.join(" "),
        ]
    });
    output::table(&["Name", "cgroup", "Programs", "Maps"], &[], rows.collect())
}

/// Faults: what is not as it was loaded, a line each.
fn problems_text(loaded: &[Loaded]) -> String {
    let of = |loaded: &Loaded| {
        let faults = loaded.faults.iter();
        let lines = faults.map(|fault| format!("problem: {}: {fault}\n", loaded.name));
        lines.collect::<String>()
    };
    loaded.iter().map(of).collect()
}

fn follow_trace(global: &Global, pin: &Path, trace: &Trace) -> Result<()> {
    let prefixes = match &trace.name {
        Some(name) => sockops::printed_prefixes(pin, name)?,
        None => Vec::new(),
    };
    let pipe = BufReader::new(sockops::trace_pipe()?);
    for line in pipe.split(b'\n') {
        let line = line.context("reading trace_pipe")?;
        let line = String::from_utf8_lossy(&line);
        let Some((task, text)) = printed_text(&line) else {
            continue;
        };
        let is_wanted = |prefix: &String| text.starts_with(prefix.as_str());
        if !prefixes.is_empty() && !prefixes.iter().any(is_wanted) {
            continue;
        }
        if global.format.json {
            output::print_json_line(&Line { task, text })?;
        } else {
            output::print(&format!("{line}\n"))?;
        }
    }
    Ok(())
}

/// The task and the text of a line that a BPF program printed; none for other lines.
fn printed_text(line: &str) -> Option<(&str, &str)> {
    let (before, text) = line.split_once(": bpf_trace_printk: ")?;
    let task = before.split(" [").next().unwrap_or(before);
    Some((task.trim(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_other_tracers_are_left_out() {
        let line = "          iperf3-321     [001] b.s2.  1234.567890: bpf_trace_printk: rtt 12 us";
        assert_eq!(printed_text(line), Some(("iperf3-321", "rtt 12 us")));
        assert_eq!(
            printed_text("  swapper/0-0 [000] d..  1.0: sched_switch: prev_comm=a"),
            None
        );
        assert_eq!(printed_text("CPU:1 [LOST 3 EVENTS]"), None);
    }
}
