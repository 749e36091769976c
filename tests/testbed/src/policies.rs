//! Policies for tests, and the resulting options of a new connection's sockets.

use thalweg_lab::host::Side;

use super::{Bed, Traffic, plain};

/// A bed whose agent does not run.
pub fn bed(label: &str) -> Bed {
    Bed::new(&plain(label), "")
}

/// A policy of some rules.
pub fn policy(rules: &str) -> String {
    format!("name = \"test\"\n{rules}")
}

/// A policy of one rule, `all`, with settings for every flow.
pub fn one_rule(set: &str) -> String {
    policy(&format!("[[rule]]\nname = \"all\"\nset = {{ {set} }}\n"))
}

/// Options, as "level option" pairs, of a new connection's client socket and of the server's
/// accepted one: two lists of values.
pub fn options_of(bed: &Bed, wanted: &[(i32, i32)]) -> (Vec<i64>, Vec<i64>) {
    const PROGRAM: &str = r#"
import socket, sys
address, options = sys.argv[1], [o.split(",") for o in sys.argv[2:]]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
if address == "listen":
    listener = socket.create_server(("::", 5002), family=socket.AF_INET6, dualstack_ipv6=True)
    print("listening")
    connection = listener.accept()[0]
else:
    connection = socket.create_connection((address, 5002))
for level, name in options:
    print(connection.getsockopt(int(level), int(name)))
sys.stdin.readline()
"#;
    let texts: Vec<String> = wanted.iter().map(|(l, n)| format!("{l},{n}")).collect();
    let arguments = |first: &str| -> Vec<String> {
        let mut all = vec![first.to_owned()];
        all.extend(texts.iter().cloned());
        all
    };
    let run = |side, first: &str| {
        let all = arguments(first);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        bed.python(side, PROGRAM, &all)
    };
    let mut server = run(Side::Server, "listen");
    assert_eq!(server.line(), "listening");
    let mut client = run(Side::Client, &bed.server_address());
    let read = |traffic: &mut Traffic| -> Vec<i64> {
        texts
            .iter()
            .map(|_| traffic.line().parse().unwrap())
            .collect()
    };
    (read(&mut client), read(&mut server))
}
