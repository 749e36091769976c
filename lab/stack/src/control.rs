//! The protocol between this process and the one inside: TCP on an interface that the command does
//! not see. Each stream has a connection, and messages have one.
// Consoles have a line discipline, and FIFOs and sockets of hostfs do not reach the machine.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// This process's address in the kernel's place.
pub(crate) const HERE: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);
/// The address of the process inside.
pub(crate) const INSIDE: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 2);
/// This process's port.
pub(crate) const PORT: u16 = 1;
/// Largest packet, bytes: large, so that there are few.
pub(crate) const MTU_BYTES: u32 = 65_000;

/// The first byte of a connection tells its purpose: messages, the standard stream with this
/// number, or the terminal.
pub(crate) const MESSAGES: u8 = b'm';
pub(crate) const STREAMS: [u8; 3] = [b'0', b'1', b'2'];
pub(crate) const TERMINAL: u8 = b't';

/// The job of the process inside: the first message that it gets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) directory: PathBuf,
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) umask: u32,
    /// Soft and hard limits, in the order of their numbers (getrlimit(2)).
    pub(crate) limits: Vec<(u64, u64)>,
    pub(crate) host_name: OsString,
    /// Modules to insert, in this order.
    pub(crate) modules: Vec<PathBuf>,
    /// The default congestion control.
    pub(crate) congestion_control: Option<String>,
    /// Further congestion controls that the kernel must have.
    pub(crate) congestion_controls: Vec<String>,
    pub(crate) qdisc: Option<String>,
    pub(crate) sysctls: Vec<(String, String)>,
    /// The ends of the wire; none if `network` is complete.
    pub(crate) ends: Option<WireAddresses>,
    /// Commands of `ip` that make it a host of its network.
    pub(crate) network: Vec<String>,
    /// The text of its resolv.conf(5); none if the machine has none.
    pub(crate) resolver: Option<String>,
    /// Whether an agent learns from the command's connections.
    pub(crate) learn: bool,
    /// The policy for the command's connections.
    pub(crate) policy: Option<PathBuf>,
    /// The agent's program.
    pub(crate) agent: Option<PathBuf>,
    pub(crate) streams: Streams,
    pub(crate) terminal: Option<Terminal>,
}

/// Addresses of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireAddresses {
    /// The kernel's.
    pub(crate) inside: Ipv4Addr,
    /// The machine's, the gateway.
    pub(crate) machine: Ipv4Addr,
    /// The address where this process answers for a resolver that the kernel cannot reach.
    pub(crate) resolver: Ipv4Addr,
    /// Also the machine's: it stands for servers inside.
    pub(crate) published: Ipv4Addr,
    pub(crate) prefix_v4: u8,
    /// None if the machine has no IPv6.
    pub(crate) v6: Option<WireAddressesV6>,
}

/// IPv6 addresses of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireAddressesV6 {
    pub(crate) inside: Ipv6Addr,
    pub(crate) machine: Ipv6Addr,
    pub(crate) published: Ipv6Addr,
    pub(crate) prefix: u8,
    /// Whether the machine forwards packets.
    pub(crate) is_gateway: bool,
}

/// For each standard stream, whether it is a terminal; else it is a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Streams(pub(crate) [bool; 3]);

impl Streams {
    /// Whether keys are passed on unprocessed: the command has the terminal to itself.
    pub(crate) fn is_raw(self) -> bool {
        self.0[0] && self.0[1]
    }

    /// Whether the command gets a terminal. If only its input were one, it would take the keys of
    /// the program that reads its output.
    pub(crate) fn has_terminal(self) -> bool {
        self.0[1] || self.0[2]
    }

    /// Whether the stream of this number is the terminal.
    pub(crate) fn is_terminal(self, number: usize) -> bool {
        match number {
            0 => self.is_raw(),
            _ => self.0[number],
        }
    }
}

/// The command's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terminal {
    pub(crate) size: WindowSize,
    /// Whether the terminal inside does all processing. If not, the one here processes output.
    pub(crate) raw: bool,
}

/// Characters of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowSize {
    pub(crate) rows: u16,
    pub(crate) columns: u16,
}

/// A message to the process inside, after the job.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToInside {
    /// A signal for the command, or for its process group.
    Signal { number: i32, to_group: bool },
    /// The terminal's size has changed.
    Resized(WindowSize),
}

/// A message from the process inside.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromInside {
    /// A note for the user.
    Note { text: String },
    /// New learned records are in the work directory.
    Learned,
    /// Learned records could not be written.
    NotLearned { why: String },
    /// The command runs.
    Started,
    /// The command could not be started, by the system's answer.
    NotStarted { errno: i32 },
    /// The kernel could not be set up.
    Failed { why: String },
    /// The command has ended, and all of its output was sent.
    Ended { code: u8 },
}

/// Sends a message: one line of JSON.
pub(crate) fn send_message(mut to: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_only_from_a_terminal_that_the_command_writes_to() {
        for (streams, raw, terminal, which) in [
            ([true, true, true], true, true, [true, true, true]),
            ([true, true, false], true, true, [true, true, false]),
            // `thalweg-lab stack -- curl … | less`: less reads the keys.
            ([true, false, true], false, true, [false, false, true]),
            ([true, false, false], false, false, [false; 3]),
            ([false, true, true], false, true, [false, true, true]),
            ([false; 3], false, false, [false; 3]),
        ] {
            let streams = Streams(streams);
            assert_eq!((streams.is_raw(), streams.has_terminal()), (raw, terminal));
            assert_eq!([0, 1, 2].map(|it| streams.is_terminal(it)), which);
        }
    }
}
