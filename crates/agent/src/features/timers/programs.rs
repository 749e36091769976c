//! The program `timers.bpf.c`: its load, its link to the agent's cgroup, the table of timers, and the
//! ring of reports. The link is pinned: when the agent dies, the program still takes back the floors
//! that are in force. The next agent puts its own in that place.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use libbpf_rs::libbpf_sys::BPF_CGROUP_SOCK_OPS;
use libbpf_rs::{
    ErrorKind, MapCore, MapFlags, MapHandle, Object, Program, RingBuffer, RingBufferBuilder,
};
use thalweg_bpf_objects::names::timers::{maps as names, programs};
use thalweg_bpf_types::{bytes_of, from_bytes, key_to_raw, raw};
use thalweg_control::pins::remove_file;
use thalweg_control::{batch, links, memory, object};
use thalweg_learner::HostKey;

use crate::kernel::Kernel;

/// File name of the link's pin.
const LINK: &str = "link_timers";

/// Reports since the last read.
type Pending = Arc<Mutex<Vec<raw::thalweg_timers_report>>>;

/// The attached program.
pub struct Programs {
    timers: MapHandle,
    lost: MapHandle,
    ring: Mutex<RingBuffer<'static>>,
    pending: Pending,
    program: OwnedFd,
    /// The kernel's number of the program.
    id: u32,
    cgroup: Mutex<(File, OwnedFd)>,
    // Dropped last.
    _object: Object,
}

/// The object is only read through file descriptors, which are safe to share, and never used after
/// [`Programs::attach`].
// SAFETY: see above; everything else is `Send + Sync`, or behind a lock.
unsafe impl Send for Programs {}
// SAFETY: as for Send.
unsafe impl Sync for Programs {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The programs, or the kernel's refusal in words.
pub type Loaded = Result<Programs, String>;

/// Loads the program with the learner's maps, and attaches it.
///
/// # Errors
/// Faults that may pass.
pub fn load(kernel: &Kernel) -> Result<Loaded> {
    object::with_libbpf_log(|| match try_load(kernel) {
        Ok(programs) => Ok(Ok(programs)),
        Err(error) if memory::is_passing(error.as_ref()) => Err(error),
        Err(error) => {
            let said = object::last_words(&object::take_libbpf_log());
            Ok(Err(format!("{error:#}: {said}")))
        }
    })
}

fn try_load(kernel: &Kernel) -> Result<Programs> {
    ensure!(kernel.setup().kernel_btf, "the kernel has no types (BTF)");
    let object = kernel.load_beside("thalweg_timers", thalweg_bpf_objects::TIMERS, &[])?;
    let program = object::find_program(&object, programs::TIMERS_SOCKOPS)?;
    let id = Program::id_from_fd(program.as_fd())?;
    let program = program.as_fd().try_clone_to_owned()?;
    let cgroup = attach(kernel, &program)?;
    let pending = Pending::default();
    let sink = Arc::clone(&pending);
    let mut builder = RingBufferBuilder::new();
    let reports = object::find_map(&object, names::REPORTS)?;
    builder.add(&reports, move |bytes| {
        lock(&sink).extend(from_bytes::<raw::thalweg_timers_report>(bytes));
        0
    })?;
    Ok(Programs {
        timers: object::find_map(&object, names::TIMERS)?,
        lost: object::find_map(&object, names::LOST)?,
        ring: Mutex::new(builder.build().context("opening the ring of reports")?),
        pending,
        program,
        id,
        cgroup: Mutex::new(cgroup),
        _object: object,
    })
}

/// Removes the program of an earlier agent.
///
/// # Errors
/// The kernel's.
pub fn remove_earlier(kernel: &Kernel) -> Result<()> {
    Ok(remove_file(&kernel.setup().pin.join(LINK))?)
}

/// Attaches the program to the agent's cgroup.
fn attach(kernel: &Kernel, program: &OwnedFd) -> Result<(File, OwnedFd)> {
    let path = &kernel.setup().cgroup;
    let cgroup = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let link = links::create_link(program.as_fd(), &cgroup, BPF_CGROUP_SOCK_OPS)
        .context("attaching the program to the cgroup")?;
    links::pin_over(link.as_fd(), &kernel.setup().pin.join(LINK))?;
    Ok((cgroup, link))
}

impl Programs {
    /// Follows the learner to another cgroup.
    ///
    /// # Errors
    /// The kernel's.
    pub fn reattach(&self, kernel: &Kernel) -> Result<()> {
        *lock(&self.cgroup) = attach(kernel, &self.program)?;
        Ok(())
    }

    /// Checks that the cgroup runs the program.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self) -> Result<()> {
        let cgroup = lock(&self.cgroup);
        let running = links::programs_of(&cgroup.0, BPF_CGROUP_SOCK_OPS, 0)?;
        ensure!(
            running.contains(&self.id),
            "the cgroup does not run the program of timers (number {})",
            self.id
        );
        Ok(())
    }

    /// Reports since the last call.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take_reports(&self) -> Result<Vec<raw::thalweg_timers_report>> {
        lock(&self.ring)
            .consume()
            .context("reading the ring of timers")?;
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

    /// Sets the timers of a network.
    ///
    /// # Errors
    /// The kernel's: the table is full.
    pub fn set(&self, network: &HostKey, timers: &raw::thalweg_timers) -> Result<()> {
        let key = key_to_raw(network);
        let mut timers = *timers;
        // What the program counts stays.
        let present = self.timers.lookup(bytes_of(&key), MapFlags::ANY)?;
        if let Some(present) = present.and_then(|it| from_bytes::<raw::thalweg_timers>(&it)) {
            timers.credit = present.credit;
        }
        Ok(self
            .timers
            .update(bytes_of(&key), bytes_of(&timers), MapFlags::ANY)?)
    }

    /// Takes the timers of a network out of the table.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, network: &HostKey) -> Result<()> {
        match self.timers.delete(bytes_of(&key_to_raw(network))) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Ends all timers for new connections. Those in force end with the recoveries that they are for,
    /// and a SYN on its way still finds its number of retransmissions.
    ///
    /// # Errors
    /// The kernel's.
    pub fn expire(&self) -> Result<()> {
        for key in batch::collect_keys(&self.timers)? {
            let present = self.timers.lookup(&key, MapFlags::ANY)?;
            if let Some(mut timers) = present.and_then(|it| from_bytes::<raw::thalweg_timers>(&it))
            {
                timers.until_ns = 0;
                self.timers
                    .update(&key, bytes_of(&timers), MapFlags::EXIST)?;
            }
        }
        Ok(())
    }
}
