//! What goes wrong with a server, by kind.

use std::error::Error;
use std::fmt;

use async_nats::{ConnectError, ConnectErrorKind};
use strum::{IntoStaticStr, VariantArray};
use tokio_rustls::rustls;

use crate::text::one_line;
use crate::wire::WireError;

/// Longest text of a fault, characters.
const TEXT_MAX: usize = 200;

/// A kind of fault. Each has a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// No server can be reached.
    Unreachable,
    /// A server does not answer in time.
    Slow,
    /// The certificate is expired, of another CA, or for another name; or there is no TLS.
    Tls,
    /// The server does not know the key or credentials.
    Credentials,
    /// The server does not permit something.
    Permission,
    /// The server has no JetStream, or lacks a bucket.
    Bucket,
    /// A bucket, or a message, is of another version.
    Version,
    /// The server's disk or a bucket is full.
    Full,
    /// A message is larger than its kind may be.
    Size,
    /// A message is not what its kind should be.
    Form,
    /// A message lies under the key of another agent, shard or label.
    Key,
    /// A policy is signed by an unknown key, not signed, or replayed.
    Signature,
    /// The server says something else.
    Server,
}

impl Kind {
    /// All of them.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Name of the kind, for metrics and pages.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A fault: its kind, and one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// The kind.
    pub kind: Kind,
    /// Text of the error, without control characters.
    pub text: String,
}

impl Fault {
    pub(crate) fn new(kind: Kind, text: impl fmt::Display) -> Self {
        Self {
            kind,
            text: one_line(&text.to_string(), TEXT_MAX),
        }
    }

    /// A message under this key is refused.
    pub(crate) fn refused_message(key: &str, error: &WireError) -> Self {
        let kind = match error {
            WireError::Size { .. } => Kind::Size,
            WireError::Version { .. } => Kind::Version,
            WireError::Form(_) => Kind::Form,
        };
        Self::new(kind, format_args!("{key}: {error}"))
    }

    /// A socket of a connection to this server failed.
    pub(crate) fn socket_error(server: &str, error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            _ if is_tls(error) => Kind::Tls,
            std::io::ErrorKind::TimedOut => Kind::Slow,
            _ => Kind::Unreachable,
        };
        Self::new(kind, format_args!("{server}: {}", error_chain(error)))
    }

    /// A server did not let the client in.
    pub(crate) fn connect_error(server: &str, error: &ConnectError) -> Self {
        let kind = match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                Kind::Credentials
            }
            ConnectErrorKind::TimedOut => Kind::Slow,
            _ => Kind::Unreachable,
        };
        Self::new(kind, format_args!("{server}: {}", error_chain(error)))
    }

    /// Something with a bucket failed.
    pub(crate) fn bucket_error(name: &str, error: &(dyn Error + 'static)) -> Self {
        let text = error_chain(error);
        // What the client's types tell only as text. The codes are those of JetStream's API.
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        let kind = if has(&["timed out", "didn't receive ack"]) {
            Kind::Slow
        } else if has(&[
            "10059",
            "no responders",
            "not found",
            "10076",
            "10039",
            "no stream",
            "does not exist",
        ]) {
            Kind::Bucket
        } else if has(&[
            "10023",
            "10047",
            "10077",
            "10122",
            "10002",
            "10028",
            "maximum bytes",
        ]) {
            Kind::Full
        } else if has(&["10054"]) {
            Kind::Size
        } else {
            Kind::Server
        };
        Self::new(kind, format_args!("bucket {name}: {text}"))
    }
}

/// Whether TLS failed somewhere below.
fn is_tls(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<std::io::Error>();
        let inner = inner.and_then(std::io::Error::get_ref);
        if inner.is_some_and(|it| it.is::<rustls::Error>()) || error.is::<rustls::Error>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// The texts of an error and its sources that are not in each other.
fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = error.source();
    }
    text
}
