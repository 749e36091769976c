//! The three kinds of messages, as JSON. Parsers are strict: unknown keys, other versions, sizes and
//! numbers out of bounds are errors of one line.

pub mod policy;
pub mod priors;
pub mod status;

use serde::de::DeserializeOwned;

use crate::text::one_line;

pub use policy::Policy;
pub use priors::{Arm, Measured, Network, Priors, SHARDS, Shard};
pub use status::{Cell, LeftOut, Progress, Received, Stage, Status};

/// Why a message is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message is larger than its kind may be.
    #[error("found {found} bytes, expected at most {most}")]
    Size {
        /// Size of the message.
        found: usize,
        /// The bound.
        most: usize,
    },
    /// The message has another version of the format.
    #[error("format: found {found}, expected {expected}")]
    Version {
        /// Version of the message.
        found: u64,
        /// The version that this program reads.
        expected: u64,
    },
    /// The message is malformed.
    #[error("{0}")]
    Form(String),
}

impl WireError {
    /// A field has another form.
    fn wrong_field(field: &str, found: impl std::fmt::Display, expected: &str) -> Self {
        Self::Form(format!("{field}: found {found}, expected {expected}"))
    }
}

/// The version alone, whatever else there is.
#[derive(serde::Deserialize)]
struct Versioned {
    format: Option<u64>,
}

/// Reads a document of this version.
fn read_document<T: DeserializeOwned>(
    bytes: &[u8],
    most: usize,
    version: u64,
) -> Result<T, WireError> {
    if bytes.len() > most {
        return Err(WireError::Size {
            found: bytes.len(),
            most,
        });
    }
    let wrong = |error: serde_json::Error| WireError::Form(one_line(&error.to_string(), 160));
    let versioned: Versioned = serde_json::from_slice(bytes).map_err(wrong)?;
    match versioned.format {
        Some(found) if found == version => serde_json::from_slice(bytes).map_err(wrong),
        Some(found) => Err(WireError::Version {
            found,
            expected: version,
        }),
        None => Err(WireError::wrong_field(
            "format",
            "none",
            &version.to_string(),
        )),
    }
}

/// Writes a document whose types cannot fail to be written.
fn write_document(document: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("keys are text, and numbers finite")
}
