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
            bucket_bytes: 0,
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

/// Replaces one piece of the scenario's text and returns the fault.
fn fault(from: &str, to: &str) -> String {
    assert!(STAR.contains(from), "{from}");
    parse(&STAR.replacen(from, to, 1)).unwrap_err()
}

#[test]
fn faults_have_a_place_and_say_what_was_expected() {
    for (from, to, place, words) in [
        (
            "\"2s\"",
            "2",
            "2:12",
            "duration: found the number 2, expected a time from",
        ),
        (
            "\"500ms\"",
            "\"2s\"",
            "3:10",
            "expected less than the duration of 2s",
        ),
        (
            "hosts = 65",
            "hosts = 1",
            "7:9",
            "found 1 in all, expected 2 to 65536 hosts",
        ),
        (
            "\"star\"",
            "\"ring\"",
            "6:8",
            "found the string \"ring\", expected \"star\" or ",
        ),
        (
            "hosts = 65",
            "hosts = 65\nports = 4",
            "8:1",
            "found the unknown key \"ports\", expected one of kind, hosts with kind \"star\"",
        ),
        ("hosts = 65", "", "5:1", "topology.hosts: found nothing"),
        ("\"100gbit\"", "\"0bit\"", "10:8", "expected a rate from"),
        (
            "\"10mib\"",
            "\"1000b\"",
            "12:9",
            "at least one packet of 1024",
        ),
        (
            "\"12us\"",
            "\"4us\"",
            "15:12",
            // Two links: 2·81.92 ns + 2 µs forward, 2·5.12 ns + 2 µs back.
            "expected at least 4174.08ns: over the 2 links of the longest path a packet of 1024 \
             bytes takes 2163.84ns, an answer of 64 bytes 2010.24ns",
        ),
        (
            "min = \"400kb\"",
            "min = \"4mb\"",
            "16:15",
            "expected at most the `max` of 1600000 bytes",
        ),
        (
            "\"1mbit\"",
            "\"20mbit\"",
            "20:12",
            "8192 flows that share a link of 100gbit, and need 163.84gbit at the least rate of \
             20mbit, expected at most 5000 flows, or a `min_rate` of at most 12.207031mbit",
        ),
        (
            "flows = 8192",
            "flows = 0",
            "24:9",
            "workload.flows: found the number 0, expected a whole number from 1 to 1048576",
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
            "found the unknown key \"foo\"",
        ),
        (
            "flows = 8192",
            "flows = 8192\nload = \"50%\"",
            "25:1",
            "expected one of kind, senders, flows with kind \"many-to-one\"",
        ),
        (
            "flows = 8192",
            "flows = 2000000",
            "24:9",
            "found the number 2000000, expected a whole number from 1 to 1048576",
        ),
        (
            "\"many-to-one\"\nflows = 8192",
            "\"long-short\"\nflows = 4\nburst = \"9kb\"",
            "22:1",
            "workload.idle: found nothing, expected a time",
        ),
        (
            "\"many-to-one\"\nflows = 8192",
            "\"poisson\"\nsizes = \"hadoop\"\nload = \"0%\"",
            "25:8",
            "workload.load: found 0%, expected more",
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
            "found 1638400000 samples",
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
fn samples_beyond_64_bits_are_refused() {
    // 2^48 samples of each of 2^16 flows: the product wraps to 0.
    let text = STAR
        .replacen("\"2s\"", "\"281.474976710656s\"\nseries = \"0.001ns\"", 1)
        .replacen("flows = 8192", "flows = 65536", 1);
    let message = parse(&text).unwrap_err();
    let words = "series: found 18446744073709551615 samples (65536 flows every 0.001ns";
    assert!(message.contains(words), "{message}");
}

#[test]
fn samples_of_random_arrivals_are_bounded_by_hosts() {
    let with = |series: &str| {
        let text = STAR
            .replacen("\"2s\"", &format!("\"2s\"\nseries = {series:?}"), 1)
            .replacen(
                "\"many-to-one\"\nflows = 8192",
                "\"poisson\"\nsizes = \"websearch\"\nload = \"30%\"",
                1,
            );
        parse(&text)
    };
    // 65 hosts, 200,000 samples of each.
    assert!(with("10us").is_ok());
    let message = with("0.001ns").unwrap_err();
    let words = "series: found 130000000000000 samples (65 hosts every 0.001ns";
    assert!(message.contains(words), "{message}");
    assert!(message.starts_with("file.toml:3:10: "), "{message}");
}

#[test]
fn bins_of_the_long_flow_are_bounded() {
    let with = |duration: &str| {
        let text = STAR
            .replacen("\"2s\"", duration, 1)
            .replacen("\"100gbit\"", "\"10gbit\"", 1)
            .replacen(
                "\"many-to-one\"\nflows = 8192",
                "\"long-short\"\nflows = 4\nburst = \"9kb\"\nidle = \"1ms\"",
                1,
            );
        parse(&text)
    };
    // Bins of 10 µs.
    assert!(with("\"1000s\"").is_ok());
    let message = with("\"1200s\"").unwrap_err();
    let words = "duration: found 1200s, 120000000 bins of 10us of the long flow's rate";
    assert!(message.contains(words), "{message}");
}

#[test]
fn sizes_and_times_beyond_64_bits_do_not_wrap() {
    let many = "kind = \"fat-tree\"\nports = 4294967294";
    let message = fault("kind = \"star\"\nhosts = 65", many);
    assert!(message.contains("expected 2 to 65536 hosts"), "{message}");
    // 4 GB at 1 kbit/s: a year, which 64 bits of picoseconds do not hold.
    let text = STAR
        .replacen("\"100gbit\"", "\"1kbit\"", 1)
        .replacen("\"10mib\"", "\"4gb\"", 1)
        .replacen("base_rtt = \"12us\"\n", "", 1)
        .replacen("\"1mbit\"", "\"1kbit\"", 1)
        .replacen("flows = 8192", "flows = 1", 1);
    let timeout = parse(&text).unwrap().hosts.timeout;
    assert!(timeout > Time::from_us(3_600_000_000), "{timeout}");
}

/// One fault in each part of the file: each is found, with its place.
#[test]
fn all_faults_are_told_at_once() {
    let text = STAR
        .replace("\"500ms\"", "500")
        .replace("hosts = 65", "hosts = 1")
        .replace("queue =", "queu =")
        .replace("\"400kb\"", "\"4mb\"")
        .replace("min_rate = \"1mbit\"", "min_rate = \"1mbps\"")
        .replace("flows = 8192", "flows = 0");
    let told = parse(&format!("{text}[[expect]]\ncc = \"swfit\"\n")).unwrap_err();
    let places: Vec<&str> = told
        .lines()
        .map(|line| line.split(": ").next().unwrap())
        .collect();
    let expected = [
        "3:10", "7:9", "12:1", "16:15", "20:12", "24:9", "25:1", "25:1", "26:6",
    ];
    assert_eq!(
        places,
        expected.map(|at| format!("file.toml:{at}")),
        "{told}"
    );
    assert!(told.contains("; perhaps `swift`"), "{told}");
}

#[test]
fn impossible_trees() {
    for (topology, place, words) in [
        (
            "kind = \"fat-tree\"\nports = 5",
            "7:9",
            "expected an even number",
        ),
        (
            "kind = \"leaf-spine\"\nleaves = 2\nspines = 0\nhosts_per_leaf = 4",
            "8:10",
            "cannot reach each other",
        ),
        (
            "kind = \"leaf-spine\"\nleaves = 2\nspines = 1\nhosts_per_leaf = 0",
            "9:18",
            "found 0 in all",
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

/// A network of leaf and spine switches.
fn leaf_spine(leaves: u32, spines: u32, hosts_per_leaf: u32) -> Result<Scenario, String> {
    let topology = format!(
        "kind = \"leaf-spine\"\nleaves = {leaves}\nspines = {spines}\nhosts_per_leaf = {hosts_per_leaf}"
    );
    parse(&STAR.replacen("kind = \"star\"\nhosts = 65", &topology, 1))
}

#[test]
fn ports_of_leaf_and_spine_switches_are_bounded_together() {
    // 65,536 hosts and 2 · 1,024 · 480 ports between switches: 2^20.
    let largest = leaf_spine(1_024, 480, 64).unwrap();
    assert_eq!(largest.topology.ports(), 1 << 20);
    let most = leaf_spine(65_536, 7, 1).unwrap();
    assert_eq!(most.topology.ports(), 65_536 * 15);
    for (leaves, spines, hosts_per_leaf, ports) in [
        (1_024, 481, 64, 1_050_624),
        (65_536, 8, 1, 1_114_112),
        (65_536, 65_536, 1, 8_590_000_128u64),
    ] {
        let message = leaf_spine(leaves, spines, hosts_per_leaf).unwrap_err();
        let words = format!(
            "topology.spines: found {spines} beside {leaves} leaf switches, {ports} ports in all, \
             expected at most 1048576 ports"
        );
        assert!(message.starts_with("file.toml:8:10: "), "{message}");
        assert!(message.contains(&words), "{message}");
    }
}

#[test]
fn ports_are_those_that_the_wiring_has() {
    for topology in [
        "kind = \"star\"\nhosts = 5",
        "kind = \"leaf-spine\"\nleaves = 3\nspines = 4\nhosts_per_leaf = 2",
        "kind = \"fat-tree\"\nports = 6",
        // The largest.
        "kind = \"fat-tree\"\nports = 64",
    ] {
        let text = STAR
            .replacen("kind = \"star\"\nhosts = 65", topology, 1)
            .replacen("base_rtt = \"12us\"\n", "", 1);
        let scenario = parse(&text).unwrap();
        let wiring = crate::topology::Wiring::new(&scenario);
        assert_eq!(wiring.ports.len() as u64, scenario.topology.ports());
    }
}

#[test]
fn flows_of_all_pairs_are_bounded_together() {
    let with = |hosts: u32, flows_per_pair: u32| {
        let workload = format!("\"all-to-all\"\nflows_per_pair = {flows_per_pair}");
        let text = STAR
            .replacen("hosts = 65", &format!("hosts = {hosts}"), 1)
            .replacen("\"1mbit\"", "\"100kbit\"", 1)
            .replacen("\"many-to-one\"\nflows = 8192", &workload, 1);
        parse(&text)
    };
    // 1,024 · 1,023 pairs, and 8 · 7.
    assert_eq!(with(1_024, 1).unwrap().flows(), 1_047_552);
    assert_eq!(with(8, 18_724).unwrap().flows(), 1_048_544);
    for (hosts, flows_per_pair, flows) in [
        (1_025, 1, 1_049_600),
        (8, 18_725, 1_048_600),
        (65_536, 1_048_576, 4_503_530_907_893_760u64),
    ] {
        let message = with(hosts, flows_per_pair).unwrap_err();
        let words =
            format!("workload.flows_per_pair: found {flows} flows, expected at most 1048576");
        assert!(message.contains(&words), "{message}");
    }
}

#[test]
fn random_arrivals_are_bounded() {
    let with = |duration: &str, load: &str| {
        let workload = format!("\"poisson\"\nsizes = \"hadoop\"\nload = {load:?}");
        let text = STAR
            .replacen("\"2s\"", &format!("{duration:?}"), 1)
            .replacen("\"many-to-one\"\nflows = 8192", &workload, 1);
        parse(&text)
    };
    // 65 links of 100 Gbit/s, in flows of 118 packets on average: 6.7 million a second.
    assert!(with("7s", "100%").is_ok());
    assert!(with("70s", "10%").is_ok());
    for (duration, load) in [("8s", "100%"), ("80s", "10%"), ("300s", "100%")] {
        let message = with(duration, load).unwrap_err();
        assert!(message.contains("workload.load: found about "), "{message}");
        let words = format!("flows in {duration}, expected at most 50000000");
        assert!(message.contains(&words), "{message}");
    }
}

#[test]
fn readings_of_round_trip_times_are_bounded() {
    let with = |duration: &str| {
        let text = STAR
            .replacen("\"2s\"", &format!("{duration:?}"), 1)
            .replacen("\"100gbit\"", "\"10mbit\"", 1)
            .replacen("base_rtt = \"12us\"\n", "", 1)
            .replacen("reaction = \"5us\"", "sender = \"linux\"", 1)
            .replacen("\"1mbit\"", "\"1kbit\"", 1);
        parse(&text)
    };
    // 8,192 flows, ten readings a second of each.
    assert!(with("1220s").is_ok());
    let message = with("1221s").unwrap_err();
    let words = "duration: found 1221s, 100024320 readings of round-trip times (8192 flows every \
                 100ms), expected at most 100000000 readings";
    assert!(message.contains(words), "{message}");
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
    assert!(same.contains("two different hosts"), "{same}");
    let far = parse(&list.replace("to = 2", "to = 65")).unwrap_err();
    assert!(far.contains("a whole number from 0 to 64"), "{far}");
}

/// Every scenario of the repository is valid, and has the name of its file.
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

/// 20 short flows of 7 hosts: six hosts have three, one has two.
#[test]
fn bursts_of_flows_and_of_hosts() {
    let text = STAR.replace(
        "kind = \"many-to-one\"\nflows = 8192\n",
        "kind = \"long-short\"\nsenders = 8\nflows = 21\nburst = \"60kib\"\nidle = \"1ms\"\n",
    );
    let packets = |text: &str| -> Vec<(u32, Option<u32>)> {
        let flows = crate::workload::plan_flows(&parse(text).unwrap(), 1).flows;
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

/// A list that takes more memory than one rule of a policy may.
#[test]
fn a_long_list_of_flows_is_read() {
    let flows = "[[flow]]\nfrom = 1\nto = 2\nstart = \"3us\"\n".repeat(40_000);
    let list = STAR
        .replace(
            "kind = \"many-to-one\"\nflows = 8192\n",
            "kind = \"flows\"\n",
        )
        .replace("\"1mbit\"", "\"1kbit\"");
    let Workload::Flows(flows) = parse(&(list + &flows)).unwrap().workload else {
        panic!("another workload");
    };
    assert_eq!(flows.len(), 40_000);
}

#[test]
fn hosts_with_linuxs_tcp() {
    let with = |keys: &str| {
        let hosts = "[hosts]\nreaction = \"5us\"\nmin_rate = \"1mbit\"";
        parse(&STAR.replacen(hosts, &format!("[hosts]\n{keys}\n"), 1))
    };
    assert_eq!(parse(STAR).unwrap().hosts.linux, None);
    assert_eq!(with("sender = \"nic\"").unwrap().hosts.linux, None);
    let linux = |keys| with(keys).unwrap().hosts.linux.unwrap();
    assert_eq!(linux("sender = \"linux\""), Linux::default());
    let all_off = linux(
        "sender = \"linux\"\n[hosts.linux]\noffload = false\ngro = \"0s\"\ndelayed_ack = \"0s\"\n\
         rtt = \"packet\"\nrounds = \"timed\"\nwindow = false\npacing = \"exact\"\n\
         flag_delayed = true\ntimer_slack = \"3us\"\nnic = \"10gbit\"\nheaders = 54",
    );
    let expected = Linux {
        header_bytes: 54,
        offload: false,
        gro: Time::ZERO,
        delayed_ack: Time::ZERO,
        flag_delayed: true,
        rtt: RttSample::Packet,
        rounds: Rounds::Timed,
        window: false,
        pacing: Pacing::Exact,
        timer_slack: Time::from_us(3),
        nic_bps: Some(10_000_000_000),
    };
    assert_eq!(all_off, expected);
    for (keys, words) in [
        (
            "sender = \"bsd\"",
            "hosts.sender: found the string \"bsd\", expected \"nic\" or \"linux\"",
        ),
        (
            "[hosts.linux]\noffload = true",
            "hosts.linux: found a table, expected none without `sender = \"linux\"`",
        ),
        (
            "sender = \"linux\"\nreaction = \"1us\"",
            "hosts.reaction: found a value beside `sender = \"linux\"`, expected nothing",
        ),
        (
            "sender = \"linux\"\n[hosts.linux]\ntso = true",
            "found the unknown key \"tso\"",
        ),
        (
            "sender = \"linux\"\n[hosts.linux]\nrtt = \"mean\"",
            "hosts.linux.rtt: found the string \"mean\", expected \"burst\" or \"packet\"",
        ),
        (
            "sender = \"linux\"\n[hosts.linux]\nheaders = 10",
            "expected 40 to 200 bytes",
        ),
    ] {
        let fault = with(keys).unwrap_err();
        assert!(fault.contains(words), "{keys}: {fault}");
    }
    let linux = "sender = \"linux\"\nmin_rate = \"1mbit\"";
    let of_tcp = STAR.replacen("reaction = \"5us\"\nmin_rate = \"1mbit\"", linux, 1);
    let small = of_tcp.replacen("base_rtt", "packet = 64\nbase_rtt", 1);
    let fault = parse(&small).unwrap_err();
    assert!(
        fault.contains("expected more than the 66 bytes of headers"),
        "{fault}"
    );
    let paused = of_tcp.replacen(
        "ecn =",
        "pause = { stop = \"90kb\", go = \"80kb\" }\necn =",
        1,
    );
    let fault = parse(&paused).unwrap_err();
    assert!(
        fault.contains("hosts of the sender \"linux\" cannot be paused"),
        "{fault}"
    );
}

#[test]
fn a_shapers_bucket_holds_a_packet() {
    let with = |bucket: &str| {
        let queue = format!("queue = \"10mib\"\nbucket = {bucket}");
        parse(&STAR.replacen("queue = \"10mib\"", &queue, 1))
    };
    assert_eq!(with("\"4kb\"").unwrap().network.link.bucket_bytes, 4_000);
    let fault = with("\"1000b\"").unwrap_err();
    assert!(
        fault.contains("link.bucket: found 1000 bytes, expected at least one packet"),
        "{fault}"
    );
}

#[test]
fn expectation_bounds_in_wrong_order_are_a_fault() {
    let expect =
        "\n[[expect]]\ncc = \"dctcp\"\nstatistic = \"utilisation\"\nat_least = 3\nat_most = 2\n";
    let fault = parse(&format!("{STAR}{expect}")).unwrap_err();
    assert!(fault.contains("at_least: found a bound above"), "{fault}");
}

#[test]
fn statistics_of_tcp_need_it() {
    let expect = "\n[[expect]]\ncc = \"dctcp\"\nstatistic = \"smoothed-delay\"\nat_most = 3\n";
    let fault = parse(&format!("{STAR}{expect}")).unwrap_err();
    assert!(
        fault.contains("or `sender = \"linux\"` in [hosts]"),
        "{fault}"
    );
    let hosts = "sender = \"linux\"\nmin_rate";
    let of_tcp = STAR.replacen("reaction = \"5us\"\nmin_rate", hosts, 1);
    assert!(parse(&format!("{of_tcp}{expect}")).is_ok());
}
