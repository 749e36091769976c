//! The tables, and their limits.

use std::fmt::Write;

use thalweg_bpf_types::raw;
use thalweg_policy::{Compiled, Group, Namespace, Stage, VOID_COOKIE};

use crate::walk::matching_rule_id;
use crate::{compile, flow, rules};

fn about<'c>(compiled: &'c Compiled, rule: &raw::thalweg_policy_rule) -> &'c str {
    &compiled.about[rule.id as usize].name
}

/// Names of the rules of a node.
fn of_node(compiled: &Compiled, node: u32) -> Vec<&str> {
    let node = &compiled.nodes[node as usize];
    let rules = node.first as usize..(node.first + node.rules) as usize;
    let rules = compiled.rules[rules].iter();
    rules.map(|rule| about(compiled, rule)).collect()
}

#[test]
fn nodes_hang_together() {
    let compiled = compile(&rules(
        r#"
        [[rule]]
        name = "any"
        set = { nodelay = true }
        [[rule]]
        name = "ten"
        match = { remote = ["10.0.0.0/8", "10.1.2.0/24", "2001:db8::/32"] }
        set = { nodelay = true }
        [[rule]]
        name = "inner"
        match = { remote = ["10.1.0.0/16", "10.1.2.0/24"], local = "10.9.0.0/16" }
        set = { nodelay = true }
        [[rule]]
        name = "guard"
        match = { remote = "10.1.2.0/24" }
        never = true
        [[rule]]
        name = "alike"
        match = { same_prefix = { ipv4 = 12, ipv6 = 44 } }
        set = { nodelay = true }
        "#,
    ));
    let node4 = |text: &str, length: u32| {
        let addr: std::net::Ipv4Addr = text.parse().unwrap();
        let is = |(key, _): &&(raw::thalweg_policy_key4, u32)| {
            key.addr == addr.octets() && key.prefix_len == length
        };
        compiled.prefixes4.iter().find(is).unwrap().1
    };
    assert_eq!(node4("0.0.0.0", 0), 0);
    let is_root = |(key, _): &&(raw::thalweg_policy_key6, u32)| key.prefix_len == 0;
    assert_eq!(compiled.prefixes6.iter().find(is_root).unwrap().1, 1);
    assert_eq!((compiled.prefixes4.len(), compiled.prefixes6.len()), (4, 2));
    let (ten, one, two) = (
        node4("10.0.0.0", 8),
        node4("10.1.0.0", 16),
        node4("10.1.2.0", 24),
    );
    let parent = |node: u32| compiled.nodes[node as usize].parent;
    assert_eq!(
        [parent(two), parent(one), parent(ten), parent(0), parent(1)],
        [
            one,
            ten,
            0,
            raw::THALWEG_POLICY_NONE,
            raw::THALWEG_POLICY_NONE
        ]
    );
    assert_eq!(of_node(&compiled, 0), ["alike", "any"]);
    assert_eq!(of_node(&compiled, 1), ["alike", "any"]);
    assert_eq!(of_node(&compiled, ten), ["ten"]);
    assert_eq!(of_node(&compiled, one), ["inner"]);
    assert_eq!(of_node(&compiled, two), ["guard", "inner", "ten"]);
    assert_eq!(compiled.nodes[two as usize].never, 1);
    let alike = compiled.rules[0];
    assert_eq!((alike.same_len, alike.remote_len), (108, 108));
    assert_eq!(alike.flags & raw::THALWEG_RULE_IPV6, 0);
    let inner = &compiled.rules[compiled.nodes[one as usize].first as usize];
    assert_eq!((inner.local_len, inner.remote_len), (112, 112));
    assert_eq!(
        inner.local,
        "::ffff:10.9.0.0"
            .parse::<std::net::Ipv6Addr>()
            .unwrap()
            .octets()
    );
}

#[test]
fn operations_say_what_the_file_says() {
    let compiled = compile(&rules(
        r#"
        [[rule]]
        name = "one"
        match = { direction = "active", netns = "blue", cgroup = ["/b", "/a"], sample = "50%" }
        set = { timeout_init = "10ms", congestion = "dctcp", max_pacing_rate = "8mbit", learn_from = ["cubic", "bbr"] }
        on.rto = { congestion = "reno" }
        [[rule]]
        name = "two"
        match = { local_port = [1, "5-9"], cgroup = "/a" }
        set = { send_option = "congestion", learn_from = ["bbr", "cubic"], user_timeout = "3s", keepalive_idle = "1m" }
        [[rule]]
        name = "guard"
        match = { remote_port = 22 }
        never = true
        "#,
    ));
    let op = |index: usize| {
        let op = compiled.ops[index];
        (u32::from(op.kind), op.stages, op.level, op.name, op.value)
    };
    let established = Stage::Established.bit();
    assert_eq!(
        op(0),
        (
            raw::THALWEG_OP_TIMEOUT_INIT,
            Stage::Asked.bit(),
            0,
            0,
            10_000
        )
    );
    assert_eq!(op(1), (raw::THALWEG_OP_SET_TEXT, established, 6, 13, 0));
    let opening = established | Stage::Connect.bit();
    assert_eq!(op(2), (raw::THALWEG_OP_SET_INT, opening, 1, 47, 1_000_000));
    // Its rule sets the congestion control itself: set 0, of no arms.
    assert_eq!(op(3), (raw::THALWEG_OP_LEARN_FROM, established, 0, 0, 0));
    assert_eq!(
        op(4),
        (raw::THALWEG_OP_SET_TEXT, Stage::Rto.bit(), 6, 13, 0)
    );
    let both = Stage::Connect.bit() | Stage::Listen.bit();
    assert_eq!(op(5), (raw::THALWEG_OP_SEND_OPTION_CC, both, 0, 0, 0));
    assert_eq!(op(6), (raw::THALWEG_OP_LEARN_FROM, established, 0, 0, 1));
    assert_eq!(op(7), (raw::THALWEG_OP_SET_INT, opening, 6, 18, 3_000));
    assert_eq!(op(8), (raw::THALWEG_OP_SET_INT, established, 6, 4, 60));
    let text = |index: u16| thalweg_bpf_types::arm_name(&compiled.texts[usize::from(index)].text);
    assert_eq!(
        (text(compiled.ops[1].text), text(compiled.ops[4].text)),
        ("dctcp".into(), "reno".into())
    );
    assert_eq!(compiled.arm_sets, [["bbr", "cubic"]]);
    let paths = ["/b", "/a"].map(|path| Group::Path(path.to_owned()));
    assert_eq!(compiled.cgroups, paths);
    assert_eq!(
        compiled.stages & u32::from(Stage::Rto.bit()),
        u32::from(Stage::Rto.bit())
    );
    assert_eq!(compiled.stages & u32::from(Stage::Rtt.bit()), 0);

    let rule = |name: &str| {
        let named = |rule: &&raw::thalweg_policy_rule| about(&compiled, rule) == name;
        *compiled.rules.iter().find(named).unwrap()
    };
    let one = rule("one");
    assert_eq!(
        (one.cgroups, one.sample, one.ops, one.first_op),
        (0b11, 1 << 31, 5, 0)
    );
    assert_eq!(
        one.flags & (raw::THALWEG_RULE_ACTIVE | raw::THALWEG_RULE_PASSIVE),
        raw::THALWEG_RULE_ACTIVE
    );
    let two = rule("two");
    assert_eq!(
        (two.cgroups, two.sample, two.ops, two.first_op),
        (0b10, 0, 4, 5)
    );
    let ports: Vec<_> = two
        .local_ports
        .iter()
        .map(|range| (range.first, range.last))
        .collect();
    assert_eq!(ports, [(1, 1), (5, 9), (1, 0), (1, 0)]);
    assert_ne!(two.flags & raw::THALWEG_RULE_LOCAL_PORTS, 0);
    assert_eq!(two.flags & raw::THALWEG_RULE_REMOTE_PORTS, 0);
    let guard = rule("guard");
    assert_eq!((guard.ops, guard.stages), (0, 0));
    assert_eq!(compiled.about[0].ops[4].name, "congestion");
}

#[test]
fn namespaces_are_resolved_later() {
    let mut compiled = compile(&rules(
        r#"
        [[rule]]
        name = "blue"
        match = { netns = "blue", remote = ["10.0.0.0/8", "::/0"] }
        set = { nodelay = true }
        [[rule]]
        name = "gone"
        match = { netns = "/run/gone" }
        set = { nodelay = true }
        "#,
    ));
    assert!(compiled.rules.iter().all(|rule| rule.netns > u64::MAX / 2));
    let missing = compiled.resolve_namespaces(|namespace| {
        (*namespace == Namespace::Name("blue".into())).then_some(4711)
    });
    assert_eq!(missing, [&Namespace::Path("/run/gone".into())]);
    let mut seen = flow("10.0.0.1", "10.0.0.2");
    seen.netns = Some(Namespace::Cookie(4711));
    assert_eq!(matching_rule_id(&compiled, &seen), Some(0));
    seen.netns = Some(Namespace::Cookie(0));
    assert_eq!(matching_rule_id(&compiled, &seen), None);
    seen.netns = Some(Namespace::Name("blue".into()));
    assert_eq!(matching_rule_id(&compiled, &seen), Some(0));
}

#[test]
fn void_cookies_match_nothing_and_names_stay() {
    let text = r#"
        [[rule]]
        name = "seven"
        match = { netns = 7, remote = ["10.0.0.0/8", "::/0"] }
        set = { nodelay = true }
        [[rule]]
        name = "blue"
        match = { netns = "blue" }
        set = { nodelay = true }
        [[rule]]
        name = "any"
        set = { nodelay = true }
    "#;
    let mut compiled = compile(&rules(text));
    let mut seen = flow("10.0.0.1", "10.0.0.2");
    seen.netns = Some(Namespace::Cookie(7));
    let name = |compiled: &Compiled| {
        let rule = matching_rule_id(compiled, &seen).unwrap();
        compiled.about[rule as usize].name.clone()
    };
    assert_eq!(name(&compiled), "seven");
    assert!(compiled.machine_bound().unwrap().contains("the cookie 7"));
    assert_eq!(compiled.netns_cookies(), [7].into());
    // The name has the cookie 7 after a restart.
    compiled.resolve_namespaces(|_| Some(7));
    assert_eq!(compiled.netns_cookies(), [7].into());
    assert_eq!(compiled.void_cookies(), [7].into());
    assert_eq!(name(&compiled), "blue");
    assert_eq!(compiled.netns_cookies(), [VOID_COOKIE].into());
    assert_eq!(compiled.by_cookie.len(), 2);

    let named = text.replace("netns = 7", "netns = \"seven\"");
    let mut compiled = compile(&rules(&named));
    assert_eq!(compiled.machine_bound(), None);
    assert!(compiled.void_cookies().is_empty());
}

#[test]
fn only_never_rules_still_ask_for_a_look() {
    let compiled = compile(&rules("[[rule]]\nname = \"n\"\nnever = true\n"));
    assert_eq!(compiled.stages, u32::from(Stage::Established.bit()));
}

fn many(count: usize, conditions: impl Fn(usize) -> String) -> String {
    let mut text = "name = \"t\"\n".to_owned();
    for rule in 0..count {
        let conditions = conditions(rule);
        writeln!(
            text,
            "[[rule]]\nname = \"r{rule}\"\nmatch = {{ {conditions} }}\nset = {{ nodelay = true }}"
        )
        .unwrap();
    }
    text
}

#[track_caller]
fn refused(text: &str, message: &str) {
    let faults = crate::parse(text).compile().unwrap_err();
    assert_eq!(faults.to_string(), message);
}

#[test]
fn limits_name_the_first_rule_too_many() {
    let port = |rule: usize| format!("remote_port = {}", rule + 1);
    assert!(crate::parse(&many(64, port)).compile().is_ok());
    refused(
        &many(65, port),
        "t.toml:258:1: rule \"r64\": found 65 rules that IPv4 flows may have to be compared with, \
         expected at most 64 (a rule counts once for each pair of remote and local prefix; this \
         is the first one too many)",
    );
    // A chain of prefixes counts as a whole, wherever its rules are.
    let chain = |rule: usize| {
        let length = if rule < 40 {
            "10.0.0.0/8"
        } else {
            "10.1.0.0/16"
        };
        format!("remote = \"{length}\", remote_port = {}", rule + 1)
    };
    refused(
        &many(70, chain),
        "t.toml:258:1: rule \"r64\": found 70 rules that flows to 10.1.0.0/16 may have to be \
         compared with, expected at most 64 (a rule counts once for each pair of remote and \
         local prefix; this is the first one too many)",
    );
    let cgroup = |rule: usize| format!("cgroup = \"/c{rule}\", remote = \"10.0.0.{rule}\"");
    assert!(crate::parse(&many(32, cgroup)).compile().is_ok());
    refused(
        &many(33, cgroup),
        "t.toml:130:1: rule \"r32\": found more than 32 different cgroups so far, expected fewer",
    );
}

#[test]
fn tables_are_limited_as_a_whole() {
    let remote: Vec<String> = (0..300)
        .map(|n| format!("10.{}.{}.0/24", n / 256, n % 256))
        .collect();
    let local: Vec<String> = (0..220).map(|n| format!("192.168.{n}.0/24")).collect();
    let text = format!(
        "name = \"t\"\n[[rule]]\nname = \"r\"\nmatch = {{ remote = {remote:?}, local = {local:?} \
         }}\nset = {{ nodelay = true }}\n"
    );
    let faults = crate::parse(&text).compile().unwrap_err();
    assert!(
        faults
            .to_string()
            .contains("rule \"r\": found more than 65536 rules so far"),
        "{faults}"
    );
    let sets = |count: usize| {
        let mut text = "name = \"t\"\n".to_owned();
        for rule in 0..count {
            writeln!(
                text,
                "[[rule]]\nname = \"r{rule}\"\nmatch.remote = \"10.0.0.{rule}\"\nset.learn_from = \
                 [\"a{rule}\"]"
            )
            .unwrap();
        }
        crate::parse(&text).compile()
    };
    assert_eq!(sets(63).unwrap().arm_sets.len(), 63);
    assert!(
        sets(64)
            .unwrap_err()
            .to_string()
            .contains("more than 63 different `learn_from`")
    );
}

/// Counts the work, not the time, which a busy machine would distort; `cargo bench -p
/// thalweg-policy` measures time.
#[test]
fn ten_thousand_rules_are_linear_in_size() {
    let prefix = |rule: usize| format!("remote = \"10.{}.{}.0/24\"", rule / 256, rule % 256);
    let text = many(10_000, prefix);
    let policy = crate::parse(&text);
    let compiled = compile(&policy);
    assert_eq!(
        (
            compiled.rules.len(),
            compiled.nodes.len(),
            compiled.ops.len()
        ),
        (10_000, 10_002, 10_000)
    );
    assert_eq!(
        matching_rule_id(&compiled, &flow("192.0.2.1", "10.39.15.9")),
        Some(9_999)
    );
    assert!(policy.warnings().is_empty());
    // Compiling again gives the same tables.
    assert_eq!(format!("{:?}", compile(&policy)), format!("{compiled:?}"));
}

/// The experiments of a policy by name: share in per cent, ladder, key.
fn trials(text: &str) -> Vec<Option<(u32, u32, u64)>> {
    let compiled = rules(text).compile().unwrap();
    let percent = |share: u32| (f64::from(share) / f64::from(1u32 << 31) * 50.0).round() as u32;
    let about = compiled.about.iter().map(|about| about.trial);
    about
        .map(|trial| trial.map(|it| (percent(it.share), it.ladder, it.key)))
        .collect()
}

#[test]
fn rules_that_differ_in_share_and_settings_are_a_ladder() {
    let text = r#"
        [[rule]]
        name = "all"
        match = { remote_port = 80 }
        set = { nodelay = true }
        [[rule]]
        name = "twenty"
        match = { remote = "192.0.2.0/24", sample = "20%" }
        set = { initial_window = 20 }
        [[rule]]
        name = "other"
        match = { remote = "192.0.3.0/24", sample = "20%" }
        set = { initial_window = 20 }
        [[rule]]
        name = "forty"
        match = { remote = "192.0.2.0/24", sample = "40%" }
        set = { initial_window = 40 }
    "#;
    let found = trials(text);
    let ladders: Vec<_> = found.iter().map(|it| it.map(|it| (it.0, it.1))).collect();
    assert_eq!(ladders, [None, Some((20, 1)), Some((20, 2)), Some((40, 1))]);
    let keys = |text: &str| {
        trials(text)
            .iter()
            .map(|it| it.map(|it| it.2))
            .collect::<Vec<_>>()
    };
    let before = keys(text);
    assert!(before[1] != before[2] && before[1] != before[3]);
    // Another rule may change, and the order; not its own settings, nor a share of its ladder.
    let same = text.replace("nodelay = true", "nodelay = false");
    assert_eq!(keys(&same), before);
    for (from, to, changed) in [
        (
            "initial_window = 40",
            "initial_window = 41",
            [false, false, true],
        ),
        ("sample = \"40%\"", "sample = \"41%\"", [true, false, true]),
        ("192.0.3.0/24", "192.0.4.0/24", [false, true, false]),
    ] {
        let after = keys(&text.replace(from, to));
        let differs: Vec<bool> = (1..4).map(|id| after[id] != before[id]).collect();
        assert_eq!(differs, changed, "{to}");
    }
}
