//! Swift: windows that hold the round-trip time at a target.
//!
//! Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter",
//! SIGCOMM 2020, §3.2 to §3.6, algorithm 1. The simulator has no delays inside of hosts, so only
//! the fabric's window exists (§3.3 has both).

use serde::{Deserialize, Serialize};

use super::parameter::{check_below, check_within, time_from_us};
use super::{Ack, Command, Context, Controller, Loss, Needs, ParameterError, Setup};
use crate::Time;

/// Parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Target delay before scaling, microseconds (§3.5). 0: 20, or 8 more than the base RTT where
    /// that is longer.
    pub base_target_us: f64,
    /// ħ, the addition to the target per link on the path, microseconds (§3.5, which gives no
    /// figure).
    pub hop_us: f64,
    /// fs_range, the largest addition by flow scaling, as a multiple of the base target (§3.5); of
    /// 20 µs where the base target follows the base RTT, because queues do not grow with that.
    pub scaling_range: f64,
    /// fs_min_cwnd, packets. At this window and below, flow scaling adds all of its range.
    pub scaling_min_cwnd: f64,
    /// fs_max_cwnd, packets. From this window on, flow scaling adds nothing.
    pub scaling_max_cwnd: f64,
    /// ai, additive increase a round trip, packets.
    pub additive: f64,
    /// β, multiplicative decrease, relative to the share of the delay above the target.
    pub beta: f64,
    /// max_mdf, the largest share of the window that one decrease removes.
    pub max_decrease: f64,
    /// Smallest window, packets (§3.4: 0.001).
    pub min_cwnd: f64,
    /// First window, packets.
    pub initial_cwnd: f64,
    /// RETX_RESET_THRESHOLD: after this many time-outs in a row the window is the smallest (§3.6).
    pub timeouts_to_reset: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            base_target_us: 0.0,
            hop_us: 1.0,
            scaling_range: 5.0,
            scaling_min_cwnd: 0.1,
            scaling_max_cwnd: 100.0,
            additive: 1.0,
            beta: 0.8,
            max_decrease: 0.5,
            min_cwnd: 0.001,
            initial_cwnd: 10.0,
            timeouts_to_reset: 5,
        }
    }
}

/// Least base target that follows the base RTT: the paper's order of magnitude.
const BASE_TARGET: Time = Time::from_us(20);
/// Delay left for queues: as much as 20 µs leave where the base RTT is 12 µs.
const FOR_QUEUES: Time = Time::from_us(8);

impl Parameters {
    /// The base target, and the unit of the scaling range.
    fn base_target(&self, base_rtt: Time) -> (Time, Time) {
        if self.base_target_us == 0.0 {
            (BASE_TARGET.max(base_rtt + FOR_QUEUES), BASE_TARGET)
        } else {
            let given = time_from_us(self.base_target_us);
            (given, given)
        }
    }

    /// Why flows with this base RTT and this many links cannot send at speed, if so: no delay is
    /// below the target before flow scaling.
    pub(super) fn path_warning(&self, base_rtt: Time, hops: u8) -> Option<String> {
        let (base, _) = self.base_target(base_rtt);
        let links = time_from_us(self.hop_us * f64::from(hops));
        let target = base + links;
        (target <= base_rtt).then(|| {
            format!(
                "`base_target_us` is {}; with {hops} links the target is {} µs, and the base RTT is \
                 {} µs: without a queue every delay counts as too long. More than {} is expected, or \
                 0 to follow the base RTT",
                self.base_target_us,
                target.us(),
                base_rtt.us(),
                base_rtt.saturating_sub(links).us(),
            )
        })
    }

    /// Checks that every parameter is in range.
    pub fn validate(&self) -> Result<(), ParameterError> {
        check_within("base_target_us", self.base_target_us, 0.0..=1e6)?;
        check_within("hop_us", self.hop_us, 0.0..=1e6)?;
        check_within("scaling_range", self.scaling_range, 0.0..=1e3)?;
        check_within("scaling_min_cwnd", self.scaling_min_cwnd, 1e-6..=1e6)?;
        check_within("scaling_max_cwnd", self.scaling_max_cwnd, 1e-6..=1e6)?;
        check_below(
            "scaling_min_cwnd",
            self.scaling_min_cwnd,
            "scaling_max_cwnd",
            self.scaling_max_cwnd,
        )?;
        check_within("additive", self.additive, 1e-6..=1e3)?;
        check_within("beta", self.beta, 0.0..=1.0)?;
        check_within("max_decrease", self.max_decrease, 0.0..=1.0)?;
        check_within("min_cwnd", self.min_cwnd, 1e-6..=1.0)?;
        check_within("initial_cwnd", self.initial_cwnd, 1e-6..=1e6)?;
        check_within(
            "timeouts_to_reset",
            self.timeouts_to_reset.into(),
            1.0..=1e3,
        )
    }
}

/// Swift's sender.
#[derive(Debug, Clone)]
pub struct Swift {
    parameters: Parameters,
    /// Base target plus the part for links on the path, without flow scaling, seconds.
    target_secs: f64,
    /// fs_range, seconds.
    range_secs: f64,
    /// α of flow scaling, seconds.
    slope: f64,
    /// b of flow scaling, seconds.
    offset: f64,
    max_cwnd: f64,
    packet_bytes: f64,
    min_rate_bps: f64,
    line_rate_bps: f64,
    /// Packets.
    cwnd: f64,
    rtt: Time,
    last_decrease: Option<Time>,
    timeouts: u32,
}

impl Swift {
    /// A controller for one flow.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            parameters: parameters.clone(),
            target_secs: 0.0,
            range_secs: 0.0,
            slope: 0.0,
            offset: 0.0,
            max_cwnd: f64::INFINITY,
            packet_bytes: 1.0,
            min_rate_bps: 0.0,
            line_rate_bps: 0.0,
            cwnd: parameters.initial_cwnd,
            rtt: Time::ZERO,
            last_decrease: None,
            timeouts: 0,
        }
    }

    /// §3.5: a smaller window means that more flows share the queue, so the target is higher.
    fn target_secs(&self) -> f64 {
        let scaling = self.slope / self.cwnd.sqrt() + self.offset;
        self.target_secs + scaling.max(0.0).min(self.range_secs)
    }

    /// Algorithm 1, line 3: at most one decrease per round trip.
    fn can_decrease(&self, now: Time) -> bool {
        (self.last_decrease).is_none_or(|last| now.saturating_sub(last) >= self.rtt)
    }

    /// Algorithm 1, lines 27 to 33: limits, the time of the last decrease, and pacing where less
    /// than one packet may be in flight.
    ///
    /// The paper's line 28 records the time where the window is not larger than before. With
    /// several ACKs a round trip, each would postpone the next decrease, and there would be no
    /// second one. So the time is recorded only where the window is smaller.
    fn apply_window(&mut self, cwnd: f64, context: &mut Context<'_>) {
        let cwnd = cwnd.max(self.parameters.min_cwnd).min(self.max_cwnd);
        if cwnd < self.cwnd {
            self.last_decrease = Some(context.now);
        }
        self.cwnd = cwnd;
        let rate_bps = if cwnd < 1.0 && self.rtt > Time::ZERO {
            (cwnd * self.packet_bytes * 8.0 / self.rtt.secs())
                .max(self.min_rate_bps)
                .min(self.line_rate_bps)
        } else {
            self.line_rate_bps
        };
        *context.command = Command {
            rate_bps,
            window_bytes: cwnd * self.packet_bytes,
        };
    }
}

impl Controller for Swift {
    fn required_signals(&self) -> Needs {
        Needs {
            acks: true,
            losses: true,
            ..Needs::default()
        }
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.packet_bytes = f64::from(setup.packet_bytes);
        self.min_rate_bps = setup.min_rate_bps;
        self.line_rate_bps = setup.line_rate_bps;
        let p = &self.parameters;
        let (base_target, range_unit) = p.base_target(setup.base_rtt);
        self.target_secs =
            base_target.secs() + time_from_us(p.hop_us).secs() * f64::from(setup.hops);
        self.range_secs = p.scaling_range * range_unit.secs();
        // §3.5: α = fs_range/(1/√fs_min_cwnd − 1/√fs_max_cwnd), β = −α/√fs_max_cwnd.
        let least = 1.0 / p.scaling_max_cwnd.sqrt();
        let most = 1.0 / p.scaling_min_cwnd.sqrt();
        self.slope = self.range_secs / (most - least);
        self.offset = -self.slope * least;
        // A sender whose own link is the narrowest never sees its target. The limit is the window
        // that fills the line for the longest target.
        let longest = self.target_secs + self.range_secs;
        let packets = setup.line_rate_bps * longest / 8.0 / self.packet_bytes;
        self.max_cwnd = packets.max(1.0);
        self.rtt = setup.base_rtt;
        self.apply_window(self.cwnd, context);
        // Clamping the first window to the limits is not a decrease.
        self.last_decrease = None;
    }

    /// Algorithm 1, lines 4 to 14.
    fn on_ack(&mut self, ack: &Ack<'_>, context: &mut Context<'_>) {
        self.timeouts = 0;
        self.rtt = ack.rtt;
        let delay_secs = ack.rtt.secs();
        let target_secs = self.target_secs();
        let mut cwnd = self.cwnd;
        if delay_secs < target_secs {
            let acked = ack.acked_bytes as f64 / self.packet_bytes;
            cwnd += self.parameters.additive * acked / cwnd.max(1.0);
        } else if self.can_decrease(context.now) {
            let excess = (delay_secs - target_secs) / delay_secs;
            cwnd *= (1.0 - self.parameters.beta * excess).max(1.0 - self.parameters.max_decrease);
        }
        self.apply_window(cwnd, context);
    }

    /// Algorithm 1, lines 15 to 26; §3.6.
    fn on_loss(&mut self, loss: Loss, context: &mut Context<'_>) {
        let mut cwnd = self.cwnd;
        self.timeouts = match loss {
            Loss::Gap => 0,
            Loss::Timeout => self.timeouts.saturating_add(1),
        };
        if self.timeouts >= self.parameters.timeouts_to_reset {
            cwnd = self.parameters.min_cwnd;
        } else if self.can_decrease(context.now) {
            cwnd *= 1.0 - self.parameters.max_decrease;
        }
        self.apply_window(cwnd, context);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Flow, assert_near, example_setup};
    use super::*;

    /// Target without scaling: 20 + 2 · 1 = 22 µs. Flow scaling: range 100 µs,
    /// α = 100/(1/√0.1 − 1/√100) = 32.655… µs, b = −3.2655… µs.
    fn start(initial_cwnd: f64) -> Flow<Swift> {
        let parameters = Parameters {
            initial_cwnd,
            ..Parameters::default()
        };
        Flow::start_at_zero(Swift::new(&parameters), &example_setup())
    }

    fn ack(flow: &mut Flow<Swift>, rtt_us: f64, packets: u64) {
        flow.deliver_ack(Ack {
            rtt: time_from_us(rtt_us),
            acked_bytes: packets * 1000,
            marked: false,
            ack_bytes: 0,
            sent_bytes: 0,
            hops: &[],
        });
    }

    fn cwnd(flow: &Flow<Swift>) -> f64 {
        flow.command.window_bytes / 1000.0
    }

    #[test]
    fn flow_scaling_at_chosen_windows() {
        // §3.5: nothing at fs_max_cwnd and above, all at fs_min_cwnd and below, α/√w + b between.
        // At 1 packet 32.65548 − 3.26555 = 29.38993 µs; at 4 packets 16.32774 − 3.26555 = 13.06219
        // µs.
        for (cwnd, scaling_us) in [
            (200.0, 0.0),
            (100.0, 0.0),
            (4.0, 13.062_19),
            (1.0, 29.389_93),
            (0.1, 100.0),
            (0.01, 100.0),
        ] {
            let flow = start(cwnd);
            let found = flow.controller.target_secs() * 1e6 - 22.0;
            assert!((found - scaling_us).abs() < 1e-4, "{cwnd}: {found}");
        }
    }

    #[test]
    fn below_the_target_one_packet_a_window() {
        let mut flow = start(100.0);
        // Target 22 µs. 50 + 50 packets acknowledged: + 50/100, then + 50/100.5.
        ack(&mut flow, 21.9, 50);
        assert_near(cwnd(&flow), 100.5);
        ack(&mut flow, 21.9, 50);
        assert_near(cwnd(&flow), 100.5 + 50.0 / 100.5);
        assert_near(flow.rate_gbps(), 100.0);
    }

    #[test]
    fn above_the_target_once_a_round_trip() {
        let mut flow = start(200.0);
        flow.advance_time(Time::from_us(100));
        // Delay 27.5, target 22: 1 − 0.8 · 5.5/27.5 = 0.84.
        ack(&mut flow, 27.5, 1);
        assert_near(cwnd(&flow), 168.0);
        flow.advance_time(Time::from_us(127));
        ack(&mut flow, 27.5, 1);
        assert_near(cwnd(&flow), 168.0);
        // The next is allowed 27.5 µs after the first, whatever came between.
        flow.advance_time(Time::from_ns(127_500));
        ack(&mut flow, 27.5, 1);
        assert_near(cwnd(&flow), 168.0 * 0.84);
    }

    #[test]
    fn a_decrease_takes_half_at_most() {
        let mut flow = start(200.0);
        // 1 − 0.8 · 198/220 = 0.28: limited to 0.5.
        ack(&mut flow, 220.0, 1);
        assert_near(cwnd(&flow), 100.0);
    }

    #[test]
    fn less_than_a_packet_is_paced() {
        let mut flow = start(0.25);
        // Before the first delay is known: a quarter of a packet per 12 µs.
        assert_near(flow.rate_gbps(), 0.25 * 8_000.0 / 12e-6 / 1e9);
        // Target: 22 + 2 · 32.65548 − 3.26555 = 84.045 µs. One packet acknowledged: + ai · 1.
        ack(&mut flow, 50.0, 1);
        assert_near(cwnd(&flow), 1.25);
        assert_near(flow.rate_gbps(), 100.0);
        // Above: 22 + 29.2080 − 3.2655 = 47.94 µs; at 400 µs half.
        flow.advance_time(Time::from_us(400));
        ack(&mut flow, 400.0, 1);
        assert_near(cwnd(&flow), 0.625);
        // A packet per 400/0.625 = 640 µs is 12.5 Mbit/s.
        assert_near(flow.command.rate_bps, 12.5e6);
    }

    #[test]
    fn losses() {
        let mut flow = start(64.0);
        flow.advance_time(Time::from_us(50));
        let gap = |flow: &mut Flow<Swift>| {
            flow.call_controller(|controller, context| controller.on_loss(Loss::Gap, context));
        };
        let timeout = |flow: &mut Flow<Swift>| {
            flow.call_controller(|controller, context| controller.on_loss(Loss::Timeout, context));
        };
        gap(&mut flow);
        assert_near(cwnd(&flow), 32.0);
        // A second loss within the round trip (12 µs) does nothing.
        flow.advance_time(Time::from_us(61));
        gap(&mut flow);
        timeout(&mut flow);
        assert_near(cwnd(&flow), 32.0);
        // Time-outs halve the window. The fifth in a row gives the smallest window, 0.001 packets.
        // 8 bit per 12 µs is less than the lowest rate.
        for expected in [16.0, 8.0, 4.0, 0.001] {
            let next = flow.now + Time::from_us(12);
            flow.advance_time(next);
            timeout(&mut flow);
            assert_near(cwnd(&flow), expected);
        }
        assert_near(flow.command.rate_bps, 1e6);
    }

    #[test]
    fn an_acknowledgement_ends_a_row_of_timeouts() {
        let mut flow = start(64.0);
        for round in 1..=8 {
            flow.advance_time(Time::from_us(1_000 * round));
            flow.call_controller(|controller, context| controller.on_loss(Loss::Timeout, context));
            if round == 4 {
                ack(&mut flow, 12.0, 0);
            }
        }
        // 4 + 4 time-outs, never five in a row: 64/2⁸.
        assert_near(cwnd(&flow), 0.25);
    }

    #[test]
    fn the_window_ends_where_the_longest_target_fills_the_line() {
        let mut flow = start(1e6);
        // (22 + 100) µs · 12,500 bytes/µs = 1525 packets. This clamp does not delay the first
        // decrease.
        assert_near(cwnd(&flow), 1525.0);
        ack(&mut flow, 10.0, 100_000);
        assert_near(cwnd(&flow), 1525.0);
        ack(&mut flow, 27.5, 1);
        assert_near(cwnd(&flow), 1525.0 * 0.84);
    }

    #[test]
    fn the_base_target_follows_the_base_rtt() {
        // Base RTT, given base target, then target and range: 2 · 1 µs are for the links.
        for (base_rtt_us, given_us, target_us, range_us) in [
            (3, 0.0, 22.0, 100.0),
            (12, 0.0, 22.0, 100.0),
            (50, 0.0, 60.0, 100.0),
            (50, 20.0, 22.0, 100.0),
            (50, 58.0, 60.0, 290.0),
        ] {
            let parameters = Parameters {
                base_target_us: given_us,
                initial_cwnd: 0.1,
                ..Parameters::default()
            };
            let mut setup = example_setup();
            setup.base_rtt = Time::from_us(base_rtt_us);
            let flow = Flow::start_at_zero(Swift::new(&parameters), &setup);
            let found = flow.controller.target_secs() * 1e6;
            assert_near(found, target_us + range_us);
        }
    }

    #[test]
    fn warns_of_a_target_within_the_base_rtt() {
        let warning = |base_target_us, base_rtt_us| {
            let parameters = Parameters {
                base_target_us,
                ..Parameters::default()
            };
            parameters.path_warning(Time::from_us(base_rtt_us), 2)
        };
        assert_eq!(
            warning(20.0, 50).unwrap(),
            "`base_target_us` is 20; with 2 links the target is 22 µs, and the base RTT is 50 µs: \
             without a queue every delay counts as too long. More than 48 is expected, or 0 to \
             follow the base RTT"
        );
        assert!(warning(48.0, 50).is_some());
        assert_eq!(warning(48.5, 50), None);
        assert_eq!(warning(0.0, 50), None);
        assert_eq!(warning(20.0, 12), None);
    }

    #[test]
    fn refuses_a_scaling_without_range() {
        let parameters = Parameters {
            scaling_min_cwnd: 100.0,
            ..Parameters::default()
        };
        let error = parameters.validate().unwrap_err().to_string();
        assert!(error.contains("`scaling_min_cwnd` is 100"), "{error}");
    }
}
