//! A new configuration for an agent that runs, and what a service manager and monitoring see of it.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::process::Output;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use thalweg_testbed::{Bed, plain, privileged, wait_for};

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn problems(bed: &Bed) -> String {
    bed.json(&["status"])["problems"].to_string()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_new_configuration_is_in_force_once_reload_returns() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("reload", "[learning]\nwarm_up = 1\n");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    let program = bed.running_program();

    let answer = bed.json(&["reload"]);
    assert_eq!(answer["changed"], false, "{answer}");
    assert_eq!(bed.running_program(), program, "it was loaded anew");

    bed.configure("dry_run = true\n[hosts]\nmax = 1000\n");
    let answer = bed.json(&["reload"]);
    assert_eq!(answer, serde_json::json!({"changed": true, "session": 2}));
    let status = bed.json(&["status"]);
    assert_eq!(status["dry_run"], true);
    assert_eq!(status["hosts_max"], 1000);
    assert_eq!(status["session"], 2);
    assert_eq!(status["pid"], bed.pid());
    assert_ne!(bed.running_program(), program);
    let host = bed.host(&address).expect("the host is known still");
    assert_eq!(host["scored"], 1, "{host}");
    // It learns as before.
    bed.measure(&address);
    assert_eq!(bed.host(&address).unwrap()["scored"], 2);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_configuration_that_is_refused_changes_nothing() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("refused", "[learning]\nwarm_up = 2\n");
    let program = bed.running_program();
    bed.configure("mode = \"fast\"\n[learning]\nwarmup = 3\nmemory = 0\n");
    let output = bed.thalweg(&["reload"]);
    // The file is the one that the command reads, too: its faults are told by it.
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    assert!(
        error(&output).contains("agent.toml:2:8"),
        "{}",
        error(&output)
    );
    // Whoever asks the agent itself is told so by the agent.
    bed.signal(Signal::SIGHUP);
    wait_for("the problem", || {
        bed.logged()
            .contains("the new configuration was not taken")
            .then_some(())
    });
    assert!(bed.logged().contains("agent.toml:2:8"), "{}", bed.logged());
    assert_eq!(bed.running_program(), program);
    // Whoever names the socket can ask all the same.
    let socket = bed.socket();
    let output = bed.thalweg(&["--socket", socket.to_str().unwrap(), "status"]);
    assert!(output.status.success(), "{}", error(&output));

    // Keys of the start are refused with their names, and nothing beside them is taken.
    bed.configure("dry_run = true\n[arms]\nload = []\n");
    let output = bed.thalweg(&["reload"]);
    assert_eq!(output.status.code(), Some(1));
    let said = error(&output);
    assert!(
        said.contains("arms.load changed, which takes a restart"),
        "{said}"
    );
    assert_eq!(bed.json(&["status"])["dry_run"], false);
    assert!(problems(&bed).contains("arms.load"), "{}", problems(&bed));
    assert_eq!(bed.json(&["status"])["session"], 1);

    // The next good one ends the problem.
    bed.configure("[learning]\nwarm_up = 2\n");
    bed.json(&["reload"]);
    assert_eq!(problems(&bed), "[]");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_hang_up_reads_the_configuration_again() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("hup", "");
    bed.configure("dry_run = true\n");
    bed.signal(Signal::SIGHUP);
    wait_for("the new configuration", || {
        (bed.json(&["status"])["dry_run"] == true).then_some(())
    });
    // A half-written file is no configuration.
    fs::write(bed.configuration(), "dry_run = fal").unwrap();
    bed.signal(Signal::SIGHUP);
    wait_for("the refusal", || {
        bed.logged().contains("was not taken").then_some(())
    });
    // The bed is taken down by commands that read it.
    bed.configure("");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn detach_wins_over_a_reload() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::running("both", "");
    bed.configure("dry_run = true\n");
    bed.signal(Signal::SIGHUP);
    bed.json(&["detach"]);
    bed.reap();
    assert!(!bed.pin.exists(), "programs are pinned again");
}

/// A bed whose agent waits for a while at a point.
fn waiting_at(point: &str, settings: &str) -> Bed {
    let mut bed = Bed::new(&plain("waits"), settings);
    let mut command = bed.run_command();
    command.env("FAILPOINTS", format!("{point}=1*sleep(2000)"));
    bed.start_by(command);
    bed
}

/// Runs a command of which the agent waits at its point; meanwhile, the configuration changes.
fn reload_during(bed: &Bed, arguments: &[&str], configuration: &str) -> Value {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| bed.json(arguments));
        wait_for("the agent at its point", || {
            let tasks = fs::read_dir(format!("/proc/{}/task", bed.pid())).unwrap();
            let sleeps = |task: fs::DirEntry| {
                let waits = fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
                waits.contains("nanosleep")
            };
            tasks.flatten().any(sleeps).then_some(())
        });
        bed.configure(configuration);
        bed.signal(Signal::SIGHUP);
        asked.join().unwrap()
    })
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_detach_that_has_begun_wins_over_a_reload() {
    if !privileged() {
        return;
    }
    let mut bed = waiting_at("detach::saved", "");
    let answer = reload_during(&bed, &["detach"], "dry_run = true\n");
    assert!(answer["removed"].to_string().contains("hosts"), "{answer}");
    bed.reap();
    assert!(!bed.pin.exists(), "programs are pinned again");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_import_that_has_begun_is_finished_before_a_reload() {
    if !privileged() {
        return;
    }
    let bed = waiting_at("restore::host", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.counter_reaches("scored", 1);
    let file = bed.directory.path().join("hosts.json");
    let file = file.to_str().unwrap();
    assert!(bed.thalweg(&["export", file]).status.success());
    bed.json(&["reset", "--yes"]);
    let answer = reload_during(&bed, &["import", file], "[hosts]\nmax = 1000\n");
    assert_eq!(answer["imported"], 1, "{answer}");
    wait_for("the next session", || {
        (bed.json(&["status"])["hosts_max"] == 1000).then_some(())
    });
    assert_eq!(bed.host(&address).expect("the host")["scored"], 1);
}

/// The agent's open files, and its own memory in KiB: not pages of its file.
fn holds(bed: &Bed) -> (usize, u64) {
    let process = format!("/proc/{}", bed.pid());
    let status = fs::read_to_string(format!("{process}/status")).unwrap();
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let resident = resident.unwrap().trim().split(' ').next().unwrap();
    let files = fs::read_dir(format!("{process}/fd")).unwrap().count();
    (files, resident.parse().unwrap())
}

fn reload_often(reloads: u32) {
    let bed = Bed::running("often", "");
    let reload = |from: u32, count: u32| {
        for number in from..from + count {
            let (max, mode) = (
                1000 + number % 3,
                ["thalweg", "classic"][number as usize % 2],
            );
            bed.configure(&format!("mode = {mode:?}\n[hosts]\nmax = {max}\n"));
            assert_eq!(bed.json(&["reload"])["changed"], true);
        }
    };
    let pins = || fs::read_dir(&bed.pin).unwrap().count();
    reload(0, 6);
    let (pinned, before) = (pins(), holds(&bed));
    reload(6, reloads);
    let after = holds(&bed);
    eprintln!("{reloads} reloads: files and KiB {before:?}, then {after:?}");
    assert_eq!(pins(), pinned);
    // A connection of the API may be open at either look.
    assert!(after.0 <= before.0 + 2, "{before:?}, then {after:?}");
    assert!(after.1 <= before.1 + 2048, "{before:?}, then {after:?}");
    let status = bed.json(&["status"]);
    assert_eq!(status["session"], 7 + reloads);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn reloads_leave_nothing_behind() {
    if !privileged() {
        return;
    }
    reload_often(6);
}

#[test]
#[ignore = "slow"]
fn two_hundred_reloads_leave_nothing_behind() {
    if !privileged() {
        return;
    }
    reload_often(200);
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_reload_starts_no_figure_of_the_agent_anew() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("figures", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    let before = wait_for("stored events and a second", || {
        let status = bed.json(&["status"]);
        let enough = status["events_stored"].as_u64()? >= 1 && status["uptime_s"].as_u64()? >= 1;
        enough.then_some(status)
    });
    bed.configure("dry_run = true\n");
    bed.json(&["reload"]);
    let after = bed.json(&["status"]);
    for figure in ["uptime_s", "events_stored"] {
        let figures = (before[figure].as_u64(), after[figure].as_u64());
        assert!(figures.1 >= figures.0, "{figure}: {figures:?}");
    }
}

/// Attaches the agent's own program to a cgroup in such a way that no other can be beside it.
fn occupy(cgroup: &fs::File, program: u32) {
    use libbpf_rs::libbpf_sys as sys;
    // SAFETY: both descriptors are open throughout.
    let done = unsafe {
        let program = sys::bpf_prog_get_fd_by_id(program);
        let done = sys::bpf_prog_attach(program, cgroup.as_raw_fd(), sys::BPF_CGROUP_SOCK_OPS, 0);
        nix::libc::close(program);
        done
    };
    assert_eq!(done, 0, "attaching");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_configuration_that_cannot_start_gives_way_to_the_old_one() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("back", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let other = bed.pair.cgroup_path().join("occupied");
    fs::create_dir(&other).unwrap();
    let cgroup = fs::File::open(&other).unwrap();
    occupy(&cgroup, bed.running_program().unwrap());
    let before = fs::read_to_string(bed.configuration()).unwrap();
    let (old, new) = (
        bed.pair.cgroup_path().to_str().unwrap(),
        other.to_str().unwrap(),
    );
    fs::write(bed.configuration(), before.replace(old, new)).unwrap();
    let output = bed.thalweg(&["reload"]);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    assert!(
        error(&output).contains("was not taken"),
        "{}",
        error(&output)
    );
    let status = bed.json(&["status"]);
    assert_eq!(
        (&status["cgroup"], &status["session"]),
        (&old.into(), &2.into())
    );
    let decided = bed.counter("decided");
    bed.connect(&address, 1, 1000);
    bed.counter_reaches("decided", decided + 2);
    // The program goes with its cgroup.
    drop(cgroup);
    fs::remove_dir(&other).unwrap();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn reloads_under_traffic_lose_no_connection_and_no_decision() {
    if !privileged() {
        return;
    }
    reload_under_load(4, 50, 5);
}

/// A minute at 1,000 connections a second.
#[test]
#[ignore = "slow"]
fn reloads_under_a_thousand_connections_a_second() {
    if !privileged() {
        return;
    }
    reload_under_load(10, 100, 20);
}

fn reload_under_load(threads: u32, rate: u32, reloads: u32) {
    let bed = Bed::running("load", "[events]\nlog = \"none\"\n");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let load = bed.load(&address, threads, rate);
    for number in 0..reloads {
        let before = bed.counter("established");
        bed.configure(&format!(
            "[learning]\nwarm_up = {}\n[events]\nlog = \"none\"\n",
            number % 2 + 2
        ));
        assert_eq!(bed.json(&["reload"])["changed"], true);
        bed.counter_reaches("established", before + 10);
    }
    // No connection failed, or this fails.
    let (made, _) = load.finish();
    bed.counter_reaches("closed", 2 * made);
    let counters = &bed.json(&["status"])["counters"];
    // Both ends of each are in the cgroup and in namespaces that count.
    assert_eq!(counters["established"], 2 * made, "{counters}");
    assert_eq!(counters["decided"], 2 * made, "{counters}");
    assert_eq!(counters["events_dropped"], 0, "{counters}");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn events_beyond_the_limit_are_removed_however_often_there_are_reloads() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("prune", "");
    let events = || {
        bed.json(&["events", "--limit", "10000"])
            .as_array()
            .unwrap()
            .len()
    };
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    bed.connect(&address, 1100, 1);
    wait_for("more events than the new limit", || {
        (events() > 1050).then_some(())
    });
    // Less than a minute after the start, and so before the first removal of the session that ran.
    bed.configure("[events]\nretention_max = 1000\n");
    assert_eq!(bed.json(&["reload"])["changed"], true);
    wait_for("the limit", || (events() <= 1000).then_some(()));
}

/// Starts the agent under a service manager that wants a sign of life in this time; the manager's
/// end of their socket.
fn start_managed(bed: &mut Bed, watchdog_us: &str) -> UnixDatagram {
    let path = bed.directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut command = bed.run_command();
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", watchdog_us);
    bed.start_by(command);
    manager
}

/// The next notice to a service manager.
fn notice(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let length = manager.recv(&mut bytes).expect("a notice");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_service_manager_hears_of_start_life_reload_and_end() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("notify"), "");
    let manager = start_managed(&mut bed, "1000000");
    let next = || notice(&manager);
    assert_eq!(next(), "READY=1\n");
    for _ in 0..3 {
        assert_eq!(next(), "WATCHDOG=1\n");
    }
    bed.configure("dry_run = true\n");
    bed.json(&["reload"]);
    let mut heard = String::new();
    while !heard.ends_with("READY=1\n") {
        heard += &next();
    }
    let heard = heard.replace("WATCHDOG=1\n", "");
    assert!(heard.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{heard}");
    assert!(bed.end(Signal::SIGTERM).success());
    let mut heard = next();
    while heard == "WATCHDOG=1\n" {
        heard = next();
    }
    assert_eq!(heard, "STOPPING=1\n");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn each_session_gives_a_sign_of_life_at_once() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(&plain("alive"), "");
    // Ten minutes: by its interval, the first sign would come after five.
    let manager = start_managed(&mut bed, "600000000");
    let next = || notice(&manager);
    assert_eq!(next(), "READY=1\n");
    assert_eq!(next(), "WATCHDOG=1\n");
    bed.configure("dry_run = true\n");
    bed.json(&["reload"]);
    while next() != "READY=1\n" {}
    assert_eq!(next(), "WATCHDOG=1\n");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_check_is_one_line_and_a_code() {
    if !privileged() {
        return;
    }
    let check = |bed: &Bed| {
        let output = bed.thalweg(&["status", "--check"]);
        let line = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(line.lines().count(), 1, "{line}");
        assert_eq!(error(&output), "");
        (line, output.status.code().unwrap())
    };
    let mut bed = Bed::running("check", "");
    let (line, code) = check(&bed);
    assert_eq!(code, 0, "{line}");
    assert!(line.starts_with("THALWEG OK - "), "{line}");
    assert!(line.contains(" | hosts=0;;;0;65536 established="), "{line}");

    bed.configure("[arms]\nload = []\n");
    bed.thalweg(&["reload"]);
    let (line, code) = check(&bed);
    assert_eq!(code, 1, "{line}");
    assert!(
        line.starts_with("THALWEG WARNING - the new configuration was not taken"),
        "{line}"
    );

    assert!(bed.end(Signal::SIGTERM).success());
    let (line, code) = check(&bed);
    assert_eq!(code, 2, "{line}");
    assert!(
        line.starts_with("THALWEG CRITICAL - the agent is not running"),
        "{line}"
    );

    fs::write(bed.configuration(), "[nonsense]\n").unwrap();
    let (line, code) = check(&bed);
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("unknown key \"nonsense\""), "{line}");
    bed.configure("");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_stream_of_events_ends_with_its_session() {
    if !privileged() {
        return;
    }
    let bed = Bed::running("follow", "");
    let mut command = std::process::Command::new(thalweg_testbed::thalweg());
    command
        .arg("--config")
        .arg(bed.configuration())
        .args(["events", "--follow", "--json"])
        .stdout(std::process::Stdio::piped());
    let mut follower = command.spawn().unwrap();
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    bed.connect(&address, 1, 1_000_000);
    let mut lines =
        std::io::BufRead::lines(std::io::BufReader::new(follower.stdout.take().unwrap()));
    let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(first["kind"].is_string(), "{first}");
    bed.configure("dry_run = true\n");
    bed.json(&["reload"]);
    assert!(follower.wait().unwrap().success());
}
