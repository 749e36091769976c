//! Sizes of bursts.

use crate::scenario::Linux;

use super::Connection;

/// Largest burst, bytes of payload: 64 KiB less `MAX_TCP_HEADER` and 1 (`sk_dst_gso_max_size`).
const GSO_MAX_BYTES: u64 = 65_536 - 321;
/// `sk_pacing_shift`: a burst is about 2^-10 s of the rate.
const PACING_SHIFT: u32 = 10;
/// `tcp_tso_rtt_log`: shorter round trips allow larger bursts; 2^9 µs halve the allowance.
const TSO_RTT_LOG: u32 = 9;
/// `tcp_min_tso_segs`.
const MIN_TSO_SEGS: u32 = 2;
/// `tcp_tso_win_divisor`: a third of the window is enough to send.
const WIN_DIVISOR: u32 = 3;

impl Connection {
    /// `tcp_tso_segs`: segments of a burst.
    pub(super) fn tso_segs(&self, options: &Linux) -> u32 {
        if !options.offload {
            return 1;
        }
        let socket = &self.socket;
        let mut bytes = socket.sk_pacing_rate >> PACING_SHIFT;
        let round_trips = socket.min_rtt_us >> TSO_RTT_LOG;
        if round_trips < u32::BITS {
            bytes += GSO_MAX_BYTES >> round_trips;
        }
        let bytes = bytes.min(GSO_MAX_BYTES);
        ((bytes / u64::from(socket.mss_cache)) as u32).max(MIN_TSO_SEGS)
    }

    /// `tcp_cwnd_test`: segments that the window allows, a half of it at most, so that two bursts
    /// are in flight.
    pub(super) fn cwnd_test(&self) -> u32 {
        let cwnd = self.socket.snd_cwnd;
        let room = cwnd.saturating_sub(self.socket.packets_out);
        room.min((cwnd >> 1).max(1))
    }

    /// `tcp_tso_should_defer`: whether a burst smaller than `max_segs` waits for the next ACK.
    /// `oldest_us` is the age of the oldest unacknowledged burst, `sent_us` that of the last.
    pub(super) fn tso_should_defer(
        &self,
        max_segs: u32,
        oldest_us: Option<u64>,
        sent_us: u64,
        repairing: bool,
    ) -> bool {
        // Not after a pause of a millisecond: later ACKs would only make the burst larger.
        if repairing || sent_us > 1000 {
            return false;
        }
        let cwnd = self.socket.snd_cwnd;
        let room = cwnd.saturating_sub(self.socket.packets_out);
        if room >= max_segs || room >= cwnd / WIN_DIVISOR {
            return false;
        }
        let Some(oldest_us) = oldest_us else {
            return false;
        };
        // If the next ACK is likely to come in half a round trip or more, do not wait.
        let srtt_us = u64::from(self.socket.srtt_us >> 3);
        srtt_us.saturating_sub(oldest_us) < srtt_us / 2
    }
}
