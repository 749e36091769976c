//! Records of remote hosts, and of each arm per host.

use crate::key::Level;

/// Largest number of congestion controls of an agent.
pub const MAX_ARMS: usize = 16;

/// Record of one arm (congestion control) for one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArmState {
    /// Classic: the published cost, scale 1,000,000, 0 = unset. Thalweg: discounted mean
    /// cost in bits, Q16, meaningful while `weight_q16` is above 0.
    pub value: u64,
    /// Highest rate seen. Classic: bytes per µs. Thalweg: bytes per second.
    pub max_rate: u64,
    /// Thalweg: evidence, a discounted number of full-weight measurements, Q16.
    pub weight_q16: u32,
    /// Thalweg: discounted mean of |cost − value|, Q16 bits.
    pub deviation_q16: u32,
    /// Thalweg: discounted mean of log2(bytes per second), Q16.
    pub log_rate_q16: u32,
    /// Thalweg: discounted mean of the smoothed RTT at the end of connections, µs.
    pub srtt_us: u32,
    /// Lowest RTT seen with this arm, µs; 0 = none yet.
    pub min_rtt_us: u32,
    /// Decisions for this arm.
    pub chosen: u32,
    /// Decisions for this arm because of its lowest cost.
    pub greedy: u32,
    /// Measurements taken.
    pub scored: u32,
    /// Thalweg: discounted number of data segments sent.
    pub segs: u32,
    /// Thalweg: discounted number of retransmissions among the data segments.
    pub retrans: u32,
    /// Thalweg: handicap against luck, Q16 bits.
    pub caution_q16: u32,
    /// Groups: mean cost by the group's own measurements, Q16 bits.
    pub own_q16: u32,
    /// Groups: evidence of the own measurements, Q16. `value` and `weight_q16` contain what wider
    /// groups know.
    pub own_weight_q16: u32,
    /// Thalweg: discounted number of measurements compared with the system's mean.
    pub counted: u16,
    /// Thalweg: number of compared measurements that were much slower, the slowest counted twice.
    pub slow: u16,
}

/// Record of one remote host, or of a [group](crate::Level) of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Thalweg: what the record is of.
    pub level: Level,
    /// Connections established, however their congestion control was chosen.
    pub connections: u32,
    /// Measurements taken.
    pub scored: u32,
    /// Connections whose arm was changed mid-flow.
    pub switched: u32,
    /// Thalweg: mask of the arms that gain at the expense of others.
    pub harmful: u16,
    /// Thalweg: mask of the arms that are much slower now and then.
    pub unsteady: u16,
    /// Thalweg: bits that trials may cost, Q16.
    pub credit_q16: u32,
    /// Thalweg: log2 of the RTT under the system's arm over the base RTT, Q16 bits.
    pub queue_q16: u32,
    /// Thalweg: lowest RTT since the start of this half-life, µs; 0 = none yet.
    pub base_rtt_us: u32,
    /// Thalweg: lowest RTT in the half-life before, µs; 0 = none.
    pub last_base_rtt_us: u32,
    /// Thalweg: open trials (connections that explore).
    pub trials: u32,
    /// Thalweg: monotonic time when the last trial started, ns.
    pub trial_ns: u64,
    /// Groups: mean cost of the system's arm at hosts that it was not measured on before, Q16 bits;
    /// 0 = none yet.
    pub usual_q16: u32,
    /// Groups: mean log2(bytes per second) of the system's arm at such hosts, Q16.
    pub usual_log_rate_q16: u32,
    /// Windows: index of the largest that may be chosen. Otherwise the fleet's measurements of the
    /// system arm.
    pub step: u32,
    /// Windows: `scored` when the step last changed. Records of the fleet: agents that reported the
    /// system arm.
    pub step_scored: u32,
    /// Lowest RTT seen, µs; 0 = none yet.
    pub min_rtt_us: u32,
    /// Highest rate seen; unit as in [`ArmState::max_rate`].
    pub max_rate: u64,
    /// Monotonic time of the last connection or score, ns.
    pub seen_ns: u64,
    /// Monotonic time up to which evidence has been discounted, ns; 0 = not yet.
    pub forgot_ns: u64,
    /// One record per arm, by index in the arm table.
    pub arms: [ArmState; MAX_ARMS],
}

/// Indices of the arms in a mask, lowest first.
pub(crate) fn arms_in(mask: u16) -> impl Iterator<Item = usize> {
    (0..MAX_ARMS).filter(move |index| mask & (1 << index) != 0)
}
