//! A sockops program beside the learner's, with a table by network that the agent writes, and a ring of
//! reports that it reads: its load, its link to the agent's cgroup, and both maps.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libbpf_rs::libbpf_sys::BPF_CGROUP_SOCK_OPS;
use libbpf_rs::{
    ErrorKind, MapCore, MapFlags, MapHandle, Object, Program, RingBuffer, RingBufferBuilder,
};
use thalweg_bpf_objects::Packed;
use thalweg_bpf_types::{Pod, bytes_of, from_bytes, key_to_raw};
use thalweg_control::pins::remove_file;
use thalweg_control::{batch, links, memory, object};
use thalweg_learner::HostKey;

use crate::kernel::{Added, Kernel};

/// Interval of tries to load a program.
const AGAIN: Duration = Duration::from_secs(30);

/// Object, maps and pin of a program.
#[derive(Debug)]
pub struct Source {
    /// Name of the object in the kernel's messages.
    pub object: &'static str,
    /// The object.
    pub packed: Packed,
    /// Name of the program.
    pub program: &'static str,
    /// Name of the table by network.
    pub table: &'static str,
    /// Name of the ring of reports.
    pub reports: &'static str,
    /// Name of the count of reports that the ring had no room for.
    pub lost: &'static str,
    /// File name of the link's pin, with which the program outlives a killed agent: the next one puts
    /// its own in that place. `None`: it ends with the agent.
    pub pin: Option<&'static str>,
}

/// The attached program. `R`: a report.
pub struct Reporter<R> {
    source: &'static Source,
    table: MapHandle,
    lost: MapHandle,
    ring: Mutex<RingBuffer<'static>>,
    /// Reports since the last read.
    pending: Arc<Mutex<Vec<R>>>,
    program: OwnedFd,
    /// The kernel's number of the program.
    id: u32,
    cgroup: Mutex<(File, OwnedFd)>,
    // Dropped last.
    object: Object,
}

/// The object is only read through file descriptors, which are safe to share, and never used after
/// [`Reporter::attach`].
// SAFETY: see above; everything else is `Send + Sync`, or behind a lock.
unsafe impl<R: Send> Send for Reporter<R> {}
// SAFETY: as for Send.
unsafe impl<R: Send> Sync for Reporter<R> {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program's load: it is tried again where its fault may pass.
pub struct Load<T> {
    /// The program, or the last fault in words; `None`: it was not loaded yet.
    pub program: Option<Result<T, String>>,
    /// Time of the next try; `None`: there is none.
    next: Option<Instant>,
}

impl<T> Default for Load<T> {
    fn default() -> Self {
        Self {
            program: None,
            next: Some(Instant::now()),
        }
    }
}

impl<T> Load<T> {
    /// Loads the program, if it is not loaded and not refused.
    pub fn ensure_loaded(&mut self, load: impl FnOnce() -> Result<T>) {
        if self.next.is_none_or(|at| Instant::now() < at) {
            return;
        }
        let loaded = object::with_libbpf_log(|| {
            let said = |error: &anyhow::Error| {
                let words = object::last_words(&object::take_libbpf_log());
                format!("{error:#}: {words}")
            };
            load().map_err(|error| (memory::is_passing(error.as_ref()), said(&error)))
        });
        let may_pass = matches!(loaded, Err((true, _)));
        self.next = may_pass.then(|| Instant::now() + AGAIN);
        self.program = Some(loaded.map_err(|(_, words)| words));
    }

    /// The loaded program.
    pub fn loaded(&self) -> Option<&T> {
        self.program.as_ref()?.as_ref().ok()
    }
}

/// Removes the program of an earlier agent.
///
/// # Errors
/// The kernel's.
pub fn remove_earlier(kernel: &Kernel, source: &Source) -> Result<()> {
    let pins = source.pin.map(|it| kernel.setup().pin.join(it));
    Ok(pins.map_or(Ok(()), |it| remove_file(&it))?)
}

/// Attaches a program to the agent's cgroup.
fn attach(kernel: &Kernel, source: &Source, program: &OwnedFd) -> Result<(File, OwnedFd)> {
    let path = &kernel.setup().cgroup;
    let cgroup = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let link = links::create_link(program.as_fd(), &cgroup, BPF_CGROUP_SOCK_OPS)
        .context("attaching the program to the cgroup")?;
    if let Some(pin) = source.pin {
        links::pin_over(link.as_fd(), &kernel.setup().pin.join(pin))?;
    }
    Ok((cgroup, link))
}

impl<R: Pod + Send + 'static> Reporter<R> {
    /// Loads the program with the learner's maps, and attaches it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn load(kernel: &Kernel, source: &'static Source) -> Result<Self> {
        Self::load_with(kernel, source, &Added::default())
    }

    /// Loads the program with additions to its object, and attaches it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn load_with(kernel: &Kernel, source: &'static Source, added: &Added<'_>) -> Result<Self> {
        ensure!(kernel.setup().kernel_btf, "the kernel has no types (BTF)");
        let object = kernel.load_beside(source.object, source.packed, added)?;
        let program = object::find_program(&object, source.program)?;
        let id = Program::id_from_fd(program.as_fd())?;
        let program = program.as_fd().try_clone_to_owned()?;
        let cgroup = attach(kernel, source, &program)?;
        let pending = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&pending);
        let mut builder = RingBufferBuilder::new();
        let reports = object::find_map(&object, source.reports)?;
        builder.add(&reports, move |bytes| {
            lock(&sink).extend(from_bytes::<R>(bytes));
            0
        })?;
        Ok(Self {
            source,
            table: object::find_map(&object, source.table)?,
            lost: object::find_map(&object, source.lost)?,
            ring: Mutex::new(builder.build().context("opening the ring of reports")?),
            pending,
            program,
            id,
            cgroup: Mutex::new(cgroup),
            object,
        })
    }

    /// Follows the learner to another cgroup.
    ///
    /// # Errors
    /// The kernel's.
    pub fn reattach(&self, kernel: &Kernel) -> Result<()> {
        *lock(&self.cgroup) = attach(kernel, self.source, &self.program)?;
        Ok(())
    }

    /// Checks that the cgroup runs the program, and that its count of lost reports can be read.
    ///
    /// # Errors
    /// The cgroup does not run it, or the kernel's.
    pub fn check(&self) -> Result<()> {
        self.lost_reports()?;
        let cgroup = lock(&self.cgroup);
        let running = links::programs_of(&cgroup.0, BPF_CGROUP_SOCK_OPS, 0)?;
        ensure!(
            running.contains(&self.id),
            "the cgroup does not run the program {} (number {})",
            self.source.program,
            self.id
        );
        Ok(())
    }

    /// Attaches an iterator of the object.
    ///
    /// # Errors
    /// The object has none of that name, or the kernel's.
    pub fn attach_iterator(&self, name: &str) -> Result<OwnedFd> {
        let link = object::find_program(&self.object, name)?.attach();
        let link = link.context("making a TCP iterator")?;
        Ok(link.as_fd().try_clone_to_owned()?)
    }

    /// Another map of the object.
    ///
    /// # Errors
    /// The object has none of that name.
    pub fn map(&self, name: &str) -> Result<MapHandle> {
        Ok(object::find_map(&self.object, name)?)
    }

    /// Reports since the last call.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take_reports(&self) -> Result<Vec<R>> {
        let program = self.source.program;
        lock(&self.ring)
            .consume()
            .with_context(|| format!("reading the reports of {program}"))?;
        Ok(std::mem::take(&mut *lock(&self.pending)))
    }

    /// Reports that the ring had no room for, ever.
    ///
    /// # Errors
    /// The kernel's.
    pub fn lost_reports(&self) -> Result<u64> {
        let zero = 0u32.to_ne_bytes();
        let counts = self.lost.lookup_percpu(&zero, MapFlags::ANY)?;
        let counts = counts.iter().flatten();
        let numbers = counts.filter_map(|it| Some(u64::from_ne_bytes(it[..].try_into().ok()?)));
        Ok(numbers.sum())
    }

    /// Entry of a network in the table; `None`: it has none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn entry<T: Pod>(&self, network: &HostKey) -> Result<Option<T>> {
        let found = (self.table).lookup(bytes_of(&key_to_raw(network)), MapFlags::ANY)?;
        Ok(found.and_then(|it| from_bytes(&it)))
    }

    /// Sets the entry of a network.
    ///
    /// # Errors
    /// The kernel's: the table is full.
    pub fn set<T: Pod>(&self, network: &HostKey, entry: &T) -> Result<()> {
        let key = key_to_raw(network);
        Ok(self
            .table
            .update(bytes_of(&key), bytes_of(entry), MapFlags::ANY)?)
    }

    /// Takes a network out of the table.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, network: &HostKey) -> Result<()> {
        match self.table.delete(bytes_of(&key_to_raw(network))) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Changes all entries.
    ///
    /// # Errors
    /// The kernel's.
    pub fn change_all<T: Pod>(&self, change: impl Fn(&mut T)) -> Result<()> {
        for key in batch::collect_keys(&self.table)? {
            let present = self.table.lookup(&key, MapFlags::ANY)?;
            if let Some(mut entry) = present.and_then(|it| from_bytes::<T>(&it)) {
                change(&mut entry);
                self.table.update(&key, bytes_of(&entry), MapFlags::EXIST)?;
            }
        }
        Ok(())
    }
}
