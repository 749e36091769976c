//! The agent inside a kernel without BTF of its own: Debian's user-mode Linux.
//!
//! It also has features that many kernels lack: dctcp, and modules that come and go.

use std::path::Path;
use std::time::Duration;

use thalweg_testbed::place::{self, KERNEL};
use thalweg_testbed::{guest, privileged, thalweg};

const MODULES: &str = "/usr/lib/uml/modules";

/// Boots, runs a script as process 1, and returns its console output.
fn boot(script: &str) -> String {
    let thalweg = thalweg();
    let prologue = format!(
        r#"
module() {{ insmod "$(find {MODULES} -name "$1.ko")"; }}
# What a machine sends to itself is not learned from.
module veth
ip netns add far
ip link add near type veth peer name far netns far
ip address add 192.0.2.2/24 dev near
ip link set near up
ip -n far address add 192.0.2.1/24 dev far
ip -n far link set far up
thalweg() {{ {thalweg} --config /run/agent.toml "$@"; }}
agent() {{
    cat > /run/agent.toml
    thalweg run > /run/log 2>&1 &
    for _ in $(seq 2000); do thalweg status > /dev/null 2>&1 && return; sleep 0.05; done
    cat /run/log
}}
transfer() {{ python3 /run/transfer.py "$@"; }}
cat > /run/transfer.py <<'PYTHON'
import ctypes, os, socket, sys, threading
listening = threading.Event()
def serve():
    global listener
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/run/netns/far") as far:
        assert libc.setns(far.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
    listener = socket.create_server(("192.0.2.1", 0))
    listening.set()
    connection = listener.accept()[0]
    while connection.recv(1 << 20):
        pass
    connection.close()
thread = threading.Thread(target=serve)
thread.start()
listening.wait()
client = socket.create_connection(listener.getsockname())
client.sendall(bytes(int(sys.argv[1]) if len(sys.argv) > 1 else 2000000))
client.shutdown(socket.SHUT_WR)
client.recv(1)
client.close()
thread.join()
PYTHON
"#
    );
    // A busy machine is ten times as slow.
    let limit = Duration::from_secs(900);
    guest::boot(
        Path::new(KERNEL),
        &[],
        &format!("{prologue}{script}"),
        limit,
    )
}

fn available() -> bool {
    privileged() && place::available()
}

/// The JSON document that follows a line with `marker`.
fn json_after(text: &str, marker: &str) -> serde_json::Value {
    let (_, rest) = text
        .split_once(&format!("\n{marker}\n"))
        .unwrap_or_else(|| panic!("no {marker} in:\n{text}"));
    let mut documents = serde_json::Deserializer::from_str(rest).into_iter();
    let document = documents.next().and_then(Result::ok);
    document.unwrap_or_else(|| panic!("no JSON after {marker} in:\n{text}"))
}

const CONFIGURATION: &str = r#"
agent <<'TOML'
cgroup = "/run/cgroup"
[paths]
pin = "/sys/fs/bpf/thalweg"
state = "/run/state"
socket = "/run/agent.sock"
[arms]
load = []
ecn_prefixes = ["192.0.2.0/24"]
[snapshot]
interval = "1h"
[control]
share = 0
permanent = 0
TOML
"#;

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn it_loads_and_learns_without_kernel_btf() {
    if !available() {
        return;
    }
    // Where a slow machine retransmits, bbr may be tried after one measurement. Not each transfer gives one.
    let text = boot(&format!(
        "module tcp_bbr\nmodule tcp_htcp\n{CONFIGURATION}\n\
         ls /sys/kernel/btf\n\
         for _ in $(seq 60); do\n\
         transfer\nthalweg --json status | grep -Eq '\"changed\": 0,|\"scored\": [0-3],' || break\n\
         done\nsleep 1\necho ARMS; thalweg --json arms; echo STATUS; thalweg --json status; cat /run/log\n"
    ));
    assert!(
        text.contains("cannot access '/sys/kernel/btf'"),
        "this kernel has BTF:\n{text}"
    );
    let arms = json_after(&text, "ARMS");
    let mut names: Vec<&str> = arms
        .as_array()
        .unwrap()
        .iter()
        .map(|arm| arm["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["bbr", "cubic", "htcp", "reno"]);
    let status = json_after(&text, "STATUS");
    assert_eq!(status["kernel_busy_time"], false);
    let counters = &status["counters"];
    assert!(counters["scored"].as_u64() >= Some(4), "{text}");
    assert_eq!(counters["established"], counters["closed"], "{text}");
    // A trial needs measurements of the default first.
    assert!(
        counters["changed"].as_u64() >= Some(1),
        "nothing was ever tried:\n{text}"
    );
}

#[test]
#[ignore = "slow: boots a kernel twice"]
fn dctcp_is_chosen_only_where_ecn_was_negotiated() {
    if !available() {
        return;
    }
    // Decisions for dctcp, and decisions with ECN.
    let run = |ecn: u32| {
        let text = boot(&format!(
            "module tcp_dctcp\nsysctl -w net.ipv4.tcp_ecn={ecn}\n{CONFIGURATION}\n\
             for _ in $(seq 25); do transfer; done\nsleep 1\n\
             echo EVENTS; thalweg --json events --limit 1000; cat /run/log\n"
        ));
        let events = json_after(&text, "EVENTS");
        let events = events.as_array().unwrap().clone();
        let count = |field: &str, value: serde_json::Value| {
            events
                .iter()
                .filter(|event| event["kind"] == "decision" && event[field] == value)
                .count()
        };
        (
            count("chosen", "dctcp".into()),
            count("ecn", true.into()),
            text,
        )
    };
    let (chosen, negotiated, text) = run(0);
    assert_eq!(negotiated, 0, "{text}");
    assert_eq!(chosen, 0, "dctcp without ECN is silently Reno:\n{text}");
    let (chosen, negotiated, text) = run(1);
    assert!(negotiated > 0, "{text}");
    assert!(
        chosen > 0,
        "25 connections with ECN and dctcp was never tried:\n{text}"
    );
}

#[test]
#[ignore = "slow: minutes"]
fn an_arm_that_the_kernel_refuses_is_not_chosen_again_until_it_appears() {
    if !available() {
        return;
    }
    // The agent looks every 10 s which modules there are, and is halted while the arm is away. So the
    // arm is chosen, refused, and not chosen again, though the table still has it. When a connection
    // tries it is left to chance and to the machine's speed.
    let text = boot(&format!(
        "module tcp_htcp\n{CONFIGURATION}\nagent=$!\n\
         arms() {{ thalweg --json arms | tr -d ' \\n'; }}\n\
         offered() {{ arms | grep -q 'htcp.,.present.:true'; }}\n\
         for _ in $(seq 20); do\n\
         kill -STOP $agent; rmmod tcp_htcp\n\
         for _ in $(seq 20); do transfer; done\n\
         module tcp_htcp; kill -CONT $agent\n\
         arms | grep -q 'refusals.:[1-9]' && break\n\
         done\n\
         kill -STOP $agent; rmmod tcp_htcp\n\
         for _ in $(seq 20); do transfer; done\n\
         kill -CONT $agent\n\
         echo REFUSED; thalweg --json arms; thalweg --json status | grep -A30 counters\n\
         for _ in $(seq 1500); do offered || break; sleep 0.1; done\n\
         module tcp_htcp\n\
         for _ in $(seq 1500); do offered && break; sleep 0.1; done\n\
         echo BACK; thalweg --json arms; cat /run/log\n"
    ));
    let htcp = |marker: &str| {
        let arms = json_after(&text, marker);
        let arms = arms.as_array().unwrap().clone();
        arms.into_iter().find(|arm| arm["name"] == "htcp").unwrap()
    };
    let refused = htcp("REFUSED");
    assert!(refused["refusals"].as_u64() >= Some(1), "{text}");
    // Where the agent found it away before the loop saw the refusal, it was refused once more.
    for stay in text.split("htcp has become available") {
        let refusals = stay.matches("the kernel refused htcp").count();
        assert!(refusals <= 1, "{text}");
    }
    assert!(refused["refused"].is_string(), "{text}");
    let back = htcp("BACK");
    assert_eq!(
        (&back["present"], &back["refused"]),
        (&true.into(), &serde_json::Value::Null),
        "{text}"
    );
}

/// Only this kernel has them: DCTCP with marks that routers set, and a congestion control that
/// queries a base round-trip time. No agent runs.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn policy_needs_neither_kernel_btf_nor_an_agent() {
    if !available() {
        return;
    }
    let text = boot(
        r#"
module tcp_dctcp
module tcp_nv
module sch_netem
cat > /run/agent.toml <<'TOML'
cgroup = "/run/cgroup"
[paths]
pin = "/sys/fs/bpf/thalweg"
state = "/run/state"
socket = "/run/agent.sock"
TOML
cat > /run/dctcp.toml <<'TOML'
name = "dctcp"
[[rule]]
name = "all"
match.remote = "192.0.2.0/24"
set = { needs_ecn = true, congestion = "dctcp", statistics = "1ms", timeout_init = "50ms", rwnd_init = 10, initial_window = 4, sndbuf = "100kB", send_option = 7, read_option = true, reflect_tos = true }
TOML
sed 's/dctcp/nv/; s/"dctcp"/"nv"/; s/needs_ecn = true/base_rtt = "80us"/' /run/dctcp.toml > /run/nv.toml
sysctl -qw net.ipv4.tcp_ecn=0
tc qdisc add dev near root netem ecn loss 20%
thalweg policy apply /run/dctcp.toml
# Packets of 64 kB and one record a millisecond: so much that a record sees a mark.
transfer 30000000
echo STATISTICS; thalweg --json policy statistics --seconds 1 | grep -v bytes_acked.:[01], | tail -n 1
echo DCTCP; thalweg --json policy show
# Without ECN the packets that would be marked are lost: a transfer takes seconds, or a minute.
tc qdisc del dev near root
thalweg policy apply /run/nv.toml
transfer
echo NV; thalweg --json policy show
thalweg policy remove
ls /sys/fs/bpf
"#,
    );
    let flow = json_after(&text, "STATISTICS");
    assert!(
        flow["delivered_ce"].as_u64() >= Some(1),
        "no mark came back:\n{text}"
    );
    assert_eq!(flow["received_option"], 7, "{text}");
    for marker in ["DCTCP", "NV"] {
        let rule = json_after(&text, marker)["rules"][0].clone();
        assert_eq!(rule["matched"], 2, "{text}");
        assert_eq!(rule["failed"], 0, "{text}");
        // Both ends: time-out, window; and one more: ECN, or the base round-trip time.
        assert!(rule["asked"].as_u64() >= Some(6), "{text}");
    }
    assert!(text.contains("removed from the kernel"), "{text}");
}
