//! What must be true after all, and what was not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::{CATCH_UP, Plan};
use crate::table::{Target, line, spread};

/// What was seen.
#[derive(Default)]
pub struct Verdict {
    kills: BTreeMap<&'static str, u32>,
    lost: Vec<String>,
    untold: Vec<String>,
    late: BTreeSet<(String, u64)>,
    /// Who has which policy, and times until those who were back had the latest, s.
    has: BTreeMap<String, u64>,
    caught_up: Vec<f64>,
    judged: BTreeSet<String>,
}

impl Verdict {
    /// Something was killed.
    pub fn note_kill(&mut self, kind: &'static str) {
        *self.kills.entry(kind).or_default() += 1;
    }

    /// Somebody lost what it knew.
    pub fn note_lost(&mut self, what: &str) {
        eprintln!("lost: {what}");
        self.lost.push(what.to_owned());
    }

    /// What somebody told is not in the bucket.
    pub fn note_untold(&mut self, agent: &str) {
        self.untold.push(agent.to_owned());
    }

    /// Looks at an agent that has a policy, and is back since a moment; returns what is wrong, once.
    pub fn judge(
        &mut self,
        agent: &str,
        back: Option<Instant>,
        has: u64,
        published: &BTreeMap<u64, Instant>,
        now: Instant,
    ) -> Option<String> {
        self.judged.insert(agent.to_owned());
        let had = self.has.insert(agent.to_owned(), has).unwrap_or_default();
        let back = back?;
        if let Some((latest, at)) = published.last_key_value()
            && had < *latest
            && has >= *latest
        {
            let since = now.saturating_duration_since(back.max(*at));
            self.caught_up.push(since.as_secs_f64());
        }
        // The newest of those that are there for long enough.
        let due = published
            .iter()
            .rev()
            .find(|(_, at)| now.saturating_duration_since(back.max(**at)) > CATCH_UP)?;
        let is_new = has < *due.0 && self.late.insert((agent.to_owned(), *due.0));
        is_new.then(|| {
            let since = now.saturating_duration_since(back).as_secs_f64();
            let text = format!(
                "{agent}: back for {since:.1} s, has policy {has} and not {}",
                due.0
            );
            eprintln!("late: {text}");
            text
        })
    }

    /// In a few words.
    pub fn brief(&self) -> String {
        format!("{} lost, {} late", self.lost.len(), self.late.len())
    }

    /// Prints all; returns whether it is as it must be.
    pub fn print(&self, plan: &Plan, took: Duration) -> bool {
        let kills: Vec<String> = self
            .kills
            .iter()
            .map(|(kind, number)| format!("{kind} {number}"))
            .collect();
        println!(
            "{} kills in {:.1} minutes: {}; {} agents obeyed policies; {} times one caught up",
            plan.kills,
            took.as_secs_f64() / 60.0,
            kills.join(", "),
            self.judged.len(),
            self.caught_up.len()
        );
        if !self.caught_up.is_empty() {
            let mut sorted = self.caught_up.clone();
            sorted.sort_by(f64::total_cmp);
            let times = spread(&sorted);
            println!(
                "on the latest policy after {:.2} s [{:.2} … {:.2}], at most {:.2} s",
                times.median,
                times.low,
                times.high,
                sorted.last().copied().unwrap_or_default()
            );
        }
        let none = |name: &str, found: usize| {
            line(name, "", &spread(&[found as f64]), &Target::AtMost(0.0))
        };
        let mut met = none(
            "agents that lost what they knew by themselves",
            self.lost.len(),
        );
        met &= none(
            "agents whose last message is not in the bucket",
            self.untold.len(),
        );
        met &= none(
            "times that an agent was late with a policy",
            self.late.len(),
        );
        met
    }
}
