//! Advice in words and numbers.

use thalweg_control::system;
use thalweg_gain::{
    Advised, Arm, Choice, Comparison, Conclusion, Finding, Group, Row, Scope, Side, Verdict,
    advise_group,
};
use thalweg_units::prefix::Prefix;

use super::super::durations::seconds;
use super::super::groups::sorted;
use super::super::store::KeptGain;
use crate::comparison::words::{about, amount, direction, host_hours, known_in, presented_row};
use crate::limits::{self, Buffers};
use crate::view::{self, AdviceChoice, AdviceGroup};

/// Basis of the comparisons.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// The learner's choices against its control group.
    Learner {
        /// Whether there is a control group.
        has_control: bool,
    },
    /// Trials, on a share of the host-hours.
    Advice {
        /// Share of host-hours with trials, 0 to 1.
        trials: f64,
    },
    /// No comparison: nothing is set, and only limits are measured.
    DryRun,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Learner { .. } => "learner",
            Self::Advice { .. } => "advice",
            Self::DryRun => "dry-run",
        }
    }
}

/// Query of advice, with the state that the response needs.
#[derive(Clone, Debug)]
pub struct Question {
    /// Groups to list; the group of all is always first.
    pub scope: Scope,
    /// Prefix that listed groups overlap with; `None`: all groups.
    pub prefix: Option<Prefix>,
    /// Time on the store's clock, ms.
    pub now_ms: i64,
    /// Events that were lost before they reached the agent.
    pub events_dropped: u64,
    /// Basis of the comparisons.
    pub source: Source,
    /// The machine's default.
    pub system: String,
    /// Reason that the kernel does not report limits; `None`: it reports them.
    pub untold: Option<String>,
}

/// The answer of an agent that learns, about the learner's choices.
pub fn of_learner(kept: &KeptGain, question: &Question) -> view::Advice {
    let system = Arm::new(&question.system).unwrap_or(Arm::UNKNOWN);
    view(kept, system, Vec::new(), question)
}

/// The answer of `GET /v1/advise`; `ended` are the arms whose trials have ended.
pub(super) fn view(
    kept: &KeptGain,
    system: Arm,
    ended: Vec<&str>,
    question: &Question,
) -> view::Advice {
    let age_s = seconds(question.now_ms - kept.since_ms);
    let groups = kept.ledger.current_groups();
    let wanted = sorted(&groups).into_iter().filter(|((scope, name), _)| {
        *scope == Scope::All || (*scope == question.scope && question.has(name))
    });
    let table = Table {
        system,
        age_s,
        buffers: Buffers {
            send_max: system::send_buffer_max(),
        },
        question,
        ended,
    };
    let groups: Vec<_> = wanted
        .map(|((scope, name), group)| table.group(*scope, name, group))
        .collect();
    let all = groups.first().filter(|it| it.by == Scope::All.name());
    view::Advice {
        summary: all.map_or_else(
            || "No connection has ended yet since the comparison began.".to_owned(),
            |all| all.words.clone(),
        ),
        source: question.source.name().to_owned(),
        system_arm: system.name().to_owned(),
        trials: match question.source {
            Source::Advice { trials } => Some(trials),
            _ => None,
        },
        age_s,
        left_out: kept.ledger.left_out,
        events_dropped: question.events_dropped,
        limits_untold: question.untold.clone(),
        networks: Vec::new(),
        features: Vec::new(),
        groups,
    }
}

impl Question {
    fn has(&self, name: &str) -> bool {
        let Some(wanted) = self.prefix else {
            return true;
        };
        Prefix::parse(name).is_ok_and(|prefix| prefix.overlaps(wanted))
    }
}

/// State that all groups of an answer share.
struct Table<'a> {
    system: Arm,
    age_s: u64,
    buffers: Buffers,
    question: &'a Question,
    ended: Vec<&'a str>,
}

impl Table<'_> {
    fn group(&self, scope: Scope, name: &str, group: &Group) -> AdviceGroup {
        let advised = advise_group(group, scope, self.system);
        let best = match advised.conclusion {
            Conclusion::Take(index) => advised.choices.get(index),
            _ => None,
        };
        let growth = match advised.conclusion {
            Conclusion::Unknown(growth) => growth,
            _ => None,
        };
        AdviceGroup {
            by: scope.name().to_owned(),
            name: name.to_owned(),
            verdict: match advised.conclusion {
                Conclusion::Nothing => "nothing",
                Conclusion::Take(_) => "take",
                Conclusion::Keep => "keep",
                Conclusion::Same => "same",
                Conclusion::Unknown(_) => "unknown",
            }
            .to_owned(),
            best: best.and_then(|it| arm(it, scope, name)),
            words: self.conclusion(&advised, scope, name),
            known_in_s: known_in(growth, self.age_s),
            choices: advised
                .choices
                .iter()
                .map(|choice| self.choice(choice, scope, name))
                .collect(),
            limits: limits::presented(&group.limits, self.buffers, None),
        }
    }

    fn choice(&self, choice: &Choice, scope: Scope, name: &str) -> AdviceChoice {
        let measures = Row::MEASURES.into_iter().zip(&choice.comparisons);
        let growth = match choice.found {
            Finding::Unknown(growth) => growth,
            _ => None,
        };
        let arm = arm(choice, scope, name);
        AdviceChoice {
            by: match choice.side {
                Side::Drawn(_) => "trial",
                Side::Itself(_) => "itself",
                Side::Treated | Side::Control => "learner",
            }
            .to_owned(),
            ended: matches!(choice.side, Side::Drawn(_))
                && arm.as_deref().is_some_and(|arm| self.ended.contains(&arm)),
            arm,
            verdict: match choice.found {
                Finding::Better => "better",
                Finding::AtAPrice(_) => "price",
                Finding::Worse => "worse",
                Finding::Same => "same",
                Finding::Unknown(_) => "unknown",
            }
            .to_owned(),
            words: said(choice, scope, name, self.system.name()),
            known_in_s: known_in(growth, self.age_s),
            rows: measures
                .filter(|(_, it)| it.control + it.treated > 0)
                .map(|(row, it)| presented_row(row, it, Verdict::judge_row(it, row), self.age_s))
                .collect(),
        }
    }

    /// Conclusion of a group, in one or two sentences.
    fn conclusion(&self, advised: &Advised, scope: Scope, name: &str) -> String {
        let system = self.system.name();
        match advised.conclusion {
            Conclusion::Take(index) => {
                let choice = &advised.choices[index];
                let said = said(choice, scope, name, system);
                match choice.side {
                    Side::Itself(_) => format!(
                        "{said}. This compares different applications (or routes, or policies); it \
                         is no experiment. Trials would be one."
                    ),
                    _ => format!("{said}."),
                }
            }
            Conclusion::Same => {
                format!(
                    "No difference that matters: all that was compared takes as long as {system}."
                )
            }
            Conclusion::Keep => {
                let prices = advised.choices.iter().filter(|it| is_price(it.found));
                let prices: Vec<_> = prices.map(|it| said(it, scope, name, system)).collect();
                let rest = match prices.is_empty() {
                    true => String::new(),
                    false => format!(" {}.", prices.join("; ")),
                };
                format!("{system} is best here: nothing that was compared does better.{rest}")
            }
            Conclusion::Unknown(growth) => self.unknown(advised, growth),
            Conclusion::Nothing => self.nothing(),
        }
    }

    fn unknown(&self, advised: &Advised, growth: Option<f64>) -> String {
        let counts = advised.choices.iter().map(|choice| {
            let time = &choice.comparisons[0];
            let name = match choice.side {
                Side::Drawn(arm) => arm.name().to_owned(),
                Side::Itself(arm) => format!("{} by itself", arm.name()),
                Side::Treated | Side::Control => format!(
                    "the learner's choices, and {} of control",
                    host_hours(time.control)
                ),
            };
            format!("{} of {name}", host_hours(time.treated))
        });
        let counts: Vec<_> = counts.collect();
        let when = match known_in(growth, self.age_s) {
            Some(left_s) => format!("; at this rate about {}", about(left_s.max(60))),
            None => String::new(),
        };
        format!("Not known yet{when}: there are {}.", counts.join(", "))
    }

    /// Reason that there is nothing to compare.
    fn nothing(&self) -> String {
        let system = self.system.name();
        match self.question.source {
            Source::Learner { has_control: true } => {
                "Nothing to compare yet: no connection of the learner's has ended.".to_owned()
            }
            Source::Learner { has_control: false } => {
                "There is no control group to compare with: set `share` in `[control]`, e.g. to 0.05."
                    .to_owned()
            }
            Source::DryRun => format!(
                "A dry run gives every connection {system}, so there is nothing to compare: `thalweg \
                 run --advise 0.05` tries the others on 5 % of the hosts."
            ),
            Source::Advice { trials } if trials > 0.0 => {
                "Nothing to compare yet: no connection of a trial has ended.".to_owned()
            }
            Source::Advice { .. } => format!(
                "Nothing differs by itself: no host had connections with {system} and with another \
                 congestion control in the same hour. Trials on a share of the hosts would tell: \
                 `trials` in `[advise]`, e.g. 0.05."
            ),
        }
    }
}

fn is_price(found: Finding) -> bool {
    matches!(found, Finding::AtAPrice(_))
}

/// The arm of a choice; `None`: any that the learner chose.
fn arm(choice: &Choice, scope: Scope, name: &str) -> Option<String> {
    match choice.side {
        Side::Drawn(arm) | Side::Itself(arm) => Some(arm.name().to_owned()),
        _ => (scope == Scope::Arm).then(|| name.to_owned()),
    }
}

/// Sentence of a trial's finding.
pub(super) fn finding_sentence(choice: &Choice, system: &str) -> String {
    said(choice, Scope::All, "", system)
}

/// Sentence of a choice's finding, e.g. `bbr would take 23 % less time than cubic (between 18 % and
/// 28 %)`.
fn said(choice: &Choice, scope: Scope, name: &str, system: &str) -> String {
    let (who, with) = match choice.side {
        Side::Drawn(arm) => (format!("{} would take", arm.name()), String::new()),
        Side::Itself(arm) => (
            format!("Connections that have {} by themselves take", arm.name()),
            " to the same hosts".to_owned(),
        ),
        _ if scope == Scope::Arm => (
            format!("Where the learner had settled on {name}, transfers take"),
            String::new(),
        ),
        _ => ("What the learner chooses takes".to_owned(), String::new()),
    };
    let time = &choice.comparisons[0];
    let much = compared(time, system, &with);
    match choice.found {
        Finding::Better | Finding::Worse => format!("{who} {much}"),
        Finding::AtAPrice(row) => format!("{who} {much}, but {}", price(row, choice)),
        Finding::Same => {
            let (low, high) = time.interval().unwrap_or_default();
            let within = amount(Row::Time, low.abs().max(high.abs()));
            format!("{who} as long as {system}{with}, within {within}")
        }
        Finding::Unknown(_) => match time.interval() {
            Some((low, high)) => format!(
                "{who} between {} {} and {} {} time than {system}{with}",
                amount(Row::Time, low),
                direction(low),
                amount(Row::Time, high),
                direction(high)
            ),
            None => format!("{who} more or less time, which is not known yet"),
        },
    }
}

fn compared(time: &Comparison, system: &str, with: &str) -> String {
    let effect = time.effect;
    let (low, high) = time.interval().unwrap_or((effect, effect));
    let (least, most) = match effect < 0.0 {
        true => (high, low),
        false => (low, high),
    };
    format!(
        "{} {} time than {system}{with} (between {} and {})",
        amount(Row::Time, effect),
        direction(effect),
        amount(Row::Time, least),
        amount(Row::Time, most)
    )
}

fn price(row: Row, choice: &Choice) -> String {
    let comparisons = Row::MEASURES.into_iter().zip(&choice.comparisons);
    let mut of_row = comparisons.filter(|(measure, _)| *measure == row);
    let effect = of_row.next().map_or(0.0, |(_, it)| it.effect);
    let more = amount(row, effect);
    match row {
        Row::Retransmitted => format!("retransmits {more} more"),
        Row::Failed => format!("fails {more} more often"),
        _ => format!("ends with {more} more RTT"),
    }
}
