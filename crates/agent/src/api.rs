//! The local API: HTTP and JSON over a Unix socket. `docs/reference/api.md` lists it.
//!
//! One thread answers requests. Walks of all hosts and queries of the store run beside it. A slow
//! client delays nobody: a page of a list is made only when the previous page has been read.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, on, post};
use axum::{Extension, Json, Router};
use serde::Deserialize;
use serde_json::json;
use thalweg_control::inventory::Inventory;
use thalweg_control::leftovers::Learner;
use thalweg_control::privileges;
use thalweg_units::address;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Mutex;

use crate::api::tcp::PortListener;
use crate::feature::{self, Reply};
use crate::metrics::CONTENT_TYPE;
use crate::shared::Shared;
use crate::view;

pub mod answer;
mod body;
mod connections;
mod history;
pub mod latest;
mod list;
mod live;
mod page;
pub mod socket;
pub mod tcp;
pub mod web;
mod work;

use answer::{Answer, Failure, Parameter, Query};
use work::Api;

/// Default number of events per request.
const EVENTS_DEFAULT: u32 = 100;
/// Largest number of events per request.
const EVENTS_MAX: u32 = 10_000;
/// Interval of attempts to bind a port that another process has.
const PORT_RETRY: Duration = Duration::from_secs(5);

/// Answers requests on a socket, and on the port if one is wanted, forever.
pub async fn serve(listener: UnixListener, shared: Arc<Shared>) -> ! {
    let router = router(Arc::clone(&shared));
    match &shared.port_listener {
        None => connections::serve(listener, router).await,
        Some(port_listener) => {
            let guarded = tcp::guarded(router.clone(), port_listener.token.clone());
            let on_port =
                async { tcp::serve(wait_for_port(port_listener, &shared).await, guarded).await };
            tokio::select! {
                never = connections::serve(listener, router) => never,
                never = on_port => never,
            }
        }
    }
}

/// The listener of a port, once it can be bound. Until then it is a problem.
async fn wait_for_port(port_listener: &PortListener, shared: &Shared) -> TcpListener {
    loop {
        match port_listener.listen() {
            Ok(port) => {
                shared.problem("port", None);
                return port;
            }
            Err(why) => shared.problem("port", Some(port_listener.refused(&why))),
        }
        tokio::time::sleep(PORT_RETRY).await;
    }
}

/// The routes of features.
fn feature_routes(shared: &Shared) -> Router<Api> {
    let mut router = Router::new();
    for (index, feature) in shared.statistics.features.iter().enumerate() {
        for &(method, path) in feature.routes() {
            let turn = Arc::new(Mutex::new(()));
            let answer =
                async move |State(api): State<Api>, parameter: Parameter, request: Request| {
                    feature_answer(api, (index, path), turn, parameter, request).await
                };
            router = router.route(path, on(method, answer));
        }
    }
    router
}

/// The answer of a feature to a request of its route.
async fn feature_answer(
    api: Api,
    (index, route): (usize, &'static str),
    turn: Arc<Mutex<()>>,
    Parameter(parameter): Parameter,
    request: Request,
) -> Answer<Response> {
    let (parts, body) = request.into_parts();
    let feature = &api.shared.statistics.features[index];
    let body = match feature.body_bounds(route, &api.shared.kernel) {
        Some(bounds) => Some(body::receive_body(&api, &bounds, body).await?),
        None => None,
    };
    let walks_hosts = feature.walks_hosts();
    let reply = move |shared: &Shared| {
        let request = feature::Request {
            method: &parts.method,
            route,
            uri: &parts.uri,
            parameter: &parameter,
            body: body.as_ref().map(|it| &it.file),
        };
        let feature = &shared.statistics.features[index];
        feature.reply(&request, &shared.feature_context())
    };
    let reply = match walks_hosts {
        true => api.work(reply).await?,
        false => api.in_turn(turn, reply).await?,
    };
    match reply {
        Reply::Whole(answer) => Ok(answer),
        Reply::Pages(listing) => list::send_pages(api, listing).await,
    }
}

/// The routes.
fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/status", get(status))
        .route("/v1/arms", get(arms))
        .route("/v1/events", get(events))
        .route("/v1/events/stream", get(stream))
        .route("/v1/history", get(history::history))
        .route("/v1/stream", get(live::live))
        .route("/v1/kernel", get(kernel_side))
        .route("/v1/reload", post(reload))
        .route("/v1/detach", post(detach))
        .merge(page::routes())
        .merge(feature_routes(&shared))
        .method_not_allowed_fallback(async |method: Method| {
            let text = format!("no {method} here; the header Allow has what there is");
            Failure(StatusCode::METHOD_NOT_ALLOWED, text)
        })
        .fallback(async || Failure(StatusCode::NOT_FOUND, "no such resource".to_string()))
        .layer(axum::middleware::from_fn(may_change))
        .with_state(Api::new(shared))
}

/// Refuses changes by anyone but root: members of the socket's group may only read. It checks the
/// method, so that no route can be forgotten.
async fn may_change(
    Extension(peer): Extension<connections::Peer>,
    request: Request,
    next: Next,
) -> Answer<Response> {
    if request.method().is_safe() || peer.uid == Some(0) {
        return Ok(next.run(request).await);
    }
    let who = peer
        .uid
        .map_or_else(|| "others".to_owned(), |uid| format!("user {uid}"));
    let text = format!("only root may change what the agent knows and does; {who} may read");
    Err(Failure(StatusCode::FORBIDDEN, text))
}

async fn status(State(api): State<Api>) -> Answer<Json<view::Status>> {
    api.recount().await;
    Ok(Json(api.shared.status()?))
}

/// Metrics of the agent and of pinned objects, as OpenMetrics text.
async fn metrics(State(api): State<Api>) -> Answer<Response> {
    let text = api.metrics().await?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

async fn arms(State(api): State<Api>) -> Answer<Json<Vec<view::Arm>>> {
    api.work(|shared| {
        let table = shared.kernel.arms()?;
        Ok(Json(shared.presenter(&table).arm_list()))
    })
    .await
}

/// Handler of the pinned objects: programs, the policy in force, limits, congestion controls.
async fn kernel_side(State(api): State<Api>) -> Answer<Json<Inventory>> {
    api.work(|shared| {
        let pin = &shared.kernel.setup().pin;
        Ok(Json(Inventory::read(pin, &shared.policies)))
    })
    .await
}

#[derive(Deserialize)]
struct EventsQuery {
    since: Option<i64>,
    limit: Option<u32>,
    host: Option<String>,
}

async fn events(State(api): State<Api>, Query(query): Query<EventsQuery>) -> Answer<Response> {
    let limit = query.limit.unwrap_or(EVENTS_DEFAULT).min(EVENTS_MAX);
    let host = query.host.map(|host| one_form(&api.shared, host));
    match query.since {
        Some(since) => list::events(api, since, limit, host).await,
        None => list::latest(api, limit, host).await,
    }
}

/// Canonical text of an address; other texts stay.
fn one_form(shared: &Shared, text: String) -> String {
    match address::parse_address(&text) {
        Some(address) => shared.kernel.nat64().unwrap_address(address).to_string(),
        None => text,
    }
}

/// Live events, one JSON object a line, until the client disconnects or the session ends.
async fn stream(State(api): State<Api>, Query(query): Query<EventsQuery>) -> Answer<Response> {
    let wanted = query.host.map(|host| one_form(&api.shared, host));
    let mut live = api.shared.live.subscribe();
    let mut stopped = api.shared.stopped();
    let stream = async_stream::stream! {
        loop {
            let received = tokio::select! {
                received = live.recv() => received,
                _ = stopped.wait_for(|stop| *stop) => break,
            };
            let line = match received {
                Ok(event) => {
                    if wanted.as_ref().is_some_and(|host| *host != event.host && *host != event.remote) {
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

/// Saves, removes everything from the kernel, and ends the agent. A failed save does not stop the
/// removal: `unsaved` has the reason. Each feature has a key for its leftovers.
async fn detach(State(api): State<Api>) -> Answer<Json<serde_json::Value>> {
    api.always(|shared| {
        let unsaved = shared.save_snapshot().err();
        shared.kernel.let_go();
        fail_point!("detach::saved");
        // Features undo by the agent's end as well.
        let removed = crate::detach::detach(&shared.kernel.setup().pin);
        if removed.is_err() {
            // Pins that can be neither removed nor opened keep links; the answer names the pins.
            let mut learner = Learner::default();
            learner.note_cgroup(&shared.kernel.setup().cgroup);
            learner.note_pins(&shared.kernel.setup().pin);
            privileges::with_raised(|| learner.remove_rest());
        }
        fail_point!("detach::removed");
        // The kernel side has let go: the agent repairs nothing any more.
        shared.end();
        let removed = removed?;
        let unsaved = unsaved.map(|error| format!("{error:#}"));
        let mut answer = json!(removed.leftovers);
        answer["removed"] = json!(removed.pins);
        answer["unsaved"] = json!(unsaved);
        Ok(Json(answer))
    })
    .await
}

/// Reads the configuration again, checks it as a whole, and makes the agent continue with it.
/// `session` of the response is the number that `status` has then. A refused configuration changes
/// nothing.
async fn reload(State(api): State<Api>) -> Answer<Json<serde_json::Value>> {
    api.always(|shared| match shared.reload() {
        Ok(changed) => {
            let session = shared.session + u64::from(changed);
            Ok(Json(json!({ "changed": changed, "session": session })))
        }
        Err(why) => Err(Failure(StatusCode::CONFLICT, why.to_string())),
    })
    .await
}
