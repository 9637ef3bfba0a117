//! The body of a response, which knows whether it waits for its client or for the service.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::activity::Exchange;

/// Bytes that are handed over at once. Of a larger piece only so much can be on its way while nobody reads it.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// A response body that keeps its request in flight until it has ended.
pub(super) struct ResponseBody {
    inner: Body,
    /// The rest of a piece that was too large to be handed over at once.
    rest: Bytes,
    exchange: Exchange,
}

impl ResponseBody {
    pub(super) fn new(inner: Body, exchange: Exchange) -> Self {
        exchange.waits_for_client();
        Self { inner, rest: Bytes::new(), exchange }
    }

    fn hand_over(&mut self, mut data: Bytes) -> Frame<Bytes> {
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
            return Poll::Ready(Some(Ok(self.hand_over(rest))));
        }
        self.exchange.waits_for_service();
        let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(context)).transpose()? else {
            return Poll::Ready(None);
        };
        let frame = match frame.into_data() {
            Ok(data) => self.hand_over(data),
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
