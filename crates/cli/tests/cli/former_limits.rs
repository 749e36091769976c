//! `thalweg limit` of earlier versions: what to use instead, and the removal of what it pinned.

use std::fs;
use std::os::fd::AsRawFd;
use std::process::Command;

use libbpf_rs::{MapCore, MapHandle, ObjectBuilder, Program};

use thalweg_testbed::{Bed, privileged, thalweg, wait_for};

#[test]
fn limit_with_any_arguments_names_its_replacements() {
    let calls: [&[&str]; 6] = [
        &[],
        &["--cgroup", "system.slice", "--rate", "1gbit", "--edt"],
        &["list"],
        &["remove", "--all"],
        &["--help"],
        &["show", "--no-such-option=1", "--", "more"],
    ];
    for arguments in calls {
        for json in [false, true] {
            let mut command = Command::new(thalweg());
            command.args(json.then_some("--json")).arg("limit");
            let output = command.args(arguments).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{arguments:?}");
            assert!(output.stdout.is_empty(), "{arguments:?}");
            let error = String::from_utf8(output.stderr).unwrap();
            for part in [
                "`thalweg limit` was removed",
                "tc class replace dev",
                "root fq maxrate",
                "kubernetes.io/egress-bandwidth",
                "thalweg detach",
            ] {
                assert!(error.contains(part), "{arguments:?}: {error}");
            }
            if json {
                let object: serde_json::Value = serde_json::from_str(&error).unwrap();
                assert_eq!(object["code"], 2);
            }
        }
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_with_limits_of_an_earlier_version_removes_them() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("formerlimit", "");
    let limits = bed.pin.join("limits");
    let own = limits.join("4711");
    fs::create_dir_all(&own).unwrap();
    // Any program and any map have such pins.
    let program = {
        let object = ObjectBuilder::default()
            .open_memory(&thalweg_bpf_objects::POLICY_MARK.unpack())
            .unwrap();
        let object = object.load().unwrap();
        let cgroup = fs::File::open(bed.pair.cgroup_path()).unwrap();
        let program = object.progs_mut().next().unwrap();
        let mut link = program.attach_cgroup(cgroup.as_raw_fd()).unwrap();
        link.pin(own.join("link_egress")).unwrap();
        let id = link.info().unwrap().prog_id;
        for map in object.maps() {
            let mut map = MapHandle::try_from(&map).unwrap();
            if map.name().to_string_lossy() == "marks" {
                for path in ["4711/settings", "4711/state", "line", "pacing", "dropped"] {
                    map.pin(limits.join(path)).unwrap();
                }
            }
        }
        id
    };
    assert!(is_loaded(program));
    let answer = bed.json(&["detach"]);
    let removed = answer["removed"].as_array().unwrap();
    assert!(removed.contains(&"limits/4711".into()), "{answer}");
    assert!(!bed.pin.exists());
    wait_for("the end of the program", || {
        (!is_loaded(program)).then_some(())
    });
    // Without an agent, and with only a part of the pins.
    fs::create_dir_all(&own).unwrap();
    assert_eq!(
        bed.json(&["detach"])["removed"],
        serde_json::json!(["limits/4711"])
    );
    assert!(!bed.pin.exists());
}

fn is_loaded(program: u32) -> bool {
    Program::fd_from_id(program).is_ok()
}
