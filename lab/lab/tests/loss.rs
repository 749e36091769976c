//! The loss of a link's programs, rehearsed in the kernel without a link, and that of SYNs on links.
//! Without privilege each test says "skipped: why".

#![allow(clippy::unwrap_used)]

mod common;

use thalweg_lab::host::loss::{rehearse_frame, rehearse_loss};
use thalweg_lab::host::{Pair, PairOptions, Side, WireKind};
use thalweg_lab::scenario::{Family, GilbertElliott, PathModel};
use thalweg_lab::units::Probability;

fn percent(percent: f64) -> Probability {
    Probability::from_fraction(percent / 100.0).unwrap()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn bernoulli_loss_is_binomial_and_not_bursty() {
    if !common::possible() {
        return;
    }
    const PACKETS: u32 = 400_000;
    for (loss, seed) in [
        (0.0, 1),
        (0.1, 2),
        (5.0, 3),
        (10.0, 4),
        (50.0, 5),
        (100.0, 6),
    ] {
        let counters =
            rehearse_loss(&GilbertElliott::bernoulli(percent(loss)), seed, PACKETS).unwrap();
        assert_eq!(counters.seen_packets, u64::from(PACKETS));
        let p = loss / 100.0;
        // Five standard deviations: one seed in two million fails.
        let bound = 5.0 * (p * (1.0 - p) / f64::from(PACKETS)).sqrt();
        let measured = counters.loss_share().unwrap();
        assert!(
            (measured - p).abs() <= bound,
            "{loss}%: {measured} ± {bound}"
        );
        if (0.05..0.5).contains(&p) {
            // Runs of independent drops are geometric with mean 1/(1 - p).
            let mean = counters.mean_burst_packets().unwrap();
            assert!(
                (mean - 1.0 / (1.0 - p)).abs() < 0.02,
                "{loss}%: bursts of {mean}"
            );
        }
    }
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// An Ethernet frame with a TCP segment that has these flags.
fn tcp_frame(version: u8, flags: u8) -> Vec<u8> {
    let mut frame = vec![0; 14];
    if version == 4 {
        frame[12..].copy_from_slice(&[0x08, 0x00]);
        frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6]);
        frame.extend([0; 10]);
    } else {
        frame[12..].copy_from_slice(&[0x86, 0xdd]);
        frame.extend([0x60, 0, 0, 0, 0, 20, 6, 64]);
        frame.extend([0; 32]);
    }
    frame.extend([0; 13]);
    frame.extend([flags, 0, 0, 0, 0, 0, 0]);
    frame
}

/// Dropped packets, and the digest of the fates, by the formulas of splitmix64 and FNV-1a.
fn expected_fates(seed: u64, packets: u32, loss: Probability, syn_loss: Probability) -> (u64, u64) {
    let draw = |stream: u64, index: u64| {
        let mut z = stream.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) >> 32
    };
    (0..u64::from(packets)).fold((0, 0), |(dropped, digest), n| {
        let drop = u64::from(draw(seed, 2 * n + 1) < loss.q32() || draw(!seed, n) < syn_loss.q32());
        (
            dropped + drop,
            (digest ^ drop).wrapping_mul(0x100_0000_01b3),
        )
    })
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn syn_loss_meets_syns_alone_and_leaves_other_fates() {
    if !common::possible() {
        return;
    }
    const PACKETS: u32 = 200_000;
    let (loss, syn_loss, seed) = (percent(5.0), percent(30.0), 9);
    let chain = GilbertElliott::bernoulli(loss);
    let with_both = expected_fates(seed, PACKETS, loss, syn_loss);
    let without = expected_fates(seed, PACKETS, loss, Probability::ZERO);
    // 1 − 0.95 · 0.7, within five standard deviations.
    let share = with_both.0 as f64 / f64::from(PACKETS);
    assert!((share - 0.335).abs() < 0.0053, "{share}");
    for version in [4, 6] {
        for (flags, expected) in [
            (SYN, with_both),
            // With the flags of ECN (RFC 3168).
            (SYN | 0xc0, with_both),
            (SYN | ACK, without),
            (ACK, without),
            (0, without),
        ] {
            let frame = tcp_frame(version, flags);
            let counters = rehearse_frame(&frame, &chain, syn_loss, seed, PACKETS).unwrap();
            let found = (counters.dropped_packets, counters.digest);
            assert_eq!(found, expected, "IPv{version}, flags {flags:#x}");
        }
    }
    // No TCP, and too short for it.
    let mut datagram = tcp_frame(4, SYN);
    datagram[14 + 9] = 17;
    let short = &tcp_frame(6, SYN)[..14 + 40 + 13];
    for frame in [&datagram[..], short] {
        let counters = rehearse_frame(frame, &chain, syn_loss, seed, PACKETS).unwrap();
        assert_eq!((counters.dropped_packets, counters.digest), without);
    }
    let plain = rehearse_loss(&chain, seed, PACKETS).unwrap();
    assert_eq!((plain.dropped_packets, plain.digest), without);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn syn_loss_keeps_connections_from_opening_until_it_changes() {
    if !common::possible() {
        return;
    }
    let tun_works = std::path::Path::new(thalweg_link::tun::DEVICE).exists();
    let wires = [Some(WireKind::Veth), tun_works.then_some(WireKind::Tun)];
    for (wire, family) in wires
        .into_iter()
        .flatten()
        .flat_map(|wire| [Family::Ipv4, Family::Ipv6].map(|family| (wire, family)))
    {
        let path = PathModel {
            syn_loss: percent(100.0),
            family,
            ..Default::default()
        };
        let pair = Pair::new(&PairOptions {
            label: "syn".into(),
            path: path.clone(),
            wire,
            ..Default::default()
        })
        .unwrap();
        let server = pair.first_address(Side::Server).to_string();
        // Nothing listens: a SYN that arrives is refused at once.
        let connect = || {
            let script = format!("exec 3<>/dev/tcp/{server}/9");
            let output = pair
                .command_in(Side::Client, "timeout")
                .unwrap()
                .args(["0.5", "bash", "-c", &script])
                .output()
                .unwrap();
            output.status.code().unwrap()
        };
        assert_eq!(connect(), 124, "{wire:?} {family}: it waits");
        let counters = pair.forward_counters().unwrap();
        assert_eq!((counters.seen_packets, counters.dropped_packets), (1, 1));
        pair.change_path(&PathModel {
            syn_loss: percent(0.0),
            ..path
        })
        .unwrap();
        assert_eq!(connect(), 1, "{wire:?} {family}: it is refused");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_signal_does_not_end_a_rehearsal() {
    use nix::sys::pthread::{pthread_kill, pthread_self};
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

    if !common::possible() {
        return;
    }
    extern "C" fn nothing(_: nix::libc::c_int) {}
    let handler = SigAction::new(
        SigHandler::Handler(nothing),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    // SAFETY: the handler does nothing; no other test uses this signal.
    unsafe { sigaction(Signal::SIGURG, &handler) }.unwrap();
    let chain = GilbertElliott::bernoulli(percent(5.0));
    let calm = rehearse_loss(&chain, 3, 400_000).unwrap();

    let rehearsing = pthread_self();
    let ended = std::sync::atomic::AtomicBool::new(false);
    let disturbed = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Enough signals that the first rehearsals meet one, and the last meets none.
            for _ in 0..50 {
                if ended.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                pthread_kill(rehearsing, Signal::SIGURG).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        let disturbed = rehearse_loss(&chain, 3, 400_000);
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        disturbed
    });
    assert_eq!(disturbed.unwrap(), calm);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn gilbert_elliott_has_the_stationary_loss_and_burst_length_of_theory() {
    if !common::possible() {
        return;
    }
    // Simple Gilbert: all packets of the bad state are lost, none of the good. A burst is a stay in
    // the bad state: geometric, mean 1/r.
    let chain = GilbertElliott {
        to_bad: percent(1.0),
        to_good: percent(20.0),
        loss_good: percent(0.0),
        loss_bad: percent(100.0),
    };
    let counters = rehearse_loss(&chain, 11, 1_000_000).unwrap();
    let (loss, burst) = (
        counters.loss_share().unwrap(),
        counters.mean_burst_packets().unwrap(),
    );
    assert!((chain.stationary_loss() - 1.0 / 21.0).abs() < 1e-12);
    // About 9,500 bursts: the standard error of both is about 1.4 %.
    assert!(
        (loss / chain.stationary_loss() - 1.0).abs() < 0.06,
        "loss {loss}"
    );
    assert!((burst / 5.0 - 1.0).abs() < 0.06, "bursts of {burst}");
    assert_eq!(counters.bad_packets, counters.dropped_packets);

    // The general chain loses in both states.
    let chain = GilbertElliott {
        loss_good: percent(1.0),
        loss_bad: percent(40.0),
        ..chain
    };
    let counters = rehearse_loss(&chain, 12, 1_000_000).unwrap();
    let loss = counters.loss_share().unwrap();
    assert!(
        (loss / chain.stationary_loss() - 1.0).abs() < 0.06,
        "loss {loss}"
    );
    let bad = counters.bad_packets as f64 / 1e6;
    assert!(
        (bad * 21.0 - 1.0).abs() < 0.06,
        "share of bad packets {bad}"
    );
}
