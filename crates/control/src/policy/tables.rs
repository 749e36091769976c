//! Fills the maps of a program instance from a compiled policy.

use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};
use thalweg_bpf_objects::names::policy::maps;
use thalweg_bpf_types::{Pod, bytes_of, raw};
use thalweg_policy::Compiled;

use crate::error::{Context, Result, bail};
use crate::{batch, object};

const EARLY: u32 = 1 << raw::THALWEG_STAGE_CONNECT | 1 << raw::THALWEG_STAGE_ASKED;
/// Stages that need callbacks.
pub(super) const LATER_STAGE_MASK: u32 = 1 << raw::THALWEG_STAGE_RETRANSMIT
    | 1 << raw::THALWEG_STAGE_RTO
    | 1 << raw::THALWEG_STAGE_RTT
    | 1 << raw::THALWEG_STAGE_CLOSE;
const OPS_MAX: usize = raw::THALWEG_POLICY_MAX_OPS as usize;

/// The value of a socket without a cap of its own, where a sysctl sets it: that of the caller's network
/// namespace.
fn default_value(op: &raw::thalweg_policy_op) -> Option<u16> {
    // In place of a text's number caps have one above that value.
    let is_cap = u32::from(op.kind) == raw::THALWEG_OP_SET_INT
        && op.text != 0
        && u32::from(op.text) != raw::THALWEG_CAP_OVERRIDES;
    let name = match (i32::from(op.level), i32::from(op.name)) {
        (libc::SOL_TCP, libc::TCP_KEEPIDLE) => "tcp_keepalive_time",
        (libc::SOL_TCP, libc::TCP_KEEPINTVL) => "tcp_keepalive_intvl",
        (libc::SOL_TCP, libc::TCP_KEEPCNT) => "tcp_keepalive_probes",
        _ => return None,
    };
    let file = format!("/proc/sys/net/ipv4/{name}");
    let text = is_cap.then(|| std::fs::read_to_string(file).ok())??;
    text.trim().parse().ok()
}

/// Whether nothing but another setting changes an operation's option once a flow is established: not the
/// kernel, and not a later stage of the same rule.
fn is_lasting(op: &raw::thalweg_policy_op, all: &[raw::thalweg_policy_op]) -> bool {
    let option = |op: &raw::thalweg_policy_op| (i32::from(op.level), i32::from(op.name));
    let kind = u32::from(op.kind);
    let is_set = kind == raw::THALWEG_OP_SET_INT || kind == raw::THALWEG_OP_SET_TEXT;
    // The kernel adapts both to the path and to its memory.
    let adapts = [libc::TCP_WINDOW_CLAMP, libc::TCP_MAXSEG].map(|name| (libc::SOL_TCP, name));
    let mut same = all.iter().filter(|other| option(other) == option(op));
    is_set
        && !adapts.contains(&option(op))
        && same.all(|other| u32::from(other.stages) & LATER_STAGE_MASK == 0)
}

/// Content of the maps.
pub(super) struct Tables<'c> {
    compiled: &'c Compiled,
    /// By id of a rule; operations with texts still have the policy's own numbers.
    actions: Vec<raw::thalweg_policy_flow>,
    /// For the head.
    pub flags: u32,
    /// For the head.
    pub stages: u32,
}

impl<'c> Tables<'c> {
    /// The tables of a policy; a dry run has no actions.
    pub fn new(compiled: &'c Compiled, dry_run: bool) -> Self {
        let mut tables = Self {
            compiled,
            actions: (0..compiled.about.len())
                .map(|id| raw::thalweg_policy_flow {
                    rule: id as u32,
                    ..Default::default()
                })
                .collect(),
            flags: 0,
            stages: compiled.stages,
        };
        for rule in &compiled.rules {
            if rule.netns != 0 {
                tables.flags |= raw::THALWEG_POLICY_NETNS;
            }
            if rule.sample != 0 {
                tables.flags |= raw::THALWEG_POLICY_SAMPLES;
            }
        }
        if dry_run {
            tables.flags |= raw::THALWEG_POLICY_DRY_RUN;
        } else {
            if tables.flags & raw::THALWEG_POLICY_SAMPLES != 0 {
                tables.flags |= raw::THALWEG_POLICY_TRIALS;
            }
            for rule in &compiled.rules {
                tables.add_rule(rule);
            }
        }
        if tables.stages & EARLY != 0 {
            tables.flags |= raw::THALWEG_POLICY_REMEMBERS;
        }
        tables
    }

    fn add_rule(&mut self, rule: &raw::thalweg_policy_rule) {
        // Copies of a rule differ only in prefixes.
        let Some(action) = self.actions.get_mut(rule.id as usize) else {
            return;
        };
        let mut flags = 0;
        if rule.flags & raw::THALWEG_RULE_NEVER != 0 {
            flags |= raw::THALWEG_FLOW_NEVER;
        }
        if u32::from(rule.stages) & LATER_STAGE_MASK != 0 {
            flags |= raw::THALWEG_FLOW_KEEPS;
        }
        action.stages = rule.stages;
        let ops = self.compiled.ops.iter().skip(rule.first_op as usize);
        action.count = 0;
        for (to, op) in action.ops.iter_mut().zip(ops.take(rule.ops as usize)) {
            *to = *op;
            if let Some(value) = default_value(op) {
                to.text = value.saturating_add(1);
            }
            action.count += 1;
            let passive = rule.flags & raw::THALWEG_RULE_PASSIVE != 0;
            match u32::from(op.kind) {
                raw::THALWEG_OP_SET_INT
                    if (i32::from(op.level), i32::from(op.name))
                        == (libc::SOL_SOCKET, libc::SO_PRIORITY) =>
                {
                    flags |= raw::THALWEG_FLOW_PRIORITY;
                }
                raw::THALWEG_OP_REFLECT_TOS => {
                    self.flags |= raw::THALWEG_POLICY_SAVE_SYN;
                }
                // The kernel asks for it after the handshake.
                raw::THALWEG_OP_BASE_RTT => flags |= raw::THALWEG_FLOW_KEEPS,
                raw::THALWEG_OP_READ_OPTION => {
                    flags |= raw::THALWEG_FLOW_READS | raw::THALWEG_FLOW_KEEPS;
                    if passive {
                        self.flags |= raw::THALWEG_POLICY_SAVE_SYN;
                    }
                }
                raw::THALWEG_OP_SEND_OPTION | raw::THALWEG_OP_SEND_OPTION_CC => {
                    flags |= raw::THALWEG_FLOW_SENDS;
                    // Both directions are looked up when the SYN or the SYN-ACK is written.
                    self.stages |= EARLY;
                    if passive {
                        self.flags |= raw::THALWEG_POLICY_OPTIONS;
                    }
                }
                _ => {}
            }
        }
        // The flags are bits of a byte.
        action.flags = flags as u8;
        let ops = &action.ops[..usize::from(action.count)];
        let lasting = ops.iter().map(|op| is_lasting(op, ops));
        action.lasting = (0..)
            .zip(lasting)
            .fold(0, |mask, (place, is)| mask | u32::from(is) << place);
    }

    /// Size of one of this policy's own maps.
    pub fn map_entries(&self, map: &str) -> Option<u32> {
        let entries = match map {
            maps::PREFIXES4 => self.compiled.prefixes4.len(),
            maps::PREFIXES6 => self.compiled.prefixes6.len(),
            maps::NODES => self.compiled.nodes.len(),
            maps::RULES => self.compiled.rules.len(),
            maps::ACTIONS | maps::COUNTERS => self.actions.len(),
            _ => return None,
        };
        Some(entries.max(1) as u32)
    }

    /// Fills the maps of a loaded object.
    pub fn fill_maps(mut self, object: &Object, generation: u32) -> Result<()> {
        let map = |name| object::find_map(object, name);
        let texts = place_texts(&map(maps::TEXTS)?, &self.compiled.texts)?;
        for action in &mut self.actions {
            action.generation = generation;
            for op in &mut action.ops[..usize::from(action.count).min(OPS_MAX)] {
                if u32::from(op.kind) == raw::THALWEG_OP_SET_TEXT {
                    op.text = *texts
                        .get(usize::from(op.text))
                        .context("an operation refers to a text that does not exist")?;
                }
            }
        }
        fill_array(&map(maps::NODES)?, &self.compiled.nodes)?;
        fill_array(&map(maps::RULES)?, &self.compiled.rules)?;
        fill_array(&map(maps::ACTIONS)?, &self.actions)?;
        fill_trie(&map(maps::PREFIXES4)?, &self.compiled.prefixes4)?;
        fill_trie(&map(maps::PREFIXES6)?, &self.compiled.prefixes6)
    }
}

fn fill_array<T: Pod>(map: &MapHandle, values: &[T]) -> Result<()> {
    let keys = (0..values.len() as u32).flat_map(u32::to_ne_bytes);
    fill_map(map, keys, values.iter().flat_map(bytes_of).copied())
}

fn fill_trie<K: Pod>(map: &MapHandle, prefixes: &[(K, u32)]) -> Result<()> {
    let keys = prefixes.iter().flat_map(|(key, _)| bytes_of(key)).copied();
    let nodes = prefixes.iter().flat_map(|(_, node)| node.to_ne_bytes());
    fill_map(map, keys, nodes)
}

/// One system call fills a whole table.
fn fill_map(
    map: &MapHandle,
    keys: impl Iterator<Item = u8>,
    values: impl Iterator<Item = u8>,
) -> Result<()> {
    let (keys, values): (Vec<u8>, Vec<u8>) = (keys.collect(), values.collect());
    let count = keys.len() as u32 / map.key_size();
    if count == 0 {
        return Ok(());
    }
    map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)
        .with_context(|| format!("filling map {:?}", map.name()))
}

/// Numbers of texts in the shared map. Flows of earlier policies still refer to them, so a text
/// keeps its number for good.
pub(super) fn place_texts(map: &MapHandle, texts: &[raw::thalweg_policy_text]) -> Result<Vec<u16>> {
    let mut placed = Vec::new();
    let mut have: Vec<raw::thalweg_policy_text> = Vec::new();
    if !texts.is_empty() {
        for index in 0..raw::THALWEG_POLICY_MAX_TEXTS {
            let text: raw::thalweg_policy_text = batch::read_entry(map, index, "the texts")?;
            if text.text[0] == 0 {
                break;
            }
            have.push(text);
        }
    }
    for text in texts {
        let known = have.iter().position(|other| other.text == text.text);
        let index = known.unwrap_or(have.len());
        if index >= raw::THALWEG_POLICY_MAX_TEXTS as usize {
            bail!(
                Busy,
                "more than {} names of congestion controls and devices since the first policy; \
                 `thalweg policy remove` and apply again",
                raw::THALWEG_POLICY_MAX_TEXTS
            );
        }
        if known.is_none() {
            map.update(&(index as u32).to_ne_bytes(), bytes_of(text), MapFlags::ANY)?;
            have.push(*text);
        }
        placed.push(index as u16);
    }
    Ok(placed)
}
