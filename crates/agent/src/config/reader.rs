//! Takes the keys of a configuration out of TOML, each with its type, range and position.
//!
//! Every key is read exactly once. So the keys, their accepted values, defaults and values are
//! recorded on the way. A test compares `docs/reference/configuration.md` with that record.

mod list;

use std::cell::RefCell;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_units::grammar::{self, duration_text, is_congestion_control, size_text};
use thalweg_units::reader::{
    self, Document, Reader, Table, any_number, describe_value, whole_number,
};
use thalweg_units::schema::{self, Form};
use thalweg_units::{Faults, nearest_word};
use toml::Spanned;
use toml::de::DeValue;

/// Longest path of a file.
pub const PATH_MAX: usize = 4095;
pub const DAY: Duration = Duration::from_secs(86_400);

/// Name of a key in its table, and its effect as Markdown.
pub type Key = (&'static str, &'static str);

/// A key's accepted values and default; a row of the table in `docs/reference/configuration.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDescription {
    /// Dotted name.
    pub key: String,
    /// Effect of the key, as Markdown of `docs/reference/configuration.md`.
    pub words: &'static str,
    /// Accepted values, in the words of the error message.
    pub expected: String,
    /// Default of the key, as TOML.
    pub default: String,
    /// Value of the key, as TOML.
    pub value: String,
    /// The line of the file that sets the value; `None`: it is the default.
    pub line: Option<usize>,
}

impl KeyDescription {
    /// The effect as plain text, for the sample and the schema: without links and quotes of code.
    pub fn plain_words(&self) -> String {
        let mut text = String::new();
        let mut rest = self.words;
        while let Some((before, after)) = rest.split_once("](") {
            let (text_before, label) = before.rsplit_once('[').unwrap_or((before, ""));
            text.extend([text_before, label]);
            rest = after.split_once(')').map_or("", |(_, rest)| rest);
        }
        (text + rest).replace('`', "")
    }
}

/// The text of a configuration, and a record of the keys taken.
pub(super) struct Source<'a> {
    document: Document<'a>,
    keys: RefCell<Vec<KeyDescription>>,
}

/// A value and its position in the text; no position if it is absent.
pub struct Read<T> {
    /// The default if the value is faulty.
    pub value: T,
    pub at: Option<usize>,
    pub is_sound: bool,
}

/// The keys of one table that have not been taken yet.
pub struct Section<'s> {
    keys: &'s RefCell<Vec<KeyDescription>>,
    reader: &'s Reader<'s>,
    table: Table<'s>,
}

impl<'a> Source<'a> {
    pub fn new(file: &'a Path, text: &'a str) -> Self {
        Self {
            document: Document::new(file, text),
            keys: RefCell::default(),
        }
    }

    /// The form of the keys that `read` takes from the root table.
    pub fn schema<T>(read: impl Fn(&mut Section<'_>) -> T) -> Form {
        reader::asked_of(|document| {
            let reader = Reader::new(document, 0..0);
            let keys = RefCell::default();
            if let Some(table) = reader.root() {
                drop(read(&mut Section {
                    keys: &keys,
                    reader: &reader,
                    table,
                }));
            }
        })
    }

    /// The result of `read` for the readable part of the root table: a faulty key has its default.
    /// `None`: nothing can be read.
    pub fn read_readable<T>(self, read: impl FnOnce(&mut Section<'_>) -> T) -> Option<T> {
        let reader = Reader::new(&self.document, 0..self.document.text.len());
        let table = reader.readable_root()?;
        Some(read(&mut Section {
            keys: &self.keys,
            reader: &reader,
            table,
        }))
    }

    /// The result of `read` for the root table, and the keys that it took.
    pub fn read<T>(
        self,
        read: impl FnOnce(&mut Section<'_>) -> T,
    ) -> Result<(T, Vec<KeyDescription>), Faults> {
        let reader = Reader::new(&self.document, 0..self.document.text.len());
        let value = reader.root().map(|table| {
            let mut root = Section {
                keys: &self.keys,
                reader: &reader,
                table,
            };
            let value = read(&mut root);
            root.table.refuse_unknown_keys();
            value
        });
        match value.filter(|_| self.document.is_clean()) {
            Some(value) => Ok((value, self.keys.into_inner())),
            None => Err(self.document.take_faults()),
        }
    }
}

impl<'s> Section<'s> {
    /// Reads a table; an absent one is empty.
    pub fn section<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut Section<'s>) -> T,
    ) -> T {
        let mut section = Section {
            keys: self.keys,
            reader: self.reader,
            table: self.table.sub_or_empty(name),
        };
        let value = read(&mut section);
        section.table.refuse_unknown_keys();
        value
    }

    /// Reports a fault of a key's value in comparison with another.
    pub fn conflict(&self, key: &str, at: usize, found: String, expected: String) {
        self.table.fault(at, Some(key), found, expected);
    }

    pub fn boolean(&mut self, key: Key, default: bool) -> bool {
        self.flag(key, default).value
    }

    /// Reads a boolean, and returns its position too.
    pub fn flag(&mut self, key: Key, default: bool) -> Read<bool> {
        self.take(
            key,
            "true or false",
            schema::boolean(),
            default,
            bool::to_string,
            |value| match value {
                DeValue::Boolean(value) => Some(*value),
                _ => None,
            },
        )
    }

    pub fn integer<T>(&mut self, key: Key, range: RangeInclusive<T>, default: T) -> T
    where
        T: Copy + PartialOrd + Display + TryFrom<i64> + Into<i128>,
    {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let form = schema::whole(range.clone());
        let read = self.take(key, &expected, form, default, T::to_string, |value| {
            whole_number(value)
                .and_then(|value| T::try_from(value).ok())
                .filter(|value| range.contains(value))
        });
        read.value
    }

    /// A whole number of 63 bits, or `None` for `auto`.
    pub fn whole_or_auto(&mut self, key: Key) -> Option<u64> {
        let show =
            |number: &Option<u64>| number.map_or_else(|| string("auto"), |it| it.to_string());
        let read = self.take(
            key,
            "\"auto\" or a whole number from 0 to 9223372036854775807",
            schema::any_of([schema::only("auto"), schema::whole(0..=i64::MAX)]),
            None,
            show,
            |value| match text(value) {
                Some("auto") => Some(None),
                Some(_) => None,
                None => u64::try_from(whole_number(value)?).ok().map(Some),
            },
        );
        read.value
    }

    pub fn number(&mut self, key: Key, range: RangeInclusive<f64>, default: f64) -> f64 {
        let expected = format!("a number from {:?} to {:?}", range.start(), range.end());
        let show = |value: &f64| format!("{value:?}");
        let form = schema::number(range.clone());
        let read = self.take(key, &expected, form, default, show, |value| {
            any_number(value).filter(|number| range.contains(number))
        });
        read.value
    }

    /// A number, or `None` for `auto`.
    pub fn number_or_auto(&mut self, key: Key, range: RangeInclusive<f64>) -> Option<f64> {
        let bounds = (range.start(), range.end());
        let expected = format!("\"auto\" or a number from {:?} to {:?}", bounds.0, bounds.1);
        let show = |value: &Option<f64>| {
            value.map_or_else(|| string("auto"), |value| format!("{value:?}"))
        };
        let form = schema::any_of([schema::only("auto"), schema::number(range.clone())]);
        let read = self.take(key, &expected, form, None, show, |value| {
            match text(value) {
                Some("auto") => Some(None),
                _ => any_number(value)
                    .filter(|value| range.contains(value))
                    .map(Some),
            }
        });
        read.value
    }

    /// A duration; `zero` is the meaning of 0 if it is allowed outside the range.
    pub fn duration(
        &mut self,
        key: Key,
        range: RangeInclusive<Duration>,
        zero: Option<&str>,
        default: Duration,
    ) -> Duration {
        let bounds = (duration_text(*range.start()), duration_text(*range.end()));
        let zero_text = zero
            .map(|zero| format!(", or \"0\": {zero}"))
            .unwrap_or_default();
        let expected = format!(
            "a duration from \"{}\" to \"{}\"{zero_text}",
            bounds.0, bounds.1
        );
        let show = |value: &Duration| format!("\"{}\"", duration_text(*value));
        let expected = (expected.as_str(), &*format!(" (units {})", grammar::TIMES));
        let read = self.take_with_hint(key, expected, schema::time(), default, show, |value| {
            text(value)
                .and_then(grammar::parse_duration)
                .filter(|duration| {
                    range.contains(duration) || (zero.is_some() && duration.is_zero())
                })
        });
        read.value
    }

    /// A size in bytes.
    pub fn size(
        &mut self,
        key: Key,
        range: RangeInclusive<u64>,
        power_of_two: bool,
        default: u64,
    ) -> Read<u64> {
        let kind = if power_of_two {
            "a power of two"
        } else {
            "a size"
        };
        let bounds = (size_text(*range.start()), size_text(*range.end()));
        let expected = format!("{kind} from \"{}\" to \"{}\"", bounds.0, bounds.1);
        let show = |value: &u64| format!("\"{}\"", size_text(*value));
        let expected = (expected.as_str(), &*format!(" (units {})", grammar::SIZES));
        self.take_with_hint(key, expected, schema::size(), default, show, |value| {
            text(value)
                .and_then(grammar::parse_bytes)
                .filter(|size| range.contains(size) && (!power_of_two || size.is_power_of_two()))
        })
    }

    /// Reads one of several words.
    pub fn word<T: Copy + PartialEq>(&mut self, key: Key, words: &[(&str, T)], default: T) -> T {
        let all: Vec<String> = words
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        let show = |value: &T| {
            let word = words.iter().find(|(_, other)| other == value);
            word.map(|(word, _)| format!("\"{word}\""))
                .unwrap_or_default()
        };
        let near = match self.table.peek(key.0) {
            Some(DeValue::String(found)) => {
                nearest_word(found, words.iter().map(|(word, _)| *word))
            }
            _ => None,
        };
        let hint = near.map_or_else(String::new, |near| format!("; perhaps \"{near}\""));
        let expected = (&*all.join(" or "), &*hint);
        let form = schema::words(words.iter().map(|(word, _)| word));
        let read = self.take_with_hint(key, expected, form, default, show, |value| {
            let found = text(value)?;
            words
                .iter()
                .find(|(word, _)| *word == found)
                .map(|(_, value)| *value)
        });
        read.value
    }

    /// An absolute path of at most `longest` bytes.
    pub fn path(&mut self, key: Key, longest: usize, default: &str) -> PathBuf {
        let expected = format!("an absolute path of at most {longest} bytes");
        let default = PathBuf::from(default);
        let show = |value: &PathBuf| string(&value.to_string_lossy());
        let read = self.take(key, &expected, schema::path(), default, show, |value| {
            text(value)
                .filter(|text| is_path(text, longest))
                .map(PathBuf::from)
        });
        read.value
    }

    /// An absolute path, or `None` for `auto`.
    pub fn path_or_auto(&mut self, key: Key) -> Option<PathBuf> {
        let show = |value: &Option<PathBuf>| match value {
            None => string("auto"),
            Some(path) => string(&path.to_string_lossy()),
        };
        let read = self.take(
            key,
            "\"auto\" or an absolute path",
            schema::any_of([schema::only("auto"), schema::path()]),
            None,
            show,
            |value| match text(value)? {
                "auto" => Some(None),
                path => is_path(path, 4095).then(|| Some(PathBuf::from(path))),
            },
        );
        read.value
    }

    /// An absolute path of at most `longest` bytes, or `None` for the empty string.
    pub fn path_or_none(&mut self, key: Key, longest: usize) -> Option<PathBuf> {
        let expected = format!("an absolute path of at most {longest} bytes, or \"\" for none");
        let show = |value: &Option<PathBuf>| {
            let path = value.as_deref().map(Path::to_string_lossy);
            string(&path.unwrap_or_default())
        };
        let form = schema::any_of([schema::only(""), schema::path()]);
        let read = self.take(key, &expected, form, None, show, |value| {
            match text(value)? {
                "" => Some(None),
                path => is_path(path, longest).then(|| Some(PathBuf::from(path))),
            }
        });
        read.value
    }

    /// An address and a port of this machine's loopback, or `None` for the empty string.
    pub fn loopback_or_none(&mut self, key: Key) -> Option<SocketAddr> {
        let expected =
            "a loopback address and a port, such as \"127.0.0.1:9471\", or \"\" for none";
        let show = |value: &Option<SocketAddr>| {
            let address = value.map(|address| address.to_string());
            string(&address.unwrap_or_default())
        };
        let hint = match self.table.peek(key.0) {
            Some(DeValue::String(found)) if is_elsewhere(found) => {
                "; nothing is encrypted: for others put a reverse proxy with TLS before it"
            }
            _ => "",
        };
        let form = schema::text();
        let read = self.take_with_hint(
            key,
            (expected, hint),
            form,
            None,
            show,
            |value| match text(value)? {
                "" => Some(None),
                address => {
                    let address = address.parse::<SocketAddr>().ok()?;
                    (address.ip().is_loopback() && address.port() != 0).then_some(Some(address))
                }
            },
        );
        read.value
    }

    /// The name of a congestion control, or `None` for the empty string.
    pub fn arm_or_none(&mut self, key: Key, default: Option<&str>) -> Option<String> {
        let expected = format!(
            "{}, or \"\" for none",
            grammar::CONGESTION_CONTROL.to_owned()
        );
        let show = |value: &Option<String>| format!("\"{}\"", value.as_deref().unwrap_or(""));
        let read = self.take(
            key,
            &expected,
            schema::any_of([schema::only(""), schema::congestion_control()]),
            default.map(str::to_owned),
            show,
            |value| match text(value)? {
                "" => Some(None),
                name => is_congestion_control(name).then(|| Some(name.to_owned())),
            },
        );
        read.value
    }

    /// The name of a group of users, or `None` for the empty string.
    pub fn group_or_none(&mut self, key: Key) -> Option<String> {
        let expected =
            "the name of a group (1 to 32 of a-z, A-Z, 0-9, _, - and .), or \"\" for none";
        let show = |value: &Option<String>| format!("\"{}\"", value.as_deref().unwrap_or(""));
        let group = schema::of_characters("A-Za-z0-9_.-", 32);
        let form = schema::any_of([schema::only(""), group]);
        let read = self.take(key, expected, form, None, show, |value| {
            match text(value)? {
                "" => Some(None),
                name => is_group_name(name).then(|| Some(name.to_owned())),
            }
        });
        read.value
    }

    /// Takes one key, and parses its value if present.
    pub fn take<T>(
        &mut self,
        key: Key,
        expected: &str,
        form: Form,
        default: T,
        show: impl Fn(&T) -> String,
        parse: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Read<T> {
        self.take_with_hint(key, (expected, ""), form, default, show, parse)
    }

    /// Takes one key as [`Section::take`] does, with a hint that appears only in the error.
    fn take_with_hint<T>(
        &mut self,
        key: Key,
        (expected, hint): (&str, &str),
        form: Form,
        default: T,
        show: impl Fn(&T) -> String,
        parse: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Read<T> {
        self.read(key, expected, form, default, show, |value| {
            let expected = format!("{expected}{hint}");
            parse(value.get_ref()).ok_or_else(|| vec![Wrong::new(value, expected)])
        })
    }

    /// Takes one key: records it, and parses its value if present.
    pub fn read<T>(
        &mut self,
        key: Key,
        expected: &str,
        form: Form,
        default: T,
        show: impl Fn(&T) -> String,
        parse: impl FnOnce(&Spanned<DeValue<'_>>) -> Result<T, Vec<Wrong>>,
    ) -> Read<T> {
        let default_text = show(&default);
        let (key, words) = key;
        self.table
            .declare_key(key, || schema::with_default(form, &default_text));
        let value = self.table.take(key);
        let at = value.as_ref().map(|value| value.span().start);
        let (value, is_sound) = match value.map(|value| parse(&value)) {
            None => (default, true),
            Some(Ok(value)) => (value, true),
            Some(Err(wrong)) => {
                for Wrong {
                    at,
                    found,
                    expected,
                } in wrong
                {
                    self.table.fault(at, Some(key), found, expected);
                }
                (default, false)
            }
        };
        self.keys.borrow_mut().push(KeyDescription {
            key: self.table.key(key),
            expected: expected.to_owned(),
            default: default_text,
            value: show(&value),
            line: at.map(|at| self.reader.position(at).line),
            words,
        });
        Read {
            value,
            at,
            is_sound,
        }
    }
}

/// A refused value.
pub struct Wrong {
    at: usize,
    found: String,
    expected: String,
}

impl Wrong {
    /// The value as it was found, and the expected form.
    pub fn new(value: &Spanned<DeValue<'_>>, expected: impl Into<String>) -> Self {
        Self {
            at: value.span().start,
            found: describe_value(value.get_ref()),
            expected: expected.into(),
        }
    }
}

/// A text as TOML; accepted texts have no control characters.
fn string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Whether a text can be the name of a group (useradd(8), plus capitals and dots as in directory
/// services).
fn is_group_name(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && !text.starts_with('-')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// Whether a text is an address and a port that others might reach.
fn is_elsewhere(text: &str) -> bool {
    text.parse::<SocketAddr>()
        .is_ok_and(|address| !address.ip().is_loopback())
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
