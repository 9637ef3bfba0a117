//! Renews leases when they are due, many in one call, and aborts the attempts whose lease is lost or whose job was cancelled.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::Lease;
use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{ExtendResult, Store, WakeToken};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, ErrorChain};
use crate::lease_table::AbortReason;
use crate::settings::HeartbeatSource;

/// The wait before a failed renewal is repeated. It is short, so that most leases survive an outage of the store.
const RENEWAL_RETRY_WAIT: Duration = Duration::from_secs(1);

/// The shortest time between two renewals that cancels trigger. Cancels that arrive in between share one renewal.
const CANCEL_RENEWAL_INTERVAL: Duration = Duration::from_millis(50);

/// The running heartbeat. It ends when this value is dropped or stopped.
pub(crate) struct Heartbeat {
    stop: CancellationToken,
    runner: HeartbeatRunner,
}

enum HeartbeatRunner {
    Task(JoinSet<()>),
    /// The thread holds the sender: the channel closes when the thread ends.
    Thread(oneshot::Receiver<()>),
}

impl Heartbeat {
    /// Starts the heartbeat on a thread or in a task, as the settings say.
    pub(crate) fn start(engine: &Arc<Engine>) -> std::io::Result<Self> {
        let stop = CancellationToken::new();
        let renewals = run_until(engine.clone(), stop.clone());
        let runner = match engine.settings.heartbeat_source {
            HeartbeatSource::Inline => {
                let mut task = JoinSet::new();
                task.spawn(renewals);
                HeartbeatRunner::Task(task)
            }
            HeartbeatSource::OwnThread => HeartbeatRunner::Thread(start_thread(renewals)?),
        };
        Ok(Self { stop, runner })
    }

    /// Waits until the heartbeat has ended. Before a stop, it ends only by a panic.
    pub(crate) async fn ended(&mut self) {
        match &mut self.runner {
            HeartbeatRunner::Task(task) => drop(task.join_next().await),
            HeartbeatRunner::Thread(thread) => drop(thread.await),
        }
    }

    /// Stops the heartbeat and waits until it has ended.
    pub(crate) async fn stop(&mut self) {
        self.stop.cancel();
        self.ended().await;
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Runs the renewals on a thread with its own runtime, so that no handler can delay them.
fn start_thread(
    renewals: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<oneshot::Receiver<()>> {
    let (running, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("redrive-heartbeat".to_owned()).spawn(move || {
        let _running = running;
        runtime.block_on(renewals);
    })?;
    Ok(ended)
}

async fn run_until(engine: Arc<Engine>, stop: CancellationToken) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = run(&engine) => {}
    }
}

async fn run(engine: &Engine) {
    let mut seen_cancels = WakeToken::default();
    let mut next_cancel_renewal = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = sleep_until(engine.leases.next_renewal()) => renew_all(engine, engine.leases.due()).await,
            () = engine.leases.earlier_renewal() => {}
            seen = wait_for_cancel(engine, seen_cancels, next_cancel_renewal) => {
                seen_cancels = seen;
                renew_all(engine, engine.leases.running()).await;
                next_cancel_renewal = Instant::now() + CANCEL_RENEWAL_INTERVAL;
            }
        }
    }
}

/// Waits until someone has cancelled a running job, which may run on another worker. The renewal that follows reports which of
/// this worker's jobs were cancelled.
async fn wait_for_cancel(engine: &Engine, seen: WakeToken, not_before: Instant) -> WakeToken {
    sleep_until(not_before).await;
    engine.store.wait_for_cancel(seen).await
}

async fn renew_all(engine: &Engine, leases_by_duration: BTreeMap<Duration, Vec<Lease>>) {
    for (duration, leases) in leases_by_duration {
        for batch in leases.chunks(BATCH_ITEMS_MAX) {
            renew(engine, batch, duration).await;
        }
    }
}

async fn renew(engine: &Engine, leases: &[Lease], duration: Duration) {
    let sent = Instant::now();
    match engine.store.extend(leases.to_vec(), duration).await {
        Ok(results) => {
            tracing::debug!(count = leases.len(), "extend");
            engine.leases.mark_renewed(leases, duration, sent);
            leases.iter().zip(results).for_each(|(lease, result)| apply(engine, *lease, result));
        }
        Err(error) => {
            engine.leases.mark_not_renewed(leases, duration, RENEWAL_RETRY_WAIT);
            tracing::error!(error = %ErrorChain(&error), "extend failed");
        }
    }
}

/// Aborts the attempt if its lease was not renewed. An attempt that has ended in the meantime is not affected: its settlement
/// may have ended the lease.
fn apply(engine: &Engine, lease: Lease, result: ExtendResult) {
    match result {
        ExtendResult::Renewed => {}
        ExtendResult::CancelRequested => engine.leases.abort(lease, AbortReason::CancelRequested),
        ExtendResult::LeaseLost => engine.leases.abort(lease, AbortReason::LeaseLost),
    }
}
