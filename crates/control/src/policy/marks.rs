//! cgroups that rules name: each has a program that marks its sockets for the main program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, MapHandle};
use thalweg_bpf_objects::names;
use thalweg_policy::{Group, Selector};

use crate::containers::{self, Container};
use crate::error::{Context, Error, Result};
use crate::pins::{directory_entries, remove_file};
use crate::{kernel_objects, links, object, system};

/// Start of the names of their pins.
const PIN: &str = "cgroup_";

/// cgroups named by rules.
#[derive(Default)]
pub(super) struct Marks {
    /// Bits of cgroups that contain all sockets the policy can see.
    pub everywhere: u32,
    /// Bits and directories of the others. Containers that a rule means together share a bit.
    pub named: BTreeSet<(u32, PathBuf)>,
}

impl Marks {
    /// Finds those that exist now; `notes` gets a line for each of the others.
    pub fn find_cgroups(root: &Path, groups: &[Group], notes: &mut Vec<String>) -> Result<Self> {
        let mount = system::cgroup2_mount()?;
        let mut containers = None;
        let mut marks = Self::default();
        for (bit, group) in (0..).zip(groups) {
            match group {
                Group::Path(name) => {
                    let path = mount.join(name.trim_start_matches('/'));
                    marks.add_cgroup(root, bit, path, &format!("cgroup {name}"), notes);
                }
                Group::Containers(selector) => {
                    let all = containers.get_or_insert_with(containers::running_containers);
                    marks.add_containers(root, bit, selector, all, notes);
                }
            }
        }
        Ok(marks)
    }

    fn add_cgroup(
        &mut self,
        root: &Path,
        bit: u32,
        path: PathBuf,
        what: &str,
        notes: &mut Vec<String>,
    ) {
        if root.starts_with(&path) {
            self.everywhere |= 1 << bit;
        } else if !path.starts_with(root) {
            notes.push(format!(
                "{what} is not below {}: its rules match nothing",
                root.display()
            ));
        } else if !path.is_dir() {
            notes.push(format!(
                "{what} does not exist: its rules match nothing until it does and an agent that \
                 runs sees it, or the policy is applied again"
            ));
        } else {
            self.named.insert((bit, path));
        }
    }

    fn add_containers(
        &mut self,
        root: &Path,
        bit: u32,
        selector: &Selector,
        all: &[Container],
        notes: &mut Vec<String>,
    ) {
        let mut meant = all.iter().filter(|one| one.is_meant(selector)).peekable();
        if meant.peek().is_none() {
            notes.push(format!(
                "no container that runs here is {:?}: its rules match nothing until one does and \
                 an agent that runs sees it, or the policy is applied again",
                selector.to_string()
            ));
        }
        for one in meant {
            let Some(cgroup) = &one.cgroup else {
                notes.push(format!(
                    "container {:?} has no cgroup of its own: its rules do not match it",
                    one.name
                ));
                continue;
            };
            let what = format!("container {:?}: its cgroup {cgroup:?}", one.name);
            self.add_cgroup(root, bit, cgroup.clone(), &what, notes);
        }
    }

    /// Cgroups of rules whose sockets are not marked, a sentence each.
    pub fn unmarked_cgroups(&self, directory: &Path) -> Vec<String> {
        let marks = MapHandle::from_pinned_path(directory.join(names::policy::maps::MARKS)).ok();
        let marks = marks.as_ref().map(AsFd::as_fd);
        let mut faults = Vec::new();
        for (bit, cgroup) in &self.named {
            // The container may have ended meanwhile.
            let Ok(id) = links::open_cgroup(cgroup).and_then(|file| links::cgroup_id(&file)) else {
                continue;
            };
            let link = links::open_link(&directory.join(pin_name(*bit, id)));
            let link = link.ok().flatten();
            let link = link.filter(|link| marks.is_none_or(|marks| is_marking(link, marks)));
            let on = link.map(|link| links::attached_to(&link).ok().flatten());
            if on.flatten() != Some(id) && cgroup.is_dir() {
                faults.push(format!(
                    "connections of cgroup {} do not get their rules: no program marks its sockets",
                    cgroup.display()
                ));
            }
        }
        faults
    }

    /// Attaches the programs that are not yet pinned in a policy's directory, and removes those of
    /// cgroups that are gone. Returns the cgroups that are new. A cgroup that refuses keeps no other
    /// away.
    pub fn attach_programs(&self, marks: BorrowedFd<'_>, directory: &Path) -> Result<Vec<PathBuf>> {
        let mut gone = pinned_cgroups(directory)?;
        let (mut new, mut refused) = (Vec::new(), Vec::new());
        for (bit, cgroup) in &self.named {
            let attached = match File::open(cgroup) {
                Ok(file) => attach_program(marks, *bit, &file, directory, &mut gone),
                Err(error) => Err(error.into()),
            };
            match attached {
                Ok(true) => new.push(cgroup.clone()),
                Ok(false) => {}
                // The cgroup has gone meanwhile.
                Err(_) if !cgroup.exists() => {}
                Err(error) => refused.push(format!("attaching to {}: {error:#}", cgroup.display())),
            }
        }
        for path in gone.values() {
            remove_file(path)?;
        }
        match refused.is_empty() {
            true => Ok(new),
            false => Err(Error::Refused(refused.join("; "))),
        }
    }
}

/// Pins of a policy's directory, by name.
fn pinned_cgroups(directory: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut names = directory_entries(directory)?;
    names.retain(|name| name.starts_with(PIN));
    let named = names
        .into_iter()
        .map(|name| (name.clone(), directory.join(name)));
    Ok(named.collect())
}

/// Name of a mark's pin. It has the cgroup's id, which no later cgroup of the same path has.
fn pin_name(bit: u32, id: u64) -> String {
    format!("{PIN}{bit}_{id}")
}

/// Whether a link runs a program that writes to a map of marks. One that may not be looked at counts.
fn is_marking(link: &Link, marks: BorrowedFd<'_>) -> bool {
    let program = link.info().map(|info| info.prog_id).unwrap_or_default();
    let used = kernel_objects::map_ids_of(program);
    match (used, kernel_objects::map_id(marks)) {
        (Some(used), Some(marks)) => used.contains(&marks),
        _ => true,
    }
}

/// Attaches the program that marks a cgroup's sockets, unless it is attached; true if it was not.
fn attach_program(
    marks: BorrowedFd<'_>,
    bit: u32,
    cgroup: &File,
    directory: &Path,
    gone: &mut BTreeMap<String, PathBuf>,
) -> Result<bool> {
    let id = links::cgroup_id(cgroup)?;
    let name = pin_name(bit, id);
    let pin = directory.join(&name);
    let other = match gone.remove(&name) {
        Some(_) => links::open_on(&pin, id)?,
        None => None,
    };
    if other.as_ref().is_some_and(|link| is_marking(link, marks)) {
        return Ok(false);
    }
    let mut object = object::open_object("thalweg_mark", thalweg_bpf_objects::POLICY_MARK)?;
    for mut map in object.maps_mut() {
        match map.name().to_string_lossy().as_ref() {
            names::policy_mark::maps::RODATA_MARK => {
                map.set_initial_value(&(1u32 << bit).to_ne_bytes())?;
            }
            names::policy_mark::maps::MARKS => map.reuse_fd(marks)?,
            _ => {}
        }
    }
    let object = object.load().context("the kernel refused policy_mark")?;
    let mut programs = object.progs_mut();
    let mut program = programs.next().context("the BPF object is empty")?;
    if other.is_some() {
        // Another process gave its link another program.
        remove_file(&pin)?;
    }
    drop(links::attach_and_pin(&mut program, cgroup, &pin)?);
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use super::*;

    #[test]
    fn containers_mark_their_own_cgroup_once_and_no_other() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().to_owned();
        let shared = root.join("shared");
        std::fs::create_dir(&shared).unwrap();
        let container = |cgroup: Option<&PathBuf>| Container {
            id: "0123".to_owned(),
            name: "web".to_owned(),
            pod: None,
            labels: BTreeMap::new(),
            cgroup: cgroup.cloned(),
            pid: std::process::id(),
        };
        let all = [
            container(Some(&shared)),
            container(Some(&shared)),
            container(None),
        ];
        let (mut marks, mut notes) = (Marks::default(), Vec::new());
        let selector = Selector::parse("web").unwrap();
        marks.add_containers(&root, 3, &selector, &all, &mut notes);
        assert_eq!(marks.named, BTreeSet::from([(3, shared)]));
        assert_eq!(marks.everywhere, 0);
        let why = "container \"web\" has no cgroup of its own: its rules do not match it";
        assert_eq!(notes, [why]);
    }
}
