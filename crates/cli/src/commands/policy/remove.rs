//! `thalweg policy remove`.

use anyhow::Result;

use crate::options::Global;
use crate::output;

/// Removes the policy.
pub fn run(global: &Global) -> Result<()> {
    let (place, history) = super::place(global, global.readable_or_warn()?)?;
    let removed = history.remove(&place)?;
    if global.json {
        return output::print_json(&serde_json::json!({ "removed": removed }));
    }
    output::print(if removed {
        "removed from the kernel; connections keep what they were given\n"
    } else {
        "no policy was in force\n"
    })
}
