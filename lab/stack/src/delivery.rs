//! Inside the kernel: delivery of data that an ended command left in its connections. An ordinary
//! kernel would go on and deliver it, so this one waits for that.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of the delivery.
const LONG: Duration = Duration::from_secs(30);
/// Time limit of the delivery after a signal has ended the command.
const SHORT: Duration = Duration::from_secs(1);
/// Pause between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until the connections of an ended command have delivered their data, as they end with the
/// kernel. A further signal (`hurry`) ends the wait.
pub(crate) fn wait_for_delivery(by_signal: bool, hurry: &AtomicBool) {
    let patience = if by_signal { SHORT } else { LONG };
    let deadline = Instant::now() + patience;
    while orphan_count() > 0 && Instant::now() < deadline && !hurry.load(Ordering::SeqCst) {
        thread::sleep(POLL_INTERVAL);
    }
}

/// TCP sockets that belong to no process and have unsent data (`tcp_orphan_count`,
/// net/ipv4/proc.c).
fn orphan_count() -> u32 {
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
