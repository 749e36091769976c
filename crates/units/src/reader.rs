//! Takes keys out of TOML: every fault is found, and each has its place.

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fault::{Fault, Faults, Position, one_line, position};
use crate::memory::{TooMuch, check_toml_within};
use crate::near::nearest;

/// Most faults that are told.
const FAULTS_MAX: usize = 100;

/// The whole text, and what was found wrong with it.
pub struct Document<'a> {
    /// Serves for messages alone.
    pub file: &'a Path,
    /// The text.
    pub text: &'a str,
    /// Where each line begins.
    lines: Vec<u32>,
    faults: RefCell<Vec<Fault>>,
}

impl<'a> Document<'a> {
    /// A text without faults so far.
    pub fn new(file: &'a Path, text: &'a str) -> Self {
        // A file has 16 MiB at most, and perhaps as many lines: of the size that is needed, since
        // one that grows has up to twice that.
        let mut lines = Vec::with_capacity(text.matches('\n').count() + 1);
        lines.push(0);
        lines.extend(text.match_indices('\n').map(|(at, _)| at as u32 + 1));
        Self {
            file,
            text,
            lines,
            faults: RefCell::default(),
        }
    }

    /// Line and column of a byte.
    pub fn position(&self, at: usize) -> Position {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let line = self.lines.partition_point(|&start| start as usize <= at);
        // The first line begins at 0, so at least one does not begin after `at`.
        let start = self.lines[line - 1] as usize;
        Position {
            line,
            column: self.text[start..at].chars().count() + 1,
        }
    }

    /// Adds a fault.
    pub fn fault(
        &self,
        at: Position,
        key: Option<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        let mut faults = self.faults.borrow_mut();
        if faults.len() < FAULTS_MAX {
            faults.push(Fault {
                file: self.file.to_path_buf(),
                at,
                key,
                found: found.into(),
                expected: expected.into(),
            });
        } else if faults.len() == FAULTS_MAX {
            faults.push(Fault {
                file: self.file.to_path_buf(),
                at,
                key: None,
                found: format!("more than {FAULTS_MAX} faults"),
                expected: "fewer: the rest is not looked at".to_owned(),
            });
        }
    }

    /// Whether no more faults are told.
    pub fn is_full(&self) -> bool {
        self.faults.borrow().len() > FAULTS_MAX
    }

    /// Whether there is no fault so far.
    pub fn is_clean(&self) -> bool {
        self.faults.borrow().is_empty()
    }

    /// The faults, in the order of the text.
    pub fn take_faults(&self) -> Faults {
        let mut faults = self.faults.take();
        faults.sort_by_key(|fault| fault.at);
        Faults(faults)
    }
}

/// What a file holds as text; `file` serves for messages alone.
///
/// # Errors
/// The first byte that is not UTF-8.
pub fn text<'b>(bytes: &'b [u8], file: &Path) -> Result<&'b str, Faults> {
    std::str::from_utf8(bytes).map_err(|error| {
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        // The valid part is text by the contract of `valid_up_to`.
        let (line, column) = position(&String::from_utf8_lossy(valid), valid.len());
        let byte = rest.first().copied().unwrap_or_default();
        Faults(vec![Fault {
            file: file.to_path_buf(),
            at: Position { line, column },
            key: None,
            found: format!("the byte 0x{byte:02x}"),
            expected: "UTF-8 text".to_owned(),
        }])
    })
}

/// Longest piece of a text that is repeated in an error, in characters.
const QUOTE_MAX: usize = 60;
/// Most memory for one part while it is read, in bytes: a rule of 65,536 prefixes takes less.
const MEMORY_MAX: u64 = 64 << 20;

/// A part of a text that is TOML by itself. Places are those in it.
pub struct Reader<'a> {
    document: &'a Document<'a>,
    text: &'a str,
    /// Where it begins in the whole.
    start: usize,
}

/// The keys of one table that have not been taken yet.
pub struct Table<'s> {
    reader: &'s Reader<'s>,
    /// `rule "NAME": `, or empty for the root.
    label: String,
    /// Dotted name within the rule, with a dot at the end; empty for the rule itself.
    path: String,
    entries: DeTable<'s>,
    known: Vec<Known>,
    /// Where the table begins.
    pub at: usize,
}

/// A key that was asked for.
#[derive(Clone, Copy)]
struct Known {
    key: &'static str,
    is_table: bool,
}

impl<'a> Reader<'a> {
    /// A part of a text.
    pub fn new(document: &'a Document<'a>, part: Range<usize>) -> Self {
        Self {
            document,
            start: part.start,
            text: &document.text[part],
        }
    }

    /// The root table, unless the text is not TOML.
    pub fn root(&self) -> Option<Table<'_>> {
        if let Err(TooMuch { at, found }) = check_toml_within(self.text, MEMORY_MAX) {
            self.fault(at, None, found, TooMuch::EXPECTED);
            return None;
        }
        let (root, errors) = DeTable::parse_recoverable(self.text);
        // What follows on the same line is mostly a consequence of the first.
        let mut line = 0;
        for error in &errors {
            let span = error.span().unwrap_or(self.text.len()..self.text.len());
            let own = self.position(span.start).line;
            if std::mem::replace(&mut line, own) == own {
                continue;
            }
            let piece = self.text.get(span.clone()).unwrap_or_default();
            let message = one_line(error.message());
            let end = self.start + span.start >= self.document.text.len();
            let found = match piece.lines().next() {
                None | Some("") if end => "the end of the file".to_owned(),
                None | Some("") => "the end of the line".to_owned(),
                Some(piece) => quoted(piece),
            };
            self.fault(span.start, None, found, format!("valid TOML ({message})"));
        }
        let at = root.span().start;
        errors
            .is_empty()
            .then(|| self.table(String::new(), String::new(), root.into_inner(), at))
    }

    /// Keys of a table: `label` tells of what, `path` is its dotted name.
    pub fn table<'s>(
        &'s self,
        label: String,
        path: String,
        entries: DeTable<'s>,
        at: usize,
    ) -> Table<'s> {
        Table {
            reader: self,
            label,
            path,
            entries,
            known: Vec::new(),
            at,
        }
    }

    /// Line and column, in the whole text, of a byte of this part.
    pub fn position(&self, at: usize) -> Position {
        self.document.position(self.start + at)
    }

    /// Adds a fault.
    pub fn fault(
        &self,
        at: usize,
        key: Option<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.fault_at(self.position(at), key, found, expected);
    }

    /// The same, at a place in the whole text.
    pub fn fault_at(
        &self,
        at: Position,
        key: Option<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.document.fault(at, key, found, expected);
    }
}

impl<'s> Table<'s> {
    /// Who a fault is about: the rule, without the colon.
    pub fn label(&self) -> String {
        self.label.trim_end_matches(": ").to_owned()
    }

    /// Full name of a key of this table.
    pub fn key(&self, key: &str) -> String {
        format!("{}{}{key}", self.label, self.path)
    }

    /// Whether no key is left.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A fault of a key of this table, or of the table.
    pub fn fault(
        &self,
        at: usize,
        key: Option<&str>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        let name = match key {
            Some(key) => self.key(key),
            None => self.key("").trim_end_matches(['.', ':', ' ']).to_owned(),
        };
        let name = (!name.is_empty()).then_some(name);
        self.reader.fault(at, name, found, expected);
    }

    /// A fault of the table as a whole.
    pub fn fault_here(&self, found: &str, expected: &str) {
        self.fault(self.at, None, found, expected);
    }

    /// Takes a key with whatever it has.
    pub fn take(&mut self, key: &'static str) -> Option<Spanned<DeValue<'s>>> {
        self.known.push(Known {
            key,
            is_table: false,
        });
        self.entries.remove(key)
    }

    /// Takes everything, in the order of the text: names, where they stand, values.
    pub fn drain(&mut self) -> Vec<(String, usize, Spanned<DeValue<'s>>)> {
        let entries = std::mem::take(&mut self.entries);
        let mut all: Vec<_> = entries
            .into_iter()
            .map(|(key, value)| {
                let at = key.span().start;
                (key.into_inner().into_owned(), at, value)
            })
            .collect();
        all.sort_by_key(|(_, at, _)| *at);
        all
    }

    /// Looks at the value of a key that has not been taken yet.
    pub fn peek(&self, key: &str) -> Option<&DeValue<'s>> {
        self.entries.get(key).map(Spanned::get_ref)
    }

    /// Takes a table.
    pub fn sub(&mut self, key: &'static str) -> Option<Table<'s>> {
        let value = self.take(key);
        if let Some(known) = self.known.last_mut() {
            known.is_table = true;
        }
        let value = value?;
        let at = value.span().start;
        match value.into_inner() {
            DeValue::Table(entries) => Some(self.reader.table(
                self.label.clone(),
                format!("{}{key}.", self.path),
                entries,
                at,
            )),
            other => {
                let expected = match self.header(key) {
                    header if header == key => "a table".to_owned(),
                    header => format!("a table, {header}"),
                };
                self.fault(at, Some(key), describe(&other), expected);
                None
            }
        }
    }

    /// Takes a value that may be absent.
    pub fn optional<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'_>) -> Option<T>,
        expected: &str,
    ) -> Option<T> {
        let value = self.take(key)?;
        let parsed = parse(value.get_ref());
        if parsed.is_none() {
            let found = describe(value.get_ref());
            self.fault(value.span().start, Some(key), found, expected);
        }
        parsed
    }

    /// Takes a value that must be there.
    pub fn required<T>(
        &mut self,
        key: &'static str,
        what: &str,
        parse: impl Fn(&DeValue<'_>) -> Option<T>,
        expected: &str,
    ) -> Option<T> {
        if !self.entries.contains_key(key) {
            self.take(key);
            self.fault(
                self.at,
                Some(key),
                "nothing",
                format!("{what} ({expected})"),
            );
            return None;
        }
        self.optional(key, parse, expected)
    }

    /// Takes one value or a list of them. `parse` may know better what was expected.
    pub fn list<T: PartialEq>(
        &mut self,
        key: &'static str,
        most: usize,
        expected: &str,
        parse: impl Fn(&DeValue<'_>) -> Result<T, Option<String>>,
    ) -> Vec<T> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let at = value.span().start;
        let items = match value.into_inner() {
            DeValue::Array(items) => items.into_iter().collect(),
            one => vec![Spanned::new(at..at, one)],
        };
        if items.is_empty() {
            self.fault(at, Some(key), "an empty list", expected);
        }
        if items.len() > most {
            let found = format!("a list of {}", items.len());
            self.fault(at, Some(key), found, format!("at most {most}"));
        }
        let mut all: Vec<T> = Vec::new();
        for item in &items {
            let at = item.span().start;
            match parse(item.get_ref()) {
                Ok(parsed) => all.push(parsed),
                Err(better) => {
                    let expected = better.as_deref().unwrap_or(expected);
                    self.fault(at, Some(key), describe(item.get_ref()), expected);
                }
            }
        }
        all
    }

    /// How the header of a table within this one is written.
    fn header(&self, key: &str) -> String {
        if self.label.is_empty() && self.path.is_empty() {
            format!("[{key}]")
        } else {
            key.to_owned()
        }
    }

    /// Refuses the keys that nobody asked for.
    pub fn finish(mut self) {
        let known = std::mem::take(&mut self.known);
        let names: Vec<String> = known
            .iter()
            .map(|known| match known.is_table {
                true => self.header(known.key),
                false => known.key.to_owned(),
            })
            .collect();
        for (name, at, _) in self.drain() {
            let mut expected = format!("one of {}", names.join(", "));
            if let Some(near) = nearest(&name, known.iter().map(|known| known.key)) {
                expected += &format!("; perhaps `{near}`");
            }
            let found = format!("the unknown key {}", quoted(&name));
            self.fault(at, None, found, expected);
        }
    }
}

/// A whole number.
pub fn whole(value: &DeValue<'_>) -> Option<i64> {
    match value {
        DeValue::Integer(value) => i64::from_str_radix(value.as_str(), value.radix()).ok(),
        _ => None,
    }
}

/// A value in words.
pub fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string {}", quoted(text)),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(date) => format!("the date {date}"),
        DeValue::Array(items) => format!("a list of {}", items.len()),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// A piece of the text in quotes, control characters escaped, cut where it is long.
pub fn quoted(piece: &str) -> String {
    let mut short: String = piece.chars().take(QUOTE_MAX).collect();
    if short.len() < piece.len() {
        short.push('…');
    }
    format!("{short:?}")
}
