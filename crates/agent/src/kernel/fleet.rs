//! Records of the fleet in the kernel: aggregated reports of other agents, one level wider than the
//! agent's own records.
//!
//! Programs take over from them as from any wider record, and never score into them: only the agent
//! writes them. They are neither stored nor reported: see
//! [`own_report`](thalweg_learner::fleet::own_report).

use std::collections::{BTreeMap, HashSet};

use anyhow::Result;
use libbpf_rs::{MapCore, MapFlags};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::{bytes_of, note_record};
use thalweg_control::system;
use thalweg_learner::fleet::{Prior, age_record, fleet_record, remove_fleet_evidence};
use thalweg_learner::{Host, HostKey, Level, MAX_ARMS, WORTH_Q16, adopt_wider};

use super::{GROUPS_MAX, HostBatch, Kernel, Setup};

/// Counts of the fleet's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetNetworks {
    /// Records that were written.
    pub written: usize,
    /// Records that were removed, as no agent reports their network any more.
    pub removed: usize,
    /// Records that were left out: the table has no room, or the agent has no such network.
    pub left_out: usize,
}

impl Setup {
    /// Whether the programs have records of the fleet.
    pub fn has_fleet(&self) -> bool {
        self.fleet && self.has_groups()
    }

    /// `has_fleet` of the programs.
    pub(super) fn fleet_flag(&self) -> [u8; 4] {
        u32::from(self.has_fleet()).to_ne_bytes()
    }

    /// Most records of the fleet.
    pub(super) fn fleet_max(&self) -> u32 {
        match self.has_fleet() {
            true => (self.hosts_max / 8).min(GROUPS_MAX),
            false => 0,
        }
    }
}

impl Kernel {
    /// Replaces the fleet's records of each namespace; they decide from the next connection on.
    /// Keys are those of the agent's own records, the most important first, as the table may not
    /// have room for all; namespaces share it. Records of other namespaces are removed.
    ///
    /// Evidence ages, so this must be called again with newly aggregated priors, also without new
    /// reports.
    ///
    /// # Errors
    /// A map that cannot be read or written. Records written before stay.
    pub fn set_fleet(&self, told: &BTreeMap<u64, Vec<(HostKey, &Prior)>>) -> Result<FleetNetworks> {
        let mut done = FleetNetworks::default();
        let (defaults, worths) = (self.defaults()?, self.worths()?);
        let worth = |level: Level| match worths.levels.get(level as usize) {
            Some(worth) => worth.arms_q16,
            None => WORTH_Q16,
        };
        let mut wanted = HashSet::new();
        let most = (self.setup().fleet_max() as usize / told.len().max(1)).max(1);
        for (netns, networks) in told {
            // Without the system's arm nothing can be compared.
            let Some(system_arm) = defaults.get(netns).copied().flatten() else {
                done.left_out += networks.len();
                continue;
            };
            let mut keys = Vec::new();
            for (key, prior) in networks {
                match key.level.fleet_level() {
                    Some(level) if key.netns == *netns && keys.len() < most => {
                        let key = HostKey { level, ..*key };
                        self.write_fleet(&key, prior, system_arm, &worth)?;
                        keys.push(key);
                    }
                    _ => done.left_out += 1,
                }
            }
            done.written += keys.len();
            self.note_fleet(&keys)?;
            wanted.extend(keys);
        }
        for key in self.fleet_keys()? {
            if !wanted.contains(&key) && self.remove_host(&key)? {
                done.removed += 1;
            }
        }
        Ok(done)
    }

    /// Ages the fleet's records of an earlier session until this one receives reports. Empty
    /// records are removed. The remaining ones count as written.
    ///
    /// # Errors
    /// A map that cannot be read or written.
    pub fn age_fleet(&self) -> Result<FleetNetworks> {
        let mut done = FleetNetworks::default();
        let (defaults, now_ns) = (self.defaults()?, system::monotonic_ns());
        for key in self.fleet_keys()? {
            let Some(before) = self.host(&key)? else {
                continue;
            };
            let mut record = before.clone();
            let system_arm = defaults.get(&key.netns).copied().flatten();
            let stays = system_arm
                .is_some_and(|system| age_record(&mut record, system, self.params(), now_ns));
            match stays {
                true if record == before => done.written += 1,
                true => {
                    self.insert_host(&key, &record)?;
                    done.written += 1;
                }
                false => done.removed += usize::from(self.remove_host(&key)?),
            }
        }
        Ok(done)
    }

    /// Writes one record with the evidence of wider records, and the counts of the old one.
    fn write_fleet(
        &self,
        key: &HostKey,
        prior: &Prior,
        system_arm: usize,
        worth: &impl Fn(Level) -> [u32; MAX_ARMS],
    ) -> Result<()> {
        let now_ns = system::monotonic_ns();
        let params = self.params();
        let mut told = fleet_record(
            key.level,
            prior,
            system_arm,
            &worth(key.level),
            params,
            now_ns,
        );
        if let Some(before) = self.host(key)? {
            told.connections = before.connections;
            told.switched = before.switched;
            for (arm, before) in told.arms.iter_mut().zip(&before.arms) {
                (arm.chosen, arm.greedy) = (before.chosen, before.greedy);
            }
        }
        // A wider record without enough evidence is not taken over.
        if let Some(wider) = self.host(&HostKey::of_namespace(key.netns))? {
            adopt_wider(
                &mut told,
                &wider,
                Some(system_arm),
                &worth(key.level.own_level()),
            );
        }
        self.insert_host(key, &told)
    }

    /// Tells the programs that these records exist and may know enough.
    fn note_fleet(&self, keys: &[HostKey]) -> Result<()> {
        let mut worths = self.worths()?;
        for key in keys {
            note_record(&mut worths, key);
            worths.known |= 1 << (key.netns % 64);
        }
        // A bit that a program sets meanwhile is lost until its next measurement.
        let map = self.map(names::WORTH);
        Ok(map.update(&0u32.to_ne_bytes(), bytes_of(&worths), MapFlags::ANY)?)
    }

    fn fleet_keys(&self) -> Result<Vec<HostKey>> {
        let mut keys = Vec::new();
        self.walk_records(|batch| {
            let told = batch.iter().map(|(key, _)| *key);
            keys.extend(told.filter(|key| key.level.is_fleet()));
            Ok(())
        })?;
        Ok(keys)
    }

    /// Resets the fleet's records to their own part, without the evidence of the agent's records.
    pub(super) fn keep_fleet(&self) -> Result<()> {
        for key in self.fleet_keys()? {
            if let Some(mut record) = self.host(&key)? {
                for arm in &mut record.arms {
                    (arm.value, arm.weight_q16) = (arm.own_q16.into(), arm.own_weight_q16);
                }
                self.insert_host(&key, &record)?;
            }
        }
        Ok(())
    }

    /// Removes the fleet's records of networks that this agent divides otherwise, or all if it is
    /// in no fleet, from the table and from the waiting records. Without a fleet the agent's own
    /// records lose the evidence that they took over.
    pub(super) fn drop_fleet_unless_wanted(&self, waiting: &mut HostBatch) -> Result<()> {
        waiting.retain(|(key, _)| !key.level.is_fleet() || self.wants_fleet(key));
        let mut gone = Vec::new();
        let mut changed = HostBatch::new();
        self.walk_records(|batch| {
            for (key, mut record) in batch {
                if key.level.is_fleet() {
                    gone.extend((!self.wants_fleet(&key)).then_some(key));
                } else if self.leave_fleet(&key, &mut record)? {
                    changed.push((key, record));
                }
            }
            Ok(())
        })?;
        for key in gone {
            self.remove_host(&key)?;
        }
        // A measurement between read and write is lost.
        for (key, record) in changed {
            self.insert_host(&key, &record)?;
        }
        for (key, record) in waiting {
            self.leave_fleet(key, record)?;
        }
        Ok(())
    }

    /// Removes the fleet's evidence from an own record if the agent is in no fleet. Returns whether
    /// there was any.
    ///
    /// # Errors
    /// The defaults cannot be read.
    pub fn leave_fleet(&self, key: &HostKey, record: &mut Host) -> Result<bool> {
        if self.setup().has_fleet() || record.step == 0 {
            return Ok(false);
        }
        let system_arm = self.defaults()?.get(&key.netns).copied().flatten();
        Ok(remove_fleet_evidence(record, system_arm, self.params()))
    }

    /// Whether programs read a record of the fleet.
    fn wants_fleet(&self, key: &HostKey) -> bool {
        let networks = &self.setup().networks;
        let length = match key.address().is_ipv4() {
            true => networks.ipv4_prefix,
            false => networks.ipv6_prefix,
        };
        let is_asked = key.level != Level::FleetPrefix || key.own_prefix() == length;
        self.setup().has_fleet() && is_asked
    }
}
