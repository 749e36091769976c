//! Host records in the form of the API.

use thalweg_control::system;
use thalweg_learner::{Host, HostKey, Mode, ONE_Q16, best_arm, judged_q16};

use crate::events::metric;
use crate::present::{Presenter, is_in};
use crate::view;

const BITS: f64 = ONE_Q16 as f64;

impl Presenter<'_> {
    /// View of a host record, with the estimates of its arms.
    pub fn host(&self, key: &HostKey, host: &Host) -> view::Host {
        let system_arm = self.system_arm(key);
        let shares = self.shares(host, system_arm);
        let arms = self
            .arms
            .entries()
            .filter(|(index, _)| {
                let arm = &host.arms[*index];
                arm.chosen > 0 || arm.scored > 0 || arm.weight_q16 > 0 || shares[*index] > 0
            })
            .map(|(index, entry)| view::HostArm {
                harmful: is_in(host.harmful, index, system_arm),
                unsteady: is_in(host.unsteady, index, system_arm),
                ..self.arm(host, index, &entry.name, shares[index])
            })
            .collect();
        view::Host {
            address: key.to_string(),
            netns: key.netns,
            container: self.containers.get(&key.netns).cloned(),
            connections: host.connections,
            scored: host.scored,
            switched: host.switched,
            min_rtt_us: host.min_rtt_us,
            base_rtt_us: host.base_rtt().unwrap_or(0),
            queue_bits: f64::from(host.queue_q16) / BITS,
            max_rate_bytes_per_s: self.bytes_per_second(host.max_rate),
            idle_s: system::monotonic_ns().saturating_sub(host.seen_ns) / 1_000_000_000,
            best: self
                .best(host, system_arm)
                .map(|(_, name)| name.to_string()),
            arms,
        }
    }

    fn arm(&self, host: &Host, index: usize, name: &str, share: u32) -> view::HostArm {
        let arm = &host.arms[index];
        let thalweg = self.params.mode == Mode::Thalweg && arm.weight_q16 > 0;
        view::HostArm {
            arm: name.to_string(),
            metric: metric(self.params.mode, arm.value),
            count: arm.chosen,
            greedy: arm.greedy,
            min_rtt_us: arm.min_rtt_us,
            max_rate: match self.params.mode {
                Mode::Classic => arm.max_rate,
                Mode::Thalweg => arm.max_rate / 1_000_000,
            },
            scored: arm.scored,
            evidence: f64::from(arm.weight_q16) / BITS,
            cost_bits: if thalweg {
                arm.value as f64 / BITS
            } else {
                0.0
            },
            deviation_bits: f64::from(arm.deviation_q16) / BITS,
            rate_bytes_per_s: if thalweg {
                (f64::from(arm.log_rate_q16) / BITS).exp2()
            } else {
                0.0
            },
            srtt_us: arm.srtt_us,
            retransmitted: f64::from(arm.retrans) / f64::from(arm.segs.max(1)),
            harmful: false,
            unsteady: false,
            next_probability: f64::from(share) / BITS,
        }
    }

    fn bytes_per_second(&self, rate: u64) -> u64 {
        match self.params.mode {
            Mode::Classic => rate.saturating_mul(1_000_000),
            Mode::Thalweg => rate,
        }
    }

    /// The best arm, with its name.
    fn best(&self, host: &Host, system_arm: Option<usize>) -> Option<(usize, &str)> {
        let allowed = self.arms.allowed(self.params.mode, false);
        let index = best_arm(host, system_arm, allowed, self.params)?;
        Some((index, self.arms.name(index)?))
    }

    /// Cost of the best arm, in the unit of the mode; `None`: not measured.
    pub fn least_cost(&self, key: &HostKey, host: &Host) -> Option<u64> {
        let (index, _) = self.best(host, self.system_arm(key))?;
        Some(host.arms[index].value)
    }

    /// Sentence on the arm of the next connection, and the reason.
    pub fn summary(&self, key: &HostKey, host: &Host) -> String {
        let system_arm = self.system_arm(key);
        let shares = self.shares(host, system_arm);
        let percent = |index: usize| f64::from(shares[index]) / BITS * 100.0;
        let Some((index, best)) = self.best(host, system_arm) else {
            return format!(
                "Nothing measured yet ({} connections): the system default stays.",
                host.connections
            );
        };
        if self.params.mode == Mode::Classic {
            return format!(
                "{best} has the lowest cost of those measured; a connection runs it with {:.1} %.",
                percent(index)
            );
        }
        let judged = |index| judged_q16(host, index, system_arm);
        let second = self
            .arms
            .entries()
            .filter(|(i, entry)| *i != index && entry.present && host.arms[*i].weight_q16 > 0)
            .min_by_key(|(i, _)| judged(*i));
        let comparison = match second {
            None => "no other arm has been measured yet".to_string(),
            Some((i, entry)) => {
                let gap = judged(i).saturating_sub(judged(index)) as f64 / BITS;
                format!(
                    "{gap:.2} bits (a factor of {:.1}) ahead of {}",
                    gap.exp2(),
                    entry.name
                )
            }
        };
        let harmful: Vec<&str> = self
            .arms
            .entries()
            .filter(|(i, entry)| entry.present && is_in(host.harmful, *i, system_arm))
            .map(|(_, entry)| entry.name.as_str())
            .collect();
        let harm = if harmful.is_empty() {
            String::new()
        } else {
            format!(
                " Not chosen, for what it gains others lose: {}.",
                harmful.join(", ")
            )
        };
        let caution = if Some(index) == system_arm || system_arm.is_none() {
            ""
        } else {
            ", after the handicap that protects the system default"
        };
        let inherited =
            |(i, _): &(usize, _)| host.arms[*i].weight_q16 > 0 && host.arms[*i].scored == 0;
        let told = match host.step > 0 && self.arms.entries().any(|it| inherited(&it)) {
            true => {
                " Arms that were never scored here are known from its networks, and those from other agents."
            }
            false => "",
        };
        format!(
            "{best} costs least: {comparison}{caution}. The next connection runs it with {:.1} %, \
             the rest goes to checking the others.{harm}{told}",
            percent(index)
        )
    }
}
