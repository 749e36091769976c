//! A relay inside this process between the client library and a server.
//!
//! The client library has no bound on what it reads, and believes a server's first line before TLS. So the
//! relay connects to the server, speaks TLS, and passes on what [`Filter`] lets through. The client
//! library can only connect to an address: the relay listens on a port of loopback, and takes a
//! connection only from a socket of this process.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_nats::ServerAddr;
use nix::sys::socket::{SockaddrIn, getpeername, getsockname};
use tokio::io::{
    AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::fault::{Fault, Kind};
use crate::filter::{Filter, LINE_MAX, ReceiveBudget, Requests, Violation, endless_line, no_nats};
use crate::settings::Settings;

/// Bytes that are read at once.
const PIECE: usize = 16 << 10;

/// A relay to one server. Its task ends with the runtime.
pub(crate) struct Relay {
    /// Where the client library connects to.
    pub address: SocketAddrV4,
    ended: Arc<OnceLock<Fault>>,
}

impl Relay {
    /// Connects to a server, and listens for the client library. `name` is the server in messages.
    pub async fn open(settings: &Settings, server: &ServerAddr, name: &str) -> Result<Self, Fault> {
        let timeout = settings.pace.timeout;
        let upstream = Upstream::connect_server(settings, server, timeout)
            .await
            .map_err(|why| Fault::socket_error(name, &why))?;
        let listening = async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let port = listener.local_addr()?.port();
            Ok((listener, SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)))
        };
        let (listener, address) = listening.await.map_err(|why: io::Error| {
            let text = format_args!("cannot listen on 127.0.0.1: {why}");
            Fault::new(Kind::Unreachable, text)
        })?;
        let ended = Arc::new(OnceLock::new());
        tokio::spawn({
            let (ended, name) = (Arc::clone(&ended), name.to_owned());
            async move {
                let fault = relay_bytes(&listener, address, upstream, &name).await;
                // The cell is set once.
                drop(ended.set(fault));
                // The port stays taken: somebody else who listened there would be taken for the server.
                std::future::pending::<()>().await;
                drop(listener);
            }
        });
        Ok(Self { address, ended })
    }

    /// Why the relay ended the connection, once it did.
    pub fn end_reason(&self) -> Option<Fault> {
        self.ended.get().cloned()
    }
}

/// Passes bytes both ways until something is wrong.
async fn relay_bytes(
    listener: &TcpListener,
    address: SocketAddrV4,
    upstream: Upstream,
    name: &str,
) -> Fault {
    let client = loop {
        match listener.accept().await {
            Ok((client, _)) if is_own(&client, address) => break client,
            // The connection is another process's on this machine, or is gone again.
            Ok(_) => {}
            Err(why) => return Fault::socket_error(name, &why),
        }
    };
    // Small messages are answered one by one; without it they would wait for each other.
    drop(client.set_nodelay(true));
    let account = ReceiveBudget::default();
    let (mut from_client, mut to_client) = client.into_split();
    let Upstream { stream, first } = upstream;
    let (mut from_server, mut to_server) = tokio::io::split(stream);
    let down = async {
        let (mut filter, mut output) = (Filter::default(), Vec::with_capacity(2 * PIECE));
        let mut piece = first;
        loop {
            output.clear();
            let passed = filter.pass_bytes(&piece, &mut output, &account);
            // Earlier bytes were passed by the filter.
            to_client.write_all(&output).await?;
            passed?;
            piece.resize(PIECE, 0);
            let length = from_server.read(&mut piece).await?;
            if length == 0 {
                return Err(Ended::Closed);
            }
            piece.truncate(length);
        }
    };
    let up = async {
        let mut requests = Requests::default();
        let mut piece = vec![0; PIECE];
        loop {
            let length = from_client.read(&mut piece).await?;
            if length == 0 {
                return Err(Ended::Closed);
            }
            requests.note_sent(&piece[..length], &account);
            to_server.write_all(&piece[..length]).await?;
            to_server.flush().await?;
        }
    };
    let ended: Result<std::convert::Infallible, Ended> = tokio::select! {
        ended = down => ended,
        ended = up => ended,
    };
    let Err(ended) = ended;
    match ended {
        Ended::Violation(Violation { kind, text }) => {
            Fault::new(kind, format_args!("{name}: {text}"))
        }
        Ended::Closed => {
            let text = format_args!("{name}: the connection was lost");
            Fault::new(Kind::Unreachable, text)
        }
        Ended::Io(why) => Fault::socket_error(name, &why),
    }
}

enum Ended {
    Violation(Violation),
    Closed,
    Io(io::Error),
}

impl From<Violation> for Ended {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<io::Error> for Ended {
    fn from(why: io::Error) -> Self {
        match why.kind() {
            // TLS that ended without saying so.
            io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Io(why),
        }
    }
}

/// Whether the other end of a connection to this address is a socket of this process. Any user of the
/// machine may connect to it.
fn is_own(client: &TcpStream, address: SocketAddrV4) -> bool {
    let Ok(std::net::SocketAddr::V4(peer)) = client.peer_addr() else {
        return false;
    };
    let Ok(files) = fs::read_dir("/proc/self/fd") else {
        return false;
    };
    let (peer, address) = (SockaddrIn::from(peer), SockaddrIn::from(address));
    files
        .flatten()
        .filter_map(|file| file.file_name().to_str()?.parse().ok())
        .any(|file| {
            getsockname::<SockaddrIn>(file) == Ok(peer)
                && getpeername::<SockaddrIn>(file) == Ok(address)
        })
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection to a server, over TLS where that is asked for.
struct Upstream {
    stream: Box<dyn Duplex>,
    /// Bytes read so far: the server's INFO, if it came before TLS.
    first: Vec<u8>,
}

impl Upstream {
    async fn connect_server(
        settings: &Settings,
        server: &ServerAddr,
        timeout: Duration,
    ) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in server.socket_addrs().await? {
            let connecting = async {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Self::begin_tls(settings, server, stream).await
            };
            match tokio::time::timeout(timeout, connecting).await {
                Ok(Ok(upstream)) => return Ok(upstream),
                Ok(Err(why)) => last = why,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }

    async fn begin_tls(
        settings: &Settings,
        server: &ServerAddr,
        stream: TcpStream,
    ) -> io::Result<Self> {
        let mut opening = Opening {
            stream: BufReader::with_capacity(4096, stream),
            info: Vec::new(),
            is_over: false,
        };
        if !server.tls_required() {
            std::future::poll_fn(|cx| opening.poll_info(cx)).await?;
            if !asks_for_tls(&opening.info) {
                return Ok(Self {
                    stream: Box::new(opening.stream),
                    first: opening.info,
                });
            }
        }
        let config = Arc::new(tls_config(settings)?);
        let host = ServerName::try_from(server.host().to_owned())
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        let stream = TlsConnector::from(config).connect(host, opening).await?;
        let first = stream.get_ref().0.info.clone();
        Ok(Self {
            stream: Box::new(stream),
            first,
        })
    }
}

/// Whether a server's INFO asks for TLS.
fn asks_for_tls(info: &[u8]) -> bool {
    let json = info.strip_prefix(b"INFO ").unwrap_or_default();
    let json: Option<serde_json::Value> = serde_json::from_slice(json).ok();
    json.is_some_and(|json| json["tls_required"] == true)
}

/// The roots: the CA of the settings, or those of the system.
fn tls_config(settings: &Settings) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match &settings.ca {
        Some(file) => {
            let wrong = |why: String| {
                let text = format!("cannot read {}: {why}", file.display());
                io::Error::new(io::ErrorKind::InvalidInput, text)
            };
            let certificates =
                CertificateDer::pem_file_iter(file).map_err(|why| wrong(why.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|why| wrong(why.to_string()))?;
                let added = roots.add(certificate);
                added.map_err(|why| wrong(why.to_string()))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            if let Some(why) = found.errors.first().filter(|_| found.certs.is_empty()) {
                return Err(io::Error::other(format!("the system's CAs: {why}")));
            }
            roots.add_parsable_certificates(found.certs);
        }
    }
    Ok(ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// A connection that begins with a server's INFO or with TLS: servers say INFO first by default, and begin
/// with TLS under `handshake_first`. Nothing else is read before TLS, and of INFO only what the client
/// library needs for its answer is believed: somebody on the path may have written it.
struct Opening {
    stream: BufReader<TcpStream>,
    info: Vec<u8>,
    is_over: bool,
}

impl Opening {
    fn poll_info(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.is_over {
            let bytes = ready!(Pin::new(&mut self.stream).poll_fill_buf(cx))?;
            if bytes.is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            // A record of TLS begins with 22 (handshake) or 21 (alert).
            if self.info.is_empty() && matches!(bytes[0], 21 | 22) {
                self.is_over = true;
                break;
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(bytes.len(), |end| end + 1);
            self.info.extend_from_slice(&bytes[..taken]);
            Pin::new(&mut self.stream).consume(taken);
            self.is_over = end.is_some();
            let begun = self.info.len().min(5);
            let wrong = if self.info[..begun] != b"INFO "[..begun] {
                no_nats(&String::from_utf8_lossy(&self.info))
            } else if self.info.len() > LINE_MAX {
                endless_line()
            } else {
                continue;
            };
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, wrong.text)));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Opening {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_info(cx))?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Opening {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
