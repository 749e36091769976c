//! Figures of the gain: of all connections, and by arm.

use std::fmt;

use super::Figures;
use super::page::{Page, Rows};
use crate::view::{GainGroup, GainRow};

impl Figures {
    /// The learner against its control group.
    pub(super) fn gain(&self, page: &mut Page<'_>) -> fmt::Result {
        let gain = &self.gain;
        let figure = |of: fn(&GainRow) -> Option<f64>| {
            let rows = gain.groups.iter().flat_map(|group| {
                let labelled = move |row: &GainRow| Some((labels(group, row), of(row)?));
                group.rows.iter().filter_map(labelled)
            });
            Rows::each(rows.collect::<Vec<_>>())
        };
        let labels = ["arm", "measure", "size"];
        for (name, help, of) in [
            (
                "thalweg_gain_effect",
                "Treated less control, in per cent of time and RTT, in percentage points of retransmitted and failed; below 0 is better.",
                (|row| row.effect) as fn(&GainRow) -> Option<f64>,
            ),
            (
                "thalweg_gain_low",
                "Lower end of the effect's interval.",
                |row| row.low,
            ),
            (
                "thalweg_gain_high",
                "Upper end of the effect's interval.",
                |row| row.high,
            ),
            (
                "thalweg_gain_control_clusters",
                "Hosts times hours of the control group.",
                |row| Some(row.control as f64),
            ),
            (
                "thalweg_gain_treated_clusters",
                "Hosts times hours of the other connections.",
                |row| Some(row.treated as f64),
            ),
        ] {
            page.gauges(name, help, labels, figure(of))?;
        }
        page.gauge(
            "thalweg_gain_reverted",
            "What is taken back because it was worse: arms, and exploring.",
            gain.reverts.len(),
        )?;
        page.gauge(
            "thalweg_gain_left_out",
            "Connections that are in no comparison, because there were too many hosts.",
            gain.left_out,
        )
    }
}

/// Arm (empty: all connections), measure, and size of the transfers (empty: all).
fn labels(group: &GainGroup, row: &GainRow) -> [String; 3] {
    let size = row.size.clone().unwrap_or_default();
    [group.name.clone(), row.measure.clone(), size]
}
