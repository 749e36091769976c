//! Handler of decisions by arm over time.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use thalweg_control::system;

use super::answer::{Answer, Failure, Query};
use super::work::Api;
use crate::store::Intervals;
use crate::view::{ArmHistory, History};

/// Longest interval, seconds: a day.
const INTERVAL_MAX: u32 = 86_400;
/// Largest number of intervals.
const PARTS_MAX: u32 = 200;

#[derive(Deserialize)]
pub(super) struct Asked {
    /// Length of an interval, seconds.
    interval: Option<u32>,
    /// Number of intervals.
    parts: Option<u32>,
    /// Host record to which the decisions are restricted; `None`: all.
    host: Option<String>,
}

/// Handler of decisions by arm in the last intervals, of which the last has not ended.
pub(super) async fn history(
    State(api): State<Api>,
    Query(asked): Query<Asked>,
) -> Answer<Json<History>> {
    let interval_s = within("interval", asked.interval.unwrap_or(60), INTERVAL_MAX)?;
    let parts = within("parts", asked.parts.unwrap_or(60), PARTS_MAX)?;
    let length_ms = i64::from(interval_s) * 1000;
    let now_ms = (system::wall_ns() / 1_000_000).cast_signed();
    // Responses have the same bounds, so that a reader may continue from one.
    let last = now_ms / length_ms;
    let intervals = Intervals {
        from_ms: (last + 1 - i64::from(parts)) * length_ms,
        length_ms,
        count: parts,
    };
    api.work(move |shared| {
        let host = asked.host.as_deref();
        let decided = shared.store(|store| store.history(intervals, host))?;
        let first = shared.store(|store| store.events(0, 1, host))?;
        // A host whose hours were not kept has no event that shows it.
        let past_ns = now_ms.abs_diff(intervals.from_ms).saturating_mul(1_000_000);
        let from_ns = system::monotonic_ns().saturating_sub(past_ns);
        let share = shared.sampling(|sampling| sampling.share_since(from_ns));
        system::trim_memory();
        let mut arms: Vec<ArmHistory> = Vec::new();
        for (part, name, count) in decided.counts {
            let arm = name.unwrap_or_else(|| "unknown".to_owned());
            let at = match arms.iter().position(|known| known.arm == arm) {
                Some(at) => at,
                None => {
                    let counts = vec![0; parts as usize];
                    arms.push(ArmHistory { arm, counts });
                    arms.len() - 1
                }
            };
            arms[at].counts[part as usize] += count;
        }
        arms.sort_by(|a, b| a.arm.cmp(&b.arm));
        Ok(Json(History {
            from_ms: intervals.from_ms,
            interval_ms: length_ms.unsigned_abs(),
            parts,
            arms,
            cut: decided.cut,
            share: share.min(decided.share),
            first_ms: first.first().map(|event| event.time_ms),
        }))
    })
    .await
}

fn within(name: &str, value: u32, most: u32) -> Answer<u32> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    Err(Failure(
        StatusCode::BAD_REQUEST,
        format!("{name}: found {value}, expected 1 to {most}"),
    ))
}
