//! The learned rate controller's arithmetic, three times: the Rust reference, the C header
//! compiled for this machine, and the same header run by the kernel.

use std::ffi::{CStr, c_char, c_int};

use libbpf_rs::{MapCore, MapFlags, Object, ProgramInput};
use thalweg_bpf_types::raw::thalweg_model;
use thalweg_bpf_types::{bytes_of, from_bytes, model_to_raw};
use thalweg_rate::{Flow, MAX_INPUTS, Measurement, Model, next_rate};

use crate::LoadError;

/// The request to both builds of the header, generated from `src/network_request.h`.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    clippy::all
)]
pub mod raw {
    use thalweg_bpf_types::raw::{thalweg_measurement, thalweg_rate_flow};
    include!(concat!(env!("OUT_DIR"), "/network_request.rs"));
}

type Request = raw::network_request;

// SAFETY: generated from network_request.h: integers only, no padding (size asserted there).
unsafe impl thalweg_bpf_types::Pod for Request {}

/// One step of a flow: the action, the next rate, and the inputs.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// Q15, oldest first; zero beyond the model's inputs.
    pub inputs: [i16; MAX_INPUTS],
    /// Q15.
    pub action_q15: i32,
    /// In the unit of the given rates.
    pub next_rate: u64,
}

/// An implementation that runs models; it keeps the flows.
pub trait Runner {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// Loads a model, for a flow that has not decided yet.
    fn begin(&mut self, model: &Model) -> Result<(), String>;

    /// The action for these inputs.
    fn infer(&mut self, inputs: &[i16]) -> Result<i32, String>;

    /// The flow's next decision.
    fn step(&mut self, measurement: Measurement, floor: u64, cap: u64) -> Result<Step, String>;

    /// The rate after an action.
    fn next_rate(&mut self, rate: u64, action: i16, floor: u64, cap: u64) -> Result<u64, String>;
}

/// `thalweg_rate`.
#[derive(Default)]
pub struct CoreRunner {
    model: Option<Model>,
    flow: Flow,
}

impl CoreRunner {
    fn model(&self) -> Result<&Model, String> {
        self.model.as_ref().ok_or_else(|| "no model yet".to_owned())
    }
}

impl Runner for CoreRunner {
    fn name(&self) -> &'static str {
        "core"
    }

    fn begin(&mut self, model: &Model) -> Result<(), String> {
        self.model = Some(model.clone());
        self.flow = Flow::default();
        Ok(())
    }

    fn infer(&mut self, inputs: &[i16]) -> Result<i32, String> {
        Ok(self.model()?.decider().infer(inputs).into())
    }

    fn step(&mut self, measurement: Measurement, floor: u64, cap: u64) -> Result<Step, String> {
        let mut flow = std::mem::take(&mut self.flow);
        let action = self.model()?.decide_action(&mut flow, &measurement);
        self.flow = flow;
        Ok(Step {
            inputs: *self.flow.inputs(),
            action_q15: action.into(),
            next_rate: next_rate(measurement.rate, action, floor, cap),
        })
    }

    fn next_rate(&mut self, rate: u64, action: i16, floor: u64, cap: u64) -> Result<u64, String> {
        Ok(next_rate(rate, action, floor, cap))
    }
}

/// An implementation of the header's requests.
trait Answer {
    const NAME: &'static str;
    fn load(&mut self, model: Box<thalweg_model>) -> Result<(), String>;
    fn answer(&mut self, request: &mut Request) -> Result<(), String>;
}

/// One of the two builds of the header, and its flow.
pub struct HeaderRunner<A> {
    side: A,
    flow: thalweg_bpf_types::raw::thalweg_rate_flow,
}

impl<A: Answer> Runner for HeaderRunner<A> {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn begin(&mut self, model: &Model) -> Result<(), String> {
        self.flow = Default::default();
        self.side.load(model_to_raw(model))
    }

    fn infer(&mut self, inputs: &[i16]) -> Result<i32, String> {
        let mut request = Request {
            function: raw::NETWORK_INFER,
            ..Default::default()
        };
        request.flow.inputs[..inputs.len()].copy_from_slice(inputs);
        self.side.answer(&mut request)?;
        Ok(request.action_q15)
    }

    fn step(&mut self, measurement: Measurement, floor: u64, cap: u64) -> Result<Step, String> {
        let mut request = Request {
            function: raw::NETWORK_STEP,
            flow: self.flow,
            floor,
            cap,
            ..Default::default()
        };
        request.measurement.rtt_ns = measurement.rtt_ns;
        request.measurement.base_rtt_ns = measurement.base_rtt_ns;
        request.measurement.rate = measurement.rate;
        request.measurement.line_rate = measurement.line_rate;
        self.side.answer(&mut request)?;
        self.flow = request.flow;
        Ok(Step {
            inputs: request.flow.inputs,
            action_q15: request.action_q15,
            next_rate: request.next_rate,
        })
    }

    fn next_rate(&mut self, rate: u64, action: i16, floor: u64, cap: u64) -> Result<u64, String> {
        let mut request = Request {
            function: raw::NETWORK_RATE,
            action_q15: action.into(),
            floor,
            cap,
            ..Default::default()
        };
        request.measurement.rate = rate;
        self.side.answer(&mut request)?;
        Ok(request.next_rate)
    }
}

unsafe extern "C" {
    fn thalweg_network_answer(model: *const thalweg_model, request: *mut Request) -> c_int;
}

/// The header as native code.
#[derive(Default)]
pub struct NativeSide {
    model: Option<Box<thalweg_model>>,
}

/// The header compiled for this machine.
pub fn native() -> HeaderRunner<NativeSide> {
    HeaderRunner {
        side: NativeSide::default(),
        flow: Default::default(),
    }
}

impl Answer for NativeSide {
    const NAME: &'static str = "native C";

    fn load(&mut self, model: Box<thalweg_model>) -> Result<(), String> {
        self.model = Some(model);
        Ok(())
    }

    fn answer(&mut self, request: &mut Request) -> Result<(), String> {
        let model = self.model.as_deref().ok_or("no model yet")?;
        // SAFETY: both types are generated from the headers that network_native.c includes; the
        // pointers are valid, the second exclusive, and not kept.
        match unsafe { thalweg_network_answer(model, request) } {
            0 => Ok(()),
            _ => Err(format!("unknown function {}", request.function)),
        }
    }
}

unsafe extern "C" {
    fn thalweg_network_answer_checked(
        model: *const thalweg_model,
        request: *mut Request,
        found: *mut *const c_char,
    ) -> c_int;
    fn thalweg_checked_shift(by: c_int, found: *mut *const c_char) -> c_int;
}

/// The header as native code that detects undefined behaviour.
#[derive(Default)]
pub struct CheckedSide {
    model: Option<Box<thalweg_model>>,
}

/// The header compiled with clang's UndefinedBehaviorSanitizer. An answer fails if it finds
/// undefined behaviour.
pub fn checked() -> HeaderRunner<CheckedSide> {
    HeaderRunner {
        side: CheckedSide::default(),
        flow: Default::default(),
    }
}

impl Answer for CheckedSide {
    const NAME: &'static str = "checked C";

    fn load(&mut self, model: Box<thalweg_model>) -> Result<(), String> {
        self.model = Some(model);
        Ok(())
    }

    fn answer(&mut self, request: &mut Request) -> Result<(), String> {
        let model = self.model.as_deref().ok_or("no model yet")?;
        let mut found = std::ptr::null();
        // SAFETY: as for the plain build; `found` is written before it returns.
        let status = unsafe { thalweg_network_answer_checked(model, request, &raw mut found) };
        fault_at(found)?;
        match status {
            0 => Ok(()),
            _ => Err(format!("unknown function {}", request.function)),
        }
    }
}

fn fault_at(found: *const c_char) -> Result<(), String> {
    if found.is_null() {
        return Ok(());
    }
    // SAFETY: not null, so it is one of the literals of network_checked.c.
    let name = unsafe { CStr::from_ptr(found) };
    Err(format!("undefined in C: {}", name.to_string_lossy()))
}

/// `1 << by` by the same build, which is undefined in C from 31 on. It shows whether the build
/// detects anything.
///
/// # Errors
/// The shift was undefined.
pub fn checked_shift(by: i32) -> Result<i32, String> {
    let mut found = std::ptr::null();
    // SAFETY: `found` is written before it returns; the sanitizer continues after undefined
    // behaviour.
    let shifted = unsafe { thalweg_checked_shift(by, &raw mut found) };
    fault_at(found).map(|()| shifted)
}

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/network_vectors.bpf.o"));

/// The header as a program in the running kernel.
pub struct KernelSide {
    object: Object,
}

/// Loads the header into the kernel. Needs root or CAP_BPF and CAP_PERFMON.
pub fn kernel() -> Result<HeaderRunner<KernelSide>, LoadError> {
    Ok(HeaderRunner {
        side: KernelSide {
            object: crate::kernel::load(OBJECT, "network_vectors.bpf.c")?,
        },
        flow: Default::default(),
    })
}

impl KernelSide {
    fn update(&self, map: &str, value: &[u8]) -> Result<(), String> {
        let map = self.object.maps().find(|found| found.name() == map);
        let map = map.ok_or("no such map")?;
        map.update(&0u32.to_ne_bytes(), value, MapFlags::ANY)
            .map_err(|error| error.to_string())
    }

    fn run(&mut self, request: &mut Request) -> Result<(), Box<dyn std::error::Error>> {
        self.update("requests", bytes_of(request))?;
        let program = self
            .object
            .progs_mut()
            .find(|program| program.name() == "network_vector")
            .ok_or("no such program")?;
        let status = program.test_run(ProgramInput::default())?.return_value;
        if status != 0 {
            return Err(format!("function {}: program answered {status}", request.function).into());
        }
        let map = self.object.maps().find(|map| map.name() == "requests");
        let value = map
            .ok_or("no such map")?
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?
            .ok_or("the request is gone")?;
        *request = from_bytes(&value).ok_or("a value of another size")?;
        Ok(())
    }
}

impl Answer for KernelSide {
    const NAME: &'static str = "BPF";

    fn load(&mut self, model: Box<thalweg_model>) -> Result<(), String> {
        self.update("models", bytes_of(&*model))
    }

    fn answer(&mut self, request: &mut Request) -> Result<(), String> {
        self.run(request).map_err(|error| error.to_string())
    }
}
