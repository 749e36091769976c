//! Connections of the local API: their number, and how long each may be silent.
//!
//! If all slots are taken, a new connection replaces the longest silent connection of the user who
//! has most. So no user locks out another, least of all root. Connections over TCP have their own
//! slots. There the longest silent connection without the token gives way, and some slots stay free
//! for connections that have yet to bring it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::{setsockopt, sockopt};
use thalweg_control::system;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::AbortHandle;
use tokio::time::{Sleep, sleep};

/// Time limit for a whole request head, also for the next one after a response.
const HEAD: Duration = Duration::from_secs(5);
/// Time for which a client may leave a pending response unread.
const UNREAD: Duration = Duration::from_secs(30);
/// Buffers of a connection, bytes.
const BUFFER: usize = 64 << 10;
/// Pause after a failed accept, usually for want of descriptors.
const RETRY: Duration = Duration::from_millis(100);

/// The client, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// User at the time of the connection; `None`: unknown over TCP.
    pub(super) uid: Option<u32>,
}

/// The connection of a request, which can bring the token.
#[derive(Clone, Debug)]
pub(super) struct Admission(Arc<Progress>);

impl Admission {
    /// Notes that the connection brought the token: it gives way after those without, unless too
    /// many have the token.
    pub(super) fn grant(&self) {
        self.0.is_admitted.store(true, Ordering::Relaxed);
    }
}

/// Slots that connections with the token leave to others.
const NEWCOMERS: usize = 4;

/// Source of connections.
pub(super) trait Door {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Largest number of connections at a time.
    const CONNECTIONS: usize;

    /// Waits for the next connection.
    async fn take(&self) -> io::Result<(Peer, Self::Stream)>;
}

impl Door for UnixListener {
    type Stream = UnixStream;
    const CONNECTIONS: usize = 64;

    async fn take(&self) -> io::Result<(Peer, UnixStream)> {
        let (stream, _) = self.accept().await?;
        let uid = Some(stream.peer_cred()?.uid());
        Ok((Peer { uid }, stream))
    }
}

impl Door for TcpListener {
    type Stream = TcpStream;
    const CONNECTIONS: usize = 32;

    async fn take(&self) -> io::Result<(Peer, TcpStream)> {
        let (stream, _) = self.accept().await?;
        // A pause between two parts of an answer is none of the network's.
        let _ = stream.set_nodelay(true);
        // Otherwise the system takes megabytes for a client that reads nothing, and a stream of
        // small messages would count as read for an hour.
        let _ = setsockopt(&stream, sockopt::SndBuf, &BUFFER);
        Ok((Peer { uid: None }, stream))
    }
}

/// A connection that may have ended; dropping this value ends it.
struct Held {
    peer: Peer,
    progress: Arc<Progress>,
    task: AbortHandle,
}

/// Answers requests on a socket, forever.
pub(super) async fn serve<D: Door>(door: D, router: Router) -> ! {
    let mut held: Vec<Held> = Vec::with_capacity(D::CONNECTIONS);
    loop {
        let (peer, stream) = match door.take().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("the API takes no connection: {error}");
                sleep(RETRY).await;
                continue;
            }
        };
        held.retain(|one| !one.task.is_finished());
        let all: Vec<Rank> = held.iter().map(Held::rank).collect();
        if is_full(&all, D::CONNECTIONS) {
            let silent = held.swap_remove(gives_way(&all, D::CONNECTIONS, peer.uid));
            tracing::debug!(uid = silent.peer.uid, "a connection of the API gives way");
            drop(silent);
        }
        let progress = Arc::new(Progress::now());
        let admission = Admission(Arc::clone(&progress));
        let service = router
            .clone()
            .layer(Extension(peer))
            .layer(Extension(admission));
        let task = tokio::spawn(answer(stream, Arc::clone(&progress), service)).abort_handle();
        held.push(Held {
            peer,
            progress,
            task,
        });
    }
}

impl Held {
    fn rank(&self) -> Rank {
        Rank {
            uid: self.peer.uid,
            is_admitted: self.progress.is_admitted.load(Ordering::Relaxed),
            last_ns: self.progress.last_ns.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Order in which connections give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rank {
    uid: Option<u32>,
    is_admitted: bool,
    /// Time of the last progress, ns.
    last_ns: u64,
}

/// Whether one connection has to give way to a new one. Those with the token cannot take all slots: the
/// new one may bring it, too.
fn is_full(held: &[Rank], most: usize) -> bool {
    held.len() >= most || are_crowded(held, most)
}

/// Whether connections with the token have slots that are kept for others.
fn are_crowded(held: &[Rank], most: usize) -> bool {
    held.iter().filter(|it| it.is_admitted).count() > most - NEWCOMERS
}

/// The connection to close for a new one of user `newcomer`.
fn gives_way(held: &[Rank], most: usize, newcomer: Option<u32>) -> usize {
    let count = |uid: Option<u32>| {
        held.iter().filter(|it| it.uid == uid).count() + usize::from(uid == newcomer)
    };
    let is_crowded = are_crowded(held, most);
    let rank = |it: &Rank| {
        let order = std::cmp::Reverse(it.last_ns);
        (
            it.is_admitted == is_crowded,
            count(it.uid),
            it.uid != Some(0),
            order,
        )
    };
    let ranks = held.iter().map(rank).enumerate();
    ranks
        .max_by_key(|(_, rank)| *rank)
        .map_or(0, |(index, _)| index)
}

/// Answers the requests of one connection.
async fn answer<S>(stream: S, progress: Arc<Progress>, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let watched = Watched {
        stream,
        progress,
        unread: None,
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(watched), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        // This is the client's fault or choice; the operator cannot mend it.
        tracing::debug!("a connection of the API ended: {error}");
    }
}

/// Progress of a connection.
#[derive(Debug)]
struct Progress {
    /// Time of the last read or write, ns of CLOCK_MONOTONIC.
    last_ns: AtomicU64,
    /// Whether the connection brought the token.
    is_admitted: AtomicBool,
}

impl Progress {
    fn now() -> Self {
        Self {
            last_ns: AtomicU64::new(system::monotonic_ns()),
            is_admitted: AtomicBool::new(false),
        }
    }

    fn note(&self) {
        self.last_ns
            .store(system::monotonic_ns(), Ordering::Relaxed);
    }
}

/// A stream that records its progress, and fails if a response stays unread.
struct Watched<S> {
    stream: S,
    progress: Arc<Progress>,
    /// Runs while the client's receive buffer is full.
    unread: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    fn wrote(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if outcome.is_ready() {
            self.unread = None;
            self.progress.note();
            return outcome;
        }
        let unread = self.unread.get_or_insert_with(|| Box::pin(sleep(UNREAD)));
        ready!(unread.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        self.progress.note();
        Poll::Ready(outcome)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_kept_for_a_client_that_does_not_read() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (_, stream) = listener.take().await.unwrap();
            stream.writable().await.unwrap();
            let (part, mut kept) = ([0; 4096], 0);
            let fault = loop {
                match stream.try_write(&part) {
                    Ok(count) => kept += count,
                    Err(error) => break error,
                }
                assert!(kept < 1 << 20, "{kept} bytes are kept");
            };
            assert_eq!(fault.kind(), io::ErrorKind::WouldBlock);
            assert!(kept > 0);
        });
    }

    fn rank(uid: Option<u32>, last_ns: u64, is_admitted: bool) -> Rank {
        Rank {
            uid,
            is_admitted,
            last_ns,
        }
    }

    #[test]
    fn the_silent_of_whoever_has_most_give_way() {
        let of = |held: &[(u32, u64)]| -> Vec<Rank> {
            let rank = |(uid, last): &(u32, u64)| rank(Some(*uid), *last, false);
            held.iter().map(rank).collect()
        };
        let gives_way = |held: &[Rank], newcomer| {
            let Rank { uid, last_ns, .. } = held[gives_way(held, 64, newcomer)];
            (uid, last_ns)
        };
        let held = of(&[(7, 30), (7, 10), (7, 20), (0, 1), (8, 5)]);
        assert_eq!(gives_way(&held, Some(0)), (Some(7), 10));
        assert_eq!(gives_way(&held, Some(7)), (Some(7), 10));
        // Root is the last to give way to others, and then gives way only to itself.
        let held = of(&[(0, 1), (7, 2), (8, 3), (9, 4)]);
        assert_eq!(gives_way(&held, Some(10)), (Some(7), 2));
        assert_eq!(gives_way(&held, Some(9)), (Some(9), 4));
        let held = of(&[(0, 1), (0, 2), (7, 3)]);
        assert_eq!(gives_way(&held, Some(0)), (Some(0), 1));
        assert_eq!(gives_way(&held, Some(7)), (Some(7), 3));
        // Over TCP all are one.
        let held = [3, 1, 2].map(|last| rank(None, last, false));
        assert_eq!(gives_way(&held, None), (None, 1));
    }

    #[test]
    fn connection_with_the_token_gives_way_to_none_without() {
        let most = 32;
        for admitted in 0..=most - NEWCOMERS {
            let mut held: Vec<Rank> = (0..admitted as u64)
                .map(|at| rank(None, at, true))
                .collect();
            for at in 100..1000 {
                if is_full(&held, most) {
                    let gone = held.remove(gives_way(&held, most, None));
                    assert!(!gone.is_admitted);
                    assert!(
                        held.iter()
                            .all(|it| it.is_admitted || it.last_ns > gone.last_ns)
                    );
                }
                held.push(rank(None, at, false));
            }
        }
        // They keep no newcomer out: of more of them the longest silent one goes.
        let held: Vec<Rank> = (0..29).map(|at| rank(None, at, true)).collect();
        assert!(is_full(&held, most) && gives_way(&held, most, None) == 0);
    }
}
