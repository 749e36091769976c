//! The page: one file that needs neither network nor script.

use std::fmt::Write;

use thalweg_report::{Verdict, escape_html, html_table, page_head};

use super::{plots, svg};
use crate::measure::Measure;
use crate::multi_host;
use crate::outcome::{Environment, ScenarioOutcome};
use crate::statistic::Statistic;
use crate::summary;
use crate::table;
use crate::web;

/// The whole page of a scenario.
pub(super) fn scenario_page(environment: &Environment, outcome: &ScenarioOutcome) -> String {
    let scenario = &outcome.scenario;
    let mut page = String::new();
    let _ = write!(
        page,
        "{head}<h1>{name}</h1>\n<p class=\"soft\">{description}</p>\n<p>{path}.</p>\n<p>{verdict}</p>\n",
        head = page_head(&format!("Thalweg laboratory: {}", scenario.name)),
        name = escape_html(&scenario.name),
        description = escape_html(&scenario.description),
        path = escape_html(&scenario.describe_paths()),
        verdict = verdict_badge(outcome),
    );
    page.push_str("<h2>In words</h2>\n");
    for sentence in summary::scenario_sentences(outcome) {
        let _ = writeln!(page, "<p>{}</p>", escape_html(&sentence));
    }
    if let Some(hosts) = multi_host::hosts_table(outcome) {
        page.push_str("<h2>All hosts</h2>\n");
        page.push_str(&html_table(&hosts, &hosts.title, ""));
    }
    if let Some(times) = web::web_table(outcome) {
        page.push_str("<h2>Pages and objects</h2>\n");
        page.push_str(&html_table(&times, &times.title, ""));
    }
    let views = outcome.by_host();
    for (place, path) in table::path_outcomes(outcome, &views)
        .into_iter()
        .enumerate()
    {
        path_section(&mut page, path, (!views.is_empty()).then_some(place));
    }
    page.push_str("<details><summary>What the measures mean</summary>\n<dl>\n");
    for statistic in Statistic::ALL {
        let _ = writeln!(
            page,
            "<dt>{} (<code>{}</code>)</dt><dd>{}</dd>",
            escape_html(statistic.reader_name()),
            statistic.key(),
            escape_html(statistic.description())
        );
    }
    page.push_str("</dl>\n</details>\n");
    if !outcome.checks.is_empty() {
        page.push_str("<h2>Expected outcome</h2>\n");
        page.push_str(&html_table(
            &table::checks_table(outcome),
            "Expectations",
            "checks",
        ));
    }
    if let Some(table) = table::null_checks(outcome) {
        let _ = writeln!(page, "<h2>{}</h2>", escape_html(&table.title));
        page.push_str(&html_table(&table, "One of them must be missed", ""));
    }
    for mode in outcome.modes.iter().filter(|mode| !mode.hosts.is_empty()) {
        let learned = table::learned_table(mode);
        let _ = writeln!(page, "<h2>{}</h2>", escape_html(&learned.title));
        page.push_str(&html_table(&learned, "Learned costs; lower is better", ""));
    }
    for table in outcome.modes.iter().filter_map(table::gain_table) {
        let _ = writeln!(page, "<h2>{}</h2>", escape_html(&table.title));
        page.push_str(&html_table(&table, "Less is better", ""));
    }
    how_it_was_measured(&mut page, environment, outcome);
    page.push_str("<h2>Connections</h2>\n<details><summary>Every connection</summary>\n");
    page.push_str(&html_table(
        &table::connections_table(outcome),
        "In order, by mode",
        "",
    ));
    page.push_str("</details>\n</main>\n</body>\n</html>\n");
    page
}

/// Machine, command and scenario, so that the run can be repeated.
fn how_it_was_measured(page: &mut String, environment: &Environment, outcome: &ScenarioOutcome) {
    let scenario = &outcome.scenario;
    page.push_str("<h2>How it was measured</h2>\n<dl>\n");
    for (key, end) in [("Sender", scenario.sender), ("Receiver", scenario.receiver)] {
        if let Some(stack) = environment
            .stack
            .as_ref()
            .filter(|_| scenario.first_stack().is_some())
        {
            let kernel = match end {
                crate::scenario::End::Stack => stack,
                crate::scenario::End::Native => &environment.kernel,
            };
            let _ = writeln!(page, "<dt>{key}</dt><dd>{}</dd>", escape_html(kernel));
        }
    }
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
            match scenario.remote_paths().len() {
                1 => scenario.traffic.describe(),
                count => format!(
                    "{}, to each of {count} hosts at once",
                    scenario.traffic.describe()
                ),
            },
        ),
        (
            "References",
            format!("in every {} round", ordinal_name(outcome.reference_every)),
        ),
        (
            "Seed of the loss",
            scenario
                .remote_paths()
                .iter()
                .map(|(_, path)| path.seed.to_string())
                .collect::<Vec<_>>()
                .join(", "),
        ),
        ("iperf3", environment.iperf3.clone()),
        ("Thalweg", environment.version.clone()),
    ] {
        let _ = writeln!(page, "<dt>{term}</dt><dd>{}</dd>", escape_html(&text));
    }
    page.push_str("</dl>\n");
}

/// Pictures and tables of one path: the scenario's, or that to one of several hosts, by its place.
fn path_section(page: &mut String, outcome: &ScenarioOutcome, host: Option<usize>) {
    let whose = match host {
        Some(_) => format!(", host {}", escape_html(&outcome.scenario.name)),
        None => String::new(),
    };
    let course = [
        (
            "Goodput of each connection",
            Some(svg::rounds_plot(outcome)),
        ),
        ("Arms over the run", plots::arms_plot(outcome)),
        ("Convergence", plots::convergence_plot(outcome)),
        ("Regret", plots::regret_plot(outcome)),
        ("Share of the bottleneck", plots::shares_plot(outcome)),
    ];
    let spread = Measure::ALL.map(|measure| (measure.title(), svg::box_plot(outcome, measure)));
    for (heading, pictures) in [("Course", &course[..]), ("Spread", &spread[..])] {
        let _ = writeln!(page, "<h2>{heading}{whose}</h2>");
        for (title, picture) in pictures {
            if let Some(picture) = picture {
                let _ = write!(page, "<h3>{title}</h3>\n{}\n", unique_ids(picture, host));
            }
        }
    }
    let _ = writeln!(page, "<h2>Modes{whose}</h2>");
    page.push_str(&html_table(
        &table::summary_table(outcome),
        "Figures by mode",
        "",
    ));
    let measures = table::measures_table(outcome);
    if !measures.rows.is_empty() {
        page.push_str(&html_table(&measures, "Measures", ""));
    }
}

/// Makes a picture's identifiers unique in the page, which may have one for each host.
fn unique_ids(picture: &str, host: Option<usize>) -> String {
    let Some(place) = host else {
        return picture.to_owned();
    };
    let (tag, rest) = picture.split_once('>').unwrap_or((picture, ""));
    let tag = tag
        .replace("labelledby=\"", &format!("labelledby=\"host{place}-"))
        .replace("-title ", &format!("-title host{place}-"));
    // The identifiers of <title> and <desc> come first.
    let rest = rest.replacen(" id=\"", &format!(" id=\"host{place}-"), 2);
    format!("{tag}>{rest}")
}

fn ordinal_name(number: u32) -> String {
    match number {
        1 => "single".to_owned(),
        2 => "second".to_owned(),
        3 => "third".to_owned(),
        _ => format!("{number}th"),
    }
}

fn verdict_badge(outcome: &ScenarioOutcome) -> String {
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
    let class = if outcome.has_passed() {
        "met"
    } else {
        "missed"
    };
    if outcome.checks.is_empty() {
        return "No outcome was expected.".to_owned();
    }
    format!(
        "<span class=\"{class}\">Expectations: {met} met, {missed} missed, {unchecked} not checked.</span>"
    )
}

#[cfg(test)]
#[path = "html_tests.rs"]
mod tests;
