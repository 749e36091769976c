//! Policies that replace each other.

use std::fs;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use libbpf_rs::ObjectBuilder;
use serde_json::{Value, json};
use thalweg_control::policy::{PolicyPaths, Prepared};
use thalweg_lab::host::Side;
use thalweg_policy::Policy;

use thalweg_testbed::policies::{bed, one_rule, options_of, policy};
use thalweg_testbed::{Bed, compile, plain, privileged};

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn policies_come_and_go_and_come_back() {
    if !privileged() {
        return;
    }
    let mut bed = bed("back");
    let mark = |bed: &Bed| options_of(bed, &[(1, 36)]).0[0];
    let named =
        |mark: u32| one_rule(&format!("mark = {mark}")).replace("test", &format!("p{mark}"));
    assert_eq!(bed.json(&["policy", "show"]), Value::Null);
    for number in 1..=3 {
        bed.apply(&named(number));
        assert_eq!(mark(&bed), i64::from(number));
    }
    bed.json(&["policy", "rollback"]);
    assert_eq!(mark(&bed), 2);
    assert_eq!(bed.json(&["policy", "show"])["name"], "p2");
    bed.json(&["policy", "rollback"]);
    assert_eq!(mark(&bed), 1);
    let none = bed.thalweg(&["policy", "rollback"]);
    let text = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(text.contains("no policy was in force before"), "{text}");
    assert_eq!(mark(&bed), 1, "a vain rollback changes nothing");

    // A faulty policy changes nothing.
    let file = bed.directory.path().join("fault.toml");
    fs::write(
        &file,
        "name = \"x\"\n[[rule]]\nname = \"r\"\nset = { mark = -1 }\n",
    )
    .unwrap();
    let refused = bed.thalweg(&["policy", "apply", file.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("fault.toml:4:"), "{text}");
    assert_eq!(mark(&bed), 1);

    // As after a restart of the machine: an empty kernel, and an agent that starts.
    thalweg_control::policy::remove(&bed.pin).unwrap();
    assert_eq!(mark(&bed), 0);
    bed.start();
    assert_eq!(mark(&bed), 1);
    assert_eq!(bed.json(&["policy", "remove"])["removed"], true);
    assert_eq!(mark(&bed), 0);
    assert!(bed.end(nix::sys::signal::Signal::SIGTERM).success());
    bed.start();
    assert_eq!(mark(&bed), 0, "what was removed stays away");
    assert!(!bed.pin.join("policy").exists());
    assert_eq!(bed.json(&["policy", "remove"])["removed"], false);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn removal_says_what_listeners_keep() {
    if !privileged() {
        return;
    }
    let bed = bed("kept");
    let listens = one_rule("max_segment = 1000");
    let kept = "services that listen go on giving what test set on them to new connections until \
                they are restarted";
    bed.apply(&one_rule("nodelay = true"));
    bed.apply(&listens);
    let back = bed.json(&["policy", "rollback"]);
    assert!(back["notes"].to_string().contains(kept), "{back}");
    // No listener has what is in force now.
    let removed = bed.json(&["policy", "remove"]);
    assert_eq!(removed, json!({ "removed": true, "notes": [] }));
    bed.apply(&listens);
    let said = String::from_utf8(bed.thalweg(&["policy", "remove"]).stdout).unwrap();
    assert!(said.contains(&format!("note: {kept}\n")), "{said}");
}

fn place(bed: &Bed) -> PolicyPaths {
    PolicyPaths {
        pin: bed.pin.clone(),
        cgroup: bed.pair.cgroup_path().to_owned(),
    }
}

/// A policy that is loaded and ready to be put in force.
fn prepare(bed: &Bed, number: u32, text: &str) -> Prepared {
    let policy = Policy::parse(text.as_bytes(), "swap".as_ref()).unwrap();
    let compiled = policy.compile().unwrap();
    place(bed).prepare(compiled, number, false).unwrap()
}

/// Two policies with different settings at three stages, swapped as fast as possible.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn under_swaps_no_flow_sees_parts_of_two_policies() {
    if !privileged() {
        return;
    }
    let bed = bed("swap");
    let prepared: Vec<_> = [1u32, 2]
        .iter()
        .map(|k| {
            let text = policy(&format!(
                "[[rule]]\nname = \"all\"\nset = {{ rwnd_init = {}, sndbuf = \"{k}00kB\", \
                 user_timeout = \"{k}s\", keepalive_idle = \"{k}0s\" }}\n\
                 [rule.on.connect]\nmark = {k}\n[rule.on.established]\npriority = {k}\n",
                10 + k
            ));
            prepare(&bed, *k, &text)
        })
        .collect();
    prepared[0].commit().unwrap();
    let server = r#"
import socket, sys
listener = socket.create_server(("", 5001), backlog=1024)
print("listening")
seen = set()
for _ in range(int(sys.argv[1])):
    connection = listener.accept()[0]
    # rcv_wnd of the SYN-ACK cannot be read any more; priority and the rest can.
    seen.add((connection.getsockopt(1, 7), connection.getsockopt(6, 18), connection.getsockopt(6, 4), connection.getsockopt(1, 12)))
    connection.close()
print(sorted(seen))
"#;
    const CONNECTIONS: &str = "20000";
    let mut server = bed.python(Side::Server, server, &[CONNECTIONS]);
    assert_eq!(server.line(), "listening");
    let client = r#"
import socket, sys
seen = set()
for _ in range(int(sys.argv[2])):
    connection = socket.create_connection((sys.argv[1], 5001))
    seen.add((connection.getsockopt(1, 36), connection.getsockopt(1, 7), connection.getsockopt(6, 18), connection.getsockopt(6, 4), connection.getsockopt(1, 12)))
    connection.recv(1)
    connection.close()
print(sorted(seen))
"#;
    let mut client = bed.python(Side::Client, client, &[&bed.server_address(), CONNECTIONS]);
    let over = std::sync::atomic::AtomicBool::new(false);
    let (swaps, took) = std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let started = Instant::now();
            let mut swaps = 0u32;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                swaps += 1;
                prepared[swaps as usize % 2].commit().unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            (swaps, started.elapsed())
        });
        let said = client.line();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        let swapped = swapper.join().unwrap();
        assert_eq!(said, "[(1, 200000, 1000, 10, 1), (2, 400000, 2000, 20, 2)]");
        swapped
    });
    assert_eq!(
        server.line(),
        "[(200000, 1000, 10, 1), (400000, 2000, 20, 2)]"
    );
    let rate = f64::from(swaps) / took.as_secs_f64();
    println!("{swaps} swaps, {rate:.0} a second");
    assert!(
        swaps > 50 && rate > 50.0,
        "{swaps} swaps, {rate:.0} a second"
    );
}

/// A connection whose handshake outlasts a swap of policies. Returns its client's settings from
/// before the SYN and after the handshake, and whether the swap came in between.
fn across_a_swap(bed: &Bed, swap: impl FnOnce()) -> (bool, Vec<i64>) {
    const PROGRAM: &str = r#"
import select, socket, sys
connection = socket.socket()
connection.setblocking(False)
connection.connect_ex((sys.argv[1], 5001))
print("begun")
sys.stdin.readline()
print(len(select.select([], [connection], [], 0)[1]))
select.select([], [connection], [])
print(connection.getsockopt(1, 36))
print(connection.getsockopt(1, 12))
"#;
    let mut client = bed.python(Side::Client, PROGRAM, &[&bed.server_address()]);
    assert_eq!(client.line(), "begun");
    swap();
    client.go_on();
    let between = client.line() == "0";
    let set = (0..2).map(|_| client.line().parse().unwrap()).collect();
    (between, set)
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_policy_that_comes_in_the_middle_of_a_handshake_is_not_seen_in_part() {
    if !privileged() {
        return;
    }
    // It takes a second until the client gets an answer.
    let mut options = plain("middle");
    options.path.delay = serde_json::from_value(Value::from("500ms")).unwrap();
    options.wire = thalweg_lab::host::WireKind::Tun;
    let bed = Bed::new(&options, "");
    let _sink = bed.sink(&bed.server_address());
    let early = |number: u32| {
        policy(&format!(
            "[[rule]]\nname = \"all\"\n[rule.on.connect]\nmark = {number}\n\
             [rule.on.established]\npriority = {number}\n"
        ))
    };
    let late = policy("[[rule]]\nname = \"all\"\nset = { congestion = \"reno\" }\n");
    let mut number = 0;
    // The policy before, the one put in force in between, and the settings that a flow may see of
    // both.
    for (before, after, expected) in [
        (None, 1, [0, 0]),
        (Some(early(1)), 2, [1, 1]),
        (Some(late), 3, [0, 0]),
    ] {
        let mut tries = 0;
        loop {
            bed.json(&["policy", "remove"]);
            number += 2;
            if let Some(before) = &before {
                prepare(&bed, number, before).commit().unwrap();
            }
            let next = prepare(&bed, number + 1, &early(after));
            let (between, set) = across_a_swap(&bed, || drop(next.commit().unwrap()));
            tries += 1;
            if between {
                assert_eq!(set, expected, "policy {after}");
                break;
            }
            // The machine was so busy that the swap outlasted the handshake.
            assert!(tries < 10, "no swap within a second");
        }
        // A connection that starts now gets the whole new policy.
        let (_, set) = across_a_swap(&bed, || ());
        assert_eq!(set, [i64::from(after); 2]);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn nor_in_the_middle_of_a_handshake_that_the_peer_began() {
    if !privileged() {
        return;
    }
    const SERVER: &str = r#"
import socket
listener = socket.create_server(("", 5001))
print("listening")
while True:
    print(listener.accept()[0].getsockopt(1, 36))
"#;
    // Reports when a SYN has been answered, and then, on request, the number of open handshakes.
    const WATCHER: &str = r#"
import sys, time
def under_way():
    return sum(line.split()[3] == "03" for line in open("/proc/net/tcp"))
while not under_way():
    time.sleep(0.01)
print("answered")
sys.stdin.readline()
print(under_way())
"#;
    const CLIENT: &str = "import socket, sys\nc = socket.create_connection((sys.argv[1], 5001))\nprint(\"connected\")\nc.recv(1)\n";
    // It takes two seconds until the SYN-ACK is answered: it is retransmitted once, after the swap.
    let mut options = plain("peer");
    options.path.delay = serde_json::from_value(Value::from("1s")).unwrap();
    options.wire = thalweg_lab::host::WireKind::Tun;
    let bed = Bed::new(&options, "");
    let mut server = bed.python(Side::Server, SERVER, &[]);
    assert_eq!(server.line(), "listening");
    let asked = policy(
        "[[rule]]\nname = \"all\"\nmatch.direction = \"passive\"\n\
         set = { rwnd_init = 20, mark = 5 }\n",
    );
    for tries in 1.. {
        assert!(tries < 10, "no swap within two seconds");
        let next = prepare(&bed, tries, &asked);
        let mut watcher = bed.python(Side::Server, WATCHER, &[]);
        let _client = bed.python(Side::Client, CLIENT, &[&bed.server_address()]);
        assert_eq!(watcher.line(), "answered");
        next.commit().unwrap();
        watcher.go_on();
        let between = watcher.line() == "1";
        let mark = server.line();
        if between {
            assert_eq!(mark, "0");
            break;
        }
        bed.json(&["policy", "remove"]);
    }
    let _client = bed.python(Side::Client, CLIENT, &[&bed.server_address()]);
    assert_eq!(server.line(), "5");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn apply_that_cannot_put_the_learner_behind_changes_nothing() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("swapfull", "");
    let file = compile("setter", bed.directory.path(), "setter.o", &[]);
    let object = ObjectBuilder::default().open_file(file).unwrap();
    let object = object.load().unwrap();
    let cgroup = fs::File::open(bed.pair.cgroup_path()).unwrap();
    let program = object.progs_mut().next().unwrap();
    // With the learner's 63 of 64 (BPF_CGROUP_MAX_PROGS): the policy's fits, the learner's second does not.
    let attach = || program.attach_cgroup(cgroup.as_raw_fd()).unwrap();
    let links: Vec<_> = (0..62).map(|_| attach()).collect();
    let path = bed.directory.path().join("policy.toml");
    fs::write(&path, one_rule("mark = 1")).unwrap();
    let apply = ["policy", "apply", path.to_str().unwrap()];
    let refused = bed.thalweg(&apply);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(bed.json(&["policy", "show"]).is_null());
    assert!(bed.thalweg(&["status", "--check"]).status.success());
    // Where there is room, the same policy is the first one.
    drop(links);
    bed.json(&apply);
    assert_eq!(bed.json(&["policy", "show"])["number"], 1);
}
