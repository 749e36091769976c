//! What the learner gains against its control group: ended connections into clusters, what is
//! worse taken back. crates/gain has the statistics.

use std::net::{IpAddr, Ipv6Addr};

use thalweg_bpf_types::raw;
use thalweg_gain::{Connection, Part};
use thalweg_learner::{Control, HostKey};

use crate::kernel::ArmTable;
use crate::store::{KeptGain, Revert, Store, StoreError};

mod look;
mod present;
mod rules;
mod session;

pub use present::Asked;
pub use rules::Rules;

/// An hour of the draws.
const HOUR_NS: u64 = 3_600_000_000_000;
/// Prefixes whose connections are a group.
const GROUP_IPV4: u32 = 24;
const GROUP_IPV6: u32 = 48;

/// The name of the group of a remote address.
fn group_of(remote: IpAddr) -> String {
    let group = HostKey::of_remote(0, remote, GROUP_IPV4, GROUP_IPV6);
    group.map_or_else(|_| remote.to_string(), |group| group.to_string())
}

/// What the kernel draws together, prefix lengths in each family, and how.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    /// 0 to 32.
    pub ipv4: u32,
    /// 0 to 128.
    pub ipv6: u32,
    /// The control group.
    pub control: Control,
}

impl Drawn {
    /// Whether a cluster always belongs to the control group. Its hours are one draw, not many, so
    /// they are no clusters of their own.
    fn is_permanent(&self, tag: u64) -> bool {
        let always = Control {
            share_q16: 0,
            ..self.control
        };
        always.holds(tag, 0)
    }
}

/// The agent's account of the gain.
#[derive(Debug)]
pub struct Gain {
    kept: KeptGain,
    drawn: Drawn,
    /// Connections that ended under a dry run, where nothing is set.
    dry: u64,
    /// Rules of the policy with a share.
    pub rules: Rules,
}

impl Gain {
    /// Goes on with what was kept.
    pub fn new(kept: KeptGain, drawn: Drawn) -> Self {
        Self {
            kept,
            drawn,
            dry: 0,
            rules: Rules::default(),
        }
    }

    /// Counts events.
    pub fn take(&mut self, events: &[raw::thalweg_event], arms: &ArmTable) {
        events.iter().for_each(|event| self.event(event, arms));
    }

    fn event(&mut self, event: &raw::thalweg_event, arms: &ArmTable) {
        let is = |flag: raw::thalweg_conn_flag| u32::from(event.flags) & flag != 0;
        let control = is(raw::THALWEG_CONN_CONTROL);
        if is(raw::THALWEG_CONN_APP_OWNED) || !(control || is(raw::THALWEG_CONN_DECIDED)) {
            return;
        }
        if is(raw::THALWEG_CONN_DRY_RUN) {
            self.dry += 1;
            return;
        }
        let remote = IpAddr::V6(Ipv6Addr::from(event.remote)).to_canonical();
        let (ipv4, ipv6) = (self.drawn.ipv4, self.drawn.ipv6);
        let Ok(key) = HostKey::of_remote(event.host.netns, remote, ipv4, ipv6) else {
            return;
        };
        if self.drawn.is_permanent(key.tag()) {
            return;
        }
        if u32::from(event.kind) != raw::THALWEG_EVENT_CLOSE {
            let settled = u32::from(event.reason) == raw::THALWEG_REASON_GREEDY;
            if let (true, false, Some(arm)) = (settled, control, arms.name(event.arm.into())) {
                let hour = event.time_ns / HOUR_NS;
                self.kept.ledger.note_arm(key.tag(), hour, arm);
            }
            return;
        }
        let Some((hour, connection)) = whole(event) else {
            return;
        };
        let part = Part {
            hour,
            tag: key.tag(),
            control,
            port: service_port(event),
        };
        let ledger = &mut self.kept.ledger;
        ledger.add(part, &connection, || group_of(remote));
    }

    /// Saves what has changed since the last time. What cannot be saved is tried again with the next.
    pub fn save(&mut self, store: &mut Store) -> Result<(), StoreError> {
        let changes = self.kept.ledger.changes();
        let saved = store.save_gain("", &self.kept, &changes);
        if saved.is_err() {
            self.kept.ledger.put_back(changes);
        }
        saved.and_then(|()| self.rules.save(store))
    }

    /// What is taken back.
    pub fn reverts(&self) -> &[Revert] {
        &self.kept.reverts
    }
}

/// The connection that an event ends, with its earlier stretches, and the hour in which it began.
/// `None` where it goes on: only the whole is comparable.
fn whole(event: &raw::thalweg_event) -> Option<(u64, Connection)> {
    let end = u32::from(event.end);
    if [raw::THALWEG_END_SWITCH, raw::THALWEG_END_STRETCH].contains(&end) {
        return None;
    }
    let before = &event.before;
    let wall_us = event.wall_us.saturating_add(before.wall_us);
    let began_ns = event.time_ns.saturating_sub(wall_us.saturating_mul(1000));
    let failed = [raw::THALWEG_END_RESET, raw::THALWEG_END_TIMEOUT].contains(&end);
    let connection = Connection {
        bytes: event.bytes + before.bytes,
        busy_us: event.duration_us + before.duration_us,
        segs_out: event.segs_out.saturating_add(before.segs_out),
        retrans: event.retrans.saturating_add(before.retrans),
        srtt_us: event.srtt_us,
        min_rtt_us: event.min_rtt_us,
        handshake_rtt_us: event.handshake_rtt_us,
        failed: Some(failed),
    };
    Some((began_ns / HOUR_NS, connection))
}

/// The port that names the service: the local one of accepted connections, the remote one of
/// others.
fn service_port(event: &raw::thalweg_event) -> u16 {
    match u32::from(event.flags) & raw::THALWEG_CONN_PASSIVE != 0 {
        true => event.local_port as u16,
        false => event.remote_port as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_connection_counts_once_and_whole() {
        let stretch = |end: u32| raw::thalweg_event {
            end: end as u8,
            time_ns: 3 * HOUR_NS + 1_000_000_000,
            wall_us: 2_000_000,
            bytes: 500,
            duration_us: 50,
            segs_out: 5,
            retrans: 1,
            before: raw::thalweg_sums {
                bytes: 10_000,
                duration_us: 1000,
                wall_us: HOUR_NS / 1000,
                segs_out: 100,
                retrans: 2,
            },
            ..Default::default()
        };
        for goes_on in [raw::THALWEG_END_SWITCH, raw::THALWEG_END_STRETCH] {
            assert!(whole(&stretch(goes_on)).is_none());
        }
        let (hour, connection) = whole(&stretch(raw::THALWEG_END_RESET)).unwrap();
        // It began an hour and two seconds before one second past three.
        assert_eq!(hour, 1);
        assert_eq!((connection.bytes, connection.busy_us), (10_500, 1050));
        assert_eq!((connection.segs_out, connection.retrans), (105, 3));
        assert_eq!(connection.failed, Some(true));
        let (_, orderly) = whole(&stretch(raw::THALWEG_END_FIN_LOCAL)).unwrap();
        assert_eq!(orderly.failed, Some(false));
    }
}
