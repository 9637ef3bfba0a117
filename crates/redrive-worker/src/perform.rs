//! Runs a handler: under its timeout, until it is aborted, with its panics caught.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use redrive_core::{Failure, Fault, Outcome};

use crate::handler::{Context, Handler};
use crate::hold::{Abort, Flight};

/// What a handler that was left alone came to, or why it was not.
pub(crate) async fn perform(handler: &dyn Handler, cx: Context, flight: &Flight) -> Result<Outcome, Abort> {
    let timeout = cx.timeout;
    // Whatever ends this future but the handler's own return also ends what the handler has started elsewhere.
    let abandon = flight.stop.clone().drop_guard();
    let call = async {
        tokio::select! {
            biased;
            abort = flight.aborted() => Err(Interruption::Abort(abort)),
            outcome = handler.run(cx) => Ok(outcome),
            limit = expire(timeout) => Err(Interruption::Timeout(limit)),
        }
    };
    let caught = CatchPanic { inner: call };
    match caught.await {
        Ok(Ok(outcome)) => {
            abandon.disarm();
            Ok(outcome)
        }
        Ok(Err(Interruption::Abort(abort))) => Err(abort),
        Ok(Err(Interruption::Timeout(limit))) => {
            let message = format!("attempt took longer than its timeout of {limit:?}");
            Ok(Outcome::Fail(Failure::new(Fault::Timeout, message)))
        }
        Err(panic) => Ok(Outcome::Fail(Failure::new(Fault::Panic, panic_message(&*panic)))),
    }
}

enum Interruption {
    Abort(Abort),
    Timeout(Duration),
}

/// Ends after `timeout`, or never: most attempts have none and should not pay for a timer.
async fn expire(timeout: Option<Duration>) -> Duration {
    match timeout {
        Some(limit) => {
            tokio::time::sleep(limit).await;
            limit
        }
        None => std::future::pending().await,
    }
}

/// What a person should read of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let said =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    match said {
        Some(said) => format!("handler panicked: {said}"),
        None => "handler panicked".to_owned(),
    }
}

pin_project! {
    /// Turns a panic of its future, or of a destructor within, into an error.
    struct CatchPanic<F> {
        #[pin]
        inner: F,
    }
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, Box<dyn Any + Send>>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let inner = self.project().inner;
        // Nothing of a future that has panicked is looked at again, so that it cannot show a broken invariant.
        match catch_unwind(AssertUnwindSafe(|| inner.poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_says_what_it_said() {
        let message = |panic: fn()| panic_message(&*catch_unwind(panic).unwrap_err());
        assert_eq!(message(|| panic!("plain")), "handler panicked: plain");
        assert_eq!(message(|| panic!("{} {}", "made", "up")), "handler panicked: made up");
        assert_eq!(message(|| std::panic::panic_any(7)), "handler panicked");
    }
}
