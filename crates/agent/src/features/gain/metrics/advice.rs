//! Metrics of advice: trials, connections that differ by themselves, and limits.

use std::fmt;

use super::Figures;
use crate::metrics::page::{Page, Rows};
use crate::view::GainRow;

impl Figures {
    /// Advice on all connections.
    pub(super) fn advice(&self, page: &mut Page<'_>) -> fmt::Result {
        let Some(advice) = &self.advice else {
            return Ok(());
        };
        let all = advice.groups.first();
        // The metrics of the gain have the learner's choices.
        let choices = all.map_or(&[][..], |all| &all.choices);
        let figure = |of: fn(&GainRow) -> Option<f64>| {
            let rows = choices.iter().flat_map(|choice| {
                let arm = choice.arm.clone().into_iter();
                arm.flat_map(move |arm| {
                    choice.rows.iter().filter_map(move |row| {
                        let labels = [arm.clone(), choice.by.clone(), row.measure.clone()];
                        Some((labels, of(row)?))
                    })
                })
            });
            Rows::each(rows.collect::<Vec<_>>())
        };
        for (name, help, of) in [
            (
                "thalweg_advice_effect",
                "Trials of an arm, or connections that have it by themselves, less the system's; units as of thalweg_gain_effect.",
                (|row| row.effect) as fn(&GainRow) -> Option<f64>,
            ),
            (
                "thalweg_advice_low",
                "Lower end of the effect's interval.",
                |row| row.low,
            ),
            (
                "thalweg_advice_high",
                "Upper end of the effect's interval.",
                |row| row.high,
            ),
            (
                "thalweg_advice_clusters",
                "Hosts times hours with the arm.",
                |row| Some(row.treated as f64),
            ),
        ] {
            page.gauges(name, help, ["arm", "by", "measure"], figure(of))?;
        }
        let limits = all.and_then(|all| all.limits.as_ref());
        let shares = limits.iter().flat_map(|it| {
            [
                (["receiver"], it.receiver),
                (["buffer"], it.buffer),
                (["network"], it.network),
            ]
        });
        page.gauges(
            "thalweg_busy_share",
            "Share of the time with data outstanding that the receiver's window, the send buffer or the network limits.",
            ["limit"],
            Rows::each(shares.collect::<Vec<_>>()),
        )?;
        let Some(limits) = limits else {
            return Ok(());
        };
        page.gauge(
            "thalweg_idle_share",
            "Share of the time open in which the applications had nothing to send.",
            limits.idle,
        )
    }
}
