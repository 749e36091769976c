//! What stands on screens of several sizes.

use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;
use serde_json::{Value, json};
use thalweg_control::inventory::{Inventory, RunningProgram};

use super::choice::{Choice, VIEWS, View};
use super::scene::Paint;
use super::screen;
use super::seen::{AgentView, RoundAnswers};

const SIZES: [(u16, u16); 6] = [(80, 24), (40, 10), (40, 8), (39, 30), (1, 1), (211, 60)];

fn arm(name: &str, next: f64, bits: f64) -> Value {
    json!({
        "arm": name, "metric": (bits * 1e6) as u64, "count": 61, "greedy": 55, "min_rtt_us": 9_800,
        "max_rate": 118, "scored": 58, "evidence": 4.0, "cost_bits": bits, "deviation_bits": 0.25,
        "rate_bytes_per_s": 61_250_000.0, "srtt_us": 12_300, "next_probability": next
    })
}

fn host(address: &str, connections: u64, idle_s: u64) -> Value {
    json!({
        "address": address, "netns": 1, "connections": connections, "scored": 60, "switched": 2,
        "min_rtt_us": 9_800, "max_rate_bytes_per_s": 118_000_000u64, "idle_s": idle_s,
        "best": "bbr", "arms": [arm("bbr", 0.9375, 37.5), arm("cubic", 0.0625, 38.25)]
    })
}

fn status(established: u64, problems: &[&str]) -> Value {
    json!({
        "version": "0.1.0", "pid": 4242, "uptime_s": 3725, "mode": "thalweg", "dry_run": false,
        "cgroup": "/sys/fs/cgroup", "pin": "/sys/fs/bpf/thalweg", "store": "/var/lib/thalweg.db",
        "abi_version": 2, "took_over": true, "kernel_busy_time": true, "hosts": 3,
        "hosts_max": 65_536, "map_bytes": 61_000_000u64, "resident_bytes": 12_300_000u64,
        "counters": {
            "established": established, "decided": 900, "changed": 450, "refused": 0,
            "closed": 980, "scored": 700, "skipped_small": 200, "skipped_app_limited": 50,
            "skipped_not_tracked": 20, "switched": 7, "app_owned": 30, "events": 1880,
            "events_dropped": 0, "hosts_created": 12, "hosts_missed": 0, "conns_missed": 0
        },
        "events_stored": 1880, "snapshot_age_s": 12, "problems": problems,
        "fixes": ["free some space"], "machine": "edge7"
    })
}

fn event(reason: &str, age_ms: i64) -> Value {
    json!({
        "id": 1, "time_ms": 100_000_000 - age_ms, "kind": "decision", "connection": 7, "netns": 1,
        "host": "192.0.2.10", "remote": "192.0.2.10", "remote_port": 443, "local_port": 50_000,
        "arm": "bbr", "chosen": "bbr", "system_arm": "cubic", "reason": reason,
        "propensity": 0.9375, "passive": false, "ecn": false, "dry_run": false, "switched": false,
        "error": null
    })
}

fn rule(name: &str, matched: u64) -> Value {
    json!({
        "name": name, "never": false, "matched": matched, "done": 1, "failed": 0, "asked": 0,
        "existing": null, "failures": []
    })
}

fn kernel(runs: u64, matched: u64) -> Inventory {
    let policy = json!({
        "name": "edge", "number": 3, "file": "edge.toml", "applied_ms": 0, "dry_run": false,
        "map_bytes": 0, "missed": { "handshakes": 0, "statistics": 0, "failures": 0 },
        "rules": [rule("to-cdn", matched)]
    });
    Inventory {
        statistics: true,
        programs: vec![RunningProgram {
            name: "learn_sockops".into(),
            id: 41,
            runs: Some(runs),
            run_time_ns: Some(runs * 800),
        }],
        policy: serde_json::from_value(policy).unwrap(),
        ..Inventory::default()
    }
}

/// What two rounds, two seconds apart, have told.
fn known(problems: &[&str]) -> AgentView {
    let start = Instant::now();
    let mut known = AgentView::default();
    for (turn, seconds) in [(0, 0), (1, 2)] {
        let hosts = json!([
            host("192.0.2.10", 500 + turn * 40, 0),
            host("2001:db8:aaaa:bbbb::/64", 7000, 90),
            host("198.51.100.3", 9, 4000),
        ]);
        let arms = json!([
            { "index": 0, "name": "cubic", "present": true, "needs_ecn": false,
              "system_default": true, "refused": null, "refusals": 0 },
            { "index": 1, "name": "bbr", "present": true, "needs_ecn": false,
              "system_default": false, "refused": null, "refusals": 0 },
        ]);
        let events = json!([
            event("greedy", 1),
            event("explore", 900),
            event("loss", 70_000)
        ]);
        let round = RoundAnswers {
            status: serde_json::from_value(status(1000 + turn * 500, problems)).unwrap(),
            arms: serde_json::from_value(arms).unwrap(),
            hosts: serde_json::from_value(hosts).unwrap(),
            kernel: Some(Some(kernel(1000 + turn * 10_000, turn * 30))),
            events: serde_json::from_value(events).unwrap(),
            trouble: None,
        };
        let at = start + Duration::from_secs(seconds);
        known.take_round(round, at, 100_000_000, Duration::from_secs(1));
    }
    known
}

fn drawn(known: &AgentView, choice: &mut Choice, colours: bool, size: (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    let draw = |frame: &mut ratatui::Frame| {
        screen::draw_screen(frame.buffer_mut(), known, choice, Paint { colours }, "2s");
    };
    terminal.draw(draw).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width);
    let rows = buffer.content().chunks(width);
    rows.map(|row| {
        row.iter()
            .map(|cell| cell.symbol())
            .collect::<String>()
            .trim_end()
            .to_owned()
    })
    .collect()
}

fn shown(known: &AgentView, choice: &mut Choice, size: (u16, u16)) -> Vec<String> {
    lines(&drawn(known, choice, true, size))
}

fn view(view: View) -> Choice {
    Choice {
        view,
        ..Choice::default()
    }
}

#[test]
fn hosts_of_80_columns() {
    let screen = shown(&known(&[]), &mut view(View::Hosts), (80, 24));
    let expected = [
        "thalweg top on edge7: agent 0.1.0, thalweg, up 1 h 2 min  03:46:40 UTC, every 2s",
        "Connections 250/s, changed 0/s, scored 0/s  Hosts 3 of 65536",
        "No problems",
        "1 Hosts  2 Arms  3 Decisions  4 Rules  5 Health",
        "Host                    Conns    /s Arm   bit/s    ms  Loss  Cost Others",
        "2001:db8:aaaa:bbbb::/64  7000     0 bbr    490M  12.3  0.0%  37.5 cubic+0.8",
        "192.0.2.10                540  20.0 bbr    490M  12.3  0.0%  37.5 cubic+0.8",
        "198.51.100.3                9     0 bbr    490M  12.3  0.0%  37.5 cubic+0.8",
    ];
    assert_eq!(screen[..8], expected, "{screen:#?}");
    let keys = "q quit  ? help  Tab 1-5 view  s sort: traffic  / filter  Space freeze";
    assert_eq!(screen[23], keys);
}

#[test]
fn hosts_of_40_columns() {
    let mut choice = view(View::Hosts);
    choice.filter = "192.0.2.0/24".to_owned();
    let screen = shown(&known(&["the store is full"]), &mut choice, (40, 10));
    assert_eq!(screen[2], "PROBLEM: the store is full");
    assert_eq!(
        screen[4], "Host            Conns    /s Arm    Cost",
        "{screen:#?}"
    );
    assert_eq!(
        screen[5], "192.0.2.10        540  20.0 bbr    37.5",
        "{screen:#?}"
    );
    assert_eq!(screen[9], "q quit  ? help  Tab 1-5 view  s sort: t…");
}

#[test]
fn each_view_has_its_figures() {
    let known = known(&["the store is full", "another"]);
    for (which, parts) in [
        (
            View::Arms,
            &[
                "Over the first 3 hosts by traffic; 3 are known.",
                "bbr        yes        50.0%     183",
            ][..],
        ),
        (
            View::Decisions,
            &[
                "established             1500    250",
                "greedy                 1   0.02  50.0%",
                "192.0.2.10 port 443: bbr (greedy",
            ],
        ),
        (
            View::Rules,
            &[
                "Policy edge, number 3, since 1970-01-01 00:00:00 UTC",
                "to-cdn                          30   15.0",
            ],
        ),
        (
            View::Health,
            &[
                "! the store is full",
                "  Fix: free some space",
                "! another",
                "learn_sockops        41   11000   5.00k     800   0.40%",
            ],
        ),
    ] {
        let text = shown(&known, &mut view(which), (80, 34)).join("\n");
        let words = |text: &str| {
            text.split(' ')
                .filter(|word| !word.is_empty())
                .collect::<Vec<_>>()
                .join(" ")
        };
        for part in parts {
            assert!(
                words(&text).contains(&words(part)),
                "{part:?} is not in\n{text}"
            );
        }
    }
}

#[test]
fn no_size_and_no_state_is_too_much() {
    let nothing = AgentView::default();
    let mut lost = known(&[&"long words ".repeat(60)]);
    lost.trouble = Some("cannot connect: ".repeat(30));
    let mut old = known(&[]);
    let round = RoundAnswers {
        kernel: Some(None),
        ..RoundAnswers::default()
    };
    old.take_round(round, Instant::now(), 0, Duration::ZERO);
    for known in [&nothing, &lost, &old] {
        for (which, _) in VIEWS {
            for size in SIZES {
                for (help, filter, scroll) in [
                    (false, "", 0),
                    (true, "", 9),
                    (false, "\u{202e}no", usize::MAX),
                ] {
                    let mut choice = view(which);
                    (choice.help, choice.scroll, choice.filter) = (help, scroll, filter.to_owned());
                    let screen = shown(known, &mut choice, size);
                    let says = if size.0 < 40 { "too small" } else { "thalweg" };
                    let says = &says[..usize::from(size.0).min(says.len())];
                    assert!(screen[0].starts_with(says), "{size:?}: {screen:#?}");
                    if filter.is_empty() || size.1 < 20 {
                        continue;
                    }
                    let text = screen.join("\n");
                    assert!(!text.contains('\u{202e}'), "{text}");
                }
            }
        }
    }
    let text = shown(&lost, &mut view(View::Hosts), (80, 24)).join("\n");
    assert!(
        text.contains("NO ANSWER, asking again every 2s. cannot connect"),
        "{text}"
    );
    assert!(
        text.contains("no answer since 03:46:40 UTC") && text.contains("192.0.2.10"),
        "{text}"
    );
    let text = shown(&old, &mut view(View::Health), (80, 24)).join("\n");
    assert!(text.contains("Not reported by this agent"), "{text}");
}

#[test]
fn what_a_filter_leaves_out_is_told() {
    let known = known(&[]);
    for (which, told) in [
        (
            View::Hosts,
            "No host among the first 3 by traffic matches \"zz\".",
        ),
        (View::Arms, "No arm matches \"zz\"."),
        (
            View::Decisions,
            "No event among the latest 3 matches \"zz\".",
        ),
        (View::Rules, "No rule matches \"zz\"."),
        (View::Health, "No program matches \"zz\"."),
    ] {
        let mut choice = view(which);
        choice.filter = "zz".to_owned();
        let text = shown(&known, &mut choice, (80, 40)).join("\n");
        assert!(text.contains(told), "{told:?} is not in\n{text}");
    }
}

#[test]
fn labels_reach_the_terminal_without_control_characters() {
    let mut known = known(&["a\x1b]0;b\x07\u{9b}c\u{202e}d"]);
    known.arms[0].name = "cu\x1b[2Jbic".to_owned();
    for (which, _) in VIEWS {
        let buffer = drawn(&known, &mut view(which), true, (120, 40));
        let bad = |text: &str| text.chars().any(|c| c.is_control() || c == '\u{202e}');
        assert!(!buffer.content().iter().any(|cell| bad(cell.symbol())));
    }
    let text = shown(&known, &mut view(View::Arms), (120, 40)).join("\n");
    assert!(
        text.contains("cu\\u{1b}[2Jbic") && text.contains("a\\u{1b}]0;b"),
        "{text}"
    );
}

#[test]
fn without_colours_there_are_none() {
    let known = known(&["a problem"]);
    let coloured = |colours| {
        let buffer = drawn(&known, &mut view(View::Health), colours, (80, 24));
        let cells = buffer.content().iter();
        cells
            .filter(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset))
            .count()
    };
    assert!(coloured(true) > 0);
    assert_eq!(coloured(false), 0);
}
