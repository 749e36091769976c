//! Learner and policies on a stack, end to end: records outlive the kernel of their connections,
//! and rules apply there.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::stack::{HOST, Net, available, written};
use thalweg_testbed::thalweg;

/// Prints the congestion control of each of some connections. Arguments: address, port, number.
const CONGESTION_CONTROLS: &str = "import socket, sys\n\
    for _ in range(int(sys.argv[3])):\n\
    \x20   with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:\n\
    \x20       name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)\n\
    \x20       print(name.split(b'\\0')[0].decode())\n";

/// Receives uploads, on a thread that ends with the process.
pub fn serve(net: &Net) {
    let listener = net.within(&net.host, || TcpListener::bind((HOST, 80)).unwrap());
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            // The client may abandon a connection.
            let _ = answer(&connection);
        }
    });
}

fn answer(mut connection: &TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection);
    let mut left = 0;
    for line in reader.by_ref().lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some(length) = line.strip_prefix("Content-Length: ") {
            left = length.parse().unwrap();
        }
    }
    std::io::copy(&mut reader.take(left), &mut std::io::sink())?;
    connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
}

/// A stack that learns into a file, whose command has run the first part and then waits; and its
/// output up to there.
fn waiting(net: &Net, store: &Path, first: &str) -> (Child, String) {
    let store = store.to_str().unwrap();
    let script = format!("set -e; {first}; echo up; exec sleep 1000");
    let mut child = net
        .stack(&["--learn", "--store", store], &["sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    while !said.ends_with("up\n") {
        let count = output.read_line(&mut said).unwrap();
        assert_ne!(count, 0, "it has ended, saying {said}");
    }
    (child, said)
}

fn end(child: &mut Child, signal: Signal) -> std::process::ExitStatus {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    child.wait().unwrap()
}

/// The only host of a document.
fn only_host(document: &Value) -> &Value {
    let hosts = document["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 1, "{document}");
    assert_eq!(hosts[0]["address"], HOST);
    &hosts[0]
}

fn read(store: &Path) -> Value {
    serde_json::from_slice(&fs::read(store).unwrap()).unwrap()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_one_run_learns_the_next_one_knows() {
    if !available() {
        return;
    }
    let net = Net::new();
    serve(&net);
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("stack.json");
    let content = directory.path().join("content");
    fs::write(&content, vec![7; 4 << 20]).unwrap();
    let upload = format!(
        "for n in 1 2 3 4; do curl --silent --show-error --header Expect: --upload-file {} \
         http://{HOST}/; done",
        content.display()
    );
    let (mut child, _) = waiting(&net, &store, &upload);

    // No other stack may learn into it meanwhile.
    let second = ["--learn", "--store", store.to_str().unwrap()];
    let output = net.stack(&second, &["true"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected = format!(
        "thalweg-lab: cannot use {}: another `thalweg-lab stack` (pid {}) learns into it; wait for its \
         end, or name another file with --store\n",
        store.display(),
        child.id()
    );
    assert_eq!(said, expected);

    // As a closed terminal ends it.
    let status = end(&mut child, Signal::SIGHUP);
    assert_eq!(status.code(), Some(128 + libc::SIGHUP));
    let mut document = read(&store);
    let host = only_host(&document);
    // A connection delayed by a busy machine is not scored, and a host is known from its first
    // scored one.
    let number = host["connections"].as_u64().unwrap();
    assert!((1..=4).contains(&number), "{host}");
    let arms = host["arms"].as_object().unwrap();
    let scored: u64 = arms
        .values()
        .map(|arm| arm["scored"].as_u64().unwrap())
        .sum();
    assert!(scored >= 1 && host["scored"] == scored, "{host}");
    assert!(arms.contains_key("cubic"), "{host}");

    // bbr is eight times as fast as the others, and all have much evidence.
    let known = document["hosts"][0]["arms"]["cubic"].clone();
    let value = known["value"].as_u64().unwrap();
    for (name, bits) in [("reno", 0), ("cubic", 0), ("htcp", 0), ("bbr", 3)] {
        let arm = &mut document["hosts"][0]["arms"][name];
        *arm = known.clone();
        arm["value"] = json!(value - (bits << 16));
        arm["weight_q16"] = json!(8 << 16);
    }
    let before = serde_json::to_vec(&document).unwrap();
    fs::write(&store, &before).unwrap();
    let hosts = format!("{} --json hosts | tr -d '\\n'; echo", thalweg());
    let ask = format!("{hosts}; python3 -c \"{CONGESTION_CONTROLS}\" {HOST} 80 5");
    let (mut child, said) = waiting(&net, &store, &ask);
    let mut lines = said.lines();
    let shown: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(only_host(&shown)["connections"], number);
    // Another arm has a probability of about two in a hundred.
    let chosen: Vec<&str> = lines.collect();
    let by_bbr = chosen.iter().filter(|&&name| name == "bbr").count();
    assert!(chosen.len() == 6 && by_bbr >= 3, "{chosen:?} {shown}");

    let status = end(&mut child, Signal::SIGKILL);
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    assert!(fs::read(&store).unwrap() == before);
    let next = net.stack(&second, &["sh", "-c", &hosts]);
    let shown: Value = serde_json::from_str(&written(next)).unwrap();
    assert_eq!(only_host(&shown)["connections"], number);
    assert_eq!(only_host(&read(&store))["connections"], number);
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

/// The largest segment that a connection may send, or accept.
fn max_segment(connection: &TcpStream) -> libc::c_int {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the call fills an integer of this length.
    let read = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    assert_eq!(read, 0);
    value
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_policy_holds_before_the_command_begins_and_beside_the_learner() {
    if !available() {
        return;
    }
    let net = Net::new();
    let listeners = net.within(&net.host, || {
        [80, 81].map(|port| TcpListener::bind((HOST, port)).unwrap())
    });
    let segments = thread::spawn(move || {
        listeners.map(|listener| {
            let (connection, _) = listener.accept().unwrap();
            max_segment(&connection)
        })
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.toml");
    let policy = format!(
        "name = \"test\"\n\n[[rule]]\nname = \"small\"\n\
         match = {{ remote = \"{HOST}\", remote_port = 80 }}\n\
         set = {{ congestion = \"vegas\", max_segment = 600 }}\n\n\
         [[rule]]\nname = \"rest\"\nmatch = {{ remote = \"0.0.0.0/0\" }}\n\
         set = {{ keepalive = true }}\n"
    );
    fs::write(&file, policy).unwrap();
    let store = directory.path().join("stack.json");
    let thalweg = thalweg();
    let script = format!(
        "python3 -c \"{CONGESTION_CONTROLS}\" {HOST} 80 1 && \
         python3 -c \"{CONGESTION_CONTROLS}\" {HOST} 81 1 && \
         {thalweg} --config /run/thalweg/agent.toml --json policy show && \
         {thalweg} detach && exit 3"
    );
    let (file, path) = (file.to_str().unwrap(), store.to_str().unwrap());
    let options = ["--learn", "--store", path, "--policy", file];
    let output = net
        .stack(&options, &["sh", "-c", &script])
        .output()
        .unwrap();
    // Ending the agent prints the consequence; the exit code is the command's.
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    let begin = "thalweg-lab stack: what was learned is not kept: the agent does not answer: ";
    assert!(
        said.starts_with(begin) && said.lines().count() == 1,
        "{said}"
    );
    // A stack of half a minute and more has reported on its way, while the agent answered.
    if let Ok(kept) = fs::read_to_string(&store) {
        serde_json::from_str::<Value>(&kept).unwrap();
    }
    let said = String::from_utf8(output.stdout).unwrap();
    let mut lines = said.splitn(3, '\n');
    assert_eq!(lines.next(), Some("vegas"), "{said}");
    assert_eq!(lines.next(), Some("cubic"), "{said}");
    let rest = lines.next().unwrap();
    let shown = serde_json::Deserializer::from_str(rest)
        .into_iter::<Value>()
        .next();
    let shown = shown.unwrap().unwrap();
    let matched: Vec<_> = shown["rules"].as_array().unwrap().iter().collect();
    let matched: Vec<_> = matched
        .iter()
        .map(|it| (&it["matched"], &it["failed"]))
        .collect();
    // The connections of the command's streams are not among them.
    assert_eq!(matched, [(&json!(1), &json!(0)); 2], "{shown}");
    let [small, large] = segments.join().unwrap();
    assert!(small <= 600 && large > 1000, "{small} {large}");
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_cannot_be_learned_or_obeyed_is_said_before_a_kernel_boots() {
    if !available() {
        return;
    }
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let write = |name: &str, text: &str| fs::write(path(name), text).unwrap();
    write(
        "bad.toml",
        "name = \"bad\"\n\n[[rule]]\nname = \"a\"\nmatch = { port = 80 }\nset = { keepalive = true }\n",
    );
    write(
        "nosuch.toml",
        "name = \"a\"\n[[rule]]\nname = \"a\"\nset = { congestion = \"nosuch\" }\n",
    );
    write(
        "store.json",
        "{\"format\": \"thalweg-hosts\", \"version\": 99}\n",
    );
    let said = |mut command: Command| {
        // A file that is not a kernel is reported later.
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && output.stdout.is_empty(),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    let refused = |options: &[&str]| {
        let options = [&["--kernel", "/bin/true"], options].concat();
        said(net.stack(&options, &["true"]))
    };
    let text = refused(&["--policy", &path("bad.toml")]);
    let begin = format!("thalweg-lab: {}:5:", path("bad.toml"));
    assert!(text.starts_with(&begin) && text.contains("port"), "{text}");
    let text = refused(&["--policy", &path("absent.toml")]);
    assert!(
        text.contains("cannot read ") && text.contains("absent.toml: No such"),
        "{text}"
    );
    let text = refused(&["--learn", "--store", &path("store.json")]);
    let begin = format!(
        "thalweg-lab: cannot use {}: version: found 99, ",
        path("store.json")
    );
    assert!(text.starts_with(&begin), "{text}");
    assert!(!Path::new(&path("store.json.lock")).exists());
    let text = refused(&["--learn", "--store", &path("absent/store.json")]);
    assert!(
        text.contains("cannot open ") && text.contains("No such file"),
        "{text}"
    );
    let mut command = net.stack(&["--learn", "--kernel", "/bin/true"], &["true"]);
    command.env_remove("XDG_STATE_HOME").env_remove("HOME");
    let text = said(command);
    assert!(
        text.contains("neither XDG_STATE_HOME nor HOME is set"),
        "{text}"
    );
    let text = said(net.stack(&["--policy", &path("nosuch.toml")], &["true"]));
    assert!(
        text.contains("has no congestion control \"nosuch\"; it has bbr, "),
        "{text}"
    );
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_a_command_leaves_to_be_sent_is_sent() {
    if !available() {
        return;
    }
    let net = Net::new();
    let listener = net.within(&net.host, || TcpListener::bind((HOST, 80)).unwrap());
    // All of it fits the sender's buffer, and by far exceeds the receiver's.
    let script = "import socket, sys\n\
        connection = socket.socket()\n\
        connection.setsockopt(socket.SOL_SOCKET, 32, 64 << 20)\n\
        connection.connect((sys.argv[1], 80))\n\
        connection.sendall(bytes(20_000_000))\n\
        print('sent', flush=True)\n";
    let mut child = net
        .stack(&[], &["python3", "-c", script, HOST])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut connection, _) = listener.accept().unwrap();
    let mut said = [0; 5];
    child.stdout.take().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"sent\n");
    connection
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut received = Vec::new();
    connection.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), 20_000_000);
    assert!(child.wait().unwrap().success());
    assert_eq!(net.leftovers(), Vec::<String>::new());
}
