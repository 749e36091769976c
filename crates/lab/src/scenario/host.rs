//! `[[host]]`: several remote hosts, each with a path of its own.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::{Aqm, Drop, Family, Fault, GilbertElliott, PathModel, Traffic, check_path};
use crate::scenario::Kind;
use crate::units::{Delay, Probability, Rate, Size};

/// How many there may be: each costs namespaces and a process in every mode.
const MOST: usize = 16;
/// The longest name, bytes.
const NAME_BYTES: usize = 16;

/// A remote host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Host {
    /// Its name in the scenario and the report; empty where there is but one.
    pub name: String,
    /// What lies between it and the client.
    pub path: PathModel,
}

/// One table as the file has it: the keys of `[path]`, and a name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    name: Spanned<String>,
    loss: Option<Probability>,
    gilbert_elliott: Option<GilbertElliott>,
    reverse_loss: Option<Probability>,
    drop: Option<Drop>,
    rate: Option<Rate>,
    queue: Option<Size>,
    aqm: Option<Aqm>,
    ecn: Option<bool>,
    mark: Option<Delay>,
    delay: Option<Delay>,
    jitter: Option<Delay>,
    reorder: Option<Probability>,
    offload: Option<bool>,
    mtu: Option<u32>,
    family: Option<Family>,
    seed: Option<u64>,
}

impl Table {
    /// The host, with what it does not name as `[path]` has it. `place` counts the
    /// hosts from 0.
    fn check(self, path: &PathModel, place: usize, span: Range<usize>) -> Result<Host, Fault> {
        let name = self.name.get_ref();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if !(1..=NAME_BYTES).contains(&name.len()) || !name.bytes().all(plain) {
            let message = format!(
                "expected a name of 1 to {NAME_BYTES} letters, digits, '-' or '_', found {name:?}"
            );
            return Err((self.name.span(), message));
        }
        let (loss, gilbert_elliott) = match (self.loss, self.gilbert_elliott) {
            (None, None) => (path.loss, path.gilbert_elliott),
            own => own,
        };
        let path = PathModel {
            loss,
            gilbert_elliott,
            reverse_loss: self.reverse_loss.unwrap_or(path.reverse_loss),
            drop: self.drop.unwrap_or(path.drop),
            rate: self.rate.or(path.rate),
            queue: self.queue.or(path.queue),
            aqm: self.aqm.unwrap_or(path.aqm),
            ecn: self.ecn.unwrap_or(path.ecn),
            mark: self.mark.or(path.mark),
            delay: self.delay.unwrap_or(path.delay),
            jitter: self.jitter.unwrap_or(path.jitter),
            reorder: self.reorder.unwrap_or(path.reorder),
            offload: self.offload.unwrap_or(path.offload),
            mtu: self.mtu.unwrap_or(path.mtu),
            family: self.family.unwrap_or(path.family),
            // The same loss at the same packet of every host would be no chance.
            seed: self.seed.unwrap_or(path.seed.wrapping_add(place as u64)),
        };
        check_path(&path).map_err(|message| (span, message))?;
        Ok(Host {
            name: self.name.into_inner(),
            path,
        })
    }
}

/// Checks all hosts of a scenario; none where it has no `[[host]]`.
pub(super) fn check(
    tables: Vec<Spanned<Table>>,
    path: &PathModel,
    traffic: &Traffic,
) -> Result<Vec<Host>, Fault> {
    let Some(first) = tables.first() else {
        return Ok(Vec::new());
    };
    if !matches!(traffic.kind, Kind::Bulk | Kind::Short { .. }) {
        return Err((
            first.span(),
            "[[host]] goes with kind \"bulk\" or \"short\" only: flows to different hosts \
             share no bottleneck"
                .into(),
        ));
    }
    if !(2..=MOST).contains(&tables.len()) {
        return Err((
            first.span(),
            format!(
                "expected 2 to {MOST} hosts, found {} (one host is what [path] describes)",
                tables.len()
            ),
        ));
    }
    let mut hosts: Vec<Host> = Vec::new();
    for (place, table) in tables.into_iter().enumerate() {
        let span = table.span();
        let table = table.into_inner();
        if hosts.iter().any(|host| host.name == *table.name.get_ref()) {
            return Err((
                table.name.span(),
                format!(
                    "expected each host once, found {:?} again",
                    table.name.get_ref()
                ),
            ));
        }
        hosts.push(table.check(path, place, span)?);
    }
    Ok(hosts)
}

/// Checks that a name is one of the hosts'.
pub(super) fn known(name: &Spanned<String>, hosts: &[Host]) -> Result<(), Fault> {
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    if names.contains(&name.get_ref().as_str()) {
        return Ok(());
    }
    Err((
        name.span(),
        if names.is_empty() {
            "`host` goes with [[host]] tables only".to_owned()
        } else {
            format!(
                "expected one of the hosts ({}), found {:?}",
                names.join(", "),
                name.get_ref()
            )
        },
    ))
}
