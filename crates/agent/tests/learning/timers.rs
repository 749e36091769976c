//! Timers of networks, on real connections.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_lab::host::{PairOptions, Side};
use thalweg_lab::units::Probability;
use thalweg_testbed::policies::one_rule;
use thalweg_testbed::{Bed, plain, privileged, wait_for};

const ENABLED: &str = "[arms]\nallow = [\"cubic\"]\n[timers]\nenabled = true\n";

/// `TCP_RTO_MIN_US` (Linux 6.15).
const LEAST_TIMEOUT: i32 = 45;

/// Sends on six connections until one has the first value as its least timeout, µs. Prints it, waits for
/// a line of input, then the same with the second value and the same connection.
const LEAST_TIMEOUTS: &str = r#"
import socket, sys, threading, time
end = time.monotonic() + 120
def least(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, 45)
def send(connection):
    while True:
        connection.sendall(bytes(65536))
connections = [socket.create_connection((sys.argv[1], 5001)) for _ in range(6)]
for connection in connections:
    threading.Thread(target=send, args=(connection,), daemon=True).start()
for wanted in map(int, sys.argv[2:]):
    while not (found := [it for it in connections if least(it) == wanted]):
        if time.monotonic() > end:
            sys.exit(f"no connection has {wanted}")
    connections = found[:1]
    print(wanted, flush=True)
    sys.stdin.readline()
"#;

/// Sends 30 MB on each of four connections; prints the least timeouts that these had, µs.
const ALL_TIMEOUTS: &str = r#"
import socket, sys
found = set()
for _ in range(4):
    connection = socket.create_connection((sys.argv[1], 5001))
    for _ in range(300):
        connection.sendall(bytes(100000))
        found.add(connection.getsockopt(socket.IPPROTO_TCP, 45))
print(*sorted(found))
"#;

/// Connects so often to a silent address, all at once. Prints the seconds until the first and the last give
/// up; of each, sorted, how many SYNs it may send again, and as a fraction after the point how many once
/// the same socket tries again.
const SILENT: &str = r#"
import selectors, socket, sys, time
selector = selectors.DefaultSelector()
begun = time.monotonic()
for _ in range(int(sys.argv[2])):
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex((sys.argv[1], 5001))
    selector.register(client, selectors.EVENT_WRITE)
first, counts = None, []
while selector.get_map():
    for key, _ in selector.select():
        first = first or time.monotonic() - begun
        client = key.fileobj
        count = lambda: client.getsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT)
        failed = count()
        # The first call takes the error of the attempt that failed.
        client.connect_ex((sys.argv[1], 5001))
        client.connect_ex((sys.argv[1], 5001))
        counts.append(failed + count() / 100)
        selector.unregister(client)
print(first, time.monotonic() - begun, *sorted(counts))
"#;

/// Gives the route to an address a least timeout.
const ROUTE: &str = r#"
import subprocess, sys
route = subprocess.check_output(["ip", "route", "get", sys.argv[1]], text=True).split()
device = route[route.index("dev") + 1]
subprocess.run(["ip", "route", "add", sys.argv[1], "dev", device, "rto_min", "50ms"], check=True)
"#;

/// Prints the number of open connections to port 5001.
const OPEN: &str = r#"
lines = open("/proc/net/tcp").read().splitlines()[1:]
found = [it.split() for it in lines]
print(sum(it[2].endswith(":1389") and it[3] == "01" for it in found))
"#;

/// Prints for how long a connection may delay ACKs, µs: `TCP_DELACK_MAX_US` (Linux 6.15).
const LONGEST_DELAY: &str = r#"
import socket, sys
connection = socket.create_connection((sys.argv[1], 5001))
print(connection.getsockopt(socket.IPPROTO_TCP, 46))
"#;

/// Listens with room for eight connections, and accepts one every 100 ms.
const OVERLOADED: &str = r#"
import socket, sys, time
server = socket.create_server((sys.argv[1], 5002), backlog=8)
print("listening", flush=True)
kept = []
while True:
    kept.append(server.accept())
    time.sleep(0.1)
"#;

/// Connects 30 times a second for 12 seconds, and waits for 8 more. Prints the number of SYNs that were
/// sent again.
const CROWD: &str = r#"
import errno, socket, sys, time
def sent_again():
    lines = [it.split() for it in open("/proc/net/netstat") if it.startswith("TcpExt:")]
    return int(dict(zip(*lines))["TCPSynRetrans"])
before, clients = sent_again(), []
for _ in range(360):
    client = socket.socket()
    client.setblocking(False)
    assert client.connect_ex((sys.argv[1], 5002)) == errno.EINPROGRESS
    clients.append(client)
    time.sleep(1 / 30)
time.sleep(8)
print(sent_again() - before)
"#;

fn lossy(label: &str, percent: f64) -> PairOptions {
    let mut options = plain(label);
    options.path.loss = Probability::from_fraction(percent / 100.0);
    options
}

/// Whether sockets tell their least timeout.
fn are_told() -> bool {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut value, mut size) = (0u32, 4);
    // SAFETY: both pointers are to values of these sizes.
    let failed = unsafe {
        libc::getsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&socket),
            libc::IPPROTO_TCP,
            LEAST_TIMEOUT,
            (&raw mut value).cast(),
            &raw mut size,
        )
    };
    failed == 0
}

/// The timers of the client's network; null: none are known.
fn network(bed: &Bed) -> Value {
    let found = bed.json(&["timers"]);
    let networks = found["networks"].as_array().unwrap();
    let prefix = &bed.server_address();
    let prefix = prefix.rsplit_once('.').unwrap().0;
    // Both ends know one another's network: the client sends, and so loses.
    let lost = |it: &&Value| {
        let share = |key: &str| it[key].as_f64().unwrap();
        ((share("retransmitted") + share("control_retransmitted")) * 1e9) as u64
    };
    let of_server = |it: &&Value| it["name"].as_str().unwrap().starts_with(prefix);
    let known = networks.iter().filter(of_server).max_by_key(lost);
    known.cloned().unwrap_or(Value::Null)
}

fn floor_reaches(bed: &Bed, least_us: u64) {
    let address = bed.server_address();
    wait_for("the floor", || {
        bed.connect(&address, 1, 20_000_000);
        let floor = network(bed)["floor_us"].as_u64();
        floor.is_some_and(|us| us <= least_us).then_some(())
    });
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn floor_falls_where_losses_are_random_and_is_in_force_while_a_connection_recovers() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&lossy("floor", 5.0), ENABLED);
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    assert_eq!(bed.json(&["timers"])["networks"], serde_json::json!([]));
    floor_reaches(&bed, 8000);
    let known = network(&bed);
    assert_eq!(known["harm"], Value::Null, "{known}");
    assert!(
        known["control_retransmitted"].as_f64() > Some(0.01),
        "{known}"
    );
    // The kernel's timeout rules how fast those of the control group are.
    wait_for("a connection that is not scored", || {
        bed.connect(&address, 4, 2_000_000);
        (bed.counter("skipped_not_tracked") > 0).then_some(())
    });
    let gain = wait_for("both groups in the gain", || {
        let gain = bed.json(&["gain"])["features"][0].clone();
        let count = |group: &str| gain[group].as_u64();
        (count("control") > Some(0) && count("treated") > Some(0)).then_some(gain)
    });
    assert_eq!(gain["feature"], "timers", "{gain}");
    // Too few of the control group for a quantile.
    assert_eq!(gain["completion_p99"], Value::Null, "{gain}");
    let explained = bed.json(&["explain", &address]);
    let explained = &explained[0]["timers"];
    assert!(
        explained["floor_us"].as_u64() <= Some(20_000),
        "{explained}"
    );
    let metrics = String::from_utf8(bed.thalweg(&["metrics"]).stdout).unwrap();
    assert!(metrics.contains("thalweg_timers_set "), "{metrics}");
    let status = String::from_utf8(bed.thalweg(&["status"]).stdout).unwrap();
    assert!(status.contains("networks"), "{status}");

    // One connection in 16 keeps the kernel's: of six all do in one of 17 million runs.
    if are_told() {
        let mut sender = bed.python(Side::Client, LEAST_TIMEOUTS, &[&address, "8000", "200000"]);
        assert_eq!(sender.line(), "8000");
        // Without losses it is taken back.
        bed.pair
            .change_path(&plain("floor").path)
            .expect("a path that changes");
        sender.go_on();
        assert_eq!(sender.line(), "200000");
    }

    // The program of an agent that was killed stays, until one starts that wants none.
    let pin = bed.pin.join("link_timers");
    bed.end(Signal::SIGKILL);
    assert!(pin.exists());
    bed.configure("");
    bed.start();
    assert!(!pin.exists());
    assert_eq!(bed.json(&["timers"])["enabled"], false);
    assert_eq!(bed.json(&["gain"])["features"], serde_json::json!([]));
    bed.end(Signal::SIGTERM);
    bed.configure(ENABLED);
    bed.start();
    assert!(pin.exists());
    assert!(bed.thalweg(&["detach"]).status.success());
    assert!(!pin.exists());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn advice_tells_timers_and_sets_none() {
    if !privileged() {
        return;
    }
    let settings = format!("{ENABLED}[advise]\nonly = true\n");
    let mut bed = Bed::new(&lossy("advised", 5.0), &settings);
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let advice = wait_for("a floor", || {
        bed.connect(&address, 4, 2_000_000);
        let advice = bed.json(&["advise"])["features"][0].clone();
        let has_floor = |it: &Value| it["setting"].as_str().unwrap().contains("floor");
        let settings = advice["settings"].as_array().cloned().unwrap_or_default();
        settings.iter().any(has_floor).then_some(advice)
    });
    assert_eq!(advice["feature"], "timers", "{advice}");
    assert_eq!(
        advice["lines"],
        serde_json::json!(["advise.only = false"]),
        "{advice}"
    );
    let said = String::from_utf8(bed.thalweg(&["advise"]).stdout).unwrap();
    assert!(
        said.contains("These are set with `advise.only = false`."),
        "{said}"
    );
    bed.connect(&address, 20, 200_000);
    let known = network(&bed);
    assert_eq!(bed.json(&["timers"])["sets"], false);
    // No connection is drawn from a table without networks.
    assert_eq!(known["drawn"], 0, "{known}");
    assert!(known["control"].as_u64() >= Some(4), "{known}");
    let status = bed.json(&["status"]);
    assert_eq!(status["timers"]["set"], 0, "{status}");
    assert_eq!(bed.json(&["gain"])["features"], serde_json::json!([]));
    if are_told() {
        let found = bed.python(Side::Client, ALL_TIMEOUTS, &[&address]).finish();
        assert_eq!(found.trim(), "200000");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn least_timeouts_of_others_stay() {
    if !privileged() || !are_told() {
        return;
    }
    let mut bed = Bed::new(&lossy("owned", 5.0), ENABLED);
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    floor_reaches(&bed, 8000);
    let all = |bed: &Bed| bed.python(Side::Client, ALL_TIMEOUTS, &[&address]).finish();
    assert_eq!(all(&bed).trim(), "8000 200000");
    bed.apply(&one_rule("rto_min = \"100ms\""));
    assert_eq!(all(&bed).trim(), "100000");
    assert_eq!(others_us(&bed), 100_000);
    // The kernel takes the route's before the socket's.
    bed.python(Side::Client, ROUTE, &[&address]).finish();
    all(&bed);
    assert_eq!(others_us(&bed), 50_000);
    let table = String::from_utf8(bed.thalweg(&["timers"]).stdout).unwrap();
    assert!(table.contains("others 50 ms: "), "{table}");
}

/// The last least timeout of others on the way to the server, µs.
fn others_us(bed: &Bed) -> u64 {
    wait_for("the timeout of others", || {
        network(bed)["others_us"].as_u64()
    })
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn connections_that_were_open_before_have_a_floor_where_it_is_configured() {
    if !privileged() || !are_told() {
        return;
    }
    let existing = format!("{ENABLED}existing = true\n");
    let mut bed = Bed::new(&lossy("existing", 5.0), &existing);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let mut sender = bed.python(Side::Client, LEAST_TIMEOUTS, &[&address, "8000"]);
    wait_for("six connections", || {
        let open = bed.python(Side::Client, OPEN, &[]).finish();
        (open.trim() == "6").then_some(())
    });
    bed.start();
    assert_eq!(bed.json(&["status"])["problems"], serde_json::json!([]));
    floor_reaches(&bed, 8000);
    assert_eq!(sender.line(), "8000");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn floors_begin_lower_towards_peers_that_bound_the_delay_of_their_acks() {
    if !privileged() || !are_told() {
        return;
    }
    let mut bed = Bed::new(&lossy("peers", 5.0), ENABLED);
    let address = bed.server_address();
    let prefix = format!("{}.0/24", address.rsplit_once('.').unwrap().0);
    let peers = format!("{ENABLED}peers = [\"{prefix}\"]\ndelayed_ack = \"5ms\"\n");
    bed.configure(&peers);
    bed.start();
    let _sink = bed.sink(&address);
    let bound = |bed: &Bed| {
        bed.python(Side::Client, LONGEST_DELAY, &[&address])
            .finish()
    };
    // Two ticks are the least.
    let least: u64 = bound(&bed).trim().parse().unwrap();
    assert!((5_000..=20_000).contains(&least), "{least}");
    let mut floors = Vec::new();
    wait_for("a floor", || {
        bed.connect(&address, 1, 20_000_000);
        floors.extend(network(&bed)["floor_us"].as_u64());
        (!floors.is_empty()).then_some(())
    });
    assert!(
        floors[0] > least && floors[0] <= least + 20_000,
        "{floors:?}"
    );
    // The program stays, and bounds nothing.
    bed.end(Signal::SIGTERM);
    assert_eq!(bound(&bed).trim(), "200000");
    bed.start();
    assert_eq!(bound(&bed).trim(), least.to_string());
    bed.configure(ENABLED);
    assert!(bed.thalweg(&["reload"]).status.success());
    assert_eq!(bound(&bed).trim(), "200000");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn connect_gives_up_no_sooner_though_syns_are_sent_sooner() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("syn"), ENABLED);
    for (name, value) in [("tcp_syn_retries", "1"), ("tcp_syn_linear_timeouts", "0")] {
        // Linux 6.5 brought the second.
        let path = format!("/proc/sys/net/ipv4/{name}");
        if fs::exists(&path).unwrap() {
            let script = format!("open({path:?}, 'w').write({value:?})");
            bed.python(Side::Client, &script, &[]).finish();
        }
    }
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 16, 100_000);
    wait_for("a timeout of SYNs", || {
        let syn_us = network(&bed)["syn_us"].as_u64();
        syn_us.map(|us| assert!((60_000..500_000).contains(&us), "{us}"))
    });
    bed.pair
        .change_path(&lossy("syn", 100.0).path)
        .expect("a path that changes");
    let said = bed.python(Side::Client, SILENT, &[&address, "24"]).finish();
    let numbers: Vec<f64> = said
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    // A second and two more by default.
    assert!(numbers[0] >= 2.9, "{said}");
    // Where there is no credit left, connections have the kernel's timeout and its number of SYNs.
    assert!(numbers[1] < 30.0, "{said}");
    let raised = numbers[2..].iter().filter(|count| **count >= 2.0).count();
    // Eight lose a SYN before there is none; more may have begun until then.
    assert!((1..=24).contains(&raised), "{said}");
    // A second attempt has a second first, and its own number of SYNs.
    assert!(
        numbers[2..]
            .iter()
            .all(|it| (it.fract() - 0.01).abs() < 1e-6),
        "{said}"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn overloaded_servers_get_no_more_syns() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("crowd"), ENABLED);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let mut server = bed.python(Side::Server, OVERLOADED, &[&address]);
    assert_eq!(server.line(), "listening");
    let again = |bed: &Bed| -> u64 {
        let said = bed.python(Side::Client, CROWD, &[&address]).finish();
        said.trim().parse().unwrap()
    };
    let usual = again(&bed);
    bed.start();
    bed.connect(&address, 16, 100_000);
    wait_for("a timeout of SYNs", || network(&bed)["syn_us"].as_u64());
    let changed = again(&bed);
    eprintln!("overloaded: {usual} by default, {changed} with timers");
    assert!(usual > 500, "{usual}");
    // Runs differ by some 5 %. Shorter timeouts for all would send two thirds more.
    assert!(changed < usual + usual / 3, "{usual}, {changed}");
}
