//! Congestion controls in BPF beside the agent: what it learns of, and what outlives it.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;
use thalweg_lab::host::Side;
use thalweg_testbed::cc::{Flow, compile, row, success};
use thalweg_testbed::{Bed, plain, privileged, unique, wait_for};

/// 1,000 connections of a few segments each, eight at a time. Arguments: address, port, name.
const STORM: &str = r#"
import socket, sys, threading
def some():
    for _ in range(125):
        with socket.socket() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, 13, sys.argv[3].encode())
            connection.connect((sys.argv[1], int(sys.argv[2])))
            connection.sendall(bytes(20000))
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            done.append(1)
done = []
threads = [threading.Thread(target=some) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(done))
"#;

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_thousand_flows_while_it_is_replaced_ten_times_a_second_and_the_agent_dies() {
    if !privileged() {
        return;
    }
    let name = unique("s");
    let mut bed = Bed::new(
        &plain("cc-storm"),
        &format!("[arms]\nallow = [\"cubic\", {name:?}]\n"),
    );
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    bed.start();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let fixed = compile(bed.directory.path(), "fixed.o", &[]);
    // A connection that outlives the agent.
    let mut long = Flow::open(&bed, &name);
    long.state();
    let storm = bed.python(Side::Client, STORM, &[&address, "5001", &name]);
    let over = AtomicBool::new(false);
    let (said, swaps) = std::thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            let mut swaps = 0;
            // At least ten, in case the connections are quick.
            while swaps < 10 || !over.load(Ordering::Relaxed) {
                let begun = std::time::Instant::now();
                let program = if swaps % 2 == 0 {
                    fixed.as_str()
                } else {
                    "htcp"
                };
                success(&bed, &["cc", "swap", &name, program]);
                swaps += 1;
                let period = std::time::Duration::from_millis(100);
                std::thread::sleep(period.saturating_sub(begun.elapsed()));
            }
            swaps
        });
        bed.signal(Signal::SIGKILL);
        let said = storm.finish();
        over.store(true, Ordering::Relaxed);
        (said, swapping.join().unwrap())
    });
    assert_eq!(said.trim(), "1000", "connections failed, {swaps} swaps");
    bed.end(Signal::SIGKILL);
    long.0.go_on();
    assert_eq!(long.state().0, name, "the agent's death changes nothing");
    // A new agent finds it.
    bed.start();
    let arms = bed.json(&["arms"]);
    assert!(arms.to_string().contains(&format!("{name:?}")), "{arms}");
    long.0.finish();
    wait_for("the end of all flows", || {
        (row(&bed, &name)["use"]["flows"] == 0).then_some(())
    });
    success(&bed, &["cc", "unload", &name]);
}

#[test]
#[ignore = "slow: half a minute"]
fn the_learner_takes_up_what_comes_and_drops_what_goes() {
    if !privileged() {
        return;
    }
    let name = unique("l");
    let ecn = unique("e");
    let bed = Bed::running(
        "cc-learn",
        &format!("[arms]\nallow = [\"cubic\", {name:?}, {ecn:?}]\n"),
    );
    let arm = |name: &str| {
        let arms = bed.json(&["arms"]);
        let list = arms["arms"]
            .as_array()
            .or_else(|| arms.as_array())
            .unwrap()
            .clone();
        let found = list.into_iter().find(|arm| arm["name"] == name);
        found.unwrap_or_default()
    };
    assert!(arm(&name).is_null());
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    success(&bed, &["cc", "load", "dctcp", "--name", &ecn]);
    // The agent checks every ten seconds.
    wait_for("the new arms", || {
        (arm(&name)["present"] == true).then_some(())
    });
    assert_eq!(arm(&name)["needs_ecn"], false);
    assert_eq!(arm(&ecn)["needs_ecn"], true);
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let chosen = |name: &str| -> u64 {
        let host = bed.host(&address).unwrap_or_default();
        let arms = host["arms"].as_array().cloned().unwrap_or_default();
        let of = arms.iter().filter(|arm| arm["arm"] == name);
        of.filter_map(|arm| arm["count"].as_u64()).sum()
    };
    wait_for("a connection that is given the new arm", || {
        bed.connect(&address, 5, 300_000);
        (chosen(&name) > 0).then_some(())
    });
    assert_eq!(chosen(&ecn), 0, "these connections have no ECN");

    success(&bed, &["cc", "unload", &name, "--drain"]);
    wait_for("the arm's end", || {
        (arm(&name)["present"] == false).then_some(())
    });
    let before = chosen(&name);
    bed.connect(&address, 40, 100_000);
    assert_eq!(chosen(&name), before, "chosen although it is gone");
    // And back.
    success(&bed, &["cc", "load", "htcp", "--name", &name]);
    wait_for("the arm's return", || {
        (arm(&name)["present"] == true).then_some(())
    });
    // Without what was learned, no arm is too bad to be tried.
    success(&bed, &["reset", &address, "--yes"]);
    wait_for("a connection that is given it again", || {
        bed.connect(&address, 5, 300_000);
        (chosen(&name) > 0).then_some(())
    });
}
