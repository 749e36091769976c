//! From a configuration to a running agent.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::stat::{Mode, umask};
use nix::unistd::AccessFlags;
use thalweg_control::{learner, privileges, system};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::api;
use crate::api::socket::Socket;
use crate::api::tcp::PortListener;
use crate::arms::wanted_arms;
use crate::config::agent::Paths;
use crate::config::{Config, ConfigError, DEFAULT_FILE};
use crate::disk;
use crate::event_loop::EventLoop;
use crate::features;
use crate::kernel::{Kernel, Previous, Setup};
use crate::lock::{Lock, Locks, PinLock};
use crate::named::Named;
use crate::reload::{Ready, Reload, Reread};
use crate::service;
use crate::shared::Shared;
use crate::statistics::AgentStatistics;
use crate::store::{HostRow, Moment, Snapshot, Store};

/// Time in which the last answers leave.
const ANSWERS: Duration = Duration::from_millis(50);
/// Interval of polls of the socket's file.
const SOCKET_LOOK: Duration = Duration::from_secs(1);
/// Interval of polls for the end of the API's jobs.
const LOOK: Duration = Duration::from_millis(10);

/// Creates the directory of the store, which belongs to the agent only.
fn make_state_directory(path: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("creating {}", path.display()))?;
    check_private(path)?;
    Store::check_own(path, &features::state_files())?;
    Ok(Store::make_private(path)?)
}

/// Bounds the free memory that glibc's allocator keeps. By default a short-lived thread may leave an
/// arena behind, with half a MiB of it. The heap keeps as much as the largest block that was freed.
fn bound_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: plain calls; the only thread so far makes them. A refusal changes nothing.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 10);
        libc::mallopt(libc::M_TOP_PAD, 0);
    }
}

/// Runs the agent until SIGTERM, SIGINT or a request to detach. The programs stay attached when it
/// ends, unless they were detached. On SIGHUP, or on request, it reads its configuration again by
/// `reread` and continues with it; if that is refused, with the present one.
///
/// # Errors
/// Any failure of the start. Programs that were in force stay so; otherwise nothing is left.
pub fn run(config: Config, reread: Reread) -> Result<()> {
    check_privileges()?;
    bound_free_memory();
    // Files of the agent are private; files for others get their group explicitly.
    umask(Mode::from_bits_truncate(0o077));
    // Before anything else: a signal during the start ends the agent once it has started.
    let mut ends = Ends::new()?;
    let named = Arc::new(named_of(&config)?);
    let paths = config.paths.clone();
    let explained = |error| disk::explained(error, &[&paths.state, &paths.socket, &paths.pin]);
    let (resources, port_listener) =
        ProcessResources::prepare(&config, reread).map_err(explained)?;
    let first = Ready {
        config,
        port_listener,
        named,
    };
    let mut session = Session::start(&resources, first, 1).map_err(explained)?;
    loop {
        service::ready();
        let (before, number) = (session.ready(), session.shared.session + 1);
        let shared = Arc::clone(&session.shared);
        let outcome = session.run(&resources, &mut ends);
        // Without the agent, or with another configuration, nobody would undo it.
        let stopped = stop_features(&shared);
        let is_detached = shared.kernel.has_let_go();
        let resolved = (shared.kernel.setup().nat64.is_none()).then(|| shared.kernel.nat64());
        drop(shared);
        let next = match (outcome, resources.reload.take()) {
            // The next session knows the rest, and tries again.
            (Ok(()), Some(next)) => next,
            (outcome, _) => {
                let outcome = outcome.and(stopped);
                service::stopping();
                let left = match learner::is_attached(&before.config.paths.pin) {
                    true => "the programs stay attached and go on (`thalweg detach` removes them)",
                    false => "nothing is left in the kernel",
                };
                tracing::info!("agent ends; {left}");
                return match outcome {
                    // After a failure a service manager would start the detached agent again.
                    Err(error) if is_detached => {
                        tracing::error!("after it was detached: {error:#}");
                        Ok(())
                    }
                    outcome => outcome,
                };
            }
        };
        service::reloading();
        session = match Session::start(&resources, next, number) {
            Ok(session) => session,
            Err(error) => {
                let session = Session::start(&resources, before, number).with_context(|| {
                    format!(
                        "going back to the configuration before, as the new one failed ({error:#})"
                    )
                })?;
                session.shared.refuse_configuration(&format!("{error:#}"));
                session
            }
        };
        // The last answer of the resolver holds until the next.
        let kernel = &session.shared.kernel;
        if let Some(known) = resolved.filter(|_| kernel.setup().nat64.is_none()) {
            kernel.set_nat64(known.prefixes())?;
        }
    }
}

/// Locks, socket and privileges of the process, which outlive a change of the configuration.
struct ProcessResources {
    /// The API's socket; `None`: the agent ends, and answers no more.
    socket: Mutex<Option<Socket>>,
    locks: Locks,
    own_netns: u64,
    reload: Arc<Reload>,
    statistics: Arc<AgentStatistics>,
}

impl ProcessResources {
    /// Takes locks and socket, then gives up the privileges for that.
    fn prepare(config: &Config, reread: Reread) -> Result<(Self, Option<PortListener>)> {
        // Check before anything is created.
        cgroup_of(config)?;
        make_state_directory(&config.paths.state)?;
        // Before the lock: a child inherits it until it execs modprobe, and may outlive an agent.
        system::load_modules(&config.arms.load);
        let state = Lock::take(&config.paths.state.join("agent.lock"))?;
        let own_netns = system::netns_cookie()?;

        let port_listener = PortListener::at_start(&config.http)?;
        let socket = Socket::bind(&config.paths.socket, config.paths.socket_group.as_deref())?;
        system::ensure_bpffs(&config.paths.pin)?;
        let pins = PinLock::take(&config.paths.pin)?;
        check_private(&config.paths.pin)?;
        // From here on the agent creates threads, and reads data of others.
        privileges::give_up()?;
        check_reachable(&config.paths.state)?;
        check_reachable(&config.paths.pin)?;
        let resources = Self {
            socket: Mutex::new(Some(socket)),
            locks: Locks {
                state,
                pins: Arc::new(pins),
            },
            own_netns,
            reload: Arc::new(Reload::new(reread)),
            statistics: Arc::new(AgentStatistics::begin(system::available_ccs()?)),
        };
        Ok((resources, port_listener))
    }

    fn socket(&self) -> MutexGuard<'_, Option<Socket>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self) -> Result<UnixListener> {
        match &*self.socket() {
            Some(socket) => Ok(UnixListener::from_std(socket.listen()?)?),
            None => bail!("the socket is gone"),
        }
    }

    /// Binds the socket again if its file is gone; `None`: the file is there.
    fn bind_again(&self, paths: &Paths) -> Result<Option<UnixListener>> {
        if self.socket().as_ref().is_none_or(Socket::is_there) {
            return Ok(None);
        }
        let bound = Socket::bind(&paths.socket, paths.socket_group.as_deref())?;
        *self.socket() = Some(bound);
        self.listen().map(Some)
    }
}

fn named_of(config: &Config) -> Result<Named> {
    Ok(Named::read(config.networks.table.as_deref()).map_err(ConfigError::Table)?)
}

fn cgroup_of(config: &Config) -> Result<PathBuf> {
    let cgroup = match &config.cgroup {
        Some(path) => path.clone(),
        None => system::cgroup2_mount()?,
    };
    system::check_cgroup2(&cgroup).context("`cgroup` of the configuration")?;
    Ok(cgroup)
}

/// An agent with one configuration, from its start to its end or to the next configuration.
struct Session {
    shared: Arc<Shared>,
    event_loop: EventLoop,
}

impl Session {
    /// Puts the configuration in force. Attached programs stay so until their successors take over,
    /// so no connection is missed.
    fn start(resources: &ProcessResources, ready: Ready, number: u64) -> Result<Self> {
        let config = &ready.config;
        let cgroup = cgroup_of(config)?;
        let state = &config.paths.state;
        let features = resources.statistics.features.iter();
        let sections = &config.features.0;
        let features = features.map(|it| (it, &*sections[it.name()]));
        for (feature, settings) in features.clone() {
            feature.begin(settings, state)?;
        }
        let mut opened = Store::open(state, &system::boot_id()?, Moment::now())?;
        let remembered = opened.store.arm_names(config.params().mode)?;
        let salt = match config.control.salt {
            Some(salt) => salt,
            None => opened.store.control_salt()?,
        };
        let at_start = &resources.statistics.arms_at_start;
        let mut setup = setup(&ready, at_start, cgroup, remembered, salt)?;
        for (feature, settings) in features.clone() {
            feature.configure(settings, &mut setup);
        }
        let (kernel, left) = Kernel::prepare(setup)?;
        for (feature, _) in features {
            feature.load(&kernel, &mut opened.store)?;
        }
        let (reload, statistics) = (
            Arc::clone(&resources.reload),
            Arc::clone(&resources.statistics),
        );
        let store = opened.store;
        let shared = Shared::new(
            kernel,
            ready,
            store,
            resources.own_netns,
            number,
            reload,
            statistics,
        )?;
        let shared = Arc::new(shared);
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
        shared.kernel.insert_conns(&left.conns)?;
        fail_point!("start::restored");
        drop(left);
        // Prior weights must be right from the first connection on.
        shared.kernel.refresh_worth()?;
        shared.kernel.attach()?;
        fail_point!("start::attached");
        // Arms without a slot beside the missing ones.
        shared
            .kernel
            .refresh_arms(&shared.kernel.setup().arms, false)?;
        let without_btf = shared.kernel.without_btf().map(without_btf_in_words);
        shared.problem("kernel-btf", without_btf);
        let without_iterator = shared.kernel.without_iterator();
        let without_iterator = without_iterator.map(without_iterator_in_words);
        shared.problem("long-connections", without_iterator);
        for feature in &shared.statistics.features {
            let problem = feature.start(&shared.feature_context());
            shared.problem(feature.name(), problem);
        }
        log_start(&shared)?;
        let event_loop = EventLoop::new(Arc::clone(&shared), Arc::clone(&resources.locks.pins))?;
        Ok(Self { shared, event_loop })
    }

    /// The configuration of the session, with its listener and named networks.
    fn ready(&self) -> Ready {
        Ready {
            config: self.shared.config.clone(),
            port_listener: self.shared.port_listener.clone(),
            named: Arc::clone(&self.shared.kernel.setup().named),
        }
    }

    /// Runs until the agent ends, or continues with another configuration.
    fn run(self, resources: &ProcessResources, ends: &mut Ends) -> Result<()> {
        let Self { shared, event_loop } = self;
        std::thread::scope(|scope| {
            let server = std::thread::Builder::new()
                .name("api".into())
                .spawn_scoped(scope, || {
                    let outcome = serve(&shared, resources, ends);
                    shared.close();
                    shared.stop();
                    outcome
                })?;
            let features = shared.statistics.features.iter();
            let works = features.filter_map(|it| Some((it.name(), it.thread()?)));
            let threads = works.map(|(name, work)| {
                std::thread::Builder::new()
                    .name(format!("{name}-agent"))
                    .spawn_scoped(scope, || work(&*shared))
            });
            let threads = threads.collect::<std::io::Result<Vec<_>>>();
            let kept = match &threads {
                Ok(_) => event_loop.run(),
                Err(error) => Err(anyhow!("a thread of a feature cannot be started: {error}")),
            };
            shared.stop();
            for thread in threads.into_iter().flatten() {
                // A panic is reported as a problem already.
                drop(thread.join());
            }
            let served = server
                .join()
                .unwrap_or_else(|_| bail!("the API thread panicked"));
            kept.and(served)
        })
    }
}

fn without_btf_in_words(why: &str) -> String {
    format!(
        "the kernel refused the program that reads its own structures, so connections are scored \
         by wall time ({why})"
    )
}

fn without_iterator_in_words(why: &str) -> String {
    format!(
        "the kernel refused the program that looks at long connections, so they are scored only \
         when they end ({why})"
    )
}

/// Ends the session of each feature; returns the first error.
fn stop_features(shared: &Shared) -> Result<()> {
    let context = shared.feature_context();
    let mut outcome = Ok(());
    for feature in &shared.statistics.features {
        outcome = outcome.and(feature.stop(&context));
    }
    outcome
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
    let missing = privileges::missing_capabilities()?;
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

fn setup(
    ready: &Ready,
    arms_at_start: &[String],
    cgroup: PathBuf,
    remembered: Vec<String>,
    salt: u64,
) -> Result<Setup> {
    let config = &ready.config;
    Ok(Setup {
        pin: config.paths.pin.clone(),
        cgroup,
        params: config.params(),
        rescue: config.learning.rescue.clone(),
        dry_run: config.dry_run,
        ipv4_prefix: config.hosts.ipv4_prefix,
        ipv6_prefix: config.hosts.ipv6_prefix,
        nat64: config.hosts.nat64.clone(),
        networks: config.networks.clone(),
        named: Arc::clone(&ready.named),
        fleet: false,
        windows: 0,
        control: config.control.group(config.mode, &config.advise, salt),
        advise: config.advise,
        reverts: config.control.revert,
        cluster: (config.control.cluster_ipv4, config.control.cluster_ipv6),
        hosts_max: config.hosts.max,
        ring_bytes: config.events.ring_bytes,
        arms: wanted_arms(config, arms_at_start)?,
        remembered,
        ecn_prefixes: config.arms.ecn_prefixes.clone(),
        user_namespaces: config.hosts.user_namespaces,
        feature_parameters: Vec::new(),
        kept_maps: Vec::new(),
        defaults: system::entered_namespaces(config.hosts.user_namespaces)
            .into_iter()
            .map(|namespace| (namespace.cookie, namespace.default_cc))
            .collect(),
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

fn log_start(shared: &Shared) -> Result<()> {
    let arms = shared.kernel.arms()?;
    let names: Vec<&str> = arms
        .entries()
        .filter(|(_, arm)| arm.present)
        .map(|(_, arm)| arm.name.as_str())
        .collect();
    let setup = shared.kernel.setup();
    let file = shared.config.file.as_deref();
    let file = file.map_or_else(
        || format!("none ({DEFAULT_FILE} is not there)"),
        |file| file.display().to_string(),
    );
    let (mode, cgroup) = (shared.mode().name(), setup.cgroup.display());
    tracing::info!(
        mode,
        %cgroup,
        arms = names.join(" "),
        default = system::default_cc()?,
        took_over = shared.kernel.took_over(),
        dry_run = setup.dry_run,
        advise = setup.advise.only,
        kernel_btf = setup.kernel_btf,
        "agent {} runs in mode {mode}{} on {cgroup}, configuration {file}",
        env!("CARGO_PKG_VERSION"),
        match setup.dry_run {
            true => ", dry run,",
            false => "",
        },
    );
    let (prefixes, networks) = (setup.named.prefixes(), setup.named.networks());
    if prefixes > 0 {
        tracing::info!(
            prefixes,
            networks,
            "{networks} networks are named, by {prefixes} prefixes"
        );
    }
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

/// Answers requests and watches for signals until the end is asked for.
fn serve(shared: &Arc<Shared>, resources: &ProcessResources, ends: &mut Ends) -> Result<()> {
    let Ends {
        runtime,
        terminate,
        interrupt,
        hang_up,
    } = ends;
    runtime.block_on(async {
        let listener = resources.listen()?;
        let mut looks = tokio::time::interval(SOCKET_LOOK);
        let mut stopped = shared.stopped();
        let mut server = Box::pin(api::serve(listener, Arc::clone(shared)));
        loop {
            tokio::select! {
                never = &mut server => match never {},
                _ = looks.tick() => {
                    let bound = resources.bind_again(&shared.config.paths);
                    if let Some(listener) = shared.note_socket(bound) {
                        server = Box::pin(api::serve(listener, Arc::clone(shared)));
                    }
                }
                _ = terminate.recv() => shared.end(),
                _ = interrupt.recv() => shared.end(),
                // The reload logs its outcome; a refusal is a problem.
                _ = hang_up.recv() => drop(shared.reload()),
                _ = stopped.wait_for(|stop| *stop) => {
                    if !resources.reload.is_planned() {
                        resources.locks.note_end();
                    }
                    break;
                }
            }
        }
        // Let jobs finish, as an import or a detach: they must not meet another session.
        shared.close();
        while !shared.is_done() {
            tokio::time::sleep(LOOK).await;
        }
        // The last answers are still on their way.
        tokio::time::sleep(ANSWERS).await;
        // Before the socket goes, by which clients see the agent's end. A detach may have cancelled
        // a planned session.
        if !resources.reload.is_planned() {
            resources.locks.note_end();
            // The last snapshot may take long: nobody should wait for an answer until then.
            resources.socket().take();
            if let Some(port_listener) = &shared.port_listener {
                port_listener.close();
            }
        }
        // Connections end with the server, and release the session.
        drop(server);
        tokio::task::yield_now().await;
        Ok(())
    })
}
