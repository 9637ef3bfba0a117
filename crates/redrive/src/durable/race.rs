//! Waits and steps that run side by side, for example in `tokio::select!`: which one completes is the same at every replay.
//!
//! A handler starts from its beginning each time. If two of its waits could both complete, `select!` might choose another one
//! than the last time. So they complete one at a time, and what has completed is remembered before the next one may. At a
//! replay, those whose completion is remembered complete first.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The waits and steps of one attempt that have not completed.
#[derive(Default)]
pub(crate) struct Races {
    open: Mutex<OpenCounts>,
    /// Told when a decided one has ended.
    decided_ended: Notify,
    /// Held by the one that may complete.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct OpenCounts {
    /// Created and not ended.
    all: usize,
    /// Started, not ended, and remembered as completed.
    decided: usize,
}

/// A wait or a step that the handler has created, until it completes or is dropped.
pub(crate) struct Contender<'a> {
    races: &'a Races,
    is_decided: bool,
}

/// The right to complete. Keep it until the future returns: the next one may complete only then.
pub(crate) struct Turn<'a>(Option<tokio::sync::MutexGuard<'a, ()>>);

impl Races {
    /// Adds a wait or a step that the handler has just created.
    pub(crate) fn enter(&self) -> Contender<'_> {
        self.lock().all += 1;
        Contender { races: self, is_decided: false }
    }

    /// Returns when nothing is open any more whose completion is remembered.
    async fn after_decided(&self) {
        loop {
            let mut ended = std::pin::pin!(self.decided_ended.notified());
            // Enlisted before the look, so that an end between the two is not missed.
            ended.as_mut().enable();
            if self.lock().decided == 0 {
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
    /// Marks it as one whose completion is remembered. Others do not complete before it.
    pub(crate) fn decide(&mut self) {
        if !self.is_decided {
            self.is_decided = true;
            self.races.lock().decided += 1;
        }
    }

    /// Takes [`Contender::decide`] back, because it cannot complete yet after all.
    pub(crate) fn undecide(&mut self) {
        if self.is_decided {
            self.is_decided = false;
            self.races.lock().decided -= 1;
            self.races.decided_ended.notify_waiters();
        }
    }

    /// Whether others could complete instead of it, so that its completion must be remembered.
    pub(crate) fn has_rivals(&self) -> bool {
        self.races.lock().all > 1
    }

    /// Waits until it may complete.
    pub(crate) async fn turn(&self) -> Turn<'a> {
        if self.is_decided || !self.has_rivals() {
            return Turn(None);
        }
        // The others of the same `select!` are started meanwhile, so that the decided ones among them are known.
        tokio::task::yield_now().await;
        self.races.after_decided().await;
        Turn(Some(self.races.turn.lock().await))
    }
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        self.undecide();
        self.races.lock().all -= 1;
    }
}

impl Turn<'_> {
    /// Lets others complete, because this one has to wait.
    pub(crate) fn pass_on(self) {
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
    async fn one_alone_waits_for_nobody() {
        let races = Races::default();
        let only = races.enter();
        assert!(!only.has_rivals());
        assert!(only.turn().await.0.is_none());
    }

    #[tokio::test]
    async fn only_one_at_a_time_may_complete() {
        let races = Races::default();
        let (first, second) = (races.enter(), races.enter());
        let turn = first.turn().await;
        let mut waiting = std::pin::pin!(second.turn());
        assert!(is_pending(waiting.as_mut()).await);
        assert!(is_pending(waiting.as_mut()).await);
        turn.pass_on();
        assert!(waiting.await.0.is_some());
    }

    #[tokio::test]
    async fn what_is_remembered_completes_first() {
        let races = Races::default();
        let (mut decided, open) = (races.enter(), races.enter());
        decided.decide();
        let mut waiting = std::pin::pin!(open.turn());
        for _ in 0..3 {
            assert!(is_pending(waiting.as_mut()).await);
        }
        drop(decided);
        waiting.await;
    }
}
