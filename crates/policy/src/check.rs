//! Warnings about settings of a valid policy that are probably unintended. Only certain cases
//! count.

mod timers;

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_units::Position;
use thalweg_units::prefix::{Prefix, prefix_mask};

use crate::catalogue::{self, KernelOperation, Stage};
use crate::model::{Action, Conditions, Direction, Policy, Ports, Rule, Value, is_below};

/// A probably unintended setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Position in the policy file.
    pub at: Position,
    /// Name of the rule.
    pub rule: String,
    /// Kind of warning.
    pub kind: WarningKind,
    /// Text of the warning.
    pub message: String,
}

/// Kinds of warnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WarningKind {
    /// An option has an effect that is easily overlooked.
    Trap,
    /// A rule never gets a flow, because an earlier one gets all of them.
    Shadowed,
    /// Two rules have the same conditions and set the same key differently.
    Conflict,
    /// A rule or a setting that no flow can have.
    Nothing,
    /// A setting that does nothing without another.
    Incomplete,
}

impl Policy {
    /// Warnings, in the order of the text.
    pub fn warnings(&self) -> Vec<Warning> {
        self.warnings_where(None)
    }

    /// Warnings on a machine whose connections begin with this least retransmission timeout, in
    /// microseconds (`net.ipv4.tcp_rto_min_us`); `None`: with the kernel's default.
    pub fn warnings_where(&self, rto_min_us: Option<u32>) -> Vec<Warning> {
        let mut warnings = Vec::new();
        self.warn_of_traps(&mut warnings);
        self.warn_of_shadowed_rules(&mut warnings);
        for rule in &self.rules {
            rule.warn_of_impossible_matches(&mut warnings);
            rule.warn_of_incomplete_settings(&mut warnings);
            rule.warn_of_timers(rto_min_us, &mut warnings);
        }
        warnings.sort_by_key(|warning| (warning.at, warning.kind));
        without_repeats(warnings)
    }

    /// Whether a rule sets something on listeners, which they keep, and pass on to the connections that
    /// they accept, whatever becomes of the policy.
    pub fn sets_listeners(&self) -> bool {
        self.rules.iter().any(|rule| {
            rule.conditions.may_listen() && rule.actions.iter().any(Action::sets_listener)
        })
    }

    /// Warns of each trap once, where the key is first used.
    fn warn_of_traps(&self, warnings: &mut Vec<Warning>) {
        let mut first: BTreeMap<&str, (&Rule, &Action, usize)> = BTreeMap::new();
        for rule in &self.rules {
            let mut seen = HashSet::new();
            for action in rule
                .actions
                .iter()
                .filter(|action| action.key.trap.is_some())
            {
                if seen.insert(action.key.name) {
                    let entry = first.entry(action.key.name).or_insert((rule, action, 0));
                    entry.2 += 1;
                }
            }
        }
        for (rule, action, rules) in first.into_values() {
            let trap = action.key.trap.unwrap_or_default();
            let message = format!("{}: {trap}{}", action.key.name, so_in(rules - 1));
            warnings.push(rule.new_warning(WarningKind::Trap, action.at, message));
        }
    }

    /// Warns of rules that never win.
    fn warn_of_shadowed_rules(&self, warnings: &mut Vec<Warning>) {
        let mut never: HashMap<Option<Prefix>, Vec<usize>> = HashMap::new();
        let mut others: HashMap<Option<Prefix>, Vec<usize>> = HashMap::new();
        let prefixes = |rule: &Rule| -> Vec<Option<Prefix>> {
            if rule.conditions.remote.is_empty() {
                return vec![None];
            }
            rule.conditions.remote.iter().copied().map(Some).collect()
        };
        // A `never` rule may cover another, however short its prefix.
        let mut lengths: HashSet<(bool, u8)> = HashSet::new();
        for (place, rule) in self.rules.iter().enumerate().filter(|(_, rule)| rule.never) {
            for prefix in prefixes(rule) {
                lengths.extend(prefix.map(|prefix| (prefix.is_ipv4(), prefix.length128())));
                never.entry(prefix).or_default().push(place);
            }
        }
        for (place, rule) in self.rules.iter().enumerate() {
            let first = rule.conditions.remote.first().copied();
            let mut by: Vec<usize> = Vec::new();
            if !rule.never {
                by.extend(never.get(&None).into_iter().flatten());
                if let Some(prefix) = first {
                    let own = lengths.iter().filter(|(ipv4, length)| {
                        *ipv4 == prefix.is_ipv4() && *length <= prefix.length128()
                    });
                    for &(_, length) in own {
                        let wider = prefix.cut_to(length);
                        by.extend(never.get(&Some(wider)).into_iter().flatten());
                    }
                }
                by.retain(|&other| self.rules[other].covers(rule, false));
            }
            let same_class = if rule.never { &never } else { &others };
            let earlier = same_class.get(&first).into_iter().flatten();
            by.extend(
                earlier.filter(|&&other| other < place && self.rules[other].covers(rule, true)),
            );
            if let Some(&other) = by.iter().min() {
                warnings.push(shadow_warning(rule, &self.rules[other]));
            }
            if !rule.never {
                for prefix in prefixes(rule) {
                    others.entry(prefix).or_default().push(place);
                }
            }
        }
    }
}

/// Says how many other rules have the same warning.
fn so_in(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " (so in another rule)".to_owned(),
        others => format!(" (so in {others} other rules)"),
    }
}

/// Merges warnings with the same text into the first, which counts the rules.
fn without_repeats(warnings: Vec<Warning>) -> Vec<Warning> {
    let mut rules: HashMap<(WarningKind, String), HashSet<String>> = HashMap::new();
    let mut first: Vec<Warning> = Vec::new();
    for warning in warnings {
        let alike = rules.entry((warning.kind, warning.message.clone()));
        let alike = alike.or_default();
        if alike.is_empty() {
            first.push(warning.clone());
        }
        alike.insert(warning.rule);
    }
    for warning in &mut first {
        let alike = &rules[&(warning.kind, warning.message.clone())];
        warning.message.push_str(&so_in(alike.len() - 1));
    }
    first
}

fn shadow_warning(rule: &Rule, by: &Rule) -> Warning {
    let place = format!("{:?} in line {}", by.name, by.at.line);
    if rule.conditions != by.conditions || by.never != rule.never {
        let message = format!("no flow gets this rule: {place} gets all flows that it holds for");
        return rule.new_warning(WarningKind::Shadowed, rule.at, message);
    }
    let differing = rule.actions.iter().find(|action| {
        by.actions.iter().any(|other| {
            other.key == action.key
                && other.stages & action.stages != 0
                && other.value != action.value
        })
    });
    match differing {
        Some(action) => rule.new_warning(
            WarningKind::Conflict,
            action.at,
            format!(
                "{place} has the same conditions, comes first, and sets {} to something else: no \
                 flow gets this rule",
                action.key.name
            ),
        ),
        None => rule.new_warning(
            WarningKind::Shadowed,
            rule.at,
            format!("no flow gets this rule: {place} has the same conditions and comes first"),
        ),
    }
}

impl Rule {
    fn new_warning(&self, kind: WarningKind, at: Position, message: String) -> Warning {
        Warning {
            at,
            rule: self.name.clone(),
            kind,
            message,
        }
    }

    /// Whether this rule matches every flow that the other matches. With `order`, its prefixes must
    /// also never be shorter.
    fn covers(&self, other: &Self, order: bool) -> bool {
        let (own, other) = (&self.conditions, &other.conditions);
        let within = |own: &[Prefix], other: &[Prefix]| match (own.is_empty(), other.is_empty()) {
            // Only "anywhere" covers "anywhere".
            (true, true) => true,
            (true, false) => !order,
            (false, true) => false,
            (false, false) => other.iter().all(|prefix| {
                let holds = |own: &Prefix| {
                    if order {
                        own == prefix
                    } else {
                        own.covers(*prefix)
                    }
                };
                own.iter().any(holds)
            }),
        };
        let ports = |own: &[Ports], other: &[Ports]| {
            let holds = |port: &Ports| {
                let wide = |own: &Ports| own.first <= port.first && port.last <= own.last;
                own.iter().any(wide)
            };
            own.is_empty() || (!other.is_empty() && other.iter().all(holds))
        };
        let cgroups = own.cgroup.is_empty()
            || (!other.cgroup.is_empty()
                && other
                    .cgroup
                    .iter()
                    .all(|path| own.cgroup.iter().any(|own| is_below(path, own))));
        let containers = own.container.is_empty()
            || (!other.container.is_empty()
                && other
                    .container
                    .iter()
                    .all(|one| own.container.contains(one)));
        within(&own.remote, &other.remote)
            && within(&own.local, &other.local)
            && (own.same_prefix == other.same_prefix || (!order && own.same_prefix.is_none()))
            && ports(&own.remote_port, &other.remote_port)
            && ports(&own.local_port, &other.local_port)
            && (own.direction.is_none() || own.direction == other.direction)
            && cgroups
            && containers
            && (own.netns.is_none() || own.netns == other.netns)
            // All flows of a rule draw below its own share.
            && own.sample.is_none_or(|own| other.sample.is_some_and(|other| other <= own))
    }

    /// Warns of conditions and settings that contradict each other.
    fn warn_of_impossible_matches(&self, warnings: &mut Vec<Warning>) {
        let conditions = &self.conditions;
        let mut warn = |at, message: String| {
            warnings.push(self.new_warning(WarningKind::Nothing, at, message));
        };
        if !conditions.has_family(true) && !conditions.has_family(false) {
            let message = "no flow gets this rule: remote, local and same_prefix are of different \
                           families of addresses";
            return warn(self.at, message.to_owned());
        }
        if !conditions.can_be_alike() {
            let message = "no flow gets this rule: its remote and local prefixes differ within \
                           the bits that same_prefix asks for";
            return warn(self.at, message.to_owned());
        }
        let peer = conditions.need_peer();
        for action in &self.actions {
            let key = action.key.name;
            let possible = action.stages
                & !match conditions.direction {
                    None => 0,
                    Some(Direction::Active) => Stage::Listen.bit(),
                    Some(Direction::Passive) => Stage::Connect.bit(),
                }
                & !if peer { Stage::Listen.bit() } else { 0 };
            if possible == 0 {
                let stage: Vec<&str> = catalogue::stages_in_mask(action.stages)
                    .map(Stage::name)
                    .collect();
                let why = if action.stages & Stage::Listen.bit() != 0 && peer {
                    "a listener has no peer, so a rule with remote, same_prefix or remote_port \
                     never holds for it"
                } else {
                    "the rule's direction excludes it"
                };
                warn(
                    action.at,
                    format!("{key} is never set at {}: {why}", stage.join(", ")),
                );
            } else if key == "reflect_tos" && conditions.direction == Some(Direction::Active) {
                warn(
                    action.at,
                    "reflect_tos is for flows that the peer opens; the rule's direction excludes \
                     them"
                        .to_owned(),
                );
            } else if action
                .key
                .ipv4_only()
                .is_some_and(|ipv4| !conditions.has_family(ipv4))
            {
                let family = if action.key.ipv4_only() == Some(true) {
                    "IPv4"
                } else {
                    "IPv6"
                };
                warn(
                    action.at,
                    format!("{key} is for {family}, of which this rule gets no flow"),
                );
            }
        }
    }

    /// Warns of settings that need another.
    fn warn_of_incomplete_settings(&self, warnings: &mut Vec<Warning>) {
        let set = |name: &str| self.actions.iter().find(|action| action.key.name == name);
        let on = |name: &str| set(name).is_some_and(|action| action.value == Value::Number(1));
        let mut warn = |at, message: &str| {
            warnings.push(self.new_warning(WarningKind::Incomplete, at, message.to_owned()));
        };
        for action in &self.actions {
            let draws = action.sets_listener() && self.conditions.sample.is_some();
            if draws && self.conditions.may_listen() {
                warn(
                    action.at,
                    "a listener draws for itself: all connections that it accepts have what is set \
                     at `listen`, or none, whatever `sample` they draw, and so `gain --rule` \
                     compares them wrongly",
                );
            }
            match (action.key.name, &action.value) {
                ("congestion", Value::Text(name)) if name == "dctcp" && !on("needs_ecn") => warn(
                    action.at,
                    "dctcp without `needs_ecn = true`: where ECN was not negotiated it reacts to \
                     losses alone",
                ),
                ("congestion", Value::Text(name)) if name == "cdg" => {
                    warn(action.at, "the kernel refuses cdg from a BPF program");
                }
                ("keepalive_idle" | "keepalive_interval" | "keepalive_count", _)
                    if set("keepalive").is_none() =>
                {
                    warn(
                        action.at,
                        "without `keepalive = true` this counts only where the application \
                         switched probes on",
                    );
                }
                ("mark" | "tos", _)
                    if action.stages & Stage::Connect.bit() != 0
                        && self.conditions.direction != Some(Direction::Passive) =>
                {
                    warn(
                        action.at,
                        &format!(
                            "the kernel chose route and source address before this {}: where a \
                             routing rule sends it elsewhere, the SYN leaves with the wrong \
                             address and connect() times out; `direction = \"passive\"` or one \
                             of the application's own does not",
                            action.key.name
                        ),
                    );
                }
                ("learn_from", _) if set("congestion").is_some() => warn(
                    action.at,
                    "the rule sets congestion itself, so the learner does not choose",
                ),
                _ => {}
            }
        }
    }
}

impl Action {
    /// Whether a listener's socket has it, from which accepted connections inherit.
    fn sets_listener(&self) -> bool {
        let is_set = matches!(
            self.key.does,
            KernelOperation::SetNumber { .. } | KernelOperation::SetText { .. }
        );
        is_set && self.stages & Stage::Listen.bit() != 0
    }
}

impl Conditions {
    /// Whether they hold only for a flow with a remote end, which a listener has not.
    fn need_peer(&self) -> bool {
        !self.remote.iter().all(|prefix| prefix.length() == 0)
            || self.same_prefix.is_some()
            || !self.remote_port.is_empty()
    }

    /// Whether they may hold for a listener.
    fn may_listen(&self) -> bool {
        !self.need_peer() && self.direction != Some(Direction::Active)
    }

    /// Whether some pair of remote and local prefix of a family can share its leading bits.
    fn can_be_alike(&self) -> bool {
        let Some(same) = self.same_prefix else {
            return true;
        };
        let all = |prefixes: &[Prefix], ipv4: bool| -> Vec<Prefix> {
            if prefixes.is_empty() {
                return vec![Prefix::all(ipv4)];
            }
            let own = prefixes.iter().filter(|prefix| prefix.is_ipv4() == ipv4);
            own.copied().collect()
        };
        [(true, same.ipv4), (false, same.ipv6)]
            .into_iter()
            .filter_map(|(ipv4, bits)| Some((ipv4, bits? + if ipv4 { 96 } else { 0 })))
            .any(|(ipv4, bits)| {
                let locals = all(&self.local, ipv4);
                all(&self.remote, ipv4).iter().any(|remote| {
                    locals.iter().any(|local| {
                        let length = bits.min(remote.length128()).min(local.length128());
                        (remote.bits() ^ local.bits()) & prefix_mask(length) == 0
                    })
                })
            })
    }
}
