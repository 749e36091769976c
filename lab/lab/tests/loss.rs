//! The loss of a link's programs, rehearsed in the kernel without a link. Without privilege each
//! test says "skipped: why".

#![allow(clippy::unwrap_used)]

mod common;

use thalweg_lab::host::loss::rehearse_loss;
use thalweg_lab::scenario::GilbertElliott;
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
