//! The scenario file.
//!
//! Parsing is strict. Unknown keys, malformed quantities and impossible networks are all reported,
//! each with file, line, column and the expected value.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use thalweg_units::file::read_text;
use thalweg_units::reader::{self, Table, describe_value};
use thalweg_units::{Faults, Probability, Rate, Size, Span, schema};
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::check::{self, Tables};
use super::{
    Ecn, Expectation, Hosts, Link, Linux, LoadError, Network, Pause, Recovery, Scenario, Topology,
    kinds,
};
use crate::Time;
use crate::cc::Spec;
use crate::metrics::Statistic;

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid scenario.
    pub fn load(file: &Path) -> Result<Self, LoadError> {
        Ok(Self::parse(&read_text(file)?, file)?)
    }

    /// Checks the text of a scenario; `file` is for messages only.
    ///
    /// # Errors
    /// All faults, with their places.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Faults> {
        reader::parse_toml(text, file, Self::from_table)
    }

    /// The form of scenario files.
    pub fn file_schema() -> schema::Form {
        reader::schema_of(|root| drop(Self::from_table(root)))
    }

    fn from_table(root: &mut Table<'_>) -> Option<Self> {
        let name = root.required(
            "name",
            "a name",
            reader::file_name,
            reader::NAME,
            reader::name_form,
        );
        let description = root.value("description").unwrap_or_default();
        let only_bounds_harm = root.value("only_bounds_harm").unwrap_or_default();
        let duration = root.needed("duration").map(to_time);
        let warmup = root.value("warmup").map(to_time);
        let series = root.value("series").map(to_time);
        let topology = root.needed_sub("topology").and_then(kinds::read_topology);
        let mut link_table = root.needed_sub("link");
        let link = link_table.as_mut().and_then(Link::from_table);
        let mut fabric_table = root.take_table("fabric");
        let fabric = fabric_table.as_mut().map(Link::from_table);
        if let (Some(Topology::Star { .. }), Some(table)) = (topology, &fabric_table) {
            let expected = "none: a star has no links between switches";
            table.fault_here("a table", expected);
        }
        let mut network_table = root.sub_or_empty("network");
        let network = Network::from_table(&mut network_table);
        let mut hosts_table = root.sub_or_empty("hosts");
        let hosts = Hosts::from_table(&mut hosts_table);
        let flows = root.take_tables("flow");
        let mut workload_table = root.needed_sub("workload");
        let workload = (workload_table.as_mut())
            .and_then(|table| kinds::read_workload(table, flows, topology, duration));
        let tables = root.take_tables("expect").into_iter();
        let expect: Vec<_> = tables
            .map(|table| Expectation::from_table(table, workload.as_ref(), hosts.linux.is_some()))
            .collect();
        let link = link?;
        let mut scenario = Self {
            name: name?,
            description,
            duration: duration?,
            warmup: warmup.unwrap_or(Time::ZERO),
            topology: topology?,
            network: Network {
                link,
                fabric: fabric.unwrap_or(Some(link))?,
                ..network
            },
            hosts,
            workload: workload?,
            series,
            expect: expect.into_iter().collect::<Option<_>>()?,
            only_bounds_harm,
        };
        root.refuse_unknown_keys();
        let tables = Tables {
            root,
            link: &link_table?,
            fabric: fabric_table.as_ref(),
            network: &network_table,
            hosts: &hosts_table,
            workload: &workload_table?,
        };
        // Values are compared with each other once each is valid by itself.
        if root.is_sound() {
            check::check_scenario(&tables, &mut scenario);
        }
        Some(scenario)
    }
}

/// Default size of a port's queue, bytes.
const DEFAULT_QUEUE: u64 = 10 << 20;

impl Link {
    fn from_table(table: &mut Table<'_>) -> Option<Self> {
        let rate = table.needed("rate").map(Rate::bps);
        let delay = table.needed("delay").map(to_time);
        let queue = table.value("queue").map(Size::bytes);
        let bucket = table.value("bucket").map(Size::bytes);
        table.refuse_unknown_keys();
        Some(Self {
            rate_bps: rate?,
            delay: delay?,
            queue_bytes: queue.unwrap_or(DEFAULT_QUEUE),
            bucket_bytes: bucket.unwrap_or(0),
        })
    }
}

impl Network {
    /// Reads the table without the keys of links.
    fn from_table(table: &mut Table<'_>) -> Self {
        let none = Link {
            rate_bps: 0,
            delay: Time::ZERO,
            queue_bytes: 0,
            bucket_bytes: 0,
        };
        let network = Self {
            link: none,
            fabric: none,
            packet_bytes: take_packet_size(table, "packet").unwrap_or(1024),
            answer_bytes: take_packet_size(table, "answer").unwrap_or(64),
            base_rtt: table.value("base_rtt").map(to_time),
            ecn: table.take_table("ecn").and_then(Ecn::from_table),
            pause: table.take_table("pause").and_then(Pause::from_table),
            explicit_queues: false,
        };
        table.refuse_unknown_keys();
        network
    }
}

/// Takes the size of a packet, bytes.
fn take_packet_size(table: &mut Table<'_>, key: &'static str) -> Option<u32> {
    let size: Size = table.value(key)?;
    let bytes = u32::try_from(size.bytes()).ok();
    let bytes = bytes.filter(|bytes| (64..=65_535).contains(bytes));
    if bytes.is_none() {
        table.wrong(key, size.to_string(), "64 to 65535 bytes");
    }
    bytes
}

impl Ecn {
    fn from_table(mut table: Table<'_>) -> Option<Self> {
        let min = table.needed("min").map(Size::bytes);
        let max = table.needed("max").map(Size::bytes);
        let probability = table.needed("probability").map(Probability::fraction);
        table.refuse_unknown_keys();
        let ecn = Self {
            min_bytes: min?,
            max_bytes: max?,
            max_probability: probability?,
        };
        if ecn.min_bytes > ecn.max_bytes {
            let found = format!("{} bytes", ecn.min_bytes);
            let expected = format!("at most the `max` of {} bytes", ecn.max_bytes);
            table.wrong("min", found, expected);
        }
        Some(ecn)
    }
}

impl Pause {
    fn from_table(mut table: Table<'_>) -> Option<Self> {
        let stop = table.needed("stop").map(Size::bytes);
        let go = table.needed("go").map(Size::bytes);
        table.refuse_unknown_keys();
        let pause = Self {
            stop_bytes: stop?,
            go_bytes: go?,
        };
        if pause.go_bytes >= pause.stop_bytes {
            let found = format!("{} bytes", pause.go_bytes);
            let expected = format!("less than the `stop` of {} bytes", pause.stop_bytes);
            table.wrong("go", found, expected);
        }
        Some(pause)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RecoveryWord {
    GoBackN,
    SelectiveRepeat,
}

impl Hosts {
    /// A missing time-out is zero.
    fn from_table(table: &mut Table<'_>) -> Self {
        let hosts = Self {
            burst_packets: table.count("burst", 1..=1024).unwrap_or(1),
            start_spread: table
                .value("start_spread")
                .map_or(Time::from_us(1_000), to_time),
            reaction: table.value("reaction").map_or(Time::from_us(1), to_time),
            min_rate_bps: table.value("min_rate").map_or(1_000_000, Rate::bps),
            recovery: match table.value("recovery") {
                Some(RecoveryWord::GoBackN) => Recovery::GoBackN,
                Some(RecoveryWord::SelectiveRepeat) | None => Recovery::SelectiveRepeat,
            },
            timeout: table.value("timeout").map_or(Time::ZERO, to_time),
            linux: Linux::take_sender(table),
        };
        table.refuse_unknown_keys();
        hosts
    }
}

impl Expectation {
    /// One `[[expect]]` table; none if it is faulty.
    fn from_table(
        mut table: Table<'_>,
        workload: Option<&super::Workload>,
        has_tcp: bool,
    ) -> Option<Self> {
        let cc = take_controller(&mut table);
        let statistic: Option<Statistic> = table.needed("statistic");
        let finite = |value: &DeValue<'_>| reader::any_number(value).filter(|it| it.is_finite());
        let at_least = table.optional("at_least", finite, "a finite number", schema::any_number);
        let at_most = table.optional("at_most", finite, "a finite number", schema::any_number);
        table.refuse_unknown_keys();
        if !table.has("at_least") && !table.has("at_most") {
            table.fault_here("no bound", "`at_least` or `at_most` in this table");
        }
        if let (Some(least), Some(most)) = (at_least, at_most)
            && least > most
        {
            let expected = "at most `at_most`: no value is within both bounds";
            table.wrong("at_least", "a bound above `at_most`", expected);
        }
        let statistic = statistic?;
        if workload.is_some_and(|workload| !workload.gives(statistic)) {
            let expected = "a statistic that this workload has";
            table.wrong("statistic", statistic.key(), expected);
        }
        if statistic.is_of_tcp() && !has_tcp {
            let expected = "a statistic of the sender \"nic\", or `sender = \"linux\"` in [hosts]";
            table.wrong("statistic", statistic.key(), expected);
        }
        Some(Self {
            cc: cc?.to_string(),
            statistic,
            at_least,
            at_most,
        })
    }
}

/// Takes `cc`: a name with parameters, or a table of them.
fn take_controller(table: &mut Table<'_>) -> Option<Spec> {
    table.declare_key("cc", || {
        let name = ("name".to_owned(), schema::text());
        let mut parameters = schema::table([name], &["name"]);
        parameters["additionalProperties"] = true.into();
        schema::any_of([schema::text(), parameters])
    });
    table.declare_required("cc");
    let Some(value) = table.take("cc") else {
        table.fault(table.at, Some("cc"), "nothing", "a controller");
        return None;
    };
    let found = describe_value(value.get_ref());
    let value: Spanned<DeValue<'_>> = value;
    let spec = toml::Value::deserialize(ValueDeserializer::from(value))
        .map_err(|error| error.message().to_owned())
        .and_then(|value| Spec::try_from(value).map_err(|error| error.to_string()));
    spec.map_err(|why| table.wrong("cc", found, format!("a controller ({why})")))
        .ok()
}

pub(super) fn to_time(span: Span) -> Time {
    Time::from_ps(span.ps())
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Star { hosts } => write!(f, "{hosts} hosts at one switch"),
            Self::LeafSpine {
                leaves,
                spines,
                hosts_per_leaf,
            } => write!(
                f,
                "{leaves} leaf switches with {hosts_per_leaf} hosts each, {spines} spine switches"
            ),
            Self::FatTree { ports } => {
                write!(f, "a fat tree of switches with {ports} ports")
            }
        }
    }
}
