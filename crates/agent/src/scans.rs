//! Scans of long connections, and polls of features: their schedule and their cost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use thalweg_control::system;

use crate::view;

/// Least pause after a scan, as a multiple of its processor time: scans take at most 1 % of a
/// processor, however many connections are open.
const PAUSE: u32 = 99;

/// Metrics of all scans since the agent's start.
#[derive(Debug, Default)]
pub struct Figures {
    number: AtomicU64,
    time_ns: AtomicU64,
    interval_ms: AtomicU64,
}

impl Figures {
    /// The metrics as the API shows them.
    pub fn shown(&self) -> view::Looks {
        view::Looks {
            number: self.number.load(Ordering::Relaxed),
            cpu_us: self.time_ns.load(Ordering::Relaxed) / 1000,
            interval_s: self.interval_ms.load(Ordering::Relaxed) as f64 / 1000.0,
        }
    }
}

/// Schedule of scans.
#[derive(Debug)]
pub struct Looks {
    /// Interval of scans; `None`: there are none.
    interval: Option<Duration>,
    next: Instant,
}

impl Looks {
    /// A schedule with this interval; `None`: no scans.
    pub fn every(interval: Option<Duration>) -> Self {
        Self {
            interval,
            next: Instant::now() + interval.unwrap_or_default(),
        }
    }

    /// A schedule whose first scan is due now.
    pub fn from_now(interval: Option<Duration>) -> Self {
        let next = Instant::now();
        Self { interval, next }
    }

    /// Whether a scan is due.
    pub fn are_due(&self) -> bool {
        self.interval.is_some() && self.next <= Instant::now()
    }

    /// Notes the begin of a scan and its processor time. Without figures the interval stays as it
    /// is, whatever the scan took.
    pub fn note(&mut self, began: Instant, time: Duration, figures: Option<&Figures>) {
        let Some(interval) = self.interval else {
            return;
        };
        let Some(figures) = figures else {
            self.next = began + interval;
            return;
        };
        let interval = pause(interval, time);
        self.next = began + interval;
        figures.number.fetch_add(1, Ordering::Relaxed);
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        figures.time_ns.fetch_add(time_ns, Ordering::Relaxed);
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        figures.interval_ms.store(interval_ms, Ordering::Relaxed);
    }
}

/// Time from the begin of a scan to that of the next.
fn pause(interval: Duration, time: Duration) -> Duration {
    interval.max(time.saturating_mul(PAUSE + 1))
}

/// Sum of the processor time of the calling thread's actions.
#[derive(Debug, Default)]
pub struct Stopwatch {
    total_ns: u64,
}

impl Stopwatch {
    /// Runs an action, and adds its processor time.
    pub fn timed<T>(&mut self, action: impl FnOnce() -> T) -> T {
        let began_ns = system::thread_time_ns();
        let result = action();
        self.total_ns += system::thread_time_ns().saturating_sub(began_ns);
        result
    }

    /// Total processor time.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_take_one_percent_of_a_processor_at_most() {
        let interval = Duration::from_secs(30);
        assert_eq!(pause(interval, Duration::from_millis(300)), interval);
        let long = Duration::from_millis(400);
        assert_eq!(pause(interval, long), Duration::from_secs(40));
        assert_eq!(pause(interval, Duration::MAX), Duration::MAX);
    }

    #[test]
    fn the_time_of_a_thread_is_that_of_its_work() {
        let mut watch = Stopwatch::default();
        watch.timed(|| {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(20) {}
        });
        let worked = watch.total();
        assert!(worked > Duration::ZERO, "{worked:?}");
        // What comes between does not count.
        std::hint::black_box((0..1_000_000).map(std::hint::black_box).sum::<u64>());
        assert_eq!(watch.total(), worked);
    }

    #[test]
    fn without_an_interval_there_are_no_looks() {
        let mut none = Looks::every(None);
        assert!(!none.are_due());
        let figures = Figures::default();
        none.note(Instant::now(), Duration::from_secs(1), Some(&figures));
        assert_eq!(figures.shown().number, 0);
        let mut soon = Looks::every(Some(Duration::ZERO));
        assert!(soon.are_due());
        soon.note(Instant::now(), Duration::from_secs(1), Some(&figures));
        assert!(!soon.are_due());
        assert_eq!(
            (figures.shown().number, figures.shown().cpu_us),
            (1, 1_000_000)
        );
    }
}
