//! `thalweg-lab` as a user runs it: arguments, texts, exit codes.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod model;
mod sim;
mod sim_conformance;

use std::process::{Command, Output};

fn run(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg-lab"));
    command.args(words).output().unwrap()
}

#[test]
fn help_groups_the_commands_and_names_exit_codes() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for words in ["Real TCP on emulated paths:", "build-kernel", "Exit codes:"] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        for command in ["compare", "sim", "link", "stack", "model"] {
            assert!(text.contains(command), "{shell}: {command}");
        }
    }
}

#[test]
fn a_check_of_this_machine_says_what_can_be_used() {
    let output = run(&["--json", "doctor"]);
    assert!(output.status.success(), "{output:?}");
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names = checks.as_array().unwrap().iter().map(|it| &it["name"]);
    let names: Vec<_> = names.collect();
    assert_eq!(names, ["user-mode kernel", "kernel in QEMU"]);
}
