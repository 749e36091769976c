//! Groups in the order of the answers.

use std::cmp::Reverse;

use thalweg_gain::{Group, Groups, Scope};

/// Groups by number of clusters, most first, within each scope.
pub fn sorted(groups: &Groups) -> Vec<(&(Scope, String), &Group)> {
    let mut groups: Vec<_> = groups.iter().collect();
    let clusters = |group: &Group| group.sides.values().map(|it| it[0].clusters).sum::<u64>();
    groups.sort_by_key(|(key, group)| (key.0, Reverse(clusters(group))));
    groups
}
