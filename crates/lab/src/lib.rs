//! x
mod loss { #![allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks, dead_code)] include!(concat!(env!("OUT_DIR"), "/loss.skel.rs")); }
