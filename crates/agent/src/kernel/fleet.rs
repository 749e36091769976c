//! Levels of the fleet in the kernel: records one level wider than the agent's own.
//!
//! Programs take over from them as from any wider record, and never score into them: only the agent
//! writes them. They are neither stored nor reported: see
//! [`own_report`](thalweg_learner::fleet::own_report).

use anyhow::Result;
use thalweg_learner::fleet::remove_fleet_evidence;
use thalweg_learner::{Host, HostKey, Level};

use super::{GROUPS_MAX, HostBatch, Kernel, Setup};

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
    pub fn fleet_max(&self) -> u32 {
        match self.has_fleet() {
            true => (self.hosts_max / 8).min(GROUPS_MAX),
            false => 0,
        }
    }
}

impl Kernel {
    /// Keys of the fleet's records.
    ///
    /// # Errors
    /// The table cannot be read.
    pub fn fleet_keys(&self) -> Result<Vec<HostKey>> {
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
