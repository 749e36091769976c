//! The arm table: the number of each congestion control.
//!
//! A number is stable while its name stays in the table: host records and open connections refer to
//! it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::{arm_name, arm_name_bytes, bytes_of, earlier, from_bytes, raw};
use thalweg_control::system;
use thalweg_learner::{ArmState, Host, HostKey, MAX_ARMS, Mode};

use super::Kernel;

/// The four arms of the published program, in its order.
const CLASSIC_ARMS: [&str; 4] = ["cubic", "bbr", "htcp", "dctcp"];

/// The first slot that any name may use.
fn first_slot(mode: Mode) -> usize {
    match mode {
        Mode::Classic => CLASSIC_ARMS.len(),
        Mode::Thalweg => 0,
    }
}

/// A congestion control to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmSpec {
    /// Name of the congestion control.
    pub name: String,
    /// Whether only connections that negotiated ECN may use it.
    pub needs_ecn: bool,
}

/// A slot of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArmEntry {
    /// Name of the congestion control.
    pub name: String,
    /// Whether the kernel offers it and the configuration allows it.
    pub present: bool,
    /// Whether only connections that negotiated ECN may use it.
    pub needs_ecn: bool,
    /// Negative errno of the kernel's last "no such" refusal; 0 = not refused.
    pub refused_errno: i32,
    /// Connections to which the kernel refused the arm, ever, for any reason.
    pub refusals: u64,
}

/// The arm table in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArmTable {
    slots: [Option<ArmEntry>; MAX_ARMS],
}

impl ArmTable {
    /// Number of an arm.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| slot.as_ref().is_some_and(|arm| arm.name == name))
    }

    /// Name of an arm by number.
    pub fn name(&self, index: usize) -> Option<&str> {
        Some(self.slots.get(index)?.as_ref()?.name.as_str())
    }

    /// A table of these names in order.
    #[cfg(test)]
    pub fn of(names: &[&str]) -> Self {
        let mut table = Self::default();
        for (slot, name) in table.slots.iter_mut().zip(names) {
            *slot = Some(ArmEntry {
                name: (*name).to_owned(),
                present: true,
                ..ArmEntry::default()
            });
        }
        table
    }

    /// Copy of the table in which the kernel has refused an arm.
    #[cfg(test)]
    pub fn with_refusal(mut self, name: &str, errno: i32) -> Self {
        let mut arms = self.slots.iter_mut().flatten();
        if let Some(arm) = arms.find(|arm| arm.name == name) {
            arm.refused_errno = errno;
        }
        self
    }

    /// Slots in use: number and entry.
    pub fn entries(&self) -> impl Iterator<Item = (usize, &ArmEntry)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(i, slot)| Some((i, slot.as_ref()?)))
    }

    /// Mask of the arms allowed for a connection. Classic uses its four whether the kernel has them
    /// or not, as published.
    pub fn allowed(&self, mode: Mode, ecn: bool) -> u16 {
        if mode == Mode::Classic {
            return 0xf;
        }
        self.entries()
            .filter(|(_, arm)| arm.present && arm.refused_errno == 0 && (ecn || !arm.needs_ecn))
            .fold(0, |mask, (index, _)| mask | 1 << index)
    }

    /// Reads the table that an agent has pinned.
    pub(crate) fn from_pinned(path: &Path) -> Result<Self> {
        let map = MapHandle::from_pinned_path(path)
            .with_context(|| format!("opening pinned map {}", path.display()))?;
        Self::read(&map)
    }

    fn read(map: &MapHandle) -> Result<Self> {
        let bytes = map
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?
            .context("empty arm table")?;
        let table =
            earlier::convert_arms(&bytes).context("the arm table has an unexpected size")?;
        let slots = std::array::from_fn(|index| {
            let arm = &table.arms[index];
            let name = arm_name(&arm.name);
            (!name.is_empty()).then_some(ArmEntry {
                name,
                present: arm.flags & raw::THALWEG_ARM_PRESENT != 0,
                needs_ecn: arm.flags & raw::THALWEG_ARM_NEEDS_ECN != 0,
                refused_errno: if arm.flags & raw::THALWEG_ARM_REFUSED != 0 {
                    arm.refused_errno
                } else {
                    0
                },
                refusals: arm.refused,
            })
        });
        Ok(Self { slots })
    }

    fn to_raw(&self, mode: Mode) -> Result<raw::thalweg_arms> {
        let mut table = raw::thalweg_arms {
            allowed: self.allowed(mode, false).into(),
            allowed_ecn: self.allowed(mode, true).into(),
            used: self
                .entries()
                .last()
                .map_or(0, |(index, _)| index as u32 + 1),
            ..raw::thalweg_arms::default()
        };
        for (index, arm) in self.entries() {
            let slot = &mut table.arms[index];
            slot.name = arm_name_bytes(&arm.name)
                .with_context(|| format!("{:?} is no name of a congestion control", arm.name))?;
            slot.refused_errno = arm.refused_errno;
            slot.refused = arm.refusals;
            for (set, flag) in [
                (arm.present, raw::THALWEG_ARM_PRESENT),
                (arm.needs_ecn, raw::THALWEG_ARM_NEEDS_ECN),
                (arm.refused_errno != 0, raw::THALWEG_ARM_REFUSED),
            ] {
                if set {
                    slot.flags |= flag;
                }
            }
        }
        Ok(table)
    }

    /// The table for `wanted` arms that keeps the numbers of `old`. An arm that appears (again)
    /// loses its refusal. A missing arm keeps its slot until the slot is needed; `spare` has slots
    /// for reuse, best first. Arms without a slot are left out.
    pub(super) fn layout(
        mode: Mode,
        old: &Self,
        wanted: &[ArmSpec],
        spare: &[usize],
    ) -> Result<Self> {
        if wanted.len() > MAX_ARMS {
            bail!("more than {MAX_ARMS} congestion controls; limit them with [arms] allow or deny");
        }
        let mut spare = spare.iter().copied();
        let mut table = old.clone();
        if mode == Mode::Classic {
            for (index, name) in CLASSIC_ARMS.iter().enumerate() {
                table.slots[index].get_or_insert_with(|| ArmEntry {
                    name: (*name).to_string(),
                    ..ArmEntry::default()
                });
            }
        }
        for (_, arm) in table
            .slots
            .iter_mut()
            .enumerate()
            .filter_map(|(i, s)| Some((i, s.as_mut()?)))
        {
            let spec = wanted.iter().find(|spec| spec.name == arm.name);
            // A refusal of a present arm is obsolete: the arm was removed and came back since the
            // last check.
            let was_gone = arm.refused_errno == -libc::ENOENT;
            if spec.is_some() && (!arm.present || was_gone) {
                arm.refused_errno = 0;
            }
            arm.present = spec.is_some();
            arm.needs_ecn = spec.is_some_and(|spec| spec.needs_ecn);
        }
        for spec in wanted {
            if table.index(&spec.name).is_some() {
                continue;
            }
            let Some(slot) = table.free_slot(mode).or_else(|| spare.next()) else {
                continue;
            };
            table.slots[slot] = Some(ArmEntry {
                name: spec.name.clone(),
                present: true,
                needs_ecn: spec.needs_ecn,
                ..ArmEntry::default()
            });
        }
        Ok(table)
    }

    /// Gives free slots to missing names, so that their records have a place until they appear.
    pub(super) fn remember(&mut self, mode: Mode, names: &[String]) {
        for name in names {
            if self.index(name).is_none()
                && let Some(slot) = self.free_slot(mode)
            {
                self.slots[slot] = Some(ArmEntry {
                    name: name.clone(),
                    ..ArmEntry::default()
                });
            }
        }
    }

    fn free_slot(&self, mode: Mode) -> Option<usize> {
        (first_slot(mode)..MAX_ARMS).find(|&index| self.slots[index].is_none())
    }

    /// Mask of the slots whose name differs from that in `old`.
    pub(super) fn renamed(&self, old: &Self) -> u16 {
        self.entries()
            .filter(|(index, arm)| old.name(*index) != Some(&arm.name))
            .fold(0, |mask, (index, _)| mask | 1 << index)
    }

    /// Slots of arms that are no longer wanted.
    fn gone(&self, mode: Mode, wanted: &[ArmSpec]) -> Vec<usize> {
        self.entries()
            .filter(|(index, arm)| {
                *index >= first_slot(mode) && wanted.iter().all(|spec| spec.name != arm.name)
            })
            .map(|(index, _)| index)
            .collect()
    }

    /// Clears all refusals, so that a new agent tries every arm again.
    pub(super) fn forgive(&mut self) {
        for arm in self.slots.iter_mut().flatten() {
            arm.refused_errno = 0;
        }
    }
}

/// Clears some arms of a record that nobody else writes.
pub(super) fn forget(host: &mut Host, arms: u16) {
    for (index, state) in host.arms.iter_mut().enumerate() {
        if arms >> index & 1 != 0 {
            *state = ArmState::default();
        }
    }
    host.harmful &= !arms;
    host.unsteady &= !arms;
}

/// Whether a record has any data on some arms.
fn knows(host: &Host, arms: u16) -> bool {
    let mut without = host.clone();
    forget(&mut without, arms);
    without != *host
}

/// Waits until all programs now running on any CPU have ended: they run under RCU.
fn wait_for_programs() {
    /// MEMBARRIER_CMD_GLOBAL: a grace period of RCU (linux/membarrier.h).
    const GLOBAL: libc::c_int = 1;
    // SAFETY: three numbers and no pointer. If the kernel refuses, a program that runs longer than
    // the following walk may be missed.
    let _ = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
}

impl Kernel {
    /// The arm table with current refusals.
    pub fn arms(&self) -> Result<ArmTable> {
        ArmTable::read(self.map(names::ARMS))
    }

    /// Writes the table of `start`; refusals of an earlier agent are cleared.
    pub(super) fn write_arms(&self) -> Result<()> {
        let mut table = self
            .arms
            .lock()
            .map_err(|_| anyhow::anyhow!("arm table lock poisoned"))?;
        table.forgive();
        self.put_arms(&table)
    }

    fn put_arms(&self, table: &ArmTable) -> Result<()> {
        self.write_table(table.to_raw(self.params().mode)?)
    }

    /// Writes a table with the present reverts and a heartbeat.
    fn write_table(&self, mut table: raw::thalweg_arms) -> Result<()> {
        table.reverted = self.reverted.load(Ordering::Relaxed);
        table.heartbeat_ns = system::monotonic_ns();
        self.map(names::ARMS)
            .update(&0u32.to_ne_bytes(), bytes_of(&table), MapFlags::ANY)?;
        Ok(())
    }

    /// Writes the agent's heartbeat. Without it the programs stop trials after [`super::SILENCE`].
    ///
    /// A refusal that a program notes at this very moment is lost; the next one is noted.
    pub fn heartbeat(&self) -> Result<()> {
        let bytes = self
            .map(names::ARMS)
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?
            .and_then(|bytes| from_bytes(&bytes))
            .context("the arm table has an unexpected size")?;
        self.write_table(bytes)
    }

    /// Reverts the arms of a mask: neither a decision nor the loss rule chooses them. Bit 31 stops
    /// trials. 0 ends all reverts. The mask outlives the agent.
    pub fn revert(&self, mask: u32) -> Result<()> {
        self.reverted.store(mask, Ordering::Relaxed);
        self.heartbeat()
    }

    /// Mask of the last [`Kernel::revert`].
    pub fn reverted(&self) -> u32 {
        self.reverted.load(Ordering::Relaxed)
    }

    /// Whether everything that the agent sets is reverted.
    pub fn is_taken_back(&self) -> bool {
        self.reverted() & raw::THALWEG_NO_TRIALS != 0
    }

    /// Mask of the slots that open connections or namespaces refer to.
    fn used_slots(&self) -> Result<u16> {
        let mut used: HashSet<usize> = self.defaults()?.into_values().flatten().collect();
        self.walk_conns(|conn| {
            let origin = &conn.origin;
            used.extend([origin.arm, origin.system_arm, origin.chosen_arm].map(usize::from));
        })?;
        let slots = used.into_iter().filter(|slot| *slot < MAX_ARMS);
        Ok(slots.fold(0, |mask, slot| mask | 1 << slot))
    }

    /// The slots among `gone` without references, those with the least evidence first.
    fn spare_slots(&self, gone: &[usize]) -> Result<Vec<usize>> {
        let used = self.used_slots()?;
        let mut scored = [0u64; MAX_ARMS];
        self.walk_records(|batch| {
            for (_, host) in batch.iter().filter(|(key, _)| !key.level.is_window()) {
                for (sum, arm) in scored.iter_mut().zip(&host.arms) {
                    *sum += u64::from(arm.scored);
                }
            }
            Ok(())
        })?;
        let mut spare = gone.to_vec();
        spare.retain(|slot| used >> slot & 1 == 0);
        spare.sort_by_key(|slot| scored[*slot]);
        Ok(spare)
    }

    /// Clears the records of slots that get another name. The old names are removed first, so that
    /// no further connection uses them, and connections that did meanwhile are seen.
    ///
    /// Returns the mask of slots that turned out to be in use; then nothing has changed.
    fn empty_slots(&self, current: &ArmTable, next: &ArmTable) -> Result<u16> {
        let renamed = next.renamed(current);
        if renamed == 0 {
            return Ok(0);
        }
        let mut between = current.clone();
        let (mut gone, mut had_names) = (Vec::new(), 0u16);
        for (index, slot) in between.slots.iter_mut().enumerate() {
            if renamed >> index & 1 != 0
                && let Some(arm) = slot.take()
            {
                gone.push(arm);
                had_names |= 1 << index;
            }
        }
        self.put_arms(&between)?;
        if !gone.is_empty() {
            wait_for_programs();
            let used = self.used_slots()? & had_names;
            if used != 0 {
                self.put_arms(current)?;
                return Ok(used);
            }
        }
        for arm in gone {
            tracing::info!(
                arm = arm.name,
                "gone for long: its place is given to another"
            );
        }
        self.forget_arms(renamed)?;
        Ok(0)
    }

    /// Clears some arms of all records, given by their mask. Programs may write at the same time.
    pub(super) fn forget_arms(&self, arms: u16) -> Result<()> {
        self.walk_records(|batch| {
            fail_point!("arms::emptying");
            for (key, host) in &batch {
                if !key.level.is_window() && knows(host, arms) {
                    self.forget_arms_of(key, arms)?;
                }
            }
            Ok(())
        })
    }

    /// Clears all arms of the records of a network and of its hosts: they were measured under other
    /// conditions.
    ///
    /// # Errors
    /// The kernel's.
    pub fn forget_network(&self, network: &HostKey) -> Result<()> {
        self.walk_records(|batch| {
            for (key, _) in &batch {
                if key.is_within(network) {
                    self.forget_arms_of(key, u16::MAX)?;
                }
            }
            Ok(())
        })
    }

    /// Updates the table to the kernel's present congestion controls; `forgive` clears refusals.
    /// Returns the names that appeared and those that disappeared.
    pub fn refresh_arms(
        &self,
        wanted: &[ArmSpec],
        forgive: bool,
    ) -> Result<(Vec<String>, Vec<String>)> {
        let current = self.arms()?;
        let mode = self.params().mode;
        let lacking = wanted
            .iter()
            .any(|spec| current.index(&spec.name).is_none())
            && current.free_slot(mode).is_none();
        let mut spare = if lacking {
            self.spare_slots(&current.gone(mode, wanted))?
        } else {
            Vec::new()
        };
        let next = loop {
            let mut next = ArmTable::layout(mode, &current, wanted, &spare)?;
            if forgive {
                next.forgive();
            }
            if next == current {
                return Ok((Vec::new(), Vec::new()));
            }
            fail_point!("arms::chosen");
            let used = self.empty_slots(&current, &next)?;
            if used == 0 {
                break next;
            }
            spare.retain(|slot| used >> slot & 1 == 0);
        };
        self.put_arms(&next)?;
        let present = |table: &ArmTable, name: &str| {
            table
                .entries()
                .any(|(_, arm)| arm.name == name && arm.present)
        };
        let differing = |from: &ArmTable, to: &ArmTable| {
            to.entries()
                .filter(|(_, arm)| arm.present && !present(from, &arm.name))
                .map(|(_, arm)| arm.name.clone())
                .collect()
        };
        Ok((differing(&current, &next), differing(&next, &current)))
    }
}

/// Text of a negative errno.
pub fn error_text(errno: i32) -> String {
    // ENOTSUPP, which is internal to the kernel.
    if errno == -524 {
        return "not supported (os error 524)".to_string();
    }
    std::io::Error::from_raw_os_error(-errno).to_string()
}

#[cfg(test)]
mod tests;
