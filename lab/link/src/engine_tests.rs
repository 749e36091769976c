//! The engine against theory, with a simulated clock.

use std::path::Path;

use thalweg_units::Size;

use super::*;

#[path = "engine_ack_tests.rs"]
mod acks;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const MTU: usize = 1500;

fn clean() -> Direction {
    Direction {
        ack_delay: Delay::ZERO,
        loss: Probability::ZERO,
        capacity: Capacity::Unlimited,
        queue_bytes: u64::MAX,
        ecn: None,
        aqm: None,
        delay: Delay::ZERO,
        jitter: Delay::ZERO,
        reorder: Probability::ZERO,
        seed: 1,
    }
}

fn limited(bps: u64, queue_bytes: u64) -> Direction {
    Direction {
        capacity: Capacity::Rate(Rate::from_bps(bps)),
        queue_bytes,
        ..clean()
    }
}

fn traced(text: &str) -> Direction {
    let trace = Trace::parse(text.as_bytes(), Path::new("trace")).unwrap();
    Direction {
        capacity: Capacity::Trace(Arc::new(trace)),
        ..clean()
    }
}

/// A packet that carries a number where no IP field is looked at.
fn numbered(number: u64, bytes: usize) -> Vec<u8> {
    let mut packet = vec![0; bytes];
    packet[..8].copy_from_slice(&number.to_le_bytes());
    packet
}

fn number(packet: &[u8]) -> u64 {
    u64::from_le_bytes(packet[..8].try_into().unwrap())
}

/// An IPv4 header with the ECN field and nothing else that matters.
fn with_ecn(ecn: u8, bytes: usize) -> Vec<u8> {
    let mut packet = vec![0; bytes];
    packet[0] = 0x45;
    packet[1] = ecn;
    packet
}

/// Everything that leaves, in the order and at the moments of leaving.
fn departures(engine: &mut Engine) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some(next_ns) = engine.next_departure_ns() {
        assert!(next_ns == 0 || engine.next_departure(next_ns - 1).is_none());
        let (ideal_ns, packet) = engine.next_departure(next_ns).unwrap();
        assert_eq!(ideal_ns, next_ns);
        all.push((ideal_ns, packet));
    }
    all
}

#[test]
fn the_delay_is_exact() {
    let mut engine = Engine::new(Direction {
        delay: Delay::from_us(20 * MS / 1000),
        ..clean()
    });
    for number in 0..100 {
        assert!(
            engine
                .packet_arrives(number * 7, numbered(number, 100))
                .is_none()
        );
    }
    let left = departures(&mut engine);
    for (index, (ns, packet)) in left.iter().enumerate() {
        assert_eq!(number(packet), index as u64);
        assert_eq!(*ns, index as u64 * 7 + 20 * MS);
    }
    assert_eq!(left.len(), 100);
}

#[test]
fn a_busy_link_sends_exactly_at_its_rate() {
    // 7 Mbit/s does not divide 12000 bits in whole nanoseconds.
    for bps in [7_000_000, 100_000_000, 1_000_000_000] {
        let mut engine = Engine::new(limited(bps, u64::MAX));
        let sizes = [1500usize, 40, 576, 1499];
        let mut bits = 0u128;
        for round in 0..20_000usize {
            let bytes = sizes[round % sizes.len()];
            bits += bytes as u128 * 8;
            assert!(engine.packet_arrives(0, vec![0; bytes]).is_none());
            let expected_ns = (bits * 1_000_000_000).div_ceil(u128::from(bps));
            assert_eq!(u128::from(engine.queue.back().unwrap().0), expected_ns);
        }
        let last_ns = departures(&mut engine).last().unwrap().0;
        let measured_bps = bits as f64 / (last_ns as f64 / 1e9);
        assert!((measured_bps / bps as f64 - 1.0).abs() < 1e-6);
    }
}

#[test]
fn an_offered_load_above_the_rate_is_cut_to_the_rate() {
    // 120 Mbit/s for 10 s into 100 Mbit/s with a queue of 100 packets.
    let mut engine = Engine::new(limited(100_000_000, 150_000));
    let gap_ns = 100_000;
    let mut bytes = 0;
    for number in 0..100_000u64 {
        let now_ns = number * gap_ns;
        while let Some((_, packet)) = engine.next_departure(now_ns) {
            bytes += packet.len() as u64;
        }
        engine.packet_arrives(now_ns, vec![0; MTU]);
    }
    let goodput_bps = bytes as f64 * 8.0 / 10.0;
    assert!((goodput_bps / 1e8 - 1.0).abs() < 1e-3, "{goodput_bps}");
    let counters = engine.counters();
    assert_eq!(counters.max_queue_bytes, 150_000);
    assert!(counters.dropped_queue > 16_000);
    assert_eq!(
        counters.received,
        counters.delivered + counters.dropped_queue + engine.flight.len() as u64
    );
}

#[test]
fn an_idle_link_does_not_save_up() {
    let mut engine = Engine::new(limited(12_000_000, u64::MAX));
    // One packet takes 1 ms.
    engine.packet_arrives(0, vec![0; MTU]);
    engine.packet_arrives(SECOND, vec![0; MTU]);
    engine.packet_arrives(SECOND, vec![0; MTU]);
    let moments: Vec<u64> = departures(&mut engine).iter().map(|(ns, _)| *ns).collect();
    assert_eq!(moments, [MS, SECOND + MS, SECOND + 2 * MS]);
}

#[test]
fn the_queue_limit_is_exact() {
    let mut engine = Engine::new(limited(12_000_000, 4500));
    for _ in 0..3 {
        assert!(engine.packet_arrives(0, vec![0; MTU]).is_none());
    }
    assert!(engine.packet_arrives(0, vec![0; 1]).is_some());
    assert!(engine.packet_arrives(MS - 1, vec![0; 1]).is_some());
    // The first has just been sent.
    assert!(engine.packet_arrives(MS, vec![0; MTU + 1]).is_some());
    assert!(engine.packet_arrives(MS, vec![0; MTU]).is_none());
    assert!(engine.packet_arrives(MS, vec![0; 1]).is_some());
    assert_eq!(engine.counters().dropped_queue, 4);
    assert_eq!(engine.counters().max_queue_bytes, 4500);
    assert_eq!(engine.counters().max_queue_us, 3000);
}

#[test]
fn loss_is_as_asked_within_its_confidence_bound() {
    for (text, probability) in [("1%", 0.01f64), ("30%", 0.3), ("0.1%", 0.001)] {
        for seed in 1..=5 {
            let packets = 200_000u64;
            let mut engine = Engine::new(Direction {
                loss: text.parse().unwrap(),
                seed,
                ..clean()
            });
            let mut both = 0u64;
            let mut before = false;
            for _ in 0..packets {
                let lost = engine.packet_arrives(0, vec![0; 20]).is_some();
                both += u64::from(lost && before);
                before = lost;
            }
            let lost = engine.counters().lost as f64;
            let (n, p) = (packets as f64, probability);
            // Five standard deviations: one run in two million fails by chance.
            let bound = 5.0 * (n * p * (1.0 - p)).sqrt();
            assert!(
                (lost - n * p).abs() < bound,
                "{text}, seed {seed}: {lost} lost"
            );
            // Independent: two in a row happen with p².
            let bound = 5.0 * (n * p * p).sqrt() + 1.0;
            assert!(
                (both as f64 - n * p * p).abs() < bound,
                "{text}, seed {seed}: {both} pairs"
            );
        }
    }
    for (probability, lost) in [(Probability::ZERO, 0), (Probability::ONE, 1000)] {
        let mut engine = Engine::new(Direction {
            loss: probability,
            ..clean()
        });
        (0..1000).for_each(|_| drop(engine.packet_arrives(0, vec![0; 20])));
        assert_eq!(engine.counters().lost, lost);
    }
}

#[test]
fn a_seed_repeats_itself_and_another_does_not() {
    let fates = |seed| -> Vec<bool> {
        let mut engine = Engine::new(Direction {
            loss: "50%".parse().unwrap(),
            seed,
            ..clean()
        });
        (0..64)
            .map(|_| engine.packet_arrives(0, vec![0; 20]).is_some())
            .collect()
    };
    assert_eq!(fates(1), fates(1));
    assert_ne!(fates(1), fates(2));
}

#[test]
fn jitter_keeps_the_order_and_its_bounds() {
    let mut engine = Engine::new(Direction {
        delay: Delay::from_us(20 * MS / 1000),
        jitter: Delay::from_us(5 * MS / 1000),
        ..clean()
    });
    // Far enough apart not to hold each other back, then close together.
    let apart = 1000;
    for index in 0..apart {
        engine.packet_arrives(index * 50 * MS, numbered(index, 100));
    }
    let close_from_ns = apart * 50 * MS;
    for index in apart..2 * apart {
        engine.packet_arrives(close_from_ns, numbered(index, 100));
    }
    let left = departures(&mut engine);
    let order: Vec<u64> = left.iter().map(|(_, packet)| number(packet)).collect();
    assert!(order.is_sorted());
    let delays: Vec<u64> = left[..apart as usize]
        .iter()
        .enumerate()
        .map(|(index, (ns, _))| ns - index as u64 * 50 * MS)
        .collect();
    assert!(delays.iter().all(|ns| (15 * MS..=25 * MS).contains(ns)));
    // Uniform over 10 ms: mean 20 ms with a standard error of 10/√12/√1000 ms.
    let mean = delays.iter().sum::<u64>() as f64 / apart as f64 / MS as f64;
    assert!((mean - 20.0).abs() < 5.0 * 0.0913, "{mean}");
    assert!(delays.iter().min() < Some(&(16 * MS)));
    assert!(delays.iter().max() > Some(&(24 * MS)));
}

#[test]
fn only_chosen_packets_overtake() {
    let packets = 10_000u64;
    let mut engine = Engine::new(Direction {
        delay: Delay::from_us(20 * MS / 1000),
        reorder: "10%".parse().unwrap(),
        ..clean()
    });
    for index in 0..packets {
        engine.packet_arrives(index * MS, numbered(index, 100));
    }
    let left = departures(&mut engine);
    let (early, late): (Vec<_>, Vec<_>) = left
        .iter()
        .map(|(ns, packet)| (*ns, number(packet)))
        .partition(|(ns, number)| *ns == number * MS);
    assert!(late.iter().all(|(ns, number)| *ns == (number + 20) * MS));
    assert!(late.is_sorted_by_key(|(_, number)| *number));
    // Five standard deviations of the binomial around 1000.
    assert!(early.len().abs_diff(1000) < 150, "{}", early.len());
    // The first packets may have had nobody to overtake.
    let counted = engine.counters().reordered as usize;
    assert!(early.len() - counted <= 1, "{counted} of {}", early.len());
}

#[test]
fn capable_packets_are_marked_above_the_threshold_only() {
    let by_bytes = Some(Threshold::Bytes(Size::from_bytes(3000)));
    // 3000 bytes at 12 Mbit/s are 2 ms.
    let by_time = Some(Threshold::Time(Delay::from_us(2 * MS / 1000)));
    for ecn in [by_bytes, by_time] {
        let mut engine = Engine::new(Direction {
            ecn,
            ..limited(12_000_000, 7500)
        });
        let fields = [0b10, 0b01, 0b10, 0b00, 0b01, 0b10];
        for field in fields {
            engine.packet_arrives(0, with_ecn(field, MTU));
        }
        // The sixth did not fit: marking does not replace dropping.
        assert_eq!(engine.counters().dropped_queue, 1);
        assert_eq!(engine.counters().marked, 2);
        let left: Vec<u8> = departures(&mut engine)
            .iter()
            .map(|(_, packet)| packet[1])
            .collect();
        assert_eq!(left, [0b10, 0b01, 0b11, 0b00, 0b11]);
        // The queue is empty again.
        engine.packet_arrives(SECOND, with_ecn(0b10, MTU));
        assert_eq!(engine.counters().marked, 2);
    }
}

#[test]
fn a_trace_lets_one_full_packet_leave_at_each_line() {
    let mut engine = Engine::new(traced("1\n1\n4\n10\n"));
    for index in 0..9 {
        engine.packet_arrives(0, numbered(index, MTU));
    }
    let moments: Vec<u64> = departures(&mut engine)
        .iter()
        .map(|(ns, _)| ns / MS)
        .collect();
    assert_eq!(moments, [1, 1, 4, 10, 11, 11, 14, 20, 21]);
}

#[test]
fn a_trace_delivers_its_number_of_packets_however_long_it_runs() {
    // 100 lines in 97 ms, several at once, for a hundred rounds.
    let text: String = (0..100).map(|n| format!("{}\n", 1 + n * 96 / 99)).collect();
    let mut engine = Engine::new(traced(&text));
    let end_ns = 100 * 97 * MS;
    let mut delivered = 0;
    let mut now_ns = 0;
    while now_ns <= end_ns {
        // Always at least 50 packets in the queue.
        engine.drain_tail_drop(now_ns);
        while engine.queue.len() < 50 {
            engine.packet_arrives(now_ns, vec![0; MTU]);
        }
        while engine.next_departure(now_ns).is_some() {
            delivered += 1;
        }
        now_ns += MS;
    }
    assert_eq!(delivered, 100 * 100);
}

#[test]
fn small_packets_share_an_opportunity_and_large_ones_need_several() {
    let mut engine = Engine::new(traced("10\n"));
    // Four of 372 bytes, each with its 4, fill one opportunity.
    for _ in 0..5 {
        engine.packet_arrives(0, vec![0; 372]);
    }
    engine.packet_arrives(0, vec![0; 1600]);
    let moments: Vec<u64> = departures(&mut engine)
        .iter()
        .map(|(ns, _)| ns / MS)
        .collect();
    // The last begins in what the fifth left of the second opportunity.
    assert_eq!(moments, [10, 10, 10, 10, 20, 30]);
}

#[test]
fn opportunities_that_nobody_used_are_gone() {
    let mut engine = Engine::new(traced("1\n2\n3\n"));
    engine.packet_arrives(0, vec![0; 96]);
    // Half of the first opportunity is left, but it is over.
    engine.packet_arrives(MS + 1, vec![0; MTU]);
    engine.packet_arrives(100 * MS, vec![0; MTU]);
    engine.packet_arrives(100 * MS + 1, vec![0; MTU]);
    let moments: Vec<u64> = departures(&mut engine)
        .iter()
        .map(|(ns, _)| ns / MS)
        .collect();
    assert_eq!(moments, [1, 2, 100, 101]);
}

#[test]
fn memory_is_bounded() {
    let mut engine = Engine::new(Direction {
        delay: Delay::from_us(60 * SECOND / 1000),
        ..clean()
    });
    let bytes = 64 << 20;
    for _ in 0..8 {
        assert!(engine.packet_arrives(0, vec![0; bytes]).is_none());
    }
    assert!(engine.packet_arrives(0, vec![0; 1]).is_some());
    assert_eq!(engine.counters().dropped_memory, 1);
    assert!(engine.next_departure(60 * SECOND).is_some());
    assert!(engine.packet_arrives(60 * SECOND, vec![0; 1]).is_none());
}

/// Arrivals at random moments, in bursts, of a few flows.
fn arrivals(seed: u64, count: u64, mean_gap_ns: u64) -> Vec<(u64, Vec<u8>)> {
    let mut now_ns = 0;
    let arrival = |number: u64| {
        let random = splitmix64(splitmix64(seed) ^ number);
        // One gap in four, four times as long.
        now_ns += if random & 3 == 0 {
            (random >> 2) % (8 * mean_gap_ns)
        } else {
            0
        };
        let mut packet = vec![0; 40 + (random >> 40) as usize % 1461];
        packet[0] = 0x45;
        packet[1] = (random >> 20) as u8 & 3;
        packet[9] = 17;
        packet[20..22].copy_from_slice(&((random >> 30) as u16 % 5).to_be_bytes());
        packet[28..36].copy_from_slice(&number.to_le_bytes());
        (now_ns, packet)
    };
    (0..count).map(arrival).collect()
}

/// What leaves, and when.
fn passed(direction: Direction, arrivals: &[(u64, Vec<u8>)]) -> (Vec<(u64, Vec<u8>)>, Counters) {
    let mut engine = Engine::new(direction);
    let mut left = Vec::new();
    for (now_ns, packet) in arrivals {
        left.extend(std::iter::from_fn(|| engine.next_departure(*now_ns)));
        engine.packet_arrives(*now_ns, packet.clone());
    }
    while let Some(next_ns) = engine.next_departure_ns() {
        left.extend(std::iter::from_fn(|| engine.next_departure(next_ns)));
    }
    (left, *engine.counters())
}

#[test]
fn a_codel_that_never_drops_is_first_in_first_out() {
    let hours = |hours: u64| Delay::from_us(hours * 3_600_000_000);
    let never = Aqm::Codel(crate::aqm::Control {
        target: hours(1),
        interval: hours(2),
    });
    for seed in 1..=20 {
        let arrivals = arrivals(seed, 400, MS);
        for plain in [limited(7_000_000, u64::MAX), traced("1\n1\n4\n9\n")] {
            let plain = Direction {
                delay: Delay::from_us(3_000),
                jitter: Delay::from_us(1_000),
                reorder: "10%".parse().unwrap(),
                loss: "5%".parse().unwrap(),
                seed,
                ..plain
            };
            let controlled = Direction {
                aqm: Some(never),
                ..plain.clone()
            };
            let (mut expected, before) = passed(plain, &arrivals);
            let (mut found, after) = passed(controlled, &arrivals);
            // Packets that leave at one moment may do so in either order.
            expected.sort();
            found.sort();
            assert_eq!(found, expected, "seed {seed}");
            assert_eq!(after.max_queue_us, before.max_queue_us);
            assert_eq!((after.dropped_early, after.marked), (0, 0));
        }
    }
}

#[test]
fn controlled_queues_lose_nothing_unseen_keep_flows_in_order_and_never_idle() {
    for seed in 1..=60u64 {
        // Up to three times the rate of 10 Mbit/s.
        let arrivals = arrivals(seed, 1500, 200_000 + splitmix64(seed) % 800_000);
        let names = [
            "codel,target=1ms,interval=10ms",
            "fq_codel",
            "fq_codel,flows=2,quantum=300B",
        ];
        for name in names {
            let direction = Direction {
                aqm: Some(name.parse().unwrap()),
                seed,
                ..limited(10_000_000, 20_000 + splitmix64(!seed) % 200_000)
            };
            let limit_bytes = direction.queue_bytes;
            let (left, counters) = passed(direction, &arrivals);
            let dropped = counters.dropped_queue + counters.dropped_early;
            assert_eq!(counters.received, 1500);
            assert_eq!(counters.delivered + dropped, 1500, "{name} {counters:?}");
            assert_eq!(left.len() as u64, counters.delivered);
            assert!(counters.max_queue_bytes <= limit_bytes + 1500);
            let (mut last, mut free_ns) = ([None; 5], 0);
            for (ns, packet) in &left {
                let number = u64::from_le_bytes(packet[28..36].try_into().unwrap());
                let flow = &mut last[usize::from(packet[21])];
                assert!(flow.replace(number).is_none_or(|before| before < number));
                // It began when the link was free, or later because it came later.
                let sending_ns = packet.len() as u64 * 800;
                let began_ns = ns - sending_ns;
                assert!(began_ns + 1 >= free_ns, "{name}: two packets at once");
                let idle = began_ns > free_ns + 1;
                let came_ns = arrivals[number as usize].0;
                assert!(
                    !idle || began_ns.abs_diff(came_ns) <= 1,
                    "{name}: idle with a queue"
                );
                free_ns = *ns;
            }
            assert!(left.iter().all(|(_, packet)| packet[1] <= 3));
        }
    }
}
