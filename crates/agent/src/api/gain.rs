//! Handlers of the gain of the learner, and of rules with a share.

use std::sync::Arc;

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
    rule: Option<String>,
}

/// Handler of the present comparisons.
pub(super) async fn gain(
    State(api): State<Api>,
    Query(asked): Query<Asked>,
) -> Answer<Json<view::Gain>> {
    let by = asked.by.as_deref().unwrap_or("all");
    let scope = Scope::parse(by).ok_or_else(|| {
        Failure(
            StatusCode::BAD_REQUEST,
            format!("by: found {by:?}, expected all, arm, prefix, port or source"),
        )
    })?;
    let Some(rule) = asked.rule else {
        return api
            .work(move |shared| Ok(Json(shared.gain_view(scope)?)))
            .await;
    };
    if matches!(scope, Scope::Arm | Scope::Source) {
        return Err(Failure(
            StatusCode::BAD_REQUEST,
            format!("by: found {by:?}, expected all, prefix or port beside a rule"),
        ));
    }
    let history = Arc::clone(&api.history);
    api.work(move |shared| {
        let view = shared.rule_view(&history, &rule, scope)?;
        view.map(Json)
            .map_err(|why| Failure(StatusCode::NOT_FOUND, why))
    })
    .await
}

/// Handler that ends all reverts.
pub(super) async fn resume(State(api): State<Api>) -> Answer<Json<serde_json::Value>> {
    let history = Arc::clone(&api.history);
    api.work(move |shared| Ok(Json(json!({ "resumed": shared.resume(&history)? }))))
        .await
}
