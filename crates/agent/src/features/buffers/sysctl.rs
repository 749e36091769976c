//! Limits of buffers in network namespaces: `net.ipv4.tcp_rmem` and `net.ipv4.tcp_wmem`, and the
//! connections that use them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use thalweg_control::diag::{self, BufferedConnection};
use thalweg_control::system;

/// Connections with a buffer of less than this part of the limit, a divisor, need no larger limit.
const SMALL_PART: u64 = 8;
/// Size of a page, bytes, where the system does not tell.
const PAGE_BYTES: u64 = 4096;

/// A direction of data, which has a buffer of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Received data.
    Receive,
    /// Sent data.
    Send,
}

impl Direction {
    /// Both directions, in the order of records.
    pub const ALL: [Self; 2] = [Self::Receive, Self::Send];

    /// Name of the sysctl.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Receive => "net.ipv4.tcp_rmem",
            Self::Send => "net.ipv4.tcp_wmem",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Receive => "/proc/sys/net/ipv4/tcp_rmem",
            Self::Send => "/proc/sys/net/ipv4/tcp_wmem",
        }
    }
}

/// A network namespace at a poll.
#[derive(Debug)]
pub struct Sight {
    /// Cookie of the namespace.
    pub netns: u64,
    /// `net.ipv4.tcp_mem` in bytes, which only the machine's first namespace shows.
    pub tcp_mem: Option<[u64; 3]>,
    /// Limits and connections; `None`: they were not asked for.
    pub usage: Option<Result<NamespaceUsage>>,
}

/// Limits of a network namespace, and connections that have used a part of a limit.
#[derive(Clone, Debug)]
pub struct NamespaceUsage {
    /// Third numbers of both sysctls, bytes.
    pub limits: [u64; 2],
    /// The connections.
    pub connections: Vec<BufferedConnection>,
}

/// Change of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Direction of the limit.
    pub direction: Direction,
    /// Limits, bytes, of which one must be in force: another is somebody else's.
    pub expected: [u64; 2],
    /// New limit, bytes.
    pub to: u64,
}

/// Outcome of a change.
#[derive(Debug)]
pub enum Written {
    /// The new limit is in force.
    Done,
    /// Somebody else has changed the limit, which stays.
    Left,
    /// The system refuses it.
    Refused(anyhow::Error),
}

/// Answers of network namespaces.
pub struct Visit<T> {
    /// Answers, with a file of each namespace.
    pub answers: Vec<(PathBuf, T)>,
    /// Processor time.
    pub time: Duration,
}

/// Visits network namespaces, those of `files` or all, and calls a function in each.
fn visit<T: Send + 'static>(
    files: Option<Vec<PathBuf>>,
    users: bool,
    ask: impl Fn() -> Option<T> + Send + 'static,
) -> Visit<T> {
    let all_files = || {
        let mut files = system::namespace_files();
        // Names stay longer than processes.
        files.sort_by_key(|file| !file.starts_with("/run/netns"));
        files
    };
    let asked = system::in_namespaces_of(
        move || files.unwrap_or_else(all_files),
        move |file| system::is_entered(file, users),
        move |file| Some((file.to_owned(), ask()?)),
    );
    Visit {
        answers: asked.answers,
        time: asked.time,
    }
}

/// Reads network namespaces, those of `files` or all: limits and connections where the lower half of
/// the cookie is among `wanted`. `users`: also namespaces of ordinary users.
pub fn read_namespaces(
    files: Option<Vec<PathBuf>>,
    users: bool,
    wanted: BTreeSet<u32>,
) -> Visit<Sight> {
    visit(files, users, move || {
        let netns = system::netns_cookie().ok()?;
        let pages = read_numbers("/proc/sys/net/ipv4/tcp_mem").ok();
        let page = page_bytes();
        Some(Sight {
            netns,
            tcp_mem: pages.map(|pages| pages.map(|it| it.saturating_mul(page))),
            usage: wanted.contains(&(netns as u32)).then(read_usage),
        })
    })
}

/// Reads the thread's network namespace.
fn read_usage() -> Result<NamespaceUsage> {
    let [receive, send] = Direction::ALL.map(|it| read_numbers(it.file()));
    let limits = [receive?[2], send?[2]];
    let mut connections = Vec::new();
    diag::for_each_connection(&mut |connection| {
        let is_large = |buffer: u64, limit: u64| buffer >= limit / SMALL_PART;
        if is_large(connection.receive_buffer, limits[0])
            || is_large(connection.send_buffer, limits[1])
        {
            connections.push(*connection);
        }
    })?;
    Ok(NamespaceUsage {
        limits,
        connections,
    })
}

/// Writes limits of network namespaces, by cookie, in those of `files` or all. A namespace without
/// an answer is gone.
pub fn write_limits(
    files: Option<Vec<PathBuf>>,
    changes: BTreeMap<u64, Vec<Change>>,
) -> Visit<(u64, Vec<(Change, Written)>)> {
    // Only a namespace in scope has ever been changed.
    visit(files, true, move || {
        let netns = system::netns_cookie().ok()?;
        let wanted = changes.get(&netns)?.iter();
        Some((netns, wanted.map(|it| (*it, write_limit(it))).collect()))
    })
}

/// Writes a limit of the thread's network namespace: the third number alone.
fn write_limit(change: &Change) -> Written {
    let file = change.direction.file();
    let write = || -> Result<bool> {
        let [least, default, most] = read_numbers(file)?;
        if most == change.to || !change.expected.contains(&most) {
            return Ok(most == change.to);
        }
        let text = format!("{least} {default} {}", change.to);
        fs::write(file, text).map_err(|error| refusal(&error, change.direction))?;
        Ok(true)
    };
    match write() {
        Ok(true) => Written::Done,
        Ok(false) => Written::Left,
        Err(error) => Written::Refused(error),
    }
}

/// Refusal of a write, with the remedy.
fn refusal(error: &io::Error, direction: Direction) -> anyhow::Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EROFS) => {
            ": /proc/sys is read-only here, as in containers; run the agent on the machine, or mount \
             it writable (Docker: --privileged)"
        }
        Some(libc::EACCES | libc::EPERM) => {
            ": writing takes CAP_NET_ADMIN in the user namespace of the network"
        }
        _ => "",
    };
    anyhow!(
        "{} cannot be written ({error}){remedy}",
        direction.setting()
    )
}

fn read_numbers(file: &str) -> Result<[u64; 3]> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
    numbers
        .try_into()
        .map_err(|_| anyhow!("{file} has {text:?}, expected three numbers"))
}

/// Memory of all TCP sockets, bytes (net/ipv4/proc.c, `sockstat_seq_show`), and the machine's.
///
/// # Errors
/// /proc cannot be read.
pub fn read_memory() -> Result<(u64, u64)> {
    let sockets = read_word("/proc/net/sockstat", "TCP:", "mem")?;
    let total = read_word("/proc/meminfo", "MemTotal:", "MemTotal:")?;
    Ok((sockets * page_bytes(), total * 1024))
}

/// The number after a word, in the line of a file that starts with another.
fn read_word(file: &str, line: &str, word: &str) -> Result<u64> {
    let text = fs::read_to_string(Path::new(file)).with_context(|| format!("reading {file}"))?;
    let found = text.lines().find(|it| it.starts_with(line));
    let mut words = found.unwrap_or_default().split_whitespace();
    words.find(|it| *it == word);
    let number = words.next().and_then(|it| it.parse().ok());
    number.with_context(|| format!("{file} does not tell {word} of {line}"))
}

fn page_bytes() -> u64 {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok();
    let size = size.flatten().and_then(|it| it.try_into().ok());
    size.unwrap_or(PAGE_BYTES)
}
