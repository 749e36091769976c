//! A policy under test: `thalweg policy apply` puts it in force, and `thalweg policy show` tells
//! what it did.
//!
//! No agent runs, as it would choose congestion controls, too. Maps and link are pinned in the
//! run's BPF file system and go with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use thalweg_process::Process;
use thalweg_process::interrupt::OnSignal;

use crate::agent::{AgentPaths, write_configuration};
use crate::error::Error;
use crate::scenario::PolicyFile;

/// Time limit of a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// A policy in force in a cgroup.
#[derive(Debug)]
pub(crate) struct PolicyInForce {
    name: String,
    binary: PathBuf,
    directory: PathBuf,
    configuration: PathBuf,
}

/// The part of `thalweg policy show --json` that is checked.
#[derive(Debug, Deserialize)]
struct Shown {
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
struct Rule {
    name: String,
    matched: u64,
    failed: u64,
}

impl PolicyInForce {
    /// Runs `BINARY --config FILE policy apply POLICY`.
    ///
    /// # Errors
    /// [`Error::Policy`] with the command's message; nothing is in force then.
    pub(crate) fn apply_policy(
        binary: &Path,
        policy: &PolicyFile,
        places: &AgentPaths<'_>,
    ) -> Result<Self, Error> {
        let label = format!("policy-{}", policy.name);
        let directory = places.directory.join(&label);
        fs::create_dir(&directory).map_err(Error::io("cannot create", &directory))?;
        let configuration =
            write_configuration(None, places.cgroup, &places.bpf.join(label), &directory)?;
        // The text that was checked; the file may have changed since.
        let file = directory.join(format!("{}.toml", policy.name));
        fs::write(&file, &policy.text).map_err(Error::io("cannot write", &file))?;
        let in_force = Self {
            name: policy.name.clone(),
            binary: binary.to_owned(),
            directory,
            configuration,
        };
        in_force.run_command(|command| command.args(["policy", "apply"]).arg(&file))?;
        Ok(in_force)
    }

    /// The output of `thalweg policy show --json`. Rules that matched nothing and settings that
    /// failed go to the log: the run then did not measure what the policy says.
    ///
    /// # Errors
    /// [`Error::Policy`].
    pub(crate) fn show_policy(&self) -> Result<String, Error> {
        let text = self.run_command(|command| command.args(["--json", "policy", "show"]))?;
        let shown: Shown = serde_json::from_str(&text).map_err(|error| {
            self.policy_error(&format!("cannot understand what it shows: {error}"))
        })?;
        for rule in &shown.rules {
            if rule.matched == 0 {
                tracing::warn!("policy {}: rule {} matched no flow", self.name, rule.name);
            }
            if rule.failed > 0 {
                tracing::warn!(
                    "policy {}: {} settings of rule {} failed",
                    self.name,
                    rule.failed,
                    rule.name
                );
            }
        }
        Ok(text)
    }

    /// Runs a command and returns its standard output.
    fn run_command(
        &self,
        arguments: impl Fn(&mut Command) -> &mut Command,
    ) -> Result<String, Error> {
        let open = |name: &str| {
            let path = self.directory.join(name);
            let file = File::create(&path).map_err(Error::io("cannot create", &path))?;
            Ok::<_, Error>((path, file))
        };
        let (said, output) = open("output")?;
        let (complained, errors) = open("errors")?;
        let mut command = Command::new(&self.binary);
        command.arg("--config").arg(&self.configuration);
        arguments(&mut command)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        let mut process = Process::spawn(&mut command)?;
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        match process.wait_until(deadline, OnSignal::Fail)? {
            Some(status) if status.success() => {
                fs::read_to_string(&said).map_err(Error::io("cannot read", said))
            }
            Some(status) => {
                let words = fs::read_to_string(&complained).unwrap_or_default();
                Err(self.policy_error(&format!("{} ({status})", words.trim())))
            }
            None => {
                Err(self.policy_error(&format!("not done after {} s", COMMAND_TIMEOUT.as_secs())))
            }
        }
    }

    fn policy_error(&self, why: &str) -> Error {
        Error::Policy {
            name: self.name.clone(),
            why: why.to_owned(),
        }
    }
}
