//! Concurrent simulations with decisions by Python.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use numpy::{AllowTypeChange, Element, PyArray1, PyArrayLike1, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};
use rayon::ThreadPool;
use rayon::prelude::*;
use thalweg_rate::{Feature, FeatureKind, Features};
use thalweg_sim::cc::{Setup, Spec, thalweg_rl};
use thalweg_sim::scenario::Workload;
use thalweg_sim::sweep::Job;
use thalweg_sim::{Decision, External, Outcome, Pending, Simulation, Time};

use crate::control::spec_of;
use crate::outcome::{self, loss_percent};
use crate::scenario::scenario_of;

/// One of the simulations.
struct Environment {
    /// None once it has ended.
    simulation: Option<Simulation<External>>,
    outcome: Option<Outcome>,
    line_rate_bps: u64,
    /// The rate that counts as 1 in decisions.
    unit_bps: f64,
}

/// Pending decisions, by simulation.
type Waiting = Vec<Vec<Pending>>;

/// The constant part of a simulation.
struct Description {
    line_rate_bps: f64,
    /// Round-trip time through empty queues, by flow that is decided for.
    base_rtt: Vec<Time>,
    /// Key of flow 0.
    first_key: i32,
}

impl Environment {
    /// Applies the answers to the pending decisions, none or one each, and runs until the next
    /// decisions are pending.
    fn apply_and_advance(
        &mut self,
        answered: &[Pending],
        answers: &[Decision],
        next: &mut Vec<Pending>,
    ) {
        next.clear();
        let Some(simulation) = &mut self.simulation else {
            return;
        };
        for (pending, answer) in answered.iter().zip(answers) {
            simulation.decide(pending.flow, *answer);
        }
        if !simulation.advance(next)
            && let Some(simulation) = self.simulation.take()
        {
            self.outcome = Some(simulation.outcome_so_far());
        }
    }
}

/// Threads of the process that started them. A forked child has none of them, and would wait for them for ever.
struct Threads {
    pool: ManuallyDrop<ThreadPool>,
    process: u32,
}

impl Threads {
    fn start_threads(count: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build()?;
        Ok(Self {
            pool: ManuallyDrop::new(pool),
            process: std::process::id(),
        })
    }

    fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Threads of this process, started anew after a fork.
    fn threads_of_process(&mut self) -> Result<&ThreadPool, rayon::ThreadPoolBuildError> {
        if !self.is_of_this_process() {
            *self = Self::start_threads(self.pool.current_num_threads())?;
        }
        Ok(&self.pool)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if self.is_of_this_process() {
            // SAFETY: it is used nowhere after this.
            unsafe { ManuallyDrop::drop(&mut self.pool) };
        }
    }
}

/// Concurrent simulations whose decisions come as arrays.
#[pyclass(module = "thalweg.sim")]
pub(crate) struct Batch {
    environments: Vec<Environment>,
    descriptions: Arc<Vec<Description>>,
    /// None: this thread only.
    pool: Option<Threads>,
    /// Pending decisions, shared with [`Decisions`], so that nothing is copied.
    waiting: Arc<Waiting>,
    /// Previous pending decisions. Their memory is reused, unless their [`Decisions`] were kept.
    before: Arc<Waiting>,
    /// Answers to all pending decisions, in order; empty: not answered.
    answers: Vec<Decision>,
    flows: usize,
    decisions: u64,
}

#[pymethods]
impl Batch {
    #[new]
    #[pyo3(signature = (scenarios, seeds, initial = None, jobs = None, others = None, signal = None))]
    fn new(
        py: Python<'_>,
        scenarios: &Bound<'_, PyAny>,
        seeds: &Bound<'_, PyAny>,
        initial: Option<&Bound<'_, PyAny>>,
        jobs: Option<usize>,
        others: Option<&Bound<'_, PyAny>>,
        signal: Option<(f64, f64)>,
    ) -> PyResult<Self> {
        let is_initial_given = initial.is_some();
        let initial = initial_fraction(initial)?;
        let signal = signal.map(signal_features).transpose()?;
        let others = others.map(spec_of).transpose()?;
        let seeds: Vec<u64> = seeds.extract().map_err(|_| {
            let found = seeds
                .repr()
                .map_or_else(|_| String::new(), |it| it.to_string());
            PyTypeError::new_err(format!(
                "seeds: expected numbers of at least 0, one a simulation, such as range(3), found \
                 {found}"
            ))
        })?;
        let scenarios = scenarios_of(scenarios, seeds.len())?;
        for (place, scenario) in scenarios.iter().enumerate() {
            let job = others.as_ref().map(|controller| Job {
                scenario,
                controller,
                seed: 0,
            });
            let fault = match scenario.hosts.linux {
                Some(_) if signal.is_none() => {
                    "signal: expected target and offset, which the kernel's rules need where \
                     hosts are of the sender \"linux\"; found none"
                }
                Some(_) if is_initial_given => {
                    "initial: expected none where hosts are of the sender \"linux\": flows start \
                     as TCP does"
                }
                None if signal.is_some() => {
                    "signal: expected none where hosts are of the sender \"nic\", which have no \
                     rules"
                }
                _ => match job.map(|job| job.check_hosts()).transpose() {
                    Ok(_) => continue,
                    Err(error) => &format!("others: {error}"),
                },
            };
            return Err(PyValueError::new_err(format!(
                "scenarios[{place}]: {fault}"
            )));
        }
        let jobs = match jobs {
            Some(0) => return Err(PyValueError::new_err("jobs: expected at least 1, found 0")),
            Some(jobs) => jobs,
            None => std::thread::available_parallelism().map_or(1, usize::from),
        }
        .min(seeds.len().max(1));
        let pool = (jobs > 1)
            .then(|| Threads::start_threads(jobs))
            .transpose()
            .map_err(no_threads)?;
        let flows: u64 = scenarios.iter().map(thalweg_sim::Scenario::flows).sum();
        let flows = i32::try_from(flows).map_err(|_| {
            PyValueError::new_err(format!("expected fewer than 2^31 flows, found {flows}"))
        })? as usize;
        let (environments, mut descriptions): (Vec<_>, Vec<_>) = py.detach(|| {
            let make = |(scenario, seed)| {
                start_environment(scenario, seed, initial, signal.as_ref(), others.as_ref())
            };
            match &pool {
                None => scenarios.iter().zip(seeds).map(make).collect(),
                Some(threads) => {
                    (threads.pool).install(|| scenarios.par_iter().zip(seeds).map(make).collect())
                }
            }
        });
        let mut first_key = 0;
        for (description, scenario) in descriptions.iter_mut().zip(&scenarios) {
            description.first_key = first_key;
            first_key += scenario.flows() as i32;
        }
        Ok(Self {
            waiting: Arc::new(vec![Vec::new(); environments.len()]),
            before: Arc::default(),
            environments,
            descriptions: Arc::new(descriptions),
            pool,
            answers: Vec::new(),
            flows,
            decisions: 0,
        })
    }

    #[getter]
    fn flows(&self) -> usize {
        self.flows
    }

    #[getter]
    fn envs(&self) -> usize {
        self.environments.len()
    }

    #[getter]
    fn jobs(&self) -> usize {
        self.pool
            .as_ref()
            .map_or(1, |threads| threads.pool.current_num_threads())
    }

    #[getter]
    fn decisions(&self) -> u64 {
        self.decisions
    }

    fn advance(&mut self, py: Python<'_>) -> PyResult<Option<Decisions>> {
        let pool = self
            .pool
            .as_mut()
            .map(Threads::threads_of_process)
            .transpose();
        let pool = pool.map_err(no_threads)?;
        Ok(py.detach(|| {
            if Arc::get_mut(&mut self.before).is_none() {
                self.before = Arc::default();
            }
            let next = Arc::get_mut(&mut self.before).expect("this is its only owner");
            next.resize_with(self.environments.len(), Vec::new);
            let mut answers = self.answers.as_slice();
            let work: Vec<_> = (self.environments.iter_mut())
                .zip(&*self.waiting)
                .zip(next)
                .map(|((environment, answered), next)| {
                    let own;
                    (own, answers) = answers.split_at(answered.len().min(answers.len()));
                    (environment, answered, own, next)
                })
                .collect();
            match pool {
                None => {
                    for (environment, answered, answers, next) in work {
                        environment.apply_and_advance(answered, answers, next);
                    }
                }
                Some(pool) => pool.install(|| {
                    work.into_par_iter()
                        .for_each(|(environment, answered, answers, next)| {
                            environment.apply_and_advance(answered, answers, next);
                        });
                }),
            }
            self.answers.clear();
            std::mem::swap(&mut self.waiting, &mut self.before);
            let count = self.waiting.iter().map(Vec::len).sum();
            self.decisions += count as u64;
            (count > 0).then(|| Decisions {
                waiting: Arc::clone(&self.waiting),
                count,
                descriptions: Arc::clone(&self.descriptions),
                ..Decisions::default()
            })
        }))
    }

    fn decide(&mut self, multiplier: &Bound<'_, PyAny>) -> PyResult<()> {
        self.take_answers("multiplier", multiplier, |_, factor| {
            Decision::Multiply(factor)
        })
    }

    fn decide_rate(&mut self, rate: &Bound<'_, PyAny>) -> PyResult<()> {
        self.take_answers("rate", rate, |environment, share| {
            Decision::Rate(share * environment.unit_bps)
        })
    }

    fn outcome<'py>(&self, py: Python<'py>, env: usize) -> PyResult<Bound<'py, PyDict>> {
        let (outcome, line_rate_bps) = self.ended_environment(env)?;
        let figures = PyDict::new(py);
        figures.set_item("su", outcome.utilisation_percent)?;
        figures.set_item("fr", outcome.fairness_percent)?;
        figures.set_item("fr_host", outcome.host_fairness_percent)?;
        figures.set_item("jain", outcome.jain)?;
        // Where nothing arrived, nothing has waited: 0 would be the best of all queues.
        let has_arrived = outcome.utilisation_percent > 0.0;
        let queue_us = |delay: f64| if has_arrived { delay } else { f64::INFINITY };
        figures.set_item("ql_us", queue_us(outcome.queue_latency.mean_us))?;
        figures.set_item("ql_p99_us", queue_us(outcome.queue_latency.p99_us))?;
        figures.set_item("loss", loss_percent(outcome, line_rate_bps))?;
        figures.set_item("dropped_gbps", outcome.dropped_gbps)?;
        Ok(figures)
    }

    fn result<'py>(&self, py: Python<'py>, env: usize) -> PyResult<Bound<'py, PyAny>> {
        let (outcome, line_rate_bps) = self.ended_environment(env)?;
        outcome::outcome_to_python(py, outcome, line_rate_bps)
    }

    fn __repr__(&self) -> String {
        format!(
            "<Batch: {} simulations, {} flows, {} jobs>",
            self.envs(),
            self.flows,
            self.jobs()
        )
    }
}

impl Batch {
    /// Takes an array of answers, which take effect when the simulations run on.
    fn take_answers(
        &mut self,
        field: &str,
        given: &Bound<'_, PyAny>,
        decision: impl Fn(&Environment, f64) -> Decision,
    ) -> PyResult<()> {
        // Single precision needs no copy; anything else becomes double.
        if let Ok(values) = given.extract::<PyReadonlyArray1<'_, f32>>() {
            let values = values.as_array();
            return self.take_values(
                field,
                values.len(),
                values.iter().map(|value| f64::from(*value)),
                decision,
            );
        }
        let values: PyArrayLike1<'_, f64, AllowTypeChange> = given.extract().map_err(|_| {
            PyTypeError::new_err(format!(
                "{field}: expected a vector of numbers, found {given}"
            ))
        })?;
        let values = values.as_array();
        self.take_values(field, values.len(), values.iter().copied(), decision)
    }

    fn take_values(
        &mut self,
        field: &str,
        found: usize,
        values: impl Iterator<Item = f64>,
        decision: impl Fn(&Environment, f64) -> Decision,
    ) -> PyResult<()> {
        self.answers.clear();
        let expected = self.pending_decisions();
        if found != expected {
            return Err(PyValueError::new_err(format!(
                "{field}: {expected} decisions wait for an answer: expected as many numbers, found {found}"
            )));
        }
        let owners = self
            .environments
            .iter()
            .zip(&*self.waiting)
            .flat_map(|(environment, own)| std::iter::repeat_n(environment, own.len()));
        for (place, (value, owner)) in values.zip(owners).enumerate() {
            if !(value > 0.0 && value.is_finite()) {
                self.answers.clear();
                return Err(PyValueError::new_err(format!(
                    "{field}[{place}]: expected a positive number, found {value}"
                )));
            }
            self.answers.push(decision(owner, value));
        }
        Ok(())
    }

    /// Number of pending decisions.
    fn pending_decisions(&self) -> usize {
        self.waiting.iter().map(Vec::len).sum()
    }

    fn ended_environment(&self, env: usize) -> PyResult<(&Outcome, u64)> {
        let Some(environment) = self.environments.get(env) else {
            return Err(PyIndexError::new_err(format!(
                "there are {} simulations; there is no number {env}",
                self.environments.len()
            )));
        };
        match &environment.outcome {
            Some(outcome) => Ok((outcome, environment.line_rate_bps)),
            None => Err(PyRuntimeError::new_err(format!(
                "simulation {env} has not ended; advance() until it returns None"
            ))),
        }
    }
}

fn no_threads(why: rayon::ThreadPoolBuildError) -> PyErr {
    PyRuntimeError::new_err(format!("cannot start threads: {why}"))
}

/// A simulation at its start; its keys start at 0. With `others` only flow 0 is decided for.
fn start_environment(
    scenario: &thalweg_sim::Scenario,
    seed: u64,
    initial: f64,
    signal: Option<&Features>,
    others: Option<&Spec>,
) -> (Environment, Description) {
    let mut base_rtt = Vec::new();
    let mut first = |setup: &Setup| {
        base_rtt.push(setup.base_rtt);
        setup.limit(initial * setup.line_rate_bps)
    };
    let simulation = match (signal, others) {
        (Some(signal), _) => Simulation::by_rules(scenario, signal, others, seed),
        (None, None) => Simulation::with_outside_decisions(scenario, |_, setup| first(setup), seed),
        (None, Some(others)) => Simulation::with_one_outside_flow(scenario, first, others, seed),
    };
    let line_rate_bps = scenario.network.link.rate_bps;
    let unit_bps = match signal {
        Some(_) => thalweg_rl::Options::default().reference_rate_bps,
        None => line_rate_bps as f64,
    };
    let environment = Environment {
        simulation: Some(simulation),
        outcome: None,
        line_rate_bps,
        unit_bps,
    };
    let description = Description {
        line_rate_bps: unit_bps,
        base_rtt,
        first_key: 0,
    };
    (environment, description)
}

/// A scenario per seed: a list, or one for all.
fn scenarios_of(given: &Bound<'_, PyAny>, seeds: usize) -> PyResult<Vec<thalweg_sim::Scenario>> {
    if seeds == 0 {
        return Err(PyValueError::new_err("seeds: expected at least one"));
    }
    let stays = |scenario: thalweg_sim::Scenario| match scenario.workload {
        Workload::Poisson { .. } => Err(PyValueError::new_err(format!(
            "{}: expected flows that stay; those of a poisson workload come and go",
            scenario.name
        ))),
        _ => Ok(scenario),
    };
    let list = match given.try_iter() {
        Ok(list) if !given.is_instance_of::<PyString>() => list,
        _ => return Ok(vec![stays(scenario_of(given)?)?; seeds]),
    };
    let scenarios = list
        .map(|item| stays(scenario_of(&item?)?))
        .collect::<PyResult<Vec<_>>>()?;
    if scenarios.len() != seeds {
        return Err(PyValueError::new_err(format!(
            "expected a seed for each of {} scenarios, found {seeds} seeds",
            scenarios.len()
        )));
    }
    Ok(scenarios)
}

/// The features that give the kernel's rules a signal: target and offset.
fn signal_features((target, offset): (f64, f64)) -> PyResult<Features> {
    let fixed = |name: &str, value: f64, unit: f64, least: f64| {
        let whole = (value * unit).round();
        if (least..=f64::from(u32::MAX)).contains(&whole) {
            return Ok(whole as u32);
        }
        Err(PyValueError::new_err(format!(
            "signal: {name}: expected {} to {}, found {value}",
            least / unit,
            f64::from(u32::MAX) / unit
        )))
    };
    let target_q24 = fixed("target", target, f64::from(1 << 24), 1.0)?;
    let offset_q16 = fixed("offset", offset, f64::from(1 << 16), 0.0)?;
    let error = Feature {
        kind: FeatureKind::Error,
        scale_q16: 1,
    };
    Features::new(vec![error], 1, target_q24, offset_q16)
        .map_err(|fault| PyValueError::new_err(format!("signal: {fault}")))
}

/// "line" or a share of the line rate.
fn initial_fraction(given: Option<&Bound<'_, PyAny>>) -> PyResult<f64> {
    let Some(given) = given else { return Ok(1.0) };
    if given.extract::<&str>().is_ok_and(|text| text == "line") {
        return Ok(1.0);
    }
    match given.extract::<f64>() {
        Ok(fraction) if fraction > 0.0 && fraction <= 1.0 => Ok(fraction),
        _ => Err(PyValueError::new_err(format!(
            "initial: expected \"line\" or a share of the line rate above 0 and up to 1, found {}",
            given.repr()?
        ))),
    }
}

/// A decision, and its flow.
struct Row<'a> {
    pending: &'a Pending,
    environment: i32,
    description: &'a Description,
}

impl Row<'_> {
    fn base_rtt(&self) -> Time {
        let of_path = || self.description.base_rtt[self.pending.flow as usize];
        self.pending.base_rtt.unwrap_or_else(of_path)
    }
}

/// A column, computed when first read.
struct Column<T>(PyOnceLock<Py<PyArray1<T>>>);

impl<T> Default for Column<T> {
    fn default() -> Self {
        Self(PyOnceLock::new())
    }
}

/// Pending decisions. A column becomes an array when it is first read, because most policies read
/// only a few.
#[pyclass(frozen, module = "thalweg.sim")]
#[derive(Default)]
pub(crate) struct Decisions {
    waiting: Arc<Waiting>,
    /// Number of decisions.
    count: usize,
    descriptions: Arc<Vec<Description>>,
    env: Column<i32>,
    flow: Column<i32>,
    key: Column<i32>,
    time_s: Column<f64>,
    time_ps: Column<i64>,
    rtt_s: Column<f32>,
    rtt_ps: Column<i64>,
    sent_ps: Column<i64>,
    base_rtt_s: Column<f32>,
    base_rtt_ps: Column<i64>,
    rate: Column<f32>,
    rate_bps: Column<f64>,
    line_rate_bps: Column<f64>,
    acked_bytes: Column<f32>,
    marked_bytes: Column<f32>,
    lost_bytes: Column<f32>,
    probe_lost: Column<bool>,
}

impl Decisions {
    fn column_array<T: Element>(
        &self,
        py: Python<'_>,
        column: &Column<T>,
        value: impl Fn(Row<'_>) -> T,
    ) -> Py<PyArray1<T>> {
        column
            .0
            .get_or_init(py, || {
                let mut values = Vec::with_capacity(self.count);
                for (number, (own, description)) in
                    self.waiting.iter().zip(&*self.descriptions).enumerate()
                {
                    values.extend(own.iter().map(|pending| {
                        value(Row {
                            pending,
                            environment: number as i32,
                            description,
                        })
                    }));
                }
                PyArray1::from_vec(py, values).unbind()
            })
            .clone_ref(py)
    }
}

#[pymethods]
impl Decisions {
    fn __len__(&self) -> usize {
        self.count
    }

    fn __repr__(&self) -> String {
        format!("<Decisions: {}>", self.count)
    }

    #[getter]
    fn env(&self, py: Python<'_>) -> Py<PyArray1<i32>> {
        self.column_array(py, &self.env, |row| row.environment)
    }

    #[getter]
    fn flow(&self, py: Python<'_>) -> Py<PyArray1<i32>> {
        self.column_array(py, &self.flow, |row| row.pending.flow as i32)
    }

    #[getter]
    fn key(&self, py: Python<'_>) -> Py<PyArray1<i32>> {
        self.column_array(py, &self.key, |row| {
            row.description.first_key + row.pending.flow as i32
        })
    }

    #[getter]
    fn time_s(&self, py: Python<'_>) -> Py<PyArray1<f64>> {
        self.column_array(py, &self.time_s, |row| row.pending.at.secs())
    }

    #[getter]
    fn time_ps(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.column_array(py, &self.time_ps, |row| row.pending.at.ps() as i64)
    }

    #[getter]
    fn rtt_s(&self, py: Python<'_>) -> Py<PyArray1<f32>> {
        self.column_array(py, &self.rtt_s, |row| row.pending.rtt.secs() as f32)
    }

    #[getter]
    fn rtt_ps(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.column_array(py, &self.rtt_ps, |row| row.pending.rtt.ps() as i64)
    }

    #[getter]
    fn sent_ps(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.column_array(py, &self.sent_ps, |row| row.pending.sent_at.ps() as i64)
    }

    #[getter]
    fn base_rtt_s(&self, py: Python<'_>) -> Py<PyArray1<f32>> {
        self.column_array(py, &self.base_rtt_s, |row| row.base_rtt().secs() as f32)
    }

    #[getter]
    fn base_rtt_ps(&self, py: Python<'_>) -> Py<PyArray1<i64>> {
        self.column_array(py, &self.base_rtt_ps, |row| row.base_rtt().ps() as i64)
    }

    #[getter]
    fn rate(&self, py: Python<'_>) -> Py<PyArray1<f32>> {
        self.column_array(py, &self.rate, |row| {
            (row.pending.rate_bps / row.description.line_rate_bps) as f32
        })
    }

    #[getter]
    fn line_rate_bps(&self, py: Python<'_>) -> Py<PyArray1<f64>> {
        self.column_array(py, &self.line_rate_bps, |row| row.description.line_rate_bps)
    }

    #[getter]
    fn rate_bps(&self, py: Python<'_>) -> Py<PyArray1<f64>> {
        self.column_array(py, &self.rate_bps, |row| row.pending.rate_bps)
    }

    #[getter]
    fn acked_bytes(&self, py: Python<'_>) -> Py<PyArray1<f32>> {
        self.column_array(py, &self.acked_bytes, |row| row.pending.acked_bytes as f32)
    }

    #[getter]
    fn marked_bytes(&self, py: Python<'_>) -> Py<PyArray1<f32>> {
        self.column_array(py, &self.marked_bytes, |row| {
            row.pending.marked_bytes as f32
        })
    }

    #[getter]
    fn lost_bytes(&self, py: Python<'_>) -> Py<PyArray1<f32>> {
        self.column_array(py, &self.lost_bytes, |row| row.pending.lost_bytes as f32)
    }

    #[getter]
    fn probe_lost(&self, py: Python<'_>) -> Py<PyArray1<bool>> {
        self.column_array(py, &self.probe_lost, |row| row.pending.probe_lost)
    }
}
