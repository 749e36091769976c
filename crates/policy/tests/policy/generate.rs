//! Random policies and flows, with so few distinct values that conditions often hold.

use proptest::prelude::*;
use thalweg_policy::{Flow, FlowKind, Namespace, Selector};

const PREFIXES: &[&str] = &[
    "10.0.0.0/8",
    "10.0.0.0/12",
    "10.1.0.0/16",
    "10.1.2.0/24",
    "10.1.2.3",
    "0.0.0.0/0",
    "0.0.0.0/8",
    "192.168.0.0/16",
    "::/0",
    "::/1",
    "::/64",
    "2001:db8::/32",
    "2001:db8::/44",
    "2001:db8:1::/48",
    "2001:db8:1::1",
    "::ffff:10.1.0.0/112",
];
const ADDRESSES4: &[&str] = &[
    "10.1.2.3",
    "10.1.2.4",
    "10.1.9.9",
    "10.200.0.1",
    "192.168.1.1",
    "0.0.0.0",
    "8.8.8.8",
];
const ADDRESSES6: &[&str] = &[
    "2001:db8:1::1",
    "2001:db8:1::2",
    "2001:db8:2::1",
    "2001:db8:ff00::1",
    "::1",
    "::",
    "fe80::1",
];
const PORTS: &[&str] = &["80", "443", "\"80-443\"", "\"8000-8999\"", "\"1-65535\""];
const CGROUPS: &[&str] = &["\"/a\"", "\"/a/b\"", "\"/c\""];
const SETTINGS: &[&str] = &[
    "set = { nodelay = true }",
    "set = { timeout_init = \"10ms\", congestion = \"reno\" }",
    "set = { statistics = \"1s\", learn_from = [\"bbr\", \"cubic\"] }",
    "set = { sndbuf = \"1MiB\" }\non.rto = { congestion = \"bbr\", mark = 3 }",
    "set = { save_syn = true, reflect_tos = true }",
    "never = true",
];

fn word(words: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(words)
}

fn list(words: &'static [&'static str], quote: bool) -> impl Strategy<Value = String> {
    let item = word(words).prop_map(move |word| {
        if quote {
            format!("{word:?}")
        } else {
            word.into()
        }
    });
    prop::collection::vec(item, 1..4).prop_map(|items| format!("[{}]", items.join(", ")))
}

fn condition() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => list(PREFIXES, true).prop_map(|list| format!("remote = {list}")),
        2 => list(PREFIXES, true).prop_map(|list| format!("local = {list}")),
        2 => word(&["44", "{ ipv4 = 12 }", "{ ipv6 = 48, ipv4 = 24 }", "1"]).prop_map(|bits| format!("same_prefix = {bits}")),
        1 => list(PORTS, false).prop_map(|list| format!("remote_port = {list}")),
        1 => list(PORTS, false).prop_map(|list| format!("local_port = {list}")),
        1 => word(&["active", "passive"]).prop_map(|word| format!("direction = \"{word}\"")),
        1 => list(CGROUPS, false).prop_map(|list| format!("cgroup = {list}")),
        1 => list(CONTAINERS, true).prop_map(|list| format!("container = {list}")),
        1 => word(&["\"blue\"", "\"/run/red\"", "7"]).prop_map(|netns| format!("netns = {netns}")),
        1 => word(&["50%", "0.01%", "100%"]).prop_map(|share| format!("sample = \"{share}\"")),
    ]
}

/// Containers as policies name them.
const CONTAINERS: &[&str] = &["web", "app=web", "app=", "0123abcd"];

fn rule() -> impl Strategy<Value = String> {
    (prop::collection::vec(condition(), 0..4), word(SETTINGS)).prop_map(|(mut conditions, rest)| {
        let key = |text: &String| text.split(' ').next().unwrap().to_owned();
        conditions.sort();
        conditions.dedup_by_key(|text| key(text));
        if conditions.iter().any(|text| key(text) == "cgroup") {
            conditions.retain(|text| key(text) != "container");
        }
        format!("match = {{ {} }}\n{rest}\n", conditions.join(", "))
    })
}

/// The text of a valid policy.
pub fn policy() -> impl Strategy<Value = String> {
    prop::collection::vec(rule(), 1..7).prop_map(|rules| {
        let rules = rules.iter().enumerate();
        let rules: String = rules
            .map(|(place, rule)| format!("[[rule]]\nname = \"r{place}\"\n{rule}"))
            .collect();
        format!("name = \"random\"\n{rules}")
    })
}

/// A flow.
pub fn flow() -> impl Strategy<Value = Flow> {
    let pair = prop_oneof![
        (word(ADDRESSES4), word(ADDRESSES4)),
        (word(ADDRESSES6), word(ADDRESSES6))
    ];
    let port = prop::sample::select(vec![80_u16, 81, 443, 444, 8000, 65535, 1]);
    let kind = prop::sample::select(vec![
        FlowKind::Active,
        FlowKind::Passive,
        FlowKind::Listener,
    ]);
    let cgroup = prop::option::of(word(&["/a", "/a/b", "/a/b/c", "/c/d", "/ab", "/"]));
    let container = prop::sample::subsequence(CONTAINERS.to_vec(), 0..CONTAINERS.len());
    let netns = prop::sample::select(vec![
        None,
        Some(Namespace::Name("blue".into())),
        Some(Namespace::Path("/run/red".into())),
        Some(Namespace::Cookie(7)),
        Some(Namespace::Cookie(8)),
    ]);
    let draw = prop::sample::select(vec![0, 429_496, 429_497, 1 << 31, u32::MAX]);
    (
        (pair, port.clone(), port),
        kind,
        (cgroup, container),
        netns,
        draw,
    )
        .prop_map(
            |(
                ((local, remote), local_port, remote_port),
                kind,
                (cgroup, container),
                netns,
                draw,
            )| {
                let listener = kind == FlowKind::Listener;
                let local: std::net::IpAddr = local.parse().unwrap();
                let unspecified = if local.is_ipv4() { "0.0.0.0" } else { "::" };
                Flow {
                    remote: if listener { unspecified } else { remote }.parse().unwrap(),
                    local,
                    remote_port: if listener { 0 } else { remote_port },
                    local_port,
                    kind,
                    cgroup: cgroup.map(str::to_owned),
                    container: container.into_iter().filter_map(Selector::parse).collect(),
                    netns,
                    draw,
                }
            },
        )
}
