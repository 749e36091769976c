//! Ready policies that shorten timers: how long handshakes are tried, and how soon an idle window
//! restarts. In virtual time.

use serde_json::Value;
use thalweg_lab::host::Side;

use thalweg_testbed::{Bed, manifest_path, plain};

/// A bed on a path of 1 Gbit/s with a delay each way.
fn slow_bed(label: &str, delay: &str) -> Bed {
    let mut options = plain(label);
    options.path.rate = serde_json::from_value(Value::from("1gbit")).unwrap();
    options.path.delay = serde_json::from_value(Value::from(delay)).unwrap();
    Bed::new(&options, "")
}

fn apply_ready(bed: &Bed, name: &str) {
    let file = manifest_path(&format!("policies/{name}.toml"));
    bed.apply(&std::fs::read_to_string(file).unwrap());
}

/// Seconds until `connect()` to an address that nobody has gives up.
fn patience(bed: &Bed) -> f64 {
    const PROGRAM: &str = r#"
import socket, sys, time
connection = socket.socket()
started = time.monotonic()
try:
    connection.connect((sys.argv[1], 5001))
except OSError as error:
    print(error.errno, time.monotonic() - started)
"#;
    let server = bed.server_address();
    let network = server.rsplit_once('.').unwrap().0;
    let silent = format!("{network}.77");
    let device = bed.device(Side::Client, &server);
    // Nobody answers, and nobody says that there is nobody.
    let neighbour = format!("neigh replace {silent} lladdr 02:00:00:00:00:77 dev {device}");
    bed.ip(Side::Client, &neighbour);
    let said = bed.python(Side::Client, PROGRAM, &[&silent]).finish();
    let (errno, seconds) = said.trim().split_once(' ').unwrap();
    assert_eq!(errno, "110", "ETIMEDOUT");
    seconds.parse().unwrap()
}

pub fn connect_to_a_silent_address_is_as_patient() {
    let bed = slow_bed("patience", "1ms");
    let default = patience(&bed);
    apply_ready(&bed, "connect-fast");
    let fast = patience(&bed);
    println!("{default} s, {fast} s");
    assert!((126.0..140.0).contains(&default), "{default} s");
    assert!(fast >= default, "{fast} s instead of {default} s");
    let rule = bed.rule("inside");
    assert_ne!(rule["asked"], 0, "{rule}");
}

pub fn a_peer_beyond_a_second_still_gets_in() {
    let bed = slow_bed("beyond", "1500ms");
    apply_ready(&bed, "connect-fast");
    let _sink = bed.sink(&bed.server_address());
    bed.connect(&bed.server_address(), 1, 1000);
    assert_eq!(bed.rule("inside")["matched"], 1);
}

/// Median seconds of 300 kB after each pause of 100 ms on one connection, and its timeout at the
/// end in microseconds.
fn after_pauses(bed: &Bed) -> (f64, u64) {
    const SERVER: &str = r#"
import socket
listener = socket.create_server(("", 5005))
print("listening")
connection = listener.accept()[0]
left = 300000
while True:
    data = connection.recv(1 << 20)
    if not data:
        break
    left -= len(data)
    if not left:
        connection.send(b"!")
        left = 300000
"#;
    const CLIENT: &str = r#"
import socket, struct, sys, time
connection = socket.create_connection((sys.argv[1], 5005))
times = []
for _ in range(12):
    started = time.monotonic()
    connection.sendall(bytes(300000))
    connection.recv(1)
    times.append(time.monotonic() - started)
    time.sleep(0.1)
print(sorted(times)[6], struct.unpack("<I", connection.getsockopt(6, 11, 104)[8:12])[0])
"#;
    let mut server = bed.python(Side::Server, SERVER, &[]);
    assert_eq!(server.line(), "listening");
    let said = bed.python(Side::Client, CLIENT, &[&bed.server_address()]);
    let said = said.finish();
    server.finish();
    let (seconds, rto) = said.trim().split_once(' ').unwrap();
    (seconds.parse().unwrap(), rto.parse().unwrap())
}

pub fn a_clean_connection_keeps_its_timeout_and_its_window() {
    let bed = slow_bed("pauses", "5ms");
    let (default, default_rto) = after_pauses(&bed);
    bed.apply("name = \"kept\"\n[[rule]]\nname = \"all\"\nset = { rto_min = \"8ms\" }\n");
    let (kept, _) = after_pauses(&bed);
    apply_ready(&bed, "recover-fast");
    let (repairing, rto) = after_pauses(&bed);
    println!("{default} s, for good {kept} s, while it repairs {repairing} s; {rto} us");
    // The measure sees a window that restarts.
    assert!(kept > 3.0 * default, "{kept} s, {default} s");
    assert!(repairing < 1.02 * default, "{repairing} s, {default} s");
    assert!(
        rto >= 200_000 && rto == default_rto,
        "{rto} us, {default_rto} us"
    );
}
