//! Repairs that are tried one by one: what was done, and what was refused.

use anyhow::{Error, Result};

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
    pub fn record_outcome(&mut self, outcome: Result<Option<String>>) {
        match outcome {
            Ok(done) => self.done.extend(done),
            Err(error) => self.record_refusal(&error),
        }
    }

    /// Notes a refusal.
    pub fn record_refusal(&mut self, error: &Error) {
        self.refused.push(format!("{error:#}"));
    }
}

impl From<Result<Self>> for Attempts {
    fn from(outcome: Result<Self>) -> Self {
        outcome.unwrap_or_else(|error| {
            let mut refused = Self::default();
            refused.record_refusal(&error);
            refused
        })
    }
}
