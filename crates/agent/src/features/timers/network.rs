//! Timers of a network: which floor and which timeout of SYNs its connections get, by what the
//! programs reported of those that are over. A share of connections keeps the kernel's timers.

use thalweg_bpf_types::raw;
use thalweg_learner::HostKey;

use super::ladder::Ladder;
use crate::store::KeptWait;
use crate::trials::account::{Kind, Transfer};
use crate::trials::{COMPARED, Effect, Times, Wait, share};

/// Connections that waited for a timeout before a floor is tried.
const TIMED_OUT: u32 = 2;
/// Data segments of connections with a floor, and retransmissions among them, before a lower one is
/// tried.
const STEP_SEGS: f64 = 1000.0;
const STEP_RETRANS: f64 = 20.0;
/// Largest share of segments that were spurious retransmissions beyond those of the control group.
const SPURIOUS_SEGS: f64 = 0.005;
/// Largest share of short exchanges with one, likewise.
const SPURIOUS_EXCHANGES: f64 = 0.02;
/// Least number of either.
const SPURIOUS_LEAST: f64 = 3.0;
/// Segments of the longest short exchange.
const EXCHANGE_SEGS: u32 = 100;
/// Largest ratio of retransmissions to those of the control group, and what chance may add.
const RETRANS_RATIO: f64 = 1.2;
const RETRANS_CHANCE: f64 = 0.001;
/// Connections to the network before a SYN's timeout is set, and before it is shortened.
const SYN_CONNECTIONS: u32 = 8;
const SYN_STEP: u32 = 50;
/// Share of connections that waited from which on short ones have a floor from their start.
const SHORT_TIMED_OUT: f64 = 0.01;
/// Connections that the mean number of segments is of.
const MEAN_OF: u32 = 64;
/// Steps of the estimate of long round trips: half a bit up, a ninth of that down.
const RTT_RISE: f64 = std::f64::consts::SQRT_2;
const RTT_FALL: f64 = 0.962_232_187;

/// Connections that say nothing of the floor.
const INCOMPARABLE: u32 = raw::THALWEG_TIMED_OWNED | raw::THALWEG_TIMED_NO_SACK;

/// Groups of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draw {
    Control = 0,
    Drawn = 1,
}

/// Sums over connections of a group at the present step.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sums {
    connections: f64,
    segs: f64,
    retrans: f64,
    dsacks: f64,
    /// Short exchanges, and those with a spurious retransmission.
    exchanges: f64,
    spurious_exchanges: f64,
    /// Times of transfers of few segments, and of the others.
    times: [Times; 2],
}

/// Data segments without those that were sent again: how long a connection is, whatever its group.
fn sent_once(report: &raw::thalweg_timers_report) -> u32 {
    report.segs_out.saturating_sub(report.retrans)
}

impl Sums {
    fn add(&mut self, report: &raw::thalweg_timers_report) {
        self.connections += 1.0;
        self.segs += f64::from(report.segs_out);
        self.retrans += f64::from(report.retrans);
        self.dsacks += f64::from(report.dsacks);
        let is_long = sent_once(report) > EXCHANGE_SEGS;
        if !is_long {
            self.exchanges += 1.0;
            self.spurious_exchanges += f64::from(u8::from(report.dsacks > 0));
        }
        self.times[usize::from(is_long)].add(report.busy_us, report.bytes, 1, None);
    }
}

/// Why a network has the kernel's timers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Too many segments were sent again for nothing.
    Spurious,
    /// More segments were sent again than in the control group.
    Retransmitted,
    /// Transfers took longer than in the control group.
    Slower,
}

/// State of the floor or of the SYN's timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ascent {
    /// Step of the ladder in force; 0: the kernel's value.
    step: usize,
    /// Highest step that may be tried; `None`: any.
    highest: Option<usize>,
    wait: Wait,
}

impl Ascent {
    fn may_go_to(&self, step: usize, now_ns: u64) -> bool {
        self.wait.is_over(now_ns) && self.highest.is_none_or(|highest| step <= highest)
    }

    /// Takes the kernel's value back. After the wait steps below the harmful one are tried.
    fn fall(&mut self, now_ns: u64) {
        self.highest = Some(self.step.saturating_sub(1).max(1));
        self.step = 0;
        self.wait.begin(now_ns);
    }
}

/// Setting of a network's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The least retransmission timeout.
    Floor,
    /// The first timeout of a SYN.
    Syn,
}

impl Setting {
    /// Both, with their names in the store.
    pub const ALL: [(Self, &str); 2] = [(Self::Floor, "timers.floor"), (Self::Syn, "timers.syn")];
}

/// Knowledge of a network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// Round trips that one connection in ten exceeds, µs.
    longest_rtt_us: f64,
    connections: u32,
    timed_out: u32,
    timeouts: u64,
    /// Discounted mean of the data segments of a connection.
    mean_segs: f64,
    /// Connections since the last step of the SYN's timeout, and SYNs that were sent again for nothing.
    syn_connections: u32,
    syn_spurious: u32,
    floor: Ascent,
    syn: Ascent,
    groups: [Sums; 2],
    harm: Option<Harm>,
    /// Connections whose least timeout is another's, and the last such timeout, µs; 0: a policy's that
    /// is as the kernel's.
    pub others: u32,
    pub others_us: u32,
    /// CLOCK_MONOTONIC of the last report.
    pub seen_ns: u64,
}

/// When a floor is in force, beside from each retransmission to the next RTT sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// Once a connection has had a timeout.
    #[default]
    AfterTimeout,
    /// In all connections.
    Always,
    /// In all connections, and from the SYN to the first RTT sample.
    FromStart,
}

/// Timers for new connections to a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timers {
    /// Floor, µs; 0: the kernel's.
    pub floor_us: u32,
    /// When the floor is in force.
    pub when: When,
    /// First timeout of a SYN, µs; 0: the kernel's.
    pub syn_us: u32,
}

impl Timers {
    /// Whether any differs from the kernel's.
    pub fn are_set(&self) -> bool {
        self.floor_us != 0 || self.syn_us != 0
    }
}

impl Network {
    /// The timers for new connections.
    pub fn timers(&self, ladder: &Ladder) -> Timers {
        let floor_us = ladder.floor_us(self.floor.step, self.longest_rtt_us);
        Timers {
            floor_us: floor_us.unwrap_or(0),
            when: self.when(),
            syn_us: ladder
                .syn_us(self.syn.step, self.longest_rtt_us)
                .unwrap_or(0),
        }
    }

    /// A timeout costs long connections little unless more come; of short ones it is most of their time.
    fn when(&self) -> When {
        let connections = f64::from(self.connections);
        if self.timeouts as f64 >= connections {
            When::Always
        } else if f64::from(self.timed_out) >= SHORT_TIMED_OUT * connections
            && self.mean_segs <= f64::from(EXCHANGE_SEGS)
        {
            When::FromStart
        } else {
            When::AfterTimeout
        }
    }

    /// Effect on transfers, weighted by precision over short and long ones; `None`: not known yet.
    pub fn effect(&self) -> Option<Effect> {
        let [control, drawn] = &self.groups;
        Effect::new(control.times.iter().zip(&drawn.times))
    }

    /// Reason of the last fall to the kernel's floor.
    pub fn harm(&self) -> Option<Harm> {
        self.harm
    }

    /// Connections that are over: all, those of the control group, and those with the present timers.
    pub fn counts(&self) -> (u32, f64, f64) {
        let [control, drawn] = &self.groups;
        (self.connections, control.connections, drawn.connections)
    }

    /// Connections that had a timeout, and short ones that sent something again.
    pub fn timed_out(&self) -> u32 {
        self.timed_out
    }

    /// Shares of segments that were sent again, and for nothing: control group, then drawn.
    pub fn losses(&self) -> [(f64, f64); 2] {
        self.groups
            .each_ref()
            .map(|it| (share(it.retrans, it.segs), share(it.dsacks, it.segs)))
    }

    /// Longest round trips, µs; 0: none was measured.
    pub fn longest_rtt_us(&self) -> f64 {
        self.longest_rtt_us
    }

    /// Waits after harm: of the floor, then of the SYN's timeout.
    pub fn waits(&self, key: HostKey) -> [Option<KeptWait>; 2] {
        [&self.floor, &self.syn].map(|it| {
            let highest = it.highest.map(|step| step as u32);
            it.wait.kept(key, highest)
        })
    }

    /// Takes a wait from the store.
    pub fn restore(&mut self, setting: Setting, kept: &KeptWait) {
        let ascent = match setting {
            Setting::Floor => &mut self.floor,
            Setting::Syn => &mut self.syn,
        };
        ascent.wait = Wait::restore(kept);
        ascent.highest = kept.highest.map(|step| step as usize);
    }

    /// Notes a connection that is over, and takes a step where one is due.
    pub fn note(&mut self, report: &raw::thalweg_timers_report, ladder: &Ladder, now_ns: u64) {
        self.seen_ns = now_ns;
        self.connections = self.connections.saturating_add(1);
        self.note_rtt(report);
        self.note_syn(report, ladder, now_ns);
        // A short connection has few ACKs: it waits for the loss probe, which comes as late.
        let is_short = sent_once(report) <= EXCHANGE_SEGS;
        let has_waited = report.timeouts > 0 || (is_short && report.retrans > 0);
        self.timed_out = self.timed_out.saturating_add(u32::from(has_waited));
        self.timeouts += u64::from(report.timeouts);
        let weight = f64::from(self.connections.min(MEAN_OF));
        self.mean_segs += (f64::from(report.segs_out) - self.mean_segs) / weight;
        let flags = u32::from(report.flags);
        if flags & raw::THALWEG_TIMED_OWNED != 0 {
            self.others = self.others.saturating_add(1);
            self.others_us = report.other_us;
        }
        if flags & INCOMPARABLE != 0 {
            return;
        }
        let is_drawn = flags & raw::THALWEG_TIMED_DRAWN != 0;
        // Connections that ended before the last step say nothing of the present floor.
        if is_drawn && report.floor_us != self.timers(ladder).floor_us {
            return;
        }
        let group = if is_drawn { Draw::Drawn } else { Draw::Control };
        self.groups[group as usize].add(report);
        self.step_floor(ladder, now_ns);
    }

    /// Follows the round trips that one connection in ten exceeds (a stochastic approximation of the
    /// quantile). A handshake that lost a packet counts as a round trip of a second: only the least one
    /// is the path's.
    fn note_rtt(&mut self, report: &raw::thalweg_timers_report) {
        let is_clean = report.retrans == 0 && report.syn_retrans == 0;
        let rtt_us = match is_clean {
            true => report.srtt_us.max(report.min_rtt_us),
            false => report.min_rtt_us,
        };
        let rtt_us = f64::from(rtt_us);
        if report.min_rtt_us == 0 {
            return;
        }
        self.longest_rtt_us = match self.longest_rtt_us {
            0.0 => rtt_us,
            before if rtt_us > before => rtt_us.min(before * RTT_RISE),
            before => rtt_us.max(before * RTT_FALL),
        };
    }

    fn step_floor(&mut self, ladder: &Ladder, now_ns: u64) {
        if self.floor.step > 0
            && let Some(harm) = self.found_harm()
        {
            self.harm = Some(harm);
            self.floor.fall(now_ns);
            self.groups = Default::default();
            return;
        }
        let next = self.floor.step + 1;
        let drawn = &self.groups[Draw::Drawn as usize];
        let is_due = match self.floor.step {
            0 => self.timed_out >= TIMED_OUT,
            _ => drawn.segs >= STEP_SEGS && drawn.retrans >= STEP_RETRANS,
        };
        let is_there = ladder.floor_us(next, self.longest_rtt_us).is_some();
        if is_due && is_there && self.longest_rtt_us > 0.0 && self.floor.may_go_to(next, now_ns) {
            self.floor.step = next;
            // The control group's connections had the same timers before.
            self.groups[Draw::Drawn as usize] = Sums::default();
        }
    }

    /// Harm of the present floor.
    fn found_harm(&self) -> Option<Harm> {
        let [control, drawn] = &self.groups;
        let beyond = |part: f64, whole: f64, of_control: f64, most: f64| {
            let excess = part - of_control * whole;
            let bound = most * whole;
            // Two standard errors of a count that is at the bound.
            excess >= SPURIOUS_LEAST && excess > bound + 2.0 * bound.sqrt()
        };
        let usual = share(control.dsacks, control.segs);
        let usual_exchanges = share(control.spurious_exchanges, control.exchanges);
        if beyond(drawn.dsacks, drawn.segs, usual, SPURIOUS_SEGS)
            || beyond(
                drawn.spurious_exchanges,
                drawn.exchanges,
                usual_exchanges,
                SPURIOUS_EXCHANGES,
            )
        {
            return Some(Harm::Spurious);
        }
        let resent = share(drawn.retrans, drawn.segs);
        let usual = share(control.retrans, control.segs);
        let are_many = control.retrans >= 50.0 && drawn.retrans >= 50.0;
        let are_compared = control.connections >= COMPARED && drawn.connections >= COMPARED;
        if are_many && are_compared && resent > RETRANS_RATIO * usual + RETRANS_CHANCE {
            return Some(Harm::Retransmitted);
        }
        self.effect()?.is_harm().then_some(Harm::Slower)
    }

    fn note_syn(&mut self, report: &raw::thalweg_timers_report, ladder: &Ladder, now_ns: u64) {
        self.syn_connections = self.syn_connections.saturating_add(1);
        // An answer to an earlier SYN: no round trip was shorter than the timeout.
        if report.syn_us != 0 && report.min_rtt_us >= report.syn_us {
            self.syn_spurious += 1;
        }
        let share = f64::from(self.syn_spurious) / f64::from(self.syn_connections);
        if self.syn.step > 0
            && f64::from(self.syn_spurious) >= SPURIOUS_LEAST
            && share > SPURIOUS_EXCHANGES
        {
            self.syn.fall(now_ns);
            (self.syn_connections, self.syn_spurious) = (0, 0);
            return;
        }
        let next = self.syn.step + 1;
        let needed = match self.syn.step {
            0 => SYN_CONNECTIONS,
            _ => SYN_STEP,
        };
        let is_there = ladder.syn_us(next, self.longest_rtt_us).is_some();
        let is_due = self.syn_connections >= needed && self.longest_rtt_us > 0.0;
        if is_due && is_there && self.syn.may_go_to(next, now_ns) {
            self.syn.step = next;
            (self.syn_connections, self.syn_spurious) = (0, 0);
        }
    }
}

/// Transfer of a connection, where `share` of the network's have its timers; `None`: it ended before the
/// network had any, or began before the program. Connections with another's timeout count as well: of
/// the control group not all are known.
pub fn transfer_of_report(
    report: &raw::thalweg_timers_report,
    network: HostKey,
    share: f64,
) -> Option<Transfer> {
    let has = |flag: raw::thalweg_timed_flag| u32::from(report.flags) & flag != 0;
    let is_treated = has(raw::THALWEG_TIMED_DRAWN);
    let is_whole = has(raw::THALWEG_TIMED_KNOWN) && !has(raw::THALWEG_TIMED_EARLIER);
    is_whole.then_some(Transfer {
        network,
        is_treated,
        probability: if is_treated { share } else { 1.0 - share },
        kind: match sent_once(report) > EXCHANGE_SEGS {
            true => Kind::Long,
            false => Kind::Short,
        },
        cluster: None,
        bytes: report.bytes,
        us: report.busy_us,
        segs: report.segs_out,
        retrans: report.retrans,
    })
}

#[cfg(test)]
mod tests {
    use thalweg_bpf_types::raw;

    use super::super::ladder::{DELAYED_ACK_US, Ladder};
    use super::{Harm, Network, When};

    const LADDER: Ladder = Ladder {
        tick_us: 4000,
        least_us: 8000,
        delayed_ack_us: DELAYED_ACK_US,
    };
    const DRAWN: u16 = (raw::THALWEG_TIMED_DRAWN | raw::THALWEG_TIMED_KNOWN) as u16;

    /// A second of bulk data at 5 % of loss and no delay.
    fn lossy(network: &Network) -> raw::thalweg_timers_report {
        raw::thalweg_timers_report {
            bytes: 50_000_000,
            busy_us: 1_000_000,
            segs_out: 35_000,
            retrans: 1750,
            min_rtt_us: 30,
            srtt_us: 60,
            timeouts: 4,
            floor_us: network.timers(&LADDER).floor_us,
            flags: DRAWN,
            ..raw::thalweg_timers_report::default()
        }
    }

    fn note(network: &mut Network, change: impl Fn(&mut raw::thalweg_timers_report)) {
        let mut report = lossy(network);
        change(&mut report);
        network.note(&report, &LADDER, 1);
    }

    #[test]
    fn floors_fall_connection_by_connection_where_losses_are_real() {
        let mut network = Network::default();
        let mut floors = Vec::new();
        for _ in 0..6 {
            floors.push(network.timers(&LADDER).floor_us);
            note(&mut network, |_| {});
        }
        assert_eq!(floors, [0, 0, 48_000, 20_000, 8_000, 8_000]);
        assert_eq!(network.timers(&LADDER).when, When::Always);
    }

    #[test]
    fn handshakes_that_lost_a_packet_hide_no_short_path() {
        let mut network = Network::default();
        for number in 0..200 {
            note(&mut network, |it| {
                (it.retrans, it.timeouts, it.min_rtt_us) = (0, 0, 2000);
                it.srtt_us = if number % 20 == 7 { 900_000 } else { 2200 };
            });
        }
        let long = network.longest_rtt_us();
        assert!((2000.0..4000.0).contains(&long), "{long}");
        // A path that is longer now is known after a few connections.
        for _ in 0..12 {
            note(&mut network, |it| {
                (it.retrans, it.timeouts, it.min_rtt_us, it.srtt_us) = (0, 0, 100_000, 100_000);
            });
        }
        assert_eq!(network.longest_rtt_us(), 100_000.0);
    }

    #[test]
    fn short_connections_have_their_floor_from_the_start() {
        let mut network = Network::default();
        for number in 0..200 {
            note(&mut network, |it| {
                (it.segs_out, it.bytes, it.timeouts) = (10, 10_000, 0);
                it.retrans = u32::from(number % 20 == 0);
            });
        }
        assert_eq!(network.timers(&LADDER).when, When::FromStart);
        for _ in 0..100 {
            note(&mut network, |it| it.timeouts = 0);
        }
        assert_eq!(network.timers(&LADDER).when, When::AfterTimeout);
    }

    #[test]
    fn connections_without_timeouts_get_no_floor() {
        let mut network = Network::default();
        for _ in 0..1000 {
            note(&mut network, |it| it.timeouts = 0);
        }
        assert_eq!(network.timers(&LADDER).floor_us, 0);
    }

    #[test]
    fn spurious_retransmissions_take_the_floor_back_and_bound_the_next_try() {
        let mut network = Network::default();
        while network.timers(&LADDER).floor_us != 8000 {
            note(&mut network, |_| {});
        }
        note(&mut network, |it| it.dsacks = 400);
        assert_eq!(network.timers(&LADDER).floor_us, 0);
        assert_eq!(network.harm(), Some(Harm::Spurious));
        // Within the wait nothing is tried, after it nothing as low.
        for _ in 0..10 {
            note(&mut network, |_| {});
        }
        assert_eq!(network.timers(&LADDER).floor_us, 0);
        let later = 1 + crate::trials::WAIT_NS;
        let mut least = u32::MAX;
        for _ in 0..10 {
            let report = lossy(&network);
            network.note(&report, &LADDER, later);
            least = least.min(network.timers(&LADDER).floor_us);
        }
        assert_eq!(least, 20_000);
    }

    #[test]
    fn few_duplicates_of_few_segments_are_chance() {
        let mut network = Network::default();
        while network.timers(&LADDER).floor_us != 8000 {
            note(&mut network, |_| {});
        }
        note(&mut network, |it| {
            (it.segs_out, it.retrans, it.dsacks) = (600, 60, 5)
        });
        assert_eq!(network.harm(), None);
        note(&mut network, |it| {
            (it.segs_out, it.retrans, it.dsacks) = (600, 60, 9)
        });
        assert_eq!(network.harm(), Some(Harm::Spurious));
    }

    #[test]
    fn duplicates_that_the_control_group_has_too_are_no_harm() {
        let mut network = Network::default();
        for _ in 0..20 {
            note(&mut network, |it| it.dsacks = 400);
            note(&mut network, |it| {
                it.dsacks = 400;
                it.flags = raw::THALWEG_TIMED_KNOWN as u16;
            });
        }
        assert_eq!(network.timers(&LADDER).floor_us, 8000);
        assert_eq!(network.harm(), None);
    }

    #[test]
    fn slower_transfers_take_the_floor_back() {
        let mut network = Network::default();
        for number in 0u64..40 {
            note(&mut network, |it| {
                it.busy_us = 1_500_000 + 1000 * number;
            });
            note(&mut network, |it| {
                it.busy_us += 1000 * number;
                it.flags = raw::THALWEG_TIMED_KNOWN as u16;
            });
        }
        assert_eq!(network.harm(), Some(Harm::Slower));
        assert_eq!(network.timers(&LADDER).floor_us, 0);
    }

    #[test]
    fn peers_that_tell_of_no_duplicates_get_no_floor() {
        let mut network = Network::default();
        for _ in 0..10 {
            note(&mut network, |it| {
                it.flags |= raw::THALWEG_TIMED_NO_SACK as u16;
            });
        }
        assert_eq!(network.timers(&LADDER).floor_us, 0);
    }

    #[test]
    fn timeouts_of_others_are_noted_and_teach_nothing() {
        let mut network = Network::default();
        for _ in 0..10 {
            note(&mut network, |it| {
                it.flags |= raw::THALWEG_TIMED_OWNED as u16;
                it.other_us = 50_000;
            });
            note(&mut network, |it| {
                it.flags |= raw::THALWEG_TIMED_NO_SACK as u16;
            });
        }
        assert_eq!(network.timers(&LADDER).floor_us, 0);
        assert_eq!((network.others, network.others_us), (10, 50_000));
    }

    #[test]
    fn syns_are_sent_again_sooner_until_answers_come_late() {
        let mut network = Network::default();
        let clean = |it: &mut raw::thalweg_timers_report| {
            (it.timeouts, it.retrans) = (0, 0);
        };
        for _ in 0..8 {
            assert_eq!(network.timers(&LADDER).syn_us, 0);
            note(&mut network, clean);
        }
        assert_eq!(network.timers(&LADDER).syn_us, 60_000);
        for _ in 0..50 {
            note(&mut network, clean);
        }
        assert_eq!(network.timers(&LADDER).syn_us, 20_000);
        for _ in 0..3 {
            note(&mut network, |it| {
                clean(it);
                (it.syn_us, it.min_rtt_us, it.syn_retrans) = (20_000, 25_000, 1);
            });
        }
        assert_eq!(network.timers(&LADDER).syn_us, 0);
    }
}
