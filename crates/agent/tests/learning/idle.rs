//! Windows over idle times, on real connections.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use thalweg_lab::host::{Side, WireKind};
use thalweg_testbed::{Bed, Traffic, plain, privileged, wait_for};

const ENABLED: &str = "[arms]\nallow = [\"cubic\"]\n[idle]\nenabled = true\n";

/// Six connections, each of which sends 200 kB, waits for the last ACK, and pauses for a second,
/// without end. For each line of input prints of each connection its congestion control and, after the
/// next pause, the window at a tenth of a round trip behind its first segment.
const EXCHANGES: &str = r#"
import fcntl, socket, struct, sys, threading, time
SIOCOUTQ = 0x5411
def exchange(connection):
    connection.sendall(bytes(200000))
    while struct.unpack("i", fcntl.ioctl(connection, SIOCOUTQ, bytes(4)))[0]:
        time.sleep(0.001)
def window(connection):
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    return struct.unpack_from("I", info, 80)[0]
class Sender(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.connection = socket.create_connection((sys.argv[1], 5001))
        self.lock = threading.Lock()
        self.start()
    def run(self):
        while True:
            with self.lock:
                exchange(self.connection)
            time.sleep(1)
    def look(self):
        with self.lock:
            name = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            time.sleep(1)
            self.connection.sendall(bytes(20000))
            time.sleep(0.002)
            return [name.rstrip(b"\0").decode(), window(self.connection)]
senders = [Sender() for _ in range(6)]
print("up", flush=True)
import json
for line in sys.stdin:
    print(json.dumps([sender.look() for sender in senders]), flush=True)
"#;

/// A path of 10 ms each way and 200 Mbit/s, with room for a window.
fn bed(label: &str) -> Bed {
    let mut options = plain(label);
    options.wire = WireKind::Tun;
    options.congestion_control = Some("cubic".to_owned());
    options.path.delay = serde_json::from_value(json!("10ms")).unwrap();
    options.path.rate = serde_json::from_value(json!("200mbit")).unwrap();
    options.path.queue = serde_json::from_value(json!("1mb")).unwrap();
    let mut bed = Bed::new(&options, ENABLED);
    bed.start();
    bed
}

/// Names of congestion controls, and windows after a pause.
fn look(senders: &mut Traffic) -> Vec<(String, u32)> {
    senders.go_on();
    serde_json::from_str(&senders.line()).unwrap()
}

fn network(bed: &Bed) -> Value {
    let found = bed.json(&["idle"]);
    let networks = found["networks"].as_array().unwrap();
    networks.first().cloned().unwrap_or(Value::Null)
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn windows_are_kept_where_exchanges_gain_and_restarted_once_the_agent_ends() {
    if !privileged() {
        return;
    }
    let mut bed = bed("idle");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let mut senders = bed.python(Side::Client, EXCHANGES, &[&address]);
    assert_eq!(senders.line(), "up");
    let known = wait_for("windows that are kept", || {
        let known = network(&bed);
        (known["kept"].as_u64() >= Some(40)).then_some(known)
    });
    assert_eq!(known["keeps"], true, "{known}");
    assert_eq!(known["harm"], Value::Null, "{known}");
    let windows = look(&mut senders);
    let kept = windows.iter().filter(|(_, window)| *window > 30).count();
    assert!(kept > 0, "{windows:?}");
    let is_own = |name: &str| name.starts_with("thalweg_cubic");
    assert!(windows.iter().any(|(name, _)| is_own(name)), "{windows:?}");
    // The learner takes it for cubic.
    let overridden = bed.json(&["status"])["overridden"].clone();
    assert!(
        !overridden.to_string().contains("thalweg_cubic"),
        "{overridden}"
    );
    let status = String::from_utf8(bed.thalweg(&["status"]).stdout).unwrap();
    assert!(status.contains("1 of 1 networks"), "{status}");
    let explained = bed.json(&["explain", &address]);
    assert_eq!(explained[0]["idle"]["keeps"], true, "{explained}");

    // Off is off for open connections, too, and their congestion control is cubic as before.
    bed.end(Signal::SIGTERM);
    let windows = look(&mut senders);
    let restarted = |(name, window): &(String, u32)| !is_own(name) || *window <= 30;
    assert!(windows.iter().all(restarted), "{windows:?}");
}
