//! The kernel side: programs loaded, attached and pinned, or taken over where an earlier
//! agent left them; reading and writing of their maps.
//!
//! Everything lives under one directory of a bpffs: a map or link a file. Programs keep
//! running when the agent dies. A restarted agent reuses the maps, loads its own program and
//! swaps it into the pinned links, so that no connection is missed in between.

mod arms;
mod maps;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramMut};
use thalweg_abi::raw;
use thalweg_abi::{bytes_of, from_bytes};
use thalweg_core::{Host, HostKey, Mode, Params};
use thalweg_policy::Prefix;

pub use arms::{ArmEntry, ArmSpec, ArmTable};
pub use maps::HostBatch;

use crate::system;

/// Maps that are pinned, by their name in the object.
const MAPS: [&str; 11] = [
    "hosts",
    "locks",
    "arms",
    "meta",
    "defaults",
    "strangers",
    "ecn_prefixes",
    "conns",
    "owned",
    "counters",
    "events",
];
/// Links that are pinned: program name, file name.
const LINKS: [(&str, &str); 2] = [
    ("learn_setsockopt", "link_setsockopt"),
    ("learn_sockops", "link_sockops"),
];

/// What the kernel side is to be.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Directory on a bpffs.
    pub pin: PathBuf,
    /// cgroup v2 directory whose sockets are reached.
    pub cgroup: PathBuf,
    /// Parameters of the learner; `rescue_arm` is filled in from `rescue`.
    pub params: Params,
    /// Name of the arm that the loss rule falls back on.
    pub rescue: Option<String>,
    /// Decide, log and score, set nothing.
    pub dry_run: bool,
    /// Prefix lengths of the host key.
    pub ipv4_prefix: u32,
    /// Prefix lengths of the host key.
    pub ipv6_prefix: u32,
    /// Most host records.
    pub hosts_max: u32,
    /// Size of the event ring, bytes.
    pub ring_bytes: u32,
    /// Congestion controls to choose from, system default included.
    pub arms: Vec<ArmSpec>,
    /// Remote prefixes where arms that need ECN may be chosen.
    pub ecn_prefixes: Vec<Prefix>,
    /// Default congestion control by network namespace cookie; others are left alone.
    pub defaults: Vec<(u64, String)>,
    /// Use the variant that reads the kernel's own structures.
    pub kernel_btf: bool,
}

/// Records of another mode that were in the kernel when this agent took over.
#[derive(Debug)]
pub struct Previous {
    /// The mode they belong to.
    pub mode: Mode,
    /// Names of arms by index.
    pub arms: ArmTable,
    /// The records.
    pub hosts: Vec<(HostKey, Host)>,
}

/// The loaded programs and their maps.
pub struct Kernel {
    setup: Setup,
    params: Params,
    links: Vec<Link>,
    maps: BTreeMap<&'static str, MapHandle>,
    arms: Mutex<ArmTable>,
    took_over: bool,
    map_bytes: u64,
    // Keeps programs and unpinned maps alive until the links hold them.
    _object: Object,
}

impl Kernel {
    /// Loads, attaches and pins, taking over what is there. `setup.pin` exists. Nothing is
    /// changed in the kernel before everything has loaded; links come last.
    pub fn start(setup: Setup) -> Result<(Self, Option<Previous>)> {
        let carried = Carried::collect(&setup)?;
        let pin = setup.pin.clone();
        let took_over = carried.took_over;
        Self::start_with(setup, carried).inspect_err(|_| {
            // A first start that fails leaves nothing behind. The error that stopped it is what
            // matters; a pin that stays all the same is cleared by the next start.
            if !took_over {
                let _ = detach(&pin);
            }
        })
    }

    fn start_with(setup: Setup, carried: Carried) -> Result<(Self, Option<Previous>)> {
        let table = ArmTable::layout(setup.params.mode, &carried.arms, &setup.arms)?;
        let mut params = setup.params;
        params.rescue_arm = setup.rescue.as_deref().and_then(|name| table.index(name));

        let object = load(&setup, &params)?;
        let mut maps = BTreeMap::new();
        for map in object.maps() {
            if let Some(name) = MAPS.iter().find(|name| map.name() == **name) {
                maps.insert(*name, MapHandle::try_from(&map)?);
            }
        }
        if maps.len() != MAPS.len() {
            bail!("the BPF object lacks a map (found {:?})", maps.keys());
        }
        let map_bytes = maps
            .values()
            .filter_map(|map| map.query_fdinfo().ok()?.memlock)
            .sum();
        let mut kernel = Self {
            params,
            links: Vec::new(),
            maps,
            arms: Mutex::new(table),
            took_over: carried.took_over,
            map_bytes,
            _object: object,
            setup,
        };
        kernel.write_arms()?;
        kernel.write_ecn_prefixes(&kernel.setup.ecn_prefixes)?;
        for (netns, name) in &kernel.setup.defaults {
            kernel.set_default(*netns, kernel.arms()?.index(name))?;
        }
        kernel.write_meta()?;
        for (key, host) in &carried.hosts {
            kernel.insert_host(key, host)?;
        }
        kernel.attach()?;
        Ok((kernel, carried.previous))
    }

    fn write_meta(&self) -> Result<()> {
        let meta = raw::thalweg_meta {
            abi_version: raw::THALWEG_ABI_VERSION,
            mode: mode_number(self.params.mode),
            host_bytes: size_of::<raw::thalweg_host>() as u32,
            event_bytes: size_of::<raw::thalweg_event>() as u32,
            hosts_max: u64::from(self.setup.hosts_max),
        };
        self.map("meta")
            .update(&0u32.to_ne_bytes(), bytes_of(&meta), MapFlags::ANY)?;
        Ok(())
    }

    fn attach(&mut self) -> Result<()> {
        let cgroup = File::open(&self.setup.cgroup)
            .with_context(|| format!("opening cgroup {}", self.setup.cgroup.display()))?;
        let cgroup_id = cgroup_id(&cgroup)?;
        for (program, file) in LINKS {
            let path = self.setup.pin.join(file);
            let mut programs = self._object.progs_mut();
            let mut program = programs
                .find(|candidate| candidate.name() == program)
                .ok_or_else(|| anyhow!("the BPF object lacks program {program}"))?;
            let link = match pinned_link(&path, cgroup_id)? {
                Some(mut link) => {
                    link.update_prog(&program)
                        .with_context(|| format!("swapping the program of {}", path.display()))?;
                    link
                }
                None => attach_and_pin(&mut program, &cgroup, &path)?,
            };
            self.links.push(link);
        }
        Ok(())
    }

    /// Whether pinned state of an earlier agent was taken up.
    pub fn took_over(&self) -> bool {
        self.took_over
    }

    /// The learner's parameters as loaded.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// What was asked for.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Kernel memory of the maps, bytes.
    pub fn map_bytes(&self) -> u64 {
        self.map_bytes
    }

    /// A map by its name in [`MAPS`].
    fn map(&self, name: &'static str) -> &MapHandle {
        // `start` fails unless every name of MAPS is in the table.
        &self.maps[name]
    }
}

/// The loaded objects are only read through file descriptors, which are safe to share; the
/// one libbpf object kept alive is never touched after `start`.
// SAFETY: see above: `_object` and `links` are only dropped, everything else is `Send + Sync`.
unsafe impl Send for Kernel {}
// SAFETY: as for Send.
unsafe impl Sync for Kernel {}

fn mode_number(mode: Mode) -> u32 {
    match mode {
        Mode::Classic => raw::THALWEG_MODE_CLASSIC,
        Mode::Thalweg => raw::THALWEG_MODE_THALWEG,
    }
}

/// What an earlier agent left in the pin directory, as far as it can be used.
struct Carried {
    took_over: bool,
    arms: ArmTable,
    /// Records to copy into a map of another size.
    hosts: Vec<(HostKey, Host)>,
    previous: Option<Previous>,
}

impl Carried {
    fn collect(setup: &Setup) -> Result<Self> {
        let mut carried = Self {
            took_over: false,
            arms: ArmTable::default(),
            hosts: Vec::new(),
            previous: None,
        };
        if !is_attached(&setup.pin) {
            // Nothing, or what a start that was cut short has left.
            clear(&setup.pin)?;
            return Ok(carried);
        }
        let meta = read_meta(&setup.pin.join("meta"))?;
        carried.took_over = true;
        carried.arms = ArmTable::from_pinned(&setup.pin.join("arms"))?;
        let mode = if meta.mode == raw::THALWEG_MODE_CLASSIC {
            Mode::Classic
        } else {
            Mode::Thalweg
        };
        let hosts_path = setup.pin.join("hosts");
        if mode != setup.params.mode {
            carried.previous = Some(Previous {
                mode,
                arms: std::mem::take(&mut carried.arms),
                hosts: maps::read_all(&MapHandle::from_pinned_path(&hosts_path)?)?,
            });
            // Arm numbers and costs mean something else now: new maps, the links stay.
            for map in MAPS.iter().filter(|map| !is_lent(&setup.pin, map)) {
                remove_pin(&setup.pin.join(map))?;
            }
            return Ok(carried);
        }
        if meta.hosts_max != u64::from(setup.hosts_max) {
            carried.hosts = maps::read_all(&MapHandle::from_pinned_path(&hosts_path)?)?;
            remove_pin(&hosts_path)?;
        }
        let ring_path = setup.pin.join("events");
        if MapHandle::from_pinned_path(&ring_path)
            .is_ok_and(|r| r.max_entries() != setup.ring_bytes)
        {
            remove_pin(&ring_path)?;
        }
        Ok(carried)
    }
}

/// Reads and checks the version record of pinned state.
fn read_meta(path: &Path) -> Result<raw::thalweg_meta> {
    let directory = path.parent().unwrap_or(path).display();
    let map = MapHandle::from_pinned_path(path)
        .with_context(|| format!("opening pinned map {}", path.display()))?;
    let meta: Option<raw::thalweg_meta> = map
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?
        .and_then(|bytes| from_bytes(&bytes));
    let advice = format!(
        "run `thalweg detach` to remove it (connections keep the congestion control they have, \
         the store keeps what was learned), then start again; pinned under {directory}"
    );
    let Some(meta) = meta else {
        bail!("the state pinned in the kernel is of an unknown kernel interface version; {advice}");
    };
    if meta.abi_version != raw::THALWEG_ABI_VERSION
        || meta.host_bytes as usize != size_of::<raw::thalweg_host>()
        || meta.event_bytes as usize != size_of::<raw::thalweg_event>()
    {
        bail!(
            "the state pinned in the kernel has kernel interface version {}, this agent speaks {}; {advice}",
            meta.abi_version,
            raw::THALWEG_ABI_VERSION
        );
    }
    Ok(meta)
}

fn load(setup: &Setup, params: &Params) -> Result<Object> {
    let bytes = if setup.kernel_btf {
        thalweg_abi::LEARN_BTF
    } else {
        thalweg_abi::LEARN
    };
    let mut object = ObjectBuilder::default()
        .name("thalweg")
        .and_then(|builder| builder.open_memory(bytes))
        .context("opening the BPF object")?;
    let raw_params = raw_params(setup, params);
    let mut parameters_set = false;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            "hosts" => map.set_max_entries(setup.hosts_max)?,
            "events" => map.set_max_entries(setup.ring_bytes)?,
            ".rodata.params" => {
                map.set_initial_value(bytes_of(&raw_params))?;
                parameters_set = true;
            }
            _ => {}
        }
        if MAPS.contains(&name.as_str()) {
            map.set_pin_path(setup.pin.join(&name))?;
        }
    }
    if !parameters_set {
        bail!("the BPF object has no section .rodata.params");
    }
    object.load().context(
        "the kernel refused the BPF programs (see the lines above; `thalweg doctor` tells what it supports)",
    )
}

fn raw_params(setup: &Setup, params: &Params) -> raw::thalweg_params {
    raw::thalweg_params {
        mode: mode_number(params.mode),
        dry_run: u32::from(setup.dry_run),
        warm_up: params.warm_up,
        gap_scale: params.gap_scale,
        weight_max_q16: params.weight_max_q16,
        idle_shift: params.idle_shift,
        half_life_ns: params.half_life_ns,
        latency_weight_q16: params.latency_weight_q16,
        latency_guard_us: params.latency_guard_us,
        score_min_bytes: params.score_min_bytes,
        score_full_bytes: params.score_full_bytes,
        loss_shift: params.loss_shift,
        loss_min_segs: params.loss_min_segs,
        rescue_arm: params
            .rescue_arm
            .map_or(raw::THALWEG_NO_ARM, |arm| arm as u32),
        ipv4_prefix: setup.ipv4_prefix,
        ipv6_prefix: setup.ipv6_prefix,
        jiffy_us: if setup.kernel_btf {
            system::jiffy_us()
        } else {
            0
        },
    }
}

/// The number by which the kernel knows a cgroup.
pub(crate) fn cgroup_id(cgroup: &File) -> Result<u64> {
    Ok(cgroup.metadata()?.ino())
}

/// Puts the learner's program behind the policy's, which has just been attached: the programs
/// of a cgroup run in the order in which they came. For the moment between the two steps it
/// runs twice; a connection that is established then counts twice.
pub(crate) fn learn_after_policy(pin: &Path, cgroup: &File) -> Result<()> {
    let path = pin.join("link_sockops");
    if !path.exists() {
        return Ok(());
    }
    let old = Link::open(&path).with_context(|| format!("opening link {}", path.display()))?;
    if attached_to(&old)? != cgroup_id(cgroup)? {
        return Ok(());
    }
    let program = libbpf_rs::Program::fd_from_id(old.info()?.prog_id)
        .context("opening the learner's program (CAP_SYS_ADMIN)")?;
    let new = link_program(program.as_fd(), cgroup)?;
    let beside = pin.join("link_sockops_new");
    remove_pin(&beside)?;
    pin_object(new.as_fd(), &beside)?;
    fs::rename(&beside, &path).with_context(|| format!("replacing {}", path.display()))?;
    // The agent may hold the old link open: closing it here would not detach it.
    old.detach().context("detaching the learner's former link")
}

/// A new link of a program that is loaded already.
fn link_program(program: BorrowedFd<'_>, cgroup: &File) -> Result<OwnedFd> {
    // SAFETY: both descriptors are open for the whole call; no options are passed.
    let fd = unsafe {
        libbpf_rs::libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            cgroup.as_raw_fd(),
            libbpf_rs::libbpf_sys::BPF_CGROUP_SOCK_OPS,
            std::ptr::null(),
        )
    };
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd)).context("attaching the learner anew");
    }
    // SAFETY: fd is a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn pin_object(object: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the descriptor is open and the name is NUL-terminated for the whole call.
    let failed = unsafe { libbpf_rs::libbpf_sys::bpf_obj_pin(object.as_raw_fd(), name.as_ptr()) };
    if failed != 0 {
        return Err(std::io::Error::from_raw_os_error(-failed))
            .with_context(|| format!("pinning {}", path.display()));
    }
    Ok(())
}

/// The pinned link, if there is one and it is on this cgroup; one on another cgroup (or on a
/// cgroup that was removed) is taken away.
pub(crate) fn pinned_link(path: &Path, cgroup_id: u64) -> Result<Option<Link>> {
    if !path.exists() {
        return Ok(None);
    }
    let link = Link::open(path).with_context(|| format!("opening link {}", path.display()))?;
    if attached_to(&link)? == cgroup_id {
        return Ok(Some(link));
    }
    remove_pin(path)?;
    Ok(None)
}

/// The cgroup that a link is on, by its number; 0 if that is gone.
fn attached_to(link: &Link) -> Result<u64> {
    Ok(match link.info()?.info {
        libbpf_rs::query::LinkTypeInfo::Cgroup(info) => info.cgroup_id,
        _ => 0,
    })
}

pub(crate) fn attach_and_pin(
    program: &mut ProgramMut<'_>,
    cgroup: &File,
    path: &Path,
) -> Result<Link> {
    let name = program.name().to_string_lossy().into_owned();
    let mut link = program
        .attach_cgroup(cgroup.as_fd().as_raw_fd())
        .with_context(|| format!("attaching {name} to the cgroup"))?;
    link.pin(path)
        .with_context(|| format!("pinning {}", path.display()))?;
    Ok(link)
}

pub(crate) fn remove_pin(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Whether anything is pinned under `pin`.
pub fn is_attached(pin: &Path) -> bool {
    LINKS.iter().any(|(_, file)| pin.join(file).exists())
}

fn policy_directory(pin: &Path) -> PathBuf {
    pin.join(crate::policy::DIRECTORY)
}

/// Whether a map must stay because the policy program uses it too.
fn is_lent(pin: &Path, map: &str) -> bool {
    map == "owned" && policy_directory(pin).exists()
}

/// Removes everything that an agent pinned under `pin` and so, once no agent holds it,
/// everything from the kernel, but for a policy, which stays in force. Returns the names of what was removed. Connections keep the
/// congestion control they have.
pub fn detach(pin: &Path) -> Result<Vec<String>> {
    let removed = clear(pin)?;
    if policy_directory(pin).exists() {
        return Ok(removed);
    }
    match fs::remove_dir(pin) {
        // Limits and other people's programs live below and are not the agent's.
        Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(removed),
        Err(error) if !removed.is_empty() => {
            Err(error).with_context(|| format!("removing {}", pin.display()))
        }
        _ => Ok(removed),
    }
}

fn clear(pin: &Path) -> Result<Vec<String>> {
    let links = LINKS.iter().map(|(_, file)| *file);
    let mut removed = Vec::new();
    // Links first: the programs stop before their maps go.
    for name in links.chain(MAPS) {
        let path = pin.join(name);
        if path.exists() && !is_lent(pin, name) {
            remove_pin(&path)?;
            removed.push(name.to_string());
        }
    }
    Ok(removed)
}
