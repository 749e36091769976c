//! Model files of the learned rate controller.
//!
//! A model file is a safetensors file with a document of metadata; `docs/reference/model.md` describes
//! both. [`ModelFile`] is one that was checked throughout: sizes, shapes, types, ranges, and
//! that its quantised numbers are those of its floating-point ones. What runs in integers is in
//! the [crate itself](crate); what runs in floating point is here, for training and simulation.

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
