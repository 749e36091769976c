//! Conversions between the structs of the header and the types of `thalweg-learner`.

use thalweg_learner::{ArmState, Host, HostKey, Level};

use crate::raw;

/// A key as the kernel stores it.
pub fn key_to_raw(key: &HostKey) -> raw::thalweg_host_key {
    raw::thalweg_host_key {
        netns: key.netns,
        addr: key.addr,
        prefix_len: key.prefix_len,
        level: key.level as u32,
    }
}

/// Notes that the group of a key has a record, where `group_word` and `group_bit` of `learn_group.h`
/// look for it.
pub fn note_record(worths: &mut raw::thalweg_worths, key: &HostKey) {
    let bit = (key.tag() >> 16) as usize % raw::THALWEG_GROUP_BITS as usize;
    worths.groups[bit / 64] |= 1 << (bit % 64);
}

/// A key from the kernel's form.
pub fn key_from_raw(key: &raw::thalweg_host_key) -> HostKey {
    HostKey {
        netns: key.netns,
        addr: key.addr,
        prefix_len: key.prefix_len.min(128),
        level: Level::from_number(key.level).unwrap_or_default(),
    }
}

fn arm_from_raw(
    level: Level,
    arm: &raw::thalweg_arm_state,
    statistics: &raw::thalweg_arm_statistics,
) -> ArmState {
    // A group's own estimates are where a host has what they have no use for.
    let (high, low) = (statistics.value_high, statistics.min_rtt_us);
    let (high, min_rtt_us, own_q16, own_weight_q16) = match level.is_group() {
        true => (0, 0, high, low),
        false => (high, low, 0, 0),
    };
    ArmState {
        value: u64::from(high) << 32 | u64::from(arm.value),
        own_q16,
        own_weight_q16,
        max_rate: statistics.max_rate,
        weight_q16: arm.weight_q16,
        deviation_q16: statistics.deviation_q16,
        log_rate_q16: statistics.log_rate_q16,
        srtt_us: statistics.srtt_us,
        min_rtt_us,
        chosen: arm.chosen,
        greedy: arm.chosen.saturating_sub(statistics.other),
        scored: statistics.scored,
        segs: statistics.segs,
        retrans: statistics.retrans,
        caution_q16: arm.caution_q16,
        counted: statistics.counted,
        slow: statistics.slow,
    }
}

fn arm_to_raw(arm: &ArmState) -> raw::thalweg_arm_state {
    raw::thalweg_arm_state {
        // The upper half is among the statistics.
        value: arm.value as u32,
        weight_q16: arm.weight_q16,
        chosen: arm.chosen,
        caution_q16: arm.caution_q16,
    }
}

fn statistics_to_raw(level: Level, arm: &ArmState) -> raw::thalweg_arm_statistics {
    let (value_high, min_rtt_us) = match level.is_group() {
        true => (arm.own_q16, arm.own_weight_q16),
        false => ((arm.value >> 32) as u32, arm.min_rtt_us),
    };
    raw::thalweg_arm_statistics {
        max_rate: arm.max_rate,
        value_high,
        deviation_q16: arm.deviation_q16,
        log_rate_q16: arm.log_rate_q16,
        srtt_us: arm.srtt_us,
        min_rtt_us,
        other: arm.chosen.saturating_sub(arm.greedy),
        scored: arm.scored,
        segs: arm.segs,
        retrans: arm.retrans,
        counted: arm.counted,
        slow: arm.slow,
    }
}

/// The highest index of an arm with any measurement, plus 1.
fn used_arms(host: &Host) -> u16 {
    let measured = |arm: &ArmState| arm.scored > 0 || arm.weight_q16 > 0 || arm.segs > 0;
    let last = host.arms.iter().rposition(measured);
    last.map_or(0, |index| index as u16 + 1)
}

/// Validity of a record's copy; programs may have changed the record meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// The copy is whole.
    Whole,
    /// A program was writing the record.
    Written,
    /// The map has recycled the record for another host: this host has none any more.
    Recycled,
}

/// Validity of a copy of the record under `key`.
pub fn check_copy(key: &HostKey, host: &raw::thalweg_host) -> CopyState {
    // The lower half of the tag, as it is stored.
    if host.tag != key.tag() || host.tag_tail != host.tag as u32 {
        CopyState::Recycled
    } else if host.seq_head != host.seq_tail {
        CopyState::Written
    } else {
        CopyState::Whole
    }
}

/// A record from the kernel's form.
pub fn host_from_raw(host: &raw::thalweg_host) -> Host {
    let level = Level::from_number(host.level).unwrap_or_default();
    Host {
        level,
        usual_q16: host.usual_q16,
        usual_log_rate_q16: host.usual_log_rate_q16,
        step: host.step,
        step_scored: host.step_scored,
        connections: host.connections,
        scored: host.scored,
        switched: host.switched,
        harmful: host.harmful,
        unsteady: host.unsteady,
        credit_q16: host.credit_q16,
        queue_q16: host.queue_q16,
        base_rtt_us: host.base_rtt_us,
        last_base_rtt_us: host.last_base_rtt_us,
        trials: host.trials.into(),
        trial_ns: host.trial_ns,
        min_rtt_us: host.min_rtt_us,
        max_rate: host.max_rate,
        seen_ns: host.seen_ns,
        forgot_ns: host.forgot_ns,
        arms: std::array::from_fn(|i| arm_from_raw(level, &host.arms[i], &host.statistics[i])),
    }
}

/// A record as the kernel stores it under `key`.
pub fn host_to_raw(key: &HostKey, host: &Host) -> raw::thalweg_host {
    let tag = key.tag();
    raw::thalweg_host {
        tag,
        tag_tail: tag as u32,
        level: host.level as u32,
        usual_q16: host.usual_q16,
        usual_log_rate_q16: host.usual_log_rate_q16,
        step: host.step,
        step_scored: host.step_scored,
        connections: host.connections,
        scored: host.scored,
        switched: host.switched,
        harmful: host.harmful,
        unsteady: host.unsteady,
        used: used_arms(host),
        credit_q16: host.credit_q16,
        queue_q16: host.queue_q16,
        base_rtt_us: host.base_rtt_us,
        last_base_rtt_us: host.last_base_rtt_us,
        trials: host.trials.min(u16::MAX.into()) as u16,
        trial_ns: host.trial_ns,
        min_rtt_us: host.min_rtt_us,
        max_rate: host.max_rate,
        seen_ns: host.seen_ns,
        forgot_ns: host.forgot_ns,
        arms: std::array::from_fn(|i| arm_to_raw(&host.arms[i])),
        statistics: std::array::from_fn(|i| statistics_to_raw(host.level, &host.arms[i])),
        ..Default::default()
    }
}

/// The name of an arm from its NUL-padded bytes.
pub fn arm_name(bytes: &[std::ffi::c_char; raw::THALWEG_CC_NAME as usize]) -> String {
    bytes
        .iter()
        .take_while(|&&c| c != 0)
        .map(|&c| c as u8 as char)
        .collect()
}

/// NUL-padded bytes of a name; `None` if it is too long or not plain ASCII.
pub fn arm_name_bytes(name: &str) -> Option<[std::ffi::c_char; raw::THALWEG_CC_NAME as usize]> {
    let mut bytes = [0; raw::THALWEG_CC_NAME as usize];
    if name.is_empty() || name.len() >= bytes.len() || !name.is_ascii() {
        return None;
    }
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from as std::ffi::c_char;
    }
    Some(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_noted_where_the_program_looks_for_it() {
        let group = HostKey::new(7, "192.0.2.0".parse().unwrap(), 24, 64).unwrap();
        let level = Level::Prefix;
        let key = HostKey { level, ..group };
        let mut worths = raw::thalweg_worths::default();
        note_record(&mut worths, &key);
        // group_word() and group_bit().
        let word = worths.groups[(key.tag() >> 22 & 1023) as usize];
        assert_eq!(word, 1 << (key.tag() >> 16 & 63));
        let noted: u32 = worths.groups.iter().map(|word| word.count_ones()).sum();
        assert_eq!(noted, 1);
    }
}
