//! A fault at a place in a file.

use std::fmt;
use std::path::PathBuf;

/// A fault in a scenario file, at a place in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct FileError {
    /// The file.
    pub file: PathBuf,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// What is wrong and what was expected.
    pub message: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            column,
            message,
        } = self;
        let message = one_line(message);
        write!(f, "{}:{line}:{column}: {message}", file.display())
    }
}

/// Line and column, counted from 1, of a byte offset.
pub fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

/// Characters of a message that [`one_line`] keeps.
const LONGEST: usize = 400;

/// A message of a parser as one line that a terminal can show: what it repeats of the text may be
/// anything, and long.
pub fn one_line(message: &str) -> String {
    let mut line = String::new();
    for (place, character) in message.trim().chars().enumerate() {
        match character {
            _ if place == LONGEST => {
                line.push('…');
                break;
            }
            '\n' => line.push_str(", "),
            character if character.is_control() => line.extend(character.escape_default()),
            character => line.push(character),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_one_line_of_limited_length() {
        assert_eq!(one_line("a\nb\x1b[2J\u{9b}µ\n"), "a, b\\u{1b}[2J\\u{9b}µ");
        assert_eq!(one_line(&"µ".repeat(400)), "µ".repeat(400));
        assert_eq!(one_line(&"µ".repeat(401)), "µ".repeat(400) + "…");
    }

    #[test]
    fn positions_count_characters() {
        let text = "a = 1\nµs = 2\n";
        assert_eq!(position(text, 0), (1, 1));
        assert_eq!(position(text, 6), (2, 1));
        // µ takes two bytes.
        assert_eq!(position(text, 9), (2, 3));
        assert_eq!(position(text, 1_000), (3, 1));
    }
}
