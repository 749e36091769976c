//! Ended connections, gathered in clusters, and clusters in groups: bounded, however many.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_learner::network_number;

use crate::baseline::{Baseline, Connection};
use crate::cluster::{Cluster, Moments};
use crate::limits::Limits;
use crate::row::ROWS;
use crate::share::Scope;
use crate::side::{Side, Source};

/// Most clusters at a time of which more may come; connections of others are left out.
const OPEN_MAX: usize = 32_768;
/// Most hosts of a remote prefix that have clusters of their own in an hour: as many as a /24 has. A
/// peer may send from each of the 65,536 /64 of its /48. With a cluster each they would decide
/// verdicts, and leave others no place.
const HOSTS_OF_PREFIX_MAX: usize = 256;
/// Most hosts whose last arm is known.
const HOSTS_MAX: usize = 65_536;
/// Most hours of a host whose arm is known. A cluster opens in its hour or in the next; the third
/// one is from before.
const GIVEN_MAX: usize = 3;
/// Hours for which a cluster waits for connections that began in its own.
const GRACE: u64 = 1;
/// Hours without a cluster after which another group may have the place.
const IDLE: u64 = 24;

/// A part of a cluster: connections of one service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Hour of the draw, on the clock of the draws.
    pub hour: u64,
    /// Hash of the host or prefix that is drawn together, or of a remote prefix with too many hosts.
    pub tag: u64,
    /// Who chose the CC.
    pub side: Side,
    /// The service's port.
    pub port: u16,
}

/// Content of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    /// Sums of the part.
    pub sums: Cluster,
    /// The arm that the learner last gave to the host before this hour. `None`, too, where the part
    /// was opened by a connection of an earlier hour.
    pub arm: Option<String>,
    /// Remote prefix.
    pub prefix: String,
    /// Source of the decision about the first connection of the host's hour, in the control group
    /// too, where the decision has no effect. `None` where nothing comes from a fleet.
    pub source: Option<Source>,
}

/// Properties of a part's first connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    /// Remote prefix.
    pub prefix: String,
    /// See [`Content::source`]. Of a host's hour the first part's is taken.
    pub source: Option<Source>,
}

impl From<String> for First {
    /// The properties of a prefix, without a fleet.
    fn from(prefix: String) -> Self {
        Self {
            prefix,
            source: None,
        }
    }
}

/// The sides of a comparison, by row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Sides with clusters. Nobody drew what differs by itself: another host, another path. So
    /// [`Side::Itself`] has the differences from connections of the same host and hour that kept
    /// the system's arm, where there were some.
    pub sides: BTreeMap<Side, Rows>,
    /// Limits of the connections of all sides.
    pub limits: Limits,
    /// Hour of its last cluster.
    pub hour: u64,
}

/// One side.
pub type Rows = [Moments; ROWS];

impl Group {
    /// A side; without clusters too.
    pub fn side_rows(&self, side: Side) -> &Rows {
        self.sides.get(&side).unwrap_or(&[Moments::NONE; ROWS])
    }

    /// The control group.
    pub fn control(&self) -> &Rows {
        self.side_rows(Side::Control)
    }

    /// The side that is compared with the control group.
    pub fn treated(&self) -> &Rows {
        self.side_rows(Side::Treated)
    }

    fn add(&mut self, cluster: &Cluster, beside: Option<&Cluster>, part: &Part) {
        self.limits.merge(&cluster.limits);
        self.hour = self.hour.max(part.hour);
        let pair = match (part.side, beside) {
            (Side::Itself(_), None) => return,
            (Side::Itself(_), beside) => beside,
            _ => None,
        };
        let side = self.sides.entry(part.side);
        let side = side.or_insert([Moments::NONE; ROWS]);
        for (row, moments) in side.iter_mut().enumerate() {
            match pair {
                Some(beside) => moments.add_pair(cluster, beside, row),
                None => moments.add(cluster, row),
            }
        }
    }
}

/// Groups by scope and name; the name of [`Scope::All`] is empty.
pub type Groups = BTreeMap<(Scope, String), Group>;

/// Arms of a host's treated connections: the last one of each hour, the latest hour last.
type Given = Vec<(u64, String)>;

/// State kept of ended connections.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    baseline: Baseline,
    open: BTreeMap<Part, Content>,
    /// Number of tags among the open parts of an hour and a remote prefix.
    tags: BTreeMap<(u64, String), usize>,
    groups: Groups,
    given: BTreeMap<u64, Given>,
    /// The first hour whose clusters are not over.
    first_open: u64,
    /// Connections without a place in a cluster.
    pub left_out: u64,
    /// Connections that are not compared, because they did not have what they were given.
    pub overridden: u64,
    changed: BTreeSet<Part>,
    closed: BTreeSet<Part>,
    /// Whether groups have changed.
    regrouped: bool,
}

/// Changes since the last [`Ledger::take_changes`].
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
            let is_recent = |last: &(u64, String)| last.0 + IDLE > hour;
            self.given
                .retain(|_, given| given.last().is_some_and(is_recent));
            if self.given.len() >= HOSTS_MAX {
                return;
            }
        }
        let given = self.given.entry(tag).or_default();
        match given.binary_search_by_key(&hour, |known| known.0) {
            Ok(at) => arm.clone_into(&mut given[at].1),
            Err(at) => given.insert(at, (hour, arm.to_owned())),
        }
        if given.len() > GIVEN_MAX {
            given.remove(0);
        }
    }

    fn arm_before(&self, tag: u64, hour: u64) -> Option<String> {
        let mut latest_first = self.given.get(&tag)?.iter().rev();
        let before = latest_first.find(|known| known.0 < hour)?;
        Some(before.1.clone())
    }

    /// The source of a host's hour, if a part of it is known.
    fn source_of(&self, part: &Part) -> Option<Option<Source>> {
        let first = Part {
            side: Side::FIRST,
            port: 0,
            ..*part
        };
        let (known, content) = self.open.range(first..).next()?;
        ((known.hour, known.tag) == (part.hour, part.tag)).then_some(content.source)
    }

    /// The tag of a part that is not open: that of its remote prefix (never a host's, which is odd)
    /// if so many other hosts of the prefix have clusters in this hour.
    fn tag_of(&self, part: &Part, prefix: &str) -> u64 {
        let tags = self.tags.get(&(part.hour, prefix.to_owned()));
        let is_crowded = tags.is_some_and(|tags| *tags >= HOSTS_OF_PREFIX_MAX);
        match is_crowded && !prefix.is_empty() && self.source_of(part).is_none() {
            true => network_number(prefix) & !1,
            false => part.tag,
        }
    }

    /// Goes on in this hour with what was kept: hours of which clusters are in the groups are over. One
    /// whose clusters were closed ahead of time, as for a comparison that began anew, goes on.
    pub fn resume_at(&mut self, hour: u64) {
        let closed = self.groups.values().map(|group| group.hour).max();
        let over = closed.map_or(0, |last| last.saturating_add(1));
        let first_open = over.min(hour.saturating_sub(GRACE));
        self.first_open = self.first_open.max(first_open);
    }

    /// A connection ended in this hour: earlier ones are over but for the last, whether or not somebody
    /// has closed them.
    pub fn reach_hour(&mut self, hour: u64) {
        self.first_open = self.first_open.max(hour.saturating_sub(GRACE));
    }

    /// Counts a connection that ended, for its part and for the means. `first` is called where the part
    /// is not open. By source, too, hosts are compared by what was known before: later connections of
    /// the hour are decided by what the first ones showed. Where the part's hour is over, the
    /// connection counts for the first hour that is not.
    pub fn add_connection<F: Into<First>>(
        &mut self,
        mut part: Part,
        connection: &Connection,
        first: impl FnOnce() -> F,
    ) {
        let residuals = self.baseline.compare_connection(connection);
        // A part of an hour that is over would be one more cluster of the host at each look.
        let is_late = part.hour < self.first_open;
        part.hour = part.hour.max(self.first_open);
        if !self.open.contains_key(&part) {
            let First { prefix, source } = first().into();
            part.tag = self.tag_of(&part, &prefix);
            if !self.open.contains_key(&part) && !self.open_part(part, prefix, source, is_late) {
                self.left_out += 1;
                return;
            }
        }
        if let Some(content) = self.open.get_mut(&part) {
            content.sums.add(&residuals);
            content.sums.limits.add_connection(connection);
            self.changed.insert(part);
        }
    }

    /// Opens a part; false if there is no place for it.
    fn open_part(
        &mut self,
        part: Part,
        prefix: String,
        source: Option<Source>,
        is_late: bool,
    ) -> bool {
        if self.open.len() >= OPEN_MAX {
            return false;
        }
        let known = self.source_of(&part);
        if known.is_none() {
            *self.tags.entry((part.hour, prefix.clone())).or_default() += 1;
        }
        let content = Content {
            sums: Cluster::default(),
            // What the learner knew before a late connection's own hour is no longer kept.
            arm: match is_late {
                true => None,
                false => self.arm_before(part.tag, part.hour),
            },
            prefix,
            source: known.unwrap_or(source),
        };
        self.open.insert(part, content);
        true
    }

    /// Closes the clusters that are over at this hour; true if there were any.
    pub fn close_hours(&mut self, hour: u64) -> bool {
        let first_open = hour.saturating_sub(GRACE);
        self.first_open = self.first_open.max(first_open);
        self.close_before(first_open)
    }

    /// Closes the clusters of earlier hours; true if there were any.
    fn close_before(&mut self, hour: u64) -> bool {
        let first = Part {
            hour,
            tag: 0,
            side: Side::FIRST,
            port: 0,
        };
        let later = self.open.split_off(&first);
        let over = std::mem::replace(&mut self.open, later);
        self.tags = self.tags.split_off(&(first.hour, String::new()));
        gather_groups(&mut self.groups, &over);
        self.regrouped |= !over.is_empty();
        for part in over.keys() {
            self.changed.remove(part);
            self.closed.insert(*part);
        }
        !over.is_empty()
    }

    /// Closes all clusters, since the clock of the draws begins anew.
    pub fn close_all(&mut self) {
        self.close_before(u64::MAX);
        // Their hours are of the clock before, and not to be kept.
        self.regrouped |= !self.groups.is_empty();
        self.first_open = 0;
        for group in self.groups.values_mut() {
            group.hour = 0;
        }
        self.given.clear();
    }

    /// Begins all comparisons anew; the means of the strata stay.
    pub fn restart_comparisons(&mut self) {
        self.close_before(u64::MAX);
        self.groups.clear();
        self.regrouped = true;
        self.left_out = 0;
        self.overridden = 0;
    }

    /// Begins a comparison anew, after the clusters of now.
    pub fn begin_group(&mut self, scope: Scope, name: &str) {
        self.close_before(u64::MAX);
        self.groups.remove(&(scope, name.to_owned()));
        self.regrouped = true;
    }

    /// All groups as they are now, clusters that are not over among them.
    pub fn current_groups(&self) -> Groups {
        let mut groups = self.groups.clone();
        gather_groups(&mut groups, &self.open);
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
    pub fn take_changes(&mut self) -> Changes {
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
        let mut tags = BTreeMap::new();
        let mut parts: Vec<_> = open.iter().collect();
        parts.dedup_by_key(|(part, _)| (part.hour, part.tag));
        for (part, content) in parts {
            *tags.entry((part.hour, content.prefix.clone())).or_default() += 1;
        }
        Self {
            baseline,
            groups,
            open,
            tags,
            ..Self::default()
        }
    }
}

/// Adds clusters to their groups. Parts of a host's hour lie side by side.
fn gather_groups(groups: &mut Groups, parts: &BTreeMap<Part, Content>) {
    let parts: Vec<_> = parts.iter().collect();
    for host_hour in parts.chunk_by(|a, b| (a.0.hour, a.0.tag) == (b.0.hour, b.0.tag)) {
        let kept = host_hour
            .iter()
            .filter(|(part, _)| part.side == Side::Control);
        let kept: Vec<_> = kept.collect();
        let beside = sum_parts(kept.iter().map(|(_, content)| content));
        for side in host_hour.chunk_by(|a, b| a.0.side == b.0.side) {
            let (part, first) = side[0];
            for (part, content) in side {
                let mut same = kept.iter().filter(|(other, _)| other.port == part.port);
                let beside = same.next().map(|(_, content)| &content.sums);
                let name = part.port.to_string();
                put_cluster(groups, Scope::Port, &name, part, &content.sums, beside);
            }
            if let Some(whole) = sum_parts(side.iter().map(|(_, content)| content)) {
                let mut put =
                    |scope, name| put_cluster(groups, scope, name, part, &whole, beside.as_ref());
                put(Scope::All, "");
                put(Scope::Prefix, &first.prefix);
                // A part that only late connections opened has none.
                if let Some(arm) = side.iter().find_map(|(_, content)| content.arm.as_ref()) {
                    put(Scope::Arm, arm);
                }
                if let Some(source) = first.source {
                    put(Scope::Source, source.name());
                }
            }
        }
    }
}

/// The sums of parts; `None` of none.
fn sum_parts<'c>(parts: impl Iterator<Item = &'c &'c Content>) -> Option<Cluster> {
    parts.map(|content| content.sums).reduce(|mut sums, more| {
        sums.merge(&more);
        sums
    })
}

/// Adds a cluster to one group, if there is place for it; `beside`: what kept the system's arm in
/// the same hour of the host.
fn put_cluster(
    groups: &mut Groups,
    scope: Scope,
    name: &str,
    part: &Part,
    sums: &Cluster,
    beside: Option<&Cluster>,
) {
    let key = (scope, name.to_owned());
    if !groups.contains_key(&key) {
        let of_scope = |key: &(Scope, String)| key.0 == scope;
        if groups.keys().filter(|key| of_scope(key)).count() >= scope.group_limit() {
            groups.retain(|key, group| !of_scope(key) || group.hour + IDLE > part.hour);
        }
        if groups.keys().filter(|key| of_scope(key)).count() >= scope.group_limit() {
            return;
        }
    }
    groups.entry(key).or_default().add(sums, beside, part);
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
        held: None,
    };

    fn part(hour: u64, tag: u64, port: u16) -> Part {
        let side = match tag.is_multiple_of(2) {
            true => Side::Control,
            false => Side::Treated,
        };
        Part {
            hour,
            tag,
            side,
            port,
        }
    }

    /// A ledger whose means know a connection of each stratum used here.
    fn begun() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.add_connection(part(0, 0, 0), &SECOND, String::new);
        ledger.restart_comparisons();
        ledger.take_changes();
        ledger
    }

    fn add(ledger: &mut Ledger, part: Part) {
        ledger.add_connection(part, &SECOND, || format!("192.0.{}.0/24", part.tag));
    }

    fn clusters(groups: &Groups, scope: Scope, name: &str) -> (u64, u64) {
        let group = &groups[&(scope, name.to_owned())];
        let time = Row::Time.index();
        (
            group.control()[time].clusters,
            group.treated()[time].clusters,
        )
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
            let groups = ledger.current_groups();
            assert_eq!(clusters(&groups, Scope::All, ""), (1, 2));
            assert_eq!(clusters(&groups, Scope::Port, "80"), (0, 1));
            assert_eq!(clusters(&groups, Scope::Port, "443"), (1, 2));
            assert_eq!(clusters(&groups, Scope::Prefix, "192.0.1.0/24"), (0, 2));
            let time = &groups[&(Scope::All, String::new())].treated()[0];
            assert_eq!((time.connections, time.weight), (4, 4.0));
            // The same whether the clusters are over or not.
            ledger.close_hours(7);
        }
    }

    #[test]
    fn clusters_wait_for_an_hour_and_are_kept_once() {
        let mut ledger = begun();
        add(&mut ledger, part(5, 1, 80));
        add(&mut ledger, part(6, 2, 80));
        assert_eq!(ledger.take_changes().open.len(), 2);
        assert!(!ledger.close_hours(6) && ledger.close_hours(7));
        let changes = ledger.take_changes();
        assert_eq!(changes.closed, [part(5, 1, 80)]);
        assert!(changes.open.is_empty());
        assert_eq!(clusters(ledger.closed_groups(), Scope::All, ""), (0, 1));
        // What could not be kept comes again.
        ledger.put_back(changes);
        assert_eq!(ledger.take_changes().closed, [part(5, 1, 80)]);
        assert!(ledger.take_changes().closed.is_empty());
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
        let groups = ledger.current_groups();
        assert_eq!(clusters(&groups, Scope::Arm, "bbr"), (0, 1));
        assert_eq!(clusters(&groups, Scope::Arm, "reno"), (0, 1));
        assert!(!groups.contains_key(&(Scope::Arm, "cubic".to_owned())));
    }

    #[test]
    fn arm_of_a_cluster_that_opens_an_hour_later_is_from_before_its_own() {
        let mut ledger = begun();
        for (hour, arm) in [(4, "reno"), (5, "bbr"), (6, "bbr")] {
            ledger.note_arm(1, hour, arm);
        }
        add(&mut ledger, part(5, 1, 80));
        let groups = ledger.current_groups();
        assert!(groups.contains_key(&(Scope::Arm, "reno".to_owned())));
        assert!(!groups.contains_key(&(Scope::Arm, "bbr".to_owned())));
    }

    #[test]
    fn older_note_leaves_newer_arms_as_they_are() {
        let mut ledger = begun();
        for (hour, arm) in [(7, "bbr"), (5, "reno"), (6, "cubic"), (4, "vegas")] {
            ledger.note_arm(1, hour, arm);
        }
        let before = |hour| ledger.arm_before(1, hour);
        assert_eq!(before(8).as_deref(), Some("bbr"));
        assert_eq!(before(7).as_deref(), Some("cubic"));
        assert_eq!(before(6).as_deref(), Some("reno"));
        assert_eq!(before(5), None);
    }

    #[test]
    fn late_ends_of_a_host_are_one_cluster_an_hour() {
        let mut ledger = begun();
        for hour in [4, 6, 7] {
            ledger.note_arm(1, hour, "bbr");
        }
        for minute in 0..60 {
            ledger.close_hours(8 + minute / 30);
            add(&mut ledger, part(5, 1, 443));
        }
        for _ in 0..2 {
            let groups = ledger.current_groups();
            assert_eq!(clusters(&groups, Scope::All, ""), (0, 2));
            let all = &groups[&(Scope::All, String::new())];
            assert_eq!(all.treated()[Row::Time.index()].connections, 60);
            assert!(!groups.contains_key(&(Scope::Arm, "bbr".to_owned())));
            ledger.close_hours(10);
        }
        // What is in time has its arm again, and a new boot its first hours.
        add(&mut ledger, part(9, 1, 443));
        assert_eq!(
            clusters(&ledger.current_groups(), Scope::Arm, "bbr"),
            (0, 1)
        );
        ledger.close_all();
        add(&mut ledger, part(5, 1, 443));
        assert!(ledger.open.contains_key(&part(5, 1, 443)));
    }

    #[test]
    fn late_ends_after_a_restart_are_one_cluster_with_the_arm_of_what_is_in_time() {
        // Nobody has closed an hour yet.
        let mut ledger = begun();
        ledger.note_arm(1, 6, "bbr");
        ledger.reach_hour(9);
        for hour in [3, 5, 7] {
            add(&mut ledger, part(hour, 1, 22));
        }
        add(&mut ledger, part(8, 1, 443));
        assert_eq!(clusters(&ledger.current_groups(), Scope::All, ""), (0, 1));
        assert_eq!(
            clusters(&ledger.current_groups(), Scope::Arm, "bbr"),
            (0, 1)
        );
    }

    /// The ledger that a restart makes of what was kept.
    fn restored(ledger: &Ledger) -> Ledger {
        let (baseline, groups) = (ledger.baseline().clone(), ledger.closed_groups().clone());
        Ledger::restore(baseline, groups, ledger.open.clone())
    }

    #[test]
    fn closed_hour_stays_closed_after_a_restart() {
        let mut ledger = begun();
        add(&mut ledger, part(5, 1, 443));
        add(&mut ledger, part(6, 1, 443));
        ledger.close_hours(7);
        let mut again = restored(&ledger);
        again.resume_at(7);
        for ledger in [&mut ledger, &mut again] {
            // It began in an hour that is over, and was in the ring when the next hour began.
            ledger.reach_hour(6);
            add(ledger, part(5, 1, 443));
            let groups = ledger.current_groups();
            assert_eq!(clusters(&groups, Scope::All, ""), (0, 2));
            let all = &groups[&(Scope::All, String::new())];
            assert_eq!(all.treated()[Row::Time.index()].connections, 3);
        }
    }

    #[test]
    fn hours_that_nobody_closed_stay_apart_after_a_restart() {
        let mut ledger = begun();
        add(&mut ledger, part(5, 1, 443));
        ledger.close_hours(7);
        let mut again = restored(&ledger);
        // The agent was away for hours, and the ring has what ended meanwhile.
        again.resume_at(12);
        for hour in [6, 7, 8] {
            again.reach_hour(hour);
            add(&mut again, part(hour, 1, 443));
        }
        assert_eq!(clusters(&again.current_groups(), Scope::All, ""), (0, 4));
        // Without clusters nothing is known to be over.
        let mut empty = Ledger::default();
        empty.resume_at(12);
        add(&mut empty, part(3, 1, 443));
        assert!(empty.open.contains_key(&part(3, 1, 443)));
    }

    #[test]
    fn hour_that_was_closed_ahead_of_time_goes_on_after_a_restart() {
        let mut ledger = begun();
        add(&mut ledger, part(8, 1, 443));
        ledger.begin_group(Scope::All, "");
        let mut again = restored(&ledger);
        again.resume_at(8);
        add(&mut again, part(8, 1, 443));
        assert!(again.open.contains_key(&part(8, 1, 443)));
    }

    #[test]
    fn hours_of_another_boot_are_kept_no_longer() {
        let mut ledger = begun();
        add(&mut ledger, part(500, 1, 443));
        ledger.close_hours(502);
        let mut again = restored(&ledger);
        assert!(!again.take_changes().regrouped);
        again.close_all();
        assert!(again.take_changes().regrouped);
        assert!(again.closed_groups().values().all(|group| group.hour == 0));
    }

    #[test]
    fn comparison_that_begins_anew_keeps_the_hours_that_are_not_over() {
        let mut ledger = begun();
        ledger.close_hours(9);
        ledger.restart_comparisons();
        ledger.begin_group(Scope::All, "");
        add(&mut ledger, part(8, 1, 443));
        assert!(ledger.open.contains_key(&part(8, 1, 443)));
    }

    #[test]
    fn the_source_is_that_of_the_first_connection_of_the_hour() {
        let mut ledger = begun();
        let mut add = |hour, tag, port, source| {
            ledger.add_connection(part(hour, tag, port), &SECOND, || First {
                prefix: String::new(),
                source,
            });
        };
        // Of another port, below and above the first one's: what it is decided by is an outcome.
        for port in [443, 80, 993] {
            let source = (port == 443).then_some(Source::Fleet);
            add(5, 1, port, source.or(Some(Source::Own)));
        }
        add(5, 2, 443, Some(Source::Fleet));
        add(6, 1, 443, Some(Source::Own));
        add(6, 3, 443, None);
        for _ in 0..2 {
            let groups = ledger.current_groups();
            assert_eq!(clusters(&groups, Scope::Source, "fleet"), (1, 1));
            assert_eq!(clusters(&groups, Scope::Source, "own"), (0, 1));
            assert_eq!(clusters(&groups, Scope::All, ""), (1, 3));
            ledger.close_hours(8);
        }
    }

    #[test]
    fn groups_are_bounded_and_idle_ones_give_way() {
        let mut ledger = begun();
        let most = Scope::Prefix.group_limit() as u64;
        for tag in 0..most + 10 {
            add(&mut ledger, part(5, tag, 80));
        }
        ledger.close_hours(7);
        let prefixes = |ledger: &Ledger| {
            let groups = ledger.closed_groups().keys();
            groups.filter(|key| key.0 == Scope::Prefix).count() as u64
        };
        assert_eq!(prefixes(&ledger), most);
        add(&mut ledger, part(5 + IDLE, 1000, 80));
        ledger.close_hours(u64::MAX);
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

    /// Adds a connection of a host of a wide prefix.
    fn add_crowd(ledger: &mut Ledger, part: Part) {
        ledger.add_connection(part, &SECOND, || "2001:db8::/48".to_owned());
    }

    #[test]
    fn prefix_of_many_hosts_leaves_places_to_others() {
        let mut ledger = begun();
        for host in 0..OPEN_MAX as u64 + 7 {
            add_crowd(&mut ledger, part(5, 1_000 + host, 80));
        }
        for host in 0..50 {
            add(&mut ledger, part(5, host, 80));
        }
        assert_eq!(ledger.left_out, 0);
        for _ in 0..2 {
            let groups = ledger.current_groups();
            // Half of 256 hosts, one cluster a side of all others, and 25 elsewhere.
            assert_eq!(clusters(&groups, Scope::All, ""), (154, 154));
            assert_eq!(
                clusters(&groups, Scope::Prefix, "2001:db8::/48"),
                (129, 129)
            );
            // No connection is lost.
            let all = &groups[&(Scope::All, String::new())];
            let time = [all.control(), all.treated()].map(|side| side[0].connections);
            assert_eq!(time.iter().sum::<u64>(), OPEN_MAX as u64 + 57);
            ledger.close_hours(7);
        }
    }

    #[test]
    fn hosts_of_a_prefix_are_counted_by_hour_and_after_a_restart() {
        let mut ledger = begun();
        let most = HOSTS_OF_PREFIX_MAX as u64;
        let hosts = 0..most + 10;
        for host in hosts.clone() {
            add_crowd(&mut ledger, part(5, host, 80));
            // Another port of a host is none of another host.
            add_crowd(&mut ledger, part(5, host, 443));
        }
        let Ledger { baseline, open, .. } = ledger;
        assert_eq!(open.len() as u64, 2 * (most + 2));
        let mut ledger = Ledger::restore(baseline, Groups::new(), open);
        add_crowd(&mut ledger, part(5, 50_000, 80));
        for host in hosts {
            add_crowd(&mut ledger, part(6, host, 80));
        }
        let half = most / 2;
        let all = clusters(&ledger.current_groups(), Scope::All, "");
        assert_eq!(all, (2 * (half + 1), 2 * (half + 1)));
        ledger.close_hours(7);
        assert_eq!(ledger.tags.len(), 1);
        ledger.close_hours(8);
        assert!(ledger.tags.is_empty());
    }
}
