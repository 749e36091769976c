//! Long connections: the iterator that scores them before their end (`learn_open.bpf.c`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{Link, MapHandle, Object, Program};
use thalweg_bpf_objects::Packed;
use thalweg_bpf_objects::names::learn::maps as names;
use thalweg_bpf_objects::names::learn_open::programs;
use thalweg_bpf_types::{bytes_of, raw};
use thalweg_control::iterator::SocketVisit;
use thalweg_control::system::NetworkNamespace;
use thalweg_control::{memory, object, system};
use thalweg_learner::{Mode, is_due};

use super::{Kernel, raw_params};

/// The loaded iterator. It is not pinned, as only the agent runs it.
pub struct Iterator {
    /// Link of the program.
    pub link: Arc<OwnedFd>,
    loaded: (Link, Object),
    /// The kernel's number of the program.
    id: u32,
}

impl Iterator {
    /// The loaded object.
    pub fn object(&self) -> &Object {
        &self.loaded.1
    }

    /// Checks that the link still runs the program.
    ///
    /// # Errors
    /// The link runs another program, or cannot be read.
    pub fn check(&self) -> Result<()> {
        let runs = self
            .loaded
            .0
            .info()
            .context("looking at an iterator's link")?;
        let id = runs.prog_id;
        ensure!(
            id == self.id,
            "an iterator's link runs another program (number {id})"
        );
        Ok(())
    }
}

/// Additions to an object that is loaded beside the learner's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Added<'a> {
    /// Values of sections of constants, by name.
    pub constants: &'a [(&'a str, &'a [u8])],
    /// Programs that are not loaded by default.
    pub programs: &'a [&'a str],
}

/// Namespaces with connections that may be due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// Lower halves of the namespaces' cookies; 0: unknown, any.
    namespaces: HashSet<u32>,
}

impl Candidates {
    /// Whether there are no candidates.
    pub fn are_none(&self) -> bool {
        self.namespaces.is_empty()
    }

    fn may_be_in(&self, netns: u64) -> bool {
        self.namespaces.contains(&(netns as u32)) || self.namespaces.contains(&0)
    }

    fn are_all_in(&self, netns: u64) -> bool {
        self.namespaces.iter().all(|lower| *lower == netns as u32)
    }
}

/// Memory map of the slots of measured connections: 65,536 look-ups would take longer than the
/// scans.
struct Slots(*const raw::thalweg_conn);

impl Slots {
    /// Number of slots.
    const COUNT: usize = raw::THALWEG_CONNECTIONS as usize;
    /// Bytes of all slots.
    const BYTES: usize = size_of::<raw::thalweg_conn>() * Self::COUNT;

    fn map(map: &MapHandle) -> Result<Self> {
        let fd = map.as_fd().as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice, to be read only.
        let at = unsafe {
            libc::mmap(
                null_mut(),
                Self::BYTES,
                libc::PROT_READ,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).context("mapping the connections' slots");
        }
        Ok(Self(at.cast_const().cast()))
    }

    /// Calls `visit` with each connection. Programs write at the same time, so that a copy may be
    /// half old and half new.
    fn each(&self, mut visit: impl FnMut(&raw::thalweg_conn)) {
        for index in 0..Self::COUNT {
            // SAFETY: the slot is within the mapping, which is page-aligned and lives as long as
            // `self`; any bytes are a connection. Reads are volatile, as others write.
            let cookie = unsafe { (&raw const (*self.0.add(index)).cookie).read_volatile() };
            if cookie != 0 {
                // SAFETY: as above.
                visit(&unsafe { self.0.add(index).read_volatile() });
            }
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: the mapping is that of `map`, and `each` leaves no reference into it. It cannot
        // fail for a range that is mapped.
        let _ = unsafe { libc::munmap(self.0.cast_mut().cast(), Self::BYTES) };
    }
}

/// The iterator, or the reason that the kernel refuses it, in words.
///
/// # Errors
/// The refusal may pass.
pub fn unless_passing(loaded: Result<Iterator>) -> Result<Result<Option<Iterator>, String>> {
    match loaded {
        Ok(iterator) => Ok(Ok(Some(iterator))),
        Err(error) if memory::is_passing(error.as_ref()) => Err(error),
        Err(error) => {
            let said = object::last_words(&object::take_libbpf_log());
            Ok(Err(format!("{error:#}: {said}")))
        }
    }
}

impl Kernel {
    /// Loads the iterator with the learner's maps. `None`: it is not wanted, or the kernel has no
    /// types. The inner error is the kernel's refusal in words.
    ///
    /// # Errors
    /// The refusal may pass ([`memory::is_passing`]).
    pub(super) fn load_iterator(&self) -> Result<Result<Option<Iterator>, String>> {
        let wanted = self.params.mode == Mode::Thalweg && self.params.stretch_ns != 0;
        if !wanted || !self.setup.kernel_btf {
            return Ok(Ok(None));
        }
        object::with_libbpf_log(|| {
            let bytes = thalweg_bpf_objects::LEARN_OPEN;
            unless_passing(self.try_iterator("thalweg_open", bytes, programs::LEARN_OPEN, &[]))
        })
    }

    /// Loads an iterator with the learner's maps; `constants` has values of the sections by name.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn try_iterator(
        &self,
        name: &str,
        packed: Packed,
        program: &str,
        constants: &[(&str, &[u8])],
    ) -> Result<Iterator> {
        let added = Added {
            constants,
            ..Added::default()
        };
        let object = self.load_beside(name, packed, &added)?;
        let program = object::find_program(&object, program)?;
        let link = program.attach().context("making a TCP iterator")?;
        let id = Program::id_from_fd(program.as_fd())?;
        Ok(Iterator {
            id,
            link: Arc::new(link.as_fd().try_clone_to_owned()?),
            loaded: (link, object),
        })
    }

    /// Loads an object with the learner's maps and parameters, and additions.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn load_beside(&self, name: &str, packed: Packed, added: &Added<'_>) -> Result<Object> {
        let mut object = object::open_object(name, packed)?;
        for mut program in object.progs_mut() {
            if added.programs.iter().any(|it| program.name() == *it) {
                program.set_autoload(true);
            }
        }
        let params = raw_params(&self.setup, &self.params);
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name == names::RODATA_PARAMS {
                map.set_initial_value(bytes_of(&params))?;
            } else if name == names::RODATA_NAMED {
                map.set_initial_value(&self.setup.named_flag())?;
            } else if name == names::RODATA_FLEET {
                map.set_initial_value(&self.setup.fleet_flag())?;
            } else if let Some((_, value)) = added.constants.iter().find(|(it, _)| *it == name) {
                map.set_initial_value(value)?;
            } else if let Some(shared) = self.maps.get(name.as_str()) {
                map.reuse_fd(shared.as_fd())?;
            }
        }
        object
            .load()
            .with_context(|| format!("loading the object {name}"))
    }

    /// Reason that long connections are not scored before their end although they should be.
    pub fn without_iterator(&self) -> Option<&str> {
        self.open.as_ref().err().map(String::as_str)
    }

    /// Interval of scans of long connections; `None`: there are no scans.
    pub fn look_interval(&self) -> Option<Duration> {
        let interval = Duration::from_nanos(self.params.stretch_ns);
        self.has_iterator().then_some(interval)
    }

    /// Whether long connections are scored before their end.
    pub fn has_iterator(&self) -> bool {
        matches!(self.open, Ok(Some(_)))
    }

    /// Namespaces with measurement intervals that are old enough to be scored, if enough was sent.
    pub fn candidates(&self) -> Result<Candidates> {
        let now_ns = system::monotonic_ns();
        let mut found = Candidates::default();
        Slots::map(self.map(names::CONNS))?.each(|conn| {
            let is_long = u32::from(conn.origin.flags) & raw::THALWEG_CONN_LONG != 0;
            let count = if is_long { conn.count } else { 0 };
            let age_ns = now_ns.saturating_sub(conn.start_ns);
            if is_due(age_ns, u64::MAX, count, &self.params) {
                found.namespaces.insert(conn.netns);
            }
        });
        Ok(found)
    }

    /// Network namespaces with measured connections, by the lower halves of their cookies; 0: unknown
    /// ones.
    ///
    /// # Errors
    /// The slots cannot be read.
    pub fn connection_namespaces(&self) -> Result<BTreeSet<u32>> {
        let mut found = BTreeSet::new();
        Slots::map(self.map(names::CONNS))?.each(|conn| {
            found.insert(conn.netns);
        });
        Ok(found)
    }

    /// Least number of connections of these namespaces that ended without their callback: slots at
    /// the time of counting the namespace's sockets, less the sockets.
    ///
    /// # Errors
    /// The slots cannot be mapped.
    pub fn ended_unseen(&self, namespaces: &[NetworkNamespace]) -> Result<u64> {
        let mut left = HashMap::new();
        for namespace in namespaces {
            if let Some(sockets) = namespace.sockets {
                left.insert(
                    namespace.cookie as u32,
                    (namespace.counted_ns, sockets, 0u64),
                );
            }
        }
        Slots::map(self.map(names::CONNS))?.each(|conn| {
            if let Some((counted_ns, _, slots)) = left.get_mut(&conn.netns)
                && conn.start_ns < *counted_ns
            {
                *slots += 1;
            }
        });
        let unseen = left
            .values()
            .map(|(_, sockets, slots)| slots.saturating_sub(*sockets));
        Ok(unseen.sum())
    }

    /// Begins a visit to each candidate namespace; `own` is the cookie of the caller's.
    pub fn visits(&self, candidates: Candidates, own: u64) -> Result<Vec<SocketVisit>> {
        let Ok(Some(Iterator { link, .. })) = &self.open else {
            return Ok(Vec::new());
        };
        // An iterator's file sees the namespace in which it was made, and each walk passes all sockets
        // of the machine: only namespaces with candidates are visited.
        // The usual case needs no search for namespaces.
        if candidates.are_all_in(own) {
            return Ok(vec![SocketVisit::begin(link.as_fd())?]);
        }
        let link = Arc::clone(link);
        let begin = move || {
            let netns = system::netns_cookie().ok()?;
            let wanted = candidates.may_be_in(netns);
            wanted.then(|| SocketVisit::begin(link.as_fd()))
        };
        let visits = system::in_namespaces(|_| true, begin);
        Ok(visits.into_iter().collect::<Result<_, _>>()?)
    }
}
