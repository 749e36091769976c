//! Warnings of timers: how long handshakes are tried, and how soon an idle window restarts.

use std::time::Duration;

use thalweg_units::grammar::duration_text;

use super::{Warning, WarningKind};
use crate::catalogue::Stage;
use crate::model::{Action, Direction, Rule, Value};

/// `TCP_TIMEOUT_INIT`.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
/// `TCP_RTO_MAX`, unless the rule sets `rto_max`.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Kernel default of `net.ipv4.tcp_syn_retries`.
const SYN_RETRIES: u32 = 6;
/// Kernel default of `net.ipv4.tcp_synack_retries`.
const SYNACK_RETRIES: u32 = 5;
/// Kernel default of `net.ipv4.tcp_syn_linear_timeouts` since Linux 6.5; 0 before.
const LINEAR_TIMEOUTS: u32 = 4;
/// `MAX_TCP_SYNCNT`.
const RETRIES_MAX: u32 = 127;
/// `TCP_RTO_MIN`, in microseconds.
const RTO_MIN_US: u32 = 200_000;
/// Kernel default of `net.ipv4.tcp_retries2`.
const DATA_RETRIES: u32 = 15;

/// Time from the first SYN until the kernel gives up (`tcp_write_timeout`). The first `linear`
/// timeouts do not double and do not count as retransmissions. None is above `longest`.
fn total_timeout(
    first: Duration,
    longest: Duration,
    retransmissions: u32,
    linear: u32,
) -> Duration {
    let mut timeout = first.min(longest);
    let mut total = timeout;
    for retransmission in 1..=(retransmissions + linear).min(RETRIES_MAX) {
        if retransmission > linear {
            timeout = (timeout * 2).min(longest);
        }
        total += timeout;
    }
    total
}

/// Time from the first SYN until the kernel gives up with its own timeouts.
fn default_timeout(retransmissions: u32, linear: u32) -> Duration {
    total_timeout(FIRST_TIMEOUT, LONGEST_TIMEOUT, retransmissions, linear)
}

/// The least number of retransmissions with which a handshake is tried no shorter than by default.
fn count_for_default_timeout(
    first: Duration,
    longest: Duration,
    default_count: u32,
    linear: &[u32],
) -> Option<u32> {
    (1..=RETRIES_MAX).find(|&count| {
        linear.iter().all(|&linear| {
            total_timeout(first, longest, count, linear) >= default_timeout(default_count, linear)
        })
    })
}

/// A time for a message: seconds once there are some.
fn rounded_time(time: Duration) -> String {
    if time >= Duration::from_secs(10) {
        format!("{:.0} s", time.as_secs_f64())
    } else if time >= Duration::from_secs(1) {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} ms", time.as_millis())
    }
}

/// A handshake that a rule has given up sooner than by default.
struct ShorterHandshake<'r> {
    /// Setting that a warning names.
    action: &'r Action,
    kind: WarningKind,
    /// Times until it is given up, by the rule and by default.
    ours: String,
    default: String,
    /// The count with which it is no sooner, if there is one.
    enough: Option<u32>,
}

impl Rule {
    /// A setting at a stage, and its number.
    fn number_at(&self, name: &str, stage: Stage) -> Option<(&Action, u32)> {
        self.actions.iter().find_map(|action| match action.value {
            Value::Number(value) if action.key.name == name && action.stages & stage.bit() != 0 => {
                Some((action, value))
            }
            _ => None,
        })
    }

    /// Warns of timers that end a handshake sooner, of windows that restart sooner, and of a timeout
    /// that is not taken back to the machine's own.
    pub(super) fn warn_of_timers(&self, rto_min_us: Option<u32>, warnings: &mut Vec<Warning>) {
        let direction = self.conditions.direction;
        if direction != Some(Direction::Passive) {
            self.check_connect_timeout(warnings);
        }
        if direction != Some(Direction::Active) {
            self.check_accept_timeout(warnings);
        }
        self.check_data_timeout(warnings);
        let rto_min_us = rto_min_us.unwrap_or(RTO_MIN_US);
        if rto_min_us != RTO_MIN_US {
            self.taken_back(rto_min_us, warnings);
        }
        // No rule can set more.
        self.idle_restart(rto_min_us.min(RTO_MIN_US), warnings);
    }

    /// The handshake's timers, where the rule has it given up sooner than by default. The count of
    /// `stage` and each number of timeouts in `linear` that do not double are looked at; the last of them
    /// counts for the times.
    fn shorter_handshake(
        &self,
        stage: Stage,
        default_count: u32,
        linear: &[u32],
    ) -> Option<ShorterHandshake<'_>> {
        let timeout = self.number_at("timeout_init", Stage::Asked);
        let count = self.number_at("syn_count", stage);
        let capped = self.number_at("rto_max", stage);
        let action = timeout.or(count).or(capped)?.0;
        let first = timeout.map_or(FIRST_TIMEOUT, |(_, us)| Duration::from_micros(us.into()));
        let longest = capped.map_or(LONGEST_TIMEOUT, |(_, ms)| Duration::from_millis(ms.into()));
        let own = count.map_or(default_count, |(_, count)| count);
        let enough = count_for_default_timeout(first, longest, default_count, linear);
        if enough.is_some_and(|enough| own >= enough) {
            return None;
        }
        let shown = linear.last().copied().unwrap_or(0);
        Some(ShorterHandshake {
            action,
            // A count alone says how patient connect() shall be.
            kind: match timeout.or(capped) {
                Some(_) => WarningKind::Incomplete,
                None => WarningKind::Trap,
            },
            ours: rounded_time(total_timeout(first, longest, own, shown)),
            default: rounded_time(default_timeout(default_count, shown)),
            enough,
        })
    }

    /// `connect()` gives up after a number of SYNs, whatever the time between them.
    fn check_connect_timeout(&self, warnings: &mut Vec<Warning>) {
        let linear = [0, LINEAR_TIMEOUTS];
        let Some(it) = self.shorter_handshake(Stage::Connect, SYN_RETRIES, &linear) else {
            return;
        };
        let remedy = it
            .enough
            .map(|enough| format!("; `syn_count = {enough}` keeps it as patient"));
        let message = format!(
            "connect() to a silent address gives up after {} instead of {}{}",
            it.ours,
            it.default,
            remedy.unwrap_or_default()
        );
        warnings.push(self.new_warning(it.kind, it.action.at, message));
    }

    /// A listener gives up after a number of SYN-ACKs, whatever the time between them.
    fn check_accept_timeout(&self, warnings: &mut Vec<Warning>) {
        let Some(it) = self.shorter_handshake(Stage::Listen, SYNACK_RETRIES, &[0]) else {
            return;
        };
        let remedy = it.enough.map(|enough| {
            format!(
                "; `direction = \"active\"` leaves SYN-ACKs alone, `on.listen = {{ syn_count = \
                 {enough} }}` in a rule of listeners keeps them as patient"
            )
        });
        let message = format!(
            "a peer has {} to answer the SYN-ACK instead of {}{}",
            it.ours,
            it.default,
            remedy.unwrap_or_default()
        );
        warnings.push(self.new_warning(it.kind, it.action.at, message));
    }

    /// The kernel gives a connection up after the time that its timeouts take together
    /// (`tcp_model_timeout`), or after `user_timeout`.
    fn check_data_timeout(&self, warnings: &mut Vec<Warning>) {
        let capped = self.actions.iter().find_map(|action| match action.value {
            Value::Number(ms) if action.key.name == "rto_max" => Some((action, ms)),
            _ => None,
        });
        let bounded = self.actions.iter().any(|it| it.key.name == "user_timeout");
        let Some((action, ms)) = capped.filter(|_| !bounded) else {
            return;
        };
        let least = Duration::from_micros(RTO_MIN_US.into());
        let default = total_timeout(least, LONGEST_TIMEOUT, DATA_RETRIES, 0);
        let ours = total_timeout(least, Duration::from_millis(ms.into()), DATA_RETRIES, 0);
        if ours >= default {
            return;
        }
        let message = format!(
            "data that nobody acknowledges ends the connection after {} instead of {} \
             (net.ipv4.tcp_retries2); `user_timeout = \"{}s\"` keeps it as patient",
            rounded_time(ours),
            rounded_time(default),
            default.as_secs() + 1,
        );
        warnings.push(self.new_warning(WarningKind::Incomplete, action.at, message));
    }

    /// A timeout that is shortened for repairs is taken back at the first measured round trip, whether or
    /// not there was anything to repair.
    fn taken_back(&self, rto_min_us: u32, warnings: &mut Vec<Warning>) {
        let Some((action, us)) = self.number_at("rto_min", Stage::Rtt) else {
            return;
        };
        let mut repairs = [Stage::Retransmission, Stage::Rto].into_iter();
        if us == rto_min_us || !repairs.any(|it| self.number_at("rto_min", it).is_some()) {
            return;
        }
        let text = |us: u32| duration_text(Duration::from_micros(us.into()));
        // The range of the key.
        let remedy = match (2_000..=RTO_MIN_US).contains(&rto_min_us) {
            true => format!("put \"{}\" there", text(rto_min_us)),
            false => "no rule can set that".to_owned(),
        };
        let message = format!(
            "rto_min = \"{}\" from the first measured round trip on, where this machine's own is {} \
             (net.ipv4.tcp_rto_min_us): {remedy}",
            text(us),
            text(rto_min_us)
        );
        warnings.push(self.new_warning(WarningKind::Incomplete, action.at, message));
    }

    /// After a pause longer than the retransmission timeout the congestion window restarts.
    fn idle_restart(&self, rto_min_us: u32, warnings: &mut Vec<Warning>) {
        let repairs = Stage::Retransmission.bit() | Stage::Rto.bit();
        let taken_back = self
            .number_at("rto_min", Stage::Rtt)
            .is_some_and(|(_, us)| us >= rto_min_us);
        // bbr has a window of its own at all times: the kernel does not restart it.
        let exempt = self.actions.iter().any(|action| {
            action.key.name == "congestion"
                && action.stages & Stage::Established.bit() != 0
                && matches!(&action.value, Value::Text(name) if name.starts_with("bbr"))
        });
        if exempt {
            return;
        }
        for action in &self.actions {
            let Value::Number(us) = action.value else {
                continue;
            };
            if action.key.name != "rto_min"
                || us >= rto_min_us
                || (taken_back && action.stages & !repairs == 0)
            {
                continue;
            }
            let time = duration_text(Duration::from_micros(us.into()));
            let own = duration_text(Duration::from_micros(rto_min_us.into()));
            let message = format!(
                "rto_min = \"{time}\" for good: the congestion window restarts after each pause \
                 longer than the timeout that it shortens (unless \
                 net.ipv4.tcp_slow_start_after_idle is 0); `on.retransmission = {{ rto_min = \
                 \"{time}\" }}` with `on.rtt = {{ rto_min = \"{own}\" }}` leaves connections \
                 alone that lose nothing"
            );
            warnings.push(self.new_warning(WarningKind::Incomplete, action.at, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(first_ms: u64, count: u32, linear: u32) -> f64 {
        let first = Duration::from_millis(first_ms);
        total_timeout(first, LONGEST_TIMEOUT, count, linear).as_secs_f64()
    }

    #[test]
    fn handshake_patience_of_defaults_is_the_kernels() {
        // tcp_syn_retries of the kernel's ip-sysctl: 127 s, and 131 s with four linear timeouts.
        assert_eq!(seconds(1000, SYN_RETRIES, 0), 127.0);
        assert_eq!(seconds(1000, SYN_RETRIES, LINEAR_TIMEOUTS), 131.0);
        assert_eq!(seconds(1000, SYNACK_RETRIES, 0), 63.0);
        // 64 s doubled is cut off at 120 s.
        assert_eq!(seconds(1000, 7, 0), 247.0);
        // tcp_retries2 of the kernel's ip-sysctl.
        assert_eq!(seconds(200, DATA_RETRIES, 0), 924.6);
    }

    #[test]
    fn patient_count_is_the_least_that_suffices() {
        let linear = [0, LINEAR_TIMEOUTS];
        for first_ms in [1, 10, 20, 100, 999, 1000, 3000] {
            let first = Duration::from_millis(first_ms);
            let count =
                count_for_default_timeout(first, LONGEST_TIMEOUT, SYN_RETRIES, &linear).unwrap();
            assert!(seconds(first_ms, count, 0) >= 127.0, "{first_ms} ms");
            assert!(seconds(first_ms, count, 4) >= 131.0, "{first_ms} ms");
            let less = count - 1;
            assert!(
                seconds(first_ms, less, 0) < 127.0 || seconds(first_ms, less, 4) < 131.0,
                "{first_ms} ms"
            );
        }
    }
}
