//! A command that reads any file ends with one line that names the file.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::sys::resource::{Resource, setrlimit};

use thalweg_testbed::{command_of, thalweg, wait_for};

/// Memory limit of a command, in bytes.
const MEMORY: u64 = 256 << 20;

/// Commands that read a text file; `FILE` is its path.
const TEXTS: [&[&str]; 12] = [
    &["config", "check", "FILE"],
    &["--config", "FILE", "run"],
    &["config", "check", "FILE"],
    &["policy", "check", "FILE"],
    &["policy", "test", "FILE", "--remote", "192.0.2.1"],
    &["policy", "diff", "FILE", "FILE"],
    &["--config", "config.toml", "policy", "apply", "FILE"],
    &["thalweg-lab", "run", "FILE"],
    &["thalweg-lab", "compare", "FILE", "FILE"],
    &["thalweg-lab", "link", "--trace", "FILE", "--", "true"],
    &["thalweg-lab", "sim", "run", "FILE"],
    &["--config", "config.toml", "import", "FILE"],
];

/// Commands that read other files.
const OTHERS: [&[&str]; 4] = [
    &["thalweg-lab", "model", "check", "FILE"],
    &["thalweg-lab", "model", "show", "FILE"],
    &["--config", "config.toml", "cc", "load", "FILE"],
    &[
        "--config",
        "config.toml",
        "sockops",
        "load",
        "FILE",
        "--cgroup",
        "/sys/fs/cgroup",
    ],
];

/// A directory with the other files that the commands need.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let own = directory.path().display();
    let config = format!(
        "[paths]\npin = \"/sys/fs/bpf/thalweg-input-files\"\nstate = \"{own}/state\"\n\
         socket = \"{own}/socket\"\n"
    );
    fs::write(at("config.toml"), config).unwrap();
    directory
}

/// Runs a command within [`MEMORY`]; a command that does not end fails the test.
fn run(directory: &Path, command: &[&str], file: &str) -> Output {
    let words: Vec<String> = command.iter().map(|it| it.replace("FILE", file)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut process = command_of(&words);
    process
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(File::create(directory.join("stdout")).unwrap())
        .stderr(File::create(directory.join("stderr")).unwrap());
    // SAFETY: setrlimit(2) is only a system call.
    unsafe { process.pre_exec(|| Ok(setrlimit(Resource::RLIMIT_DATA, MEMORY, MEMORY)?)) };
    let child = std::cell::RefCell::new(process.spawn().unwrap());
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_for(&format!("{command:?} {file}"), || {
            child.borrow_mut().try_wait().unwrap()
        })
    }));
    let mut child = child.into_inner();
    let status = ended.unwrap_or_else(|panic| {
        child.kill().unwrap();
        child.wait().unwrap();
        std::panic::resume_unwind(panic)
    });
    let read = |name: &str| fs::read(directory.join(name)).unwrap();
    Output {
        status,
        stdout: read("stdout"),
        stderr: read("stderr"),
    }
}

/// An exit code of failures, and one line that names the file and states the fault once.
fn assert_refused(directory: &Path, command: &[&str], file: &str, words: &str) {
    let output = run(directory, command, file);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    let is_agent = command == ["--config", "FILE", "run"];
    assert_eq!(
        output.status.code(),
        Some(if is_agent { 78 } else { 1 }),
        "{command:?} {file}: {:?} {said}",
        output.status
    );
    let line = said.lines().find(|line| line.contains(words));
    assert!(
        line.is_some_and(|line| line.contains(file)),
        "{command:?}: {said}"
    );
    assert!(
        line.is_some_and(|line| line.matches(words).count() == 1),
        "{command:?}: {said}"
    );
    // `check` shows the line, and a summary; of two identical files the first is reported.
    let lines = if command.contains(&"check") { 5 } else { 1 };
    assert!(
        said.lines().count() <= lines && said.len() < 600,
        "{command:?}: {said}"
    );
}

fn all() -> impl Iterator<Item = &'static [&'static str]> {
    TEXTS.into_iter().chain(OTHERS)
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let directory = directory();
    nix::unistd::mkfifo(
        &directory.path().join("pipe.o"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    fs::create_dir(directory.path().join("folder.o")).unwrap();
    for command in all() {
        assert_refused(directory.path(), command, "pipe.o", "a pipe");
        assert_refused(directory.path(), command, "/dev/zero", "a character device");
        // A comparison takes directories.
        if !command.contains(&"compare") {
            assert_refused(directory.path(), command, "folder.o", "a directory");
        }
        assert_refused(directory.path(), command, "absent.o", "No such file");
    }
}

#[test]
fn what_is_too_large_is_refused() {
    let directory = directory();
    // Larger than any kind of file may be, but sparse.
    let file = File::create(directory.path().join("large.o")).unwrap();
    file.set_len(1 << 40).unwrap();
    for command in all() {
        assert_refused(directory.path(), command, "large.o", "found more than");
    }
}

#[test]
fn what_is_not_utf_8_has_its_place() {
    let directory = directory();
    fs::write(directory.path().join("f"), b"1\n22\xff\n").unwrap();
    for command in TEXTS {
        // A trace consists of digits, and `check` reports an error.
        let words = if command.contains(&"import") {
            // Read part by part, as JSON: a number that is not a document is reported first.
            " at line 2 column"
        } else if command.contains(&"--trace") || command.contains(&"check") {
            "f:2:3:"
        } else {
            "f:2:3: found the byte 0xff"
        };
        assert_refused(directory.path(), command, "f", words);
    }
}

#[test]
fn what_takes_much_memory_is_read_within_bounds() {
    let directory = directory();
    let bound = "224 MiB of memory";
    let cases: [(&str, &str, &[&str], &str); 4] = [
        ("", "#\n", &["policy", "check", "FILE"], "64 MiB of memory"),
        (
            "",
            "[[rule]]\n",
            &["policy", "check", "FILE"],
            "found 1747626 rules, expected at most 65536",
        ),
        (
            "",
            "[[hosts]]\na=1\n",
            &["config", "check", "FILE"],
            "64 MiB of memory",
        ),
        (
            "{\"format\":1,\"environment\":",
            "[{\"a\":0},",
            &["thalweg-lab", "compare", "FILE", "FILE"],
            bound,
        ),
    ];
    for (start, repeated, command, words) in cases {
        let text = start.to_owned() + &repeated.repeat((15 << 20) / repeated.len());
        fs::write(directory.path().join("dense"), text).unwrap();
        assert_refused(directory.path(), command, "dense", words);
    }
}

#[test]
fn export_with_a_text_of_200_mb_is_refused_within_bounds() {
    let directory = directory();
    let mut text = "{\"format\":\"thalweg-hosts\",\"version\":2,\"mode\":\"thalweg\",\
                    \"own_netns\":1,\"saved_at_ms\":0,\"hosts\":[],\"boot_id\":\""
        .to_owned();
    text += &"a".repeat(200 << 20);
    text += "\"}";
    fs::write(directory.path().join("long"), text).unwrap();
    let import = ["--config", "config.toml", "import", "FILE"];
    let words = "boot_id: found a field or host of more than 8192 bytes";
    assert_refused(directory.path(), &import, "long", words);
}

#[test]
fn standard_input_is_bounded_too() {
    let directory = directory();
    let import = |input: Stdio| {
        let mut process = Command::new(thalweg());
        process
            .args(["--config", "config.toml", "import", "-"])
            .current_dir(directory.path())
            .stdin(input)
            .output()
            .unwrap()
    };
    let bytes = directory.path().join("bytes");
    fs::write(&bytes, b"{\n\xff").unwrap();
    let output = import(File::open(&bytes).unwrap().into());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        said,
        "thalweg: standard input: document: key must be a string at line 2 column 1; nothing was \
         imported\n"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn output_replaces_regular_files_only() {
    let directory = directory();
    let target: PathBuf = directory.path().join("report");
    let socket = std::os::unix::net::UnixListener::bind(&target).unwrap();
    let command = ["thalweg-lab", "link", "--report", "FILE", "--", "true"];
    assert_refused(directory.path(), &command, "report", "found a socket");
    drop(socket);
    let kind = fs::symlink_metadata(&target).unwrap().file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_socket(&kind));
}
