//! The text of a policy, its parts, and what was found wrong with it.

use std::cell::RefCell;
use std::path::Path;

use toml_parser::Source;
use toml_parser::lexer::TokenKind;

use crate::error::{Fault, Faults, Position};

/// Most faults that are told.
const FAULTS_MAX: usize = 100;

/// The whole text.
pub(super) struct Document<'a> {
    pub file: &'a Path,
    pub text: &'a str,
    /// Where each line begins.
    lines: Vec<u32>,
    faults: RefCell<Vec<Fault>>,
}

impl<'a> Document<'a> {
    pub fn new(file: &'a Path, text: &'a str) -> Self {
        // A file has 16 MiB at most, and perhaps as many lines: of the size that is needed, since
        // one that grows has up to twice that.
        let mut lines = Vec::with_capacity(text.matches('\n').count() + 1);
        lines.push(0);
        lines.extend(text.match_indices('\n').map(|(at, _)| at as u32 + 1));
        Self {
            file,
            text,
            lines,
            faults: RefCell::default(),
        }
    }

    /// Where each line begins that can only be the header of a rule, `[[rule]]`. From one to the
    /// next the text is TOML by itself. (Quoted, the name may stand in a list as well.)
    pub fn rules(&self) -> Vec<usize> {
        use TokenKind::{Atom, LeftSquareBracket, RightSquareBracket};
        const HEADER: [TokenKind; 5] = [
            LeftSquareBracket,
            LeftSquareBracket,
            Atom,
            RightSquareBracket,
            RightSquareBracket,
        ];
        let mut rules = Vec::new();
        // How much of a header the line is so far; `None` where it is something else.
        let mut seen = Some(0);
        let mut at = 0;
        for token in Source::new(self.text).lex() {
            let span = token.span();
            match (token.kind(), seen) {
                (TokenKind::Newline, _) => seen = Some(0),
                (TokenKind::Whitespace, _) => {}
                (kind, Some(place))
                    if HEADER.get(place) == Some(&kind)
                        && (kind != Atom || self.text[span.start()..span.end()] == *"rule") =>
                {
                    if place == 0 {
                        at = span.start();
                    }
                    if place + 1 == HEADER.len() {
                        rules.push(at);
                    }
                    seen = Some(place + 1);
                }
                _ => seen = None,
            }
        }
        rules
    }

    pub fn position(&self, at: usize) -> Position {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let line = self.lines.partition_point(|&start| start as usize <= at);
        // The first line begins at 0, so at least one does not begin after `at`.
        let start = self.lines[line - 1] as usize;
        Position {
            line,
            column: self.text[start..at].chars().count() + 1,
        }
    }

    pub fn fault(
        &self,
        at: Position,
        key: Option<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        let mut faults = self.faults.borrow_mut();
        if faults.len() < FAULTS_MAX {
            faults.push(Fault {
                file: self.file.to_path_buf(),
                at,
                key,
                found: found.into(),
                expected: expected.into(),
            });
        } else if faults.len() == FAULTS_MAX {
            faults.push(Fault {
                file: self.file.to_path_buf(),
                at,
                key: None,
                found: format!("more than {FAULTS_MAX} faults"),
                expected: "fewer: the rest is not looked at".to_owned(),
            });
        }
    }

    /// Whether no more faults are told.
    pub fn is_full(&self) -> bool {
        self.faults.borrow().len() > FAULTS_MAX
    }

    pub fn is_clean(&self) -> bool {
        self.faults.borrow().is_empty()
    }

    pub fn take_faults(&self) -> Faults {
        let mut faults = self.faults.take();
        faults.sort_by_key(|fault| fault.at);
        Faults(faults)
    }
}
