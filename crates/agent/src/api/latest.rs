//! The latest events: stored ones, and the most recent of the others.

use crate::events::Decoder;
use crate::feature::Context;
use crate::view::Event;

/// The latest events that the store does not keep, newest first; `host` restricts them to one
/// record.
pub(super) fn left_out(context: &Context<'_>, host: Option<&str>) -> anyhow::Result<Vec<Event>> {
    let raw = context.sampling(|sampling| sampling.recent());
    if raw.is_empty() {
        return Ok(Vec::new());
    }
    let arms = context.kernel.arms()?;
    let decoder = Decoder::new(context.mode());
    let events = raw.iter().map(|event| decoder.decode(event, &arms, 0.0));
    Ok(events
        .filter(|event| host.is_none_or(|host| host == event.host))
        .collect())
}

/// The latest `limit` events of a host record, newest first.
pub fn of_host(context: &Context<'_>, host: &str, limit: u32) -> anyhow::Result<Vec<Event>> {
    let stored = context.store(|store| store.recent(Some(host), limit))?;
    let left_out = left_out(context, Some(host))?;
    Ok(merged(&left_out, stored, limit as usize).0)
}

/// Merges two lists, each newest first. Returns the first `limit` events, and the number of them
/// from the first list.
pub(super) fn merged(left_out: &[Event], stored: Vec<Event>, limit: usize) -> (Vec<Event>, usize) {
    let mut merged = Vec::with_capacity(limit.min(left_out.len() + stored.len()));
    let mut others = left_out.iter().peekable();
    let mut stored = stored.into_iter().peekable();
    while merged.len() < limit {
        let is_other = match (others.peek(), stored.peek()) {
            (Some(other), Some(event)) => other.time_ms > event.time_ms,
            (other, _) => other.is_some(),
        };
        let next = if is_other {
            others.next().cloned()
        } else {
            stored.next()
        };
        match next {
            Some(event) => merged.push(event),
            None => break,
        }
    }
    let taken = left_out.len() - others.count();
    (merged, taken)
}
