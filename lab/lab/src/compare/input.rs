//! A run read from its `results.json`, as far as a comparison needs it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use thalweg_units::file::read_text;
use thalweg_units::memory::check_json;
use thalweg_units::{line_and_column, one_line};

use crate::error::Error;
use crate::outcome::{Connection, FORMAT};

/// The file in a directory of results.
const RESULTS: &str = "results.json";

/// All scenarios of a run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) source: PathBuf,
    pub(super) scenarios: Vec<RunScenario>,
    environments: Vec<Environment>,
}

/// One scenario of it.
#[derive(Debug)]
pub(super) struct RunScenario {
    pub(super) name: String,
    pub(super) modes: Vec<RunMode>,
    file: PathBuf,
    /// The parts that must be equal for the figures to be comparable.
    definition: Value,
}

/// One of its modes.
#[derive(Debug, Deserialize)]
pub(super) struct RunMode {
    pub(super) mode: String,
    pub(super) connections: Vec<Connection>,
    #[serde(default)]
    least_rtt_us: Option<f64>,
    #[serde(default)]
    remotes: Vec<Remote>,
}

/// One of several hosts.
#[derive(Debug, Deserialize)]
struct Remote {
    name: String,
    least_rtt_us: Option<f64>,
}

impl RunMode {
    /// The least round-trip time to a host. The name of an only host is empty.
    pub(super) fn least_rtt_us(&self, host: &str) -> Option<f64> {
        match self.remotes.iter().find(|remote| remote.name == host) {
            Some(remote) => remote.least_rtt_us,
            None => self.least_rtt_us,
        }
    }
}

#[derive(Debug, Deserialize)]
struct Head {
    format: u32,
}

#[derive(Debug, Deserialize)]
struct Document {
    environment: Environment,
    scenarios: Vec<DocumentScenario>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Environment {
    version: String,
    kernel: String,
    cpus: usize,
    iperf3: String,
    /// None: an older run did not tell.
    backend: Option<Backend>,
    /// The kernel of the stacks; none without a stack.
    stack: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Backend {
    name: String,
}

#[derive(Debug, Deserialize)]
struct DocumentScenario {
    scenario: Value,
    modes: Vec<RunMode>,
}

/// The keys of a scenario that decide its figures. Description, expectations and number of
/// connections do not.
const DEFINING: [&str; 10] = [
    "sender", "receiver", "path", "hosts", "traffic", "changes", "policies", "arms", "agent",
    "system",
];

impl Run {
    /// Reads a results file, a directory with one, or a directory of such directories.
    pub(super) fn load(source: &Path) -> Result<Self, Error> {
        let mut run = Self {
            source: source.to_owned(),
            scenarios: Vec::new(),
            environments: Vec::new(),
        };
        for file in results_files(source)? {
            run.add(&file)?;
        }
        Ok(run)
    }

    fn add(&mut self, file: &Path) -> Result<(), Error> {
        let text = read_text(file)?;
        check_json(&text).map_err(|error| {
            let (line, column) = line_and_column(&text, error.at);
            Error::Compare(format!("{}:{line}:{column}: {error}", file.display()))
        })?;
        let place = |error: serde_json::Error| {
            let (line, column) = (error.line(), error.column());
            let text = error.to_string();
            let end = format!(" at line {line} column {column}");
            let what = one_line(text.strip_suffix(&end).unwrap_or(&text));
            Error::Compare(format!(
                "{}:{line}:{column}: expected the results of a laboratory run: {what}",
                file.display()
            ))
        };
        // The format is checked first: another one has other fields.
        let head: Head = serde_json::from_str(&text).map_err(place)?;
        if head.format != FORMAT {
            return Err(Error::Compare(format!(
                "{}: expected results of format {FORMAT}, found format {}",
                file.display(),
                head.format
            )));
        }
        let document: Document = serde_json::from_str(&text).map_err(place)?;
        self.environments.push(document.environment);
        for entry in document.scenarios {
            let Some(name) = entry.scenario["name"].as_str().map(str::to_owned) else {
                return Err(Error::Compare(format!(
                    "{}: expected a name in every scenario, found none",
                    file.display()
                )));
            };
            if let Some(other) = self.scenarios.iter().find(|other| other.name == name) {
                return Err(Error::Compare(format!(
                    "scenario {name} is in {} and again in {}: expected each once",
                    other.file.display(),
                    file.display()
                )));
            }
            self.scenarios.push(RunScenario {
                name,
                modes: entry.modes,
                file: file.to_owned(),
                definition: entry.scenario,
            });
        }
        Ok(())
    }

    /// The scenarios and modes that only this run has.
    pub(super) fn missing_from(&self, other: &Self) -> Vec<String> {
        let mut lacking = Vec::new();
        for scenario in &self.scenarios {
            match other.scenarios.iter().find(|one| one.name == scenario.name) {
                None => lacking.push(scenario.name.clone()),
                Some(one) => lacking.extend(
                    scenario
                        .modes
                        .iter()
                        .filter(|mode| one.mode_named(&mode.mode).is_none())
                        .map(|mode| format!("{}: {}", scenario.name, mode.mode)),
                ),
            }
        }
        lacking
    }

    /// Differences between the environments, one a line.
    pub(super) fn environment_differences(&self, other: &Self) -> Vec<String> {
        let (ours, theirs) = (self.environment_facts(), other.environment_facts());
        ours.into_iter()
            .zip(theirs)
            // What one run does not tell is no difference.
            .filter(|((_, a), (_, b))| a != b && !a.is_empty() && !b.is_empty())
            .map(|((what, a), (_, b))| {
                let words = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join(", ");
                one_line(&format!("{what} differs: A {}, B {}", words(a), words(b)))
            })
            .collect()
    }

    /// Named facts about a run's environment that may explain a difference.
    fn environment_facts(&self) -> [(&'static str, BTreeSet<String>); 6] {
        let all = &self.environments;
        let backends = all.iter().filter_map(|one| one.backend.as_ref());
        [
            ("kernel", all.iter().map(|one| one.kernel.clone()).collect()),
            ("CPUs", all.iter().map(|one| one.cpus.to_string()).collect()),
            ("iperf3", all.iter().map(|one| one.iperf3.clone()).collect()),
            (
                "Thalweg",
                all.iter().map(|one| one.version.clone()).collect(),
            ),
            ("backend", backends.map(|it| it.name.clone()).collect()),
            (
                "stack",
                all.iter().filter_map(|one| one.stack.clone()).collect(),
            ),
        ]
    }
}

impl RunScenario {
    pub(super) fn mode_named(&self, name: &str) -> Option<&RunMode> {
        self.modes.iter().find(|mode| mode.mode == name)
    }

    /// Fails unless both runs have the same ends, path, traffic, agent and system.
    pub(super) fn check_same(&self, other: &Self) -> Result<(), Error> {
        for key in DEFINING {
            let part = |scenario: &Self| {
                let mut part = scenario.definition[key].clone();
                if let Some(table) = part.as_object_mut() {
                    // More connections are more data of the same kind.
                    table.remove("connections");
                    if key == "traffic" {
                        // Older runs have no kind; all of them were bulk.
                        table.entry("kind").or_insert_with(|| "bulk".into());
                    }
                }
                match part {
                    Value::Array(list) if list.is_empty() => Value::Null,
                    other => other,
                }
            };
            let (a, b) = (part(self), part(other));
            if a != b {
                return Err(Error::Compare(one_line(&format!(
                    "scenario {} is not the same in both: its {key} is {a} in {} and {b} in {}",
                    self.name,
                    self.file.display(),
                    other.file.display()
                ))));
            }
        }
        Ok(())
    }
}

/// The results files at a path.
fn results_files(source: &Path) -> Result<Vec<PathBuf>, Error> {
    let kind = fs::metadata(source).map_err(Error::io("cannot read", source))?;
    if !kind.is_dir() {
        return Ok(vec![source.to_owned()]);
    }
    let own = source.join(RESULTS);
    if own.is_file() {
        return Ok(vec![own]);
    }
    let entries = fs::read_dir(source).map_err(Error::io("cannot read", source))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry
            .map_err(Error::io("cannot read", source))?
            .path()
            .join(RESULTS);
        if file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Error::Compare(format!(
            "{}: expected {RESULTS} in this directory or in directories in it, found none",
            source.display()
        )));
    }
    Ok(files)
}
