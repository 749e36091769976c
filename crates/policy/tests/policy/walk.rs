//! The rule that a flow gets by compiled tables, found as the kernel program finds it.

use std::cmp::Reverse;

use thalweg_bpf_types::raw;
use thalweg_policy::{Compiled, Flow, FlowKind, Group, Namespace};
use thalweg_units::prefix::{MAPPED, address_bits, is_ipv4, prefix_mask};

/// The id of the rule that a flow gets, found as the kernel program finds it.
pub fn matching_rule_id(compiled: &Compiled, flow: &Flow) -> Option<u32> {
    let seen = FlowInKernel {
        flow,
        netns: netns_cookie(compiled, flow),
        cgroups: cgroup_mask(compiled, flow),
    };
    let mut best: Option<&raw::thalweg_policy_rule> = None;
    let mut node = compiled
        .nodes
        .get(longest_prefix_node(compiled, flow) as usize);
    while let Some(on_way) = node {
        let rules = on_way.first as usize..(on_way.first + on_way.rules) as usize;
        if let Some(rule) = compiled.rules[rules]
            .iter()
            .find(|rule| seen.matches_rule(rule))
            && best.is_none_or(|best| rule_precedence(rule) > rule_precedence(best))
        {
            best = Some(rule);
        }
        node = compiled.nodes.get(on_way.parent as usize);
    }
    best.map(|rule| rule.id)
}

/// The node of the longest prefix that contains the peer.
fn longest_prefix_node(compiled: &Compiled, flow: &Flow) -> u32 {
    let ipv4 = is_ipv4(flow.remote);
    if flow.kind == FlowKind::Listener {
        return u32::from(!ipv4);
    }
    let address = address_bits(flow.remote);
    let longest = |found: Option<(u32, u32)>| found.map_or(raw::THALWEG_POLICY_NONE, |(_, n)| n);
    if ipv4 {
        let holding = compiled.prefixes4.iter().filter(|(key, _)| {
            let mask = prefix_mask(MAPPED + key.prefix_len as u8) as u32;
            address as u32 & mask == u32::from_be_bytes(key.addr)
        });
        longest(holding.map(|(key, node)| (key.prefix_len, *node)).max())
    } else {
        let holding = compiled.prefixes6.iter().filter(|(key, _)| {
            address & prefix_mask(key.prefix_len as u8) == u128::from_be_bytes(key.addr)
        });
        longest(holding.map(|(key, node)| (key.prefix_len, *node)).max())
    }
}

fn netns_cookie(compiled: &Compiled, flow: &Flow) -> u64 {
    match &flow.netns {
        None => 0,
        Some(Namespace::Cookie(cookie)) => *cookie,
        Some(named) => {
            let used = compiled.netns.iter().find(|used| used.namespace == *named);
            let rule = used.and_then(|used| used.rules.first());
            rule.map_or(0, |&rule| compiled.rules[rule].netns)
        }
    }
}

fn cgroup_mask(compiled: &Compiled, flow: &Flow) -> u32 {
    let within = |group: &Group| match group {
        Group::Path(path) => flow.cgroup.as_ref().is_some_and(|own| is_below(own, path)),
        Group::Containers(selector) => flow.container.contains(selector),
    };
    let groups = compiled.cgroups.iter().enumerate();
    groups
        .filter(|(_, group)| within(group))
        .fold(0, |mask, (bit, _)| mask | 1 << bit)
}

fn is_below(path: &str, ancestor: &str) -> bool {
    let rest = path.strip_prefix(ancestor);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A flow as the kernel program sees it.
struct FlowInKernel<'f> {
    flow: &'f Flow,
    netns: u64,
    cgroups: u32,
}

impl FlowInKernel<'_> {
    fn matches_rule(&self, rule: &raw::thalweg_policy_rule) -> bool {
        let flow = self.flow;
        let flag = |flag: u32| rule.flags & flag != 0;
        let within = |ports: &[raw::thalweg_policy_ports], port: u16| {
            let range =
                |range: &raw::thalweg_policy_ports| range.first <= port && port <= range.last;
            ports.iter().any(range)
        };
        let listener = flow.kind == FlowKind::Listener;
        let same = |length: u8, a: u128, b: u128| (a ^ b) & prefix_mask(length) == 0;
        let (local, remote) = (address_bits(flow.local), address_bits(flow.remote));
        flag(if is_ipv4(flow.remote) {
            raw::THALWEG_RULE_IPV4
        } else {
            raw::THALWEG_RULE_IPV6
        }) && flag(if flow.kind == FlowKind::Active {
            raw::THALWEG_RULE_ACTIVE
        } else {
            raw::THALWEG_RULE_PASSIVE
        }) && (!flag(raw::THALWEG_RULE_REMOTE_PORTS)
            || !listener && within(&rule.remote_ports, flow.remote_port))
            && (!flag(raw::THALWEG_RULE_LOCAL_PORTS) || within(&rule.local_ports, flow.local_port))
            && (rule.netns == 0 || rule.netns == self.netns)
            && (rule.cgroups == 0 || rule.cgroups & self.cgroups != 0)
            && (rule.sample == 0 || flow.draw < rule.sample)
            && same(rule.local_len, local, u128::from_be_bytes(rule.local))
            && (rule.same_len == 0 || !listener && same(rule.same_len, local, remote))
    }
}

/// Precedence of a rule; the greatest wins.
fn rule_precedence(rule: &raw::thalweg_policy_rule) -> impl Ord + use<> {
    let never = rule.flags & raw::THALWEG_RULE_NEVER != 0;
    (never, rule.remote_len, rule.local_len, Reverse(rule.id))
}
