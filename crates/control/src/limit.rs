//! Egress limits of cgroups (`bpf/limit.bpf.c`): set, changed, listed, removed.
//!
//! A limit needs no process. Its links and maps are pinned in a directory that is named
//! after the cgroup's id, under `limits` in the agent's directory of the BPF file system;
//! what all limits share lies beside those directories:
//!
//! ```text
//! limits/pacing limits/dropped limits/line          shared maps
//! limits/line_link                                  the meter, where a limit is work-conserving
//! limits/ID/settings …/state …/flows                a limit's maps
//! limits/ID/link_egress limits/ID/link_sockops      its programs on the cgroup
//! limits/ID/link_egress_moved …/link_sockops_moved  on the root, for sockets made elsewhere
//! ```

mod fq;
mod sockets;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use serde::Serialize;
use sockets::{Maps, Socket, Subtree};
use thalweg_bpf_types::{bytes_of, from_bytes, raw};

use crate::links::{self, cgroup_path, open_cgroup};
use crate::pins::{self, Kept, Locked, entries, remove_file};
use crate::{object, privileges, system};

pub use fq::WithoutFq;
pub use sockets::Moved;

/// The directory under the agent's.
const DIRECTORY: &str = "limits";
/// Maps that all limits share.
const SHARED: [&str; 3] = ["pacing", "dropped", "line"];
/// Maps of one limit.
const OWN: [&str; 3] = ["settings", "state", "flows"];
const EGRESS: &str = "link_egress";
const SOCKOPS: &str = "link_sockops";
const LINE: &str = "line_link";
/// Programs on the root cgroup for sockets that have moved here, and where their links are.
const MOVED: [(&str, &str); 2] = [
    ("limit_sockops_moved", "link_sockops_moved"),
    ("limit_egress_moved", "link_egress_moved"),
];
/// Sets off what TCP does for connections older than the limit; attached while that is asked.
const FOLLOW: &str = "limit_follow";
/// Shortest time between two looks at the rate.
const INTERVAL_NS: u64 = 5_000_000;
/// A look needs that many bytes at the rate to mean something: ten full packets.
const INTERVAL_BYTES: u64 = 15_000;

/// A length of the virtual queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// As time at the limit's rate.
    Time {
        /// Nanoseconds.
        ns: u64,
    },
    /// As bytes of IP packets.
    Bytes(u64),
}

impl Depth {
    /// As time at a rate.
    fn ns(self, rate_bps: u64) -> u64 {
        match self {
            Self::Time { ns } => ns,
            Self::Bytes(bytes) => {
                let ns = u128::from(bytes) * 8_000_000_000 / u128::from(rate_bps.max(1));
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        }
    }
}

/// What a limit is to be.
#[derive(Clone, Debug)]
pub struct Request {
    /// Directory of a cgroup v2 hierarchy.
    pub cgroup: PathBuf,
    /// Bits of IP packets per second.
    pub rate_bps: u64,
    /// Work-conserving: what all cgroups together may send, bits per second.
    pub line_bps: Option<u64>,
    /// Give packets departure times for fq to obey.
    pub edt: bool,
    /// Devices that must have fq; none: all that are up.
    pub devices: Vec<String>,
    /// Pace TCP at its share.
    pub pace: bool,
    /// Loopback counts too.
    pub loopback: bool,
    /// Queue beyond which packets are marked, or senders told.
    pub mark_at: Depth,
    /// Queue beyond which packets are dropped.
    pub drop_at: Depth,
    /// Credit that an idle cgroup gathers.
    pub burst: Depth,
}

/// One limit and its figures. Rates are of IP packets as on the wire.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// The cgroup's directory; none where the cgroup is gone.
    pub cgroup: Option<PathBuf>,
    /// The cgroup's id.
    pub cgroup_id: u64,
    /// The rate that was set, bits per second.
    pub rate_bps: u64,
    /// The rate in force; it differs where the limit is work-conserving.
    pub present_rate_bps: u64,
    /// Work-conserving: the line's rate.
    pub line_bps: Option<u64>,
    /// Packets get departure times.
    pub edt: bool,
    /// TCP is paced.
    pub pace: bool,
    /// Loopback counts too.
    pub loopback: bool,
    /// Queue beyond which packets are marked, µs.
    pub mark_at_us: u64,
    /// Queue beyond which packets are dropped, µs.
    pub drop_at_us: u64,
    /// Credit of an idle cgroup, µs.
    pub burst_us: u64,
    /// Bytes that passed.
    pub bytes: u64,
    /// Packets that passed, as on the wire.
    pub packets: u64,
    /// Of them, those that got a CE mark.
    pub marked_packets: u64,
    /// Of them, those whose sender was told to slow down.
    pub notified_packets: u64,
    /// Packets that were dropped.
    pub dropped_packets: u64,
    /// Bytes that were dropped.
    pub dropped_bytes: u64,
    /// The virtual queue now, µs and bytes.
    pub queue_us: u64,
    /// The virtual queue now, bytes.
    pub queue_bytes: u64,
    /// Rate over the last whole second, bits per second; 0 where nothing was sent since.
    pub measured_bps: u64,
    /// Running mean of the credit, bytes; below 0 it is a queue.
    pub average_credit_bytes: i64,
    /// The rate at which each TCP connection is paced now, bits per second.
    pub share_bps: Option<u64>,
    /// Sockets that have moved, and connections that are not paced; none where the kernel does
    /// not tell, or the cgroup is gone.
    pub sockets: Option<Moved>,
}

/// What [`set`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// There was no limit on this cgroup.
    Created,
    /// The limit on this cgroup has new settings; its programs never stopped.
    Changed,
}

/// Puts a limit on a cgroup, or gives the one that is there new settings at once.
///
/// # Errors
/// What is wrong with the request or the machine. Nothing is left behind, and a limit that
/// was there is as it was.
pub fn set(pin: &Path, request: &Request) -> Result<Outcome> {
    privileges::check()?;
    system::check_cgroup2(&request.cgroup)?;
    let settings = settings(request)?;
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
/// [`anyhow::Error`] where the maps cannot be read.
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

/// The limit on a cgroup.
///
/// # Errors
/// [`anyhow::Error`] where there is none.
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

/// Removes the limit on a cgroup, and those of cgroups that are gone. Its connections get
/// back the pacing rate that they had.
///
/// # Errors
/// [`anyhow::Error`] where there is none.
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

/// Removes all limits; returns how many there were.
///
/// # Errors
/// [`anyhow::Error`] with the first that could not be removed.
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

impl From<Locked> for Limits {
    fn from(locked: Locked) -> Self {
        Self(locked)
    }
}

impl Kept for Limits {
    const DIRECTORY: &str = DIRECTORY;

    /// Takes back what a call that was cut short has left on its way to a limit, or from it.
    fn mend(&self) -> Result<()> {
        for id in ids(&self.0.directory)? {
            if !self.own(id).join(EGRESS).exists() {
                let removed = self.remove_wherever(id);
                // Where connections cannot be told, they keep their rates.
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
            if let Ok(map) = MapHandle::from_pinned_path(self.own(other).join("settings")) {
                read_settings(&map)?;
            }
        }
        let outcome = match attached_to(&own.join(EGRESS))? {
            Some(attached) if attached == id => {
                let map = MapHandle::from_pinned_path(own.join("settings"))
                    .with_context(|| format!("opening {}", own.join("settings").display()))?;
                if request.line_bps.is_some() {
                    let object = self.load(&own)?;
                    self.attach_meter(&object)?;
                }
                write_settings(&map, settings)?;
                fail_point!("limit::changed");
                self.reach(request, settings, &own)?;
                Outcome::Changed
            }
            _ => {
                // Nothing, or what was left by a cgroup that has gone since.
                self.clear(id)?;
                let created = self
                    .make(request, settings, &own)
                    .and_then(|()| self.reach(request, settings, &own));
                if created.is_err() {
                    // The error that stopped it is what matters.
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
        let map = object
            .maps()
            .find(|map| map.name() == "settings")
            .ok_or_else(|| anyhow!("the BPF object lacks map settings"))?;
        write_settings(&map, settings)?;
        if request.line_bps.is_some() {
            self.attach_meter(&object)?;
            fail_point!("limit::metered");
        }
        let cgroup = open_cgroup(&request.cgroup)?;
        // The limit itself last: with its link there, all is there.
        attach(&object, "limit_sockops", &cgroup, &own.join(SOCKOPS))?;
        fail_point!("limit::paces");
        attach(&object, "limit_egress", &cgroup, &own.join(EGRESS))?;
        fail_point!("limit::limits");
        Ok(())
    }

    /// Has the limit hold for sockets that were made elsewhere, and not for those that went, and
    /// paces connections that are older than it. A kernel that does not tell of sockets leaves
    /// them as they are, which `list` and `show` say.
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
        let maps = maps(&self.0.directory, own, settings)?;
        let some_are_in = subtree.holds_others(&sockets);
        // First: what is marked as reached is reached.
        if some_are_in {
            self.attach_moved(own)?;
        }
        fail_point!("limit::awaits");
        // Without it their share does not follow the limit's, which is the lesser part.
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

    /// Has sockets looked at that were made elsewhere.
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
        let mut object = ObjectBuilder::default()
            .name("thalweg_limit")
            .and_then(|builder| builder.open_memory(thalweg_bpf_objects::LIMIT))
            .context("opening the BPF object")?;
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

    /// Counts what the whole machine sends, from now on.
    fn attach_meter(&self, object: &Object) -> Result<()> {
        let path = self.0.directory.join(LINE);
        if path.exists() {
            return Ok(());
        }
        let root = open_cgroup(&system::cgroup2_mount()?)?;
        attach(object, "limit_line", &root, &path)
    }

    fn remove(&self, id: u64, cgroup: &Path) -> Result<()> {
        let own = self.own(id);
        let settings = MapHandle::from_pinned_path(own.join("settings"))
            .ok()
            .and_then(|map| read_settings(&map).ok());
        // The limit itself first: without its link, the next call goes on here. Then the pacer, or
        // it would pace again what is given back.
        for link in [EGRESS, SOCKOPS, MOVED[0].1] {
            remove_file(&own.join(link))?;
            fail_point!("limit::unlinked");
        }
        let mut told = Ok(());
        if let Some(settings) = settings.filter(|settings| has(settings, raw::THALWEG_LIMIT_PACE)) {
            told = sockets::survey().and_then(|sockets| {
                let maps = maps(&self.0.directory, &own, &settings)?;
                maps.give_back(&Subtree::new(cgroup), &sockets)
            });
        }
        fail_point!("limit::given_back");
        self.clear(id)?;
        told.context("the limit is gone, but connections keep the pacing rate that it gave them")
    }

    /// Removes a limit on a cgroup that may be gone.
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

    /// Removes limits of cgroups that are gone, the meter if nobody reads it, and all that
    /// is shared after the last limit.
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
            metered |= MapHandle::from_pinned_path(own.join("settings"))
                .ok()
                .and_then(|map| read_settings(&map).ok())
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

fn settings(request: &Request) -> Result<raw::thalweg_limit_settings> {
    let rate_bps = request.rate_bps;
    let [mark_ns, drop_ns, burst_ns] =
        [request.mark_at, request.drop_at, request.burst].map(|depth| depth.ns(rate_bps));
    if rate_bps == 0 {
        bail!("the rate must be above 0");
    }
    if mark_ns > drop_ns {
        bail!(
            "packets would be dropped (at {} µs of queue) before any is marked (at {} µs); \
             --mark-at must not be above --drop-at",
            drop_ns / 1000,
            mark_ns / 1000
        );
    }
    if [drop_ns, burst_ns].iter().any(|&ns| ns > 10_000_000_000) {
        bail!("a threshold is above 10 s at this rate");
    }
    if let Some(line_bps) = request.line_bps
        && line_bps - line_bps / 16 < rate_bps
    {
        bail!(
            "a work-conserving limit needs a line that is faster than it: --line-rate must be \
             above --rate by a fifteenth at least (a sixteenth of the line is kept free)"
        );
    }
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    Ok(raw::thalweg_limit_settings {
        version: raw::THALWEG_LIMIT_VERSION,
        flags: flag(request.edt, raw::THALWEG_LIMIT_EDT)
            | flag(
                request.line_bps.is_some(),
                raw::THALWEG_LIMIT_WORK_CONSERVING,
            )
            | flag(request.pace, raw::THALWEG_LIMIT_PACE)
            | flag(request.loopback, raw::THALWEG_LIMIT_LOOPBACK),
        rate_bps,
        line_bps: request.line_bps.unwrap_or(0),
        burst_ns,
        mark_ns,
        drop_ns,
        interval_ns: INTERVAL_NS.max(Depth::Bytes(INTERVAL_BYTES).ns(rate_bps)),
        // Limits above one another lie at different depths of the hierarchy.
        depth: fs::canonicalize(&request.cgroup)?.components().count() as u32,
        reserved: 0,
    })
}

/// The maps that know sockets.
fn maps(directory: &Path, own: &Path, settings: &raw::thalweg_limit_settings) -> Result<Maps> {
    let open = |path: PathBuf| {
        MapHandle::from_pinned_path(&path).with_context(|| format!("opening {}", path.display()))
    };
    Ok(Maps {
        pacing: open(directory.join("pacing"))?,
        flows: open(own.join("flows"))?,
        slot: (settings.depth % raw::THALWEG_LIMIT_SLOTS) as usize,
        pace: has(settings, raw::THALWEG_LIMIT_PACE),
        loopback: has(settings, raw::THALWEG_LIMIT_LOOPBACK),
        some_are_in: own.join(MOVED[1].1).exists(),
    })
}

/// Lets [`sockets::follow`] work while the answer lives.
fn follow() -> Result<Link> {
    object::listening(|| {
        let mut object = ObjectBuilder::default()
            .name("thalweg_limit")
            .and_then(|builder| builder.open_memory(thalweg_bpf_objects::LIMIT))?;
        for mut map in object.maps_mut() {
            map.set_autocreate(false)?;
        }
        for mut program in object.progs_mut() {
            let is_wanted = program.name() == FOLLOW;
            program.set_autoload(is_wanted);
        }
        let object = object.load()?;
        let program = object.progs_mut().find(|program| program.name() == FOLLOW);
        let root = File::open(system::cgroup2_mount()?)?;
        let program = program.context("the BPF object lacks its program")?;
        Ok(program.attach_cgroup(root.as_raw_fd())?)
    })
}

fn has(settings: &raw::thalweg_limit_settings, flag: u32) -> bool {
    settings.flags & flag != 0
}

fn write_settings(map: &impl MapCore, settings: &raw::thalweg_limit_settings) -> Result<()> {
    map.update(&0u32.to_ne_bytes(), bytes_of(settings), MapFlags::ANY)
        .context("writing the settings of the limit")
}

fn read_settings(map: &impl MapCore) -> Result<raw::thalweg_limit_settings> {
    let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
    let settings: Option<raw::thalweg_limit_settings> = bytes.and_then(|bytes| from_bytes(&bytes));
    match settings {
        Some(settings) if settings.version == raw::THALWEG_LIMIT_VERSION => Ok(settings),
        _ => bail!(
            "limits were set by another version of thalweg; remove them with \
             `thalweg limit remove --all` and set them again"
        ),
    }
}

fn read(directory: &Path, id: u64, sockets: Option<&[Socket]>) -> Result<Option<Limit>> {
    let own = directory.join(id.to_string());
    if !own.exists() {
        return Ok(None);
    }
    let map = |name: &str| {
        let path = own.join(name);
        MapHandle::from_pinned_path(&path).with_context(|| format!("opening {}", path.display()))
    };
    let settings = read_settings(&map("settings")?)?;
    let bytes = map("state")?
        .lookup(&0u32.to_ne_bytes(), MapFlags::LOCK)?
        .unwrap_or_default();
    // The lock behind the state is not read.
    let state: raw::thalweg_limit_state = bytes
        .get(..size_of::<raw::thalweg_limit_state>())
        .and_then(from_bytes)
        .ok_or_else(|| anyhow!("the limit's state is of another version"))?;
    let now_ns = system::monotonic_ns();
    let queue_ns = state.next_ns.saturating_sub(now_ns);
    let rate_bps = if state.rate_bps == 0 {
        settings.rate_bps
    } else {
        state.rate_bps
    };
    let bytes_at_rate = |ns: i64| (i128::from(ns) * i128::from(rate_bps) / 8_000_000_000) as i64;
    let is_idle = now_ns.saturating_sub(state.second_ns) > 3_000_000_000;
    let cgroup = attached_to(&own.join(EGRESS))?.and_then(cgroup_path);
    let sockets = match (&cgroup, sockets) {
        (Some(cgroup), Some(sockets)) => {
            let maps = maps(directory, &own, &settings)?;
            Some(maps.count(&Subtree::new(cgroup), sockets))
        }
        _ => None,
    };
    Ok(Some(Limit {
        cgroup,
        cgroup_id: id,
        rate_bps: settings.rate_bps,
        present_rate_bps: rate_bps,
        line_bps: has(&settings, raw::THALWEG_LIMIT_WORK_CONSERVING).then_some(settings.line_bps),
        edt: has(&settings, raw::THALWEG_LIMIT_EDT),
        pace: has(&settings, raw::THALWEG_LIMIT_PACE),
        loopback: has(&settings, raw::THALWEG_LIMIT_LOOPBACK),
        mark_at_us: settings.mark_ns / 1000,
        drop_at_us: settings.drop_ns / 1000,
        burst_us: settings.burst_ns / 1000,
        bytes: state.bytes,
        packets: state.packets,
        marked_packets: state.marked,
        notified_packets: state.notified,
        dropped_packets: state.dropped_packets,
        dropped_bytes: state.dropped_bytes,
        queue_us: queue_ns / 1000,
        queue_bytes: bytes_at_rate(queue_ns as i64).unsigned_abs(),
        measured_bps: if is_idle { 0 } else { state.measured_bps },
        average_credit_bytes: bytes_at_rate(state.credit_q8_ns / 256),
        share_bps: (has(&settings, raw::THALWEG_LIMIT_PACE) && state.share_bps > 0)
            .then_some(state.share_bps),
        sockets,
    }))
}

/// The ids of the cgroups that have a directory.
fn ids(directory: &Path) -> Result<Vec<u64>> {
    let names = entries(directory)?.into_iter();
    Ok(names.filter_map(|name| name.parse().ok()).collect())
}

/// The id of the cgroup that a pinned link is on; 0 where the cgroup is gone.
fn attached_to(path: &Path) -> Result<Option<u64>> {
    let link = links::open(path)?;
    Ok(link.as_ref().map(links::attached_to).transpose()?.flatten())
}

fn cgroup_id(cgroup: &Path) -> Result<u64> {
    links::cgroup_id(&links::open_cgroup(cgroup)?)
}

fn attach(object: &Object, name: &str, cgroup: &File, path: &Path) -> Result<()> {
    let mut program = object
        .progs_mut()
        .find(|program| program.name() == name)
        .ok_or_else(|| anyhow!("the BPF object lacks program {name}"))?;
    // Its pin keeps it.
    drop(links::attach_and_pin(&mut program, cgroup, path)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            cgroup: "/".into(),
            rate_bps: 100_000_000,
            line_bps: None,
            edt: false,
            devices: Vec::new(),
            pace: true,
            loopback: false,
            mark_at: Depth::Time { ns: 5_000_000 },
            drop_at: Depth::Time { ns: 50_000_000 },
            burst: Depth::Time { ns: 10_000_000 },
        }
    }

    #[test]
    fn thresholds_in_bytes_are_times_at_the_rate() {
        // 100 Mbit/s are 12.5 bytes a µs.
        assert_eq!(Depth::Bytes(12_500).ns(100_000_000), 1_000_000);
        assert_eq!(Depth::Time { ns: 7 }.ns(1), 7);
        let settings = settings(&Request {
            drop_at: Depth::Bytes(125_000),
            ..request()
        })
        .unwrap();
        assert_eq!(settings.drop_ns, 10_000_000);
        assert_eq!(settings.interval_ns, INTERVAL_NS);
    }

    #[test]
    fn slow_rates_are_looked_at_less_often() {
        let slow = Request {
            rate_bps: 1_000_000,
            ..request()
        };
        assert_eq!(settings(&slow).unwrap().interval_ns, 120_000_000);
    }

    #[test]
    fn contradictions_are_refused() {
        let wrong = [
            Request {
                rate_bps: 0,
                ..request()
            },
            Request {
                mark_at: Depth::Time { ns: 50_000_001 },
                ..request()
            },
            Request {
                drop_at: Depth::Bytes(1 << 40),
                ..request()
            },
            Request {
                line_bps: Some(100_000_000),
                ..request()
            },
        ];
        for request in wrong {
            assert!(settings(&request).is_err(), "{request:?}");
        }
        let line = Request {
            line_bps: Some(107_000_000),
            ..request()
        };
        assert!(settings(&line).is_ok());
    }
}
