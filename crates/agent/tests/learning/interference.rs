//! Other programs on the same sockets: what they set after the learner, and callbacks that they want.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

use libbpf_rs::{Link, Object, ObjectBuilder};
use thalweg_lab::host::{PairOptions, Side};
use thalweg_lab::units::Probability;

use thalweg_testbed::{Bed, COLLECTOR, Traffic, plain, privileged, wait_for};

/// Attaches `setter` to the bed's cgroup, after the agent's program.
pub fn attach_setter(bed: &Bed, flag: &str) -> (Object, Link) {
    attach(
        bed,
        &thalweg_testbed::compile("setter", bed.directory.path(), "setter.bpf.o", &[flag]),
    )
}

/// Attaches the program of an object to the bed's cgroup.
pub fn attach(bed: &Bed, file: &Path) -> (Object, Link) {
    let object = ObjectBuilder::default().open_file(file);
    let object = object.unwrap().load().unwrap();
    let cgroup = fs::File::open(bed.pair.cgroup_path()).unwrap();
    let link = object
        .progs_mut()
        .next()
        .unwrap()
        .attach_cgroup(cgroup.as_raw_fd())
        .unwrap();
    (object, link)
}

fn problems(bed: &Bed) -> String {
    bed.json(&["status"])["problems"].to_string()
}

/// What another program sets is neither scored nor told as the arm's; it is counted and named.
fn is_named(label: &str, flag: &str) {
    let bed = Bed::running(label, "[arms]\nallow = [\"cubic\", \"bbr\"]\n");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("closed", 2);
    let (measured, overridden) = (bed.measured(), bed.counter("skipped_overridden"));
    assert_eq!(overridden, 0);
    let setter = attach_setter(&bed, flag);
    bed.connect(&address, 15, 200_000);
    // An end without an RTT sample of its own keeps what it has.
    let other = bed.counter_reaches("skipped_overridden", 15);
    assert_eq!(bed.measured(), measured, "scored for what did not run");
    assert_eq!(
        bed.host(&address).map_or(0, |host| {
            host["arms"]
                .as_array()
                .unwrap()
                .iter()
                .map(|arm| arm["scored"].as_u64().unwrap())
                .sum()
        }),
        measured
    );
    let said = wait_for("a problem", || {
        let said = problems(&bed);
        said.contains("another congestion control").then_some(said)
    });
    for part in ["(reno)", "setter (number "] {
        assert!(said.contains(part), "{part} not in: {said}");
    }
    let text = bed.thalweg(&["status"]).stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains(&format!("{other} with another CC")), "{text}");
    drop(setter);
    // Once they are few among many, it is over.
    bed.connect(&address, 400, 0);
    wait_for("its end", || {
        (!problems(&bed).contains("another congestion control")).then_some(())
    });
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn congestion_control_set_by_another_program_at_establishment_is_not_scored_and_named() {
    if privileged() {
        is_named("setter", "-DAT_ESTABLISHED");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn congestion_control_set_by_another_program_with_an_rtt_sample_is_not_scored_and_named() {
    if privileged() {
        is_named("setterrtt", "-DAT_RTT");
    }
}

/// Sends for some seconds; prints how many segments it retransmitted.
const RETRANSMITTING: &str = r#"
import socket, struct, sys, time
connection = socket.create_connection((sys.argv[1], 5001))
retransmitted = lambda: struct.unpack_from("I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0]
while retransmitted() < 200:
    connection.sendall(bytes(100000))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(retransmitted())
"#;

/// A policy's callbacks at retransmissions all come, whatever the loss rule wants.
fn callbacks_stay(label: &str, settings: &str) {
    let mut options: PairOptions = plain(label);
    options.path.loss = Probability::from_fraction(0.05);
    let mut bed = Bed::new(&options, settings);
    bed.start();
    // A callback is for one segment.
    let device = bed.device(Side::Client, &bed.server_address());
    bed.ip(
        Side::Client,
        &format!("link set dev {device} gso_max_segs 1"),
    );
    let mut reader: Traffic = bed.python(Side::Server, COLLECTOR, &[]);
    assert_eq!(reader.line(), "listening");
    bed.apply(
        "name = \"own\"\n[[rule]]\nname = \"lost\"\nmatch.remote_port = 5001\n\
         [rule.on.retransmission]\npriority = 3\n",
    );
    let address = bed.server_address();
    let mut all = 0;
    for _ in 0..3 {
        let said = bed.python(Side::Client, RETRANSMITTING, &[&address]);
        all += said.finish().trim().parse::<u64>().unwrap();
    }
    let shown = bed.json(&["policy", "show"]);
    let done = shown["rules"][0]["done"].as_u64().unwrap();
    assert!(
        done * 10 >= all * 9,
        "{done} callbacks of {all} retransmissions"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn retransmission_callbacks_of_a_policy_outlast_the_loss_rule_of_classic() {
    if privileged() {
        callbacks_stay(
            "callclassic",
            "mode = \"classic\"\n[arms]\nallow = [\"cubic\", \"reno\"]\n",
        );
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn retransmission_callbacks_of_a_policy_outlast_the_loss_rule() {
    if privileged() {
        callbacks_stay("callthalweg", "[arms]\nallow = [\"cubic\", \"reno\"]\n");
    }
}

/// A connection by MPTCP that chooses its congestion control before or after it connects, or at the
/// listener; prints what its subflows have when they have sent.
const MPTCP: &str = r#"
import socket, sys
address, when, name = sys.argv[1], sys.argv[2], sys.argv[3].encode()
def subflow():
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener = subflow()
if when == "listener":
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
listener.bind((address, 5003))
listener.listen()
print("listening", flush=True)
while True:
    connection = listener.accept()[0]
    while connection.recv(1 << 20):
        pass
    if when == "listener":
        connection.sendall(bytes(1000000))
    connection.close()
"#;
const MPTCP_CLIENT: &str = r#"
import socket, sys
address, when, name, count = sys.argv[1], sys.argv[2], sys.argv[3].encode(), int(sys.argv[4])
for _ in range(count):
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    if when == "before":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
    connection.connect((address, 5003))
    if when == "after":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
    connection.sendall(bytes(1000000))
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(1 << 20):
        pass
    print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode())
"#;

/// Starts a listener of MPTCP.
fn listen_mptcp(bed: &Bed, when: &str) -> Traffic {
    let address = bed.server_address();
    let mut server = bed.python(Side::Server, MPTCP, &[&address, when, "cubic"]);
    assert_eq!(server.line(), "listening");
    server
}

fn connect_mptcp(bed: &Bed, when: &str, name: &str, count: u64) {
    let (address, number) = (bed.server_address(), count.to_string());
    bed.python(Side::Client, MPTCP_CLIENT, &[&address, when, name, &number])
        .finish();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn congestion_control_chosen_on_an_mptcp_socket_stays_and_is_not_scored() {
    if !privileged() {
        return;
    }
    if !fs::exists("/proc/sys/net/mptcp/enabled").unwrap() {
        thalweg_testbed::skip("this kernel has no MPTCP");
        return;
    }
    // The name of the default: no comparison of names could tell.
    for (when, ends) in [("before", 3), ("listener", 3)] {
        let bed = Bed::running("mptcp", "[arms]\nallow = [\"cubic\", \"reno\"]\n");
        let _server = listen_mptcp(&bed, when);
        connect_mptcp(&bed, when, "cubic", 3);
        bed.counter_reaches("closed", 3);
        assert_eq!(bed.counter("app_owned"), ends, "{when}");
    }
    let bed = Bed::running("mptcpafter", "[arms]\nallow = [\"cubic\", \"reno\"]\n");
    let _server = listen_mptcp(&bed, "never");
    connect_mptcp(&bed, "after", "cubic", 3);
    bed.counter_reaches("closed", 6);
    assert_eq!(bed.counter("scored"), 0);
    assert_eq!(bed.counter("skipped_not_tracked"), 3);
    // Without a choice it is a connection like others.
    connect_mptcp(&bed, "never", "cubic", 3);
    bed.counter_reaches("closed", 12);
    assert!(bed.measured() >= 2, "{}", bed.json(&["status"]));
}
