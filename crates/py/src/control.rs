//! Whole runs, and what controls them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use numpy::{AllowTypeChange, PyArrayLikeDyn};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use thalweg_sim::Simulation;
use thalweg_sim::cc::learned::{self, HIDDEN, INPUTS, Network, Parameters};
use thalweg_sim::cc::{Kind, Spec};

use crate::outcome;
use crate::scenario::{flows, scenario_of, time};

/// How often a run asks whether the user has had enough.
const PATIENCE: Duration = Duration::from_millis(100);
/// As many samples of a time series as a scenario file may ask for.
const MOST_SAMPLES: u64 = 100_000_000;

/// A network that decides within the simulator.
#[pyclass(frozen, module = "thalweg.sim")]
pub(crate) struct Learned {
    network: Arc<Network>,
    parameters: Parameters,
    /// As given, for pickle.
    weights: Vec<Vec<f32>>,
}

#[pymethods]
impl Learned {
    #[new]
    #[pyo3(signature = (weights, offset = 1.0, target = 0.05, scale = 1.0, initial = 1.0))]
    fn new(
        weights: Vec<PyArrayLikeDyn<'_, f32, AllowTypeChange>>,
        offset: f64,
        target: f64,
        scale: f64,
        initial: f64,
    ) -> PyResult<Self> {
        let value =
            |error: thalweg_sim::cc::ParameterError| PyValueError::new_err(error.to_string());
        let [first, second, last] = weights.as_slice() else {
            return Err(PyValueError::new_err(format!(
                "weights: expected three arrays, of shapes ({HIDDEN}, {INPUTS}), \
                 ({HIDDEN}, {HIDDEN}) and (1, {HIDDEN}), found {}",
                weights.len()
            )));
        };
        let first = matrix::<INPUTS, HIDDEN>("weights[0]", first)?;
        let second = matrix::<HIDDEN, HIDDEN>("weights[1]", second)?;
        let [last] = matrix::<HIDDEN, 1>("weights[2]", last)?;
        let parameters = Parameters {
            offset,
            target,
            scale,
            initial_fraction: initial,
        };
        parameters.validate().map_err(value)?;
        Ok(Self {
            network: Arc::new(Network::new(&first, &second, &last).map_err(value)?),
            parameters,
            weights: vec![
                first.as_flattened().to_vec(),
                second.as_flattened().to_vec(),
                last.to_vec(),
            ],
        })
    }

    fn __repr__(&self) -> String {
        let Parameters {
            offset,
            target,
            scale,
            initial_fraction,
        } = self.parameters;
        format!(
            "<Learned: {INPUTS}-{HIDDEN}-{HIDDEN}-1, offset {offset}, target {target}, \
             scale {scale}, initial {initial_fraction}>"
        )
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let shapes = [[HIDDEN, INPUTS], [HIDDEN, HIDDEN], [1, HIDDEN]];
        let weights = self
            .weights
            .iter()
            .zip(shapes)
            .map(|(values, shape)| {
                numpy::PyArray1::from_slice(py, values).call_method1("reshape", (shape,))
            })
            .collect::<PyResult<Vec<_>>>()?;
        let p = &self.parameters;
        let arguments = (weights, p.offset, p.target, p.scale, p.initial_fraction);
        (py.get_type::<Self>(), arguments).into_pyobject(py)
    }
}

/// An array of that shape; where there is one row, it may also be a vector.
fn matrix<const COLUMNS: usize, const ROWS: usize>(
    field: &str,
    given: &PyArrayLikeDyn<'_, f32, AllowTypeChange>,
) -> PyResult<[[f32; COLUMNS]; ROWS]> {
    let given = given.as_array();
    let shape = given.shape();
    if shape != [ROWS, COLUMNS] && !(ROWS == 1 && shape == [COLUMNS]) {
        return Err(PyValueError::new_err(format!(
            "{field}: expected the shape ({ROWS}, {COLUMNS}), a row for each unit, found {shape:?}"
        )));
    }
    let mut values = given.iter();
    Ok([[0.0; COLUMNS]; ROWS].map(|row| row.map(|zero| values.next().copied().unwrap_or(zero))))
}

/// A controller by name, or a network.
fn spec_of(given: &Bound<'_, PyAny>) -> PyResult<Spec> {
    if let Ok(learned) = given.cast::<Learned>() {
        let Learned {
            network,
            parameters,
            ..
        } = learned.get();
        return Ok(Spec::Learned(learned::Learned::new(
            Arc::clone(network),
            parameters,
        )));
    }
    let Ok(text) = given.extract::<String>() else {
        return Err(PyTypeError::new_err(format!(
            "cc: expected a name such as \"dcqcn\" or a Learned, found {}",
            given.get_type().name()?
        )));
    };
    text.parse()
        .map_err(|error: thalweg_sim::cc::SpecError| PyValueError::new_err(format!("cc: {error}")))
}

/// Names of the controllers, with what each does.
#[pyfunction]
pub(crate) fn controllers() -> Vec<(&'static str, &'static str)> {
    Kind::ALL
        .iter()
        .map(|kind| (kind.name(), kind.description()))
        .collect()
}

/// A controller in full, as reports have it.
#[pyfunction]
pub(crate) fn canonical_controller(cc: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(spec_of(cc)?.to_string())
}

/// Runs a scenario to its end.
#[pyfunction]
#[pyo3(signature = (scenario, cc = None, seed = 0, series_us = None))]
pub(crate) fn run<'py>(
    py: Python<'py>,
    scenario: &Bound<'py, PyAny>,
    cc: Option<&Bound<'py, PyAny>>,
    seed: u64,
    series_us: Option<f64>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut scenario = scenario_of(scenario)?;
    let spec = match cc {
        Some(given) => spec_of(given)?,
        None => Kind::Dcqcn.spec(),
    };
    if let Some(interval) = series_us {
        let interval = time("series_us", interval * 1e-6)?;
        let samples = match interval.ps() {
            0 => u64::MAX,
            interval => scenario
                .duration
                .ps()
                .div_ceil(interval)
                .saturating_mul(flows(&scenario)),
        };
        if samples > MOST_SAMPLES {
            return Err(PyValueError::new_err(format!(
                "series_us: expected an interval in which {} flows have at most {MOST_SAMPLES} \
                 samples in {}, found {} us",
                flows(&scenario),
                scenario.duration,
                interval.us()
            )));
        }
        scenario.series = Some(interval);
    }
    let mut interrupted = Ok(());
    let outcome = py.detach(|| {
        let mut asked = Instant::now();
        Simulation::new(&scenario, move |_, _| spec.build(), seed).run_while(|_| {
            if asked.elapsed() >= PATIENCE {
                asked = Instant::now();
                interrupted = Python::attach(|py| py.check_signals());
            }
            interrupted.is_ok()
        })
    });
    interrupted?;
    match outcome {
        Some(outcome) => outcome::python(py, &outcome, scenario.network.link.rate_bps),
        None => unreachable!("only an interruption stops a run"),
    }
}
