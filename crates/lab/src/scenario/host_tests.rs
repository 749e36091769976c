use crate::scenario::tests::{fault, parse};
use crate::scenario::{Aqm, Drop, Family, PathModel};

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
        // The second host's seed: losses of different hosts are independent.
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
    let text = "name = \"x\"\n[[host]]\nname = \"a\"\nnonsense = 1\n[[host]]\nname = \"b\"\n";
    let fault = fault(text);
    assert_eq!((fault.at.line, fault.at.column), (4, 1), "{fault}");
    let known = fault.expected.strip_prefix("one of ").unwrap();
    let known: Vec<&str> = known.split(", ").collect();
    let optional = ["queue", "mark", "gilbert_elliott", "rate", "loss"];
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
            "found one host, expected 2 to 16 hosts",
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
            "expected kind \"bulk\" or \"short\"",
        ),
        (
            format!("[traffic]\nkind = \"competing\"\nagainst = {{ cc = \"reno\" }}\n{two}"),
            5,
            1,
            "expected kind \"bulk\" or \"short\"",
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
    let many: String = (0..17)
        .map(|n| format!("[[host]]\nname = \"h{n}\"\n"))
        .collect();
    let fault = fault(&format!("name = \"x\"\n{many}"));
    assert!(fault.to_string().contains("found 17"), "{fault}");
}
