//! The C header, compiled for this machine.

use std::ffi::c_int;

use crate::{Implementation, Request};

unsafe extern "C" {
    fn thalweg_vector_answer(request: *mut Request) -> c_int;
    fn thalweg_vector_answer_covered(request: *mut Request) -> c_int;
    fn thalweg_edges() -> usize;
    fn thalweg_edge_missed(index: usize) -> u64;
}

/// `bpf/include/thalweg_algo.h` as native code.
#[derive(Default)]
pub struct Native;

impl Implementation for Native {
    fn name(&self) -> &'static str {
        "native C"
    }

    fn answer(&mut self, request: &mut Request) -> Result<(), String> {
        // SAFETY: the type is generated from the header that native.c includes; the pointer is
        // exclusive and not kept.
        match unsafe { thalweg_vector_answer(request) } {
            0 => Ok(()),
            _ => Err(format!("unknown function {}", request.function)),
        }
    }
}

/// `bpf/include/thalweg_algo.h` without optimisation; notes which edges of its code are reached.
#[derive(Default)]
pub struct Covered;

impl Covered {
    /// The number of edges, and the addresses in this program's file of those that were not reached.
    pub fn missed(&self) -> (usize, Vec<u64>) {
        // SAFETY: the count is of the array that the other function reads.
        unsafe {
            let edges = thalweg_edges();
            let missed = (0..edges).map(|index| thalweg_edge_missed(index));
            (edges, missed.filter(|&address| address != 0).collect())
        }
    }
}

impl Implementation for Covered {
    fn name(&self) -> &'static str {
        "native C without optimisation"
    }

    fn answer(&mut self, request: &mut Request) -> Result<(), String> {
        // SAFETY: as for `Native`.
        match unsafe { thalweg_vector_answer_covered(request) } {
            0 => Ok(()),
            _ => Err(format!("unknown function {}", request.function)),
        }
    }
}
