//! Properties of a connection, read from its events.

use thalweg_bpf_types::raw;
use thalweg_gain::{Chronographs, Side, Source};

/// Side of a connection under the learner; `None`: it is in no comparison.
pub fn side(event: &raw::thalweg_event) -> Option<Side> {
    let is = |flag: raw::thalweg_conn_flag| u32::from(event.flags) & flag != 0;
    // Trials of an agent that gave advice before this one.
    let drawn = u32::from(event.reason) == raw::THALWEG_REASON_DRAWN;
    match () {
        () if drawn || is_own(event) || is(raw::THALWEG_CONN_DRY_RUN) => None,
        () if is(raw::THALWEG_CONN_CONTROL) => Some(Side::Control),
        () => Some(Side::Treated),
    }
}

/// Whether a connection has its CC by itself: from its application, a route or a policy.
pub fn is_own(event: &raw::thalweg_event) -> bool {
    let is = |flag: raw::thalweg_conn_flag| u32::from(event.flags) & flag != 0;
    is(raw::THALWEG_CONN_APP_OWNED)
        || !(is(raw::THALWEG_CONN_CONTROL) || is(raw::THALWEG_CONN_DECIDED))
}

/// Time per limit of a measurement interval; `None`: the kernel does not report it.
pub fn held(event: &raw::thalweg_event) -> Option<Chronographs> {
    (u32::from(event.sample_flags) & raw::THALWEG_SAMPLE_BUSY_TIME != 0).then(|| Chronographs {
        open_us: event.wall_us,
        receiver_us: event.receiver_us.into(),
        buffer_us: event.buffer_us.into(),
    })
}

/// Whether a measurement interval says what limits its connection. One without sent segments and
/// without a limit does not, as before the end of an idle connection: the kernel rounds its time up
/// to a tick.
pub fn says_limits(event: &raw::thalweg_event, held: &Chronographs) -> bool {
    let is_limited = held.receiver_us > 0 || held.buffer_us > 0;
    event.duration_us > 0 && (event.segs_out > 0 || is_limited)
}

/// The port that names the service: the local one of accepted connections, the remote one of
/// others.
pub fn service_port(event: &raw::thalweg_event) -> u16 {
    match u32::from(event.flags) & raw::THALWEG_CONN_PASSIVE != 0 {
        true => event.local_port,
        false => event.remote_port,
    }
}

/// Source of the measurements that decided about the connection, or would have in the control
/// group.
pub fn source(event: &raw::thalweg_event) -> Source {
    match u32::from(event.level) & raw::THALWEG_LEVEL_FLEET {
        0 => Source::Own,
        _ => Source::Fleet,
    }
}
