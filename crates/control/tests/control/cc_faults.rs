//! What `thalweg cc` cannot do, and what is left where it is killed.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{MapCore, MapHandle};
use nix::libc;
use serde_json::Value;
use thalweg_lab::host::Side;
use thalweg_testbed::cc::{compile, failure, is_offered, row, success};
use thalweg_testbed::health::is_well;
use thalweg_testbed::{Bed, plain, privileged, thalweg, unique, wait_for};

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
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
#[cfg_attr(not(privileged), ignore = "needs root")]
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
                thalweg(),
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
            thalweg(),
        ])
        .args(["cc", "load", "htcp"])
        .output()
        .unwrap();
    let said = String::from_utf8(nobody.stderr).unwrap();
    assert_eq!(nobody.status.code(), Some(3), "{said}");
    assert!(said.contains("missing privilege: CAP_"), "{said}");
    assert!(!bed.pin.exists());
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
    let mut command = Command::new(thalweg());
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
#[cfg_attr(not(privileged), ignore = "needs root")]
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
#[cfg_attr(not(privileged), ignore = "needs root")]
fn killed_swap_is_said_and_finished_by_the_agent() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("cc-cut-agent", "");
    let name = unique("ca");
    let fixed = compile(bed.directory.path(), "fixed.o", &[]);
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    let log = bed.logged().len();
    let swap = ["cc", "swap", &name, &fixed];
    assert!(killed_at(&bed, &renaming(), None, &swap), "no rename");
    // Any other command would finish it.
    let new = bed.pin.join("cc").join(format!("{name}-new"));
    wait_for("the end of the swap", || (!new.exists()).then_some(()));
    wait_for("the end of the problem", || is_well(&bed));
    let log = &bed.logged()[log..];
    assert!(log.contains("a swap that was interrupted"), "{log}");
    let listed = row(&bed, &name);
    assert_eq!(listed["program"], "fixed", "{listed}");
    success(&bed, &["cc", "unload", &name]);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn congestion_control_whose_link_is_gone_is_lost() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-lost"), "");
    let name = unique("lo");
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    fs::remove_file(bed.pin.join("cc").join(&name).join("link")).unwrap();
    let listed = row(&bed, &name);
    assert_eq!(listed["state"], "lost", "{listed}");
    success(&bed, &["cc", "unload", &name]);
    assert!(!bed.pin.exists());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
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
