//! The policy in force as it is now, compared with the one that was applied; and its return after
//! somebody took pins or the cgroup away.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libbpf_rs::libbpf_sys::BPF_CGROUP_SOCK_OPS;
use libbpf_rs::{Link, MapCore, MapHandle, Program};
use thalweg_bpf_objects::names::policy::{maps, programs};
use thalweg_policy::Compiled;

use super::history::{History, Outcome};
use super::marks::Marks;
use super::pins::{HEAD, PROGRAM, Pins};
use super::{OWN, PolicyPaths, SHARED};
use crate::attempts::confirm_faults;
use crate::error::{Context, Error, Result, bail};
use crate::links::{Attachment, LinkProblem};
use crate::{kernel_objects, links, pins, privileges};

/// A pin of a map: its path, and the map's name in the object.
type MapPin = (PathBuf, &'static str);

/// A policy whose link is pinned.
struct Linked {
    number: u32,
    name: String,
    /// The program that the link runs.
    runs: u32,
    /// The pinned program, which the link should run.
    pinned: Option<u32>,
}

/// Differences between the policy in force and what was applied, a sentence each; none where no
/// policy is to be in force.
///
/// # Errors
/// Files of the history that cannot be read.
pub fn find_problems(place: &PolicyPaths, history: &History) -> Result<Vec<String>> {
    confirm_faults(|| compare_state(place, history))
}

fn compare_state(place: &PolicyPaths, history: &History) -> Result<Vec<String>> {
    let pins = Pins::at(&place.pin);
    let path = pins.link_path();
    let shown = path.display();
    if fs::symlink_metadata(&path).is_err() {
        let wanted = history.still_wanted(&pins)?;
        let gone = wanted.map(|number| match history.read_entry(number) {
            Ok(it) => format!(
                "policy {} is not in force: its pin {shown} is gone",
                it.name
            ),
            Err(error) => format!("policy number {number} is not in force: {error:#}"),
        });
        return Ok(gone.into_iter().collect());
    }
    let Ok(link) = Link::open(&path) else {
        return Ok(vec![format!(
            "{shown} is no link of a policy, and is left as it is"
        )]);
    };
    let linked = Linked::read(&pins, &link, history)?;
    let name = &linked.name;
    let mut faults = Vec::new();
    if let Ok(cgroup) = place.cgroup() {
        let program = pins.generation_path(linked.number).join(PROGRAM);
        let program = Program::fd_from_pinned_path(program);
        let id = linked.pinned.unwrap_or(linked.runs);
        let attachment = Attachment {
            name: "its program",
            program: program.as_ref().map_or(link.as_fd(), AsFd::as_fd),
            id,
            hook: BPF_CGROUP_SOCK_OPS,
            pin: &path,
        };
        match attachment.find_problem(&cgroup)? {
            None => {}
            Some(LinkProblem::Detached(why)) => {
                faults.push(format!("policy {name} is not in force: {why}"))
            }
            Some(LinkProblem::Unpinned(why)) => faults.push(format!("policy {name}: {why}")),
        }
    } else {
        faults.push(format!(
            "policy {name} is not in force: the cgroup {} is gone",
            place.cgroup.display()
        ));
    }
    let names = |pins: Vec<MapPin>| pins.iter().map(|pin| pin.1).collect::<Vec<&str>>();
    let mut gone = names(missing_pins(&pins, &linked));
    // Another version of Thalweg may pin under other names.
    if linked.pinned.is_none() && linked.number != 0 {
        gone.push(PROGRAM);
    }
    let replaced = names(replaced_pins(&pins, &linked));
    let below = place.pin.join(super::DIRECTORY);
    for (found, what) in [
        (gone, "are gone"),
        (replaced, "are other maps than those of its program"),
    ] {
        if !found.is_empty() {
            faults.push(format!(
                "policy {name}: pins below {} {what}: {}",
                below.display(),
                found.join(", ")
            ));
        }
    }
    let unfollowed = match read_tables(&linked, history)? {
        None => Vec::new(),
        Some(Err(why)) => vec![why],
        Some(Ok(compiled)) => {
            unknown_names(place, &pins.generation_path(linked.number), &compiled)?
        }
    };
    faults.extend(
        unfollowed
            .iter()
            .map(|fault| format!("policy {name}: {fault}")),
    );
    Ok(faults)
}

/// The tables of a policy, or why there are none, a sentence; `None`: another version of Thalweg has
/// pinned it.
fn read_tables(
    linked: &Linked,
    history: &History,
) -> Result<Option<Result<Arc<Compiled>, String>>> {
    let number = linked.number;
    let compiled = match history.read_entry(number) {
        Err(_) if number == 0 => return Ok(None),
        Err(_) if history.wanted_number()? != Some(number) => {
            return Ok(Some(Err(
                "this state directory does not keep it: it does not come back after a restart, nor \
                 follows what its rules name; apply it again or remove it"
                    .to_owned(),
            )));
        }
        Err(error) => Err(error),
        Ok(_) => history.compile_entry(number),
    };
    Ok(Some(compiled.map_err(|error| {
        format!(
            "its file cannot be used, and what its rules name is not looked after until it is \
             applied again: {error:#}"
        )
    })))
}

/// cgroups and network namespaces that rules name and that the kernel's policy does not know, and
/// cookies of another boot, a sentence each.
fn unknown_names(place: &PolicyPaths, own: &Path, compiled: &Compiled) -> Result<Vec<String>> {
    let Ok(Some(head)) = super::pins::read_head(&own.join(HEAD)) else {
        return Ok(Vec::new());
    };
    let mut faults = Vec::new();
    if super::names_cgroups(&head) {
        let marks = Marks::find_cgroups(&place.cgroup, &compiled.cgroups, &mut Vec::new())?;
        if marks.everywhere != head.cgroups {
            faults.push(
                "its rules name cgroups, and it was applied for another cgroup of the agent"
                    .to_owned(),
            );
        }
        faults.extend(marks.unmarked_cgroups(own));
    }
    // Their pin is missed elsewhere.
    if own.join(maps::RULES).exists() {
        let outdated = super::outdated(own, compiled)?.into_iter();
        faults.extend(outdated.map(|found| match found {
            Ok((used, _)) => format!(
                "connections of network namespace {}, which has come, do not get their rules",
                used.namespace
            ),
            Err(error) => format!("{error:#}"),
        }));
        faults.extend(super::void_in_words(&super::void_cookies(own, compiled)?));
    }
    Ok(faults)
}

/// Whether rules of the policy in force name cgroups, and were applied for another cgroup of the agent.
fn is_for_other_cgroup(place: &PolicyPaths, history: &History) -> Result<bool> {
    let tables = history.running_tables(&Pins::at(&place.pin))?;
    let Some((head, compiled)) = tables.filter(|(head, _)| super::names_cgroups(head)) else {
        return Ok(false);
    };
    let marks = Marks::find_cgroups(&place.cgroup, &compiled.cgroups, &mut Vec::new())?;
    Ok(marks.everywhere != head.cgroups)
}

impl Linked {
    fn read(pins: &Pins, link: &Link, history: &History) -> Result<Self> {
        let runs = link.info()?.prog_id;
        let pinned = |number: u32| {
            let fd =
                Program::fd_from_pinned_path(pins.generation_path(number).join(PROGRAM)).ok()?;
            Program::id_from_fd(fd.as_fd()).ok()
        };
        // Where pins are gone, the history says its number.
        let running = pins.running_policy().ok().flatten();
        let number = match running.filter(|it| it.generation != 0) {
            Some(running) => running.generation,
            None => history
                .wanted_number()?
                .filter(|number| history.read_entry(*number).is_ok())
                .unwrap_or(0),
        };
        Ok(Self {
            number,
            name: history
                .read_entry(number)
                .map_or_else(|_| format!("number {number}"), |entry| entry.name),
            runs,
            pinned: pinned(number),
        })
    }
}

/// Pins of the maps of a policy and of the shared ones; none of a policy that another version of Thalweg
/// has pinned.
fn map_pins(pins: &Pins, linked: &Linked) -> Vec<MapPin> {
    let own = pins.generation_path(linked.number);
    let has_other_head = || matches!(super::pins::read_head(&own.join(HEAD)), Ok(None));
    // Another map may have the pin of a head of this version.
    if linked.number == 0 || has_other_head() && !runs_this_version(linked) {
        return Vec::new();
    }
    let head = (own.join(HEAD), maps::RODATA_HEAD);
    let own = OWN.iter().map(|name| (own.join(name), *name));
    let shared = SHARED
        .iter()
        .map(|name| (pins.shared_map_path(name), *name));
    own.chain([head]).chain(shared).collect()
}

/// Whether the head among the maps of the policy's program has this version.
fn runs_this_version(linked: &Linked) -> bool {
    let used = maps_of(linked.pinned.unwrap_or(linked.runs));
    let head = find_map(&used, maps::RODATA_HEAD).map(super::pins::head_of);
    matches!(head, Some(Ok(Some(_))))
}

/// Pins of maps that are gone.
fn missing_pins(pins: &Pins, linked: &Linked) -> Vec<MapPin> {
    let mut all = map_pins(pins, linked);
    all.retain(|(path, _)| fs::symlink_metadata(path).is_err());
    all
}

/// Pins that are there and are other maps than those of the policy's program.
fn replaced_pins(pins: &Pins, linked: &Linked) -> Vec<MapPin> {
    let used = maps_of(linked.pinned.unwrap_or(linked.runs));
    let id_of = |map: &MapHandle| kernel_objects::map_id(map.as_fd());
    let mut all = map_pins(pins, linked);
    all.retain(|(path, name)| {
        let own = find_map(&used, name).and_then(id_of);
        let pinned = MapHandle::from_pinned_path(path).ok();
        let pinned = pinned.as_ref().and_then(id_of);
        own.is_some() && own != pinned && fs::symlink_metadata(path).is_ok()
    });
    all
}

/// Puts back what [`find_problems`] finds: attaches the policy to the cgroup, pins what is in the kernel, or
/// applies the policy again. Returns in words what was done.
///
/// # Errors
/// The kernel's, and files that cannot be read.
pub fn put_back(place: &PolicyPaths, history: &History) -> Result<Vec<String>> {
    if !place.cgroup.is_dir() || find_problems(place, history)?.is_empty() {
        return Ok(Vec::new());
    }
    // A removed policy is not attached again.
    history.recover(place)?;
    let pins = Pins::at(&place.pin);
    let said = |it: Outcome| {
        let mut words = vec![format!("applied again: policy {}", it.entry.name)];
        words.extend(it.applied.notes);
        vec![words.join("; ")]
    };
    if is_for_other_cgroup(place, history)? {
        // The meaning of the rules is among the program's constants.
        return history.reapply(place).map(said);
    }
    if fs::symlink_metadata(pins.link_path()).is_err() {
        return Ok(history.restore(place)?.map(said).unwrap_or_default());
    }
    let lock = Pins::lock(&place.pin)?;
    // Another process may have done it meanwhile.
    let link = links::open_link(&pins.link_path())?
        .ok_or_else(|| Error::NotFound("the policy was removed".to_owned()))?;
    let linked = Linked::read(&pins, &link, history)?;
    let mut done = pin_again(&pins, &linked)?;
    let program = Program::fd_from_pinned_path(pins.generation_path(linked.number).join(PROGRAM))?;
    let cgroup = place.cgroup()?;
    let path = pins.link_path();
    let attachment = Attachment {
        name: programs::POLICY_SOCKOPS,
        id: Program::id_from_fd(program.as_fd())?,
        program: program.as_fd(),
        hook: BPF_CGROUP_SOCK_OPS,
        pin: &path,
    };
    if attachment.find_problem(&cgroup)?.is_some() {
        drop(link);
        attachment.put_back(&cgroup)?;
        done.push(format!("attached again: policy {}", linked.name));
    }
    place.put_before_learner()?;
    drop(lock);
    super::refresh_namespaces(place, history)?;
    let marked = super::refresh_cgroups(place, history)?.into_iter();
    done.extend(marked.map(|cgroup| format!("marked again: cgroup {}", cgroup.display())));
    Ok(done)
}

/// Pins the program and the maps of the policy that the link runs, where pins are gone.
fn pin_again(pins: &Pins, linked: &Linked) -> Result<Vec<String>> {
    let mut gone = missing_pins(pins, linked);
    gone.extend(replaced_pins(pins, linked));
    if gone.is_empty() && linked.pinned.is_some() {
        return Ok(Vec::new());
    }
    if linked.pinned.is_some_and(|id| id != linked.runs) {
        bail!(
            Damaged,
            "the link runs another program, whose maps are not those of policy {}",
            linked.name
        );
    }
    let used = maps_of(linked.runs);
    let head = find_map(&used, maps::RODATA_HEAD).context("the policy's head cannot be opened")?;
    let head = super::pins::head_of(head)?.map(|head| head.generation);
    if head != Some(linked.number) {
        bail!(Damaged, "the link runs another policy than {}", linked.name);
    }
    for directory in [pins.generation_path(linked.number), pins.shared_directory()] {
        pins::create_directory(&directory, true)?;
    }
    let mut names = Vec::new();
    for (path, name) in gone {
        let map = find_map(&used, name);
        let map = map
            .with_context(|| format!("the policy's map {name} cannot be opened (CAP_SYS_ADMIN)"))?;
        links::pin_over(map.as_fd(), &path)?;
        names.push(name);
    }
    if linked.pinned.is_none() {
        let program = privileges::with_raised(|| Program::fd_from_id(linked.runs));
        let program = program.context("opening the policy's program (CAP_SYS_ADMIN)")?;
        links::pin_object(
            program.as_fd(),
            &pins.generation_path(linked.number).join(PROGRAM),
        )?;
        names.push(PROGRAM);
    }
    Ok(vec![format!(
        "pinned again: {} of policy {}",
        names.join(", "),
        linked.name
    )])
}

/// A map by its name in the object.
fn find_map<'a>(used: &'a [MapHandle], name: &str) -> Option<&'a MapHandle> {
    let kept = kernel_objects::kept_name(name);
    used.iter()
        .find(|map| map.name() == kept || map.name() == name)
}

/// The maps of a loaded program.
fn maps_of(program: u32) -> Vec<MapHandle> {
    let ids = kernel_objects::map_ids_of(program).unwrap_or_default();
    privileges::with_raised(|| {
        let maps = ids.into_iter().map(MapHandle::from_map_id);
        maps.filter_map(Result::ok).collect()
    })
}
