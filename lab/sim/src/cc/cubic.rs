//! CUBIC: TCP whose window is a cubic function of the time since the last loss.
//!
//! RFC 9438, with the choices of Linux (6.12, `net/ipv4/tcp_cubic.c`): fast convergence, the
//! Reno-friendly region, HyStart by ACK trains and delays, no pacing. ECN is not negotiated. Windows
//! are in segments. It needs hosts with Linux's TCP, which repair losses.

use serde::{Deserialize, Serialize};

use super::parameter::check_within;
use super::tcp::{CaState, Event, INFINITE_SSTHRESH, Sample, Socket};
use super::{Command, Context, Controller, Needs, ParameterError, Setup};

/// Smallest window at which HyStart looks (`hystart_low_window`).
const HYSTART_LOW_WINDOW: u32 = 16;
/// ACKs that close together are a train (`hystart_ack_delta_us`), µs.
const HYSTART_ACK_DELTA_US: u64 = 2_000;
/// Round-trip times per round that HyStart looks at.
const HYSTART_MIN_SAMPLES: u32 = 8;
/// Bounds of the delay's growth that ends slow start, µs.
const HYSTART_DELAY_MIN_US: u32 = 4_000;
const HYSTART_DELAY_MAX_US: u32 = 16_000;
/// Largest burst, bytes: its time at the pacing rate is allowed to an ACK train.
const GSO_MAX_BYTES: u64 = 65_215;
/// Time-outs are at least this, µs.
const RTO_MIN_US: u32 = 200_000;

/// Parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Share of the window that a loss leaves (RFC 9438: 0.7).
    pub beta: f64,
    /// C, segments per cubic second (RFC 9438: 0.4).
    pub c: f64,
    /// Whether a flow that lost below its last maximum leaves room to others.
    pub fast_convergence: bool,
    /// Whether slow start ends before losses.
    pub hystart: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            // Linux has 717/1024.
            beta: 0.7,
            c: 0.4,
            fast_convergence: true,
            hystart: true,
        }
    }
}

impl Parameters {
    /// Checks that every parameter is in range.
    pub fn validate(&self) -> Result<(), ParameterError> {
        check_within("beta", self.beta, 0.1..=0.99)?;
        check_within("c", self.c, 1e-3..=100.0)
    }
}

/// CUBIC's sender.
#[derive(Debug, Clone)]
pub struct Cubic {
    set: Parameters,
    /// Window before the last reduction, or less (fast convergence); 0: none.
    last_max: f64,
    /// Start of this epoch, µs; none before the first ACK after a reduction.
    epoch_us: Option<u64>,
    /// Time from the start of the epoch to its origin, s; the window there.
    k: f64,
    origin: f64,
    /// Window that Reno would have.
    reno: f64,
    /// Acknowledged segments that have not raised the window.
    credit: f64,
    /// Shortest round trip, µs; 0: none.
    delay_min_us: u32,
    /// HyStart: packets sent when the round began, its start and last ACK of a train, µs; its
    /// shortest round trip, and how many were measured.
    round_end: u32,
    round_start_us: u64,
    last_ack_us: u64,
    round_rtt_us: u32,
    samples: u32,
}

impl Cubic {
    /// A controller for one flow.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            set: parameters.clone(),
            last_max: 0.0,
            epoch_us: None,
            k: 0.0,
            origin: 0.0,
            reno: 0.0,
            credit: 0.0,
            delay_min_us: 0,
            round_end: 0,
            round_start_us: 0,
            last_ack_us: 0,
            round_rtt_us: u32::MAX,
            samples: 0,
        }
    }

    /// `bictcp_hystart_reset`: a round of slow start begins.
    fn hystart_reset(&mut self, socket: &Socket) {
        self.round_start_us = socket.tcp_mstamp;
        self.last_ack_us = socket.tcp_mstamp;
        self.round_end = socket.snd_nxt;
        self.round_rtt_us = u32::MAX;
        self.samples = 0;
    }

    /// `hystart_update`: ends slow start once an ACK train is as long as half the shortest round
    /// trip, or round trips have grown by an eighth (4 to 16 ms).
    fn hystart_update(&mut self, rtt_us: u32, socket: &mut Socket) {
        if socket.snd_una > self.round_end {
            self.hystart_reset(socket);
        }
        let now_us = socket.tcp_mstamp;
        if now_us - self.last_ack_us <= HYSTART_ACK_DELTA_US {
            self.last_ack_us = now_us;
            let rate = socket.sk_pacing_rate.max(1);
            let burst_us = (GSO_MAX_BYTES * 4 * 1_000_000 / rate).min(1_000);
            // Without pacing a train of half the round trip fills the path.
            let threshold_us = (u64::from(self.delay_min_us) + burst_us) / 2;
            if now_us - self.round_start_us > threshold_us {
                socket.snd_ssthresh = socket.snd_cwnd;
                return;
            }
        }
        self.round_rtt_us = self.round_rtt_us.min(rtt_us);
        if self.samples < HYSTART_MIN_SAMPLES {
            self.samples += 1;
        } else {
            let growth = (self.delay_min_us >> 3).clamp(HYSTART_DELAY_MIN_US, HYSTART_DELAY_MAX_US);
            if self.round_rtt_us > self.delay_min_us + growth {
                socket.snd_ssthresh = socket.snd_cwnd;
            }
        }
    }

    /// `cubictcp_acked`.
    fn note_rtt(&mut self, sample: &Sample, socket: &mut Socket) {
        let Some(rtt_us) = sample.rtt_us else { return };
        // Not within a second after a reduction: the queue is still long.
        let now_us = socket.tcp_mstamp;
        if self
            .epoch_us
            .is_some_and(|epoch_us| now_us < epoch_us + 1_000_000)
        {
            return;
        }
        let rtt_us = rtt_us.max(1);
        if self.delay_min_us == 0 || rtt_us < self.delay_min_us {
            self.delay_min_us = rtt_us;
        }
        if self.set.hystart
            && socket.is_in_slow_start()
            && socket.snd_ssthresh == INFINITE_SSTHRESH
            && socket.snd_cwnd >= HYSTART_LOW_WINDOW
        {
            self.hystart_update(rtt_us, socket);
        }
    }

    /// Segments to be acknowledged for one more in the window (`bictcp_update`).
    fn acks_per_increase(&mut self, acked: f64, socket: &Socket) -> f64 {
        let cwnd = f64::from(socket.snd_cwnd);
        let now_us = socket.tcp_mstamp;
        let epoch_us = match self.epoch_us {
            Some(epoch_us) => epoch_us,
            None => {
                self.epoch_us = Some(now_us);
                self.reno = cwnd;
                self.credit = 0.0;
                if self.last_max <= cwnd {
                    self.k = 0.0;
                    self.origin = cwnd;
                } else {
                    self.k = ((self.last_max - cwnd) / self.set.c).cbrt();
                    self.origin = self.last_max;
                }
                now_us
            }
        };
        // RFC 9438, §4.2: the window that is due one round trip from now.
        let t = (now_us - epoch_us + u64::from(self.delay_min_us)) as f64 * 1e-6;
        let target = self.origin + self.set.c * (t - self.k).powi(3);
        let mut count = match target > cwnd {
            true => cwnd / (target - cwnd),
            false => 100.0 * cwnd,
        };
        // Before the first loss, at least 5 % a round trip.
        if self.last_max == 0.0 {
            count = count.min(20.0);
        }
        // §4.3: Reno with the same loss share adds 3 (1 − β) / (1 + β) segments a round trip.
        let alpha = 3.0 * (1.0 - self.set.beta) / (1.0 + self.set.beta);
        self.reno += alpha * acked / cwnd;
        if self.reno > cwnd {
            count = count.min(cwnd / (self.reno - cwnd));
        }
        // At most half a window a round trip.
        count.max(2.0)
    }

    /// `cubictcp_cong_avoid`.
    fn cong_avoid(&mut self, acked: u32, socket: &mut Socket) {
        if !socket.is_window_used() {
            return;
        }
        let mut acked = acked;
        if socket.is_in_slow_start() {
            acked = socket.slow_start(acked);
            if acked == 0 {
                return;
            }
        }
        let acked = f64::from(acked);
        let count = self.acks_per_increase(acked, socket);
        // `tcp_cong_avoid_ai`.
        if self.credit >= count {
            self.credit = 0.0;
            socket.snd_cwnd += 1;
        }
        self.credit += acked;
        if self.credit >= count {
            let more = (self.credit / count).floor();
            self.credit -= more * count;
            socket.snd_cwnd += more as u32;
        }
    }

    /// `cubictcp_recalc_ssthresh`: the window after a loss.
    fn reduce_window(&mut self, socket: &Socket) -> u32 {
        let cwnd = f64::from(socket.snd_cwnd);
        self.epoch_us = None;
        // RFC 9438, §4.7.
        self.last_max = if self.set.fast_convergence && cwnd < self.last_max {
            cwnd * (1.0 + self.set.beta) / 2.0
        } else {
            cwnd
        };
        ((cwnd * self.set.beta) as u32).max(2)
    }
}

impl Controller for Cubic {
    fn required_signals(&self) -> Needs {
        Needs::TCP
    }

    fn start_flow(&mut self, setup: &Setup, context: &mut Context<'_>) {
        *context.command = Command::of_line(setup);
    }

    fn on_tcp(&mut self, event: &Event, socket: &mut Socket) {
        match event {
            Event::Init => {
                self.delay_min_us = 0;
                self.hystart_reset(socket);
            }
            Event::Ack(sample) => {
                self.note_rtt(sample, socket);
                match socket.ca_state {
                    CaState::Recovery => socket.cwnd_reduction(sample),
                    CaState::Open | CaState::Loss => self.cong_avoid(sample.acked_sacked, socket),
                }
            }
            Event::Recovery => {
                let ssthresh = self.reduce_window(socket);
                socket.init_cwnd_reduction(ssthresh);
            }
            Event::Loss => {
                socket.snd_ssthresh = self.reduce_window(socket);
                self.last_max = 0.0;
                self.hystart_reset(socket);
            }
            Event::Open => {
                if socket.prior_cwnd > 0 {
                    socket.end_cwnd_reduction();
                    socket.prior_cwnd = 0;
                }
            }
            Event::TxStart { idle_us } => {
                // The pause does not count as time since the reduction.
                if let Some(epoch_us) = &mut self.epoch_us {
                    *epoch_us = (*epoch_us + u64::from(*idle_us)).min(socket.tcp_mstamp);
                }
                let rto_us = (socket.srtt_us >> 3) + RTO_MIN_US;
                socket.cwnd_restart(*idle_us, rto_us);
            }
        }
        socket.update_pacing_rate();
    }
}

#[cfg(test)]
mod tests;
