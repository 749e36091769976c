//! Takes keys out of a part of a policy.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use thalweg_units::memory::{TooMuch, check_toml_within};
use thalweg_units::one_line;

use super::document::Document;
use crate::error::Position;

/// Longest piece of a policy that is repeated in an error, in characters.
const QUOTE_MAX: usize = 60;
/// Most memory for one part while it is read, in bytes: a rule of 65,536 prefixes takes less.
const MEMORY_MAX: u64 = 64 << 20;

/// A part of a policy that is TOML by itself. Places are those in it.
pub(super) struct Reader<'a> {
    document: &'a Document<'a>,
    text: &'a str,
    /// Where it begins in the whole.
    start: usize,
}

/// The keys of one table that have not been taken yet.
pub(super) struct Table<'s> {
    reader: &'s Reader<'s>,
    /// `rule "NAME": `, or empty for the root.
    label: String,
    /// Dotted name within the rule, with a dot at the end; empty for the rule itself.
    path: String,
    entries: DeTable<'s>,
    known: Vec<&'static str>,
    /// Where the table begins.
    pub at: usize,
}

impl<'a> Reader<'a> {
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

    pub fn position(&self, at: usize) -> Position {
        self.document.position(self.start + at)
    }

    pub fn fault(
        &self,
        at: usize,
        key: Option<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.fault_at(self.position(at), key, found, expected);
    }

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

    pub fn fault_here(&self, found: &str, expected: &str) {
        self.fault(self.at, None, found, expected);
    }

    pub fn take(&mut self, key: &'static str) -> Option<Spanned<DeValue<'s>>> {
        self.known.push(key);
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

    /// Takes a table.
    pub fn sub(&mut self, key: &'static str) -> Option<Table<'s>> {
        let value = self.take(key)?;
        let at = value.span().start;
        match value.into_inner() {
            DeValue::Table(entries) => Some(self.reader.table(
                self.label.clone(),
                format!("{}{key}.", self.path),
                entries,
                at,
            )),
            other => {
                self.fault(at, Some(key), describe(&other), "a table");
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
            self.known.push(key);
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

    /// Refuses the keys that nobody asked for.
    pub fn finish(mut self) {
        let known: Vec<&str> = self.known.clone();
        for (name, at, _) in self.drain() {
            let found = format!("the unknown key {}", quoted(&name));
            self.fault(at, None, found, format!("one of {}", known.join(", ")));
        }
    }
}

pub(super) fn describe(value: &DeValue<'_>) -> String {
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
pub(super) fn quoted(piece: &str) -> String {
    let mut short: String = piece.chars().take(QUOTE_MAX).collect();
    if short.len() < piece.len() {
        short.push('…');
    }
    format!("{short:?}")
}
