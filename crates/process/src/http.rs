//! The few requests to an agent's local interface by the process that started it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest time for a response.
const PATIENCE: Duration = Duration::from_secs(5);

/// Responses beyond this size count as an error, bytes.
const LONGEST: u64 = 64 << 20;

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    /// Its status code.
    pub status: u16,
    /// Its body.
    pub body: String,
}

/// Makes one request over a Unix socket. It uses HTTP/1.0, so that the response ends with the
/// connection and is not chunked (RFC 9112 section 6.1).
///
/// # Errors
/// The system's; [`io::ErrorKind::InvalidData`] if the response is not HTTP.
pub fn request(socket: &Path, method: &str, target: &str) -> io::Result<Response> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!(
        "{method} {target} HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    parse(&answer)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
}

fn parse(answer: &[u8]) -> Option<Response> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let mut words = head.lines().next()?.split(' ');
    words
        .next()
        .filter(|version| version.starts_with("HTTP/1."))?;
    let status = words.next()?.parse().ok()?;
    let body = String::from_utf8(answer[end + 4..].to_vec()).ok()?;
    Some(Response { status, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_parsed() {
        let answer = b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{\"a\":1}";
        assert_eq!(
            parse(answer),
            Some(Response {
                status: 200,
                body: "{\"a\":1}".into()
            })
        );
        assert_eq!(
            parse(b"HTTP/1.1 404 Not Found\r\n\r\n").map(|r| r.status),
            Some(404)
        );
    }

    #[test]
    fn what_is_not_http_is_refused() {
        for answer in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/1.1 abc\r\n\r\n",
        ] {
            assert_eq!(parse(answer), None);
        }
    }
}
