//! `thalweg limit` on real traffic between two namespaces.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support::virtual_time::in_virtual_time;
use crate::support::{Bed, plain, wait_for};
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};
use serde_json::Value;
use thalweg_lab::host::{PairOptions, Side};
use thalweg_lab::scenario::Family;

/// A bed whose limits are removed with it.
pub struct Limited(pub Bed);

impl Limited {
    /// On a link of 100 Mbit/s, far above all limits.
    pub fn new(options: &PairOptions) -> Self {
        let mut options = options.clone();
        options.path.rate = Some("100mbit".parse().unwrap());
        Self(Bed::new(&options, ""))
    }

    pub fn cgroup(&self) -> PathBuf {
        self.0.pair.cgroup().to_owned()
    }

    /// A cgroup below the bed's.
    fn below(&self, name: &str) -> PathBuf {
        let path = self.cgroup().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    pub fn set(&self, cgroup: &Path, rate: &str, more: &[&str]) -> Value {
        let cgroup = cgroup.to_str().unwrap();
        let arguments = ["limit", "--cgroup", cgroup, "--rate", rate];
        self.0.json(&[&arguments, more].concat())
    }

    pub fn show(&self, cgroup: &Path) -> Value {
        self.0
            .json(&["limit", "show", "--cgroup", cgroup.to_str().unwrap()])
    }

    fn count(&self, cgroup: &Path, name: &str) -> u64 {
        self.show(cgroup)[name].as_u64().unwrap()
    }

    pub fn remove(&self, cgroup: &Path) {
        let output = self
            .0
            .thalweg(&["limit", "remove", "--cgroup", cgroup.to_str().unwrap()]);
        assert!(output.status.success());
    }

    /// Sends as fast as it may from a cgroup, in this number of connections, until dropped.
    fn send(&self, cgroup: &Path, connections: u32) -> Sender {
        let program = "import socket, sys, threading\n\
            def send():\n\
            \x20   c = socket.create_connection((sys.argv[1], 5001))\n\
            \x20   while True: c.sendall(bytes(1 << 16))\n\
            for _ in range(int(sys.argv[2])): threading.Thread(target=send).start()\n";
        self.start(cgroup, program, &[&connections.to_string()])
    }

    /// Sends datagrams of 1,000 bytes with 28 of header, 40 Mbit/s of them, until dropped.
    fn flood(&self, cgroup: &Path) -> Sender {
        let program = "import socket, sys, time\n\
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
            while True:\n\
            \x20   for _ in range(10): s.sendto(bytes(972), (sys.argv[1], 9))\n\
            \x20   time.sleep(0.002)\n";
        self.start(cgroup, program, &[])
    }

    /// As `send`, with a congestion control.
    fn send_with(&self, cgroup: &Path, connections: u32, congestion_control: &str) -> Sender {
        let program = "import socket, sys, threading\n\
            def send():\n\
            \x20   c = socket.socket()\n\
            \x20   c.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[3].encode())\n\
            \x20   c.connect((sys.argv[1], 5001))\n\
            \x20   while True: c.sendall(bytes(1 << 16))\n\
            for _ in range(int(sys.argv[2])): threading.Thread(target=send).start()\n";
        self.start(
            cgroup,
            program,
            &[&connections.to_string(), congestion_control],
        )
    }

    /// Waits until traffic passes a limit.
    fn traffic(&self, cgroup: &Path) {
        let before = self.count(cgroup, "bytes");
        wait_for("traffic", || {
            (self.count(cgroup, "bytes") > before + 20_000).then_some(())
        });
    }

    fn sockets(&self, cgroup: &Path, name: &str) -> u64 {
        self.show(cgroup)["sockets"][name].as_u64().unwrap()
    }

    pub fn start(&self, cgroup: &Path, program: &str, arguments: &[&str]) -> Sender {
        let mut command = self.0.pair.command_in(Side::Client, "sh").unwrap();
        command
            .args(["-c", "echo $$ > \"$0\"; exec python3 -c \"$@\""])
            .arg(cgroup.join("cgroup.procs"))
            .arg(program)
            .arg(self.0.server_address())
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        Sender(command.spawn().unwrap())
    }

    /// Throughput of the link from the client, in Mbit/s, over a time that starts now.
    fn carried(&self, time: Duration) -> f64 {
        let (began, before) = (Instant::now(), self.0.pair.forward().unwrap().seen_bytes);
        std::thread::sleep(time);
        let bytes = self.0.pair.forward().unwrap().seen_bytes - before;
        bytes as f64 * 8.0 / 1e6 / began.elapsed().as_secs_f64()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // A failure here would show by the leftovers.
        let _ = self.0.thalweg(&["limit", "remove", "--all"]);
    }
}

pub struct Sender(Child);

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Sender {
    /// Moves its process to another cgroup.
    fn move_to(&self, cgroup: &Path) {
        fs::write(cgroup.join("cgroup.procs"), self.0.id().to_string()).unwrap();
    }
}

/// Number of BPF links on a cgroup.
pub fn links(cgroup: &Path) -> usize {
    let id = fs::metadata(cgroup).unwrap().ino();
    LinkInfoIter::default()
        .filter(|link| matches!(&link.info, LinkTypeInfo::Cgroup(on) if on.cgroup_id == id))
        .count()
}

/// Whether a rate, measured for a second or longer, is that of the limit. It may be higher by 50 ms
/// of earlier queue, and lower because of TCP's pacing.
fn near(measured: f64, expected: f64) -> bool {
    println!("{measured:.2} of {expected}");
    (0.93..1.06).contains(&(measured / expected))
}

const SECOND: Duration = Duration::from_secs(1);

fn tcp_gets_the_rate_in_both_families_and_a_change_takes_hold_at_once() {
    for family in [Family::Ipv4, Family::Ipv6] {
        let mut options = plain("limit-rate");
        options.path.family = family;
        let bed = Limited::new(&options);
        let cgroup = bed.cgroup();
        let _sink = bed.0.sink(&bed.0.server_address());
        assert_eq!(bed.set(&cgroup, "20mbit", &[])["outcome"], "created");
        let attached = links(&cgroup);
        assert_eq!(attached, 2);
        let _sender = bed.send(&cgroup, 4);
        bed.traffic(&cgroup);
        std::thread::sleep(SECOND);
        let rate = bed.carried(3 * SECOND);
        assert!(near(rate, 20.0), "{rate} Mbit/s");

        assert_eq!(bed.set(&cgroup, "5mbit", &[])["outcome"], "changed");
        assert_eq!(links(&cgroup), attached, "the programs were to stay");
        std::thread::sleep(SECOND);
        let rate = bed.carried(3 * SECOND);
        assert!(near(rate, 5.0), "{rate} Mbit/s");
    }
}

fn senders_that_can_are_marked_and_others_told() {
    for (ecn, counted, other) in [
        ("1", "marked_packets", "notified_packets"),
        ("0", "notified_packets", "marked_packets"),
    ] {
        let mut options = plain("limit-ecn");
        options.sysctl.insert("net.ipv4.tcp_ecn".into(), ecn.into());
        let bed = Limited::new(&options);
        let cgroup = bed.cgroup();
        let _sink = bed.0.sink(&bed.0.server_address());
        // Without pacing the queue is sure to reach the threshold.
        bed.set(&cgroup, "20mbit", &["--no-pacing"]);
        let sender = bed.send(&cgroup, 1);
        wait_for(counted, || {
            (bed.count(&cgroup, counted) > 100).then_some(())
        });
        drop(sender);
        let (some, few) = (bed.count(&cgroup, counted), bed.count(&cgroup, other));
        // Retransmissions of an ECN connection cannot be marked.
        assert!(few * 10 < some, "{counted} {some}, {other} {few}");
        let received = bed.0.netstat(Side::Server, "InCEPkts");
        assert_eq!(
            received > 0,
            ecn == "1",
            "{received} packets with CE arrived"
        );
    }
}

fn udp_beyond_the_rate_is_dropped_without_an_error() {
    let bed = Limited::new(&plain("limit-udp"));
    let cgroup = bed.cgroup();
    bed.set(&cgroup, "10mbit", &[]);
    let mut flood = bed.flood(&cgroup);
    wait_for("drops", || {
        (bed.count(&cgroup, "dropped_packets") > 1000).then_some(())
    });
    // The link counts 14 of the 1,014 bytes in addition to the limit.
    let rate = bed.carried(2 * SECOND);
    assert!(near(rate, 10.14), "{rate} Mbit/s");
    assert!(
        flood.0.try_wait().unwrap().is_none(),
        "the sender got an error"
    );
    drop(flood);
    let limit = bed.show(&cgroup);
    let dropped = limit["dropped_packets"].as_u64().unwrap();
    assert_eq!(limit["dropped_bytes"].as_u64().unwrap(), dropped * 1000);
    assert_eq!(limit["marked_packets"], 0);
}

fn removal_leaves_nothing_and_connections_run_free() {
    let bed = Limited::new(&plain("limit-remove"));
    let cgroup = bed.cgroup();
    let before = links(&cgroup);
    let _sink = bed.0.sink(&bed.0.server_address());
    bed.set(&cgroup, "10mbit", &[]);
    let _sender = bed.send(&cgroup, 2);
    bed.traffic(&cgroup);
    std::thread::sleep(2 * SECOND);
    let rate = bed.carried(2 * SECOND);
    assert!(near(rate, 10.0), "{rate} Mbit/s");

    bed.remove(&cgroup);
    assert!(!bed.0.pin.exists(), "something stayed in {:?}", bed.0.pin);
    wait_for("the links to go", || {
        (links(&cgroup) == before).then_some(())
    });
    assert_eq!(bed.0.json(&["limit", "list"]), Value::Array(Vec::new()));
    let free = bed.carried(2 * SECOND);
    assert!(
        free > 80.0,
        "still slow after the limit went: {free} Mbit/s"
    );
    let again = bed
        .0
        .thalweg(&["limit", "remove", "--cgroup", cgroup.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("there is no limit on"));
}

fn limits_stand_beside_one_another_and_below_one_another() {
    let bed = Limited::new(&plain("limit-tree"));
    let parent = bed.cgroup();
    let [a, b] = ["a", "b"].map(|name| bed.below(name));
    let _sink = bed.0.sink(&bed.0.server_address());
    bed.set(&parent, "20mbit", &[]);
    bed.set(&a, "6mbit", &[]);
    bed.set(&b, "10mbit", &[]);
    assert_eq!(bed.0.json(&["limit", "list"]).as_array().unwrap().len(), 3);
    let senders = [bed.send(&a, 2), bed.send(&b, 2)];
    bed.traffic(&a);
    bed.traffic(&b);
    std::thread::sleep(SECOND);
    let before = [&a, &b].map(|cgroup| bed.count(cgroup, "bytes"));
    let both = bed.carried(3 * SECOND);
    let after = [&a, &b].map(|cgroup| bed.count(cgroup, "bytes"));
    assert!(near(both, 16.0), "{both} Mbit/s");
    let share = (after[0] - before[0]) as f64 / (after[1] - before[1]) as f64;
    assert!(near(share, 0.6), "30 to 50 came out as {share}");

    // The parent is the narrower one now, and its connections adapt.
    bed.set(&parent, "8mbit", &[]);
    std::thread::sleep(2 * SECOND);
    let both = bed.carried(3 * SECOND);
    assert!(near(both, 8.0), "{both} Mbit/s");
    drop(senders);

    // Drops of the child's limit do not count against the parent's.
    let _flood = bed.flood(&a);
    std::thread::sleep(SECOND);
    let before = [&parent, &a].map(|cgroup| bed.count(cgroup, "bytes"));
    let carried = bed.carried(2 * SECOND);
    let after = [&parent, &a].map(|cgroup| bed.count(cgroup, "bytes"));
    assert!(near(carried, 6.08), "{carried} Mbit/s");
    let both = (after[0] - before[0]) as f64 / (after[1] - before[1]) as f64;
    assert!(near(both, 1.0), "the parent counted {both} of the child's");
    assert!(bed.count(&a, "dropped_packets") > 0);
    bed.remove(&a);
    bed.remove(&b);
    bed.remove(&parent);
    assert!(!bed.0.pin.exists());
}

fn a_work_conserving_limit_takes_and_gives_back_what_is_free() {
    let bed = Limited::new(&plain("limit-line"));
    let limited = bed.below("limited");
    let other = bed.below("other");
    let _sink = bed.0.sink(&bed.0.server_address());
    let options = ["--work-conserving", "--line-rate", "40mbit"];
    bed.set(&limited, "5mbit", &options);
    let _sender = bed.send(&limited, 1);
    wait_for("more than the rate", || {
        (bed.count(&limited, "measured_bps") > 20_000_000).then_some(())
    });
    // The other one takes all it can get, which is more than the line's rate.
    let _busy = bed.send(&other, 1);
    wait_for("the rate alone", || {
        (bed.count(&limited, "present_rate_bps") == 5_000_000).then_some(())
    });
    wait_for("no more than the rate", || {
        (bed.count(&limited, "measured_bps") < 6_000_000).then_some(())
    });
    bed.remove(&limited);
    assert!(!bed.0.pin.exists(), "the meter was to go too");
}

fn what_moves_with_its_process_is_limited_and_what_leaves_is_free() {
    let bed = Limited::new(&plain("limit-move"));
    let [limited, other] = ["limited", "other"].map(|name| bed.below(name));
    let _sink = bed.0.sink(&bed.0.server_address());
    let sender = bed.send(&other, 2);
    let free = |when: &str| {
        let rate = wait_for(when, || {
            Some(bed.carried(SECOND)).filter(|rate| *rate > 80.0)
        });
        assert!(rate > 80.0, "{when}: {rate} Mbit/s");
    };
    free("before any limit");
    bed.set(&limited, "20mbit", &[]);
    sender.move_to(&limited);
    for (name, expected) in [("processes", 1), ("sockets", 2), ("not_reached", 2)] {
        assert_eq!(bed.sockets(&limited, name), expected, "{name}");
    }
    free("a limit that was set before");

    // Set again, every part of it is in force.
    let again = bed.set(&limited, "20mbit", &[]);
    assert_eq!(again["limit"]["sockets"]["not_reached"], 0);
    assert_eq!(again["limit"]["sockets"]["not_paced"], 0);
    std::thread::sleep(SECOND);
    let rate = bed.carried(3 * SECOND);
    assert!(near(rate, 20.0), "{rate} Mbit/s");
    bed.set(&limited, "5mbit", &[]);
    std::thread::sleep(SECOND);
    let rate = bed.carried(3 * SECOND);
    assert!(near(rate, 5.0), "{rate} Mbit/s");

    // And back.
    sender.move_to(&other);
    assert_eq!(bed.sockets(&limited, "left"), 2);
    bed.set(&limited, "5mbit", &[]);
    assert_eq!(bed.sockets(&limited, "left"), 0);
    free("after it went");
    drop(sender);

    // A socket that was created in the cgroup and leaves.
    let sender = bed.send(&limited, 1);
    bed.traffic(&limited);
    std::thread::sleep(SECOND);
    let rate = bed.carried(SECOND);
    assert!(near(rate, 5.0), "{rate} Mbit/s");
    sender.move_to(&other);
    assert_eq!(bed.sockets(&limited, "left"), 1);
    bed.set(&limited, "5mbit", &[]);
    free("after leaving where it was made");
    bed.remove(&limited);
    assert!(!bed.0.pin.exists());
}

fn what_a_listener_from_elsewhere_accepts_is_limited() {
    let bed = Limited::new(&plain("limit-listen"));
    let [limited, other] = ["limited", "other"].map(|name| bed.below(name));
    let program = "import socket\n\
        l = socket.create_server(('', 5002))\n\
        while True:\n\
        \x20   c = l.accept()[0]\n\
        \x20   try:\n\
        \x20       while True: c.sendall(bytes(1 << 16))\n\
        \x20   except OSError: pass\n";
    let server = bed.start(&other, program, &[]);
    let client = bed.0.pair.address(Side::Client).to_string();
    let read = "import socket, sys, time\n\
        end = time.monotonic() + 20\n\
        while True:\n\
        \x20   try: c = socket.create_connection((sys.argv[1], 5002)); break\n\
        \x20   except OSError:\n\
        \x20       if time.monotonic() > end: raise\n\
        \x20       time.sleep(0.01)\n\
        print('connected')\n\
        while c.recv(1 << 20): pass\n";
    let mut first = bed.0.python(Side::Server, read, &[&client]);
    assert_eq!(first.line(), "connected");
    drop(first);
    server.move_to(&limited);
    let set = bed.set(&limited, "20mbit", &[]);
    assert_eq!(set["limit"]["sockets"]["not_reached"], 0, "{set}");
    assert!(
        set["limit"]["sockets"]["sockets"].as_u64().unwrap() >= 1,
        "{set}"
    );
    let mut second = bed.0.python(Side::Server, read, &[&client]);
    assert_eq!(second.line(), "connected");
    std::thread::sleep(SECOND);
    let rate = bed.carried(2 * SECOND);
    assert!(near(rate, 20.0), "{rate} Mbit/s");
    assert_eq!(bed.sockets(&limited, "not_reached"), 0);
}

fn connections_older_than_the_limit_are_paced() {
    let bed = Limited::new(&plain("limit-old"));
    let cgroup = bed.cgroup();
    let _sink = bed.0.sink(&bed.0.server_address());
    let _sender = bed.send(&cgroup, 4);
    wait_for("traffic", || {
        (bed.carried(SECOND / 10) > 80.0).then_some(())
    });
    let set = bed.set(&cgroup, "20mbit", &[]);
    assert_eq!(set["limit"]["sockets"]["not_paced"], 0, "{set}");
    // Packets in flight at the moment leave.
    std::thread::sleep(SECOND);
    let counts = || ["dropped_bytes", "bytes"].map(|name| bed.count(&cgroup, name) as f64);
    let before = counts();
    let rate = bed.carried(3 * SECOND);
    assert!(near(rate, 20.0), "{rate} Mbit/s");
    let [dropped, passed] = [0, 1].map(|i| counts()[i] - before[i]);
    assert!(
        dropped < 0.2 * passed,
        "{dropped} of {passed} bytes dropped"
    );
}

fn a_slow_limit_gives_one_bbr_flow_what_it_says() {
    let bed = Limited::new(&plain("limit-bbr"));
    let cgroup = bed.cgroup();
    let _sink = bed.0.sink(&bed.0.server_address());
    bed.set(&cgroup, "1mbit", &[]);
    let _sender = bed.send_with(&cgroup, 1, "bbr");
    bed.traffic(&cgroup);
    std::thread::sleep(SECOND);
    let rate = bed.carried(5 * SECOND);
    assert!(near(rate, 1.0), "{rate} Mbit/s {}", bed.show(&cgroup));
    let dropped = bed.count(&cgroup, "dropped_bytes") as f64;
    let passed = bed.count(&cgroup, "bytes") as f64;
    assert!(
        dropped < 0.2 * passed,
        "{dropped} of {passed} bytes dropped"
    );
}

fn few_requests_beside_what_fills_the_limit_wait_for_a_time_out() {
    let bed = Limited::new(&plain("limit-requests"));
    let cgroup = bed.cgroup();
    let _sink = bed.0.sink(&bed.0.server_address());
    bed.set(&cgroup, "10mbit", &[]);
    // It keeps the queue at its maximum, so that packets of a request exceed it.
    let _flood = bed.flood(&cgroup);
    wait_for("drops", || {
        (bed.count(&cgroup, "dropped_packets") > 1000).then_some(())
    });
    let program = "import socket, sys, time\n\
        times = []\n\
        for _ in range(40):\n\
        \x20   begun = time.monotonic()\n\
        \x20   with socket.create_connection((sys.argv[1], 5001)) as c:\n\
        \x20       c.sendall(bytes(10000))\n\
        \x20       c.shutdown(socket.SHUT_WR)\n\
        \x20       c.recv(1)\n\
        \x20   times.append(time.monotonic() - begun)\n\
        \x20   time.sleep(0.05)\n\
        print(*sorted(times))\n";
    let address = bed.0.server_address();
    let said = bed.0.python(Side::Client, program, &[&address]).finish();
    let times: Vec<f64> = said
        .split(' ')
        .map(|time| time.trim().parse().unwrap())
        .collect();
    // TCP's shortest time-out is 200 ms; a lost packet costs one.
    let slow = times.iter().filter(|time| **time > 0.18).count();
    assert!(
        slow * 8 <= times.len(),
        "{slow} of {}: {times:?}",
        times.len()
    );
}

fn loopback_of_both_families_gets_the_rate() {
    let bed = Limited::new(&plain("limit-loopback"));
    let cgroup = bed.cgroup();
    bed.set(&cgroup, "100mbit", &["--loopback"]);
    let program = "import socket, sys, threading\n\
        family = socket.AF_INET6 if ':' in sys.argv[2] else socket.AF_INET\n\
        l = socket.create_server((sys.argv[2], 0), family=family)\n\
        def read():\n\
        \x20   c = l.accept()[0]\n\
        \x20   while c.recv(1 << 20): pass\n\
        threading.Thread(target=read).start()\n\
        c = socket.create_connection(l.getsockname()[:2])\n\
        while True: c.sendall(bytes(1 << 16))\n";
    let rates = ["127.0.0.1", "::1"].map(|address| {
        let _sender = bed.start(&cgroup, program, &[address]);
        bed.traffic(&cgroup);
        std::thread::sleep(SECOND);
        let (begun, before) = (Instant::now(), bed.count(&cgroup, "bytes"));
        std::thread::sleep(3 * SECOND);
        let bytes = bed.count(&cgroup, "bytes") - before;
        bytes as f64 * 8.0 / 1e6 / begun.elapsed().as_secs_f64()
    });
    assert!(
        rates[1] > 0.85 * rates[0],
        "IPv4 {}, IPv6 {} Mbit/s",
        rates[0],
        rates[1]
    );
}

in_virtual_time!(
    #[ignore = "slow: two minutes of a processor"]
    [],
    tcp_gets_the_rate_in_both_families_and_a_change_takes_hold_at_once,
    senders_that_can_are_marked_and_others_told,
    udp_beyond_the_rate_is_dropped_without_an_error,
    removal_leaves_nothing_and_connections_run_free,
    limits_stand_beside_one_another_and_below_one_another,
    a_work_conserving_limit_takes_and_gives_back_what_is_free,
    what_moves_with_its_process_is_limited_and_what_leaves_is_free,
    what_a_listener_from_elsewhere_accepts_is_limited,
    connections_older_than_the_limit_are_paced,
    a_slow_limit_gives_one_bbr_flow_what_it_says,
    few_requests_beside_what_fills_the_limit_wait_for_a_time_out,
    loopback_of_both_families_gets_the_rate,
);
