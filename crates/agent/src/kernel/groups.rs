//! Groups of hosts in the kernel: their records, and the prior weight of wider records in narrower
//! ones.

use std::collections::HashMap;
use std::net::IpAddr;

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::{bytes_of, from_bytes, note_record, raw};
use thalweg_learner::{
    Host, HostKey, Level, MAX_ARMS, WORTH_OF_GROUP_Q16, WORTH_Q16, can_decide, fleet_worth_q16,
    window, worth_q16,
};

use super::{HostBatch, Kernel, Setup};

/// Levels that take over evidence of wider ones, with the widest one.
const NARROWER: [(Level, Level); 5] = [
    (Level::Prefix, Level::Namespace),
    (Level::Named, Level::Namespace),
    (Level::Service, Level::Namespace),
    (Level::WindowPrefix, Level::WindowNamespace),
    (Level::WindowService, Level::WindowNamespace),
];

impl Setup {
    /// Keys of an address's groups but its service, the widest last.
    pub fn groups_of(&self, netns: u64, address: IpAddr) -> impl Iterator<Item = HostKey> {
        let (v4, v6) = (self.networks.ipv4_prefix, self.networks.ipv6_prefix);
        let level = Level::Prefix;
        let prefix = HostKey::new(netns, address, v4, v6).map(|key| HostKey { level, ..key });
        let named = self.named.find(address);
        let named = named.map(|number| HostKey::of_named(netns, number));
        let all = HostKey::of_namespace(netns);
        prefix.into_iter().chain(named).chain([all])
    }
}

impl Kernel {
    /// Records of all groups.
    pub fn groups(&self) -> Result<HostBatch> {
        match self.setup().has_groups() {
            true => self.records_of(|level| level.is_group() && !level.is_window()),
            false => Ok(HostBatch::new()),
        }
    }

    /// Records of the agent's own groups, and the number of the fleet's records.
    pub fn own_groups(&self) -> Result<(HostBatch, usize)> {
        if !self.setup().has_groups() {
            return Ok((HostBatch::new(), 0));
        }
        let mut of_fleet = 0;
        let own = self.records_of(|level| {
            of_fleet += usize::from(level.is_fleet());
            level.is_group() && !level.is_window() && !level.is_fleet()
        })?;
        Ok((own, of_fleet))
    }

    /// Records of the wanted levels.
    pub fn records_of(&self, mut wanted: impl FnMut(Level) -> bool) -> Result<HostBatch> {
        let mut records = Vec::new();
        self.walk_records(|batch| {
            records.extend(batch.into_iter().filter(|(key, _)| wanted(key.level)));
            Ok(())
        })?;
        Ok(records)
    }

    /// Writes the prior weights that hold before the spread is known.
    pub(super) fn write_first_worth(&self) -> Result<()> {
        self.write_worth(&[], raw::thalweg_worths::default())
    }

    /// Writes the prior weights of known levels, and first values for the others. `value` has the
    /// masks of the records that exist.
    fn write_worth(
        &self,
        known: &[(Level, [u32; MAX_ARMS])],
        mut value: raw::thalweg_worths,
    ) -> Result<()> {
        let first = Level::ALL.map(|level| match level {
            Level::Host => (level, WORTH_OF_GROUP_Q16),
            _ => (level, WORTH_Q16),
        });
        for (level, arms_q16) in first.iter().chain(known) {
            value.levels[*level as usize].arms_q16 = *arms_q16;
        }
        self.map(names::WORTH)
            .update(&0u32.to_ne_bytes(), bytes_of(&value), MapFlags::ANY)?;
        Ok(())
    }

    /// Recomputes the prior weights from the spread of the groups around their namespace. The
    /// namespace with most groups counts.
    pub fn refresh_worth(&self) -> Result<()> {
        let (has_groups, windows) = (self.setup().has_groups(), self.setup().windows);
        if !has_groups && windows == 0 {
            return Ok(());
        }
        let before = self.worths()?;
        let groups = self.records_of(Level::is_group)?;
        let defaults = self.defaults()?;
        let mut by_namespace: HashMap<u64, Vec<(Level, &Host)>> = HashMap::new();
        for (key, group) in &groups {
            let of_namespace = by_namespace.entry(key.netns).or_default();
            of_namespace.push((key.level, group));
        }
        let mut known = Vec::new();
        for (level, widest) in NARROWER {
            let of_level = |groups: &[(Level, &Host)]| {
                groups.iter().filter(|(other, _)| *other == level).count()
            };
            let most = by_namespace
                .iter()
                .max_by_key(|(netns, groups)| (of_level(groups), **netns));
            let Some((netns, groups)) = most else {
                continue;
            };
            let wide = groups.iter().find(|(level, _)| *level == widest);
            let system = match widest.is_window() {
                true => Some(window::OWN),
                false => defaults.get(netns).copied().flatten(),
            };
            let (Some((_, wide)), Some(system)) = (wide, system) else {
                continue;
            };
            let narrow = groups.iter().filter(|(other, _)| *other == level);
            let narrow = narrow.map(|(_, group)| *group);
            known.push((level, worth_q16(narrow, wide, system)));
        }
        if self.setup().has_fleet() {
            known.extend(fleet_worth(&groups, &defaults));
        }
        let mut masks = raw::thalweg_worths::default();
        for (key, group) in &groups {
            note_record(&mut masks, key);
            let namespace = 1 << (key.netns % 64);
            let system = defaults.get(&key.netns).copied().flatten();
            let may_know = key.level == Level::Namespace || key.level.is_fleet();
            if may_know && can_decide(group, system) {
                masks.known |= namespace;
            }
            if key.level.is_window() && can_decide(group, Some(window::OWN)) {
                masks.known_windows |= namespace;
            }
        }
        // Programs may have noted records since they were read.
        let now = self.worths()?;
        let noted = now.groups.iter().zip(&before.groups);
        for (word, (now, before)) in masks.groups.iter_mut().zip(noted) {
            *word |= now & !before;
        }
        self.write_worth(&known, masks)
    }

    /// Prior weights of wider records, and masks of the records that exist.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn worths(&self) -> Result<raw::thalweg_worths> {
        let value = self
            .map(names::WORTH)
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        let value = value.and_then(|bytes| from_bytes(&bytes));
        value.context("the map `worth` has another form")
    }
}

/// Prior weights of the fleet's levels, from the distance of own records to the fleet's. The
/// namespace with most pairs of both counts.
fn fleet_worth(
    groups: &[(HostKey, Host)],
    defaults: &HashMap<u64, Option<usize>>,
) -> Vec<(Level, [u32; MAX_ARMS])> {
    let records: HashMap<&HostKey, &Host> = groups.iter().map(|(key, host)| (key, host)).collect();
    let of_level = |fleet: Level| {
        let mut pairs: HashMap<u64, Vec<(&Host, &Host)>> = HashMap::new();
        for (key, told) in groups.iter().filter(|(key, _)| key.level == fleet) {
            let level = fleet.own_level();
            if let Some(own) = records.get(&HostKey { level, ..*key }) {
                pairs.entry(key.netns).or_default().push((own, told));
            }
        }
        let (netns, pairs) = pairs
            .into_iter()
            .max_by_key(|(netns, all)| (all.len(), *netns))?;
        let typical = records.get(&HostKey::of_namespace(netns))?;
        let system = defaults.get(&netns).copied().flatten()?;
        Some((fleet, fleet_worth_q16(pairs.into_iter(), typical, system)))
    };
    let levels = Level::SHARED.into_iter().filter_map(Level::fleet_level);
    levels.filter_map(of_level).collect()
}
