//! The wire of `thalweg-lab stack`: packets that it accepts from inside, and published ports of servers
//! inside, with clients on a host and on the machine itself.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::stack::{HOST, HOST_V6, MACHINE, Net, available, written};
use thalweg_testbed::{laboratory, wait_for};

const MACHINE_V6: &str = "2001:db8:5::1";

/// A stack with these options whose command serves, and has reported that in a line.
pub fn serving(net: &Net, options: &[&str], script: &str) -> Child {
    let mut child = net
        .stack(options, &["sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    if !line.starts_with("Serving") {
        let said = child.wait_with_output().unwrap();
        panic!("{line:?} {said:?}");
    }
    child.stdout = Some(output.into_inner());
    child
}

pub fn on_the_host(net: &Net, program: &str) -> Command {
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", &net.host, program])
        .stdin(Stdio::null());
    command
}

fn fetched(mut command: Command, from: &str) -> String {
    command
        .args(["--silent", "--show-error", "--max-time", "20"])
        .args(["--write-out", "%{size_download}"])
        .arg(from);
    written(command)
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_server_inside_is_reached_from_outside_and_from_the_machine() {
    if !available() {
        return;
    }
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("small"), "of the server\n").unwrap();
    fs::write(directory.path().join("large"), vec![b'.'; 5_000_000]).unwrap();
    // The machine has a server on the same port as the one inside.
    let _other = net.within(&net.machine, || TcpListener::bind("0.0.0.0:8000").unwrap());
    let script = format!(
        "cd {} && {{ iperf3 -s -p 5000 >/dev/null & }} && \
         python3 -u -m http.server --bind :: 8000 & read end; kill $!; wait",
        directory.path().display()
    );
    let options = ["--cc", "vegas", "--publish", "8080:8000"];
    let options = [&options[..], &["--publish", "5201:5000"]].concat();
    let child = serving(&net, &options, &script);

    let curl_here = || net.on_the_machine("curl");
    let curl_there = || on_the_host(&net, "curl");
    for (address, command) in [
        (MACHINE.to_owned(), curl_there()),
        (format!("[{MACHINE_V6}]"), curl_there()),
        (MACHINE.to_owned(), curl_here()),
        (format!("[{MACHINE_V6}]"), curl_here()),
        ("127.0.0.1".to_owned(), curl_here()),
        // ::1 refuses the connection at once, so 127.0.0.1 is tried without delay.
        ("localhost".to_owned(), curl_here()),
    ] {
        let from = format!("http://{address}:8080/small");
        assert_eq!(fetched(command, &from), "of the server\n14", "{address}");
    }
    for command in [curl_there(), curl_here()] {
        let mut command = command;
        command.args(["--output", "/dev/null"]);
        let from = format!("http://{MACHINE}:8080/large");
        assert_eq!(fetched(command, &from), "5000000");
    }
    // End to end: the sender is the kernel inside, and uses its congestion control.
    for address in [MACHINE, MACHINE_V6] {
        let mut client = on_the_host(&net, "iperf3");
        client.args(["-J", "-R", "-n", "2M", "-c", address]);
        let report: Value = serde_json::from_str(&written(client)).unwrap();
        let by = &report["end"]["sender_tcp_congestion"];
        assert_eq!(by, "vegas", "{}", report["end"]);
    }
    // Neither another stack nor a server of the machine can use the port.
    let second = net.stack(&["--publish", "8080:1"], &["true"]).output();
    let said = refused(&second.unwrap(), 1);
    assert!(
        said.contains("a server or another stack of this machine has port 8080"),
        "{said}"
    );
    net.within(&net.machine, || {
        assert!(TcpListener::bind("0.0.0.0:8080").is_err());
    });

    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    // The server sees the client's address: the host, the machine, and for 127.0.0.1 the machine's
    // end of the wire.
    let asked = |from: &str, what: &str| {
        let from = [format!("{from} - - "), format!("::ffff:{from} - - ")];
        log.lines().any(|line| {
            from.iter().any(|it| line.starts_with(it)) && line.contains(&format!("GET /{what} "))
        })
    };
    for from in [HOST, HOST_V6, MACHINE, MACHINE_V6, "100.127.0.1"] {
        assert!(asked(from, "small"), "{from}: {log}");
    }
    assert!(asked(HOST, "large") && asked(MACHINE, "large"), "{log}");
    assert_eq!(net.leftovers(), Vec::<String>::new());
    net.within(&net.machine, || TcpListener::bind("0.0.0.0:8080").unwrap());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_published_port_can_be_of_one_address() {
    if !available() {
        return;
    }
    let net = Net::new();
    let other = "203.0.113.9";
    crate::stack::ip(&format!(
        "-n {} address add {other}/24 dev cable",
        net.machine
    ));
    // Another server uses the port at the machine's other address.
    let listener = net.within(&net.machine, || TcpListener::bind((MACHINE, 8080)).unwrap());
    let script = "python3 -u -m http.server 80 & read end; kill $!; wait";
    let option = format!("{other}:8080:80");
    let child = serving(&net, &["--publish", &option], script);
    for command in [on_the_host(&net, "curl"), net.on_the_machine("curl")] {
        let listing = fetched(command, &format!("http://{other}:8080/"));
        assert!(listing.contains("Directory listing for /"), "{listing}");
    }
    // Others still reach the machine's server.
    let mut client = on_the_host(&net, "curl");
    client.args(["--silent", &format!("http://{MACHINE}:8080/")]);
    let mut client = client.stdout(Stdio::null()).spawn().unwrap();
    let (_, peer) = listener.accept().unwrap();
    assert_eq!(peer.ip().to_string(), HOST);
    client.kill().unwrap();
    client.wait().unwrap();
    assert!(child.wait_with_output().unwrap().stdout.is_empty());
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

fn refused(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    if said.starts_with("thalweg") {
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    said
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn ports_that_cannot_be_published_are_named() {
    if !available() {
        return;
    }
    let net = Net::new();
    let _server = net.within(&net.machine, || TcpListener::bind((MACHINE, 8080)).unwrap());
    for (options, code, words) in [
        (
            &["--publish", "8080:80"][..],
            1,
            "--publish: a server or another stack of this machine has port 8080",
        ),
        (
            &["--publish", "192.0.2.1:8081:80"],
            1,
            "--publish: this machine has no address 192.0.2.1",
        ),
        (
            &["--publish", "8081:0"],
            2,
            "'--publish <[ADDR:]PORT:PORT>': \"0\" is no port from 1 to 65535; expected",
        ),
        (
            &["--publish", "8081:80", "--publish", "8082:80"],
            2,
            "expected one port inside for each of the machine's",
        ),
    ] {
        let output = net.stack(options, &["true"]).output().unwrap();
        let said = refused(&output, code);
        assert!(said.contains(words), "{said}");
        assert_eq!(net.leftovers(), Vec::<String>::new());
    }
}

/// Sends a word to each place, from a chosen address.
const SEND: &str = "
import socket, sys
for words in sys.argv[1:]:
    source, target, word = words.split()
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind((source, 0))
    one.sendto(word.encode(), (target, 9000))
";

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn nothing_leaves_under_another_address_or_enters_the_loopback() {
    if !available() {
        return;
    }
    let net = Net::new();
    let bind =
        |name: &str, address: &str| net.within(name, || UdpSocket::bind((address, 9000)).unwrap());
    let [host, machine, loopback] = [
        bind(&net.host, HOST),
        bind(&net.machine, MACHINE),
        bind(&net.machine, "127.0.0.1"),
    ];
    for socket in [&host, &machine] {
        let patience = std::time::Duration::from_secs(30);
        socket.set_read_timeout(Some(patience)).unwrap();
    }
    loopback.set_nonblocking(true).unwrap();
    // Possible acts of a root inside: another address, and the loopback's as one of elsewhere.
    let script = "set -e; ip address add 192.0.2.7/32 dev vec0; \
         echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet; \
         ip route delete local 127.0.0.0/8 dev lo table local; \
         ip route delete local 127.0.0.1 dev lo table local; \
         ip route add 127.0.0.1 via 100.127.0.1; \
         exec python3 -c \"$@\"";
    let words = [
        &format!("192.0.2.7 {HOST} other"),
        "100.127.0.2 127.0.0.1 loopback",
        &format!("0.0.0.0 {HOST} own"),
        &format!("0.0.0.0 {MACHINE} own"),
    ];
    let command = [&["sh", "-c", script, "sh", SEND][..], &words].concat();
    written(net.stack(&["--publish", "8080:80"], &command));
    for (socket, from) in [(&host, MACHINE), (&machine, "100.127.0.2")] {
        let mut word = [0; 16];
        let (length, peer) = socket.recv_from(&mut word).unwrap();
        let got = (&word[..length], peer.ip().to_string());
        assert_eq!(got, (&b"own"[..], from.to_owned()));
    }
    let heard = loopback.recv_from(&mut [0; 16]);
    assert_eq!(heard.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_the_machine_lacks_is_named_with_the_remedy() {
    if !available() {
        return;
    }
    let net = Net::new();
    let hide = |program: &str| {
        // Programs are also searched in the system's directories, through links.
        format!(
            "for place in /usr/sbin /usr/bin /sbin /bin; do \
             [ ! -f $place/{program} ] || mount --bind /dev/null $place/{program}; done"
        )
    };
    for (hidden, words) in [
        (
            hide("linux.uml"),
            "no linux.uml: install the package user-mode-linux (apt-get install user-mode-linux)",
        ),
        (
            hide("nft"),
            "no nft: install the package nftables (apt-get install nftables)",
        ),
        (
            "mount -t tmpfs none /dev/net".to_owned(),
            "cannot open /dev/net/tun: No such file or directory (os error 2); the kernel's TUN \
             driver is not there; as root: modprobe tun",
        ),
    ] {
        let mut command = net.on_the_machine("sh");
        command.args(["-c", &format!("{hidden}; exec \"$@\""), "sh", laboratory()]);
        let output = command.args(["stack", "--", "true"]).output().unwrap();
        let said = refused(&output, 3);
        assert!(said.contains(words), "{said}");
        assert_eq!(net.leftovers(), Vec::<String>::new());
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn limits_are_the_callers() {
    if !available() {
        return;
    }
    let net = Net::new();
    let mut command = net.on_the_machine("prlimit");
    command.args([
        "--nofile=333:4444",
        "--core=0:7168",
        "--nproc=2222",
        laboratory(),
    ]);
    let script = "ulimit -Sn; ulimit -Hn; ulimit -Sc; ulimit -Hc; ulimit -Su";
    command.args(["stack", "--", "bash", "-c", script]);
    let expected = ["333", "4444", "0", "7", "2222", ""].join("\n");
    assert_eq!(written(command), expected);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_job_that_is_stopped_stops_inside() {
    if !available() {
        return;
    }
    let net = Net::new();
    let script = "while cat /proc/uptime; do sleep 0.1; done";
    let mut child = net
        .stack(&[], &["sh", "-c", script])
        // A job of a shell: a process group whose parent is in another.
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut uptime_s = || {
        let line = lines.next().unwrap().unwrap();
        line.split(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let before_s = uptime_s();
    let pid = Pid::from_raw(child.id() as i32);
    kill(pid, Signal::SIGTSTP).unwrap();
    wait_for("the stop", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.contains(") T ").then_some(())
    });
    // Time in which nothing may happen inside.
    thread::sleep(Duration::from_secs(2));
    kill(pid, Signal::SIGCONT).unwrap();
    let mut last_s = before_s;
    let longest_s = (0..20).fold(0.0f64, |longest_s, _| {
        let now_s = uptime_s();
        let gap_s = now_s - last_s;
        last_s = now_s;
        longest_s.max(gap_s)
    });
    assert!(longest_s > 1.5, "{longest_s}");
    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(net.leftovers(), Vec::<String>::new());
}
