//! The link between two hosts: `[path]`, and its keys in `[[host]]` and `[[change]]`.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thalweg_units::reader::{Table, whole_number};
use thalweg_units::schema;
use toml::de::DeValue;

use super::trace::Trace;
use crate::units::{Delay, Probability, Rate, Size};

/// The keys that may change during a run.
pub(super) const CHANGING: [&str; 6] = [
    "loss",
    "gilbert_elliott",
    "syn_loss",
    "reverse_loss",
    "rate",
    "queue",
];
/// The least MTU of IPv4, bytes. 576 leaves space for TCP options and some data.
const IPV4_MTU: u32 = 576;
/// The least MTU of a link that carries IPv6 (RFC 8200, section 5).
const IPV6_MTU: u32 = 1280;

/// The link. The data direction is from client to server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathModel {
    /// Independent loss in the data direction.
    pub loss: Option<Probability>,
    /// Loss in bursts in the data direction, instead of `loss`.
    pub gilbert_elliott: Option<GilbertElliott>,
    /// Further independent loss of SYNs without ACK in the data direction.
    // The default is left out, so that older results stay comparable.
    #[serde(skip_serializing_if = "is_never")]
    pub syn_loss: Probability,
    /// Independent loss in the direction of the ACKs.
    pub reverse_loss: Probability,
    /// Whether the sender is told of its losses.
    pub drop: Drop,
    /// Bottleneck rate in the data direction; none: as fast as the machine.
    pub rate: Option<Rate>,
    /// Rates over time, of which `rate` is the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// Bytes that may queue at the bottleneck; more are dropped. With `rate` only.
    pub queue: Option<Size>,
    /// Active queue management of the bottleneck. With `rate` only.
    // The default is left out, so that older results stay comparable.
    #[serde(skip_serializing_if = "Aqm::is_tail_drop")]
    pub aqm: Aqm,
    /// Mark packets of ECN flows instead of dropping them. With an `aqm` only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ecn: bool,
    /// With `aqm = "step"`: packets with a longer queueing delay are marked or dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<Delay>,
    /// One-way delay of a packet; a round trip takes twice as long.
    pub delay: Delay,
    /// Each packet's delay is uniform in `delay` ± this, in each direction. Packets may overtake
    /// each other.
    pub jitter: Delay,
    /// Longest time for which the server delays an ACK, as RFC 1122 permits.
    // The default is left out, so that older results stay comparable.
    #[serde(skip_serializing_if = "is_zero")]
    pub ack_delay: Delay,
    /// Share of packets in the data direction that are not delayed, and so overtake earlier ones.
    pub reorder: Probability,
    /// Packets of up to 64 KiB cross the link whole (segmentation offload), as one unit of loss.
    pub offload: bool,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// The version of IP.
    pub family: Family,
    /// Seed of the random losses.
    pub seed: u64,
}

impl Default for PathModel {
    fn default() -> Self {
        Self {
            loss: None,
            gilbert_elliott: None,
            syn_loss: Probability::ZERO,
            reverse_loss: Probability::ZERO,
            drop: Drop::Silent,
            rate: None,
            trace: None,
            queue: None,
            aqm: Aqm::default(),
            ecn: false,
            mark: None,
            delay: Delay::ZERO,
            jitter: Delay::ZERO,
            ack_delay: Delay::ZERO,
            reorder: Probability::ZERO,
            offload: true,
            mtu: 1500,
            family: Family::Ipv4,
            seed: 1,
        }
    }
}

pub(super) fn is_zero(time: &Delay) -> bool {
    *time == Delay::ZERO
}

fn is_never(probability: &Probability) -> bool {
    *probability == Probability::ZERO
}

/// The default queue at the bottleneck.
pub const DEFAULT_QUEUE: Size = Size::from_bytes(1_000_000);

/// Loss by a two-state chain (Gilbert 1960, Elliott 1963).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GilbertElliott {
    /// Probability per packet of going from the good to the bad state (p).
    pub to_bad: Probability,
    /// Probability per packet of going from the bad to the good state (r).
    pub to_good: Probability,
    /// Loss in the good state (1 − k).
    pub loss_good: Probability,
    /// Loss in the bad state (1 − h).
    pub loss_bad: Probability,
}

impl GilbertElliott {
    /// The chain that loses independently with this probability.
    pub fn bernoulli(loss: Probability) -> Self {
        Self {
            to_bad: Probability::ZERO,
            to_good: Probability::ONE,
            loss_good: loss,
            loss_bad: Probability::ONE,
        }
    }

    /// The long-run share of packets lost: (r·g + p·b)/(p + r).
    pub fn stationary_loss(&self) -> f64 {
        let (p, r) = (self.to_bad.fraction(), self.to_good.fraction());
        if p == 0.0 {
            return self.loss_good.fraction();
        }
        (r * self.loss_good.fraction() + p * self.loss_bad.fraction()) / (p + r)
    }
}

impl GilbertElliott {
    fn from_table(mut table: Table<'_>) -> Option<Self> {
        let to_bad = table.needed("to_bad");
        let to_good = table.needed("to_good");
        let loss_good = table.value("loss_good").unwrap_or_default();
        let loss_bad = table.value("loss_bad").unwrap_or(Probability::ONE);
        table.refuse_unknown_keys();
        let chain = Self {
            to_bad: to_bad?,
            to_good: to_good?,
            loss_good,
            loss_bad,
        };
        if chain.to_bad > Probability::ZERO && chain.to_good == Probability::ZERO {
            let expected = "more: the chain would never leave the bad state";
            table.wrong("to_good", "0%", expected);
        }
        Some(chain)
    }
}

impl PathModel {
    /// Takes the keys that may change during a run, if any; others stay. Returns whether there is
    /// one.
    pub(super) fn read_change(&mut self, table: &mut Table<'_>) -> bool {
        let loss = table.value("loss");
        let chain = table
            .take_table("gilbert_elliott")
            .and_then(GilbertElliott::from_table);
        if loss.is_some() || chain.is_some() {
            (self.loss, self.gilbert_elliott) = (loss, chain);
        }
        self.syn_loss = table.value("syn_loss").unwrap_or(self.syn_loss);
        let reverse_loss = table.value("reverse_loss");
        self.reverse_loss = reverse_loss.unwrap_or(self.reverse_loss);
        self.rate = table.value("rate").or(self.rate);
        self.queue = table.value("queue").or(self.queue);
        CHANGING.iter().any(|key| table.has(key))
    }

    /// Takes the keys of a path; missing ones stay.
    pub(super) fn take_keys(&mut self, table: &mut Table<'_>, folder: &Path) {
        self.read_change(table);
        if table.has("rate") {
            self.trace = None;
        }
        if let Some(trace) = Trace::read(table, folder) {
            if table.has("rate") {
                table.wrong("trace", "it beside `rate`", "one of the two");
            }
            (self.rate, self.trace) = (Some(trace.mean_rate()), Some(trace));
        }
        self.drop = table.value("drop").unwrap_or(self.drop);
        self.aqm = table.value("aqm").unwrap_or(self.aqm);
        self.ecn = table.value("ecn").unwrap_or(self.ecn);
        self.mark = table.value("mark").or(self.mark);
        self.delay = table.value("delay").unwrap_or(self.delay);
        self.jitter = table.value("jitter").unwrap_or(self.jitter);
        self.ack_delay = table.value("ack_delay").unwrap_or(self.ack_delay);
        self.reorder = table.value("reorder").unwrap_or(self.reorder);
        self.offload = table.value("offload").unwrap_or(self.offload);
        self.family = table.value("family").unwrap_or(self.family);
        self.mtu = table.count("mtu", IPV4_MTU..=65_535).unwrap_or(self.mtu);
        let seed = |value: &DeValue<'_>| u64::try_from(whole_number(value)?).ok();
        let form = || schema::whole(0..=i64::MAX);
        let seed = table.optional("seed", seed, "a whole number from 0 to 2^63 - 1", form);
        self.seed = seed.unwrap_or(self.seed);
    }

    /// Checks the values against each other; `table` is the one that they come from.
    pub(super) fn check_values(&self, table: &Table<'_>) {
        if !table.is_sound() {
            return;
        }
        let wrong = |key, found: &str, expected: &str| table.wrong(key, found, expected);
        if self.loss.is_some() && self.gilbert_elliott.is_some() {
            let found = "both `loss` and `gilbert_elliott`";
            wrong("gilbert_elliott", found, "one of them");
        }
        if self.rate.is_none() {
            let expected = "`rate` beside it: without a bottleneck nothing waits";
            if self.queue.is_some() {
                wrong("queue", "a queue without `rate`", expected);
            }
            if self.aqm != Aqm::TailDrop {
                wrong("aqm", "an aqm without `rate`", expected);
            }
        }
        if self.trace.is_some() && (self.offload || self.aqm != Aqm::TailDrop) {
            let expected = "`offload = false` and no `aqm` beside it: a burst of packets could \
                            exceed the bucket of a lower rate";
            wrong("trace", "a trace", expected);
        }
        if self.aqm == Aqm::Step && (self.mark.is_none() || !self.ecn) {
            let expected = "`ecn = true` and `mark`, such as \"500us\", beside it";
            wrong("aqm", "\"step\" alone", expected);
        }
        if self.mark.is_some() && self.aqm != Aqm::Step {
            wrong(
                "mark",
                "a mark without `aqm = \"step\"`",
                "both, or neither",
            );
        }
        if self.ecn && self.aqm == Aqm::TailDrop {
            let expected = "an `aqm` that marks, such as \"red\", beside it";
            wrong("ecn", "true without `aqm`", expected);
        }
        if self.jitter > self.delay {
            let expected = format!("at most the `delay` of {}", self.delay);
            wrong("jitter", &self.jitter.to_string(), &expected);
        }
        if self.delay == Delay::ZERO && self.reorder > Probability::ZERO {
            let expected = "a `delay` that some packets do without";
            wrong("reorder", "reordering without `delay`", expected);
        }
        self.check_sizes(table);
    }

    fn check_sizes(&self, table: &Table<'_>) {
        if self.family == Family::Ipv6 && self.mtu < IPV6_MTU {
            let expected = format!("{IPV6_MTU} to 65535 bytes with IPv6");
            table.wrong("mtu", self.mtu.to_string(), expected);
        }
        let packet = u64::from(self.mtu) + 14;
        let (least, why) = match self.aqm {
            // The lower threshold is a twelfth of the queue, and a packet must fit below it.
            Aqm::Red => (12 * packet, "twelve packets, for `aqm = \"red\"`"),
            _ => (packet, "one packet"),
        };
        let queue = self.queue.unwrap_or(DEFAULT_QUEUE);
        if self.rate.is_some() && queue.bytes() < least {
            let expected = format!("at least {least} bytes ({why})");
            table.wrong("queue", queue.to_string(), expected);
        }
    }
}

impl PathModel {
    /// The chain that drops packets in the data direction.
    pub fn forward_loss(&self) -> GilbertElliott {
        self.gilbert_elliott
            .unwrap_or_else(|| GilbertElliott::bernoulli(self.loss.unwrap_or_default()))
    }

    /// The path in one line, for a reader.
    pub fn describe(&self) -> String {
        let mut parts = Vec::new();
        match (&self.gilbert_elliott, self.loss) {
            (Some(chain), _) => parts.push(format!(
                "bursts of loss (Gilbert–Elliott: to bad {}, to good {}, loss {} and {}; {:.2}% in the long run)",
                chain.to_bad,
                chain.to_good,
                chain.loss_good,
                chain.loss_bad,
                chain.stationary_loss() * 100.0,
            )),
            (None, Some(loss)) if loss > Probability::ZERO => {
                parts.push(format!("{loss} random loss"));
            }
            _ => parts.push("no loss".to_owned()),
        }
        if self.syn_loss > Probability::ZERO {
            parts.push(format!("{} loss of SYNs", self.syn_loss));
        }
        if self.reverse_loss > Probability::ZERO {
            parts.push(format!("{} loss of acknowledgements", self.reverse_loss));
        }
        if self.drop == Drop::Reported {
            parts.push("drops reported to the sender".to_owned());
        }
        match self.rate {
            Some(rate) => parts.push(format!(
                "{}{rate} bottleneck with a queue of {}{}",
                match &self.trace {
                    Some(trace) => format!("{}, on average ", trace.name.display()),
                    None => String::new(),
                },
                self.queue.unwrap_or(DEFAULT_QUEUE),
                match (self.aqm, self.ecn) {
                    (Aqm::TailDrop, _) => String::new(),
                    (Aqm::Red, false) => " (RED)".to_owned(),
                    (Aqm::Red, true) => " (RED that marks)".to_owned(),
                    (Aqm::Step, _) => {
                        format!(" (marks from {} on)", self.mark.unwrap_or(Delay::ZERO))
                    }
                }
            )),
            None => parts.push("no rate limit".to_owned()),
        }
        if self.delay > Delay::ZERO {
            let jitter = match self.jitter {
                Delay::ZERO => String::new(),
                jitter => format!(" ± {jitter}"),
            };
            parts.push(format!("{}{jitter} delay each way", self.delay));
        }
        if self.ack_delay > Delay::ZERO {
            parts.push(format!("ACKs delayed by up to {}", self.ack_delay));
        }
        if self.reorder > Probability::ZERO {
            parts.push(format!("{} reordered", self.reorder));
        }
        parts.push(format!("MTU {}", self.mtu));
        parts.push(format!(
            "offload {}",
            if self.offload { "on" } else { "off" }
        ));
        parts.push(self.family.to_string());
        parts.push(format!("seed {}", self.seed));
        parts.join(", ")
    }
}

/// The sender's knowledge of a packet that the loss program drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Drop {
    /// None, as in a network: the ACK is missing.
    #[default]
    Silent,
    /// The error of a full local queue, at once.
    Reported,
}

/// Active queue management: what a bottleneck does before its queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aqm {
    /// None: packets that do not fit are dropped.
    #[default]
    TailDrop,
    /// Random early detection (Floyd and Jacobson 1993), tc-red(8).
    Red,
    /// A packet with a queueing delay above `mark` is marked, if ECN allows. Others queue as with
    /// tail drop (RFC 8257, section 3.1).
    Step,
}

impl Aqm {
    fn is_tail_drop(&self) -> bool {
        *self == Self::TailDrop
    }
}

/// The version of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IP version 4.
    #[default]
    Ipv4,
    /// IP version 6.
    Ipv6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
