use crate::scenario::tests::{fault, parse};
use crate::scenario::{Aqm, Drop, Family, PathModel};

#[test]
fn a_host_has_what_the_path_says_unless_it_says_otherwise() {
    let scenario = parse(
        "name = \"x\"\n[path]\nloss = \"1%\"\nrate = \"10mbit\"\nseed = 7\n\
         [[host]]\nname = \"same\"\n\
         [[host]]\nname = \"other\"\nrate = \"20mbit\"\nqueue = \"50kb\"\naqm = \"red\"\necn = true\ndelay = \"5ms\"\njitter = \"1ms\"\nack_delay = \"40ms\"\n\
         reorder = \"1%\"\nsyn_loss = \"3%\"\nreverse_loss = \"2%\"\ndrop = \"reported\"\noffload = false\nmtu = 1400\n\
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
        syn_loss: "3%".parse().unwrap(),
        reverse_loss: "2%".parse().unwrap(),
        drop: Drop::Reported,
        rate: Some("20mbit".parse().unwrap()),
        trace: None,
        queue: Some("50kb".parse().unwrap()),
        aqm: Aqm::Red,
        ecn: true,
        mark: None,
        delay: "5ms".parse().unwrap(),
        jitter: "1ms".parse().unwrap(),
        ack_delay: "40ms".parse().unwrap(),
        reorder: "1%".parse().unwrap(),
        offload: false,
        mtu: 1400,
        family: Family::Ipv6,
        // The second host's seed: losses of different hosts are independent.
        seed: 8,
    };
    assert!(other.path.gilbert_elliott.is_some());
    assert_eq!(other.path, expected);
    assert_eq!(own_seed.path.seed, 3);
    let names: Vec<&str> = scenario
        .remote_paths()
        .iter()
        .map(|(name, _)| *name)
        .collect();
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
    let text = "name = \"x\"\n[[host]]\nname = \"a\"\nnonsense = 1\n[[host]]\nname = \"b\"\n";
    let fault = fault(text);
    assert_eq!((fault.at.line, fault.at.column), (4, 1), "{fault}");
    let known = fault.expected.strip_prefix("one of ").unwrap();
    let known: Vec<&str> = known.split(", ").collect();
    let optional = [
        "queue",
        "mark",
        "gilbert_elliott",
        "rate",
        "loss",
        "syn_loss",
        "ack_delay",
    ];
    let keys = document.as_object().unwrap().keys().map(String::as_str);
    for key in keys.chain(optional) {
        assert!(known.contains(&key), "{key}: {fault}");
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
            "found one host, expected 2 to 64 hosts",
        ),
        (
            "[[host]]\nloss = \"1%\"\n[[host]]\nname = \"b\"\n".to_owned(),
            2,
            1,
            "host 1: name: found nothing",
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
            6,
            9,
            "a queue without `rate`",
        ),
        (
            format!("{two}jitter = \"1ms\"\n"),
            6,
            10,
            "at most the `delay` of 0ms",
        ),
        (
            format!("[traffic]\nkind = \"incast\"\n{two}"),
            4,
            1,
            "expected kind \"bulk\", \"short\" or \"web\"",
        ),
        (
            format!("[traffic]\nkind = \"competing\"\nagainst = {{ cc = \"reno\" }}\n{two}"),
            5,
            1,
            "expected kind \"bulk\", \"short\" or \"web\"",
        ),
        (
            format!("{two}[[change]]\nat = 2\nhost = \"c\"\nloss = \"1%\"\n"),
            8,
            8,
            "found \"c\", expected one of the hosts (a, b)",
        ),
        (
            "[[change]]\nat = 2\nhost = \"a\"\nloss = \"1%\"\n".to_owned(),
            4,
            8,
            "there are no [[host]] tables",
        ),
        (
            format!("{two}rate = \"1mbit\"\n[[change]]\nat = 2\nrate = \"2mbit\"\n"),
            9,
            8,
            "the path of a begins without one",
        ),
        (
            "[[change]]\nat = 2\nrate = \"2mbit\"\n".to_owned(),
            4,
            8,
            "the path begins without one",
        ),
        (
            format!("{two}{expect}statistic = \"median\"\nrelative_to = \"baseline\"\n"),
            9,
            13,
            "found median, expected `host` beside it",
        ),
        (
            format!("{two}{expect}statistic = \"gain-misses\"\nhost = \"a\"\n"),
            10,
            8,
            "about all hosts together",
        ),
        (
            format!("{two}{expect}statistic = \"converged-share\"\nhost = \"c\"\n"),
            10,
            8,
            "found \"c\", expected one of the hosts (a, b)",
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
            "expected [[host]] tables, which it is about",
        ),
        (
            format!("{expect}statistic = \"failures\"\nhost = \"a\"\n"),
            6,
            8,
            "there are no [[host]] tables",
        ),
    ] {
        let fault = fault(&format!("name = \"x\"\n{text}"));
        let place = (fault.at.line, fault.at.column);
        assert_eq!(place, (line, column), "{text}\n{fault}");
        assert!(fault.to_string().contains(words), "{text}\n{fault}");
    }
    let many: String = (0..65)
        .map(|n| format!("[[host]]\nname = \"h{n}\"\n"))
        .collect();
    let fault = fault(&format!("name = \"x\"\n{many}"));
    assert!(fault.to_string().contains("found 65"), "{fault}");
}

#[test]
fn a_table_may_stand_for_several_hosts_of_a_network() {
    let scenario = parse(
        "name = \"x\"\n[path]\nrate = \"10mbit\"\nseed = 7\n\
         [[host]]\nname = \"alone\"\n\
         [[host]]\nname = \"line\"\ncount = 3\nrates = [\"20mbit\", \"30mbit\"]\n\
         delays = [\"1ms\", \"2ms\", \"3ms\"]\nlosses = [\"1%\", \"2%\"]\n\
         [[host]]\nname = \"last\"\n",
    )
    .unwrap();
    let paths: Vec<(&str, u64, u64, u64)> = scenario
        .remote_paths()
        .iter()
        .map(|(name, path)| {
            let mbits = path.rate.unwrap().bps() / 1_000_000;
            (*name, mbits, path.delay.us() / 1000, path.seed)
        })
        .collect();
    assert_eq!(
        paths,
        [
            ("alone", 10, 0, 7),
            ("line", 20, 1, 8),
            ("line", 30, 2, 9),
            ("line", 20, 3, 10),
            ("last", 10, 0, 11),
        ]
    );
    assert_eq!(scenario.hosts_per_network(), [1, 3, 1]);
    let losses: Vec<_> = scenario.hosts[1].paths().map(|path| path.loss).collect();
    let percent = |text: &str| Some(text.parse().unwrap());
    assert_eq!(losses, [percent("1%"), percent("2%"), percent("1%")]);
    let paths = scenario.describe_paths();
    assert!(paths.contains("; line, 3 hosts, the first: "), "{paths}");
}

#[test]
fn faults_of_several_hosts_in_a_table_have_their_place() {
    let table = "[[host]]\nname = \"a\"\nrate = \"1mbit\"\n";
    for (text, place, words) in [
        (
            format!("{table}count = 65\n"),
            (5, 9),
            "expected a whole number from 1 to 64",
        ),
        (
            format!("{table}count = 40\n[[host]]\nname = \"b\"\ncount = 40\n"),
            (6, 1),
            "found 80 hosts, expected at most 64",
        ),
        (
            format!("{table}delays = [\"1ms\"]\n[[host]]\nname = \"b\"\n"),
            (5, 10),
            "found a list for one host",
        ),
        (
            format!("{table}count = 2\nrates = [\"1mbit\"]\n"),
            (6, 9),
            "found it beside `rate`",
        ),
        (
            format!("{table}count = 2\n[[change]]\nat = 2\nloss = \"1%\"\n"),
            (6, 1),
            "found a change of \"a\", expected changes of single hosts",
        ),
        (
            format!("[traffic]\nkind = \"short\"\nhosts = 2\n{table}count = 2\n"),
            (8, 9),
            "which counts addresses behind one path",
        ),
    ] {
        let fault = fault(&format!("name = \"x\"\n{text}"));
        let at = (fault.at.line, fault.at.column);
        assert_eq!(at, place, "{text}\n{fault}");
        assert!(fault.to_string().contains(words), "{text}\n{fault}");
    }
}
