use super::*;
use crate::host::loss::LossCounters;
use crate::scenario::Scenario;

fn object(round: u32, page: u32, page_us: f64, fct_us: f64, class: &str) -> Connection {
    Connection {
        round,
        page: Some(page),
        page_us: Some(page_us),
        fct_us: Some(fct_us),
        flow_bytes: Some(1000),
        class: class.into(),
        ..Connection::default()
    }
}

fn mode(name: &str, connections: Vec<Connection>) -> ModeOutcome {
    ModeOutcome {
        mode: name.parse().unwrap(),
        rounds: 20,
        connections,
        forward: LossCounters::default(),
        reverse: LossCounters::default(),
        hosts: Vec::new(),
        least_rtt_us: None,
        last_change: None,
        remotes: Vec::new(),
        gain: None,
        processor_share: None,
    }
}

fn outcome(modes: Vec<ModeOutcome>) -> ScenarioOutcome {
    let text = "name = \"x\"\n[traffic]\nkind = \"web\"\n";
    ScenarioOutcome {
        scenario: Scenario::parse(text, std::path::Path::new("x")).unwrap(),
        reference_every: 1,
        modes,
        checks: Vec::new(),
        null_checks: Vec::new(),
        wall_s: 1.0,
        report: "x".into(),
    }
}

#[test]
fn a_page_takes_as_long_as_its_last_object_and_for_ever_if_one_failed() {
    let mut failed = object(0, 1, 0.0, 0.0, "small");
    (failed.page_us, failed.fct_us, failed.error) = (None, None, Some("x".into()));
    let one = mode(
        "baseline",
        vec![
            object(0, 0, 300.0, 300.0, "small"),
            object(0, 0, 900.0, 500.0, "large"),
            object(0, 1, 100.0, 100.0, "small"),
            failed,
            object(1, 0, 70.0, 70.0, "small"),
        ],
    );
    let times: Vec<f64> = page_times(&one).into_values().collect();
    assert_eq!(times, [900.0, f64::INFINITY, 70.0]);
}

#[test]
fn figures_of_weighted_clusters_are_those_of_the_repeated_times() {
    let clusters = [vec![1.0, 5.0], vec![3.0], vec![7.0, 2.0, 9.0]];
    let times = Times::new(&clusters);
    let weights = [2, 0, 1];
    // 1, 5, 1, 5, 7, 2, 9
    let figure = |figure| times.weighted_metric(figure, &weights).unwrap();
    assert!((figure(Figure::Mean) - 30.0 / 7.0).abs() < 1e-12);
    assert_eq!(figure(Figure::Quantile(0.5)), 5.0);
    assert_eq!(figure(Figure::Quantile(1.0)), 9.0);
    assert_eq!(figure(Figure::Quantile(0.0)), 1.0);
    assert_eq!(times.weighted_metric(Figure::Mean, &[0, 0, 0]), None);
}

#[test]
fn the_table_has_ratios_with_intervals_that_hold_them() {
    // Each time of the second mode is eight tenths of the first's.
    let of = |factor: f64| {
        let times = (0..20).flat_map(|round| {
            let base = f64::from(100 + round * 10);
            [
                object(round, 0, base * factor, base * factor, "small"),
                object(round, 1, 3.0 * base * factor, 3.0 * base * factor, "large"),
            ]
        });
        times.collect()
    };
    let all = outcome(vec![mode("baseline", of(1.0)), mode("thalweg", of(0.8))]);
    let table = web_table(&all).unwrap();
    assert_eq!(
        table.header,
        ["what", "baseline", "thalweg", "thalweg / baseline"]
    );
    let row = |name: &str| table.rows.iter().find(|row| row[0] == name).unwrap();
    // (100 + 290) / 2 · (1 + 3) / 2 = 390.
    assert_eq!(row("pages, mean")[1..3], ["390 µs", "312 µs"]);
    for name in [
        "pages, mean",
        "pages, p99",
        "objects, median",
        "large objects, p95",
    ] {
        assert_eq!(row(name)[3], "0.800 [0.800, 0.800]", "{name}");
    }
    assert_eq!(row("medium objects, mean")[3], "–");
    let sentence = page_sentence(&all).unwrap();
    assert!(sentence.contains("thalweg 312 µs ("), "{sentence}");
}

#[test]
fn intervals_widen_with_what_differs_between_rounds() {
    let of = |odd: f64| {
        let time = move |round| if round % 2 == 1 { odd } else { 100.0 };
        let objects = (0..20).map(move |round| object(round, 0, time(round), 1.0, "small"));
        objects.collect()
    };
    let (ours, theirs) = (mode("thalweg", of(200.0)), mode("baseline", of(100.0)));
    let (ours, theirs) = pair_times(
        times_by_cluster(&ours, TableSubject::Pages),
        times_by_cluster(&theirs, TableSubject::Pages),
    );
    // The share of odd rounds in a resample has the deviation sqrt(1/80) = 0.11.
    let (low, high) = ratio_interval(Figure::Mean, &ours, &theirs).unwrap();
    assert!(
        (1.2..1.4).contains(&low) && (1.6..1.8).contains(&high),
        "{low} {high}"
    );
}
