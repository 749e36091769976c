//! Initial windows on a small model of slow start: what the learner chooses, and what that costs.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use thalweg_learner::{
    Decision, End, Host, Level, Params, Sample, WORTH_OF_GROUP_Q16, adopt_wider, best_arm,
    can_decide, decide_group, score_group, window,
};

const SECOND_NS: u64 = 1_000_000_000;
const MSS: u32 = 1448;
/// Sizes of transfers, equally far apart in their logarithm.
const KILOBYTES: [u32; 10] = [30, 37, 46, 56, 70, 86, 106, 131, 162, 200];
/// The windows that the operator permits.
const SET: [u32; 4] = [10, 16, 24, 32];
/// Number of worlds for statements about chance; without optimisation they take long.
const SEEDS: u64 = if cfg!(debug_assertions) { 10 } else { 100 };
/// Within so many connections the best window is to be found.
const FOUND: usize = 3000;
/// So many connections are under way at a time: they were decided before the last ones were scored.
const UNDER_WAY: usize = 20;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn u32(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 32) as u32
    }

    fn unit(&mut self) -> f64 {
        (f64::from(self.u32()) + 0.5) / 2f64.powi(32)
    }
}

/// A bottleneck on the way to many hosts.
#[derive(Clone, Copy)]
struct Path {
    /// Segments per second.
    rate: f64,
    /// Round-trip time without a queue, seconds.
    rtt: f64,
    /// Segments that fit its buffer.
    buffer: f64,
    /// Whether the sender paces what exceeds ten segments (Linux: at twice the window in a round
    /// trip); else the first flight is a burst.
    paced: bool,
}

/// 20 Mbit/s and 50 ms, with a buffer of `segments`.
fn path(segments: u32, paced: bool) -> Path {
    Path {
        rate: 20e6 / 8.0 / 1514.0,
        rtt: 0.05,
        buffer: segments.into(),
        paced,
    }
}

impl Path {
    /// The longest queue that a flight causes: its own segments that have not left yet.
    fn queue(&self, flight: u32, is_first: bool, doubles: bool) -> f64 {
        let flight = f64::from(flight);
        let standing = flight - self.rate * self.rtt;
        let paced = |segs: f64| segs * (1.0 - self.rate * self.rtt / (2.0 * flight)).max(0.0);
        let burst = match (is_first, doubles) {
            (true, _) if self.paced => flight.min(10.0) + paced((flight - 10.0).max(0.0)),
            (true, _) => flight,
            // Each ACK releases two segments, at twice the rate of the bottleneck.
            (_, true) if self.paced => paced(flight),
            (_, true) => flight / 2.0,
            (_, false) => 0.0,
        };
        burst.max(standing)
    }

    /// One transfer with an initial window: slow start, one recovery for each flight with losses.
    fn transfer(&self, window: u32, bytes: u32, random: &mut Random) -> Sample {
        let (mut left, mut cwnd) = (bytes.div_ceil(MSS), window);
        let (mut seconds, mut segs_out, mut retrans) = (0.0, 0, 0);
        let (mut is_first, mut doubles) = (true, true);
        // Others fill up to a third of the buffer, and delay by it.
        let others = self.buffer.min(60.0) / 3.0 * random.unit().powi(2);
        let rtt = self.rtt + others / self.rate + 0.002 * random.unit();
        while left > 0 {
            let flight = cwnd.min(left);
            let queue = self.queue(flight, is_first, doubles);
            let overflow = (queue + others - self.buffer).max(0.0) as u32;
            let stray = u32::from(random.unit() < 2e-4 * f64::from(flight));
            let lost = (overflow + stray).min(flight);
            left -= flight;
            segs_out += flight + lost;
            retrans += lost;
            seconds += match left {
                // The last of the flight waits for the others.
                0 => rtt + queue.min(self.buffer) / self.rate,
                _ => rtt.max(f64::from(flight) / self.rate),
            };
            if lost > 0 {
                // A probe after two round trips shows that the end of a transfer was lost; elsewhere
                // the next segments do.
                seconds += if left == 0 { 3.0 } else { 1.0 } * rtt;
                (cwnd, doubles) = ((flight / 2).max(2), false);
            } else if doubles {
                cwnd += flight;
            }
            is_first = false;
        }
        Sample {
            bytes: bytes.into(),
            duration_us: (seconds * 1e6) as u64,
            rate_delivered_bytes: 0,
            rate_interval_us: 0,
            srtt_us: (rtt * 1e6) as u32,
            min_rtt_us: (rtt * 1e6) as u32,
            segs_out,
            retrans,
            steady_segs: segs_out,
            steady_retrans: retrans,
            loss_srtt_us: 0,
            limited_us: 0,
            busy_time: true,
            end: End::FinLocal,
        }
    }
}

/// Records of a connection's groups as the kernel keeps them, the widest first.
struct World {
    records: Vec<Host>,
    windows: u16,
    params: Params,
    random: Random,
    now_ns: u64,
    under_way: VecDeque<(usize, Sample)>,
    samples: Vec<(usize, Sample)>,
}

fn mask(windows: &[u32]) -> u16 {
    let arms = windows
        .iter()
        .filter_map(|&segments| window::window_arm(segments));
    arms.fold(0, |mask, arm| mask | 1 << arm)
}

impl World {
    fn new(seed: u64, windows: &[u32]) -> Self {
        let levels = [
            Level::WindowNamespace,
            Level::WindowService,
            Level::WindowPrefix,
        ];
        let record = |level| Host {
            level,
            ..Host::default()
        };
        Self {
            records: levels.map(record).into(),
            windows: mask(windows),
            params: Params::default(),
            random: Random(seed),
            now_ns: SECOND_NS,
            under_way: VecDeque::new(),
            samples: Vec::new(),
        }
    }

    /// The narrowest record that knows decides.
    fn decide(&mut self) -> Option<Decision> {
        let random = self.random.u32();
        self.records.iter_mut().rev().find_map(|group| {
            let allowed = window::permitted_windows(group, self.windows);
            decide_group(
                group,
                Some(window::OWN),
                allowed,
                &self.params,
                random,
                self.now_ns,
            )
        })
    }

    /// Tells all records of a connection that is over.
    fn score(&mut self, arm: usize, sample: &Sample) {
        let Some((report, sample)) = window::window_report(sample) else {
            return;
        };
        let mut wider: Option<Host> = None;
        for group in &mut self.records {
            let own = Some(window::OWN);
            score_group(group, arm, own, &report, &sample, &self.params, self.now_ns);
            window::step_window(group, self.windows);
            if let Some(wider) = &wider {
                adopt_wider(group, wider, own, &WORTH_OF_GROUP_Q16);
                window::start_from_wider(group, wider);
            }
            if can_decide(group, own) {
                wider = Some(group.clone());
            }
        }
    }

    fn connect(&mut self, path: &Path) {
        self.now_ns += SECOND_NS / 4;
        let arm = self
            .decide()
            .and_then(|decision| decision.arm)
            .unwrap_or(window::OWN);
        let bytes = KILOBYTES[self.random.u32() as usize % KILOBYTES.len()] * 1000;
        let sample = path.transfer(window::arm_segments(arm), bytes, &mut self.random);
        self.samples.push((arm, sample));
        self.under_way.push_back((arm, sample));
        if self.under_way.len() > UNDER_WAY
            && let Some((arm, sample)) = self.under_way.pop_front()
        {
            self.score(arm, &sample);
        }
    }

    fn run(&mut self, path: &Path, connections: usize) {
        for _ in 0..connections {
            self.connect(path);
        }
    }

    fn narrowest(&self) -> &Host {
        &self.records[self.records.len() - 1]
    }

    /// The window that most connections get.
    fn best(&self) -> u32 {
        let allowed = window::permitted_windows(self.narrowest(), self.windows);
        window::arm_segments(
            best_arm(self.narrowest(), Some(window::OWN), allowed, &self.params)
                .unwrap_or(window::OWN),
        )
    }
}

fn percent_retransmitted(samples: &[(usize, Sample)]) -> f64 {
    let sum = |of: fn(&Sample) -> u32| samples.iter().map(|(_, s)| f64::from(of(s))).sum::<f64>();
    100.0 * sum(|sample| sample.retrans) / sum(|sample| sample.segs_out)
}

/// A part of all transfers takes at most this time, ms.
fn within_ms(samples: &[(usize, Sample)], part: f64) -> f64 {
    let mut all: Vec<u64> = samples.iter().map(|(_, s)| s.duration_us).collect();
    all.sort_unstable();
    all[((all.len() - 1) as f64 * part) as usize] as f64 / 1e3
}

/// What all worlds of a path have to say, by seed: the best window found, and the connections before
/// and after; and those of worlds with the kernel's own window.
struct Outcome {
    best: Vec<u32>,
    learning: Vec<(usize, Sample)>,
    learned: Vec<(usize, Sample)>,
    own: Vec<(usize, Sample)>,
}

fn outcome(path: &Path) -> Outcome {
    let mut all = Outcome {
        best: Vec::new(),
        learning: Vec::new(),
        learned: Vec::new(),
        own: Vec::new(),
    };
    for seed in 0..SEEDS {
        let mut world = World::new(seed, &SET);
        world.run(path, FOUND);
        all.best.push(world.best());
        all.learning.append(&mut world.samples);
        world.run(path, FOUND);
        all.learned.append(&mut world.samples);
        let mut fixed = World::new(seed + SEEDS, &[10]);
        fixed.run(path, FOUND);
        all.own.append(&mut fixed.samples);
    }
    all
}

#[test]
fn a_deep_buffer_gets_a_large_window() {
    for paced in [true, false] {
        let all = outcome(&path(165, paced));
        let found = all.best.iter().filter(|&&best| best >= 24).count();
        let times = |part| within_ms(&all.learned, part) / within_ms(&all.own, part);
        let (median, p99) = (times(0.5), times(0.99));
        println!("paced {paced}: {found} of {SEEDS}, median {median:.3}, 99th percentile {p99:.3}");
        assert!(found as u64 * 100 >= SEEDS * 98, "{:?}", all.best);
        assert!(median <= 0.8, "median {median}");
        assert!(p99 <= 1.0, "99th percentile {p99}");
    }
}

#[test]
fn a_small_buffer_is_spared() {
    for (buffer, paced) in [
        (12, false),
        (20, false),
        (20, true),
        (30, false),
        (40, false),
    ] {
        let all = outcome(&path(buffer, paced));
        let own = percent_retransmitted(&all.own);
        let median = within_ms(&all.learned, 0.5) / within_ms(&all.own, 0.5);
        let [learning, learned] = [&all.learning, &all.learned].map(|s| percent_retransmitted(s));
        println!(
            "{buffer} segments, paced {paced}: median {median:.3}, retransmitted {learning:.2} % and \
             {learned:.2} % instead of {own:.2} %"
        );
        assert!(median <= 1.02, "median {median}");
        assert!(learning <= own + 0.3, "{learning} % instead of {own} %");
        assert!(learned <= own + 0.3, "{learned} % instead of {own} %");
    }
}

#[test]
fn a_window_that_overflows_a_buffer_is_left() {
    // A first flight of 24 segments overflows it, one of 16 hardly.
    for seed in 0..SEEDS {
        let mut world = World::new(seed, &SET);
        world.run(&path(20, false), 2 * FOUND);
        assert!(world.best() <= 16, "seed {seed}: {}", world.best());
    }
}

#[test]
fn a_window_that_causes_no_losses_stays() {
    for seed in 0..SEEDS.div_ceil(5) {
        let mut world = World::new(seed, &SET);
        let path = path(165, true);
        world.run(&path, 2 * FOUND);
        for _ in 0..30 {
            world.run(&path, 1000);
            for record in &world.records {
                let step = window::arm_segments(record.step as usize);
                assert_eq!(
                    step, 32,
                    "seed {seed}: {:?}, {}",
                    record.level, record.scored
                );
            }
        }
    }
}

#[test]
fn a_path_that_becomes_shallow_is_noticed() {
    for seed in 0..SEEDS / 5 {
        let mut world = World::new(seed, &SET);
        world.run(&path(165, false), 10_000);
        let before = world.narrowest().step;
        assert!(
            before >= window::window_arm(24).unwrap() as u32,
            "seed {seed}"
        );
        world.run(&path(20, false), 1000);
        for record in &world.records {
            assert!(record.step < before, "seed {seed}: {:?}", record.level);
        }
        // … and becomes deep again.
        world.run(&path(165, false), 2 * FOUND);
        assert!(world.best() >= 24, "seed {seed}: {}", world.best());
    }
}

/// Without losses, too: the step stays where the largest window takes longer than another.
#[test]
fn no_step_beyond_a_window_that_is_not_the_best() {
    for (slowed, steps) in [(0, 3), (20_000, 2)] {
        let mut world = World::new(1, &[10, 12, 14, 16]);
        let sample = path(165, true).transfer(10, 100_000, &mut Random(1));
        for number in 0..5000 {
            let arm = number % (world.narrowest().step as usize + 1);
            let gained = sample.duration_us - 10_000 * arm as u64;
            let duration_us = gained + if arm == 2 { slowed } else { 0 };
            world.now_ns += SECOND_NS / 4;
            world.score(
                arm,
                &Sample {
                    duration_us,
                    ..sample
                },
            );
        }
        for record in &world.records {
            assert_eq!(record.step, steps, "{:?}", record.level);
        }
    }
}

#[test]
fn nothing_known_is_the_kernels_own() {
    let mut world = World::new(1, &SET);
    assert!(world.decide().is_none());
    assert_eq!(window::arm_segments(window::OWN), 10);
    // A record permits no other one before its first step.
    assert_eq!(
        window::permitted_windows(world.narrowest(), world.windows),
        1
    );
    world.run(&path(165, true), 100);
    assert!(world.samples.iter().all(|&(arm, _)| arm == window::OWN));
}

#[test]
fn a_set_of_one_changes_nothing() {
    let mut world = World::new(1, &[10]);
    world.run(&path(165, true), 10_000);
    assert!(world.samples.iter().all(|&(arm, _)| arm == window::OWN));
    for record in &world.records {
        assert_eq!((record.step, record.step_scored), (0, 0));
    }
}

#[test]
fn windows_have_arms() {
    let arms: Vec<_> = (0..=40).filter_map(window::window_arm).collect();
    assert_eq!(arms, (0..window::COUNT).collect::<Vec<_>>());
    assert_eq!(window::window_arm(window::MOST), Some(window::COUNT - 1));
    for arm in arms {
        assert_eq!(window::window_arm(window::arm_segments(arm)), Some(arm));
    }
}

#[test]
fn samples_that_tell_nothing() {
    let full = path(165, true).transfer(10, 100_000, &mut Random(1));
    let (report, sample) = window::window_report(&full).unwrap();
    assert_eq!(
        (sample.steady_segs, sample.steady_retrans),
        (full.segs_out, full.retrans)
    );
    assert!(report.system_q16 > 0 && report.weight_q16 > 0);
    let none = |change: fn(&mut Sample)| {
        let mut sample = full;
        change(&mut sample);
        assert_eq!(window::window_report(&sample), None, "{sample:?}");
    };
    none(|sample| sample.segs_out = sample.retrans + 10);
    none(|sample| sample.retrans = sample.segs_out + 1);
    none(|sample| sample.bytes = 256 * 1024 + 1);
    none(|sample| sample.min_rtt_us = 0);
    none(|sample| sample.duration_us = 0);
    none(|sample| sample.end = End::Timeout);
    none(|sample| sample.end = End::Switch);
    none(|sample| sample.end = End::Stretch);
}

/// The same cases in every run.
fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 48,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever the set and the path: no window outside of the set, one step at a time, and none up
    /// within 1,000 measurements of the last, or 128 of the record's first.
    #[test]
    fn steps_are_rare_and_within_the_set(
        seed: u64,
        windows in 0u16..1 << window::COUNT,
        buffer in 5u32..200,
        paced: bool,
    ) {
        let mut world = World::new(seed, &[10]);
        world.windows = windows | 1;
        let path = path(buffer, paced);
        let mut before: Vec<(u32, u32)> = vec![(0, 0); world.records.len()];
        let mut changed = vec![None; world.records.len()];
        for _ in 0..5000 {
            world.connect(&path);
            let (arm, _) = *world.samples.last().unwrap();
            prop_assert!(world.windows >> arm & 1 != 0, "window {}", window::arm_segments(arm));
            for (i, record) in world.records.iter().enumerate() {
                let (step, scored) = before[i];
                if record.step != step {
                    prop_assert!(world.windows >> record.step & 1 != 0, "step {}", record.step);
                    let between = world.windows >> (step + 1) & ((1 << record.step.saturating_sub(step + 1)) - 1);
                    // A new record begins where the wider one is.
                    if record.step > step && record.scored > 1 {
                        prop_assert!(between == 0, "from {step} to {}", record.step);
                        let wait = changed[i].map_or(128, |_| 1000);
                        let since = record.scored - changed[i].unwrap_or(0);
                        prop_assert!(since >= wait, "{since} measurements after {scored}");
                    }
                    changed[i] = Some(record.scored);
                }
                before[i] = (record.step, record.scored);
            }
        }
    }
}
