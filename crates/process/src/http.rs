//! The few requests to an agent's local interface, as calls that block.

use std::error::Error as _;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Buf, Bytes, Frame, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWrite;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::runtime::{Builder, Runtime};

/// Interval of checks whether the agent still runs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Responses beyond this size count as an error, bytes.
const LONGEST: u64 = 64 << 20;
/// Longest time for a response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a document per part.
const PART: usize = 64 << 10;

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
    let answer = Connection::open(path)?.send_request(method, target, None, TIMEOUT)?;
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
pub struct Connection {
    runtime: Runtime,
    stream: UnixStream,
}

/// The head of a response. Its body must be read: an incomplete one is an error.
#[derive(Debug)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// The status in words.
    pub reason: &'static str,
    runtime: Runtime,
    /// The process at the other end, if this one can know it.
    agent: Option<u32>,
    /// Limit of each wait; `None`: no limit.
    timeout: Option<Duration>,
    body: Incoming,
    /// Part of the body that has arrived and is not read.
    part: Bytes,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// System errors; [`ErrorKind::WouldBlock`] if the agent's queue is full.
    pub fn open(path: &Path) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let stream = runtime.block_on(UnixStream::connect(path))?;
        Ok(Self { runtime, stream })
    }

    /// Sends a request, optionally with a JSON document of a known length, and waits for the head
    /// of the response. Both together take at most `timeout`, which then limits each wait for a
    /// part of the body.
    ///
    /// # Errors
    /// System errors; [`ErrorKind::TimedOut`] if the agent is stopped or silent;
    /// [`ErrorKind::UnexpectedEof`] if the response is incomplete; [`ErrorKind::InvalidData`] if it
    /// is not HTTP.
    pub fn send_request(
        self,
        method: &str,
        target: &str,
        body: Option<(Box<dyn Read + Send>, u64)>,
        timeout: Duration,
    ) -> io::Result<Reply> {
        let Self { runtime, stream } = self;
        let agent = stream.peer_cred().ok().and_then(|agent| agent.pid());
        let agent = agent.and_then(|pid| u32::try_from(pid).ok().filter(|pid| *pid > 0));
        let (document, length) = body.unwrap_or_else(|| (Box::new(io::empty()), 0));
        let mut document = document.take(length);
        let parts = std::iter::from_fn(move || {
            let mut part = Vec::with_capacity(PART);
            match document.by_ref().take(PART as u64).read_to_end(&mut part) {
                Ok(0) => None,
                read => Some(read.map(|_| Frame::data(Bytes::from(part)))),
            }
        });
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, "localhost")
            .header(header::CONNECTION, "close")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONTENT_LENGTH, length)
            .body(StreamBody::new(stream::iter(parts)))
            .map_err(io::Error::other)?;
        let answer = wait_for_agent(agent, Some(timeout), "does not answer", async {
            let (read, write) = stream.into_split();
            let stream = TokioIo::new(tokio::io::join(read, Unfailing(write)));
            let (mut sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            sender.send_request(request).await
        });
        let answer = runtime.block_on(answer)?;
        let answer = answer.map_err(|error| io_error(&error, "before it answered"))?;
        Ok(Reply {
            status: answer.status().as_u16(),
            reason: answer.status().canonical_reason().unwrap_or_default(),
            runtime,
            agent,
            timeout: Some(timeout),
            body: answer.into_body(),
            part: Bytes::new(),
        })
    }
}

impl Reply {
    /// Sets the limit of the wait for each part of the body; `None`: no limit.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }
}

impl Read for Reply {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            let failed = "did not go on with its answer";
            let frame = wait_for_agent(self.agent, self.timeout, failed, self.body.frame());
            match self.runtime.block_on(frame)? {
                Some(Ok(frame)) => self.part = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Err(io_error(&error, "its answer")),
                None => return Ok(0),
            }
        }
        let count = self.part.as_ref().read(buffer)?;
        self.part.advance(count);
        Ok(count)
    }
}

/// Waits until the limit has passed, if there is one, or the agent is stopped. `failed` says what it
/// has not done.
async fn wait_for_agent<T>(
    agent: Option<u32>,
    timeout: Option<Duration>,
    failed: &str,
    awaited: impl Future<Output = T>,
) -> io::Result<T> {
    let Some(timeout) = timeout else {
        return Ok(awaited.await);
    };
    let since = Instant::now();
    let mut awaited = pin!(awaited);
    let text = loop {
        if let Ok(done) = tokio::time::timeout(POLL_INTERVAL, &mut awaited).await {
            return Ok(done);
        }
        if let Some(pid) = agent.filter(|pid| is_stopped(*pid)) {
            break format!(
                "the agent is stopped (process {pid}); `kill -CONT {pid}` lets it go on"
            );
        }
        if since.elapsed() >= timeout {
            break format!("the agent {failed} within {} s", timeout.as_secs());
        }
    };
    Err(io::Error::new(ErrorKind::TimedOut, text))
}

/// Whether a signal or a debugger has stopped a process.
pub fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|rest| rest.starts_with(['T', 't']))
}

/// An error of HTTP as one of the system; `when` says when the agent ended the connection.
fn io_error(error: &hyper::Error, when: &str) -> io::Error {
    use ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
    let system = error.source().and_then(|it| it.downcast_ref::<io::Error>());
    let (kind, text) = match system {
        _ if error.is_parse() => (InvalidData, "the agent does not speak HTTP".to_owned()),
        _ if error.is_body_write_aborted() => {
            (Other, "the document became shorter meanwhile".to_owned())
        }
        Some(it) if matches!(it.kind(), InvalidData | InvalidInput) => {
            (InvalidData, "the agent does not speak HTTP".to_owned())
        }
        Some(it) if !is_broken(it) => (it.kind(), it.to_string()),
        _ => (UnexpectedEof, format!("the agent broke off {when}")),
    };
    io::Error::new(kind, text)
}

fn is_broken(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Takes what is written after the agent has closed the connection: the agent may respond before it
/// has read everything, and hyper loses the response when a write fails.
struct Unfailing(OwnedWriteHalf);

impl AsyncWrite for Unfailing {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.0).poll_write(context, bytes);
        written.map(|written| match written {
            Err(error) if is_broken(&error) => Ok(bytes.len()),
            written => written,
        })
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net;
    use std::thread;

    use super::*;

    /// A connection, and the agent's end of it.
    fn pair() -> io::Result<(Connection, net::UnixStream)> {
        let (stream, agent) = net::UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let stream = runtime.block_on(async { UnixStream::from_std(stream) })?;
        Ok((Connection { runtime, stream }, agent))
    }

    /// The client's result for these bytes, after which the connection ends.
    fn answer(bytes: &'static [u8]) -> io::Result<(u16, String)> {
        let (connection, mut agent) = pair()?;
        let served = thread::spawn(move || {
            let asked = BufReader::new(agent.try_clone()?);
            for line in asked.lines() {
                if line?.is_empty() {
                    break;
                }
            }
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
        let body = Box::new(io::repeat(b' '));
        let mut answer = connection
            .send_request("POST", "/", Some((body, 8 << 20)), TIMEOUT)
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
        let listener = net::UnixListener::bind(&path).unwrap();
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

    /// A head is late as a whole, however often another byte of it arrives.
    #[test]
    fn a_slow_head_and_a_stalled_body_time_out() {
        let timeout = Duration::from_secs(1);
        let (connection, mut agent) = pair().unwrap();
        let served = thread::spawn(move || {
            while agent.write_all(b"HTTP/1.1 200 OK\r\nA: b").is_ok() {
                thread::sleep(timeout / 4);
            }
        });
        let error = connection
            .send_request("GET", "/", None, timeout)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "the agent does not answer within 1 s");
        served.join().unwrap();

        let (connection, mut agent) = pair().unwrap();
        agent
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nn")
            .unwrap();
        let mut answer = connection.send_request("GET", "/", None, timeout).unwrap();
        let error = answer.read_to_end(&mut Vec::new()).unwrap_err();
        let text = "the agent did not go on with its answer within 1 s";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_document_that_becomes_shorter_is_an_error() {
        let (connection, _agent) = pair().unwrap();
        let body: Box<dyn Read + Send> = Box::new(&b"no"[..]);
        let error = connection
            .send_request("POST", "/", Some((body, 3)), TIMEOUT)
            .unwrap_err();
        let text = "the document became shorter meanwhile";
        assert_eq!(error.to_string(), text);
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
