//! Delivery traces in Mahimahi's format.
//!
//! Each line is a whole number of milliseconds since the start; at that moment
//! one packet of 1504 bytes may leave (an IP packet of 1500 bytes, and the 4
//! bytes that Mahimahi's TUN device puts before it). The same moment on several
//! lines lets several leave. After the last line the trace begins again, with
//! the last line's moment as the new start.

use std::fmt;
use std::path::{Path, PathBuf};

use thalweg_units::file::{MAX_FILE_BYTES, read_bytes};

use crate::error::Error;

/// Bytes that one opportunity carries, [`OVERHEAD_BYTES`] included.
pub const OPPORTUNITY_BYTES: u64 = 1504;

/// Bytes that a trace counts for each packet beyond its IP length.
pub const OVERHEAD_BYTES: u64 = 4;

const NS_PER_MS: u64 = 1_000_000;

/// The latest moment that a line may name: somewhat more than eleven days.
const LATEST_MS: u64 = 1_000_000_000;

/// When packets may leave; never empty, and it lasts longer than nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// In the order of the file, which is that of time.
    opportunities_ms: Vec<u64>,
}

/// Where a trace is not one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The column in bytes, from 1.
    pub column: usize,
    /// The fault, and what was expected.
    pub problem: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            line,
            column,
            problem,
        } = self;
        write!(f, "{}:{line}:{column}: {problem}", path.display())
    }
}

impl std::error::Error for TraceError {}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// The file cannot be read, or is not a trace.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Ok(Self::parse(&read_bytes(path, MAX_FILE_BYTES)?, path)?)
    }

    /// Parses a trace; the path is for errors only.
    ///
    /// # Errors
    /// The first line that is not a moment, or is before the previous one.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, TraceError> {
        let fault = |line: usize, column: usize, problem: String| TraceError {
            path: path.to_owned(),
            line,
            column,
            problem,
        };
        let mut opportunities_ms: Vec<u64> = Vec::new();
        let body = text.strip_suffix(b"\n").unwrap_or(text);
        let lines = body.split(|byte| *byte == b'\n');
        for (index, line) in lines.enumerate().filter(|_| !body.is_empty()) {
            let number = index + 1;
            let digits = line.strip_suffix(b"\r").unwrap_or(line);
            if digits.is_empty() {
                let problem = "expected a whole number of milliseconds, found an empty line";
                return Err(fault(number, 1, problem.to_owned()));
            }
            if let Some(at) = digits.iter().position(|byte| !byte.is_ascii_digit()) {
                let found = String::from_utf8_lossy(&digits[at..]).chars().next();
                let problem = format!(
                    "expected a whole number of milliseconds, found {:?}",
                    found.unwrap_or_default()
                );
                return Err(fault(number, at + 1, problem));
            }
            let moment_ms = digits
                .iter()
                .try_fold(0u64, |value, digit| {
                    value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
                })
                .filter(|value| *value <= LATEST_MS)
                .ok_or_else(|| {
                    let problem = format!("expected at most {LATEST_MS} milliseconds");
                    fault(number, 1, problem)
                })?;
            if let Some(before) = opportunities_ms.last().filter(|last| **last > moment_ms) {
                let problem = format!(
                    "{moment_ms} ms is before the previous line's {before} ms; \
                     expected moments in the order of time"
                );
                return Err(fault(number, 1, problem));
            }
            opportunities_ms.push(moment_ms);
        }
        match opportunities_ms.last() {
            None => {
                let problem = "the trace is empty; expected a number of milliseconds on each line";
                Err(fault(1, 1, problem.to_owned()))
            }
            Some(0) => {
                let problem = "the trace lasts 0 ms; expected a last moment after 0";
                Err(fault(opportunities_ms.len(), 1, problem.to_owned()))
            }
            Some(_) => Ok(Self { opportunities_ms }),
        }
    }

    /// After how long the trace begins again, in nanoseconds.
    pub fn period_ns(&self) -> u64 {
        // Never empty, by construction.
        self.opportunities_ms.last().map_or(1, |ms| ms * NS_PER_MS)
    }

    /// The mean rate in bits of full-sized IP packets per second.
    pub fn mean_bps(&self) -> u64 {
        let bits = self.opportunities_ms.len() as u128
            * u128::from(OPPORTUNITY_BYTES - OVERHEAD_BYTES)
            * 8;
        (bits * 1_000_000_000 / u128::from(self.period_ns())) as u64
    }

    /// The rate in each step of so many milliseconds, in bits of full-sized IP packets per second.
    /// A part of a step at the end is left out. A trace shorter than a step has its mean.
    pub fn rates_bps(&self, step_ms: u64) -> Vec<u64> {
        let steps = self.period_ns() / NS_PER_MS / step_ms;
        if steps == 0 {
            return vec![self.mean_bps()];
        }
        let mut counts = vec![0; steps as usize];
        for ms in &self.opportunities_ms {
            // The last line's moment is the begin of the next round.
            if let Some(count) = counts.get_mut((ms / step_ms) as usize) {
                *count += 1;
            }
        }
        let bits = (OPPORTUNITY_BYTES - OVERHEAD_BYTES) * 8;
        let rate = |count: u64| count * bits * 1000 / step_ms;
        counts.into_iter().map(rate).collect()
    }

    /// The moment of the opportunity with this number, in nanoseconds.
    pub(crate) fn moment_ns(&self, number: u64) -> u64 {
        let count = self.opportunities_ms.len() as u64;
        (number / count) * self.period_ns()
            + self.opportunities_ms[(number % count) as usize] * NS_PER_MS
    }

    /// The number of the first opportunity that is not before `now_ns`.
    pub(crate) fn first_from(&self, now_ns: u64) -> u64 {
        let count = self.opportunities_ms.len() as u64;
        // A moment that ends one round may be the last line's: look from there.
        let round = now_ns.saturating_sub(1) / self.period_ns();
        let within_ns = now_ns - round * self.period_ns();
        let before = self
            .opportunities_ms
            .partition_point(|ms| ms * NS_PER_MS < within_ns);
        round * count + before as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Trace, TraceError> {
        Trace::parse(text.as_bytes(), Path::new("some.trace"))
    }

    #[test]
    fn rounds_follow_each_other() {
        let trace = parse("2\n2\n5\n").unwrap();
        let moments: Vec<u64> = (0..7).map(|n| trace.moment_ns(n) / NS_PER_MS).collect();
        assert_eq!(moments, [2, 2, 5, 7, 7, 10, 12]);
        for (now_ns, first) in [
            (0, 0),
            (2 * NS_PER_MS, 0),
            (2 * NS_PER_MS + 1, 2),
            (5 * NS_PER_MS, 2),
            (5 * NS_PER_MS + 1, 3),
            (10 * NS_PER_MS, 5),
            (10 * NS_PER_MS + 1, 6),
        ] {
            assert_eq!(trace.first_from(now_ns), first, "{now_ns}");
        }
        assert_eq!(trace.mean_bps(), 3 * 1500 * 8 * 200);
    }

    #[test]
    fn steps_have_the_rate_of_their_lines() {
        // 2 packets in the first 200 ms, none in the next, 3 in the last.
        let trace = parse("0\n150\n400\n401\n599\n600\n").unwrap();
        assert_eq!(trace.rates_bps(200), [120_000, 0, 180_000]);
        assert_eq!(parse("50\n").unwrap().rates_bps(200), [240_000]);
    }

    #[test]
    fn a_moment_shared_by_end_and_start_counts_twice() {
        let trace = parse("0\n4").unwrap();
        let moments: Vec<u64> = (0..4).map(|n| trace.moment_ns(n) / NS_PER_MS).collect();
        assert_eq!(moments, [0, 4, 4, 8]);
        assert_eq!(trace.first_from(4 * NS_PER_MS), 1);
        assert_eq!(trace.first_from(4 * NS_PER_MS + 1), 3);
    }

    #[test]
    fn faults_have_their_place() {
        for (text, place, part) in [
            ("", "some.trace:1:1:", "empty"),
            ("\n", "some.trace:1:1:", "empty"),
            ("0\n0\n", "some.trace:2:1:", "lasts 0 ms"),
            ("1\n\n2\n", "some.trace:2:1:", "an empty line"),
            ("1\n2x\n", "some.trace:2:2:", "found 'x'"),
            ("1\n 2\n", "some.trace:2:1:", "found ' '"),
            ("-1\n", "some.trace:1:1:", "found '-'"),
            ("1\n1.5\n", "some.trace:2:2:", "found '.'"),
            (
                "3\n2\n",
                "some.trace:2:1:",
                "before the previous line's 3 ms",
            ),
            ("99999999999999999999999\n", "some.trace:1:1:", "at most"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(place), "{text:?}: {error}");
            assert!(error.contains(part), "{text:?}: {error}");
        }
        assert!(parse("1\r\n2\r\n").is_ok());
    }
}
