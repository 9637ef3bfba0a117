//! Retries a call within the process, with the same policies and without a store.

use std::cell::Cell;
use std::time::Duration;

use redrive::{Backoff, Jitter, Policy, retry};

#[derive(Debug)]
enum FetchError {
    Busy,
    Gone,
}

impl FetchError {
    fn is_transient(&self) -> bool {
        matches!(self, Self::Busy)
    }
}

async fn fetch(path: &str, calls: &Cell<u32>) -> Result<String, FetchError> {
    calls.set(calls.get() + 1);
    match (path, calls.get()) {
        ("/gone", _) => Err(FetchError::Gone),
        (_, 1 | 2) => Err(FetchError::Busy),
        (path, calls) => Ok(format!("{path} after {calls} calls")),
    }
}

async fn page(path: &str) -> Result<String, FetchError> {
    let calls = Cell::new(0);
    let policy = Policy::default()
        .with_backoff(Backoff::fixed(Duration::from_millis(10)).expect("a legal wait"))
        .with_jitter(Jitter::Full);
    retry(&policy, || fetch(path, &calls))
        .when(|error| error.is_transient())
        .notify(|error, wait| println!("{error:?}: again within {} ms", wait.as_millis().max(10)))
        .await
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    println!("{:?}", page("/news").await);
    println!("{:?}", page("/gone").await);
}
