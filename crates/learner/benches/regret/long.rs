//! Connections that stay open: their transfers in steps, scored in stretches.

use thalweg_learner::{End, Sample};

use crate::random::Random;
use crate::server::{Server, Visit};

/// Interval of looks at open connections, s.
const LOOK_S: f64 = 30.0;
/// Deviation of the rate from one step to the next, bits.
const STEP_SPREAD_BITS: f64 = 0.3;

/// A connection on its way: each step is a transfer, or the part of one that a look bounds.
pub struct Long {
    drawn: Visit,
    visit: usize,
    luck: Random,
    /// When it began, s.
    pub start_s: f64,
    /// Its transfers that have not ended, bytes; the last one is next.
    left: Vec<f64>,
    /// Time between the starts of two transfers, s.
    gap_s: f64,
    /// Transfers begun.
    begun: usize,
    /// Time of its transfers so far, s.
    pub time_s: f64,
    /// What the present stretch has measured, and when it began, s.
    stretch: Option<Sample>,
    stretch_s: f64,
}

/// A step.
pub struct Step {
    /// When it ends, s.
    pub end_s: f64,
    /// The stretch up to then, if anything was sent in it.
    pub sample: Option<Sample>,
    /// Whether the connection is closed.
    pub is_over: bool,
}

impl Long {
    /// A connection that begins.
    pub fn new(server: &Server, drawn: Visit, luck: Random, visit: usize, start_s: f64) -> Self {
        let mut left = drawn.sizes.clone();
        left.reverse();
        Self {
            gap_s: server.open_s / left.len() as f64,
            luck,
            drawn,
            visit,
            start_s,
            left,
            begun: 0,
            time_s: 0.0,
            stretch: None,
            stretch_s: start_s,
        }
    }

    /// Sends on an arm from `now_s` on, until a transfer or the time to the next look is over. With
    /// nothing left to send it waits for its close.
    pub fn step(&mut self, server: &Server, arm: usize, now_s: f64) -> Step {
        let Some(size) = self.left.pop() else {
            return Step {
                end_s: now_s.max(self.start_s + server.open_s),
                sample: self.stretch.map(|sample| Sample {
                    end: End::FinLocal,
                    ..sample
                }),
                is_over: true,
            };
        };
        let luck = self.luck.normal() * STEP_SPREAD_BITS;
        let serve = |bytes: f64| {
            let part = self.drawn.part(bytes, luck);
            server.serve(&part, self.visit, arm, now_s, 0.0)
        };
        let whole = serve(size);
        let bytes = match whole.time_s > LOOK_S {
            true => size * LOOK_S / whole.time_s,
            false => size,
        };
        let part = serve(bytes);
        self.time_s += part.time_s;
        let mut end_s = now_s + part.time_s;
        if size - bytes >= 1.0 {
            self.left.push(size - bytes);
        } else {
            self.begun += 1;
            // The next transfer begins after its think time.
            if !self.left.is_empty() {
                end_s = end_s.max(self.start_s + self.begun as f64 * self.gap_s);
            }
        }
        self.stretch = Some(match &self.stretch {
            None => Sample {
                end: End::Stretch,
                ..part.sample
            },
            Some(before) => sum(before, &part.sample),
        });
        Step {
            end_s,
            sample: self.stretch,
            is_over: false,
        }
    }

    /// Time of its transfers if all of it is on one arm, s.
    pub fn whole(mut self, server: &Server, arm: usize) -> f64 {
        let mut now_s = self.start_s;
        loop {
            let step = self.step(server, arm, now_s);
            if step.is_over {
                return self.time_s;
            }
            now_s = step.end_s;
        }
    }

    /// Age of the stretch, s.
    pub fn age_s(&self, now_s: f64) -> f64 {
        now_s - self.stretch_s
    }

    /// Another stretch begins.
    pub fn cut(&mut self, now_s: f64) {
        self.stretch = None;
        self.stretch_s = now_s;
    }
}

/// Two parts of a stretch.
fn sum(before: &Sample, part: &Sample) -> Sample {
    Sample {
        bytes: before.bytes + part.bytes,
        duration_us: before.duration_us + part.duration_us,
        min_rtt_us: before.min_rtt_us.min(part.min_rtt_us),
        segs_out: before.segs_out + part.segs_out,
        retrans: before.retrans + part.retrans,
        limited_us: before.limited_us + part.limited_us,
        steady_segs: before.steady_segs + part.steady_segs,
        steady_retrans: before.steady_retrans + part.steady_retrans,
        end: End::Stretch,
        ..*part
    }
}
