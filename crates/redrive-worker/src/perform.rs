//! Runs a handler: under its timeout, until it is aborted, with its panics caught.

use std::time::Duration;

use redrive_core::{CatchPanic, Failure, Fault, Outcome};

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
    match CatchPanic::new("handler", call).await {
        Ok(Ok(outcome)) => {
            abandon.disarm();
            Ok(outcome)
        }
        Ok(Err(Interruption::Abort(abort))) => Err(abort),
        Ok(Err(Interruption::Timeout(limit))) => {
            let message = format!("attempt took longer than its timeout of {limit:?}");
            Ok(Outcome::Fail(Failure::new(Fault::Timeout, message)))
        }
        Err(panic) => Ok(panic.into()),
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
