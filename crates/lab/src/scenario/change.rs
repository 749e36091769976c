//! `[[change]]`: what becomes of the path in the course of a run.

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{Fault, GilbertElliott, Host, PathModel, check_path, host};
use crate::units::{Delay, Probability, Rate, Size};

/// A change of the path. What it does not name stays as it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The round, counted from 1, before which it happens.
    pub at: u32,
    /// How long after that round's connection has begun it happens instead.
    pub within: Option<Delay>,
    /// The host whose path changes; empty where there is but one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Loss, rate and queue from then on.
    pub path: PathModel,
}

/// One table as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    at: Spanned<u32>,
    within: Option<Spanned<Delay>>,
    host: Option<Spanned<String>>,
    loss: Option<Probability>,
    gilbert_elliott: Option<GilbertElliott>,
    reverse_loss: Option<Probability>,
    rate: Option<Rate>,
    queue: Option<Size>,
}

impl Table {
    /// The change of one host's path.
    fn check(
        &self,
        host: &str,
        before: &PathModel,
        place: std::ops::Range<usize>,
    ) -> Result<Change, Fault> {
        let nothing = self.loss.is_none()
            && self.gilbert_elliott.is_none()
            && self.reverse_loss.is_none()
            && self.rate.is_none()
            && self.queue.is_none();
        if nothing {
            return Err((
                place,
                "expected what changes: loss, gilbert_elliott, reverse_loss, rate or queue".into(),
            ));
        }
        if self.rate.is_some() && before.rate.is_none() {
            let whose = match host {
                "" => "the path".to_owned(),
                name => format!("the path of {name}"),
            };
            return Err((
                place,
                format!(
                    "`rate` cannot change: {whose} begins without one, so it has no bottleneck"
                ),
            ));
        }
        let mut path = before.clone();
        if self.loss.is_some() || self.gilbert_elliott.is_some() {
            (path.loss, path.gilbert_elliott) = (self.loss, self.gilbert_elliott);
        }
        path.reverse_loss = self.reverse_loss.unwrap_or(path.reverse_loss);
        path.rate = self.rate.or(path.rate);
        path.queue = self.queue.or(path.queue);
        check_path(&path).map_err(|message| (place, message))?;
        let (at, within) = self.moment();
        Ok(Change {
            at,
            within,
            host: host.to_owned(),
            path,
        })
    }

    fn moment(&self) -> (u32, Option<Delay>) {
        let within = self.within.as_ref().map(|within| *within.get_ref());
        (*self.at.get_ref(), within)
    }

    /// Whose paths it is about, each with what it is at the beginning.
    fn hosts<'a>(
        &self,
        path: &'a PathModel,
        hosts: &'a [Host],
    ) -> Result<Vec<(&'a str, &'a PathModel)>, Fault> {
        if let Some(name) = &self.host {
            host::known(name, hosts)?;
        }
        if hosts.is_empty() {
            return Ok(vec![("", path)]);
        }
        let named = self.host.as_ref().map(Spanned::get_ref);
        Ok(hosts
            .iter()
            .filter(|host| named.is_none_or(|name| host.name == *name))
            .map(|host| (host.name.as_str(), &host.path))
            .collect())
    }
}

/// Checks all changes of a scenario, in the order in which they stand. One that
/// names no host is one of every host.
pub(super) fn check(
    tables: Vec<Spanned<Table>>,
    path: &PathModel,
    hosts: &[Host],
    connections: u32,
) -> Result<Vec<Change>, Fault> {
    let mut changes: Vec<Change> = Vec::new();
    for table in tables {
        let place = table.span();
        let table = table.into_inner();
        let at = *table.at.get_ref();
        if !(1..=connections).contains(&at) {
            return Err((
                table.at.span(),
                format!("expected a connection from 1 to {connections}, found {at}"),
            ));
        }
        let moment = table.moment();
        let whose = table.hosts(path, hosts)?;
        let late = changes.iter().any(|change| {
            let before = (change.at, change.within);
            let same = whose.iter().any(|(name, _)| change.host == *name);
            before > moment || (same && before == moment)
        });
        if late {
            return Err((
                table.at.span(),
                "expected changes in the order in which they happen".into(),
            ));
        }
        for (name, beginning) in whose {
            let last = changes.iter().rfind(|change| change.host == name);
            let before = last.map_or(beginning, |change| &change.path);
            let change = table.check(name, before, place.clone())?;
            changes.push(change);
        }
    }
    Ok(changes)
}
