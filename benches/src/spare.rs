//! What others leave of the machine's CPUs, by work that only runs where nothing else does.
//!
//! The kernel works for a flow in the sender, in the receiver, in interrupts, timers and their
//! threads, and charges each to whom it finds there. What is missing to a thread that takes all the
//! rest is everything, whoever it was charged to.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::libc;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// How long nothing is measured but how fast the work goes.
const CALIBRATION: Duration = Duration::from_millis(300);
/// Steps between two looks at whether to end: some tens of microseconds.
const STEPS: u32 = 20_000;

/// One thread a CPU, in the scheduling class below all others (`SCHED_IDLE`, sched(7)).
pub struct Spare {
    end: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Spare {
    /// Starts the threads.
    pub fn start() -> Result<Self> {
        let mut spare = Self {
            end: Arc::default(),
            done: Arc::default(),
            threads: Vec::new(),
        };
        let cpus = std::thread::available_parallelism()?.get();
        for cpu in 0..cpus {
            let (end, done) = (Arc::clone(&spare.end), Arc::clone(&spare.done));
            let thread = std::thread::Builder::new().spawn(move || work(cpu, &end, &done))?;
            spare.threads.push(thread);
        }
        Ok(spare)
    }

    /// Seconds of a CPU that everything but these threads took while `what` ran, and its result.
    pub fn taken<T>(&self, what: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
        if self.threads.iter().any(JoinHandle::is_finished) {
            anyhow::bail!("a thread of lowest priority could not run on its CPU");
        }
        let (begin, before) = (Instant::now(), self.done.load(Ordering::Relaxed));
        std::thread::sleep(CALIBRATION);
        let whole = (self.done.load(Ordering::Relaxed) - before) as f64;
        // Of all CPUs together, each second.
        let speed = whole / begin.elapsed().as_secs_f64();

        let (begin, before) = (Instant::now(), self.done.load(Ordering::Relaxed));
        let result = what()?;
        let left = (self.done.load(Ordering::Relaxed) - before) as f64 / speed;
        let share = begin.elapsed().as_secs_f64() - left;
        Ok((share * self.threads.len() as f64, result))
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if let Ok(Err(error)) = thread.join() {
                eprintln!("{error:#}");
            }
        }
    }
}

fn work(cpu: usize, end: &AtomicBool, done: &AtomicU64) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).context("cannot stay on one CPU")?;
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter outlives the call, which changes this thread alone.
    let changed = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) };
    if changed != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot take the lowest priority");
    }
    let mut state = 1_u64;
    while !end.load(Ordering::Relaxed) {
        for _ in 0..STEPS {
            state = black_box(state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
