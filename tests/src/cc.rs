//! The arithmetic of H-TCP and DCTCP (`bpf/include/thalweg_cc.h`) as native code. Each
//! function's meaning, units and source are in that header.

#[allow(clippy::missing_safety_doc, reason = "private declarations")]
mod raw {
    unsafe extern "C" {
        pub safe fn thalweg_test_htcp_alpha_q7(elapsed_us: u64, beta_q7: u32, rtt_us: u32) -> u32;
        pub safe fn thalweg_test_htcp_beta_q7(min: u32, max: u32, rate: u32, previous: u32) -> u32;
        pub safe fn thalweg_test_htcp_ssthresh(cwnd: u32, beta_q7: u32) -> u32;
        pub safe fn thalweg_test_htcp_acks_per_segment(cwnd: u32, alpha_q7: u32) -> u32;
        pub safe fn thalweg_test_dctcp_alpha_q16(alpha_q16: u32, marked: u32, acked: u32) -> u32;
        pub safe fn thalweg_test_dctcp_ssthresh(cwnd: u32, alpha_q16: u32) -> u32;
    }
}

pub use raw::{
    thalweg_test_dctcp_alpha_q16 as dctcp_alpha_q16, thalweg_test_dctcp_ssthresh as dctcp_ssthresh,
    thalweg_test_htcp_acks_per_segment as htcp_acks_per_segment,
    thalweg_test_htcp_alpha_q7 as htcp_alpha_q7, thalweg_test_htcp_beta_q7 as htcp_beta_q7,
    thalweg_test_htcp_ssthresh as htcp_ssthresh,
};
