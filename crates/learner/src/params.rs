//! Parameters of the learner.

/// How arms are chosen and connections scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The published algorithm, faults included.
    Classic,
    /// The default.
    Thalweg,
}

impl Mode {
    /// Name of the mode in configuration, store and reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Classic => "classic",
            Mode::Thalweg => "thalweg",
        }
    }
}

/// Parameters of the learner. The classic mode reads only `mode` and `loss_shift`; its other
/// constants are the published ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The algorithm.
    pub mode: Mode,
    /// Scored measurements of a host before the first exploration.
    pub warm_up: u32,
    /// How fast exploration falls with cost gap × evidence; values above 2^20 count as 2^20.
    pub gap_scale: u32,
    /// Limit of an arm's evidence (Q16): the length of its memory in measurements.
    pub weight_max_q16: u32,
    /// With each measurement the other arms lose 1/2^idle_shift of their evidence; 0..=31.
    pub idle_shift: u32,
    /// Half-life of evidence, ns; 0 = never halved.
    pub half_life_ns: u64,
    /// Cost of a doubled RTT in bits, Q16.
    pub latency_weight_q16: u32,
    /// Added to every RTT before the logarithm, µs: queueing delays well below it cost nothing.
    pub latency_guard_us: u32,
    /// Transfers of fewer acknowledged bytes are not scored.
    pub score_min_bytes: u64,
    /// Transfers of at least this many bytes have full weight.
    pub score_full_bytes: u64,
    /// A path is lossy, and the loss rule applies, above `segments >> loss_shift` retransmissions;
    /// 0..=63.
    pub loss_shift: u32,
    /// No arm is changed mid-flow before this many segments.
    pub loss_min_segs: u32,
    /// Arm that is tried first on lossy paths (bbr).
    pub rescue_arm: Option<usize>,
    /// Interval of looks at long connections, ns; 0 = they are not looked at.
    pub stretch_ns: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            mode: Mode::Thalweg,
            warm_up: 1,
            gap_scale: 256,
            weight_max_q16: 8 << 16,
            idle_shift: 6,
            half_life_ns: 30 * 60 * 1_000_000_000,
            latency_weight_q16: 1 << 14,
            latency_guard_us: 10_000,
            score_min_bytes: 128 * 1024,
            score_full_bytes: 1024 * 1024,
            loss_shift: 6,
            loss_min_segs: 128,
            rescue_arm: None,
            stretch_ns: 30_000_000_000,
        }
    }
}
