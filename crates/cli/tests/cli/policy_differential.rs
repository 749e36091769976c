//! Random policies on real connections. The sockets of both ends have the settings of the policy,
//! by the library, by `thalweg policy test`, and by the text of docs/reference/policy.md.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use crate::support::policies::bed;
use crate::support::{Bed, Traffic, privileged};
use thalweg_lab::host::Side;
use thalweg_policy::{Flow, FlowKind, Namespace, Policy};

/// splitmix64: the same policies and flows for a seed, everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// The ends of connections that have a setting, and its family.
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    All,
    Active,
    Ipv4,
    Ipv6,
}

/// A setting whose effect can be read from the socket.
struct Setting {
    key: &'static str,
    level: i32,
    name: i32,
    ends: Ends,
    /// Whether `[rule.on.listen]` may set it, and accepted connections inherit it.
    listen: bool,
    /// Values as in the file, and as the socket returns them.
    values: &'static [(&'static str, &'static str)],
}

const fn setting(
    key: &'static str,
    (level, name): (i32, i32),
    ends: Ends,
    listen: bool,
    values: &'static [(&'static str, &'static str)],
) -> Setting {
    Setting {
        key,
        level,
        name,
        ends,
        listen,
        values,
    }
}

const SETTINGS: &[Setting] = &[
    setting(
        "mark",
        (1, 36),
        Ends::All,
        true,
        &[("1", "1"), ("77", "77")],
    ),
    setting(
        "priority",
        (1, 12),
        Ends::All,
        false,
        &[("3", "3"), ("5", "5")],
    ),
    setting(
        "user_timeout",
        (6, 18),
        Ends::All,
        true,
        &[("\"7s\"", "7000"), ("\"9s\"", "9000")],
    ),
    setting(
        "notsent_lowat",
        (6, 25),
        Ends::All,
        true,
        &[("\"16kB\"", "16000"), ("\"32kB\"", "32000")],
    ),
    setting(
        "max_pacing_rate",
        (1, 47),
        Ends::All,
        true,
        &[("\"800mbit\"", "100000000")],
    ),
    setting(
        "sndbuf",
        (1, 7),
        Ends::All,
        true,
        &[("\"100kB\"", "200000"), ("\"80kB\"", "160000")],
    ),
    setting(
        "rcvbuf",
        (1, 8),
        Ends::All,
        true,
        &[("\"100kB\"", "200000")],
    ),
    setting(
        "nodelay",
        (6, 1),
        Ends::All,
        true,
        &[("true", "1"), ("false", "0")],
    ),
    setting("keepalive", (1, 9), Ends::All, true, &[("true", "1")]),
    setting(
        "keepalive_idle",
        (6, 4),
        Ends::All,
        true,
        &[("\"30s\"", "30"), ("\"40s\"", "40")],
    ),
    setting("keepalive_count", (6, 6), Ends::All, true, &[("4", "4")]),
    setting(
        "rcvlowat",
        (1, 18),
        Ends::All,
        true,
        &[("\"1B\"", "1"), ("\"2B\"", "2")],
    ),
    setting(
        "thin_linear_timeouts",
        (6, 16),
        Ends::All,
        true,
        &[("true", "1")],
    ),
    setting(
        "congestion",
        (6, 13),
        Ends::All,
        true,
        &[("\"reno\"", "reno"), ("\"bbr\"", "bbr")],
    ),
    setting(
        "syn_count",
        (6, 7),
        Ends::Active,
        false,
        &[("3", "3"), ("4", "4")],
    ),
    setting(
        "tos",
        (0, 1),
        Ends::Ipv4,
        true,
        &[("72", "72"), ("40", "40")],
    ),
    setting(
        "tclass",
        (41, 67),
        Ends::Ipv6,
        true,
        &[("72", "72"), ("40", "40")],
    ),
];

const TOS: &str = "tos";
const PRIORITY: &str = "priority";
const PORTS: &[u16] = &[5001, 5002, 5003, 5004];
const CLIENTS: &[&str] = &["10.71.1.1", "10.71.2.1", "fd71:1::1", "fd71:2::1"];
const SERVERS: &[&str] = &["10.71.1.2", "10.71.2.2", "fd71:1::2", "fd71:2::2"];
const PREFIXES: &[&str] = &[
    "10.71.0.0/16",
    "10.71.1.0/24",
    "10.71.2.0/24",
    "10.71.1.1",
    "10.71.1.2",
    "0.0.0.0/0",
    "::ffff:10.71.2.0/120",
    "::/0",
    "fd71:1::/32",
    "fd71:1::/48",
    "fd71:2::1",
    "fd71:2::2",
    "fd00::/8",
];

/// A generated rule: its settings, apart from those of listeners.
struct Made {
    name: String,
    never: bool,
    set: Vec<(usize, usize)>,
    listen: Vec<(usize, usize)>,
}

fn list(random: &mut Random, words: &[&str]) -> String {
    let items: Vec<String> = (0..1 + random.below(2))
        .map(|_| format!("{:?}", random.of(words)))
        .collect();
    format!("[{}]", items.join(", "))
}

fn settings(random: &mut Random, listen: bool) -> Vec<(usize, usize)> {
    let mut chosen = BTreeMap::new();
    for _ in 0..1 + random.below(5) {
        let place = random.below(SETTINGS.len());
        if !listen || SETTINGS[place].listen {
            chosen.insert(place, random.below(SETTINGS[place].values.len()));
        }
    }
    chosen.into_iter().collect()
}

/// A policy of random rules, as text and as generated.
fn policy(random: &mut Random, bed: &Bed) -> (String, Vec<Made>) {
    let cgroup = bed.pair.cgroup().display().to_string();
    let below = cgroup
        .strip_prefix("/sys/fs/cgroup")
        .unwrap_or(&cgroup)
        .to_owned();
    let cgroups = [cgroup, below, "/no/such/cgroup".to_owned()];
    let netns = [Side::Client, Side::Server].map(|side| bed.pair.namespace(side).to_owned());
    let mut text = "name = \"random\"\n".to_owned();
    let mut made = Vec::new();
    for number in 0..3 + random.below(12) {
        let rule = Made {
            name: format!("r{number}"),
            never: random.chance(8),
            set: settings(random, false),
            listen: if random.chance(25) {
                settings(random, true)
            } else {
                Vec::new()
            },
        };
        writeln!(text, "[[rule]]\nname = {:?}", rule.name).unwrap();
        let mut when = Vec::new();
        if random.chance(50) {
            when.push(format!("remote = {}", list(random, PREFIXES)));
        }
        if random.chance(30) {
            when.push(format!("local = {}", list(random, PREFIXES)));
        }
        if random.chance(10) {
            when.push(format!(
                "same_prefix = {{ ipv4 = {}, ipv6 = {} }}",
                random.of(&[16, 24]),
                random.of(&[16, 32, 48])
            ));
        }
        if random.chance(25) {
            when.push(format!(
                "remote_port = {}",
                random.of(&["5001", "\"5002-5003\"", "\"1024-65535\"", "[5001, 5004]"])
            ));
        }
        if random.chance(25) {
            when.push(format!(
                "local_port = {}",
                random.of(&["5002", "\"5003-5004\"", "\"32768-65535\""])
            ));
        }
        if random.chance(40) {
            when.push(format!(
                "direction = {:?}",
                random.of(&["active", "passive"])
            ));
        }
        if random.chance(15) {
            when.push(format!("cgroup = {:?}", random.of(&cgroups)));
        }
        if random.chance(15) {
            when.push(format!("netns = {:?}", random.of(&netns)));
        }
        writeln!(text, "match = {{ {} }}", when.join(", ")).unwrap();
        if rule.never {
            writeln!(text, "never = true").unwrap();
        } else {
            let values = |chosen: &[(usize, usize)]| {
                let all = chosen.iter().map(|(place, value)| {
                    let setting = &SETTINGS[*place];
                    format!("{} = {}", setting.key, setting.values[*value].0)
                });
                all.collect::<Vec<_>>().join(", ")
            };
            let mut set = values(&rule.set);
            // Queries: the policy then remembers flows in their handshake.
            if random.chance(20) {
                set.push_str(", timeout_init = \"900ms\"");
            }
            if random.chance(20) {
                set.push_str(", rwnd_init = 40");
            }
            writeln!(text, "set = {{ {set} }}").unwrap();
            if !rule.listen.is_empty() {
                writeln!(text, "on.listen = {{ {} }}", values(&rule.listen)).unwrap();
            }
        }
        made.push(rule);
    }
    (text, made)
}

/// Prints options of a connection, in one line; the first argument names them.
const READ: &str = r#"
import socket, sys
options = [tuple(map(int, o.split(","))) for o in sys.argv[1].split()]
def read(connection, six):
    def value(level, name):
        if (level, name) == (6, 13):
            return connection.getsockopt(6, 13, 16).rstrip(b"\0").decode()
        if level == (0 if six else 41):
            return "-"
        return str(connection.getsockopt(level, name))
    return " ".join(value(*option) for option in options)
"#;

/// For each line of input, closes its listeners and opens new ones on all addresses and ports.
/// Prints the options of each accepted connection.
const SERVER: &str = r#"
import select
addresses, ports = sys.argv[2].split(), [int(p) for p in sys.argv[3].split()]
listeners = {}
while True:
    for ready in select.select([sys.stdin, *listeners], [], [])[0]:
        if ready is sys.stdin:
            if not sys.stdin.readline():
                sys.exit()
            for listener in listeners:
                listener.close()
            listeners = {}
            for address in addresses:
                for port in ports:
                    family = socket.AF_INET6 if ":" in address else socket.AF_INET
                    listeners[socket.create_server((address, port), family=family)] = ":" in address
            print("listening")
            break
        connection = ready.accept()[0]
        print(read(connection, listeners[ready]))
"#;

/// Connects by each line of input: own address, peer's address, port. Prints its port and the
/// connection's options.
const CLIENT: &str = r#"
import errno
for line in sys.stdin:
    own, peer, port = line.split()
    six = ":" in peer
    with socket.socket(socket.AF_INET6 if six else socket.AF_INET) as connection:
        connection.bind((own, 0))
        connection.connect((peer, int(port)))
        print(connection.getsockname()[1], read(connection, six))
"#;

fn options() -> String {
    let all = SETTINGS
        .iter()
        .map(|setting| format!("{},{}", setting.level, setting.name));
    all.collect::<Vec<_>>().join(" ")
}

/// The rule that a flow gets.
fn rule_of<'m>(policy: &Policy, made: &'m [Made], flow: &Flow) -> Option<&'m Made> {
    let name = &policy.decide(flow)?.name;
    made.iter().find(|rule| rule.name == *name)
}

/// Expected settings of a connection's end; `None` if there is no expectation.
fn expected(
    defaults: &[String],
    rule: Option<&Made>,
    listener: Option<&Made>,
    six: bool,
    active: bool,
) -> Vec<Option<String>> {
    // The kernel tunes buffers without a setting.
    let tuned = |setting: &Setting| matches!(setting.key, "sndbuf" | "rcvbuf");
    let defaults = SETTINGS.iter().zip(defaults);
    let mut values: Vec<Option<String>> = defaults
        .map(|(setting, value)| (!tuned(setting)).then(|| value.clone()))
        .collect();
    let inherited = listener.filter(|rule| !rule.never);
    let own = rule.filter(|rule| !rule.never);
    let steps = [
        inherited.map(|rule| &rule.listen),
        own.map(|rule| &rule.set),
    ];
    for chosen in steps.into_iter().flatten() {
        let has = |key: &str| chosen.iter().any(|(place, _)| SETTINGS[*place].key == key);
        for (place, value) in chosen {
            let setting = &SETTINGS[*place];
            let here = match setting.ends {
                Ends::All => true,
                Ends::Active => active,
                Ends::Ipv4 => !six,
                Ends::Ipv6 => six,
            };
            if !here {
                continue;
            }
            values[*place] = Some(setting.values[*value].1.to_owned());
            // The kernel derives the priority from the type of service.
            if setting.key == TOS && !has(PRIORITY) {
                let priority = SETTINGS.iter().position(|other| other.key == PRIORITY);
                values[priority.unwrap()] = None;
            }
        }
    }
    values
}

fn assert_has(what: &str, line: &str, expected: &[Option<String>], context: &str) {
    let has: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(has.len(), expected.len(), "{what}: {line:?}\n{context}");
    for ((setting, has), expected) in SETTINGS.iter().zip(has).zip(expected) {
        if let Some(expected) = expected {
            assert_eq!(has, expected, "{what}: {}\n{context}", setting.key);
        }
    }
}

struct Run {
    bed: Bed,
    client: Traffic,
    server: Traffic,
    /// Settings of sockets without a policy: active and passive, IPv4 and IPv6.
    defaults: BTreeMap<(bool, bool), Vec<String>>,
}

impl Run {
    fn new(label: &str) -> Self {
        let bed = bed(label);
        for (side, addresses) in [(Side::Client, CLIENTS), (Side::Server, SERVERS)] {
            for address in addresses {
                let (length, more) = if address.contains(':') {
                    (32, " nodad")
                } else {
                    (16, "")
                };
                bed.ip(
                    side,
                    &format!("addr add {address}/{length} dev link0{more}"),
                );
            }
            bed.ip(side, "route add fd71::/16 dev link0");
            // The bed knows only the neighbours of its own addresses.
            bed.ip(side, "link set link0 arp on");
        }
        let program = |text: &str| format!("{READ}{text}");
        let ports: Vec<String> = PORTS.iter().map(u16::to_string).collect();
        let server = bed.python(
            Side::Server,
            &program(SERVER),
            &[&options(), &SERVERS.join(" "), &ports.join(" ")],
        );
        let client = bed.python(Side::Client, &program(CLIENT), &[&options()]);
        let mut run = Self {
            bed,
            client,
            server,
            defaults: BTreeMap::new(),
        };
        run.listen();
        for six in [false, true] {
            let place = if six { 2 } else { 0 };
            let (_, active, passive) = run.connect(CLIENTS[place], SERVERS[place], PORTS[0]);
            for (direction, line) in [(true, active), (false, passive)] {
                let values = line.split_whitespace().map(str::to_owned).collect();
                run.defaults.insert((direction, six), values);
            }
        }
        run
    }

    fn listen(&mut self) {
        self.server.go_on();
        assert_eq!(self.server.line(), "listening");
    }

    /// The client's port, and the options of both ends.
    fn connect(&mut self, own: &str, peer: &str, port: u16) -> (u16, String, String) {
        self.client.say(&format!("{own} {peer} {port}"));
        let line = self.client.line();
        let (from, active) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        (from.parse().unwrap(), active.to_owned(), self.server.line())
    }

    fn flow(&self, side: Side, ends: [(&str, u16); 2], kind: FlowKind) -> Flow {
        let cgroup = self.bed.pair.cgroup().display().to_string();
        Flow {
            local: ends[0].0.parse().unwrap(),
            local_port: ends[0].1,
            remote: ends[1].0.parse().unwrap(),
            remote_port: ends[1].1,
            kind,
            cgroup: thalweg_policy::parse_cgroup(&cgroup),
            netns: Some(Namespace::Name(self.bed.pair.namespace(side).to_owned())),
            draw: 0,
        }
    }

    /// Output of `thalweg policy test` for a flow.
    fn tested(&self, file: &str, flow: &Flow) -> Option<String> {
        let Some(Namespace::Name(netns)) = &flow.netns else {
            panic!("{flow:?}");
        };
        let direction = if flow.kind == FlowKind::Active {
            "active"
        } else {
            "passive"
        };
        let cgroup = self.bed.pair.cgroup().display().to_string();
        let [remote, local] = [flow.remote, flow.local].map(|address: IpAddr| address.to_string());
        let [from, to] = [flow.remote_port, flow.local_port].map(|port| port.to_string());
        let answer = self.bed.json(&[
            "policy",
            "test",
            file,
            "--direction",
            direction,
            "--remote",
            &remote,
            "--local",
            &local,
            "--remote-port",
            &from,
            "--local-port",
            &to,
            "--cgroup",
            &cgroup,
            "--netns",
            netns,
        ]);
        let name = &answer["outcomes"][0]["rule"]["name"];
        name.as_str().map(str::to_owned)
    }

    /// One policy, and flows under it.
    fn round(&mut self, random: &mut Random, flows: usize) {
        let (text, made) = policy(random, &self.bed);
        let parsed = Policy::parse(text.as_bytes(), "random".as_ref());
        let parsed = parsed.unwrap_or_else(|faults| panic!("{faults}\n{text}"));
        self.bed.apply(&text);
        let file = self.bed.directory.path().join("policy.toml");
        self.listen();
        let mut matched: BTreeMap<String, u64> = BTreeMap::new();
        for number in 0..flows {
            let six = random.chance(50);
            let half = if six { 2..4 } else { 0..2 };
            let own = *random.of(&CLIENTS[half.clone()]);
            let peer = *random.of(&SERVERS[half]);
            let port = *random.of(PORTS);
            let (from, active, passive) = self.connect(own, peer, port);
            let unspecified = if six { "::" } else { "0.0.0.0" };
            let out = self.flow(Side::Client, [(own, from), (peer, port)], FlowKind::Active);
            let into = self.flow(Side::Server, [(peer, port), (own, from)], FlowKind::Passive);
            let listener = self.flow(
                Side::Server,
                [(peer, port), (unspecified, 0)],
                FlowKind::Listener,
            );
            let [out_rule, in_rule, listener_rule] =
                [&out, &into, &listener].map(|flow| rule_of(&parsed, &made, flow));
            let context = format!("{own}:{from} to {peer}:{port} under\n{text}");
            let defaults = |active: bool| &self.defaults[&(active, six)];
            let has = expected(defaults(true), out_rule, None, six, true);
            assert_has("the client", &active, &has, &context);
            let has = expected(defaults(false), in_rule, listener_rule, six, false);
            assert_has("the server", &passive, &has, &context);
            for rule in [out_rule, in_rule].into_iter().flatten() {
                *matched.entry(rule.name.clone()).or_default() += 1;
            }
            if number < 2 {
                let file = file.to_str().unwrap();
                for (flow, rule) in [(&out, out_rule), (&into, in_rule)] {
                    let name = rule.map(|rule| rule.name.clone());
                    assert_eq!(self.tested(file, flow), name, "{context}");
                }
            }
        }
        let report = self.bed.json(&["policy", "show"]);
        for rule in report["rules"].as_array().unwrap() {
            let name = rule["name"].as_str().unwrap();
            let count = matched.get(name).copied().unwrap_or(0);
            assert_eq!(rule["matched"].as_u64(), Some(count), "{name}\n{text}");
            assert_eq!(rule["failed"], 0, "{rule}\n{text}");
        }
    }
}

fn compare(label: &str, seed: u64, rounds: usize, flows: usize) {
    let mut run = Run::new(label);
    let mut random = Random(seed);
    for _ in 0..rounds {
        run.round(&mut random, flows);
    }
}

#[test]
fn random_policies_do_on_sockets_what_they_say() {
    if privileged() {
        compare("random", 1, 10, 30);
    }
}

#[test]
#[ignore = "slow: 10,000 connections under 200 policies"]
fn many_random_policies_do_on_sockets_what_they_say() {
    if privileged() {
        compare("randoms", 2, 200, 50);
    }
}
