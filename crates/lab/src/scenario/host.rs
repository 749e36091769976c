//! The `[[host]]` tables: several remote hosts, each with a path of its own.

use serde::Serialize;
use thalweg_units::reader::Table;
use thalweg_units::schema;
use toml::de::DeValue;

use super::{Kind, PathModel, Traffic};

/// Most hosts: each costs namespaces and a process in every mode.
const MOST: usize = 16;
/// The longest name, bytes.
const NAME_BYTES: usize = 16;

/// A remote host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Host {
    /// Its name in the scenario and the report; empty if it is the only one.
    pub name: String,
    /// The path between it and the client.
    pub path: PathModel,
}

fn name(value: &DeValue<'_>) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let fine = |name: &&str| (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(plain);
    value.as_str().filter(fine).map(str::to_owned)
}

/// Reads all hosts of a scenario; none without `[[host]]` tables, or if there is a fault. Keys that
/// a host lacks are taken from `path`.
pub(super) fn read(
    tables: Vec<Table<'_>>,
    path: Option<&PathModel>,
    traffic: Option<&Traffic>,
) -> Option<Vec<Host>> {
    let count = tables.len();
    let mut all_sound = true;
    let mut hosts: Vec<Host> = Vec::new();
    for (place, mut table) in tables.into_iter().enumerate() {
        if place == 0 {
            check(&table, count, traffic);
        }
        let expected = format!("1 to {NAME_BYTES} letters, digits, - or _");
        let name = table.required("name", "a name", name, &expected, || {
            schema::of_characters("A-Za-z0-9_-", NAME_BYTES)
        });
        let mut own = path.cloned().unwrap_or_default();
        // Each host has its own seed: equal losses at equal packets would not be random.
        own.seed = own.seed.wrapping_add(place as u64);
        own.read(&mut table);
        table.finish();
        if path.is_some() {
            own.check(&table);
        }
        let name = name.unwrap_or_default();
        if !name.is_empty() && hosts.iter().any(|host| host.name == name) {
            table.wrong("name", format!("{name:?} again"), "each host once");
        }
        all_sound &= table.is_sound();
        hosts.push(Host { name, path: own });
    }
    all_sound.then_some(hosts)
}

/// Checks the number of hosts; `first` is the first table.
fn check(first: &Table<'_>, count: usize, traffic: Option<&Traffic>) {
    if traffic.is_some_and(|it| !matches!(it.kind, Kind::Bulk | Kind::Short { .. })) {
        first.fault_here(
            "[[host]] with another kind of traffic",
            "kind \"bulk\" or \"short\": flows to different hosts share no bottleneck",
        );
    }
    if !(2..=MOST).contains(&count) {
        let expected = format!("2 to {MOST} hosts (one host is what [path] describes)");
        let found = match count {
            1 => "one host".to_owned(),
            count => format!("{count} hosts"),
        };
        first.fault_here(&found, &expected);
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
