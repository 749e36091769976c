//! Policies that were in force: their texts, their order, and rollback.
//!
//! In the state directory, `policy/NUMBER.toml` is a policy as it was applied and
//! `policy/NUMBER.json` its description. `policy/in-force` has the number of the policy to apply
//! after a restart of the machine. The kernel's state is the truth: after a kill between kernel and
//! files, the next call corrects the files.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use thalweg_bpf_types::raw;
use thalweg_policy::{Compiled, Policy};

use super::pins::Pins;
use super::{Applied, ApplyOptions, PolicyPaths};
use crate::error::{Context, Error, Result, bail};
use crate::pins::{create_directory, directory_entries, remove_file};
use crate::system;

/// Number of policies kept.
const KEPT: usize = 20;
const IN_FORCE: &str = "in-force";
/// Boot of a policy that was applied before this boot of the machine.
const EARLIER_BOOT: &str = "earlier";
/// Prefix of files that are not completely written.
const DRAFT: &str = ".draft-";

/// Description of a policy that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Number of the policy; counts up, and is the kernel's generation.
    pub number: u32,
    /// Name of the policy.
    pub name: String,
    /// The file it came from.
    pub file: PathBuf,
    /// Time of application, ms since 1970.
    pub applied_ms: i64,
    /// Matches are counted, and nothing is set.
    pub dry_run: bool,
    /// The policy that `rollback` returns to.
    pub previous: Option<u32>,
    /// The boot of the machine in which the file was applied; empty where an earlier version applied
    /// it. Cookies of network namespaces in its rules are of that boot.
    #[serde(default)]
    pub boot_id: String,
}

impl Entry {
    /// Options for applying it again.
    fn apply_options(&self) -> ApplyOptions {
        ApplyOptions {
            dry_run: self.dry_run,
            existing: false,
        }
    }

    /// Whether its file was applied in this boot of the machine. The time tells where an earlier version
    /// applied it.
    fn is_of_boot(&self, boot_id: &str) -> bool {
        match self.boot_id.is_empty() {
            true => self.applied_ms > (system::boot_wall_ns() / 1_000_000) as i64,
            false => self.boot_id == boot_id,
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

/// A policy that is to be put in force, with what its [`Entry`] will say.
struct Candidate<'a> {
    bytes: &'a [u8],
    compiled: Compiled,
    file: &'a Path,
    how: ApplyOptions,
    previous: Option<u32>,
    boot_id: String,
}

/// A policy of the history, ready to be put in force again.
pub(super) struct KeptPolicy {
    bytes: Vec<u8>,
    pub(super) compiled: Compiled,
    /// Notes for the operator.
    pub(super) notes: Vec<String>,
}

/// Head and tables of a policy.
type RunningTables = (raw::thalweg_policy_head, Arc<Compiled>);

/// A policy that was put in force.
#[derive(Debug)]
pub struct Outcome {
    /// Description of the policy.
    pub entry: Entry,
    /// Notes for the operator.
    pub applied: Applied,
    /// Number of the policy's rules, if the file has them.
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
        directory_entries(&self.directory)
            .is_ok_and(|names| names.is_empty() || names.iter().any(is_own))
    }

    /// Puts a policy in force and records it; `bytes` is its text.
    ///
    /// # Errors
    /// The kernel refuses it, or the state directory cannot be written to. Nothing is changed.
    pub fn apply(
        &self,
        place: &PolicyPaths,
        bytes: &[u8],
        compiled: Compiled,
        file: &Path,
        how: ApplyOptions,
    ) -> Result<Outcome> {
        under_lock(place, || {
            let candidate = Candidate {
                bytes,
                compiled,
                file,
                how,
                previous: self.recover_locked(place)?,
                boot_id: system::boot_id()?,
            };
            self.put_in_force(place, candidate)
        })
    }

    /// Puts the previous policy in force again.
    ///
    /// # Errors
    /// None is in force, or there was none before it.
    pub fn roll_back(&self, place: &PolicyPaths) -> Result<Outcome> {
        under_lock(place, || {
            self.recover_locked(place)?;
            let present = self.in_force(&place.pin)?.ok_or_else(|| {
                Error::NotFound("no policy is in force: there is nothing to return from".to_owned())
            })?;
            self.back_from(place, present)
        })
    }

    /// Rolls back if this number is still in force; `None`: another one is.
    ///
    /// # Errors
    /// As [`History::roll_back`].
    pub fn roll_back_if(&self, place: &PolicyPaths, number: u32) -> Result<Option<Outcome>> {
        under_lock(place, || {
            self.recover_locked(place)?;
            let present = self.in_force(&place.pin)?;
            let present = present.filter(|it| it.number == number);
            present.map(|it| self.back_from(place, it)).transpose()
        })
    }

    fn back_from(&self, place: &PolicyPaths, present: Entry) -> Result<Outcome> {
        let number = present.previous.ok_or_else(|| {
            Error::NotFound(format!(
                "no policy was in force before {:?}; `thalweg policy remove` takes it away",
                present.name
            ))
        })?;
        let former = self.read_entry(number).with_context(|| {
            format!("policy number {number} is no longer kept; the last {KEPT} are")
        })?;
        self.put_kept(place, &former)
    }

    /// Applies the policy in force anew: what its rules name has another meaning now.
    ///
    /// # Errors
    /// None is in force, or as [`History::apply`].
    pub fn reapply(&self, place: &PolicyPaths) -> Result<Outcome> {
        under_lock(place, || {
            let number = self
                .recover_locked(place)?
                .ok_or_else(|| Error::NotFound("no policy is in force".to_owned()))?;
            self.put_kept(place, &self.read_entry(number)?)
        })
    }

    /// Puts a policy of the history in force under a new number.
    fn put_kept(&self, place: &PolicyPaths, entry: &Entry) -> Result<Outcome> {
        let boot_id = system::boot_id()?;
        let kept = self.read_kept(entry, &boot_id)?;
        let candidate = Candidate {
            bytes: &kept.bytes,
            compiled: kept.compiled,
            file: &entry.file,
            how: entry.apply_options(),
            previous: entry.previous,
            boot_id: match entry.is_of_boot(&boot_id) {
                true => boot_id,
                false => EARLIER_BOOT.to_owned(),
            },
        };
        let mut outcome = self.put_in_force(place, candidate)?;
        outcome.applied.notes.extend(kept.notes);
        Ok(outcome)
    }

    /// Reads a policy of the history, for use in a boot of the machine. In another boot than the one in
    /// which its file was applied, rules that name a network namespace by its cookie match nothing.
    pub(super) fn read_kept(&self, entry: &Entry, boot_id: &str) -> Result<KeptPolicy> {
        let bytes = self.read_text(entry.number)?;
        let mut compiled = compile_policy(&bytes, &entry.file)?;
        let mut notes = Vec::new();
        if !entry.is_of_boot(boot_id) {
            notes.extend(super::void_in_words(&compiled.void_cookies()));
        }
        Ok(KeptPolicy {
            bytes,
            compiled,
            notes,
        })
    }

    /// Removes the policy from the kernel; false if there was none. It stays removed after a
    /// restart of the machine.
    ///
    /// # Errors
    /// Pins or files that cannot be removed; the policy may be out of the kernel nevertheless.
    pub fn remove(&self, pin: &Path) -> Result<bool> {
        let pins = Pins::at(pin);
        if !pins.exists() {
            self.set_in_force(None)
                .context("no policy is in force, and the former one comes back after a restart")?;
            pins.clear_unwanted();
            return Ok(false);
        }
        let _lock = Pins::lock(pin)?;
        self.remove_locked(&pins)
    }

    /// Removes the policy if this number is still in force; returns whether it was.
    ///
    /// # Errors
    /// As [`History::remove`].
    pub fn remove_if(&self, place: &PolicyPaths, number: u32) -> Result<bool> {
        let pins = Pins::at(&place.pin);
        if !pins.exists() {
            return Ok(false);
        }
        let _lock = Pins::lock(&place.pin)?;
        if super::in_force(&place.pin)? != Some(number) {
            return Ok(false);
        }
        self.remove_locked(&pins)
    }

    fn remove_locked(&self, pins: &Pins) -> Result<bool> {
        // The file comes first: the kernel's present policy can be read, its former one cannot.
        let noted = self.set_in_force(None);
        match noted {
            Ok(()) => pins.clear_unwanted(),
            // An agent that runs would put it back. Without the mark it is still removed.
            Err(_) => drop(pins.mark_unwanted()),
        }
        fail_point!("policy::unwanted");
        let removed = pins.remove_all()?;
        noted.context(
            "the policy is out of the kernel, but comes back after a restart of the machine; once \
             the state directory can be written to, run `thalweg policy remove` again",
        )?;
        Ok(removed)
    }

    /// Puts the policy in force that was in force before the machine was restarted. Does nothing if
    /// the kernel has one, or none was in force.
    ///
    /// # Errors
    /// As [`History::apply`].
    pub fn restore(&self, place: &PolicyPaths) -> Result<Option<Outcome>> {
        self.recover(place)?;
        let pins = Pins::at(&place.pin);
        if self.still_wanted(&pins)?.is_none() || super::in_force(&place.pin)?.is_some() {
            return Ok(None);
        }
        under_lock(place, || {
            // Another process may have done it meanwhile.
            let Some(number) = self.still_wanted(&pins)? else {
                return Ok(None);
            };
            if self.recover_locked(place)?.is_some() {
                return Ok(None);
            }
            let entry = self.read_entry(number)?;
            let kept = self.read_kept(&entry, &system::boot_id()?)?;
            let rules = kept.compiled.about.len();
            let mut applied = place.apply(kept.compiled, number, entry.apply_options())?;
            applied.notes.extend(kept.notes);
            Ok(Some(Outcome {
                entry,
                applied,
                rules,
            }))
        })
    }

    /// Recovers from a killed process, if needed.
    ///
    /// # Errors
    /// Pins or files that cannot be read or written.
    pub fn recover(&self, place: &PolicyPaths) -> Result<()> {
        let needs_settling = match super::in_force(&place.pin)? {
            // An application that was killed leaves pins.
            None => Pins::at(&place.pin).exists() && system::has_pins(&place.pin),
            Some(number) => {
                self.wanted_number().ok() != Some(Some(number)) && self.read_entry(number).is_ok()
            }
        };
        if needs_settling {
            under_lock(place, || self.recover_locked(place))?;
        }
        Ok(())
    }

    /// As [`History::recover`], under the lock; returns the number of the policy in force.
    fn recover_locked(&self, place: &PolicyPaths) -> Result<Option<u32>> {
        let pins = Pins::at(&place.pin);
        // A removal that could not take the pins away has detached the link.
        let is_removed = |number| {
            pins.is_detached()
                && matches!(self.wanted_number(), Ok(None))
                && self.read_entry(number).is_ok()
        };
        let running = pins.running_policy()?;
        let Some(running) = running.filter(|it| !is_removed(it.generation)) else {
            pins.remove_unused()?;
            return Ok(None);
        };
        pins.keep_only(running)?;
        place.put_before_learner()?;
        let number = running.generation;
        // A policy of another state directory is not recorded here.
        if self.read_entry(number).is_ok() {
            for later in self
                .entry_numbers()?
                .into_iter()
                .filter(|other| *other > number)
            {
                self.remove_entry(later)?;
            }
            if self.wanted_number().ok() != Some(Some(number)) {
                self.set_in_force(Some(number))?;
            }
        }
        Ok(Some(number))
    }

    fn put_in_force(&self, place: &PolicyPaths, candidate: Candidate<'_>) -> Result<Outcome> {
        let Candidate {
            bytes,
            compiled,
            file,
            how,
            previous,
            boot_id,
        } = candidate;
        let running = super::in_force(&place.pin)?.unwrap_or(0);
        let numbers = self.entry_numbers()?;
        let last = numbers.last().copied().unwrap_or(0).max(running);
        let entry = Entry {
            number: last + 1,
            name: compiled.name.clone(),
            file: file.to_owned(),
            applied_ms: (system::wall_ns() / 1_000_000) as i64,
            dry_run: how.dry_run,
            previous,
            boot_id,
        };
        let rules = compiled.about.len();
        create_directory(&self.directory, true)?;
        self.remove_drafts()?;
        let written = self
            .write_entry(&entry, bytes)
            .inspect(|()| {
                fail_point!("policy::written");
            })
            // A full disk shows before anything changes.
            .and_then(|()| self.write_draft(format!("{}\n", entry.number).as_bytes()))
            .and_then(|draft| Ok((draft, place.apply(compiled, entry.number, how)?)));
        let (in_force, applied) = written.inspect_err(|_| {
            // A policy that was never in force is not part of the history.
            if !matches!(super::in_force(&place.pin), Ok(Some(number)) if number == entry.number) {
                let _ = self.remove_entry(entry.number);
            }
        })?;
        fail_point!("policy::applied");
        self.persist_draft(in_force, &self.directory.join(IN_FORCE))?;
        for number in numbers.iter().rev().skip(KEPT - 1) {
            self.remove_entry(*number)?;
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
        Ok(Some(self.read_entry(number).unwrap_or_else(|_| Entry {
            number,
            name: String::new(),
            file: PathBuf::new(),
            applied_ms: 0,
            dry_run: false,
            previous: None,
            boot_id: String::new(),
        })))
    }

    /// A policy by its number.
    ///
    /// # Errors
    /// The policy is not kept.
    pub fn read_entry(&self, number: u32) -> Result<Entry> {
        let path = self.entry_path(number, "json");
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_slice(&bytes)
            .map_err(Error::other)
            .with_context(|| format!("{} is damaged", path.display()))
    }

    /// The text of a policy by its number.
    ///
    /// # Errors
    /// The policy is not kept.
    pub fn read_text(&self, number: u32) -> Result<Vec<u8>> {
        let path = self.entry_path(number, "toml");
        fs::read(&path).with_context(|| format!("reading {}", path.display()))
    }

    /// The tables of a policy by its number.
    ///
    /// # Errors
    /// Its text is not kept, or not accepted any more.
    pub(super) fn compile_entry(&self, number: u32) -> Result<Arc<Compiled>> {
        let text = self.read_text(number)?;
        let mut last = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, compiled)) = last.as_ref().filter(|(of, _)| *of == text) {
            return Ok(Arc::clone(compiled));
        }
        let compiled = Arc::new(compile_policy(&text, &self.entry_path(number, "toml"))?);
        *last = Some((text, Arc::clone(&compiled)));
        Ok(compiled)
    }

    /// Head and tables of the policy in force; `None` if there is no policy, or it belongs to another
    /// version or another state directory.
    ///
    /// # Errors
    /// Pins that cannot be read.
    pub(super) fn running_tables(&self, pins: &Pins) -> Result<Option<RunningTables>> {
        let head = pins.running_policy()?.and_then(|running| running.head);
        Ok(head.and_then(|head| Some((head, self.compile_entry(head.generation).ok()?))))
    }

    /// Numbers of all kept policies, in order.
    fn entry_numbers(&self) -> Result<Vec<u32>> {
        let names = directory_entries(&self.directory)?;
        let number = |name: &String| name.strip_suffix(".json")?.parse().ok();
        let mut numbers: Vec<u32> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The number of the policy that is to be in force.
    pub(super) fn wanted_number(&self) -> Result<Option<u32>> {
        let path = self.directory.join(IN_FORCE);
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
            Ok(text) => match text.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => bail!(Damaged, "{} does not hold a number", path.display()),
            },
        }
    }

    /// The number of the policy that is to be in force, unless it was removed in this boot of the machine.
    pub(super) fn still_wanted(&self, pins: &Pins) -> Result<Option<u32>> {
        Ok(self.wanted_number()?.filter(|_| !pins.is_unwanted()))
    }

    fn set_in_force(&self, number: Option<u32>) -> Result<()> {
        let path = self.directory.join(IN_FORCE);
        match number {
            Some(number) => {
                let draft = self.write_draft(format!("{number}\n").as_bytes())?;
                self.persist_draft(draft, &path)
            }
            None if path.exists() => {
                remove_file(&path)?;
                self.sync_directory()
            }
            None => Ok(()),
        }
    }

    /// Writes a policy and its description.
    fn write_entry(&self, entry: &Entry, text: &[u8]) -> Result<()> {
        let about = serde_json::to_vec_pretty(entry).map_err(Error::other)?;
        let (text, about) = (self.write_draft(text)?, self.write_draft(&about)?);
        rename_draft(text, &self.entry_path(entry.number, "toml"))?;
        rename_draft(about, &self.entry_path(entry.number, "json"))?;
        self.sync_directory()
    }

    /// A synced file under a temporary name, to replace another.
    fn write_draft(&self, bytes: &[u8]) -> Result<NamedTempFile> {
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

    fn persist_draft(&self, draft: NamedTempFile, path: &Path) -> Result<()> {
        rename_draft(draft, path)?;
        self.sync_directory()
    }

    /// Names of files are on disk once their directory is.
    fn sync_directory(&self) -> Result<()> {
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .with_context(|| format!("writing {}", self.directory.display()))
    }

    /// Removes the drafts of killed processes. Under the lock nobody else writes.
    fn remove_drafts(&self) -> Result<()> {
        let mut names = directory_entries(&self.directory)?;
        names.retain(|name| name.starts_with(DRAFT));
        names
            .iter()
            .try_for_each(|name| remove_file(&self.directory.join(name)))
    }

    fn remove_entry(&self, number: u32) -> Result<()> {
        remove_file(&self.entry_path(number, "json"))?;
        remove_file(&self.entry_path(number, "toml"))
    }

    fn entry_path(&self, number: u32, kind: &str) -> PathBuf {
        self.directory.join(format!("{number:08}.{kind}"))
    }
}

/// Changes the policy in force under the lock. Where none is in force afterwards, no pin stays.
fn under_lock<T>(place: &PolicyPaths, change: impl FnOnce() -> Result<T>) -> Result<T> {
    let _lock = Pins::lock(&place.pin)?;
    let changed = change();
    let pins = Pins::at(&place.pin);
    if matches!(pins.running_policy(), Ok(None)) {
        // The next change clears what stays.
        let _ = pins.remove_all();
    }
    changed
}

/// Replaces a file by a draft.
fn rename_draft(draft: NamedTempFile, path: &Path) -> Result<()> {
    draft
        .persist(path)
        .map_err(|refused| refused.error)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(())
}

fn compile_policy(bytes: &[u8], file: &Path) -> Result<Compiled> {
    let told = |faults: thalweg_policy::Faults| Error::Invalid(format!("{faults}"));
    Policy::parse(bytes, file)
        .and_then(|policy| policy.compile())
        .map_err(told)
}
