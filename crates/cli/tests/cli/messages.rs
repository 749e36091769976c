//! Messages of commands about their input: files of all kinds, arguments, lists.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::fake::{Agent, Ran, answer};
use thalweg_testbed::command_of;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs the command in the root of the repository.
fn run(arguments: &[&str]) -> Ran {
    let mut command = command_of(arguments);
    command.current_dir(root());
    Ran::from(command.stdin(Stdio::null()).output().unwrap())
}

fn file(name: &str, text: &str) -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    (directory, path.to_str().unwrap().to_owned())
}

#[test]
fn unseen_characters_of_others_are_escaped() {
    let name = "a\u{202e}\u{200b}\u{2028}\u{1b}[2J\u{9b}\u{e0041}.toml";
    let is_clean = |text: &str| !text.contains(|it| it != '\n' && thalweg_units::is_unseen(it));
    let checks: [&[&str]; 4] = [
        &["policy", "check"],
        &["config", "check"],
        &["thalweg-lab", "model", "check"],
        &["thalweg-lab", "sim", "run"],
    ];
    for words in checks {
        for json in [false, true] {
            let mut arguments = [words, &[name]].concat();
            if json {
                arguments.push("--json");
            }
            let ran = run(&arguments);
            assert_ne!(ran.code, 0);
            assert!(is_clean(&ran.error) && is_clean(&ran.out), "{ran:?}");
            assert!((ran.error + &ran.out).contains("200b"), "{arguments:?}");
        }
    }
    // What cannot be parsed as arguments.
    let ran = run(&["policy", name]);
    assert!(ran.code == 2 && is_clean(&ran.error), "{ran:?}");
}

#[test]
fn a_configuration_shows_all_its_faults_with_their_places() {
    let (_keep, bad) = file(
        "bad.toml",
        "mode = \"clasic\"\n[learning]\nhalf_live = \"1h\"\n",
    );
    let ran = run(&["config", "check", &bad]);
    assert_eq!((ran.code, &*ran.error), (1, "thalweg: found 2 faults\n"));
    let expected = format!(
        "{bad}:1:8: mode: found the string \"clasic\", expected \"thalweg\" or \"classic\"; \
         perhaps \"classic\"\n  | mode = \"clasic\"\n  |        ^\n\
         {bad}:3:1: learning: found the unknown key \"half_live\", expected one of warm_up, \
         gap_scale, memory, staleness_shift, half_life, latency_weight, latency_guard, score_min, \
         score_full, loss_shift, loss_min_segments, rescue, stretch; perhaps `half_life`\n  | half_live = \
         \"1h\"\n  | ^\n{bad}: 2 faults\n"
    );
    assert_eq!(ran.out, expected);
    let told = run(&["--json", "config", "check", &bad, "packaging/thalweg.toml"]);
    let reports: Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(reports[0]["faults"][1]["line"], 3);
    assert_eq!(reports[1]["faults"], serde_json::json!([]));
    // Other commands report only the first, in one line.
    let error = run(&["--config", &bad, "run"]).failed(78);
    assert!(
        error.contains(" (1 more: `thalweg config check "),
        "{error}"
    );
    let good = run(&["config", "check", "packaging/thalweg.toml"]).ok();
    assert_eq!(good, "packaging/thalweg.toml: good\n");
    run(&["config", "check", "examples/agent.toml"]).ok();
    run(&["config", "check", "/nonexistent.toml"]).failed(1);
}

#[test]
fn the_configuration_in_force_is_one_itself() {
    let (_keep, some) = file("some.toml", "dry_run = true\n\n[hosts]\nmax = 1_024\n");
    let shown = run(&["--config", &some, "config", "show"]).ok_but_wide();
    for (setting, from) in [
        ("mode = \"thalweg\"", "default".to_owned()),
        ("dry_run = true", format!("{some}:1")),
        ("max = 1024", format!("{some}:4")),
    ] {
        let line = shown.lines().find(|line| line.starts_with(setting));
        let line = line.unwrap_or_else(|| panic!("{setting}:\n{shown}"));
        assert!(line.ends_with(&format!("# {from}")), "{line}");
    }
    let (_keep, again) = file("again.toml", &shown);
    run(&["config", "check", &again]).ok_but_wide();
    let told = run(&[
        "--json", "--config", &some, "--socket", "/run/x", "config", "show",
    ]);
    let keys: Value = serde_json::from_str(&told.out).unwrap();
    let socket = keys.as_array().unwrap().iter();
    let socket = socket.clone().find(|key| key["key"] == "paths.socket");
    assert_eq!(socket.unwrap()["value"], "\"/run/x\"");
    assert_eq!(socket.unwrap()["from"], "--socket");
}

#[test]
fn files_of_another_kind_are_named_with_the_command_that_takes_them() {
    let lab = "scenarios/lab/loss-5.toml";
    let sim = "scenarios/sim/many-to-one-1024.toml";
    let policy = "policies/iw.toml";
    let sample = "packaging/thalweg.toml";
    for (arguments, message) in [
        (
            &["thalweg-lab", "sim", "run", lab][..],
            "found a scenario of the laboratory, expected a scenario of the simulator; \
             `thalweg-lab run scenarios/lab/loss-5.toml` takes it",
        ),
        (
            &["thalweg-lab", "run", sim],
            "`thalweg-lab sim run scenarios/sim/many-to-one-1024.toml` takes it",
        ),
        (
            &["thalweg-lab", "run", policy],
            "found a policy, expected a scenario of the laboratory",
        ),
        (
            &["policy", "check", sample],
            "`thalweg config check packaging/thalweg.toml` takes it",
        ),
        (
            &["policy", "test", lab, "--remote", "::1"],
            "found a scenario of the laboratory",
        ),
        (
            &["--config", policy, "cc", "load", "htcp"],
            "`thalweg policy check policies/iw.toml` takes it",
        ),
        (
            &["config", "check", sim],
            "found a scenario of the simulator",
        ),
        (
            &["policy", "check", "scenarios/rate/tables.toml"],
            "`python -m thalweg.results --tables ",
        ),
        (
            &["thalweg-lab", "model", "show", "README.md"],
            "README.md: found a text, expected a model",
        ),
        (
            &["thalweg-lab", "model", "show", lab],
            "found a scenario of the laboratory, expected a model",
        ),
    ] {
        let error = run(arguments).failed(1);
        assert!(error.contains(message), "{arguments:?}: {error}");
    }
}

#[test]
fn words_that_are_nearly_right_have_a_suggestion() {
    let (_keep, rules) = file("rules.toml", "name = \"x\"\n[[rules]]\nname = \"r\"\n");
    let out = run(&["policy", "check", &rules]).out;
    assert!(out.contains("the unknown key \"rules\""), "{out}");
    assert!(out.contains("; perhaps `rule`\n"), "{out}");
    let (_keep, lab) = file("lab.toml", "name = \"x\"\n[path]\ndely = \"1ms\"\n");
    let Ran { code, out, error } = run(&["thalweg-lab", "run", &lab]);
    assert_eq!((code, &*out), (1, ""), "{error}");
    let excerpt = "; perhaps `delay`\n  | dely = \"1ms\"\n  | ^\n";
    assert!(error.ends_with(excerpt), "{error}");
    let sim = |cc: &str| {
        run(&[
            "thalweg-lab",
            "sim",
            "run",
            "scenarios/sim/many-to-one-1024.toml",
            "--cc",
            cc,
        ])
    };
    let error = sim("swift:bet=1").failed(2);
    assert!(error.ends_with("; perhaps `beta`\n"), "{error}");
    let error = sim("swfit").failed(2);
    assert!(error.ends_with("; perhaps `swift`\n"), "{error}");
}

#[test]
fn one_kind_of_fault_has_one_exit_code() {
    let absent = "/nonexistent/model.safetensors";
    let learned = format!("learned:model={absent}");
    for arguments in [
        &[
            "thalweg-lab",
            "sim",
            "run",
            "scenarios/sim/many-to-one-1024.toml",
            "--cc",
            &learned,
        ][..],
        &["thalweg-lab", "model", "show", absent],
        &["thalweg-lab", "sim", "run", absent],
        &["thalweg-lab", "run", absent],
        &["policy", "check", absent],
        &["config", "check", absent],
    ] {
        let error = run(arguments).failed(1);
        assert!(error.contains("No such file"), "{arguments:?}: {error}");
    }
    // The message is about the typed text, whether an agent runs or not.
    let agent = Agent::absent();
    for arguments in [
        &["explain", "notanip"][..],
        &["reset", "--yes", "192.0.2.0/33"],
        &["events", "--host", "host"],
    ] {
        let ran = agent.run(arguments);
        assert_eq!(
            (ran.code, &*ran.out),
            (2, ""),
            "{arguments:?}: {}",
            ran.error
        );
        assert!(
            ran.error.contains("expected"),
            "{arguments:?}: {}",
            ran.error
        );
    }
}

#[test]
fn errors_are_objects_where_answers_are_json() {
    let agent = Agent::absent();
    let (_keep, bad) = file("bad.toml", "x = 1\n");
    for (arguments, code, part) in [
        (&["--json", "status"][..], 4, "the agent is not running"),
        (
            &["explain", "notanip", "--json"],
            2,
            "expected an address such as 192.0.2.7",
        ),
        (&["--json", "frobnicate"], 2, "unrecognized subcommand"),
        (
            &["--json", "hosts", "--sort", "colour"],
            2,
            "invalid value 'colour'",
        ),
        (
            &["--json", "policy", "diff", &bad, &bad],
            1,
            "found nothing, expected a name",
        ),
        (
            &["thalweg-lab", "--json", "model", "show", "/nonexistent"],
            1,
            "No such file",
        ),
    ] {
        let error = agent.run(arguments).failed(code);
        let told: Value = serde_json::from_str(&error).unwrap();
        assert_eq!(told["code"], code, "{error}");
        let message = told["error"].as_str().unwrap();
        assert!(message.contains(part), "{message}");
        assert!(!message.starts_with("error:"), "{message}");
    }
    // Arguments after -- belong to the other command.
    let help = run(&["thalweg-lab", "link", "--json", "--help"]);
    assert_eq!((help.code, &*help.error), (0, ""));
    let usage = run(&["thalweg-lab", "link", "--rate", "x", "--", "true", "--json"]);
    assert!(usage.error.starts_with("thalweg-lab: "), "{}", usage.error);
}

#[test]
fn wrong_usage_is_one_line_that_names_the_help() {
    for (arguments, expected) in [
        (
            &["hosts", "--filtr", "bbr"][..],
            "thalweg: unexpected argument '--filtr' found; a similar argument exists: '--filter'; \
             see `thalweg hosts --help`\n",
        ),
        (
            &["polic", "check"],
            "thalweg: unrecognized subcommand 'polic'; a similar subcommand exists: 'policy'; see \
             `thalweg --help`\n",
        ),
        (
            &["hosts", "--sort", "rat"],
            "thalweg: invalid value 'rat' for '--sort <SORT>' [possible values: address, recent, \
             connections, rate, rtt]; a similar value exists: 'rate'; see --help\n",
        ),
        (
            &["import"],
            "thalweg: the following required arguments were not provided: <FILE>; see `thalweg \
             import --help`\n",
        ),
        (
            &["--json", "policy"],
            "{\"code\":2,\"error\":\"a command is missing; see --help\"}\n",
        ),
    ] {
        assert_eq!(run(arguments).failed(2), expected, "{arguments:?}");
    }
    let help = run(&["policy"]);
    assert_eq!(help.code, 2);
    assert!(help.error.contains("Commands:"), "{}", help.error);
}

#[test]
fn lists_fit_a_hundred_columns() {
    let agent = Agent::new(answer);
    for arguments in [
        &["hosts"][..],
        &["hosts", "--classic"],
        &["arms"],
        &["status"],
    ] {
        agent.run(arguments).ok();
    }
    for arguments in [
        &["thalweg-lab", "sim", "list"][..],
        &["thalweg-lab", "sim", "controllers"],
        &["thalweg-lab", "list"],
        &[
            "thalweg-lab",
            "model",
            "show",
            "models/adpg-plus.safetensors",
        ],
        &[
            "thalweg-lab",
            "model",
            "show",
            "models/adpg-plus-tree.safetensors",
        ],
        &["--help"],
    ] {
        let text = run(arguments).ok();
        assert!(text.lines().count() > 8, "{arguments:?}: {text}");
    }
}

#[test]
fn scenarios_and_controllers_are_listed() {
    let text = run(&["thalweg-lab", "list"]).ok();
    assert!(text.contains("scenarios/lab/loss-5.toml"), "{text}");
    let told = run(&["thalweg-lab", "--json", "sim", "list", "scenarios/sim"]).ok();
    let all: Value = serde_json::from_str(&told).unwrap();
    let one = all.as_array().unwrap().iter();
    let one = one.clone().find(|one| one["name"] == "many-to-one-1024");
    assert_eq!(one.unwrap()["file"], "scenarios/sim/many-to-one-1024.toml");
    assert!(
        one.unwrap()["description"]
            .as_str()
            .unwrap()
            .starts_with("1024 endless flows")
    );
    let told = run(&["thalweg-lab", "--json", "list", "examples"]).ok();
    let all: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(all[0]["name"], "branch-office", "{told}");
    run(&["thalweg-lab", "sim", "list", "/nonexistent"]).failed(1);
    assert_eq!(
        run(&["thalweg-lab", "sim", "list", "policies"]).ok(),
        "no scenarios in policies\n"
    );
    let told = run(&["thalweg-lab", "--json", "sim", "controllers"]).ok();
    let all: Value = serde_json::from_str(&told).unwrap();
    let all = all.as_array().unwrap();
    let swift = all.iter().find(|one| one["name"] == "swift").unwrap();
    assert!(swift["parameters"]["beta"].is_number(), "{swift}");
    assert!(all.iter().any(|one| one["name"] == "learned"));
}

#[test]
fn policies_that_ship_have_no_warning() {
    let mut arguments = vec![
        "policy".to_owned(),
        "check".into(),
        "--deny-warnings".into(),
    ];
    for entry in std::fs::read_dir(root().join("policies")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".toml") {
            arguments.push(format!("policies/{name}"));
        }
    }
    assert!(arguments.len() > 10);
    arguments.push("examples/datacenter.toml".into());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ran = run(&arguments);
    assert_eq!((ran.code, &*ran.error), (0, ""), "{}", ran.out);
    assert!(!ran.out.contains("warning"), "{}", ran.out);
    // Known facts about a setting are still printed.
    assert!(
        ran.out
            .contains("policies/bufs.toml:16:25: note: rule \"across\": sndbuf: "),
        "{}",
        ran.out
    );
}

#[test]
fn a_policy_is_compared_with_this_machine() {
    let (_keep, policy) = file(
        "p.toml",
        "name = \"p\"\n[[rule]]\nname = \"r\"\n\
         match = { cgroup = \"nothing.slice/no.service\" }\nset = { congestion = \"bbr33\" }\n",
    );
    run(&["policy", "check", &policy]).ok();
    let ran = run(&["policy", "check", "--here", &policy]);
    assert_eq!(
        (ran.code, &*ran.error),
        (1, "thalweg: found 2 faults\n"),
        "{}",
        ran.out
    );
    for part in [
        ":2:1: error: rule \"r\": match.cgroup: found \"/nothing.slice/no.service\", which does not \
         exist here, expected a cgroup below /",
        ":5:9: error: rule \"r\": congestion: found \"bbr33\", which this machine does not offer, \
         expected one of ",
    ] {
        assert!(ran.out.contains(part), "{part}\n{}", ran.out);
    }
}

#[test]
fn addresses_may_have_brackets() {
    let policy = |address: &str| {
        run(&[
            "policy",
            "test",
            "policies/iw.toml",
            "--remote",
            address,
            "--local",
            "[::1]",
        ])
    };
    assert_eq!(
        policy("[2001:db8::1]").ok_but_wide(),
        policy("2001:db8::1").ok_but_wide()
    );
    assert_eq!(policy("[192.0.2.1]").code, 2);
    let agent = Agent::new(answer);
    agent.run(&["explain", "[2001:db8::1]"]).ok_but_wide();
    assert_eq!(
        agent.seen().last().unwrap().path,
        "/v1/hosts/2001%3Adb8%3A%3A1"
    );
    agent.run(&["hosts", "--filter", "[2001:db8::]/32"]).ok();
}

#[test]
fn commands_that_moved_say_their_new_name() {
    for (words, new) in [
        (
            &["lab", "run", "x.toml", "--mode", "baseline"][..],
            "thalweg-lab run x.toml --mode baseline",
        ),
        (&["lab", "--help"], "thalweg-lab --help"),
        (&["sim", "run", "x.toml"], "thalweg-lab sim run x.toml"),
        (
            &["link", "--delay", "1ms", "--", "true"],
            "thalweg-lab link --delay 1ms -- true",
        ),
        (
            &["stack", "setup", "--user", "me"],
            "thalweg-lab stack setup --user me",
        ),
        (&["model", "show", "m"], "thalweg-lab model show m"),
        (&["schema", "sim"], "thalweg-lab schema sim"),
    ] {
        let error = run(words).failed(2);
        assert!(error.contains(new), "{words:?}: {error}");
    }
    for words in [&["lab", "run", "--json"][..], &["--json", "sim"]] {
        let error = run(words).failed(2);
        let told: Value = serde_json::from_str(&error).unwrap();
        assert_eq!(told["code"], 2, "{error}");
    }
}

#[test]
fn the_help_has_groups_with_examples() {
    for (program, groups) in [("thalweg", 5), ("thalweg-lab", 4)] {
        has_groups_with_examples(program, groups);
    }
}

fn has_groups_with_examples(program: &str, groups: usize) {
    let words = |rest: &[&'static str]| -> Vec<String> {
        let own = (program != "thalweg").then_some(program);
        own.into_iter()
            .chain(rest.iter().copied())
            .map(str::to_owned)
            .collect()
    };
    let run = |words: &[String]| run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let help = run(&words(&["--help"])).ok();
    let start = format!("  Example: {program} ");
    let examples: Vec<&str> = help
        .lines()
        .filter_map(|line| line.strip_prefix(&*start))
        .collect();
    assert_eq!(examples.len(), groups, "{help}");
    // Each example is valid: its command has a help, and its files are there.
    for example in examples {
        for file in example
            .split(' ')
            .filter(|it| it.contains('/') && it.contains(".toml"))
        {
            let folder = root().join(file).parent().unwrap().to_owned();
            assert!(folder.is_dir(), "{example}");
            assert!(
                file.contains('*') || root().join(file).is_file(),
                "{example}"
            );
        }
        let command = example.split_whitespace().next().unwrap();
        let mut words = words(&[]);
        words.extend([command.to_owned(), "--help".to_owned()]);
        run(&words).ok_but_wide();
    }
    assert!(help.contains("Options of every command:"), "{help}");
    assert!(help.contains("Exit codes:"), "{help}");
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&["completions", shell]);
        assert_eq!((ran.code, &*ran.error), (0, ""));
        let text = ran.out;
        for command in ["status", "reload", "policy", "sockops"] {
            assert!(text.contains(command), "{shell}: {command}");
        }
    }
    let script = run(&["completions", "bash"]).out;
    let complete = format!(
        "{script}\nCOMP_WORDS=(thalweg stat); COMP_CWORD=1; _thalweg thalweg stat thalweg\n\
         echo \"${{COMPREPLY[@]}}\"\n"
    );
    let (_keep, path) = file("completions.bash", &complete);
    let output = Command::new("bash").arg(path).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "status\n");
}

/// Monitoring systems take exit code 2 for CRITICAL: a mistake in the command line is UNKNOWN.
#[test]
fn a_check_that_cannot_be_understood_is_unknown() {
    for wrong in ["--chck", "--json", "--watch"] {
        let ran = run(&["status", "--check", wrong]);
        assert_eq!((ran.code, &*ran.error), (3, ""), "{wrong}: {}", ran.out);
        assert!(ran.out.starts_with("THALWEG UNKNOWN - "), "{}", ran.out);
        assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
    }
}
