use super::*;
use crate::units::Seconds;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, Path::new("x.toml"))
}

#[test]
fn a_name_is_enough() {
    let scenario = parse("name = \"least\"").unwrap();
    assert_eq!(scenario.path, PathModel::default());
    assert_eq!(
        scenario.traffic,
        Traffic {
            connections: 60,
            duration: Seconds::new(1),
            warmup: None,
            kind: Kind::Bulk,
        }
    );
    assert_eq!(scenario.system.default_cc, "cubic");
    assert!(scenario.expect.is_empty());
}

#[test]
fn every_key_is_read() {
    let scenario = parse(
        r#"
name = "all"
description = "d"
[path]
gilbert_elliott = { to_bad = "1%", to_good = "25%", loss_good = "0.1%" }
reverse_loss = "2%"
drop = "reported"
rate = "100mbit"
queue = "64kib"
delay = "10ms"
jitter = "500us"
reorder = "0.5%"
offload = false
mtu = 9000
family = "ipv6"
seed = 42
[traffic]
connections = 7
duration = "2s"
[system]
default_cc = "reno"
qdisc = "fq"
memory = "2048mib"
hz = 1000
timers = "tick"
sysctl = { "net.ipv4.tcp_wmem" = "4096 16384 1000000", "net.ipv4.tcp_no_metrics_save" = 1 }
[[expect]]
mode = "fixed:bbr"
statistic = "mean"
relative_to = "baseline"
at_least = 2
at_most = 3.5
"#,
    )
    .unwrap();
    let chain = scenario.path.forward_loss();
    assert_eq!(chain.loss_bad, Probability::ONE);
    assert!((chain.stationary_loss() - (0.25 * 0.001 + 0.01) / 0.26).abs() < 1e-12);
    assert_eq!(scenario.path.drop, Drop::Reported);
    assert_eq!(scenario.path.rate.unwrap().bps(), 100_000_000);
    assert_eq!(scenario.path.queue.unwrap().bytes(), 65_536);
    assert_eq!(scenario.path.delay.us(), 10_000);
    assert_eq!(scenario.path.jitter.us(), 500);
    assert_eq!(scenario.path.reorder.fraction(), 0.005);
    assert!(
        scenario
            .path
            .describe()
            .contains("10ms ± 500us delay each way, 0.5% reordered")
    );
    assert_eq!(scenario.system.qdisc, Qdisc::Fq);
    assert_eq!(scenario.system.memory.unwrap().bytes(), 2 << 30);
    assert_eq!(scenario.system.hz, Some(1000));
    assert_eq!(scenario.system.timers, Timers::Tick);
    assert!(!scenario.path.offload);
    assert_eq!((scenario.path.mtu, scenario.path.seed), (9000, 42));
    assert_eq!(scenario.path.family, Family::Ipv6);
    assert_eq!(
        scenario.traffic,
        Traffic {
            connections: 7,
            duration: Seconds::new(2),
            warmup: None,
            kind: Kind::Bulk,
        }
    );
    assert_eq!(scenario.system.sysctl["net.ipv4.tcp_no_metrics_save"], "1");
    assert_eq!(
        (scenario.expect[0].at_least, scenario.expect[0].at_most),
        (Some(2.0), Some(3.5))
    );
}

/// Each text is appended to a first line with the name, so it begins in line 2.
#[test]
fn faults_have_a_place_and_say_what_was_expected() {
    let path = "[path]\n";
    let expect = "[[expect]]\nmode = \"thalweg\"\n";
    for (table, line, place, message) in [
        ("", "nome = 1", (2, 1), "unknown field `nome`"),
        ("", "description = 3", (2, 15), "invalid type: integer"),
        ("", "= 3", (2, 1), "key"),
        (
            path,
            "los = \"5%\"",
            (3, 1),
            "unknown field `los`, expected one of `loss`",
        ),
        (path, "loss = \"5\"", (3, 8), "expected a percentage"),
        (path, "loss = 5", (3, 8), "expected a percentage"),
        (path, "loss = \"150%\"", (3, 8), "\"0%\" to \"100%\""),
        (path, "loss = true", (3, 8), "a percentage such as"),
        (path, "rate = \"fast\"", (3, 8), "expected a rate"),
        (path, "rate = 100", (3, 8), "expected a rate with its unit"),
        (
            path,
            "rate = \"1gbit\"\nqueue = \"5gb\"",
            (4, 9),
            "expected a size",
        ),
        (
            path,
            "rate = \"1gbit\"\nqueue = -1",
            (4, 9),
            "expected a size",
        ),
        (
            path,
            "rate = \"1gbit\"\nqueue = 100",
            (2, 1),
            "too small for one packet",
        ),
        (path, "queue = \"1mb\"", (2, 1), "no effect without `rate`"),
        (path, "aqm = \"red\"", (2, 1), "`aqm` has no effect without"),
        (
            path,
            "rate = \"1gbit\"\necn = true",
            (2, 1),
            "`ecn` has no effect without an `aqm`",
        ),
        (
            path,
            "rate = \"1gbit\"\naqm = \"red\"\nqueue = \"18kb\"",
            (2, 1),
            "needs at least 18168 bytes",
        ),
        (
            path,
            "rate = \"1gbit\"\naqm = \"codel\"",
            (4, 7),
            "expected one of `tail-drop`, `red`, `step`",
        ),
        (path, "delay = 10", (3, 9), "with its unit such as \"10ms\""),
        (path, "delay = \"61s\"", (3, 9), "from \"0ms\" to \"60s\""),
        (
            path,
            "jitter = \"1ms\"",
            (2, 1),
            "`jitter` has no effect without `delay`",
        ),
        (
            path,
            "reorder = \"1%\"",
            (2, 1),
            "`reorder` has no effect without `delay`",
        ),
        (
            path,
            "delay = \"1ms\"\njitter = \"2ms\"",
            (2, 1),
            "at most the `delay` of 1ms",
        ),
        (path, "mtu = 100", (2, 1), "expected an mtu from 576"),
        (
            path,
            "mtu = 1000\nfamily = \"ipv6\"",
            (2, 1),
            "expected an mtu from 1280",
        ),
        (
            path,
            "family = \"ipx\"",
            (3, 10),
            "unknown variant `ipx`, expected `ipv4` or `ipv6`",
        ),
        (path, "offload = \"no\"", (3, 11), "expected a boolean"),
        (
            path,
            "drop = \"loudly\"",
            (3, 8),
            "expected `silent` or `reported`",
        ),
        (path, "seed = -1", (3, 8), "u64"),
        (
            path,
            "loss = \"1%\"\ngilbert_elliott = { to_bad = \"1%\", to_good = \"1%\" }",
            (2, 1),
            "found both",
        ),
        (
            path,
            "gilbert_elliott = { to_bad = \"1%\" }",
            (3, 19),
            "missing field `to_good`",
        ),
        (
            path,
            "gilbert_elliott = { to_bad = \"1%\", to_good = \"0%\" }",
            (2, 1),
            "never leave",
        ),
        ("[traffic]\n", "connections = 0", (3, 15), "1 to 10000"),
        (
            "[traffic]\n",
            "connections = \"many\"",
            (3, 15),
            "expected u32",
        ),
        ("[traffic]\n", "duration = \"0s\"", (3, 12), "whole seconds"),
        (
            "[traffic]\n",
            "duration = 1",
            (3, 12),
            "expected a time with its unit",
        ),
        (
            "[system]\n",
            "default_cc = \"cu bic\"",
            (3, 14),
            "the name of a congestion control",
        ),
        (
            "[system]\n",
            "sysctl = { \"kernel.panic\" = 1 }",
            (3, 12),
            "expected a setting below net.",
        ),
        (
            "[system]\n",
            "sysctl = { \"net.../x\" = 1 }",
            (3, 12),
            "expected a setting below net.",
        ),
        (
            "[system]\n",
            "qdisc = \"cake\"",
            (3, 9),
            "unknown variant `cake`, expected one of `default`, `fq`, `pfifo`",
        ),
        (
            "[system]\n",
            "memory = \"1mib\"",
            (3, 10),
            "expected memory from",
        ),
        (
            "[system]\n",
            "hz = 300",
            (3, 6),
            "expected one of 100, 250, 1000, found 300",
        ),
        (
            "[system]\n",
            "timers = \"precise\"",
            (3, 10),
            "unknown variant `precise`, expected `high-resolution` or `tick`",
        ),
        (
            expect,
            "statistic = \"median\"",
            (2, 1),
            "expected `at_least` or `at_most`",
        ),
        (
            expect,
            "statistic = \"middle\"\nat_least = 1",
            (4, 13),
            "unknown variant `middle`",
        ),
        (
            expect,
            "statistic = \"median\"\nat_least = 1",
            (5, 12),
            "expected a rate such as",
        ),
        (
            expect,
            "statistic = \"loss\"\nat_least = \"1mbit\"",
            (5, 12),
            "expected a number",
        ),
        (
            expect,
            "statistic = \"loss\"\nat_least = -1",
            (5, 12),
            "not negative",
        ),
        (
            expect,
            "statistic = \"loss\"\nat_least = nan",
            (5, 12),
            "not negative",
        ),
        (
            expect,
            "statistic = \"loss\"\nat_most = 1\nrelative_to = \"baseline\"",
            (6, 15),
            "compares goodput, times, retransmissions, fairness and shares",
        ),
        (
            expect,
            "statistic = \"mean\"\nat_most = 1\nrelative_to = \"fixed\"",
            (6, 15),
            "stands for several",
        ),
        (
            expect,
            "statistic = \"fct-p99\"\nat_most = 5",
            (5, 11),
            "expected a time such as",
        ),
        (
            expect,
            "statistic = \"fct-p99\"\nat_most = \"5mbit\"",
            (5, 11),
            "expected a time such as",
        ),
        (
            expect,
            "statistic = \"arm-share\"\nat_least = 0.5",
            (2, 1),
            "expected `arm`",
        ),
        (
            expect,
            "statistic = \"jain\"\narm = \"bbr\"\nat_least = 0.5",
            (5, 7),
            "goes with the statistic arm-share only",
        ),
        (
            expect,
            "statistic = \"median\"\nclass = \"x\"\nat_least = \"1mbit\"",
            (5, 9),
            "no classes of flows",
        ),
        (
            "[traffic]\n",
            "kind = \"web\"",
            (3, 8),
            "unknown variant `web`, expected one of `bulk`, `short`",
        ),
        (
            "[traffic]\n",
            "bytes = \"10kb\"",
            (3, 9),
            "`bytes` goes with kind \"short\" only, found kind \"bulk\"",
        ),
        (
            "[traffic]\n",
            "kind = \"short\"\nduration = \"2s\"",
            (4, 12),
            "`duration` goes with",
        ),
        (
            "[traffic]\n",
            "kind = \"short\"\nflows = 0",
            (4, 9),
            "expected 1 to 1000 flows",
        ),
        (
            "[traffic]\n",
            "kind = \"competing\"",
            (3, 8),
            "expected `against`",
        ),
        (
            "[traffic]\n",
            "kind = \"competing\"\nagainst = { cc = \"a b\" }",
            (4, 18),
            "the name of a congestion control",
        ),
        ("[[change]]\n", "at = 2", (2, 1), "expected what changes"),
        (
            "[[change]]\n",
            "at = 61\nloss = \"1%\"",
            (3, 6),
            "expected a connection from 1 to 60, found 61",
        ),
        (
            "[[change]]\n",
            "at = 3\nloss = \"1%\"\n[[change]]\nat = 3\nloss = \"2%\"",
            (6, 6),
            "in the order in which they happen",
        ),
        (
            "[[change]]\n",
            "at = 3\nqueue = \"1mb\"",
            (2, 1),
            "`queue` has no effect without `rate`",
        ),
        (
            "[[change]]\n",
            "at = 3\nrates = \"1mbit\"",
            (4, 1),
            "unknown field `rates`",
        ),
        (
            "[[change]]\n",
            "at = 3\nloss = \"1%\"\nwithin = \"1h\"",
            (5, 10),
            "expected a time from",
        ),
        (
            "[[expect]]\n",
            "mode = \"best\"\nstatistic = \"mean\"\nat_most = 1",
            (3, 8),
            "fixed:ARM",
        ),
    ] {
        let text = format!("name = \"x\"\n{table}{line}\n");
        let error = parse(&text).expect_err(&text);
        assert_eq!((error.line, error.column), place, "{text}\n{error}");
        assert!(error.message.contains(message), "{text}\n{error}");
        assert!(
            error
                .to_string()
                .starts_with(&format!("x.toml:{}:{}: ", place.0, place.1))
        );
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn every_kind_of_traffic_is_read() {
    let kind = |text: &str| {
        let scenario = parse(&format!("name = \"x\"\n[traffic]\n{text}\n"));
        scenario
            .unwrap_or_else(|error| panic!("{error}"))
            .traffic
            .kind
    };
    assert_eq!(kind("kind = \"bulk\""), Kind::Bulk);
    assert_eq!(
        kind("kind = \"short\"\nflows = 7\nbytes = \"100kb\""),
        Kind::Short {
            flows: 7,
            bytes: Size::from_bytes(100_000)
        }
    );
    assert_eq!(
        kind("kind = \"competing\"\nflows = 2\nagainst = { cc = \"reno\", flows = 3 }"),
        Kind::Competing {
            flows: 2,
            against: Against {
                cc: "reno".into(),
                flows: 3
            }
        }
    );
    let incast = |senders, rpcs| Kind::Incast { senders, rpcs };
    assert_eq!(kind("kind = \"incast\""), incast(3, None));
    assert_eq!(incast(2, None).classes(), ["rpc-1mb", "rpc-10kb"]);
    let all = kind("kind = \"incast\"\nsenders = 1\nrpcs = 16");
    assert_eq!(all, incast(1, Some(16)));
    assert_eq!(all.classes(), ["rpc-1mb", "rpc-10kb", "stream"]);
}

#[test]
fn changes_add_up() {
    let scenario = parse(
        "name = \"x\"\n[path]\nloss = \"1%\"\nrate = \"10mbit\"\n\
         [[change]]\nat = 5\nrate = \"20mbit\"\n\
         [[change]]\nat = 5\nwithin = \"500ms\"\n\
         gilbert_elliott = { to_bad = \"1%\", to_good = \"10%\" }\n",
    )
    .unwrap();
    let [first, second] = &scenario.changes[..] else {
        panic!("{:?}", scenario.changes)
    };
    assert_eq!((first.at, first.within), (5, None));
    assert_eq!(first.path.rate.unwrap().bps(), 20_000_000);
    assert_eq!(first.path.loss, scenario.path.loss);
    assert_eq!(second.within.unwrap().us(), 500_000);
    assert_eq!(second.path.rate.unwrap().bps(), 20_000_000);
    assert_eq!(second.path.loss, None);
    assert!(second.path.gilbert_elliott.is_some());
}

#[test]
fn expectations_name_arms_classes_times_and_negative_bounds() {
    let scenario = parse(
        "name = \"x\"\n[traffic]\nkind = \"incast\"\n\
         [[expect]]\nmode = \"thalweg\"\nstatistic = \"fct-p99\"\nclass = \"rpc-10kb\"\nat_most = \"5ms\"\n\
         [[expect]]\nmode = \"thalweg\"\nstatistic = \"arm-share\"\narm = \"bbr\"\nat_least = 0.5\n\
         [[expect]]\nmode = \"thalweg\"\nstatistic = \"harm\"\nat_least = -0.5\n",
    )
    .unwrap();
    assert_eq!(scenario.expect[0].at_most, Some(5_000.0));
    assert_eq!(scenario.expect[0].class.as_deref(), Some("rpc-10kb"));
    assert_eq!(scenario.expect[1].arm.as_deref(), Some("bbr"));
    assert_eq!(scenario.expect[2].at_least, Some(-0.5));
    assert_eq!(
        scenario.expect[0].to_string(),
        "thalweg: 99th percentile of flow-completion time (of rpc-10kb) at most 5.00 ms"
    );
}

#[test]
fn a_name_must_suit_a_directory() {
    for name in ["", "a/b", "..", ".hidden", "a b", &"x".repeat(65)] {
        let error = parse(&format!("name = \"{name}\"")).unwrap_err();
        assert_eq!((error.line, error.column), (1, 8), "{error}");
    }
    assert!(
        parse("")
            .unwrap_err()
            .message
            .contains("missing field `name`")
    );
}

#[test]
fn columns_count_characters() {
    let error = parse("name = \"x\"\ndescription = \"äöü\" x").unwrap_err();
    assert_eq!((error.line, error.column), (2, 21), "{error}");
}

#[test]
fn the_shipped_scenarios_are_valid_and_named_after_their_files() {
    let mut names = Vec::new();
    for folder in ["lab", "rate"] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        for entry in std::fs::read_dir(directory.join(folder)).unwrap() {
            let file = entry.unwrap().path();
            let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap();
            if stem.starts_with("tables") {
                continue;
            }
            let scenario = Scenario::load(&file).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(scenario.name, stem);
            assert!(
                !scenario.expect.is_empty() && !scenario.description.is_empty(),
                "{file:?}"
            );
            names.push(scenario.name);
        }
    }
    for name in [
        "loss-0",
        "loss-5",
        "loss-10",
        "burst-loss",
        "bottleneck-1g",
        "delay-0",
        "delay-10ms",
        "delay-100ms",
        "loss-1-delay-50ms",
        "loss-5-delay-50ms",
        "loss-0.1-delay-10ms",
        "bottleneck-10g-shallow",
        "bottleneck-100m-red",
    ] {
        assert!(names.iter().any(|found| found == name), "{name}");
    }
}

#[test]
fn a_host_has_what_the_path_says_unless_it_says_otherwise() {
    let scenario = parse(
        "name = \"x\"\n[path]\nloss = \"1%\"\nrate = \"10mbit\"\nseed = 7\n\
         [[host]]\nname = \"same\"\n\
         [[host]]\nname = \"other\"\nrate = \"20mbit\"\nqueue = \"50kb\"\naqm = \"red\"\necn = true\ndelay = \"5ms\"\njitter = \"1ms\"\n\
         reorder = \"1%\"\nreverse_loss = \"2%\"\ndrop = \"reported\"\noffload = false\nmtu = 1400\n\
         family = \"ipv6\"\ngilbert_elliott = { to_bad = \"1%\", to_good = \"10%\" }\n\
         [[host]]\nname = \"own-seed\"\nseed = 3\n",
    )
    .unwrap();
    let [same, other, own_seed] = &scenario.hosts[..] else {
        panic!("{:?}", scenario.hosts)
    };
    assert_eq!(same.path, scenario.path);
    let expected = PathModel {
        loss: None,
        gilbert_elliott: other.path.gilbert_elliott,
        reverse_loss: "2%".parse().unwrap(),
        drop: Drop::Reported,
        rate: Some("20mbit".parse().unwrap()),
        queue: Some("50kb".parse().unwrap()),
        aqm: Aqm::Red,
        ecn: true,
        mark: None,
        delay: "5ms".parse().unwrap(),
        jitter: "1ms".parse().unwrap(),
        reorder: "1%".parse().unwrap(),
        offload: false,
        mtu: 1400,
        family: Family::Ipv6,
        // Of the second host: losses of different hosts are independent.
        seed: 8,
    };
    assert!(other.path.gilbert_elliott.is_some());
    assert_eq!(other.path, expected);
    assert_eq!(own_seed.path.seed, 3);
    let names: Vec<&str> = scenario.remotes().iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["same", "other", "own-seed"]);
    assert!(
        scenario
            .describe_paths()
            .contains("; other: bursts of loss")
    );
}

#[test]
fn a_host_takes_every_key_of_the_path() {
    let document = serde_json::to_value(PathModel::default()).unwrap();
    let error = parse("name = \"x\"\n[[host]]\nname = \"a\"\nnonsense = 1\n").unwrap_err();
    assert_eq!((error.line, error.column), (4, 1), "{error}");
    for key in document.as_object().unwrap().keys() {
        assert!(
            error.message.contains(&format!("`{key}`")),
            "{key}: {error}"
        );
    }
}

#[test]
fn faults_of_hosts_have_their_place() {
    let two = "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n";
    let expect = "[[expect]]\nmode = \"thalweg\"\nat_least = 1\n";
    for (text, line, column, words) in [
        (
            "[[host]]\nname = \"a\"\n".to_owned(),
            2,
            1,
            "2 to 16 hosts, found 1",
        ),
        (
            "[[host]]\nloss = \"1%\"\n".to_owned(),
            2,
            1,
            "missing field `name`",
        ),
        (
            "[[host]]\nname = \"a b\"\n[[host]]\nname = \"b\"\n".to_owned(),
            3,
            8,
            "1 to 16 letters",
        ),
        (two.replace("\"b\"", "\"a\""), 5, 8, "each host once"),
        (format!("{two}loss = \"1\"\n"), 6, 8, "percentage"),
        (
            format!("{two}queue = \"1mb\"\n"),
            4,
            1,
            "`queue` has no effect",
        ),
        (
            format!("{two}jitter = \"1ms\"\n"),
            4,
            1,
            "`jitter` has no effect",
        ),
        (
            format!("[traffic]\nkind = \"incast\"\n{two}"),
            4,
            1,
            "kind \"bulk\" or \"short\" only",
        ),
        (
            format!("[traffic]\nkind = \"competing\"\nagainst = {{ cc = \"reno\" }}\n{two}"),
            5,
            1,
            "kind \"bulk\" or \"short\" only",
        ),
        (
            format!("{two}[[change]]\nat = 2\nhost = \"c\"\nloss = \"1%\"\n"),
            8,
            8,
            "one of the hosts (a, b), found \"c\"",
        ),
        (
            "[[change]]\nat = 2\nhost = \"a\"\nloss = \"1%\"\n".to_owned(),
            4,
            8,
            "goes with [[host]] tables only",
        ),
        (
            format!("{two}rate = \"1mbit\"\n[[change]]\nat = 2\nrate = \"2mbit\"\n"),
            7,
            1,
            "the path of a begins without one",
        ),
        (
            "[[change]]\nat = 2\nrate = \"2mbit\"\n".to_owned(),
            2,
            1,
            "the path begins without one",
        ),
        (
            format!("{two}{expect}statistic = \"median\"\nrelative_to = \"baseline\"\n"),
            9,
            13,
            "expected `host` beside median",
        ),
        (
            format!("{two}{expect}statistic = \"converged-share\"\nhost = \"c\"\n"),
            10,
            8,
            "one of the hosts (a, b), found \"c\"",
        ),
        (
            format!("{two}{expect}statistic = \"of-best-per-host\"\nhost = \"a\"\n"),
            10,
            8,
            "about all hosts together",
        ),
        (
            format!("{expect}statistic = \"of-best-per-host\"\n"),
            5,
            13,
            "goes with [[host]] tables only",
        ),
        (
            format!("{expect}statistic = \"failures\"\nhost = \"a\"\n"),
            6,
            8,
            "goes with [[host]] tables only",
        ),
    ] {
        let error = parse(&format!("name = \"x\"\n{text}")).unwrap_err();
        assert_eq!(
            (error.line, error.column),
            (line, column),
            "{text}\n{error}"
        );
        assert!(error.message.contains(words), "{text}\n{error}");
    }
    let many: String = (0..17)
        .map(|n| format!("[[host]]\nname = \"h{n}\"\n"))
        .collect();
    let error = parse(&format!("name = \"x\"\n{many}")).unwrap_err();
    assert!(error.message.contains("found 17"), "{error}");
}

#[test]
fn a_change_is_of_one_host_or_of_every_host() {
    let scenario = parse(
        "name = \"x\"\n[[host]]\nname = \"a\"\nloss = \"3%\"\n[[host]]\nname = \"b\"\nrate = \"10mbit\"\n\
         [[change]]\nat = 2\nhost = \"b\"\nrate = \"20mbit\"\n\
         [[change]]\nat = 2\nhost = \"a\"\nloss = \"4%\"\n\
         [[change]]\nat = 5\nreverse_loss = \"1%\"\n",
    )
    .unwrap();
    let found: Vec<(u32, &str)> = scenario
        .changes
        .iter()
        .map(|change| (change.at, change.host.as_str()))
        .collect();
    assert_eq!(found, [(2, "b"), (2, "a"), (5, "a"), (5, "b")]);
    // Each goes on from what its own host had.
    let [_, _, a, b] = &scenario.changes[..] else {
        panic!("{found:?}")
    };
    assert_eq!(a.path.loss, Some("4%".parse().unwrap()));
    assert_eq!(a.path.rate, None);
    assert_eq!(b.path.loss, None);
    assert_eq!(b.path.rate, Some("20mbit".parse().unwrap()));
    assert_eq!(b.path.reverse_loss, "1%".parse().unwrap());
    // Twice at once for the same host, or back in time, is no order.
    let twice = "name = \"x\"\n[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n\
                 [[change]]\nat = 2\nhost = \"b\"\nloss = \"1%\"\n[[change]]\nat = 2\nloss = \"2%\"\n";
    let error = parse(twice).unwrap_err();
    assert_eq!((error.line, error.column), (11, 6), "{error}");
}
