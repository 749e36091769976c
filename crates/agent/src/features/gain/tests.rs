//! Advice by events: sides, what ends, and the words.

use thalweg_learner::Control;
use thalweg_units::prefix::Prefix;
use thalweg_units::random::Random;

use thalweg_bpf_types::raw;
use thalweg_gain::{Arm, Ledger, Limit, Limits, Scope, Side};

use super::advice::Source;
use super::durations::{HOUR_NS, LENGTH_MS};
use super::store::KeptGain;
use super::{Advice, Drawn, Gain, Question};
use crate::kernel::ArmTable;
use crate::view;

const NAMES: [&str; 3] = ["cubic", "bbr", "reno"];

fn kept() -> KeptGain {
    KeptGain {
        ledger: Ledger::default(),
        since_ms: 0,
        reverts: Vec::new(),
    }
}

fn gain(advises: bool) -> Gain {
    let drawn = Drawn {
        ipv4: 32,
        ipv6: 64,
        control: Control::default(),
        has_fleet: true,
    };
    let advice = advises.then(|| Advice::new(kept(), "cubic"));
    Gain::new(kept(), drawn, advice)
}

/// The end of a connection of the default arm; host 192.0.2.N for N below 256, and so on.
fn close(hour: u64, host: u16, busy_us: u64) -> raw::thalweg_event {
    let mut remote = [0; 16];
    remote[10..12].fill(0xff);
    remote[12..].copy_from_slice(&[192, 0, 2 + (host >> 8) as u8, host as u8]);
    raw::thalweg_event {
        time_ns: hour * HOUR_NS + HOUR_NS / 2,
        remote,
        remote_port: 443,
        kind: raw::THALWEG_EVENT_CLOSE as u8,
        arm: 0,
        system_arm: 0,
        chosen_arm: 0,
        flags: (raw::THALWEG_CONN_CONTROL | raw::THALWEG_CONN_DECIDED) as u8,
        reason: raw::THALWEG_REASON_CONTROL as u8,
        bytes: 500_000,
        duration_us: busy_us,
        wall_us: busy_us,
        srtt_us: 50_000,
        segs_out: 400,
        sample_flags: raw::THALWEG_SAMPLE_BUSY_TIME as u16,
        ..Default::default()
    }
}

fn trial(event: raw::thalweg_event, arm: u8) -> raw::thalweg_event {
    raw::thalweg_event {
        arm,
        chosen_arm: arm,
        flags: raw::THALWEG_CONN_DECIDED as u8,
        reason: raw::THALWEG_REASON_DRAWN as u8,
        ..event
    }
}

fn own(event: raw::thalweg_event, arm: u8, reason: u32) -> raw::thalweg_event {
    let owned = match reason {
        raw::THALWEG_REASON_APPLICATION => raw::THALWEG_CONN_APP_OWNED as u8,
        _ => 0,
    };
    raw::thalweg_event {
        arm,
        system_arm: arm,
        chosen_arm: raw::THALWEG_NO_ARM as u8,
        flags: owned,
        reason: reason as u8,
        ..event
    }
}

#[test]
fn sides_by_event() {
    let arms = ArmTable::of(&NAMES);
    let advice = Advice::new(kept(), "cubic");
    let side = |event: &raw::thalweg_event| advice.side(event, &arms);
    let itself = |name: &str| Some(Side::Itself(Arm::new(name).unwrap()));
    let drawn = |name: &str| Some(Side::Drawn(Arm::new(name).unwrap()));
    let plain = close(0, 1, 1000);
    assert_eq!(side(&plain), Some(Side::Control));
    assert_eq!(side(&trial(plain, 0)), drawn("cubic"));
    assert_eq!(side(&trial(plain, 2)), drawn("reno"));
    // What was intended counts, also where the kernel refused it.
    let refused = raw::thalweg_event {
        arm: 0,
        flags: (raw::THALWEG_CONN_DECIDED | raw::THALWEG_CONN_SET_FAILED) as u8,
        ..trial(plain, 1)
    };
    assert_eq!(side(&refused), drawn("bbr"));
    let application = raw::THALWEG_REASON_APPLICATION;
    assert_eq!(side(&own(plain, 1, application)), itself("bbr"));
    assert_eq!(
        side(&own(plain, 1, raw::THALWEG_REASON_FOREIGN)),
        itself("bbr")
    );
    let unknown = own(plain, raw::THALWEG_NO_ARM as u8, application);
    assert_eq!(side(&unknown), itself("unknown"));
    // Chosen by the application once it was established, in a trial or not.
    let late = raw::thalweg_event {
        arm: 2,
        flags: trial(plain, 1).flags | raw::THALWEG_CONN_APP_OWNED as u8,
        ..trial(plain, 1)
    };
    assert_eq!(side(&late), itself("reno"));
    // A network namespace whose default is another one; trials there would be of other hosts.
    let elsewhere = raw::thalweg_event {
        arm: 2,
        system_arm: 2,
        ..plain
    };
    assert_eq!(side(&elsewhere), itself("reno"));
    let elsewhere = raw::thalweg_event {
        system_arm: 2,
        ..trial(plain, 1)
    };
    assert_eq!(side(&elsewhere), None);
    // Left from a learner; and a dry run, whatever it decided.
    let chosen = raw::thalweg_event {
        arm: 1,
        flags: raw::THALWEG_CONN_DECIDED as u8,
        reason: raw::THALWEG_REASON_GREEDY as u8,
        ..plain
    };
    assert_eq!(side(&chosen), None);
    let dry = raw::thalweg_event {
        arm: 0,
        chosen_arm: 1,
        flags: (raw::THALWEG_CONN_DECIDED | raw::THALWEG_CONN_DRY_RUN) as u8,
        ..chosen
    };
    assert_eq!(side(&dry), Some(Side::Control));
}

/// An account of hosts in one hour each: two in three with the default, the others in trials of
/// bbr, which takes its factor of the time; and the same of applications beside the default.
fn account(trials: Option<f64>, itself: Option<f64>) -> Gain {
    let mut gain = gain(true);
    let arms = ArmTable::of(&NAMES);
    let mut random = Random::new(3);
    for hour in 0..4 {
        for host in 0..300 {
            let mut busy = |factor: f64| {
                let noise = (random.fraction() - 0.5).exp2();
                (1e6 * noise * factor) as u64
            };
            let mut events = Vec::new();
            match trials {
                Some(factor) if host % 3 == 0 => {
                    events.push(trial(close(hour, host, busy(factor)), 1));
                }
                _ => events.push(close(hour, host, busy(1.0))),
            }
            if let Some(factor) = itself {
                let event = close(hour, host, busy(factor));
                events.push(own(event, 1, raw::THALWEG_REASON_APPLICATION));
            }
            gain.take(&events, &arms);
        }
    }
    gain
}

fn question(source: Source) -> Question {
    Question {
        scope: Scope::All,
        prefix: None,
        now_ms: 4 * 3_600_000,
        events_dropped: 0,
        source,
        system: "cubic".to_owned(),
        untold: None,
    }
}

fn said(gain: &Gain, trials: f64) -> view::Advice {
    gain.advise(&question(Source::Advice { trials }))
}

#[test]
fn a_trial_that_takes_less_time_is_advised() {
    let gain = account(Some(0.5), None);
    let advice = said(&gain, 0.3);
    let all = &advice.groups[0];
    assert_eq!(
        (all.verdict.as_str(), all.best.as_deref()),
        ("take", Some("bbr"))
    );
    let start = "bbr would take ";
    let end = " % less time than cubic (between ";
    assert!(
        advice.summary.starts_with(start) && advice.summary.contains(end),
        "{}",
        advice.summary
    );
    assert!(!advice.summary.contains("experiment"));
    let [choice] = &all.choices[..] else {
        panic!("{all:?}")
    };
    assert_eq!((choice.by.as_str(), choice.ended), ("trial", false));
    let time = &choice.rows[0];
    // The first one is the yardstick of the others.
    assert_eq!((time.control, time.treated), (800, 399));
    let (low, high) = (time.low.unwrap(), time.high.unwrap());
    assert!(low < -50.0 && -50.0 < high && high - low < 20.0, "{time:?}");
    assert_eq!(advice.trials, Some(0.3));
    assert_eq!((advice.source.as_str(), advice.age_s), ("advice", 14_400));
}

#[test]
fn what_differs_by_itself_is_no_experiment() {
    let gain = account(None, Some(0.5));
    let advice = said(&gain, 0.0);
    assert!(
        advice
            .summary
            .starts_with("Connections that have bbr by themselves take "),
        "{}",
        advice.summary
    );
    assert!(advice.summary.contains("to the same hosts"));
    assert!(advice.summary.contains("it is no experiment"));
    let choice = &advice.groups[0].choices[0];
    assert_eq!(choice.by, "itself");
    // A trial that says otherwise has the last word.
    let advice = said(&account(Some(1.5), Some(0.5)), 0.3);
    assert_eq!(advice.groups[0].verdict, "keep");
    assert!(
        advice.summary.starts_with("cubic is best here"),
        "{}",
        advice.summary
    );
}

#[test]
fn without_a_difference_it_says_what_would_make_one() {
    let gain = account(None, None);
    for (source, words) in [
        (Source::Advice { trials: 0.0 }, "Nothing differs by itself"),
        (
            Source::Advice { trials: 0.1 },
            "no connection of a trial has ended",
        ),
        (Source::DryRun, "`thalweg run --advise 0.05`"),
        (
            Source::Learner { has_control: true },
            "no connection of the learner's has ended",
        ),
        (
            Source::Learner { has_control: false },
            "There is no control group",
        ),
    ] {
        let advice = gain.advise(&question(source));
        assert!(advice.summary.contains(words), "{}", advice.summary);
    }
    let none = said(&super::tests::gain(true), 0.0);
    assert!(none.summary.starts_with("No connection has ended yet"));
}

#[test]
fn trials_of_an_arm_that_is_worse_end() {
    let mut gain = account(Some(1.5), None);
    let advice = gain.advice.as_mut().unwrap();
    let ended = advice.look(2 * HOUR_NS, 1000);
    // Not all hours are over, but all of their clusters count.
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].0, "bbr");
    assert!(
        ended[0].1.starts_with("bbr would take ") && ended[0].1.contains(" % more time"),
        "{ended:?}"
    );
    assert_eq!(advice.ended().collect::<Vec<_>>(), ["bbr"]);
    assert!(advice.look(2 * HOUR_NS, 2000).is_empty(), "told once");
    assert!(said(&gain, 0.3).groups[0].choices[0].ended);
    // Comparisons begin anew, and so do trials.
    let advice = gain.advice.as_mut().unwrap();
    advice.look(2 * HOUR_NS, LENGTH_MS);
    assert_eq!(advice.ended().count(), 0);
}

#[test]
fn limits_are_told_with_what_they_need() {
    let arms = ArmTable::of(&NAMES);
    let mut gain = gain(true);
    for host in 0..10 {
        let mut event = close(0, host, 1_000_000);
        event.wall_us = 4_000_000;
        event.receiver_us = if host < 5 { 800_000 } else { 0 };
        gain.take(&[event], &arms);
    }
    let advice = said(&gain, 0.0);
    let limits = advice.groups[0].limits.as_ref().unwrap();
    assert_eq!((limits.connections, limits.busy_s), (10, 10.0));
    let shares = [limits.receiver, limits.buffer, limits.network, limits.idle];
    for (share, expected) in shares.iter().zip([0.4, 0.0, 0.6, 0.75]) {
        assert!((share - expected).abs() < 1e-9, "{shares:?}");
    }
    let [finding] = &limits.findings[..] else {
        panic!("{limits:?}")
    };
    assert_eq!(finding.limit, "receiver");
    assert_eq!(finding.setting, "net.ipv4.tcp_rmem");
    // 500 kB/s over 50 ms are 25 kB; twice that, and as much for the overhead.
    assert_eq!((finding.needed_bytes, finding.rtt_us), (100_000, 50_000));
    assert!(finding.words.contains("holds transfers up for 40 %"));
    assert!(finding.words.contains("No congestion control will help"));
    assert!(finding.words.contains("on the other end"));
}

#[test]
fn prefixes_are_found_by_what_overlaps() {
    let gain = account(Some(0.5), None);
    let of = |text: &str| {
        let asked = Question {
            scope: Scope::Prefix,
            prefix: Some(Prefix::parse(text).unwrap()),
            ..question(Source::Advice { trials: 0.3 })
        };
        let groups = gain.advise(&asked).groups.into_iter();
        groups.skip(1).map(|it| it.name).collect::<Vec<_>>()
    };
    assert_eq!(of("192.0.2.7"), ["192.0.2.0/24"]);
    assert_eq!(of("192.0.0.0/16"), ["192.0.2.0/24", "192.0.3.0/24"]);
    assert!(of("10.0.0.0/8").is_empty() && of("2001:db8::/32").is_empty());
}

#[test]
fn the_learner_says_what_its_control_group_does() {
    let arms = ArmTable::of(&NAMES);
    let mut gain = gain(false);
    let mut random = Random::new(3);
    for host in 0..600 {
        let mut busy = |factor: f64| (1e6 * (random.fraction() - 0.5).exp2() * factor) as u64;
        let event = match host % 2 {
            0 => close(0, host, busy(1.0)),
            _ => raw::thalweg_event {
                arm: 1,
                flags: raw::THALWEG_CONN_DECIDED as u8,
                reason: raw::THALWEG_REASON_GREEDY as u8,
                ..close(0, host, busy(0.5))
            },
        };
        // Nothing of another's trials.
        gain.take(&[event, trial(event, 1)], &arms);
    }
    let advice = gain.advise(&question(Source::Learner { has_control: true }));
    assert!(
        advice
            .summary
            .starts_with("What the learner chooses takes ")
            && advice.summary.contains("less time than cubic"),
        "{}",
        advice.summary
    );
    let all = &advice.groups[0];
    assert_eq!((all.verdict.as_str(), &all.best), ("take", &None));
    let time = &all.choices[0].rows[0];
    assert_eq!((time.control, time.treated), (299, 300));
    assert_eq!(advice.groups[0].limits.as_ref().unwrap().connections, 600);
}

#[test]
fn a_long_connection_counts_once_and_whole() {
    let stretch = |end: u32| raw::thalweg_event {
        end: end as u8,
        time_ns: 3 * HOUR_NS + 1_000_000_000,
        wall_us: 2_000_000,
        bytes: 500,
        duration_us: 50,
        segs_out: 5,
        retrans: 1,
        before: raw::thalweg_sums {
            bytes: 10_000,
            duration_us: 1000,
            wall_us: HOUR_NS / 1000,
            segs_out: 100,
            retrans: 2,
        },
        ..Default::default()
    };
    for goes_on in [raw::THALWEG_END_SWITCH, raw::THALWEG_END_STRETCH] {
        assert!(super::whole(&stretch(goes_on)).is_none());
    }
    let (hour, connection) = super::whole(&stretch(raw::THALWEG_END_RESET)).unwrap();
    // It began an hour and two seconds before one second past three.
    assert_eq!(hour, 1);
    assert_eq!((connection.bytes, connection.busy_us), (10_500, 1050));
    assert_eq!((connection.segs_out, connection.retrans), (105, 3));
    assert_eq!(connection.failed, Some(true));
    let (_, orderly) = super::whole(&stretch(raw::THALWEG_END_FIN_LOCAL)).unwrap();
    assert_eq!(orderly.failed, Some(false));
}

#[test]
fn last_stretch_of_a_connection_stands_for_the_limits_of_all() {
    let event = |receiver_us| raw::thalweg_event {
        end: raw::THALWEG_END_FIN_LOCAL as u8,
        receiver_us,
        before: raw::thalweg_sums {
            bytes: 4_500_000,
            duration_us: 90_000_000,
            wall_us: 90_000_000,
            ..Default::default()
        },
        ..close(0, 1, 10_000_000)
    };
    for (receiver_us, share) in [(10_000_000, 1.0), (4_000_000, 0.4), (u32::MAX, 1.0)] {
        let (_, connection) = super::whole(&event(receiver_us)).unwrap();
        let mut limits = Limits::default();
        limits.add_connection(&connection);
        assert_eq!(limits.connections, 1);
        assert!((limits.limit_share(Limit::Receiver) - share).abs() < 1e-9);
        assert_eq!(limits.idle_share(), 0.0);
    }
    // Idle in the earlier stretches.
    let mut event = event(0);
    event.before.duration_us = 30_000_000;
    let (_, connection) = super::whole(&event).unwrap();
    let mut limits = Limits::default();
    limits.add_connection(&connection);
    assert!((limits.idle_share() - 0.6).abs() < 1e-9);
}

#[test]
fn last_stretch_that_says_nothing_leaves_the_limits_of_all_unknown() {
    // One that was idle, rounded up to a tick of the kernel; one without any time; one whose receiver
    // took nothing all the time.
    for (duration_us, segs_out, receiver_us, is_known) in [
        (4000, 0, 0, false),
        (0, 0, 0, false),
        (0, 3, 0, false),
        (4000, 1, 0, true),
        (10_000_000, 0, 10_000_000, true),
    ] {
        let event = raw::thalweg_event {
            end: raw::THALWEG_END_FIN_LOCAL as u8,
            bytes: 0,
            segs_out,
            receiver_us,
            before: raw::thalweg_sums {
                bytes: 4_500_000,
                duration_us: 90_000_000,
                wall_us: 90_000_000,
                segs_out: 3000,
                ..Default::default()
            },
            ..close(0, 1, duration_us)
        };
        let (_, connection) = super::whole(&event).unwrap();
        assert_eq!(connection.busy_us, 90_000_000 + duration_us);
        assert_eq!(
            connection.held.is_some(),
            is_known,
            "{duration_us} {segs_out}"
        );
        let mut limits = Limits::default();
        limits.add_connection(&connection);
        assert_eq!(limits.connections, u64::from(is_known));
    }
}
