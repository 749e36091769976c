//! The catalogue against the system's headers, and each key through the parser.

use thalweg_bpf_types::raw;
use thalweg_policy::catalogue::{KEYS, KernelOperation, Unit};
use thalweg_policy::{Stage, Value, Version, catalogue};

use crate::{rules, try_parse};

/// The kernel's program remembers a cap under its option's number modulo this.
#[test]
fn caps_have_places_of_their_own() {
    let places = KEYS.iter().filter(|key| key.cap.is_some()).map(|key| {
        let KernelOperation::SetNumber { name, .. } = key.does else {
            panic!("{}: no number", key.name);
        };
        u32::from(name) % raw::THALWEG_CAPS
    });
    let mut places: Vec<u32> = places.collect();
    assert!(places.len() >= 7, "{places:?}");
    places.sort_unstable();
    assert!(places.is_sorted_by(|one, next| one < next), "{places:?}");
}

#[test]
fn numbers_are_the_systems() {
    let numbers: &[(&str, i32, i32)] = &[
        ("congestion", libc::SOL_TCP, libc::TCP_CONGESTION),
        ("sndbuf", libc::SOL_SOCKET, libc::SO_SNDBUF),
        ("rcvbuf", libc::SOL_SOCKET, libc::SO_RCVBUF),
        ("window_clamp", libc::SOL_TCP, libc::TCP_WINDOW_CLAMP),
        ("notsent_lowat", libc::SOL_TCP, libc::TCP_NOTSENT_LOWAT),
        ("rcvlowat", libc::SOL_SOCKET, libc::SO_RCVLOWAT),
        (
            "max_pacing_rate",
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
        ),
        ("nodelay", libc::SOL_TCP, libc::TCP_NODELAY),
        ("max_segment", libc::SOL_TCP, libc::TCP_MAXSEG),
        ("syn_count", libc::SOL_TCP, libc::TCP_SYNCNT),
        (
            "thin_linear_timeouts",
            libc::SOL_TCP,
            libc::TCP_THIN_LINEAR_TIMEOUTS,
        ),
        ("user_timeout", libc::SOL_TCP, libc::TCP_USER_TIMEOUT),
        ("keepalive", libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        ("keepalive_idle", libc::SOL_TCP, libc::TCP_KEEPIDLE),
        ("keepalive_interval", libc::SOL_TCP, libc::TCP_KEEPINTVL),
        ("keepalive_count", libc::SOL_TCP, libc::TCP_KEEPCNT),
        ("priority", libc::SOL_SOCKET, libc::SO_PRIORITY),
        ("mark", libc::SOL_SOCKET, libc::SO_MARK),
        ("bind_to_device", libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
        ("tos", libc::SOL_IP, libc::IP_TOS),
        ("tclass", libc::SOL_IPV6, libc::IPV6_TCLASS),
        ("save_syn", libc::SOL_TCP, libc::TCP_SAVE_SYN),
        // Newer than the libc crate: from the kernel's headers.
        ("initial_window", libc::SOL_TCP, 1001),
        ("cwnd_clamp", libc::SOL_TCP, 1002),
        ("delack_max", libc::SOL_TCP, 1003),
        ("rto_min", libc::SOL_TCP, 1004),
        ("rto_max", libc::SOL_TCP, 44),
        ("tx_rehash", libc::SOL_SOCKET, 74),
        ("autoflowlabel", libc::SOL_IPV6, 70),
    ];
    let mut options = 0;
    for key in KEYS {
        let (level, name) = match key.does {
            KernelOperation::SetNumber { level, name }
            | KernelOperation::SetText { level, name } => (level, name),
            _ => continue,
        };
        options += 1;
        let (_, own_level, own_name) = numbers.iter().find(|(own, ..)| *own == key.name).unwrap();
        assert_eq!(
            (i32::from(level), i32::from(name)),
            (*own_level, *own_name),
            "{}",
            key.name
        );
    }
    assert_eq!(options, numbers.len());
}

/// An accepted value.
fn sample(unit: Unit, value: u32) -> String {
    match unit {
        Unit::Flag | Unit::Only => (value != 0).to_string(),
        Unit::Number | Unit::Option => value.to_string(),
        Unit::Bytes => format!("\"{value}B\""),
        Unit::Time(1) => format!("\"{value}us\""),
        Unit::Time(1_000) => format!("\"{value}ms\""),
        Unit::Time(_) => format!("\"{value}s\""),
        Unit::Rate => format!("\"{}bit\"", u64::from(value) * 8),
        Unit::Congestion | Unit::Device => format!("\"{}\"", "x".repeat(value as usize)),
        Unit::Arms => {
            let names: Vec<String> = (0..value).map(|n| format!("a{n}")).collect();
            format!("{names:?}")
        }
    }
}

#[test]
fn each_key_takes_its_bounds_and_no_more() {
    for key in KEYS {
        let text = |value: String| {
            format!(
                "name = \"t\"\n[[rule]]\nname = \"r\"\nset = {{ {} = {value} }}\n",
                key.name
            )
        };
        let (least, most) = key.range;
        for value in [least, most] {
            let text = text(sample(key.unit, value));
            let policy = crate::parse(&text);
            let action = &policy.rules[0].actions[0];
            assert_eq!((action.key.name, action.stages), (key.name, key.set));
            if let Value::Number(number) = action.value {
                assert_eq!(number, value, "{text}");
            }
            // The printed form is read as the same value.
            let again = crate::parse(&text.replace(&sample(key.unit, value), &action.value_text()));
            assert_eq!(again.rules[0].actions[0].value, action.value, "{text}");
        }
        let mut bad = vec!["[]".to_owned(), "\"\"".into(), "1.5".into(), "-1".into()];
        match key.unit {
            Unit::Flag | Unit::Only => bad.push("1".into()),
            unit => {
                bad.push("true".into());
                bad.extend(most.checked_add(1).map(|value| sample(unit, value)));
                bad.extend(least.checked_sub(1).map(|value| sample(unit, value)));
            }
        }
        if key.unit == Unit::Only {
            bad.push("false".into());
        }
        for value in bad {
            let faults = match try_parse(&text(value.clone())) {
                Ok(_) => panic!("{} = {value} was accepted", key.name),
                Err(faults) => faults,
            };
            let message = faults.to_string();
            let place = format!(
                "t.toml:4:{}: rule \"r\": set.{}: ",
                12 + key.name.len(),
                key.name
            );
            assert!(message.starts_with(&place), "{message}");
            assert!(message.contains("expected"), "{message}");
        }
    }
}

#[test]
fn each_key_keeps_to_its_stages() {
    for key in KEYS {
        for &stage in Stage::ALL {
            let value = sample(key.unit, key.range.1);
            let text = format!(
                "name = \"t\"\n[[rule]]\nname = \"r\"\non.{} = {{ {} = {value} }}\n",
                stage.name(),
                key.name
            );
            let parsed = try_parse(&text);
            if key.on & stage.bit() != 0 {
                let policy = parsed.unwrap();
                assert_eq!(policy.rules[0].actions[0].stages, stage.bit(), "{text}");
            } else {
                let message = parsed.unwrap_err().to_string();
                assert!(message.contains("t.toml:4:"), "{message}");
            }
        }
    }
}

#[test]
fn a_stage_of_its_own_leaves_the_others_to_set() {
    let policy = rules(
        "[[rule]]\nname = \"r\"\nset = { sndbuf = \"1MiB\" }\non.connect = { sndbuf = \"64KiB\" }\n",
    );
    let seen: Vec<_> = policy.rules[0]
        .actions
        .iter()
        .map(|action| (action.stages, action.value_text()))
        .collect();
    assert_eq!(
        seen,
        [
            (Stage::Established.bit(), "\"1MiB\"".to_owned()),
            (Stage::Connect.bit(), "\"64KiB\"".to_owned()),
        ]
    );
}

#[test]
fn versions_are_those_of_the_later_of_option_and_hook() {
    let since = |name: &str, stage: Stage| {
        catalogue::find_key(name)
            .unwrap()
            .first_kernel_at(stage.bit())
    };
    assert_eq!(since("congestion", Stage::Established), Version(4, 13));
    assert_eq!(since("congestion", Stage::Listen), Version(4, 19));
    assert_eq!(since("congestion", Stage::Rtt), Version(5, 3));
    assert_eq!(since("rto_max", Stage::Rtt), Version(6, 15));
    assert_eq!(since("statistics", Stage::Close), Version(4, 16));
    assert_eq!(since("statistics", Stage::Rtt), Version(5, 3));
}
