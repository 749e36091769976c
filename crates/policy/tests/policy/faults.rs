//! Refused policies: position and text of each fault.

use std::path::Path;

use thalweg_policy::Policy;

use crate::try_parse;

#[track_caller]
fn refused(text: &str, messages: &[&str]) {
    let faults = match try_parse(text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(faults) => faults.to_string(),
    };
    assert_eq!(faults, messages.join("\n"), "\n{text}");
}

/// A rule that is valid except for its conditions.
fn conditions(text: &str) -> String {
    format!("name = \"t\"\n[[rule]]\nname = \"r\"\nset.nodelay = true\n[rule.match]\n{text}\n")
}

#[test]
fn names_and_structure() {
    refused(
        "",
        &[
            "t.toml:1:1: name: found nothing, expected a name for the policy (1 to 64 letters, \
             digits, -, _ or ., not beginning with - or .)",
            "t.toml:1:1: found no rule, expected at least one [[rule]]",
        ],
    );
    refused(
        "name = \"a b\"\nrule = 3\nmode = 1",
        &[
            "t.toml:1:8: name: found the string \"a b\", expected 1 to 64 letters, digits, -, _ \
             or ., not beginning with - or .",
            "t.toml:2:8: rule: found the number 3, expected tables, [[rule]]",
            "t.toml:3:1: found the unknown key \"mode\", expected one of name, description, rule",
        ],
    );
    refused(
        "name = \"t\"\n[[rule]]\nset.nodelay = true\n\n[[rule]]\nname = \"a\"\nset.nodelay = \
         true\n[[rule]]\nname = \"a\"\nnever = true\n",
        &[
            "t.toml:2:1: rule 1: name: found nothing, expected a name for the rule (1 to 64 \
             letters, digits, -, _ or ., not beginning with - or .)",
            "t.toml:8:1: rule: found the name \"a\" again, as in line 5, expected each name once",
        ],
    );
    refused(
        "name = \"t\"\nrule = [1]",
        &["t.toml:2:9: rule 1: found no table, expected a table, [[rule]]"],
    );
}

/// Rules are read one by one, but the text around them is checked, too.
#[test]
fn what_stands_between_rules_is_a_part_of_the_whole() {
    let rule = |name: &str| format!("[[rule]]\nname = \"{name}\"\nnever = true\n");
    refused(
        &format!("name = \"t\"\n[rule]\n{}", rule("a")),
        &["t.toml:2:1: rule: found `rule` before the first [[rule]], expected tables, [[rule]]"],
    );
    refused(
        &format!("name = \"t\"\n{}[name]\n[other]\n{}", rule("a"), rule("b")),
        &[
            "t.toml:5:1: name: found a table, expected 1 to 64 letters, digits, -, _ or ., not \
             beginning with - or .",
            "t.toml:6:2: found the unknown key \"other\", expected one of name, description, rule",
        ],
    );
    // Each part that is not TOML is reported; unknown names are not.
    let text = format!(
        "name = \"t\"\n{}[[rule]]\nmatch.remote = [\"::1\"\n{}[[rule]]\nname = nothing\n",
        rule("a"),
        rule("a")
    );
    let faults = try_parse(&text).unwrap_err().0;
    let lines: Vec<usize> = faults.iter().map(|fault| fault.at.line).collect();
    assert_eq!(lines, [6, 11], "{faults:?}");
    assert_eq!(faults[0].found, "the end of the line");
    // The line looks like the header of a rule, but is inside a string.
    let text = format!(
        "name = \"t\"\n[[rule]]\nname = \"a\"\nnever = true\ndescription = \"\"\"\\\n[[rule]]\\\n\"\"\"\n\
         \u{20} [[ rule ]] # [[rule]]\nname = \"b\"\nnever = true\n[[rule]]\n{}",
        "name = 'c'\n[rule.set]\nnodelay = true\n"
    );
    let policy = crate::parse(&text);
    let found: Vec<(&str, usize)> = policy
        .rules
        .iter()
        .map(|rule| (&*rule.name, rule.at.line))
        .collect();
    assert_eq!(found, [("a", 2), ("b", 8), ("c", 11)]);
    assert_eq!(policy.rules[0].description, "[[rule]]");
    // A list and a name in quotes are not parts.
    for text in [
        "name = \"t\"\nrule = [{ name = \"a\", never = true }, { name = \"b\", never = true }]\n",
        "name = \"t\"\n[[\"rule\"]]\nname = \"a\"\nnever = true\n[['rule']]\nname = \"b\"\nnever = true\n",
    ] {
        assert_eq!(crate::parse(text).rules.len(), 2, "{text}");
    }
}

#[test]
fn faults_are_told_up_to_a_hundred() {
    let text = format!("name = \"t\"\n{}", "[[rule]]\nx = 1\n".repeat(70));
    let faults = try_parse(&text).unwrap_err().0;
    assert_eq!(faults.len(), 101);
    let last = faults.last().unwrap().to_string();
    assert!(
        last.ends_with("found more than 100 faults, expected fewer: the rest is not looked at"),
        "{last}"
    );
}

#[test]
fn more_rules_than_the_tables_have_are_refused_at_the_first_too_many() {
    let text = |rules: usize| {
        let rules = (0..rules).map(|rule| {
            format!(
                "[[rule]]\nname = \"r{rule}\"\nmatch.remote = \"10.{}.{}.0/24\"\nset.mark = 1\n",
                rule >> 8,
                rule & 0xff
            )
        });
        format!("name = \"t\"\n{}", rules.collect::<String>())
    };
    let policy = crate::parse(&text(65_536));
    assert_eq!(policy.rules.len(), 65_536);
    assert_eq!(crate::compile(&policy).rules.len(), 65_536);
    refused(
        &text(65_537),
        &["t.toml:262146:1: rule: found 65537 rules, expected at most 65536"],
    );
}

#[test]
fn rules_do_something_or_protect() {
    refused(
        "name = \"t\"\n[[rule]]\nname = \"r\"\nmatch = { remote_port = 1 }\n",
        &[
            "t.toml:2:1: rule \"r\": found a rule that sets nothing, expected [rule.set], \
             [rule.on.STAGE] or `never = true`",
        ],
    );
    refused(
        "name = \"t\"\n[[rule]]\nname = \"r\"\nset = {}\n",
        &["t.toml:4:7: rule \"r\": set: found an empty table, expected at least one setting"],
    );
    refused(
        "name = \"t\"\n[[rule]]\nname = \"r\"\nnever = true\nset.nodelay = true\n",
        &[
            "t.toml:5:5: rule \"r\": nodelay: found a setting in a rule with `never = true`, \
             expected none: such a rule protects flows from all settings",
        ],
    );
}

#[test]
fn settings_name_the_key() {
    refused(
        "name = \"t\"\n[[rule]]\nname = \"web\"\n[rule.set]\nsndbuff = \"1MiB\"\nfoo = 1\nsndbuf = \
         1\nnodelay = \"yes\"\n",
        &[
            "t.toml:5:1: rule \"web\": set: found the unknown key \"sndbuff\", expected a setting, \
             perhaps `sndbuf`",
            "t.toml:6:1: rule \"web\": set: found the unknown key \"foo\", expected one of \
             timeout_init, rwnd_init, needs_ecn, base_rtt, congestion, learn_from, \
             initial_window, cwnd_clamp, delack_max, rto_min, rto_max, sndbuf, rcvbuf, \
             window_clamp, notsent_lowat, rcvlowat, max_pacing_rate, nodelay, max_segment, \
             syn_count, thin_linear_timeouts, user_timeout, keepalive, keepalive_idle, \
             keepalive_interval, keepalive_count, priority, mark, bind_to_device, tx_rehash, tos, \
             tclass, autoflowlabel, save_syn, reflect_tos, send_option, read_option, statistics",
            "t.toml:7:10: rule \"web\": set.sndbuf: found the number 1, expected a size from \
             \"2304B\" to \"1073741823B\" (units B, kB, MB, GB, KiB, MiB, GiB)",
            "t.toml:8:11: rule \"web\": set.nodelay: found the string \"yes\", expected true or \
             false",
        ],
    );
    // At a stage, only some keys can be set; `keepalive` cannot.
    refused(
        "name = \"t\"\n[[rule]]\nname = \"r\"\non.close = { statstics = true }\non.rto = { \
         keepaliv = true }\n",
        &[
            "t.toml:4:14: rule \"r\": on.close: found the unknown key \"statstics\", expected a \
             setting, perhaps `statistics`",
            "t.toml:5:12: rule \"r\": on.rto: found the unknown key \"keepaliv\", expected one of \
             congestion, cwnd_clamp, delack_max, rto_min, rto_max, sndbuf, rcvbuf, window_clamp, \
             notsent_lowat, rcvlowat, max_pacing_rate, nodelay, thin_linear_timeouts, \
             user_timeout, priority, mark, tx_rehash, tos, tclass, autoflowlabel, statistics",
        ],
    );
    refused(
        "name = \"t\"\n[[rule]]\nname = \"r\"\n[rule.on.rtt]\ninitial_window = 4\ntimeout_init = \
         \"1s\"\n[rule.on.later]\nnodelay = true\n",
        &[
            "t.toml:5:1: rule \"r\": on.rtt: found `initial_window`, expected it in [rule.set], or \
             at established",
            "t.toml:6:1: rule \"r\": on.rtt: found `timeout_init`, expected it in [rule.set]",
            "t.toml:7:10: rule \"r\": on: found the unknown key \"later\", expected one of \
             connect, listen, established, retransmission, rto, rtt, close",
        ],
    );
    refused(
        "name = \"t\"\n[[rule]]\nname = \"r\"\nset.congestion = \"bbr\"\non.established.congestion \
         = \"reno\"\n",
        &[
            "t.toml:4:5: rule \"r\": set: found `congestion`, expected it once: [rule.on.STAGE] \
             sets it at all stages of [rule.set]",
        ],
    );
    refused(
        "name = \"t\"\n[[rule]]\nname = \"r\"\nset.learn_from = [\"bbr\", \"Cubic\", \"bbr\"]\n",
        &[
            "t.toml:4:26: rule \"r\": set.learn_from: found the string \"Cubic\", expected a list \
             of 1 to 16 names of congestion controls, each once",
            "t.toml:4:35: rule \"r\": set.learn_from: found the string \"bbr\", expected a list \
             of 1 to 16 names of congestion controls, each once",
        ],
    );
}

#[test]
fn seventeen_settings_are_one_too_many() {
    let keys = [
        "nodelay = true",
        "mark = 1",
        "priority = 1",
        "tos = 1",
        "tclass = 1",
        "syn_count = 1",
        "cwnd_clamp = 1",
        "initial_window = 1",
        "rwnd_init = 1",
        "max_segment = 500",
        "keepalive = true",
        "keepalive_count = 1",
        "needs_ecn = true",
        "tx_rehash = true",
        "save_syn = true",
        "autoflowlabel = true",
        "reflect_tos = true",
    ];
    let text = |count: usize| {
        format!(
            "name = \"t\"\n[[rule]]\nname = \"r\"\n[rule.set]\n{}\n",
            keys[..count].join("\n")
        )
    };
    assert!(try_parse(&text(16)).is_ok());
    refused(
        &text(17),
        &["t.toml:2:1: rule \"r\": found 17 settings, expected at most 16"],
    );
}

#[test]
fn conditions_name_the_key() {
    let prefix = "a prefix such as \"10.0.0.0/8\" or \"2001:db8::/32\", an address, or a list of \
                  them";
    for (text, place, found, expected) in [
        (
            "remote = \"10.0.0.0/33\"",
            "6:10: rule \"r\": match.remote",
            "the string \"10.0.0.0/33\"",
            prefix,
        ),
        (
            "remote = []",
            "6:10: rule \"r\": match.remote",
            "an empty list",
            prefix,
        ),
        (
            "local = [\"::/0\", 3]",
            "6:18: rule \"r\": match.local",
            "the number 3",
            prefix,
        ),
        (
            "remote = [\"::/0\", \"10.1.2.3/8\"]",
            "6:19: rule \"r\": match.remote",
            "the string \"10.1.2.3/8\"",
            "no bits beyond the length: \"10.0.0.0/8\", or the address alone",
        ),
        (
            "same_prefix = 129",
            "6:15: rule \"r\": match.same_prefix",
            "the number 129",
            "a number of bits from 1 to 128 (IPv6), or { ipv6 = 1 to 128, ipv4 = 1 to 32 }",
        ),
        (
            "same_prefix = { ipv4 = 33 }",
            "6:24: rule \"r\": match.same_prefix",
            "the number 33",
            "a number of bits from 1 to 32",
        ),
        (
            "same_prefix = { ip4 = 3 }",
            "6:17: rule \"r\": match.same_prefix",
            "the unknown key \"ip4\"",
            "ipv6 or ipv4",
        ),
        (
            "remote_port = 0",
            "6:15: rule \"r\": match.remote_port",
            "the number 0",
            "a port from 1 to 65535, a range such as \"8000-8999\", or a list of them",
        ),
        (
            "local_port = \"9-8\"",
            "6:14: rule \"r\": match.local_port",
            "the string \"9-8\"",
            "a range whose first port is not above its last",
        ),
        (
            "local_port = [1, 2, 3, 4, 5]",
            "6:14: rule \"r\": match.local_port",
            "a list of 5",
            "at most 4",
        ),
        (
            "direction = \"both\"",
            "6:13: rule \"r\": match.direction",
            "the string \"both\"",
            "\"active\" or \"passive\"",
        ),
        (
            "cgroup = [\"/a\", \"/a/../b\"]",
            "6:17: rule \"r\": match.cgroup",
            "the string \"/a/../b\"",
            "the path of a cgroup, such as \"/system.slice\" or \"/sys/fs/cgroup/system.slice\", or a \
             list of them",
        ),
        (
            "container = [\"web\", \"a b\"]",
            "6:21: rule \"r\": match.container",
            "the string \"a b\"",
            "the name or id of a container, LABEL=VALUE such as \"app=web\", or a list of them",
        ),
        (
            "container = \"=web\"",
            "6:13: rule \"r\": match.container",
            "the string \"=web\"",
            "the name or id of a container, LABEL=VALUE such as \"app=web\", or a list of them",
        ),
        (
            "cgroup = \"/a\"\ncontainer = \"web\"",
            "7:13: rule \"r\": match.container",
            "`container` beside `cgroup`",
            "one of them",
        ),
        (
            "netns = \"a b\"",
            "6:9: rule \"r\": match.netns",
            "the string \"a b\"",
            "a network namespace: a name, an absolute path or a cookie",
        ),
        (
            "sample = \"0%\"",
            "6:10: rule \"r\": match.sample",
            "the string \"0%\"",
            "a share of the flows above \"0%\" and up to \"100%\", at most six decimal places",
        ),
        (
            "port = 80",
            "6:1: rule \"r\": match",
            "the unknown key \"port\"",
            "one of remote, local, same_prefix, remote_port, local_port, direction, cgroup, \
             container, netns, sample",
        ),
    ] {
        let message = format!("t.toml:{place}: found {found}, expected {expected}");
        refused(&conditions(text), &[&message]);
    }
}

#[test]
fn good_conditions() {
    for text in [
        "same_prefix = { ipv4 = 16 }",
        "same_prefix = 0x2c",
        "remote_port = [80, \"8000-8999\", \"1-65535\", 65535]",
        "netns = \"/proc/1/ns/net\"",
        "netns = 4026531840",
        "cgroup = \"/a.slice/b\\\\x2dc.service\"",
        "sample = \"0.000001%\"",
    ] {
        crate::parse(&conditions(text));
    }
}

#[test]
fn malformed_texts_have_a_place() {
    let message = |bytes: &[u8]| {
        let faults = Policy::parse(bytes, Path::new("t.toml")).unwrap_err();
        faults.to_string()
    };
    assert_eq!(
        message(b"name = \"t\"\n# \xff\n"),
        "t.toml:2:3: found the byte 0xff, expected UTF-8 text"
    );
    let syntax = message("# üü\nname = \"ü\nrule = [\n".as_bytes());
    assert!(syntax.starts_with("t.toml:2:"), "{syntax}");
    assert!(syntax.contains("expected valid TOML ("), "{syntax}");
}
