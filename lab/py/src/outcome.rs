//! Reports of runs.

use numpy::{PyArray1, PyArray2, ndarray::Array2};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use thalweg_sim::{Outcome, metrics::Series};

/// A dictionary of fields that have the same names on both sides.
macro_rules! fields {
    ($py:expr, $from:expr; $($field:ident),* $(,)?) => {{
        let fields = PyDict::new($py);
        $(fields.set_item(stringify!($field), $from.$field)?;)*
        fields
    }};
}

/// Dropped, percent of the line rates of all links to receivers together.
pub(crate) fn loss_percent(outcome: &Outcome, line_rate_bps: u64) -> f64 {
    let mut receivers: Vec<u32> = outcome.flows.iter().map(|flow| flow.to).collect();
    receivers.sort_unstable();
    receivers.dedup();
    let lines = line_rate_bps as f64 * receivers.len().max(1) as f64;
    outcome.dropped_gbps * 1e9 / lines * 100.0
}

/// As `thalweg.sim.Outcome`.
pub(crate) fn outcome_to_python<'py>(
    py: Python<'py>,
    outcome: &Outcome,
    line_rate_bps: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import("thalweg.sim")?;
    let make =
        |class: &str, fields: &Bound<'py, PyDict>| module.getattr(class)?.call((), Some(fields));
    let floats = |values: Vec<f64>| PyArray1::from_vec(py, values);
    let numbers = |values: Vec<i32>| PyArray1::from_vec(py, values);

    let fields = fields!(py, outcome;
        seed, duration_s, warmup_s, utilisation_percent, fairness_percent,
        host_fairness_percent, jain, dropped_gbps, dropped_percent);
    fields.set_item("scenario", &outcome.scenario)?;
    fields.set_item("loss_percent", loss_percent(outcome, line_rate_bps))?;
    let latency =
        fields!(py, outcome.queue_latency; mean_us, p50_us, p90_us, p99_us, p999_us, max_us);
    fields.set_item("queue_latency", make("Latency", &latency)?)?;
    let counts = fields!(py, outcome.counts;
        packet_bytes, sent_packets, delivered_packets, wasted_packets, dropped_packets,
        underway_packets, decisions, notifications, events);
    fields.set_item("counts", make("Counts", &counts)?)?;
    let long_short = match &outcome.long_short {
        None => None,
        Some(long_short) => {
            let fields = fields!(py, long_short;
                recovery_s, recovery_least_s, recovered, not_recovered, long_gbps);
            Some(make("LongShort", &fields)?)
        }
    };
    fields.set_item("long_short", long_short)?;

    let smoothed = match outcome.smoothed_delay {
        None => None,
        Some(delay) => {
            let fields = fields!(py, delay; p50_us, p95_us);
            Some(make("SmoothedDelay", &fields)?)
        }
    };
    fields.set_item("smoothed_delay", smoothed)?;

    let flows = &outcome.flows;
    fields.set_item(
        "flow_gbps",
        floats(flows.iter().map(|flow| flow.gbps).collect()),
    )?;
    fields.set_item(
        "flow_from",
        numbers(flows.iter().map(|flow| flow.from as i32).collect()),
    )?;
    fields.set_item(
        "flow_to",
        numbers(flows.iter().map(|flow| flow.to as i32).collect()),
    )?;

    let ports = &outcome.ports;
    let port = numbers(ports.iter().map(|port| port.port as i32).collect());
    fields.set_item("port", port)?;
    let utilisation = floats(ports.iter().map(|port| port.utilisation_percent).collect());
    fields.set_item("port_utilisation_percent", utilisation)?;
    let dropped: Vec<i64> = ports
        .iter()
        .map(|port| port.dropped_packets as i64)
        .collect();
    fields.set_item("port_dropped_packets", PyArray1::from_vec(py, dropped))?;

    let done = &outcome.completions;
    let flow = numbers(done.iter().map(|done| done.flow as i32).collect());
    fields.set_item("completion_flow", flow)?;
    let start = floats(done.iter().map(|done| done.start_us).collect());
    fields.set_item("completion_start_us", start)?;
    let time = floats(done.iter().map(|done| done.time_us).collect());
    fields.set_item("completion_time_us", time)?;

    let series = match &outcome.series {
        None => None,
        Some(series) => Some(make("Series", &series_fields(py, &module, series)?)?),
    };
    fields.set_item("series", series)?;
    make("Outcome", &fields)
}

/// Rates and queues over time.
fn series_fields<'py>(
    py: Python<'py>,
    module: &Bound<'py, PyModule>,
    series: &Series,
) -> PyResult<Bound<'py, PyDict>> {
    let fields = fields!(py, series; interval_us);
    let columns = series.flow_gbps.first().map_or(0, Vec::len);
    let rates: Vec<f64> = series.flow_gbps.iter().flatten().copied().collect();
    let rates = Array2::from_shape_vec((series.flow_gbps.len(), columns), rates)
        .map_err(|why| pyo3::exceptions::PyRuntimeError::new_err(why.to_string()))?;
    fields.set_item("flow_gbps", PyArray2::from_owned_array(py, rates))?;
    let queues = PyList::empty(py);
    for queue in &series.queues {
        let fields = fields!(py, queue; port);
        fields.set_item("at_us", PyArray1::from_slice(py, &queue.at_us))?;
        let bytes: Vec<i64> = queue.bytes.iter().map(|bytes| *bytes as i64).collect();
        fields.set_item("bytes", PyArray1::from_vec(py, bytes))?;
        queues.append(module.getattr("QueueSeries")?.call((), Some(&fields))?)?;
    }
    fields.set_item("queues", queues.to_tuple())?;
    Ok(fields)
}
