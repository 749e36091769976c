//! `thalweg cc`: its output, and connections that use what it loads.

use std::fs;
use std::path::Path;

use serde_json::Value;
use thalweg_lab::host::Side;

use super::{Bed, Traffic};

/// Output of a command against a bed that succeeds.
pub fn success(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.thalweg(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}");
    String::from_utf8(output.stdout).unwrap()
}

/// The one line of a command against a bed that fails with a code, and prints nothing else.
pub fn failure(bed: &Bed, arguments: &[&str], code: i32) -> String {
    let output = bed.thalweg(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// Whether the kernel offers a congestion control.
pub fn is_offered(name: &str) -> bool {
    let offered =
        fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    offered.split_whitespace().any(|have| have == name)
}

/// The row of `cc list`, null if there is none.
pub fn row(bed: &Bed, name: &str) -> Value {
    let list = bed.json(&["cc", "list"]);
    let rows = list.as_array().unwrap();
    let found = rows.iter().find(|row| row["name"] == name);
    found.cloned().unwrap_or_default()
}

/// Compiles the tests' congestion control, `fixed`; the path of its object.
pub fn compile(directory: &Path, file: &str, flags: &[&str]) -> String {
    let object = crate::compile("fixed", directory, file, flags);
    object.to_str().expect("plain path").to_owned()
}

/// A connection with a congestion control. Arguments: address, port, name. Sends 2 MB, waits until
/// all is acknowledged, and prints its congestion control and window. Repeats this for each line
/// that it reads.
const FLOW: &str = r#"
import fcntl, socket, struct, sys, termios
connection = socket.socket()
connection.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[3].encode())
connection.connect((sys.argv[1], int(sys.argv[2])))
while True:
    connection.sendall(bytes(2000000))
    while struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, b"    "))[0]:
        pass
    name = connection.getsockopt(socket.IPPROTO_TCP, 13, 16).rstrip(b"\0").decode()
    window = struct.unpack_from("I", connection.getsockopt(socket.IPPROTO_TCP, 11, 104), 80)[0]
    print(name, window)
    if not sys.stdin.readline():
        break
"#;

/// A connection with a congestion control, and the process that sends on it.
pub struct Flow(pub Traffic);

impl Flow {
    /// Connects to the server and sends.
    pub fn open(bed: &Bed, name: &str) -> Self {
        let address = bed.server_address();
        Self(bed.python(Side::Client, FLOW, &[&address, "5001", name]))
    }

    /// Congestion control and window of the connection once all sent data has arrived.
    pub fn state(&mut self) -> (String, u32) {
        let line = self.0.line();
        let (name, window) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        (name.to_owned(), window.parse().unwrap())
    }
}
