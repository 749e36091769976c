//! All that Thalweg has pinned, in one look that changes nothing and waits for nobody: programs with
//! their run time, the policy in force, congestion controls.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::path::Path;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ProgramType};
use serde::{Deserialize, Serialize};
use thalweg_bpf_objects::names::{dctcp, learn};

use crate::cc::Control;
use crate::error::Result;
use crate::kernel_objects::{kept_name, query_program};
use crate::policy::Report;
use crate::policy::history::History;
use crate::{cc, links, pins, privileges};

/// Names that the kernel cuts off.
const LONG_NAMES: [&str; 3] = [
    learn::programs::LEARN_SETSOCKOPT,
    dctcp::programs::DCTCP_IN_ACK_EVENT,
    dctcp::programs::DCTCP_CWND_EVENT,
];
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
    let files = pins::directories_below(pin, DEPTH)
        .into_iter()
        .flat_map(|directory| {
            let names = pins::directory_entries(&directory).unwrap_or_default();
            names
                .into_iter()
                .map(move |name| (directory.join(&name), name))
        });
    for (path, name) in files {
        match name.as_str() {
            cc::OPS => congestion.extend(words_of(&path)),
            name if name.contains("link") || name.starts_with("cgroup_") => {
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
            match running_program(id, measured) {
                Ok(found) => programs.extend(found.map(|(program, _)| program)),
                Err(error) => unreadable.push(format!("program {id}: {error:#}")),
            }
        }
        for id in congestion {
            // Other numbers of the table are not programs, or not such.
            if let Ok(Some((program, ProgramType::StructOps))) = running_program(id, measured) {
                programs.push(program);
            }
        }
    });
    programs.sort();
    programs
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

/// A program by its number; none if there is none.
fn running_program(id: u32, measured: bool) -> Result<Option<(RunningProgram, ProgramType)>> {
    let program = query_program(id)?;
    Ok(program.map(|program| {
        let running = RunningProgram {
            name: whole_name(program.name),
            id,
            runs: measured.then_some(program.runs),
            run_time_ns: measured.then_some(program.run_time_ns),
        };
        (running, program.kind)
    }))
}

fn whole_name(name: String) -> String {
    let whole = LONG_NAMES.iter().find(|long| kept_name(long) == name);
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
        let cut: BTreeSet<&str> = LONG_NAMES.iter().map(|long| kept_name(long)).collect();
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
