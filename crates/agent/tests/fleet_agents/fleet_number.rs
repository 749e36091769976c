//! All agents of a fleet, and what they gain together, with a real nats-server.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use thalweg_fleet::wire::{Cell, Progress, Stage, Status};
use thalweg_fleet::{Fleet, Identity, Name, Outgoing, Settings};
use thalweg_process::Process;

use crate::fleet::run;
use crate::fleet_server::{Server, program, reader};
use thalweg_testbed::{Bed, plain, privileged, skip, wait_for};

/// Clusters of one connection each, whose residuals are a mean plus or minus a half.
fn cell(side: &str, clusters: u64, mean: f64) -> Cell {
    let n = clusters as f64;
    let (square, third) = (mean * mean + 0.25, mean * (mean * mean + 0.75));
    Cell {
        scope: "all".to_owned(),
        row: "time".to_owned(),
        side: side.to_owned(),
        clusters,
        connections: clusters,
        sums: [n, n * mean, n, n * mean, n * square, n * third],
    }
}

/// An agent whose treated connections take this much more time than those of its control group, bits.
fn status(agent: &str, clusters: u64, effect: f64) -> Status {
    Status {
        agent: Name::new(agent).unwrap(),
        version: "0.0.9".to_owned(),
        instance: None,
        is_shared: false,
        labels: vec![Name::all()],
        policies: Vec::new(),
        faults: Vec::new(),
        cells: vec![
            cell("control", clusters, -effect / 2.0),
            cell("treated", clusters, effect / 2.0),
        ],
    }
}

fn publish(settings: &Settings, status: Status) {
    let fleet = Fleet::start(settings).unwrap();
    fleet.offer_message(&Outgoing::Status(status)).unwrap();
    wait_for("the server to have a status", || {
        (fleet.state().published > 0).then_some(())
    });
}

/// Writes bytes under an agent's key, as no agent would.
fn write_raw(server: &Server, agent: &str, bytes: &[u8]) {
    let address = server.url().replace("nats://", "");
    let stream = TcpStream::connect(address).unwrap();
    let mut writer = stream.try_clone().unwrap();
    write!(
        writer,
        "CONNECT {{\"verbose\":false}}\r\nPUB $KV.thalweg-status.{agent} {}\r\n",
        bytes.len()
    )
    .unwrap();
    writer.write_all(bytes).unwrap();
    writer.write_all(b"\r\nPING\r\n").unwrap();
    // The answer comes once the message was taken.
    let mut lines = BufReader::new(stream).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("PONG")));
}

fn text(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.thalweg(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Ended host-hours of both sides, by time.
fn clusters(rows: &Value) -> u64 {
    let rows = rows.as_array().into_iter().flatten();
    let time = rows.filter(|row| row["measure"] == "time" && row["size"].is_null());
    time.map(|row| row["control"].as_u64().unwrap() + row["treated"].as_u64().unwrap())
        .sum()
}

/// The value of a figure without labels.
fn figure(text: &str, name: &str) -> Option<f64> {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn all_agents_and_what_they_gain_together() {
    if !privileged() {
        return;
    }
    let Some(mut server) = Server::new() else {
        return;
    };
    // Each knows too little alone.
    for number in 0..10 {
        let agent = format!("sim-{number}");
        publish(&server.settings(&agent), status(&agent, 40, -0.8));
    }
    let mut ill = status("sim-ill", 40, -0.8);
    ill.faults = vec!["store".to_owned()];
    ill.policies = vec![Progress {
        label: Name::all(),
        number: 7,
        stage: Stage::RolledBack,
        reason: "worse than the control group".to_owned(),
    }];
    publish(&server.settings("sim-ill"), ill);
    let mut liar = status("sim-liar", 1 << 24, 3.0);
    liar.cells[1].sums[4] = 0.0;
    publish(&server.settings("sim-liar"), liar);
    write_raw(&server, "sim-random", b"\x00\xffnothing\x1b[31m");
    write_raw(
        &server,
        "sim-later",
        br#"{"format":2,"agent":"sim-later","new":[]}"#,
    );

    let settings = format!(
        "[arms]\nallow = [\"cubic\", \"reno\"]\n[learning]\nwarm_up = 0\n[control]\nshare = 0.5\n\
         [fleet]\nname = \"new\"\nservers = [{:?}]\n",
        server.url()
    );
    let mut bed = Bed::new(&plain("number"), &settings);
    bed.start();
    let _reader = reader(&bed);
    bed.connect(&bed.server_address(), 4, 1_100_000);
    // The first connection of each kind is what others are compared with.
    let own = || clusters(&bed.json(&["gain"])["groups"][0]["rows"]);
    wait_for("a cluster of the agent's own", || (own() > 0).then_some(()));
    // A rule takes half of the connections, one host-hour of each side.
    bed.apply(
        "name = \"mine\"\n[[rule]]\nname = \"pace\"\n\
         match = { remote_port = 5001, direction = \"active\", sample = \"50%\" }\n\
         set = { initial_window = 40 }\n",
    );
    bed.connect(&bed.server_address(), 60, 30_000);
    let both = |rows: &Value| {
        let row = rows.as_array().into_iter().flatten().next();
        row.is_some_and(|row| row["control"] != 0 && row["treated"] != 0)
    };
    wait_for("flows that the rule took and left", || {
        let told = bed.json(&["gain", "--rule", "pace"]);
        both(&told["groups"][0]["rows"]).then_some(())
    });
    // A new session tells at once, and not after ten minutes.
    assert!(bed.end(Signal::SIGTERM).success());
    bed.start();
    let gain = wait_for("what the agent and its rule did", || {
        let gain = bed.json(&["fleet", "gain"]);
        (gain["rules"][0]["agents"] == 1).then_some(gain)
    });
    let own = clusters(&bed.json(&["gain"])["groups"][0]["rows"]);
    assert_eq!(gain["all"]["agents"], 12, "{gain}");
    assert_eq!(clusters(&gain["all"]["rows"]), 11 * 80 + own, "{gain}");
    assert_eq!(gain["all"]["rows"][0]["verdict"], "better", "{gain}");
    assert_eq!(gain["all"]["spread"][0]["known"], 0);
    assert_eq!((&gain["without"], &gain["refused"]), (&0.into(), &2.into()));
    let rule = &gain["rules"][0];
    assert_eq!(rule["rule"], "pace");
    assert!(both(&rule["rows"]), "{rule}");
    let left_out: Vec<_> = gain["left_out"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["agent"].as_str().unwrap(), it["why"].as_str().unwrap()))
        .collect();
    let [later, random, liar] = &left_out[..] else {
        panic!("{gain}");
    };
    assert_eq!(
        (later.0, random.0, liar.0),
        ("sim-later", "sim-random", "sim-liar")
    );
    assert!(later.1.contains("found 2"), "{later:?}");
    assert_eq!(
        liar.1,
        "time of treated: squares of scores do not fit the scores"
    );
    let said = text(&bed, &["fleet", "gain"]);
    println!("{said}");
    assert!(said.starts_with("12 agents: Transfers take "), "{said}");
    let of_rule = "\nRule pace. 1 agent: Not known yet: the rule took flows in ";
    assert!(said.contains(of_rule), "{said}");
    assert!(said.contains("\nLeft out:\n  sim-later: "), "{said}");
    assert!(
        said.contains("  sim-liar: time of treated: squares"),
        "{said}"
    );
    assert!(said.contains("No agent has host-hours enough"), "{said}");

    let shown = bed.json(&["fleet", "status"]);
    assert_eq!(shown["agent"], "new");
    let agents = shown["fleet"]["agents"].as_array().unwrap();
    assert_eq!(agents.len(), 15, "{shown}");
    let find = |name: &str| agents.iter().find(|it| it["agent"] == name).unwrap();
    assert_eq!(find("new")["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(find("sim-ill")["policies"][0]["stage"], "rolled-back");
    assert!(find("sim-random")["unreadable"].is_string());
    assert!(find("sim-0")["unreadable"].is_null());
    let said = text(&bed, &["fleet", "status"]);
    println!("{said}");
    let line = said
        .lines()
        .find(|line| line.contains(" silent, "))
        .unwrap();
    // The agent may have a problem of its own, as on a kernel without BTF.
    let new = find("new")["problems"].as_array().unwrap();
    let ill = 3 + usize::from(!new.is_empty());
    assert_eq!(
        line,
        format!("15 agents, 2 versions, 0 silent, {ill} with problems")
    );
    assert!(said.contains("all 7 rolled-back"), "{said}");
    assert!(said.contains("store; policy all 7"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said}");

    // Its own standing, and the whole.
    let own = text(&bed, &["metrics"]);
    assert_eq!(figure(&own, "thalweg_fleet_connected"), Some(1.0), "{own}");
    assert!(
        own.contains("thalweg_fleet_faults_total{kind=\"form\"} 0"),
        "{own}"
    );
    assert!(
        own.contains("thalweg_fleet_bytes_total{direction=\"sent\"}"),
        "{own}"
    );
    let whole = text(&bed, &["metrics", "--fleet"]);
    assert!(whole.ends_with("# EOF\n"));
    assert_eq!(
        figure(&whole, "thalweg_fleet_agents"),
        Some(15.0),
        "{whole}"
    );
    assert_eq!(figure(&whole, "thalweg_fleet_agents_unreadable"), Some(2.0));
    assert!(
        whole.contains("thalweg_fleet_version_agents{version=\"0.0.9\"} 12.0"),
        "{whole}"
    );
    assert!(
        whole.contains("thalweg_fleet_policy_agents{label=\"all\",stage=\"rolled-back\"} 1.0"),
        "{whole}"
    );
    assert!(
        whole.contains("thalweg_fleet_gain_high{rule=\"\",measure=\"time\"} -"),
        "{whole}"
    );
    // Asked again within a minute nothing is read: a read has two messages at least, the making of a
    // consumer and a request, and an answer for each status.
    let received = || {
        bed.json(&["fleet", "status"])["received"]["messages"]
            .as_u64()
            .unwrap()
    };
    let before = received();
    for _ in 0..5 {
        text(&bed, &["metrics", "--fleet"]);
    }
    assert!(received() - before < 5 * 15, "{before}");

    // Away.
    server.process = None;
    wait_for("the loss of the server", || {
        bed.json(&["fleet", "status"])["server"]
            .is_null()
            .then_some(())
    });
    let refused = wait_for("what was read to be old", || {
        let output = bed.thalweg(&["fleet", "gain"]);
        (!output.status.success()).then_some(output)
    });
    let fault = String::from_utf8(refused.stderr).unwrap();
    assert!(
        fault.contains("the fleet is away") && fault.lines().count() == 1,
        "{fault}"
    );
    let said = text(&bed, &["fleet", "status"]);
    assert!(
        said.contains("The agents of the fleet cannot be had: the fleet is away"),
        "{said}"
    );
}

#[test]
fn an_operator_asks_the_servers_without_an_agent() {
    let Some(program) = program() else {
        skip("no nats-server (scripts/setup.sh --test)");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let place = here.join("f/servers/127.0.0.1");
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let (at, store) = (place.to_str().unwrap(), here.join("store"));
    let mut init = vec![
        "init",
        "f",
        "--server",
        "127.0.0.1",
        "--listen",
        "127.0.0.1",
    ];
    init.extend([
        "--port",
        &port,
        "--at",
        at,
        "--store",
        store.to_str().unwrap(),
    ]);
    init.extend(["--agent", "web1", "--agent", "web2"]);
    let (code, _, err) = run(here, &init);
    assert_eq!(code, Some(0), "{err}");
    let mut command = Command::new(program);
    command
        .arg("-c")
        .arg(place.join("nats-server.conf"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut server = Process::spawn(&mut command).unwrap();
    wait_for("the buckets", || {
        let (code, ..) = run(here, &["buckets", "f", "--port", &port, "--size", "16MB"]);
        (code == Some(0)).then_some(())
    });
    let asked = ["--fleet", "f", "--port", &port];
    let (code, out, _) = run(here, &[&["gain"], &asked[..]].concat());
    assert_eq!(code, Some(0));
    assert_eq!(
        out,
        "No agent tells of connections that can be compared yet.\n"
    );
    for (agent, effect) in [("web1", -0.8), ("web2", 0.8)] {
        let url = format!("tls://127.0.0.1:{port}");
        let files = here.join("f/agents").join(agent);
        let key = Identity::Nkey(files.join("agent.nk"));
        let mut settings = Settings::new(vec![url], Name::new(agent).unwrap(), key);
        settings.ca = Some(files.join("ca.pem"));
        settings.pace.look = Duration::from_millis(200);
        publish(&settings, status(agent, 3000, effect));
    }
    let (code, out, err) = run(here, &[&["gain", "--json"], &asked[..]].concat());
    assert_eq!(code, Some(0), "{err}");
    let gain: Value = serde_json::from_str(&out).unwrap();
    let spread = &gain["all"]["spread"][0];
    assert_eq!(
        (&spread["better"], &spread["worse"]),
        (&1.into(), &1.into())
    );
    assert_eq!(spread["worse_share"], 0.5);
    assert_eq!(gain["all"]["rows"][0]["effect"], 0.0);
    let (_, out, _) = run(here, &[&["status"], &asked[..]].concat());
    assert!(
        out.starts_with("2 agents, 1 version, 0 silent, 0 with problems\n"),
        "{out}"
    );
    assert!(out.contains("web1") && out.contains("0.0.9"), "{out}");

    // Where to is not said, and nobody is there.
    let (code, _, err) = run(here, &["gain", "--server", "tls://127.0.0.1:1"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("--fleet DIR"), "{err}");
    let (code, _, err) = run(here, &["status", "--fleet", "nowhere"]);
    assert_eq!((code, err.lines().count()), (Some(1), 1), "{err}");
    assert!(
        err.contains("expected the directory of `thalweg fleet init`"),
        "{err}"
    );
    server.kill();
    let (code, out, err) = run(here, &[&["gain"], &asked[..]].concat());
    assert_eq!(
        (code, out.as_str(), err.lines().count()),
        (Some(1), "", 1),
        "{err}"
    );
}
