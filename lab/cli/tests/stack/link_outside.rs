//! `thalweg-lab link --outside`: the command reaches the machine's network. Two namespaces stand for
//! the machine and for the servers outside.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::stack::{HOST, HOST_V6, MACHINE, Net, answer_names, available, ip};
use crate::stack_user::{Account, USER};
use thalweg_testbed::{laboratory, skip, wait_for};

/// Addresses outside, behind the servers' host: one has no way on.
const SERVER: &str = "198.51.100.7";
const SERVER_V6: &str = "2001:db8:7::7";
const NOWHERE: &str = "198.51.100.9";

/// Tries each target of its arguments, and prints a JSON object a line.
const CLIENT: &str = r#"
import errno, json, socket, sys, time
def outcome(words):
    kind, host, port = words.split(",")
    began = time.monotonic()
    try:
        if kind == "name":
            return {"is": socket.getaddrinfo(host, port, socket.AF_INET)[0][4][0]}
        if kind == "udp":
            known = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            talk = socket.socket(*known[:3])
            talk.settimeout(20)
            talk.sendto(b"echo", known[4])
            return {"is": talk.recv(99).decode()}
        talk = socket.create_connection((host, port), 20)
        ms = (time.monotonic() - began) * 1000
        talk.sendall(b"x")
        peer, rtt_us = talk.makefile().readline().split()
        return {"ms": ms, "peer": peer, "rtt_us": int(rtt_us)}
    except socket.gaierror as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno, str(error))}
for words in sys.argv[1:]:
    print(json.dumps(outcome(words)))
"#;

/// A network whose host has servers at both families.
fn net() -> Net {
    let net = Net::new();
    let (machine, host) = (&net.machine, &net.host);
    for words in [
        format!("-n {machine} route add default via {HOST}"),
        format!("-n {machine} -6 route add default via {HOST_V6}"),
        format!("-n {host} address add {SERVER}/32 dev lo"),
        format!("-n {host} address add {SERVER_V6}/128 dev lo nodad"),
        format!("-n {host} route add unreachable {NOWHERE}"),
        format!("netns exec {host} sysctl -qw net.ipv4.ip_forward=1"),
    ] {
        ip(&words);
    }
    for server in [SERVER, SERVER_V6] {
        let (listener, socket) = net.within(host, || {
            let socket = UdpSocket::bind((server, 7)).unwrap();
            (TcpListener::bind((server, 80)).unwrap(), socket)
        });
        thread::spawn(move || listener.incoming().flatten().for_each(answer));
        thread::spawn(move || {
            let mut message = [0; 99];
            while let Ok((length, from)) = socket.recv_from(&mut message) {
                let _ = socket.send_to(&message[..length], from);
            }
        });
    }
    net
}

/// Tells a client its address, and the round-trip time as this end's TCP measured it.
fn answer(mut stream: TcpStream) {
    let _ = stream.read(&mut [0]);
    // SAFETY: plain data, for which all zeroes is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the call fills at most `length` bytes of `info`.
    let got = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    assert_eq!(got, 0);
    let peer = stream.peer_addr().unwrap().ip();
    let _ = writeln!(stream, "{peer} {}", info.tcpi_rtt);
}

/// The machine's resolv.conf; the file goes with this.
struct Names(std::path::PathBuf);

impl Names {
    fn served_at(net: &Net, server: &str, place: &str) -> Self {
        let directory = Path::new("/etc/netns").join(&net.machine);
        fs::create_dir_all(&directory).unwrap();
        fs::write(
            directory.join("resolv.conf"),
            format!("nameserver {server}\n"),
        )
        .unwrap();
        let address: Ipv4Addr = server.parse().unwrap();
        let socket = net.within(place, || UdpSocket::bind((address, 53)).unwrap());
        thread::spawn(move || answer_names(&socket));
        Self(directory)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Outcomes of the targets, and the link's report.
fn tried(mut link: Command, path: &[&str], targets: &[&str]) -> (Vec<Value>, Value) {
    link.args(["link", "--json", "--outside"])
        .args(path)
        .args(["--", "/usr/bin/python3", "-c", CLIENT])
        .args(targets);
    let output = link.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let outcomes = String::from_utf8(output.stdout).unwrap();
    let outcomes = outcomes.lines().map(|it| serde_json::from_str(it).unwrap());
    let report = said.lines().last().unwrap_or_default();
    (
        outcomes.collect(),
        serde_json::from_str(report).unwrap_or_else(|why| panic!("{why}: {said}")),
    )
}

fn has_v6_way() -> bool {
    Path::new("/proc/sys/net/ipv6/conf/all/force_forwarding").exists()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn root_reaches_servers_end_to_end() {
    if !available() {
        return;
    }
    let net = net();
    let _names = Names::served_at(&net, HOST, &net.host);
    let targets = [
        "tcp,198.51.100.7,80",
        "tcp,2001:db8:7::7,80",
        "udp,198.51.100.7,7",
        "name,server.example,80",
        "tcp,198.51.100.7,81",
        "tcp,198.51.100.9,80",
    ];
    let link = net.on_the_machine(laboratory());
    let (outcomes, report) = tried(link, &["--delay", "20ms"], &targets);
    let [v4, v6, udp, name, refused, unreachable] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    for (outcome, peer) in [(v4, MACHINE), (v6, "2001:db8:5::1")] {
        if peer.contains(':') && !has_v6_way() {
            assert_eq!(outcome["error"], "ENETUNREACH", "{outcome}");
            continue;
        }
        assert!(outcome["ms"].as_f64().unwrap() >= 40.0, "{outcome}");
        // The server's own TCP feels the path.
        assert!(outcome["rtt_us"].as_u64().unwrap() >= 40_000, "{outcome}");
        assert_eq!(outcome["peer"], peer);
    }
    assert_eq!(udp["is"], "echo", "{udp}");
    assert_eq!(name["is"], HOST, "{name}");
    assert_eq!(refused["error"], "ECONNREFUSED", "{refused}");
    assert_eq!(unreachable["error"], "EHOSTUNREACH", "{unreachable}");
    let expected = serde_json::json!({"by": "nat", "tcp_end_to_end": true, "ipv6": has_v6_way()});
    assert_eq!(report["outside"], expected);
    assert_eq!(left(&net), [""; 0]);
}

/// Devices, tables and programs of links.
fn left(net: &Net) -> Vec<String> {
    let mut found = Vec::new();
    for (program, words) in [
        ("ip", &["-brief", "link"][..]),
        ("nft", &["list", "tables"]),
    ] {
        let output = net.on_the_machine(program).args(words).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        found.extend(text.lines().map(str::to_owned));
    }
    found.retain(|line| line.contains("thalweg-l"));
    let output = Command::new("ip")
        .args(["netns", "pids", &net.machine])
        .output();
    let pids = String::from_utf8(output.unwrap().stdout).unwrap();
    found.extend(pids.lines().map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ")
    }));
    found
}

/// Shell: a resolver of the machine that runs these tests has no upstream servers.
const HIDE: &str = "upstream=/run/systemd/resolve/resolv.conf; \
                    [ ! -e $upstream ] || mount --bind /dev/null $upstream;";

/// A link that does not find a file.
fn covering(net: &Net, file: &str) -> Command {
    let mut command = net.on_the_machine("sh");
    let script = format!("mount --bind /dev/null {file} && exec \"$@\"");
    command.args(["-c", &script, "sh", laboratory()]);
    command
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_resolver_that_only_the_machine_reaches_answers_inside() {
    if !available() {
        return;
    }
    let net = net();
    let _names = Names::served_at(&net, "127.0.0.53", &net.machine);
    let mut link = net.on_the_machine("sh");
    link.args(["-c", &format!("{HIDE} exec \"$@\""), "sh", laboratory()]);
    let before = fs::read_to_string("/etc/resolv.conf").ok();
    let (outcomes, _) = tried(link, &[], &["name,server.example,80"]);
    assert_eq!(outcomes[0]["is"], HOST, "{outcomes:?}");
    assert_eq!(fs::read_to_string("/etc/resolv.conf").ok(), before);
}

fn pasta() -> bool {
    Path::new("/usr/bin/pasta").exists() || skip("no pasta (package passt)")
}

/// A link by an ordinary user.
fn by_user(account: &Account) -> Command {
    let script = format!(
        "mount --bind \"$0\" /dev/net/tun && cd / && {HIDE} exec setpriv --reuid {USER} --regid {USER} \
         --clear-groups \"$@\""
    );
    let mut command = account.net.on_the_machine("sh");
    command
        .args(["-c", &script])
        .arg(account.path("tun"))
        .arg(&account.command);
    command
}

/// Programs such as initdb refuse to be root. What a user could do as root inside still works.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_user_stays_the_user_and_may_set_up_the_network() {
    if !available() {
        return;
    }
    let account = Account::on(net());
    let script = "id -u; id -g; stat -Lc %u /proc/self; ip link set dev thalweg0 mtu 1400; \
                  tc qdisc replace dev thalweg0 root pfifo limit 7; \
                  echo 1 >/proc/sys/net/ipv4/tcp_ecn; cat /proc/sys/net/ipv4/tcp_ecn; \
                  unshare --user --map-root-user id -u";
    let output = by_user(&account)
        .args(["link", "--report", "/dev/null", "--", "sh", "-ec", script])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(said, format!("{USER}\n{USER}\n{USER}\n1\n0\n"));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_user_reaches_servers_through_pasta() {
    if !available() || !pasta() {
        return;
    }
    let account = Account::on(net());
    let _names = Names::served_at(&account.net, "127.0.0.53", &account.net.machine);
    let targets = [
        "tcp,198.51.100.7,80",
        "tcp,2001:db8:7::7,80",
        "udp,198.51.100.7,7",
        "name,server.example,80",
    ];
    // On a busy machine a connection through Debian's pasta failed once in some ten runs.
    let (outcomes, report) = (0..3)
        .map(|_| tried(by_user(&account), &["--delay", "20ms"], &targets))
        .find(|(outcomes, _)| outcomes.iter().take(2).all(|it| it["ms"].is_f64()))
        .expect("connections through pasta, in one of three runs");
    let [v4, v6, udp, name] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    for (outcome, peer) in [(v4, MACHINE), (v6, "2001:db8:5::1")] {
        assert!(
            outcome["ms"].as_f64().is_some_and(|ms| ms >= 40.0),
            "{outcomes:?}"
        );
        // The path ends before the server.
        assert!(outcome["rtt_us"].as_u64().unwrap() < 40_000, "{outcome}");
        assert_eq!(outcome["peer"], peer);
    }
    assert_eq!(udp["is"], "echo", "{udp}");
    assert_eq!(name["is"], HOST, "{name}");
    let expected = serde_json::json!({"by": "pasta", "tcp_end_to_end": false, "ipv6": true});
    assert_eq!(report["outside"], expected);

    let output = by_user(&account)
        .args(["link", "--outside", "--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("note: pasta ended TCP"), "{said}");
    assert_eq!(left(&account.net), [""; 0]);
}

/// A link whose command says that it runs, and goes on.
fn running(mut link: Command) -> (Child, String) {
    let mut child = link
        .args(["link", "--outside", "--", "sh", "-c"])
        .arg("echo $THALWEG_LINK_NEAR; exec sleep 1000")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let out = child.stdout.as_mut().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said).unwrap();
    (child, said.trim().to_owned())
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn nothing_is_left_however_it_ends() {
    if !available() || !pasta() {
        return;
    }
    let account = Account::on(net());
    let net = &account.net;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        for link in [net.on_the_machine(laboratory()), by_user(&account)] {
            let (mut child, near) = running(link);
            assert_eq!(near, "100.126.0.2");
            assert_ne!(left(net), [""; 0]);
            kill(Pid::from_raw(child.id() as i32), signal).unwrap();
            child.wait().unwrap();
            // After SIGKILL, the system does it.
            wait_for("the end of all", || left(net).is_empty().then_some(()));
        }
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn several_links_lead_outside_at_once() {
    if !available() {
        return;
    }
    let net = net();
    let (mut first, near) = running(net.on_the_machine(laboratory()));
    assert_eq!(near, "100.126.0.2");
    let targets = ["tcp,198.51.100.7,80"];
    let (outcomes, report) = tried(net.on_the_machine(laboratory()), &[], &targets);
    assert_eq!(outcomes[0]["peer"], MACHINE, "{outcomes:?}");
    assert_eq!(report["near"], "100.126.0.10");
    first.kill().unwrap();
    first.wait().unwrap();
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn addresses_that_the_machine_uses_are_left_alone() {
    if !available() {
        return;
    }
    let net = net();
    let machine = &net.machine;
    let targets = ["tcp,198.51.100.7,80"];
    ip(&format!("-n {machine} route add 100.64.0.0/10 dev cable"));
    let (outcomes, report) = tried(net.on_the_machine(laboratory()), &[], &targets);
    assert_eq!(outcomes[0]["peer"], MACHINE, "{outcomes:?}");
    assert_eq!(report["near"], "198.18.0.2");
    for range in ["198.18.0.0/15", "10.0.0.0/8"] {
        ip(&format!("-n {machine} route add {range} dev cable"));
    }
    let mut link = net.on_the_machine(laboratory());
    let output = link.args(["link", "--outside", "--", "true"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(3));
    let said = said(&output);
    assert!(said.contains("no addresses are left; ip route"), "{said}");
    assert_eq!(left(&net), [""; 0]);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_is_missing_is_named() {
    if !available() || !pasta() {
        return;
    }
    let account = Account::on(net());
    let net = &account.net;
    let words = ["link", "--outside", "--", "true"];
    let output = covering(net, "/usr/sbin/nft").args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(
        said(&output).contains("package nftables"),
        "{}",
        said(&output)
    );

    ip(&format!("-n {} route delete default", net.machine));
    ip(&format!("-n {} -6 route delete default", net.machine));
    let output = by_user(&account).args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = said(&output);
    assert!(
        text.contains("no default route, which pasta needs"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");

    let script = format!(
        "mount --bind /dev/null /usr/bin/pasta && exec setpriv --reuid {USER} --regid {USER} \
         --clear-groups \"$@\""
    );
    let mut command = net.on_the_machine("sh");
    command.args(["-c", &script, "sh"]).arg(&account.command);
    let output = command.args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = said(&output);
    assert!(text.contains("install the package passt"), "{text}");
    assert!(text.contains("all but --outside works without"), "{text}");
}

#[test]
fn options_that_do_not_fit_are_named() {
    let output = Command::new(laboratory())
        .args(["link", "--outside", "--far", "true", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = said(&output);
    assert!(
        text.contains("--outside") && text.contains("--far"),
        "{text}"
    );
}
