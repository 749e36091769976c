//! Name resolution behind a link or a wire: the machine's resolv.conf(5), as far as its servers can
//! be reached from there.
//!
//! A resolver on a loopback address is reachable only on the machine. systemd-resolved, the usual
//! one, writes its upstream servers to a file. Without such a file, this process takes questions at
//! an address inside and forwards them to the resolver.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::error::Error;
use crate::resolv::FILE;

/// The file where systemd-resolved writes its upstream servers.
const UPSTREAM: &str = "/run/systemd/resolve/resolv.conf";
const PORT: u16 = 53;
/// Largest message over UDP, bytes.
const MESSAGE_BYTES: usize = 65_535;
/// Time limit of an answer. Clients repeat their questions earlier.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The machine's resolver.
#[derive(Debug)]
pub enum Resolver {
    /// All servers in this text are reached from inside.
    Reached(String),
    /// Only the machine reaches the resolver at this address, which this text names.
    Local(IpAddr, String),
}

impl Resolver {
    /// None if the machine has no resolv.conf. `has_v6`: whether IPv6 leads outside.
    pub fn of_the_machine(has_v6: bool) -> Option<Self> {
        let text = fs::read_to_string(FILE).ok()?;
        let Some(address) = local_resolver(&text, has_v6) else {
            return Some(Self::Reached(text));
        };
        let upstream = fs::read_to_string(UPSTREAM).ok();
        Some(
            match upstream.filter(|it| local_resolver(it, has_v6).is_none()) {
                Some(upstream) => Self::Reached(upstream),
                None => Self::Local(address, text),
            },
        )
    }
}

/// The address of a `nameserver` line.
fn nameserver_address(line: &str) -> Option<IpAddr> {
    let mut words = line.split_ascii_whitespace();
    (words.next() == Some("nameserver")).then(|| words.next()?.parse().ok())?
}

/// The first resolver that only the machine reaches. A text that names none means the machine
/// itself.
fn local_resolver(text: &str, has_v6: bool) -> Option<IpAddr> {
    let mut servers = text.lines().filter_map(nameserver_address).peekable();
    if servers.peek().is_none() {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    servers.find(|it| !is_reached(*it, has_v6))
}

fn is_reached(server: IpAddr, has_v6: bool) -> bool {
    !server.is_loopback() && !server.is_unspecified() && (has_v6 || server.is_ipv4())
}

/// The text with `address` instead of resolvers that only the machine reaches.
pub fn rewrite_resolvers(text: &str, address: Ipv4Addr, has_v6: bool) -> String {
    let other = |line: &&str| nameserver_address(line).is_none_or(|it| is_reached(it, has_v6));
    let mut lines = vec![format!("nameserver {address}")];
    lines.extend(text.lines().filter(other).map(str::to_owned));
    lines.join("\n") + "\n"
}

/// Takes the port of name servers at an address of the calling thread's namespace.
///
/// # Errors
/// Another server has it.
pub fn bind_dns(address: Ipv4Addr) -> io::Result<(UdpSocket, TcpListener)> {
    let udp = UdpSocket::bind((address, PORT))?;
    Ok((udp, TcpListener::bind((address, PORT))?))
}

/// Answers the questions that come there, by asking a resolver of the machine.
///
/// # Errors
/// No thread could be started.
pub fn answer_queries(udp: UdpSocket, tcp: TcpListener, resolver: IpAddr) -> Result<(), Error> {
    let (udp, resolver) = (Arc::new(udp), SocketAddr::new(resolver, PORT));
    // These threads end with the process.
    let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .map(drop)
            .map_err(Error::system("cannot take questions for names"))
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
            socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
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
        let local = |text: &str| super::local_resolver(text, true).map(|it| it.to_string());
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
            rewrite_resolvers(text, Ipv4Addr::new(100, 127, 0, 3), true),
            "nameserver 100.127.0.3\nnameserver 192.0.2.53\noptions edns0\n"
        );
        // Without IPv6 its servers are not reached either.
        let text = "nameserver 192.0.2.53\nnameserver 2001:db8::53\n";
        assert_eq!(super::local_resolver(text, true), None);
        let found = super::local_resolver(text, false).map(|it| it.to_string());
        assert_eq!(found.as_deref(), Some("2001:db8::53"));
        assert_eq!(
            rewrite_resolvers(text, Ipv4Addr::LOCALHOST, false),
            "nameserver 127.0.0.1\nnameserver 192.0.2.53\n"
        );
    }
}
