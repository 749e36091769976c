//! `GET /v1/networks` and `GET /v1/windows`: records of networks.

use std::cmp::Reverse;
use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use thalweg_learner::{Host, HostKey, Level, window};

use super::answer::{Answer, Query};
use super::work::Api;
use crate::limits;
use crate::shared::Shared;
use crate::view::{Networks, Windows};

/// Query of `GET /v1/networks` and `GET /v1/windows`.
#[derive(Deserialize)]
pub(super) struct Asked {
    /// Number of networks, those with most measurements; `None`: all.
    limit: Option<usize>,
}

impl Asked {
    /// Keeps the `limit` records with most measurements, the narrowest first, then by address.
    fn keep(&self, records: &mut Vec<(HostKey, Host)>) {
        let limit = self.limit.unwrap_or(usize::MAX);
        if limit < records.len() {
            records.sort_by_key(|(key, record)| (Reverse(record.scored), place(key)));
            records.truncate(limit);
        }
        records.sort_by_key(|(key, _)| place(key));
    }
}

/// Sort key: narrow networks first, then by address; the fleet's record follows the agent's own.
fn place(key: &HostKey) -> impl Ord + use<> {
    (
        key.level.own_level(),
        key.addr,
        key.prefix_len,
        key.netns,
        key.level,
    )
}

/// Groups of hosts, the narrowest first, then by name.
pub(super) async fn networks(
    State(api): State<Api>,
    Query(asked): Query<Asked>,
) -> Answer<Json<Networks>> {
    api.work(move |shared| {
        let table = shared.kernel.arms()?;
        let presenter = shared.presenter(&table);
        let mut groups = shared.kernel.groups()?;
        asked.keep(&mut groups);
        let counts = hosts_by_group(shared)?;
        let hosts = |key: &HostKey| match key.level.own_level() {
            level @ (Level::Prefix | Level::Named | Level::Namespace) => {
                let own = HostKey { level, ..*key };
                Some(counts.get(&own).copied().unwrap_or(0))
            }
            _ => None,
        };
        let networks = groups
            .iter()
            .map(|(key, group)| presenter.network(key, group, hosts(key)));
        let mut limits = shared.feature_context().network_limits(&presenter);
        limits.truncate(asked.limit.unwrap_or(usize::MAX));
        Ok(Json(Networks {
            networks: networks.collect(),
            limits,
            limits_untold: limits::untold(&shared.kernel),
        }))
    })
    .await
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
        asked.keep(&mut records);
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

/// Number of host records in each prefix, named network and namespace.
fn hosts_by_group(shared: &Shared) -> anyhow::Result<HashMap<HostKey, u64>> {
    let setup = shared.kernel.setup();
    let lengths = &setup.networks;
    let mut counts = HashMap::new();
    shared.kernel.walk_hosts(|batch| {
        for (key, _) in batch {
            let (v4, v6) = (lengths.ipv4_prefix, lengths.ipv6_prefix);
            let prefix = HostKey {
                level: Level::Prefix,
                ..HostKey::new(key.netns, key.address(), v4, v6)?
            };
            let number = setup.named.find(key.address());
            let named = number.map(|number| HostKey::of_named(key.netns, number));
            let namespace = HostKey::of_namespace(key.netns);
            for group in [prefix, namespace].into_iter().chain(named) {
                *counts.entry(group).or_default() += 1;
            }
        }
        Ok(())
    })?;
    Ok(counts)
}
