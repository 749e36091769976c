//! What no congestion control can change: buffers that are too small.

use thalweg_gain::{Held, Limit, Limits};
use thalweg_units::figures;

use crate::view::{AdviceLimit, AdviceLimits};

/// The system's buffers as they are now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffers {
    /// Third number of `net.ipv4.tcp_wmem`; `None`: it cannot be read.
    pub send_max: Option<u64>,
}

impl Buffers {
    /// Those of the agent's network namespace.
    pub fn read() -> Self {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap_or_default();
        Self {
            send_max: text
                .split_whitespace()
                .nth(2)
                .and_then(|it| it.parse().ok()),
        }
    }
}

/// Shares, and what follows from them; `None` where nothing is known.
pub fn presented(limits: &Limits, buffers: Buffers) -> Option<AdviceLimits> {
    (limits.connections > 0).then(|| AdviceLimits {
        connections: limits.connections,
        busy_s: limits.busy_us / 1e6,
        receiver: limits.share(Limit::Receiver),
        buffer: limits.share(Limit::Buffer),
        network: limits.network(),
        idle: limits.idle(),
        findings: [Limit::Receiver, Limit::Buffer]
            .into_iter()
            .filter(|limit| limits.binds(*limit))
            .map(|limit| finding(limit, limits, buffers))
            .collect(),
    })
}

/// Twice the rate needs twice as much in flight. The kernel counts a buffer's overhead in it, for
/// which it reserves as much again (tcp_sndbuf_expand, tcp_adv_win_scale).
fn needed(held: &Held) -> u64 {
    (2.0 * 2.0 * held.in_flight()) as u64
}

fn finding(limit: Limit, limits: &Limits, buffers: Buffers) -> AdviceLimit {
    let held = limits.held(limit);
    let needed_bytes = needed(held);
    let (name, setting, now_bytes) = match limit {
        Limit::Receiver => ("receiver", "net.ipv4.tcp_rmem", None),
        Limit::Buffer => ("buffer", "net.ipv4.tcp_wmem", buffers.send_max),
    };
    let what = match limit {
        Limit::Receiver => "The receiver's window",
        Limit::Buffer => "The send buffer",
    };
    let mut words = format!(
        "{what} holds transfers up for {:.0} % of their busy time. No congestion control will help \
         there.",
        100.0 * limits.share(limit)
    );
    if held.connections > 0 {
        words += &format!(
            " It lets {} be in flight ({} over {}).",
            figures::bytes(held.in_flight() as u64),
            figures::rate(held.rate() * 8.0),
            figures::time(held.rtt_us()),
        );
        words += &remedy(limit, needed_bytes, now_bytes);
    }
    AdviceLimit {
        limit: name.to_owned(),
        setting: setting.to_owned(),
        now_bytes,
        needed_bytes,
        rate_bytes_per_s: held.rate(),
        rtt_us: held.rtt_us() as u64,
        words,
    }
}

/// What to do for twice the rate.
fn remedy(limit: Limit, needed_bytes: u64, now_bytes: Option<u64>) -> String {
    let needed = figures::bytes(needed_bytes);
    match (limit, now_bytes) {
        (Limit::Receiver, _) => format!(
            " Twice the rate needs {needed} as the third number of net.ipv4.tcp_rmem on the other \
             end, and no smaller SO_RCVBUF of its application; what it has now is not known here."
        ),
        (Limit::Buffer, Some(now)) if now >= needed_bytes => format!(
            " Twice the rate needs {needed}, and net.ipv4.tcp_wmem allows {}: applications (or a \
             policy's `sndbuf`) set a smaller SO_SNDBUF themselves; without it the buffer grows by \
             itself.",
            figures::bytes(now)
        ),
        (Limit::Buffer, now) => {
            let now = now.map_or(String::new(), |now| {
                format!("; it is {} now", figures::bytes(now))
            });
            format!(
                " Twice the rate needs {needed} as the third number of net.ipv4.tcp_wmem{now}. For \
                 some flows alone: `sndbuf` of a policy, with half of that, as the kernel doubles \
                 it."
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_gain::{Chronographs, Connection};

    use super::*;

    #[test]
    fn the_send_buffer_names_the_setting_and_what_it_is() {
        let limited = |bytes: u64| {
            let mut limits = Limits::default();
            limits.add(&Connection {
                bytes,
                busy_us: 1_000_000,
                srtt_us: 100_000,
                held: Some(Chronographs {
                    open_us: 1_000_000,
                    receiver_us: 0,
                    buffer_us: 900_000,
                }),
                ..Default::default()
            });
            limits
        };
        let buffers = Buffers {
            send_max: Some(4_194_304),
        };
        let found = |bytes| {
            let presented = presented(&limited(bytes), buffers).unwrap();
            presented.findings.into_iter().next().unwrap()
        };
        // 2 MB in flight.
        let small = found(20_000_000);
        assert_eq!(
            (small.now_bytes, small.needed_bytes),
            (Some(4_194_304), 8_000_000)
        );
        assert!(
            small.words.contains("net.ipv4.tcp_wmem; it is 4.19 MB now")
                && small.words.contains("`sndbuf` of a policy"),
            "{}",
            small.words
        );
        // 20 kB in flight: the setting would allow more.
        let set = found(200_000);
        assert!(set.words.contains("SO_SNDBUF"), "{}", set.words);
        assert!(presented(&Limits::default(), buffers).is_none());
    }
}
