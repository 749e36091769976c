//! From a [`Policy`] to [`Compiled`]. The same policy always gives the same tables.

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_bpf_types::raw;
use thalweg_units::prefix::{MAPPED, Prefix};
use thalweg_units::{Fault, Faults};

use crate::catalogue::{KernelOperation, Stage};
use crate::compiled::{Compiled, NamespaceUse, RuleSummary};
use crate::model::{Action, Conditions, Direction, Group, Namespace, Policy, Ports, Rule, Value};
use crate::trial::find_trials;

/// Rules after compilation.
const RULES_MAX: usize = raw::THALWEG_POLICY_MAX_RULES as usize;
/// Largest number of rules that are compared with one flow.
const CANDIDATES_MAX: usize = raw::THALWEG_POLICY_MAX_CANDIDATES as usize;
/// cgroups that rules name.
const CGROUPS_MAX: usize = raw::THALWEG_POLICY_MAX_CGROUPS as usize;
/// Sets of congestion controls that rules name.
const ARM_SETS_MAX: usize = raw::THALWEG_POLICY_MAX_ARM_SETS as usize;
/// Texts are numbered in 16 bits.
const TEXTS_MAX: usize = 1 << 16;
/// A range of ports that contains none.
const NO_PORTS: raw::thalweg_policy_ports = raw::thalweg_policy_ports { first: 1, last: 0 };

/// Whether a rule sets the congestion control of flows before the learner would choose it.
fn sets_congestion(rule: &Rule) -> bool {
    let early = Stage::Connect.bit() | Stage::Listen.bit() | Stage::Established.bit();
    let mut actions = rule.actions.iter();
    actions.any(|action| action.key.name == "congestion" && action.stages & early != 0)
}

impl Policy {
    /// Compiles the tables of this policy.
    ///
    /// # Errors
    /// Exceeded limits of the kernel program, each at the first rule beyond it.
    pub fn compile(&self) -> Result<Compiled, Faults> {
        let mut compiler = Compiler {
            policy: self,
            out: Compiled {
                name: self.name.clone(),
                ..Compiled::default()
            },
            texts: HashMap::new(),
            cgroups: HashMap::new(),
            arm_sets: HashMap::new(),
            netns: HashMap::new(),
            nodes: BTreeMap::new(),
            prefixes: Vec::new(),
            copies: 0,
            faults: Vec::new(),
        };
        for (id, rule) in self.rules.iter().enumerate() {
            compiler.compile_rule(id, rule);
        }
        for (id, trial) in find_trials(&self.rules) {
            compiler.out.about[id].trial = Some(trial);
        }
        compiler.lay_out();
        compiler.check_candidates();
        if compiler.faults.is_empty() {
            Ok(compiler.out)
        } else {
            compiler.faults.sort_by_key(|fault| fault.at);
            Err(Faults(compiler.faults))
        }
    }
}

struct Compiler<'p> {
    policy: &'p Policy,
    out: Compiled,
    texts: HashMap<&'p str, u16>,
    cgroups: HashMap<Group, usize>,
    arm_sets: HashMap<&'p [String], u32>,
    netns: HashMap<&'p Namespace, usize>,
    /// Rules of each prefix. Within a family, a prefix comes before the prefixes that it contains.
    nodes: BTreeMap<NodeOrder, Vec<raw::thalweg_policy_rule>>,
    /// Prefix of each node.
    prefixes: Vec<Prefix>,
    copies: usize,
    faults: Vec<Fault>,
}

/// Roots first, IPv4 before IPv6; then IPv4, then IPv6, by address and length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NodeOrder {
    inner: bool,
    ipv6: bool,
    prefix: Prefix,
}

impl NodeOrder {
    fn new(prefix: Prefix) -> Self {
        Self {
            inner: prefix.length() > 0,
            ipv6: !prefix.is_ipv4(),
            prefix,
        }
    }
}

impl<'p> Compiler<'p> {
    fn add_error(&mut self, rule: &Rule, found: String, expected: String) {
        self.faults.push(Fault {
            file: self.policy.file.clone(),
            at: rule.at,
            key: Some(format!("rule {:?}", rule.name)),
            found,
            expected,
        });
    }

    fn compile_rule(&mut self, id: usize, rule: &'p Rule) {
        let first_op = self.out.ops.len();
        let mut about = RuleSummary {
            name: rule.name.clone(),
            never: rule.never,
            ops: Vec::with_capacity(rule.actions.len()),
            trial: None,
        };
        let mut actions: Vec<&Action> = rule.actions.iter().collect();
        // `cwnd_clamp` also limits the initial window, so it comes last, whatever its position.
        actions.sort_by_key(|action| action.key.name == "cwnd_clamp");
        for action in actions {
            let op = self.compile_action(rule, action);
            self.out.ops.push(op);
            about.ops.push(action.key);
        }
        self.out.about.push(about);

        let stages = rule.stage_mask();
        self.out.stages |= u32::from(stages);
        if rule.never {
            // The learner chooses at this stage, and must know of the rule.
            self.out.stages |= u32::from(Stage::Established.bit());
        }

        let conditions = &rule.conditions;
        let template = raw::thalweg_policy_rule {
            id: to_u32(id),
            flags: rule_flags(rule),
            netns: self.netns_cookie(conditions),
            cgroups: self.cgroup_mask(rule),
            sample: conditions.sample.unwrap_or(0),
            stages,
            first_op: to_u32(first_op),
            ops: to_u32(rule.actions.len()),
            remote_ports: port_ranges(&conditions.remote_port),
            local_ports: port_ranges(&conditions.local_port),
            ..Default::default()
        };
        for ipv4 in [true, false] {
            self.copies_of(rule, &template, ipv4);
        }
    }

    /// Adds one rule for each pair of remote and local prefix of a family.
    fn copies_of(&mut self, rule: &Rule, template: &raw::thalweg_policy_rule, ipv4: bool) {
        let conditions = &rule.conditions;
        if !conditions.has_family(ipv4) {
            return;
        }
        let (family, same) = match (ipv4, conditions.same_prefix) {
            (true, same) => (raw::THALWEG_RULE_IPV4, same.and_then(|same| same.ipv4)),
            (false, same) => (raw::THALWEG_RULE_IPV6, same.and_then(|same| same.ipv6)),
        };
        let same_len = same.map_or(0, |bits| bits + if ipv4 { MAPPED } else { 0 });
        let locals = of_family(&conditions.local, ipv4);
        for remote in of_family(&conditions.remote, ipv4) {
            for local in &locals {
                self.copies += 1;
                if self.copies > RULES_MAX {
                    if self.copies == RULES_MAX + 1 {
                        self.add_error(
                            rule,
                            format!("more than {RULES_MAX} rules so far"),
                            "fewer (a rule counts once for each pair of remote and local prefix)"
                                .to_owned(),
                        );
                    }
                    return;
                }
                let has_local = local.length() > 0;
                let copy = raw::thalweg_policy_rule {
                    flags: template.flags | family,
                    local: if has_local {
                        local.bits().to_be_bytes()
                    } else {
                        [0; 16]
                    },
                    local_len: if has_local { local.length128() } else { 0 },
                    same_len,
                    remote_len: remote.length128().max(same_len),
                    ..*template
                };
                let node = self.nodes.entry(NodeOrder::new(remote)).or_default();
                node.push(copy);
            }
        }
    }

    fn compile_action(&mut self, rule: &'p Rule, action: &'p Action) -> raw::thalweg_policy_op {
        let mut op = raw::thalweg_policy_op {
            stages: action.stages,
            ..Default::default()
        };
        let (kind, level, name) = match action.key.does {
            KernelOperation::SetNumber { level, name } => (raw::THALWEG_OP_SET_INT, level, name),
            KernelOperation::SetText { level, name } => (raw::THALWEG_OP_SET_TEXT, level, name),
            KernelOperation::TimeoutInit => (raw::THALWEG_OP_TIMEOUT_INIT, 0, 0),
            KernelOperation::RwndInit => (raw::THALWEG_OP_RWND_INIT, 0, 0),
            KernelOperation::NeedsEcn => (raw::THALWEG_OP_NEEDS_ECN, 0, 0),
            KernelOperation::BaseRtt => (raw::THALWEG_OP_BASE_RTT, 0, 0),
            KernelOperation::ReflectTos => (raw::THALWEG_OP_REFLECT_TOS, 0, 0),
            KernelOperation::Statistics => (raw::THALWEG_OP_STATISTICS, 0, 0),
            KernelOperation::SendOption if action.value == Value::Congestion => {
                (raw::THALWEG_OP_SEND_OPTION_CC, 0, 0)
            }
            KernelOperation::SendOption => (raw::THALWEG_OP_SEND_OPTION, 0, 0),
            KernelOperation::ReadOption => (raw::THALWEG_OP_READ_OPTION, 0, 0),
            KernelOperation::LearnFrom => (raw::THALWEG_OP_LEARN_FROM, 0, 0),
        };
        // The operations of the ABI are numbered far below 256.
        op.kind = kind as u8;
        (op.level, op.name) = (level, name);
        match &action.value {
            Value::Number(value) => {
                op.value = *value;
                op.text = action.key.cap.map_or(0, |none| match rule.overrides {
                    true => raw::THALWEG_CAP_OVERRIDES as u16,
                    false => none + 1,
                });
            }
            Value::Text(text) => op.text = self.text_index(rule, text),
            // The rule's own congestion control stays, whatever their order: set 0 has no arms.
            Value::Names(_) if sets_congestion(rule) => op.value = 0,
            Value::Names(names) => op.value = self.arm_set(rule, names),
            Value::Congestion => {}
        }
        op
    }

    fn text_index(&mut self, rule: &Rule, text: &'p str) -> u16 {
        if let Some(&index) = self.texts.get(text) {
            return index;
        }
        let Ok(index) = u16::try_from(self.out.texts.len()) else {
            let found = format!("more than {TEXTS_MAX} different names so far");
            self.add_error(rule, found, "fewer".to_owned());
            return 0;
        };
        let mut entry = raw::thalweg_policy_text::default();
        for (to, from) in entry.text.iter_mut().zip(text.bytes()) {
            *to = from as _;
        }
        self.out.texts.push(entry);
        self.texts.insert(text, index);
        index
    }

    /// Index of a set, counted from 1.
    fn arm_set(&mut self, rule: &Rule, names: &'p [String]) -> u32 {
        if let Some(&index) = self.arm_sets.get(names) {
            return index;
        }
        if self.out.arm_sets.len() == ARM_SETS_MAX {
            self.add_error(
                rule,
                format!("more than {ARM_SETS_MAX} different `learn_from` so far"),
                "fewer".to_owned(),
            );
            return 0;
        }
        self.out.arm_sets.push(names.to_vec());
        let index = to_u32(self.out.arm_sets.len());
        self.arm_sets.insert(names, index);
        index
    }

    /// The mask of a rule's cgroups.
    fn cgroup_mask(&mut self, rule: &'p Rule) -> u32 {
        let mut mask = 0;
        let conditions = &rule.conditions;
        let paths = conditions.cgroup.iter().cloned().map(Group::Path);
        let containers = conditions.container.iter().cloned();
        for group in paths.chain(containers.map(Group::Containers)) {
            let index = match self.cgroups.get(&group) {
                Some(&index) => index,
                None if self.out.cgroups.len() == CGROUPS_MAX => {
                    self.add_error(
                        rule,
                        format!("more than {CGROUPS_MAX} different cgroups so far"),
                        "fewer".to_owned(),
                    );
                    return mask;
                }
                None => {
                    self.out.cgroups.push(group.clone());
                    self.cgroups.insert(group, self.out.cgroups.len() - 1);
                    self.out.cgroups.len() - 1
                }
            };
            mask |= 1 << index;
        }
        mask
    }

    /// A rule's cookie, or a placeholder for it.
    fn netns_cookie(&mut self, conditions: &'p Conditions) -> u64 {
        match &conditions.netns {
            None => 0,
            Some(Namespace::Cookie(cookie)) => *cookie,
            Some(namespace) => {
                let next = self.out.netns.len();
                let index = *self.netns.entry(namespace).or_insert(next);
                if index == next {
                    self.out.netns.push(NamespaceUse {
                        namespace: namespace.clone(),
                        // Far above the cookies of a kernel, which it gives in sequence.
                        placeholder: u64::MAX - next as u64,
                        rules: Vec::new(),
                    });
                }
                self.out.netns[index].placeholder
            }
        }
    }

    /// Fills the tables of nodes, rules and prefixes.
    fn lay_out(&mut self) {
        for ipv4 in [true, false] {
            let root = NodeOrder::new(Prefix::all(ipv4));
            self.nodes.entry(root).or_default();
        }
        // The path from the root to the previous node.
        let mut way: Vec<(Prefix, u32)> = Vec::new();
        for (order, mut rules) in std::mem::take(&mut self.nodes) {
            let prefix = order.prefix;
            let index = to_u32(self.out.nodes.len());
            if order.inner
                && way
                    .last()
                    .is_none_or(|(last, _)| last.is_ipv4() != prefix.is_ipv4())
            {
                way = vec![(Prefix::all(prefix.is_ipv4()), u32::from(!prefix.is_ipv4()))];
            }
            while way.last().is_some_and(|(last, _)| !last.covers(prefix)) {
                way.pop();
            }
            let parent = way
                .last()
                .filter(|_| order.inner)
                .map_or(raw::THALWEG_POLICY_NONE, |(_, index)| *index);
            way.push((prefix, index));
            self.prefixes.push(prefix);
            rules.sort_by_key(rule_precedence);
            let never = rules.iter().filter(|rule| is_never(rule)).count();
            self.out.nodes.push(raw::thalweg_policy_node {
                first: to_u32(self.out.rules.len()),
                rules: to_u32(rules.len()),
                parent,
                never: to_u32(never),
            });
            self.out.rules.append(&mut rules);
            if prefix.is_ipv4() {
                let key = raw::thalweg_policy_key4 {
                    prefix_len: prefix.length().into(),
                    addr: (prefix.bits() as u32).to_be_bytes(),
                };
                self.out.prefixes4.push((key, index));
            } else {
                let key = raw::thalweg_policy_key6 {
                    prefix_len: prefix.length().into(),
                    addr: prefix.bits().to_be_bytes(),
                };
                self.out.prefixes6.push((key, index));
            }
        }
        for (place, rule) in self.out.rules.iter().enumerate() {
            let index = usize::try_from(u64::MAX - rule.netns).unwrap_or(usize::MAX);
            if let Some(used) = self.out.netns.get_mut(index) {
                used.rules.push(place);
            } else if rule.netns != 0 {
                self.out.by_cookie.push(place);
            }
        }
    }

    /// Refuses a policy if some flow would have to be compared with too many rules.
    fn check_candidates(&mut self) {
        let nodes = &self.out.nodes;
        let mut totals: Vec<usize> = Vec::with_capacity(nodes.len());
        for node in nodes {
            // A parent comes before its children.
            let above = totals.get(node.parent as usize).copied().unwrap_or(0);
            totals.push(above + node.rules as usize);
        }
        let worst = totals.iter().copied().max().unwrap_or(0);
        let Some(at) = totals.iter().position(|&total| total == worst) else {
            return;
        };
        if worst <= CANDIDATES_MAX {
            return;
        }
        let mut ids = Vec::new();
        let mut node = nodes.get(at);
        while let Some(on_way) = node {
            let rules = on_way.first as usize..(on_way.first + on_way.rules) as usize;
            ids.extend(self.out.rules[rules].iter().map(|rule| rule.id));
            node = nodes.get(on_way.parent as usize);
        }
        ids.sort_unstable();
        let policy = self.policy;
        let rule = &policy.rules[ids[CANDIDATES_MAX] as usize];
        let whose = match self.prefixes[at] {
            prefix if prefix.length() > 0 => format!("flows to {prefix}"),
            prefix if prefix.is_ipv4() => "IPv4 flows".to_owned(),
            _ => "IPv6 flows".to_owned(),
        };
        self.add_error(
            rule,
            format!("{worst} rules that {whose} may have to be compared with"),
            format!(
                "at most {CANDIDATES_MAX} (a rule counts once for each pair of remote and local \
                 prefix; this is the first one too many)"
            ),
        );
    }
}

/// Order of the rules of one node: the first match is the best.
fn rule_precedence(rule: &raw::thalweg_policy_rule) -> impl Ord + use<> {
    (
        !is_never(rule),
        u8::MAX - rule.remote_len,
        u8::MAX - rule.local_len,
        rule.id,
    )
}

fn is_never(rule: &raw::thalweg_policy_rule) -> bool {
    rule.flags & raw::THALWEG_RULE_NEVER != 0
}

/// The prefixes of a family, each once; the whole family if there are no prefixes at all.
fn of_family(prefixes: &[Prefix], ipv4: bool) -> Vec<Prefix> {
    if prefixes.is_empty() {
        return vec![Prefix::all(ipv4)];
    }
    let mut seen = HashSet::new();
    let own = prefixes.iter().filter(|prefix| prefix.is_ipv4() == ipv4);
    own.filter(|prefix| seen.insert(**prefix))
        .copied()
        .collect()
}

/// Flags except those of the families.
fn rule_flags(rule: &Rule) -> u32 {
    let conditions = &rule.conditions;
    let mut flags = match conditions.direction {
        None => raw::THALWEG_RULE_ACTIVE | raw::THALWEG_RULE_PASSIVE,
        Some(Direction::Active) => raw::THALWEG_RULE_ACTIVE,
        Some(Direction::Passive) => raw::THALWEG_RULE_PASSIVE,
    };
    for (set, flag) in [
        (rule.never, raw::THALWEG_RULE_NEVER),
        (
            !conditions.remote_port.is_empty(),
            raw::THALWEG_RULE_REMOTE_PORTS,
        ),
        (
            !conditions.local_port.is_empty(),
            raw::THALWEG_RULE_LOCAL_PORTS,
        ),
    ] {
        if set {
            flags |= flag;
        }
    }
    flags
}

fn port_ranges(
    ranges: &[Ports],
) -> [raw::thalweg_policy_ports; raw::THALWEG_POLICY_MAX_PORTS as usize] {
    std::array::from_fn(|index| {
        ranges
            .get(index)
            .map_or(NO_PORTS, |range| raw::thalweg_policy_ports {
                first: range.first,
                last: range.last,
            })
    })
}

/// Sizes of tables are far below 2^32.
fn to_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
