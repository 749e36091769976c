//! A real Prometheus: it scrapes the agent, each alert fires when its fault is made, but those of
//! `rules.test.yml` from series, and each query of the dashboard has data.

use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_lab::host::Side;
use thalweg_lab::units::Probability;

use crate::prometheus_server::{is_there, promtool, scraped};
use crate::tcp::{ask, own_address};
use thalweg_testbed::{Bed, SmallDisk, manifest_path, plain, privileged, unique, wait_for};

/// Connections, some ten a second, until it is dropped. Arguments: address.
const STEADY: &str = r#"
import socket, sys, time
while True:
    for port, size in (5001, 2000000), (5002, 0):
        with socket.create_connection((sys.argv[1], port)) as connection:
            connection.sendall(bytes(size))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
    time.sleep(0.1)
"#;

/// Holds the store's lock for some seconds. Arguments: the store.
const HOLD: &str = r#"
import sqlite3, sys, time
store = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
store.execute("BEGIN IMMEDIATE")
time.sleep(2.5)
store.execute("ROLLBACK")
"#;

/// Has the kernel measure programs, until it is dropped.
struct Measured(String);

impl Measured {
    const FILE: &str = "/proc/sys/kernel/bpf_stats_enabled";

    fn new() -> Self {
        let before = fs::read_to_string(Self::FILE).unwrap();
        fs::write(Self::FILE, "1").unwrap();
        Self(before)
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        fs::write(Self::FILE, &self.0).unwrap();
    }
}

/// The queries of the dashboard, each with its panel's title.
fn queries() -> Vec<(String, String)> {
    let text = fs::read_to_string(manifest_path("packaging/grafana/thalweg.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let expression = expression
                .replace("$__rate_interval", "10s")
                .replace("$instance", ".*");
            assert!(!expression.contains('$'), "{expression}");
            all.push((panel["title"].as_str().unwrap().to_owned(), expression));
        }
    }
    assert!(all.len() > 20, "{all:?}");
    all
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn prometheus_has_each_figure_and_tells_of_faults() {
    if !privileged() || !is_there() {
        return;
    }
    let rules = manifest_path("packaging/prometheus/rules.yml");
    promtool(&["check", "rules", rules.to_str().unwrap()]);
    let series = manifest_path("crates/agent/tests/api/rules.test.yml");
    promtool(&["test", "rules", series.to_str().unwrap()]);
    let fired = [include_str!("alerts.rs"), include_str!("rules.test.yml")].concat();
    let text = fs::read_to_string(rules).unwrap();
    for alert in text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        assert!(
            fired.contains(&format!("\"{alert}\"")),
            "{alert} fires in no test"
        );
    }
    let _measured = Measured::new();
    let address = own_address();
    let mut bed = Bed::new(&plain("monitor"), "");
    let settings = "[arms]\nallow = [\"cubic\", \"reno\"]\n[learning]\nwarm_up = 0\n";
    let prometheus = scraped(&mut bed, &address, settings);
    let server = bed.server_address();
    let _sinks = [
        bed.sink(&server),
        bed.python(Side::Server, thalweg_testbed::SINK, &[&server, "5002"]),
    ];
    bed.apply(
        "name = \"mine\"\n\
         [[rule]]\nname = \"works\"\nmatch = { remote_port = 5001 }\nset = { notsent_lowat = \"16KiB\" }\n\
         [[rule]]\nname = \"fails\"\nmatch = { remote_port = 5002 }\nset = { congestion = \"no_such_cc\" }\n",
    );
    let control = unique("mon");
    bed.json(&["cc", "load", "htcp", "--name", &control]);
    let _steady = bed.python(Side::Client, STEADY, &[&server]);

    // The text, and its type.
    let (status, head, text) = ask(&address, "GET /metrics", "Host: localhost\r\n");
    assert_eq!(status, 200);
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind), "{head}");
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    assert!(!text.contains(&server), "a remote host: {text}");
    let printed = bed.thalweg(&["metrics"]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    let names = |text: &str| -> Vec<String> {
        let about = text.lines().filter(|line| line.starts_with("# TYPE"));
        about.map(str::to_owned).collect()
    };
    assert!(
        names(&text)
            .iter()
            .all(|name| names(&printed).contains(name))
    );
    let file = bed.directory.path().join("thalweg.prom");
    let output = bed.thalweg(&["metrics", file.to_str().unwrap()]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(fs::read_to_string(&file).unwrap().ends_with("# EOF\n"));

    for (title, query) in queries() {
        // Effects take hours of a control group.
        if query.contains("thalweg_gain_") {
            continue;
        }
        wait_for(&format!("data of {title}: {query}"), || {
            (!prometheus.query(&query).is_empty()).then_some(())
        });
    }
    // What Prometheus has is what the agent counts.
    let flows = &prometheus.query("thalweg_policy_rule_flows_total > 0");
    assert_eq!(flows.len(), 2, "{flows:?}");
    assert!(prometheus.query("thalweg_arm_decisions_total").len() > 1);

    // Faults, the last of which end the agent.
    prometheus.fires("ThalwegPolicyFailing");
    bed.thalweg(&["cc", "unload", &control]);
    // A single slow write may fall between two scrapes.
    wait_for("a slow write that is seen", || {
        let held = Command::new("python3")
            .args(["-c", HOLD])
            .arg(bed.state().join("thalweg.db"))
            .status();
        assert!(held.unwrap().success());
        let seen = prometheus.query("ALERTS{alertname=\"ThalwegStoreSlow\"}");
        (!seen.is_empty()).then_some(())
    });
    prometheus.fires("ThalwegStoreSlow");
    fs::write(bed.configuration(), "mode = \"fast\"\n").unwrap();
    bed.signal(Signal::SIGHUP);
    prometheus.fires("ThalwegProblem");
    // What the agent cannot put back: something of others in the pin's place.
    let pin = bed.pin.join("link_sockops");
    wait_for("a directory in the pin's place", || {
        let _ = fs::remove_file(&pin);
        fs::create_dir(&pin).ok()
    });
    prometheus.fires("ThalwegNotAttached");
    fs::remove_dir(&pin).unwrap();
    bed.configure("");
    bed.end(Signal::SIGKILL);
    prometheus.fires("ThalwegAgentGone");
}

#[test]
#[ignore = "slow"]
fn a_full_disk_is_an_alert_and_so_is_what_it_leaves_unsaved() {
    if !privileged() || !is_there() {
        return;
    }
    let mut bed = Bed::new(&plain("mon-disk"), "");
    let disk = SmallDisk::new(&bed.state(), "4m");
    let settings = "[snapshot]\ninterval = \"1s\"\n[learning]\nwarm_up = 0\n";
    let prometheus = scraped(&mut bed, &own_address(), settings);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    disk.fill();
    let lost = || bed.json(&["status"])["events_lost"].as_u64().unwrap();
    wait_for("lost events", || {
        bed.connect(&address, 100, 0);
        (lost() > 0).then_some(())
    });
    prometheus.fires("ThalwegStoreFailing");
    prometheus.fires("ThalwegSnapshotOld");
}

/// A measurement of each of 200 hosts.
const EACH: &str = r#"
import socket
for number in range(200):
    with socket.create_connection((f"10.99.0.{number + 1}", 5001)) as connection:
        connection.sendall(bytes(300000))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
"#;

#[test]
#[ignore = "slow"]
fn a_table_and_a_ring_that_are_too_small_are_alerts() {
    if !privileged() || !is_there() {
        return;
    }
    let mut bed = Bed::new(&plain("mon-table"), "");
    let settings = "[hosts]\nmax = 64\n[learning]\nwarm_up = 0\n[events]\nring = \"64KiB\"\n";
    let prometheus = scraped(&mut bed, &own_address(), settings);
    let address = bed.server_address();
    bed.ip(Side::Server, "route add local 10.99.0.0/16 dev lo");
    bed.ip(
        Side::Client,
        &format!("route add 10.99.0.0/16 via {address}"),
    );
    let _sink = bed.sink("0.0.0.0");
    bed.python(Side::Client, EACH, &[]).finish();
    prometheus.fires("ThalwegTableFull");

    bed.connect(&address, 1, 1_000_000);
    bed.signal(Signal::SIGSTOP);
    bed.connect(&address, 2000, 0);
    bed.signal(Signal::SIGCONT);
    assert!(bed.counter("events_dropped") > 0);
    prometheus.fires("ThalwegEventsDropped");
}

/// Sends until its congestion control changes, or 30 s are over. Prints the first one, waits for a
/// line of input.
const LONG: &str = r#"
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5001))
name = lambda: connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
first = name()
print(first.decode())
sys.stdin.readline()
end = time.monotonic() + 30
while name() == first and time.monotonic() < end:
    connection.sendall(bytes(100000))
"#;

/// Has the agent believe that `better` is better towards the only host, by as much as makes it the
/// choice of nearly every connection.
fn believe(bed: &Bed, better: &str, lossy: bool) {
    let mut document = bed.json(&["export"]);
    let host = &mut document["hosts"][0];
    host["queue_q16"] = 0.into();
    let mut worse = host["arms"]["cubic"].clone();
    let retransmitted = if lossy { 200 } else { 0 };
    for (key, number) in [
        ("weight_q16", 8 << 16),
        ("segs", 4096),
        ("retrans", retransmitted),
    ] {
        worse[key] = number.into();
    }
    host["arms"][better] = worse.clone();
    for (key, by) in [("value", 4 << 16), ("log_rate_q16", -4 << 16)] {
        worse[key] = (worse[key].as_i64().unwrap() + by).into();
    }
    host["arms"]["cubic"] = worse;
    let file = bed.directory.path().join("known.json");
    fs::write(&file, document.to_string()).unwrap();
    assert_eq!(bed.json(&["import", file.to_str().unwrap()])["imported"], 1);
}

#[test]
#[ignore = "slow"]
fn a_path_that_loses_much_is_an_alert() {
    if !privileged() || !is_there() {
        return;
    }
    let mut options = plain("mon-loss");
    options.path.loss = Probability::from_fraction(0.05);
    let mut bed = Bed::new(&options, "");
    let settings = "[arms]\nallow = [\"cubic\", \"bbr\"]\n";
    let prometheus = scraped(&mut bed, &own_address(), settings);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    // Some of each six are moved.
    let mut rounds = Vec::new();
    while bed.counter("switched") < 5 {
        assert!(rounds.len() < 10, "hardly a connection is moved");
        bed.json(&["reset", "--yes"]);
        let mut six: Vec<_> = (0..6)
            .map(|_| {
                let mut one = bed.python(Side::Client, LONG, &[&address]);
                one.line();
                one
            })
            .collect();
        let before = bed.counter("switched");
        bed.measure(&address);
        believe(&bed, "bbr", true);
        six.iter_mut().for_each(thalweg_testbed::Traffic::go_on);
        bed.counter_reaches("switched", before + 1);
        rounds.push(six);
    }
    prometheus.fires("ThalwegRescueOften");
}

#[test]
#[ignore = "slow"]
fn trials_that_do_harm_are_an_alert() {
    if !privileged() || !is_there() {
        return;
    }
    let mut bed = Bed::new(&plain("mon-harm"), "");
    let settings = "[arms]\nallow = [\"cubic\", \"reno\"]\n";
    let prometheus = scraped(&mut bed, &own_address(), settings);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 4_000_000);
    bed.counter_reaches("scored", 1);
    believe(&bed, "reno", false);
    let mut tried = Vec::new();
    while tried.len() < 10 {
        let mut one = bed.python(Side::Client, LONG, &[&address]);
        if one.line() == "reno" {
            tried.push(one);
        }
    }
    let mut lossy = plain("mon-harm").path;
    lossy.loss = Probability::from_fraction(0.1);
    bed.pair.change_path(&lossy).expect("a path that changes");
    tried.iter_mut().for_each(thalweg_testbed::Traffic::go_on);
    bed.counter_reaches("withdrawn", 6);
    prometheus.fires("ThalwegHarm");
}
