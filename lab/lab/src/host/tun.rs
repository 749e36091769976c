//! The wire that this process forwards: a TUN device at each host, with the engine of
//! [`thalweg_link`] in between. It delays on kernels without netem. Rate and queue are exact to the
//! nanosecond, up to the speed of one thread a direction.

use std::sync::Arc;
use std::time::Instant;

use nix::sys::eventfd::{EfdFlags, EventFd};
use thalweg_link::engine::{Capacity, Direction};
use thalweg_link::forward::Forwarder;
use thalweg_link::quantity::Threshold;
use thalweg_link::tun;
use thalweg_process::tool::run_tool;

use super::netns::Namespace;
use super::veth::{self, Endpoints};
use crate::error::Error;
use crate::scenario::{DEFAULT_QUEUE, PathModel};
use crate::units::{Delay, Probability};

/// A running wire. Dropped, it stops.
#[derive(Debug)]
pub(super) struct Wire {
    failed: Arc<EventFd>,
    /// Forwarder of the data, then that of the ACKs.
    forwarders: [Forwarder; 2],
}

impl Wire {
    /// Creates the devices, gives them the hosts' addresses and starts forwarding.
    pub(super) fn join_hosts(ends: &Endpoints<'_>, path: &PathModel) -> Result<Self, Error> {
        let make = |host: &Namespace, interface: &str| {
            host.run_within(|| {
                tun::attach_device(interface)
                    .map_err(|(what, error)| Error::system(format!("cannot {what}"))(error))
            })
        };
        let hosts = ends.host_interfaces();
        let [(client, _, near_name), (server, _, far_name)] = &hosts;
        let (near, far) = (make(client, near_name)?, make(server, far_name)?);
        for (host, _, link) in &hosts {
            let name = host.name();
            let (mtu, waiting) = (path.mtu, tun::WAITING_PACKETS);
            // Without link-local addresses, only packets of the hosts cross the link.
            run_tool(
                "ip",
                &format!(
                    "-n {name} link set {link} addrgenmode none mtu {mtu} txqueuelen {waiting}"
                ),
            )?;
            run_tool("ip", &format!("-n {name} link set {link} up"))?;
        }
        veth::give_addresses(ends, path)?;

        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let failed = EventFd::from_value_and_flags(0, flags)
            .map_err(|errno| Error::system("cannot make an event descriptor")(errno.into()))?;
        let failed = Arc::new(failed);
        let copy = |device: &std::fs::File| {
            device
                .try_clone()
                .map_err(Error::system("cannot duplicate a descriptor"))
        };
        let (near_too, far_too) = (copy(&near)?, copy(&far)?);
        let began = Instant::now();
        let start = |name, direction, from, to| {
            Forwarder::start_forwarding(name, direction, from, to, began, Arc::clone(&failed))
        };
        Ok(Self {
            forwarders: [
                start("wire-forward", forward_direction(path), near, far)?,
                start("wire-reverse", reverse_direction(path), far_too, near_too)?,
            ],
            failed,
        })
    }

    /// Packets of the data direction that its queue has dropped.
    pub(super) fn queue_drops(&self) -> u64 {
        self.forwarders[0].queue_drops()
    }

    /// Fails if it has stopped forwarding.
    pub(super) fn check_forwarding(&self) -> Result<(), Error> {
        match self.failed.read() {
            Ok(_) => Err(Error::system("the link between the hosts")(
                std::io::Error::other("forwarding packets has stopped"),
            )),
            // No message means that it runs.
            Err(_) => Ok(()),
        }
    }
}

/// The data direction. Loss is not part of it: the TC program drops on every wire.
fn forward_direction(path: &PathModel) -> Direction {
    Direction {
        ack_delay: Delay::ZERO,
        loss: Probability::ZERO,
        capacity: path.rate.map_or(Capacity::Unlimited, Capacity::Rate),
        queue_bytes: match path.rate {
            Some(_) => path.queue.unwrap_or(DEFAULT_QUEUE).bytes(),
            None => u64::MAX,
        },
        ecn: path.mark.map(Threshold::Time),
        delay: path.delay,
        aqm: None,
        jitter: path.jitter,
        reorder: path.reorder,
        seed: path.seed,
    }
}

fn reverse_direction(path: &PathModel) -> Direction {
    Direction {
        ack_delay: path.ack_delay,
        capacity: Capacity::Unlimited,
        queue_bytes: u64::MAX,
        ecn: None,
        reorder: Probability::ZERO,
        seed: !path.seed,
        ..forward_direction(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bottleneck_is_in_the_data_direction_and_the_delay_in_both() {
        let path = PathModel {
            rate: Some("10mbit".parse().unwrap()),
            delay: Delay::from_us(5000),
            reorder: "1%".parse().unwrap(),
            mark: Some(Delay::from_us(500)),
            ack_delay: Delay::from_us(100_000),
            ..PathModel::default()
        };
        let (there, back) = (forward_direction(&path), reverse_direction(&path));
        assert!(matches!(there.capacity, Capacity::Rate(_)));
        assert_eq!(there.queue_bytes, DEFAULT_QUEUE.bytes());
        assert!(matches!(back.capacity, Capacity::Unlimited));
        assert_eq!((there.delay, back.delay), (path.delay, path.delay));
        assert_eq!(back.reorder, Probability::ZERO);
        // The server's ACKs.
        let delays = (Delay::ZERO, path.ack_delay);
        assert_eq!((there.ack_delay, back.ack_delay), delays);
        let marks = Some(Threshold::Time(Delay::from_us(500)));
        assert_eq!((there.ecn, back.ecn), (marks, None));
        assert_ne!(there.seed, back.seed);
    }
}
