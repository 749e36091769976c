//! Options of every sub-command, and words that several read.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::bail;
use clap::{Args, ValueEnum};
use thalweg_agent::config::Config;
use thalweg_control::system;
use thalweg_units::address;

use thalweg_terminal::kinds::{self, Kind};
use thalweg_terminal::{Format, failure};

use crate::client::Client;

const GLOBAL: &str = "Options of every command";

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
    /// The form of answers.
    #[command(flatten)]
    pub format: Format,
    /// Directory of pins of another agent, whose configuration and socket are unknown.
    #[arg(skip)]
    pub other_pin: Option<PathBuf>,
}

impl Global {
    /// The configuration, with `--socket` and another agent's pins in effect.
    pub fn effective_config(&self) -> anyhow::Result<Config> {
        self.expect_kind()?;
        Ok(self.with_paths(Config::load_or_default(self.config.as_deref())?))
    }

    fn expect_kind(&self) -> anyhow::Result<()> {
        match &self.config {
            Some(file) => kinds::expect_kind(file, Kind::Configuration),
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

    /// Configuration for a command that asks a running agent or switches something off: a file with
    /// errors is no obstacle.
    ///
    /// # Errors
    /// A named file that cannot be read, or is of another kind: nothing tells whose it is.
    pub fn readable_config(&self) -> anyhow::Result<Readable> {
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

    /// As [`Global::readable_config`]; the fault is told on standard error, once.
    ///
    /// # Errors
    /// As there.
    pub fn readable_or_warn(&self) -> anyhow::Result<Config> {
        let Readable { config, fault } = self.readable_config()?;
        if let Some(fault) = fault {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| failure::print_warning(&in_words(&fault), self.format.json));
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
    /// As of [`Global::readable_config`].
    pub fn agent_client(&self) -> anyhow::Result<Client> {
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

/// A word of the command line, as the API has it.
pub fn value_name(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A fault of the configuration beside the answer of an agent.
pub fn in_words(fault: &str) -> String {
    format!("the configuration has a fault, with which no agent starts: {fault}")
}

/// An address, with or without brackets and zone; an IPv4-mapped one is IPv4.
///
/// # Errors
/// The text is not an address.
pub fn parse_address(text: &str) -> Result<IpAddr, String> {
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let parsed = match inner {
        Some(inner) => address::parse_address(inner).filter(|_| inner.contains(':')),
        None => address::parse_address(text),
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
pub fn parse_host(text: &str) -> Result<String, String> {
    let (start, length) = text.split_once('/').unwrap_or((text, ""));
    let good = parse_address(start)?;
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
pub fn cgroup_directory(text: &Path) -> anyhow::Result<PathBuf> {
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
            assert_eq!(parse_address(text).unwrap().to_string(), expected);
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
            let error = parse_address(text).unwrap_err();
            assert!(
                error.contains("expected an address such as"),
                "{text}: {error}"
            );
        }
        assert_eq!(parse_host("[2001:db8::]/64").unwrap(), "2001:db8::/64");
        assert_eq!(parse_host("192.0.2.0/24").unwrap(), "192.0.2.0/24");
        for text in ["192.0.2.0/33", "192.0.2.0/", "::/129", "x/3"] {
            assert!(parse_host(text).is_err(), "{text}");
        }
    }
}
