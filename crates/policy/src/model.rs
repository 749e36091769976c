//! Policies, and which rule a flow gets: the readable semantics.
//!
//! `docs/reference/policy.md` has the same in words; [`crate::Compiled`] must agree.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use strum::{EnumString, IntoStaticStr, VariantArray};
use thalweg_units::Position;
use thalweg_units::grammar::{duration_text, rate_text, share_text, size_text};
use thalweg_units::prefix::{MAPPED, Prefix, address_bits, is_ipv4};

use crate::catalogue::{Key, Unit};

/// A policy: rules, in the order of the file.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The file, for messages.
    pub file: PathBuf,
    /// Name of the policy.
    pub name: String,
    /// One sentence; may be empty.
    pub description: String,
    /// Rules, in the order of the file.
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Name, unique in the policy.
    pub name: String,
    /// One sentence; may be empty.
    pub description: String,
    /// Position in the policy file.
    pub at: Position,
    /// Whether the rule protects flows from every other rule, and from the learner.
    pub never: bool,
    /// Whether its caps replace an application's stricter ones.
    pub overrides: bool,
    /// Conditions; all must hold.
    pub conditions: Conditions,
    /// Settings, in the order of the file.
    pub actions: Vec<Action>,
}

/// Conditions of a rule; an absent one holds for all flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The peer is in one of these; empty: anywhere.
    pub remote: Vec<Prefix>,
    /// This machine's address is in one of these; empty: anywhere.
    pub local: Vec<Prefix>,
    /// Both addresses share leading bits.
    pub same_prefix: Option<SamePrefix>,
    /// The peer's port is in one of these; empty: any.
    pub remote_port: Vec<Ports>,
    /// This machine's port is in one of these; empty: any.
    pub local_port: Vec<Ports>,
    /// Who opened the flow.
    pub direction: Option<Direction>,
    /// The socket belongs to one of these cgroups or to a descendant; empty: any.
    pub cgroup: Vec<String>,
    /// The socket belongs to one of these containers; empty: any. Not beside `cgroup`.
    pub container: Vec<Selector>,
    /// The network namespace.
    pub netns: Option<Namespace>,
    /// Number of matching flows of 2^32.
    pub sample: Option<u32>,
}

/// Number of leading bits that both addresses share; a family without a number never matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamePrefix {
    /// For IPv4 addresses, 1 to 32.
    pub ipv4: Option<u8>,
    /// For IPv6 addresses, 1 to 128.
    pub ipv6: Option<u8>,
}

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    /// First port.
    pub first: u16,
    /// Last port, not below the first.
    pub last: u16,
}

/// Who opens a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Direction {
    /// This machine.
    Active,
    /// The peer.
    Passive,
}

/// A network namespace as a policy names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespace {
    /// A name of `ip netns`: `/run/netns/NAME`.
    Name(String),
    /// A file, such as `/proc/1/ns/net`.
    Path(String),
    /// A cookie (`SO_NETNS_COOKIE`).
    Cookie(u64),
}

/// Containers as a policy names them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selector {
    /// Containers with this name or id.
    Name(String),
    /// Containers with this label.
    Label {
        /// The label's name.
        key: String,
        /// The label's value; may be empty.
        value: String,
    },
}

/// The cgroups that one bit of a rule's mask stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// A cgroup: its path below the root of the hierarchy.
    Path(String),
    /// The cgroups of containers.
    Containers(Selector),
}

/// A setting of a rule.
#[derive(Clone, Debug)]
pub struct Action {
    /// Key that is set.
    pub key: &'static Key,
    /// Stages at which it is set: a mask of [`crate::Stage::bit`].
    pub stages: u8,
    /// Value of the key.
    pub value: Value,
    /// Position in the policy file.
    pub at: Position,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// In the kernel's unit.
    Number(u32),
    /// A name.
    Text(String),
    /// Names, each once.
    Names(Vec<String>),
    /// The hash of the congestion control's name.
    Congestion,
}

/// A flow, as conditions see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The peer's address; an IPv4-mapped one is IPv4.
    pub remote: IpAddr,
    /// This machine's address, of the same family.
    pub local: IpAddr,
    /// The peer's port.
    pub remote_port: u16,
    /// This machine's port.
    pub local_port: u16,
    /// Connection or listener, and who opens it.
    pub kind: FlowKind,
    /// Path of its socket's cgroup below the root of the hierarchy.
    pub cgroup: Option<String>,
    /// Names and labels of its container, as the policy names them.
    pub container: Vec<Selector>,
    /// Network namespace, named as the policy names it.
    pub netns: Option<Namespace>,
    /// Random number: rules with `sample` match flows below their share of 2^32.
    pub draw: u32,
}

/// Kind of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// Opened by this machine.
    Active,
    /// Opened by the peer.
    Passive,
    /// A listening socket. It has no peer, so no condition on the peer holds.
    Listener,
}

/// A condition that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Condition {
    /// `remote`.
    Remote,
    /// `local`.
    Local,
    /// `same_prefix`.
    SamePrefix,
    /// `remote_port`.
    RemotePort,
    /// `local_port`.
    LocalPort,
    /// `direction`.
    Direction,
    /// `cgroup`.
    Cgroup,
    /// `container`.
    Container,
    /// `netns`.
    Netns,
    /// `sample`.
    Sample,
}

impl Condition {
    /// Key of the condition in `[rule.match]`.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Order of two rules that match a flow; the greater one wins.
///
/// Lengths are those of the flow's family; 0 if the rule names no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    /// `never` rules come before all others.
    pub never: bool,
    /// Longest prefix of `remote` that contains the peer, or `same_prefix` if that is longer.
    pub remote: u8,
    /// Longest prefix of `local` that contains this machine's address.
    pub local: u8,
    /// Index in the file, from 0.
    pub place: Reverse<usize>,
}

impl Policy {
    /// The congestion controls that its rules set, each once.
    pub fn congestion_controls(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for action in self.rules.iter().flat_map(|rule| &rule.actions) {
            if action.key.name == "congestion"
                && let Value::Text(name) = &action.value
                && !names.contains(name)
            {
                names.push(name.clone());
            }
        }
        names
    }

    /// The rule that a flow gets.
    pub fn matching_rule(&self, flow: &Flow) -> Option<&Rule> {
        self.matching_rules(flow).into_iter().next()
    }

    /// The rules that match a flow; the flow gets the first.
    pub fn matching_rules(&self, flow: &Flow) -> Vec<&Rule> {
        let holding = self.rules.iter().enumerate();
        let mut holding: Vec<_> = holding
            .filter(|(_, rule)| rule.conditions.failing_conditions(flow).is_empty())
            .map(|(place, rule)| (rule.precedence_for(flow, place), rule))
            .collect();
        holding.sort_by_key(|(precedence, _)| Reverse(*precedence));
        holding.into_iter().map(|(_, rule)| rule).collect()
    }

    /// Outcomes of flows like this one over all random numbers: shares of 2^32, and rules. The
    /// shares add up to 2^32; the rules with samples come first.
    pub fn outcome_shares(&self, flow: &Flow) -> Vec<(u64, Option<&Rule>)> {
        let samples = self.rules.iter().filter_map(|rule| rule.conditions.sample);
        let mut ends: Vec<u64> = samples.map(u64::from).chain([1 << 32]).collect();
        ends.sort_unstable();
        ends.dedup();
        let mut outcomes: Vec<(u64, Option<&Rule>)> = Vec::new();
        let mut start = 0;
        for end in ends {
            // A start is always below 2^32, which is the highest end.
            let draw = u32::try_from(start).unwrap_or(u32::MAX);
            let rule = self.matching_rule(&Flow {
                draw,
                ..flow.clone()
            });
            let name = |rule: Option<&Rule>| rule.map(|rule| rule.name.clone());
            match outcomes.last_mut() {
                Some((share, last)) if name(*last) == name(rule) => *share += end - start,
                _ => outcomes.push((end - start, rule)),
            }
            start = end;
        }
        outcomes
    }

    /// A rule by its name, and its index in the file.
    pub fn find_rule(&self, name: &str) -> Option<(usize, &Rule)> {
        let mut rules = self.rules.iter().enumerate();
        rules.find(|(_, rule)| rule.name == name)
    }
}

impl Rule {
    /// Precedence of the rule among those that match a flow.
    pub fn precedence_for(&self, flow: &Flow, place: usize) -> Precedence {
        let longest = |prefixes: &[Prefix], address| {
            let holding = prefixes.iter().filter(|prefix| prefix.contains(address));
            holding.map(|prefix| prefix.length()).max().unwrap_or(0)
        };
        let conditions = &self.conditions;
        let same = conditions
            .same_prefix
            .and_then(|same| same.length_for(flow));
        Precedence {
            never: self.never,
            remote: match flow.kind {
                // A listener has no peer: only "anywhere" holds.
                FlowKind::Listener => 0,
                _ => longest(&conditions.remote, flow.remote).max(same.unwrap_or(0)),
            },
            local: longest(&conditions.local, flow.local),
            place: Reverse(place),
        }
    }

    /// The stages of its settings: a mask of [`crate::Stage::bit`].
    pub fn stage_mask(&self) -> u8 {
        self.actions
            .iter()
            .fold(0, |mask, action| mask | action.stages)
    }
}

impl Conditions {
    /// The conditions that do not hold for a flow; none: the rule matches.
    pub fn failing_conditions(&self, flow: &Flow) -> Vec<Condition> {
        let listener = flow.kind == FlowKind::Listener;
        // A listener's peer is the unspecified address: only "anywhere" contains it.
        let remote =
            |prefix: &Prefix| prefix.contains(flow.remote) && (!listener || prefix.length() == 0);
        let same = |same: SamePrefix| {
            let alike = (address_bits(flow.remote) ^ address_bits(flow.local)).leading_zeros();
            let own = alike.saturating_sub(if is_ipv4(flow.remote) {
                MAPPED.into()
            } else {
                0
            });
            !listener
                && same
                    .length_for(flow)
                    .is_some_and(|length| u32::from(length) <= own)
        };
        let port = |ports: &[Ports], port: u16| {
            ports.is_empty() || ports.iter().any(|range| range.contains(port))
        };
        let active = flow.kind == FlowKind::Active;
        let below = |path: &String| {
            flow.cgroup
                .as_deref()
                .is_some_and(|own| is_below(own, path))
        };
        let holds = [
            (
                Condition::Remote,
                self.remote.is_empty() || self.remote.iter().any(remote),
            ),
            (
                Condition::Local,
                self.local.is_empty()
                    || self.local.iter().any(|prefix| prefix.contains(flow.local)),
            ),
            (Condition::SamePrefix, self.same_prefix.is_none_or(same)),
            (
                Condition::RemotePort,
                self.remote_port.is_empty()
                    || (!listener && port(&self.remote_port, flow.remote_port)),
            ),
            (
                Condition::LocalPort,
                port(&self.local_port, flow.local_port),
            ),
            (
                Condition::Direction,
                self.direction
                    .is_none_or(|direction| (direction == Direction::Active) == active),
            ),
            (
                Condition::Cgroup,
                self.cgroup.is_empty() || self.cgroup.iter().any(below),
            ),
            (
                Condition::Container,
                self.container.is_empty()
                    || self
                        .container
                        .iter()
                        .any(|own| flow.container.contains(own)),
            ),
            (
                Condition::Netns,
                self.netns.is_none() || self.netns == flow.netns,
            ),
            (
                Condition::Sample,
                self.sample.is_none_or(|share| flow.draw < share),
            ),
        ];
        let failing = holds.into_iter().filter(|(_, holds)| !holds);
        failing.map(|(condition, _)| condition).collect()
    }

    /// Condition and value, as in the file, of the conditions that are set.
    pub fn condition_texts(&self) -> Vec<(Condition, String)> {
        let list = |items: Vec<String>| match &items[..] {
            [] => None,
            [one] => Some(format!("{one:?}")),
            items => Some(format!("{items:?}")),
        };
        let prefixes = |items: &[Prefix]| list(items.iter().map(Prefix::to_string).collect());
        let ports = |items: &[Ports]| {
            let all: Vec<String> = items.iter().map(|one| one.to_toml()).collect();
            match &all[..] {
                [] => None,
                [one] => Some(one.clone()),
                all => Some(format!("[{}]", all.join(", "))),
            }
        };
        let containers = self.container.iter().map(Selector::to_string);
        let direction = self.direction.map(|it| format!("{:?}", it.name()));
        let sample = self.sample.map(|it| format!("{:?}", share_text(it.into())));
        let texts = [
            (Condition::Remote, prefixes(&self.remote)),
            (Condition::Local, prefixes(&self.local)),
            (
                Condition::SamePrefix,
                self.same_prefix.map(|it| it.to_string()),
            ),
            (Condition::RemotePort, ports(&self.remote_port)),
            (Condition::LocalPort, ports(&self.local_port)),
            (Condition::Direction, direction),
            (Condition::Cgroup, list(self.cgroup.clone())),
            (Condition::Container, list(containers.collect())),
            (
                Condition::Netns,
                self.netns.as_ref().map(Namespace::to_string),
            ),
            (Condition::Sample, sample),
        ];
        let texts = texts.into_iter();
        texts
            .filter_map(|(condition, text)| Some((condition, text?)))
            .collect()
    }

    /// Whether the rule can match flows of a family.
    pub fn has_family(&self, ipv4: bool) -> bool {
        let of = |prefixes: &[Prefix]| {
            prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.is_ipv4() == ipv4)
        };
        let same = self
            .same_prefix
            .is_none_or(|same| if ipv4 { same.ipv4 } else { same.ipv6 }.is_some());
        of(&self.remote) && of(&self.local) && same
    }
}

/// Mount points of the cgroup hierarchy; the first is in use beside version 1.
const CGROUP_MOUNTS: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
/// Longest path of a cgroup.
const CGROUP_MAX: usize = 4095;

/// The path of a cgroup below the root of the hierarchy. Accepted are `/system.slice`, the same
/// without the first slash, and `/sys/fs/cgroup/system.slice`. `None` for other forms.
pub fn parse_cgroup(text: &str) -> Option<String> {
    let below = |mount: &&str| {
        text.strip_prefix(mount)
            .filter(|rest| rest.starts_with('/'))
    };
    let path = CGROUP_MOUNTS.iter().find_map(below);
    let path = path.unwrap_or(text);
    let path = path.strip_suffix('/').unwrap_or(path);
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let path = path.strip_prefix('/').unwrap_or(path);
    let good = text.len() <= CGROUP_MAX
        && !text.chars().any(char::is_control)
        && path.split('/').all(part);
    good.then(|| format!("/{path}"))
}

/// Whether a cgroup is another or its descendant.
pub(crate) fn is_below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl SamePrefix {
    /// The number for a flow's family.
    fn length_for(self, flow: &Flow) -> Option<u8> {
        if is_ipv4(flow.remote) {
            self.ipv4
        } else {
            self.ipv6
        }
    }
}

impl std::fmt::Display for SamePrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.ipv6, self.ipv4) {
            (Some(ipv6), Some(ipv4)) => write!(f, "{{ ipv6 = {ipv6}, ipv4 = {ipv4} }}"),
            (Some(ipv6), None) => write!(f, "{ipv6}"),
            (None, Some(ipv4)) => write!(f, "{{ ipv4 = {ipv4} }}"),
            (None, None) => write!(f, "{{}}"),
        }
    }
}

impl Ports {
    /// The ports as TOML: a number, or a text for more than one port.
    fn to_toml(self) -> String {
        if self.first == self.last {
            self.first.to_string()
        } else {
            format!("\"{self}\"")
        }
    }

    /// Whether the range contains a port.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl std::fmt::Display for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl Direction {
    /// Name of the direction in a policy.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Namespace {
    /// Reads a name or an absolute path.
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with('/') {
            let plain = text.len() <= 4095 && !text.chars().any(char::is_control);
            return plain.then(|| Self::Path(text.to_owned()));
        }
        let plain = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
        let name = (1..=255).contains(&text.len()) && text.chars().all(plain);
        (name && text != "." && text != "..").then(|| Self::Name(text.to_owned()))
    }
}

/// Longest name, and longest name of a label, in bytes.
const SELECTOR_MAX: usize = 255;

impl Selector {
    /// Reads a name or `LABEL=VALUE`.
    pub fn parse(text: &str) -> Option<Self> {
        let word = |word: &str| {
            let plain = |c: char| !c.is_control() && !c.is_whitespace();
            (1..=SELECTOR_MAX).contains(&word.len()) && word.chars().all(plain)
        };
        match text.split_once('=') {
            None => word(text).then(|| Self::Name(text.to_owned())),
            Some((key, value)) => {
                let good = word(key) && value.len() <= 4095 && !value.chars().any(char::is_control);
                good.then(|| Self::Label {
                    key: key.to_owned(),
                    value: value.to_owned(),
                })
            }
        }
    }
}

/// The selector as in a policy, without quotes.
impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Label { key, value } => write!(f, "{key}={value}"),
        }
    }
}

/// The namespace as in a policy.
impl std::fmt::Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(text) | Self::Path(text) => write!(f, "{text:?}"),
            Self::Cookie(cookie) => write!(f, "{cookie}"),
        }
    }
}

impl Action {
    /// The value as TOML, in the shortest form.
    pub fn value_text(&self) -> String {
        match (&self.value, self.key.unit) {
            (Value::Number(value), Unit::Flag | Unit::Only) => (*value != 0).to_string(),
            (Value::Number(value), Unit::Bytes) => format!("{:?}", size_text((*value).into())),
            (Value::Number(value), Unit::Time(us)) => {
                let duration = Duration::from_micros(u64::from(*value) * u64::from(us));
                format!("{:?}", duration_text(duration))
            }
            (Value::Number(value), Unit::Rate) => {
                format!("{:?}", rate_text(u64::from(*value) * 8))
            }
            (Value::Number(value), _) => value.to_string(),
            (Value::Text(name), _) => format!("{name:?}"),
            (Value::Names(names), _) => format!("{names:?}"),
            (Value::Congestion, _) => "\"congestion\"".to_owned(),
        }
    }
}
