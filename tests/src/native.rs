//! The C header, compiled for this machine.

use std::ffi::c_int;

use crate::{Implementation, Request};

unsafe extern "C" {
    fn thalweg_vector_answer(request: *mut Request) -> c_int;
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
