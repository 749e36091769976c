//! Status: how an agent is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{WireError, read_document, write_document};
use crate::names::Name;
use crate::text::{is_text, one_line};

/// Version of the format.
pub const FORMAT: u64 = 1;
/// Largest message, bytes.
pub const MAX_BYTES: usize = 64 << 10;
/// Most labels of an agent.
pub const MAX_LABELS: usize = 16;
/// Most faults that are told.
pub const MAX_FAULTS: usize = 16;
/// Longest fault, bytes.
pub const FAULT_MAX: usize = 300;
/// Most cells.
pub const MAX_CELLS: usize = 256;
/// Longest name in a cell, and longest version of a program, bytes.
const NAME_MAX: usize = 64;
/// Largest count of a cell, and largest magnitude of its sums: a double is exact up to here.
const MAX_COUNT: u64 = 1 << 53;
const MAX_SUM: f64 = 1e18;

/// How far a policy is on an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The policy waits: the agent is not in the canary's share.
    Waiting,
    /// The policy is in force on trial.
    Canary,
    /// The policy is in force.
    InForce,
    /// The policy was applied, and taken back.
    RolledBack,
    /// The policy was not applied.
    Refused,
}

impl Stage {
    /// Name of the stage, as in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Canary => "canary",
            Self::InForce => "in-force",
            Self::RolledBack => "rolled-back",
            Self::Refused => "refused",
        }
    }
}

/// A policy of the fleet on an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The policy's label.
    pub label: Name,
    /// The policy's number.
    pub number: u64,
    /// Stage of the policy.
    pub stage: Stage,
    /// Why it is no further, one line; may be empty.
    pub reason: String,
}

/// Sums over clusters of one side of a comparison, as in `thalweg_gain::Moments`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// Scope of the comparison, such as `all` or a rule's name.
    pub scope: String,
    /// The measure, such as `time`.
    pub row: String,
    /// The side, such as `control`.
    pub side: String,
    /// Number of clusters.
    pub clusters: u64,
    /// Number of connections.
    pub connections: u64,
    /// Weight, score, squares of weights, products, squares and third powers of scores.
    pub sums: [f64; 6],
}

impl Cell {
    /// The field that is out of bounds, in words.
    fn field_error(&self) -> Option<String> {
        for (field, text) in [
            ("scope", &self.scope),
            ("row", &self.row),
            ("side", &self.side),
        ] {
            if let Err(error) = check_text(field, text, NAME_MAX) {
                return Some(error.to_string());
            }
        }
        let number = self.clusters.max(self.connections);
        let error = if number > MAX_COUNT {
            WireError::wrong_field("clusters, connections", number, "at most 2^53")
        } else {
            // NaN is in no range.
            let is_wrong = |sum: &&f64| !(-MAX_SUM..=MAX_SUM).contains(*sum);
            let sum = self.sums.iter().find(is_wrong)?;
            WireError::wrong_field("sums", format_args!("{sum:e}"), "-1e18 to 1e18")
        };
        Some(format!("{} of {}: {error}", self.row, self.side))
    }
}

/// A comparison that is left out, since one of its cells is out of bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The scope, in printable characters.
    pub scope: String,
    /// Number of its cells, those within bounds among them.
    pub cells: u64,
    /// The first such cell, and what is wrong with it, one line.
    pub why: String,
}

/// A status as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// The status, without the comparisons that are left out.
    pub status: Status,
    /// Comparisons that are left out, in order of their scopes.
    pub left_out: Vec<LeftOut>,
}

/// Leaves out each comparison of which a cell is out of bounds. An agent is not believed about the rest
/// of it: it could make the cell impossible that speaks against it.
fn sound_cells(mut cells: Vec<Cell>) -> (Vec<Cell>, Vec<LeftOut>) {
    let mut wrong: BTreeMap<String, LeftOut> = BTreeMap::new();
    for cell in &cells {
        if wrong.contains_key(&cell.scope) {
            continue;
        }
        let Some(why) = cell.field_error() else {
            continue;
        };
        let of_scope = cells.iter().filter(|other| other.scope == cell.scope);
        let left_out = LeftOut {
            scope: one_line(&cell.scope, NAME_MAX),
            cells: of_scope.count() as u64,
            why,
        };
        wrong.insert(cell.scope.clone(), left_out);
    }
    cells.retain(|cell| !wrong.contains_key(&cell.scope));
    (cells, wrong.into_values().collect())
}

/// How an agent is.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Name of the agent.
    pub agent: Name,
    /// Version of its program.
    pub version: String,
    /// A number drawn at its start, which tells apart agents of one name; `None`: from before there was one.
    pub instance: Option<u64>,
    /// Whether the agent found that another agent has its name and key.
    pub is_shared: bool,
    /// Labels of the agent.
    pub labels: Vec<Name>,
    /// Policies of the fleet, at most one a label.
    pub policies: Vec<Progress>,
    /// Problems, one line each.
    pub faults: Vec<String>,
    /// Sums of its control group and the others.
    pub cells: Vec<Cell>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u64,
    agent: Name,
    version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_shared: bool,
    labels: Vec<Name>,
    policies: Vec<Progress>,
    faults: Vec<String>,
    cells: Vec<Cell>,
}

impl Status {
    /// Reads a message. A comparison of which a cell is out of bounds is left out.
    ///
    /// # Errors
    /// The message is too large, of another version, or has another field out of bounds.
    pub fn parse(bytes: &[u8]) -> Result<Received, WireError> {
        let document: Document = read_document(bytes, MAX_BYTES, FORMAT)?;
        at_most("cells", document.cells.len(), MAX_CELLS)?;
        let (cells, left_out) = sound_cells(document.cells);
        let status = Self {
            agent: document.agent,
            version: document.version,
            instance: document.instance,
            is_shared: document.is_shared,
            labels: document.labels,
            policies: document.policies,
            faults: document.faults,
            cells,
        };
        status.check_fields()?;
        Ok(Received { status, left_out })
    }

    /// The message. Faults and cells beyond what a message may have are left out; long faults and
    /// reasons are cut. A comparison of which a cell is out of bounds is left out, and is a fault.
    ///
    /// # Errors
    /// Another field is out of bounds.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let short = |fault: &String| {
            // Characters have at most four bytes.
            one_line(fault, FAULT_MAX / 4)
        };
        let (mut cells, left_out) = sound_cells(self.cells.clone());
        cells.truncate(MAX_CELLS);
        let untold = left_out
            .iter()
            .map(|it| format!("gain of {} is not told: {}", it.scope, it.why));
        let faults: Vec<String> = untold.chain(self.faults.iter().cloned()).collect();
        let faults = faults.iter().filter(|fault| !fault.is_empty());
        let mut policies = self.policies.clone();
        for progress in &mut policies {
            progress.reason = short(&progress.reason);
        }
        let status = Self {
            faults: faults.take(MAX_FAULTS).map(short).collect(),
            cells,
            policies,
            ..self.clone()
        };
        status.check_fields()?;
        let mut document = Document {
            format: FORMAT,
            agent: status.agent,
            version: status.version,
            instance: status.instance,
            is_shared: status.is_shared,
            labels: status.labels,
            policies: status.policies,
            faults: status.faults,
            cells: status.cells,
        };
        loop {
            let bytes = write_document(&document);
            if bytes.len() <= MAX_BYTES {
                return Ok(bytes);
            }
            if document.cells.pop().is_none() {
                return Err(WireError::Size {
                    found: bytes.len(),
                    most: MAX_BYTES,
                });
            }
        }
    }

    /// Checks all but the cells, of which there are only sound ones.
    fn check_fields(&self) -> Result<(), WireError> {
        check_text("version", &self.version, NAME_MAX)?;
        at_most("labels", self.labels.len(), MAX_LABELS)?;
        at_most("policies", self.policies.len(), MAX_LABELS)?;
        at_most("faults", self.faults.len(), MAX_FAULTS)?;
        for progress in &self.policies {
            if !progress.reason.is_empty() {
                check_text("reason", &progress.reason, FAULT_MAX)?;
            }
        }
        for fault in &self.faults {
            check_text("faults", fault, FAULT_MAX)?;
        }
        Ok(())
    }
}

fn check_text(field: &str, text: &str, most: usize) -> Result<(), WireError> {
    if is_text(text, most) {
        return Ok(());
    }
    let shown = format!("{:?}", one_line(text, 80));
    let expected = format!("1 to {most} bytes of one line");
    Err(WireError::wrong_field(field, shown, &expected))
}

fn at_most(field: &str, found: usize, most: usize) -> Result<(), WireError> {
    if found <= most {
        return Ok(());
    }
    Err(WireError::wrong_field(
        field,
        found,
        &format!("at most {most}"),
    ))
}
