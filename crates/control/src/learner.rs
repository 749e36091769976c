//! The learner as seen by programs that run beside it: its links, and its order relative to them.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use libbpf_rs::libbpf_sys::{BPF_CGROUP_SETSOCKOPT, BPF_CGROUP_SOCK_OPS, bpf_attach_type};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use thalweg_bpf_objects::names::learn::{maps, programs};
use thalweg_bpf_types::{arm_name, earlier};

use crate::error::{Context, Result};
use crate::pins::remove_file;
use crate::{links, privileges};

/// Sockets that belong to an application or a policy. Policies write this map too, and its content
/// outlives programs, modes and versions: it is never replaced.
pub const OWNED: &str = maps::OWNED;

/// The program whose link shows the version in force.
pub const MAIN: &str = programs::LEARN_SOCKOPS;
/// Pinned links: program name, file name, hook of the cgroup.
pub const LINKS: [(&str, &str, bpf_attach_type); 2] = [
    (
        programs::LEARN_SETSOCKOPT,
        "link_setsockopt",
        BPF_CGROUP_SETSOCKOPT,
    ),
    (MAIN, MAIN_LINK, BPF_CGROUP_SOCK_OPS),
];
/// File name of the main program's link.
pub const MAIN_LINK: &str = "link_sockops";

/// Whether a learner is attached, from the agent's directory of pins.
pub fn is_attached(pin: &Path) -> bool {
    LINKS.iter().any(|(_, file, _)| pin.join(file).exists())
}

/// Names of the learner's arms, by number; empty where a number has none.
///
/// # Errors
/// There is no table, or it has another version.
pub fn arm_names(pin: &Path) -> Result<Vec<String>> {
    let path = pin.join(maps::ARMS);
    let map = MapHandle::from_pinned_path(&path)
        .with_context(|| format!("opening pinned map {}", path.display()))?;
    let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
    let table = bytes
        .and_then(|bytes| earlier::convert_arms(&bytes))
        .context("the arm table has an unexpected size")?;
    Ok(table.arms.iter().map(|arm| arm_name(&arm.name)).collect())
}

/// Link and program of the learner on a cgroup; `None` if it is not attached there.
///
/// # Errors
/// Missing privileges to put it behind a policy.
pub fn attached_learner(pin: &Path, cgroup: &File) -> Result<Option<(Link, OwnedFd)>> {
    let Some(link) = links::open_link(&pin.join(MAIN_LINK))? else {
        return Ok(None);
    };
    if links::attached_to(&link)? != Some(links::cgroup_id(cgroup)?) {
        return Ok(None);
    }
    let number = link.info()?.prog_id;
    let program = privileges::with_raised(|| libbpf_rs::Program::fd_from_id(number))
        .context("opening the learner's program (CAP_SYS_ADMIN)")?;
    Ok(Some((link, program)))
}

/// Puts the learner's program behind the policy's, which has just been attached: a cgroup's
/// programs run in the order of attachment. Between the two steps it runs twice; a connection
/// established then counts twice.
pub fn learn_after_policy(pin: &Path, cgroup: &File) -> Result<()> {
    let Some((old, program)) = attached_learner(pin, cgroup)? else {
        return Ok(());
    };
    let path = pin.join(MAIN_LINK);
    let new = links::create_link(program.as_fd(), cgroup, BPF_CGROUP_SOCK_OPS)
        .context("attaching the learner anew")?;
    let beside = links::replacement_path(&path);
    remove_file(&beside)?;
    links::pin_object(new.as_fd(), &beside)?;
    fail_point!("policy::beside");
    fs::rename(&beside, &path).with_context(|| format!("replacing {}", path.display()))?;
    fail_point!("policy::behind");
    // The agent may hold the old link open: closing it here would not detach it.
    old.detach().context("detaching the learner's former link")
}

/// Whether a policy's program runs before the learner's on a cgroup, or there is no learner.
pub fn runs_before_learner(pin: &Path, policy: &Path, cgroup: &File) -> Result<bool> {
    let path = pin.join(MAIN_LINK);
    if !path.exists() {
        return Ok(true);
    }
    let program = |path: &Path| -> Result<u32> {
        let link = Link::open(path).with_context(|| format!("opening link {}", path.display()))?;
        Ok(link.info()?.prog_id)
    };
    let (learner, policy) = (program(&path)?, program(policy)?);
    let ids = links::programs_of(cgroup, BPF_CGROUP_SOCK_OPS, 0)?;
    // The programs run in this order.
    let mut ids = ids.iter();
    Ok(ids.find(|id| **id == learner || **id == policy) != Some(&learner))
}
