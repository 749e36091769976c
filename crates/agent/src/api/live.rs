//! Server-sent events: the status every other second, and sums of the events since.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{MissedTickBehavior, interval};

use super::work::Api;
use crate::view::Event;

/// Interval of messages.
const BEAT: Duration = Duration::from_secs(2);
/// Decisions that a message shows whole; all others are only counted.
const LATEST: usize = 10;

/// Sums of events since the last message. Their size does not depend on the number of events.
#[derive(Default, Serialize)]
struct Sums {
    /// Decisions by arm.
    decisions: BTreeMap<String, u64>,
    /// Scored ends of connections.
    closed: u64,
    /// Events that came too quickly to be counted.
    missed: u64,
    /// The last decisions, newest first.
    #[serde(serialize_with = "whole")]
    latest: VecDeque<Arc<Event>>,
}

fn whole<S: Serializer>(events: &VecDeque<Arc<Event>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(events.iter().map(|event| &**event))
}

impl Sums {
    fn add(&mut self, event: Arc<Event>) {
        if event.kind != "decision" {
            self.closed += 1;
            return;
        }
        let arm = event.arm.as_deref().unwrap_or("unknown");
        match self.decisions.get_mut(arm) {
            Some(count) => *count += 1,
            None => drop(self.decisions.insert(arm.to_owned(), 1)),
        }
        self.latest.push_front(event);
        self.latest.truncate(LATEST);
    }
}

/// Sends messages until the client disconnects or the session ends. A slow client misses events. A
/// client that does not read is disconnected like any other.
pub(super) async fn live(State(api): State<Api>) -> Response {
    let mut live = api.shared.live.subscribe();
    let mut stopped = api.shared.stopped();
    let mut beat = interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stream = async_stream::stream! {
        let mut sums = Sums::default();
        loop {
            let received = tokio::select! {
                biased;
                _ = stopped.wait_for(|stop| *stop) => break,
                _ = beat.tick() => None,
                received = live.recv() => Some(received),
            };
            match received {
                Some(Ok(event)) => sums.add(event),
                Some(Err(RecvError::Lagged(missed))) => sums.missed += missed,
                Some(Err(RecvError::Closed)) => break,
                None => {
                    api.recount().await;
                    let status = match api.shared.status() {
                        Ok(status) => message("status", &status),
                        Err(error) => {
                            tracing::warn!("a stream of the API broke off: {error:#}");
                            break;
                        }
                    };
                    let sums = message("events", &std::mem::take(&mut sums));
                    yield Ok::<_, Infallible>(status + &sums);
                }
            }
        }
    };
    (
        [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
        ],
        Body::from_stream(stream),
    )
        .into_response()
}

/// Text of a message; JSON has no line breaks.
fn message(name: &str, value: &impl Serialize) -> String {
    let data = serde_json::to_string(value).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n")
}
