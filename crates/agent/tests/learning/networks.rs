//! What is known of a network decides about its new hosts, on real connections.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_lab::host::Side;

use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, COLLECTOR, Traffic, plain, thalweg, wait_for};

/// Enough for full weight.
const BYTES: &str = "1100000";

/// One connection to each host of a range, one after the other. Arguments: address of the first, index
/// of the first to visit, number, bytes to each.
const VISITS: &str = r#"
import ipaddress, socket, sys
base, first, number, size = ipaddress.ip_address(sys.argv[1]), *map(int, sys.argv[2:5])
for host in range(first, first + number):
    with socket.create_connection((str(base + host), 5001)) as connection:
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
"#;

/// An agent on a path of 5 ms each way that loses 3 % of the packets, and prefixes of 64 hosts behind
/// it.
fn bed(label: &str, networks: &str) -> (Bed, Traffic) {
    let mut options = plain(label);
    options.path.delay = serde_json::from_value(json!("5ms")).unwrap();
    options.further_addresses = 199;
    options.path.loss = thalweg_lab::units::Probability::from_fraction(0.03);
    let mut bed = Bed::new(&options, "");
    configure(&bed, networks);
    bed.start();
    let mut reader = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(reader.line(), "listening");
    (bed, reader)
}

/// Settings: no comparison, so that each connection is the learner's; and what `[networks]` has.
fn configure(bed: &Bed, networks: &str) {
    bed.configure(&format!(
        "[arms]\nallow = [\"cubic\", \"bbr\"]\n[control]\nshare = 0.0\npermanent = 0.0\n\
         [networks]\n{networks}"
    ));
}

/// The address of a host: the server has all of them.
fn address(bed: &Bed, host: u32) -> String {
    let server: Ipv4Addr = bed.server_address().parse().unwrap();
    // The first of a prefix; the server's own is the second.
    let first = u32::from(server) & !63;
    Ipv4Addr::from(first + host).to_string()
}

/// One connection to each of these hosts.
fn visit(bed: &Bed, hosts: Range<u32>) {
    let before = bed.counter("scored");
    let (first, number) = (hosts.start.to_string(), hosts.len().to_string());
    let arguments = [&*address(bed, 0), &*first, &*number, BYTES];
    bed.python(Side::Client, VISITS, &arguments).finish();
    bed.counter_reaches("scored", before + hosts.len() as u64);
}

/// The decisions about the first connections to these hosts.
fn decisions(bed: &Bed, hosts: Range<u32>) -> Vec<Value> {
    let number = hosts.len();
    let new: Vec<String> = hosts.map(|host| address(bed, host)).collect();
    wait_for("the events of the decisions", || {
        let mut events = bed.events(number);
        // A connection that loses too much is decided about again.
        let mut seen = BTreeSet::new();
        events.retain(|event| {
            let host = event["host"].as_str().unwrap().to_owned();
            event["kind"] == "decision" && new.contains(&host) && seen.insert(host)
        });
        Some(events).filter(|events| events.len() >= number)
    })
}

/// Asserts that new hosts are decided about by what a level knows: all, and nearly all well.
fn new_hosts_get_bbr(bed: &Bed, hosts: Range<u32>, level: &str) {
    let number = hosts.len();
    visit(bed, hosts.clone());
    let firsts = decisions(bed, hosts);
    assert_eq!(firsts.len(), number);
    for first in &firsts {
        assert_eq!(first["level"], level, "{first}");
    }
    // Now and then another arm is checked.
    let better = firsts.iter().filter(|first| first["arm"] == "bbr").count();
    assert!(better + 2 >= number, "{better} of {number}");
}

fn networks(bed: &Bed) -> Vec<Value> {
    let found = bed.json(&["networks"]);
    found["networks"].as_array().unwrap().clone()
}

fn network(bed: &Bed, level: &str) -> Value {
    let found = networks(bed);
    let found = found.into_iter().find(|network| network["level"] == level);
    found.unwrap_or_else(|| panic!("no {level}"))
}

/// The named network whose name begins so.
fn named(bed: &Bed, name: &str) -> Value {
    let mut found = networks(bed);
    found.retain(|it| it["level"] == "named" && it["name"].as_str().unwrap().starts_with(name));
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found.remove(0)
}

fn table(bed: &Bed) -> PathBuf {
    bed.directory.path().join("networks.txt")
}

fn a_new_host_of_a_known_network_gets_the_better_arm_at_once() {
    let (mut bed, _reader) = bed("networks", "");
    // The first 128 hosts are in a network with a name, within one that has another.
    let base = address(&bed, 0);
    let text = format!("10.0.0.0/8 wide\r\n# ours\r\n{base}/25 home # narrow");
    std::fs::write(table(&bed), &text).unwrap();
    let setting = format!("table = {:?}\n", table(&bed));
    configure(&bed, &format!("ipv4_prefix = 26\n{setting}"));
    assert_eq!(bed.json(&["reload"])["changed"], true);
    assert!(bed.logged().contains("2 networks are named, by 2 prefixes"));
    // The programs that need most of the verifier are in force.
    let status = bed.json(&["status"]);
    assert_eq!(
        (&status["kernel_busy_time"], &status["problems"]),
        (&json!(true), &json!([])),
        "{status}"
    );

    visit(&bed, 2..34);
    for level in ["prefix", "named", "service", "namespace"] {
        let known = network(&bed, level);
        assert_eq!(
            (&known["decides"], &known["best"]),
            (&json!(true), &json!("bbr")),
            "{known}"
        );
        let bbr = &known["arms"].as_array().unwrap()[1];
        // At 3 % and 10 ms cubic carries a fraction. What a few hosts found of it differs by half a bit.
        assert!(bbr["difference_bits"].as_f64().unwrap() < -0.1, "{known}");
    }
    let (prefix, home) = (network(&bed, "prefix"), named(&bed, "home"));
    assert_eq!(
        (&prefix["hosts"], &home["hosts"], &home["name"]),
        (&json!(32), &json!(32), &json!("home"))
    );
    assert_eq!(
        network(&bed, "service")["name"],
        "port 5001, opened, 8 to 16 ms"
    );

    // Who asks about a new host is told what would decide.
    for (host, levels, by) in [
        (
            40,
            "prefix named namespace",
            "What is known of 10.0.0.0/26 (prefix) would decide: bbr",
        ),
        (
            90,
            "named namespace",
            "What is known of home (named) would decide: bbr",
        ),
        (
            140,
            "service namespace",
            "The service of its port and round-trip time would decide",
        ),
    ] {
        let told = bed.json(&["explain", &address(&bed, host)]);
        let told = &told[0];
        let networks = told["networks"].as_array().unwrap().iter();
        let found: Vec<&str> = networks.map(|it| it["level"].as_str().unwrap()).collect();
        assert_eq!(found.join(" "), levels, "{told}");
        assert!(told["summary"].as_str().unwrap().contains(by), "{told}");
        assert_eq!(told["host"]["connections"], 0);
    }
    let told = bed.thalweg(&["explain", &address(&bed, 90)]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(
        told.contains("(named) would decide") && told.contains("\nhome "),
        "{told}"
    );
    assert!(!bed.thalweg(&["explain", "127.0.0.1"]).status.success());

    // What the programs know outlives the agent.
    bed.end(Signal::SIGTERM);
    bed.start();
    for known in [&prefix, &home] {
        let level = known["level"].as_str().unwrap();
        assert_eq!(network(&bed, level)["scored"], known["scored"]);
    }
    new_hosts_get_bbr(&bed, 50..62, "prefix");
    // Of another prefix of the network, and of another network, nothing is known yet.
    new_hosts_get_bbr(&bed, 70..71, "named");
    new_hosts_get_bbr(&bed, 140..141, "service");
    assert!(bed.counter("by_group") >= 14);

    // A record that is new starts from it: the default is checked now and then, not first.
    let host = bed.host(&address(&bed, 61)).expect("a record");
    assert_eq!(host["best"], "bbr", "{host}");
    let arms = host["arms"].as_array().unwrap();
    assert!(
        arms.iter().all(|arm| arm["evidence"].as_f64() > Some(1.0)),
        "{host}"
    );

    // Where no prefix is a network, names are the narrowest.
    configure(&bed, &format!("ipv4_prefix = 32\n{setting}"));
    assert_eq!(bed.json(&["reload"])["changed"], true);
    new_hosts_get_bbr(&bed, 71..77, "named");

    // A table with a fault changes nothing.
    std::fs::write(table(&bed), format!("{text}\n{base}/25 other\n")).unwrap();
    let refused = bed.thalweg(&["reload"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    let expected = format!(
        "networks.table: {}:4:1: found \"other\" for {base}/25, expected \"home\", as in line 3",
        table(&bed).display()
    );
    assert!(
        !refused.status.success() && told.contains(&expected),
        "{told}"
    );
    new_hosts_get_bbr(&bed, 77..78, "named");

    // A name that leaves the table keeps its record, and gives it to no other.
    let known = named(&bed, "home")["scored"].clone();
    std::fs::write(table(&bed), format!("10.0.0.0/8 wide\n{base}/25 other\n")).unwrap();
    assert_eq!(bed.json(&["reload"])["changed"], true);
    assert_eq!(named(&bed, "not in the table (")["scored"], known);
    new_hosts_get_bbr(&bed, 78..79, "service");
    std::fs::write(table(&bed), &text).unwrap();
    assert_eq!(bed.json(&["reload"])["changed"], true);
    assert_eq!(named(&bed, "home")["scored"], known);

    loses_more_than_its_network_knows(&bed);
    let forgotten = bed.json(&["reset", "--yes"]);
    assert!(forgotten["removed"].as_u64() >= Some(54), "{forgotten}");
    assert_eq!(networks(&bed), Vec::<Value>::new());
}

/// A connection to a host without record goes back to the default on its way, by what its network knows
/// of losses.
fn loses_more_than_its_network_knows(bed: &Bed) {
    let mut path = plain("networks").path;
    path.delay = serde_json::from_value(json!("5ms")).unwrap();
    path.loss = thalweg_lab::units::Probability::from_fraction(0.2);
    bed.pair.change_path(&path).expect("a path that changes");
    // Now and then the default is checked: not with all of them.
    let hosts = [63, 64, 65].map(|host| address(bed, host));
    let flows = hosts.each_ref().map(|host| {
        let arguments = [&**host, "0", "1", "100000000"];
        bed.python(Side::Client, VISITS, &arguments)
    });
    let back = wait_for("the way back", || {
        let events = bed.events(1);
        let taken_back = |event: &&Value| event["reason"] == "withdrawn";
        events.iter().find(taken_back).cloned()
    });
    assert!(hosts.iter().any(|host| back["host"] == **host), "{back}");
    assert_eq!(
        (&back["level"], &back["arm"]),
        (&json!("named"), &json!("cubic")),
        "{back}"
    );
    drop(flows);
}

fn networks_that_are_not_enabled_know_nothing() {
    let (bed, _reader) = bed("alone", "enabled = false\n");
    visit(&bed, 2..19);
    assert_eq!(networks(&bed), Vec::<Value>::new());
    assert_eq!(bed.counter("by_group"), 0);
    assert_eq!(bed.hosts().len(), 17);
}

#[test]
fn a_check_of_the_configuration_checks_its_table() {
    let directory = tempfile::tempdir().unwrap();
    let (file, table) = (
        directory.path().join("thalweg.toml"),
        directory.path().join("n.txt"),
    );
    std::fs::write(&file, format!("[networks]\ntable = {table:?}\n")).unwrap();
    let check = |text: &str| {
        std::fs::write(&table, text).unwrap();
        let mut command = Command::new(thalweg());
        let output = command.args(["config", "check"]).arg(&file).output();
        let output = output.unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), told)
    };
    let (code, told) = check("10.0.0.0/8 a\n");
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("n.txt: good"), "{told}");
    let (code, told) = check("10.0.0.0/8 a\n10.1.0.0/8 b\n\n10.0.0.0/8 c\n");
    assert_eq!(code, Some(1), "{told}");
    for part in [
        "thalweg.toml: good",
        "n.txt:2:1: found \"10.1.0.0/8\", expected no bits beyond the length, \"10.0.0.0/8\"\n  | \
         10.1.0.0/8 b\n  | ^",
        "n.txt:4:1: found \"c\" for 10.0.0.0/8, expected \"a\", as in line 1",
        "n.txt: 2 faults",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    std::fs::remove_file(&table).unwrap();
    let mut command = Command::new(thalweg());
    let output = command.args(["config", "check"]).arg(&file).output();
    assert!(!output.unwrap().status.success());
}

in_virtual_time!(
    #[ignore = "slow: minutes of a processor"]
    [],
    a_new_host_of_a_known_network_gets_the_better_arm_at_once,
    networks_that_are_not_enabled_know_nothing,
);
