//! A real nats-server on loopback, and agents in its fleet.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_bpf_types::raw;
use thalweg_fleet::keys::UserKey;
use thalweg_fleet::setup::Authority;
use thalweg_fleet::setup::Validity;
use thalweg_fleet::wire::{Arm, Measured, Network, Priors};
use thalweg_fleet::{Fleet, Identity, Limits, Name, Operator, Outgoing, Settings};
use thalweg_lab::host::Side;
use thalweg_process::Process;

use thalweg_testbed::{Bed, COLLECTOR, Traffic, plain, skip, thalweg, wait_for};

/// nats-server: installed, or where scripts/setup.sh unpacks it.
pub fn program() -> Option<PathBuf> {
    let unpacked = Path::new(thalweg()).with_file_name("../nats-server/usr/sbin/nats-server");
    let mut places = [
        PathBuf::from("nats-server"),
        "/usr/sbin/nats-server".into(),
        unpacked,
    ]
    .into_iter();
    places.find(|program| Command::new(program).arg("--version").output().is_ok())
}

/// A server on loopback.
pub struct Server {
    pub directory: tempfile::TempDir,
    port: u16,
    pub process: Option<Process>,
}

impl Server {
    /// A server with buckets, which anybody on this machine may use. None if there is no nats-server.
    pub fn new() -> Option<Self> {
        let server = Self::at(tempfile::tempdir().expect("a directory"), "")?;
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

    /// A server with TLS, by a certificate of this CA, which lets in whoever has a key.
    pub fn tls(authority: &Authority, validity: Validity, key: &UserKey) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let (pem, secret) = authority
            .server_certificate("127.0.0.1", validity)
            .expect("a certificate");
        let at = |file: &str| directory.path().join(file);
        fs::write(at("server.pem"), pem).expect("writing");
        fs::write(at("server.key"), secret).expect("writing");
        let more = format!(
            "tls {{ cert_file: {:?}, key_file: {:?} }}\nauthorization {{ users: [{{ nkey: {} }}] }}\n",
            at("server.pem"),
            at("server.key"),
            key.public_key()
        );
        Self::at(directory, &more)
    }

    fn at(directory: tempfile::TempDir, more: &str) -> Option<Self> {
        if program().is_none() {
            skip("no nats-server (scripts/setup.sh --test)");
            return None;
        }
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut server = Self {
            directory,
            port: free.local_addr().expect("its address").port(),
            process: None,
        };
        drop(free);
        server.configure(more);
        server.start();
        Some(server)
    }

    fn configure(&self, more: &str) {
        let text = format!(
            "listen: \"127.0.0.1:{}\"\njetstream {{ store_dir: {:?} }}\n{more}\n",
            self.port,
            self.directory.path().join("store")
        );
        fs::write(self.directory.path().join("conf"), text).expect("writing");
    }

    /// Starts it again, with more in its configuration.
    pub fn restart(&mut self, more: &str) {
        self.process = None;
        self.configure(more);
        self.start();
    }

    pub fn start(&mut self) {
        let mut command = Command::new(program().expect("nats-server"));
        command
            .arg("-c")
            .arg(self.directory.path().join("conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.process = Some(Process::spawn(&mut command).expect("starting nats-server"));
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The same with TLS.
    pub fn tls_url(&self) -> String {
        format!("tls://127.0.0.1:{}", self.port)
    }

    pub fn settings(&self, agent: &str) -> Settings {
        let name = Name::new(agent).expect("a name");
        let mut settings = Settings::new(vec![self.url()], name, Identity::None);
        settings.pace.look = Duration::from_millis(200);
        settings
    }

    /// A client that does as it likes.
    pub fn raw(&self) -> Raw {
        wait_for("a connection", || Raw::connect(self.port))
    }

    /// Another agent tells of a network that reno costs 1 1/2 bits less than cubic.
    pub fn tell(&self, agent: &str, network: &Network) {
        let fleet = Fleet::start(&self.settings(agent)).expect("a client");
        fleet
            .offer_message(&Outgoing::Priors(priors(agent, network)))
            .expect("priors");
        wait_for("the server to have it", || {
            (fleet.state().published > 0).then_some(())
        });
    }

    /// So many agents tell of it, after each other.
    pub fn all_tell(&self, agents: u32, network: &Network) {
        for number in 0..agents {
            self.tell(&format!("agent-{number}"), network);
        }
    }
}

/// What an agent tells of a network: reno costs 1 1/2 bits less than cubic.
pub fn priors(agent: &str, network: &Network) -> Priors {
    let arm = |name: &str, cost_q16: i32| Arm {
        name: name.to_owned(),
        cost_q16,
        evidence_q16: 4 << 16,
        log_rate_q16: -cost_q16,
        deviation_q16: 1 << 14,
        segments: 5000,
        retransmitted: 0,
    };
    Priors {
        agent: Name::new(agent).expect("a name"),
        shard: network.shard(),
        rule: raw::THALWEG_RULE,
        networks: vec![Measured {
            network: network.clone(),
            age_s: 0,
            queue_q16: 0,
            arms: vec![arm("cubic", 0), arm("reno", -3 << 15)],
        }],
    }
}

/// The protocol of NATS by hand, without TLS.
pub struct Raw {
    from: BufReader<TcpStream>,
    to: TcpStream,
    asked: u32,
}

impl Raw {
    fn connect(port: u16) -> Option<Self> {
        let to = TcpStream::connect(("127.0.0.1", port)).ok()?;
        let from = BufReader::new(to.try_clone().ok()?);
        let mut raw = Self { from, to, asked: 0 };
        assert!(raw.line().starts_with("INFO "));
        raw.send(b"CONNECT {\"verbose\":false}\r\nSUB raw.* 1\r\n");
        raw.flush();
        Some(raw)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.to.write_all(bytes).expect("the server takes it");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the server answers");
        line.trim_end().to_owned()
    }

    fn flush(&mut self) {
        self.send(b"PING\r\n");
        while self.line() != "PONG" {}
    }

    /// A request with its answer.
    pub fn request(&mut self, subject: &str, payload: &[u8]) -> Value {
        self.asked += 1;
        let inbox = format!("raw.{}", self.asked);
        self.send(format!("PUB {subject} {inbox} {}\r\n", payload.len()).as_bytes());
        self.send(payload);
        self.send(b"\r\n");
        loop {
            let line = self.line();
            let words: Vec<&str> = line.split(' ').collect();
            if words[0] != "MSG" {
                continue;
            }
            let length: usize = words[words.len() - 1].parse().expect("a length");
            let mut answer = vec![0; length + 2];
            self.from.read_exact(&mut answer).expect("an answer");
            if words[1] == inbox {
                return serde_json::from_slice(&answer[..length]).expect("JSON");
            }
        }
    }

    /// Puts a message in a bucket, and waits until it is there.
    pub fn put(&mut self, subject: &str, payload: &[u8]) {
        let answer = self.request(subject, payload);
        assert!(answer["seq"].is_u64(), "{answer}");
    }

    /// Changes the stream of a bucket.
    pub fn change(&mut self, bucket: &str, change: impl FnOnce(&mut Value)) {
        let info = self.request(&format!("$JS.API.STREAM.INFO.KV_{bucket}"), b"");
        let mut config = info["config"].clone();
        change(&mut config);
        let subject = format!("$JS.API.STREAM.UPDATE.KV_{bucket}");
        let answer = self.request(&subject, config.to_string().as_bytes());
        assert_eq!(answer.get("error"), None, "{answer}");
    }

    /// Lifts a bucket's limits, runs something, and sets them again.
    pub fn without_limits(&mut self, bucket: &str, run: impl FnOnce(&mut Self)) {
        let mut before = json!(null);
        self.change(bucket, |config| {
            before = json!([config["max_msg_size"], config["max_bytes"]]);
            config["max_msg_size"] = json!(-1);
            config["max_bytes"] = json!(-1);
        });
        run(self);
        self.change(bucket, |config| {
            config["max_msg_size"] = before[0].clone();
            config["max_bytes"] = json!(1 << 30);
        });
    }
}

/// The settings of an agent that is in the fleet of a server; `more` belongs to `[fleet]`, or follows it.
pub fn settings(url: &str, more: &str) -> String {
    format!(
        "[arms]\nallow = [\"cubic\", \"reno\"]\n[fleet]\nname = \"new\"\nservers = [{url:?}]\n{more}\n"
    )
}

/// A bed whose agent, once it starts, is in the fleet of a server.
pub fn bed(label: &str, server: &Server) -> Bed {
    Bed::new(&plain(label), &settings(&server.url(), ""))
}

/// What reads all that clients of the bed send.
pub fn reader(bed: &Bed) -> Traffic {
    let mut reader = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(reader.line(), "listening");
    reader
}

/// The prefix of the bed's server.
pub fn network_of(bed: &Bed) -> Network {
    let address = bed.server_address();
    let (first, _) = address.rsplit_once('.').expect("IPv4");
    Network::parse(&format!("prefix:{first}.0/24")).expect("a prefix")
}

/// What the agent has of networks at a level.
pub fn records(bed: &Bed, level: &str) -> Vec<Value> {
    let known = bed.json(&["networks"]);
    let networks = known["networks"].as_array().expect("networks").iter();
    networks
        .filter(|it| it["level"] == level)
        .cloned()
        .collect()
}

/// What others told of a prefix.
pub fn fleet_record(bed: &Bed) -> Option<Value> {
    records(bed, "fleet-prefix").pop()
}

/// Waits until what others told decides, by reno.
pub fn others_decide(bed: &Bed) -> Value {
    wait_for("what all of them know", || {
        fleet_record(bed).filter(|it| it["decides"] == true && it["best"] == "reno")
    })
}
