//! Host records as stored: arms by name, times as ages.

use std::net::IpAddr;

use thalweg_learner::{ArmState, Host, HostKey, Level, MAX_ARMS, Mode, Params, window};
use thalweg_units::grammar::is_congestion_control;

/// Most evidence that any configuration allows, Q16: `learning.memory` is at most 64, and three times
/// as much for a noisy arm.
const WEIGHT_MAX_Q16: u64 = (3 * 64) << 16;
/// Most evidence of a group's arm, Q16: eight times that of a host, and the evidence of wider
/// groups.
const GROUP_WEIGHT_MAX_Q16: u64 = 8 * WEIGHT_MAX_Q16 + (512 << 16);

/// Most segments in an arm's record: 8,192 per measurement interval, and seven eighths, rounded up,
/// of the earlier ones.
const SEGS_MAX: u64 = 8 * 8192 + 7;
/// Most segments in the record of a window, whose counts are halved at 32,768.
const WINDOW_SEGS_MAX: u64 = 32_768 + 8192;

/// Logarithm of the highest rate, bits in Q16.
const LOG_MAX_Q16: u64 = 64 << 16;

/// All host records at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Mode that learned the records; the other mode cannot use them.
    pub mode: Mode,
    /// The kernel's boot id: network namespace cookies are valid only within one boot.
    pub boot_id: String,
    /// Cookie of the agent's own network namespace.
    pub own_netns: u64,
    /// Wall-clock time of the snapshot, milliseconds since 1970.
    pub saved_at_ms: i64,
    /// The records.
    pub hosts: Vec<HostRow>,
}

/// Outcome of restoring records into the kernel.
#[derive(Debug, Default)]
pub struct Restored {
    /// Number of records that are now in the kernel.
    pub restored: u64,
    /// Number of records that are not: their namespace cannot be identified any more, or the table
    /// is full.
    pub left_out: u64,
}

/// One host record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRow {
    /// Key of the record.
    pub key: HostKey,
    /// Connections established.
    pub connections: u32,
    /// Measurements taken.
    pub scored: u32,
    /// Connections that the loss rule moved.
    pub switched: u32,
    /// Lowest RTT seen, µs; 0 = none yet.
    pub min_rtt_us: u32,
    /// Highest rate seen; unit as in [`ArmState::max_rate`].
    pub max_rate: u64,
    /// log2 of the RTT under the system's arm over the base RTT, Q16 bits.
    pub queue_q16: u32,
    /// The base RTT, µs; 0 = none yet.
    pub base_rtt_us: u32,
    /// Groups: usual cost of the system's arm, Q16 bits; 0 = none yet.
    pub usual_q16: u32,
    /// Groups: usual log2(bytes per second) of the system's arm, Q16.
    pub usual_log_rate_q16: u32,
    /// Windows: index of the largest that may be chosen.
    pub step: u32,
    /// Windows: value of `scored` when `step` last changed.
    pub step_scored: u32,
    /// Milliseconds between the last connection or measurement and the snapshot.
    pub seen_age_ms: u64,
    /// Milliseconds between the time up to which evidence has been discounted and the snapshot;
    /// `None` = not yet discounted.
    pub forgot_age_ms: Option<u64>,
    /// Arms with any data, by name; the name of a window is its number of segments.
    pub arms: Vec<(String, ArmState)>,
}

impl HostRow {
    /// The row of a record at monotonic time `now_ns`. `arm_name` gives the name of a slot. Slots
    /// without a name and arms without any data are left out.
    pub fn new<'a>(
        key: HostKey,
        host: &Host,
        now_ns: u64,
        arm_name: impl Fn(usize) -> Option<&'a str>,
    ) -> Self {
        let age_ms = |time_ns: u64| now_ns.saturating_sub(time_ns) / 1_000_000;
        let known = host
            .arms
            .iter()
            .enumerate()
            .filter(|(_, arm)| **arm != ArmState::default());
        Self {
            key,
            connections: host.connections,
            scored: host.scored,
            switched: host.switched,
            min_rtt_us: host.min_rtt_us,
            max_rate: host.max_rate,
            queue_q16: host.queue_q16,
            base_rtt_us: host.base_rtt().unwrap_or(0),
            usual_q16: host.usual_q16,
            usual_log_rate_q16: host.usual_log_rate_q16,
            step: host.step,
            step_scored: host.step_scored,
            seen_age_ms: age_ms(host.seen_ns),
            forgot_age_ms: (host.forgot_ns != 0).then(|| age_ms(host.forgot_ns)),
            arms: known
                .filter_map(|(index, arm)| {
                    let name = match key.level.is_window() {
                        true => window::arm_segments(index).to_string(),
                        false => arm_name(index)?.to_owned(),
                    };
                    Some((name, *arm))
                })
                .collect(),
        }
    }

    /// The record at monotonic time `now_ns`, `elapsed_ms` after the snapshot. `arm_slot` gives the
    /// slot of a name; arms without a slot are left out.
    ///
    /// Overdue discounting of evidence happens here: after a reboot the monotonic clock cannot
    /// express an earlier time. `system_arm` is the reference for the judgement of harm.
    pub fn restore(
        &self,
        now_ns: u64,
        elapsed_ms: u64,
        params: &Params,
        system_arm: Option<usize>,
        arm_slot: impl Fn(&str) -> Option<usize>,
    ) -> Host {
        let system_arm = match self.key.level.is_window() {
            true => Some(window::OWN),
            false => system_arm,
        };
        let to_ns = |ms: u64| ms.saturating_add(elapsed_ms).saturating_mul(1_000_000);
        let mut host = Host {
            connections: self.connections,
            scored: self.scored,
            switched: self.switched,
            min_rtt_us: self.min_rtt_us,
            max_rate: self.max_rate,
            // Not stored: a restored record earns it again.
            credit_q16: 0,
            queue_q16: self.queue_q16,
            base_rtt_us: self.base_rtt_us,
            level: self.key.level,
            usual_q16: self.usual_q16,
            usual_log_rate_q16: self.usual_log_rate_q16,
            step: self.step,
            step_scored: self.step_scored,
            seen_ns: now_ns.saturating_sub(to_ns(self.seen_age_ms)),
            ..Host::default()
        };
        for (name, arm) in &self.arms {
            let slot = match self.key.level.is_window() {
                true => name.parse().ok().and_then(window::window_arm),
                false => arm_slot(name),
            };
            if let Some(slot) = slot.and_then(|slot| host.arms.get_mut(slot)) {
                *slot = *arm;
            }
        }
        if let Some(age_ms) = self.forgot_age_ms {
            // Times are on a clock that starts at 1 at the last discounting.
            let then_ns = to_ns(age_ms).saturating_add(1);
            host.forgot_ns = 1;
            thalweg_learner::halve_evidence(&mut host, params, then_ns);
            host.forgot_ns = now_ns.saturating_sub(then_ns - host.forgot_ns).max(1);
        }
        thalweg_learner::note_cautions(&mut host, system_arm);
        thalweg_learner::note_harm(&mut host, system_arm, params);
        host
    }

    /// The first field with a value that no version of Thalweg writes, and the reason.
    pub(super) fn fault(&self, mode: Mode) -> Option<(String, String)> {
        if self.arms.len() > MAX_ARMS {
            let why = format!("{} arms, at most {MAX_ARMS} are possible", self.arms.len());
            return Some(("arms".to_owned(), why));
        }
        let weight_max = match self.key.level.is_group() {
            true => GROUP_WEIGHT_MAX_Q16,
            false => WEIGHT_MAX_Q16,
        };
        let (segs_max, kind) = match self.key.level.is_window() {
            true => (WINDOW_SEGS_MAX, "an initial window"),
            false => (SEGS_MAX, "a congestion control"),
        };
        for (name, arm) in &self.arms {
            let is_name = match self.key.level.is_window() {
                true => name.parse().ok().and_then(window::window_arm).is_some(),
                false => is_congestion_control(name),
            };
            if !is_name {
                let why = format!("not the name of {kind}");
                return Some((format!("arms.{name}"), why));
            }
            let above = |field: &str, value: u64, limit: u64| {
                let why = format!("{value} is above the possible {limit}");
                (value > limit).then(|| (format!("arms.{name}.{field}"), why))
            };
            let thalweg = (mode == Mode::Thalweg)
                .then(|| {
                    above("value", arm.value, u32::MAX.into())
                        .or_else(|| above("weight_q16", arm.weight_q16.into(), weight_max))
                        .or_else(|| above("log_rate_q16", arm.log_rate_q16.into(), LOG_MAX_Q16))
                        .or_else(|| above("segs", arm.segs.into(), segs_max))
                        .or_else(|| above("retrans", arm.retrans.into(), arm.segs.into()))
                })
                .flatten();
            let fault = thalweg.or_else(|| above("greedy", arm.greedy.into(), arm.chosen.into()));
            if fault.is_some() {
                return fault;
            }
        }
        None
    }
}

/// The mode with a name.
pub fn parse_mode(name: &str) -> Option<Mode> {
    [Mode::Classic, Mode::Thalweg]
        .into_iter()
        .find(|mode| mode.name() == name)
}

/// Key of an address and a prefix length in the address' own family, both in canonical form.
pub(super) fn parse_key(
    netns: u64,
    address: &str,
    prefix: u32,
    level: u32,
) -> Result<HostKey, String> {
    let level = Level::from_number(level)
        .filter(|level| !level.is_fleet())
        .ok_or_else(|| format!("{level} is no level"))?;
    let address: IpAddr = address
        .parse()
        .map_err(|_| format!("{address:?} is not an IP address"))?;
    let (ipv4, ipv6) = if address.is_ipv4() {
        (prefix, 0)
    } else {
        (0, prefix)
    };
    let key = HostKey::new(netns, address, ipv4, ipv6).map_err(|error| error.to_string())?;
    if key.address() == address && key.own_prefix() == prefix {
        Ok(HostKey { level, ..key })
    } else {
        Err(format!(
            "{address}/{prefix} is not in canonical form, which is {key}"
        ))
    }
}
