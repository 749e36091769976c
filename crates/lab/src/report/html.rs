//! The page: one file that needs nothing else, neither network nor script.

use std::fmt::Write;

use super::{plots, svg};
use crate::expect::Verdict;
use crate::measure::Measure;
use crate::outcome::{Environment, ScenarioOutcome};
use crate::several;
use crate::statistic::Statistic;
use crate::table::{self, Table};
use crate::words;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--soft:#5b6470;--line:#d9dee4;--ok:#1a7f37;--bad:#b42318;
--c0:#0072b2;--c1:#c75000;--c2:#00795a;--c3:#a3478a;--c4:#8a6d00;--c5:#2a7fb8;--c6:#555;--c7:#7a3db8}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--paper:#14181d;--soft:#9aa4b0;--line:#2f3741;--ok:#56d364;--bad:#ff8a80;
--c0:#5ab4ee;--c1:#ff9a4d;--c2:#3ecf9f;--c3:#e58fcb;--c4:#e0c341;--c5:#8fd0ff;--c6:#b0b0b0;--c7:#c09bff}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:76rem;margin:2rem auto;padding:0 1rem}
h1{margin-bottom:0}h2{margin-top:2.5rem}.soft{color:var(--soft)}
svg{width:100%;height:auto;max-width:1000px;font-size:12px}svg text{fill:var(--ink)}.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:var(--line)}svg g{stroke:currentColor;fill:currentColor}polyline{fill:none}.plain{color:var(--ink)}
.reference polyline,.reference line{stroke-width:1.2;stroke-dasharray:5 3;opacity:.8}.learner polyline,.learner line{stroke-width:2}
.box rect{fill-opacity:.25}.box .median{stroke-width:3}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}
h3{margin:1.5rem 0 .3rem;font-size:1em}
@media print{:root{color-scheme:light;--ink:#000;--paper:#fff;--soft:#333;--line:#bbb;--ok:#000;--bad:#b42318;
--c0:#0072b2;--c1:#c75000;--c2:#00795a;--c3:#a3478a;--c4:#8a6d00;--c5:#2a7fb8;--c6:#555;--c7:#7a3db8}
body{font-size:11px;max-width:none;margin:0}svg,tr,h2,h3{break-inside:avoid}h2,h3{break-after:avoid}.wide{overflow:visible!important}th,td{padding:.1rem .3rem!important}}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}caption{text-align:left;font-weight:600;padding:.4rem 0}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}
.checks td:first-child{white-space:normal}.met{color:var(--ok)}.missed{color:var(--bad);font-weight:700}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}code{font-size:.9em}
";

/// Text as it may stand in an element or in a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML 1.0 section 2.2 has no place for the other control characters.
            other if other.is_control() && !matches!(other, '\n' | '\t' | '\r') => {
                escaped.push('\u{fffd}');
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// The whole page of a scenario.
pub(super) fn page(environment: &Environment, outcome: &ScenarioOutcome) -> String {
    let scenario = &outcome.scenario;
    let mut page = String::new();
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Thalweg laboratory: {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{name}</h1>\n<p class=\"soft\">{description}</p>\n<p>{path}.</p>\n<p>{verdict}</p>\n",
        name = escape(&scenario.name),
        description = escape(&scenario.description),
        path = escape(&scenario.describe_paths()),
        verdict = verdict(outcome),
    );
    page.push_str("<h2>In words</h2>\n");
    for sentence in words::sentences(outcome) {
        let _ = writeln!(page, "<p>{}</p>", escape(&sentence));
    }
    if let Some(hosts) = several::table(outcome) {
        page.push_str("<h2>All hosts</h2>\n");
        page.push_str(&html_table(&hosts, &hosts.title, ""));
    }
    let views = outcome.by_host();
    for (place, path) in table::paths(outcome, &views).into_iter().enumerate() {
        figures(&mut page, path, (!views.is_empty()).then_some(place));
    }
    page.push_str("<details><summary>What the measures mean</summary>\n<dl>\n");
    for statistic in Statistic::ALL {
        let _ = writeln!(
            page,
            "<dt>{} (<code>{}</code>)</dt><dd>{}</dd>",
            escape(statistic.words()),
            statistic.key(),
            escape(statistic.description())
        );
    }
    page.push_str("</dl>\n</details>\n");
    if !outcome.checks.is_empty() {
        page.push_str("<h2>Expected outcome</h2>\n");
        page.push_str(&html_table(
            &table::checks(outcome),
            "Expectations",
            "checks",
        ));
    }
    for mode in outcome.modes.iter().filter(|mode| !mode.hosts.is_empty()) {
        let learned = table::learned(mode);
        let _ = writeln!(page, "<h2>{}</h2>", escape(&learned.title));
        page.push_str(&html_table(&learned, "Learned costs; lower is better", ""));
    }
    page.push_str("<h2>How it was measured</h2>\n<dl>\n");
    for (term, text) in [
        ("Command", environment.command.clone()),
        ("Started", environment.started.clone()),
        ("Wall time", format!("{:.0} s", outcome.wall_s)),
        ("Kernel", environment.kernel.clone()),
        (
            "Timers",
            format!("{}, {} ticks a second", environment.timers, environment.hz),
        ),
        (
            "Backend",
            format!("{} ({})", environment.backend.name, environment.backend.why),
        ),
        ("CPUs", environment.cpus.to_string()),
        (
            "Congestion controls",
            environment.congestion_controls.join(", "),
        ),
        ("System's own", scenario.system.default_cc.clone()),
        (
            "Traffic",
            match scenario.hosts.len() {
                0 => scenario.traffic.describe(),
                count => format!(
                    "{}, to each of {count} hosts at once",
                    scenario.traffic.describe()
                ),
            },
        ),
        (
            "References",
            format!("in every {} round", ordinal(outcome.reference_every)),
        ),
        (
            "Seed of the loss",
            scenario
                .remotes()
                .iter()
                .map(|(_, path)| path.seed.to_string())
                .collect::<Vec<_>>()
                .join(", "),
        ),
        ("iperf3", environment.iperf3.clone()),
        ("Thalweg", environment.version.clone()),
    ] {
        let _ = writeln!(page, "<dt>{term}</dt><dd>{}</dd>", escape(&text));
    }
    page.push_str("</dl>\n<h2>Connections</h2>\n<details><summary>Every connection</summary>\n");
    page.push_str(&html_table(
        &table::connections(outcome),
        "In order, by mode",
        "",
    ));
    page.push_str("</details>\n</main>\n</body>\n</html>\n");
    page
}

/// The pictures and tables of one path: the scenario's, or that to one of several
/// hosts, by its place.
fn figures(page: &mut String, outcome: &ScenarioOutcome, host: Option<usize>) {
    let whose = match host {
        Some(_) => format!(", host {}", escape(&outcome.scenario.name)),
        None => String::new(),
    };
    let course = [
        ("Goodput of each connection", Some(svg::rounds(outcome))),
        ("Arms over the run", plots::arms(outcome)),
        ("Convergence", plots::convergence(outcome)),
        ("Regret", plots::regret(outcome)),
        ("Share of the bottleneck", plots::shares(outcome)),
    ];
    let spread = Measure::ALL.map(|measure| (measure.title(), svg::boxes(outcome, measure)));
    for (heading, pictures) in [("Course", &course[..]), ("Spread", &spread[..])] {
        let _ = writeln!(page, "<h2>{heading}{whose}</h2>");
        for (title, picture) in pictures {
            if let Some(picture) = picture {
                let _ = write!(page, "<h3>{title}</h3>\n{}\n", unique(picture, host));
            }
        }
    }
    let _ = writeln!(page, "<h2>Modes{whose}</h2>");
    page.push_str(&html_table(&table::summary(outcome), "Figures by mode", ""));
    let measures = table::measures(outcome);
    if !measures.rows.is_empty() {
        page.push_str(&html_table(&measures, "Measures", ""));
    }
}

/// A picture whose identifiers occur once in the page, though the same picture is
/// there for each host.
fn unique(picture: &str, host: Option<usize>) -> String {
    let Some(place) = host else {
        return picture.to_owned();
    };
    let (tag, rest) = picture.split_once('>').unwrap_or((picture, ""));
    let tag = tag
        .replace("labelledby=\"", &format!("labelledby=\"host{place}-"))
        .replace("-title ", &format!("-title host{place}-"));
    // Those of <title> and <desc>, which come first.
    let rest = rest.replacen(" id=\"", &format!(" id=\"host{place}-"), 2);
    format!("{tag}>{rest}")
}

fn ordinal(number: u32) -> String {
    match number {
        1 => "single".to_owned(),
        2 => "second".to_owned(),
        3 => "third".to_owned(),
        _ => format!("{number}th"),
    }
}

fn verdict(outcome: &ScenarioOutcome) -> String {
    let count = |verdict| {
        outcome
            .checks
            .iter()
            .filter(|check| check.verdict == verdict)
            .count()
    };
    let (met, missed, unchecked) = (
        count(Verdict::Met),
        count(Verdict::Missed),
        count(Verdict::NotChecked),
    );
    let class = if missed > 0 { "missed" } else { "met" };
    if outcome.checks.is_empty() {
        return "No outcome was expected.".to_owned();
    }
    format!(
        "<span class=\"{class}\">Expectations: {met} met, {missed} missed, {unchecked} not checked.</span>"
    )
}

fn html_table(table: &Table, caption: &str, class: &str) -> String {
    let mut html = format!(
        "<div class=\"wide\"><table class=\"{class}\"><caption>{}</caption>\n<thead><tr>",
        escape(caption)
    );
    for heading in &table.header {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(heading));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        html.push_str("<tr>");
        for cell in row {
            let class = match cell.as_str() {
                "MISSED" => " class=\"missed\"",
                "met" => " class=\"met\"",
                _ => "",
            };
            let _ = write!(html, "<td{class}>{}</td>", escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}

#[cfg(test)]
#[path = "html_tests.rs"]
mod tests;
