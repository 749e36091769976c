//! Errors of requests, and conversions to them.

use axum::Json;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::json;

/// An error of a request, as `{"error": "..."}`.
pub struct Failure(pub StatusCode, pub String);

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

/// The answer to a request.
pub type Answer<T> = Result<T, Failure>;

/// Query string of a request.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        parse_query(&parts.uri).map(Self)
    }
}

/// Reads the query string of a request.
///
/// # Errors
/// Values that are missing, or of another type.
pub fn parse_query<T: DeserializeOwned>(uri: &Uri) -> Answer<T> {
    match axum::extract::Query::try_from_uri(uri) {
        Ok(axum::extract::Query(values)) => Ok(values),
        Err(fault) => Err(Failure(fault.status(), fault.body_text())),
    }
}

/// Parameter in the path of a request; empty: there is none.
pub(super) struct Parameter(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Parameter {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        match Path::<Vec<(String, String)>>::from_request_parts(parts, state).await {
            Ok(Path(found)) => Ok(Self(found.into_iter().map(|(_, it)| it).collect())),
            Err(fault) => Err(Failure(fault.status(), fault.body_text())),
        }
    }
}
