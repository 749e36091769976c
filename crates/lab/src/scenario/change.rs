//! `[[change]]`: what becomes of the path in the course of a run.

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{Fault, GilbertElliott, PathModel, check_path};
use crate::units::{Delay, Probability, Rate, Size};

/// A change of the path. What it does not name stays as it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The round, counted from 1, before which it happens.
    pub at: u32,
    /// How long after that round's connection has begun it happens instead.
    pub within: Option<Delay>,
    /// Loss, rate and queue from then on.
    pub path: PathModel,
}

/// One table as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    at: Spanned<u32>,
    within: Option<Spanned<Delay>>,
    loss: Option<Probability>,
    gilbert_elliott: Option<GilbertElliott>,
    reverse_loss: Option<Probability>,
    rate: Option<Rate>,
    queue: Option<Size>,
}

impl Table {
    fn check(self, before: &PathModel, place: std::ops::Range<usize>) -> Result<Change, Fault> {
        let Self {
            at,
            within,
            loss,
            gilbert_elliott,
            reverse_loss,
            rate,
            queue,
        } = self;
        let nothing = loss.is_none()
            && gilbert_elliott.is_none()
            && reverse_loss.is_none()
            && rate.is_none()
            && queue.is_none();
        if nothing {
            return Err((
                place,
                "expected what changes: loss, gilbert_elliott, reverse_loss, rate or queue".into(),
            ));
        }
        let mut path = before.clone();
        if loss.is_some() || gilbert_elliott.is_some() {
            (path.loss, path.gilbert_elliott) = (loss, gilbert_elliott);
        }
        path.reverse_loss = reverse_loss.unwrap_or(path.reverse_loss);
        path.rate = rate.or(path.rate);
        path.queue = queue.or(path.queue);
        check_path(&path).map_err(|message| (place, message))?;
        Ok(Change {
            at: at.into_inner(),
            within: within.map(Spanned::into_inner),
            path,
        })
    }
}

/// Checks all changes of a scenario, in the order in which they stand.
pub(super) fn check(
    tables: Vec<Spanned<Table>>,
    path: &PathModel,
    connections: u32,
) -> Result<Vec<Change>, Fault> {
    let mut changes: Vec<Change> = Vec::new();
    for table in tables {
        let place = table.span();
        let table = table.into_inner();
        let at = *table.at.get_ref();
        if !(1..=connections).contains(&at) {
            return Err((
                table.at.span(),
                format!("expected a connection from 1 to {connections}, found {at}"),
            ));
        }
        let last = changes.last();
        let moment = (at, table.within.as_ref().map(|within| *within.get_ref()));
        if last.is_some_and(|last| (last.at, last.within) >= moment) {
            return Err((
                table.at.span(),
                "expected changes in the order in which they happen".into(),
            ));
        }
        let before = last.map_or(path, |change| &change.path);
        changes.push(table.check(before, place)?);
    }
    Ok(changes)
}
