//! Policies of the fleet on this machine: applied as by `thalweg policy apply`, watched, reverted.
//!
//! The kernel and the history of policies are the truth: the file's name of the policy in force,
//! `fleet/LABEL/NUMBER`, marks it as the fleet's. The desired state is in `fleet.json` of the state
//! directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use thalweg_control::policy::history::{Entry, History};
use thalweg_control::policy::{ApplyOptions, PolicyPaths, Report};
use thalweg_fleet::Name;
use thalweg_fleet::wire::{Policy, Progress};
use thalweg_units::file::{self, Draft, ReadError};

use super::desired::{Action, DesiredState, PolicyId, Present, Wanted};

/// Name of the file of the desired state.
pub const FILE_NAME: &str = "fleet.json";
/// Version of the file.
const FORMAT: u64 = 1;
/// A policy has 128 KiB of text at most, in JSON perhaps six times that; of 17 labels twice.
const FILE_MAX: u64 = 64 << 20;
/// Interval of polls of the kernel's policy.
const LOOK: Duration = Duration::from_secs(10);
/// Pause before a policy that the kernel refused is applied again.
const AGAIN: Duration = Duration::from_secs(600);
/// Failed operations from which a rule is at fault, if they are more than 1 %.
const FAILURES: u64 = 10;

#[derive(Serialize, Deserialize)]
struct Document {
    format: u64,
    /// Earlier versions wrote this name.
    #[serde(rename = "wishes")]
    desired: DesiredState,
}

/// Policies of the fleet on this machine.
pub struct Policies {
    agent: Name,
    /// Labels by rank: the first that has a policy wins.
    labels: Vec<Name>,
    file: PathBuf,
    place: PolicyPaths,
    history: History,
    /// Whether nothing is set, and matches are only counted.
    dry_run: bool,
    desired: DesiredState,
    /// Desired state as in the file.
    saved: DesiredState,
    /// Error of reading the file, until the file is written again or gone.
    unread: Option<String>,
    /// Progress at the last poll.
    told: Vec<Progress>,
    looked: Option<Instant>,
    /// Earliest time at which a refused policy is applied again.
    not_before: Option<Instant>,
}

impl Policies {
    /// Reads the desired state. If the file cannot be read, the fleet is asked again.
    pub fn new(
        agent: Name,
        labels: Vec<Name>,
        state: &Path,
        place: PolicyPaths,
        dry_run: bool,
    ) -> Self {
        let file = state.join(FILE_NAME);
        let (mut desired, unread) = match load(&file) {
            Ok(desired) => (desired, None),
            Err(error) => (DesiredState::default(), Some(format!("{error:#}"))),
        };
        let saved = desired.clone();
        desired.keep(&labels);
        Self {
            agent,
            labels,
            file,
            place,
            history: History::at(state),
            dry_run,
            desired,
            saved,
            unread,
            told: Vec::new(),
            looked: None,
            not_before: None,
        }
    }

    /// Error of reading the file of the desired state, while the file is there.
    pub fn unread(&self) -> Option<String> {
        self.unread.clone()
    }

    /// Numbers of the policies that were obeyed, by label.
    pub fn numbers(state: &Path) -> BTreeMap<Name, u64> {
        // `new` reports a file that cannot be read.
        load(&state.join(FILE_NAME)).map_or_else(|_| BTreeMap::new(), |desired| desired.numbers())
    }

    /// Progress of each label's policy.
    pub fn progress(&self) -> Vec<Progress> {
        self.desired.progress()
    }

    /// Takes a policy that the client found signed and new.
    pub fn take(&mut self, policy: Policy) {
        let file = file_of(&policy.label, policy.number);
        tracing::info!(
            label = %policy.label,
            number = policy.number,
            "policy {} of label {} has come",
            policy.number,
            policy.label
        );
        let check = |text: &str| compile(text, &file).map(drop);
        let one_line = |why: anyhow::Error| format!("{why:#}").replace('\n', "; ");
        self.desired
            .take(&self.agent, policy, |text| check(text).map_err(one_line));
        (self.looked, self.not_before) = (None, None);
    }

    /// Carries out the next action, at most once per interval. Returns whether the progress
    /// changed; `None`: not due yet.
    ///
    /// # Errors
    /// Pins or files that cannot be read or written. The next poll tries again.
    pub fn attend(&mut self, now: Instant) -> Result<Option<bool>> {
        if self.looked.is_some_and(|at| now - at < LOOK) {
            return Ok(None);
        }
        self.looked = Some(now);
        if !self.file.exists() {
            self.unread = None;
        }
        // Before the kernel has it: after a kill the next session goes on. A full disk keeps no policy
        // that is to go.
        let settled = if self.save().is_ok() || self.is_to_go() {
            self.settle(now)
        } else {
            Ok(())
        };
        let done = settled.and(self.watch());
        self.save().and(done)?;
        let before = std::mem::replace(&mut self.told, self.desired.progress());
        Ok(Some(self.told != before))
    }

    /// Whether the fleet's policy in the kernel is to be removed or replaced.
    fn is_to_go(&self) -> bool {
        // `settle` reports pins that cannot be read, once the file is written.
        let present = self.present().ok().flatten();
        let which = present.as_ref().map(|(which, _)| which);
        self.desired.takes_away(&self.labels, which)
    }

    fn settle(&mut self, now: Instant) -> Result<()> {
        let done = self.carry_out(now);
        // Also after an error: the policy may be out of the kernel.
        let present = self.present()?;
        self.desired.note_present(present);
        done
    }

    fn carry_out(&mut self, now: Instant) -> Result<()> {
        // A policy that could not be restored at the start was not removed by anybody.
        let restored = self.history.restore(&self.place);
        let present = self.present()?;
        let which = present.as_ref().map(|(which, _)| which);
        match self.desired.act(&self.labels, which) {
            Action::Nothing => drop(restored?),
            Action::Note(label) => self.desired.applied(&label),
            Action::Remove => self.remove(present.as_ref())?,
            Action::Leave(label) => {
                restored?;
                let entry = self.history.in_force(&self.place.pin)?;
                let why = match entry {
                    Some(entry) => format!("replaced on this machine by {:?}", entry.name),
                    None => "removed on this machine".to_owned(),
                };
                tracing::warn!("the fleet's policy of label {label} was {why}");
                self.desired.left(&label, why);
            }
            Action::Apply(..) if self.not_before.is_some_and(|at| now < at) => {}
            Action::Apply(label, wanted) => match self.apply(&label, &wanted) {
                Ok(()) => self.desired.applied(&label),
                Err(error) => {
                    let why = format!("{error:#}");
                    tracing::warn!(
                        "policy {} of label {label} is refused: {why}",
                        wanted.number
                    );
                    self.desired.refused(&label, why);
                    self.not_before = Some(now + AGAIN);
                    if self.desired.takes_away(&self.labels, which) {
                        self.remove(present.as_ref())?;
                    }
                }
            },
        }
        Ok(())
    }

    /// Removes the fleet's policy from the kernel, if it is still the one that was found there.
    fn remove(&self, present: Option<&Present>) -> Result<()> {
        if let Some((_, number)) = present
            && self.history.remove_if(&self.place, *number)?
        {
            tracing::info!("the fleet's policy is removed");
        }
        Ok(())
    }

    fn apply(&self, label: &Name, wanted: &Wanted) -> Result<()> {
        let file = file_of(label, wanted.number);
        let compiled = compile(&wanted.text, &file)?;
        let how = ApplyOptions {
            dry_run: self.dry_run,
            existing: false,
        };
        let bytes = wanted.text.as_bytes();
        let outcome = self
            .history
            .apply(&self.place, bytes, compiled, &file, how)?;
        let (name, number) = (&outcome.entry.name, wanted.number);
        tracing::info!(
            policy = name,
            %label,
            number,
            "policy {name}, {number} of label {label}, is in force"
        );
        for note in outcome.applied.notes {
            tracing::warn!("policy: {note}");
        }
        Ok(())
    }

    /// Reverts the fleet's policy if one of its rules fails.
    fn watch(&mut self) -> Result<()> {
        let Some(((label, number), _)) = self.present()? else {
            return Ok(());
        };
        let Some(report) = Report::read_counters(&self.place.pin, &self.history)? else {
            return Ok(());
        };
        let Some(mut why) = fault_of(&report) else {
            return Ok(());
        };
        let entry = self.history.in_force(&self.place.pin)?;
        // Replaced just now, by somebody else.
        let Some(entry) = entry.filter(|it| it.number == report.number) else {
            return Ok(());
        };
        let taken_back = match entry.previous {
            Some(_) => match self.history.roll_back_if(&self.place, entry.number) {
                // A full disk has no room for the one before. Its removal needs none.
                Err(error) if self.is_in_force(entry.number)? => {
                    why = format!(
                        "{why}; the policy before it cannot be put in force again: {error:#}"
                    );
                    self.history.remove_if(&self.place, entry.number)
                }
                done => done.map(|outcome| outcome.is_some()),
            },
            None => self.history.remove_if(&self.place, entry.number),
        };
        let is_out = match &taken_back {
            Ok(is_out) => *is_out,
            // The policy may be out of the kernel, and the state directory does not say so.
            Err(_) => !self.is_in_force(entry.number)?,
        };
        if !is_out {
            taken_back?;
            return Ok(());
        }
        tracing::warn!("policy {number} of label {label} is taken back: {why}");
        let now = match self.history.in_force(&self.place.pin)? {
            None => None,
            Some(entry) => Some((which(&entry), self.history.read_text(entry.number)?)),
        };
        let is_local = matches!(&now, Some((None, _)));
        let now = now
            .and_then(|(which, text)| Some((which?, String::from_utf8_lossy(&text).into_owned())));
        self.desired.taken_back(&label, why, now, is_local);
        taken_back?;
        Ok(())
    }

    /// Whether the policy with this number in the history is in force.
    fn is_in_force(&self, number: u32) -> Result<bool> {
        let entry = self.history.in_force(&self.place.pin)?;
        Ok(entry.is_some_and(|it| it.number == number))
    }

    /// The fleet's policy in the kernel.
    fn present(&self) -> Result<Option<Present>> {
        let Some(entry) = self.history.in_force(&self.place.pin)? else {
            return Ok(None);
        };
        if entry.file.as_os_str().is_empty()
            && let Err(error) = self.history.read_entry(entry.number)
        {
            if error.is_absent() {
                return Ok(self.desired.present_as(entry.number));
            }
            // The policy may be the fleet's.
            return Err(error.into());
        }
        Ok(which(&entry).map(|which| (which, entry.number)))
    }

    fn save(&mut self) -> Result<()> {
        if self.desired == self.saved {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&Document {
            format: FORMAT,
            desired: self.desired.clone(),
        })?;
        let written = Draft::new(&self.file, 0o600).and_then(|draft| draft.replace(&bytes));
        written.with_context(|| format!("writing {}", self.file.display()))?;
        self.saved.clone_from(&self.desired);
        self.unread = None;
        Ok(())
    }
}

fn load(file: &Path) -> Result<DesiredState> {
    let bytes = match file::read_bytes(file, FILE_MAX) {
        Err(error) if ReadError::is_absent(&error) => return Ok(DesiredState::default()),
        read => read?,
    };
    let document: Document =
        serde_json::from_slice(&bytes).with_context(|| format!("{} is damaged", file.display()))?;
    match document.format {
        FORMAT => Ok(document.desired),
        found => Err(anyhow!(
            "{}: format: found {found}, expected {FORMAT}",
            file.display()
        )),
    }
}

/// Reason to revert a policy.
fn fault_of(report: &Report) -> Option<String> {
    report.rules.iter().find_map(|rule| {
        if rule.suspended {
            return Some(format!(
                "rule {:?}: flows that it took did worse than those that it left alone",
                rule.name
            ));
        }
        let tried = rule.done + rule.failed;
        if rule.failed < FAILURES || rule.failed * 100 <= tried {
            return None;
        }
        let most = rule.failures.iter().max_by_key(|it| it.count);
        let which = most.map_or_else(String::new, |it| {
            format!(": {} ({}) at {}, {}", it.key, it.option, it.stage, it.error)
        });
        Some(format!(
            "rule {:?}: {} of {tried} settings failed{which}",
            rule.name, rule.failed
        ))
    })
}

fn compile(text: &str, file: &Path) -> Result<thalweg_policy::Compiled> {
    let compiled = thalweg_policy::Policy::parse(text.as_bytes(), file)
        .and_then(|policy| policy.compile())
        .map_err(|faults| anyhow!("{}", faults.first_fault("thalweg policy check")))?;
    match compiled.machine_bound() {
        Some(why) => Err(anyhow!("{}: {why}", file.display())),
        None => Ok(compiled),
    }
}

/// The name under which the history keeps a policy of the fleet.
fn file_of(label: &Name, number: u64) -> PathBuf {
    PathBuf::from(format!("fleet/{label}/{number}"))
}

/// The policy of the fleet that the history keeps under this name.
fn which(entry: &Entry) -> Option<PolicyId> {
    let rest = entry.file.to_str()?.strip_prefix("fleet/")?;
    let (label, number) = rest.split_once('/')?;
    Some((Name::new(label).ok()?, number.parse().ok()?))
}
