//! The types of everything that crosses the kernel border.
//!
//! [`raw`] is generated from `bpf/include/thalweg_abi.h`, the only definition; the test `generated`
//! compares the two. The conversions turn bytes of the kernel into types of [`thalweg_learner`] and
//! back. Building this crate needs no clang. The programs themselves are in `thalweg-bpf-objects`,
//! which this crate must not know.

mod convert;
pub mod earlier;
mod model;
mod pod;
#[rustfmt::skip]
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::all,
// bindgen itself writes zeros for large arrays.
    clippy::undocumented_unsafe_blocks
)]
pub mod raw;

pub use convert::{
    CopyState, arm_name, arm_name_bytes, check_copy, host_from_raw, host_to_raw, key_from_raw,
    key_to_raw, note_record,
};
pub use model::model_to_raw;
pub use pod::{Pod, bytes_of, from_bytes};
