//! Traffic as a server of a content network has it: many hosts, few of them often; small transfers,
//! few of them large.

use std::io::{BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use thalweg_units::random::Random;

use super::{PATIENCE, PORT, raise_files, say, to_end};

/// Connections at a time.
const THREADS: usize = 64;
/// Bytes of a packet.
const PACKET: f64 = 1448.0;
/// Packets of a transfer: the median, and the mean, of a content network.
const MEDIAN: f64 = 12.0;
const MEAN: f64 = 240.0;
/// Largest transfer, packets: the lognormal distribution has no end.
const LARGEST: f64 = 50_000.0;

/// What has happened so far.
#[derive(Default)]
struct Done {
    ended: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
}

/// Makes connections, and answers each line with the counts. After the line `stop` none is begun,
/// and those that are open are waited for.
pub fn run(first: IpAddr, hosts: u32, drift: f64, rate: f64) -> Result<()> {
    let IpAddr::V4(first) = first else {
        bail!("an IPv4 address is wanted")
    };
    raise_files()?;
    let done = Arc::new(Done::default());
    let (send, receive) = mpsc::channel();
    let receive = Arc::new(Mutex::new(receive));
    let mut threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (done, receive) = (done.clone(), receive.clone());
            std::thread::spawn(move || serve(&receive, &done))
        })
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    std::thread::spawn(move || {
        let (start, mut random) = (Instant::now(), Random::new(1));
        let mut due = 0.0;
        while !stopped.load(Ordering::Relaxed) {
            // Times between arrivals are exponential.
            due += -(1.0 - random.fraction()).ln() / rate;
            let wait = due - start.elapsed().as_secs_f64();
            std::thread::sleep(Duration::from_secs_f64(wait.max(0.0)));
            // The n-th host is visited 1/n as often as the first.
            let rank = f64::from(hosts).powf(random.fraction()) - 1.0;
            let host = first.to_bits() + (due * drift + rank) as u32;
            let job = (Ipv4Addr::from_bits(host), size(&mut random));
            if send.send(job).is_err() {
                return;
            }
        }
    });
    for line in std::io::stdin().lock().lines() {
        if line? == "stop" {
            stop.store(true, Ordering::Relaxed);
            for thread in threads.drain(..) {
                // A panic of a thread has been printed.
                let _ = thread.join();
            }
        }
        let count = |value: &AtomicU64| value.load(Ordering::Relaxed);
        say(&format!(
            "{} {} {}",
            count(&done.ended),
            count(&done.failed),
            count(&done.bytes)
        ))?;
    }
    Ok(())
}

/// A transfer to each of these hosts, some at a time; says how long each took, s.
pub fn visit(first: IpAddr, number: u32, bytes: usize, at_a_time: usize) -> Result<()> {
    let IpAddr::V4(first) = first else {
        bail!("an IPv4 address is wanted")
    };
    let next = AtomicU64::new(0);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= number.into() {
                        return;
                    }
                    let address = Ipv4Addr::from_bits(first.to_bits() + index as u32);
                    let begun = Instant::now();
                    let done = transfer(address, bytes).map_err(anyhow::Error::from);
                    let seconds = begun.elapsed().as_secs_f64();
                    let said = done.and_then(|()| say(&format!("{address} {seconds}")));
                    if let Err(why) = said {
                        let failure = why.context(address.to_string());
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                        return;
                    }
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(why) => Err(why),
        None => Ok(()),
    }
}

/// Bytes of a transfer: lognormal.
fn size(random: &mut Random) -> usize {
    let deviation = (2.0 * (MEAN / MEDIAN).ln()).sqrt();
    // Box and Muller 1958.
    let radius = (-2.0 * (1.0 - random.fraction()).ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * random.fraction()).cos();
    let packets = MEDIAN * (deviation * normal).exp();
    (packets.clamp(1.0, LARGEST) * PACKET) as usize
}

fn serve(jobs: &Mutex<Receiver<(Ipv4Addr, usize)>>, done: &Done) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((address, bytes)) = job else { return };
        match transfer(address, bytes) {
            Ok(()) => {
                done.ended.fetch_add(1, Ordering::Relaxed);
                done.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(error) => {
                eprintln!("{address}: {error}");
                done.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn transfer(address: Ipv4Addr, bytes: usize) -> std::io::Result<()> {
    static BLOCK: [u8; 65_536] = [0; 65_536];
    let mut connection = TcpStream::connect_timeout(&SocketAddr::from((address, PORT)), PATIENCE)?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut left = bytes;
    while left > 0 {
        left -= connection.write(&BLOCK[..left.min(BLOCK.len())])?;
    }
    connection.shutdown(Shutdown::Write)?;
    to_end(connection);
    Ok(())
}
