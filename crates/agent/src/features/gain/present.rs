//! The gain in words and numbers.

use thalweg_gain::{Group, Groups, Row, Scope};

use super::Gain;
use super::durations::seconds;
use super::groups::sorted;
use super::store::Revert;
use crate::comparison::words::presented_row;
use crate::comparison::{Against, found_in, judged_row};
use crate::view::{self, GainGroup, GainRevert, GainRow};

/// Query of the gain, with the state that the response needs.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Groups to list; the group of all is always first.
    pub scope: Scope,
    /// Time on the store's clock, ms.
    pub now_ms: i64,
    /// Events that were lost before they reached the agent.
    pub events_dropped: u64,
    /// Whether the agent runs dry: nothing is set.
    pub dry_run: bool,
    /// Whether the agent gives advice only: nothing but trials is set.
    pub advises: bool,
    /// The share of host-hours in the control group, Q16.
    pub share: f64,
}

impl Gain {
    /// The answer of `GET /v1/gain`.
    pub fn view(&self, asked: &Asked) -> view::Gain {
        let groups = self.kept.ledger.current_groups();
        let age_s = seconds(asked.now_ms - self.kept.since_ms);
        let all = groups.get(&(Scope::All, String::new()));
        view::Gain {
            summary: summary(all, asked, age_s),
            age_s,
            left_out: self.kept.ledger.left_out,
            events_dropped: asked.events_dropped,
            groups: presented(&groups, asked.scope, age_s),
            reverts: self
                .kept
                .reverts
                .iter()
                .map(|revert| presented_revert(revert, asked.now_ms))
                .collect(),
            rule: None,
            features: Vec::new(),
        }
    }
}

/// Groups of a scope, most clusters first, and the group of all.
pub(super) fn presented(groups: &Groups, wanted: Scope, age_s: u64) -> Vec<GainGroup> {
    let presented = |((scope, name), group): (&(Scope, String), &Group)| GainGroup {
        by: scope.name().to_owned(),
        name: name.clone(),
        rows: rows(group, *scope, age_s),
    };
    let groups = sorted(groups).into_iter();
    let wanted = groups.filter(|(key, _)| key.0 == Scope::All || key.0 == wanted);
    wanted.map(presented).collect()
}

pub(super) fn presented_revert(revert: &Revert, now_ms: i64) -> GainRevert {
    GainRevert {
        arm: revert.arm.clone(),
        why: revert.why.clone(),
        age_s: seconds(now_ms - revert.since_ms),
        left_s: seconds(revert.until_ms - now_ms),
    }
}

fn rows(group: &Group, scope: Scope, age_s: u64) -> Vec<GainRow> {
    Row::all()
        .take(scope.row_count())
        .filter_map(|row| {
            let (comparison, verdict) = judged_row(group, scope, row);
            if comparison.control + comparison.treated == 0 {
                return None;
            }
            Some(presented_row(row, &comparison, verdict, age_s))
        })
        .collect()
}

/// Summary of all connections: the clearest difference, if there is one.
fn summary(all: Option<&Group>, asked: &Asked, age_s: u64) -> String {
    if asked.dry_run {
        return "A dry run sets nothing, so there is nothing to compare.".to_owned();
    }
    if asked.advises {
        return "This agent sets nothing but trials: `thalweg advise` says what they show."
            .to_owned();
    }
    if asked.share <= 0.0 {
        return "There is no control group to compare with: set `share` in `[control]`, e.g. to 0.05.".to_owned();
    }
    found_in(all, Some(age_s), Against::Control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_control_group_it_says_so() {
        let asked = Asked {
            scope: Scope::All,
            now_ms: 0,
            events_dropped: 0,
            dry_run: false,
            advises: false,
            share: 0.05,
        };
        assert!(summary(None, &asked, 0).starts_with("No connection"));
        let without = Asked {
            share: 0.0,
            ..asked
        };
        assert!(summary(None, &without, 0).starts_with("There is no control group"));
        let advises = Asked {
            advises: true,
            ..without
        };
        assert!(summary(None, &advises, 0).contains("`thalweg advise`"));
        let dry = Asked {
            dry_run: true,
            ..without
        };
        assert!(summary(None, &dry, 0).starts_with("A dry run"));
    }
}
