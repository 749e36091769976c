//! A new configuration for a running agent: taken or refused as a whole.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_control::system;

use crate::api::tcp::PortListener;
use crate::config::{Config, ConfigError};
use crate::named::Named;

/// Function that reads the configuration again, from the place of the agent's start.
pub type Reread = Box<dyn Fn() -> anyhow::Result<Config> + Send + Sync>;

/// Change of the configuration.
pub struct Reload {
    reread: Reread,
    /// Lock while the configuration is read: of two requests, the later one has the later file.
    reading: Mutex<()>,
    plan: Mutex<Plan>,
}

/// A configuration that can be put in force.
pub struct Ready {
    /// The configuration.
    pub config: Config,
    /// The listener of its port; `None`: it names no port.
    pub port_listener: Option<PortListener>,
    /// Table of the configuration's named networks.
    pub named: Arc<Named>,
}

/// Plan for the end of the session.
enum Plan {
    /// No plan.
    None,
    /// Another session, with this configuration.
    Next(Box<Ready>),
    /// The agent ends; later requests are ignored.
    End,
}

/// Reason that a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The configuration cannot be read, or has faults.
    #[error("{0:#}")]
    Faults(anyhow::Error),
    /// Keys differ that are used only when the agent starts.
    #[error(
        "{} changed, which takes a restart, as systemctl restart thalweg: no connection is lost by it",
        .0.join(", ")
    )]
    Restart(Vec<&'static str>),
    /// The agent is about to end.
    #[error("the agent ends")]
    Ending,
    /// The cgroup of the configuration cannot be used.
    #[error("`cgroup` of the configuration: {0:#}")]
    Cgroup(thalweg_control::Error),
    /// The port or the token of the configuration cannot be used.
    #[error("{0:#}")]
    Http(anyhow::Error),
}

impl Reload {
    /// A reload that reads with `reread`.
    pub fn new(reread: Reread) -> Self {
        Self {
            reread,
            reading: Mutex::new(()),
            plan: Mutex::new(Plan::None),
        }
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the configuration, and checks it as far as possible while the old one is in force.
    /// Returns false if nothing changed.
    ///
    /// # Errors
    /// The configuration is refused; the old one stays.
    pub fn prepare(
        &self,
        now: &Config,
        port_listener: Option<&PortListener>,
        named: &Arc<Named>,
    ) -> Result<bool, Refused> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let next = (self.reread)().map_err(Refused::Faults)?;
        let changed = takes_restart(now, &next);
        if !changed.is_empty() {
            return Err(Refused::Restart(changed));
        }
        if let Some(cgroup) = &next.cgroup {
            system::check_cgroup2(cgroup).map_err(Refused::Cgroup)?;
        }
        let next_named = Named::read(next.networks.table.as_deref());
        let next_named =
            next_named.map_err(|why| Refused::Faults(ConfigError::Table(why).into()))?;
        let mut plan = self.plan();
        let planned = match &*plan {
            Plan::Next(planned) => planned.port_listener.as_ref(),
            Plan::None | Plan::End => None,
        };
        let others: Vec<&PortListener> = port_listener.into_iter().chain(planned).collect();
        let next_front = PortListener::new(&next.http, &others).map_err(Refused::Http)?;
        match *plan {
            Plan::End => Err(Refused::Ending),
            // The file of the token may have another content.
            Plan::None
                if next == *now
                    && next_front.as_ref() == port_listener
                    && next_named == **named =>
            {
                Ok(false)
            }
            // The present configuration, too, replaces a planned one.
            Plan::None | Plan::Next(_) => {
                *plan = Plan::Next(Box::new(Ready {
                    config: next,
                    port_listener: next_front,
                    named: match next_named == **named {
                        true => Arc::clone(named),
                        false => Arc::new(next_named),
                    },
                }));
                Ok(true)
            }
        }
    }

    /// Refuses all further configurations, as the agent ends.
    pub fn end(&self) {
        *self.plan() = Plan::End;
    }

    /// Whether another session follows.
    pub fn is_planned(&self) -> bool {
        matches!(*self.plan(), Plan::Next(_))
    }

    /// Takes the planned configuration.
    pub fn take(&self) -> Option<Ready> {
        let mut plan = self.plan();
        match std::mem::replace(&mut *plan, Plan::None) {
            Plan::Next(next) => Some(*next),
            other => {
                *plan = other;
                None
            }
        }
    }
}

/// Changed keys that are used before the agent gives up its privileges.
fn takes_restart(now: &Config, next: &Config) -> Vec<&'static str> {
    let (old, new) = (&now.paths, &next.paths);
    [
        ("paths.pin", old.pin != new.pin),
        ("paths.state", old.state != new.state),
        ("paths.socket", old.socket != new.socket),
        ("paths.socket_group", old.socket_group != new.socket_group),
        ("arms.load", now.arms.load != next.arms.load),
    ]
    .into_iter()
    .filter_map(|(key, differs)| differs.then_some(key))
    .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, Path::new("thalweg.toml")).unwrap()
    }

    fn reload(to: &'static str) -> Reload {
        Reload::new(Box::new(|| {
            Ok(Config::parse(to, Path::new("thalweg.toml"))
                .map_err(crate::config::ConfigError::from)?)
        }))
    }

    #[test]
    fn what_has_changed_is_taken() {
        let way = reload("[learning]\nwarm_up = 3\n");
        assert!(way.prepare(&config(""), None, &Arc::default()).unwrap());
        assert_eq!(way.take().unwrap().config.learning.warm_up, 3);
        assert!(way.take().is_none());
    }

    #[test]
    fn nothing_new_changes_nothing() {
        let way = reload("mode = \"thalweg\"\n");
        assert!(!way.prepare(&config(""), None, &Arc::default()).unwrap());
        assert!(way.take().is_none());
    }

    #[test]
    fn the_last_request_has_its_way() {
        let texts = Mutex::new(vec!["", "dry_run = true\n"]);
        let way = Reload::new(Box::new(move || {
            let text = texts.lock().unwrap().pop().unwrap();
            Ok(config(text))
        }));
        assert!(way.prepare(&config(""), None, &Arc::default()).unwrap());
        // The file is as it was again before the planned session has begun.
        assert!(way.prepare(&config(""), None, &Arc::default()).unwrap());
        assert!(!way.take().unwrap().config.dry_run);
    }

    #[test]
    fn faults_and_keys_of_the_start_are_refused_whole() {
        let way = reload("mode = \"fast\"\nwarmup = 1\n");
        let refused = way
            .prepare(&config(""), None, &Arc::default())
            .unwrap_err()
            .to_string();
        assert!(refused.contains("thalweg.toml:1:8"), "{refused}");
        let way = reload("[paths]\npin = \"/sys/fs/bpf/other\"\n[arms]\nload = []\n");
        let refused = way
            .prepare(&config(""), None, &Arc::default())
            .unwrap_err()
            .to_string();
        assert!(
            refused.starts_with("paths.pin, arms.load changed"),
            "{refused}"
        );
        assert!(way.take().is_none());
        let way = reload("dry_run = true\n");
        way.end();
        assert!(matches!(
            way.prepare(&config(""), None, &Arc::default()),
            Err(Refused::Ending)
        ));
        let way = reload("cgroup = \"/proc/self\"\n");
        let refused = way
            .prepare(&config(""), None, &Arc::default())
            .unwrap_err()
            .to_string();
        assert!(
            refused.starts_with("`cgroup` of the configuration"),
            "{refused}"
        );
    }
}
