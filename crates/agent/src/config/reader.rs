//! Takes keys out of a parsed TOML document, each with its type, range and position.
//!
//! Every key is asked for exactly once, so the list of keys, what each expects and its
//! default are recorded on the way: `docs/reference/configuration.md` is tested against that record.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_policy::{Prefix, PrefixError};
use thalweg_units::grammar::{self, duration_text, is_congestion_control, size_text};
use thalweg_units::memory::{TooMuch, check_toml};
use thalweg_units::one_line;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Fault};

/// Longest piece of a configuration that is repeated in an error, in characters.
const QUOTE_MAX: usize = 60;

/// What one key accepts; a row of the table in `docs/reference/configuration.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDescription {
    /// Dotted name.
    pub key: String,
    /// What it expects, in the words of the error message.
    pub expected: String,
    /// Its default, as TOML.
    pub default: String,
}

/// The text of a configuration and where it came from.
pub(super) struct Source<'a> {
    file: &'a Path,
    text: &'a str,
    keys: RefCell<Vec<KeyDescription>>,
}

/// A value and its place in the text; no place where it is the default.
pub(super) struct Read<T> {
    pub value: T,
    pub span: Option<Range<usize>>,
}

/// The keys of one table that have not been taken yet.
pub(super) struct Section<'s> {
    source: &'s Source<'s>,
    /// Empty for the root.
    name: &'static str,
    entries: DeTable<'s>,
    known: Vec<String>,
}

impl<'a> Source<'a> {
    pub fn new(file: &'a Path, text: &'a str) -> Self {
        Self {
            file,
            text,
            keys: RefCell::default(),
        }
    }

    /// What was asked for.
    pub fn into_keys(self) -> Vec<KeyDescription> {
        self.keys.into_inner()
    }

    /// The root table.
    pub fn parse<'s>(&'s self) -> Result<Section<'s>, ConfigError> {
        check_toml(self.text)
            .map_err(|TooMuch { at, found }| self.fault(at, None, found, TooMuch::EXPECTED))?;
        let entries = DeTable::parse(self.text).map_err(|error| self.syntax_error(&error))?;
        Ok(Section {
            source: self,
            name: "",
            entries: entries.into_inner(),
            known: Vec::new(),
        })
    }

    /// A fault at a place in the text.
    pub fn fault(
        &self,
        at: usize,
        key: Option<String>,
        found: String,
        expected: impl Into<String>,
    ) -> ConfigError {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &self.text[..at];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        ConfigError::Invalid(Fault {
            file: self.file.to_path_buf(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            key,
            found,
            expected: expected.into(),
        })
    }

    fn syntax_error(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or(self.text.len()..self.text.len());
        let piece = self.text.get(span.clone()).unwrap_or_default();
        let message = one_line(error.message());
        let found = match piece.lines().next() {
            None | Some("") if span.start >= self.text.len() => "the end of the file".to_owned(),
            None | Some("") => "the end of the line".to_owned(),
            Some(piece) => quoted(piece),
        };
        self.fault(span.start, None, found, format!("valid TOML ({message})"))
    }
}

impl<'s> Section<'s> {
    /// Dotted name of a key of this table.
    pub fn full_name(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    /// Takes a table; one that is absent is empty.
    pub fn section(&mut self, name: &'static str) -> Result<Section<'s>, ConfigError> {
        self.known.push(format!("[{name}]"));
        let entries = match self.entries.remove(name) {
            None => DeTable::new(),
            Some(value) => {
                let at = value.span().start;
                match value.into_inner() {
                    DeValue::Table(entries) => entries,
                    other => {
                        let expected = format!("a table, [{name}]");
                        let found = describe(&other);
                        return Err(self
                            .source
                            .fault(at, Some(name.to_owned()), found, expected));
                    }
                }
            }
        };
        Ok(Section {
            source: self.source,
            name,
            entries,
            known: Vec::new(),
        })
    }

    /// Refuses the keys that nobody asked for; the first of them in the text is named.
    pub fn finish(self) -> Result<(), ConfigError> {
        let unknown = self.entries.keys().min_by_key(|key| key.span().start);
        let Some(unknown) = unknown else {
            return Ok(());
        };
        let name = (!self.name.is_empty()).then(|| format!("[{}]", self.name));
        let found = format!("the unknown key {}", quoted(unknown.get_ref()));
        let expected = format!("one of {}", self.known.join(", "));
        Err(self
            .source
            .fault(unknown.span().start, name, found, expected))
    }

    /// A fault of a key's value that is found by comparing it with another.
    pub fn conflict(&self, key: &str, at: usize, found: String, expected: String) -> ConfigError {
        self.source
            .fault(at, Some(self.full_name(key)), found, expected)
    }

    pub fn boolean(&mut self, key: &'static str, default: bool) -> Result<bool, ConfigError> {
        let read = self.take(
            key,
            "true or false",
            default,
            bool::to_string,
            |value| match value {
                DeValue::Boolean(value) => Some(*value),
                _ => None,
            },
        );
        Ok(read?.value)
    }

    pub fn integer<T>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<T>,
        default: T,
    ) -> Result<T, ConfigError>
    where
        T: Copy + PartialOrd + Display + TryFrom<i64>,
    {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let read = self.take(key, &expected, default, T::to_string, |value| {
            whole(value)
                .and_then(|value| T::try_from(value).ok())
                .filter(|value| range.contains(value))
        });
        Ok(read?.value)
    }

    pub fn number(
        &mut self,
        key: &'static str,
        range: RangeInclusive<f64>,
        default: f64,
    ) -> Result<f64, ConfigError> {
        let expected = format!("a number from {:?} to {:?}", range.start(), range.end());
        let show = |value: &f64| format!("{value:?}");
        let read = self.take(key, &expected, default, show, |value| {
            let number = match value {
                DeValue::Float(value) => value.as_str().parse().ok(),
                other => whole(other).map(|value| value as f64),
            };
            number.filter(|number| range.contains(number))
        });
        Ok(read?.value)
    }

    /// A duration; `zero` says what 0 means where it is allowed besides the range.
    pub fn duration(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
        zero: Option<&str>,
        default: Duration,
    ) -> Result<Duration, ConfigError> {
        let bounds = (duration_text(*range.start()), duration_text(*range.end()));
        let zero_text = zero
            .map(|zero| format!(", or \"0\": {zero}"))
            .unwrap_or_default();
        let expected = format!(
            "a duration from \"{}\" to \"{}\"{zero_text}",
            bounds.0, bounds.1
        );
        let show = |value: &Duration| format!("\"{}\"", duration_text(*value));
        let expected = (expected.as_str(), grammar::TIMES);
        let read = self.take_in_units(key, expected, default, show, |value| {
            text(value).and_then(grammar::duration).filter(|duration| {
                range.contains(duration) || (zero.is_some() && duration.is_zero())
            })
        });
        Ok(read?.value)
    }

    /// A size in bytes.
    pub fn size(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
        power_of_two: bool,
        default: u64,
    ) -> Result<Read<u64>, ConfigError> {
        let kind = if power_of_two {
            "a power of two"
        } else {
            "a size"
        };
        let bounds = (size_text(*range.start()), size_text(*range.end()));
        let expected = format!("{kind} from \"{}\" to \"{}\"", bounds.0, bounds.1);
        let show = |value: &u64| format!("\"{}\"", size_text(*value));
        let expected = (expected.as_str(), grammar::SIZES);
        self.take_in_units(key, expected, default, show, |value| {
            text(value)
                .and_then(grammar::bytes)
                .filter(|size| range.contains(size) && (!power_of_two || size.is_power_of_two()))
        })
    }

    /// One of a few words.
    pub fn word<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        words: &[(&str, T)],
        default: T,
    ) -> Result<T, ConfigError> {
        let all: Vec<String> = words
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        let show = |value: &T| {
            let word = words.iter().find(|(_, other)| other == value);
            word.map(|(word, _)| format!("\"{word}\""))
                .unwrap_or_default()
        };
        let read = self.take(key, &all.join(" or "), default, show, |value| {
            let found = text(value)?;
            words
                .iter()
                .find(|(word, _)| *word == found)
                .map(|(_, value)| *value)
        });
        Ok(read?.value)
    }

    /// An absolute path of at most `longest` bytes.
    pub fn path(
        &mut self,
        key: &'static str,
        longest: usize,
        default: &str,
    ) -> Result<PathBuf, ConfigError> {
        let expected = format!("an absolute path of at most {longest} bytes");
        let default = PathBuf::from(default);
        let show = |value: &PathBuf| format!("\"{}\"", value.display());
        let read = self.take(key, &expected, default, show, |value| {
            text(value)
                .filter(|text| is_path(text, longest))
                .map(PathBuf::from)
        });
        Ok(read?.value)
    }

    /// An absolute path, or `None` for `auto`.
    pub fn path_or_auto(&mut self, key: &'static str) -> Result<Option<PathBuf>, ConfigError> {
        let show = |_: &Option<PathBuf>| "\"auto\"".to_owned();
        let read = self.take(
            key,
            "\"auto\" or an absolute path",
            None,
            show,
            |value| match text(value)? {
                "auto" => Some(None),
                path => is_path(path, 4095).then(|| Some(PathBuf::from(path))),
            },
        );
        Ok(read?.value)
    }

    /// The name of a congestion control, or `None` for the empty string.
    pub fn arm_or_none(
        &mut self,
        key: &'static str,
        default: Option<&str>,
    ) -> Result<Option<String>, ConfigError> {
        let expected = format!(
            "{}, or \"\" for none",
            grammar::CONGESTION_CONTROL.to_owned()
        );
        let show = |value: &Option<String>| format!("\"{}\"", value.as_deref().unwrap_or(""));
        let read = self.take(
            key,
            &expected,
            default.map(str::to_owned),
            show,
            |value| match text(value)? {
                "" => Some(None),
                name => is_congestion_control(name).then(|| Some(name.to_owned())),
            },
        );
        Ok(read?.value)
    }

    /// The name of a group of users, or `None` for the empty string.
    pub fn group_or_none(&mut self, key: &'static str) -> Result<Option<String>, ConfigError> {
        let expected =
            "the name of a group (1 to 32 of a-z, A-Z, 0-9, _, - and .), or \"\" for none";
        let show = |value: &Option<String>| format!("\"{}\"", value.as_deref().unwrap_or(""));
        let read = self.take(key, expected, None, show, |value| match text(value)? {
            "" => Some(None),
            name => is_group_name(name).then(|| Some(name.to_owned())),
        });
        Ok(read?.value)
    }

    /// A list of IPv4 and IPv6 prefixes, each once.
    pub fn prefixes(&mut self, key: &'static str, most: usize) -> Result<Vec<Prefix>, ConfigError> {
        let expected = format!("a list of at most {most} prefixes, each once");
        // An element's fault has a place of its own, so it is looked for first.
        if let Some(value) = self.entries.get(key)
            && let DeValue::Array(items) = value.get_ref()
        {
            let mut seen: Vec<Prefix> = Vec::new();
            for item in items {
                let rule = match text(item.get_ref()).map(Prefix::parse) {
                    Some(Ok(prefix)) if seen.contains(&prefix) => "each prefix once".to_owned(),
                    Some(Ok(prefix)) => {
                        seen.push(prefix);
                        continue;
                    }
                    Some(Err(PrefixError::HostBits(prefix))) => {
                        format!("no bits beyond the length, \"{prefix}\"")
                    }
                    Some(Err(PrefixError::Malformed)) | None => {
                        "a prefix such as \"10.0.0.0/8\" or \"2001:db8::/32\"".to_owned()
                    }
                };
                let found = describe(item.get_ref());
                return Err(self.conflict(key, item.span().start, found, rule));
            }
        }
        let show = |_: &Vec<Prefix>| "[]".to_owned();
        let read = self.take(key, &expected, Vec::new(), show, |value| match value {
            DeValue::Array(items) if items.len() <= most => items
                .iter()
                .map(|item| Prefix::parse(text(item.get_ref())?).ok())
                .collect(),
            _ => None,
        });
        Ok(read?.value)
    }

    /// A list of congestion controls, each once.
    pub fn arms(
        &mut self,
        key: &'static str,
        count: RangeInclusive<usize>,
        default: &[&str],
    ) -> Result<Read<Vec<String>>, ConfigError> {
        let default = default.iter().map(|name| (*name).to_owned()).collect();
        let read = self.arm_list(key, count, false, Some(default))?;
        Ok(Read {
            value: read.value.unwrap_or_default(),
            span: read.span,
        })
    }

    /// A list of congestion controls, each once, or `None` for `auto`.
    pub fn arms_or_auto(
        &mut self,
        key: &'static str,
        count: RangeInclusive<usize>,
    ) -> Result<Read<Option<Vec<String>>>, ConfigError> {
        self.arm_list(key, count, true, None)
    }

    fn arm_list(
        &mut self,
        key: &'static str,
        count: RangeInclusive<usize>,
        auto: bool,
        default: Option<Vec<String>>,
    ) -> Result<Read<Option<Vec<String>>>, ConfigError> {
        let auto_text = if auto { "\"auto\" or " } else { "" };
        let expected = format!(
            "{auto_text}a list of {} to {} names of congestion controls, each once",
            count.start(),
            count.end()
        );
        let show = |value: &Option<Vec<String>>| match value {
            None => "\"auto\"".to_owned(),
            Some(names) => format!("{names:?}"),
        };
        // An element's fault has a place of its own, so it is looked for first.
        if let Some(value) = self.entries.get(key)
            && let DeValue::Array(items) = value.get_ref()
        {
            let mut seen: Vec<&str> = Vec::new();
            for item in items {
                let rule = match text(item.get_ref()) {
                    Some(name) if !is_congestion_control(name) => {
                        grammar::CONGESTION_CONTROL.to_owned()
                    }
                    Some(name) if seen.contains(&name) => "each name once".to_owned(),
                    Some(name) => {
                        seen.push(name);
                        continue;
                    }
                    None => grammar::CONGESTION_CONTROL.to_owned(),
                };
                let found = describe(item.get_ref());
                return Err(self.conflict(key, item.span().start, found, rule));
            }
        }
        self.take(key, &expected, default, show, |value| match value {
            DeValue::String(word) if auto && word == "auto" => Some(None),
            DeValue::Array(items) if count.contains(&items.len()) => {
                let names = items.iter().filter_map(|item| text(item.get_ref()));
                Some(Some(names.map(str::to_owned).collect()))
            }
            _ => None,
        })
    }

    /// Takes one key: records it, and parses its value if there is one.
    fn take<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        default: T,
        show: impl Fn(&T) -> String,
        parse: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Result<Read<T>, ConfigError> {
        self.take_in_units(key, (expected, ""), default, show, parse)
    }

    /// The same for a quantity; its units are a part of the error alone.
    fn take_in_units<T>(
        &mut self,
        key: &'static str,
        (expected, units): (&str, &str),
        default: T,
        show: impl Fn(&T) -> String,
        parse: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Result<Read<T>, ConfigError> {
        self.known.push(key.to_owned());
        let full_name = self.full_name(key);
        self.source.keys.borrow_mut().push(KeyDescription {
            key: full_name.clone(),
            expected: expected.to_owned(),
            default: show(&default),
        });
        let Some(value): Option<Spanned<DeValue<'_>>> = self.entries.remove(key) else {
            return Ok(Read {
                value: default,
                span: None,
            });
        };
        let span = value.span();
        match parse(value.get_ref()) {
            Some(value) => Ok(Read {
                value,
                span: Some(span),
            }),
            None => {
                let found = describe(value.get_ref());
                let mut expected = expected.to_owned();
                if !units.is_empty() {
                    expected += &format!(" (units {units})");
                }
                Err(self
                    .source
                    .fault(span.start, Some(full_name), found, expected))
            }
        }
    }
}

/// Whether a text can be the name of a group (useradd(8), with capitals and dots as in names of
/// directory services).
fn is_group_name(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && !text.starts_with('-')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

fn is_path(text: &str, longest: usize) -> bool {
    text.starts_with('/') && text.len() <= longest && !text.chars().any(char::is_control)
}

fn text<'v>(value: &'v DeValue<'_>) -> Option<&'v str> {
    match value {
        DeValue::String(text) => Some(text),
        _ => None,
    }
}

fn whole(value: &DeValue<'_>) -> Option<i64> {
    match value {
        DeValue::Integer(value) => i64::from_str_radix(value.as_str(), value.radix()).ok(),
        _ => None,
    }
}

fn describe(value: &DeValue<'_>) -> String {
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
