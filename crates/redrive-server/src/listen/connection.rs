//! One HTTP connection: it ends when its client misses a deadline. The stream and the response body report to the activity
//! whether the connection waits for its client.

use std::fmt::Display;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::activity::{Activity, Exchange, MissedDeadline};

/// How long the current requests of a connection may take after its shutdown has started.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest piece of a response that is passed to the connection at once. It bounds what is buffered while the client does not read.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// Runs a connection until it ends, its client misses a deadline, or a token is cancelled.
pub(super) async fn run_connection<C>(
    connection: C,
    activity: &Activity,
    evicted: &CancellationToken,
    closing: &CancellationToken,
) where
    C: GracefulConnection,
    C::Error: Display,
{
    let mut connection = pin!(connection);
    loop {
        let check_at = match activity.check(Instant::now()) {
            Ok(check_at) => check_at,
            Err(MissedDeadline::Idle) => break,
            Err(deadline @ (MissedDeadline::Head | MissedDeadline::Write)) => {
                tracing::debug!(?deadline, "closed a connection: its client missed a deadline");
                return;
            }
        };
        tokio::select! {
            biased;
            ended = connection.as_mut() => return log_error(ended),
            () = evicted.cancelled() => return,
            () = closing.cancelled() => break,
            () = sleep_until(check_at) => {}
        }
    }
    connection.as_mut().graceful_shutdown();
    match timeout(SHUTDOWN_TIMEOUT, connection).await {
        Ok(ended) => log_error(ended),
        Err(_) if closing.is_cancelled() => {
            tracing::warn!("dropped a request that did not end within 10 s of the shutdown");
        }
        Err(_) => tracing::debug!("dropped an idle connection that its client did not close"),
    }
}

fn log_error(ended: Result<(), impl Display>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection failed");
    }
}

/// A socket that reports to the activity of its connection whether writes are blocked.
pub(super) struct WatchedStream {
    inner: TcpStream,
    activity: Arc<Activity>,
    is_blocked: bool,
}

impl WatchedStream {
    pub(super) fn new(inner: TcpStream, activity: Arc<Activity>) -> Self {
        Self { inner, activity, is_blocked: false }
    }

    fn note(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_pending() != self.is_blocked {
            self.is_blocked = written.is_pending();
            self.activity.set_write_blocked(self.is_blocked);
        }
        written
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// A response body. Its exchange ends with it.
pub(super) struct ResponseBody {
    inner: Body,
    /// The rest of a piece that was larger than [`PIECE_BYTES_MAX`].
    rest: Bytes,
    exchange: Exchange,
}

impl ResponseBody {
    pub(super) fn new(inner: Body, exchange: Exchange) -> Self {
        exchange.waits_for_client();
        Self { inner, rest: Bytes::new(), exchange }
    }

    fn next_piece(&mut self, mut data: Bytes) -> Frame<Bytes> {
        let piece = data.split_to(data.len().min(PIECE_BYTES_MAX));
        self.rest = data;
        self.exchange.waits_for_client();
        Frame::data(piece)
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            return Poll::Ready(Some(Ok(self.next_piece(rest))));
        }
        self.exchange.waits_for_service();
        let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(context)).transpose()? else {
            return Poll::Ready(None);
        };
        let frame = match frame.into_data() {
            Ok(data) => self.next_piece(data),
            Err(other) => other,
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
