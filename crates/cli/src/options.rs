//! The command line as a whole. Each sub-command's own options are in its file.

use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Once;

use anyhow::bail;
use clap::{Args, Parser, Subcommand};
use thalweg_agent::config::Config;
use thalweg_control::system;
use thalweg_units::address;

use crate::client::Client;
use crate::commands;
use crate::failure;
use crate::kinds::{self, Kind};

pub const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  error
  2  wrong usage, or a confirmation is missing
  3  something that is needed is missing (doctor, link, stack, sockops, cc)
  4  the agent is not running
  5  an expectation was not met (lab run, sim run)
  6  B is worse than A (lab compare)
  78 the configuration cannot be used (run)
link and stack end with the exit code of their command, status --check with those of \
monitoring plugins.";

const GLOBAL: &str = "Options of every command";

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

/// Reads a whole number within a range.
pub fn whole<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            format!("expected a whole number from {least} to {most}")
        })
    }
}

/// Options of every sub-command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Configuration file; it must exist.
    ///
    /// Default: /etc/thalweg/thalweg.toml if it exists. Commands that ask the agent take from a faulty
    /// one what can be read, and warn.
    #[arg(long, value_name = "FILE", global = true, help_heading = GLOBAL)]
    pub config: Option<PathBuf>,
    /// Unix socket of the agent.
    ///
    /// Default: paths.socket of the configuration. What acts on pins (detach, policy, cc, sockops) takes
    /// it only with `--config`.
    #[arg(long, value_name = "PATH", global = true, help_heading = GLOBAL)]
    pub socket: Option<PathBuf>,
    /// Answer in JSON.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub json: bool,
    /// Answer in JSON, each entry of a list on a line of its own.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub json_lines: bool,
    /// Directory of pins of another agent, whose configuration and socket are unknown.
    #[arg(skip)]
    pub other_pin: Option<PathBuf>,
}

impl Global {
    /// The configuration, with `--socket` and another agent's pins in effect.
    pub fn config(&self) -> anyhow::Result<Config> {
        self.expect_kind()?;
        Ok(self.with_paths(Config::load_or_default(self.config.as_deref())?))
    }

    fn expect_kind(&self) -> anyhow::Result<()> {
        match &self.config {
            Some(file) => kinds::expect(file, Kind::Configuration),
            None => Ok(()),
        }
    }

    fn with_paths(&self, mut config: Config) -> Config {
        if let Some(socket) = &self.socket {
            config.paths.socket.clone_from(socket);
        }
        if let Some(pin) = &self.other_pin {
            // No agent answers there. A file system of pins refuses names with a point.
            config.paths.socket = pin.join("socket");
            config.paths.pin.clone_from(pin);
        }
        config
    }

    /// What a command needs that asks a running agent or switches something off: a file with
    /// faults is no obstacle.
    ///
    /// # Errors
    /// A named file that cannot be read, or is of another kind: nothing tells whose it is.
    pub fn readable(&self) -> anyhow::Result<Readable> {
        self.expect_kind()?;
        let named = self.config.as_deref();
        let (config, fault) = match Config::load_or_default(named) {
            Ok(config) => (config, None),
            Err(error) => {
                let fault = format!("{:#}", anyhow::Error::from(error));
                (Config::load_readable(named)?, Some(fault))
            }
        };
        let config = self.with_paths(config);
        Ok(Readable { config, fault })
    }

    /// As [`Global::readable`]; the fault is told on standard error, once.
    ///
    /// # Errors
    /// As there.
    pub fn readable_or_warn(&self) -> anyhow::Result<Config> {
        let Readable { config, fault } = self.readable()?;
        if let Some(fault) = fault {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| failure::warn(&in_words(&fault), self.json));
        }
        Ok(config)
    }

    /// For commands that act on pins: a socket alone does not tell where they are.
    ///
    /// # Errors
    /// `--socket` without `--config`.
    pub fn expect_configuration(&self) -> anyhow::Result<()> {
        if self.socket.is_some() && self.config.is_none() {
            bail!(
                "--socket: does not tell where the agent pins; expected its configuration beside \
                 it (--config)"
            );
        }
        Ok(())
    }

    /// A client of the agent.
    ///
    /// # Errors
    /// As of [`Global::readable`].
    pub fn client(&self) -> anyhow::Result<Client> {
        let paths = self.readable_or_warn()?.paths;
        Ok(Client::new(paths.socket, paths.pin))
    }
}

/// A configuration of which all is known that could be read.
pub struct Readable {
    /// Faulty and absent keys have their defaults.
    pub config: Config,
    /// Why the file cannot be used as it is.
    pub fault: Option<String>,
}

/// A fault of the configuration beside the answer of an agent.
pub fn in_words(fault: &str) -> String {
    format!("the configuration has a fault, with which no agent starts: {fault}")
}

/// An address, with or without brackets and zone; an IPv4-mapped one is IPv4.
///
/// # Errors
/// The text is not an address.
pub fn address(text: &str) -> Result<IpAddr, String> {
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let parsed = match inner {
        Some(inner) => address::parse(inner).filter(|_| inner.contains(':')),
        None => address::parse(text),
    };
    parsed.ok_or_else(|| {
        format!(
            "found {text:?}, expected an address such as 192.0.2.7, 2001:db8::7 or [2001:db8::7]"
        )
    })
}

/// A host in the agent's form: an address, with a length if it is a prefix.
///
/// # Errors
/// The text is not an address.
pub fn host(text: &str) -> Result<String, String> {
    let (start, length) = text.split_once('/').unwrap_or((text, ""));
    let good = address(start)?;
    if length.is_empty() && !text.ends_with('/') {
        return Ok(good.to_string());
    }
    let most = if good.is_ipv4() { 32 } else { 128 };
    match length.parse::<u8>() {
        Ok(bits) if bits <= most => Ok(format!("{good}/{bits}")),
        _ => Err(format!("found the length {length:?}, expected 0 to {most}")),
    }
}

/// The directory of a cgroup, given in the form of policies, or as a directory.
///
/// # Errors
/// There is no such cgroup.
pub fn cgroup(text: &Path) -> anyhow::Result<PathBuf> {
    if system::check_cgroup2(text).is_ok() {
        return Ok(text.to_owned());
    }
    let Some(name) = text.to_str().and_then(thalweg_policy::parse_cgroup) else {
        anyhow::bail!(
            "cgroup {}: expected the path of a cgroup, such as system.slice, or its directory",
            text.display()
        );
    };
    let directory = system::cgroup2_mount()?.join(name.trim_start_matches('/'));
    if !directory.is_dir() {
        // An existing directory elsewhere gets another message: it is not a cgroup.
        if text.is_absolute() && text.exists() {
            system::check_cgroup2(text)?;
        }
        anyhow::bail!(
            "there is no cgroup {name}: {} does not exist; expected a cgroup v2 directory: make it \
             with mkdir, or name another",
            directory.display()
        );
    }
    Ok(directory)
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
    /// List what is known of networks, which decides about their new hosts.
    Networks(commands::networks::Options),
    /// List what is known of initial windows, by network.
    Windows(commands::windows::Options),
    /// List the learned clamps of congestion windows, by remote host.
    Clamps(commands::clamps::Options),
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
    Config(commands::config::What),
    /// Check what this machine supports; exit code 3 if something needed is missing.
    Doctor,
    /// Set TCP parameters per flow, by the rules of a file.
    #[command(subcommand)]
    Policy(commands::policy::What),
    /// Share what agents learn, through a NATS server: set it up, show how this agent stands.
    ///
    /// See docs/guide/fleet.md.
    #[command(subcommand)]
    Fleet(commands::fleet::What),
    /// Show and check model files of the learned rate controller.
    ///
    /// docs/reference/model.md describes the format.
    #[command(subcommand)]
    Model(commands::model::What),
    /// Measure congestion controls with real TCP on emulated paths.
    Lab(commands::lab::Options),
    /// Run a command behind an emulated path: delay, rate, loss, queue; no root needed.
    ///
    /// The path leads to the command of --far alone; addresses are in THALWEG_LINK_NEAR and
    /// THALWEG_LINK_FAR (IPv6: _NEAR6 and _FAR6).
    Link(commands::link::Options),
    /// Run a command on the TCP of a Linux kernel that is a process.
    ///
    /// User-mode Linux has what this machine's kernel may lack, as bbr. The command runs
    /// unmodified; its connections leave by this machine's address (NAT). Needs root, or once
    /// `stack setup` by root; --wire link:SPEC needs neither. See docs/guide/stack.md.
    Stack(Box<commands::stack::Options>),
    /// Removed: says what to use instead.
    #[command(hide = true)]
    Limit(commands::limit::Options),
    /// Simulate datacenter networks with rate controllers, packet by packet.
    #[command(subcommand)]
    Sim(commands::sim::What),
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
    Completions(commands::completions::Options),
    /// Write the manual pages.
    #[command(hide = true)]
    Manual(commands::manual::Options),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_have_brackets() {
        for (text, expected) in [
            ("192.0.2.7", "192.0.2.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("[::ffff:10.1.2.3]", "10.1.2.3"),
            ("::ffff:10.1.2.3", "10.1.2.3"),
            ("fe80::7%eth0", "fe80::7"),
            ("[fe80::7%eth0]", "fe80::7"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), expected);
        }
        for text in [
            "",
            "notanip",
            "[192.0.2.7]",
            "[::1",
            "::1]",
            "[]",
            "192.0.2",
        ] {
            let error = address(text).unwrap_err();
            assert!(
                error.contains("expected an address such as"),
                "{text}: {error}"
            );
        }
        assert_eq!(host("[2001:db8::]/64").unwrap(), "2001:db8::/64");
        assert_eq!(host("192.0.2.0/24").unwrap(), "192.0.2.0/24");
        for text in ["192.0.2.0/33", "192.0.2.0/", "::/129", "x/3"] {
            assert!(host(text).is_err(), "{text}");
        }
    }
}
