//! Name resolution: the kernel gets the machine's resolv.conf(5), as far as it can reach the
//! servers.
//!
//! A resolver on a loopback address is reachable only on the machine. systemd-resolved, the usual
//! one, writes its upstream servers to a file. Without such a file, this process takes questions at
//! an address in the kernel's place and forwards them to the resolver.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::error::Error;
use crate::place::Place;
use crate::wire::Wire;

const FILE: &str = "/etc/resolv.conf";
/// The file where systemd-resolved writes its upstream servers.
const UPSTREAM: &str = "/run/systemd/resolve/resolv.conf";
const PORT: u16 = 53;
/// Largest message over UDP, bytes.
const MESSAGE_BYTES: usize = 65_535;
/// Time limit of an answer. Clients repeat their questions earlier.
const PATIENCE: Duration = Duration::from_secs(15);

/// The machine's resolver.
enum Resolver {
    /// The kernel reaches all servers in this text.
    Reached(String),
    /// Only the machine reaches the resolver at this address, which this text names.
    Local(IpAddr, String),
}

/// None if the machine has no resolv.conf.
fn resolver() -> Option<Resolver> {
    let text = fs::read_to_string(FILE).ok()?;
    let Some(address) = local(&text) else {
        return Some(Resolver::Reached(text));
    };
    let upstream = fs::read_to_string(UPSTREAM).ok();
    Some(match upstream.filter(|it| local(it).is_none()) {
        Some(upstream) => Resolver::Reached(upstream),
        None => Resolver::Local(address, text),
    })
}

/// The resolver that a prepared wire must lead to, if any.
pub(crate) fn for_a_wire() -> Option<Ipv4Addr> {
    match resolver()? {
        Resolver::Local(IpAddr::V4(address), _) if !address.is_unspecified() => Some(address),
        Resolver::Local(..) => Some(Ipv4Addr::LOCALHOST),
        Resolver::Reached(_) => None,
    }
}

/// The kernel's resolv.conf; none if the machine has none. Starts forwarding questions if
/// necessary.
pub(crate) fn for_the_kernel(wire: &Wire) -> Result<Option<String>, Error> {
    Ok(match resolver() {
        None => None,
        Some(Resolver::Reached(text)) => Some(text),
        Some(Resolver::Local(resolver, text)) => {
            let address = wire.ends().resolver;
            // On a prepared wire the machine forwards questions to its resolver.
            if let Some(place) = wire.contact().place() {
                answer(place, address, SocketAddr::new(resolver, PORT))?;
            }
            Some(rewritten(&text, address))
        }
    })
}

/// The address of a `nameserver` line.
fn server(line: &str) -> Option<IpAddr> {
    let mut words = line.split_ascii_whitespace();
    (words.next() == Some("nameserver")).then(|| words.next()?.parse().ok())?
}

/// The first resolver that only the machine reaches. A text that names none means the machine
/// itself.
fn local(text: &str) -> Option<IpAddr> {
    let mut servers = text.lines().filter_map(server).peekable();
    if servers.peek().is_none() {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    servers.find(|it| it.is_loopback() || it.is_unspecified())
}

/// The text with `address` instead of resolvers that only the machine reaches.
fn rewritten(text: &str, address: Ipv4Addr) -> String {
    let other =
        |line: &&str| !server(line).is_some_and(|it| it.is_loopback() || it.is_unspecified());
    let mut lines = vec![format!("nameserver {address}")];
    lines.extend(text.lines().filter(other).map(str::to_owned));
    lines.join("\n") + "\n"
}

/// Answers questions at an address in the kernel's place, by asking a resolver of the machine.
fn answer(place: &Place, address: Ipv4Addr, resolver: SocketAddr) -> Result<(), Error> {
    let failed = || Error::system("cannot take questions for names");
    let (udp, tcp) = place.within(|| {
        let udp = UdpSocket::bind((address, PORT)).map_err(failed())?;
        let tcp = TcpListener::bind((address, PORT)).map_err(failed())?;
        Ok((Arc::new(udp), tcp))
    })?;
    // These threads end with the process.
    let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .map(drop)
            .map_err(failed())
    };
    start("names-udp", Box::new(move || by_udp(&udp, resolver)))?;
    start("names-tcp", Box::new(move || by_tcp(&tcp, resolver)))
}

fn by_udp(questions: &Arc<UdpSocket>, resolver: SocketAddr) {
    let mut message = vec![0; MESSAGE_BYTES];
    while let Ok((length, from)) = questions.recv_from(&mut message) {
        let question = message[..length].to_vec();
        let questions = Arc::clone(questions);
        // If it is lost, the client asks again.
        thread::spawn(move || -> io::Result<()> {
            let socket = UdpSocket::bind(any_port(resolver))?;
            socket.connect(resolver)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.send(&question)?;
            let mut answer = vec![0; MESSAGE_BYTES];
            let length = socket.recv(&mut answer)?;
            questions.send_to(&answer[..length], from).map(drop)
        });
    }
}

fn by_tcp(questions: &TcpListener, resolver: SocketAddr) {
    for asker in questions.incoming().flatten() {
        thread::spawn(move || -> io::Result<()> {
            let server = TcpStream::connect(resolver)?;
            let (mut from, mut to) = (asker.try_clone()?, server.try_clone()?);
            thread::spawn(move || {
                let copied = io::copy(&mut from, &mut to);
                to.shutdown(Shutdown::Write).and(copied)
            });
            let copied = io::copy(&mut &server, &mut &asker);
            asker.shutdown(Shutdown::Both).and(copied).map(drop)
        });
    }
}

/// The address to bind a socket to that asks this resolver.
fn any_port(resolver: SocketAddr) -> (IpAddr, u16) {
    (resolver.ip(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_that_only_the_machine_reaches() {
        let local = |text: &str| super::local(text).map(|it| it.to_string());
        assert_eq!(local("nameserver 192.0.2.53\nsearch a.example\n"), None);
        assert_eq!(local("nameserver 2001:db8::53\n"), None);
        let stub = "# by systemd-resolved\nnameserver 127.0.0.53\noptions edns0\n";
        assert_eq!(local(stub).as_deref(), Some("127.0.0.53"));
        assert_eq!(local("nameserver ::1\n").as_deref(), Some("::1"));
        assert_eq!(local("search a.example\n").as_deref(), Some("127.0.0.1"));
    }

    #[test]
    fn they_are_replaced_and_all_else_stays() {
        let text = "nameserver 127.0.0.53\nnameserver 192.0.2.53\noptions edns0\nnameserver ::1\n";
        assert_eq!(
            rewritten(text, Ipv4Addr::new(100, 127, 0, 3)),
            "nameserver 100.127.0.3\nnameserver 192.0.2.53\noptions edns0\n"
        );
    }
}
