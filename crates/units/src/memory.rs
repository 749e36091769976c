//! Memory limits for parsing: 16 MB of text can take gigabytes.

use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// A text would take too much memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found {found}, expected {}", TooMuch::EXPECTED)]
pub struct TooMuch {
    /// First byte beyond the limit.
    pub at: usize,
    /// Amount found.
    pub found: String,
}

impl TooMuch {
    /// Amount accepted.
    pub const EXPECTED: &str = "fewer";
}

/// Default limit of the memory for parsing a text, in bytes.
pub const MEMORY_MAX: u64 = 224 << 20;

/// Bytes that TOML's parser keeps per token until the end: the token, in a vector that may be half
/// empty, and an event.
const TOKEN_BYTES: u64 = 72;
/// Bytes of a parsed key or value, in a vector that may be half empty.
const VALUE_BYTES: u64 = 64;
/// Bytes of a parsed table with one key: a B-tree's node, which has space for eleven.
const TABLE_BYTES: u64 = 1200;

/// Refuses TOML that would take more memory than a limit in bytes, a multiple of 1 MiB.
///
/// # Errors
/// The position of the first byte beyond the limit.
pub fn check_toml(text: &str, max: u64) -> Result<(), TooMuch> {
    let mut taken = TakenMemory { bytes: 0, max };
    let mut is_line_start = true;
    for token in Source::new(text).lex() {
        let of_kind = match token.kind() {
            TokenKind::LeftCurlyBracket | TokenKind::Dot => TABLE_BYTES,
            TokenKind::LeftSquareBracket if is_line_start => TABLE_BYTES,
            TokenKind::LeftSquareBracket
            | TokenKind::Atom
            | TokenKind::BasicString
            | TokenKind::LiteralString
            | TokenKind::MlBasicString
            | TokenKind::MlLiteralString => VALUE_BYTES,
            _ => 0,
        };
        taken.add_bytes(TOKEN_BYTES + of_kind, token.span().start())?;
        match token.kind() {
            TokenKind::Newline => is_line_start = true,
            TokenKind::Whitespace => {}
            _ => is_line_start = false,
        }
    }
    Ok(())
}

/// Refuses JSON that would take too much memory.
///
/// # Errors
/// The position of the first byte beyond the limit.
pub fn check_json(text: &str) -> Result<(), TooMuch> {
    let mut taken = TakenMemory {
        bytes: 0,
        max: MEMORY_MAX,
    };
    let mut bytes = text.bytes().enumerate();
    let mut is_string = false;
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => is_string = !is_string,
            b'\\' if is_string => drop(bytes.next()),
            _ if is_string => {}
            b'{' => taken.add_bytes(TABLE_BYTES, at)?,
            b'[' | b',' | b':' => taken.add_bytes(VALUE_BYTES, at)?,
            _ => {}
        }
    }
    Ok(())
}

struct TakenMemory {
    bytes: u64,
    max: u64,
}

impl TakenMemory {
    fn add_bytes(&mut self, bytes: u64, at: usize) -> Result<(), TooMuch> {
        self.bytes += bytes;
        if self.bytes <= self.max {
            return Ok(());
        }
        let found = format!(
            "more tables, values and lines than fit into {} MiB of memory",
            self.max >> 20
        );
        Err(TooMuch { at, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_fit_and_dense_ones_do_not() {
        let comments = format!("# {}\n", "word ".repeat(20)).repeat(150_000);
        assert!(comments.len() > 15_000_000);
        assert_eq!(check_toml(&comments, MEMORY_MAX), Ok(()));
        let string = format!("[\"{}\\\"\"]", "{[,".repeat(5_000_000));
        assert_eq!(check_json(&string), Ok(()));
        let refused = |dense: &str, checked: Result<(), TooMuch>| {
            let TooMuch { at, .. } = checked.expect_err(dense);
            assert!(at < 8 << 20, "{dense:?}: {at}");
        };
        for dense in [
            "#\n",
            "\n",
            "[a]\nb=1\n",
            "a.b.c=1\n",
            "a={}\n",
            "a=[1,1,1,1,1]\n",
        ] {
            let text = dense.repeat((16 << 20) / dense.len());
            refused(dense, check_toml(&text, MEMORY_MAX));
        }
        for dense in ["[],", "{},", "0,"] {
            refused(dense, check_json(&dense.repeat((16 << 20) / dense.len())));
        }
    }
}
