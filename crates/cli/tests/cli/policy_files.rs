//! `thalweg policy check`, `test` and `diff`: no agent, no privilege.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use thalweg_testbed::{manifest_path, privileged};

const FIRST: &str = r#"name = "first"

[[rule]]
name = "everyone"
description = "Gives up dead peers."
set = { user_timeout = "30s" }

[[rule]]
name = "web"
match = { remote = "192.0.2.0/24", remote_port = [80, 443] }
set = { congestion = "cubic", sndbuf = "1MiB" }
on.rto = { congestion = "reno" }

[[rule]]
name = "sampled"
match = { remote = "192.0.2.0/24", sample = "25%" }
set = { statistics = "1s" }

[[rule]]
name = "ssh"
match = { remote_port = 22 }
never = true

[[rule]]
name = "near"
match = { same_prefix = { ipv4 = 16 } }
set = { delack_max = "20ms" }
"#;

const BAD: &str = "name = \"bad\"\n[[rule]]\nname = \"r\"\nset = { sndbuf = 1, foo = 2 }\n";

const TWICE: &str = "name = \"twice\"\n[[rule]]\nname = \"a\"\nset = { nodelay = true }\n\
                     [[rule]]\nname = \"b\"\nset = { nodelay = true }\n";

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn run(directory: &Path, arguments: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_thalweg"))
        .current_dir(directory)
        .arg("policy")
        .args(arguments)
        .output()
        .unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn files() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("first.toml", FIRST),
        ("bad.toml", BAD),
        ("twice.toml", TWICE),
    ] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

#[test]
fn check_names_places_and_fails_for_faults_alone() {
    let files = files();
    let good = run(files.path(), &["check", "first.toml"]);
    assert_eq!((good.code, &*good.err), (Some(0), ""), "{}", good.out);
    let lines: Vec<&str> = good.out.lines().collect();
    assert!(
        lines[0].starts_with("first.toml:11:31: note: rule \"web\": sndbuf: A fixed buffer"),
        "{}",
        good.out
    );
    assert!(
        lines[1].starts_with("first.toml:27:9: note: rule \"near\": delack_max:"),
        "{}",
        good.out
    );
    assert_eq!(
        lines[2..],
        ["first.toml: 5 rules, 6 settings; good, 2 notes"]
    );

    let denied = run(files.path(), &["check", "--deny-warnings", "twice.toml"]);
    assert_eq!(denied.code, Some(1));
    assert_eq!(
        denied.err,
        "thalweg: found 1 warning, which --deny-warnings forbids\n"
    );

    let bad = run(files.path(), &["check", "bad.toml", "first.toml"]);
    assert_eq!(bad.code, Some(1));
    assert_eq!(bad.err, "thalweg: found 2 faults\n");
    assert!(
        bad.out.starts_with(
            "bad.toml:4:18: error: rule \"r\": set.sndbuf: found the number 1, expected a size \
             from \"2304B\" to \"1073741823B\" (units B, kB, MB, GB, KiB, MiB, GiB)\n\
             \x20 | set = { sndbuf = 1, foo = 2 }\n\
             \x20 |                  ^\n\
             bad.toml:4:21: error: rule \"r\": set: found the unknown key \"foo\", expected one \
             of timeout_init, rwnd_init, needs_ecn, base_rtt, congestion, learn_from, \
             initial_window, cwnd_clamp, delack_max, rto_min, rto_max, sndbuf, rcvbuf, \
             window_clamp, notsent_lowat, rcvlowat, max_pacing_rate, nodelay, max_segment, \
             syn_count, thin_linear_timeouts, user_timeout, keepalive, keepalive_idle, \
             keepalive_interval, keepalive_count, priority, mark, bind_to_device, tx_rehash, tos, \
             tclass, autoflowlabel, save_syn, reflect_tos, send_option, read_option, statistics\n\
             \x20 | set = { sndbuf = 1, foo = 2 }\n\
             \x20 |                     ^\nbad.toml: 2 faults\nfirst.toml:11:"
        ),
        "{}",
        bad.out
    );

    let missing = run(files.path(), &["check", "none.toml"]);
    assert_eq!(missing.code, Some(1));
    assert!(
        missing
            .err
            .starts_with("thalweg: cannot read none.toml: No such file"),
        "{}",
        missing.err
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn check_says_where_the_machines_own_timeout_is_another() {
    // Linux 6.11 has it, in each network namespace.
    const OWN: &str = "/proc/sys/net/ipv4/tcp_rto_min_us";
    if !privileged() || !Path::new(OWN).exists() {
        return;
    }
    let check = |own_us: u32| {
        let script = format!("echo {own_us} >{OWN} && exec \"$@\"");
        let output = Command::new("unshare")
            .args(["--net", "sh", "-c", &script, "sh"])
            .arg(env!("CARGO_BIN_EXE_thalweg"))
            .args(["policy", "check"])
            .arg(manifest_path("policies/recover-fast.toml"))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let said = check(10_000);
    assert!(
        said.contains("warning: rule \"all\": rto_min = \"200ms\""),
        "{said}"
    );
    assert!(said.contains("put \"10ms\" there"), "{said}");
    let said = check(200_000);
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn check_in_json() {
    let files = files();
    let bad = run(files.path(), &["check", "--json", "bad.toml", "first.toml"]);
    assert_eq!(bad.code, Some(1));
    let value: Value = serde_json::from_str(&bad.out).unwrap();
    assert_eq!(
        value[0]["faults"][0],
        json!({
            "line": 4,
            "column": 18,
            "key": "rule \"r\": set.sndbuf",
            "found": "the number 1",
            "expected": "a size from \"2304B\" to \"1073741823B\" (units B, kB, MB, GB, KiB, MiB, GiB)",
        })
    );
    assert_eq!(value[1]["policy"], "first");
    assert_eq!(
        (&value[1]["rules"], &value[1]["settings"]),
        (&json!(5), &json!(6))
    );
    assert_eq!(value[1]["notes"][0]["kind"], "trap");
    assert_eq!(value[1]["notes"][0]["rule"], "web");
}

#[test]
fn test_says_what_is_set_and_why_not_otherwise() {
    let files = files();
    let flow = [
        "test",
        "first.toml",
        "--remote",
        "192.0.2.7",
        "--local",
        "198.51.100.1",
    ];
    let web = run(files.path(), &[&flow[..], &["--port", "443"]].concat());
    assert_eq!((web.code, &*web.err), (Some(0), ""));
    let squeezed: Vec<String> = web
        .out
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        squeezed,
        [
            "rule web, line 8",
            "Sets To At Kernel option Since",
            "congestion \"cubic\" established TCP_CONGESTION 4.13",
            "sndbuf \"1MiB\" connect, established SO_SNDBUF 4.13",
            "congestion \"reno\" rto TCP_CONGESTION 4.16",
            "",
            "Not chosen Line Why",
            "everyone 3 holds, but web has the longer remote prefix: 24 bits, not 0",
            "sampled 14 holds, but web comes first in the file",
            "ssh 19 does not hold: remote_port = 22",
            "near 24 does not hold: same_prefix = { ipv4 = 16 }",
        ],
        "{}",
        web.out
    );

    let other = run(files.path(), &flow);
    assert!(
        other
            .out
            .contains("25% of such flows: rule sampled, line 14\n"),
        "{}",
        other.out
    );
    assert!(
        other
            .out
            .contains("75% of such flows: rule everyone, line 3: Gives up dead peers.\n"),
        "{}",
        other.out
    );
    assert!(
        other.out.contains("remote_port = 22 (not given)"),
        "{}",
        other.out
    );

    let ssh = run(
        files.path(),
        &[&flow[..], &["--remote-port", "22"]].concat(),
    );
    assert!(
        ssh.out
            .starts_with("rule ssh, line 19\nThe flow is protected"),
        "{}",
        ssh.out
    );
    assert!(
        ssh.out.contains("holds, but ssh protects the flow"),
        "{}",
        ssh.out
    );

    let listener = run(
        files.path(),
        &["test", "first.toml", "--direction", "listener", "--json"],
    );
    let value: Value = serde_json::from_str(&listener.out).unwrap();
    assert_eq!(value["outcomes"][0]["rule"]["name"], "everyone");
    assert_eq!(value["outcomes"][0]["share"], 1.0);
    assert_eq!(
        value["outcomes"][0]["rule"]["settings"][0]["value"],
        "\"30s\""
    );
    assert_eq!(value["others"].as_array().unwrap().len(), 4);
}

#[test]
fn test_refuses_what_is_no_flow() {
    let files = files();
    for (arguments, message) in [
        (&["--local", "192.0.2.1"][..], "--remote is missing"),
        (
            &["--remote", "192.0.2.1"],
            "--local is missing: rules of this policy look at it",
        ),
        (
            &["--remote", "::1", "--local", "192.0.2.1"],
            "--local: found 192.0.2.1, expected an address of IPv6, as --remote is",
        ),
        (
            &["--remote", "::1", "--direction", "listener"],
            "a listener has no --remote",
        ),
        (
            &[
                "--remote",
                "::1",
                "--local",
                "::2",
                "--port",
                "1",
                "--remote-port",
                "2",
            ],
            "--port contradicts --remote-port or --local-port",
        ),
        (
            &["--remote", "::1", "--local", "::2", "--netns", "a b"],
            "--netns must be a name, an absolute path or a cookie",
        ),
    ] {
        let ran = run(files.path(), &[&["test", "first.toml"], arguments].concat());
        assert_eq!(
            (ran.code, ran.err),
            (Some(2), format!("thalweg: {message}\n"))
        );
    }
    let bad = run(files.path(), &["test", "bad.toml", "--remote", "::1"]);
    assert_eq!(bad.code, Some(1));
    assert_eq!(bad.err.lines().count(), 1, "{}", bad.err);
    assert!(
        bad.err
            .contains("(1 more: `thalweg policy check bad.toml`)"),
        "{}",
        bad.err
    );
}

#[test]
fn diff_tells_rules_apart() {
    let files = files();
    let after = FIRST
        .replace("\"30s\"", "\"1m\"")
        .replace("name = \"ssh\"", "name = \"shell\"");
    std::fs::write(files.path().join("second.toml"), after).unwrap();
    let ran = run(files.path(), &["diff", "first.toml", "second.toml"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(
        ran.out,
        "removed  ssh\nadded    shell\nchanged  everyone\n           user_timeout at connect, \
         established: \"30s\" -> \"1m\"\n"
    );
    let same = run(files.path(), &["diff", "first.toml", "first.toml"]);
    assert_eq!(same.out, "no difference\n");
    let json = run(
        files.path(),
        &["--json", "diff", "first.toml", "second.toml"],
    );
    let value: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(value["changed"][0]["changes"][0]["after"], "\"1m\"");
}
