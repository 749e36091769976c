//! Reports of one network in few bytes.
//!
//! Costs and rates are kept to 1/1024 bit, up to 31 bits on either side; evidence to 1/1024
//! measurement, up to 63; deviations to 1/4096 bit, up to 15 bits. All of it is far finer than
//! measurements, and far beyond the limits of the learner's arithmetic.

use thalweg_fleet::wire::Arm;
use thalweg_learner::fleet::{AgentReport, ArmReport};
use thalweg_learner::{MAX_ARMS, OFFSET_Q16};

/// Bytes of a report without its arms: draw, agent, time, queue, number of arms.
const HEAD: usize = 2 + 4 + 4 + 2 + 1;
/// Bytes of an arm: name, and six numbers.
const ROW: usize = 1 + 6 * 2;

/// One arm of a report in compact form, with its name as a number.
pub struct Row([u8; ROW]);

impl Row {
    /// Packs an arm, under the number of its name.
    pub fn new(name: u8, arm: &Arm) -> Self {
        let bits = |value: i32| (value >> 6).clamp(i16::MIN.into(), i16::MAX.into()) as i16;
        let upto = |value: u32| value.min(u16::MAX.into()) as u16;
        // Both scale by the same factor: their ratio counts.
        let segments = arm.segments.max(1);
        let most = u64::from(segments.max(u16::MAX.into()));
        let of_most = |value: u32| {
            let value = u64::from(value.min(arm.segments));
            (value * u64::from(u16::MAX) / most.max(1)) as u16
        };
        let (segs, retrans) = match arm.segments > u32::from(u16::MAX) {
            true => (of_most(arm.segments), of_most(arm.retransmitted)),
            false => (upto(arm.segments), upto(arm.retransmitted)),
        };
        let numbers = [
            bits(arm.cost_q16).to_le_bytes(),
            // Some evidence stays more than none.
            upto((arm.evidence_q16 >> 6).max(u32::from(arm.evidence_q16 > 0))).to_le_bytes(),
            bits(arm.log_rate_q16).to_le_bytes(),
            upto(arm.deviation_q16 >> 4).to_le_bytes(),
            segs.to_le_bytes(),
            retrans.to_le_bytes(),
        ];
        let mut row = [0; ROW];
        row[0] = name;
        for (to, from) in row[1..].chunks_exact_mut(2).zip(numbers) {
            to.copy_from_slice(&from);
        }
        Self(row)
    }

    fn arm(row: &[u8]) -> ArmReport {
        let unsigned = |at: usize| u16::from_le_bytes([row[at], row[at + 1]]);
        let above = |at: usize| {
            let bits = i32::from(unsigned(at) as i16) << 6;
            OFFSET_Q16.saturating_add_signed(bits)
        };
        ArmReport {
            cost_q16: above(1),
            evidence_q16: u32::from(unsigned(3)) << 6,
            log_rate_q16: above(5),
            deviation_q16: u32::from(unsigned(7)) << 4,
            segs: unsigned(9).into(),
            retrans: unsigned(11).into(),
        }
    }
}

/// An unpacked report, before it is kept.
pub struct Report {
    /// Random order of reports: if there are too many, those with the lowest draws are kept.
    pub draw: u16,
    /// Number of the agent.
    pub agent: u32,
    /// Time of the last measurement, s on the report store's clock.
    pub at_s: u32,
    /// Queue under the system arm, Q16 bits.
    pub queue_q16: u32,
    /// Arms of the report.
    pub rows: Vec<Row>,
}

/// Kept reports of one network; of many an unforeseeable sample.
#[derive(Default)]
pub struct Reports {
    bytes: Vec<u8>,
}

impl Reports {
    /// Bytes of a report with this number of arms.
    pub const fn size(arms: usize) -> usize {
        HEAD + arms * ROW
    }

    /// Bytes of all kept reports.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn each(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let head = self.bytes.get(at..at + HEAD)?;
            let begin = at;
            at += Self::size(head[HEAD - 1].into());
            Some((begin, &self.bytes[begin..at]))
        })
    }

    /// Number of kept reports.
    pub fn len(&self) -> usize {
        self.each().count()
    }

    /// Keeps a report of an agent that has none here. Beyond `most` the report with the highest
    /// draw is dropped.
    pub fn put(&mut self, report: &Report, most: usize) {
        if self.len() >= most {
            let last = self.each().max_by_key(|(_, kept)| draw_of(kept));
            let Some((at, length, draw)) = last.map(|(at, kept)| (at, kept.len(), draw_of(kept)))
            else {
                return;
            };
            if draw <= report.draw {
                return;
            }
            self.bytes.drain(at..at + length);
        }
        let rows = &report.rows[..report.rows.len().min(MAX_ARMS)];
        // Reserve exactly: there are many of these.
        self.bytes.reserve_exact(Self::size(rows.len()));
        self.bytes.extend(report.draw.to_le_bytes());
        self.bytes.extend(report.agent.to_le_bytes());
        self.bytes.extend(report.at_s.to_le_bytes());
        let queue = (report.queue_q16 >> 4).min(u16::MAX.into()) as u16;
        self.bytes.extend(queue.to_le_bytes());
        self.bytes.push(rows.len() as u8);
        for row in rows {
            self.bytes.extend(row.0);
        }
    }

    /// Keeps the `most` reports with the lowest draws.
    pub fn thin(&mut self, most: usize) {
        let mut draws: Vec<(u16, usize)> =
            self.each().map(|(at, kept)| (draw_of(kept), at)).collect();
        if draws.len() <= most {
            return;
        }
        draws.sort_unstable();
        draws.truncate(most);
        draws.sort_unstable_by_key(|(_, at)| *at);
        let mut left = Vec::with_capacity(draws.len() * Self::size(3));
        for (_, at) in draws {
            let rows = self.bytes[at + HEAD - 1];
            left.extend_from_slice(&self.bytes[at..at + Self::size(rows.into())]);
        }
        left.shrink_to_fit();
        self.bytes = left;
    }

    /// Removes the report of an agent.
    pub fn remove(&mut self, agent: u32) {
        let found = self.each().find(|(_, kept)| agent_of(kept) == agent);
        if let Some((at, length)) = found.map(|(at, kept)| (at, kept.len())) {
            self.bytes.drain(at..at + length);
        }
    }

    /// Unpacks the reports, aged to the moment `now_s`, s. `slots` has the slot of each name's
    /// number; arms that this agent lacks are left out.
    pub fn read(&self, slots: &[Option<usize>], now_s: u32, into: &mut Vec<AgentReport>) {
        into.clear();
        into.extend(self.each().map(|(_, kept)| {
            let mut report = AgentReport {
                agent: agent_of(kept).into(),
                age_ns: u64::from(now_s.saturating_sub(u32_of(kept, 6))) * 1_000_000_000,
                queue_q16: u32::from(u16::from_le_bytes([kept[10], kept[11]])) << 4,
                ..AgentReport::default()
            };
            for row in kept[HEAD..].chunks_exact(ROW) {
                let slot = slots.get(usize::from(row[0])).copied().flatten();
                if let Some(arm) = slot.and_then(|slot| report.arms.get_mut(slot)) {
                    *arm = Row::arm(row);
                }
            }
            report
        }));
    }
}

fn u32_of(kept: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([kept[at], kept[at + 1], kept[at + 2], kept[at + 3]])
}

fn draw_of(kept: &[u8]) -> u16 {
    u16::from_le_bytes([kept[0], kept[1]])
}

fn agent_of(kept: &[u8]) -> u32 {
    u32_of(kept, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(bits: i32) -> Arm {
        Arm {
            name: "any".to_owned(),
            cost_q16: bits << 16,
            evidence_q16: 4 << 16,
            log_rate_q16: -(bits << 16),
            deviation_q16: 1 << 14,
            segments: 200_000,
            retransmitted: 20_000,
        }
    }

    fn report(agent: u32, draw: u16, rows: Vec<Row>) -> Report {
        Report {
            draw,
            agent,
            at_s: 100,
            queue_q16: 3 << 14,
            rows,
        }
    }

    fn read(reports: &Reports) -> Vec<AgentReport> {
        let mut all = Vec::new();
        reports.read(&[Some(2), None, Some(0)], 160, &mut all);
        all
    }

    #[test]
    fn a_report_comes_back_as_it_was() {
        let mut reports = Reports::default();
        let rows = vec![
            Row::new(0, &arm(-1)),
            Row::new(1, &arm(0)),
            Row::new(2, &arm(0)),
        ];
        reports.put(&report(7, 1, rows), 1);
        assert_eq!(reports.bytes(), Reports::size(3));
        let [told] = read(&reports)[..] else {
            panic!("one report");
        };
        assert_eq!(
            (told.agent, told.age_ns, told.queue_q16),
            (7, 60_000_000_000, 3 << 14)
        );
        let back = told.arms[2];
        assert_eq!((back.cost_q16, back.log_rate_q16), (31 << 16, 33 << 16));
        assert_eq!((back.evidence_q16, back.deviation_q16), (4 << 16, 1 << 14));
        // A tenth was retransmitted.
        assert_eq!((back.segs, back.retrans), (65_535, 6553));
        // The second name is of an arm that this agent lacks.
        assert_eq!(told.arms.iter().filter(|it| it.evidence_q16 > 0).count(), 2);
    }

    #[test]
    fn extremes_stay_extreme() {
        let most = Arm {
            cost_q16: i32::MAX,
            evidence_q16: u32::MAX,
            log_rate_q16: i32::MIN,
            deviation_q16: u32::MAX,
            segments: u32::MAX,
            retransmitted: u32::MAX,
            ..arm(0)
        };
        let back = Row::arm(&Row::new(0, &most).0);
        assert!(
            back.cost_q16 > 63 << 16 && back.log_rate_q16 == 0,
            "{back:?}"
        );
        assert!(
            back.evidence_q16 > 63 << 16 && back.deviation_q16 > 15 << 16,
            "{back:?}"
        );
        assert_eq!((back.segs, back.retrans), (65_535, 65_535));
        let least = Arm {
            evidence_q16: 1,
            segments: 0,
            retransmitted: 9,
            ..arm(0)
        };
        let back = Row::arm(&Row::new(0, &least).0);
        assert!(back.evidence_q16 > 0 && back.segs == 0, "{back:?}");
    }

    #[test]
    fn of_many_those_with_the_lowest_draws_are_kept() {
        const MOST: usize = 64;
        // Each draw once, in another order than that of the agents.
        let draw = |agent: u32| (agent * 77 % 200) as u16;
        let fill = |most: usize| {
            let mut reports = Reports::default();
            for agent in 0..200u32 {
                let rows = (0..=agent as u8 % 3)
                    .map(|it| Row::new(it, &arm(0)))
                    .collect();
                reports.put(&report(agent, draw(agent), rows), most);
            }
            reports
        };
        let agents = |reports: &Reports| {
            let all = read(reports).into_iter();
            let mut agents: Vec<u32> = all.map(|it| it.agent as u32).collect();
            agents.sort_by_key(|agent| draw(*agent));
            agents
        };
        let mut reports = fill(MOST);
        let kept = agents(&reports);
        let draws: Vec<u16> = kept.iter().map(|agent| draw(*agent)).collect();
        assert_eq!(draws, (0..MOST as u16).collect::<Vec<_>>());
        // The same, if there was more room first.
        let mut thinned = fill(256);
        assert_eq!(thinned.len(), 200);
        thinned.thin(MOST);
        assert_eq!(agents(&thinned), kept);
        assert_eq!(thinned.bytes(), reports.bytes());
        reports.remove(kept[0]);
        reports.remove(kept[0]);
        assert_eq!(reports.len(), MOST - 1);
        for agent in 0..200 {
            reports.remove(agent);
        }
        assert_eq!((reports.len(), reports.bytes()), (0, 0));
    }
}
