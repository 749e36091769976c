//! What is in the store stays there: full and read-only disks, imports, arms that come and go.

#![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;
use support::{Bed, Traffic, plain, privileged, wait_for};

/// A small disk in place of a directory.
struct Disk {
    place: PathBuf,
}

impl Disk {
    fn new(place: &Path, options: &str) -> Self {
        fs::create_dir_all(place).unwrap();
        mount(
            Some("tmpfs"),
            place,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(format!("mode=0700,{options}").as_str()),
        )
        .unwrap();
        Self {
            place: place.to_path_buf(),
        }
    }

    /// Leaves no room.
    fn fill(&self) -> PathBuf {
        let ballast = self.place.join("ballast");
        let mut file = fs::File::create(&ballast).unwrap();
        let full = std::io::copy(&mut std::io::repeat(0), &mut file).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        ballast
    }

    fn read_only(&self) {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, &self.place, None::<&str>, flags, None::<&str>).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // An agent that still runs keeps it until it ends.
        let _ = umount2(&self.place, MntFlags::MNT_DETACH);
    }
}

fn problems(bed: &Bed) -> String {
    bed.json(&["status"])["problems"].to_string()
}

/// An agent with snapshots each second, a sink, and a host that something is known of.
fn learned(label: &str) -> (Bed, Traffic) {
    let bed = Bed::running(label, "[snapshot]\ninterval = \"1s\"\n");
    let sink = bed.sink(&bed.server_address());
    bed.connect(&bed.server_address(), 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    (bed, sink)
}

fn snapshot_is_saved(bed: &Bed) {
    wait_for("a snapshot", || {
        let age = bed.json(&["status"])["snapshot_age_s"].clone();
        (age != Value::Null).then_some(())
    });
}

#[test]
fn a_full_disk_is_said_once_and_over_when_there_is_room() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("full-disk"), "[snapshot]\ninterval = \"1s\"\n");
    let disk = Disk::new(&bed.state(), "size=4m");
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    snapshot_is_saved(&bed);
    let ballast = disk.fill();
    let lost = |bed: &Bed| bed.json(&["status"])["events_lost"].as_u64().unwrap();
    // Pages that the log has already may be written again; sooner or later it must grow.
    wait_for("lost events", || {
        bed.connect(&address, 100, 0);
        (lost(&bed) > 0).then_some(())
    });
    wait_for("a snapshot that fails", || {
        problems(&bed).contains("not saved").then_some(())
    });
    let text = problems(&bed);
    let store = bed.state().join("thalweg.db");
    for part in ["events are not stored", "full", store.to_str().unwrap()] {
        assert!(text.contains(part), "{part} not in: {text}");
    }
    bed.connect(&address, 300, 0);

    fs::remove_file(ballast).unwrap();
    wait_for("an end of all problems", || {
        bed.connect(&address, 1, 0);
        (problems(&bed) == "[]").then_some(())
    });
    let logged = bed.logged();
    let lines = |what: &str| logged.lines().filter(|line| line.contains(what)).count();
    assert_eq!(lines("events are not stored"), 1, "{logged}");
    let end = format!("events are stored again; {} were lost", lost(&bed));
    assert_eq!(lines(&end), 1, "{end} not in: {logged}");
    assert_eq!(lines("ERROR"), 2, "events and snapshots: {logged}");
    // Nothing is counted twice, and nothing not at all.
    wait_for("all events", || {
        let status = bed.json(&["status"]);
        let count = |pointer: &str| status.pointer(pointer).unwrap().as_u64().unwrap();
        (count("/events_stored") + count("/events_lost") == count("/counters/events")).then_some(())
    });
    assert!(bed.end(Signal::SIGTERM).success());
    drop(disk);
}

#[test]
fn a_store_that_cannot_be_written_is_named_and_nothing_is_attached() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("read-only"), "");
    let disk = Disk::new(&bed.state(), "size=4m");
    disk.read_only();
    let output = bed.run_command().output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(bed.state().to_str().unwrap()), "{text}");
    assert!(text.contains("Read-only"), "{text}");
    assert!(!bed.pin.exists(), "a start that failed left pins behind");
    drop(disk);

    // And one without room for a store.
    let disk = Disk::new(&bed.state(), "size=64k");
    disk.fill();
    let output = bed.run_command().output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(bed.state().to_str().unwrap()), "{text}");
    assert!(
        text.contains("full") || text.contains("No space left"),
        "{text}"
    );
    assert!(!bed.pin.exists(), "a start that failed left pins behind");
}

#[test]
fn what_is_imported_is_saved_though_no_connection_comes() {
    if !privileged() {
        return;
    }
    let (mut bed, sink) = learned("import");
    let document = bed.directory.path().join("hosts.json");
    let file = document.to_str().unwrap().to_owned();
    assert!(bed.thalweg(&["export", &file]).status.success());
    drop(sink);
    let address = bed.server_address();
    assert_eq!(bed.json(&["reset", "--yes"])["removed"], 1);
    assert!(bed.end(Signal::SIGTERM).success());
    assert!(bed.thalweg(&["detach"]).status.success());

    bed.start();
    assert!(bed.host(&address).is_none(), "forgotten hosts came back");
    assert_eq!(bed.json(&["import", &file])["imported"], 1);
    snapshot_is_saved(&bed);
    bed.end(Signal::SIGKILL);
    assert!(bed.thalweg(&["detach"]).status.success());
    bed.start();
    assert_eq!(bed.host(&address).expect("saved")["scored"], 1);
}

#[test]
fn what_is_known_of_an_arm_waits_for_it() {
    if !privileged() {
        return;
    }
    let (mut bed, _sink) = learned("absent");
    let address = bed.server_address();
    let arm = |bed: &Bed| {
        let host = bed.host(&address).expect("known");
        let arms = host["arms"].as_array().unwrap().clone();
        arms.into_iter().find(|arm| arm["arm"] == "reno")
    };
    // What a connection on reno would leave.
    let file = bed.directory.path().join("hosts.json");
    let name = file.to_str().unwrap().to_owned();
    assert!(bed.thalweg(&["export", &name]).status.success());
    let mut document: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let arms = document["hosts"][0]["arms"].as_object_mut().unwrap();
    let (_, known) = arms.iter().next().unwrap();
    let known = known.clone();
    arms.insert("reno".to_owned(), known);
    fs::write(&file, document.to_string()).unwrap();
    assert_eq!(bed.json(&["import", &name])["imported"], 1);
    assert_eq!(arm(&bed).expect("imported")["scored"], 1);

    // A start without it, as after a boot and before `thalweg cc load`, and a snapshot.
    let restart = |bed: &mut Bed, settings: &str| {
        assert!(bed.end(Signal::SIGTERM).success());
        assert!(bed.thalweg(&["detach"]).status.success());
        bed.configure(settings);
        bed.start();
    };
    restart(
        &mut bed,
        "[arms]\ndeny = [\"reno\"]\n[snapshot]\ninterval = \"1s\"\n",
    );
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    snapshot_is_saved(&bed);
    restart(&mut bed, "[snapshot]\ninterval = \"1s\"\n");
    assert_eq!(bed.host(&address).unwrap()["scored"], 2);
    assert_eq!(arm(&bed).expect("kept")["scored"], 1);
}
