//! The `[[arm]]` tables: congestion controls in BPF that a run loads where its kernel has none
//! of that name.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thalweg_units::file::{MAX_FILE_BYTES, read};
use thalweg_units::one_line;
use toml::Spanned;

use super::Fault;
use crate::units::grammar::is_congestion_control;
use crate::units::{Delay, Rate};

/// What a model file's name ends with.
const MODEL: &str = "safetensors";

/// A congestion control that `thalweg cc load` can load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Arm {
    /// The name that modes and expectations know it by.
    pub name: String,
    /// What is loaded: the name of one that comes with Thalweg, or a file as the scenario
    /// names it.
    pub load: String,
    /// Where that file is; none for one that comes with Thalweg.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// Of a model: the rate that counts as 1; none: what `cc load` takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_rate: Option<Rate>,
    /// Of a model: the shortest round-trip time that counts; none: what `cc load` takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_rtt: Option<Delay>,
}

impl Arm {
    /// Whether it is a model of the learned rate controller.
    pub fn is_model(&self) -> bool {
        let file = self.file.as_deref().and_then(Path::extension);
        file.is_some_and(|extension| extension == MODEL)
    }
}

/// One table as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    name: Spanned<String>,
    load: Spanned<String>,
    reference_rate: Option<Spanned<Rate>>,
    reference_rtt: Option<Spanned<Delay>>,
}

/// Checks the tables; names of files begin at the folder. A word without '/' and '.' is the
/// name of one that comes with Thalweg.
pub(super) fn check(tables: Vec<Table>, folder: &Path) -> Result<Vec<Arm>, Fault> {
    let mut arms: Vec<Arm> = Vec::new();
    for table in tables {
        let name = table.name.get_ref();
        if !is_congestion_control(name) {
            let message = format!("expected the name of a congestion control, found {name:?}");
            return Err((table.name.span(), message));
        }
        if arms.iter().any(|other| other.name == *name) {
            let message = format!("expected each [[arm]] once, found {name:?} again");
            return Err((table.name.span(), message));
        }
        let word = table.load.get_ref();
        let file = word.contains(['/', '.']).then(|| folder.join(word));
        if let Some(file) = &file
            && let Err(error) = read(file, MAX_FILE_BYTES)
        {
            return Err((table.load.span(), one_line(&error.to_string())));
        }
        let arm = Arm {
            name: name.clone(),
            load: word.clone(),
            file,
            reference_rate: table.reference_rate.as_ref().map(|rate| *rate.get_ref()),
            reference_rtt: table.reference_rtt.as_ref().map(|rtt| *rtt.get_ref()),
        };
        let spans = [
            table.reference_rate.as_ref().map(Spanned::span),
            table.reference_rtt.as_ref().map(Spanned::span),
        ];
        if let Some(span) = spans.into_iter().flatten().next()
            && !arm.is_model()
        {
            let message = format!("goes with a model only (a .{MODEL} file), found {word:?}");
            return Err((span, message));
        }
        arms.push(arm);
    }
    Ok(arms)
}
