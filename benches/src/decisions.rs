//! What a decision about a new connection costs, by what is known of its host, of its networks, and
//! of initial windows. Only the end that opens is measured: the other one is outside of the agent's
//! cgroup. Records are written before each case, so that each connection meets the same.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde::{Deserialize, Serialize};
use thalweg_bpf_types::{
    arm_name, bytes_of, from_bytes, host_to_raw, key_from_raw, key_to_raw, note_record, raw,
};
use thalweg_guest::kernels;
use thalweg_lab::host::{Pair, Side};
use thalweg_lab::units::Size;
use thalweg_learner::{Host, HostKey, Level};

use crate::bed::{self, Agent, Worker};
use crate::kernel;
use crate::kernels::inside;
use crate::table::{Target, line, spread};

/// Connections of a case, each to another host.
const CONNECTIONS: usize = 400;
/// Too few bytes for a measurement.
const BYTES: usize = 1;
/// The first address; all are in 10.99.0.0/16.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 99, 1, 0);
/// The agent, and a file system in memory.
const MEMORY: Size = Size::from_bytes(1000 << 20);
/// Evidence of a host with one measurement of an arm, and of a network that knows.
const THIN_Q16: u32 = 1 << 16;
const WELL_Q16: u32 = 64 << 16;
/// A cost, and one that is clearly higher.
const LOW: u64 = 26 << 16;
const HIGH: u64 = 32 << 16;
const MIB: f64 = 1048576.0;

/// Names of cases, which `instructions.toml` has too.
const WARM_UP: &str = "decision: a new host, without networks; the default stays, no event";
const IGNORANT: &str = "decision: a new host, networks know nothing; the default stays, no event";
const OWN_KEEPS: &str = "decision: an own record, without networks; the default stays";
const OWN_KEEPS_NETWORKS: &str = "decision: an own record, with networks; the default stays";
const OWN_SETS: &str = "decision: an own record, without networks; another arm";
const OWN_SETS_NETWORKS: &str = "decision: an own record, with networks; another arm";
const PREFIX_KEEPS: &str = "decision: a new host of a known prefix; the default stays";
const PREFIX_SETS: &str = "decision: a new host of a known prefix; another arm";
const SERVICE_SETS: &str = "decision: a new host of a known service; another arm";
const SERVICE_KEEPS: &str = "decision: a new host of a known service; the default stays";
const NAMESPACE_KEEPS: &str = "decision: a new host of a known namespace; the default stays";
const NAMESPACE_SETS: &str = "decision: a new host of a known namespace; another arm";
const WINDOW_OWN_SETS: &str = "decision: an own record, with networks and windows; another arm";
const WINDOW_PREFIX_SETS: &str =
    "decision: a new host of a known prefix, with windows; another arm, a larger window";

/// Names of costs, and what each is the cost of.
type Cases = &'static [(&'static str, What)];

/// What was measured.
#[derive(Serialize, Deserialize)]
pub struct Costs {
    /// Instructions per establishment, by case.
    pub instructions: BTreeMap<String, f64>,
    /// Memory of the kernel's maps, bytes: without networks, with them, with windows too.
    map_bytes: [u64; 3],
}

/// Counts on a kernel in QEMU, by default the newest; returns whether the targets are met.
pub fn run(binary: &Path, asked: Option<&std::ffi::OsStr>) -> Result<bool> {
    let stock = kernels::find_kernel(asked)?;
    let costs: Costs = inside(
        &stock,
        binary,
        "count-decisions",
        crate::cc::MODEL,
        &[],
        MEMORY,
    )?;
    println!("{}; instructions per establishment:", stock.name);
    for (name, count) in &costs.instructions {
        println!("{name:<85} {count:>6.0}");
    }
    let of = |name| {
        costs
            .instructions
            .get(name)
            .context("a case without figure")
    };
    let ratio = |name: &str, case, base, most| -> Result<bool> {
        let ratio = of(case)? / of(base)?;
        Ok(line(name, "", &spread(&[ratio]), &Target::AtMost(most)))
    };
    let more = |index: usize| (costs.map_bytes[index] - costs.map_bytes[index - 1]) as f64 / MIB;
    let memory = |name, index| line(name, "MiB", &spread(&[more(index)]), &Target::AtMost(16.0));
    Ok([
        ratio(
            "prefix knows / own record; default",
            PREFIX_KEEPS,
            OWN_KEEPS,
            1.3,
        )?,
        ratio(
            "prefix knows / own record; other",
            PREFIX_SETS,
            OWN_SETS,
            1.3,
        )?,
        ratio(
            "service knows / own record; default",
            SERVICE_KEEPS,
            OWN_KEEPS,
            1.3,
        )?,
        ratio(
            "service knows / own record; other",
            SERVICE_SETS,
            OWN_SETS,
            1.3,
        )?,
        ratio(
            "namespace knows / own; default",
            NAMESPACE_KEEPS,
            OWN_KEEPS,
            1.3,
        )?,
        ratio(
            "namespace knows / own; other",
            NAMESPACE_SETS,
            OWN_SETS,
            1.3,
        )?,
        ratio("prefix knows / none; default", PREFIX_KEEPS, WARM_UP, 1.3)?,
        ratio("prefix knows / none; other", PREFIX_SETS, WARM_UP, 1.3)?,
        ratio(
            "own record, networks / without; default",
            OWN_KEEPS_NETWORKS,
            OWN_KEEPS,
            1.05,
        )?,
        ratio(
            "own record, networks / without; other",
            OWN_SETS_NETWORKS,
            OWN_SETS,
            1.05,
        )?,
        ratio("nothing known, networks / without", IGNORANT, WARM_UP, 1.05)?,
        memory("maps with networks, more", 1),
        memory("maps with windows, more", 2),
    ]
    .iter()
    .all(|met| *met))
}

/// Each case on this kernel.
pub fn measure(binary: &Path) -> Result<Costs> {
    let mut costs = Costs {
        instructions: BTreeMap::new(),
        map_bytes: [0; 3],
    };
    let configurations: [(&str, bool, Cases); 3] = [
        (
            "[networks]\nenabled = false\n",
            false,
            &[
                (WARM_UP, What::Nothing),
                (OWN_KEEPS, What::Own { sets: false }),
                (OWN_SETS, What::Own { sets: true }),
            ],
        ),
        (
            "",
            false,
            &[
                (IGNORANT, What::Nothing),
                (OWN_KEEPS_NETWORKS, What::Own { sets: false }),
                (OWN_SETS_NETWORKS, What::Own { sets: true }),
                (PREFIX_KEEPS, What::Network(Level::Prefix, false)),
                (PREFIX_SETS, What::Network(Level::Prefix, true)),
                (SERVICE_KEEPS, What::Network(Level::Service, false)),
                (SERVICE_SETS, What::Network(Level::Service, true)),
                (NAMESPACE_KEEPS, What::Network(Level::Namespace, false)),
                (NAMESPACE_SETS, What::Network(Level::Namespace, true)),
            ],
        ),
        (
            "[initial_window]\nenabled = true\n",
            // Over a shorter round trip no larger window is set.
            true,
            &[
                (WINDOW_OWN_SETS, What::Own { sets: true }),
                (WINDOW_PREFIX_SETS, What::Network(Level::WindowPrefix, true)),
            ],
        ),
    ];
    for ((keys, far, cases), map_bytes) in configurations.iter().zip(&mut costs.map_bytes) {
        let pair = bed::pair("decisions")?;
        if *far {
            kernel::delay_server(&pair, "5ms")?;
        }
        let mut bench = Bench::new(binary, &pair, keys)?;
        *map_bytes = bench.agent.figure("/map_bytes")?;
        for (name, what) in *cases {
            costs
                .instructions
                .insert((*name).into(), bench.cost(*what)?);
        }
    }
    Ok(costs)
}

/// What is known before the connections of a case; `sets`: another arm is clearly better.
#[derive(Clone, Copy)]
enum What {
    Nothing,
    /// Each host has a record of one measurement of each of two arms.
    Own {
        sets: bool,
    },
    /// This level and wider ones know, and of windows as well where it is one of theirs.
    Network(Level, bool),
}

struct Bench {
    agent: Agent,
    client: Worker,
    server: Worker,
    hosts: MapHandle,
    worth: MapHandle,
    /// Cookies of all network namespaces.
    namespaces: Vec<u64>,
    /// Indices of the default and of another arm.
    arms: [usize; 2],
    round: usize,
}

impl Bench {
    fn new(binary: &Path, pair: &Pair, keys: &str) -> Result<Self> {
        kernel::route(pair)?;
        let agent = Agent::start_with(binary, pair, "decisions", keys)?;
        let numbers = [CONNECTIONS.to_string(), BYTES.to_string()];
        let root = thalweg_lab::host::cgroup_mount()?;
        let hold = [&["hold".to_owned()], &numbers[..]].concat();
        let mut server = Worker::start_in(pair, Side::Server, &root, &hold)?;
        server.line()?;
        let open = [&["open".to_owned(), FIRST.to_string()], &numbers[..]].concat();
        let client = Worker::start(pair, Side::Client, &open)?;
        let map = |name| MapHandle::from_pinned_path(agent.pin.join(name));
        let namespaces = map("defaults")?
            .keys()
            .filter_map(|key| Some(u64::from_ne_bytes(key.try_into().ok()?)))
            .collect();
        let table = map("arms")?.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)?;
        let table: raw::thalweg_arms = table
            .and_then(|bytes| from_bytes(&bytes))
            .context("the table of arms")?;
        let index = |name: &str| {
            let found = table
                .arms
                .iter()
                .position(|arm| arm_name(&arm.name) == name);
            found.with_context(|| format!("no arm {name}"))
        };
        Ok(Self {
            hosts: map("hosts")?,
            worth: map("worth")?,
            namespaces,
            arms: [index("cubic")?, index("reno")?],
            agent,
            client,
            server,
            round: 0,
        })
    }

    /// Instructions of all runs that an establishment causes.
    fn cost(&mut self, what: What) -> Result<f64> {
        self.prepare(what)?;
        let link = self.agent.pin.join("link_sockops");
        let changed = self.agent.figure("/counters/changed")?;
        let raised = self.agent.figure("/counters/windows_raised")?;
        let _statistics = kernel::enable_statistics()?;
        let before = kernel::run_time(&link)?;
        self.client.go_on()?;
        self.client.line()?;
        let after = kernel::run_time(&link)?;
        // Now and then the default is chosen for comparison.
        let changed = self.agent.figure("/counters/changed")? - changed;
        let sets = matches!(what, What::Own { sets: true } | What::Network(_, true));
        let fits = if sets { changed > 380 } else { changed < 20 };
        ensure!(fits, "{changed} of {CONNECTIONS} connections were changed");
        let raised = self.agent.figure("/counters/windows_raised")? - raised;
        let raises = matches!(what, What::Network(level, true) if level.is_window());
        let fits = if raises { raised > 380 } else { raised == 0 };
        ensure!(
            fits,
            "{raised} of {CONNECTIONS} initial windows were raised"
        );
        for _ in ["send", "close"] {
            self.client.go_on()?;
            self.client.line()?;
        }
        self.server.line()?;
        self.round += 1;
        Ok((after.0 - before.0) as f64 / CONNECTIONS as f64)
    }

    /// Replaces all records by those of a case.
    fn prepare(&self, what: What) -> Result<()> {
        let keys: Vec<_> = self.hosts.keys().collect();
        for key in keys {
            self.hosts.delete(&key)?;
        }
        for netns in &self.namespaces {
            match what {
                What::Nothing => {}
                What::Own { sets } => self.write_hosts(*netns, sets)?,
                What::Network(level, sets) => self.write_networks(*netns, level, sets)?,
            }
        }
        let zero = 0u32.to_ne_bytes();
        let worths = self.worth.lookup(&zero, MapFlags::ANY)?;
        let mut worths: raw::thalweg_worths = worths
            .and_then(|bytes| from_bytes(&bytes))
            .context("the worths")?;
        let all_if = |holds: bool| if holds { u64::MAX } else { 0 };
        worths.known = all_if(matches!(what, What::Network(..)));
        worths.known_windows = all_if(matches!(what, What::Network(level, _) if level.is_window()));
        worths.groups.fill(0);
        for key in self.hosts.keys() {
            let key: raw::thalweg_host_key = from_bytes(&key).context("a key")?;
            if key.level > 0 {
                note_record(&mut worths, &key_from_raw(&key));
            }
        }
        Ok(self.worth.update(&zero, bytes_of(&worths), MapFlags::ANY)?)
    }

    fn write_hosts(&self, netns: u64, sets: bool) -> Result<()> {
        let first = FIRST.to_bits() + (self.round * CONNECTIONS) as u32;
        for bits in first..first + CONNECTIONS as u32 {
            let key = HostKey::new(netns, IpAddr::V4(bits.into()), 32, 64)?;
            self.write(&key, &self.record(Level::Host, sets))?;
        }
        Ok(())
    }

    /// Writes records of a level and of wider ones.
    fn write_networks(&self, netns: u64, level: Level, sets: bool) -> Result<()> {
        let windows = level.is_window();
        if windows {
            self.write_networks(netns, Level::Prefix, sets)?;
        }
        let (prefix, service, namespace) = match windows {
            true => (
                Level::WindowPrefix,
                Level::WindowService,
                Level::WindowNamespace,
            ),
            false => (Level::Prefix, Level::Service, Level::Namespace),
        };
        if level <= prefix {
            for third in 0..=255 {
                let address = IpAddr::V4(Ipv4Addr::new(10, 99, third, 0));
                let key = HostKey::new(netns, address, 24, 64)?;
                let key = HostKey {
                    level: prefix,
                    ..key
                };
                self.write(&key, &self.record(prefix, sets))?;
            }
        }
        let mut key = HostKey::of_namespace(netns);
        if level <= service {
            // Port 5001, each class of RTT, this end opens.
            for class in 0..8 {
                key.addr[12..].copy_from_slice(&[(5001 >> 8) as u8, (5001 & 0xff) as u8, class, 0]);
                let key = HostKey {
                    level: service,
                    prefix_len: 128,
                    ..key
                };
                self.write(&key, &self.record(service, sets))?;
            }
        }
        let key = HostKey {
            level: namespace,
            ..HostKey::of_namespace(netns)
        };
        self.write(&key, &self.record(namespace, sets))
    }

    /// A record that knows of two arms: the default and another, or two windows.
    fn record(&self, level: Level, sets: bool) -> Host {
        let (arms, weight_q16) = match level {
            Level::Host => (self.arms, THIN_Q16),
            level if level.is_window() => ([0, 3], WELL_Q16),
            _ => (self.arms, WELL_Q16),
        };
        let costs = if sets { [HIGH, LOW] } else { [LOW, HIGH] };
        let mut host = Host {
            level,
            connections: 2,
            scored: 2 * (weight_q16 >> 16),
            step: 11,
            ..Host::default()
        };
        for (arm, value) in arms.into_iter().zip(costs) {
            host.arms[arm].scored = weight_q16 >> 16;
            host.arms[arm].weight_q16 = weight_q16;
            host.arms[arm].value = value;
        }
        host
    }

    fn write(&self, key: &HostKey, host: &Host) -> Result<()> {
        let (key, host) = (key_to_raw(key), host_to_raw(key, host));
        Ok(self
            .hosts
            .update(bytes_of(&key), bytes_of(&host), MapFlags::ANY)?)
    }
}
