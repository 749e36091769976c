//! JSON Schemas: the forms of values, as an editor can check them.
//!
//! A schema never refuses what its reader accepts. What no schema can tell, such as the sum of two
//! values, it leaves to the reader.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use crate::grammar;

/// A form of values, as JSON Schema.
pub type Form = Value;

/// The dialect: the newest that editors' TOML checkers know.
pub const DIALECT: &str = "http://json-schema.org/draft-07/schema#";

/// `true` or `false`.
pub fn boolean() -> Form {
    json!({ "type": "boolean" })
}

/// A whole number within a range.
pub fn whole<T: Copy + Into<i128>>(range: RangeInclusive<T>) -> Form {
    let bound = |bound: &T| i64::try_from((*bound).into()).unwrap_or(i64::MAX);
    json!({ "type": "integer", "minimum": bound(range.start()), "maximum": bound(range.end()) })
}

/// A number within a range.
pub fn number(range: RangeInclusive<f64>) -> Form {
    json!({ "type": "number", "minimum": range.start(), "maximum": range.end() })
}

/// Any number.
pub fn any_number() -> Form {
    json!({ "type": "number" })
}

/// One of several words.
pub fn words<T: Display>(words: impl IntoIterator<Item = T>) -> Form {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string()).collect();
    json!({ "type": "string", "enum": words })
}

/// The schema of one value.
pub fn only(value: impl Into<Value>) -> Form {
    json!({ "const": value.into() })
}

/// Any text.
pub fn text() -> Form {
    json!({ "type": "string" })
}

/// A text of a pattern (ECMA 262).
pub fn pattern(pattern: &str) -> Form {
    json!({ "type": "string", "pattern": pattern })
}

/// A text of at least one and at most this many of some characters, as in a regular expression.
pub fn of_characters(characters: &str, most: usize) -> Form {
    pattern(&format!("^[{characters}]{{1,{most}}}$"))
}

/// A time with its unit.
pub fn time() -> Form {
    pattern(&grammar::time_pattern())
}

/// A size with its unit.
pub fn size() -> Form {
    pattern(&grammar::size_pattern())
}

/// A rate with its unit.
pub fn rate() -> Form {
    pattern(&grammar::rate_pattern())
}

/// A percentage.
pub fn percent() -> Form {
    pattern(&grammar::percent_pattern())
}

/// The name of a congestion control.
pub fn congestion_control() -> Form {
    pattern(&grammar::congestion_control_pattern())
}

/// An address or a prefix.
pub fn prefix() -> Form {
    pattern("^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$")
}

/// An absolute path.
pub fn path() -> Form {
    pattern("^/")
}

/// One of several forms.
pub fn any_of(forms: impl IntoIterator<Item = Value>) -> Form {
    json!({ "anyOf": forms.into_iter().collect::<Vec<_>>() })
}

/// A list of some values, each once if `once`.
pub fn list(item: Value, count: RangeInclusive<usize>, once: bool) -> Form {
    let mut list = json!({ "type": "array", "items": item });
    if *count.start() > 0 {
        list["minItems"] = json!(count.start());
    }
    if *count.end() < usize::MAX {
        list["maxItems"] = json!(count.end());
    }
    if once {
        list["uniqueItems"] = json!(true);
    }
    list
}

/// A table with these keys and no others.
pub fn table(keys: impl IntoIterator<Item = (String, Value)>, required: &[&str]) -> Form {
    let keys: Map<String, Value> = keys.into_iter().collect();
    let mut table = json!({ "type": "object", "properties": keys, "additionalProperties": false });
    if !required.is_empty() {
        table["required"] = json!(required);
    }
    table
}

/// The form with a text for its user.
pub fn with_description(mut form: Value, text: &str) -> Form {
    form["description"] = json!(text);
    form
}

/// The form with a default, given as TOML.
pub fn with_default(mut form: Value, default: &str) -> Form {
    let parsed = toml::from_str::<toml::Table>(&format!("it = {default}"));
    if let Some(value) = parsed.ok().and_then(|mut table| table.remove("it"))
        && let Ok(value) = serde_json::to_value(value)
    {
        form["default"] = value;
    }
    form
}

/// The schema as the text of a file: `title` says of what.
pub fn schema_file(title: &str, mut schema: Value) -> String {
    schema["$schema"] = json!(DIALECT);
    schema["title"] = json!(title);
    format!("{schema:#}\n")
}
