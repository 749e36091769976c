//! A real Prometheus that scrapes an agent, with the rules that ship.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use thalweg_testbed::{Bed, manifest_path, skip, thalweg, wait_for};

/// Where a program of the package is: installed, or where scripts/setup.sh unpacks it.
pub fn program(name: &str) -> Option<PathBuf> {
    let unpacked = Path::new(thalweg()).with_file_name(format!("../prometheus/usr/bin/{name}"));
    let places = [PathBuf::from(name), unpacked];
    places.into_iter().find(|program| {
        let version = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        version.is_ok()
    })
}

/// Whether there is one; says why not.
pub fn is_there() -> bool {
    program("prometheus").is_some() && program("promtool").is_some()
        || skip("no prometheus (scripts/setup.sh --test)")
}

/// Runs promtool on files; it must find no fault.
pub fn promtool(arguments: &[&str]) -> String {
    let output = Command::new(program("promtool").expect("promtool"))
        .args(arguments)
        .output()
        .expect("running promtool");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let fault = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {told}{fault}");
    told
}

/// A GET over TCP; the body.
pub fn get(address: &str, target: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    // Of this version no answer comes in chunks.
    write!(stream, "GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (_, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    Ok(body.to_owned())
}

/// The server.
pub struct Prometheus {
    child: Child,
    address: String,
    directory: tempfile::TempDir,
}

impl Prometheus {
    /// Scrapes and judges every second. The alerts do not wait.
    pub fn start(agent: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let rules = directory.path().join("rules.yml");
        let shipped = fs::read_to_string(manifest_path("packaging/prometheus/rules.yml"));
        let shipped = shipped.expect("the rules");
        let at_once: String = shipped
            .lines()
            .map(|line| match line.trim_start().starts_with("for: ") {
                true => "        for: 0s\n".to_owned(),
                false => format!("{line}\n"),
            })
            .collect();
        fs::write(&rules, at_once).expect("writing the rules");
        let file = directory.path().join("prometheus.yml");
        let configuration = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
             rule_files: [{rules:?}]\n\
             scrape_configs:\n  - job_name: thalweg\n    static_configs: [{{targets: [{agent:?}]}}]\n"
        );
        fs::write(&file, configuration).expect("writing the configuration");
        promtool(&["check", "config", file.to_str().expect("plain path")]);
        let (host, _) = agent.rsplit_once(':').expect("a port");
        let address = format!("{host}:9090");
        let log = fs::File::create(directory.path().join("log")).expect("a log");
        let child = Command::new(program("prometheus").expect("prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}/data",
                directory.path().display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("starting prometheus");
        let started = Self {
            child,
            address,
            directory,
        };
        wait_for("prometheus", || {
            let body = get(&started.address, "/-/ready").ok()?;
            body.contains("Ready").then_some(())
        });
        started
    }

    fn ask(&self, target: &str) -> Value {
        let body = get(&self.address, target).expect("an answer");
        let answer: Value =
            serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error} in {body}"));
        assert_eq!(answer["status"], "success", "{target}: {answer}");
        answer["data"].clone()
    }

    /// The result of a query.
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let encoded = expression.bytes().fold(String::new(), |mut text, byte| {
            text.push_str(&format!("%{byte:02X}"));
            text
        });
        let data = self.ask(&format!("/api/v1/query?query={encoded}"));
        data["result"].as_array().expect("a list").clone()
    }

    /// The alerts that fire, by name, with their annotation `action`.
    pub fn firing(&self) -> Vec<(String, String)> {
        let data = self.ask("/api/v1/alerts");
        let alerts = data["alerts"].as_array().expect("a list").iter();
        alerts
            .filter(|alert| alert["state"] == "firing")
            .map(|alert| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let name = text(&alert["labels"]["alertname"]);
                (name, text(&alert["annotations"]["action"]))
            })
            .collect()
    }

    /// Waits until an alert fires.
    pub fn fires(&self, name: &str) {
        let action = wait_for(name, || {
            let mut firing = self.firing().into_iter();
            Some(firing.find(|(alert, _)| alert == name)?.1)
        });
        assert!(!action.is_empty(), "{name}: what to do?");
    }

    /// Waits until the agent has been scraped this often.
    pub fn has_scraped(&self, times: u32) {
        let query = format!("count_over_time(thalweg_session[1h]) >= {times}");
        wait_for("scrapes", || (!self.query(&query).is_empty()).then_some(()));
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            eprintln!("prometheus' log:\n{log}");
        }
    }
}

/// An agent that is scraped: its address is one of the loopback's that no other test has.
pub fn scraped(bed: &mut Bed, address: &str, settings: &str) -> Prometheus {
    bed.configure(&format!("{settings}\n[http]\nlisten = \"{address}\"\n"));
    bed.start();
    let prometheus = Prometheus::start(address);
    prometheus.has_scraped(2);
    assert_eq!(prometheus.firing(), []);
    prometheus
}
