//! The activity of one connection: its current requests, and how long it has waited for its client.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The deadlines for the client of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadlines {
    /// From accept to the end of the first request head.
    pub(super) head: Duration,
    /// From the end of a response to the end of the next request head.
    pub(super) idle: Duration,
    /// For the client to read more of a response.
    pub(super) write: Duration,
}

/// The deadline that a client missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MissedDeadline {
    /// The first request head did not arrive.
    Head,
    /// The next request head did not arrive.
    Idle,
    /// The client does not read its response.
    Write,
}

/// The activity of one connection.
pub(super) struct Activity {
    deadlines: Deadlines,
    state: Mutex<State>,
}

struct State {
    /// When the last response ended, or when the connection was accepted.
    idle_since: Instant,
    has_had_request: bool,
    /// The current requests by number, each with the time at which its response started to wait for the client.
    exchanges: Vec<(u64, Option<Instant>)>,
    next_number: u64,
    /// When the socket stopped accepting bytes; `None` while it accepts them.
    write_blocked_since: Option<Instant>,
}

impl Activity {
    /// The activity of a connection that was accepted just now.
    pub(super) fn new(deadlines: Deadlines) -> Arc<Self> {
        let state = State {
            idle_since: Instant::now(),
            has_had_request: false,
            exchanges: Vec::new(),
            next_number: 0,
            write_blocked_since: None,
        };
        Arc::new(Self { deadlines, state: Mutex::new(state) })
    }

    /// Returns the deadline that the client missed, or else when to check again. Every wait that starts after this call ends at
    /// the returned time or later, so no deadline is missed in between.
    pub(super) fn check(&self, now: Instant) -> Result<Instant, MissedDeadline> {
        let (state, deadlines) = (self.lock(), &self.deadlines);
        let unread = state.exchanges.iter().filter_map(|(_, since)| *since).chain(state.write_blocked_since);
        let (deadline, missed) = match unread.min() {
            _ if !state.has_had_request => (state.idle_since + deadlines.head, MissedDeadline::Head),
            Some(since) => (since + deadlines.write, MissedDeadline::Write),
            None if state.exchanges.is_empty() => (state.idle_since + deadlines.idle, MissedDeadline::Idle),
            None => return Ok(now + deadlines.idle.min(deadlines.write)),
        };
        if deadline <= now {
            return Err(missed);
        }
        Ok(deadline.min(now + deadlines.idle.min(deadlines.write)))
    }

    /// Starts a request whose head has arrived.
    pub(super) fn begin(self: &Arc<Self>) -> Exchange {
        let mut state = self.lock();
        let number = state.next_number;
        state.next_number += 1;
        state.has_had_request = true;
        state.exchanges.push((number, None));
        Exchange { activity: self.clone(), number }
    }

    /// Notes whether the socket accepts more bytes.
    pub(super) fn set_write_blocked(&self, is_blocked: bool) {
        let (mut state, now) = (self.lock(), Instant::now());
        if is_blocked {
            state.write_blocked_since.get_or_insert(now);
        } else if state.write_blocked_since.take().is_some() && state.has_had_request {
            // The end of a response was being written until now.
            state.idle_since = now;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request and its response, until the body of the response has ended.
pub(super) struct Exchange {
    activity: Arc<Activity>,
    number: u64,
}

impl Exchange {
    /// The client must read before more of the response is produced.
    pub(super) fn waits_for_client(&self) {
        self.set(Some(Instant::now()));
    }

    /// The client is ready; the service must produce more of the response.
    pub(super) fn waits_for_service(&self) {
        self.set(None);
    }

    fn set(&self, since: Option<Instant>) {
        let mut state = self.activity.lock();
        if let Some(entry) = state.exchanges.iter_mut().find(|(number, _)| *number == self.number) {
            entry.1 = since;
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mut state = self.activity.lock();
        state.exchanges.retain(|(number, _)| *number != self.number);
        state.idle_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const DEADLINES: Deadlines = Deadlines {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        write: Duration::from_secs(30),
    };

    async fn after(seconds: u64) -> Instant {
        advance(Duration::from_secs(seconds)).await;
        Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn each_wait_for_the_client_has_its_deadline() {
        let activity = Activity::new(DEADLINES);
        assert!(activity.check(after(9).await).is_ok());
        assert_eq!(activity.check(after(1).await), Err(MissedDeadline::Head));

        let exchange = activity.begin();
        assert!(activity.check(after(3_600).await).is_ok(), "a handler has no deadline here");
        exchange.waits_for_client();
        assert!(activity.check(after(29).await).is_ok());
        exchange.waits_for_service();
        assert!(activity.check(after(29).await).is_ok(), "the client has read the response");
        exchange.waits_for_client();
        let other = activity.begin();
        assert_eq!(
            activity.check(after(30).await),
            Err(MissedDeadline::Write),
            "one of several responses is not read"
        );

        drop(exchange);
        assert!(activity.check(after(61).await).is_ok(), "another request is running");
        drop(other);
        assert!(activity.check(after(59).await).is_ok());
        assert_eq!(activity.check(after(1).await), Err(MissedDeadline::Idle));

        activity.set_write_blocked(true);
        activity.set_write_blocked(true);
        assert_eq!(activity.check(after(30).await), Err(MissedDeadline::Write));
        activity.set_write_blocked(false);
        assert!(
            activity.check(after(59).await).is_ok(),
            "the idle time starts when the last byte was written"
        );
    }
}
