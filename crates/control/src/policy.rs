//! Policies in the kernel: applied, watched, removed; with or without a running agent.
//!
//! All pins are in the directory `policy` below the agent's: the link, the maps that all policies
//! share, and a directory for the policy in force. That directory has the policy's number and its
//! own maps. A new policy is loaded beside the old one and replaces it in the link in one step. A
//! fault before that step leaves the old one unchanged.

mod events;
mod existing;
mod health;
pub mod history;
mod marks;
mod pins;
mod report;
mod tables;
#[cfg(test)]
mod tests;
mod trials;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, Program};
use thalweg_bpf_objects::names::policy::{maps, programs};
use thalweg_bpf_types::{bytes_of, raw};
use thalweg_policy::{Compiled, Namespace, NamespaceUse, VOID_COOKIE};

pub use events::{FlowStatistics, watch_statistics};
pub use existing::VisitedConnections;
pub use health::{find_problems, put_back};
pub use report::{ExistingReport, Failure, FailureLog, Missed, Report, RuleReport};
pub use trials::{Outcomes, TrialRule, Trials};

use existing::ExistingIterator;
use history::History;
use marks::Marks;

use crate::error::{Context, Result};
use crate::pins::{Locked, create_directory, remove_file};
use crate::{learner, links, memory, object, privileges, system};
pub use pins::DIRECTORY;
use pins::{HEAD, PROGRAM, Pins, RunningPolicy};
use tables::Tables;

/// Maps that all policies share. `owned` is also the learner's, and is beside its pins.
const SHARED: [&str; 8] = [
    maps::CAPS,
    maps::TEXTS,
    maps::FAILURES,
    maps::HANDSHAKES,
    maps::FLOWS,
    maps::EVENTS,
    maps::TRIALS,
    maps::OUTCOMES,
];
/// Maps of one policy, pinned by their names: for `policy show`, and for inspection.
const OWN: [&str; 10] = [
    maps::ARM_SETS,
    maps::COUNTERS,
    maps::MISSED,
    maps::NODES,
    maps::RULES,
    maps::ACTIONS,
    maps::PREFIXES4,
    maps::PREFIXES6,
    maps::MARKS,
    maps::SWAP,
];

/// The stage for which a policy remembers flows of both directions from their start.
const ASKED: u32 = 1 << raw::THALWEG_STAGE_ASKED;

/// Paths for applying policies.
#[derive(Clone, Debug)]
pub struct PolicyPaths {
    /// The agent's directory of pins, on a bpffs.
    pub pin: PathBuf,
    /// cgroup v2 directory whose sockets are covered.
    pub cgroup: PathBuf,
}

/// Result of applying a policy.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// Notes for the operator, such as namespaces that do not exist.
    pub notes: Vec<String>,
    /// Kernel memory of its maps and of the shared maps, bytes.
    pub map_bytes: u64,
    /// Outcome for connections that were already open, if requested.
    pub reached: Option<VisitedConnections>,
}

/// Options for applying a policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApplyOptions {
    /// Matches are counted, and nothing is set.
    pub dry_run: bool,
    /// Already open connections are covered, too.
    pub existing: bool,
}

/// A policy that is loaded and ready for [`Prepared::commit`].
pub struct Prepared {
    pins: Pins,
    place: PolicyPaths,
    generation: u32,
    head: raw::thalweg_policy_head,
    marks: Marks,
    object: Object,
    applied: Applied,
}

impl PolicyPaths {
    /// Loads a policy beside the one in force. `generation` is its number, not used before.
    ///
    /// # Errors
    /// Missing privileges, a full table, a refusal of the kernel. Nothing is changed.
    pub fn prepare(
        &self,
        mut compiled: Compiled,
        generation: u32,
        dry_run: bool,
    ) -> Result<Prepared> {
        system::check_cgroup2(&self.cgroup)?;
        if !Pins::at(&self.pin).link_path().exists() {
            // The learner will have to move behind it: missing privileges show before anything
            // changes.
            learner::attached_learner(&self.pin, &self.cgroup()?)?;
        }
        let pins = Pins::create(&self.pin)?;
        create_directory(&pins.shared_directory(), true)?;
        let mut notes: Vec<String> = compiled
            .resolve_namespaces(|namespace| cookie_of(namespace).ok())
            .into_iter()
            .map(|namespace| {
                format!("network namespace {namespace} does not exist: its rules match nothing until it does and an agent that runs sees it")
            })
            .collect();
        let marks = Marks::find_cgroups(&self.cgroup, &compiled.cgroups, &mut notes)?;
        let tables = Tables::new(&compiled, dry_run);
        let previous = pins.running_policy()?.and_then(|running| running.head);
        let mut flags = tables.flags;
        if previous.is_some_and(|head| head.flags & raw::THALWEG_POLICY_REMEMBERS != 0) {
            flags |= raw::THALWEG_POLICY_REMEMBERS;
        }
        if !compiled.cgroups.is_empty() {
            flags |= raw::THALWEG_POLICY_CGROUPS;
        }
        let head = raw::thalweg_policy_head {
            generation,
            stages: tables.stages,
            flags,
            jiffy_us: system::jiffy_us(),
            cgroups: marks.everywhere,
            version: raw::THALWEG_POLICY_VERSION,
        };
        let object = load(&pins, &tables, &head)?;
        tables.fill_maps(&object, generation)?;
        let applied = Applied {
            notes,
            ..Applied::default()
        };
        let arm_sets = object::find_map(&object, maps::ARM_SETS)?;
        // Without a learner they have no meaning; the agent writes them when it starts.
        if let Ok(arms) = learner::arm_names(&self.pin) {
            let number = |name: &str| arms.iter().position(|arm| arm == name);
            write_arm_sets(&arm_sets, &compiled.arm_sets, number)?;
        }
        // Marks are in maps of this policy only. Its own programs and its predecessor's may run
        // side by side on cgroups until the swap.
        pins.start_generation(generation)?;
        let prepared = Prepared {
            pins,
            place: self.clone(),
            generation,
            head,
            marks,
            object,
            applied,
        };
        prepared.pin_own().inspect_err(|_| prepared.abandon())?;
        fail_point!("policy::prepared");
        Ok(prepared)
    }

    /// Loads a policy and puts it in force. The caller holds the lock.
    fn apply(&self, compiled: Compiled, generation: u32, how: ApplyOptions) -> Result<Applied> {
        let prepared = self.prepare(compiled, generation, how.dry_run)?;
        if !how.existing {
            return prepared.commit();
        }
        // A missing kernel feature shows before anything changes.
        let existing = ExistingIterator::load(&prepared).inspect_err(|_| prepared.abandon())?;
        let mut applied = prepared.commit()?;
        applied.reached = Some(existing.visit_connections());
        Ok(applied)
    }

    fn cgroup(&self) -> Result<File> {
        links::open_cgroup(&self.cgroup)
    }

    /// Moves the learner's program behind the policy's. The policy's settings and protected flows
    /// must be known before the learner runs.
    fn put_before_learner(&self) -> Result<()> {
        let cgroup = self.cgroup()?;
        if learner::runs_before_learner(&self.pin, &Pins::at(&self.pin).link_path(), &cgroup)? {
            return Ok(());
        }
        learner::learn_after_policy(&self.pin, &cgroup)
    }
}

impl Prepared {
    /// Puts the policy in force, replacing another. A later call returns to it.
    ///
    /// # Errors
    /// A refusal of the kernel; the policy that was in force stays, and nothing of this one.
    pub fn commit(&self) -> Result<Applied> {
        self.put_in_force().inspect_err(|_| {
            // What could not be undone needs its pins.
            if !matches!(in_force(&self.place.pin), Ok(Some(it)) if it == self.generation) {
                self.abandon();
            }
        })?;
        fail_point!("policy::swapped");
        let mut applied = self.applied.clone();
        let kept = self.pins.keep_only(RunningPolicy {
            generation: self.generation,
            head: Some(self.head),
        });
        if let Err(error) = kept {
            let note =
                format!("of the policy before, pins are left, until the next one: {error:#}");
            applied.notes.push(note);
        }
        applied.map_bytes = self.pins.memory_bytes();
        Ok(applied)
    }

    /// Has the cgroup run the policy's program, before the learner's.
    fn put_in_force(&self) -> Result<()> {
        let path = self.pins.link_path();
        let cgroup = self.place.cgroup()?;
        let mut program = object::find_program(&self.object, programs::POLICY_SOCKOPS)?;
        self.tell_what_began_before()?;
        let id = links::cgroup_id(&cgroup)?;
        let former = links::open_link(&path)?;
        match former {
            Some(mut link) if links::attached_to(&link)? == Some(id) => {
                let before = self.pins.running_policy()?.map(|it| it.generation);
                let before = before.map(|it| self.pins.generation_path(it).join(PROGRAM));
                let before = before.map(Program::fd_from_pinned_path);
                link.update_prog(&program)
                    .with_context(|| format!("swapping the program of {}", path.display()))?;
                fail_point!("policy::linked");
                self.place.put_before_learner().inspect_err(|_| {
                    // Only the first error matters.
                    if let Some(Ok(before)) = before {
                        let _ = links::update_link(link.as_fd(), before.as_fd());
                    }
                })
            }
            // The link of another cgroup has the pin until this one takes it.
            former => {
                let link = links::attach_program(&mut program, &cgroup)?;
                match &former {
                    Some(_) => links::pin_over(link.as_fd(), &path)?,
                    // In one step: a link that only `beside` keeps would be nobody's.
                    None => links::pin_object(link.as_fd(), &path)?,
                }
                fail_point!("policy::linked");
                let behind = self.place.put_before_learner();
                match (&behind, former) {
                    // Without a pin it ends with its last descriptor anyway.
                    (Ok(()), former) => drop(former.map(|former| former.detach())),
                    (Err(_), former) => {
                        let _ = match &former {
                            Some(former) => links::pin_over(former.as_fd(), &path),
                            None => remove_file(&path),
                        };
                        let _ = link.detach();
                    }
                }
                behind
            }
        }
    }

    /// Writes the time before which flows without a record started under an earlier policy.
    fn tell_what_began_before(&self) -> Result<()> {
        let key = 0u32.to_ne_bytes();
        let until_ns = match self.pins.running_policy()?.and_then(|running| running.head) {
            // It remembers flows that started under it, in both directions; perhaps not yet earlier
            // ones.
            Some(head) if head.stages & ASKED != 0 => {
                let swap = self.pins.open_map(head.generation, maps::SWAP)?;
                let until_ns = swap.lookup(&key, MapFlags::ANY)?;
                until_ns.context("the map of the last swap is empty")?
            }
            _ => {
                let until_ns = system::monotonic_ns() + raw::THALWEG_POLICY_HANDSHAKE_NS;
                until_ns.to_ne_bytes().to_vec()
            }
        };
        object::find_map(&self.object, maps::SWAP)?.update(&key, &until_ns, MapFlags::ANY)?;
        Ok(())
    }

    /// Removes the pins of a policy that was never in force.
    fn abandon(&self) {
        // Only the first error matters.
        let _ = self.pins.remove_generation(self.generation);
    }

    fn pin_own(&self) -> Result<()> {
        let directory = self.pins.generation_path(self.generation);
        let named = OWN.map(|name| (name, name));
        for (name, file) in named.into_iter().chain([(maps::RODATA_HEAD, HEAD)]) {
            let map = object::find_map(&self.object, name)?;
            links::pin_object(map.as_fd(), &directory.join(file))?;
            fail_point!("policy::map");
        }
        let program = object::find_program(&self.object, programs::POLICY_SOCKOPS)?;
        links::pin_object(program.as_fd(), &directory.join(PROGRAM))?;
        let shared = object::find_map(&self.object, maps::MARKS)?;
        self.marks
            .attach_programs(shared.as_fd(), &directory)
            .map(drop)
    }
}

/// Writes the numbers of its sets' arms to the policy in force.
///
/// # Errors
/// Pins that cannot be read or written.
pub fn refresh_arm_sets(
    pin: &Path,
    history: &History,
    number: impl Fn(&str) -> Option<usize>,
) -> Result<()> {
    let pins = Pins::at(pin);
    let tables = history.running_tables(&pins)?;
    let Some((head, compiled)) = tables.filter(|(_, it)| !it.arm_sets.is_empty()) else {
        return Ok(());
    };
    let map = pins.open_map(head.generation, maps::ARM_SETS)?;
    write_arm_sets(&map, &compiled.arm_sets, number)
}

/// Whether rules of a policy name cgroups.
fn names_cgroups(head: &raw::thalweg_policy_head) -> bool {
    head.flags & raw::THALWEG_POLICY_CGROUPS != 0
}

/// Attaches the policy in force to cgroups that its rules name and that were created since it was
/// applied; returns their directories. Containers are looked up again.
///
/// # Errors
/// Pins or cgroups that cannot be read, a refusal of the kernel.
pub fn refresh_cgroups(place: &PolicyPaths, history: &History) -> Result<Vec<PathBuf>> {
    history.recover(place)?;
    let pins = Pins::at(&place.pin);
    let tables = || -> Result<_> {
        let tables = history.running_tables(&pins)?;
        Ok(tables.filter(|(head, _)| names_cgroups(head)))
    };
    if tables()?.is_none() {
        return Ok(Vec::new());
    }
    let _lock = Pins::lock(&place.pin)?;
    // The policy may have been replaced meanwhile.
    let Some((head, compiled)) = tables()? else {
        return Ok(Vec::new());
    };
    let marks = Marks::find_cgroups(&place.cgroup, &compiled.cgroups, &mut Vec::new())?;
    let directory = pins.generation_path(head.generation);
    let shared = pins.open_map(head.generation, maps::MARKS)?;
    marks.attach_programs(shared.as_fd(), &directory)
}

/// Gives rules of the policy in force the cookies that their network namespaces have now: one may
/// come later, or be made anew. Returns those whose rules have changed.
///
/// # Errors
/// Pins or namespaces that cannot be read, a refusal of the kernel.
pub fn refresh_namespaces(place: &PolicyPaths, history: &History) -> Result<Vec<Namespace>> {
    let pins = Pins::at(&place.pin);
    let tables = history.running_tables(&pins)?;
    let Some((head, compiled)) = tables.filter(|(_, it)| !it.netns.is_empty()) else {
        return Ok(Vec::new());
    };
    let _lock = Pins::lock(&place.pin)?;
    let own = pins.generation_path(head.generation);
    if !own.exists() {
        // The policy was replaced meanwhile.
        return Ok(Vec::new());
    }
    let mut changed = Vec::new();
    for (used, cookie) in outdated(&own, &compiled)?
        .into_iter()
        .filter_map(Result::ok)
    {
        let rules = MapHandle::from_pinned_path(own.join(maps::RULES))?;
        for &rule in &used.rules {
            let rule = rule as u32;
            let mut entry = trials::read_rule(&rules, rule)?;
            entry.netns = cookie;
            rules
                .update(&rule.to_ne_bytes(), bytes_of(&entry), MapFlags::ANY)
                .with_context(|| format!("network namespace {}", used.namespace))?;
        }
        changed.push(used.namespace.clone());
    }
    Ok(changed)
}

/// A network namespace that rules name, and its cookie; or why that is not known.
type Named<'a> = Result<(&'a NamespaceUse, u64)>;

/// Network namespaces whose rules have another cookie in the kernel than they should. A name that is not
/// there, or that this process does not see, changes nothing: no other namespace gets the cookie of one
/// that has ended.
fn outdated<'a>(own: &Path, compiled: &'a Compiled) -> Result<Vec<Named<'a>>> {
    let rules = MapHandle::from_pinned_path(own.join(maps::RULES))?;
    let mut outdated = Vec::new();
    for used in &compiled.netns {
        let cookie = match cookie_of(&used.namespace) {
            Ok(cookie) => cookie,
            Err(error) if error.is_absent() => continue,
            // Whoever applied the policy may have been allowed to look.
            Err(error) => {
                let rule = used.rules.first().copied().unwrap_or_default();
                if trials::read_rule(&rules, rule as u32)?.netns == used.placeholder {
                    let error = error.context(format!("network namespace {}", used.namespace));
                    outdated.push(Err(error));
                }
                continue;
            }
        };
        for &rule in &used.rules {
            if trials::read_rule(&rules, rule as u32)?.netns != cookie {
                outdated.push(Ok((used, cookie)));
                break;
            }
        }
    }
    Ok(outdated)
}

/// Cookies by which rules of the policy in force name network namespaces, where they are void: those
/// rules match nothing.
fn void_cookies(own: &Path, compiled: &Compiled) -> Result<BTreeSet<u64>> {
    // Either all are void or none is.
    let Some(&rule) = compiled.by_cookie.first() else {
        return Ok(BTreeSet::new());
    };
    let rules = MapHandle::from_pinned_path(own.join(maps::RULES))?;
    match trials::read_rule(&rules, rule as u32)?.netns {
        VOID_COOKIE => Ok(compiled.netns_cookies()),
        _ => Ok(BTreeSet::new()),
    }
}

/// A sentence on void cookies of network namespaces, with what to do; `None` without any.
fn void_in_words(cookies: &BTreeSet<u64>) -> Option<String> {
    if cookies.is_empty() {
        return None;
    }
    let cookies: Vec<String> = cookies.iter().map(u64::to_string).collect();
    Some(format!(
        "rules with match.netns = {} match nothing: a network namespace has its cookie until the \
         machine restarts, and these are not known to be of this boot. Write its name, its path or \
         its present cookie, and apply the policy again",
        cookies.join(", ")
    ))
}

/// Masks by number of the set, from 1. `number` gives an arm's number; arms that the learner lacks
/// are left out.
fn write_arm_sets(
    map: &MapHandle,
    sets: &[Vec<String>],
    number: impl Fn(&str) -> Option<usize>,
) -> Result<()> {
    for (index, set) in (1u32..).zip(sets) {
        let mask = set
            .iter()
            .filter_map(|name| number(name))
            .fold(0u32, |mask, arm| mask | 1 << arm);
        map.update(&index.to_ne_bytes(), &mask.to_ne_bytes(), MapFlags::ANY)
            .context("writing the sets of arms")?;
    }
    Ok(())
}

/// Loads the program. With kernel BTF it knows for how long a flow had data outstanding; where the
/// kernel refuses that variant, the other is loaded.
fn load(pins: &Pins, tables: &Tables, head: &raw::thalweg_policy_head) -> Result<Object> {
    if system::has_kernel_btf() {
        let variant = thalweg_bpf_objects::POLICY_BTF;
        let loaded = object::with_libbpf_log(|| load_variant(variant, pins, tables, head));
        match &loaded {
            Err(error) if !memory::is_passing(error) => {}
            _ => return loaded,
        }
    }
    load_variant(thalweg_bpf_objects::POLICY, pins, tables, head)
}

fn load_variant(
    variant: thalweg_bpf_objects::Packed,
    pins: &Pins,
    tables: &Tables,
    head: &raw::thalweg_policy_head,
) -> Result<Object> {
    let mut object = object::open_object("thalweg_policy", variant)?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            maps::RODATA_HEAD => map.set_initial_value(bytes_of(head))?,
            maps::OWNED => map.set_pin_path(pins.owned_path())?,
            shared if SHARED.contains(&shared) => map.set_pin_path(pins.shared_map_path(shared))?,
            _ => {
                if let Some(entries) = tables.map_entries(&name) {
                    map.set_max_entries(entries)?;
                }
            }
        }
    }
    memory::check_available(&object, |_| false)
        .context("the policy is not applied: it has too many rules, prefixes or settings")?;
    object
        .load()
        .context("the kernel refused the policy's program (see the lines above)")
}

/// Number of the kernel's policy; `None` if there is none.
fn in_force(pin: &Path) -> Result<Option<u32>> {
    Ok(Pins::at(pin)
        .running_policy()?
        .map(|running| running.generation))
}

/// Removes the policy from the kernel; false if there was none. Connections keep their settings.
///
/// # Errors
/// Pins that cannot be removed.
pub fn remove(pin: &Path) -> Result<bool> {
    let pins = Pins::at(pin);
    if !pins.exists() {
        return Ok(false);
    }
    let _lock = Pins::lock(pin)?;
    pins.remove_all()
}

/// Kernel memory of the shared maps and of those in force, bytes.
fn memory(maps: impl Iterator<Item = MapHandle>) -> u64 {
    maps.filter_map(|map| map.query_fdinfo().ok()?.memlock)
        .sum()
}

/// Locks the pins of policies, if one has ever been applied.
///
/// # Errors
/// A directory that cannot be locked.
pub fn lock_existing(pin: &Path) -> Result<Option<Locked>> {
    if !Pins::at(pin).exists() {
        return Ok(None);
    }
    Pins::lock(pin).map(Some)
}

/// The cookie of a network namespace.
fn cookie_of(namespace: &Namespace) -> Result<u64> {
    let path = match namespace {
        Namespace::Cookie(cookie) => return Ok(*cookie),
        Namespace::Name(name) => Path::new("/run/netns").join(name),
        Namespace::Path(path) => PathBuf::from(path),
    };
    privileges::with_raised(|| system::netns_cookie_of(&path))
}
