//! Values of TOML: numbers, names, and their words in messages.

use serde_json::Value;
use toml::de::DeValue;

use crate::schema;

/// Longest piece of the text in an error, in characters.
const QUOTE_MAX: usize = 60;

/// A whole number.
pub fn whole_number(value: &DeValue<'_>) -> Option<i64> {
    match value {
        DeValue::Integer(value) => i64::from_str_radix(value.as_str(), value.radix()).ok(),
        _ => None,
    }
}

/// A number, whole or not.
pub fn any_number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(value) => value.as_str().parse().ok(),
        other => whole_number(other).map(|value| value as f64),
    }
}

/// The names that [`file_name`] accepts.
pub const NAME: &str = "1 to 64 letters, digits, -, _ or ., not beginning with - or .";

/// The form of a name that [`file_name`] accepts.
pub fn name_form() -> Value {
    schema::pattern("^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")
}

/// A name that is also valid as a file name.
pub fn file_name(value: &DeValue<'_>) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let text = value.as_str()?;
    let good =
        (1..=64).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with(['-', '.']);
    good.then(|| text.to_owned())
}

/// A value in words.
pub fn describe_value(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string {}", quote_piece(text)),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(date) => format!("the date {date}"),
        DeValue::Array(items) => format!("a list of {}", items.len()),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// A piece of the text in quotes, control characters escaped, shortened if it is long.
pub fn quote_piece(piece: &str) -> String {
    let mut short: String = piece.chars().take(QUOTE_MAX).collect();
    if short.len() < piece.len() {
        short.push('…');
    }
    format!("{short:?}")
}
