//! `thalweg cc`: congestion controls in BPF on real connections. Names are machine-wide, so each
//! test has names of its own.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use thalweg_lab::host::Side;
use thalweg_testbed::cc::{Flow, compile, failure, is_offered, row, success};
use thalweg_testbed::{Bed, SINK, Traffic, plain, privileged, thalweg, unique, wait_for};

/// A sink whose listener, and so each accepted connection, has a congestion control. DCTCP needs
/// that. Its SYN carries an ECT mark, to which other listeners answer without ECN.
fn sink_with(bed: &Bed, name: &str) -> Traffic {
    let choose = "listener.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[3].encode())";
    let program = SINK.replace("listener.listen", &format!("{choose}\nlistener.listen"));
    let address = bed.server_address();
    let mut server = bed.python(Side::Server, &program, &[&address, "5001", name]);
    assert_eq!(server.line(), "listening");
    server
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn each_is_loaded_used_replaced_and_unloaded() {
    if !privileged() {
        return;
    }
    for program in ["htcp", "dctcp"] {
        let bed = Bed::new(&plain(&format!("cc-{program}")), "");
        let name = unique(&format!("u{}", &program[..1]));
        let said = success(&bed, &["cc", "load", program, "--name", &name]);
        assert_eq!(said, format!("loaded {name}\n"));
        assert!(is_offered(&name));
        let listed = row(&bed, &name);
        assert_eq!(listed["state"], "loaded", "{listed}");
        assert_eq!(listed["program"], program, "{listed}");
        assert_eq!(listed["needs_ecn"], program == "dctcp", "{listed}");
        assert_eq!(listed["use"]["flows"], 0, "{listed}");
        let taken = failure(&bed, &["cc", "load", program, "--name", &name], 1);
        assert!(taken.contains("is taken: it is loaded"), "{taken}");

        let sink = sink_with(&bed, &name);
        let mut flow = Flow::open(&bed, &name);
        let (had, window) = flow.state();
        assert_eq!(had, name);
        assert!(window > 10, "slow start has not grown the window: {window}");
        // Both ends, and the listener.
        let users = row(&bed, &name)["use"].clone();
        assert_eq!(
            (&users["flows"], &users["listeners"]),
            (&2.into(), &1.into())
        );
        let used = failure(&bed, &["cc", "unload", &name], 1);
        assert!(
            used.contains("2 connections and 1 listener use it; `thalweg cc unload"),
            "{used}"
        );
        assert!(is_offered(&name), "the refusal must change nothing");

        // A flow keeps its version, and the kernel keeps that version until the flow ends.
        let ops = bed.pin.join("cc").join(&name).join("struct_ops");
        let id = |path: &Path| {
            MapHandle::from_pinned_path(path)
                .unwrap()
                .info()
                .unwrap()
                .info
                .id
        };
        let old = id(&ops);
        let fixed = compile(bed.directory.path(), "fixed.o", &["-DWINDOW=7"]);
        success(&bed, &["cc", "swap", &name, &fixed]);
        assert!(is_offered(&name));
        assert_ne!(id(&ops), old);
        assert_eq!(row(&bed, &name)["program"], "fixed");
        let mut next = Flow::open(&bed, &name);
        assert_eq!(
            next.state(),
            (name.clone(), 7),
            "a new flow gets the new version"
        );
        flow.0.go_on();
        let (had, window) = flow.state();
        assert_eq!(had, name);
        assert_ne!(window, 7, "an old flow keeps the old version");
        // The listener also has the old version, and hands it on. But the new version does not
        // request ECN, and without ECN the old dctcp falls back.
        let expected = if program == "dctcp" { 3 } else { 4 };
        assert_eq!(row(&bed, &name)["use"]["flows"], expected);
        assert!(MapHandle::from_map_id(old).is_ok());
        flow.0.finish();
        next.0.finish();
        drop(sink);
        wait_for("the end of the old version", || {
            MapHandle::from_map_id(old).is_err().then_some(())
        });
        wait_for("the end of all that uses it", || {
            let users = row(&bed, &name)["use"].clone();
            (users["flows"] == 0 && users["listeners"] == 0).then_some(())
        });
        assert_eq!(
            success(&bed, &["cc", "unload", &name]),
            format!("unloaded {name}\n")
        );
        assert!(!is_offered(&name));
        assert!(row(&bed, &name).is_null());
        assert!(
            !bed.pin.exists(),
            "something stayed in {}",
            bed.pin.display()
        );
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_objects_own_name_is_taken_and_cong_control_finds_its_sample() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-own"), "");
    let object = compile(bed.directory.path(), "own.o", &["-DWINDOW=12"]);
    assert_eq!(success(&bed, &["cc", "load", &object]), "loaded t_fixed\n");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let mut flow = Flow::open(&bed, "t_fixed");
    assert_eq!(flow.state(), ("t_fixed".to_owned(), 12));
    // The counter is in the first 8 bytes of .bss; 2 MB are more than 1300 full segments.
    let path = bed.pin.join("cc/t_fixed");
    let bss = fs::read_dir(&path)
        .unwrap()
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().ends_with("bss"))
        .unwrap();
    let map = MapHandle::from_pinned_path(bss.path()).unwrap();
    let value = map.lookup(&[0; 4], MapFlags::ANY);
    let value = value.unwrap().unwrap();
    let acknowledged = u64::from_ne_bytes(value[..8].try_into().unwrap());
    assert!((1000..10_000).contains(&acknowledged), "{acknowledged}");
    flow.0.finish();
}

/// Begins to drain a name that one connection has.
fn drain(bed: &Bed, name: &str) -> Child {
    let mut child = Command::new(thalweg())
        .arg("--config")
        .arg(bed.configuration())
        .args(["cc", "unload", name, "--drain"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    said.read_line(&mut line).unwrap();
    assert_eq!(line, format!("{name}: waiting for 1 connection\n"));
    child
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn draining_is_interrupted_and_taken_up_again() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-drain"), "");
    let name = unique("d");
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let mut flow = Flow::open(&bed, &name);
    flow.state();
    // Not SIGINT: background commands of a shell ignore it, and so do their children.
    let mut first = drain(&bed, &name);
    assert!(!is_offered(&name), "no more flows may get it");
    assert_eq!(row(&bed, &name)["state"], "draining");
    kill(Pid::from_raw(first.id() as i32), Signal::SIGTERM).unwrap();
    first.wait().unwrap();
    assert_eq!(row(&bed, &name)["state"], "draining");
    let faults = thalweg_control::cc::find_problems(&bed.pin).unwrap();
    assert!(faults.is_empty(), "what was unloaded is missed: {faults:?}");
    // Both give the same advice, and it works.
    let taken = failure(&bed, &["cc", "load", "htcp", "--name", &name], 1);
    assert!(
        taken.contains("is draining: 1 connection had it"),
        "{taken}"
    );
    assert_eq!(failure(&bed, &["cc", "swap", &name, "htcp"], 1), taken);
    let other = unique("d2");
    success(&bed, &["cc", "load", "htcp", "--name", &other]);
    success(&bed, &["cc", "unload", &other]);
    // A draining congestion control still works.
    flow.0.go_on();
    assert_eq!(flow.state().0, name);
    let mut second = drain(&bed, &name);
    kill(Pid::from_raw(second.id() as i32), Signal::SIGTERM).unwrap();
    second.wait().unwrap();
    flow.0.finish();
    wait_for("the end of the connection", || {
        (row(&bed, &name)["use"]["flows"] == 0).then_some(())
    });
    let late = failure(&bed, &["cc", "swap", &name, "htcp"], 1);
    assert!(late.contains("`thalweg cc load` loads it anew"), "{late}");
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    success(&bed, &["cc", "unload", &name, "--drain"]);
    assert!(!bed.pin.exists());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn name_loaded_anew_during_a_drain_stays_loaded() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-anew"), "");
    let name = unique("a");
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    let _sink = bed.sink(&bed.server_address());
    let mut flow = Flow::open(&bed, &name);
    flow.state();
    let mut draining = drain(&bed, &name);
    let pid = Pid::from_raw(draining.id() as i32);
    kill(pid, Signal::SIGSTOP).unwrap();
    let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    flow.0.finish();
    wait_for("the end of the connection", || {
        (row(&bed, &name)["use"]["flows"] == 0).then_some(())
    });
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    kill(pid, Signal::SIGCONT).unwrap();
    assert!(draining.wait().unwrap().success());
    assert!(is_offered(&name));
    assert_eq!(row(&bed, &name)["state"], "loaded");
    assert!(bed.pin.join("cc").join(&name).join("struct_ops").exists());
    success(&bed, &["cc", "unload", &name]);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_flow_without_ecn_runs_reno_instead_of_dctcp() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-noecn"), "");
    let name = unique("n");
    success(&bed, &["cc", "load", "dctcp", "--name", &name]);
    let address = bed.server_address();
    let plain_sink = bed.sink(&address);
    let mut without = Flow::open(&bed, &name);
    assert_eq!(without.state().0, "reno");
    without.0.finish();
    drop(plain_sink);
    let _sink = sink_with(&bed, &name);
    let mut with = Flow::open(&bed, &name);
    assert_eq!(with.state().0, name);
    with.0.finish();
}

/// The form of objects for kernels before 6.4.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_object_without_a_link_of_its_own_gets_one() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-plain"), "");
    let object = compile(bed.directory.path(), "plain.o", &["-DPLAIN"]);
    let name = unique("p");
    success(&bed, &["cc", "load", &object, "--name", &name]);
    let _sink = bed.sink(&bed.server_address());
    let mut flow = Flow::open(&bed, &name);
    assert_eq!(flow.state().0, name);
    flow.0.finish();
    success(&bed, &["cc", "swap", &name, &object]);
    success(&bed, &["cc", "unload", &name]);
    assert!(!is_offered(&name));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn two_at_once_never_share_a_name() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-two"), "");
    let names = [unique("same"), unique("same"), unique("o1"), unique("o2")];
    let done: Vec<bool> = std::thread::scope(|scope| {
        let bed = &bed;
        let all: Vec<_> = names
            .iter()
            .map(|name| {
                let load = ["cc", "load", "htcp", "--name", name];
                scope.spawn(move || bed.thalweg(&load).status.success())
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(done[0] ^ done[1], "one of two must have the name: {done:?}");
    assert!(done[2] && done[3], "{done:?}");
    for name in &names[1..] {
        success(&bed, &["cc", "unload", name]);
    }
    assert!(!bed.pin.exists());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_swap_asks_nothing_of_the_kernel_that_it_would_log() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-log"), "");
    let name = unique("log");
    let mut log = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg")
        .unwrap();
    log.seek(SeekFrom::End(0)).unwrap();
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    success(&bed, &["cc", "swap", &name, "htcp"]);
    success(&bed, &["cc", "unload", &name]);
    writeln!(log, "<7>thalweg: end of the test of {name}").unwrap();
    let mut record = [0; 8192];
    let mut of_it = Vec::new();
    loop {
        match log.read(&mut record) {
            Ok(length) => {
                let text = String::from_utf8_lossy(&record[..length]).into_owned();
                of_it.extend(text.contains(&name).then_some(text));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // The kernel has overwritten unread lines; the next one is there.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) => panic!("{error}"),
        }
    }
    let complaints: Vec<_> = of_it
        .iter()
        .filter(|text| text.contains("already registered"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    assert_eq!(
        of_it.len(),
        1,
        "the line of this test, and no other: {of_it:?}"
    );
}
