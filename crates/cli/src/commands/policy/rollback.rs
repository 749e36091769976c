//! `thalweg policy rollback`.

use anyhow::Result;

use crate::client::check_pins_last;
use crate::options::Global;

/// Returns to the previous policy.
pub fn run(global: &Global) -> Result<()> {
    let (place, history) = super::own_place(global)?;
    check_pins_last(&place.pin)?;
    super::tell(global, &history.rollback(&place)?, None)
}
