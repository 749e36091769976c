//! Signals to `thalweg-lab link`: how it ends, and what ends with it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::link::available;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use thalweg_testbed::{laboratory, wait_for};

/// A link whose commands print the namespaces of both ends.
struct Running {
    child: Child,
    /// Inodes of the network namespaces.
    namespaces: Vec<u64>,
}

impl Running {
    /// Both ends print their namespace and then run `line`, which must not return.
    fn start(line: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("far");
        // The name is moved into place whole.
        let far = format!(
            "readlink /proc/self/ns/net > {0}.new; mv {0}.new {0}; {line}",
            file.display()
        );
        let near = format!("readlink /proc/self/ns/net; {line}");
        let mut command = Command::new(laboratory());
        command
            .args(["link", "--far", &far, "--", "sh", "-c", &near])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut said)
            .unwrap();
        let far_said = wait_for("the far end", || fs::read_to_string(&file).ok());
        let inode = |text: &str| {
            text.trim()
                .strip_prefix("net:[")?
                .strip_suffix(']')?
                .parse()
                .ok()
        };
        let namespaces = [said, far_said]
            .iter()
            .filter_map(|text| inode(text))
            .collect();
        let running = Self { child, namespaces };
        assert_eq!(running.namespaces.len(), 2);
        running
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Its exit code, or as a negative number the signal that ended it.
    fn end(&mut self) -> i32 {
        let child = &mut self.child;
        let status = wait_for("the end of the link", || child.try_wait().unwrap());
        status.code().unwrap_or_else(|| -status.signal().unwrap())
    }

    /// Processes that are in one of the namespaces.
    fn left(&self) -> Vec<String> {
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| {
                let path = entry.unwrap().path();
                let inode = fs::metadata(path.join("ns/net")).ok()?.ino();
                let line = fs::read(path.join("cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).into_owned();
                self.namespaces.contains(&inode).then_some(line)
            })
            .collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn signals_end_everything() {
    if !available() {
        return;
    }
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let mut running = Running::start("exec sleep 1000");
        // `mv` at the far end may still run.
        wait_for("the two commands", || {
            (running.left().len() == 2).then_some(())
        });
        running.signal(signal);
        assert_eq!(running.end(), code);
        assert_eq!(running.left(), [""; 0]);
    }
}

#[test]
fn the_terminals_interrupt_reaches_the_command_once() {
    if !available() {
        return;
    }
    // As a terminal would: to the whole process group, which contains only the command and the
    // link.
    let mut running = Running::start("exec sleep 1000");
    let group = Pid::from_raw(-(running.child.id() as i32));
    kill(group, Signal::SIGINT).unwrap();
    assert_eq!(running.end(), 130);
    assert_eq!(running.left(), [""; 0]);
}

#[test]
fn a_killed_link_takes_its_commands_along() {
    if !available() {
        return;
    }
    let mut running = Running::start("exec sleep 1000");
    running.signal(Signal::SIGKILL);
    assert_eq!(running.end(), -9);
    wait_for("the commands to end", || {
        running.left().is_empty().then_some(())
    });
}

#[test]
fn what_the_command_leaves_in_the_background_ends_too() {
    if !available() {
        return;
    }
    let mut running = Running::start(
        "(trap '' TERM INT HUP; setsid sleep 1000) </dev/null >/dev/null 2>&1 & wait",
    );
    wait_for("the background processes", || {
        (running.left().len() >= 4).then_some(())
    });
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), 143);
    assert_eq!(running.left(), [""; 0]);
}

#[test]
fn a_command_that_ignores_the_request_to_end_is_killed() {
    if !available() {
        return;
    }
    let mut running = Running::start("trap '' TERM; while :; do sleep 1000; done");
    wait_for("what follows the trap at both ends", || {
        let left = running.left().into_iter();
        (left.filter(|line| line.starts_with("sleep")).count() == 2).then_some(())
    });
    let asked = Instant::now();
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), 137);
    assert!(asked.elapsed() > Duration::from_secs(4));
    assert_eq!(running.left(), [""; 0]);
}

#[test]
fn other_signals_are_passed_on() {
    if !available() {
        return;
    }
    let mut running = Running::start("trap 'exit 42' USR1; sleep 1000 & wait");
    // The trap is set before the child starts.
    wait_for("both shells' children", || {
        let left = running.left();
        let children = left.iter().filter(|line| line.starts_with("sleep"));
        (children.count() == 2).then_some(())
    });
    running.signal(Signal::SIGUSR1);
    assert_eq!(running.end(), 42);
}
