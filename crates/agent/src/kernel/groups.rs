//! Groups of hosts in the kernel: their records, and what wider knowledge is worth to narrower
//! records.

use std::collections::HashMap;

use anyhow::Result;
use libbpf_rs::{MapCore, MapFlags};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::{bytes_of, raw};
use thalweg_learner::{Host, Level, MAX_ARMS, WORTH_OF_GROUP_Q16, WORTH_Q16, knows, worth_q16};

use super::{HostBatch, Kernel};

impl Kernel {
    /// The records of all groups.
    pub fn groups(&self) -> Result<HostBatch> {
        let mut groups = Vec::new();
        if !self.setup().has_groups() {
            return Ok(groups);
        }
        self.walk_records(|batch| {
            let only = batch.into_iter().filter(|(key, _)| key.level.is_group());
            groups.extend(only);
            Ok(())
        })?;
        Ok(groups)
    }

    /// Writes the worth of wider knowledge before anything is known of the spread.
    pub(super) fn write_first_worth(&self) -> Result<()> {
        self.write_worth(&[], 0)
    }

    /// Writes the worth to records of these levels; to others that before anything is known. `namespaces`
    /// is a mask, by their cookies modulo 64, of those that decide.
    fn write_worth(&self, known: &[(Level, [u32; MAX_ARMS])], namespaces: u64) -> Result<()> {
        let mut value = raw::thalweg_worths {
            known: namespaces,
            ..Default::default()
        };
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

    /// Takes the worth of wider knowledge anew, from the spread of the groups around their
    /// namespace. Of several namespaces the one with most groups tells.
    pub fn refresh_worth(&self) -> Result<()> {
        let groups = self.groups()?;
        let defaults = self.defaults()?;
        let mut by_namespace: HashMap<u64, Vec<(Level, &Host)>> = HashMap::new();
        for (key, group) in &groups {
            let of_namespace = by_namespace.entry(key.netns).or_default();
            of_namespace.push((key.level, group));
        }
        let mut known = Vec::new();
        for level in [Level::Prefix, Level::Named, Level::Service] {
            let of_level = |groups: &[(Level, &Host)]| {
                groups.iter().filter(|(other, _)| *other == level).count()
            };
            let most = by_namespace
                .iter()
                .max_by_key(|(netns, groups)| (of_level(groups), **netns));
            let Some((netns, groups)) = most else {
                continue;
            };
            let wide = groups.iter().find(|(level, _)| *level == Level::Namespace);
            let (Some((_, wide)), Some(system)) = (wide, defaults.get(netns).copied().flatten())
            else {
                continue;
            };
            let narrow = groups.iter().filter(|(other, _)| *other == level);
            let narrow = narrow.map(|(_, group)| *group);
            known.push((level, worth_q16(narrow, wide, system)));
        }
        let decide = groups.iter().filter(|(key, group)| {
            let system = defaults.get(&key.netns).copied().flatten();
            key.level == Level::Namespace && knows(group, system)
        });
        let namespaces = decide.fold(0, |mask, (key, _)| mask | 1 << (key.netns % 64));
        self.write_worth(&known, namespaces)
    }
}
