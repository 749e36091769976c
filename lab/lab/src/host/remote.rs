//! One remote host: its namespace, its relays to the client, and the loss in both directions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_process::tool;

use super::loss::{Loss, LossCounters};
use super::netns::Namespace;
use super::relay::{Relay, Tuner};
use super::rtt::{RoundTrips, Rtt};
use super::veth::{self, Endpoints, ServerPlace};
use super::{PairOptions, Side, WireKind, tun};
use crate::error::Error;
use crate::scenario::{Family, GilbertElliott, PathModel};
use crate::units::Probability;

/// A server, joined to the client. Dropped, it and its link are removed.
#[derive(Debug)]
pub struct Remote {
    forward: Loss,
    reverse: Loss,
    rtt: Rtt,
    family: Family,
    place: ServerPlace,
    further_addresses: u8,
    /// Changes the rate of a bottleneck by a trace, and the path that it belongs to.
    tuner: Option<(Tuner, PathModel)>,
    // Fields are dropped in this order: first the wire, then its namespaces.
    wire: Option<tun::Wire>,
    server: Namespace,
    // The relays between it and the client.
    relays: Vec<(Relay, Namespace)>,
    /// Packets that queues of the bottleneck dropped before the path changed.
    dropped_before: AtomicU64,
}

/// The name of a namespace. Those of the first server have no number.
pub(super) fn namespace_name(prefix: &str, word: &str, place: u8) -> String {
    match place {
        0 => format!("{prefix}-{word}"),
        _ => format!("{prefix}-{word}-{}", place + 1),
    }
}

impl Remote {
    /// Sets up links, relays and loss between the client and a server.
    pub(super) fn join_hosts(
        prefix: &str,
        client: &Namespace,
        server: Namespace,
        place: ServerPlace,
        path: &PathModel,
        options: &PairOptions,
    ) -> Result<Self, Error> {
        let relays = match options.wire {
            WireKind::Veth => Relay::relays_of(path),
            WireKind::Tun => Vec::new(),
        };
        let between = relays
            .iter()
            .map(|relay| {
                Namespace::create(&namespace_name(prefix, relay.name_part(), place.serial))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let ends = Endpoints {
            client,
            server: &server,
            place,
            further_addresses: options.further_addresses,
            stacks: &options.stacks,
        };
        let wire = match options.wire {
            WireKind::Veth => {
                veth::join_hosts(&ends, &between, path)?;
                None
            }
            WireKind::Tun => Some(tun::Wire::join_hosts(&ends, path)?),
        };
        for (relay, namespace) in relays.iter().zip(&between) {
            relay.set_up(namespace, path)?;
        }
        let bottleneck = || relays.iter().position(|one| *one == Relay::Bottleneck);
        let tuner = match path.trace.as_ref().and_then(|_| bottleneck()) {
            Some(at) => Some((Tuner::start(&between[at])?, path.clone())),
            None => None,
        };
        let link = place.client_interface();
        if let Some(kind) = options.qdisc.tc_name()
            && !options.stacks.contains(&Side::Client)
        {
            let near = client.name();
            tool::run_tool("tc", &format!("-n {near} qdisc add dev {link} root {kind}"))?;
        }
        // Each direction has its own random sequence.
        let reverse_seed = path.seed ^ 0x5555_5555_5555_5555;
        let reverse_chain = GilbertElliott::bernoulli(path.reverse_loss);
        Ok(Self {
            forward: Loss::attach(
                client,
                &link,
                &path.forward_loss(),
                path.syn_loss,
                path.drop,
                path.seed,
            )?,
            reverse: Loss::attach(
                &server,
                veth::INTERFACE,
                &reverse_chain,
                Probability::ZERO,
                path.drop,
                reverse_seed,
            )?,
            // Attached after the loss program of that interface, so that it runs behind it.
            rtt: Rtt::attach(client, &link)?,
            family: path.family,
            place,
            further_addresses: options.further_addresses,
            tuner,
            wire,
            server,
            relays: relays.into_iter().zip(between).collect(),
            dropped_before: AtomicU64::new(0),
        })
    }

    /// Changes loss, rate and queue of the live link to those of a path, and nothing else.
    ///
    /// # Errors
    /// [`Error::Loss`] or [`Error::Process`] with the kernel's answer.
    pub fn change_path(&self, path: &PathModel) -> Result<(), Error> {
        self.forward
            .replace_probabilities(&path.forward_loss(), path.syn_loss)?;
        let reverse_chain = GilbertElliott::bernoulli(path.reverse_loss);
        self.reverse
            .replace_probabilities(&reverse_chain, Probability::ZERO)?;
        self.relays
            .iter()
            .filter(|(relay, _)| *relay == Relay::Bottleneck)
            .try_for_each(|(relay, namespace)| {
                let dropped = relay.dropped_packets(namespace)?;
                self.dropped_before.fetch_add(dropped, Ordering::Relaxed);
                relay.replace_qdiscs(namespace, path)
            })?;
        Ok(())
    }

    /// Gives the bottleneck the rate that its trace has at a step of a run.
    pub(crate) fn tune_rate(&self, step: u64) -> Result<(), Error> {
        if let Some((tuner, path)) = &self.tuner
            && let Some(trace) = &path.trace
        {
            tuner.set_rate(path, trace.rate_at_step(path.seed, step))?;
        }
        Ok(())
    }

    /// First address of the host.
    pub fn first_address(&self) -> IpAddr {
        self.address_of(Side::Server)
    }

    /// Whether others are in its network, behind links of their own.
    pub fn shares_network(&self) -> bool {
        self.place.shared
    }

    /// All its addresses.
    pub fn addresses(&self) -> Vec<IpAddr> {
        (0..=self.further_addresses)
            .map(|further| self.place.server_address(self.family, further))
            .collect()
    }

    /// The address to listen on: its only one, or all.
    pub(crate) fn listen_address(&self) -> IpAddr {
        match (self.further_addresses, self.family) {
            (0, _) => self.first_address(),
            (_, Family::Ipv4) => Ipv4Addr::UNSPECIFIED.into(),
            (_, Family::Ipv6) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// The first address at an end of its link.
    pub(crate) fn address_of(&self, side: Side) -> IpAddr {
        match side {
            Side::Client => self.place.client_address(self.family),
            Side::Server => self.place.server_address(self.family, 0),
        }
    }

    /// Packets so far in the data direction, to this host.
    ///
    /// # Errors
    /// [`Error::Loss`] or [`Error::Process`] if the counters cannot be read.
    pub fn forward_counters(&self) -> Result<LossCounters, Error> {
        let mut dropped = self.dropped_before.load(Ordering::Relaxed);
        for (relay, namespace) in &self.relays {
            dropped += relay.dropped_packets(namespace)?;
        }
        dropped += self.wire.as_ref().map_or(0, tun::Wire::queue_drops);
        Ok(LossCounters {
            queue_dropped_packets: dropped,
            ..self.forward.read_counters()?
        })
    }

    /// Packets so far in the other direction, from this host.
    ///
    /// # Errors
    /// [`Error::Loss`] if the counters cannot be read.
    pub fn reverse_counters(&self) -> Result<LossCounters, Error> {
        self.reverse.read_counters()
    }

    /// The round-trip times of the client's connections to it, since the last call.
    pub(super) fn take_round_trips(&self) -> Result<RoundTrips, Error> {
        self.rtt.take_measurements()
    }

    pub(super) fn server(&self) -> &Namespace {
        &self.server
    }

    /// Fails if it is no longer joined to the client.
    pub(super) fn check_joined(&self) -> Result<(), Error> {
        self.wire
            .as_ref()
            .map_or(Ok(()), tun::Wire::check_forwarding)
    }
}
