//! `thalweg policy rollback`.

use anyhow::Result;

use crate::options::Global;

/// Returns to the previous policy.
pub fn run(global: &Global) -> Result<()> {
    let (place, history) = super::place(global.config()?)?;
    super::tell(global, &history.rollback(&place)?, None)
}
