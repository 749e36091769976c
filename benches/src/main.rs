//! Costs of Thalweg. `make bench` runs it; each part can be run alone as root:
//!
//! ```text
//! thalweg-bench kernel   kernel time per establishment and per close, 50,000 hosts in the map
//! thalweg-bench rate     connections per second with the agent, against without
//! thalweg-bench agent    memory and CPU of the agent, idle and under load
//! thalweg-bench store    bytes written, memory and answers of the agent with 65,536 hosts
//! thalweg-bench names    time and memory of a table of named networks as large as the Internet's
//! thalweg-bench long     what looks at 100,000 open connections cost
//! thalweg-bench policy   kernel time, memory and time to apply of a policy of 10,000 rules
//! thalweg-bench link     what an emulated link carries and how exactly; needs no root
//! thalweg-bench cc       kernel time per call of congestion controls in BPF, and their goodput
//! thalweg-bench instructions   what each costs in instructions, in QEMU; needs no root
//! thalweg-bench decisions      what decisions cost, with networks and windows and without, in QEMU; needs no root
//! thalweg-bench kernels        what works on which kernel, in QEMU and on this one (docs/reference/kernels.md)
//! thalweg-bench soak     hours of connections, reloads and restarts: memory, files, pins, disk
//! thalweg-bench fleet    memory and CPU that membership in a fleet of 200 costs an agent
//! thalweg-bench fleet-demo     three agents tell a new one what they know: make fleet-demo
//! thalweg-bench fleet-soak     agents, servers and links killed a thousand times: scripts/soak-fleet.sh
//! thalweg-bench model    time per decision of the learned rate controller; needs no root
//! ```
//!
//! Each prints a table with the target beside the figure, and exits with 1 if one is missed.

mod agent;
mod bed;
mod busy;
mod cc;
mod decisions;
mod fleet;
mod instructions;
mod kernel;
mod kernels;
mod link;
mod long;
mod model;
mod names;
mod policy;
mod rate;
mod soak;
mod store;
mod table;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Benchmarks of Thalweg's cost.
#[derive(Parser)]
struct Arguments {
    /// The `thalweg` binary to measure; `thalweg-lab` is beside it.
    #[arg(long, default_value = "target/release/thalweg")]
    binary: PathBuf,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Kernel time per establishment and per close.
    Kernel,
    /// Connections per second of a connect/close loop.
    Rate,
    /// Memory and CPU of the agent.
    Agent,
    /// Costs of a full table of hosts for the agent.
    Store,
    /// Costs of a table of named networks.
    Names,
    /// Costs of looks at 100,000 open connections.
    Long,
    /// Costs of a policy of 10,000 rules.
    Policy,
    /// Throughput of a link, and lateness of its packets.
    Link,
    /// Costs of congestion controls in BPF.
    Cc,
    /// Time per decision of the learned rate controller.
    Model,
    /// Costs in instructions of the processor, on a stock kernel in QEMU.
    Instructions {
        /// The kernel, of `thalweg-lab kernels list`, or the file of its image; the newest.
        #[arg(long)]
        kernel: Option<OsString>,
        /// Write the counts to instructions.toml instead of comparing.
        #[arg(long)]
        write: bool,
    },
    /// (internal) The counts of `instructions`, on this kernel, ns.
    #[command(hide = true)]
    Count {
        /// The model of the learned rate controller.
        #[arg(default_value = cc::MODEL)]
        model: PathBuf,
    },
    /// Instructions of decisions with networks and initial windows against those without, and memory
    /// of maps, on a stock kernel in QEMU.
    Decisions {
        /// The kernel, of `thalweg-lab kernels list`, or the file of its image; the newest.
        #[arg(long)]
        kernel: Option<OsString>,
    },
    /// (internal) The counts of `decisions`, on this kernel.
    #[command(hide = true)]
    CountDecisions {
        /// Unused.
        model: PathBuf,
    },
    /// Features on Debian's kernels in QEMU and on this one, and the verifier's figures.
    Kernels {
        /// A kernel, of `thalweg-lab kernels list`, or the file of its image; may be given several
        /// times. Those of docs/reference/kernels.md, and this machine's own.
        #[arg(long)]
        kernel: Vec<OsString>,
        /// Only this feature, by its name in the page; may be given several times. All.
        #[arg(long)]
        feature: Vec<String>,
        /// Write docs/reference/kernels.md instead of comparing.
        #[arg(long)]
        write: bool,
        /// The results as JSON.
        #[arg(long)]
        json: bool,
    },
    /// (internal) The results of `kernels`, on this kernel.
    #[command(hide = true)]
    Probe {
        /// A model of the learned rate controller.
        model: PathBuf,
        /// The features; all.
        feature: Vec<String>,
    },
    /// Costs of an agent's membership in a fleet of 200.
    Fleet {
        /// Runs with and without, in turns.
        #[arg(long, default_value = "5")]
        runs: usize,
        /// Agents that tell.
        #[arg(long, default_value = "200")]
        agents: usize,
        /// Networks of which each tells.
        #[arg(long, default_value = "1000")]
        networks: usize,
    },
    /// A server, three agents that learn, and a new one that begins with what they know.
    FleetDemo {
        /// The results as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Agents, servers and links of a fleet are killed, again and again.
    FleetSoak {
        /// How often something is killed.
        #[arg(long, default_value = "1000")]
        kills: u32,
        /// How long, minutes.
        #[arg(long, default_value = "30")]
        minutes: f64,
        /// Agents without a kernel, beside two real ones.
        #[arg(long, default_value = "20")]
        agents: usize,
        /// Seed of what is killed when.
        #[arg(long, default_value = "1")]
        seed: u64,
        /// File that gets a line of JSON for each kill, and one for each fault.
        #[arg(long, default_value = "target/soak-fleet.jsonl")]
        out: PathBuf,
    },
    /// Connections, policies, reloads and restarts for a long time.
    Soak {
        /// How long, minutes.
        #[arg(long, default_value = "60")]
        minutes: f64,
        /// Connections a second.
        #[arg(long, default_value = "100")]
        rate: f64,
        /// File that gets a line of JSON for each look at the agent.
        #[arg(long, default_value = "target/soak.jsonl")]
        out: PathBuf,
    },
    /// (internal) Traffic, run inside a namespace.
    #[command(hide = true, subcommand)]
    Worker(worker::Work),
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let met = match arguments.what {
        What::Kernel => kernel::run(&arguments.binary)?,
        What::Rate => rate::run(&arguments.binary)?,
        What::Agent => agent::run(&arguments.binary)?,
        What::Store => store::run(&arguments.binary)?,
        What::Names => names::run(&arguments.binary)?,
        What::Long => long::run(&arguments.binary)?,
        What::Policy => policy::run(&arguments.binary)?,
        What::Link => link::run(&arguments.binary)?,
        What::Cc => cc::run(&arguments.binary)?,
        What::Model => model::run()?,
        What::Instructions { kernel, write } => {
            instructions::run(&arguments.binary, kernel.as_deref(), write)?
        }
        What::Count { model } => {
            let costs = instructions::measure(&arguments.binary, &model)?;
            println!("{}", serde_json::to_string(&costs)?);
            true
        }
        What::Decisions { kernel } => decisions::run(&arguments.binary, kernel.as_deref())?,
        What::CountDecisions { .. } => {
            let costs = decisions::measure(&arguments.binary)?;
            println!("{}", serde_json::to_string(&costs)?);
            true
        }
        What::Kernels {
            kernel,
            feature,
            write,
            json,
        } => kernels::run(&arguments.binary, &kernel, &feature, write, json)?,
        What::Probe { model, feature } => {
            let column = kernels::probe::probe(&arguments.binary, &model, &feature)?;
            println!("{}", serde_json::to_string(&column)?);
            true
        }
        What::Fleet {
            runs,
            agents,
            networks,
        } => {
            let size = fleet::cost::Size { agents, networks };
            fleet::cost::run(&arguments.binary, runs, size)?
        }
        What::FleetDemo { json } => fleet::demo::run(&arguments.binary, json)?,
        What::FleetSoak {
            kills,
            minutes,
            agents,
            seed,
            out,
        } => {
            let plan = fleet::soak::Plan {
                kills,
                minutes,
                agents,
                seed,
            };
            fleet::soak::run(&arguments.binary, &plan, &out)?
        }
        What::Soak { minutes, rate, out } => soak::run(&arguments.binary, minutes, rate, &out)?,
        What::Worker(work) => {
            worker::run(&work)?;
            true
        }
    };
    Ok(if met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
