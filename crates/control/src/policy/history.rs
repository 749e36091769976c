//! Policies that were in force: their texts, their order, and rollback.
//!
//! In the state directory, `policy/NUMBER.toml` is a policy as it was applied and
//! `policy/NUMBER.json` its description. `policy/in-force` has the number of the policy to apply
//! after a restart of the machine. The kernel's state is the truth: after a kill between kernel and
//! files, the next call corrects the files.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use thalweg_policy::{Compiled, Policy};

use super::pins::Pins;
use super::{Applied, How, Place};
use crate::pins::{entries, remove_file};
use crate::system;

/// Number of policies kept.
const KEPT: usize = 20;
const IN_FORCE: &str = "in-force";
/// Prefix of files that are not completely written.
const DRAFT: &str = ".draft-";

/// Description of a policy that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number; counts up, and is the kernel's generation.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// The file it came from.
    pub file: PathBuf,
    /// Time of application, ms since 1970.
    pub applied_ms: i64,
    /// Matches are counted, and nothing is set.
    pub dry_run: bool,
    /// The policy that `rollback` returns to.
    pub previous: Option<u32>,
}

impl Entry {
    /// Options for applying it again.
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
    /// The text compiled last, and its result. The agent often needs the policy in force, and many
    /// rules take a part of a second.
    compiled: Mutex<Option<(Vec<u8>, Arc<Compiled>)>>,
}

/// A policy that was put in force.
#[derive(Debug)]
pub struct Outcome {
    /// Its description.
    pub entry: Entry,
    /// Notes for the operator.
    pub applied: Applied,
    /// Its rules, if the file has them.
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

    /// Whether the directory of policies is empty or has files of a history, be they still being written
    /// or left by a kill.
    pub fn is_own(&self) -> bool {
        let is_own = |name: &String| {
            let is_entry = name.rsplit_once('.').is_some_and(|(stem, kind)| {
                matches!(kind, "json" | "toml") && stem.parse::<u32>().is_ok()
            });
            is_entry || name == IN_FORCE || name.starts_with(DRAFT)
        };
        entries(&self.directory).is_ok_and(|names| names.is_empty() || names.iter().any(is_own))
    }

    /// Puts a policy in force and records it; `bytes` is its text.
    ///
    /// # Errors
    /// The kernel refuses it, or the state directory cannot be written to. Nothing is changed.
    pub fn apply(
        &self,
        place: &Place,
        bytes: &[u8],
        compiled: Compiled,
        file: &Path,
        how: How,
    ) -> Result<Outcome> {
        let _lock = Pins::lock(&place.pin)?;
        let previous = self.settle(place)?;
        self.put(place, bytes, compiled, file, how, previous)
    }

    /// Puts the previous policy in force again.
    ///
    /// # Errors
    /// None is in force, or there was none before it.
    pub fn rollback(&self, place: &Place) -> Result<Outcome> {
        let _lock = Pins::lock(&place.pin)?;
        self.settle(place)?;
        let present = self
            .in_force(&place.pin)?
            .context("no policy is in force: there is nothing to return from")?;
        self.back_from(place, present)
    }

    /// The same if this number is in force by then; `None`: it is not.
    ///
    /// # Errors
    /// As [`History::rollback`].
    pub fn rollback_if(&self, place: &Place, number: u32) -> Result<Option<Outcome>> {
        let _lock = Pins::lock(&place.pin)?;
        self.settle(place)?;
        let present = self.in_force(&place.pin)?;
        let present = present.filter(|it| it.number == number);
        present.map(|it| self.back_from(place, it)).transpose()
    }

    fn back_from(&self, place: &Place, present: Entry) -> Result<Outcome> {
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

    /// Applies the policy in force anew: what its rules name has another meaning now.
    ///
    /// # Errors
    /// None is in force, or as [`History::apply`].
    pub fn again(&self, place: &Place) -> Result<Outcome> {
        let _lock = Pins::lock(&place.pin)?;
        let number = self.settle(place)?.context("no policy is in force")?;
        let present = self.entry(number)?;
        let bytes = self.text(number)?;
        let compiled = compile(&bytes, &present.file)?;
        let (file, how) = (&present.file, present.how());
        self.put(place, &bytes, compiled, file, how, present.previous)
    }

    /// Removes the policy from the kernel; false if there was none. It stays removed after a
    /// restart of the machine.
    ///
    /// # Errors
    /// Pins or files that cannot be removed.
    pub fn remove(&self, place: &Place) -> Result<bool> {
        let pins = Pins::at(&place.pin);
        if !pins.exists() {
            self.set_in_force(None)?;
            return Ok(false);
        }
        let _lock = Pins::lock(&place.pin)?;
        // The file comes first: the kernel's present policy can be read, its former one cannot.
        self.set_in_force(None)?;
        fail_point!("policy::unwanted");
        pins.remove()
    }

    /// The same if this number is in force by then; whether it was.
    ///
    /// # Errors
    /// As [`History::remove`].
    pub fn remove_if(&self, place: &Place, number: u32) -> Result<bool> {
        let pins = Pins::at(&place.pin);
        if !pins.exists() {
            return Ok(false);
        }
        let _lock = Pins::lock(&place.pin)?;
        if super::in_force(&place.pin)? != Some(number) {
            return Ok(false);
        }
        self.set_in_force(None)?;
        fail_point!("policy::unwanted");
        pins.remove()
    }

    /// Puts the policy in force that was in force before the machine was restarted. Does nothing if
    /// the kernel has one, or none was in force.
    ///
    /// # Errors
    /// As [`History::apply`].
    pub fn restore(&self, place: &Place) -> Result<Option<Outcome>> {
        self.attend(place)?;
        if self.wanted()?.is_none() || super::in_force(&place.pin)?.is_some() {
            return Ok(None);
        }
        let _lock = Pins::lock(&place.pin)?;
        // Another process may have done it meanwhile.
        let Some(number) = self.wanted()? else {
            return Ok(None);
        };
        if self.settle(place)?.is_some() {
            return Ok(None);
        }
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

    /// Recovers from a killed process, if needed.
    ///
    /// # Errors
    /// Pins or files that cannot be read or written.
    pub fn attend(&self, place: &Place) -> Result<()> {
        let Some(number) = super::in_force(&place.pin)? else {
            return Ok(());
        };
        if self.wanted().ok() != Some(Some(number)) && self.entry(number).is_ok() {
            let _lock = Pins::lock(&place.pin)?;
            self.settle(place)?;
        }
        Ok(())
    }

    /// As [`History::attend`], under the lock; returns the number of the policy in force.
    fn settle(&self, place: &Place) -> Result<Option<u32>> {
        let pins = Pins::at(&place.pin);
        let Some(running) = pins.running()? else {
            pins.clear()?;
            return Ok(None);
        };
        pins.keep_only(running)?;
        place.put_before_learner()?;
        let number = running.generation;
        // A policy of another state directory is not recorded here.
        if self.entry(number).is_ok() {
            for later in self.numbers()?.into_iter().filter(|other| *other > number) {
                self.forget(later)?;
            }
            if self.wanted().ok() != Some(Some(number)) {
                self.set_in_force(Some(number))?;
            }
        }
        Ok(Some(number))
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
        let running = super::in_force(&place.pin)?.unwrap_or(0);
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
            .mode(0o700)
            .create(&self.directory)
            .with_context(|| format!("creating {}", self.directory.display()))?;
        self.remove_drafts()?;
        let written = self
            .write(&entry, bytes)
            .inspect(|()| {
                fail_point!("policy::written");
            })
            // A full disk shows before anything changes.
            .and_then(|()| self.draft(format!("{}\n", entry.number).as_bytes()))
            .and_then(|draft| Ok((draft, place.apply(compiled, entry.number, how)?)));
        let (in_force, applied) = written.inspect_err(|_| {
            // A policy that was never in force is not part of the history.
            if !matches!(super::in_force(&place.pin), Ok(Some(number)) if number == entry.number) {
                let _ = self.forget(entry.number);
            }
        })?;
        fail_point!("policy::applied");
        self.persist(in_force, &self.directory.join(IN_FORCE))?;
        for number in numbers.iter().rev().skip(KEPT - 1) {
            self.forget(*number)?;
        }
        Ok(Outcome {
            entry,
            applied,
            rules,
        })
    }

    /// Description of the kernel's policy. For a policy of another state directory it has the
    /// number only.
    ///
    /// # Errors
    /// Pins that cannot be read.
    pub fn in_force(&self, pin: &Path) -> Result<Option<Entry>> {
        let Some(number) = super::in_force(pin)? else {
            return Ok(None);
        };
        Ok(Some(self.entry(number).unwrap_or_else(|_| Entry {
            number,
            name: String::new(),
            file: PathBuf::new(),
            applied_ms: 0,
            dry_run: false,
            previous: None,
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

    /// The tables of a policy by its number.
    ///
    /// # Errors
    /// Its text is not kept, or not accepted any more.
    pub(super) fn compiled(&self, number: u32) -> Result<Arc<Compiled>> {
        let text = self.text(number)?;
        let mut last = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, compiled)) = last.as_ref().filter(|(of, _)| *of == text) {
            return Ok(Arc::clone(compiled));
        }
        let compiled = Arc::new(compile(&text, &self.path(number, "toml"))?);
        *last = Some((text, Arc::clone(&compiled)));
        Ok(compiled)
    }

    /// Numbers of all kept policies, in order.
    fn numbers(&self) -> Result<Vec<u32>> {
        let names = entries(&self.directory)?;
        let number = |name: &String| name.strip_suffix(".json")?.parse().ok();
        let mut numbers: Vec<u32> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The number of the policy that is to be in force.
    pub(super) fn wanted(&self) -> Result<Option<u32>> {
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
            Some(number) => {
                let draft = self.draft(format!("{number}\n").as_bytes())?;
                self.persist(draft, &path)
            }
            None if path.exists() => {
                remove_file(&path)?;
                self.sync()
            }
            None => Ok(()),
        }
    }

    /// Writes a policy and its description.
    fn write(&self, entry: &Entry, text: &[u8]) -> Result<()> {
        let about = serde_json::to_vec_pretty(entry)?;
        let (text, about) = (self.draft(text)?, self.draft(&about)?);
        name(text, &self.path(entry.number, "toml"))?;
        name(about, &self.path(entry.number, "json"))?;
        self.sync()
    }

    /// A synced file under a temporary name, to replace another.
    fn draft(&self, bytes: &[u8]) -> Result<NamedTempFile> {
        tempfile::Builder::new()
            .prefix(DRAFT)
            .tempfile_in(&self.directory)
            .and_then(|mut draft| {
                draft.write_all(bytes)?;
                draft.as_file().sync_all()?;
                Ok(draft)
            })
            .with_context(|| format!("writing to {}", self.directory.display()))
    }

    fn persist(&self, draft: NamedTempFile, path: &Path) -> Result<()> {
        name(draft, path)?;
        self.sync()
    }

    /// Names of files are on disk once their directory is.
    fn sync(&self) -> Result<()> {
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .with_context(|| format!("writing {}", self.directory.display()))
    }

    /// Removes the drafts of killed processes. Under the lock nobody else writes.
    fn remove_drafts(&self) -> Result<()> {
        let entries = fs::read_dir(&self.directory)
            .with_context(|| format!("reading {}", self.directory.display()))?;
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(DRAFT) {
                remove_file(&entry.path())?;
            }
        }
        Ok(())
    }

    fn forget(&self, number: u32) -> Result<()> {
        remove_file(&self.path(number, "json"))?;
        remove_file(&self.path(number, "toml"))
    }

    fn path(&self, number: u32, kind: &str) -> PathBuf {
        self.directory.join(format!("{number:08}.{kind}"))
    }
}

/// Replaces a file by a draft.
fn name(draft: NamedTempFile, path: &Path) -> Result<()> {
    draft
        .persist(path)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(())
}

fn compile(bytes: &[u8], file: &Path) -> Result<Compiled> {
    let told = |faults: thalweg_policy::Faults| anyhow!("{faults}");
    Policy::parse(bytes, file)
        .and_then(|policy| policy.compile())
        .map_err(told)
}
