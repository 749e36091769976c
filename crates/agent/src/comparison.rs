//! Comparisons of two groups of connections, in words.

use thalweg_gain::{
    CLUSTERS_MIN, Comparison, Group, Row, Scope, Verdict, compare_groups, row_alpha, size_words,
};

mod fleet;
pub mod words;

pub use fleet::Compared;

use words::{about, amount, direction, host_hours, known_in, thousands_text};

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

/// Comparison and verdict of one row of a group.
pub fn judged_row(group: &Group, scope: Scope, row: Row) -> (Comparison, Verdict) {
    let index = row.index();
    let (control, treated) = (&group.control()[index], &group.treated()[index]);
    let comparison = compare_groups(control, treated, row_alpha(scope));
    (comparison, Verdict::judge_row(&comparison, row))
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
pub fn finding_sentence(row: Row, comparison: &Comparison, against: Against) -> String {
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

/// A row with its comparison and verdict.
type Judged = (Row, Comparison, Verdict);

/// Sentence of the clearest finding. Without an age it does not predict when more is known.
pub fn found_in(all: Option<&Group>, age_s: Option<u64>, against: Against) -> String {
    let ended = |all: &&Group| all.control()[0].clusters + all.treated()[0].clusters > 0;
    let Some(group) = all.filter(ended) else {
        return "No connection has ended yet since the comparison began.".to_owned();
    };
    let judge = |row: Row| {
        let (comparison, verdict) = judged_row(group, Scope::All, row);
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
        return format!("{}.", finding_sentence(row, &comparison, against));
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
                thousands_text(comparison.treated)
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
}
