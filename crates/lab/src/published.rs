//! The published results beside ours: `docs/measurements/results.md`.
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
use thalweg_process::Process;
use thalweg_process::interrupt::{self, OnSignal};
use thalweg_units::file::{Draft, read_text};
use thalweg_units::memory::check_toml;
use thalweg_units::with_suggestion;

use crate::compare;
use crate::error::Error;
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
        at(start, with_suggestion(error.message()))
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
                let home = std::env::var("HOME").unwrap_or_default();
                let said = without_home(&why, &home);
                push_new(foot, format!("{line}: not run: {said}\n"));
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
                    return Err(error.into());
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

/// A message for a page: the reader's home is another.
fn without_home(message: &str, home: &str) -> String {
    let home = home.trim_end_matches('/');
    if home.is_empty() {
        return message.to_owned();
    }
    message.replace(&format!("{home}/"), "~/")
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
#[path = "published_tests.rs"]
mod tests;
