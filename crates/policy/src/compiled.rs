//! A policy as the kernel program reads it: plain tables, as `thalweg_policy_abi.h` has them.

use thalweg_abi::raw;

use crate::Version;
use crate::model::Namespace;

/// The tables of one slot, and what user space must know to fill and explain them.
///
/// How a flow finds its rule:
/// 1. The longest prefix in `prefixes4` or `prefixes6` (an IPv4-mapped peer is IPv4) that the
///    remote address lies in names a node; the tries always have the prefix of length 0.
/// 2. Of that node and its ancestors (`parent`), each has its rules in order of precedence:
///    the first that holds is the node's best.
/// 3. The best of those is the one whose key (`never`, `remote_len`, `local_len`, then the
///    *lowest* `id`) is the greatest. Nodes must all be looked at, because a rule with
///    `same_prefix` lies in the root and may be longer than a prefix further down.
///
/// A listener has no peer: it starts at the root (node 0 or 1 by its family), and a rule with
/// `same_len` or `THALWEG_RULE_REMOTE_PORTS` does not hold for it.
///
/// A flow draws one 32-bit number; a rule with `sample` holds if the number is below it.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// Name of the policy.
    pub name: String,
    /// Rules, those of one node behind each other. `netns` may be a placeholder: see `netns`.
    pub rules: Vec<raw::thalweg_policy_rule>,
    /// Operations, those of one rule behind each other; copies of a rule share them, so an
    /// operation's place is the same in all of them.
    pub ops: Vec<raw::thalweg_policy_op>,
    /// Nodes; 0 is the root of IPv4, 1 of IPv6.
    pub nodes: Vec<raw::thalweg_policy_node>,
    /// IPv4 prefixes and their nodes, the one of length 0 included.
    pub prefixes4: Vec<(raw::thalweg_policy_key4, u32)>,
    /// IPv6 prefixes and their nodes, the one of length 0 included.
    pub prefixes6: Vec<(raw::thalweg_policy_key6, u32)>,
    /// Texts that operations refer to by index.
    pub texts: Vec<raw::thalweg_policy_text>,
    /// `stages` of the head: of all rules, and ESTABLISHED where a `never` rule exists.
    pub stages: u32,
    /// `flags` of the head: `THALWEG_POLICY_REQUESTS` or 0.
    pub flags: u32,
    /// Paths below the root of the cgroup hierarchy; bit i of a rule's mask is `cgroups[i]`.
    /// A flow has the bit of its own cgroup and of every ancestor.
    pub cgroups: Vec<String>,
    /// Network namespaces that are named, not given by cookie.
    pub netns: Vec<NamespaceUse>,
    /// Sets of congestion controls; operation LEARN_FROM with value i means `arm_sets[i - 1]`.
    pub arm_sets: Vec<Vec<String>>,
    /// What is known of each rule, by id (its place in the file).
    pub about: Vec<About>,
}

/// A named network namespace, and the rules that ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceUse {
    /// How the policy names it.
    pub namespace: Namespace,
    /// What stands in the rules until it is resolved: no namespace has this cookie.
    pub placeholder: u64,
    /// Indices into `rules`.
    pub rules: Vec<usize>,
}

/// A rule of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Its name.
    pub name: String,
    /// Its description; may be empty.
    pub description: String,
    /// Line of the file, from 1.
    pub line: usize,
    /// Whether it protects.
    pub never: bool,
    /// Its operations, in the order of the table.
    pub ops: Vec<AboutOp>,
}

/// An operation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AboutOp {
    /// Key in the file.
    pub key: &'static str,
    /// Value, as in the file.
    pub value: String,
    /// The kernel's name of the option or hook.
    pub option: &'static str,
    /// First kernel that has it.
    pub since: Version,
}

impl Compiled {
    /// Puts cookies in the place of named network namespaces.
    ///
    /// A namespace that `cookie` answers with `None` does not exist: its rules keep a cookie
    /// that no namespace has, so they match nothing. Those namespaces are returned.
    pub fn resolve(
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
}
