//! The learned rate controller in the laboratory: the run loads the model itself, and the page
//! has it beside another congestion control and beside the simulator.

use std::fs;
use std::process::Command;

use crate::support::virtual_time::in_virtual_time;
use crate::support::{THALWEG, manifest_path, privileged, unique};

const MODEL: &str = "models/adpg-plus.safetensors";

const TABLES: &str = r#"
title = "A page"
introduction = "Words."

[[table]]
kind = "compared"
title = "Two flows"
across = "flows"
modes = ["fixed:ARM", "fixed:reno"]
picture = "flows.svg"
note = "A note."
column = [
    { name = "SU %", figure = "utilisation" },
    { name = "FR %", figure = "fairness" },
    { name = "queue delay, ms", figure = "queue-delay-median" },
]
target = [
    { condition = "2", mode = "fixed:reno", figure = "utilisation", at_least = 1000.0 },
    { condition = "2", mode = "fixed:ARM", figure = "utilisation", at_least = 1.0 },
]

[[table.row]]
condition = "2"
run = { scenario = "two.toml", backend = "host", connections = 1 }

[[table]]
kind = "simulated"
title = "Beside the simulator"
note = "Another."

[[table.row]]
condition = "2"
mode = "fixed:reno"
modes = ["fixed:ARM", "fixed:reno"]
run = { scenario = "two.toml", backend = "host", connections = 1 }
scenario = "sim.toml"
cc = "dctcp"
"#;

// The queue takes 80 ms to leave, so that reno does not lose all at once.
const LINUX: &str = r#"
name = "two"
description = "Two flows."
[[arm]]
name = "ARM"
load = "MODEL"
[path]
rate = "20mbit"
queue = "200kb"
[traffic]
kind = "streams"
flows = 2
connections = 1
duration = "3s"
warmup = "1s"
"#;

const SIMULATOR: &str = r#"
name = "sim"
duration = "1s"
warmup = "500ms"
[topology]
kind = "star"
hosts = 3
[link]
rate = "20mbit"
delay = "500us"
queue = "200kb"
[network]
packet = 1500
base_rtt = "5ms"
ecn = { min = 10000, max = 10001, probability = "100%" }
[hosts]
min_rate = "200kbit"
[workload]
kind = "many-to-one"
flows = 2
"#;

fn available() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap()
}

/// The numbers of a row: each cell's first.
fn row(page: &str, begin: &str) -> Vec<f64> {
    let line = page
        .lines()
        .find(|line| line.starts_with(begin))
        .unwrap_or_else(|| panic!("no row {begin:?} in:\n{page}"));
    line[begin.len()..]
        .split('|')
        .filter_map(|cell| cell.split_whitespace().next())
        .map(|word| word.parse().unwrap_or_else(|_| panic!("{word} in {line}")))
        .collect()
}

fn a_page_has_the_learned_controller_beside_others_and_the_simulator() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let arm = unique("lr");
    let model = manifest_path(MODEL).canonicalize().unwrap();
    let linux = LINUX
        .replace("ARM", &arm)
        .replace("MODEL", model.to_str().unwrap());
    fs::write(at("two.toml"), linux).unwrap();
    fs::write(at("sim.toml"), SIMULATOR).unwrap();
    fs::write(at("tables.toml"), TABLES.replace("ARM", &arm)).unwrap();
    let make = || {
        let output = Command::new(THALWEG)
            .args(["lab", "tables", "--tables"])
            .arg(at("tables.toml"))
            .arg("--cache")
            .arg(at("cache"))
            .arg("--out")
            .arg(at("page.md"))
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        let page = fs::read_to_string(at("page.md")).unwrap_or_default();
        assert!(output.status.success(), "{words}\n{page}");
        page
    };
    let page = make();
    assert!(page.starts_with("# A page\n\nWords.\n"), "{page}");
    assert!(!page.contains("Published"), "{page}");

    let ours = row(&page, &format!("| 2 | {arm} |"));
    let reno = row(&page, "| 2 | reno |");
    println!("ours {ours:?}, reno {reno:?}");
    for (name, figures) in [("ours", &ours), ("reno", &reno)] {
        let [used, fair, delay_ms] = figures[..] else {
            panic!("{name}: {figures:?}")
        };
        // A bottleneck gives no more than it has; 1 % for the bucket of tbf and for when it is
        // looked at. Two flows with room for both leave little of it.
        assert!((96.0..101.0).contains(&used), "{name}: {figures:?}");
        // Reno halves what fits, 80 ms and the bucket's millisecond, and fills it again; in two
        // seconds one flow may do so more often than the other. Ours share the link, and a few
        // packets of 0.6 ms wait.
        let (least, waits) = match name {
            "reno" => (25.0, 40.0..81.0),
            _ => (80.0, 0.0..10.0),
        };
        assert!((least..=100.0).contains(&fair), "{name}: {figures:?}");
        assert!(waits.contains(&delay_ms), "{name}: {figures:?}");
    }
    assert!(page.contains("utilisation at least 1000"), "{page}");
    assert_eq!(page.matches("| **missed** |").count(), 1, "{page}");
    assert_eq!(page.matches("| met |").count(), 1, "{page}");
    assert!(fs::read_to_string(at("flows.svg")).unwrap().contains(&arm));

    // Linux, simulator, difference: three times.
    let beside = page.split("## Beside the simulator").nth(1).unwrap();
    let figures = row(beside, "| 2 | reno |");
    assert_eq!(figures.len(), 9, "{beside}");
    for three in figures.chunks(3) {
        let difference = three[0] - three[1];
        assert!((difference - three[2]).abs() < 0.11, "{figures:?}");
    }
    assert!((figures[0] - reno[0]).abs() < 1e-9, "one run, two figures");
    // DCTCP keeps two flows busy at a threshold of a bandwidth-delay product.
    assert!(figures[1] > 80.0, "{figures:?}");
    assert!(beside.contains("thalweg sim run"), "{beside}");

    // The model went with the run, and what is there is not made again.
    assert!(!available().contains(&arm), "{}", available());
    let written = || {
        let made = fs::read_dir(at("cache")).unwrap().map(|entry| {
            let results = entry.unwrap().path().join("results.json");
            fs::metadata(results).unwrap().modified().unwrap()
        });
        made.collect::<Vec<_>>()
    };
    let before = written();
    assert_eq!(before.len(), 2);
    assert_eq!((make(), written()), (page, before));
}

#[test]
fn a_model_is_not_taken_for_another_of_its_name() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("two.toml");
    let model = manifest_path(MODEL).canonicalize().unwrap();
    // Every kernel has a reno.
    let text = LINUX
        .replace("ARM", "reno")
        .replace("MODEL", model.to_str().unwrap());
    fs::write(&file, text).unwrap();
    let output = Command::new(THALWEG)
        .args(["lab", "run", "--backend", "host", "--mode", "fixed:reno"])
        .arg(&file)
        .arg("--out")
        .arg(directory.path().join("out"))
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("thalweg cc unload reno"), "{words}");
}

in_virtual_time!(
    ["models/adpg-plus.safetensors"],
    a_page_has_the_learned_controller_beside_others_and_the_simulator,
);
