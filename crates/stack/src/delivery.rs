//! Inside the kernel: what a command has left in its connections when it ends. A kernel that goes
//! on would deliver it, so this one stays for that.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long that may take.
const LONG: Duration = Duration::from_secs(30);
/// The same where a signal has ended the command.
const SHORT: Duration = Duration::from_secs(1);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Waits until the connections of a command that has ended have delivered what is left in them:
/// with the kernel they end. A signal that comes meanwhile (`hurry`) ends the wait.
pub(crate) fn finish(by_signal: bool, hurry: &AtomicBool) {
    let patience = if by_signal { SHORT } else { LONG };
    let deadline = Instant::now() + patience;
    while orphans() > 0 && Instant::now() < deadline && !hurry.load(Ordering::SeqCst) {
        thread::sleep(LOOK);
    }
}

/// TCP sockets that no process has any more, and that have not sent everything
/// (`tcp_orphan_count`, net/ipv4/proc.c).
fn orphans() -> u32 {
    let table = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    orphans_in(&table).unwrap_or(0)
}

fn orphans_in(table: &str) -> Option<u32> {
    let line = table.lines().find_map(|line| line.strip_prefix("TCP: "))?;
    let mut words = line.split_ascii_whitespace();
    words.find(|&word| word == "orphan")?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_without_a_process_are_counted() {
        let table = "sockets: used 3\nTCP: inuse 2 orphan 17 tw 4 alloc 5 mem 0\nUDP: inuse 0\n";
        assert_eq!(orphans_in(table), Some(17));
        assert_eq!(orphans_in("TCP: inuse 2\n"), None);
    }
}
