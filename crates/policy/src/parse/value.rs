//! Values of conditions and settings.

use strum::VariantArray;
use thalweg_units::grammar;
use thalweg_units::prefix::{Prefix, PrefixError};
use thalweg_units::reader::{Table, describe_value, quote_piece, whole_number};
use thalweg_units::schema;
use toml::Spanned;
use toml::de::DeValue;

use crate::catalogue::{Key, Unit};
use crate::model::{Direction, Namespace, Ports, SamePrefix, Selector, Value};

pub(super) const PREFIX: &str =
    "a prefix such as \"10.0.0.0/8\" or \"2001:db8::/32\", an address, or a list of them";
pub(super) const PORTS: &str =
    "a port from 1 to 65535, a range such as \"8000-8999\", or a list of them";
pub(super) const CGROUP: &str = "the path of a cgroup, such as \"/system.slice\" or \"/sys/fs/cgroup/system.slice\", or a \
     list of them";
pub(super) const CONTAINER: &str =
    "the name or id of a container, LABEL=VALUE such as \"app=web\", or a list of them";
pub(super) const NETNS: &str = "a network namespace: a name, an absolute path or a cookie";
pub(super) const SHARE: &str =
    "a share of the flows above \"0%\" and up to \"100%\", at most six decimal places";
/// `THALWEG_POLICY_MAX_PORTS`.
pub(super) const PORTS_MAX: usize = thalweg_bpf_types::raw::THALWEG_POLICY_MAX_PORTS as usize;
/// `THALWEG_POLICY_MAX_CGROUPS`.
pub(super) const CGROUPS_MAX: usize = thalweg_bpf_types::raw::THALWEG_POLICY_MAX_CGROUPS as usize;
/// Longest name of a congestion control or a device.
const NAME_MAX: usize = thalweg_bpf_types::raw::THALWEG_POLICY_NAME as usize - 1;

type Item<T> = Result<T, Option<String>>;

pub(super) fn parse_prefix(value: &DeValue<'_>) -> Item<Prefix> {
    let text = value.as_str().ok_or(None)?;
    Prefix::parse(text).map_err(|error| match error {
        PrefixError::Malformed => None,
        PrefixError::HostBits(prefix) => Some(format!(
            "no bits beyond the length: {:?}, or the address alone",
            prefix.to_string()
        )),
    })
}

pub(super) fn parse_ports(value: &DeValue<'_>) -> Item<Ports> {
    let port = |text: &str| match text.parse() {
        Ok(port @ 1..=u16::MAX) if text.bytes().all(|byte| byte.is_ascii_digit()) => Some(port),
        _ => None,
    };
    let ports = match value {
        DeValue::String(text) => text.split_once('-').and_then(|(first, last)| {
            Some(Ports {
                first: port(first)?,
                last: port(last)?,
            })
        }),
        other => whole_number(other)
            .and_then(|port| u16::try_from(port).ok())
            .filter(|&port| port > 0)
            .map(|port| Ports {
                first: port,
                last: port,
            }),
    };
    match ports {
        Some(ports) if ports.first > ports.last => Err(Some(
            "a range whose first port is not above its last".into(),
        )),
        Some(ports) => Ok(ports),
        None => Err(None),
    }
}

pub(super) fn ports_form() -> schema::Form {
    let port = schema::whole(1..=u32::from(u16::MAX));
    schema::any_of([port, schema::pattern("^[0-9]+-[0-9]+$")])
}

pub(super) fn parse_cgroup(value: &DeValue<'_>) -> Item<String> {
    let text = value.as_str().ok_or(None)?;
    crate::parse_cgroup(text).ok_or(None)
}

pub(super) fn parse_container(value: &DeValue<'_>) -> Item<Selector> {
    let text = value.as_str().ok_or(None)?;
    Selector::parse(text).ok_or(None)
}

pub(super) fn same_prefix(table: &mut Table<'_>) -> Option<SamePrefix> {
    const KEY: &str = "same_prefix";
    const EXPECTED: &str = "a number of bits from 1 to 128 (IPv6), or { ipv6 = 1 to 128, \
                            ipv4 = 1 to 32 }";
    table.declare_key(KEY, || {
        let bits = |most: u32| schema::whole(1..=most);
        let keys = [
            ("ipv6".to_owned(), bits(128)),
            ("ipv4".to_owned(), bits(32)),
        ];
        let mut both = schema::table(keys, &[]);
        both["minProperties"] = 1.into();
        schema::any_of([bits(128), both])
    });
    let value = table.take(KEY)?;
    let at = value.span().start;
    let bits = |value: &DeValue<'_>, most: i64| {
        let bits = whole_number(value).filter(|bits| (1..=most).contains(bits));
        bits.and_then(|bits| u8::try_from(bits).ok())
    };
    let entries = match value.get_ref() {
        DeValue::Table(entries) if !entries.is_empty() => entries,
        one => {
            let Some(ipv6) = bits(one, 128) else {
                table.fault(at, Some(KEY), describe_value(one), EXPECTED);
                return None;
            };
            return Some(SamePrefix {
                ipv4: None,
                ipv6: Some(ipv6),
            });
        }
    };
    let mut same = SamePrefix {
        ipv4: None,
        ipv6: None,
    };
    for (key, value) in entries {
        let (slot, most) = match key.get_ref().as_ref() {
            "ipv6" => (&mut same.ipv6, 128),
            "ipv4" => (&mut same.ipv4, 32),
            other => {
                let found = format!("the unknown key {}", quote_piece(other));
                table.fault(key.span().start, Some(KEY), found, "ipv6 or ipv4");
                continue;
            }
        };
        *slot = bits(value.get_ref(), most);
        if slot.is_none() {
            let expected = format!("a number of bits from 1 to {most}");
            let found = describe_value(value.get_ref());
            table.fault(value.span().start, Some(KEY), found, expected);
        }
    }
    Some(same)
}

pub(super) fn direction_form() -> schema::Form {
    schema::words(Direction::VARIANTS.iter().map(|it| it.name()))
}

pub(super) fn parse_direction(value: &DeValue<'_>) -> Option<Direction> {
    value.as_str()?.parse().ok()
}

pub(super) fn parse_netns(value: &DeValue<'_>) -> Option<Namespace> {
    match value.as_str() {
        Some(text) => Namespace::parse(text),
        None => whole_number(value)
            .and_then(|cookie| u64::try_from(cookie).ok())
            .filter(|&cookie| cookie > 0)
            .map(Namespace::Cookie),
    }
}

pub(super) fn netns_form() -> schema::Form {
    schema::any_of([schema::text(), schema::whole(1..=i64::MAX)])
}

/// A share times 2^32.
pub(super) fn parse_share(value: &DeValue<'_>) -> Option<u64> {
    value.as_str().and_then(grammar::parse_share)
}

/// The value of a key.
pub(super) fn read_value(
    table: &Table<'_>,
    key: &Key,
    value: &Spanned<DeValue<'_>>,
) -> Option<Value> {
    if key.unit == Unit::Arms {
        return parse_arms(table, key, value);
    }
    let parsed = parse_value(key, value.get_ref());
    if parsed.is_none() {
        let found = describe_value(value.get_ref());
        let expected = key.accepted_values_with_units();
        table.fault(value.span().start, Some(key.name), found, expected);
    }
    parsed
}

fn parse_value(key: &Key, value: &DeValue<'_>) -> Option<Value> {
    let text = value.as_str();
    let number = match key.unit {
        Unit::Flag => u64::from(value.as_bool()?),
        Unit::Only => u64::from(value.as_bool().filter(|&on| on)?),
        Unit::Number => u64::try_from(whole_number(value)?).ok()?,
        Unit::Bytes => grammar::parse_bytes(text?)?,
        Unit::Time(us) => {
            let micros = u64::try_from(grammar::parse_duration(text?)?.as_micros()).ok()?;
            let us = u64::from(us);
            micros.is_multiple_of(us).then(|| micros / us)?
        }
        Unit::Rate => grammar::bits_per_s(text?)? / 8,
        Unit::Congestion => {
            let name = text.filter(|name| grammar::is_congestion_control(name))?;
            return Some(Value::Text(name.to_owned()));
        }
        Unit::Device => {
            let name = text.filter(|name| is_device(name))?;
            return Some(Value::Text(name.to_owned()));
        }
        Unit::Option if text == Some("congestion") => return Some(Value::Congestion),
        Unit::Option => u64::try_from(whole_number(value)?).ok()?,
        Unit::Arms => return None,
    };
    let (least, most) = key.range;
    let number = u32::try_from(number).ok()?;
    (least..=most)
        .contains(&number)
        .then_some(Value::Number(number))
}

fn parse_arms(table: &Table<'_>, key: &Key, value: &Spanned<DeValue<'_>>) -> Option<Value> {
    let (least, most) = key.range;
    let items = match value.get_ref() {
        DeValue::Array(items) if (least as usize..=most as usize).contains(&items.len()) => items,
        other => {
            table.fault(
                value.span().start,
                Some(key.name),
                describe_value(other),
                key.accepted_values(),
            );
            return None;
        }
    };
    let mut names: Vec<String> = Vec::new();
    let mut good = true;
    for item in items {
        let name = item
            .get_ref()
            .as_str()
            .filter(|name| grammar::is_congestion_control(name));
        match name {
            Some(name) if !names.iter().any(|other| other == name) => names.push(name.to_owned()),
            _ => {
                good = false;
                let found = describe_value(item.get_ref());
                table.fault(
                    item.span().start,
                    Some(key.name),
                    found,
                    key.accepted_values(),
                );
            }
        }
    }
    // The order has no meaning.
    names.sort();
    good.then_some(Value::Names(names))
}

/// Whether the kernel could know a network device by this name (`dev_valid_name`).
fn is_device(name: &str) -> bool {
    let bad = |byte: u8| byte.is_ascii_whitespace() || !byte.is_ascii_graphic();
    (1..=NAME_MAX).contains(&name.len())
        && name != "."
        && name != ".."
        && !name
            .bytes()
            .any(|byte| bad(byte) || matches!(byte, b'/' | b':'))
}
