//! What `make test` runs in virtual time: cases of several modules in one boot, as a boot takes fifteen
//! seconds of a processor.

/// Paths of the laboratory and of live links.
mod paths {
    use thalweg_testbed::virtual_time::in_virtual_time;

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
