//! Metrics of the agent's place in a fleet, and of a fleet as a whole.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use thalweg_fleet::Kind;

use super::view::{FleetAgents, FleetComparison, FleetGain, FleetPlace, FleetSpread, FleetTraffic};
use crate::metrics::page::{Page, Rows};
use crate::view::GainRow;

/// Metrics of the agent's place in a fleet.
///
/// # Errors
/// The errors of the formatter.
pub fn write_place(place: &FleetPlace, page: &mut Page<'_>) -> fmt::Result {
    page.gauge(
        "thalweg_fleet_connected",
        "1 while the agent is connected to a server of its fleet.",
        u32::from(place.server.is_some()),
    )?;
    page.counter(
        "thalweg_fleet_connections",
        "Connections made to servers of the fleet.",
        place.connections,
    )?;
    let both = |of: fn(&FleetTraffic) -> u64| {
        let sums = [("sent", of(&place.sent)), ("received", of(&place.received))];
        Rows::sums(sums.map(|(direction, sum)| ([direction], sum as f64)))
    };
    page.counters(
        "thalweg_fleet_messages",
        "Messages between the agent and servers of the fleet.",
        ["direction"],
        both(|it| it.messages),
    )?;
    page.counters(
        "thalweg_fleet_bytes",
        "Bytes of these messages, without TLS.",
        ["direction"],
        both(|it| it.bytes),
    )?;
    let number = |kind: Kind| place.faults.get(kind.name()).copied().unwrap_or(0);
    page.counters(
        "thalweg_fleet_faults",
        "What went wrong with the fleet, by kind; `thalweg fleet status` has the last one.",
        ["kind"],
        Rows::sums((Kind::ALL.iter()).map(|kind| ([kind.name()], number(*kind) as f64))),
    )?;
    for (name, help, value) in [
        (
            "thalweg_fleet_told_networks",
            "Networks that the agent tells others of.",
            place.told,
        ),
        (
            "thalweg_fleet_heard_agents",
            "Other agents that have told of networks.",
            place.agents,
        ),
        (
            "thalweg_fleet_heard_networks",
            "Networks that they told of.",
            place.networks,
        ),
        (
            "thalweg_fleet_records",
            "Records of what they told that are in force, of all network namespaces.",
            place.in_force,
        ),
        (
            "thalweg_fleet_records_left_out",
            "Records for which there is no room, or no such network here.",
            place.left_out,
        ),
    ] {
        page.gauge(name, help, value)?;
    }
    Ok(())
}

/// A fleet as a whole.
#[derive(Debug)]
struct Whole {
    agents: FleetAgents,
    gain: FleetGain,
}

/// All metrics of a fleet, as text. No metric has an agent as its label.
///
/// # Errors
/// No known error.
pub fn of_fleet(agents: FleetAgents, gain: FleetGain) -> Result<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Whole { agents, gain }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

impl Collector for Whole {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page::new(encoder);
        self.standing(&mut page)?;
        self.policies(&mut page)?;
        self.gain(&mut page)
    }
}

impl Whole {
    fn standing(&self, page: &mut Page<'_>) -> fmt::Result {
        let all = &self.agents;
        let unreadable = all.agents.iter().filter(|it| it.unreadable.is_some());
        for (name, help, value) in [
            (
                "thalweg_fleet_agents",
                "Agents that have a status at the server.",
                all.agents.len() as u64,
            ),
            (
                "thalweg_fleet_agents_silent",
                "Agents without a status for more than half an hour.",
                all.silent,
            ),
            (
                "thalweg_fleet_agents_unreadable",
                "Agents whose status cannot be read.",
                unreadable.count() as u64,
            ),
            (
                "thalweg_fleet_agents_with_problems",
                "Agents with problems, those with an unreadable status among them.",
                all.with_problems,
            ),
            (
                "thalweg_fleet_read_age_seconds",
                "Time since the statuses were read.",
                all.read_s,
            ),
        ] {
            page.gauge(name, help, value)?;
        }
        let versions = all.versions.iter();
        page.gauges(
            "thalweg_fleet_version_agents",
            "Agents by the version of their program.",
            ["version"],
            Rows::sums(versions.map(|(version, number)| ([version], *number as f64))),
        )
    }

    fn policies(&self, page: &mut Page<'_>) -> fmt::Result {
        let mut stages: BTreeMap<[String; 2], f64> = BTreeMap::new();
        let mut newest: BTreeMap<[String; 1], f64> = BTreeMap::new();
        for it in self.agents.agents.iter().flat_map(|it| &it.policies) {
            let number = newest.entry([it.label.clone()]).or_default();
            *number = number.max(it.number as f64);
            *stages
                .entry([it.label.clone(), it.stage.clone()])
                .or_default() += 1.0;
        }
        page.gauges(
            "thalweg_fleet_policy_agents",
            "Agents by label of a policy, and how far it is there.",
            ["label", "stage"],
            Rows::sums(stages),
        )?;
        page.gauges(
            "thalweg_fleet_policy_number",
            "Highest number of a label's policy on any agent.",
            ["label"],
            Rows::each(newest),
        )
    }

    /// All comparisons by rule; the learner's is under the empty name.
    fn comparisons(&self) -> impl Iterator<Item = (String, &FleetComparison)> {
        let all = std::iter::once(&self.gain.all).chain(&self.gain.rules);
        all.map(|it| (it.rule.clone().unwrap_or_default(), it))
    }

    fn gain(&self, page: &mut Page<'_>) -> fmt::Result {
        let rows = |of: fn(&GainRow) -> Option<f64>| {
            let rows = self.comparisons().flat_map(|(rule, comparison)| {
                let figure =
                    move |row: &GainRow| Some(([rule.clone(), row.measure.clone()], of(row)?));
                comparison.rows.iter().filter_map(figure)
            });
            Rows::each(rows.collect::<Vec<_>>())
        };
        for (name, help, of) in [
            (
                "thalweg_fleet_gain_effect",
                "All agents: treated less control; units as of thalweg_gain_effect. A rule: flows that it took less those that it left alone.",
                (|row| row.effect) as fn(&GainRow) -> Option<f64>,
            ),
            (
                "thalweg_fleet_gain_low",
                "Lower end of the effect's interval.",
                |row| row.low,
            ),
            (
                "thalweg_fleet_gain_high",
                "Upper end of the effect's interval.",
                |row| row.high,
            ),
            (
                "thalweg_fleet_gain_control_clusters",
                "Hosts times hours of all control groups, or with flows that the rule left alone.",
                |row| Some(row.control as f64),
            ),
            (
                "thalweg_fleet_gain_treated_clusters",
                "Hosts times hours of the other connections.",
                |row| Some(row.treated as f64),
            ),
        ] {
            page.gauges(name, help, ["rule", "measure"], rows(of))?;
        }
        let agents = self.comparisons();
        page.gauges(
            "thalweg_fleet_gain_agents",
            "Agents that are counted.",
            ["rule"],
            Rows::each(agents.map(|(rule, it)| ([rule], it.agents as f64))),
        )?;
        let spread = |of: fn(&FleetSpread) -> u64| {
            let rows = self.comparisons().flat_map(|(rule, comparison)| {
                let figure =
                    move |it: &FleetSpread| ([rule.clone(), it.measure.clone()], of(it) as f64);
                comparison.spread.iter().map(figure)
            });
            Rows::each(rows.collect::<Vec<_>>())
        };
        for (name, help, of) in [
            (
                "thalweg_fleet_gain_known_agents",
                "Agents with an interval of their own.",
                (|it| it.known) as fn(&FleetSpread) -> u64,
            ),
            (
                "thalweg_fleet_gain_better_agents",
                "Of these, those that are better by their own interval.",
                |it| it.better,
            ),
            (
                "thalweg_fleet_gain_worse_agents",
                "Of these, those that are worse by their own interval.",
                |it| it.worse,
            ),
        ] {
            page.gauges(name, help, ["rule", "measure"], spread(of))?;
        }
        page.gauge(
            "thalweg_fleet_gain_left_out",
            "Agents' comparisons that are left out: unreadable, or with sums that cannot be.",
            self.gain.left_out.len(),
        )?;
        page.gauge(
            "thalweg_fleet_gain_refused_sums",
            "Sums that cannot be.",
            self.gain.refused,
        )
    }
}
