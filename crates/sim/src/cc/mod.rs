//! Rate controllers: what decides how fast a flow sends.
//!
//! One file each. A controller is a value per flow that implements [`Controller`]; the
//! simulator calls it when something happens to the flow, and obeys the [`Command`] it leaves.
//! To add one: a file here, and a line in the list of `registry.rs` that scenario files and
//! `--cc` look names up in.

pub mod dcqcn;
pub mod dctcp;
pub mod fixed;
pub mod hpcc;
pub mod learned;
mod parameter;
pub mod proportional;
mod registry;
pub mod swift;
#[cfg(test)]
mod testing;
pub mod timely;

pub use parameter::ParameterError;
pub use registry::{AnyController, Kind, LEARNED, Spec, SpecError};

use crate::Time;

/// What a controller knows about its flow before the first packet.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Rate of the sender's own link, bits per second.
    pub line_rate_bps: f64,
    /// No controller may ask for less, bits per second.
    pub min_rate_bps: f64,
    /// Whole data packet on the wire, bytes.
    pub packet_bytes: u32,
    /// Round-trip time of a data packet and its answer through empty queues.
    pub base_rtt: Time,
    /// Links on the way from sender to receiver.
    pub hops: u8,
    /// Flows that the scenario lets share the narrowest link; for controllers whose published
    /// parameters depend on it (HPCC's additive increase).
    pub expected_flows: u32,
    /// Seed of this flow's randomness, if it needs any.
    pub seed: u64,
}

impl Setup {
    /// The nearest rate that a flow may have, bits per second; what is not a number becomes
    /// the lowest.
    pub fn limit(&self, rate_bps: f64) -> f64 {
        rate_bps.max(self.min_rate_bps).min(self.line_rate_bps)
    }

    /// What a flow has under way at a rate and the base round-trip time, bytes.
    pub fn base_window_bytes(&self, rate_bps: f64) -> f64 {
        rate_bps * self.base_rtt.secs() / 8.0
    }
}

/// What a controller asks of the sender. The smaller of both limits holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Command {
    /// Rate at which packets leave, bits per second.
    pub rate_bps: f64,
    /// Bytes that may be under way; infinite where the controller knows no window. Less than
    /// one packet means one packet, spaced by `rate_bps`. Without [`Needs::acks`] nobody counts
    /// what is under way, and there is no window.
    pub window_bytes: f64,
}

/// One link's telemetry, stamped on a data packet as it leaves a queue (in-band network
/// telemetry, INT).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Hop {
    /// Bytes that wait in the queue behind the packet.
    pub queue_bytes: u64,
    /// Bytes that the link has sent since the simulation began, this packet included.
    pub sent_bytes: u64,
    /// When.
    pub at: Time,
    /// Rate of the link, bits per second.
    pub rate_bps: f64,
}

/// What became of a round-trip probe: the moment at which a flow may decide. At most one probe
/// of a flow is under way.
#[derive(Debug, Clone, Copy)]
pub struct Response<'a> {
    /// Round-trip time that the probe saw; of a lost one, how long after it left its loss was
    /// known.
    pub rtt: Time,
    /// When the probe left, so that decisions since then can be told apart.
    pub sent_at: Time,
    /// What the flow has had acknowledged since the last answer, bytes. This and the next two are
    /// what an answer tells. Where the probe was lost nothing is acknowledged, the probe alone is
    /// lost, and the next answer tells of all since the last one.
    pub acked_bytes: u64,
    /// Of those, in packets that carried a congestion mark.
    pub marked_bytes: u64,
    /// What the flow has lost since the last answer, bytes.
    pub lost_bytes: u64,
    /// Telemetry of each link on the way, sender's own link first; empty unless
    /// [`Needs::telemetry`], and where the probe was lost.
    pub hops: &'a [Hop],
}

/// An acknowledgement of one data packet or of several.
#[derive(Debug, Clone, Copy)]
pub struct Ack<'a> {
    /// Round-trip time of the packet that it answers.
    pub rtt: Time,
    /// Newly acknowledged, bytes.
    pub acked_bytes: u64,
    /// Whether the packet carried a congestion mark.
    pub marked: bool,
    /// Bytes that the flow had sent when the acknowledged packet left, that packet and
    /// repetitions included.
    pub ack_bytes: u64,
    /// Bytes that the flow has sent by now, repetitions included.
    pub sent_bytes: u64,
    /// As [`Response::hops`].
    pub hops: &'a [Hop],
}

/// How a loss was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The receiver reported a gap.
    Gap,
    /// Nothing came for a retransmission time-out.
    Timeout,
}

/// What a controller wants to hear of. What nobody asks for is not computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// Round-trip probes: [`Controller::on_response`] and [`Controller::on_probe_lost`].
    pub probes: bool,
    /// Every acknowledgement: [`Controller::on_ack`].
    pub acks: bool,
    /// Telemetry with each response and acknowledgement.
    pub telemetry: bool,
    /// Congestion notification packets of the receiver, at most one in this time:
    /// [`Controller::on_notification`].
    pub notifications: Option<Time>,
    /// [`Controller::on_sent`].
    pub sent: bool,
}

/// Timers a controller may have, numbered from 0.
pub const TIMERS: usize = 3;

/// A controller's hands: what it may change when it is called.
#[derive(Debug)]
pub struct Context<'a> {
    /// The time now.
    pub now: Time,
    /// What the flow obeys; changed in place. A reaction time, where the scenario has one,
    /// passes before it takes effect.
    pub command: &'a mut Command,
    /// When each timer goes off ([`Time::MAX`]: never); changed in place, and at once. A timer
    /// that has gone off is [`Time::MAX`] when [`Controller::on_timer`] is called.
    pub timers: &'a mut [Time; TIMERS],
}

/// Decides how fast one flow sends.
pub trait Controller: Send {
    /// What it wants to hear of; the same for all flows of a kind, asked once.
    fn needs(&self) -> Needs;

    /// The flow begins, at the time of its first packet. Sets the first command and timers.
    fn start(&mut self, setup: &Setup, context: &mut Context<'_>);

    /// A probe was answered.
    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        let _ = (response, context);
    }

    /// A probe was lost, as a report of a gap or a time-out has told. [`Controller::on_loss`]
    /// hears of the same loss, and of those of other packets.
    fn on_probe_lost(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        let _ = (response, context);
    }

    /// Data was acknowledged.
    fn on_ack(&mut self, ack: &Ack<'_>, context: &mut Context<'_>) {
        let _ = (ack, context);
    }

    /// The receiver saw congestion marks.
    fn on_notification(&mut self, context: &mut Context<'_>) {
        let _ = context;
    }

    /// Data was lost.
    fn on_loss(&mut self, loss: Loss, context: &mut Context<'_>) {
        let _ = (loss, context);
    }

    /// A timer went off.
    fn on_timer(&mut self, timer: usize, context: &mut Context<'_>) {
        let _ = (timer, context);
    }

    /// Bytes have left.
    fn on_sent(&mut self, bytes: u32, context: &mut Context<'_>) {
        let _ = (bytes, context);
    }
}

/// A controller whose kind is known at run time only.
impl<T: Controller + ?Sized> Controller for Box<T> {
    fn needs(&self) -> Needs {
        (**self).needs()
    }

    fn start(&mut self, setup: &Setup, context: &mut Context<'_>) {
        (**self).start(setup, context);
    }

    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        (**self).on_response(response, context);
    }

    fn on_probe_lost(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        (**self).on_probe_lost(response, context);
    }

    fn on_ack(&mut self, ack: &Ack<'_>, context: &mut Context<'_>) {
        (**self).on_ack(ack, context);
    }

    fn on_notification(&mut self, context: &mut Context<'_>) {
        (**self).on_notification(context);
    }

    fn on_loss(&mut self, loss: Loss, context: &mut Context<'_>) {
        (**self).on_loss(loss, context);
    }

    fn on_timer(&mut self, timer: usize, context: &mut Context<'_>) {
        (**self).on_timer(timer, context);
    }

    fn on_sent(&mut self, bytes: u32, context: &mut Context<'_>) {
        (**self).on_sent(bytes, context);
    }
}
