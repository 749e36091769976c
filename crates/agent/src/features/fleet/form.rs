//! Conversion between the fleet's messages and the learner's records.

use std::net::IpAddr;

use thalweg_control::system;
use thalweg_fleet::wire::{Arm, Measured, Network};
use thalweg_learner::fleet::own_report;
use thalweg_learner::{Host, HostKey, Level, OFFSET_Q16};

use crate::kernel::ArmTable;

/// Largest values of messages: 64 bits of cost or rate, 16 bits of queue, a year.
const BITS_Q16: u32 = 64 << 16;
const QUEUE_Q16: u32 = 16 << 16;
const AGE_S: u64 = 366 * 86_400;

/// This agent's own measurements of a network in the form of a message. `None`: it has none, or
/// other agents cannot know the same network. `named` gives the name of a number.
pub(super) fn measured(
    key: &HostKey,
    group: &Host,
    arms: &ArmTable,
    named: impl Fn(u64) -> Option<String>,
) -> Option<Measured> {
    let network = match key.level {
        Level::Prefix => Network::Prefix(key.prefix()),
        Level::Named => Network::Named(named(key.network_number())?),
        _ => return None,
    };
    // The server would refuse the whole shard for one invalid network.
    if !network.is_valid() {
        return None;
    }
    let own = own_report(group)?;
    let arms: Vec<Arm> = own
        .iter()
        .enumerate()
        .filter(|(_, arm)| arm.evidence_q16 > 0)
        .filter_map(|(index, arm)| {
            Some(Arm {
                name: arms.name(index)?.to_owned(),
                cost_q16: below(arm.cost_q16),
                evidence_q16: arm.evidence_q16,
                log_rate_q16: below(arm.log_rate_q16),
                deviation_q16: arm.deviation_q16.min(BITS_Q16),
                segments: arm.segs,
                retransmitted: arm.retrans.min(arm.segs),
            })
        })
        .collect();
    let idle_s = system::monotonic_ns().saturating_sub(group.seen_ns) / 1_000_000_000;
    (!arms.is_empty()).then_some(Measured {
        network,
        age_s: idle_s.min(AGE_S) as u32,
        queue_q16: group.queue_q16.min(QUEUE_Q16),
        arms,
    })
}

/// Key of a network's own record; the lengths are those of IPv4 and IPv6. `None`: this agent
/// divides addresses otherwise.
pub(super) fn key_of(network: &Network, netns: u64, (v4, v6): (u32, u32)) -> Option<HostKey> {
    match network {
        Network::Prefix(prefix) => {
            let address: IpAddr = prefix.address();
            let length = if address.is_ipv4() { v4 } else { v6 };
            (u32::from(prefix.length()) == length).then_some(())?;
            let key = HostKey::new(netns, address, v4, v6).ok()?;
            let level = Level::Prefix;
            Some(HostKey { level, ..key })
        }
        Network::Named(name) => {
            let number = thalweg_learner::network_number(name);
            Some(HostKey::of_named(netns, number))
        }
        Network::Service { .. } | Network::All => None,
    }
}

/// Bits above the system arm, from the kernel's offset form.
fn below(cost_q16: u32) -> i32 {
    let bits = i64::from(BITS_Q16);
    (i64::from(cost_q16) - i64::from(OFFSET_Q16)).clamp(-bits, bits) as i32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    use std::path::Path;

    use super::*;
    use crate::named::Named;
    use thalweg_learner::ArmState;

    #[test]
    fn own_numbers_alone_are_told() {
        let key = HostKey {
            level: Level::Prefix,
            ..HostKey::new(7, "192.0.2.0".parse().unwrap(), 24, 48).unwrap()
        };
        let own = ArmState {
            own_q16: OFFSET_Q16 - 5,
            own_weight_q16: 3 << 16,
            log_rate_q16: OFFSET_Q16 + 6,
            deviation_q16: 7,
            segs: 8,
            retrans: 9,
            ..ArmState::default()
        };
        let of_others = ArmState {
            value: OFFSET_Q16.into(),
            weight_q16: 20 << 16,
            ..ArmState::default()
        };
        let mut group = Host {
            level: Level::Prefix,
            queue_q16: 11,
            ..Host::default()
        };
        (group.arms[0], group.arms[1]) = (of_others, own);
        let table = ArmTable::of(&["cubic", "bbr"]);
        let told = measured(&key, &group, &table, |_| None).unwrap();
        assert_eq!(told.network.to_string(), "prefix:192.0.2.0/24");
        assert_eq!((told.queue_q16, told.arms.len()), (11, 1));
        assert_eq!((&*told.arms[0].name, told.arms[0].cost_q16), ("bbr", -5));
        // More retransmissions than segments cannot be.
        assert_eq!(told.arms[0].retransmitted, 8);
        let arm = &told.arms[0];
        assert_eq!((arm.log_rate_q16, arm.evidence_q16), (6, 3 << 16));

        assert_eq!(key_of(&told.network, 7, (24, 48)), Some(key));
        assert_eq!(key_of(&told.network, 7, (16, 48)), None);
        // Namespaces and services are of the agent alone.
        let all = HostKey::of_namespace(7);
        assert!(measured(&all, &group, &table, |_| None).is_none());
        assert_eq!(key_of(&Network::All, 7, (24, 48)), None);
        // Nor is an address alone told, or a name that cannot be shown.
        let alone = HostKey {
            level: Level::Prefix,
            ..HostKey::new(7, "192.0.2.7".parse().unwrap(), 32, 64).unwrap()
        };
        assert!(measured(&alone, &group, &table, |_| None).is_none());
        let of_name = |name: &str| {
            let key = HostKey::of_named(7, 1);
            measured(&key, &group, &table, |_| Some(name.to_owned()))
        };
        assert!(of_name("site-1").is_some());
        assert!(of_name("site-1\u{200b}").is_none());
    }

    #[test]
    fn name_of_a_network_is_accepted_where_the_table_accepts_it() {
        let characters = ('\0'..='\u{30ff}').chain('\u{fe00}'..='\u{ffff}');
        for character in characters.filter(|it| *it != '#' && !it.is_whitespace()) {
            let text = format!("a{character}b");
            let network = Network::parse(&format!("name:{text}"));
            let table = Named::parse(&format!("10.0.0.0/8 {text}"), Path::new("n.txt"));
            assert_eq!(table.is_ok(), network.is_some(), "{text:?}");
        }
    }
}
