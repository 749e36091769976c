//! Messages about the size of a policy, and policies of the largest size.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use thalweg_testbed::policies::{bed, one_rule, policy};
use thalweg_testbed::{Bed, privileged, thalweg};

/// Number of rules of the largest policy.
const RULES: usize = thalweg_bpf_types::raw::THALWEG_POLICY_MAX_RULES as usize;
/// Memory limit of a command, MiB.
const MEMORY_MAX: u64 = 256;

/// A policy with this number of rules, with a prefix each.
fn rules(rules: usize, set: &str) -> String {
    let mut text = String::new();
    for rule in 0..rules {
        let (high, low) = (rule >> 8, rule & 0xff);
        writeln!(
            text,
            "[[rule]]\nname = \"rule-{rule}\"\nmatch.remote = \"10.{high}.{low}.0/24\"\n\
             set = {{ {set} }}"
        )
        .unwrap();
    }
    policy(&text)
}

/// A command's output, and its peak resident memory in MiB.
fn measured(configuration: Option<&Path>, arguments: &[&str]) -> (String, u64) {
    let program = r#"
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)
sys.stdout.buffer.write(done.stdout)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, file=sys.stderr)
sys.exit(done.returncode)
"#;
    let mut command = Command::new("python3");
    command.args(["-c", program, thalweg()]);
    if let Some(configuration) = configuration {
        command.arg("--config").arg(configuration);
    }
    let output = command.arg("policy").args(arguments).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {said}");
    (
        String::from_utf8(output.stdout).unwrap(),
        said.trim().parse().unwrap(),
    )
}

/// Output of a `policy` command.
fn text(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.thalweg(&[&["policy"], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn apply_and_show_say_the_same_of_a_policy() {
    if !privileged() {
        return;
    }
    let bed = bed("size");
    let file = bed.directory.path().join("policy.toml");
    let path = file.to_str().unwrap();
    let two = policy(
        "[[rule]]\nname = \"a\"\nmatch.remote = \"10.0.0.0/8\"\nset.mark = 1\n\
         [[rule]]\nname = \"b\"\nset.mark = 2\n",
    );
    let cases: [(String, &[&str], &str); 4] = [
        (one_rule("mark = 1"), &["apply", path], "1 rule, "),
        (two, &["apply", path], "2 rules, "),
        (rules(2000, "mark = 1"), &["apply", path], "2000 rules, "),
        (
            one_rule("mark = 1"),
            &["apply", "--existing", path],
            "1 rule, ",
        ),
    ];
    for (policy, apply, count) in cases {
        fs::write(&file, policy).unwrap();
        let applied = text(&bed, apply);
        let (_, applied) = applied.split_once("is in force: ").unwrap();
        let (memory, _) = applied
            .strip_prefix(count)
            .unwrap_or_else(|| panic!("{applied}"))
            .split_once(" of kernel memory")
            .unwrap();
        let shown = text(&bed, &["show"]);
        assert!(
            shown.contains(&format!("\nmemory          {memory}\n")),
            "{memory}: {shown}"
        );
    }
    let back = text(&bed, &["rollback"]);
    assert!(back.contains("is in force: 2000 rules, "), "{back}");
}

#[test]
fn ten_thousand_equal_warnings_are_one_with_a_count() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.toml");
    fs::write(&file, rules(10_000, "keepalive_idle = \"30s\"")).unwrap();
    let (said, _) = measured(None, &["check", file.to_str().unwrap()]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].ends_with("(so in 9999 other rules)"), "{said}");
    assert!(
        lines[1].ends_with(": 10000 rules, 10000 settings; 1 warning"),
        "{said}"
    );
}

#[test]
fn the_greatest_policy_is_checked_in_bounded_memory() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.toml");
    fs::write(&file, rules(RULES, "priority = 1")).unwrap();
    let (said, memory) = measured(None, &["check", file.to_str().unwrap()]);
    assert!(
        said.ends_with("policy.toml: 65536 rules, 65536 settings; good\n"),
        "{said}"
    );
    assert!(memory <= MEMORY_MAX, "{memory} MiB");
}

#[test]
#[ignore = "slow: policies of 65,536 rules, of up to eight settings each"]
fn the_greatest_policy_is_applied_and_shown_in_bounded_memory() {
    if !privileged() {
        return;
    }
    let bed = bed("greatest");
    let file = bed.directory.path().join("policy.toml");
    let path = file.to_str().unwrap();
    let eight = "cwnd_clamp = 1000, rwnd_init = 40, sndbuf = \"1MB\", timeout_init = \"50ms\", \
                 mark = 1, priority = 3, user_timeout = \"25s\", keepalive_idle = \"30s\"";
    bed.apply(&rules(RULES, "mark = 2"));
    for set in ["mark = 1", eight] {
        fs::write(&file, rules(RULES, set)).unwrap();
        for (arguments, expected) in [
            (&["apply", path][..], "65536 rules"),
            (&["show"], "\nrule-65535 "),
            (&["rollback"], "is in force"),
        ] {
            let (said, memory) = measured(Some(&bed.configuration()), arguments);
            assert!(said.contains(expected), "{arguments:?}");
            println!("{arguments:?}: {memory} MiB");
            assert!(memory <= MEMORY_MAX, "{arguments:?}: {memory} MiB");
        }
    }
}
