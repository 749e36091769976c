//! Two fresh network namespaces with a TUN device each, without root.
//!
//! A child process enters a new user namespace (an ordinary user may), makes
//! the network namespaces and their devices there, sends the descriptors back
//! and ends. From then on the descriptors alone keep everything alive: whatever
//! ends this process removes it all.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut, Read, Seek};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, getegid, geteuid};
use thalweg_process::capabilities::{self, CapabilitySet};

use crate::error::Error;
use crate::resolv;
use crate::tun::{self, Addresses, Fault};

/// Where the command runs.
pub const NEAR: Addresses = Addresses {
    v4: Ipv4Addr::new(100, 64, 0, 2),
    prefix_v4: 24,
    v6: Ipv6Addr::new(0xfd74, 0x6861, 0x6c77, 0, 0, 0, 0, 2),
    sends_all: true,
    sends_all_v6: false,
    forwards_v6: false,
};

/// The other end.
pub const FAR: Addresses = Addresses {
    v4: Ipv4Addr::new(100, 64, 0, 1),
    v6: Ipv6Addr::new(0xfd74, 0x6861, 0x6c77, 0, 0, 0, 0, 1),
    sends_all: false,
    ..NEAR
};

/// The most descriptors that a child sends: per end the namespace, the device and
/// the counters; then the user namespace, or any descriptor if there is none.
const DESCRIPTORS: usize = 7;

/// Capabilities of a command in its user namespace, though it is not root there: for `ip`, `tc`, `tcpdump` and
/// `/proc/sys/net`, and low ports.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_ADMIN);

/// Both ends of a link.
#[derive(Debug)]
pub struct Endpoints {
    /// None where the caller is privileged and needs none.
    user: Option<OwnedFd>,
    /// Where the command runs.
    pub near: Endpoint,
    /// The other end.
    pub far: Endpoint,
    /// Whether the kernel has IPv6.
    pub has_v6: bool,
    /// Addresses of near and far.
    pub addresses: [Addresses; 2],
    /// The text of /etc/resolv.conf for commands at the near end, if it is not the machine's.
    pub(crate) resolv_conf: Option<String>,
}

/// One end: a namespace and the device in it.
#[derive(Debug)]
pub struct Endpoint {
    /// None: the machine's own, where nothing may be started or killed.
    namespace: Option<OwnedFd>,
    /// Each read is a packet that the end sent, each write one that it gets.
    pub device: File,
    /// The namespace's own /proc/net/dev.
    counters: File,
    /// The device's name.
    name: String,
}

impl Endpoints {
    /// Makes both. The process must have one thread, and it forks.
    ///
    /// # Errors
    /// [`Error::Missing`] where the machine does not allow it, with what to do.
    pub fn create_pair() -> Result<Self, Error> {
        Self::create_with_addresses([NEAR, FAR])
    }

    /// As [`Endpoints::create_pair`], with these addresses of near and far.
    pub(crate) fn create_with_addresses(addresses: [Addresses; 2]) -> Result<Self, Error> {
        let [near, far] = addresses;
        let (has_v6, user, ends) = make_ends([far, near])?;
        let [far, near] = ends;
        Ok(Self {
            user,
            near,
            far,
            has_v6,
            addresses,
            resolv_conf: None,
        })
    }

    /// Makes the near end; the far one is a device of the machine, which root has made.
    pub(crate) fn create_near_end(far: Endpoint, addresses: [Addresses; 2]) -> Result<Self, Error> {
        let (has_v6, user, [near]) = make_ends([addresses[0]])?;
        Ok(Self {
            user,
            near,
            far,
            has_v6,
            addresses,
            resolv_conf: None,
        })
    }

    /// Makes descriptors at the near end, by a child process. This process must have one thread.
    pub fn at_near<const COUNT: usize>(
        &self,
        make: impl FnOnce() -> Result<[OwnedFd; COUNT], Fault>,
    ) -> Result<[OwnedFd; COUNT], Error> {
        self.open_at(&self.near, make)
    }

    /// Opens descriptors at either end, as [`Endpoints::at_near`].
    pub(crate) fn open_at<const COUNT: usize>(
        &self,
        end: &Endpoint,
        make: impl FnOnce() -> Result<[OwnedFd; COUNT], Fault>,
    ) -> Result<[OwnedFd; COUNT], Error> {
        let entrance = self.open_entrance(end)?;
        let answer = by_a_child(|| {
            let entered = entrance.enter_namespace();
            entered.map_err(|error| ("enter a network namespace", error))?;
            Ok(Built {
                descriptors: make()?.into(),
                has_v6: false,
            })
        })?;
        answer.into_descriptors(self.user.is_some())
    }

    /// The way into one end.
    pub fn open_entrance(&self, end: &Endpoint) -> Result<Entrance, Error> {
        let copy = |fd: &OwnedFd| {
            fd.try_clone()
                .map_err(Error::system("cannot duplicate a descriptor"))
        };
        let Some(network) = &end.namespace else {
            return Err(Error::Options(
                "the far end of --outside is the machine: nothing is started there".to_owned(),
            ));
        };
        let is_near = std::ptr::eq(end, &self.near);
        Ok(Entrance {
            user: self.user.as_ref().map(copy).transpose()?,
            network: copy(network)?,
            resolv_conf: self.resolv_conf.clone().filter(|_| is_near),
        })
    }
}

impl Endpoint {
    /// An end in the machine's own namespace, at a device that was made there.
    pub(crate) fn on_the_machine(device: File, name: String) -> Result<Self, Error> {
        let path = "/proc/self/net/dev";
        Ok(Self {
            namespace: None,
            device,
            counters: File::open(path).map_err(Error::io("cannot open", path))?,
            name,
        })
    }

    /// Identity of the namespace: device and inode. None for the machine's own.
    pub fn namespace_identity(&self) -> io::Result<Option<(u64, u64)>> {
        let Some(namespace) = &self.namespace else {
            return Ok(None);
        };
        let metadata = File::from(namespace.try_clone()?).metadata()?;
        Ok(Some((metadata.dev(), metadata.ino())))
    }

    /// Packets that the kernel dropped because this process did not read them in
    /// time.
    pub fn unread_packets(&self) -> io::Result<u64> {
        let mut text = String::new();
        let mut counters = &self.counters;
        counters.rewind()?;
        counters.read_to_string(&mut text)?;
        sent_but_dropped(&text, &self.name).ok_or_else(|| io::Error::other("no such interface"))
    }
}

/// The transmit side's `drop` of the device in the text of /proc/net/dev.
fn sent_but_dropped(text: &str, device: &str) -> Option<u64> {
    let figures = text.lines().find_map(|line| {
        let (name, figures) = line.split_once(':')?;
        (name.trim() == device).then_some(figures)
    })?;
    // Eight figures of the receive side, then bytes, packets, errors, drops.
    figures.split_ascii_whitespace().nth(11)?.parse().ok()
}

/// The way into one end.
#[derive(Debug)]
pub struct Entrance {
    user: Option<OwnedFd>,
    network: OwnedFd,
    resolv_conf: Option<String>,
}

impl Entrance {
    /// Moves the calling process there; async-signal-safe.
    pub fn enter_namespace(&self) -> io::Result<()> {
        if let Some(user) = &self.user {
            setns(user.as_fd(), CloneFlags::CLONE_NEWUSER)?;
        }
        setns(self.network.as_fd(), CloneFlags::CLONE_NEWNET)?;
        self.resolv_conf
            .as_deref()
            .map_or(Ok(()), resolv::replace_resolv_conf)?;
        match self.user {
            Some(_) => capabilities::keep_across_exec(KEPT),
            None => Ok(()),
        }
    }
}

/// The lines of uid_map and gid_map.
struct Mapping {
    user: String,
    group: String,
}

impl Mapping {
    /// The caller keeps its numbers: many programs refuse to be root.
    fn keep_ids() -> Self {
        Self {
            user: format!("{0} {0} 1", geteuid()),
            group: format!("{0} {0} 1", getegid()),
        }
    }

    /// The caller is root inside: what it runs there, as `ip`, keeps its capabilities.
    fn map_to_root() -> Self {
        Self {
            user: format!("0 {} 1", geteuid()),
            group: format!("0 {} 1", getegid()),
        }
    }

    /// Moves the calling process, which has one thread, into a new user namespace.
    fn enter_user_namespace(&self) -> Result<(), Fault> {
        unshare(CloneFlags::CLONE_NEWUSER)
            .map_err(|errno| ("create a user namespace", errno.into()))?;
        for (file, text) in [
            ("setgroups", "deny"),
            ("uid_map", &self.user),
            ("gid_map", &self.group),
        ] {
            fs::write(format!("/proc/self/{file}"), text)
                .map_err(|error| ("map this user into a user namespace", error))?;
        }
        Ok(())
    }
}

struct Built {
    descriptors: Vec<OwnedFd>,
    has_v6: bool,
}

/// Makes descriptors in a network namespace of an ordinary user's own, by a child process: this
/// process stays where it is. It must have one thread.
///
/// # Errors
/// [`Error::Missing`] where the machine does not allow it, with what to do.
pub fn in_a_namespace_of_ones_own<const COUNT: usize>(
    make: impl FnOnce() -> Result<[OwnedFd; COUNT], Fault>,
) -> Result<[OwnedFd; COUNT], Error> {
    let plan = Mapping::map_to_root();
    let answer = by_a_child(|| {
        plan.enter_user_namespace()?;
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|errno| ("create a network namespace", errno.into()))?;
        Ok(Built {
            descriptors: make()?.into(),
            has_v6: false,
        })
    })?;
    answer.into_descriptors(true)
}

/// Makes ends with these addresses: whether the kernel has IPv6, the user namespace if one is
/// needed, and the ends.
fn make_ends<const COUNT: usize>(
    addresses: [Addresses; COUNT],
) -> Result<(bool, Option<OwnedFd>, [Endpoint; COUNT]), Error> {
    let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(Error::Options(format!(
            "a link must be made before threads are started; there are {threads}"
        )));
    }
    // A user namespace would take root's real privileges away for no gain.
    let plan = (!capabilities::may_administrate()).then(Mapping::keep_ids);
    let answer = by_a_child(|| build_in_child(plan.as_ref(), &addresses))?;
    let (has_v6, descriptors) = match answer {
        Answer::Made {
            has_v6,
            descriptors,
        } => (has_v6, descriptors),
        Answer::Failed { what, errno } => {
            return Err(explain_failure(&what, errno, plan.is_some()));
        }
    };
    let missing = || receive_error(io::Error::other("descriptors are missing"));
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(missing);
    let mut ends = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        ends.push(Endpoint {
            namespace: Some(next()?),
            device: next()?.into(),
            counters: next()?.into(),
            name: tun::NAME.to_owned(),
        });
    }
    let user = next()?;
    let ends = ends.try_into().map_err(|_| missing())?;
    Ok((has_v6, plan.map(|_| user), ends))
}

fn complete_descriptors<const COUNT: usize>(
    descriptors: Vec<OwnedFd>,
) -> Result<[OwnedFd; COUNT], Error> {
    descriptors
        .try_into()
        .map_err(|_| receive_error(io::Error::other("descriptors are missing")))
}

fn receive_error(error: io::Error) -> Error {
    Error::system("cannot receive the namespaces from the process that made them")(error)
}

/// Has a child process build something, and receives it.
fn by_a_child(build: impl FnOnce() -> Result<Built, Fault>) -> Result<Answer, Error> {
    let failed = Error::system("cannot make a socket pair");
    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .map_err(|errno| failed(errno.into()))?;
    // SAFETY: this process has one thread, so the child's copy is consistent
    // and may do whatever the parent may. It ends by _exit.
    match unsafe { fork() }.map_err(|errno| Error::system("cannot fork")(errno.into()))? {
        ForkResult::Child => {
            drop(ours);
            send_answer(&theirs, build());
            // SAFETY: ends the child at once, without the parent's clean-up.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(theirs);
            let answer = receive_answer(&ours);
            while waitpid(child, None) == Err(Errno::EINTR) {}
            answer
        }
    }
}

/// Runs in the child.
fn build_in_child(mapping: Option<&Mapping>, addresses: &[Addresses]) -> Result<Built, Fault> {
    if let Some(mapping) = mapping {
        mapping.enter_user_namespace()?;
    }
    let mut descriptors = Vec::with_capacity(DESCRIPTORS);
    let mut has_v6 = true;
    let open = |path: &str| {
        File::open(path)
            .map(OwnedFd::from)
            .map_err(|error| ("open a file of /proc/self", error))
    };
    for &addresses in addresses {
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|errno| ("create a network namespace", errno.into()))?;
        let (device, v6) = tun::create_device(addresses)?;
        has_v6 &= v6;
        descriptors.push(open("/proc/self/ns/net")?);
        descriptors.push(device);
        descriptors.push(open("/proc/self/net/dev")?);
    }
    descriptors.push(open("/proc/self/ns/user")?);
    Ok(Built {
        descriptors,
        has_v6,
    })
}

/// The child's message: `1` or `0` for IPv6, with the descriptors; or `!`, the errno, and what
/// failed.
enum Answer {
    Made {
        has_v6: bool,
        descriptors: Vec<OwnedFd>,
    },
    Failed {
        what: String,
        errno: i32,
    },
}

impl Answer {
    fn into_descriptors<const COUNT: usize>(
        self,
        with_user: bool,
    ) -> Result<[OwnedFd; COUNT], Error> {
        match self {
            Self::Made { descriptors, .. } => complete_descriptors(descriptors),
            Self::Failed { what, errno } => Err(explain_failure(&what, errno, with_user)),
        }
    }
}

fn send_answer(socket: &OwnedFd, built: Result<Built, Fault>) {
    let (text, descriptors) = match built {
        Ok(built) => (
            vec![if built.has_v6 { b'1' } else { b'0' }],
            built.descriptors,
        ),
        Err((what, error)) => {
            let mut text = vec![b'!'];
            text.extend(error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes());
            text.extend(what.as_bytes());
            (text, Vec::new())
        }
    };
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[] } else { &rights[..] };
    // If the parent is gone there is nobody to tell.
    let _ = sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(&text)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    );
}

fn receive_answer(socket: &OwnedFd) -> Result<Answer, Error> {
    let mut text = [0u8; 128];
    let mut space = nix::cmsg_space!([RawFd; DESCRIPTORS]);
    let mut descriptors = Vec::new();
    let length = loop {
        let mut into = [IoSliceMut::new(&mut text)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(socket.as_raw_fd(), &mut into, Some(&mut space), flags) {
            Ok(message) => {
                for control in message
                    .cmsgs()
                    .map_err(|errno| receive_error(errno.into()))?
                {
                    if let ControlMessageOwned::ScmRights(received) = control {
                        descriptors.extend(received.into_iter().map(|fd| {
                            // SAFETY: the kernel has just made it for us.
                            unsafe { OwnedFd::from_raw_fd(fd) }
                        }));
                    }
                }
                break message.bytes;
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(receive_error(errno.into())),
        }
    };
    match &text[..length] {
        [b'!', a, b, c, d, what @ ..] => Ok(Answer::Failed {
            what: String::from_utf8_lossy(what).into_owned(),
            errno: i32::from_ne_bytes([*a, *b, *c, *d]),
        }),
        [v6 @ (b'0' | b'1')] => Ok(Answer::Made {
            has_v6: *v6 == b'1',
            descriptors,
        }),
        _ => Err(receive_error(io::Error::other(
            "it ended without an answer",
        ))),
    }
}

/// Turns a failed step into what a user can do about it.
fn explain_failure(what: &str, errno: i32, with_user: bool) -> Error {
    let error = io::Error::from_raw_os_error(errno);
    let mut advice = Vec::new();
    if what.contains("/dev/net/tun") {
        advice.push(tun::open_hint(errno).to_owned());
    } else if with_user {
        advice.extend(forbidding_settings());
    }
    if advice.is_empty() {
        advice.push(
            "a link needs user and network namespaces (CONFIG_USER_NS, CONFIG_NET_NS)".to_owned(),
        );
    }
    Error::Missing(format!("cannot {what}: {error}; {}", advice.join("; ")))
}

/// The settings that keep ordinary users from user namespaces, if any does.
fn forbidding_settings() -> Vec<String> {
    [
        ("/proc/sys/user/max_user_namespaces", "0", "10000"),
        ("/proc/sys/user/max_net_namespaces", "0", "10000"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "0",
        ),
    ]
    .into_iter()
    .filter(|(path, forbids, _)| {
        fs::read_to_string(Path::new(path)).is_ok_and(|value| value.trim() == *forbids)
    })
    .map(|(path, forbids, allows)| {
        let key = path["/proc/sys/".len()..].replace('/', ".");
        format!("{key} is {forbids}; as root: sysctl {key}={allows}")
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_packets_are_found_in_the_table_of_interfaces() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    7    0     0       0          0
thalweg0:     1       2    3    4    5     6          7         8        9      10   11   12   13    14      15         16
";
        assert_eq!(sent_but_dropped(text, tun::NAME), Some(12));
        assert_eq!(sent_but_dropped("lo: 1 2", tun::NAME), None);
    }

    #[test]
    fn a_device_that_may_not_be_opened_is_explained() {
        let text = explain_failure("open /dev/net/tun", libc::EACCES, true).to_string();
        assert!(text.contains("chmod 0666 /dev/net/tun"), "{text}");
        let text = explain_failure("open /dev/net/tun", libc::ENOENT, true).to_string();
        assert!(text.contains("modprobe tun"), "{text}");
    }
}
