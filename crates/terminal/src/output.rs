//! Standard output: tables, figures for readers, and closed pipes.

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use serde::Serialize;
use serde_json::Value;
pub use thalweg_units::figures::bytes_text;
use thalweg_units::figures::{self, three_digits};
use thalweg_units::{Faults, one_line, printable, printable_json, printable_lines};

use crate::failure::Failure;
use crate::options::Format;

/// Largest width of a table.
pub const WIDTH: u16 = 100;

/// Writes text to standard output. Text of others may be anywhere in it: what a reader would not see is
/// escaped.
pub fn print(text: &str) -> Result<()> {
    write_bytes(printable_lines(text).as_bytes())
}

/// Writes a JSON document to standard output, with what a reader would not see escaped.
fn print_document(document: &str) -> Result<()> {
    write_bytes(printable_json(document).as_bytes())
}

/// The form of a document in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Json {
    /// For people as well.
    Pretty,
    /// In one line.
    Line,
    /// Each entry of a list in one line.
    Lines,
}

thread_local! {
    static JSON: Cell<Json> = const { Cell::new(Json::Pretty) };
    static CAPTURED: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Chooses the form of documents.
pub fn set_json_form(form: Json) {
    JSON.set(form);
}

/// Collects the standard output of a function instead of writing it.
pub fn capture_output<T>(write: impl FnOnce() -> T) -> (String, T) {
    CAPTURED.set(Some(Vec::new()));
    let result = write();
    let bytes = CAPTURED.take().unwrap_or_default();
    (String::from_utf8_lossy(&bytes).into_owned(), result)
}

/// Writes a warning to standard error.
pub fn print_warning(text: &str) {
    eprintln!("warning: {}", printable(text));
}

/// Writes bytes to standard output.
pub fn write_bytes(bytes: &[u8]) -> Result<()> {
    let is_captured = CAPTURED.with_borrow_mut(|captured| match captured {
        Some(captured) => {
            captured.extend_from_slice(bytes);
            true
        }
        None => false,
    });
    if is_captured {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::OutputClosed.into()),
        written => written.context("cannot write to standard output"),
    }
}

/// Writes a value as JSON for people and programs.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    match JSON.get() {
        Json::Pretty => print_document(&(serde_json::to_string_pretty(value)? + "\n")),
        Json::Line => print_json_line(value),
        Json::Lines => print_document(&json_lines(serde_json::to_value(value)?)),
    }
}

/// A line for each entry of a list, or of the list that a document consists of; one for any other.
fn json_lines(document: Value) -> String {
    let entries = match document {
        Value::Array(entries) => entries,
        Value::Object(keys) if keys.len() == 1 && keys.values().all(Value::is_array) => {
            let lists = keys.into_iter().map(|(_, list)| list);
            lists
                .flat_map(|list| list.as_array().cloned())
                .flatten()
                .collect()
        }
        other => vec![other],
    };
    entries.iter().map(|entry| format!("{entry}\n")).collect()
}

/// Shows a value: as JSON where that was asked for, otherwise as text.
pub fn show_value(
    format: &Format,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<()> {
    match format.json {
        true => print_json(value),
        false => print(&text()),
    }
}

/// Writes a value as one line of JSON.
pub fn print_json_line(value: &impl Serialize) -> Result<()> {
    print_document(&(serde_json::to_string(value)? + "\n"))
}

/// Draws a table without borders. Columns in `numbers` (by position) align right. The first column
/// is not wrapped unless it would take more than half of the width.
pub fn table(header: &[&str], numbers: &[usize], rows: Vec<Vec<String>>) -> String {
    let columns = 0..header.len();
    let widest = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count());
        cells.chain([header[column].len()]).max().unwrap_or(0)
    };
    let first = widest(0);
    let roomy = columns.map(widest).sum::<usize>() + 2 * header.len() <= usize::from(WIDTH);
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(header)
        .add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, if roomy { 2 } else { 1 }));
    }
    for &column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let constraint = if roomy || first <= usize::from(WIDTH / 2) {
        ColumnConstraint::ContentWidth
    } else {
        ColumnConstraint::UpperBoundary(Width::Fixed(WIDTH / 2))
    };
    if let Some(first) = table.column_mut(0) {
        first.set_constraint(constraint);
    }
    let drawn = table.to_string();
    drawn
        .lines()
        .flat_map(|line| [line.trim_end(), "\n"])
        .collect()
}

/// A table of two columns: names and values.
pub fn pairs_table(rows: Vec<(&str, String)>) -> String {
    let width = rows
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0);
    rows.iter()
        .map(|(name, value)| format!("{name:width$}  {value}\n"))
        .collect()
}

/// A text in lines of at most `width` characters, broken at spaces where there are any. The first
/// line keeps its indentation.
pub fn wrap_text(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let words = text.trim_start_matches(' ');
    let indentation = (text.len() - words.len()).min(width - 1);
    let mut lines = vec![" ".repeat(indentation.saturating_sub(1))];
    for word in words.split(' ') {
        let mut letters: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().expect("there is a line");
            let used = line.chars().count();
            let gap = usize::from(used > 0);
            if used + gap + letters.len() <= width {
                line.extend(std::iter::repeat_n(' ', gap).chain(letters));
                break;
            }
            if used == 0 {
                line.extend(letters.drain(..width));
            }
            lines.push(String::new());
        }
    }
    lines
}

/// A number of things: "1 rule", "2 rules".
pub fn count_text(number: impl ToString, what: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A fault of a file, for `--json`.
#[derive(Serialize)]
pub struct Fault {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// The key, if one has the fault.
    pub key: Option<String>,
    /// The value found.
    pub found: String,
    /// The values accepted.
    pub expected: String,
}

/// All faults of a file, for `--json`.
pub fn json_faults(faults: &Faults) -> Vec<Fault> {
    let faults = faults.0.iter().map(|fault| Fault {
        line: fault.at.line,
        column: fault.at.column,
        key: fault.key.clone(),
        found: one_line(&fault.found),
        expected: fault.expected.clone(),
    });
    faults.collect()
}

/// A rate in bytes per second as bits per second with a unit, three figures.
pub fn rate_text(bytes_per_s: f64) -> String {
    figures::rate_text(bytes_per_s * 8.0)
}

/// Microseconds as milliseconds.
pub fn milliseconds_text(us: u32) -> String {
    format!("{} ms", three_digits(f64::from(us) / 1e3))
}

/// A span of time in its two largest units.
pub fn span_text(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Milliseconds since 1970 as UTC.
pub fn time_text(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(
        |_| ms.to_string(),
        |time| time.strftime("%F %T%.3f").to_string(),
    )
}

/// A share as a percentage.
pub fn percent_text(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// A rate in bytes per second as a bare number of Mbit/s, three figures.
pub fn megabits_text(bytes_per_s: f64) -> String {
    three_digits(bytes_per_s * 8.0 / 1e6)
}

/// A number with at most three decimal places, none of them a zero at the end.
pub fn decimal_text(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(rate_text(125_000_000.0), "1.00 Gbit/s");
        assert_eq!(rate_text(1_249_000.0), "9.99 Mbit/s");
        assert_eq!(rate_text(124_962_500.0), "1.00 Gbit/s");
        assert_eq!(milliseconds_text(12_345), "12.3 ms");
        assert_eq!(span_text(59), "59 s");
        assert_eq!(span_text(3_725), "1 h 2 min");
        assert_eq!(span_text(90_000), "1 d 1 h");
        assert_eq!(time_text(0), "1970-01-01 00:00:00.000");
        assert_eq!(percent_text(0.0625), "6.2%");
        assert_eq!(decimal_text(1000.0 / 165.0), "6.061");
        assert_eq!(decimal_text(100.0), "100");
        assert_eq!(decimal_text(0.25), "0.25");
        assert_eq!(
            (count_text(1, "rule"), count_text(2, "rule")),
            ("1 rule".into(), "2 rules".into())
        );
    }

    #[test]
    fn long_texts_are_broken_at_spaces() {
        assert_eq!(wrap_text("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap_text("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrap_text("", 5), [""]);
        assert_eq!(wrap_text("  one  two three", 10), ["  one  two", "three"]);
        assert_eq!(wrap_text(" a", 1), ["a"]);
    }

    #[test]
    fn lists_are_lines_of_their_entries() {
        let list = serde_json::json!([{ "a": 1 }, { "a": 2 }]);
        let expected = "{\"a\":1}\n{\"a\":2}\n";
        assert_eq!(json_lines(list.clone()), expected);
        assert_eq!(json_lines(serde_json::json!({ "hosts": list })), expected);
        assert_eq!(
            json_lines(serde_json::json!({ "a": [1], "b": 2 })),
            "{\"a\":[1],\"b\":2}\n"
        );
        assert_eq!(json_lines(serde_json::json!([])), "");
        assert_eq!(json_lines(Value::Null), "null\n");
    }

    #[test]
    fn tables_fit_a_hundred_columns() {
        let long = "word ".repeat(40);
        let drawn = table(
            &["a", "b", "c"],
            &[2],
            vec![vec!["x".into(), long, "1".into()]],
        );
        assert!(drawn.lines().count() > 2);
        assert!(
            drawn.lines().all(|line| line.chars().count() <= 100),
            "{drawn}"
        );
    }

    #[test]
    fn a_long_name_leaves_the_numbers_in_one_line() {
        let row = |name: &str| vec![name.to_owned(), "98.7 ± 0.2".into(), "4.2 ± 0.1".into()];
        let drawn = table(
            &["controller", "FR %", "QL µs"],
            &[1, 2],
            vec![row("swift"), row(&"long".repeat(25))],
        );
        assert_eq!(drawn.matches("98.7 ± 0.2 4.2 ± 0.1").count(), 2, "{drawn}");
    }
}
