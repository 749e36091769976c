//! NAT64 prefixes that the system's resolver reports (RFC 7050).
//!
//! A resolver that synthesises addresses for NAT64 answers for `ipv4only.arpa`, which has no IPv6
//! address, with known IPv4 addresses behind the prefix. A separate thread asks, since a resolver
//! may take long, and never twice at a time.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use thalweg_policy::Prefix;
use thalweg_units::address::discovered_prefixes;

/// Interval of questions.
const INTERVAL: Duration = Duration::from_secs(600);
/// Time from an error to the next question. Each further error doubles it, up to [`INTERVAL`].
const RETRY: Duration = Duration::from_secs(5);

/// A function that asks for the IPv6 addresses of `ipv4only.arpa`.
type Resolve = fn() -> io::Result<Vec<Ipv6Addr>>;

/// Schedule of questions, and the pending one.
#[derive(Debug)]
pub(crate) struct Discovery {
    resolve: Resolve,
    due: Option<Instant>,
    /// Pause before the next question; `None`: the last one did not fail.
    retry: Option<Duration>,
    is_answered: bool,
    pending: Option<Receiver<io::Result<Vec<Ipv6Addr>>>>,
}

impl Discovery {
    /// Asks the system's resolver.
    pub fn new() -> Self {
        Self::by(ask_system)
    }

    fn by(resolve: Resolve) -> Self {
        Self {
            resolve,
            due: None,
            retry: None,
            is_answered: false,
            pending: None,
        }
    }

    /// Takes a new answer: the prefixes, none without NAT64, or the resolver's error as long as no
    /// question was answered. Asks if that is due; never waits.
    pub fn poll(&mut self, now: Instant) -> Option<io::Result<Vec<Prefix>>> {
        match self.pending.as_ref().map(Receiver::try_recv) {
            Some(Err(mpsc::TryRecvError::Empty)) => return None,
            Some(told) => {
                self.pending = None;
                let answer = told.unwrap_or_else(|error| Err(io::Error::other(error)));
                self.note_outcome(answer.is_ok(), now);
                match answer {
                    Ok(addresses) => return Some(Ok(discovered_prefixes(addresses))),
                    Err(error) => {
                        tracing::debug!("NAT64: ipv4only.arpa: {error}");
                        if !self.is_answered {
                            return Some(Err(error));
                        }
                    }
                }
            }
            None => {}
        }
        if self.due.is_none_or(|due| due <= now) {
            self.due = Some(now + INTERVAL);
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

    /// Notes whether a question was answered, and the time of the next one.
    fn note_outcome(&mut self, is_answer: bool, now: Instant) {
        self.is_answered |= is_answer;
        let doubled = self.retry.map_or(RETRY, |last| (2 * last).min(INTERVAL));
        self.retry = (!is_answer).then_some(doubled);
        self.due = Some(now + self.retry.unwrap_or(INTERVAL));
    }
}

/// Asks with the root's dot, so that no search domain is tried.
fn ask_system() -> io::Result<Vec<Ipv6Addr>> {
    let found = match ("ipv4only.arpa.", 0).to_socket_addrs() {
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        found => found?,
    };
    let six = found.filter_map(|address| match address.ip() {
        IpAddr::V6(v6) => Some(v6),
        IpAddr::V4(_) => None,
    });
    Ok(six.collect())
}

/// Whether a resolver has answered that a name does not exist, or has no address. The standard
/// library keeps only the text of the code.
fn is_absent(error: &io::Error) -> bool {
    let text = error.to_string();
    [libc::EAI_NONAME, libc::EAI_NODATA].iter().any(|code| {
        // SAFETY: the text of each code is a constant of the C library.
        let known = unsafe { CStr::from_ptr(libc::gai_strerror(*code)) };
        text.ends_with(&*known.to_string_lossy())
    })
}

/// Whether the machine has an IPv6 default route. Without one no peer is behind NAT64.
pub(crate) fn has_ipv6_route() -> bool {
    fs::read_to_string("/proc/self/net/ipv6_route").is_ok_and(|table| has_default_route(&table))
}

/// Whether a routing table (net/ipv6/route.c, `rt6_native_seq_show`) has a default route. The
/// kernel's own, by the loopback device, refuses and does not count.
fn has_default_route(table: &str) -> bool {
    let any = "0".repeat(32) + " 00 ";
    let is_default = |line: &str| line.starts_with(&any) && !line.ends_with(" lo");
    table.lines().any(is_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls until there is an answer.
    fn answer(discovery: &mut Discovery, now: Instant) -> Option<Result<Vec<Prefix>, String>> {
        loop {
            let found = discovery.poll(now);
            if found.is_some() || discovery.pending.is_none() {
                return found.map(|it| it.map_err(|error| error.to_string()));
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
        assert_eq!(answer(&mut discovery, now), Some(Ok(expected.to_vec())));
        assert_eq!(answer(&mut discovery, now + INTERVAL / 2), None);
        let later = now + INTERVAL;
        assert_eq!(answer(&mut discovery, later), Some(Ok(expected.to_vec())));
    }

    #[test]
    fn discovery_without_answer_asks_again_soon_and_ever_later() {
        let mut discovery = Discovery::by(|| Err(io::Error::other("late")));
        let late = Some(Err("late".to_owned()));
        let began = Instant::now();
        let after = |seconds: u64| began + Duration::from_secs(seconds);
        for seconds in [0, 5, 15, 35] {
            assert_eq!(answer(&mut discovery, after(seconds)), late, "{seconds} s");
            assert_eq!(answer(&mut discovery, after(seconds + 4)), None);
        }
        // The pause is never longer than the interval.
        let mut at = after(35);
        for _ in 0..10 {
            at += INTERVAL;
            assert_eq!(answer(&mut discovery, at), late);
        }
        // No NAT64 is an answer. A later error takes nothing back, and is asked about soon.
        discovery.resolve = || Ok(Vec::new());
        at += INTERVAL;
        assert_eq!(answer(&mut discovery, at), Some(Ok(Vec::new())));
        discovery.resolve = || Err(io::Error::other("late"));
        assert_eq!(answer(&mut discovery, at + INTERVAL / 2), None);
        assert_eq!(answer(&mut discovery, at + INTERVAL), None);
        discovery.resolve = || Ok(Vec::new());
        let again = at + INTERVAL + RETRY;
        assert_eq!(answer(&mut discovery, again), Some(Ok(Vec::new())));
    }

    #[test]
    fn default_route_is_told_from_the_kernels_own() {
        let zeros = "0".repeat(32);
        let any = format!("{zeros} 00");
        let route = |to: &str, by: &str| format!("{to} {any} {zeros} 0 0 0 0 {by:>8}\n");
        let own = route(&any, "lo") + &route(&format!("fe80{zeros:.28} 40"), "eth0");
        assert!(!has_default_route(&own));
        assert!(has_default_route(&(own + &route(&any, "eth0"))));
    }

    #[test]
    fn error_of_a_resolver_is_no_absent_name() {
        // As the standard library words them.
        let error = |code| {
            // SAFETY: the text of each code is a constant of the C library.
            let text = unsafe { CStr::from_ptr(libc::gai_strerror(code)) };
            let text = text.to_string_lossy();
            io::Error::other(format!("failed to lookup address information: {text}"))
        };
        assert!(is_absent(&error(libc::EAI_NONAME)));
        assert!(!is_absent(&error(libc::EAI_AGAIN)) && !is_absent(&error(libc::EAI_FAIL)));
        assert!(!is_absent(&io::ErrorKind::TimedOut.into()));
    }
}
