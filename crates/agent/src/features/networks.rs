//! Networks: what is known of prefixes, of networks that the operator names, of services and of all
//! hosts, which decides about new hosts. The learner keeps their records.

use std::collections::HashMap;
use std::net::IpAddr;

use anyhow::Result;
use axum::Json;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodFilter;
use clap::Args as _;
use serde::Deserialize;
use serde_json::{Value, json};
use thalweg_learner::{HostKey, Level};

use crate::api::answer::{Answer, parse_query};
use crate::feature::{Context, Feature, List, PageView, Route};
use crate::kernel::Kernel;
use crate::limits;
use crate::present::{NetworkQuery, Presenter, keep_networks};

mod present;
mod show;
mod view;

use show::Options;
use view::{Network, Networks};

/// State of the feature.
#[derive(Default)]
pub struct State;

impl Feature for State {
    fn name(&self) -> &'static str {
        "networks"
    }

    fn routes(&self) -> &'static [Route] {
        &[(MethodFilter::GET, "/v1/networks")]
    }

    fn walks_hosts(&self) -> bool {
        true
    }

    fn answer(&self, _: &str, uri: &Uri, context: &Context<'_>) -> Answer<Response> {
        let asked: NetworkQuery = parse_query(uri)?;
        let kernel = context.kernel;
        let table = kernel.arms()?;
        let presenter = context.presenter(&table);
        let mut groups = kernel.groups()?;
        keep_networks(&mut groups, asked.limit);
        let counts = hosts_by_group(kernel)?;
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
        let mut limits = context.network_limits(&presenter);
        limits.truncate(asked.limit.unwrap_or(usize::MAX));
        let answer = Networks {
            networks: networks.collect(),
            limits,
            limits_untold: limits::untold(kernel),
        };
        Ok(Json(answer).into_response())
    }

    fn explain_host(
        &self,
        host: &HostKey,
        address: IpAddr,
        context: &Context<'_>,
    ) -> Result<Option<Value>> {
        // A record of the host's own decides.
        if !context.kernel.setup().has_groups() || context.kernel.host(host)?.is_some() {
            return Ok(None);
        }
        let table = context.kernel.arms()?;
        let networks = networks_of(host, address, &context.presenter(&table), context.kernel)?;
        Ok((!networks.is_empty()).then(|| json!(networks)))
    }

    fn first_choice(&self, explanation: &Value) -> Option<String> {
        present::first_choice(&Vec::deserialize(explanation).ok()?)
    }

    fn explanation_text(&self, explanation: &Value) -> Option<String> {
        let networks = Vec::deserialize(explanation).ok()?;
        Some(show::networks_table(&networks))
    }

    fn page_view(&self) -> Option<PageView> {
        Some(PageView {
            title: Some("Networks"),
            is_hidden: false,
            body: include_str!("networks/view.html"),
            script: include_str!("networks/networks.js"),
        })
    }

    fn list(&self) -> Option<List> {
        Some(List {
            about: "List what is known of networks, which decides about their new hosts",
            add_options: Options::augment_args,
            show: show::list,
        })
    }
}

/// Networks of a host without a record that have records, the narrowest first. The host's service
/// is known only after connecting. Where a service would decide, all services are returned.
fn networks_of(
    host: &HostKey,
    address: IpAddr,
    presenter: &Presenter<'_>,
    kernel: &Kernel,
) -> Result<Vec<Network>> {
    let netns = host.netns;
    let mut found = Vec::new();
    // The host's own record, then the fleet's, in the order of the programs.
    let mut add = |key: HostKey| -> Result<bool> {
        let mut decides = false;
        let of_fleet = key
            .level
            .fleet_level()
            .map(|level| HostKey { level, ..key });
        for key in [key].into_iter().chain(of_fleet) {
            if let Some(group) = kernel.host(&key)? {
                let network = presenter.network(&key, &group, None);
                decides |= network.decides;
                found.push(network);
            }
        }
        Ok(decides)
    };
    let mut keys: Vec<HostKey> = kernel.setup().groups_of(netns, address).collect();
    let all = keys.pop();
    // A prefix as long as the host's is the host's own.
    keys.retain(|key| key.level != Level::Prefix || key.prefix_len < host.prefix_len);
    let mut decides = false;
    for key in keys {
        decides |= add(key)?;
    }
    if !decides {
        let mut services = kernel.groups()?;
        services.retain(|(key, _)| key.level == Level::Service && key.netns == netns);
        services.sort_by_key(|(key, _)| key.addr);
        for (key, _) in services {
            add(key)?;
        }
    }
    all.map(add).transpose()?;
    Ok(found)
}

/// Number of host records in each prefix, named network and namespace.
fn hosts_by_group(kernel: &Kernel) -> Result<HashMap<HostKey, u64>> {
    let mut counts = HashMap::new();
    kernel.walk_hosts(|batch| {
        for (key, _) in batch {
            for group in kernel.setup().groups_of(key.netns, key.address()) {
                *counts.entry(group).or_default() += 1;
            }
        }
        Ok(())
    })?;
    Ok(counts)
}
