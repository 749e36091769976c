//! The laboratory on this machine's kernel: two network namespaces joined by veth pairs. A TC
//! program drops packets, `tbf` limits rate and queue, `netem` delays. Or this process forwards
//! between the namespaces ([`WireKind::Tun`]).

pub(crate) mod cgroup;
pub(crate) mod congestion;
pub mod loss;
mod netns;
pub(crate) mod preflight;
mod relay;
mod remote;
pub mod rtt;
pub(crate) mod stale;
mod tun;
mod veth;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::libc;
use thalweg_process::owned::PREFIX;
use thalweg_process::tool;

pub use cgroup::mount_point as cgroup_mount;
pub use congestion::available_ccs as available_congestion_controls;
pub use preflight::{missing_for, missing_requirements};
pub use remote::Remote;

use cgroup::Cgroup;
use loss::LossCounters;
use netns::Namespace;
use rtt::RoundTrips;
use veth::ServerPlace;

use crate::error::Error;
use crate::scenario::{PathModel, Qdisc, System};

/// One of the two hosts of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Opens connections and sends the data.
    Client,
    /// Accepts connections and receives the data.
    Server,
}

/// The wire between the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WireKind {
    /// veth pairs; the kernel delays and queues.
    #[default]
    Veth,
    /// TUN devices; this process delays and queues.
    Tun,
}

/// The parts of a [`Pair`]. The default is a perfect IPv4 link.
#[derive(Debug, Clone, Default)]
pub struct PairOptions {
    /// Part of the names of namespaces and cgroup: letters, digits, '-'.
    pub label: String,
    /// The link between the hosts.
    pub path: PathModel,
    /// The default congestion control of both hosts; none: the machine's own.
    pub congestion_control: Option<String>,
    /// Further settings below `net.`, in both hosts.
    pub sysctl: std::collections::BTreeMap<String, String>,
    /// Hosts whose TCP is a stack's. Their namespaces forward its packets.
    pub stacks: Vec<Side>,
    /// The wire between the hosts.
    pub wire: WireKind,
    /// The queueing discipline of the sender's link.
    pub qdisc: Qdisc,
    /// Number of the server's further addresses, each a remote host to the client. At most 200.
    pub further_addresses: u8,
    /// Paths to further servers, each with a link of its own.
    pub further_paths: Vec<PathModel>,
    /// Servers in each network (a /24, or a /48), in the order of the paths; empty: one in each.
    pub networks: Vec<u8>,
}

impl PairOptions {
    /// The pair of a scenario.
    pub fn new(label: &str, path: &PathModel, system: &System) -> Self {
        Self {
            label: label.to_owned(),
            path: path.clone(),
            congestion_control: Some(system.default_cc.clone()),
            sysctl: system.sysctl.clone(),
            stacks: Vec::new(),
            wire: WireKind::default(),
            qdisc: system.qdisc,
            further_addresses: 0,
            further_paths: Vec::new(),
            networks: Vec::new(),
        }
    }
}

/// Two hosts and the link between them, with one cgroup for what runs in them; or
/// one client and several servers ([`PairOptions::further_paths`]), each behind a link
/// of its own.
///
/// Dropped, it kills what runs in the cgroup and removes everything it made.
///
/// ```no_run
/// use thalweg_lab::host::{Pair, PairOptions, Side};
/// # fn main() -> Result<(), thalweg_lab::Error> {
/// let pair = Pair::new(&PairOptions { label: "example".into(), ..Default::default() })?;
/// let address = pair.first_address(Side::Server).to_string();
/// let status = pair.command_in(Side::Client, "ping")?.args(["-c1", &address]).status();
/// # drop(status); Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Pair {
    // Fields are dropped in this order: first the processes, then their places.
    cgroup: Cgroup,
    remotes: Vec<Remote>,
    client: Namespace,
}

impl Pair {
    /// Creates namespaces, links, loss, queues and cgroup.
    ///
    /// # Errors
    /// The step that failed, with the message of the tool or the kernel. Nothing is left behind.
    pub fn new(options: &PairOptions) -> Result<Self, Error> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if !options.label.bytes().all(plain) || options.label.len() > 64 {
            return Err(Error::Options(format!(
                "{:?} cannot be a part of a name",
                options.label
            )));
        }
        if options.further_addresses > 200 {
            return Err(Error::Options(
                "a server has at most 200 further addresses".into(),
            ));
        }
        let paths: Vec<&PathModel> = [&options.path]
            .into_iter()
            .chain(&options.further_paths)
            .collect();
        if paths.len() > 200 {
            return Err(Error::Options("a client has at most 200 servers".into()));
        }
        let places = match &options.networks[..] {
            [] => ServerPlace::places_in_networks(&vec![1; paths.len()]),
            networks => ServerPlace::places_in_networks(networks),
        };
        if places.len() != paths.len() {
            let message = format!("{} paths to {} servers", paths.len(), places.len());
            return Err(Error::Options(message));
        }
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{serial}-{}", std::process::id(), options.label);

        let cgroup = Cgroup::create(&name)?;
        let client = Namespace::create(&format!("{name}-client"))?;
        let servers = places
            .iter()
            .map(|place| Namespace::create(&remote::namespace_name(&name, "server", place.serial)))
            .collect::<Result<Vec<_>, _>>()?;
        let native = |side: Side| !options.stacks.contains(&side);
        let hosts: Vec<&Namespace> = [&client]
            .into_iter()
            .filter(|_| native(Side::Client))
            .chain(servers.iter().filter(|_| native(Side::Server)))
            .collect();
        for namespace in &hosts {
            for (key, value) in &options.sysctl {
                namespace.set_sysctl(key, value)?;
            }
        }
        // This kernel may lack a congestion control that a sender's stack has.
        if let Some(name) = &options.congestion_control
            && native(Side::Client)
        {
            congestion::set_default(name, &hosts)?;
        }
        let remotes = servers
            .into_iter()
            .zip(places)
            .zip(paths)
            .map(|((server, place), path)| {
                Remote::join_hosts(&name, &client, server, place, path, options)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            cgroup,
            remotes,
            client,
        })
    }

    /// The servers, in the order of their paths. There is at least one.
    pub fn remotes(&self) -> &[Remote] {
        &self.remotes
    }

    /// Changes the path to the first server, see [`Remote::change_path`].
    ///
    /// # Errors
    /// [`Error::Loss`] or [`Error::Process`] with the kernel's answer.
    pub fn change_path(&self, path: &PathModel) -> Result<(), Error> {
        self.remotes[0].change_path(path)
    }

    /// The TAP device in the namespace of a host on a stack.
    pub(crate) const STACK: &'static str = veth::TAP;

    /// The commands of `ip` that make a stack's kernel a host of the path, on this interface.
    pub(crate) fn stack_commands(path: &PathModel, side: Side, interface: &str) -> Vec<String> {
        veth::stack_commands(path, side, interface)
    }

    /// The file of a host's network namespace.
    pub(crate) fn namespace_file(&self, side: Side) -> std::path::PathBuf {
        Path::new(netns::DIRECTORY).join(self.namespace_name(side))
    }

    /// A cgroup below the pair's.
    pub(crate) fn cgroup_below(&self, name: &str) -> Result<Cgroup, Error> {
        self.cgroup.create_below(name)
    }

    /// The first address of a host: the first server's, or the client's towards it.
    pub fn first_address(&self, side: Side) -> IpAddr {
        self.remotes[0].address_of(side)
    }

    /// All addresses of the first server.
    pub fn server_addresses(&self) -> Vec<IpAddr> {
        self.remotes[0].addresses()
    }

    /// The directory of the cgroup.
    pub fn cgroup_path(&self) -> &Path {
        self.cgroup.path()
    }

    /// The name of a host's namespace, as `ip netns` knows it.
    pub fn namespace_name(&self, side: Side) -> &str {
        self.side_namespace(side).name()
    }

    /// Fails if the hosts are no longer joined.
    ///
    /// # Errors
    /// [`Error::Process`] if this process has stopped forwarding.
    pub fn check_joined(&self) -> Result<(), Error> {
        self.remotes.iter().try_for_each(Remote::check_joined)
    }

    /// Packets so far in the data direction, to the first server.
    ///
    /// # Errors
    /// [`Error::Loss`] if the counters cannot be read.
    pub fn forward_counters(&self) -> Result<LossCounters, Error> {
        self.remotes[0].forward_counters()
    }

    /// Packets so far in the other direction, from the first server.
    ///
    /// # Errors
    /// [`Error::Loss`] if the counters cannot be read.
    pub fn reverse_counters(&self) -> Result<LossCounters, Error> {
        self.remotes[0].reverse_counters()
    }

    /// The round-trip times of the client's connections to a remote host, since the last call.
    pub(crate) fn take_round_trips(&self, to: IpAddr) -> Result<RoundTrips, Error> {
        self.remotes
            .iter()
            .find(|remote| remote.first_address() == to)
            .map_or_else(|| Ok(RoundTrips::default()), Remote::take_round_trips)
    }

    /// Writes a setting below `net.` of one host.
    ///
    /// # Errors
    /// [`Error::Process`] with the kernel's answer.
    pub fn set_sysctl(&self, side: Side, key: &str, value: &str) -> Result<(), Error> {
        self.side_namespace(side).set_sysctl(key, value)
    }

    /// A command in a host's namespace and in the cgroup, in a process group of its own. The kernel
    /// kills it when the thread that starts it ends.
    ///
    /// # Errors
    /// [`Error::Process`] if the cgroup cannot be opened.
    pub fn command_in(&self, side: Side, program: &str) -> Result<Command, Error> {
        self.command_within(self.side_namespace(side), program)
    }

    /// A command on one of [`Pair::remotes`].
    ///
    /// # Errors
    /// [`Error::Process`] if the cgroup cannot be opened.
    pub fn command_on(&self, remote: &Remote, program: &str) -> Result<Command, Error> {
        self.command_within(remote.server(), program)
    }

    fn command_within(&self, namespace: &Namespace, program: &str) -> Result<Command, Error> {
        let namespace = namespace.open_handle()?;
        let entrance = self.cgroup.open_procs()?;
        let mut command = tool::program_command(program);
        thalweg_process::tie_to_thread(&mut command);
        // SAFETY: between fork and exec only setns(2) and write(2) are called,
        // both async-signal-safe, on descriptors that the closure owns.
        unsafe {
            command.pre_exec(move || enter_host(namespace.as_raw_fd(), entrance.as_raw_fd()));
        }
        Ok(command)
    }

    fn side_namespace(&self, side: Side) -> &Namespace {
        match side {
            Side::Client => &self.client,
            Side::Server => self.remotes[0].server(),
        }
    }
}

/// Moves the calling process, just forked, into a namespace and a cgroup.
fn enter_host(namespace: RawFd, entrance: RawFd) -> io::Result<()> {
    // SAFETY: the arguments are integers and a pointer to one byte of a constant.
    unsafe {
        if libc::write(entrance, c"0".as_ptr().cast(), 1) != 1
            || libc::setns(namespace, libc::CLONE_NEWNET) != 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
