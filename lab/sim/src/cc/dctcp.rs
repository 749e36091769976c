//! DCTCP: TCP that backs off by the share of marked bytes.
//!
//! RFC 8257, §3.3 and §3.5; Alizadeh et al., "Data Center TCP", SIGCOMM 2010, §3.1. Between
//! marks it is Reno: RFC 5681, §3.1, with byte counting.

use serde::{Deserialize, Serialize};

use super::parameter::check_within;
use super::{Ack, Command, Context, Controller, Loss, Needs, ParameterError, Setup};

/// Parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Gain of α (RFC 8257: 1/16).
    pub g: f64,
    /// First α (RFC 8257, §3.3: 1).
    pub initial_alpha: f64,
    /// First window, packets (RFC 6928: 10).
    pub initial_cwnd: f64,
    /// Smallest window after marks and gaps, packets (Linux, `tcp_dctcp.c`: 2).
    pub min_cwnd: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            g: 1.0 / 16.0,
            initial_alpha: 1.0,
            initial_cwnd: 10.0,
            min_cwnd: 2.0,
        }
    }
}

impl Parameters {
    /// Checks that every parameter is in range.
    pub fn validate(&self) -> Result<(), ParameterError> {
        check_within("g", self.g, 1e-6..=1.0)?;
        check_within("initial_alpha", self.initial_alpha, 0.0..=1.0)?;
        check_within("initial_cwnd", self.initial_cwnd, 1.0..=1e6)?;
        check_within("min_cwnd", self.min_cwnd, 1.0..=1e6)
    }
}

/// DCTCP's sender.
#[derive(Debug, Clone)]
pub struct Dctcp {
    g: f64,
    initial_cwnd: f64,
    min_cwnd: f64,
    packet_bytes: f64,
    cwnd_bytes: f64,
    ssthresh_bytes: f64,
    alpha: f64,
    acked_bytes: u64,
    marked_bytes: u64,
    /// An ACK beyond this ends the observation window.
    window_ends_bytes: u64,
    /// Bytes sent when the window was last reduced. Until they are acknowledged the window is
    /// neither reduced again nor increased.
    reduced_until_bytes: Option<u64>,
    /// Bytes sent by the last ACK.
    sent_bytes: u64,
}

impl Dctcp {
    /// A controller for one flow.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            g: parameters.g,
            initial_cwnd: parameters.initial_cwnd,
            min_cwnd: parameters.min_cwnd,
            packet_bytes: 1.0,
            cwnd_bytes: 0.0,
            ssthresh_bytes: f64::INFINITY,
            alpha: parameters.initial_alpha,
            acked_bytes: 0,
            marked_bytes: 0,
            window_ends_bytes: 0,
            reduced_until_bytes: None,
            sent_bytes: 0,
        }
    }

    fn reduce_window(&mut self, factor: f64) {
        let least = self.min_cwnd * self.packet_bytes;
        self.cwnd_bytes = (self.cwnd_bytes * factor).max(least);
        self.ssthresh_bytes = self.cwnd_bytes;
        self.reduced_until_bytes = Some(self.sent_bytes);
    }

    /// RFC 5681, §3.1, equations 2 and 3; RFC 3465, §2.2, with L = 2 packets in slow start.
    fn grow_window(&mut self, acked_bytes: f64, flight_bytes: f64) {
        if self.cwnd_bytes < self.ssthresh_bytes {
            // RFC 7661: an unused window says nothing about the network. In slow start half of it
            // may lag behind.
            if 2.0 * flight_bytes >= self.cwnd_bytes {
                self.cwnd_bytes += acked_bytes.min(2.0 * self.packet_bytes);
            }
        } else if flight_bytes + self.packet_bytes > self.cwnd_bytes {
            self.cwnd_bytes += self.packet_bytes * (acked_bytes / self.cwnd_bytes).min(1.0);
        }
    }

    fn command_window(&self, context: &mut Context<'_>) {
        context.command.window_bytes = self.cwnd_bytes;
    }
}

impl Controller for Dctcp {
    fn required_signals(&self) -> Needs {
        Needs {
            acks: true,
            losses: true,
            ..Needs::default()
        }
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.packet_bytes = f64::from(setup.packet_bytes);
        self.cwnd_bytes = self.initial_cwnd * self.packet_bytes;
        *context.command = Command {
            rate_bps: setup.line_rate_bps,
            window_bytes: self.cwnd_bytes,
        };
    }

    fn on_ack(&mut self, ack: &Ack<'_>, context: &mut Context<'_>) {
        self.sent_bytes = ack.sent_bytes;
        self.acked_bytes += ack.acked_bytes;
        if ack.marked {
            self.marked_bytes += ack.acked_bytes;
        }
        // RFC 8257, §3.3: at the end of an observation window M is the share of
        // marked bytes, and α = α(1−g) + gM.
        if ack.ack_bytes > self.window_ends_bytes {
            if self.acked_bytes > 0 {
                let marked = self.marked_bytes as f64 / self.acked_bytes as f64;
                self.alpha = self.alpha * (1.0 - self.g) + self.g * marked;
            }
            self.acked_bytes = 0;
            self.marked_bytes = 0;
            self.window_ends_bytes = ack.sent_bytes;
        }
        if (self.reduced_until_bytes).is_some_and(|until| ack.ack_bytes > until) {
            self.reduced_until_bytes = None;
        }
        if self.reduced_until_bytes.is_none() {
            if ack.marked {
                // §3.3: cwnd(1 − α/2), once per window of data.
                self.reduce_window(1.0 - self.alpha / 2.0);
            } else {
                let under_way = ack.sent_bytes.saturating_sub(ack.ack_bytes);
                let acked_bytes = ack.acked_bytes as f64;
                self.grow_window(acked_bytes, under_way as f64 + acked_bytes);
            }
        }
        self.command_window(context);
    }

    /// RFC 8257, §3.5: DCTCP reacts to a loss as any TCP does. RFC 5681, §3.2 (half) and §3.1,
    /// equation 4 (one packet after a time-out).
    fn on_loss(&mut self, loss: Loss, context: &mut Context<'_>) {
        match loss {
            Loss::Gap if self.reduced_until_bytes.is_some() => return,
            Loss::Gap => self.reduce_window(0.5),
            Loss::Timeout => {
                let least = 2.0 * self.packet_bytes;
                self.ssthresh_bytes = (self.cwnd_bytes / 2.0).max(least);
                self.cwnd_bytes = self.packet_bytes;
                self.reduced_until_bytes = None;
            }
        }
        self.command_window(context);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Flow, assert_near, example_setup};
    use super::*;
    use crate::Time;

    fn start(initial_cwnd: f64) -> Flow<Dctcp> {
        let parameters = Parameters {
            initial_cwnd,
            ..Parameters::default()
        };
        Flow::start_at_zero(Dctcp::new(&parameters), &example_setup())
    }

    /// Packets of 1000 bytes: `acked` packets are acknowledged, up to packet `ack` of `sent`.
    fn ack(flow: &mut Flow<Dctcp>, acked: u64, ack: u64, sent: u64, marked: bool) {
        flow.deliver_ack(Ack {
            rtt: Time::from_us(12),
            acked_bytes: acked * 1000,
            marked,
            ack_bytes: ack * 1000,
            sent_bytes: sent * 1000,
            hops: &[],
        });
    }

    fn cwnd(flow: &Flow<Dctcp>) -> f64 {
        flow.command.window_bytes / 1000.0
    }

    #[test]
    fn alpha_follows_the_share_of_marked_bytes_of_each_window() {
        let mut flow = start(10.0);
        // The first ACK ends an empty window and begins that of packets 2 to 10.
        ack(&mut flow, 1, 1, 10, false);
        // α = 1 · 15/16 + 0.
        assert_near(flow.controller.alpha, 15.0 / 16.0);
        // 9 packets without marks, then one that ends the window: still 0 of 10 marked.
        for packet in 2..=10 {
            ack(&mut flow, 1, packet, 10 + packet, false);
        }
        ack(&mut flow, 1, 11, 20, false);
        let alpha = (15.0 / 16.0) * (15.0 / 16.0);
        assert_near(flow.controller.alpha, alpha);
        // 3 of 10 packets (12 to 21) are marked: α = α · 15/16 + 0.3/16.
        for packet in 12..=21 {
            ack(&mut flow, 1, packet, 30, packet < 15);
        }
        assert_near(flow.controller.alpha, alpha * 15.0 / 16.0 + 0.3 / 16.0);
    }

    #[test]
    fn a_window_is_reduced_once_by_half_of_alpha() {
        let mut flow = start(100.0);
        ack(&mut flow, 1, 1, 100, false);
        assert_near(cwnd(&flow), 101.0);
        // α = 15/16 (first window, no mark): 101 (1 − 15/32).
        ack(&mut flow, 1, 2, 100, true);
        let reduced = 101.0 * (1.0 - 15.0 / 32.0);
        assert_near(cwnd(&flow), reduced);
        // Up to packet 100 neither a second reduction nor an increase.
        ack(&mut flow, 49, 51, 102, true);
        ack(&mut flow, 49, 100, 150, false);
        assert_near(cwnd(&flow), reduced);
        // Packet 101 ends the window and belongs to it: 1 + 49 + 1 of 100 marked. Another mark
        // reduces again.
        ack(&mut flow, 1, 101, 150, true);
        let alpha = (15.0 / 16.0) * (15.0 / 16.0) + (51.0 / 100.0) / 16.0;
        assert_near(flow.controller.alpha, alpha);
        assert_near(cwnd(&flow), reduced * (1.0 - alpha / 2.0));
    }

    #[test]
    fn slow_start_then_one_packet_a_round_trip() {
        let mut flow = start(10.0);
        // Two packets an ACK: + 2; more than two count as two.
        ack(&mut flow, 2, 2, 12, false);
        assert_near(cwnd(&flow), 12.0);
        ack(&mut flow, 4, 6, 18, false);
        assert_near(cwnd(&flow), 14.0);
        // A mark ends slow start; from there + acked/cwnd packets.
        ack(&mut flow, 1, 7, 20, true);
        let reduced = cwnd(&flow);
        assert!(reduced < 14.0);
        ack(&mut flow, 1, 21, 40, false);
        assert_near(cwnd(&flow), reduced + 1.0 / reduced);
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut flow = start(100.0);
        // 1 + 48 packets of 100 were in flight, then 50.
        ack(&mut flow, 1, 1, 49, false);
        assert_near(cwnd(&flow), 100.0);
        ack(&mut flow, 1, 2, 51, false);
        assert_near(cwnd(&flow), 101.0);
    }

    #[test]
    fn losses() {
        let mut flow = start(100.0);
        ack(&mut flow, 1, 1, 100, false);
        let lose = |flow: &mut Flow<Dctcp>, loss| {
            flow.call_controller(|controller, context| controller.on_loss(loss, context));
        };
        // Half, and once for all packets in flight.
        lose(&mut flow, Loss::Gap);
        lose(&mut flow, Loss::Gap);
        assert_near(cwnd(&flow), 50.5);
        // A time-out: one packet; slow start up to half, 25.25 packets.
        lose(&mut flow, Loss::Timeout);
        assert_near(cwnd(&flow), 1.0);
        let (mut last, mut packet) = (1.0, 100);
        while cwnd(&flow) < 25.25 {
            last = cwnd(&flow);
            packet += 1;
            ack(&mut flow, 1, packet, packet + 30, false);
            assert_near(cwnd(&flow), last + 1.0);
        }
        assert!(last < 25.25 && cwnd(&flow) >= 25.25);
        let window = cwnd(&flow);
        ack(&mut flow, 1, packet + 1, packet + 31, false);
        assert_near(cwnd(&flow), window + 1.0 / window);
    }

    #[test]
    fn marks_leave_two_packets() {
        let mut flow = start(10.0);
        for packet in 1..100 {
            ack(&mut flow, 1, packet, packet, true);
        }
        assert_near(cwnd(&flow), 2.0);
    }
}
