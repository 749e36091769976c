//! The learner's gain against its control group: ended connections become clusters, worse choices
//! are reverted. Advice, where nothing is learned by trying. `crates/gain` has the statistics.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};

use thalweg_bpf_types::raw;
use thalweg_gain::{Chronographs, Connection, First, Part, Scope, Side};
use thalweg_learner::{Control, HostKey};

use crate::comparison::Compared;
use crate::kernel::ArmTable;
use crate::view;

mod advice;
mod api;
mod durations;
mod evaluation;
mod event;
mod groups;
mod metrics;
mod present;
mod rules;
mod session;
mod store;
#[cfg(test)]
mod tests;

use advice::{Advice, Question};
use durations::HOUR_NS;
use rules::Rules;
pub use session::State;
use store::{ChangedGain, KeptGain, Revert};

/// Prefix lengths of groups, in IPv4 and IPv6.
const GROUP_IPV4: u32 = 24;
const GROUP_IPV6: u32 = 48;

/// The name of the group of a remote address.
fn group_of(remote: IpAddr) -> String {
    let group = HostKey::new(0, remote, GROUP_IPV4, GROUP_IPV6);
    group.map_or_else(|_| remote.to_string(), |group| group.to_string())
}

/// The kernel's draw: its prefix lengths, and the control group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drawn {
    /// Prefix length in IPv4, 0 to 32.
    pub ipv4: u32,
    /// Prefix length in IPv6, 0 to 128.
    pub ipv6: u32,
    /// The control group.
    pub control: Control,
    /// Whether other agents report their measurements to this one.
    pub has_fleet: bool,
}

impl Drawn {
    /// Whether a cluster always belongs to the control group. Its hours are one draw, so they are
    /// no clusters of their own.
    fn is_permanent(&self, tag: u64) -> bool {
        let always = Control {
            share_q16: 0,
            ..self.control
        };
        always.contains_cluster(tag, 0)
    }
}

/// State of the gain in the agent.
#[derive(Debug, Default)]
pub struct Gain {
    kept: KeptGain,
    drawn: Drawn,
    /// Rules of the policy with a share.
    pub rules: Rules,
    /// Comparisons of advice, where the learner sets nothing; they take the events instead.
    pub advice: Option<Advice>,
}

impl Gain {
    /// Continues from the stored state.
    pub fn new(kept: KeptGain, drawn: Drawn, advice: Option<Advice>) -> Self {
        Self {
            kept,
            drawn,
            rules: Rules::default(),
            advice,
        }
    }

    /// Counts events.
    pub fn take(&mut self, events: &[raw::thalweg_event], arms: &ArmTable) {
        events.iter().for_each(|event| self.event(event, arms));
    }

    fn event(&mut self, event: &raw::thalweg_event, arms: &ArmTable) {
        let side = match &self.advice {
            Some(advice) => advice.side(event, arms),
            None => event::side(event),
        };
        let Some(side) = side else { return };
        let remote = IpAddr::V6(Ipv6Addr::from(event.remote)).to_canonical();
        let (ipv4, ipv6) = (self.drawn.ipv4, self.drawn.ipv6);
        let Ok(key) = HostKey::new(event.host.netns, remote, ipv4, ipv6) else {
            return;
        };
        if self.drawn.is_permanent(key.tag()) {
            return;
        }
        if u32::from(event.kind) != raw::THALWEG_EVENT_CLOSE {
            let settled =
                side == Side::Treated && u32::from(event.reason) == raw::THALWEG_REASON_GREEDY;
            if let (true, Some(arm)) = (settled, arms.name(event.arm.into())) {
                let hour = event.time_ns / HOUR_NS;
                self.kept.ledger.note_arm(key.tag(), hour, arm);
            }
            return;
        }
        let Some((hour, connection)) = whole(event) else {
            return;
        };
        let part = Part {
            hour,
            tag: key.tag(),
            side,
            port: event::service_port(event),
        };
        let learns = self.advice.is_none();
        let source = (self.drawn.has_fleet && learns).then(|| event::source(event));
        let ledger = match &mut self.advice {
            Some(advice) => advice.ledger(),
            None => &mut self.kept.ledger,
        };
        ledger.reach_hour(event.time_ns / HOUR_NS);
        ledger.add_connection(part, &connection, || First {
            prefix: group_of(remote),
            source,
        });
    }

    /// Takes the changes since the last call, for the store.
    pub fn take_changes(&mut self) -> Vec<ChangedGain> {
        let mut changed = vec![self.kept.take_changes(String::new())];
        changed.extend(self.rules.take_changes());
        changed.extend(self.advice.as_mut().map(Advice::take_changes));
        changed
    }

    /// Puts back changes that could not be saved. Those of a rule that is no longer compared are
    /// dropped.
    pub fn put_back(&mut self, changed: ChangedGain) {
        let kept = match &mut self.advice {
            _ if changed.rule.is_empty() => Some(&mut self.kept),
            Some(advice) if advice.is_of(&changed.rule) => Some(advice.kept()),
            _ => self.rules.kept(&changed.rule),
        };
        if let Some(kept) = kept {
            kept.put_back(changed);
        }
    }

    /// The answer of `GET /v1/advise`.
    pub fn advise(&self, question: &Question) -> view::Advice {
        match &self.advice {
            Some(advice) => advice.view(question),
            None => advice::of_learner(&self.kept, question),
        }
    }

    /// Comparisons for the fleet: the learner's, if `learner` is set, then those of rules with a
    /// share, most clusters first.
    pub fn compared(&self, learner: bool) -> Vec<Compared> {
        let mut all: Vec<Compared> = (self.rules.groups().into_iter())
            .map(|(name, group)| Compared::new(Some(name), &group))
            .collect();
        all.sort_by_key(|it| Reverse(it.clusters()));
        if learner {
            let groups = self.kept.ledger.current_groups();
            let group = groups.get(&(Scope::All, String::new()));
            let own = group.map(|group| Compared::new(None, group));
            all.splice(0..0, own);
        }
        all.retain(|it| !it.told.is_empty());
        all
    }

    /// Present reverts.
    pub fn reverts(&self) -> &[Revert] {
        &self.kept.reverts
    }
}

/// The connection that an event ends, with its earlier measurement intervals, and the hour in which
/// it began. `None`: the connection continues, and only whole ones are comparable. Limits are known
/// of the last interval alone, whose shares stand for all; they are unknown where it says nothing.
fn whole(event: &raw::thalweg_event) -> Option<(u64, Connection)> {
    let end = u32::from(event.end);
    if [raw::THALWEG_END_SWITCH, raw::THALWEG_END_STRETCH].contains(&end) {
        return None;
    }
    let before = &event.before;
    let wall_us = event.wall_us.saturating_add(before.wall_us);
    let began_ns = event.time_ns.saturating_sub(wall_us.saturating_mul(1000));
    let busy_us = event.duration_us + before.duration_us;
    let scaled = |us: u64| {
        let of_whole = u128::from(us) * u128::from(busy_us) / u128::from(event.duration_us.max(1));
        u64::try_from(of_whole).map_or(busy_us, |us| us.min(busy_us))
    };
    let failed = [raw::THALWEG_END_RESET, raw::THALWEG_END_TIMEOUT].contains(&end);
    let connection = Connection {
        bytes: event.bytes + before.bytes,
        busy_us,
        segs_out: event.segs_out.saturating_add(before.segs_out),
        retrans: event.retrans.saturating_add(before.retrans),
        srtt_us: event.srtt_us,
        min_rtt_us: event.min_rtt_us,
        handshake_rtt_us: event.handshake_rtt_us,
        failed: Some(failed),
        held: event::held(event)
            .filter(|last| event::says_limits(event, last))
            .map(|last| Chronographs {
                open_us: wall_us,
                receiver_us: scaled(last.receiver_us),
                buffer_us: scaled(last.buffer_us),
            }),
    };
    Some((began_ns / HOUR_NS, connection))
}
