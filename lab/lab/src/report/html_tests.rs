use super::*;
use crate::host::loss::LossCounters;
use crate::outcome::{Connection, ModeOutcome};
use crate::scenario::Scenario;
use crate::{LearnedArm, LearnedHost, Mode};

const HOSTILE: &str = "<script>alert('1')</script>&\"\u{1}";

fn environment() -> Environment {
    Environment {
        backend: Default::default(),
        stack: None,
        version: HOSTILE.into(),
        kernel: HOSTILE.into(),
        cpus: 2,
        hz: 250,
        timers: crate::ticks::Timers::HighResolution,
        congestion_controls: vec![HOSTILE.into()],
        iperf3: HOSTILE.into(),
        command: HOSTILE.into(),
        started: HOSTILE.into(),
    }
}

fn outcome(connections: u32) -> ScenarioOutcome {
    let text = "name = \"x\"\n[[expect]]\nmode = \"baseline\"\nstatistic = \"median\"\nat_least = \"1mbit\"";
    let mut scenario = Scenario::parse(text, std::path::Path::new("x")).unwrap();
    scenario.description = HOSTILE.into();
    scenario.system.default_cc = HOSTILE.into();
    let mode = |mode: Mode| ModeOutcome {
        mode,
        rounds: connections,
        connections: (0..connections)
            .map(|round| Connection {
                round,
                goodput_bps: 10f64.powi(round as i32 % 10),
                retransmits: 1,
                arm: HOSTILE.into(),
                mean_rtt_us: Some(1.0),
                page: None,
                page_us: None,
                wall_s: 1.0,
                cpu: None,
                error: (round == 1).then(|| HOSTILE.into()),
                class: HOSTILE.into(),
                rtt_us: vec![(20.5, 7), (90.0, 1)],
                host: HOSTILE.into(),
                address: None,
                srtt_us: vec![20, 40],
                part_bps: Some(1e6),
                flow_bytes: Some(1000),
                fct_us: Some(100.0),
                sent_segments: Some(10),
                min_rtt_us: Some(10.0),
            })
            .collect(),
        forward: LossCounters::default(),
        reverse: LossCounters::default(),
        hosts: vec![LearnedHost {
            address: HOSTILE.into(),
            arms: vec![LearnedArm {
                arm: HOSTILE.into(),
                ..Default::default()
            }],
        }],
        least_rtt_us: Some(10.0),
        last_change: None,
        remotes: Vec::new(),
        gain: None,
        processor_share: None,
    };
    let modes = vec![
        mode(Mode::Baseline),
        mode(Mode::Fixed("bbr".into())),
        mode(Mode::Thalweg),
    ];
    ScenarioOutcome {
        checks: crate::expect::evaluate_expectations(&scenario.expect, &modes),
        null_checks: Vec::new(),
        scenario,
        reference_every: 1,
        modes,
        wall_s: 1.0,
        report: "x".into(),
    }
}

#[test]
fn text_is_escaped() {
    assert_eq!(escape_html("a<b>&\"'\n"), "a&lt;b&gt;&amp;&quot;&#39;\n");
    assert_eq!(escape_html("\u{0}\u{1b}ä"), "\u{fffd}\u{fffd}ä");
}

#[test]
fn nothing_hostile_gets_through_from_anywhere() {
    let page = scenario_page(&environment(), &outcome(12));
    assert!(!page.contains("<script"));
    assert!(!page.contains('\u{1}'));
    assert!(page.contains("&lt;script&gt;"));
}

#[test]
fn the_page_needs_nothing_else_and_its_tags_match() {
    for connections in [0, 1, 12] {
        let page = scenario_page(&environment(), &outcome(connections));
        for foreign in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(
            !page.contains("NaN") && !page.replace("infinite", "").contains("inf"),
            "{connections}"
        );
        for tag in [
            "svg", "g", "table", "tr", "td", "th", "div", "title", "desc", "text", "dl", "main",
        ] {
            let opened = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        assert_eq!(
            page.matches("<svg").count(),
            page.matches("aria-labelledby").count()
        );
    }
}

#[test]
fn each_measure_has_its_picture_where_it_was_measured() {
    let mut outcome = outcome(12);
    let titles = |page: &str| -> Vec<String> {
        page.split("<h3>")
            .skip(1)
            .filter_map(|part| Some(part.split_once("</h3>")?.0.to_owned()))
            .collect()
    };
    let everything = titles(&scenario_page(&environment(), &outcome));
    assert_eq!(
        everything,
        [
            "Goodput of each connection",
            "Arms over the run",
            "Convergence",
            "Regret",
            "goodput",
            "retransmission share",
            "RTT under load",
            "smoothed RTT under load",
            "queue delay",
            "flow-completion time",
        ]
    );
    // Competition has a picture of its own.
    for mode in &mut outcome.modes {
        for connection in &mut mode.connections[..6] {
            connection.class = crate::scenario::INCUMBENT.into();
            connection.round += 6;
        }
    }
    let page_of_competition = scenario_page(&environment(), &outcome);
    assert!(titles(&page_of_competition).contains(&"Share of the bottleneck".to_owned()));
    assert!(!page_of_competition.contains("NaN"));
    // A measure without values has neither picture nor row.
    for connection in outcome
        .modes
        .iter_mut()
        .flat_map(|mode| &mut mode.connections)
    {
        *connection = Connection {
            round: connection.round,
            goodput_bps: connection.goodput_bps,
            ..Connection::default()
        };
    }
    let page = scenario_page(&environment(), &outcome);
    assert_eq!(
        titles(&page),
        [
            "Goodput of each connection",
            "Convergence",
            "Regret",
            "goodput"
        ]
    );
    assert!(!page.contains("<td>median flow-completion time</td>"));
}

#[test]
fn each_host_has_its_pictures_and_every_identifier_is_there_once() {
    let mut outcome = outcome(6);
    let text = "name = \"x\"\n[[host]]\nname = \"near\"\n[[host]]\nname = \"far\"\n";
    outcome.scenario = Scenario::parse(text, std::path::Path::new("x")).unwrap();
    for mode in &mut outcome.modes {
        mode.remotes = ["near", "far"]
            .into_iter()
            .zip(["10.0.0.2", "10.0.1.2"])
            .map(|(name, address)| crate::outcome::RemoteOutcome {
                name: name.into(),
                address: address.parse().unwrap(),
                others: Vec::new(),
                forward: LossCounters::default(),
                reverse: LossCounters::default(),
                least_rtt_us: Some(10.0),
                last_change: None,
            })
            .collect();
        mode.hosts[0].address = "10.0.1.2".into();
        for (place, connection) in mode.connections.iter_mut().enumerate() {
            connection.host = if place % 2 == 0 { "near" } else { "far" }.into();
        }
    }
    let page = scenario_page(&environment(), &outcome);
    for words in [
        "<h2>All hosts</h2>",
        "<h2>Course, host near</h2>",
        "<h2>Modes, host far</h2>",
        "<td>10.0.1.2 (far)</td>",
    ] {
        assert!(page.contains(words), "{words}");
    }
    let quoted = |attribute: &str| -> Vec<String> {
        page.split(&format!(" {attribute}=\""))
            .skip(1)
            .flat_map(|rest| rest.split('"').next().unwrap().split(' '))
            .map(str::to_owned)
            .collect()
    };
    let mut identifiers = quoted("id");
    identifiers.sort();
    let mut named = quoted("aria-labelledby");
    named.sort();
    assert_eq!(identifiers, named);
    let count = identifiers.len();
    identifiers.dedup();
    assert_eq!(identifiers.len(), count);
}
