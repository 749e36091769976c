//! Limits of the connections of each network, in every mode, from the ends of connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use thalweg_bpf_types::raw;
use thalweg_control::system::{self, NetworkNamespace};
use thalweg_gain::{Account, Busiest, Chronographs, Connection};
use thalweg_learner::HostKey;

use crate::kernel::Setup;
use crate::limits::Buffers;

/// Most networks with an account.
const NETWORKS_MAX: usize = 512;
/// Length of a period, ns; an account covers the present period and the one before.
const PERIOD_NS: u64 = 24 * 3600 * 1_000_000_000;

/// Round trips from which the mean in flight is not that of slow start.
const LONG_ROUNDS: u64 = 10;

/// Accounts of the busiest networks; they outlive a change of the configuration.
pub struct Networks(Mutex<Known>);

struct Known {
    accounts: Busiest<HostKey>,
    /// Buffers by the cookie of the network namespace.
    buffers: HashMap<u64, Buffers>,
}

impl Default for Networks {
    fn default() -> Self {
        Self(Mutex::new(Known {
            accounts: Busiest::with_capacity(NETWORKS_MAX),
            buffers: HashMap::new(),
        }))
    }
}

impl Networks {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the buffers of the network namespaces in scope.
    pub fn note_buffers(&self, namespaces: &[NetworkNamespace]) {
        let buffers = namespaces.iter().map(|namespace| {
            let send_max = namespace.send_buffer_max;
            (namespace.cookie, Buffers { send_max })
        });
        self.lock().buffers = buffers.collect();
    }

    /// The buffers of a network namespace.
    pub fn buffers(&self, netns: u64) -> Buffers {
        self.lock().buffers.get(&netns).copied().unwrap_or_default()
    }

    /// Counts ended measurement intervals for which the kernel reports limits.
    pub fn take(&self, events: &[raw::thalweg_event], setup: &Setup) {
        let mut known = self.lock();
        let Known { accounts, buffers } = &mut *known;
        for event in events {
            let buffers = buffers.get(&event.host.netns).copied();
            let Some(connection) = stretch(event, buffers.unwrap_or_default()) else {
                continue;
            };
            let period = event.time_ns / PERIOD_NS;
            let remote = IpAddr::V6(Ipv6Addr::from(event.remote)).to_canonical();
            for key in setup.groups_of(event.host.netns, remote) {
                accounts.add_connection(key, period, &connection);
            }
        }
    }

    /// All accounts, the busiest first.
    pub fn all(&self) -> Vec<(HostKey, Account)> {
        self.lock()
            .accounts
            .busiest_first(system::monotonic_ns() / PERIOD_NS)
    }
}

/// The measurement interval that an event ends; a long connection has several, with different
/// limits.
fn stretch(event: &raw::thalweg_event, buffers: Buffers) -> Option<Connection> {
    let is_close = u32::from(event.kind) == raw::THALWEG_EVENT_CLOSE;
    if !is_close || u32::from(event.sample_flags) & raw::THALWEG_SAMPLE_BUSY_TIME == 0 {
        return None;
    }
    Some(Connection {
        bytes: event.bytes,
        busy_us: event.duration_us,
        srtt_us: event.srtt_us,
        held: Some(Chronographs {
            open_us: event.wall_us,
            receiver_us: event.receiver_us.into(),
            buffer_us: match fills_buffer(event, buffers) {
                true => event.duration_us,
                false => event.buffer_us.into(),
            },
        }),
        ..Connection::default()
    })
}

/// Whether the send buffer limited a measurement interval. The kernel counts a twentieth of that
/// time: only while all data of the application was sent. It lets a buffer grow to twice the data
/// in flight (tcp_sndbuf_expand). So where half of the largest buffer or more was in flight, on the
/// mean, the buffer was at its limit; without loss and without a queue the path was not.
fn fills_buffer(event: &raw::thalweg_event, buffers: Buffers) -> bool {
    let Some(most) = buffers.send_max else {
        return false;
    };
    let (rtt_us, busy_us) = (u64::from(event.srtt_us), event.duration_us);
    let in_flight = u128::from(event.bytes) * u128::from(rtt_us) / u128::from(busy_us.max(1));
    busy_us >= LONG_ROUNDS * rtt_us
        && event.retrans == 0
        && 4 * rtt_us <= 5 * u64::from(event.min_rtt_us)
        && 4 * u64::from(event.receiver_us) <= busy_us
        && 2 * in_flight >= u128::from(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One as on Linux 6.18 with 262,144 bytes of buffer and 200 ms: 4 MB at 770 kB/s.
    fn event() -> raw::thalweg_event {
        raw::thalweg_event {
            kind: raw::THALWEG_EVENT_CLOSE as u8,
            sample_flags: raw::THALWEG_SAMPLE_BUSY_TIME as u16,
            bytes: 4_000_000,
            duration_us: 5_200_000,
            wall_us: 5_200_000,
            srtt_us: 200_300,
            min_rtt_us: 200_020,
            buffer_us: 250_000,
            ..Default::default()
        }
    }

    fn buffer_us(event: &raw::thalweg_event, most: u64) -> u64 {
        let buffers = Buffers {
            send_max: Some(most),
        };
        stretch(event, buffers).unwrap().held.unwrap().buffer_us
    }

    #[test]
    fn a_buffer_that_is_at_its_limit_holds_a_transfer_up() {
        assert_eq!(buffer_us(&event(), 262_144), 5_200_000);
        // A larger one has room. Of what is not known, the kernel alone tells.
        assert_eq!(buffer_us(&event(), 4 << 20), 250_000);
        let told = stretch(&event(), Buffers::default()).unwrap();
        assert_eq!(told.held.unwrap().buffer_us, 250_000);
    }

    #[test]
    fn where_the_path_or_the_receiver_is_full_the_buffer_is_not_to_blame() {
        for change in [
            |event: &mut raw::thalweg_event| event.retrans = 1,
            |event: &mut raw::thalweg_event| event.srtt_us = 260_000,
            |event: &mut raw::thalweg_event| event.receiver_us = 2_000_000,
            // Too short to tell.
            |event: &mut raw::thalweg_event| {
                (event.bytes, event.duration_us) = (1_000_000, 1_300_000);
            },
        ] {
            let mut other = event();
            change(&mut other);
            assert_eq!(buffer_us(&other, 262_144), 250_000);
        }
    }
}
