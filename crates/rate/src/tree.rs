//! Decision trees: one, or several whose leaves are added.

use crate::{Fault, MAX_INPUTS, ONE_Q15};

/// Nodes of all trees together, leaves included.
pub const MAX_NODES: usize = 2048;
/// Trees.
pub const MAX_TREES: usize = 128;
/// Decisions from a root to a leaf.
pub const MAX_DEPTH: usize = 16;
/// The largest value of a leaf, either way: 32 in Q15.
pub const MAX_LEAF: i32 = 1 << 20;

/// A decision or a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// The input that a decision compares.
    pub input: u8,
    /// The walk goes left if the input is at most this, Q15.
    pub threshold_q15: i16,
    /// Left child; a leaf has its own number.
    pub left: u16,
    /// Right child; a leaf has its own number.
    pub right: u16,
    /// A leaf's part of the action, Q15.
    pub value_q15: i32,
}

/// Trees over the same inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forest {
    nodes: Vec<Node>,
    roots: Vec<u16>,
    inputs: usize,
}

impl Forest {
    /// Trees with these roots. Children come after their parents, so every walk ends.
    pub fn new(nodes: Vec<Node>, roots: Vec<u16>, inputs: usize) -> Result<Self, Fault> {
        if inputs == 0 || inputs > MAX_INPUTS {
            return Err(Fault::new("inputs", inputs, format!("1 to {MAX_INPUTS}")));
        }
        if nodes.is_empty() || nodes.len() > MAX_NODES {
            let expected = format!("1 to {MAX_NODES} nodes");
            return Err(Fault::new("tree.feature", nodes.len(), expected));
        }
        if roots.is_empty() || roots.len() > MAX_TREES {
            let expected = format!("1 to {MAX_TREES} trees");
            return Err(Fault::new("tree.root", roots.len(), expected));
        }
        let mut depths = vec![0usize; nodes.len()];
        // Backwards, so that children's depths are known before their parents'.
        for (number, node) in nodes.iter().enumerate().rev() {
            let field = |name: &str| format!("tree.{name}[{number}]");
            let limit = MAX_LEAF;
            if !(-limit..=limit).contains(&node.value_q15) {
                let expected = format!("-{limit} to {limit}");
                return Err(Fault::new(field("value"), node.value_q15, expected));
            }
            let (left, right) = (usize::from(node.left), usize::from(node.right));
            if left == number && right == number {
                continue;
            }
            for (name, child) in [("left", left), ("right", right)] {
                if child <= number || child >= nodes.len() {
                    let last = nodes.len() - 1;
                    let expected =
                        format!("a node after {number}, up to {last}, or a leaf's own number");
                    return Err(Fault::new(field(name), child, expected));
                }
            }
            if usize::from(node.input) >= inputs {
                let expected = format!("an input below {inputs}");
                return Err(Fault::new(field("feature"), node.input, expected));
            }
            depths[number] = 1 + depths[left].max(depths[right]);
        }
        for (number, root) in roots.iter().enumerate() {
            let field = format!("tree.root[{number}]");
            match depths.get(usize::from(*root)) {
                None => {
                    let expected = format!("a node below {}", nodes.len());
                    return Err(Fault::new(field, root, expected));
                }
                Some(depth) if *depth > MAX_DEPTH => {
                    let expected = format!("a tree of depth {MAX_DEPTH} at most");
                    return Err(Fault::new(field, format!("depth {depth}"), expected));
                }
                Some(_) => {}
            }
        }
        Ok(Self {
            nodes,
            roots,
            inputs,
        })
    }

    /// Number of the trees' inputs.
    pub fn input_count(&self) -> usize {
        self.inputs
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// First node of each tree.
    pub fn roots(&self) -> &[u16] {
        &self.roots
    }

    /// The action, Q15: the limited sum of the leaves for these inputs.
    ///
    /// Panics on fewer inputs than [`Self::input_count`].
    pub fn infer(&self, inputs: &[i16]) -> i16 {
        assert!(inputs.len() >= self.inputs, "{} inputs", inputs.len());
        let sum: i32 = self
            .roots
            .iter()
            .map(|root| self.leaf_value(*root, inputs))
            .sum();
        // At most 128 leaves of 2^20 each.
        sum.clamp(-i32::from(ONE_Q15), i32::from(ONE_Q15)) as i16
    }

    fn leaf_value(&self, root: u16, inputs: &[i16]) -> i32 {
        let mut number = root;
        loop {
            let node = &self.nodes[usize::from(number)];
            if node.left == number {
                return node.value_q15;
            }
            number = if inputs[usize::from(node.input)] <= node.threshold_q15 {
                node.left
            } else {
                node.right
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(left: u16, right: u16) -> Node {
        Node {
            input: 1,
            threshold_q15: 10,
            left,
            right,
            value_q15: 0,
        }
    }

    fn leaf(own: u16, value_q15: i32) -> Node {
        Node {
            value_q15,
            ..split(own, own)
        }
    }

    #[test]
    fn leaves_add_up_and_are_limited() {
        let nodes = vec![split(1, 2), leaf(1, 20_000), leaf(2, -7)];
        let one = Forest::new(nodes.clone(), vec![0], 2).unwrap();
        assert_eq!(one.infer(&[99, 10]), 20_000);
        assert_eq!(one.infer(&[0, 11]), -7);
        let two = Forest::new(nodes, vec![0, 0], 2).unwrap();
        assert_eq!(two.infer(&[0, 10]), ONE_Q15);
        assert_eq!(two.infer(&[0, 11]), -14);
    }

    #[test]
    fn walks_that_would_not_end_are_refused() {
        let refused = |nodes: Vec<Node>, roots: Vec<u16>| {
            Forest::new(nodes, roots, 2).unwrap_err().to_string()
        };
        let circle = vec![split(1, 2), split(0, 2), leaf(2, 1)];
        assert!(refused(circle, vec![0]).starts_with("tree.left[1]: found 0"));
        let half_a_leaf = vec![split(0, 1), leaf(1, 1)];
        assert!(refused(half_a_leaf, vec![0]).starts_with("tree.left[0]: found 0"));
        let beyond = vec![split(1, 3), leaf(1, 1), leaf(2, 1)];
        assert!(refused(beyond, vec![0]).starts_with("tree.right[0]: found 3"));
        assert!(refused(vec![leaf(0, 1)], vec![1]).starts_with("tree.root[0]: found 1"));
        let large = MAX_LEAF + 1;
        assert!(refused(vec![leaf(0, large)], vec![0]).starts_with("tree.value[0]"));
        let deep: Vec<Node> = (0..=MAX_DEPTH as u16)
            .flat_map(|level| [split(2 * level + 1, 2 * level + 2), leaf(2 * level + 1, 1)])
            .chain([leaf(2 * (MAX_DEPTH as u16 + 1), 1)])
            .collect();
        assert!(refused(deep.clone(), vec![0]).contains("depth 17"));
        assert!(Forest::new(deep, vec![2], 2).is_ok());
    }
}
