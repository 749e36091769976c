//! Which flows a rule matches, and what is reported about it.

use std::fs;

use thalweg_lab::host::Side;
use thalweg_testbed::policies::{bed, one_rule, options_of, policy};
use thalweg_testbed::{Bed, plain, privileged, wait_for};

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_protected_flow_is_let_alone_by_rules_and_learner() {
    if !privileged() {
        return;
    }
    // The agent starts before the policy, and again after it.
    let mut bed = Bed::running("never", "");
    bed.apply(&policy(
        "[[rule]]\nname = \"reno\"\nmatch.remote_port = 5001\nset = { congestion = \"reno\", cwnd_clamp = 50 }\n\
         [[rule]]\nname = \"protected\"\nmatch.remote_port = 5003\nnever = true\n\
         [[rule]]\nname = \"protected-here\"\nmatch.local_port = 5003\nnever = true\n\
         [[rule]]\nname = \"reno-here\"\nmatch.local_port = 5001\nset = { congestion = \"reno\" }\n",
    ));
    let server = r#"
import selectors, socket
selector = selectors.DefaultSelector()
for port in (5001, 5002, 5003):
    selector.register(socket.create_server(("", port)), selectors.EVENT_READ, port)
print("listening")
while True:
    for key, _ in selector.select():
        connection = key.fileobj.accept()[0]
        print(connection.getsockopt(6, 13, 16).rstrip(b"\0").decode())
        while connection.recv(1 << 20):
            pass
        connection.close()
"#;
    let mut server = bed.python(Side::Server, server, &[]);
    assert_eq!(server.line(), "listening");
    let client = r#"
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(connection.getsockopt(6, 13, 16).rstrip(b"\0").decode())
connection.sendall(bytes(1000000))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
"#;
    let mut connections = 0;
    for round in 0..2 {
        let owned = bed.counter("app_owned");
        for (port, expected) in [("5001", "reno"), ("5003", "cubic")] {
            let said = bed
                .python(Side::Client, client, &[&bed.server_address(), port])
                .finish();
            assert_eq!(said.trim(), expected, "round {round}");
            assert_eq!(server.line(), expected, "round {round}");
            connections += 1;
        }
        bed.counter_reaches("established", 4);
        assert_eq!(bed.counter("app_owned") - owned, 4, "both ends of both");
        assert_eq!(bed.rule("protected")["matched"], connections / 2);
        assert_eq!(bed.rule("protected-here")["matched"], connections / 2);
        bed.python(Side::Client, client, &[&bed.server_address(), "5002"])
            .finish();
        server.line();
        assert_eq!(
            bed.counter("app_owned") - owned,
            4,
            "the learner has what no rule speaks of"
        );
        if round == 0 {
            assert!(bed.end(nix::sys::signal::Signal::SIGTERM).success());
            assert!(bed.thalweg(&["detach"]).status.success());
            bed.start();
        }
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_learner_chooses_from_the_arms_of_the_rule() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("learnfrom", "");
    bed.apply(&policy(
        "[[rule]]\nname = \"two\"\nmatch.direction = \"active\"\nset = { learn_from = [\"cubic\", \"reno\"] }\n",
    ));
    let _sink = bed.sink(&bed.server_address());
    bed.connect(&bed.server_address(), 60, 1_200_000);
    bed.counter_reaches("closed", 120);
    let chosen: std::collections::BTreeSet<String> = bed
        .events(60)
        .iter()
        .filter(|event| event["kind"] == "decision" && event["passive"] == false)
        .map(|event| event["arm"].as_str().unwrap().to_owned())
        .collect();
    assert!(chosen.contains("reno"), "{chosen:?}");
    assert!(!chosen.contains("bbr"), "{chosen:?}");
    assert_eq!(bed.rule("two")["matched"], 60);
    assert_eq!(bed.counter("app_owned"), 0);
}

/// Accepts connections one by one, and says so; chooses a congestion control if told to.
const CHOOSER: &str = r#"
import socket, sys
listener = socket.create_server(("", 5001))
if sys.argv[1] in ("chooses", "has chosen"):
    listener.setsockopt(6, 13, b"cubic")
print("listening")
while True:
    connection = listener.accept()[0]
    print("accepted")
    while connection.recv(1 << 20):
        pass
    connection.close()
"#;

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn learn_from_leaves_an_applications_choice_and_replaces_an_earlier_policys() {
    if !privileged() {
        return;
    }
    let cases = [
        ("chooses", 0u64, 3),
        ("does not", 3, 0),
        ("has chosen", 0, 3),
    ];
    let has_btf = std::fs::exists("/sys/kernel/btf/vmlinux").unwrap();
    for (chooses, done, owned) in &cases[..if has_btf { 3 } else { 2 }] {
        let mut bed = Bed::new(&plain("learnleft"), "");
        let is_first = *chooses == "has chosen";
        if !is_first {
            bed.start();
            bed.apply(&policy(
                "[[rule]]\nname = \"listener\"\non.listen = { congestion = \"reno\" }\n",
            ));
        }
        let mut server = bed.python(Side::Server, CHOOSER, &[chooses]);
        assert_eq!(server.line(), "listening");
        if is_first {
            bed.start();
        }
        bed.apply(&policy(
            "[[rule]]\nname = \"two\"\nmatch.direction = \"passive\"\n\
             set = { learn_from = [\"cubic\", \"bbr\"] }\n",
        ));
        bed.connect(&bed.server_address(), 3, 1000);
        for _ in 0..3 {
            assert_eq!(server.line(), "accepted");
        }
        let rule = bed.rule("two");
        assert_eq!(
            (&rule["matched"], &rule["done"], &rule["failed"]),
            (&3.into(), &(*done).into(), &0.into()),
            "{chooses}: {rule}"
        );
        assert_eq!(bed.counter("app_owned"), *owned, "{chooses}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn half_of_the_flows_are_sampled() {
    if !privileged() {
        return;
    }
    let bed = bed("sample");
    bed.apply(&policy(
        "[[rule]]\nname = \"half\"\nmatch = { sample = \"50%\", direction = \"active\" }\nset = { nodelay = true }\n",
    ));
    let _sink = bed.sink(&bed.server_address());
    bed.connect(&bed.server_address(), 400, 0);
    let matched = bed.rule("half")["matched"].as_u64().unwrap();
    // Five standard deviations.
    assert!((150..=250).contains(&matched), "{matched} of 400");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn cgroups_are_told_apart_also_nested_ones() {
    if !privileged() {
        return;
    }
    let bed = bed("cgroups");
    let top = bed.pair.cgroup_path().to_owned();
    for directory in ["a", "a/b", "a/b/c", "other"] {
        fs::create_dir(top.join(directory)).unwrap();
    }
    let mount = thalweg_lab::host::cgroup_mount().unwrap();
    let name = |directory: &str| {
        format!(
            "/{}",
            top.join(directory).strip_prefix(&mount).unwrap().display()
        )
    };
    // The inner cgroup's rule comes first in the file; a socket in it is in both.
    bed.apply(&policy(&format!(
        "[[rule]]\nname = \"inner\"\nmatch.cgroup = {:?}\nset = {{ mark = 2 }}\n\
         [[rule]]\nname = \"outer\"\nmatch.cgroup = {:?}\nset = {{ mark = 1 }}\n\
         [[rule]]\nname = \"whole\"\nmatch = {{ cgroup = {:?}, local_port = 5001 }}\nset = {{ mark = 3 }}\n",
        name("a/b"),
        name("a"),
        name(""),
    )));
    let _sink = bed.sink(&bed.server_address());
    let mark = |directory: &str| {
        let client = r#"
import socket, sys
open(sys.argv[2] + "/cgroup.procs", "w").write("0")
connection = socket.create_connection((sys.argv[1], 5001))
print(connection.getsockopt(1, 36))
"#;
        let directory = top.join(directory);
        bed.python(
            Side::Client,
            client,
            &[&bed.server_address(), directory.to_str().unwrap()],
        )
        .finish()
        .trim()
        .to_owned()
    };
    assert_eq!(mark("a"), "1");
    assert_eq!(mark("a/b"), "2");
    assert_eq!(mark("a/b/c"), "2");
    assert_eq!(mark("other"), "0");
    assert_eq!(mark("."), "0");
    assert_eq!(bed.rule("whole")["matched"], 5, "the server's ends");
    // Dropped before the bed, which would wait for their removal.
    for directory in ["a/b/c", "a/b", "a", "other"] {
        let _ = fs::remove_dir(top.join(directory));
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_cgroup_that_is_made_anew_is_the_one_of_its_name() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("renew", "");
    let directory = bed.pair.cgroup_path().join("app");
    let mount = thalweg_lab::host::cgroup_mount().unwrap();
    let name = directory
        .strip_prefix(&mount)
        .unwrap()
        .display()
        .to_string();
    fs::create_dir(&directory).unwrap();
    bed.apply(&policy(&format!(
        "[[rule]]\nname = \"app\"\nmatch.cgroup = \"/{name}\"\nset = {{ mark = 1 }}\n"
    )));
    let _sink = bed.sink(&bed.server_address());
    let mark = || {
        let client = r#"
import socket, sys
open(sys.argv[2] + "/cgroup.procs", "w").write("0")
connection = socket.create_connection((sys.argv[1], 5001))
print(connection.getsockopt(1, 36))
"#;
        let arguments = [&bed.server_address(), directory.to_str().unwrap()];
        let client = bed.python(Side::Client, client, &arguments);
        client.finish().trim().to_owned()
    };
    assert_eq!(mark(), "1");
    wait_for("the end of what ran in it", || {
        fs::remove_dir(&directory).ok()
    });
    fs::create_dir(&directory).unwrap();
    wait_for("the agent to see the cgroup", || {
        bed.logged().contains("cgroup of a rule").then_some(())
    });
    assert_eq!(mark(), "1", "after it was made anew");
    let _ = fs::remove_dir(&directory);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn network_namespaces_are_told_apart() {
    if !privileged() {
        return;
    }
    let bed = bed("netns");
    let said = bed.apply(&policy(&format!(
        "[[rule]]\nname = \"server\"\nmatch.netns = {:?}\nset = {{ mark = 7 }}\n\
         [[rule]]\nname = \"nowhere\"\nmatch.netns = \"no-such-namespace\"\nset = {{ mark = 8 }}\n",
        bed.pair.namespace_name(Side::Server)
    )));
    let notes = said["notes"].to_string();
    assert!(notes.contains("no-such-namespace"), "{said}");
    let (client, server) = options_of(&bed, &[(1, 36)]);
    assert_eq!((client[0], server[0]), (0, 7));
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_fails_is_shown_and_the_rest_is_done() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("fails", "");
    bed.apply(&one_rule("congestion = \"nosuch\", mark = 5"));
    let (client, server) = options_of(&bed, &[(1, 36)]);
    assert_eq!((client[0], server[0]), (5, 5));
    let rule = bed.rule("all");
    let failure = &rule["failures"][0];
    assert_eq!(failure["key"], "congestion", "{rule}");
    assert_eq!(failure["option"], "TCP_CONGESTION", "{rule}");
    assert_eq!(failure["error"], "ENOENT", "{rule}");
    assert!(rule["failed"].as_u64() >= Some(2), "{rule}");
    let shown = bed.thalweg(&["policy", "show"]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("ENOENT"), "{text}");
    wait_for("the agent's log", || {
        bed.logged().contains("TCP_CONGESTION").then_some(())
    });
    assert!(bed.end(nix::sys::signal::Signal::SIGTERM).success());
    assert_eq!(
        bed.logged().matches("TCP_CONGESTION").count(),
        rule["failures"].as_array().unwrap().len(),
        "{}",
        bed.logged()
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_dry_run_counts_and_sets_nothing() {
    if !privileged() {
        return;
    }
    let bed = bed("dry");
    let file = bed.directory.path().join("dry.toml");
    fs::write(&file, one_rule("mark = 5, rwnd_init = 10")).unwrap();
    bed.json(&["policy", "apply", "--dry-run", file.to_str().unwrap()]);
    let (client, server) = options_of(&bed, &[(1, 36)]);
    assert_eq!((client[0], server[0]), (0, 0));
    let rule = bed.rule("all");
    assert_eq!(
        (&rule["matched"], &rule["done"], &rule["asked"]),
        (&2.into(), &0.into(), &0.into()),
        "{rule}"
    );
    assert_eq!(bed.json(&["policy", "show"])["dry_run"], true);
}
