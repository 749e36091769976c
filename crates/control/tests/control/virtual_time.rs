//! What `make test` runs in virtual time: cases of several modules in one boot, as a boot takes fifteen
//! seconds of a processor.

/// Policies and congestion controls.
mod connections {
    use std::time::Duration;

    use thalweg_testbed::virtual_time::in_virtual_time;

    use crate::{cc_rate, policy, policy_timers};

    in_virtual_time!(
        within Duration::from_secs(400),
        [
            "models/proportional.safetensors",
            "models/adpg-plus.safetensors",
            "policies/connect-fast.toml",
            "policies/recover-fast.toml",
        ],
        policy::a_lost_syn_is_sent_again_when_the_rule_says,
        policy::retransmission_and_acknowledgement_times_have_their_bounds,
        policy::statistics_come_each_second,
        policy::a_rate_has_its_cap,
        policy_timers::connect_to_a_silent_address_is_as_patient,
        policy_timers::a_peer_beyond_a_second_still_gets_in,
        policy_timers::a_clean_connection_keeps_its_timeout_and_its_window,
        cc_rate::a_model_fills_the_path_with_a_short_queue,
    );
}
