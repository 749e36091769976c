//! Policies beside firewalls, other programs, and values that the application has set.

use std::fs;
use std::os::fd::AsRawFd;
use std::process::Command;

use libbpf_rs::{MapCore, MapFlags, ObjectBuilder};
use thalweg_lab::host::Side;

use thalweg_testbed::policies::{bed, policy};
use thalweg_testbed::{Bed, compile, privileged, thalweg, wait_for};

/// Option, level and name in Python; a stricter value of an application.
const OWN: [(i32, i32, i64); 5] = [
    (6, 18, 5_000),
    (1, 47, 125_000),
    (6, 25, 16_384),
    (6, 4, 5),
    (6, 6, 2),
];

/// The values of a client's socket that has set those of `OWN` (or none), once it is connected.
fn client_values(bed: &Bed, sets: bool) -> Vec<i64> {
    const PROGRAM: &str = r#"
import socket, sys
connection = socket.socket()
options = [[int(part) for part in one.split(",")] for one in sys.argv[3:]]
if sys.argv[2] == "True":
    for level, name, value in options:
        connection.setsockopt(level, name, value)
connection.connect((sys.argv[1], 5001))
for level, name, _ in options:
    print(connection.getsockopt(level, name))
"#;
    let address = bed.server_address();
    let options = OWN.map(|(level, name, value)| format!("{level},{name},{value}"));
    let sets = if sets { "True" } else { "False" };
    let mut arguments = vec![&*address, sets];
    arguments.extend(options.iter().map(String::as_str));
    let said = bed.python(Side::Client, PROGRAM, &arguments).finish();
    said.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_cap_leaves_an_applications_stricter_value() {
    if !privileged() {
        return;
    }
    let bed = bed("caps");
    let _sink = bed.sink(&bed.server_address());
    let rule = |more: &str| {
        policy(&format!(
            "[[rule]]\nname = \"all\"\n{more}match.direction = \"active\"\n\
             set = {{ user_timeout = \"30s\", max_pacing_rate = \"200mbit\", \
             notsent_lowat = \"200kB\", keepalive_idle = \"1m\", keepalive_count = 5 }}\n"
        ))
    };
    let own: Vec<i64> = OWN.iter().map(|(_, _, value)| *value).collect();
    let policys = [30_000, 25_000_000, 200_000, 60, 5];
    bed.apply(&rule(""));
    assert_eq!(client_values(&bed, true), own);
    assert_eq!(client_values(&bed, false), policys);
    let rule_now = bed.rule("all");
    assert_eq!(
        (&rule_now["done"], &rule_now["failed"]),
        (&5.into(), &0.into())
    );
    bed.apply(&rule("override = true\n"));
    assert_eq!(client_values(&bed, true), policys);
}

/// Sockets have their probes of a sysctl, which is no application's choice.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_cap_raises_what_a_sysctl_lowered() {
    if !privileged() {
        return;
    }
    const PROGRAM: &str = r#"
import socket, subprocess, sys
for name, value in (("time", 300), ("intvl", 20), ("probes", 3)):
    with open(f"/proc/sys/net/ipv4/tcp_keepalive_{name}", "w") as file:
        file.write(str(value))
subprocess.run(sys.argv[2:], check=True, stdout=subprocess.DEVNULL)
connection = socket.create_connection((sys.argv[1], 5001))
print([connection.getsockopt(socket.SOL_TCP, option) for option in (4, 5, 6)])
"#;
    let bed = bed("capsysctl");
    let _sink = bed.sink(&bed.server_address());
    let file = bed.directory.path().join("policy.toml");
    let text = policy(
        "[[rule]]\nname = \"all\"\nmatch.direction = \"active\"\n\
         set = { keepalive_idle = \"10m\", keepalive_interval = \"30s\", keepalive_count = 7 }\n",
    );
    fs::write(&file, text).unwrap();
    let config = bed.configuration();
    let [file, config] = [&file, &config].map(|path| path.to_str().unwrap());
    let address = bed.server_address();
    let apply = [
        &*address,
        thalweg(),
        "--config",
        config,
        "policy",
        "apply",
        file,
    ];
    let said = bed.python(Side::Client, PROGRAM, &apply).finish();
    assert_eq!(said.trim(), "[600, 30, 7]");
}

/// 2 keeps the Ethernet header of a SYN, too, of which the application then knows.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_listener_keeps_as_much_of_syns_as_it_asked_for() {
    if !privileged() {
        return;
    }
    const PROGRAM: &str = r#"
import socket, sys
for kept in (0, 1, 2):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_TCP, 27, kept)
    listener.bind((sys.argv[1], 0))
    listener.listen()
    print(listener.getsockopt(socket.SOL_TCP, 27), end=" ")
"#;
    let bed = bed("savesyn");
    bed.apply(&policy(
        "[[rule]]\nname = \"all\"\nset = { reflect_tos = true }\n",
    ));
    let address = bed.server_address();
    let said = bed.python(Side::Server, PROGRAM, &[&address]).finish();
    assert_eq!(said.trim(), "1 1 2");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn callbacks_that_another_program_switches_off_are_counted() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("silenced", "");
    bed.apply(&policy(
        "[[rule]]\nname = \"all\"\nmatch.direction = \"active\"\non.rtt = { mark = 3 }\n",
    ));
    let _sink = bed.sink(&bed.server_address());
    let address = bed.server_address();
    let mut client = bed.python(Side::Client, HOLD, &[&address, "3"]);
    assert_eq!(client.line(), "open");
    let rule = bed.rule("all");
    assert_eq!(rule["failed"], 0, "{rule}");

    let object = compile("silencer", bed.directory.path(), "silencer.o", &[]);
    let cgroup = bed.pair.cgroup_path().to_str().unwrap().to_owned();
    let object = object.to_str().unwrap();
    let load = ["sockops", "load", object, "--cgroup", &cgroup];
    let output = bed.thalweg(&load);
    assert!(output.status.success(), "{output:?}");
    let mut silent = bed.python(Side::Client, HOLD, &[&address, "3"]);
    assert_eq!(silent.line(), "open");
    let rule = bed.rule("all");
    let failure = serde_json::json!([{
        "key": "later stages",
        "option": "TCP_BPF_SOCK_OPS_CB_FLAGS",
        "stage": "established",
        "error": "switched off by another program",
        "count": 3,
    }]);
    assert_eq!((&rule["failed"], &rule["failures"]), (&3.into(), &failure));
    let shown = bed.thalweg(&["policy", "show"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    // The table breaks lines.
    let words: Vec<&str> = shown.split_whitespace().collect();
    let words = words.join(" ");
    assert!(
        words.contains("3 x switched off by another program"),
        "{shown}"
    );
    let problems = || bed.json(&["status"])["problems"].to_string();
    let said = problems();
    for part in ["policy test", "3 with rule \\\"all\\\""] {
        assert!(said.contains(part), "{said}");
    }
    let output = bed.thalweg(&["sockops", "unload", "silencer"]);
    assert!(output.status.success(), "{output:?}");
    drop(silent);
    wait_for("the problem's end", || {
        (!problems().contains("switched off")).then_some(())
    });
}

/// Connections that stay open. Arguments: the server's address, how many.
const HOLD: &str = r#"
import socket, sys
connections = [socket.create_connection((sys.argv[1], 5001)) for _ in range(int(sys.argv[2]))]
print("open")
sys.stdin.readline()
"#;

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn ends_of_a_share_that_another_program_keeps_from_the_policy_are_counted() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("silentshare", "");
    bed.apply(&policy(
        "[[rule]]\nname = \"half\"\nmatch = { direction = \"active\", sample = \"50%\" }\n\
         set = { mark = 3 }\n",
    ));
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let mut client = bed.python(Side::Client, HOLD, &[&address, "12"]);
    assert_eq!(client.line(), "open");
    let rule = bed.rule("half");
    assert_eq!(rule["failed"], 0, "{rule}");
    let object = compile("silencer", bed.directory.path(), "silencer.o", &[]);
    let cgroup = bed.pair.cgroup_path().to_str().unwrap().to_owned();
    let object = object.to_str().unwrap();
    let output = bed.thalweg(&["sockops", "load", object, "--cgroup", &cgroup]);
    assert!(output.status.success(), "{output:?}");
    // Those that the share left, too: both sides miss their ends.
    let mut silent = bed.python(Side::Client, HOLD, &[&address, "7"]);
    assert_eq!(silent.line(), "open");
    let rule = bed.rule("half");
    let failures = serde_json::json!([{
        "key": "sample",
        "option": "TCP_BPF_SOCK_OPS_CB_FLAGS",
        "stage": "established",
        "error": "switched off by another program",
        "count": 7,
    }]);
    assert_eq!(rule["failures"], failures);
    let problems = || bed.json(&["status"])["problems"].to_string();
    let said = problems();
    assert!(said.contains("7 with rule \\\"half\\\""), "{said}");
    // Where the kernel cannot tell, it says so, and only of a policy that needs callbacks.
    let shown = || {
        let hidden = "mount -t tmpfs none /sys/kernel/btf; exec \"$@\"";
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", hidden, "sh", thalweg(), "--config"])
            .arg(bed.configuration())
            .args(["policy", "show"])
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let text = shown();
    let note =
        "note: callbacks that another program switches off are not seen: the kernel has no BTF";
    assert!(
        text.contains(note) && !text.contains("switched off"),
        "{text}"
    );
    bed.apply(&policy("[[rule]]\nname = \"half\"\nset = { mark = 3 }\n"));
    let text = shown();
    assert!(!text.contains("note:"), "{text}");
    wait_for("the problem's end", || {
        (!problems().contains("switched off")).then_some(())
    });
}

#[test]
fn callbacks_for_headers_that_another_program_wants_outlast_send_option() {
    if !privileged() {
        return;
    }
    for (direction, flag) in [("active", "-DHEADERS=0"), ("passive", "-DHEADERS=1")] {
        let bed = bed(&format!("headers{direction}"));
        // Attached first: its request comes before the policy is done with the handshake.
        let object = compile("probe", bed.directory.path(), "probe.o", &[flag]);
        let mut object = ObjectBuilder::default().open_file(object).unwrap();
        for mut program in object.progs_mut() {
            let wanted = program.name() == "probe";
            program.set_autoload(wanted);
        }
        let object = object.load().unwrap();
        let program = object.progs_mut().find(|it| it.name() == "probe").unwrap();
        let cgroup = fs::File::open(bed.pair.cgroup_path()).unwrap();
        let _link = program.attach_cgroup(cgroup.as_raw_fd()).unwrap();
        bed.apply(&policy(&format!(
            "[[rule]]\nname = \"all\"\nmatch.direction = \"{direction}\"\n\
             set = {{ send_option = 7 }}\n"
        )));
        let address = bed.server_address();
        let _sink = bed.sink(&address);
        bed.connect(&address, 1, 1_000_000);
        let rule = bed.rule("all");
        assert_eq!((&rule["done"], &rule["failed"]), (&1.into(), &0.into()));
        let map = object.maps().find(|map| map.name() == "established");
        let bytes = map.unwrap().lookup(&[0; 4], MapFlags::ANY).unwrap();
        let count = u64::from_ne_bytes(bytes.unwrap().try_into().unwrap());
        assert!(count > 3, "{count} callbacks for a connection of 1 MB");
    }
}

/// Drops what arrives on a side with option 253 in a SYN or SYN-ACK.
fn start_firewall(bed: &Bed, side: Side) {
    let object = compile("firewall", bed.directory.path(), "firewall.o", &[]);
    // Not the server's own address, which is at lo there.
    let server = bed.server_address();
    let network = server.rsplit_once('.').unwrap().0;
    let device = bed.device(side, &format!("{network}.77"));
    let netns = bed.pair.namespace_name(side);
    let tc = |arguments: &[&str]| {
        Command::new("tc")
            .args(["-n", netns])
            .args(arguments)
            .output()
            .unwrap()
    };
    // There may be one already.
    tc(&["qdisc", "add", "dev", &device, "clsact"]);
    let object = object.to_str().unwrap();
    let filter = [
        "filter",
        "add",
        "dev",
        &device,
        "ingress",
        "pref",
        "1",
        "bpf",
        "direct-action",
        "object-file",
        object,
        "section",
        "tc",
    ];
    let output = tc(&filter);
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_firewall_that_drops_the_option_delays_a_connection_and_is_counted() {
    if !privileged() {
        return;
    }
    for (side, direction) in [(Side::Server, "active"), (Side::Client, "passive")] {
        let bed = bed("firewall");
        bed.apply(&policy(&format!(
            "[[rule]]\nname = \"all\"\nmatch.direction = \"{direction}\"\n\
             set = {{ send_option = 7 }}\n"
        )));
        let _sink = bed.sink(&bed.server_address());
        start_firewall(&bed, side);
        // The second SYN, or SYN-ACK, comes through.
        bed.connect(&bed.server_address(), 1, 1000);
        let rule = bed.rule("all");
        assert_eq!(
            (&rule["done"], &rule["failed"]),
            (&1.into(), &1.into()),
            "{rule}"
        );
        assert_eq!(rule["failures"][0]["key"], "send_option", "{rule}");
        assert_eq!(rule["failures"][0]["error"], "ETIMEDOUT", "{rule}");
    }
}
