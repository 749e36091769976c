//! Peers with prefixes of their own, who are as many hosts as they like.

use std::collections::BTreeMap;

use thalweg_lab::host::Side;
use thalweg_testbed::{Bed, plain, privileged, wait_for};

/// Sends each client what it asks for.
const SERVER: &str = r#"
import socket, sys
listener = socket.create_server((sys.argv[1], 5002), family=socket.AF_INET6, backlog=512)
print("listening")
while True:
    with listener.accept()[0] as connection:
        size = int.from_bytes(connection.recv(8), "big")
        connection.sendall(bytes(size))
"#;

/// Connects from many addresses, a number of times each. Arguments: server, prefix of the source
/// addresses with {} for a number in hex, first and last number, times, bytes.
const CLIENTS: &str = r#"
import socket, sys
server, prefix = sys.argv[1:3]
first, last, times, size = map(int, sys.argv[3:])
for _ in range(times):
    for n in range(first, last):
        source = (prefix.format(f"{n >> 16:x}", f"{n & 0xffff:x}"), 0)
        with socket.create_connection((server, 5002), source_address=source) as connection:
            connection.sendall(size.to_bytes(8, "big"))
            while connection.recv(1 << 20):
                pass
"#;

/// Connections of each known host.
const TIMES: u64 = 4;

/// A server that knows hosts, and then a number of others that come once, each from a /64 of its own.
fn a_crowd_comes(label: &str, settings: &str, known: u64, crowd: u64, bytes: u64) {
    let mut options = plain(label);
    options.path.family = thalweg_lab::scenario::Family::Ipv6;
    let mut bed = Bed::new(&options, settings);
    bed.start();
    let address = bed.server_address();
    let client = bed.pair.first_address(Side::Client).to_string();
    bed.pair
        .set_sysctl(Side::Client, "net.ipv6.ip_nonlocal_bind", "1")
        .unwrap();
    bed.ip(Side::Client, "route add local 2001:db8::/32 dev lo");
    bed.ip(
        Side::Server,
        &format!("route add 2001:db8::/32 via {client}"),
    );
    let mut server = bed.python(Side::Server, SERVER, &[&address]);
    assert_eq!(server.line(), "listening");
    let come = |prefix: &str, first: u64, last: u64, times: u64| {
        let numbers = [first, last, times, bytes].map(|number| number.to_string());
        let mut arguments = vec![address.as_str(), prefix];
        arguments.extend(numbers.iter().map(String::as_str));
        bed.python(Side::Client, CLIENTS, &arguments)
    };
    come("2001:db8:aaaa:{1}::1", 0, known, TIMES).finish();
    bed.measured_reaches(TIMES * known);
    let of_known = || -> BTreeMap<String, u64> {
        let hosts = bed.hosts();
        let named = hosts.iter().filter_map(|host| {
            let address = host["address"].as_str()?;
            let scored = host["scored"].as_u64()?;
            address
                .starts_with("2001:db8:aaaa:")
                .then(|| (address.to_owned(), scored))
        });
        named.collect()
    };
    let before = of_known();
    assert_eq!(before.len() as u64, known);

    // Two at a time; /48s change, too.
    let halves = [(0, crowd / 2), (crowd / 2, crowd)];
    let clients = halves.map(|(first, last)| come("2001:db8:{0}:{1}::1", first, last, 1));
    clients.into_iter().for_each(|client| {
        client.finish();
    });
    bed.counter_reaches("closed", 2 * (TIMES * known + crowd));
    assert_eq!(of_known(), before);

    // There is room for new hosts.
    let mut next = 0;
    wait_for("a record of a new host", || {
        next += 1;
        come("2001:db8:bbbb:{1}::1", next, next + 1, 2).finish();
        let new = format!("2001:db8:bbbb:{next:x}::/64");
        bed.host(&new).map(|_| ())
    });
    let status = bed.json(&["status"]);
    let (hosts, most) = (status["hosts"].as_u64(), status["hosts_max"].as_u64());
    assert!(hosts <= most.map(|most| most + most / 8 + 64), "{status}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn known_hosts_survive_a_crowd_that_comes_once() {
    if privileged() {
        let settings = "[hosts]\nmax = 512\n[learning]\nscore_min = \"1KiB\"\n";
        a_crowd_comes("crowd", settings, 50, 3000, 40_000);
    }
}

#[test]
#[ignore = "slow: 120,000 connections of 140 kB"]
fn five_hundred_known_hosts_survive_120000_that_come_once() {
    if privileged() {
        a_crowd_comes("crowd120k", "", 500, 120_000, 140_000);
    }
}
