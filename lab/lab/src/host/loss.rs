//! The loss program (`bpf/loss.bpf.c`): loading, attaching, reading.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramInput, TC_EGRESS, TcHookBuilder};
use serde::Serialize;
use thalweg_bpf_objects::loss::{LossSkel, LossSkelBuilder, types};

use super::netns::Namespace;
use crate::error::Error;
use crate::scenario::{Drop, GilbertElliott};
use crate::units::Probability;

/// linux/pkt_cls.h: the packet is dropped, and the sender hears of success.
const TC_ACT_STOLEN: u32 = 4;
/// linux/pkt_cls.h: the packet is dropped, and the sender hears of it.
const TC_ACT_SHOT: u32 = 2;

/// The loss program's counters of one direction of a link, since the link was created. A packet is
/// a buffer that the network stack gives to the link: up to 64 KiB with offload. Bytes include the
/// link header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LossCounters {
    /// Packets that reached the program.
    pub seen_packets: u64,
    /// Bytes of the packets that reached the program.
    pub seen_bytes: u64,
    /// The TCP segments in them.
    pub seen_segments: u64,
    /// Packets that it dropped.
    pub dropped_packets: u64,
    /// Bytes of the dropped packets.
    pub dropped_bytes: u64,
    /// The TCP segments in them.
    pub dropped_segments: u64,
    /// Runs of consecutive dropped packets.
    pub bursts: u64,
    /// Packets in the bad state of the chain.
    pub bad_packets: u64,
    /// The longest packet, bytes.
    pub largest_bytes: u64,
    /// Packets that the bottleneck's queue dropped, beside those that the program dropped. They
    /// have passed the program.
    pub queue_dropped_packets: u64,
    /// A digest of the fate of every packet, in order. JSON has it as hexadecimal text, as many
    /// readers keep only 53 bits of a number.
    #[serde(serialize_with = "serialize_hex")]
    pub digest: u64,
}

fn serialize_hex<S: serde::Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:016x}"))
}

impl LossCounters {
    /// Share of packets dropped; `None` if no packet passed.
    pub fn loss_share(&self) -> Option<f64> {
        (self.seen_packets > 0).then(|| self.dropped_packets as f64 / self.seen_packets as f64)
    }

    /// Share of the packets that the program let pass and the bottleneck's queue dropped; `None` if
    /// none passed.
    pub fn queue_loss(&self) -> Option<f64> {
        let passed = self.seen_packets - self.dropped_packets;
        (passed > 0).then(|| self.queue_dropped_packets as f64 / passed as f64)
    }

    /// Mean number of packets dropped in a row; `None` if none was dropped.
    pub fn mean_burst_packets(&self) -> Option<f64> {
        (self.bursts > 0).then(|| self.dropped_packets as f64 / self.bursts as f64)
    }
}

impl std::iter::Sum for LossCounters {
    /// The sum of several links. Their packets have no common order, so the digest is that of the
    /// set of the links' digests.
    fn sum<I: Iterator<Item = Self>>(counters: I) -> Self {
        counters.fold(Self::default(), |sum, one| Self {
            seen_packets: sum.seen_packets + one.seen_packets,
            seen_bytes: sum.seen_bytes + one.seen_bytes,
            seen_segments: sum.seen_segments + one.seen_segments,
            dropped_packets: sum.dropped_packets + one.dropped_packets,
            dropped_bytes: sum.dropped_bytes + one.dropped_bytes,
            dropped_segments: sum.dropped_segments + one.dropped_segments,
            bursts: sum.bursts + one.bursts,
            bad_packets: sum.bad_packets + one.bad_packets,
            largest_bytes: sum.largest_bytes.max(one.largest_bytes),
            queue_dropped_packets: sum.queue_dropped_packets + one.queue_dropped_packets,
            digest: sum.digest.wrapping_add(one.digest),
        })
    }
}

impl From<types::counters> for LossCounters {
    fn from(raw: types::counters) -> Self {
        Self {
            seen_packets: raw.seen_packets,
            seen_bytes: raw.seen_bytes,
            seen_segments: raw.seen_segments,
            dropped_packets: raw.dropped_packets,
            dropped_bytes: raw.dropped_bytes,
            dropped_segments: raw.dropped_segments,
            bursts: raw.bursts,
            bad_packets: raw.bad_packets,
            largest_bytes: raw.largest_bytes,
            queue_dropped_packets: 0,
            digest: raw.digest,
        }
    }
}

/// The loss program on the egress of one interface. It is removed with the interface.
#[derive(Debug)]
pub(crate) struct Loss {
    counters: MapHandle,
    chain: MapHandle,
}

impl Loss {
    /// Loads the program and attaches it to the egress of an interface of the
    /// namespace.
    pub(crate) fn attach(
        namespace: &Namespace,
        interface: &str,
        chain: &GilbertElliott,
        syn_loss: Probability,
        drop: Drop,
        seed: u64,
    ) -> Result<Self, Error> {
        let mut storage = MaybeUninit::uninit();
        let skeleton = load_program(&mut storage, chain, syn_loss, drop, seed)?;
        let program = skeleton.progs.lose.as_fd();
        namespace.run_within(|| {
            let index = nix::net::if_::if_nametoindex(interface).map_err(|errno| {
                Error::system(format!("no interface {interface}"))(errno.into())
            })?;
            let mut hook = TcHookBuilder::new(program)
                .ifindex(index as i32)
                .handle(1)
                .priority(1)
                .hook(TC_EGRESS);
            hook.create()
                .and_then(|mut hook| hook.attach())
                .map_err(|why| Error::Loss {
                    what: "attached",
                    why,
                })?;
            Ok(())
        })?;
        let keep = |map| MapHandle::try_from(map).map_err(|why| Error::Loss { what: "kept", why });
        Ok(Self {
            counters: keep(&skeleton.maps.bss)?,
            chain: keep(&skeleton.maps.data_chain)?,
        })
    }

    /// Replaces the chain and the loss of SYNs, and keeps the numbering of packets. Packets
    /// meanwhile may see some old and some new probabilities.
    pub(crate) fn replace_probabilities(
        &self,
        chain: &GilbertElliott,
        syn_loss: Probability,
    ) -> Result<(), Error> {
        let GilbertElliott {
            to_bad,
            to_good,
            loss_good,
            loss_bad,
        } = chain;
        let value: Vec<u8> = [to_bad, to_good, loss_good, loss_bad, &syn_loss]
            .iter()
            .flat_map(|probability| probability.q32().to_ne_bytes())
            .collect();
        self.chain
            .update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(|why| Error::Loss {
                what: "changed",
                why,
            })
    }

    /// The counters. Packets meanwhile may be in some figures and not in others.
    pub(crate) fn read_counters(&self) -> Result<LossCounters, Error> {
        sum_counters(&self.counters)
    }
}

/// The chain's effect on the first packets of a link, from a run of the program in the kernel,
/// without a link.
///
/// # Errors
/// [`Error::Loss`] if the program cannot be loaded or run.
pub fn rehearse_loss(
    chain: &GilbertElliott,
    seed: u64,
    packets: u32,
) -> Result<LossCounters, Error> {
    // An Ethernet header with the type of IPv4, and an empty packet.
    let mut frame = [0u8; 64];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    rehearse_frame(&frame, chain, Probability::ZERO, seed, packets)
}

/// As [`rehearse_loss`], for this Ethernet frame over and over, with a loss of SYNs.
///
/// # Errors
/// [`Error::Loss`] if the program cannot be loaded or run.
pub fn rehearse_frame(
    frame: &[u8],
    chain: &GilbertElliott,
    syn_loss: Probability,
    seed: u64,
    packets: u32,
) -> Result<LossCounters, Error> {
    loop {
        let mut storage = MaybeUninit::uninit();
        let skeleton = load_program(&mut storage, chain, syn_loss, Drop::Silent, seed)?;
        let input = ProgramInput {
            data_in: Some(frame),
            repeat: packets,
            ..Default::default()
        };
        match skeleton.progs.lose.test_run(input) {
            Ok(_) => return sum_counters(&skeleton.maps.bss),
            // A signal to this thread ends the repetitions (net/bpf/test_run.c).
            // The counters hold a part of them, so all are run anew.
            Err(why) if why.kind() == libbpf_rs::ErrorKind::Interrupted => {}
            Err(why) => {
                return Err(Error::Loss {
                    what: "rehearsed",
                    why,
                });
            }
        }
    }
}

fn load_program<'obj>(
    storage: &'obj mut MaybeUninit<libbpf_rs::OpenObject>,
    chain: &GilbertElliott,
    syn_loss: Probability,
    drop: Drop,
    seed: u64,
) -> Result<LossSkel<'obj>, Error> {
    let failed = |why| Error::Loss {
        what: "loaded",
        why,
    };
    let mut open = LossSkelBuilder::default().open(storage).map_err(failed)?;
    let settings = open
        .maps
        .rodata_data
        .as_mut()
        .ok_or_else(|| failed(libbpf_rs::Error::from_raw_os_error(nix::libc::ENODATA)))?;
    settings.seed = seed;
    settings.drop_action = match drop {
        Drop::Silent => TC_ACT_STOLEN,
        Drop::Reported => TC_ACT_SHOT,
    };
    let probabilities = open
        .maps
        .data_chain_data
        .as_mut()
        .ok_or_else(|| failed(libbpf_rs::Error::from_raw_os_error(nix::libc::ENODATA)))?;
    probabilities.probabilities.to_bad_q32 = chain.to_bad.q32();
    probabilities.probabilities.to_good_q32 = chain.to_good.q32();
    probabilities.probabilities.loss_good_q32 = chain.loss_good.q32();
    probabilities.probabilities.loss_bad_q32 = chain.loss_bad.q32();
    probabilities.probabilities.syn_loss_q32 = syn_loss.q32();
    open.load().map_err(failed)
}

fn sum_counters(map: &impl MapCore) -> Result<LossCounters, Error> {
    let failed = |why| Error::Loss { what: "read", why };
    let bytes = map
        .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(failed)?
        .filter(|bytes| bytes.len() >= size_of::<types::counters>())
        .ok_or_else(|| failed(libbpf_rs::Error::from_raw_os_error(nix::libc::ENODATA)))?;
    // SAFETY: there are at least as many bytes as the type has. The type is a struct of integers
    // without padding, the only variable of its section. The read may be unaligned.
    Ok(unsafe { bytes.as_ptr().cast::<types::counters>().read_unaligned() }.into())
}
