//! `thalweg-lab stack` end to end: real programs on a kernel of their own. The network has two
//! namespaces: one is the stack's machine, the other a host that it reaches.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::libc;
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use thalweg_testbed::{laboratory, place, privileged, skip, wait_for};

/// The machine's address, and the host's, as each other sees them.
pub const MACHINE: &str = "203.0.113.1";
pub const HOST: &str = "203.0.113.2";
pub const HOST_V6: &str = "2001:db8:5::2";

pub fn available() -> bool {
    if !privileged() || !place::available() {
        return false;
    }
    let nft = Command::new("nft").arg("--version").output();
    nft.is_ok() || skip("no nft (package nftables)")
}

/// A machine and a host, joined by a cable. Both names contain this process's id, so that the next
/// laboratory removes the rest of a killed test.
pub struct Net {
    pub machine: String,
    pub host: String,
    pub temporary: tempfile::TempDir,
}

impl Net {
    pub fn new() -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = |end: &str| format!("thalweg-lab-{}-stack{serial}{end}", std::process::id());
        let net = Self {
            machine: name("m"),
            host: name("h"),
            temporary: tempfile::tempdir().unwrap(),
        };
        for name in [&net.machine, &net.host] {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
            // It begins with what the machine has, which may be a router for its containers.
            net.within(name, || {
                fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap()
            });
        }
        let (machine, host) = (&net.machine, &net.host);
        ip(&format!(
            "-n {machine} link add cable type veth peer name cable netns {host}"
        ));
        for (end, v4, v6) in [(machine, MACHINE, "2001:db8:5::1"), (host, HOST, HOST_V6)] {
            ip(&format!("-n {end} address add {v4}/24 dev cable"));
            ip(&format!("-n {end} address add {v6}/64 dev cable nodad"));
            ip(&format!("-n {end} link set cable up"));
        }
        net
    }

    /// A command on the machine.
    pub fn on_the_machine(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.machine, program])
            .env("TMPDIR", self.temporary.path())
            .stdin(Stdio::null());
        command
    }

    pub fn stack(&self, options: &[&str], command: &[&str]) -> Command {
        let mut all = self.on_the_machine(laboratory());
        all.arg("stack").args(options).arg("--").args(command);
        all
    }

    /// Runs a function on a host, on a thread of its own.
    pub fn within<T: Send>(&self, name: &str, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let file = fs::File::open(Path::new("/run/netns").join(name)).unwrap();
                setns(file, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            inside.join().unwrap()
        })
    }

    /// Objects of stacks: devices, routing rules, processes, and files.
    pub fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (program, arguments) in [
            ("ip", &["-brief", "link"][..]),
            ("nft", &["list", "tables"]),
        ] {
            let output = self.on_the_machine(program).args(arguments).output();
            let text = String::from_utf8(output.unwrap().stdout).unwrap();
            found.extend(text.lines().map(str::to_owned));
        }
        found.retain(|line| line.contains("thalweg-s"));
        let mark = self.temporary.path().to_str().unwrap().as_bytes();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if command.windows(mark.len()).any(|word| word == mark) {
                found.push(String::from_utf8_lossy(&command).into_owned());
            }
        }
        let files = fs::read_dir(self.temporary.path()).unwrap().flatten();
        found.extend(files.map(|entry| entry.path().display().to_string()));
        found
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in [&self.machine, &self.host] {
            ip(&format!("netns delete {name}"));
        }
    }
}

pub fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a command, which must succeed.
pub fn written(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// The header of the SYN that a listener kept for a connection: IPv4 and TCP.
fn saved_syn(connection: &impl AsRawFd) -> Vec<u8> {
    let mut header = vec![0u8; 256];
    let mut length = header.len() as libc::socklen_t;
    // SAFETY: the buffer has this length.
    let read = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVED_SYN,
            header.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert_eq!(read, 0);
    header.truncate(length as usize);
    header
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn curl_sends_by_the_tcp_of_the_kernel_inside() {
    if !available() {
        return;
    }
    let net = Net::new();
    let listener = net.within(&net.host, || {
        let listener = TcpListener::bind((HOST, 80)).unwrap();
        let on: libc::c_int = 1;
        // SAFETY: reads an integer that lives throughout.
        let set = unsafe {
            libc::setsockopt(
                listener.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_SAVE_SYN,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        listener
    });
    let server = thread::spawn(move || {
        let (mut connection, peer) = listener.accept().unwrap();
        let syn = saved_syn(&connection);
        let mut received = Vec::new();
        let mut chunk = vec![0; 1 << 16];
        let content = loop {
            let head = received.windows(4).position(|it| it == b"\r\n\r\n");
            if let Some(end) = head.filter(|end| received.len() - end - 4 >= 3_000_000) {
                break received.split_off(end + 4);
            }
            let count = connection.read(&mut chunk).unwrap();
            assert_ne!(count, 0);
            received.extend_from_slice(&chunk[..count]);
        };
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\ndone\n";
        connection.write_all(answer).unwrap();
        (peer, syn, content)
    });
    let content: Vec<u8> = (0..3_000_000u32).map(|it| (it / 7) as u8).collect();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("content");
    fs::write(&file, &content).unwrap();
    let script = format!(
        "cat /proc/sys/net/ipv4/tcp_congestion_control /proc/sys/net/core/default_qdisc \
         /proc/sys/net/ipv4/tcp_ecn && tc qdisc show dev vec0 root | grep -o 'timer_slack 100us' \
         && awk '/^MemTotal/ {{ kib = $2 }} END {{ getline < \"/proc/sys/net/ipv4/tcp_mem\"; print ($3 * 4 > 0.45 * kib) }}' \
         /proc/meminfo && curl --silent --show-error --header Expect: \
         --upload-file {} http://{HOST}/",
        file.display()
    );
    let output = written(net.stack(
        &[
            "--cc",
            "bbr",
            "--qdisc",
            "fq",
            "--sysctl",
            "net.ipv4.tcp_ecn=1",
        ],
        &["sh", "-c", &script],
    ));
    assert_eq!(output, "bbr\nfq\n1\ntimer_slack 100us\n1\ndone\n");
    let (peer, syn, received) = server.join().unwrap();
    assert!(received == content);
    // From the machine's address, but forwarded by it: one hop less than its own packets.
    assert_eq!(peer.ip().to_string(), MACHINE);
    assert_eq!(syn[8], 63, "{syn:?}");
    assert_eq!(net.leftovers(), Vec::<String>::new());
    let forwarding = "/proc/sys/net/ipv4/conf/cable/forwarding";
    assert_eq!(
        written({
            let mut command = net.on_the_machine("cat");
            command.arg(forwarding);
            command
        }),
        "0\n"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn iperf3_in_both_directions_and_by_both_protocols() {
    if !available() {
        return;
    }
    let net = Net::new();
    let mut server = Command::new("ip")
        .args(["netns", "exec", &net.host, "iperf3", "-s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("iperf3", || {
        net.within(&net.host, || {
            std::net::TcpStream::connect((HOST, 5201)).ok()
        })
    });
    let script = format!(
        "for words in '{HOST}' '{HOST} -R' '{HOST_V6}' '{HOST_V6} -R'; do \
         iperf3 -J -n 2M -c $words >$0/out && tr -d '\\n' <$0/out && echo || exit 1; done"
    );
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let output = net
        .stack(&["--cc", "vegas"], &["sh", "-c", &script, place])
        .output()
        .unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(output.status.success(), "{output:?}");
    let reports: Vec<Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(reports.len(), 4);
    for (report, inside_sends) in reports.iter().zip([true, false, true, false]) {
        let end = &report["end"];
        assert!(
            end["sum_sent"]["bytes"].as_u64().unwrap() >= 2_000_000,
            "{end}"
        );
        let by = end["sender_tcp_congestion"].as_str().unwrap();
        assert_eq!(by == "vegas", inside_sends, "{end}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn streams_are_byte_for_byte_and_apart() {
    if !available() {
        return;
    }
    let net = Net::new();
    let all: Vec<u8> = (0..1u32 << 20).map(|it| (it ^ (it >> 8)) as u8).collect();
    let mut child = net
        .stack(
            &[],
            &["sh", "-c", "cat; echo end >&2; ( sleep 1000 ) & exit 7"],
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, sent) = (child.stdin.take().unwrap(), all.clone());
    let writer = thread::spawn(move || input.write_all(&sent).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.stdout == all, "{} bytes", output.stdout.len());
    assert_eq!(text(&output.stderr), "end\n");
    assert_eq!(output.status.code(), Some(7));

    // The reader stops early: the command gets SIGPIPE, and ends.
    let mut child = net
        .stack(&[], &["yes"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut begin = [0; 4];
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut begin).unwrap();
    drop(output);
    assert_eq!(&begin, b"y\ny\n");
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGPIPE));
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn several_at_once_and_how_they_end() {
    if !available() {
        return;
    }
    let net = Net::new();
    let address = "ip -brief -4 address show dev vec0";
    let scripts: [(&[&str], i32); 4] = [
        (&["sh", "-c", address], 0),
        (&["sh", "-c", &format!("{address}; kill -9 $$")], 137),
        (&["nosuch"], 127),
        (&["/etc/passwd"], 126),
    ];
    let children: Vec<Child> = scripts
        .iter()
        .map(|(command, _)| {
            let mut stack = net.stack(&[], command);
            stack.stdout(Stdio::piped()).stderr(Stdio::piped());
            stack.spawn().unwrap()
        })
        .collect();
    let mut addresses = Vec::new();
    for (child, (command, code)) in children.into_iter().zip(scripts) {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command:?} {output:?}");
        match code {
            0 | 137 => addresses.push(text(&output.stdout)),
            _ => {
                let begin = format!("thalweg-lab: cannot start {}: ", command[0]);
                let said = text(&output.stderr);
                assert!(
                    said.starts_with(&begin) && said.lines().count() == 1,
                    "{said}"
                );
            }
        }
    }
    assert!(addresses[0].contains("UNKNOWN"), "{addresses:?}");
    assert_ne!(addresses[0], addresses[1]);
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn directory_environment_user_and_names_are_the_callers() {
    if !available() {
        return;
    }
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "of the machine\n").unwrap();
    // A resolver that only the machine reaches, from a file that `ip netns exec` mounts over
    // /etc/resolv.conf.
    let place = PathBuf::from("/etc/netns").join(&net.machine);
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("resolv.conf"), "nameserver 127.0.0.53\n").unwrap();
    let resolver = net.within(&net.machine, || {
        UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 53), 53)).unwrap()
    });
    thread::spawn(move || answer_names(&resolver));
    let script = "pwd; cat file; umask; id -u; id -g; id -G; hostname; echo \"$COLOUR\"; \
                  getent ahostsv4 far.example | awk '/STREAM/ { print $1, $3 }'; echo written >out";
    let start = "umask 027; cd \"$1\"; shift; \
                 upstream=/run/systemd/resolve/resolv.conf; \
                 [ ! -e $upstream ] || mount --bind /etc/resolv.conf $upstream; \
                 exec setpriv --regid 12 --groups 12,34 \"$@\"";
    let mut command = net.on_the_machine("sh");
    command
        .args(["-c", start, "sh"])
        .arg(directory.path())
        .args([laboratory(), "stack", "--", "sh", "-c", script])
        .env("COLOUR", "a b\n\"c");
    let output = command.output().unwrap();
    fs::remove_dir_all(place).unwrap();
    // Fails if other files are there.
    let _ = fs::remove_dir("/etc/netns");
    let name = nix::unistd::gethostname().unwrap();
    assert_eq!(
        text(&output.stdout),
        format!(
            "{}\nof the machine\n0027\n0\n12\n12 34\n{}\na b\n\"c\n{HOST} far.example\n",
            directory.path().display(),
            name.to_str().unwrap()
        ),
        "{}",
        text(&output.stderr)
    );
    let out = fs::read_to_string(directory.path().join("out")).unwrap();
    assert_eq!(out, "written\n");
}

/// Answers DNS queries for IPv4 addresses with the host's address, and others with none (RFC 1035).
pub fn answer_names(socket: &UdpSocket) {
    let mut message = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut message) {
        let end = 12 + message[12..length].iter().position(|&it| it == 0).unwrap() + 5;
        let for_v4 = message[end - 4..end - 2] == [0, 1];
        let mut answer = message[..end].to_vec();
        answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(for_v4), 0, 0, 0, 0]);
        if for_v4 {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(HOST.parse::<Ipv4Addr>().unwrap().octets());
        }
        let _ = socket.send_to(&answer, from);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_cannot_be_is_said_in_one_line() {
    if !available() {
        return;
    }
    let net = Net::new();
    let said = |command: &mut Command, code: i32| {
        let output: Output = command.output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        if code != 2 || said.starts_with("thalweg") {
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        said
    };
    let script = |name: &str, text: &str| {
        let file = net.temporary.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file.to_str().unwrap().to_owned()
    };
    // What the dynamic linker says of a program for a newer glibc.
    let foreign = script(
        "foreign",
        "echo \"libc.so.6: version \\`GLIBC_2.99' not found\" >&2; exit 1",
    );
    let silent = script(
        "silent",
        "[ \"$1\" = --version ] && exec echo 6.18; exec sleep 1000",
    );
    for (options, code, words) in [
        (
            &["--cc", "nosuch"][..],
            2,
            "has no congestion control \"nosuch\"; it has bbr, ",
        ),
        (&["--cc", "a/b"], 2, "expected a name of letters"),
        (
            &["--qdisc", "nosuch"],
            2,
            "has no queueing discipline \"nosuch\"; it has ",
        ),
        (
            &["--sysctl", "tcp_ecn"],
            2,
            "expected KEY=VALUE, as net.ipv4.tcp_ecn=1",
        ),
        (
            &["--sysctl", "net.ipv4.nosuch=1"],
            1,
            "cannot set net.ipv4.nosuch to \"1\": No such",
        ),
        (
            &["--memory", "1mib"],
            2,
            "expected memory from 128mib to 4000mb, found 1mib",
        ),
        (&["--kernel", "/nosuch"], 1, "cannot find /nosuch: No such"),
        (
            &["--kernel", "/bin/true"],
            2,
            "is no user-mode kernel: `--version` gives \"true",
        ),
        (
            &["--kernel", &foreign],
            2,
            "does not start: libc.so.6: version `GLIBC_2.99' not found",
        ),
    ] {
        let text = said(&mut net.stack(options, &["true"]), code);
        assert!(text.contains(words), "{text}");
    }
    let options = ["--kernel", &silent, "--boot-limit", "1"];
    let output = net.stack(&options, &["true"]).output().unwrap();
    let late = text(&output.stderr);
    assert!(
        late.contains("did not boot within 1 s (--boot-limit)"),
        "{late}"
    );
    let mut command = net.stack(&[], &["true"]);
    command.current_dir("/proc");
    assert!(said(&mut command, 2).contains("the current directory is /proc, but"));
    // An ordinary user, without root's rights.
    let mut command = net.on_the_machine("setpriv");
    command.args(["--bounding-set", "-all", "--inh-caps", "-all", laboratory()]);
    command.args(["stack", "--", "true"]);
    let text = said(&mut command, 3);
    assert!(
        text.contains("run it as root (sudo thalweg-lab stack …)"),
        "{text}"
    );
    let text = said(Command::new(laboratory()).args(["stack", "guest", "/"]), 1);
    assert!(
        text.contains("is what `stack` starts in a kernel of its own"),
        "{text}"
    );
    let fifo = net.temporary.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let fifo = fifo.to_str().unwrap().to_owned();
    let output = net
        .stack(&["--kernel", "/nosuch"], &["cat", &fifo])
        .output();
    let note = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(
        note.contains("/fifo is a FIFO: who opens it inside waits"),
        "{note}"
    );
    for file in [&foreign, &silent, &fifo] {
        fs::remove_file(file).unwrap();
    }
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

#[test]
#[ignore = "slow: boots a hundred kernels"]
fn a_hundred_starts_leave_nothing() {
    if !available() {
        return;
    }
    let net = Net::new();
    for _ in 0..10 {
        let children: Vec<Child> = (0..10)
            .map(|_| {
                net.stack(&["--memory", "128mib"], &["true"])
                    .spawn()
                    .unwrap()
            })
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
    }
    assert_eq!(net.leftovers(), Vec::<String>::new());
}
