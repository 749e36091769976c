//! The agent: loads the kernel programs, keeps what they learn, answers questions.
//!
//! `docs/` has a page a task; ARCHITECTURE.md has the map.
pub mod view;
