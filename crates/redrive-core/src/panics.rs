//! Turns panics of user code into errors, so that the engine continues.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::verdict::{Failure, FailureKind, Outcome};

/// A panic that was caught: which code panicked, and its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panic {
    what: String,
    message: Option<String>,
}

impl Panic {
    /// Continues the panic, so that an outer caller can catch it. An outer [`catch`] keeps the name of this panic.
    pub fn resume<T>(self) -> T {
        resume_unwind(Box::new(self))
    }

    fn new(what: impl fmt::Display, payload: Box<dyn Any + Send>) -> Self {
        let payload = match payload.downcast::<Self>() {
            Ok(panic) => return *panic,
            Err(payload) => payload,
        };
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = text.or_else(|| payload.downcast_ref::<String>().cloned());
        // The payload's destructor may panic with a second payload, whose destructor may panic too: that one is leaked.
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(second);
        }
        Self { what: what.to_string(), message }
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} panicked", self.what)?;
        self.message.as_ref().map_or(Ok(()), |message| write!(f, ": {message}"))
    }
}

impl std::error::Error for Panic {}

/// A panic fails the attempt that it happened in.
impl From<Panic> for Outcome {
    fn from(panic: Panic) -> Self {
        Self::Fail(Failure::new(FailureKind::Panic, panic))
    }
}

/// Calls `call`. If it panics, the error names it as `what`.
///
/// After a panic, the caller must roll back or drop everything that `call` may have left half done.
///
/// ```
/// let panic = redrive_core::panics::catch("the closure", || panic!("no stock")).map(|()| 1).unwrap_err();
/// assert_eq!(panic.to_string(), "the closure panicked: no stock");
/// ```
pub fn catch<T>(what: impl fmt::Display, call: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| Panic::new(what, payload))
}

pin_project! {
    /// A future that catches the panics of another future, as [`catch`] does for a call. It also catches panics of the
    /// other future's destructor, wherever it is dropped.
    #[must_use = "a future does nothing until it is awaited"]
    pub struct CatchPanic<F, W>
    where
        W: fmt::Display,
    {
        #[pin]
        inner: Option<F>,
        what: W,
    }

    impl<F, W: fmt::Display> PinnedDrop for CatchPanic<F, W> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // Nobody waits for the result any more. The panic hook has reported the panic.
            let _ = catch(&*this.what, || this.inner.set(None));
        }
    }
}

impl<F: Future, W: fmt::Display> CatchPanic<F, W> {
    /// Runs `inner`, which errors name as `what`.
    pub fn new(what: W, inner: F) -> Self {
        Self { inner: Some(inner), what }
    }
}

impl<F: Future, W: fmt::Display> Future for CatchPanic<F, W> {
    type Output = Result<F::Output, Panic>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let polled = catch(&*this.what, || {
            let Some(inner) = this.inner.as_mut().as_pin_mut() else { return Poll::Pending };
            let poll = inner.poll(cx);
            if poll.is_ready() {
                this.inner.set(None);
            }
            poll
        });
        match polled {
            Ok(poll) => poll.map(Ok),
            Err(panic) => {
                let _ = catch(&*this.what, || this.inner.set(None));
                Poll::Ready(Err(panic))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;
    use std::task::Waker;

    use super::*;

    struct Bomb(&'static str);

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic_any(self.0);
        }
    }

    fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
        let mut future = Box::pin(future);
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_panic_is_named_with_its_message() {
        let text = |call: fn()| catch("the hook", call).unwrap_err().to_string();
        assert_eq!(text(|| panic!("plain")), "the hook panicked: plain");
        assert_eq!(text(|| panic!("{} {}", "made", "up")), "the hook panicked: made up");
        assert_eq!(text(|| panic_any(7)), "the hook panicked");
    }

    #[test]
    fn a_panic_that_is_resumed_keeps_its_name() {
        let inner = || catch("the handler", || panic!("no")).unwrap_or_else(Panic::resume);
        assert_eq!(catch("the middleware", inner).unwrap_err().to_string(), "the handler panicked: no");
    }

    #[test]
    fn a_payload_whose_destructor_panics_is_dropped_in_place() {
        let panic = catch("the handler", || panic_any(Bomb("again"))).unwrap_err();
        assert_eq!(panic.to_string(), "the handler panicked");
        struct Endless;
        impl Drop for Endless {
            fn drop(&mut self) {
                panic_any(Endless);
            }
        }
        assert_eq!(
            catch("the handler", || panic_any(Endless)).unwrap_err().to_string(),
            "the handler panicked"
        );
    }

    #[test]
    fn a_future_is_caught_in_a_poll_and_in_its_destructor() {
        let failed = poll_once(CatchPanic::new("the body", async { panic!("no") }));
        assert_eq!(
            failed.map(|ended: Result<(), _>| ended.unwrap_err().to_string()),
            ready("the body panicked: no")
        );
        let dropped = poll_once(CatchPanic::new("the body", async {
            let _bomb = Bomb("at the end");
        }));
        assert_eq!(
            dropped.map(|ended| ended.unwrap_err().to_string()),
            ready("the body panicked: at the end")
        );
        let pending = poll_once(CatchPanic::new("the body", async {
            let _bomb = Bomb("in the middle");
            std::future::pending::<()>().await;
        }));
        assert!(pending.is_pending(), "dropping the future did not panic");
    }

    fn ready(text: &str) -> Poll<String> {
        Poll::Ready(text.to_owned())
    }
}
