//! The tables whose keys depend on their `kind`: `[topology]` and `[workload]`.
//!
//! They are read with every key that any kind has, and checked here, because an enumeration that
//! is told apart by a key loses the places of all others.

use std::ops::Range;

use serde::Deserialize;
use thalweg_units::{Probability, Size, Span};
use toml::Spanned;

use super::file::{Document, Fault, FlowTable, time};
use super::{FlowPlan, Topology, Workload, check};
use crate::workload::Sizes;

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum TopologyKind {
    Star,
    LeafSpine,
    FatTree,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopologyTable {
    kind: Spanned<TopologyKind>,
    hosts: Option<Spanned<u32>>,
    leaves: Option<Spanned<u32>>,
    spines: Option<Spanned<u32>>,
    hosts_per_leaf: Option<Spanned<u32>>,
    ports: Option<Spanned<u32>>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum WorkloadKind {
    ManyToOne,
    AllToAll,
    LongShort,
    Poisson,
    Flows,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum BurstPer {
    Flow,
    Host,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkloadTable {
    kind: Spanned<WorkloadKind>,
    senders: Option<Spanned<u32>>,
    flows: Option<Spanned<u32>>,
    flows_per_pair: Option<Spanned<u32>>,
    burst: Option<Spanned<Size>>,
    burst_per: Option<Spanned<BurstPer>>,
    idle: Option<Spanned<Span>>,
    together: Option<Spanned<bool>>,
    sizes: Option<Spanned<Sizes>>,
    load: Option<Spanned<Probability>>,
    until: Option<Spanned<Span>>,
}

/// Where the value of a key stands, if it is there.
type Place = Option<Range<usize>>;

fn place<T>(value: &Option<Spanned<T>>) -> Place {
    value.as_ref().map(Spanned::span)
}

fn given<T: Copy>(value: &Option<Spanned<T>>) -> Option<T> {
    value.as_ref().map(|value| *value.get_ref())
}

/// The value of a key that a kind cannot do without.
fn needed<'a, T>(
    value: &'a Option<Spanned<T>>,
    key: &str,
    kind: Range<usize>,
) -> Result<&'a Spanned<T>, Fault> {
    let missing = || (kind, format!("this kind needs `{key}`"));
    value.as_ref().ok_or_else(missing)
}

/// Refuses the keys that are there though the kind has no use for them.
fn only<const N: usize>(keys: [(&str, Place); N], of_kind: &[&str]) -> Result<(), Fault> {
    let other = keys
        .into_iter()
        .filter(|(key, _)| !of_kind.contains(key))
        .find_map(|(key, place)| place.map(|place| (key, place)));
    let Some((key, place)) = other else {
        return Ok(());
    };
    let known: Vec<String> = of_kind.iter().map(|key| format!("`{key}`")).collect();
    let expected = match known.as_slice() {
        [] => "nothing but `kind`".into(),
        known => known.join(", "),
    };
    Err((
        place,
        format!("this kind has no `{key}`: expected {expected}"),
    ))
}

impl TopologyTable {
    fn places(&self) -> [(&'static str, Place); 5] {
        [
            ("hosts", place(&self.hosts)),
            ("leaves", place(&self.leaves)),
            ("spines", place(&self.spines)),
            ("hosts_per_leaf", place(&self.hosts_per_leaf)),
            ("ports", place(&self.ports)),
        ]
    }

    pub fn topology(&self) -> Result<Topology, Fault> {
        let kind = self.kind.span();
        let number = |value: &Option<Spanned<u32>>, key: &str| {
            needed(value, key, kind.clone()).map(|value| *value.get_ref())
        };
        let topology = match self.kind.get_ref() {
            TopologyKind::Star => {
                only(self.places(), &["hosts"])?;
                Topology::Star {
                    hosts: number(&self.hosts, "hosts")?,
                }
            }
            TopologyKind::LeafSpine => {
                only(self.places(), &["leaves", "spines", "hosts_per_leaf"])?;
                Topology::LeafSpine {
                    leaves: number(&self.leaves, "leaves")?,
                    spines: number(&self.spines, "spines")?,
                    hosts_per_leaf: number(&self.hosts_per_leaf, "hosts_per_leaf")?,
                }
            }
            TopologyKind::FatTree => {
                only(self.places(), &["ports"])?;
                Topology::FatTree {
                    ports: number(&self.ports, "ports")?,
                }
            }
        };
        check::topology(topology).map_err(|(key, message)| {
            let place = self.places().into_iter().find(|(name, _)| *name == key);
            (place.and_then(|(_, place)| place).unwrap_or(kind), message)
        })?;
        Ok(topology)
    }
}

impl WorkloadTable {
    /// Where it says how many flows there are.
    pub fn count_place(&self) -> Range<usize> {
        place(&self.flows)
            .or(place(&self.flows_per_pair))
            .unwrap_or(self.kind.span())
    }

    fn only(&self, of_kind: &[&str]) -> Result<(), Fault> {
        let places = [
            ("senders", place(&self.senders)),
            ("flows", place(&self.flows)),
            ("flows_per_pair", place(&self.flows_per_pair)),
            ("burst", place(&self.burst)),
            ("burst_per", place(&self.burst_per)),
            ("idle", place(&self.idle)),
            ("together", place(&self.together)),
            ("sizes", place(&self.sizes)),
            ("load", place(&self.load)),
            ("until", place(&self.until)),
        ];
        only(places, of_kind)
    }

    /// Hosts that send, of so many.
    fn senders(&self, hosts: u32, least: u32) -> Result<u32, Fault> {
        let most = hosts - 1;
        match &self.senders {
            Some(senders) if !(least..=most).contains(senders.get_ref()) => Err((
                senders.span(),
                format!(
                    "expected {least} to {most} senders, as one of {hosts} hosts receives, \
                     found {}",
                    senders.get_ref()
                ),
            )),
            Some(senders) => Ok(*senders.get_ref()),
            None if most < least => Err((
                self.kind.span(),
                format!("expected at least {} hosts, found {hosts}", least + 1),
            )),
            None => Ok(most),
        }
    }

    fn at_least(&self, value: &Option<Spanned<u32>>, key: &str, least: u32) -> Result<u32, Fault> {
        let value = needed(value, key, self.kind.span())?;
        let number = *value.get_ref();
        if number < least {
            let message = format!("expected `{key}` of at least {least}, found {number}");
            return Err((value.span(), message));
        }
        Ok(number)
    }
}

/// What a scenario's flows do, in a network of that shape.
pub(super) fn workload(document: &Document, topology: Topology) -> Result<Workload, Fault> {
    let hosts = topology.hosts() as u32;
    let table = &document.workload;
    let kind = table.kind.span();
    if let Some(flow) = document.flow.first()
        && *table.kind.get_ref() != WorkloadKind::Flows
    {
        let message = "`flow` is for the workload of kind \"flows\" only".into();
        return Err((flow.span(), message));
    }
    Ok(match table.kind.get_ref() {
        WorkloadKind::ManyToOne => {
            table.only(&["senders", "flows"])?;
            Workload::ManyToOne {
                senders: table.senders(hosts, 1)?,
                flows: table.at_least(&table.flows, "flows", 1)?,
            }
        }
        WorkloadKind::AllToAll => {
            table.only(&["flows_per_pair"])?;
            Workload::AllToAll {
                flows_per_pair: table.at_least(&table.flows_per_pair, "flows_per_pair", 1)?,
            }
        }
        WorkloadKind::LongShort => {
            table.only(&["senders", "flows", "burst", "burst_per", "idle", "together"])?;
            let burst = needed(&table.burst, "burst", kind.clone())?;
            Workload::LongShort {
                senders: table.senders(hosts, 2)?,
                flows: table.at_least(&table.flows, "flows", 2)?,
                burst_bytes: burst.get_ref().bytes(),
                per_host: given(&table.burst_per) == Some(BurstPer::Host),
                idle: time(*needed(&table.idle, "idle", kind)?.get_ref()),
                together: given(&table.together).unwrap_or(true),
            }
        }
        WorkloadKind::Poisson => {
            table.only(&["sizes", "load", "until"])?;
            let load = needed(&table.load, "load", kind.clone())?;
            if load.get_ref().fraction() == 0.0 {
                let message = "expected a `load` of more than nothing".into();
                return Err((load.span(), message));
            }
            let duration = *document.duration.get_ref();
            let until = given(&table.until).unwrap_or(duration);
            if let Some(place) = place(&table.until)
                && (until.ps() == 0 || until > duration)
            {
                let message = format!(
                    "expected `until` above 0 and at most the duration of {duration}, found {until}"
                );
                return Err((place, message));
            }
            Workload::Poisson {
                sizes: *needed(&table.sizes, "sizes", kind)?.get_ref(),
                load: load.get_ref().fraction(),
                until: time(until),
            }
        }
        WorkloadKind::Flows => {
            table.only(&[])?;
            if document.flow.is_empty() {
                return Err((kind, "expected at least one [[flow]]".into()));
            }
            Workload::Flows(listed(document, hosts)?)
        }
    })
}

fn listed(document: &Document, hosts: u32) -> Result<Vec<FlowPlan>, Fault> {
    let mut list = Vec::new();
    for flow in &document.flow {
        let FlowTable {
            from,
            to,
            size,
            start,
            count,
        } = flow.get_ref();
        if *from >= hosts || *to >= hosts || from == to {
            return Err((
                flow.span(),
                format!(
                    "expected `from` and `to` to be two different hosts of 0 to {}, \
                     found {from} and {to}",
                    hosts - 1
                ),
            ));
        }
        if u64::from(*count) + list.len() as u64 > check::MOST_FLOWS {
            return Err((flow.span(), check::too_many_flows()));
        }
        let plan = FlowPlan {
            from: *from,
            to: *to,
            bytes: size.map(Size::bytes),
            start: start.map(time),
        };
        list.extend(std::iter::repeat_n(plan, *count as usize));
    }
    Ok(list)
}
