//! Lateness of high-resolution timers, 1 µs to 10 ms ahead: the kernel's own (`bpf/timer.bpf.c`),
//! and the sleep of a program.

use std::mem::MaybeUninit;
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use nix::libc;
use serde::{Deserialize, Serialize};
use thalweg_guest::system::is_user_mode;

use super::now_ns;
use crate::error::Error;
use thalweg_report::sample;

/// Times ahead at which timers are set, µs.
const AHEAD_US: [u64; 13] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000,
];
/// Repetitions of each.
const ROUNDS: usize = 200;
/// Time limit of all of them.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(60);
/// Steps of a reported distribution.
const PARTS: usize = 1000;

/// Lateness of timers, µs, in a thousand steps from the least to the greatest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Lateness {
    /// Until the kernel's callback runs; empty on a user-mode kernel, which takes no callbacks in
    /// BPF.
    pub(crate) kernel_us: Vec<f64>,
    /// Until a program that slept has read the clock.
    pub(crate) program_us: Vec<f64>,
}

/// Measures both and returns a line of JSON.
pub(super) fn measure_both() -> Result<String, Error> {
    let lateness = Lateness {
        kernel_us: match is_user_mode() {
            true => Vec::new(),
            false => timer_quantiles(&kernel_lateness(ROUNDS)?),
        },
        program_us: timer_quantiles(&program_lateness(ROUNDS)?),
    };
    serde_json::to_string(&lateness)
        .map_err(|error| Error::system("what was measured")(error.into()))
}

pub(crate) fn timer_quantiles(us: &[f64]) -> Vec<f64> {
    (0..=PARTS)
        .filter_map(|part| sample::quantile(us, part as f64 / PARTS as f64))
        .collect()
}

fn kernel_lateness(rounds: usize) -> Result<Vec<f64>, Error> {
    let failed = |error: libbpf_rs::Error| {
        Error::system("cannot measure the kernel's timers (as root, on Linux 5.15 or newer)")(
            std::io::Error::other(error),
        )
    };
    let wanted = rounds * AHEAD_US.len();
    let mut storage = MaybeUninit::uninit();
    let mut open = thalweg_bpf_objects::timer::TimerSkelBuilder::default()
        .open(&mut storage)
        .map_err(failed)?;
    let settings = open.maps.rodata_data.as_deref_mut();
    let settings = settings.expect("the program has constants");
    for (ns, us) in settings.ahead_ns.iter_mut().zip(AHEAD_US) {
        *ns = us * 1000;
    }
    settings.kinds = AHEAD_US.len() as u32;
    settings.wanted = wanted as u32;
    let skeleton = open.load().map_err(failed)?;
    let frame = [0; 64];
    let input = ProgramInput {
        data_in: Some(&frame),
        ..Default::default()
    };
    let refused = skeleton.progs.begin.test_run(input).map_err(failed)?;
    if refused.return_value != 0 {
        return Err(failed(libbpf_rs::Error::from_raw_os_error(libc::EINVAL)));
    }
    let deadline = Instant::now() + MEASURE_TIMEOUT;
    let results = skeleton.maps.bss_data.as_deref();
    let results = results.expect("the program has variables");
    // SAFETY: the pointer is valid; the kernel writes to it meanwhile, so the read is volatile.
    let expired = || unsafe { std::ptr::read_volatile(&raw const results.expired) } as usize;
    while expired() < wanted {
        if Instant::now() >= deadline {
            return Err(Error::system("the kernel's timers")(
                std::io::ErrorKind::TimedOut.into(),
            ));
        }
        thread::sleep(Duration::from_millis(100));
    }
    let late = results.late_ns.iter().take(wanted);
    Ok(late.map(|ns| *ns as f64 / 1e3).collect())
}

fn program_lateness(rounds: usize) -> Result<Vec<f64>, Error> {
    // The slack that timers may have is not to be measured. SAFETY: the arguments are integers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let mut late_us = Vec::new();
    for _ in 0..rounds {
        for ahead_us in AHEAD_US {
            let moment_ns = now_ns() + ahead_us * 1000;
            sleep_until(moment_ns)?;
            late_us.push(now_ns().saturating_sub(moment_ns) as f64 / 1e3);
        }
    }
    Ok(late_us)
}

fn sleep_until(moment_ns: u64) -> Result<(), Error> {
    let moment = libc::timespec {
        tv_sec: (moment_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (moment_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the call reads a structure that lives throughout, and does not write the remaining
    // time.
    let code = unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const moment,
            std::ptr::null_mut(),
        )
    };
    match code {
        0 => Ok(()),
        code => Err(Error::system("clock_nanosleep")(
            std::io::Error::from_raw_os_error(code),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_programs_wake_after_the_moment() {
        let late_us = program_lateness(5).unwrap();
        assert_eq!(late_us.len(), 5 * AHEAD_US.len());
        // A timer never expires exactly on time; without a sleep the lateness would be 0.
        assert!(
            late_us.iter().all(|us| (0.001..10e6).contains(us)),
            "{late_us:?}"
        );
        let quantiles = timer_quantiles(&late_us);
        assert_eq!(quantiles.len(), PARTS + 1);
        assert!(quantiles.is_sorted());
    }
}
