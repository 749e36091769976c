//! Servers that end with their test, and what tests say through them.

#[path = "../../../../tests/privileged.rs"]
mod privileged;

use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::context::Context;
use async_nats::{ConnectOptions, HeaderMap, Message, Subscriber};
use futures_util::Stream;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use thalweg_fleet::setup::{self, AgentUser, Authority, Cluster, Plan, ServerConfig, Validity};
use thalweg_fleet::wire::{Arm, Cell, Measured, Network, Priors, Shard, Status};
use thalweg_fleet::{Fleet, Identity, Kind, Limits, Name, Operator, Settings, State, Timing};
use thalweg_process::Process;

pub use privileged::skip;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Times that tests can wait for.
pub const QUICK: Timing = Timing {
    priors: Duration::from_millis(50),
    status: Duration::from_millis(20),
    look: Duration::from_millis(150),
    timeout: Duration::from_secs(3),
    unreachable: Duration::from_millis(300),
    refused: Duration::from_millis(300),
    ping: Duration::from_secs(1),
    uneasy: Duration::ZERO,
    namesake: Duration::ZERO,
};

/// Small buckets: a server reserves what they may have.
pub const SMALL: Limits = Limits {
    bytes: 64 << 20,
    age: Duration::from_secs(86_400),
    replicas: 1,
};

/// A plan without servers and agents.
pub fn usual_plan() -> Plan {
    Plan {
        servers: Vec::new(),
        agents: Vec::new(),
        listen: IpAddr::from([0, 0, 0, 0]),
        port: 4222,
        cluster_port: 6222,
        at: "/etc/thalweg-fleet".into(),
        store: "/var/lib/nats/thalweg".into(),
        store_bytes: 4 << 30,
        renew: false,
    }
}

/// Waits until a condition holds.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// nats-server: installed, or where scripts/setup.sh unpacks it.
pub fn program() -> Option<PathBuf> {
    let test = std::env::current_exe().expect("this program");
    let target = test.ancestors().nth(3).expect("target/debug/deps");
    let unpacked = target.join("nats-server/usr/sbin/nats-server");
    let places = [
        "nats-server".into(),
        "/usr/sbin/nats-server".into(),
        unpacked,
    ];
    places.into_iter().find(|program| {
        let version = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        version.is_ok_and(|status| status.success())
    })
}

/// The version of the server whose queue is so long that the configuration must bound it, and later ones.
const BOUNDED: (u32, u32) = (2, 12);
/// The version whose queue has no bound: what is sent faster than the disk takes it holds up everybody.
const UNBOUNDED: (u32, u32) = (2, 10);

/// The first two numbers of the server's version, which it prints as `nats-server: v2.12.2`.
fn version() -> (u32, u32) {
    let output = Command::new(program().expect("a server"))
        .arg("--version")
        .output()
        .expect("its version");
    let text = String::from_utf8_lossy(&output.stdout);
    let digits = text.trim().rsplit([' ', 'v']).next().unwrap_or_default();
    let mut numbers = digits.split('.').map_while(|part| part.parse().ok());
    let first = numbers.next().expect("a version");
    (first, numbers.next().expect("a version"))
}

/// Whether there is a server; says why not.
pub fn is_there() -> bool {
    program().is_some() || skip("no nats-server (scripts/setup.sh --test)")
}

/// A running nats-server.
pub struct Server {
    process: Option<Process>,
    conf: PathBuf,
    pub address: String,
}

impl Server {
    /// One that does not run yet.
    pub fn new(conf: PathBuf, address: String) -> Self {
        Self {
            process: None,
            conf,
            address,
        }
    }

    /// Starts it; false if it ends at once, such as by a port in use.
    pub fn start(&mut self) -> bool {
        let log = self.conf.with_file_name("log");
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log");
        let mut command = Command::new(program().expect("a server"));
        command.arg("-c").arg(&self.conf).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        let mut process = Process::spawn(&mut command).expect("starting the server");
        let answers = wait_for("the server's port", || {
            if process.exit_status().expect("waiting").is_some() {
                return Some(false);
            }
            TcpStream::connect(&self.address).ok().map(|_| true)
        });
        self.process = Some(process);
        answers
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again, on the same port.
    pub fn restart(&mut self) {
        wait_for("the server again", || self.start().then_some(()));
    }

    /// Its process.
    pub fn id(&mut self) -> u32 {
        self.process.as_mut().expect("it runs").child_mut().id()
    }

    /// Sends it a signal; it has stopped when SIGSTOP returns.
    pub fn signal(&mut self, signal: Signal) {
        let id = self.id();
        kill(Pid::from_raw(id as i32), signal).expect("a signal");
        // Its threads stop one after another.
        let tasks = || fs::read_dir(format!("/proc/{id}/task")).expect("its threads");
        let stopped = |task: std::io::Result<fs::DirEntry>| {
            let stat = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            stat.rsplit_once(") ")?.1.starts_with('T').then_some(())
        };
        if signal == Signal::SIGSTOP {
            wait_for("all threads to stop", || {
                tasks().all(|task| stopped(task).is_some()).then_some(())
            });
        }
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.conf.with_file_name("log")).unwrap_or_default()
    }

    /// Where it keeps the buckets.
    pub fn store(&self) -> PathBuf {
        self.conf.with_file_name("store")
    }
}

/// Servers with keys and certificates.
pub struct Bed {
    pub directory: tempfile::TempDir,
    pub servers: Vec<Server>,
    pub authority: Authority,
}

impl Bed {
    /// One server with these agents, and buckets; none if there is no nats-server.
    pub fn new(agents: &[&str]) -> Option<Self> {
        let bed = Self::bare(agents, 1, Validity::default())?;
        bed.operator().make_all(&SMALL).expect("buckets");
        Some(bed)
    }

    /// Servers without buckets.
    pub fn bare(agents: &[&str], count: usize, validity: Validity) -> Option<Self> {
        is_there().then_some(())?;
        let directory = tempfile::tempdir().expect("a directory");
        let plan = Plan {
            agents: agents.iter().map(|agent| name(agent)).collect(),
            ..usual_plan()
        };
        setup::set_up_fleet(directory.path(), &plan).expect("a set-up");
        let authority = Authority::generate().expect("a CA");
        fs::write(directory.path().join("ca.pem"), authority.certificate_pem()).expect("writing");
        let mut bed = Self {
            directory,
            servers: Vec::new(),
            authority,
        };
        for _ in 0..10 {
            if bed.start(agents, count, validity) {
                return Some(bed);
            }
        }
        panic!("no server starts: {}", bed.servers[0].log());
    }

    fn start(&mut self, agents: &[&str], count: usize, validity: Validity) -> bool {
        let free = |_| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            listener.local_addr().expect("its address").port()
        };
        let ports: Vec<u16> = (0..count).map(free).collect();
        let routes: Vec<(String, u16)> = (0..count)
            .map(free)
            .map(|port| ("127.0.0.1".to_owned(), port))
            .collect();
        let public = |agent: &&str| AgentUser {
            name: name(agent),
            key: self.text(&format!("users/{agent}.pub")).trim().to_owned(),
        };
        let agents: Vec<AgentUser> = agents.iter().map(public).collect();
        let operator = thalweg_fleet::keys::UserKey::read_file(&self.path("operator.nk"));
        let users =
            setup::users_configuration(&operator.expect("the operator").public_key(), &agents);
        self.servers.clear();
        for (number, port) in ports.iter().enumerate() {
            let at = self.path(&format!("server-{number}"));
            fs::create_dir_all(&at).expect("a directory");
            let (pem, key) = self
                .authority
                .server_certificate("127.0.0.1", validity)
                .expect("a certificate");
            let write = |file: &str, text: &str| fs::write(at.join(file), text).expect("writing");
            write("server.pem", &pem);
            write("server.key", &key);
            write("ca.pem", self.authority.certificate_pem());
            write("users.conf", &users);
            let cluster = (count > 1).then(|| Cluster {
                port: routes[number].1,
                routes: routes.clone(),
            });
            let text = setup::server_configuration(&ServerConfig {
                name: &format!("n{number}"),
                listen: "127.0.0.1",
                port: *port,
                at: &at,
                store: &at.join("store"),
                store_bytes: 1 << 30,
                cluster,
            });
            let text = match version() >= BOUNDED {
                true => text.replace("#max_buffered_msgs", "max_buffered_msgs"),
                false => text,
            };
            write("nats-server.conf", &text);
            let conf = at.join("nats-server.conf");
            let address = format!("127.0.0.1:{port}");
            self.servers.push(Server::new(conf, address));
        }
        self.servers.iter_mut().all(Server::start)
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    fn text(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).expect("a file")
    }

    /// Settings of a user, all servers named.
    pub fn settings(&self, user: &str) -> Settings {
        let file = match user {
            setup::OPERATOR => self.path("operator.nk"),
            agent => self.path(&format!("agents/{agent}/agent.nk")),
        };
        let url = |server: &Server| format!("tls://{}", server.address);
        let servers = self.servers.iter().map(url).collect();
        let mut settings = Settings::new(servers, name(user), Identity::Nkey(file));
        settings.ca = Some(self.path("ca.pem"));
        settings.keys = vec![self.signing().public_key()];
        settings.pace = QUICK;
        settings
    }

    /// An agent.
    pub fn agent(&self, agent: &str) -> Fleet {
        Fleet::start(&self.settings(agent)).expect("an agent")
    }

    /// The key that signs policies.
    pub fn signing(&self) -> thalweg_fleet::keys::SigningKey {
        thalweg_fleet::keys::SigningKey::read_file(&self.path("policy.nk")).expect("a key")
    }

    /// The operator.
    pub fn operator(&self) -> Operator {
        // A server answers before JetStream does.
        wait_for("the operator", || {
            Operator::connect(&self.settings(setup::OPERATOR)).ok()
        })
    }

    /// A client that does as it likes, with the key of a user.
    pub fn raw(&self, user: &str) -> Raw {
        let seed = match user {
            setup::OPERATOR => self.text("operator.nk"),
            agent => self.text(&format!("agents/{agent}/agent.nk")),
        };
        Raw::connect(
            &self.servers[0].address,
            seed.trim(),
            &self.path("ca.pem"),
            user,
        )
    }

    /// The operator at one server.
    pub fn raw_of(&self, server: usize) -> Raw {
        let seed = self.text("operator.nk");
        let address = &self.servers[server].address;
        Raw::connect(address, seed.trim(), &self.path("ca.pem"), setup::OPERATOR)
    }
}

/// A client without scruples.
pub struct Raw {
    runtime: tokio::runtime::Runtime,
    pub client: async_nats::Client,
    context: Context,
    user: String,
}

impl Raw {
    fn connect(address: &str, seed: &str, ca: &Path, user: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let options = ConnectOptions::with_nkey(seed.to_owned())
            .add_root_certificates(ca.to_owned())
            .require_tls(true)
            .custom_inbox_prefix(format!("_INBOX.{user}"))
            .request_timeout(Some(Duration::from_secs(2)));
        let client = runtime
            .block_on(options.connect(format!("tls://{address}")))
            .expect("a client");
        let entered = runtime.enter();
        let context = async_nats::jetstream::new(client.clone());
        drop(entered);
        Self {
            runtime,
            client,
            context,
            user: user.to_owned(),
        }
    }

    /// Publishes, and waits until the server has seen it.
    pub fn publish(
        &self,
        subject: &str,
        reply: Option<&str>,
        headers: Option<HeaderMap>,
        payload: &[u8],
    ) {
        let payload = payload.to_vec().into();
        let subject = subject.to_owned();
        self.runtime.block_on(async {
            let client = &self.client;
            match (reply, headers) {
                (Some(reply), _) => {
                    client
                        .publish_with_reply(subject, reply.to_owned(), payload)
                        .await
                }
                (None, Some(headers)) => {
                    client.publish_with_headers(subject, headers, payload).await
                }
                (None, None) => client.publish(subject, payload).await,
            }
            .expect("sending");
            client.flush().await.expect("flushing");
        });
    }

    /// Publishes without end, at a rate or as fast as the server takes it.
    pub fn flood(&self, subject: &str, payload: &[u8], rate: Option<u32>, stop: &AtomicBool) {
        const ROUND: u32 = 200;
        let begun = Instant::now();
        let awaits = version() == UNBOUNDED;
        for round in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let due = rate.map(|rate| begun + Duration::from_secs(1) * (round * ROUND) / rate);
            let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
            std::thread::sleep(wait.unwrap_or_default());
            self.runtime.block_on(async {
                for _ in 0..ROUND {
                    let payload = payload.to_vec().into();
                    let sent = self.client.publish(subject.to_owned(), payload).await;
                    sent.expect("sending");
                }
                self.client.flush().await.expect("flushing");
            });
            if awaits {
                // Once all before it was stored. The server may say that it has too much to do.
                drop(self.put(subject, payload));
            }
        }
    }

    /// Puts a value in a bucket, and waits for the confirmation.
    pub fn put(&self, subject: &str, payload: &[u8]) -> Result<u64, String> {
        let subject = subject.to_owned();
        let payload = payload.to_vec();
        self.runtime.block_on(async {
            let sent = self.context.publish(subject, payload.into()).await;
            let done = sent.map_err(|why| why.to_string())?.await;
            done.map(|ack| ack.sequence).map_err(|why| why.to_string())
        })
    }

    /// A request; no answer within two seconds is an error.
    pub fn request(&self, subject: &str, payload: &str) -> Result<String, String> {
        let subject = subject.to_owned();
        let payload = payload.to_owned();
        let asked = self
            .runtime
            .block_on(self.client.request(subject, payload.into()));
        asked
            .map(|answer: Message| String::from_utf8_lossy(&answer.payload).into_owned())
            .map_err(|why| why.to_string())
    }

    /// What this client hears under these subjects while something happens.
    pub fn hear(&self, subjects: &[&str], happens: impl FnOnce()) -> Vec<String> {
        let subscribe = async {
            let mut all = Vec::new();
            for subject in subjects {
                let subject = (*subject).to_owned();
                all.push(self.client.subscribe(subject).await.expect("subscribing"));
            }
            self.client.flush().await.expect("flushing");
            all
        };
        let mut subscribers = self.runtime.block_on(subscribe);
        happens();
        // An answer of its own comes after all of those.
        let _ = self.request("thalweg.API.STREAM.INFO.KV_thalweg-priors", "");
        let mut heard = Vec::new();
        for subscriber in &mut subscribers {
            while let Ok(Some(message)) = self.runtime.block_on(next_of(&mut *subscriber)) {
                heard.push(message.subject.to_string());
            }
        }
        let own = format!("_INBOX.{}.", self.user);
        heard.retain(|subject| !subject.starts_with(&own));
        heard
    }

    /// The value under a subject of a stream, for the operator.
    pub fn value(&self, stream: &str, subject: &str) -> Option<Vec<u8>> {
        self.runtime.block_on(async {
            let stream = self.context.get_stream(stream).await.expect("the stream");
            let message = stream.get_last_raw_message_by_subject(subject).await.ok()?;
            Some(message.payload.to_vec())
        })
    }

    /// Changes a stream, for the operator.
    pub fn change(
        &self,
        stream: &str,
        change: impl FnOnce(&mut async_nats::jetstream::stream::Config),
    ) {
        self.runtime.block_on(async {
            let stream = self.context.get_stream(stream).await.expect("the stream");
            let mut config = stream.cached_info().config.clone();
            change(&mut config);
            self.context.update_stream(&config).await.expect("a change");
        });
    }

    /// Whether each stream has a leader, and followers that have all.
    pub fn is_current(&self) -> bool {
        let current = async |bucket: thalweg_fleet::Bucket| {
            let stream = self.context.get_stream(bucket.stream_name()).await.ok()?;
            let cluster = stream.cached_info().cluster.clone()?;
            cluster.leader?;
            cluster
                .replicas
                .iter()
                .all(|peer| peer.current && !peer.offline)
                .then_some(())
        };
        self.runtime.block_on(async {
            for bucket in thalweg_fleet::BUCKETS {
                if current(bucket).await.is_none() {
                    return false;
                }
            }
            true
        })
    }

    /// How many messages a stream has.
    pub fn count(&self, stream: &str) -> u64 {
        self.runtime.block_on(async {
            let stream = self.context.get_stream(stream).await.expect("the stream");
            stream.cached_info().state.messages
        })
    }
}

/// The next message, if it comes soon.
async fn next_of(
    subscriber: &mut Subscriber,
) -> Result<Option<Message>, tokio::time::error::Elapsed> {
    let next = std::future::poll_fn(|cx| Pin::new(&mut *subscriber).poll_next(cx));
    tokio::time::timeout(Duration::from_millis(10), next).await
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// A network of a shard.
pub fn network(shard: Shard, number: u32) -> Network {
    let of_shard = |number: u32| {
        let [a, b, c, _] = (number << 8).to_be_bytes();
        let network = Network::parse(&format!("prefix:{}.{b}.{c}.0/24", 10 + a % 100));
        network.filter(|network| network.shard() == shard)
    };
    let mut found = (0..).filter_map(of_shard);
    found.nth(number as usize).expect("there are many")
}

/// Some priors of an agent; `cost` tells them apart.
pub fn priors(agent: &str, shard: u8, cost: i32) -> Priors {
    let shard = Shard::new(shard).expect("a shard");
    let arm = |name: &str, cost_q16| Arm {
        name: name.to_owned(),
        cost_q16,
        evidence_q16: 12 << 16,
        log_rate_q16: -(1 << 15),
        deviation_q16: 1 << 14,
        segments: 5000,
        retransmitted: 7,
    };
    Priors {
        agent: name(agent),
        shard,
        rule: 1,
        networks: vec![Measured {
            network: network(shard, 0),
            age_s: 60,
            queue_q16: 0,
            arms: vec![arm("cubic", 0), arm("bbr", cost)],
        }],
    }
}

/// A status of an agent.
pub fn status(agent: &str) -> Status {
    let cell = |side: &str| Cell {
        scope: "all".to_owned(),
        row: "time".to_owned(),
        side: side.to_owned(),
        clusters: 40,
        connections: 900,
        sums: [600.0, -12.5, 9000.0, -150.0, 2.5, -0.125],
    };
    Status {
        agent: name(agent),
        version: "0.1.0".to_owned(),
        instance: None,
        is_shared: false,
        labels: vec![Name::all()],
        policies: Vec::new(),
        faults: vec!["the store is read-only".to_owned()],
        cells: vec![cell("control"), cell("treated")],
    }
}

/// Waits until an agent is connected.
pub fn connected(fleet: &Fleet) -> State {
    wait_for("a connection", || {
        let state = fleet.state();
        state.connected.is_some().then_some(state)
    })
}

/// Waits until an agent has counted a fault of this kind; returns its last text.
pub fn fault(fleet: &Fleet, kind: Kind) -> String {
    let text = wait_for(kind.name(), || {
        let state = fleet.state();
        state.faults.get(&kind)?;
        state
            .last
            .filter(|told| told.fault.kind == kind)
            .map(|told| told.fault.text)
    });
    assert!(
        !text.contains('\n') && text.chars().count() <= 201,
        "{text}"
    );
    text
}
