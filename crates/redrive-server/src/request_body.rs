//! Request bodies as they arrive: each must keep a minimum rate, and all together may hold only so much memory.
//!
//! The listener puts every body behind these limits, so a route is covered whatever it does with its body.

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

use crate::error::{Code, Problem};
use crate::listen::ListenLimits;

/// Bytes that are passed on at once, but for the last: a body in many small pieces would cost more for its pieces than
/// for its bytes.
const PIECE_BYTES_MIN: usize = 16 * 1024;
/// Bytes of a request that may use the last eighth of the memory, so that large uploads do not shut out small requests.
const SMALL_BYTES_MAX: usize = 64 * 1024;

/// Why the listener stopped to read a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyFault {
    /// It came too slowly.
    #[error("the request body came too slowly")]
    TooSlow,
    /// The bodies of all requests hold as much as they may.
    #[error("the bodies of all requests hold as much memory as they may")]
    BuffersFull,
}

impl BodyFault {
    /// The fault that caused an error, if one did.
    pub(crate) fn behind(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(fault) = error.downcast_ref::<Self>() {
                return Some(*fault);
            }
            cause = error.source();
        }
        None
    }
}

impl From<BodyFault> for Problem {
    fn from(fault: BodyFault) -> Self {
        match fault {
            BodyFault::TooSlow => Self::new(
                Code::RequestTooSlow,
                "the request body came too slowly, or stopped; send it again without pauses",
            ),
            BodyFault::BuffersFull => Self::new(
                Code::Overloaded,
                "the service holds as many bytes of request bodies as it may; try again in a second",
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

    /// Takes `more` bytes for a request that holds `held` already.
    fn take(&self, held: usize, more: usize) -> Result<(), BodyFault> {
        let kept_back = if held + more <= SMALL_BYTES_MAX { 0 } else { self.bytes_max / 8 };
        let limit = self.bytes_max - kept_back;
        let taken = self.bytes_held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
            all.checked_add(more).filter(|all| *all <= limit)
        });
        taken.map(drop).map_err(|_| BodyFault::BuffersFull)
    }
}

/// What the body of one request holds of the shared memory, until the request has ended.
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

    /// Declares that the request passes its body on and never holds more than so many bytes of it.
    pub(crate) fn hold_at_most(&self, bytes: usize) {
        self.held_max.store(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that have arrived. Only the body calls this, so there is one call at a time.
    fn add(&self, arrived: usize) -> Result<(), BodyFault> {
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

/// The body of a request, within its limits.
pub(crate) struct RequestBody<B> {
    inner: B,
    reservation: Arc<Reservation>,
    patience: Patience,
    /// Small pieces, until they are worth passing on.
    gathered: BytesMut,
    has_ended: bool,
}

impl<B> RequestBody<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    /// Puts a body behind the limits. The memory it holds is free again once the reservation and the body are dropped.
    pub(crate) fn guard(
        inner: B,
        limits: &ListenLimits,
        budget: &Arc<BufferBudget>,
    ) -> (Body, Arc<Reservation>) {
        let reservation = Reservation::new(budget.clone());
        if inner.is_end_stream() {
            return (Body::empty(), reservation);
        }
        let patience = Patience::new(limits.body_timeout, limits.body_bytes_per_second_min);
        let body = Self {
            inner,
            reservation: reservation.clone(),
            patience,
            gathered: BytesMut::new(),
            has_ended: false,
        };
        (Body::new(body), reservation)
    }

    /// Takes what has arrived; returns a piece that is worth passing on.
    fn take(&mut self, data: Bytes) -> Result<Option<Bytes>, BodyFault> {
        self.patience.received(data.len());
        self.reservation.add(data.len())?;
        if self.gathered.is_empty() && data.len() >= PIECE_BYTES_MIN {
            return Ok(Some(data));
        }
        self.gathered.extend_from_slice(&data);
        Ok((self.gathered.len() >= PIECE_BYTES_MIN).then(|| self.gathered.split().freeze()))
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
                // Nobody reads trailers.
                Poll::Ready(Some(Ok(frame))) => match frame.into_data().map(|data| this.take(data)) {
                    Ok(Ok(Some(piece))) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                    Ok(Ok(None)) | Err(_) => {}
                    Ok(Err(fault)) => return Poll::Ready(Some(Err(fault.into()))),
                },
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => this.has_ended = true,
                Poll::Pending => {
                    return match this.patience.poll(context) {
                        Poll::Ready(()) => Poll::Ready(Some(Err(BodyFault::TooSlow.into()))),
                        Poll::Pending => Poll::Pending,
                    };
                }
            }
        }
        let last = this.gathered.split().freeze();
        Poll::Ready((!last.is_empty()).then(|| Ok(Frame::data(last))))
    }

    fn is_end_stream(&self) -> bool {
        self.gathered.is_empty() && (self.has_ended || self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, gathered) = (self.inner.size_hint(), self.gathered.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + gathered);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + gathered);
        }
        hint
    }
}

/// How much longer to wait for a client. Waiting uses it up and bytes restore it, so that neither a pause nor a trickle
/// can go on. Time that the service itself takes does not count.
struct Patience {
    max: Duration,
    left: Duration,
    bytes_per_second: u32,
    waiting_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
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

    /// Waits for the client; ready when there is no patience left.
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

    /// Pieces of a body, each after a pause.
    struct Pieces(VecDeque<(Duration, usize)>, Option<Pin<Box<Sleep>>>);

    impl HttpBody for Pieces {
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

    /// The lengths of what is passed on, and the fault at the end.
    async fn read(
        pieces: impl IntoIterator<Item = (u64, usize)>,
        budget: &Arc<BufferBudget>,
    ) -> (Vec<usize>, Option<BodyFault>) {
        let pieces = pieces.into_iter().map(|(seconds, bytes)| (Duration::from_secs(seconds), bytes));
        let (body, reservation) = RequestBody::guard(Pieces(pieces.collect(), None), &limits(), budget);
        let mut stream = body.into_data_stream();
        let mut lengths = Vec::new();
        while let Some(piece) = stream.next().await {
            match piece {
                Ok(piece) => lengths.push(piece.len()),
                Err(error) => return (lengths, BodyFault::behind(&error)),
            }
        }
        drop(reservation);
        (lengths, None)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_must_keep_its_rate() {
        let budget = BufferBudget::new(usize::MAX);
        for (pieces, fault) in [
            (vec![(9, 1), (0, 1)], None),
            (vec![(11, 1)], Some(BodyFault::TooSlow)),
            // A trickle is as bad as a pause, and so is a pause after many bytes.
            (vec![(4, 1), (4, 1), (4, 1)], Some(BodyFault::TooSlow)),
            (vec![(0, 15 << 20), (11, 1)], Some(BodyFault::TooSlow)),
            (vec![(4, 8192); 50], None),
        ] {
            assert_eq!(read(pieces.clone(), &budget).await.1, fault, "{pieces:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn small_pieces_are_passed_on_together() {
        let budget = BufferBudget::new(usize::MAX);
        let pieces = std::iter::repeat_n((0, 1), 40_000);
        assert_eq!(read(pieces, &budget).await, (vec![16_384, 16_384, 7_232], None));
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_share_a_bounded_memory_of_which_small_ones_have_a_part() {
        let mib = 1 << 20;
        let budget = BufferBudget::new(8 * mib);
        let full = Some(BodyFault::BuffersFull);
        assert_eq!(read([(0, 7 * mib)], &budget).await.1, None);
        assert_eq!(read([(0, 7 * mib), (0, 1)], &budget).await.1, full, "the last eighth is for small ones");
        assert_eq!(budget.bytes_held.load(Ordering::Relaxed), 0, "all was given back");

        let (large, _) = (Reservation::new(budget.clone()), ());
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
