//! `thalweg web`: the page for browsers on this machine, which asks an agent's socket.
//!
//! The page comes from this program, so it is there before the agent is. Everything else is asked
//! of the agent with the rights of the user who runs this program.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::answer::{Answer, Failure};
use super::page;
use super::tcp::{self, Token};

/// Longest wait for the beginning of the agent's answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// A port for the page, which is not served yet.
pub struct Web {
    listener: TcpListener,
    address: SocketAddr,
    secret: String,
}

impl Web {
    /// Binds a port; with port 0 a free one.
    ///
    /// # Errors
    /// The port is in use, or a system error.
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => anyhow::anyhow!(
                "{address} is in use; name another port with --listen, or 0 for a free one"
            ),
            _ => anyhow::Error::from(error).context(format!("cannot listen on {address}")),
        })?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            secret: secret()?,
        })
    }

    /// The address of the page, with the token.
    pub fn url(&self) -> String {
        format!("http://{}/?token={}", self.address, self.secret)
    }

    /// Serves the page until SIGINT or SIGTERM.
    ///
    /// # Errors
    /// A system error, at the start.
    pub fn run(self, socket: PathBuf) -> Result<()> {
        let token = Token::new(&self.secret)?;
        let router = tcp::guarded(router(socket), Some(token));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            tokio::select! {
                never = tcp::serve(listener, router) => match never {},
                _ = terminate.recv() => Ok(()),
                _ = interrupt.recv() => Ok(()),
            }
        })
    }
}

/// An unguessable token.
fn secret() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("reading /dev/urandom")?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string succeeds.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn router(socket: PathBuf) -> Router {
    page::routes()
        .fallback(forward)
        .with_state(Arc::from(socket))
}

/// Asks the agent, and streams its response to the browser. A browser that does not read delays the
/// agent, which then breaks off.
async fn forward(State(socket): State<Arc<Path>>, request: Request) -> Answer<Response> {
    let path = request.uri().path_and_query();
    let path = path.map_or("/", |path| path.as_str()).to_owned();
    drop(request);
    let asked = timeout(PATIENCE, ask(&socket, &path)).await;
    let answer = asked.unwrap_or_else(|_| {
        let text = format!("the agent on {} does not answer", socket.display());
        Err(Failure(StatusCode::GATEWAY_TIMEOUT, text))
    })?;
    let (head, body) = answer.into_parts();
    let mut passed = (head.status, Body::new(body)).into_response();
    let headers = passed.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, kind.clone());
    }
    Ok(passed)
}

async fn ask(socket: &Path, path: &str) -> Answer<Response<hyper::body::Incoming>> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|error| unreachable(socket, &error))?;
    let broken = |error: &dyn std::fmt::Display| {
        // The agent may be taking another configuration.
        let text = format!("the agent broke the connection off ({error})");
        Failure(StatusCode::BAD_GATEWAY, text)
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| broken(&error))?;
    // The connection ends with the response, or when nobody reads it any more.
    tokio::spawn(connection);
    let asked = Request::get(path)
        .header(header::HOST, "localhost")
        .body(Empty::<Bytes>::new())
        .map_err(|error| Failure(StatusCode::BAD_REQUEST, error.to_string()))?;
    let answer = sender.send_request(asked).await;
    answer.map_err(|error| broken(&error))
}

fn unreachable(socket: &Path, error: &std::io::Error) -> Failure {
    let shown = socket.display();
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Failure(
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "no agent answers on {shown}; start it: systemctl start thalweg, or thalweg run"
            ),
        ),
        ErrorKind::PermissionDenied => Failure(
            StatusCode::FORBIDDEN,
            format!(
                "no permission to use {shown}: run thalweg web as root, or join the group of \
                 paths.socket_group"
            ),
        ),
        _ => Failure(
            StatusCode::BAD_GATEWAY,
            format!("cannot connect to {shown}: {error}"),
        ),
    }
}
