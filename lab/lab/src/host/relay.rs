//! Relays between the hosts: bottleneck and delay, each a network namespace that forwards.
//!
//! They are not queueing disciplines of the sender's own link, for two reasons. A packet that waits
//! there counts as the sender's own. TCP's small-queue limit (`tcp_small_queue_check`,
//! net/ipv4/tcp_output.c) then holds back the rest, so that only a few packets are ever in flight.
//! A full queue is reported to the sender (`NET_XMIT_DROP`). Also, the sender's link has its own
//! discipline, the scenario's `qdisc`. A namespace that forwards releases the packet from the
//! sender's socket (`ip_rcv_core`).
//!
//! Each has its own namespace, without `tbf` below `netem`. Before Linux 6.13 netem miscounts and
//! finally blocks if a discipline below it splits packets.

use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

use thalweg_process::tool::{self, run_tool};
use thalweg_process::{Error, Process};

use super::netns::Namespace;
use super::veth::{FAR, NEAR};
use crate::scenario::{Aqm, DEFAULT_QUEUE, PathModel};
use crate::units::{Delay, Probability, Rate};

/// Packets that a delay may hold. This limit must never drop: it exceeds the socket memory of any
/// host.
const DELAY_LIMIT_PKTS: u32 = 10_000_000;

/// One relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Relay {
    Bottleneck,
    Delay,
}

impl Relay {
    /// The relays of a path, from client to server.
    pub(super) fn relays_of(path: &PathModel) -> Vec<Self> {
        let mut relays = Vec::new();
        if path.rate.is_some() {
            relays.push(Self::Bottleneck);
        }
        if path.delay > Delay::ZERO {
            relays.push(Self::Delay);
        }
        relays
    }

    /// Part of the namespace's name that stands for the relay.
    pub(super) fn name_part(self) -> &'static str {
        match self {
            Self::Bottleneck => "bottleneck",
            Self::Delay => "delay",
        }
    }

    /// Replaces its queueing disciplines and drops their packets. If kept, a packet larger than the
    /// new bucket would block `tbf` for ever.
    pub(super) fn replace_qdiscs(
        self,
        namespace: &Namespace,
        path: &PathModel,
    ) -> Result<(), Error> {
        self.set_up(namespace, path)
    }

    /// Packets that its queue has dropped since it was last set up. A delay never drops.
    pub(super) fn dropped_packets(self, namespace: &Namespace) -> Result<u64, Error> {
        if self != Self::Bottleneck {
            return Ok(0);
        }
        let name = namespace.name();
        let told = tool::read_tool("tc", &format!("-n {name} -s -j qdisc show dev {FAR} root"))?;
        root_drops(&told).ok_or_else(|| {
            Error::system("cannot read what `tc` tells of the bottleneck")(std::io::Error::other(
                format!("expected JSON with the field \"drops\", found {told:?}"),
            ))
        })
    }

    /// Puts its queueing disciplines on the links of its namespace. Existing ones are replaced in
    /// one step: in between, a link would send at full speed, megabytes in a few milliseconds.
    pub(super) fn set_up(self, namespace: &Namespace, path: &PathModel) -> Result<(), Error> {
        let name = namespace.name();
        let handle = fresh_handle();
        relay_qdiscs(self, path)
            .into_iter()
            .try_for_each(|(interface, words)| {
                run_tool(
                    "tc",
                    &format!(
                        "-n {name} qdisc replace dev {interface} root handle {handle:x}: {words}"
                    ),
                )
            })?;
        match (self, red_arguments(path)) {
            (Self::Bottleneck, Some(words)) => run_tool(
                "tc",
                &format!("-n {name} qdisc add dev {FAR} parent {handle:x}:1 {words}"),
            ),
            _ => Ok(()),
        }
    }
}

/// The drops of the root discipline, which include those of a discipline below it.
fn root_drops(told: &str) -> Option<u64> {
    let disciplines: Vec<serde_json::Value> = serde_json::from_str(told).ok()?;
    let mut roots = disciplines.iter().filter(|one| one["root"] == true);
    roots.next()?["drops"].as_u64()
}

/// A handle that no discipline of a relay has. `tc qdisc replace` changes a discipline with the
/// same handle, and replaces one with another (`tc_modify_qdisc`, net/sched/sch_api.c). The
/// kernel's own handles begin at 8001.
fn fresh_handle() -> u16 {
    static LAST: AtomicU16 = AtomicU16::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) % 0x7fff + 1
}

/// The queueing disciplines of a relay: interface and arguments of `tc`.
fn relay_qdiscs(relay: Relay, path: &PathModel) -> Vec<(&'static str, String)> {
    match relay {
        Relay::Bottleneck => {
            let Some(rate) = path.rate else {
                return Vec::new();
            };
            vec![(FAR, bottleneck_arguments(path, rate))]
        }
        Relay::Delay => {
            let mut words = format!("netem limit {DELAY_LIMIT_PKTS} delay {}us", path.delay.us());
            if path.jitter > Delay::ZERO {
                words += &format!(" {}us", path.jitter.us());
            }
            let back = words.clone();
            if path.reorder > Probability::ZERO {
                words += &format!(" reorder {}", path.reorder);
            }
            vec![(FAR, words), (NEAR, back)]
        }
    }
}

/// The arguments of `tc` for a bottleneck of a path at a rate.
fn bottleneck_arguments(path: &PathModel, rate: Rate) -> String {
    let queue = path.queue.unwrap_or(DEFAULT_QUEUE).bytes();
    // 1 ms at this rate, so that the kernel's timers can sustain it, and at least two packets.
    let burst = (rate.bps() / 8 / 1000).max(2 * (u64::from(path.mtu) + 14));
    format!("tbf rate {}bit burst {burst} limit {queue}", rate.bps())
}

/// A running `tc` that gives a bottleneck new rates. Packets that wait stay.
#[derive(Debug)]
pub(super) struct Tuner {
    commands: Mutex<ChildStdin>,
    _process: Process,
}

impl Tuner {
    /// Starts it for the bottleneck in a namespace.
    pub(super) fn start(namespace: &Namespace) -> Result<Self, Error> {
        let mut command = tool::program_command("tc");
        command
            .args(["-n", namespace.name(), "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        thalweg_process::tie_to_thread(&mut command);
        let mut process = Process::spawn_tied(&mut command)?;
        let commands = process.child_mut().stdin.take();
        let commands = commands
            .ok_or_else(|| Error::system("tc")(std::io::Error::other("it takes no commands")))?;
        Ok(Self {
            commands: Mutex::new(commands),
            _process: process,
        })
    }

    /// Gives the bottleneck of this path a rate.
    pub(super) fn set_rate(&self, path: &PathModel, rate: Rate) -> Result<(), Error> {
        let line = format!(
            "qdisc change dev {FAR} root {}\n",
            bottleneck_arguments(path, rate)
        );
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands
            .write_all(line.as_bytes())
            .map_err(Error::system("`tc` that changes rates has ended"))
    }
}

/// The arguments of `tc` for a `red` queue at the bottleneck; none without it.
///
/// The parameters follow the advice of tc-red(8): `max` is a quarter of the limit, `min` a third of
/// `max`, `burst` (2·min + max) / (3·avpkt), and the probability the higher of two. Packets of 1000
/// bytes are its advice for an MTU of 1500.
fn red_arguments(path: &PathModel) -> Option<String> {
    const PACKET: u64 = 1000;
    let rate = path.rate.filter(|_| path.aqm == Aqm::Red)?;
    let limit = path.queue.unwrap_or(DEFAULT_QUEUE).bytes();
    let (min, max) = (limit / 12, limit / 4);
    let burst = (2 * min + max).div_ceil(3 * PACKET);
    let mark = if path.ecn { " ecn" } else { "" };
    Some(format!(
        "red limit {limit} min {min} max {max} avpkt {PACKET} burst {burst} \
         bandwidth {}bit probability 0.02{mark}",
        rate.bps()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_link_has_nothing_in_between() {
        assert_eq!(Relay::relays_of(&PathModel::default()), []);
    }

    #[test]
    fn drops_are_those_of_the_root_discipline() {
        let told = r#"[{"kind":"tbf","handle":"1:","root":true,"drops":34,"overlimits":7},
            {"kind":"red","handle":"8001:","parent":"1:1","drops":30}]"#;
        assert_eq!(root_drops(told), Some(34));
        assert_eq!(root_drops("[]"), None);
        assert_eq!(root_drops("no JSON"), None);
    }

    #[test]
    fn the_words_for_tc() {
        let path = PathModel {
            rate: Some("100mbit".parse().unwrap()),
            delay: "10ms".parse().unwrap(),
            jitter: "1ms".parse().unwrap(),
            reorder: "0.5%".parse().unwrap(),
            ..PathModel::default()
        };
        assert_eq!(Relay::relays_of(&path), [Relay::Bottleneck, Relay::Delay]);
        // 1 ms of 100 Mbit/s is 12500 bytes; the default queue is 1 MB.
        assert_eq!(
            relay_qdiscs(Relay::Bottleneck, &path),
            [(
                FAR,
                "tbf rate 100000000bit burst 12500 limit 1000000".to_owned()
            )]
        );
        assert_eq!(
            relay_qdiscs(Relay::Delay, &path),
            [
                (
                    FAR,
                    "netem limit 10000000 delay 10000us 1000us reorder 0.5%".to_owned()
                ),
                (NEAR, "netem limit 10000000 delay 10000us 1000us".to_owned()),
            ]
        );
        let mut managed = path.clone();
        (managed.aqm, managed.ecn) = (Aqm::Red, true);
        // 83333 and 250000 of 1000000 bytes; 416666 / 3000 packets, rounded up.
        assert_eq!(
            red_arguments(&managed).as_deref(),
            Some(
                "red limit 1000000 min 83333 max 250000 avpkt 1000 burst 139 \
                 bandwidth 100000000bit probability 0.02 ecn"
            )
        );
        assert_eq!(red_arguments(&path), None);
        // Two packets where 1 ms is less than that.
        let slow = PathModel {
            rate: Some("1mbit".parse().unwrap()),
            ..PathModel::default()
        };
        assert!(
            relay_qdiscs(Relay::Bottleneck, &slow)[0]
                .1
                .contains("burst 3028 ")
        );
    }
}
