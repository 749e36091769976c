//! Waits until the command at the far end listens.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use thalweg_process::signals::Signals;

use crate::child::Child;
use crate::error::Error;

/// How long it may take.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the kernel's tables are read: nothing tells of a new listener.
const INTERVAL_MS: u16 = 5;

/// States of linux/tcp_states.h: a listener, and a UDP socket without a peer.
const TABLES: [(&str, &str); 4] = [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")];

/// Returns when something at the far end listens on the TCP or UDP port.
pub(crate) fn wait_for_listener(
    far: &mut Child,
    port: u16,
    signals: &Signals,
) -> Result<(), Error> {
    let deadline = Instant::now() + LISTEN_TIMEOUT;
    let late = |why: String| Err(Error::Far(why));
    loop {
        if is_listening(far.id(), port) {
            return Ok(());
        }
        if let Some(status) = far.exit_status()? {
            return late(format!(
                "it ended ({status}) before it listened on port {port}"
            ));
        }
        if Instant::now() > deadline {
            let seconds = LISTEN_TIMEOUT.as_secs();
            return late(format!(
                "it does not listen on port {port} after {seconds} s"
            ));
        }
        let mut watched = [
            PollFd::new(far.pidfd(), PollFlags::POLLIN),
            PollFd::new(signals.descriptor(), PollFlags::POLLIN),
        ];
        match poll(&mut watched, PollTimeout::from(INTERVAL_MS)) {
            Ok(_) if watched[1].any() == Some(true) => {
                return Err(thalweg_process::Error::Interrupted.into());
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::system("poll")(io::Error::from(errno))),
        }
    }
}

fn is_listening(pid: u32, port: u16) -> bool {
    TABLES.iter().any(|(table, state)| {
        fs::read_to_string(format!("/proc/{pid}/net/{table}"))
            .is_ok_and(|text| has_listener(&text, state, port))
    })
}

/// Whether a table of sockets, as /proc/net/tcp is one, has the state and port.
fn has_listener(text: &str, state: &str, port: u16) -> bool {
    let port = format!("{port:04X}");
    text.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next().and_then(|local| local.rsplit(':').next());
        local == Some(port.as_str()) && fields.nth(1) == Some(state)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_in_the_table() {
        let text = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:0050 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 2 1
";
        assert!(has_listener(text, "0A", 5201));
        // That one is connected.
        assert!(!has_listener(text, "0A", 80));
        assert!(!has_listener(text, "0A", 50000));
        assert!(!has_listener("", "0A", 5201));
    }
}
