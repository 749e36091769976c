//! The packaged user-mode kernel on machines that it does not support by itself.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use thalweg_testbed::place::{
    DELAYED, KERNEL, Place, assert_code, assert_delayed, available, finish, said,
};
use thalweg_testbed::{guest, laboratory, skip};

/// Processors with AMX have more register state than this kernel supports. A library that the
/// kernel is started with simulates that on any machine.
#[test]
fn it_runs_where_the_processor_has_more_state_than_it_knows() {
    if !available() {
        return;
    }
    let place = Place::new(DELAYED);
    let library = guest::large_state(place.directory());
    let console = place.path("console");
    let as_packaged = Command::new(KERNEL)
        .args(["mem=256M", "root=/dev/root", "rootfstype=hostfs", "quiet"])
        .args(["con=null", "con0=null,fd:1", "init=/bin/true"])
        .env("LD_PRELOAD", &library)
        .env("TMPDIR", place.temporary())
        .current_dir(place.directory())
        .stdin(Stdio::null())
        .stdout(fs::File::create(&console).unwrap())
        .stderr(Stdio::null())
        .spawn();
    assert!(!finish(as_packaged.unwrap()).status.success());
    let console = fs::read_to_string(console).unwrap();
    assert!(
        console.contains("ptrace set fp regs failed, errno = 14"),
        "{console}"
    );
    // Two at once, and by a user with another LD_PRELOAD.
    let other = Place::new(DELAYED);
    let children = [&place, &other].map(|place| {
        place
            .command(
                Path::new(laboratory()),
                &["--backend", "uml", "--mode", "baseline"],
            )
            .env("LD_PRELOAD", &library)
            .spawn()
            .unwrap()
    });
    for (child, place) in children.into_iter().zip([&place, &other]) {
        assert_code(&finish(child), 0);
        assert_delayed(&place.results(), 3);
        assert_eq!(place.leftovers(), Vec::<String>::new());
    }
}

/// The packaged kernel without the library that the laboratory preloads.
fn as_packaged(place: &Place) -> std::ffi::OsString {
    let library = guest::large_state(place.directory());
    let library = library.display();
    place.fake_kernel(&format!("LD_PRELOAD={library} exec {KERNEL} \"$@\""))
}

const REFUSED: &str = "\"userspace - ptrace set fp regs failed, errno = 14\"";

#[test]
fn a_kernel_that_ends_at_once_is_told_in_one_line() {
    if !available() {
        return;
    }
    let place = Place::new("");
    let output = place
        .command(Path::new(laboratory()), &["--backend", "uml"])
        .env("PATH", as_packaged(&place))
        .output()
        .unwrap();
    assert_code(&output, 1);
    let said = said(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap();
    let amx = processor.contains(" amx_tile");
    assert_eq!(said.contains("AMX"), amx, "{said}");
    for words in ["user-mode Linux ended unexpectedly (signal: 6", REFUSED] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

/// The doctor's line about the kernel, in JSON and as text.
fn doctor(place: &Place, path: &std::ffi::OsStr) -> (Value, String) {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(laboratory());
        command
            .args(arguments)
            .env("PATH", path)
            .env("TMPDIR", place.temporary())
            .env("LD_PRELOAD", place.path("large-state.so"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let checks: Vec<Value> = serde_json::from_str(&run(&["doctor", "--json"])).unwrap();
    let named = |check: &Value| check["name"] == "user-mode kernel";
    let check = checks.into_iter().find(named).unwrap();
    let text = run(&["doctor"]);
    let at = text.find("user-mode kernel").unwrap();
    (check, text[at..].to_owned())
}

#[test]
fn the_doctor_knows_whether_it_boots() {
    if !available() {
        return;
    }
    let place = Place::new("");
    guest::large_state(place.directory());
    let (check, text) = doctor(&place, &std::env::var_os("PATH").unwrap());
    assert_eq!(
        (&check["state"], &check["fix"]),
        (&"ok".into(), &Value::Null)
    );
    let found = check["found"].as_str().unwrap();
    assert!(
        found.starts_with("linux.uml 6.") && found.contains(" boots"),
        "{found}"
    );
    let row = text.strip_prefix("user-mode kernel").map(str::trim_start);
    assert!(row.is_some_and(|row| row.starts_with("ok ")), "{text}");

    let (check, text) = doctor(&place, &as_packaged(&place));
    assert_eq!(check["state"], "degraded");
    assert!(
        check["found"].as_str().unwrap().contains(REFUSED),
        "{check}"
    );
    assert!(check["fix"].as_str().unwrap().contains("6.14"), "{check}");
    assert!(text.contains("To mend:"), "{text}");
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

/// Hardened machines mount directories for temporary files with noexec.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn it_runs_where_temporary_files_are_no_programs() {
    if !available() {
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        skip("not root: cannot mount");
        return;
    }
    for (mounted, code) in [
        (&["/dev/shm"][..], 0),
        (&["TMPDIR"], 0),
        (&["/dev/shm", "TMPDIR"], 1),
    ] {
        let place = Place::new(DELAYED);
        let library = guest::large_state(place.directory());
        let arguments = [
            "--backend",
            "uml",
            "--mode",
            "baseline",
            "--connections",
            "1",
        ];
        let inner = place.command(Path::new(laboratory()), &arguments);
        let mounts: String = mounted
            .iter()
            .map(|point| point.replace("TMPDIR", place.temporary().to_str().unwrap()))
            .map(|point| format!("mount -t tmpfs -o noexec none {point} && "))
            .collect();
        let child = Command::new("unshare")
            .args([
                "--mount",
                "sh",
                "-c",
                &format!("{mounts} exec \"$0\" \"$@\""),
            ])
            .arg(inner.get_program())
            .args(inner.get_args())
            .env("TMPDIR", place.temporary())
            .env("LD_PRELOAD", library)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let output = finish(child.unwrap());
        assert_code(&output, code);
        if code != 0 {
            let said = said(&output);
            assert!(said.contains("not mounted noexec"), "{said}");
        }
        assert_eq!(place.leftovers(), Vec::<String>::new());
    }
}
