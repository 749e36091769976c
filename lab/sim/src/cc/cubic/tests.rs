//! Windows computed by hand from RFC 9438.

use super::*;

fn sample(acked: u32, rtt_us: u32) -> Event {
    Event::Ack(Sample {
        prior_delivered: 0,
        rtt_us: Some(rtt_us),
        is_ack_delayed: false,
        is_app_limited: false,
        acked_sacked: acked,
        losses: 0,
        is_una_advanced: true,
    })
}

/// A flow with this window, fully used, of 1448-byte segments.
fn flow(set: Parameters, cwnd: u32) -> (Cubic, Socket) {
    let mut cubic = Cubic::new(&set);
    let mut socket = Socket {
        tcp_mstamp: 10_000_000,
        mss_cache: 1448,
        srtt_us: 100_000 << 3,
        snd_cwnd: cwnd,
        snd_ssthresh: INFINITE_SSTHRESH,
        is_cwnd_limited: true,
        snd_nxt: cwnd,
        ..Socket::default()
    };
    cubic.on_tcp(&Event::Init, &mut socket);
    (cubic, socket)
}

/// A loss, its repair, and the first ACK after that.
fn lose(cubic: &mut Cubic, socket: &mut Socket) {
    socket.ca_state = CaState::Recovery;
    cubic.on_tcp(&Event::Recovery, socket);
    socket.ca_state = CaState::Open;
    cubic.on_tcp(&Event::Open, socket);
}

#[test]
fn a_loss_leaves_seven_tenths() {
    let (mut cubic, mut socket) = flow(Parameters::default(), 100);
    lose(&mut cubic, &mut socket);
    assert_eq!((socket.snd_cwnd, socket.snd_ssthresh), (70, 70));
    assert_eq!(cubic.last_max, 100.0);
    // Fast convergence: a loss below the last maximum leaves (1 + 0.7) / 2 of 70 as the next.
    lose(&mut cubic, &mut socket);
    assert_eq!(socket.snd_cwnd, 49);
    assert_eq!(cubic.last_max, 59.5);
    let set = Parameters {
        fast_convergence: false,
        ..Parameters::default()
    };
    let (mut cubic, mut socket) = flow(set, 100);
    lose(&mut cubic, &mut socket);
    lose(&mut cubic, &mut socket);
    assert_eq!(cubic.last_max, 70.0);
}

/// W(t) = 0.4 (t − K)³ + 100 with K = ∛(30 / 0.4) = 4.217 s after a loss at 100 segments.
#[test]
fn the_window_follows_the_cubic_function() {
    let (mut cubic, mut socket) = flow(Parameters::default(), 100);
    lose(&mut cubic, &mut socket);
    let start_us = socket.tcp_mstamp;
    // A window acknowledged each 100 ms, segment by segment. Reno would have 70 + 0.529 a round
    // trip: 91 after 4 s.
    let mut found = Vec::new();
    for round in 0..80u64 {
        for _ in 0..socket.snd_cwnd {
            cubic.on_tcp(&sample(1, 100_000), &mut socket);
        }
        if [20, 42, 70].contains(&round) {
            found.push(socket.snd_cwnd);
        }
        socket.tcp_mstamp = start_us + (round + 1) * 100_000;
    }
    assert!((cubic.k - 4.217).abs() < 1e-3, "{}", cubic.k);
    // W(2.1 s) = 0.4 (−2.117)³ + 100 = 96.2; W(4.3 s) = 100.0; W(7.1 s) = 0.4 · 2.883³ + 100 =
    // 109.6. A window is one round trip late, and not more than a segment off.
    for (found, expected) in found.iter().zip([96.2, 100.0, 109.6]) {
        assert!(
            (f64::from(*found) - expected).abs() <= 1.2,
            "{found}, {expected}"
        );
    }
}

/// With 10 segments and 10 ms the cubic function takes ∛(3 / 0.4) = 1.96 s back to 10 segments.
/// Reno's 3 · 0.3 / 1.7 = 0.529 segments a round trip take 57 ms.
#[test]
fn a_small_window_grows_as_renos() {
    let (mut cubic, mut socket) = flow(Parameters::default(), 10);
    lose(&mut cubic, &mut socket);
    assert_eq!(socket.snd_cwnd, 7);
    for _ in 0..12 {
        for _ in 0..socket.snd_cwnd {
            cubic.on_tcp(&sample(1, 10_000), &mut socket);
        }
        socket.tcp_mstamp += 10_000;
    }
    // 12 round trips: at most 7 + 12 · 0.529 = 13.3, less the lag of whole segments.
    assert!((12..=13).contains(&socket.snd_cwnd), "{}", socket.snd_cwnd);
}

#[test]
fn an_unused_window_does_not_grow() {
    let (mut cubic, mut socket) = flow(Parameters::default(), 10);
    socket.is_cwnd_limited = false;
    socket.max_packets_out = 5;
    cubic.on_tcp(&sample(2, 100_000), &mut socket);
    assert_eq!(socket.snd_cwnd, 10);
    socket.max_packets_out = 6;
    cubic.on_tcp(&sample(2, 100_000), &mut socket);
    assert_eq!(socket.snd_cwnd, 12);
}

#[test]
fn hystart_ends_slow_start_by_delay() {
    let (mut cubic, mut socket) = flow(Parameters::default(), 20);
    let mut ack = |rtt_us, pause_us| {
        socket.tcp_mstamp += pause_us;
        cubic.on_tcp(&sample(1, rtt_us), &mut socket);
        socket.snd_ssthresh == INFINITE_SSTHRESH
    };
    // Far apart, so that there is no train. The bound is 100 ms and an eighth of it.
    assert!(ack(100_000, 5_000));
    for _ in 0..20 {
        assert!(ack(112_000, 5_000));
    }
    // A new round whose shortest round trip is above it, once eight are known.
    socket.snd_una = socket.snd_nxt + 1;
    socket.snd_nxt += 100;
    let mut ended = None;
    for number in 1..=20 {
        socket.tcp_mstamp += 5_000;
        cubic.on_tcp(&sample(1, 113_000), &mut socket);
        if socket.snd_ssthresh != INFINITE_SSTHRESH {
            ended.get_or_insert(number);
        }
    }
    assert_eq!(ended, Some(9));
}

#[test]
fn hystart_ends_slow_start_by_ack_trains() {
    let set = Parameters::default();
    for (hystart, ends) in [(true, true), (false, false)] {
        let set = Parameters {
            hystart,
            ..set.clone()
        };
        let (mut cubic, mut socket) = flow(set, 20);
        // ACKs of a millisecond each: half of 100 ms and of a burst's time make a train.
        for _ in 0..45 {
            socket.tcp_mstamp += 1_000;
            cubic.on_tcp(&sample(1, 100_000), &mut socket);
        }
        assert_eq!(socket.snd_ssthresh, INFINITE_SSTHRESH);
        for _ in 0..10 {
            socket.tcp_mstamp += 1_000;
            cubic.on_tcp(&sample(1, 100_000), &mut socket);
        }
        assert_eq!(socket.snd_ssthresh != INFINITE_SSTHRESH, ends);
    }
}

#[test]
fn a_time_out_forgets_the_maximum() {
    let (mut cubic, mut socket) = flow(Parameters::default(), 100);
    socket.ca_state = CaState::Loss;
    cubic.on_tcp(&Event::Loss, &mut socket);
    assert_eq!((socket.snd_ssthresh, cubic.last_max), (70, 0.0));
    socket.snd_cwnd = 1;
    cubic.on_tcp(&sample(1, 100_000), &mut socket);
    assert_eq!(socket.snd_cwnd, 2, "slow start");
}

#[test]
fn a_pause_does_not_count() {
    let (mut cubic, mut socket) = flow(Parameters::default(), 100);
    lose(&mut cubic, &mut socket);
    cubic.on_tcp(&sample(1, 100_000), &mut socket);
    let epoch_us = cubic.epoch_us.unwrap();
    socket.tcp_mstamp += 150_000;
    cubic.on_tcp(&Event::TxStart { idle_us: 150_000 }, &mut socket);
    assert_eq!(cubic.epoch_us, Some(epoch_us + 150_000));
    assert_eq!(socket.snd_cwnd, 70, "shorter than a time-out");
}
