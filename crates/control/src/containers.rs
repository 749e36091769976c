//! Containers of this machine, from what their runtimes leave in files. No daemon is asked.
//!
//! runc and crun keep a directory of state for each container, below directories that are root's
//! alone. So containers of users are not among them: what their files say, the users wrote.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use thalweg_policy::Selector;

use crate::{privileges, system};

/// Where runtimes keep state: a directory for each container.
const STATES: [&str; 2] = ["run/runc", "run/crun"];
/// State directories of containerd and docker, with a directory for each namespace in between.
const NESTED_STATES: [&str; 2] = ["run/containerd/runc", "run/docker/runtime-runc"];
/// Docker's directories of containers.
const DOCKER: &str = "var/lib/docker/containers";
/// Largest file that is read; runc's have some 10 kB.
const FILE_MAX: u64 = 4 << 20;

/// Annotations with the name that its user gave a container, the first that is there.
const NAMES: [&str; 3] = [
    "io.kubernetes.cri.container-name",
    "io.kubernetes.container.name",
    "nerdctl/name",
];
/// Annotations with namespace and name of the pod: containerd's, CRI-O's.
const PODS: [[&str; 2]; 2] = [
    [
        "io.kubernetes.cri.sandbox-namespace",
        "io.kubernetes.cri.sandbox-name",
    ],
    ["io.kubernetes.pod.namespace", "io.kubernetes.pod.name"],
];
/// CRI-O's annotation with the labels, as JSON.
const CRIO_LABELS: &str = "io.kubernetes.cri-o.Labels";

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id.
    pub id: String,
    /// The name that its user gave it; the id if there is none.
    pub name: String,
    /// `NAMESPACE/NAME` of its pod.
    pub pod: Option<String>,
    /// Labels, and annotations of the OCI configuration.
    pub labels: BTreeMap<String, String>,
    /// Directory of its cgroup in the v2 hierarchy; `None` if it has none of its own, as with
    /// podman's `--cgroups=disabled`.
    pub cgroup: Option<PathBuf>,
    /// First process of the container.
    pub(crate) pid: u32,
}

/// The part of runc's `state.json` that is used here.
#[derive(Deserialize)]
struct RuncState {
    init_process_pid: u32,
    init_process_start: u64,
    #[serde(default)]
    cgroup_paths: BTreeMap<String, PathBuf>,
    config: RuncConfig,
}

#[derive(Deserialize)]
struct RuncConfig {
    /// `KEY=VALUE` of the annotations.
    #[serde(default)]
    labels: Vec<String>,
}

/// The part of crun's `status` that is used here.
#[derive(Deserialize)]
struct CrunStatus {
    pid: u32,
    #[serde(rename = "process-start-time")]
    start: u64,
    #[serde(rename = "cgroup-path")]
    cgroup: PathBuf,
    bundle: PathBuf,
}

/// The running containers of this machine, by id. State that cannot be read is left out.
pub fn running_containers() -> Vec<Container> {
    let Ok(mount) = system::cgroup2_mount() else {
        return Vec::new();
    };
    running_below(Path::new("/"), &mount)
}

/// As [`running_containers`], with the runtimes' files below another root.
fn running_below(root: &Path, cgroups: &Path) -> Vec<Container> {
    let nested = NESTED_STATES
        .iter()
        .flat_map(|path| directory_entries(&root.join(path)));
    let places = STATES.iter().map(|path| root.join(path)).chain(nested);
    let mut found: Vec<Container> = places
        .flat_map(|place| directory_entries(&place))
        .filter_map(|directory| read_container(root, cgroups, &directory))
        .collect();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    found
}

impl Container {
    /// Whether a policy means this container.
    pub fn is_meant(&self, selector: &Selector) -> bool {
        match selector {
            Selector::Name(name) => *name == self.name || *name == self.id,
            Selector::Label { key, value } => self.labels.get(key) == Some(value),
        }
    }

    /// Name of the pod, else of the container.
    pub fn display_name(&self) -> &str {
        self.pod.as_deref().unwrap_or(&self.name)
    }

    /// Number of its network namespace's file; `None` if it has ended, or may not be seen
    /// (CAP_SYS_PTRACE).
    pub fn network_namespace(&self) -> Option<u64> {
        let path = format!("/proc/{}/ns/net", self.pid);
        privileges::with_raised(|| fs::metadata(path).ok()).map(|file| file.ino())
    }
}

fn directory_entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

/// The container of a directory of state; `None` if it does not run.
fn read_container(root: &Path, cgroups: &Path, directory: &Path) -> Option<Container> {
    let id = directory.file_name()?.to_str()?.to_owned();
    let (pid, start, cgroup, mut labels) = read_runc_state(cgroups, directory)
        .or_else(|| read_crun_state(root, cgroups, directory))?;
    if start_ticks(pid)? != start || !cgroup.starts_with(cgroups) {
        return None;
    }
    if let Some(text) = labels.get(CRIO_LABELS)
        && let Ok(more) = serde_json::from_str::<BTreeMap<String, String>>(text)
    {
        labels.extend(more);
    }
    let docker = read_docker_labels(root, &id);
    let label = |key: &&str| labels.get(*key).cloned();
    let name = docker.as_ref().and_then(|docker| docker.0.clone());
    let name = name
        .or_else(|| NAMES.iter().find_map(label))
        .or_else(|| named_by_monitor(pid, &id));
    let pod = PODS
        .iter()
        .find_map(|[space, name]| Some(format!("{}/{}", label(space)?, label(name)?)));
    labels.extend(docker.into_iter().flat_map(|docker| docker.1));
    Some(Container {
        name: name.unwrap_or_else(|| id.clone()),
        id,
        pod,
        labels,
        // crun writes an empty path for none, which would be the cgroup of the whole machine.
        cgroup: Some(cgroup).filter(|cgroup| cgroup != cgroups),
        pid,
    })
}

type State = (u32, u64, PathBuf, BTreeMap<String, String>);

fn read_runc_state(cgroups: &Path, directory: &Path) -> Option<State> {
    let state: RuncState = read_json(&directory.join("state.json"))?;
    let labels = state.config.labels.iter();
    let labels = labels.filter_map(|label| label.split_once('='));
    // With both versions of cgroups, each controller has a path, and version 2 has no name.
    let mut paths = state.cgroup_paths.into_values();
    Some((
        state.init_process_pid,
        state.init_process_start,
        paths.find(|path| path.starts_with(cgroups))?,
        labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    ))
}

fn read_crun_state(root: &Path, cgroups: &Path, directory: &Path) -> Option<State> {
    let status: CrunStatus = read_json(&directory.join("status"))?;
    let below = |path: &Path| path.strip_prefix("/").unwrap_or(path).to_owned();
    let bundle = root.join(below(&status.bundle)).join("config.json");
    let annotations =
        read_json::<Value>(&bundle).map(|config| text_entries(&config["annotations"]));
    Some((
        status.pid,
        status.start,
        cgroups.join(below(&status.cgroup)),
        annotations.unwrap_or_default(),
    ))
}

/// Name and labels that docker keeps.
fn read_docker_labels(root: &Path, id: &str) -> Option<(Option<String>, BTreeMap<String, String>)> {
    let file = root.join(DOCKER).join(id).join("config.v2.json");
    let config = read_json::<Value>(&file)?;
    let name = config["Name"].as_str();
    let name = name.map(|name| name.trim_start_matches('/').to_owned());
    Some((name, text_entries(&config["Config"]["Labels"])))
}

/// The entries of a JSON object that are texts.
fn text_entries(object: &Value) -> BTreeMap<String, String> {
    let entries = object.as_object().into_iter().flatten();
    entries
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// The name that conmon got from podman: it is the parent of a container's first process.
fn named_by_monitor(pid: u32, id: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    let command = fs::read(format!("/proc/{}/cmdline", parent.trim())).ok()?;
    let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
    let program = Path::new(std::ffi::OsStr::from_bytes(words.first()?));
    let after = |flag: &[u8]| {
        let at = words.iter().position(|word| *word == flag)?;
        words.get(at + 1).copied()
    };
    let is_its = program.file_name()? == "conmon" && after(b"-c") == Some(id.as_bytes());
    let name = std::str::from_utf8(after(b"-n")?).ok()?;
    is_its.then(|| name.to_owned())
}

/// When a process started, in ticks of the kernel since boot (proc_pid_stat(5), field 22): its
/// number may be another's by now.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let mut text = Vec::new();
    // A bundle may be in a user's directory: neither a FIFO nor a link to a device there may hold
    // the agent up or do something to the machine.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    file.take(FILE_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text)
        .inspect_err(|error| tracing::debug!("{}: {error}", path.display()))
        .ok()
}

#[cfg(test)]
#[path = "containers_tests.rs"]
mod tests;
