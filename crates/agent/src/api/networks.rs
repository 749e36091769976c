//! `GET /v1/networks`: records of networks.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use thalweg_learner::{HostKey, Level};

use super::answer::{Answer, Query};
use super::work::Api;
use crate::limits;
use crate::present::keep_networks;
use crate::shared::Shared;
use crate::view::Networks;

/// Query of `GET /v1/networks`.
#[derive(Deserialize)]
pub(super) struct Asked {
    /// Number of networks, those with most measurements; `None`: all.
    limit: Option<usize>,
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
        keep_networks(&mut groups, asked.limit);
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
