//! Statuses of all agents, taken together.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use thalweg_fleet::wire::{Cell, LeftOut, Progress, Stage};
use thalweg_fleet::{Fault, Member};
use thalweg_gain::{Pool, Row, Scope, SideReport};

use super::cells::{rule_of, told};
use super::view::{
    FleetAgent, FleetAgents, FleetComparison, FleetGain, FleetLeftOut, FleetProgress, FleetSilent,
    FleetSpread,
};
use crate::comparison::words::{presented_row, thousands_text};
use crate::comparison::{Against, found_in, judged_row};
use crate::view::GainRow;

/// Age from which an agent is silent: of its statuses every ten minutes two were lost, the third is
/// late.
const SILENT: Duration = Duration::from_secs(30 * 60);
/// Age of sums from which a comparison names their agent.
const OLD: Duration = Duration::from_secs(3600);
/// Problem of several agents that share one status.
const SHARED: &str =
    "several agents have this name and key: one of their statuses is seen at a time";
/// Most rules that are compared: those that most agents report.
const RULES_MAX: usize = 32;

/// The statuses of all agents, as they were read.
#[derive(Debug)]
pub struct Statuses {
    members: Vec<Member>,
    at: Instant,
}

impl Statuses {
    /// Takes statuses that were just read.
    pub fn new(members: Vec<Member>) -> Self {
        Self {
            members,
            at: Instant::now(),
        }
    }

    /// The state of each agent, and counts over all.
    pub fn agents(&self) -> FleetAgents {
        let read = self.at.elapsed();
        let agents: Vec<_> = self.members.iter().map(|it| agent(it, read)).collect();
        let mut versions = BTreeMap::new();
        for version in agents.iter().filter_map(|it| it.version.as_ref()) {
            *versions.entry(version.clone()).or_insert(0) += 1;
        }
        let number = |is: fn(&FleetAgent) -> bool| agents.iter().filter(|it| is(it)).count() as u64;
        FleetAgents {
            read_s: read.as_secs(),
            versions,
            silent: number(|it| it.silent),
            with_problems: number(|it| !it.problems.is_empty() || it.unreadable.is_some()),
            agents,
        }
    }

    /// Comparisons of all agents as one.
    pub fn gain(&self) -> FleetGain {
        let read = self.at.elapsed();
        let mut left_out = Vec::new();
        let mut silent = Vec::new();
        let mut without = 0;
        // Cells by rule (`None`: the learner) and agent.
        let mut told: BTreeMap<Option<&str>, Vec<(&str, Vec<&Cell>)>> = BTreeMap::new();
        let mut refused = 0;
        for member in &self.members {
            let name = member.agent.as_str();
            let mut leave = |why: String| {
                left_out.push(FleetLeftOut {
                    agent: name.to_owned(),
                    why,
                });
            };
            let status = match &member.status {
                // The status is of the agent that wrote last; its sums are not those of all.
                Ok(status) if status.is_shared => {
                    leave(SHARED.to_owned());
                    continue;
                }
                Ok(status) => status,
                Err(fault) => {
                    leave(fault.text.clone());
                    continue;
                }
            };
            let mut own: BTreeMap<Option<&str>, Vec<&Cell>> = BTreeMap::new();
            for cell in &status.cells {
                match rule_of(&cell.scope) {
                    Ok(rule) => own.entry(rule).or_default().push(cell),
                    Err(why) => {
                        refused += 1;
                        leave(why);
                    }
                }
            }
            let mut has_learner = own.contains_key(&None);
            for one in &member.left_out {
                refused += one.cells;
                has_learner |= rule_of(&one.scope) == Ok(None);
                leave(in_words(one));
            }
            if !has_learner {
                without += 1;
            }
            let age = member.age + read;
            if !own.is_empty() && age > OLD {
                silent.push(FleetSilent {
                    agent: name.to_owned(),
                    age_s: age.as_secs(),
                });
            }
            for (rule, cells) in own {
                told.entry(rule).or_default().push((name, cells));
            }
        }
        let learners = told.remove(&None).unwrap_or_default();
        let mut rules: Vec<_> = told.into_iter().collect();
        rules.sort_by_key(|(_, agents)| std::cmp::Reverse(agents.len()));
        rules.truncate(RULES_MAX);
        let mut pooled = |rule: Option<&str>, agents: Vec<(&str, Vec<&Cell>)>| {
            let (comparison, wrong) = together(rule, &agents);
            for (agent, number, why) in wrong {
                refused += number;
                left_out.push(FleetLeftOut { agent, why });
            }
            comparison
        };
        let all = pooled(None, learners);
        let rules = rules.into_iter();
        let rules = rules.map(|(rule, agents)| pooled(rule, agents)).collect();
        FleetGain {
            summary: all.summary.clone(),
            read_s: read.as_secs(),
            without,
            refused,
            left_out,
            silent,
            all,
            rules,
        }
    }
}

/// Text of a comparison that is left out: the rule, and the cell out of bounds.
fn in_words(left_out: &LeftOut) -> String {
    let LeftOut { scope, why, .. } = left_out;
    match rule_of(scope) {
        Ok(None) => why.clone(),
        Ok(Some(rule)) => format!("rule {rule}: {why}"),
        Err(_) => format!("scope {scope:?}: {why}"),
    }
}

/// Agents whose sums were refused, with number and reason.
type Wrong = Vec<(String, u64, String)>;

fn together(rule: Option<&str>, agents: &[(&str, Vec<&Cell>)]) -> (FleetComparison, Wrong) {
    let mut pool = Pool::default();
    let mut wrong = Wrong::new();
    for (agent, cells) in agents {
        let known: Result<Vec<SideReport>, String> = cells.iter().map(|cell| told(cell)).collect();
        let added = known.and_then(|told| {
            let added = pool.add_agent(agent, &told);
            added.map_err(|why| why.to_string())
        });
        if let Err(why) = added {
            let why = match rule {
                None => why,
                Some(rule) => format!("rule {rule}: {why}"),
            };
            wrong.push(((*agent).to_owned(), cells.len() as u64, why));
        }
    }
    (of_agents(&pool, rule), wrong)
}

/// Comparison of many agents, of the learner or of a rule.
fn of_agents(pool: &Pool, rule: Option<&str>) -> FleetComparison {
    let group = pool.pooled_group();
    let against = match rule {
        None => Against::Control,
        Some(_) => Against::LeftAlone,
    };
    let agents = pool.agent_count() as u64;
    let found = found_in(Some(&group), None, against);
    let rows = Row::MEASURES.into_iter().filter_map(|row| {
        let (comparison, verdict) = judged_row(&group, Scope::All, row);
        let shown = || {
            let row = presented_row(row, &comparison, verdict, 0);
            GainRow {
                known_in_s: None,
                ..row
            }
        };
        (comparison.control + comparison.treated > 0).then(shown)
    });
    let spread = Row::MEASURES.map(|row| {
        let spread = pool.agent_spread(row);
        let share = spread.worse as f64 / spread.known as f64;
        FleetSpread {
            measure: row.measure_name().to_owned(),
            known: spread.known,
            better: spread.better,
            worse: spread.worse,
            worse_share: (spread.known > 0).then_some(share),
        }
    });
    let mut hinges_on: Vec<&str> = Vec::new();
    for agent in Row::MEASURES.iter().flat_map(|row| pool.hinges_on(*row)) {
        if !hinges_on.contains(&agent) {
            hinges_on.push(agent);
        }
    }
    let mut summary = match agents {
        0 => "No agent tells of connections that can be compared yet.".to_owned(),
        1 => format!("1 agent: {found}"),
        _ => format!("{} agents: {found}", thousands_text(agents)),
    };
    if let [only] = hinges_on[..] {
        let without = found_in(Some(&pool.group_without(only)), None, against);
        summary += &format!(" Without {only}: {without}");
    }
    FleetComparison {
        rule: rule.map(str::to_owned),
        summary,
        agents,
        rows: rows.collect(),
        spread: spread.to_vec(),
        hinges_on: hinges_on.into_iter().map(str::to_owned).collect(),
    }
}

fn agent(member: &Member, read: Duration) -> FleetAgent {
    let age = member.age + read;
    let row = FleetAgent {
        agent: member.agent.to_string(),
        age_s: age.as_secs(),
        silent: age > SILENT,
        version: None,
        labels: Vec::new(),
        policies: Vec::new(),
        problems: Vec::new(),
        unreadable: None,
    };
    match &member.status {
        Ok(status) => FleetAgent {
            version: Some(status.version.clone()),
            labels: status.labels.iter().map(ToString::to_string).collect(),
            policies: status.policies.iter().map(progress).collect(),
            problems: status
                .faults
                .iter()
                .cloned()
                .chain(status.is_shared.then(|| SHARED.to_owned()))
                .chain(status.policies.iter().filter_map(failure))
                .chain(member.left_out.iter().map(uncounted))
                .collect(),
            ..row
        },
        Err(Fault { text, .. }) => FleetAgent {
            unreadable: Some(text.clone()),
            ..row
        },
    }
}

pub(super) fn progress(progress: &Progress) -> FleetProgress {
    FleetProgress {
        label: progress.label.to_string(),
        number: progress.number,
        stage: progress.stage.name().to_owned(),
        reason: progress.reason.clone(),
    }
}

/// Problem text of a comparison that is not counted.
fn uncounted(left_out: &LeftOut) -> String {
    format!("gain is not counted: {}", in_words(left_out))
}

/// Problem text of a policy that was refused or rolled back.
fn failure(progress: &Progress) -> Option<String> {
    let is = matches!(progress.stage, Stage::RolledBack | Stage::Refused);
    let (label, number, stage) = (&progress.label, progress.number, progress.stage.name());
    let text = format!("policy {label} {number} {stage}");
    is.then(|| match progress.reason.is_empty() {
        true => text,
        false => format!("{text}: {}", progress.reason),
    })
}

#[cfg(test)]
mod tests;
