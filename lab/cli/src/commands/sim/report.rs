//! The page of a scenario: tables, and plots of the first seed's runs.

use std::fmt::Write;

use thalweg_report::sample::nearest_rank;
use thalweg_report::{Chart, FOOT, Line, Scale, Table, escape_html, html_table, page_head};
use thalweg_sim::Outcome;
use thalweg_sim::metrics::Series;

use super::batch::Runs;
use super::document;

/// Number of flows plotted one by one; more are plotted as quantiles.
const FLOWS: usize = 8;
/// Points of a plotted distribution.
const POINTS: usize = 400;

/// The whole page.
pub fn report_page(runs: &Runs) -> String {
    let scenario = &runs.scenario;
    let mut page = page_head(&format!("Thalweg simulator: {}", scenario.name));
    let _ = writeln!(
        page,
        "<h1>{}</h1>\n<p class=\"soft\">{}</p>\n<p>{}, {} simulated, of which {} are not measured.</p>",
        escape_html(&scenario.name),
        escape_html(&scenario.description),
        escape_html(&scenario.topology.to_string()),
        scenario.duration,
        scenario.warmup,
    );
    for table in document::result_tables(runs) {
        page.push_str(&html_table(&table, &table.title, ""));
    }
    let checks = document::check_expectations(runs);
    if !checks.is_empty() {
        let rows = (checks.iter())
            .map(|check| {
                vec![
                    check.text.clone(),
                    check.measured_text("").unwrap_or_default(),
                    check.verdict.to_string(),
                ]
            })
            .collect();
        let table = Table {
            title: String::new(),
            header: ["expected", "measured", "verdict"]
                .map(str::to_owned)
                .into(),
            rows,
        };
        page.push_str("<h2>Expected outcome</h2>\n");
        page.push_str(&html_table(&table, "Expectations", "checks"));
    }
    if let Some(sentence) = document::null_sentence(runs) {
        let _ = writeln!(page, "<p>{}</p>", escape_html(&sentence));
    }
    add_pictures(&mut page, runs);
    page.push_str("<h2>What the figures mean</h2>\n<dl>\n");
    for statistic in document::measured_statistics(runs) {
        let _ = writeln!(
            page,
            "<dt><code>{}</code></dt><dd>{}</dd>",
            statistic.key(),
            escape_html(statistic.description())
        );
    }
    page.push_str("</dl>\n<h2>How it was run</h2>\n<dl>\n");
    for one in &runs.controllers {
        let parameters = one.controller.parameters().to_string().replace('\n', ", ");
        let seeds: Vec<String> = one.runs.iter().map(|run| run.seed.to_string()).collect();
        let _ = writeln!(
            page,
            "<dt>{}</dt><dd>seeds {}; {}</dd>",
            escape_html(&one.controller.to_string()),
            seeds.join(", "),
            escape_html(parameters.trim_end_matches(", "))
        );
    }
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(page, "<dt>Thalweg</dt><dd>{version}</dd>\n</dl>");
    page.push_str(FOOT);
    page
}

/// The first run of each controller.
fn first_runs(runs: &Runs) -> impl Iterator<Item = (String, &Outcome)> {
    (runs.controllers.iter())
        .filter_map(|one| Some((one.controller.to_string(), one.runs.first()?)))
}

fn first_series(runs: &Runs) -> impl Iterator<Item = (String, &Series)> {
    first_runs(runs).filter_map(|(name, run)| Some((name, run.series.as_ref()?)))
}

fn add_pictures(page: &mut String, runs: &Runs) {
    page.push_str("<h2>Course</h2>\n");
    add_courses(page, runs);
    add_distributions(page, runs);
}

/// Rates and the longest queue over time.
fn add_courses(page: &mut String, runs: &Runs) {
    let time = Scale::linear_to(runs.scenario.duration.us() / 1e3);
    for (number, (name, series)) in first_series(runs).enumerate() {
        let lines = rate_lines(series);
        if !lines.is_empty() {
            let title = format!("Rates of the flows with {name}");
            let id = format!("rates{number}");
            add_picture(
                page,
                &Chart {
                    id: &id,
                    title: &title,
                    x_label: "time (ms)",
                    x: time,
                    y_label: "rate (Gbit/s)",
                    y: scale_to_highest(&lines),
                    lines: &lines,
                },
            );
        }
    }
    let queues: Vec<Line> = first_series(runs)
        .filter_map(|(name, series)| {
            // The port with the longest queue.
            let busiest = (series.queues.iter()).max_by_key(|queue| {
                (
                    queue.bytes.iter().sum::<u64>(),
                    std::cmp::Reverse(queue.port),
                )
            })?;
            let points = (busiest.at_us.iter().zip(&busiest.bytes))
                .map(|(at, bytes)| (at / 1e3, *bytes as f64 / 1e3))
                .collect();
            Some(Line { name, points })
        })
        .collect();
    if !queues.is_empty() {
        add_picture(
            page,
            &Chart {
                id: "queue",
                title: "Longest queue to a receiver",
                x_label: "time (ms)",
                x: time,
                y_label: "queue (kB)",
                y: scale_to_highest(&queues),
                lines: &queues,
            },
        );
    }
}

/// Distributions of packets by queueing delay, and of flows by slowdown.
fn add_distributions(page: &mut String, runs: &Runs) {
    let latencies: Vec<Line> = first_series(runs)
        .map(|(name, series)| {
            let points = series
                .queue_latency
                .iter()
                .map(|(us, share)| (*us, share * 100.0));
            Line {
                name,
                points: points.collect(),
            }
        })
        .collect();
    let slowdowns: Vec<Line> = first_runs(runs)
        .map(|(name, run)| Line {
            name,
            points: cumulative_percent(run.completions.iter().map(|one| one.slowdown).collect()),
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    let percent = Scale::linear_to(100.0);
    for (id, title, x_label, lines) in [
        (
            "latency",
            "Distribution of the queue latency",
            "queue latency (µs)",
            &latencies,
        ),
        (
            "slowdown",
            "Distribution of the slowdown",
            "slowdown",
            &slowdowns,
        ),
    ] {
        if !lines.is_empty() {
            let across = lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x);
            add_picture(
                page,
                &Chart {
                    id,
                    title,
                    x_label,
                    x: Scale::for_values(across),
                    y_label: "share (%)",
                    y: percent,
                    lines,
                },
            );
        }
    }
}

fn add_picture(page: &mut String, chart: &Chart<'_>) {
    let _ = write!(
        page,
        "<h3>{}</h3>\n{}\n",
        escape_html(chart.title),
        chart.to_svg()
    );
}

fn scale_to_highest(lines: &[Line]) -> Scale {
    let up = lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y);
    Scale::linear_to(up.fold(0.0, f64::max) * 1.05)
}

/// A few flows one by one; many as minimum, maximum and quantiles in each interval.
fn rate_lines(series: &Series) -> Vec<Line> {
    let flows = &series.flow_gbps;
    let at = |place: usize| place as f64 * series.interval_us / 1e3;
    if flows.len() <= FLOWS {
        return (flows.iter().enumerate())
            .map(|(number, rates)| Line {
                name: format!("flow {number}"),
                points: (rates.iter().enumerate())
                    .map(|(place, rate)| (at(place), *rate))
                    .collect(),
            })
            .collect();
    }
    let shares = [
        ("least", 0.0),
        ("10 %", 0.1),
        ("median", 0.5),
        ("90 %", 0.9),
        ("greatest", 1.0),
    ];
    let mut lines = shares.map(|(name, _)| Line {
        name: name.into(),
        points: Vec::new(),
    });
    for place in 0..flows[0].len() {
        let mut rates: Vec<f64> = flows.iter().map(|flow| flow[place]).collect();
        rates.sort_unstable_by(f64::total_cmp);
        for (line, (_, share)) in lines.iter_mut().zip(shares) {
            line.points.push((at(place), nearest_rank(&rates, share)));
        }
    }
    lines.into()
}

/// Values and the share of values that do not exceed them, percent.
fn cumulative_percent(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_unstable_by(f64::total_cmp);
    let count = values.len();
    let step = count.div_ceil(POINTS).max(1);
    (values.into_iter().enumerate())
        .filter(|(place, _)| place % step == 0 || place + 1 == count)
        .map(|(place, value)| (value, (place + 1) as f64 / count as f64 * 100.0))
        .collect()
}
