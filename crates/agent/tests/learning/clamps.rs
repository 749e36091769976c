//! Learned clamps of congestion windows, on real connections.

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_lab::host::{PairOptions, Side};

use thalweg_testbed::virtual_time::in_virtual_time;
use thalweg_testbed::{Bed, Traffic, plain, privileged, wait_for};

const ENABLED: &str = "[arms]\nallow = [\"cubic\"]\n[control]\nshare = 0.0\npermanent = 0.0\n[clamp]\nprefixes = [\"10.0.0.0/8\"]\n";

/// The least clamp, which is right for the path: it carries one segment in a millisecond, without delay.
const LEAST: u64 = 10;
/// What a connection may have on its turn.
const ROOM: u64 = 4 * LEAST;

/// Sends without end, and for each line of input prints its congestion window and the
/// acknowledged bytes. A further argument is the
/// cgroup that it goes to first.
const ENDLESS: &str = r#"
import socket, struct, sys, threading
if len(sys.argv) > 2:
    with open(sys.argv[2] + "/cgroup.procs", "w") as elsewhere:
        elsewhere.write("0")
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
    print(struct.unpack_from("I", info, 80)[0], struct.unpack_from("Q", info, 120)[0])
over.set()
sender.join()
connection.close()
"#;

/// A path with room for 160 segments in its queue.
fn path(label: &str) -> PairOptions {
    let mut options = plain(label);
    options.path.rate = Some("10mbit".parse().unwrap());
    options.path.queue = Some("240kb".parse().unwrap());
    options
}

fn running(label: &str, settings: &str) -> (Bed, Traffic, Traffic) {
    let mut bed = Bed::new(&path(label), settings);
    bed.start();
    let sink = bed.sink(&bed.server_address());
    let flow = endless(&bed);
    (bed, sink, flow)
}

/// A flow that sends from now on.
fn endless(bed: &Bed) -> Traffic {
    let mut flow = bed.python(Side::Client, ENDLESS, &[&bed.server_address()]);
    assert_eq!(flow.line(), "up");
    flow
}

/// A flow's congestion window, and acknowledged bytes.
fn state(flow: &mut Traffic) -> (u64, u64) {
    flow.go_on();
    let said = flow.line();
    let (window, acked) = said.split_once(' ').unwrap();
    (window.parse().unwrap(), acked.parse().unwrap())
}

fn window(flow: &mut Traffic) -> u64 {
    state(flow).0
}

/// What the agent says of the server.
fn host(bed: &Bed) -> Option<Value> {
    let found = bed.json(&["clamps"]);
    let server = bed.server_address();
    let mut hosts = found["hosts"].as_array().unwrap().iter();
    hosts.find(|host| host["address"] == *server).cloned()
}

fn host_where(bed: &Bed, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    wait_for(what, || host(bed).filter(|host| is(host)))
}

/// Waits until this many of the server's connections have a clamp.
fn clamped(bed: &Bed, number: u64) -> Value {
    host_where(bed, "a clamp", |host| host["clamped"] == number)
}

/// Waits until the window is that of a flow without a clamp, which fills the queue.
fn fills_the_queue(flow: &mut Traffic) {
    wait_for("a full queue", || (window(flow) > 2 * ROOM).then_some(()));
}

/// Waits until the window is larger than any with the least clamp. Flows may share the queue.
fn is_unbounded(flow: &mut Traffic) {
    wait_for("a larger window", || (window(flow) > ROOM).then_some(()));
}

/// Waits until the window is that of a flow with the least clamp.
fn is_bounded(flow: &mut Traffic) {
    wait_for("a short queue", || (window(flow) <= ROOM).then_some(()));
}

pub fn open_and_new_connections_have_what_the_path_carries_until_the_agent_ends() {
    let (mut bed, _sink, mut flow) = running("clamp", ENABLED);
    // Its rate is seen first.
    fills_the_queue(&mut flow);
    let found = clamped(&bed, 1);
    assert_eq!(found["segments"], LEAST, "{found}");
    // 10 Mbit/s are 1.25 MB/s.
    let rate = found["max_rate_bytes_per_s"].as_f64().unwrap();
    assert!((1e6..=3e6).contains(&rate), "{found}");
    is_bounded(&mut flow);
    let new = endless(&bed);
    clamped(&bed, 2);
    let said = String::from_utf8(bed.thalweg(&["status"]).stdout).unwrap();
    assert!(said.contains("2 connections to 1 host"), "{said}");
    let metrics = String::from_utf8(bed.thalweg(&["metrics"]).stdout).unwrap();
    assert!(metrics.contains("thalweg_clamp_connections 2"), "{metrics}");
    // Together they could not fill it twice.
    new.finish();
    assert!(bed.end(Signal::SIGTERM).success());
    fills_the_queue(&mut flow);
    flow.finish();
    // The programs go on, without clamps.
    fills_the_queue(&mut endless(&bed));
}

fn clamps_outlive_a_killed_agent_and_the_next_one_knows_them() {
    let (mut bed, _sink, mut flow) = running("killed", ENABLED);
    clamped(&bed, 1);
    bed.end(Signal::SIGKILL);
    is_bounded(&mut flow);
    // Nobody looks; a new connection has the clamp from its first window on, beyond slow start.
    let mut new = endless(&bed);
    wait_for("acknowledgements", || {
        let (window, acked) = state(&mut new);
        assert!(window <= LEAST, "{window} segments");
        (acked > 4 * ROOM * 1448).then_some(())
    });
    new.finish();
    bed.start();
    // The path is not known yet, so that the connection has its own window back.
    fills_the_queue(&mut flow);
    clamped(&bed, 1);
    is_bounded(&mut flow);
    // One that knows of no prefix lifts what is left.
    bed.end(Signal::SIGKILL);
    bed.configure(&ENABLED.replace("\"10.0.0.0/8\"", ""));
    bed.start();
    fills_the_queue(&mut flow);
}

fn detach_without_an_agent_lifts_them() {
    let (mut bed, _sink, mut flow) = running("detached", ENABLED);
    clamped(&bed, 1);
    bed.end(Signal::SIGKILL);
    is_bounded(&mut flow);
    // Some pins may be gone: the program has the maps.
    std::fs::remove_file(bed.pin.join("clamped")).unwrap();
    assert_eq!(bed.json(&["detach"])["left"], json!([]));
    fills_the_queue(&mut flow);
}

fn detach_lifts_what_an_agent_left_that_was_killed_amid_its_lift() {
    let (mut bed, _sink, mut flow) = running("halflift", ENABLED);
    clamped(&bed, 1);
    bed.end(Signal::SIGKILL);
    // The lift begins with the hosts.
    let hosts = MapHandle::from_pinned_path(bed.pin.join("clamps")).unwrap();
    for host in hosts.keys().collect::<Vec<_>>() {
        hosts.update(&host, &[0; 4], MapFlags::EXIST).unwrap();
    }
    is_bounded(&mut flow);
    assert_eq!(bed.json(&["detach"])["left"], json!([]));
    fills_the_queue(&mut flow);
}

fn a_reload_without_the_prefix_lifts_them() {
    let (bed, _sink, mut flow) = running("reload", ENABLED);
    clamped(&bed, 1);
    is_bounded(&mut flow);
    bed.configure(&ENABLED.replace("10.0.0.0/8", "192.0.2.0/24"));
    assert_eq!(bed.json(&["reload"])["changed"], true);
    fills_the_queue(&mut flow);
    let shown = bed.json(&["clamps"]);
    assert_eq!(shown["prefixes"], json!(["192.0.2.0/24"]));
    assert_eq!(shown["hosts"], json!([]));
    bed.configure(ENABLED);
    assert_eq!(bed.json(&["reload"])["changed"], true);
    clamped(&bed, 1);
    is_bounded(&mut flow);
    // All of it may go, too.
    bed.configure(&ENABLED.replace("\"10.0.0.0/8\"", ""));
    assert_eq!(bed.json(&["reload"])["changed"], true);
    fills_the_queue(&mut flow);
    assert_eq!(bed.json(&["status"])["clamps"], Value::Null);
}

fn what_a_policy_bounds_is_left_alone() {
    let (bed, _sink, flow) = running("owned", ENABLED);
    flow.finish();
    bed.apply("name = \"mine\"\n[[rule]]\nname = \"all\"\nset = { cwnd_clamp = 100 }\n");
    let mut flow = endless(&bed);
    let found = host_where(&bed, "a clamp of the host", |host| {
        host["segments"] == LEAST && host["left"] == 1
    });
    assert_eq!(found["clamped"], 0, "{found}");
    wait_for("the policy's clamp", || {
        (window(&mut flow) == 100).then_some(())
    });
}

fn what_a_policy_lets_alone_has_its_own_window_again() {
    let (bed, _sink, mut flow) = running("never", ENABLED);
    clamped(&bed, 1);
    is_bounded(&mut flow);
    apply_existing(&bed, NEVER);
    fills_the_queue(&mut flow);
    let mut new = endless(&bed);
    is_unbounded(&mut new);
    let found = host_where(&bed, "two that are left", |host| host["left"] == 2);
    assert_eq!(found["clamped"], 0, "{found}");
}

const NEVER: &str =
    "name = \"mine\"\n[[rule]]\nname = \"all\"\nmatch.remote = \"10.0.0.0/8\"\nnever = true\n";

/// Puts a policy in force, for open connections too.
fn apply_existing(bed: &Bed, policy: &str) {
    let file = bed.directory.path().join("existing.toml");
    std::fs::write(&file, policy).unwrap();
    bed.json(&["policy", "apply", file.to_str().unwrap(), "--existing"]);
}

/// Opens a connection that stays idle, with a congestion control if there is a second argument.
/// Chooses one for each line of input.
const IDLE: &str = r#"
import socket, sys
connection = socket.socket()
def choose():
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
if len(sys.argv) > 2:
    choose()
connection.connect((sys.argv[1], 5001))
print("up")
for line in sys.stdin:
    choose()
    print("chosen")
"#;

fn idle(bed: &Bed, arguments: &[&str]) -> Traffic {
    let mut flow = bed.python(Side::Client, IDLE, arguments);
    assert_eq!(flow.line(), "up");
    flow
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn connections_that_a_policy_lets_alone_are_left() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("clampnever", ENABLED);
    let server = bed.server_address();
    let _sink = bed.sink(&server);
    let _old = idle(&bed, &[&server]);
    let is_left = |number: u64| {
        host_where(&bed, "connections that are left", |host| {
            host["connections"] == 3 && host["left"] == number
        });
    };
    bed.apply(NEVER);
    let mut new = idle(&bed, &[&server]);
    let _own = idle(&bed, &[&server, "chooses"]);
    is_left(2);
    apply_existing(&bed, NEVER);
    is_left(3);
    // A later choice, of a policy or of the application, is none of the window.
    apply_existing(
        &bed,
        "name = \"mine\"\n[[rule]]\nname = \"all\"\nset = { congestion = \"reno\" }\n",
    );
    new.go_on();
    assert_eq!(new.line(), "chosen");
    let looks = || bed.json(&["status"])["clamps"]["looks"]["number"].as_u64();
    let until = looks().unwrap() + 3;
    wait_for("looks", || (looks() >= Some(until)).then_some(()));
    is_left(3);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn ipv6_prefixes_have_no_ipv4() {
    if !privileged() {
        return;
    }
    let mut options = plain("clampfamily");
    options.further_addresses = 1;
    let mut bed = Bed::new(&options, "");
    let addresses = bed.pair.server_addresses();
    let (other, named) = (addresses[0].to_string(), addresses[1].to_string());
    bed.configure(&ENABLED.replace("10.0.0.0/8", &format!("::/0\", \"{named}")));
    bed.start();
    let _sink = bed.sink("0.0.0.0");
    let _other = idle(&bed, &[&other]);
    let _named = idle(&bed, &[&named]);
    // A look that sees the later connection would see the earlier one, too.
    let hosts = wait_for("a host", || {
        let hosts = bed.json(&["clamps"])["hosts"].as_array().unwrap().clone();
        (!hosts.is_empty()).then_some(hosts)
    });
    assert_eq!(hosts.len(), 1, "{hosts:?}");
    assert_eq!(hosts[0]["address"], named.as_str(), "{hosts:?}");
}

fn what_is_not_in_the_agents_cgroup_is_left_alone() {
    let (bed, _sink, mut flow) = running("elsewhere", ENABLED);
    clamped(&bed, 1);
    let root = thalweg_lab::host::cgroup_mount().unwrap();
    let (server, root) = (bed.server_address(), root.display().to_string());
    let mut other = bed.python(Side::Client, ENDLESS, &[&server, &root]);
    assert_eq!(other.line(), "up");
    fills_the_queue(&mut other);
    let found = host(&bed).unwrap();
    assert_eq!(
        (&found["connections"], &found["clamped"]),
        (&json!(1), &json!(1))
    );
    assert!(window(&mut flow) <= ROOM);
}

fn the_control_group_keeps_its_windows() {
    let mut bed = Bed::new(&path("control"), "");
    let address = bed.server_address();
    let group = bed.control_half(true);
    bed.configure(&ENABLED.replace("share = 0.0\npermanent = 0.0\n", &group));
    bed.start();
    let _sink = bed.sink(&address);
    let mut flow = endless(&bed);
    let path = host_where(&bed, "a rate", |host| {
        host["max_rate_bytes_per_s"].as_u64() > Some(1_000_000)
    });
    let looks = || bed.json(&["status"])["clamps"]["looks"]["number"].as_u64();
    let until = looks().unwrap() + 30;
    wait_for("looks", || (looks() >= Some(until)).then_some(()));
    let found = host(&bed).unwrap();
    assert_eq!(found["segments"], Value::Null, "{path} {found}");
    fills_the_queue(&mut flow);
}

fn a_dry_run_tells_and_sets_nothing() {
    let (bed, _sink, mut flow) = running("dry", &format!("dry_run = true\n{ENABLED}"));
    let found = host_where(&bed, "a clamp of the host", |host| {
        host["segments"] == LEAST
    });
    assert_eq!(found["clamped"], 0, "{found}");
    assert_eq!(bed.json(&["clamps"])["sets"], false);
    fills_the_queue(&mut flow);
    let said = String::from_utf8(bed.thalweg(&["clamps"]).stdout).unwrap();
    assert!(said.contains("Nothing is set"), "{said}");
}

fn a_cgroup_made_again_has_clamps() {
    let mut bed = Bed::new(&path("clampagain"), ENABLED);
    bed.start();
    let cgroup = bed.pair.cgroup_path().to_owned();
    std::fs::remove_dir(&cgroup).unwrap();
    let health = |bed: &Bed| bed.json(&["status"])["health"].clone();
    assert_eq!(health(&bed), "critical");
    std::fs::create_dir(&cgroup).unwrap();
    wait_for("programs", || (health(&bed) == "ok").then_some(()));
    let _sink = bed.sink(&bed.server_address());
    let mut flow = endless(&bed);
    clamped(&bed, 1);
    is_bounded(&mut flow);
    flow.finish();
}

in_virtual_time!(
    #[ignore = "slow: more cases in virtual time"]
    [],
    detach_without_an_agent_lifts_them,
    detach_lifts_what_an_agent_left_that_was_killed_amid_its_lift,
    clamps_outlive_a_killed_agent_and_the_next_one_knows_them,
    a_reload_without_the_prefix_lifts_them,
    what_a_policy_bounds_is_left_alone,
    what_a_policy_lets_alone_has_its_own_window_again,
    what_is_not_in_the_agents_cgroup_is_left_alone,
    the_control_group_keeps_its_windows,
    a_dry_run_tells_and_sets_nothing,
    a_cgroup_made_again_has_clamps,
);
