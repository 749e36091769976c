//! `GET /v1/hosts/{address}`: why the next connection to a host will use its arm.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Context;
use axum::Json;
use axum::extract::State;
use serde_json::Value;
use thalweg_learner::{Host, HostKey, Level};
use thalweg_units::address::{is_link_local, is_loopback};

use super::answer::{Address, Answer};
use super::work::Api;
use super::{RECENT, Wanted, hosts_of, latest, unknown, wanted};
use crate::egress;
use crate::present::Presenter;
use crate::shared::Shared;
use crate::view::{Explanation, Network};

/// Explanations by features, by their names.
type Explained = BTreeMap<String, Value>;

/// Explains the host: once for each network namespace that knows it, or else by its networks.
pub(super) async fn explain(
    State(api): State<Api>,
    Address(address): Address,
) -> Answer<Json<Vec<Explanation>>> {
    api.work(move |shared| {
        let table = shared.kernel.arms()?;
        let presenter = shared.presenter(&table);
        let unset = match shared.kernel.setup().advise.only {
            true => "This agent sets nothing but trials. ",
            false => "",
        };
        let wanted = wanted(shared, &address)?;
        let mut out = Vec::new();
        for (key, host) in hosts_of(shared, &wanted)? {
            out.push(Explanation {
                summary: format!("{unset}{}", presenter.summary(&key, &host)),
                features: of_features(shared, &key, wanted.address)?,
                ..explanation(shared, &presenter, &key, &host)?
            });
        }
        if out.is_empty() {
            for netns in namespaces(shared)? {
                let networks = networks(shared, &presenter, netns, &wanted)?;
                let key = HostKey {
                    netns,
                    ..wanted.key
                };
                let features = of_features(shared, &key, wanted.address)?;
                if networks.is_empty() && features.is_empty() {
                    continue;
                }
                out.push(Explanation {
                    summary: format!("{unset}{}", presenter.stranger(&networks)),
                    networks,
                    features,
                    ..explanation(shared, &presenter, &key, &Host::default())?
                });
            }
        }
        match out.is_empty() {
            true => Err(unknown(&address)),
            false => Ok(Json(out)),
        }
    })
    .await
}

fn explanation(
    shared: &Shared,
    presenter: &Presenter<'_>,
    key: &HostKey,
    host: &Host,
) -> anyhow::Result<Explanation> {
    Ok(Explanation {
        summary: String::new(),
        host: presenter.host(key, host),
        networks: Vec::new(),
        features: Explained::new(),
        egress: egress(shared, key)?,
        recent: latest::of_host(shared, &key.to_string(), RECENT)?,
        events_share: shared.sampling(|sampling| sampling.share()),
    })
}

/// Network namespaces in scope, the agent's own first.
fn namespaces(shared: &Shared) -> anyhow::Result<Vec<u64>> {
    let mut found: Vec<u64> = shared.kernel.defaults()?.into_keys().collect();
    found.sort_by_key(|&netns| (netns != shared.own_netns, netns));
    Ok(found)
}

/// Networks of a host without a record that have records, the narrowest first. The host's service
/// is known only after connecting. Where a service would decide, all services are returned.
fn networks(
    shared: &Shared,
    presenter: &Presenter<'_>,
    netns: u64,
    wanted: &Wanted,
) -> anyhow::Result<Vec<Network>> {
    let setup = shared.kernel.setup();
    // Out of scope, whatever is known.
    if !setup.has_groups() || is_left_alone(wanted.address) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    // The host's own record, then the fleet's, in the order of the programs.
    let mut add = |key: HostKey| -> anyhow::Result<bool> {
        let mut decides = false;
        let of_fleet = key
            .level
            .fleet_level()
            .map(|level| HostKey { level, ..key });
        for key in [key].into_iter().chain(of_fleet) {
            if let Some(group) = shared.kernel.host(&key)? {
                let network = presenter.network(&key, &group, None);
                decides |= network.decides;
                found.push(network);
            }
        }
        Ok(decides)
    };
    let (v4, v6) = (setup.networks.ipv4_prefix, setup.networks.ipv6_prefix);
    let prefix = HostKey {
        level: Level::Prefix,
        ..HostKey::new(netns, wanted.address, v4, v6)?
    };
    let mut decides = prefix.prefix_len < wanted.key.prefix_len && add(prefix)?;
    if let Some(number) = setup.named.find(wanted.address) {
        decides |= add(HostKey::of_named(netns, number))?;
    }
    if !decides {
        let mut services = shared.kernel.groups()?;
        services.retain(|(key, _)| key.level == Level::Service && key.netns == netns);
        services.sort_by_key(|(key, _)| key.addr);
        for (key, _) in services {
            add(key)?;
        }
    }
    add(HostKey::of_namespace(netns))?;
    Ok(found)
}

/// Explanations of a host by features, by their names.
fn of_features(shared: &Shared, key: &HostKey, address: IpAddr) -> anyhow::Result<Explained> {
    let mut found = Explained::new();
    let context = shared.feature_context();
    for feature in context.features.iter().filter(|_| !is_left_alone(address)) {
        let explained = feature.explain_host(key, address, &context)?;
        found.extend(explained.map(|it| (feature.name().to_owned(), it)));
    }
    Ok(found)
}

/// Devices by which connections to a host may leave, if there are several.
fn egress(shared: &Shared, key: &HostKey) -> anyhow::Result<Vec<String>> {
    if key.netns != shared.own_netns {
        return Ok(Vec::new());
    }
    let devices = egress::devices(key.address()).context("asking for routes")?;
    Ok(Some(devices).filter(|it| it.len() > 1).unwrap_or_default())
}

/// Whether connections to an address are left alone.
fn is_left_alone(address: IpAddr) -> bool {
    is_loopback(address) || is_link_local(address)
}
