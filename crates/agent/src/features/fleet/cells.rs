//! The parts of a status about the gain and the fleet's faults.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use thalweg_fleet::wire::Cell;
use thalweg_fleet::{Kind, State};
use thalweg_gain::{Moments, Row, Side, SideReport};

use crate::comparison::Compared;

/// The scope of the learner's comparison.
const ALL: &str = "all";
/// Prefix of a rule's scope.
const RULE: &str = "rule:";
/// Longest name of a rule, bytes: a scope has at most 64.
const NAME_MAX: usize = 64 - RULE.len();
/// Most rules that are reported: with more, six statuses an hour would take more than half of the
/// 50 kB that an agent may send and receive.
const RULES_MAX: usize = 4;
/// Time for which a fault is reported.
const RECENT: Duration = Duration::from_secs(3600);

/// The comparisons as cells of a status.
pub fn cells(compared: &[Compared]) -> Vec<Cell> {
    let (learner, rules): (Vec<_>, Vec<_>) = compared.iter().partition(|it| it.rule.is_none());
    let rules = rules.into_iter().filter(|it| is_told(it)).take(RULES_MAX);
    let all = learner.into_iter().chain(rules);
    all.flat_map(|it| it.told.iter().map(|told| cell(it.rule.as_deref(), told)))
        .collect()
}

/// Whether a comparison may be reported: its rule's name has room, and names no host.
fn is_told(compared: &Compared) -> bool {
    let Some(name) = &compared.rule else {
        return true;
    };
    let apart = |it: char| !(it.is_ascii_hexdigit() || it == '.' || it == ':');
    let mut parts = name.split(apart);
    (1..=NAME_MAX).contains(&name.len())
        && !name.contains(thalweg_units::is_unseen)
        && !parts.any(|part| part.trim_matches('.').parse::<IpAddr>().is_ok())
}

fn cell(rule: Option<&str>, told: &SideReport) -> Cell {
    let it = &told.moments;
    Cell {
        scope: rule.map_or_else(|| ALL.to_owned(), |rule| format!("{RULE}{rule}")),
        row: told.row.measure_name().to_owned(),
        side: told.side.file_text(),
        clusters: it.clusters,
        connections: it.connections,
        sums: [
            it.weight, it.score, it.weight2, it.cross, it.score2, it.score3,
        ]
        .map(short),
    }
}

/// Rounds to ten digits: the others are noise, and each costs a byte.
fn short(sum: f64) -> f64 {
    format!("{sum:.9e}").parse().unwrap_or(sum)
}

/// The rule that a scope names; `None`: the learner.
///
/// # Errors
/// The scope is neither `all` nor that of a rule.
pub fn rule_of(scope: &str) -> Result<Option<&str>, String> {
    match scope.strip_prefix(RULE) {
        Some(rule) if !rule.is_empty() => Ok(Some(rule)),
        None if scope == ALL => Ok(None),
        _ => Err(format!("scope: found {scope:?}, expected all or rule:NAME")),
    }
}

/// The sums of a cell.
///
/// # Errors
/// The row or the side is unknown.
pub fn told(cell: &Cell) -> Result<SideReport, String> {
    let row = Row::MEASURES.into_iter();
    let row = row.clone().find(|row| row.measure_name() == cell.row);
    let [weight, score, weight2, cross, score2, score3] = cell.sums;
    Ok(SideReport {
        row: row.ok_or_else(|| format!("row: found {:?}, expected a measure", cell.row))?,
        side: Side::parse(&cell.side)
            .ok_or_else(|| format!("side: found {:?}, expected control or treated", cell.side))?,
        moments: Moments {
            clusters: cell.clusters,
            connections: cell.connections,
            weight,
            score,
            weight2,
            cross,
            score2,
            score3,
        },
    })
}

/// Count of faults of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    number: u64,
    /// Time of the last status that found more of them.
    grown: Instant,
}

/// Recent faults of the client. Each kind stays for a while, as a lasting fault may not come again
/// between two statuses. `before` has the counts of the statuses before. A missing server is no
/// fault once there is one.
pub fn faults(state: &State, before: &mut BTreeMap<Kind, Counted>, now: Instant) -> Vec<String> {
    for (kind, &number) in &state.faults {
        let grown = Counted { number, grown: now };
        let counted = before.entry(*kind).or_insert(grown);
        if counted.number < number {
            *counted = grown;
        }
    }
    let is_over =
        |kind: Kind| matches!(kind, Kind::Unreachable | Kind::Slow) && state.connected.is_some();
    let is_recent = |kind: Kind| {
        let counted = before.get(&kind);
        counted.is_some_and(|it| now.saturating_duration_since(it.grown) < RECENT)
    };
    let last = state.last.as_ref();
    let told = state.faults.iter();
    let told = told.filter(|(kind, _)| !is_over(**kind) && is_recent(**kind));
    told.map(|(kind, number)| {
        let times = if *number == 1 { "once" } else { "times" };
        let how_often = match number {
            1 => times.to_owned(),
            _ => format!("{number} {times}"),
        };
        match last.filter(|last| last.fault.kind == *kind) {
            Some(last) => format!("fleet: {}, {how_often}: {}", kind.name(), last.fault.text),
            None => format!("fleet: {}, {how_often}", kind.name()),
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_fleet::wire::Status;
    use thalweg_fleet::{Connection, Fault, Name};

    fn moments(scale: f64) -> Moments {
        Moments {
            clusters: 1_234_567,
            connections: 12_345_678,
            weight: 2_234_567.0,
            score: -scale * 12_345.678_901_234_5,
            weight2: 12_345_678.0,
            cross: scale * 123_456.789_012_345_6,
            score2: scale * 1_234_567.890_123_456,
            score3: -scale * 123_456.789_012_345_6,
        }
    }

    fn compared(rule: Option<&str>) -> Compared {
        let sides = [Side::Control, Side::Treated].into_iter();
        let all = sides.flat_map(|side| Row::MEASURES.map(|row| (side, row)));
        Compared {
            rule: rule.map(str::to_owned),
            told: all
                .map(|(side, row)| SideReport {
                    row,
                    side,
                    moments: moments(1.0),
                })
                .collect(),
        }
    }

    #[test]
    fn cells_are_read_again_and_a_status_is_small() {
        let names = ["a", "b", "to-192.0.2.7", "via 2001:db8::7.", "c", "d", "e"];
        let mut all = vec![compared(None)];
        all.extend(names.map(|name| compared(Some(name))));
        all.push(compared(Some(&"x".repeat(60))));
        let cells = cells(&all);
        let mut scopes: Vec<_> = cells.iter().map(|it| it.scope.as_str()).collect();
        scopes.dedup();
        assert_eq!(scopes, ["all", "rule:a", "rule:b", "rule:c", "rule:d"]);
        for (cell, expected) in cells.iter().zip(&all[0].told) {
            let found = told(cell).unwrap();
            assert_eq!((found.row, found.side), (expected.row, expected.side));
            assert_eq!(found.moments.weight, expected.moments.weight);
            let apart = found.moments.score3 / expected.moments.score3 - 1.0;
            assert!(apart.abs() < 1e-9, "{apart}");
        }
        let status = Status {
            agent: Name::new("web1_example_com").unwrap(),
            version: "0.1.0".to_owned(),
            instance: None,
            is_shared: false,
            labels: vec![Name::all()],
            policies: Vec::new(),
            faults: Vec::new(),
            cells,
        };
        let bytes = status.encode().unwrap();
        assert_eq!(Status::parse(&bytes).unwrap().status, status);
        let (one, all) = (bytes.len() / 5, bytes.len());
        println!("a status with five comparisons: {all} bytes, with one about {one}");
        let load = thalweg_fleet::traffic::Load {
            agents: 1000.0,
            networks: 1000.0,
            arms: 3.0,
            shards: 0.0,
            status: all as f64,
        };
        assert!(
            load.agent_traffic().bytes() <= 50_000.0,
            "{:?}",
            load.agent_traffic()
        );
    }

    #[test]
    fn scopes_rows_and_sides_that_are_none_are_refused() {
        assert_eq!(rule_of("all"), Ok(None));
        assert_eq!(rule_of("rule:a:b"), Ok(Some("a:b")));
        for scope in ["", "rule:", "All", "arm"] {
            assert!(rule_of(scope).is_err(), "{scope}");
        }
        let good = cell(None, &compared(None).told[0]);
        for (row, side) in [("Time", "control"), ("time", "drawn"), ("", "")] {
            let bad = Cell {
                row: row.to_owned(),
                side: side.to_owned(),
                ..good.clone()
            };
            assert!(told(&bad).is_err());
        }
    }

    #[test]
    fn faults_are_told_while_they_are_recent_however_many_statuses_there_are() {
        let now = Instant::now();
        let mut state = State::default();
        let mut before = BTreeMap::new();
        assert!(faults(&state, &mut before, now).is_empty());
        let fault = |kind, text: &str| thalweg_fleet::ReportedFault {
            fault: Fault {
                kind,
                text: text.to_owned(),
            },
            at: now,
        };
        state.faults = BTreeMap::from([(Kind::Full, 1), (Kind::Form, 12), (Kind::Unreachable, 3)]);
        state.last = Some(fault(Kind::Form, "b.3: no JSON"));
        let told = faults(&state, &mut before, now);
        let expected = [
            "fleet: unreachable, 3 times",
            "fleet: full, once",
            "fleet: form, 12 times: b.3: no JSON",
        ];
        assert_eq!(told, expected);
        // A status right after that one: what is refused is tried again in a minute.
        let soon = now + Duration::from_secs(30);
        assert_eq!(faults(&state, &mut before, soon), expected);
        state.faults.insert(Kind::Full, 2);
        let later = now + RECENT;
        assert_eq!(faults(&state, &mut before, later), ["fleet: full, 2 times"]);
        assert!(faults(&state, &mut before, later + RECENT).is_empty());
        // That there was no server is over.
        state.faults.insert(Kind::Unreachable, 9);
        state.connected = Some(Connection {
            server: "tls://a".to_owned(),
            since: now,
        });
        assert!(faults(&state, &mut before, later + RECENT).is_empty());
    }
}
