//! Congestion controls that somebody loads while an agent with `arms.allow = "auto"` runs.

use thalweg_testbed::loaded::Loaded;
use thalweg_testbed::{Bed, plain, privileged, unique, wait_for};

fn arms(bed: &Bed) -> String {
    bed.json(&["arms"]).to_string()
}

/// Whether a control is among those that came after the start. Tests beside this one load others.
fn is_newcomer(bed: &Bed, name: &str) -> bool {
    let found = bed.json(&["status"])["newcomers"]["names"].clone();
    let mut names = found.as_array().into_iter().flatten();
    names.any(|it| it == name)
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn control_loaded_by_others_after_the_start_is_listed_and_not_chosen() {
    if !privileged() {
        return;
    }
    let before = Loaded::new("nb", "htcp");
    let mut bed = Bed::new(&plain("newcomer"), "");
    bed.start();
    assert!(arms(&bed).contains(&before.name), "{}", arms(&bed));
    assert!(!is_newcomer(&bed, &before.name));

    let others = Loaded::new("no", "htcp");
    let status = bed.json(&["status"]);
    let newcomers = &status["newcomers"];
    assert!(is_newcomer(&bed, &others.name), "{newcomers}");
    assert!(!is_newcomer(&bed, &before.name), "{newcomers}");
    let line = newcomers["line"].as_str().unwrap();
    assert!(line.starts_with("allow = [\"") && line.contains(&others.name));
    assert!(
        line.contains(&before.name) && line.contains("\"cubic\""),
        "{line}"
    );
    let told = bed.thalweg(&["status"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let is_told = |line: &str| line.contains("allow = [\"") && line.contains(&others.name);
    assert!(told.lines().any(is_told), "{told}");
    // The laboratory may lack something: its exit code is not ours.
    let doctor = bed.thalweg(&["--json", "doctor"]);
    let doctor: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let mut checks = doctor.as_array().unwrap().iter();
    let check = checks.find(|check| check["name"] == "new congestion controls");
    let check = check.unwrap_or_else(|| panic!("{doctor}"));
    assert!(check["found"].as_str().unwrap().contains(&others.name));
    let fix = check["fix"].as_str().unwrap();
    assert!(fix.starts_with("[arms] ") && is_told(fix), "{fix}");

    // What this agent's own command loads is taken up, at a look that passes the other by.
    let own = unique("nw");
    let loaded = bed.thalweg(&["cc", "load", "htcp", "--name", &own]);
    assert!(loaded.status.success(), "{loaded:?}");
    wait_for("our own control", || {
        arms(&bed).contains(&own).then_some(())
    });
    assert!(!arms(&bed).contains(&others.name), "{}", arms(&bed));

    // The line allows it.
    bed.configure(&format!("[arms]\n{line}\n"));
    bed.json(&["reload"]);
    assert!(arms(&bed).contains(&others.name), "{}", arms(&bed));
    assert!(!is_newcomer(&bed, &others.name));

    // A reload is no start: with auto again, it is left out again.
    bed.configure("");
    bed.json(&["reload"]);
    assert!(is_newcomer(&bed, &others.name));
    bed.thalweg(&["cc", "unload", &own]);
}
