//! Initial windows: a wide record and narrow ones in it, one after the other. Each connection has its
//! window decided, and is measured at its end.

use thalweg_bpf_types::raw as abi;
use thalweg_learner::{Level, window};
use thalweg_tests::{Request, raw};

use crate::compare::Comparison;
use crate::families::{ask, empty_record, worth};
use crate::random_inputs::{
    FIN_LOCAL, FIN_REMOTE, RESET, Random, SECOND_NS, STRETCH, SWITCH, TIMEOUT, at_end,
    default_params,
};

/// Narrow records of a family.
const NARROW: usize = 2;
/// Transfers of more bytes tell nothing.
const BYTES_MAX: u64 = 256 << 10;

/// Draws a transfer that began with the window of an arm.
type Transfers = fn(&mut Random, u32) -> abi::thalweg_sample;

/// A family: the first state of its records, and the sources of its steps.
pub struct Plan {
    pub name: &'static str,
    params: abi::thalweg_params,
    /// Transfers, one kind after the other.
    samples: &'static [Transfers],
    /// Sets of windows (segments), one after the other.
    sets: &'static [&'static [u32]],
    /// Step, measurements, and those at the last step, of the wide record and the narrow ones.
    begun: [[u32; 3]; 2],
    /// Arms of most measurements; none: those that were decided.
    arms: &'static [u32],
    worth: u32,
    /// Longest time between two connections, seconds.
    elapse: u64,
    steps: usize,
}

fn plan(name: &'static str, change: impl FnOnce(&mut Plan)) -> Plan {
    let mut plan = Plan {
        name,
        params: default_params(),
        samples: &[deep],
        sets: &[&[10, 16, 24, 32]],
        begun: [[0; 3]; 2],
        arms: &[],
        worth: 8,
        elapse: 10,
        steps: 120,
    };
    change(&mut plan);
    plan
}

/// A record that may take a step.
const READY: [u32; 3] = [3, 1500, 600];

/// Every family of windows.
pub fn plans() -> Vec<Plan> {
    vec![
        plan("a network of which nothing is known", |p| p.steps = 200),
        plan("a deep buffer", |p| (p.begun, p.steps) = ([READY; 2], 200)),
        plan("all windows", |p| {
            p.sets = &[&[10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32]];
            (p.begun[0], p.steps) = ([0, 90, 0], 160);
        }),
        plan("a shallow buffer", |p| {
            p.samples = &[shallow];
            p.begun = [[7, 1600, 700], [11, 1600, 700]];
        }),
        plan("a tiny buffer", |p| {
            p.samples = &[tiny];
            p.begun = [[11, 999, 500], [3, 999, 500]];
        }),
        plan("a deep buffer that becomes shallow", |p| {
            p.samples = &[deep, shallow, deep];
            p.begun = [[7, 1600, 700]; 2];
            p.steps = 300;
        }),
        plan("losses of any window", |p| {
            p.samples = &[lossy];
            (p.begun, p.steps) = ([READY; 2], 300);
        }),
        plan("larger windows take longer", |p| {
            p.samples = &[useless];
            p.begun = [READY; 2];
        }),
        plan("only the kernel's own", |p| {
            p.sets = &[&[10]];
            p.begun[0] = [0, 120, 0];
        }),
        plan("one other, the largest", |p| {
            p.sets = &[&[10, 32]];
            p.begun[0] = [0, 120, 0];
        }),
        plan("a set without the kernel's own", |p| {
            p.sets = &[&[14, 20]];
            p.begun[0] = [0, 120, 0];
        }),
        plan("sets that change", |p| {
            p.sets = &[&[10, 16, 24, 32], &[10, 12, 20, 30], &[10, 14]];
            p.samples = &[shallow];
            (p.begun, p.steps) = ([READY; 2], 300);
        }),
        plan("connections that tell nothing", |p| {
            p.samples = &[silent];
            (p.begun[0], p.steps) = (READY, 200);
        }),
        plan("windows, one field at its end", |p| {
            p.samples = &[corners];
            (p.begun, p.steps) = ([READY; 2], 200);
        }),
        plan("windows, hours of silence", |p| {
            (p.begun[0], p.elapse) = (READY, 40_000);
        }),
        plan("a rescue arm among the windows", |p| {
            p.samples = &[lossy];
            (p.begun, p.params.rescue_arm) = ([READY; 2], 3);
        }),
        plan("many segments", |p| {
            (p.begun, p.arms, p.steps) = ([READY; 2], &[0, 0, 3], 600);
        }),
        plan("few losses", |p| {
            p.samples = &[hardly];
            (p.begun, p.arms) = ([READY; 2], &[0, 3]);
        }),
        plan("a wide record that knows too late", |p| {
            (p.begun[0], p.arms, p.steps) = (READY, &[0], 12);
        }),
        plan("a set without the step", |p| {
            p.sets = &[&[10, 24], &[10, 20, 30]];
            p.begun = [[7, 3000, 2000], [7, 1500, 600]];
        }),
        plan("even losses", |p| {
            p.samples = &[evenly];
            (p.begun, p.arms) = ([READY; 2], &[0, 0, 3]);
        }),
        plan("the kernel's own measured least", |p| {
            p.samples = &[tiny];
            p.begun = [[11, 1600, 700]; 2];
            (p.arms, p.steps) = (&[0, 3, 3, 7, 7, 11, 11], 200);
        }),
        plan("windows, knowledge of much worth", |p| {
            (p.begun[0], p.worth) = ([11, 3000, 1000], 500);
        }),
    ]
}

/// Slow start of 21 to 180 segments; `lost` of 1000 flights lose a tenth to a half.
fn transfer(r: &mut Random, arm: u32, lost: u64) -> abi::thalweg_sample {
    let window = u64::from(window::arm_segments(arm as usize));
    let segs = r.between(21, 180);
    let (mut sent, mut rounds) = (0, 0);
    while sent < segs {
        sent += window << rounds;
        rounds += 1;
    }
    let retrans = match r.below(1000) < lost {
        true => r.between(segs / 10, segs / 2),
        false => r.below(40) / 39,
    };
    let rtt_us = r.between(20_000, 24_000);
    abi::thalweg_sample {
        bytes: segs * 1448,
        duration_us: rounds * rtt_us * r.between(95, 110) / 100 + 1_000 * retrans,
        srtt_us: rtt_us as u32,
        min_rtt_us: r.between(19_500, rtt_us) as u32,
        segs_out: (segs + retrans) as u32,
        retrans: retrans as u32,
        steady_segs: (segs + retrans) as u32,
        steady_retrans: retrans as u32,
        flags: abi::THALWEG_SAMPLE_BUSY_TIME as u16,
        end: r.pick(&[FIN_LOCAL, FIN_REMOTE, RESET]) as u16,
        ..Default::default()
    }
}

fn deep(r: &mut Random, arm: u32) -> abi::thalweg_sample {
    transfer(r, arm, 1)
}

/// A buffer that windows above 20 segments overflow.
fn shallow(r: &mut Random, arm: u32) -> abi::thalweg_sample {
    transfer(r, arm, if arm > 5 { 200 } else { 1 })
}

/// A buffer that all larger windows overflow.
fn tiny(r: &mut Random, arm: u32) -> abi::thalweg_sample {
    transfer(r, arm, if arm > 0 { 300 } else { 5 })
}

/// Losses that hardly depend on the window.
fn lossy(r: &mut Random, arm: u32) -> abi::thalweg_sample {
    transfer(r, arm, 40 + 3 * u64::from(arm))
}

/// Losses of all transfers, of larger windows by a little more than they may cause.
fn evenly(r: &mut Random, arm: u32) -> abi::thalweg_sample {
    let sample = transfer(r, arm, 0);
    let each_1000 = r.between(10, 30) as u32 + arm.min(5);
    abi::thalweg_sample {
        retrans: sample.segs_out * each_1000 / 1000,
        ..sample
    }
}

/// Larger windows lose a few segments, and the kernel's own none.
fn hardly(r: &mut Random, arm: u32) -> abi::thalweg_sample {
    abi::thalweg_sample {
        retrans: if arm > 0 { r.below(5) as u32 / 3 } else { 0 },
        ..transfer(r, arm, 0)
    }
}

/// A path where larger windows take longer.
fn useless(r: &mut Random, arm: u32) -> abi::thalweg_sample {
    let sample = transfer(r, 0, 0);
    abi::thalweg_sample {
        duration_us: sample.duration_us + 2_000 * u64::from(arm),
        ..sample
    }
}

/// Half of the connections tell nothing.
fn silent(r: &mut Random, arm: u32) -> abi::thalweg_sample {
    let mut sample = transfer(r, arm, 50);
    match r.below(12) {
        0 => sample.segs_out = sample.retrans + r.pick(&[9, 10, 11]),
        1 => sample.bytes = BYTES_MAX + r.below(2),
        2 => sample.min_rtt_us = r.below(2) as u32,
        3 => sample.duration_us = r.below(2),
        4 => sample.end = r.pick(&[TIMEOUT, SWITCH, STRETCH]) as u16,
        5 => sample.retrans = sample.segs_out + r.below(2) as u32,
        _ => {}
    }
    sample
}

/// A transfer of which one field, any but the bytes, is at an end of its range.
fn corners(r: &mut Random, arm: u32) -> abi::thalweg_sample {
    let sample = transfer(r, arm, 50);
    let field = r.between(1, 13);
    at_end(sample, field, r.pick(&[0, 1, u64::MAX]))
}

/// A record of initial windows.
fn window_record(level: Level, [step, scored, step_scored]: [u32; 3]) -> abi::thalweg_host {
    abi::thalweg_host {
        step,
        scored,
        step_scored,
        ..empty_record(level)
    }
}

/// The mask of a set.
fn set_mask(set: &[u32]) -> u32 {
    let arms = set
        .iter()
        .map(|&segments| window::window_arm(segments).expect("a window"));
    arms.fold(0, |mask, arm| mask | 1 << arm)
}

/// Draws the steps of a family.
pub fn run(plan: &Plan, comparison: &mut Comparison) {
    let mut r = Random::new(plan.name, comparison.seed);
    let mut wide = window_record(Level::WindowNamespace, plan.begun[0]);
    let mut narrows = [window_record(Level::WindowPrefix, plan.begun[1]); NARROW];
    let mut now_ns = 1_000 * SECOND_NS;
    for step in 0..plan.steps {
        comparison.step = step;
        let place = |count: usize| step * count / plan.steps;
        let narrow = &mut narrows[place(NARROW)];
        now_ns += r.below(plan.elapse * SECOND_NS);
        let connects = Request {
            params: plan.params,
            worth: worth(plan.worth),
            system_arm: window::OWN as u32,
            allowed: set_mask(plan.sets[place(plan.sets.len())]),
            random: [r.u32() | r.pick(&[0, 0, 0xf000]), 0, 0],
            now_ns,
            ..Request::default()
        };
        let decided = decide(comparison, [narrow, &mut wide], connects);
        // Some were decided before a step, or have the window of another record.
        let arm = match r.below(12) {
            0 => r.below(window::COUNT as u64) as u32,
            _ if !plan.arms.is_empty() => r.pick(plan.arms),
            _ => decided,
        };
        now_ns += r.below(SECOND_NS);
        let ends = Request {
            arm,
            now_ns,
            sample: plan.samples[place(plan.samples.len())](&mut r, arm),
            ..connects
        };
        measure(comparison, narrow, &mut wide, ends);
    }
}

/// Decides the window of a connection: the narrowest record that knows, or else the kernel.
fn decide(
    comparison: &mut Comparison,
    records: [&mut abi::thalweg_host; 2],
    request: Request,
) -> u32 {
    let mut decider = None;
    for record in records {
        let asked = ask(comparison, raw::VECTOR_KNOWS, record, request);
        if asked.outputs[0] == 1 && decider.is_none() {
            decider = Some(record);
        }
    }
    let Some(decider) = decider else {
        return window::OWN as u32;
    };
    let allowed = ask(comparison, raw::VECTOR_WINDOW_MASK, decider, request).outputs[0] as u32;
    let request = Request { allowed, ..request };
    ask(comparison, raw::VECTOR_CONNECT, decider, request).outputs[0] as u32
}

/// Measures a connection; both records are told.
fn measure(
    comparison: &mut Comparison,
    narrow: &mut abi::thalweg_host,
    wide: &mut abi::thalweg_host,
    request: Request,
) {
    let told = ask(comparison, raw::VECTOR_WINDOW_REPORT, narrow, request);
    if told.outputs[0] == 0 {
        return;
    }
    for record in [&mut *wide, &mut *narrow] {
        ask(comparison, raw::VECTOR_SCORE_GROUP, record, told);
        ask(comparison, raw::VECTOR_WINDOW_STEP, record, told);
    }
    let wider = Request {
        wider: *wide,
        ..told
    };
    ask(comparison, raw::VECTOR_ADOPT, narrow, wider);
    ask(comparison, raw::VECTOR_WINDOW_START, narrow, wider);
}
