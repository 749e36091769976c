//! The local API: HTTP and JSON over a Unix socket. `docs/api.md` lists it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use thalweg_core::HostKey;
use tokio::sync::mpsc;

use crate::kernel;
use crate::shared::Shared;
use crate::view::{self, Explanation};

/// Events a request gets unless it asks for a number.
const EVENTS_DEFAULT: u32 = 100;
/// Most events of one request.
const EVENTS_MAX: u32 = 10_000;
/// Largest document that can be imported, bytes: about 65,536 hosts of 16 arms.
const IMPORT_MAX: usize = 512 << 20;
/// Events in an explanation.
const RECENT: u32 = 10;

/// An error of a request, as `{"error": "..."}`.
struct Failure(StatusCode, String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}"))
    }
}

type Answer<T> = Result<T, Failure>;

/// The routes.
pub fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/arms", get(arms))
        .route("/v1/hosts", get(hosts).delete(reset_all))
        .route("/v1/hosts/{address}", get(explain).delete(reset_one))
        .route("/v1/events", get(events))
        .route("/v1/events/stream", get(stream))
        .route("/v1/export", get(export))
        .route(
            "/v1/import",
            post(import).layer(DefaultBodyLimit::max(IMPORT_MAX)),
        )
        .route("/v1/detach", post(detach))
        .fallback(async || Failure(StatusCode::NOT_FOUND, "no such resource".to_string()))
        .with_state(shared)
}

async fn status(State(shared): State<Arc<Shared>>) -> Answer<Json<view::Status>> {
    Ok(Json(shared.status()?))
}

async fn arms(State(shared): State<Arc<Shared>>) -> Answer<Json<Vec<view::Arm>>> {
    let table = shared.kernel.arms()?;
    Ok(Json(shared.presenter(&table).arm_list()))
}

/// All hosts, written a batch at a time: a full table does not fit the agent's memory budget.
async fn hosts(State(shared): State<Arc<Shared>>) -> Answer<Response> {
    let (sender, receiver) = mpsc::channel::<Result<String, anyhow::Error>>(4);
    let table = shared.kernel.arms()?;
    std::thread::spawn(move || {
        let presenter = shared.presenter(&table);
        let mut separator = "{\"hosts\":[";
        let walked = shared.kernel.walk_hosts(|batch| {
            let mut text = String::new();
            for (key, host) in &batch {
                text.push_str(separator);
                text.push_str(&serde_json::to_string(&presenter.host(key, host))?);
                separator = ",";
            }
            sender
                .blocking_send(Ok(text))
                .map_err(|_| anyhow::anyhow!("the client went away"))
        });
        let end = match walked {
            Ok(()) if separator == "," => Ok("]}".to_string()),
            Ok(()) => Ok("{\"hosts\":[]}".to_string()),
            // Breaks the body off: the client sees an incomplete answer, not a short list.
            Err(error) => Err(error),
        };
        // A client that went away has no use for the end.
        let _ = sender.blocking_send(end);
    });
    Ok(json_body(receiver, "application/json"))
}

fn json_body(
    receiver: mpsc::Receiver<Result<String, anyhow::Error>>,
    kind: &'static str,
) -> Response {
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(stream)).into_response()
}

/// The records that an address means: as written, or under the configured prefix lengths,
/// in every namespace.
fn find_hosts(shared: &Shared, text: &str) -> Answer<Vec<(HostKey, thalweg_core::Host)>> {
    let address = text.split('/').next().unwrap_or(text);
    let address: IpAddr = address.parse().map_err(|_| {
        Failure(
            StatusCode::BAD_REQUEST,
            format!("{text:?} is not an IPv4 or IPv6 address"),
        )
    })?;
    let setup = shared.kernel.setup();
    let wanted = HostKey::of_remote(0, address, setup.ipv4_prefix, setup.ipv6_prefix)
        .map_err(|error| Failure(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let mut found = Vec::new();
    shared.kernel.walk_hosts(|batch| {
        found.extend(
            batch
                .into_iter()
                .filter(|(key, _)| (key.addr, key.prefix_len) == (wanted.addr, wanted.prefix_len)),
        );
        Ok(())
    })?;
    if found.is_empty() {
        return Err(Failure(
            StatusCode::NOT_FOUND,
            format!("nothing is known of {text}"),
        ));
    }
    // The agent's own namespace first.
    found.sort_by_key(|(key, _)| (key.netns != shared.own_netns, key.netns));
    Ok(found)
}

async fn explain(
    State(shared): State<Arc<Shared>>,
    Path(address): Path<String>,
) -> Answer<Json<Vec<Explanation>>> {
    let table = shared.kernel.arms()?;
    let presenter = shared.presenter(&table);
    let mut out = Vec::new();
    for (key, host) in find_hosts(&shared, &address)? {
        let host_name = key.to_string();
        out.push(Explanation {
            summary: presenter.summary(&key, &host),
            host: presenter.host(&key, &host),
            recent: shared.store(|store| store.recent(Some(&host_name), RECENT))?,
        });
    }
    Ok(Json(out))
}

async fn reset_all(State(shared): State<Arc<Shared>>) -> Answer<Json<serde_json::Value>> {
    let removed = shared.kernel.clear_hosts()?;
    shared.store(|store| store.clear_hosts(shared.mode()))?;
    Ok(Json(json!({ "removed": removed })))
}

async fn reset_one(
    State(shared): State<Arc<Shared>>,
    Path(address): Path<String>,
) -> Answer<Json<serde_json::Value>> {
    let mut removed = 0;
    for (key, _) in find_hosts(&shared, &address)? {
        removed += u64::from(shared.kernel.remove_host(&key)?);
        shared.store(|store| store.reset_host(shared.mode(), &key))?;
    }
    Ok(Json(json!({ "removed": removed })))
}

#[derive(Deserialize)]
struct EventsQuery {
    since: Option<i64>,
    limit: Option<u32>,
    host: Option<String>,
}

async fn events(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<EventsQuery>,
) -> Answer<Json<Vec<view::Event>>> {
    let limit = query.limit.unwrap_or(EVENTS_DEFAULT).min(EVENTS_MAX);
    let host = query.host.as_deref();
    Ok(Json(shared.store(|store| match query.since {
        Some(since) => store.events(since, limit, host),
        None => store.recent(host, limit),
    })?))
}

/// Events as they come, one JSON object a line, until the client goes.
async fn stream(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<EventsQuery>,
) -> Answer<Response> {
    let mut live = shared.live.subscribe();
    let stream = async_stream::stream! {
        loop {
            let line = match live.recv().await {
                Ok(event) => {
                    if query.host.as_ref().is_some_and(|host| *host != event.host && *host != event.remote) {
                        continue;
                    }
                    serde_json::to_string(&*event).unwrap_or_default()
                }
                Err(tokio::sync::broadcast::error::RecvError::Lagged(missed)) => {
                    json!({ "missed": missed }).to_string()
                }
                Err(tokio::sync::broadcast::error::RecvError::Closed) => break,
            };
            yield Ok::<_, Infallible>(line + "\n");
        }
    };
    Ok((
        [(header::CONTENT_TYPE, "application/x-ndjson")],
        Body::from_stream(stream),
    )
        .into_response())
}

async fn export(State(shared): State<Arc<Shared>>) -> Answer<Response> {
    let snapshot = shared.snapshot()?;
    let text = crate::store::export_json(&snapshot).map_err(anyhow::Error::from)?;
    drop(snapshot);
    crate::system::trim_memory();
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

async fn import(
    State(shared): State<Arc<Shared>>,
    body: String,
) -> Answer<Json<serde_json::Value>> {
    let snapshot = crate::store::import_json(&body)
        .map_err(|error| Failure(StatusCode::BAD_REQUEST, error.to_string()))?;
    let mode = shared.kernel.params().mode.name();
    if snapshot.mode != shared.mode() {
        return Err(Failure(
            StatusCode::CONFLICT,
            format!(
                "the file holds records of mode {}, this agent runs {mode}",
                snapshot.mode.name()
            ),
        ));
    }
    let restored = shared.restore(&snapshot)?;
    drop(snapshot);
    crate::system::trim_memory();
    Ok(Json(
        json!({ "imported": restored.restored, "left_out": restored.left_out }),
    ))
}

/// Saves, removes everything from the kernel, and ends the agent. What cannot be saved keeps
/// nothing in the kernel: `unsaved` says why.
async fn detach(State(shared): State<Arc<Shared>>) -> Answer<Json<serde_json::Value>> {
    let unsaved = shared.save_snapshot().err();
    let removed = kernel::detach(&shared.kernel.setup().pin)?;
    shared.stop();
    let unsaved = unsaved.map(|error| format!("{error:#}"));
    Ok(Json(json!({ "removed": removed, "unsaved": unsaved })))
}
