//! Statistics of a mode. Each is defined here once, for tables, page, `results.json` and
//! expectations.

use crate::figure::Better::{Higher, Lower};
use crate::figure::Unit::{BitsPerSecond, Microseconds, Number, Share};
use crate::figure::{Better, Unit};

thalweg_report::statistics! {
    /// A figure computed from a mode's connections.
    Statistic: (&'static str, Unit, Better);
    Median, "median", ("median goodput", BitsPerSecond, Higher),
        "median goodput of all connections";
    MedianLastHalf, "median-last-half", ("median goodput of the last half", BitsPerSecond, Higher),
        "median goodput of the last half of the rounds; compared with the same rounds of the \
         reference";
    Mean, "mean", ("mean goodput", BitsPerSecond, Higher),
        "mean goodput of all connections: it includes what learning costs";
    LowerQuartile, "lower-quartile", ("lower quartile of goodput", BitsPerSecond, Higher),
        "goodput that three quarters of the connections reach";
    LowerQuartileLastHalf, "lower-quartile-last-half",
        ("lower quartile of goodput of the last half", BitsPerSecond, Higher),
        "the same of the last half of the rounds; compared with the same rounds of the reference";
    Total, "total", ("goodput of a round's flows together", BitsPerSecond, Higher),
        "what the flows of a round carry together within its time; median over the rounds \
         (competing, incast)";
    ConvergedShare, "converged-share", ("share of the most frequent arm in the last half", Share, Higher),
        "share of the last half's connections on the arm most frequent there";
    ArmShare, "arm-share", ("share of an arm in the last half", Share, Higher),
        "share of the last half's connections on the arm that `arm` names";
    Convergence, "convergence", ("connections until converged", Number, Lower),
        "number of connections until the median of the last 5 is 90 % of the best fixed arm's \
         median; at least 5";
    Recovery, "recovery", ("connections until converged after the change", Number, Lower),
        "convergence counted from the last change of the path, against the arm best after it";
    Regret, "regret", ("regret", Number, Lower),
        "sum over the connections of 1 − goodput / the best fixed arm's median: how many of its \
         connections were lost";
    RegretPerConnection, "regret-per-connection", ("regret per connection", Number, Lower),
        "regret divided by the number of connections";
    RetransmissionShare, "retransmission-share", ("share of segments retransmitted", Share, Lower),
        "segments retransmitted, of all data segments of all connections";
    RttMedian, "rtt-median", ("median RTT", Microseconds, Lower),
        "median of single round-trip times of data, by TCP timestamps";
    RttP95, "rtt-p95", ("95th percentile of RTT", Microseconds, Lower),
        "95th percentile of those times";
    RttP99, "rtt-p99", ("99th percentile of RTT", Microseconds, Lower),
        "99th percentile of those times";
    SrttMedian, "srtt-median", ("median smoothed RTT", Microseconds, Lower),
        "median of the samples of smoothed round-trip time";
    SrttP95, "srtt-p95", ("95th percentile of smoothed RTT", Microseconds, Lower),
        "95th percentile of those samples";
    SrttP99, "srtt-p99", ("99th percentile of smoothed RTT", Microseconds, Lower),
        "99th percentile of those samples";
    QueueDelayMedian, "queue-delay-median", ("median queue delay", Microseconds, Lower),
        "median of smoothed round-trip time less the scenario's least round-trip time";
    QueueDelayP95, "queue-delay-p95", ("95th percentile of queue delay", Microseconds, Lower),
        "95th percentile of the same";
    FctMean, "fct-mean", ("mean flow-completion time", Microseconds, Lower),
        "mean time of flows of known size, from the call of connect until the receiver has the \
         last byte; a failed flow counts as infinite";
    FctMedian, "fct-median", ("median flow-completion time", Microseconds, Lower),
        "median time of flows of known size, from the call of connect until the receiver has the \
         last byte";
    FctP95, "fct-p95", ("95th percentile of flow-completion time", Microseconds, Lower),
        "95th percentile of the same; a failed flow counts as infinite";
    FctP99, "fct-p99", ("99th percentile of flow-completion time", Microseconds, Lower),
        "99th percentile of the same";
    FctMedianLastHalf, "fct-median-last-half",
        ("median flow-completion time of the last half", Microseconds, Lower),
        "the median of the last half of the rounds; compared with the same rounds of the reference";
    FctP99LastHalf, "fct-p99-last-half",
        ("99th percentile of flow-completion time of the last half", Microseconds, Lower),
        "the same of the last half of the rounds; compared with the same rounds of the reference";
    PageMean, "page-mean", ("mean time of a page", Microseconds, Lower),
        "mean time from the moment at which a page is asked for until the receiver has all of its \
         objects; a page with a failed one counts as infinite (web)";
    PageMedian, "page-median", ("median time of a page", Microseconds, Lower),
        "median of the same";
    PageP95, "page-p95", ("95th percentile of the time of a page", Microseconds, Lower),
        "95th percentile of the same";
    PageP99, "page-p99", ("99th percentile of the time of a page", Microseconds, Lower),
        "99th percentile of the same";
    Share, "share", ("share of the bottleneck", Share, Higher),
        "the newcomers' part of all goodput of a round, median over the rounds; not measured where \
         nothing arrived in a round (competing)";
    Jain, "jain", ("Jain's fairness index", Number, Higher),
        "Jain's index of the goodputs of all flows of a round, 1/n to 1, 0 where nothing arrived; \
         median over the rounds (competing)";
    Fairness, "fairness", ("least goodput over the greatest", Share, Higher),
        "the least goodput of a round's flows over the greatest; median over the rounds of \
         several flows at a time";
    FairnessLastHalf, "fairness-last-half", ("the same in the last half", Share, Higher),
        "the same of the last half of the rounds; compared with the same rounds of the reference";
    Harm, "harm", ("harm to the incumbents", Number, Lower),
        "1 − the incumbents' mean goodput, median over the rounds, / the same in the mode in \
         which the newcomers run the incumbents' congestion control; negative where they gain \
         (competing)";
    Loss, "loss", ("share of packets lost on the link", Share, Lower),
        "share of the packets of the data direction that the path's loss dropped, without those \
         that its queue dropped";
    QueueLoss, "queue-loss", ("share of packets dropped by the queue", Share, Lower),
        "share of the other packets that the bottleneck's queue dropped";
    Failures, "failures", ("number of failed connections", Number, Lower),
        "number of failed connections";
    OfBestPerHost, "of-best-per-host", ("goodput to each host's best arm", Number, Higher),
        "median goodput of the last half towards each host, to that host's best fixed arm; mean \
         over the hosts (several hosts)";
    Gain, "gain", ("change of time per transfer by gain", Number, Lower),
        "by how much treated transfers take more time than those of the control group, as the \
         agent's `thalweg gain` says: -0.3 is 30 % less (mode gain)";
    GainLow, "gain-low", ("lower end of its interval", Number, Lower),
        "lower end of its interval; not reached without one";
    GainHigh, "gain-high", ("upper end of its interval", Number, Lower),
        "upper end of its interval; not reached without one";
    GainMisses, "gain-misses", ("intervals of gain that miss what is measured directly", Number, Lower),
        "rows of `thalweg gain` whose interval does not hold the difference between modes thalweg \
         and that of the default; not reached without an interval for the time";
}

impl Statistic {
    /// Name for a reader.
    pub fn reader_name(self) -> &'static str {
        self.definition().0
    }

    /// Unit of the statistic.
    pub fn unit(self) -> Unit {
        self.definition().1
    }

    /// Which direction is an improvement.
    pub fn better(self) -> Better {
        self.definition().2
    }

    /// Whether a ratio to the same statistic of a reference makes sense.
    pub fn is_comparable(self) -> bool {
        matches!(self.unit(), Unit::BitsPerSecond | Unit::Microseconds)
            || matches!(
                self,
                Self::OfBestPerHost
                    | Self::RetransmissionShare
                    | Self::Fairness
                    | Self::FairnessLastHalf
                    | Self::Share
            )
    }

    /// Scope in a scenario with several hosts.
    pub fn scope(self) -> Scope {
        match self {
            Self::OfBestPerHost => Scope::Hosts,
            Self::RetransmissionShare | Self::Loss | Self::QueueLoss | Self::Failures => Scope::Any,
            // The same flows in each mode, so that those of several paths may be averaged.
            Self::FctMean | Self::FctMedian | Self::FctP95 | Self::FctP99 => Scope::Any,
            Self::FctP99LastHalf => Scope::Any,
            Self::PageMean | Self::PageMedian | Self::PageP95 | Self::PageP99 => Scope::Any,
            Self::Gain | Self::GainLow | Self::GainHigh | Self::GainMisses => Scope::Run,
            _ => Scope::Path,
        }
    }

    /// Whether a value may lie below zero.
    pub fn may_be_negative(self) -> bool {
        matches!(
            self,
            Self::Regret
                | Self::RegretPerConnection
                | Self::Harm
                | Self::Gain
                | Self::GainLow
                | Self::GainHigh
        )
    }

    /// Whether it concerns only some connections, so that a class can be named.
    pub fn takes_class(self) -> bool {
        !matches!(
            self,
            Self::Share
                | Self::Jain
                | Self::Harm
                | Self::Loss
                | Self::QueueLoss
                | Self::ArmShare
                | Self::OfBestPerHost
                | Self::PageMean
                | Self::PageMedian
                | Self::PageP95
                | Self::PageP99
                | Self::Gain
                | Self::GainLow
                | Self::GainHigh
                | Self::GainMisses
        )
    }
}

/// The scope of a statistic in a scenario with several hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One host: paths must not be mixed.
    Path,
    /// One host or all together.
    Any,
    /// Only all together, where there are several.
    Hosts,
    /// Only all together, or the only one.
    Run,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_files_and_none_is_missing_or_twice() {
        let mut keys = std::collections::BTreeSet::new();
        for statistic in Statistic::ALL {
            assert_eq!(serde_json::to_value(statistic).unwrap(), statistic.key());
            assert!(keys.insert(statistic.key()), "{}", statistic.key());
            assert!(!statistic.description().is_empty() && !statistic.reader_name().is_empty());
        }
        // The reference page names each in its section of statistics.
        let page = include_str!("../../../docs/reference/lab.md");
        let (_, section) = page.split_once("\n### Statistics\n").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        for key in keys {
            assert!(section.contains(&format!("`{key}`")), "{key}");
        }
    }
}
