//! Responses about the gain and advice.

use serde::{Deserialize, Serialize};

use super::{AdviceLimits, NetworkLimits};

/// `GET /v1/gain`: the learner against its control group, or a rule against flows left alone.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Gain {
    /// The main finding, in a sentence.
    pub summary: String,
    /// Seconds since the comparisons began.
    pub age_s: u64,
    /// Number of ended connections without a place in a cluster: there were too many hosts.
    pub left_out: u64,
    /// Number of events that never reached the agent since the programs were attached.
    pub events_dropped: u64,
    /// The requested groups.
    pub groups: Vec<GainGroup>,
    /// Present reverts.
    pub reverts: Vec<GainRevert>,
    /// Rule that is compared with the flows that it left alone; absent for the learner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<GainRule>,
    /// Effects of the features that are on; none beside a rule.
    #[serde(default)]
    pub features: Vec<FeatureEffect>,
}

/// Effect of a feature's setting on connections to the networks where it is in force, since the agent
/// or its configuration began. Ratios are with the setting against the control group; `None`: too few
/// connections, or the feature does not measure it.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FeatureEffect {
    /// Name of the feature.
    pub feature: String,
    /// Connections with the setting, or reports of their exchanges.
    pub treated: u64,
    /// Connections of the control group, or reports of their exchanges.
    pub control: u64,
    /// Ratio of goodput, bytes by time with data outstanding, of long connections (geometric means).
    pub goodput: Option<EffectRatio>,
    /// Ratio of the time with data outstanding of short connections or exchanges (geometric means).
    pub completion: Option<EffectRatio>,
    /// Ratio of its 99th percentiles.
    pub completion_p99: Option<EffectRatio>,
    /// Ratio of the shares of segments that were sent again.
    pub retransmitted: Option<EffectRatio>,
}

/// Ratio with its interval of 95 %.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
pub struct EffectRatio {
    /// The ratio.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// A policy's rule with a share, as an experiment. In the comparisons, `control` counts the flows
/// that the rule left alone, `treated` those that it took.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct GainRule {
    /// Name of the policy.
    pub policy: String,
    /// Name of the rule.
    pub name: String,
    /// Share of the flows of the rule's match, 0 to 1.
    pub share: f64,
    /// Number of ended flows that the rule took and that count.
    pub taken: u64,
    /// Number of ended flows that the rule left alone.
    pub left: u64,
    /// Number of ended flows that the rule took and that are not compared: the kernel refused one
    /// of its settings, or something replaced one.
    #[serde(default)]
    pub overridden: u64,
}

/// A group of connections in the comparisons of the gain.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct GainGroup {
    /// `all`, `arm`, `prefix` or `port`.
    pub by: String,
    /// Arm, prefix or port; empty for all. Of an arm: hosts that the learner had given it before.
    pub name: String,
    /// Comparisons of the group.
    pub rows: Vec<GainRow>,
}

/// A comparison. Effects are treated less control: below 0 is better.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct GainRow {
    /// `time`, `retransmitted`, `failed` or `rtt`.
    pub measure: String,
    /// Size of the transfers; `None`: all sizes.
    pub size: Option<String>,
    /// `percent`, or `points`: percentage points of a share.
    pub unit: String,
    /// Clusters (hosts × hours) of the control group.
    pub control: u64,
    /// Clusters of treated connections.
    pub treated: u64,
    /// Effect of the treatment; `None`: a group is empty.
    pub effect: Option<f64>,
    /// Lower end of the effect's interval; `None`: too few clusters for one, or all alike.
    pub low: Option<f64>,
    /// Upper end of the effect's interval; `None`: as for the lower end.
    pub high: Option<f64>,
    /// `better`, `worse`, `same` (nothing that matters) or `unknown`.
    pub verdict: String,
    /// Only for the verdict `unknown`: seconds until an effect of 5 % (half a point) would show, if
    /// clusters come as until now. `None`: not to be foreseen.
    pub known_in_s: Option<u64>,
}

/// `GET /v1/advise`: the best arms, and limits of connections.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Advice {
    /// Conclusion for all connections, in words.
    pub summary: String,
    /// Basis of the comparisons: `advice` (trials, and connections that differ by themselves),
    /// `learner` (the learner's choices against its control group), `dry-run` (nothing but limits).
    pub source: String,
    /// System default, which the others are compared with.
    pub system_arm: String,
    /// Share of host-hours with trials; `None` unless the agent gives advice only.
    pub trials: Option<f64>,
    /// Seconds since the comparisons began.
    pub age_s: u64,
    /// Number of ended connections without a place in a cluster: there were too many hosts.
    pub left_out: u64,
    /// Number of events that never reached the agent since the programs were attached.
    pub events_dropped: u64,
    /// Reason that limits are not known; `None`: they are.
    pub limits_untold: Option<String>,
    /// The requested groups.
    pub groups: Vec<AdviceGroup>,
    /// The busiest networks that a buffer or window limits, where all connections were requested.
    #[serde(default)]
    pub networks: Vec<NetworkLimits>,
    /// Settings of features that are enabled and set nothing, where all connections were requested.
    #[serde(default)]
    pub features: Vec<FeatureAdvice>,
}

/// Settings that a feature would make: the agent gives advice only, or runs dry.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct FeatureAdvice {
    /// Name of the feature.
    pub feature: String,
    /// Lines of the configuration that have the agent set them.
    pub lines: Vec<String>,
    /// The settings, by name.
    pub settings: Vec<AdvisedSetting>,
}

/// Setting that a feature would make.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct AdvisedSetting {
    /// Addresses of the remote network, or the network namespace cookie.
    pub name: String,
    /// Network namespace cookie.
    pub netns: u64,
    /// Pod or container that has this network namespace, if its runtime says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Setting, in words.
    pub setting: String,
    /// Observation that calls for it, in words.
    pub reason: String,
}

/// A group of connections in the comparisons of advice.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct AdviceGroup {
    /// `all`, `arm`, `prefix` or `port`.
    pub by: String,
    /// Arm, prefix or port; empty for all. Of an arm: hosts that the learner had given it before.
    pub name: String,
    /// `take` (the best arm), `keep` (the system's), `same` (it does not matter), `unknown` or
    /// `nothing` (to compare).
    pub verdict: String,
    /// Arm to take, where there is one; `None` also for any that the learner chooses.
    pub best: Option<String>,
    /// Conclusion for the group, in words.
    pub words: String,
    /// Only for the verdict `unknown`: seconds until a difference of 5 % would show, if clusters
    /// come as until now. `None`: not to be foreseen.
    pub known_in_s: Option<u64>,
    /// Choices that were compared with the system's arm.
    pub choices: Vec<AdviceChoice>,
    /// Limits of the group's connections; `None`: not known.
    pub limits: Option<AdviceLimits>,
}

/// A choice that was compared with the system's arm.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct AdviceChoice {
    /// `trial` (an experiment), `learner` (its other choices), or `itself`: the application, a route or
    /// a policy chose, so that different applications are compared, within hosts and hours.
    pub by: String,
    /// Arm of the choice; `None`: any that the learner chose.
    pub arm: Option<String>,
    /// `better` (less time), `price` (less time at a price that forbids it), `worse`, `same` or
    /// `unknown`.
    pub verdict: String,
    /// Finding, in words.
    pub words: String,
    /// Seconds until a difference of 5 % would show, as [`AdviceGroup::known_in_s`].
    pub known_in_s: Option<u64>,
    /// Whether the arm's trials have ended, because it was worse.
    pub ended: bool,
    /// The four measures. `control` counts clusters of the system's arm, `treated` those of the
    /// choice; for `itself` both count the pairs of clusters.
    pub rows: Vec<GainRow>,
}

/// A choice that was reverted because it was worse.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct GainRevert {
    /// Arm that no connection gets; `None`: nothing is explored, or no flow gets the rule.
    pub arm: Option<String>,
    /// Finding that led to the revert.
    pub why: String,
    /// Seconds since the revert began.
    pub age_s: u64,
    /// Seconds until the revert ends by itself.
    pub left_s: u64,
}
