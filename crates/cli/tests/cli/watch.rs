//! Lists again and again (`--watch`), and a line for each entry (`--json-lines`).

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::libc;
use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::fake::{Agent, answer};
use thalweg_testbed::wait_for;

/// A command that ends with the test.
struct Watch(Child);

impl Watch {
    fn new(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    /// Ends it as Ctrl-C does.
    fn interrupt(&mut self) {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGINT).unwrap();
        let ended = self.0.wait().unwrap();
        assert_eq!(ended.signal(), Some(libc::SIGINT), "{ended}");
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn piped(agent: &Agent, arguments: &[&str]) -> Watch {
    let mut command = agent.command(arguments);
    Watch::new(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// The first lines that a command writes to a pipe.
fn lines(pipe: impl Read, count: usize) -> Vec<String> {
    let lines = BufReader::new(pipe).lines().take(count);
    lines.map(Result::unwrap).collect()
}

#[test]
fn blocks_follow_each_other_and_a_failure_ends_nothing() {
    let round = AtomicUsize::new(0);
    let agent = Agent::new(
        move |method, path| match round.fetch_add(1, Ordering::Relaxed) {
            1 => (500, "{\"error\": \"the moon\"}".to_owned()),
            _ => answer(method, path),
        },
    );
    let once = agent.run(&["hosts"]).ok();
    let mut watch = piped(&agent, &["hosts", "--watch", "0.1"]);
    let said = lines(watch.0.stderr.take().unwrap(), 1);
    assert!(
        said[0].starts_with("thalweg: ") && said[0].contains("the moon"),
        "{said:?}"
    );
    let block: Vec<&str> = once.lines().collect();
    let said = lines(watch.0.stdout.take().unwrap(), 2 * block.len() + 2);
    let said: Vec<&str> = said
        .iter()
        .map(String::as_str)
        .filter(|line| !line.is_empty())
        .collect();
    assert_eq!(said, [&block[..], &block[..]].concat());
    watch.interrupt();
}

#[test]
fn each_round_is_a_line_of_json() {
    let agent = Agent::new(answer);
    let once: Value = serde_json::from_str(&agent.run(&["--json", "hosts"]).ok()).unwrap();
    let mut watch = piped(&agent, &["--json", "hosts", "--watch", "0.1"]);
    for line in lines(watch.0.stdout.take().unwrap(), 3) {
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), once);
    }
    watch.interrupt();
}

#[test]
fn entries_are_lines_of_json() {
    let agent = Agent::new(answer);
    let whole: Value = serde_json::from_str(&agent.run(&["--json", "hosts"]).ok()).unwrap();
    let said = agent.run(&["--json-lines", "hosts"]).ok();
    let entries: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(Value::from(entries), whole["hosts"]);
    let status = agent.run(&["--json-lines", "status"]).ok();
    assert_eq!(status.lines().count(), 1, "{status}");
    let error = Agent::absent().run(&["--json-lines", "hosts"]).failed(4);
    assert!(
        serde_json::from_str::<Value>(error.trim()).is_ok(),
        "{error}"
    );
}

/// Each round is written over the last: from the top, nothing cleared before, nothing scrolled.
#[test]
fn a_terminal_is_painted_in_place() {
    const ROWS: u16 = 5;
    let agent = Agent::new(answer);
    let size = libc::winsize {
        ws_row: ROWS,
        ws_col: 30,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let ends = openpty(&size, None).unwrap();
    let mut command = agent.command(&["hosts", "--watch", "0.1"]);
    let mut watch = Watch::new(command.stdout(Stdio::from(ends.slave)));
    let mut terminal = File::from(ends.master);
    let mut said = String::new();
    let mut bytes = [0; 1024];
    wait_for("three rounds", || {
        let count = terminal.read(&mut bytes).unwrap();
        said += &String::from_utf8_lossy(&bytes[..count]);
        (said.matches("\x1b[J").count() >= 3).then_some(())
    });
    let rounds: Vec<&str> = said.split("\x1b[J").take(3).collect();
    for round in rounds {
        let text = round.strip_prefix("\x1b[H").unwrap();
        let lines: Vec<&str> = text.split("\x1b[K\r\n").collect();
        assert_eq!(lines.len(), usize::from(ROWS), "{lines:?}");
        assert!(
            lines[0].starts_with("Every 0.1 s: thalweg --config"),
            "{lines:?}"
        );
        assert!(lines[2].starts_with("Host"), "{lines:?}");
        assert!(
            lines.iter().all(|line| line.chars().count() <= 30),
            "{lines:?}"
        );
    }
    watch.interrupt();
}

#[test]
fn a_closed_pipe_ends_it() {
    let agent = Agent::new(answer);
    let mut watch = piped(&agent, &["arms", "--watch", "0.1"]);
    lines(watch.0.stdout.take().unwrap(), 1);
    let ended = watch.0.wait().unwrap();
    assert!(ended.success(), "{ended}");
}
