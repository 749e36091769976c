//! Files of policies on the bpffs.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use libbpf_rs::Program;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use thalweg_abi::{from_bytes, raw};

use super::SHARED;
use crate::system;

/// Name of the directory below the agent's pins.
pub(crate) const DIRECTORY: &str = "policy";
const LINK: &str = "link";

/// The directory of policies.
pub(super) struct Pins {
    agent: PathBuf,
    directory: PathBuf,
}

impl Pins {
    /// Those below an agent's directory of pins, whether they exist or not.
    pub fn at(agent: &Path) -> Self {
        Self {
            agent: agent.to_owned(),
            directory: agent.join(DIRECTORY),
        }
    }

    /// The same, made if need be.
    pub fn create(agent: &Path) -> Result<Self> {
        let pins = Self::at(agent);
        system::ensure_bpffs(agent)?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&pins.directory)
            .with_context(|| format!("creating {}", pins.directory.display()))?;
        Ok(pins)
    }

    pub fn exists(&self) -> bool {
        self.directory.exists()
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn link(&self) -> PathBuf {
        self.directory.join(LINK)
    }

    /// A map that all policies share.
    pub fn shared(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The learner's map of sockets that it leaves alone.
    pub fn owned(&self) -> PathBuf {
        self.agent.join("owned")
    }

    /// Directory of one policy.
    pub fn generation(&self, generation: u32) -> PathBuf {
        self.directory.join(generation.to_string())
    }

    /// Counters of connections that were open before a policy.
    pub fn existing(&self, generation: u32) -> PathBuf {
        self.generation(generation).join("existing")
    }

    /// Makes the directory of a policy; what an application that was cut short left goes.
    pub fn start_generation(&self, generation: u32) -> Result<()> {
        self.remove_generation(generation)?;
        let path = self.generation(generation);
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))
    }

    /// Directories of policies, by number.
    fn generations(&self) -> Result<Vec<u32>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("reading {}", self.directory.display()))?,
        };
        Ok(entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect())
    }

    pub fn remove_generation(&self, generation: u32) -> Result<()> {
        remove_directory(&self.generation(generation))
    }

    /// Removes the directories of all policies but one.
    pub fn keep_only(&self, generation: u32) -> Result<()> {
        for other in self.generations()? {
            if other != generation {
                self.remove_generation(other)?;
            }
        }
        Ok(())
    }

    /// The head of the policy in force: of the one whose program the link runs.
    pub fn head(&self) -> Result<Option<raw::thalweg_policy_head>> {
        let path = self.link();
        if !path.exists() {
            return Ok(None);
        }
        let running = Link::open(&path)
            .and_then(|link| link.info())
            .with_context(|| format!("opening link {}", path.display()))?;
        for generation in self.generations()? {
            let directory = self.generation(generation);
            let program = Program::fd_from_pinned_path(directory.join("program"));
            let Ok(id) = program.and_then(|fd| Program::id_from_fd(std::os::fd::AsFd::as_fd(&fd)))
            else {
                continue;
            };
            if id == running.prog_id {
                let map = MapHandle::from_pinned_path(directory.join("head"))?;
                let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
                return Ok(bytes.and_then(|bytes| from_bytes(&bytes)));
            }
        }
        Ok(None)
    }

    /// Kernel memory of everything pinned here, and of the tables behind it, bytes.
    pub fn memory(&self) -> u64 {
        let own = self.generations().unwrap_or_default();
        let directories = own.iter().map(|number| self.generation(*number));
        let maps = directories
            .chain([self.directory.clone()])
            .filter_map(|directory| fs::read_dir(directory).ok())
            .flat_map(|entries| entries.flatten())
            .filter_map(|entry| MapHandle::from_pinned_path(entry.path()).ok());
        super::memory(maps)
    }

    /// Removes everything, the link first.
    pub fn remove(&self) -> Result<()> {
        let files = [LINK].into_iter().chain(SHARED);
        for file in files.map(|name| self.shared(name)) {
            crate::kernel::remove_pin(&file)?;
        }
        for generation in self.generations()? {
            self.remove_generation(generation)?;
        }
        fs::remove_dir(&self.directory)
            .with_context(|| format!("removing {}", self.directory.display()))?;
        if !crate::kernel::is_attached(&self.agent) {
            crate::kernel::remove_pin(&self.owned())?;
            // Where it is not empty something else lives in it.
            let _ = fs::remove_dir(&self.agent);
        }
        Ok(())
    }
}

fn remove_directory(path: &Path) -> Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("reading {}", path.display()))?,
    };
    for entry in entries.flatten() {
        crate::kernel::remove_pin(&entry.path())?;
    }
    fs::remove_dir(path).with_context(|| format!("removing {}", path.display()))
}
