//! Repairs that are tried one by one: what was done, and what was refused.

use std::fmt::Display;

/// The outcome of repairs; one that is refused keeps no other away.
#[derive(Debug, Default)]
pub struct Attempts {
    /// Repairs that were done, in words.
    pub done: Vec<String>,
    /// Refusals of others, in words.
    pub refused: Vec<String>,
}

impl Attempts {
    /// Repairs that were done, in words.
    pub fn of(done: Vec<String>) -> Self {
        Self {
            done,
            refused: Vec::new(),
        }
    }

    /// Notes the outcome of one: what was done, if there was something to do.
    pub fn record_outcome<E: Display>(&mut self, outcome: Result<Option<String>, E>) {
        match outcome {
            Ok(done) => self.done.extend(done),
            Err(error) => self.record_refusal(&error),
        }
    }

    /// Notes a refusal.
    pub fn record_refusal(&mut self, error: &impl Display) {
        self.refused.push(format!("{error:#}"));
    }
}

/// Faults that a second look finds, too: another process may be changing things at the first.
///
/// # Errors
/// Those of a look.
pub(crate) fn confirm_faults<E>(
    look: impl Fn() -> Result<Vec<String>, E>,
) -> Result<Vec<String>, E> {
    match look()?.is_empty() {
        true => Ok(Vec::new()),
        false => look(),
    }
}

impl<E: Display> From<Result<Self, E>> for Attempts {
    fn from(outcome: Result<Self, E>) -> Self {
        outcome.unwrap_or_else(|error| {
            let mut refused = Self::default();
            refused.record_refusal(&error);
            refused
        })
    }
}
