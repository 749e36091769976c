//! Requests of the command to the agent.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use thalweg_process::http::{Connection, Reply};

use thalweg_terminal::Failure;

/// Longest wait for a response to begin, and for more of it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a response that reports a change: an import of many hosts takes time.
const LONG_TIMEOUT: Duration = Duration::from_secs(300);
/// Bytes of a file per part.
const PART: usize = 64 << 10;

/// Characters that stand for themselves nowhere in an address (RFC 3986, section 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A client of one agent.
pub struct Client {
    socket: PathBuf,
    pin: PathBuf,
}

impl Client {
    /// A client of the agent on a socket; `pin` is that agent's directory of pins.
    pub fn new(socket: PathBuf, pin: PathBuf) -> Self {
        Self { socket, pin }
    }

    /// The agent's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Gets a resource, as the type that describes it.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.request_json("GET", path, None)
    }

    /// As [`Client::get`]; `None` where the agent has no such resource, as an older one.
    pub fn find_resource<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>> {
        match self.get(path) {
            Ok(found) => Ok(Some(found)),
            Err(error) => match error.downcast_ref() {
                Some(Refused { status: 404, .. }) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Gets a resource, part by part as it arrives.
    pub fn get_parts(&self, path: &str, mut part: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut answer = self.send_request("GET", path, None)?;
        let mut buffer = vec![0; PART];
        loop {
            match answer.read(&mut buffer)? {
                0 => return Ok(()),
                count => part(&buffer[..count])?,
            }
        }
    }

    /// Removes a resource.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.request_json("DELETE", path, None)
    }

    /// Posts a request without a body.
    pub fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.request_json("POST", path, None)
    }

    /// Posts a file from its beginning.
    pub fn post_file<T: DeserializeOwned>(&self, path: &str, mut file: File) -> Result<T> {
        file.rewind().context("reading the file again")?;
        let length = file.metadata().context("looking at the file")?.len();
        self.request_json("POST", path, Some((Box::new(file), length)))
    }

    /// Follows a resource of endless lines. Once the agent has accepted, so that no line is missed,
    /// `first` is requested and passed to `begin`. Then each line is passed to `line`. Returns when
    /// the agent ends or one of them fails.
    pub fn follow_lines<T: DeserializeOwned>(
        &self,
        path: &str,
        first: &str,
        begin: impl FnOnce(T) -> Result<()>,
        mut line: impl FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let mut answer = self.send_request("GET", path, None)?;
        answer.set_timeout(None);
        begin(self.get(first)?)?;
        let mut answer = BufReader::new(answer);
        let mut whole = Vec::new();
        while answer.read_until(b'\n', &mut whole)? > 0 && whole.ends_with(b"\n") {
            line(String::from_utf8_lossy(&whole).trim_end())?;
            whole.clear();
        }
        Ok(())
    }

    fn request_json<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<(Box<dyn Read + Send>, u64)>,
    ) -> Result<T> {
        let mut whole = Vec::new();
        self.send_request(method, path, body)?
            .read_to_end(&mut whole)?;
        serde_json::from_slice(&whole).with_context(|| {
            format!("the agent's answer to {path} is not understood; is it of another version?")
        })
    }

    /// Sends a request; returns a response that is not an error.
    fn send_request(
        &self,
        method: &str,
        path: &str,
        body: Option<(Box<dyn Read + Send>, u64)>,
    ) -> Result<Reply> {
        let ask = |body, timeout| -> Result<_> {
            let connection = self.connect_agent()?;
            Ok(connection.send_request(method, path, body, timeout))
        };
        let mut answer = match method {
            "GET" => match ask(None, TIMEOUT)? {
                // A connection ends unanswered where the agent goes on with another configuration.
                // Its next session answers.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => ask(None, TIMEOUT)??,
                first => first?,
            },
            _ => ask(body, LONG_TIMEOUT)??,
        };
        answer.set_timeout(Some(TIMEOUT));
        let (status, reason) = (answer.status, answer.reason);
        if (200..300).contains(&status) {
            return Ok(answer);
        }
        let mut body = Vec::new();
        // The status is enough for a message.
        let _ = answer.read_to_end(&mut body);
        #[derive(serde::Deserialize)]
        struct Told {
            error: String,
        }
        match serde_json::from_slice::<Told>(&body) {
            Ok(Told { error }) => Err(Refused { status, error }.into()),
            Err(_) if status == 413 => bail!("the agent refuses a document of this size"),
            Err(_) => bail!(
                "the agent answers {status} {reason}: {}",
                String::from_utf8_lossy(&body).trim()
            ),
        }
    }

    fn connect_agent(&self) -> Result<Connection> {
        Connection::open(&self.socket).map_err(|error| self.not_connected(error))
    }

    fn not_connected(&self, error: std::io::Error) -> anyhow::Error {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                Failure::with_code(4, agent_down(&self.socket, &self.pin)).into()
            }
            ErrorKind::PermissionDenied => anyhow::Error::from(error).context(format!(
                "no permission to use {}: run as root, or, to read, join the group of paths.socket_group",
                self.socket.display()
            )),
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

/// Whether an error says that this user may not do it.
pub fn is_forbidden(error: &anyhow::Error) -> bool {
    let refused = |error: &Refused| error.status == 403;
    let kind = |error: &std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    error.downcast_ref().is_some_and(refused) || error.downcast_ref().is_some_and(kind)
}

/// An error that the agent told.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
struct Refused {
    status: u16,
    error: String,
}

/// Nobody listens on the socket; what is in the kernel, as far as this user can tell.
fn agent_down(socket: &Path, pin: &Path) -> String {
    let is_hidden =
        std::fs::read_dir(pin).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    let (socket, shown) = (socket.display(), pin.display());
    let state = if is_hidden {
        format!(
            "this user may not see whether programs are pinned in {shown}; start it with \
             `thalweg run` as root"
        )
    } else if thalweg_control::learner::is_attached(pin) {
        format!(
            "its programs are still attached (pinned in {shown}) and go on choosing; start it with \
             `thalweg run`, or remove them with `thalweg detach`"
        )
    } else {
        format!("no programs are pinned in {shown}; start it with `thalweg run`")
    };
    format!("the agent is not running (nobody answers on {socket}); {state}")
}

/// Warns where what a command pins may end with it.
///
/// # Errors
/// The pins certainly would.
pub fn check_pins_last(pin: &Path) -> anyhow::Result<()> {
    if let Some(doubt) = thalweg_control::system::doubt_about_pins(pin)? {
        thalweg_terminal::output::print_warning(&doubt);
    }
    Ok(())
}

/// A resource with those parameters that have a value.
pub fn with_query(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters
        .iter()
        .filter_map(|(name, value)| Some((name, (*value)?)));
    let given = given.map(|(name, value)| format!("{name}={}", percent_encode(value)));
    match given.collect::<Vec<_>>().join("&") {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// Text encoded as one segment or query value of a path.
pub fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(percent_encode("192.0.2.7"), "192.0.2.7");
        assert_eq!(percent_encode("2001:db8::/64"), "2001%3Adb8%3A%3A%2F64");
        assert_eq!(percent_encode("é &"), "%C3%A9%20%26");
    }
}
