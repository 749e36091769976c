//! The fleet: this agent's place in it, and all agents, whose statuses are at the server.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::answer::{Answer, Failure};
use super::work::Api;
use crate::metrics::{self, CONTENT_TYPE};
use crate::view::{FleetAgents, FleetGain, FleetPlace};

/// Age up to which read statuses are used again; agents send one every ten minutes.
const FRESH: Duration = Duration::from_secs(5);
/// Age up to which automatic requests use read statuses again: a read costs as much as there are
/// agents.
const SCRAPED: Duration = Duration::from_secs(60);

/// Handler of this agent's place in its fleet; `null` if it is in no fleet.
pub(super) async fn fleet(State(api): State<Api>) -> Answer<Json<Option<FleetPlace>>> {
    api.work(|shared| Ok(Json(shared.fleet.as_ref().map(|fleet| fleet.place()))))
        .await
}

/// Handler of the list of all agents; `null` if this agent is in no fleet.
pub(super) async fn agents(State(api): State<Api>) -> Answer<Json<Option<FleetAgents>>> {
    let statuses = api.statuses(FRESH).await?;
    Ok(Json(statuses.map(|it| it.agents())))
}

/// Handler of the gain of all agents; `null` if this agent is in no fleet.
pub(super) async fn gain(State(api): State<Api>) -> Answer<Json<Option<FleetGain>>> {
    let statuses = api.statuses(FRESH).await?;
    Ok(Json(statuses.map(|it| it.gain())))
}

/// Metrics of the whole fleet, as OpenMetrics text.
pub(super) async fn metrics(State(api): State<Api>) -> Answer<Response> {
    let Some(statuses) = api.statuses(SCRAPED).await? else {
        let text = "this agent is in no fleet".to_owned();
        return Err(Failure(StatusCode::NOT_FOUND, text));
    };
    let text = metrics::of_fleet(statuses.agents(), statuses.gain())?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}
