//! The arithmetic of H-TCP and DCTCP (`bpf/include/thalweg_cc.h`) as native code. That header has
//! each function's meaning, units and source.

mod raw {
    // SAFETY: defined in cc.c with these types; they take and return only numbers.
    unsafe extern "C" {
        /// Segments of growth per round trip, Q7; time in µs, factor in Q7, round-trip time in µs.
        pub safe fn thalweg_test_htcp_alpha_q7(elapsed_us: u64, beta_q7: u32, rtt_us: u32) -> u32;
        /// Backoff factor, Q7; shortest and longest round-trip time in µs, rates in any unit.
        pub safe fn thalweg_test_htcp_beta_q7(min: u32, max: u32, rate: u32, previous: u32) -> u32;
        /// Segments of a window after a factor, Q7.
        pub safe fn thalweg_test_htcp_ssthresh(cwnd: u32, beta_q7: u32) -> u32;
        /// Acknowledged segments per segment of growth; window in segments, growth in Q7.
        pub safe fn thalweg_test_htcp_acks_per_segment(cwnd: u32, alpha_q7: u32) -> u32;
        /// Estimated share of marks after a window, Q16; marked and acknowledged segments.
        pub safe fn thalweg_test_dctcp_alpha_q16(alpha_q16: u32, marked: u32, acked: u32) -> u32;
        /// Segments of a window after marks; share in Q16.
        pub safe fn thalweg_test_dctcp_ssthresh(cwnd: u32, alpha_q16: u32) -> u32;
    }
}

pub use raw::{
    thalweg_test_dctcp_alpha_q16 as dctcp_alpha_q16, thalweg_test_dctcp_ssthresh as dctcp_ssthresh,
    thalweg_test_htcp_acks_per_segment as htcp_acks_per_segment,
    thalweg_test_htcp_alpha_q7 as htcp_alpha_q7, thalweg_test_htcp_beta_q7 as htcp_beta_q7,
    thalweg_test_htcp_ssthresh as htcp_ssthresh,
};
