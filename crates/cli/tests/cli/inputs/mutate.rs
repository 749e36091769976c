//! Mutations, the same for the same number.

/// SplitMix64 (Steele, Lea, Flood 2014): every number gives another sequence.
pub struct Random(u64);

impl Random {
    pub fn new(kind: u64, number: u64) -> Self {
        let mut random = Self(kind.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Below a limit that is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn choose<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// A position in a text, including its end.
    fn place(&mut self, length: usize) -> usize {
        self.below(length + 1)
    }

    /// A piece of a text, mostly a short one.
    fn piece(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.place(length);
        let longest = [4, 16, 64, 1024, 65_536][self.below(5)];
        start..(start + self.below(longest)).min(length)
    }
}

/// Pieces that break the syntax.
const PIECES: &[&[u8]] = &[
    b"\"",
    b"'",
    b"[",
    b"]",
    b"{",
    b"}",
    b"=",
    b"\n",
    b".",
    b",",
    b"#",
    b"-",
    b"/",
    b"%",
    b":",
    b"[[",
    b"]]\n",
    b"\0",
    b"'''",
    b"\"\"\"",
    b"\\",
    b"\\u0000",
    b"\\u001b[2J",
    b"\\ud800",
    b"\r",
    b"\r\n",
    b"\x1b[2J",
    b"\x7f",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xe2\x80\xae",
    b"\xc2\x9b",
    b"\xf0\x9f\xa6\x80",
    b"\xc2\xb5s",
    b"true",
    b"null",
    b"nan",
    b"-inf",
    b"1979-05-27T00:00:00Z",
    b"{}",
    b"[]",
    b"0x",
    b"..",
    b"\t",
    b"/dev/zero",
    b"::",
    b"0.0.0.0/0",
    b"10.0.0.0/33",
];

/// Numbers at limits.
const NUMBERS: &[&[u8]] = &[
    b"0",
    b"-0",
    b"-1",
    b"1",
    b"2",
    b"63",
    b"64",
    b"65",
    b"127",
    b"128",
    b"255",
    b"256",
    b"65535",
    b"65536",
    b"1e308",
    b"1e-308",
    b"1e999",
    b"-1e999",
    b"0.1",
    b"4294967295",
    b"4294967296",
    b"2147483648",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"340282366920938463463374607431768211456",
    b"99999999999999999999999",
    b"0.0000000000000000000001",
    b"100000",
    b"1000000000",
];

/// Mutates a text a few times; `others` are texts to take pieces from.
pub fn text(random: &mut Random, mut bytes: Vec<u8>, others: &[Vec<u8>]) -> Vec<u8> {
    // Half of them once, and fewer and fewer of them more often.
    let times = 1 + 2 * random.next().trailing_zeros();
    for _ in 0..times.min(12) {
        once(random, &mut bytes, others);
        // Long repetitions take time and find nothing.
        bytes.truncate(1 << 20);
    }
    bytes
}

fn once(random: &mut Random, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    let length = bytes.len();
    match random.below(16) {
        0 if length > 0 => bytes[random.below(length)] ^= 1 << random.below(8),
        1 if length > 0 => bytes[random.below(length)] = random.next() as u8,
        2 | 3 => {
            let at = random.place(length);
            let piece = random.choose(PIECES);
            drop(bytes.splice(at..at, piece.iter().copied()));
        }
        4 => drop(bytes.drain(random.piece(length))),
        5 => {
            let piece = bytes[random.piece(length)].to_vec();
            let at = random.place(length);
            drop(bytes.splice(at..at, piece));
        }
        6 => {
            let piece = bytes[random.piece(length)].to_vec();
            let piece = piece[..piece.len().min(64)].repeat(random.below(1024));
            let at = random.place(length);
            drop(bytes.splice(at..at, piece));
        }
        7 | 8 => {
            let number = random.choose(NUMBERS);
            replace(
                random,
                bytes,
                |byte| byte.is_ascii_digit() || byte == b'.',
                number,
            );
        }
        9 => {
            let other = &others[random.below(others.len())];
            let word = found(random, other, |byte| {
                byte.is_ascii_alphanumeric() || byte == b'_'
            });
            let word = other[word].to_vec();
            replace(
                random,
                bytes,
                |byte| byte.is_ascii_alphanumeric() || byte == b'_',
                &word,
            );
        }
        10 => {
            let other = &others[random.below(others.len())];
            let value = other[found(random, other, |byte| !b"=\n".contains(&byte))].to_vec();
            replace(random, bytes, |byte| !b"=\n".contains(&byte), &value);
        }
        11 => {
            let line = found(random, bytes, |byte| byte != b'\n');
            let mut line = bytes[line].to_vec();
            line.push(b'\n');
            let at = random.place(length);
            let start = bytes[..at].iter().rposition(|&byte| byte == b'\n');
            let start = start.map_or(0, |newline| newline + 1);
            drop(bytes.splice(start..start, line));
        }
        12 => {
            let line = found(random, bytes, |byte| byte != b'\n');
            drop(bytes.drain(line));
        }
        13 => {
            let other = &others[random.below(others.len())];
            let piece = other[random.piece(other.len())].to_vec();
            let at = random.piece(length);
            drop(bytes.splice(at, piece));
        }
        14 => bytes.truncate(random.place(length)),
        _ => {
            let string = found(random, bytes, |byte| !b"\"\n".contains(&byte));
            let piece = random.choose(PIECES);
            drop(bytes.splice(string, piece.iter().copied()));
        }
    }
}

/// The longest run of bytes of a kind, around or after a position.
fn found(random: &mut Random, bytes: &[u8], is: impl Fn(u8) -> bool) -> std::ops::Range<usize> {
    let at = random.place(bytes.len());
    let after = bytes[at..].iter().position(|&byte| is(byte));
    let at = after.map_or(at, |after| at + after);
    let start = bytes[..at].iter().rposition(|&byte| !is(byte));
    let end = bytes[at..].iter().position(|&byte| !is(byte));
    start.map_or(0, |start| start + 1)..end.map_or(bytes.len(), |end| at + end)
}

fn replace(random: &mut Random, bytes: &mut Vec<u8>, is: impl Fn(u8) -> bool, by: &[u8]) {
    let piece = found(random, bytes, is);
    drop(bytes.splice(piece, by.iter().copied()));
}

/// Mutates a safetensors file: its header, whose length is mostly corrected, or its numbers.
pub fn model(random: &mut Random, bytes: Vec<u8>, others: &[Vec<u8>]) -> Vec<u8> {
    let header = |bytes: &[u8]| {
        let length = bytes
            .first_chunk()
            .map_or(0, |length| u64::from_le_bytes(*length));
        8..(8 + length as usize).min(bytes.len())
    };
    if random.below(4) == 0 {
        return binary(random, bytes);
    }
    let (own, data) = (header(&bytes), bytes[header(&bytes).end..].to_vec());
    let others: Vec<Vec<u8>> = others
        .iter()
        .map(|other| other[header(other)].to_vec())
        .collect();
    let header = text(random, bytes[own].to_vec(), &others);
    let length = match random.below(8) {
        0 => random.next() >> random.below(64),
        _ => header.len() as u64,
    };
    [&length.to_le_bytes()[..], &header, &data].concat()
}

/// Mutates numbers of 1 to 8 bytes, mostly at the start and the end, where an object has its header
/// and its sections.
pub fn binary(random: &mut Random, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..=random.below(8) {
        let length = bytes.len();
        if length == 0 {
            break;
        }
        let at = match random.below(4) {
            0 => random.below(length.min(64)),
            1 => length - 1 - random.below(length.min(4096)),
            _ => random.below(length),
        };
        let size = [1, 2, 4, 8][random.below(4)];
        let value = match random.below(4) {
            0 => u64::MAX,
            1 => random.next(),
            2 => random.next() >> random.below(64),
            _ => 0,
        };
        match random.below(10) {
            0 => drop(bytes.drain(at..(at + random.below(64)).min(length))),
            1 => bytes.truncate(at),
            2 => {
                let piece = bytes[random.piece(length)].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            3 => bytes[at] ^= 1 << random.below(8),
            _ => {
                let at = at / size * size;
                let end = (at + size).min(length);
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
        }
    }
    bytes
}
