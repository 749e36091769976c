//! The API over TCP: on loopback only, read-only, for requests with the token.
//!
//! Every user of the machine can connect to a port, and so can web pages that a browser on it shows.
//! So a request must name a loopback host: a page whose name leads to 127.0.0.1 names another one.
//! Without a token only metrics are answered, which name no remote host.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use nix::sys::socket::{self, Shutdown};
use thalweg_units::file::error_may_pass;

use super::answer::Failure;
use super::connections::{self, Admission};
use crate::config::ConfigError;
use crate::config::agent::Http;

/// Path that is answered without a token.
const OPEN: &str = "/metrics";
/// Least and most characters of a token.
const TOKEN_MIN: usize = 16;
const TOKEN_MAX: usize = 512;

/// A secret that a request must bring.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token")
    }
}

impl Token {
    /// A token of a text; space around it does not count.
    ///
    /// # Errors
    /// Its length, or a character that a header cannot have.
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim();
        let length = text.len();
        if length == 0 {
            bail!("it is empty; expected {TOKEN_MIN} to {TOKEN_MAX} characters");
        }
        if !(TOKEN_MIN..=TOKEN_MAX).contains(&length) {
            bail!("it has {length} bytes; expected {TOKEN_MIN} to {TOKEN_MAX}");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!("it has spaces or other characters than visible ASCII");
        }
        Ok(Self(text.to_owned()))
    }

    /// The token in a file that its owner alone may read, who is this process's user or root.
    ///
    /// # Errors
    /// It cannot be read, others may read it, or it has no token.
    pub fn read(file: &Path) -> Result<Self> {
        let shown = file.display();
        let mut options = OpenOptions::new();
        // A FIFO must not hold the agent up.
        let options = options.read(true).custom_flags(libc::O_NONBLOCK);
        let opened = options
            .open(file)
            .with_context(|| format!("opening {shown}"))?;
        let about = opened.metadata()?;
        if !about.is_file() {
            bail!("{shown} is not a file");
        }
        let own = nix::unistd::geteuid().as_raw();
        if about.uid() != own && about.uid() != 0 {
            bail!(
                "{shown} belongs to user {}, the agent runs as {own}: chown {own} {shown}",
                about.uid()
            );
        }
        if about.mode() & 0o077 != 0 {
            bail!(
                "{shown} may be read or written by others (mode {:o}): chmod 600 {shown}",
                about.mode() & 0o7777
            );
        }
        let mut bytes = Vec::new();
        opened.take(2 * TOKEN_MAX as u64).read_to_end(&mut bytes)?;
        Self::new(&String::from_utf8_lossy(&bytes)).with_context(|| format!("the token in {shown}"))
    }

    /// Whether a text is this token. The time does not depend on where they differ.
    pub fn is(&self, text: &str) -> bool {
        let (own, other) = (self.0.as_bytes(), text.as_bytes());
        let pairs = own.iter().zip(other);
        let differences = pairs.fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
        own.len() == other.len() && differences == 0
    }

    /// Whether a request brings this token: `Authorization: Bearer TOKEN`.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(header::AUTHORIZATION);
        let value = value.and_then(|value| value.to_str().ok());
        let scheme = value.and_then(|value| value.split_once(' '));
        scheme.is_some_and(|(scheme, token)| {
            scheme.eq_ignore_ascii_case("bearer") && self.is(token.trim())
        })
    }
}

/// Whether a request names this machine's loopback, and nothing else, as its host.
pub fn names_loopback(request: &Request) -> bool {
    let hosts: Vec<_> = request.headers().get_all(header::HOST).iter().collect();
    let [host] = hosts[..] else { return false };
    let in_uri = request.uri().authority().cloned();
    let in_header = host.to_str().ok().and_then(|host| host.parse().ok());
    in_header.is_some_and(|host| is_loopback(&host)) && in_uri.is_none_or(|uri| is_loopback(&uri))
}

fn is_loopback(authority: &Authority) -> bool {
    let host = authority.host();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The refusal of a request that names another host or could change something; `None`: it is
/// allowed.
pub fn refusal(request: &Request) -> Option<Response> {
    if !names_loopback(request) {
        let text = "over TCP, Host must be localhost or a loopback address; a reverse proxy has to \
                    set it";
        return Some(Failure(StatusCode::FORBIDDEN, text.to_owned()).into_response());
    }
    if request.method() != Method::GET {
        let text = format!("no {} over TCP; GET alone", request.method());
        let failure = Failure(StatusCode::METHOD_NOT_ALLOWED, text);
        return Some(([(header::ALLOW, "GET")], failure).into_response());
    }
    None
}

/// The routes, for requests that are allowed over TCP. Without a token only metrics are answered.
pub fn guarded(router: Router, token: Option<Token>) -> Router {
    router.layer(axum::middleware::from_fn_with_state(token, guard))
}

async fn guard(State(token): State<Option<Token>>, request: Request, next: Next) -> Response {
    if let Some(refused) = refusal(&request) {
        return refused;
    }
    let admission = request.extensions().get::<Admission>().cloned();
    let is_admitted = |token: &Token| {
        token.is_in(request.headers())
            || browser::is_known(&request, token)
            || browser::has_token(&request, token)
    };
    if token.as_ref().is_some_and(is_admitted)
        && let Some(admission) = admission
    {
        admission.grant();
    }
    match token {
        Some(token) if browser::has_token(&request, &token) => browser::enter(&request, &token),
        Some(token) if !token.is_in(request.headers()) && !browser::is_known(&request, &token) => {
            let text = "expected the token: in a browser as the end of the address, /?token=TOKEN; \
                        otherwise as `Authorization: Bearer TOKEN`";
            let failure = Failure(StatusCode::UNAUTHORIZED, text.to_owned());
            ([(header::WWW_AUTHENTICATE, "Bearer")], failure).into_response()
        }
        None if request.uri().path() != OPEN => {
            let text = format!(
                "over TCP only {OPEN} is answered, because http.token_file is not set; the socket \
                 has the rest"
            );
            Failure(StatusCode::FORBIDDEN, text).into_response()
        }
        _ => next.run(request).await,
    }
}

/// Answers requests on a port, forever, within the limits of the API.
pub async fn serve(listener: tokio::net::TcpListener, router: Router) -> ! {
    connections::serve(listener, router).await
}

/// A port, and the token that its requests must bring.
#[derive(Clone, Debug)]
pub struct PortListener {
    /// The bound port; `None` while it cannot be bound. Sessions of an agent share it.
    listener: Arc<Mutex<Option<TcpListener>>>,
    address: SocketAddr,
    /// The token; `None`: only metrics are answered.
    pub token: Option<Token>,
}

impl PartialEq for PortListener {
    fn eq(&self, other: &Self) -> bool {
        (self.address, &self.token) == (other.address, &other.token)
    }
}

impl PortListener {
    /// The listener that a configuration asks for; `None`: it asks for none. A port that one of
    /// `others` has is taken over from it, so that no connection is lost.
    ///
    /// # Errors
    /// The port cannot be bound, or the token cannot be used.
    pub fn new(http: &Http, others: &[&Self]) -> Result<Option<Self>> {
        let Some(mut port_listener) = Self::unbound(http)? else {
            return Ok(None);
        };
        match others
            .iter()
            .find(|other| other.address == port_listener.address)
        {
            Some(other) => port_listener.listener = Arc::clone(&other.listener),
            None => {
                let address = port_listener.address;
                let listener = bind(address).with_context(|| format!("http.listen: {address}"))?;
                *port_listener.lock() = Some(listener);
            }
        }
        Ok(Some(port_listener))
    }

    /// The listener at the agent's start. A port that another process has must not stop the agent:
    /// [`PortListener::listen`] tries again.
    ///
    /// # Errors
    /// The token cannot be used.
    pub fn at_start(http: &Http) -> Result<Option<Self>> {
        let port_listener = Self::unbound(http)?;
        if let Some(port_listener) = &port_listener {
            *port_listener.lock() = bind(port_listener.address).ok();
        }
        Ok(port_listener)
    }

    fn unbound(http: &Http) -> Result<Option<Self>> {
        let Some(address) = http.listen else {
            return Ok(None);
        };
        let token = http.token_file.as_deref().map(Token::read).transpose();
        let token = token.map_err(|error| {
            let system = error.downcast_ref::<io::Error>();
            ConfigError::Named {
                may_pass: system.is_some_and(error_may_pass),
                why: format!("http.token_file: {error:#}"),
            }
        })?;
        Ok(Some(Self {
            listener: Arc::default(),
            address,
            token,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Option<TcpListener>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port's listener, for the runtime of the calling thread. A port that is not bound yet is bound.
    ///
    /// # Errors
    /// The system's.
    pub fn listen(&self) -> io::Result<tokio::net::TcpListener> {
        let mut listener = self.lock();
        let bound = match listener.take() {
            Some(bound) => bound,
            None => bind(self.address)?,
        };
        tokio::net::TcpListener::from_std(listener.insert(bound).try_clone()?)
    }

    /// The problem that the port cannot be bound.
    pub fn refused(&self, why: &io::Error) -> String {
        let address = self.address;
        let known = match (why.kind(), &self.token) {
            (ErrorKind::AddrInUse, Some(_)) => {
                ": another process has it and learns the tokens that are sent there"
            }
            (ErrorKind::AddrInUse, None) => {
                ": another process has it, and what is read there is not this agent's"
            }
            _ => "",
        };
        format!("http.listen: {address}: {why}{known}; it is tried again every 5 s")
    }

    /// No further connection is taken, by whoever else has this listener.
    pub fn close(&self) {
        // The listener is closed in any case once the agent has ended.
        if let Some(listener) = &*self.lock() {
            let _ = socket::shutdown(listener.as_raw_fd(), Shutdown::Both);
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

mod browser;
#[cfg(test)]
mod tests;
