use std::path::Path;

use super::*;

const STAR: &str = r#"name = "test"
duration = "2s"
warmup = "500ms"

[topology]
kind = "star"
hosts = 65

[link]
rate = "100gbit"
delay = "1us"
queue = "10mib"

[network]
base_rtt = "12us"
ecn = { min = "400kb", max = "1600kb", probability = "20%" }

[hosts]
reaction = "5us"
min_rate = "1mbit"

[workload]
kind = "many-to-one"
flows = 8192
"#;

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse(text, Path::new("file.toml")).map_err(|error| error.to_string())
}

#[test]
fn a_whole_scenario() {
    let scenario = parse(STAR).unwrap();
    assert_eq!(scenario.duration, Time::from_us(2_000_000));
    assert_eq!(scenario.warmup, Time::from_us(500_000));
    assert_eq!(scenario.topology, Topology::Star { hosts: 65 });
    assert_eq!(
        scenario.network.link,
        Link {
            rate_bps: 100_000_000_000,
            delay: Time::from_us(1),
            queue_bytes: 10 << 20,
        }
    );
    assert_eq!(scenario.network.packet_bytes, 1024);
    assert_eq!(scenario.network.ecn.unwrap().max_probability, 0.2);
    assert_eq!(scenario.hosts.reaction, Time::from_us(5));
    assert_eq!(
        scenario.workload,
        Workload::ManyToOne {
            senders: 64,
            flows: 8192,
        }
    );
    // 12 µs and 10 MiB at 100 Gbit/s, 838.8608 µs, twice.
    assert_eq!(scenario.hosts.timeout, Time::from_ps(2 * 850_860_800));
}

/// The scenario with one piece of text replaced, and what is said about it.
fn fault(from: &str, to: &str) -> String {
    assert!(STAR.contains(from), "{from}");
    parse(&STAR.replacen(from, to, 1)).unwrap_err()
}

#[test]
fn faults_have_a_place_and_say_what_was_expected() {
    for (from, to, place, words) in [
        ("\"2s\"", "2", "2:12", "expected a time with its unit"),
        ("\"500ms\"", "\"2s\"", "3:10", "below the duration of 2s"),
        (
            "hosts = 65",
            "hosts = 1",
            "7:9",
            "expected 2 to 65536 hosts, found 1",
        ),
        ("\"star\"", "\"ring\"", "6:8", "unknown variant `ring`"),
        (
            "hosts = 65",
            "hosts = 65\nports = 4",
            "8:9",
            "this kind has no `ports`: expected `hosts`",
        ),
        ("hosts = 65", "", "6:8", "this kind needs `hosts`"),
        ("\"100gbit\"", "\"0bit\"", "10:8", "expected a rate from"),
        (
            "\"10mib\"",
            "\"1000b\"",
            "9:1",
            "too small for one packet of 1024",
        ),
        (
            "\"12us\"",
            "\"4us\"",
            "15:12",
            // Two links: 2·81.92 ns + 2 µs there, 2·5.12 ns + 2 µs back.
            "takes 2163.84ns over them, an answer of 64 bytes 2010.24ns: \
             expected a `base_rtt` of at least 4174.08ns",
        ),
        (
            "min = \"400kb\"",
            "min = \"4mb\"",
            "16:7",
            "expected `min` of at most `max`",
        ),
        (
            "\"1mbit\"",
            "\"20mbit\"",
            "20:12",
            "8192 flows share a link of 100gbit: at the least rate of 20mbit they need \
             163.84gbit: expected at most 5000 flows, or a `min_rate` of at most 12.207031mbit",
        ),
        (
            "flows = 8192",
            "flows = 0",
            "24:9",
            "expected `flows` of at least 1",
        ),
        (
            "flows = 8192",
            "flows = 8192\nsenders = 65",
            "25:11",
            "expected 1 to 64 senders",
        ),
        (
            "flows = 8192",
            "flows = 8192\nfoo = 1",
            "25:1",
            "unknown field `foo`",
        ),
        (
            "flows = 8192",
            "flows = 8192\nload = \"50%\"",
            "25:8",
            "this kind has no `load`: expected `senders`, `flows`",
        ),
        (
            "flows = 8192",
            "flows = 2000000",
            "24:9",
            "expected at most 1048576 flows, found 2000000",
        ),
        (
            "\"many-to-one\"\nflows = 8192",
            "\"long-short\"\nflows = 4\nburst = \"9kb\"",
            "23:8",
            "this kind needs `idle`",
        ),
        (
            "\"many-to-one\"\nflows = 8192",
            "\"poisson\"\nsizes = \"hadoop\"\nload = \"0%\"",
            "25:8",
            "a `load` of more than nothing",
        ),
        (
            "\"many-to-one\"\nflows = 8192",
            "\"poisson\"\nsizes = \"hadoop\"\nload = \"30%\"\nuntil = \"3s\"",
            "26:9",
            "at most the duration of 2s",
        ),
        (
            "reaction = \"5us\"",
            "timeout = \"800us\"",
            "19:11",
            "up to 12us + 838860.8ns in full queues",
        ),
        (
            "[network]",
            "[fabric]\nrate = \"1gbit\"\ndelay = \"1us\"\n[network]",
            "14:1",
            "a star has no links between switches",
        ),
        (
            "duration = \"2s\"\n",
            "duration = \"2s\"\nseries = \"10us\"\n",
            "3:10",
            "1638400000 samples",
        ),
    ] {
        let message = fault(from, to);
        assert!(
            message.starts_with(&format!("file.toml:{place}: ")) && message.contains(words),
            "{to}: {message}"
        );
    }
}

#[test]
fn impossible_trees() {
    for (topology, place, words) in [
        (
            "kind = \"fat-tree\"\nports = 5",
            "7:9",
            "an even number of `ports`",
        ),
        (
            "kind = \"leaf-spine\"\nleaves = 2\nspines = 0\nhosts_per_leaf = 4",
            "8:10",
            "cannot reach each other",
        ),
        (
            "kind = \"leaf-spine\"\nleaves = 2\nspines = 1\nhosts_per_leaf = 0",
            "9:18",
            "expected 2 to 65536 hosts, found 0",
        ),
    ] {
        let message = fault("kind = \"star\"\nhosts = 65", topology);
        assert!(
            message.starts_with(&format!("file.toml:{place}: ")),
            "{message}"
        );
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn lists_of_flows() {
    let list = STAR.replace(
        "kind = \"many-to-one\"\nflows = 8192\n",
        "kind = \"flows\"\n[[flow]]\nfrom = 1\nto = 2\nsize = \"10kb\"\ncount = 3\n\
         [[flow]]\nfrom = 2\nto = 1\nstart = \"3us\"\n",
    );
    let Workload::Flows(flows) = parse(&list).unwrap().workload else {
        panic!("another workload");
    };
    assert_eq!(flows.len(), 4);
    assert_eq!(flows[2].bytes, Some(10_000));
    assert_eq!(flows[3].start, Some(Time::from_us(3)));
    let same = parse(&list.replace("to = 2", "to = 1")).unwrap_err();
    assert!(same.contains("two different hosts of 0 to 64"), "{same}");
}

/// Every scenario that comes with the program is valid, and named as its file.
#[test]
fn scenarios_of_the_repository() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/sim");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let scenario = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            Some(scenario.name.as_str()),
            path.file_stem().and_then(|stem| stem.to_str())
        );
        count += 1;
    }
    assert!(count >= 19, "{count}");
}

/// 20 short flows of 7 hosts: six of them have three, one has two.
#[test]
fn bursts_of_flows_and_of_hosts() {
    let text = STAR.replace(
        "kind = \"many-to-one\"\nflows = 8192\n",
        "kind = \"long-short\"\nsenders = 8\nflows = 21\nburst = \"60kib\"\nidle = \"1ms\"\n",
    );
    let packets = |text: &str| -> Vec<(u32, Option<u32>)> {
        let flows = crate::workload::plan(&parse(text).unwrap(), 1).flows;
        assert_eq!(flows.len(), 21);
        flows.iter().map(|flow| (flow.from, flow.packets)).collect()
    };
    let each = packets(&text);
    assert_eq!(each[0], (1, None));
    assert!(each[1..].iter().all(|(_, packets)| *packets == Some(60)));
    assert_eq!(each, packets(&format!("{text}burst_per = \"flow\"\n")));
    for (from, packets) in &packets(&format!("{text}burst_per = \"host\"\n"))[1..] {
        let expected = if *from == 8 { 30 } else { 20 };
        assert_eq!(*packets, Some(expected), "{from}");
    }
}
