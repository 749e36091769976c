//! Features of TCP sockets that the standard library lacks.

use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, sockopt};
use nix::sys::time::TimeVal;

/// Unsent bytes that a stream keeps in its socket: few, so that it stops in time.
static UNSENT_BYTES: libc::c_int = 128 * 1024;

/// An unconnected socket with its congestion control. It gives up if it stalls for the given time.
pub(super) fn open_socket(
    server: SocketAddr,
    cc: Option<&str>,
    patience: Duration,
) -> io::Result<OwnedFd> {
    let family = match server {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let fd = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let limit = TimeVal::new(patience.as_secs() as libc::time_t, 0);
    // The send time-out holds for connect(2), too (socket(7)).
    socket::setsockopt(&fd, sockopt::SendTimeout, &limit)?;
    socket::setsockopt(&fd, sockopt::ReceiveTimeout, &limit)?;
    socket::setsockopt(&fd, sockopt::TcpNoDelay, &true)?;
    if let Some(cc) = cc {
        socket::setsockopt(&fd, sockopt::TcpCongestion, &OsString::from(cc)).map_err(|errno| {
            let message = format!("cannot set the congestion control {cc}: {errno}");
            io::Error::new(io::Error::from(errno).kind(), message)
        })?;
    }
    Ok(fd)
}

pub(super) fn connect_socket(fd: OwnedFd, server: SocketAddr) -> io::Result<TcpStream> {
    let address = SockaddrStorage::from(server);
    socket::connect(fd.as_raw_fd(), &address).map_err(|errno| match errno {
        Errno::EINPROGRESS => stalled_error("connecting"),
        other => while_doing("connecting", other.into()),
    })?;
    Ok(fd.into())
}

/// The error of a connection that stalled.
pub(super) fn stalled_error(doing: &str) -> io::Error {
    let seconds = super::STALL_TIMEOUT_MS / 1000;
    let message = format!("no progress for {seconds} s while {doing}");
    io::Error::new(io::ErrorKind::TimedOut, message)
}

/// An error with the action that failed. A time-out of the socket becomes [`stalled_error`].
pub(super) fn while_doing(doing: &str, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => stalled_error(doing),
        kind => io::Error::new(kind, format!("while {doing}: {error}")),
    }
}

/// The congestion control of a connection.
pub(super) fn congestion_control(stream: &TcpStream) -> io::Result<String> {
    let name = socket::getsockopt(stream, sockopt::TcpCongestion)?;
    let name = name.to_string_lossy();
    Ok(name.trim_end_matches('\0').to_owned())
}

/// Makes a socket writable only while it has few unsent bytes.
pub(super) fn limit_unsent(stream: &TcpStream) -> io::Result<()> {
    // SAFETY: the kernel reads one int of a constant on an open descriptor.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const UNSENT_BYTES).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes as much as fits without waiting.
pub(super) fn write_some(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = socket::MsgFlags::MSG_DONTWAIT | socket::MsgFlags::MSG_NOSIGNAL;
    socket::send(stream.as_raw_fd(), bytes, flags).map_err(|errno| match io::Error::from(errno) {
        error if error.kind() == io::ErrorKind::WouldBlock => error,
        error => while_doing("sending", error),
    })
}

/// Waits until the socket is writable; false if the time is over.
pub(super) fn wait_writable(stream: &TcpStream, patience: Duration) -> io::Result<bool> {
    wait_ready(stream, PollFlags::POLLOUT, patience)
}

/// Waits until the socket is readable; false if the time is over.
pub(super) fn wait_readable(stream: &TcpStream, patience: Duration) -> io::Result<bool> {
    wait_ready(stream, PollFlags::POLLIN, patience)
}

fn wait_ready(stream: &TcpStream, events: PollFlags, patience: Duration) -> io::Result<bool> {
    let mut watched = [PollFd::new(stream.as_fd(), events)];
    let milliseconds = patience.as_micros().div_ceil(1000).min(60_000) as i32;
    let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::ZERO);
    match poll(&mut watched, timeout) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The kernel's figures of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Info {
    /// Smoothed round-trip time, µs; 0 before the first measurement.
    pub(super) srtt_us: u32,
    /// Least round-trip time, µs; `u32::MAX` before the first measurement.
    pub(super) min_rtt_us: u32,
    /// Segments retransmitted.
    pub(super) retransmits: u64,
    /// Data segments sent, retransmissions included.
    pub(super) data_segments_sent: u64,
}

/// Reads `struct tcp_info` (linux/tcp.h) by offset, as libc's ends before the last fields. Linux
/// 4.6 and later have all of these.
pub(super) fn tcp_info(stream: &TcpStream) -> io::Result<Info> {
    const RTT: usize = 68;
    const TOTAL_RETRANS: usize = 100;
    const MIN_RTT: usize = 148;
    const DATA_SEGS_OUT: usize = 156;
    let mut buffer = [0u8; 256];
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to a buffer of that size, and the new length
    // to an integer of its type.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            buffer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if (length as usize) < DATA_SEGS_OUT + 4 {
        let message = format!("the kernel's tcp_info has {length} bytes only");
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    let word = |offset: usize| {
        let mut bytes = [0u8; 4];
        bytes.copy_from_slice(&buffer[offset..offset + 4]);
        u32::from_ne_bytes(bytes)
    };
    Ok(Info {
        srtt_us: word(RTT),
        min_rtt_us: word(MIN_RTT),
        retransmits: word(TOTAL_RETRANS).into(),
        data_segments_sent: word(DATA_SEGS_OUT).into(),
    })
}
