//! `GET /v1/windows`: records of initial windows.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use thalweg_learner::window;

use super::answer::{Answer, Query};
use super::work::Api;
use crate::present::keep_measured;
use crate::view::Windows;

/// Query of the request.
#[derive(Deserialize)]
pub(super) struct Asked {
    /// Number of networks, those with most measurements; `None`: all.
    limit: Option<usize>,
}

/// Initial windows by network, the narrowest first, then by name.
pub(super) async fn windows(
    State(api): State<Api>,
    Query(asked): Query<Asked>,
) -> Answer<Json<Windows>> {
    api.work(move |shared| {
        let table = shared.kernel.arms()?;
        let presenter = shared.presenter(&table);
        let allowed = shared.kernel.setup().windows();
        let mut records = shared.kernel.windows()?;
        keep_measured(&mut records, asked.limit);
        let segments = (0..window::COUNT).filter(|arm| allowed >> arm & 1 != 0);
        Ok(Json(Windows {
            segments: segments.map(window::arm_segments).collect(),
            networks: records
                .iter()
                .map(|(key, record)| presenter.windows(key, record, allowed))
                .collect(),
        }))
    })
    .await
}
