//! Metrics of the gain: of all connections, by arm, of rules with a share, and of advice.

use std::fmt;

use crate::metrics::page::{Page, Rows};
use crate::view::{Advice, Gain, GainGroup, GainRow, GainRule};

mod advice;

/// The comparisons of a moment.
pub struct Figures {
    /// The learner's comparison, by arm.
    pub gain: Gain,
    /// Comparisons of all rules.
    pub rules: Vec<Gain>,
    /// Advice on all connections; `None`: there is none in this mode.
    pub advice: Option<Advice>,
}

impl Figures {
    /// Writes all metrics.
    ///
    /// # Errors
    /// The errors of the formatter.
    pub fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        self.gain(page)?;
        self.advice(page)
    }

    /// Metrics of the learner against its control group.
    fn gain(&self, page: &mut Page<'_>) -> fmt::Result {
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
            "What is taken back because it was worse: arms, exploring, and rules with a share.",
            gain.reverts.len()
                + self
                    .rules
                    .iter()
                    .map(|rule| rule.reverts.len())
                    .sum::<usize>(),
        )?;
        page.gauge(
            "thalweg_gain_left_out",
            "Connections that are in no comparison, because there were too many hosts.",
            gain.left_out,
        )?;
        self.rules_with_a_share(page)
    }

    /// Metrics of flows that a rule took against flows that it left alone.
    fn rules_with_a_share(&self, page: &mut Page<'_>) -> fmt::Result {
        let figure = |of: fn(&GainRow) -> Option<f64>| {
            let rows = self.rules.iter().flat_map(|gain| {
                let name = gain.rule.iter().map(|rule| &rule.name);
                let rows = gain.groups.iter().flat_map(|group| &group.rows);
                name.flat_map(move |name| {
                    rows.clone().filter_map(move |row| {
                        let size = row.size.clone().unwrap_or_default();
                        Some(([name.clone(), row.measure.clone(), size], of(row)?))
                    })
                })
            });
            Rows::each(rows.collect::<Vec<_>>())
        };
        for (name, help, of) in [
            (
                "thalweg_rule_gain_effect",
                "Flows that the rule took less those that it left alone; units as of thalweg_gain_effect.",
                (|row| row.effect) as fn(&GainRow) -> Option<f64>,
            ),
            (
                "thalweg_rule_gain_low",
                "Lower end of the effect's interval.",
                |row| row.low,
            ),
            (
                "thalweg_rule_gain_high",
                "Upper end of the effect's interval.",
                |row| row.high,
            ),
            (
                "thalweg_rule_gain_left_clusters",
                "Hosts times hours with flows that the rule left alone.",
                |row| Some(row.control as f64),
            ),
            (
                "thalweg_rule_gain_taken_clusters",
                "Hosts times hours with flows that it took.",
                |row| Some(row.treated as f64),
            ),
        ] {
            page.gauges(name, help, ["rule", "measure", "size"], figure(of))?;
        }
        let each = |of: fn(&Gain, &GainRule) -> u64| {
            let rows = self.rules.iter().filter_map(|gain| {
                let rule = gain.rule.as_ref()?;
                Some(([rule.name.clone()], of(gain, rule) as f64))
            });
            Rows::each(rows.collect::<Vec<_>>())
        };
        page.gauges(
            "thalweg_rule_gain_overridden",
            "Flows that the rule took without its settings, which the kernel refused or something replaced: not compared.",
            ["rule"],
            each(|_, rule| rule.overridden),
        )?;
        page.gauges(
            "thalweg_rule_suspended",
            "1 where no flow gets the rule, because those that it took did worse.",
            ["rule"],
            each(|gain, _| gain.reverts.len() as u64),
        )
    }
}

/// Label values: arm (empty: all connections), measure, and size of the transfers (empty: all).
fn labels(group: &GainGroup, row: &GainRow) -> [String; 3] {
    let size = row.size.clone().unwrap_or_default();
    [group.name.clone(), row.measure.clone(), size]
}
