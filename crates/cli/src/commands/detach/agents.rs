//! Agents that use a directory of pins: found without asking them, as one that starts or hangs does
//! not answer.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thalweg_agent::config::{Config, DEFAULT_FILE};
use thalweg_control::system::ProcessHandle;
use thalweg_process::capabilities::{CapabilitySet, may_raise_any};
use thalweg_process::http::is_stopped;

use super::units;

/// File name of the command.
const COMMAND: &str = "thalweg";
/// Longest wait for the arguments of a program that is being started.
const EXEC_TIMEOUT: Duration = Duration::from_secs(2);
const EXEC_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A process that is an agent.
pub struct Agent {
    pub pid: u32,
    pub process: ProcessHandle,
    /// The unit of systemd whose main process it is.
    pub unit: Option<String>,
}

impl Agent {
    /// Whether the process is stopped by a signal or a debugger.
    pub fn is_stopped(&self) -> bool {
        is_stopped(self.pid)
    }
}

/// The agents whose pins are in a directory: those that hold its lock, and those whose command line
/// and configuration name it.
pub fn find_agents(pin: &Path) -> Vec<Agent> {
    let mut pids = lock_holders(pin);
    let wanted = place_of(Path::new("/"), pin);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.extend(all.filter(|pid| {
        let named = may_attach(*pid).then(|| pin_of(*pid)).flatten();
        let root = process_directory(*pid).join("root");
        named.is_some_and(|named| wanted.is_some() && place_of(&root, &named) == wanted)
    }));
    let own = std::process::id();
    let others = pids.into_iter().filter(|pid| *pid != own);
    others
        .filter_map(|pid| {
            let process = ProcessHandle::open(pid).ok()?;
            let unit = units::unit_of(pid);
            Some(Agent { pid, process, unit })
        })
        .collect()
}

/// Whether a process is an agent: the number that an agent tells may be one of another namespace.
pub fn is_agent(pid: u32) -> bool {
    pin_of(pid).is_some()
}

/// Whether a command line, with NUL between its words, starts an agent whose pins are in a directory.
pub fn starts_agent(command_line: &[u8], pin: &Path) -> bool {
    let program = command_line.split(|byte| *byte == 0).next();
    let program = program.map(|word| PathBuf::from(OsString::from_vec(word.to_vec())));
    let is_own = program.is_some_and(|it| it.file_name().is_some_and(|name| name == COMMAND));
    let Some(file) = configuration_of(command_line).filter(|_| is_own) else {
        return false;
    };
    let root = Path::new("/");
    let file = file.map(|file| root.join(file));
    let wanted = place_of(root, pin);
    Config::load_readable(file.as_deref())
        .is_ok_and(|config| wanted.is_some() && place_of(root, &config.paths.pin) == wanted)
}

/// Whether a process has, or may raise, what attaching takes. Anybody may call a program thalweg, and
/// has all capabilities in a user namespace of his own.
fn may_attach(pid: u32) -> bool {
    let user = |pid: u32| fs::read_link(process_directory(pid).join("ns/user")).ok();
    user(pid) == user(std::process::id())
        && may_raise_any(pid, CapabilitySet::SYS_ADMIN | CapabilitySet::BPF)
}

fn process_directory(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Processes that hold the lock of a directory (proc_locks(5)).
fn lock_holders(directory: &Path) -> BTreeSet<u32> {
    let Ok(about) = fs::metadata(directory) else {
        return BTreeSet::new();
    };
    let (major, minor) = (
        nix::sys::stat::major(about.dev()),
        nix::sys::stat::minor(about.dev()),
    );
    let file = format!("{major:02x}:{minor:02x}:{}", about.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    holders_in(&locks, &file).collect()
}

fn holders_in<'a>(locks: &'a str, file: &'a str) -> impl Iterator<Item = u32> + 'a {
    locks.lines().filter_map(move |line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, found, ..] if found == file => pid.parse().ok(),
            _ => None,
        }
    })
}

/// The command line of a process. A program that is being started (execve(2)) has its file before its
/// arguments: on a loaded machine for long enough to be overlooked.
fn command_line_of(process: &Path) -> Option<Vec<u8>> {
    let begun = Instant::now();
    loop {
        let line = fs::read(process.join("cmdline")).ok()?;
        if !line.is_empty() || begun.elapsed() > EXEC_TIMEOUT {
            return Some(line);
        }
        // Nothing tells that the arguments are there.
        std::thread::sleep(EXEC_POLL_INTERVAL);
    }
}

/// The directory of pins of an agent's process, from its command line and its configuration.
/// `None`: the process is no agent, or may not be looked at.
fn pin_of(pid: u32) -> Option<PathBuf> {
    let process = process_directory(pid);
    let is_own_file = || {
        let own = fs::metadata("/proc/self/exe").ok()?;
        let its = fs::metadata(process.join("exe")).ok()?;
        Some((own.dev(), own.ino()) == (its.dev(), its.ino()))
    };
    let program = fs::read_link(process.join("exe")).ok()?;
    let name = program.file_name()?.to_str()?;
    // An upgrade may have replaced the file.
    if name.trim_end_matches(" (deleted)") != COMMAND && is_own_file() != Some(true) {
        return None;
    }
    let file = configuration_of(&command_line_of(&process)?)?;
    let root = process.join("root");
    let config = match file {
        None => {
            let file = root.join(DEFAULT_FILE.trim_start_matches('/'));
            Ok(Config::load_readable(Some(&file)).unwrap_or_default())
        }
        Some(file) => Config::load_readable(Some(&match file.strip_prefix("/") {
            Ok(inside) => root.join(inside),
            Err(_) => process.join("cwd").join(file),
        })),
    };
    // Of a file that cannot be read any more nothing is known: it is not the default's.
    Some(config.ok()?.paths.pin)
}

/// The configuration that the command line of `thalweg run` names, if it names one; `None`: it is
/// another command.
fn configuration_of(command_line: &[u8]) -> Option<Option<PathBuf>> {
    let words = command_line.split(|byte| *byte == 0).skip(1);
    let mut words = words.map(|word| OsString::from_vec(word.to_vec()));
    let (mut file, mut runs) = (None, false);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--config") => file = words.next().map(PathBuf::from),
            Some("--socket") if !runs => drop(words.next()),
            Some(word) if word.starts_with("--config=") => {
                file = word.split_once('=').map(|(_, file)| file.into());
            }
            Some(word) if word.starts_with('-') || runs => {}
            Some("run") => runs = true,
            _ => return None,
        }
    }
    runs.then_some(file)
}

/// A path as a process sees it: device and inode of its nearest existing directory, and the rest.
fn place_of(root: &Path, path: &Path) -> Option<(u64, u64, PathBuf)> {
    path.ancestors().find_map(|directory| {
        let inside = directory.strip_prefix("/").unwrap_or(directory);
        let about = fs::metadata(root.join(inside)).ok()?;
        let rest = path.strip_prefix(directory).ok()?.to_owned();
        Some((about.dev(), about.ino(), rest))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn command_line_of_run_names_its_configuration() {
        let of = |line: &str| configuration_of(line.replace(' ', "\0").as_bytes());
        assert_eq!(of("thalweg run"), Some(None));
        let named = Some(Some(PathBuf::from("c.toml")));
        assert_eq!(of("/usr/bin/thalweg --config c.toml run"), named);
        assert_eq!(of("thalweg run --dry-run --config c.toml"), named);
        assert_eq!(of("thalweg --socket run --config=c.toml run"), named);
        for other in [
            "thalweg",
            "thalweg status",
            "thalweg lab run x.toml",
            "thalweg --config run status",
            "thalweg --json detach",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn command_line_starts_agent_of_its_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let [pin, file] = ["pin", "agent.toml"].map(|name| directory.path().join(name));
        let of = |program: &str, file: &Path| {
            let line = format!("{program}\0run\0--config\0{}", file.display());
            starts_agent(line.as_bytes(), &pin)
        };
        std::fs::write(&file, format!("[paths]\npin = {pin:?}\n")).unwrap();
        assert!(of("/usr/bin/thalweg", &file) && of("thalweg", &file));
        assert!(!of("/usr/bin/other", &file) && !of("/usr/bin/thalweg-lab", &file));
        assert!(!of("thalweg", &directory.path().join("absent.toml")));
        assert!(!starts_agent(b"thalweg\0status", &pin));
        assert!(!starts_agent(b"", &pin));
        std::fs::write(&file, "[paths]\npin = \"/sys/fs/bpf/other\"\n").unwrap();
        assert!(!of("thalweg", &file));
    }

    #[test]
    fn process_without_capabilities_is_no_agent() {
        let own = std::process::id();
        assert_eq!(may_attach(own), nix::unistd::geteuid().is_root());
        let mut sleeper = std::process::Command::new("sleep");
        if nix::unistd::geteuid().is_root() {
            sleeper.uid(4711);
        }
        let mut child = sleeper.arg("60").spawn().unwrap();
        let pid = child.id();
        assert!(process_directory(pid).exists() && !may_attach(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!may_attach(pid), "gone");
    }

    #[test]
    fn flock_of_directory_names_its_holder() {
        let locks = "\
1: FLOCK  ADVISORY  WRITE 812 00:2e:5678 0 EOF\n\
1: -> FLOCK  ADVISORY  WRITE 900 00:2e:99 0 EOF\n\
2: POSIX  ADVISORY  WRITE 813 00:2e:5678 0 EOF\n\
3: FLOCK  ADVISORY  WRITE 814 00:2f:5678 0 EOF\n";
        let held: Vec<u32> = holders_in(locks, "00:2e:5678").collect();
        assert_eq!(held, [812]);
    }
}
