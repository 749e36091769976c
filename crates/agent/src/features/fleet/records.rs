//! Records of the fleet in the kernel: aggregated reports of other agents.

use std::collections::{BTreeMap, HashSet};

use anyhow::Result;
use libbpf_rs::{MapCore, MapFlags};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_types::{bytes_of, note_record};
use thalweg_control::system;
use thalweg_learner::fleet::{Prior, age_record, fleet_record};
use thalweg_learner::{HostKey, Level, MAX_ARMS, WORTH_Q16, adopt_wider};

use crate::kernel::Kernel;

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

/// Replaces the fleet's records of each namespace; they decide from the next connection on.
/// Keys are those of the agent's own records, the most important first, as the table may not
/// have room for all; namespaces share it. Records of other namespaces are removed.
///
/// Evidence ages, so this must be called again with newly aggregated priors, also without new
/// reports.
///
/// # Errors
/// A map that cannot be read or written. Records written before stay.
pub fn set_fleet(
    kernel: &Kernel,
    told: &BTreeMap<u64, Vec<(HostKey, &Prior)>>,
) -> Result<FleetNetworks> {
    let mut done = FleetNetworks::default();
    let (defaults, worths) = (kernel.defaults()?, kernel.worths()?);
    let worth = |level: Level| match worths.levels.get(level as usize) {
        Some(worth) => worth.arms_q16,
        None => WORTH_Q16,
    };
    let mut wanted = HashSet::new();
    let most = (kernel.setup().fleet_max() as usize / told.len().max(1)).max(1);
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
                    write_fleet(kernel, &key, prior, system_arm, &worth)?;
                    keys.push(key);
                }
                _ => done.left_out += 1,
            }
        }
        done.written += keys.len();
        note_fleet(kernel, &keys)?;
        wanted.extend(keys);
    }
    for key in kernel.fleet_keys()? {
        if !wanted.contains(&key) && kernel.remove_host(&key)? {
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
pub fn age_fleet(kernel: &Kernel) -> Result<FleetNetworks> {
    let mut done = FleetNetworks::default();
    let (defaults, now_ns) = (kernel.defaults()?, system::monotonic_ns());
    for key in kernel.fleet_keys()? {
        let Some(before) = kernel.host(&key)? else {
            continue;
        };
        let mut record = before.clone();
        let system_arm = defaults.get(&key.netns).copied().flatten();
        let stays = system_arm
            .is_some_and(|system| age_record(&mut record, system, kernel.params(), now_ns));
        match stays {
            true if record == before => done.written += 1,
            true => {
                kernel.insert_host(&key, &record)?;
                done.written += 1;
            }
            false => done.removed += usize::from(kernel.remove_host(&key)?),
        }
    }
    Ok(done)
}

/// Writes one record with the evidence of wider records, and the counts of the old one.
fn write_fleet(
    kernel: &Kernel,
    key: &HostKey,
    prior: &Prior,
    system_arm: usize,
    worth: &impl Fn(Level) -> [u32; MAX_ARMS],
) -> Result<()> {
    let now_ns = system::monotonic_ns();
    let params = kernel.params();
    let mut told = fleet_record(
        key.level,
        prior,
        system_arm,
        &worth(key.level),
        params,
        now_ns,
    );
    if let Some(before) = kernel.host(key)? {
        told.connections = before.connections;
        told.switched = before.switched;
        for (arm, before) in told.arms.iter_mut().zip(&before.arms) {
            (arm.chosen, arm.greedy) = (before.chosen, before.greedy);
        }
    }
    // A wider record without enough evidence is not taken over.
    if let Some(wider) = kernel.host(&HostKey::of_namespace(key.netns))? {
        adopt_wider(
            &mut told,
            &wider,
            Some(system_arm),
            &worth(key.level.own_level()),
        );
    }
    kernel.insert_host(key, &told)
}

/// Tells the programs that these records exist and may know enough.
fn note_fleet(kernel: &Kernel, keys: &[HostKey]) -> Result<()> {
    let mut worths = kernel.worths()?;
    for key in keys {
        note_record(&mut worths, key);
        worths.known |= 1 << (key.netns % 64);
    }
    // A bit that a program sets meanwhile is lost until its next measurement.
    let map = kernel.map(names::WORTH);
    Ok(map.update(&0u32.to_ne_bytes(), bytes_of(&worths), MapFlags::ANY)?)
}
