//! Traffic: Python programs on a side of a bed, and those that most tests need.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// A process with line-based input and output.
pub struct Traffic {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Traffic {
    /// Starts a process with these streams.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starting traffic (python3)");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            input,
            output,
        }
    }

    /// Its next line.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .expect("reading from traffic");
        line.trim_end().to_string()
    }

    /// Sends it an empty line.
    pub fn go_on(&mut self) {
        self.say("go");
    }

    /// Sends it a line of input.
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("still open");
        writeln!(input, "{line}").expect("writing to traffic");
    }

    /// Waits for its successful end; returns the rest of its output.
    pub fn finish(mut self) -> String {
        let mut rest = String::new();
        self.input.take();
        std::io::Read::read_to_string(&mut self.output, &mut rest).expect("reading from traffic");
        let status = self.child.wait().expect("waiting for traffic");
        assert!(status.success(), "traffic failed ({status}): {rest}");
        rest
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the connections to port 5001, and closes each once its peer has sent all. Argument:
/// receive buffer (SO_RCVBUF), if any.
pub const COLLECTOR: &str = r#"
import selectors, socket, sys
selector = selectors.DefaultSelector()
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
for buffer in sys.argv[1:]:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, int(buffer))
listener.bind(("", 5001))
listener.listen(1024)
selector.register(listener, selectors.EVENT_READ)
print("listening", flush=True)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], selectors.EVENT_READ)
        elif not key.fileobj.recv(1 << 20):
            selector.unregister(key.fileobj)
            key.fileobj.close()
"#;

/// Accepts connections and reads them to their end. Arguments: address, port.
pub const SINK: &str = r#"
import selectors, socket, sys
address, port = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
listener = socket.socket(family)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if family == socket.AF_INET6:
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
listener.bind((address, port))
listener.listen(4096)
print("listening")
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], selectors.EVENT_READ)
        else:
            try:
                data = key.fileobj.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
"#;

/// Makes connections one by one. Arguments: address, port, number, bytes each.
pub const CONNECTIONS: &str = r#"
import socket, sys
address, port, number, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
for _ in range(number):
    with socket.create_connection((address, port)) as connection:
        if size:
            connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
"#;

/// Makes connections until its input ends, from a number of threads, each at a rate per second.
/// Prints their number; fails if one fails. Arguments: address, port, threads, connections a second
/// of each.
pub(super) const LOAD: &str = r#"
import socket, sys, threading, time
address, port, threads, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
over, made, failed = threading.Event(), [0] * threads, []
def connect(own):
    due = time.monotonic()
    while not over.is_set():
        try:
            with socket.create_connection((address, port), 30) as connection:
                connection.sendall(bytes(1000))
                connection.shutdown(socket.SHUT_WR)
                if connection.recv(1):
                    raise OSError("an answer")
        except OSError as error:
            failed.append(error)
        made[own] += 1
        due = max(due + 1 / rate, time.monotonic() - 1)
        over.wait(max(0, due - time.monotonic()))
workers = [threading.Thread(target=connect, args=(own,)) for own in range(threads)]
for worker in workers:
    worker.start()
print("up")
sys.stdin.read()
over.set()
for worker in workers:
    worker.join()
assert not failed, failed[:3]
print(sum(made))
"#;

/// Connections at a rate, until they are ended.
pub struct Load {
    pub(super) traffic: Traffic,
    pub(super) began: Instant,
}

impl Load {
    /// Ends it; no connection may have failed. Returns their number, and the rate per second.
    pub fn finish(self) -> (u64, f64) {
        let seconds = self.began.elapsed().as_secs_f64();
        let made: u64 = self.traffic.finish().trim().parse().expect("a number");
        (made, made as f64 / seconds)
    }
}
