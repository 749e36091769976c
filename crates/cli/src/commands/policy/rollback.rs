//! `thalweg policy rollback`.

use anyhow::Result;

use crate::client::check_pins_last;
use crate::options::Global;

/// Returns to the previous policy.
pub fn run(global: &Global) -> Result<()> {
    let (place, history) = super::own_place(global)?;
    check_pins_last(&place.pin)?;
    let kept = super::kept_by_listeners(&history, &place.pin);
    let mut outcome = history.roll_back(&place)?;
    outcome.applied.notes.extend(kept);
    super::show_outcome(global, &outcome, None)
}
