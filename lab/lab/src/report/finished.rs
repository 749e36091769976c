//! The part of a run that outlives its kernel.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::outcome::Outcome;
use crate::table;

/// The part of a run that outlives its kernel.
#[derive(Debug, Serialize, Deserialize)]
pub struct Finished {
    /// Whether no expectation was missed.
    pub passed: bool,
    /// The document of [`super::run_document()`].
    pub document: Value,
    /// The tables for a terminal.
    pub text: String,
}

impl Finished {
    /// The document and tables of an outcome.
    ///
    /// # Errors
    /// [`Error::Process`] if a figure cannot be written as JSON.
    pub fn from_outcome(outcome: &Outcome) -> Result<Self, Error> {
        let texts: Vec<String> = outcome.scenarios.iter().map(table::scenario_text).collect();
        Ok(Self {
            passed: outcome.has_passed(),
            document: super::run_document(outcome)?,
            text: texts.join("\n") + "\n",
        })
    }
}
