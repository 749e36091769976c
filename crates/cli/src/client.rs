//! HTTP over the agent's Unix socket.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::failure::{Failure, Pinned};

/// Longest wait for a response to begin, and for more of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for a response that reports a change: an import of many hosts takes time.
const LONG_PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of a file per part.
const PART: usize = 64 << 10;
/// Interval of checks whether the agent still runs.
const LOOK: Duration = Duration::from_secs(1);

/// A client of one agent.
pub struct Client {
    socket: PathBuf,
    pin: PathBuf,
    runtime: Runtime,
}

impl Client {
    /// A client of the agent on a socket; `pin` is that agent's directory of pins.
    pub fn new(socket: PathBuf, pin: PathBuf) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the I/O runtime")?;
        Ok(Self {
            socket,
            pin,
            runtime,
        })
    }

    /// Gets a resource, as the type that describes it.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(path, &self.ask(Method::GET, path, nothing())?)
    }

    /// Gets a resource, part by part as it arrives.
    pub fn get_parts(&self, path: &str, part: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.runtime
            .block_on(self.receive(Method::GET, path, nothing(), part))
    }

    /// Removes a resource.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(path, &self.ask(Method::DELETE, path, nothing())?)
    }

    /// Posts a request without a body.
    pub fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        parse(path, &self.ask(Method::POST, path, nothing())?)
    }

    /// Posts a file from its beginning.
    pub fn post_file<T: DeserializeOwned>(&self, path: &str, mut file: File) -> Result<T> {
        file.rewind().context("reading the file again")?;
        let left = file.metadata().context("looking at the file")?.len();
        let body = Content::new(Parts { file, left });
        parse(path, &self.ask(Method::POST, path, body)?)
    }

    /// Follows a resource of endless lines. Once the agent has accepted, so that no line is missed,
    /// `first` is requested and passed to `begin`. Then each line is passed to `line`. Returns when
    /// the agent ends or one of them fails.
    pub fn follow<T: DeserializeOwned>(
        &self,
        path: &str,
        first: &str,
        begin: impl FnOnce(T) -> Result<()>,
        mut line: impl FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        self.runtime.block_on(async {
            let response = self.send(Method::GET, path, nothing()).await?;
            let mut body = accepted(response).await?;
            begin(parse(
                first,
                &self.collect(Method::GET, first, nothing()).await?,
            )?)?;
            let mut pending = Vec::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.context("the agent broke off")?;
                pending.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                    let whole: Vec<u8> = pending.drain(..=end).collect();
                    line(String::from_utf8_lossy(&whole).trim_end())?;
                }
            }
            Ok(())
        })
    }

    fn ask(&self, method: Method, path: &str, body: Content) -> Result<Bytes> {
        self.runtime.block_on(self.collect(method, path, body))
    }

    async fn collect(&self, method: Method, path: &str, body: Content) -> Result<Bytes> {
        let mut whole = Vec::new();
        let keep = |part: &[u8]| {
            whole.extend_from_slice(part);
            Ok(())
        };
        self.receive(method, path, body, keep).await?;
        Ok(whole.into())
    }

    async fn receive(
        &self,
        method: Method,
        path: &str,
        body: Content,
        mut part: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut body = accepted(self.send(method, path, body).await?).await?;
        loop {
            let frame = tokio::time::timeout(PATIENCE, body.frame()).await;
            let frame = frame.map_err(|_| {
                let seconds = PATIENCE.as_secs();
                anyhow!("the agent did not go on with its answer within {seconds} s")
            })?;
            let Some(frame) = frame else {
                return Ok(());
            };
            let frame = frame.context("the agent broke off its answer")?;
            part(frame.data_ref().map_or(&[][..], |data| data))?;
        }
    }

    async fn send(&self, method: Method, path: &str, body: Content) -> Result<Response<Incoming>> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|error| self.not_connected(error))?;
        let agent = stream.peer_cred().ok().and_then(|agent| agent.pid());
        let patience = if method == Method::GET {
            PATIENCE
        } else {
            LONG_PATIENCE
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .context("the agent does not speak HTTP")?;
        // Its end shows as an error of the request.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(body)?;
        let answer = answer_of(agent, patience, sender.send_request(request)).await?;
        answer.context("the agent broke off before it answered")
    }

    fn not_connected(&self, error: std::io::Error) -> anyhow::Error {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Failure::AgentDown {
                socket: self.socket.clone(),
                pin: self.pin.clone(),
                pinned: pinned(&self.pin),
            }
            .into(),
            ErrorKind::PermissionDenied => anyhow!(
                "no permission to use {}: run as root, or, to read, join the group of paths.socket_group",
                self.socket.display()
            ),
            // The agent's queue is full.
            ErrorKind::WouldBlock => anyhow!(
                "the agent takes no connections on {}; is its process stopped?",
                self.socket.display()
            ),
            _ => anyhow::Error::from(error)
                .context(format!("cannot connect to {}", self.socket.display())),
        }
    }
}

/// Content of a request.
type Content = BoxBody<Bytes, std::io::Error>;

fn nothing() -> Content {
    Content::new(Empty::new().map_err(|never| match never {}))
}

/// A file, read as it is sent.
struct Parts {
    file: File,
    left: u64,
}

impl Body for Parts {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let most = usize::try_from(self.left).map_or(PART, |left| left.min(PART));
        let mut part = vec![0; most];
        // Only regular files: a blocking read waits for the disk.
        let read = match self.file.read(&mut part) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            read => read,
        };
        Poll::Ready(Some(read.map(|count| {
            part.truncate(count);
            self.left -= count as u64;
            Frame::data(part.into())
        })))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Whether programs are pinned in a directory, as far as this user can tell.
pub fn pinned(pin: &Path) -> Pinned {
    match std::fs::read_dir(pin) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Pinned::Unknown,
        _ if thalweg_control::learner::is_attached(pin) => Pinned::Yes,
        _ => Pinned::No,
    }
}

/// Waits for a response of the agent with a process id, but not forever, and not at all if that
/// process is stopped.
async fn answer_of<T>(
    agent: Option<i32>,
    patience: Duration,
    answer: impl Future<Output = T>,
) -> Result<T> {
    let mut answer = std::pin::pin!(answer);
    let begin = Instant::now();
    loop {
        if let Ok(answer) = tokio::time::timeout(LOOK, &mut answer).await {
            return Ok(answer);
        }
        if let Some(pid) = agent.filter(|pid| is_stopped(*pid)) {
            bail!("the agent is stopped (process {pid}); `kill -CONT {pid}` lets it go on");
        }
        if begin.elapsed() >= patience {
            bail!("the agent does not answer within {} s", patience.as_secs());
        }
    }
}

/// Whether a signal or a debugger has stopped a process.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|rest| rest.starts_with(['T', 't']))
}

/// The body of a response that is not an error.
async fn accepted(response: Response<Incoming>) -> Result<Incoming> {
    let status = response.status();
    if status.is_success() {
        return Ok(response.into_body());
    }
    let body = response
        .into_body()
        .collect()
        .await
        .map(|body| body.to_bytes());
    let body = body.unwrap_or_default();
    #[derive(serde::Deserialize)]
    struct Told {
        error: String,
    }
    match serde_json::from_slice::<Told>(&body) {
        Ok(told) => bail!("{}", told.error),
        Err(_) if status == StatusCode::PAYLOAD_TOO_LARGE => {
            bail!("the agent refuses a document of this size")
        }
        Err(_) => bail!(
            "the agent answers {status}: {}",
            String::from_utf8_lossy(&body).trim()
        ),
    }
}

fn parse<T: DeserializeOwned>(path: &str, body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).with_context(|| {
        format!("the agent's answer to {path} is not understood; is it of another version?")
    })
}

/// Text encoded as one segment or query value of a path.
pub fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(encode("192.0.2.7"), "192.0.2.7");
        assert_eq!(encode("2001:db8::/64"), "2001%3Adb8%3A%3A%2F64");
        assert_eq!(encode("é &"), "%C3%A9%20%26");
    }
}
