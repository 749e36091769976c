//! The initial windows of a log: one window for all, compared with what ran.

use serde_json::{Value, json};
use thalweg_gain::replay::{First, Interval, Judged, OfWindow, Size, Windows};
use thalweg_learner::window;
use thalweg_terminal::output;

use super::{connections_text, estimate_json, interval_sentence, log2_to_percent};

/// Evaluation of the initial windows of a log.
pub struct Section {
    known: Windows,
    windows: Vec<OfWindow>,
}

/// Judges each window of the log, and those of a mask; `None`: none was chosen.
pub fn judge_windows(log: &[First], mask: u16) -> Option<Section> {
    if log.is_empty() {
        return None;
    }
    let mut known = Windows::default();
    log.iter().for_each(|first| known.add_connection(first));
    let windows = known.window_outcomes(mask);
    Some(Section { known, windows })
}

impl Section {
    /// Whether the log says enough about any window.
    pub fn has_estimates(&self) -> bool {
        self.windows.iter().any(|of| of.judged.is_ok())
    }

    /// The estimates as JSON.
    pub fn to_json(&self) -> Value {
        let windows = self.windows.iter().map(|of| {
            let mut document = match &of.judged {
                Ok(judged) => size_json(&judged.size),
                Err(untold) => untold.sample_size().map_or(json!({}), size_json),
            };
            document["segments"] = window::arm_segments(of.arm).into();
            document["had"] = of.had.into();
            match &of.judged {
                Ok(judged) => {
                    document["cost_bits"] = estimate_json(&judged.cost);
                    document["time_bits"] = estimate_json(&judged.time);
                }
                Err(untold) => document["untold"] = untold.to_string().into(),
            }
            document
        });
        json!({
            "connections": self.known.connection_count(),
            "control": self.known.control_count(),
            "without_cost": self.known.without_cost(),
            "windows": windows.collect::<Vec<_>>(),
        })
    }

    /// The estimates for people.
    pub fn to_text(&self) -> String {
        let judged = |of: &OfWindow| of.judged.ok().map(|judged| (of.arm, of.had, judged));
        let rows: Vec<_> = self.windows.iter().filter_map(judged).collect();
        let mut text = String::from("Initial windows. ");
        text += &match rows.first() {
            Some((window::OWN, _, own)) => {
                let rule = format!("{} segments for all", window::LEAST);
                interval_sentence(&rule, "take", &own.time.robust)
            }
            _ => format!("Not known what {} segments for all take.", window::LEAST),
        };
        text.push('\n');
        if !rows.is_empty() {
            let header = [
                "For all, less log",
                "Time",
                "95 % interval",
                "Cost in bits",
                "95 % interval",
                "Had it",
                "Counted",
            ];
            let rows = rows.iter().map(window_row).collect();
            let table = output::table(&header, &[1, 2, 3, 4, 5, 6], rows);
            text += &format!(
                "\n{table}Doubly robust. Counted: where the log gave the window a chance, of {}.\n",
                connections_text(self.known.connection_count()),
            );
        }
        for of in &self.windows {
            if let Err(untold) = &of.judged {
                let segments = window::arm_segments(of.arm);
                text += &format!("Not known of {segments} segments: {untold}.\n");
            }
        }
        for (count, what) in [
            (
                self.known.control_count(),
                "control group, always 10 segments",
            ),
            (
                self.known.without_cost(),
                "they tell nothing of their window",
            ),
        ] {
            if count > 0 {
                text += &format!("Left out: {} ({what}).\n", connections_text(count));
            }
        }
        text
    }
}

fn size_json(size: &Size) -> Value {
    json!({
        "connections": size.connections,
        "stand_for": size.stand_for,
        "hosts": size.hosts,
        "effective_connections": size.effective,
        "effective_hosts": size.effective_hosts,
        "uncovered": size.uncovered,
        "overlap": size.overlap,
    })
}

fn window_row((arm, had, judged): &(usize, u64, Judged)) -> Vec<String> {
    let time = |log2: f64| format!("{:+.2} %", log2_to_percent(log2));
    let bits = |value: f64| format!("{value:+.2}");
    let between = |it: &Interval, words: &dyn Fn(f64) -> String| {
        format!("{} to {}", words(it.low), words(it.high))
    };
    vec![
        format!("{} segments", window::arm_segments(*arm)),
        time(judged.time.robust.mean),
        between(&judged.time.robust, &time),
        bits(judged.cost.robust.mean),
        between(&judged.cost.robust, &bits),
        had.to_string(),
        judged.size.connections.to_string(),
    ]
}
