//! The published results beside ours: `docs/results.md`.
//!
//! A file lists tables; each row has the published figures and the laboratory runs that
//! repeat them. [`make`] runs what has no result yet, by the very command that the page then
//! shows, and writes the page from the results. Rows are kept one directory each, with a stamp
//! of everything that went into them: an interrupted call goes on where it stopped, and a row
//! whose scenario or policy changed is run again.

mod compared;
mod incast;
mod simulated;
mod timers;

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::Value;
use thalweg_units::file::{Draft, read_text};
use thalweg_units::memory::check_toml;
use thalweg_units::one_line;

use crate::compare;
use crate::error::Error;
use crate::interrupt::{self, OnSignal};
use crate::process::Process;
use crate::scenario::{Scenario, ScenarioError, position};
use crate::stats;

/// What to make.
#[derive(Debug, Clone)]
pub struct Options {
    /// The list of tables.
    pub tables: PathBuf,
    /// Where results are kept, one directory a run.
    pub cache: PathBuf,
    /// The page to write.
    pub page: PathBuf,
    /// Program that runs `lab run`: this one.
    pub binary: PathBuf,
    /// Whether runs show their progress.
    pub progress: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// Heading of the page.
    title: Option<String>,
    /// What the page begins with, instead of the words on published results.
    introduction: Option<String>,
    table: Vec<Table>,
}

impl Document {
    fn runs(&self) -> usize {
        let runs = |table: &Table| match table {
            Table::Tuned { row, .. } => row.len(),
            Table::Kernels { row, .. } => 2 * row.len(),
            Table::Incast { row, .. } => row.len(),
            Table::Grid { row, .. } => row.iter().map(|row| row.cell.len()).sum(),
            Table::Compared { row, .. } => row.len(),
            Table::Simulated { row, .. } => 2 * row.len(),
            Table::Timers { row, .. } => row.len(),
        };
        self.table.iter().map(runs).sum()
    }
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Table {
    /// A system default against a learning agent.
    Tuned {
        #[serde(flatten)]
        head: Head,
        row: Vec<TunedRow>,
    },
    /// The machine's own kernel against one in a process.
    Kernels {
        #[serde(flatten)]
        head: Head,
        /// Whether processor time is shown.
        #[serde(default)]
        cpu: bool,
        row: Vec<KernelsRow>,
    },
    /// How late timers are.
    Timers {
        #[serde(flatten)]
        head: Head,
        /// File of the picture, beside the page.
        picture: String,
        row: Vec<timers::Row>,
    },
    /// Flows that meet in one queue, over how many they are.
    Incast {
        #[serde(flatten)]
        head: Head,
        #[serde(flatten)]
        sweep: incast::Sweep,
        row: Vec<incast::Row>,
    },
    /// Our own runs: statistics of each mode.
    Compared {
        #[serde(flatten)]
        head: Head,
        #[serde(flatten)]
        comparison: compared::Comparison,
        row: Vec<compared::Row>,
    },
    /// Our own runs beside the packet simulator's.
    Simulated {
        #[serde(flatten)]
        head: Head,
        row: Vec<simulated::Row>,
    },
    /// Our own runs: a condition a row, a column each for what varies.
    Grid {
        #[serde(flatten)]
        head: Head,
        columns: Vec<String>,
        row: Vec<GridRow>,
    },
}

#[derive(Deserialize)]
struct Head {
    title: String,
    /// What was published; none where nothing was.
    source: Option<String>,
    note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TunedRow {
    condition: String,
    published: PublishedTuned,
    run: Run,
}

/// Goodput in Mbit/s where it was published.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedTuned {
    baseline: Option<f64>,
    tuned: Option<f64>,
    share: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelsRow {
    condition: String,
    published: Option<PublishedKernels>,
    mode: String,
    native: Run,
    userspace: Run,
}

/// Goodput in Mbit/s.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedKernels {
    native: f64,
    userspace: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GridRow {
    condition: String,
    cell: Vec<Cell>,
}

/// A run of one mode.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    mode: String,
    scenario: PathBuf,
    backend: String,
    connections: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    /// Beside the list of tables.
    scenario: PathBuf,
    backend: String,
    connections: u32,
}

/// Median, least and greatest over the rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Spread {
    median: f64,
    least: f64,
    greatest: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Self> {
        Some(Self {
            median: stats::median(values)?,
            least: stats::quantile(values, 0.0)?,
            greatest: stats::quantile(values, 1.0)?,
        })
    }

    fn text(self, digits: usize) -> String {
        format!(
            "{:.digits$} [{:.digits$} … {:.digits$}]",
            self.median, self.least, self.greatest
        )
    }
}

/// What a run gave: the document `results.json`, or why it could not be made.
type Given = Result<Value, String>;

/// Runs what is missing and writes the page. Returns how many runs could not be made; the
/// page says why.
///
/// # Errors
/// [`Error::Scenario`] for a fault in the list of tables, [`Error::Io`] for files that cannot
/// be read or written, [`Error::Interrupted`].
pub fn make(options: &Options) -> Result<usize, Error> {
    let document = parse(&read_text(&options.tables)?, &options.tables)?;
    // Before hours of runs.
    let draft =
        Draft::new(&options.page, 0o666).map_err(Error::io("cannot write", &options.page))?;
    // The run in progress is told, too, cleans up, and is waited for.
    let _guard = interrupt::Guard::install()?;
    let mut page = Page::new(options, document.runs());
    for table in &document.table {
        match table {
            Table::Tuned { head, row } => page.tuned(head, row)?,
            Table::Kernels { head, cpu, row } => page.kernels(head, *cpu, row)?,
            Table::Timers { head, picture, row } => page.timers(head, picture, row)?,
            Table::Incast { head, sweep, row } => page.incast(head, sweep, row)?,
            Table::Grid { head, columns, row } => page.grid(head, columns, row)?,
            Table::Compared {
                head,
                comparison,
                row,
            } => page.compared(head, comparison, row)?,
            Table::Simulated { head, row } => page.simulated(head, row)?,
        }
    }
    page.bar.finish_and_clear();
    draft
        .replace(page.finish(&document).as_bytes())
        .map_err(Error::io("cannot write", &options.page))?;
    Ok(page.failures)
}

/// How many runs a list of tables asks for; `file` is for messages.
///
/// # Errors
/// [`Error::Scenario`] for the first fault in it.
pub fn runs(text: &str, file: &Path) -> Result<usize, Error> {
    Ok(parse(text, file)?.runs())
}

fn parse(text: &str, file: &Path) -> Result<Document, Error> {
    let at = |place: usize, message: String| {
        let (line, column) = position(text, place);
        Error::Scenario(ScenarioError {
            file: file.to_owned(),
            line,
            column,
            message,
        })
    };
    check_toml(text).map_err(|error| at(error.at, error.to_string()))?;
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        at(start, one_line(error.message()))
    })
}

struct Page<'a> {
    options: &'a Options,
    bar: ProgressBar,
    body: String,
    /// Kernels that the results come from, in order of appearance.
    kernels: Vec<String>,
    failures: usize,
}

impl<'a> Page<'a> {
    fn new(options: &'a Options, runs: usize) -> Self {
        Self {
            options,
            bar: crate::progress::bar(options.progress, "tables", runs as u64),
            body: String::new(),
            kernels: Vec::new(),
            failures: 0,
        }
    }

    fn finish(&mut self, document: &Document) -> String {
        let title = document.title.as_deref();
        let mut page = format!("# {}\n\n", title.unwrap_or("Published results and ours"));
        match &document.introduction {
            Some(words) => page.push_str(&format!("{}\n", words.trim())),
            None => page.push_str(
                "Written by `make tables` (`thalweg lab tables`); not to be edited. Goodput in Mbit/s, \
                 medians over the connections of a run. What stands in brackets after a ratio of ours \
                 is its 95 % interval (percentile bootstrap over the connections). Beneath each table \
                 stand the commands that made it.\n",
            ),
        }
        if !self.kernels.is_empty() {
            page.push_str("\nKernels:\n\n");
            for kernel in &self.kernels {
                page.push_str(&format!("- {kernel}\n"));
            }
        }
        page.push_str(&self.body);
        page
    }

    fn head(&mut self, head: &Head) {
        let Head {
            title,
            source,
            note,
        } = head;
        let _ = write!(self.body, "\n## {title}\n\n");
        if let Some(source) = source {
            let _ = write!(self.body, "Published: {source}.\n\n");
        }
        let _ = write!(self.body, "{}\n\n", note.trim());
    }

    fn tuned(&mut self, head: &Head, rows: &[TunedRow]) -> Result<(), Error> {
        self.head(head);
        self.body.push_str(
            "| condition | published: default | tuned | ratio | share | \
             ours: default | classic | thalweg | thalweg, last half | ratio | share |\n\
             |---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        let mut foot = Vec::new();
        for row in rows {
            let modes = ["baseline", "classic", "thalweg"];
            let given = self.run(&row.run, &modes, &mut foot)?;
            let PublishedTuned {
                baseline,
                tuned,
                share,
            } = &row.published;
            let published = [
                mbits(*baseline),
                mbits(*tuned),
                ratio(*tuned, *baseline),
                share.clone(),
            ];
            let ours = match &given {
                Ok(result) => {
                    let goodput = |mode| median_mbits(&goodputs(result, mode));
                    let (all, default) =
                        (goodputs(result, "thalweg"), goodputs(result, "baseline"));
                    vec![
                        median_mbits(&default),
                        goodput("classic"),
                        median_mbits(&all),
                        median_mbits(last_half(&all)),
                        own_ratio(last_half(&all), last_half(&default)),
                        most_frequent_arm(result, "thalweg"),
                    ]
                }
                Err(_) => vec!["not run".to_owned(); 6],
            };
            self.row(&row.condition, &[&published[..], &ours].concat());
        }
        self.foot(foot);
        Ok(())
    }

    fn kernels(&mut self, head: &Head, cpu: bool, rows: &[KernelsRow]) -> Result<(), Error> {
        self.head(head);
        let (columns, line) = match cpu {
            true => (
                " s of processor a gigabit: native | in a process | of that its kernel |",
                "---|---|---|",
            ),
            false => ("", ""),
        };
        let _ = write!(
            self.body,
            "| condition | published: native | in a process | ratio | \
             ours: native | in a process | ratio |{columns}\n|---|---|---|---|---|---|---|{line}\n",
        );
        let mut foot = Vec::new();
        for row in rows {
            let modes = [row.mode.as_str()];
            let native = self.run(&row.native, &modes, &mut foot)?;
            let userspace = self.run(&row.userspace, &modes, &mut foot)?;
            let ours = |given: &Given| match given {
                Ok(result) => goodputs(result, &row.mode),
                Err(_) => Vec::new(),
            };
            let published = row.published.as_ref();
            let published = [
                published.map(|it| it.native),
                published.map(|it| it.userspace),
            ];
            let mut cells = vec![
                mbits(published[0]),
                mbits(published[1]),
                ratio(published[1], published[0]),
                shown(&native, &row.mode),
                shown(&userspace, &row.mode),
                own_ratio(&ours(&userspace), &ours(&native)),
            ];
            if cpu {
                cells.extend([
                    cpu_a_gigabit(&native, &row.mode, "machine_s"),
                    cpu_a_gigabit(&userspace, &row.mode, "machine_s"),
                    cpu_a_gigabit(&userspace, &row.mode, "stack_s"),
                ]);
            }
            self.row(&row.condition, &cells);
        }
        self.foot(foot);
        Ok(())
    }

    fn grid(&mut self, head: &Head, columns: &[String], rows: &[GridRow]) -> Result<(), Error> {
        self.head(head);
        let line = "|---".repeat(columns.len() + 1);
        let _ = writeln!(
            self.body,
            "| condition | {} |\n{line}|",
            columns.join(" | ")
        );
        let mut foot = Vec::new();
        for row in rows {
            let mut cells = Vec::new();
            for cell in &row.cell {
                let run = Run {
                    scenario: cell.scenario.clone(),
                    backend: cell.backend.clone(),
                    connections: cell.connections,
                };
                let given = self.run(&run, &[cell.mode.as_str()], &mut foot)?;
                cells.push(shown(&given, &cell.mode));
            }
            self.row(&row.condition, &cells);
        }
        self.foot(foot);
        Ok(())
    }

    fn row(&mut self, condition: &str, cells: &[String]) {
        let _ = writeln!(self.body, "| {condition} | {} |", cells.join(" | "));
    }

    fn foot(&mut self, lines: Vec<String>) {
        self.body.push('\n');
        for line in lines {
            self.body.push_str(&line);
        }
    }

    /// The result of a run, made now unless it is there already.
    fn run(&mut self, run: &Run, modes: &[&str], foot: &mut Vec<String>) -> Result<Given, Error> {
        let folder = self.options.tables.parent().unwrap_or(Path::new("."));
        let scenario = folder.join(&run.scenario);
        let mut arguments = vec![
            "lab".to_owned(),
            "run".to_owned(),
            scenario.display().to_string(),
            "--backend".to_owned(),
            run.backend.clone(),
            "--connections".to_owned(),
            run.connections.to_string(),
        ];
        for mode in modes {
            arguments.extend(["--mode".to_owned(), (*mode).to_owned()]);
        }
        let parsed = Scenario::load(&scenario)?;
        let mut beside = String::new();
        for policy in &parsed.policies {
            beside.push_str(&policy.text);
        }
        for file in parsed.arms.iter().filter_map(|arm| arm.file.as_deref()) {
            beside.push_str(&digest(file));
        }
        let inputs = read_text(&scenario)? + &beside;
        let given = self.made(&slug(run, modes), arguments, &inputs, foot)?;
        if let Ok(result) = &given
            && let Some(kernel) = result["environment"]["kernel"].as_str()
        {
            push_new(&mut self.kernels, format!("{}: {kernel}", run.backend));
            if let Some(stack) = result["environment"]["stack"].as_str() {
                push_new(&mut self.kernels, format!("in a process: {stack}"));
            }
        }
        Ok(given)
    }

    /// The result of a command that takes `--out`, made now unless it is there already. `inputs`
    /// is what of files it depends on.
    fn made(
        &mut self,
        name: &str,
        mut arguments: Vec<String>,
        inputs: &str,
        foot: &mut Vec<String>,
    ) -> Result<Given, Error> {
        self.bar.inc(1);
        let directory = self.options.cache.join(name);
        let command = format!("thalweg {}", arguments.join(" "));
        arguments.extend(["--out".to_owned(), directory.display().to_string()]);

        let stamp = format!("{} {command}\n{inputs}", env!("CARGO_PKG_VERSION"));
        let stamp_file = directory.join("stamp");
        let results = directory.join("results.json");
        let line = format!("- `{command}`");
        if fs::read_to_string(&stamp_file).ok().as_deref() != Some(&stamp) || !results.exists() {
            self.bar.set_message(command.clone());
            match fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io("cannot clear", directory)(error));
                }
                _ => {}
            }
            if let Err(why) = self.start(&arguments)? {
                self.failures += 1;
                push_new(foot, format!("{line}: not run: {why}\n"));
                return Ok(Err(why));
            }
            fs::write(&stamp_file, stamp).map_err(Error::io("cannot write", stamp_file))?;
        }
        let bytes = fs::read(&results).map_err(Error::io("cannot read", &results))?;
        let result: Value = serde_json::from_slice(&bytes)
            .map_err(|error| Error::io("cannot read", &results)(error.into()))?;
        push_new(foot, format!("{line}\n"));
        Ok(Ok(result))
    }

    /// Starts `lab run`; the inner error says in words why it could not be done.
    fn start(&self, arguments: &[String]) -> Result<Result<(), String>, Error> {
        interrupt::check()?;
        let mut command = Command::new(&self.options.binary);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut run = Process::spawn(&mut command)?;
        let mut stderr = run.child_mut().stderr.take().expect("it is piped");
        // Beside the waiting: a full pipe would hold the run up.
        let words = thread::spawn(move || {
            let mut words = Vec::new();
            stderr.read_to_end(&mut words).map(|_| words)
        });
        let status = loop {
            match run.wait_until(Instant::now() + HOUR, OnSignal::Fail) {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(error) => {
                    run.terminate(PATIENCE);
                    return Err(error);
                }
            }
        };
        // A missed expectation is a result, too.
        if status.success() || status.code() == Some(MISSED) {
            return Ok(Ok(()));
        }
        let words = words.join().expect("reading does not panic");
        let words = words.map_err(Error::io(
            "cannot read what is said by",
            &self.options.binary,
        ))?;
        let words = String::from_utf8_lossy(&words);
        let last = words.trim().lines().last().unwrap_or_default();
        Ok(Err(format!("{} ({status})", last.trim())))
    }
}

/// Time that a run has to clean up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Runs are waited for by the hour.
const HOUR: Duration = Duration::from_secs(3600);
/// The exit code of a run whose expectations were not all met.
const MISSED: i32 = 5;

/// What tells the present content of a file from another.
fn digest(file: &Path) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    fs::read(file).unwrap_or_default().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn push_new(list: &mut Vec<String>, item: String) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Name of a run's directory.
fn slug(run: &Run, modes: &[&str]) -> String {
    let stem = run.scenario.file_stem().unwrap_or_default();
    let modes: Vec<String> = modes.iter().map(|mode| mode.replace(':', "-")).collect();
    format!(
        "{}-{}-{}",
        stem.to_string_lossy(),
        run.backend,
        modes.join("-")
    )
}

fn connections<'v>(result: &'v Value, mode: &str) -> &'v [Value] {
    result["scenarios"][0]["modes"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|entry| entry["mode"] == mode)
        .and_then(|entry| entry["connections"].as_array())
        .map_or(&[], Vec::as_slice)
}

/// Goodputs of a mode's connections in order, bit/s.
fn goodputs(result: &Value, mode: &str) -> Vec<f64> {
    connections(result, mode)
        .iter()
        .filter_map(|connection| connection["goodput_bps"].as_f64())
        .collect()
}

/// The median over the connections of a mode: processor time over what was received, s a
/// gigabit.
fn cpu_a_gigabit(given: &Given, mode: &str, whose: &str) -> String {
    let Ok(result) = given else {
        return "not run".to_owned();
    };
    let traffic = &result["scenarios"][0]["scenario"]["traffic"];
    let each = |connection: &Value| {
        let gigabits = connection["goodput_bps"].as_f64()? * traffic["duration"].as_f64()? / 1e9;
        let cpu_s = connection["cpu"][whose].as_f64()?;
        (gigabits > 0.0).then_some(cpu_s / gigabits)
    };
    let all: Vec<f64> = connections(result, mode).iter().filter_map(each).collect();
    stats::median(&all).map_or_else(|| "–".to_owned(), |median| format!("{median:.3}"))
}

fn last_half(all: &[f64]) -> &[f64] {
    &all[all.len() / 2..]
}

fn median_mbits(goodputs: &[f64]) -> String {
    mbits(stats::median(goodputs).map(|bits| bits / 1e6))
}

fn shown(given: &Given, mode: &str) -> String {
    match given {
        Ok(result) => median_mbits(&goodputs(result, mode)),
        Err(_) => "not run".to_owned(),
    }
}

/// The ratio of two medians, with the interval of the bootstrap.
fn own_ratio(ours: &[f64], base: &[f64]) -> String {
    if ours.is_empty() || base.is_empty() {
        return "–".to_owned();
    }
    let divide = |base: f64, ours: f64| ours / base;
    let options = compare::Options::default();
    let (low, high) = compare::interval(base, ours, &options, divide);
    let point = ratio(stats::median(ours), stats::median(base));
    if point == "–" {
        return point;
    }
    format!("{point} [{low:.2} … {high:.2}]")
}

/// "bbr 52/60".
fn most_frequent_arm(result: &Value, mode: &str) -> String {
    let all = connections(result, mode);
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    for arm in all
        .iter()
        .filter_map(|connection| connection["arm"].as_str())
    {
        *counts.entry(arm).or_default() += 1;
    }
    match counts.into_iter().max_by_key(|(_, count)| *count) {
        Some((arm, count)) => format!("{arm} {count}/{}", all.len()),
        None => "–".to_owned(),
    }
}

fn mbits(value: Option<f64>) -> String {
    match value {
        Some(value) if value >= 10.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.1}"),
        None => "–".to_owned(),
    }
}

fn ratio(value: Option<f64>, base: Option<f64>) -> String {
    match (value, base) {
        (Some(value), Some(base)) if base > 0.0 => format!("{:.2} ×", value / base),
        _ => "–".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TABLES: &str = r#"
[[table]]
kind = "tuned"
title = "T"
source = "S"
note = "N"
[[table.row]]
condition = "loss"
published = { baseline = 100, tuned = 250, share = "bbr 6/7" }
run = { scenario = "s.toml", backend = "host", connections = 4 }

[[table]]
kind = "grid"
title = "T2"
source = "S"
note = "N"
columns = ["default", "learned"]
[[table.row]]
condition = "anything"
cell = [
    { mode = "baseline", scenario = "s.toml", backend = "uml", connections = 4 },
    { mode = "thalweg", scenario = "s.toml", backend = "uml", connections = 4 },
]
"#;

    /// A directory with tables, a scenario and a stand-in for this program.
    fn bed(script: &str) -> (tempfile::TempDir, Options) {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("tables.toml"), TABLES).unwrap();
        fs::write(at("s.toml"), "name = \"s\"\n").unwrap();
        fs::write(at("thalweg"), format!("#!/bin/sh\n{script}")).unwrap();
        fs::set_permissions(at("thalweg"), fs::Permissions::from_mode(0o755)).unwrap();
        let options = Options {
            tables: at("tables.toml"),
            cache: at("cache"),
            page: at("results.md"),
            binary: at("thalweg"),
            progress: false,
        };
        (directory, options)
    }

    fn result() -> String {
        let connection = |goodput: f64, arm: &str| json!({"goodput_bps": goodput, "arm": arm});
        let mode = |mode: &str, goodputs: [f64; 4]| {
            json!({"mode": mode, "connections":
                goodputs.map(|g| connection(g * 1e6, if g > 100.0 { "bbr" } else { "cubic" }))})
        };
        json!({
            "environment": {"kernel": "Linux 0.0"},
            "scenarios": [{"modes": [
                mode("baseline", [50.0, 50.0, 50.0, 50.0]),
                mode("thalweg", [50.0, 200.0, 200.0, 300.0]),
            ]}],
        })
        .to_string()
    }

    #[test]
    fn a_page_is_made_of_results_and_made_again_without_runs() {
        // The stand-in counts its calls and writes the result where --out says.
        let script = format!(
            "echo x >>\"$(dirname \"$0\")/calls\"\nfor last; do :; done\nmkdir -p \"$last\"\n\
             cat >\"$last/results.json\" <<'E'\n{}\nE\n",
            result()
        );
        let (directory, options) = bed(&script);
        assert_eq!(make(&options).unwrap(), 0);
        let page = fs::read_to_string(&options.page).unwrap();
        assert!(
            page.contains(
                "| loss | 100 | 250 | 2.50 × | bbr 6/7 | 50 | – | 200 | 250 | 5.00 × [4.00 … 6.00] | bbr 3/4 |"
            ),
            "{page}"
        );
        assert!(
            page.contains("--backend host --connections 4 --mode baseline"),
            "{page}"
        );
        assert!(page.contains("- host: Linux 0.0"), "{page}");
        assert!(
            page.contains(
                "| condition | default | learned |\n|---|---|---|\n| anything | 50 | 200 |"
            ),
            "{page}"
        );

        assert_eq!(make(&options).unwrap(), 0);
        let calls = || {
            fs::read_to_string(directory.path().join("calls"))
                .unwrap()
                .lines()
                .count()
        };
        assert_eq!(calls(), 3, "a result that is there was made again");
        fs::write(directory.path().join("s.toml"), "name = \"other\"\n").unwrap();
        assert_eq!(make(&options).unwrap(), 0);
        assert_eq!(calls(), 6, "a changed scenario was not run again");
    }

    #[test]
    fn a_picture_lies_beside_the_page_and_a_changed_policy_runs_again() {
        let flow = json!({
            "round": 0, "class": "rpc-10kb", "part_bps": 2e6, "fct_us": 7e3,
            "retransmits": 1, "sent_segments": 4,
        });
        let result = json!({
            "environment": {"kernel": "Linux 0.0"},
            "scenarios": [{"modes": [{"mode": "policy:p", "connections": [flow]}]}],
        });
        let script = format!(
            "echo x >>\"$(dirname \"$0\")/calls\"\nfor last; do :; done\nmkdir -p \"$last\"\n\
             cat >\"$last/results.json\" <<'E'\n{result}\nE\n"
        );
        let (directory, options) = bed(&script);
        let at = |name: &str| directory.path().join(name);
        let tables = "[[table]]\nkind = \"incast\"\ntitle = \"T\"\nsource = \"S\"\nnote = \"N\"\n\
                      across = \"X\"\npicture = \"p.svg\"\n\
                      compared = [{ mode = \"policy:p\", name = \"with\" }]\n\
                      [[table.row]]\nacross = 4\n\
                      run = { scenario = \"s.toml\", backend = \"host\", connections = 1 }\n";
        fs::write(at("tables.toml"), tables).unwrap();
        let policy = "name = \"p\"\n[[rule]]\nname = \"r\"\nset = { cwnd_clamp = 10 }\n";
        fs::write(at("p.toml"), policy).unwrap();
        let scenario = "name = \"s\"\n[[policy]]\nname = \"p\"\nfile = \"p.toml\"\n";
        fs::write(at("s.toml"), scenario).unwrap();
        let calls = || fs::read_to_string(at("calls")).unwrap().lines().count();

        assert_eq!(make(&options).unwrap(), 0);
        let page = fs::read_to_string(&options.page).unwrap();
        assert!(page.contains("![T](p.svg)"), "{page}");
        let row = "| 4 | with | 2 [2 … 2] | – | 2.0 [2.0 … 2.0] | – | 25.000 [25.000 … 25.000] |";
        assert!(page.contains(row), "{page}");
        let picture = fs::read_to_string(at("p.svg")).unwrap();
        assert!(picture.contains(">with</text>"), "{picture}");
        assert_eq!((make(&options).unwrap(), calls()), (0, 1));
        fs::write(at("p.toml"), policy.replace("10", "20")).unwrap();
        assert_eq!((make(&options).unwrap(), calls()), (0, 2));
    }

    #[test]
    fn kernels_have_processor_time_and_timers_a_picture() {
        let connection = json!({
            "goodput_bps": 5e8, "cpu": { "machine_s": 2.0, "stack_s": 1.5 },
        });
        let result = json!({
            "environment": {"kernel": "Linux 0.0", "stack": "user-mode Linux 0.1"},
            "scenarios": [{
                "scenario": {"traffic": {"duration": 4}},
                "modes": [{"mode": "fixed:bbr", "connections": [connection]}],
            }],
            "timers": {"kernel_us": [1.0, 4.0, 90.0], "program_us": [5.0, 6.0, 7.0]},
        });
        let script = format!(
            "for last; do :; done\nmkdir -p \"$last\"\n\
             cat >\"$last/results.json\" <<'E'\n{result}\nE\n"
        );
        let (directory, options) = bed(&script);
        let tables = r#"
[[table]]
kind = "kernels"
title = "T"
note = "N"
cpu = true
[[table.row]]
condition = "c"
mode = "fixed:bbr"
native = { scenario = "s.toml", backend = "host", connections = 1 }
userspace = { scenario = "s.toml", backend = "link", connections = 1 }
[[table]]
kind = "timers"
title = "late"
note = "N"
picture = "late.svg"
[[table.row]]
condition = "native"
[[table.row]]
condition = "busy"
options = ["--early", "10"]
"#;
        fs::write(directory.path().join("tables.toml"), tables).unwrap();
        assert_eq!(make(&options).unwrap(), 0);
        let page = fs::read_to_string(&options.page).unwrap();
        for line in [
            "| c | – | – | – | 500 | 500 | 1.00 × [1.00 … 1.00] | 1.000 | 1.000 | 0.750 |",
            "| native | 4.0 | 90 | 90 | 90 | 6.0 | 7.0 | 7.0 | 7.0 |",
            "- `thalweg lab timers --early 10`",
            "![late](late.svg)",
            "- in a process: user-mode Linux 0.1",
        ] {
            assert!(page.contains(line), "{page}");
        }
        let picture = fs::read_to_string(directory.path().join("late.svg")).unwrap();
        assert!(picture.contains(">busy</text>"), "{picture}");
    }

    #[test]
    fn what_cannot_be_run_is_said_and_tried_again() {
        let (_directory, options) = bed("echo 'thalweg: this kernel has no netem' >&2\nexit 3\n");
        for _ in 0..2 {
            assert_eq!(make(&options).unwrap(), 3);
            let page = fs::read_to_string(&options.page).unwrap();
            assert!(page.contains("no netem"), "{page}");
            assert!(page.contains("| not run |"), "{page}");
        }
    }

    #[test]
    fn a_fault_in_the_list_has_a_place() {
        let (_directory, options) = bed("exit 0\n");
        fs::write(
            &options.tables,
            TABLES.replace("connections = 4", "connections = \"x\""),
        )
        .unwrap();
        let error = make(&options).unwrap_err().to_string();
        assert!(error.contains("tables.toml:"), "{error}");
        assert!(!options.page.exists());
    }
}
