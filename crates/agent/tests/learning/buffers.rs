//! Limits of buffers follow real connections over a delayed path, and go back.

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_lab::host::{Side, WireKind};

use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, Traffic, plain, privileged, thalweg, wait_for};

const ENABLED: &str = "[arms]\nallow = [\"cubic\"]\n[buffers]\nenabled = true\n";
const DISABLED: &str = "[arms]\nallow = [\"cubic\"]\n";
/// Numbers of both sysctls before the agent.
const FIRST: &str = "4096\t65536\t131072";
const FIRST_BYTES: u64 = 131_072;
/// Program of a side that is not limited, in the same form.
const AMPLE: &str = "4096\t65536\t8388608";
/// The path carries 2.5 MB/s with 40 ms: four times as much is 400 kB, and 20 % for its queue at the
/// first round trip. Limits are multiples of 64 KiB.
const NEEDED_BYTES: u64 = 8 * 65_536;

/// Sends without end, and for each line of input prints the acknowledged bytes.
const ENDLESS: &str = r#"
import socket, struct, sys, threading
connection = socket.create_connection((sys.argv[1], 5001))
over = threading.Event()
def send():
    while not over.is_set():
        connection.sendall(bytes(20000))
sender = threading.Thread(target=send)
sender.start()
print("up")
for line in sys.stdin:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    print(struct.unpack_from("Q", info, 120)[0])
over.set()
sender.join()
"#;

/// Makes connections, sends 18 kB on each, and keeps them. Arguments: address, number.
const STALLING: &str = r#"
import socket, sys
connections = []
for _ in range(int(sys.argv[2])):
    connection = socket.create_connection((sys.argv[1], 5002))
    connection.sendall(bytes(18000))
    connections.append(connection)
print("sent")
sys.stdin.read()
"#;

/// Accepts connections to port 5002 without reading from any.
const STALLED: &str = r#"
import socket, sys
listener = socket.socket()
listener.bind(("", 5002))
listener.listen(4096)
print("listening")
sys.stdin.read()
"#;

/// A path of 20 ms each way and 20 Mbit/s. The buffers of a side may have [`FIRST`].
fn bed(label: &str, settings: &str, limited: Side) -> Bed {
    bed_with_queue(label, settings, limited, "50kb")
}

fn bed_with_queue(label: &str, settings: &str, limited: Side, queue: &str) -> Bed {
    bed_on(label, settings, limited, queue, WireKind::Veth)
}

fn bed_on(label: &str, settings: &str, limited: Side, queue: &str, wire: WireKind) -> Bed {
    let mut options = plain(label);
    options.wire = wire;
    options.path.delay = serde_json::from_value(json!("20ms")).unwrap();
    options.path.rate = serde_json::from_value(json!("20mbit")).unwrap();
    options.path.queue = serde_json::from_value(json!(queue)).unwrap();
    let mut bed = Bed::new(&options, settings);
    for side in [Side::Client, Side::Server] {
        let numbers = if side == limited { FIRST } else { AMPLE };
        for setting in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
            bed.pair.set_sysctl(side, setting, numbers).unwrap();
        }
    }
    bed.start();
    bed
}

/// A bed with a flow from a limited client.
fn running(label: &str, settings: &str) -> (Bed, Traffic, Traffic) {
    let bed = bed(label, settings, Side::Client);
    let sink = bed.sink(&bed.server_address());
    let flow = endless(&bed);
    (bed, sink, flow)
}

fn endless(bed: &Bed) -> Traffic {
    let mut flow = bed.python(Side::Client, ENDLESS, &[&bed.server_address()]);
    assert_eq!(flow.line(), "up");
    flow
}

/// Bytes per second of a flow, over a second.
fn rate(flow: &mut Traffic) -> f64 {
    let mut acked = || -> f64 {
        flow.go_on();
        flow.line().parse().unwrap()
    };
    let (before, began) = (acked(), std::time::Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    (acked() - before) / began.elapsed().as_secs_f64()
}

/// The numbers of `tcp_rmem` or `tcp_wmem`.
fn numbers(bed: &Bed, side: Side, name: &str) -> String {
    let mut command = bed.pair.command_in(side, "cat").unwrap();
    let output = command.arg(format!("/proc/sys/net/ipv4/{name}")).output();
    String::from_utf8(output.unwrap().stdout)
        .unwrap()
        .trim_end()
        .to_owned()
}

/// Waits until the third number is above the first limit; checks that the others stay.
fn raised(bed: &Bed, side: Side, name: &str) -> u64 {
    wait_for("a raised limit", || {
        let found = numbers(bed, side, name);
        let (others, limit) = found.rsplit_once('\t').unwrap();
        assert!(["4096\t65536", "4096\t16384"].contains(&others), "{found}");
        (!is_first_text(&found)).then(|| limit.parse().unwrap())
    })
}

fn is_first_text(numbers: &str) -> bool {
    [FIRST, SHORT, AMPLE].contains(&numbers)
}

fn is_first(bed: &Bed, what: &str) {
    for side in [Side::Client, Side::Server] {
        for name in ["tcp_rmem", "tcp_wmem"] {
            let found = numbers(bed, side, name);
            assert!(is_first_text(&found), "{what}: {name} is {found}");
        }
    }
}

fn send_limit_rises_to_the_need_of_the_path_until_the_agent_ends() {
    let (mut bed, _sink, mut flow) = running("bufsend", DISABLED);
    let before = rate(&mut flow);
    assert_eq!(numbers(&bed, Side::Client, "tcp_wmem"), FIRST);
    assert_eq!(bed.json(&["status"])["buffers"], Value::Null);
    bed.configure(ENABLED);
    assert_eq!(bed.json(&["reload"])["changed"], true);
    let new = endless(&bed);
    raised(&bed, Side::Client, "tcp_wmem");
    new.finish();
    let after = wait_for("the path's rate", || {
        Some(rate(&mut flow)).filter(|it| *it > 2.2e6)
    });
    println!("{before} B/s, raised {after}");
    assert!(before < 2.0e6, "{before}");
    // Nothing limits any more: the limit does not grow with the queue.
    let limit = raised(&bed, Side::Client, "tcp_wmem");
    assert!((3 * 65_536..=NEEDED_BYTES).contains(&limit), "{limit}");
    assert_eq!(numbers(&bed, Side::Client, "tcp_rmem"), FIRST);
    let said = String::from_utf8(bed.thalweg(&["status"]).stdout).unwrap();
    assert!(
        said.contains("raised in 1 of 2 network namespaces"),
        "{said}"
    );
    let metrics = String::from_utf8(bed.thalweg(&["metrics"]).stdout).unwrap();
    assert!(
        metrics.contains("thalweg_buffer_namespaces_raised 1"),
        "{metrics}"
    );
    assert!(bed.end(Signal::SIGTERM).success());
    is_first(&bed, "after the end");
    assert!(!bed.pin.join("buffers").exists());
}

fn receive_limit_rises_for_a_reader_that_keeps_up() {
    let bed = bed("bufreceive", ENABLED, Side::Server);
    let _sink = bed.sink(&bed.server_address());
    let _flow = endless(&bed);
    raised(&bed, Side::Server, "tcp_rmem");
    assert_eq!(numbers(&bed, Side::Server, "tcp_wmem"), FIRST);
    let listed = bed.json(&["buffers"]);
    let mut namespaces = listed["namespaces"].as_array().unwrap().iter();
    let found = namespaces.find(|it| it["receive"]["first_bytes"] == FIRST_BYTES);
    let found = found.unwrap_or_else(|| panic!("{listed}"));
    assert!(found["receive"]["now_bytes"].as_u64() > Some(FIRST_BYTES));
    // A new session begins with the first limits, and one without the feature keeps them.
    bed.configure(DISABLED);
    assert_eq!(bed.json(&["reload"])["changed"], true);
    is_first(&bed, "after the reload");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn killed_agents_limits_go_back_by_detach_and_at_the_next_start() {
    if !privileged() {
        return;
    }
    let (mut bed, _sink) = short("bufkill", ENABLED);
    bed.start();
    let _flow = endless(&bed);
    raised(&bed, Side::Client, "tcp_wmem");
    assert_eq!(bed.json(&["detach"])["left"], json!([]));
    bed.reap();
    is_first(&bed, "after a detach");
    assert!(!bed.pin.exists());
    bed.start();
    let second = endless(&bed);
    raised(&bed, Side::Client, "tcp_wmem");
    bed.end(Signal::SIGKILL);
    raised(&bed, Side::Client, "tcp_wmem");
    assert_eq!(bed.json(&["detach"])["left"], json!([]));
    is_first(&bed, "after a detach without an agent");
    assert!(!bed.pin.exists());
    second.finish();
    bed.start();
    let _third = endless(&bed);
    raised(&bed, Side::Client, "tcp_wmem");
    bed.end(Signal::SIGKILL);
    bed.configure(DISABLED);
    bed.start();
    is_first(&bed, "after a start");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn limit_of_somebody_else_stays() {
    if !privileged() {
        return;
    }
    let (mut bed, _sink) = short("bufforeign", ENABLED);
    bed.start();
    let _flow = endless(&bed);
    raised(&bed, Side::Client, "tcp_wmem");
    let theirs = "4096\t16384\t50000";
    bed.pair
        .set_sysctl(Side::Client, "net.ipv4.tcp_wmem", theirs)
        .unwrap();
    let problems = wait_for("the problem", || {
        let status = bed.json(&["status"]);
        let said = status["problems"].to_string();
        said.contains("somebody else").then_some(said)
    });
    assert!(problems.contains("left alone"), "{problems}");
    let _more = endless(&bed);
    let looks = || bed.json(&["status"])["buffers"]["looks"]["number"].as_u64();
    let until = looks().unwrap() + 20;
    wait_for("looks", || (looks() >= Some(until)).then_some(()));
    assert_eq!(numbers(&bed, Side::Client, "tcp_wmem"), theirs);
    assert_eq!(numbers(&bed, Side::Client, "tcp_rmem"), SHORT);
    let said = String::from_utf8(bed.thalweg(&["buffers"]).stdout).unwrap();
    assert!(said.contains("left alone"), "{said}");
    assert!(bed.end(Signal::SIGTERM).success());
    assert_eq!(numbers(&bed, Side::Client, "tcp_wmem"), theirs);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn dry_run_tells_and_sets_nothing() {
    if !privileged() {
        return;
    }
    let (mut bed, _sink) = short("bufdry", &format!("dry_run = true\n{ENABLED}"));
    bed.start();
    let _flow = endless(&bed);
    let wanted = wait_for("a wanted limit", || {
        let listed = bed.json(&["buffers"]);
        assert_eq!(listed["sets"], false);
        let namespaces = listed["namespaces"].as_array().unwrap().clone();
        let mut wanted = namespaces
            .iter()
            .map(|it| it["send"]["wanted_bytes"].as_u64());
        wanted.find_map(|it| it)
    });
    assert!(wanted > 32_768, "{wanted}");
    let advice = wait_for("advice", || {
        Some(bed.json(&["advise"])["features"][0].clone()).filter(|it| !it.is_null())
    });
    assert_eq!(advice["feature"], "buffers", "{advice}");
    assert_eq!(advice["lines"], json!(["dry_run = false"]), "{advice}");
    is_first(&bed, "in a dry run");
    assert!(!bed.pin.join("buffers").exists());
}

fn limit_stays_where_it_would_only_lengthen_a_queue() {
    // 256 KiB have 130 kB in flight at least: 100 kB on the path, the rest in its queue.
    let bed = bed_with_queue("bufqueue", ENABLED, Side::Server, "400kb");
    let filling = "4096\t16384\t262144";
    for (side, setting) in [
        (Side::Client, "net.ipv4.tcp_wmem"),
        (Side::Server, "net.ipv4.tcp_rmem"),
    ] {
        let numbers = if side == Side::Client { filling } else { AMPLE };
        bed.pair.set_sysctl(side, setting, numbers).unwrap();
    }
    let _sink = bed.sink(&bed.server_address());
    let mut flow = endless(&bed);
    wait_for("a flow at the limit", || {
        let namespaces = bed.json(&["buffers"])["namespaces"].clone();
        let mut all = namespaces.as_array().unwrap().iter();
        all.any(|it| it["send"]["connections"] == 1).then_some(())
    });
    let rate = wait_for("the path's rate", || {
        Some(rate(&mut flow)).filter(|it| *it > 2.2e6)
    });
    println!("{rate} B/s in a queue");
    let looks = || bed.json(&["status"])["buffers"]["looks"]["number"].as_u64();
    let until = looks().unwrap() + 20;
    wait_for("looks", || (looks() >= Some(until)).then_some(()));
    assert_eq!(numbers(&bed, Side::Client, "tcp_wmem"), filling);
}

fn raised_limit_steps_back_before_the_kernel_is_under_pressure() {
    // 2,000 readers that stall hold some 40 MB. Limits fall at 24 MB, the kernel's pressure begins at
    // 64 MB.
    fs::write("/proc/sys/net/ipv4/tcp_mem", "6144 16384 32768").unwrap();
    let (bed, _sink, mut flow) = running("bufmemory", ENABLED);
    raised(&bed, Side::Client, "tcp_wmem");
    let mut stalled = bed.python(Side::Server, STALLED, &[]);
    assert_eq!(stalled.line(), "listening");
    let address = bed.server_address();
    let stalling = (0..4).map(|_| bed.python(Side::Client, STALLING, &[&address, "500"]));
    let mut stalling: Vec<Traffic> = stalling.collect();
    for sender in &mut stalling {
        assert_eq!(sender.line(), "sent");
    }
    wait_for("the first limit", || {
        (numbers(&bed, Side::Client, "tcp_wmem") == FIRST).then_some(())
    });
    let figures = bed.json(&["status"])["buffers"].clone();
    println!("{figures}");
    assert!(figures["step_backs"].as_u64() > Some(0), "{figures}");
    assert!(
        figures["memory_bytes"].as_u64() >= Some(24 << 20),
        "{figures}"
    );
    assert_eq!(bed.netstat(Side::Client, "TCPMemoryPressures"), 0);
    // Connections go on, and nothing rises again.
    assert!(rate(&mut flow) > 0.0);
    assert_eq!(numbers(&bed, Side::Client, "tcp_wmem"), FIRST);
}

/// A bed without a delay, whose client has these numbers: with 32 KiB a flow over a veth needs more.
fn short(label: &str, settings: &str) -> (Bed, Traffic) {
    let bed = Bed::new(&plain(label), settings);
    for (side, numbers) in [(Side::Client, SHORT), (Side::Server, AMPLE)] {
        for setting in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
            bed.pair.set_sysctl(side, setting, numbers).unwrap();
        }
    }
    let sink = bed.sink(&bed.server_address());
    (bed, sink)
}

const SHORT: &str = "4096\t16384\t32768";

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn limit_rises_over_a_veth_and_goes_back_at_the_end() {
    if !privileged() {
        return;
    }
    let (mut bed, _sink) = short("bufveth", ENABLED);
    bed.start();
    let _flow = endless(&bed);
    wait_for("a raised limit", || {
        (numbers(&bed, Side::Client, "tcp_wmem") != SHORT).then_some(())
    });
    assert!(bed.end(Signal::SIGTERM).success());
    assert_eq!(numbers(&bed, Side::Client, "tcp_wmem"), SHORT);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn read_only_sysctls_are_a_problem_with_its_remedy_and_all_else_works() {
    if !privileged() {
        return;
    }
    let (mut bed, _sink) = short("bufro", ENABLED);
    let mut command = Command::new("unshare");
    let script = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && \
                  exec \"$0\" --config \"$1\" run";
    command.args(["--mount", "sh", "-c", script]);
    command.arg(thalweg()).arg(bed.configuration());
    bed.start_by(command);
    let _flow = endless(&bed);
    let problems = wait_for("the problem", || {
        let problems = bed.json(&["status"])["problems"].to_string();
        problems.contains("tcp_wmem").then_some(problems)
    });
    assert!(
        problems.contains("/proc/sys is read-only here"),
        "{problems}"
    );
    assert_eq!(numbers(&bed, Side::Client, "tcp_wmem"), SHORT);
    bed.measure(&bed.server_address());
    assert_eq!(bed.json(&["detach"])["left"], json!([]));
    bed.reap();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn share_of_connections_is_held_to_the_first_limit() {
    if !privileged() {
        return;
    }
    let bed = bed_on("held", ENABLED, Side::Client, "50kb", WireKind::Tun);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let _flow = endless(&bed);
    raised(&bed, Side::Client, "tcp_wmem");
    // One connection in sixteen is held.
    let known = wait_for("a connection of each group", || {
        bed.connect(&address, 16, 200_000);
        let known = bed.json(&["buffers"])["networks"][0].clone();
        let counts = ["raised_connections", "bounded_connections"].map(|it| known[it].as_u64());
        counts.iter().all(|it| *it > Some(0)).then_some(known)
    });
    assert_eq!(known["bounded"], false, "{known}");
    let table = String::from_utf8(bed.thalweg(&["buffers"]).stdout).unwrap();
    assert!(table.contains("Held"), "{table}");
}

in_virtual_time!(
    #[ignore = "slow: minutes of a processor"]
    within Duration::from_secs(400),
    [],
    send_limit_rises_to_the_need_of_the_path_until_the_agent_ends,
    receive_limit_rises_for_a_reader_that_keeps_up,
    limit_stays_where_it_would_only_lengthen_a_queue,
    raised_limit_steps_back_before_the_kernel_is_under_pressure,
);
