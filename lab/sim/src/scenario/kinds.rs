//! The tables whose keys depend on their `kind`: `[topology]` and `[workload]`.

use serde::Deserialize;
use thalweg_units::reader::Table;
use thalweg_units::{Probability, Size, Span};

use super::file::to_time;
use super::{FlowPlan, Topology, Workload, check};
use crate::Time;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TopologyKind {
    Star,
    LeafSpine,
    FatTree,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WorkloadKind {
    ManyToOne,
    AllToAll,
    LongShort,
    Poisson,
    Flows,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum BurstPer {
    Flow,
    Host,
}

/// How hosts and switches are connected; none if the table is faulty.
pub(super) fn read_topology(mut table: Table<'_>) -> Option<Topology> {
    let kind = table.take_kind(None)?;
    let mut number = |key| table.needed_count(key, 0..=u32::MAX).unwrap_or_default();
    let topology = match kind {
        TopologyKind::Star => Topology::Star {
            hosts: number("hosts"),
        },
        TopologyKind::LeafSpine => Topology::LeafSpine {
            leaves: number("leaves"),
            spines: number("spines"),
            hosts_per_leaf: number("hosts_per_leaf"),
        },
        TopologyKind::FatTree => Topology::FatTree {
            ports: number("ports"),
        },
    };
    table.refuse_unknown_keys();
    if table.is_sound() {
        check::check_topology(&table, topology);
    }
    table.is_sound().then_some(topology)
}

/// The flows of a scenario in a network of that shape; none if the table is faulty.
pub(super) fn read_workload(
    table: &mut Table<'_>,
    flows: Vec<Table<'_>>,
    topology: Option<Topology>,
    duration: Option<Time>,
) -> Option<Workload> {
    let hosts = topology.map(|topology| topology.hosts() as u32);
    let kind = table.take_kind(None)?;
    if let Some(flow) = flows.first()
        && !matches!(kind, WorkloadKind::Flows)
    {
        flow.fault_here("a [[flow]]", "none: it is for workloads of kind \"flows\"");
    }
    let workload = match kind {
        WorkloadKind::ManyToOne => Workload::ManyToOne {
            senders: take_senders(table, hosts, 1),
            flows: (table.needed_count("flows", 1..=check::MOST_FLOWS)).unwrap_or_default(),
        },
        WorkloadKind::AllToAll => Workload::AllToAll {
            flows_per_pair: (table.needed_count("flows_per_pair", 1..=check::MOST_FLOWS))
                .unwrap_or_default(),
        },
        WorkloadKind::LongShort => long_short(table, hosts),
        WorkloadKind::Poisson => {
            read_poisson(table, duration).unwrap_or(Workload::Flows(Vec::new()))
        }
        WorkloadKind::Flows => {
            if flows.is_empty() {
                table.wrong("kind", "\"flows\" without any", "at least one [[flow]]");
            }
            Workload::Flows(read_listed_flows(flows, hosts))
        }
    };
    table.refuse_unknown_keys();
    table.is_sound().then_some(workload)
}

fn long_short(table: &mut Table<'_>, hosts: Option<u32>) -> Workload {
    Workload::LongShort {
        senders: take_senders(table, hosts, 2),
        flows: (table.needed_count("flows", 2..=check::MOST_FLOWS)).unwrap_or_default(),
        burst_bytes: table.needed("burst").map_or(0, Size::bytes),
        per_host: table.value("burst_per") == Some(BurstPer::Host),
        idle: table.needed("idle").map_or(Time::ZERO, to_time),
        together: table.value("together").unwrap_or(true),
    }
}

fn read_poisson(table: &mut Table<'_>, duration: Option<Time>) -> Option<Workload> {
    let sizes = table.needed("sizes");
    let load = table.needed("load").map(Probability::fraction);
    if load == Some(0.0) {
        table.wrong("load", "0%", "more");
    }
    let until: Option<Span> = table.value("until");
    if let (Some(until), Some(duration)) = (until, duration)
        && !(1..=duration.ps()).contains(&until.ps())
    {
        let most = Span::from_ps(duration.ps());
        let expected = format!("more than 0 and at most the duration of {most}");
        table.wrong("until", until.to_string(), expected);
    }
    Some(Workload::Poisson {
        sizes: sizes?,
        load: load?,
        until: until.map(to_time).or(duration)?,
    })
}

/// Number of sending hosts; by default all but one.
fn take_senders(table: &mut Table<'_>, hosts: Option<u32>, least: u32) -> u32 {
    let most = hosts.map_or(u32::MAX, |hosts| hosts - 1);
    let Some(given) = table.count("senders", 0..=u32::MAX) else {
        if most < least {
            let expected = format!("at least {}", least + 1);
            table.wrong("kind", format!("{} hosts", most + 1), expected);
        }
        return most;
    };
    if !(least..=most).contains(&given) {
        let expected = format!("{least} to {most} senders: one of the hosts receives");
        table.wrong("senders", given.to_string(), expected);
    }
    given
}

fn read_listed_flows(flows: Vec<Table<'_>>, hosts: Option<u32>) -> Vec<FlowPlan> {
    let last = hosts.map_or(u32::MAX, |hosts| hosts - 1);
    let mut list = Vec::new();
    for mut flow in flows {
        let from = flow.needed_count("from", 0..=last);
        let to = flow.needed_count("to", 0..=last);
        let bytes = flow.value("size").map(Size::bytes);
        let start = flow.value("start").map(to_time);
        let count = flow.count("count", 0..=check::MOST_FLOWS).unwrap_or(1);
        flow.refuse_unknown_keys();
        let (Some(from), Some(to)) = (from, to) else {
            continue;
        };
        if from == to {
            flow.wrong("to", format!("{to} as `from`"), "two different hosts");
        }
        let plan = FlowPlan {
            from,
            to,
            bytes,
            start,
        };
        if count as usize + list.len() > check::MOST_FLOWS as usize {
            let most = check::MOST_FLOWS;
            flow.fault_here("more flows", &format!("at most {most} in all"));
            return list;
        }
        list.extend(std::iter::repeat_n(plan, count as usize));
    }
    list
}
