//! Limits of the connections of each network: a buffer or window that is too small. They stand in
//! `GET /v1/networks`, and under advice.

use thalweg_bpf_types::raw;
use thalweg_control::system::NetworkNamespace;
use thalweg_gain::Account;
use thalweg_learner::{HostKey, Level};

use crate::events::level;
use crate::feature::{Context, Feature};
use crate::kernel::ArmTable;
use crate::limits::{self, Buffers};
use crate::present::Presenter;
use crate::view::NetworkLimits;

mod networks;

use networks::Networks;

/// State of the feature.
#[derive(Default)]
pub struct State(Networks);

impl Feature for State {
    fn name(&self) -> &'static str {
        "limits"
    }

    fn take_events(&self, events: &[raw::thalweg_event], _: &ArmTable, context: &Context<'_>) {
        self.0.take(events, context.kernel.setup());
    }

    fn note_namespaces(&self, namespaces: &[NetworkNamespace]) {
        self.0.note_buffers(namespaces);
    }

    fn network_limits(&self, presenter: &Presenter<'_>) -> Vec<NetworkLimits> {
        let accounts = self.0.all();
        let presented = accounts.iter().filter_map(|(key, account)| {
            presented_network(presenter, key, account, self.0.buffers(key.netns))
        });
        presented.collect()
    }
}

/// View of the limits of a network's connections.
fn presented_network(
    presenter: &Presenter<'_>,
    key: &HostKey,
    account: &Account,
    buffers: Buffers,
) -> Option<NetworkLimits> {
    let name = presenter.network_name(key);
    let network = limits::Network {
        account,
        prefix: (key.level == Level::Prefix).then_some(&name),
    };
    let limits = limits::presented(&account.limits, buffers, Some(network))?;
    let free = &account.free;
    Some(NetworkLimits {
        level: level(key.level as u32).to_string(),
        netns: key.netns,
        container: presenter.containers.get(&key.netns).cloned(),
        limits,
        free_connections: free.connections,
        free_bytes_per_s: (free.connections > 0).then(|| free.held_rate()),
        fastest_bytes_per_s: account.fastest,
        name,
    })
}
