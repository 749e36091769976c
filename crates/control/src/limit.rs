//! Egress limits of cgroups (`bpf/limit.bpf.c`): set, changed, listed, removed.
//!
//! A limit needs no process. Its links and maps are pinned in a directory named by the cgroup's id.
//! That is under `limits` in the agent's directory of the BPF file system. Shared objects are
//! beside those directories:
//!
//! ```text
//! limits/pacing limits/dropped limits/line          shared maps
//! limits/line_link                                  the meter, if a limit is work-conserving
//! limits/ID/settings …/state …/flows                a limit's maps
//! limits/ID/link_egress limits/ID/link_sockops      its programs on the cgroup
//! limits/ID/link_egress_moved …/link_sockops_moved  on the root, for sockets made elsewhere
//! ```

mod fq;
mod report;
mod settings;
mod sockets;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use libbpf_rs::{Link, MapHandle, Object};
use report::read;
use serde::Serialize;
use settings::has;
use sockets::{Maps, Subtree};
use thalweg_bpf_objects::names::limit::{maps, programs};
use thalweg_bpf_types::raw;

use crate::links::{self, cgroup_path, open_cgroup};
use crate::pins::{self, Kept, Locked, remove_file};
use crate::{object, privileges, system};

pub use fq::WithoutFq;
pub use report::Limit;
pub use settings::{Depth, Request};
pub use sockets::Moved;

/// The directory, below the agent's.
const DIRECTORY: &str = "limits";
/// Maps that all limits share.
const SHARED: [&str; 3] = [maps::PACING, maps::DROPPED, maps::LINE];
/// Maps of one limit.
const OWN: [&str; 3] = [maps::SETTINGS, maps::STATE, maps::FLOWS];
const EGRESS: &str = "link_egress";
const SOCKOPS: &str = "link_sockops";
const LINE: &str = "line_link";
/// Programs on the root cgroup for sockets that have moved here, and the paths of their links.
const MOVED: [(&str, &str); 2] = [
    (programs::LIMIT_SOCKOPS_MOVED, "link_sockops_moved"),
    (programs::LIMIT_EGRESS_MOVED, "link_egress_moved"),
];
/// Triggers TCP's calls for connections older than the limit; attached only for that time.
const FOLLOW: &str = programs::LIMIT_FOLLOW;

/// Outcome of [`set`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// There was no limit on this cgroup.
    Created,
    /// The limit on this cgroup has new settings; its programs ran without a pause.
    Changed,
}

/// Puts a limit on a cgroup, or changes the settings of an existing one at once.
///
/// # Errors
/// A fault of the request or the machine. Nothing is left behind, and an existing limit is
/// unchanged.
pub fn set(pin: &Path, request: &Request) -> Result<Outcome> {
    privileges::check()?;
    system::check_cgroup2(&request.cgroup)?;
    let settings = settings::of(request)?;
    if request.edt {
        fq::check(&request.cgroup, &request.devices)?;
    }
    system::ensure_bpffs(pin)?;
    let all = Limits::create(pin)?;
    let outcome = all.set(request, &settings);
    all.tidy()?;
    all.0.finish(pin);
    outcome
}

/// All limits, by cgroup.
///
/// # Errors
/// [`anyhow::Error`] if the maps cannot be read.
pub fn list(pin: &Path) -> Result<Vec<Limit>> {
    privileges::check()?;
    let mut limits = Vec::new();
    let Some(all) = Limits::open(pin)? else {
        return Ok(limits);
    };
    let ids = ids(&all.0.directory)?;
    if !ids.is_empty() {
        let sockets = sockets::survey().ok();
        for id in ids {
            limits.extend(read(&all.0.directory, id, sockets.as_deref())?);
        }
    }
    all.0.finish(pin);
    limits.sort_by(|a, b| (&a.cgroup, a.cgroup_id).cmp(&(&b.cgroup, b.cgroup_id)));
    Ok(limits)
}

/// All limits, by cgroup, without a count of their sockets. It changes nothing and waits for nobody.
///
/// # Errors
/// [`anyhow::Error`] if the maps cannot be read.
pub fn figures(pin: &Path) -> Result<Vec<Limit>> {
    let directory = pin.join(DIRECTORY);
    let mut limits = Vec::new();
    for id in ids(&directory)? {
        match read(&directory, id, None) {
            Ok(limit) => limits.extend(limit),
            // It was removed meanwhile, or is not whole yet.
            Err(_) if !directory.join(id.to_string()).join(EGRESS).exists() => {}
            Err(error) => return Err(error),
        }
    }
    limits.sort_by(|a, b| (&a.cgroup, a.cgroup_id).cmp(&(&b.cgroup, b.cgroup_id)));
    Ok(limits)
}

/// The limit on a cgroup.
///
/// # Errors
/// [`anyhow::Error`] if there is none.
pub fn show(pin: &Path, cgroup: &Path) -> Result<Limit> {
    privileges::check()?;
    system::check_cgroup2(cgroup)?;
    let id = cgroup_id(cgroup)?;
    let Some(all) = Limits::open(pin)? else {
        return Err(none(cgroup));
    };
    let sockets = sockets::survey().ok();
    let limit = read(&all.0.directory, id, sockets.as_deref())?;
    all.0.finish(pin);
    limit.ok_or_else(|| none(cgroup))
}

/// Removes the limit on a cgroup, and those of removed cgroups. Its connections get back their
/// earlier pacing rate.
///
/// # Errors
/// [`anyhow::Error`] if there is none.
pub fn remove(pin: &Path, cgroup: &Path) -> Result<()> {
    privileges::check()?;
    system::check_cgroup2(cgroup)?;
    let id = cgroup_id(cgroup)?;
    let Some(all) = Limits::open(pin)? else {
        return Err(none(cgroup));
    };
    let outcome = if all.own(id).exists() {
        all.remove(id, cgroup)
    } else {
        Err(none(cgroup))
    };
    all.tidy()?;
    all.0.finish(pin);
    outcome
}

/// Removes all limits; returns their number.
///
/// # Errors
/// [`anyhow::Error`] with the first failure.
pub fn remove_all(pin: &Path) -> Result<usize> {
    privileges::check()?;
    let Some(all) = Limits::open(pin)? else {
        return Ok(0);
    };
    let ids = ids(&all.0.directory)?;
    for &id in &ids {
        all.remove_wherever(id)?;
    }
    all.tidy()?;
    all.0.finish(pin);
    Ok(ids.len())
}

fn none(cgroup: &Path) -> anyhow::Error {
    anyhow!(
        "there is no limit on {}; `thalweg limit list` shows those there are",
        cgroup.display()
    )
}

/// The directory of all limits.
struct Limits(Locked);

impl Kept for Limits {
    const DIRECTORY: &str = DIRECTORY;
    const OF: fn(Locked) -> Self = Self;

    /// Reverts what an interrupted call has left.
    fn mend(&self) -> Result<()> {
        for id in ids(&self.0.directory)? {
            if !self.own(id).join(EGRESS).exists() {
                let removed = self.remove_wherever(id);
                // If the kernel lists no connections, they keep their rates.
                if self.own(id).exists() {
                    removed?;
                }
            }
        }
        if ids(&self.0.directory)?.is_empty() {
            self.tidy()?;
        }
        Ok(())
    }
}

impl Limits {
    fn own(&self, id: u64) -> PathBuf {
        self.0.own(&id.to_string())
    }

    fn set(&self, request: &Request, settings: &raw::thalweg_limit_settings) -> Result<Outcome> {
        let id = cgroup_id(&request.cgroup)?;
        let own = self.own(id);
        for other in ids(&self.0.directory)? {
            if let Ok(map) = MapHandle::from_pinned_path(self.own(other).join(maps::SETTINGS)) {
                settings::read(&map)?;
            }
        }
        let outcome = match attached_to(&own.join(EGRESS))? {
            Some(attached) if attached == id => {
                let map = open(own.join(maps::SETTINGS))?;
                if request.line_bps.is_some() {
                    let object = self.load(&own)?;
                    self.attach_meter(&object)?;
                }
                settings::write(&map, settings)?;
                fail_point!("limit::changed");
                self.reach(request, settings, &own)?;
                Outcome::Changed
            }
            _ => {
                // Nothing, or the rest of a cgroup that was removed since.
                self.clear(id)?;
                let created = self
                    .make(request, settings, &own)
                    .and_then(|()| self.reach(request, settings, &own));
                if created.is_err() {
                    // Only the first error matters.
                    let _ = self.remove(id, &request.cgroup);
                }
                created?;
                Outcome::Created
            }
        };
        Ok(outcome)
    }

    fn make(
        &self,
        request: &Request,
        settings: &raw::thalweg_limit_settings,
        own: &Path,
    ) -> Result<()> {
        pins::make(own, false)?;
        fail_point!("limit::made");
        let object = self.load(own)?;
        fail_point!("limit::loaded");
        settings::write(&object::map(&object, maps::SETTINGS)?, settings)?;
        if request.line_bps.is_some() {
            self.attach_meter(&object)?;
            fail_point!("limit::metered");
        }
        let cgroup = open_cgroup(&request.cgroup)?;
        // The limit itself comes last: if its link exists, everything exists.
        attach(
            &object,
            programs::LIMIT_SOCKOPS,
            &cgroup,
            &own.join(SOCKOPS),
        )?;
        fail_point!("limit::paces");
        attach(&object, programs::LIMIT_EGRESS, &cgroup, &own.join(EGRESS))?;
        fail_point!("limit::limits");
        Ok(())
    }

    /// Applies the limit to sockets created elsewhere, exempts those that left, and paces
    /// connections older than the limit. If the kernel does not list sockets, they stay as they
    /// are, which `list` and `show` report.
    fn reach(
        &self,
        request: &Request,
        settings: &raw::thalweg_limit_settings,
        own: &Path,
    ) -> Result<()> {
        let Ok(sockets) = sockets::survey() else {
            return Ok(());
        };
        let subtree = Subtree::new(&request.cgroup);
        let maps = maps_of(&self.0.directory, own, settings)?;
        let some_are_in = subtree.holds_others(&sockets);
        // This comes first, so that a socket marked as reached is reached.
        if some_are_in {
            self.attach_moved(own)?;
        }
        fail_point!("limit::awaits");
        // Without it their share does not follow the limit's, which matters less.
        let following = follow().ok();
        maps.reach(&subtree, &sockets, settings.rate_bps, sockets::follow)?;
        drop(following);
        fail_point!("limit::reached");
        if !some_are_in {
            for (_, link) in MOVED {
                remove_file(&own.join(link))?;
            }
        }
        Ok(())
    }

    /// Applies the programs to sockets created elsewhere.
    fn attach_moved(&self, own: &Path) -> Result<()> {
        let missing = MOVED.map(|(program, link)| (program, own.join(link)));
        if missing.iter().all(|(_, link)| link.exists()) {
            return Ok(());
        }
        let root = open_cgroup(&system::cgroup2_mount()?)?;
        let object = self.load(own)?;
        for (program, link) in missing.iter().filter(|(_, link)| !link.exists()) {
            attach(&object, program, &root, link)?;
            fail_point!("limit::moved");
        }
        Ok(())
    }

    fn load(&self, own: &Path) -> Result<Object> {
        let mut object = object::open("thalweg_limit", thalweg_bpf_objects::LIMIT)?;
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if SHARED.contains(&name.as_str()) {
                map.set_pin_path(self.0.directory.join(&name))?;
            } else if OWN.contains(&name.as_str()) {
                map.set_pin_path(own.join(&name))?;
            }
        }
        for mut program in object.progs_mut() {
            if program.name() == FOLLOW {
                program.set_autoload(false);
            }
        }
        object
            .load()
            .context("the kernel refused the limiter (see the lines above; it needs Linux 5.15)")
    }

    /// Starts to count the bytes that the whole machine sends.
    fn attach_meter(&self, object: &Object) -> Result<()> {
        let path = self.0.directory.join(LINE);
        if path.exists() {
            return Ok(());
        }
        let root = open_cgroup(&system::cgroup2_mount()?)?;
        attach(object, programs::LIMIT_LINE, &root, &path)
    }

    fn remove(&self, id: u64, cgroup: &Path) -> Result<()> {
        let own = self.own(id);
        let settings = settings::pinned(&own);
        // The limit itself comes first: without its link, the next call goes on here. Then the
        // pacer, or it would pace released connections again.
        for link in [EGRESS, SOCKOPS, MOVED[0].1] {
            remove_file(&own.join(link))?;
            fail_point!("limit::unlinked");
        }
        let mut told = Ok(());
        if let Some(settings) = settings.filter(|settings| has(settings, raw::THALWEG_LIMIT_PACE)) {
            told = sockets::survey().and_then(|sockets| {
                let maps = maps_of(&self.0.directory, &own, &settings)?;
                maps.give_back(&Subtree::new(cgroup), &sockets)
            });
        }
        fail_point!("limit::given_back");
        self.clear(id)?;
        told.context("the limit is gone, but connections keep the pacing rate that it gave them")
    }

    /// Removes a limit on a cgroup that may no longer exist.
    fn remove_wherever(&self, id: u64) -> Result<()> {
        match cgroup_path(id) {
            Some(path) => self.remove(id, &path),
            None => self.clear(id),
        }
    }

    /// Removes the pins of a limit.
    fn clear(&self, id: u64) -> Result<()> {
        pins::clear(&self.own(id), "link_")
    }

    /// Removes limits of removed cgroups, the meter if nobody reads it, and all shared objects
    /// after the last limit.
    fn tidy(&self) -> Result<()> {
        let mut metered = false;
        let mut left = 0;
        for id in ids(&self.0.directory)? {
            let own = self.own(id);
            if attached_to(&own.join(EGRESS))? != Some(id) {
                self.clear(id)?;
                continue;
            }
            left += 1;
            metered |= settings::pinned(&own)
                .is_some_and(|settings| has(&settings, raw::THALWEG_LIMIT_WORK_CONSERVING));
        }
        if !metered {
            remove_file(&self.0.directory.join(LINE))?;
        }
        if left == 0 {
            for map in SHARED {
                remove_file(&self.0.directory.join(map))?;
            }
        }
        Ok(())
    }
}

fn open(path: PathBuf) -> Result<MapHandle> {
    MapHandle::from_pinned_path(&path).with_context(|| format!("opening {}", path.display()))
}

/// The maps with entries per socket.
fn maps_of(directory: &Path, own: &Path, settings: &raw::thalweg_limit_settings) -> Result<Maps> {
    Ok(Maps {
        pacing: open(directory.join(maps::PACING))?,
        flows: open(own.join(maps::FLOWS))?,
        slot: (settings.depth % raw::THALWEG_LIMIT_SLOTS) as usize,
        pace: has(settings, raw::THALWEG_LIMIT_PACE),
        loopback: has(settings, raw::THALWEG_LIMIT_LOOPBACK),
        some_are_in: own.join(MOVED[1].1).exists(),
    })
}

/// Enables [`sockets::follow`] while the returned link lives.
fn follow() -> Result<Link> {
    object::listening(|| {
        let mut object = object::open("thalweg_limit", thalweg_bpf_objects::LIMIT)?;
        for mut map in object.maps_mut() {
            map.set_autocreate(false)?;
        }
        for mut program in object.progs_mut() {
            let is_wanted = program.name() == FOLLOW;
            program.set_autoload(is_wanted);
        }
        let object = object.load()?;
        let root = File::open(system::cgroup2_mount()?)?;
        Ok(object::program(&object, FOLLOW)?.attach_cgroup(root.as_raw_fd())?)
    })
}

/// The ids of the cgroups that have a directory.
fn ids(directory: &Path) -> Result<Vec<u64>> {
    pins::numbers(directory)
}

/// The id of the cgroup of a pinned link; 0 if the cgroup was removed.
fn attached_to(path: &Path) -> Result<Option<u64>> {
    let link = links::open(path)?;
    Ok(link.as_ref().map(links::attached_to).transpose()?.flatten())
}

fn cgroup_id(cgroup: &Path) -> Result<u64> {
    links::cgroup_id(&links::open_cgroup(cgroup)?)
}

fn attach(object: &Object, name: &str, cgroup: &File, path: &Path) -> Result<()> {
    let mut program = object::program(object, name)?;
    // Its pin keeps it.
    drop(links::attach_and_pin(&mut program, cgroup, path)?);
    Ok(())
}
