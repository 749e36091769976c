//! Inside the kernel: an agent that learns, and a policy, both for the command's cgroup.
//! Connections that carry the command's streams are outside of it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use thalweg_process::http;
use thalweg_process::tool::AGENT;

use crate::control::{self, FromInside, Job};
use crate::error::Error;
use crate::learn::{HOSTS_MAX, KNOWN, LEARNED};
use crate::system_error;

/// The command's cgroup.
const CGROUP: &str = "/sys/fs/cgroup/command";
/// The agent's directory: in memory, and the default of its commands.
const DIRECTORY: &str = "/run/thalweg";
const CONFIGURATION: &str = "/run/thalweg/agent.toml";
const STATE: &str = "/run/thalweg/state";
const SOCKET: &str = "/run/thalweg/agent.sock";
const LOG: &str = "/run/thalweg/agent.log";
/// The state of the machine's own agent, which nothing inside may touch.
const MACHINES_STATE: &str = "/var/lib/thalweg";
/// Time within which the agent must answer.
const START: Duration = Duration::from_secs(30);
/// Pause between two requests to an agent that is not ready.
const RETRY: Duration = Duration::from_millis(20);
/// Interval at which learned records leave the kernel.
const SAVE: Duration = Duration::from_secs(30);

/// Starts the job's agent and puts its policy in force, for the command's cgroup. Returns a
/// descriptor for entering that cgroup, if there is one, and notes for the user.
pub(crate) fn prepare_agent(
    job: &Job,
    work: &Path,
) -> Result<(Option<OwnedFd>, Vec<String>), Error> {
    if !job.learn && job.policy.is_none() {
        return Ok((None, Vec::new()));
    }
    fs::create_dir(CGROUP).map_err(Error::io("cannot create", CGROUP))?;
    if Path::new(MACHINES_STATE).is_dir() {
        let kind = Some("tmpfs");
        mount(
            kind,
            MACHINES_STATE,
            kind,
            MsFlags::empty(),
            Some("mode=700"),
        )
        .map_err(system_error("cannot mount over /var/lib/thalweg"))?;
    }
    fs::create_dir_all(DIRECTORY).map_err(Error::io("cannot create", DIRECTORY))?;
    // What one command's connections would gain by a control group, nobody asks.
    // The modules are loaded by now, and modprobe would find none of this kernel.
    let text = format!(
        "cgroup = \"{CGROUP}\"\n\n[paths]\nstate = \"{STATE}\"\nsocket = \"{SOCKET}\"\n\n\
         [arms]\nload = []\n\n[hosts]\nmax = {HOSTS_MAX}\n\n[control]\nshare = 0.0\npermanent = 0.0\n"
    );
    fs::write(CONFIGURATION, text).map_err(Error::io("cannot write", CONFIGURATION))?;
    if job.learn {
        start_agent(job)?;
        let known = work.join(KNOWN);
        if known.exists() {
            run_thalweg(
                job,
                "what was learned",
                [OsStr::new("import"), known.as_ref()],
            )?;
        }
        // The user may query the agent, as `thalweg hosts` does.
        chown(SOCKET, Some(job.user), None).map_err(Error::io("cannot give away", SOCKET))?;
    }
    let mut notes = Vec::new();
    if let Some(policy) = &job.policy {
        let words = [OsStr::new("policy"), OsStr::new("apply"), policy.as_ref()];
        let said = run_thalweg(job, "the policy", words)?;
        let lines = said.lines().filter_map(|line| line.strip_prefix("note: "));
        notes.extend(lines.map(|note| format!("policy: {note}")));
    }
    let procs = PathBuf::from(CGROUP).join("cgroup.procs");
    let procs = File::options()
        .write(true)
        .open(&procs)
        .map_err(Error::io("cannot open", procs))?;
    Ok((Some(procs.into()), notes))
}

/// The agent's program with its configuration and an empty environment.
fn agent_command(job: &Job) -> Command {
    let mut command = Command::new(job.agent.as_deref().unwrap_or(Path::new(AGENT)));
    command
        .env_clear()
        .args(["--config", CONFIGURATION])
        .stdin(Stdio::null());
    command
}

/// Runs a command of the agent's and returns its output.
fn run_thalweg<const N: usize>(
    job: &Job,
    what: &'static str,
    arguments: [&OsStr; N],
) -> Result<String, Error> {
    let output = agent_command(job).args(arguments).output();
    let output = output.map_err(Error::system(what))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(agent_error(what, &said, output.status))
}

/// The last line of an output, or else the exit status.
fn agent_error(what: &'static str, said: &str, status: std::process::ExitStatus) -> Error {
    let why = match said.lines().rfind(|line| !line.trim().is_empty()) {
        Some(line) => line.trim_start_matches("thalweg: ").to_owned(),
        None => format!("it ended ({status})"),
    };
    Error::system(what)(io::Error::other(why))
}

/// Starts the agent and waits until it answers; its programs are then attached. It ends with the
/// kernel.
fn start_agent(job: &Job) -> Result<(), Error> {
    let what = "the agent";
    let log = File::create(LOG).map_err(Error::io("cannot create", LOG))?;
    let errors = log
        .try_clone()
        .map_err(Error::io("cannot duplicate", LOG))?;
    let mut child = agent_command(job)
        .arg("run")
        .stdout(log)
        .stderr(errors)
        .spawn()
        .map_err(Error::system(what))?;
    let deadline = Instant::now() + START;
    loop {
        let answer = http::request_once(Path::new(SOCKET), "GET", "/v1/status");
        if matches!(&answer, Ok(response) if response.status == 200) {
            return Ok(());
        }
        if let Some(status) = child.try_wait().map_err(Error::system(what))? {
            let said = fs::read_to_string(LOG).unwrap_or_default();
            return Err(agent_error(what, &said, status));
        }
        if Instant::now() >= deadline {
            let why = format!("not ready after {} s", START.as_secs());
            return Err(Error::system(what)(io::Error::other(why)));
        }
        thread::sleep(RETRY);
    }
}

/// Reports learned records to the process that started the kernel.
#[derive(Debug)]
pub(crate) struct Reporter {
    work: PathBuf,
    messages: TcpStream,
    /// Whether the last report has been made.
    over: Mutex<bool>,
}

impl Reporter {
    /// Begins to report at intervals.
    pub(crate) fn start(work: &Path, messages: &TcpStream) -> Result<Arc<Self>, Error> {
        let failed = || Error::system("cannot keep what is learned");
        let reporter = Arc::new(Self {
            work: work.to_owned(),
            messages: messages.try_clone().map_err(failed())?,
            over: Mutex::new(false),
        });
        let copy = Arc::clone(&reporter);
        thread::Builder::new()
            .name("learned".to_owned())
            .spawn(move || {
                loop {
                    thread::sleep(SAVE);
                    let over = copy.over.lock().unwrap_or_else(PoisonError::into_inner);
                    if *over {
                        break;
                    }
                    // A failure is told at the end, when it counts.
                    let _ = copy.send_report();
                }
            })
            .map_err(failed())?;
        Ok(reporter)
    }

    /// Reports for the last time.
    pub(crate) fn report_last(&self) -> io::Result<()> {
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        *over = true;
        self.send_report()
    }

    fn send_report(&self) -> io::Result<()> {
        let message = match self.save_records() {
            Ok(()) => FromInside::Learned,
            Err(error) => FromInside::NotLearned {
                why: error.to_string(),
            },
        };
        control::send_message(&self.messages, &message)
    }

    /// Writes the records to the work directory: whole, and through to the machine.
    fn save_records(&self) -> Result<(), Error> {
        let failed = || Error::system("the agent does not answer");
        let answer = http::request_once(Path::new(SOCKET), "GET", "/v1/export").map_err(failed())?;
        if answer.status != 200 {
            return Err(failed()(io::ErrorKind::UnexpectedEof.into()));
        }
        let (new, path) = (self.work.join("new.json"), self.work.join(LEARNED));
        File::create(&new)
            .and_then(|mut file| {
                file.write_all(answer.body.as_bytes())?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&new, &path))
            .map_err(Error::io("cannot write", &path))
    }
}
