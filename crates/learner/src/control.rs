//! The control group: connections that keep the system's congestion control on purpose.

use crate::host::MAX_ARMS;
use crate::key::mix_hash;

/// Hours count from the machine's start: draws of hosts are made anew after this time, ns.
pub const HOUR_NS: u64 = 3_600_000_000_000;

/// Who belongs to the control group: clusters (by default: hosts) for an hour, and some for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Share of cluster-hours, Q16.
    pub share_q16: u32,
    /// Share of clusters that always belong to it, Q16.
    pub permanent_q16: u32,
    /// The draw differs with it.
    pub salt: u64,
}

impl Control {
    /// Whether a cluster belongs to the control group at a monotonic time; `tag` is that of its
    /// key ([`crate::HostKey::tag`]).
    pub fn contains_cluster(&self, tag: u64, now_ns: u64) -> bool {
        // Two rounds: after one, consecutive hours differ by a constant.
        let hour = mix_hash(mix_hash(tag ^ self.salt, now_ns / HOUR_NS), self.salt) & 0xffff;
        let always = mix_hash(mix_hash(tag, self.salt.wrapping_add(1)), 0) & 0xffff;
        hour < u64::from(self.share_q16) || always < u64::from(self.permanent_q16)
    }

    /// Under advice: the arm of a cluster's trials at a monotonic time, of a mask: each with the
    /// same probability; `None` of an empty one. Each arm has a rank of its own, so that an arm
    /// that comes or goes moves no cluster from one of the others to another.
    pub fn trial_arm(&self, tag: u64, allowed: u16, now_ns: u64) -> Option<usize> {
        let hour = mix_hash(tag ^ self.salt, now_ns / HOUR_NS);
        let draw = mix_hash(hour, self.salt.wrapping_add(2));
        let rank = |arm: usize| mix_hash(mix_hash(draw, arm as u64), self.salt);
        let arms = (0..MAX_ARMS).filter(|arm| allowed >> arm & 1 == 1);
        // Of equal ranks the first one.
        arms.max_by_key(|&arm| (rank(arm), std::cmp::Reverse(arm)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
mod tests {
    use super::*;
    use crate::HostKey;

    fn tags() -> impl Iterator<Item = u64> {
        (0..20_000u32).map(|i| HostKey::from(std::net::Ipv4Addr::from(0x0a00_0000 + i)).tag())
    }

    fn share(control: Control, hour: u64) -> f64 {
        let held = tags().filter(|tag| control.contains_cluster(*tag, hour * HOUR_NS + 5));
        held.count() as f64 / 20_000.0
    }

    #[test]
    fn the_shares_are_those_asked_for() {
        for salt in [0, 1, 77, u64::MAX] {
            let hourly = Control {
                share_q16: 3277,
                permanent_q16: 0,
                salt,
            };
            for hour in [0, 1, 2, 1000] {
                let found = share(hourly, hour);
                assert!((0.04..0.06).contains(&found), "{salt} {hour}: {found}");
            }
            let permanent = Control {
                share_q16: 0,
                permanent_q16: 655,
                salt,
            };
            let found = share(permanent, 3);
            assert!((0.007..0.013).contains(&found), "{salt}: {found}");
            assert!((share(permanent, 4) - found).abs() < 1e-12, "for good");
        }
    }

    /// Shares of the arms of a mask, over the clusters of one hour that are outside of a control
    /// group of nine in ten.
    fn shares(salt: u64, allowed: u16, hour: u64) -> Vec<f64> {
        let group = Control {
            share_q16: 58_982,
            permanent_q16: 0,
            salt,
        };
        let now_ns = hour * HOUR_NS + 7;
        let mut counts = [0.0; MAX_ARMS];
        tags()
            .filter(|tag| !group.contains_cluster(*tag, now_ns))
            .for_each(|tag| counts[group.trial_arm(tag, allowed, now_ns).unwrap()] += 1.0);
        let sum: f64 = counts.iter().sum();
        assert!((1_800.0..2_200.0).contains(&sum), "{sum}");
        counts.iter().map(|count| count / sum).collect()
    }

    #[test]
    fn permitted_arms_are_drawn_alike() {
        for salt in [0, 1, 77, u64::MAX] {
            for (allowed, expected) in [(0b1, 1.0), (0b1011, 1.0 / 3.0), (0x8021, 1.0 / 3.0)] {
                for hour in [0, 1, 1000] {
                    for (arm, share) in shares(salt, allowed, hour).into_iter().enumerate() {
                        let expected = f64::from(allowed >> arm & 1) * expected;
                        // Five deviations of 2,000 draws.
                        assert!((share - expected).abs() < 0.053, "{salt} {allowed:b} {arm}");
                    }
                }
            }
        }
        assert_eq!(Control::default().trial_arm(1, 0, 0), None);
    }

    #[test]
    fn an_arm_that_goes_moves_only_its_own_clusters() {
        let group = Control {
            salt: 5,
            ..Control::default()
        };
        let arm = |tag, allowed| group.trial_arm(tag, allowed, HOUR_NS).unwrap();
        let kept = tags().filter(|&tag| arm(tag, 0b1111) != 2);
        for tag in kept {
            assert_eq!(arm(tag, 0b1011), arm(tag, 0b1111));
        }
        let moved = |hour| {
            let same = |tag: &u64| {
                group.trial_arm(*tag, 0b1111, 0) == group.trial_arm(*tag, 0b1111, hour * HOUR_NS)
            };
            tags().filter(same).count() as f64 / 20_000.0
        };
        for hour in [1, 24] {
            assert!((moved(hour) - 0.25).abs() < 0.02, "{hour}: drawn anew");
        }
    }

    #[test]
    fn hours_and_salts_draw_independently() {
        let control = |salt| Control {
            share_q16: 1 << 14,
            permanent_q16: 0,
            salt,
        };
        let both = |a: Control, b: Control, later: u64| {
            let held = tags().filter(|tag| {
                a.contains_cluster(*tag, 0) && b.contains_cluster(*tag, later * HOUR_NS)
            });
            held.count() as f64 / 20_000.0
        };
        for (found, what) in [
            (both(control(3), control(3), 1), "the next hour"),
            (both(control(3), control(3), 24), "the next day"),
            (both(control(3), control(4), 0), "another salt"),
        ] {
            assert!((0.05..0.075).contains(&found), "{what}: {found}, not 1/16");
        }
        let tag = tags().next().unwrap();
        assert!(
            !Control::default().contains_cluster(tag, 0),
            "no share, no group"
        );
    }
}
