//! Random policies on real connections. The sockets of both ends have the settings of the policy,
//! by the library, by `thalweg policy test`, and by the text of docs/reference/policy.md.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::random_policies::{Ends, Made, Random, SETTINGS, Setting, policy};
use thalweg_lab::host::Side;
use thalweg_policy::{Flow, FlowKind, Namespace, Policy};
use thalweg_testbed::policies::bed;
use thalweg_testbed::{Bed, Traffic, privileged};

const TOS: &str = "tos";
const PRIORITY: &str = "priority";
const PORTS: &[u16] = &[5001, 5002, 5003, 5004];
const CLIENTS: &[&str] = &["10.71.1.1", "10.71.2.1", "fd71:1::1", "fd71:2::1"];
const SERVERS: &[&str] = &["10.71.1.2", "10.71.2.2", "fd71:1::2", "fd71:2::2"];

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
    let name = &policy.matching_rule(flow)?.name;
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
    let listened = inherited.map_or(&[][..], |rule| &rule.listen);
    for chosen in [Some(listened), own.map(|rule| &rule.set[..])]
        .into_iter()
        .flatten()
    {
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
            let value = setting.values[*value].1.to_owned();
            values[*place] = Some(value);
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
        let cgroup = self.bed.pair.cgroup_path().display().to_string();
        Flow {
            local: ends[0].0.parse().unwrap(),
            local_port: ends[0].1,
            remote: ends[1].0.parse().unwrap(),
            remote_port: ends[1].1,
            kind,
            cgroup: thalweg_policy::parse_cgroup(&cgroup),
            container: Vec::new(),
            netns: Some(Namespace::Name(
                self.bed.pair.namespace_name(side).to_owned(),
            )),
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
        let cgroup = self.bed.pair.cgroup_path().display().to_string();
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
#[cfg_attr(not(privileged), ignore = "needs root")]
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
