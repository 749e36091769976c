//! Rules with a share of flows: what became of those that they took, and of those that they left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};
use thalweg_bpf_objects::names::policy::maps;
use thalweg_bpf_types::{bytes_of, from_bytes, raw};
use thalweg_policy::{Compiled, Trial};

use crate::batch;
use crate::error::{Context, Result};

use super::history::History;
use super::pins::Pins;
use super::report::missed_of;

/// The policy in force, as far as its shares go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trials {
    /// Name of the policy.
    pub policy: String,
    /// Number of the policy.
    pub number: u32,
    /// Matches are counted, and nothing is set.
    pub dry_run: bool,
    /// All its rules, by id.
    pub rules: Vec<TrialRule>,
}

/// A rule of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialRule {
    /// Name of the rule.
    pub name: String,
    /// Experiment of a rule with a share.
    pub trial: Option<Trial>,
}

impl Trials {
    /// Reads the shares of the policy in force; `None` if there is no policy, or it belongs to
    /// another version or another state directory.
    ///
    /// # Errors
    /// Pins that cannot be read.
    pub fn read(pin: &Path, history: &History) -> Result<Option<Self>> {
        let Some((head, compiled)) = history.running_tables(&Pins::at(pin))? else {
            return Ok(None);
        };
        let rules = compiled.about.iter().map(|about| TrialRule {
            name: about.name.clone(),
            trial: about.trial,
        });
        Ok(Some(Self {
            policy: compiled.name.clone(),
            number: head.generation,
            dry_run: head.flags & raw::THALWEG_POLICY_DRY_RUN != 0,
            rules: rules.collect(),
        }))
    }

    /// Ends of flows that found the ring full.
    ///
    /// # Errors
    /// Pins that cannot be read.
    pub fn lost_outcomes(&self, pin: &Path) -> Result<u64> {
        let path = Pins::at(pin)
            .generation_path(self.number)
            .join(maps::MISSED);
        if !path.exists() {
            return Ok(0);
        }
        Ok(missed_of(&MapHandle::from_pinned_path(path)?)?.outcomes)
    }

    /// Suspends the rules whose experiment has one of these keys, and no others.
    ///
    /// # Errors
    /// Pins that cannot be read or written.
    pub fn suspend_rules(&self, pin: &Path, history: &History, keys: &BTreeSet<u64>) -> Result<()> {
        let Ok(compiled) = history.compile_entry(self.number) else {
            return Ok(());
        };
        let pins = Pins::at(pin);
        if !pins.generation_path(self.number).exists() {
            // The policy was replaced just now.
            return Ok(());
        }
        let known = suspended_rules(&pins, self.number, Some(&compiled))?;
        let trial = |id: u32| self.rules.get(id as usize).and_then(|rule| rule.trial);
        let wanted = |id: u32| trial(id).is_some_and(|trial| keys.contains(&trial.key));
        let changes = |id: u32| trial(id).is_some() && known.contains(&id) != wanted(id);
        let map = pins.open_map(self.number, maps::RULES)?;
        for (place, rule) in (0u32..).zip(&compiled.rules) {
            if !changes(rule.id) {
                continue;
            }
            // What the kernel has: network namespaces have cookies there.
            let mut entry = read_rule(&map, place)?;
            entry.flags &= !raw::THALWEG_RULE_SUSPENDED;
            if wanted(rule.id) {
                entry.flags |= raw::THALWEG_RULE_SUSPENDED;
            }
            map.update(&place.to_ne_bytes(), bytes_of(&entry), MapFlags::ANY)
                .context("suspending a rule")?;
        }
        Ok(())
    }
}

/// Ids of the rules that are suspended.
pub(super) fn suspended_rules(
    pins: &Pins,
    number: u32,
    compiled: Option<&Compiled>,
) -> Result<BTreeSet<u32>> {
    let mut first: BTreeMap<u32, u32> = BTreeMap::new();
    for (place, rule) in (0u32..).zip(compiled.into_iter().flat_map(|known| &known.rules)) {
        if rule.sample != 0 {
            first.entry(rule.id).or_insert(place);
        }
    }
    let mut ids = BTreeSet::new();
    if first.is_empty() {
        return Ok(ids);
    }
    let map = pins.open_map(number, maps::RULES)?;
    for (id, place) in first {
        if read_rule(&map, place)?.flags & raw::THALWEG_RULE_SUSPENDED != 0 {
            ids.insert(id);
        }
    }
    Ok(ids)
}

pub(super) fn read_rule(map: &MapHandle, place: u32) -> Result<raw::thalweg_policy_rule> {
    batch::read_entry(map, place, "the rules of a policy")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reader of the ring of outcomes, whichever policies come and go.
#[derive(Default)]
pub struct Outcomes {
    open: Option<(u64, RingBuffer<'static>)>,
    pending: Arc<Mutex<Vec<raw::thalweg_policy_outcome>>>,
}

impl Outcomes {
    /// Takes the outcomes since the last call; none where no policy was applied.
    ///
    /// # Errors
    /// A ring that cannot be opened or read.
    pub fn take_outcomes(&mut self, pin: &Path) -> Result<Vec<raw::thalweg_policy_outcome>> {
        let path = Pins::at(pin).shared_map_path(maps::OUTCOMES);
        let Ok(inode) = fs::metadata(&path).map(|found| found.ino()) else {
            self.open = None;
            return Ok(Vec::new());
        };
        if self.open.as_ref().is_none_or(|(known, _)| *known != inode) {
            let map = MapHandle::from_pinned_path(&path)
                .with_context(|| format!("opening {}", path.display()))?;
            let pending = Arc::clone(&self.pending);
            let mut builder = RingBufferBuilder::new();
            builder.add(&map, move |bytes| {
                lock(&pending).extend(from_bytes::<raw::thalweg_policy_outcome>(bytes));
                0
            })?;
            self.open = Some((inode, builder.build().context("opening the ring")?));
        }
        if let Some((_, ring)) = &self.open {
            ring.consume().context("reading the ring of outcomes")?;
        }
        Ok(std::mem::take(&mut *lock(&self.pending)))
    }
}
