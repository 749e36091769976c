//! The policies in `policies/` can be used as they are.

use std::path::{Path, PathBuf};

use thalweg_policy::{Policy, WarningKind};

use crate::{compile, decide, flow};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies")
}

fn ready(name: &str) -> Policy {
    let file = directory().join(format!("{name}.toml"));
    let text = std::fs::read(&file).unwrap();
    Policy::parse(&text, &file).unwrap_or_else(|faults| panic!("{faults}"))
}

/// Each file, and the keys of the traps in its warnings.
const FILES: &[(&str, &[&str])] = &[
    ("base-rtt", &["base_rtt"]),
    ("bufs", &["rwnd_init", "sndbuf", "rcvbuf"]),
    ("clamp", &["cwnd_clamp", "sndbuf", "rcvbuf"]),
    ("connect-fast", &[]),
    ("delayed-ack-rto-min", &["delack_max", "rto_min"]),
    ("ecn-dctcp", &[]),
    ("iw", &["rwnd_init", "sndbuf", "rcvbuf", "initial_window"]),
    ("keep-alive", &[]),
    ("notsent-lowat", &[]),
    ("pacing-cap", &["max_pacing_rate"]),
    ("recover-fast", &["rto_min"]),
    ("rwnd", &["rwnd_init"]),
    ("statistics", &[]),
    ("syn-rto", &[]),
    ("tos-reflect", &[]),
    ("user-timeout", &[]),
];

#[test]
fn every_file_is_good() {
    let mut names: Vec<String> = std::fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    let known: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, known);
    for (name, traps) in FILES {
        let policy = ready(name);
        assert_eq!(policy.name, *name);
        assert!(!policy.description.is_empty(), "{name}");
        compile(&policy);
        let warnings = policy.warnings();
        let seen: Vec<&str> = warnings
            .iter()
            .map(|warning| {
                assert_eq!(warning.kind, WarningKind::Trap, "{name}: {warning:?}");
                warning.message.split(':').next().unwrap()
            })
            .collect();
        assert_eq!(seen, *traps, "{name}");
    }
}

#[test]
fn datacenters_are_told_by_44_bits() {
    for (name, across) in [("syn-rto", None), ("rwnd", Some("across")), ("clamp", None)] {
        let policy = ready(name);
        let inside = flow("2001:db8:1230::1", "2001:db8:123f:ffff::1");
        assert_eq!(
            decide(&policy, &inside).as_deref(),
            Some("inside"),
            "{name}"
        );
        let outside = flow("2001:db8:1230::1", "2001:db8:1240::1");
        assert_eq!(decide(&policy, &outside).as_deref(), across, "{name}");
        assert_eq!(
            decide(&policy, &flow("10.0.0.1", "10.0.0.2")),
            None,
            "{name}"
        );
    }
}
