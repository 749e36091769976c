//! Time to compile a large policy: `cargo bench -p thalweg-policy`.
#![allow(clippy::unwrap_used, reason = "a benchmark may fail by unwrap")]

use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

use thalweg_policy::Policy;

const RULES: usize = 10_000;
const RUNS: usize = 9;

fn text() -> String {
    let mut text = "name = \"large\"\n".to_owned();
    for rule in 0..RULES {
        let remote = match rule % 2 {
            0 => format!("10.{}.{}.0/24", rule / 512, rule / 2 % 256),
            _ => format!("2001:db8:{rule:x}::/48"),
        };
        write!(
            text,
            "[[rule]]\nname = \"r{rule}\"\nmatch = {{ remote = \"{remote}\", remote_port = [80, \
             443] }}\nset = {{ congestion = \"bbr\", sndbuf = \"1MiB\", initial_window = 20 }}\n"
        )
        .unwrap();
    }
    text
}

fn main() {
    let text = text();
    let policy = Policy::parse(text.as_bytes(), Path::new("large.toml")).unwrap();
    println!("{RULES} rules, {} bytes; median of {RUNS} runs", text.len());
    measure("parse", || {
        Policy::parse(text.as_bytes(), Path::new("large.toml")).unwrap();
    });
    measure("check", || {
        policy.warnings();
    });
    measure("compile", || {
        policy.compile().unwrap();
    });
}

fn measure(what: &str, mut run: impl FnMut()) {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{what:8} {:8.1} ms", times[RUNS / 2]);
}
