//! What other agents told of networks, in the kernel: records beside the agent's own, one level wider.
//!
//! Programs take over from them as from any wider record, and never score into them. So the agent alone
//! writes them. They are never stored, and nothing of them is ever told again: see
//! [`own_report`](thalweg_learner::fleet::own_report).

use std::collections::HashSet;

use anyhow::Result;
use libbpf_rs::{MapCore, MapFlags};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::{bytes_of, note_record};
use thalweg_control::system;
use thalweg_learner::fleet::{Prior, record};
use thalweg_learner::{HostKey, Level, WORTH_Q16, adopt};

use super::{GROUPS_MAX, HostBatch, Kernel, Setup};

/// Number of records of the fleet in a network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetNetworks {
    /// Written.
    pub written: usize,
    /// Removed, as nothing is told of them any more.
    pub removed: usize,
    /// Left out: the table has no room for them, or they are of no network.
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
    /// Puts what other agents told of the networks of a namespace in force, in place of what they told
    /// before: the next connection is decided by it. `networks` have the keys of the agent's own records,
    /// the most important first, as the table may not have room for all; an empty slice removes all.
    ///
    /// Must be called again as time passes, with priors that are aggregated anew, also if nobody tells
    /// anything: evidence ages.
    ///
    /// # Errors
    /// A map that cannot be read or written. Records written before stay.
    pub fn set_fleet(&self, netns: u64, networks: &[(HostKey, Prior)]) -> Result<FleetNetworks> {
        let mut done = FleetNetworks::default();
        let system_arm = self.defaults()?.get(&netns).copied().flatten();
        let mut wanted = Vec::new();
        if let Some(system_arm) = system_arm.filter(|_| self.setup().has_fleet()) {
            let most = self.setup().fleet_max() as usize;
            for (key, prior) in networks {
                match key.level.fleet() {
                    Some(level) if key.netns == netns && wanted.len() < most => {
                        wanted.push((HostKey { level, ..*key }, prior));
                    }
                    _ => done.left_out += 1,
                }
            }
            for (key, prior) in &wanted {
                self.write_fleet(key, prior, system_arm)?;
                done.written += 1;
            }
            let keys: Vec<HostKey> = wanted.iter().map(|(key, _)| *key).collect();
            self.note_fleet(&keys)?;
        }
        let wanted: HashSet<HostKey> = wanted.into_iter().map(|(key, _)| key).collect();
        for key in self.fleet_keys(netns)? {
            if !wanted.contains(&key) && self.remove_host(&key)? {
                done.removed += 1;
            }
        }
        Ok(done)
    }

    /// Writes one record, with what wider records know, and the counts of the one that was there.
    fn write_fleet(&self, key: &HostKey, prior: &Prior, system_arm: usize) -> Result<()> {
        let worths = self.worths()?;
        let worth = |level: Level| match worths.levels.get(level as usize) {
            Some(worth) => worth.arms_q16,
            None => WORTH_Q16,
        };
        let now_ns = system::monotonic_ns();
        let params = self.params();
        let mut told = record(
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
        // A wider record that does not know is not taken over.
        if let Some(wider) = self.host(&HostKey::of_namespace(key.netns))? {
            adopt(&mut told, &wider, Some(system_arm), &worth(key.level.own()));
        }
        self.insert_host(key, &told)
    }

    /// Notes where programs look that these records are there, and may know.
    fn note_fleet(&self, keys: &[HostKey]) -> Result<()> {
        let mut worths = self.worths()?;
        for key in keys {
            note_record(&mut worths, key);
            worths.known |= 1 << (key.netns % 64);
        }
        // A bit that a program sets meanwhile is set again by the next measurement.
        let map = self.map(names::WORTH);
        Ok(map.update(&0u32.to_ne_bytes(), bytes_of(&worths), MapFlags::ANY)?)
    }

    fn fleet_keys(&self, netns: u64) -> Result<Vec<HostKey>> {
        let mut keys = Vec::new();
        self.walk_records(|batch| {
            let told = batch.iter().map(|(key, _)| *key);
            keys.extend(told.filter(|key| key.level.is_fleet() && key.netns == netns));
            Ok(())
        })?;
        Ok(keys)
    }

    /// Removes what an earlier agent left of a fleet, if this one has none: from the table, and from the
    /// records that wait for it.
    pub(super) fn drop_fleet_unless_wanted(&self, waiting: &mut HostBatch) -> Result<()> {
        if self.setup().has_fleet() {
            return Ok(());
        }
        waiting.retain(|(key, _)| !key.level.is_fleet());
        let mut keys = Vec::new();
        self.walk_records(|batch| {
            let told = batch.iter().map(|(key, _)| *key);
            keys.extend(told.filter(|key| key.level.is_fleet()));
            Ok(())
        })?;
        for key in keys {
            self.remove_host(&key)?;
        }
        Ok(())
    }
}
