use crate::scenario::tests::faults_are;

#[test]
fn faults_of_the_path_have_their_place() {
    faults_are(
        "[path]\n",
        &[
            (
                "los = \"5%\"",
                (3, 1),
                "found the unknown key \"los\", expected one of loss, ",
            ),
            ("loss = \"5\"", (3, 8), "expected a percentage"),
            ("loss = 5", (3, 8), "expected a percentage"),
            ("loss = \"150%\"", (3, 8), "\"0%\" to \"100%\""),
            ("loss = true", (3, 8), "expected a percentage"),
            (
                "syn_loss = \"101%\"",
                (3, 12),
                "path.syn_loss: found the string \"101%\", expected a percentage from \"0%\" to \"100%\"",
            ),
            ("rate = \"fast\"", (3, 8), "expected a rate"),
            ("rate = 100", (3, 8), "(units bit, kbit, mbit, gbit)"),
            (
                "rate = \"1gbit\"\nqueue = \"5gb\"",
                (4, 9),
                "expected a size",
            ),
            ("rate = \"1gbit\"\nqueue = -1", (4, 9), "expected a size"),
            (
                "rate = \"1gbit\"\nqueue = 100",
                (4, 9),
                "found 100b, expected at least 1514 bytes (one packet)",
            ),
            ("queue = \"1mb\"", (3, 9), "a queue without `rate`"),
            ("aqm = \"red\"", (3, 7), "an aqm without `rate`"),
            (
                "rate = \"1gbit\"\necn = true",
                (4, 7),
                "path.ecn: found true without `aqm`",
            ),
            (
                "rate = \"1gbit\"\naqm = \"red\"\nqueue = \"18kb\"",
                (5, 9),
                "expected at least 18168 bytes (twelve packets",
            ),
            (
                "rate = \"1gbit\"\naqm = \"codel\"",
                (4, 7),
                "expected \"tail-drop\" or \"red\" or \"step\"",
            ),
            ("delay = 10", (3, 9), "expected a time from \"0ms\""),
            ("delay = \"61s\"", (3, 9), "from \"0ms\" to \"60s\""),
            (
                "jitter = \"1ms\"",
                (3, 10),
                "found 1ms, expected at most the `delay` of 0ms",
            ),
            (
                "ack_delay = \"61s\"",
                (3, 13),
                "path.ack_delay: found the string \"61s\", expected a time from \"0ms\" to \"60s\"",
            ),
            (
                "reorder = \"1%\"",
                (3, 11),
                "found reordering without `delay`",
            ),
            (
                "delay = \"1ms\"\njitter = \"2ms\"",
                (4, 10),
                "at most the `delay` of 1ms",
            ),
            ("mtu = 100", (3, 7), "expected a whole number from 576"),
            (
                "mtu = 1000\nfamily = \"ipv6\"",
                (3, 7),
                "expected 1280 to 65535 bytes with IPv6",
            ),
            (
                "family = \"ipx\"",
                (3, 10),
                "found the string \"ipx\", expected \"ipv4\" or \"ipv6\"",
            ),
            ("offload = \"no\"", (3, 11), "expected a boolean"),
            (
                "drop = \"loudly\"",
                (3, 8),
                "expected \"silent\" or \"reported\"",
            ),
            ("seed = -1", (3, 8), "a whole number from 0"),
            (
                "loss = \"1%\"\ngilbert_elliott = { to_bad = \"1%\", to_good = \"1%\" }",
                (4, 19),
                "found both `loss` and `gilbert_elliott`",
            ),
            (
                "gilbert_elliott = { to_bad = \"1%\" }",
                (3, 19),
                "path.gilbert_elliott.to_good: found nothing, expected a percentage",
            ),
            (
                "gilbert_elliott = { to_bad = \"1%\", to_good = \"0%\" }",
                (3, 46),
                "never leave",
            ),
        ],
    );
}

#[test]
fn faults_of_marks_have_their_place() {
    faults_are(
        "[path]\nrate = \"1mbit\"\n",
        &[
            ("mark = \"1ms\"", (4, 8), "a mark without `aqm = \"step\"`"),
            (
                "aqm = \"step\"\necn = true",
                (4, 7),
                "expected `ecn = true` and `mark`",
            ),
            (
                "aqm = \"step\"\nmark = \"1ms\"",
                (4, 7),
                "expected `ecn = true`",
            ),
        ],
    );
}

#[test]
fn a_trace_gives_the_rate() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.trace"), "100\n300\n400\n").unwrap();
    let file = folder.path().join("x.toml");
    let parse = |path: &str| {
        let text = format!("name = \"x\"\n[path]\ntrace = \"a.trace\"\n{path}\n");
        crate::scenario::Scenario::parse(&text, &file)
    };
    let path = parse("offload = false\nqueue = \"50kb\"").unwrap().path;
    let rates: Vec<u64> = path
        .trace
        .as_ref()
        .unwrap()
        .rates
        .iter()
        .map(|rate| rate.bps())
        .collect();
    assert_eq!(rates, [100_000, 100_000]);
    assert_eq!(path.rate.unwrap().bps(), 100_000);
    assert!(
        path.describe().contains("a.trace, on average 100kbit"),
        "{}",
        path.describe()
    );
    for (path, words) in [
        ("", "a trace, expected `offload = false`"),
        ("offload = false\nrate = \"1mbit\"", "it beside `rate`"),
        (
            "offload = false\n[[change]]\nat = 2\nrate = \"1mbit\"",
            "the path's `trace` changes it",
        ),
    ] {
        let faults = parse(path).unwrap_err();
        assert!(faults.to_string().contains(words), "{faults}");
    }
    std::fs::write(folder.path().join("a.trace"), "100\n99\n").unwrap();
    let faults = parse("offload = false").unwrap_err().to_string();
    assert!(
        faults.contains("x.toml:3:9: path.trace: found ") && faults.contains("a.trace:2:1: 99 ms"),
        "{faults}"
    );
}
