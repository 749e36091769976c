//! `[hosts.linux]`: how a sender and a receiver with Linux's TCP behave.
//!
//! Every mechanism can be switched off alone. With all of them off the sender is about that of a
//! network card.

use crate::Time;
use serde::{Deserialize, Serialize};

/// The round-trip time that a controller is told with an ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RttSample {
    /// From the departure of the newest acknowledged burst to the ACK (`tcp_clean_rtx_queue`).
    Burst,
    /// From the departure of the newest acknowledged packet to its arrival, and the way back: as
    /// if the receiver acknowledged it at once.
    Packet,
}

/// When a round may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rounds {
    /// Once something sent in it is acknowledged (`tcp_rate_skb_delivered`).
    Acked,
    /// At any ACK.
    Timed,
}

/// How gaps between bursts are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pacing {
    /// As `tcp_update_skb_after_send`: not before the tenth segment, and the next gap is shorter
    /// by the lateness of this burst, to a half at most.
    Internal,
    /// Bytes over rate, always.
    Exact,
}

/// Options of hosts with Linux's TCP.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Linux {
    /// Ethernet, IP and TCP headers of each packet, bytes: the rest is payload.
    pub header_bytes: u32,
    /// Segmentation offload: bursts of about a millisecond (`tcp_tso_autosize`). Without it each
    /// packet is a burst.
    pub offload: bool,
    /// Generic receive offload: packets of a flow within this time of each other are received as
    /// one. Zero: each alone.
    pub gro: Time,
    /// The delayed-ACK timer. Zero: whatever is received is acknowledged at once.
    pub delayed_ack: Time,
    /// Whether round-trip times of ACKs sent by the timer are flagged as such. Linux does so only
    /// for segments shorter than the MSS.
    pub flag_delayed: bool,
    /// Round-trip times as the controller sees them.
    pub rtt: RttSample,
    /// When a round may end.
    pub rounds: Rounds,
    /// Whether the window also holds for flows that are paced.
    pub window: bool,
    /// How gaps between bursts are computed.
    pub pacing: Pacing,
    /// A pacing timer expires late by a random time up to this.
    pub timer_slack: Time,
    /// Rate of the interface, if it is not that of the link behind it. A virtual one has none.
    pub nic_bps: Option<u64>,
}

impl Default for Linux {
    fn default() -> Self {
        Self {
            header_bytes: 66,
            offload: true,
            gro: Time::from_us(20),
            delayed_ack: Time::from_us(40_000),
            flag_delayed: false,
            rtt: RttSample::Burst,
            rounds: Rounds::Acked,
            window: true,
            pacing: Pacing::Internal,
            timer_slack: Time::ZERO,
            nic_bps: None,
        }
    }
}
