//! Hosts, switches and the paths between them.

use crate::Time;
use crate::rng::mix;
use crate::scenario::{Link, Scenario, Topology};

/// The end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    Host(u32),
    Switch(u32),
}

/// An output port of a switch: a queue and the link behind it.
#[derive(Debug, Clone)]
pub(crate) struct PortPlan {
    /// Switch of the port.
    pub switch: u32,
    /// Where its link leads.
    pub to: Node,
    pub link: Link,
}

/// A wired network.
#[derive(Debug, Clone)]
pub(crate) struct Wiring {
    topology: Topology,
    /// Number of hosts.
    pub hosts: u32,
    /// The switch of each host.
    pub host_switch: Vec<u32>,
    pub ports: Vec<PortPlan>,
}

impl Wiring {
    pub fn new(scenario: &Scenario) -> Self {
        let topology = scenario.topology;
        let hosts = topology.hosts() as u32;
        let (link, fabric) = (scenario.network.link, scenario.network.fabric);
        // Port `h` leads to host `h`, in every topology.
        let host_switch: Vec<u32> = (0..hosts)
            .map(|host| match topology {
                Topology::Star { .. } => 0,
                Topology::LeafSpine { hosts_per_leaf, .. } => host / hosts_per_leaf,
                Topology::FatTree { ports } => host / (ports / 2),
            })
            .collect();
        let mut ports: Vec<PortPlan> = (0..hosts)
            .map(|host| PortPlan {
                switch: host_switch[host as usize],
                to: Node::Host(host),
                link,
            })
            .collect();
        let mut connect = |switch, to| {
            ports.push(PortPlan {
                switch,
                to: Node::Switch(to),
                link: fabric,
            });
        };
        match topology {
            Topology::Star { .. } => {}
            Topology::LeafSpine { leaves, spines, .. } => {
                for leaf in 0..leaves {
                    for spine in 0..spines {
                        connect(leaf, leaves + spine);
                    }
                }
                for spine in 0..spines {
                    for leaf in 0..leaves {
                        connect(leaves + spine, leaf);
                    }
                }
            }
            Topology::FatTree { ports: k } => {
                let half = k / 2;
                let edges = k * half;
                // Switches: all edge, then all aggregation, then all core switches. Four blocks of
                // ports, each by (switch, number of the port).
                for edge in 0..edges {
                    for up in 0..half {
                        connect(edge, edges + edge / half * half + up);
                    }
                }
                for aggregation in 0..edges {
                    for down in 0..half {
                        connect(edges + aggregation, aggregation / half * half + down);
                    }
                }
                for aggregation in 0..edges {
                    for up in 0..half {
                        connect(
                            edges + aggregation,
                            2 * edges + aggregation % half * half + up,
                        );
                    }
                }
                for core in 0..half * half {
                    for pod in 0..k {
                        connect(2 * edges + core, edges + pod * half + core / half);
                    }
                }
            }
        }
        Self {
            topology,
            hosts,
            host_switch,
            ports,
        }
    }

    /// The ports that a flow's packets pass, in order. ECMP: a flow hash picks one of the
    /// equal-cost paths.
    pub fn flow_path(&self, from: u32, to: u32, flow: u64) -> Vec<u32> {
        let hash = mix(mix((u64::from(from) << 32) | u64::from(to)) ^ mix(!flow)) >> 16;
        let pick = |count: u32| (hash % u64::from(count)) as u32;
        let (here, there) = (
            self.host_switch[from as usize],
            self.host_switch[to as usize],
        );
        if here == there {
            return vec![to];
        }
        let base = self.hosts;
        match self.topology {
            Topology::Star { .. } => vec![to],
            Topology::LeafSpine { leaves, spines, .. } => {
                let spine = pick(spines);
                vec![
                    base + here * spines + spine,
                    base + leaves * spines + spine * leaves + there,
                    to,
                ]
            }
            Topology::FatTree { ports: k } => {
                let half = k / 2;
                let block = k * half * half;
                let way = pick(half * half);
                let (up, core) = (way % half, way / half);
                let (pod, other) = (here / half, there / half);
                let edge_up = base + here * half + up;
                let down = base + block + (other * half + up) * half + there % half;
                if pod == other {
                    return vec![edge_up, down, to];
                }
                vec![
                    edge_up,
                    base + 2 * block + (pod * half + up) * half + core,
                    base + 3 * block + (up * half + core) * k + other,
                    down,
                    to,
                ]
            }
        }
    }

    /// Links of the longest path between two hosts, own link included.
    pub fn longest_path(&self) -> Vec<Link> {
        let last = self.hosts - 1;
        self.path_links(0, last)
    }

    /// Links of a path, own link first.
    pub fn path_links(&self, from: u32, to: u32) -> Vec<Link> {
        self.links_of(from, &self.flow_path(from, to, 0))
    }

    /// Links of a host's path through these ports, own link first.
    pub fn links_of(&self, from: u32, path: &[u32]) -> Vec<Link> {
        let own = self.ports[from as usize].link;
        std::iter::once(own)
            .chain(path.iter().map(|port| self.ports[*port as usize].link))
            .collect()
    }
}

/// Transmission time of a number of bytes on a link, to the nearest picosecond.
pub(crate) fn transmission_time(bytes: u32, rate_bps: u64) -> Time {
    let bits = u128::from(bytes) * 8 * 1_000_000_000_000;
    Time::from_ps(((bits + u128::from(rate_bps) / 2) / u128::from(rate_bps)) as u64)
}

/// Time of packets of this size over these links with empty queues.
pub(crate) fn crossing_time(links: &[Link], bytes: u32) -> Time {
    links.iter().fold(Time::ZERO, |sum, link| {
        sum + transmission_time(bytes, link.rate_bps) + link.delay
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wiring(topology: Topology) -> Wiring {
        let mut scenario = crate::sim::test_support::many_to_one(1);
        scenario.topology = topology;
        Wiring::new(&scenario)
    }

    /// Follows the ports from host to host.
    fn check(wiring: &Wiring, from: u32, to: u32, flow: u64) {
        let path = wiring.flow_path(from, to, flow);
        let mut at = wiring.host_switch[from as usize];
        for (index, port) in path.iter().enumerate() {
            let plan = &wiring.ports[*port as usize];
            assert_eq!(
                plan.switch, at,
                "{from} to {to}: port {port} of another switch"
            );
            match plan.to {
                Node::Switch(next) => at = next,
                Node::Host(host) => {
                    assert_eq!(host, to);
                    assert_eq!(index + 1, path.len());
                }
            }
        }
    }

    #[test]
    fn paths_lead_from_host_to_host() {
        for topology in [
            Topology::Star { hosts: 5 },
            Topology::LeafSpine {
                leaves: 3,
                spines: 4,
                hosts_per_leaf: 2,
            },
            Topology::FatTree { ports: 4 },
            Topology::FatTree { ports: 6 },
        ] {
            let wiring = wiring(topology);
            for from in 0..wiring.hosts {
                for to in (0..wiring.hosts).filter(|to| *to != from) {
                    for flow in 0..8 {
                        check(&wiring, from, to, flow);
                    }
                }
            }
        }
    }

    #[test]
    fn flows_spread_over_equal_ways_and_stay() {
        let wiring = wiring(Topology::FatTree { ports: 4 });
        // Between pods there are (4/2)² = 4 paths.
        let mut counts = std::collections::BTreeMap::new();
        for flow in 0..4_000 {
            let path = wiring.flow_path(0, 15, flow);
            assert_eq!(path, wiring.flow_path(0, 15, flow));
            *counts.entry(path).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 4);
        // Standard deviation √(4000·¼·¾) = 27; the bound is five of them.
        for count in counts.values() {
            assert!(count.abs_diff(1_000) < 137, "{counts:?}");
        }
    }

    #[test]
    fn transmission_times() {
        // 1024 · 8 bits at 100 Gbit/s: 81.92 ns. At 1.5 Gbit/s: 5461.333… ns.
        assert_eq!(transmission_time(1024, 100_000_000_000).ps(), 81_920);
        assert_eq!(transmission_time(1024, 1_500_000_000).ps(), 5_461_333);
    }
}
