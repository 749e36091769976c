//! Policies that several processes apply, that are interrupted, or that another version has pinned.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapType, ObjectBuilder};
use serde_json::Value;
use thalweg_testbed::policies::{bed, one_rule, options_of};
use thalweg_testbed::{Bed, privileged, thalweg};

/// Directory of the maps that all policies of this version share.
const SHARED: &str = "shared-4";

/// A file with a policy named `pMARK` that sets the mark, and further settings for the handshake.
fn file(bed: &Bed, mark: u32) -> PathBuf {
    let path = bed.directory.path().join(format!("p{mark}.toml"));
    let rule = format!("mark = {mark}, timeout_init = \"900ms\"");
    let text = one_rule(&rule).replace("\"test\"", &format!("\"p{mark}\""));
    fs::write(&path, text).unwrap();
    path
}

fn apply(bed: &Bed, file: &Path) -> Command {
    let mut command = Command::new(thalweg());
    command.arg("--config").arg(bed.configuration());
    command.args(["policy", "apply"]).arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn start_apply(bed: &Bed, file: &Path) -> Child {
    apply(bed, file).spawn().unwrap()
}

/// Files of the state directory of policies.
fn files(bed: &Bed) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(bed.state().join("policy"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn wanted(bed: &Bed) -> u64 {
    let text = fs::read_to_string(bed.state().join("policy/in-force")).unwrap();
    text.trim().parse().unwrap()
}

/// Pins of policies.
fn pins(bed: &Bed) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(bed.pin.join("policy"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn applies_at_once_come_one_after_the_other() {
    if !privileged() {
        return;
    }
    const APPLIES: u32 = 6;
    let bed = bed("atonce");
    let files: Vec<PathBuf> = (1..=APPLIES).map(|mark| file(&bed, mark)).collect();
    let applies: Vec<Child> = files.iter().map(|file| start_apply(&bed, file)).collect();
    for mut apply in applies {
        assert!(apply.wait().unwrap().success());
    }
    // Each replaced another: rollback passes through all of them.
    let mut names = Vec::new();
    for left in (0..APPLIES).rev() {
        let report = bed.json(&["policy", "show"]);
        assert_eq!(report["number"].as_u64().unwrap(), wanted(&bed));
        names.push(report["name"].as_str().unwrap().to_owned());
        let output = bed.thalweg(&["policy", "rollback"]);
        assert_eq!(output.status.success(), left > 0, "{names:?}: {output:?}");
    }
    names.sort();
    let all: Vec<String> = (1..=APPLIES).map(|mark| format!("p{mark}")).collect();
    assert_eq!(names, all);
}

/// The policy of the two that is in force, by every sign of it.
fn in_force(bed: &Bed) -> u32 {
    let report = bed.json(&["policy", "show"]);
    let now = if report["name"] == "p1" { 1 } else { 2 };
    assert_eq!(report["number"].as_u64().unwrap(), wanted(bed));
    let (client, server) = options_of(bed, &[(1, 36)]);
    assert_eq!((client[0], server[0]), (i64::from(now), i64::from(now)));
    now
}

/// Checks that nothing of killed applies is left after a complete one.
fn assert_clean(bed: &Bed, file: &Path) {
    assert!(start_apply(bed, file).wait().unwrap().success());
    let number = bed.json(&["policy", "show"])["number"].to_string();
    assert_eq!(pins(bed), [number.clone(), "link".into(), SHARED.into()]);
    let drafts: Vec<String> = files(bed)
        .into_iter()
        .filter(|name| name.starts_with('.') || name.ends_with(".new"))
        .collect();
    assert_eq!(drafts, Vec::<String>::new());
    bed.json(&["policy", "rollback"]);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_apply_that_is_killed_leaves_the_old_policy_or_the_new_one() {
    if !privileged() {
        return;
    }
    let bed = bed("killed");
    let both = [file(&bed, 1), file(&bed, 2)];
    assert!(start_apply(&bed, &both[0]).wait().unwrap().success());
    let mut before = 1;
    for (point, is_new) in [
        ("policy::written", false),
        ("policy::prepared", false),
        ("policy::linked", true),
        ("policy::swapped", true),
        ("policy::applied", true),
    ] {
        let next = 3 - before;
        let mut apply = apply(&bed, &both[next as usize - 1])
            .env("FAILPOINTS", format!("{point}=return"))
            .spawn()
            .unwrap();
        assert_eq!(apply.wait().unwrap().signal(), Some(9), "{point}");
        let now = in_force(&bed);
        assert_eq!(now == next, is_new, "{point}");
        before = now;
    }
    assert_clean(&bed, &both[0]);
}

#[test]
#[ignore = "slow: 150 applies"]
fn of_many_applies_that_are_killed_each_leaves_the_old_policy_or_the_new_one() {
    if !privileged() {
        return;
    }
    const ROUNDS: u32 = 150;
    let bed = bed("killmany");
    let both = [file(&bed, 1), file(&bed, 2)];
    let started = Instant::now();
    assert!(start_apply(&bed, &both[0]).wait().unwrap().success());
    // The moments are spread over the whole duration of an apply.
    let whole = started.elapsed();
    let (mut before, mut old, mut new) = (1u32, 0, 0);
    for round in 0..ROUNDS {
        let next = 3 - before;
        let mut apply = start_apply(&bed, &both[next as usize - 1]);
        std::thread::sleep(whole.mul_f64(1.2) * round / ROUNDS);
        apply.kill().unwrap();
        let finished = apply.wait().unwrap().success();
        let now = in_force(&bed);
        assert!(!finished || now == next, "round {round}");
        if now == before {
            old += 1
        } else {
            new += 1
        }
        before = now;
    }
    println!("{old} times the old one, {new} times the new one");
    assert!(old > 0 && new > 0, "all kills came at the same end");
    assert_clean(&bed, &both[0]);
}

/// The files of a policy interrupted between the kernel and its files.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_the_kernel_has_is_what_the_files_say() {
    if !privileged() {
        return;
    }
    let mut bed = bed("agree");
    for mark in [1, 2] {
        assert!(
            start_apply(&bed, &file(&bed, mark))
                .wait()
                .unwrap()
                .success()
        );
    }
    let in_force = bed.state().join("policy/in-force");
    // Killed after the swap: the files still have the former policy.
    fs::write(&in_force, "1\n").unwrap();
    assert_eq!(bed.json(&["policy", "show"])["name"], "p2");
    assert_eq!(wanted(&bed), 2);
    // A removal killed before it reached the kernel has no effect.
    fs::remove_file(&in_force).unwrap();
    bed.start();
    thalweg_testbed::wait_for("the agent to put it right", || {
        fs::read_to_string(&in_force).ok()
    });
    assert_eq!(wanted(&bed), 2);
    // A damaged file does not block it.
    fs::write(&in_force, "?").unwrap();
    assert!(start_apply(&bed, &file(&bed, 3)).wait().unwrap().success());
    assert_eq!(wanted(&bed), 3);
    assert_eq!(bed.json(&["policy", "remove"])["removed"], true);
    assert!(!in_force.exists());
}

/// The program of the policy in force, by its number.
fn program(bed: &Bed) -> u32 {
    let link = Link::open(bed.pin.join("policy/link")).unwrap();
    link.info().unwrap().prog_id
}

/// Turns the pins of the policy in force into those of a Thalweg without versions: the shared maps
/// beside the link, no version in the head, and a program that has neither.
fn make_older(bed: &Bed) {
    let policy = bed.pin.join("policy");
    let number = bed.json(&["policy", "show"])["number"].to_string();
    for map in fs::read_dir(policy.join(SHARED)).unwrap().flatten() {
        fs::rename(map.path(), policy.join(map.file_name())).unwrap();
    }
    fs::remove_dir(policy.join(SHARED)).unwrap();
    let pin = policy.join(number).join("head");
    let now = MapHandle::from_pinned_path(&pin).unwrap();
    let mut head = now
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .unwrap()
        .unwrap();
    let version = head.len() - 4;
    assert_ne!(head[version..], [0; 4]);
    head[version..].fill(0);
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let size = head.len() as u32;
    let mut older = MapHandle::create(MapType::Array, Some("head"), 4, size, 1, &options).unwrap();
    older
        .update(&0u32.to_ne_bytes(), &head, MapFlags::ANY)
        .unwrap();
    fs::remove_file(&pin).unwrap();
    older.pin(&pin).unwrap();
    let object = thalweg_testbed::compile("probe", bed.directory.path(), "older.o", &[]);
    let object = ObjectBuilder::default().open_file(object).unwrap();
    let object = object.load().unwrap();
    let mut other = object.progs_mut().next().unwrap();
    let mut link = Link::open(policy.join("link")).unwrap();
    link.update_prog(&other).unwrap();
    let pin = pin.with_file_name("program");
    fs::remove_file(&pin).unwrap();
    other.pin(&pin).unwrap();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn pins_of_an_older_version_are_named_and_replaced() {
    if !privileged() {
        return;
    }
    let mut bed = bed("older");
    let mark = |bed: &Bed| options_of(bed, &[(1, 36)]).0[0];
    assert!(start_apply(&bed, &file(&bed, 1)).wait().unwrap().success());
    make_older(&bed);
    let older = program(&bed);
    let shown = bed.thalweg(&["policy", "show"]);
    let said = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(!shown.status.success());
    assert!(said.contains("another version of Thalweg"), "{said}");
    assert!(said.contains("policy apply"), "{said}");
    // An agent does not touch it.
    bed.start();
    assert_eq!(program(&bed), older);
    assert!(start_apply(&bed, &file(&bed, 2)).wait().unwrap().success());
    assert_eq!(mark(&bed), 2);
    assert_eq!(pins(&bed), ["2", "link", SHARED]);
    assert_eq!(bed.json(&["policy", "show"])["name"], "p2");
    assert_eq!(bed.json(&["policy", "rollback"])["policy"]["name"], "p1");
    // Rollback needs no pins.
    assert!(start_apply(&bed, &file(&bed, 3)).wait().unwrap().success());
    make_older(&bed);
    assert_eq!(bed.json(&["policy", "rollback"])["policy"]["name"], "p1");
    assert_eq!(mark(&bed), 1);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn pins_of_an_older_version_can_be_removed() {
    if !privileged() {
        return;
    }
    let bed = bed("olderremove");
    assert!(start_apply(&bed, &file(&bed, 1)).wait().unwrap().success());
    make_older(&bed);
    assert_eq!(bed.json(&["policy", "remove"])["removed"], true);
    assert!(!bed.pin.exists());
    assert_eq!(options_of(&bed, &[(1, 36)]).0[0], 0);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_a_removal_that_was_killed_has_left_is_cleared() {
    if !privileged() {
        return;
    }
    let bed = bed("cleared");
    assert!(start_apply(&bed, &file(&bed, 1)).wait().unwrap().success());
    // Its link is gone, the other pins are not.
    fs::remove_file(bed.pin.join("policy/link")).unwrap();
    assert_eq!(bed.json(&["policy", "show"]), Value::Null);
    assert!(start_apply(&bed, &file(&bed, 2)).wait().unwrap().success());
    assert_eq!(pins(&bed), ["2", "link", SHARED]);
    fs::remove_file(bed.pin.join("policy/link")).unwrap();
    let removed = bed.json(&["policy", "remove"]);
    assert_eq!(removed["removed"], false);
    assert!(!bed.pin.exists());
}
