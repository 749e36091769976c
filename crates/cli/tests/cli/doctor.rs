//! `thalweg doctor` in containers, and on kernels that lack something.

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::process::Command;

use libbpf_rs::{Program, libbpf_sys};
use thalweg_lab::host::Side;

use thalweg_testbed::{Bed, plain, privileged, tell_skipped, thalweg, unique, wait_for};

/// Names and states of the doctor's checks.
fn states(command: &mut Command) -> Vec<(String, String)> {
    let output = command.output().unwrap();
    let checks: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let pairs = checks
        .iter()
        .map(|check| (text(&check["name"]), text(&check["state"])));
    pairs.collect()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn doctor_result_depends_neither_on_the_version_nor_on_path() {
    if !privileged() {
        return;
    }
    let plain = states(Command::new(thalweg()).args(["--json", "doctor"]));
    let mut old = Command::new("setarch");
    let old = states(old.args(["--uname-2.6", thalweg(), "--json", "doctor"]));
    assert_eq!(old, plain);
    let mut user = Command::new(thalweg());
    let user = states(user.env("PATH", "/usr/bin:/bin").args(["--json", "doctor"]));
    assert_eq!(user, plain);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn program_that_lets_no_other_in_is_named() {
    if !privileged() {
        return;
    }
    let lender = Bed::running("exclusivelend", "");
    let bed = Bed::new(&plain("exclusive"), "");
    let program = Program::fd_from_id(lender.running_program().unwrap()).unwrap();
    let cgroup = fs::File::open(bed.pair.cgroup_path()).unwrap();
    // SAFETY: both descriptors are open for the whole call.
    let failed = unsafe {
        libbpf_sys::bpf_prog_attach(
            program.as_fd().as_raw_fd(),
            cgroup.as_raw_fd(),
            libbpf_sys::BPF_CGROUP_SOCK_OPS,
            0,
        )
    };
    assert_eq!(failed, 0);
    let command = format!("bpftool cgroup detach {}", bed.pair.cgroup_path().display());
    let file = bed.directory.path().join("t.toml");
    fs::write(
        &file,
        "name = \"t\"\n[[rule]]\nname = \"r\"\nset.nodelay = true\n",
    )
    .unwrap();
    let apply = bed.thalweg(&["policy", "apply", file.to_str().unwrap()]);
    let said = [
        bed.refused(),
        String::from_utf8_lossy(&apply.stderr).into_owned(),
    ];
    for said in said {
        let names_it = said.contains("another program, learn_sockops (number ");
        assert!(names_it && said.contains(&command), "{said}");
        assert!(!said.contains("libbpf:"), "{said}");
    }
    let checks = bed.thalweg(&["--json", "doctor"]);
    let checks: Vec<serde_json::Value> = serde_json::from_slice(&checks.stdout).unwrap();
    let check = checks
        .iter()
        .find(|check| check["name"] == "cgroup v2")
        .unwrap();
    assert_eq!(check["state"], "missing", "{check}");
    assert!(check["fix"].as_str().unwrap().contains(&command), "{check}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn pins_that_end_with_the_command_are_refused() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("privatepins"), "");
    let client = bed.pair.namespace_name(Side::Client);
    let run = |by: &[&str], arguments: &[&str]| {
        let mut command = Command::new(by[0]);
        command.args(&by[1..]).args([thalweg(), "--config"]);
        command
            .arg(bed.configuration())
            .args(arguments)
            .output()
            .unwrap()
    };
    let exec = ["ip", "netns", "exec", client];
    for arguments in [
        &["cc", "load", "htcp"][..],
        &["run"],
        &["policy", "show"],
        &["detach"],
    ] {
        let output = run(&exec, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        assert!(said.contains("nsenter --net="), "{arguments:?}: {said}");
    }
    // The advice works.
    let file = format!("--net=/run/netns/{client}");
    let output = run(&["nsenter", &file], &["cc", "list"]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn pins_that_end_with_the_command_are_refused_and_doubtful_ones_named() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("ends"), "");
    let name = unique("ends");
    let load = |by: &[&str], before: &str| {
        let mut command = Command::new(by[0]);
        command
            .args(&by[1..])
            .args(["sh", "-c", &format!("{before} exec \"$@\""), "sh"])
            .args([thalweg(), "--config"])
            .arg(bed.configuration())
            .args(["cc", "load", "htcp", "--name", &name]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let loaded = || {
        let all = bed.json(&["cc", "list"]);
        let mut names = all.as_array().unwrap().iter().map(|it| &it["name"]);
        names.any(|it| *it == *name)
    };
    let unload = || assert!(bed.thalweg(&["cc", "unload", &name]).status.success());
    let client = bed.pair.namespace_name(Side::Client);
    let mounts = ["unshare", "--mount"];
    let unborn = ["unshare", "--mount", "--pid", "--mount-proc"];
    let first = ["unshare", "--mount", "--pid", "--mount-proc", "--fork"];
    let exec = ["ip", "netns", "exec", client];
    let away = "umount -l /sys/fs/bpf;";
    for (by, before) in [
        (&exec[..], ""),
        (&mounts, away),
        (&unborn, away),
        (&first, away),
    ] {
        let (done, said) = load(by, before);
        assert!(!done && said.contains("nsenter --net="), "{by:?}: {said}");
        assert!(!loaded(), "{by:?}");
    }
    // From here it cannot be told whose file system that is: the machine's, or the command's.
    for (before, stays) in [("", true), ("mount -t bpf none /sys/fs/bpf;", false)] {
        let (done, said) = load(&first, before);
        assert!(done, "{said}");
        assert!(
            said.starts_with("warning: ") && said.contains("cannot be known"),
            "{said}"
        );
        if stays {
            assert!(loaded());
            unload();
        } else {
            // The kernel takes a file system down after its last process has ended.
            wait_for("the end of what was pinned", || (!loaded()).then_some(()));
        }
    }
    let file = format!("--net=/run/netns/{client}");
    for by in [&["nsenter", &file][..], &mounts] {
        let (done, said) = load(by, "");
        assert!(done && loaded(), "{by:?}: {said}");
        assert!(!said.contains("cannot be known"), "{by:?}: {said}");
        unload();
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn agent_in_a_time_namespace_keeps_the_kernels_time() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("timens"), "");
    let mut command = Command::new("unshare");
    command.args([
        "--time",
        "--monotonic=1500",
        "--fork",
        thalweg(),
        "--config",
    ]);
    command.arg(bed.configuration()).arg("run");
    bed.start_by(command);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 5, 300_000);
    let events = bed.events(5);
    let now_ms = jiff::Timestamp::now().as_millisecond();
    for event in events {
        let time_ms = event["time_ms"].as_i64().unwrap();
        assert!((time_ms - now_ms).abs() < 60_000, "{now_ms}: {event}");
    }
    let host = bed.host(&address).expect("the host is known");
    assert!(host["idle_s"].as_u64().unwrap() < 60, "{host}");
    bed.json(&["detach"]);
    let agent = bed.leave();
    bed.collect(agent);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn doctor_knows_a_container_from_the_machine() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("container"), "");
    let found = |command: &mut Command| {
        let output = command.output().unwrap();
        let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = checks.as_array().unwrap().clone();
        let check = checks
            .into_iter()
            .find(|check| check["name"] == "cgroup v2");
        check.unwrap()["means"].as_str().unwrap().to_owned()
    };
    let empty = bed.directory.path().join("empty.toml");
    fs::write(&empty, "").unwrap();
    let thalweg = thalweg();
    let doctor = format!("{thalweg} --json --config {} doctor", empty.display());
    let here = found(Command::new("sh").args(["-c", &doctor]));
    assert!(here.contains("machine"), "{here}");
    let inside = format!(
        "echo $$ > {0}/cgroup.procs && exec unshare -C -m sh -c \
         'umount {1} && mount -t cgroup2 none {1} && exec {doctor}'",
        bed.pair.cgroup_path().display(),
        thalweg_control::system::cgroup2_mount().unwrap().display()
    );
    let inside = found(Command::new("sh").args(["-c", &inside]));
    assert!(inside.contains("container"), "{inside}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn doctor_tells_what_a_kernel_without_types_lacks() {
    if !privileged() {
        return;
    }
    let types = "/sys/kernel/btf";
    if !Path::new(types).join("vmlinux").exists() {
        tell_skipped("this kernel has no types that could be hidden");
        return;
    }
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg("mount -t tmpfs none \"$1\" && exec \"$2\" --json doctor")
        .args(["sh", types, thalweg()])
        .output()
        .unwrap();
    let checks: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    // One for each feature of the table, whatever else exists.
    for feature in thalweg_agent::doctor::requirements() {
        let check = checks.iter().find(|check| check["name"] == feature.name);
        let check = check.unwrap_or_else(|| panic!("no row {}", feature.name));
        let needs_types = feature.options().contains(&"CONFIG_DEBUG_INFO_BTF");
        if needs_types {
            assert_eq!(check["state"], "degraded", "{check}");
            assert_eq!(check["fix"].as_str().map(str::is_empty), Some(false));
            assert!(
                check["found"].to_string().contains("CONFIG_DEBUG_INFO_BTF")
                    || check["found"] == "no kernel BTF",
                "{check}"
            );
        } else if feature.required {
            assert_eq!(check["state"], "ok", "{check}");
        }
    }
}
