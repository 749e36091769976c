//! All that Thalweg has pinned, in one look that changes nothing and waits for nobody: programs with
//! their run time, the policy in force, congestion controls.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use libbpf_rs::libbpf_sys::{bpf_obj_get_info_by_fd, bpf_prog_info};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Program, ProgramType};
use serde::{Deserialize, Serialize};
use thalweg_bpf_objects::names::{dctcp, learn};

use crate::cc::Control;
use crate::error::{Context, Result};
use crate::policy::Report;
use crate::policy::history::History;
use crate::{cc, links, pins, privileges};

/// Names that the kernel cuts off, which keeps 15 bytes (linux/bpf.h, BPF_OBJ_NAME_LEN).
const LONG_NAMES: [&str; 3] = [
    learn::programs::LEARN_SETSOCKOPT,
    dctcp::programs::DCTCP_IN_ACK_EVENT,
    dctcp::programs::DCTCP_CWND_EVENT,
];
const NAME_MAX: usize = 15;
/// Deepest directory of pins below the agent's: `cc/NAME`.
const DEPTH: usize = 2;
/// Where the kernel says whether it measures programs.
const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Objects that are pinned in an agent's directory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Inventory {
    /// Whether the kernel measures programs (sysctl kernel.bpf_stats_enabled).
    pub statistics: bool,
    /// Programs that are attached or registered, by name and id.
    pub programs: Vec<RunningProgram>,
    /// The policy in force; none if there is none.
    pub policy: Option<Report>,
    /// Congestion controls, by name.
    pub cc: Vec<Control>,
    /// Objects that could not be read, and why.
    pub unreadable: Vec<String>,
}

/// A program in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunningProgram {
    /// Name of the program.
    pub name: String,
    /// The kernel's number of it.
    pub id: u32,
    /// How often it has run since it was loaded; none unless the kernel measures programs.
    pub runs: Option<u64>,
    /// Time that those runs took, ns; none unless the kernel measures programs.
    pub run_time_ns: Option<u64>,
}

impl Inventory {
    /// Reads all. What cannot be read is left out, and named in `unreadable`.
    pub fn read(pin: &Path, history: &History) -> Self {
        let statistics = are_measured();
        let mut unreadable = Vec::new();
        let policy = Report::read_counters(pin, history);
        Self {
            statistics,
            programs: running_programs(pin, statistics, &mut unreadable),
            policy: or_note("policy", policy, &mut unreadable),
            cc: or_note(
                "congestion controls",
                cc::scan_controls(pin),
                &mut unreadable,
            ),
            unreadable,
        }
    }
}

/// The default instead of what cannot be read; why is noted.
pub fn or_note<T: Default, E: Display>(
    what: &str,
    read: Result<T, E>,
    unreadable: &mut Vec<String>,
) -> T {
    read.unwrap_or_else(|error| {
        unreadable.push(format!("{what}: {error:#}"));
        T::default()
    })
}

/// Whether the kernel measures the run time of programs.
pub fn are_measured() -> bool {
    fs::read_to_string(STATISTICS).is_ok_and(|text| text.trim() != "0")
}

/// The programs of all attached links and of registered congestion controls.
pub fn running_programs(
    pin: &Path,
    measured: bool,
    unreadable: &mut Vec<String>,
) -> Vec<RunningProgram> {
    let mut ids = BTreeSet::new();
    let mut congestion = BTreeSet::new();
    for path in files_below(pin, DEPTH) {
        match path.file_name().and_then(|name| name.to_str()) {
            Some(cc::OPS) => congestion.extend(words_of(&path)),
            Some(name) if name.contains("link") || name.starts_with("cgroup_") => {
                // The program may have been removed meanwhile.
                let link = Link::open(&path).ok();
                let link =
                    link.filter(|link| links::attached_to(link).is_ok_and(|to| to != Some(0)));
                ids.extend(link.and_then(|link| Some(link.info().ok()?.prog_id)));
            }
            _ => {}
        }
    }
    let mut programs = Vec::new();
    privileges::with_raised(|| {
        for id in ids.into_iter().filter(|id| *id != 0) {
            match query_program(id, measured) {
                Ok(found) => programs.extend(found.map(|(program, _)| program)),
                Err(error) => unreadable.push(format!("program {id}: {error:#}")),
            }
        }
        for id in congestion {
            // Other numbers of the table are not programs, or not such.
            if let Ok(Some((program, ProgramType::StructOps))) = query_program(id, measured) {
                programs.push(program);
            }
        }
    });
    programs.sort();
    programs
}

/// Files below a directory.
fn files_below(directory: &Path, depth: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in pins::directory_entries(directory).unwrap_or_default() {
        let path = directory.join(entry);
        match fs::symlink_metadata(&path) {
            Ok(about) if about.is_dir() && depth > 0 => found.extend(files_below(&path, depth - 1)),
            Ok(about) if about.is_file() => found.push(path),
            _ => {}
        }
    }
    found
}

/// Numbers in a table of callbacks that may be programs: the kernel shows each callback as the
/// number of its program.
fn words_of(path: &Path) -> Vec<u32> {
    let map = MapHandle::from_pinned_path(path).ok();
    let value = map.and_then(|map| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()?);
    let value = value.unwrap_or_default();
    let words = value.as_chunks::<8>().0.iter();
    words
        .filter_map(|word| u32::try_from(u64::from_ne_bytes(*word)).ok())
        .filter(|word| *word != 0)
        .collect()
}

/// A program by its number, and its type; none if there is none.
fn query_program(id: u32, measured: bool) -> Result<Option<(RunningProgram, ProgramType)>> {
    let program = match Program::fd_from_id(id) {
        Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => return Ok(None),
        program => program.context("opening it (CAP_SYS_ADMIN)")?,
    };
    let mut info = bpf_prog_info::default();
    let mut bytes = size_of::<bpf_prog_info>() as u32;
    // SAFETY: the descriptor is open, and the kernel writes at most `bytes` bytes.
    let failed = unsafe {
        bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &raw mut bytes)
    };
    if failed != 0 {
        return Err(std::io::Error::last_os_error()).context("asking about it");
    }
    let name: Vec<u8> = info.name.iter().map(|&byte| byte as u8).collect();
    let end = name.iter().position(|&byte| byte == 0);
    let name = String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]).into_owned();
    let running = RunningProgram {
        name: whole_name(name),
        id,
        runs: measured.then_some(info.run_cnt),
        run_time_ns: measured.then_some(info.run_time_ns),
    };
    Ok(Some((running, ProgramType::from(info.type_))))
}

fn whole_name(name: String) -> String {
    let whole = LONG_NAMES
        .iter()
        .find(|long| long.get(..NAME_MAX) == Some(&name));
    whole.map_or(name, |long| (*long).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_cuts_off_are_whole() {
        assert_eq!(whole_name("learn_setsockop".into()), "learn_setsockopt");
        assert_eq!(whole_name("learn_sockops".into()), "learn_sockops");
        assert_eq!(whole_name(String::new()), "");
        let cut: BTreeSet<&str> = LONG_NAMES.iter().map(|long| &long[..NAME_MAX]).collect();
        assert_eq!(cut.len(), LONG_NAMES.len());
    }

    #[test]
    fn an_absent_directory_has_nothing() {
        let place = tempfile::tempdir().unwrap();
        let missing = place.path().join("pins");
        let all = Inventory::read(&missing, &History::at(place.path()));
        assert!(all.programs.is_empty() && all.policy.is_none());
        assert_eq!(all.unreadable, [""; 0]);
    }
}
