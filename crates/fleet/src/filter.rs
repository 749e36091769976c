//! What a server may send: a filter of the NATS protocol between a server and the client library.
//!
//! The client library reads a message whole before anybody sees its size, adds lengths without a
//! check, and keeps every header. The filter passes bytes on as they come, in bounded memory, and ends
//! the connection at the first thing that an honest server does not send. Pure: no I/O, no clock.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use serde_json::{Map, Value};

use crate::fault::Kind;
use crate::text::one_line;
use crate::wire::policy;

/// Longest line of a server, bytes; INFO names each server of a cluster.
pub(crate) const LINE_MAX: usize = 64 << 10;
/// Bytes that a request may be answered with: more than one asks for (`pull.rs`). A message of a bucket may be
/// as large, from a time when the bucket had other limits.
const REQUEST_MAX: usize = (1 << 20) + (256 << 10);
/// Largest answer, bytes: the state of a bucket with some 3,000 labels. The client library parses an answer
/// into seventy times as much at worst.
const ANSWER_MAX: usize = 256 << 10;
/// Largest answer with a stored message, bytes: a policy with headers, as base64 in JSON.
const STORED_MAX: usize = (policy::MAX_BYTES + 1024).div_ceil(3) * 4 + 1024;
/// Largest message to a notify subject, bytes: what a server lets through at most.
const NOTIFY_MAX: usize = 64 << 20;
/// Largest block of headers that is read, bytes. Those of a larger block are left out.
const HEADERS_MAX: usize = 4 << 10;
/// Most bytes that a server may owe: those of eight requests.
const OWED_MAX: usize = 8 * REQUEST_MAX;
/// Bytes that a message costs the client library besides its own.
const OVERHEAD: usize = 256;
/// Most PINGs of a server that wait for an answer.
const PINGS_MAX: usize = 16;
/// Longest error of a server, characters.
const ERROR_MAX: usize = 300;
/// Begins subjects whose messages are not read, see `bucket::bell`.
const NOTIFY: &str = "thalweg.bell.";
/// Begins subjects of answers, see `link::inbox`.
const INBOX: &str = "_INBOX.";
/// Begins subjects of messages of buckets, see `Bucket::subject`.
const VALUE: &str = "$KV.";
/// In subjects of requests for a stored message, which only operators make.
const GET: &str = ".STREAM.MSG.GET.";
/// Fields of INFO that the client library gets. What is said of TLS is no concern of it, and servers of
/// a cluster are not followed.
const INFO: [&str; 15] = [
    "server_id",
    "server_name",
    "version",
    "go",
    "host",
    "port",
    "headers",
    "auth_required",
    "max_payload",
    "proto",
    "client_id",
    "nonce",
    "cluster",
    "domain",
    "jetstream",
];

/// Why a connection is ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub kind: Kind,
    pub text: String,
}

fn violation(kind: Kind, text: impl Into<String>) -> Violation {
    Violation {
        kind,
        text: text.into(),
    }
}

/// Bytes that the client has asked for, and PINGs that it has not answered.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBudget {
    /// Bytes that the server may still send.
    owed: AtomicUsize,
    /// PINGs without an answer.
    pings: AtomicUsize,
    /// Whether a stored message was asked for as an answer.
    has_get: AtomicBool,
}

impl ReceiveBudget {
    fn note_request(&self, subject: &str) {
        let owed = (self.owed.load(Relaxed) + REQUEST_MAX).min(OWED_MAX);
        self.owed.store(owed, Relaxed);
        if subject.contains(GET) {
            self.has_get.store(true, Relaxed);
        }
    }

    fn note_received(&self, bytes: usize) -> Result<(), Violation> {
        let left = self.owed.load(Relaxed).checked_sub(bytes);
        let more = || violation(Kind::Size, "the server sent more than was asked for");
        self.owed.store(left.ok_or_else(more)?, Relaxed);
        Ok(())
    }

    fn note_ping(&self) -> Result<(), Violation> {
        let pings = self.pings.fetch_add(1, Relaxed);
        if pings < PINGS_MAX {
            return Ok(());
        }
        Err(violation(
            Kind::Size,
            "the server sent PINGs and reads no answer",
        ))
    }

    fn note_pong(&self) {
        let pings = self.pings.load(Relaxed);
        self.pings.store(pings.saturating_sub(1), Relaxed);
    }
}

/// Filter of the server's bytes on their way to the client library.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    state: State,
    line: Vec<u8>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Line,
    /// The headers of a message.
    Headers {
        message: Message,
        left: usize,
        block: Vec<u8>,
    },
    /// The rest of a message with its line end.
    Body { left: usize, is_kept: bool },
}

#[derive(Debug)]
struct Message {
    /// Subject, subscription and, where there is one, the subject of the answer.
    to: String,
    headers: Option<usize>,
    total: usize,
}

impl Filter {
    /// Takes bytes of the server; adds to `output` what the client library gets.
    pub fn pass_bytes(
        &mut self,
        mut input: &[u8],
        output: &mut Vec<u8>,
        account: &ReceiveBudget,
    ) -> Result<(), Violation> {
        while !input.is_empty() {
            match &mut self.state {
                State::Line => {
                    let end = input.iter().position(|byte| *byte == b'\n');
                    let (taken, rest) = input.split_at(end.map_or(input.len(), |end| end + 1));
                    input = rest;
                    if self.line.len() + taken.len() > LINE_MAX {
                        return Err(endless_line());
                    }
                    self.line.extend_from_slice(taken);
                    if end.is_some() {
                        let line = std::mem::take(&mut self.line);
                        let line = String::from_utf8_lossy(&line);
                        self.state = pass_line(line.trim_ascii_end(), output, account)?;
                    }
                }
                State::Headers {
                    message,
                    left,
                    block,
                } => {
                    let (taken, rest) = input.split_at(input.len().min(*left));
                    input = rest;
                    *left -= taken.len();
                    let room = HEADERS_MAX + 1 - block.len();
                    block.extend_from_slice(&taken[..taken.len().min(room)]);
                    if *left == 0 {
                        let headers = match block.len() <= HEADERS_MAX {
                            true => known_headers(block, message.is_answer()),
                            false => NO_HEADERS.to_owned(),
                        };
                        let body = message.total - message.headers.unwrap_or(0);
                        let sizes = format!("{} {}", headers.len(), headers.len() + body);
                        output.extend_from_slice(
                            format!("HMSG {} {sizes}\r\n{headers}", message.to).as_bytes(),
                        );
                        self.state = State::Body {
                            left: body + 2,
                            is_kept: true,
                        };
                    }
                }
                State::Body { left, is_kept } => {
                    let (taken, rest) = input.split_at(input.len().min(*left));
                    input = rest;
                    *left -= taken.len();
                    if *is_kept {
                        output.extend_from_slice(taken);
                    }
                    if *left == 0 {
                        self.state = State::Line;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A line of the server; what comes after it.
fn pass_line(
    line: &str,
    output: &mut Vec<u8>,
    account: &ReceiveBudget,
) -> Result<State, Violation> {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let text = match verb {
        "MSG" | "HMSG" => return pass_message(line, output, account),
        "INFO" => format!("INFO {}\r\n", known_info(rest)?),
        "-ERR" => format!("-ERR {}\r\n", one_line(rest, ERROR_MAX)),
        "PING" => {
            account.note_ping()?;
            "PING\r\n".to_owned()
        }
        "PONG" => "PONG\r\n".to_owned(),
        "+OK" | "" => String::new(),
        _ => return Err(no_nats(line)),
    };
    output.extend_from_slice(text.as_bytes());
    Ok(State::Line)
}

/// A line that does not end.
pub(crate) fn endless_line() -> Violation {
    violation(
        Kind::Size,
        format!("a line of more than {LINE_MAX} bytes from the server"),
    )
}

/// A line that is not of the NATS protocol.
pub(crate) fn no_nats(line: &str) -> Violation {
    let text = format!(
        "found {:?}, expected a NATS server",
        one_line(line.trim(), 40)
    );
    violation(Kind::Unreachable, text)
}

fn pass_message(
    line: &str,
    output: &mut Vec<u8>,
    account: &ReceiveBudget,
) -> Result<State, Violation> {
    let message = Message::parse_line(line)?;
    let is_notify = message.to.starts_with(NOTIFY);
    let most = if is_notify {
        NOTIFY_MAX
    } else if message.to.starts_with(VALUE) {
        // The client library finds the request of an answer by its subject, and does not parse others.
        REQUEST_MAX
    } else if account.has_get.load(Relaxed) {
        STORED_MAX
    } else {
        ANSWER_MAX
    };
    if message.total > most {
        let found = message.total;
        let text = format!("a message of {found} bytes, expected at most {most}");
        return Err(violation(Kind::Size, text));
    }
    if is_notify {
        // Its body is not read. Anybody who may notify could make it large.
        output.extend_from_slice(format!("MSG {} 0\r\n\r\n", message.to).as_bytes());
        return Ok(State::Body {
            left: message.total + 2,
            is_kept: false,
        });
    }
    account.note_received(OVERHEAD + line.len() + message.total)?;
    match message.headers {
        Some(left) if left > 0 => Ok(State::Headers {
            message,
            left,
            block: Vec::new(),
        }),
        _ => {
            output
                .extend_from_slice(format!("MSG {} {}\r\n", message.to, message.total).as_bytes());
            Ok(State::Body {
                left: message.total + 2,
                is_kept: true,
            })
        }
    }
}

impl Message {
    fn parse_line(line: &str) -> Result<Self, Violation> {
        let wrong = || {
            let text = format!("found {:?}, expected a message's line", one_line(line, 80));
            violation(Kind::Form, text)
        };
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
            // One that does not fit is as large as any.
            is_number
                .then(|| text.parse().unwrap_or(usize::MAX))
                .ok_or_else(wrong)
        };
        let mut words: Vec<&str> = line.split_ascii_whitespace().collect();
        let has_headers = words.first() == Some(&"HMSG");
        let total = number(words.pop().ok_or_else(wrong)?)?;
        let headers = match has_headers {
            true => Some(number(words.pop().ok_or_else(wrong)?)?),
            false => None,
        };
        if !(3..=4).contains(&words.len()) || headers.is_some_and(|it| it > total) {
            return Err(wrong());
        }
        words[2].parse::<u64>().map_err(|_| wrong())?;
        Ok(Self {
            to: words[1..].join(" "),
            headers,
            total,
        })
    }

    /// Whether the server itself may have written the message. A stored one has the subject of its key, and
    /// one to acknowledge it by.
    fn is_answer(&self) -> bool {
        self.to.starts_with(INBOX) && self.to.split(' ').count() == 2
    }
}

/// INFO with what the client library needs of it alone.
fn known_info(text: &str) -> Result<String, Violation> {
    let info: Map<String, Value> =
        serde_json::from_str(text).map_err(|_| no_nats(&format!("INFO {text}")))?;
    let known = info
        .into_iter()
        .filter(|(key, _)| INFO.contains(&key.as_str()));
    Ok(Value::Object(known.collect()).to_string())
}

const NO_HEADERS: &str = "NATS/1.0\r\n\r\n";

/// A block of headers with those that servers set alone. Members of a fleet can send any bytes as headers,
/// and the client library ends the connection at one that it cannot read. It takes most statuses as the end
/// of a request: under a key of a member they would keep everybody from reading on.
fn known_headers(block: &[u8], has_status: bool) -> String {
    let block = String::from_utf8_lossy(block);
    let mut lines = block.lines();
    let mut text = "NATS/1.0".to_owned();
    let first = lines.next().and_then(|line| line.strip_prefix("NATS/1.0 "));
    if has_status
        && let Some((status, words)) = first.and_then(|it| it.split_at_checked(3))
        && status.parse::<u16>().is_ok_and(|it| it >= 100)
    {
        let words = one_line(words.trim(), ERROR_MAX);
        text = format!("{text} {status} {words}");
    }
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let is_known = name == "KV-Operation" || name.starts_with("Nats-");
        let is_name = name
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || it == b'-');
        let value = value.trim();
        if is_known && is_name && value.bytes().all(|it| (b' '..0x7f).contains(&it)) {
            text = format!("{text}\r\n{name}: {value}");
        }
    }
    text + "\r\n\r\n"
}

/// Counter of requests among the bytes that the client library sends, which pass unchanged.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    line: Vec<u8>,
    skipped: usize,
}

impl Requests {
    /// Takes note of bytes of the client library.
    pub fn note_sent(&mut self, mut input: &[u8], account: &ReceiveBudget) {
        while !input.is_empty() {
            let taken = self.skipped.min(input.len());
            self.skipped -= taken;
            input = &input[taken..];
            let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
                self.line.extend_from_slice(input);
                return;
            };
            self.line.extend_from_slice(&input[..=end]);
            input = &input[end + 1..];
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(&line);
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let (answered, size) = match words[..] {
                ["PUB", _, size] | ["HPUB", _, _, size] => (None, size),
                ["PUB", subject, _, size] | ["HPUB", subject, _, _, size] => (Some(subject), size),
                ["PONG"] => {
                    account.note_pong();
                    continue;
                }
                _ => continue,
            };
            if let Some(subject) = answered {
                account.note_request(subject);
            }
            self.skipped = size.parse().map_or(0, |size: usize| size + 2);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    use proptest::prelude::*;

    use super::*;

    fn asked(requests: usize) -> ReceiveBudget {
        let account = ReceiveBudget::default();
        for _ in 0..requests {
            Requests::default().note_sent(b"PUB a reply 2\r\n{}\r\n", &account);
        }
        account
    }

    fn passed(input: &[u8]) -> Result<String, Violation> {
        let mut output = Vec::new();
        Filter::default().pass_bytes(input, &mut output, &asked(1))?;
        Ok(String::from_utf8(output).unwrap())
    }

    #[test]
    fn honest_server_is_passed_on() {
        let text = "INFO {\"max_payload\":10}\r\nPING\r\nPONG\r\n-ERR 'no'\r\n\
                    MSG a.b 1 r 5\r\nhe\r\no\r\nHMSG a 2 26 28\r\nNATS/1.0\r\nNats-Name: x\r\n\r\nhi\r\n\
                    HMSG _INBOX.a.b 2 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n";
        assert_eq!(passed(text.as_bytes()).unwrap(), text);
    }

    #[test]
    fn info_keeps_nothing_about_tls_or_other_servers() {
        let info = r#"{"nonce":"n","tls_required":true,"connect_urls":["evil:1"],"ldm":true}"#;
        let passed = passed(format!("INFO {info}\r\n").as_bytes());
        assert_eq!(passed.unwrap(), "INFO {\"nonce\":\"n\"}\r\n");
    }

    #[test]
    fn sizes_beyond_any_request_are_refused() {
        for (line, kind) in [
            ("MSG x 1 100000000000", Kind::Size),
            ("MSG x 1 18446744073709551612", Kind::Size),
            ("MSG x 1 99999999999999999999999999", Kind::Size),
            ("HMSG x 1 5 100000000000", Kind::Size),
            ("MSG thalweg.bell.all 1 100000000000", Kind::Size),
            ("HMSG x 1 18446744073709551615 5", Kind::Form),
            ("HMSG x 1 6 5", Kind::Form),
            ("MSG x 1 -5", Kind::Form),
            ("MSG x 1", Kind::Form),
            ("MSG x y 5", Kind::Form),
            ("MSG", Kind::Form),
            ("HTTP/1.1 400 Bad Request", Kind::Unreachable),
            ("INFO {", Kind::Unreachable),
        ] {
            let refused = passed(format!("{line}\r\n").as_bytes()).unwrap_err();
            assert_eq!(refused.kind, kind, "{line}: {refused:?}");
        }
    }

    #[test]
    fn answer_beyond_what_was_asked_for_is_refused() {
        let account = asked(1);
        let refused = |subject: &str, size: usize| {
            let line = format!("MSG {subject} 0 {size}\r\n");
            let passed = Filter::default().pass_bytes(line.as_bytes(), &mut Vec::new(), &account);
            account.note_request("");
            passed.err().map(|refused| refused.kind)
        };
        let (answer, value) = ("_INBOX.a.b.c", "$KV.thalweg-policy.all");
        let stored = policy::MAX_BYTES + 1024;
        assert_eq!(refused(value, stored), None);
        assert_eq!(refused(answer, 256 << 10), None);
        assert_eq!(refused(answer, (256 << 10) + 1), Some(Kind::Size));
        // As base64 in JSON.
        let answered = stored * 4 / 3 + 500;
        assert_eq!(refused(answer, answered), Some(Kind::Size));
        let get = b"PUB $JS.API.STREAM.MSG.GET.KV_thalweg-policy _INBOX.a.b.c 2\r\n{}\r\n";
        Requests::default().note_sent(get, &account);
        assert_eq!(refused(answer, answered), None);
        assert_eq!(refused(answer, 704 << 10), Some(Kind::Size));
    }

    #[test]
    fn endless_line_is_refused() {
        let mut filter = Filter::default();
        let mut output = Vec::new();
        let account = asked(0);
        let begun = filter.pass_bytes(b"INFO {", &mut output, &account);
        begun.unwrap();
        let mut passed = 0;
        let refused = loop {
            match filter.pass_bytes(&[b'x'; 100], &mut output, &account) {
                Ok(()) => passed += 100,
                Err(refused) => break refused,
            }
        };
        assert!(passed <= LINE_MAX && output.is_empty());
        assert_eq!(refused.kind, Kind::Size);
    }

    #[test]
    fn messages_beyond_what_was_asked_for_are_refused() {
        let account = asked(1);
        let mut filter = Filter::default();
        let mut output = Vec::new();
        let small = b"MSG x 1 2\r\nhi\r\n";
        let taken = (0..1_000_000).take_while(|_| {
            output.clear();
            filter.pass_bytes(small, &mut output, &account).is_ok()
        });
        let taken = taken.count();
        assert!((1000..10_000).contains(&taken), "{taken}");
        // The next request is answered again, and no number of requests raises the bound for good.
        let account = asked(1000);
        assert!(account.note_received(OWED_MAX).is_ok());
        assert!(account.note_received(1).is_err());
    }

    #[test]
    fn notifications_arrive_without_their_body() {
        let body = vec![b'x'; 8 << 20];
        let mut input = format!("MSG thalweg.bell.all 3 {}\r\n", body.len()).into_bytes();
        input.extend_from_slice(&body);
        input.extend_from_slice(b"\r\nPONG\r\n");
        let passed = passed(&input).unwrap();
        assert_eq!(passed, "MSG thalweg.bell.all 3 0\r\n\r\nPONG\r\n");
    }

    /// The headers of a message to this subject and subscription that the client library gets.
    fn headers(to: &str, block: &[u8]) -> String {
        let (head, all) = (block.len(), block.len() + 2);
        let line = format!("HMSG {to} {head} {all}\r\n");
        let passed = passed(&[line.as_bytes(), block, b"hi\r\n"].concat()).unwrap();
        let (line, rest) = passed.split_once("\r\n").unwrap();
        let line = line.strip_prefix(&format!("HMSG {to} ")).unwrap();
        let size: usize = line.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(&rest[size..], "hi\r\n");
        rest[..size].to_owned()
    }

    #[test]
    fn headers_that_no_server_sets_are_left_out() {
        let headers = |block: &str| headers("_INBOX.a.b 1", block.as_bytes());
        let kept = "NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Msg-Size: 9\r\nKV-Operation: DEL\r\n\r\n";
        assert_eq!(headers(kept), kept);
        let others = [
            "garbage".to_owned(),
            "NATS/1.0 abc\r\n\r\n".to_owned(),
            "NATS/1.0\r\na: b\r\nNats-X: \u{202e}\r\n:\r\nno colon\r\n folded\r\n\r\n".to_owned(),
            format!("NATS/1.0\r\n{}\r\n", "a:\r\n".repeat(10_000)),
        ];
        for other in others {
            assert_eq!(headers(&other), NO_HEADERS);
        }
    }

    #[test]
    fn status_of_any_bytes_passes_without_panic() {
        for status in ["1\u{ff}", "12é", "é", "4", "40", "\u{1f600}"] {
            let block = format!("NATS/1.0 {status}\r\n\r\n");
            assert_eq!(headers("_INBOX.a.b 1", block.as_bytes()), NO_HEADERS);
        }
        let block = b"NATS/1.0 1\xff\xff\xff\r\n\r\n";
        assert_eq!(headers("_INBOX.a.b 1", block), NO_HEADERS);
        let kept = "NATS/1.0 409 é\r\n\r\n";
        assert_eq!(headers("_INBOX.a.b 1", kept.as_bytes()), kept);
    }

    #[test]
    fn status_of_stored_message_is_left_out() {
        let block = b"NATS/1.0 409 x\r\nKV-Operation: DEL\r\n\r\n";
        let kept = "NATS/1.0\r\nKV-Operation: DEL\r\n\r\n";
        for to in [
            "$KV.thalweg-priors.a.3 7 $JS.ACK.KV_thalweg-priors.c.1.2.3.4.5",
            "$KV.thalweg-priors.a.3 7",
            "_INBOX.a.b 7 $JS.ACK.KV_thalweg-priors.c.1.2.3.4.5",
        ] {
            assert_eq!(headers(to, block), kept, "{to}");
        }
    }

    #[test]
    fn pings_without_answers_are_refused() {
        let account = asked(0);
        let mut filter = Filter::default();
        let mut output = Vec::new();
        for _ in 0..1000 {
            filter
                .pass_bytes(b"PING\r\n", &mut output, &account)
                .unwrap();
            Requests::default().note_sent(b"PONG\r\n", &account);
        }
        let refused = filter.pass_bytes(&b"PING\r\n".repeat(100), &mut output, &account);
        assert_eq!(refused.unwrap_err().kind, Kind::Size);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_pass_alike(
            pieces in prop::collection::vec(
                prop_oneof![
                    Just(b"MSG a 1 5\r\nhello\r\n".to_vec()),
                    Just(b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n".to_vec()),
                    (prop::bool::ANY, prop::collection::vec(any::<u8>(), 0..8)).prop_map(|(is_answer, status)| {
                        let subject = if is_answer { "_INBOX.a.b" } else { "$KV.a.b" };
                        let block = [b"NATS/1.0 ", &status[..], b"\r\n\r\n"].concat();
                        let line = format!("HMSG {subject} 1 {0} {0}\r\n", block.len());
                        [line.as_bytes(), &block, b"\r\n"].concat()
                    }),
                    Just(b"MSG thalweg.bell.x 1 3\r\nabc\r\n".to_vec()),
                    Just(b"PING\r\n".to_vec()),
                    Just(b"INFO {}\r\n".to_vec()),
                    prop::collection::vec(any::<u8>(), 0..40),
                ],
                0..20,
            ),
            cut in 1usize..30,
        ) {
            let input = pieces.concat();
            let pass = |size: usize| {
                let (mut filter, mut output, account) = (Filter::default(), Vec::new(), asked(1));
                let passed = input
                    .chunks(size)
                    .try_for_each(|piece| filter.pass_bytes(piece, &mut output, &account));
                (output, passed)
            };
            prop_assert_eq!(pass(cut), pass(input.len().max(1)));
        }
    }
}
