//! The table itself.

use super::{KernelOperation, Key, Stage, Unit};
use crate::Version;

pub(super) const SOL_IP: u16 = 0;
const SOL_SOCKET: u16 = 1;
const SOL_TCP: u16 = 6;
pub(super) const SOL_IPV6: u16 = 41;

const CONNECT: u8 = Stage::Connect.bit();
const LISTEN: u8 = Stage::Listen.bit();
const ASKED: u8 = Stage::Asked.bit();
const ESTABLISHED: u8 = Stage::Established.bit();
const LATER_STAGES: u8 = Stage::Retransmission.bit() | Stage::Rto.bit() | Stage::Rtt.bit();
const CLOSE: u8 = Stage::Close.bit();
/// As soon as the flow is known: with the SYN if this machine opens it.
const OPENING: u8 = CONNECT | ESTABLISHED;
/// While a connection lives, and on listeners, from which accepted connections inherit.
const LIVING: u8 = CONNECT | LISTEN | ESTABLISHED | LATER_STAGES;

const INT_MAX: u32 = i32::MAX as u32;
const US: Unit = Unit::Time(1);
const MS: Unit = Unit::Time(1_000);
const S: Unit = Unit::Time(1_000_000);

const BUFFER_TRAP: &str = "A fixed buffer ends the kernel's autotuning of it. The kernel doubles \
    the value; net.core.{w,r}mem_max caps it first.";

const fn set_number(level: u16, name: u16) -> KernelOperation {
    KernelOperation::SetNumber { level, name }
}

const fn set_text(level: u16, name: u16) -> KernelOperation {
    KernelOperation::SetText { level, name }
}

const fn socket(name: u16) -> KernelOperation {
    set_number(SOL_SOCKET, name)
}

const fn tcp(name: u16) -> KernelOperation {
    set_number(SOL_TCP, name)
}

/// A key per row: name; the kernel's name and how the program applies it; unit, range, stages of
/// `set`, stages of `on`, first kernel; effect; trap; of a cap, the value that stands for none.
macro_rules! keys {
    ($($name:ident: $option:literal, $does:expr,
        $unit:expr, $range:expr, $set:expr, $on:expr, ($major:literal, $minor:literal),
        $effect:literal $(trap $trap:expr)? $(, cap $cap:expr)?;)*) => {
        /// The table, in the order of the documentation.
        pub static KEYS: &[Key] = &[$(Key {
            name: stringify!($name),
            option: $option,
            does: $does,
            unit: $unit,
            range: $range,
            set: $set,
            on: $on,
            since: Version($major, $minor),
            effect: $effect,
            trap: maybe!($($trap)?),
            cap: maybe!($($cap)?),
        },)*];
    };
}

macro_rules! maybe {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

keys! {
    timeout_init: "BPF_SOCK_OPS_TIMEOUT_INIT", KernelOperation::TimeoutInit,
        US, (1_000, 120_000_000), ASKED, 0, (4, 13),
        "First retransmission timeout of the SYN and the SYN-ACK.";
    rwnd_init: "BPF_SOCK_OPS_RWND_INIT", KernelOperation::RwndInit,
        Unit::Number, (1, 65_535), ASKED, 0, (4, 13),
        "Initial receive window, in packets."
        trap "From Linux 4.20 on it can only lower the window, which begins with as much as the \
            buffer and 64 KiB allow.";
    needs_ecn: "BPF_SOCK_OPS_NEEDS_ECN", KernelOperation::NeedsEcn,
        Unit::Flag, (0, 1), ASKED, 0, (4, 13),
        "Negotiates ECN, whatever net.ipv4.tcp_ecn says; false leaves it to that.";
    base_rtt: "BPF_SOCK_OPS_BASE_RTT", KernelOperation::BaseRtt,
        US, (1, 10_000_000), ASKED, 0, (4, 15),
        "Round-trip time without queues, told to a congestion control that asks."
        trap "Of the kernel's own congestion controls, only nv asks for it.";
    congestion: "TCP_CONGESTION", set_text(SOL_TCP, 13),
        Unit::Congestion, (1, 15), ESTABLISHED, LIVING, (4, 13),
        "Congestion control. `arms.load` loads its module; the kernel does not.";
    learn_from: "", KernelOperation::LearnFrom,
        Unit::Arms, (1, 16), ESTABLISHED, 0, (4, 13),
        "The learner chooses among these only.";
    initial_window: "TCP_BPF_IW", tcp(1001),
        Unit::Number, (1, 65_535), ESTABLISHED, ESTABLISHED, (4, 13),
        "Initial congestion window, in packets."
        trap "It fails once the connection has sent data, as open connections have.";
    cwnd_clamp: "TCP_BPF_SNDCWND_CLAMP", tcp(1002),
        Unit::Number, (1, INT_MAX), ESTABLISHED, ESTABLISHED | LATER_STAGES, (4, 13),
        "Maximum congestion window, in packets."
        trap "It sets the slow-start threshold as well, and lowers the initial window.";
    delack_max: "TCP_BPF_DELACK_MAX", tcp(1003),
        US, (2_000, 200_000), OPENING, LIVING, (5, 10),
        "Maximum delay of an ACK."
        trap "The kernel refuses less than two of its clock ticks: 2 ms at HZ=1000, 8 ms at \
            HZ=250, 20 ms at HZ=100.";
    rto_min: "TCP_BPF_RTO_MIN", tcp(1004),
        US, (2_000, 200_000), OPENING, LIVING, (5, 10),
        "Minimum retransmission timeout."
        trap "The kernel refuses less than two of its clock ticks: 2 ms at HZ=1000, 8 ms at \
            HZ=250, 20 ms at HZ=100. Below the peer's delay of ACKs, timeouts are spurious.";
    rto_max: "TCP_RTO_MAX_MS", tcp(44),
        MS, (1_000, 120_000), OPENING, LIVING, (6, 15),
        "Maximum retransmission timeout.", cap 0;
    sndbuf: "SO_SNDBUF", socket(7),
        Unit::Bytes, (2_304, INT_MAX / 2), OPENING, LIVING, (4, 13),
        "Send buffer."
        trap BUFFER_TRAP;
    rcvbuf: "SO_RCVBUF", socket(8),
        Unit::Bytes, (1_152, INT_MAX / 2), OPENING, LIVING, (4, 13),
        "Receive buffer."
        trap BUFFER_TRAP;
    window_clamp: "TCP_WINDOW_CLAMP", tcp(10),
        Unit::Bytes, (1, INT_MAX), OPENING, LIVING, (5, 11),
        "Maximum receive window to advertise.";
    notsent_lowat: "TCP_NOTSENT_LOWAT", tcp(25),
        Unit::Bytes, (1, INT_MAX), OPENING, LIVING, (5, 10),
        "The application may write while less than this is unsent.", cap 0;
    rcvlowat: "SO_RCVLOWAT", socket(18),
        Unit::Bytes, (1, INT_MAX), OPENING, LIVING, (4, 13),
        "The application is woken once this much can be read."
        trap "An application that does not expect it may wait for bytes that never come.";
    max_pacing_rate: "SO_MAX_PACING_RATE", socket(47),
        Unit::Rate, (1, u32::MAX - 1), OPENING, LIVING, (4, 13),
        "Maximum pacing rate."
        trap "Without fq on the interface, TCP paces by a timer for each connection, which costs \
            CPU.", cap 0;
    nodelay: "TCP_NODELAY", tcp(1),
        Unit::Flag, (0, 1), OPENING, LIVING, (6, 1),
        "Small segments do not wait for ACKs (no Nagle).";
    max_segment: "TCP_MAXSEG", tcp(2),
        Unit::Number, (88, 32_767), CONNECT | LISTEN, CONNECT | LISTEN, (6, 1),
        "Largest segment, in bytes; the SYN or SYN-ACK tells the peer.";
    syn_count: "TCP_SYNCNT", tcp(7),
        Unit::Number, (1, 127), CONNECT, CONNECT | LISTEN, (5, 9),
        "Retransmissions of the SYN; at `listen` those of the SYN-ACK.";
    thin_linear_timeouts: "TCP_THIN_LINEAR_TIMEOUTS", tcp(16),
        Unit::Flag, (0, 1), OPENING, LIVING, (6, 1),
        "Timeouts with few packets in flight do not double.";
    user_timeout: "TCP_USER_TIMEOUT", tcp(18),
        MS, (1, INT_MAX), OPENING, LIVING, (5, 9),
        "Longest time that data, or a SYN, may stay unacknowledged.", cap 0;
    keepalive: "SO_KEEPALIVE", socket(9),
        Unit::Flag, (0, 1), ESTABLISHED, CONNECT | LISTEN | ESTABLISHED, (5, 9),
        "Probes an idle peer.";
    keepalive_idle: "TCP_KEEPIDLE", tcp(4),
        S, (1, 32_767), ESTABLISHED, CONNECT | LISTEN | ESTABLISHED, (5, 9),
        "Idle time before the first probe.", cap 7200;
    keepalive_interval: "TCP_KEEPINTVL", tcp(5),
        S, (1, 32_767), ESTABLISHED, CONNECT | LISTEN | ESTABLISHED, (5, 9),
        "Time between probes.", cap 75;
    keepalive_count: "TCP_KEEPCNT", tcp(6),
        Unit::Number, (1, 127), ESTABLISHED, CONNECT | LISTEN | ESTABLISHED, (5, 9),
        "Unacknowledged probes that end the connection.", cap 9;
    priority: "SO_PRIORITY", socket(12),
        Unit::Number, (0, u32::MAX), OPENING, LIVING, (4, 13),
        "Priority for queueing disciplines.";
    mark: "SO_MARK", socket(36),
        Unit::Number, (0, u32::MAX), OPENING, LIVING, (4, 13),
        "Mark for routing rules and filters.";
    bind_to_device: "SO_BINDTODEVICE", set_text(SOL_SOCKET, 25),
        Unit::Device, (1, 15), LISTEN, LISTEN, (5, 8),
        "Network device of a listener and of the connections that it accepts.";
    tx_rehash: "SO_TXREHASH", socket(74),
        Unit::Flag, (0, 1), OPENING, LIVING, (5, 18),
        "Retransmissions may take another path.";
    tos: "IP_TOS", set_number(SOL_IP, 1),
        Unit::Number, (0, 255), OPENING, LIVING, (4, 17),
        "Type of service (IPv4); its two ECN bits stay TCP's own."
        trap "The kernel derives the priority from it, unless the rule sets `priority`.";
    tclass: "IPV6_TCLASS", set_number(SOL_IPV6, 67),
        Unit::Number, (0, 255), OPENING, LIVING, (4, 16),
        "Traffic class (IPv6); its two ECN bits stay TCP's own.";
    autoflowlabel: "IPV6_AUTOFLOWLABEL", set_number(SOL_IPV6, 70),
        Unit::Flag, (0, 1), OPENING, LIVING, (6, 1),
        "Flow label from the connection's hash (IPv6).";
    save_syn: "TCP_SAVE_SYN", tcp(27),
        Unit::Flag, (0, 1), LISTEN, LISTEN, (4, 20),
        "Listeners keep the headers of each SYN for the application.";
    reflect_tos: "TCP_SAVED_SYN", KernelOperation::ReflectTos,
        Unit::Only, (1, 1), ESTABLISHED, 0, (4, 20),
        "Accepted connections have the SYN's type of service or traffic class.";
    send_option: "BPF_SOCK_OPS_WRITE_HDR_OPT_CB", KernelOperation::SendOption,
        Unit::Option, (0, u32::MAX), CONNECT | LISTEN, 0, (5, 10),
        "Sends these 32 bits, or a hash of the congestion control's name, in TCP option \
        253 of the SYN or SYN-ACK.";
    read_option: "BPF_SOCK_OPS_PARSE_HDR_OPT_CB", KernelOperation::ReadOption,
        Unit::Only, (1, 1), ESTABLISHED, 0, (5, 10),
        "Counts and reports the peer's option.";
    statistics: "BPF_SOCK_OPS_RTT_CB", KernelOperation::Statistics,
        US, (0, 3_600_000_000), Stage::Rtt.bit(), LATER_STAGES | CLOSE, (5, 3),
        "An event with what the flow delivered, lost and measured, at most once in this \
        time; \"0\": always.";
}
