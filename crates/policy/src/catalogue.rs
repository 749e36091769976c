//! Everything a rule can set: one table, from which parsing, checks, warnings, the compiled
//! form and the table in `docs/policy.md` come.
//!
//! Levels and names are those of the UAPI (`asm-generic/socket.h`, `linux/tcp.h`,
//! `linux/in.h`, `linux/in6.h`, `linux/bpf.h`), ranges those of `net/core/filter.c`,
//! `net/core/sock.c` and `net/ipv4/tcp.c`.

use crate::Version;
use crate::units::{duration_text, rate_text, size_text};
use std::time::Duration;

/// When an operation is carried out; the numbers are those of `enum thalweg_stage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Before the SYN leaves.
    Connect = 0,
    /// A socket begins to listen.
    Listen = 1,
    /// The kernel asks for a value.
    Asked = 2,
    /// The handshake is done, on either side.
    Established = 3,
    /// A segment is sent again.
    Retransmission = 4,
    /// The retransmission timer fires.
    Rto = 5,
    /// The round-trip time was measured.
    Rtt = 6,
    /// The connection ends.
    Close = 7,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Self; 8] = [
        Self::Connect,
        Self::Listen,
        Self::Asked,
        Self::Established,
        Self::Retransmission,
        Self::Rto,
        Self::Rtt,
        Self::Close,
    ];

    /// Its name in `[rule.on.NAME]`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Listen => "listen",
            Self::Asked => "asked",
            Self::Established => "established",
            Self::Retransmission => "retransmission",
            Self::Rto => "rto",
            Self::Rtt => "rtt",
            Self::Close => "close",
        }
    }

    /// The stage of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// Its bit in a mask of stages.
    pub const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The stages of a mask, in order.
pub fn stages(mask: u8) -> impl Iterator<Item = Stage> {
    Stage::ALL
        .into_iter()
        .filter(move |stage| mask & stage.bit() != 0)
}

/// What a key makes the kernel program do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// `bpf_setsockopt` with a number.
    SetNumber {
        /// `SOL_*`.
        level: u16,
        /// Number of the option.
        name: u16,
    },
    /// `bpf_setsockopt` with a text.
    SetText {
        /// `SOL_*`.
        level: u16,
        /// Number of the option.
        name: u16,
    },
    /// Answers `BPF_SOCK_OPS_TIMEOUT_INIT`.
    TimeoutInit,
    /// Answers `BPF_SOCK_OPS_RWND_INIT`.
    RwndInit,
    /// Answers `BPF_SOCK_OPS_NEEDS_ECN`.
    NeedsEcn,
    /// Answers `BPF_SOCK_OPS_BASE_RTT`.
    BaseRtt,
    /// Type of service of the peer's SYN.
    ReflectTos,
    /// Events with the flow's statistics.
    Statistics,
    /// The experimental header option.
    SendOption,
    /// Reads the peer's.
    ReadOption,
    /// Limits the learner.
    LearnFrom,
}

/// How a value is written, and what the kernel counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `true` or `false`.
    Flag,
    /// `true`; there is nothing that could be switched off.
    Only,
    /// A whole number.
    Number,
    /// A size in bytes.
    Bytes,
    /// A duration in multiples of so many microseconds.
    Time(u32),
    /// A rate in bits per second; the kernel counts bytes.
    Rate,
    /// Name of a congestion control.
    Congestion,
    /// Name of a network device.
    Device,
    /// 32 bits, or "congestion".
    Option,
    /// Names of congestion controls.
    Arms,
}

/// One key of `[rule.set]` and `[rule.on.STAGE]`.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The kernel's name of the option or hook.
    pub option: &'static str,
    /// What it makes the program do.
    pub does: Does,
    /// How its value is written.
    pub unit: Unit,
    /// Least and greatest value, in what the kernel counts.
    pub range: (u32, u32),
    /// Stages at which `[rule.set]` sets it.
    pub set: u8,
    /// Stages at which `[rule.on.STAGE]` may set it.
    pub on: u8,
    /// First kernel that has it.
    pub since: Version,
    /// What it does.
    pub effect: &'static str,
    /// What goes wrong with it.
    pub trap: Option<&'static str>,
}

const SOL_IP: u16 = 0;
const SOL_SOCKET: u16 = 1;
const SOL_TCP: u16 = 6;
const SOL_IPV6: u16 = 41;

const CONNECT: u8 = Stage::Connect.bit();
const LISTEN: u8 = Stage::Listen.bit();
const ASKED: u8 = Stage::Asked.bit();
const ESTABLISHED: u8 = Stage::Established.bit();
const LATER: u8 = Stage::Retransmission.bit() | Stage::Rto.bit() | Stage::Rtt.bit();
const CLOSE: u8 = Stage::Close.bit();
/// As early as the flow is known: with the SYN if this machine opens it.
const OPENING: u8 = CONNECT | ESTABLISHED;
/// While a connection lives, and on listeners, from which accepted connections inherit.
const LIVING: u8 = CONNECT | LISTEN | ESTABLISHED | LATER;

const INT_MAX: u32 = i32::MAX as u32;
const US: Unit = Unit::Time(1);
const MS: Unit = Unit::Time(1_000);
const S: Unit = Unit::Time(1_000_000);

const BUFFER_TRAP: &str = "A fixed buffer switches the kernel's autotuning of it off for the \
    connection. The kernel doubles the value, and net.core.{w,r}mem_max caps it first.";

const fn socket(name: u16) -> Does {
    Does::SetNumber {
        level: SOL_SOCKET,
        name,
    }
}

const fn tcp(name: u16) -> Does {
    Does::SetNumber {
        level: SOL_TCP,
        name,
    }
}

/// The table, in the order of the documentation.
pub static KEYS: &[Key] = &[
    Key {
        name: "timeout_init",
        option: "BPF_SOCK_OPS_TIMEOUT_INIT",
        does: Does::TimeoutInit,
        unit: US,
        range: (1_000, 120_000_000),
        set: ASKED,
        on: 0,
        since: Version(4, 13),
        effect: "First retransmission timeout of the SYN and the SYN-ACK.",
        trap: None,
    },
    Key {
        name: "rwnd_init",
        option: "BPF_SOCK_OPS_RWND_INIT",
        does: Does::RwndInit,
        unit: Unit::Number,
        range: (1, 65_535),
        set: ASKED,
        on: 0,
        since: Version(4, 13),
        effect: "Initial receive window, in packets.",
        trap: Some(
            "Since Linux 4.20 a connection begins with as much as the buffer and the SYN's 64 KiB \
             allow: this can only lower it.",
        ),
    },
    Key {
        name: "needs_ecn",
        option: "BPF_SOCK_OPS_NEEDS_ECN",
        does: Does::NeedsEcn,
        unit: Unit::Flag,
        range: (0, 1),
        set: ASKED,
        on: 0,
        since: Version(4, 13),
        effect: "Negotiates ECN, whatever net.ipv4.tcp_ecn says; false leaves it to that.",
        trap: None,
    },
    Key {
        name: "base_rtt",
        option: "BPF_SOCK_OPS_BASE_RTT",
        does: Does::BaseRtt,
        unit: US,
        range: (1, 10_000_000),
        set: ASKED,
        on: 0,
        since: Version(4, 15),
        effect: "Round-trip time without queues, told to a congestion control that asks.",
        trap: Some("Of the kernel's own congestion controls, only nv asks for it."),
    },
    Key {
        name: "congestion",
        option: "TCP_CONGESTION",
        does: Does::SetText {
            level: SOL_TCP,
            name: 13,
        },
        unit: Unit::Congestion,
        range: (1, 15),
        set: ESTABLISHED,
        on: LIVING,
        since: Version(4, 13),
        effect: "Congestion control. The kernel loads no module for it; `arms.load` does.",
        trap: None,
    },
    Key {
        name: "learn_from",
        option: "",
        does: Does::LearnFrom,
        unit: Unit::Arms,
        range: (1, 16),
        set: ESTABLISHED,
        on: 0,
        since: Version(4, 13),
        effect: "The learner chooses among these congestion controls only.",
        trap: None,
    },
    Key {
        name: "initial_window",
        option: "TCP_BPF_IW",
        does: tcp(1001),
        unit: Unit::Number,
        range: (1, 65_535),
        set: ESTABLISHED,
        on: ESTABLISHED,
        since: Version(4, 13),
        effect: "Initial congestion window, in packets.",
        trap: Some(
            "It fails once the connection has sent data, so it does nothing for connections \
             that were open before the policy.",
        ),
    },
    Key {
        name: "cwnd_clamp",
        option: "TCP_BPF_SNDCWND_CLAMP",
        does: tcp(1002),
        unit: Unit::Number,
        range: (1, INT_MAX),
        set: ESTABLISHED,
        on: ESTABLISHED | LATER,
        since: Version(4, 13),
        effect: "Greatest congestion window, in packets.",
        trap: Some("It sets the slow-start threshold to the same value as well."),
    },
    Key {
        name: "delack_max",
        option: "TCP_BPF_DELACK_MAX",
        does: tcp(1003),
        unit: US,
        range: (2_000, 200_000),
        set: OPENING,
        on: LIVING,
        since: Version(5, 10),
        effect: "Longest delay of an acknowledgement.",
        trap: Some(
            "The kernel refuses less than two of its clock ticks: 2 ms at HZ=1000, 8 ms at \
             HZ=250, 20 ms at HZ=100.",
        ),
    },
    Key {
        name: "rto_min",
        option: "TCP_BPF_RTO_MIN",
        does: tcp(1004),
        unit: US,
        range: (2_000, 200_000),
        set: OPENING,
        on: LIVING,
        since: Version(5, 10),
        effect: "Least retransmission timeout.",
        trap: Some(
            "The kernel refuses less than two of its clock ticks (2 ms at HZ=1000, 8 ms at \
             HZ=250, 20 ms at HZ=100). Below the peer's delay of acknowledgements, timeouts are \
             spurious.",
        ),
    },
    Key {
        name: "rto_max",
        option: "TCP_RTO_MAX_MS",
        does: tcp(44),
        unit: MS,
        range: (1_000, 120_000),
        set: OPENING,
        on: LIVING,
        since: Version(6, 15),
        effect: "Greatest retransmission timeout.",
        trap: None,
    },
    Key {
        name: "sndbuf",
        option: "SO_SNDBUF",
        does: socket(7),
        unit: Unit::Bytes,
        range: (2_304, INT_MAX / 2),
        set: OPENING,
        on: LIVING,
        since: Version(4, 13),
        effect: "Send buffer.",
        trap: Some(BUFFER_TRAP),
    },
    Key {
        name: "rcvbuf",
        option: "SO_RCVBUF",
        does: socket(8),
        unit: Unit::Bytes,
        range: (1_152, INT_MAX / 2),
        set: OPENING,
        on: LIVING,
        since: Version(4, 13),
        effect: "Receive buffer.",
        trap: Some(BUFFER_TRAP),
    },
    Key {
        name: "window_clamp",
        option: "TCP_WINDOW_CLAMP",
        does: tcp(10),
        unit: Unit::Bytes,
        range: (1, INT_MAX),
        set: OPENING,
        on: LIVING,
        since: Version(5, 11),
        effect: "Greatest receive window that is offered.",
        trap: None,
    },
    Key {
        name: "notsent_lowat",
        option: "TCP_NOTSENT_LOWAT",
        does: tcp(25),
        unit: Unit::Bytes,
        range: (1, INT_MAX),
        set: OPENING,
        on: LIVING,
        since: Version(5, 10),
        effect: "The application may write while less than this is unsent.",
        trap: None,
    },
    Key {
        name: "rcvlowat",
        option: "SO_RCVLOWAT",
        does: socket(18),
        unit: Unit::Bytes,
        range: (1, INT_MAX),
        set: OPENING,
        on: LIVING,
        since: Version(4, 13),
        effect: "The application is woken once this much can be read.",
        trap: Some("An application that does not expect it waits for bytes that may never come."),
    },
    Key {
        name: "max_pacing_rate",
        option: "SO_MAX_PACING_RATE",
        does: socket(47),
        unit: Unit::Rate,
        range: (1, u32::MAX - 1),
        set: OPENING,
        on: LIVING,
        since: Version(4, 13),
        effect: "Greatest rate at which the connection sends.",
        trap: Some(
            "Where the interface's queueing discipline is not fq, TCP paces by a timer of its own \
             for each connection, which costs CPU.",
        ),
    },
    Key {
        name: "nodelay",
        option: "TCP_NODELAY",
        does: tcp(1),
        unit: Unit::Flag,
        range: (0, 1),
        set: OPENING,
        on: LIVING,
        since: Version(6, 1),
        effect: "Small segments do not wait for acknowledgements.",
        trap: None,
    },
    Key {
        name: "max_segment",
        option: "TCP_MAXSEG",
        does: tcp(2),
        unit: Unit::Number,
        range: (88, 32_767),
        set: CONNECT | LISTEN,
        on: CONNECT | LISTEN,
        since: Version(6, 1),
        effect: "Largest segment, in bytes: told to the peer in the SYN or SYN-ACK.",
        trap: None,
    },
    Key {
        name: "syn_count",
        option: "TCP_SYNCNT",
        does: tcp(7),
        unit: Unit::Number,
        range: (1, 127),
        set: CONNECT,
        on: CONNECT,
        since: Version(5, 9),
        effect: "How often the SYN is sent again.",
        trap: None,
    },
    Key {
        name: "thin_linear_timeouts",
        option: "TCP_THIN_LINEAR_TIMEOUTS",
        does: tcp(16),
        unit: Unit::Flag,
        range: (0, 1),
        set: OPENING,
        on: LIVING,
        since: Version(6, 1),
        effect: "Timeouts of a connection with few packets under way do not double.",
        trap: None,
    },
    Key {
        name: "user_timeout",
        option: "TCP_USER_TIMEOUT",
        does: tcp(18),
        unit: MS,
        range: (1, INT_MAX),
        set: OPENING,
        on: LIVING,
        since: Version(5, 9),
        effect: "How long data may stay unacknowledged before the connection is given up.",
        trap: None,
    },
    Key {
        name: "keepalive",
        option: "SO_KEEPALIVE",
        does: socket(9),
        unit: Unit::Flag,
        range: (0, 1),
        set: ESTABLISHED,
        on: CONNECT | LISTEN | ESTABLISHED,
        since: Version(5, 9),
        effect: "Probes an idle peer.",
        trap: None,
    },
    Key {
        name: "keepalive_idle",
        option: "TCP_KEEPIDLE",
        does: tcp(4),
        unit: S,
        range: (1, 32_767),
        set: ESTABLISHED,
        on: CONNECT | LISTEN | ESTABLISHED,
        since: Version(5, 9),
        effect: "Idle time before the first probe.",
        trap: None,
    },
    Key {
        name: "keepalive_interval",
        option: "TCP_KEEPINTVL",
        does: tcp(5),
        unit: S,
        range: (1, 32_767),
        set: ESTABLISHED,
        on: CONNECT | LISTEN | ESTABLISHED,
        since: Version(5, 9),
        effect: "Time between probes.",
        trap: None,
    },
    Key {
        name: "keepalive_count",
        option: "TCP_KEEPCNT",
        does: tcp(6),
        unit: Unit::Number,
        range: (1, 127),
        set: ESTABLISHED,
        on: CONNECT | LISTEN | ESTABLISHED,
        since: Version(5, 9),
        effect: "Unanswered probes before the connection is given up.",
        trap: None,
    },
    Key {
        name: "priority",
        option: "SO_PRIORITY",
        does: socket(12),
        unit: Unit::Number,
        range: (0, u32::MAX),
        set: OPENING,
        on: LIVING,
        since: Version(4, 13),
        effect: "Priority for queueing disciplines.",
        trap: None,
    },
    Key {
        name: "mark",
        option: "SO_MARK",
        does: socket(36),
        unit: Unit::Number,
        range: (0, u32::MAX),
        set: OPENING,
        on: LIVING,
        since: Version(4, 13),
        effect: "Mark for routing rules and filters.",
        trap: None,
    },
    Key {
        name: "bind_to_device",
        option: "SO_BINDTODEVICE",
        does: Does::SetText {
            level: SOL_SOCKET,
            name: 25,
        },
        unit: Unit::Device,
        range: (1, 15),
        set: CONNECT,
        on: CONNECT | LISTEN,
        since: Version(5, 8),
        effect: "Network device that the connection uses.",
        trap: None,
    },
    Key {
        name: "tx_rehash",
        option: "SO_TXREHASH",
        does: socket(74),
        unit: Unit::Flag,
        range: (0, 1),
        set: OPENING,
        on: LIVING,
        since: Version(5, 18),
        effect: "Retransmissions may take another path.",
        trap: None,
    },
    Key {
        name: "tos",
        option: "IP_TOS",
        does: Does::SetNumber {
            level: SOL_IP,
            name: 1,
        },
        unit: Unit::Number,
        range: (0, 255),
        set: OPENING,
        on: LIVING,
        since: Version(4, 17),
        effect: "Type of service (IPv4); its two ECN bits stay TCP's own.",
        trap: None,
    },
    Key {
        name: "tclass",
        option: "IPV6_TCLASS",
        does: Does::SetNumber {
            level: SOL_IPV6,
            name: 67,
        },
        unit: Unit::Number,
        range: (0, 255),
        set: OPENING,
        on: LIVING,
        since: Version(4, 16),
        effect: "Traffic class (IPv6); its two ECN bits stay TCP's own.",
        trap: None,
    },
    Key {
        name: "autoflowlabel",
        option: "IPV6_AUTOFLOWLABEL",
        does: Does::SetNumber {
            level: SOL_IPV6,
            name: 70,
        },
        unit: Unit::Flag,
        range: (0, 1),
        set: OPENING,
        on: LIVING,
        since: Version(6, 1),
        effect: "Flow label from the connection's hash (IPv6).",
        trap: None,
    },
    Key {
        name: "save_syn",
        option: "TCP_SAVE_SYN",
        does: tcp(27),
        unit: Unit::Flag,
        range: (0, 1),
        set: LISTEN,
        on: LISTEN,
        since: Version(4, 20),
        effect: "Listeners keep the headers of each SYN for the application. `reflect_tos` and \
                 `read_option` see to it themselves.",
        trap: None,
    },
    Key {
        name: "reflect_tos",
        option: "TCP_SAVED_SYN",
        does: Does::ReflectTos,
        unit: Unit::Only,
        range: (1, 1),
        set: ESTABLISHED,
        on: 0,
        since: Version(4, 20),
        effect: "Accepted connections answer with the type of service or traffic class of the SYN.",
        trap: None,
    },
    Key {
        name: "send_option",
        option: "BPF_SOCK_OPS_WRITE_HDR_OPT_CB",
        does: Does::SendOption,
        unit: Unit::Option,
        range: (0, u32::MAX),
        set: CONNECT | LISTEN,
        on: 0,
        since: Version(5, 10),
        effect: "Sends these 32 bits, or a hash of the congestion control's name, in experimental \
                 TCP option 253 of the SYN or SYN-ACK.",
        trap: None,
    },
    Key {
        name: "read_option",
        option: "BPF_SOCK_OPS_PARSE_HDR_OPT_CB",
        does: Does::ReadOption,
        unit: Unit::Only,
        range: (1, 1),
        set: ESTABLISHED,
        on: 0,
        since: Version(5, 10),
        effect: "Reads the peer's option: counted, and told in events.",
        trap: None,
    },
    Key {
        name: "statistics",
        option: "BPF_SOCK_OPS_RTT_CB",
        does: Does::Statistics,
        unit: US,
        range: (0, 3_600_000_000),
        set: Stage::Rtt.bit(),
        on: LATER | CLOSE,
        since: Version(5, 3),
        effect: "An event with what the flow delivered, lost and measured, at most once in this \
                 time; \"0\" is every time.",
        trap: None,
    },
];

/// The key of that name.
pub fn key(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Key {
    /// First kernel that has this key at a stage.
    pub fn since(&self, mask: u8) -> Version {
        let hook = stages(mask).map(|stage| match stage {
            Stage::Listen => Version(4, 19),
            Stage::Retransmission | Stage::Rto | Stage::Close => Version(4, 16),
            Stage::Rtt => Version(5, 3),
            Stage::Connect | Stage::Asked | Stage::Established => Version(4, 13),
        });
        let own = match self.does {
            // The hook alone counts.
            Does::Statistics => Version(4, 13),
            _ => self.since,
        };
        hook.fold(own, Version::max)
    }

    /// Whether it is for IPv4 (`Some(true)`) or IPv6 (`Some(false)`) sockets alone.
    pub fn ipv4_only(&self) -> Option<bool> {
        match self.does {
            Does::SetNumber { level: SOL_IP, .. } => Some(true),
            Does::SetNumber {
                level: SOL_IPV6, ..
            } => Some(false),
            _ => None,
        }
    }

    /// What a value may be, in the words of an error message.
    pub fn expected(&self) -> String {
        let (least, most) = self.range;
        match self.unit {
            Unit::Flag => "true or false".to_owned(),
            Unit::Only => "true".to_owned(),
            Unit::Number => format!("a whole number from {least} to {most}"),
            Unit::Bytes => format!(
                "a size from \"{}\" to \"{}\"",
                size_text(least.into()),
                size_text(most.into())
            ),
            Unit::Time(us) => {
                let text = |value: u32| {
                    duration_text(Duration::from_micros(u64::from(value) * u64::from(us)))
                };
                let whole = match us {
                    1 => "",
                    1_000 => " in whole milliseconds",
                    _ => " in whole seconds",
                };
                format!(
                    "a duration{whole} from \"{}\" to \"{}\"",
                    text(least),
                    text(most)
                )
            }
            Unit::Rate => format!(
                "a rate from \"{}\" to \"{}\"",
                rate_text(u64::from(least) * 8),
                rate_text(u64::from(most) * 8)
            ),
            Unit::Congestion => {
                "the name of a congestion control (1 to 15 of a-z, 0-9, _ and -)".to_owned()
            }
            Unit::Device => {
                "the name of a network device (1 to 15 characters, no spaces or /)".to_owned()
            }
            Unit::Option => format!("a whole number from {least} to {most}, or \"congestion\""),
            Unit::Arms => {
                format!("a list of {least} to {most} names of congestion controls, each once")
            }
        }
    }
}

/// The table of `docs/policy.md`.
pub fn markdown() -> String {
    let mut text = "| Key | Accepts | Set at | Also at | Kernel option | Since | Effect |\n\
                    |---|---|---|---|---|---|---|\n"
        .to_owned();
    let names = |mask: u8| {
        let names: Vec<&str> = stages(mask).map(Stage::name).collect();
        names.join(", ")
    };
    for key in KEYS {
        let option = match key.option {
            "" => String::new(),
            option => format!("`{option}`"),
        };
        text.push_str(&format!(
            "| `{}` | `{}` | {} | {} | {option} | {} | {} |\n",
            key.name,
            key.expected(),
            names(key.set),
            names(key.on & !key.set),
            key.since,
            key.effect,
        ));
    }
    text
}
