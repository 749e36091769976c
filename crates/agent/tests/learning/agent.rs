//! The agent on real connections: keys, endings, respect for applications.

use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_lab::host::Side;
use thalweg_testbed::{Bed, CONNECTIONS, plain, privileged, wait_for};

fn closes(events: &[Value]) -> Vec<&Value> {
    events
        .iter()
        .filter(|event| event["kind"] == "close")
        .collect()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn every_cpu_counts_and_no_record_is_torn() {
    if !privileged() {
        return;
    }
    const EACH: u64 = 3000;
    let bed = Bed::running("cpus", "[events]\nring = \"16MiB\"\n");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    // One scored connection, so that later connections have a decision.
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    let mut clients: Vec<_> = [0, 1]
        .iter()
        .map(|cpu| {
            let pinned = format!(
                "import os\nos.sched_setaffinity(0, [{cpu} % os.cpu_count()])\n{CONNECTIONS}"
            );
            let arguments = [
                bed.server_address(),
                "5001".into(),
                EACH.to_string(),
                "0".into(),
            ];
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            bed.python(Side::Client, &pinned, &arguments)
        })
        .collect();
    // Records are read while both CPUs write them: a torn one would be an error of `hosts`.
    while bed.counter("established") < 2 * EACH {
        bed.json(&["hosts"]);
    }
    for client in clients.drain(..) {
        client.finish();
    }
    // Both ends see each connection; the first one is extra.
    let ends = 2 * (2 * EACH + 1);
    bed.counter_reaches("closed", ends);
    assert_eq!(bed.counter("established"), ends);
    assert_eq!(bed.counter("closed"), ends);
    let host = bed.host(&address).expect("a record");
    assert_eq!(
        host["connections"].as_u64(),
        Some(2 * EACH + 1),
        "lost update in the host's record"
    );
    let chosen: u64 = host["arms"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arm| arm["count"].as_u64().unwrap())
        .sum();
    // The first connection created the record at its end: it had no decision.
    assert_eq!(chosen, 2 * EACH, "lost update in the arms' records");
    // One event per decision, and one for the scored connection.
    assert_eq!(bed.counter("events_dropped"), 0);
    assert_eq!(bed.counter("events"), 2 * EACH + 1);
    wait_for("all events in the store", || {
        (bed.json(&["status"])["events_stored"].as_u64() == Some(2 * EACH + 1)).then_some(())
    });
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn every_kind_of_ending_is_scored() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("endings", "");
    // A peer that gets little of the processor does not limit what is sent.
    let ample = "4096 8388608 8388608";
    let set = bed
        .pair
        .set_sysctl(Side::Server, "net.ipv4.tcp_rmem", ample);
    set.expect("a buffer that takes all");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let bulk = 1_000_000.to_string();

    // Closed first on this side.
    bed.python(Side::Client, CONNECTIONS, &[&address, "5001", "1", &bulk])
        .finish();
    // Reset on this side (SO_LINGER 0) after everything was acknowledged.
    let reset = r#"
import fcntl, socket, struct, sys, termios
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(bytes(1000000))
while struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"    "))[0]:
    pass
connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
connection.close()
"#;
    bed.python(Side::Client, reset, &[&address, "5001"])
        .finish();
    // Closed first by the peer.
    let closer = r#"
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listening")
connection = listener.accept()[0]
left = 1000000
while left:
    left -= len(connection.recv(left))
connection.close()
"#;
    let mut server = bed.python(Side::Server, closer, &[&address, "5002"]);
    assert_eq!(server.line(), "listening");
    let waiter = r#"
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(bytes(1000000))
connection.recv(1)
connection.close()
"#;
    bed.python(Side::Client, waiter, &[&address, "5002"])
        .finish();
    server.finish();
    // Timed out: the peer falls silent in the middle of a transfer.
    let silent = r#"
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.setsockopt(socket.IPPROTO_TCP, 18, 1000)  # TCP_USER_TIMEOUT
connection.sendall(bytes(1000000))
print("sent")
sys.stdin.readline()
try:
    connection.sendall(bytes(1000000))
    connection.recv(1)
except TimeoutError:
    print("timed out")
"#;
    let mut client = bed.python(Side::Client, silent, &[&address, "5001"]);
    assert_eq!(client.line(), "sent");
    let namespace = bed.pair.namespace_name(Side::Server).to_string();
    let links = std::process::Command::new("ip")
        .args(["-n", &namespace, "-br", "link"])
        .output()
        .expect("ip link");
    let links = String::from_utf8_lossy(&links.stdout).into_owned();
    let device = links
        .lines()
        .filter_map(|line| line.split(['@', ' ']).next())
        .find(|name| *name != "lo" && !name.is_empty())
        .expect("the veth");
    let down = std::process::Command::new("ip")
        .args(["-n", &namespace, "link", "set", device, "down"])
        .status()
        .expect("ip link set");
    assert!(down.success());
    client.go_on();
    assert_eq!(client.line(), "timed out");
    client.finish();

    let scored = |end: &str| {
        let events = bed.events(1);
        closes(&events)
            .into_iter()
            .find(|event| event["measurement"]["end"] == end && event["passive"] == false)
            .cloned()
    };
    for end in ["fin-local", "reset", "fin-remote", "timeout"] {
        let event = wait_for(end, || scored(end));
        assert_eq!(event["measurement"]["outcome"], "scored", "{end}: {event}");
        assert!(
            event["measurement"]["bytes"].as_u64() >= Some(1_000_000),
            "{end}: {event}"
        );
        assert!(
            event["measurement"]["cost"].as_u64() > Some(0),
            "{end}: {event}"
        );
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn small_transfers_and_pure_receivers_are_not_scored() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("small", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 3, 1_000);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("closed", 8);
    // Three small ones seen from both ends, and the receiving end of the large one.
    assert_eq!(bed.counter("skipped_small"), 7);
    assert_eq!(bed.counter("scored"), 1);
    assert_eq!(bed.host(&address).unwrap()["scored"], 1);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_application_that_chose_for_itself_is_left_alone() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("own", "");
    let address = bed.server_address();
    // The listener chooses: the choice extends to accepted connections.
    let server = r#"
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen()
print("listening")
for _ in range(2):
    connection = listener.accept()[0]
    while connection.recv(1 << 20):
        pass
    print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode())
    connection.close()
"#;
    let mut server = bed.python(Side::Server, server, &[&address, "5002"]);
    assert_eq!(server.line(), "listening");
    // One client chooses the default itself, which no comparison of names could show.
    let client = r#"
import socket, sys
for own in (b"cubic", b""):
    connection = socket.socket()
    if own:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, own)
    connection.connect((sys.argv[1], int(sys.argv[2])))
    connection.sendall(bytes(1000000))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode())
"#;
    let said = bed
        .python(Side::Client, client, &[&address, "5002"])
        .finish();
    assert_eq!(said.lines().next(), Some("cubic"));
    assert_eq!(server.line(), "reno");
    assert_eq!(server.line(), "reno");
    bed.counter_reaches("established", 4);
    assert_eq!(
        bed.counter("app_owned"),
        3,
        "two accepted and one that connected"
    );
    let events = bed.events(3);
    let own: Vec<&Value> = events
        .iter()
        .filter(|event| event["reason"] == "application")
        .collect();
    assert_eq!(own.len(), 3);
    assert!(own.iter().all(|event| event["arm"] == event["system_arm"]));
    bed.counter_reaches("scored", 1);
    let host = bed.host(&address).expect("the second client's record");
    assert_eq!(host["connections"], 1);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_choice_made_before_the_agent_started_is_left_alone() {
    if !privileged() {
        return;
    }
    if !std::fs::exists("/sys/kernel/btf/vmlinux").unwrap() {
        thalweg_testbed::skip("this kernel has no BTF");
        return;
    }
    let mut bed = Bed::new(&plain("ownbefore"), "");
    let address = bed.server_address();
    // The default's name on both sides, which no comparison of names could show.
    let server = r#"
import socket, sys
listeners = []
for port, own in ((5003, b"cubic"), (5004, b"")):
    listener = socket.socket()
    if own:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, own)
    listener.bind((sys.argv[1], port))
    listener.listen()
    listeners.append(listener)
print("listening", flush=True)
for listener in listeners:
    for _ in range(2):
        connection = listener.accept()[0]
        connection.sendall(bytes(1000000))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        connection.close()
print("served", flush=True)
"#;
    let mut server = bed.python(Side::Server, server, &[&address, "5003"]);
    assert_eq!(server.line(), "listening");
    bed.start();
    let client = r#"
import socket, sys
for port in (5003, 5003, 5004, 5004):
    connection = socket.create_connection((sys.argv[1], port))
    while connection.recv(1 << 20):
        pass
    connection.close()
"#;
    bed.python(Side::Client, client, &[&address]).finish();
    assert_eq!(server.line(), "served");
    bed.counter_reaches("established", 8);
    assert_eq!(bed.counter("app_owned"), 2, "those of the first listener");
    bed.counter_reaches("scored", 2);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn ipv4_ipv6_and_mapped_addresses_have_the_right_keys() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("keys", "");
    let address = bed.server_address();
    // A dual-stack listener sees IPv4 peers as mapped addresses. It sends, so each side measures.
    let echo = r#"
import socket
listener = socket.create_server(("::", 5001), family=socket.AF_INET6, dualstack_ipv6=True)
print("listening")
for _ in range(2):
    with listener.accept()[0] as connection:
        while connection.recv(1 << 20):
            pass
        connection.sendall(bytes(300_000))
"#;
    let mut server = bed.python(Side::Server, echo, &[]);
    assert_eq!(server.line(), "listening");
    let client = r#"
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family) as connection:
    connection.connect((sys.argv[1], 5001))
    connection.sendall(bytes(300_000))
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(1 << 20):
        pass
"#;
    for address in [&address, &format!("::ffff:{address}")] {
        bed.python(Side::Client, client, &[address]).finish();
    }
    server.finish();
    bed.counter_reaches("scored", 4);
    let client = bed.pair.first_address(Side::Client).to_string();
    assert_eq!(bed.host(&address).expect("the server")["scored"], 2);
    assert_eq!(bed.host(&client).expect("the client")["scored"], 2);
    let hosts = bed.json(&["hosts"]);
    let list = hosts["hosts"].as_array().unwrap();
    assert_eq!(list.len(), 2, "{hosts}");
    assert_ne!(list[0]["netns"], list[1]["netns"]);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn ipv6_hosts_share_a_record_per_64() {
    if !privileged() {
        return;
    }
    let mut options = plain("v6");
    options.path.family = thalweg_lab::scenario::Family::Ipv6;
    let mut bed = Bed::new(&options, "");
    bed.start();
    let address = bed.server_address();
    let neighbour = format!("{address}7");
    let client = bed.pair.first_address(Side::Client).to_string();
    let device = bed.device(Side::Server, &client);
    bed.ip(
        Side::Server,
        &format!("address add {neighbour}/128 dev {device} nodad"),
    );
    bed.ip(
        Side::Client,
        &format!("route add {neighbour}/128 via {address}"),
    );
    let _sink = bed.sink("::");
    for address in [&address, &neighbour] {
        bed.connect(address, 1, 300_000);
    }
    bed.counter_reaches("scored", 2);
    let hosts = bed.json(&["hosts"]);
    let list = hosts["hosts"].as_array().unwrap();
    assert_eq!(list.len(), 1, "{hosts}");
    assert_eq!(list[0]["scored"], 2);
    assert!(list[0]["address"].as_str().unwrap().ends_with("/64"));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_dry_run_decides_and_scores_but_sets_nothing() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("dry"), "dry_run = true\n");
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 30, 1_200_000);
    bed.counter_reaches("closed", 60);
    assert_eq!(bed.counter("changed"), 0);
    assert_eq!(bed.measured(), 30);
    let events = bed.events(30);
    assert!(
        events
            .iter()
            .all(|event| event["arm"] == "cubic" && event["dry_run"] == true)
    );
    let would_differ = events
        .iter()
        .filter(|event| event["chosen"] != "cubic")
        .count();
    assert!(
        would_differ > 0,
        "30 bulk connections and never the wish to explore"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn killed_under_load_and_restarted_nothing_is_lost() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("kill", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    // It creates the record, which counts connections from then on.
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    // One connection throughout, and many short ones.
    let long = r#"
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(bytes(1000000))
print("up")
sys.stdin.readline()
connection.sendall(bytes(1000000))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print("done")
"#;
    let mut spanning = bed.python(Side::Client, long, &[&address, "5001"]);
    assert_eq!(spanning.line(), "up");
    const LOST_AT_MOST: usize = 500;
    let load = bed.python(
        Side::Client,
        CONNECTIONS,
        &[&address, "5001", "2000", "2000"],
    );
    bed.counter_reaches("established", 200);
    assert!(!bed.end(Signal::SIGKILL).success());
    // A whole connection starts and ends without an agent.
    bed.connect(&address, 1, 1_000_000);
    bed.start();
    assert_eq!(bed.json(&["status"])["took_over"], true);
    spanning.go_on();
    assert_eq!(spanning.line(), "done");
    load.finish();
    spanning.finish();
    let total = 2 * (1 + 1 + 2000 + 1);
    bed.counter_reaches("closed", total);
    assert_eq!(
        bed.counter("established"),
        total,
        "a connection went unseen"
    );
    assert_eq!(bed.counter("closed"), total);
    let host = bed.host(&address).expect("the record survived");
    assert_eq!(host["connections"].as_u64(), Some(total / 2));
    assert_eq!(
        host["scored"], 3,
        "the first, the spanning one and the one without agent"
    );
    assert_eq!(bed.counter("events_dropped"), 0);
    // The ring keeps the events from the time without an agent. Those that the agent had taken and
    // not yet stored when it was killed are lost: at most those of one turn.
    let handed = bed.counter("events") as usize;
    let stored = bed.events(handed - LOST_AT_MOST);
    let scored = |event: &&Value| event["measurement"]["outcome"] == "scored";
    wait_for("the ends of all scored connections", || {
        let stored = bed.events(stored.len());
        (stored.iter().filter(scored).count() == 3).then_some(())
    });
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detaching_leaves_nothing_and_the_store_brings_it_back() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("detach", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("closed", 2);
    let before = bed.host(&address).expect("a record");
    assert!(bed.pin.exists());
    let removed = bed.json(&["detach"]);
    assert!(removed.to_string().contains("link_sockops"), "{removed}");
    wait_for("the pins to go", || (!bed.pin.exists()).then_some(()));
    bed.reap();
    bed.start();
    assert_eq!(bed.json(&["status"])["took_over"], false);
    let after = bed.host(&address).expect("restored from the store");
    for field in [
        "connections",
        "scored",
        "min_rtt_us",
        "best",
        "max_rate_bytes_per_s",
    ] {
        assert_eq!(before[field], after[field], "{field}");
    }
    assert_eq!(
        before["arms"][0]["cost_bits"],
        after["arms"][0]["cost_bits"]
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn hosts_can_be_explained_reset_exported_and_imported() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("manage", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 2, 1_000_000);
    bed.counter_reaches("closed", 4);
    bed.events(2);
    let explained = bed.json(&["explain", &address]);
    let text = explained.to_string();
    assert!(text.contains("costs least"), "{text}");
    assert!(text.contains("next_probability"), "{text}");
    let file = bed.directory.path().join("export.json");
    let file = file.to_str().unwrap();
    assert!(bed.thalweg(&["export", file]).status.success());
    assert!(bed.thalweg(&["reset", "--yes"]).status.success());
    assert!(bed.host(&address).is_none());
    assert!(bed.thalweg(&["import", file]).status.success());
    assert_eq!(bed.host(&address).expect("imported")["scored"], 2);
    assert!(bed.thalweg(&["reset", &address, "--yes"]).status.success());
    assert!(bed.host(&address).is_none());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn decisions_are_exported_for_replays() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("decisions", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 3, 1_000_000);
    // Of the first there is only its end.
    bed.events(5);
    let file = bed.directory.path().join("decisions");
    let name = file.to_str().unwrap();
    assert!(
        bed.thalweg(&["export", "--decisions", name])
            .status
            .success()
    );
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (lines.len(), &lines[4]["end"]),
        (5, &Value::from(3)),
        "{text}"
    );
    for line in &lines[1..4] {
        let shares = line["propensities"].as_object().unwrap().values();
        let sum: f64 = shares.filter_map(Value::as_f64).sum();
        assert!((sum - 1.0).abs() < 0.01, "{text}");
        assert!(
            line["stretches"][0]["bytes"].as_u64() >= Some(1_000_000),
            "{text}"
        );
    }
    let judged = bed.thalweg(&["replay", name]);
    let said = String::from_utf8_lossy(&judged.stderr).into_owned();
    assert_eq!(judged.status.code(), Some(1), "{said}");
    assert!(
        said.contains("2 connections: an effective sample of 1 hosts is too small"),
        "{said}"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn evidence_is_forgotten_with_time_before_the_next_choice() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("forget", "[learning]\nhalf_life = \"1s\"\n");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    // A connection too small to be scored: only its decision can discount the host's evidence.
    wait_for("three halvings of the evidence", || {
        bed.connect(&address, 1, 0);
        let host = bed.host(&address)?;
        let evidence = |arm: &Value| arm["evidence"].as_f64().unwrap();
        host["arms"]
            .as_array()?
            .iter()
            .all(|arm| evidence(arm) < 0.125)
            .then_some(())
    });
}
