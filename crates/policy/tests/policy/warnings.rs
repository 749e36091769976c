//! Warnings of `check`, and cases without one.

use thalweg_policy::WarningKind;

use crate::rules;

/// Kind, line and message of each warning that is not a trap.
fn warnings(text: &str) -> Vec<(WarningKind, usize, String)> {
    let warnings = rules(text).warnings();
    let real = warnings
        .into_iter()
        .filter(|warning| warning.kind != WarningKind::Trap);
    // Lines of the text without the line of the policy's name.
    real.map(|warning| (warning.kind, warning.at.line - 1, warning.message))
        .collect()
}

fn rule(name: &str, conditions: &str, rest: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\nmatch = {{ {conditions} }}\n{rest}\n")
}

const SET: &str = "set = { nodelay = true }";

#[test]
fn each_trap_is_told_once() {
    let text = [
        rule(
            "a",
            "remote_port = 1",
            "set = { sndbuf = \"1MiB\", cwnd_clamp = 9 }",
        ),
        rule("b", "remote_port = 2", "set = { sndbuf = \"2MiB\" }"),
        rule("c", "remote_port = 3", "set = { sndbuf = \"2MiB\" }"),
    ];
    let seen = rules(&text.concat()).warnings();
    let seen: Vec<_> = seen
        .iter()
        .map(|warning| (&*warning.rule, &*warning.message))
        .collect();
    assert_eq!(seen.len(), 2);
    assert!(
        seen[0].1.starts_with("sndbuf: A fixed buffer ends"),
        "{seen:?}"
    );
    assert!(seen[0].1.ends_with("(so in 2 other rules)"), "{seen:?}");
    assert!(
        seen[1]
            .1
            .starts_with("cwnd_clamp: It sets the slow-start threshold"),
        "{seen:?}"
    );
}

#[test]
fn setting_of_a_listener_with_a_share_is_incomplete() {
    let listener = "on.listen = { rcvbuf = \"1MiB\" }";
    let shared = rule("shared", "local_port = 80, sample = \"10%\"", listener);
    let seen = warnings(&shared);
    let [(kind, 4, message)] = &seen[..] else {
        panic!("{seen:?}");
    };
    assert_eq!(*kind, WarningKind::Incomplete);
    assert!(
        message.starts_with("a listener draws for itself"),
        "{message}"
    );
    assert!(warnings(&rule("all", "local_port = 80", listener)).is_empty());
    for (conditions, set) in [
        ("local_port = 80, sample = \"10%\"", SET),
        (
            "direction = \"active\", sample = \"10%\"",
            "set = { max_segment = 900 }",
        ),
        ("sample = \"10%\"", "set = { send_option = 7 }"),
    ] {
        assert_eq!(
            warnings(&rule("other", conditions, set)),
            [],
            "{conditions}"
        );
    }
}

#[test]
fn what_many_rules_have_in_the_same_words_is_told_once() {
    let text: String = (1..=1000)
        .map(|port| {
            rule(
                &format!("r{port}"),
                &format!("remote_port = {port}"),
                "set = { keepalive_idle = \"1m\" }",
            )
        })
        .collect();
    let seen = rules(&text).warnings();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].rule, "r1");
    assert!(
        seen[0].message.ends_with("(so in 999 other rules)"),
        "{seen:?}"
    );
}

#[test]
fn a_rule_that_an_earlier_one_covers_is_shadowed() {
    for (earlier, later) in [
        ("", ""),
        ("", "remote_port = 80"),
        ("remote_port = \"1-100\"", "remote_port = [80, \"90-95\"]"),
        (
            "remote = [\"10.0.0.0/8\", \"::/0\"]",
            "remote = \"10.0.0.0/8\", local_port = 3",
        ),
        (
            "local = \"10.0.0.0/8\"",
            "local = \"10.0.0.0/8\", direction = \"active\"",
        ),
        ("cgroup = \"/a\"", "cgroup = [\"/a/b\", \"/a\"]"),
        ("same_prefix = 44", "same_prefix = 44, netns = \"blue\""),
        ("sample = \"2%\"", "sample = \"1%\""),
    ] {
        let text = rule("e", earlier, SET) + &rule("l", later, SET);
        let seen = warnings(&text);
        assert_eq!(seen.len(), 1, "{earlier} / {later}: {seen:?}");
        let (kind, line, message) = &seen[0];
        assert_eq!((*kind, *line), (WarningKind::Shadowed, 5), "{message}");
        assert!(message.contains("\"e\" in line 2"), "{message}");
    }
}

#[test]
fn a_rule_that_can_win_is_not() {
    for (earlier, later) in [
        ("remote_port = 80", ""),
        ("remote = \"10.0.0.0/8\"", "remote = \"10.1.0.0/16\""),
        (
            "remote = \"10.0.0.0/8\"",
            "remote = [\"10.0.0.0/8\", \"11.0.0.0/8\"]",
        ),
        ("", "remote = \"10.0.0.0/8\""),
        ("", "local = \"10.0.0.0/8\""),
        ("", "same_prefix = 44"),
        ("same_prefix = 44", "same_prefix = 48"),
        ("same_prefix = 44", "remote = \"::/0\""),
        (
            "remote_port = [\"1-50\", \"51-100\"]",
            "remote_port = \"40-60\"",
        ),
        ("cgroup = \"/a/b\"", "cgroup = \"/a\""),
        ("sample = \"1%\"", ""),
        ("sample = \"1%\"", "sample = \"2%\""),
        ("direction = \"active\"", ""),
        ("netns = \"blue\"", "netns = \"red\""),
        ("remote = \"0.0.0.0/0\"", ""),
    ] {
        let text = rule("e", earlier, SET) + &rule("l", later, SET);
        assert_eq!(warnings(&text), [], "{earlier} / {later}");
    }
}

#[test]
fn a_rule_that_protects_covers_longer_prefixes_and_earlier_rules() {
    let never = "never = true";
    for (protected, other, covered) in [
        ("remote = \"10.0.0.0/8\"", "remote = \"10.1.0.0/16\"", true),
        (
            "remote = \"10.0.0.0/8\"",
            "remote = [\"10.1.0.0/16\", \"10.2.3.4\"]",
            true,
        ),
        (
            "remote = \"10.0.0.0/8\"",
            "remote = [\"10.1.0.0/16\", \"11.0.0.0/8\"]",
            false,
        ),
        ("", "same_prefix = 44", true),
        ("remote_port = 22", "remote = \"10.1.0.0/16\"", false),
        ("local = \"10.0.0.0/8\"", "local = \"10.0.0.0/9\"", true),
    ] {
        for text in [
            rule("o", other, SET) + &rule("n", protected, never),
            rule("n", protected, never) + &rule("o", other, SET),
        ] {
            let seen = warnings(&text);
            assert_eq!(
                seen.len(),
                usize::from(covered),
                "{protected} / {other}: {seen:?}"
            );
            assert!(seen.iter().all(|(kind, ..)| *kind == WarningKind::Shadowed));
        }
    }
}

#[test]
fn the_same_conditions_with_another_value_are_a_conflict() {
    let text = rule(
        "a",
        "remote_port = 1",
        "on.established = { priority = 1, tos = 2 }",
    ) + &rule("b", "remote_port = 1", "on.established = { tos = 3 }");
    let seen = warnings(&text);
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!((seen[0].0, seen[0].1), (WarningKind::Conflict, 8));
    assert!(seen[0].2.contains("sets tos to something else"), "{seen:?}");
}

#[test]
fn what_no_flow_can_have() {
    for (conditions, settings, message) in [
        (
            "remote = \"10.0.0.0/8\", local = \"::/0\"",
            SET,
            "different families",
        ),
        (
            "remote = \"10.0.0.0/8\", same_prefix = 8",
            SET,
            "different families",
        ),
        (
            "remote = \"2001:db8::/32\", local = \"2001:db9::/32\", same_prefix = 44",
            SET,
            "within the bits that same_prefix asks for",
        ),
        (
            "remote = \"10.0.0.0/8\"",
            "set = { save_syn = true }",
            "a listener has no peer",
        ),
        (
            "direction = \"active\"",
            "set = { save_syn = true }",
            "direction excludes it",
        ),
        (
            "direction = \"passive\"",
            "set = { syn_count = 2 }",
            "direction excludes it",
        ),
        (
            "direction = \"active\"",
            "set = { reflect_tos = true }",
            "for flows that the peer opens",
        ),
        (
            "remote = \"::/0\"",
            "on.established = { tos = 2 }",
            "tos is for IPv4",
        ),
        (
            "local = \"10.0.0.0/8\"",
            "set = { tclass = 2 }",
            "tclass is for IPv6",
        ),
    ] {
        let seen = warnings(&rule("r", conditions, settings));
        assert_eq!(seen.len(), 1, "{conditions} {settings}: {seen:?}");
        assert_eq!(seen[0].0, WarningKind::Nothing);
        assert!(seen[0].2.contains(message), "{seen:?}");
    }
    for (conditions, settings) in [
        ("remote = [\"10.0.0.0/8\", \"::/0\"], local = \"::1\"", SET),
        (
            "remote = \"2001:db8::/32\", local = \"2001:db8:1::/48\", same_prefix = 44",
            SET,
        ),
        (
            "direction = \"passive\"",
            "set = { sndbuf = \"1MiB\", save_syn = true }",
        ),
        (
            "remote = \"0.0.0.0/0\"",
            "set = { save_syn = true }\non.established = { tos = 2 }",
        ),
    ] {
        assert_eq!(
            warnings(&rule("r", conditions, settings)),
            [],
            "{conditions} {settings}"
        );
    }
}

#[test]
fn settings_that_need_another() {
    for (settings, message) in [
        (
            "set = { congestion = \"dctcp\" }",
            Some("without `needs_ecn = true`"),
        ),
        (
            "set = { congestion = \"dctcp\", needs_ecn = false }",
            Some("without `needs_ecn = true`"),
        ),
        ("set = { congestion = \"dctcp\", needs_ecn = true }", None),
        ("set = { congestion = \"cdg\" }", Some("refuses cdg")),
        ("set = { reflect_tos = true }", None),
        (
            "set = { mark = 3 }",
            Some("chose route and source address before this mark"),
        ),
        ("on.listen = { mark = 3 }", None),
        (
            "set = { tos = 16 }",
            Some("chose route and source address before this tos"),
        ),
        ("on.established = { tos = 16 }", None),
        (
            "set = { keepalive_idle = \"1m\" }",
            Some("without `keepalive = true`"),
        ),
        ("set = { keepalive_idle = \"1m\", keepalive = true }", None),
        (
            "set = { learn_from = [\"bbr\"], congestion = \"reno\" }",
            Some("the learner does not choose"),
        ),
    ] {
        let seen = warnings(&rule("r", "", settings));
        assert_eq!(
            seen.len(),
            usize::from(message.is_some()),
            "{settings}: {seen:?}"
        );
        if let Some(message) = message {
            assert_eq!(seen[0].0, WarningKind::Incomplete);
            assert!(seen[0].2.contains(message), "{seen:?}");
        }
    }
}

#[test]
fn timers_that_change_how_long_a_handshake_is_tried() {
    let active = "direction = \"active\"";
    for (conditions, settings, message) in [
        // 20 ms x (5 + 2 + 4 + … + 64), with the four linear timeouts of Linux 6.5.
        (
            active,
            "set = { timeout_init = \"20ms\" }",
            "after 2.6 s instead of 131 s; `syn_count = 12` keeps",
        ),
        (
            active,
            "set = { timeout_init = \"20ms\", syn_count = 11 }",
            "after 82 s instead of 131 s; `syn_count = 12`",
        ),
        (
            active,
            "set = { timeout_init = \"900ms\" }",
            "after 118 s instead of 131 s; `syn_count = 7`",
        ),
        (
            "direction = \"passive\"",
            "set = { timeout_init = \"20ms\" }",
            "a peer has 1.3 s to answer the SYN-ACK instead of 63 s",
        ),
        (
            "",
            "set = { timeout_init = \"20ms\", syn_count = 12 }",
            "a peer has 1.3 s to answer the SYN-ACK instead of 63 s",
        ),
    ] {
        let seen = warnings(&rule("r", conditions, settings));
        assert_eq!(seen.len(), 1, "{settings}: {seen:?}");
        assert_eq!(seen[0].0, WarningKind::Incomplete);
        assert!(seen[0].2.contains(message), "{seen:?}");
    }
    for (conditions, settings) in [
        (active, "set = { timeout_init = \"20ms\", syn_count = 12 }"),
        (active, "set = { timeout_init = \"3s\" }"),
        (
            "",
            "set = { timeout_init = \"20ms\", syn_count = 12 }\non.listen = { syn_count = 11 }",
        ),
        ("", "set = { syn_count = 9 }"),
    ] {
        assert_eq!(warnings(&rule("r", conditions, settings)), [], "{settings}");
    }
    // A count alone says how patient connect() shall be: a note.
    let text = rule("r", "", "set = { syn_count = 2 }");
    let notes = rules(&text).warnings();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(notes[0].kind, WarningKind::Trap);
    assert!(
        notes[0].message.contains("after 11 s instead of 131 s"),
        "{notes:?}"
    );
}

/// Values of a kernel's own arithmetic, `tcp_model_timeout`.
#[test]
fn a_longest_timeout_ends_connections_sooner() {
    let data = "data that nobody acknowledges ends the connection after";
    for (settings, messages) in [
        (
            "set = { rto_max = \"1s\" }",
            [
                "connect() to a silent address gives up after 11 s instead of 131 s",
                &format!("{data} 14 s instead of 925 s"),
            ],
        ),
        (
            "set = { rto_max = \"10s\", timeout_init = \"20ms\", syn_count = 12 }",
            [
                "gives up after 50 s instead of 131 s; `syn_count = 21`",
                &format!("{data} 113 s instead of 925 s"),
            ],
        ),
    ] {
        let text = rule("r", "direction = \"active\"", settings);
        let seen = warnings(&text);
        assert_eq!(seen.len(), 2, "{settings}: {seen:?}");
        for message in messages {
            let told = seen.iter().any(|it| it.2.contains(message));
            assert!(told, "{message}: {seen:?}");
        }
    }
    let settings = "set = { rto_max = \"60s\", syn_count = 7, user_timeout = \"925s\" }";
    assert_eq!(warnings(&rule("r", "direction = \"active\"", settings)), []);
}

/// Messages on a machine with this `net.ipv4.tcp_rto_min_us`, without traps.
fn messages_where(rto_min_us: u32, settings: &str) -> Vec<String> {
    let warnings = rules(&rule("r", "", settings)).warnings_where(Some(rto_min_us));
    let real = warnings
        .into_iter()
        .filter(|warning| warning.kind != WarningKind::Trap);
    real.map(|warning| warning.message).collect()
}

#[test]
fn timeout_is_taken_back_to_the_machines_own() {
    let repair = "on.retransmission = { rto_min = \"8ms\" }\n";
    let back = |time: &str| format!("{repair}on.rtt = {{ rto_min = \"{time}\" }}");
    let told = "rto_min = \"200ms\" from the first measured round trip on, where this machine's own \
                is 10ms (net.ipv4.tcp_rto_min_us): put \"10ms\" there";
    assert_eq!(messages_where(10_000, &back("200ms")), [told]);
    assert_eq!(messages_where(10_000, &back("10ms")), [""; 0]);
    // A rule cannot set more than 200 ms.
    let seen = messages_where(1_000_000, &back("200ms"));
    assert!(
        seen.len() == 1 && seen[0].ends_with("no rule can set that"),
        "{seen:?}"
    );
    // What is for good takes nothing back, and what is for good and shorter names the machine's own.
    assert_eq!(
        messages_where(10_000, "set = { rto_min = \"20ms\" }"),
        [""; 0]
    );
    let seen = messages_where(10_000, "set = { rto_min = \"8ms\" }");
    assert!(
        seen[0].contains("on.rtt = { rto_min = \"10ms\" }"),
        "{seen:?}"
    );
    assert_eq!(messages_where(200_000, &back("200ms")), [""; 0]);
}

#[test]
fn listeners_keep_what_is_set_on_them() {
    let sets = |conditions: &str, rest: &str| rules(&rule("r", conditions, rest)).sets_listeners();
    assert!(sets("", "set = { max_segment = 1000 }"));
    assert!(sets(
        "local_port = 80",
        "on.listen = { congestion = \"reno\" }"
    ));
    assert!(!sets("", SET));
    // These rules hold for no listener; an option of the SYN-ACK ends with the policy.
    assert!(!sets("remote_port = 80", "set = { max_segment = 1000 }"));
    assert!(!sets(
        "direction = \"active\"",
        "set = { max_segment = 1000 }"
    ));
    assert!(!sets("", "set = { send_option = 7 }"));
}

#[test]
fn a_short_timeout_for_good_restarts_windows() {
    for settings in [
        "set = { rto_min = \"8ms\" }",
        "set = { rto_min = \"45ms\", congestion = \"cubic\" }",
        "on.retransmission = { rto_min = \"8ms\" }",
        "on.retransmission = { rto_min = \"8ms\" }\non.rtt = { rto_min = \"100ms\" }",
        "on.listen = { rto_min = \"8ms\" }\non.rtt = { rto_min = \"200ms\" }",
    ] {
        let seen = warnings(&rule("r", "", settings));
        assert!(!seen.is_empty(), "{settings}");
        assert_eq!(seen[0].0, WarningKind::Incomplete);
        assert!(seen[0].2.contains("restarts after each pause"), "{seen:?}");
        assert!(seen[0].2.contains("on.rtt = { rto_min = \"200ms\" }"));
    }
    for settings in [
        "set = { rto_min = \"200ms\" }",
        // It has no restart.
        "set = { rto_min = \"8ms\", congestion = \"bbr\" }",
        "on.retransmission = { rto_min = \"8ms\" }\non.rtt = { rto_min = \"200ms\" }",
        "on.rto = { rto_min = \"8ms\" }\non.rtt = { rto_min = \"200ms\" }",
    ] {
        assert_eq!(warnings(&rule("r", "", settings)), [], "{settings}");
    }
}
