//! Paths whose ends are stacks: TCP of a kernel that is a process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use thalweg_testbed::{laboratory, privileged, skip, wait_within};

/// A scenario in its own directory, which also has the temporary files.
struct Bed(tempfile::TempDir);

impl Bed {
    fn new(scenario: &str) -> Self {
        let bed = Self(tempfile::tempdir().unwrap());
        fs::create_dir(bed.path("tmp")).unwrap();
        fs::write(bed.path("scenario.toml"), scenario).unwrap();
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn start(&self, arguments: &[&str]) -> Child {
        Command::new(laboratory())
            .args(["--json", "run", "--connections", "1"])
            .args(arguments)
            .arg("--out")
            .arg(self.path("out"))
            .arg(self.path("scenario.toml"))
            .env("TMPDIR", self.path("tmp"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// The run's result; checks that nothing is left of the run.
    fn run(&self, arguments: &[&str]) -> Value {
        let output = self.end(self.start(arguments));
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn end(&self, child: Child) -> Output {
        let mark = format!("thalweg-lab-{}-", child.id());
        let output = child.wait_with_output().unwrap();
        assert_eq!(names(&self.path("tmp"), ""), Vec::<String>::new());
        for directory in ["/run/netns", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            assert_eq!(names(Path::new(directory), &mark), Vec::<String>::new());
        }
        output
    }
}

/// The names in a directory that start with the mark.
fn names(directory: &Path, mark: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(mark)).collect()
}

fn available() -> bool {
    privileged() && (Path::new("/usr/bin/linux.uml").exists() || skip("no user-mode-linux"))
}

fn mbits(mode: &Value) -> f64 {
    mode["connections"][0]["goodput_bps"].as_f64().unwrap() / 1e6
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_stack_sends_through_the_path_to_the_machines_kernel() {
    if !available() {
        return;
    }
    let bed = Bed::new(
        "name = \"stack\"\nsender = \"stack\"\n[path]\nrate = \"50mbit\"\nqueue = \"200kb\"\n\
         [traffic]\nduration = \"1s\"\n[system]\nqdisc = \"fq\"\n",
    );
    let result = bed.run(&[
        "--backend",
        "host",
        "--mode",
        "baseline",
        "--mode",
        "fixed:bbr",
    ]);
    let stack = result["environment"]["stack"].as_str().unwrap();
    assert!(stack.starts_with("user-mode Linux "), "{stack}");
    assert_ne!(result["environment"]["kernel"], stack);
    for (mode, arm) in [(0, "cubic"), (1, "bbr")] {
        let mode = &result["scenarios"][0]["modes"][mode];
        assert_eq!(mode["connections"][0]["arm"], arm);
        assert!(
            (20.0..51.0).contains(&mbits(mode)),
            "{arm}: {}",
            mbits(mode)
        );
        let cpu = &mode["connections"][0]["cpu"];
        assert!(cpu["stack_s"].as_f64().unwrap() > 0.0, "{cpu}");
        assert!(cpu["machine_s"].as_f64().unwrap() > 0.0, "{cpu}");
        // All packets crossed the path, none bypassed it.
        let packets = mode["forward"]["seen_packets"].as_u64().unwrap();
        assert!(packets > 100, "{packets}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn stacks_at_both_ends_of_a_path_that_is_forwarded() {
    if !available() {
        return;
    }
    let bed = Bed::new(
        "name = \"stacks\"\nsender = \"stack\"\nreceiver = \"stack\"\n\
         [path]\nrate = \"20mbit\"\ndelay = \"5ms\"\nfamily = \"ipv6\"\noffload = false\n\
         [traffic]\nduration = \"1s\"\n[system]\ntimers = \"tick\"\nmemory = \"256mib\"\n",
    );
    let result = bed.run(&["--backend", "link", "--mode", "fixed:bbr"]);
    let stack = result["environment"]["stack"].as_str().unwrap();
    assert!(stack.contains("tick timers"), "{stack}");
    let mode = &result["scenarios"][0]["modes"][0];
    let connection = &mode["connections"][0];
    assert_eq!(connection["error"], Value::Null);
    // Two user-mode kernels on a busy machine carry little in a second.
    assert!((0.05..21.0).contains(&mbits(mode)), "{}", mbits(mode));
    let least = connection["min_rtt_us"].as_f64().unwrap();
    assert!(least >= 10_000.0, "{least}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_signal_ends_a_run_on_a_stack_and_leaves_nothing() {
    if !available() {
        return;
    }
    let bed = Bed::new(
        "name = \"stack\"\nsender = \"stack\"\n[path]\nrate = \"10mbit\"\n\
         [traffic]\nduration = \"60s\"\n",
    );
    let mut child = bed.start(&["--backend", "host", "--mode", "baseline"]);
    let raw = bed.path("out").join("raw/baseline-0000.json");
    let pid = Pid::from_raw(child.id() as i32);
    wait_within(
        std::time::Duration::from_secs(120),
        "the connection",
        || {
            assert!(child.try_wait().unwrap().is_none(), "it ended early");
            raw.exists().then_some(())
        },
    );
    kill(pid, Signal::SIGINT).unwrap();
    let output = bed.end(child);
    assert!(!output.status.success());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_stack_is_refused_where_it_cannot_be() {
    let with = |key: &str, rest: &str| format!("name = \"a\"\n{key} = \"stack\"\n{rest}");
    for (scenario, arguments, words) in [
        (
            with("sender", ""),
            &["--backend", "uml", "--mode", "baseline"][..],
            "`sender = \"stack\"` needs --backend host or link, found uml",
        ),
        (
            with("receiver", "[traffic]\nkind = \"short\"\n"),
            &["--mode", "baseline"],
            "scenario.toml:2:12: receiver: found \"stack\", expected \"native\", or \"stack\" with kind \"bulk\" only",
        ),
        (
            with("sender", "[[host]]\nname = \"x\"\n[[host]]\nname = \"y\"\n"),
            &["--mode", "baseline"],
            "\"stack\" with one remote host, without [[host]]",
        ),
        (
            with("sender", "").replace("stack", "stak"),
            &["--mode", "baseline"],
            "found the string \"stak\", expected \"native\" or \"stack\"; perhaps \"stack\"",
        ),
    ] {
        let message = refusal(&scenario, arguments);
        let first = message.lines().next().unwrap_or_default();
        assert!(first.contains(words), "{message}");
    }
    if !available() {
        return;
    }
    for (scenario, mode, words) in [
        (with("sender", ""), "thalweg", "found thalweg: agents"),
        (
            with("sender", ""),
            "fixed:nonesuch",
            "no congestion control \"nonesuch\"",
        ),
        (
            with("sender", "[system]\nhz = 250\n"),
            "baseline",
            "lab build-kernel --hz 250",
        ),
    ] {
        let message = refusal(&scenario, &["--backend", "host", "--mode", mode]);
        assert!(message.contains(words), "{message}");
    }
}

/// The message of a run that must be refused.
fn refusal(scenario: &str, arguments: &[&str]) -> String {
    let bed = Bed::new(scenario);
    let output = bed.end(bed.start(arguments));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let told: Value = serde_json::from_str(&said).expect(&said);
    told["error"].as_str().expect(&said).to_owned()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_timers_of_a_stack_are_measured() {
    if !available() {
        return;
    }
    let bed = Bed::new("");
    let output = Command::new(laboratory())
        .args(["timers", "--stack", "--out"])
        .arg(bed.path("out"))
        .env("TMPDIR", bed.path("tmp"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let result = fs::read(bed.path("out").join("results.json")).unwrap();
    let result: Value = serde_json::from_slice(&result).unwrap();
    for whose in ["kernel_us", "program_us"] {
        let late: Vec<f64> = serde_json::from_value(result["timers"][whose].clone()).unwrap();
        assert_eq!(late.len(), 1001, "{whose}");
        assert!(late[0] >= 0.0 && late.is_sorted(), "{whose}: {late:?}");
        // Most are less than a tick late: they are high-resolution timers.
        assert!(late[500] > 0.0 && late[500] < 10_000.0, "{whose}: {late:?}");
    }
    assert_eq!(names(&bed.path("tmp"), ""), Vec::<String>::new());
}
