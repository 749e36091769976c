//! Users of a congestion control: sockets by its name, from the kernel's socket diagnosis
//! (`sock_diag(7)`), in every network namespace that can be entered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::{diag, system};

/// Sockets that use a congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Connections, including those that no process holds any more.
    pub flows: u64,
    /// Listeners; connections that they accept get it, too.
    pub listeners: u64,
    /// Network namespaces whose default it is.
    pub default_in: u64,
}

impl Usage {
    /// Whether any socket uses it.
    pub fn has_sockets(&self) -> bool {
        self.flows + self.listeners > 0
    }
}

/// Use of every congestion control that is in use.
///
/// # Errors
/// [`crate::Error`] if the kernel does not tell.
pub fn count_usage() -> Result<BTreeMap<String, Usage>> {
    let mut all: BTreeMap<String, Usage> = BTreeMap::new();
    for namespace in system::in_namespaces(|_| true, || Some(in_this_namespace())) {
        for (name, more) in namespace? {
            let sum = all.entry(name).or_default();
            sum.flows += more.flows;
            sum.listeners += more.listeners;
            sum.default_in += more.default_in;
        }
    }
    Ok(all)
}

fn in_this_namespace() -> Result<BTreeMap<String, Usage>> {
    let mut used: BTreeMap<String, Usage> = BTreeMap::new();
    diag::for_each_socket(&mut |socket| {
        let Some(name) = socket.congestion_control else {
            return;
        };
        let entry = used.entry(name.to_owned()).or_default();
        if socket.is_listener {
            entry.listeners += 1;
        } else {
            entry.flows += 1;
        }
    })?;
    if let Ok(name) = system::default_cc() {
        used.entry(name).or_default().default_in += 1;
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

    use super::*;

    #[test]
    fn a_listener_of_our_own_is_counted() {
        let name = system::default_cc().unwrap();
        let before = in_this_namespace()
            .unwrap()
            .get(&name)
            .copied()
            .unwrap_or_default();
        let _listeners: Vec<_> = (0..50)
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let after = in_this_namespace().unwrap()[&name];
        // Other tests of this machine open and close a few at the same time.
        assert!(
            after.listeners >= before.listeners + 30,
            "{before:?} {after:?}"
        );
        assert_eq!(after.default_in, 1);
    }
}
