//! The `[[host]]` tables: several remote hosts, each with a path of its own.

use std::path::Path;

use serde::Serialize;
use thalweg_units::reader::Table;
use thalweg_units::schema;
use toml::de::DeValue;

use super::{PathModel, Traffic, TrafficKind};
use crate::units::{Delay, Probability, Rate};

/// Most hosts: each costs namespaces and a process in every mode.
const MOST: u32 = 64;
/// Most values in the lists of a host that stands for several.
const MOST_VALUES: usize = 64;
/// The longest name, bytes.
const NAME_BYTES: usize = 16;

/// A remote host, or several in one network, each behind a path of its own.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Host {
    /// Name in the scenario and the report; empty if it is the only one.
    pub name: String,
    /// The path between it, or the first of several, and the client.
    pub path: PathModel,
    /// The paths to the others of its network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<PathModel>,
}

impl Host {
    /// The paths to it, or to all that it stands for.
    pub fn paths(&self) -> impl Iterator<Item = &PathModel> {
        std::iter::once(&self.path).chain(&self.others)
    }

    /// The number of hosts that it stands for.
    pub fn count(&self) -> u32 {
        1 + self.others.len() as u32
    }

    /// The paths in one line, for a reader.
    pub(super) fn describe(&self) -> String {
        let first = self.path.describe();
        match self.count() {
            1 => format!("{}: {first}", self.name),
            count => format!("{}, {count} hosts, the first: {first}", self.name),
        }
    }
}

fn host_name(value: &DeValue<'_>) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let fine = |name: &&str| (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(plain);
    value.as_str().filter(fine).map(str::to_owned)
}

/// Reads all hosts of a scenario; none without `[[host]]` tables, or if there is a fault. Keys that
/// a host lacks are taken from `path`.
pub(super) fn read_hosts(
    tables: Vec<Table<'_>>,
    folder: &Path,
    path: Option<&PathModel>,
    traffic: Option<&Traffic>,
) -> Option<Vec<Host>> {
    let tables_count = tables.len();
    let mut count = 0;
    let mut all_sound = true;
    let mut hosts: Vec<Host> = Vec::new();
    for (place, mut table) in tables.into_iter().enumerate() {
        if place == 0 {
            check_count(&table, tables_count, traffic);
        }
        let expected = format!("1 to {NAME_BYTES} letters, digits, - or _");
        let name = table.required("name", "a name", host_name, &expected, || {
            schema::of_characters("A-Za-z0-9_-", NAME_BYTES)
        });
        let mut own = path.cloned().unwrap_or_default();
        // Each host has its own seed: equal losses at equal packets would not be random.
        own.seed = own.seed.wrapping_add(count.into());
        own.take_keys(&mut table, folder);
        let paths = expand_hosts(&mut table, own);
        table.refuse_unknown_keys();
        if path.is_some() {
            paths.iter().for_each(|path| path.check_values(&table));
        }
        if paths.len() > 1 && traffic.is_some_and(|it| it.kind.server_addresses() > 1) {
            let expected = "1 beside `hosts` of [traffic], which counts addresses behind one path";
            table.wrong("count", paths.len().to_string(), expected);
        }
        let before = count;
        count += paths.len() as u32;
        if count > MOST && before <= MOST {
            let expected = format!("at most {MOST} hosts, with those that a [[host]] stands for");
            table.fault_here(&format!("{count} hosts"), &expected);
        }
        let name = name.unwrap_or_default();
        if !name.is_empty() && hosts.iter().any(|host| host.name == name) {
            table.wrong("name", format!("{name:?} again"), "each host once");
        }
        all_sound &= table.is_sound();
        let mut paths = paths.into_iter();
        hosts.push(Host {
            name,
            // There is at least one.
            path: paths.next().unwrap_or_default(),
            others: paths.collect(),
        });
    }
    all_sound.then_some(hosts)
}

/// Takes the keys of a table that stands for several hosts. Each has its own seed, and of each list
/// the next value, over and over.
fn expand_hosts(table: &mut Table<'_>, own: PathModel) -> Vec<PathModel> {
    let count = table.count("count", 1..=MOST);
    let rates: Vec<Rate> = table.values("rates", MOST_VALUES, |_| None);
    let delays: Vec<Delay> = table.values("delays", MOST_VALUES, |_| None);
    let losses: Vec<Probability> = table.values("losses", MOST_VALUES, |_| None);
    for (list, one) in [("rates", "rate"), ("delays", "delay"), ("losses", "loss")] {
        if table.has(list) && count.is_none_or(|count| count < 2) {
            table.wrong(
                list,
                "a list for one host",
                "`count` of 2 or more beside it",
            );
        }
        if table.has(list) && table.has(one) {
            table.wrong(list, format!("it beside `{one}`"), "one of the two");
        }
    }
    (0..count.unwrap_or(1))
        .map(|place| {
            let mut path = own.clone();
            path.seed = path.seed.wrapping_add(place.into());
            let turn = |length: usize| (place as usize).checked_rem(length);
            if let Some(at) = turn(rates.len()) {
                (path.rate, path.trace) = (Some(rates[at]), None);
            }
            if let Some(at) = turn(losses.len()) {
                (path.loss, path.gilbert_elliott) = (Some(losses[at]), None);
            }
            path.delay = turn(delays.len()).map_or(path.delay, |at| delays[at]);
            path
        })
        .collect()
}

/// Checks the number of hosts; `first` is the first table.
fn check_count(first: &Table<'_>, count: usize, traffic: Option<&Traffic>) {
    let kinds = |it: &Traffic| {
        matches!(
            it.kind,
            TrafficKind::Bulk | TrafficKind::Short { .. } | TrafficKind::Web(_)
        )
    };
    if traffic.is_some_and(|it| !kinds(it)) {
        first.fault_here(
            "[[host]] with another kind of traffic",
            "kind \"bulk\", \"short\" or \"web\": flows to different hosts share no bottleneck",
        );
    }
    if count == 1 && first.peek("count").is_none() {
        let expected = format!("2 to {MOST} hosts (one host is what [path] describes)");
        first.fault_here("one host", &expected);
    }
}

/// Checks that a table names one of these hosts.
pub(crate) fn check_name(table: &Table<'_>, name: &str, hosts: &[Host]) {
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    if !names.contains(&name) {
        let expected = match &names[..] {
            [] => "none: there are no [[host]] tables".to_owned(),
            names => format!("one of the hosts ({})", names.join(", ")),
        };
        table.wrong("host", format!("{name:?}"), expected);
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
