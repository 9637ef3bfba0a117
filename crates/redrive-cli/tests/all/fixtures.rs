//! Fixtures of the tests: the service as a process, an HTTP client for it, and targets on real sockets.

mod client;
mod process;
mod target;

use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};

pub(crate) use client::Client;
pub(crate) use process::{ChildProcess, Launch, Service, redrive};
pub(crate) use target::{Call, Reply, Target};

/// The longest wait for a condition. No test needs as long, even on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Calls `check` until it returns a value, and returns that value. Panics after [`TIMEOUT`].
pub(crate) async fn eventually<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> T {
    within(TIMEOUT, what, check).await
}

/// Like [`eventually`], with another timeout.
pub(crate) async fn within<T>(timeout: Duration, what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(started.elapsed() < timeout, "not within {timeout:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Locks out the other tests that load the whole machine, so that they do not disturb each other's measurements.
pub(crate) async fn lock_machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::const_new(());
    MACHINE.lock().await
}
