//! The command line as a whole. Each sub-command's own options are in its file.

use std::path::PathBuf;

use clap::{CommandFactory as _, Parser, Subcommand};
use thalweg_terminal::groups::{Group, with_groups};
use thalweg_terminal::manual::Pages;
use thalweg_terminal::{Format, completions, manual};

use crate::commands;

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  error
  2  wrong usage
  3  something that is needed is missing (link, stack)
  5  an expectation was not met (run, sim run)
  6  B is worse than A (compare)
link and stack end with the exit code of their command.";

/// Measures congestion controls with real TCP on emulated paths, and in a simulator.
#[derive(Debug, Parser)]
#[command(name = "thalweg-lab", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// The form of answers.
    #[command(flatten)]
    pub format: Format,
    /// The sub-command.
    #[command(subcommand)]
    pub command: Command,
}

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run scenarios on real TCP; exit code 5 if one of their expectations is not met.
    ///
    /// The machine's connections and its agent are not touched. Needs iproute2 and iperf3, and root
    /// or one of Debian's packages user-mode-linux and qemu-system-x86. Modes with an agent or a policy
    /// need the package thalweg.
    Run(Box<commands::run::Options>),
    /// List scenarios.
    List(commands::list::Options),
    /// Compare two runs; exit code 6 if B is worse than A.
    ///
    /// A and B are results.json files, directories that hold one, or directories of such
    /// directories. Medians are compared, with a bootstrap interval of their ratio; B is better or
    /// worse where the whole interval says so.
    Compare(commands::compare::Options),
    /// Stock kernels of distributions, for `run --backend qemu`: list, add, remove.
    #[command(subcommand)]
    Kernels(commands::kernels::Kernels),
    /// Build the kernel for `run --backend virtual`, unless that is done, and print its path.
    ///
    /// From Debian's package linux-source-6.1, in some ten minutes on two CPUs; needs 2 GB of disk,
    /// and no privilege. It is kept below $XDG_CACHE_HOME/thalweg.
    BuildKernel(commands::build_kernel::Options),
    /// Simulate datacenter networks with rate controllers, packet by packet.
    #[command(subcommand)]
    Sim(commands::sim::SimCommand),
    /// Show and check model files of the learned rate controller.
    ///
    /// docs/reference/model.md describes the format.
    #[command(subcommand)]
    Model(commands::model::ModelCommand),
    /// Run a command behind an emulated path: delay, rate, loss, queue; no root needed.
    ///
    /// The path leads to the command of --far alone; addresses are in THALWEG_LINK_NEAR and
    /// THALWEG_LINK_FAR (IPv6: _NEAR6 and _FAR6).
    Link(Box<commands::link::Options>),
    /// Run a command on the TCP of a Linux kernel that is a process.
    ///
    /// User-mode Linux has what this machine's kernel may lack, as bbr. The command runs
    /// unmodified; its connections leave by this machine's address (NAT). Needs root, or once
    /// `stack setup` by root; --wire link:SPEC needs neither. See docs/guide/stack.md.
    Stack(Box<commands::stack::Options>),
    /// Check what the laboratory can use on this machine.
    Doctor,
    /// Print the JSON Schema of a kind of scenario, for editors.
    ///
    /// Editors with a TOML language server check and complete a file whose first line is
    /// `#:schema PATH`; the files that come with Thalweg have it.
    Schema(commands::schema::Options),
    /// Print the completions of a shell.
    Completions(completions::Options),
    /// The first process in a kernel of its own, and the run there.
    #[command(hide = true)]
    Guest {
        /// The directory with the job.
        #[arg(value_name = "DIR")]
        work: PathBuf,
    },
    /// Measure how late timers are, for a page of `python -m thalweg.results`.
    #[command(hide = true)]
    Timers(commands::timers::Options),
    /// Make the traffic of a scenario; `run` starts it inside its hosts.
    #[command(hide = true, subcommand)]
    Worker(commands::worker::WorkerCommand),
    /// Remove all that the laboratory has prepared on this machine: for packages.
    #[command(hide = true)]
    RemoveAll,
    /// Write the manual pages.
    #[command(hide = true)]
    Manual(manual::Options),
}

/// Groups: title, sub-commands in order, an example.
const GROUPS: [Group; 4] = [
    (
        "Real TCP on emulated paths",
        &["run", "list", "compare", "kernels", "build-kernel"],
        "thalweg-lab run scenarios/lab/loss-5.toml --mode baseline --mode thalweg",
    ),
    (
        "Simulator and rate controllers",
        &["sim", "model"],
        "thalweg-lab sim run scenarios/sim/many-to-one-8.toml",
    ),
    (
        "Commands on other paths and kernels",
        &["link", "stack"],
        "thalweg-lab link --delay 20ms --rate 100mbit -- bash",
    ),
    (
        "This machine",
        &["doctor", "schema", "completions", "help"],
        "thalweg-lab doctor",
    ),
];

/// Files in the section FILES of every manual page.
const FILES: [(&str, &str); 2] = [
    (
        "/usr/share/thalweg/scenarios",
        "Scenarios of the laboratory and the simulator.",
    ),
    (
        "~/.cache/thalweg",
        "Kernels that were built or added; below XDG_CACHE_HOME where that is set.",
    ),
];

/// Sections of every manual page beside the text of `--help`.
pub const PAGES: Pages = Pages {
    exit_codes: EXIT_CODES,
    files: &FILES,
};

/// The command line, with grouped help.
pub fn command_line() -> clap::Command {
    with_groups(Cli::command(), &GROUPS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_terminal::groups;

    #[test]
    fn help_names_every_command_once() {
        groups::assert_complete(&Cli::command(), &GROUPS);
    }

    #[test]
    fn manual_has_a_page_for_each_command() {
        let directory = tempfile::tempdir().expect("a directory");
        manual::assert_pages(
            &directory.path().join("man1"),
            Cli::command(),
            &PAGES,
            &[
                ("thalweg-lab.1", &["COMMANDS", "thalweg\\-lab\\-sim(1)"]),
                ("thalweg-lab-build-kernel.1", &["SYNOPSIS", "hz"]),
            ],
            &["thalweg-lab-guest.1"],
        );
    }
}
