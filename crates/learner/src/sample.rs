//! One measured stretch of a connection, and whether it is scored.

use crate::fixed::{ONE_Q16, rate_bytes_per_second};
use crate::params::Params;

/// Least weight of a scored measurement, Q16.
const WEIGHT_MIN_Q16: u64 = 1 << 12;
/// Least weight of a time-out, Q16.
const WEIGHT_TIMEOUT_Q16: u64 = 1 << 15;
/// A time-out, or a change of arm mid-flow, after this many segments is scored however little was
/// delivered.
const STALLED_SEGS: u32 = 32;
/// Part of a stretch's time above which a full receiver's window or send buffer limits the stretch:
/// a quarter.
const LIMITED_PART: u64 = 4;
/// Least time that a full window or buffer must last to limit a stretch, µs. The kernel counts that
/// time in jiffies of up to 10 ms.
const LIMITED_LEAST_US: u64 = 20_000;
/// Ratio of the kernel's own rate sample to the mean rate that shows a pause of the application:
/// the path could have carried more.
const APP_LIMITED_RATIO: u64 = 16;
/// Segments per retransmission below which pauses are blamed on the congestion control
/// (retransmission time-outs), not on the application.
const APP_LIMITED_LOSS: u32 = 256;

/// How a measured stretch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Orderly, closed here first.
    FinLocal,
    /// Orderly, closed by the peer first.
    FinRemote,
    /// RST, from either side.
    Reset,
    /// Retransmissions stayed unacknowledged.
    Timeout,
    /// The arm was changed mid-flow; the connection goes on.
    Switch,
    /// A long connection was scored on its way; it goes on.
    Stretch,
}

/// Effect of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The measurement was added to the estimates.
    Scored,
    /// Too few bytes to judge a congestion control.
    Small,
    /// Something other than the path limited the rate: the application, the receiver's window or the
    /// send buffer.
    AppLimited,
    /// A time-out, with no other measurement to compare with yet.
    Timeout,
}

/// One measured stretch of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Bytes acknowledged in the stretch.
    pub bytes: u64,
    /// Time with data outstanding if the kernel reports it, else wall time.
    pub duration_us: u64,
    /// Bytes delivered in the kernel's last rate sample: packets × MSS.
    pub rate_delivered_bytes: u64,
    /// Time of the kernel's last rate sample, µs; 0 = no sample.
    pub rate_interval_us: u64,
    /// Smoothed RTT at the end.
    pub srtt_us: u32,
    /// Minimum RTT; 0 = no sample.
    pub min_rtt_us: u32,
    /// Data segments sent, retransmissions included.
    pub segs_out: u32,
    /// Retransmissions.
    pub retrans: u32,
    /// Segments sent after slow start, if any; else all.
    pub steady_segs: u32,
    /// Retransmissions after slow start, if any segments were; else all.
    pub steady_retrans: u32,
    /// Smoothed RTT at the retransmissions after slow start, µs; 0 if there was none.
    pub loss_srtt_us: u32,
    /// Part of `duration_us` in which the receiver's window or the send buffer was full, µs; 0
    /// without `busy_time`.
    pub limited_us: u64,
    /// `duration_us` is time with data outstanding, not wall time.
    pub busy_time: bool,
    /// How the stretch ended.
    pub end: End,
}

impl Sample {
    /// Mean rate over the stretch, bytes per second.
    pub fn mean_rate(&self) -> u64 {
        rate_bytes_per_second(self.bytes, self.duration_us)
    }

    /// Whether the receiver's window or the send buffer, not the path, limited the stretch: for more
    /// than a quarter of its time, 20 ms at least. Its rate is one that the path can carry at least.
    pub fn is_limited(&self) -> bool {
        self.busy_time
            && self.limited_us >= LIMITED_LEAST_US
            && self.limited_us > self.duration_us / LIMITED_PART
            && self.end != End::Timeout
    }

    /// Whether the stretch says anything about its congestion control.
    pub fn assess_sample(&self, params: &Params) -> Outcome {
        let broken_off = matches!(self.end, End::Timeout | End::Switch);
        let stalled = broken_off && self.segs_out >= STALLED_SEGS;
        if self.bytes < params.score_min_bytes && !stalled {
            return Outcome::Small;
        }
        // Busy time excludes pauses; in wall time they show as a low mean rate.
        if self.busy_time {
            return Outcome::Scored;
        }
        let burst = rate_bytes_per_second(self.rate_delivered_bytes, self.rate_interval_us);
        let paused = self.rate_interval_us != 0 && burst / APP_LIMITED_RATIO > self.mean_rate();
        let lossless = self.retrans <= self.segs_out / APP_LIMITED_LOSS;
        if paused && lossless && self.end != End::Timeout {
            return Outcome::AppLimited;
        }
        Outcome::Scored
    }

    /// Weight (Q16) by bytes: one at `score_full_bytes`, in proportion below.
    pub fn weight_q16(&self, params: &Params) -> u32 {
        let full = params.score_full_bytes.min(1 << 47);
        if self.bytes >= full {
            return ONE_Q16;
        }
        let mut weight = ((self.bytes << 16) / full).max(WEIGHT_MIN_Q16);
        if self.end == End::Timeout {
            weight = weight.max(WEIGHT_TIMEOUT_Q16);
        }
        weight as u32
    }
}
