//! A fault at a place in a file.

use crate::printable::is_unseen;
use std::fmt;
use std::path::PathBuf;

/// A place in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

/// One fault in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: PathBuf,
    /// Position in the file.
    pub at: Position,
    /// Dotted name of the faulty key.
    pub key: Option<String>,
    /// Value found.
    pub found: String,
    /// Values accepted.
    pub expected: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.at;
        write!(f, "{}:{line}:{column}: ", self.file.display())?;
        if let Some(key) = &self.key {
            write!(f, "{}: ", one_line(key))?;
        }
        // Either may quote the file, which may hold anything.
        let (found, expected) = (
            one_line(&self.found),
            bounded_line(&self.expected, LONGEST_LIST),
        );
        write!(f, "found {found}, expected {expected}")
    }
}

/// All faults of a text, in its order; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl std::error::Error for Faults {}

/// One a line.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

impl Faults {
    /// The first fault in one line, with the command that reports the others.
    pub fn first_fault(&self, command: &str) -> String {
        match &self.0[..] {
            [] => "a fault that is not known".to_owned(),
            [fault] => fault.to_string(),
            [fault, others @ ..] => {
                let (count, file) = (others.len(), fault.file.display());
                format!("{fault} ({count} more: `{command} {file}`)")
            }
        }
    }
}

/// Longest part of a line that [`excerpt`] shows, in characters.
const EXCERPT: usize = 90;

/// The line of a place, and below it a mark, two lines in all; empty if there is no such line.
pub fn excerpt(text: &str, at: Position) -> String {
    let Some(line) = text.lines().nth(at.line.saturating_sub(1)) else {
        return String::new();
    };
    // A fault far to the right is shown with the text before it.
    let skipped = at.column.saturating_sub(EXCERPT);
    let shown: String = line
        .chars()
        .skip(skipped)
        .take(EXCERPT)
        .map(
            |character| {
                if is_unseen(character) { ' ' } else { character }
            },
        )
        .collect();
    let before = at.column.saturating_sub(skipped + 1);
    format!("  | {}\n  | {}^\n", shown.trim_end(), " ".repeat(before))
}

/// Line and column, counted from 1, of a byte offset.
pub fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

/// Characters of a message that [`one_line`] keeps.
const LONGEST: usize = 400;
/// Characters of accepted values that a fault shows: lists of names are long.
const LONGEST_LIST: usize = 1500;

/// A parser's message as one line that a terminal can show. Its quotes from the text may contain
/// anything, and be long.
pub fn one_line(message: &str) -> String {
    bounded_line(message, LONGEST)
}

fn bounded_line(message: &str, longest: usize) -> String {
    let (mut line, mut count) = (String::new(), 0);
    for character in message.trim().chars() {
        if count >= longest {
            line.push('…');
            break;
        }
        let start = line.len();
        match character {
            '\n' => line.push_str(", "),
            character if is_unseen(character) => line.extend(character.escape_default()),
            character => line.push(character),
        }
        count += line[start..].chars().count();
    }
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    use super::*;

    #[test]
    fn faults_are_one_short_line_whatever_they_quote() {
        let fault = Fault {
            file: "f.toml".into(),
            at: Position { line: 1, column: 2 },
            key: Some("a\u{9b}".repeat(300)),
            found: "\0x\n".repeat(1 << 16),
            expected: format!("no controller `{}`", "\u{1b}".repeat(1 << 16)),
        };
        let line = fault.to_string();
        assert!(!line.chars().any(is_unseen), "{line:?}");
        assert!(line.len() < 4000, "{}", line.len());
    }

    #[test]
    fn messages_become_one_line_of_limited_length() {
        assert_eq!(one_line("a\nb\x1b[2J\u{9b}µ\n"), "a, b\\u{1b}[2J\\u{9b}µ");
        assert_eq!(one_line(&"µ".repeat(400)), "µ".repeat(400));
        assert_eq!(one_line(&"µ".repeat(401)), "µ".repeat(400) + "…");
    }

    #[test]
    fn excerpts_show_the_place() {
        let text = "a = 1\n\tµs = 2  \n";
        let at = |line, column| excerpt(text, Position { line, column });
        assert_eq!(at(1, 5), "  | a = 1\n  |     ^\n");
        assert_eq!(at(2, 7), "  |  µs = 2\n  |       ^\n");
        assert_eq!(at(9, 1), "");
        let long = format!("{}!", "x".repeat(500));
        let shown = excerpt(
            &long,
            Position {
                line: 1,
                column: 501,
            },
        );
        assert!(
            shown.starts_with("  | xxx") && shown.contains("x!\n"),
            "{shown}"
        );
        let (line, mark) = shown.split_once('\n').unwrap();
        assert_eq!(line.len() + 1, mark.len(), "{shown}");
    }

    #[test]
    fn of_several_faults_the_first_is_told() {
        let fault = |line| Fault {
            file: "f.toml".into(),
            at: Position { line, column: 1 },
            key: None,
            found: "x".into(),
            expected: "y".into(),
        };
        let one = Faults(vec![fault(1)]).first_fault("check");
        assert_eq!(one, "f.toml:1:1: found x, expected y");
        let two = Faults(vec![fault(1), fault(2)]).first_fault("check");
        assert_eq!(two, format!("{one} (1 more: `check f.toml`)"));
    }

    #[test]
    fn positions_count_characters() {
        let text = "a = 1\nµs = 2\n";
        assert_eq!(line_and_column(text, 0), (1, 1));
        assert_eq!(line_and_column(text, 6), (2, 1));
        // µ takes two bytes.
        assert_eq!(line_and_column(text, 9), (2, 3));
        assert_eq!(line_and_column(text, 1_000), (3, 1));
    }
}
