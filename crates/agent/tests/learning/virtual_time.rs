//! What `make test` runs in virtual time: cases of several modules in one boot, as a boot takes fifteen
//! seconds of a processor.

/// Clamps and initial windows.
mod connections {
    use std::time::Duration;

    use thalweg_testbed::virtual_time::in_virtual_time;

    use crate::{clamps, windows};

    in_virtual_time!(
        within Duration::from_secs(400),
        [],
        clamps::open_and_new_connections_have_what_the_path_carries_until_the_agent_ends,
        windows::what_routes_and_policies_set_stays,
        windows::a_larger_window_is_paced,
    );
}
