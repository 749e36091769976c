//! `thalweg-lab remove-all`: what the scripts of the packages call before the command goes.

use anyhow::{Result, bail};

/// Removes what `thalweg-lab stack setup` has prepared, of all users. Goes on after a failure.
///
/// # Errors
/// At the end, with all that is still there.
pub fn run() -> Result<()> {
    let users = thalweg_stack::prepared_users()?;
    let left = users.iter().filter_map(|user| {
        let error = thalweg_stack::remove_wires(&user.to_string()).err()?;
        Some(format!("prepared stacks of the user {user}: {error}"))
    });
    let left: Vec<String> = left.collect();
    if !left.is_empty() {
        bail!("still there: {}", left.join("; "));
    }
    Ok(())
}
