//! Policies on real connections: each effect is seen on the wire or on the socket.

use std::time::Instant;

use serde_json::Value;
use thalweg_lab::host::Side;
use thalweg_testbed::policies::{bed, one_rule, options_of, policy};
use thalweg_testbed::{Bed, Traffic, plain, privileged};

/// Prints "ready", and then each TCP packet of a host's link as a line of JSON.
const CAPTURE: &str = r#"
import json, socket, struct, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 25)
s.settimeout(15)
s.bind(("link0", 0))
print("ready")
while True:
    try:
        ip, (_, _, kind, _, _) = s.recvfrom(1 << 17)
    except OSError:
        break
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    if ip[0] >> 4 == 4:
        tos, protocol, tcp = ip[1], ip[9], ip[(ip[0] & 15) * 4:struct.unpack(">H", ip[2:4])[0]]
    else:
        tos, protocol, tcp = (ip[0] << 4 | ip[1] >> 4) & 255, ip[6], ip[40:]
    if protocol != 6:
        continue
    offset = (tcp[12] >> 4) * 4
    print(json.dumps({
        "time": now, "sent": kind == 4, "tos": tos, "flags": tcp[13], "payload": len(tcp) - offset,
        "window": struct.unpack(">H", tcp[14:16])[0], "options": tcp[20:offset].hex(),
        "seq": struct.unpack(">I", tcp[4:8])[0], "ack": struct.unpack(">I", tcp[8:12])[0],
        "port": struct.unpack(">H", tcp[0:2])[0], "to": struct.unpack(">H", tcp[2:4])[0],
    }))
"#;

const SYN: u64 = 0x02;
const ACK: u64 = 0x10;
const ECE_CWR: u64 = 0xc0;

fn ipv6(label: &str) -> Bed {
    let mut options = plain(label);
    options.path.family = thalweg_lab::scenario::Family::Ipv6;
    Bed::new(&options, "")
}

fn capture(bed: &Bed, side: Side) -> Traffic {
    let mut capture = bed.python(side, CAPTURE, &[]);
    assert_eq!(capture.line(), "ready");
    capture
}

/// Packets up to and including the wanted one.
fn until(capture: &mut Traffic, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut packets = Vec::new();
    let deadline = Instant::now() + thalweg_testbed::PATIENCE;
    loop {
        let line = capture.line();
        let packet: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("{error}: {line:?} after {packets:?}"));
        let found = wanted(&packet);
        packets.push(packet);
        if found {
            return packets;
        }
        assert!(Instant::now() < deadline, "not seen among {packets:?}");
    }
}

fn flags(packet: &Value) -> u64 {
    packet["flags"].as_u64().unwrap()
}

fn is_syn(packet: &Value) -> bool {
    flags(packet) & (SYN | ACK) == SYN
}

fn is_syn_ack(packet: &Value) -> bool {
    flags(packet) & (SYN | ACK) == SYN | ACK
}

fn seconds_between(first: &Value, second: &Value) -> f64 {
    second["time"].as_f64().unwrap() - first["time"].as_f64().unwrap()
}

/// The congestion control of both ends of a new connection, and its send buffer.
fn sockets_of(bed: &Bed, client: &str) -> Vec<String> {
    bed.python(Side::Client, client, &[&bed.server_address(), "5001"])
        .finish()
        .lines()
        .map(str::to_owned)
        .collect()
}

pub fn a_lost_syn_is_sent_again_when_the_rule_says() {
    let bed = bed("synrto");
    bed.apply(&policy(
        "[[rule]]\nname = \"near\"\nmatch.remote = \"10.0.0.96/28\"\nset = { timeout_init = \"60ms\" }\n",
    ));
    // No host has these addresses.
    let connect = "import socket, sys\ns = socket.socket()\ns.settimeout(3)\ntry:\n    s.connect((sys.argv[1], 9))\nexcept OSError:\n    pass\n";
    let gap = |address: &str| {
        let mut capture = capture(&bed, Side::Client);
        let _client = bed.python(Side::Client, connect, &[address]);
        let first = until(&mut capture, is_syn).pop().unwrap();
        let second = until(&mut capture, is_syn).pop().unwrap();
        seconds_between(&first, &second)
    };
    let (near, far) = (gap("10.0.0.99"), gap("10.0.0.200"));
    println!("{near} s, {far} s");
    // A timer ends with the next tick, and ticks are 4 ms; one of more than 63 ticks is rounded to
    // eight ticks.
    assert!((0.06..0.066).contains(&near), "{near} s");
    // RFC 6298's one second.
    assert!((1.0..1.037).contains(&far), "{far} s");
    assert_eq!(bed.rule("near")["matched"], 1);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_first_windows_are_those_of_the_rule() {
    if !privileged() {
        return;
    }
    // Long enough that the first flight is sent before its first ACK.
    let mut options = plain("windows");
    options.path.delay = serde_json::from_value(Value::from("40ms")).unwrap();
    options.wire = thalweg_lab::host::WireKind::Tun;
    let bed = Bed::new(&options, "");
    let _sink = bed.sink(&bed.server_address());
    let flight = || {
        let mut capture = capture(&bed, Side::Client);
        bed.connect(&bed.server_address(), 1, 400_000);
        let packets = until(&mut capture, |packet| {
            packet["sent"] == false
                && flags(packet) & SYN == 0
                && packet["ack"].as_u64().unwrap() != 0
        });
        let syn = packets.iter().find(|packet| is_syn(packet)).unwrap();
        let syn_ack = packets.iter().find(|packet| is_syn_ack(packet)).unwrap();
        let sent: u64 = packets
            .iter()
            .filter(|packet| packet["sent"] == true)
            .map(|packet| packet["payload"].as_u64().unwrap())
            .sum();
        let window = |packet: &Value| packet["window"].as_u64().unwrap();
        (window(syn), window(syn_ack), sent.div_ceil(1448))
    };
    let (syn, syn_ack, before) = flight();
    assert!(syn > 60_000 && syn_ack > 60_000, "{syn} {syn_ack}");
    assert_eq!(before, 10, "the kernel's own initial window");
    bed.apply(&one_rule("rwnd_init = 20, initial_window = 16"));
    let (syn, syn_ack, after) = flight();
    // The SYN-ACK accounts for the peer's timestamps, 12 bytes of each packet.
    assert_eq!((syn, syn_ack), (20 * 1460, 20 * 1448));
    assert_eq!(after, 16);
    assert_eq!(bed.rule("all")["failed"], 0);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn options_of_sockets_are_set_on_both_ends() {
    if !privileged() {
        return;
    }
    let bed = ipv6("options");
    bed.apply(&one_rule(
        "sndbuf = \"150kB\", rcvbuf = \"160kB\", keepalive = true, keepalive_idle = \"30s\", \
         keepalive_interval = \"5s\", keepalive_count = 3, user_timeout = \"25s\", \
         notsent_lowat = \"16kB\", max_pacing_rate = \"80mbit\", priority = 3, mark = 99, \
         nodelay = true, thin_linear_timeouts = true, tclass = 40, window_clamp = \"100kB\", \
         rcvlowat = \"1kB\"",
    ));
    let wanted = [
        ((1, 7), 300_000),
        ((1, 8), 320_000),
        ((1, 9), 1),
        ((6, 4), 30),
        ((6, 5), 5),
        ((6, 6), 3),
        ((6, 18), 25_000),
        ((6, 25), 16_000),
        ((1, 47), 10_000_000),
        ((1, 12), 3),
        ((1, 36), 99),
        ((6, 1), 1),
        ((6, 16), 1),
        ((41, 67), 40),
        ((6, 10), 100_000),
        ((1, 18), 1_000),
    ];
    let options: Vec<(i32, i32)> = wanted.iter().map(|(option, _)| *option).collect();
    let values: Vec<i64> = wanted.iter().map(|(_, value)| *value).collect();
    let (client, server) = options_of(&bed, &options);
    let rule = bed.rule("all");
    assert_eq!(client, values, "{rule}");
    assert_eq!(server, values, "{rule}");
    assert_eq!(
        (&rule["matched"], &rule["failed"]),
        (&2.into(), &0.into()),
        "{rule}"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn further_options_have_their_values() {
    if !privileged() {
        return;
    }
    let bed = bed("further");
    bed.apply(&one_rule(
        "max_segment = 1000, syn_count = 3, tos = 72, tx_rehash = false, rto_max = \"5s\"",
    ));
    let wanted = [((6, 7), 3), ((0, 1), 72), ((1, 74), 0), ((6, 44), 5_000)];
    let options: Vec<(i32, i32)> = wanted.iter().map(|(option, _)| *option).collect();
    let values: Vec<i64> = wanted.iter().map(|(_, value)| *value).collect();
    let (client, _) = options_of(&bed, &options);
    assert_eq!(client, values, "{}", bed.rule("all"));
}

/// A field of `struct tcp_info` in Python: format and offset.
const INFO: &str = r#"
import socket, struct, sys
def info(connection, offset):
    return struct.unpack_from("I", connection.getsockopt(6, 11, 256), offset)[0]
"#;

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_window_never_exceeds_its_clamp() {
    if !privileged() {
        return;
    }
    let bed = bed("clamp");
    let _sink = bed.sink(&bed.server_address());
    // snd_cwnd is at offset 80.
    let program = format!(
        "{INFO}
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
most = 0
for _ in range(300):
    connection.sendall(bytes(100000))
    most = max(most, info(connection, 80))
print(most)
"
    );
    let most = || sockets_of(&bed, &program)[0].parse::<u32>().unwrap();
    let free = most();
    assert!(free > 12, "cubic stayed at {free}");
    bed.apply(&one_rule("cwnd_clamp = 12"));
    let clamped = most();
    assert!(clamped <= 12, "{clamped}");
}

pub fn retransmission_and_acknowledgement_times_have_their_bounds() {
    let bed = bed("minima");
    // A reader would acknowledge at once.
    let server = "import socket\nlistener = socket.create_server((\"\", 5001))\nprint(\"listening\")\nheld = [listener.accept() for _ in range(3)]\n";
    let mut server = bed.python(Side::Server, server, &[]);
    assert_eq!(server.line(), "listening");
    // tcpi_rto is at offset 8. One small message per 60 ms, to which only ACKs come back.
    let program = format!(
        "{INFO}
import time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.setsockopt(6, 1, 1)
for _ in range(40):
    connection.sendall(b'x')
    time.sleep(0.06)
print(info(connection, 8))
"
    );
    let run = || {
        let mut capture = capture(&bed, Side::Client);
        let rto: u32 = sockets_of(&bed, &program)[0].parse().unwrap();
        let packets = until(&mut capture, |packet| flags(packet) & 1 != 0);
        let data: Vec<&Value> = packets.iter().filter(|p| p["payload"] == 1).collect();
        let mut delays: Vec<f64> = data
            .iter()
            .filter_map(|sent| {
                let seq = sent["seq"].as_u64().unwrap();
                let ack = packets
                    .iter()
                    .find(|p| p["sent"] == false && p["ack"].as_u64() == Some(seq + 1))?;
                Some(seconds_between(sent, ack))
            })
            .collect();
        delays.sort_by(f64::total_cmp);
        // The first 16 are acknowledged at once.
        (rto, delays[delays.len() * 3 / 4])
    };
    let (rto, delay) = run();
    println!("{rto} us, {delay} s");
    // Delayed by TCP_DELACK_MIN and a tick; TCP_RTO_MIN plus the resulting round-trip time.
    assert!((0.04..0.046).contains(&delay), "{delay} s");
    assert!((200_000..=248_000).contains(&rto), "{rto} us");
    bed.apply(&one_rule("rto_min = \"20ms\", delack_max = \"8ms\""));
    let (rto, delay) = run();
    println!("{rto} us, {delay} s");
    assert!((0.008..0.014).contains(&delay), "{delay} s");
    assert!((28_000..=36_000).contains(&rto), "{rto} us");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn ecn_is_asked_for_by_both_ends() {
    if !privileged() {
        return;
    }
    let bed = bed("ecn");
    for side in [Side::Client, Side::Server] {
        bed.pair.set_sysctl(side, "net.ipv4.tcp_ecn", "0").unwrap();
    }
    let _sink = bed.sink(&bed.server_address());
    let handshake = || {
        let mut capture = capture(&bed, Side::Client);
        bed.connect(&bed.server_address(), 1, 0);
        let packets = until(&mut capture, is_syn_ack);
        let syn = packets.iter().find(|packet| is_syn(packet)).unwrap();
        (
            flags(syn) & ECE_CWR,
            flags(packets.last().unwrap()) & ECE_CWR,
        )
    };
    assert_eq!(handshake(), (0, 0));
    bed.apply(&one_rule("needs_ecn = true"));
    assert_eq!(handshake(), (0xc0, 0x40));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_answer_has_the_type_of_service_of_the_syn() {
    if !privileged() {
        return;
    }
    for bed in [bed("tos4"), ipv6("tos6")] {
        bed.apply(&policy(
            "[[rule]]\nname = \"all\"\nmatch.direction = \"passive\"\nset = { reflect_tos = true }\n",
        ));
        let server = r#"
import socket
listener = socket.create_server(("::", 5001), family=socket.AF_INET6, dualstack_ipv6=True)
print("listening")
connection = listener.accept()[0]
connection.sendall(b"x" * 100)
connection.recv(1)
"#;
        let mut server = bed.python(Side::Server, server, &[]);
        assert_eq!(server.line(), "listening");
        let client = r#"
import socket, sys
six = ":" in sys.argv[1]
connection = socket.socket(socket.AF_INET6 if six else socket.AF_INET)
connection.setsockopt(41 if six else 0, 67 if six else 1, 0x48)
connection.connect((sys.argv[1], 5001))
connection.recv(200)
"#;
        let mut capture = capture(&bed, Side::Client);
        bed.python(Side::Client, client, &[&bed.server_address()])
            .finish();
        let packets = until(&mut capture, |packet| {
            packet["sent"] == false && packet["payload"] == 100
        });
        assert_eq!(packets.last().unwrap()["tos"], 0x48, "{}", bed.rule("all"));
    }
}

pub fn statistics_come_each_second() {
    let bed = bed("statistics");
    bed.apply(&policy(
        "[[rule]]\nname = \"all\"\nmatch.direction = \"active\"\nset = { statistics = \"1s\" }\n",
    ));
    let _sink = bed.sink(&bed.server_address());
    let client = "import socket, sys, time\nc = socket.create_connection((sys.argv[1], 5001))\nend = time.monotonic() + 4.5\nwhile time.monotonic() < end:\n    c.sendall(bytes(10000))\n    time.sleep(0.01)\n";
    let _client = bed.python(Side::Client, client, &[&bed.server_address()]);
    let output = bed.thalweg(&[
        "--json",
        "policy",
        "statistics",
        "--limit",
        "4",
        "--seconds",
        "8",
    ]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let reports: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(reports.len(), 4, "{text}");
    for pair in reports.windows(2) {
        let ms = pair[1]["time_ms"].as_i64().unwrap() - pair[0]["time_ms"].as_i64().unwrap();
        println!("{ms} ms");
        // By the first ACK after the second; data leaves every 10 ms.
        assert!((1000..=1013).contains(&ms), "{ms} ms between {pair:?}");
        let grown = |name: &str| pair[1][name].as_u64().unwrap() > pair[0][name].as_u64().unwrap();
        assert!(grown("bytes_acked") && grown("delivered"), "{pair:?}");
    }
    assert_eq!(reports[0]["remote"], bed.server_address().as_str());
    assert_eq!(reports[0]["remote_port"], 5001);
}

pub fn a_rate_has_its_cap() {
    let bed = bed("pacing");
    bed.apply(&one_rule("max_pacing_rate = \"20mbit\""));
    let _sink = bed.sink(&bed.server_address());
    let started = Instant::now();
    bed.connect(&bed.server_address(), 1, 5_000_000);
    let rate = 5_000_000.0 * 8.0 / started.elapsed().as_secs_f64() / 1e6;
    println!("{rate} Mbit/s");
    // Two seconds, and a tenth in which Python starts; the first window is not paced.
    assert!((18.5..20.06).contains(&rate), "{rate} Mbit/s");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_header_option_goes_both_ways_and_harms_nobody() {
    if !privileged() {
        return;
    }
    let bed = bed("option");
    let _before = bed.sink(&bed.server_address());
    bed.apply(&policy(
        "[[rule]]\nname = \"active\"\nmatch = { direction = \"active\" }\n\
         set = { send_option = 0x11223344, read_option = true, statistics = \"10ms\" }\n\
         [[rule]]\nname = \"passive\"\nmatch = { direction = \"passive\", local_port = 5004 }\n\
         set = { send_option = 0x55667788, read_option = true, statistics = \"10ms\" }\n",
    ));
    const OPTION: &str = "fd085457";
    // A listener older than the policy neither reads nor answers the option, and works.
    let mut wire = capture(&bed, Side::Client);
    bed.connect(&bed.server_address(), 1, 100_000);
    let packets = until(&mut wire, |packet| flags(packet) & 1 != 0);
    let with = |packet: &&Value| packet["options"].as_str().unwrap().contains(OPTION);
    let sent: Vec<&Value> = packets.iter().filter(with).collect();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert!(
        is_syn(sent[0])
            && sent[0]["options"]
                .as_str()
                .unwrap()
                .contains("fd08545711223344")
    );

    let server = "import socket\nl = socket.create_server((\"\", 5004))\nprint(\"listening\")\nc = l.accept()[0]\nwhile True:\n    d = c.recv(1 << 20)\n    if not d:\n        break\n    c.sendall(d)\nc.close()\n";
    let mut server = bed.python(Side::Server, server, &[]);
    assert_eq!(server.line(), "listening");
    let client = "import socket, sys\nc = socket.create_connection((sys.argv[1], 5004))\nfor _ in range(50):\n    c.sendall(bytes(1000))\n    left = 1000\n    while left:\n        left -= len(c.recv(left))\nc.close()\n";
    let mut wire = capture(&bed, Side::Client);
    bed.python(Side::Client, client, &[&bed.server_address()])
        .finish();
    server.finish();
    let packets = until(&mut wire, |packet| flags(packet) & 1 != 0);
    let sent: Vec<&Value> = packets.iter().filter(with).collect();
    assert_eq!(sent.len(), 2, "in the SYN and the SYN-ACK alone: {sent:?}");
    assert!(
        is_syn_ack(sent[1])
            && sent[1]["options"]
                .as_str()
                .unwrap()
                .contains("fd08545755667788")
    );

    let output = bed.thalweg(&["--json", "policy", "statistics", "--seconds", "1"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let received = |port: u16, local: bool| {
        text.lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|flow| {
                let field = if local { "local_port" } else { "remote_port" };
                flow[field] == port
            })
            .map(|flow| flow["received_option"].clone())
            .next_back()
    };
    assert_eq!(received(5004, false), Some(0x5566_7788.into()), "{text}");
    assert_eq!(received(5004, true), Some(0x1122_3344.into()), "{text}");
    assert_eq!(received(5001, false), Some(Value::Null), "{text}");
}
