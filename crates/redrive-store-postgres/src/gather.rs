//! Callers that ask for the same at the same time share a statement, and with it a commit.

use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::StoreError;
use redrive_core::limits::BATCH_ITEMS_MAX;
use tokio::sync::oneshot;

use crate::error::again;
use crate::open::Inner;

/// Statements of a sort that are under way at once; what arrives meanwhile waits for the next.
const STATEMENTS: usize = 2;
/// A call with as many items is a statement by itself.
const LARGE: usize = 100;

/// What callers ask for together.
pub(crate) trait Shared: Clone + Send + Sync + 'static {
    /// What comes of one.
    type Answer: Send;

    /// Where its callers meet.
    fn gather(inner: &Inner) -> &Gather<Self>;

    /// Does it for a batch; answers stand in the order of what was asked.
    fn run(
        inner: &Inner,
        items: &[Self],
    ) -> impl Future<Output = Result<Vec<Self::Answer>, StoreError>> + Send;
}

/// Calls that wait for a statement.
pub(crate) struct Gather<T: Shared> {
    state: Mutex<State<T>>,
}

struct State<T: Shared> {
    waiting: Vec<Call<T>>,
    running: usize,
}

struct Call<T: Shared> {
    items: Vec<T>,
    answer: oneshot::Sender<Result<Vec<T::Answer>, StoreError>>,
}

impl<T: Shared> Default for Gather<T> {
    fn default() -> Self {
        Self { state: Mutex::new(State { waiting: Vec::new(), running: 0 }) }
    }
}

/// Does it together with other callers, unless there is enough to do for a statement. The work goes on if the caller gives
/// up.
pub(crate) async fn together<T: Shared>(
    inner: &Arc<Inner>,
    items: Vec<T>,
) -> Result<Vec<T::Answer>, StoreError> {
    if items.len() >= LARGE {
        return T::run(inner, &items).await;
    }
    let (answer, answered) = oneshot::channel();
    let begins = T::gather(inner).add(Call { items, answer });
    if begins {
        let shared = inner.clone();
        inner.spawn(async move {
            while let Some(calls) = T::gather(&shared).next() {
                run(&shared, calls).await;
            }
        });
    }
    answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store was closed".into())))
}

impl<T: Shared> Gather<T> {
    /// Adds a call; says whether a statement has to be begun for it.
    fn add(&self, call: Call<T>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push(call);
        let begins = state.running < STATEMENTS;
        state.running += usize::from(begins);
        begins
    }

    /// The calls of the next statement; none when nothing waits any more.
    fn next(&self) -> Option<Vec<Call<T>>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut items = 0;
        let fits = state.waiting.iter().take_while(|call| {
            items += call.items.len();
            items <= BATCH_ITEMS_MAX
        });
        let count = fits.count();
        if count == 0 {
            state.running -= 1;
            return None;
        }
        Some(state.waiting.drain(..count).collect())
    }
}

async fn run<T: Shared>(inner: &Inner, calls: Vec<Call<T>>) {
    let items: Vec<T> = calls.iter().flat_map(|call| call.items.iter().cloned()).collect();
    match T::run(inner, &items).await {
        Ok(mut results) => {
            for call in calls {
                let rest = results.split_off(call.items.len());
                let _ = call.answer.send(Ok(std::mem::replace(&mut results, rest)));
            }
        }
        // One of them is not legal: each is tried by itself, so that it spoils no other.
        Err(StoreError::Invalid(_)) if calls.len() > 1 => {
            for call in calls {
                let _ = call.answer.send(T::run(inner, &call.items).await);
            }
        }
        Err(error) => {
            for call in calls {
                let _ = call.answer.send(Err(again(&error)));
            }
        }
    }
}
