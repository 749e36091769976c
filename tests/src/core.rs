//! The Rust reference.

use thalweg_bpf_types::raw as abi;
use thalweg_bpf_types::{host_from_raw, host_to_raw};
use thalweg_learner as core;
use thalweg_learner::{
    Decision, End, Flow, Host, HostKey, Level, Long, Mode, ONE_Q16, Outcome, Params, Reason,
    Sample, window,
};

use crate::{Implementation, Request, raw};

/// `thalweg_learner`.
#[derive(Default)]
pub struct Core;

impl Implementation for Core {
    fn name(&self) -> &'static str {
        "thalweg_learner"
    }

    fn answer(&mut self, request: &mut Request) -> Result<(), String> {
        let mut host = host_from_raw(&request.host);
        let outputs = match request.function {
            raw::VECTOR_CONNECT => connect(&mut host, request)?,
            raw::VECTOR_SCORE => score(&mut host, request)?,
            raw::VECTOR_CHANGE => change(&host, request)?,
            raw::VECTOR_REVIEW => review(&mut host, request)?,
            raw::VECTOR_SCORE_GROUP => score_group(&mut host, request)?,
            raw::VECTOR_ADOPT => {
                let wider = host_from_raw(&request.wider);
                let worth = &request.worth.arms_q16;
                core::adopt_wider(&mut host, &wider, arm(request.system_arm), worth);
                if core::can_decide(&wider, arm(request.system_arm)) {
                    request.host.used = request.host.used.max(request.wider.used);
                }
                [0; 3]
            }
            raw::VECTOR_INHERIT => {
                let group = host_from_raw(&request.wider);
                let (own, system) = (measured(request)?, arm(request.system_arm));
                core::inherit_group(&mut host, &group, own, system, &request.worth.arms_q16);
                [0; 3]
            }
            raw::VECTOR_WINDOW_REPORT => [window_report(request)?, 0, 0],
            raw::VECTOR_WINDOW_MASK => {
                let windows = narrow(request.allowed.into())?;
                [window::permitted_windows(&host, windows).into(), 0, 0]
            }
            raw::VECTOR_WINDOW_STEP => {
                window::step_window(&mut host, narrow(request.allowed.into())?);
                [0; 3]
            }
            raw::VECTOR_WINDOW_START => {
                let wider = host_from_raw(&request.wider);
                if core::can_decide(&wider, arm(request.system_arm)) {
                    window::start_from_wider(&mut host, &wider);
                }
                [0; 3]
            }
            _ => [unit(&mut host, request)?, 0, 0],
        };
        request.outputs = outputs;
        // Vectors have no keys.
        let written = host_to_raw(&HostKey::from(std::net::Ipv4Addr::UNSPECIFIED), &host);
        request.host = abi::thalweg_host {
            tag: request.host.tag,
            tag_tail: request.host.tag_tail,
            used: written.used.max(request.host.used),
            ..written
        };
        Ok(())
    }
}

fn connect(host: &mut Host, request: &mut Request) -> Result<[u64; 3], String> {
    host.connections = host.connections.saturating_add(1);
    if host.level.is_group() {
        return connect_by_group(host, request);
    }
    let (system_arm, allowed) = (arm(request.system_arm), narrow(request.allowed.into())?);
    let params = params(&request.params)?;
    let (random, now_ns) = (request.random, request.now_ns);
    let decision = core::decide(host, system_arm, allowed, &params, random, now_ns);
    if decision.reason != Reason::WarmUp {
        let shares = core::propensities_q16(host, system_arm, allowed, &params, now_ns);
        request.shares_q16 = shares.map(sixteen_bits);
    }
    host.count_decision(&decision);
    if decision.reason.is_trial() {
        host.begin_trial(request.now_ns);
    }
    Ok(outputs(&decision))
}

fn connect_by_group(host: &mut Host, request: &mut Request) -> Result<[u64; 3], String> {
    let (system_arm, allowed) = (arm(request.system_arm), narrow(request.allowed.into())?);
    let params = params(&request.params)?;
    let (random, now_ns) = (request.random[0], request.now_ns);
    core::halve_evidence(host, &params, now_ns);
    let shares = core::propensities_q16(host, system_arm, allowed, &params, now_ns);
    let decision = core::decide_group(host, system_arm, allowed, &params, random, now_ns);
    let decision = decision.ok_or("the group knows too little")?;
    if decision.reason != Reason::WarmUp {
        request.shares_q16 = shares.map(sixteen_bits);
    }
    Ok(outputs(&decision))
}

/// A probability in 16 bits: 65535 is 1.
fn sixteen_bits(share_q16: u32) -> u16 {
    share_q16.min(u32::from(u16::MAX)) as u16
}

fn review(host: &mut Host, request: &mut Request) -> Result<[u64; 3], String> {
    let long = Long {
        arm: arm(request.arm),
        system_arm: arm(request.system_arm),
        trial: request.trial != 0,
        decided_ns: request.inputs[0],
    };
    let (allowed, params) = (narrow(request.allowed.into())?, params(&request.params)?);
    let (random, now_ns) = (request.random[0], request.now_ns);
    let Some(found) = core::review_connection(host, &long, allowed, &params, random, now_ns) else {
        return Ok([number(None), 0, 0]);
    };
    request.shares_q16 = found.shares_q16.map(sixteen_bits);
    host.count_decision(&found.decision);
    if found.trial {
        host.begin_trial(now_ns);
    }
    Ok(outputs(&found.decision))
}

fn outputs(decision: &Decision) -> [u64; 3] {
    let reason = match decision.reason {
        Reason::WarmUp => abi::THALWEG_REASON_WARM_UP,
        Reason::Greedy => abi::THALWEG_REASON_GREEDY,
        Reason::Explore => abi::THALWEG_REASON_EXPLORE,
        Reason::Untried => abi::THALWEG_REASON_UNTRIED,
        Reason::Loss => abi::THALWEG_REASON_LOSS,
        Reason::Withdrawn => abi::THALWEG_REASON_WITHDRAWN,
        Reason::Anew => abi::THALWEG_REASON_ANEW,
        Reason::Returned => abi::THALWEG_REASON_RETURNED,
    };
    let propensity_q16 = decision.propensity_q16.into();
    [number(decision.arm), reason.into(), propensity_q16]
}

fn score(host: &mut Host, request: &mut Request) -> Result<[u64; 3], String> {
    if request.trial != 0 {
        host.end_trial();
    }
    let (arm_index, system_arm) = (measured(request)?, arm(request.system_arm));
    let (sample, params) = (sample(&request.sample)?, params(&request.params)?);
    let before = host.clone();
    let verdict = core::score(
        host,
        arm_index,
        system_arm,
        &sample,
        &params,
        request.now_ns,
    );
    let (cost, weight) = (verdict.cost, verdict.weight_q16);
    let told = core::group_report(&before, host, arm_index, system_arm, &sample, cost, weight);
    request.report = told.as_ref().map_or_else(Default::default, raw_report);
    Ok([
        outcome(verdict.outcome),
        verdict.weight_q16.into(),
        verdict.cost,
    ])
}

fn raw_report(told: &core::Report) -> raw::thalweg_report {
    raw::thalweg_report {
        cost_q16: told.cost_q16,
        log_rate_q16: told.log_rate_q16,
        weight_q16: told.weight_q16,
        system_q16: told.system_q16,
        system_log_rate_q16: told.system_log_rate_q16,
        queue_q16: told.queue_q16,
    }
}

/// 1 if the sample tells something of its window.
fn window_report(request: &mut Request) -> Result<u64, String> {
    let Some((told, counts)) = window::window_report(&sample(&request.sample)?) else {
        return Ok(0);
    };
    request.report = raw_report(&told);
    request.sample.steady_segs = counts.steady_segs;
    request.sample.steady_retrans = counts.steady_retrans;
    Ok(1)
}

fn measured(request: &Request) -> Result<usize, String> {
    arm(request.arm).ok_or_else(|| "no arm was measured".to_owned())
}

fn score_group(group: &mut Host, request: &Request) -> Result<[u64; 3], String> {
    let told = &request.report;
    let report = core::Report {
        cost_q16: told.cost_q16,
        log_rate_q16: told.log_rate_q16,
        weight_q16: told.weight_q16,
        system_q16: told.system_q16,
        system_log_rate_q16: told.system_log_rate_q16,
        queue_q16: told.queue_q16,
    };
    core::score_group(
        group,
        measured(request)?,
        arm(request.system_arm),
        &report,
        &sample(&request.sample)?,
        &params(&request.params)?,
        request.now_ns,
    );
    Ok([0; 3])
}

fn change(host: &Host, request: &Request) -> Result<[u64; 3], String> {
    let flow = Flow {
        arm: arm(request.arm),
        system_arm: arm(request.system_arm),
        segs: request.segs,
        retrans: request.retrans,
    };
    let allowed = narrow(request.allowed.into())?;
    let params = params(&request.params)?;
    let decision = core::change_due(host, &flow, allowed, &params, request.random[0]);
    Ok(decision.map_or([number(None), 0, 0], |decision| outputs(&decision)))
}

fn unit(host: &mut Host, request: &Request) -> Result<u64, String> {
    let inputs = request.inputs;
    let params = params(&request.params)?;
    Ok(match request.function {
        raw::VECTOR_LOG2 => core::log2_q16(inputs[0]).into(),
        raw::VECTOR_RATE => core::rate_bytes_per_second(inputs[0], inputs[1]),
        raw::VECTOR_COST => core::cost_q16(inputs[0], narrow(inputs[1])?, &params),
        raw::VECTOR_CLASSIC_COST => core::classic_cost(host, narrow(inputs[0])?, inputs[1]),
        raw::VECTOR_CLASSIC_UPDATE => core::classic_update(inputs[0], inputs[1]),
        raw::VECTOR_EXPLORE => explore(inputs, params)?,
        raw::VECTOR_JUDGED => core::judged_q16(
            host,
            narrow::<u16>(inputs[0])?.into(),
            arm(narrow(inputs[1])?),
        ),
        raw::VECTOR_WEIGHT => sample(&request.sample)?.weight_q16(&params).into(),
        raw::VECTOR_ASSESS => outcome(sample(&request.sample)?.assess_sample(&params)),
        raw::VECTOR_FORGET => {
            core::halve_evidence(host, &params, inputs[0]);
            0
        }
        raw::VECTOR_STRETCH => {
            let [age_ns, bytes, count, _] = inputs;
            core::is_due(age_ns, bytes, narrow(count)?, &params).into()
        }
        raw::VECTOR_KNOWS => {
            core::halve_evidence(host, &params, request.now_ns);
            core::can_decide(host, arm(request.system_arm)).into()
        }
        raw::VECTOR_TAG => tag(inputs)?,
        raw::VECTOR_CONTROL => {
            let group = core::Control {
                share_q16: request.params.control_share_q16,
                permanent_q16: request.params.control_permanent_q16,
                salt: request.params.control_salt,
            };
            group.contains_cluster(inputs[0], inputs[1]).into()
        }
        raw::VECTOR_DRAWN => {
            let group = core::Control {
                salt: request.params.control_salt,
                ..core::Control::default()
            };
            let arm = group.trial_arm(inputs[0], narrow(inputs[2])?, inputs[1]);
            number(arm)
        }
        other => return Err(format!("unknown function {other}")),
    })
}

fn tag([netns, prefix_len, first, second]: [u64; 4]) -> Result<u64, String> {
    let mut addr = [0; 16];
    addr[..8].copy_from_slice(&first.to_ne_bytes());
    addr[8..].copy_from_slice(&second.to_ne_bytes());
    let key = HostKey {
        netns,
        addr,
        prefix_len: prefix_len as u32,
        level: Level::from_number(narrow(prefix_len >> 32)?).ok_or("no such level")?,
    };
    Ok(key.tag())
}

/// The share of a measured arm, from its state in a host record. Arm 0 is the best; arm 1 is judged
/// worse by the gap; the others were never measured. The system's arm is arm 0, or, where no credit
/// pays for the gap, arm 1, which needs none.
fn explore(inputs: [u64; 4], params: Params) -> Result<u64, String> {
    let [gap_q16, weight_q16, arms, gap_scale] = inputs;
    if weight_q16 == 0 || !(2..=16).contains(&arms) {
        return Err("a measured arm beside the best has weight and at least two arms".to_owned());
    }
    let mut host = Host {
        // So many that the system's arm has no share for its own sake.
        scored: u32::MAX,
        credit_q16: u32::MAX,
        ..Host::default()
    };
    let system = usize::from(gap_q16 > host.credit_q16.into());
    host.arms[0].weight_q16 = ONE_Q16;
    host.arms[1].weight_q16 = narrow(weight_q16)?;
    let [first, second] = [0, 1].map(|i| core::judged_q16(&host, i, Some(system)));
    host.arms[0].value = second;
    host.arms[1].value = gap_q16 + first;
    let params = Params {
        mode: Mode::Thalweg,
        warm_up: 0,
        gap_scale: narrow(gap_scale)?,
        ..params
    };
    let allowed = u16::MAX >> (16 - arms);
    Ok(core::propensities_q16(&host, Some(system), allowed, &params, 0)[1].into())
}

fn params(raw: &abi::thalweg_params) -> Result<Params, String> {
    Ok(Params {
        mode: match raw.mode {
            abi::THALWEG_MODE_CLASSIC => Mode::Classic,
            abi::THALWEG_MODE_THALWEG => Mode::Thalweg,
            other => return Err(format!("no mode {other}")),
        },
        warm_up: raw.warm_up,
        gap_scale: raw.gap_scale,
        weight_max_q16: raw.weight_max_q16,
        idle_shift: raw.idle_shift,
        half_life_ns: raw.half_life_ns,
        latency_weight_q16: raw.latency_weight_q16,
        latency_guard_us: raw.latency_guard_us,
        score_min_bytes: raw.score_min_bytes,
        score_full_bytes: raw.score_full_bytes,
        loss_shift: raw.loss_shift,
        loss_min_segs: raw.loss_min_segs,
        rescue_arm: arm(raw.rescue_arm),
        stretch_ns: raw.stretch_ns,
    })
}

fn sample(raw: &abi::thalweg_sample) -> Result<Sample, String> {
    Ok(Sample {
        bytes: raw.bytes,
        duration_us: raw.duration_us,
        rate_delivered_bytes: raw.rate_delivered_bytes,
        rate_interval_us: raw.rate_interval_us,
        srtt_us: raw.srtt_us,
        min_rtt_us: raw.min_rtt_us,
        segs_out: raw.segs_out,
        retrans: raw.retrans,
        steady_segs: raw.steady_segs,
        steady_retrans: raw.steady_retrans,
        loss_srtt_us: raw.loss_srtt_us,
        limited_us: u64::from(raw.receiver_us) + u64::from(raw.buffer_us),
        busy_time: u32::from(raw.flags) & abi::THALWEG_SAMPLE_BUSY_TIME != 0,
        end: match u32::from(raw.end) {
            abi::THALWEG_END_FIN_LOCAL => End::FinLocal,
            abi::THALWEG_END_FIN_REMOTE => End::FinRemote,
            abi::THALWEG_END_RESET => End::Reset,
            abi::THALWEG_END_TIMEOUT => End::Timeout,
            abi::THALWEG_END_SWITCH => End::Switch,
            abi::THALWEG_END_STRETCH => End::Stretch,
            other => return Err(format!("no end {other}")),
        },
    })
}

fn outcome(outcome: Outcome) -> u64 {
    u64::from(match outcome {
        Outcome::Scored => abi::THALWEG_SCORED,
        Outcome::Small => abi::THALWEG_SKIPPED_SMALL,
        Outcome::AppLimited => abi::THALWEG_SKIPPED_APP_LIMITED,
        Outcome::Timeout => abi::THALWEG_SKIPPED_TIMEOUT,
    })
}

/// Index of an arm; `None` for THALWEG_NO_ARM.
fn arm(index: u32) -> Option<usize> {
    (index < abi::THALWEG_MAX_ARMS).then_some(index as usize)
}

fn number(arm: Option<usize>) -> u64 {
    arm.map_or(abi::THALWEG_NO_ARM.into(), |index| index as u64)
}

fn narrow<T: TryFrom<u64>>(value: u64) -> Result<T, String> {
    T::try_from(value).map_err(|_| format!("{value} does not fit its field"))
}
