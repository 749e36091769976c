//! Log of one direction's bottleneck in the format of Mahimahi's `mm-link` (`--uplink-log`).
//!
//! A thread of its own writes it, so no packet waits for the disk. Milliseconds count from the
//! link's beginning:
//!
//! ```text
//! MS + BYTES        a packet came
//! MS # BYTES        so much could leave
//! MS - BYTES DELAY  a packet left, DELAY ms after it came
//! MS d PKTS BYTES   packets were dropped
//! ```

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::engine::{Capacity, Direction, Engine, Event, EventKind};
use crate::error::Error;
use crate::trace::{OPPORTUNITY_BYTES, OVERHEAD_BYTES};

const NS_PER_MS: u64 = 1_000_000;
/// Events are handed over in lots of this size, or of this age.
const LOT: usize = 1024;
const LOT_NS: u64 = 100 * NS_PER_MS;
/// Lots that may wait for the disk: some 100 MB.
const WAITING_LOTS: usize = 4096;

/// A file that can be written, for a log.
#[derive(Debug)]
pub(crate) struct LogFile {
    file: File,
    path: PathBuf,
    direction: Direction,
}

/// Message to the writer.
enum Message {
    Events(Vec<Event>),
    /// The link ended.
    End(u64),
}

/// Takes events from the engine.
#[derive(Debug)]
pub(crate) struct Recorder {
    sender: SyncSender<Message>,
    handed_ns: u64,
    /// The disk did not keep up.
    is_behind: Arc<AtomicBool>,
}

/// The thread that writes.
#[derive(Debug)]
pub(crate) struct Writer {
    path: PathBuf,
    is_behind: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

impl LogFile {
    /// Creates the file with its first lines. `name` says which direction it is.
    pub(crate) fn create(path: &Path, name: &str, direction: &Direction) -> Result<Self, Error> {
        let cannot = || Error::io("cannot write", path);
        let mut file = File::create(path).map_err(cannot())?;
        let queue = direction
            .aqm
            .map_or("droptail".to_owned(), |aqm| aqm.to_string());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let head = format!(
            "# thalweg-lab link ({name})\n# queue: {queue} [bytes={}]\n# init timestamp: {}\n\
             # base timestamp: 0\n",
            direction.queue_bytes,
            now.map_or(0, |it| it.as_millis())
        );
        file.write_all(head.as_bytes()).map_err(cannot())?;
        Ok(Self {
            file,
            path: path.to_owned(),
            direction: direction.clone(),
        })
    }

    /// Starts the thread.
    pub(crate) fn start_writer(self) -> Result<(Recorder, Writer), Error> {
        let (sender, receiver) = sync_channel(WAITING_LOTS);
        let is_behind = Arc::new(AtomicBool::new(false));
        let lines = Lines::new(BufWriter::new(self.file), &self.direction);
        let thread = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_all(lines, &receiver))
            .map_err(Error::system("cannot start a thread"))?;
        let recorder = Recorder {
            sender,
            handed_ns: 0,
            is_behind: Arc::clone(&is_behind),
        };
        let writer = Writer {
            path: self.path,
            is_behind,
            thread,
        };
        Ok((recorder, writer))
    }
}

impl Recorder {
    /// Hands events over if it is time. Never waits.
    pub(crate) fn take_events(&mut self, now_ns: u64, engine: &mut Engine) {
        let count = engine.event_count();
        if count >= LOT || (count > 0 && now_ns - self.handed_ns >= LOT_NS) {
            self.handed_ns = now_ns;
            let events = engine.take_events(LOT + LOT / 8);
            if let Err(TrySendError::Full(_)) = self.sender.try_send(Message::Events(events)) {
                // A log with a hole would mislead.
                engine.record_events(false);
                self.is_behind.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Hands over the rest.
    pub(crate) fn take_rest(self, now_ns: u64, engine: &mut Engine) {
        // The writer ends only after the end of this.
        let _ = self.sender.send(Message::Events(engine.take_events(0)));
        let _ = self.sender.send(Message::End(now_ns));
    }
}

impl Writer {
    /// Waits until all is written.
    ///
    /// # Errors
    /// The file does not have all of it.
    pub(crate) fn wait_until_written(self) -> Result<(), Error> {
        let panicked = || Err(io::Error::other("the writing thread panicked"));
        let mut written = self.thread.join().unwrap_or_else(|_| panicked());
        if written.is_ok() && self.is_behind.load(Ordering::Relaxed) {
            written = Err(io::Error::other("the disk is too slow; the log ends early"));
        }
        written.map_err(Error::io("cannot write all of the log", self.path))
    }
}

fn write_all(mut lines: Lines<BufWriter<File>>, from: &Receiver<Message>) -> io::Result<()> {
    let mut written = Ok(());
    // After an error, what comes is thrown away, so that nothing piles up.
    while let Ok(message) = from.recv() {
        if written.is_ok() {
            written = match message {
                Message::Events(events) => events.iter().try_for_each(|event| lines.add(event)),
                Message::End(now_ns) => {
                    lines.write_until(now_ns, true).and_then(|()| lines.flush())
                }
            };
        }
    }
    written
}

/// Puts events into the order of time, with the moments at which something could leave.
struct Lines<W> {
    to: W,
    capacity: Capacity,
    /// Bytes beyond its IP length that a packet counts for.
    overhead_bytes: u64,
    /// The next line of a trace, or millisecond of a rate.
    number: u64,
    /// Departures that are known before they happen.
    later: VecDeque<(u64, u64, u64)>,
}

impl<W: Write> Lines<W> {
    fn new(to: W, direction: &Direction) -> Self {
        let overhead_bytes = match direction.capacity {
            Capacity::Trace(_) => OVERHEAD_BYTES,
            _ => 0,
        };
        Self {
            to,
            capacity: direction.capacity.clone(),
            overhead_bytes,
            number: u64::from(overhead_bytes == 0),
            later: VecDeque::new(),
        }
    }

    fn add(&mut self, event: &Event) -> io::Result<()> {
        let at_ns = event.at_ns;
        let bytes = event.bytes + self.overhead_bytes;
        match event.what {
            EventKind::Left { since_ns } => {
                self.later.push_back((at_ns, since_ns, bytes));
                Ok(())
            }
            EventKind::Came => {
                self.write_until(at_ns, false)?;
                writeln!(self.to, "{} + {bytes}", at_ns / NS_PER_MS)
            }
            EventKind::Dropped => {
                self.write_until(at_ns, false)?;
                writeln!(self.to, "{} d 1 {bytes}", at_ns / NS_PER_MS)
            }
        }
    }

    /// Writes what is earlier than a moment; at the end also departures after it.
    fn write_until(&mut self, now_ns: u64, is_end: bool) -> io::Result<()> {
        while let Some(&(at_ns, since_ns, bytes)) = self.later.front() {
            if at_ns > now_ns && !is_end {
                break;
            }
            self.write_opportunities(at_ns)?;
            self.later.pop_front();
            let (left_ms, came_ms) = (at_ns / NS_PER_MS, since_ns / NS_PER_MS);
            writeln!(self.to, "{left_ms} - {bytes} {}", left_ms - came_ms)?;
        }
        self.write_opportunities(now_ns)
    }

    fn write_opportunities(&mut self, until_ns: u64) -> io::Result<()> {
        loop {
            let (at_ns, bytes) = match &self.capacity {
                Capacity::Unlimited => return Ok(()),
                Capacity::Trace(trace) => (trace.moment_ns(self.number), OPPORTUNITY_BYTES),
                Capacity::Rate(rate) => {
                    let until_ms =
                        |ms: u64| (u128::from(rate.bps()) * u128::from(ms) / 8000) as u64;
                    let bytes = until_ms(self.number) - until_ms(self.number - 1);
                    (self.number * NS_PER_MS, bytes)
                }
            };
            if at_ns > until_ns {
                return Ok(());
            }
            self.number += 1;
            if bytes > 0 {
                writeln!(self.to, "{} # {bytes}", at_ns / NS_PER_MS)?;
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::settings::Settings;
    use crate::trace::Trace;

    const MS: u64 = NS_PER_MS;

    /// The lines of packets of 1,000 bytes that come at these moments, up to an end.
    fn lines(direction: Direction, came_ns: &[u64], end_ns: u64) -> String {
        let mut lines = Lines::new(Vec::new(), &direction);
        let mut engine = Engine::new(direction);
        engine.record_events(true);
        for &now_ns in came_ns {
            while engine.next_departure(now_ns).is_some() {}
            engine.packet_arrives(now_ns, vec![0; 1000]);
        }
        while let Some(next_ns) = engine.next_departure_ns() {
            while engine.next_departure(next_ns).is_some() {}
        }
        for event in &engine.take_events(0) {
            lines.add(event).unwrap();
        }
        lines.write_until(end_ns, true).unwrap();
        String::from_utf8(lines.to).unwrap()
    }

    fn direction(rate: &str, queue: &str) -> Direction {
        let settings = Settings {
            rate: Some(rate.parse().unwrap()),
            queue: Some(queue.parse().unwrap()),
            ..Settings::default()
        };
        let [direction, _] = settings.directions().unwrap();
        direction
    }

    #[test]
    fn a_rate_has_its_bytes_each_millisecond_and_departures_their_delay() {
        // A packet takes 2 ms; the third does not fit.
        let log = lines(direction("4mbit", "2000B"), &[MS, MS, MS, 4 * MS], 7 * MS);
        assert_eq!(
            log,
            "1 # 500\n1 + 1000\n1 + 1000\n1 + 1000\n1 d 1 1000\n2 # 500\n3 # 500\n3 - 1000 2\n\
             4 # 500\n4 + 1000\n5 # 500\n5 - 1000 4\n6 # 500\n7 # 500\n7 - 1000 3\n"
        );
    }

    #[test]
    fn a_trace_logs_its_lines_and_packets_as_mahimahi_counts_them() {
        let trace = Trace::parse(b"2\n5\n", Path::new("trace")).unwrap();
        let traced = Direction {
            capacity: Capacity::Trace(Arc::new(trace)),
            ..direction("4mbit", "9000B")
        };
        // Two opportunities carry one packet and a half.
        assert_eq!(
            lines(traced, &[0, 0], 6 * MS),
            "0 + 1004\n0 + 1004\n2 # 1504\n2 - 1004 2\n5 # 1504\n5 - 1004 5\n"
        );
    }

    #[test]
    fn a_controlled_queue_logs_in_the_order_of_time_and_every_drop() {
        let mut controlled = direction("4mbit", "60kB");
        controlled.aqm = Some("codel,target=1ms,interval=10ms".parse().unwrap());
        let came: Vec<u64> = (0..500).map(|number| number * MS).collect();
        let log = lines(controlled, &came, 0);
        let mut counts = [0; 3];
        let mut last_ms = 0;
        for line in log.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let ms: u64 = words[0].parse().unwrap();
            assert!(ms >= last_ms, "{line} after {last_ms}");
            last_ms = ms;
            if let Some(kind) = ["+", "-", "d"].iter().position(|it| *it == words[1]) {
                counts[kind] += 1;
            }
        }
        assert_eq!(counts[0], 500);
        assert_eq!(counts[1] + counts[2], 500);
        assert!(counts[2] > 20, "{counts:?}");
    }
}
