//! What is left of a run once its kernel may be gone.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::outcome::Outcome;
use crate::table;

/// What is left of a run once its kernel may be gone.
#[derive(Debug, Serialize, Deserialize)]
pub struct Finished {
    /// Whether no expectation was missed.
    pub passed: bool,
    /// The document that [`super::json`] makes.
    pub document: Value,
    /// The tables for a terminal.
    pub text: String,
}

impl Finished {
    /// What is shown of an outcome.
    ///
    /// # Errors
    /// [`Error::System`] where a figure cannot be written as JSON.
    pub fn of(outcome: &Outcome) -> Result<Self, Error> {
        let texts: Vec<String> = outcome.scenarios.iter().map(table::scenario).collect();
        Ok(Self {
            passed: outcome.passed(),
            document: super::json(outcome)?,
            text: texts.join("\n") + "\n",
        })
    }
}
