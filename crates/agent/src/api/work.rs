//! State that handlers share, and work outside of the answering thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::answer::{Answer, Failure};
use crate::metrics;
use crate::shared::Shared;

/// Concurrent work items: more would compete for the same processors and store.
const AT_A_TIME: usize = 2;
/// Longest wait of a work item for its turn.
const TURN: Duration = Duration::from_secs(10);
/// Longest wait of `status` for the number of hosts; then it uses the last one.
const COUNT_WAIT: Duration = Duration::from_millis(100);
/// Largest share of the time, as a divisor, that counting hosts may take; metrics likewise.
const COUNT_SHARE: u32 = 20;

/// State that handlers share.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) shared: Arc<Shared>,
    /// Permit to receive and use a body; there is one.
    pub(super) receiving: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    counted: Arc<Mutex<Option<Counted>>>,
    metrics: Arc<Mutex<Option<(Counted, String)>>>,
}

/// Time and duration of the last count of hosts, or of metrics.
struct Counted {
    at: Instant,
    took: Duration,
}

impl Counted {
    fn new(began: Instant) -> Self {
        Self {
            at: Instant::now(),
            took: began.elapsed(),
        }
    }

    fn is_new(&self) -> bool {
        self.at.elapsed() < self.took * COUNT_SHARE
    }
}

fn busy_failure() -> Failure {
    let text = "the agent is busy with other requests; try again".to_string();
    Failure(StatusCode::SERVICE_UNAVAILABLE, text)
}

impl Api {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            receiving: Arc::new(Semaphore::new(1)),
            turns: Arc::new(Semaphore::new(AT_A_TIME)),
            counted: Arc::new(Mutex::new(None)),
            metrics: Arc::new(Mutex::new(None)),
        }
    }

    /// Runs work that may take long, [`AT_A_TIME`] items at a time. Begun work is finished, even if
    /// the client disconnects.
    pub(super) async fn work<T: Send + 'static>(
        &self,
        action: impl FnOnce(&Shared) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let turn = timeout(TURN, Arc::clone(&self.turns).acquire_owned());
        let Ok(Ok(turn)) = turn.await else {
            return Err(busy_failure());
        };
        self.always(move |shared| {
            let _turn = turn;
            action(shared)
        })
        .await
    }

    /// Runs work that waits for other work of the same turn alone.
    pub(super) async fn in_turn<T: Send + 'static>(
        &self,
        turn: Arc<Mutex<()>>,
        action: impl FnOnce(&Shared) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let Ok(turn) = timeout(TURN, turn.lock_owned()).await else {
            return Err(busy_failure());
        };
        self.always(move |shared| {
            let _turn = turn;
            action(shared)
        })
        .await
    }

    /// Runs work that must not wait for others.
    pub(super) async fn always<T: Send + 'static>(
        &self,
        action: impl FnOnce(&Shared) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let shared = Arc::clone(&self.shared);
        let Some(job) = shared.begin() else {
            let text = "the agent ends or takes up a new configuration; try again".to_string();
            return Err(Failure(StatusCode::SERVICE_UNAVAILABLE, text));
        };
        let run = move || {
            let _job = job;
            action(&shared)
        };
        match spawn_blocking(run).await {
            Ok(answer) => answer,
            Err(error) => Err(anyhow::anyhow!("the request failed: {error}").into()),
        }
    }

    /// Metrics, at most a moment old if requests are frequent, as every user of the machine may
    /// ask. Begun work keeps other requests waiting even if its client leaves.
    pub(super) async fn metrics(&self) -> Answer<String> {
        let mut last = Arc::clone(&self.metrics).lock_owned().await;
        if let Some((counted, text)) = &*last
            && counted.is_new()
        {
            return Ok(text.clone());
        }
        self.always(move |shared| {
            let begin = Instant::now();
            let text = metrics::text(shared)?;
            *last = Some((Counted::new(begin), text.clone()));
            Ok(text)
        })
        .await
    }

    /// Refreshes the number of hosts, but waits only [`COUNT_WAIT`] for it.
    pub(super) async fn recount(&self) {
        let Ok(mut counted) = Arc::clone(&self.counted).try_lock_owned() else {
            // Another request is counting.
            let _ = timeout(COUNT_WAIT, self.counted.lock()).await;
            return;
        };
        if counted.as_ref().is_some_and(Counted::is_new) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let Some(job) = shared.begin() else {
            return;
        };
        // Counting continues if the wait ends first.
        let counting = spawn_blocking(move || {
            let _job = job;
            let begin = Instant::now();
            let counted_now = shared.count_hosts();
            shared.problem("count", counted_now.err().map(|error| format!("{error:#}")));
            *counted = Some(Counted::new(begin));
        });
        let _ = timeout(COUNT_WAIT, counting).await;
    }
}
