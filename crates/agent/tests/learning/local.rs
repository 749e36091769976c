//! Connections that stay on the machine, whatever their addresses: nothing is learned from them.

use std::process::Command;

use thalweg_lab::host::Side;
use thalweg_testbed::{Bed, plain, privileged};

/// A proxy on port 6001 that connects to where its clients wanted to go. Its own packets are marked,
/// so that they are not redirected. SO_ORIGINAL_DST is 80, SO_MARK is 36.
const PROXY: &str = r#"
import socket, struct, sys, threading
listener = socket.create_server(("0.0.0.0", 6001), backlog=128)
print("listening")
def serve(client):
    port, address = struct.unpack("!2xH4s8x", client.getsockopt(socket.SOL_IP, 80, 16))
    with client, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, 36, 1)
        server.connect((socket.inet_ntoa(address), port))
        while data := client.recv(1 << 16):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)
        server.recv(1)
for _ in range(int(sys.argv[1])):
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"#;

/// What nft does with connections to port 5001 that are not the proxy's.
const REDIRECT: &str = "table ip mesh { chain out { type nat hook output priority -100; \
                        tcp dport 5001 meta mark != 1 redirect to :6001; }; }";

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn redirected_connections_are_measured_at_the_proxy_alone() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("mesh", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let namespace = bed.pair.namespace_name(Side::Client);
    let made = Command::new("ip")
        .args(["netns", "exec", namespace, "nft", REDIRECT])
        .status()
        .unwrap();
    assert!(made.success());
    let uploads = 40;
    let mut proxy = bed.python(Side::Client, PROXY, &[&uploads.to_string()]);
    assert_eq!(proxy.line(), "listening");
    bed.connect(&address, uploads as u32, 300_000);
    proxy.finish();
    // Both ends of the proxy's own connections.
    bed.counter_reaches("closed", 2 * uploads);
    assert_eq!(bed.counter("established"), 2 * uploads);
    bed.measured_reaches(uploads);
    assert_eq!(bed.measured(), uploads);
    let hosts: Vec<_> = bed.hosts();
    assert_eq!(hosts.len(), 1, "{hosts:?}");
}

/// Connects to an address of the machine itself from another one. Arguments: address, source.
const HOME: &str = r#"
import socket, sys
address, source = sys.argv[1:3]
listener = socket.create_server((address, 7001), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
for _ in range(4):
    client = socket.create_connection((address, 7001), source_address=(source, 0))
    server = listener.accept()[0]
    for one, other in ((client, server), (server, client)):
        one.sendall(bytes(200_000))
        left = 200_000
        while left:
            left -= len(other.recv(left))
    client.close()
    server.close()
"#;

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_machine_that_talks_to_itself_is_left_alone() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("home"), "");
    let own = bed.pair.first_address(Side::Client).to_string();
    let device = bed.device(Side::Client, &bed.server_address());
    for further in ["10.77.0.1/32", "2001:db8:77::1/128", "2001:db8:77::2/128"] {
        let nodad = if further.contains(':') { " nodad" } else { "" };
        bed.ip(
            Side::Client,
            &format!("address add {further} dev {device}{nodad}"),
        );
    }
    let mut bed = bed;
    bed.start();
    let _sink = bed.sink(&bed.server_address());
    for (address, source) in [
        (own.as_str(), own.as_str()),
        (own.as_str(), "10.77.0.1"),
        ("2001:db8:77::1", "2001:db8:77::1"),
        ("2001:db8:77::1", "2001:db8:77::2"),
    ] {
        bed.python(Side::Client, HOME, &[address, source]).finish();
    }
    // What leaves the machine is seen.
    bed.connect(&bed.server_address(), 1, 300_000);
    bed.counter_reaches("closed", 2);
    assert_eq!(bed.counter("established"), 2);
    assert_eq!(bed.hosts().len(), 1);
}
