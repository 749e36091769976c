//! The iterator over open connections in the prefixes of `[clamp]` (`learn_clamp.bpf.c`), and the
//! table of clamps.

use std::collections::HashMap;
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_objects::names::learn_clamp::{maps as own_names, programs};
use thalweg_bpf_types::{bytes_of, from_bytes, raw};
use thalweg_control::iterator::SocketVisit;
use thalweg_control::{batch, links, object, system};
use thalweg_policy::Prefix;

use crate::kernel::{Iterator, Kernel, find_map, trie_entries, unless_passing};

/// Bytes of one report.
const REPORT: usize = size_of::<raw::thalweg_clamp_report>();
/// Most visits that lift clamps.
const LIFTS: usize = 4;
/// Most reports that one read returns.
const AT_ONCE: usize = 512;

/// A remote host, in a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Remote {
    /// Network namespace cookie.
    pub netns: u64,
    /// Address of the host, IPv4 mapped.
    address: Ipv6Addr,
}

impl Remote {
    /// Address of the host.
    pub fn address(&self) -> IpAddr {
        IpAddr::V6(self.address).to_canonical()
    }

    fn key(&self) -> raw::thalweg_clamp_key {
        raw::thalweg_clamp_key {
            netns: self.netns,
            addr: self.address.octets(),
        }
    }
}

impl From<&raw::thalweg_clamp_key> for Remote {
    fn from(key: &raw::thalweg_clamp_key) -> Self {
        Self {
            netns: key.netns,
            address: key.addr.into(),
        }
    }
}

/// A visit to open connections.
pub struct ConnectionVisit {
    /// Reports of the program, one per visited connection.
    pub reports: Vec<raw::thalweg_clamp_report>,
    /// First refusal of the kernel; one in one namespace does not concern the others.
    pub outcome: Result<()>,
    /// A file of each other namespace that was entered, by its cookie.
    pub files: HashMap<u64, PathBuf>,
    /// Processor time of other threads.
    pub elsewhere: Duration,
}

impl Default for ConnectionVisit {
    fn default() -> Self {
        Self {
            reports: Vec::new(),
            outcome: Ok(()),
            files: HashMap::new(),
            elsewhere: Duration::ZERO,
        }
    }
}

impl ConnectionVisit {
    fn take(&mut self, visited: Result<Vec<raw::thalweg_clamp_report>>) {
        match visited {
            Ok(more) => self.reports.extend(more),
            Err(error) if self.outcome.is_ok() => self.outcome = Err(error),
            Err(_) => {}
        }
    }
}

/// The iterator, or the reason that there is none although there should be.
pub type Loaded = Result<Option<Iterator>, String>;

/// Loads the iterator with the learner's maps; `prefixes` are those with clamps. Without any,
/// connections of an earlier agent can still lose their clamps.
///
/// # Errors
/// Faults that may pass.
pub fn load_iterator(kernel: &Kernel, prefixes: &[Prefix]) -> Result<Loaded> {
    object::with_libbpf_log(|| {
        let setup = kernel.setup();
        let try_load = || -> Result<Iterator> {
            let cgroup = File::open(&setup.cgroup).context("opening the cgroup")?;
            let covered = links::cgroup_id(&cgroup)?.to_ne_bytes();
            let iterator = kernel.try_iterator(
                "thalweg_clamp",
                thalweg_bpf_objects::LEARN_CLAMP,
                programs::LEARN_CLAMP,
                &[(own_names::RODATA_COVERED, &covered)],
            )?;
            write_prefixes(&iterator, prefixes)?;
            Ok(iterator)
        };
        unless_passing(try_load())
    })
}

fn write_prefixes(iterator: &Iterator, prefixes: &[Prefix]) -> Result<()> {
    let map = object::find_map(iterator.object(), own_names::CLAMP_PREFIXES)?;
    for (key, value) in trie_entries(prefixes) {
        map.update(bytes_of(&key), &value.to_ne_bytes(), MapFlags::ANY)
            .context("writing the prefixes of [clamp]")?;
    }
    Ok(())
}

/// Handles and settings that a poll needs of the loaded programs.
pub struct Programs {
    /// The iterator's link; `None`: there is no iterator.
    pub link: Option<Arc<OwnedFd>>,
    /// Whether clamps are set: not in a dry run, nor under advice.
    pub sets: bool,
    /// Whether network namespaces of ordinary users are entered.
    pub user_namespaces: bool,
}

impl Programs {
    /// Visits the open connections in scope, and gives each the clamp of its host. `files`
    /// restricts the visit to these network namespaces, by their cookies. `own` is the cookie of
    /// the caller's.
    pub fn visit(&self, files: Option<HashMap<u64, PathBuf>>, own: u64) -> ConnectionVisit {
        let mut found = ConnectionVisit::default();
        let Some(link) = self.link.clone() else {
            return found;
        };
        // The usual case enters no other namespace.
        if files
            .as_ref()
            .is_some_and(|files| files.keys().all(|it| *it == own))
        {
            found.take(visited(link.as_fd()));
            return found;
        }
        let users = self.user_namespaces;
        let wanted = files.clone();
        let visit = move |file: &Path| {
            let netns = system::netns_cookie().ok()?;
            // A process may have left the namespace of its file.
            let is_wanted = wanted.as_ref().is_none_or(|it| it.contains_key(&netns));
            is_wanted.then(|| (netns, file.to_owned(), visited(link.as_fd())))
        };
        let asked = system::in_namespaces_of(
            || files.map_or_else(system::namespace_files, |it| it.into_values().collect()),
            move |file| system::is_entered(file, users),
            visit,
        );
        found.elsewhere = asked.time;
        for (netns, file, visited) in asked.answers {
            found.files.insert(netns, file);
            found.take(visited);
        }
        found
    }

    /// Lifts the clamps of all connections. No new one gets a clamp.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn lift_clamps(&self, kernel: &Kernel, own: u64) -> Result<()> {
        let map = kernel.map(names::CLAMPS);
        let keys = batch::collect_keys(map)?;
        // Keep the table without clamps: an agent that is killed now leaves something to find.
        for key in &keys {
            map.update(key, &0u32.to_ne_bytes(), MapFlags::EXIST)?;
        }
        let mut outcome = Ok(());
        // A visit may miss a socket where others of its place in the table end meanwhile.
        for _ in 0..LIFTS {
            let visit = self.visit(None, own);
            outcome = visit.outcome;
            let had = |it: &raw::thalweg_clamp_report| it.flags & raw::THALWEG_CLAMP_SET != 0;
            if outcome.is_ok() && !visit.reports.iter().any(had) {
                break;
            }
        }
        outcome?;
        for key in &keys {
            map.delete(key)?;
        }
        Ok(())
    }
}

/// Sets the clamp of a host, segments; `None`: it has none. New connections get the clamp at once,
/// open ones at the next visit.
///
/// # Errors
/// The kernel refuses it: there are too many hosts.
pub fn set_clamp(kernel: &Kernel, host: &Remote, segments: Option<u32>) -> Result<()> {
    let (map, key) = (kernel.map(names::CLAMPS), host.key());
    match segments {
        Some(segments) => {
            map.update(bytes_of(&key), &segments.to_ne_bytes(), MapFlags::ANY)?;
        }
        None => match map.delete(bytes_of(&key)) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                return Err(error.into());
            }
            _ => {}
        },
    }
    Ok(())
}

/// Connections with clamps of a learner that is removed, whether or not its agent runs.
pub struct ClampedSockets(MapHandle);

impl ClampedSockets {
    /// Finds clamped connections; `None`: no host has a clamp.
    pub fn find(pin: &Path) -> Option<Self> {
        let hosts = find_map(pin, names::CLAMPS)?;
        let has_clamps = batch::collect_keys(&hosts).is_ok_and(|keys| !keys.is_empty());
        has_clamps.then(|| find_map(pin, names::CLAMPED))?.map(Self)
    }

    /// Lifts the clamps in all network namespaces. The programs must be gone: they would clamp new
    /// connections.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn lift(&self) -> Result<()> {
        let mut object = object::open_object("thalweg_unclamp", thalweg_bpf_objects::LEARN_CLAMP)?;
        for mut program in object.progs_mut() {
            let is_wanted = program.name() == programs::LEARN_UNCLAMP;
            program.set_autoload(is_wanted);
        }
        for mut map in object.maps_mut() {
            match map.name() == names::CLAMPED {
                true => map.reuse_fd(self.0.as_fd())?,
                false => map.set_autocreate(false)?,
            }
        }
        let object = object
            .load()
            .context("loading the program that lifts them")?;
        let link = object::find_program(&object, programs::LEARN_UNCLAMP)?.attach()?;
        let link = Arc::new(link.as_fd().try_clone_to_owned()?);
        let mut refused = 0;
        // Repeats as `lift_clamps` does.
        for _ in 0..LIFTS {
            let link = Arc::clone(&link);
            let visit = move || Some(lift_visited(link.as_fd()));
            let mut lifts = 0;
            refused = 0;
            for visited in system::in_namespaces(|_| true, visit) {
                let (lifted, failed) = visited?;
                lifts += lifted;
                refused += failed;
            }
            if lifts == 0 {
                break;
            }
        }
        ensure!(refused == 0, "the kernel refuses {refused}");
        Ok(())
    }
}

/// Lifts the clamps of the thread's network namespace. Returns the numbers of sockets that lost
/// their clamp and that kept it.
fn lift_visited(link: BorrowedFd<'_>) -> Result<(usize, usize)> {
    let mut visit = SocketVisit::begin(link)?;
    let (mut lifted, mut failed) = (0, 0);
    let mut buffer = [0; 512];
    loop {
        let read = visit.read_output(&mut buffer)?;
        if read == 0 {
            return Ok((lifted, failed));
        }
        let refused = buffer[..read].iter().filter(|byte| **byte != 0).count();
        failed += refused;
        lifted += read - refused;
    }
}

/// Visits the sockets of the thread's network namespace; returns the program's reports.
fn visited(link: BorrowedFd<'_>) -> Result<Vec<raw::thalweg_clamp_report>> {
    let mut visit = SocketVisit::begin(link)?;
    let mut buffer = vec![0; AT_ONCE * REPORT];
    let (mut reports, mut kept) = (Vec::new(), 0);
    loop {
        let read = visit.read_output(&mut buffer[kept..])?;
        if read == 0 {
            return Ok(reports);
        }
        // A read may end in the middle of a report.
        let (whole, rest) = buffer[..kept + read].as_chunks::<REPORT>();
        for report in whole {
            reports.push(from_bytes(report).context("a report has an unexpected size")?);
        }
        kept = rest.len();
        let end = whole.len() * REPORT;
        buffer.copy_within(end..end + kept, 0);
    }
}
