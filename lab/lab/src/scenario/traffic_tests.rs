use super::*;
use crate::scenario::tests::{faults_are, parse};
use crate::scenario::{Tail, WebServer};

#[test]
fn every_kind_of_traffic_is_read() {
    let kind = |text: &str| {
        let scenario = parse(&format!("name = \"x\"\n[traffic]\n{text}\n"));
        scenario
            .unwrap_or_else(|error| panic!("{error}"))
            .traffic
            .kind
    };
    assert_eq!(kind("kind = \"bulk\""), TrafficKind::Bulk);
    assert_eq!(
        kind("kind = \"short\"\nflows = 7\nbytes = \"100kb\""),
        TrafficKind::Short {
            flows: 7,
            sizes: Sizes::Each(Size::from_bytes(100_000)),
            hosts: 1
        }
    );
    assert_eq!(
        kind("kind = \"competing\"\nflows = 2\nagainst = { cc = \"reno\", flows = 3 }"),
        TrafficKind::Competing {
            flows: 2,
            against: Against {
                cc: "reno".into(),
                flows: 3
            }
        }
    );
    let incast = |senders, rpcs| TrafficKind::Incast { senders, rpcs };
    assert_eq!(kind("kind = \"incast\""), incast(3, None));
    assert_eq!(incast(2, None).flow_classes(), ["rpc-1mb", "rpc-10kb"]);
    let all = kind("kind = \"incast\"\nsenders = 1\nrpcs = 16");
    assert_eq!(all, incast(1, Some(16)));
    assert_eq!(all.flow_classes(), ["rpc-1mb", "rpc-10kb", "stream"]);
}

#[test]
fn long_and_short_flows_and_marks_are_read() {
    let scenario = parse(
        "name = \"x\"\n[path]\nrate = \"1gbit\"\naqm = \"step\"\necn = true\nmark = \"500us\"\n\
         [traffic]\nkind = \"long-short\"\nflows = 4\nburst = \"100kib\"\nidle = \"5ms\"\n\
         [[expect]]\nmode = \"baseline\"\nstatistic = \"fct-median\"\nclass = \"short\"\nat_most = \"1s\"\n",
    )
    .unwrap();
    assert_eq!(scenario.path.mark.unwrap().us(), 500);
    assert!(scenario.path.describe().contains("marks from 500us on"));
    let expected = TrafficKind::LongShort {
        flows: 4,
        burst: "100kib".parse().unwrap(),
        idle: "5ms".parse().unwrap(),
    };
    assert_eq!(scenario.traffic.kind, expected);
}

#[test]
fn servers_traffic_is_read_and_told() {
    let traffic = |text: &str| {
        let scenario = parse(&format!("name = \"x\"\n[traffic]\n{text}\n"));
        scenario.unwrap_or_else(|error| panic!("{error}")).traffic
    };
    let visits =
        traffic("kind = \"short\"\nhosts = 100\nsizes = { median = \"17kb\", mean = \"340kb\" }");
    let sizes = Sizes::Lognormal {
        median: Size::from_bytes(17_000),
        mean: Size::from_bytes(340_000),
        tail: None,
    };
    let expected = TrafficKind::Short {
        flows: 20,
        sizes: sizes.clone(),
        hosts: 100,
    };
    assert_eq!(visits.kind, expected);
    assert_eq!(
        visits.describe(),
        "60 rounds of 20 flows of lognormal sizes (median 17kb, mean 340kb), one after the other, \
         to 100 addresses in turn"
    );
    let video = traffic("kind = \"responses\"\nbytes = \"2mb\"\nevery = \"2s\"\nflows = [1, 8]");
    let expected = TrafficKind::Responses {
        flows: Flows::new(vec![1, 8]),
        sizes: Sizes::Each(Size::from_bytes(2_000_000)),
        idle: Idle::Every("2s".parse().unwrap()),
        think: Delay::ZERO,
    };
    assert_eq!(video.kind, expected);
    assert_eq!(
        video.describe(),
        "60 rounds of 1s: 1, 8 connections at once, each with responses of 2mb, one every 2s"
    );
    let in_turn = traffic("kind = \"short\"\nbytes = [\"1mb\", \"60kb\"]");
    assert!(in_turn.describe().contains("flows of 1mb, 60kb by round"));
    let think = traffic("kind = \"responses\"\nidle = \"3s\"");
    assert!(
        think
            .describe()
            .ends_with("2 connections at once, each with responses of 10kb, 3s apart")
    );
    let thinks = traffic("kind = \"responses\"\nthink = \"20ms\"");
    assert!(
        thinks
            .describe()
            .ends_with("10ms apart, answered after 20ms")
    );
    // The report has the keys of the file.
    let json = |traffic: &Traffic| serde_json::to_value(&traffic.kind).unwrap();
    let whole = serde_json::json!({
        "kind": "responses", "flows": [1, 8], "bytes": 2_000_000, "every": 2_000_000
    });
    assert_eq!(json(&video), whole);
    assert_eq!(json(&thinks)["think"], 20_000);
    let whole = serde_json::json!({
        "kind": "short", "flows": 20, "hosts": 100,
        "sizes": { "median": 17_000, "mean": 340_000 }
    });
    assert_eq!(json(&visits), whole);
    assert_eq!(
        json(&in_turn)["bytes"],
        serde_json::json!([1_000_000, 60_000])
    );
}

#[test]
fn faults_of_traffic_have_their_place() {
    faults_are(
        "[traffic]\n",
        &[
            ("connections = 0", (3, 15), "1 to 10000"),
            (
                "connections = \"many\"",
                (3, 15),
                "expected a whole number from 1 to 10000",
            ),
            ("duration = \"0s\"", (3, 12), "whole seconds"),
            ("duration = 1", (3, 12), "expected a time in whole seconds"),
            (
                "kind = \"mail\"",
                (3, 8),
                "found the string \"mail\", expected \"bulk\" or \"short\"",
            ),
            (
                "bytes = \"10kb\"",
                (3, 1),
                "one of kind, connections, duration with kind \"bulk\"",
            ),
            (
                "kind = \"short\"\nduration = \"2s\"",
                (4, 1),
                "found the unknown key \"duration\"",
            ),
            (
                "kind = \"short\"\nflows = 0",
                (4, 9),
                "traffic.flows: found the number 0, expected a whole number from 1 to 1000",
            ),
            (
                "kind = \"competing\"",
                (2, 1),
                "traffic.against: found nothing, expected a table, against",
            ),
            (
                "kind = \"competing\"\nagainst = { cc = \"a b\" }",
                (4, 18),
                "the name of a congestion control",
            ),
            (
                "kind = \"streams\"\nduration = \"2s\"\nwarmup = \"2s\"",
                (5, 10),
                "expected less than the duration of 2s",
            ),
            ("warmup = \"1s\"", (3, 1), "with kind \"bulk\""),
            ("kind = \"streams\"\nflows = 1001", (4, 9), "from 1 to 1000"),
            (
                "kind = \"streams\"\nflows = [2, 0]",
                (4, 13),
                "found the number 0, expected a whole number from 1 to 1000, or a list of them",
            ),
            (
                "kind = \"long-short\"\nflows = [2, 3]",
                (4, 9),
                "found a list of 2, expected a whole number from 2 to 1000",
            ),
            (
                "kind = \"short\"\nbytes = \"1kb\"\nsizes = { median = \"1kb\", mean = \"2kb\" }",
                (4, 9),
                "found it beside `sizes`, expected one of the two",
            ),
            (
                "kind = \"short\"\nsizes = { median = \"2kb\", mean = \"2kb\" }",
                (4, 34),
                "found 2kb, expected more than the median of 2kb",
            ),
            (
                "kind = \"short\"\nsizes = { median = \"2kb\" }",
                (4, 9),
                "found nothing",
            ),
            ("kind = \"short\"\nhosts = 201", (4, 9), "from 1 to 200"),
            (
                "kind = \"responses\"\nidle = \"1s\"\nevery = \"2s\"",
                (5, 9),
                "found 2s beside `idle`, expected one of the two",
            ),
            (
                "kind = \"responses\"\nbytes = 7",
                (4, 9),
                "at least 8 bytes",
            ),
            (
                "kind = \"responses\"\nbytes = [8, 7]",
                (4, 13),
                "found the number 7, expected at least 8 bytes",
            ),
            (
                "kind = \"long-short\"\nburst = 7",
                (4, 9),
                "at least 8 bytes",
            ),
            ("kind = \"long-short\"\nflows = 1", (4, 9), "from 2 to 1000"),
            (
                "kind = \"responses\"\nthink = \"61s\"",
                (4, 9),
                "traffic.think: found the string \"61s\", expected a time from \"0ms\" to \"60s\"",
            ),
            (
                "kind = \"long-short\"\nthink = \"1ms\"",
                (4, 1),
                "found the unknown key \"think\"",
            ),
            (
                "kind = \"streams\"\nidle = \"1ms\"",
                (4, 1),
                "with kind \"streams\"",
            ),
        ],
    );
}

#[test]
fn web_traffic_is_read_and_told() {
    let text = "name = \"x\"\n[traffic]\nkind = \"web\"\nconnections = 3\nduration = \"20s\"\n\
                every = \"4s\"\nobjects = 8\nat_once = 2\npersistent = \"25%\"\n\
                sizes = { median = \"12kb\", mean = \"28kb\", \
                tail = { share = \"7%\", least = \"133kb\", shape = 1.1, most = \"5mb\" } }\n\
                [[expect]]\nmode = \"thalweg\"\nstatistic = \"fct-mean\"\nclass = \"small\"\nat_most = \"1s\"\n";
    let traffic = parse(text)
        .unwrap_or_else(|error| panic!("{error}"))
        .traffic;
    let sizes = Sizes::Lognormal {
        median: Size::from_bytes(12_000),
        mean: Size::from_bytes(28_000),
        tail: Some(Tail {
            share: "7%".parse().unwrap(),
            least: Size::from_bytes(133_000),
            shape: 1.1,
            most: Size::from_bytes(5_000_000),
        }),
    };
    let expected = Web {
        server: WebServer::Worker,
        every: "4s".parse().unwrap(),
        objects: 8,
        at_once: 2,
        persistent: "25%".parse().unwrap(),
        sizes,
    };
    assert_eq!(traffic.kind, TrafficKind::Web(expected));
    assert_eq!(traffic.kind.flow_classes(), ["small", "medium", "large"]);
    assert_eq!(
        traffic.describe(),
        "3 rounds of 20s: pages every 4s on average, of 8 objects on average (lognormal sizes \
         (median 12kb, mean 28kb; 7% Pareto from 133kb to 5mb, exponent 1.1)), over up to 2 \
         connections, 25% of which stay open"
    );
    let json = serde_json::to_value(&traffic.kind).unwrap();
    assert_eq!(
        (&json["kind"], &json["objects"]),
        (&"web".into(), &8.into())
    );
    assert_eq!(json["sizes"]["tail"]["shape"], 1.1);
}

#[test]
fn faults_of_web_traffic_have_their_place() {
    faults_are(
        "[traffic]\nkind = \"web\"\n",
        &[
            ("every = \"0ms\"", (4, 9), "above 0"),
            ("objects = 0", (4, 11), "from 1 to 100"),
            ("at_once = 21", (4, 11), "from 1 to 20"),
            ("persistent = 1", (4, 14), "expected a percentage"),
            ("hosts = 2", (4, 1), "with kind \"web\""),
            (
                "server = \"nginx\"\npersistent = \"0%\"",
                (5, 14),
                "each page has its own curl",
            ),
            ("bytes = 7", (4, 9), "at least 8 bytes"),
            (
                "sizes = { median = 9, mean = 10, tail = { share = \"1%\", least = 9, shape = 0, most = 10 } }",
                (4, 76),
                "sizes.tail.shape: found the number 0, expected a number from 0.1 to 10",
            ),
            (
                "sizes = { median = 9, mean = 10, tail = { share = \"1%\", least = 9, shape = 1, most = 9 } }",
                (4, 86),
                "more than `least`, 9b",
            ),
        ],
    );
}
