//! Clamps of congestion windows: what a path can carry, by its largest rate and its least RTT.
//!
//! Inside a datacenter a congestion control that looks for losses fills the switch's queue, and short
//! requests wait behind it. A window of twice the path's bandwidth-delay product carries the same
//! ([`Path::clamp_segments`]). The agent looks at open connections, and computes the clamp of each remote
//! host from them. It has no part in the kernel, so this is its only arithmetic.

/// The smallest clamp, segments: the usual initial window (RFC 6928).
pub const LEAST: u32 = 10;
/// The largest, segments.
pub const MOST: u32 = 65_536;
/// Windows are this multiple of what the path carries, so that a rate may double.
const MARGIN: u128 = 2;
/// Added to the least RTT, µs: under load hosts answer later than at rest.
const GUARD_US: u32 = 100;
/// Polls of a sending host before it has a clamp: the rate must have been seen without one.
const MIN_POLLS: u32 = 16;
/// Age at which rates and round-trip times are forgotten, ns: after one to two of these periods.
/// The kernel remembers a least RTT as long (tcp_min_rtt_wlen).
const PERIOD_NS: u64 = 300_000_000_000;

/// Values of one connection at a poll, if it has sent since the last poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Bytes delivered in the kernel's last rate sample.
    pub delivered: u64,
    /// Time of the kernel's last rate sample, µs.
    pub interval_us: u32,
    /// Least RTT of the connection, µs.
    pub min_rtt_us: u32,
    /// Bytes of a segment.
    pub mss: u32,
}

impl Reading {
    /// Rate of the connection, bytes per second; 0: unknown. Bytes that came at once, as one
    /// acknowledgement reports, count as if they had taken a round trip under load. So no clamp is
    /// more than twice what was in flight.
    fn rate_bytes_per_s(&self) -> u64 {
        if self.min_rtt_us == 0 || self.mss == 0 || self.interval_us == 0 {
            return 0;
        }
        let interval_us = self.interval_us.max(loaded_us(self.min_rtt_us));
        let rate = u128::from(self.delivered) * 1_000_000 / u128::from(interval_us);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// Extremes of a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extremes {
    /// Largest rate, bytes per second; 0: none.
    rate: u64,
    /// Least RTT, µs; 0: none.
    rtt_us: u32,
}

/// State of the path to a remote host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    began_ns: u64,
    now: Extremes,
    before: Extremes,
    mss: u32,
    looks: u32,
}

impl Path {
    /// Takes the readings of one poll of the connections to the host; there may be none.
    pub fn poll_readings(&mut self, now_ns: u64, readings: impl IntoIterator<Item = Reading>) {
        let age_ns = now_ns.saturating_sub(self.began_ns);
        if age_ns >= PERIOD_NS {
            self.before = match age_ns >= 2 * PERIOD_NS {
                true => Extremes::default(),
                false => self.now,
            };
            self.now = Extremes::default();
            self.began_ns = now_ns;
        }
        let mut sends = false;
        for reading in readings {
            let rate = reading.rate_bytes_per_s();
            if rate == 0 {
                continue;
            }
            sends = true;
            self.mss = reading.mss;
            self.now.rate = self.now.rate.max(rate);
            self.now.rtt_us = lesser_nonzero(self.now.rtt_us, reading.min_rtt_us);
        }
        if self.largest_rate() == 0 {
            self.looks = 0;
        }
        self.looks = self.looks.saturating_add(sends.into());
    }

    /// Largest rate of one connection, bytes per second; 0: unknown.
    pub fn largest_rate(&self) -> u64 {
        self.now.rate.max(self.before.rate)
    }

    /// Least RTT, µs; 0: unknown.
    pub fn min_rtt_us(&self) -> u32 {
        lesser_nonzero(self.now.rtt_us, self.before.rtt_us)
    }

    /// The clamp of a connection's congestion window, segments; `None`: too little is known.
    pub fn clamp_segments(&self) -> Option<u32> {
        if self.looks < MIN_POLLS || self.largest_rate() == 0 {
            return None;
        }
        let rtt_us = loaded_us(self.min_rtt_us());
        let bytes = MARGIN * u128::from(self.largest_rate()) * u128::from(rtt_us) / 1_000_000;
        let segments = bytes.div_ceil(self.mss.into());
        Some(segments.clamp(LEAST.into(), MOST.into()) as u32)
    }
}

/// Round trip without a queue, under load, µs.
fn loaded_us(min_rtt_us: u32) -> u32 {
    min_rtt_us.saturating_add(GUARD_US)
}

/// The lesser of two, of which 0 is none.
fn lesser_nonzero(one: u32, other: u32) -> u32 {
    match (one, other) {
        (0, known) | (known, 0) => known,
        (one, other) => one.min(other),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
mod tests {
    use super::*;

    const LOOK_NS: u64 = 200_000_000;
    const MSS: u32 = 1448;

    fn reading(rate: u64, min_rtt_us: u32) -> Reading {
        Reading {
            delivered: rate / 1000,
            interval_us: 1000,
            min_rtt_us,
            mss: MSS,
        }
    }

    fn looked(path: &mut Path, from_ns: u64, number: u64, reading: Reading) -> u64 {
        for look in 0..number {
            path.poll_readings(from_ns + look * LOOK_NS, [reading]);
        }
        from_ns + number * LOOK_NS
    }

    #[test]
    fn it_is_twice_what_the_path_carries() {
        let mut path = Path::default();
        // 10 Gbit/s and 100 us, 200 with the guard: 250 kB.
        looked(&mut path, 0, 16, reading(1_250_000_000, 100));
        assert_eq!(path.clamp_segments(), Some(500_000_u32.div_ceil(MSS)));
        // A slower connection, and one with a longer RTT, change nothing.
        path.poll_readings(16 * LOOK_NS, [reading(1_000_000, 30_000)]);
        assert_eq!(path.clamp_segments(), Some(500_000_u32.div_ceil(MSS)));
        assert_eq!(
            (path.largest_rate(), path.min_rtt_us()),
            (1_250_000_000, 100)
        );
    }

    #[test]
    fn there_is_none_before_the_rate_was_seen_without_one() {
        let mut path = Path::default();
        assert_eq!(path.clamp_segments(), None);
        let now_ns = looked(&mut path, 0, 15, reading(1_000_000, 50));
        assert_eq!(path.clamp_segments(), None);
        // Nobody sends, or nothing is measured yet.
        for look in 0..100 {
            path.poll_readings(now_ns + look * LOOK_NS, []);
            path.poll_readings(now_ns + look * LOOK_NS, [reading(0, 50)]);
            path.poll_readings(now_ns + look * LOOK_NS, [reading(1, 0)]);
        }
        assert_eq!(path.clamp_segments(), None);
        path.poll_readings(now_ns + 100 * LOOK_NS, [reading(1_000_000, 50)]);
        assert_eq!(path.clamp_segments(), Some(LEAST));
    }

    #[test]
    fn what_comes_at_once_is_not_the_rate() {
        let mut path = Path::default();
        // 10 kB in a microsecond: 10 kB a round trip under load.
        let at_once = Reading {
            delivered: 10_000,
            interval_us: 1,
            min_rtt_us: 5,
            mss: 1000,
        };
        looked(&mut path, 0, 16, at_once);
        assert_eq!(path.largest_rate(), 10_000 * 1_000_000 / 105);
        assert_eq!(path.clamp_segments(), Some(20));
    }

    #[test]
    fn extremes_are_bounded() {
        let mut path = Path::default();
        looked(&mut path, 0, 16, reading(u64::MAX, 900));
        assert_eq!(path.clamp_segments(), Some(MOST));
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut path = Path::default();
        let (fast, slow) = (reading(1_250_000_000, 20), reading(12_500_000, 500));
        let period = PERIOD_NS / LOOK_NS;
        let now_ns = looked(&mut path, 0, period, fast);
        // A slower and longer path from now on. The old figures hold for one period more.
        let now_ns = looked(&mut path, now_ns, period, slow);
        assert_eq!(
            (path.largest_rate(), path.min_rtt_us()),
            (1_250_000_000, 20)
        );
        path.poll_readings(now_ns, [slow]);
        assert_eq!((path.largest_rate(), path.min_rtt_us()), (12_500_000, 500));
        assert!(path.clamp_segments().is_some());
        // After a long pause all begins anew.
        path.poll_readings(now_ns + 2 * PERIOD_NS, []);
        path.poll_readings(now_ns + 2 * PERIOD_NS, [slow]);
        assert_eq!(path.clamp_segments(), None);
    }

    /// Connections that may have more now and then show what a path carries. Where hosts answer later under
    /// load than the guard allows for, the clamp stays below that all the same.
    #[test]
    fn the_rate_is_found_and_the_clamp_keeps_to_its_guard() {
        // 1 Gbit/s; least RTT 50 us, 450 us under load.
        let (capacity, rtt_us) = (125_000_000.0, 450.0);
        let rate = |segments: f64| (segments * f64::from(MSS) * 1e6 / rtt_us).min(capacity);
        let mut path = Path::default();
        let mut now_ns = looked(&mut path, 0, 16, reading(20_000_000, 50));
        for look in 0..64 {
            let segments = f64::from(path.clamp_segments().unwrap());
            let turn = if look % 16 == 0 { 4.0 } else { 1.0 };
            path.poll_readings(now_ns, [reading(rate(turn * segments) as u64, 50)]);
            now_ns += LOOK_NS;
        }
        assert_eq!(path.largest_rate() as f64, capacity);
        // What it carries under load is less than what it could: the guard is 100 us, not 400.
        let share = rate(path.clamp_segments().unwrap().into()) / capacity;
        assert!((0.5..1.0).contains(&share), "{share}");
    }
}
