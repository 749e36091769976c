//! Results of several remote hosts: towards each as if it were alone, and towards all together.

use crate::mode::Mode;
use crate::outcome::ScenarioOutcome;
use crate::query::{NoValue, best_setting, of_best, of_best_here};
use crate::table::Table;

/// A table of modes by hosts: median goodput of the last half relative to the host's best fixed
/// arm, and the most frequent arm. The last column is the mean over the hosts. None if there is
/// only one host.
pub(crate) fn hosts_table(outcome: &ScenarioOutcome) -> Option<Table> {
    let views = outcome.by_host();
    if views.is_empty() {
        return None;
    }
    let ratio =
        |value: Result<f64, NoValue>| value.map_or("–".into(), |value| format!("{value:.2}×"));
    let heading = |view: &ScenarioOutcome| match view.best_fixed() {
        Some(best) => format!("{} (best {})", view.scenario.name, arm_name(&best.mode)),
        None => view.scenario.name.clone(),
    };
    let rows = outcome.modes.iter().map(|mode| {
        let cell = |view: &ScenarioOutcome| -> Option<String> {
            let here = view.mode_outcome(&mode.mode)?;
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

/// The sentences about all hosts together.
pub(crate) fn host_sentences(outcome: &ScenarioOutcome) -> Vec<String> {
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
                arm_name(&setting.mode),
            ))
        })
        .collect()
}

fn arm_name(mode: &Mode) -> String {
    match mode {
        Mode::Fixed(arm) => arm.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
#[path = "several_tests.rs"]
mod tests;
