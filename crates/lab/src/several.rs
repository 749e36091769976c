//! Several remote hosts: what a run gave towards each, as if it were alone, and
//! towards all together.

use thalweg_report::sample;
use thalweg_units::prefix::Prefix;

use crate::mode::Mode;
use crate::outcome::{ModeOutcome, RemoteOutcome, ScenarioOutcome};
use crate::statistic::{Query, Statistic};
use crate::table::Table;

impl ModeOutcome {
    /// What the mode gave towards one of several hosts, as if that were the only
    /// one; none where it has no such host.
    pub fn towards(&self, host: &str) -> Option<Self> {
        let remote = self.remotes.iter().find(|remote| remote.name == host)?;
        Some(Self {
            mode: self.mode.clone(),
            rounds: self.rounds,
            connections: self
                .connections
                .iter()
                .filter(|connection| connection.host == host)
                .cloned()
                .collect(),
            forward: remote.forward,
            reverse: remote.reverse,
            hosts: self
                .hosts
                .iter()
                .filter(|learned| remote.is_at(&learned.address))
                .cloned()
                .collect(),
            least_rtt_us: remote.least_rtt_us,
            last_change: remote.last_change,
            remotes: Vec::new(),
        })
    }
}

impl RemoteOutcome {
    /// Whether an address, or a prefix such as "fd00::/64", is this host's.
    pub fn is_at(&self, address: &str) -> bool {
        Prefix::parse(address).is_ok_and(|prefix| prefix.contains(self.address))
    }
}

impl ScenarioOutcome {
    /// The outcome towards each of several hosts, as of a scenario of its own;
    /// empty where there is but one. Expectations stay with the whole.
    pub fn by_host(&self) -> Vec<Self> {
        self.scenario
            .hosts
            .iter()
            .map(|host| {
                let mut scenario = self.scenario.clone();
                scenario.name.clone_from(&host.name);
                scenario.path = host.path.clone();
                scenario.hosts.clear();
                scenario.changes.retain(|change| change.host == host.name);
                Self {
                    scenario,
                    reference_every: self.reference_every,
                    modes: self
                        .modes
                        .iter()
                        .filter_map(|mode| mode.towards(&host.name))
                        .collect(),
                    checks: Vec::new(),
                    wall_s: self.wall_s,
                    report: self.report.clone(),
                }
            })
            .collect()
    }
}

/// A mode's last half towards one host, of that host's best fixed arm; `modes` as
/// [`ModeOutcome::towards`] gives them.
pub(crate) fn of_best_here(mode: &ModeOutcome, modes: &[ModeOutcome]) -> Result<f64, String> {
    let query = Query::from(Statistic::MedianLastHalf);
    let settled = query.value(mode, modes)?;
    let (best, median) = query
        .best_fixed(modes, 0)
        .ok_or("no mode fixed:ARM was run")?;
    // Over the same rounds, where the reference has any of them.
    let median = query.value(best, modes).unwrap_or(median);
    if median > 0.0 {
        Ok(settled / median)
    } else {
        Err(format!("the reference {} moved nothing", best.mode))
    }
}

/// [`Statistic::OfBestPerHost`].
pub(crate) fn of_best(outcome: &ModeOutcome, modes: &[ModeOutcome]) -> Result<f64, String> {
    let parts = outcome
        .remotes
        .iter()
        .map(|remote| {
            let name = &remote.name;
            let modes: Vec<ModeOutcome> =
                modes.iter().filter_map(|mode| mode.towards(name)).collect();
            let here = outcome.towards(name).ok_or("no such host")?;
            of_best_here(&here, &modes).map_err(|why| format!("{why} (host {name})"))
        })
        .collect::<Result<Vec<f64>, String>>()?;
    sample::mean(&parts).ok_or_else(|| "there is one host only".to_owned())
}

/// The fixed mode with the highest [`Statistic::OfBestPerHost`], that is the best
/// single setting for all hosts, and its value; the first of equals.
pub(crate) fn best_setting(modes: &[ModeOutcome]) -> Option<(&ModeOutcome, f64)> {
    let mut best: Option<(&ModeOutcome, f64)> = None;
    for outcome in modes {
        if matches!(outcome.mode, Mode::Fixed(_))
            && let Ok(value) = of_best(outcome, modes)
            && best.is_none_or(|(_, highest)| value > highest)
        {
            best = Some((outcome, value));
        }
    }
    best
}

/// Each mode towards each host: its last half's median goodput, of that host's best
/// fixed arm, with the arm that it used most; and the mean over the hosts. None where
/// there is but one host.
pub(crate) fn table(outcome: &ScenarioOutcome) -> Option<Table> {
    let views = outcome.by_host();
    if views.is_empty() {
        return None;
    }
    let ratio =
        |value: Result<f64, String>| value.map_or("–".into(), |value| format!("{value:.2}×"));
    let heading = |view: &ScenarioOutcome| match view.best_fixed() {
        Some(best) => format!("{} (best {})", view.scenario.name, arm(&best.mode)),
        None => view.scenario.name.clone(),
    };
    let rows = outcome.modes.iter().map(|mode| {
        let cell = |view: &ScenarioOutcome| -> Option<String> {
            let here = view.mode(&mode.mode)?;
            let most = here.last_half_arms().first().map(|(arm, _)| arm.clone());
            let value = ratio(of_best_here(here, &view.modes));
            Some(
                format!("{value} {}", most.unwrap_or_default())
                    .trim_end()
                    .to_owned(),
            )
        };
        std::iter::once(mode.mode.to_string())
            .chain(views.iter().map(|view| cell(view).unwrap_or("–".into())))
            .chain([ratio(of_best(mode, &outcome.modes))])
            .collect()
    });
    Some(Table {
        title: format!(
            "{}: last half's median to the best fixed arm, and the arm used most, by host",
            outcome.scenario.name
        ),
        header: std::iter::once("mode".to_owned())
            .chain(views.iter().map(heading))
            .chain(["mean".to_owned()])
            .collect(),
        rows: rows.collect(),
    })
}

/// What is to be said of all hosts together.
pub(crate) fn sentences(outcome: &ScenarioOutcome) -> Vec<String> {
    let Some((setting, best)) = best_setting(&outcome.modes) else {
        return Vec::new();
    };
    let learners = outcome.modes.iter().filter(|mode| mode.mode.learns());
    learners
        .filter_map(|mode| {
            let value = of_best(mode, &outcome.modes).ok()?;
            Some(format!(
                "Over all {} hosts {} reached {value:.2} of each host's best fixed arm; the best \
                 single setting ({}) had {best:.2}.",
                mode.remotes.len(),
                mode.mode,
                arm(&setting.mode),
            ))
        })
        .collect()
}

fn arm(mode: &Mode) -> String {
    match mode {
        Mode::Fixed(arm) => arm.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
#[path = "several_tests.rs"]
mod tests;
