//! Faults, and their consequences.

use std::fs;
use std::process::Command;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::signal::Signal;
use thalweg_lab::host::Side;
use thalweg_testbed::{Bed, copy_of_command, plain, privileged, thalweg, wait_for};

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_second_agent_is_refused_and_harms_nothing() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("second", "");
    let output = bed.run_command().output().expect("running a second agent");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("pid {}", bed.pid())), "{text}");
    assert!(!text.contains("waiting"), "{text}");
    assert_eq!(
        bed.json(&["status"])["pid"].as_u64(),
        Some(u64::from(bed.pid()))
    );
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 0);
    bed.counter_reaches("closed", 2);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_second_agent_with_the_same_pins_alone_is_refused_too() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("pins", "");
    let other = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(bed.configuration()).unwrap();
    let text = text.replace(
        bed.directory.path().to_str().unwrap(),
        other.path().to_str().unwrap(),
    );
    let file = other.path().join("agent.toml");
    fs::write(&file, text).unwrap();
    let output = Command::new(thalweg())
        .arg("--config")
        .arg(&file)
        .arg("run")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("another agent already uses"), "{text}");
    assert!(bed.pin.join("link_sockops").exists());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn full_table_gives_way_to_new_hosts() {
    if !privileged() {
        return;
    }
    let mut options = plain("full");
    options.further_addresses = 199;
    let mut bed = Bed::new(&options, "[hosts]\nmax = 64\n");
    bed.start();
    let _sink = bed.sink("0.0.0.0");
    let addresses = bed.pair.server_addresses();
    let visit = r#"
import socket, sys
for address in sys.argv[2:]:
    with socket.create_connection((address, int(sys.argv[1]))) as connection:
        connection.sendall(bytes(500000))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
"#;
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut arguments = vec!["5001"];
    arguments.extend(texts.iter().map(String::as_str));
    bed.python(Side::Client, visit, &arguments).finish();
    bed.counter_reaches("closed", 2 * addresses.len() as u64);
    assert_eq!(bed.counter("established"), 2 * addresses.len() as u64);
    // 64 hosts, 8 networks, and room for 64 newcomers until the agent looks again.
    let hosts = bed.json(&["status"])["hosts"].as_u64().unwrap();
    assert!((1..=136).contains(&hosts), "{hosts} records");
    // The agent makes room between two looks; what came meanwhile had the default.
    let last = texts.last().unwrap();
    wait_for("a record of the latest", || {
        bed.python(Side::Client, visit, &["5001", last]).finish();
        bed.host(last)
    });
    // All were measured once: the longest unseen went.
    assert!(bed.host(&texts[0]).is_none(), "the oldest stayed");
}

/// Slots of connections whose end nobody saw must not keep new connections from being measured.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn dead_connections_give_way_to_new_ones() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("slots", "");
    let slots = MapHandle::from_pinned_path(bed.pin.join("conns")).unwrap();
    let mut dead = vec![0u8; slots.value_size() as usize];
    dead[..8].copy_from_slice(&u64::MAX.to_ne_bytes()); // cookie
    dead[8..16].copy_from_slice(&1u64.to_ne_bytes()); // began long ago
    let count = slots.max_entries();
    let keys: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
    let values = dead.repeat(count as usize);
    slots
        .update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)
        .unwrap();

    let _sink = bed.sink("0.0.0.0");
    bed.connect(&bed.server_address(), 3, 2_000_000);
    bed.counter_reaches("scored", 3);
    assert_eq!(
        bed.counter("conns_missed"),
        6,
        "three connections, two ends each"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_corrupt_store_is_set_aside_and_said_so() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("corrupt"), "");
    fs::create_dir_all(bed.state()).unwrap();
    let garbage = b"this is no database".repeat(1000);
    fs::write(bed.state().join("thalweg.db"), &garbage).unwrap();
    bed.start();
    let problems = bed.json(&["status"])["problems"].to_string();
    assert!(problems.contains("damaged"), "{problems}");
    assert!(bed.logged().contains("damaged"), "{}", bed.logged());
    let kept: Vec<_> = fs::read_dir(bed.state())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains("corrupt"))
        .collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(
        fs::read(&kept[0]).unwrap(),
        garbage,
        "the damaged file was changed"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn pinned_state_of_another_version_is_refused_not_misread() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("version", "");
    bed.end(Signal::SIGTERM);
    let meta = MapHandle::from_pinned_path(bed.pin.join("meta")).unwrap();
    let key = 0u32.to_ne_bytes();
    let mut value = meta.lookup(&key, MapFlags::ANY).unwrap().unwrap();
    value[0] = 77;
    meta.update(&key, &value, MapFlags::ANY).unwrap();
    let output = bed.run_command().output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("version 77") && text.contains("thalweg detach"),
        "{text}"
    );
    assert!(bed.pin.join("hosts").exists(), "refused state was removed");
    assert!(bed.thalweg(&["detach"]).status.success());
    bed.start();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_ring_may_overflow_but_every_loss_is_counted() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("ring", "[events]\nring = \"64KiB\"\n");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    // One scored connection, so that later connections have a decision.
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    bed.signal(Signal::SIGSTOP);
    bed.connect(&address, 1000, 0);
    bed.signal(Signal::SIGCONT);
    bed.counter_reaches("closed", 2002);
    let (events, dropped) = (bed.counter("events"), bed.counter("events_dropped"));
    assert_eq!(
        events + dropped,
        1001,
        "an event was neither handed over nor counted as lost"
    );
    assert!(dropped > 0, "64 KiB cannot hold 1001 events");
    assert_eq!(
        bed.host(&address).unwrap()["connections"],
        1001,
        "learning must not depend on it"
    );
    wait_for("the rest in the store", || {
        (bed.json(&["status"])["events_stored"].as_u64() == Some(events)).then_some(())
    });
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_change_of_mode_keeps_both_sets_of_records_apart() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("mode", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("closed", 2);
    bed.end(Signal::SIGTERM);
    bed.configure("mode = \"classic\"\n");
    bed.start();
    assert!(
        bed.host(&address).is_none(),
        "costs of one mode mean nothing in the other"
    );
    bed.end(Signal::SIGTERM);
    bed.configure("");
    bed.start();
    assert_eq!(bed.host(&address).expect("back with its mode")["scored"], 1);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn another_map_size_carries_the_records_over() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("resize", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("closed", 2);
    bed.end(Signal::SIGTERM);
    bed.configure("[hosts]\nmax = 1000\n[events]\nring = \"1MiB\"\n");
    bed.start();
    assert_eq!(bed.json(&["status"])["hosts_max"], 1000);
    assert_eq!(bed.host(&address).expect("carried over")["scored"], 1);
    bed.measure(&address);
    assert_eq!(bed.host(&address).unwrap()["scored"], 2);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn without_privilege_it_says_what_is_missing_and_what_works() {
    if !privileged() {
        return;
    }
    // As nobody: the binary must be readable for others, so it is copied.
    let directory = tempfile::Builder::new()
        .prefix("thalweg")
        .tempdir()
        .unwrap();
    let binary = directory.path().join("thalweg");
    copy_of_command(&binary);
    let state = directory.path().join("state");
    let configuration = directory.path().join("a.toml");
    fs::write(
        &configuration,
        format!(
            "[paths]\npin = \"/sys/fs/bpf/nobody\"\nstate = {state:?}\nsocket = \"{}/s\"\n",
            state.display()
        ),
    )
    .unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let as_nobody = |arguments: &[&str]| {
        Command::new("setpriv")
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "--inh-caps=-all",
            ])
            .arg(&binary)
            .arg("--config")
            .arg(&configuration)
            .args(arguments)
            .output()
            .expect("setpriv")
    };
    let run = as_nobody(&["run"]);
    let text = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success(), "{text}");
    for part in ["CAP_BPF", "CAP_NET_ADMIN", "root"] {
        assert!(text.contains(part), "{part} not in: {text}");
    }
    let doctor = as_nobody(&["doctor"]);
    assert_eq!(
        doctor.status.code(),
        Some(3),
        "{}",
        String::from_utf8_lossy(&doctor.stdout)
    );
    assert!(
        String::from_utf8_lossy(&doctor.stdout).contains("missing"),
        "no table"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_cgroup_that_does_not_exist_is_named() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("nocgroup"), "");
    let text = fs::read_to_string(bed.configuration()).unwrap();
    let cgroup = bed.pair.cgroup_path().to_str().unwrap().to_string();
    fs::write(
        bed.configuration(),
        text.replace(&cgroup, &format!("{cgroup}-absent")),
    )
    .unwrap();
    let output = bed.run_command().output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("-absent"), "{text}");
    assert!(!bed.pin.exists(), "a start that failed left pins behind");
}
