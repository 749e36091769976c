//! What crosses between this process and the one inside: TCP on an interface that the command
//! does not see, a connection a stream, and one for messages.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The address of this process in the kernel's place.
pub(super) const HERE: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);
/// The address of the process inside.
pub(super) const INSIDE: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 2);
/// Where this process listens.
pub(super) const PORT: u16 = 1;
/// Largest packet, bytes: few packets carry much.
pub(super) const MTU_BYTES: u32 = 65_000;

/// The first byte of a connection says what it is for: messages, the standard stream of this
/// number, or the terminal.
pub(super) const MESSAGES: u8 = b'm';
pub(super) const STREAMS: [u8; 3] = [b'0', b'1', b'2'];
pub(super) const TERMINAL: u8 = b't';

/// What the process inside is to do, the first message that it gets.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) command: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) directory: PathBuf,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) groups: Vec<u32>,
    pub(super) umask: u32,
    /// Soft and hard limit by number (getrlimit(2)).
    pub(super) limits: Vec<(u64, u64)>,
    pub(super) host_name: OsString,
    /// Modules to insert, in this order.
    pub(super) modules: Vec<PathBuf>,
    /// The one that connections have by default.
    pub(super) congestion_control: Option<String>,
    /// Further ones that the kernel must have.
    pub(super) congestion_controls: Vec<String>,
    pub(super) qdisc: Option<String>,
    pub(super) sysctls: Vec<(String, String)>,
    /// The ends of the wire; none where `network` says it all.
    pub(super) ends: Option<Ends>,
    /// Commands of `ip` that make it a host of its network.
    pub(super) network: Vec<String>,
    /// The text of its resolv.conf(5); none: the machine has none.
    pub(super) resolver: Option<String>,
    /// Whether an agent learns from what the command does.
    pub(super) learn: bool,
    /// The policy for what it does.
    pub(super) policy: Option<PathBuf>,
    pub(super) streams: Streams,
    pub(super) terminal: Option<Terminal>,
}

/// Addresses of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ends {
    /// The kernel's.
    pub(super) inside: Ipv4Addr,
    /// The machine's: the gateway.
    pub(super) machine: Ipv4Addr,
    /// Where this process answers for a resolver that the kernel cannot reach.
    pub(super) resolver: Ipv4Addr,
    /// The machine's as well: stands for servers inside.
    pub(super) published: Ipv4Addr,
    pub(super) prefix_v4: u8,
    /// None where the machine has no IPv6.
    pub(super) v6: Option<EndsV6>,
}

/// The same for IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndsV6 {
    pub(super) inside: Ipv6Addr,
    pub(super) machine: Ipv6Addr,
    pub(super) published: Ipv6Addr,
    pub(super) prefix: u8,
    /// Whether the machine passes packets on.
    pub(super) is_gateway: bool,
}

/// Which of the standard streams are terminals; the others are pipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Streams(pub(super) [bool; 3]);

impl Streams {
    /// Whether keys are passed on as they come: the command has the terminal to itself.
    pub(super) fn raw(self) -> bool {
        self.0[0] && self.0[1]
    }

    /// Whether there is a terminal inside. One that is only read from would take keys that
    /// belong to whoever reads the command's output.
    pub(super) fn terminal(self) -> bool {
        self.0[1] || self.0[2]
    }

    /// Whether the stream of this number is the terminal.
    pub(super) fn is_terminal(self, number: usize) -> bool {
        match number {
            0 => self.raw(),
            _ => self.0[number],
        }
    }
}

/// The terminal of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Terminal {
    pub(super) size: WindowSize,
    /// Whether this side leaves all to the terminal inside. Otherwise the one here does what
    /// there is to do with output.
    pub(super) raw: bool,
}

/// Characters of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WindowSize {
    pub(super) rows: u16,
    pub(super) columns: u16,
}

/// What goes in after the job.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToInside {
    /// A signal for the command, or for its process group.
    Signal { number: i32, to_group: bool },
    /// The terminal's size has changed.
    Resized(WindowSize),
}

/// What comes out.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromInside {
    /// Something that the user should know.
    Note { text: String },
    /// The work directory has what was learned.
    Learned,
    /// It has not.
    NotLearned { why: String },
    /// The command runs.
    Started,
    /// It could not be started: the system's answer.
    NotStarted { errno: i32 },
    /// The kernel could not be set up.
    Failed { why: String },
    /// The command has ended, and all that it wrote was sent.
    Ended { code: u8 },
}

/// Sends a message: a JSON document, a line.
pub(super) fn send(mut to: &TcpStream, message: &impl Serialize) -> io::Result<()> {
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
            // `thalweg stack -- curl … | less`: less reads the keys.
            ([true, false, true], false, true, [false, false, true]),
            ([true, false, false], false, false, [false; 3]),
            ([false, true, true], false, true, [false, true, true]),
            ([false; 3], false, false, [false; 3]),
        ] {
            let streams = Streams(streams);
            assert_eq!((streams.raw(), streams.terminal()), (raw, terminal));
            assert_eq!([0, 1, 2].map(|it| streams.is_terminal(it)), which);
        }
    }
}
