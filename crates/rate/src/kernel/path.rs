//! The shortest round-trip times that flows to a host have found lately: `bpf/include/rate_path.h`.
//! The map of hosts is left out: [`TcpSock::path`] is the entry of the flow's host.

use super::state::{Rate, TcpSock};

/// Periods of probes for which a path is known.
const PATH_EPOCHS: u16 = 4;

/// Knowledge of the path to a host: `struct path`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The shortest round-trip time, µs.
    pub min_rtt_us: u32,
    /// Clock, in periods of probes, when the round-trip time was found.
    pub epoch: u16,
}

/// Takes over a shorter round-trip time from other flows to the same host.
pub(super) fn ask_path(ca: &mut Rate, tp: &TcpSock, epoch: u16) {
    if let Some(known) = tp.path
        && epoch.wrapping_sub(known.epoch) < PATH_EPOCHS
        && known.min_rtt_us < ca.min_rtt_us
    {
        ca.min_rtt_us = known.min_rtt_us;
    }
}

/// Tells them of this flow's. What a common probe found (`probed`) replaces what is known of an
/// earlier period; any other flow tells only a shorter one.
pub(super) fn tell_path(ca: &Rate, tp: &mut TcpSock, epoch: u16, probed: bool) {
    if ca.min_rtt_us == 0 {
        return;
    }
    let periods = if probed { 1 } else { PATH_EPOCHS };
    let is_kept = (tp.path).is_some_and(|known| {
        epoch.wrapping_sub(known.epoch) < periods && known.min_rtt_us <= ca.min_rtt_us
    });
    if !is_kept {
        tp.path = Some(Path {
            min_rtt_us: ca.min_rtt_us,
            epoch,
        });
    }
}
