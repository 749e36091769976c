//! The kernel side. It loads, attaches and pins programs, or takes over those of an earlier agent,
//! and reads and writes their maps.
//!
//! All pins are in one directory of a bpffs, a file per map or link. Programs keep running when the
//! agent dies. A restarted agent loads its own program with the existing maps, and swaps it into
//! the pinned links. So no connection is missed in between. Maps written by programs are kept;
//! those written by the agent are new with each program.

mod arms;
mod carried;
mod fleet;
mod groups;
pub mod health;
mod maps;
mod named;
mod nat64;
mod open;
mod pins;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ProgramMut};
use thalweg_bpf_objects::names::learn::{maps as names, programs};
use thalweg_bpf_types::{bytes_of, raw};
use thalweg_control::learner::{self, LINKS, is_attached};
use thalweg_control::{former_limits, links, memory, object, policy, system};
use thalweg_learner::{Control, Host, HostKey, Mode, Params};
use thalweg_policy::Prefix;
use thalweg_units::address::Nat64;

pub use arms::{ArmEntry, ArmSpec, ArmTable, error_text};
pub use maps::{HostBatch, trie_entries};
pub use open::{Added, Candidates, Iterator, unless_passing};
pub use pins::find_map;

use crate::config::learner::{Advise, Networks};
use crate::named::Named;
use carried::Carried;
use health::{Keeps, Loaded};
use pins::MAPS;

/// Time without a heartbeat of the agent after which the programs stop trials.
const SILENCE: Duration = Duration::from_secs(600);

/// Most records of the table beyond those of hosts.
const GROUPS_MAX: u32 = 8192;

/// Settings of the kernel side.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Directory on a bpffs.
    pub pin: PathBuf,
    /// cgroup v2 directory whose sockets are covered.
    pub cgroup: PathBuf,
    /// Parameters of the learner; `rescue` sets `rescue_arm`.
    pub params: Params,
    /// Name of the arm that the loss rule chooses.
    pub rescue: Option<String>,
    /// Decide, log and score, but set nothing.
    pub dry_run: bool,
    /// IPv4 prefix length of the host key.
    pub ipv4_prefix: u32,
    /// IPv6 prefix length of the host key.
    pub ipv6_prefix: u32,
    /// Prefixes of NAT64 beside the well-known one; `None`: those of the resolver.
    pub nat64: Option<Vec<Prefix>>,
    /// `[networks]`: whether groups of hosts learn, and the prefix lengths of the narrowest.
    pub networks: Networks,
    /// Networks that the operator names.
    pub named: Arc<Named>,
    /// Whether the agent uses reports of other agents.
    pub fleet: bool,
    /// Mask of the initial windows to choose from; 0: none is chosen.
    pub windows: u16,
    /// The control group.
    pub control: Control,
    /// `[advise]`: whether nothing but trials is set, and their share.
    pub advise: Advise,
    /// Whether choices that are worse than the control group are reverted.
    pub reverts: bool,
    /// Prefix lengths, IPv4 and IPv6, of the control group's clusters.
    pub cluster: (u32, u32),
    /// Largest number of host records.
    pub hosts_max: u32,
    /// Size of the event ring, bytes.
    pub ring_bytes: u32,
    /// Congestion controls to choose from, including the system default.
    pub arms: Vec<ArmSpec>,
    /// Congestion controls with saved records, whether present or not.
    pub remembered: Vec<String>,
    /// Remote prefixes where arms that need ECN may be chosen.
    pub ecn_prefixes: Vec<Prefix>,
    /// Whether network namespaces of ordinary users are in scope.
    pub user_namespaces: bool,
    /// Functions by which features set their parameters.
    pub feature_parameters: Vec<fn(&mut raw::thalweg_params)>,
    /// Maps of features that are kept at take-over.
    pub kept_maps: Vec<&'static str>,
    /// Default congestion control by network namespace cookie; other namespaces are not touched.
    pub defaults: Vec<(u64, String)>,
    /// Whether to use the variant that reads the kernel's own structures.
    pub kernel_btf: bool,
}

impl Setup {
    /// Whether groups of hosts learn, which only mode `thalweg` allows.
    pub fn has_groups(&self) -> bool {
        self.networks.enabled && self.params.mode == Mode::Thalweg
    }

    /// Whether programs search named networks.
    fn has_named(&self) -> bool {
        self.has_groups() && !self.named.is_empty()
    }

    /// Most records after the agent has made room. An eighth is added for groups, at most 8,192,
    /// and as much for records of the fleet.
    fn records_max(&self) -> u32 {
        let groups = match self.has_groups() || self.windows != 0 {
            true => (self.hosts_max / 8).min(GROUPS_MAX),
            false => 0,
        };
        self.hosts_max + groups + self.fleet_max()
    }

    /// Room of the table beyond `records_max`, until the agent makes room.
    fn records_spare(&self) -> u32 {
        (self.hosts_max / 16).clamp(64, 8192)
    }

    /// Size of the table of records.
    fn table_max(&self) -> u32 {
        self.records_max() + self.records_spare()
    }
}

/// Records of another mode that were in the kernel at take-over.
#[derive(Debug)]
pub struct Previous {
    /// Mode of the records.
    pub mode: Mode,
    /// Names of the records' arms by index.
    pub arms: ArmTable,
    /// The records.
    pub hosts: Vec<(HostKey, Host)>,
}

/// State of an earlier agent that is not in the new maps yet.
#[derive(Debug, Default)]
pub struct Left {
    /// Records of another mode.
    pub previous: Option<Previous>,
    /// Records for the new map.
    pub hosts: Vec<(HostKey, Host)>,
    /// Measured connections for the new map, by their slots.
    pub conns: Vec<(u32, raw::thalweg_conn)>,
    /// Whether all records are in the maps or in `hosts`; otherwise the store may have more.
    pub is_whole: bool,
}

/// The loaded programs and their maps.
pub struct Kernel {
    setup: Setup,
    params: Params,
    maps: BTreeMap<&'static str, MapHandle>,
    arms: Mutex<ArmTable>,
    /// Prefixes behind which the programs take an address for IPv4.
    nat64: Mutex<Nat64>,
    /// Mask of the reverted arms.
    reverted: AtomicU32,
    took_over: bool,
    /// Reason that the variant that reads the kernel's own structures is not in use.
    without_btf: Option<String>,
    /// The iterator over long connections; `Ok(None)`: not wanted; `Err`: why it cannot be loaded.
    open: Result<Option<Iterator>, String>,
    /// Maps of an earlier agent that are in use.
    kept: BTreeSet<&'static str>,
    /// Programs that are attached to the cgroup.
    programs: [Loaded; 2],
    keeps: Keeps,
    map_bytes: u64,
    /// The program that clears arms of a record, under its lock.
    forget: OwnedFd,
    // The order matters: `unfinished` is dropped after the programs.
    object: Object,
    unfinished: Unfinished,
}

/// Removes the pins of a failed start. Only the first error matters; the next start removes what
/// remains.
struct Unfinished {
    pin: PathBuf,
    /// Whether nothing was attached before.
    first: bool,
    in_force: AtomicBool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.in_force.load(Ordering::Relaxed) {
            return;
        }
        let _ = pins::discard(&self.pin);
        if self.first {
            let _ = remove_pins(&self.pin);
        }
    }
}

impl Kernel {
    /// Loads the programs and fills their maps, from existing state as far as it is usable.
    /// `setup.pin` exists. Nothing takes effect before [`Kernel::attach`]; dropping the value
    /// before that leaves nothing.
    ///
    /// # Errors
    /// The pins have state of a newer version or of another program, or the kernel refuses.
    pub fn prepare(mut setup: Setup) -> Result<(Self, Left)> {
        let pin = setup.pin.clone();
        // Check before any change: the pins may be a newer agent's.
        carried::check_version(&pin)?;
        pins::check_names(&pin)?;
        let policy_lock = policy::lock_existing(&pin)?;
        pins::settle(&pin)?;
        drop(policy_lock);
        let unfinished = Unfinished {
            first: !is_attached(&pin),
            in_force: AtomicBool::new(false),
            pin,
        };
        let Carried {
            took_over,
            arms: carried_arms,
            reused,
            mut left,
        } = Carried::collect(&setup)?;
        let mut table = ArmTable::layout(setup.params.mode, &carried_arms, &setup.arms, &[])?;
        table.remember(setup.params.mode, &setup.remembered);
        let mut params = setup.params;
        params.rescue_arm = setup.rescue.as_deref().and_then(|name| table.index(name));

        let (object, without_btf) = load(&mut setup, &params, &reused)?;
        let handles = MAPS
            .iter()
            .map(|pinned| Ok((pinned.name, object::find_map(&object, pinned.name)?)))
            .collect::<Result<BTreeMap<_, _>>>()?;
        let forget = object::find_program(&object, programs::FORGET_ARMS)?;
        let forget = forget.as_fd().try_clone_to_owned()?;
        let mut kernel = Self {
            params,
            maps: handles,
            arms: Mutex::new(table),
            nat64: Mutex::default(),
            reverted: AtomicU32::new(0),
            took_over,
            without_btf,
            open: Ok(None),
            kept: reused.keys().copied().collect(),
            programs: Loaded::all(&object)?,
            keeps: Keeps::default(),
            map_bytes: 0,
            forget,
            object,
            unfinished,
            setup,
        };
        kernel.open = kernel.load_iterator()?;
        kernel.write_arms()?;
        kernel.write_ecn_prefixes(&kernel.setup.ecn_prefixes)?;
        kernel.set_nat64(kernel.setup.nat64.as_deref().unwrap_or_default())?;
        kernel.write_named()?;
        // A trie's size depends on its entries.
        let maps = kernel.maps.values();
        kernel.map_bytes = maps
            .filter_map(|map| map.query_fdinfo().ok()?.memlock)
            .sum();
        kernel.write_first_worth()?;
        for (netns, name) in &kernel.setup.defaults {
            kernel.set_default(*netns, kernel.arms()?.index(name))?;
        }
        kernel.bind_meta()?;
        // An agent that was killed while it emptied a slot may have left records in it.
        let renamed = kernel.arms()?.renamed(&carried_arms);
        if reused.contains_key(names::HOSTS) && renamed != 0 {
            kernel.forget_arms(renamed)?;
        }
        kernel.drop_fleet_unless_wanted(&mut left.hosts)?;
        let of_arms = |(key, _): &&mut (HostKey, Host)| !key.level.is_window();
        for (_, host) in left.hosts.iter_mut().filter(of_arms) {
            arms::forget(host, renamed);
        }
        Ok((kernel, left))
    }

    /// Puts the programs and their maps in force, in one step. A failure before that leaves the
    /// existing state unchanged.
    ///
    /// # Errors
    /// A refusal of the kernel, or pins that cannot be written.
    pub fn attach(&self) -> Result<()> {
        let pin = &self.setup.pin;
        let cgroup = File::open(&self.setup.cgroup)
            .with_context(|| format!("opening cgroup {}", self.setup.cgroup.display()))?;
        // A later agent treats a set with this record as complete.
        self.write_meta()?;
        fail_point!("start::version");
        pins::prepare(pin, &self.object)?;
        fail_point!("start::pinned");
        let _policy_lock = policy::lock_existing(pin)?;
        for (program, file, _) in LINKS {
            let mut program = object::find_program(&self.object, program)?;
            put_in_force(&mut program, &cgroup, &pin.join(file))?;
            // Twice: between the two programs, and before the maps have their names.
            fail_point!("start::link");
        }
        self.unfinished.in_force.store(true, Ordering::Relaxed);
        pins::promote(pin)
    }

    /// Binds the version record to the program as one of its maps, so that it can be found again.
    fn bind_meta(&self) -> Result<()> {
        let program = object::find_program(&self.object, learner::MAIN)?;
        // SAFETY: both descriptors are open for the whole call; no options are passed.
        let failed = unsafe {
            libbpf_rs::libbpf_sys::bpf_prog_bind_map(
                program.as_fd().as_raw_fd(),
                self.map(names::META).as_fd().as_raw_fd(),
                std::ptr::null(),
            )
        };
        if failed != 0 {
            return Err(std::io::Error::from_raw_os_error(-failed))
                .context("binding the version record to the program");
        }
        Ok(())
    }

    fn write_meta(&self) -> Result<()> {
        let meta = raw::thalweg_meta {
            abi_version: raw::THALWEG_ABI_VERSION,
            mode: mode_number(self.params.mode),
            host_bytes: size_of::<raw::thalweg_host>() as u32,
            event_bytes: size_of::<raw::thalweg_event>() as u32,
            hosts_max: u64::from(self.setup.hosts_max),
        };
        self.map(names::META)
            .update(&0u32.to_ne_bytes(), bytes_of(&meta), MapFlags::ANY)?;
        Ok(())
    }

    /// Whether pinned state of an earlier agent was taken over.
    pub fn took_over(&self) -> bool {
        self.took_over
    }

    /// The learner's parameters as loaded.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The requested state.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Kernel memory of the maps, bytes.
    pub fn map_bytes(&self) -> u64 {
        self.map_bytes
    }

    /// Reason that the programs do not use the kernel's own structures although it has BTF.
    pub fn without_btf(&self) -> Option<&str> {
        self.without_btf.as_deref()
    }

    /// Whether a map was taken over from an earlier agent.
    pub fn has_kept(&self, map: &str) -> bool {
        self.kept.contains(map)
    }

    /// A map by its name in [`MAPS`].
    pub fn map(&self, name: &'static str) -> &MapHandle {
        // `prepare` fails unless every name of MAPS is in the table.
        &self.maps[name]
    }
}

/// The loaded objects are only read through file descriptors, which are safe to share. The one
/// libbpf object kept alive is never used after `attach`.
// SAFETY: see above: `object` is only dropped, everything else is `Send + Sync`.
unsafe impl Send for Kernel {}
// SAFETY: as for Send.
unsafe impl Sync for Kernel {}

fn mode_number(mode: Mode) -> u32 {
    match mode {
        Mode::Classic => raw::THALWEG_MODE_CLASSIC,
        Mode::Thalweg => raw::THALWEG_MODE_THALWEG,
    }
}

/// Loads the programs with these maps in place of new ones. If the kernel refuses the variant that
/// reads its own structures, the other one is loaded, and the reason is returned.
fn load(
    setup: &mut Setup,
    params: &Params,
    reused: &BTreeMap<&'static str, MapHandle>,
) -> Result<(Object, Option<String>)> {
    let load = |setup: &Setup| {
        object::with_libbpf_log(|| {
            load_variant(setup, params, reused).map_err(|error| {
                let said = object::last_words(&object::take_libbpf_log());
                match memory::is_passing(error.as_ref()) || said.is_empty() {
                    true => error,
                    false => anyhow!("{error:#}: {said}"),
                }
            })
        })
    };
    if !setup.kernel_btf {
        return Ok((load(setup)?, None));
    }
    let why = match load(setup) {
        Ok(object) => return Ok((object, None)),
        // The variant is not at fault. Falling back would be permanent.
        Err(error) if memory::is_passing(error.as_ref()) => return Err(error),
        Err(error) => format!("{error:#}"),
    };
    setup.kernel_btf = false;
    Ok((load(setup)?, Some(why)))
}

fn load_variant(
    setup: &Setup,
    params: &Params,
    reused: &BTreeMap<&'static str, MapHandle>,
) -> Result<Object> {
    // `LEARN` needs only the UAPI, as in user-mode Linux, which has no BTF. `LEARN_BTF` also reads
    // busy time and socket errors by CO-RE.
    let bytes = if setup.kernel_btf {
        thalweg_bpf_objects::LEARN_BTF
    } else {
        thalweg_bpf_objects::LEARN
    };
    let mut object = object::open_object("thalweg", bytes)?;
    let raw_params = raw_params(setup, params);
    let mut parameters_set = false;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            names::HOSTS => map.set_max_entries(setup.table_max())?,
            names::NAMED => map.set_max_entries(setup.named_max())?,
            names::RODATA_NAMED => map.set_initial_value(&setup.named_flag())?,
            names::RODATA_FLEET => map.set_initial_value(&setup.fleet_flag())?,
            names::EVENTS => map.set_max_entries(setup.ring_bytes)?,
            // A policy may be pinning it at the same time: libbpf takes the first pin.
            learner::OWNED => map.set_pin_path(setup.pin.join(&name))?,
            names::RODATA_PARAMS => {
                map.set_initial_value(bytes_of(&raw_params))?;
                parameters_set = true;
            }
            _ => {}
        }
        if let Some(old) = reused.get(name.as_str()) {
            map.reuse_fd(old.as_fd())?;
        }
    }
    if !parameters_set {
        bail!("the BPF object has no section .rodata.params");
    }
    let less = "lower [hosts] max or [events] ring, or shorten the table of [networks]";
    memory::check_available(&object, |map| reused.contains_key(map))
        .with_context(|| format!("the BPF programs are not loaded: {less}"))?;
    object.load().map_err(|error| {
        let advice = if error.kind() == libbpf_rs::ErrorKind::OutOfMemory {
            let available = memory::available_memory();
            let available = available.map(|it| {
                let bytes = memory::mebibytes(it.bytes);
                format!(", of which {bytes} is available ({})", it.of)
            });
            let available = available.unwrap_or_default();
            format!("there is not enough memory for its maps{available}: {less}")
        } else {
            "`thalweg doctor` tells what it supports".to_owned()
        };
        anyhow::Error::new(error).context(format!("the kernel refused the BPF programs ({advice})"))
    })
}

/// Hash of bytes (FNV-1a, folded).
fn hash(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ hash >> 32) as u32
}

fn raw_params(setup: &Setup, params: &Params) -> raw::thalweg_params {
    let learner = raw::thalweg_params {
        mode: mode_number(params.mode),
        dry_run: u32::from(setup.dry_run),
        warm_up: params.warm_up,
        gap_scale: params.gap_scale,
        weight_max_q16: params.weight_max_q16,
        idle_shift: params.idle_shift,
        half_life_ns: params.half_life_ns,
        stretch_ns: params.stretch_ns,
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
        rule: match params.mode {
            Mode::Classic => raw::THALWEG_RULE_CLASSIC,
            Mode::Thalweg => raw::THALWEG_RULE,
        },
        groups: u32::from(setup.has_groups()),
        group_ipv4: setup.networks.ipv4_prefix,
        group_ipv6: setup.networks.ipv6_prefix,
        windows: setup.windows.into(),
        ..raw::thalweg_params::default()
    };
    let mut all = raw::thalweg_params {
        parameters: hash(bytes_of(&learner)),
        control_salt: setup.control.salt,
        control_share_q16: setup.control.share_q16,
        control_permanent_q16: setup.control.permanent_q16,
        cluster_ipv4: setup.cluster.0,
        cluster_ipv6: setup.cluster.1,
        heartbeat_max_ns: SILENCE.as_nanos() as u64,
        advise: u32::from(setup.advise.only),
        ..learner
    };
    for set in &setup.feature_parameters {
        set(&mut all);
    }
    all
}

/// Puts a program in force: it replaces the program of the pinned link. Without a link on this
/// cgroup, a new link replaces one on another cgroup.
fn put_in_force(program: &mut ProgramMut<'_>, cgroup: &File, path: &Path) -> Result<()> {
    if let Some(mut link) = links::open_link(path)?
        && links::attached_to(&link)? == Some(links::cgroup_id(cgroup)?)
    {
        return link
            .update_prog(program)
            .with_context(|| format!("swapping the program of {}", path.display()));
    }
    let beside = links::replacement_path(path);
    // The link's pin keeps it attached.
    drop(links::attach_and_pin(program, cgroup, &beside)?);
    fail_point!("start::beside");
    fs::rename(&beside, path).with_context(|| format!("replacing {}", path.display()))
}

fn policy_directory(pin: &Path) -> PathBuf {
    pin.join(policy::DIRECTORY)
}

/// Whether a map must stay since the policy program also uses it.
fn is_lent(pin: &Path, map: &str) -> bool {
    // An interrupted command may leave the directory empty.
    let has_pins =
        || fs::read_dir(policy_directory(pin)).is_ok_and(|mut entries| entries.next().is_some());
    map == learner::OWNED && has_pins()
}

/// Removes all pins of an agent under `pin`, and limits of earlier versions. Returns the names of
/// the removed pins. A policy stays in force. Without an agent the kernel then frees the objects.
/// Connections keep their congestion control.
///
/// # Errors
/// System errors.
pub fn remove_pins(pin: &Path) -> Result<Vec<String>> {
    let mut removed = pins::clear(pin, |map| is_lent(pin, map))?;
    removed.extend(former_limits::remove_limits(pin)?);
    if policy_directory(pin).exists() {
        return Ok(removed);
    }
    match fs::remove_dir(pin) {
        // Other programs' pins below it are not the agent's. Nor is a BPF file system that was
        // mounted here.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy
            ) =>
        {
            Ok(removed)
        }
        Err(error) if !removed.is_empty() => {
            Err(error).with_context(|| format!("removing {}", pin.display()))
        }
        _ => Ok(removed),
    }
}
