//! Arguments of `thalweg limit`: names of cgroups, and what is refused.

use std::fs;
use std::path::Path;

use crate::limit::{Limited, links};
use crate::support::{plain, privileged, wait_for};

#[test]
fn a_cgroup_may_be_named_as_in_policies() {
    if !privileged() {
        return;
    }
    let bed = Limited::new(&plain("limit-names"));
    let cgroup = bed.cgroup();
    let mount = thalweg_control::system::cgroup2_mount().unwrap();
    let name = cgroup.strip_prefix(&mount).unwrap();
    bed.set(name, "10mbit", &[]);
    let id = bed.show(&cgroup)["cgroup_id"].clone();
    assert!(id.is_number());
    for form in [
        name.to_owned(),
        Path::new("/").join(name),
        Path::new("/sys/fs/cgroup").join(name),
    ] {
        assert_eq!(bed.show(&form)["cgroup_id"], id, "{}", form.display());
    }
    bed.remove(name);
    let output = bed
        .0
        .thalweg(&["limit", "show", "--cgroup", "no-such.slice"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("there is no cgroup /no-such.slice: /"),
        "{said}"
    );
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    if !privileged() {
        return;
    }
    let bed = Limited::new(&plain("limit-faults"));
    let cgroup = bed.cgroup();
    let cgroup = cgroup.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (
            &["--cgroup", "/no/such", "--rate", "1mbit"],
            1,
            "there is no cgroup /no/such: /",
        ),
        (
            &["--cgroup", "/tmp", "--rate", "1mbit"],
            1,
            "not a cgroup v2",
        ),
        (
            &["--cgroup", cgroup, "--rate", "0mbit"],
            2,
            "expected a rate",
        ),
        (&["--cgroup", cgroup, "--rate", "1mb"], 2, "expected a rate"),
        (&["--cgroup", cgroup], 2, "--rate"),
        (
            &["--cgroup", cgroup, "--rate", "9mbit", "--mark-at", "60ms"],
            1,
            "before any is marked",
        ),
        (
            &["--cgroup", cgroup, "--rate", "1mbit", "--work-conserving"],
            2,
            "--line-rate",
        ),
        (
            &[
                "--cgroup",
                cgroup,
                "--rate",
                "10mbit",
                "--work-conserving",
                "--line-rate",
                "10mbit",
            ],
            1,
            "faster than it",
        ),
        (
            &[
                "--cgroup", cgroup, "--rate", "1mbit", "--edt", "--device", "none0",
            ],
            1,
            "there is no device none0",
        ),
    ];
    for (arguments, code, expected) in cases {
        let output = bed.0.thalweg(&[&["limit"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert!(!bed.0.pin.exists(), "left behind by {arguments:?}");
    }

    // The client's link has no queueing discipline at all.
    let waits = "import time; time.sleep(60)";
    let _inside = bed.start(&bed.cgroup(), waits, &[]);
    let processes = bed.cgroup().join("cgroup.procs");
    // Of an empty cgroup, the caller's devices would be checked.
    wait_for("process in the cgroup", || {
        (!fs::read_to_string(&processes).unwrap().is_empty()).then_some(())
    });
    let output = bed
        .0
        .thalweg(&["limit", "--cgroup", cgroup, "--rate", "1mbit", "--edt"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("it is not on link0"), "{said}");
    assert!(!bed.0.pin.exists());
    assert_eq!(links(&bed.cgroup()), 0);
}
