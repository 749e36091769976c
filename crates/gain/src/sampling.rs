//! Which events are stored: those of a share of the host-hours, each of them whole.

use thalweg_units::random::mix;

/// The draw of host-hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// The draw differs with it.
    pub salt: u64,
}

impl Sampling {
    /// Whether a host's events of an hour are kept; `tag` is that of its key
    /// ([`thalweg_learner::HostKey::tag`]). What is kept at a share is also kept at each larger one.
    pub fn keeps_host(&self, tag: u64, hour: u64, share: f64) -> bool {
        let drawn = mix(mix(tag ^ self.salt).wrapping_add(hour));
        // All 53 bits of a number below 1.
        ((drawn >> 11) as f64) < share * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use thalweg_learner::{Control, HOUR_NS, HostKey};

    use super::*;

    const COUNT: f64 = 20_000.0;

    fn tags() -> impl Iterator<Item = u64> {
        (0..20_000u32).map(|i| HostKey::from(std::net::Ipv4Addr::from(0x0a00_0000 + i)).tag())
    }

    /// Share of the hosts for which something holds.
    fn part(holds: impl Fn(u64) -> bool) -> f64 {
        tags().filter(|tag| holds(*tag)).count() as f64 / COUNT
    }

    #[test]
    fn the_shares_are_those_asked_for() {
        for salt in [0, 1, 77, u64::MAX] {
            let sampling = Sampling { salt };
            for hour in [0, 1, 2, 1000] {
                for share in [0.5, 0.25, 0.1, 1.0 / 128.0] {
                    let found = part(|tag| sampling.keeps_host(tag, hour, share));
                    // Four standard deviations.
                    let off = 4.0 * (share * (1.0 - share) / COUNT).sqrt();
                    assert!((found - share).abs() < off, "{salt} {hour}: {found}");
                }
                assert!(tags().all(|tag| sampling.keeps_host(tag, hour, 1.0)));
            }
        }
    }

    #[test]
    fn a_host_hour_that_is_kept_is_kept_at_each_larger_share() {
        let sampling = Sampling { salt: 5 };
        for hour in 0..4 {
            for tag in tags() {
                let kept = |share: f64| sampling.keeps_host(tag, hour, share);
                let shares = [1.0 / 1024.0, 0.125, 0.25, 0.3, 0.5, 1.0];
                assert!(shares.is_sorted_by(|a, b| !kept(*a) || kept(*b)));
            }
        }
    }

    #[test]
    fn hours_salts_and_the_control_group_are_drawn_independently() {
        let one = Sampling { salt: 3 };
        let other = Sampling { salt: 4 };
        let control = Control {
            share_q16: 1 << 15,
            permanent_q16: 0,
            salt: 4,
        };
        let first = |tag| one.keeps_host(tag, 0, 0.5);
        for (found, what) in [
            (
                part(|tag| first(tag) && one.keeps_host(tag, 1, 0.5)),
                "hours",
            ),
            (
                part(|tag| first(tag) && one.keeps_host(tag, 24, 0.5)),
                "days",
            ),
            (
                part(|tag| first(tag) && other.keeps_host(tag, 0, 0.5)),
                "salts",
            ),
            (
                part(|tag| first(tag) && control.contains_cluster(tag, 0)),
                "control",
            ),
            (
                part(|tag| first(tag) && control.contains_cluster(tag, HOUR_NS)),
                "later",
            ),
        ] {
            // Four standard deviations of a quarter.
            assert!((found - 0.25).abs() < 0.0123, "{what}: {found}");
        }
    }
}
