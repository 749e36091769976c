//! `thalweg-lab model show` and `check`: no agent, no privilege.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn run(directory: &Path, arguments: &[&str]) -> Ran {
    let output = Command::new(thalweg_testbed::laboratory())
        .current_dir(directory)
        .arg("model")
        .args(arguments)
        .output()
        .unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A file by hand: length of the header, header, numbers. One tree with a root and two leaves.
fn tree(target: f64) -> Vec<u8> {
    let document = json!({
        "name": "by hand",
        "kind": "tree",
        "features": [{ "name": "action" }, { "name": "error", "scale": 4.0 }],
        "history": 1,
        "target": target,
        "offset": 1.0,
        "training": {
            "scenarios": ["2-to-1", "4-to-1"], "seed": 9, "commit": "abc",
            "base_rtt_ns": 12_500, "line_rate_bps": 100_000_000_000u64,
        },
        "evaluation": {
            "su_percent": 92.5,
            "runs": [{
                "scenario": "many-to-one-128", "inference": "tree", "initial_fraction": 0.001,
                "duration_s": 0.5, "warmup_s": 0.25, "seeds": 3, "utilisation_percent": 99.5,
                "fairness_percent": 98.0, "queue_us": 7.25, "dropped_percent": 0.0,
            }],
        },
    });
    let parts: [(&str, &str, usize, Vec<u8>); 6] = [
        (
            "tree.value",
            "I32",
            3,
            [0i32, -5, 700]
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect(),
        ),
        (
            "tree.threshold",
            "I16",
            3,
            [100i16, 0, 0]
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect(),
        ),
        (
            "tree.left",
            "U16",
            3,
            [1u16, 1, 2].iter().flat_map(|v| v.to_le_bytes()).collect(),
        ),
        (
            "tree.right",
            "U16",
            3,
            [2u16, 1, 2].iter().flat_map(|v| v.to_le_bytes()).collect(),
        ),
        ("tree.root", "U16", 1, vec![0, 0]),
        ("tree.feature", "U8", 3, vec![1, 0, 0]),
    ];
    let mut header = json!({
        "__metadata__": { "format_version": "1", "thalweg": document.to_string() },
    });
    let mut data = Vec::new();
    for (name, dtype, count, bytes) in parts {
        let offsets = [data.len(), data.len() + bytes.len()];
        header[name] = json!({ "dtype": dtype, "shape": [count], "data_offsets": offsets });
        data.extend(bytes);
    }
    let header = header.to_string();
    [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        &data,
    ]
    .concat()
}

#[test]
fn models_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("m.safetensors"), tree(0.5)).unwrap();
    let ran = run(directory.path(), &["show", "m.safetensors"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    for line in [
        "name        by hand\n",
        "kind        tree, 1 with 3 nodes in all\n",
        "sees        action, error × 4\n",
        "target      0.5\n",
        "integers    yes: it can run in the kernel\n",
        "trained on  2-to-1, 4-to-1\n",
        "with        seed 9, commit abc, base RTT 12.5 µs, line rate 100 Gbit/s\n",
        "results     su_percent: 92.5\n",
        "\nScenario         Inference  SU %  FR %  QL µs  Dropped %   Measured s  Begin %  Seeds\n",
        "\nmany-to-one-128  tree       99.5    98   7.25          0  0.25 to 0.5      0.1      3\n",
    ] {
        assert!(ran.out.contains(line), "{line}\n{}", ran.out);
    }
    let ran = run(directory.path(), &["--json", "show", "m.safetensors"]);
    let shown: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(shown["kind"], "tree");
    assert_eq!(shown["inputs"], 2);
    assert_eq!(shown["integer"], true);
    assert_eq!(shown["training"]["seed"], 9);
}

#[test]
fn files_that_are_no_models_are_told() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("good.safetensors"), tree(0.5)).unwrap();
    std::fs::write(directory.path().join("bad.safetensors"), tree(-0.5)).unwrap();
    let ran = run(directory.path(), &["check", "good.safetensors"]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), "good.safetensors: good\n")
    );
    let all = ["check", "bad.safetensors", "good.safetensors", "absent"];
    let ran = run(directory.path(), &all);
    assert_eq!(ran.code, Some(1));
    let lines: Vec<&str> = ran.out.lines().collect();
    let expected = "error: bad.safetensors: target: found -0.5, expected 0.000001 to 255";
    assert_eq!(lines[..2], [expected, "good.safetensors: good"]);
    assert!(
        lines[2].starts_with("error: cannot read absent: No such file"),
        "{}",
        ran.out
    );
    assert_eq!(ran.err, "thalweg-lab: 2 files are no models\n");
    let ran = run(directory.path(), &[&["--json"], &all[..]].concat());
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        told[1],
        json!({ "file": "good.safetensors", "fault": null, "integer": true })
    );
    let ran = run(directory.path(), &["show", "bad.safetensors"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.err.contains("bad.safetensors: target: found -0.5"),
        "{}",
        ran.err
    );
}
