//! Limits that no congestion control can change: buffers that are too small.

use thalweg_gain::{Account, Held, Lifted, Limit, Limits};
use thalweg_terminal::output;
use thalweg_units::{figures, printable};

use crate::kernel::Kernel;
use crate::view::{AdviceLimit, AdviceLimits, NetworkLimits};

/// A network whose limits are presented.
#[derive(Clone, Copy, Debug)]
pub struct Network<'a> {
    /// Account of the network's connections.
    pub account: &'a Account,
    /// Prefix of the network; `None`: it is not a prefix.
    pub prefix: Option<&'a str>,
}

/// A network namespace's buffers as they are now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffers {
    /// Third number of `net.ipv4.tcp_wmem`; `None`: it cannot be read.
    pub send_max: Option<u64>,
}

/// Reason that the kernel does not report limits; `None`: it reports them.
pub fn untold(kernel: &Kernel) -> Option<String> {
    if kernel.setup().kernel_btf {
        return None;
    }
    let why = match kernel.without_btf() {
        Some(_) => "it refused the program that reads its own structures",
        None => "it has no BTF (CONFIG_DEBUG_INFO_BTF)",
    };
    Some(format!(
        "The kernel does not tell what holds connections up: {why}."
    ))
}

/// Shares of the limits, and findings; `None`: nothing is known. For a network the findings predict
/// the effect of lifting a limit.
pub fn presented(
    limits: &Limits,
    buffers: Buffers,
    network: Option<Network<'_>>,
) -> Option<AdviceLimits> {
    (limits.connections > 0).then(|| AdviceLimits {
        connections: limits.connections,
        busy_s: limits.busy_us / 1e6,
        receiver: limits.limit_share(Limit::Receiver),
        buffer: limits.limit_share(Limit::Buffer),
        network: limits.network_share(),
        idle: limits.idle_share(),
        findings: [Limit::Receiver, Limit::Buffer]
            .into_iter()
            .filter(|limit| limits.is_binding(*limit))
            .map(|limit| finding(limit, limits, buffers, network))
            .collect(),
    })
}

/// Buffer for a rate, bytes. The kernel counts its overhead too, for which it reserves as much
/// again (tcp_sndbuf_expand, tcp_adv_win_scale).
fn needed(rate: f64, held: &Held) -> u64 {
    (2.0 * rate * held.rtt_us() / 1e6) as u64
}

fn finding(
    limit: Limit,
    limits: &Limits,
    buffers: Buffers,
    network: Option<Network<'_>>,
) -> AdviceLimit {
    let held = limits.held_by(limit);
    let lifted = network.map_or(Lifted::Unknown, |it| it.account.lift_limit(limit));
    let (aim, predicted) = match lifted {
        Lifted::To(rate) => (rate, Some(rate)),
        Lifted::NoGain => (2.0 * held.held_rate(), Some(held.held_rate())),
        Lifted::Unknown => (2.0 * held.held_rate(), None),
    };
    let needed_bytes = needed(aim, held);
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
        100.0 * limits.limit_share(limit)
    );
    if held.connections > 0 {
        words += &format!(
            " It lets {} be in flight ({} over {}).",
            figures::bytes_text(held.in_flight() as u64),
            figures::rate_text(held.held_rate() * 8.0),
            figures::time_text(held.rtt_us()),
        );
        let aimed = match lifted {
            Lifted::To(rate) => {
                words += &format!(
                    " Connections there that nothing holds up carry {}.",
                    figures::rate_text(rate * 8.0)
                );
                figures::rate_text(rate * 8.0)
            }
            Lifted::NoGain => {
                words += &format!(
                    " Connections there that nothing holds up are no faster ({}): more would gain \
                     nothing.",
                    figures::rate_text(network.map_or(0.0, |it| it.account.free.held_rate()) * 8.0)
                );
                String::new()
            }
            Lifted::Unknown => {
                if network.is_some() {
                    words += " What the path would carry is not known: too few connections there \
                              had no limit.";
                }
                "Twice the rate".to_owned()
            }
        };
        if lifted != Lifted::NoGain {
            let prefix = network.and_then(|it| it.prefix);
            words += &hint_for(limit, &aimed, needed_bytes, now_bytes, prefix);
        }
    }
    AdviceLimit {
        limit: name.to_owned(),
        setting: setting.to_owned(),
        now_bytes,
        needed_bytes,
        predicted_bytes_per_s: predicted,
        rate_bytes_per_s: held.held_rate(),
        rtt_us: held.rtt_us() as u64,
        words,
    }
}

/// Hint for reaching a rate.
fn hint_for(
    limit: Limit,
    aimed: &str,
    needed_bytes: u64,
    now_bytes: Option<u64>,
    prefix: Option<&str>,
) -> String {
    let needed = figures::bytes_text(needed_bytes);
    match (limit, now_bytes) {
        (Limit::Receiver, _) => format!(
            " {aimed} needs {needed} as the third number of net.ipv4.tcp_rmem on the other end, and \
             no smaller SO_RCVBUF of its application; what it has now is not known here."
        ),
        (Limit::Buffer, Some(now)) if now >= needed_bytes => format!(
            " {aimed} needs {needed}, and net.ipv4.tcp_wmem allows {}: applications (or a policy's \
             `sndbuf`) set a smaller SO_SNDBUF themselves; without it the buffer grows by itself.",
            figures::bytes_text(now)
        ),
        (Limit::Buffer, now) => {
            let now = now.map_or(String::new(), |now| {
                format!("; it is {} now", figures::bytes_text(now))
            });
            let some = match prefix {
                Some(prefix) => format!(
                    "For this network alone, a policy's rule: match = {{ remote = \"{prefix}\" }}, \
                     set = {{ sndbuf = \"{half}B\" }}, with net.core.wmem_max of {half} at least: \
                     half of that,",
                    half = needed_bytes / 2
                ),
                None => "For some flows alone: `sndbuf` of a policy, with half of that,".to_owned(),
            };
            format!(
                " {aimed} needs {needed} as the third number of net.ipv4.tcp_wmem{now}; \
                 `buffers.enabled = true` raises it by need. {some} as the kernel doubles it."
            )
        }
    }
}

/// Limits that networks have, and what would help.
pub fn findings_text(networks: &[NetworkLimits]) -> String {
    let all = networks.iter().flat_map(|network| {
        let findings = network.limits.findings.iter();
        findings.map(|finding| {
            let words = format!("{}: {}", printable(&network.name), finding.words);
            let lines = output::wrap_text(&words, usize::from(output::WIDTH));
            format!("\n{}\n", lines.join("\n"))
        })
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use thalweg_gain::{Busiest, Chronographs, Connection};

    use super::*;

    #[test]
    fn the_send_buffer_names_the_setting_and_what_it_is() {
        let limited = |bytes: u64| {
            let mut limits = Limits::default();
            limits.add_connection(&Connection {
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
            let presented = presented(&limited(bytes), buffers, None).unwrap();
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
        assert!(presented(&Limits::default(), buffers, None).is_none());
    }

    /// What a network's connections say, of which `free` had no limit; each took a second.
    fn account(free: &[u64]) -> Account {
        let mut busiest = Busiest::with_capacity(1);
        let mut add = |bytes, buffer_us| {
            let connection = Connection {
                bytes,
                busy_us: 1_000_000,
                srtt_us: 100_000,
                held: Some(Chronographs {
                    open_us: 1_000_000,
                    receiver_us: 0,
                    buffer_us,
                }),
                ..Default::default()
            };
            busiest.add_connection("net", 1, &connection);
        };
        (0..4).for_each(|_| add(1_000_000, 900_000));
        free.iter().for_each(|bytes| add(*bytes, 0));
        busiest.busiest_first(1)[0].1
    }

    #[test]
    fn a_network_is_told_what_lifting_the_limit_gives() {
        let buffers = Buffers {
            send_max: Some(200_000),
        };
        let found = |free: &[u64]| {
            let account = account(free);
            let network = Network {
                account: &account,
                prefix: Some("192.0.2.0/24"),
            };
            let presented = presented(&account.limits, buffers, Some(network)).unwrap();
            presented.findings.into_iter().next().unwrap()
        };
        // 100 kB in flight; others carry 5 MB/s, which needs twice 500 kB.
        let known = found(&[5_000_000; 3]);
        assert_eq!(
            (known.predicted_bytes_per_s, known.needed_bytes),
            (Some(5_000_000.0), 1_000_000)
        );
        for part in [
            "Connections there that nothing holds up carry 40.0 Mbit/s. 40.0 Mbit/s needs 1.00 MB",
            "match = { remote = \"192.0.2.0/24\" }, set = { sndbuf = \"500000B\" }",
        ] {
            assert!(known.words.contains(part), "{}", known.words);
        }
        // Two are too few to tell: twice the rate needs twice as much.
        let unknown = found(&[5_000_000; 2]);
        assert_eq!(
            (unknown.predicted_bytes_per_s, unknown.needed_bytes),
            (None, 400_000)
        );
        assert!(unknown.words.contains("is not known"), "{}", unknown.words);
        // Others are no faster.
        let vain = found(&[1_000_000; 3]);
        assert_eq!(vain.predicted_bytes_per_s, Some(1_000_000.0));
        assert!(
            vain.words.contains("would gain nothing") && !vain.words.contains("sndbuf"),
            "{}",
            vain.words
        );
    }
}
