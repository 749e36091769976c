//! What the learner gains.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use thalweg_gain::Scope;

use super::answer::{Answer, Failure, Query};
use super::work::Api;
use crate::view;

#[derive(Deserialize)]
pub(super) struct Asked {
    by: Option<String>,
}

/// The comparisons of now.
pub(super) async fn gain(
    State(api): State<Api>,
    Query(asked): Query<Asked>,
) -> Answer<Json<view::Gain>> {
    let by = asked.by.as_deref().unwrap_or("all");
    let scope = Scope::parse(by).ok_or_else(|| {
        Failure(
            StatusCode::BAD_REQUEST,
            format!("by: found {by:?}, expected all, arm, prefix or port"),
        )
    })?;
    api.work(move |shared| Ok(Json(shared.gain_view(scope)?)))
        .await
}

/// Gives back what was taken back.
pub(super) async fn resume(State(api): State<Api>) -> Answer<Json<serde_json::Value>> {
    api.work(|shared| Ok(Json(json!({ "resumed": shared.resume()? }))))
        .await
}
