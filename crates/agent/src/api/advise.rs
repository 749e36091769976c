//! Handler of advice: the best arms, and limits of connections.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use thalweg_gain::Scope;
use thalweg_learner::Mode;
use thalweg_units::prefix::{Prefix, PrefixError};

use super::answer::{Answer, Failure, Query};
use super::networks;
use super::work::Api;
use crate::view;

/// Most networks in a response.
const NETWORKS_MAX: usize = 10;

#[derive(Deserialize)]
pub(super) struct Asked {
    by: Option<String>,
    prefix: Option<String>,
}

/// Handler of `GET /v1/advise`.
pub(super) async fn advise(
    State(api): State<Api>,
    Query(asked): Query<Asked>,
) -> Answer<Json<view::Advice>> {
    let refused = |text| Err(Failure(StatusCode::BAD_REQUEST, text));
    let by = asked.by.as_deref();
    let scope = Scope::parse(by.unwrap_or("all")).filter(|it| *it != Scope::Source);
    let Some(scope) = scope else {
        let by = by.unwrap_or_default();
        return refused(format!(
            "by: found {by:?}, expected all, arm, prefix or port"
        ));
    };
    let (scope, prefix) = match &asked.prefix {
        None => (scope, None),
        Some(_) if ![None, Some("prefix")].contains(&by) => {
            return refused("prefix: expected by=prefix beside it, or no by".to_owned());
        }
        Some(text) => match Prefix::parse(text) {
            Ok(prefix) | Err(PrefixError::HostBits(prefix)) => (Scope::Prefix, Some(prefix)),
            Err(PrefixError::Malformed) => {
                return refused(format!(
                    "prefix: found {text:?}, expected a prefix such as 192.0.2.0/24, or an address"
                ));
            }
        },
    };
    if api.shared.mode() == Mode::Classic {
        let text = "mode \"classic\" has no advice: the published tuner measures nothing but its own \
                    choices; run the agent in mode \"thalweg\"";
        return Err(Failure(StatusCode::CONFLICT, text.to_owned()));
    }
    api.work(move |shared| {
        let mut advice = shared.advice_view(scope, prefix)?;
        if scope == Scope::All {
            let table = shared.kernel.arms()?;
            advice.networks = networks::limits(shared, &shared.presenter(&table));
            // The group of all connections is among the groups.
            let is_held = |it: &view::NetworkLimits| {
                it.level != "namespace" && !it.limits.findings.is_empty()
            };
            advice.networks.retain(is_held);
            advice.networks.truncate(NETWORKS_MAX);
        }
        match prefix {
            Some(prefix) if advice.groups.iter().all(|group| group.by != "prefix") => Err(Failure(
                StatusCode::NOT_FOUND,
                format!("no connection of {prefix} is in a comparison yet"),
            )),
            _ => Ok(Json(advice)),
        }
    })
    .await
}
