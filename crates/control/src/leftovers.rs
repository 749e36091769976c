//! The learner and policies in the kernel as the kernel itself lists them, by the names of their
//! programs: what the agent's directory of pins does not show.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libbpf_rs::query::{LinkInfo, LinkTypeInfo, ProgInfoIter, ProgramInfo};
use libbpf_rs::{Link, Program, ProgramHandle};
use thalweg_bpf_objects::names::policy::programs::POLICY_SOCKOPS;
use thalweg_bpf_objects::names::policy_mark::programs::POLICY_MARK;
use thalweg_bpf_objects::names::{buffers, idle, learn, learn_clamp, learn_open, timers};

use crate::error::{Context, Result};
use crate::kernel_objects::{
    all_links, detach_link, kept_name, map_ids_of, maps_below, maps_of_directories, name_of,
    pinned_map,
};
use crate::learner::LINKS;
use crate::pins::Locked;
use crate::{cc, links, pins, policy, privileges, sockops, system};

/// The learner's programs.
const PROGRAMS: [&str; 8] = [
    learn::programs::LEARN_SOCKOPS,
    learn::programs::LEARN_SETSOCKOPT,
    learn::programs::FORGET_ARMS,
    learn_open::programs::LEARN_OPEN,
    learn_clamp::programs::LEARN_CLAMP,
    timers::programs::TIMERS_SOCKOPS,
    idle::programs::IDLE_SOCKOPS,
    buffers::programs::BUFFERS_SOCKOPS,
];
/// Deepest directory of a BPF file system that is searched for pins.
const DEPTH: usize = 4;
/// The kernel frees programs a little after their last user has gone.
const FREED: Duration = Duration::from_secs(5);
/// Interval of checks whether it has.
const POLL: Duration = Duration::from_millis(10);

/// The cgroups and programs of one learner.
#[derive(Clone, Debug, Default)]
pub struct Learner {
    cgroups: BTreeSet<u64>,
    programs: BTreeSet<u32>,
    /// Pinned maps.
    maps: BTreeSet<u32>,
}

impl Learner {
    /// Notes a cgroup whose connections the learner covers.
    pub fn note_cgroup(&mut self, cgroup: &Path) {
        let id = links::open_cgroup(cgroup).and_then(|cgroup| links::cgroup_id(&cgroup));
        self.cgroups.extend(id);
    }

    /// Notes cgroups and programs of the pinned links, and the pinned maps.
    pub fn note_pins(&mut self, pin: &Path) {
        self.maps.extend(own_maps(pin));
        for (_, file, _) in LINKS {
            let Ok(Some(link)) = links::open_link(&pin.join(file)) else {
                continue;
            };
            self.cgroups
                .extend(links::attached_to(&link).ok().flatten());
            self.programs.extend(link.info().map(|info| info.prog_id));
        }
        self.cgroups.remove(&0);
    }

    /// Notes the learner's programs that a process holds.
    pub fn note_process(&mut self, pid: u32) {
        let held = held_programs(&PathBuf::from(format!("/proc/{pid}/fdinfo")));
        let names = program_names();
        let is_own = |id: &u32| names.get(id).is_some_and(|name| is_own_name(name));
        self.programs.extend(held.into_iter().filter(is_own));
    }

    /// Detaches links of the noted programs, and those on the noted cgroups that no pin keeps and no
    /// other agent can have made. Waits until the kernel has freed the noted programs, and says what is
    /// still there.
    pub fn remove_rest(&self) -> Vec<String> {
        let mut left = Vec::new();
        let names = privileges::with_raised(program_names);
        let pinned = pinned_links();
        let is_unclaimed = unclaimed_beside(&self.maps);
        let links: Vec<LinkInfo> = all_links();
        for link in &links {
            let LinkTypeInfo::Cgroup(about) = &link.info else {
                continue;
            };
            let name = names.get(&link.prog_id).filter(|name| is_own_name(name));
            // A pin on a file system that is read-only cannot go; the link can.
            let is_to_go = self.programs.contains(&link.prog_id)
                || self.cgroups.contains(&about.cgroup_id)
                    && !pinned.contains_key(&link.id)
                    && is_unclaimed(link);
            let (Some(name), true) = (name, is_to_go) else {
                continue;
            };
            if let Err(error) = detach_link(link.id) {
                left.push(format!("{name} on a cgroup (link {}): {error:#}", link.id));
            }
        }
        let deadline = Instant::now() + FREED;
        let mut loaded = self.programs.clone();
        loop {
            loaded.retain(|id| is_loaded(*id));
            if loaded.is_empty() || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(POLL);
        }
        left.extend(loaded.iter().map(|id| {
            let name = names.get(id).map_or("a program", String::as_str);
            match find_holder(*id) {
                Some(pid) => format!("{name} (program {id}), which process {pid} holds"),
                None => format!("{name} (program {id})"),
            }
        }));
        left
    }
}

fn is_own_name(name: &str) -> bool {
    PROGRAMS.into_iter().any(|own| kept_name(own) == name)
}

fn program_names() -> BTreeMap<u32, String> {
    let named = |program: ProgramInfo| (program.id, program.name.to_string_lossy().into_owned());
    privileges::with_raised(|| ProgInfoIter::default().map(named).collect())
}

/// Whether a program is in the kernel. One that may not be looked at counts as gone.
fn is_loaded(id: u32) -> bool {
    privileges::with_raised(|| Program::fd_from_id(id)).is_ok()
}

/// Programs of the descriptors in a process's `fdinfo`.
fn held_programs(directory: &Path) -> BTreeSet<u32> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files
        .filter_map(|file| fs::read_to_string(file.path()).ok())
        .filter_map(|text| {
            let number = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
            number?.trim().parse().ok()
        })
        .collect()
}

/// A process that holds a program.
fn find_holder(program: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = std::process::id();
    pids.find(|pid| {
        let directory = PathBuf::from(format!("/proc/{pid}/fdinfo"));
        *pid != own && held_programs(&directory).contains(&program)
    })
}

/// Directories of the BPF file systems that can be seen, as deep as pins are searched for.
fn seen_directories() -> impl Iterator<Item = PathBuf> {
    let mounts = system::bpffs_mounts().into_iter();
    mounts.flat_map(|mount| pins::directories_below(&mount, DEPTH))
}

/// The learner's links that are pinned in a BPF file system that can be seen, and their directories.
fn pinned_links() -> BTreeMap<u32, PathBuf> {
    let mut found = BTreeMap::new();
    for directory in seen_directories() {
        let files = LINKS.map(|(_, file, _)| directory.join(file)).into_iter();
        for path in files.filter(|path| path.is_file()) {
            let info = Link::open(path).and_then(|link| link.info()).ok();
            // An object of others may have a program of that name.
            let own =
                info.filter(|info| name_of(info.prog_id).is_none_or(|name| is_own_name(&name)));
            found.extend(own.map(|info| (info.id, directory.clone())));
        }
    }
    found
}

/// Numbers of the maps that an agent has pinned below its directory; another's may lie below, too.
fn own_maps(pin: &Path) -> BTreeSet<u32> {
    let names = LINKS.iter().map(|(_, file, _)| file.to_string());
    let links: Vec<String> = names
        .chain([format!("{}/link", policy::DIRECTORY)])
        .collect();
    maps_of_directories(pin, |directory| {
        let is_there = |link: &String| fs::symlink_metadata(directory.join(link)).is_ok();
        !links.iter().any(is_there)
    })
}

/// A test of links: no agent but the one with these pinned maps has made it. Where pins may be
/// hidden, every link may be another agent's.
fn unclaimed_beside(own: &BTreeSet<u32>) -> impl Fn(&LinkInfo) -> bool {
    let sees_all = system::sees_all_pins();
    let mounts = system::bpffs_mounts().into_iter();
    let mut of_others: BTreeSet<u32> = mounts.flat_map(|mount| maps_below(&mount)).collect();
    of_others.retain(|id| !own.contains(id));
    move |link| {
        let used = map_ids_of(link.prog_id);
        sees_all && used.is_some_and(|ids| ids.iter().all(|id| !of_others.contains(id)))
    }
}

/// Directories of pins in the BPF file systems that can be seen: those of agents, and those that have
/// a policy, a congestion control or a sockops object alone.
pub fn pin_directories() -> BTreeSet<PathBuf> {
    let mut found: BTreeSet<PathBuf> = pinned_links().into_values().collect();
    found.extend(seen_directories().filter(|directory| needs_no_agent(directory)));
    found
}

/// Whether a directory has pins of a policy, a congestion control or a sockops object. Other programs
/// may use the same names, so more than these are compared.
fn needs_no_agent(pin: &Path) -> bool {
    let policy = Link::open(pin.join(policy::DIRECTORY).join("link"));
    let program = policy.and_then(|link| link.info());
    let program = program.ok().and_then(|info| name_of(info.prog_id));
    let has = |kind: &str, file: &str| {
        let directory = pin.join(kind);
        let names = pins::directory_entries(&directory).unwrap_or_default();
        let mut files = names.iter().map(|name| directory.join(name).join(file));
        files.any(|file| file.symlink_metadata().is_ok())
    };
    program.is_some_and(|name| name == POLICY_SOCKOPS)
        || has(cc::DIRECTORY, cc::OPS)
        || has(sockops::DIRECTORY, "cgroup")
}

/// Detaches policies from a cgroup where no pin that can be opened keeps them, and that are no other
/// agent's: another BPF file system is mounted over theirs, or theirs is read-only. Returns the number
/// of links; 0 where pins of other agents may be hidden.
///
/// # Errors
/// Links that cannot be detached.
pub fn detach_policies(pin: &Path, cgroup: &Path) -> Result<usize> {
    let cgroup = links::open_cgroup(cgroup).and_then(|cgroup| links::cgroup_id(&cgroup));
    // A cgroup that is gone has nothing attached.
    let Ok(cgroup) = cgroup else {
        return Ok(0);
    };
    if lost_policies(pin, cgroup).is_empty() {
        return Ok(0);
    }
    // A policy that another process applies is attached before it is pinned.
    let lock = system::has_pins(system::existing_part(pin))
        .then(|| Locked::create(&pin.join(policy::DIRECTORY)).ok())
        .flatten();
    let lost = lost_policies(pin, cgroup);
    let detached = lost.iter().try_for_each(|link| {
        detach_link(*link).with_context(|| format!("a policy without a pin (link {link})"))
    });
    if let Some(lock) = lock {
        lock.remove_if_empty(pin);
    }
    detached.map(|()| lost.len())
}

/// Numbers of the links of policies on a cgroup that no pin keeps and that are no other agent's, and of
/// those that mark sockets of other cgroups for them.
fn lost_policies(pin: &Path, cgroup: u64) -> Vec<u32> {
    let mut directories = pin_directories();
    directories.insert(pin.to_owned());
    let pinned = |directory: &PathBuf| {
        let link = links::open_link(&directory.join(policy::DIRECTORY).join("link")).ok()??;
        Some(link.info().ok()?.id)
    };
    let pinned: BTreeSet<u32> = directories.iter().filter_map(pinned).collect();
    let all: Vec<LinkInfo> = all_links();
    let names = privileges::with_raised(program_names);
    let is_named =
        |link: &LinkInfo, name: &str| names.get(&link.prog_id).is_some_and(|it| it == name);
    let own = own_maps(pin);
    let is_unclaimed = unclaimed_beside(&own);
    let is_lost = |link: &LinkInfo| {
        let is_on = matches!(&link.info, LinkTypeInfo::Cgroup(on) if on.cgroup_id == cgroup);
        is_on && is_named(link, POLICY_SOCKOPS) && !pinned.contains(&link.id) && is_unclaimed(link)
    };
    let lost: Vec<&LinkInfo> = all.iter().filter(|link| is_lost(link)).collect();
    let maps = lost.iter().filter_map(|link| map_ids_of(link.prog_id));
    let maps: BTreeSet<u32> = maps.flatten().collect();
    let marks_for = |link: &LinkInfo| {
        let used = || map_ids_of(link.prog_id).unwrap_or_default();
        is_named(link, POLICY_MARK) && used().iter().any(|id| maps.contains(id))
    };
    let marking = all.iter().filter(|link| marks_for(link));
    lost.iter()
        .copied()
        .chain(marking)
        .map(|link| link.id)
        .collect()
}

/// Something of Thalweg's in the kernel that is not the agent's.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OtherPin {
    /// The kind, and its name where there may be several.
    pub what: String,
    /// The command that removes it.
    pub command: String,
}

/// Lists pins beside the agent's own: policies, congestion controls, sockops objects, other agents.
pub fn other_pins(pin: &Path) -> Vec<OtherPin> {
    let mut others = Vec::new();
    let directories: BTreeSet<PathBuf> = pinned_links().into_values().collect();
    let own = pin.canonicalize();
    for directory in directories {
        if own.as_ref().ok() != directory.canonicalize().ok().as_ref() {
            others.push(OtherPin {
                what: format!(
                    "the programs of another agent, whose `paths.pin` is {}",
                    directory.display()
                ),
                command: "thalweg --config FILE detach".to_owned(),
            });
        }
    }
    if !system::has_pins(pin) {
        return others;
    }
    let policies = pin.join(policy::DIRECTORY);
    let names = pins::directory_entries(&policies).unwrap_or_default();
    if !names.is_empty() {
        let what = match names.iter().any(|name| name == "link") {
            true => "a policy",
            false => "what an interrupted command has left of a policy",
        };
        others.push(OtherPin {
            what: what.to_owned(),
            command: "thalweg policy remove".to_owned(),
        });
    }
    for (directory, what, command) in [
        (cc::DIRECTORY, "the congestion control", "thalweg cc unload"),
        (
            sockops::DIRECTORY,
            "the sockops object",
            "thalweg sockops unload",
        ),
    ] {
        let mut names = pins::directory_entries(&pin.join(directory)).unwrap_or_default();
        names.sort();
        others.extend(names.into_iter().map(|name| OtherPin {
            what: format!("{what} {name}"),
            command: format!("{command} {name}"),
        }));
    }
    others
}

/// Whether a pinned object is the learner's: a link or a program with one of its names, or a map
/// that one of `programs` uses.
pub fn is_learners(path: &Path, maps: &BTreeSet<u32>) -> bool {
    if let Some(id) = pinned_map(path) {
        return maps.contains(&id);
    }
    if let Ok(program) = ProgramHandle::from_pinned_path(path) {
        return is_own_name(&program.name().to_string_lossy());
    }
    let link = Link::open(path).and_then(|link| link.info());
    let name = link.ok().and_then(|info| name_of(info.prog_id));
    name.is_some_and(|name| is_own_name(&name))
}
