//! `GET /v1/clamps`: the learned clamps of congestion windows.

use axum::Json;
use axum::extract::State;

use super::answer::Answer;
use super::work::Api;
use crate::view::Clamps;

/// All remote hosts in the prefixes of clamps, by namespace and address.
pub(super) async fn clamps(State(api): State<Api>) -> Answer<Json<Clamps>> {
    api.work(|shared| {
        let table = shared.kernel.arms()?;
        let presenter = shared.presenter(&table);
        let setup = shared.kernel.setup();
        let hosts = shared.life.clamps.hosts();
        Ok(Json(Clamps {
            prefixes: setup
                .clamp_prefixes
                .iter()
                .map(ToString::to_string)
                .collect(),
            sets: setup.sets_clamps() && shared.kernel.has_clamps(),
            hosts: hosts
                .iter()
                .map(|(remote, entry)| presenter.clamp(remote, entry))
                .collect(),
        }))
    })
    .await
}
