//! Shares, hours and their borders.

use thalweg_bpf_types::key_to_raw;
use thalweg_learner::HostKey;

use super::*;
use crate::config::Config;

const HOSTS: u32 = 4000;

fn kept() -> KeptSampling {
    KeptSampling {
        salt: 5,
        began_ns: 0,
        before: None,
        hours: BTreeMap::new(),
    }
}

/// The sampling of `[events]` with these keys, at a time in hours.
fn sampler(kept: KeptSampling, keys: &str, hours: f64) -> Sampler {
    let text = format!("[events]\n{keys}\n");
    let config = Config::parse(&text, std::path::Path::new("t.toml")).unwrap();
    Sampler::new(kept, &config.events, at(hours))
}

fn at(hours: f64) -> u64 {
    (hours * HOUR_NS as f64) as u64
}

/// An event at a time, ns, of a connection decided at another.
fn event(host: u32, decided_ns: u64, time_ns: u64) -> raw::thalweg_event {
    let key = HostKey::from(std::net::Ipv4Addr::from(0x0a00_0000 + host));
    raw::thalweg_event {
        time_ns,
        host: key_to_raw(&key),
        hour: (decided_ns / HOUR_NS) as u16,
        ..Default::default()
    }
}

/// The hosts whose events are kept.
fn hosts(sampler: &mut Sampler, decided_ns: u64, time_ns: u64) -> Vec<u32> {
    let mut kept = |host| sampler.take(&event(host, decided_ns, time_ns)) > 0.0;
    (0..HOSTS).filter(|host| kept(*host)).collect()
}

#[test]
fn an_end_belongs_to_the_hour_of_its_decision_to_the_nanosecond() {
    let border = 3 * HOUR_NS;
    let mut sampler = sampler(kept(), "share = 0.25", 2.5);
    let before = hosts(&mut sampler, border - 1, border - 1);
    let count = f64::from(HOSTS);
    // Four standard deviations.
    let off = 4.0 * (count * 0.25 * 0.75).sqrt();
    assert!(
        (before.len() as f64 - 0.25 * count).abs() < off,
        "{}",
        before.len()
    );
    // Their ends, a nanosecond and some years later.
    for end in [border, border + 20_000 * HOUR_NS] {
        sampler.advance(end);
        assert_eq!(hosts(&mut sampler, border - 1, end), before);
    }
    let after = hosts(&mut sampler, border, border);
    let both = after.iter().filter(|host| before.contains(host)).count();
    let off = 4.0 * (count / 16.0 * 15.0 / 16.0).sqrt();
    assert!(
        (both as f64 - count / 16.0).abs() < off,
        "{both}: drawn anew"
    );
}

#[test]
fn the_share_is_that_of_the_connections_hour_whatever_follows() {
    let quarter = |at_h: u64, hours| {
        let mut kept = kept();
        kept.hours = [(
            at_h,
            Hour {
                share: 0.25,
                seen: 9,
            },
        )]
        .into();
        sampler(kept, "share = 0.5", hours)
    };
    // A new configuration, and a restart, wait for the hour.
    let mut sampler = quarter(2, 2.9);
    assert_eq!(sampler.share(), 0.25);
    sampler.advance(at(3.0) - 1);
    assert_eq!(sampler.share(), 0.25);
    sampler.advance(at(3.0));
    assert_eq!(sampler.share(), 0.5);
    assert_eq!(sampler.share_since(at(2.99)), 0.25);
    assert_eq!(sampler.share_since(at(3.0)), 0.5);
    let mut stands_for = |decided: f64, host| {
        let event = event(host, at(decided), at(3.1));
        sampler.take(&event)
    };
    for host in 0..HOSTS {
        // Before all hours that are known, everything was kept.
        assert_eq!(stands_for(1.5, host), 1.0);
        let old = stands_for(2.5, host);
        assert!(old == 0.0 || old == 4.0);
        let new = stands_for(3.05, host);
        assert!(new == 0.0 || new == 2.0);
    }
    // Hours without an agent had the share of the last one with it.
    let mut sampler = quarter(2, 7.5);
    assert_eq!(sampler.share(), 0.5);
    let old = hosts(&mut sampler, at(6.5), at(7.5)).len();
    assert!(
        (900..1100).contains(&old),
        "{old} of {HOSTS}, expected a quarter"
    );
}

#[test]
fn the_share_makes_the_events_of_a_retention_fit() {
    // Events an hour, hours, and what fits: 1,000 rows over 10 hours.
    let keys = "retention = \"10h\"\nretention_max = 1000";
    for (seen, share) in [
        (0, 1.0),
        (100, 1.0),
        (101, 0.5),
        (200, 0.5),
        (201, 0.25),
        (12_800, 1.0 / 128.0),
        (u64::MAX / 32, 0.5f64.powi(20)),
    ] {
        for known in [1, 24] {
            let mut kept = kept();
            kept.hours = (0..known)
                .map(|hour| (hour, Hour { share: 1.0, seen }))
                .collect();
            let sampler = sampler(kept, keys, known as f64);
            assert_eq!(sampler.share(), share, "{seen} in each of {known} hours");
        }
    }
}

#[test]
fn the_events_to_be_expected_are_those_of_the_day_before() {
    let seen = |seen| Hour { share: 1.0, seen };
    let mut kept = kept();
    kept.began_ns = at(1.95);
    kept.hours = [(1, seen(900)), (2, seen(1000))].into();
    let near = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-6;
    // Three minutes say nothing.
    assert_eq!(kept.expected(2), None);
    assert!(near(kept.expected(3), 1900.0 / 1.05));
    // Hours without an agent had none.
    assert!(near(kept.expected(5), 1900.0 / 3.05));
    // More than a day later, the first hours are forgotten.
    assert!(near(kept.expected(26), 1000.0 / 24.0));
    assert!(near(kept.expected(27), 0.0));
    // What was expected before the boot stands for the rest of the day.
    kept.before = Some(4800.0);
    assert!(near(kept.expected(2), (900.0 + 4800.0 * 23.95) / 24.0));
    assert!(near(kept.expected(26), 1000.0 / 24.0));
}

#[test]
fn events_that_are_not_kept_are_counted_and_the_latest_remembered() {
    let mut sampler = sampler(kept(), "share = 0.5", 2.1);
    assert!(sampler.has_turned());
    let first = Hour {
        share: 0.5,
        seen: 0,
    };
    assert_eq!(sampler.take_changes(), [(2, first)]);
    assert!(!sampler.has_turned() && sampler.take_changes().is_empty());
    let kept = hosts(&mut sampler, at(2.2), at(2.2));
    let left_out = (0..HOSTS).rev().filter(|host| !kept.contains(host));
    let left_out: Vec<_> = left_out.map(|host| event(host, 0, 0).host.addr).collect();
    let recent: Vec<_> = sampler
        .recent()
        .iter()
        .map(|event| event.host.addr)
        .collect();
    assert_eq!(recent, left_out[..RECENT]);
    sampler.advance(at(3.0));
    assert!(sampler.has_turned());
    let changes = sampler.take_changes();
    let hour = |seen| Hour { share: 0.5, seen };
    assert_eq!(changes, [(2, hour(u64::from(HOSTS))), (3, hour(0))]);
    // What could not be saved is tried again.
    sampler.put_back(&changes);
    sampler.take(&event(1, at(3.0), at(3.0)));
    assert!(sampler.has_turned());
    let again = [(2, hour(u64::from(HOSTS))), (3, hour(1))];
    assert_eq!(sampler.take_changes(), again);
}
