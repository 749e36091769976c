//! Addresses behind NAT64 are the IPv4 addresses in them, by prefixes of the operator and of the
//! resolver.

use std::fs;
use std::process::Command;

use serde_json::Value;
use thalweg_lab::host::Side;
use thalweg_testbed::{Bed, Traffic, plain, privileged, wait_for};

/// A bed over IPv6 whose server has these addresses, all of them through one router.
fn bed(label: &str, settings: &str, addresses: &[&str]) -> Bed {
    let mut options = plain(label);
    options.path.family = thalweg_lab::scenario::Family::Ipv6;
    let bed = Bed::new(&options, settings);
    let router = bed.server_address();
    let server = bed.device(
        Side::Server,
        &bed.pair.first_address(Side::Client).to_string(),
    );
    for address in addresses {
        bed.ip(
            Side::Server,
            &format!("address add {address}/128 dev {server} nodad"),
        );
        bed.ip(
            Side::Client,
            &format!("route add {address}/128 via {router}"),
        );
    }
    bed
}

/// Connects once to each address, and checks that each IPv4 address behind them has a record.
fn each_has_its_record(bed: &Bed, of: &[(&str, &str)]) {
    let _sink = bed.sink("::");
    let before = bed.measured();
    for (address, _) in of {
        bed.connect(address, 1, 300_000);
    }
    bed.measured_reaches(before + of.len() as u64);
    for (address, host) in of {
        let record = bed
            .host(host)
            .unwrap_or_else(|| panic!("no record of {host}"));
        assert_eq!(record["connections"], 1, "{record}");
        // By either address.
        for name in [address, host] {
            let explained = bed.json(&["explain", name]);
            assert_eq!(explained[0]["host"]["address"], *host, "{explained}");
            let listed = bed.json(&["hosts", "--filter", name]);
            assert_eq!(listed["hosts"][0]["address"], *host, "{listed}");
        }
        wait_for("its event by either address", || {
            let events = bed.json(&["events", "--host", address]);
            events
                .as_array()
                .filter(|events| !events.is_empty())
                .map(|_| ())
        });
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn prefixes_of_the_operator_tell_hosts_behind_nat64_apart() {
    if !privileged() {
        return;
    }
    let of = [
        ("64:ff9b::c000:201", "192.0.2.1"),
        ("64:ff9b::c000:202", "192.0.2.2"),
        ("64:ff9b:1:c000:2:300::", "192.0.2.3"),
        ("64:ff9b:1:c000:2:400::", "192.0.2.4"),
        ("2001:db8:64::c000:205", "192.0.2.5"),
        ("2001:db8:64::c000:206", "192.0.2.6"),
    ];
    let settings = "[hosts]\nnat64 = [\"64:ff9b:1::/48\", \"2001:db8:64::/96\"]\n";
    let mut bed = bed("nat64by", settings, &of.map(|(address, _)| address));
    bed.start();
    each_has_its_record(&bed, &of);
    // One network of IPv4.
    let networks = bed.json(&["networks"]);
    assert!(networks.to_string().contains("192.0.2.0/24"), "{networks}");
}

/// Answers for ipv4only.arpa as a DNS64 server. Argument: the prefix' first 12 bytes, in hex.
const DNS64: &str = r#"
import socket, struct, sys
prefix = bytes.fromhex(sys.argv[1])
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.153", 53))
print("listening")
while True:
    query, client = server.recvfrom(2048)
    end = query.index(0, 12) + 5
    kind = query[end - 4:end - 2]
    addresses = [bytes([192, 0, 0, 170]), bytes([192, 0, 0, 171])]
    if kind == b"\0\x1c":
        addresses = [prefix + address for address in addresses]
    known = b"\x08ipv4only\x04arpa" in query and kind in (b"\0\x01", b"\0\x1c")
    addresses = addresses if known else []
    answer = query[:2] + b"\x81\x80\0\x01" + struct.pack("!H", len(addresses)) + bytes(4) + query[12:end]
    for address in addresses:
        answer += b"\xc0\x0c" + kind + struct.pack("!HIH", 1, 60, len(address)) + address
    server.sendto(answer, client)
"#;

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn prefixes_of_the_resolver_tell_hosts_behind_nat64_apart() {
    if !privileged() {
        return;
    }
    let of = [
        ("2001:db8:64:ff::c000:201", "192.0.2.1"),
        ("2001:db8:64:ff::c000:202", "192.0.2.2"),
    ];
    let mut bed = bed("nat64dns", "", &of.map(|(address, _)| address));
    let resolver = bed.directory.path().join("resolv.conf");
    let services = bed.directory.path().join("nsswitch.conf");
    fs::write(&resolver, "nameserver 127.0.0.153\n").unwrap();
    fs::write(&services, "hosts: dns\n").unwrap();
    let agent = bed.run_command();
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c"])
        .arg("mount --bind \"$0\" /etc/resolv.conf; mount --bind \"$1\" /etc/nsswitch.conf; shift; exec \"$@\"")
        .args([&resolver, &services])
        .arg(agent.get_program())
        .args(agent.get_args())
        .env("RUST_LOG", "info,thalweg_agent::discovery=debug");
    bed.start_by(command);
    // The resolver is late.
    wait_for("the first question's error", || {
        bed.logged().contains("NAT64: ipv4only.arpa").then_some(())
    });
    let mut server = Command::new("python3");
    server.args(["-u", "-c", DNS64, "20010db8006400ff00000000"]);
    let mut server = Traffic::spawn(server);
    assert_eq!(server.line(), "listening");
    wait_for("the resolver's prefix", || {
        bed.logged()
            .contains("NAT64 by the resolver: 2001:db8:64:ff::/96")
            .then_some(())
    });
    each_has_its_record(&bed, &of);
    // A session that gets no answer goes on with that of the session before.
    drop(server);
    bed.configure("dry_run = true\n");
    assert_eq!(bed.json(&["reload"])["changed"], true);
    let explained = bed.json(&["explain", of[0].0]);
    assert_eq!(explained[0]["host"]["address"], of[0].1, "{explained}");
    let problems = &bed.json(&["status"])["problems"];
    assert_eq!(*problems, Value::Array(Vec::new()));
}
