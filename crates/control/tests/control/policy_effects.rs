//! Interactions of policies' settings with each other, with the application's, and with the
//! kernel's.

use serde_json::Value;
use thalweg_lab::host::Side;

use thalweg_testbed::policies::{bed, one_rule, options_of, policy};
use thalweg_testbed::{Bed, plain, privileged};

const PRIORITY: (i32, i32) = (1, 12);
const TOS: (i32, i32) = (0, 1);

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_listener_of_a_mapped_address_has_the_rules_of_ipv4() {
    if !privileged() {
        return;
    }
    let bed = bed("mapped");
    let text = policy(
        "[[rule]]\nname = \"four\"\nmatch.local = \"0.0.0.0/0\"\non.listen = { mark = 4 }\n\
         [[rule]]\nname = \"six\"\nmatch.local = \"::/0\"\non.listen = { mark = 6 }\n",
    );
    bed.apply(&text);
    let program = r#"
import socket, sys
for family, address in ((socket.AF_INET, sys.argv[1]), (socket.AF_INET6, "::ffff:" + sys.argv[1]), (socket.AF_INET6, "::1")):
    listener = socket.socket(family)
    listener.bind((address, 0))
    listener.listen()
    print(listener.getsockopt(1, 36))
"#;
    let address = bed.server_address();
    let said = bed.python(Side::Server, program, &[&address]).finish();
    assert_eq!(said, "4\n4\n6\n");
    // As in the output of `policy test`.
    let file = bed.directory.path().join("policy.toml");
    let rule = |local: &str| {
        let file = file.to_str().unwrap();
        let answer = bed.json(&[
            "policy",
            "test",
            file,
            "--direction",
            "listener",
            "--local",
            local,
        ]);
        answer["outcomes"][0]["rule"]["name"].clone()
    };
    assert_eq!(rule(&format!("::ffff:{address}")), "four");
    assert_eq!(rule("::1"), "six");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_type_of_service_leaves_the_priority_that_the_rule_sets() {
    if !privileged() {
        return;
    }
    let bed = bed("priority");
    for set in ["priority = 3, tos = 72", "tos = 72, priority = 3"] {
        bed.apply(&one_rule(set));
        let (client, server) = options_of(&bed, &[TOS, PRIORITY]);
        assert_eq!((&client, &server), (&vec![72, 3], &vec![72, 3]), "{set}");
    }
    // The SYN's value is also that of the answer.
    bed.apply(&policy(
        "[[rule]]\nname = \"out\"\nmatch.direction = \"active\"\nset = { tos = 72 }\n\
         [[rule]]\nname = \"in\"\nmatch.direction = \"passive\"\n\
         set = { priority = 3, reflect_tos = true }\n",
    ));
    let (client, server) = options_of(&bed, &[TOS, PRIORITY]);
    assert_eq!(server, [72, 3]);
    // Without a priority of the rule the kernel derives it: TC_PRIO_BULK.
    assert_eq!(client, [72, 2]);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_the_application_sets_after_the_syn_stays() {
    if !privileged() {
        return;
    }
    // Time for the application to set an option before the connection is accepted.
    let mut options = plain("between");
    options.path.delay = serde_json::from_value(Value::from("200ms")).unwrap();
    options.wire = thalweg_lab::host::WireKind::Tun;
    let bed = Bed::new(&options, "");
    let _sink = bed.sink(&bed.server_address());
    bed.apply(&policy(
        "[[rule]]\nname = \"out\"\nmatch.direction = \"active\"\n\
         set = { user_timeout = \"25s\", mark = 5, keepalive = true }\n",
    ));
    let program = r#"
import select, socket, sys
connection = socket.socket()
connection.setblocking(False)
connection.connect_ex((sys.argv[1], 5001))
print(connection.getsockopt(6, 18), connection.getsockopt(1, 36))
connection.setsockopt(6, 18, 7000)
print(len(select.select([], [connection], [], 0)[1]))
select.select([], [connection], [])
print(connection.getsockopt(6, 18), connection.getsockopt(1, 36), connection.getsockopt(1, 9))
"#;
    for tries in 1.. {
        assert!(tries < 10, "the application was never in time");
        let client = bed.python(Side::Client, program, &[&bed.server_address()]);
        let said = client.finish();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], "25000 5");
        if lines[1] == "0" {
            assert_eq!(lines[2], "7000 5 1");
            let rule = bed.rule("out");
            let done = rule["done"].as_u64().unwrap();
            assert_eq!(done, 3 * rule["matched"].as_u64().unwrap(), "{rule}");
            return;
        }
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_clamp_holds_from_the_first_flight_on() {
    if !privileged() {
        return;
    }
    // Long enough that the first flight is sent before its first ACK.
    let mut options = plain("flight");
    options.path.delay = serde_json::from_value(Value::from("100ms")).unwrap();
    options.wire = thalweg_lab::host::WireKind::Tun;
    let bed = Bed::new(&options, "");
    let _sink = bed.sink(&bed.server_address());
    // Offsets in struct tcp_info: snd_cwnd at 80, unacked at 24, sent bytes at 120.
    let program = r#"
import socket, struct, sys
connection = socket.create_connection((sys.argv[1], 5001))
connection.setblocking(False)
connection.send(bytes(100000))
info = connection.getsockopt(6, 11, 256)
print(struct.unpack_from("I", info, 80)[0], struct.unpack_from("I", info, 24)[0])
"#;
    let flight = || {
        let client = bed.python(Side::Client, program, &[&bed.server_address()]);
        client.finish().trim().to_owned()
    };
    assert_eq!(flight(), "10 10");
    for set in [
        "cwnd_clamp = 3",
        "cwnd_clamp = 3, initial_window = 16",
        "initial_window = 16, cwnd_clamp = 3",
    ] {
        bed.apply(&one_rule(set));
        assert_eq!(flight(), "3 3", "{set}");
    }
    bed.apply(&one_rule("initial_window = 4, cwnd_clamp = 30"));
    assert_eq!(flight(), "4 4");
    assert_eq!(bed.rule("all")["failed"], 0);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_was_removed_is_gone_at_once() {
    if !privileged() {
        return;
    }
    let bed = bed("gone");
    let _sink = bed.sink(&bed.server_address());
    let program = r#"
import socket, sys
print("ready")
sys.stdin.readline()
print(socket.create_connection((sys.argv[1], 5001)).getsockopt(1, 36))
"#;
    for round in 0..5 {
        bed.apply(&one_rule("mark = 5"));
        let mut client = bed.python(Side::Client, program, &[&bed.server_address()]);
        assert_eq!(client.line(), "ready");
        assert!(thalweg_control::policy::remove(&bed.pin).unwrap());
        client.go_on();
        assert_eq!(client.line(), "0", "round {round}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn statistics_that_nobody_reads_are_counted() {
    if !privileged() {
        return;
    }
    let bed = bed("unread");
    bed.apply(&one_rule("statistics = \"0\""));
    let server = r#"
import socket
listener = socket.create_server(("", 5001))
print("listening")
connection = listener.accept()[0]
while connection.recv(1):
    connection.sendall(b"x")
"#;
    let mut server = bed.python(Side::Server, server, &[]);
    assert_eq!(server.line(), "listening");
    let client = r#"
import socket, sys
connection = socket.create_connection((sys.argv[1], 5001))
for _ in range(4000):
    connection.sendall(b"x")
    connection.recv(1)
"#;
    bed.python(Side::Client, client, &[&bed.server_address()])
        .finish();
    let missed = bed.json(&["policy", "show"])["missed"].clone();
    assert!(missed["statistics"].as_u64() > Some(1000), "{missed}");
    let shown = bed.thalweg(&["policy", "show"]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("of statistics lost"), "{text}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn failures_that_find_no_room_are_counted() {
    if !privileged() {
        return;
    }
    const RULES: usize = 2200;
    let bed = bed("manykinds");
    bed.ip(Side::Server, "link set lo up");
    let address = |number: usize| format!("127.1.{}.{}", number / 200, 1 + number % 200);
    let rules: String = (0..RULES)
        .map(|number| {
            format!(
                "[[rule]]\nname = \"r{number}\"\nmatch.remote = \"{}\"\n\
                 set = {{ congestion = \"nosuch\" }}\n\
                 on.connect = {{ congestion = \"nosuch\" }}\n",
                address(number)
            )
        })
        .collect();
    bed.apply(&policy(&rules));
    let program = r#"
import socket, sys
listener = socket.create_server(("", 5001))
for number in range(int(sys.argv[1])):
    with socket.create_connection((f"127.1.{number // 200}.{1 + number % 200}", 5001)) as connection:
        listener.accept()[0].close()
"#;
    bed.python(Side::Server, program, &[&RULES.to_string()])
        .finish();
    let report = bed.json(&["policy", "show"]);
    let sum = |of: &dyn Fn(&Value) -> u64| -> u64 {
        report["rules"].as_array().unwrap().iter().map(of).sum()
    };
    let failed = sum(&|rule| rule["failed"].as_u64().unwrap());
    let listed = sum(&|rule| rule["failures"].as_array().unwrap().len() as u64);
    assert_eq!(failed, 2 * RULES as u64);
    let missed = report["missed"]["failures"].as_u64().unwrap();
    assert!(missed > 0);
    assert_eq!(listed + missed, failed);
}
