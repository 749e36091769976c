//! What `make test` runs in virtual time: cases of several modules in one boot, as a boot takes fifteen
//! seconds of a processor.

/// Agents, policies and congestion controls.
mod connections {
    use std::time::Duration;

    use crate::support::virtual_time::in_virtual_time;
    use crate::{cc_rate, clamps, policy, policy_timers, windows};

    in_virtual_time!(
        within Duration::from_secs(400),
        [
            "models/proportional.safetensors",
            "models/adpg-plus.safetensors",
            "policies/connect-fast.toml",
            "policies/recover-fast.toml",
        ],
        clamps::open_and_new_connections_have_what_the_path_carries_until_the_agent_ends,
        policy::a_lost_syn_is_sent_again_when_the_rule_says,
        policy::retransmission_and_acknowledgement_times_have_their_bounds,
        policy::statistics_come_each_second,
        policy::a_rate_has_its_cap,
        policy_timers::connect_to_a_silent_address_is_as_patient,
        policy_timers::a_peer_beyond_a_second_still_gets_in,
        policy_timers::a_clean_connection_keeps_its_timeout_and_its_window,
        windows::what_routes_and_policies_set_stays,
        windows::a_larger_window_is_paced,
        cc_rate::a_model_fills_the_path_with_a_short_queue,
    );
}

/// Paths of the laboratory and of live links.
mod paths {
    use crate::support::virtual_time::in_virtual_time;
    use crate::{lab_backends, lab_paths, link};

    in_virtual_time!(
        [],
        lab_backends::a_bottleneck_gives_the_same_goodput_on_every_backend,
        lab_paths::the_bottleneck_has_the_rate_that_was_asked_for,
        lab_paths::round_trip_times_are_those_of_the_queue,
        lab_paths::the_path_changes_before_a_connection_and_within_one,
        link::iperf3_gets_the_rate_and_no_more,
        link::the_round_trip_time_is_twice_the_delay,
        link::ecn_marks_instead_of_dropping,
    );
}
