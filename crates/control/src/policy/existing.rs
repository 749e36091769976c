//! Connections that were open before a policy. A TCP iterator visits them once.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use libbpf_rs::{Link, MapCore, MapFlags, Object, OpenObject};
use serde::Serialize;
use thalweg_bpf_objects::names::policy_existing::{maps, programs};
use thalweg_bpf_types::{bytes_of, raw};

use super::Prepared;
use super::pins::Pins;
use crate::error::{Context, Result, bail};
use crate::iterator::SocketVisit;
use crate::{batch, links, object, privileges, system};

/// Flag in the values of map `cgroups`: the policy is attached to this one (policy_existing.bpf.c).
const ATTACHED: u64 = 1 << 32;

/// Numbers of visited connections. Those that got a rule are counted with the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VisitedConnections {
    /// Network namespaces that were visited.
    pub namespaces: u64,
    /// Connections in the cgroup of the policy.
    pub open: u64,
    /// Open connections that match no rule.
    pub unmatched: u64,
    /// Open connections that started after the policy, and got their rule then.
    pub newer: u64,
    /// Connections in other cgroups: not changed.
    pub outside: u64,
    /// Namespaces that could not be visited, and why.
    pub notes: Vec<String>,
}

/// The iterator, loaded with the tables of a policy.
pub(super) struct ExistingIterator {
    object: Object,
    link: Link,
}

impl ExistingIterator {
    /// Loads the iterator for a policy, and pins its counters with those of the policy.
    ///
    /// # Errors
    /// The kernel has no BTF, or refuses the program.
    pub fn load(prepared: &Prepared) -> Result<Self> {
        check_kernel(system::has_kernel_btf())?;
        let mut object =
            object::open_object("thalweg_exist", thalweg_bpf_objects::POLICY_EXISTING)?;
        load_only(&mut object, programs::POLICY_EXISTING);
        let of_policy = |name: &str| object::find_map(&prepared.object, name);
        let rules = of_policy(maps::ACTIONS)?.max_entries();
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            match name.as_str() {
                maps::RODATA_HEAD => map.set_initial_value(bytes_of(&prepared.head))?,
                maps::REACHED => map.set_max_entries(rules)?,
                maps::CGROUPS | maps::PORTS | maps::SEEN | maps::SILENCED => {}
                _ if name.starts_with('.') => {}
                shared => map.reuse_fd(of_policy(shared)?.as_fd())?,
            }
        }
        let object = object.load().context(
            "the kernel refused the iterator of --existing, which needs Linux 5.15 (see the lines \
             above); nothing was changed",
        )?;
        fill_cgroups(&object, prepared)?;
        let reached = object::find_map(&object, maps::REACHED)?;
        let path = prepared.pins.existing_path(prepared.generation);
        links::pin_object(reached.as_fd(), &path)?;
        fail_point!("existing::pinned");
        let program = object::find_program(&object, programs::POLICY_EXISTING)?;
        let link = program.attach().context("making a TCP iterator")?;
        Ok(Self { object, link })
    }

    /// Visits the open connections of all network namespaces. The policy is in force, so later
    /// faults are reported and stop nothing.
    pub fn visit_connections(&self) -> VisitedConnections {
        let mut reached = VisitedConnections::default();
        for (path, visited) in visit_all(self.link.as_fd()) {
            match visited {
                Ok(()) => {
                    reached.namespaces += 1;
                    fail_point!("existing::visited");
                }
                Err(error) => reached.notes.push(format!(
                    "open connections of network namespace {} are not reached: {error:#}",
                    path.display()
                )),
            }
        }
        let counts = object::find_map(&self.object, maps::SEEN).and_then(|map| {
            batch::read_entry::<raw::thalweg_policy_seen>(
                &map,
                0,
                "the counters of open connections",
            )
        });
        match counts {
            Ok(seen) => {
                reached.open = seen.open;
                reached.outside = seen.outside;
                reached.unmatched = seen.unmatched;
                reached.newer = seen.newer;
            }
            Err(error) => reached.notes.push(format!("{error:#}")),
        }
        reached
    }
}

/// By rule, the open connections of the policy in force whose callbacks another program switched
/// off; else why the kernel cannot tell.
///
/// # Errors
/// Maps that cannot be read.
pub(super) fn silenced_by_rule(
    pins: &Pins,
    head: &raw::thalweg_policy_head,
    rules: u32,
) -> Result<Result<Vec<raw::thalweg_policy_silenced>, &'static str>> {
    if !system::has_kernel_btf() {
        return Ok(Err("the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"));
    }
    let mut object = object::open_object("thalweg_silence", thalweg_bpf_objects::POLICY_EXISTING)?;
    load_only(&mut object, programs::POLICY_SILENCED);
    for mut map in object.maps_mut() {
        match map.name().to_string_lossy().as_ref() {
            maps::RODATA_HEAD => map.set_initial_value(bytes_of(head))?,
            maps::SILENCED => map.set_max_entries(rules)?,
            name @ (maps::FLOWS | maps::TRIALS) => {
                map.reuse_pinned_map(pins.shared_map_path(name))?
            }
            _ => {}
        }
    }
    let Ok(object) = object::with_libbpf_log(|| object.load()) else {
        return Ok(Err(
            "the kernel refused the program that looks (Linux 5.15)",
        ));
    };
    let program = object::find_program(&object, programs::POLICY_SILENCED)?;
    let link = program.attach().context("making a TCP iterator")?;
    // Namespaces that end meanwhile have no connections. The agent raises what entering takes.
    privileges::with_raised(|| visit_all(link.as_fd()).for_each(drop));
    let map = object::find_map(&object, maps::SILENCED)?;
    let count = |id| batch::read_entry(&map, id, "the counters of callbacks");
    Ok(Ok((0..rules).map(count).collect::<Result<_>>()?))
}

/// Loads one program of an object alone.
fn load_only(object: &mut OpenObject, name: &str) {
    for mut program in object.progs_mut() {
        let wanted = program.name() == name;
        program.set_autoload(wanted);
    }
}

/// Refuses kernels that lack what --existing needs.
fn check_kernel(has_btf: bool) -> Result<()> {
    if !has_btf {
        bail!(
            Unsupported,
            "--existing needs a kernel with type information (CONFIG_DEBUG_INFO_BTF), and \
             /sys/kernel/btf/vmlinux does not exist; nothing was changed. Without --existing the \
             policy reaches the connections that begin from then on"
        );
    }
    Ok(())
}

fn fill_cgroups(object: &Object, prepared: &Prepared) -> Result<()> {
    let map = object::find_map(object, maps::CGROUPS)?;
    let named = prepared.marks.named.iter();
    let named = named.map(|(bit, path)| (1u64 << bit, path));
    // A cgroup may have several bits, as that of a container with a name and a label.
    let mut bits_of: BTreeMap<u64, u64> = BTreeMap::new();
    for (bits, path) in named.chain([(ATTACHED, &prepared.place.cgroup)]) {
        let directory = std::fs::metadata(path)
            .with_context(|| format!("reading cgroup {}", path.display()))?;
        *bits_of.entry(directory.ino()).or_default() |= bits;
    }
    for (id, bits) in bits_of {
        map.update(&id.to_ne_bytes(), &bits.to_ne_bytes(), MapFlags::ANY)
            .context("writing the cgroups")?;
    }
    Ok(())
}

/// Visits all sockets of each network namespace once, one namespace after another: the map `ports`
/// has the listeners of the last one (policy_existing.bpf.c).
fn visit_all(link: BorrowedFd<'_>) -> impl Iterator<Item = (PathBuf, Result<()>)> {
    let namespaces = system::network_namespaces().enumerate();
    namespaces.map(move |(number, (path, namespace))| {
        // The first namespace is this process's own, which needs no privilege to enter.
        let visited = match number {
            0 => visit_sockets(link),
            _ => system::run_in_namespace(&namespace, || visit_sockets(link)),
        };
        (path, visited)
    })
}

/// Visits all sockets of the thread's network namespace once.
fn visit_sockets(link: BorrowedFd<'_>) -> Result<()> {
    let mut visit = SocketVisit::begin(link)?;
    // The iterator writes nothing.
    while visit.go_on()? {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_kernel;

    #[test]
    fn a_kernel_without_type_information_is_told_apart() {
        check_kernel(true).unwrap();
        let message = check_kernel(false).unwrap_err().to_string();
        assert!(message.contains("CONFIG_DEBUG_INFO_BTF"), "{message}");
    }
}
