//! Decides which of several concurrent waits and steps completes first, for example in `tokio::select!`, and repeats the decision
//! at every replay.
//!
//! Every attempt runs the handler from its beginning. If two of its waits can both complete, `select!` might choose a different
//! one than in the last attempt. Therefore they complete one at a time, and each completion is recorded before the next one may
//! follow. At a replay, the recorded ones complete first.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The waits and steps of one attempt that have not completed.
#[derive(Default)]
pub(crate) struct Races {
    open: Mutex<OpenCounts>,
    /// Notified when a contender with a recorded completion has ended.
    recorded_ended: Notify,
    /// Locked by the contender that may complete.
    permit: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct OpenCounts {
    /// Created and not ended.
    all: usize,
    /// Started and not ended, with a completion that an earlier attempt recorded.
    recorded: usize,
}

/// A wait or a step that the handler has created, until it completes or is dropped.
pub(crate) struct Contender<'a> {
    races: &'a Races,
    is_recorded: bool,
}

/// The right to complete. Keep it until the future returns: once it is dropped, the next contender may complete.
pub(crate) struct CompletionPermit<'a>(Option<tokio::sync::MutexGuard<'a, ()>>);

impl Races {
    /// Adds a wait or a step that the handler has just created.
    pub(crate) fn enter(&self) -> Contender<'_> {
        self.lock().all += 1;
        Contender { races: self, is_recorded: false }
    }

    /// Returns when every contender with a recorded completion has ended.
    async fn after_recorded(&self) {
        loop {
            let mut ended = std::pin::pin!(self.recorded_ended.notified());
            // Registers before it reads the count, so that it misses no end between the two.
            ended.as_mut().enable();
            if self.lock().recorded == 0 {
                return;
            }
            ended.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, OpenCounts> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Contender<'a> {
    /// Notes that an earlier attempt recorded the completion of this contender. Other contenders do not complete before it.
    pub(crate) fn mark_recorded(&mut self) {
        if !self.is_recorded {
            self.is_recorded = true;
            self.races.lock().recorded += 1;
        }
    }

    /// Undoes [`Contender::mark_recorded`], because the contender cannot complete yet after all.
    pub(crate) fn unmark_recorded(&mut self) {
        if self.is_recorded {
            self.is_recorded = false;
            self.races.lock().recorded -= 1;
            self.races.recorded_ended.notify_waiters();
        }
    }

    /// Whether other contenders could complete instead of this one, so that its completion must be recorded.
    pub(crate) fn has_rivals(&self) -> bool {
        self.races.lock().all > 1
    }

    /// Waits until this contender may complete.
    pub(crate) async fn permit(&self) -> CompletionPermit<'a> {
        if self.is_recorded || !self.has_rivals() {
            return CompletionPermit(None);
        }
        // Lets the other futures of the same `select!` start, so that those with a recorded completion are known.
        tokio::task::yield_now().await;
        self.races.after_recorded().await;
        CompletionPermit(Some(self.races.permit.lock().await))
    }
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        self.unmark_recorded();
        self.races.lock().all -= 1;
    }
}

impl CompletionPermit<'_> {
    /// Lets others complete, because this contender has to wait.
    pub(crate) fn release(self) {
        drop(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::task::Poll;

    use super::*;

    /// Polls a future once.
    async fn is_pending(mut future: Pin<&mut impl Future>) -> bool {
        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
    }

    #[tokio::test]
    async fn a_single_contender_waits_for_nobody() {
        let races = Races::default();
        let only = races.enter();
        assert!(!only.has_rivals());
        assert!(only.permit().await.0.is_none());
    }

    #[tokio::test]
    async fn contenders_complete_one_at_a_time() {
        let races = Races::default();
        let (first, second) = (races.enter(), races.enter());
        let permit = first.permit().await;
        let mut waiting = std::pin::pin!(second.permit());
        assert!(is_pending(waiting.as_mut()).await);
        assert!(is_pending(waiting.as_mut()).await);
        permit.release();
        assert!(waiting.await.0.is_some());
    }

    #[tokio::test]
    async fn a_recorded_completion_comes_first() {
        let races = Races::default();
        let (mut recorded, open) = (races.enter(), races.enter());
        recorded.mark_recorded();
        let mut waiting = std::pin::pin!(open.permit());
        for _ in 0..3 {
            assert!(is_pending(waiting.as_mut()).await);
        }
        drop(recorded);
        waiting.await;
    }
}
