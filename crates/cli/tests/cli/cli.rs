//! The command line against a small server in place of the agent.

use std::io::Read;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::fake::{Agent, Ran, advice, answer, arm, document, gain, host, status};

#[test]
fn status_is_told() {
    let agent = Agent::new(answer);
    let text = agent.run(&["status"]).ok();
    for part in [
        "mode              thalweg, dry run: nothing is set\n",
        "up                1 h 2 min, took over",
        "hosts             12; beyond 65536 the least valuable go\n",
        "memory            61.0 MB in the kernel, 12.3 MB in the agent\n",
        "450 changed",
        "40 decided by what is known of their networks",
        "20 with a larger initial window",
        "8 connections to 1 host clamped, 2 refused; looks take 0.500 % of a processor\n",
        "raised in 2 of 3 network namespaces, 1 left alone; sockets have 12.0 MB of 300 MB\n",
        "700 of 980 ended connections scored, by wall time",
        "25.0 % of the host-hours are kept, 5600 left out by this agent\n",
        "problems          kernel BTF is absent\n                  the store is full\n",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let value: Value = serde_json::from_str(&agent.run(&["--json", "status"]).ok()).unwrap();
    assert_eq!(value, status());
}

#[test]
fn arms_are_listed() {
    let agent = Agent::new(answer);
    let text = agent.run(&["arms"]).ok();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[1], ["cubic", "yes", "yes", "0"]);
    assert_eq!(
        lines[2],
        [
            "dctcp",
            "refused",
            "yes",
            "3",
            "Operation",
            "not",
            "permitted"
        ]
    );
}

#[test]
fn clamps_are_listed() {
    let agent = Agent::new(answer);
    let text = agent.run(&["clamps"]).ok();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows[0],
        ["10.0.0.7", "83", "1.00", "Gbit/s", "380", "µs", "9", "8"]
    );
    assert_eq!(rows[1], ["10.0.0.8", "(web)", "-", "-", "-", "1", "0"]);
    assert!(text.contains("Nothing is set"), "{text}");
    let one = agent.run(&["--json", "clamps", "--limit", "1"]).ok();
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["hosts"].as_array().unwrap().len(), 1);
}

#[test]
fn buffers_are_listed_by_network_namespace() {
    let agent = Agent::new(answer);
    let text = agent.run(&["buffers"]).ok();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    let raised = [
        "1", "tcp_wmem", "4.19", "MB", "16.8", "MB", "33.6", "MB", "7",
    ];
    assert_eq!(rows[1], raised);
    assert_eq!(
        rows[3],
        [
            "4711", "(web)", "tcp_wmem", "200", "kB", "200", "kB", "left", "alone", "2"
        ]
    );
    assert!(text.contains("Nothing is set"), "{text}");
    let one = agent.run(&["--json", "buffers", "--limit", "1"]).ok();
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["namespaces"].as_array().unwrap().len(), 1);
}

#[test]
fn hosts_have_the_published_columns_first() {
    let agent = Agent::new(answer);
    let text = agent.run(&["hosts", "--classic"]).ok();
    let header: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    let published = [
        "IPAddress",
        "CongAlg",
        "Metric",
        "Count",
        "Greedy",
        "MinRtt",
        "MaxRtDlvr",
    ];
    assert_eq!(header[..7], published);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    // By address, not by text: .9 before .10.
    assert_eq!(rows[0][..2], ["192.0.2.9", "cubic"]);
    assert_eq!(
        rows[1][..7],
        ["192.0.2.10", "bbr", "39500000", "61", "55", "9800", "118"]
    );
    assert_eq!(rows[1][7..], ["490", "93.8%"]);
    // Without evidence no estimate is shown.
    assert_eq!(rows[2][7..], ["-", "6.2%"]);
    assert_eq!(rows[3][0], "2001:db8:aaaa:bbbb::/64");

    // Otherwise the columns are those of `explain`, with their units.
    let text = agent.run(&["hosts"]).ok();
    let header: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    let readable = [
        "Host", "Arm", "Next", "Cost", "Rate", "RTT", "Retrans", "Scored", "Chosen",
    ];
    assert_eq!(header, readable);
    let row = text.lines().nth(2).unwrap();
    assert!(row.starts_with("192.0.2.10 "), "{text}");
    for part in [
        "93.8%",
        "39.50",
        "490 Mbit/s",
        "12.3 ms",
        "0.0%",
        "58",
        "61",
    ] {
        assert!(row.contains(part), "{part}: {row}");
    }
    assert!(text.lines().nth(3).unwrap().contains(" - "), "{text}");

    // The longest address leaves space for everything.
    let long = "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff";
    let body = json!({ "hosts": [host(long, 1, &[arm("bbr", 1.0, 1.0)])] }).to_string();
    let text = Agent::new(move |_, _| (200, body.clone()))
        .run(&["hosts", "--classic"])
        .ok();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.lines().nth(1).unwrap().starts_with(long), "{text}");
}

#[test]
fn hosts_are_filtered_sorted_and_cut() {
    let agent = Agent::new(answer);
    let addresses = |arguments: &[&str]| {
        let mut all = vec!["--json", "hosts"];
        all.extend(arguments);
        let value: Value = serde_json::from_str(&agent.run(&all).ok()).unwrap();
        let hosts = value["hosts"].as_array().unwrap().clone();
        hosts
            .iter()
            .map(|host| host["address"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (nine, ten, six) = ("192.0.2.9", "192.0.2.10", "2001:db8:aaaa:bbbb::/64");
    assert_eq!(addresses(&["--sort", "connections"]), [nine, ten, six]);
    assert_eq!(
        addresses(&["--filter", "192.0.2.0/24", "--limit", "1"]),
        [nine]
    );
    assert_eq!(addresses(&["--filter", "2001:db8:aaaa:bbbb::7"]), [six]);
    assert_eq!(addresses(&["--filter", "bbr"]), [ten, six]);
    assert_eq!(
        addresses(&["--filter", "bbr", "--filter", "192.0.0.0/16"]),
        [ten]
    );
    assert_eq!(agent.run(&["hosts", "--filter", "reno"]).ok(), "no hosts\n");
    assert_eq!(agent.run(&["hosts", "--filter", "192.0.2.0/99"]).code, 2);
}

#[test]
fn a_host_is_explained() {
    let agent = Agent::new(answer);
    let text = agent.run(&["explain", "192.0.2.10"]).ok_but_wide();
    assert!(text.starts_with("192.0.2.10: bbr next, because its mean cost is lowest.\n"));
    assert!(text.contains("bbr *"), "{text}");
    assert!(text.contains("the last 1 min 15 s ago"), "{text}");
    assert!(
        text.contains("bbr moved 105 MB at 490 Mbit/s, RTT 12.3 ms, 310 of 72000"),
        "{text}"
    );
    let error = agent.run(&["explain", "198.51.100.1"]).failed(1);
    assert_eq!(error, "thalweg: nothing is known of it\n");
    agent.run(&["explain", "2001:db8::1"]).ok_but_wide();
    assert_eq!(
        agent.seen().last().unwrap().path,
        "/v1/hosts/2001%3Adb8%3A%3A1"
    );
}

#[test]
fn events_come_oldest_first() {
    let agent = Agent::new(answer);
    let text = agent.run(&["events"]).ok_but_wide();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "2025-10-09 08:53:20.001  decision  to 192.0.2.10 port 443: \
         bbr (greedy, 93.8%, system cubic)"
    );
    assert!(lines[1].contains("close"), "{text}");
    // The record that contains the address names the events.
    agent
        .run(&["events", "--host", "2001:db8::1"])
        .ok_but_wide();
    assert_eq!(
        agent.seen().last().unwrap().path,
        "/v1/events?limit=20&host=192.0.2.10"
    );
    assert_eq!(agent.run(&["events", "--limit", "10001"]).code, 2);
}

#[test]
fn following_repeats_nothing_and_tells_gaps() {
    let agent = Agent::new(answer);
    let text = agent.run(&["--json", "events", "--follow"]).ok_but_wide();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let ids: Vec<&Value> = lines.iter().map(|line| &line["id"]).collect();
    assert_eq!(
        ids,
        [&json!(1), &json!(2), &json!(0), &Value::Null, &json!(0)]
    );
    assert_eq!(lines[3], json!({ "missed": 5 }));
    let plain = agent.run(&["events", "-f"]).ok_but_wide();
    assert!(plain.contains("\n... 5 events missed\n"), "{plain}");
}

#[test]
fn forgetting_wants_a_yes() {
    let agent = Agent::new(answer);
    let error = agent.run(&["reset"]).failed(2);
    assert!(error.contains("--yes"), "{error}");
    assert_eq!(agent.seen(), []);
    assert_eq!(
        agent.run(&["reset", "--yes"]).ok(),
        "12 host records forgotten\n"
    );
    let one = agent.run(&["reset", "192.0.2.10", "-y", "--json"]).ok();
    assert_eq!(
        serde_json::from_str::<Value>(&one).unwrap(),
        json!({ "removed": 1 })
    );
}

#[test]
fn records_travel_in_files() {
    let agent = Agent::new(answer);
    let file = agent.directory.path().join("hosts.json");
    let name = file.to_str().unwrap();
    assert_eq!(agent.run(&["export", name]).ok(), "");
    let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(written, document());
    assert_eq!(
        serde_json::from_str::<Value>(&agent.run(&["export"]).ok()).unwrap(),
        document()
    );
    assert_eq!(
        agent.run(&["import", name]).ok(),
        "1 host records imported, 2 left out\n"
    );
    let sent = agent.seen().pop().unwrap();
    assert_eq!(
        (sent.method.as_str(), sent.path.as_str()),
        ("POST", "/v1/import")
    );
    assert_eq!(
        serde_json::from_str::<Value>(&sent.body).unwrap(),
        document()
    );

    // A document with a fault is not sent.
    let requests = agent.seen().len();
    let text = std::fs::read_to_string(&file)
        .unwrap()
        .replace("192.0.2.10", "192.0.2");
    std::fs::write(&file, text).unwrap();
    let error = agent.run(&["import", name]).failed(1);
    assert!(
        error.contains("hosts.json: hosts[0].address: \"192.0.2\" is not"),
        "{error}"
    );
    assert!(error.contains("nothing was imported"), "{error}");
    assert_eq!(agent.seen().len(), requests);
    let missing = agent.run(&["import", "/nonexistent.json"]).failed(1);
    assert!(
        missing.contains("cannot read /nonexistent.json"),
        "{missing}"
    );
    // A failed export leaves the existing file.
    let down = Agent::absent();
    std::fs::write(&file, "kept").unwrap();
    down.run(&["export", name]).failed(4);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}

#[test]
fn detaching_works_with_and_without_agent() {
    let agent = Agent::new(answer);
    // After it come other agents of the machine.
    for (agent, expected) in [
        (agent, "removed from the kernel: link_sockops, hosts"),
        (Agent::absent(), "nothing was attached"),
    ] {
        let ran = agent.run(&["detach"]);
        assert_eq!((ran.code, ran.out.lines().next()), (0, Some(expected)));
    }
}

#[test]
fn detaching_fails_where_the_agent_could_not_lift_clamps() {
    let agent = Agent::new(|method, path| match (method, path) {
        ("POST", "/v1/detach") => {
            let told = json!({ "removed": ["hosts"], "clamped": "the kernel refuses 2" });
            (200, told.to_string())
        }
        _ => answer(method, path),
    });
    let ran = agent.run(&["detach"]);
    let told =
        "learned clamps of open connections, which last until these end: the kernel refuses 2";
    assert!(ran.code == 1 && ran.error.contains(told), "{ran:?}");
}

#[test]
fn an_absent_agent_is_code_4_and_one_line() {
    let agent = Agent::absent();
    for arguments in [
        &["status"][..],
        &["arms"],
        &["hosts"],
        &["explain", "192.0.2.1"],
        &["events"],
        &["events", "--follow"],
        &["gain"],
        &["advise"],
        &["reset", "--yes"],
        &["export"],
    ] {
        let error = agent.run(arguments).failed(4);
        assert!(
            error.starts_with("thalweg: the agent is not running"),
            "{error}"
        );
        assert!(error.contains("no programs are pinned in"), "{error}");
        assert!(error.contains("start it with `thalweg run`"), "{error}");
    }
    // A socket left behind by a killed agent.
    drop(UnixListener::bind(agent.socket()).unwrap());
    agent.run(&["status"]).failed(4);
}

#[test]
fn errors_of_the_agent_are_passed_on() {
    let agent = Agent::new(|_, _| (500, "boom".to_owned()));
    let error = agent.run(&["status"]).failed(1);
    assert_eq!(
        error,
        "thalweg: the agent answers 500 Internal Server Error: boom\n"
    );
    let other = Agent::new(|_, _| (200, "{\"version\": 7}".to_owned()));
    let error = other.run(&["status"]).failed(1);
    assert!(
        error.contains("/v1/status is not understood; is it of another version?"),
        "{error}"
    );
}

#[test]
fn wrong_usage_is_code_2_and_a_wrong_configuration_code_1() {
    let agent = Agent::absent();
    for arguments in [
        &["frobnicate"][..],
        &[],
        &["explain"],
        &["hosts", "--sort", "colour"],
        &["run", "--mode", "fast"],
        &["thalweg-lab", "run"],
        &["thalweg-lab", "run", "x.toml", "--mode", "fixed:"],
        &["thalweg-lab", "run", "x.toml", "--connections", "0"],
    ] {
        assert_eq!(agent.run(arguments).code, 2, "{arguments:?}");
    }
    let config = agent.directory.path().join("bad.toml");
    std::fs::write(&config, "mode = \"fast\"\n").unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        Ran::from(
            command
                .args(arguments)
                .stdin(Stdio::null())
                .output()
                .unwrap(),
        )
    };
    // The unit does not try this again.
    let error = run(&["run", "--config", config.to_str().unwrap()]).failed(78);
    assert!(
        error.contains("bad.toml:1:8: mode: found the string \"fast\""),
        "{error}"
    );
    let error = run(&["run", "--config", "/nonexistent.toml"]).failed(78);
    assert!(
        error.contains("cannot read /nonexistent.toml: No such file"),
        "{error}"
    );
    let error = agent.run(&["run", "--cgroup", "relative"]).failed(1);
    assert!(
        error.contains("--cgroup: there is no cgroup /relative: /")
            && error.contains("/relative does not exist; expected a cgroup v2 directory: make it"),
        "{error}"
    );
    let error = agent.run(&["run", "--cgroup", "/proc"]).failed(1);
    assert!(
        error.contains(
            "--cgroup: /proc is not a cgroup v2 directory; expected a cgroup v2 directory under /"
        ),
        "{error}"
    );
}

#[test]
fn client_with_faulty_configuration_gets_its_answer_and_a_warning() {
    let agent = Agent::new(answer);
    let good = agent.command(&[]);
    drop(good);
    let file = agent.directory.path().join("t.toml");
    let paths = std::fs::read_to_string(&file).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.arg("--config").arg(&file).args(arguments);
        Ran::from(command.stdin(Stdio::null()).output().unwrap())
    };
    for (text, fault) in [
        (format!("mode = \"fsat\"\n{paths}"), "mode: found"),
        (format!("from_the_future = 1\n{paths}"), "unknown key"),
        (format!("{paths}[learning]\nwarm_up = \n"), "valid TOML"),
        (format!("mode = thalweg\n{paths}"), "valid TOML"),
        (format!("{paths}# \u{0}\n"), "valid TOML"),
    ] {
        std::fs::write(&file, &text).unwrap();
        let told = run(&["status"]);
        assert_eq!(told.code, 0, "{text}: {}", told.error);
        assert!(told.out.contains("4242"), "{text}: {}", told.out);
        let warned = told
            .error
            .starts_with("thalweg: warning: the configuration has a fault");
        assert!(
            warned && told.error.contains(fault),
            "{text}: {}",
            told.error
        );
        let check = run(&["status", "--check"]);
        assert!(check.code < 2 && check.out.contains(fault), "{check:?}");
        let json = run(&["--json", "status"]);
        let shown: Value = serde_json::from_str(&json.out).unwrap();
        let told = shown["configuration_fault"].as_str().unwrap();
        assert!(told.contains(fault), "{told}");
        assert!(json.error.starts_with("{\"warning\":"), "{}", json.error);
        for arguments in [&["hosts"][..], &["arms"], &["detach"]] {
            assert_eq!(run(arguments).code, 0, "{text}: {arguments:?}");
        }
    }
}

#[test]
fn the_socket_option_goes_before_the_configuration() {
    let agent = Agent::new(answer);
    let other = Agent::absent();
    let socket = agent.socket();
    let text = other
        .run(&["--socket", socket.to_str().unwrap(), "status"])
        .ok();
    assert!(text.contains("4242"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let many: Vec<Value> = (0..20_000u32)
        .map(|n| {
            host(
                &format!("10.1.{}.{}", n / 256, n % 256),
                n,
                &[arm("bbr", 1.0, 1.0)],
            )
        })
        .collect();
    let body = json!({ "hosts": many }).to_string();
    let agent = Agent::new(move |_, _| (200, body.clone()));
    let mut child = agent
        .command(&["hosts", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 16];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let ended = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.error.as_str()), (0, ""));
}

#[test]
fn the_doctor_speaks_json_and_tables() {
    let agent = Agent::absent();
    let json = agent.run(&["doctor", "--json"]);
    let checks: Vec<Value> = serde_json::from_str(&json.out).unwrap();
    let missing = checks.iter().any(|check| check["state"] == "missing");
    assert_eq!(json.code, if missing { 3 } else { 0 }, "{}", json.error);
    let text = agent.run(&["doctor"]);
    assert_eq!(text.code, json.code);
    assert!(
        text.out.lines().all(|line| line.chars().count() <= 100),
        "{}",
        text.out
    );
}

#[test]
fn a_worse_run_is_code_6() {
    let agent = Agent::absent();
    let write = |name: &str, goodput: f64| {
        let connections: Vec<Value> = (0..20)
            .map(|round| {
                json!({"round": round, "goodput_bps": goodput + f64::from(round), "retransmits": 0,
                       "arm": "bbr", "mean_rtt_us": null, "wall_s": 1.0, "error": null})
            })
            .collect();
        let document = json!({
            "format": 1,
            "environment": {"version": "0", "kernel": "Linux", "cpus": 2, "iperf3": "iperf 3"},
            "scenarios": [{
                "scenario": {"name": "x", "path": {}, "traffic": {}},
                "modes": [{"mode": "thalweg", "connections": connections}],
            }],
        });
        let file = agent.directory.path().join(name);
        std::fs::write(&file, document.to_string()).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (fast, slow) = (write("fast.json", 2e6), write("slow.json", 1e6));
    let same = agent.run(&["thalweg-lab", "compare", &fast, &fast]).ok();
    assert!(same.contains("not shown"), "{same}");
    agent.run(&["thalweg-lab", "compare", &slow, &fast]).ok();
    let worse = agent.run(&["thalweg-lab", "compare", &fast, &slow]);
    assert_eq!(worse.code, 6, "{}", worse.error);
    assert_eq!(worse.error, "thalweg-lab: B is worse than A\n");
    assert!(worse.out.contains("WORSE"), "{}", worse.out);
    agent
        .run(&["thalweg-lab", "compare", &fast, &slow, "--tolerance", "0.6"])
        .ok();
    let better = agent
        .run(&["thalweg-lab", "--json", "compare", &slow, &fast])
        .ok();
    let value: Value = serde_json::from_str(&better).unwrap();
    assert_eq!(value["rows"][0]["verdict"], "better");
    let missing = agent
        .run(&["thalweg-lab", "compare", &fast, "/nonexistent"])
        .failed(1);
    assert!(missing.contains("cannot read /nonexistent"), "{missing}");
    let wrong = agent.run(&["thalweg-lab", "compare", &fast, &slow, "--measure", "speed"]);
    assert_eq!(wrong.code, 2);
}

#[test]
fn the_gain_is_told_in_a_sentence_and_a_table() {
    let agent = Agent::new(answer);
    let text = agent.run(&["gain"]).ok();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Transfers take 18 % less time."));
    for part in [
        "No connection gets bbr for another 2 h 0 min. Transfers take 20 % more time.\n",
        "-24.0 to -12.0 %",
        "no difference that matters",
        "not known yet; about 1 d 1 h",
        "port 443\n",
        "\n3 connections left out",
        "\n5 events were lost",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("timers"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows,
        [
            "timers goodput 1.25 1.12 to 1.50 600 9000",
            "timers completion time - - 600 9000",
            "timers 99th percentile of it 0.25 0.19 to 0.38 600 9000",
            "timers retransmitted segments 1.00 0.75 to 1.25 600 9000",
        ]
        .map(|row| row.split(' ').collect::<Vec<_>>())
    );
    let text = agent
        .run(&["gain", "--by", "port", "--measure", "rtt"])
        .ok();
    assert!(text.contains("worse") && !text.contains("better"), "{text}");
    let value: Value = serde_json::from_str(&agent.run(&["--json", "gain"]).ok()).unwrap();
    assert_eq!(value, gain());
    let resumed = agent.run(&["gain", "--resume"]).ok();
    assert_eq!(resumed, "learner and rules go on as before\n");
    // A rule with a share: the same table, with other groups.
    let text = agent.run(&["gain", "--rule", "iw-40"]).ok();
    for part in [
        "Rule iw-40 of policy windows (12.5 %): 321 flows taken, 2345 left alone.\n",
        "No flow gets it for another 2 h 0 min. Transfers take 20 % more time.\n",
        "Left alone",
        "Taken",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(!text.contains("Control"), "{text}");
    let unknown = agent.run(&["gain", "--rule", "x"]).failed(1);
    assert!(unknown.contains("nothing is known of it"), "{unknown}");
}

#[test]
fn advice_is_told_in_a_sentence_tables_and_what_buffers_need() {
    let agent = Agent::new(answer);
    let text = agent.run(&["advise"]).ok();
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some("bbr would take 23 % less time than cubic.")
    );
    for part in [
        "Trials on 5.00 % of the hosts, anew each hour; all others keep what they have.",
        "Compared with cubic, over 7 d 0 h.",
        "bbr   trial                 -23.0 %  -28.0 to -18.0 %       310  takes less time",
        "reno  trial                 +31.0 %  +20.0 to +44.0 %       310  takes more time; tried no more",
        "htcp  itself: no experiment  -3.00 %           too few        12  not known yet; about 1 d 1 h",
        "all                 3 %         41 %     56 %  20 %         4321",
        "\nThe send buffer holds transfers up for 41 % of their busy time.\n",
        "\n198.51.100.0/24: The window holds transfers up.\n",
        "timers 192.0.2.0/24 floor 48 ms, SYN 60 ms 12 of 400 connections waited for a timeout \
         These are set with `advise.only = false`.",
    ] {
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(squeezed(&text).contains(&squeezed(part)), "{part}:\n{text}");
    }
    assert!(!text.contains("Prefix"), "{text}");
    let text = agent.run(&["advise", "--by", "prefix"]).ok();
    let row = "192.0.2.0/24  bbr  -23.0 %  -28.0 to -18.0 %  310  takes less time";
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&text).contains(&words(row)), "{text}");
    assert!(
        words(&text).contains("203.0.113.0/24 not known yet; about 1 d 1 h"),
        "{text}"
    );
    assert!(
        text.contains("\nprefix 203.0.113.0/24: The receiver's window is small.\n"),
        "{text}"
    );
    let text = agent.run(&["advise", "--prefix", "192.0.2.7"]).ok();
    assert!(text.contains("192.0.2.0/24"), "{text}");
    let text = agent.run(&["advise", "--by", "arm"]).ok();
    for part in ["bbr (trial)\n", "reno (trial)\n", "retransmitted segments"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let value: Value = serde_json::from_str(&agent.run(&["--json", "advise"]).ok()).unwrap();
    assert_eq!(value, advice(&[]));
    let text = agent.run(&["networks", "--limits"]).ok();
    for part in [
        "Network Receiver Send buffer Congestion Idle Free Fastest Connections",
        "198.51.100.0/24 60 % 10 % 30 % 20 % 40.0 Mbit/s 48.0 Mbit/s 17",
        "198.51.100.0/24: The window holds transfers up.",
    ] {
        assert!(words(&text).contains(part), "{part}:\n{text}");
    }
    let text = agent
        .run(&["networks", "--limits", "--level", "named"])
        .ok();
    assert_eq!(text, "no connection has ended yet\n");
    // Without the kernel's chronographs.
    let text = agent.run(&["advise", "--by", "port"]).ok();
    assert!(
        text.ends_with("\nThe kernel does not tell what holds connections up.\n"),
        "{text}"
    );
}
