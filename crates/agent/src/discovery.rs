//! Prefixes of NAT64 that the system's resolver tells (RFC 7050).
//!
//! A resolver that makes addresses for NAT64 answers for `ipv4only.arpa`, which has none, with known
//! IPv4 addresses behind the prefix. The question is asked in a thread of its own, since a resolver
//! may take long, and never twice at a time.

use std::io;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use thalweg_policy::Prefix;
use thalweg_units::address::discovered;

/// Interval of questions.
const INTERVAL: Duration = Duration::from_secs(600);

/// A function that asks for the IPv6 addresses of `ipv4only.arpa`.
type Resolve = fn() -> io::Result<Vec<Ipv6Addr>>;

/// The present question, or when the next one is due.
#[derive(Debug)]
pub(crate) struct Discovery {
    resolve: Resolve,
    asked: Option<Instant>,
    pending: Option<Receiver<io::Result<Vec<Ipv6Addr>>>>,
}

impl Discovery {
    /// By the system's resolver.
    pub fn new() -> Self {
        Self::by(ask_system)
    }

    fn by(resolve: Resolve) -> Self {
        Self {
            resolve,
            asked: None,
            pending: None,
        }
    }

    /// The prefixes of a new answer, none if there is no NAT64. Asks if that is due; never waits. Where
    /// no resolver answers, what was known stays.
    pub fn poll(&mut self, now: Instant) -> Option<Vec<Prefix>> {
        match self.pending.as_ref().map(Receiver::try_recv) {
            Some(Err(mpsc::TryRecvError::Empty)) => return None,
            Some(answer) => {
                self.pending = None;
                match answer {
                    Ok(Ok(addresses)) => return Some(discovered(addresses)),
                    Ok(Err(error)) => tracing::debug!("NAT64: ipv4only.arpa: {error}"),
                    Err(_) => {}
                }
            }
            None => {}
        }
        let is_due = |asked: Instant| now.saturating_duration_since(asked) >= INTERVAL;
        if self.asked.is_none_or(is_due) {
            self.asked = Some(now);
            let (sender, receiver) = mpsc::channel();
            let resolve = self.resolve;
            let spawned = thread::Builder::new()
                .name("nat64".to_owned())
                // The agent may be gone.
                .spawn(move || drop(sender.send(resolve())));
            self.pending = spawned.is_ok().then_some(receiver);
        }
        None
    }
}

/// With the root's dot: no domain of the machine's is searched.
fn ask_system() -> io::Result<Vec<Ipv6Addr>> {
    let found = ("ipv4only.arpa.", 0).to_socket_addrs()?;
    let six = found.filter_map(|address| match address.ip() {
        IpAddr::V6(v6) => Some(v6),
        IpAddr::V4(_) => None,
    });
    Ok(six.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls until there is an answer.
    fn answer(discovery: &mut Discovery, now: Instant) -> Option<Vec<Prefix>> {
        loop {
            let found = discovery.poll(now);
            if found.is_some() || discovery.pending.is_none() {
                return found;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn discovery_asks_again_after_its_interval() {
        let mut discovery = Discovery::by(|| {
            let of = [
                "64:ff9b:1::c000:aa",
                "2001:db8:64::c000:aa",
                "2001:db8:64::c000:ab",
            ];
            Ok(of.map(|text| text.parse().unwrap()).to_vec())
        });
        let now = Instant::now();
        let expected = ["64:ff9b:1::/96", "2001:db8:64::/96"];
        let expected = expected.map(|text| Prefix::parse(text).unwrap());
        assert_eq!(answer(&mut discovery, now), Some(expected.to_vec()));
        assert_eq!(answer(&mut discovery, now + INTERVAL / 2), None);
        let later = now + INTERVAL;
        assert_eq!(answer(&mut discovery, later), Some(expected.to_vec()));
    }

    #[test]
    fn discovery_without_answer_tells_nothing() {
        let mut discovery = Discovery::by(|| Err(io::ErrorKind::TimedOut.into()));
        assert_eq!(answer(&mut discovery, Instant::now()), None);
        let mut without = Discovery::by(|| Ok(Vec::new()));
        assert_eq!(answer(&mut without, Instant::now()), Some(Vec::new()));
    }
}
