//! Texts of others that are shown.

use thalweg_units::is_unseen;

/// A text without unseen characters, at most so many characters long.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let clean = |it: char| if is_unseen(it) { ' ' } else { it };
    let mut line: String = text.chars().take(most).map(clean).collect();
    if text.chars().nth(most).is_some() {
        line.push('…');
    }
    line
}

/// Whether a text of others may be shown: not empty, short, printable.
pub(crate) fn is_text(text: &str, most: usize) -> bool {
    !text.is_empty() && text.len() <= most && !text.contains(is_unseen)
}
