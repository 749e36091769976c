//! The `[[arm]]` tables: congestion controls in BPF that a run loads if its kernel has none of that
//! name.

use std::path::{Path, PathBuf};

use serde::Serialize;
use thalweg_units::file::{MAX_FILE_BYTES, read_bytes as read_file};
use thalweg_units::one_line;
use thalweg_units::reader::{Table, quote_piece};
use thalweg_units::schema;

use super::congestion_control;
use crate::units::grammar::CONGESTION_CONTROL;
use crate::units::{Delay, Rate};

/// Ending of a model file's name.
const MODEL: &str = "safetensors";

/// A congestion control that `thalweg cc load` can load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Arm {
    /// Name of the arm in modes and expectations.
    pub name: String,
    /// Name of a congestion control of Thalweg, or a file as the scenario names it.
    pub load: String,
    /// The path of that file; none for one of Thalweg's.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// For a model: the rate that counts as 1; none: the default of `cc load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_rate: Option<Rate>,
    /// For a model: the shortest round-trip time that counts; none: the default of `cc load`.
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

/// Reads the tables; none if there is a fault. File names are relative to the folder. A word
/// without '/' and '.' names a congestion control of Thalweg.
pub(super) fn read_arms(tables: Vec<Table<'_>>, folder: &Path) -> Option<Vec<Arm>> {
    let mut all_sound = true;
    let mut arms: Vec<Arm> = Vec::new();
    for mut table in tables {
        let what = "the name that modes know it by";
        let name = table.required(
            "name",
            what,
            congestion_control,
            CONGESTION_CONTROL,
            schema::congestion_control,
        );
        let load: Option<String> = table.needed("load");
        let mut arm = Arm {
            name: name.unwrap_or_default(),
            load: load.unwrap_or_default(),
            file: None,
            reference_rate: table.value("reference_rate"),
            reference_rtt: table.value("reference_rtt"),
        };
        table.refuse_unknown_keys();
        if !arm.name.is_empty() && arms.iter().any(|other| other.name == arm.name) {
            table.wrong(
                "name",
                format!("{} again", quote_piece(&arm.name)),
                "each [[arm]] once",
            );
        }
        if arm.load.contains(['/', '.']) {
            let file = folder.join(&arm.load);
            if let Err(error) = read_file(&file, MAX_FILE_BYTES) {
                let found = format!(
                    "{} ({})",
                    quote_piece(&arm.load),
                    one_line(&error.to_string())
                );
                table.wrong("load", found, "a file that can be read");
            }
            arm.file = Some(file);
        }
        for key in ["reference_rate", "reference_rtt"] {
            if table.has(key) && !arm.is_model() {
                let found = format!("it beside {:?}", arm.load);
                table.wrong(
                    key,
                    found,
                    format!("it beside a model (a .{MODEL} file) only"),
                );
            }
        }
        all_sound &= table.is_sound();
        arms.push(arm);
    }
    all_sound.then_some(arms)
}

#[cfg(test)]
#[path = "arm_tests.rs"]
mod tests;
