//! Texts of others, as they may be shown: on terminals, pages, in logs and labels.

use std::borrow::Cow;

/// Whether a character would steer a terminal, or hide or reorder what a reader sees: control
/// characters, line separators, direction marks, and characters without width (Unicode's Cf, Zl and
/// Zp, and fillers).
pub fn is_unseen(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
                | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
        )
}

/// A text as one line, with unseen characters escaped.
pub fn printable(text: &str) -> String {
    escape_unseen(text, is_unseen, char::escape_default).into_owned()
}

/// As [`printable`], but lines and tabs stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let is_escaped = |it: char| !matches!(it, '\n' | '\t') && is_unseen(it);
    escape_unseen(text, is_escaped, char::escape_default)
}

fn escape_unseen<T: std::fmt::Display>(
    text: &str,
    is_escaped: impl Fn(char) -> bool,
    escape: impl Fn(char) -> T,
) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_escaped(character) {
            true => shown += &escape(character).to_string(),
            false => shown.push(character),
        }
    }
    Cow::Owned(shown)
}

/// A JSON document with unseen characters in its strings escaped. Its value stays the same.
pub fn printable_json(document: &str) -> Cow<'_, str> {
    let is_escaped = |it: char| !it.is_ascii_whitespace() && is_unseen(it);
    escape_unseen(document, is_escaped, |character| {
        let mut units = [0; 2];
        let units = character.encode_utf16(&mut units).iter();
        units
            .map(|unit| format!("\\u{unit:04x}"))
            .collect::<String>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str =
        "a\x1b[2J\u{9b}\u{202e}\u{2028}\u{200b}\u{2066}\u{feff}\u{e0041}\r\u{7f}ü";

    #[test]
    fn printable_text_has_nothing_that_a_reader_does_not_see() {
        let shown = printable(HOSTILE);
        assert!(!shown.contains(is_unseen), "{shown:?}");
        assert_eq!(
            shown,
            "a\\u{1b}[2J\\u{9b}\\u{202e}\\u{2028}\\u{200b}\\u{2066}\\u{feff}\\u{e0041}\\r\\u{7f}ü"
        );
        assert_eq!(printable("a\nb\u{fffd}"), "a\\nb\u{fffd}");
        assert_eq!(printable_lines("ä\tb\nc\u{202e}"), "ä\tb\nc\\u{202e}");
    }

    #[test]
    fn printable_json_keeps_its_value() {
        let document = "{\n  \"a\": \"\u{202e}\u{7f}\u{e0041}ü\"\n}\n";
        let shown = printable_json(document);
        assert_eq!(shown, "{\n  \"a\": \"\\u202e\\u007f\\udb40\\udc41ü\"\n}\n");
    }
}
