//! Runs one connection and ends it when its client keeps it waiting.

use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

use hyper_util::server::graceful::GracefulConnection;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::activity::{Activity, Overdue};

/// How long requests in flight may take to end when a connection is closed.
pub(super) const REQUESTS_END: Duration = Duration::from_secs(10);

/// Runs a connection to its end: its own, one that a deadline of `activity` sets, or one that a token asks for.
pub(super) async fn supervise<C>(
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
            Err(Overdue::Idle) => break,
            Err(overdue @ (Overdue::Head | Overdue::Write)) => {
                tracing::debug!(?overdue, "a client kept its connection waiting");
                return;
            }
        };
        tokio::select! {
            biased;
            ended = connection.as_mut() => return note(ended),
            () = evicted.cancelled() => return,
            () = closing.cancelled() => break,
            () = sleep_until(check_at) => {}
        }
    }
    connection.as_mut().graceful_shutdown();
    match timeout(REQUESTS_END, connection).await {
        Ok(ended) => note(ended),
        Err(_) if closing.is_cancelled() => tracing::warn!("a request did not end in time and is dropped"),
        Err(_) => tracing::debug!("a client did not let go of its idle connection"),
    }
}

fn note(ended: Result<(), impl Display>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}
