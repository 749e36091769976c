//! `thalweg._native`: the simulator for Python. Users import `thalweg.sim`. This crate only
//! converts, checks and releases the interpreter. `python/thalweg/_native.pyi` documents it.

mod batch;
mod control;
mod outcome;
mod scenario;

use pyo3::prelude::*;

/// The compiled part of `thalweg.sim`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::batch::{Batch, Decisions};
    #[pymodule_export]
    use super::control::{Learned, canonical_controller, controllers, run};
    #[pymodule_export]
    use super::scenario::Scenario;
}
