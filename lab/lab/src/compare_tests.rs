use super::*;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

/// A results document: modes with the goodputs of their connections.
fn document(name: &str, modes: &[(&str, Vec<f64>)]) -> Value {
    let modes: Vec<Value> = modes
        .iter()
        .map(|(mode, goodputs)| {
            let connections: Vec<Value> = goodputs
                .iter()
                .enumerate()
                .map(|(round, goodput)| {
                    json!({"round": round, "goodput_bps": goodput, "retransmits": 2,
                           "sent_segments": 100, "arm": "bbr", "mean_rtt_us": null,
                           "wall_s": 1.0, "error": null})
                })
                .collect();
            json!({"mode": mode, "connections": connections})
        })
        .collect();
    json!({
        "format": 1,
        "environment": {"version": "0", "kernel": "Linux 6", "cpus": 2, "iperf3": "iperf 3"},
        "scenarios": [{
            "scenario": {"name": name, "path": {"mtu": 1500}, "traffic": {"connections": 60, "duration": 1}},
            "modes": modes,
        }],
    })
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, document: &Value) -> PathBuf {
        let file = self.0.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, document.to_string()).unwrap();
        file
    }
}

fn around(median: f64, count: u32) -> Vec<f64> {
    (0..count)
        .map(|place| median * (0.9 + 0.2 * f64::from(place) / f64::from(count - 1)))
        .collect()
}

fn goodput() -> Options {
    Options {
        measures: vec![Measure::Goodput],
        ..Options::default()
    }
}

#[test]
fn a_clear_loss_is_worse_a_clear_gain_better_and_the_same_neither() {
    let files = Files::new();
    let a = files.write(
        "a.json",
        &document(
            "x",
            &[
                ("baseline", around(100e6, 21)),
                ("fixed:bbr", around(100e6, 21)),
                ("thalweg", around(100e6, 21)),
            ],
        ),
    );
    let b = files.write(
        "b.json",
        &document(
            "x",
            &[
                ("baseline", around(100e6, 21)),
                ("fixed:bbr", around(200e6, 21)),
                ("thalweg", around(80e6, 21)),
            ],
        ),
    );
    let comparison = compare_runs(&a, &b, &Options::default()).unwrap();
    let goodputs: Vec<&Row> = comparison
        .rows
        .iter()
        .filter(|row| row.measure == Measure::Goodput)
        .collect();
    let verdicts: Vec<Verdict> = goodputs.iter().map(|row| row.verdict).collect();
    assert_eq!(
        verdicts,
        [Verdict::NoDifferenceShown, Verdict::Better, Verdict::Worse]
    );
    assert!((goodputs[1].value - 2.0).abs() < 1e-9);
    assert!((goodputs[2].value - 0.8).abs() < 1e-9);
    // The spread is ±10 %: the interval is narrower than that, and not empty.
    assert!(goodputs[2].low > 0.7 && goodputs[2].low < 0.8);
    assert!(comparison.is_worse());
    // 20 % worse is within a tolerance of 30 %.
    let tolerant = Options {
        tolerance: 0.3,
        ..Options::default()
    };
    let comparison = compare_runs(&a, &b, &tolerant).unwrap();
    assert!(!comparison.is_worse());
    // Equal values have an interval of one point.
    let share = &comparison.rows[1];
    assert_eq!(share.measure, Measure::RetransmissionShare);
    assert_eq!((share.value, share.low, share.high), (0.0, 0.0, 0.0));
    let text = comparison_tables(&comparison)[0].to_text();
    assert!(text.contains("0.800×") && text.contains("21/21"), "{text}");
}

#[test]
fn lower_is_better_where_it_is() {
    for (low, high, expected) in [
        (1.2, 1.5, Verdict::Worse),
        (0.5, 0.9, Verdict::Better),
        (0.9, 1.1, Verdict::NoDifferenceShown),
        (1.2, f64::INFINITY, Verdict::Worse),
    ] {
        assert_eq!(
            judge_interval(low, high, Against::Ratio, Better::Lower, 0.05),
            expected
        );
    }
    // Shares are compared by difference: from 0 to 2 % is worse, even by a single point.
    let against = Against::for_measure(Measure::RetransmissionShare);
    assert_eq!(against.compare_values(0.0, 0.02), 0.02);
    assert_eq!(
        judge_interval(0.02, 0.02, against, Better::Lower, 0.01),
        Verdict::Worse
    );
    assert_eq!(
        judge_interval(0.02, 0.02, against, Better::Lower, 0.03),
        Verdict::NoDifferenceShown
    );
    // 0 against 0 is no difference.
    assert_eq!(Against::Ratio.compare_values(0.0, 0.0), 1.0);
}

#[test]
fn a_mode_that_moves_nothing_any_more_is_worse() {
    let files = Files::new();
    let a = files.write("a.json", &document("x", &[("thalweg", around(1e6, 9))]));
    let b = files.write("b.json", &document("x", &[("thalweg", vec![0.0; 9])]));
    let there = compare_runs(&a, &b, &goodput()).unwrap();
    assert_eq!(there.rows[0].verdict, Verdict::Worse);
    let back = compare_runs(&b, &a, &goodput()).unwrap();
    assert_eq!(back.rows[0].verdict, Verdict::Better);
}

#[test]
fn what_is_in_one_only_is_named() {
    let files = Files::new();
    let few = [("baseline", around(1e6, 9)), ("classic", around(1e6, 9))];
    files.write("a/x/results.json", &document("x", &few));
    files.write("a/y/results.json", &document("y", &few));
    files.write("b/x/results.json", &document("x", &few[..1]));
    let (a, b) = (files.0.path().join("a"), files.0.path().join("b"));
    let comparison = compare_runs(&a, &b, &goodput()).unwrap();
    assert_eq!(comparison.only_a, ["x: classic", "y"]);
    assert_eq!(comparison.only_b, Vec::<String>::new());
    assert_eq!(comparison.rows.len(), 1);
    assert_eq!(
        comparison_remarks(&comparison),
        ["only in A: x: classic, y"]
    );
}

#[test]
fn circumstances_that_differ_are_noted() {
    let files = Files::new();
    let mut results = document("x", &[("baseline", around(1e6, 9))]);
    let a = files.write("a.json", &results);
    results["environment"]["kernel"] = "Linux 7".into();
    let b = files.write("b.json", &results);
    let comparison = compare_runs(&a, &b, &goodput()).unwrap();
    assert_eq!(comparison.notes, ["kernel differs: A Linux 6, B Linux 7"]);
}

#[test]
fn backend_and_stack_that_differ_are_noted() {
    let files = Files::new();
    let old = document("x", &[("baseline", around(1e6, 9))]);
    let with = |name: &str, backend: &str, stack: &str| {
        let mut results = old.clone();
        results["environment"]["backend"] =
            json!({"name": backend, "why": name, "kernel_command": null});
        results["environment"]["stack"] = stack.into();
        files.write(name, &results)
    };
    let (a, b) = (
        with("a.json", "host", "Linux 5"),
        with("b.json", "uml", "Linux 6"),
    );
    let comparison = compare_runs(&a, &b, &goodput()).unwrap();
    assert_eq!(
        comparison.notes,
        [
            "backend differs: A host, B uml",
            "stack differs: A Linux 5, B Linux 6"
        ]
    );
    // The reason for a backend is no difference.
    let same = with("same.json", "host", "Linux 5");
    assert!(
        compare_runs(&a, &same, &goodput())
            .unwrap()
            .notes
            .is_empty()
    );
    // Older runs tell neither.
    let old = files.write("old.json", &old);
    assert!(compare_runs(&old, &a, &goodput()).unwrap().notes.is_empty());
}

#[test]
fn other_ends_or_agent_are_another_scenario() {
    let files = Files::new();
    let results = document("x", &[("baseline", around(1e6, 9))]);
    let native = files.write("native.json", &results);
    for (key, value) in [
        ("sender", json!("stack")),
        ("receiver", json!("stack")),
        ("agent", json!({"arms": ["bbr"]})),
    ] {
        let mut other = results.clone();
        other["scenarios"][0]["scenario"][key] = value.clone();
        let other = files.write(&format!("{key}.json"), &other);
        let error = compare_runs(&native, &other, &goodput()).unwrap_err();
        let (error, reason) = (error.to_string(), format!("its {key} is null in"));
        assert!(error.contains(&reason), "{error}");
        compare_runs(&other, &other, &goodput()).unwrap();
    }
}

#[test]
fn what_cannot_be_compared_is_refused_with_the_reason() {
    let files = Files::new();
    let results = document("x", &[("baseline", around(1e6, 9))]);
    let good = files.write("good.json", &results);
    let mut other = results.clone();
    other["format"] = 99.into();
    let format = files.write("format.json", &other);
    let mut other = results.clone();
    other["scenarios"][0]["scenario"]["path"]["mtu"] = 9000.into();
    let path = files.write("path.json", &other);
    let elsewhere = files.write(
        "elsewhere.json",
        &document("z", &[("baseline", around(1e6, 9))]),
    );
    let mut other = results.clone();
    other["scenarios"][0]["modes"][0]["connections"][0]["goodput_bps"] = "much".into();
    let words = files.write("words.json", &other);
    files.write("twice/1/results.json", &results);
    files.write("twice/2/results.json", &results);
    fs::create_dir(files.0.path().join("empty")).unwrap();
    fs::write(files.0.path().join("torn.json"), "{\n \"format\": 1,").unwrap();
    for (file, reason) in [
        (files.0.path().join("absent"), "cannot read"),
        (
            files.0.path().join("empty"),
            "expected results.json in this directory",
        ),
        (
            files.0.path().join("torn.json"),
            "torn.json:2:13: expected the results",
        ),
        (format, "expected results of format 1, found format 99"),
        (path, "its path is {\"mtu\":1500}"),
        (elsewhere, "no measurement in common"),
        (words, "invalid type: string \"much\""),
        (files.0.path().join("twice"), "expected each once"),
    ] {
        let error = compare_runs(&good, &file, &goodput())
            .unwrap_err()
            .to_string();
        assert!(error.contains(reason), "{error}");
        assert!(
            error.contains(file.file_name().unwrap().to_str().unwrap()),
            "{error}"
        );
    }
    // More connections do not make another scenario.
    let mut longer = results.clone();
    longer["scenarios"][0]["scenario"]["traffic"]["connections"] = 90.into();
    compare_runs(&good, &files.write("longer.json", &longer), &goodput()).unwrap();
}

#[test]
fn options_out_of_range_are_refused() {
    for options in [
        Options {
            tolerance: -0.1,
            ..Options::default()
        },
        Options {
            confidence: 1.0,
            ..Options::default()
        },
        Options {
            resamples: 10,
            ..Options::default()
        },
    ] {
        let error = compare_runs(Path::new("a"), Path::new("b"), &options).unwrap_err();
        assert!(matches!(error, Error::Options(_)), "{error}");
    }
}

#[test]
fn queue_delay_has_one_origin_for_both_runs() {
    let files = Files::new();
    let write = |name: &str, least: f64| {
        let mut results = document("x", &[("baseline", around(1e6, 9))]);
        let mode = &mut results["scenarios"][0]["modes"][0];
        mode["least_rtt_us"] = least.into();
        for connection in mode["connections"].as_array_mut().unwrap() {
            connection["srtt_us"] = json!([5000]);
        }
        files.write(name, &results)
    };
    let (a, b) = (write("a.json", 1000.0), write("b.json", 3000.0));
    let options = Options {
        measures: vec![Measure::QueueDelay],
        ..Options::default()
    };
    let comparison = compare_runs(&a, &b, &options).unwrap();
    let row = &comparison.rows[0];
    assert_eq!((row.median_a, row.median_b), (4000.0, 4000.0));
    assert_eq!(row.verdict, Verdict::NoDifferenceShown);
}

#[test]
fn hosts_are_compared_each_by_itself() {
    let files = Files::new();
    let run = |name: &str, near: f64, far: f64| {
        let goodputs: Vec<f64> = around(near, 20)
            .into_iter()
            .chain(around(far, 20))
            .collect();
        let mut document = document("s", &[("thalweg", goodputs)]);
        let scenario = &mut document["scenarios"][0];
        let mode = &mut scenario["modes"][0];
        for (place, one) in mode["connections"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .enumerate()
        {
            one["host"] = if place < 20 { "near" } else { "far" }.into();
            one["srtt_us"] = json!([if place < 20 { 300 } else { 5_000 }]);
        }
        mode["remotes"] = json!([
            {"name": "near", "least_rtt_us": 100.0}, {"name": "far", "least_rtt_us": 4_000.0}
        ]);
        scenario["scenario"]["hosts"] = json!([{"name": "near"}, {"name": "far"}]);
        files.write(name, &document)
    };
    let (a, b) = (run("a.json", 100e6, 1e6), run("b.json", 100e6, 2e6));
    let comparison = compare_runs(&a, &b, &goodput()).unwrap();
    let found: Vec<(&str, Verdict)> = comparison
        .rows
        .iter()
        .map(|row| (row.host.as_str(), row.verdict))
        .collect();
    assert_eq!(
        found,
        [
            ("near", Verdict::NoDifferenceShown),
            ("far", Verdict::Better)
        ]
    );
    assert!(
        comparison_tables(&comparison)[0]
            .to_text()
            .contains("goodput (far)")
    );
    // Each host's delays are counted from its own least.
    let options = Options {
        measures: vec![Measure::QueueDelay],
        ..Options::default()
    };
    let medians: Vec<f64> = compare_runs(&a, &b, &options)
        .unwrap()
        .rows
        .iter()
        .map(|row| row.median_a)
        .collect();
    assert_eq!(medians, [200.0, 1_000.0]);
    // Other hosts are another scenario.
    let mut other: Value = serde_json::from_str(&fs::read_to_string(&b).unwrap()).unwrap();
    other["scenarios"][0]["scenario"]["hosts"][1]["name"] = "away".into();
    let other = files.write("c.json", &other);
    let error = compare_runs(&a, &other, &goodput())
        .unwrap_err()
        .to_string();
    assert!(error.contains("its hosts is"), "{error}");
}
