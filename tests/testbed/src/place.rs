//! A place for runs of the laboratory in user-mode Linux, and their leftovers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{laboratory, skip_unpackaged, wait_for};

/// User-mode Linux of Debian.
pub const KERNEL: &str = "/usr/bin/linux.uml";
/// Each of these runs takes much less, on a busy machine, too.
const LIMIT: Duration = Duration::from_secs(900);
/// Limit for an immediate end, on a busy machine, too; without it the command takes a minute and
/// more.
const AT_ONCE: Duration = Duration::from_secs(30);

/// Ubuntu does not package user-mode Linux, so there the test may be skipped even where tests must
/// run.
pub fn available() -> bool {
    if Path::new(KERNEL).exists() {
        return true;
    }
    let why = format!("no {KERNEL} (Debian's package user-mode-linux)");
    skip_unpackaged(&why)
}

/// A directory for all files of a run, and its scenario.
pub struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    /// Makes the directory, with a scenario called `test`.
    pub fn new(scenario: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = Self { directory };
        fs::create_dir(place.temporary()).unwrap();
        let text = format!("name = \"test\"\n{scenario}");
        fs::write(place.path("scenario.toml"), text).unwrap();
        place
    }

    /// Directory of the place.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Path of a file of the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Directory of the run's temporary files.
    pub fn temporary(&self) -> PathBuf {
        self.path("tmp")
    }

    /// `thalweg-lab run` of the scenario, with the report in `out`.
    pub fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(["run"])
            .arg(self.path("scenario.toml"))
            .arg("--out")
            .arg(self.path("out"))
            .args(arguments)
            .env("TMPDIR", self.temporary())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts the run.
    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(Path::new(laboratory()), arguments)
            .spawn()
            .unwrap()
    }

    /// Runs it to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        finish(self.start(arguments))
    }

    /// Results in the report.
    pub fn results(&self) -> Value {
        let text = fs::read_to_string(self.path("out/results.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Processes and files that a run has left.
    pub fn leftovers(&self) -> Vec<String> {
        let mut found: Vec<String> = fs::read_dir(self.temporary())
            .unwrap()
            .map(|entry| entry.unwrap().path().display().to_string())
            .collect();
        let mark = self.temporary().display().to_string();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            if command.contains(&mark) {
                found.push(format!("{}: {command}", entry.path().display()));
            }
        }
        found
    }

    /// PATH with a script in place of the kernel.
    pub fn fake_kernel(&self, script: &str) -> std::ffi::OsString {
        let version = format!("[ \"$1\" = --version ] && exec {KERNEL} --version");
        self.first_on_path("linux.uml", &format!("{version}\n{script}"))
    }

    /// PATH with a script before all other programs.
    pub fn first_on_path(&self, name: &str, script: &str) -> std::ffi::OsString {
        let directory = self.path("bin");
        fs::create_dir_all(&directory).unwrap();
        executable(&directory.join(name), script);
        let mut path = directory.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap());
        path
    }

    /// Waits until the console of its kernel has these words.
    pub fn await_console(&self, words: &str) {
        wait_for("the kernel's console", || {
            let entry = fs::read_dir(self.temporary()).unwrap().next()?.unwrap();
            let console = fs::read_to_string(entry.path().join("console")).ok()?;
            console.contains(words).then_some(())
        });
    }

    /// Sends a run a signal and awaits the orderly end.
    pub fn interrupt(&self, child: Child, signal: Signal) {
        assert!(!self.leftovers().is_empty());
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let started = Instant::now();
        let output = finish(child);
        assert_code(&output, 1);
        assert!(said(&output).contains("interrupted"), "{}", said(&output));
        assert!(started.elapsed() < AT_ONCE);
        assert_eq!(self.leftovers(), Vec::<String>::new());
    }
}

/// Checks that a run fails at once with all these words, and leaves nothing.
pub fn assert_ended(place: &Place, mut command: Command, words: &[&str]) {
    let started = Instant::now();
    let output = finish(command.spawn().unwrap());
    assert_code(&output, 1);
    assert!(started.elapsed() < AT_ONCE);
    for word in words {
        assert!(said(&output).contains(word), "{}", said(&output));
    }
    assert_eq!(place.leftovers(), Vec::<String>::new());
}

/// The same command with a disk of 1 MiB at a directory, visible only to it. The files left there
/// are printed after its own output. Needs root.
pub fn on_small_disk(directory: &Path, command: &Command) -> Command {
    let script = "mount -t tmpfs -o size=1m small \"$0\" && \"$@\"; code=$?; \
                  find \"$0\" -type f; exit $code";
    let mut behind = Command::new("unshare");
    behind
        .args(["--mount", "sh", "-c", script])
        .arg(directory)
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (name, value) in command.get_envs() {
        behind.env(name, value.unwrap_or_default());
    }
    behind
}

/// Every file below a directory, by its path there.
pub fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = PathBuf::from(path.file_name().unwrap());
        if path.is_dir() {
            let below = files(&path).into_iter();
            found.extend(below.map(|(file, content)| (name.join(file), content)));
        } else {
            found.insert(name, fs::read(path).unwrap());
        }
    }
    found
}

/// Checks that two runs left the same files, and that a run of a learner is among them.
pub fn assert_same(one: &BTreeMap<PathBuf, Vec<u8>>, other: &BTreeMap<PathBuf, Vec<u8>>) {
    assert_eq!(
        one.keys().collect::<Vec<_>>(),
        other.keys().collect::<Vec<_>>()
    );
    for name in [
        "results.json",
        "agent-thalweg.log",
        "hosts-thalweg.json",
        "raw/thalweg-0003.json",
    ] {
        assert!(one.contains_key(Path::new(name)), "{name}");
    }
    for (name, content) in one {
        assert!(other[name] == *content, "{} differs", name.display());
    }
}

/// Writes an executable shell script, in the way of [`copy_of_command`](super::copy_of_command).
pub fn executable(file: &Path, script: &str) {
    let written = Command::new("sh")
        .args([
            "-c",
            r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#,
            "sh",
        ])
        .arg(file)
        .arg(script)
        .status();
    assert!(written.unwrap().success(), "{}", file.display());
}

/// Waits for the end, but not forever.
pub fn finish(mut child: Child) -> Output {
    let pid = Pid::from_raw(child.id() as i32);
    let deadline = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            kill(pid, Signal::SIGKILL).unwrap();
            panic!("no end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// A command's standard error.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks an exit code.
pub fn assert_code(output: &Output, code: i32) {
    assert_eq!(
        output.status.code(),
        Some(code),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        said(output)
    );
}

/// A path and its traffic, see [`assert_delayed`].
pub const DELAYED: &str = "[path]\ndelay = \"5ms\"\nrate = \"50mbit\"\n\
    [traffic]\nconnections = 3\n[system]\nqdisc = \"fq\"\n";

/// Checks that each connection took the requested path. The bounds are those of the path itself: a
/// busy machine lengthens round-trip times and reduces goodput.
pub fn assert_delayed(results: &Value, connections: usize) {
    let mode = &results["scenarios"][0]["modes"][0];
    let made = mode["connections"].as_array().unwrap();
    assert_eq!(made.len(), connections);
    for connection in made {
        assert_eq!(connection["error"], Value::Null, "{connection}");
        // Twice 5 ms.
        let rtt = connection["mean_rtt_us"].as_f64().unwrap();
        assert!(rtt >= 10_000.0, "{connection}");
        let goodput = connection["goodput_bps"].as_f64().unwrap();
        assert!((1e6..50e6).contains(&goodput), "{connection}");
    }
}
