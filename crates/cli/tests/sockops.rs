//! `thalweg sockops`: objects of other people, compiled here.

#![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Bed, THALWEG, plain, privileged};

/// Compiles the probe.
fn compile(directory: &Path, file: &str, flags: &[&str]) -> PathBuf {
    let object = directory.join(file);
    let multiarch = Command::new("cc").arg("-print-multiarch").output().unwrap();
    let multiarch = String::from_utf8(multiarch.stdout).unwrap();
    let status = Command::new("clang")
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Wno-unused", "-c"])
        .arg(format!("-I/usr/include/{}", multiarch.trim()))
        .args(flags)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/probe.bpf.c"))
        .arg("-o")
        .arg(&object)
        .status()
        .expect("running clang");
    assert!(status.success());
    object
}

fn failure(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.thalweg(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn success(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.thalweg(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_object_is_loaded_runs_prints_and_goes_whole() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("sockops"), "");
    let object = compile(bed.directory.path(), "probe.bpf.o", &[]);
    let object = object.to_str().unwrap();
    let cgroup = bed.pair.cgroup().to_str().unwrap().to_owned();
    let said = success(&bed, &["sockops", "load", object, "--cgroup", &cgroup]);
    assert_eq!(
        said,
        format!("loaded probe: probe on {cgroup}\nleft out, not sockops: left_out\n")
    );
    let list = bed.json(&["sockops", "list"]);
    assert_eq!(list[0]["name"], "probe");
    assert_eq!(list[0]["cgroup"], cgroup.as_str());
    assert_eq!(list[0]["programs"], serde_json::json!(["probe"]));
    assert!(
        list[0]["maps"]
            .as_array()
            .unwrap()
            .contains(&"established".into())
    );

    let taken = failure(&bed, &["sockops", "load", object, "--cgroup", &cgroup]);
    assert!(taken.contains("is taken"), "{taken}");
    // A second instance under another name is fine.
    success(
        &bed,
        &[
            "sockops", "load", object, "--cgroup", &cgroup, "--name", "second",
        ],
    );
    success(&bed, &["sockops", "unload", "second"]);

    // tracefs need not be mounted; in a mount namespace the test may do so.
    let mut trace = Command::new("unshare")
        .args(["-m", "sh", "-c"])
        .arg(
            "mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing; \
             exec \"$@\"",
        )
        .args(["sh", THALWEG, "--json", "--config"])
        .arg(bed.configuration())
        .args(["sockops", "trace", "probe"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    // The kernel keeps lines until somebody reads them.
    bed.connect(&address, 3, 0);
    let lines = BufReader::new(trace.stdout.take().unwrap()).lines();
    let texts: Vec<String> = lines
        .take(3)
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
            line["text"].as_str().unwrap().to_owned()
        })
        .collect();
    trace.kill().unwrap();
    trace.wait().unwrap();
    assert_eq!(
        texts,
        [1, 2, 3].map(|number| format!("probe: connection {number}"))
    );

    success(&bed, &["sockops", "unload", "probe"]);
    assert_eq!(success(&bed, &["sockops", "list"]), "nothing is loaded\n");
    assert!(
        !bed.pin.exists(),
        "something stayed in {}",
        bed.pin.display()
    );
    let gone = failure(&bed, &["sockops", "unload", "probe"]);
    assert!(gone.contains("nothing is loaded under"), "{gone}");
}

#[test]
fn what_cannot_be_loaded_is_said_and_leaves_nothing() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("sockops-faults"), "");
    let cgroup = bed.pair.cgroup().to_str().unwrap().to_owned();
    let directory = bed.directory.path();
    let text = directory.join("text.o");
    std::fs::write(&text, "no object at all, but long enough").unwrap();
    let cut = directory.join("cut.o");
    let good = compile(directory, "good.o", &[]);
    std::fs::write(&cut, &std::fs::read(&good).unwrap()[..200]).unwrap();
    let cases = [
        (
            text,
            "is not an ELF file; expected an object that clang compiled",
        ),
        (PathBuf::from("/bin/true"), "for another machine"),
        (directory.join("none.o"), "No such file"),
        (cut, "cannot be read as a BPF object"),
        (
            compile(directory, "other.o", &["-DNO_SOCKOPS"]),
            "no program in a section \"sockops\" (only other)",
        ),
        (
            compile(directory, "refused.o", &["-DREFUSED"]),
            "invalid bpf_context access off=4000",
        ),
    ];
    for (object, expected) in cases {
        let object = object.to_str().unwrap();
        let said = failure(&bed, &["sockops", "load", object, "--cgroup", &cgroup]);
        assert!(said.contains(expected), "{expected:?} is not in: {said}");
        assert!(said.len() < 1000, "too much of a log: {said}");
        assert!(!bed.pin.exists(), "left behind by {object}");
    }
    let good = good.to_str().unwrap();
    let said = failure(&bed, &["sockops", "load", good, "--cgroup", "/tmp"]);
    assert!(said.contains("is not a cgroup v2 directory"), "{said}");
    let arguments = [
        "sockops", "load", good, "--cgroup", &cgroup, "--name", "../x",
    ];
    let said = failure(&bed, &arguments);
    assert!(said.contains("cannot be a name"), "{said}");
    assert!(!bed.pin.exists());
}
