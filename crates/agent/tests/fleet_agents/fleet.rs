//! `thalweg fleet` without a server: no agent, no privilege. Servers are in crates/fleet.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Exit code, standard output and standard error.
pub fn run(directory: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(thalweg_testbed::thalweg())
        .current_dir(directory)
        .arg("fleet")
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code();
    (code, text(output.stdout), text(output.stderr))
}

#[test]
fn init_says_what_to_do_and_keeps_keys() {
    let directory = tempfile::tempdir().unwrap();
    let init = [
        "init",
        "f",
        "--server",
        "nats.example.com",
        "--agent",
        "web1",
    ];
    let (code, out, err) = run(directory.path(), &init);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("1 server and 1 agent in f\n"), "{out}");
    let key = out.lines().last().unwrap();
    let (_, shown, _) = run(directory.path(), &["key", "f/policy.nk"]);
    assert_eq!(shown.trim(), key);
    let more = ["init", "f", "--agent", "web2.example.com", "--json"];
    let (_, out, _) = run(directory.path(), &more);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        report["agents"],
        serde_json::json!(["web1", "web2_example_com"])
    );
    assert_eq!(report["policy_key"], key);
}

#[test]
fn wrong_use_is_told_in_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let one_line = |arguments: &[&str], code: i32, expected: &str| {
        let (found, out, err) = run(directory.path(), arguments);
        assert_eq!((found, out.as_str()), (Some(code), ""), "{err}");
        assert!(err.contains(expected) && err.lines().count() == 1, "{err}");
    };
    one_line(
        &["init", "f", "--agent", "a/b"],
        2,
        "expected 1 to 63 of a-z",
    );
    one_line(&["init", "f", "--server", "a b"], 1, "expected a host name");
    one_line(
        &["buckets", "f"],
        1,
        "expected the directory of `thalweg fleet init`",
    );
    let policy = "name = \"p\"\n[[rule]]\nname = \"r\"\nset = { mark = 1 }\n";
    std::fs::write(directory.path().join("p.toml"), policy).unwrap();
    one_line(
        &["policy", "apply", "p.toml"],
        1,
        "fleet: expected the directory of `thalweg fleet init`",
    );
    // The directory is `fleet` without being named, also beside a port.
    one_line(
        &["policy", "show", "--port", "4223"],
        1,
        "fleet: expected the directory of `thalweg fleet init`",
    );
    one_line(
        &["status", "--port", "4223"],
        2,
        "--server and --port need --fleet DIR",
    );
    one_line(
        &["buckets", "f", "--size", "1kB"],
        2,
        "expected a size such as 4GB, at least 1MiB",
    );
    one_line(
        &["policy", "apply", "p.toml", "--canary", "100%"],
        2,
        "below 100%",
    );
    let (code, ..) = run(directory.path(), &["init", "f", "--server", "127.0.0.1"]);
    assert_eq!(code, Some(0));
    let nobody = ["buckets", "f", "--server", "tls://127.0.0.1:1"];
    one_line(&nobody, 1, "127.0.0.1:1: Connection refused");
    let plain = ["buckets", "f", "--server", "nats://192.0.2.7:4222"];
    one_line(&plain, 1, "expected tls://");
    one_line(
        &["key", "f/operator.nk"],
        1,
        "expected one that signs policies",
    );
}
