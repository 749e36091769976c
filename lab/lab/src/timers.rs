//! Lateness of timers: of this machine's kernel, or of one that is a process.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::json;
use thalweg_guest::uml;
use thalweg_process::interrupt;
use thalweg_units::file::replace_file;

use crate::error::Error;
use crate::options::own_command;
use crate::worker::timers::{self, Lateness};

/// Options of a measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Measure on the kernel of `thalweg-lab stack`.
    pub stack: bool,
    /// Use real-time priority (`SCHED_FIFO`).
    pub real_time: bool,
    /// Time before its timers at which a stack's kernel wakes, µs; none: the default.
    pub early_us: Option<u32>,
    /// Directory of the result; none: standard output.
    pub out: Option<PathBuf>,
    /// This program's file.
    pub program: PathBuf,
}

/// Measures the lateness of timers and writes `results.json`, or the same to standard output: a thousand steps from the least to
/// the greatest, µs.
///
/// # Errors
/// Measuring or writing fails, for example without the right to real-time priority.
pub fn measure_timers(options: &Options) -> Result<(), Error> {
    let _signals = interrupt::Guard::install_handlers()?;
    let mut command = Command::new(&options.program);
    if options.stack {
        command.args(["stack", "--"]).arg(&options.program);
    }
    command
        .args(["worker", "timers"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    // The lateness of a stack's own timers is recorded outside its kernel.
    let mut late = create_record()?;
    if options.stack {
        let path = format!("/proc/{}/fd/{}", std::process::id(), late.as_raw_fd());
        command.env(uml::LATE, path);
    }
    if let Some(early_us) = options.early_us {
        command.env(uml::EARLY, (u64::from(early_us) * 1000).to_string());
    }
    if options.real_time {
        // SAFETY: between fork and exec only sched_setscheduler(2) is called.
        unsafe {
            command.pre_exec(|| {
                let priority = libc::sched_param { sched_priority: 1 };
                match libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
        }
    }
    let output = command
        .output()
        .map_err(Error::system(if options.real_time {
            "cannot measure timers with real-time priority (root has it)"
        } else {
            "cannot measure timers"
        }))?;
    interrupt::check_interrupt()?;
    let mut lateness: Lateness = serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::system("no timers were measured")(error.into()))?;
    if options.stack {
        lateness.kernel_us = timers::timer_quantiles(&read_record(&mut late)?);
    }
    let kernel =
        nix::sys::utsname::uname().map_err(|errno| Error::system("uname")(errno.into()))?;
    let document = json!({
        "environment": {
            "kernel": kernel.release().to_string_lossy(),
            "command": own_command(),
        },
        "timers": lateness,
    });
    let text = format!("{document:#}\n");
    let Some(out) = &options.out else {
        let written = io::stdout().write_all(text.as_bytes());
        return written.map_err(Error::io("cannot write to", "standard output"));
    };
    fs::create_dir_all(out).map_err(Error::io("cannot create", out))?;
    let file = out.join("results.json");
    replace_file(&file, text.as_bytes()).map_err(Error::io("cannot write", file))
}

/// A memory file for `uml/idle.c`: a count, and the last 4,096 figures, ns.
fn create_record() -> Result<fs::File, Error> {
    memfd_create(c"thalweg-timers", MFdFlags::MFD_CLOEXEC)
        .map_err(io::Error::from)
        .and_then(|file| {
            let file = fs::File::from(file);
            file.set_len(RECORD_BYTES as u64).map(|()| file)
        })
        .map_err(Error::system("cannot create a file in memory"))
}

const RECORD_BYTES: usize = 8 * (1 + 4096);

/// The figures in that file, µs.
fn read_record(file: &mut fs::File) -> Result<Vec<f64>, Error> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(Error::system("cannot read what was measured"))?;
    let mut words = bytes
        .chunks_exact(8)
        .map(|word| i64::from_ne_bytes(word.try_into().expect("eight bytes")));
    let count = words.next().unwrap_or(0);
    if count <= 0 {
        return Err(Error::system("the kernel's timers")(io::Error::other(
            "none was noted",
        )));
    }
    Ok(words
        .take(count as usize)
        .map(|ns| ns as f64 / 1e3)
        .collect())
}
