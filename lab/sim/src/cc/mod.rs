//! Rate controllers decide how fast a flow sends.
//!
//! Each has its own file. A controller is a value per flow that implements [`Controller`]. The
//! simulator calls it on events of the flow, and obeys the [`Command`] it leaves. To add one, write
//! a file here and a line in the list of `registry.rs`. Scenario files and `--cc` look names up in
//! that list.

pub mod cubic;
pub mod dcqcn;
pub mod dctcp;
pub mod fixed;
pub mod hpcc;
pub mod learned;
mod parameter;
pub mod proportional;
mod registry;
mod restart;
pub(crate) mod rules;
pub mod swift;
pub mod tcp;
#[cfg(test)]
mod testing;
pub mod thalweg_rl;
pub mod timely;

pub use parameter::ParameterError;
pub use registry::{AnyController, Kind, LEARNED, Spec, SpecError, THALWEG_RL};

use crate::Time;

/// A flow's properties that its controller knows before the first packet.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Rate of the sender's own link, bits per second.
    pub line_rate_bps: f64,
    /// Lowest rate that a controller may ask for, bits per second.
    pub min_rate_bps: f64,
    /// Whole data packet on the wire, bytes.
    pub packet_bytes: u32,
    /// Round-trip time of a data packet and its ACK through empty queues.
    pub base_rtt: Time,
    /// Links on the path from sender to receiver.
    pub hops: u8,
    /// Number of flows that share the narrowest link in the scenario. Some published parameters
    /// depend on it (HPCC's additive increase).
    pub expected_flows: u32,
    /// Seed of this flow's random numbers, if it needs any.
    pub seed: u64,
}

impl Setup {
    /// The nearest rate that a flow may have, bits per second; NaN becomes the lowest.
    pub fn limit(&self, rate_bps: f64) -> f64 {
        rate_bps.max(self.min_rate_bps).min(self.line_rate_bps)
    }
}

/// A controller's request to the sender. The smaller of both limits holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Command {
    /// Rate at which packets leave, bits per second.
    pub rate_bps: f64,
    /// Bytes that may be in flight; infinite where the controller has no window. Less than one
    /// packet means one packet, paced by `rate_bps`. Without [`Needs::acks`] bytes in flight are
    /// not counted, and there is no window.
    pub window_bytes: f64,
}

impl Command {
    /// The line rate without a window: what a network card would be told where TCP's own state holds.
    pub const fn of_line(setup: &Setup) -> Self {
        Self {
            rate_bps: setup.line_rate_bps,
            window_bytes: f64::INFINITY,
        }
    }
}

/// One link's telemetry, stamped on a data packet as it leaves a queue (in-band network telemetry,
/// INT).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Hop {
    /// Bytes in the queue behind the packet.
    pub queue_bytes: u64,
    /// Bytes that the link has sent since the simulation began, including this packet.
    pub sent_bytes: u64,
    /// Time of the stamp.
    pub at: Time,
    /// Rate of the link, bits per second.
    pub rate_bps: f64,
}

/// Outcome of a round-trip probe: the moment at which a flow may decide. A flow has at most one
/// probe in flight.
#[derive(Debug, Clone, Copy)]
pub struct Response<'a> {
    /// Round-trip time of the probe. For a lost probe, the time from its departure until the loss
    /// was known.
    pub rtt: Time,
    /// When the probe left. Decisions made since then can thus be told apart.
    pub sent_at: Time,
    /// Bytes acknowledged since the last probe response. A response carries this field and the next
    /// two. A lost probe acknowledges nothing and reports only itself as lost. The next response
    /// then covers everything since the last one.
    pub acked_bytes: u64,
    /// Bytes of `acked_bytes` in packets with a congestion mark.
    pub marked_bytes: u64,
    /// Bytes lost since the last probe response.
    pub lost_bytes: u64,
    /// Telemetry of each link on the path, the sender's own link first. Empty without
    /// [`Needs::telemetry`], and for a lost probe.
    pub hops: &'a [Hop],
}

/// An ACK of one data packet or of several.
#[derive(Debug, Clone, Copy)]
pub struct Ack<'a> {
    /// Round-trip time of the acknowledged packet.
    pub rtt: Time,
    /// Newly acknowledged bytes.
    pub acked_bytes: u64,
    /// Whether the packet carried a congestion mark.
    pub marked: bool,
    /// Bytes that the flow had sent when the acknowledged packet left, including that packet and
    /// retransmissions.
    pub ack_bytes: u64,
    /// Bytes that the flow has sent by now, including retransmissions.
    pub sent_bytes: u64,
    /// As [`Response::hops`].
    pub hops: &'a [Hop],
}

/// How a loss was detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The receiver reported a gap.
    Gap,
    /// No ACK came for a retransmission time-out.
    Timeout,
}

/// Events that a controller wants. The simulator computes no others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// Round-trip probes: [`Controller::on_response`] and [`Controller::on_probe_lost`].
    pub probes: bool,
    /// Every ACK: [`Controller::on_ack`].
    pub acks: bool,
    /// Telemetry with each probe response and ACK.
    pub telemetry: bool,
    /// Congestion notification packets (CNPs) of the receiver, at most one in this time:
    /// [`Controller::on_notification`].
    pub notifications: Option<Time>,
    /// [`Controller::on_sent`].
    pub sent: bool,
    /// [`Controller::on_tcp`] instead of ACKs and losses: the controller runs on Linux's TCP only.
    pub tcp: bool,
    /// [`Controller::on_loss`].
    pub losses: bool,
    /// [`Response::lost_bytes`]; zero otherwise.
    pub lost_bytes: bool,
}

impl Needs {
    /// Round-trip probes with what they count, and nothing else.
    pub const PROBES: Self = Self {
        lost_bytes: true,
        ..Self::ROUND_TRIPS
    };

    /// Round-trip probes for a controller that looks at their times alone. This makes overload much
    /// cheaper: nothing is kept of a drop.
    pub const ROUND_TRIPS: Self = Self {
        probes: true,
        acks: false,
        telemetry: false,
        notifications: None,
        sent: false,
        tcp: false,
        losses: false,
        lost_bytes: false,
    };

    /// What Linux's TCP tells.
    pub const TCP: Self = Self {
        probes: false,
        acks: true,
        tcp: true,
        ..Self::ROUND_TRIPS
    };

    /// What either wants, notifications as often as the one that wants more.
    pub(crate) fn and(self, other: Self) -> Self {
        let both = self.notifications.into_iter().chain(other.notifications);
        Self {
            probes: self.probes || other.probes,
            acks: self.acks || other.acks,
            telemetry: self.telemetry || other.telemetry,
            notifications: both.min(),
            sent: self.sent || other.sent,
            tcp: self.tcp || other.tcp,
            losses: self.losses || other.losses,
            lost_bytes: self.lost_bytes || other.lost_bytes,
        }
    }
}

/// Number of timers of a controller, numbered from 0.
pub const TIMERS: usize = 3;

/// The part of a flow that a controller may change when it is called.
#[derive(Debug)]
pub struct Context<'a> {
    /// The time now.
    pub now: Time,
    /// The flow's command; changed in place. It takes effect after the scenario's reaction time, if
    /// there is one.
    pub command: &'a mut Command,
    /// When each timer expires ([`Time::MAX`]: never); changed in place, without delay. An expired
    /// timer is [`Time::MAX`] when [`Controller::on_timer`] is called.
    pub timers: &'a mut [Time; TIMERS],
}

/// Decides how fast one flow sends.
pub trait Controller: Send {
    /// Events that the controller wants. Asked once. Where controllers differ, each gets what any
    /// of them wants.
    fn required_signals(&self) -> Needs;

    /// The flow starts, at the time of its first packet. Sets the first command and timers.
    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>);

    /// A probe response came back.
    fn on_response(&mut self, response: &Response<'_>, context: &mut Context<'_>) {
        let _ = (response, context);
    }

    /// A gap report or a time-out has shown that a probe was lost. [`Controller::on_loss`] hears of
    /// the same loss, and of those of other packets.
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

    /// A timer expired.
    fn on_timer(&mut self, timer: usize, context: &mut Context<'_>) {
        let _ = (timer, context);
    }

    /// Linux's TCP tells of an event; the controller changes the socket in place. With
    /// [`Needs::tcp`] only.
    fn on_tcp(&mut self, event: &tcp::Event, socket: &mut tcp::Socket) {
        let _ = (event, socket);
    }

    /// Bytes have left.
    fn on_sent(&mut self, bytes: u32, context: &mut Context<'_>) {
        let _ = (bytes, context);
    }
}
