//! A text, and the faults that were found in it.

use std::cell::RefCell;
use std::path::Path;

use crate::fault::{Fault, Faults, Position, position};

/// Most faults that are told.
const FAULTS_MAX: usize = 100;

/// The whole text, and what was found wrong with it.
pub struct Document<'a> {
    /// Serves for messages alone.
    pub file: &'a Path,
    /// The text.
    pub text: &'a str,
    /// Where each line begins.
    lines: Vec<u32>,
    faults: RefCell<Vec<Fault>>,
}

impl<'a> Document<'a> {
    /// A text without faults so far.
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

    /// Line and column of a byte.
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

    /// Adds a fault.
    pub fn fault(
        &self,
        at: Position,
        key: Option<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.add(Fault {
            file: self.file.to_path_buf(),
            at,
            key,
            found: found.into(),
            expected: expected.into(),
        });
    }

    /// Adds a fault, which may be of another file that this one names.
    pub(super) fn add(&self, fault: Fault) {
        let mut faults = self.faults.borrow_mut();
        if faults.len() < FAULTS_MAX {
            faults.push(fault);
        } else if faults.len() == FAULTS_MAX {
            faults.push(Fault {
                key: None,
                found: format!("more than {FAULTS_MAX} faults"),
                expected: "fewer: the rest is not looked at".to_owned(),
                ..fault
            });
        }
    }

    /// Whether no more faults are told.
    pub fn is_full(&self) -> bool {
        self.faults.borrow().len() > FAULTS_MAX
    }

    /// Faults so far.
    pub(super) fn count(&self) -> usize {
        self.faults.borrow().len()
    }

    /// Whether there is no fault so far.
    pub fn is_clean(&self) -> bool {
        self.faults.borrow().is_empty()
    }

    /// The faults, in the order of the text; after them those of other files.
    pub fn take_faults(&self) -> Faults {
        let mut faults = self.faults.take();
        faults.sort_by_key(|fault| (fault.file != self.file, fault.at));
        Faults(faults)
    }
}

/// A file's content as text; `file` serves for messages alone.
///
/// # Errors
/// The first byte that is not UTF-8.
pub fn text<'b>(bytes: &'b [u8], file: &Path) -> Result<&'b str, Faults> {
    std::str::from_utf8(bytes).map_err(|error| {
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        // The valid part is text by the contract of `valid_up_to`.
        let (line, column) = position(&String::from_utf8_lossy(valid), valid.len());
        let byte = rest.first().copied().unwrap_or_default();
        Faults(vec![Fault {
            file: file.to_path_buf(),
            at: Position { line, column },
            key: None,
            found: format!("the byte 0x{byte:02x}"),
            expected: "UTF-8 text".to_owned(),
        }])
    })
}
