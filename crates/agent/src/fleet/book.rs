//! What other agents told of networks, as it arrived, until the kernel gets it as records.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use thalweg_fleet::wire::{Arm, Measured, Network, Priors, Shard};
use thalweg_fleet::{Incoming, Name};
use thalweg_learner::fleet::{AgentReport, Fleet, Prior, aggregate};

use super::form::reported;

/// Most reports, of one agent about one network each: some 64 MB. Agents that come later are not heard.
const REPORTS_MAX: usize = 1 << 18;

/// What is so old is forgotten: 4 measurements have been halved to nothing. The bucket may still have it,
/// and does not say when it has not.
const OLD: Duration = Duration::from_secs(20 * 86_400);

/// What one agent told of one network.
struct Told {
    arms: Vec<Arm>,
    queue_q16: u32,
    /// When it arrived …
    at: Instant,
    /// … and how old it was then.
    age: Duration,
}

impl Told {
    fn age_at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at) + self.age
    }
}

/// What is heard of an agent.
struct Heard {
    /// Its number in reports.
    number: u64,
    /// The networks of its shards.
    shards: HashMap<Shard, Vec<Network>>,
}

/// What other agents told.
#[derive(Default)]
pub struct Book {
    networks: BTreeMap<Network, HashMap<u64, Told>>,
    agents: HashMap<Name, Heard>,
    reports: usize,
    /// The number of the next agent.
    next: u64,
    /// Messages of agents with another version of the learner's rule.
    other_rule: u64,
    /// Reports for which there was no room.
    unheard: u64,
    /// Whether something came since [`Book::note_taken`].
    changed: bool,
}

impl Book {
    /// Takes what arrived; of another version of the rule nothing. Policies are not its business.
    pub fn take(&mut self, incoming: Incoming, rule: u32, now: Instant) {
        match incoming {
            Incoming::Anew => {
                *self = Self {
                    next: self.next,
                    other_rule: self.other_rule,
                    unheard: self.unheard,
                    changed: true,
                    ..Self::default()
                };
            }
            Incoming::Gone { agent, shard } => self.forget(&agent, shard),
            Incoming::Priors { age, priors } => {
                self.forget(&priors.agent, priors.shard);
                match priors.rule == rule {
                    true => self.put(priors, age, now),
                    false => self.other_rule += 1,
                }
            }
            Incoming::Policy(_) => {}
        }
    }

    fn forget(&mut self, agent: &Name, shard: Shard) {
        let Some(heard) = self.agents.get_mut(agent) else {
            return;
        };
        for network in heard.shards.remove(&shard).unwrap_or_default() {
            self.changed = true;
            self.reports -= 1;
            if let Some(told) = self.networks.get_mut(&network) {
                told.remove(&heard.number);
                if told.is_empty() {
                    self.networks.remove(&network);
                }
            }
        }
        if heard.shards.is_empty() {
            self.agents.remove(agent);
        }
    }

    fn put(&mut self, mut priors: Priors, age: Duration, now: Instant) {
        // Those with most evidence come first.
        let room = REPORTS_MAX - self.reports;
        self.unheard += priors.networks.len().saturating_sub(room) as u64;
        priors.networks.truncate(room);
        if priors.networks.is_empty() {
            return;
        }
        let heard = self.agents.entry(priors.agent).or_insert_with(|| {
            self.next += 1;
            Heard {
                number: self.next,
                shards: HashMap::new(),
            }
        });
        let mut of_shard = Vec::with_capacity(priors.networks.len());
        for told in priors.networks {
            let Measured {
                network,
                age_s,
                queue_q16,
                arms,
            } = told;
            let told = Told {
                arms,
                queue_q16,
                at: now,
                age: age.saturating_add(Duration::from_secs(age_s.into())),
            };
            let of_network = self.networks.entry(network.clone()).or_default();
            of_network.insert(heard.number, told);
            of_shard.push(network);
        }
        self.reports += of_shard.len();
        heard.shards.insert(priors.shard, of_shard);
        self.changed = true;
    }

    /// Forgets shards of which nothing counts any more.
    pub fn forget_old(&mut self, now: Instant) {
        let mut old = Vec::new();
        for (agent, heard) in &self.agents {
            for (shard, networks) in &heard.shards {
                let told = |network| self.networks.get(network)?.get(&heard.number);
                let mut all = networks.iter().filter_map(told);
                if all.all(|told| told.age_at(now) >= OLD) {
                    old.push((agent.clone(), *shard));
                }
            }
        }
        for (agent, shard) in old {
            self.forget(&agent, shard);
        }
    }

    /// Whether something came since [`Book::note_taken`].
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// What is known by now is in force.
    pub fn note_taken(&mut self) {
        self.changed = false;
    }

    /// What the agents know of each network, those with most evidence first. `slot` is that of an arm's
    /// name, `system_arm` that of the system's.
    pub fn priors(
        &self,
        slot: impl Fn(&str) -> Option<usize>,
        system_arm: usize,
        now: Instant,
    ) -> Vec<(Network, Prior)> {
        let report = |(number, told): (&u64, &Told)| AgentReport {
            agent: *number,
            age_ns: u64::try_from(told.age_at(now).as_nanos()).unwrap_or(u64::MAX),
            queue_q16: told.queue_q16,
            arms: reported(&told.arms, &slot),
        };
        let reports: Vec<Vec<AgentReport>> = (self.networks.values())
            .map(|told| told.iter().map(report).collect())
            .collect();
        let fleet = Fleet::of(reports.iter().map(Vec::as_slice), system_arm);
        let mut known: Vec<(Network, Prior)> = (self.networks.keys().zip(&reports))
            .filter_map(|(network, reports)| {
                Some((network.clone(), aggregate(reports, &fleet, system_arm)?))
            })
            .collect();
        let evidence = |prior: &Prior| -> u64 {
            let arms = prior.arms.iter();
            arms.map(|arm| u64::from(arm.evidence_q16)).sum()
        };
        known.sort_by_key(|(_, prior)| std::cmp::Reverse(evidence(prior)));
        known
    }

    /// Agents that are heard.
    pub fn agents(&self) -> usize {
        self.agents.len()
    }

    /// Networks that somebody told of.
    pub fn networks(&self) -> usize {
        self.networks.len()
    }

    /// Messages of agents with another version of the learner's rule.
    pub fn other_rule(&self) -> u64 {
        self.other_rule
    }

    /// Reports for which there was no room.
    pub fn unheard(&self) -> u64 {
        self.unheard
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    use super::*;

    const RULE: u32 = 5;

    fn told(agent: &str, rule: u32, networks: &[Network], bits: i32) -> Incoming {
        let arm = |name: &str, bits: i32| Arm {
            name: name.to_owned(),
            cost_q16: bits << 16,
            evidence_q16: 4 << 16,
            log_rate_q16: 0,
            deviation_q16: 1 << 14,
            segments: 1000,
            retransmitted: 0,
        };
        let network = |network: &Network| Measured {
            network: network.clone(),
            age_s: 0,
            queue_q16: 0,
            arms: vec![arm("cubic", 0), arm("bbr", bits), arm("unknown", -9)],
        };
        Incoming::Priors {
            age: Duration::ZERO,
            priors: Priors {
                agent: Name::new(agent).unwrap(),
                shard: Shard::new(3).unwrap(),
                rule,
                networks: networks.iter().map(network).collect(),
            },
        }
    }

    fn named(name: &str) -> Network {
        Network::Named(name.to_owned())
    }

    fn known(book: &Book, now: Instant) -> Vec<(Network, Prior)> {
        let slot = |name: &str| ["cubic", "bbr"].iter().position(|it| *it == name);
        book.priors(slot, 0, now)
    }

    #[test]
    fn the_newest_message_of_a_shard_is_what_an_agent_tells() {
        let (mut book, now) = (Book::default(), Instant::now());
        for agent in 0..20 {
            let networks = [named("a"), named("b")];
            book.take(told(&format!("g{agent}"), RULE, &networks, -1), RULE, now);
        }
        assert!(book.has_changed());
        let priors = known(&book, now);
        assert_eq!((book.agents(), priors.len()), (20, 2));
        let bbr = priors[0].1.arms[1];
        assert_eq!((bbr.agents, bbr.cost_q16), (20, 31 << 16));

        // A day takes half of all evidence.
        let later = known(&book, now + Duration::from_secs(86_401));
        assert!(later[0].1.arms[0].evidence_q16 < priors[0].1.arms[0].evidence_q16);

        // After twenty there is nothing of it.
        let days = |number: u64| now + Duration::from_secs(86_400 * number + 1);
        book.forget_old(days(19));
        assert_eq!((book.agents(), book.networks()), (20, 2));
        book.note_taken();
        book.take(told("g20", RULE, &[named("c")], -1), RULE, days(19));
        book.forget_old(days(20));
        assert_eq!((book.agents(), book.networks(), book.reports), (1, 1, 1));
        let (mut book, now) = (Book::default(), now);
        for agent in 0..20 {
            let networks = [named("a"), named("b")];
            book.take(told(&format!("g{agent}"), RULE, &networks, -1), RULE, now);
        }

        book.note_taken();
        book.take(told("g0", RULE, &[named("a")], -1), RULE, now);
        assert!(book.has_changed());
        let priors = known(&book, now);
        let agents = |network: &Network| {
            let of = priors.iter().find(|(it, _)| it == network).unwrap();
            of.1.arms[1].agents
        };
        assert_eq!((agents(&named("a")), agents(&named("b"))), (20, 19));

        let gone = |agent: &str| Incoming::Gone {
            agent: Name::new(agent).unwrap(),
            shard: Shard::new(3).unwrap(),
        };
        book.take(gone("g0"), RULE, now);
        assert_eq!(book.agents(), 19);
        // An agent with another rule is not heard, nor what it told before.
        book.take(told("g1", RULE + 1, &[named("a")], -1), RULE, now);
        assert_eq!((book.agents(), book.other_rule()), (18, 1));
        book.take(Incoming::Anew, RULE, now);
        assert_eq!((book.agents(), book.networks(), book.reports), (0, 0, 0));
        assert!(book.has_changed() && known(&book, now).is_empty());
    }

    #[test]
    fn there_is_room_for_so_many_reports() {
        let (mut book, now) = (Book::default(), Instant::now());
        let networks: Vec<Network> = (0..512).map(|it| named(&format!("n{it}"))).collect();
        let agents = REPORTS_MAX / networks.len();
        for agent in 0..agents + 2 {
            book.take(told(&format!("g{agent}"), RULE, &networks, -1), RULE, now);
        }
        assert_eq!((book.agents(), book.reports), (agents, REPORTS_MAX));
        assert_eq!(book.unheard(), 2 * networks.len() as u64);
    }
}
