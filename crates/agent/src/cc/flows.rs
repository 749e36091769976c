//! Who uses a congestion control: sockets by its name, as the kernel's socket diagnosis
//! (`sock_diag(7)`) tells, in every network namespace that can be entered.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    socket,
};
use serde::Serialize;

use crate::system;

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `INET_DIAG_CONG` (linux/inet_diag.h).
const INET_DIAG_CONG: u16 = 4;
/// State of a listener, as in `/proc/net/tcp`.
const TCP_LISTEN: u8 = 10;
/// Length of struct nlmsghdr, inet_diag_req_v2 and inet_diag_msg.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const MESSAGE: usize = 72;

/// Sockets that use a congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Use {
    /// Connections, those included that no process holds any more.
    pub flows: u64,
    /// Listeners: what they accept gets it too.
    pub listeners: u64,
    /// Network namespaces whose default it is.
    pub default_in: u64,
}

impl Use {
    /// Whether some socket has it.
    pub fn has_sockets(&self) -> bool {
        self.flows + self.listeners > 0
    }
}

/// Use of every congestion control that has any.
///
/// # Errors
/// [`anyhow::Error`] where the kernel does not tell.
pub fn count() -> Result<BTreeMap<String, Use>> {
    let mut all: BTreeMap<String, Use> = BTreeMap::new();
    for namespace in system::in_namespaces(|_| true, || Some(in_this_namespace())) {
        for (name, more) in namespace? {
            let sum = all.entry(name).or_default();
            sum.flows += more.flows;
            sum.listeners += more.listeners;
            sum.default_in += more.default_in;
        }
    }
    Ok(all)
}

fn in_this_namespace() -> Result<BTreeMap<String, Use>> {
    let mut used: BTreeMap<String, Use> = BTreeMap::new();
    let diag = open().context(
        "the kernel does not tell which sockets there are (CONFIG_INET_DIAG, CONFIG_INET_TCP_DIAG)",
    )?;
    for family in [libc::AF_INET, libc::AF_INET6] {
        dump(&diag, family as u8, &mut |state, name| {
            let entry = used.entry(name.to_owned()).or_default();
            if state == TCP_LISTEN {
                entry.listeners += 1;
            } else {
                entry.flows += 1;
            }
        })?;
    }
    if let Ok(name) = system::default_cc() {
        used.entry(name).or_default().default_in += 1;
    }
    Ok(used)
}

fn open() -> Result<OwnedFd> {
    let diag = socket(
        AddressFamily::Netlink,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkSockDiag,
    )?;
    connect(diag.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    Ok(diag)
}

/// Asks for all TCP sockets of a family; `each` gets the state and the congestion control of
/// those that have one.
fn dump(diag: &OwnedFd, family: u8, each: &mut dyn FnMut(u8, &str)) -> Result<()> {
    let mut request = Vec::with_capacity(HEADER + REQUEST);
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([
        family,
        libc::IPPROTO_TCP as u8,
        1 << (INET_DIAG_CONG - 1),
        0,
    ]);
    request.extend(u32::MAX.to_ne_bytes());
    // Any addresses, ports and cookies.
    request.resize(HEADER + REQUEST, 0);
    send(diag.as_raw_fd(), &request, MsgFlags::empty()).context("asking for sockets")?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = match recv(diag.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Err(nix::errno::Errno::EINTR) => continue,
            received => received.context("reading the list of sockets")?,
        };
        if !messages(&buffer[..length], each)? {
            return Ok(());
        }
    }
}

/// Reads messages; false after the last one.
fn messages(mut rest: &[u8], each: &mut dyn FnMut(u8, &str)) -> Result<bool> {
    while rest.len() >= HEADER {
        let length = number(rest, 0) as usize;
        let kind = u16::from_ne_bytes([rest[4], rest[5]]);
        if length < HEADER || length > rest.len() {
            bail!("the kernel's list of sockets is cut short");
        }
        let body = &rest[HEADER..length];
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(false),
            libc::NLMSG_ERROR if body.len() >= 4 => {
                let error = std::io::Error::from_raw_os_error(-(number(body, 0) as i32));
                return Err(error).context(
                    "the kernel does not tell which TCP sockets there are (CONFIG_INET_TCP_DIAG)",
                );
            }
            _ if kind == SOCK_DIAG_BY_FAMILY && body.len() >= MESSAGE => {
                if let Some(name) = attribute(&body[MESSAGE..], INET_DIAG_CONG) {
                    each(body[1], name);
                }
            }
            _ => {}
        }
        rest = rest.get(align(length)..).unwrap_or_default();
    }
    Ok(true)
}

/// A text among attributes.
fn attribute(mut rest: &[u8], wanted: u16) -> Option<&str> {
    while rest.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        let kind = u16::from_ne_bytes([rest[2], rest[3]]);
        if length < 4 || length > rest.len() {
            return None;
        }
        if kind == wanted {
            let text = &rest[4..length];
            let end = text
                .iter()
                .position(|&byte| byte == 0)
                .unwrap_or(text.len());
            return std::str::from_utf8(&text[..end]).ok();
        }
        rest = rest.get(align(length)..).unwrap_or_default();
    }
    None
}

fn align(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

    use super::*;

    /// A message of the kernel's with one attribute.
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
        bytes.resize(align(bytes.len()), 0);
        bytes
    }

    #[test]
    fn names_are_read_and_what_is_cut_short_is_an_error() {
        let mut bytes = message(1, b"htcp\0");
        bytes.extend(message(TCP_LISTEN, b"bbr\0"));
        let mut found = Vec::new();
        let more = messages(&bytes, &mut |state, name| {
            found.push((state, name.to_owned()))
        });
        assert!(more.unwrap());
        assert_eq!(found, [(1, "htcp".into()), (TCP_LISTEN, "bbr".into())]);
        bytes.truncate(HEADER + 10);
        assert!(messages(&bytes, &mut |_, _| {}).is_err());
    }

    #[test]
    fn the_end_of_the_list_is_seen() {
        let mut bytes = 20u32.to_ne_bytes().to_vec();
        bytes.extend((libc::NLMSG_DONE as u16).to_ne_bytes());
        bytes.resize(20, 0);
        assert!(!messages(&bytes, &mut |_, _| {}).unwrap());
    }

    #[test]
    fn a_listener_of_our_own_is_counted() {
        let name = system::default_cc().unwrap();
        let before = in_this_namespace()
            .unwrap()
            .get(&name)
            .copied()
            .unwrap_or_default();
        let _listeners: Vec<_> = (0..50)
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let after = in_this_namespace().unwrap()[&name];
        // Other tests of this machine open and close a few at the same time.
        assert!(
            after.listeners >= before.listeners + 30,
            "{before:?} {after:?}"
        );
        assert_eq!(after.default_in, 1);
    }
}
