//! Removal of an agent from the kernel, even if its process is gone.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use thalweg_control::system;

use crate::{features, kernel};

/// Outcome of a removal.
#[derive(Debug, Default)]
pub struct Removed {
    /// Names of the removed pins.
    pub pins: Vec<String>,
    /// Leftovers by [`crate::feature::LeftoverName::key`]: the reason that a feature could not undo
    /// its changes; `None`: nothing is left.
    pub leftovers: BTreeMap<&'static str, Option<String>>,
}

/// Removes all pins of an agent under `pin`, and undoes leftovers of features. A policy stays in
/// force, connections keep their congestion control.
///
/// # Errors
/// System errors.
pub fn detach(pin: &Path) -> Result<Removed> {
    if !system::has_pins(pin) {
        return Ok(Removed::default());
    }
    let features = features::all();
    let undo = features.iter().map(|it| it.find_leftover(pin));
    let undo: Vec<_> = undo.collect();
    let pins = kernel::remove_pins(pin)?;
    let leftovers = features.iter().zip(undo).filter_map(|(feature, undo)| {
        let name = feature.leftover_name()?;
        let failed = undo.and_then(|undo| undo().err());
        let failed = failed.map(|error| format!("{error:#}"));
        Some((name.key, failed))
    });
    Ok(Removed {
        leftovers: leftovers.collect(),
        pins,
    })
}
