//! This machine's mounts, congestion controls, namespaces, privileges.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, NSFS_MAGIC, fstatfs, statfs};
use nix::time::{ClockId, clock_getres, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
pub use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use thalweg_units::program;

use crate::error::{Context, Result, bail};
use crate::privileges;

const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const DEFAULT: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
/// File of the process's own network namespace.
const OWN_NAMESPACE: &str = "/proc/self/ns/net";
/// Mount point of bpffs on every distribution.
pub const BPFFS: &str = "/sys/fs/bpf";
/// Mount point of control groups on every distribution.
const CGROUPS: &str = "/sys/fs/cgroup";
/// How a command enters a network namespace and keeps the mounts of the machine.
const NSENTER: &str = "enter a network namespace with `nsenter --net=/run/netns/NAME thalweg ...`, \
    which keeps the machine's mounts; `ip netns exec` and `unshare --mount` do not";
/// Request for the user namespace that owns a namespace (linux/nsfs.h).
const NS_GET_USERNS: libc::Ioctl = 0xb701;
/// `SO_NETNS_COOKIE` (asm-generic/socket.h), Linux 5.14.
const SO_NETNS_COOKIE: i32 = 71;

/// A mounted file system: a line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Major and minor number of the file system's device.
    device: String,
    /// The directory of the file system that is mounted.
    pub root: String,
    pub point: PathBuf,
    pub kind: String,
    /// Options of the file system, such as the controllers of cgroup v1.
    pub options: String,
}

pub(crate) fn mounts_in(mountinfo: &str) -> impl Iterator<Item = Mount> {
    mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let device = left.next()?.to_owned();
        let root = left.next()?.to_owned();
        let point = left.next()?;
        let mut right = right.split(' ');
        Some(Mount {
            device,
            root,
            point: PathBuf::from(point.replace("\\040", " ")),
            kind: right.next()?.to_owned(),
            options: right.nth(1).unwrap_or_default().to_owned(),
        })
    })
}

/// Mounts of a process; `self` or `1`.
fn mounts_of(process: &str) -> Result<Vec<Mount>> {
    let file = format!("/proc/{process}/mountinfo");
    let text = fs::read_to_string(&file).with_context(|| format!("reading {file}"))?;
    Ok(mounts_in(&text).collect())
}

/// Mount points of BPF file systems.
pub fn bpffs_mounts() -> Vec<PathBuf> {
    let mounts = mounts_of("self").unwrap_or_default().into_iter();
    let bpffs = mounts.filter(|mount| mount.kind == "bpf");
    bpffs.map(|mount| mount.point).collect()
}

/// Whether this process sees all pins of the machine: each BPF file system that it or the machine's
/// first process has is mounted here as a whole. False where there is none.
pub fn sees_all_pins() -> bool {
    // A file system that goes between the two lists is in neither the second time.
    (0..2).any(|_| {
        let of_init = mounts_of("1").unwrap_or_default();
        mounts_of("self").is_ok_and(|own| has_whole_bpffs(&of_init, &own))
    })
}

fn has_whole_bpffs(of_init: &[Mount], own: &[Mount]) -> bool {
    let is_whole = |mount: &Mount| {
        let mut same = own.iter().filter(|it| it.device == mount.device);
        same.any(|it| it.root == "/")
    };
    let all = of_init.iter().chain(own);
    let bpffs: Vec<&Mount> = all.filter(|mount| mount.kind == "bpf").collect();
    !bpffs.is_empty() && bpffs.into_iter().all(is_whole)
}

/// Mount point of cgroup v2, from `/proc/self/mountinfo`.
pub fn cgroup2_mount() -> Result<PathBuf> {
    let is_cgroup2 = |mount: &Mount| mount.kind == "cgroup2";
    if let Some(mount) = mounts_of("self")?.into_iter().find(is_cgroup2) {
        return Ok(mount.point);
    }
    bail!(
        Unsupported,
        "no cgroup v2 hierarchy is mounted; {}",
        cgroup2_hint()
    )
}

/// Hint how to mount cgroup v2 again.
pub fn cgroup2_hint() -> String {
    let of_init = mounts_of("1").unwrap_or_default();
    if of_init.iter().any(|mount| mount.kind == "cgroup2") {
        return format!("this process has mounts of its own: {NSENTER}");
    }
    // Version 1 has a tmpfs there, in which there is room for a directory.
    let has_v1 = of_init
        .iter()
        .any(|mount| mount.point == Path::new(CGROUPS));
    match has_v1 {
        true => format!(
            "mount one with: mkdir -p {CGROUPS}/unified && mount -t cgroup2 none {CGROUPS}/unified"
        ),
        false => format!("mount one with: mount -t cgroup2 none {CGROUPS}"),
    }
}

/// Whether a cgroup v2 directory is the root of the hierarchy, not just the root that a container
/// sees. The root has number 1 (`cgroup_setup_root` in kernel/cgroup/cgroup.c).
pub fn is_root_cgroup(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.ino() == 1)
}

/// Fails unless a path is a directory of a cgroup v2 hierarchy.
pub fn check_cgroup2(path: &Path) -> Result<()> {
    let fault = match statfs(path) {
        Ok(stat) if stat.filesystem_type() == CGROUP2_SUPER_MAGIC && path.is_dir() => {
            return Ok(());
        }
        Ok(_) => "is not a cgroup v2 directory",
        Err(nix::Error::ENOENT) => "does not exist",
        Err(error) => bail!(Invalid, "cgroup {}: {}", path.display(), error.desc()),
    };
    let mount = cgroup2_mount()?;
    bail!(
        Invalid,
        "{} {fault}; expected a cgroup v2 directory under {}: make it with mkdir, or name another",
        path.display(),
        mount.display()
    )
}

/// Congestion controls the kernel offers now, in its own order.
pub fn available_ccs() -> Result<Vec<String>> {
    let text = fs::read_to_string(AVAILABLE).with_context(|| format!("reading {AVAILABLE}"))?;
    Ok(text.split_whitespace().map(str::to_string).collect())
}

/// The default congestion control of the caller's network namespace.
pub fn default_cc() -> Result<String> {
    let text = fs::read_to_string(DEFAULT).with_context(|| format!("reading {DEFAULT}"))?;
    Ok(text.trim().to_string())
}

/// The most that a send buffer grows to in the caller's network namespace, bytes: the third number of
/// `net.ipv4.tcp_wmem`.
pub fn send_buffer_max() -> Option<u64> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").ok()?;
    text.split_whitespace().nth(2)?.parse().ok()
}

/// Asks modprobe for `tcp_NAME` of each name that the kernel does not offer yet. Without the
/// module, or without modprobe, nothing changes.
pub fn load_modules(names: &[String]) {
    let Ok(present) = available_ccs() else { return };
    for name in names.iter().filter(|name| !present.contains(name)) {
        // The list of available controls, read later, shows the outcome.
        let _ = program::program_command("modprobe")
            .args(["-q", &format!("tcp_{name}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// Whether the kernel has its own type information (BTF).
pub fn has_kernel_btf() -> bool {
    Path::new(KERNEL_BTF).exists()
}

/// Length of a kernel tick in µs: the resolution of the coarse clock.
pub fn jiffy_us() -> u32 {
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map(Duration::from);
    tick.ok()
        .filter(|tick| tick.as_secs() == 0)
        .map_or(0, |tick| tick.subsec_micros())
}

/// The kernel's own CLOCK_MONOTONIC, ns: the clock of `bpf_ktime_get_ns`, also where this process is
/// in a time namespace, whose clock has an offset.
pub fn monotonic_ns() -> u64 {
    static OFFSET_NS: OnceLock<i64> = OnceLock::new();
    let offset_ns = *OFFSET_NS.get_or_init(|| {
        let offsets = fs::read_to_string("/proc/self/timens_offsets");
        monotonic_offset_ns(&offsets.unwrap_or_default())
    });
    clock_ns(ClockId::CLOCK_MONOTONIC).saturating_add_signed(offset_ns.saturating_neg())
}

/// Offset that a time namespace adds to CLOCK_MONOTONIC, ns, from `/proc/PID/timens_offsets`
/// (time_namespaces(7)): a line `monotonic SECONDS NANOSECONDS`.
fn monotonic_offset_ns(offsets: &str) -> i64 {
    let of_line = |line: &str| {
        let mut words = line.split_whitespace();
        let clock = words.next()?;
        let (seconds, ns) = (
            words.next()?.parse::<i64>().ok()?,
            words.next()?.parse::<i64>().ok()?,
        );
        (clock == "monotonic" || clock == "1").then(|| seconds.saturating_mul(1_000_000_000) + ns)
    };
    offsets.lines().find_map(of_line).unwrap_or(0)
}

/// Wall clock, ns since 1970.
pub fn wall_ns() -> u64 {
    clock_ns(ClockId::CLOCK_REALTIME)
}

/// Wall clock at which the machine started, ns since 1970, by the clock as it is set now.
pub fn boot_wall_ns() -> u64 {
    wall_ns().saturating_sub(clock_ns(ClockId::CLOCK_BOOTTIME))
}

/// Processor time of the calling thread, ns.
pub fn thread_time_ns() -> u64 {
    clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: ClockId) -> u64 {
    // These clocks always exist.
    let now = clock_gettime(clock).map_or(Duration::ZERO, Duration::from);
    now.as_nanos() as u64
}

/// Identity of this boot of the kernel.
pub fn boot_id() -> Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("reading boot_id")?;
    Ok(text.trim().to_string())
}

/// Cookie of the calling thread's network namespace, as BPF programs see it.
pub fn netns_cookie() -> Result<u64> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| {
        // The loopback of a fresh namespace may be down.
        std::net::UdpSocket::bind("0.0.0.0:0")
    })?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: cookie and length are valid for the call and match in size.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error())
            .context("SO_NETNS_COOKIE (network namespace cookies need Linux 5.14)");
    }
    Ok(cookie)
}

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkNamespace {
    /// Cookie of the namespace.
    pub cookie: u64,
    /// Number of the namespace's file in /proc.
    pub file: u64,
    /// Default congestion control.
    pub default_cc: String,
    /// Third number of its `net.ipv4.tcp_wmem`, bytes; `None`: it cannot be read.
    pub send_buffer_max: Option<u64>,
    /// Number of TCP sockets of both families at `counted_ns`, those in TIME_WAIT left out; `None`: they
    /// cannot be counted.
    pub sockets: Option<u64>,
    /// Monotonic time just before they were counted, ns.
    pub counted_ns: u64,
}

/// The network namespaces of all processes that can be entered. Others (no CAP_SYS_ADMIN, or
/// removed by now) are left out. So are those of user namespaces, unless `users` is set: any user
/// may create one.
pub fn entered_namespaces(users: bool) -> Vec<NetworkNamespace> {
    let ask = || {
        Some(NetworkNamespace {
            cookie: netns_cookie().ok()?,
            file: fs::metadata("/proc/thread-self/ns/net").ok()?.ino(),
            default_cc: default_cc().ok()?,
            send_buffer_max: send_buffer_max(),
            counted_ns: monotonic_ns(),
            sockets: tcp_sockets(),
        })
    };
    in_namespaces(move |file| is_entered(file, users), ask)
}

/// TCP sockets of the thread's network namespace (net/ipv4/proc.c, `sockstat_seq_show`).
fn tcp_sockets() -> Option<u64> {
    let read = |file: &str| fs::read_to_string(Path::new("/proc/thread-self/net").join(file));
    // Without IPv6 there is no second file.
    let text = read("sockstat").ok()? + &read("sockstat6").unwrap_or_default();
    let in_use = |start| {
        let counted = text.lines().find_map(|line| line.strip_prefix(start))?;
        counted.split(' ').next()?.parse::<u64>().ok()
    };
    Some(in_use("TCP: inuse ")? + in_use("TCP6: inuse ").unwrap_or(0))
}

/// Whether a network namespace is none of a user namespace, unless `users` is set.
pub fn is_entered(namespace: &fs::File, users: bool) -> bool {
    users || user_namespace_id(namespace) == own_user_namespace()
}

/// Identity of the user namespace that owns a network namespace; `None` if it is an ancestor of
/// ours, which we may not see.
fn user_namespace_id(namespace: &fs::File) -> Option<u64> {
    // SAFETY: NS_GET_USERNS takes no argument; the descriptor is open for the whole call.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) };
    if fd < 0 {
        return None;
    }
    // SAFETY: fd is a fresh descriptor that nobody else owns.
    let owner = fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    Some(owner.metadata().ok()?.ino())
}

fn own_user_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/user").ok()?.ino())
}

/// Calls a function in every wanted network namespace that can be entered, the caller's own first;
/// returns the results.
pub fn in_namespaces<T: Send + 'static>(
    wanted: impl Fn(&fs::File) -> bool + Send + 'static,
    ask: impl Fn() -> Option<T> + Send + 'static,
) -> Vec<T> {
    let asked = in_namespaces_of(namespace_files, wanted, move |_| ask());
    asked.answers
}

/// Answers of a function that ran in network namespaces.
#[derive(Debug)]
pub struct NamespaceAnswers<T> {
    /// One for each namespace, the caller's own first.
    pub answers: Vec<T>,
    /// Processor time that it took.
    pub time: Duration,
}

/// Calls a function, with the file's name, in every wanted network namespace of those of `files`,
/// each once, and in the caller's own if it is among them. One that cannot be entered is left out.
pub fn in_namespaces_of<T: Send + 'static>(
    files: impl FnOnce() -> Vec<PathBuf> + Send + 'static,
    wanted: impl Fn(&fs::File) -> bool + Send + 'static,
    ask: impl Fn(&Path) -> Option<T> + Send + 'static,
) -> NamespaceAnswers<T> {
    let work = move || {
        let own = Path::new(OWN_NAMESPACE);
        // We are in our own: asked first, it needs no privilege.
        let mut files = files();
        files.sort_by_key(|path| path != own);
        let enter = |path: &Path, file: &fs::File| {
            path == own
                || wanted(file)
                    && nix::sched::setns(file.as_fd(), nix::sched::CloneFlags::CLONE_NEWNET).is_ok()
        };
        let answers = open_namespaces(files)
            .filter(|(path, file)| enter(path, file))
            .filter_map(|(path, _)| ask(&path))
            .collect();
        NamespaceAnswers {
            answers,
            time: Duration::from_nanos(thread_time_ns()),
        }
    };
    let worker = std::thread::spawn(move || privileges::with_raised(work));
    worker.join().unwrap_or_else(|_| NamespaceAnswers {
        answers: Vec::new(),
        time: Duration::ZERO,
    })
}

/// Open network namespaces, each once: the caller's own first, then those of all processes and the
/// named ones. A namespace that cannot be opened (removed by now, or not visible to us) is left
/// out.
pub fn network_namespaces() -> impl Iterator<Item = (PathBuf, fs::File)> {
    open_namespaces(namespace_files())
}

/// Files of network namespaces: the process's own first, then those of all processes and the named
/// ones. Several may be of the same one.
pub fn namespace_files() -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::from(OWN_NAMESPACE)];
    if let Ok(entries) = fs::read_dir("/proc") {
        paths.extend(
            entries
                .flatten()
                .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
                .map(|entry| entry.path().join("ns/net")),
        );
    }
    // Named namespaces need no process in them.
    if let Ok(entries) = fs::read_dir("/run/netns") {
        paths.extend(entries.flatten().map(|entry| entry.path()));
    }
    paths
}

/// The namespaces of these files, each once.
fn open_namespaces(paths: Vec<PathBuf>) -> impl Iterator<Item = (PathBuf, fs::File)> {
    let mut seen = HashSet::new();
    paths.into_iter().filter_map(move |path| {
        let file = fs::File::open(&path).ok()?;
        // A named one begins and ends as a plain file.
        let is_namespace = fstatfs(&file).ok()?.filesystem_type() == NSFS_MAGIC;
        (is_namespace && seen.insert(file.metadata().ok()?.ino())).then_some((path, file))
    })
}

/// Runs a function in a network namespace, on a thread of its own.
///
/// # Errors
/// A namespace that cannot be entered (CAP_SYS_ADMIN), or the function's error.
pub fn run_in_namespace<T: Send>(
    namespace: &fs::File,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            nix::sched::setns(namespace.as_fd(), nix::sched::CloneFlags::CLONE_NEWNET)
                .context("entering it (CAP_SYS_ADMIN)")?;
            work()
        });
        worker
            .join()
            .unwrap_or_else(|_| bail!(Damaged, "the work in the network namespace panicked"))
    })
}

/// Cookie of the network namespace of a file such as `/run/netns/NAME`.
pub fn netns_cookie_of(path: &Path) -> Result<u64> {
    let file = fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
    run_in_namespace(&file, netns_cookie)
}

/// Ensures that `path` is on a bpffs; mounts one at [`BPFFS`] if it is missing.
pub fn ensure_bpffs(path: &Path) -> Result<()> {
    let existing = existing_part(path);
    if is_bpffs(existing)? {
        return check_outlives(existing);
    }
    if path.starts_with(BPFFS) && existing == Path::new(BPFFS) {
        nix::mount::mount(
            Some("bpf"),
            BPFFS,
            Some("bpf"),
            nix::mount::MsFlags::empty(),
            Some("mode=0700"),
        )
        .with_context(|| format!("mounting a BPF file system at {BPFFS}"))?;
        return check_outlives(existing).inspect_err(|_| {
            // The mount is seen by this process alone, and nothing is on it.
            let _ = nix::mount::umount(BPFFS);
        });
    }
    bail!(
        Unsupported,
        "{0} is not on a BPF file system; use a path under {BPFFS}, or mount one: mkdir -p {0} && \
         mount -t bpf -o mode=0700 bpf {0}",
        path.display()
    )
}

/// Fails if a BPF file system is mounted for this process and its kin alone: what is pinned there
/// ends with them.
pub fn check_outlives(bpffs: &Path) -> Result<()> {
    let device = fs::metadata(bpffs)
        .with_context(|| format!("looking at {}", bpffs.display()))?
        .dev();
    let device = format!("{}:{}", libc::major(device), libc::minor(device));
    // Without sight of the first process nothing is known.
    let of_init = mounts_of("1").unwrap_or_default();
    if of_init.is_empty() || of_init.iter().any(|mount| mount.device == device) {
        return Ok(());
    }
    bail!(
        Unsupported,
        "the BPF file system at {} is mounted for this process alone, and what is pinned there ends \
         with it: {NSENTER}",
        bpffs.display()
    )
}

/// Whether pins of a command outlive it where it cannot see the machine's first process: in words
/// why that is not known. Where it does see it, [`ensure_bpffs`] decides.
///
/// # Errors
/// Pins end with the command, which would mount the BPF file system itself.
pub fn doubt_about_pins(pin: &Path) -> Result<Option<String>> {
    if privileges::check_privileges().is_err() {
        return Ok(None);
    }
    // The first process of a PID namespace sees itself there.
    let is_first = std::process::id() == 1;
    if !is_first && mounts_of("1").is_ok_and(|mounts| !mounts.is_empty()) {
        return Ok(None);
    }
    let existing = existing_part(pin);
    let why = match is_first {
        true => "this process is the first of its PID namespace",
        false => "/proc does not show this process's PID namespace",
    };
    if !has_pins(existing) {
        bail!(
            Unsupported,
            "no BPF file system is mounted at {}, and {why}: what is pinned would end with it; \
             {NSENTER}",
            pin.display()
        );
    }
    Ok(Some(format!(
        "what is pinned ends with this command if the BPF file system at {} is mounted for it alone, \
         which cannot be known, as {why}; {NSENTER}",
        existing.display()
    )))
}

/// Fails where pins of the machine are hidden from this process: it would find nothing.
pub fn check_sees_pins(pin: &Path) -> Result<()> {
    let existing = existing_part(pin);
    if has_pins(existing) {
        return check_outlives(existing);
    }
    let of_init = mounts_of("1").unwrap_or_default().into_iter();
    let mut bpffs = of_init.filter(|mount| mount.kind == "bpf" && pin.starts_with(&mount.point));
    match bpffs.next() {
        None => Ok(()),
        Some(mount) => bail!(
            Unsupported,
            "the BPF file system at {} is not mounted for this process: {NSENTER}",
            mount.point.display()
        ),
    }
}

/// The part of a path that exists.
pub(crate) fn existing_part(path: &Path) -> &Path {
    let existing = path.ancestors().find(|path| path.exists());
    existing.unwrap_or(Path::new("/"))
}

/// Whether a path is on a bpffs.
pub fn is_bpffs(path: &Path) -> Result<bool> {
    let stat = statfs(path).with_context(|| format!("statfs {}", path.display()))?;
    Ok(stat.filesystem_type() == BPF_FS_MAGIC)
}

/// Whether there may be pins at a path: files elsewhere are somebody's.
pub fn has_pins(path: &Path) -> bool {
    is_bpffs(path).unwrap_or(false)
}

/// Another process, by a descriptor: its number cannot be reused for a third one.
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// The process with a number.
    ///
    /// # Errors
    /// The process does not exist.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// The process has ended, or this process may not signal it.
    pub fn send_signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.0, signal)?)
    }

    /// Waits for its end; false if it runs longer.
    pub fn ends_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut watched = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut watched, Timespec::try_from(left).ok().as_ref()) {
                Ok(1) => return true,
                // A signal arrived.
                Err(_) if !left.is_zero() => {}
                _ => return false,
            }
        }
    }
}

/// Returns freed memory to the system after a large allocation.
pub fn trim_memory() {
    // SAFETY: malloc_trim has no preconditions. Where the C library has none, nothing is done.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Resident memory of this process, bytes.
pub fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok())
        .unwrap_or(0);
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    pages * page.and_then(|page| page.try_into().ok()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_line_yields_device_point_and_kind() {
        let mountinfo = "\
24 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
25 24 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
26 24 0:24 / /sys/fs/cgroup/uni\\040fied rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        let mounts: Vec<Mount> = mounts_in(mountinfo).collect();
        let kinds: Vec<&str> = mounts.iter().map(|mount| mount.kind.as_str()).collect();
        assert_eq!(kinds, ["tmpfs", "cgroup", "cgroup2"]);
        let expected = Mount {
            device: "0:24".to_owned(),
            root: "/".to_owned(),
            point: PathBuf::from("/sys/fs/cgroup/uni fied"),
            kind: "cgroup2".to_owned(),
            options: "rw".to_owned(),
        };
        assert_eq!(mounts[2], expected);
    }

    #[test]
    fn pins_are_all_seen_where_every_bpffs_is_mounted_whole() {
        let mounts = |lines: &[&str]| -> Vec<Mount> {
            let lines = lines
                .iter()
                .map(|line| format!("1 2 {line} rw - bpf bpf rw\n"));
            mounts_in(&lines.collect::<String>()).collect()
        };
        let (whole, part) = ("0:39 / /sys/fs/bpf", "0:39 /a /sys/fs/bpf/a");
        let other = "0:40 / /run/bpf";
        let cases: [(&[&str], &[&str], bool); 7] = [
            (&[whole], &[whole], true),
            (&[whole], &[whole, part, other], true),
            (&[], &[whole], true),
            (&[whole], &[part], false),
            (&[whole, other], &[whole], false),
            // The first process of a container is not the machine's.
            (&[part], &[part], false),
            (&[], &[], false),
        ];
        for (of_init, own, expected) in cases {
            let sees = has_whole_bpffs(&mounts(of_init), &mounts(own));
            assert_eq!(sees, expected, "{of_init:?} {own:?}");
        }
    }

    #[test]
    fn time_namespace_offset_is_read() {
        let text = "monotonic       -1500         250\nboottime           7         0\n";
        assert_eq!(monotonic_offset_ns(text), -1_499_999_999_750);
        assert_eq!(monotonic_offset_ns("boottime 7 0\n"), 0);
        assert_eq!(monotonic_offset_ns(""), 0);
    }

    #[test]
    fn a_file_that_is_no_namespace_is_left_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let own = PathBuf::from(OWN_NAMESPACE);
        let found = open_namespaces(vec![file.path().to_owned(), own.clone()]);
        let found: Vec<PathBuf> = found.map(|(path, _)| path).collect();
        assert_eq!(found, [own]);
    }

    #[test]
    fn a_tick_is_between_a_tenth_of_a_millisecond_and_a_tenth_of_a_second() {
        let tick = jiffy_us();
        assert!((100..=100_000).contains(&tick), "{tick}");
    }

    #[test]
    fn the_kernel_offers_its_own_default() {
        let default = default_cc().unwrap();
        assert!(available_ccs().unwrap().contains(&default));
    }
}
