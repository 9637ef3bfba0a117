//! Merges concurrent calls into one statement, and so into one commit.

use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::StoreError;
use redrive_core::limits::BATCH_ITEMS_MAX;
use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::open::Inner;

/// Statements of one kind that may run at once. Calls that arrive meanwhile wait for the next one.
const STATEMENTS_MAX: usize = 2;
/// A call with this many items gets a statement of its own.
const LARGE_CALL_ITEMS: usize = 100;

/// An item of calls that can be merged.
pub(crate) trait Batchable: Clone + Send + Sync + 'static {
    /// The result for one item.
    type Output: Send;

    /// The batcher of this kind of items.
    fn batcher(inner: &Inner) -> &CallBatcher<Self>;

    /// Runs one statement for all items. The results are in the order of the items.
    fn run(inner: &Inner, items: &[Self]) -> impl Future<Output = Result<Vec<Self::Output>>> + Send;
}

/// Collects calls that wait for a statement.
pub(crate) struct CallBatcher<T: Batchable> {
    state: Mutex<BatcherState<T>>,
}

struct BatcherState<T: Batchable> {
    waiting: Vec<WaitingCall<T>>,
    running: usize,
}

struct WaitingCall<T: Batchable> {
    items: Vec<T>,
    reply: oneshot::Sender<Result<Vec<T::Output>>>,
}

impl<T: Batchable> Default for CallBatcher<T> {
    fn default() -> Self {
        Self { state: Mutex::new(BatcherState { waiting: Vec::new(), running: 0 }) }
    }
}

/// Runs a call together with concurrent ones, unless it is large enough for a statement of its own. The statement runs to its
/// end even if the caller is dropped.
pub(crate) async fn run_batched<T: Batchable>(inner: &Arc<Inner>, items: Vec<T>) -> Result<Vec<T::Output>> {
    if items.len() >= LARGE_CALL_ITEMS {
        return T::run(inner, &items).await;
    }
    let (reply, received) = oneshot::channel();
    let must_start = T::batcher(inner).add(WaitingCall { items, reply });
    if must_start {
        let shared = inner.clone();
        inner.spawn(async move {
            while let Some(calls) = T::batcher(&shared).next_batch() {
                run_batch(&shared, calls).await;
            }
        });
    }
    received.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store was closed".into()).into()))
}

impl<T: Batchable> CallBatcher<T> {
    /// Adds a call, and returns whether the caller must start a task that runs statements.
    fn add(&self, call: WaitingCall<T>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push(call);
        let must_start = state.running < STATEMENTS_MAX;
        state.running += usize::from(must_start);
        must_start
    }

    /// Takes the calls of the next statement. None if no call waits; the task then ends.
    fn next_batch(&self) -> Option<Vec<WaitingCall<T>>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut items = 0;
        let fitting = state.waiting.iter().take_while(|call| {
            items += call.items.len();
            items <= BATCH_ITEMS_MAX
        });
        let count = fitting.count();
        if count == 0 {
            state.running -= 1;
            return None;
        }
        Some(state.waiting.drain(..count).collect())
    }
}

async fn run_batch<T: Batchable>(inner: &Inner, calls: Vec<WaitingCall<T>>) {
    let items: Vec<T> = calls.iter().flat_map(|call| call.items.iter().cloned()).collect();
    match T::run(inner, &items).await {
        Ok(mut results) => {
            for call in calls {
                let rest = results.split_off(call.items.len());
                let _ = call.reply.send(Ok(std::mem::replace(&mut results, rest)));
            }
        }
        // One of the calls is invalid. Each runs by itself, so that the others succeed.
        Err(Error(StoreError::Invalid(_))) if calls.len() > 1 => {
            for call in calls {
                let _ = call.reply.send(T::run(inner, &call.items).await);
            }
        }
        Err(error) => {
            for call in calls {
                let _ = call.reply.send(Err(error.duplicate()));
            }
        }
    }
}
