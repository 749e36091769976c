//! What happens to the paths of a pair before and within a round.

use std::time::Duration;

use crate::error::Error;
use crate::host::{Pair, Remote};
use crate::scenario::trace::STEP_MS;
use crate::scenario::{Scenario, Traffic};
use crate::traffic::Pause;

/// The rates of a traced path during a round, as long as its client may last. Each round goes on
/// where the one before ended by plan, so that they are the same in all modes.
pub(super) fn traced_rates<'a>(
    remote: &'a Remote,
    traffic: &Traffic,
    round: u32,
) -> impl Iterator<Item = Pause<'a>> {
    let steps = |duration: Duration| duration.as_millis() as u64 / STEP_MS;
    let by_plan = steps(traffic.duration.duration()).max(1);
    let first = u64::from(round) * by_plan;
    (0..by_plan + steps(LATE)).map(move |step| Pause {
        after: Duration::from_millis(step * STEP_MS),
        meanwhile: true,
        act: Box::new(move || remote.tune_rate(first + step)),
    })
}

/// Time beyond a round's for which its rates are planned. The last one stays.
const LATE: Duration = Duration::from_secs(60);

/// Carries out the changes of paths that are due before a round, and returns those due within it,
/// by remote host. A reference may have skipped earlier rounds.
pub(super) fn apply_changes<'a>(
    pair: &'a Pair,
    scenario: &'a Scenario,
    round: u32,
    changed: &mut usize,
) -> Result<Vec<Vec<Pause<'a>>>, Error> {
    let names = scenario.remote_paths();
    let mut pauses: Vec<Vec<Pause<'a>>> = names.iter().map(|_| Vec::new()).collect();
    for change in &scenario.changes[*changed..] {
        let place = names
            .iter()
            .position(|(name, _)| *name == change.host)
            .unwrap_or(0);
        let remote = &pair.remotes()[place];
        match change.within {
            Some(within) if change.at == round + 1 => pauses[place].push(Pause {
                after: within.duration(),
                meanwhile: false,
                act: Box::new(|| remote.change_path(&change.path)),
            }),
            _ if change.at <= round + 1 => remote.change_path(&change.path)?,
            _ => break,
        }
        *changed += 1;
    }
    Ok(pauses)
}
