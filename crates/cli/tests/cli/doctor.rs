//! `thalweg doctor` in containers, and on kernels that lack something.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{Bed, THALWEG, plain, privileged};

#[test]
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
    let doctor = format!("{THALWEG} --json --config {} doctor", empty.display());
    let here = found(Command::new("sh").args(["-c", &doctor]));
    assert!(here.contains("machine"), "{here}");
    let inside = format!(
        "echo $$ > {0}/cgroup.procs && exec unshare -C -m sh -c \
         'umount {1} && mount -t cgroup2 none {1} && exec {doctor}'",
        bed.pair.cgroup().display(),
        thalweg_control::system::cgroup2_mount().unwrap().display()
    );
    let inside = found(Command::new("sh").args(["-c", &inside]));
    assert!(inside.contains("container"), "{inside}");
}

#[test]
fn doctor_tells_what_a_kernel_without_types_lacks() {
    if !privileged() {
        return;
    }
    let types = "/sys/kernel/btf";
    if !Path::new(types).join("vmlinux").exists() {
        eprintln!("skipped: this kernel has no types that could be hidden");
        return;
    }
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg("mount -t tmpfs none \"$1\" && exec \"$2\" --json doctor")
        .args(["sh", types, THALWEG])
        .output()
        .unwrap();
    let checks: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    // One for each feature of the table, whatever else exists.
    for feature in thalweg_agent::features::FEATURES {
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
