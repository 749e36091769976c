//! Evaluation of the comparisons, and reverts of worse choices.

use thalweg_gain::{Comparison, Group, Row, Scope, Verdict};

use super::Gain;
use super::durations::{HOUR_NS, LENGTH_MS, REVERTED_MS};
use super::store::Revert;
use crate::comparison::{Against, finding_sentence, judged_row};

/// Changes by an evaluation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Reverts that begin now.
    pub begun: Vec<Revert>,
    /// Reverts that end now.
    pub ended: Vec<Revert>,
    /// Worse choices that are reported but not reverted.
    pub told: Vec<Revert>,
}

/// The first row that is a reason to revert a group.
pub(super) fn reason(group: &Group, scope: Scope) -> Option<(Row, Comparison)> {
    let (time, _) = judged_row(group, scope, Row::Time);
    Row::all().take(scope.row_count()).find_map(|row| {
        let (comparison, _) = judged_row(group, scope, row);
        Verdict::is_reason_to_revert(&comparison, row, &time).then_some((row, comparison))
    })
}

impl Gain {
    /// Evaluates the comparisons; once a minute is enough. `now_ms` is on the store's clock,
    /// `now_ns` on that of the draws. The system's arm is never reverted; the revert of an arm that
    /// becomes it ends. Without `reverts` nothing is reverted.
    pub fn look(&mut self, now_ns: u64, now_ms: i64, system_arm: &str, reverts: bool) -> Looked {
        self.kept.ledger.close_hours(now_ns / HOUR_NS);
        if now_ms - self.kept.since_ms >= LENGTH_MS {
            self.begin(now_ms);
        }
        let is_over = |revert: &Revert| {
            let is_system = revert.arm.as_deref() == Some(system_arm);
            !reverts || is_system || revert.until_ms <= now_ms
        };
        let mut looked = Looked {
            ended: self.end(is_over, now_ms),
            ..Looked::default()
        };
        let worse = self.worse(now_ms, system_arm);
        if !reverts {
            looked.told = worse;
        } else if !worse.is_empty() {
            if worse.iter().any(|revert| revert.arm.is_some()) {
                // With the arm that is to blame gone, exploration of the others may continue.
                let reverts = std::mem::take(&mut self.kept.reverts).into_iter();
                let (general, of_arms) = reverts.partition(|revert| revert.arm.is_none());
                self.kept.reverts = of_arms;
                looked.ended.extend::<Vec<_>>(general);
            }
            self.kept.reverts.extend(worse.iter().cloned());
            // The control group is now compared with something else.
            self.kept.ledger.begin_group(Scope::All, "");
            looked.begun = worse;
        }
        looked
    }

    /// Ends all reverts now; returns them.
    pub fn resume(&mut self, now_ms: i64) -> Vec<Revert> {
        self.end(|_| true, now_ms)
    }

    fn begin(&mut self, now_ms: i64) {
        self.kept.ledger.restart_comparisons();
        self.kept.since_ms = now_ms;
    }

    fn end(&mut self, is_over: impl Fn(&Revert) -> bool, now_ms: i64) -> Vec<Revert> {
        let (ended, left) = std::mem::take(&mut self.kept.reverts)
            .into_iter()
            .partition::<Vec<_>, _>(|revert| is_over(revert));
        self.kept.reverts = left;
        if !ended.is_empty() {
            self.begin(now_ms);
        }
        ended
    }

    /// Reverts for worse choices that are not reverted yet.
    fn worse(&self, now_ms: i64, system_arm: &str) -> Vec<Revert> {
        let reverts = &self.kept.reverts;
        let mut begun = Vec::new();
        for ((scope, name), group) in self.kept.ledger.current_groups() {
            let arm = match scope {
                Scope::All => None,
                Scope::Arm if name != system_arm => Some(name),
                _ => continue,
            };
            if reverts.iter().any(|revert| revert.arm == arm) {
                continue;
            }
            if let Some((row, comparison)) = reason(&group, scope) {
                begun.push(Revert {
                    arm,
                    since_ms: now_ms,
                    until_ms: now_ms + REVERTED_MS,
                    why: finding_sentence(row, &comparison, Against::Control),
                });
            }
        }
        // With the arm that is to blame gone, exploration of the others may continue.
        if begun.iter().any(|revert| revert.arm.is_some()) {
            begun.retain(|revert| revert.arm.is_some());
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::super::Drawn;
    use super::super::store::KeptGain;
    use super::*;
    use thalweg_gain::{Connection, Ledger, Part, Side};

    /// Hosts that the learner gives an arm, with a factor on their time in each of some hours.
    fn gain(arms: &[(&str, f64)], hours: u64) -> Gain {
        let mut ledger = Ledger::default();
        let mut random = thalweg_units::random::Random::new(1);
        for hour in 0..hours {
            for host in 0..200u64 {
                let (arm, factor) = arms[host as usize % arms.len()];
                let control = random.below(20) == 0;
                if !control {
                    ledger.note_arm(host, hour, arm);
                }
                let noise = (random.fraction() - 0.5).exp2();
                let factor = if control { 1.0 } else { factor };
                let connection = Connection {
                    bytes: 500_000,
                    busy_us: (1e6 * noise * factor) as u64,
                    ..Connection::default()
                };
                let part = Part {
                    hour,
                    tag: host,
                    side: match control {
                        true => Side::Control,
                        false => Side::Treated,
                    },
                    port: 443,
                };
                ledger.add_connection(part, &connection, String::new);
            }
        }
        let kept = KeptGain {
            ledger,
            since_ms: 0,
            reverts: Vec::new(),
        };
        let drawn = Drawn {
            ipv4: 32,
            ipv6: 64,
            control: thalweg_learner::Control::default(),
            has_fleet: false,
        };
        Gain::new(kept, drawn, None)
    }

    /// Adds busy host-hours that take `factor` of the time that the others do.
    fn add_odd(gain: &mut Gain, side: Side, arm: &str, factor: f64, number: u64) {
        for host in 0..number {
            let (hour, tag) = (39, 1_000 + host);
            gain.kept.ledger.note_arm(tag, hour - 1, arm);
            for _ in 0..16 {
                let connection = Connection {
                    bytes: 500_000,
                    busy_us: (1e6 * factor) as u64,
                    ..Connection::default()
                };
                let port = 443;
                let part = Part {
                    hour,
                    tag,
                    side,
                    port,
                };
                gain.kept
                    .ledger
                    .add_connection(part, &connection, String::new);
            }
        }
    }

    fn arms(reverts: &[Revert]) -> Vec<Option<&str>> {
        reverts.iter().map(|it| it.arm.as_deref()).collect()
    }

    #[test]
    fn an_arm_that_is_worse_is_taken_back_for_a_day() {
        let mut gain = gain(&[("bbr", 1.3), ("cubic", 1.0), ("reno", 0.8)], 40);
        let looked = gain.look(40 * HOUR_NS, 1000, "cubic", true);
        assert_eq!(arms(&looked.begun), [Some("bbr")], "{looked:?}");
        assert!(looked.begun[0].why.contains("more time"), "{looked:?}");
        let again = gain.look(40 * HOUR_NS, 2000, "cubic", true);
        assert_eq!(again, Looked::default());
        assert_eq!(
            gain.look(64 * HOUR_NS, 999 + REVERTED_MS, "cubic", true),
            again
        );
        let after = gain.look(65 * HOUR_NS, 1000 + REVERTED_MS, "cubic", true);
        assert_eq!(arms(&after.ended), [Some("bbr")]);
        // The comparison has begun anew.
        assert!(after.begun.is_empty() && gain.kept.ledger.current_groups().is_empty());
    }

    #[test]
    fn arm_that_became_the_systems_is_given_back() {
        let mut gain = gain(&[("bbr", 1.3), ("cubic", 1.0), ("reno", 0.8)], 40);
        let looked = gain.look(40 * HOUR_NS, 1000, "cubic", true);
        assert_eq!(arms(&looked.begun), [Some("bbr")]);
        let looked = gain.look(40 * HOUR_NS, 2000, "bbr", true);
        assert_eq!(arms(&looked.ended), [Some("bbr")]);
        assert!(looked.begun.is_empty() && gain.reverts().is_empty());
    }

    #[test]
    fn arm_twice_as_slow_with_odd_host_hours_is_taken_back() {
        for (side, factor, number) in [
            (Side::Treated, 1.0 / 1.6, 1),
            (Side::Control, 1.6, 1),
            (Side::Treated, 1e-3, 1),
            (Side::Control, 1e6, 1),
            (Side::Treated, 1e-3, 5),
            (Side::Control, 4.0, 3),
        ] {
            let mut gain = gain(&[("bbr", 2.0), ("cubic", 1.0), ("reno", 1.0)], 40);
            add_odd(&mut gain, side, "bbr", factor, number);
            let looked = gain.look(40 * HOUR_NS, 1000, "cubic", true);
            assert_eq!(arms(&looked.begun), [Some("bbr")], "{side:?} {factor}");
        }
    }

    #[test]
    fn odd_host_hours_alone_take_nothing_back() {
        for factor in [1.6, 1e6] {
            let mut gain = gain(&[("bbr", 1.0), ("cubic", 1.0), ("reno", 1.0)], 40);
            add_odd(&mut gain, Side::Treated, "bbr", factor, 3);
            let looked = gain.look(40 * HOUR_NS, 1000, "cubic", true);
            assert_eq!(looked, Looked::default(), "{factor}");
        }
    }

    #[test]
    fn all_exploring_ends_where_no_arm_is_to_blame() {
        let mut gain = gain(&[("cubic", 1.2)], 40);
        let looked = gain.look(40 * HOUR_NS, 0, "cubic", true);
        assert_eq!(arms(&looked.begun), [None]);
        assert_eq!(arms(&gain.resume(1)), [None]);
        assert!(gain.reverts().is_empty());
    }

    #[test]
    fn exploring_goes_on_once_an_arm_is_to_blame() {
        let mut gain = gain(&[("bbr", 1.3)], 40);
        gain.kept.reverts = vec![Revert {
            arm: None,
            since_ms: 0,
            until_ms: REVERTED_MS,
            why: "all of it".to_owned(),
        }];
        let looked = gain.look(40 * HOUR_NS, 1000, "cubic", true);
        assert_eq!(arms(&looked.begun), [Some("bbr")]);
        assert_eq!(arms(&looked.ended), [None]);
        assert_eq!(arms(gain.reverts()), [Some("bbr")]);
    }

    #[test]
    fn what_is_better_or_the_same_stays() {
        let mut gain = gain(&[("bbr", 0.7), ("reno", 1.0)], 40);
        assert_eq!(gain.look(40 * HOUR_NS, 0, "cubic", true), Looked::default());
    }

    #[test]
    fn what_is_worse_is_only_told_if_the_operator_wants_it_so() {
        let mut gain = gain(&[("bbr", 1.3), ("cubic", 1.0), ("reno", 0.8)], 40);
        for _ in 0..2 {
            let looked = gain.look(40 * HOUR_NS, 1000, "cubic", false);
            assert_eq!(arms(&looked.told), [Some("bbr")]);
            assert!(looked.begun.is_empty() && gain.reverts().is_empty());
        }
        // What was taken back before is given back.
        gain.look(40 * HOUR_NS, 1000, "cubic", true);
        let looked = gain.look(40 * HOUR_NS, 2000, "cubic", false);
        assert_eq!(arms(&looked.ended), [Some("bbr")]);
        assert!(gain.reverts().is_empty());
    }

    #[test]
    fn comparisons_begin_anew_after_four_weeks() {
        let mut gain = gain(&[("bbr", 0.7)], 5);
        gain.look(10 * HOUR_NS, LENGTH_MS - 1, "cubic", true);
        assert!(!gain.kept.ledger.current_groups().is_empty());
        gain.look(10 * HOUR_NS, LENGTH_MS, "cubic", true);
        assert!(gain.kept.ledger.current_groups().is_empty());
        assert_eq!(gain.kept.since_ms, LENGTH_MS);
    }
}
