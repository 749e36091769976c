//! A page of OpenMetrics that is being written.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue};
use prometheus_client::encoding::{EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use thalweg_units::one_line;

/// Most rows of one metric. The rest is one row, [`OTHERS`]: congestion controls come and go.
pub const KINDS: usize = 256;
/// Label of the row that has the rest.
pub const OTHERS: &str = "(others)";

/// Values of a row's labels.
pub type Labels<const N: usize> = [String; N];

/// Samples of one metric, by the values of their labels.
pub struct Rows<const N: usize>(BTreeMap<Labels<N>, f64>);

impl<const N: usize> Rows<N> {
    /// Sums samples with equal labels. Beyond [`KINDS`] rows the rest is one row.
    pub fn sums(figures: impl IntoIterator<Item = ([impl AsRef<str>; N], f64)>) -> Self {
        let mut rows = BTreeMap::new();
        for (labels, figure) in figures {
            let labels = labels.map(|label| one_line(label.as_ref()));
            let has_room = rows.len() < KINDS || rows.contains_key(&labels);
            let labels = match has_room {
                true => labels,
                false => std::array::from_fn(|_| OTHERS.to_owned()),
            };
            *rows.entry(labels).or_insert(0.0) += figure;
        }
        Self(rows)
    }

    /// Keeps samples that have no sum. Beyond [`KINDS`] rows the rest is left out.
    pub fn each(figures: impl IntoIterator<Item = ([impl AsRef<str>; N], f64)>) -> Self {
        let mut rows = BTreeMap::new();
        for (labels, figure) in figures {
            let labels = labels.map(|label| one_line(label.as_ref()));
            if rows.len() < KINDS {
                rows.insert(labels, figure);
            }
        }
        Self(rows)
    }
}

/// A page of metrics.
pub struct Page<'a>(DescriptorEncoder<'a>);

impl<'a> Page<'a> {
    /// Begins a page.
    pub fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// Writes a counter; its sample's name ends in `_total`.
    pub fn counter(
        &mut self,
        name: &str,
        help: &str,
        value: impl EncodeCounterValue,
    ) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    /// Writes a gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        encoder.encode_gauge(&value)
    }

    /// Writes counters with labels; nothing without rows.
    pub fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        rows: Rows<N>,
    ) -> fmt::Result {
        self.rows(name, help, labels, rows, MetricType::Counter)
    }

    /// Writes gauges with labels; nothing without rows.
    pub fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        rows: Rows<N>,
    ) -> fmt::Result {
        self.rows(name, help, labels, rows, MetricType::Gauge)
    }

    fn rows<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        rows: Rows<N>,
        kind: MetricType,
    ) -> fmt::Result {
        if rows.0.is_empty() {
            return Ok(());
        }
        let mut encoder = self.0.encode_descriptor(name, help, None, kind)?;
        for (values, figure) in &rows.0 {
            let mut values = values.iter().map(String::as_str);
            let pairs = labels.map(|label| (label, values.next().unwrap_or_default()));
            let mut row = encoder.encode_family(&pairs)?;
            match kind {
                MetricType::Counter => row.encode_counter::<NoLabelSet, _, u64>(figure, None)?,
                _ => row.encode_gauge(figure)?,
            }
        }
        Ok(())
    }

    /// Writes histograms with one label.
    pub fn histograms(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        all: &[(&str, &Histogram)],
    ) -> fmt::Result {
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (value, histogram) in all {
            histogram.encode(encoder.encode_family(&[(label, *value)])?)?;
        }
        Ok(())
    }
}
