//! The store keeps its content: on full, failing and read-only disks, with changing clocks,
//! imports, and arms that come and go.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_testbed::{Bed, Traffic, plain, privileged, skip, wait_for};

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

    /// Fills the disk.
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
        // A running agent keeps it mounted until it ends.
        let _ = umount2(&self.place, MntFlags::MNT_DETACH);
    }
}

/// A disk of its own in place of a directory, in a file; with ext4, which becomes read-only after a
/// fault.
struct FailingDisk {
    place: PathBuf,
    image: PathBuf,
}

impl FailingDisk {
    fn new(bed: &Bed) -> Self {
        let disk = Self {
            place: bed.state(),
            image: bed.directory.path().join("disk"),
        };
        let file = fs::File::create(&disk.image).unwrap();
        file.set_len(16 << 20).unwrap();
        done(Command::new("mkfs.ext4").arg("-q").arg(&disk.image));
        fs::create_dir_all(&disk.place).unwrap();
        disk.mount();
        disk
    }

    fn mount(&self) {
        let mut command = Command::new("mount");
        command.args(["-o", "loop,errors=remount-ro"]);
        done(command.arg(&self.image).arg(&self.place));
        fs::set_permissions(&self.place, fs::Permissions::from_mode(0o700)).unwrap();
    }

    /// Triggers a fault of the file system.
    fn fail(&self) {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let place = format!(" {} ", self.place.display());
        let mount = mounts.lines().find(|line| line.contains(&place)).unwrap();
        let device = mount.split(' ').next().unwrap().trim_start_matches("/dev/");
        fs::write(
            format!("/sys/fs/ext4/{device}/trigger_fs_error"),
            "of a test",
        )
        .unwrap();
    }

    /// Repairs the file system and mounts it again, as the operator would.
    fn mend(&mut self) {
        done(Command::new("umount").arg(&self.place));
        // A copy: namespaces that other tests created meanwhile may hold the mount, and the file
        // system with it.
        let copy = self.image.with_extension("copy");
        fs::copy(&self.image, &copy).unwrap();
        fs::rename(copy, &self.image).unwrap();
        let mended = Command::new("e2fsck").arg("-fy").arg(&self.image).output();
        let mended = mended.unwrap();
        // 1: something was repaired.
        assert!(matches!(mended.status.code(), Some(0 | 1)), "{mended:?}");
        self.mount();
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.place, MntFlags::MNT_DETACH);
    }
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// An agent on another machine, as simulated by files in its directory.
fn machine(bed: &Bed) -> Command {
    let library = bed.directory.path().join("machine.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lifecycle/machine.c");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
    done(compile.arg(&library).arg(source));
    let mut command = bed.run_command();
    command
        .env("LD_PRELOAD", library)
        .env("TEST_CLOCK", bed.directory.path().join("clock"))
        .env("TEST_READ_ONLY", bed.state().join("read-only"));
    command
}

fn lines(bed: &Bed, what: &str) -> usize {
    let logged = bed.logged();
    logged.lines().filter(|line| line.contains(what)).count()
}

fn lost(bed: &Bed) -> u64 {
    bed.json(&["status"])["events_lost"].as_u64().unwrap()
}

fn problems(bed: &Bed) -> String {
    bed.json(&["status"])["problems"].to_string()
}

/// An agent with snapshots each second, a sink, and a host with a record.
fn learned(label: &str) -> (Bed, Traffic) {
    let bed = Bed::running(label, "[snapshot]\ninterval = \"1s\"\n");
    let sink = bed.sink(&bed.server_address());
    bed.connect(&bed.server_address(), 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    (bed, sink)
}

fn snapshot_is_saved(bed: &Bed) {
    wait_for("a snapshot", || {
        let metrics = bed.thalweg(&["metrics"]);
        let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
        let written = "thalweg_store_write_seconds_count{what=\"records\"} ";
        let (_, count) = metrics.split_once(written)?;
        (!count.starts_with('0')).then_some(())
    });
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
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
    // Pages already in the log may be rewritten; sooner or later it must grow.
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
    // Each is counted exactly once.
    wait_for("all events", || {
        let status = bed.json(&["status"]);
        let count = |pointer: &str| status.pointer(pointer).unwrap().as_u64().unwrap();
        (count("/events_stored") + count("/events_lost") == count("/counters/events")).then_some(())
    });
    assert!(bed.end(Signal::SIGTERM).success());
    drop(disk);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn on_a_disk_that_fails_it_goes_on_learning_and_detaches() {
    if !privileged() {
        return;
    }
    if !Path::new("/dev/loop-control").exists() {
        skip("there are no loop devices");
        return;
    }
    let settings = "[snapshot]\ninterval = \"1s\"\n";
    let mut bed = Bed::new(&plain("failing"), settings);
    let mut disk = FailingDisk::new(&bed);
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    snapshot_is_saved(&bed);
    wait_for("the host in the store", || {
        let list = "import sqlite3, sys\n\
                    print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM hosts WHERE level = 0').fetchone()[0])\n";
        let store = bed.state().join("thalweg.db");
        let found = Command::new("python3")
            .args(["-c", list])
            .arg(store)
            .output();
        (found.unwrap().stdout == b"1\n").then_some(())
    });
    // The kernel does it within half a minute: snapshots do not wait for the disk.
    done(Command::new("sync").arg("-f").arg(bed.state()));
    // The store is open, so a plain remount as read-only is refused; a fault can do it.
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    let refused = mount(None::<&str>, &disk.place, None::<&str>, flags, None::<&str>);
    assert_eq!(refused, Err(nix::errno::Errno::EBUSY));
    disk.fail();
    for _ in 0..3 {
        bed.measure(&address);
        let before = lost(&bed);
        wait_for("lost events", || {
            bed.connect(&address, 10, 0);
            (lost(&bed) > before).then_some(())
        });
    }
    wait_for("a snapshot that fails", || {
        problems(&bed).contains("not saved").then_some(())
    });
    let text = problems(&bed);
    let store = bed.state().join("thalweg.db");
    for part in [
        "events are not stored",
        "disk I/O error",
        store.to_str().unwrap(),
    ] {
        assert!(text.contains(part), "{part} not in: {text}");
    }
    assert_eq!(
        lines(&bed, "ERROR"),
        2,
        "events and snapshots: {}",
        bed.logged()
    );

    // Its end reports what could not be saved; the records stay in the kernel.
    assert!(!bed.end(Signal::SIGTERM).success());
    let before = bed.running_program();
    assert!(before.is_some());
    let text = bed.refused();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(bed.state().to_str().unwrap()), "{text}");
    assert!(text.contains("Read-only"), "{text}");
    assert_eq!(bed.running_program(), before, "{text}");
    disk.mend();
    bed.start();
    assert_eq!(bed.host(&address).expect("of the kernel")["scored"], 4);
    assert_eq!(problems(&bed), "[]");

    // `detach` works, though the present records are lost.
    disk.fail();
    bed.measure(&address);
    assert_eq!(bed.host(&address).unwrap()["scored"], 5);
    let output = bed.thalweg(&["detach"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("not saved"), "{text}");
    assert!(!bed.pin.exists(), "programs are left: {text}");
    // Off is off: no service manager starts it again.
    bed.reap();
    disk.mend();
    bed.start();
    assert!(bed.host(&address).expect("of the store")["scored"].as_u64() < Some(5));
    assert!(bed.end(Signal::SIGTERM).success());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_disk_that_can_be_written_again_is_written_again() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("again"), "[snapshot]\ninterval = \"1s\"\n");
    bed.start_by(machine(&bed));
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    snapshot_is_saved(&bed);
    let switch = bed.state().join("read-only");
    fs::write(&switch, "").unwrap();
    wait_for("lost events", || {
        bed.connect(&address, 10, 0);
        (lost(&bed) > 0).then_some(())
    });
    wait_for("a snapshot that fails", || {
        problems(&bed).contains("not saved").then_some(())
    });
    bed.measure(&address);
    fs::remove_file(&switch).unwrap();
    wait_for("an end of all problems", || {
        bed.connect(&address, 1, 0);
        (problems(&bed) == "[]").then_some(())
    });
    assert_eq!(
        lines(&bed, "ERROR"),
        2,
        "events and snapshots: {}",
        bed.logged()
    );
    let end = format!("events are stored again; {} were lost", lost(&bed));
    assert_eq!(lines(&bed, &end), 1, "{end} not in: {}", bed.logged());
    assert!(bed.end(Signal::SIGTERM).success());
    bed.thalweg(&["detach"]);
    bed.start();
    assert_eq!(bed.host(&address).expect("saved")["scored"], 2);
}

const DAY_S: i64 = 24 * 3600;

/// Evidence of a host, and the time since it was last seen, s.
fn evidence(bed: &Bed, address: &str) -> (f64, u64) {
    let host = bed.host(address).expect("known");
    let arms = host["arms"].as_array().unwrap();
    let evidence = arms.iter().map(|arm| arm["evidence"].as_f64().unwrap());
    (evidence.sum(), host["idle_s"].as_u64().unwrap())
}

/// Checks that the evidence exceeds `least` and is recent.
fn assert_fresh(bed: &Bed, address: &str, least: f64, when: &str) {
    let (evidence, idle_s) = evidence(bed, address);
    assert!(evidence > least, "{when}: {evidence}, not over {least}");
    assert!(idle_s < 120, "{when}: seen {idle_s} s ago");
    let age = bed.json(&["status"])["snapshot_age_s"].as_u64();
    assert!(age.is_none_or(|age| age < 120), "{when}: {age:?}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_wall_clock_that_is_set_ages_nothing() {
    if !privileged() {
        return;
    }
    // One arm: measurements of others would reduce its evidence.
    let settings = "[arms]\nallow = [\"cubic\"]\n[snapshot]\ninterval = \"1s\"\n";
    let mut bed = Bed::new(&plain("clock"), settings);
    let clock = bed.directory.path().join("clock");
    let set = |ahead_s: i64| fs::write(&clock, ahead_s.to_string()).unwrap();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.start_by(machine(&bed));
    let mut closed = 0;
    let mut connect = |connections| {
        bed.connect(&address, connections, 1_000_000);
        closed += 2 * connections as u64;
        bed.counter_reaches("closed", closed);
    };
    connect(3);
    // While the agent runs.
    for ahead_s in [10 * 365 * DAY_S, -DAY_S, 0] {
        // More than a connection adds: if this were lost, the next would not make up for it. Each
        // that a busy machine slowed has halved it.
        for _ in 0..20 {
            if evidence(&bed, &address).0 > 1.5 {
                break;
            }
            connect(1);
        }
        let (before, _) = evidence(&bed, &address);
        assert!(before > 1.5, "{before}");
        set(ahead_s);
        connect(1);
        let when = format!("set by {ahead_s} s");
        // A connection adds 1 at most, and halves the old evidence if it was slow.
        assert_fresh(&bed, &address, 1.05, &when);
        let stored = bed.json(&["status"])["events_stored"].as_u64().unwrap();
        let events = bed.json(&["events", "--limit", "1000"]);
        assert!(events.as_array().unwrap().len() as u64 >= stored, "{when}");
    }
    // Between two runs, with nothing left in the kernel.
    for ahead_s in [10 * 365 * DAY_S, -DAY_S, 0] {
        let (before, _) = evidence(&bed, &address);
        bed.json(&["detach"]);
        bed.reap();
        set(ahead_s);
        bed.start_by(machine(&bed));
        let when = format!("set by {ahead_s} s between runs");
        // Some seconds of a half-life of 30 minutes, a minute on a busy machine.
        assert_fresh(&bed, &address, 0.9 * before, &when);
    }
}

/// From one boot to the next, only the wall clock shows how much time has passed.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_wall_clock_that_is_wrong_after_a_boot_loses_no_host() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("boot"), "[snapshot]\ninterval = \"1s\"\n");
    let address = bed.server_address();
    let clock = bed.directory.path().join("clock");
    bed.start_by(machine(&bed));
    // A host of the agent's own namespace: cookies of others are void in the next boot.
    let sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    drop(sink);
    let file = bed.directory.path().join("hosts.json");
    let name = file.to_str().unwrap();
    assert!(bed.thalweg(&["export", name]).status.success());
    let text = fs::read_to_string(&file).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    let own = document["own_netns"].clone();
    assert!(own.is_u64(), "{text}");
    document["hosts"][0]["netns"] = own;
    document["hosts"][0]["address"] = "192.0.2.1".into();
    fs::write(&file, document.to_string()).unwrap();
    assert_eq!(bed.json(&["import", name])["imported"], 1);
    let (known, _) = evidence(&bed, "192.0.2.1");
    assert!(known > 0.0);
    // A day back: no time has passed; on its return, one day.
    for (boot, ahead_s, least, most) in [
        (1, -DAY_S, 0.9 * known, known),
        (2, -DAY_S, 0.9 * known, known),
        (3, 0, 0.0, 0.01 * known),
        (4, 10 * 365 * DAY_S, 0.0, 0.01 * known),
        (5, -DAY_S, 0.0, 0.01 * known),
    ] {
        bed.json(&["detach"]);
        bed.reap();
        fs::write(&clock, ahead_s.to_string()).unwrap();
        let id = bed.directory.path().join("boot_id");
        fs::write(&id, format!("0d9c57f6-9e0f-4b7f-8d58-00000000000{boot}\n")).unwrap();
        let own = machine(&bed);
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c"])
            .arg("mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"")
            .arg(&id)
            .arg("env")
            .args(own.get_envs().map(|(name, value)| {
                format!(
                    "{}={}",
                    name.to_str().unwrap(),
                    value.unwrap().to_str().unwrap()
                )
            }))
            .arg(own.get_program())
            .args(own.get_args())
            .stdin(std::process::Stdio::null());
        bed.start_by(command);
        let (evidence, _) = evidence(&bed, "192.0.2.1");
        assert!(
            (least..=most * 1.001).contains(&evidence),
            "boot {boot}: {evidence} of {known}"
        );
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
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
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!bed.pin.exists(), "a start that failed left pins behind");
    drop(disk);

    // And a disk too small for a store.
    let above = bed.state().with_file_name("disk");
    let disk = Disk::new(&above, "size=64k");
    fs::create_dir(above.join("state")).unwrap();
    fs::remove_dir(bed.state()).unwrap();
    symlink(above.join("state"), bed.state()).unwrap();
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
#[cfg_attr(not(privileged), ignore = "needs root")]
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
#[cfg_attr(not(privileged), ignore = "needs root")]
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
    // A record as a connection on reno would leave it.
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
    bed.measure(&address);
    snapshot_is_saved(&bed);
    restart(&mut bed, "[snapshot]\ninterval = \"1s\"\n");
    assert_eq!(bed.host(&address).unwrap()["scored"], 2);
    assert_eq!(arm(&bed).expect("kept")["scored"], 1);
}
