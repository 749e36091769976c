//! The C header, run by the kernel.

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use thalweg_bpf_types::{bytes_of, from_bytes};

use crate::{Implementation, Request, raw};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vectors.bpf.o"));

/// `bpf/include/thalweg_algo.h` as BPF programs in the running kernel.
pub struct Kernel {
    object: Object,
}

/// Why the programs could not be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// This process may not load programs.
    Privilege(String),
    /// The kernel refused these programs.
    Refused(String),
}

impl Kernel {
    /// Loads the programs. Needs root or CAP_BPF and CAP_PERFMON.
    pub fn load() -> Result<Self, LoadError> {
        let object = load(OBJECT, "vectors.bpf.c")?;
        Ok(Self { object })
    }

    fn run(&mut self, request: &mut Request) -> Result<(), Box<dyn std::error::Error>> {
        let program = match request.function {
            raw::VECTOR_CONNECT => "vectors_connect",
            raw::VECTOR_SCORE => "vectors_score",
            raw::VECTOR_CHANGE => "vectors_change",
            raw::VECTOR_REVIEW => "vectors_review",
            raw::VECTOR_SCORE_GROUP => "vectors_score_group",
            raw::VECTOR_ADOPT => "vectors_adopt",
            raw::VECTOR_INHERIT => "vectors_inherit",
            raw::VECTOR_WINDOW_REPORT
            | raw::VECTOR_WINDOW_MASK
            | raw::VECTOR_WINDOW_STEP
            | raw::VECTOR_WINDOW_START => "vectors_window",
            _ => "vectors_unit",
        };
        let key = 0u32.to_ne_bytes();
        let map = self
            .object
            .maps()
            .find(|map| map.name() == "requests")
            .ok_or("no map")?;
        map.update(&key, bytes_of(request), MapFlags::ANY)?;
        let program = self
            .object
            .progs_mut()
            .find(|p| p.name() == program)
            .ok_or("no such program")?;
        let status = program.test_run(ProgramInput::default())?.return_value;
        if status != 0 {
            return Err(format!("function {}: program answered {status}", request.function).into());
        }
        let value = map
            .lookup(&key, MapFlags::ANY)?
            .ok_or("the request is gone")?;
        *request = from_bytes(&value).ok_or("a value of another size")?;
        Ok(())
    }
}

impl Implementation for Kernel {
    fn name(&self) -> &'static str {
        "BPF"
    }

    fn answer(&mut self, request: &mut Request) -> Result<(), String> {
        self.run(request).map_err(|error| error.to_string())
    }
}

/// Loads an object that was compiled from `source`.
pub(crate) fn load(object: &[u8], source: &str) -> Result<Object, LoadError> {
    ObjectBuilder::default()
        .open_memory(object)
        .and_then(|open| open.load())
        .map_err(|error| {
            let why = format!("cannot load {source}: {error:#}");
            // EPERM. The verifier's EACCES is the same `ErrorKind`, so the number decides.
            if why.contains("(os error 1)") {
                LoadError::Privilege(why)
            } else {
                LoadError::Refused(why)
            }
        })
}
