//! An agent in a fleet, with a real nats-server on loopback.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_bpf_types::raw;
use thalweg_fleet::wire::{Arm, Measured, Network, Priors};
use thalweg_fleet::{Fleet, Identity, Incoming, Limits, Name, Operator, Outgoing, Settings};
use thalweg_lab::host::Side;
use thalweg_process::Process;

use crate::support::{Bed, COLLECTOR, THALWEG, Traffic, plain, privileged, skip, wait_for};

/// nats-server: installed, or where scripts/setup.sh unpacks it.
pub fn program() -> Option<PathBuf> {
    let unpacked = Path::new(THALWEG).with_file_name("../nats-server/usr/sbin/nats-server");
    let mut places = [
        PathBuf::from("nats-server"),
        "/usr/sbin/nats-server".into(),
        unpacked,
    ]
    .into_iter();
    places.find(|program| Command::new(program).arg("--version").output().is_ok())
}

/// A server with buckets, which anybody on this machine may use.
struct Server {
    directory: tempfile::TempDir,
    port: u16,
    process: Option<Process>,
}

impl Server {
    /// None if there is no nats-server.
    fn new() -> Option<Self> {
        if program().is_none() {
            skip("no nats-server (scripts/setup.sh --test)");
            return None;
        }
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut server = Self {
            directory: tempfile::tempdir().expect("a directory"),
            port: free.local_addr().expect("its address").port(),
            process: None,
        };
        drop(free);
        server.start();
        let mut operator = wait_for("the server", || {
            Operator::connect(&server.settings("operator")).ok()
        });
        let limits = Limits {
            bytes: 16 << 20,
            ..Limits::default()
        };
        operator.make_all(&limits).expect("buckets");
        Some(server)
    }

    fn start(&mut self) {
        let mut command = Command::new(program().expect("nats-server"));
        command
            .args([
                "-js",
                "-a",
                "127.0.0.1",
                "-p",
                &self.port.to_string(),
                "-sd",
            ])
            .arg(self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.process = Some(Process::spawn(&mut command).expect("starting nats-server"));
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    fn settings(&self, agent: &str) -> Settings {
        let name = Name::new(agent).expect("a name");
        let mut settings = Settings::new(vec![self.url()], name, Identity::None);
        settings.pace.look = Duration::from_millis(200);
        settings
    }

    /// Another agent tells of a network that reno costs 1 1/2 bits less than cubic.
    fn tell(&self, agent: &str, network: &Network) {
        let fleet = Fleet::start(&self.settings(agent)).expect("a client");
        let arm = |name: &str, cost_q16: i32| Arm {
            name: name.to_owned(),
            cost_q16,
            evidence_q16: 4 << 16,
            log_rate_q16: -cost_q16,
            deviation_q16: 1 << 14,
            segments: 5000,
            retransmitted: 0,
        };
        let priors = Priors {
            agent: Name::new(agent).expect("a name"),
            shard: network.shard(),
            rule: raw::THALWEG_RULE,
            networks: vec![Measured {
                network: network.clone(),
                age_s: 0,
                queue_q16: 0,
                arms: vec![arm("cubic", 0), arm("reno", -3 << 15)],
            }],
        };
        fleet.offer(&Outgoing::Priors(priors)).expect("priors");
        wait_for("the server to have it", || {
            (fleet.state().published > 0).then_some(())
        });
    }
}

/// A bed whose agent, once it starts, is in the fleet of a server.
fn bed(label: &str, server: &Server) -> Bed {
    let settings = format!(
        "[arms]\nallow = [\"cubic\", \"reno\"]\n[fleet]\nname = \"new\"\nservers = [{:?}]\n",
        server.url()
    );
    Bed::new(&plain(label), &settings)
}

/// What reads all that clients of the bed send.
fn reader(bed: &Bed) -> Traffic {
    let mut reader = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(reader.line(), "listening");
    reader
}

/// The prefix of the bed's server.
fn network_of(bed: &Bed) -> Network {
    let address = bed.server_address();
    let (first, _) = address.rsplit_once('.').expect("IPv4");
    Network::parse(&format!("prefix:{first}.0/24")).expect("a prefix")
}

fn fleet_record(bed: &Bed) -> Option<Value> {
    let known = bed.json(&["networks"]);
    let networks = known["networks"].as_array().expect("networks").clone();
    networks
        .into_iter()
        .find(|it| it["level"] == "fleet-prefix")
}

#[test]
fn what_others_know_decides_the_first_connection() {
    if !privileged() {
        return;
    }
    let Some(mut server) = Server::new() else {
        return;
    };
    let mut bed = bed("fleet", &server);
    let network = network_of(&bed);
    for number in 0..24 {
        server.tell(&format!("agent-{number}"), &network);
    }
    bed.start();
    let _reader = reader(&bed);
    wait_for("what all of them know", || {
        let record = fleet_record(&bed)?;
        (record["decides"] == true && record["best"] == "reno").then_some(())
    });

    // Nothing was ever sent there.
    assert!(bed.hosts().is_empty());
    bed.connect(&bed.server_address(), 1, 1_100_000);
    let first = wait_for("the first decision", || {
        let mut events = bed.events(1);
        events.retain(|it| it["kind"] == "decision");
        events.pop()
    });
    assert_eq!(first["level"], "fleet-prefix", "{first}");
    assert_eq!(first["arm"], "reno", "{first}");
    bed.counter_reaches("scored", 1);

    // The fleet away changes nothing.
    server.process = None;
    bed.connect(&bed.server_address(), 2, 1_100_000);
    bed.counter_reaches("scored", 3);
    wait_for("the loss of the server", || {
        let place = bed.json(&["fleet", "status"]);
        place["server"].is_null().then_some(())
    });
    server.start();
    wait_for("the server again", || {
        let place = bed.json(&["fleet", "status"]);
        place["server"].is_string().then_some(())
    });
}

#[test]
fn an_agent_tells_what_it_measured_itself() {
    if !privileged() {
        return;
    }
    let Some(server) = Server::new() else {
        return;
    };
    let mut bed = bed("fleet-tells", &server);
    bed.start();
    let _reader = reader(&bed);
    bed.connect(&bed.server_address(), 1, 1_100_000);
    bed.counter_reaches("scored", 1);
    // A new session looks at its networks at once, and not after a minute.
    assert!(bed.end(Signal::SIGTERM).success());
    bed.start();
    let listener = Fleet::start(&server.settings("listener")).expect("a client");
    let told = wait_for("what the agent tells", || {
        let incoming = listener.take(Duration::from_millis(100));
        incoming.into_iter().find_map(|it| match it {
            Incoming::Priors { priors, .. } if priors.agent.as_str() == "new" => Some(priors),
            _ => None,
        })
    });
    let networks: Vec<&Network> = told.networks.iter().map(|it| &it.network).collect();
    assert_eq!(networks, [&network_of(&bed)]);
    let [cubic] = &told.networks[0].arms[..] else {
        panic!("{told:?}");
    };
    assert_eq!((&*cubic.name, cubic.cost_q16), ("cubic", 0));
    assert!(cubic.evidence_q16 <= 1 << 16, "{cubic:?}");
}

#[test]
fn an_agent_without_fleet_has_none() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("fleet-none", "");
    assert_eq!(bed.json(&["fleet", "status"]), Value::Null);
    let said = String::from_utf8(bed.thalweg(&["fleet", "status"]).stdout).expect("text");
    assert_eq!(said, "this agent is in no fleet ([fleet] servers = [])\n");
}
