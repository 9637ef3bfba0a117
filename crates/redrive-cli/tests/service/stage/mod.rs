//! What every test stands on: the service as a process, a client for it, and targets on real sockets.

mod client;
mod process;
mod target;

use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};

pub(crate) use client::Client;
pub(crate) use process::{Launch, Running, Service, redrive};
pub(crate) use target::{Call, Reply, Target};

/// More than anything here needs on a busy machine, and less than a person waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Looks again and again until there is something to see; a fixed sleep would be too short or too long.
pub(crate) async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    within(PATIENCE, what, look).await
}

/// Like [`eventually`], with another patience.
pub(crate) async fn within<T>(patience: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(began.elapsed() < patience, "{what}: not within {patience:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Keeps tests that load the whole machine from disturbing each other's measurements.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    static HEAVY: Mutex<()> = Mutex::const_new(());
    HEAVY.lock().await
}
