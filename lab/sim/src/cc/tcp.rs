//! What Linux's TCP shows its congestion control, and what the control may change.
//!
//! Names are those of the kernel (`include/linux/tcp.h`, `include/net/tcp.h`), so that rules can
//! be compared line by line.

use thalweg_rate::Measurement;
use thalweg_rate::kernel::Path;

/// Slow start threshold before the first loss.
pub const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// First window, segments (RFC 6928).
pub const INITIAL_CWND: u32 = 10;

/// States of TCP's loss recovery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CaState {
    /// Nothing is known to be lost.
    #[default]
    Open,
    /// The receiver reported a loss, and it is being repaired.
    Recovery,
    /// A retransmission time-out is being repaired.
    Loss,
}

/// A connection as its congestion control sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Socket {
    /// TCP's clock, µs.
    pub tcp_mstamp: u64,
    /// The clock that hosts agree on, ns.
    pub tai_ns: u64,
    /// Payload of a full segment, bytes.
    pub mss_cache: u32,
    /// Smoothed round-trip time, eighths of a microsecond.
    pub srtt_us: u32,
    /// Shortest round-trip time, µs.
    pub min_rtt_us: u32,
    /// Segments delivered, ever; of them with a congestion mark; segments lost, ever.
    pub delivered: u32,
    #[allow(missing_docs)]
    pub delivered_ce: u32,
    #[allow(missing_docs)]
    pub lost: u32,
    /// Segments in flight.
    pub packets_out: u32,
    /// Segments sent, ever (for the kernel's `snd_nxt`), and of them known to have arrived or to
    /// be lost (for `snd_una`).
    pub snd_nxt: u32,
    #[allow(missing_docs)]
    pub snd_una: u32,
    /// Congestion window and slow start threshold, segments.
    pub snd_cwnd: u32,
    #[allow(missing_docs)]
    pub snd_ssthresh: u32,
    /// Whether the window held back the sender in the last round trip, and the most segments that
    /// were in flight in it.
    pub is_cwnd_limited: bool,
    #[allow(missing_docs)]
    pub max_packets_out: u32,
    /// Rate of pacing, bytes/s of payload. It also determines the size of bursts.
    pub sk_pacing_rate: u64,
    /// Whether bursts are paced.
    pub sk_pacing_needed: bool,
    /// State of loss recovery.
    pub ca_state: CaState,
    /// Proportional rate reduction: the window before it, and segments delivered and sent since.
    pub prior_cwnd: u32,
    #[allow(missing_docs)]
    pub prr_delivered: u32,
    #[allow(missing_docs)]
    pub prr_out: u32,
    /// Knowledge that connections between the same two hosts have of their path.
    pub path: Option<Path>,
    /// The simulation's caller must decide by this before the connection goes on.
    pub asks: Option<Measurement>,
}

/// Measurements that come with an ACK (`struct rate_sample`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Segments delivered when the newest acknowledged one was sent.
    pub prior_delivered: u32,
    /// Round-trip time, µs; in milliseconds, or none, if retransmissions were acknowledged.
    pub rtt_us: Option<u32>,
    /// Whether the ACK was delayed, as far as TCP knows.
    pub is_ack_delayed: bool,
    /// Whether the application had too little to send.
    pub is_app_limited: bool,
    /// Newly delivered segments.
    pub acked_sacked: u32,
    /// Newly lost segments.
    pub losses: u32,
    /// Whether the ACK moved the receiver's first missing segment.
    pub is_una_advanced: bool,
}

/// Events of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The handshake is over: `init`.
    Init,
    /// An ACK: `cong_control`, or `pkts_acked` and `cong_avoid`. Changes of state come before.
    Ack(Sample),
    /// A report of loss: recovery begins. `ssthresh` in `tcp_enter_recovery`.
    Recovery,
    /// A retransmission time-out. `ssthresh` and `CA_EVENT_LOSS` in `tcp_enter_loss`.
    Loss,
    /// All that was sent before the loss has arrived.
    Open,
    /// The first segment after all were acknowledged (`CA_EVENT_TX_START`); the pause in µs.
    TxStart {
        /// Since the last segment was sent.
        idle_us: u32,
    },
}

impl Socket {
    /// `tcp_in_slow_start`.
    pub fn is_in_slow_start(&self) -> bool {
        self.snd_cwnd < self.snd_ssthresh
    }

    /// `tcp_is_cwnd_limited`: whether the window was used, so that it may grow.
    pub fn is_window_used(&self) -> bool {
        if self.is_cwnd_limited {
            return true;
        }
        // In slow start half of the window may lag behind.
        self.is_in_slow_start() && self.snd_cwnd < 2 * self.max_packets_out
    }

    /// `tcp_slow_start`: grows by what was acknowledged, up to the threshold. Returns the rest.
    pub fn slow_start(&mut self, acked: u32) -> u32 {
        let cwnd = (self.snd_cwnd + acked).min(self.snd_ssthresh);
        let rest = acked - (cwnd - self.snd_cwnd);
        self.snd_cwnd = cwnd;
        rest
    }

    /// `tcp_update_pacing_rate`: twice the window in a round trip in slow start, 1.2 times later.
    pub fn update_pacing_rate(&mut self) {
        let segments = u64::from(self.snd_cwnd.max(self.packets_out));
        let ratio = match self.snd_cwnd < self.snd_ssthresh / 2 {
            true => 200,
            false => 120,
        };
        let srtt = u64::from(self.srtt_us.max(1));
        let bytes = segments * u64::from(self.mss_cache) * ratio / 100;
        self.sk_pacing_rate = bytes * 8_000_000 / srtt;
    }

    /// `tcp_init_cwnd_reduction`, with the threshold of a controller.
    pub fn init_cwnd_reduction(&mut self, ssthresh: u32) {
        self.prior_cwnd = self.snd_cwnd;
        self.prr_delivered = 0;
        self.prr_out = 0;
        self.snd_ssthresh = ssthresh;
    }

    /// `tcp_cwnd_reduction`: proportional rate reduction (RFC 6937) towards the threshold.
    pub fn cwnd_reduction(&mut self, sample: &Sample) {
        if sample.acked_sacked == 0 || self.prior_cwnd == 0 {
            return;
        }
        let (ssthresh, out) = (i64::from(self.snd_ssthresh), i64::from(self.packets_out));
        self.prr_delivered += sample.acked_sacked;
        let delivered = i64::from(self.prr_delivered);
        let delta = ssthresh - out;
        let count = if delta < 0 {
            let prior = i64::from(self.prior_cwnd);
            (ssthresh * delivered + prior - 1) / prior - i64::from(self.prr_out)
        } else {
            let mut count = (delivered - i64::from(self.prr_out)).max(sample.acked_sacked.into());
            if sample.is_una_advanced && sample.losses == 0 {
                count += 1;
            }
            count.min(delta)
        };
        // A fast retransmission at the start.
        let count = count.max(i64::from(self.prr_out == 0));
        self.snd_cwnd = (out + count).max(1) as u32;
    }

    /// `tcp_end_cwnd_reduction`.
    pub fn end_cwnd_reduction(&mut self) {
        if self.snd_ssthresh < INFINITE_SSTHRESH {
            self.snd_cwnd = self.snd_ssthresh;
        }
    }

    /// `tcp_cwnd_restart`: the window after a pause (RFC 2861).
    pub fn cwnd_restart(&mut self, idle_us: u32, rto_us: u32) {
        let restart = self.snd_cwnd.min(INITIAL_CWND);
        let mut left = idle_us;
        while left > rto_us && self.snd_cwnd > restart {
            left -= rto_us;
            self.snd_cwnd >>= 1;
        }
        self.snd_cwnd = self.snd_cwnd.max(restart);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(acked_sacked: u32, losses: u32) -> Sample {
        Sample {
            prior_delivered: 0,
            rtt_us: None,
            is_ack_delayed: false,
            is_app_limited: false,
            acked_sacked,
            losses,
            is_una_advanced: losses == 0,
        }
    }

    /// 20 segments in flight, one lost, a threshold of 14: of 20 delivered segments 14 may be
    /// followed by another.
    #[test]
    fn the_window_falls_in_proportion_to_what_is_delivered() {
        let mut socket = Socket {
            snd_cwnd: 20,
            packets_out: 18,
            ..Socket::default()
        };
        socket.init_cwnd_reduction(14);
        // The first ACK: 14 · 1 / 20, rounded up.
        socket.cwnd_reduction(&sample(1, 1));
        assert_eq!(socket.snd_cwnd, 19);
        socket.packets_out = 19;
        socket.prr_out = 1;
        // The second: ⌈14 · 2 / 20⌉ − 1.
        socket.packets_out -= 1;
        socket.cwnd_reduction(&sample(1, 0));
        assert_eq!(socket.snd_cwnd, 19);
        socket.packets_out = 19;
        socket.prr_out = 2;
        // ⌈14 · 3 / 20⌉ = 3, less 2; then ⌈14 · 4 / 20⌉ = 3, less 3.
        socket.packets_out -= 1;
        socket.cwnd_reduction(&sample(1, 0));
        assert_eq!(socket.snd_cwnd, 19);
        socket.packets_out = 19;
        socket.prr_out = 3;
        socket.packets_out -= 1;
        socket.cwnd_reduction(&sample(1, 0));
        assert_eq!(socket.snd_cwnd, 18, "nothing may follow");
        // Below the threshold: what was delivered and not replaced, and one more.
        socket.packets_out = 10;
        socket.prr_out = 4;
        socket.prr_delivered = 4;
        socket.cwnd_reduction(&sample(2, 0));
        assert_eq!(socket.snd_cwnd, 13);
        socket.end_cwnd_reduction();
        assert_eq!(socket.snd_cwnd, 14);
    }

    #[test]
    fn slow_start_stops_at_the_threshold() {
        let mut socket = Socket {
            snd_cwnd: 10,
            snd_ssthresh: 13,
            ..Socket::default()
        };
        assert_eq!(socket.slow_start(2), 0);
        assert_eq!(socket.slow_start(5), 4);
        assert_eq!(socket.snd_cwnd, 13);
    }

    #[test]
    fn a_pause_halves_the_window_once_a_time_out() {
        let mut socket = Socket {
            snd_cwnd: 100,
            ..Socket::default()
        };
        socket.cwnd_restart(500_000, 200_000);
        assert_eq!(socket.snd_cwnd, 25);
        socket.cwnd_restart(5_000_000, 200_000);
        assert_eq!(socket.snd_cwnd, 10);
    }
}
