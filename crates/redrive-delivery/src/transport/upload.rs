//! The body of a request: bytes in memory, or a stream of known length.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;

use crate::bodies::StoredBody;
use crate::transport::progress::Progress;

/// Any error of a body that is read while it is sent.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The body of a request. Its length is known, so that the request has a `Content-Length`.
pub struct Upload {
    prefix: Option<Bytes>,
    source: Source,
    progress: Progress,
}

enum Source {
    Whole(Option<Bytes>),
    Stream { body: Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>, left: u64 },
}

impl Upload {
    /// An empty body.
    pub fn empty() -> Self {
        Self::bytes(Bytes::new())
    }

    /// Bytes in memory.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::new(Source::Whole(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }

    /// A stream of exactly `length` bytes; any other length is an error of the stream.
    pub fn stream(body: impl Body<Data = Bytes, Error = BoxError> + Send + 'static, length: u64) -> Self {
        Self::new(Source::Stream { body: Box::pin(body), left: length })
    }

    /// A body from the object store.
    pub fn stored(body: StoredBody) -> Self {
        let length = body.length();
        Self::stream(body.into_body().map_err(Into::into), length)
    }

    /// The number of bytes that are still to be sent.
    pub fn length(&self) -> u64 {
        let prefix = self.prefix.as_ref().map_or(0, Bytes::len) as u64;
        prefix
            + match &self.source {
                Source::Whole(bytes) => bytes.as_ref().map_or(0, Bytes::len) as u64,
                Source::Stream { left, .. } => *left,
            }
    }

    fn new(source: Source) -> Self {
        Self { prefix: None, source, progress: Progress::new() }
    }

    /// Adds bytes in front. Bytes in memory are joined to them, so that they are sent in one write.
    pub(crate) fn with_prefix(self, prefix: &[u8]) -> Self {
        match self.source {
            Source::Whole(bytes) => {
                let joined = [prefix, bytes.as_deref().unwrap_or_default()].concat();
                Self { source: Source::Whole(Some(joined.into())), ..self }
            }
            Source::Stream { .. } => Self { prefix: Some(Bytes::copy_from_slice(prefix)), ..self },
        }
    }

    /// Records in `progress` when sending starts.
    pub(crate) fn with_progress(self, progress: Progress) -> Self {
        Self { progress, ..self }
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.source {
            Source::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Source::Stream { body, left } => {
                body.as_mut().poll_frame(cx).map(|frame| check_length(frame, left))
            }
        }
    }
}

/// Checks the length: with too few bytes the target would wait, and extra bytes would look like another request.
fn check_length(
    frame: Option<Result<Frame<Bytes>, BoxError>>,
    left: &mut u64,
) -> Option<Result<Frame<Bytes>, BoxError>> {
    let Some(frame) = frame else {
        let missing = *left;
        return (missing > 0).then(|| Err(format!("the stored body ended {missing} bytes early").into()));
    };
    let taken = match &frame {
        Ok(frame) => frame.data_ref().map_or(0, Bytes::len) as u64,
        Err(_) => return Some(frame),
    };
    match left.checked_sub(taken) {
        Some(rest) => *left = rest,
        None => return Some(Err("the stored body is longer than its recorded length".into())),
    }
    Some(frame)
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.progress.set_sending();
        if let Some(prefix) = self.prefix.take() {
            return Poll::Ready(Some(Ok(Frame::data(prefix))));
        }
        let polled = self.poll_stream(cx);
        if let Poll::Ready(Some(Err(error))) = &polled {
            self.progress.set_body_failure(&**error);
        }
        polled
    }

    /// The HTTP client calls this before anything else when a connection takes the request, even if there is no body to poll.
    fn is_end_stream(&self) -> bool {
        self.progress.set_sending();
        self.length() == 0
    }

    fn size_hint(&self) -> SizeHint {
        self.progress.set_sending();
        SizeHint::with_exact(self.length())
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("length", &self.length()).finish_non_exhaustive()
    }
}
