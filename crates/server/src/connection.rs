//! Connections: how many, how long they may take to ask, and how long they may leave an answer lying.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};

use crate::settings::Settings;

/// Bytes of a request's headers at most.
const HEADER_BYTES: usize = 64 << 10;
/// Headers of a request at most.
const MAX_HEADERS: usize = 100;
/// Pause after the system could not give a connection, which it can not when there are too many files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How far the end of a server has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Requests are served.
    Open,
    /// What was begun is finished; nothing new is taken.
    Drain,
    /// What is left is cut off.
    Cut,
}

/// Serves connections until the end; returns when the last one is gone.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    settings: Settings,
    mut stage: watch::Receiver<Stage>,
) {
    let room = Arc::new(Semaphore::new(settings.connections));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room) => accepted,
            () = ending(&mut stage) => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, permit)) => {
                let connection = handle(stream, router.clone(), settings.clone(), stage.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // New clients are turned away by the system from here on.
    drop(listener);
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => {}
        () = cut(&mut stage) => {
            tracing::warn!(connections = connections.len(), "cutting off what is left");
            connections.shutdown().await;
        }
    }
}

/// Waits until no more is taken. The sender lives as long as the server, so there is no other way for the wait to end.
async fn ending(stage: &mut watch::Receiver<Stage>) {
    let _ = stage.wait_for(|stage| *stage != Stage::Open).await;
}

/// Waits until what is left is cut off.
async fn cut(stage: &mut watch::Receiver<Stage>) {
    let _ = stage.wait_for(|stage| *stage == Stage::Cut).await;
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

/// Serves one connection.
async fn handle(stream: TcpStream, router: Router, settings: Settings, mut stage: watch::Receiver<Stage>) {
    // Small writes have to leave at once; where that can not be set they leave later.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(Stalling::new(stream, settings.stall_time));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_time)
        .max_buf_size(HEADER_BYTES)
        .max_headers(MAX_HEADERS);
    let mut connection = std::pin::pin!(builder.serve_connection(io, TowerToHyperService::new(router)));
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = ending(&mut stage) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// A stream that fails when the other side takes nothing for too long.
struct Stalling<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Stalling<S> {
    fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, waiting: None }
    }

    /// What a write came to, unless it has waited too long.
    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, shut)
    }
}
