//! Ended connections, gathered in clusters, and clusters in groups: bounded, however many.

use std::collections::{BTreeMap, BTreeSet};

use crate::baseline::{Baseline, Connection};
use crate::cluster::{Cluster, Moments};
use crate::row::ROWS;
use crate::share::Scope;

/// Most clusters at a time of which more may come; connections of others are left out.
const OPEN_MAX: usize = 32_768;
/// Most hosts whose last arm is known.
const HOSTS_MAX: usize = 65_536;
/// Hours for which a cluster waits for connections that began in its own.
const GRACE: u64 = 1;
/// Hours without a cluster after which another group may have the place.
const IDLE: u64 = 24;

/// A part of a cluster: connections of one service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Hour of the draw, on the clock of the draws.
    pub hour: u64,
    /// Hash of the host or prefix that is drawn together.
    pub tag: u64,
    /// Control group or treated.
    pub control: bool,
    /// The service's port.
    pub port: u16,
}

/// Content of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    /// Its sums.
    pub sums: Cluster,
    /// The arm that the learner last gave to the host before this hour.
    pub arm: Option<String>,
    /// Remote prefix.
    pub prefix: String,
}

/// Both sides of a comparison, by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The control group.
    pub control: [Moments; ROWS],
    /// The others.
    pub treated: [Moments; ROWS],
    /// Hour of its last cluster.
    pub hour: u64,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            control: [Moments::default(); ROWS],
            treated: [Moments::default(); ROWS],
            hour: 0,
        }
    }
}

impl Group {
    fn add(&mut self, cluster: &Cluster, control: bool, hour: u64) {
        let side = match control {
            true => &mut self.control,
            false => &mut self.treated,
        };
        for (row, moments) in side.iter_mut().enumerate() {
            moments.add(cluster, row);
        }
        self.hour = self.hour.max(hour);
    }
}

/// Groups by scope and name; the name of [`Scope::All`] is empty.
pub type Groups = BTreeMap<(Scope, String), Group>;

/// The arm of a host's treated connections.
#[derive(Clone, Debug)]
struct Given {
    hour: u64,
    arm: String,
    /// The last one of earlier hours.
    before: Option<String>,
}

/// What is kept of ended connections.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    baseline: Baseline,
    open: BTreeMap<Part, Content>,
    groups: Groups,
    given: BTreeMap<u64, Given>,
    /// Connections without a place in a cluster.
    pub left_out: u64,
    changed: BTreeSet<Part>,
    closed: BTreeSet<Part>,
    /// Whether groups have changed.
    regrouped: bool,
}

/// What has changed since the last [`Ledger::changes`].
#[derive(Debug, Default)]
pub struct Changes {
    /// Parts with their new content.
    pub open: Vec<(Part, Content)>,
    /// Parts that are over: they are in their groups.
    pub closed: Vec<Part>,
    /// Whether groups have changed.
    pub regrouped: bool,
}

impl Ledger {
    /// The learner gave a treated host this arm in this hour. By arm, hosts are compared for which
    /// the learner had settled on it *before* the hour was drawn: what it does in the hour itself
    /// is an outcome.
    pub fn note_arm(&mut self, tag: u64, hour: u64, arm: &str) {
        if self.given.len() >= HOSTS_MAX && !self.given.contains_key(&tag) {
            self.given.retain(|_, given| given.hour + IDLE > hour);
            if self.given.len() >= HOSTS_MAX {
                return;
            }
        }
        match self.given.get_mut(&tag) {
            None => {
                let given = Given {
                    hour,
                    arm: arm.to_owned(),
                    before: None,
                };
                self.given.insert(tag, given);
            }
            Some(given) => {
                if given.hour < hour {
                    given.before = Some(std::mem::take(&mut given.arm));
                    given.hour = hour;
                }
                if given.arm != arm {
                    arm.clone_into(&mut given.arm);
                }
            }
        }
    }

    fn arm_before(&self, tag: u64, hour: u64) -> Option<String> {
        let given = self.given.get(&tag)?;
        match given.hour < hour {
            true => Some(given.arm.clone()),
            false => given.before.clone(),
        }
    }

    /// Counts a connection that ended, for its part and for the means. `prefix` is called for the
    /// first one of a part.
    pub fn add(&mut self, part: Part, connection: &Connection, prefix: impl FnOnce() -> String) {
        let residuals = self.baseline.compare(connection);
        if !self.open.contains_key(&part) {
            if self.open.len() >= OPEN_MAX {
                self.left_out += 1;
                return;
            }
            let content = Content {
                sums: Cluster::default(),
                arm: self.arm_before(part.tag, part.hour),
                prefix: prefix(),
            };
            self.open.insert(part, content);
        }
        if let Some(content) = self.open.get_mut(&part) {
            content.sums.add(&residuals);
            self.changed.insert(part);
        }
    }

    /// Closes the clusters that are over at this hour; true if there were any.
    pub fn close(&mut self, hour: u64) -> bool {
        let first = Part {
            hour: hour.saturating_sub(GRACE),
            tag: 0,
            control: false,
            port: 0,
        };
        let later = self.open.split_off(&first);
        let over = std::mem::replace(&mut self.open, later);
        gather(&mut self.groups, &over);
        self.regrouped |= !over.is_empty();
        for part in over.keys() {
            self.changed.remove(part);
            self.closed.insert(*part);
        }
        !over.is_empty()
    }

    /// Closes all clusters, since the clock of the draws begins anew.
    pub fn close_all(&mut self) {
        self.close(u64::MAX);
        for group in self.groups.values_mut() {
            group.hour = 0;
        }
        self.given.clear();
    }

    /// Begins all comparisons anew; the means of the strata stay.
    pub fn begin(&mut self) {
        self.close(u64::MAX);
        self.groups.clear();
        self.regrouped = true;
        self.left_out = 0;
    }

    /// Begins a comparison anew, after the clusters of now.
    pub fn begin_group(&mut self, scope: Scope, name: &str) {
        self.close(u64::MAX);
        self.groups.remove(&(scope, name.to_owned()));
        self.regrouped = true;
    }

    /// All groups as they are now, clusters that are not over among them.
    pub fn groups(&self) -> Groups {
        let mut groups = self.groups.clone();
        gather(&mut groups, &self.open);
        groups
    }

    /// The groups without the clusters that are not over, for keeping.
    pub fn closed_groups(&self) -> &Groups {
        &self.groups
    }

    /// The means, for keeping.
    pub fn baseline(&self) -> &Baseline {
        &self.baseline
    }

    /// The clusters that changed, for keeping.
    pub fn changes(&mut self) -> Changes {
        let changed = std::mem::take(&mut self.changed);
        let known = changed.into_iter();
        Changes {
            open: known
                .filter_map(|part| Some((part, self.open.get(&part)?.clone())))
                .collect(),
            closed: std::mem::take(&mut self.closed).into_iter().collect(),
            regrouped: std::mem::take(&mut self.regrouped),
        }
    }

    /// Changes that could not be kept are among the next ones.
    pub fn put_back(&mut self, changes: Changes) {
        self.changed.extend(changes.open.into_iter().map(|it| it.0));
        self.closed.extend(changes.closed);
        self.regrouped |= changes.regrouped;
    }

    /// A ledger from what was kept.
    pub fn restore(baseline: Baseline, groups: Groups, open: BTreeMap<Part, Content>) -> Self {
        Self {
            baseline,
            groups,
            open,
            ..Self::default()
        }
    }
}

/// Adds clusters to their groups. Parts of a cluster lie side by side.
fn gather(groups: &mut Groups, parts: &BTreeMap<Part, Content>) {
    let mut parts = parts.iter().peekable();
    while let Some((part, content)) = parts.next() {
        let mut whole = content.sums;
        let of_port = |groups: &mut Groups, part: &Part, sums: &Cluster| {
            put(groups, Scope::Port, &part.port.to_string(), part, sums);
        };
        of_port(groups, part, &content.sums);
        let id = |part: &Part| (part.hour, part.tag, part.control);
        while let Some((next, more)) = parts.next_if(|(next, _)| id(next) == id(part)) {
            whole.merge(&more.sums);
            of_port(groups, next, &more.sums);
        }
        put(groups, Scope::All, "", part, &whole);
        put(groups, Scope::Prefix, &content.prefix, part, &whole);
        if let Some(arm) = &content.arm {
            put(groups, Scope::Arm, arm, part, &whole);
        }
    }
}

/// Adds a cluster to one group, if there is place for it.
fn put(groups: &mut Groups, scope: Scope, name: &str, part: &Part, sums: &Cluster) {
    let key = (scope, name.to_owned());
    if !groups.contains_key(&key) {
        let of_scope = |key: &(Scope, String)| key.0 == scope;
        if groups.keys().filter(|key| of_scope(key)).count() >= scope.limit() {
            groups.retain(|key, group| !of_scope(key) || group.hour + IDLE > part.hour);
        }
        if groups.keys().filter(|key| of_scope(key)).count() >= scope.limit() {
            return;
        }
    }
    let group = groups.entry(key).or_default();
    group.add(sums, part.control, part.hour);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Row;

    const SECOND: Connection = Connection {
        bytes: 50_000,
        busy_us: 1_000_000,
        segs_out: 40,
        retrans: 0,
        srtt_us: 20_000,
        min_rtt_us: 20_000,
        handshake_rtt_us: 20_000,
        failed: Some(false),
    };

    fn part(hour: u64, tag: u64, port: u16) -> Part {
        let control = tag.is_multiple_of(2);
        Part {
            hour,
            tag,
            control,
            port,
        }
    }

    /// A ledger whose means know a connection of each stratum used here.
    fn begun() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.add(part(0, 0, 0), &SECOND, String::new);
        ledger.begin();
        ledger.changes();
        ledger
    }

    fn add(ledger: &mut Ledger, part: Part) {
        ledger.add(part, &SECOND, || format!("192.0.{}.0/24", part.tag));
    }

    fn clusters(groups: &Groups, scope: Scope, name: &str) -> (u64, u64) {
        let group = &groups[&(scope, name.to_owned())];
        let time = Row::Time.index();
        (group.control[time].clusters, group.treated[time].clusters)
    }

    #[test]
    fn ports_of_a_host_are_one_cluster() {
        let mut ledger = begun();
        for port in [80, 443, 443] {
            add(&mut ledger, part(5, 1, port));
        }
        add(&mut ledger, part(5, 2, 443));
        add(&mut ledger, part(6, 1, 443));
        for _ in 0..2 {
            let groups = ledger.groups();
            assert_eq!(clusters(&groups, Scope::All, ""), (1, 2));
            assert_eq!(clusters(&groups, Scope::Port, "80"), (0, 1));
            assert_eq!(clusters(&groups, Scope::Port, "443"), (1, 2));
            assert_eq!(clusters(&groups, Scope::Prefix, "192.0.1.0/24"), (0, 2));
            let time = &groups[&(Scope::All, String::new())].treated[0];
            assert_eq!((time.connections, time.weight), (4, 4.0));
            // The same whether the clusters are over or not.
            ledger.close(7);
        }
    }

    #[test]
    fn clusters_wait_for_an_hour_and_are_kept_once() {
        let mut ledger = begun();
        add(&mut ledger, part(5, 1, 80));
        add(&mut ledger, part(6, 2, 80));
        assert_eq!(ledger.changes().open.len(), 2);
        assert!(!ledger.close(6) && ledger.close(7));
        let changes = ledger.changes();
        assert_eq!(changes.closed, [part(5, 1, 80)]);
        assert!(changes.open.is_empty());
        assert_eq!(clusters(ledger.closed_groups(), Scope::All, ""), (0, 1));
        // What could not be kept comes again.
        ledger.put_back(changes);
        assert_eq!(ledger.changes().closed, [part(5, 1, 80)]);
        assert!(ledger.changes().closed.is_empty());
    }

    #[test]
    fn the_arm_is_the_one_of_earlier_hours() {
        let mut ledger = begun();
        ledger.note_arm(1, 5, "bbr");
        add(&mut ledger, part(5, 1, 80));
        ledger.note_arm(1, 6, "cubic");
        ledger.note_arm(1, 6, "reno");
        add(&mut ledger, part(6, 1, 80));
        add(&mut ledger, part(7, 1, 80));
        let groups = ledger.groups();
        assert_eq!(clusters(&groups, Scope::Arm, "bbr"), (0, 1));
        assert_eq!(clusters(&groups, Scope::Arm, "reno"), (0, 1));
        assert!(!groups.contains_key(&(Scope::Arm, "cubic".to_owned())));
    }

    #[test]
    fn groups_are_bounded_and_idle_ones_give_way() {
        let mut ledger = begun();
        let most = Scope::Prefix.limit() as u64;
        for tag in 0..most + 10 {
            add(&mut ledger, part(5, tag, 80));
        }
        ledger.close(7);
        let prefixes = |ledger: &Ledger| {
            let groups = ledger.closed_groups().keys();
            groups.filter(|key| key.0 == Scope::Prefix).count() as u64
        };
        assert_eq!(prefixes(&ledger), most);
        add(&mut ledger, part(5 + IDLE, 1000, 80));
        ledger.close(u64::MAX);
        assert_eq!(prefixes(&ledger), 1);
    }

    #[test]
    fn clusters_are_bounded() {
        let mut ledger = begun();
        for tag in 0..OPEN_MAX as u64 + 7 {
            add(&mut ledger, part(5, tag, 80));
        }
        assert_eq!((ledger.open.len(), ledger.left_out), (OPEN_MAX, 7));
    }
}
