//! Records of initial windows in the form of the API.

use thalweg_control::system;
use thalweg_learner::window::{self, OWN, arm_segments};
use thalweg_learner::{
    Host, HostKey, MAX_ARMS, ONE_Q16, can_decide, halve_evidence, propensities_q16,
};

use super::view::{WindowArm, WindowNetwork};
use crate::events::level;
use crate::present::{Presenter, network_arm};

/// View of a network's record; `allowed` is the operator's mask.
pub fn presented_network(
    presenter: &Presenter<'_>,
    key: &HostKey,
    record: &Host,
    allowed: u16,
) -> WindowNetwork {
    let now_ns = system::monotonic_ns();
    let mut next = record.clone();
    halve_evidence(&mut next, presenter.params, now_ns);
    let own = Some(OWN);
    let decides = can_decide(&next, own);
    let mut shares = [0; MAX_ARMS];
    shares[OWN] = ONE_Q16;
    if decides {
        let permitted = window::permitted_windows(&next, allowed);
        shares = propensities_q16(&next, own, permitted, presenter.params, now_ns);
    }
    let best = (0..window::COUNT).max_by_key(|&arm| shares[arm]);
    let known = (0..window::COUNT).filter(|&arm| {
        let state = &record.arms[arm];
        state.chosen > 0 || state.scored > 0 || state.weight_q16 > 0
    });
    WindowNetwork {
        name: presenter.network_name(key),
        level: level(key.level as u32)
            .trim_start_matches("window-")
            .to_string(),
        netns: key.netns,
        container: presenter.containers.get(&key.netns).cloned(),
        decides,
        decided: record.arms.iter().map(|arm| arm.chosen).sum(),
        scored: record.scored,
        idle_s: now_ns.saturating_sub(record.seen_ns) / 1_000_000_000,
        largest: arm_segments(record.step as usize),
        best: arm_segments(best.unwrap_or(OWN)),
        windows: known
            .map(|arm| window_arm(record, arm, shares[arm]))
            .collect(),
    }
}

fn window_arm(record: &Host, arm: usize, share_q16: u32) -> WindowArm {
    let of = network_arm(record, arm, Some(OWN), "", share_q16);
    let state = &record.arms[arm];
    WindowArm {
        segments: arm_segments(arm),
        difference_bits: of.difference_bits,
        error_bits: of.error_bits,
        evidence: of.evidence,
        own_evidence: of.own_evidence,
        retransmitted: f64::from(state.retrans) / f64::from(state.segs.max(1)),
        scored: of.scored,
        count: of.count,
        next_probability: of.next_probability,
    }
}
