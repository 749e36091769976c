//! The published tuner's faults in choosing and scoring: each situation is put to both
//! modes, and shows that `classic` has the fault and `thalweg` does not.

use thalweg_core::{
    Decision, End, Host, Mode, ONE_Q16, Outcome, Params, Reason, Sample, Verdict, best_arm, decide,
    forget, propensities_q16, rescue, score,
};

/// Arms by their index in the published table.
const CUBIC: usize = 0;
const BBR: usize = 1;
const HTCP: usize = 2;

const MBIT: u64 = 125_000;
const MIB: u64 = 1 << 20;
const SECOND_NS: u64 = 1_000_000_000;

/// One agent that knows one host, cubic being the system's own arm.
struct Agent {
    params: Params,
    host: Host,
    allowed: u16,
    now_ns: u64,
    random: u64,
}

impl Agent {
    fn new(mode: Mode, allowed: &[usize]) -> Self {
        Self {
            params: Params { mode, rescue_arm: Some(BBR), ..Params::default() },
            host: Host::default(),
            allowed: allowed.iter().fold(0, |mask, arm| mask | 1 << arm),
            now_ns: SECOND_NS,
            random: 1,
        }
    }

    fn both(allowed: &[usize]) -> [Self; 2] {
        [Mode::Classic, Mode::Thalweg].map(|mode| Self::new(mode, allowed))
    }

    fn seeded(self, seed: u64) -> Self {
        Self { random: seed, ..self }
    }

    /// The upper half of a 64-bit linear congruential generator (Knuth's MMIX constants).
    fn draw(&mut self) -> u32 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 32) as u32
    }

    /// A new connection, one second after the last.
    fn connect(&mut self) -> Decision {
        self.now_ns += SECOND_NS;
        forget(&mut self.host, &self.params, self.now_ns);
        self.host.connections += 1;
        // The low bits of such a generator are poor, and both modes read them.
        let random = [0; 3].map(|_: u32| self.draw().rotate_left(16) ^ self.draw());
        let decision = decide(&self.host, Some(CUBIC), self.allowed, &self.params, random);
        self.host.count_decision(&decision);
        decision
    }

    fn score(&mut self, arm: usize, sample: &Sample) -> Verdict {
        score(&mut self.host, arm, sample, &self.params, self.now_ns)
    }

    /// Connects and scores what the arm then achieves; returns the arm.
    fn transfer(&mut self, path: impl Fn(usize) -> Sample) -> usize {
        let arm = self.connect().arm.unwrap_or(CUBIC);
        self.score(arm, &path(arm));
        arm
    }

    fn share_q16(&self, arm: usize) -> u32 {
        propensities_q16(&self.host, Some(CUBIC), self.allowed, &self.params)[arm]
    }

    fn best(&self) -> Option<usize> {
        best_arm(&self.host, Some(CUBIC), self.allowed, &self.params)
    }
}

/// A bulk transfer of one second over a path of 20 ms.
fn bulk(rate_bps: u64) -> Sample {
    let bytes = rate_bps / 8;
    Sample {
        bytes,
        duration_us: 1_000_000,
        rate_delivered_bytes: bytes / 10,
        rate_interval_us: 100_000,
        srtt_us: 20_000,
        min_rtt_us: 20_000,
        segs_out: (bytes / 1448) as u32,
        retrans: 0,
        busy_time: false,
        end: End::FinLocal,
    }
}
