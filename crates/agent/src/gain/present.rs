//! The gain in words and numbers.

use thalweg_gain::{CLUSTERS_MIN, Comparison, Group, Groups, Row, Scope, Verdict, size_words};

use super::Gain;
use super::look::judged;
use super::words::{
    about, amount, direction, host_hours, known_in, presented_row, seconds, sorted, thousands,
};
use crate::store::Revert;
use crate::view::{self, GainGroup, GainRevert, GainRow};

/// Baseline of the treated connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The learner's control group.
    Control,
    /// Flows that a rule's share left alone.
    LeftAlone,
}

impl Against {
    /// End of a comparison's sentence, with the number of clusters.
    fn words(self, clusters: u64) -> String {
        let count = host_hours(clusters);
        match self {
            Self::Control => format!("in the control group of {count}"),
            Self::LeftAlone => format!("those that the rule left alone in {count}"),
        }
    }
}

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
            let (comparison, verdict) = judged(group, scope, row);
            if comparison.control + comparison.treated == 0 {
                return None;
            }
            Some(presented_row(row, &comparison, verdict, age_s))
        })
        .collect()
}

/// Subject of a row's sentence, and the thing that there is less or more of.
fn subject(row: Row) -> (String, &'static str) {
    match row {
        Row::Time => ("Transfers take".to_owned(), " time"),
        Row::TimeOf(size) => (format!("Transfers of {} take", size_words(size)), " time"),
        Row::Retransmitted => ("Connections retransmit".to_owned(), ""),
        Row::Failed => ("Connections fail".to_owned(), " often"),
        Row::Inflation => ("Connections end with".to_owned(), " RTT"),
    }
}

/// Sentence of a difference, e.g. `Transfers take 18 % less time [12 %, 24 %] than in the
/// control group of 1,204 host-hours`.
pub(super) fn finding(row: Row, comparison: &Comparison, against: Against) -> String {
    let (subject, what) = subject(row);
    let effect = comparison.effect;
    let (low, high) = comparison.interval().unwrap_or((effect, effect));
    let (least, most) = if effect < 0.0 {
        (high, low)
    } else {
        (low, high)
    };
    format!(
        "{subject} {} {}{what} [{}, {}] than {}",
        amount(row, effect),
        direction(effect),
        amount(row, least),
        amount(row, most),
        against.words(comparison.control),
    )
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

/// A row with its comparison and verdict.
type Judged = (Row, Comparison, Verdict);

/// Sentence of the clearest finding. Without an age it does not predict when more is known.
pub fn found_in(all: Option<&Group>, age_s: Option<u64>, against: Against) -> String {
    let ended = |all: &&Group| all.control()[0].clusters + all.treated()[0].clusters > 0;
    let Some(group) = all.filter(ended) else {
        return "No connection has ended yet since the comparison began.".to_owned();
    };
    let judge = |row: Row| {
        let (comparison, verdict) = judged(group, Scope::All, row);
        (row, comparison, verdict)
    };
    let (_, time, _) = judge(Row::Time);
    let clearest = |is_wanted: &dyn Fn(&Judged) -> bool| {
        let clearness = |comparison: &Comparison| {
            comparison.effect.abs() / comparison.half_width.unwrap_or(f64::INFINITY)
        };
        Row::all()
            .map(judge)
            .filter(is_wanted)
            .max_by(|a, b| clearness(&a.1).total_cmp(&clearness(&b.1)))
    };
    // Reasons to revert come first: somebody may have to act. A queue that pays comes last.
    let is_reason = |it: &Judged| Verdict::is_reason_to_revert(&it.1, it.0, &time);
    let found = clearest(&is_reason)
        .or_else(|| clearest(&|it| it.2 == Verdict::Better))
        .or_else(|| clearest(&|it| it.2 == Verdict::Worse));
    if let Some((row, comparison, _)) = found {
        return format!("{}.", finding(row, &comparison, against));
    }
    undecided(judge(Row::Time), age_s, against)
}

fn undecided(
    (row, comparison, verdict): (Row, Comparison, Verdict),
    age_s: Option<u64>,
    against: Against,
) -> String {
    let beside = against.words(comparison.control);
    let Some((low, high)) = comparison.interval() else {
        let control = host_hours(comparison.control);
        if comparison.control.min(comparison.treated) >= CLUSTERS_MIN {
            return format!(
                "Not known yet: {control} on one side and {} on the other are all alike, so \
                 nothing tells how much others may differ.",
                thousands(comparison.treated)
            );
        }
        return match against {
            Against::Control => format!(
                "Not known yet: the control group has {control}; at least {CLUSTERS_MIN} are \
                 needed."
            ),
            Against::LeftAlone => format!(
                "Not known yet: the rule took flows in {} and left flows alone in {control}; at \
                 least {CLUSTERS_MIN} of each are needed.",
                host_hours(comparison.treated)
            ),
        };
    };
    if verdict == Verdict::Same {
        let widest = low.abs().max(high.abs());
        let widest = amount(row, widest);
        return format!("Transfers take as long as {beside}, within {widest}.");
    }
    let growth = match verdict {
        Verdict::Unknown(growth) => growth,
        _ => None,
    };
    let left_s = age_s.and_then(|age_s| known_in(growth, age_s));
    let when = left_s.map_or(String::new(), |left_s| {
        let left = about(left_s.max(60));
        format!(" In about {left} a difference of 5 % would show.")
    });
    format!(
        "Not known yet: transfers take between {} {} and {} {} time than {beside}.{when}",
        amount(row, low),
        direction(low),
        amount(row, high),
        direction(high),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_gain::{Moments, ROWS, Side};

    /// 440 host-hours of one connection on each side, and an odd one of sixteen.
    fn with_an_odd_one(effect: f64, odd: f64) -> Group {
        let mut group = Group::default();
        for index in 0..881u32 {
            let sign = if index % 4 < 2 { 0.3 } else { -0.3 };
            let (side, residual, connections) = match (index, index % 2) {
                (880, _) => (Side::Treated, odd, 16),
                (_, 0) => (Side::Control, sign, 1),
                _ => (Side::Treated, effect + sign, 1),
            };
            let mut residuals = [None; ROWS];
            residuals[0] = Some(residual);
            let mut cluster = thalweg_gain::Cluster::default();
            (0..connections).for_each(|_| cluster.add(&residuals));
            let rows = group.sides.entry(side).or_insert([Moments::NONE; ROWS]);
            rows[0].add(&cluster, 0);
        }
        group
    }

    #[test]
    fn summary_with_an_odd_host_hour_tells_the_difference() {
        for (effect, odd, words) in [
            (-0.81, 0.68, " less time ["),
            (-0.81, 4.0, " less time ["),
            (1.0, 0.68, " more time ["),
            (1.0, -4.0, " more time ["),
            (0.0, 4.0, "Not known yet: transfers take between "),
        ] {
            let said = found_in(Some(&with_an_odd_one(effect, odd)), None, Against::Control);
            assert!(said.contains(words), "{effect} {odd}: {said}");
        }
    }

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
