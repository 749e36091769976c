//! Texts of others that are shown.

/// A text without control characters, at most so many characters long.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let clean = |it: char| if it.is_control() { ' ' } else { it };
    let mut line: String = text.chars().take(most).map(clean).collect();
    if text.chars().nth(most).is_some() {
        line.push('…');
    }
    line
}

/// Whether a text of others may be shown: not empty, short, printable.
pub(crate) fn is_text(text: &str, most: usize) -> bool {
    !text.is_empty() && text.len() <= most && !text.chars().any(char::is_control)
}
