//! Tests in virtual time. The cases of a module run on a stock kernel in QEMU, in one boot, one by
//! one, as root. Waiting costs nothing there, and no other process disturbs a measurement. So
//! bounds are those of the path or the rule.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use thalweg_guest::kernels;
use thalweg_guest::qemu::{self, Program};

use super::{laboratory, manifest_path, stock, thalweg};

/// Set in the guest.
const INSIDE: &str = "THALWEG_TEST_GUEST";
/// The one case to run, by its name; none: all.
const CASE: &str = "THALWEG_TEST_CASE";
/// The kernel, by its name in `thalweg-lab kernels list`; none: the newest.
const KERNEL: &str = "THALWEG_TEST_KERNEL";
/// Any text, in the environment of every program of the guest. Another length gives another order
/// of events, while equal runs are equal to the digit (`scripts/repeat.sh`).
const PAD: &str = "THALWEG_TEST_GUEST_PAD";
/// Limit of a case in virtual time, unless the module has its own.
pub const LIMIT: Duration = Duration::from_secs(180);
/// Programs that cases start, beside those of every guest.
const PROGRAMS: [&str; 5] = ["cat", "readlink", "sh", "sleep", "ss"];
/// Modules that Python programs of cases import.
const PYTHON: &str = "ctypes,fcntl,json,select,selectors,socket,struct,subprocess,threading";

/// A test that runs the cases of its module in virtual time. Models, policies and other files that
/// it reads are named by their paths in the repository. `within` is for cases that take longer than
/// [`LIMIT`]. An attribute `ignore` leaves the test to `make test-all`: a boot takes fifteen seconds
/// of a processor, an agent's start as many.
#[macro_export]
macro_rules! in_virtual_time {
    ($(#[$attribute:meta])* [$($file:literal),* $(,)?], $($case:path),+ $(,)?) => {
        $crate::virtual_time::in_virtual_time!(
            $(#[$attribute])* within $crate::virtual_time::LIMIT,
            [$($file),*], $($case),+
        );
    };
    ($(#[$attribute:meta])* within $limit:expr, [$($file:literal),* $(,)?], $($case:path),+ $(,)?) => {
        #[test]
        $(#[$attribute])*
        fn in_virtual_time() {
            $crate::virtual_time::run(
                concat!(module_path!(), "::in_virtual_time"),
                $limit,
                &[$($file),*],
                &[$((stringify!($case), $case as fn())),+],
            );
        }
    };
}
pub use crate::in_virtual_time;

/// Whether this process is one of a guest.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs cases of a test: outside of the guest by starting the test in one, inside by calling them.
pub fn run(test: &str, limit: Duration, files: &[&str], cases: &[(&str, fn())]) {
    let only = std::env::var_os(CASE);
    let chosen: Vec<(&str, fn())> = cases
        .iter()
        .filter(|(name, _)| only.as_ref().is_none_or(|only| only == name))
        .copied()
        .collect();
    assert!(!chosen.is_empty(), "{CASE}={only:?}: no such case");
    if is_inside() {
        return inside(limit, &chosen);
    }
    let asked = std::env::var(KERNEL).ok();
    let Some(kernel) = asked.or_else(|| stock::kernel().map(str::to_owned)) else {
        return;
    };
    // libtest names the test by its path without the name of the binary.
    let name = test.split_once("::").map_or(test, |(_, name)| name);
    let own = std::env::current_exe().expect("this program's path");
    let pad = std::env::var_os(PAD);
    let set = [(INSIDE, Some("1".into())), (CASE, only), (PAD, pad)];
    let executed = qemu::run_program(
        &kernels::find_kernel(Some(kernel.as_ref())).expect("the kernel that was found"),
        &Program {
            laboratory: Path::new(laboratory()),
            program: &own,
            arguments: ["--exact", name, "--nocapture", "--include-ignored"]
                .map(Into::into)
                .into(),
            environment: set
                .into_iter()
                .filter_map(|(name, value)| Some((name.into(), value?)))
                .collect(),
            data: &[],
            files: needed(files),
            memory: None,
        },
    );
    let said = match executed {
        Ok(said) => said,
        // The signal would have ended this process, but the guest had to end first.
        Err(error) if error.is_interruption() => std::process::exit(130),
        Err(error) => {
            tell_at_once(&error.to_string());
            panic!("{error}");
        }
    };
    println!("{said}");
    let failed: Vec<&str> = chosen
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !said.lines().any(|line| line.starts_with(&passed(name))))
        .collect();
    if !failed.is_empty() {
        let fault = |line: &&str| line.contains("panicked at") || line.starts_with("case ");
        let faults: Vec<&str> = said.lines().filter(fault).collect();
        tell_at_once(&format!("{failed:?}; {}", faults.join("; ")));
        panic!("failed in virtual time: {failed:?}");
    }
}

/// Writes why a test fails beside its name: the harness tells it at its own end, thousands of lines
/// later.
fn tell_at_once(why: &str) {
    let _ = writeln!(std::io::stderr(), "\nfailed in virtual time: {why}");
}

/// Start of the line of a passed case.
fn passed(name: &str) -> String {
    format!("case {name}: passed in ")
}

fn inside(limit: Duration, cases: &[(&str, fn())]) {
    // The way to files of the repository.
    std::fs::create_dir_all(env!("CARGO_MANIFEST_DIR")).expect("a directory");
    // Scripts name their interpreter this way.
    symlink("/usr/bin", "/bin").expect("a link");
    // The output of a guest that succeeds is its standard output.
    nix::unistd::dup2_stderr(std::io::stdout()).expect("the standard error goes there, too");
    println!();
    for (name, case) in cases {
        let (ended, end) = mpsc::channel::<()>();
        let own = (*name).to_owned();
        let watch = std::thread::spawn(move || {
            if end.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                println!("case {own}: no end after {limit:?}");
                // With the output so far.
                std::process::exit(0);
            }
        });
        let began = Instant::now();
        let outcome: Result<(), Box<dyn Any + Send>> = panic::catch_unwind(AssertUnwindSafe(case));
        let time = began.elapsed().as_secs_f64();
        drop(ended);
        watch.join().expect("it does not panic");
        match outcome {
            Ok(()) => println!("{}{time:.1} s", passed(name)),
            Err(_) => println!("case {name}: failed after {time:.1} s"),
        }
    }
}

/// Files of this machine that cases need, by their path in the guest.
fn needed(files: &[&str]) -> BTreeMap<PathBuf, PathBuf> {
    let mut needed = python();
    needed.insert("/usr/bin/thalweg".into(), thalweg().into());
    for program in PROGRAMS {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places = std::env::split_paths(&path).map(|place| place.join(program));
        let found = places.find(|file| file.is_file());
        let found = found.unwrap_or_else(|| panic!("no {program}"));
        needed.insert(Path::new("/usr/bin").join(program), found);
    }
    for file in files {
        let file = manifest_path(file).canonicalize();
        let file = file.expect("a file of the repository");
        needed.insert(file.clone(), file);
    }
    needed
}

/// Python and the compiled modules that programs of cases import. The sources are left out: a
/// source with time zero would be compiled again at each start.
fn python() -> BTreeMap<PathBuf, PathBuf> {
    let program = format!(
        r#"
import os, sys, sysconfig
import {PYTHON}
# The last is what names of hosts are read by.
import encodings.ascii, encodings.utf_8, encodings.latin_1, encodings.idna
library = sysconfig.get_path("stdlib")
print(os.path.realpath(sys.executable), "/usr/lib/" + os.path.basename(library), sep="\n")
# By this one the interpreter knows the directory.
print(library + "/os.py", "os.py", sep="\t")
for module in list(sys.modules.values()):
    spec = getattr(module, "__spec__", None)
    if not spec or not spec.has_location or not spec.origin.startswith(library + os.sep):
        continue
    name = os.path.relpath(spec.origin, library)
    if spec.cached and os.path.exists(spec.cached):
        print(spec.cached, name + "c", sep="\t")
    else:
        print(spec.origin, name, sep="\t")
"#
    );
    let output = Command::new("python3").args(["-c", &program]).output();
    let output = output.expect("starting python3");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "python3: {:?}", output.stderr);
    let mut lines = said.lines();
    let mut line = || lines.next().expect("a line of python3").to_owned();
    let (interpreter, library) = (line(), line());
    let modules = lines.map(|line| {
        let (file, name) = line.split_once('\t').expect("two columns");
        (Path::new(&library).join(name), PathBuf::from(file))
    });
    let interpreter = (PathBuf::from("/usr/bin/python3"), interpreter.into());
    modules.chain([interpreter]).collect::<BTreeMap<_, _>>()
}
