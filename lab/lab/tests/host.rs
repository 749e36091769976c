//! The link itself, on real namespaces. Without privilege each test says
//! "skipped: why".

#![allow(clippy::unwrap_used)]

mod common;

use std::net::UdpSocket;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::Instant;

use thalweg_lab::Error;
use thalweg_lab::host::loss::rehearse_loss;
use thalweg_lab::host::{Pair, PairOptions, Side, WireKind};
use thalweg_lab::scenario::{Family, PathModel};
use thalweg_lab::units::Probability;
use thalweg_process::Error as Failure;

fn percent(percent: f64) -> Probability {
    Probability::from_fraction(percent / 100.0).unwrap()
}

fn pair(label: &str, path: PathModel) -> Pair {
    Pair::new(&PairOptions {
        label: label.into(),
        path,
        ..Default::default()
    })
    .unwrap()
}

/// Sends single datagrams of one byte from the client to the discard port.
fn send_datagrams(pair: &Pair, address: &str, count: u32) {
    let script =
        format!("for ((i = 0; i < {count}; i++)); do echo -n x >/dev/udp/{address}/9; done");
    let status = pair
        .command_in(Side::Client, "bash")
        .unwrap()
        .args(["-c", &script])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Sends datagrams to `THALWEG_FLOOD` as fast as it can, until it is killed.
#[test]
#[ignore = "helper process of other tests"]
fn flood_process() {
    let Ok(address) = std::env::var("THALWEG_FLOOD") else {
        return;
    };
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect((address, 9)).unwrap();
    loop {
        // Nobody listens there, which the peer reports now and then.
        let _ = socket.send(&[0; 1400]);
    }
}

/// Datagrams that reached a host's UDP without a receiver.
fn unclaimed_datagrams(pair: &Pair) -> u64 {
    let output = pair
        .command_in(Side::Server, "nstat")
        .unwrap()
        .args(["-asz", "UdpNoPorts"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("UdpNoPorts"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_change_leaves_no_moment_without_a_limit() {
    if !common::possible() {
        return;
    }
    let path = |rate: &str| PathModel {
        rate: Some(rate.parse().unwrap()),
        queue: Some("50kb".parse().unwrap()),
        ..PathModel::default()
    };
    let pair = pair("change", path("10mbit"));
    let started = Instant::now();
    let mut flood = pair
        .command_in(
            Side::Client,
            std::env::current_exe().unwrap().to_str().unwrap(),
        )
        .unwrap()
        .args(["--ignored", "--exact", "flood_process"])
        .env(
            "THALWEG_FLOOD",
            pair.first_address(Side::Server).to_string(),
        )
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while unclaimed_datagrams(&pair) == 0 {}
    const CHANGES: u64 = 20;
    for change in 0..CHANGES {
        pair.change_path(&path(["11mbit", "10mbit"][change as usize % 2]))
            .unwrap();
    }
    let arrived = 1428 * unclaimed_datagrams(&pair);
    let elapsed = started.elapsed();
    flood.kill().unwrap();
    flood.wait().unwrap();
    // The rate, and the bucket of each bottleneck. 3 ms of the bare link would be hundreds of
    // kilobytes each time.
    let most = 11e6 / 8.0 * elapsed.as_secs_f64() + ((CHANGES + 1) * 3028) as f64;
    assert!((arrived as f64) < most, "{arrived} of {most} bytes");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_seed_gives_the_same_fates_on_every_link() {
    if !common::possible() {
        return;
    }
    const PACKETS: u32 = 2_000;
    let path = |seed| PathModel {
        loss: Some(percent(20.0)),
        seed,
        ..Default::default()
    };
    let rehearsed = rehearse_loss(&path(7).forward_loss(), 7, PACKETS).unwrap();
    for label in ["once", "again"] {
        let pair = pair(label, path(7));
        send_datagrams(&pair, "10.0.0.2", PACKETS);
        let counters = pair.forward_counters().unwrap();
        assert_eq!(counters.seen_packets, u64::from(PACKETS));
        assert_eq!(counters.dropped_packets, rehearsed.dropped_packets);
        assert_eq!(counters.digest, rehearsed.digest);
    }
    let other = rehearse_loss(&path(8).forward_loss(), 8, PACKETS).unwrap();
    assert_ne!(other.digest, rehearsed.digest);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn each_direction_has_its_own_loss() {
    if !common::possible() {
        return;
    }
    let path = PathModel {
        reverse_loss: percent(100.0),
        ..Default::default()
    };
    let pair = pair("reverse", path);
    // Nothing listens: the server answers each with an ICMP error, which is lost.
    send_datagrams(&pair, "10.0.0.2", 3);
    let (forward, reverse) = (
        pair.forward_counters().unwrap(),
        pair.reverse_counters().unwrap(),
    );
    assert_eq!((forward.seen_packets, forward.dropped_packets), (3, 0));
    assert!(reverse.seen_packets > 0);
    assert_eq!(reverse.seen_packets, reverse.dropped_packets);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn ipv6_and_further_addresses_work() {
    if !common::possible() {
        return;
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        let pair = Pair::new(&PairOptions {
            label: "many".into(),
            path: PathModel {
                family,
                ..Default::default()
            },
            further_addresses: 2,
            ..Default::default()
        })
        .unwrap();
        let addresses = pair.server_addresses();
        assert_eq!(addresses.len(), 3);
        assert_eq!(addresses[0], pair.first_address(Side::Server));
        for address in addresses {
            assert_eq!(address.is_ipv6(), family == Family::Ipv6);
            send_datagrams(&pair, &address.to_string(), 1);
        }
        assert_eq!(pair.forward_counters().unwrap().seen_packets, 3);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn commands_run_in_the_namespace_and_in_the_cgroup() {
    if !common::possible() {
        return;
    }
    let pair = pair("commands", PathModel::default());
    for side in [Side::Client, Side::Server] {
        let output = pair
            .command_in(side, "bash")
            .unwrap()
            .args([
                "-c",
                "stat -L -c %i /proc/self/ns/net; cat /proc/self/cgroup",
            ])
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let namespace = format!("/run/netns/{}", pair.namespace_name(side));
        let inode = std::fs::metadata(namespace).unwrap().ino().to_string();
        assert_eq!(output.lines().next(), Some(inode.as_str()));
        let cgroup = pair.cgroup_path().file_name().unwrap().to_str().unwrap();
        assert!(
            output
                .lines()
                .any(|line| line.starts_with("0::") && line.ends_with(cgroup)),
            "{output}"
        );
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_congestion_control_is_set_without_widening_the_machines_list() {
    if !common::possible() {
        return;
    }
    let before = common::allowed();
    for name in thalweg_lab::host::available_congestion_controls().unwrap() {
        let options = PairOptions {
            label: "cc".into(),
            congestion_control: Some(name.clone()),
            ..Default::default()
        };
        let pair = Pair::new(&options).unwrap();
        for side in [Side::Client, Side::Server] {
            let output = pair
                .command_in(side, "cat")
                .unwrap()
                .arg("/proc/sys/net/ipv4/tcp_congestion_control")
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), name);
        }
    }
    assert_eq!(common::allowed(), before);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn nothing_is_left_and_what_ran_is_killed() {
    if !common::possible() {
        return;
    }
    let pair = pair("ends", PathModel::default());
    let name = pair
        .cgroup_path()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    // cgroup, two namespaces, and their mounts.
    assert!(common::leftovers(&name).len() >= 3);
    let mut child = pair
        .command_in(Side::Server, "sleep")
        .unwrap()
        .arg("600")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    drop(pair);
    assert_eq!(common::leftovers(&name), Vec::<String>::new());
    assert!(!child.wait().unwrap().success());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn nothing_is_left_after_an_error() {
    if !common::possible() {
        return;
    }
    let before = common::allowed();
    let path = PathModel {
        rate: Some("1gbit".parse().unwrap()),
        ..Default::default()
    };
    for (label, options) in [
        (
            "nocc",
            PairOptions {
                congestion_control: Some("nosuch".into()),
                ..Default::default()
            },
        ),
        (
            "nosysctl",
            PairOptions {
                sysctl: [("net.ipv4.nosuch".to_owned(), "1".to_owned())].into(),
                ..Default::default()
            },
        ),
        // The queue exceeds the kernel's 32-bit limit, so tc refuses it last.
        (
            "noqueue",
            PairOptions {
                path: PathModel {
                    queue: Some(thalweg_lab::units::Size::from_bytes(u64::MAX)),
                    ..path
                },
                ..Default::default()
            },
        ),
    ] {
        let error = Pair::new(&PairOptions {
            label: label.into(),
            ..options
        })
        .unwrap_err();
        match (label, &error) {
            ("nocc", Error::CongestionControl { name, why }) => {
                assert_eq!(name, "nosuch");
                assert!(why.contains("modprobe tcp_nosuch"), "{why}");
            }
            ("nosysctl", Error::Process(_)) => {
                assert!(error.to_string().contains("net.ipv4.nosuch"))
            }
            (
                "noqueue",
                Error::Process(Failure::Command {
                    command, stderr, ..
                }),
            ) => {
                assert!(command.contains("tbf") && !stderr.is_empty(), "{error}");
            }
            _ => panic!("{label}: {error}"),
        }
        assert_eq!(common::leftovers(label), Vec::<String>::new());
    }
    assert_eq!(common::allowed(), before);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_panic_leaves_nothing() {
    if !common::possible() {
        return;
    }
    let result = std::panic::catch_unwind(|| {
        let _pair = pair("panics", PathModel::default());
        assert!(!common::leftovers("-panics").is_empty());
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(result.is_err());
    assert_eq!(common::leftovers("-panics"), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_kernel_counts_round_trip_times_in_the_bucket_of_which_they_are_the_middle() {
    if !common::possible() {
        return;
    }
    // By hand, in units of 64 ns, 16 buckets a doubling. 15 is in bucket 15. 16 and 31 are the ends
    // of the first doubling. 2^20 is 16 doublings further. Then it saturates.
    let (unit, second) = (64, 1_000_000_000);
    let known = [
        (0, 0),
        (15 * unit, 15),
        (16 * unit, 16),
        (31 * unit, 31),
        (32 * unit, 32),
        (33 * unit + 63, 32),
        (34 * unit, 33),
        (unit << 20, 16 * 17),
        (60 * second, 16 * 26 + 11),
        (3600 * second, 27 * 16 - 1),
    ];
    let buckets = thalweg_lab::host::rtt::rehearse_buckets(&known.map(|(ns, _)| ns)).unwrap();
    for ((ns, bucket), (found, _)) in known.into_iter().zip(buckets) {
        assert_eq!(found, bucket, "{ns} ns");
    }
    // A microsecond to a minute, six values a decade.
    let times: Vec<u64> = (0..47)
        .map(|step| 10f64.powf(3.0 + f64::from(step) / 6.0) as u64)
        .collect();
    let buckets = thalweg_lab::host::rtt::rehearse_buckets(&times).unwrap();
    for (ns, (_, middle_us)) in times.into_iter().zip(buckets) {
        let us = ns as f64 / 1e3;
        assert!(
            (middle_us / us - 1.0).abs() <= 1.0 / 31.0,
            "{us}: {middle_us}"
        );
    }
}

fn paths(count: u8) -> Vec<PathModel> {
    (0..count)
        .map(|place| PathModel {
            rate: Some("50mbit".parse().unwrap()),
            loss: Some(percent(if place == 1 { 100.0 } else { 0.0 })),
            family: if place == 2 {
                Family::Ipv6
            } else {
                Family::Ipv4
            },
            ..Default::default()
        })
        .collect()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn several_servers_have_addresses_loss_and_counters_of_their_own() {
    if !common::possible() {
        return;
    }
    for wire in [WireKind::Veth, WireKind::Tun] {
        let mut all = paths(4);
        let pair = Pair::new(&PairOptions {
            label: "several".into(),
            path: all.remove(0),
            further_paths: all,
            wire,
            ..Default::default()
        })
        .unwrap();
        let remotes = pair.remotes();
        let addresses: Vec<String> = remotes
            .iter()
            .map(|remote| remote.first_address().to_string())
            .collect();
        assert_eq!(
            addresses,
            ["10.0.0.2", "10.0.1.2", "fd00:0:2:2::2", "10.0.3.2"]
        );
        for (count, address) in addresses.iter().enumerate() {
            send_datagrams(&pair, address, count as u32 + 1);
        }
        for (place, remote) in remotes.iter().enumerate() {
            let forward = remote.forward_counters().unwrap();
            assert_eq!(forward.seen_packets, place as u64 + 1);
            let lost = if place == 1 { 2 } else { 0 };
            assert_eq!(forward.dropped_packets, lost, "{place}");
        }
        // Each server is a host of its own.
        let namespaces: std::collections::BTreeSet<String> = remotes
            .iter()
            .map(|remote| {
                let mut command = pair.command_on(remote, "readlink").unwrap();
                let output = command.arg("/proc/self/ns/net").output().unwrap();
                String::from_utf8(output.stdout).unwrap()
            })
            .collect();
        assert_eq!(namespaces.len(), 4);
        let name = pair
            .cgroup_path()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        drop(pair);
        assert_eq!(common::leftovers(&name), Vec::<String>::new());
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn queue_drops_are_counted_apart_from_loss_and_outlive_a_change() {
    if !common::possible() {
        return;
    }
    let path = PathModel {
        rate: Some("8kbit".parse().unwrap()),
        queue: Some(thalweg_lab::units::Size::from_bytes(1_514)),
        ..Default::default()
    };
    for wire in [WireKind::Veth, WireKind::Tun] {
        let pair = Pair::new(&PairOptions {
            label: "policer".into(),
            path: path.clone(),
            wire,
            ..Default::default()
        })
        .unwrap();
        let remote = &pair.remotes()[0];
        assert_eq!(remote.forward_counters().unwrap().queue_dropped_packets, 0);
        // 43 bytes each: some 70 in the bucket, 35 in the queue, 23 a second.
        send_datagrams(&pair, &remote.first_address().to_string(), 400);
        // The thread that forwards may not have read the last ones yet.
        let began = Instant::now();
        let dropped = loop {
            let dropped = remote.forward_counters().unwrap().queue_dropped_packets;
            if dropped > 0 || began.elapsed().as_secs() > 60 {
                break dropped;
            }
        };
        let counters = remote.forward_counters().unwrap();
        assert_eq!((counters.seen_packets, counters.dropped_packets), (400, 0));
        assert!((1..400).contains(&dropped), "{counters:?}");
        assert!(counters.queue_loss() > counters.loss_share());
        remote.change_path(&path).unwrap();
        let after = remote.forward_counters().unwrap().queue_dropped_packets;
        assert!(after >= dropped, "{after}, {dropped} before");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn servers_of_one_network_are_reached_by_links_of_their_own() {
    if !common::possible() {
        return;
    }
    for wire in [WireKind::Veth, WireKind::Tun] {
        let pair = Pair::new(&PairOptions {
            label: "network".into(),
            further_paths: vec![PathModel::default(); 2],
            networks: vec![1, 2],
            wire,
            ..Default::default()
        })
        .unwrap();
        let remotes = pair.remotes();
        let addresses: Vec<String> = (remotes.iter())
            .map(|remote| remote.first_address().to_string())
            .collect();
        assert_eq!(addresses, ["10.0.0.2", "10.0.1.2", "10.0.1.3"]);
        for (count, address) in addresses.iter().enumerate() {
            send_datagrams(&pair, address, count as u32 + 1);
        }
        for (place, remote) in remotes.iter().enumerate() {
            let seen = remote.forward_counters().unwrap().seen_packets;
            assert_eq!(
                (seen, remote.shares_network()),
                (place as u64 + 1, place > 0)
            );
        }
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_fault_of_a_further_path_leaves_nothing() {
    if !common::possible() {
        return;
    }
    let mut further = paths(3);
    further[2].queue = Some(thalweg_lab::units::Size::from_bytes(u64::MAX));
    let error = Pair::new(&PairOptions {
        label: "farther".into(),
        further_paths: further,
        ..Default::default()
    })
    .unwrap_err();
    assert!(
        matches!(error, Error::Process(Failure::Command { .. })),
        "{error}"
    );
    assert_eq!(common::leftovers("farther"), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn cgroups_that_others_made_below_go_too_with_what_runs_there() {
    if !common::possible() {
        return;
    }
    let pair = Pair::new(&PairOptions {
        label: "nested".into(),
        ..Default::default()
    })
    .unwrap();
    let cgroup = pair.cgroup_path().to_owned();
    let inner = cgroup.join("service/worker");
    std::fs::create_dir_all(&inner).unwrap();
    let mut sleeper = pair
        .command_in(Side::Client, "sleep")
        .unwrap()
        .arg("1000")
        .spawn()
        .unwrap();
    std::fs::write(inner.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
    drop(pair);
    assert!(!cgroup.exists());
    assert!(!sleeper.wait().unwrap().success());
}
