//! `GET /v1/hosts/{address}`: why the next connection to a host will use its arm.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Context as _;
use thalweg_learner::{Host, HostKey};
use thalweg_units::address::{is_link_local, is_loopback};

use super::{egress, hosts_of, unknown_host, wanted_host};
use crate::api::answer::Answer;
use crate::api::latest;
use crate::feature::Context;
use crate::present::Presenter;
use crate::view::Explanation;

/// Number of events in an explanation.
const RECENT: u32 = 10;
/// Summary of a host of which too little is known.
const UNKNOWN: &str =
    "No record of its own, and its networks know too little: the system default stays.";

/// Explains the host: once for each network namespace that knows it, or else by its networks.
pub fn explain(text: &str, context: &Context<'_>) -> Answer<Vec<Explanation>> {
    let table = context.kernel.arms()?;
    let presenter = context.presenter(&table);
    let (address, any) = wanted_host(context, text)?;
    let explain = |key, host| explained(context, &presenter, address, key, host);
    let mut out = Vec::new();
    for (key, host) in hosts_of(context, &any)? {
        out.extend(explain(key, Some(host))?);
    }
    if out.is_empty() {
        for netns in namespaces(context)? {
            out.extend(explain(HostKey { netns, ..any }, None)?);
        }
    }
    match out.is_empty() {
        true => Err(unknown_host(text)),
        false => Ok(out),
    }
}

/// Explanation of a host; `None`: it has no record, and nothing else is known of it.
fn explained(
    context: &Context<'_>,
    presenter: &Presenter<'_>,
    address: IpAddr,
    key: HostKey,
    host: Option<Host>,
) -> anyhow::Result<Option<Explanation>> {
    let mut features = BTreeMap::new();
    let mut summary = host.as_ref().map(|host| presenter.summary(&key, host));
    // Connections to others are left alone, whatever is known.
    let in_scope = !is_loopback(address) && !is_link_local(address);
    for feature in context.features.iter().filter(|_| in_scope) {
        if let Some(known) = feature.explain_host(&key, address, context)? {
            summary = summary.or_else(|| feature.first_choice(&known));
            features.insert(feature.name().to_owned(), known);
        }
    }
    if host.is_none() && features.is_empty() {
        return Ok(None);
    }
    let summary = summary.unwrap_or_else(|| UNKNOWN.to_owned());
    Ok(Some(Explanation {
        host: presenter.host(&key, &host.unwrap_or_default()),
        features,
        egress: egress_devices(context, &key)?,
        summary: match context.kernel.setup().advise.only {
            true => format!("This agent sets nothing but trials. {summary}"),
            false => summary,
        },
        recent: latest::of_host(context, &key.to_string(), RECENT)?,
        events_share: context.sampling(|sampling| sampling.share()),
    }))
}

/// Network namespaces in scope, the agent's own first.
fn namespaces(context: &Context<'_>) -> anyhow::Result<Vec<u64>> {
    let mut found: Vec<u64> = context.kernel.defaults()?.into_keys().collect();
    found.sort_by_key(|&netns| (netns != context.own_netns, netns));
    Ok(found)
}

/// Devices by which connections to a host may leave, if there are several.
fn egress_devices(context: &Context<'_>, key: &HostKey) -> anyhow::Result<Vec<String>> {
    if key.netns != context.own_netns {
        return Ok(Vec::new());
    }
    let (address, nat64) = (key.address(), context.kernel.nat64());
    let devices = egress::devices_to_host(address, &nat64).context("asking for routes")?;
    Ok(Some(devices).filter(|it| it.len() > 1).unwrap_or_default())
}
