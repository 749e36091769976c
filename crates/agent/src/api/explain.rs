//! `GET /v1/hosts/{address}`: why the next connection to a host will use its arm.

use std::net::IpAddr;

use anyhow::Context;
use axum::Json;
use axum::extract::State;
use thalweg_learner::{Host, HostKey, Level};
use thalweg_units::address::{is_link_local, is_loopback};

use super::answer::{Address, Answer};
use super::work::Api;
use super::{RECENT, Wanted, hosts_of, latest, unknown, wanted};
use crate::egress;
use crate::present::Presenter;
use crate::shared::Shared;
use crate::view::{Explanation, Network, WindowNetwork};

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
                windows: windows(shared, &presenter, key.netns, &wanted)?,
                ..explanation(shared, &presenter, &key, &host)?
            });
        }
        if out.is_empty() {
            for netns in namespaces(shared)? {
                let networks = networks(shared, &presenter, netns, &wanted)?;
                let windows = windows(shared, &presenter, netns, &wanted)?;
                if networks.is_empty() && windows.is_empty() {
                    continue;
                }
                let key = HostKey {
                    netns,
                    ..wanted.key
                };
                out.push(Explanation {
                    summary: format!("{unset}{}", presenter.stranger(&networks)),
                    networks,
                    windows,
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
        windows: Vec::new(),
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

/// Records of initial windows towards a host, the narrowest first: prefix, then namespace. The
/// service between them is known only after connecting.
fn windows(
    shared: &Shared,
    presenter: &Presenter<'_>,
    netns: u64,
    wanted: &Wanted,
) -> anyhow::Result<Vec<WindowNetwork>> {
    let setup = shared.kernel.setup();
    let allowed = setup.windows();
    if allowed == 0 || is_left_alone(wanted.address) {
        return Ok(Vec::new());
    }
    let (v4, v6) = (setup.networks.ipv4_prefix, setup.networks.ipv6_prefix);
    let prefix = HostKey {
        level: Level::WindowPrefix,
        ..HostKey::new(netns, wanted.address, v4, v6)?
    };
    let namespace = HostKey {
        level: Level::WindowNamespace,
        ..HostKey::of_namespace(netns)
    };
    let mut found = Vec::new();
    let has_prefix = prefix.prefix_len < wanted.key.prefix_len;
    for key in has_prefix.then_some(prefix).into_iter().chain([namespace]) {
        if let Some(record) = shared.kernel.host(&key)? {
            found.push(presenter.windows(&key, &record, allowed));
        }
    }
    Ok(found)
}

/// Devices by which connections to a host may leave, if there are several.
fn egress(shared: &Shared, key: &HostKey) -> anyhow::Result<Vec<String>> {
    if key.netns != shared.own_netns {
        return Ok(Vec::new());
    }
    let (address, nat64) = (key.address(), shared.kernel.nat64());
    let devices = egress::devices_to_host(address, &nat64).context("asking for routes")?;
    Ok(Some(devices).filter(|it| it.len() > 1).unwrap_or_default())
}

/// Whether connections to an address are left alone.
fn is_left_alone(address: IpAddr) -> bool {
    is_loopback(address) || is_link_local(address)
}
