//! Which rule a flow gets: each sentence of `docs/reference/policy.md` on it.

use thalweg_policy::{FlowKind, Namespace};

use crate::{decide, flow, rules};

const PRECEDENCE: &str = r#"
[[rule]]
name = "everyone"
set = { user_timeout = "30s" }

[[rule]]
name = "ten"
match = { remote = "10.0.0.0/8" }
set = { nodelay = true }

[[rule]]
name = "ten-one"
match = { remote = ["10.1.0.0/16", "2001:db8::/32"] }
set = { nodelay = true }

[[rule]]
name = "ten-one-from-nine"
match = { remote = "10.1.0.0/16", local = "10.9.0.0/16" }
set = { nodelay = true }

[[rule]]
name = "alike"
match = { same_prefix = { ipv6 = 44, ipv4 = 12 } }
set = { nodelay = true }

[[rule]]
name = "protected"
match = { remote = "10.0.0.0/8", remote_port = 22 }
never = true

[[rule]]
name = "ten-again"
match = { remote = "10.0.0.0/8" }
set = { nodelay = false }
"#;

#[track_caller]
fn gets(text: &str, local: &str, remote: &str, rule: Option<&str>) {
    assert_eq!(
        decide(&rules(text), &flow(local, remote)).as_deref(),
        rule,
        "{local} -> {remote}"
    );
}

#[test]
fn the_longest_remote_prefix_wins() {
    gets(PRECEDENCE, "192.0.2.1", "198.51.100.1", Some("everyone"));
    gets(PRECEDENCE, "192.0.2.1", "10.2.0.1", Some("ten"));
    gets(PRECEDENCE, "192.0.2.1", "10.1.0.1", Some("ten-one"));
    gets(PRECEDENCE, "::1", "2001:db8::1", Some("ten-one"));
    gets(PRECEDENCE, "192.0.2.1", "::ffff:10.1.0.1", Some("ten-one"));
}

#[test]
fn then_the_longest_local_prefix() {
    gets(
        PRECEDENCE,
        "10.9.0.1",
        "10.1.0.1",
        Some("ten-one-from-nine"),
    );
}

#[test]
fn same_prefix_counts_as_a_remote_prefix_of_its_length() {
    // 12 bits are more than the 8 of "ten", fewer than the 16 of "ten-one".
    gets(PRECEDENCE, "10.3.0.1", "10.2.0.1", Some("alike"));
    gets(PRECEDENCE, "10.3.0.1", "10.1.0.1", Some("ten-one"));
    gets(PRECEDENCE, "10.16.0.1", "10.2.0.1", Some("ten"));
    // 44 are more than 32.
    gets(
        PRECEDENCE,
        "2001:db8:0:1::1",
        "2001:db8:f:2::1",
        Some("alike"),
    );
    gets(
        PRECEDENCE,
        "2001:db8:0:1::1",
        "2001:db8:10:2::1",
        Some("ten-one"),
    );
}

#[test]
fn never_comes_before_all_others() {
    gets(PRECEDENCE, "10.9.0.1", "10.1.0.1 22", Some("protected"));
    gets(
        PRECEDENCE,
        "10.9.0.1",
        "10.1.0.1 23",
        Some("ten-one-from-nine"),
    );
}

#[test]
fn then_the_first_in_the_file() {
    let text = r#"
        [[rule]]
        name = "first"
        match = { remote = "10.0.0.0/8", remote_port = [80, "8000-8999"] }
        set = { nodelay = true }
        [[rule]]
        name = "second"
        match = { remote = "10.0.0.0/8" }
        set = { nodelay = true }
    "#;
    gets(text, "192.0.2.1", "10.0.0.1 8000", Some("first"));
    gets(text, "192.0.2.1", "10.0.0.1 8999", Some("first"));
    gets(text, "192.0.2.1", "10.0.0.1 9000", Some("second"));
    gets(text, "192.0.2.1", "11.0.0.1 80", None);
}

#[test]
fn zero_bits_are_as_good_as_no_prefix_but_of_one_family() {
    let text = r#"
        [[rule]]
        name = "four"
        match = { remote = "0.0.0.0/0" }
        set = { nodelay = true }
        [[rule]]
        name = "any"
        set = { nodelay = true }
    "#;
    gets(text, "192.0.2.1", "10.0.0.1", Some("four"));
    gets(text, "::1", "::2", Some("any"));
    let local = r#"
        [[rule]]
        name = "any"
        set = { nodelay = true }
        [[rule]]
        name = "four"
        match = { local = "0.0.0.0/0" }
        set = { nodelay = true }
    "#;
    gets(local, "192.0.2.1", "10.0.0.1", Some("any"));
}

#[test]
fn a_number_alone_is_for_ipv6() {
    let text = "[[rule]]\nname = \"six\"\nmatch = { same_prefix = 8 }\nset = { nodelay = true }\n";
    gets(text, "10.0.0.1", "10.0.0.2", None);
    gets(text, "2001:db8::1", "2001:db8::2", Some("six"));
}

#[test]
fn direction_ports_and_listeners() {
    let policy = rules(
        r#"
        [[rule]]
        name = "to-web"
        match = { remote_port = 443 }
        set = { nodelay = true }
        [[rule]]
        name = "web"
        match = { local_port = 443, direction = "passive" }
        set = { nodelay = true }
        [[rule]]
        name = "ten"
        match = { remote = "10.0.0.0/8" }
        set = { nodelay = true }
        [[rule]]
        name = "zeros"
        match = { remote = "0.0.0.0/8" }
        set = { nodelay = true }
        [[rule]]
        name = "alike"
        match = { same_prefix = { ipv6 = 1, ipv4 = 1 } }
        set = { nodelay = true }
        "#,
    );
    let mut seen = flow("192.0.2.1 443", "10.0.0.1 50000");
    assert_eq!(decide(&policy, &seen).as_deref(), Some("ten"));
    seen.kind = FlowKind::Passive;
    // The prefix has priority over the index in the file.
    assert_eq!(decide(&policy, &seen).as_deref(), Some("ten"));
    seen.remote = "192.168.0.1".parse().unwrap();
    assert_eq!(decide(&policy, &seen).as_deref(), Some("alike"));
    seen.local = "64.0.0.1".parse().unwrap();
    assert_eq!(decide(&policy, &seen).as_deref(), Some("web"));
    let listener = thalweg_policy::Flow {
        kind: FlowKind::Listener,
        remote_port: 0,
        ..flow("0.0.0.0 443", "0.0.0.0")
    };
    assert_eq!(decide(&policy, &listener).as_deref(), Some("web"));
    let other = thalweg_policy::Flow {
        local_port: 80,
        ..listener
    };
    assert_eq!(decide(&policy, &other), None);
}

#[test]
fn a_cgroup_is_told_by_its_path_or_its_directory() {
    for (text, path) in [
        ("/a/b.service", Some("/a/b.service")),
        ("/a/", Some("/a")),
        ("/sys/fs/cgroup/a/b", Some("/a/b")),
        ("/sys/fs/cgroup/unified/a", Some("/a")),
        ("/sys/fs/cgroups/a", Some("/sys/fs/cgroups/a")),
        ("/sys/fs/cgroup", Some("/sys/fs/cgroup")),
        ("/sys/fs/cgroup/../a", None),
        ("/sys/fs/cgroup/", None),
        ("a", Some("/a")),
        (
            "system.slice/nginx.service",
            Some("/system.slice/nginx.service"),
        ),
        ("sys/../a", None),
        ("", None),
        ("//", None),
    ] {
        assert_eq!(
            thalweg_policy::parse_cgroup(text).as_deref(),
            path,
            "{text}"
        );
    }
}

#[test]
fn cgroups_hold_for_what_lies_below() {
    let policy = rules(
        r#"
        [[rule]]
        name = "system"
        match = { cgroup = ["/sys/fs/cgroup/system.slice", "/other/"] }
        set = { nodelay = true }
        "#,
    );
    for (cgroup, rule) in [
        (Some("/system.slice"), Some("system")),
        (Some("/system.slice/nginx.service"), Some("system")),
        (Some("/other/a/b"), Some("system")),
        (Some("/system.slice2"), None),
        (Some("/"), None),
        (None, None),
    ] {
        let seen = thalweg_policy::Flow {
            cgroup: cgroup.map(str::to_owned),
            ..flow("10.0.0.1", "10.0.0.2")
        };
        assert_eq!(decide(&policy, &seen).as_deref(), rule, "{cgroup:?}");
    }
}

#[test]
fn containers_hold_by_name_and_by_label() {
    let policy = rules(
        r#"
        [[rule]]
        name = "containers"
        match = { container = ["web", "app=shop"] }
        set = { nodelay = true }
        "#,
    );
    for (container, rule) in [
        (vec!["web"], Some("containers")),
        (vec!["0123", "app=shop"], Some("containers")),
        (vec!["app", "app=shops", "app=", "we"], None),
        (vec![], None),
    ] {
        let names = container.iter().copied();
        let seen = thalweg_policy::Flow {
            container: names.filter_map(thalweg_policy::Selector::parse).collect(),
            ..flow("10.0.0.1", "10.0.0.2")
        };
        assert_eq!(decide(&policy, &seen).as_deref(), rule, "{container:?}");
    }
}

#[test]
fn namespaces_and_samples() {
    let policy = rules(
        r#"
        [[rule]]
        name = "blue"
        match = { netns = "blue" }
        set = { nodelay = true }
        [[rule]]
        name = "seven"
        match = { netns = 7 }
        set = { nodelay = true }
        [[rule]]
        name = "half"
        match = { sample = "50%" }
        set = { nodelay = true }
        [[rule]]
        name = "all"
        match = { sample = "100%" }
        set = { nodelay = true }
        "#,
    );
    let mut seen = flow("10.0.0.1", "10.0.0.2");
    for (netns, draw, rule) in [
        (Some(Namespace::Name("blue".into())), 0, "blue"),
        (Some(Namespace::Cookie(7)), 0, "seven"),
        (Some(Namespace::Cookie(8)), (1 << 31) - 1, "half"),
        (Some(Namespace::Name("red".into())), 1 << 31, "all"),
        (None, u32::MAX, "all"),
    ] {
        seen.netns = netns;
        seen.draw = draw;
        assert_eq!(decide(&policy, &seen).as_deref(), Some(rule), "{seen:?}");
    }
}

#[test]
fn outcomes_cover_all_draws() {
    let policy = rules(
        r#"
        [[rule]]
        name = "quarter"
        match = { sample = "25%", remote_port = 80 }
        set = { nodelay = true }
        [[rule]]
        name = "half"
        match = { sample = "50%" }
        set = { nodelay = true }
        [[rule]]
        name = "ten"
        match = { sample = "75%", remote = "11.0.0.0/8" }
        set = { nodelay = true }
        "#,
    );
    let outcomes = |remote: &str| -> Vec<(u64, Option<String>)> {
        let outcomes = policy.outcome_shares(&flow("10.0.0.1", remote));
        let owned = outcomes.into_iter();
        owned
            .map(|(share, rule)| (share, rule.map(|rule| rule.name.clone())))
            .collect()
    };
    let quarter = 1 << 30;
    let of = |name: &str| Some(name.to_owned());
    assert_eq!(
        outcomes("10.0.0.2 80"),
        [
            (quarter, of("quarter")),
            (quarter, of("half")),
            (2 * quarter, None)
        ]
    );
    assert_eq!(
        outcomes("10.0.0.2 81"),
        [(2 * quarter, of("half")), (2 * quarter, None)]
    );
    assert_eq!(
        outcomes("11.0.0.2 80"),
        [(3 * quarter, of("ten")), (quarter, None)]
    );
}
