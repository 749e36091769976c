/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The arithmetic of the congestion controls, compiled for this machine. */
#include "thalweg_cc.h"

__u32 thalweg_test_htcp_alpha_q7(__u64 elapsed_us, __u32 beta_q7, __u32 min_rtt_us);
__u32 thalweg_test_htcp_beta_q7(__u32 min_rtt_us, __u32 max_rtt_us, __u32 rate, __u32 previous);
__u32 thalweg_test_htcp_ssthresh(__u32 cwnd, __u32 beta_q7);
__u32 thalweg_test_htcp_acks_per_segment(__u32 cwnd, __u32 alpha_q7);
__u32 thalweg_test_dctcp_alpha_q16(__u32 alpha_q16, __u32 marked, __u32 acked);
__u32 thalweg_test_dctcp_ssthresh(__u32 cwnd, __u32 alpha_q16);

__u32 thalweg_test_htcp_alpha_q7(__u64 elapsed_us, __u32 beta_q7, __u32 min_rtt_us)
{
	return thalweg_htcp_alpha_q7(elapsed_us, beta_q7, min_rtt_us);
}

__u32 thalweg_test_htcp_beta_q7(__u32 min_rtt_us, __u32 max_rtt_us, __u32 rate, __u32 previous)
{
	return thalweg_htcp_beta_q7(min_rtt_us, max_rtt_us, rate, previous);
}

__u32 thalweg_test_htcp_ssthresh(__u32 cwnd, __u32 beta_q7)
{
	return thalweg_htcp_ssthresh(cwnd, beta_q7);
}

__u32 thalweg_test_htcp_acks_per_segment(__u32 cwnd, __u32 alpha_q7)
{
	return thalweg_htcp_acks_per_segment(cwnd, alpha_q7);
}

__u32 thalweg_test_dctcp_alpha_q16(__u32 alpha_q16, __u32 marked, __u32 acked)
{
	return thalweg_dctcp_alpha_q16(alpha_q16, marked, acked);
}

__u32 thalweg_test_dctcp_ssthresh(__u32 cwnd, __u32 alpha_q16)
{
	return thalweg_dctcp_ssthresh(cwnd, alpha_q16);
}
