//! Networks that the operator names: a file of prefixes and names, and the search in it.
//!
//! One `PREFIX NAME` a line, `#` begins a comment. The longest prefix of an address names its
//! network. The kernel searches the same prefixes in a trie ([`crate::kernel`]).

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use thalweg_learner::network_number;
use thalweg_policy::{Prefix, PrefixError};
use thalweg_units::file::{self, ReadError};
use thalweg_units::prefix::{MAPPED, address_bits, prefix_mask};
use thalweg_units::reader::quote_piece;
use thalweg_units::{Fault, Faults, Position, is_unseen};

use crate::trusted;

/// Most prefixes of a table; the Internet's routes are 1.3 million.
pub const PREFIXES_MAX: usize = 2_000_000;
/// Largest file.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Longest name, bytes.
const NAME_BYTES_MAX: usize = 64;
/// Number of faults after which reading ends.
const FAULTS_MAX: usize = 100;

/// A table of named networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Prefixes by address and length.
    entries: Vec<Entry>,
    names: Names,
}

/// A prefix and its name. 24 bytes, as there may be millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    address: [u8; 16],
    /// Length in the 128-bit form.
    length: u8,
    name: u32,
}

impl Entry {
    fn bits(&self) -> u128 {
        u128::from_be_bytes(self.address)
    }

    fn place(&self) -> (u128, u8) {
        (self.bits(), self.length)
    }

    fn prefix(&self) -> Prefix {
        Prefix::of(self.bits(), self.length)
    }
}

/// Names in one text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Names {
    text: String,
    /// End of each name in the text.
    ends: Vec<u32>,
    /// Numbers of the networks, in order, and indices of their names.
    by_number: Vec<(u64, u32)>,
}

impl Names {
    fn get(&self, index: u32) -> &str {
        let index = index as usize;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1] as usize,
        };
        &self.text[start..self.ends[index] as usize]
    }
}

impl Named {
    /// Reads a file; `None`: no network is named.
    ///
    /// # Errors
    /// The file cannot be read, or has faults: the first hundred are returned.
    pub fn read(file: Option<&Path>) -> Result<Self, ReadError> {
        let Some(file) = file else {
            return Ok(Self::default());
        };
        let text = file::decode_text(trusted::read(file, FILE_BYTES_MAX)?, file)?;
        Ok(Self::parse(&text, file)?)
    }

    /// Parses a text; `file` is for messages.
    ///
    /// # Errors
    /// The faults of the text, at most a hundred.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Faults> {
        Reading::of(text, file).finish(network_number)
    }

    /// Whether no network is named.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of prefixes.
    pub fn prefixes(&self) -> usize {
        self.entries.len()
    }

    /// Number of networks.
    pub fn networks(&self) -> usize {
        self.names.ends.len()
    }

    /// Number of the network of an address in canonical form: that of the longest prefix.
    pub fn find(&self, remote: IpAddr) -> Option<u64> {
        let bits = address_bits(remote);
        // Covered prefixes follow covering ones. So a prefix that does not cover the address leaves
        // only those that cover both.
        let mut place = (bits, 128);
        loop {
            let after = self.entries.partition_point(|it| it.place() <= place);
            let entry = self.entries[..after].last()?;
            let common = (entry.bits() ^ bits).leading_zeros() as u8;
            if entry.length <= common {
                // No IPv6 prefix contains IPv4.
                let is_own = entry.length >= MAPPED || bits >> 32 != 0xffff;
                return is_own.then(|| network_number(self.names.get(entry.name)));
            }
            place = (bits & prefix_mask(common), common);
        }
    }

    /// The name of a number, if it is in the table.
    pub fn name(&self, number: u64) -> Option<&str> {
        let by_number = &self.names.by_number;
        let at = by_number.binary_search_by_key(&number, |(number, _)| *number);
        Some(self.names.get(by_number[at.ok()?].1))
    }

    /// Prefixes and numbers for the kernel's trie. An entry with number 0 keeps IPv4 out of IPv6
    /// prefixes that cover its form.
    pub fn trie(&self) -> impl Iterator<Item = (Prefix, u64)> {
        let ipv4 = Prefix::all(true);
        let at = self
            .entries
            .binary_search_by_key(&(ipv4.bits(), MAPPED), Entry::place);
        let guard = (!self.is_empty() && at.is_err()).then_some((ipv4, 0));
        let number = |entry: &Entry| network_number(self.names.get(entry.name));
        let own = self.entries.iter();
        own.map(move |entry| (entry.prefix(), number(entry)))
            .chain(guard)
    }
}

/// A table while it is read.
struct Reading<'t> {
    file: &'t Path,
    /// Prefixes with their lines.
    entries: Vec<(Entry, u32)>,
    names: Vec<&'t str>,
    indices: HashMap<&'t str, u32>,
    faults: Vec<Fault>,
}

impl<'t> Reading<'t> {
    fn of(text: &'t str, file: &'t Path) -> Self {
        let mut reading = Self {
            file,
            entries: Vec::with_capacity(text.len() / 24),
            names: Vec::new(),
            indices: HashMap::new(),
            faults: Vec::new(),
        };
        for (line, number) in text.split('\n').zip(1..) {
            reading.line(line, number);
            if reading.faults.len() >= FAULTS_MAX || reading.entries.len() > PREFIXES_MAX {
                break;
            }
        }
        reading
    }

    /// Adds a fault; `at` is a byte offset in the line.
    fn fault(&mut self, line: &str, number: usize, at: usize, found: String, expected: &str) {
        self.faults.push(Fault {
            file: self.file.to_owned(),
            at: Position {
                line: number,
                column: line[..at].chars().count() + 1,
            },
            key: None,
            found,
            expected: expected.to_owned(),
        });
    }

    fn line(&mut self, line: &'t str, number: usize) {
        let content = line.split('#').next().unwrap_or_default().trim_end();
        let (prefix, rest) = word(content);
        if prefix.is_empty() {
            return;
        }
        let (name, more) = word(rest);
        let at = content.len() - prefix.len() - rest.len();
        let prefix = match Prefix::parse(prefix) {
            Ok(prefix) => prefix,
            Err(error) => {
                let expected = match error {
                    PrefixError::HostBits(cut) => {
                        format!("no bits beyond the length, \"{cut}\"")
                    }
                    PrefixError::Malformed => {
                        "a prefix such as \"10.0.0.0/8\" or \"2001:db8::/32\"".to_owned()
                    }
                };
                return self.fault(line, number, at, quote_piece(prefix), &expected);
            }
        };
        let at = content.len() - more.len() - name.len();
        if name.is_empty() {
            let found = "no name".to_owned();
            return self.fault(line, number, at, found, "PREFIX NAME");
        }
        if name.len() > NAME_BYTES_MAX || name.contains(is_unseen) {
            let expected = "a name of at most 64 bytes, without control or invisible characters";
            return self.fault(line, number, at, quote_piece(name), expected);
        }
        if !more.trim().is_empty() {
            let more = more.trim_start();
            let at = content.len() - more.len();
            return self.fault(line, number, at, quote_piece(more), "a name without spaces");
        }
        if self.entries.len() == PREFIXES_MAX {
            let found = format!("more than {PREFIXES_MAX} prefixes");
            return self.fault(line, number, 0, found, "at most that");
        }
        let next = self.names.len() as u32;
        let name = *self.indices.entry(name).or_insert_with(|| {
            self.names.push(name);
            next
        });
        let entry = Entry {
            address: prefix.bits().to_be_bytes(),
            length: prefix.length128(),
            name,
        };
        self.entries.push((entry, number as u32));
    }

    fn finish(mut self, number_of: fn(&str) -> u64) -> Result<Named, Faults> {
        self.entries
            .sort_unstable_by_key(|(entry, line)| (entry.place(), *line));
        self.find_contradictions();
        let mut by_number: Vec<(u64, u32)> = Vec::with_capacity(self.names.len());
        by_number.extend(
            self.names
                .iter()
                .zip(0..)
                .map(|(name, index)| (number_of(name), index)),
        );
        by_number.sort_unstable();
        self.find_collisions(&by_number);
        if !self.faults.is_empty() {
            self.faults.sort_by_key(|fault| fault.at);
            return Err(Faults(self.faults));
        }
        self.entries.dedup_by_key(|(entry, _)| entry.place());
        let mut names = Names {
            by_number,
            ..Names::default()
        };
        for name in self.names {
            names.text.push_str(name);
            names.ends.push(names.text.len() as u32);
        }
        names.text.shrink_to_fit();
        Ok(Named {
            entries: self.entries.into_iter().map(|(entry, _)| entry).collect(),
            names,
        })
    }

    /// Finds prefixes with two names.
    fn find_contradictions(&mut self) {
        let mut wrong = Vec::new();
        for pair in self.entries.windows(2) {
            let [(one, first), (other, line)] = pair else {
                continue;
            };
            if one.place() == other.place() && one.name != other.name {
                let found = format!(
                    "{} for {}",
                    quote_piece(self.names[other.name as usize]),
                    other.prefix()
                );
                let expected = format!(
                    "{}, as in line {first}",
                    quote_piece(self.names[one.name as usize])
                );
                wrong.push((*line, found, expected));
                if wrong.len() == FAULTS_MAX {
                    break;
                }
            }
        }
        for (line, found, expected) in wrong {
            self.fault("", line as usize, 0, found, &expected);
        }
    }

    /// Finds numbers with two names; `by_number` is sorted.
    fn find_collisions(&mut self, by_number: &[(u64, u32)]) {
        for pair in by_number.windows(2) {
            let [(one, first), (other, second)] = pair else {
                continue;
            };
            if one != other {
                continue;
            }
            let of_second = self
                .entries
                .iter()
                .filter(|(entry, _)| entry.name == *second);
            let line = of_second.map(|(_, line)| *line).min().unwrap_or(0);
            let found = quote_piece(self.names[*second as usize]);
            let expected = format!(
                "another name: its number is that of {}",
                quote_piece(self.names[*first as usize])
            );
            self.fault("", line as usize, 0, found, &expected);
        }
    }
}

/// The first word of a text, and the rest.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_units::random::Random;

    fn parse(text: &str) -> Result<Named, String> {
        Named::parse(text, Path::new("n.txt")).map_err(|faults| faults.to_string())
    }

    fn name<'n>(named: &'n Named, address: &str) -> Option<&'n str> {
        let number = named.find(address.parse().unwrap())?;
        Some(named.name(number).expect("a number of the table"))
    }

    #[test]
    fn the_longest_prefix_names_the_network() {
        let named = parse(
            "# mine\r\n\n10.0.0.0/8 wide\r\n\t10.1.0.0/16\tnarrow # here\n10.1.2.3 host\n\
             2001:db8::/32 narrow\n10.0.0.0/8 wide\n::/0 six",
        )
        .unwrap();
        assert_eq!((named.prefixes(), named.networks()), (5, 4));
        for (address, expected) in [
            ("10.9.9.9", Some("wide")),
            ("10.1.9.9", Some("narrow")),
            ("10.1.2.3", Some("host")),
            ("10.1.2.4", Some("narrow")),
            ("::ffff:10.1.2.3", Some("host")),
            ("11.0.0.0", None),
            ("2001:db8:1::", Some("narrow")),
            ("2001:db9::", Some("six")),
        ] {
            assert_eq!(name(&named, address), expected, "{address}");
        }
        // The trie keeps IPv4 out of ::/0.
        assert_eq!(named.trie().last(), Some((Prefix::all(true), 0)));
        assert_eq!(named.trie().count(), 6);
    }

    #[test]
    fn nothing_is_named_by_nothing() {
        for text in ["", "\n", "# 10.0.0.0/8 x", "\r\n\r\n"] {
            let named = parse(text).unwrap();
            assert!(named.is_empty() && named.trie().next().is_none());
            assert_eq!(name(&named, "10.0.0.1"), None);
        }
        assert_eq!(Named::read(None).unwrap(), Named::default());
    }

    #[test]
    fn faults_have_their_places() {
        let long = "x".repeat(65);
        for (text, expected) in [
            (
                "10.0.0/8 a",
                "n.txt:1:1: found \"10.0.0/8\", expected a prefix such as",
            ),
            (
                "\n  10.1.0.0/8 a",
                "n.txt:2:3: found \"10.1.0.0/8\", expected no bits beyond the length, \"10.0.0.0/8\"",
            ),
            (
                "10.0.0.0/8",
                "n.txt:1:11: found no name, expected PREFIX NAME",
            ),
            (
                "10.0.0.0/8 # a",
                "n.txt:1:11: found no name, expected PREFIX NAME",
            ),
            (
                "10.0.0.0/8 a b c",
                "n.txt:1:14: found \"b c\", expected a name without spaces",
            ),
            ("10.0.0.0/8 a\u{7}b", "n.txt:1:12: found"),
            (
                "# mine\n10.0.0.0/8 Ber\u{ad}lin",
                "n.txt:2:12: found \"Ber\\u{ad}lin\", expected a name of at most 64 bytes, without \
                 control or invisible characters",
            ),
            ("10.0.0.0/8 \u{200b}", "n.txt:1:12: found"),
            ("10.0.0.0/8 a\u{200c}", "n.txt:1:12: found"),
            (
                "10.0.0.0/8 a\n# x\n11.0.0.0/8 a\n10.0.0.0/8 b\n",
                "n.txt:4:1: found \"b\" for 10.0.0.0/8, expected \"a\", as in line 1",
            ),
            (
                "::ffff:10.0.0.0/104 a\n10.0.0.0/8 b\n",
                "n.txt:2:1: found \"b\" for 10.0.0.0/8, expected \"a\", as in line 1",
            ),
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.starts_with(expected), "{text:?}: {told}");
            assert_eq!(told.lines().count(), 1, "{told}");
        }
        assert!(
            parse(&format!("10.0.0.0/8 {long}"))
                .unwrap_err()
                .contains("at most 64 bytes")
        );
        assert!(parse(&format!("10.0.0.0/8 {}", &long[1..])).is_ok());
        // All of them, in the order of the lines, and an end.
        let told = parse("x a\n10.0.0.0/8 a\n10.0.0.0/8 b\ny b\n").unwrap_err();
        let lines: Vec<&str> = told.lines().map(|line| &line[..8]).collect();
        assert_eq!(lines, ["n.txt:1:", "n.txt:3:", "n.txt:4:"]);
        assert_eq!(
            parse(&"x a\n".repeat(1000)).unwrap_err().lines().count(),
            100
        );
    }

    #[test]
    fn two_names_of_one_number_are_a_fault() {
        let reading = Reading::of("10.0.0.0/8 one\n11.0.0.0/8 two\n", Path::new("n.txt"));
        let told = reading.finish(|_| 7).unwrap_err().to_string();
        assert_eq!(
            told,
            "n.txt:2:1: found \"two\", expected another name: its number is that of \"one\""
        );
    }

    #[test]
    fn too_many_prefixes_are_refused_at_their_line() {
        use std::fmt::Write as _;
        let mut text = String::new();
        for number in 0..=PREFIXES_MAX as u32 {
            writeln!(text, "{} a", std::net::Ipv4Addr::from(number)).unwrap();
        }
        let told = parse(&text).unwrap_err();
        assert_eq!(
            told,
            "n.txt:2000001:1: found more than 2000000 prefixes, expected at most that"
        );
    }

    #[test]
    fn text_that_is_not_utf8_is_told_with_its_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"10.0.0.0/8 a\n11.0.0.0/8 \xff\n").unwrap();
        let told = Named::read(Some(file.path())).unwrap_err().to_string();
        assert!(told.contains(":2:12: "), "{told}");
        let absent = Named::read(Some(Path::new("/nonexistent/n.txt"))).unwrap_err();
        assert!(absent.is_absent());
    }

    #[test]
    fn the_search_is_that_of_trying_every_prefix() {
        let mut random = Random::new(7);
        let mut prefixes: Vec<Prefix> = Vec::new();
        for _ in 0..400 {
            let below = random.u64() as u128 & 0xffff;
            let (bits, length) = match random.u64() % 2 {
                0 => (
                    0xffff << 32 | 10 << 24 | below,
                    96 + random.u64() as u8 % 33,
                ),
                _ => (0x2001_0db8 << 96 | below, random.u64() as u8 % 129),
            };
            let prefix = Prefix::of(bits, length);
            if !prefixes.contains(&prefix) {
                prefixes.push(prefix);
            }
        }
        let lines = prefixes
            .iter()
            .map(|prefix| format!("{prefix} n{prefix}\n"));
        let named = parse(&lines.collect::<String>()).unwrap();
        let mut found = 0;
        for _ in 0..2000 {
            let below = random.u64() as u128 & 0xffff;
            let address: IpAddr = match random.u64() % 2 {
                0 => std::net::Ipv4Addr::from(10 << 24 | below as u32).into(),
                _ => std::net::Ipv6Addr::from(0x2001_0db8 << 96 | below).into(),
            };
            let covering = prefixes.iter().filter(|prefix| prefix.contains(address));
            let longest = covering.max_by_key(|prefix| prefix.length128());
            let expected = longest.map(|prefix| format!("n{prefix}"));
            assert_eq!(
                name(&named, &address.to_string()),
                expected.as_deref(),
                "{address}"
            );
            found += usize::from(expected.is_some());
        }
        assert!(found > 500, "{found}");
    }
}
