//! Keys of a scenario file that are given elsewhere: `--set hosts.linux.offload=false`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use thalweg_units::Faults;
use thalweg_units::file::read_text;

use super::{LoadError, Scenario};

/// A key of a scenario file, and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// The path of the key: tables, then the key in the last.
    path: Vec<String>,
    value: toml::Value,
}

/// A text is not of the form KEY=VALUE.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not of the form KEY=VALUE, with a key such as hosts.linux.offload")]
pub struct SettingError(String);

/// `KEY=VALUE`; a value that is not TOML is taken as text.
impl FromStr for Setting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let fault = || SettingError(text.to_owned());
        let (key, value) = text.split_once('=').ok_or_else(fault)?;
        let path: Vec<String> = key.trim().split('.').map(str::to_owned).collect();
        if path.iter().any(String::is_empty) {
            return Err(fault());
        }
        let value = value.trim();
        let value = toml::from_str::<toml::Table>(&format!("value = {value}"))
            .ok()
            .and_then(|mut table| table.remove("value"))
            .unwrap_or_else(|| value.into());
        Ok(Self { path, value })
    }
}

impl Setting {
    /// Puts the value into a file's root table; tables on the way are made.
    fn insert_into(&self, root: &mut toml::Table) {
        let mut table = root;
        let Some((key, tables)) = self.path.split_last() else {
            return;
        };
        for name in tables {
            let entry = table
                .entry(name.clone())
                .or_insert_with(|| toml::Table::new().into());
            if !entry.is_table() {
                // The reader reports a table where it expects a value.
                *entry = toml::Table::new().into();
            }
            match entry.as_table_mut() {
                Some(below) => table = below,
                None => return,
            }
        }
        table.insert(key.clone(), self.value.clone());
    }
}

impl Scenario {
    /// As [`Scenario::load`], with some keys set to other values. Faults are those of the text with
    /// these values, so that their lines are not the file's.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid scenario with these values.
    pub fn load_with(file: &Path, settings: &[Setting]) -> Result<Self, LoadError> {
        Ok(Self::parse_with(&read_text(file)?, file, settings)?)
    }

    fn parse_with(text: &str, file: &Path, settings: &[Setting]) -> Result<Self, Faults> {
        let (text, name) = with_settings(text, file, settings);
        Self::parse(&text, &name)
    }
}

/// A scenario file's text with some keys set to other values, and the name for messages: another
/// than the file's, as its lines must not be shown beside faults of these values. A faulty text
/// stays as it is.
pub fn with_settings(text: &str, file: &Path, settings: &[Setting]) -> (String, PathBuf) {
    let unchanged = || (text.to_owned(), file.to_owned());
    if settings.is_empty() {
        return unchanged();
    }
    let Ok(mut root) = text.parse::<toml::Table>() else {
        return unchanged();
    };
    for setting in settings {
        setting.insert_into(&mut root);
    }
    let name = format!("{} with other values", file.display());
    (root.to_string(), name.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Time;

    const TEXT: &str = include_str!("../../../../scenarios/sim/linux-1g-8.toml");

    fn with(settings: &[&str]) -> Result<Scenario, String> {
        let settings: Vec<Setting> = settings.iter().map(|text| text.parse().unwrap()).collect();
        Scenario::parse_with(TEXT, Path::new("a.toml"), &settings)
            .map_err(|faults| faults.to_string())
    }

    #[test]
    fn keys_are_set_and_tables_made() {
        let scenario = with(&[
            "hosts.linux.offload=false",
            "hosts.start_spread = 3ms",
            "network.ecn.min=10kb",
            "network.ecn.max=20kb",
            "network.ecn.probability=100%",
        ])
        .unwrap();
        assert!(!scenario.hosts.linux.unwrap().offload);
        assert_eq!(scenario.hosts.start_spread, Time::from_us(3_000));
        assert_eq!(scenario.network.ecn.unwrap().max_bytes, 20_000);
        assert_eq!(
            with(&[]).unwrap(),
            Scenario::parse(TEXT, Path::new("a.toml")).unwrap()
        );
    }

    #[test]
    fn faults_name_the_key() {
        let fault = with(&["hosts.linux.pacing=fast"]).unwrap_err();
        assert!(
            fault.contains("hosts.linux.pacing") && fault.contains("\"internal\""),
            "{fault}"
        );
        assert!(fault.starts_with("a.toml with other values:"), "{fault}");
        let fault = with(&["hosts.linux.tso=true"]).unwrap_err();
        assert!(fault.contains("unknown key \"tso\""), "{fault}");
        for text in ["offload", "=3", "hosts..burst=3"] {
            let error = text.parse::<Setting>().unwrap_err();
            assert!(error.to_string().contains("not of the form KEY=VALUE"));
        }
    }
}
