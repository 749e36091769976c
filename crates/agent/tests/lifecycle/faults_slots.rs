//! Starts that give the slot of an arm that is gone to another: no evidence changes its arm.

use std::fs;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::signal::Signal;
use thalweg_bpf_types::{arm_name_bytes, bytes_of, from_bytes, raw};

use crate::faults_start::learned;
use thalweg_testbed::{Bed, privileged, wait_for};

/// Other tests load congestion controls of their own meanwhile, which would take the slot.
const ARMS: &str = "[arms]\nallow = [\"cubic\", \"reno\", \"bbr\"]\n";

/// As after many names: all slots are taken, reno has none, and each has a record, the arm in slot
/// 9 the smallest. The agent is stopped.
fn take_all_slots(bed: &Bed) {
    let map = MapHandle::from_pinned_path(bed.pin.join("arms")).unwrap();
    let zero = 0u32.to_ne_bytes();
    let mut table = arm_table(bed);
    let reno = arm_name_bytes("reno").unwrap();
    for (index, arm) in table.arms.iter_mut().enumerate() {
        if arm.name[0] == 0 || arm.name == reno {
            *arm = raw::thalweg_arm::default();
            arm.name = arm_name_bytes(&format!("gone{index}")).unwrap();
        }
    }
    map.update(&zero, bytes_of(&table), MapFlags::ANY).unwrap();
    let hosts = MapHandle::from_pinned_path(bed.pin.join("hosts")).unwrap();
    for key in hosts.keys() {
        let value = hosts.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let mut host: raw::thalweg_host = from_bytes(&value).unwrap();
        host.used = 16;
        for (index, arm) in host.statistics.iter_mut().enumerate() {
            arm.scored += if index == 9 { 1 } else { 5 };
        }
        hosts.update(&key, bytes_of(&host), MapFlags::ANY).unwrap();
    }
}

fn arm_table(bed: &Bed) -> raw::thalweg_arms {
    let map = MapHandle::from_pinned_path(bed.pin.join("arms")).unwrap();
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap();
    from_bytes(&value.unwrap()).unwrap()
}

/// Slot 9 is reno's, without a record, and the records of others stay.
fn assert_slot_is_given(bed: &Bed, address: &str) {
    assert_eq!(arm_table(bed).arms[9].name, arm_name_bytes("reno").unwrap());
    let host = bed.host(address).unwrap();
    let arms = host["arms"].as_array().unwrap();
    let of = |name: &str| arms.iter().find(|arm| arm["arm"] == name);
    assert!(of("reno").is_none_or(|arm| arm["scored"] == 0), "{host}");
    assert!(
        of("cubic").is_some_and(|arm| arm["scored"].as_u64() >= Some(5)),
        "{host}"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_slot_of_an_arm_that_is_gone_is_given_to_one_that_came() {
    if !privileged() {
        return;
    }
    let (mut bed, address, _sink) = learned("slots16", ARMS);
    bed.end(Signal::SIGTERM);
    take_all_slots(&bed);
    bed.start();
    assert_slot_is_given(&bed, &address);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_agent_killed_while_it_gives_a_slot_away_gives_none_of_its_evidence() {
    if !privileged() {
        return;
    }
    for settings in ["", "[hosts]\nmax = 1000\n"] {
        let settings = format!("{settings}{ARMS}");
        let (mut bed, address, _sink) = learned("slotskill", ARMS);
        bed.end(Signal::SIGTERM);
        take_all_slots(&bed);
        bed.dies_at("arms::emptying=return");
        bed.configure(&settings);
        bed.start();
        assert_slot_is_given(&bed, &address);
    }
}

/// A connection gets the arm of a slot after the agent has checked that none refers to it.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_slot_that_a_connection_takes_up_meanwhile_is_not_given_away() {
    if !privileged() {
        return;
    }
    let (mut bed, address, _sink) = learned("slotsrace", ARMS);
    let before = bed.pid().to_string();
    bed.end(Signal::SIGTERM);
    take_all_slots(&bed);
    let mut command = bed.run_command();
    command.env("FAILPOINTS", "arms::chosen=1*sleep(3000)");
    let (lock, pin) = (bed.state().join("agent.lock"), bed.pin.clone());
    let connection = std::thread::spawn(move || {
        let sleeps = wait_for("the agent between its look and the change", || {
            let pid = fs::read_to_string(&lock).ok()?;
            let pid = pid.split_whitespace().next()?;
            let waits = fs::read_to_string(format!("/proc/{pid}/wchan")).ok()?;
            (pid != before && waits.contains("nanosleep")).then(|| pid.to_owned())
        });
        let conns = MapHandle::from_pinned_path(pin.join("conns")).unwrap();
        let mut conn = raw::thalweg_conn {
            cookie: u64::MAX,
            ..raw::thalweg_conn::default()
        };
        (conn.origin.arm, conn.origin.system_arm) = (9, 9);
        conns
            .update(&0u32.to_ne_bytes(), bytes_of(&conn), MapFlags::ANY)
            .unwrap();
        let waits = fs::read_to_string(format!("/proc/{sleeps}/wchan")).unwrap();
        assert!(waits.contains("nanosleep"), "too late: {waits}");
    });
    bed.start_by(command);
    connection.join().unwrap();
    let name = |index: usize| arm_table(&bed).arms[index].name;
    assert_eq!(name(9), arm_name_bytes("gone9").unwrap());
    let reno = arm_name_bytes("reno").unwrap();
    assert!((0..16).any(|index| name(index) == reno));
    let host = bed.host(&address).unwrap();
    let arms = host["arms"].as_array().unwrap();
    let of = |name: &str| arms.iter().find(|arm| arm["arm"] == name);
    assert!(of("gone9").is_some_and(|arm| arm["scored"] == 1), "{host}");
    assert!(of("reno").is_none_or(|arm| arm["scored"] == 0), "{host}");
}

/// The agent pauses between reading a record and changing it.
#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_is_learned_while_a_slot_changes_hands_is_kept() {
    if !privileged() {
        return;
    }
    let (mut bed, address, _sink) = learned("slotsload", ARMS);
    let before = bed.host(&address).unwrap()["connections"].as_u64().unwrap();
    bed.end(Signal::SIGTERM);
    take_all_slots(&bed);
    let load = bed.load(&address, 2, 50);
    let mut command = bed.run_command();
    command.env("FAILPOINTS", "arms::emptying=sleep(1000)");
    bed.start_by(command);
    assert_slot_is_given(&bed, &address);
    let (made, _) = load.finish();
    let after = bed.host(&address).unwrap()["connections"].as_u64().unwrap();
    assert_eq!(after, before + made, "connections that count");
}
