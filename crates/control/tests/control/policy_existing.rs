//! `thalweg policy apply --existing`: connections that were open before the policy.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use thalweg_lab::host::Side;
use thalweg_testbed::{Bed, Traffic, plain, privileged, thalweg};

/// Accepts connections on ports and holds them open.
const HOLDER: &str = r#"
import selectors, socket, sys
selector = selectors.DefaultSelector()
for port in sys.argv[1:]:
    listener = socket.create_server(("::", int(port)), family=socket.AF_INET6, dualstack_ipv6=True)
    selector.register(listener, selectors.EVENT_READ)
print("listening")
held = []
while True:
    for key, _ in selector.select():
        held.append(key.fileobj.accept()[0])
"#;

/// Opens a connection, reports it, and for each line of input prints options of it, each a level
/// and a name. Argument "cgroup=PATH" moves it into a cgroup first; "congestion=NAME" makes it
/// choose a congestion control.
const CLIENT: &str = r#"
import socket, sys
address, port = sys.argv[1], int(sys.argv[2])
arguments = dict(a.split("=") for a in sys.argv[3:] if "=" in a)
options = [tuple(map(int, a.split(","))) for a in sys.argv[3:] if "," in a]
if "cgroup" in arguments:
    open(arguments["cgroup"] + "/cgroup.procs", "w").write("0")
connection = socket.create_connection((address, port))
if "congestion" in arguments:
    connection.setsockopt(6, 13, arguments["congestion"].encode())
connection.sendall(b"x" * 1000)
print("connected")
for line in sys.stdin:
    values = [connection.getsockopt(6, 13, 16).rstrip(b"\0").decode()]
    values += [str(connection.getsockopt(level, name)) for level, name in options]
    print(" ".join(values))
"#;

const MARK: &str = "1,36";
const PACING: &str = "1,47";
const NOTSENT: &str = "6,25";
const USER_TIMEOUT: &str = "6,18";
const SNDBUF: &str = "1,7";

fn holder(bed: &Bed, ports: &[&str]) -> Traffic {
    let mut holder = bed.python(Side::Server, HOLDER, ports);
    assert_eq!(holder.line(), "listening");
    holder
}

fn client(bed: &Bed, port: &str, arguments: &[&str]) -> Traffic {
    let address = bed.server_address();
    let all = [&[address.as_str(), port], arguments].concat();
    let mut client = bed.python(Side::Client, CLIENT, &all);
    assert_eq!(client.line(), "connected");
    client
}

fn ask(client: &mut Traffic) -> String {
    client.go_on();
    client.line()
}

fn rules(text: &str) -> String {
    format!("name = \"test\"\n{text}")
}

/// Applies a policy with further arguments; returns the response.
fn apply(bed: &Bed, policy: &str, arguments: &[&str]) -> Value {
    let file = bed.directory.path().join("existing.toml");
    fs::write(&file, policy).unwrap();
    let apply = ["policy", "apply", file.to_str().unwrap()];
    bed.json(&[&apply, arguments].concat())
}

/// Counters of a rule over open connections: matched, done, unchanged, left, failed.
fn existing(bed: &Bed, rule: &str) -> [u64; 5] {
    let rule = bed.rule(rule);
    ["matched", "done", "unchanged", "left", "failed"].map(|field| {
        let value = rule["existing"][field].as_u64();
        value.unwrap_or_else(|| panic!("{rule}"))
    })
}

/// A server's connection; for each line it prints its time-out. After the fifth it sets its own.
const TIMEOUT: &str = r#"
import socket, sys
listener = socket.create_server((sys.argv[1], 5004))
print("listening", flush=True)
connection = listener.accept()[0]
for number, _ in enumerate(sys.stdin):
    if number == 4:
        connection.setsockopt(socket.IPPROTO_TCP, 18, 7000)
    print(connection.getsockopt(socket.IPPROTO_TCP, 18), flush=True)
"#;

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_cap_raises_what_an_earlier_policy_set_and_leaves_an_applications() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("capraise"), "");
    let address = bed.server_address();
    let cap = |seconds: u32, more: &str| {
        rules(&format!(
            "[[rule]]\nname = \"all\"\n{more}match.direction = \"passive\"\n\
             on.listen = {{ user_timeout = \"5s\" }}\n\
             set = {{ user_timeout = \"{seconds}s\" }}\n"
        ))
    };
    bed.apply(&cap(20, ""));
    let mut server = bed.python(Side::Server, TIMEOUT, &[&address]);
    assert_eq!(server.line(), "listening");
    let client = "import socket, sys; open_ = socket.create_connection((sys.argv[1], 5004)); \
                  sys.stdin.readline()";
    let _client = bed.python(Side::Client, client, &[&address]);
    // The listener's value is a policy's, too.
    assert_eq!(ask(&mut server), "20000");
    for (seconds, more) in [(40, ""), (10, "override = true\n"), (60, "")] {
        let said = apply(&bed, &cap(seconds, more), &["--existing"]);
        assert_eq!(ask(&mut server), (seconds * 1000).to_string(), "{said}");
        assert_eq!(existing(&bed, "all"), [1, 1, 0, 0, 0], "{said}");
    }
    assert_eq!(ask(&mut server), "7000");
    let said = apply(&bed, &cap(90, ""), &["--existing"]);
    assert_eq!(ask(&mut server), "7000");
    assert_eq!(existing(&bed, "all"), [1, 0, 0, 1, 0], "{said}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn open_connections_get_what_new_ones_would() {
    if !privileged() {
        return;
    }
    for family in ["ipv4", "ipv6"] {
        let mut options = plain(&format!("old{family}"));
        if family == "ipv6" {
            options.path.family = thalweg_lab::scenario::Family::Ipv6;
        }
        let bed = Bed::new(&options, "");
        let _holder = holder(&bed, &["5001", "5002", "5003"]);
        let wanted = [MARK, PACING, NOTSENT, USER_TIMEOUT, SNDBUF];
        let mut matched = client(&bed, "5001", &wanted);
        let mut protected = client(&bed, "5002", &wanted);
        let mut unmatched = client(&bed, "5003", &wanted);
        let before = ask(&mut matched);
        assert!(before.starts_with("cubic 0 "), "{before}");
        let policy = rules(
            "[[rule]]\nname = \"set\"\nmatch = { remote_port = 5001, direction = \"active\" }\n\
             set = { congestion = \"reno\", mark = 7, max_pacing_rate = \"80mbit\", \
             notsent_lowat = \"16kB\", user_timeout = \"25s\", sndbuf = \"100kB\", \
             initial_window = 40, timeout_init = \"50ms\", syn_count = 3 }\n\
             [[rule]]\nname = \"protected\"\nmatch.remote_port = 5002\nnever = true\n\
             [[rule]]\nname = \"accepted\"\nmatch = { local_port = 5001, direction = \"passive\" }\n\
             set = { mark = 9 }\n\
             [[rule]]\nname = \"wrong-way\"\nmatch = { local_port = 5001, direction = \"active\" }\n\
             set = { mark = 10 }\n\
             [[rule]]\nname = \"all\"\nmatch.remote_port = 5002\nset = { mark = 8 }\n",
        );

        // Counted, but not set.
        let said = apply(&bed, &policy, &["--existing", "--dry-run"]);
        assert_eq!(existing(&bed, "set"), [1, 0, 0, 0, 0], "{said}");
        assert_eq!(existing(&bed, "accepted"), [1, 0, 0, 0, 0], "{said}");
        assert_eq!(existing(&bed, "wrong-way"), [0; 5], "{said}");
        assert_eq!(ask(&mut matched), before);

        // Without the option they keep their settings.
        apply(&bed, &policy, &[]);
        assert_eq!(ask(&mut matched), before);
        assert_eq!(bed.rule("set")["existing"], Value::Null);

        let said = apply(&bed, &policy, &["--existing"]);
        // The kernel doubles buffers, and counts rates in bytes.
        assert_eq!(
            ask(&mut matched),
            "reno 7 10000000 16000 25000 200000",
            "{said}"
        );
        // Congestion control, mark, rate, unsent data, time-out, buffer; not the three others.
        assert_eq!(existing(&bed, "set"), [1, 6, 0, 0, 0], "{said}");
        assert_eq!(existing(&bed, "protected"), [1, 0, 0, 0, 0], "{said}");
        assert_eq!(existing(&bed, "accepted"), [1, 1, 0, 0, 0], "{said}");
        assert_eq!(ask(&mut protected), before);
        assert_eq!(ask(&mut unmatched), before);
        // Both ends of three connections; three ends match no rule.
        let counts = &said["existing"];
        assert_eq!(
            (&counts["open"], &counts["unmatched"], &counts["newer"]),
            (&6.into(), &3.into(), &0.into()),
            "{said}"
        );
        assert_eq!(counts["notes"], serde_json::json!([]), "{said}");
        let rule = bed.rule("set");
        assert_eq!(
            (&rule["matched"], &rule["done"]),
            (&0.into(), &0.into()),
            "counted apart: {rule}"
        );

        // Once more: all already have their values.
        let said = apply(&bed, &policy, &["--existing"]);
        assert_eq!(existing(&bed, "set"), [1, 0, 6, 0, 0], "{said}");
        assert_eq!(ask(&mut matched), "reno 7 10000000 16000 25000 200000");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn each_of_many_is_reached_once_and_samples_stay_the_same() {
    if !privileged() {
        return;
    }
    const MANY: &str = "400";
    let bed = Bed::new(&plain("oldmany"), "");
    let _holder = holder(&bed, &["5001"]);
    let program = r#"
import socket, sys
held = [socket.create_connection((sys.argv[1], 5001)) for _ in range(int(sys.argv[2]))]
print("connected")
for line in sys.stdin:
    print("".join(str(c.getsockopt(1, 36)) for c in held))
"#;
    let mut old = bed.python(Side::Client, program, &[&bed.server_address(), MANY]);
    assert_eq!(old.line(), "connected");
    let policy = rules(
        "[[rule]]\nname = \"half\"\nmatch = { remote_port = 5001, sample = \"50%\" }\nset = { mark = 1 }\n\
         [[rule]]\nname = \"rest\"\nmatch.remote_port = 5001\nset = { mark = 2 }\n",
    );
    apply(&bed, &policy, &["--existing"]);
    let marks = ask(&mut old);
    let ones = marks.matches('1').count() as u64;
    assert_eq!(marks.matches('2').count() as u64, 400 - ones, "{marks}");
    // Five standard deviations.
    assert!((150..=250).contains(&ones), "{ones} of 400");
    assert_eq!(existing(&bed, "half"), [ones, ones, 0, 0, 0]);
    assert_eq!(existing(&bed, "rest"), [400 - ones, 400 - ones, 0, 0, 0]);

    apply(&bed, &policy, &["--existing"]);
    assert_eq!(ask(&mut old), marks);
    assert_eq!(existing(&bed, "half"), [ones, 0, ones, 0, 0]);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn cgroups_bound_what_is_reached() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("oldcgroup"), "");
    let top = bed.pair.cgroup_path().to_owned();
    let parent = top.parent().unwrap().to_owned();
    fs::create_dir(top.join("inner")).unwrap();
    let mount = thalweg_lab::host::cgroup_mount().unwrap();
    let inner = top.join("inner");
    let name = inner.strip_prefix(&mount).unwrap().display().to_string();
    let _holder = holder(&bed, &["5001"]);
    let at = |path: &std::path::Path| format!("cgroup={}", path.display());
    let mut inside = client(&bed, "5001", &[MARK, &at(&inner)]);
    let mut beside = client(&bed, "5001", &[MARK]);
    let mut outside = client(&bed, "5001", &[MARK, &at(&parent)]);
    let said = apply(
        &bed,
        &rules(&format!(
            "[[rule]]\nname = \"inner\"\nmatch.cgroup = \"/{name}\"\nset = {{ mark = 1 }}\n\
             [[rule]]\nname = \"rest\"\nmatch.remote_port = 5001\nset = {{ mark = 2 }}\n"
        )),
        &["--existing"],
    );
    assert_eq!(ask(&mut inside), "cubic 1", "{said}");
    assert_eq!(ask(&mut beside), "cubic 2", "{said}");
    assert_eq!(ask(&mut outside), "cubic 0", "{said}");
    // The server's ends are in the cgroup; other connections of the machine may be outside.
    assert_eq!(said["existing"]["open"], 5, "{said}");
    assert!(said["existing"]["outside"].as_u64() >= Some(1), "{said}");
    drop((inside, beside, outside));
    let _ = fs::remove_dir(inner);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn network_namespaces_are_told_apart() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("oldnetns"), "");
    let _holder = holder(&bed, &["5001"]);
    let mut old = client(&bed, "5001", &[MARK]);
    let of = |side: Side| {
        let namespace = bed.pair.namespace_name(side);
        let text = rules(&format!(
            "[[rule]]\nname = \"one\"\nmatch.netns = {namespace:?}\nset = {{ mark = 4 }}\n"
        ));
        apply(&bed, &text, &["--existing"]);
        existing(&bed, "one")
    };
    assert_eq!(of(Side::Server), [1, 1, 0, 0, 0]);
    assert_eq!(ask(&mut old), "cubic 0");
    assert_eq!(of(Side::Client), [1, 1, 0, 0, 0]);
    assert_eq!(ask(&mut old), "cubic 4");
}

/// Listens on each port of its network namespace, by several processes: each has few files.
const LISTENERS: &str = r#"
import os, resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
(ready, say), (end, keep) = os.pipe(), os.pipe()
firsts = range(1, 65536, 10000)
for first in firsts:
    if os.fork() == 0:
        os.close(keep)
        held = []
        for port in range(first, min(first + 10000, 65536)):
            listener = socket.socket()
            listener.bind(("", port))
            listener.listen(1)
            held.append(listener)
        os.write(say, b".")
        os.read(end, 1)
        os._exit(0)
for _ in firsts:
    os.read(ready, 1)
print("listening")
sys.stdin.readline()
"#;

/// A user's namespace with listeners on all ports takes no room of others, and decides nothing about
/// their connections. Namespaces are visited by process ID: this one before the bed's.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn listeners_of_another_namespace_change_no_direction() {
    if !privileged() {
        return;
    }
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--net", "python3", "-u", "-c", LISTENERS]);
    let mut elsewhere = Traffic::spawn(elsewhere);
    assert_eq!(elsewhere.line(), "listening");
    let bed = Bed::new(&plain("oldports"), "");
    let ports = ["5001", "5002", "5003"];
    let _holder = holder(&bed, &ports);
    let _clients = ports.map(|port| client(&bed, port, &[]));
    let said = apply(
        &bed,
        &rules(
            "[[rule]]\nname = \"accepted\"\n\
             match = { local_port = \"5001-5003\", direction = \"passive\" }\nset = { mark = 1 }\n\
             [[rule]]\nname = \"opened\"\n\
             match = { remote_port = \"5001-5003\", direction = \"active\" }\nset = { mark = 2 }\n",
        ),
        &["--existing"],
    );
    assert_eq!(existing(&bed, "accepted"), [3, 3, 0, 0, 0], "{said}");
    assert_eq!(existing(&bed, "opened"), [3, 3, 0, 0, 0], "{said}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_the_application_has_chosen_stays() {
    if !privileged() {
        return;
    }
    // The learner's program notices choices of applications.
    let bed = Bed::running("oldown", "");
    let _holder = holder(&bed, &["5001"]);
    let mut own = client(&bed, "5001", &[MARK, "congestion=bbr"]);
    let mut free = client(&bed, "5001", &[MARK]);
    let policy = |name: &str| {
        rules(&format!(
            "[[rule]]\nname = \"cc\"\nmatch.remote_port = 5001\n\
             set = {{ congestion = {name:?}, mark = 6 }}\n"
        ))
    };
    apply(&bed, &policy("reno"), &["--existing"]);
    assert_eq!(ask(&mut own), "bbr 6");
    assert_eq!(ask(&mut free), "reno 6");
    assert_eq!(existing(&bed, "cc"), [2, 3, 0, 1, 0]);
    // A policy's choice does not count as an application's.
    apply(&bed, &policy("cubic"), &["--existing"]);
    assert_eq!(ask(&mut own), "bbr 6");
    assert_eq!(ask(&mut free), "cubic 6");
    assert_eq!(existing(&bed, "cc"), [2, 1, 2, 1, 0]);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn failures_are_counted_by_errno() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("oldfail"), "");
    let _holder = holder(&bed, &["5001"]);
    let mut old = client(&bed, "5001", &[MARK]);
    apply(
        &bed,
        &rules(
            "[[rule]]\nname = \"cc\"\nmatch.remote_port = 5001\n\
             set = { congestion = \"nosuch\", mark = 6 }\n",
        ),
        &["--existing"],
    );
    assert_eq!(ask(&mut old), "cubic 6");
    assert_eq!(existing(&bed, "cc"), [1, 1, 0, 0, 1]);
    let failure = &bed.rule("cc")["failures"][0];
    assert_eq!(
        (&failure["key"], &failure["stage"], &failure["error"]),
        (&"congestion".into(), &"existing".into(), &"ENOENT".into()),
        "{failure}"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn later_stages_begin_for_open_connections() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("oldlater"), "");
    let _sink = bed.sink(&bed.server_address());
    let program = r#"
import socket, sys
connection = socket.create_connection((sys.argv[1], 5001))
connection.sendall(b"x")
print("connected")
for line in sys.stdin:
    connection.close()
    print("closed")
"#;
    let mut old = bed.python(Side::Client, program, &[&bed.server_address()]);
    assert_eq!(old.line(), "connected");
    let said = apply(
        &bed,
        &rules(
            "[[rule]]\nname = \"told\"\nmatch.remote_port = 5001\n[rule.on.close]\nstatistics = \"0\"\n",
        ),
        &["--existing"],
    );
    old.go_on();
    assert_eq!(old.line(), "closed");
    let rule = bed.rule("told");
    let failed = rule["existing"]["failed"].as_u64().unwrap();
    if failed > 0 {
        // TCP_BPF_SOCK_OPS_CB_FLAGS is newer than this kernel: reported, not skipped.
        let failure = &rule["failures"][0];
        assert_eq!(failure["option"], "TCP_BPF_SOCK_OPS_CB_FLAGS", "{rule}");
        return;
    }
    let output = bed.thalweg(&[
        "--json",
        "policy",
        "statistics",
        "--limit",
        "1",
        "--seconds",
        "5",
    ]);
    let flow: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: no event of the close; {said}"));
    assert_eq!(flow["remote_port"], 5001);
    assert!(flow["bytes_acked"].as_u64() >= Some(1), "{flow}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn without_type_information_nothing_is_changed() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("oldbtf"), "");
    let file = bed.directory.path().join("policy.toml");
    fs::write(&file, rules("[[rule]]\nname = \"a\"\nset = { mark = 1 }\n")).unwrap();
    // A mount namespace in which the kernel's BTF is hidden.
    let run = |arguments: &[&str]| {
        Command::new("unshare")
            .args(["--mount", "sh", "-c"])
            .arg("mount -t tmpfs none /sys/kernel/btf && exec \"$@\"")
            .args(["sh", thalweg(), "--config"])
            .arg(bed.configuration())
            .args(["policy", "apply"])
            .arg(&file)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let refused = run(&["--existing"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{text}");
    assert!(text.contains("/sys/kernel/btf/vmlinux"), "{text}");
    assert_eq!(bed.json(&["policy", "show"]), Value::Null);
    let without = run(&[]);
    let text = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(without.status.success(), "{text}");
}

/// Chooses reno before it connects, by TCP or MPTCP; says what it has when it is asked.
const EARLY: &str = r#"
import socket, sys
address, protocol = sys.argv[1], int(sys.argv[2])
def tcp():
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
listener = tcp()
if sys.argv[3] == "listen":
    listener.bind((address, 5001))
    listener.listen()
    print("listening")
    held = listener.accept()
    sys.stdin.read()
connection = tcp()
connection.setsockopt(6, 13, b"reno")
connection.connect((address, 5001))
connection.sendall(b"x" * 1000)
print("connected")
sys.stdin.readline()
print(connection.getsockopt(6, 13, 16).rstrip(b"\0").decode())
"#;

/// The mark of an application's choice lies at the MPTCP socket, and outlasts a rule that lets the
/// connection alone or sets its window.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_an_application_chose_before_it_connected_stays() {
    if !privileged() {
        return;
    }
    const MPTCP: &str = "262";
    let never = "[[rule]]\nname = \"first\"\nmatch.remote_port = 5001\nnever = true\n";
    let window = "[[rule]]\nname = \"first\"\nmatch.remote_port = 5001\n\
                  set = { initial_window = 20 }\n";
    let learn = "[[rule]]\nname = \"then\"\nmatch = { remote_port = 5001, direction = \"active\" }\n\
                 set = { learn_from = [\"cubic\", \"bbr\"] }\n";
    let choose = "[[rule]]\nname = \"then\"\nmatch = { remote_port = 5001, direction = \"active\" }\n\
                  set = { congestion = \"bbr\" }\n";
    for (label, protocol, before) in [
        ("earlynever", "0", Some(never)),
        ("earlywindow", "0", Some(window)),
        ("earlymptcp", MPTCP, None),
    ] {
        if protocol == MPTCP && !fs::exists("/proc/sys/net/mptcp/enabled").unwrap() {
            thalweg_testbed::skip("this kernel has no MPTCP");
            return;
        }
        let bed = Bed::running(label, "");
        if let Some(before) = before {
            apply(&bed, &rules(before), &[]);
        }
        let address = bed.server_address();
        let mut server = bed.python(Side::Server, EARLY, &[&address, protocol, "listen"]);
        assert_eq!(server.line(), "listening");
        let mut client = bed.python(Side::Client, EARLY, &[&address, protocol, "connect"]);
        assert_eq!(client.line(), "connected");
        apply(&bed, &rules(choose), &["--existing"]);
        assert_eq!(existing(&bed, "then"), [1, 0, 0, 1, 0], "{label}");
        if protocol != MPTCP {
            apply(&bed, &rules(learn), &["--existing"]);
            assert_eq!(existing(&bed, "then"), [1, 0, 0, 1, 0], "{label}");
        }
        assert_eq!(ask(&mut client), "reno", "{label}");
    }
}
