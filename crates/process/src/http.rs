//! The few requests to an agent's local interface by the process that started it.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};

/// Interval of checks whether the agent still runs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest line of a head or between chunks, bytes.
const LONGEST_LINE: u64 = 16 << 10;
/// Most lines of a head or after the last chunk.
const MOST_LINES: usize = 128;
/// Responses beyond this size count as an error, bytes.
const LONGEST: u64 = 64 << 20;
/// Longest time for a response.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Body of the response.
    pub body: String,
}

/// Makes one request without a body.
///
/// # Errors
/// As of [`Connection::send_request`].
pub fn request_once(path: &Path, method: &str, target: &str) -> io::Result<Response> {
    let mut answer = Connection::open(path)?.send_request(method, target, None, TIMEOUT)?;
    answer.set_timeout(Some(TIMEOUT))?;
    let mut body = String::new();
    let status = answer.status;
    answer.take(LONGEST + 1).read_to_string(&mut body)?;
    if body.len() as u64 > LONGEST {
        let text = format!("the agent's answer has more than {LONGEST} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    Ok(Response { status, body })
}

/// A connection to an agent.
#[derive(Debug)]
pub struct Connection(TimedStream);

/// A stream with a limit on each wait.
#[derive(Debug)]
struct TimedStream {
    stream: UnixStream,
    /// The process at the other end, if this one can know it.
    agent: Option<i32>,
    /// Limit of each wait; `None`: no limit.
    timeout: Option<Duration>,
    /// Start of the wait for the whole head of a response; later, each part has its own limit.
    since: Option<Instant>,
}

/// The head of a response. Its body must be read: an incomplete one is an error.
#[derive(Debug)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// The status in words.
    pub reason: String,
    stream: BufReader<TimedStream>,
    left: BodyRest,
}

/// The rest of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyRest {
    /// This number of bytes.
    Bytes(u64),
    /// Chunks, the first of them not started.
    Chunks,
    /// This number of bytes of a chunk, and the following chunks.
    Chunk(u64),
    /// Everything until the connection ends.
    All,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// System errors; [`ErrorKind::WouldBlock`] if the agent's queue is full.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
        let agent = getsockopt(&stream, PeerCredentials).ok();
        let stream = UnixStream::from(stream);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        stream.set_write_timeout(Some(POLL_INTERVAL))?;
        Ok(Self(TimedStream {
            stream,
            agent: agent.map(|agent| agent.pid()).filter(|pid| *pid > 0),
            timeout: None,
            since: None,
        }))
    }

    /// Sends a request, optionally with a JSON document of a known length, and waits for the head
    /// of the response. Both together take at most `timeout`.
    ///
    /// # Errors
    /// System errors; [`ErrorKind::TimedOut`] if the agent is stopped or silent;
    /// [`ErrorKind::UnexpectedEof`] if the response is incomplete; [`ErrorKind::InvalidData`] if it
    /// is not HTTP.
    pub fn send_request(
        self,
        method: &str,
        target: &str,
        body: Option<(&mut dyn Read, u64)>,
        timeout: Duration,
    ) -> io::Result<Reply> {
        let mut stream = self.0;
        (stream.timeout, stream.since) = (Some(timeout), Some(Instant::now()));
        let length = body.as_ref().map_or(0, |(_, length)| *length);
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        let mut sent = stream.write_all(head.as_bytes());
        if let (Ok(()), Some((body, length))) = (&sent, body) {
            sent = io::copy(&mut body.take(length), &mut stream).and_then(|copied| {
                match copied == length {
                    true => Ok(()),
                    false => Err(io::Error::other("the document became shorter meanwhile")),
                }
            });
        }
        match sent {
            // The agent may respond before it has read everything.
            Err(error) if !is_broken(&error) => return Err(error),
            _ => {}
        }
        let broken = |error: io::Error| match is_broken(&error) {
            true => broken_off("before it answered"),
            false => error,
        };
        let mut answer = Reply::read_head(BufReader::new(stream)).map_err(broken)?;
        answer.stream.get_mut().since = None;
        Ok(answer)
    }
}

fn is_broken(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn broken_off(when: &str) -> io::Error {
    let text = format!("the agent broke off {when}");
    io::Error::new(ErrorKind::UnexpectedEof, text)
}

impl TimedStream {
    /// Waits for a call that gives up after [`POLL_INTERVAL`].
    fn wait_for<T>(
        &mut self,
        mut call: impl FnMut(&mut UnixStream) -> io::Result<T>,
    ) -> io::Result<T> {
        let since = self.since.unwrap_or_else(Instant::now);
        loop {
            match call(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.check_wait(since)?,
                done => return done,
            }
        }
    }

    /// Fails if there is no reason to wait longer.
    fn check_wait(&self, since: Instant) -> io::Result<()> {
        let Some(timeout) = self.timeout else {
            return Ok(());
        };
        let failed = |text| Err(io::Error::new(ErrorKind::TimedOut, text));
        if let Some(pid) = self.agent.filter(|pid| is_stopped(*pid)) {
            return failed(format!(
                "the agent is stopped (process {pid}); `kill -CONT {pid}` lets it go on"
            ));
        }
        if since.elapsed() < timeout {
            return Ok(());
        }
        let seconds = timeout.as_secs();
        failed(match self.since {
            Some(_) => format!("the agent does not answer within {seconds} s"),
            None => format!("the agent did not go on with its answer within {seconds} s"),
        })
    }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait_for(|stream| stream.read(buffer))
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait_for(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a signal or a debugger has stopped a process.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|rest| rest.starts_with(['T', 't']))
}

impl Reply {
    /// Sets the limit of the wait for each part of the body; `None`: no limit.
    ///
    /// # Errors
    /// System errors.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.timeout = timeout;
        stream
            .stream
            .set_read_timeout(timeout.map(|_| POLL_INTERVAL))
    }

    fn read_head(mut stream: BufReader<TimedStream>) -> io::Result<Self> {
        let head = read_line(&mut stream)?;
        let mut words = head.splitn(3, ' ');
        let version = words.next().unwrap_or_default();
        let status = words.next().and_then(|status| status.parse().ok());
        let (true, Some(status)) = (version.starts_with("HTTP/1."), status) else {
            return Err(not_http());
        };
        let reason = words.next().unwrap_or_default().to_owned();
        let mut left = BodyRest::All;
        for field in read_fields(&mut stream)? {
            let (name, value) = field.split_once(':').ok_or_else(not_http)?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("transfer-encoding")
                && value.eq_ignore_ascii_case("chunked")
            {
                left = BodyRest::Chunks;
            } else if name.eq_ignore_ascii_case("content-length") && left == BodyRest::All {
                left = BodyRest::Bytes(value.parse().map_err(|_| not_http())?);
            }
        }
        Ok(Self {
            status,
            reason,
            stream,
            left,
        })
    }
}

fn not_http() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the agent does not speak HTTP")
}

/// A line without its end.
fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    stream.take(LONGEST_LINE).read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\n") {
        Some(line) => String::from_utf8(line.trim_ascii_end().to_vec()).map_err(|_| not_http()),
        None if line.len() as u64 == LONGEST_LINE => Err(not_http()),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// The fields of a head, or those after the last chunk.
fn read_fields(stream: &mut impl BufRead) -> io::Result<Vec<String>> {
    let mut fields = Vec::new();
    loop {
        let field = read_line(stream)?;
        if field.is_empty() {
            return Ok(fields);
        }
        if fields.len() == MOST_LINES {
            return Err(not_http());
        }
        fields.push(field);
    }
}

/// The head of a chunk (section 7.1). After the last one, of length 0, trailers may follow.
fn next_chunk(stream: &mut impl BufRead) -> io::Result<BodyRest> {
    let size = read_line(stream)?;
    let digits = size.split(';').next().unwrap_or_default().trim();
    let size = u64::from_str_radix(digits, 16).map_err(|_| not_http())?;
    if size > 0 {
        return Ok(BodyRest::Chunk(size));
    }
    read_fields(stream)?;
    Ok(BodyRest::Bytes(0))
}

impl Read for Reply {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.read_part(buffer);
        read.map_err(|error| match is_broken(&error) {
            true => broken_off("its answer"),
            false => error,
        })
    }
}

impl Reply {
    fn read_part(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Only when more is wanted: the next chunk of a stream may take long.
        if self.left == BodyRest::Chunk(0) {
            if !read_line(&mut self.stream)?.is_empty() {
                return Err(not_http());
            }
            self.left = BodyRest::Chunks;
        }
        if self.left == BodyRest::Chunks {
            self.left = next_chunk(&mut self.stream)?;
        }
        let (BodyRest::Bytes(left) | BodyRest::Chunk(left)) = &mut self.left else {
            return self.stream.read(buffer);
        };
        let most = usize::try_from(*left).map_or(buffer.len(), |left| left.min(buffer.len()));
        // At the end of the body nothing is read: the agent may leave the connection open.
        if most == 0 {
            return Ok(0);
        }
        let count = self.stream.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        *left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A connection, and the agent's end of it.
    fn pair() -> io::Result<(Connection, UnixStream)> {
        let (stream, agent) = UnixStream::pair()?;
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        stream.set_write_timeout(Some(POLL_INTERVAL))?;
        let connection = Connection(TimedStream {
            stream,
            agent: None,
            timeout: None,
            since: None,
        });
        Ok((connection, agent))
    }

    /// The client's result for these bytes, after which the connection ends.
    fn answer(bytes: &'static [u8]) -> io::Result<(u16, String)> {
        let (connection, mut agent) = pair()?;
        let served = thread::spawn(move || {
            let mut asked = BufReader::new(agent.try_clone()?);
            while !read_line(&mut asked)?.is_empty() {}
            agent.write_all(bytes)
        });
        let outcome = read(connection);
        // A client that has seen enough is gone before the end.
        let _ = served.join().map_err(|_| io::Error::other("panic"))?;
        outcome
    }

    fn read(connection: Connection) -> io::Result<(u16, String)> {
        let mut answer = connection.send_request("GET", "/", None, TIMEOUT)?;
        let mut body = String::new();
        answer.read_to_string(&mut body)?;
        Ok((answer.status, body))
    }

    #[test]
    fn a_body_ends_by_its_length_on_an_open_connection() {
        for bytes in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
        ] {
            let (connection, mut agent) = pair().unwrap();
            agent.write_all(bytes).unwrap();
            let (sender, receiver) = std::sync::mpsc::channel();
            let reader = thread::spawn(move || sender.send(read(connection)));
            let answered = receiver.recv_timeout(TIMEOUT);
            drop(agent);
            reader.join().unwrap().unwrap();
            assert_eq!(answered.unwrap().unwrap(), (200, "no".to_owned()));
        }
    }

    /// The agent answers before it has read a document larger than any buffer.
    #[test]
    fn an_early_answer_is_read() {
        let (connection, mut agent) = pair().unwrap();
        let served = thread::spawn(move || {
            agent.read_exact(&mut [0; 100])?;
            agent.write_all(b"HTTP/1.1 413 X\r\nContent-Length: 5\r\n\r\nlarge")
        });
        let length = 8 << 20;
        let body: (&mut dyn Read, u64) = (&mut io::repeat(b' '), length);
        let mut answer = connection
            .send_request("POST", "/", Some(body), TIMEOUT)
            .unwrap();
        let mut body = String::new();
        answer.read_to_string(&mut body).unwrap();
        assert_eq!((answer.status, body.as_str()), (413, "large"));
        served.join().unwrap().unwrap();
    }

    #[test]
    fn a_long_answer_is_an_error_and_not_cut() {
        let directory = std::env::temp_dir().join(format!("thalweg-http-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("s");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let served = thread::spawn(move || {
            let (mut agent, _) = listener.accept()?;
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", LONGEST + 1);
            agent.write_all(head.as_bytes())?;
            io::copy(&mut io::repeat(b'x').take(LONGEST + 1), &mut agent)
        });
        let error = request_once(&path, "GET", "/").unwrap_err();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        assert_eq!(served.join().unwrap().unwrap(), LONGEST + 1);
    }

    #[test]
    fn bodies_end_by_length_by_chunks_or_with_the_connection() {
        for (bytes, status, body) in [
            (&b"HTTP/1.0 200 OK\r\n\r\n{\"a\":1}"[..], 200, "{\"a\":1}"),
            (
                b"HTTP/1.1 404 Not Found\r\ncontent-LENGTH: 2\r\n\r\nnobody",
                404,
                "no",
            ),
            (b"HTTP/1.1 204\r\nContent-Length:0\r\n\r\n", 204, ""),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n\
                  3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: 1\r\n\r\nnobody",
                200,
                "abc0123456789",
            ),
        ] {
            assert_eq!(answer(bytes).unwrap(), (status, body.to_owned()));
        }
    }

    #[test]
    fn answers_that_break_off_are_errors() {
        for bytes in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nno",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
        ] {
            let error = answer(bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
            assert!(error.to_string().contains("broke off"), "{error}");
        }
    }

    #[test]
    fn what_is_not_http_is_refused() {
        for bytes in [
            &b"SSH-2.0-x\r\n\r\n"[..],
            b"HTTP/1.1 abc\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nnothing\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
        ] {
            let error = answer(bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        }
        let endless = "HTTP/1.1 200 OK\r\n".to_owned() + &"A: b\r\n".repeat(1000) + "\r\n";
        let error = answer(endless.leak().as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    }
}
