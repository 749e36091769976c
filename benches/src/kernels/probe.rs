//! Features on the running kernel: each is tried with real traffic. The programs that the kernel
//! verifies meanwhile are recorded.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail, ensure};
use libbpf_rs::{ObjectBuilder, libbpf_sys};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};
use thalweg_agent::doctor::requirements;
use thalweg_agent::requirements::Requirement;
use thalweg_lab::host::{Pair, PairOptions, Side};
use thalweg_lab::scenario::Aqm;

use crate::bed::{self, Worker};
use crate::cc::{self, Loaded};
use crate::policy::Policies;

/// Data of a transfer that only has to arrive, bytes.
pub(super) const BYTES: usize = 200_000;
/// Largest number of sends until a socket's options are as expected.
const SENDS: usize = 20;
/// Longest wait for an asynchronous event.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Interval of checks of the kernel's programs. One that a command loads only for itself exists for
/// some milliseconds.
const LOOK: Duration = Duration::from_micros(100);
/// Where the kernel shows its types.
const TYPES: &str = "/sys/kernel/btf";
/// Directory of all pins.
const PINS: &str = "/sys/fs/bpf";
/// Directory of network namespaces named by ip(8).
const NAMESPACES: &str = "/run/netns";
/// Characters of a program's name that the kernel keeps.
const NAME_CHARS: usize = 15;
/// Programs of the laboratory, by their objects. They are attached to each pair.
const OF_LABORATORY: [(&str, &[&str]); 2] =
    [("loss", &["lose"]), ("rtt", &["note_sent", "match_echo"])];

/// Results of a kernel.
#[derive(Serialize, Deserialize)]
pub struct Column {
    /// Its release.
    pub release: String,
    /// Result of each feature, by name.
    pub features: BTreeMap<String, Cell>,
    /// Instructions that the verifier has walked through, by object and program.
    pub programs: BTreeMap<String, BTreeMap<String, u32>>,
}

/// Result of a feature.
#[derive(Serialize, Deserialize)]
pub struct Cell {
    /// Whether it was tried and worked.
    pub works: bool,
    /// Its figure, or the message of the refusal.
    pub said: String,
}

/// Arguments of the trials.
pub(super) struct Bench<'a> {
    pub binary: &'a Path,
    model: &'a Path,
}

/// Tries features, by default all. `model` is one of the learned rate controller.
pub fn probe(binary: &Path, model: &Path, named: &[String]) -> Result<Column> {
    own_mounts()?;
    fs::create_dir_all(NAMESPACES).with_context(|| format!("making {NAMESPACES}"))?;
    // Pins that end with this process are wanted here. The agent refuses them where it sees that the
    // first process has other mounts.
    for (kind, place) in [("bpf", PINS), ("tmpfs", NAMESPACES), ("tmpfs", "/proc/1")] {
        mount(
            Some(kind),
            place,
            Some(kind),
            MsFlags::empty(),
            None::<&str>,
        )
        .with_context(|| format!("mounting {kind} on {place}"))?;
    }
    let bench = Bench { binary, model };
    let mut column = Column {
        release: nix::sys::utsname::uname()?
            .release()
            .to_string_lossy()
            .into_owned(),
        features: BTreeMap::new(),
        programs: BTreeMap::new(),
    };
    let objects = objects()?;
    let wanted =
        |feature: &Requirement| named.is_empty() || named.iter().any(|it| it == feature.name);
    for feature in requirements().into_iter().filter(wanted) {
        let begun = Instant::now();
        let tried = bench.passes(&feature, &objects, &mut column)?;
        let cell = match tried {
            Ok(said) => Cell { works: true, said },
            Err(error) => Cell {
                works: false,
                said: one_line(&format!("{error:#}")),
            },
        };
        eprintln!(
            "{}: {} ({:.1} s)",
            feature.name,
            cell.said,
            begun.elapsed().as_secs_f64()
        );
        column.features.insert(feature.name.to_owned(), cell);
    }
    Ok(column)
}

/// A compiled object.
pub struct Object {
    /// Its name.
    pub object: &'static str,
    /// Its programs, except those that only tests load.
    pub programs: Vec<String>,
}

/// All objects whose programs are tried.
pub fn objects() -> Result<Vec<Object>> {
    let mut all = Vec::new();
    for (object, packed) in thalweg_bpf_objects::OBJECTS {
        let open = ObjectBuilder::default().open_memory(&packed.unpack())?;
        let programs = open.progs().filter(|program| program.autoload());
        let names = programs.map(|program| program.name().to_string_lossy().into_owned());
        let programs = names.collect();
        all.push(Object { object, programs });
    }
    for (object, names) in OF_LABORATORY {
        let programs = names.iter().map(|name| (*name).to_owned()).collect();
        all.push(Object { object, programs });
    }
    Ok(all)
}

/// The part of a program's name that the kernel keeps.
fn in_kernel(name: &str) -> &str {
    &name[..name.len().min(NAME_CHARS)]
}

/// The line of an error with the reason.
fn one_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty());
    let line = line.unwrap_or("it said nothing").trim();
    line.strip_prefix("thalweg: ").unwrap_or(line).to_owned()
}

/// Runs work, and returns the programs that the kernel has verified meanwhile, with their numbers
/// of instructions.
fn watched<T>(work: impl FnOnce() -> T) -> Result<(T, BTreeMap<String, u32>)> {
    let (_, newest) = programs_after(0)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| -> Result<_> {
            be_first()?;
            let mut seen = BTreeMap::new();
            let mut newest = newest;
            loop {
                let last = over.load(Ordering::Acquire);
                let (found, id) = programs_after(newest)?;
                seen.extend(found);
                newest = id;
                if last {
                    return Ok(seen);
                }
                std::thread::sleep(LOOK);
            }
        });
        let done = work();
        over.store(true, Ordering::Release);
        let seen = watcher.join().map_err(|_| Error::msg("the watcher died"))?;
        Ok((done, seen?))
    })
}

/// Gives this thread priority over all others, so that it misses no program on a busy processor.
fn be_first() -> Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: a plain system call that reads the parameters.
    let failed = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if failed != 0 {
        return Err(std::io::Error::last_os_error()).context("a thread's priority");
    }
    Ok(())
}

/// Names and verified instructions of the programs with an id above `id`, and the largest id.
fn programs_after(mut id: u32) -> Result<(Vec<(String, u32)>, u32)> {
    let mut found = Vec::new();
    loop {
        let mut next = 0;
        // SAFETY: `next` is written to.
        if unsafe { libbpf_sys::bpf_prog_get_next_id(id, &raw mut next) } != 0 {
            return Ok((found, id));
        }
        id = next;
        // A program that is gone again is skipped.
        if let Some(info) = crate::kernel::program_info(id)? {
            let name = info.name.iter().map(|&byte| byte as u8);
            let name: Vec<u8> = name.take_while(|&byte| byte != 0).collect();
            let name = String::from_utf8_lossy(&name).into_owned();
            found.push((name, info.verified_insns));
        }
    }
}

impl Bench<'_> {
    /// Tries a feature, without the kernel's types, with them, or both, and notes the programs that
    /// the kernel has verified. The two variants of a source have the same names for them.
    fn passes(
        &self,
        feature: &Requirement,
        objects: &[Object],
        column: &mut Column,
    ) -> Result<Result<String>> {
        let has_types = Path::new(TYPES).join("vmlinux").exists();
        let hidden: &[bool] = match feature.name {
            "learning" => &[true],
            "policies" if has_types => &[true, false],
            _ => &[false],
        };
        let mut before = BTreeMap::new();
        let mut said = Ok(String::new());
        for &hidden in hidden {
            let (tried, seen) = watched(|| match hidden {
                true => without_types(|| self.attempt(feature)),
                false => self.attempt(feature),
            })?;
            said = tried;
            // A variant that is refused is replaced by the other, whose numbers are known.
            if said.is_ok() && !before.is_empty() && seen == before {
                said = Err(Error::msg("the variant with the kernel's types is refused"));
            }
            let types = has_types && !hidden && said.is_ok();
            // The parameters decide what is verified: each object counts where it is tried.
            let counts = |object: &str| match (types, feature.name) {
                (true, "learning from long connections") => object == "learn_open",
                (true, "learned clamps") => object == "learn_clamp",
                (true, "learning by busy time") => {
                    !["learn", "learn_open", "policy"].contains(&object)
                }
                (true, _) => !["learn_btf", "learn_open", "policy"].contains(&object),
                (false, _) => !["learn_btf", "policy_btf"].contains(&object),
            };
            for (name, &verified) in &seen {
                let found = objects.iter().filter(|it| counts(it.object));
                let mut found = found.flat_map(|it| it.programs.iter().map(move |full| (it, full)));
                if let Some((it, full)) = found.find(|(_, full)| in_kernel(full) == name) {
                    let programs = column.programs.entry(it.object.to_owned()).or_default();
                    programs.insert(full.clone(), verified);
                }
            }
            if said.is_err() {
                break;
            }
            before = seen;
        }
        Ok(said)
    }

    fn attempt(&self, feature: &Requirement) -> Result<String> {
        match feature.name {
            "learning" => self.learn(false),
            "learning by busy time" => self.learn(true),
            "learning from long connections" => self.long(),
            "learned clamps" => self.clamps(),
            "timers" => self.timers(),
            "idle" => self.idle(),
            "buffers" => self.buffers(),
            "policies" => self.policy(),
            "policies: open connections" => self.existing(false),
            "policies: later stages" => self.existing(true),
            "congestion controls in BPF" => self.congestion_controls(),
            "programs as machine code" => self.machine_code(),
            "lab: rates and losses" => laboratory("rate", |options| {
                options.path.rate = Some("20mbit".parse()?);
                options.path.loss = Some("1%".parse()?);
                Ok(())
            }),
            "lab: delays" => laboratory("delay", |options| {
                options.path.rate = Some("20mbit".parse()?);
                options.path.delay = "5ms".parse()?;
                Ok(())
            }),
            "lab: ECN marks" => laboratory("red", |options| {
                options.path.rate = Some("20mbit".parse()?);
                options.path.aqm = Aqm::Red;
                options.path.ecn = true;
                Ok(())
            }),
            "links" => self.link(),
            other => bail!("there is no trial of {other}"),
        }
    }

    /// A rule's settings at establishment and at the first round trip, read from the connection's
    /// socket.
    fn policy(&self) -> Result<String> {
        let pair = bed::pair("policy")?;
        let named = Named::new(&pair)?;
        let policies = Policies::new(self.binary, &pair)?;
        policies.put(&named.rule()?, &[])?;
        let mut sockets = Sockets::open(&pair, &named.0)?;
        sockets.expect("reno")?;
        sockets.send_until("reno 7000")?;
        let event = policies.thalweg(&["statistics", "--limit", "1", "--seconds", "10"]);
        let event = event.context("no event of `statistics`")?;
        ensure!(
            event["delivered"].is_u64(),
            "an event without figures: {event}"
        );
        Ok("options seen on a socket, statistics read".to_owned())
    }

    /// The same for a connection older than the policy.
    fn existing(&self, later: bool) -> Result<String> {
        let pair = bed::pair("existing")?;
        let named = Named::new(&pair)?;
        let mut sockets = Sockets::open(&pair, &named.0)?;
        sockets.expect("cubic 0")?;
        let policies = Policies::new(self.binary, &pair)?;
        policies.put(&named.rule()?, &["--existing"])?;
        let expected = if later { "reno 7000" } else { "reno" };
        sockets.send_until(expected).or_else(|error| {
            let shown = policies.thalweg(&["show"])?;
            let failure = &shown["rules"][0]["failures"][0];
            match (failure["option"].as_str(), failure["error"].as_str()) {
                (Some(option), Some(why)) => bail!("{option}: {why}"),
                _ => Err(error),
            }
        })?;
        Ok("option seen on a socket".to_owned())
    }

    /// Two classics and a model, each on a connection.
    fn congestion_controls(&self) -> Result<String> {
        let pair = bed::pair("cc")?;
        let model = self.model.to_str().context("the model's path")?;
        for (what, program) in [("htcp", "htcp"), ("dctcp", "dctcp"), (model, "rate")] {
            let _loaded = Loaded::new(self.binary, &[(what, program)])?;
            bed::transfer(&pair, BYTES, Some(&cc::name(program)))
                .with_context(|| format!("{what} is loaded"))?;
        }
        Ok("htcp, dctcp and a model carry connections".to_owned())
    }

    /// A policy's programs, whose machine code the kernel reports.
    fn machine_code(&self) -> Result<String> {
        let pair = bed::pair("code")?;
        let (_, before) = programs_after(0)?;
        let named = Named::new(&pair)?;
        let policies = Policies::new(self.binary, &pair)?;
        policies.put(&named.rule()?, &[])?;
        let mut id = before;
        loop {
            let mut next = 0;
            // SAFETY: `next` is written to.
            if unsafe { libbpf_sys::bpf_prog_get_next_id(id, &raw mut next) } != 0 {
                bail!("the programs are interpreted");
            }
            id = next;
            if let Some(info) = crate::kernel::program_info(id)?
                && info.jited_prog_len > 0
            {
                return Ok("programs are compiled".to_owned());
            }
        }
    }

    /// A command behind a path.
    fn link(&self) -> Result<String> {
        let output = std::process::Command::new(super::laboratory_beside(self.binary))
            .args(["link", "--delay", "5ms", "--", "ip", "route"])
            .output()
            .context("starting thalweg-lab link")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}", said.trim_end());
        ensure!(!output.stdout.is_empty(), "no route behind the link");
        Ok("a command runs behind a path".to_owned())
    }
}

/// A cgroup below a pair's, named by a policy.
struct Named(PathBuf);

impl Named {
    fn new(pair: &Pair) -> Result<Self> {
        let directory = pair.cgroup_path().join("named");
        fs::create_dir(&directory).with_context(|| format!("making {}", directory.display()))?;
        Ok(Self(directory))
    }

    /// A policy for its connections. Its second rule has a share: without one the verifier sees
    /// nothing of what measures them.
    fn rule(&self) -> Result<String> {
        let root = thalweg_control::system::cgroup2_mount()?;
        let place = self.0.strip_prefix(&root).context("the pair's cgroup")?;
        Ok(format!(
            "name = \"probe\"\n[[rule]]\nname = \"here\"\nmatch.cgroup = \"/{}\"\n\
             set = {{ congestion = \"reno\", statistics = \"0\" }}\n\
             on.rtt = {{ user_timeout = \"7s\" }}\n\
             [[rule]]\nname = \"share\"\n\
             match = {{ remote = \"192.0.2.0/24\", sample = \"50%\" }}\n\
             set = {{ congestion = \"reno\" }}\n",
            place.display()
        ))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // The pair's cgroup cannot be removed before it, and reports that.
        let _ = fs::remove_dir(&self.0);
    }
}

/// A connection whose options are read.
pub(super) struct Sockets {
    // Dropped in this order, so that the server sees no half of a transfer.
    _server: Worker,
    client: Worker,
    said: String,
}

impl Sockets {
    pub fn open(pair: &Pair, cgroup: &Path) -> Result<Self> {
        // More than is sent, so that the peer waits.
        let bytes = (2 * SENDS * BYTES).to_string();
        let mut server =
            Worker::start(pair, Side::Server, &["hold", "1", &bytes].map(String::from))?;
        server.line()?;
        let address = pair.first_address(Side::Server).to_string();
        let arguments = ["options", &address, &BYTES.to_string()].map(String::from);
        let mut client = Worker::start_in(pair, Side::Client, cgroup, &arguments)?;
        Ok(Self {
            said: client.line()?,
            client,
            _server: server,
        })
    }

    /// Sends once.
    pub fn send(&mut self) -> Result<()> {
        self.client.go_on()?;
        self.said = self.client.line()?;
        Ok(())
    }

    /// Sends until the options start like this.
    pub fn send_until(&mut self, begins: &str) -> Result<()> {
        for _ in 0..SENDS {
            self.send()?;
            if self.expect(begins).is_ok() {
                break;
            }
        }
        self.expect(begins)
    }

    pub fn expect(&self, begins: &str) -> Result<()> {
        let said = &self.said;
        ensure!(
            said.starts_with(begins),
            "the socket has {said}, not {begins}"
        );
        Ok(())
    }
}

/// A transfer over a path of the laboratory.
fn laboratory(
    label: &str,
    set: impl FnOnce(&mut PairOptions) -> std::result::Result<(), String>,
) -> Result<String> {
    let mut options = bed::options(label);
    set(&mut options).map_err(Error::msg)?;
    let pair = Pair::new(&options)?;
    bed::transfer(&pair, BYTES, None)?;
    Ok("data crosses the path".to_owned())
}

/// Private mounts of this thread. Pins in them, and namespaces named there, are removed with the
/// last process, however it ends.
fn own_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("a namespace of mounts")?;
    let (none, flags) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
    mount(none, "/", none, flags, none).context("private mounts")
}

/// Runs work on a kernel whose BTF is hidden, as if it was built without CONFIG_DEBUG_INFO_BTF.
fn without_types<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let hidden = || -> Result<T> {
        if Path::new(TYPES).exists() {
            own_mounts()?;
            let nothing = None::<&str>;
            mount(
                Some("tmpfs"),
                TYPES,
                Some("tmpfs"),
                MsFlags::empty(),
                nothing,
            )
            .with_context(|| format!("hiding {TYPES}"))?;
        }
        work()
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(hidden);
        thread.join().map_err(|_| Error::msg("the trial died"))?
    })
}
