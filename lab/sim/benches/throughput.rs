//! Speed of the simulator: packets a second by number of flows, and the gain from a second thread.
//! A small neural network decides at each probe response.
//!
//! `cargo bench -p thalweg-sim --bench throughput -- [FLOWS…]` prints the median and the best of
//! five runs for each number of flows. Runs with the network in floating point and in 8-bit
//! integers alternate. Without numbers it takes 64, 512, 2048 and 8192 flows. It then adds the peak
//! memory of a process with the last number, and the runs on two threads. Packets are counted per
//! second of processor time, so that other load on the machine matters less. Wall time stands
//! beside it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use thalweg_report::sample::nearest_rank;
use thalweg_sim::cc::learned::{Inference, Learned, Model, Options};
use thalweg_sim::scenario::{Topology, Workload};
use thalweg_sim::{Outcome, Scenario, Simulation, Time};

/// Runs of each number of flows.
const ROUNDS: usize = 5;
/// Argument with which the program runs one scenario and prints its peak memory.
const MEMORY: &str = "--memory-of";

/// Arithmetic of the network, and its name in the rows.
const INFERENCES: [(Inference, &str); 2] = [(Inference::Float, "float"), (Inference::Int8, "int8")];

/// The trained network, 4-12-12-1.
const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/adpg-strict.safetensors"
);

/// Many flows to one, 100 Gbit/s, links of 1 µs; queues do not mark.
const SCENARIO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../scenarios/sim/many-to-one-64.toml"
);

fn many_to_one(flows: u32, duration: Time) -> Scenario {
    let mut scenario = Scenario::load(Path::new(SCENARIO)).expect("a scenario of this repository");
    let senders = flows.min(64);
    scenario.duration = duration;
    scenario.warmup = Time::from_ps(duration.ps() / 4);
    scenario.topology = Topology::Star { hosts: senders + 1 };
    scenario.network.ecn = None;
    scenario.hosts.timeout = Time::from_us(4_000);
    scenario.workload = Workload::ManyToOne { senders, flows };
    scenario
}

fn run(flows: u32, duration: Time, seed: u64, inference: Inference) -> Outcome {
    let options = Options {
        inference: Some(inference),
        initial_fraction: 1.0 / f64::from(flows),
        ..Options::default()
    };
    let model =
        Arc::new(Model::read(Path::new(MODEL), options).expect("a model of this repository"));
    Simulation::new(
        &many_to_one(flows, duration),
        move |_, _| Learned::new(Arc::clone(&model)),
        seed,
    )
    .run()
}

/// Processor time of this thread in user mode, seconds.
fn user_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("a thread may ask about itself");
    let time = usage.user_time();
    time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6
}

/// Minimum and median.
fn least_and_median(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[0], nearest_rank(&values, 0.5))
}

fn table(flows: &[u32]) {
    println!("2 simulated seconds at 100 Gbit/s, packets of 1 KiB, one decision an answer;");
    println!("packets and events per second of processor time, {ROUNDS} runs");
    println!(
        "flows         wall s  user s  Mpackets/s  (best)  Mevents/s  Mdecisions   SU %   FR %   QL us  \
         loss %  ns/packet"
    );
    let rows: Vec<_> = INFERENCES
        .into_iter()
        .flat_map(|(inference, name)| flows.iter().map(move |flows| (*flows, inference, name)))
        .collect();
    let mut times = vec![(Vec::new(), Vec::new()); rows.len()];
    let mut outcomes = Vec::new();
    for round in 0..ROUNDS {
        for ((flows, inference, _), (walls, users)) in rows.iter().zip(&mut times) {
            let (begin, user) = (Instant::now(), user_seconds());
            let outcome = run(*flows, Time::from_us(2_000_000), 1, *inference);
            users.push(user_seconds() - user);
            walls.push(begin.elapsed().as_secs_f64());
            if round == 0 {
                outcomes.push(outcome);
            }
        }
    }
    let mut costs = Vec::new();
    for (((flows, _, name), (walls, users)), outcome) in rows.iter().zip(times).zip(&outcomes) {
        let (_, wall) = least_and_median(walls);
        let (best, user) = least_and_median(users);
        let counts = outcome.counts;
        let packets = counts.sent_packets as f64;
        costs.push(best / packets);
        println!(
            "{flows:5} {name:5} {wall:8.2} {user:7.2} {:11.2} {:7.2} {:10.2} {:11.2} {:6.2} \
             {:6.2} {:7.2} {:7.3} {:10.1}",
            packets / user * 1e-6,
            packets / best * 1e-6,
            counts.events as f64 / user * 1e-6,
            counts.decisions as f64 * 1e-6,
            outcome.utilisation_percent,
            outcome.fairness_percent,
            outcome.queue_latency.mean_us,
            outcome.dropped_percent,
            user / packets * 1e9,
        );
    }
    for ((_, name), costs) in INFERENCES.iter().zip(costs.chunks(flows.len())) {
        if let [first, .., last] = costs {
            println!(
                "{name}: a packet of the last row costs {:.2} times one of the first (best of each)",
                last / first
            );
        }
    }
}

/// Peak memory of another process that runs this many flows, MB.
fn memory_mb(flows: u32) -> Option<f64> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new(program)
        .args([MEMORY, &flows.to_string()])
        .output()
        .ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Ratio of the wall times of two runs on two threads and one after the other, in turn.
fn threads() {
    let duration = Time::from_us(400_000);
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let alone = Instant::now();
        run(1024, duration, 1, Inference::Float);
        run(1024, duration, 2, Inference::Float);
        let alone = alone.elapsed().as_secs_f64();
        let together = Instant::now();
        std::thread::scope(|scope| {
            for seed in 1..=2 {
                scope.spawn(move || run(1024, duration, seed, Inference::Float));
            }
        });
        ratios.push(alone / together.elapsed().as_secs_f64());
    }
    let (_, median) = least_and_median(ratios);
    println!("two runs on two threads: {median:.2} times as fast as one after the other");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let asked: Vec<u32> = arguments
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect();
    if arguments.iter().any(|text| text == MEMORY) {
        for flows in asked {
            run(flows, Time::from_us(2_000_000), 1, Inference::Float);
        }
        let usage = getrusage(UsageWho::RUSAGE_SELF).expect("a process may ask about itself");
        println!("{:.1}", usage.max_rss() as f64 * 1024e-6);
        return;
    }
    if !asked.is_empty() {
        table(&asked);
        return;
    }
    table(&[64, 512, 2048, 8192]);
    match memory_mb(8192) {
        Some(megabytes) => println!("memory with 8192 flows: {megabytes} MB at most"),
        None => println!("memory with 8192 flows: not measured, the program cannot run itself"),
    }
    threads();
}
