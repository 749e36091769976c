//! Starts that fail or are interrupted: no record is lost, and nothing is left half done.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libbpf_rs::{MapHandle, MapType};
use nix::sys::signal::Signal;

use thalweg_testbed::containers::{in_container, with_mounts};
use thalweg_testbed::{Bed, SmallDisk, Traffic, plain, privileged, skip, wait_for};

/// A bed whose agent has scored one connection, and the server that it went to.
pub fn learned(label: &str, settings: &str) -> (Bed, String, Traffic) {
    let bed = Bed::running(label, settings);
    let address = bed.server_address();
    let sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("closed", 2);
    (bed, address, sink)
}

fn assert_known(bed: &Bed, address: &str) {
    let host = bed.host(address).expect("what was learned is lost");
    assert_eq!(host["scored"], 1);
}

/// A memory cgroup, of either version, removed with this value.
struct MemoryLimit(PathBuf);

impl MemoryLimit {
    fn new(label: &str, bytes: u64) -> Option<Self> {
        let name = format!("thalweg-test-{}-{label}", std::process::id());
        for (root, file) in [
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ] {
            let limit = Self(Path::new(root).join(&name));
            if fs::create_dir(&limit.0).is_ok()
                && limit.0.join(file).exists()
                && fs::write(limit.0.join(file), bytes.to_string()).is_ok()
            {
                return Some(limit);
            }
        }
        None
    }

    /// The command, run in this cgroup.
    fn confine(&self, command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.0.join("cgroup.procs"))
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::null());
        shell
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_table_that_gets_no_memory_takes_nothing_away() {
    if !privileged() {
        return;
    }
    let (mut bed, address, _sink) = learned("nomem", "");
    let Some(limit) = MemoryLimit::new("nomem", 128 << 20) else {
        skip("no memory cgroup can be made");
        return;
    };
    bed.end(Signal::SIGTERM);
    let before = bed.running_program();
    bed.configure("[hosts]\nmax = 1000000\n");
    let told = bed.refuses(limit.confine(&bed.run_command()));
    // The size is that of a million records of 1.2 kB.
    for part in [
        "MiB of that map hosts",
        "MiB is available (memory.",
        "lower [hosts] max",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(
        bed.running_program(),
        before,
        "the old program was replaced"
    );
    bed.configure("");
    bed.start();
    assert_known(&bed, &address);
    bed.end(Signal::SIGTERM);
    bed.start();
    assert_known(&bed, &address);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn start_without_free_inodes_names_them_and_works_once_there_are() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("noinodes"), "");
    let above = bed.state().with_file_name("disk");
    let disk = SmallDisk::new(&above, "4m,nr_inodes=20");
    fs::create_dir(above.join("state")).unwrap();
    symlink(above.join("state"), bed.state()).unwrap();
    let filler = |number: usize| above.join(format!("filler-{number}"));
    let taken = (0..20)
        .take_while(|number| fs::write(filler(*number), "").is_ok())
        .count();
    let told = bed.refused();
    assert!(told.contains("no free inodes: `df -i "), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    // Room for the lock, but not for the store.
    fs::remove_file(filler(0)).unwrap();
    let told = bed.refused();
    assert!(told.contains("no free inodes: `df -i "), "{told}");
    for number in 1..taken {
        fs::remove_file(filler(number)).unwrap();
    }
    bed.start();
    bed.end(Signal::SIGTERM);
    drop(disk);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_start_that_fails_at_its_socket_leaves_nothing_attached() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("nosocket"), "");
    fs::create_dir_all(bed.socket().join("in the way")).unwrap();
    let text = bed.refused();
    assert!(text.contains(bed.socket().to_str().unwrap()), "{text}");
    assert!(!bed.pin.exists(), "something is left in the kernel: {text}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_listener_that_never_accepts_is_recognised_as_alive() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("deaf"), "");
    let listener = std::os::unix::net::UnixListener::bind(bed.socket()).unwrap();
    // A connection more than the queue holds would wait forever.
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open; listen only shortens its queue.
    assert_eq!(unsafe { nix::libc::listen(listener.as_raw_fd(), 0) }, 0);
    let _waiting = std::os::unix::net::UnixStream::connect(bed.socket()).unwrap();
    let text = bed.refused();
    assert!(text.contains("another process answers"), "{text}");
    assert!(bed.socket().exists(), "the socket of another was removed");
    assert!(!bed.pin.exists(), "something is left in the kernel: {text}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_restore_that_fails_leaves_nothing_attached_and_the_store_as_it_was() {
    if !privileged() {
        return;
    }
    let (mut bed, address, _sink) = learned("norestore", "");
    bed.json(&["detach"]);
    bed.reap();
    let store = bed.state().join("thalweg.db");
    // An invalid number: SQLite stores it, Thalweg cannot read it.
    let change = |by: i64| {
        let program = "import sqlite3, sys\n\
                       db = sqlite3.connect(sys.argv[1])\n\
                       n = db.execute('UPDATE hosts SET connections = connections + ? WHERE level = 0', sys.argv[2:]).rowcount\n\
                       db.commit()\n\
                       assert n == 1, n\n";
        let done = Command::new("python3")
            .args(["-c", program])
            .arg(&store)
            .arg(by.to_string())
            .status();
        assert!(done.unwrap().success());
    };
    change(-1_000_000);
    for _ in 0..2 {
        let text = bed.refused();
        assert!(text.contains(store.to_str().unwrap()), "{text}");
        assert!(!bed.pin.exists(), "something is left in the kernel: {text}");
    }
    change(1_000_000);
    bed.start();
    assert_known(&bed, &address);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_missing_pin_loses_nothing() {
    if !privileged() {
        return;
    }
    let (mut bed, address, _sink) = learned("missing", "");
    for name in ["hosts", "meta", "arms", "conns", "link_setsockopt"] {
        bed.end(Signal::SIGKILL);
        fs::remove_file(bed.pin.join(name)).unwrap();
        bed.start();
        assert_known(&bed, &address);
        assert!(bed.pin.join(name).exists(), "{name} is still missing");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_map_of_somebody_else_is_refused_not_removed() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("foreign"), "");
    fs::create_dir_all(&bed.pin).unwrap();
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as u64,
        ..Default::default()
    };
    let path = bed.pin.join("hosts");
    let mut map = MapHandle::create(MapType::Hash, Some("theirs"), 4, 4, 1, &options).unwrap();
    map.pin(&path).unwrap();
    let text = bed.refused();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert!(text.contains("theirs"), "{text}");
    assert!(path.exists(), "it was removed");
    let left: Vec<_> = fs::read_dir(&bed.pin).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    map.unpin(&path).unwrap();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_start_right_after_detach_waits_for_the_one_that_goes() {
    if !privileged() {
        return;
    }
    let (mut bed, address, _sink) = learned("again", "");
    for _ in 0..2 {
        bed.json(&["detach"]);
        let old = bed.leave();
        bed.start();
        assert_known(&bed, &address);
        bed.collect(old);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_listener_that_chose_keeps_its_choice_over_a_change_of_mode() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("chose", "");
    let owned = |bed: &Bed| thalweg_testbed::map_id(&bed.pin.join("owned"));
    let before = owned(&bed);
    bed.end(Signal::SIGTERM);
    bed.configure("mode = \"classic\"\n");
    bed.start();
    assert_eq!(owned(&bed), before, "the marks of sockets are gone");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_state_directory_that_others_may_write_is_refused() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("open"), "");
    fs::create_dir_all(bed.state()).unwrap();
    fs::set_permissions(bed.state(), fs::Permissions::from_mode(0o777)).unwrap();
    let text = bed.refused();
    assert!(text.contains(bed.state().to_str().unwrap()), "{text}");
    assert!(text.contains("chmod"), "{text}");
    fs::set_permissions(bed.state(), fs::Permissions::from_mode(0o750)).unwrap();
    std::os::unix::fs::chown(bed.state(), Some(65534), None).unwrap();
    let text = bed.refused();
    assert!(text.contains(bed.state().to_str().unwrap()), "{text}");
    assert!(text.contains("chown"), "{text}");
    assert!(!bed.pin.exists(), "something is left in the kernel");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn where_no_bpf_file_system_is_mounted_it_mounts_one() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("nobpffs"), "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    for (line, scored) in [
        ("umount -l /sys/fs/bpf", 1),
        ("mount -t tmpfs none /sys/fs/bpf", 2),
    ] {
        // The pins would end with the agent.
        let said = bed.refuses(with_mounts(&bed, line));
        assert!(said.contains("nsenter --net="), "{said}");
        bed.start_by(in_container(&bed, line));
        bed.measure(&address);
        assert!(!bed.pin.exists(), "it is this namespace's");
        assert_eq!(bed.host(&address).unwrap()["scored"], scored);
        bed.json(&["detach"]);
        bed.reap();
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn without_a_bpf_file_system_it_says_how_to_have_one_and_leaves_nothing() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("nopins"), "");
    let refuses = |bed: &Bed, command: Command| {
        let text = bed.refuses(command);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(bed.pin.to_str().unwrap()), "{text}");
        assert!(!bed.pin.exists(), "{text}");
        assert!(!bed.socket().exists(), "{text}");
        text
    };
    // A kernel without one has not even a directory for it.
    let line = "mount --rbind /sys/fs/cgroup \"$0\" && mount -t tmpfs none /sys/fs && \
                mkdir /sys/fs/cgroup && mount --rbind \"$0\" /sys/fs/cgroup";
    refuses(&bed, with_mounts(&bed, line));
    // A path on another file system. The advice in the message works.
    bed.pin = bed.directory.path().join("not/there");
    bed.configure("");
    let text = refuses(&bed, bed.run_command());
    let (_, advice) = text
        .trim_end()
        .split_once("mount one: ")
        .expect("an advice");
    let done = Command::new("sh").args(["-c", advice]).status();
    assert!(done.unwrap().success(), "{advice}");
    bed.start();
    assert!(bed.running_program().is_some());
    bed.json(&["detach"]);
    bed.reap();
    // Beside the two files that every such file system has.
    let left: Vec<_> = fs::read_dir(&bed.pin)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| !name.to_string_lossy().ends_with(".debug"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let done = Command::new("umount").arg(&bed.pin).status();
    assert!(done.unwrap().success());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_link_in_place_of_the_lock_is_not_followed() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("symlink"), "");
    fs::create_dir_all(bed.state()).unwrap();
    let target = bed.directory.path().join("precious");
    fs::write(&target, "precious").unwrap();
    symlink(&target, bed.state().join("agent.lock")).unwrap();
    let text = bed.refused();
    assert!(text.contains("agent.lock"), "{text}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detaching_works_where_the_store_does_not() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("unsaved"), "");
    let disk = SmallDisk::new(&bed.state(), "4m");
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    disk.fill();
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("closed", 2);
    let output = bed.thalweg(&["detach"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // Nothing is left in the kernel: that is success.
    assert!(output.status.success(), "{text}");
    assert!(
        text.starts_with("warning: ") && text.contains("not saved"),
        "{text}"
    );
    assert!(!bed.pin.exists(), "programs are left: {text}");
    // A service manager would start an agent again that failed.
    bed.reap();
    assert!(!bed.pin.exists());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_pin_directory_that_others_may_write_is_refused() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("openpin"), "");
    fs::create_dir_all(&bed.pin).unwrap();
    fs::set_permissions(&bed.pin, fs::Permissions::from_mode(0o777)).unwrap();
    let text = bed.refused();
    assert!(text.contains(bed.pin.to_str().unwrap()), "{text}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn where_the_kernels_types_cannot_be_read_it_learns_without_them() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("nobtf"), "");
    let garbage = bed.directory.path().join("vmlinux");
    fs::write(&garbage, "no types").unwrap();
    let own = bed.run_command();
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c"])
        .arg("mount --bind \"$0\" /sys/kernel/btf/vmlinux && exec \"$@\"")
        .arg(&garbage)
        .arg(own.get_program())
        .args(own.get_args())
        .stdin(Stdio::null());
    bed.start_by(command);
    let status = bed.json(&["status"]);
    assert_eq!(status["kernel_busy_time"], false);
    let problems = status["problems"].to_string();
    assert!(problems.contains("its own structures"), "{problems}");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
}

/// Until it runs another program, a child inherits its parent's descriptors: a child of a killed
/// agent would block the next start.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn no_child_of_an_agent_holds_its_lock() {
    if !privileged() {
        return;
    }
    let (mut bed, _, _sink) = learned("children", "[arms]\nload = [\"none_such\"]\n");
    bed.end(Signal::SIGTERM);
    let modprobe = bed.directory.path().join("modprobe");
    let script = "#!/bin/sh\n\
                  cd \"${0%/*}\" || exit\n\
                  if flock -n state/agent.lock true; then echo free; else echo held; fi > lock\n";
    fs::write(&modprobe, script).unwrap();
    fs::set_permissions(&modprobe, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = bed.run_command();
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", bed.directory.path().display()));
    bed.start_by(command);
    let found = fs::read_to_string(bed.directory.path().join("lock")).unwrap();
    assert_eq!(found, "free\n");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_start_waits_for_an_agent_that_is_ending() {
    if !privileged() {
        return;
    }
    let (mut bed, address, _sink) = learned("ending", "");
    bed.end(Signal::SIGTERM);
    let mut command = bed.run_command();
    // Its last snapshot is slow.
    command.env("FAILPOINTS", "snapshot::begun=sleep(3000)");
    bed.start_by(command);
    bed.connect(&address, 1, 1_000_000);
    let pid = bed.pid();
    bed.signal(Signal::SIGTERM);
    wait_for("the end of its socket", || {
        (!bed.socket().exists()).then_some(())
    });
    let old = bed.leave();
    bed.start();
    bed.collect(old);
    assert_ne!(bed.pid(), pid);
    let logged = bed.logged();
    let lines = logged.lines().filter(|line| line.contains("waiting for"));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 1, "{logged}");
    assert!(lines[0].contains(&format!("pid {pid}")), "{logged}");
    assert_eq!(bed.host(&address).unwrap()["scored"], 2);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_start_with_another_state_waits_for_one_that_is_ending_with_its_pins() {
    if !privileged() {
        return;
    }
    let (mut bed, address, _sink) = learned("endpins", "");
    bed.end(Signal::SIGTERM);
    let mut command = bed.run_command();
    command.env("FAILPOINTS", "snapshot::begun=pause");
    bed.start_by(command);
    bed.signal(Signal::SIGTERM);
    wait_for("the end of its socket", || {
        (!bed.socket().exists()).then_some(())
    });
    let mut old = bed.leave();
    let text = fs::read_to_string(bed.configuration()).unwrap();
    let state = bed.state();
    let text = text.replace(state.to_str().unwrap(), &format!("{}-2", state.display()));
    fs::write(bed.configuration(), text).unwrap();
    let log = bed.directory.path().join("agent.log");
    let waits = move || {
        let logged = fs::read_to_string(&log).unwrap();
        let times = logged.matches("waiting for another agent that is ending");
        times.count()
    };
    let ended = std::thread::spawn(move || {
        wait_for("one that waits", || (waits() == 1).then_some(()));
        old.kill().unwrap();
        old.wait().unwrap();
        waits()
    });
    bed.start();
    assert_eq!(ended.join().unwrap(), 1);
    assert_known(&bed, &address);
}

#[test]
#[ignore = "slow: ten seconds until an agent that does not end is given up"]
fn a_start_gives_up_on_an_agent_that_does_not_end() {
    if !privileged() {
        return;
    }
    let (mut bed, _, _sink) = learned("endless", "");
    bed.end(Signal::SIGTERM);
    let mut command = bed.run_command();
    command.env("FAILPOINTS", "snapshot::begun=pause");
    bed.start_by(command);
    let pid = bed.pid();
    bed.signal(Signal::SIGTERM);
    wait_for("the end of its socket", || {
        (!bed.socket().exists()).then_some(())
    });
    let text = bed.refused();
    for part in [&format!("pid {pid}"), "has not ended within 10 s"] {
        assert!(text.contains(part), "{part} not in: {text}");
    }
    bed.end(Signal::SIGKILL);
    bed.start();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn program_that_takes_callbacks_away_from_some_connections_is_named() {
    use std::os::fd::AsRawFd;
    if !privileged() {
        return;
    }
    let (bed, address, _sink) = learned("silence", "");
    let file = thalweg_testbed::compile(
        "silencer",
        bed.directory.path(),
        "silencer.bpf.o",
        &["-DSOME"],
    );
    let mut object = libbpf_rs::ObjectBuilder::default();
    let object = object.open_file(file).unwrap().load().unwrap();
    let cgroup = fs::File::open(bed.pair.cgroup_path()).unwrap();
    let program = object.progs_mut().next().unwrap();
    let link = program.attach_cgroup(cgroup.as_raw_fd()).unwrap();
    let problems = || bed.json(&["status"])["problems"].to_string();
    bed.connect(&address, 40, 0);
    // Sockets are counted once a minute.
    wait_for("a problem", || {
        problems().contains("silencer").then_some(())
    });
    let seen = bed.counter("closed") - 2;
    assert!((1..80).contains(&seen), "{seen} ends were seen");
    drop(link);
    bed.connect(&address, 1000, 0);
    wait_for("its end", || {
        (!problems().contains("silencer")).then_some(())
    });
}
