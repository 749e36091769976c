//! Whole runs, and their controllers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use thalweg_rate::models::{MAX_FILE_BYTES, ModelFile};
use thalweg_sim::Simulation;
use thalweg_sim::cc::learned::{self, Inference, Model};
use thalweg_sim::cc::{Kind, Spec, SpecError};
use thalweg_sim::sweep::Job;
use thalweg_units::file::read_bytes;

use crate::outcome;
use crate::scenario::{read_error, scenario_of, time_argument};

/// Interval at which a run checks for an interrupt by the user.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(100);

/// A model file that decides within the simulator.
#[pyclass(frozen, module = "thalweg.sim")]
pub(crate) struct Learned {
    model: Arc<Model>,
    name: String,
    /// The file's bytes, for pickle: where they are unpickled, the file may not exist.
    content: Vec<u8>,
}

#[pymethods]
impl Learned {
    #[new]
    #[pyo3(signature = (model, inference = None, target = None, initial = learned::INITIAL_FRACTION))]
    fn new(
        model: PathBuf,
        inference: Option<&str>,
        target: Option<f64>,
        initial: f64,
    ) -> PyResult<Self> {
        let content = read_bytes(&model, MAX_FILE_BYTES).map_err(read_error)?;
        Self::parse_model(content, &model, model_options(inference, target, initial)?)
    }

    #[staticmethod]
    #[pyo3(signature = (text, directory = None))]
    fn from_text(text: &str, directory: Option<PathBuf>) -> PyResult<Self> {
        let Some((file, options)) = Spec::model_file(text).map_err(spec_error)? else {
            return Err(PyValueError::new_err(format!(
                "cc: expected \"learned:model=FILE\", found {text}"
            )));
        };
        let at = directory.unwrap_or_default().join(&file);
        let content = read_bytes(&at, MAX_FILE_BYTES)
            .map_err(|why| spec_error(learned::ModelError::File(why.to_string()).into()))?;
        Self::parse_model(content, &file, options)
    }

    #[staticmethod]
    fn _restore(
        content: Vec<u8>,
        file: PathBuf,
        inference: Option<&str>,
        target: Option<f64>,
        initial: f64,
    ) -> PyResult<Self> {
        Self::parse_model(content, &file, model_options(inference, target, initial)?)
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.content)
    }

    #[getter]
    fn inference(&self) -> &'static str {
        self.model.inference().name()
    }

    #[getter]
    fn target(&self) -> f64 {
        f64::from(self.model.features().target_q24()) / f64::from(1 << 24)
    }

    #[getter]
    fn initial(&self) -> f64 {
        self.model.options().initial_fraction
    }

    fn __repr__(&self) -> String {
        format!("<Learned {}: {}>", self.name, self.model)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let restore = py.get_type::<Self>().getattr("_restore")?;
        let options = self.model.options();
        let arguments = (
            self.content(py),
            self.model.file_path().display().to_string(),
            options.inference.map(Inference::name),
            options.target,
            options.initial_fraction,
        );
        (restore, arguments).into_pyobject(py)
    }
}

impl Learned {
    fn parse_model(content: Vec<u8>, file: &Path, options: learned::Options) -> PyResult<Self> {
        let parsed = ModelFile::parse(&content, file)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let name = parsed.document.name.clone();
        let model = Model::new(parsed, file, options)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self {
            model: Arc::new(model),
            name,
            content,
        })
    }
}

fn model_options(
    inference: Option<&str>,
    target: Option<f64>,
    initial_fraction: f64,
) -> PyResult<learned::Options> {
    let named = |name| {
        Inference::from_name(name).ok_or_else(|| {
            PyValueError::new_err(format!(
                "inference: expected float, int8 or tree, found {name:?}"
            ))
        })
    };
    Ok(learned::Options {
        inference: inference.map(named).transpose()?,
        target,
        initial_fraction,
        ..learned::Options::default()
    })
}

/// A controller by name, or a model.
pub(crate) fn spec_of(given: &Bound<'_, PyAny>) -> PyResult<Spec> {
    if let Ok(learned) = given.cast::<Learned>() {
        return Ok(Spec::Learned(Arc::clone(&learned.get().model)));
    }
    let Ok(text) = given.extract::<String>() else {
        return Err(PyTypeError::new_err(format!(
            "cc: expected a name such as \"dcqcn\" or a Learned, found {}",
            given.get_type().name()?
        )));
    };
    text.parse().map_err(spec_error)
}

fn spec_error(error: SpecError) -> PyErr {
    PyValueError::new_err(format!("cc: {error}"))
}

/// Names of the controllers, with descriptions.
#[pyfunction]
pub(crate) fn controllers() -> Vec<(&'static str, &'static str)> {
    Kind::ALL
        .iter()
        .map(|kind| (kind.name(), kind.description()))
        .collect()
}

/// A controller in full, in the form of reports.
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
        scenario.series = Some(time_argument("series_us", interval * 1e-6)?);
        if let Some(fault) = scenario.time_faults().first() {
            return Err(PyValueError::new_err(format!(
                "series_us: found {}, expected {}",
                fault.found, fault.expected
            )));
        }
    }
    let job = Job {
        scenario: &scenario,
        controller: &spec,
        seed,
    };
    job.check_hosts().map_err(spec_error)?;
    let mut interrupted = Ok(());
    let outcome = py.detach(|| {
        let mut asked = Instant::now();
        Simulation::new(&scenario, move |_, _| spec.build(), seed).run_while(|_| {
            if asked.elapsed() >= INTERRUPT_INTERVAL {
                asked = Instant::now();
                interrupted = Python::attach(|py| py.check_signals());
            }
            interrupted.is_ok()
        })
    });
    interrupted?;
    match outcome {
        Some(outcome) => outcome::outcome_to_python(py, &outcome, scenario.network.link.rate_bps),
        None => unreachable!("only an interruption stops a run"),
    }
}
