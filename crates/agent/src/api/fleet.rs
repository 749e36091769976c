//! `GET /v1/fleet`: this agent's place in its fleet.

use axum::Json;
use axum::extract::State;

use super::answer::Answer;
use super::work::Api;
use crate::view::FleetPlace;

/// How the agent stands; `null` if it is in no fleet.
pub(super) async fn fleet(State(api): State<Api>) -> Answer<Json<Option<FleetPlace>>> {
    api.work(|shared| Ok(Json(shared.fleet.as_ref().map(|fleet| fleet.place()))))
        .await
}
