//! Exchanges of a network's connections after idle times, and whether windows are kept there. A share of
//! the connections is restarted by the kernel as usual.

use thalweg_bpf_types::raw;

use crate::trials::{Effect, Times, Wait, share};

/// Exchanges, and reports, of restarted windows before windows are kept.
const EXCHANGES: f64 = 8.0;
const REPORTS: f64 = 3.0;
/// Largest ratio of retransmissions to those of restarted windows, and what is added to it.
const RETRANS_RATIO: f64 = 1.2;
const RETRANS_MORE: f64 = 0.001;
/// Standard errors of a count that chance may add; losses come in bursts.
const CHANCE: f64 = 4.0;

/// Sums over a group of exchanges.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sums {
    reports: f64,
    exchanges: f64,
    segs: f64,
    retrans: f64,
    times: Times,
}

/// Why windows are restarted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// More segments were sent again.
    Retransmitted,
    /// Exchanges took longer.
    Slower,
}

/// Knowledge of a network; pairs are of restarted windows and of kept ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// Whether windows are kept.
    pub keeps: bool,
    groups: [Sums; 2],
    /// Wait after harm.
    pub wait: Wait,
    /// Reason of the last return to the kernel's restart.
    pub harm: Option<Harm>,
    /// Smoothed RTT of the last report, µs.
    pub rtt_us: u32,
    /// CLOCK_MONOTONIC of the last report.
    pub seen_ns: u64,
}

impl Network {
    /// Exchanges of each group.
    pub fn exchanges(&self) -> [f64; 2] {
        self.groups.each_ref().map(|it| it.exchanges)
    }

    /// Share of segments that each group sent again.
    pub fn retransmitted(&self) -> [f64; 2] {
        self.groups.each_ref().map(|it| share(it.retrans, it.segs))
    }

    /// Time of exchanges with the window kept against those with a restarted one.
    pub fn effect(&self) -> Option<Effect> {
        let [restarted, kept] = &self.groups;
        Effect::new([(&restarted.times, &kept.times)])
    }

    /// Notes a report, and takes the step that is due.
    pub fn note(&mut self, report: &raw::thalweg_idle_report, now_ns: u64) {
        self.seen_ns = now_ns;
        self.rtt_us = report.rtt_us;
        let is_kept = report.group == raw::THALWEG_IDLE_KEPT;
        // From before windows were given back.
        if is_kept && !self.keeps {
            return;
        }
        // Of connections that were drawn: too long idle, or from before windows were kept.
        if self.keeps && report.group == raw::THALWEG_IDLE_RESTARTED {
            return;
        }
        let group = &mut self.groups[usize::from(is_kept)];
        group.reports += 1.0;
        group.exchanges += f64::from(report.exchanges);
        group.segs += f64::from(report.segs);
        group.retrans += f64::from(report.retrans);
        // A report that tells of a loss at once has fewer exchanges than others.
        (group.times).add(
            report.time_us,
            report.bytes,
            report.exchanges,
            Some(report.draw),
        );
        if !self.keeps {
            let restarted = &self.groups[0];
            let are_enough = restarted.exchanges >= EXCHANGES && restarted.reports >= REPORTS;
            self.keeps = are_enough && self.wait.is_over(now_ns);
        } else if let Some(harm) = self.found_harm() {
            let wait = &mut self.wait;
            wait.begin(now_ns);
            *self = Self {
                wait: *wait,
                harm: Some(harm),
                rtt_us: self.rtt_us,
                seen_ns: now_ns,
                ..Self::default()
            };
        }
    }

    fn found_harm(&self) -> Option<Harm> {
        let [restarted, kept] = &self.groups;
        let usual = share(restarted.retrans, restarted.segs);
        let allowed = kept.segs * (RETRANS_RATIO * usual + RETRANS_MORE);
        if kept.retrans > allowed + CHANCE * (allowed + 1.0).sqrt() {
            return Some(Harm::Retransmitted);
        }
        self.effect()?.is_harm().then_some(Harm::Slower)
    }
}

#[cfg(test)]
mod tests {
    use thalweg_bpf_types::raw;

    use super::{Harm, Network};

    /// Eight exchanges of 300 kB.
    fn exchanges(kept: bool) -> raw::thalweg_idle_report {
        raw::thalweg_idle_report {
            bytes: 2_400_000,
            time_us: if kept { 8 * 13_000 } else { 8 * 55_000 },
            exchanges: 8,
            segs: 1664,
            rtt_us: 10_000,
            group: match kept {
                true => raw::THALWEG_IDLE_KEPT,
                false => raw::THALWEG_IDLE_CONTROL,
            },
            ..raw::thalweg_idle_report::default()
        }
    }

    fn note(network: &mut Network, kept: bool, change: impl Fn(&mut raw::thalweg_idle_report)) {
        let mut report = exchanges(kept);
        // A draw of its own.
        report.draw = network.exchanges().iter().sum::<f64>() as u32;
        change(&mut report);
        network.note(&report, 1);
    }

    fn keeping() -> Network {
        let mut network = Network::default();
        for _ in 0..3 {
            assert!(!network.keeps);
            note(&mut network, false, |_| {});
        }
        assert!(network.keeps);
        network
    }

    #[test]
    fn kept_windows_show_what_they_bring() {
        let mut network = keeping();
        for number in 0..100 {
            note(&mut network, number % 6 == 0, |it| {
                it.time_us += 100 * number
            });
        }
        assert!(network.keeps, "{network:?}");
        let effect = network.effect();
        let ratio = effect.map(|it| it.ratio());
        assert!(ratio > Some(0.23) && ratio < Some(0.25), "{effect:?}");
    }

    #[test]
    fn losses_after_idle_times_take_windows_back_and_wait() {
        let mut network = keeping();
        // Chance.
        note(&mut network, true, |it| it.retrans = 6);
        assert!(network.keeps);
        note(&mut network, true, |it| it.retrans = 60);
        assert!(!network.keeps);
        assert_eq!(network.harm, Some(Harm::Retransmitted));
        for _ in 0..10 {
            note(&mut network, false, |_| {});
        }
        assert!(!network.keeps);
        network.note(&exchanges(false), 1 + crate::trials::WAIT_NS);
        assert!(network.keeps);
    }

    #[test]
    fn losses_that_restarted_windows_have_too_are_no_harm() {
        let mut network = Network::default();
        for number in 0..60 {
            let kept = network.keeps && number % 2 == 0;
            note(&mut network, kept, |it| it.retrans = 80);
        }
        assert!(network.keeps);
    }

    #[test]
    fn exchanges_of_few_draws_tell_little() {
        let mut network = keeping();
        for number in 0..100 {
            note(&mut network, number % 2 == 0, |it| {
                it.draw = it.group + 10 * (number as u32 % 5);
            });
        }
        assert_eq!(network.effect(), None);
    }

    #[test]
    fn restarts_that_no_draw_decided_are_in_no_group() {
        let mut network = keeping();
        let before = network.exchanges();
        note(&mut network, false, |it| {
            it.group = raw::THALWEG_IDLE_RESTARTED
        });
        assert_eq!(network.exchanges(), before);
    }

    #[test]
    fn slower_exchanges_take_windows_back() {
        let mut network = keeping();
        for number in 0..40 {
            note(&mut network, number % 2 == 0, |it| {
                it.time_us = if it.group != raw::THALWEG_IDLE_KEPT {
                    400_000
                } else {
                    480_000
                } + 100 * number;
            });
        }
        assert_eq!(network.harm, Some(Harm::Slower));
    }
}
