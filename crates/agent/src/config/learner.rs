//! Sections of the learner.

use std::path::PathBuf;
use std::time::Duration;

use thalweg_learner::{Control, Mode, ONE_Q16, Params};
use thalweg_policy::Prefix;
use thalweg_units::grammar::size_text;

use super::reader::{DAY, PATH_MAX, Section};

/// Most arms of one agent.
const ARMS_MAX: usize = thalweg_learner::MAX_ARMS;
/// Largest number of prefixes for arms that need ECN.
const ECN_PREFIXES_MAX: usize = thalweg_bpf_types::raw::THALWEG_ECN_PREFIXES as usize;

/// `[arms]`: the congestion controls to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arms {
    /// `allow`: names; `None` = `auto`: the kernel's offer at the agent's start, names elsewhere in
    /// the configuration, and those that `thalweg cc load` has loaded.
    pub allow: Option<Vec<String>>,
    /// `deny`: names never chosen, whatever `allow` says.
    pub deny: Vec<String>,
    /// `load`: kernel modules `tcp_NAME` to load at start, if the kernel has them.
    pub load: Vec<String>,
    /// `needs_ecn`: names chosen only within `ecn_prefixes`, for connections that negotiated
    /// ECN.
    pub needs_ecn: Vec<String>,
    /// `ecn_prefixes`: remote prefixes, of datacenters, where `needs_ecn` arms may be chosen.
    pub ecn_prefixes: Vec<Prefix>,
}

impl Arms {
    /// Whether a congestion control that the kernel offers may be chosen.
    pub fn permits(&self, name: &str) -> bool {
        let named = |names: &[String]| names.iter().any(|other| other == name);
        self.allow.as_deref().is_none_or(named) && !named(&self.deny)
    }

    /// Whether the configuration names a congestion control as one to be used.
    pub fn names(&self, name: &str) -> bool {
        let allowed = self.allow.iter().flatten();
        let mut named = allowed.chain(&self.load).chain(&self.needs_ecn);
        named.any(|other| other == name)
    }
}

/// `[hosts]`: the records of remote hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// `max`: largest number of records; beyond it those measured once go first ([`crate::eviction`]).
    pub max: u32,
    /// `ipv4_prefix`: bits of an IPv4 address that distinguish hosts.
    pub ipv4_prefix: u32,
    /// `ipv6_prefix`: bits of an IPv6 address that distinguish hosts.
    pub ipv6_prefix: u32,
    /// `nat64`: prefixes of NAT64 beside the well-known one; `None` = `auto`, those of the resolver.
    pub nat64: Option<Vec<Prefix>>,
    /// `user_namespaces`: learn also for network namespaces that ordinary users created.
    pub user_namespaces: bool,
}

/// `[networks]`: records of a network decide about its new hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Networks {
    /// `enabled`: networks learn and decide.
    pub enabled: bool,
    /// `ipv4_prefix`: bits of an IPv4 address that the hosts of a network share.
    pub ipv4_prefix: u32,
    /// `ipv6_prefix`: bits of an IPv6 address that the hosts of a network share.
    pub ipv6_prefix: u32,
    /// `table`: file of prefixes and the names of their networks.
    pub table: Option<PathBuf>,
}

/// `[learning]`: parameters of the mode `thalweg`; `loss_shift` applies to `classic` too.
#[derive(Clone, Debug, PartialEq)]
pub struct Learning {
    /// `warm_up`: measurements of a host before the first exploration.
    pub warm_up: u32,
    /// `gap_scale`: how fast exploration falls with cost gap × evidence.
    pub gap_scale: u32,
    /// `memory`: length of an arm's memory, measurements of full weight.
    pub memory: f64,
    /// `staleness_shift`: a measurement removes 1/2^this of the other arms' evidence.
    pub staleness_shift: u32,
    /// `half_life`: half-life of evidence; zero = never halved.
    pub half_life: Duration,
    /// `latency_weight`: bits of cost for a doubled RTT.
    pub latency_weight: f64,
    /// `latency_guard`: added to every RTT, so that small queues cost nothing.
    pub latency_guard: Duration,
    /// `score_min`: transfers of fewer bytes are not scored.
    pub score_min_bytes: u64,
    /// `score_full`: transfers of at least this many bytes have full weight.
    pub score_full_bytes: u64,
    /// `loss_shift`: a path is lossy above segments / 2^this retransmissions.
    pub loss_shift: u32,
    /// `loss_min_segments`: segments before a connection's arm may be changed.
    pub loss_min_segments: u32,
    /// `rescue`: congestion control that is tried first on lossy paths.
    pub rescue: Option<String>,
    /// `stretch`: interval of scans of long connections; zero = none.
    pub stretch: Duration,
}

/// `[control]`: connections that keep the system default, to compare with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlGroup {
    /// `share`: share of host-hours.
    pub share: f64,
    /// `permanent`: share of hosts that always belong to it.
    pub permanent: f64,
    /// `salt`: the draw differs with it; `None` = `auto`, drawn once and kept in the store.
    pub salt: Option<u64>,
    /// `cluster_ipv4`: bits of an IPv4 address that are drawn together.
    pub cluster_ipv4: u32,
    /// `cluster_ipv6`: bits of an IPv6 address that are drawn together.
    pub cluster_ipv6: u32,
    /// `revert`: a choice that is worse than the control group is reverted.
    pub revert: bool,
}

impl ControlGroup {
    /// The control group as the programs draw it. Mode `classic`, as published, has none. Under
    /// advice all connections without a trial belong to it.
    pub fn group(&self, mode: Mode, advise: &Advise, salt: u64) -> Control {
        let q16 = |share: f64| match mode {
            Mode::Classic => 0,
            Mode::Thalweg => (share * f64::from(ONE_Q16)).round() as u32,
        };
        Control {
            share_q16: q16(match advise.only {
                true => 1.0 - advise.trials,
                false => self.share,
            }),
            permanent_q16: q16(self.permanent),
            salt,
        }
    }
}

/// `[advise]`: measure connections, and advise on the best arms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advise {
    /// `only`: nothing is set but trials.
    pub only: bool,
    /// `trials`: share of host-hours that get one of the arms, drawn at random.
    pub trials: f64,
}

impl Advise {
    /// Checks `[advise]` against the other settings.
    ///
    /// # Errors
    /// The first contradiction: the value found, and the expected one.
    pub fn check(&self, mode: Mode, dry_run: bool) -> Result<(), (&'static str, &'static str)> {
        match () {
            () if !self.only => Ok(()),
            () if mode == Mode::Classic => Err((
                "advice in mode \"classic\"",
                "mode \"thalweg\": the published tuner measures nothing but its own choices",
            )),
            () if dry_run && self.trials > 0.0 => Err((
                "trials in a dry run",
                "dry_run = false, or trials = 0.0: a dry run sets nothing",
            )),
            () => Ok(()),
        }
    }

    pub(super) fn read(section: &mut Section<'_>, mode: Mode, dry_run: bool) -> Self {
        let only = section.flag(
            ("only", "Sets nothing but trials. Not with mode `classic`."),
            false,
        );
        let advise = Self {
            only: only.value,
            trials: section.number(("trials", "Share of the hosts with trials, drawn each hour, in place of `control.share`. 0: compares only what differs by itself."), 0.0..=1.0, 0.0),
        };
        if let (Some(at), Err((found, expected))) = (only.at, advise.check(mode, dry_run)) {
            section.conflict("only", at, found.to_owned(), expected.to_owned());
        }
        advise
    }
}

impl Arms {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let allow = section.arms_or_auto(("allow", "May be chosen. `auto`: those that the kernel offers at the agent's start, that `load` and `needs_ecn` name, and that `thalweg cc load` loads. `thalweg status` names others."), 1..=ARMS_MAX);
        let deny = section.arms(("deny", "Never chosen."), 0..=64, &[]);
        let arms = Self {
            allow: allow.value,
            deny: deny.value,
            load: section
                .arms(("load", "Kernel modules `tcp_NAME` to load at start, if the kernel has them."), 0..=64, &["bbr", "htcp", "dctcp"])
                .value,
            needs_ecn: section.arms(("needs_ecn", "Chosen only towards `ecn_prefixes`, for connections that negotiated ECN."), 0..=64, &["dctcp"]).value,
            ecn_prefixes: section.prefixes(("ecn_prefixes", "Remote prefixes, such as your datacenter's. RFC 8257 keeps dctcp off the public Internet."), ECN_PREFIXES_MAX),
        };
        if let (Some(names), Some(at)) = (&arms.allow, deny.at)
            && allow.is_sound
            && deny.is_sound
            && !names.iter().any(|name| arms.permits(name))
        {
            let found = "every name of arms.allow".to_owned();
            let expected = "at least one of them left".to_owned();
            section.conflict("deny", at, found, expected);
        }
        arms
    }
}

impl Hosts {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Self {
            max: section.integer(("max", "Host records in the kernel, some 1.2 KB each; beyond, [the least valuable](learner.md#room) go."), 64..=16_777_216, 65_536),
            ipv4_prefix: section.integer(("ipv4_prefix", "Prefix of an IPv4 address that is one host."), 8..=32, 32),
            ipv6_prefix: section.integer(("ipv6_prefix", "The same of an IPv6 address."), 16..=128, 64),
            nat64: section.nat64_or_auto(("nat64", "NAT64 prefixes beside `64:ff9b::/96`, whose addresses [count as IPv4](learner.md#words). `auto`: asks the resolver for `ipv4only.arpa` (RFC 7050) at the start and every ten minutes. `[]`: asks nobody.")),
            user_namespaces: section.boolean(("user_namespaces", "Whether network namespaces of user namespaces count (rootless containers, `unshare -Urn`). Any user who makes one could teach the learner."), false),
        }
    }
}

impl Networks {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Self {
            enabled: section.boolean(("enabled", "Whether networks learn and decide. Their records take an eighth of `hosts.max` beside it, 8,192 at most."), true),
            ipv4_prefix: section.integer(("ipv4_prefix", "Prefix of an IPv4 address that is one network. From `hosts.ipv4_prefix` on there is none."), 1..=32, 24),
            ipv6_prefix: section.integer(("ipv6_prefix", "The same of an IPv6 address."), 1..=128, 48),
            table: section.path_or_none(("table", "File of prefixes and [names of networks](#names-of-networks)."), PATH_MAX),
        }
    }
}

impl Learning {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = Params::default();
        let of_q16 = |value: u32| f64::from(value) / f64::from(thalweg_learner::ONE_Q16);
        let guard = Duration::from_micros(default.latency_guard_us.into());
        let half_life = Duration::from_nanos(default.half_life_ns);

        let warm_up = section.integer(
            (
                "warm_up",
                "Measurements of a host before the first exploration.",
            ),
            0..=1000,
            default.warm_up,
        );
        let gap_scale = section.integer(
            ("gap_scale", "Higher explores less."),
            1..=1 << 20,
            default.gap_scale,
        );
        let memory = section.number(("memory", "An arm's memory, in full measurements. Shorter follows changes faster, longer is steadier."), 1.0..=64.0, of_q16(default.weight_max_q16));
        let staleness_shift = section.integer(
            (
                "staleness_shift",
                "A measurement of one arm takes 1/2^N of the evidence of the host's others.",
            ),
            1..=31,
            default.idle_shift,
        );
        let half_life = section.duration(
            (
                "half_life",
                "The evidence for every arm halves in this time.",
            ),
            Duration::from_secs(1)..=365 * DAY,
            Some("never"),
            half_life,
        );
        let latency_weight = section.number(
            (
                "latency_weight",
                "Cost of a doubled round-trip time, in bits. 1.0: as bad as half the rate.",
            ),
            0.0..=4.0,
            of_q16(default.latency_weight_q16),
        );
        let latency_guard = section.duration(
            (
                "latency_guard",
                "Added to every round-trip time: queues well below it cost nothing.",
            ),
            Duration::from_micros(1)..=Duration::from_secs(10),
            Some("none"),
            guard,
        );
        let score_min = section.size(
            (
                "score_min",
                "Transfers of fewer acknowledged bytes are not scored.",
            ),
            0..=1 << 40,
            false,
            default.score_min_bytes,
        );
        let score_full = section.size(("score_full", "From here on a transfer has full weight; below, in proportion. At least `score_min`."), 1..=1 << 40, false, default.score_full_bytes);
        if score_full.value < score_min.value && score_full.is_sound && score_min.is_sound {
            let min = size_text(score_min.value);
            let full = size_text(score_full.value);
            match score_full.at {
                Some(at) => {
                    let expected = format!("at least score_min, \"{min}\"");
                    section.conflict("score_full", at, format!("\"{full}\""), expected);
                }
                None => {
                    let at = score_min.at.unwrap_or(0);
                    let expected = format!("at most score_full, \"{full}\"");
                    section.conflict("score_min", at, format!("\"{min}\""), expected);
                }
            }
        }
        Self {
            warm_up,
            gap_scale,
            memory,
            staleness_shift,
            half_life,
            latency_weight,
            latency_guard,
            score_min_bytes: score_min.value,
            score_full_bytes: score_full.value,
            loss_shift: section.integer(("loss_shift", "Lossy is more than 1/2^N of retransmissions: 6 is 1.6 %, 5 is 3.1 %."), 1..=16, default.loss_shift),
            loss_min_segments: section.integer(("loss_min_segments", "Segments before a connection's congestion control may change."),
                1..=1_000_000,
                default.loss_min_segs,
            ),
            rescue: section.arm_or_none(("rescue", "Tried first where the system's congestion control loses much."), Some("bbr")),
            stretch: section.duration(("stretch", "Interval of scans of [long connections](learner.md#long-connections). Needs kernel BTF."),
                Duration::from_secs(1)..=Duration::from_secs(3600),
                Some("never"),
                Duration::from_nanos(default.stretch_ns),
            ),
        }
    }
}

impl ControlGroup {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        Self {
            share: section.number(("share", "Share of the hosts in it, drawn each hour. With 0 here and in `permanent` there is no group."), 0.0..=0.5, 0.05),
            permanent: section.number(("permanent", "Share of the hosts that are always in it."), 0.0..=0.5, 0.01),
            salt: section.whole_or_auto(("salt", "Machines with the same salt draw the same hosts. `auto`: drawn once, and stored.")),
            cluster_ipv4: section.integer(("cluster_ipv4", "Addresses of an IPv4 prefix this long are drawn together."), 8..=32, 32),
            cluster_ipv6: section.integer(("cluster_ipv6", "The same for IPv6."), 16..=128, 64),
            revert: section.boolean(("revert", "What is worse than the group, or than what a rule left alone, is [taken back](gain.md#gain) for 24 hours; `false`: only reported."), true),
        }
    }
}
