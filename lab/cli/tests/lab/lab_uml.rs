//! `thalweg-lab run --backend uml`: whole runs in a kernel of their own.
//!
//! They need Debian's package user-mode-linux. Only the test that drops privileges needs any.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use thalweg_testbed::place::{
    DELAYED, KERNEL, Place, assert_code, assert_delayed, assert_ended, available, executable,
    finish, said,
};
use thalweg_testbed::{copy_of_command, laboratory, skip, wait_for};

/// A user who owns nothing.
const NOBODY: u32 = 65_534;

#[test]
fn three_connections_under_netem() {
    if !available() {
        return;
    }
    let expectation = "[[expect]]\nmode = \"baseline\"\nstatistic = \"failures\"\nat_most = 0\n\
        [[expect]]\nmode = \"baseline\"\nstatistic = \"median\"\nat_least = \"1gbit\"\n";
    let place = Place::new(&format!("{DELAYED}{expectation}"));
    let output = place.run(&["--backend", "uml", "--mode", "baseline", "--json"]);
    // An expectation is missed: 50 Mbit/s are not 1 Gbit/s.
    assert_code(&output, 5);
    let results = place.results();
    assert_delayed(&results, 3);
    let environment = &results["environment"];
    assert_eq!(environment["hz"], 100);
    assert_eq!(environment["timers"], "high-resolution");
    assert_eq!(environment["backend"]["name"], "uml");
    assert_eq!(
        environment["backend"]["why"],
        "asked for with --backend uml"
    );
    assert!(environment["command"].as_str().unwrap().contains("lab run"));
    let version = Command::new(KERNEL).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let kernel = environment["kernel"].as_str().unwrap();
    assert!(kernel.contains(version.trim()), "{kernel}");
    let offered = environment["congestion_controls"].as_array().unwrap();
    for name in ["bbr", "dctcp", "htcp"] {
        assert!(offered.iter().any(|it| it == name), "{offered:?}");
    }
    let mut printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let report = printed["scenarios"][0]["report"].take();
    assert_eq!(report, place.path("out").to_str().unwrap());
    // The file's paths are relative to itself.
    printed["scenarios"][0]["report"] = ".".into();
    assert_eq!(printed, results);
    for file in ["report.html", "raw/baseline-0002.json"] {
        assert!(place.path("out").join(file).exists(), "{file}");
    }
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

/// The agent inside, started by an unprivileged user, who gets the other kernel automatically.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_ordinary_user_runs_the_agent() {
    if !available() {
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        skip("not root: cannot become someone else");
        return;
    }
    let place = Place::new(DELAYED);
    // Others may not read the directory of this test's own binary.
    let program = place.path("thalweg-lab");
    copy_of_command(&program);
    for path in [place.directory(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for directory in [place.temporary(), place.path("out")] {
        fs::create_dir_all(&directory).unwrap();
        std::os::unix::fs::chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut command = place.command(&program, &["--mode", "thalweg", "--connections", "2"]);
    let child = command
        .uid(NOBODY)
        .gid(NOBODY)
        .env("HOME", "/nonexistent")
        .current_dir("/")
        .spawn();
    assert_code(&finish(child.unwrap()), 0);
    let results = place.results();
    assert_delayed(&results, 2);
    let backend = &results["environment"]["backend"];
    assert_eq!(backend["name"], "uml");
    let why = backend["why"].as_str().unwrap();
    assert!(why.contains("no CAP_NET_ADMIN"), "{why}");
    let hosts = results["scenarios"][0]["modes"][0]["hosts"]
        .as_array()
        .unwrap();
    assert!(
        hosts.iter().any(|host| host["address"] == "10.0.0.2"),
        "{hosts:?}"
    );
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(place.path("out/raw")).unwrap());
    assert_eq!(owner, NOBODY);
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[test]
fn two_at_once_do_not_meet() {
    if !available() {
        return;
    }
    let places = [Place::new(DELAYED), Place::new(DELAYED)];
    let arguments = [
        "--backend",
        "uml",
        "--mode",
        "baseline",
        "--connections",
        "1",
    ];
    let children: Vec<Child> = places.iter().map(|place| place.start(&arguments)).collect();
    for (child, place) in children.into_iter().zip(&places) {
        assert_code(&finish(child), 0);
        assert_delayed(&place.results(), 1);
        assert_eq!(place.leftovers(), Vec::<String>::new());
    }
}

/// A packet that is due after 1 ms waits for a tick, and ticks are 10 ms apart.
#[test]
fn timers_that_wait_for_the_tick() {
    if !available() {
        return;
    }
    let place = Place::new(
        "[path]\ndelay = \"500us\"\nrate = \"20mbit\"\n\
         [traffic]\nkind = \"short\"\nconnections = 1\n[system]\ntimers = \"tick\"\n",
    );
    assert_code(&place.run(&["--backend", "uml", "--mode", "baseline"]), 0);
    let results = place.results();
    assert_eq!(results["environment"]["timers"], "tick");
    let mode = &results["scenarios"][0]["modes"][0];
    let mut rtts: Vec<f64> = mode["connections"]
        .as_array()
        .unwrap()
        .iter()
        .map(|connection| connection["min_rtt_us"].as_f64().unwrap())
        .collect();
    rtts.sort_by(f64::total_cmp);
    assert!(rtts[rtts.len() / 2] > 7_000.0, "{rtts:?}");
}

#[test]
fn ticks_that_the_packaged_kernel_does_not_have() {
    if !available() {
        return;
    }
    let place = Place::new("[path]\nrate = \"20mbit\"\n[system]\nhz = 250\n");
    for backend in ["uml", "virtual"] {
        let output = place
            .command(Path::new(laboratory()), &["--backend", backend])
            .env("XDG_CACHE_HOME", place.path("cache"))
            .output()
            .unwrap();
        assert_code(&output, 1);
        let said = said(&output);
        let command = "`thalweg-lab build-kernel --hz 250`";
        assert!(said.contains(command), "{said}");
    }
}

/// It lacks changes of the sources that it may need to run.
#[test]
fn a_kernel_that_another_version_built_is_not_taken() {
    if !available() {
        return;
    }
    let place = Place::new("[path]\nrate = \"20mbit\"\n[system]\nhz = 250\n");
    let old = place.path("cache/thalweg/6.1.1-0123456789abcdef/linux");
    fs::create_dir_all(old.parent().unwrap()).unwrap();
    let run = |hz: u32| {
        executable(&old, &format!("echo CONFIG_HZ={hz}"));
        let output = place
            .command(Path::new(laboratory()), &["--backend", "virtual"])
            .env("XDG_CACHE_HOME", place.path("cache"))
            .output()
            .unwrap();
        assert_code(&output, 1);
        said(&output)
    };
    let said = run(250);
    for words in [
        old.to_str().unwrap(),
        "was built by another version of Thalweg",
        "build it anew with `thalweg-lab build-kernel --hz 250`",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let said = run(1000);
    assert!(said.contains("no kernel of the laboratory's own"), "{said}");
}

#[test]
fn a_fault_inside_is_reported_outside() {
    if !available() {
        return;
    }
    let place = Place::new("[system]\nsysctl = { \"net.ipv4.nosuch\" = 1 }\n");
    let output = place.run(&["--backend", "uml", "--mode", "baseline"]);
    assert_code(&output, 1);
    let said = said(&output);
    assert!(
        said.starts_with("thalweg-lab: in user-mode Linux: cannot set net.ipv4.nosuch to \"1\""),
        "{said}"
    );
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[test]
fn a_kernel_that_does_not_boot_is_ended_and_quoted() {
    if !available() {
        return;
    }
    for (script, words) in [
        (
            "echo 'VFS: waiting for root'; sleep 1000",
            ["did not boot within 1 s", "VFS: waiting for root"],
        ),
        (
            "echo surprise >>messages; sleep 1000",
            ["\"surprise\\n\", which is no message", "(nothing)"],
        ),
    ] {
        let place = Place::new("");
        let arguments = ["--backend", "uml", "--boot-limit", "1"];
        let mut command = place.command(Path::new(laboratory()), &arguments);
        command.env("PATH", place.fake_kernel(script));
        assert_ended(&place, command, &words);
    }
}

#[test]
fn a_signal_while_it_boots_leaves_nothing() {
    if !available() {
        return;
    }
    let place = Place::new("");
    let child = place
        .command(Path::new(laboratory()), &["--backend", "uml"])
        .env("PATH", place.fake_kernel("echo booting; sleep 1000"))
        .spawn()
        .unwrap();
    place.await_console("booting");
    place.interrupt(child, Signal::SIGINT);
}

const LONG: &str = "[path]\ndelay = \"5ms\"\n[traffic]\nconnections = 1\nduration = \"60s\"\n";

/// Starts a long run and waits until its client sends.
fn start_long_run(place: &Place) -> Child {
    let child = place.start(&["--backend", "uml", "--mode", "baseline"]);
    wait_for("the first connection", || {
        place
            .path("out/raw/baseline-0000.json")
            .exists()
            .then_some(())
    });
    child
}

#[test]
fn a_signal_while_it_runs_leaves_nothing() {
    if !available() {
        return;
    }
    let place = Place::new(LONG);
    let child = start_long_run(&place);
    place.interrupt(child, Signal::SIGTERM);
}

#[test]
fn what_a_killed_run_leaves_is_removed_by_the_next() {
    if !available() {
        return;
    }
    let place = Place::new(LONG);
    let child = start_long_run(&place);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait_with_output().unwrap();
    // The directory, and helper processes of the kernel.
    assert!(place.leftovers().len() > 1);
    let output = place
        .command(
            Path::new(laboratory()),
            &["--backend", "uml", "--boot-limit", "1"],
        )
        .env("PATH", place.fake_kernel("exit 1"))
        .output()
        .unwrap();
    assert_code(&output, 1);
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    for (arguments, code, words) in [
        (
            &["--backend", "kvm"][..],
            2,
            "expected one of auto, host, link, uml, virtual, qemu, found \"kvm\"",
        ),
        (&["--memory", "lots"], 2, "expected a size"),
        (
            &["--boot-limit", "0"],
            2,
            "expected a whole number from 1 to 3600",
        ),
    ] {
        let place = Place::new("");
        let output = place.run(arguments);
        assert_code(&output, code);
        assert!(said(&output).contains(words), "{}", said(&output));
        assert!(!place.path("out").exists());
    }
    if !available() {
        return;
    }
    for (arguments, words) in [
        (
            &["--memory", "1mib"][..],
            "--memory: expected memory from 128mib to 4000mb, found 1mib",
        ),
        (&["--out", "/proc/out"], "cannot create /proc/out"),
        (&["--mode", "fixed:prague"], "has no module tcp_prague"),
    ] {
        let place = Place::new("");
        let mut command = Command::new(laboratory());
        command
            .args(["run"])
            .arg(place.path("scenario.toml"))
            .args(["--backend", "uml"])
            .args(arguments)
            .current_dir(place.directory())
            .env("TMPDIR", place.temporary());
        let output = command.output().unwrap();
        assert_code(&output, 1);
        assert!(said(&output).contains(words), "{}", said(&output));
        assert_eq!(place.leftovers(), Vec::<String>::new());
    }
}

/// Its effect on a queue is tested in virtual time (`lab_paths`).
#[test]
fn random_early_detection_is_there() {
    if !available() {
        return;
    }
    let place = Place::new(
        "[path]\nrate = \"20mbit\"\nqueue = \"200kb\"\naqm = \"red\"\necn = true\noffload = false\n\
         [traffic]\nconnections = 1\nduration = \"1s\"\n",
    );
    let output = place.run(&["--backend", "uml", "--mode", "fixed:reno"]);
    assert_code(&output, 0);
    let connection = &place.results()["scenarios"][0]["modes"][0]["connections"][0];
    assert_eq!(connection["error"], Value::Null, "{connection}");
}
