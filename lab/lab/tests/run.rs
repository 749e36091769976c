//! Whole runs with real traffic. Without privilege each test says "skipped: why".

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use thalweg_lab::outcome::Connection;
use thalweg_lab::worker::Job;
use thalweg_lab::{Error, Mode, Options, Outcome, report, run_scenarios, table};

/// One run at a time: runs change signal handlers and load the machine.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn scenario(directory: &Path, text: &str) -> PathBuf {
    let file = directory.join("scenario.toml");
    fs::write(&file, format!("name = \"test\"\n{text}")).unwrap();
    file
}

fn options(directory: &Path, text: &str, modes: &[&str]) -> Options {
    Options {
        scenarios: vec![scenario(directory, text)],
        modes: modes.iter().map(|mode| mode.parse().unwrap()).collect(),
        out: Some(directory.join("out")),
        progress: false,
        ..Options::default()
    }
}

fn own_leftovers() -> Vec<String> {
    common::leftovers(&common::of_process(std::process::id()))
}

fn median_mbps(outcome: &Outcome, mode: &str) -> f64 {
    let mode: Mode = mode.parse().unwrap();
    outcome.scenarios[0]
        .mode_outcome(&mode)
        .unwrap()
        .mode_summary()
        .unwrap()
        .median_bps
        / 1e6
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_run_measures_reports_and_leaves_nothing() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nloss = \"5%\"\n[traffic]\nconnections = 2\n\
                [[expect]]\nmode = \"baseline\"\nstatistic = \"failures\"\nat_most = 0\n\
                [[expect]]\nmode = \"baseline\"\nstatistic = \"median\"\nat_least = \"1000gbit\"\n\
                [[expect]]\nmode = \"thalweg\"\nstatistic = \"failures\"\nat_most = 0\n";
    let outcome = run_scenarios(&options(
        directory.path(),
        text,
        &["baseline", "fixed:reno"],
    ))
    .unwrap();
    assert_eq!(own_leftovers(), Vec::<String>::new());

    let result = &outcome.scenarios[0];
    let verdicts: Vec<String> = result
        .checks
        .iter()
        .map(|check| format!("{:?}", check.verdict))
        .collect();
    assert_eq!(verdicts, ["Met", "Missed", "NotChecked"]);
    assert!(!outcome.has_passed());
    for (mode, arm) in result.modes.iter().zip(["cubic", "reno"]) {
        assert_eq!(mode.connections.len(), 2);
        for connection in &mode.connections {
            assert_eq!(connection.error, None);
            assert_eq!(connection.arm, arm);
            assert!(connection.goodput_bps > 1e5, "{connection:?}");
            assert!(connection.wall_s >= 1.0);
        }
        let (seen, dropped) = (mode.forward.seen_packets, mode.forward.dropped_packets);
        assert!(seen > 100, "{seen}");
        // Six standard deviations of a binomial with p = 5 %.
        let bound = 6.0 * (0.05 * 0.95 * seen as f64).sqrt();
        assert!(
            (dropped as f64 - 0.05 * seen as f64).abs() < bound,
            "{dropped} of {seen}"
        );
        assert_eq!(mode.reverse.dropped_packets, 0);
        assert!(mode.reverse.seen_packets > 100);
    }
    let out = directory.path().join("out");
    let written = fs::read_to_string(out.join("results.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!(document["passed"], false);
    assert_eq!(
        document["scenarios"][0]["modes"][1]["summary"]["arms"]["reno"],
        2
    );
    let mut returned = report::run_document(&outcome).unwrap();
    // The file gives its place relative to itself.
    returned["scenarios"][0]["report"] = ".".into();
    assert_eq!(format!("{returned:#}\n"), written);
    assert_eq!(fs::read_dir(out.join("raw")).unwrap().count(), 4);
    assert!(
        fs::read_to_string(out.join("report.html"))
            .unwrap()
            .contains("</html>")
    );
    let text = table::scenario_text(result);
    assert!(
        text.contains("fixed:reno") && text.contains("MISSED"),
        "{text}"
    );
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn without_timestamps_there_are_no_round_trip_times() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nrate = \"100mbit\"\n[traffic]\nkind = \"short\"\nconnections = 1\nflows = 3\n\
                [system.sysctl]\n\"net.ipv4.tcp_timestamps\" = ";
    for (timestamps, measured) in [(0, false), (1, true)] {
        let text = format!("{text}{timestamps}\n");
        let mut options = options(directory.path(), &text, &["baseline"]);
        options.agent_binary = fake_agent(directory.path(), "obeys");
        options.program = options.agent_binary.clone();
        let outcome = run_scenarios(&options).unwrap();
        for connection in &outcome.scenarios[0].modes[0].connections {
            assert_eq!(connection.error, None);
            assert_eq!(!connection.rtt_us.is_empty(), measured, "{connection:?}");
        }
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn without_offload_no_packet_is_longer_than_the_link_allows() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    for (offload, fits) in [(true, false), (false, true)] {
        let directory = tempfile::tempdir().unwrap();
        let text = format!("[path]\noffload = {offload}\n[traffic]\nconnections = 1\n");
        let outcome = run_scenarios(&options(directory.path(), &text, &["baseline"])).unwrap();
        let forward = outcome.scenarios[0].modes[0].forward;
        assert_eq!(
            forward.largest_bytes <= 1514,
            fits,
            "offload {offload}: {forward:?}"
        );
        assert_eq!(forward.seen_segments == forward.seen_packets, fits);
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn ipv6_runs() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let text = "[path]\nfamily = \"ipv6\"\n[traffic]\nconnections = 1\n";
    let outcome = run_scenarios(&options(directory.path(), text, &["baseline"])).unwrap();
    assert!(median_mbps(&outcome, "baseline") > 10.0);
}

#[test]
fn a_fault_in_a_later_scenario_is_found_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path(), "", &["baseline"]);
    let bad = directory.path().join("bad.toml");
    fs::write(&bad, "name = \"bad\"\n[path]\nloss = 5\n").unwrap();
    options.scenarios.push(bad);
    match run_scenarios(&options) {
        Err(Error::Scenario(faults)) => {
            let at = faults.0[0].at;
            assert_eq!((at.line, at.column), (3, 8));
        }
        other => panic!("{other:?}"),
    }
    assert!(!directory.path().join("out").exists());
}

/// Writes a script that starts this test binary as an agent with a given behaviour.
fn fake_agent(directory: &Path, behaviour: &str) -> PathBuf {
    let script = directory.join("agent");
    let text = format!(
        "#!/bin/sh\nFAKE_AGENT=\"{behaviour} $*\" exec '{}' --exact --ignored --nocapture fake_agent_process\n",
        std::env::current_exe().unwrap().display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

/// Not a test: the agent of [`fake_agent`].
#[test]
#[ignore = "helper process of other tests"]
fn fake_agent_process() {
    let Ok(arguments) = std::env::var("FAKE_AGENT") else {
        return;
    };
    let words: Vec<&str> = arguments.split(' ').collect();
    let job = match words[..] {
        [_, "worker", "serve", address] => Some(Job::Serve {
            address: address.parse().unwrap(),
        }),
        [_, "worker", "send", result] => Some(Job::Send {
            result: result.into(),
        }),
        _ => None,
    };
    if let Some(job) = job {
        return thalweg_lab::worker::run_job(&job).unwrap();
    }
    let [behaviour, "--socket", socket, "run", "--config", config] = words[..] else {
        panic!("unexpected arguments {words:?}");
    };
    if behaviour == "dies" {
        eprintln!("no such policy");
        std::process::exit(3);
    }
    let config: toml::Table = fs::read_to_string(config).unwrap().parse().unwrap();
    assert_eq!(config["paths"]["socket"].as_str(), Some(socket));
    assert!(
        Path::new(config["cgroup"].as_str().unwrap())
            .join("cgroup.procs")
            .exists()
    );
    let pin = config["paths"]["pin"].as_str().unwrap();
    fs::create_dir(pin).unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut request = [0u8; 1024];
        let length = stream.read(&mut request).unwrap();
        let request = String::from_utf8_lossy(&request[..length]).into_owned();
        let mut answer = |body: &str| {
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}").unwrap();
        };
        if request.starts_with("GET /v1/status ") {
            answer("{}");
        } else if request.starts_with("GET /v1/hosts ") {
            answer(
                r#"{"hosts":[{"address":"10.0.0.2","arms":[{"arm":"bbr","metric":17,"count":3}]}]}"#,
            );
        } else if request.starts_with("POST /v1/detach ") {
            answer("{}");
            if behaviour == "obeys" {
                fs::remove_dir(pin).unwrap();
                std::process::exit(0);
            }
        } else {
            panic!("unexpected request {request}");
        }
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_agent_is_configured_asked_and_told_to_go() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(
        directory.path(),
        "[traffic]\nconnections = 3\n",
        &["classic", "baseline", "thalweg"],
    );
    options.agent_binary = fake_agent(directory.path(), "obeys");
    options.program = options.agent_binary.clone();
    options.reference_every = 2;
    let outcome = run_scenarios(&options).unwrap();
    let modes = &outcome.scenarios[0].modes;
    let counts: Vec<usize> = modes.iter().map(|mode| mode.connections.len()).collect();
    assert_eq!(counts, [3, 2, 3]);
    assert_eq!(modes[2].hosts[0].arms[0].metric, Some(17.0));
    assert!(
        table::learned_table(&modes[2])
            .to_text()
            .contains("10.0.0.2")
    );
    let raw = fs::read_to_string(directory.path().join("out/hosts-thalweg.json")).unwrap();
    assert!(raw.starts_with("{\"hosts\""));
    assert_eq!(own_leftovers(), Vec::<String>::new());
}

/// Runs a scenario with traffic of the laboratory's own worker.
fn run_flows(directory: &Path, text: &str, modes: &[&str]) -> Outcome {
    let mut options = options(directory, text, modes);
    options.agent_binary = fake_agent(directory, "obeys");
    options.program = options.agent_binary.clone();
    let outcome = run_scenarios(&options).unwrap();
    assert_eq!(own_leftovers(), Vec::<String>::new());
    outcome
}

const TWO_HOSTS: &str = "[[host]]\nname = \"slow\"\nrate = \"10mbit\"\nqueue = \"50kb\"\n\
                         [[host]]\nname = \"quick\"\nrate = \"40mbit\"\nqueue = \"100kb\"\nfamily = \"ipv6\"\n";

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn short_flows_go_to_several_hosts_and_one_that_fails_disturbs_no_other() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "[traffic]\nkind = \"short\"\nconnections = 2\nflows = 3\nbytes = \"50kb\"\n{TWO_HOSTS}\
         [[host]]\nname = \"gone\"\nloss = \"100%\"\n"
    );
    // Nobody waits 20 s for a SYN that never arrives.
    let text = format!("{text}[system]\nsysctl = {{ \"net.ipv4.tcp_syn_retries\" = 1 }}\n");
    let outcome = run_flows(directory.path(), &text, &["baseline"]);
    let mode = &outcome.scenarios[0].modes[0];
    for (host, failed) in [("slow", false), ("quick", false), ("gone", true)] {
        let flows: Vec<&Connection> = mode
            .connections
            .iter()
            .filter(|one| one.host == host)
            .collect();
        assert_eq!(flows.len(), 6, "{host}");
        let errors = flows.iter().filter(|one| one.error.is_some()).count();
        assert_eq!(errors, if failed { 6 } else { 0 }, "{host}: {flows:?}");
    }
    let slow = mode.towards_host("slow").unwrap();
    // 52 kB with headers at 10 Mbit/s, less a bucket of 3 kB: 39 ms.
    for flow in &slow.connections {
        assert!(flow.fct_us.unwrap() > 35e3, "{flow:?}");
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_agent_that_ends_is_quoted() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path(), "", &["baseline", "thalweg"]);
    options.agent_binary = fake_agent(directory.path(), "dies");
    options.program = options.agent_binary.clone();
    let error = run_scenarios(&options).unwrap_err().to_string();
    assert!(
        error.contains("mode thalweg") && error.contains("no such policy"),
        "{error}"
    );
    assert_eq!(own_leftovers(), Vec::<String>::new());
}

const POLICY: &str = "name = \"p\"\n[[rule]]\nname = \"r\"\nset = { cwnd_clamp = 10 }\n";

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_policy_that_cannot_be_applied_is_an_error_that_leaves_nothing() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("p.toml"), POLICY).unwrap();
    let text = "[traffic]\nconnections = 1\n[[policy]]\nname = \"p\"\nfile = \"p.toml\"\n";
    let mut options = options(directory.path(), text, &["baseline", "policy:p"]);
    // This agent knows no `policy apply` and says so.
    options.agent_binary = fake_agent(directory.path(), "obeys");
    options.program = options.agent_binary.clone();
    let error = run_scenarios(&options).unwrap_err().to_string();
    assert!(
        error.contains("the policy p: ") && error.contains("unexpected arguments"),
        "{error}"
    );
    assert_eq!(own_leftovers(), Vec::<String>::new());
}

#[test]
fn faults_about_policies_are_found_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("p.toml");
    let table = "[[policy]]\nname = \"p\"\nfile = \"p.toml\"\n";
    fs::write(&file, POLICY).unwrap();
    let unknown = options(directory.path(), table, &["baseline", "policy:q"]);
    let error = run_scenarios(&unknown).unwrap_err().to_string();
    assert!(
        error.contains("scenario.toml: expected a [[policy]] named \"q\", found p"),
        "{error}"
    );
    fs::write(&file, POLICY.replace("10", "\"ten\"")).unwrap();
    let error = run_scenarios(&options(directory.path(), table, &["baseline"])).unwrap_err();
    let place = format!("{}:4:22: ", file.display());
    assert!(error.to_string().starts_with(&place), "{error}");
    assert!(!directory.path().join("out").exists());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_agent_that_does_not_go_is_ended_and_reported() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(
        directory.path(),
        "[traffic]\nconnections = 1\n",
        &["thalweg"],
    );
    options.agent_binary = fake_agent(directory.path(), "stays");
    options.program = options.agent_binary.clone();
    let error = run_scenarios(&options).unwrap_err().to_string();
    assert!(error.contains("asked to detach"), "{error}");
    assert_eq!(own_leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_missing_agent_is_an_error_that_leaves_nothing() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let mut options = options(directory.path(), "", &["thalweg"]);
    options.agent_binary = "/nonexistent/agent".into();
    let error = run_scenarios(&options).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/agent"), "{error}");
    assert_eq!(own_leftovers(), Vec::<String>::new());
}

/// Not a test: a long run in a process of its own, for the signals.
#[test]
#[ignore = "helper process of other tests"]
fn long_run_process() {
    let Some(directory) = std::env::var_os("LONG_RUN") else {
        return;
    };
    let directory = PathBuf::from(directory);
    let mut options = options(
        &directory,
        &format!(
            "[traffic]\nduration = \"60s\"\n{}",
            std::env::var("LONG_RUN_TRAFFIC").unwrap()
        ),
        &["baseline", "thalweg"],
    );
    options.agent_binary = fake_agent(&directory, "obeys");
    options.program = options.agent_binary.clone();
    match run_scenarios(&options) {
        Err(error) if error.is_interruption() => std::process::exit(42),
        other => panic!("{other:?}"),
    }
}

/// Starts a long run and waits until its first client sends.
fn start_long_run(directory: &Path, traffic: &str) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "long_run_process"])
        .env("LONG_RUN", directory)
        .env("LONG_RUN_TRAFFIC", traffic)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let raw = directory.join("out/raw");
    let begun =
        || ["", "-quick"].map(|host| raw.join(format!("baseline-0000{host}.json")).exists());
    while begun() == [false; 2] {
        assert!(Instant::now() < deadline, "the run did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

fn send(signal: nix::sys::signal::Signal, child: &Child) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), signal).unwrap();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn sigint_and_sigterm_end_a_run_in_order() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    for (signal, traffic) in [
        (nix::sys::signal::SIGINT, ""),
        (nix::sys::signal::SIGTERM, ""),
        (
            nix::sys::signal::SIGINT,
            "kind = \"competing\"\nagainst = { cc = \"reno\" }\n",
        ),
        (nix::sys::signal::SIGINT, TWO_HOSTS),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let mut child = start_long_run(directory.path(), traffic);
        let name = common::of_process(child.id());
        assert!(!common::leftovers(&name).is_empty());
        send(signal, &child);
        let started = Instant::now();
        assert_eq!(child.wait().unwrap().code(), Some(42));
        // Long before the end of the connection, which takes a minute.
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(common::leftovers(&name), Vec::<String>::new());
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_a_killed_run_leaves_is_removed_by_the_next() {
    if !common::possible() {
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let mut child = start_long_run(directory.path(), "");
    let name = common::of_process(child.id());
    send(nix::sys::signal::SIGKILL, &child);
    child.wait().unwrap();
    assert!(!common::leftovers(&name).is_empty());

    let directory = tempfile::tempdir().unwrap();
    run_scenarios(&options(
        directory.path(),
        "[traffic]\nconnections = 1\n",
        &["baseline"],
    ))
    .unwrap();
    assert_eq!(common::leftovers(&name), Vec::<String>::new());
}
