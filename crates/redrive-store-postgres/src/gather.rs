//! Callers that enqueue at the same time share a statement, and with it a commit.

use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::Enqueued;
use redrive_core::{NewJob, StoreError};
use tokio::sync::oneshot;

use crate::enqueue;
use crate::error::again;
use crate::open::Inner;

/// Statements that are under way at once; what arrives meanwhile waits for the next.
const STATEMENTS: usize = 2;
/// A call with as many jobs is a statement by itself.
pub(crate) const LARGE: usize = 100;

/// Calls that wait for a statement.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Call>,
    running: usize,
}

#[derive(Debug)]
struct Call {
    jobs: Vec<NewJob>,
    answer: oneshot::Sender<Result<Vec<Enqueued>, StoreError>>,
}

impl Gather {
    /// Enqueues jobs together with those of other callers. The work goes on if the caller gives up.
    pub(crate) async fn enqueue(inner: &Arc<Inner>, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let begins = inner.gather.add(Call { jobs, answer });
        if begins {
            let shared = inner.clone();
            inner.spawn(async move {
                while let Some(calls) = shared.gather.next() {
                    run(&shared, calls).await;
                }
            });
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store was closed".into())))
    }

    /// Adds a call; says whether a statement has to be begun for it.
    fn add(&self, call: Call) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push(call);
        let begins = state.running < STATEMENTS;
        state.running += usize::from(begins);
        begins
    }

    /// The calls of the next statement; none when nothing waits any more.
    fn next(&self) -> Option<Vec<Call>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut jobs = 0;
        let fits = state.waiting.iter().take_while(|call| {
            jobs += call.jobs.len();
            jobs <= BATCH_ITEMS_MAX
        });
        let count = fits.count();
        if count == 0 {
            state.running -= 1;
            return None;
        }
        Some(state.waiting.drain(..count).collect())
    }
}

async fn run(inner: &Inner, calls: Vec<Call>) {
    let mut jobs: Vec<NewJob> = calls.iter().flat_map(|call| call.jobs.iter().cloned()).collect();
    let done = enqueue::enqueue(inner, &jobs).await;
    match done {
        Ok(mut results) => {
            for call in calls {
                let rest = results.split_off(call.jobs.len());
                let _ = call.answer.send(Ok(std::mem::replace(&mut results, rest)));
            }
        }
        // One of them is not legal: each is tried by itself, so that it spoils no other.
        Err(StoreError::Invalid(_)) if calls.len() > 1 => {
            for call in calls {
                jobs.clone_from(&call.jobs);
                let _ = call.answer.send(enqueue::enqueue(inner, &jobs).await);
            }
        }
        Err(error) => {
            for call in calls {
                let _ = call.answer.send(Err(again(&error)));
            }
        }
    }
}
