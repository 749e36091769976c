//! Policies on connections with other handshakes: TCP Fast Open, SYN cookies, Multipath TCP,
//! simultaneous open.

use thalweg_lab::host::Side;
use thalweg_testbed::policies::{bed, policy};
use thalweg_testbed::{Bed, privileged};

/// Settings of all stages, different for each direction.
const RULES: &str = "[[rule]]\nname = \"out\"\nmatch.direction = \"active\"\n\
     set = { timeout_init = \"300ms\", mark = 5, user_timeout = \"25s\", congestion = \"reno\" }\n\
     [[rule]]\nname = \"in\"\nmatch.direction = \"passive\"\n\
     set = { rwnd_init = 20, mark = 7, user_timeout = \"9s\", congestion = \"reno\" }\n";
const OUT: &str = "5 25000 reno";
const IN: &str = "7 9000 reno";

/// Prints the values that the rules set.
const SHOW: &str = r#"
import socket, struct, sys
def show(connection):
    congestion = connection.getsockopt(6, 13, 16).rstrip(b"\0").decode()
    print(connection.getsockopt(1, 36), connection.getsockopt(6, 18), congestion)
"#;

fn program(text: &str) -> String {
    format!("{SHOW}{text}")
}

fn matched(bed: &Bed, rule: &str) -> u64 {
    let rule = bed.rule(rule);
    assert_eq!(rule["failed"], 0, "{rule}");
    rule["matched"].as_u64().unwrap()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn connections_by_fast_open_have_their_policy() {
    if !privileged() {
        return;
    }
    let bed = bed("fastopen");
    for side in [Side::Client, Side::Server] {
        bed.pair
            .set_sysctl(side, "net.ipv4.tcp_fastopen", "3")
            .unwrap();
    }
    bed.apply(&policy(RULES));
    let server = program(
        r#"
listener = socket.socket()
listener.setsockopt(6, 23, 16)
listener.bind(("", 5001))
listener.listen()
print("listening")
while True:
    connection = listener.accept()[0]
    show(connection)
    connection.sendall(connection.recv(5))
"#,
    );
    let mut server = bed.python(Side::Server, &server, &[]);
    assert_eq!(server.line(), "listening");
    // The first gets a Fast Open cookie, the others send data in the SYN: tcpi_options has 32.
    let client = program(
        r#"
for _ in range(5):
    connection = socket.socket()
    connection.sendto(b"hello", 0x20000000, (sys.argv[1], 5001))
    assert connection.recv(5) == b"hello"
    show(connection)
    print(connection.getsockopt(6, 11, 8)[5] & 32)
"#,
    );
    let said = bed
        .python(Side::Client, &client, &[&bed.server_address()])
        .finish();
    let lines: Vec<&str> = said.lines().collect();
    let in_syn: Vec<&str> = lines.iter().skip(1).step_by(2).copied().collect();
    assert_eq!(in_syn, ["0", "32", "32", "32", "32"]);
    for connection in 0..5 {
        assert_eq!(lines[2 * connection], OUT);
        assert_eq!(server.line(), IN);
    }
    assert_eq!((matched(&bed, "out"), matched(&bed, "in")), (5, 5));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn connections_by_syn_cookies_have_their_policy_at_once() {
    if !privileged() {
        return;
    }
    for timestamps in ["1", "0"] {
        let bed = bed(&format!("cookie{timestamps}"));
        for (key, value) in [
            ("net.ipv4.tcp_syncookies", "2"),
            ("net.ipv4.tcp_timestamps", timestamps),
        ] {
            bed.pair.set_sysctl(Side::Server, key, value).unwrap();
        }
        // First without an earlier policy, and then right after one.
        bed.apply(&policy(RULES));
        let server = program(
            r#"
listener = socket.create_server(("", 5001))
print("listening")
while True:
    show(listener.accept()[0])
"#,
        );
        let mut server = bed.python(Side::Server, &server, &[]);
        assert_eq!(server.line(), "listening");
        let client = program("show(socket.create_connection((sys.argv[1], 5001)))\n");
        for _ in 0..3 {
            let address = bed.server_address();
            let said = bed.python(Side::Client, &client, &[&address]).finish();
            assert_eq!(said.trim(), OUT);
            assert_eq!(server.line(), IN, "timestamps {timestamps}");
        }
        let answers = bed.rule("in")["asked"].as_u64();
        assert_eq!(answers, Some(0), "the kernel asks nothing for SYN cookies");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn subflows_of_multipath_tcp_have_their_policy() {
    if !privileged() {
        return;
    }
    let bed = bed("mptcp");
    for side in [Side::Client, Side::Server] {
        bed.pair.set_sysctl(side, "net.mptcp.enabled", "1").unwrap();
    }
    bed.apply(&policy(RULES));
    // A 1 in MPTCP_INFO's flags means a fall-back to TCP.
    const INFO: &str = r#"
def multipath(connection):
    info = connection.getsockopt(284, 1, 64)
    print(struct.unpack_from("I", info, 8)[0] & 1)
"#;
    let server = program(&format!(
        r#"{INFO}
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener.bind(("", 5001))
listener.listen()
print("listening")
connection = listener.accept()[0]
connection.sendall(connection.recv(5))
multipath(connection)
sys.stdin.readline()
"#
    ));
    let mut server = bed.python(Side::Server, &server, &[]);
    assert_eq!(server.line(), "listening");
    let client = program(&format!(
        r#"{INFO}
connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
connection.connect((sys.argv[1], 5001))
connection.sendall(b"hello")
assert connection.recv(5) == b"hello"
multipath(connection)
sys.stdin.readline()
"#
    ));
    let mut client = bed.python(Side::Client, &client, &[&bed.server_address()]);
    assert_eq!((client.line(), server.line()), ("0".into(), "0".into()));
    // The connection's own socket has its own options; the sockets on the path are subflows.
    let subflow = |side| {
        let output = std::process::Command::new("ip")
            .args(["netns", "exec", bed.pair.namespace_name(side)])
            .args([
                "ss",
                "-tine",
                "state",
                "established",
                "( sport = 5001 or dport = 5001 )",
            ])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for (side, mark) in [(Side::Client, "fwmark:0x5"), (Side::Server, "fwmark:0x7")] {
        let shown = subflow(side);
        assert!(shown.contains(mark), "{shown}");
        assert!(shown.contains("reno"), "{shown}");
    }
    assert_eq!((matched(&bed, "out"), matched(&bed, "in")), (1, 1));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_connection_that_both_ends_open_has_one_rule() {
    if !privileged() {
        return;
    }
    let bed = bed("both");
    bed.ip(Side::Server, "link set lo up");
    bed.apply(&policy(
        "[[rule]]\nname = \"out\"\nmatch.direction = \"active\"\n\
         set = { timeout_init = \"300ms\", mark = 5, congestion = \"reno\", keepalive = true }\n\
         [[rule]]\nname = \"in\"\nmatch.direction = \"passive\"\n\
         set = { rwnd_init = 20, mark = 7, congestion = \"bbr\" }\n",
    ));
    // A socket that connects to itself: its own SYN answers its SYN.
    let itself = program(
        r#"
connection = socket.socket()
connection.bind(("127.0.0.1", 5001))
connection.connect(("127.0.0.1", 5001))
show(connection)
print(connection.getsockopt(1, 9))
"#,
    );
    let said = bed.python(Side::Server, &itself, &[]).finish();
    assert_eq!(said, "5 0 reno\n1\n");
    assert_eq!((matched(&bed, "out"), matched(&bed, "in")), (1, 0));
}

/// ECN as negotiated, and the ECN bits in the IP header of the SYN, of the SYN-ACK, and of data.
/// Then the ECN bits of IP_TOS.
fn refused_ecn(bed: &Bed) -> Vec<String> {
    let capture = r#"
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
s.settimeout(120)
s.bind(("link0", 0))
print("ready")
while True:
    ip, (_, _, kind, _, _) = s.recvfrom(1 << 17)
    if ip[0] >> 4 != 4 or ip[9] != 6:
        continue
    tcp = ip[(ip[0] & 15) * 4:]
    length = int.from_bytes(ip[2:4], "big") - (ip[0] & 15) * 4 - (tcp[12] >> 4) * 4
    name = {2: "SYN", 0x12: "SYN-ACK"}.get(tcp[13] & 0x3f, "data" if length else "")
    if name:
        print(name, tcp[13] & 0xc0, ip[1] & 3)
"#;
    let mut capture = bed.python(Side::Client, capture, &[]);
    assert_eq!(capture.line(), "ready");
    let client = r#"
import socket, sys
connection = socket.create_connection((sys.argv[1], 5001))
connection.sendall(b"x")
print("IP_TOS", connection.getsockopt(0, 1) & 3)
"#;
    let said = bed
        .python(Side::Client, client, &[&bed.server_address()])
        .finish();
    let mut seen: Vec<String> = (0..3).map(|_| capture.line()).collect();
    seen.push(said.trim().to_owned());
    seen
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn where_the_peer_refuses_ecn_the_marks_are_as_documented() {
    if !privileged() {
        return;
    }
    let bed = bed("refused");
    for side in [Side::Client, Side::Server] {
        bed.pair.set_sysctl(side, "net.ipv4.tcp_ecn", "0").unwrap();
    }
    let _sink = bed.sink(&bed.server_address());
    let rule = |more: &str| {
        policy(&format!(
            "[[rule]]\nname = \"out\"\nmatch.direction = \"active\"\n\
             set = {{ needs_ecn = true }}\n{more}"
        ))
    };
    // The SYN goes out with ECT(0); the congestion control starts without ECN.
    bed.apply(&rule(""));
    let seen = refused_ecn(&bed);
    assert_eq!(seen, ["SYN 192 2", "SYN-ACK 0 0", "data 0 0", "IP_TOS 0"]);
    // A congestion control set before the SYN does not start again.
    bed.apply(&rule("on.connect = { congestion = \"reno\" }\n"));
    let seen = refused_ecn(&bed);
    assert_eq!(seen, ["SYN 192 2", "SYN-ACK 0 0", "data 0 2", "IP_TOS 2"]);
}
