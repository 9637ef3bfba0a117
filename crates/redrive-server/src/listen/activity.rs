//! What one connection does: which requests are in flight, and since when it waits for its client.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a connection may wait for its client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadlines {
    /// From accept to the end of the first request head.
    pub(super) head: Duration,
    /// From the end of a response to the end of the next request head.
    pub(super) idle: Duration,
    /// For a response to be read on.
    pub(super) write: Duration,
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overdue {
    /// The first request head did not come.
    Head,
    /// The next request head did not come.
    Idle,
    /// The client does not read a response.
    Write,
}

/// The activity of one connection.
pub(super) struct Activity {
    deadlines: Deadlines,
    state: Mutex<State>,
}

struct State {
    /// When the last response ended, or the connection was accepted.
    quiet_since: Instant,
    has_had_request: bool,
    /// The requests in flight, each with the time since which its response waits for the client.
    exchanges: Vec<(u64, Option<Instant>)>,
    next_number: u64,
    /// Since when the socket takes no more bytes.
    write_blocked_since: Option<Instant>,
}

impl Activity {
    /// The activity of a connection that was accepted just now.
    pub(super) fn new(deadlines: Deadlines) -> Arc<Self> {
        let state = State {
            quiet_since: Instant::now(),
            has_had_request: false,
            exchanges: Vec::new(),
            next_number: 0,
            write_blocked_since: None,
        };
        Arc::new(Self { deadlines, state: Mutex::new(state) })
    }

    /// When to look again, or why the connection is over.
    ///
    /// A time that is returned is never too late: whatever begins after this call is given at least as long.
    pub(super) fn check(&self, now: Instant) -> Result<Instant, Overdue> {
        let (state, deadlines) = (self.lock(), &self.deadlines);
        let unread = state.exchanges.iter().filter_map(|(_, since)| *since).chain(state.write_blocked_since);
        let (deadline, overdue) = match unread.min() {
            _ if !state.has_had_request => (state.quiet_since + deadlines.head, Overdue::Head),
            Some(since) => (since + deadlines.write, Overdue::Write),
            None if state.exchanges.is_empty() => (state.quiet_since + deadlines.idle, Overdue::Idle),
            None => return Ok(now + deadlines.idle.min(deadlines.write)),
        };
        if deadline <= now {
            return Err(overdue);
        }
        Ok(deadline.min(now + deadlines.idle.min(deadlines.write)))
    }

    /// A request whose head has come.
    pub(super) fn begin(self: &Arc<Self>) -> Exchange {
        let mut state = self.lock();
        let number = state.next_number;
        state.next_number += 1;
        state.has_had_request = true;
        state.exchanges.push((number, None));
        Exchange { activity: self.clone(), number }
    }

    /// The socket takes no more bytes, or takes them again.
    pub(super) fn write_blocked(&self, is_blocked: bool) {
        let (mut state, now) = (self.lock(), Instant::now());
        if is_blocked {
            state.write_blocked_since.get_or_insert(now);
        } else if state.write_blocked_since.take().is_some() && state.has_had_request {
            // The rest of a response was on its way until now.
            state.quiet_since = now;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight, until the body of its response has ended.
pub(super) struct Exchange {
    activity: Arc<Activity>,
    number: u64,
}

impl Exchange {
    /// The client has to take what was written before more is asked for.
    pub(super) fn waits_for_client(&self) {
        self.set(Some(Instant::now()));
    }

    /// The response has to be produced; the client is ready.
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
        state.quiet_since = Instant::now();
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
        assert_eq!(activity.check(after(1).await), Err(Overdue::Head));

        let exchange = activity.begin();
        assert!(activity.check(after(3_600).await).is_ok(), "a handler may take its time");
        exchange.waits_for_client();
        assert!(activity.check(after(29).await).is_ok());
        exchange.waits_for_service();
        assert!(activity.check(after(29).await).is_ok(), "it was read");
        exchange.waits_for_client();
        let other = activity.begin();
        assert_eq!(activity.check(after(30).await), Err(Overdue::Write), "one of several is not read");

        drop(exchange);
        assert!(activity.check(after(61).await).is_ok(), "another request is in flight");
        drop(other);
        assert!(activity.check(after(59).await).is_ok());
        assert_eq!(activity.check(after(1).await), Err(Overdue::Idle));

        activity.write_blocked(true);
        activity.write_blocked(true);
        assert_eq!(activity.check(after(30).await), Err(Overdue::Write));
        activity.write_blocked(false);
        assert!(activity.check(after(59).await).is_ok(), "what was written late does not count as idle");
    }
}
