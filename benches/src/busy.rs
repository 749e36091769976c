//! CPU time of the whole machine, from the time that its CPUs are idle.
//!
//! The kernel works for a flow in the sender, in the receiver, in interrupts, timers and their
//! threads. It charges each to the process it interrupts, and short work between two ticks to none.
//! Idle time is measured when a CPU falls asleep and when anything wakes it, interrupts included
//! (`tick_nohz_start_idle`, `tick_nohz_stop_idle` in kernel/time/tick-sched.c). So the rest of the
//! time is all work, whoever is charged.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

/// Seconds of CPU that the machine was busy during `what`, all CPUs together, and the result.
/// Nothing else should run, because it would count, too.
pub fn busy<T>(what: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let (begin, (cpus, before)) = (Instant::now(), idle()?);
    let result = what()?;
    let (_, after) = idle()?;
    let all = begin.elapsed().as_secs_f64() * cpus;
    Ok((all - (after - before), result))
}

/// Number of CPUs, and seconds that they have been idle since the boot, including waits for a disk
/// (proc_stat(5)).
fn idle() -> Result<(f64, f64)> {
    let ticks = sysconf(SysconfVar::CLK_TCK)?.context("the kernel's unit of time")?;
    let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    let mut cpus = 0.0;
    let mut sum = 0.0;
    for line in text.lines().filter(|line| line.starts_with("cpu")) {
        let mut words = line.split_ascii_whitespace();
        if words.next() == Some("cpu") {
            continue;
        }
        let times: Vec<f64> = words.map(str::parse).collect::<Result<_, _>>()?;
        let [_user, _nice, _system, idle, waiting, ..] = times[..] else {
            anyhow::bail!("/proc/stat has a line of too few numbers: {line}");
        };
        cpus += 1.0;
        sum += (idle + waiting) / ticks as f64;
    }
    Ok((cpus, sum))
}
