//! Remote hosts: what is known of each, why its next connection gets its arm, export, import and
//! reset. The learner keeps their records.

use std::net::IpAddr;

use axum::http::{Method, StatusCode};
use axum::routing::MethodFilter;
use serde_json::{Value, json};
use thalweg_learner::HostKey;
use thalweg_units::address;

use crate::api::answer::{Answer, Failure, parse_query};
use crate::feature::{BodyBounds, Context, Feature, PageView, Reply, Request, Route};
use crate::kernel::{HostBatch, Kernel};

mod best;
mod egress;
mod explain;
mod import;
mod list;
mod present;

/// Routes.
const HOSTS: &str = "/v1/hosts";
const HOST: &str = "/v1/hosts/{address}";
const EXPORT: &str = "/v1/export";
const IMPORT: &str = "/v1/import";

/// State of the feature.
#[derive(Default)]
pub struct State;

impl Feature for State {
    fn name(&self) -> &'static str {
        "hosts"
    }

    fn routes(&self) -> &'static [Route] {
        &[
            (MethodFilter::GET, HOSTS),
            (MethodFilter::DELETE, HOSTS),
            (MethodFilter::GET, HOST),
            (MethodFilter::DELETE, HOST),
            (MethodFilter::GET, EXPORT),
            (MethodFilter::POST, IMPORT),
        ]
    }

    fn walks_hosts(&self) -> bool {
        true
    }

    fn body_bounds(&self, route: &str, kernel: &Kernel) -> Option<BodyBounds> {
        (route == IMPORT).then(|| import::bounds(kernel))
    }

    fn reply(&self, request: &Request<'_>, context: &Context<'_>) -> Answer<Reply> {
        let resets = request.method == Method::DELETE;
        match (request.route, request.body) {
            (HOSTS, _) if resets => Ok(Reply::json(reset_all(context)?)),
            (HOSTS, _) => Ok(Reply::Pages(list::hosts(&parse_query(request.uri)?)?)),
            (EXPORT, _) => Ok(Reply::Pages(list::export(context)?)),
            (IMPORT, Some(file)) => Ok(Reply::json(import::import(file, context)?)),
            _ if resets => Ok(Reply::json(reset_one(request.parameter, context)?)),
            _ => Ok(Reply::json(explain::explain(request.parameter, context)?)),
        }
    }

    fn page_view(&self) -> Option<PageView> {
        Some(PageView {
            title: Some("Hosts"),
            is_hidden: false,
            body: include_str!("hosts/view.html"),
            script: include_str!("hosts/hosts.js"),
        })
    }
}

/// An address, and the key of its host's record, or that of the prefix that contains it; its
/// namespace does not count.
fn wanted_host(context: &Context<'_>, text: &str) -> Answer<(IpAddr, HostKey)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address = address::parse_address(address).ok_or_else(|| {
        Failure(
            StatusCode::BAD_REQUEST,
            format!("{text:?} is not an IPv4 or IPv6 address"),
        )
    })?;
    let address = context.kernel.nat64().unwrap_address(address);
    let setup = context.kernel.setup();
    let key = HostKey::new(0, address, setup.ipv4_prefix, setup.ipv6_prefix)
        .map_err(|error| Failure(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let own = key.own_prefix().to_string();
    if length.is_some_and(|length| length != own) {
        let expected = format!(
            "an address, or a prefix of length {own}, as hosts.ipv4_prefix and hosts.ipv6_prefix \
             tell hosts apart"
        );
        return Err(Failure(
            StatusCode::BAD_REQUEST,
            format!("found {text:?}, expected {expected}"),
        ));
    }
    Ok((address, key))
}

/// Records of a host in every namespace, the agent's own first.
fn hosts_of(context: &Context<'_>, wanted: &HostKey) -> anyhow::Result<HostBatch> {
    let own = |key: &HostKey| (key.addr, key.prefix_len);
    let mut found = HostBatch::new();
    context.kernel.walk_hosts(|batch| {
        let records = batch.into_iter();
        found.extend(records.filter(|(key, _)| own(key) == own(wanted)));
        Ok(())
    })?;
    found.sort_by_key(|(key, _)| (key.netns != context.own_netns, key.netns));
    Ok(found)
}

/// Response for a host of which nothing is known.
fn unknown_host(text: &str) -> Failure {
    Failure(StatusCode::NOT_FOUND, format!("nothing is known of {text}"))
}

fn reset_all(context: &Context<'_>) -> anyhow::Result<Value> {
    let removed = context.kernel.clear_hosts()?;
    context.store(|store| store.clear_hosts(context.mode()))?;
    context.records.count_records()?;
    Ok(json!({ "removed": removed }))
}

fn reset_one(address: &str, context: &Context<'_>) -> Answer<Value> {
    let mut removed = 0;
    let found = hosts_of(context, &wanted_host(context, address)?.1)?;
    if found.is_empty() {
        return Err(unknown_host(address));
    }
    for (key, _) in found {
        removed += u64::from(context.kernel.remove_host(&key)?);
        context.store(|store| store.reset_host(context.mode(), &key))?;
    }
    Ok(json!({ "removed": removed }))
}
