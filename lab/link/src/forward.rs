//! One thread a direction: reads packets at one end, gives them to the engine,
//! and writes them at the other end when their time has come.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use nix::libc;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::accuracy::{Histogram, Percentiles};
use crate::engine::{Counters, Direction, Engine};
use crate::error::Error;
use crate::log::Recorder;
use crate::tun::MTU_BYTES;

/// No more packets are read in a row, so that departures get their turn.
const BATCH: usize = 16;

/// Outcome of one direction.
#[derive(Debug)]
pub struct Passage {
    /// Counters of its packets.
    pub counters: Counters,
    /// How late they left.
    pub error: Percentiles,
    /// From the first to the last departure, in nanoseconds.
    pub active_ns: u64,
    /// Packets that the other end did not take: its device was down.
    pub refused: u64,
    /// Whether the thread ran with real-time priority.
    pub realtime: bool,
}

/// A running direction. Dropped, it stops.
#[derive(Debug)]
pub struct Forwarder {
    stop: Arc<EventFd>,
    queue_drops: Arc<AtomicU64>,
    thread: Option<JoinHandle<io::Result<Passage>>>,
}

impl Forwarder {
    /// Starts to forward. `failed` is written to if it ends by itself.
    pub fn start_forwarding(
        name: &str,
        direction: Direction,
        from: File,
        to: File,
        began: Instant,
        failed: Arc<EventFd>,
    ) -> Result<Self, Error> {
        Self::start_recorded(name, direction, from, to, began, failed, None)
    }

    /// As [`Forwarder::start_forwarding`], with a log.
    pub(crate) fn start_recorded(
        name: &str,
        direction: Direction,
        from: File,
        to: File,
        began: Instant,
        failed: Arc<EventFd>,
        recorder: Option<Recorder>,
    ) -> Result<Self, Error> {
        let cannot = |what: &str| Error::system(format!("cannot {what}"));
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let stop = EventFd::from_value_and_flags(0, flags)
            .map_err(|errno| cannot("make an event descriptor")(errno.into()))?;
        let stop = Arc::new(stop);
        let theirs = Arc::clone(&stop);
        let queue_drops = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&queue_drops);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let mut worker = Worker::new(direction, from, to, began, told);
                worker.engine.record_events(recorder.is_some());
                worker.recorder = recorder;
                let ended = worker.run(&theirs).map(|()| worker.passage_so_far());
                if let Some(recorder) = worker.recorder.take() {
                    recorder.take_rest(worker.now_ns(), &mut worker.engine);
                }
                if ended.is_err() {
                    // Only a full counter makes this fail, and then it is readable.
                    let _ = failed.write(1);
                }
                ended
            })
            .map_err(cannot("start a thread"))?;
        Ok(Self {
            stop,
            queue_drops,
            thread: Some(thread),
        })
    }

    /// Packets that its queue has dropped so far.
    pub fn queue_drops(&self) -> u64 {
        self.queue_drops.load(Ordering::Relaxed)
    }

    /// Stops it and says what it did.
    pub fn stop_and_report(mut self) -> Result<Passage, Error> {
        self.stop_and_join()
            .unwrap_or_else(|| Err(io::Error::other("the thread was joined before")))
            .map_err(Error::system("forwarding packets failed"))
    }

    fn stop_and_join(&mut self) -> Option<io::Result<Passage>> {
        let thread = self.thread.take()?;
        let _ = self.stop.write(1);
        Some(
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the forwarding thread panicked"))),
        )
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}

struct Worker {
    engine: Engine,
    recorder: Option<Recorder>,
    from: File,
    to: File,
    began: Instant,
    /// Buffers of packets that are gone.
    spare: Vec<Vec<u8>>,
    lateness: Histogram,
    first_ns: Option<u64>,
    last_ns: u64,
    refused: u64,
    realtime: bool,
    /// For those who ask while it runs.
    queue_drops: Arc<AtomicU64>,
}

impl Worker {
    fn new(
        direction: Direction,
        from: File,
        to: File,
        began: Instant,
        queue_drops: Arc<AtomicU64>,
    ) -> Self {
        Self {
            engine: Engine::new(direction),
            recorder: None,
            from,
            to,
            began,
            spare: Vec::new(),
            lateness: Histogram::default(),
            first_ns: None,
            last_ns: 0,
            refused: 0,
            realtime: false,
            queue_drops,
        }
    }

    fn run(&mut self, stop: &EventFd) -> io::Result<()> {
        self.realtime = be_prompt();
        loop {
            self.deliver_due()?;
            let count = self.collect_arrivals()?;
            let counters = self.engine.counters();
            let dropped = counters.dropped_queue + counters.dropped_early;
            self.queue_drops.store(dropped, Ordering::Relaxed);
            if let Some(recorder) = &mut self.recorder {
                recorder.take_events(self.began.elapsed().as_nanos() as u64, &mut self.engine);
            }
            if count == BATCH {
                continue;
            }
            if self.wait_for_event(stop)? {
                return Ok(());
            }
        }
    }

    fn passage_so_far(&self) -> Passage {
        Passage {
            counters: *self.engine.counters(),
            error: self.lateness.percentiles(),
            active_ns: self.last_ns - self.first_ns.unwrap_or(self.last_ns),
            refused: self.refused,
            realtime: self.realtime,
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Writes all packets whose time has come.
    fn deliver_due(&mut self) -> io::Result<()> {
        let mut now_ns = self.now_ns();
        while let Some((ideal_ns, packet)) = self.engine.next_departure(now_ns) {
            match self.to.write(&packet) {
                Ok(_) => {}
                // The device is down, or the packet was none that it knows.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
                        || error.kind() == ErrorKind::WouldBlock =>
                {
                    self.refused += 1;
                }
                Err(error) => return Err(error),
            }
            now_ns = self.now_ns();
            self.lateness.add(now_ns - ideal_ns);
            self.first_ns.get_or_insert(now_ns);
            self.last_ns = now_ns;
            self.spare.push(packet);
        }
        Ok(())
    }

    /// Reads packets until there are none, a departure is due or there were
    /// [`BATCH`]. Returns how many.
    fn collect_arrivals(&mut self) -> io::Result<usize> {
        for count in 0..BATCH {
            let mut packet = self.spare.pop().unwrap_or_default();
            packet.resize(MTU_BYTES, 0);
            match self.from.read(&mut packet) {
                Ok(length) => packet.truncate(length),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.spare.push(packet);
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    self.spare.push(packet);
                    continue;
                }
                Err(error) => return Err(error),
            }
            let now_ns = self.now_ns();
            if let Some(packet) = self.engine.packet_arrives(now_ns, packet) {
                self.spare.push(packet);
            }
            if self
                .engine
                .next_departure_ns()
                .is_some_and(|next| next <= now_ns)
            {
                return Ok(BATCH);
            }
        }
        Ok(BATCH)
    }

    /// Waits for a packet, the next departure or the end; true for the last.
    fn wait_for_event(&self, stop: &EventFd) -> io::Result<bool> {
        let timeout = self.engine.next_departure_ns().map(|next_ns| {
            let left_ns = next_ns.saturating_sub(self.now_ns());
            libc::timespec {
                tv_sec: (left_ns / 1_000_000_000) as libc::time_t,
                tv_nsec: (left_ns % 1_000_000_000) as libc::c_long,
            }
        });
        let watch = |fd: i32| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut watched = [
            watch(self.from.as_raw_fd()),
            watch(stop.as_fd().as_raw_fd()),
        ];
        let timeout = timeout
            .as_ref()
            .map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: two pollfds as announced, and a timespec that lives until the end
        // of the function, or none.
        let ready = unsafe { libc::ppoll(watched.as_mut_ptr(), 2, timeout, std::ptr::null()) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            };
        }
        if watched[0].revents & (libc::POLLERR | libc::POLLHUP) != 0 {
            return Err(io::Error::other("a TUN device of the link has gone"));
        }
        Ok(watched[1].revents != 0)
    }
}

/// Asks for exact timers and, where this user may, for real-time priority.
/// Returns whether the latter was granted.
fn be_prompt() -> bool {
    // SAFETY: integers and a struct that the call only reads; both calls concern
    // the calling thread alone.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
        let mut parameters: libc::sched_param = std::mem::zeroed();
        parameters.sched_priority = 1;
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters) == 0
    }
}
