//! A policy as the kernel program reads it: the plain tables of `thalweg_policy_abi.h`.

use std::collections::BTreeSet;

use thalweg_bpf_types::raw;

use crate::catalogue::Key;
use crate::model::{Group, Namespace};
use crate::trial::Trial;

/// Cookie of rules that match nothing because their own cookie is void. No namespace has it: a kernel
/// counts cookies up from 1. No placeholder has it either: these count down from the largest number.
pub const VOID_COOKIE: u64 = 1 << 63;

/// The tables, and the data that user space needs to fill and explain them.
///
/// How a flow finds its rule:
/// 1. The longest prefix in `prefixes4` or `prefixes6` that contains the remote address names a
///    node. An IPv4-mapped peer is IPv4. The tries always have the prefix of length 0.
/// 2. That node and each of its ancestors (`parent`) has its rules in order of precedence: the
///    first match is the node's best.
/// 3. The best of those has the greatest key (`never`, `remote_len`, `local_len`, then the *lowest*
///    `id`). All these nodes must be checked: a rule with `same_prefix` is in the root and may be
///    longer than a prefix further down.
///
/// A listener has no peer: it starts at the root (node 0 or 1 by its family). A rule with
/// `same_len` or `THALWEG_RULE_REMOTE_PORTS` does not match it.
///
/// A flow draws one 32-bit number; a rule with `sample` matches if the number is below it.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// Name of the policy.
    pub name: String,
    /// Rules; those of one node are adjacent. A rule's cookie `netns` may be a placeholder: see the
    /// field `netns`.
    pub rules: Vec<raw::thalweg_policy_rule>,
    /// Operations; those of one rule are adjacent. Copies of a rule share them, so an operation's
    /// index is the same in all of them.
    pub ops: Vec<raw::thalweg_policy_op>,
    /// Nodes; 0 is the root of IPv4, 1 of IPv6.
    pub nodes: Vec<raw::thalweg_policy_node>,
    /// IPv4 prefixes and their nodes, including the one of length 0.
    pub prefixes4: Vec<(raw::thalweg_policy_key4, u32)>,
    /// IPv6 prefixes and their nodes, including the one of length 0.
    pub prefixes6: Vec<(raw::thalweg_policy_key6, u32)>,
    /// Texts that operations refer to by index.
    pub texts: Vec<raw::thalweg_policy_text>,
    /// `stages` of the head: those of all rules, and ESTABLISHED if a `never` rule exists.
    pub stages: u32,
    /// Bit i of a rule's mask is `cgroups[i]`. A flow has the bits of its own cgroup, of every
    /// ancestor, and of its container.
    pub cgroups: Vec<Group>,
    /// Network namespaces given by name, not by cookie.
    pub netns: Vec<NamespaceUse>,
    /// Indices into `rules` of the rules that name a network namespace by its cookie.
    pub by_cookie: Vec<usize>,
    /// Sets of congestion controls; operation LEARN_FROM with value i means `arm_sets[i - 1]`.
    pub arm_sets: Vec<Vec<String>>,
    /// Names and settings of each rule, by id (its index in the file).
    pub about: Vec<RuleSummary>,
}

/// A named network namespace, and the rules that need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceUse {
    /// Network namespace as the policy names it.
    pub namespace: Namespace,
    /// Placeholder in the rules until it is resolved: no namespace has this cookie.
    pub placeholder: u64,
    /// Indices into `rules`.
    pub rules: Vec<usize>,
}

/// A rule of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSummary {
    /// Name of the rule.
    pub name: String,
    /// Whether the rule is a `never` rule.
    pub never: bool,
    /// Keys that its operations set, in the order of the table.
    pub ops: Vec<&'static Key>,
    /// Experiment of a rule with a share of flows: the flows to compare with.
    pub trial: Option<Trial>,
}

impl Compiled {
    /// Replaces the placeholders of named network namespaces by cookies.
    ///
    /// A namespace without a `cookie` does not exist. Its rules keep a cookie that no namespace
    /// has, so they match nothing. Those namespaces are returned.
    pub fn resolve_namespaces(
        &mut self,
        mut cookie: impl FnMut(&Namespace) -> Option<u64>,
    ) -> Vec<&Namespace> {
        let mut missing = Vec::new();
        for used in &self.netns {
            let found = cookie(&used.namespace);
            for &rule in &used.rules {
                self.rules[rule].netns = found.unwrap_or(used.placeholder);
            }
            if found.is_none() {
                missing.push(&used.namespace);
            }
        }
        missing
    }

    /// Cookies by which rules name network namespaces, in order.
    pub fn netns_cookies(&self) -> BTreeSet<u64> {
        let rules = self.by_cookie.iter();
        rules.map(|&rule| self.rules[rule].netns).collect()
    }

    /// Makes the rules that name a network namespace by its cookie match nothing, and returns the
    /// cookies. A cookie is valid until the machine restarts; then another namespace may have it.
    pub fn void_cookies(&mut self) -> BTreeSet<u64> {
        let cookies = self.netns_cookies();
        for &rule in &self.by_cookie {
            self.rules[rule].netns = VOID_COOKIE;
        }
        cookies
    }

    /// Why the policy is good for one machine alone; `None` where it may be given to many.
    pub fn machine_bound(&self) -> Option<String> {
        let rule = self.rules.get(*self.by_cookie.first()?)?;
        let name = &self.about.get(rule.id as usize)?.name;
        Some(format!(
            "rule {name:?}: match.netns: found the cookie {}, expected a name or an absolute path: \
             each machine, and each restart, gives a cookie to another namespace",
            rule.netns
        ))
    }
}
