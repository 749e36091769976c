//! How much a fleet sends: bytes and messages of the NATS protocol per agent and hour, without TLS and
//! TCP. Sizes of what surrounds a message were measured; the test of 200 agents compares.

/// Scans of the buckets per hour.
const SCANS_PER_HOUR: f64 = 6.0;
/// Buckets of a scan: priors and policies.
const BUCKETS_SCANNED: f64 = 2.0;
/// Statuses per hour.
const STATUSES: f64 = 6.0;
/// PINGs per hour, of both sides: every ten and every four minutes.
const PINGS: f64 = 6.0 + 15.0;
/// A line of PING or PONG, bytes.
const PING_BYTES: f64 = 6.0;
/// Messages of one request to a bucket.
const BATCH: f64 = 16.0;
/// Bytes of one request to a bucket, and of its answer that there is no more; the subscription for
/// it is in the first.
const ASK_BYTES: f64 = 250.0;
const NONE_BYTES: f64 = 130.0;
/// Overhead of a published message and of its confirmation, bytes.
const PUBLISH_BYTES: f64 = 110.0;
const CONFIRMED_BYTES: f64 = 130.0;
/// Overhead of a message that is read, bytes.
const READ_BYTES: f64 = 170.0;
/// A message of priors without its networks, a network without its arms, and an arm, bytes.
const SHARD_BYTES: f64 = 60.0;
const NETWORK_BYTES: f64 = 55.0;
const ARM_BYTES: f64 = 45.0;

/// A fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Number of agents.
    pub agents: f64,
    /// Networks that an agent has measured, spread over its shards.
    pub networks: f64,
    /// Arms that it has measured in each.
    pub arms: f64,
    /// Shards that an agent publishes per hour: at rest 0, at most 96.
    pub shards: f64,
    /// Size of a status, bytes.
    pub status: f64,
}

/// Messages and bytes per hour.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HourlyTraffic {
    /// Messages sent, PINGs included.
    pub sent: f64,
    /// Messages received, PINGs included.
    pub received: f64,
    /// Bytes sent.
    pub sent_bytes: f64,
    /// Bytes received.
    pub received_bytes: f64,
}

impl HourlyTraffic {
    /// Messages of both directions.
    pub fn messages(&self) -> f64 {
        self.sent + self.received
    }

    /// Bytes of both directions.
    pub fn bytes(&self) -> f64 {
        self.sent_bytes + self.received_bytes
    }
}

impl Load {
    /// Size of a message of priors, bytes.
    pub fn shard_bytes(&self) -> f64 {
        let networks = self.networks / f64::from(crate::wire::SHARDS);
        SHARD_BYTES + networks * (NETWORK_BYTES + self.arms * ARM_BYTES)
    }

    /// Traffic of one agent.
    pub fn agent_traffic(&self) -> HourlyTraffic {
        let asks = SCANS_PER_HOUR * BUCKETS_SCANNED;
        let read = (self.agents - 1.0) * self.shards;
        // Between full batches there is one request more.
        let more = read / BATCH;
        let published = STATUSES + self.shards;
        let shard = self.shard_bytes();
        HourlyTraffic {
            sent: published + asks + more + PINGS,
            received: published + asks + more + read + PINGS,
            sent_bytes: STATUSES * self.status
                + self.shards * shard
                + published * PUBLISH_BYTES
                + (asks + more) * ASK_BYTES
                + PINGS * PING_BYTES,
            received_bytes: read * (shard + READ_BYTES)
                + published * CONFIRMED_BYTES
                + (asks + more) * NONE_BYTES
                + PINGS * PING_BYTES,
        }
    }

    /// Bytes that a server sends per second, which is the limit of one server.
    pub fn server_bytes_per_second(&self) -> f64 {
        self.agents * self.agent_traffic().received_bytes / 3600.0
    }

    /// Size of the bucket of priors, bytes.
    pub fn stored_bytes(&self) -> f64 {
        self.agents * f64::from(crate::wire::SHARDS) * (self.shard_bytes() + 60.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_rest_within_the_budget() {
        for agents in [10.0, 1000.0, 100_000.0] {
            let load = Load {
                agents,
                networks: 1000.0,
                arms: 3.0,
                shards: 0.0,
                status: 4000.0,
            };
            let hour = load.agent_traffic();
            assert!(hour.messages() <= 100.0, "{hour:?}");
            assert!(hour.bytes() <= 50_000.0, "{hour:?}");
        }
    }

    #[test]
    fn where_one_server_ends() {
        let seconds = |agents: f64, networks: f64, shards: f64| {
            let load = Load {
                agents,
                networks,
                arms: 3.0,
                shards,
                status: 2000.0,
            };
            let hour = load.agent_traffic();
            println!(
                "{agents} agents, {networks} networks, {shards} shards an hour: sent {:.0} messages, \
                 {:.1} kB; received {:.0} messages, {:.1} kB; server {:.3} MB/s, keeps {:.1} MB",
                hour.sent,
                hour.sent_bytes / 1e3,
                hour.received,
                hour.received_bytes / 1e3,
                load.server_bytes_per_second() / 1e6,
                load.stored_bytes() / 1e6
            );
            load.server_bytes_per_second()
        };
        // A link of 1 Gbit/s carries 125 MB/s.
        let link = 125e6;
        assert!(seconds(10.0, 1000.0, 0.0) < link / 1e3);
        assert!(seconds(10.0, 1000.0, 16.0) < link / 1e3);
        assert!(seconds(1000.0, 1000.0, 0.0) < link / 1e3);
        assert!(seconds(1000.0, 1000.0, 16.0) < link);
        assert!(seconds(1000.0, 4096.0, 16.0) > link);
        assert!(seconds(100_000.0, 1000.0, 0.0) < link / 1e3);
        assert!(seconds(100_000.0, 1000.0, 16.0) > 1e3 * link);
        assert!(seconds(1000.0, 1000.0, 1.0) < link / 10.0);
    }

    #[test]
    fn sizes_are_those_of_messages() {
        use crate::names::Name;
        use crate::wire::{Arm, Measured, Network, Priors};
        let arm = |name: &str| Arm {
            name: name.to_owned(),
            cost_q16: -123_456,
            evidence_q16: 1_234_567,
            log_rate_q16: 12_345,
            deviation_q16: 23_456,
            segments: 123_456,
            retransmitted: 123,
        };
        let shard = Network::parse("prefix:203.0.113.0/24").unwrap().shard();
        let all = (0..65_536u32).map(|it| format!("prefix:198.{}.{}.0/24", it / 256, it % 256));
        let networks = all.filter_map(|text| Network::parse(&text));
        let measured = |network| Measured {
            network,
            age_s: 12_345,
            queue_q16: 23_456,
            arms: vec![arm("cubic"), arm("bbr"), arm("htcp")],
        };
        let of_shard = networks.filter(|network| network.shard() == shard);
        let priors = Priors {
            agent: Name::new("web1_example_com").unwrap(),
            shard,
            rule: 1,
            networks: of_shard.take(62).map(measured).collect(),
        };
        let load = Load {
            agents: 1.0,
            networks: 62.0 * 16.0,
            arms: 3.0,
            shards: 0.0,
            status: 0.0,
        };
        let ratio = priors.encode().unwrap().len() as f64 / load.shard_bytes();
        assert!((0.8..1.25).contains(&ratio), "{ratio}");
    }
}
