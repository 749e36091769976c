//! Answers about the gain of the learner and of rules with a share, and advice.

use axum::Json;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use thalweg_gain::Scope;
use thalweg_learner::Mode;
use thalweg_units::prefix::{Prefix, PrefixError};

use super::session::State;
use crate::api::answer::{Answer, Failure, parse_query};
use crate::feature::Context;
use crate::view;

/// Most networks in advice.
const NETWORKS_MAX: usize = 10;

/// Query of both resources.
#[derive(Deserialize)]
struct Asked {
    by: Option<String>,
    prefix: Option<String>,
    rule: Option<String>,
}

/// The answer to `GET /v1/gain`: the present comparisons.
pub fn gain(state: &State, uri: &Uri, context: &Context<'_>) -> Answer<Response> {
    let asked: Asked = parse_query(uri)?;
    let by = asked.by.as_deref().unwrap_or("all");
    let scope = Scope::parse(by).ok_or_else(|| {
        Failure(
            StatusCode::BAD_REQUEST,
            format!("by: found {by:?}, expected all, arm, prefix, port or source"),
        )
    })?;
    let Some(rule) = asked.rule else {
        let mut gain = state.gain_view(scope, context)?;
        let features = context.features.iter();
        gain.features = features.filter_map(|it| it.feature_effect()).collect();
        return Ok(Json(gain).into_response());
    };
    if matches!(scope, Scope::Arm | Scope::Source) {
        return Err(Failure(
            StatusCode::BAD_REQUEST,
            format!("by: found {by:?}, expected all, prefix or port beside a rule"),
        ));
    }
    let view = state.rule_view(&rule, scope, context)?;
    let view = view.map_err(|why| Failure(StatusCode::NOT_FOUND, why))?;
    Ok(Json(view).into_response())
}

/// The answer to `POST /v1/gain/resume`, which ends all reverts.
pub fn resume(state: &State, context: &Context<'_>) -> Answer<Response> {
    Ok(Json(json!({ "resumed": state.resume(context)? })).into_response())
}

/// Settings of the features that are enabled and set nothing.
fn of_features(context: &Context<'_>) -> Vec<view::FeatureAdvice> {
    let setup = context.kernel.setup();
    let dry_run = setup.dry_run.then_some("dry_run = false");
    let advises = setup.advise.only.then_some("advise.only = false");
    let lines = dry_run.into_iter().chain(advises).map(str::to_owned);
    let lines: Vec<String> = lines.collect();
    let advice = context.features.iter().map(|it| view::FeatureAdvice {
        feature: it.name().to_owned(),
        lines: lines.clone(),
        settings: it.advised_settings(context),
    });
    advice.filter(|it| !it.settings.is_empty()).collect()
}

/// The answer to `GET /v1/advise`: the best arms, and limits of connections.
pub fn advise(state: &State, uri: &Uri, context: &Context<'_>) -> Answer<Response> {
    let asked: Asked = parse_query(uri)?;
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
    if context.kernel.params().mode == Mode::Classic {
        let text = "mode \"classic\" has no advice: the published tuner measures nothing but its own \
                    choices; run the agent in mode \"thalweg\"";
        return Err(Failure(StatusCode::CONFLICT, text.to_owned()));
    }
    let mut advice = state.advice_view(scope, prefix, context)?;
    if scope == Scope::All {
        let table = context.kernel.arms()?;
        advice.networks = context.network_limits(&context.presenter(&table));
        // The group of all connections is among the groups.
        let is_held =
            |it: &view::NetworkLimits| it.level != "namespace" && !it.limits.findings.is_empty();
        advice.networks.retain(is_held);
        advice.networks.truncate(NETWORKS_MAX);
        advice.features = of_features(context);
    }
    match prefix {
        Some(prefix) if advice.groups.iter().all(|group| group.by != "prefix") => Err(Failure(
            StatusCode::NOT_FOUND,
            format!("no connection of {prefix} is in a comparison yet"),
        )),
        _ => Ok(Json(advice).into_response()),
    }
}
