//! Model files of the learned rate controller.
//!
//! A model file is a safetensors file with a document of metadata; `docs/reference/model.md`
//! specifies both. A [`ModelFile`] is fully checked: sizes, shapes, types and ranges. Its quantised
//! numbers must match its floating-point ones. Integer models are in the [crate itself](crate).
//! Floating-point models are here, for training and simulation.

mod document;
mod error;
mod file;
mod lstm;
mod network;
mod quantised;
mod tanh;
mod tensors;

pub use document::{Document, FeatureEntry, Kind, Run, Training};
pub use error::Error;
pub use file::{FORMAT_VERSION, MAX_FILE_BYTES, ModelFile, Policy};
pub use lstm::{LSTM_WIDTH, Lstm, LstmState};
pub use network::{FloatLayer, Network};
pub use tanh::tanh;
