//! `thalweg cc`: congestion controls in BPF on real connections. Names are machine-wide, so each
//! test has names of its own.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Bed, SINK, THALWEG, Traffic, plain, privileged, unique, wait_for};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use thalweg_lab::host::Side;

fn success(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.thalweg(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}");
    String::from_utf8(output.stdout).unwrap()
}

fn failure(bed: &Bed, arguments: &[&str], code: i32) -> String {
    let output = bed.thalweg(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn is_offered(name: &str) -> bool {
    let offered =
        fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    offered.split_whitespace().any(|have| have == name)
}

/// The row of `cc list`, null if there is none.
fn row(bed: &Bed, name: &str) -> Value {
    let list = bed.json(&["cc", "list"]);
    let rows = list.as_array().unwrap();
    let found = rows.iter().find(|row| row["name"] == name);
    found.cloned().unwrap_or_default()
}

/// Compiles the test's congestion control.
fn compile(directory: &Path, file: &str, flags: &[&str]) -> String {
    let object = directory.join(file);
    let multiarch = Command::new("cc").arg("-print-multiarch").output().unwrap();
    let multiarch = String::from_utf8(multiarch.stdout).unwrap();
    let status = Command::new("clang")
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-c"])
        .arg(format!("-I/usr/include/{}", multiarch.trim()))
        .args(flags)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/fixed.bpf.c"))
        .arg("-o")
        .arg(&object)
        .status()
        .expect("running clang");
    assert!(status.success());
    object.to_str().unwrap().to_owned()
}

/// A connection with a congestion control. Arguments: address, port, name. Sends 2 MB, waits until
/// all is acknowledged, and prints its congestion control and window. Repeats this for each line
/// that it reads.
const FLOW: &str = r#"
import fcntl, socket, struct, sys, termios
connection = socket.socket()
connection.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[3].encode())
connection.connect((sys.argv[1], int(sys.argv[2])))
while True:
    connection.sendall(bytes(2000000))
    while struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"    "))[0]:
        pass
    name = connection.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b"\0").decode()
    window = struct.unpack_from("I", connection.getsockopt(socket.IPPROTO_TCP, 11, 104), 80)[0]
    print(name, window)
    if not sys.stdin.readline():
        break
"#;

struct Flow(Traffic);

impl Flow {
    fn open(bed: &Bed, name: &str) -> Self {
        let address = bed.server_address();
        Self(bed.python(Side::Client, FLOW, &[&address, "5001", name]))
    }

    /// Its congestion control and window once all sent data has arrived.
    fn state(&mut self) -> (String, u32) {
        let line = self.0.line();
        let (name, window) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        (name.to_owned(), window.parse().unwrap())
    }
}

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

#[test]
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
    let drain = || -> Child {
        let mut child = Command::new(THALWEG)
            .arg("--config")
            .arg(bed.configuration())
            .args(["cc", "unload", &name, "--drain"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        said.read_line(&mut line).unwrap();
        assert_eq!(line, format!("{name}: waiting for 1 connection\n"));
        child
    };
    // Not SIGINT: background commands of a shell ignore it, and so do their children.
    let mut first = drain();
    assert!(!is_offered(&name), "no more flows may get it");
    assert_eq!(row(&bed, &name)["state"], "draining");
    kill(Pid::from_raw(first.id() as i32), Signal::SIGTERM).unwrap();
    first.wait().unwrap();
    assert_eq!(row(&bed, &name)["state"], "draining");
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
    let mut second = drain();
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
fn what_cannot_be_done_is_said_and_leaves_nothing() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-faults"), "");
    let directory = bed.directory.path();
    let text = directory.join("text.o");
    fs::write(&text, "no object at all, but long enough").unwrap();
    let good = compile(directory, "good.o", &[]);
    let cut = directory.join("cut.o");
    fs::write(&cut, &fs::read(&good).unwrap()[..400]).unwrap();
    let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let cases = [
        (path(&text), "is not an ELF file"),
        ("/bin/true".to_owned(), "for another machine"),
        (path(&cut), "cannot be read as a BPF object"),
        (path(&directory.join("none.o")), "No such file"),
        ("vegas".to_owned(), "it brings htcp, dctcp"),
        (
            compile(directory, "refused.o", &["-DREFUSED"]),
            "write a field that this one has to write",
        ),
    ];
    for (object, expected) in cases {
        let name = unique("f");
        let said = failure(&bed, &["cc", "load", &object, "--name", &name], 1);
        assert!(said.contains(expected), "{expected:?} is not in: {said}");
        assert!(said.len() < 1000, "too much of a log: {said}");
        assert!(!bed.pin.exists(), "left behind by {object}");
        assert!(!is_offered(&name));
    }
    for name in ["", "abcdefghijklmnop", "a-b", "../x", "a.b", "Cubic"] {
        let said = failure(&bed, &["cc", "load", &good, "--name", name], 1);
        assert!(said.contains("1 to 15 of a-z"), "{said}");
    }
    let said = failure(&bed, &["cc", "load", "htcp", "--name", "cubic"], 1);
    assert!(said.contains("the system has such"), "{said}");
    for command in ["unload", "swap"] {
        let rest: &[&str] = if command == "swap" { &[&good] } else { &[] };
        let arguments = |name| [&["cc", command, name], rest].concat();
        let said = failure(&bed, &arguments("cubic"), 1);
        assert!(said.contains("the system's own"), "{said}");
        let said = failure(&bed, &arguments("no_such"), 1);
        assert!(said.contains("is loaded; `thalweg cc list`"), "{said}");
    }
    assert!(!bed.pin.exists());

    // A failed swap leaves the present version in place.
    let name = unique("k");
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    let refused = directory.join("refused.o");
    failure(&bed, &["cc", "swap", &name, refused.to_str().unwrap()], 1);
    assert_eq!(row(&bed, &name)["program"], "htcp");
    assert!(is_offered(&name));
    success(&bed, &["cc", "unload", &name]);
    // A default would never drain.
    let object = compile(directory, "anybody.o", &["-DANYBODY"]);
    success(&bed, &["cc", "load", &object, "--name", &name]);
    let set_default = |name: &str| {
        let mut shell = bed.pair.command_in(Side::Client, "sh").unwrap();
        let line = format!("echo {name} >/proc/sys/net/ipv4/tcp_congestion_control");
        assert!(shell.args(["-c", &line]).status().unwrap().success());
    };
    set_default(&name);
    for drain in [&[][..], &["--drain"]] {
        let arguments = [&["cc", "unload", name.as_str()], drain].concat();
        let said = failure(&bed, &arguments, 1);
        assert!(said.contains("default of 1 network namespace;"), "{said}");
    }
    set_default("reno");
    success(&bed, &["cc", "unload", &name]);
    assert!(!bed.pin.exists());
}

#[test]
fn a_kernel_or_user_that_cannot_is_told_what_is_missing() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-cannot"), "");
    let run = |hide: &str, arguments: &[&str]| {
        Command::new("unshare")
            .args([
                "-m",
                "sh",
                "-c",
                &format!("{hide}; exec \"$@\""),
                "sh",
                THALWEG,
            ])
            .arg("--config")
            .arg(bed.configuration())
            .args(arguments)
            .output()
            .unwrap()
    };
    let zero = bed.directory.path().join("zero");
    fs::write(&zero, "0\n").unwrap();
    let no_btf = "mount -t tmpfs none /sys/kernel/btf".to_owned();
    let no_jit = format!(
        "mount --bind {} /proc/sys/net/core/bpf_jit_enable",
        zero.display()
    );
    for (hide, expected) in [(no_btf, "CONFIG_DEBUG_INFO_BTF"), (no_jit, "JIT is off")] {
        let load = run(&hide, &["cc", "load", "htcp", "--name", &unique("c")]);
        let said = String::from_utf8(load.stderr).unwrap();
        assert_eq!(load.status.code(), Some(3), "{said}");
        assert!(said.contains(expected), "{said}");
        assert!(said.contains("everything else of Thalweg works"), "{said}");
        let list = run(&hide, &["--json", "cc", "list"]);
        let list: Value = serde_json::from_slice(&list.stdout).unwrap();
        let rows = list.as_array().unwrap();
        let htcp = rows.iter().find(|row| row["name"] == "htcp").unwrap();
        // A kernel with its own module needs none of ours.
        if !is_offered("htcp") {
            assert_eq!(htcp["state"], "unavailable", "{htcp}");
            assert!(htcp["note"].as_str().unwrap().contains(expected), "{htcp}");
        }
        assert!(rows.iter().any(|row| row["name"] == "cubic"), "{list}");
    }
    let nobody = Command::new("setpriv")
        .args([
            "--bounding-set=-all",
            "--inh-caps=-all",
            "--no-new-privs",
            THALWEG,
        ])
        .args(["cc", "load", "htcp"])
        .output()
        .unwrap();
    let said = String::from_utf8(nobody.stderr).unwrap();
    assert_eq!(nobody.status.code(), Some(3), "{said}");
    assert!(said.contains("missing privilege: CAP_"), "{said}");
    assert!(!bed.pin.exists());
}

#[test]
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

/// 1,000 connections of a few segments each, eight at a time. Arguments: address, port, name.
const STORM: &str = r#"
import socket, sys, threading
def some():
    for _ in range(125):
        with socket.socket() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[3].encode())
            connection.connect((sys.argv[1], int(sys.argv[2])))
            connection.sendall(bytes(20000))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            done.append(1)
done = []
threads = [threading.Thread(target=some) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(done))
"#;

#[test]
fn a_thousand_flows_while_it_is_replaced_ten_times_a_second_and_the_agent_dies() {
    if !privileged() {
        return;
    }
    let name = unique("s");
    let mut bed = Bed::new(
        &plain("cc-storm"),
        &format!("[arms]\nallow = [\"cubic\", {name:?}]\n"),
    );
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let fixed = compile(bed.directory.path(), "fixed.o", &[]);
    // A connection that outlives the agent.
    let mut long = Flow::open(&bed, &name);
    long.state();
    let storm = bed.python(Side::Client, STORM, &[&address, "5001", &name]);
    let over = AtomicBool::new(false);
    let (said, swaps) = std::thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            let mut swaps = 0;
            // At least ten, in case the connections are quick.
            while swaps < 10 || !over.load(Ordering::Relaxed) {
                let begun = std::time::Instant::now();
                let program = if swaps % 2 == 0 {
                    fixed.as_str()
                } else {
                    "htcp"
                };
                success(&bed, &["cc", "swap", &name, program]);
                swaps += 1;
                let period = std::time::Duration::from_millis(100);
                std::thread::sleep(period.saturating_sub(begun.elapsed()));
            }
            swaps
        });
        bed.signal(Signal::SIGKILL);
        let said = storm.finish();
        over.store(true, Ordering::Relaxed);
        (said, swapping.join().unwrap())
    });
    assert_eq!(said.trim(), "1000", "connections failed, {swaps} swaps");
    bed.end(Signal::SIGKILL);
    long.0.go_on();
    assert_eq!(long.state().0, name, "the agent's death changes nothing");
    // A new agent finds it.
    bed.start();
    let arms = bed.json(&["arms"]);
    assert!(arms.to_string().contains(&format!("{name:?}")), "{arms}");
    long.0.finish();
    wait_for("the end of all flows", || {
        (row(&bed, &name)["use"]["flows"] == 0).then_some(())
    });
    success(&bed, &["cc", "unload", &name]);
}

#[test]
fn the_learner_takes_up_what_comes_and_drops_what_goes() {
    if !privileged() {
        return;
    }
    let name = unique("l");
    let ecn = unique("e");
    let bed = Bed::running(
        "cc-learn",
        &format!("[arms]\nallow = [\"cubic\", {name:?}, {ecn:?}]\n"),
    );
    let arm = |name: &str| {
        let arms = bed.json(&["arms"]);
        let list = arms["arms"]
            .as_array()
            .or_else(|| arms.as_array())
            .unwrap()
            .clone();
        let found = list.into_iter().find(|arm| arm["name"] == name);
        found.unwrap_or_default()
    };
    assert!(arm(&name).is_null());
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    success(&bed, &["cc", "load", "dctcp", "--name", &ecn]);
    // The agent checks every ten seconds.
    wait_for("the new arms", || {
        (arm(&name)["present"] == true).then_some(())
    });
    assert_eq!(arm(&name)["needs_ecn"], false);
    assert_eq!(arm(&ecn)["needs_ecn"], true);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let chosen = |name: &str| -> u64 {
        let host = bed.host(&address).unwrap_or_default();
        let arms = host["arms"].as_array().cloned().unwrap_or_default();
        let of = arms.iter().filter(|arm| arm["arm"] == name);
        of.filter_map(|arm| arm["count"].as_u64()).sum()
    };
    wait_for("a connection that is given the new arm", || {
        bed.connect(&address, 5, 300_000);
        (chosen(&name) > 0).then_some(())
    });
    assert_eq!(chosen(&ecn), 0, "these connections have no ECN");

    success(&bed, &["cc", "unload", &name, "--drain"]);
    wait_for("the arm's end", || {
        (arm(&name)["present"] == false).then_some(())
    });
    let before = chosen(&name);
    bed.connect(&address, 40, 100_000);
    assert_eq!(chosen(&name), before, "chosen although it is gone");
    // And back.
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    wait_for("the arm's return", || {
        (arm(&name)["present"] == true).then_some(())
    });
    wait_for("a connection that is given it again", || {
        bed.connect(&address, 5, 300_000);
        (chosen(&name) > before).then_some(())
    });
}

/// `thalweg cc …`, killed by the kernel at its first such system call; for bpf(2), at the first
/// with this command (linux/bpf.h, enum bpf_cmd). False if it completed without one.
fn killed_at(bed: &Bed, calls: &[i64], bpf_command: Option<u32>, arguments: &[&str]) -> bool {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // struct seccomp_data: the call's number at 0, its first argument at 16.
    let mut program = Vec::new();
    for call in calls {
        let next = if bpf_command.is_some() { 3 } else { 1 };
        program.push(step(load, 0, 0, 0));
        program.push(step(equal, 0, next, *call as u32));
        if let Some(command) = bpf_command {
            program.push(step(load, 0, 0, 16));
            program.push(step(equal, 0, 1, command));
        }
        program.push(step(answer, 0, 0, libc::SECCOMP_RET_KILL_PROCESS));
    }
    program.push(step(answer, 0, 0, libc::SECCOMP_RET_ALLOW));
    let mut command = Command::new(THALWEG);
    command
        .arg("--config")
        .arg(bed.configuration())
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let install = move || {
        let filter = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_ptr().cast_mut(),
        };
        // SAFETY: the filter lives through the call, which copies it.
        let failed = unsafe {
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            )
        };
        if failed != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: only a system call on the closure's own memory.
    unsafe { command.pre_exec(install) };
    command.status().unwrap().signal() == Some(libc::SIGSYS)
}

const BPF_OBJ_PIN: u32 = 6;
const BPF_LINK_CREATE: u32 = 28;
const BPF_LINK_UPDATE: u32 = 29;

/// System calls that rename.
fn renaming() -> Vec<i64> {
    let mut calls = vec![libc::SYS_renameat, libc::SYS_renameat2];
    #[cfg(target_arch = "x86_64")]
    calls.push(libc::SYS_rename);
    calls
}

/// System calls that remove a name.
fn removing() -> Vec<i64> {
    let mut calls = vec![libc::SYS_unlinkat];
    #[cfg(target_arch = "x86_64")]
    calls.extend([libc::SYS_unlink, libc::SYS_rmdir]);
    calls
}

/// Name of the callbacks that a pinned link keeps registered.
fn in_force(link: &Path) -> String {
    let link = libbpf_rs::Link::open(link).unwrap();
    let LinkTypeInfo::StructOps(info) = link.info().unwrap().info else {
        panic!("not a link of struct_ops");
    };
    let map = MapHandle::from_map_id(info.map_id).unwrap();
    map.name().to_string_lossy().into_owned()
}

#[test]
fn a_swap_that_is_killed_is_finished_or_taken_back() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-cut"), "");
    let name = unique("cut");
    let fixed = compile(bed.directory.path(), "fixed.o", &[]);
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    let own = bed.pin.join("cc").join(&name);
    let bpf = vec![libc::SYS_bpf];
    let points = [
        (bpf.clone(), Some(BPF_OBJ_PIN), "htcp"),
        (bpf, Some(BPF_LINK_UPDATE), "htcp"),
        (renaming(), None, "fixed"),
        (removing(), None, "fixed"),
    ];
    for (calls, command, expected) in points {
        assert!(
            killed_at(&bed, &calls, command, &["cc", "swap", &name, &fixed]),
            "{calls:?} {command:?} is not called"
        );
        // The first command that reads the pins sees the version in force, and recovers.
        let listed = row(&bed, &name);
        assert_eq!(in_force(&own.join("link")), expected);
        assert_eq!(listed["program"], expected, "{calls:?} {command:?}");
        assert_eq!(listed["state"], "loaded");
        let left: Vec<_> = fs::read_dir(bed.pin.join("cc")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        success(&bed, &["cc", "swap", &name, "htcp"]);
        assert_eq!(row(&bed, &name)["program"], "htcp");
    }
    success(&bed, &["cc", "unload", &name]);
    assert!(!is_offered(&name));
    assert!(!bed.pin.exists());
}

#[test]
fn a_load_that_is_killed_is_finished_or_taken_back() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-load-cut"), "");
    let name = unique("lc");
    let bpf = vec![libc::SYS_bpf];
    let points = [
        (bpf.clone(), Some(BPF_OBJ_PIN), false),
        (bpf, Some(BPF_LINK_CREATE), false),
        (renaming(), None, true),
    ];
    for (calls, command, is_loaded) in points {
        let load = ["cc", "load", "htcp", "--name", &name];
        assert!(
            killed_at(&bed, &calls, command, &load),
            "{calls:?} {command:?} is not called"
        );
        // The kernel unregisters it a moment after the death of the process that held the link.
        wait_for("what is registered", || {
            (is_offered(&name) == is_loaded).then_some(())
        });
        let listed = row(&bed, &name);
        if is_loaded {
            assert_eq!(listed["state"], "loaded", "{listed}");
        } else {
            assert!(listed.is_null(), "it was never there: {listed}");
            success(&bed, &load);
        }
        success(&bed, &["cc", "unload", &name]);
        assert!(!bed.pin.exists());
    }
}

#[test]
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
