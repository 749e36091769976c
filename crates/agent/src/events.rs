//! Decoding of the kernel programs' events.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use thalweg_bpf_types::{key_from_raw, raw};
use thalweg_control::system;
use thalweg_learner::{Level, Mode, ONE_Q16, rate_bytes_per_second};

use crate::kernel::{ArmTable, error_text};
use crate::view::{Event, Measurement, Window};

/// Converts the kernel's numbers to names and wall-clock time.
pub struct Decoder {
    mode: Mode,
    /// Wall clock minus monotonic clock, ns.
    clock_offset_ns: i128,
}

impl Decoder {
    /// A decoder for the programs of one mode.
    pub fn new(mode: Mode) -> Self {
        let mut decoder = Self {
            mode,
            clock_offset_ns: 0,
        };
        decoder.adjust_clock();
        decoder
    }

    /// Updates the offset after the wall clock was set.
    pub fn adjust_clock(&mut self) {
        self.clock_offset_ns = i128::from(system::wall_ns()) - i128::from(system::monotonic_ns());
    }

    /// The readable form of an event; `arms` is the current table, `stands_for` as of the store.
    pub fn decode(&self, event: &raw::thalweg_event, arms: &ArmTable, stands_for: f64) -> Event {
        let name = |index: u8| arms.name(usize::from(index)).map(str::to_string);
        let flag = |flag: raw::thalweg_conn_flag| u32::from(event.flags) & flag != 0;
        let close = u32::from(event.kind) == raw::THALWEG_EVENT_CLOSE;
        Event {
            id: 0,
            time_ms: ((i128::from(event.time_ns) + self.clock_offset_ns) / 1_000_000) as i64,
            kind: if close { "close" } else { "decision" }.to_string(),
            connection: event.connection,
            netns: event.host.netns,
            host: key_from_raw(&event.host).to_string(),
            remote: IpAddr::V6(Ipv6Addr::from(event.remote))
                .to_canonical()
                .to_string(),
            remote_port: event.remote_port,
            local_port: event.local_port,
            arm: name(event.arm),
            chosen: name(event.chosen_arm),
            system_arm: name(event.system_arm),
            reason: reason(u32::from(event.reason)).to_string(),
            level: level(match u32::from(event.flags) & raw::THALWEG_CONN_CONTROL {
                0 => u32::from(event.level),
                // The level that would have decided, for the gain.
                _ => raw::THALWEG_LEVEL_HOST,
            })
            .to_string(),
            propensity: f64::from(event.propensity_q16) / f64::from(ONE_Q16),
            propensities: (!close).then(|| propensities(event, arms)),
            allowed: (!close).then(|| names(event.allowed, arms)),
            handshake_rtt_us: event.handshake_rtt_us,
            rule: event.rule,
            parameters: event.parameters,
            control: flag(raw::THALWEG_CONN_CONTROL),
            stands_for,
            passive: flag(raw::THALWEG_CONN_PASSIVE),
            ecn: flag(raw::THALWEG_CONN_ECN),
            dry_run: flag(raw::THALWEG_CONN_DRY_RUN),
            switched: flag(raw::THALWEG_CONN_SWITCHED),
            error: (event.error != 0).then(|| error_text(event.error)),
            window: window(event),
            measurement: close.then(|| self.measurement(event)),
        }
    }

    fn measurement(&self, event: &raw::thalweg_event) -> Measurement {
        Measurement {
            end: end(u32::from(event.end)).to_string(),
            outcome: outcome(u32::from(event.outcome)).to_string(),
            bytes: event.bytes,
            duration_us: event.duration_us,
            wall_us: event.wall_us,
            receiver_us: event.receiver_us,
            buffer_us: event.buffer_us,
            app_limited: u32::from(event.sample_flags) & raw::THALWEG_SAMPLE_APP_LIMITED != 0,
            rate_bytes_per_s: rate_bytes_per_second(event.bytes, event.duration_us),
            srtt_us: event.srtt_us,
            min_rtt_us: event.min_rtt_us,
            segs_out: event.segs_out,
            retrans: event.retrans,
            cost: metric(self.mode, event.cost),
            weight: f64::from(event.weight_q16) / f64::from(ONE_Q16),
        }
    }
}

/// Initial window of an event; `None`: windows are not learned.
fn window(event: &raw::thalweg_event) -> Option<Window> {
    let choice = event.window;
    (choice.segments > 0).then(|| Window {
        segments: choice.segments,
        chosen: choice.chosen,
        propensity: f64::from(choice.propensity_q16) / f64::from(u16::MAX),
        cost_bits: (event.window_cost_q10 > 0)
            .then(|| f64::from(event.window_cost_q10) / 1024.0 - 32.0),
    })
}

/// A cost for readers: the published scale of 1,000,000; in thalweg 1,000,000 is one bit.
pub fn metric(mode: Mode, cost: u64) -> u64 {
    match mode {
        Mode::Classic => cost,
        Mode::Thalweg => (u128::from(cost) * 1_000_000 / u128::from(ONE_Q16)) as u64,
    }
}

/// Names of the arms of a mask.
fn names(mask: u16, arms: &ArmTable) -> Vec<String> {
    let of_mask = arms.entries().filter(|(index, _)| mask >> index & 1 != 0);
    of_mask.map(|(_, arm)| arm.name.clone()).collect()
}

/// Probability of each arm that has any.
fn propensities(event: &raw::thalweg_event, arms: &ArmTable) -> BTreeMap<String, f64> {
    let share = |index: usize| f64::from(event.propensities_q16[index]) / f64::from(u16::MAX);
    arms.entries()
        .filter(|(index, _)| event.propensities_q16[*index] > 0)
        .map(|(index, arm)| (arm.name.clone(), share(index)))
        .collect()
}

/// Name of a reason.
pub fn reason(number: u32) -> &'static str {
    match number {
        raw::THALWEG_REASON_WARM_UP => "warm-up",
        raw::THALWEG_REASON_GREEDY => "greedy",
        raw::THALWEG_REASON_EXPLORE => "explore",
        raw::THALWEG_REASON_UNTRIED => "untried",
        raw::THALWEG_REASON_APPLICATION => "application",
        raw::THALWEG_REASON_FOREIGN => "foreign",
        raw::THALWEG_REASON_LOSS => "loss",
        raw::THALWEG_REASON_WITHDRAWN => "withdrawn",
        raw::THALWEG_REASON_CONTROL => "control",
        raw::THALWEG_REASON_ANEW => "anew",
        raw::THALWEG_REASON_RETURNED => "returned",
        raw::THALWEG_REASON_DRAWN => "drawn",
        _ => "unknown",
    }
}

/// Name of the level of a record.
pub fn level(number: u32) -> &'static str {
    match Level::from_number(number) {
        Some(Level::Host) => "host",
        Some(Level::Prefix) => "prefix",
        Some(Level::Named) => "named",
        Some(Level::Service) => "service",
        Some(Level::Namespace) => "namespace",
        Some(Level::WindowPrefix) => "window-prefix",
        Some(Level::WindowService) => "window-service",
        Some(Level::WindowNamespace) => "window-namespace",
        Some(Level::FleetPrefix) => "fleet-prefix",
        Some(Level::FleetNamed) => "fleet-named",
        None => "unknown",
    }
}

/// Name of an end.
pub fn end(number: u32) -> &'static str {
    match number {
        raw::THALWEG_END_FIN_LOCAL => "fin-local",
        raw::THALWEG_END_FIN_REMOTE => "fin-remote",
        raw::THALWEG_END_RESET => "reset",
        raw::THALWEG_END_TIMEOUT => "timeout",
        raw::THALWEG_END_SWITCH => "switch",
        raw::THALWEG_END_STRETCH => "stretch",
        _ => "unknown",
    }
}

/// Whether an event is stored: a decision, or an end. The end must be of a scored measurement
/// interval, of a connection with intervals before it, or of a connection whose initial window was
/// scored. An interval that receiver or buffer limited is stored too (by busy time nothing else
/// limits one): without these a replay would miss slow ones only.
pub fn is_told(event: &raw::thalweg_event) -> bool {
    let is_end = u32::from(event.kind) == raw::THALWEG_EVENT_CLOSE;
    let by_busy_time = u32::from(event.sample_flags) & raw::THALWEG_SAMPLE_BUSY_TIME != 0;
    match u32::from(event.outcome) {
        raw::THALWEG_SCORED => true,
        raw::THALWEG_SKIPPED_APP_LIMITED if by_busy_time => true,
        _ => !is_end || event.before.wall_us > 0 || event.window_cost_q10 > 0,
    }
}

fn outcome(number: u32) -> &'static str {
    match number {
        raw::THALWEG_SCORED => "scored",
        raw::THALWEG_SKIPPED_SMALL => "small",
        raw::THALWEG_SKIPPED_APP_LIMITED => "limited",
        raw::THALWEG_SKIPPED_NOT_TRACKED => "not-tracked",
        raw::THALWEG_SKIPPED_TIMEOUT => "timeout",
        raw::THALWEG_SKIPPED_OVERRIDDEN => "overridden",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_where_a_replay_would_miss_them() {
        let is_told =
            |outcome: raw::thalweg_outcome, flags: raw::thalweg_sample_flag, before_us| {
                is_told(&raw::thalweg_event {
                    kind: raw::THALWEG_EVENT_CLOSE as u8,
                    outcome: outcome as u8,
                    sample_flags: flags as u16,
                    before: raw::thalweg_sums {
                        wall_us: before_us,
                        ..Default::default()
                    },
                    ..Default::default()
                })
            };
        let busy = raw::THALWEG_SAMPLE_BUSY_TIME;
        assert!(is_told(raw::THALWEG_SCORED, 0, 0));
        assert!(is_told(raw::THALWEG_SKIPPED_APP_LIMITED, busy, 0));
        assert!(!is_told(raw::THALWEG_SKIPPED_APP_LIMITED, 0, 0));
        assert!(!is_told(raw::THALWEG_SKIPPED_SMALL, busy, 0));
        assert!(is_told(raw::THALWEG_SKIPPED_SMALL, busy, 1));
        assert!(is_told(raw::THALWEG_SKIPPED_SMALL, 0, 1));
    }

    #[test]
    fn a_close_is_decoded_with_its_measurement() {
        let mut remote = [0; 16];
        remote[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 7]);
        let event = raw::thalweg_event {
            time_ns: system::monotonic_ns(),
            host: raw::thalweg_host_key {
                netns: 3,
                addr: remote,
                prefix_len: 128,
                level: raw::THALWEG_LEVEL_HOST,
            },
            remote,
            remote_port: 443,
            kind: raw::THALWEG_EVENT_CLOSE as u8,
            arm: raw::THALWEG_NO_ARM as u8,
            flags: (raw::THALWEG_CONN_PASSIVE | raw::THALWEG_CONN_ECN) as u8,
            end: raw::THALWEG_END_RESET as u8,
            bytes: 1_000_000,
            duration_us: 500_000,
            cost: u64::from(ONE_Q16) * 3 / 2,
            weight_q16: ONE_Q16 / 2,
            ..Default::default()
        };
        let decoded = Decoder::new(Mode::Thalweg).decode(&event, &ArmTable::default(), 4.0);
        assert_eq!(
            (decoded.host.as_str(), decoded.remote.as_str()),
            ("192.0.2.7", "192.0.2.7")
        );
        assert!(decoded.passive && decoded.ecn && !decoded.switched);
        assert_eq!((decoded.arm, decoded.stands_for), (None, 4.0));
        let measurement = decoded.measurement.unwrap();
        assert_eq!(measurement.end, "reset");
        assert_eq!(measurement.rate_bytes_per_s, 2_000_000);
        assert_eq!(measurement.cost, 1_500_000);
        assert!((measurement.weight - 0.5).abs() < 1e-9);
        let age_ms = system::wall_ns() as i64 / 1_000_000 - decoded.time_ms;
        assert!((0..1000).contains(&age_ms), "{age_ms}");
    }
}
