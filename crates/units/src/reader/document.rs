//! A text, and its faults.

use std::cell::RefCell;
use std::path::Path;

use super::asked::Record;
use crate::fault::{Fault, Faults, Position, line_and_column};

/// Largest number of reported faults.
const FAULTS_MAX: usize = 100;

/// The whole text, and its faults.
pub struct Document<'a> {
    /// For messages only.
    pub file: &'a Path,
    /// The text.
    pub text: &'a str,
    /// Start of each line.
    lines: Vec<u32>,
    faults: RefCell<Vec<Fault>>,
    /// Record of the keys that readers ask for; `None` while a file is read.
    pub(super) record: Option<&'a RefCell<Record>>,
}

impl<'a> Document<'a> {
    /// A text without faults so far.
    pub fn new(file: &'a Path, text: &'a str) -> Self {
        // A file has up to 16 MiB, and perhaps as many lines. So the vector has the needed
        // capacity: a growing one has up to twice that.
        let mut lines = Vec::with_capacity(text.matches('\n').count() + 1);
        lines.push(0);
        lines.extend(text.match_indices('\n').map(|(at, _)| at as u32 + 1));
        Self {
            file,
            text,
            lines,
            faults: RefCell::default(),
            record: None,
        }
    }

    /// An empty text that takes down what readers ask for.
    pub(super) fn blank_document(file: &'a Path, record: &'a RefCell<Record>) -> Self {
        Self {
            record: Some(record),
            ..Self::new(file, "")
        }
    }

    /// Line and column of a byte.
    pub fn position(&self, at: usize) -> Position {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let line = self.lines.partition_point(|&start| start as usize <= at);
        // The first line starts at 0, so at least one does not start after `at`.
        let start = self.lines[line - 1] as usize;
        Position {
            line,
            column: self.text[start..at].chars().count() + 1,
        }
    }

    /// Reports a fault.
    pub fn fault(
        &self,
        at: Position,
        key: Option<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.add_fault(Fault {
            file: self.file.to_path_buf(),
            at,
            key,
            found: found.into(),
            expected: expected.into(),
        });
    }

    /// Adds a fault, possibly of another file that this one names.
    pub(super) fn add_fault(&self, fault: Fault) {
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

    /// Whether no more faults are reported.
    pub fn is_full(&self) -> bool {
        self.faults.borrow().len() > FAULTS_MAX
    }

    /// Number of faults so far.
    pub(super) fn fault_count(&self) -> usize {
        self.faults.borrow().len()
    }

    /// Whether there is no fault so far.
    pub fn is_clean(&self) -> bool {
        self.faults.borrow().is_empty()
    }

    /// The faults, in the order of the text; then those of other files.
    pub fn take_faults(&self) -> Faults {
        let mut faults = self.faults.take();
        faults.sort_by_key(|fault| (fault.file != self.file, fault.at));
        Faults(faults)
    }
}

/// A file's content as text; `file` is for messages only.
///
/// # Errors
/// The first byte that is not UTF-8.
pub fn decode_text<'b>(bytes: &'b [u8], file: &Path) -> Result<&'b str, Faults> {
    std::str::from_utf8(bytes).map_err(|error| {
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        // The valid part is UTF-8 by the contract of `valid_up_to`.
        let (line, column) = line_and_column(&String::from_utf8_lossy(valid), valid.len());
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
