//! Policies during a flood of handshakes that nobody finishes.

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use serde_json::Value;
use thalweg_bpf_types::raw;
use thalweg_lab::host::Side;
use thalweg_testbed::policies::{bed, one_rule};
use thalweg_testbed::{Bed, Traffic, privileged};

/// Sends SYNs from addresses that never answer, at a rate per second, until its input ends. Then
/// prints their number since it printed "flooded". Arguments: address, port, rate.
const FLOOD: &str = r#"
import select, socket, struct, sys, time
address, port, rate = socket.inet_aton(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff
def syn(number):
    # 198.18.0.0/15 is for such measurements (RFC 2544).
    source = struct.pack(">I", 0xc6120001 + number // 50000)
    tcp = struct.pack(">HHIIBBHHHBBH", 1024 + number % 50000, port, number, 0, 6 << 4, 2, 65535, 0, 0, 2, 4, 1460)
    pseudo = source + address + struct.pack(">BBH", 0, 6, len(tcp))
    tcp = tcp[:16] + struct.pack(">H", checksum(pseudo + tcp)) + tcp[18:]
    return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + source + address + tcp
sent, began, told = 0, time.monotonic(), 0
while not select.select([sys.stdin], [], [], 0.001)[0]:
    due = int((time.monotonic() - began) * rate)
    # What a busy machine kept from being sent is not made up for in one go.
    for _ in range(min(due - sent, rate // 50)):
        raw.sendto(syn(sent), (sys.argv[1], port))
        sent += 1
    if sent > 2 * 8192 and not told:
        told = sent
        print("flooded")
print(sent - told)
"#;

/// Prints the rule's settings of each accepted connection. Argument: its backlog.
const SERVER: &str = r#"
import socket, sys
listener = socket.create_server(("", 5001), backlog=int(sys.argv[1]))
print("listening")
while True:
    connection = listener.accept()[0]
    print(*[connection.getsockopt(*option) for option in ((1, 36), (1, 12), (6, 18), (6, 4))])
"#;

/// Makes connections one by one; prints the rule's settings of each. Arguments: address, number.
const CLIENT: &str = r#"
import socket, sys
for _ in range(int(sys.argv[2])):
    with socket.create_connection((sys.argv[1], 5001)) as connection:
        print(*[connection.getsockopt(*option) for option in ((1, 36), (1, 12), (6, 18), (6, 4), (6, 7))])
"#;

/// Number of connections opened during a flood.
const REAL: usize = 200;

/// Settings of all stages: of the SYN (`syn_count`), of the answers, of both ends.
const RULE: &str = "timeout_init = \"300ms\", rwnd_init = 20, syn_count = 3, mark = 5, \
                    priority = 3, user_timeout = \"25s\", keepalive_idle = \"30s\"";
const CLIENT_HAS: &str = "5 3 25000 30 3";
const SERVER_HAS: &str = "5 3 25000 30";

fn server(bed: &Bed, backlog: &str) -> Traffic {
    let mut server = bed.python(Side::Server, SERVER, &[backlog]);
    assert_eq!(server.line(), "listening");
    server
}

/// Real connections, all with their whole policy at both ends.
fn assert_whole(bed: &Bed, server: &mut Traffic, connections: usize) {
    let number = connections.to_string();
    let client = bed.python(Side::Client, CLIENT, &[&bed.server_address(), &number]);
    let said = client.finish();
    let client_has: Vec<&str> = said.lines().collect();
    assert_eq!(client_has, vec![CLIENT_HAS; connections]);
    for _ in 0..connections {
        assert_eq!(server.line(), SERVER_HAS);
    }
}

/// Number of handshakes that the policy in force could not remember.
fn forgotten(bed: &Bed) -> u64 {
    let report = bed.json(&["policy", "show"]);
    let count = report["missed"]["handshakes"].as_u64();
    count.unwrap_or_else(|| panic!("{report}"))
}

/// Number of this machine's connections remembered in their handshake.
fn remembered(bed: &Bed) -> usize {
    let directory = format!("policy/shared-{}", raw::THALWEG_POLICY_VERSION);
    let map = MapHandle::from_pinned_path(bed.pin.join(directory).join("handshakes")).unwrap();
    (0..raw::THALWEG_POLICY_HANDSHAKES)
        .filter(|slot| {
            let bytes = map.lookup(&slot.to_ne_bytes(), MapFlags::ANY).unwrap();
            let bytes = bytes.unwrap();
            let cookie = std::mem::offset_of!(raw::thalweg_policy_handshake, cookie);
            bytes[cookie..cookie + 8] != [0; 8]
        })
        .count()
}

/// A flood starts; then real connections open.
fn flood(label: &str, backlog: &str) -> u64 {
    let bed = bed(label);
    let client = bed.pair.first_address(Side::Client);
    bed.ip(
        Side::Server,
        &format!("route add 198.18.0.0/15 via {client}"),
    );
    for (key, value) in [
        ("net.core.somaxconn", backlog),
        ("net.ipv4.tcp_syncookies", "1"),
    ] {
        bed.pair.set_sysctl(Side::Server, key, value).unwrap();
    }
    bed.apply(&one_rule(RULE));
    let mut server = server(&bed, backlog);
    assert_whole(&bed, &mut server, 10);
    let mut flood = bed.python(
        Side::Client,
        FLOOD,
        &[&bed.server_address(), "5001", "10000"],
    );
    assert_eq!(flood.line(), "flooded");
    assert_whole(&bed, &mut server, REAL);
    assert_eq!(bed.rule("all")["failures"], Value::Array(Vec::new()));
    flood.go_on();
    let meanwhile: usize = flood.line().parse().unwrap();
    assert!(
        meanwhile > REAL,
        "{meanwhile} SYNs beside {REAL} connections are no flood"
    );
    forgotten(&bed)
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_syn_flood_leaves_policies_whole() {
    if !privileged() {
        return;
    }
    // All of its SYNs are answered, and the kernel queries the policy for all.
    assert!(flood("flood", "65535") > 0, "the table was never full");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_syn_flood_that_is_answered_by_cookies_leaves_policies_whole() {
    if !privileged() {
        return;
    }
    // For SYNs answered by cookies the kernel makes no query.
    assert_eq!(flood("cookies", "128"), 0);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn connections_that_nobody_answers_leave_policies_whole() {
    if !privileged() {
        return;
    }
    let bed = bed("unanswered");
    bed.apply(&one_rule(RULE));
    let mut server = server(&bed, "128");
    // Each of them is in its handshake for longer than the test.
    let unanswered = r#"
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
held = []
for number in range(9000):
    connection = socket.socket()
    connection.setblocking(False)
    connection.connect_ex((sys.argv[1], 5001))
    held.append(connection)
marks = {connection.getsockopt(1, 36) for connection in held}
print(*marks)
sys.stdin.readline()
"#;
    bed.ip(
        Side::Client,
        "neigh add 10.0.0.99 lladdr 02:00:00:00:00:99 dev link0 nud permanent",
    );
    let mut unanswered = bed.python(Side::Client, unanswered, &["10.0.0.99"]);
    assert_eq!(unanswered.line(), "5", "what is set before the SYN");
    assert_whole(&bed, &mut server, 100);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn connections_that_fail_are_forgotten_at_once() {
    if !privileged() {
        return;
    }
    let bed = bed("fail");
    // Remembered as well: connections without a rule, and those with a `never` rule.
    bed.apply(&thalweg_testbed::policies::policy(
        "[[rule]]\nname = \"quick\"\nmatch.remote_port = 5009\n\
         set = { timeout_init = \"20ms\", syn_count = 1, sndbuf = \"1MB\" }\n\
         [[rule]]\nname = \"never\"\nmatch.remote_port = 5008\nnever = true\n",
    ));
    bed.ip(
        Side::Client,
        "neigh add 10.0.0.99 lladdr 02:00:00:00:00:99 dev link0 nud permanent",
    );
    // The sockets stay open, so the failure itself is tested.
    let program = r#"
import select, socket, sys
held = []
def connect(address, port, expected):
    for _ in range(150):
        connection = socket.socket()
        held.append(connection)
        if connection.connect_ex((address, port)) != expected:
            raise SystemExit(f"{address} {port}: not {expected}")
for port in 5007, 5008, 5009:
    connect(sys.argv[1], port, 111)
print("refused")
sys.stdin.readline()
socket.setdefaulttimeout(0)
for port in 5007, 5008, 5009:
    connect("10.0.0.99", port, 115)
print("unanswered")
sys.stdin.readline()
for connection in held[-450:-150]:
    connection.close()
print("closed")
sys.stdin.readline()
for connection in held[-150:]:
    assert select.select([], [connection], [], 20)[1]
print("timed out")
sys.stdin.readline()
"#;
    let mut client = bed.python(Side::Client, program, &[&bed.server_address()]);
    assert_eq!(client.line(), "refused");
    assert_eq!(remembered(&bed), 0);
    client.go_on();
    assert_eq!(client.line(), "unanswered");
    assert!(remembered(&bed) >= 300, "they were not remembered");
    client.go_on();
    assert_eq!(client.line(), "closed");
    assert!(remembered(&bed) <= 150);
    client.go_on();
    assert_eq!(client.line(), "timed out");
    assert_eq!(remembered(&bed), 0);
    assert_eq!(forgotten(&bed), 0);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_socket_that_connects_anew_gets_the_rule_of_its_new_peer() {
    if !privileged() {
        return;
    }
    let bed = bed("anew");
    let address = bed.server_address();
    bed.apply(&thalweg_testbed::policies::policy(
        "[[rule]]\nname = \"refused\"\nmatch.remote_port = 5009\n\
         set = { mark = 9, rwnd_init = 30 }\n\
         [[rule]]\nname = \"rest\"\nset = { mark = 5, rwnd_init = 20 }\n",
    ));
    let _sink = bed.sink(&address);
    let program = r#"
import socket, sys
connection = socket.socket()
try:
    connection.connect((sys.argv[1], 5009))
except ConnectionRefusedError:
    print(connection.getsockopt(1, 36))
connection.connect((sys.argv[1], 5001))
print(connection.getsockopt(1, 36))
"#;
    let said = bed.python(Side::Client, program, &[&address]).finish();
    assert_eq!(said, "9\n5\n");
    let rule = bed.rule("rest");
    assert_eq!(rule["matched"], 2, "both ends: {rule}");
}
