use super::*;
use thalweg_units::Fault;

use crate::units::{Probability, Seconds};

pub(crate) fn parse(text: &str) -> Result<Scenario, Faults> {
    Scenario::parse(text, Path::new("x.toml"))
}

/// The only fault of a text.
pub(crate) fn fault(text: &str) -> Fault {
    let Faults(faults) = parse(text).expect_err(text);
    let [fault] = &faults[..] else {
        panic!("{text}\n{faults:#?}")
    };
    fault.clone()
}

/// Checks that each text has one fault with this place (line, column) and message. The text follows
/// a table, which follows a first line with the name, so the table begins in line 2.
pub(crate) fn faults_are(table: &str, cases: &[(&str, (usize, usize), &str)]) {
    for &(line, place, message) in cases {
        let text = format!("name = \"x\"\n{table}{line}\n");
        let fault = fault(&text);
        let (at, told) = ((fault.at.line, fault.at.column), fault.to_string());
        assert_eq!(at, place, "{text}\n{told}");
        assert!(told.contains(message), "{text}\n{told}");
        assert!(told.starts_with(&format!("x.toml:{}:{}: ", place.0, place.1)));
        assert!(!told.contains('\n'), "{told}");
    }
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
            kind: TrafficKind::Bulk,
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
syn_loss = "30%"
reverse_loss = "2%"
drop = "reported"
rate = "100mbit"
queue = "64kib"
delay = "10ms"
jitter = "500us"
ack_delay = "100ms"
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
    assert_eq!(scenario.path.syn_loss.fraction(), 0.3);
    assert!(scenario.path.describe().contains("30% loss of SYNs, 2% "));
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
            .contains("10ms ± 500us delay each way, ACKs delayed by up to 100ms, 0.5% reordered")
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
            kind: TrafficKind::Bulk,
        }
    );
    assert_eq!(scenario.system.sysctl["net.ipv4.tcp_no_metrics_save"], "1");
    assert_eq!(
        (scenario.expect[0].at_least, scenario.expect[0].at_most),
        (Some(2.0), Some(3.5))
    );
}

#[test]
fn faults_have_a_place_and_say_what_was_expected() {
    faults_are(
        "",
        &[
            (
                "nome = 1",
                (2, 1),
                "found the unknown key \"nome\", expected one of name, ",
            ),
            (
                "description = 3",
                (2, 15),
                "description: found the number 3, expected a string",
            ),
            ("= 3", (2, 1), "key"),
        ],
    );
    faults_are(
        "[system]\n",
        &[
            (
                "default_cc = \"cu bic\"",
                (3, 14),
                "the name of a congestion control",
            ),
            (
                "sysctl = { \"kernel.panic\" = 1 }",
                (3, 12),
                "expected a setting below net.",
            ),
            (
                "sysctl = { \"net.../x\" = 1 }",
                (3, 12),
                "expected a setting below net.",
            ),
            (
                "qdisc = \"cake\"",
                (3, 9),
                "expected \"default\" or \"fq\" or \"pfifo\"",
            ),
            ("memory = \"1mib\"", (3, 10), "expected memory from"),
            (
                "hz = 300",
                (3, 6),
                "found the number 300, expected 100, 250 or 1000",
            ),
            (
                "timers = \"precise\"",
                (3, 10),
                "expected \"high-resolution\" or \"tick\"",
            ),
        ],
    );
}

/// One fault of each kind in each part of the file; all are found, unless the file is not TOML.
#[test]
fn all_faults_are_told_at_once() {
    let Faults(faults) = parse(
        "name = \"x\"\nsendr = \"native\"\n\
         [path]\ndelay = \"10ms\"\njitter = \"20ms\"\n\
         [traffic]\nkind = \"short\"\nflows = 0\nbyts = \"10kb\"\n\
         [system]\nhz = 300\n\
         [[change]]\nat = 2\n\
         [[expect]]\nmode = \"fixd\"\nstatistic = \"medain\"\nat_least = 1\n",
    )
    .unwrap_err();
    let found: Vec<(usize, usize, &str)> = faults
        .iter()
        .map(|fault| {
            let key = fault.key.as_deref().unwrap_or_default();
            (fault.at.line, fault.at.column, key)
        })
        .collect();
    let expected = [
        (2, 1, ""),
        (5, 10, "path.jitter"),
        (8, 9, "traffic.flows"),
        (9, 1, "traffic"),
        (11, 6, "system.hz"),
        (12, 1, "change 1"),
        (15, 8, "expect 1: mode"),
        (16, 13, "expect 1: statistic"),
    ];
    assert_eq!(found, expected, "{}", Faults(faults.clone()));
    assert!(faults[0].expected.ends_with("; perhaps `sender`"));
    assert!(faults[7].expected.ends_with("; perhaps \"median\""));
}

#[test]
fn a_name_must_suit_a_directory() {
    for name in ["", "a/b", "..", ".hidden", "a b", &"x".repeat(65)] {
        let fault = fault(&format!("name = \"{name}\""));
        assert_eq!((fault.at.line, fault.at.column), (1, 8), "{fault}");
    }
    assert!(fault("").to_string().contains("name: found nothing"));
}

#[test]
fn columns_count_characters() {
    let fault = fault("name = \"x\"\ndescription = \"äöü\" x");
    assert_eq!((fault.at.line, fault.at.column), (2, 21), "{fault}");
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
