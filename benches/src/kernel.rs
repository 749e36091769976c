//! Kernel time of the programs, from the kernel's own BPF statistics.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, libbpf_sys};
use thalweg_bpf_types::{bytes_of, host_to_raw, key_to_raw};
use thalweg_lab::host::{Pair, Side};
use thalweg_learner::{Host, HostKey};

use crate::bed::{self, Agent, Worker};
use crate::table::{Target, line, spread};

/// Hosts in the map.
pub const HOSTS: u32 = 50_000;
const ROUNDS: usize = 25;
const CONNECTIONS: usize = 400;
/// Above the smallest scored size: closes are measured with all of their work.
const BYTES: usize = 200_000;
/// Data over a path with loss, bytes.
const LOSSY_BYTES: usize = 20_000_000;
/// The server accepts connections to all of 10.99.0.0/16.
const NETWORK: &str = "10.99.0.0/16";
const FIRST: [u8; 4] = [10, 99, 1, 0];

/// Costs of connections in the kernel, one value per round.
pub struct Cost {
    /// Per establishment, µs.
    pub established_us: Vec<f64>,
    /// Per close, µs; half of the closes are scored.
    pub closed_us: Vec<f64>,
    /// Runs of the program per end of a connection: at establishment, ...
    open_runs: Vec<f64>,
    /// ... while data flows, ...
    flow_runs: Vec<f64>,
    /// ... at its close.
    close_runs: Vec<f64>,
    /// Hosts in the map at the end.
    hosts: u64,
}

/// Runs the measurement; returns whether both targets are met.
pub fn run(binary: &Path) -> Result<bool> {
    let cost = measure(binary, ROUNDS)?;
    println!(
        "kernel time with {} hosts in the map, {CONNECTIONS} connections a round; an establishment \
         causes {:.1} runs of the program, a close {:.1}, all of them included",
        cost.hosts,
        spread(&cost.open_runs).median,
        spread(&cost.close_runs).median
    );
    let first = line(
        "per establishment",
        "us",
        &spread(&cost.established_us),
        &Target::AtMost(1.0),
    );
    let second = line(
        "per close, scored where bulk",
        "us",
        &spread(&cost.closed_us),
        &Target::AtMost(1.5),
    );
    let flow = "runs of the program per end while data flows, without loss";
    let third = line(flow, "", &spread(&cost.flow_runs), &Target::AtMost(0.0));
    Ok(first && second && third)
}

/// Runs rounds of connections between two hosts with an agent.
pub fn measure(binary: &Path, rounds: usize) -> Result<Cost> {
    measure_with(binary, rounds, "", true, &["link_sockops"])
}

/// Costs of connections to hosts without a record, which networks that know enough decide about if
/// they are enabled.
pub fn new_hosts(binary: &Path, networks: bool) -> Result<Cost> {
    measure_with(
        binary,
        1,
        &format!("[networks]\nenabled = {networks}\n"),
        false,
        &["link_sockops"],
    )
}

/// Costs with timers of networks, whose program runs beside the learner's.
pub fn with_timers(binary: &Path) -> Result<Cost> {
    let pins = ["link_sockops", "link_timers"];
    measure_with(binary, 1, "[timers]\nenabled = true\n", true, &pins)
}

/// Costs of rounds with these keys in the agent's configuration; `known`: all hosts have a record
/// before. The programs are those of the pinned links.
fn measure_with(
    binary: &Path,
    rounds: usize,
    keys: &str,
    known: bool,
    pins: &[&str],
) -> Result<Cost> {
    let pair = bed::pair("kernel")?;
    route(&pair)?;
    let agent = Agent::start_with(binary, &pair, "kernel", keys)?;
    let _statistics = enable_statistics()?;
    let links: Vec<_> = pins.iter().map(|it| agent.pin.join(it)).collect();

    let mut server = Worker::start(
        &pair,
        Side::Server,
        &["hold", &CONNECTIONS.to_string(), &BYTES.to_string()].map(String::from),
    )?;
    server.line()?;
    let first = std::net::Ipv4Addr::from(FIRST).to_string();
    let mut client = Worker::start(
        &pair,
        Side::Client,
        &["open", &first, &CONNECTIONS.to_string(), &BYTES.to_string()].map(String::from),
    )?;
    let netns = first_round(&agent, &mut client, &mut server)?;
    if known {
        fill_hosts(&agent, netns)?;
    }

    let mut cost = Cost {
        established_us: Vec::new(),
        closed_us: Vec::new(),
        open_runs: Vec::new(),
        flow_runs: Vec::new(),
        close_runs: Vec::new(),
        hosts: 0,
    };
    for _ in 0..rounds {
        let start = run_times(&links)?;
        client.go_on()?;
        client.line()?;
        // Both ends of each connection run the programs, and the accepting end's work is in
        // softirq.
        wait_for_counter(&agent, "/counters/established")?;
        let open = run_times(&links)?;
        client.go_on()?;
        client.line()?;
        let sent = run_times(&links)?;
        client.go_on()?;
        client.line()?;
        server.line()?;
        wait_for_counter(&agent, "/counters/closed")?;
        let end = run_times(&links)?;
        let ends = 2.0 * CONNECTIONS as f64;
        cost.established_us
            .push((open.0 - start.0) as f64 / ends / 1000.0);
        cost.closed_us.push((end.0 - sent.0) as f64 / ends / 1000.0);
        cost.open_runs.push((open.1 - start.1) as f64 / ends);
        cost.close_runs.push((end.1 - sent.1) as f64 / ends);
        cost.flow_runs.push((sent.1 - open.1) as f64 / ends);
    }
    cost.hosts = agent.figure("/hosts")?;
    Ok(cost)
}

/// Time, ns, and number of the runs of several programs.
fn run_times(links: &[PathBuf]) -> Result<(u64, u64)> {
    links.iter().try_fold((0, 0), |(time, runs), link| {
        let (more_time, more_runs) = run_time(link)?;
        Ok((time + more_time, runs + more_runs))
    })
}

/// Kernel time of the program's run at a retransmission, ns: bulk data to a known host over a path
/// that loses two packets in a hundred.
pub fn retransmission(binary: &Path) -> Result<f64> {
    let mut options = bed::options("retransmission");
    options.path.loss = Some("2%".parse().map_err(Error::msg)?);
    options.path.offload = false;
    let pair = Pair::new(&options)?;
    let agent = Agent::start(binary, &pair, "retransmission")?;
    let _statistics = enable_statistics()?;
    let link = agent.pin.join("link_sockops");
    let bytes = LOSSY_BYTES.to_string();
    let mut server = Worker::start(
        &pair,
        Side::Server,
        &["hold", "1", &bytes].map(String::from),
    )?;
    server.line()?;
    let address = pair.first_address(Side::Server).to_string();
    let arguments = ["open", &address, "1", &bytes].map(String::from);
    let mut client = Worker::start(&pair, Side::Client, &arguments)?;
    client.go_on()?;
    client.line()?;
    wait_for_counter_of(&agent, "/counters/established", 2)?;
    let before = run_time(&link)?;
    client.go_on()?;
    client.line()?;
    let after = run_time(&link)?;
    let runs = after.1 - before.1;
    if runs < 100 {
        bail!("{runs} retransmissions, expected some hundred");
    }
    client.go_on()?;
    client.line()?;
    server.line()?;
    Ok((after.0 - before.0) as f64 / runs as f64)
}

/// Makes the server accept connections to a whole network, 10.99.0.0/16, and routes the client to it.
pub fn route(pair: &Pair) -> Result<()> {
    let client = pair.namespace_name(Side::Client);
    let server = pair.namespace_name(Side::Server);
    let via = pair.first_address(Side::Server).to_string();
    for arguments in [
        vec!["-n", server, "route", "add", "local", NETWORK, "dev", "lo"],
        vec!["-n", client, "route", "add", NETWORK, "via", &via],
    ] {
        let status = std::process::Command::new("ip").args(&arguments).status()?;
        if !status.success() {
            bail!("ip {} failed", arguments.join(" "));
        }
    }
    Ok(())
}

/// Delays what the server sends.
pub fn delay_server(pair: &Pair, time: &str) -> Result<()> {
    let server = pair.namespace_name(Side::Server);
    let arguments = [
        "-n", server, "qdisc", "add", "dev", "link0", "root", "netem", "delay", time,
    ];
    let status = std::process::Command::new("tc").args(arguments).status()?;
    if !status.success() {
        bail!("tc {} failed", arguments.join(" "));
    }
    Ok(())
}

/// One round of real connections shows the client's namespace cookie.
fn first_round(agent: &Agent, client: &mut Worker, server: &mut Worker) -> Result<u64> {
    for _ in 0..3 {
        client.go_on()?;
        client.line()?;
    }
    server.line()?;
    wait_for_counter(agent, "/counters/closed")?;
    let hosts = MapHandle::from_pinned_path(agent.pin.join("hosts"))?;
    let first = u32::from_be_bytes(FIRST);
    let netns = hosts
        .keys()
        .filter_map(|key| thalweg_bpf_types::from_bytes(&key))
        .map(|key| thalweg_bpf_types::key_from_raw(&key))
        .find(|key| key.address() == std::net::IpAddr::from(first.to_be_bytes()))
        .context("the first connection left no record")?
        .netns;
    Ok(netns)
}

/// Writes records of [`HOSTS`] hosts, with three measured arms each, into the agent's map.
pub fn fill_hosts(agent: &Agent, netns: u64) -> Result<()> {
    let hosts = MapHandle::from_pinned_path(agent.pin.join("hosts"))?;
    let first = u32::from_be_bytes(FIRST);
    for index in 0..HOSTS {
        let address = std::net::IpAddr::from((first + index).to_be_bytes());
        let key = HostKey::new(netns, address, 32, 64)?;
        let mut host = Host {
            connections: 10,
            scored: 10,
            ..Host::default()
        };
        for arm in &mut host.arms[..3] {
            arm.scored = 3;
            arm.weight_q16 = 3 << 16;
            arm.value = 40 << 16;
        }
        hosts.update(
            bytes_of(&key_to_raw(&key)),
            bytes_of(&host_to_raw(&key, &host)),
            MapFlags::ANY,
        )?;
    }
    Ok(())
}

/// Waits until a counter is constant at an even number of whole rounds.
fn wait_for_counter(agent: &Agent, pointer: &str) -> Result<()> {
    wait_for_counter_of(agent, pointer, 2 * CONNECTIONS as u64)
}

/// Waits until a counter is constant at a multiple of `step`.
fn wait_for_counter_of(agent: &Agent, pointer: &str, step: u64) -> Result<()> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let value = agent.figure(pointer)?;
        if value > 0 && value % step == 0 {
            return Ok(());
        }
        if std::time::Instant::now() > deadline {
            bail!("{pointer} stands at {value}");
        }
    }
}

/// While this is open, the kernel counts run time of BPF programs.
pub fn enable_statistics() -> Result<OwnedFd> {
    // SAFETY: a plain system call; a negative answer is checked below.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd)).context("enabling BPF statistics");
    }
    // SAFETY: fd is a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Total run time (ns) and number of runs of the program of a pinned link.
pub fn run_time(link: &Path) -> Result<(u64, u64)> {
    let link = Link::open(link)?;
    let info = program_info(link.info()?.prog_id)?.context("the link's program is gone")?;
    Ok((info.run_time_ns, info.run_cnt))
}

/// Number of BPF programs on this machine.
pub fn program_count() -> usize {
    libbpf_rs::query::ProgInfoIter::default().count()
}

/// The kernel's information on a program; none if there is no program with that number.
pub fn program_info(id: u32) -> Result<Option<libbpf_sys::bpf_prog_info>> {
    // SAFETY: a plain system call; a negative answer is checked below.
    let fd = unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) };
    if fd < 0 {
        let error = std::io::Error::from_raw_os_error(-fd);
        if error.kind() == std::io::ErrorKind::NotFound {
            return Ok(None);
        }
        return Err(error).context("opening the program");
    }
    // SAFETY: fd is a fresh descriptor that nobody else owns.
    let program = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: info and length are valid for the call and match in size.
    let failed = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut length)
    };
    if failed != 0 {
        bail!("reading the program's statistics failed ({failed})");
    }
    Ok(Some(info))
}
