//! A congestion control that is loaded for a test.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::thalweg;

/// Unloaded when this value is dropped.
pub struct Loaded {
    /// A name that no other test uses.
    pub name: String,
    pin: PathBuf,
    directory: tempfile::TempDir,
}

impl Loaded {
    /// Loads one that comes with Thalweg, or a model; `tag` starts its name.
    pub fn new(tag: &str, program: &str) -> Self {
        let name = super::unique(tag);
        let loaded = Self {
            pin: PathBuf::from(format!("/sys/fs/bpf/thalweg-test-{name}")),
            name,
            directory: tempfile::tempdir().unwrap(),
        };
        let configuration = format!("[paths]\npin = {:?}\n", loaded.pin);
        std::fs::write(loaded.configuration(), configuration).unwrap();
        let output = loaded.cc(&["load", program, "--name", &loaded.name]);
        assert!(output.status.success(), "{output:?}");
        loaded
    }

    /// A directory for files of the test.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn configuration(&self) -> PathBuf {
        self.directory.path().join("agent.toml")
    }

    fn cc(&self, arguments: &[&str]) -> Output {
        Command::new(thalweg())
            .arg("--config")
            .arg(self.configuration())
            .arg("cc")
            .args(arguments)
            .output()
            .unwrap()
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // Remaining users keep it; a failure here would show by the leftovers.
        let _ = std::fs::remove_dir_all(&self.pin);
    }
}
