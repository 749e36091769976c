//! Report store: reports of other agents about networks, until they become records of the kernel.
//!
//! A fleet of 200 agents with 1,000 networks each sends 200,000 reports, so they must be compact: a
//! report takes some fifty bytes, a network keeps a sample of its reports (`compact.rs`), and all
//! together stay within [`BYTES_MAX`].

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use thalweg_fleet::wire::{Measured, Network, Priors, Shard};
use thalweg_fleet::{Incoming, Name};
use thalweg_learner::fleet::{AgentReport, Fleet, Prior, aggregate_sample};

use super::compact::{Report, Reports, Row};

/// Most bytes of the report store.
const BYTES_MAX: usize = 5 << 20;
/// Most kept reports of one network while there is room.
const KEPT: usize = 256;
/// Most kept reports of one network when there is little room. 16 agents can report all evidence
/// that counts (`FLEET_MAX_Q16` by `EVIDENCE_MAX_Q16`); the others make lying hard.
const KEPT_LEAST: usize = 64;
/// Bytes from which on there is little room.
const BYTES_MANY: usize = BYTES_MAX / 4 * 3;
/// Part of the free room that one message may take, as a divisor. So the first agents, which may
/// lie, cannot take all of it, and the best networks of later agents find room.
const MESSAGE: usize = 64;
/// Bytes of a network without its reports, and of a report that is not kept.
const NETWORK: usize = 192;
const TELLING: usize = size_of::<Number>();
/// Bytes of an agent, and of a shard, without networks.
const AGENT: usize = 192;
const SHARD: usize = 64;
/// Greatest age of a measurement, s: a year as the message says, and a year at the server. Seconds
/// are counted from this long before the first message.
const BEFORE_S: u64 = 2 * 366 * 86_400;

/// Age from which reports are forgotten: 4 measurements have been halved to nothing. The bucket
/// does not announce expiry.
const OLD: Duration = Duration::from_secs(20 * 86_400);

/// The number of a network.
type Number = u32;

/// A network that agents reported.
struct Known {
    network: Network,
    /// Agents that reported the network; the reports of some may not be kept.
    agents: u32,
    reports: Reports,
}

/// An agent that reported networks.
struct Received {
    /// Number of the agent in reports.
    number: u32,
    /// Networks that the agent reported, by shard.
    shards: BTreeMap<Shard, Told>,
}

/// Networks of one shard that an agent reported.
struct Told {
    networks: Box<[Number]>,
    /// Time of the youngest measurement, s.
    newest_s: u32,
}

/// Reports of other agents.
pub struct ReportStore {
    /// Networks by number; gaps are reused.
    networks: Vec<Option<Known>>,
    gaps: Vec<Number>,
    numbers: BTreeMap<Network, Number>,
    agents: HashMap<Name, Received>,
    /// Names of arms; reports have their index.
    names: Vec<String>,
    bytes: usize,
    /// Most kept reports of one network at present.
    kept: usize,
    /// The number of the next agent.
    next: u32,
    /// Messages of agents with another version of the learner's rule.
    other_rule: u64,
    /// Reports for which there was no room.
    unheard: u64,
    /// Whether anything changed since [`ReportStore::note_taken`].
    changed: bool,
    /// Hash key of the samples' draws: nobody else can foresee them.
    secret: RandomState,
    /// Time at which the store began.
    begun: Instant,
}

impl ReportStore {
    /// An empty report store.
    pub fn new(now: Instant) -> Self {
        Self {
            networks: Vec::new(),
            gaps: Vec::new(),
            numbers: BTreeMap::new(),
            agents: HashMap::new(),
            names: Vec::new(),
            bytes: 0,
            kept: KEPT,
            next: 0,
            other_rule: 0,
            unheard: 0,
            changed: false,
            secret: RandomState::new(),
            begun: now,
        }
    }

    /// Takes a message; one of another version of the rule is only counted. Policies are ignored.
    /// `knows` says whether this agent has an arm of a name: other arms are left out.
    pub fn take(
        &mut self,
        incoming: Incoming,
        rule: u32,
        knows: impl Fn(&str) -> bool,
        now: Instant,
    ) {
        match incoming {
            Incoming::Anew => {
                *self = Self {
                    next: self.next,
                    other_rule: self.other_rule,
                    unheard: self.unheard,
                    changed: true,
                    ..Self::new(self.begun)
                };
            }
            Incoming::Gone { agent, shard } => self.forget(&agent, shard),
            Incoming::Priors { age, priors } => {
                let number = self
                    .agents
                    .get(&priors.agent)
                    .map(|received| received.number);
                self.forget(&priors.agent, priors.shard);
                match priors.rule == rule {
                    true => self.put(priors, number, age, &knows, now),
                    false => self.other_rule += 1,
                }
            }
            Incoming::Policy(_) => {}
        }
    }

    fn forget(&mut self, agent: &Name, shard: Shard) {
        let Some(received) = self.agents.get_mut(agent) else {
            return;
        };
        let (told, number) = (received.shards.remove(&shard), received.number);
        let Some(told) = told else { return };
        self.bytes -= SHARD;
        if received.shards.is_empty() {
            self.agents.remove(agent);
            self.bytes -= AGENT;
        }
        for network in told.networks {
            self.changed = true;
            self.bytes -= TELLING;
            let place = &mut self.networks[network as usize];
            let Some(known) = place else { continue };
            known.agents -= 1;
            self.bytes -= known.reports.bytes();
            known.reports.remove(number);
            self.bytes += known.reports.bytes();
            if known.agents == 0 {
                self.bytes -= NETWORK;
                self.numbers.remove(&known.network);
                *place = None;
                self.gaps.push(network);
            }
        }
    }

    fn put(
        &mut self,
        priors: Priors,
        number: Option<u32>,
        age: Duration,
        knows: &impl Fn(&str) -> bool,
        now: Instant,
    ) {
        let number = number.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        let room = BYTES_MAX.saturating_sub(self.bytes) / MESSAGE;
        let most = self.bytes + room;
        let (mut told, count) = (Vec::new(), priors.networks.len());
        let (now_s, mut newest_s) = (self.seconds(now), 0);
        let known = self.agents.contains_key(&priors.agent);
        let place = SHARD + if known { 0 } else { AGENT };
        let most = most.saturating_sub(place);
        // Networks with most evidence come first.
        for measured in priors.networks {
            let rows = self.rows(&measured, knows);
            if rows.is_empty() {
                // This agent has none of the arms.
                continue;
            }
            let size = Reports::size(rows.len()) + TELLING;
            let known = self.numbers.get(&measured.network).copied();
            let size = size + if known.is_none() { NETWORK } else { 0 };
            if self.bytes + size > most {
                self.unheard += (count - told.len()) as u64;
                break;
            }
            let network = known.unwrap_or_else(|| self.add(&measured.network));
            let age = age.saturating_add(Duration::from_secs(measured.age_s.into()));
            let age_s = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
            let report = Report {
                draw: self.secret.hash_one((&priors.agent, network)) as u16,
                agent: number,
                at_s: now_s.saturating_sub(age_s),
                queue_q16: measured.queue_q16,
                rows,
            };
            newest_s = newest_s.max(report.at_s);
            if let Some(known) = &mut self.networks[network as usize] {
                known.agents += 1;
                self.bytes -= known.reports.bytes();
                known.reports.put(&report, self.kept);
                self.bytes += known.reports.bytes() + TELLING;
            }
            told.push(network);
        }
        if told.is_empty() {
            return;
        }
        self.bytes += place;
        let received = self.agents.entry(priors.agent).or_insert_with(|| Received {
            number,
            shards: BTreeMap::new(),
        });
        let told = Told {
            networks: told.into(),
            newest_s,
        };
        received.shards.insert(priors.shard, told);
        self.changed = true;
        while self.bytes > BYTES_MANY && self.kept > KEPT_LEAST {
            self.thin(self.kept / 2);
        }
    }

    /// Keeps so many reports of each network.
    fn thin(&mut self, kept: usize) {
        self.kept = kept;
        for known in self.networks.iter_mut().flatten() {
            self.bytes -= known.reports.bytes();
            known.reports.thin(kept);
            self.bytes += known.reports.bytes();
        }
    }

    /// Arms of a message that this agent has.
    fn rows(&mut self, measured: &Measured, knows: &impl Fn(&str) -> bool) -> Vec<Row> {
        let mut rows = Vec::new();
        for arm in &measured.arms {
            let known = self.names.iter().position(|name| *name == arm.name);
            let name = known.or_else(|| {
                knows(&arm.name).then(|| {
                    self.names.push(arm.name.clone());
                    self.names.len() - 1
                })
            });
            // One session never sees more names.
            if let Some(name) = name.and_then(|name| u8::try_from(name).ok()) {
                rows.push(Row::new(name, arm));
            }
        }
        rows
    }

    fn add(&mut self, network: &Network) -> Number {
        let known = Some(Known {
            network: network.clone(),
            agents: 0,
            reports: Reports::default(),
        });
        let number = match self.gaps.pop() {
            Some(number) => {
                self.networks[number as usize] = known;
                number
            }
            None => {
                self.networks.push(known);
                (self.networks.len() - 1) as Number
            }
        };
        self.numbers.insert(network.clone(), number);
        self.bytes += NETWORK;
        number
    }

    /// A moment in seconds of the report store.
    fn seconds(&self, now: Instant) -> u32 {
        let since = now.saturating_duration_since(self.begun).as_secs();
        u32::try_from(BEFORE_S + since).unwrap_or(u32::MAX)
    }

    /// Forgets shards whose evidence no longer counts.
    pub fn forget_old(&mut self, now: Instant) {
        let oldest_s = self.seconds(now).saturating_sub(OLD.as_secs() as u32);
        let mut old = Vec::new();
        for (agent, received) in &self.agents {
            let shards = received.shards.iter();
            let shards = shards.filter(|(_, told)| told.newest_s <= oldest_s);
            old.extend(shards.map(|(shard, _)| (agent.clone(), *shard)));
        }
        for (agent, shard) in old {
            self.forget(&agent, shard);
        }
    }

    /// Whether anything changed since [`ReportStore::note_taken`].
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// Notes that the present reports are in force.
    pub fn note_taken(&mut self) {
        self.changed = false;
    }

    /// Aggregated reports of each network, those with most evidence first. `slot` gives the slot of
    /// an arm's name, `system_arm` is the slot of the system's arm.
    pub fn priors(
        &self,
        slot: impl Fn(&str) -> Option<usize>,
        system_arm: usize,
        now: Instant,
    ) -> Vec<(Network, Prior)> {
        let slots: Vec<Option<usize>> = self.names.iter().map(|name| slot(name)).collect();
        let now_s = self.seconds(now);
        let networks = || {
            self.numbers
                .values()
                .filter_map(|it| self.networks[*it as usize].as_ref())
        };
        let mut reports: Vec<AgentReport> = Vec::new();
        let fleet = Fleet::judge_agents(self.agents.len(), system_arm, |judge| {
            for known in networks() {
                known.reports.read(&slots, now_s, &mut reports);
                judge(&reports, known.agents as usize);
            }
        });
        let evidence = |prior: &Prior| -> u64 {
            let arms = prior.arms.iter();
            arms.map(|arm| u64::from(arm.evidence_q16)).sum()
        };
        let mut known = Vec::new();
        for network in networks() {
            network.reports.read(&slots, now_s, &mut reports);
            let agents = network.agents as usize;
            if let Some(prior) = aggregate_sample(&reports, agents, &fleet, system_arm) {
                known.push((network.network.clone(), prior));
            }
        }
        known.sort_by_key(|(_, prior)| std::cmp::Reverse(evidence(prior)));
        known
    }

    /// Number of agents that reported networks.
    pub fn agents(&self) -> usize {
        self.agents.len()
    }

    /// Number of networks that agents reported.
    pub fn networks(&self) -> usize {
        self.numbers.len()
    }

    /// Messages of agents with another version of the learner's rule.
    pub fn other_rule(&self) -> u64 {
        self.other_rule
    }

    /// Number of reports for which there was no room.
    pub fn unheard(&self) -> u64 {
        self.unheard
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    use super::*;

    use thalweg_fleet::wire::Arm;

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

    fn slot(name: &str) -> Option<usize> {
        ["cubic", "bbr"].iter().position(|it| *it == name)
    }

    fn known(report_store: &ReportStore, now: Instant) -> Vec<(Network, Prior)> {
        report_store.priors(slot, 0, now)
    }

    fn take(report_store: &mut ReportStore, incoming: Incoming, now: Instant) {
        report_store.take(incoming, RULE, |name| slot(name).is_some(), now);
    }

    #[test]
    fn the_newest_message_of_a_shard_is_what_an_agent_tells() {
        let now = Instant::now();
        let mut report_store = ReportStore::new(now);
        for agent in 0..20 {
            let networks = [named("a"), named("b")];
            take(
                &mut report_store,
                told(&format!("g{agent}"), RULE, &networks, -1),
                now,
            );
        }
        assert!(report_store.has_changed());
        let priors = known(&report_store, now);
        assert_eq!((report_store.agents(), priors.len()), (20, 2));
        let bbr = priors[0].1.arms[1];
        assert_eq!((bbr.agents, bbr.cost_q16), (20, 31 << 16));

        // A day takes half of all evidence.
        let later = known(&report_store, now + Duration::from_secs(86_401));
        assert!(later[0].1.arms[0].evidence_q16 < priors[0].1.arms[0].evidence_q16);

        // After twenty there is nothing of it.
        let days = |number: u64| now + Duration::from_secs(86_400 * number + 1);
        report_store.forget_old(days(19));
        assert_eq!((report_store.agents(), report_store.networks()), (20, 2));
        report_store.note_taken();
        take(
            &mut report_store,
            told("g20", RULE, &[named("c")], -1),
            days(19),
        );
        report_store.forget_old(days(20));
        assert_eq!((report_store.agents(), report_store.networks()), (1, 1));
        let mut report_store = ReportStore::new(now);
        for agent in 0..20 {
            let networks = [named("a"), named("b")];
            take(
                &mut report_store,
                told(&format!("g{agent}"), RULE, &networks, -1),
                now,
            );
        }

        report_store.note_taken();
        take(&mut report_store, told("g0", RULE, &[named("a")], -1), now);
        assert!(report_store.has_changed());
        let priors = known(&report_store, now);
        let agents = |network: &Network| {
            let of = priors.iter().find(|(it, _)| it == network).unwrap();
            of.1.arms[1].agents
        };
        assert_eq!((agents(&named("a")), agents(&named("b"))), (20, 19));

        let gone = |agent: &str| Incoming::Gone {
            agent: Name::new(agent).unwrap(),
            shard: Shard::new(3).unwrap(),
        };
        take(&mut report_store, gone("g0"), now);
        assert_eq!(report_store.agents(), 19);
        // An agent with another rule is not heard, nor what it told before.
        take(
            &mut report_store,
            told("g1", RULE + 1, &[named("a")], -1),
            now,
        );
        assert_eq!((report_store.agents(), report_store.other_rule()), (18, 1));
        take(&mut report_store, Incoming::Anew, now);
        assert_eq!(
            (
                report_store.agents(),
                report_store.networks(),
                report_store.bytes
            ),
            (0, 0, 0)
        );
        assert!(report_store.has_changed() && known(&report_store, now).is_empty());
    }

    fn message(agent: usize, shard: u8, networks: &[Network], bits: i32) -> Incoming {
        let Incoming::Priors { age, mut priors } = told(&format!("g{agent}"), RULE, networks, bits)
        else {
            unreachable!("priors were made");
        };
        priors.shard = Shard::new(shard).unwrap();
        Incoming::Priors { age, priors }
    }

    /// The networks of a shard, of names of any shard: a book does not look.
    fn of_shard(shard: u8, count: usize) -> Vec<Network> {
        (0..count)
            .map(|it| named(&format!("n{shard}-{it}")))
            .collect()
    }

    #[test]
    fn two_hundred_agents_with_a_thousand_networks_have_room() {
        let now = Instant::now();
        let mut report_store = ReportStore::new(now);
        for agent in 0..200 {
            for shard in 0..16 {
                let networks = of_shard(shard, 63);
                take(&mut report_store, message(agent, shard, &networks, -1), now);
            }
        }
        let networks = 16 * 63;
        assert_eq!(
            (
                report_store.agents(),
                report_store.networks(),
                report_store.unheard()
            ),
            (200, networks, 0)
        );
        assert_eq!(report_store.kept, KEPT_LEAST);
        assert!(report_store.bytes <= BYTES_MAX, "{}", report_store.bytes);
        let priors = known(&report_store, now);
        assert_eq!(priors.len(), networks);
        for (network, prior) in priors {
            // A sample speaks for all.
            let bbr = prior.arms[1];
            assert_eq!((bbr.agents, bbr.cost_q16), (200, 31 << 16), "{network}");
        }
        // All take back what they told: nothing is left.
        for agent in 0..200 {
            for shard in 0..16 {
                take(&mut report_store, message(agent, shard, &[], -1), now);
            }
        }
        assert_eq!(
            (
                report_store.agents(),
                report_store.networks(),
                report_store.bytes
            ),
            (0, 0, 0)
        );
    }

    #[test]
    fn of_two_hundred_agents_with_a_hundred_networks_all_is_kept() {
        let now = Instant::now();
        let mut report_store = ReportStore::new(now);
        for agent in 0..200 {
            take(
                &mut report_store,
                message(agent, 3, &of_shard(3, 100), -1),
                now,
            );
        }
        let reports = |known: &Known| known.reports.len();
        let kept: Vec<usize> = report_store
            .networks
            .iter()
            .flatten()
            .map(reports)
            .collect();
        assert_eq!(kept, [200; 100]);
    }

    #[test]
    fn who_comes_first_does_not_take_all_room() {
        let now = Instant::now();
        let mut report_store = ReportStore::new(now);
        for liar in 0..100 {
            for shard in 0..16 {
                // Networks of its own.
                let networks: Vec<Network> = (0..512)
                    .map(|it| named(&format!("l{liar}-{shard}-{it}")))
                    .collect();
                take(&mut report_store, message(liar, shard, &networks, -1), now);
            }
        }
        assert!(report_store.bytes <= BYTES_MAX && report_store.unheard() > 0);
        let before = report_store.networks();
        let mut alone = ReportStore::new(now);
        for (liar, shard) in (0..16).map(|shard| (0, shard)) {
            let networks: Vec<Network> = (0..512)
                .map(|it| named(&format!("l{liar}-{shard}-{it}")))
                .collect();
            take(&mut alone, message(liar, shard, &networks, -1), now);
        }
        // One agent has a quarter at most.
        assert!(alone.bytes <= BYTES_MAX / 4, "{}", alone.bytes);
        // What was told before can still be told again.
        let again = of_shard(3, 1);
        take(&mut report_store, message(0, 3, &again, -1), now);
        take(&mut report_store, message(200, 3, &again, -1), now);
        assert!(report_store.networks() <= before + 1);
    }

    #[test]
    fn of_a_full_network_each_agent_may_be_in_the_sample() {
        let now = Instant::now();
        let mut report_store = ReportStore::new(now);
        let network = [named("a")];
        // The first say that bbr is worse, as many later ones that it is better.
        for agent in 0..2 * KEPT {
            let bits = if agent < KEPT { 1 } else { -1 };
            take(&mut report_store, message(agent, 3, &network, bits), now);
        }
        let (_, prior) = &known(&report_store, now)[0];
        let bbr = prior.arms[1];
        assert_eq!(bbr.agents, 2 * KEPT as u32);
        // Had the first ones stayed, it would be 33 bits.
        assert!(bbr.cost_q16 < 33 << 16, "{bbr:?}");
        assert_eq!(
            report_store.bytes,
            NETWORK + KEPT * Reports::size(2) + 2 * KEPT * (TELLING + AGENT + SHARD)
        );
    }
}
