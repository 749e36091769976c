//! The command line as a whole. Each sub-command's own options are in its file.

use clap::{CommandFactory as _, Parser, Subcommand};
use thalweg_agent::features;
use thalweg_terminal::groups::{Group, with_groups};
use thalweg_terminal::manual::Pages;

use crate::commands;
use crate::options::Global;
use crate::watch;

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  error
  2  wrong usage, or a confirmation is missing
  3  something that is needed is missing (doctor, sockops, cc)
  4  the agent is not running
  78 the configuration cannot be used (run)
status --check ends with the exit codes of monitoring plugins.";

/// Learns per remote host which TCP congestion control works best, and uses it.
#[derive(Debug, Parser)]
#[command(name = "thalweg", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// Options of every sub-command.
    #[command(flatten)]
    pub global: Global,
    /// The sub-command.
    #[command(subcommand)]
    pub command: Command,
}

/// The sub-commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent in the foreground.
    Run(commands::run::Options),
    /// Show the agent's mode, counters, memory and problems.
    Status(commands::status::Options),
    /// Watch the agent at work: hosts, arms, decisions, rules, costs, problems.
    ///
    /// It draws on a terminal of 80 x 24 or any other size; ? shows the keys. Colours are left out
    /// where NO_COLOR is set.
    Top(commands::top::Options),
    /// Print the agent's figures as OpenMetrics text, for Prometheus.
    ///
    /// The same as GET /metrics. See docs/guide/monitoring.md.
    Metrics(commands::metrics::Options),
    /// Serve the agent's page to browsers on this machine.
    ///
    /// Prints its address, whose token lets a browser in. It only reads, with the rights of the user
    /// who runs this. From another machine: `ssh -L 9472:127.0.0.1:9472 HOST`, then the address.
    Web(commands::web::Options),
    /// Have the agent read its configuration again.
    ///
    /// The whole configuration is checked first. One with faults changes nothing: all faults are
    /// shown, and the agent goes on as before. No connection is lost or missed.
    Reload,
    /// List the agent's arms: the congestion controls that it chooses from.
    Arms,
    /// List what is known of remote hosts.
    Hosts(commands::hosts::Options),
    /// The list of a feature of the agent.
    #[command(flatten)]
    Feature(commands::feature::List),
    /// Explain the choice for the next connection to a host.
    Explain(commands::explain::Options),
    /// Show decisions and ends of connections.
    Events(commands::events::Options),
    /// Estimate what another rule of choice would have cost, from logged decisions.
    ///
    /// Needs no agent. Each host begins without a record. The rule learns from connections whose arm
    /// it could have chosen. Where initial windows were learned, each window for all connections is
    /// compared with what ran, too. Exit code 1 if the log says too little about all of it.
    Replay(commands::replay::Options),
    /// Show what the learner gains against its control group, or what a policy's rule gains.
    ///
    /// Time, retransmissions, failures and RTT, with intervals that hold whenever one looks: all of
    /// them together are wrong in at most 5 % of cases in four weeks. What is worse is taken back for
    /// 24 hours.
    Gain(commands::gain::Options),
    /// Say what would be best, before anything is switched on, and what holds connections up.
    ///
    /// Of an agent that gives advice (`run --advise`): by trials, and by what differs by itself. Of
    /// any other: by its control group. With intervals that hold whenever one looks. Limits by
    /// buffers, which no congestion control can lift, need kernel BTF.
    Advise(commands::advise::Options),
    /// Forget what was learned, of one host or of all.
    Reset(commands::reset::Options),
    /// Write all host records to a file.
    Export(commands::export::Options),
    /// Put the host records of a file into the agent.
    Import(commands::import::Options),
    /// Remove the programs from the kernel and end the agent.
    ///
    /// Connections keep their congestion control, the store keeps what was learned. Works without a
    /// running agent too, and with one that starts, hangs or is stopped. Exit code 0 if nothing of the
    /// agent is left in the kernel.
    Detach,
    /// Remove all that Thalweg has put into the kernel, by any agent: for packages.
    #[command(hide = true)]
    RemoveAll(commands::remove_all::Options),
    /// Check and show the configuration.
    #[command(subcommand)]
    Config(commands::config::ConfigCommand),
    /// Check what this machine supports; exit code 3 if something needed is missing.
    Doctor,
    /// Set TCP parameters per flow, by the rules of a file.
    #[command(subcommand)]
    Policy(commands::policy::PolicyCommand),
    /// Share what agents learn, through a NATS server: set it up, show how this agent stands.
    ///
    /// See docs/guide/fleet.md.
    #[command(subcommand)]
    Fleet(commands::fleet::FleetCommand),
    /// Removed: says what to use instead.
    #[command(hide = true)]
    Limit(commands::moved::Arguments),
    /// Moved to `thalweg-lab`.
    #[command(hide = true)]
    Lab(commands::moved::Arguments),
    /// Moved to `thalweg-lab`.
    #[command(hide = true)]
    Sim(commands::moved::Arguments),
    /// Moved to `thalweg-lab`.
    #[command(hide = true)]
    Link(commands::moved::Arguments),
    /// Moved to `thalweg-lab`.
    #[command(hide = true)]
    Stack(commands::moved::Arguments),
    /// Moved to `thalweg-lab`.
    #[command(hide = true)]
    Model(commands::moved::Arguments),
    /// Load, replace and remove congestion controls in BPF.
    ///
    /// The learner takes up what is loaded as one more choice. See docs/guide/cc.md.
    Cc(commands::cc::Options),
    /// Load sockops programs of your own: load, unload, list, trace.
    Sockops(commands::sockops::Options),
    /// Print the JSON Schema of a kind of file, for editors.
    ///
    /// Editors with a TOML language server check and complete a file whose first line is
    /// `#:schema PATH`; the files that come with Thalweg have it.
    Schema(commands::schema::Options),
    /// Print the completions of a shell.
    Completions(thalweg_terminal::completions::Options),
    /// Write the manual pages.
    #[command(hide = true)]
    Manual(thalweg_terminal::manual::Options),
}

/// Groups beside that of the agent: title, sub-commands in order, an example.
const GROUPS: [Group<'static>; 4] = [
    (
        "Policies",
        &["policy"],
        "thalweg policy check policies/*.toml",
    ),
    (
        "Agents together",
        &["fleet"],
        "thalweg fleet init fleet --server nats.example.com --agent web1",
    ),
    (
        "Congestion controls and programs in BPF",
        &["cc", "sockops"],
        "thalweg cc load models/adpg-plus.safetensors",
    ),
    (
        "This machine",
        &["doctor", "config", "schema", "completions", "help"],
        "thalweg doctor",
    ),
];

/// Applies an action to all groups; the lists of features stand among the agent's own.
fn on_groups<T>(action: impl FnOnce(&[Group<'_>]) -> T) -> T {
    let before = [
        "run", "reload", "status", "top", "metrics", "web", "arms", "hosts",
    ];
    let after = [
        "explain", "events", "advise", "gain", "replay", "reset", "export", "import", "detach",
    ];
    let names = before.into_iter();
    let names = names.chain(features::names_of_lists()).chain(after);
    let names: Vec<&str> = names.collect();
    let agent: Group<'_> = (
        "The agent, which learns per remote host which congestion control works best",
        &names,
        "thalweg explain 192.0.2.7",
    );
    let all: Vec<Group<'_>> = [agent].into_iter().chain(GROUPS).collect();
    action(&all)
}

/// Files in the section FILES of every manual page.
const FILES: [(&str, &str); 4] = [
    (
        "/etc/thalweg/thalweg.toml",
        "The configuration; built-in defaults where it does not exist.",
    ),
    (
        "/var/lib/thalweg",
        "What was learned, between two runs of the agent.",
    ),
    ("/run/thalweg/agent.sock", "The agent's local API."),
    (
        "/sys/fs/bpf/thalweg",
        "Programs and maps, pinned so that they outlive the agent.",
    ),
];

/// Sections of every manual page beside the text of `--help`.
pub const PAGES: Pages = Pages {
    exit_codes: EXIT_CODES,
    files: &FILES,
};

/// The command line, with grouped help and `--watch`.
pub fn command_line() -> clap::Command {
    on_groups(|groups| with_groups(watch::add_watch_option(Cli::command()), groups))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_terminal::{groups, manual};

    #[test]
    fn help_names_every_command_once() {
        on_groups(|groups| groups::assert_complete(&Cli::command(), groups));
    }

    #[test]
    fn manual_has_a_page_for_each_command() {
        let directory = tempfile::tempdir().expect("a directory");
        manual::assert_pages(
            &directory.path().join("man1"),
            Cli::command(),
            &PAGES,
            &[
                (
                    "thalweg.1",
                    &["COMMANDS", "thalweg\\-policy(1)", "agent.sock"],
                ),
                (
                    "thalweg-policy-apply.1",
                    &["EXIT STATUS", "existing", "thalweg\\-policy(1)"],
                ),
            ],
            &["thalweg-manual.1", "thalweg-lab.1", "thalweg-help.1"],
        );
    }
}
