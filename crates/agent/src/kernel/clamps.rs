//! Learned clamps: the iterator over open connections in their prefixes (`learn_clamp.bpf.c`), and the
//! clamps of hosts.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_objects::names::learn_clamp::{maps as own_names, programs};
use thalweg_bpf_types::{bytes_of, from_bytes, raw};
use thalweg_control::iterator::SocketVisit;
use thalweg_control::{batch, object, system};
use thalweg_learner::Mode;

use super::maps::trie_entries;
use super::open::{Iterator, unless_passing};
use super::{Kernel, Setup, pins};

/// Bytes of one report.
const REPORT: usize = size_of::<raw::thalweg_clamp_report>();
/// Visits that lift clamps, at most.
const LIFTS: usize = 4;
/// Reports that one read returns at most.
const AT_ONCE: usize = 512;

/// A remote host, in a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Remote {
    /// Network namespace cookie.
    pub netns: u64,
    /// Its address, IPv4 mapped.
    address: Ipv6Addr,
}

impl Remote {
    /// Its address.
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
pub struct ClampVisit {
    /// What the program tells of each.
    pub reports: Vec<raw::thalweg_clamp_report>,
    /// The kernel's first refusal: one namespace's does not concern the others.
    pub outcome: Result<()>,
    /// A file of each other namespace that was entered, by its cookie.
    pub files: HashMap<u64, PathBuf>,
    /// Processor time of other threads.
    pub elsewhere: Duration,
}

impl Default for ClampVisit {
    fn default() -> Self {
        Self {
            reports: Vec::new(),
            outcome: Ok(()),
            files: HashMap::new(),
            elsewhere: Duration::ZERO,
        }
    }
}

impl ClampVisit {
    fn take(&mut self, visited: Result<Vec<raw::thalweg_clamp_report>>) {
        match visited {
            Ok(more) => self.reports.extend(more),
            Err(error) if self.outcome.is_ok() => self.outcome = Err(error),
            Err(_) => {}
        }
    }
}

impl Setup {
    /// Whether clamps are computed: those of mode `thalweg`.
    pub fn has_clamps(&self) -> bool {
        !self.clamp_prefixes.is_empty() && self.params.mode == Mode::Thalweg
    }

    /// Whether they are set: not in a dry run, nor under advice.
    pub fn sets_clamps(&self) -> bool {
        self.has_clamps() && !self.dry_run && !self.advise.only
    }
}

impl Kernel {
    /// Loads the iterator with the learner's maps; `None` if there are no clamps, nor any of an agent
    /// before, which are to be lifted. In words why there cannot be any.
    pub(super) fn load_clamps(&self, are_left: bool) -> Result<Result<Option<Iterator>, String>> {
        let lifts = are_left && self.setup.kernel_btf;
        if !self.setup.has_clamps() && !lifts {
            return Ok(Ok(None));
        }
        if !self.setup.kernel_btf {
            return Ok(Err("the kernel has no types (BTF)".to_owned()));
        }
        object::with_libbpf_log(|| {
            let bytes = thalweg_bpf_objects::LEARN_CLAMP;
            let loaded = self.try_iterator("thalweg_clamp", bytes, programs::LEARN_CLAMP);
            let ready = loaded.and_then(|it| self.write_clamp_prefixes(&it).map(|()| it));
            unless_passing(ready)
        })
    }

    fn write_clamp_prefixes(&self, iterator: &Iterator) -> Result<()> {
        let map = object::find_map(iterator.object(), own_names::CLAMP_PREFIXES)?;
        let wanted = match self.setup.has_clamps() {
            true => self.setup.clamp_prefixes.as_slice(),
            false => &[],
        };
        for (key, value) in trie_entries(wanted) {
            map.update(bytes_of(&key), &value.to_ne_bytes(), MapFlags::ANY)
                .context("writing the prefixes of [clamp]")?;
        }
        Ok(())
    }

    /// The iterator, or why there is none.
    pub(super) fn lock_clamps(&self) -> MutexGuard<'_, Result<Option<Iterator>, String>> {
        self.clamps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the iterator again for the cgroup that there is now.
    pub(super) fn reload_clamps(&self) {
        if self.lock_clamps().as_ref().is_ok_and(Option::is_some) {
            let loaded = self.load_clamps(true);
            let loaded = loaded.unwrap_or_else(|error| Err(format!("{error:#}")));
            if let Err(why) = &loaded {
                tracing::error!("congestion windows get no learned clamp any more: {why}");
            }
            *self.lock_clamps() = loaded;
        }
    }

    /// Why there are no clamps although there should be.
    pub fn without_clamps(&self) -> Option<String> {
        self.lock_clamps().as_ref().err().cloned()
    }

    /// Whether open connections are looked at for their clamps.
    pub fn has_clamps(&self) -> bool {
        self.setup.has_clamps() && matches!(*self.lock_clamps(), Ok(Some(_)))
    }

    /// Visits the open connections in scope, and gives each the clamp of its host; `files`: of some
    /// network namespaces only, by their cookies. `own` is the cookie of the caller's.
    pub fn visit_clamps(&self, files: Option<HashMap<u64, PathBuf>>, own: u64) -> ClampVisit {
        let mut found = ClampVisit::default();
        let link = match &*self.lock_clamps() {
            Ok(Some(iterator)) => Arc::clone(&iterator.link),
            _ => return found,
        };
        // The usual case enters no other namespace.
        if files
            .as_ref()
            .is_some_and(|files| files.keys().all(|it| *it == own))
        {
            found.take(visited(link.as_fd()));
            return found;
        }
        let users = self.setup.user_namespaces;
        let wanted = files.clone();
        let visit = move |file: &Path| {
            let netns = system::netns_cookie().ok()?;
            // A process may have left the namespace that its file was of.
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

    /// Sets the clamp of a host, segments; `None`: it has none. Its connections get it at the next
    /// visit, new ones at once.
    ///
    /// # Errors
    /// The kernel's: there are too many hosts.
    pub fn set_clamp(&self, host: &Remote, segments: Option<u32>) -> Result<()> {
        let (map, key) = (self.map(names::CLAMPS), host.key());
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

    /// Gives all connections their own windows back. No new one gets a clamp.
    ///
    /// # Errors
    /// The kernel's.
    pub fn lift_clamps(&self, own: u64) -> Result<()> {
        let map = self.map(names::CLAMPS);
        let keys = batch::collect_keys(map)?;
        // None, but there: an agent that is killed now leaves something to find.
        for key in &keys {
            map.update(key, &0u32.to_ne_bytes(), MapFlags::EXIST)?;
        }
        let mut outcome = Ok(());
        // A visit may miss a socket where others of its place in the table end meanwhile.
        for _ in 0..LIFTS {
            let visit = self.visit_clamps(None, own);
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

/// The connections with clamps of a learner that is to go, whatever has become of its agent.
pub(super) struct Leftover(MapHandle);

impl Leftover {
    /// `None`: no host has a clamp.
    pub(super) fn find(pin: &Path) -> Option<Self> {
        let hosts = pins::find_map(pin, names::CLAMPS)?;
        let has_clamps = batch::collect_keys(&hosts).is_ok_and(|keys| !keys.is_empty());
        has_clamps
            .then(|| pins::find_map(pin, names::CLAMPED))?
            .map(Self)
    }

    /// Gives the connections of all network namespaces their own windows back. The programs must
    /// be gone: they would clamp new ones.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn lift(&self) -> Result<()> {
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
        // As in `lift_clamps`.
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

/// Visits the sockets of the thread's network namespace; returns how many lost their clamp, and how
/// many kept it.
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

/// Visits the sockets of the thread's network namespace, and returns what the program tells of each.
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
