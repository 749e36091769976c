//! Bytes and messages, measured and by the formula of `thalweg_fleet::traffic`.

use std::time::{Duration, Instant};

use thalweg_fleet::traffic::Load;
use thalweg_fleet::wire::{Measured, Priors, Shard};
use thalweg_fleet::{Fleet, Incoming, Outgoing, Timing, Traffic};

use super::support::{Bed, QUICK, connected, network, priors, status, wait_for};

/// Between two looks, so that an hour of six looks takes seconds.
const LOOK: Duration = Duration::from_millis(300);

fn difference(now: Traffic, before: Traffic) -> Traffic {
    Traffic {
        messages: now.messages - before.messages,
        bytes: now.bytes - before.bytes,
    }
}

/// What an agent at rest sends and receives in as many looks and statuses as an hour has: PINGs are
/// not counted by the library, but are few.
#[test]
fn an_hour_at_rest() {
    let Some(bed) = Bed::new(&["a", "b"]) else {
        return;
    };
    let mut settings = bed.settings("a");
    settings.pace = Timing {
        look: LOOK,
        status: Duration::from_millis(1),
        ping: Duration::from_secs(600),
        ..QUICK
    };
    let a = Fleet::start(&settings).unwrap();
    connected(&a);
    let look = |after: Option<Instant>| {
        wait_for("a look", || a.state().looked.filter(|at| Some(*at) > after))
    };
    let mut last = look(None);
    let before = a.state();
    for number in 0..6 {
        a.offer_message(&Outgoing::Status(status("a"))).unwrap();
        wait_for("a status", || {
            Some(()).filter(|()| a.state().published == number + 1)
        });
        last = look(Some(last));
    }
    let after = a.state();
    let sent = difference(after.sent, before.sent);
    let received = difference(after.received, before.received);
    let load = Load {
        agents: 2.0,
        networks: 0.0,
        arms: 0.0,
        shards: 0.0,
        status: status("a").encode().unwrap().len() as f64,
    };
    let hour = load.agent_traffic();
    eprintln!("measured: {sent:?} {received:?}; formula: {hour:?}");
    // 42 lines of PING and PONG are not in what the library counts.
    let messages = (sent.messages + received.messages + 42) as f64;
    assert!(
        messages <= hour.messages() * 1.1 && messages <= 100.0,
        "{messages} {hour:?}"
    );
    // The library counts payloads that are sent twice.
    let bytes = (sent.bytes + received.bytes) as f64;
    assert!(
        bytes <= (hour.bytes() + 6.0 * load.status) * 1.2 && bytes <= 50_000.0,
        "{bytes}, {hour:?}"
    );
    assert!(bytes >= hour.bytes() * 0.6, "{bytes} {hour:?}");
}

/// Priors with this many networks in a shard.
fn many(agent: &str, shard: Shard, networks: u32) -> Priors {
    let one = priors(agent, shard.number(), 1 << 15);
    let arms = one.networks[0].arms.clone();
    let measured = |number| Measured {
        network: network(shard, number),
        age_s: 12_345,
        queue_q16: 23_456,
        arms: arms.clone(),
    };
    Priors {
        networks: (0..networks).map(measured).collect(),
        ..one
    }
}

/// User and system time of a process, and its memory, MB.
fn costs(process: &str) -> (Duration, f64) {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it works");
    let after_name = stat.rsplit_once(')').expect("it works").1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks: u64 =
        fields[11].parse::<u64>().expect("it works") + fields[12].parse::<u64>().expect("it works");
    let pages: f64 = fields[21].parse().expect("it works");
    (Duration::from_millis(ticks * 10), pages * 4096.0 / 1e6)
}

#[test]
#[ignore = "slow: 200 agents, for release builds"]
fn two_hundred_agents() {
    const AGENTS: usize = 200;
    const NETWORKS: u32 = 8;
    let names: Vec<String> = (0..AGENTS)
        .map(|number| format!("agent-{number}"))
        .collect();
    let texts: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some(mut bed) = Bed::new(&texts) else {
        return;
    };
    let pace = Timing {
        look: Duration::from_secs(5),
        timeout: Duration::from_secs(30),
        ping: Duration::from_secs(600),
        ..QUICK
    };
    let before = costs("self");
    let start = |agent: &&str| {
        let mut settings = bed.settings(agent);
        settings.pace = pace;
        Fleet::start(&settings).unwrap()
    };
    let begun = Instant::now();
    let fleet: Vec<Fleet> = texts.iter().map(start).collect();
    fleet.iter().for_each(|agent| drop(connected(agent)));
    let joined = begun.elapsed();
    let idle = costs("self");
    let shards: Vec<Vec<Priors>> = texts
        .iter()
        .map(|agent| {
            Shard::all()
                .map(|shard| many(agent, shard, NETWORKS))
                .collect()
        })
        .collect();
    let size = shards[0][0].encode().unwrap().len();
    let server = bed.servers[0].id().to_string();
    let (server_before, cpu_before) = (costs(&server), costs("self"));
    let first: Vec<_> = fleet.iter().map(Fleet::state).collect();
    let begun = Instant::now();
    for (agent, shards) in fleet.iter().zip(&shards) {
        for priors in shards {
            agent
                .offer_message(&Outgoing::Priors(priors.clone()))
                .unwrap();
        }
    }
    let expected = (AGENTS - 1) * 16;
    let mut heard = vec![0; AGENTS];
    while heard.iter().any(|heard| *heard < expected) {
        for (agent, heard) in fleet.iter().zip(&mut heard) {
            let taken = agent.take_messages(Duration::ZERO);
            *heard += taken
                .iter()
                .filter(|it| matches!(it, Incoming::Priors { .. }))
                .count();
        }
        let behind = heard.iter().filter(|heard| **heard < expected).count();
        assert!(
            begun.elapsed() < Duration::from_secs(300),
            "{behind} agents wait for more"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let spread = begun.elapsed();
    let (server_after, cpu_after) = (costs(&server), costs("self"));
    let states: Vec<_> = fleet.iter().map(Fleet::state).collect();
    let mean = |of: fn(&thalweg_fleet::State) -> u64| {
        let all = first
            .iter()
            .zip(&states)
            .map(|(first, last)| of(last) - of(first));
        all.sum::<u64>() as f64 / AGENTS as f64
    };
    let received = mean(|state| state.received.bytes);
    let load = Load {
        agents: AGENTS as f64,
        networks: f64::from(NETWORKS * 16),
        arms: 2.0,
        shards: 16.0,
        status: 0.0,
    };
    let hour = load.agent_traffic();
    eprintln!(
        "joined in {joined:?}; {:.2} MB an agent; a shard: {size} bytes, by the formula {:.0}",
        (idle.1 - before.1) / AGENTS as f64,
        load.shard_bytes()
    );
    eprintln!(
        "all shards heard by all after {spread:?}: {:.0} messages received an agent, {received:.0} bytes; formula: {:.0}, {:.0}",
        mean(|state| state.received.messages),
        hour.received,
        hour.received_bytes
    );
    eprintln!(
        "sent an agent: {:.0} messages, {:.0} bytes; formula {:.0}, {:.0}",
        mean(|state| state.sent.messages),
        mean(|state| state.sent.bytes),
        hour.sent,
        hour.sent_bytes
    );
    eprintln!(
        "server: {:?} of processor, {:.0} MB; an agent: {:?} of processor",
        server_after.0 - server_before.0,
        server_after.1,
        (cpu_after.0 - cpu_before.0) / AGENTS as u32
    );
    let faults: Vec<_> = states
        .iter()
        .filter(|state| !state.faults.is_empty())
        .collect();
    assert!(faults.is_empty(), "{faults:?}");
    let ratio = received / hour.received_bytes;
    assert!((0.75..1.33).contains(&ratio), "{ratio}");

    // At rest: as many looks as an hour has.
    let first = states;
    let looks = |after: &[thalweg_fleet::State]| {
        for (agent, before) in fleet.iter().zip(after) {
            wait_for("a look", || {
                agent.state().looked.filter(|at| Some(*at) > before.looked)
            });
        }
    };
    let rest = Instant::now();
    let cpu = costs("self");
    let mut last = first.clone();
    for _ in 0..3 {
        looks(&last);
        last = fleet.iter().map(Fleet::state).collect();
    }
    let bytes = |states: &[thalweg_fleet::State]| {
        states
            .iter()
            .map(|it| it.sent.bytes + it.received.bytes)
            .sum::<u64>()
    };
    let per_agent = (bytes(&last) - bytes(&first)) as f64 / AGENTS as f64;
    let share =
        (costs("self").0 - cpu.0).as_secs_f64() / rest.elapsed().as_secs_f64() / AGENTS as f64;
    eprintln!(
        "at rest, 3 or 4 looks: {per_agent:.0} bytes an agent, {:.3} % of a processor (a look every 5 s)",
        share * 100.0
    );
    bed.servers[0].kill();
}
