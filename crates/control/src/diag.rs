//! TCP sockets of a network namespace, from the kernel's socket diagnosis (`sock_diag(7)`).

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    socket,
};

use crate::error::{Context, Result, bail};

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Attributes (linux/inet_diag.h).
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const INET_DIAG_SKMEMINFO: u16 = 7;
/// States, as in `/proc/net/tcp`.
const TCP_ESTABLISHED: u8 = 1;
const TCP_FIN_WAIT1: u8 = 4;
const TCP_CLOSE_WAIT: u8 = 8;
const TCP_LISTEN: u8 = 10;
/// Lengths of struct nlmsghdr, inet_diag_req_v2 and inet_diag_msg.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const MESSAGE: usize = 72;

/// The kernel's description of a socket.
#[derive(Debug)]
pub struct Socket<'a> {
    /// Whether the socket is a listener.
    pub is_listener: bool,
    /// The congestion control.
    pub congestion_control: Option<&'a str>,
}

impl<'a> Socket<'a> {
    /// Reads a message, struct inet_diag_msg and attributes.
    fn from_message(message: &'a [u8]) -> Self {
        let name = find_attribute(&message[MESSAGE..], INET_DIAG_CONG);
        Self {
            is_listener: message[1] == TCP_LISTEN,
            congestion_control: name.and_then(c_text),
        }
    }
}

/// Buffers and progress of an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferedConnection {
    /// Cookie of the socket.
    pub cookie: u64,
    /// Size of the receive buffer, bytes.
    pub receive_buffer: u64,
    /// Size of the send buffer, bytes.
    pub send_buffer: u64,
    /// Number of sent bytes that were acknowledged.
    pub bytes_acked: u64,
    /// Number of received bytes.
    pub bytes_received: u64,
    /// Least RTT, µs; `None`: not measured.
    pub min_rtt_us: Option<u32>,
    /// Smoothed RTT of sent data, µs; 0: not measured.
    pub send_rtt_us: u32,
    /// Smoothed RTT as the receiver estimates it, µs; 0: not measured.
    pub receive_rtt_us: u32,
}

impl BufferedConnection {
    /// Reads a message with struct tcp_info (linux/tcp.h), and the memory of the socket
    /// (linux/sock_diag.h, `SK_MEMINFO_RCVBUF` and `SK_MEMINFO_SNDBUF`).
    fn from_message(message: &[u8]) -> Option<Self> {
        let attributes = &message[MESSAGE..];
        let info = find_attribute(attributes, INET_DIAG_INFO)?;
        let memory = find_attribute(attributes, INET_DIAG_SKMEMINFO)?;
        let is_whole = info.len() >= 152 && memory.len() >= 16;
        is_whole.then(|| Self {
            cookie: read_u64(message, 44),
            receive_buffer: read_u32(memory, 4).into(),
            send_buffer: read_u32(memory, 12).into(),
            send_rtt_us: read_u32(info, 68),
            receive_rtt_us: read_u32(info, 92),
            bytes_acked: read_u64(info, 120),
            bytes_received: read_u64(info, 128),
            min_rtt_us: Some(read_u32(info, 148)).filter(|it| *it != u32::MAX),
        })
    }
}

/// A request for sockets.
struct Query {
    /// Attribute numbers.
    attributes: &'static [u16],
    /// Mask of states.
    states: u32,
}

/// Visits all TCP sockets, IPv4 and IPv6.
///
/// # Errors
/// [`crate::Error`] if the kernel does not tell.
pub fn for_each_socket(each: &mut dyn FnMut(&Socket<'_>)) -> Result<()> {
    let query = Query {
        attributes: &[INET_DIAG_CONG],
        states: u32::MAX,
    };
    dump_sockets(&query, &mut |message| each(&Socket::from_message(message)))
}

/// Visits all TCP connections that may carry data, IPv4 and IPv6.
///
/// # Errors
/// [`crate::Error`] if the kernel does not tell.
pub fn for_each_connection(each: &mut dyn FnMut(&BufferedConnection)) -> Result<()> {
    let query = Query {
        attributes: &[INET_DIAG_INFO, INET_DIAG_SKMEMINFO],
        states: 1 << TCP_ESTABLISHED | 1 << TCP_FIN_WAIT1 | 1 << TCP_CLOSE_WAIT,
    };
    dump_sockets(&query, &mut |message| {
        BufferedConnection::from_message(message)
            .iter()
            .for_each(&mut *each);
    })
}

fn dump_sockets(query: &Query, each: &mut dyn FnMut(&[u8])) -> Result<()> {
    let diag = open_netlink().context(
        "the kernel does not tell which sockets there are (CONFIG_INET_DIAG, CONFIG_INET_TCP_DIAG)",
    )?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        dump_family(&diag, family as u8, query, each)?;
    }
    Ok(())
}

fn open_netlink() -> Result<OwnedFd> {
    let diag = socket(
        AddressFamily::Netlink,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkSockDiag,
    )?;
    connect(diag.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    Ok(diag)
}

fn dump_family(
    diag: &OwnedFd,
    family: u8,
    query: &Query,
    each: &mut dyn FnMut(&[u8]),
) -> Result<()> {
    let mut request = Vec::with_capacity(HEADER + REQUEST);
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([0; 8]);
    let protocol = libc::IPPROTO_TCP as u8;
    let extensions = query.attributes.iter().map(|it| 1u8 << (it - 1)).sum();
    request.extend([family, protocol, extensions, 0]);
    request.extend(query.states.to_ne_bytes());
    // Any addresses, ports and cookies.
    request.resize(HEADER + REQUEST, 0);
    send(diag.as_raw_fd(), &request, MsgFlags::empty()).context("asking for sockets")?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = match recv(diag.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Err(nix::errno::Errno::EINTR) => continue,
            received => received.context("reading the list of sockets")?,
        };
        if !read_messages(&buffer[..length], each)? {
            return Ok(());
        }
    }
}

/// Reads messages; false after the last one.
fn read_messages(mut rest: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<bool> {
    while rest.len() >= HEADER {
        let length = read_u32(rest, 0) as usize;
        let kind = u16::from_ne_bytes([rest[4], rest[5]]);
        if length < HEADER || length > rest.len() {
            bail!(Damaged, "the kernel's list of sockets is cut short");
        }
        let body = &rest[HEADER..length];
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(false),
            libc::NLMSG_ERROR if body.len() >= 4 => {
                let error = std::io::Error::from_raw_os_error(-(read_u32(body, 0) as i32));
                return Err(error).context(
                    "the kernel does not tell which TCP sockets there are (CONFIG_INET_TCP_DIAG)",
                );
            }
            _ if kind == SOCK_DIAG_BY_FAMILY && body.len() >= MESSAGE => {
                each(body);
            }
            _ => {}
        }
        rest = rest.get(align_to_word(length)..).unwrap_or_default();
    }
    Ok(true)
}

/// The value of an attribute.
fn find_attribute(mut rest: &[u8], wanted: u16) -> Option<&[u8]> {
    while rest.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        let kind = u16::from_ne_bytes([rest[2], rest[3]]);
        if length < 4 || length > rest.len() {
            return None;
        }
        if kind == wanted {
            return Some(&rest[4..length]);
        }
        rest = rest.get(align_to_word(length)..).unwrap_or_default();
    }
    None
}

/// A text up to its 0.
fn c_text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|&byte| byte == 0);
    std::str::from_utf8(&bytes[..end.unwrap_or(bytes.len())]).ok()
}

fn align_to_word(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

    use super::*;

    /// A kernel message with one attribute.
    fn message(state: u8, name: &[u8]) -> Vec<u8> {
        let length = HEADER + MESSAGE + 4 + name.len();
        let mut bytes = Vec::new();
        bytes.extend((length as u32).to_ne_bytes());
        bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend([libc::AF_INET as u8, state]);
        bytes.resize(HEADER + MESSAGE, 0);
        bytes.extend((4 + name.len() as u16).to_ne_bytes());
        bytes.extend(INET_DIAG_CONG.to_ne_bytes());
        bytes.extend(name);
        bytes.resize(align_to_word(bytes.len()), 0);
        bytes
    }

    #[test]
    fn names_are_read_and_what_is_cut_short_is_an_error() {
        let mut bytes = message(1, b"htcp\0");
        bytes.extend(message(TCP_LISTEN, b"bbr\0"));
        let mut found = Vec::new();
        let more = read_messages(&bytes, &mut |message| {
            let socket = Socket::from_message(message);
            let name = socket.congestion_control.unwrap().to_owned();
            found.push((socket.is_listener, name));
        });
        assert!(more.unwrap());
        assert_eq!(found, [(false, "htcp".into()), (true, "bbr".into())]);
        bytes.truncate(HEADER + 10);
        assert!(read_messages(&bytes, &mut |_| {}).is_err());
    }

    #[test]
    fn the_end_of_the_list_is_seen() {
        let mut bytes = 20u32.to_ne_bytes().to_vec();
        bytes.extend((libc::NLMSG_DONE as u16).to_ne_bytes());
        bytes.resize(20, 0);
        assert!(!read_messages(&bytes, &mut |_| {}).unwrap());
    }

    #[test]
    fn connection_of_this_machine_is_found_with_its_buffers() {
        use std::io::{Read as _, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        sender.write_all(&[7; 1013]).unwrap();
        receiver.read_exact(&mut [0; 1013]).unwrap();
        let size = nix::sys::socket::getsockopt(&receiver, nix::sys::socket::sockopt::RcvBuf);
        let size = size.unwrap() as u64;
        let mut found = None;
        // Nobody else on the machine has received just that.
        for_each_connection(&mut |it| {
            if it.bytes_received == 1013 && it.receive_buffer == size {
                found = Some(*it);
            }
        })
        .unwrap();
        let found = found.unwrap();
        assert!(found.send_buffer > 0 && found.cookie != 0, "{found:?}");
        assert!(
            found.min_rtt_us.is_some_and(|it| it < 1_000_000),
            "{found:?}"
        );
    }
}
