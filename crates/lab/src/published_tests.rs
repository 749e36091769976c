use super::*;
use serde_json::json;

const TABLES: &str = r#"
[[table]]
kind = "tuned"
title = "T"
source = "S"
note = "N"
[[table.row]]
condition = "loss"
published = { baseline = 100, tuned = 250, share = "bbr 6/7" }
run = { scenario = "s.toml", backend = "host", connections = 4 }

[[table]]
kind = "grid"
title = "T2"
source = "S"
note = "N"
columns = ["default", "learned"]
[[table.row]]
condition = "anything"
cell = [
    { mode = "baseline", scenario = "s.toml", backend = "uml", connections = 4 },
    { mode = "thalweg", scenario = "s.toml", backend = "uml", connections = 4 },
]
"#;

/// A directory with tables, a scenario and a stand-in for this program.
fn bed(script: &str) -> (tempfile::TempDir, Options) {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("tables.toml"), TABLES).unwrap();
    fs::write(at("s.toml"), "name = \"s\"\n").unwrap();
    fs::write(at("thalweg"), format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(at("thalweg"), fs::Permissions::from_mode(0o755)).unwrap();
    let options = Options {
        tables: at("tables.toml"),
        cache: at("cache"),
        page: at("results.md"),
        binary: at("thalweg"),
        progress: false,
    };
    (directory, options)
}

fn result() -> String {
    let connection = |goodput: f64, arm: &str| json!({"goodput_bps": goodput, "arm": arm});
    let mode = |mode: &str, goodputs: [f64; 4]| {
        json!({"mode": mode, "connections":
                goodputs.map(|g| connection(g * 1e6, if g > 100.0 { "bbr" } else { "cubic" }))})
    };
    json!({
        "environment": {"kernel": "Linux 0.0"},
        "scenarios": [{"modes": [
            mode("baseline", [50.0, 50.0, 50.0, 50.0]),
            mode("thalweg", [50.0, 200.0, 200.0, 300.0]),
        ]}],
    })
    .to_string()
}

#[test]
fn a_page_is_made_of_results_and_made_again_without_runs() {
    // The stand-in counts its calls and writes the result where --out says.
    let script = format!(
        "echo x >>\"$(dirname \"$0\")/calls\"\nfor last; do :; done\nmkdir -p \"$last\"\n\
             cat >\"$last/results.json\" <<'E'\n{}\nE\n",
        result()
    );
    let (directory, options) = bed(&script);
    assert_eq!(make(&options).unwrap(), 0);
    let page = fs::read_to_string(&options.page).unwrap();
    assert!(
            page.contains(
                "| loss | 100 | 250 | 2.50 × | bbr 6/7 | 50 | – | 200 | 250 | 5.00 × [4.00 … 6.00] | bbr 3/4 |"
            ),
            "{page}"
        );
    assert!(
        page.contains("--backend host --connections 4 --mode baseline"),
        "{page}"
    );
    assert!(page.contains("- host: Linux 0.0"), "{page}");
    assert!(
        page.contains("| condition | default | learned |\n|---|---|---|\n| anything | 50 | 200 |"),
        "{page}"
    );

    assert_eq!(make(&options).unwrap(), 0);
    let calls = || {
        fs::read_to_string(directory.path().join("calls"))
            .unwrap()
            .lines()
            .count()
    };
    assert_eq!(calls(), 3, "a result that is there was made again");
    fs::write(directory.path().join("s.toml"), "name = \"other\"\n").unwrap();
    assert_eq!(make(&options).unwrap(), 0);
    assert_eq!(calls(), 6, "a changed scenario was not run again");
}

#[test]
fn a_picture_lies_beside_the_page_and_a_changed_policy_runs_again() {
    let flow = json!({
        "round": 0, "class": "rpc-10kb", "part_bps": 2e6, "fct_us": 7e3,
        "retransmits": 1, "sent_segments": 4,
    });
    let result = json!({
        "environment": {"kernel": "Linux 0.0"},
        "scenarios": [{"modes": [{"mode": "policy:p", "connections": [flow]}]}],
    });
    let script = format!(
        "echo x >>\"$(dirname \"$0\")/calls\"\nfor last; do :; done\nmkdir -p \"$last\"\n\
             cat >\"$last/results.json\" <<'E'\n{result}\nE\n"
    );
    let (directory, options) = bed(&script);
    let at = |name: &str| directory.path().join(name);
    let tables = "[[table]]\nkind = \"incast\"\ntitle = \"T\"\nsource = \"S\"\nnote = \"N\"\n\
                      across = \"X\"\npicture = \"p.svg\"\n\
                      compared = [{ mode = \"policy:p\", name = \"with\" }]\n\
                      [[table.row]]\nacross = 4\n\
                      run = { scenario = \"s.toml\", backend = \"host\", connections = 1 }\n";
    fs::write(at("tables.toml"), tables).unwrap();
    let policy = "name = \"p\"\n[[rule]]\nname = \"r\"\nset = { cwnd_clamp = 10 }\n";
    fs::write(at("p.toml"), policy).unwrap();
    let scenario = "name = \"s\"\n[[policy]]\nname = \"p\"\nfile = \"p.toml\"\n";
    fs::write(at("s.toml"), scenario).unwrap();
    let calls = || fs::read_to_string(at("calls")).unwrap().lines().count();

    assert_eq!(make(&options).unwrap(), 0);
    let page = fs::read_to_string(&options.page).unwrap();
    assert!(page.contains("![T](p.svg)"), "{page}");
    let row = "| 4 | with | 2 [2 … 2] | – | 2.0 [2.0 … 2.0] | – | 25.000 [25.000 … 25.000] |";
    assert!(page.contains(row), "{page}");
    let picture = fs::read_to_string(at("p.svg")).unwrap();
    assert!(picture.contains(">with</text>"), "{picture}");
    assert_eq!((make(&options).unwrap(), calls()), (0, 1));
    fs::write(at("p.toml"), policy.replace("10", "20")).unwrap();
    assert_eq!((make(&options).unwrap(), calls()), (0, 2));
}

#[test]
fn kernels_have_processor_time_and_timers_a_picture() {
    let connection = json!({
        "goodput_bps": 5e8, "cpu": { "machine_s": 2.0, "stack_s": 1.5 },
    });
    let result = json!({
        "environment": {"kernel": "Linux 0.0", "stack": "user-mode Linux 0.1"},
        "scenarios": [{
            "scenario": {"traffic": {"duration": 4}},
            "modes": [{"mode": "fixed:bbr", "connections": [connection]}],
        }],
        "timers": {"kernel_us": [1.0, 4.0, 90.0], "program_us": [5.0, 6.0, 7.0]},
    });
    let script = format!(
        "for last; do :; done\nmkdir -p \"$last\"\n\
             cat >\"$last/results.json\" <<'E'\n{result}\nE\n"
    );
    let (directory, options) = bed(&script);
    let tables = r#"
[[table]]
kind = "kernels"
title = "T"
note = "N"
cpu = true
[[table.row]]
condition = "c"
mode = "fixed:bbr"
native = { scenario = "s.toml", backend = "host", connections = 1 }
userspace = { scenario = "s.toml", backend = "link", connections = 1 }
[[table]]
kind = "timers"
title = "late"
note = "N"
picture = "late.svg"
[[table.row]]
condition = "native"
[[table.row]]
condition = "busy"
options = ["--early", "10"]
"#;
    fs::write(directory.path().join("tables.toml"), tables).unwrap();
    assert_eq!(make(&options).unwrap(), 0);
    let page = fs::read_to_string(&options.page).unwrap();
    for line in [
        "| c | – | – | – | 500 | 500 | 1.00 × [1.00 … 1.00] | 1.000 | 1.000 | 0.750 |",
        "| native | 4.0 | 90 | 90 | 90 | 6.0 | 7.0 | 7.0 | 7.0 |",
        "- `thalweg lab timers --early 10`",
        "![late](late.svg)",
        "- in a process: user-mode Linux 0.1",
    ] {
        assert!(page.contains(line), "{page}");
    }
    let picture = fs::read_to_string(directory.path().join("late.svg")).unwrap();
    assert!(picture.contains(">busy</text>"), "{picture}");
}

#[test]
fn what_cannot_be_run_is_said_and_tried_again() {
    let (_directory, options) = bed("echo 'thalweg: this kernel has no netem' >&2\nexit 3\n");
    for _ in 0..2 {
        assert_eq!(make(&options).unwrap(), 3);
        let page = fs::read_to_string(&options.page).unwrap();
        assert!(page.contains("no netem"), "{page}");
        assert!(page.contains("| not run |"), "{page}");
    }
}

#[test]
fn a_fault_in_the_list_has_a_place() {
    let (_directory, options) = bed("exit 0\n");
    fs::write(
        &options.tables,
        TABLES.replace("connections = 4", "connections = \"x\""),
    )
    .unwrap();
    let error = make(&options).unwrap_err().to_string();
    assert!(error.contains("tables.toml:"), "{error}");
    assert!(!options.page.exists());
}

#[test]
fn a_page_names_nobodys_home() {
    let said = |home| without_home("no kernel in /home/me/.cache: build it", home);
    assert_eq!(said("/home/me"), "no kernel in ~/.cache: build it");
    assert_eq!(said("/home/me/"), said("/home/me"));
    assert_eq!(said(""), "no kernel in /home/me/.cache: build it");
}
