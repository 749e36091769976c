//! Files of policies on the bpffs.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags, MapHandle, Program};
use thalweg_bpf_types::{from_bytes, raw};

use crate::error::{Context, Result, bail};
use crate::pins::{
    Locked, create_directory, directory_entries, numbered_entries, remove_file, remove_if_empty,
};
use crate::{learner, links, system};

/// Name of the directory below the agent's pins.
pub const DIRECTORY: &str = "policy";
const LINK: &str = "link";
/// Directory beside [`DIRECTORY`]: the policy was removed, and the state directory still has it.
const UNWANTED: &str = "policy-unwanted";
/// Pin of a policy's main program.
pub(super) const PROGRAM: &str = "program";
/// Pin of its head, the map of its constants.
pub(super) const HEAD: &str = "head";
/// Version of the pins of this Thalweg. Each version has its own directory for the shared maps, so
/// that a policy can be loaded beside one that another Thalweg has pinned.
const VERSION: u32 = raw::THALWEG_POLICY_VERSION;

/// The policy in force: the one whose program the link runs.
#[derive(Clone, Copy)]
pub(super) struct RunningPolicy {
    /// Number of the policy.
    pub generation: u32,
    /// `None` if another version of Thalweg has pinned it, or its pin is gone.
    pub head: Option<raw::thalweg_policy_head>,
}

/// The directory of policies.
pub(super) struct Pins {
    agent: PathBuf,
    directory: PathBuf,
}

impl Pins {
    /// Pins below an agent's directory of pins, whether they exist or not.
    pub fn at(agent: &Path) -> Self {
        Self {
            agent: agent.to_owned(),
            directory: agent.join(DIRECTORY),
        }
    }

    /// As [`Pins::at`], created if needed.
    pub fn create(agent: &Path) -> Result<Self> {
        let pins = Self::at(agent);
        system::ensure_bpffs(agent)?;
        create_directory(&pins.directory, true)?;
        Ok(pins)
    }

    pub fn exists(&self) -> bool {
        self.directory.exists()
    }

    pub fn link_path(&self) -> PathBuf {
        self.directory.join(LINK)
    }

    /// Whether the link is pinned and on no cgroup.
    pub fn is_detached(&self) -> bool {
        let link = links::open_link(&self.link_path()).ok().flatten();
        link.is_some_and(|link| matches!(links::attached_to(&link), Ok(Some(0))))
    }

    fn unwanted_path(&self) -> PathBuf {
        self.agent.join(UNWANTED)
    }

    /// Whether no policy is to be in force in this boot of the machine, whatever the state directory says.
    pub fn is_unwanted(&self) -> bool {
        self.unwanted_path().exists()
    }

    /// Marks the policy of the state directory as removed.
    pub fn mark_unwanted(&self) -> Result<()> {
        create_directory(&self.unwanted_path(), true)
    }

    /// Takes that mark away.
    pub fn clear_unwanted(&self) {
        if fs::remove_dir(self.unwanted_path()).is_ok() {
            // If it is not empty, other objects are in it.
            remove_if_empty(&self.agent);
        }
    }

    /// The directory of the maps that all policies share.
    pub fn shared_directory(&self) -> PathBuf {
        self.directory.join(format!("shared-{VERSION}"))
    }

    /// A map that all policies share.
    pub fn shared_map_path(&self, name: &str) -> PathBuf {
        self.shared_directory().join(name)
    }

    /// Locks the pins: one process at a time changes them.
    pub fn lock(agent: &Path) -> Result<Locked> {
        system::ensure_bpffs(agent)?;
        Locked::create(&agent.join(DIRECTORY))
    }

    /// The learner's map of sockets that it does not touch.
    pub fn owned_path(&self) -> PathBuf {
        self.agent.join(learner::OWNED)
    }

    /// Directory of one policy.
    pub fn generation_path(&self, generation: u32) -> PathBuf {
        self.directory.join(generation.to_string())
    }

    /// A map of one policy.
    pub fn open_map(&self, generation: u32, name: &str) -> Result<MapHandle> {
        Ok(MapHandle::from_pinned_path(
            self.generation_path(generation).join(name),
        )?)
    }

    /// Counters of connections that were open before a policy.
    pub fn existing_path(&self, generation: u32) -> PathBuf {
        self.generation_path(generation).join("existing")
    }

    /// Creates the directory of a policy, and removes the rest of an interrupted application.
    pub fn start_generation(&self, generation: u32) -> Result<()> {
        self.remove_generation(generation)?;
        create_directory(&self.generation_path(generation), false)
    }

    /// Directories of policies, by number.
    fn list_generations(&self) -> Result<Vec<u32>> {
        numbered_entries(&self.directory)
    }

    pub fn remove_generation(&self, generation: u32) -> Result<()> {
        remove_tree(&self.generation_path(generation))
    }

    /// Removes all pins except those of a policy and its shared ones.
    pub fn keep_only(&self, running: RunningPolicy) -> Result<()> {
        self.clear_unwanted();
        let mut kept = vec![self.link_path(), self.generation_path(running.generation)];
        if running.head.is_some() {
            kept.push(self.shared_directory());
        }
        for name in directory_entries(&self.directory)? {
            let path = self.directory.join(&name);
            // The path of another version's shared maps is unknown.
            let foreign = running.head.is_none() && name.parse::<u32>().is_err();
            if !kept.contains(&path) && !foreign {
                remove_tree(&path)?;
            }
        }
        Ok(())
    }

    /// Removes pins that are not in force; the directory stays.
    pub fn remove_unused(&self) -> Result<()> {
        directory_entries(&self.directory)?
            .iter()
            .try_for_each(|name| remove_tree(&self.directory.join(name)))
    }

    /// The policy in force, whichever version of Thalweg has pinned it.
    pub fn running_policy(&self) -> Result<Option<RunningPolicy>> {
        let Some(link) = links::open_link(&self.link_path())? else {
            return Ok(None);
        };
        let link = link.info()?;
        for generation in self.list_generations()? {
            let directory = self.generation_path(generation);
            let program = Program::fd_from_pinned_path(directory.join(PROGRAM));
            let Ok(id) = program.and_then(|fd| Program::id_from_fd(fd.as_fd())) else {
                continue;
            };
            if id == link.prog_id {
                // A pin that is gone or is something else hides no policy: it is put back.
                let head = read_head(&directory.join(HEAD)).unwrap_or_default();
                return Ok(Some(RunningPolicy { generation, head }));
            }
        }
        // Pins with other names, of another version.
        Ok(Some(RunningPolicy {
            generation: 0,
            head: None,
        }))
    }

    /// The head of the policy in force.
    ///
    /// # Errors
    /// Another version of Thalweg has pinned it.
    pub fn running_head(&self) -> Result<Option<raw::thalweg_policy_head>> {
        match self.running_policy()? {
            None => Ok(None),
            Some(RunningPolicy {
                head: Some(head), ..
            }) => Ok(Some(head)),
            Some(RunningPolicy { generation, .. }) => bail!(
                Damaged,
                "the policy in force (number {generation}) was applied by another version of \
                 Thalweg, whose counters this one cannot read, or its pin {HEAD} is gone, which an \
                 agent that runs puts back; it stays in force until `thalweg policy apply` replaces \
                 it or `thalweg policy remove` takes it away (pinned under {})",
                self.directory.display()
            ),
        }
    }

    /// Kernel memory of the loaded policies and the shared maps, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let own = self.list_generations().unwrap_or_default();
        let directories = own.iter().map(|number| self.generation_path(*number));
        let maps = directories
            .chain([self.shared_directory()])
            .filter_map(|directory| fs::read_dir(directory).ok())
            .flat_map(|entries| entries.flatten())
            .filter_map(|entry| MapHandle::from_pinned_path(entry.path()).ok());
        super::memory(maps)
    }

    /// Removes everything, the link first; false if no policy was in force.
    pub fn remove_all(&self) -> Result<bool> {
        let path = self.link_path();
        let link = links::open_link(&path)?;
        let running = link.is_some();
        if let Some(link) = link {
            // The kernel detaches a closed link, but with a delay. The pin goes first: the pin of a
            // detached link would look like a policy in force.
            let unpinned = remove_file(&path);
            fail_point!("policy::unpinned");
            link.detach()
                .with_context(|| format!("detaching {}", path.display()))?;
            unpinned.context(
                "the policy is out of the kernel, but its pins stay; once they can be removed, run \
                 `thalweg policy remove` again",
            )?;
        }
        fail_point!("policy::detached");
        self.remove_unused()?;
        fs::remove_dir(&self.directory)
            .with_context(|| format!("removing {}", self.directory.display()))?;
        if !learner::is_attached(&self.agent) {
            remove_file(&self.owned_path())?;
            // If it is not empty, other objects are in it.
            remove_if_empty(&self.agent);
        }
        Ok(running)
    }
}

/// The head of a policy; `None` if it has another version.
pub(super) fn read_head(path: &Path) -> Result<Option<raw::thalweg_policy_head>> {
    let map = MapHandle::from_pinned_path(path)
        .with_context(|| format!("opening pinned map {}", path.display()))?;
    head_of(&map)
}

/// The head of a policy in its map; `None` if it has another version.
pub(super) fn head_of(map: &MapHandle) -> Result<Option<raw::thalweg_policy_head>> {
    let bytes = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
    let head = bytes.and_then(|bytes| from_bytes::<raw::thalweg_policy_head>(&bytes));
    Ok(head.filter(|head| head.version == VERSION))
}

/// Removes a pin, or a directory of them.
fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => remove_file(path),
        removed => removed.with_context(|| format!("removing {}", path.display())),
    }
}
