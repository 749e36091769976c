//! Size limit for the parts of a document, which a parser keeps whole.

use std::io::{Error, ErrorKind, Read, Result};

/// Brackets around a host: those of the document and of its list of hosts.
const LIST_DEPTH: u32 = 2;

/// A reader of a document that fails within the first field or host larger than `max_bytes`. White
/// space between values does not count, as a parser keeps none.
pub(super) struct Parts<R> {
    document: R,
    max_bytes: u64,
    /// Bytes of the present field or host so far.
    found_bytes: u64,
    /// Number of open brackets.
    depth: u32,
    in_string: bool,
    /// Whether the last character was a backslash, in a string.
    is_escaped: bool,
}

impl<R> Parts<R> {
    pub fn new(document: R, max_bytes: u64) -> Self {
        Self {
            document,
            max_bytes,
            found_bytes: 0,
            depth: 0,
            in_string: false,
            is_escaped: false,
        }
    }

    fn count(&mut self, byte: u8) {
        let mut is_border = false;
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
        } else {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => return,
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    self.depth = self.depth.saturating_add(1);
                    is_border = true;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    is_border = true;
                }
                b',' => is_border = true,
                _ => {}
            }
        }
        self.found_bytes = match is_border && self.depth <= LIST_DEPTH {
            true => 0,
            false => self.found_bytes + 1,
        };
    }
}

impl<R: Read> Read for Parts<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.found_bytes > self.max_bytes {
            let text = format!(
                "found a field or host of more than {} bytes",
                self.max_bytes
            );
            return Err(Error::new(ErrorKind::InvalidData, text));
        }
        let read = self.document.read(buffer)?;
        for (index, byte) in buffer[..read].iter().enumerate() {
            self.count(*byte);
            if self.found_bytes > self.max_bytes {
                // The parser gets these bytes first, so that its error has the place.
                return Ok(index + 1);
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    use super::*;

    const MAX_BYTES: u64 = 100;

    fn read(text: &str) -> (Result<usize>, Vec<u8>) {
        let mut read = Vec::new();
        let outcome = Parts::new(text.as_bytes(), MAX_BYTES).read_to_end(&mut read);
        (outcome, read)
    }

    #[test]
    fn part_without_end_is_refused_within_the_limit() {
        for (start, piece) in [
            ("{\"boot_id\":\"", "a"),
            ("{\"boot_id\":\"", "\\\""),
            ("{\"boot_id\":\"", "{},"),
            ("{\"", "k"),
            ("{\"version\":", "1"),
            ("", "["),
            ("", "{\"a\":"),
            ("{\"hosts\":[{\"address\":\"", "},"),
            ("{\"hosts\":[{\"arms\":{", "\"a\":{},"),
            ("{\"hosts\":[{\"a\":0},{", "\"a\":0,"),
        ] {
            let (outcome, read) = read(&format!("{start}{}", piece.repeat(1000)));
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{start}{piece}");
            let text = "found a field or host of more than 100 bytes";
            assert_eq!(error.to_string(), text, "{start}{piece}");
            let most = start.len() + MAX_BYTES as usize + 16;
            assert!(read.len() <= most, "{start}{piece}: {}", read.len());
        }
    }

    #[test]
    fn document_of_small_parts_is_read_whole() {
        let host = "{\"address\": \"a,\\\"}]\",\n\t\"arms\": {\"cubic\": {}, \"bbr\": {}}}";
        let gap = format!(",\r\n{}", " ".repeat(1000));
        let hosts = vec![host; 100].join(&gap);
        let text = format!("{{\"version\": 2,\n\"hosts\": [{hosts}], \"mode\": \"thalweg\"}}\n");
        let (outcome, read) = read(&text);
        assert_eq!(outcome.unwrap(), text.len());
        assert_eq!(read, text.as_bytes());
    }
}
