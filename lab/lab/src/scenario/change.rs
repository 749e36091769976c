//! The `[[change]]` tables: changes of the path during a run.

use serde::Serialize;
use thalweg_units::reader::Table;

use super::host::check_name;
use super::path::CHANGING;
use super::{Host, PathModel};
use crate::units::Delay;

/// A change of the path. Keys that it lacks stay as they are.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The round, counted from 1, before which it takes effect.
    pub at: u32,
    /// If given, it takes effect this long after that round's connection has begun.
    pub within: Option<Delay>,
    /// The host whose path changes; empty if there is only one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Loss, rate and queue from then on.
    pub path: PathModel,
}

/// Reads all changes of a scenario, in order; none if there is a fault. A change without a host
/// applies to every host. Parts of the scenario with faults are not compared with.
pub(super) fn read_changes(
    tables: Vec<Table<'_>>,
    path: Option<&PathModel>,
    hosts: Option<&[Host]>,
    connections: Option<u32>,
) -> Option<Vec<Change>> {
    let mut all_sound = true;
    let mut changes: Vec<Change> = Vec::new();
    for mut table in tables {
        let at = table.needed_count("at", 1..=connections.unwrap_or(u32::MAX));
        let within: Option<Delay> = table.value("within");
        let host: Option<String> = table.value("host");
        if let (Some(name), Some(hosts)) = (&host, hosts) {
            check_name(&table, name, hosts);
        }
        let beginnings: Vec<(&str, &PathModel)> = match (path, hosts) {
            (Some(path), Some([])) => vec![("", path)],
            (_, Some(hosts)) => hosts
                .iter()
                .filter(|one| host.as_ref().is_none_or(|name| one.name == *name))
                .map(|host| (host.name.as_str(), &host.path))
                .collect(),
            _ => Vec::new(),
        };
        if let Some(several) = hosts
            .into_iter()
            .flatten()
            .find(|one| one.count() > 1 && host.as_ref().is_none_or(|name| one.name == *name))
        {
            let found = format!("a change of {:?}", several.name);
            table.fault_here(
                &found,
                "changes of single hosts: a [[host]] without `count`",
            );
        }
        let moment = (at.unwrap_or_default(), within);
        if at.is_some() && is_late(&changes, moment, &beginnings) {
            table.wrong(
                "at",
                moment.0.to_string(),
                "changes in the order in which they happen",
            );
        }
        // The keys are taken once and then applied to each host's path at that time.
        let mut keys = PathModel::default();
        if !keys.read_change(&mut table) {
            let expected = format!("what changes: {}", CHANGING.join(", "));
            table.fault_here("no change", &expected);
        }
        table.refuse_unknown_keys();
        for (name, beginning) in beginnings {
            let last = changes.iter().rfind(|change| change.host == name);
            let before = last.map_or(beginning, |change| &change.path);
            let path = path_after(&table, name, before, &keys);
            changes.push(Change {
                at: moment.0,
                within,
                host: name.to_owned(),
                path,
            });
        }
        all_sound &= table.is_sound();
    }
    (all_sound && path.is_some() && hosts.is_some()).then_some(changes)
}

/// Whether an earlier table has a later change, or one of the same host at the same time.
fn is_late(changes: &[Change], moment: (u32, Option<Delay>), hosts: &[(&str, &PathModel)]) -> bool {
    changes.iter().any(|change| {
        let before = (change.at, change.within);
        let same = hosts.iter().any(|(name, _)| change.host == *name);
        before > moment || (same && before == moment)
    })
}

/// The path of a host after a change.
fn path_after(table: &Table<'_>, host: &str, before: &PathModel, keys: &PathModel) -> PathModel {
    if table.has("rate") && before.rate.is_none() && table.is_sound() {
        let whose = match host {
            "" => "the path".to_owned(),
            name => format!("the path of {name}"),
        };
        table.wrong(
            "rate",
            "a rate",
            format!("none: {whose} begins without one, so it has no bottleneck"),
        );
    }
    if table.has("rate") && before.trace.is_some() {
        table.wrong("rate", "a rate", "none: the path's `trace` changes it");
    }
    let mut path = before.clone();
    if table.has("loss") || table.has("gilbert_elliott") {
        (path.loss, path.gilbert_elliott) = (keys.loss, keys.gilbert_elliott);
    }
    if table.has("syn_loss") {
        path.syn_loss = keys.syn_loss;
    }
    if table.has("reverse_loss") {
        path.reverse_loss = keys.reverse_loss;
    }
    path.rate = keys.rate.or(path.rate);
    path.queue = keys.queue.or(path.queue);
    path.check_values(table);
    path
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;
