//! Limits request bodies: each one must arrive at a minimum rate, and all together may use a bounded amount of memory.
//!
//! The listener applies these limits to every body, so they hold for every route.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::error::Problem;
use crate::listen::ListenLimits;
use redrive_wire::Code;

/// The minimum size of a piece that is passed on, except for the last one. Many tiny pieces would use more memory than their bytes.
const PIECE_BYTES_MIN: usize = 16 * 1024;
/// A request with at most this many bytes may use the last eighth of the memory, so that large uploads do not block small requests.
const SMALL_BYTES_MAX: usize = 64 * 1024;

/// Why the listener stopped reading a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyReadError {
    /// It arrived too slowly.
    #[error("the request body arrived too slowly")]
    TooSlow,
    /// The memory for request bodies is full.
    #[error("the memory for request bodies is full")]
    BuffersFull,
}

impl BodyReadError {
    /// Finds a read error among the causes of `error`.
    pub(crate) fn find_in(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<Self>() {
                return Some(*error);
            }
            cause = error.source();
        }
        None
    }
}

impl From<BodyReadError> for Problem {
    fn from(error: BodyReadError) -> Self {
        match error {
            BodyReadError::TooSlow => Self::new(
                Code::RequestTooSlow,
                "the request body arrived too slowly or stopped; send it again without pauses",
            ),
            BodyReadError::BuffersFull => Self::new(
                Code::Overloaded,
                "the memory of the service for request bodies is full; try again in a second",
            ),
        }
    }
}

/// The memory that the bodies of all requests share.
#[derive(Debug)]
pub(crate) struct BufferBudget {
    bytes_max: usize,
    bytes_held: AtomicUsize,
}

impl BufferBudget {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, bytes_held: AtomicUsize::new(0) })
    }

    /// Takes `more` bytes for a request that already holds `held` bytes.
    fn take(&self, held: usize, more: usize) -> Result<(), BodyReadError> {
        let reserved = if held + more <= SMALL_BYTES_MAX { 0 } else { self.bytes_max / 8 };
        let limit = self.bytes_max - reserved;
        let taken = self.bytes_held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
            all.checked_add(more).filter(|all| *all <= limit)
        });
        taken.map(drop).map_err(|_| BodyReadError::BuffersFull)
    }
}

/// The shared memory that one request holds for its body. It is freed when the request has ended.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<BufferBudget>,
    held: AtomicUsize,
    held_max: AtomicUsize,
}

impl Reservation {
    fn new(budget: Arc<BufferBudget>) -> Arc<Self> {
        Arc::new(Self { budget, held: AtomicUsize::new(0), held_max: AtomicUsize::new(usize::MAX) })
    }

    /// Declares that the request streams its body and never holds more than `bytes` of it.
    pub(crate) fn hold_at_most(&self, bytes: usize) {
        self.held_max.store(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that have arrived. Only the body calls this, so calls do not overlap.
    fn add(&self, arrived: usize) -> Result<(), BodyReadError> {
        let (held, held_max) = (self.held.load(Ordering::Relaxed), self.held_max.load(Ordering::Relaxed));
        let more = arrived.min(held_max.saturating_sub(held));
        self.budget.take(held, more)?;
        self.held.store(held + more, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.bytes_held.fetch_sub(*self.held.get_mut(), Ordering::Relaxed);
    }
}

/// The body of a request, with its limits.
pub(crate) struct RequestBody<B> {
    inner: B,
    reservation: Arc<Reservation>,
    client_timeout: ClientTimeout,
    /// Small pieces, until they add up to [`PIECE_BYTES_MIN`].
    pending: BytesMut,
    has_ended: bool,
}

impl<B> RequestBody<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    /// Applies the limits to a body. Its memory is freed when both the reservation and the body are dropped.
    pub(crate) fn guard(
        inner: B,
        limits: &ListenLimits,
        budget: &Arc<BufferBudget>,
    ) -> (Body, Arc<Reservation>) {
        let reservation = Reservation::new(budget.clone());
        if inner.is_end_stream() {
            return (Body::empty(), reservation);
        }
        let client_timeout = ClientTimeout::new(limits.body_timeout, limits.body_bytes_per_second_min);
        let body = Self {
            inner,
            reservation: reservation.clone(),
            client_timeout,
            pending: BytesMut::new(),
            has_ended: false,
        };
        (Body::new(body), reservation)
    }

    /// Adds bytes that have arrived. Returns a piece once it is large enough to pass on.
    fn take(&mut self, data: Bytes) -> Result<Option<Bytes>, BodyReadError> {
        self.client_timeout.received(data.len());
        self.reservation.add(data.len())?;
        if self.pending.is_empty() && data.len() >= PIECE_BYTES_MIN {
            return Ok(Some(data));
        }
        self.pending.extend_from_slice(&data);
        Ok((self.pending.len() >= PIECE_BYTES_MIN).then(|| self.pending.split().freeze()))
    }
}

impl<B> HttpBody for RequestBody<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        while !this.has_ended {
            match Pin::new(&mut this.inner).poll_frame(context) {
                // Trailers are dropped: nothing reads them.
                Poll::Ready(Some(Ok(frame))) => match frame.into_data().map(|data| this.take(data)) {
                    Ok(Ok(Some(piece))) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                    Ok(Ok(None)) | Err(_) => {}
                    Ok(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                },
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => this.has_ended = true,
                Poll::Pending => {
                    return match this.client_timeout.poll(context) {
                        Poll::Ready(()) => Poll::Ready(Some(Err(BodyReadError::TooSlow.into()))),
                        Poll::Pending => Poll::Pending,
                    };
                }
            }
        }
        let last = this.pending.split().freeze();
        Poll::Ready((!last.is_empty()).then(|| Ok(Frame::data(last))))
    }

    fn is_end_stream(&self) -> bool {
        self.pending.is_empty() && (self.has_ended || self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, pending) = (self.inner.size_hint(), self.pending.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + pending);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + pending);
        }
        hint
    }
}

/// How much longer to wait for a client. Waiting reduces the time and received bytes restore it, so both a long pause and a trickle
/// of bytes end the request. Time that the service itself needs does not count.
struct ClientTimeout {
    max: Duration,
    left: Duration,
    bytes_per_second: u32,
    waiting_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl ClientTimeout {
    fn new(max: Duration, bytes_per_second: u32) -> Self {
        Self { max, left: max, bytes_per_second: bytes_per_second.max(1), waiting_since: None, timer: None }
    }

    fn received(&mut self, bytes: usize) {
        if let Some(since) = self.waiting_since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
        let earned = Duration::from_secs_f64(bytes as f64 / f64::from(self.bytes_per_second));
        self.left = self.max.min(self.left + earned);
    }

    /// Waits for the client. Ready when the time is used up.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let deadline = *self.waiting_since.get_or_insert_with(Instant::now) + self.left;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::StreamExt as _;
    use tokio::time::sleep;

    use super::*;

    /// A body whose chunks each arrive after a pause.
    struct DelayedChunks(VecDeque<(Duration, usize)>, Option<Pin<Box<Sleep>>>);

    impl HttpBody for DelayedChunks {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            let Some((pause, bytes)) = self.0.front().copied() else { return Poll::Ready(None) };
            let timer = self.1.get_or_insert_with(|| Box::pin(sleep(pause)));
            std::task::ready!(timer.as_mut().poll(context));
            self.1 = None;
            self.0.pop_front();
            Poll::Ready(Some(Ok(Frame::data(vec![7; bytes].into()))))
        }
    }

    fn limits() -> ListenLimits {
        ListenLimits {
            body_timeout: Duration::from_secs(10),
            body_bytes_per_second_min: 1024,
            ..ListenLimits::default()
        }
    }

    /// The lengths of the pieces that are passed on, and the error at the end.
    async fn read(
        pieces: impl IntoIterator<Item = (u64, usize)>,
        budget: &Arc<BufferBudget>,
    ) -> (Vec<usize>, Option<BodyReadError>) {
        let pieces = pieces.into_iter().map(|(seconds, bytes)| (Duration::from_secs(seconds), bytes));
        let (body, reservation) =
            RequestBody::guard(DelayedChunks(pieces.collect(), None), &limits(), budget);
        let mut stream = body.into_data_stream();
        let mut lengths = Vec::new();
        while let Some(piece) = stream.next().await {
            match piece {
                Ok(piece) => lengths.push(piece.len()),
                Err(error) => return (lengths, BodyReadError::find_in(&error)),
            }
        }
        drop(reservation);
        (lengths, None)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_must_arrive_at_the_minimum_rate() {
        let budget = BufferBudget::new(usize::MAX);
        for (pieces, error) in [
            (vec![(9, 1), (0, 1)], None),
            (vec![(11, 1)], Some(BodyReadError::TooSlow)),
            // A trickle ends the request like a pause, and many bytes do not allow a longer pause.
            (vec![(4, 1), (4, 1), (4, 1)], Some(BodyReadError::TooSlow)),
            (vec![(0, 15 << 20), (11, 1)], Some(BodyReadError::TooSlow)),
            (vec![(4, 8192); 50], None),
        ] {
            assert_eq!(read(pieces.clone(), &budget).await.1, error, "{pieces:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn small_pieces_are_passed_on_together() {
        let budget = BufferBudget::new(usize::MAX);
        let pieces = std::iter::repeat_n((0, 1), 40_000);
        assert_eq!(read(pieces, &budget).await, (vec![16_384, 16_384, 7_232], None));
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_share_a_bounded_memory_with_a_part_reserved_for_small_ones() {
        let mib = 1 << 20;
        let budget = BufferBudget::new(8 * mib);
        let full = Some(BodyReadError::BuffersFull);
        assert_eq!(read([(0, 7 * mib)], &budget).await.1, None);
        assert_eq!(read([(0, 7 * mib), (0, 1)], &budget).await.1, full, "the last eighth is for small ones");
        assert_eq!(budget.bytes_held.load(Ordering::Relaxed), 0, "all memory was freed");

        let large = Reservation::new(budget.clone());
        large.add(7 * mib).unwrap();
        assert_eq!(read([(0, SMALL_BYTES_MAX)], &budget).await.1, None);
        assert_eq!(read([(0, SMALL_BYTES_MAX + 1)], &budget).await.1, full);
        drop(large);

        let streamed = Reservation::new(budget.clone());
        streamed.hold_at_most(mib);
        for _ in 0..100 {
            streamed.add(mib).unwrap();
        }
        assert_eq!(budget.bytes_held.load(Ordering::Relaxed), mib);
    }
}
