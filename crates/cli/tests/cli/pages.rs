//! Commands of the pages for newcomers, run as printed.
//!
//! A block with the fence `sh run` is run. The blocks of a page share one shell. `thalweg` is the
//! command under test, with its own cgroup and files.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Stdio;

use thalweg_lab::host::Side;

use thalweg_testbed::{Bed, PATIENCE, laboratory, plain, privileged, thalweg};

/// Files beside a page's commands, which read them.
const BESIDE: [&str; 3] = ["models", "policies", "scenarios"];

/// The marked blocks of a page, one after the other.
fn script(page: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```sh run" => inside = true,
            "```" => inside = false,
            _ if inside => text.push_str(&format!("{line}\n")),
            _ => {}
        }
    }
    text
}

/// Runs a page's commands; each must succeed.
fn runs(label: &str, page: &str, least: usize) {
    if !privileged() {
        return;
    }
    let script = script(page);
    let of = |name: &str| script.matches(&format!("{name} ")).count();
    let commands = of("thalweg") + of("thalweg-lab");
    assert!(commands >= least, "{commands} commands in\n{script}");
    let bed = Bed::new(&plain(label), "");
    let place = bed.directory.path();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in BESIDE {
        symlink(root.join(name), place.join(name)).unwrap();
    }
    let programs = place.join("bin");
    fs::create_dir(&programs).unwrap();
    let agent = format!("{} --config {:?}", thalweg(), bed.configuration());
    for (name, command) in [("thalweg", &*agent), ("thalweg-lab", laboratory())] {
        let file = programs.join(name);
        fs::write(&file, format!("#!/bin/sh\nexec {command} \"$@\"\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    let log = place.join("page.log");
    let out = fs::File::create(&log).unwrap();
    let status = bed
        .pair
        .command_in(Side::Client, "timeout")
        .unwrap()
        .arg((2 * PATIENCE).as_secs().to_string())
        .args(["bash", "-euxo", "pipefail", "-c", &script])
        .env("PATH", format!("{}:{path}", programs.display()))
        .current_dir(place)
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .status()
        .unwrap();
    let said = fs::read_to_string(&log).unwrap();
    assert!(status.success(), "{status}\n{said}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_first_screen_works() {
    runs("pg-readme", include_str!("../../../../README.md"), 1);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_operators_first_commands_work() {
    runs(
        "pg-operator",
        include_str!("../../../../docs/guide/operator.md"),
        10,
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_network_engineers_first_commands_work() {
    let page = include_str!("../../../../docs/guide/network-engineer.md");
    runs("pg-network", page, 8);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_researchers_first_commands_work() {
    let page = include_str!("../../../../docs/guide/researcher.md");
    runs("pg-research", page, 6);
}

#[test]
fn unmarked_blocks_are_left_out() {
    let page = "```sh run\na\nb\n```\n```sh\nc\n```\ntext\n```sh run\nd\n```\n";
    assert_eq!(script(page), "a\nb\nd\n");
}
