//! HPCC: windows from the telemetry of every link on the path.
//!
//! Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019, §3.2 and §3.3, algorithm 1.
//! All arithmetic is in floating point. Links stamp the bytes they have sent at dequeue.

use serde::{Deserialize, Serialize};

use super::parameter::check_within;
use super::{Ack, Command, Context, Controller, Hop, Needs, ParameterError, Setup};
use crate::Time;

/// Parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// η, the target utilisation (§3.3: 0.95).
    pub eta: f64,
    /// Additive increases in a row before a multiplicative one (§3.3: 5).
    pub max_stage: u32,
    /// N, the number of flows in the additive increase W_AI = W_init (1−η)/N (§3.3). 0: the flows
    /// that share the narrowest link in the scenario.
    pub flows: u32,
    /// Whether the sender's own link counts as one on the path. In the paper only switches stamp
    /// packets.
    pub own_link: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            eta: 0.95,
            max_stage: 5,
            flows: 0,
            own_link: false,
        }
    }
}

impl Parameters {
    /// Checks that every parameter is in range.
    pub fn validate(&self) -> Result<(), ParameterError> {
        check_within("eta", self.eta, 0.01..=1.0)?;
        check_within("max_stage", self.max_stage.into(), 0.0..=1e3)
    }
}

/// HPCC's sender.
#[derive(Debug, Clone)]
pub struct Hpcc {
    parameters: Parameters,
    base_rtt_secs: f64,
    min_rate_bps: f64,
    line_rate_bps: f64,
    packet_bytes: f64,
    /// W_init, the base window at the line rate; also the largest.
    init_bytes: f64,
    /// The base window at the lowest rate.
    min_bytes: f64,
    /// W_AI.
    additive_bytes: f64,
    /// W^c, the window from which adjustments start until a round trip has shown their effect.
    reference_bytes: f64,
    /// U.
    utilisation: f64,
    stage: u32,
    /// An ACK beyond this ends the round trip.
    round_ends_bytes: u64,
    /// L, the last telemetry; empty before the first.
    last: Vec<Hop>,
}

impl Hpcc {
    /// A controller for one flow.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            parameters: parameters.clone(),
            base_rtt_secs: 0.0,
            min_rate_bps: 0.0,
            line_rate_bps: 0.0,
            packet_bytes: 1.0,
            init_bytes: 0.0,
            min_bytes: 0.0,
            additive_bytes: 0.0,
            reference_bytes: 0.0,
            utilisation: 0.0,
            stage: 0,
            round_ends_bytes: 0,
            last: Vec::new(),
        }
    }

    /// Algorithm 1, `MeasureInflight`. Each link has u = rate of sending / B + min(q)/(B·T). The
    /// largest u goes into U's moving average with the weight τ/T.
    fn measure_inflight(&mut self, hops: &[Hop]) {
        let mut utilisation: f64 = 0.0;
        let mut elapsed_secs = 0.0;
        for (hop, last) in hops.iter().zip(&self.last) {
            let secs = hop.at.saturating_sub(last.at).secs();
            if secs <= 0.0 {
                // The same packet's telemetry, or that of an overtaken packet: it gives no rate.
                continue;
            }
            let sent_bytes = hop.sent_bytes.saturating_sub(last.sent_bytes) as f64;
            let queue_bytes = hop.queue_bytes.min(last.queue_bytes) as f64;
            let link_bytes_per_sec = hop.rate_bps / 8.0;
            let link = sent_bytes / secs / link_bytes_per_sec
                + queue_bytes / (link_bytes_per_sec * self.base_rtt_secs);
            if link > utilisation {
                utilisation = link;
                elapsed_secs = secs;
            }
        }
        let weight = f64::min(elapsed_secs / self.base_rtt_secs, 1.0);
        self.utilisation = (1.0 - weight) * self.utilisation + weight * utilisation;
    }

    /// A window as the sender keeps it. The authors' sender sends while less than W is in flight, so
    /// a packet that W has room for in part may go.
    fn begun_packets(&self, window_bytes: f64) -> f64 {
        (window_bytes / self.packet_bytes).ceil() * self.packet_bytes
    }

    /// Algorithm 1, `ComputeWind`.
    fn window_bytes(&mut self, commit: bool) -> f64 {
        let eta = self.parameters.eta;
        let multiplicative = self.utilisation >= eta || self.stage >= self.parameters.max_stage;
        let window = if multiplicative {
            // Infinite where nothing was sent; limited below.
            self.reference_bytes / (self.utilisation / eta) + self.additive_bytes
        } else {
            self.reference_bytes + self.additive_bytes
        };
        // §3.2: at most the window that fills the line.
        let window = window.max(self.min_bytes).min(self.init_bytes);
        if commit {
            self.stage = if multiplicative { 0 } else { self.stage + 1 };
            self.reference_bytes = window;
        }
        window
    }
}

impl Controller for Hpcc {
    fn required_signals(&self) -> Needs {
        Needs {
            acks: true,
            telemetry: true,
            ..Needs::default()
        }
    }

    /// §3.2: a flow starts with the window that fills its own link, W_init = B·T.
    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        let flows = match self.parameters.flows {
            0 => setup.expected_flows.max(1),
            flows => flows,
        };
        self.base_rtt_secs = setup.base_rtt.max(Time::from_ps(1)).secs();
        self.min_rate_bps = setup.min_rate_bps;
        self.line_rate_bps = setup.line_rate_bps;
        self.packet_bytes = f64::from(setup.packet_bytes);
        self.init_bytes = self.base_rtt_secs * setup.line_rate_bps / 8.0;
        self.min_bytes = self.base_rtt_secs * setup.min_rate_bps / 8.0;
        self.additive_bytes = self.init_bytes * (1.0 - self.parameters.eta) / f64::from(flows);
        self.reference_bytes = self.init_bytes;
        *context.command = Command {
            rate_bps: setup.line_rate_bps,
            window_bytes: self.begun_packets(self.init_bytes),
        };
    }

    /// Algorithm 1, `NewAck`: every ACK sets window and rate. The reference changes only when
    /// everything in flight at the last commit has been acknowledged.
    fn on_ack(&mut self, ack: &Ack<'_>, context: &mut Context<'_>) {
        let own_links = usize::from(!self.parameters.own_link && ack.hops.len() > 1);
        let hops = &ack.hops[own_links..];
        if self.last.len() != hops.len() {
            // The first telemetry, or another path: there is nothing to compare with.
            self.last = hops.to_vec();
            self.round_ends_bytes = ack.sent_bytes;
            return;
        }
        self.measure_inflight(hops);
        let commit = ack.ack_bytes > self.round_ends_bytes;
        let window_bytes = self.window_bytes(commit);
        if commit {
            self.round_ends_bytes = ack.sent_bytes;
        }
        self.last.copy_from_slice(hops);
        *context.command = Command {
            // §3.2: R = W/T. The limits hold exactly.
            rate_bps: (window_bytes * 8.0 / self.base_rtt_secs)
                .max(self.min_rate_bps)
                .min(self.line_rate_bps),
            window_bytes: self.begun_packets(window_bytes),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Flow, assert_near, example_setup};
    use super::*;

    /// A link of 100 Gbit/s: 12,500 bytes a microsecond.
    fn hop(at_us: u64, sent_bytes: u64, queue_bytes: u64) -> Hop {
        Hop {
            queue_bytes,
            sent_bytes,
            at: Time::from_us(at_us),
            rate_bps: 100e9,
        }
    }

    fn ack(flow: &mut Flow<Hpcc>, ack_bytes: u64, sent_bytes: u64, hops: &[Hop]) {
        flow.deliver_ack(Ack {
            rtt: Time::from_us(12),
            acked_bytes: 1000,
            marked: false,
            ack_bytes,
            sent_bytes,
            hops,
        });
    }

    /// W, which is not rounded in the rate.
    fn window_bytes(flow: &Flow<Hpcc>) -> f64 {
        flow.command.rate_bps * 12e-6 / 8.0
    }

    /// W_init = 100 Gbit/s · 12 µs = 150,000 bytes; W_AI = 150,000 · 0.05/4 = 1875 bytes.
    fn start(max_stage: u32) -> Flow<Hpcc> {
        let parameters = Parameters {
            max_stage,
            ..Parameters::default()
        };
        Flow::start_at_zero(Hpcc::new(&parameters), &example_setup())
    }

    #[test]
    fn multiplicative_decrease_from_one_reference_per_round_trip() {
        let mut flow = start(5);
        assert_near(window_bytes(&flow), 150_000.0);
        assert_near(flow.rate_gbps(), 100.0);
        ack(&mut flow, 1_000, 150_000, &[hop(12, 0, 0), hop(12, 0, 0)]);
        assert_near(window_bytes(&flow), 150_000.0);
        // 6 µs at the full 12,500 B/µs, min(75,000, 150,000) queued: u = 1 + 75/150 = 1.5. Weight
        // 6/12: U = 0.75 < η, stage 0 < 5: additive, but at most W_init.
        let first = [hop(18, 0, 0), hop(18, 75_000, 150_000)];
        // Not yet acknowledged beyond 150,000: no commit.
        let start = [hop(12, 0, 0), hop(12, 0, 75_000)];
        ack(&mut flow, 2_000, 150_000, &start);
        ack(&mut flow, 3_000, 150_000, &first);
        assert_near(window_bytes(&flow), 150_000.0);
        // Another 6 µs, min(150,000, 150,000): u = 2; U = 0.375 + 1 = 1.375 ≥ η: W =
        // 150,000/(1.375/0.95) + 1875. The reference is unchanged.
        ack(
            &mut flow,
            4_000,
            150_000,
            &[hop(24, 0, 0), hop(24, 150_000, 150_000)],
        );
        let window = 150_000.0 * 0.95 / 1.375 + 1_875.0;
        assert_near(window_bytes(&flow), window);
        assert_near(flow.rate_gbps(), window * 8.0 / 12e-6 / 1e9);
        // 12 µs: weight 1, u = 1 + 1 = 2, U = 2. From the same reference, and committed.
        ack(
            &mut flow,
            150_001,
            260_000,
            &[hop(36, 0, 0), hop(36, 300_000, 150_000)],
        );
        let window = 150_000.0 * 0.95 / 2.0 + 1_875.0;
        assert_near(window_bytes(&flow), window);
        // The same again, from the new reference. Not committed, as the ACK is not beyond 260,000.
        for at in [48, 60] {
            let sent = 12_500 * (at - 12);
            ack(
                &mut flow,
                260_000,
                300_000,
                &[hop(at, 0, 0), hop(at, sent, 150_000)],
            );
            assert_near(window_bytes(&flow), window * 0.95 / 2.0 + 1_875.0);
        }
    }

    #[test]
    fn additive_stages_then_a_multiplicative_increase() {
        let mut flow = start(2);
        // First bring the reference down: u = 1 + 150/150 = 2, 73,125 bytes.
        ack(&mut flow, 1_000, 1_000, &[hop(0, 0, 150_000)]);
        ack(&mut flow, 2_000, 2_000, &[hop(12, 150_000, 150_000)]);
        assert_near(window_bytes(&flow), 73_125.0);
        // Then the link carries 60,000 of 150,000 bytes: u = 0.4. Two additive stages.
        ack(&mut flow, 3_000, 3_000, &[hop(24, 210_000, 0)]);
        assert_near(window_bytes(&flow), 75_000.0);
        ack(&mut flow, 4_000, 4_000, &[hop(36, 270_000, 0)]);
        assert_near(window_bytes(&flow), 76_875.0);
        // stage = 2 = maxStage: 76,875/(0.4/0.95) + 1875 is more than W_init.
        ack(&mut flow, 5_000, 5_000, &[hop(48, 330_000, 0)]);
        assert_near(window_bytes(&flow), 150_000.0);
        // The full rate without a queue, then with a queue at both ends of the interval.
        ack(&mut flow, 6_000, 6_000, &[hop(60, 480_000, 150_000)]);
        ack(&mut flow, 7_000, 7_000, &[hop(72, 630_000, 150_000)]);
        // U = 1, then 2: 150,000 · 0.95/1 + 1875 = 144,375, then
        // 144,375 · 0.95/2 + 1875.
        assert_near(window_bytes(&flow), 144_375.0 * 0.475 + 1_875.0);
    }

    #[test]
    fn deployed_without_stages_is_multiplicative_both_ways() {
        let mut flow = start(0);
        ack(&mut flow, 1_000, 1_000, &[hop(0, 0, 150_000)]);
        ack(&mut flow, 2_000, 2_000, &[hop(12, 150_000, 150_000)]);
        // u = 0.9: 73,125/(0.9/0.95) + 1875.
        ack(&mut flow, 3_000, 3_000, &[hop(24, 285_000, 0)]);
        assert_near(window_bytes(&flow), 73_125.0 * 0.95 / 0.9 + 1_875.0);
    }

    #[test]
    fn the_busiest_link_counts_and_the_own_link_only_on_request() {
        // Own link: u = 1.6, switches: 0.5 and 1; W_AI = 7500. 150,000 · 0.95 + 7500 = 150,000;
        // 150,000 · 0.95/1.6 + 7500 = 96,562.5.
        for (own_link, expected) in [(false, 150_000.0), (true, 96_562.5)] {
            let parameters = Parameters {
                own_link,
                max_stage: 0,
                flows: 1,
                ..Parameters::default()
            };
            let mut flow = Flow::start_at_zero(Hpcc::new(&parameters), &example_setup());
            let before = [hop(0, 0, 90_000), hop(0, 0, 0), hop(0, 0, 0)];
            let after = [
                hop(12, 150_000, 90_000),
                hop(12, 75_000, 0),
                hop(12, 150_000, 0),
            ];
            ack(&mut flow, 1_000, 1_000, &before);
            ack(&mut flow, 2_000, 2_000, &after);
            assert_near(window_bytes(&flow), expected);
        }
    }

    #[test]
    fn a_packet_goes_where_a_part_of_it_fits() {
        let mut flow = start(5);
        assert_near(flow.command.window_bytes, 150_000.0);
        // u = 1 + 150/150 = 2: W = 150,000 · 0.95/2 + 1875 = 73,125 bytes, 73 packets and a part.
        ack(&mut flow, 1_000, 1_000, &[hop(0, 0, 150_000)]);
        ack(&mut flow, 2_000, 2_000, &[hop(12, 150_000, 150_000)]);
        assert_near(flow.command.window_bytes, 74_000.0);
        // One additive step: 75,000 bytes, no part.
        ack(&mut flow, 3_000, 3_000, &[hop(24, 210_000, 0)]);
        assert_near(flow.command.window_bytes, 75_000.0);
    }

    #[test]
    fn not_below_the_lowest_rate() {
        let mut flow = start(5);
        let parameters = Parameters {
            eta: 1.0,
            ..Parameters::default()
        };
        // η = 1 leaves no additive increase to keep the window up.
        flow.controller = Hpcc::new(&parameters);
        flow.call_controller(|controller, context| {
            controller.start_flow(&example_setup(), context)
        });
        ack(&mut flow, 1_000, 1_000, &[hop(0, 0, 100_000_000)]);
        for round in 1..20 {
            let hops = [hop(12 * round, 150_000 * round, 100_000_000)];
            ack(&mut flow, 1_000 + round, 1_000 + round, &hops);
        }
        // 1 Mbit/s · 12 µs = 1.5 bytes.
        assert_near(flow.command.rate_bps, 1e6);
        assert_near(flow.command.window_bytes, 1_000.0);
    }
}
