//! Policies that were in force: their texts, who followed whom, and the way back.
//!
//! In the state directory, `policy/NUMBER.toml` is a policy as it was applied and
//! `policy/NUMBER.json` what is known of it; `policy/in-force` holds the number of the one that
//! is to be in force after a restart of the machine.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use thalweg_policy::{Compiled, Policy};

use super::{Applied, How, Place};
use crate::system;

/// Policies kept.
const KEPT: usize = 20;
const IN_FORCE: &str = "in-force";

/// What is known of a policy that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number; counts up, and is the kernel's generation.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// The file it came from.
    pub file: PathBuf,
    /// When, ms since 1970.
    pub applied_ms: i64,
    /// What matches is counted, and nothing set.
    pub dry_run: bool,
    /// The one that `rollback` returns to.
    pub previous: Option<u32>,
}

impl Entry {
    /// How it is applied again.
    fn how(&self) -> How {
        How {
            dry_run: self.dry_run,
            existing: false,
        }
    }
}

/// The policies of one state directory.
#[derive(Debug)]
pub struct History {
    directory: PathBuf,
    /// The text that was compiled last, and what came of it: the agent asks for the policy
    /// in force again and again, and that of many rules takes a part of a second.
    compiled: Mutex<Option<(Vec<u8>, Arc<Compiled>)>>,
}

/// A policy that has come into force.
#[derive(Debug)]
pub struct Outcome {
    /// What is known of it.
    pub entry: Entry,
    /// What the operator should know.
    pub applied: Applied,
    /// Its rules, as far as the file has them.
    pub rules: usize,
}

impl History {
    /// The history below a state directory, which may be empty.
    pub fn at(state: &Path) -> Self {
        Self {
            directory: state.join("policy"),
            compiled: Mutex::new(None),
        }
    }

    /// Puts a policy in force and remembers it.
    ///
    /// # Errors
    /// Faults of the policy, all of them, a line each; what [`Place::apply`] says; a state
    /// directory that cannot be written to.
    pub fn apply(&self, place: &Place, bytes: &[u8], file: &Path, how: How) -> Result<Outcome> {
        let compiled = compile(bytes, file)?;
        let previous = self.in_force(&place.pin)?.map(|entry| entry.number);
        self.put(place, bytes, compiled, file, how, previous)
    }

    /// Puts the policy before the present one in force again.
    ///
    /// # Errors
    /// None is in force, or there was none before it.
    pub fn rollback(&self, place: &Place) -> Result<Outcome> {
        let present = self
            .in_force(&place.pin)?
            .context("no policy is in force: there is nothing to return from")?;
        let number = present.previous.with_context(|| {
            format!(
                "no policy was in force before {:?}; `thalweg policy remove` takes it away",
                present.name
            )
        })?;
        let former = self.entry(number).with_context(|| {
            format!("policy number {number} is no longer kept; the last {KEPT} are")
        })?;
        let bytes = self.text(number)?;
        let compiled = compile(&bytes, &former.file)?;
        self.put(
            place,
            &bytes,
            compiled,
            &former.file,
            former.how(),
            former.previous,
        )
    }

    /// Takes the policy out of the kernel; false if there was none. It stays away after a
    /// restart of the machine.
    ///
    /// # Errors
    /// Pins or files that cannot be removed.
    pub fn remove(&self, place: &Place) -> Result<bool> {
        let removed = super::remove(&place.pin)?;
        self.set_in_force(None)?;
        Ok(removed)
    }

    /// Puts the policy in force that was in force before the machine was restarted. Nothing
    /// is done where the kernel has one, or none was.
    ///
    /// # Errors
    /// As [`History::apply`].
    pub fn restore(&self, place: &Place) -> Result<Option<Outcome>> {
        if super::in_force(&place.pin)?.is_some() {
            return Ok(None);
        }
        let Some(number) = self.wanted()? else {
            return Ok(None);
        };
        let entry = self.entry(number)?;
        let compiled = compile(&self.text(number)?, &entry.file)?;
        let rules = compiled.about.len();
        let applied = place.apply(compiled, number, entry.how())?;
        Ok(Some(Outcome {
            entry,
            applied,
            rules,
        }))
    }

    fn put(
        &self,
        place: &Place,
        bytes: &[u8],
        compiled: Compiled,
        file: &Path,
        how: How,
        previous: Option<u32>,
    ) -> Result<Outcome> {
        let running = super::in_force(&place.pin)?.map_or(0, |head| head.generation);
        let numbers = self.numbers()?;
        let last = numbers.last().copied().unwrap_or(0).max(running);
        let entry = Entry {
            number: last + 1,
            name: compiled.name.clone(),
            file: file.to_owned(),
            applied_ms: (system::wall_ns() / 1_000_000) as i64,
            dry_run: how.dry_run,
            previous,
        };
        let rules = compiled.about.len();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(&self.directory)
            .with_context(|| format!("creating {}", self.directory.display()))?;
        write(&self.path(entry.number, "toml"), bytes)?;
        write(
            &self.path(entry.number, "json"),
            &serde_json::to_vec_pretty(&entry)?,
        )?;
        let applied = place.apply(compiled, entry.number, how).inspect_err(|_| {
            // What never was in force is no history.
            let _ = self.forget(entry.number);
        })?;
        self.set_in_force(Some(entry.number))?;
        for number in numbers.iter().rev().skip(KEPT - 1) {
            self.forget(*number)?;
        }
        Ok(Outcome {
            entry,
            applied,
            rules,
        })
    }

    /// What is known of the policy that the kernel has; of one that another state directory
    /// knows, its number alone.
    ///
    /// # Errors
    /// Pins that cannot be read.
    pub fn in_force(&self, pin: &Path) -> Result<Option<Entry>> {
        let Some(head) = super::in_force(pin)? else {
            return Ok(None);
        };
        Ok(Some(self.entry(head.generation).unwrap_or_else(|_| {
            Entry {
                number: head.generation,
                name: String::new(),
                file: PathBuf::new(),
                applied_ms: 0,
                dry_run: false,
                previous: None,
            }
        })))
    }

    /// A policy by its number.
    ///
    /// # Errors
    /// It is not kept.
    pub fn entry(&self, number: u32) -> Result<Entry> {
        let path = self.path(number, "json");
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_slice(&bytes).with_context(|| format!("{} is damaged", path.display()))
    }

    /// The text of a policy by its number.
    ///
    /// # Errors
    /// It is not kept.
    pub fn text(&self, number: u32) -> Result<Vec<u8>> {
        let path = self.path(number, "toml");
        fs::read(&path).with_context(|| format!("reading {}", path.display()))
    }

    /// The tables of a policy by its number, if it is kept.
    pub(super) fn compiled(&self, number: u32) -> Option<Arc<Compiled>> {
        let text = self.text(number).ok()?;
        let mut last = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, compiled)) = last.as_ref().filter(|(of, _)| *of == text) {
            return Some(Arc::clone(compiled));
        }
        let compiled = Arc::new(compile(&text, Path::new("")).ok()?);
        *last = Some((text, Arc::clone(&compiled)));
        Some(compiled)
    }

    /// Numbers of all that are kept, in order.
    fn numbers(&self) -> Result<Vec<u32>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("reading {}", self.directory.display()))?,
        };
        let mut numbers: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                name.to_str()?.strip_suffix(".json")?.parse().ok()
            })
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn wanted(&self) -> Result<Option<u32>> {
        let path = self.directory.join(IN_FORCE);
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
            Ok(text) => match text.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => bail!("{} does not hold a number", path.display()),
            },
        }
    }

    fn set_in_force(&self, number: Option<u32>) -> Result<()> {
        let path = self.directory.join(IN_FORCE);
        match number {
            Some(number) => write(&path, format!("{number}\n").as_bytes()),
            None => remove_file(&path),
        }
    }

    fn forget(&self, number: u32) -> Result<()> {
        remove_file(&self.path(number, "json"))?;
        remove_file(&self.path(number, "toml"))
    }

    fn path(&self, number: u32, kind: &str) -> PathBuf {
        self.directory.join(format!("{number:08}.{kind}"))
    }
}

fn compile(bytes: &[u8], file: &Path) -> Result<Compiled> {
    let told = |faults: thalweg_policy::Faults| anyhow!("{faults}");
    Policy::parse(bytes, file)
        .and_then(|policy| policy.compile())
        .map_err(told)
}

/// Replaces a file in one step.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = path.with_extension("new");
    fs::write(&beside, bytes)
        .and_then(|()| fs::rename(&beside, path))
        .with_context(|| format!("writing {}", path.display()))
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}
