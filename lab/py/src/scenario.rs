//! Scenarios.

use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use thalweg_sim::Time;
use thalweg_sim::scenario::{Setting, with_settings};
use thalweg_units::file::{ReadError, read_text};

/// A scenario.
#[pyclass(frozen, module = "thalweg.sim")]
pub(crate) struct Scenario {
    text: String,
    file: PathBuf,
    pub(crate) inner: thalweg_sim::Scenario,
}

#[pymethods]
impl Scenario {
    #[staticmethod]
    fn load(path: PathBuf) -> PyResult<Self> {
        let text = read_text(&path).map_err(read_error)?;
        Self::parse(text, path)
    }

    #[staticmethod]
    #[pyo3(signature = (text, file = None))]
    fn from_text(text: String, file: Option<PathBuf>) -> PyResult<Self> {
        Self::parse(text, file.unwrap_or_else(|| "<text>".into()))
    }

    #[pyo3(signature = (*, duration_s = None, warmup_s = None, keys = None))]
    fn replace(
        &self,
        duration_s: Option<f64>,
        warmup_s: Option<f64>,
        keys: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let keys = (keys.iter().flatten())
            .map(|text| text.parse::<Setting>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| PyValueError::new_err(format!("keys: {error}")))?;
        let mut with = Self {
            text: self.text.clone(),
            file: self.file.clone(),
            inner: self.inner.clone(),
        };
        if !keys.is_empty() {
            let (text, file) = with_settings(&self.text, &self.file, &keys);
            with = Self::parse(text, file)?;
            with.inner.duration = self.inner.duration;
            with.inner.warmup = self.inner.warmup;
        }
        let inner = &mut with.inner;
        if let Some(duration) = duration_s {
            inner.duration = time_argument("duration_s", duration)?;
        }
        if let Some(warmup) = warmup_s {
            inner.warmup = time_argument("warmup_s", warmup)?;
        }
        match inner.time_faults().first() {
            Some(fault) => Err(PyValueError::new_err(fault.to_string())),
            None => Ok(with),
        }
    }

    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }

    #[getter]
    fn description(&self) -> &str {
        &self.inner.description
    }

    #[getter]
    fn text(&self) -> &str {
        &self.text
    }

    #[getter]
    fn duration_s(&self) -> f64 {
        self.inner.duration.secs()
    }

    #[getter]
    fn warmup_s(&self) -> f64 {
        self.inner.warmup.secs()
    }

    #[getter]
    fn hosts(&self) -> u64 {
        self.inner.topology.hosts()
    }

    #[getter]
    fn sender(&self) -> &'static str {
        match self.inner.hosts.linux {
            Some(_) => "linux",
            None => "nic",
        }
    }

    #[getter]
    fn flows(&self) -> u64 {
        self.inner.flows()
    }

    #[getter]
    fn line_rate_bps(&self) -> u64 {
        self.inner.network.link.rate_bps
    }

    #[getter]
    fn min_rate_bps(&self) -> u64 {
        self.inner.hosts.min_rate_bps
    }

    #[getter]
    fn packet_bytes(&self) -> u32 {
        self.inner.network.packet_bytes
    }

    fn __repr__(&self) -> String {
        format!(
            "<Scenario {}: {} flows, {} hosts, {} s>",
            self.inner.name,
            self.flows(),
            self.hosts(),
            self.duration_s()
        )
    }

    /// For pickle: the text again, and the exact times.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let restore = py.get_type::<Self>().getattr("_restore")?;
        let file = self.file.display().to_string();
        let (duration, warmup) = (self.inner.duration.ps(), self.inner.warmup.ps());
        (restore, (&self.text, file, duration, warmup)).into_pyobject(py)
    }

    #[staticmethod]
    fn _restore(text: String, file: PathBuf, duration_ps: u64, warmup_ps: u64) -> PyResult<Self> {
        let mut scenario = Self::parse(text, file)?;
        scenario.inner.duration = Time::from_ps(duration_ps);
        scenario.inner.warmup = Time::from_ps(warmup_ps);
        Ok(scenario)
    }
}

impl Scenario {
    fn parse(text: String, file: PathBuf) -> PyResult<Self> {
        let inner = thalweg_sim::Scenario::parse(&text, &file)
            .map_err(|fault| PyValueError::new_err(fault.to_string()))?;
        Ok(Self { text, file, inner })
    }
}

/// Python's exception for a file that cannot be read.
pub(crate) fn read_error(error: ReadError) -> PyErr {
    let ReadError::System { file, why } = &error else {
        return PyValueError::new_err(error.to_string());
    };
    let file = file.display().to_string();
    match why.raw_os_error() {
        // With three arguments Python chooses FileNotFoundError and the like itself.
        Some(number) => Python::attach(|py| {
            let words = (py.import("os"))
                .and_then(|os| os.call_method1("strerror", (number,)))
                .map(Bound::unbind);
            match words {
                Ok(words) => PyOSError::new_err((number, words, file)),
                Err(error) => error,
            }
        }),
        None => PyValueError::new_err(format!("{file}: {why}")),
    }
}

/// A scenario, or the path of a scenario file.
pub(crate) fn scenario_of(given: &Bound<'_, PyAny>) -> PyResult<thalweg_sim::Scenario> {
    if let Ok(scenario) = given.cast::<Scenario>() {
        return Ok(scenario.get().inner.clone());
    }
    let Ok(path) = given.extract::<PathBuf>() else {
        return Err(PyTypeError::new_err(format!(
            "expected a Scenario or the path of its file, found {}",
            given.get_type().name()?
        )));
    };
    Ok(Scenario::load(path)?.inner)
}

/// A positive time in seconds, of the argument `field`.
pub(crate) fn time_argument(field: &str, seconds: f64) -> PyResult<Time> {
    // 200 days in picoseconds fit 64 bits.
    if (0.0..=1e7).contains(&seconds) {
        return Ok(Time::from_secs(seconds));
    }
    Err(PyValueError::new_err(format!(
        "{field}: expected a time from 0 to 10 million seconds, found {seconds}"
    )))
}
