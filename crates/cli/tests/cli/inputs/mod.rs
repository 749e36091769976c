//! Mutated files of every kind. Each is read or refused within limits, whatever its content.
//!
//! Workers are separate processes. So an input that ends or hangs a process fails the test and is
//! named. `THALWEG_INPUTS=KIND:N-N cargo test -p thalweg-cli -p thalweg-lab-cli --test cli -- --ignored
//! --exact inputs::worker` repeats one.

pub mod kinds;
mod mutate;

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Instant;

use kinds::{Form, Inputs, KINDS, Kind};
use nix::libc;
use nix::sys::resource::{Resource, setrlimit};

use thalweg_testbed::command_of;

/// CPU time limit of an input, in seconds: unoptimised code takes longer.
const CPU_S: libc::time_t = if cfg!(debug_assertions) { 20 } else { 2 };
/// Time limit of an idle input, in seconds.
const WAIT_S: libc::time_t = 120;
/// Memory limit of an input, in bytes.
const MEMORY: u64 = 256 << 20;
/// Longest special inputs, in bytes: those of the long suite are as long as files may be.
const LONGEST: [usize; 2] = [1 << 16, 16 << 20];

/// Kind and numbers of a worker's inputs, as `policy:0-1000`, and the index into [`LONGEST`].
const TASK: &str = "THALWEG_INPUTS";
const LONG: &str = "THALWEG_INPUTS_LONG";
/// The file to which the worker writes its current number.
const AT: &str = "THALWEG_INPUTS_AT";

#[test]
fn some_inputs_of_each_kind_are_read_or_refused_within_bounds() {
    let failures: Vec<String> = KINDS
        .iter()
        .flat_map(|kind| all(kind, 300, false))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn what_is_mutated_was_good() {
    // Some objects are programs other than those loaded by name.
    for kind in KINDS.iter().filter(|kind| kind.form != Form::Object) {
        for seed in Inputs::new(kind, LONGEST[0]).seeds() {
            let read = (kind.read)(seed);
            let text = String::from_utf8_lossy(seed);
            let beginning: String = text.chars().take(200).collect();
            assert_eq!(read, Ok(()), "{}: {beginning}", kind.name);
        }
    }
}

#[test]
#[ignore = "slow: a million inputs, some minutes where the code is optimised"]
fn a_million_inputs_are_read_or_refused_within_bounds() {
    assert_eq!(KINDS.iter().map(|kind| kind.share).sum::<u64>(), 1_000_000);
    let failures: Vec<String> = KINDS
        .iter()
        .flat_map(|kind| all(kind, kind.share, true))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs a kind's special inputs and this number of mutated ones; returns the failures.
fn all(kind: &'static Kind, mutated: u64, is_long: bool) -> Vec<String> {
    let inputs = Inputs::new(kind, LONGEST[usize::from(is_long)]);
    let end = inputs.special() + mutated;
    let mut failures = Vec::new();
    let mut next = 0;
    while next < end && failures.len() < 10 {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join("at");
        fs::write(&at, next.to_le_bytes()).unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "inputs::worker", "--nocapture"])
            .env(TASK, format!("{}:{next}-{}", kind.name, end - 1))
            .envs(is_long.then_some((LONG, "")))
            .env(AT, &at)
            .output()
            .unwrap();
        if output.status.success() {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let line = said.lines().find(|line| line.contains(" inputs, "));
            println!(
                "{}",
                line.unwrap_or_else(|| panic!("the worker did nothing: {said}"))
            );
            break;
        }
        let number = u64::from_le_bytes(fs::read(&at).unwrap().try_into().unwrap());
        let name = format!("input-{}-{number}", kind.name);
        let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&file, inputs.get(number)).unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        failures.push(format!(
            "{}: {:?}: {}; repeat with {}{TASK}={}:{number}-{number}",
            file.display(),
            output.status,
            said.trim().chars().take(1000).collect::<String>(),
            if is_long { "THALWEG_INPUTS_LONG= " } else { "" },
            kind.name,
        ));
        next = number + 1;
    }
    failures
}

#[test]
#[ignore = "a part of the others, which start it as a process"]
fn worker() {
    let Some(task) = std::env::var_os(TASK) else {
        return;
    };
    let task = task.into_string().unwrap();
    let (name, numbers) = task.split_once(':').unwrap();
    let (first, last) = numbers.split_once('-').unwrap();
    let numbers = first.parse().unwrap()..last.parse::<u64>().unwrap() + 1;
    let kind = KINDS.iter().find(|kind| kind.name == name).unwrap();
    // As much stack as the first thread of a process has.
    let thread = std::thread::Builder::new().stack_size(8 << 20);
    thread
        .spawn(move || work(kind, numbers))
        .unwrap()
        .join()
        .unwrap();
}

fn work(kind: &'static Kind, numbers: Range<u64>) {
    let inputs = Inputs::new(kind, LONGEST[usize::from(std::env::var_os(LONG).is_some())]);
    let at = std::env::var_os(AT).map(|file| File::options().write(true).open(file).unwrap());
    let limit = data_bytes() + MEMORY;
    setrlimit(Resource::RLIMIT_DATA, limit, limit).unwrap();
    let count = numbers.end - numbers.start;
    let (mut good, mut longest_us) = (0, 0);
    for number in numbers {
        if let Some(at) = &at {
            at.write_all_at(&number.to_le_bytes(), 0).unwrap();
        }
        let bytes = inputs.get(number);
        limit_time();
        let start = Instant::now();
        match (kind.read)(&bytes) {
            Ok(()) => good += 1,
            Err(lines) => {
                assert!(!lines.is_empty());
                lines.iter().for_each(|line| kinds::check(line));
            }
        }
        longest_us = longest_us.max(start.elapsed().as_micros());
    }
    if count > 100 {
        // Mutations that break everything, or nothing, find nothing.
        assert!(
            good > 0 && good < count,
            "{}: {good} of {count} are good",
            kind.name
        );
    }
    let ms = longest_us / 1000;
    println!(
        "{}: {count} inputs, {good} of them good, the longest took {ms} ms",
        kind.name
    );
}

/// Makes a signal end this process if it takes too long from now on.
fn limit_time() {
    for (timer, seconds) in [(libc::ITIMER_PROF, CPU_S), (libc::ITIMER_REAL, WAIT_S)] {
        let none = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let value = libc::timeval {
            tv_sec: seconds,
            tv_usec: 0,
        };
        let timer_value = libc::itimerval {
            it_interval: none,
            it_value: value,
        };
        // SAFETY: the value lives through the call; no old one is asked for.
        let outcome =
            unsafe { libc::setitimer(timer, &raw const timer_value, std::ptr::null_mut()) };
        assert_eq!(outcome, 0);
    }
}

/// Private memory of this process, in bytes.
fn data_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmData:"))
        .unwrap();
    line.trim()
        .strip_suffix(" kB")
        .unwrap()
        .trim()
        .parse::<u64>()
        .unwrap()
        * 1024
}

/// Checks texts through the command itself: exit code 1, and a line that names the file.
#[test]
fn the_command_refuses_what_the_readers_refuse() {
    let directory = tempfile::tempdir().unwrap();
    let good = directory.path().join("good");
    let good = good.to_str().unwrap();
    let file = directory.path().join("some file");
    let file = file.to_str().unwrap();
    let commands: [(&str, &[&str]); 5] = [
        ("configuration", &["config", "check", file]),
        ("policy", &["policy", "check", file]),
        ("sim", &["thalweg-lab", "sim", "run", file]),
        ("model", &["thalweg-lab", "model", "check", file]),
        ("results", &["thalweg-lab", "compare", good, file]),
    ];
    for (name, arguments) in commands {
        let kind = KINDS.iter().find(|kind| kind.name == name).unwrap();
        let inputs = Inputs::new(kind, LONGEST[0]);
        fs::write(good, &inputs.seeds()[0]).unwrap();
        let refused = (inputs.special()..).filter_map(|number| {
            let bytes = inputs.get(number);
            (kind.read)(&bytes).is_err().then_some((number, bytes))
        });
        for (number, bytes) in refused.take(12) {
            fs::write(file, bytes).unwrap();
            let output = command_of(arguments).output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert_eq!(output.status.code(), Some(1), "{name} {number}: {said}");
            assert!(
                // Several faults follow their number.
                said.lines().take(2).any(|line| line.contains(file)),
                "{name} {number}: {said}"
            );
            assert!(
                kind.form == Form::Toml || said.lines().count() <= 3,
                "{name} {number}: {said}"
            );
        }
    }
}
