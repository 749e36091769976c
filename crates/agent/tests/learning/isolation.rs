//! Which connections the learner learns from, and about which hosts: connections with a CC locked
//! by a route, users in namespaces of their own, one-time peers, addresses that mean several hosts.

use std::process::Command;

use serde_json::Value;
use thalweg_lab::host::Side;
use thalweg_testbed::{Bed, Traffic, plain, privileged, skip, wait_for};

fn problems(bed: &Bed) -> Value {
    bed.json(&["status"])["problems"].clone()
}

/// Each arm's reason why the kernel refuses it; null if it does not.
fn refusals(bed: &Bed) -> Vec<Value> {
    let arms = bed.json(&["arms"]);
    let arms = arms.as_array().unwrap();
    assert!(arms.len() >= 2, "{arms:?}");
    arms.iter().map(|arm| arm["refused"].clone()).collect()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_locked_route_takes_no_arm_from_other_connections() {
    if !privileged() {
        return;
    }
    let mut options = plain("locked");
    options.further_addresses = 1;
    let mut bed = Bed::new(&options, "");
    bed.start();
    let _sink = bed.sink("0.0.0.0");
    let addresses = bed.pair.server_addresses();
    let (locked, free) = (addresses[0].to_string(), addresses[1].to_string());
    let device = bed.device(Side::Client, &locked);
    let route = format!("route add {locked}/32 dev {device} congctl lock cubic");
    bed.ip(Side::Client, &route);

    bed.connect(&locked, 40, 300_000);
    bed.counter_reaches("refused", 1);
    assert!(
        refusals(&bed).iter().all(Value::is_null),
        "{:?}",
        bed.json(&["arms"])
    );
    assert_eq!(problems(&bed), serde_json::json!([]));
    let events = bed.events(40);
    let refused = events.iter().find(|event| !event["error"].is_null());
    let refused = refused.expect("an event of a refusal");
    assert_eq!(refused["arm"], "cubic", "it keeps what it has: {refused}");

    // Another host still gets every arm.
    wait_for("bbr towards the other host", || {
        bed.connect(&free, 5, 300_000);
        let host = bed.host(&free)?;
        let arms = host["arms"].as_array()?;
        arms.iter()
            .find(|arm| arm["arm"] == "bbr" && arm["scored"].as_u64() > Some(0))
            .map(|_| ())
    });
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_route_that_chooses_is_obeyed() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("foreign", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let device = bed.device(Side::Client, &address);
    let route = format!("route add {address}/32 dev {device} congctl reno");
    bed.ip(Side::Client, &route);
    bed.connect(&address, 3, 300_000);
    let events = bed.events(3);
    assert!(
        events.iter().all(|event| event["reason"] == "foreign"
            && event["arm"] == "reno"
            && event["chosen"].is_null()),
        "{events:?}"
    );
    bed.counter_reaches("closed", 3);
    assert_eq!(bed.counter("scored"), 0);
    assert_eq!(bed.counter("changed"), 0);
}

/// Makes connections between a user's own namespaces. First 60 of 300 kB on a route that locks its
/// congestion control, then a number of small ones from one-time addresses. Arguments: cgroup, number.
const USER: &str = r#"
echo $$ > "$1/cgroup.procs"
exec setpriv --reuid=65534 --regid=65534 --clear-groups unshare -Urn python3 -u -c '
import ctypes, socket, subprocess, sys, threading
def ip(*commands):
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)
apart, joined, listening = (threading.Event() for _ in range(3))
def serve():
    global thread
    # CLONE_NEWNET, of this thread alone.
    assert ctypes.CDLL(None).unshare(0x40000000) == 0
    thread = threading.get_native_id()
    apart.set()
    joined.wait()
    ip("address add 10.9.9.1/32 dev far", "link set far up", "route add 10.9.9.2/32 dev far",
       "route add 10.64.0.0/10 via 10.9.9.2")
    listener = socket.create_server(("10.9.9.1", 5001), backlog=1024)
    listening.set()
    while True:
        connection = listener.accept()[0]
        with connection:
            while connection.recv(1 << 20):
                pass
threading.Thread(target=serve, daemon=True).start()
apart.wait()
ip("link set lo up", f"link add near type veth peer name far netns {thread}",
   "address add 10.9.9.2/32 dev near", "link set near up",
   "route add 10.9.9.1/32 dev near src 10.9.9.2 congctl lock cubic", "route add local 10.64.0.0/10 dev lo")
joined.set()
listening.wait()
def connect(size, source=None):
    with socket.create_connection(("10.9.9.1", 5001), source_address=source) as connection:
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
for _ in range(60):
    connect(300_000)
for number in range(int(sys.argv[1])):
    connect(100, (f"10.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}", 0))
print("done")
' "$2"
"#;

fn user_traffic(bed: &Bed, number: u32) -> Traffic {
    let mut command = Command::new("sh");
    command
        .args(["-c", USER, "user"])
        .arg(bed.pair.cgroup_path())
        .arg(number.to_string());
    Traffic::spawn(command)
}

/// Whether ordinary users may create namespaces here.
fn users_have_namespaces() -> bool {
    let tried = Command::new("setpriv")
        .args("--reuid=65534 --regid=65534 --clear-groups unshare -Urn true".split(' '))
        .output()
        .unwrap();
    tried.status.success() || skip("ordinary users may not make namespaces")
}

/// The learner's public state, without counters of namespaces outside the scope.
fn learned(bed: &Bed) -> Value {
    let status = bed.json(&["status"]);
    let mut counters = status["counters"].clone();
    counters.as_object_mut().unwrap().remove("outside");
    let mut hosts = bed.json(&["hosts"]);
    for host in hosts["hosts"].as_array_mut().unwrap() {
        let host = host.as_object_mut().unwrap();
        host.remove("idle_s");
        for arm in host["arms"].as_array_mut().unwrap() {
            arm.as_object_mut().unwrap().remove("next_probability");
        }
    }
    let events = bed.json(&["events", "--limit", "10000"]);
    serde_json::json!([
        counters,
        hosts,
        bed.json(&["arms"]),
        events,
        status["problems"]
    ])
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_user_in_namespaces_of_his_own_changes_nothing() {
    if !privileged() || !users_have_namespaces() {
        return;
    }
    let bed = Bed::running("user", "[hosts]\nmax = 64\n");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 4, 300_000);
    bed.counter_reaches("closed", 8);
    bed.counter_reaches("scored", 4);
    wait_for("all events", || {
        let stored = bed.json(&["status"])["events_stored"].as_u64();
        (stored == Some(bed.counter("events"))).then_some(())
    });
    let before = learned(&bed);
    let mut traffic = user_traffic(&bed, 1000);
    assert_eq!(traffic.line(), "done");
    traffic.finish();
    // Both ends of each connection.
    bed.counter_reaches("outside", 2 * 1060);
    assert_eq!(learned(&bed), before);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn namespaces_of_users_count_where_they_are_asked_for() {
    if !privileged() || !users_have_namespaces() {
        return;
    }
    let bed = Bed::running("rootless", "[hosts]\nuser_namespaces = true\n");
    // The namespace is new to the agent, which searches for it after a connection there. The
    // traffic goes on until it was found, and ends with its guard.
    let _traffic = user_traffic(&bed, 1_000_000);
    bed.counter_reaches("established", 1);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_namespace_that_comes_later_is_found() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("later", "");
    let address = bed.server_address();
    let sink = bed.sink(&address);
    bed.connect(&address, 1, 300_000);
    // The agent has an event of it, so its first check of the namespaces is over.
    bed.events(1);
    drop(sink);
    // The machine's own administrator creates this one, while the agent runs.
    let other = thalweg_lab::host::Pair::new(&plain("later2")).unwrap();
    let mut server = Command::new("sh");
    // In the other pair's namespace, but in this bed's cgroup.
    server
        .args([
            "-c",
            "echo $$ > \"$0/cgroup.procs\"; exec ip netns exec \"$@\"",
        ])
        .arg(bed.pair.cgroup_path())
        .args([other.namespace_name(Side::Server), "python3", "-u", "-c"])
        .args([
            thalweg_testbed::SINK,
            &other.first_address(Side::Server).to_string(),
            "5001",
        ]);
    let mut sink = Traffic::spawn(server);
    assert_eq!(sink.line(), "listening");
    wait_for("a connection that counts", || {
        let mut client = Command::new("sh");
        client
            .args([
                "-c",
                "echo $$ > \"$0/cgroup.procs\"; exec ip netns exec \"$@\"",
            ])
            .arg(bed.pair.cgroup_path())
            .args([other.namespace_name(Side::Client), "python3", "-u", "-c"])
            .args([
                thalweg_testbed::CONNECTIONS,
                &other.first_address(Side::Server).to_string(),
            ])
            .args(["5001", "1", "300000"]);
        Traffic::spawn(client).finish();
        (bed.counter("scored") > 1).then_some(())
    });
    assert!(bed.counter("outside") > 0, "it was unknown at first");
}

/// Connects once from each of many addresses. Arguments: address, first, number.
const ONE_OFF: &str = r#"
import socket, sys
address, first, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for n in range(first, first + number):
    source = f"10.{64 + (n >> 16)}.{n >> 8 & 255}.{n & 255}"
    with socket.create_connection((address, 5001), source_address=(source, 0)) as connection:
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
"#;

/// A web server's hour: measured clients, and then `number` one-time clients.
fn one_off_clients(label: &str, number: u32) {
    let mut bed = Bed::new(&plain(label), "[hosts]\nmax = 1024\n");
    bed.start();
    let address = bed.server_address();
    let client = bed.pair.first_address(Side::Client).to_string();
    // Any address of 10.64/10 is the client's.
    bed.ip(Side::Client, "route add local 10.64.0.0/10 dev lo");
    bed.ip(
        Side::Server,
        &format!("route add 10.64.0.0/10 via {client}"),
    );
    let _sink = bed.sink(&address);
    // The server sends to these: it is the side with many peers.
    let sender = r#"
import socket, sys
listener = socket.create_server((sys.argv[1], 5002), backlog=128)
print("listening")
for _ in range(int(sys.argv[2])):
    with listener.accept()[0] as connection:
        connection.sendall(bytes(300_000))
"#;
    let known = 100;
    let mut server = bed.python(Side::Server, sender, &[&address, &known.to_string()]);
    assert_eq!(server.line(), "listening");
    let reader = r#"
import socket, sys
for n in range(int(sys.argv[2])):
    with socket.create_connection((sys.argv[1], 5002), source_address=(f"10.127.0.{n}", 0)) as c:
        while c.recv(1 << 20):
            pass
"#;
    bed.python(Side::Client, reader, &[&address, &known.to_string()])
        .finish();
    server.finish();
    bed.counter_reaches("scored", known);
    let records = || {
        let hosts = bed.json(&["hosts"]);
        let hosts = hosts["hosts"].as_array().unwrap();
        let of_clients = |host: &&Value| host["address"].as_str().unwrap().starts_with("10.127.");
        (hosts.len(), hosts.iter().filter(of_clients).count() as u64)
    };
    let (all, of_clients) = records();
    assert_eq!(of_clients, known);
    let clients: Vec<Traffic> = [0, number / 2]
        .iter()
        .map(|first| {
            let arguments = [address.clone(), first.to_string(), (number / 2).to_string()];
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            bed.python(Side::Client, ONE_OFF, &arguments)
        })
        .collect();
    clients.into_iter().for_each(|client| {
        client.finish();
    });
    assert!(bed.counter("established") >= u64::from(2 * number));
    assert_eq!(records(), (all, of_clients));
    assert_eq!(
        bed.counter("hosts_created"),
        known + (all as u64 - of_clients)
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn clients_that_come_once_leave_no_record() {
    if privileged() {
        one_off_clients("once", 4000);
    }
}

#[test]
#[ignore = "slow: 200,000 connections, two minutes"]
fn two_hundred_thousand_clients_that_come_once_leave_no_record() {
    if privileged() {
        one_off_clients("once200k", 200_000);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn link_local_addresses_are_left_alone() {
    if !privileged() {
        return;
    }
    let mut options = plain("linklocal");
    options.path.family = thalweg_lab::scenario::Family::Ipv6;
    let mut bed = Bed::new(&options, "");
    bed.start();
    let address = bed.server_address();
    let server = bed.device(
        Side::Server,
        &bed.pair.first_address(Side::Client).to_string(),
    );
    let client = bed.device(Side::Client, &address);
    let _sink = bed.sink("::");
    // A link-local address is another host on each interface: nothing is learned about it.
    bed.ip(
        Side::Server,
        &format!("address add fe80::1/64 dev {server} nodad"),
    );
    bed.ip(
        Side::Client,
        &format!("address add fe80::2/64 dev {client} nodad"),
    );
    // The laboratory's links work without neighbour discovery.
    for (side, own, peer, other) in [
        (Side::Client, &client, Side::Server, &server),
        (Side::Server, &server, Side::Client, &client),
    ] {
        let address = if side == Side::Client {
            "fe80::1"
        } else {
            "fe80::2"
        };
        let mac = bed.mac(peer, other);
        bed.ip(
            side,
            &format!("neighbour replace {address} lladdr {mac} dev {own}"),
        );
    }
    let before = bed.counter("established");
    let connect = r#"
import socket, sys
with socket.socket(socket.AF_INET6) as connection:
    connection.connect((sys.argv[1], 5001, 0, socket.if_nametoindex(sys.argv[2])))
    connection.sendall(bytes(300_000))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
"#;
    bed.python(Side::Client, connect, &["fe80::1", &client])
        .finish();
    assert_eq!(bed.counter("established"), before);
    assert_eq!(bed.counter("outside"), 0);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn connections_that_begin_in_unusual_ways_are_measured() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("unusual", "");
    let address = bed.server_address();
    for side in [Side::Client, Side::Server] {
        bed.pair
            .set_sysctl(side, "net.ipv4.tcp_fastopen", "3")
            .unwrap();
    }
    bed.pair
        .set_sysctl(Side::Server, "net.ipv4.tcp_syncookies", "2")
        .unwrap();
    // TCP_FASTOPEN is 23, IPPROTO_MPTCP is 262; MPTCP falls back where a side lacks it.
    let server = r#"
import socket, sys
mptcp = 262 if sys.argv[2] == "mptcp" else 0
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, mptcp)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if not mptcp:
    listener.setsockopt(socket.IPPROTO_TCP, 23, 16)
listener.bind((sys.argv[1], 5003))
listener.listen()
print("listening")
for _ in range(3):
    with listener.accept()[0] as connection:
        while connection.recv(1 << 20):
            pass
print("done")
"#;
    let client = r#"
import socket, sys
for _ in range(3):
    mptcp = 262 if sys.argv[2] == "mptcp" else 0
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, mptcp) as connection:
        if mptcp:
            connection.connect((sys.argv[1], 5003))
        else:
            connection.sendto(b"first", socket.MSG_FASTOPEN, (sys.argv[1], 5003))
        connection.sendall(bytes(300_000))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
"#;
    let mut scored = 0;
    for kind in ["fastopen", "mptcp"] {
        if kind == "mptcp" && !std::path::Path::new("/proc/sys/net/mptcp/enabled").exists() {
            eprintln!("no MPTCP on this kernel: that part is left out");
            continue;
        }
        let mut listening = bed.python(Side::Server, server, &[&address, kind]);
        assert_eq!(listening.line(), "listening");
        bed.python(Side::Client, client, &[&address, kind]).finish();
        assert_eq!(listening.line(), "done");
        listening.finish();
        scored += 3;
        bed.counter_reaches("scored", scored);
        bed.counter_reaches("closed", 2 * scored);
        assert_eq!(bed.counter("scored"), scored, "{kind}");
        assert_eq!(bed.counter("established"), 2 * scored, "{kind}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn dctcp_stays_within_the_prefixes_that_are_named() {
    if !privileged() {
        return;
    }
    let loaded = thalweg_testbed::loaded::Loaded::new("ecn", "dctcp");
    let mut options = plain("ecn");
    options.further_addresses = 1;
    let mut bed = Bed::new(&options, "");
    for side in [Side::Client, Side::Server] {
        bed.pair.set_sysctl(side, "net.ipv4.tcp_ecn", "1").unwrap();
    }
    let addresses = bed.pair.server_addresses();
    let (public, datacenter) = (addresses[0].to_string(), addresses[1].to_string());
    let name = &loaded.name;
    bed.configure(&format!(
        "[arms]\nallow = [\"cubic\", {name:?}]\nneeds_ecn = [{name:?}]\n\
         ecn_prefixes = [\"::/0\", \"{datacenter}\"]\n"
    ));
    bed.start();
    let _sink = bed.sink("0.0.0.0");
    let chosen = |address: &str| -> u64 {
        let host = bed.host(address).unwrap_or_default();
        let arms = host["arms"].as_array().cloned().unwrap_or_default();
        let of = arms.iter().filter(|arm| arm["arm"] == name.as_str());
        of.filter_map(|arm| arm["count"].as_u64()).sum()
    };
    let mut before = 0;
    wait_for("a trial within the prefix", || {
        bed.connect(&datacenter, 5, 300_000);
        before += 5;
        (chosen(&datacenter) > 0).then_some(())
    });
    // Without the prefix the arm would be as likely here. By chance it would be missing less than
    // once in a million runs.
    bed.measured_reaches(before);
    bed.connect(&public, 60, 300_000);
    bed.measured_reaches(before + 60);
    let of_public = |event: &&Value| event["remote"] == public.as_str();
    wait_for("an event of it with ECN", || {
        let events = bed.events(60);
        let mut of_public = events.iter().filter(of_public);
        of_public.any(|it| it["ecn"] == true).then_some(())
    });
    assert_eq!(chosen(&public), 0);
}
