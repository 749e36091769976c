//! DCQCN: rates that follow congestion notification packets (CNPs).
//!
//! Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, §3; the
//! increase is that of QCN (IEEE 802.1Qau). Network cards act periodically instead of on each CNP,
//! with other timers. Li et al., "HPCC", SIGCOMM 2019, §2.3, gives 4 µs and 300 µs as a vendor's
//! defaults.
//!
//! No timer runs for α, and none for decreases without a pending CNP. Both are computed when they
//! are needed, with the same result.

use serde::{Deserialize, Serialize};

use super::parameter::{check_within, time_from_us};
use super::{Command, Context, Controller, Needs, ParameterError, Setup};
use crate::Time;

/// Parameters. The default is the network card's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Shortest time between two CNPs of a flow, microseconds (§3.1, NP; 50 in the paper). The
    /// default is the period of decreases. With 50 µs between CNPs and a period of 1 µs, α would
    /// forget all but a fiftieth of the congestion.
    pub cnp_interval_us: f64,
    /// Gain of α (§5: 1/256).
    pub g: f64,
    /// Period of α's update, microseconds (§5: 55, longer than the interval of CNPs).
    pub alpha_timer_us: f64,
    /// Period of decreases, microseconds. With 0, each CNP decreases the rate and raises α at once,
    /// and restarts α's timer, as in the paper.
    pub decrease_timer_us: f64,
    /// Whether every decrease sets the target to the rate before it (§3.1). Otherwise only the
    /// first decrease after an increase by the timer does. So the rate recovers to its value before
    /// a series of decreases. Network cards can do either (`clamp_tgt_rate` and
    /// `clamp_tgt_rate_after_time_inc` in their manual).
    pub clamp_target: bool,
    /// Period of increases, microseconds (§5: 55).
    pub increase_timer_us: f64,
    /// Bytes sent after which the rate increases too (§5: 10 MB); 0: never.
    pub byte_counter_bytes: u64,
    /// F, increases after a decrease that only return towards the target (§3.1: 5).
    pub recovery_stages: u32,
    /// Additive increase at a line rate of 100 Gbit/s, Mbit/s; scales with the line rate.
    pub additive_mbps: f64,
    /// Hyper increase at a line rate of 100 Gbit/s, Mbit/s; scales with the line rate.
    pub hyper_mbps: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            cnp_interval_us: 4.0,
            g: 1.0 / 256.0,
            alpha_timer_us: 1.0,
            decrease_timer_us: 4.0,
            clamp_target: true,
            increase_timer_us: 300.0,
            byte_counter_bytes: 0,
            recovery_stages: 1,
            additive_mbps: 20.0,
            hyper_mbps: 200.0,
        }
    }
}

impl Parameters {
    /// The paper's parameters (§5), except for the steps of the increase. Those are the network
    /// card's, because the paper's are for 40 Gbit/s.
    pub fn published_values() -> Self {
        Self {
            cnp_interval_us: 50.0,
            alpha_timer_us: 55.0,
            decrease_timer_us: 0.0,
            increase_timer_us: 55.0,
            byte_counter_bytes: 10_000_000,
            recovery_stages: 5,
            ..Self::default()
        }
    }

    /// Checks that every parameter is in range.
    pub fn validate(&self) -> Result<(), ParameterError> {
        check_within("cnp_interval_us", self.cnp_interval_us, 0.0..=1e6)?;
        check_within("g", self.g, 1e-6..=1.0)?;
        check_within("alpha_timer_us", self.alpha_timer_us, 0.1..=1e6)?;
        check_within("decrease_timer_us", self.decrease_timer_us, 0.0..=1e6)?;
        check_within("increase_timer_us", self.increase_timer_us, 0.1..=1e6)?;
        check_within("recovery_stages", self.recovery_stages.into(), 0.0..=1e3)?;
        check_within("additive_mbps", self.additive_mbps, 0.0..=1e5)?;
        check_within("hyper_mbps", self.hyper_mbps, 0.0..=1e5)
    }
}

/// Timer of decreases.
const DECREASE: usize = 0;
/// Timer of increases.
const INCREASE: usize = 1;

/// DCQCN's reaction point.
#[derive(Debug, Clone)]
pub struct Dcqcn {
    cnp_interval: Time,
    g: f64,
    alpha_period: Time,
    decrease_period: Time,
    clamp_target: bool,
    increase_period: Time,
    byte_counter_bytes: u64,
    recovery_stages: u32,
    additive_bps: f64,
    hyper_bps: f64,
    min_rate_bps: f64,
    line_rate_bps: f64,

    /// R_C.
    rate_bps: f64,
    /// R_T.
    target_bps: f64,
    alpha: f64,
    /// End of the last period that `alpha` includes.
    alpha_at: Time,
    /// Whether a CNP came after `alpha_at`.
    alpha_cnp: bool,
    /// Time of the first CNP: periods count from there.
    first_cnp: Option<Time>,
    /// T, increases by the timer since the last decrease.
    timer_stage: u32,
    /// BC, increases by the byte counter since the last decrease.
    byte_stage: u32,
    sent_bytes: u64,
}

impl Dcqcn {
    /// A controller for one flow.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            cnp_interval: time_from_us(parameters.cnp_interval_us),
            g: parameters.g,
            alpha_period: time_from_us(parameters.alpha_timer_us),
            decrease_period: time_from_us(parameters.decrease_timer_us),
            clamp_target: parameters.clamp_target,
            increase_period: time_from_us(parameters.increase_timer_us),
            byte_counter_bytes: parameters.byte_counter_bytes,
            recovery_stages: parameters.recovery_stages,
            // Scaled by the line rate in `start`.
            additive_bps: parameters.additive_mbps * 1e6 / 100e9,
            hyper_bps: parameters.hyper_mbps * 1e6 / 100e9,
            min_rate_bps: 0.0,
            line_rate_bps: 0.0,
            rate_bps: 0.0,
            target_bps: 0.0,
            alpha: 1.0,
            alpha_at: Time::ZERO,
            alpha_cnp: false,
            first_cnp: None,
            timer_stage: 0,
            byte_stage: 0,
            sent_bytes: 0,
        }
    }

    /// Brings α to now: at the end of each period with a CNP α = (1−g)α + g (§3.1, equation 1), of
    /// others α = (1−g)α (equation 2).
    fn update_alpha(&mut self, now: Time) {
        let periods = now.saturating_sub(self.alpha_at).ps() / self.alpha_period.ps();
        if periods == 0 {
            return;
        }
        self.alpha *= integer_power(1.0 - self.g, periods);
        if self.alpha_cnp {
            // The first of these periods added g; the others have decayed it since.
            self.alpha += self.g * integer_power(1.0 - self.g, periods - 1);
            self.alpha_cnp = false;
        }
        self.alpha_at += Time::from_ps(periods * self.alpha_period.ps());
    }

    /// R_T = R_C, R_C = R_C(1−α/2), and the increase starts over (§3.1, equation 1).
    fn decrease_rate(&mut self, context: &mut Context<'_>) {
        if self.clamp_target || self.timer_stage > 0 {
            self.target_bps = self.rate_bps;
        }
        self.rate_bps = (self.rate_bps * (1.0 - self.alpha / 2.0)).max(self.min_rate_bps);
        self.timer_stage = 0;
        self.byte_stage = 0;
        self.sent_bytes = 0;
        context.timers[INCREASE] = context.now + self.increase_period;
        context.command.rate_bps = self.rate_bps;
    }

    /// Fast recovery, additive or hyper increase (§3.1, equations 3 and 4; figure 7). The choice
    /// depends on how often the timer and the byte counter have expired.
    fn increase_rate(&mut self, context: &mut Context<'_>) {
        let timer = self.timer_stage;
        let bytes = match self.byte_counter_bytes {
            0 => timer,
            _ => self.byte_stage,
        };
        if timer.min(bytes) > self.recovery_stages {
            self.target_bps += self.hyper_bps;
        } else if timer.max(bytes) >= self.recovery_stages {
            self.target_bps += self.additive_bps;
        }
        self.target_bps = self.target_bps.min(self.line_rate_bps);
        self.rate_bps = (self.rate_bps + self.target_bps) / 2.0;
        context.command.rate_bps = self.rate_bps;
    }
}

impl Controller for Dcqcn {
    fn required_signals(&self) -> Needs {
        Needs {
            notifications: Some(self.cnp_interval),
            sent: self.byte_counter_bytes > 0,
            ..Needs::default()
        }
    }

    /// §3.1: a flow starts at its line rate.
    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        self.additive_bps *= setup.line_rate_bps;
        self.hyper_bps *= setup.line_rate_bps;
        self.min_rate_bps = setup.min_rate_bps;
        self.line_rate_bps = setup.line_rate_bps;
        self.rate_bps = setup.line_rate_bps;
        self.target_bps = setup.line_rate_bps;
        *context.command = Command {
            rate_bps: self.rate_bps,
            window_bytes: f64::INFINITY,
        };
    }

    fn on_notification(&mut self, context: &mut Context<'_>) {
        let Some(first_cnp) = self.first_cnp else {
            self.first_cnp = Some(context.now);
            self.alpha = 1.0;
            self.alpha_at = context.now;
            self.decrease_rate(context);
            return;
        };
        self.update_alpha(context.now);
        if self.decrease_period == Time::ZERO {
            self.decrease_rate(context);
            self.alpha = (1.0 - self.g) * self.alpha + self.g;
            self.alpha_at = context.now;
        } else {
            self.alpha_cnp = true;
            if context.timers[DECREASE] == Time::MAX {
                let period = self.decrease_period.ps();
                let periods = (context.now - first_cnp).ps() / period + 1;
                context.timers[DECREASE] = first_cnp + Time::from_ps(periods * period);
            }
        }
    }

    fn on_timer(&mut self, timer: usize, context: &mut Context<'_>) {
        if timer == DECREASE {
            // Where both periods end at once, α is updated first.
            self.update_alpha(context.now);
            self.decrease_rate(context);
            return;
        }
        self.increase_rate(context);
        self.timer_stage = self.timer_stage.saturating_add(1);
        // At the line rate there is nothing to increase until the next decrease.
        if self.rate_bps < self.line_rate_bps {
            context.timers[INCREASE] = context.now + self.increase_period;
        }
    }

    fn on_sent(&mut self, bytes: u32, context: &mut Context<'_>) {
        self.sent_bytes += u64::from(bytes);
        if self.sent_bytes >= self.byte_counter_bytes && self.rate_bps < self.line_rate_bps {
            self.sent_bytes = 0;
            self.increase_rate(context);
            self.byte_stage = self.byte_stage.saturating_add(1);
        }
    }
}

/// `base` to the power of `exponent`. Only multiplications, so that every machine gives the same
/// result.
fn integer_power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Flow, assert_near, example_setup};
    use super::*;

    fn us(microseconds: u64) -> Time {
        Time::from_us(microseconds)
    }

    fn notify(flow: &mut Flow<Dcqcn>, at: Time) {
        flow.advance_time(at);
        flow.call_controller(|controller, context| controller.on_notification(context));
    }

    #[test]
    fn first_notification_halves_then_recovery_additive_and_hyper_increase() {
        let mut flow = Flow::start_at_zero(Dcqcn::new(&Parameters::default()), &example_setup());
        assert_near(flow.rate_gbps(), 100.0);
        // α = 1: target 100, rate 100 (1 − 1/2) = 50.
        notify(&mut flow, us(10));
        assert_near(flow.rate_gbps(), 50.0);
        flow.advance_time(us(309));
        assert_near(flow.rate_gbps(), 50.0);
        // Stage 0 < F = 1, fast recovery: (50 + 100)/2.
        flow.advance_time(us(310));
        assert_near(flow.rate_gbps(), 75.0);
        // A second decrease shows the target. It comes 4 µs after a multiple of 4 µs since the
        // first CNP, at 10 + 304 = 314. α is updated at 11 to 313 without a CNP, 303 times. The
        // update at 314 includes the CNP of 313.5.
        notify(&mut flow, Time::from_ns(313_500));
        assert_near(flow.rate_gbps(), 75.0);
        flow.advance_time(us(314));
        let alpha = (255.0_f64 / 256.0).powf(304.0) + 1.0 / 256.0;
        let cut = 75.0 * (1.0 - alpha / 2.0);
        assert_near(flow.rate_gbps(), cut);
        // 300 µs: recovery towards 75; 600 µs: stage 1 = F, target 75.02; 900 µs: stage 2 > F,
        // target 75.22. Each time the rate covers half the distance.
        let recovered = (cut + 75.0) / 2.0;
        flow.advance_time(us(614));
        assert_near(flow.rate_gbps(), recovered);
        let additive = (recovered + 75.02) / 2.0;
        flow.advance_time(us(914));
        assert_near(flow.rate_gbps(), additive);
        let hyper = (additive + 75.22) / 2.0;
        flow.advance_time(us(1214));
        assert_near(flow.rate_gbps(), hyper);
        flow.advance_time(us(1514));
        assert_near(flow.rate_gbps(), (hyper + 75.42) / 2.0);
    }

    #[test]
    fn periods_with_and_without_notifications() {
        let mut flow = Flow::start_at_zero(Dcqcn::new(&Parameters::default()), &example_setup());
        notify(&mut flow, us(0));
        // Updates of α: 1 to 50 without CNP, 51 with the CNP of 50.5, 52 without. The decrease of
        // 52 comes after that. With k = 255/256: α = (k^51 + g) k.
        notify(&mut flow, Time::from_ns(50_500));
        flow.advance_time(Time::from_ns(51_999));
        assert_near(flow.rate_gbps(), 50.0);
        flow.advance_time(us(52));
        let k = 255.0_f64 / 256.0;
        let alpha = (k.powf(51.0) + 1.0 / 256.0) * k;
        assert_near(flow.rate_gbps(), 50.0 * (1.0 - alpha / 2.0));
        // No further CNP, no further decrease.
        flow.advance_time(us(300));
        assert_near(flow.rate_gbps(), 50.0 * (1.0 - alpha / 2.0));
    }

    #[test]
    fn a_series_of_decreases_is_undone_or_not() {
        for clamp_target in [false, true] {
            let parameters = Parameters {
                clamp_target,
                ..Parameters::default()
            };
            let mut flow = Flow::start_at_zero(Dcqcn::new(&parameters), &example_setup());
            // Decreases at 0, to 50, and at 4 µs. α was updated at 1, at 2 with the CNP, at 3 and
            // 4.
            notify(&mut flow, us(0));
            notify(&mut flow, Time::from_ns(1_500));
            flow.advance_time(us(4));
            let k = 255.0_f64 / 256.0;
            let cut = 50.0 * (1.0 - (k * k + 1.0 / 256.0) * k * k / 2.0);
            assert_near(flow.rate_gbps(), cut);
            // 300 µs later the rate has covered half the distance to the target: the line rate, or
            // the rate before the last decrease.
            flow.advance_time(us(304));
            let recovered = (cut + if clamp_target { 50.0 } else { 100.0 }) / 2.0;
            assert_near(flow.rate_gbps(), recovered);
            // After that increase the next decrease sets the target in either case.
            notify(&mut flow, us(305));
            flow.advance_time(us(308));
            let cut = flow.rate_gbps();
            assert!(cut < recovered);
            flow.advance_time(us(608));
            assert_near(flow.rate_gbps(), (cut + recovered) / 2.0);
        }
    }

    #[test]
    fn two_notifications_in_one_period_are_one_decrease() {
        let mut flow = Flow::start_at_zero(Dcqcn::new(&Parameters::default()), &example_setup());
        notify(&mut flow, us(0));
        notify(&mut flow, Time::from_ns(1_100));
        notify(&mut flow, Time::from_ns(1_200));
        flow.advance_time(us(20));
        // Updates: 1 without CNP, 2 with the CNPs, 3 and 4 without.
        let k = 255.0_f64 / 256.0;
        let alpha = (k * k + 1.0 / 256.0) * k * k;
        assert_near(flow.rate_gbps(), 50.0 * (1.0 - alpha / 2.0));
    }

    #[test]
    fn paper_reacts_at_once() {
        let mut flow = Flow::start_at_zero(
            Dcqcn::new(&Parameters::published_values()),
            &example_setup(),
        );
        notify(&mut flow, us(0));
        assert_near(flow.rate_gbps(), 50.0);
        // 50 µs later α has not decayed (55 µs): 50 (1 − 1/2), and α = (1−g) + g = 1.
        notify(&mut flow, us(50));
        assert_near(flow.rate_gbps(), 25.0);
        // 120 µs after that α has decayed twice; rate: increases at 105 and 160, both fast
        // recovery towards 50: 37.5, 43.75.
        flow.advance_time(us(170));
        assert_near(flow.rate_gbps(), 43.75);
        notify(&mut flow, us(170));
        let k = 255.0_f64 / 256.0;
        assert_near(flow.rate_gbps(), 43.75 * (1.0 - k * k / 2.0));
        // Then α = k·k² + g, and its timer restarts: 54 µs later α is unchanged.
        let rate = 43.75 * (1.0 - k * k / 2.0);
        notify(&mut flow, us(224));
        assert_near(
            flow.rate_gbps(),
            rate * (1.0 - (k * k * k + 1.0 / 256.0) / 2.0),
        );
    }

    #[test]
    fn paper_takes_the_byte_counter_into_account() {
        let mut flow = Flow::start_at_zero(
            Dcqcn::new(&Parameters::published_values()),
            &example_setup(),
        );
        notify(&mut flow, us(0));
        // Timer alone, five times: fast recovery, each time half the remaining distance to 100.
        flow.advance_time(us(275));
        let recovered = 100.0 - 50.0 / 32.0;
        assert_near(flow.rate_gbps(), recovered);
        // A decrease shows the target: α has decayed at 55, 110, … 275, five times.
        notify(&mut flow, us(275));
        let k = 255.0_f64 / 256.0;
        let mut rate = recovered * (1.0 - k.powf(5.0) / 2.0);
        let mut target = recovered;
        assert_near(flow.rate_gbps(), rate);
        // The byte counter expires seven times before the timer does once. Five times fast
        // recovery; then max(T, BC) = BC ≥ 5 but min = 0: additive, 20 Mbit/s each.
        for round in 0..7 {
            flow.call_controller(|controller, context| controller.on_sent(9_999_000, context));
            assert_near(flow.rate_gbps(), rate);
            flow.call_controller(|controller, context| controller.on_sent(1_000, context));
            if round >= 5 {
                target += 0.02;
            }
            rate = (rate + target) / 2.0;
            assert_near(flow.rate_gbps(), rate);
        }
        // The timer expires six times (T = 0 to 5): still additive, min(T, BC) ≤ 5. The seventh
        // time T = 6 and BC = 7: hyper, 200 Mbit/s.
        for stage in 0..7 {
            flow.advance_time(us(275 + 55 * (stage + 1)));
            target = f64::min(target + if stage < 6 { 0.02 } else { 0.2 }, 100.0);
            rate = (rate + target) / 2.0;
            assert_near(flow.rate_gbps(), rate);
        }
    }

    #[test]
    fn steps_scale_with_the_line_rate_and_stop_there() {
        let mut setup = example_setup();
        setup.line_rate_bps = 400e9;
        let mut flow = Flow::start_at_zero(Dcqcn::new(&Parameters::default()), &setup);
        notify(&mut flow, us(0));
        flow.advance_time(us(300));
        assert_near(flow.rate_gbps(), 300.0);
        notify(&mut flow, us(302));
        flow.advance_time(us(304));
        let cut = flow.rate_gbps();
        flow.advance_time(us(904));
        // Recovery to (cut + 300)/2, then the target grows by 4 · 20 Mbit/s.
        assert_near(flow.rate_gbps(), ((cut + 300.0) / 2.0 + 300.08) / 2.0);
        flow.advance_time(Time::from_us(2_000_000));
        assert_eq!(flow.command.rate_bps, 400e9);
        assert_eq!(flow.timers, [Time::MAX; 3]);
    }

    #[test]
    fn not_below_the_lowest_rate() {
        let mut flow = Flow::start_at_zero(Dcqcn::new(&Parameters::default()), &example_setup());
        for round in 0..100 {
            notify(&mut flow, us(4 * round));
        }
        flow.advance_time(us(400));
        assert_near(flow.command.rate_bps, 1e6);
    }
}
