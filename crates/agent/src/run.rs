//! From a configuration to a running agent.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use nix::sys::stat::{Mode, umask};
use nix::unistd::AccessFlags;
use thalweg_control::policy::Place;
use thalweg_control::policy::history::History;
use thalweg_control::{learner, policy, privileges, system};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::api;
use crate::api::socket::Socket;
use crate::config::Config;
use crate::keeper::{Keeper, wanted_arms};
use crate::kernel::{Kernel, Previous, Setup};
use crate::lock::{Lock, Locks, PinLock};
use crate::shared::Shared;
use crate::store::{HostRow, Moment, Snapshot, Store};

/// Creates the directory of the store, which belongs to the agent only.
fn make_state_directory(path: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("creating {}", path.display()))?;
    check_private(path)?;
    Ok(Store::make_private(path)?)
}

/// Runs the agent until SIGTERM, SIGINT or a request to detach. The programs stay attached when it
/// ends, unless they were detached.
///
/// # Errors
/// Any failure of the start. Programs in force before still are; otherwise nothing is left.
pub fn run(config: Config) -> Result<()> {
    check_privileges()?;
    // Files of the agent are private; files for others get their group explicitly.
    umask(Mode::from_bits_truncate(0o077));
    // This comes first: a signal during the start ends the agent once it has started.
    let ends = Ends::new()?;
    let cgroup = match &config.cgroup {
        Some(path) => path.clone(),
        None => system::cgroup2_mount()?,
    };
    system::check_cgroup2(&cgroup).context("`cgroup` of the configuration")?;
    make_state_directory(&config.paths.state)?;
    // Before the lock: a child inherits it until it execs modprobe, and may outlive an agent.
    system::load_modules(&config.arms.load);
    let state = Lock::take(&config.paths.state.join("agent.lock"))?;
    let own_netns = system::netns_cookie()?;

    let socket = Socket::bind(&config.paths.socket, config.paths.socket_group.as_deref())?;
    system::ensure_bpffs(&config.paths.pin)?;
    let pins = PinLock::take(&config.paths.pin)?;
    check_private(&config.paths.pin)?;
    let locks = Arc::new(Locks { state, pins });
    // From here on the agent creates its threads, and reads data of others.
    privileges::give_up()?;
    check_reachable(&config.paths.state)?;
    check_reachable(&config.paths.pin)?;
    let opened = Store::open(&config.paths.state, &system::boot_id()?, Moment::now())?;
    let remembered = opened.store.arm_names(config.params().mode)?;
    let (kernel, left) = Kernel::prepare(setup(&config, cgroup, remembered)?)?;
    let shared = Arc::new(Shared::new(kernel, config, opened.store, own_netns)?);
    if let Some(set_aside) = opened.set_aside {
        shared.problem("store-set-aside", Some(set_aside.to_string()));
    }
    if let Some(previous) = &left.previous {
        keep_previous(&shared, previous)?;
        fail_point!("mode::kept");
    }
    fail_point!("start::prepared");
    // The table is complete before the programs use it, so no snapshot can have less.
    if !left.is_whole {
        restore(&shared)?;
    }
    shared.kernel.insert_left(&left.hosts)?;
    fail_point!("start::restored");
    drop(left);
    shared.kernel.attach()?;
    fail_point!("start::attached");
    // Arms without a slot beside the missing ones.
    shared
        .kernel
        .refresh_arms(&shared.kernel.setup().arms, false)?;
    let without_btf = shared.kernel.without_btf().map(without_btf_in_words);
    shared.problem("kernel-btf", without_btf);
    log_start(&shared)?;
    restore_policy(&shared);

    let keeper = Keeper::new(Arc::clone(&shared))?;
    let server = {
        let shared = Arc::clone(&shared);
        let locks = Arc::clone(&locks);
        std::thread::Builder::new()
            .name("api".into())
            .spawn(move || {
                let outcome = serve(&shared, socket, ends, &locks);
                shared.stop();
                outcome
            })?
    };
    let kept = keeper.run();
    shared.stop();
    let served = server
        .join()
        .unwrap_or_else(|_| bail!("the API thread panicked"));
    let left = match learner::is_attached(&shared.kernel.setup().pin) {
        true => "the programs stay attached and go on (`thalweg detach` removes them)",
        false => "nothing is left in the kernel",
    };
    tracing::info!("agent ends; {left}");
    kept.and(served)
}

fn without_btf_in_words(why: &str) -> String {
    format!(
        "the kernel refused the program that reads its own structures, so connections are scored \
         by wall time ({why})"
    )
}

/// Fails unless a directory belongs to the agent: it would obey changes by others.
fn check_private(directory: &Path) -> Result<()> {
    let shown = directory.display();
    let found = fs::metadata(directory).with_context(|| format!("looking at {shown}"))?;
    let own = nix::unistd::geteuid().as_raw();
    if found.uid() != own && found.uid() != 0 {
        bail!(
            "{shown} belongs to user {}, the agent runs as {own}: chown {own} {shown}, or give it \
             another directory in [paths]",
            found.uid()
        );
    }
    if found.mode() & 0o022 != 0 {
        bail!(
            "{shown} may be written by others (mode {:o}): chmod go-w {shown}",
            found.mode() & 0o7777
        );
    }
    Ok(())
}

/// Fails unless a directory is accessible with the remaining capabilities: even root passes only
/// where its user may.
fn check_reachable(directory: &Path) -> Result<()> {
    let shown = directory.display();
    let usable = nix::unistd::access(directory, AccessFlags::W_OK | AccessFlags::X_OK);
    usable.with_context(|| {
        let user = nix::unistd::geteuid();
        format!(
            "{shown} cannot be used by user {user} without CAP_DAC_OVERRIDE, which the agent gives \
             up: give it, and passage through each directory above it, to this user, or name \
             another directory in [paths]"
        )
    })
}

fn check_privileges() -> Result<()> {
    let missing = privileges::missing()?;
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "missing privilege: {}; run as root or grant them (systemd: AmbientCapabilities=). Without \
         them `thalweg doctor` works, and every command that asks a running agent whose socket \
         you may open",
        missing.join(", ")
    )
}

fn setup(config: &Config, cgroup: PathBuf, remembered: Vec<String>) -> Result<Setup> {
    Ok(Setup {
        pin: config.paths.pin.clone(),
        cgroup,
        params: config.params(),
        rescue: config.learning.rescue.clone(),
        dry_run: config.dry_run,
        ipv4_prefix: config.hosts.ipv4_prefix,
        ipv6_prefix: config.hosts.ipv6_prefix,
        hosts_max: config.hosts.max,
        ring_bytes: config.events.ring_bytes,
        arms: wanted_arms(config)?,
        remembered,
        ecn_prefixes: config.arms.ecn_prefixes.clone(),
        defaults: system::namespace_defaults(config.hosts.user_namespaces),
        kernel_btf: system::has_kernel_btf(),
    })
}

/// Saves the other mode's records that were in the kernel.
fn keep_previous(shared: &Shared, previous: &Previous) -> Result<()> {
    let moment = Moment::now();
    let hosts = previous
        .hosts
        .iter()
        .map(|(key, host)| {
            HostRow::new(*key, host, moment.monotonic_ns, |index| {
                previous.arms.name(index)
            })
        })
        .collect();
    let snapshot = Snapshot {
        hosts,
        ..shared.snapshot_header(previous.mode)
    };
    shared.store(|store| store.save_snapshot(&snapshot, moment))?;
    tracing::info!(
        "{} host records of mode {} went to the store; they come back with that mode",
        snapshot.hosts.len(),
        previous.mode.name()
    );
    Ok(())
}

/// Restores the last snapshot into an empty kernel.
fn restore(shared: &Shared) -> Result<()> {
    let Some(result) = shared.restore_stored()? else {
        return Ok(());
    };
    system::trim_memory();
    tracing::info!(
        "{} host records restored from the store{}",
        result.restored,
        match result.left_out {
            0 => String::new(),
            n => format!(
                " ({n} left out: of network namespaces of an earlier boot, or there is no room)"
            ),
        }
    );
    Ok(())
}

/// Puts the policy back in force after a restart of the machine. If that fails, the agent runs
/// without it, and reports the failure.
fn restore_policy(shared: &Shared) {
    let setup = shared.kernel.setup();
    let place = Place {
        pin: setup.pin.clone(),
        cgroup: setup.cgroup.clone(),
    };
    let history = History::at(&shared.config.paths.state);
    match history.restore(&place) {
        Ok(None) => {}
        Ok(Some(outcome)) => {
            tracing::info!(policy = outcome.entry.name, "policy is in force again");
            for note in outcome.applied.notes {
                tracing::warn!("policy: {note}");
            }
        }
        Err(error) => shared.problem("policy", Some(format!("not in force: {error:#}"))),
    }
    let arms = shared.kernel.arms();
    if let Err(error) = arms
        .and_then(|arms| policy::refresh_arm_sets(&place.pin, &history, |name| arms.index(name)))
    {
        tracing::warn!("the policy's sets of arms are not known to it: {error:#}");
    }
}

fn log_start(shared: &Shared) -> Result<()> {
    let arms = shared.kernel.arms()?;
    let names: Vec<&str> = arms
        .entries()
        .filter(|(_, arm)| arm.present)
        .map(|(_, arm)| arm.name.as_str())
        .collect();
    let setup = shared.kernel.setup();
    tracing::info!(
        mode = shared.mode().name(),
        cgroup = %setup.cgroup.display(),
        arms = names.join(" "),
        default = system::default_cc()?,
        took_over = shared.kernel.took_over(),
        dry_run = setup.dry_run,
        kernel_btf = setup.kernel_btf,
        "agent runs"
    );
    if names.len() < 2 {
        tracing::warn!("fewer than two congestion controls: there is nothing to learn");
    }
    Ok(())
}

/// The agent's signals, and the runtime that waits for them.
struct Ends {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Ends {
    fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let inside = runtime.enter();
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let hang_up = signal(SignalKind::hangup())?;
        drop(inside);
        Ok(Self {
            runtime,
            terminate,
            interrupt,
            hang_up,
        })
    }
}

/// Answers requests and watches for signals until asked to end.
fn serve(shared: &Arc<Shared>, socket: Socket, ends: Ends, locks: &Locks) -> Result<()> {
    let Ends {
        runtime,
        mut terminate,
        mut interrupt,
        mut hang_up,
    } = ends;
    runtime.block_on(async {
        let listener = tokio::net::UnixListener::from_std(socket.listen()?)?;
        let mut stopped = shared.stopped();
        let mut server = std::pin::pin!(api::serve(listener, Arc::clone(shared)));
        loop {
            tokio::select! {
                never = &mut server => match never {},
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hang_up.recv() => tracing::info!(
                    "SIGHUP changes nothing: restart the agent to have it read its configuration \
                     (no connection is missed)"
                ),
                _ = stopped.wait_for(|stop| *stop) => {
                    locks.note_end();
                    // The response to the request for the end is still being sent.
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    break;
                }
            }
        }
        // Before the socket is removed, by which others see that the agent ends.
        locks.note_end();
        Ok(())
    })
}
