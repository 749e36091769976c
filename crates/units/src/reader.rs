//! Takes keys out of TOML. Every fault is found and has its position.

mod asked;
mod document;
mod leaf;
mod value;

use std::ops::{Range, RangeInclusive};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fault::{Faults, Position, one_line};
use crate::memory::{MEMORY_MAX, TooMuch, check_toml};
use crate::near::nearest_word;
use crate::schema;

pub use asked::{asked_of, schema_of};
pub use document::{Document, decode_text};
pub use leaf::expected_form;
pub use value::{
    NAME, any_number, describe_value, file_name, name_form, quote_piece, whole_number,
};

/// Reads the root table of a text with `read`. It may return none only after it has reported a
/// fault.
///
/// # Errors
/// All faults, in the order of the text.
pub fn parse_toml<T>(
    text: &str,
    file: &Path,
    read: impl FnOnce(&mut Table<'_>) -> Option<T>,
) -> Result<T, Faults> {
    let document = Document::new(file, text);
    let reader = Reader {
        memory: MEMORY_MAX,
        ..Reader::new(&document, 0..text.len())
    };
    let value = reader.root().and_then(|mut root| {
        let value = read(&mut root);
        root.refuse_unknown_keys();
        value
    });
    value
        .filter(|_| document.is_clean())
        .ok_or_else(|| document.take_faults())
}

/// Memory limit for reading one part, in bytes: a rule of 65,536 prefixes takes less.
const PART_MAX: u64 = 64 << 20;

/// A part of a text that is TOML by itself. Positions are relative to it.
pub struct Reader<'a> {
    document: &'a Document<'a>,
    text: &'a str,
    /// Start in the whole text.
    start: usize,
    /// Memory limit for reading it, bytes.
    memory: u64,
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
    /// Number of the document's faults before this table was read.
    faults_before: usize,
    /// The value of `kind`, if the other keys depend on it.
    kind: Option<String>,
    /// Start of the table.
    pub at: usize,
}

/// The form of a key.
#[derive(Clone, Copy)]
enum Form {
    Value,
    Table,
    Tables,
}

/// A key that was taken.
#[derive(Clone, Copy)]
struct Known {
    key: &'static str,
    form: Form,
    /// Position of its value.
    at: Option<usize>,
}

impl<'a> Reader<'a> {
    /// A part of a text.
    pub fn new(document: &'a Document<'a>, part: Range<usize>) -> Self {
        Self {
            document,
            start: part.start,
            text: &document.text[part],
            memory: PART_MAX,
        }
    }

    /// The root table, unless the text is not TOML.
    pub fn root(&self) -> Option<Table<'_>> {
        if let Err(TooMuch { at, found }) = check_toml(self.text, self.memory) {
            self.fault(at, None, found, TooMuch::EXPECTED);
            return None;
        }
        let (root, errors) = DeTable::parse_recoverable(self.text);
        // Further faults on a line are mostly consequences of the first.
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
                Some(piece) => quote_piece(piece),
            };
            self.fault(span.start, None, found, format!("valid TOML ({message})"));
        }
        let at = root.span().start;
        errors
            .is_empty()
            .then(|| self.table(String::new(), String::new(), root.into_inner(), at))
    }

    /// The root table, or what can be read of it where the text is not TOML. Faults are not
    /// reported. `None`: the text is too large to be read.
    pub fn readable_root(&self) -> Option<Table<'_>> {
        check_toml(self.text, self.memory).ok()?;
        let (root, _) = DeTable::parse_recoverable(self.text);
        let at = root.span().start;
        Some(self.table(String::new(), String::new(), root.into_inner(), at))
    }

    /// Keys of a table: `label` names its owner, `path` is its dotted name.
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
            faults_before: self.document.fault_count(),
            kind: None,
            at,
        }
    }

    /// Line and column, in the whole text, of a byte of this part.
    pub fn position(&self, at: usize) -> Position {
        self.document.position(self.start + at)
    }

    /// Reports a fault.
    pub fn fault(
        &self,
        at: usize,
        key: Option<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.fault_at(self.position(at), key, found, expected);
    }

    /// Reports a fault at a position in the whole text.
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
    /// The subject of a fault: the rule, without the colon.
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

    /// Reports a fault of a key of this table, or of the table.
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

    /// Reports a fault of the table as a whole.
    pub fn fault_here(&self, found: &str, expected: &str) {
        self.fault(self.at, None, found, expected);
    }

    /// Takes a key with any value.
    pub fn take(&mut self, key: &'static str) -> Option<Spanned<DeValue<'s>>> {
        let value = self.entries.remove(key);
        self.known.push(Known {
            key,
            form: Form::Value,
            at: value.as_ref().map(|value| value.span().start),
        });
        value
    }

    /// Position of the value of a taken key, if it is present.
    fn value_position(&self, key: &str) -> Option<usize> {
        let known = self.known.iter().find(|known| known.key == key);
        known.and_then(|known| known.at)
    }

    /// Whether a taken key is present.
    pub fn has(&self, key: &str) -> bool {
        self.value_position(key).is_some()
    }

    /// Reports a fault of a taken key that shows only in comparison with other values.
    pub fn wrong(&self, key: &str, found: impl Into<String>, expected: impl Into<String>) {
        self.fault(
            self.value_position(key).unwrap_or(self.at),
            Some(key),
            found,
            expected,
        );
    }

    /// Adds faults of another file that this one names.
    pub fn add_faults(&self, faults: Faults) {
        faults
            .0
            .into_iter()
            .for_each(|it| self.reader.document.add_fault(it));
    }

    /// Whether no fault was found since the start of this table. Only then can its values be
    /// compared with each other.
    pub fn is_sound(&self) -> bool {
        self.reader.document.fault_count() == self.faults_before
    }

    /// Takes an optional value, as its type reads it.
    pub fn value<T: DeserializeOwned>(&mut self, key: &'static str) -> Option<T> {
        self.declare_key(key, asked::form_of::<T>);
        let value = self.take(key)?;
        let read = leaf::read_value(value.get_ref());
        read.map_err(|expected| {
            let found = describe_value(value.get_ref());
            self.fault(value.span().start, Some(key), found, expected);
        })
        .ok()
    }

    /// Takes a required value, as its type reads it.
    pub fn needed<T: DeserializeOwned>(&mut self, key: &'static str) -> Option<T> {
        let value = self.value(key);
        self.declare_required(key);
        if !self.has(key) {
            self.fault(self.at, Some(key), "nothing", expected_form::<T>());
        }
        value
    }

    /// Takes an optional whole number.
    pub fn count(&mut self, key: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let within = |value: &DeValue<'_>| {
            let number = u32::try_from(whole_number(value)?).ok()?;
            range.contains(&number).then_some(number)
        };
        self.optional(key, within, &expected, || schema::whole(range.clone()))
    }

    /// Takes a required whole number.
    pub fn needed_count(&mut self, key: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let (least, most) = (*range.start(), *range.end());
        let number = self.count(key, range);
        self.declare_required(key);
        if !self.has(key) {
            let expected = format!("a whole number from {least} to {most}");
            self.fault(self.at, Some(key), "nothing", expected);
        }
        number
    }

    /// Takes `kind`, on which the other keys depend; the default is one of its values.
    pub fn take_kind<T: DeserializeOwned>(&mut self, default: Option<&str>) -> Option<T> {
        if let Some(asked) = self.asked_kind(default) {
            return Some(asked);
        }
        let given = self.peek("kind").and_then(DeValue::as_str);
        self.kind = given.or(default).map(str::to_owned);
        match default {
            Some(default) if !self.entries.contains_key("kind") => {
                self.take("kind");
                leaf::read_value(&DeValue::String(default.into())).ok()
            }
            _ => self.needed("kind"),
        }
    }

    /// Takes a list of tables, `[[key]]`, each with its number as label.
    pub fn take_tables(&mut self, key: &'static str) -> Vec<Table<'s>> {
        if let Some(blank) = self.blank_table(key, true) {
            return vec![blank];
        }
        let value = self.take(key);
        if let Some(known) = self.known.last_mut() {
            known.form = Form::Tables;
        }
        let Some(value) = value else {
            return Vec::new();
        };
        let expected = format!("tables, [[{key}]]");
        let at = value.span().start;
        let DeValue::Array(items) = value.into_inner() else {
            self.fault(at, Some(key), "no list", expected);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for (place, item) in items.into_iter().enumerate() {
            let at = item.span().start;
            match item.into_inner() {
                DeValue::Table(entries) => {
                    let label = format!("{key} {}: ", place + 1);
                    tables.push(self.reader.table(label, String::new(), entries, at));
                }
                other => self.fault(at, Some(key), describe_value(&other), &*expected),
            }
        }
        tables
    }

    /// Takes all keys, in the order of the text: names, positions, values.
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

    /// The value of a key that has not been taken yet.
    pub fn peek(&self, key: &str) -> Option<&DeValue<'s>> {
        self.entries.get(key).map(Spanned::get_ref)
    }

    /// Takes a table.
    pub fn take_table(&mut self, key: &'static str) -> Option<Table<'s>> {
        if let Some(blank) = self.blank_table(key, false) {
            return Some(blank);
        }
        let value = self.take(key);
        if let Some(known) = self.known.last_mut() {
            known.form = Form::Table;
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
                let expected = match self.header_of(key) {
                    header if header == key => "a table".to_owned(),
                    header => format!("a table, {header}"),
                };
                self.fault(at, Some(key), describe_value(&other), expected);
                None
            }
        }
    }

    /// Takes a table; an absent one is empty.
    pub fn sub_or_empty(&mut self, key: &'static str) -> Table<'s> {
        self.take_table(key).unwrap_or_else(|| {
            let path = format!("{}{key}.", self.path);
            let label = self.label.clone();
            self.reader.table(label, path, DeTable::new(), self.at)
        })
    }

    /// Takes a required table.
    pub fn needed_sub(&mut self, key: &'static str) -> Option<Table<'s>> {
        let table = self.take_table(key);
        self.declare_required(key);
        if !self.has(key) {
            let expected = format!("a table, {}", self.header_of(key));
            self.fault(self.at, Some(key), "nothing", expected);
        }
        table
    }

    /// Takes an optional value.
    pub fn optional<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'_>) -> Option<T>,
        expected: &str,
        form: impl FnOnce() -> Value,
    ) -> Option<T> {
        self.declare_key(key, form);
        self.take_parsed(key, parse, expected)
    }

    fn take_parsed<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'_>) -> Option<T>,
        expected: &str,
    ) -> Option<T> {
        let value = self.take(key)?;
        let parsed = parse(value.get_ref());
        if parsed.is_none() {
            let found = describe_value(value.get_ref());
            self.fault(value.span().start, Some(key), found, expected);
        }
        parsed
    }

    /// Takes a required value.
    pub fn required<T>(
        &mut self,
        key: &'static str,
        what: &str,
        parse: impl Fn(&DeValue<'_>) -> Option<T>,
        expected: &str,
        form: impl FnOnce() -> Value,
    ) -> Option<T> {
        self.declare_key(key, form);
        self.declare_required(key);
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
        // The form has been told.
        self.take_parsed(key, parse, expected)
    }

    /// Takes one value or a list of them. `parse` may return a more precise expectation; `form` is
    /// that of one value.
    pub fn list<T: PartialEq>(
        &mut self,
        key: &'static str,
        most: usize,
        expected: &str,
        parse: impl Fn(&DeValue<'_>) -> Result<T, Option<String>>,
        form: impl Fn() -> Value,
    ) -> Vec<T> {
        self.declare_key(key, || {
            schema::any_of([form(), schema::list(form(), 1..=most, false)])
        });
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
                    self.fault(at, Some(key), describe_value(item.get_ref()), expected);
                }
            }
        }
        all
    }

    /// Takes one value or a list of them, as their type reads them. `fault` tells what
    /// is expected instead of one.
    pub fn values<T: DeserializeOwned + PartialEq>(
        &mut self,
        key: &'static str,
        most: usize,
        fault: impl Fn(&T) -> Option<String>,
    ) -> Vec<T> {
        let read = |value: &DeValue<'_>| {
            let value: T = leaf::read_value(value).map_err(Some)?;
            match fault(&value) {
                Some(expected) => Err(Some(expected)),
                None => Ok(value),
            }
        };
        self.list(key, most, &expected_form::<T>(), read, asked::form_of::<T>)
    }

    /// The header of a table within this one.
    fn header_of(&self, key: &str) -> String {
        if self.label.is_empty() && self.path.is_empty() {
            format!("[{key}]")
        } else {
            key.to_owned()
        }
    }

    /// Refuses the keys that were not taken.
    pub fn refuse_unknown_keys(&mut self) {
        let known = self.known.clone();
        let kind = match &self.kind {
            Some(kind) => format!(" with kind {kind:?}"),
            None => String::new(),
        };
        let names: Vec<String> = known
            .iter()
            .map(|known| match known.form {
                Form::Value => known.key.to_owned(),
                Form::Table => self.header_of(known.key),
                Form::Tables => format!("[[{}]]", known.key),
            })
            .collect();
        for (name, at, _) in self.drain() {
            let mut expected = format!("one of {}{kind}", names.join(", "));
            if let Some(near) = nearest_word(&name, known.iter().map(|known| known.key)) {
                expected += &format!("; perhaps `{near}`");
            }
            let found = format!("the unknown key {}", quote_piece(&name));
            self.fault(at, None, found, expected);
        }
    }
}
