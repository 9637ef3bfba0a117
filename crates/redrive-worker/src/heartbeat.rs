//! Renews each lease when it is due, many in one call, and passes on what the store has to say about them.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redrive_core::Lease;
use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{Extended, Store, Wake};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::engine::{Causes, Engine};
use crate::hold::Abort;
use crate::settings::Pulse;

/// How long after a renewal that failed the leases are tried again: a store that comes back finds most of them in force.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The shortest time between two rounds of renewals that requests for the end of jobs cause: many requests share one.
const CANCEL_ROUNDS_APART: Duration = Duration::from_millis(50);

/// A heartbeat that goes on until this is dropped or stopped.
pub(crate) struct Heartbeat {
    stop: CancellationToken,
    end: End,
}

enum End {
    Task(JoinSet<()>),
    Thread(oneshot::Receiver<()>),
}

impl Heartbeat {
    /// Starts it where the settings say.
    pub(crate) fn start(engine: &Arc<Engine>) -> std::io::Result<Self> {
        let stop = CancellationToken::new();
        let beats = run_until(engine.clone(), stop.clone());
        let end = match engine.settings.pulse {
            Pulse::Inline => {
                let mut task = JoinSet::new();
                task.spawn(beats);
                End::Task(task)
            }
            Pulse::OwnThread => End::Thread(start_thread(beats)?),
        };
        Ok(Self { stop, end })
    }

    /// Returns when it has ended, which without a stop it only does by a panic.
    pub(crate) async fn ended(&mut self) {
        match &mut self.end {
            End::Task(task) => drop(task.join_next().await),
            End::Thread(thread) => drop(thread.await),
        }
    }

    /// Ends it and waits for that.
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

/// A thread with a runtime of its own: no handler can keep it from its turn. Its end shows as a dropped sender.
fn start_thread(beats: impl Future<Output = ()> + Send + 'static) -> std::io::Result<oneshot::Receiver<()>> {
    let (running, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("redrive-heartbeat".to_owned()).spawn(move || {
        let _running = running;
        runtime.block_on(beats);
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
    let mut cancels = Wake::default();
    let mut next_round = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = sleep_until(engine.held.next_look()) => renew_all(engine, engine.held.due()).await,
            () = engine.held.hurried() => {}
            requests = cancel_requested(engine, cancels, next_round) => {
                cancels = requests;
                renew_all(engine, engine.held.running()).await;
                next_round = Instant::now() + CANCEL_ROUNDS_APART;
            }
        }
    }
}

/// Returns when someone has requested the end of a running job, perhaps of one that this worker runs. Renewing the leases
/// tells which.
async fn cancel_requested(engine: &Engine, seen: Wake, not_before: Instant) -> Wake {
    sleep_until(not_before).await;
    engine.store.wait_for_cancel(seen).await
}

async fn renew_all(engine: &Engine, leases: BTreeMap<Duration, Vec<Lease>>) {
    for (length, leases) in leases {
        for leases in leases.chunks(BATCH_ITEMS_MAX) {
            renew(engine, leases, length).await;
        }
    }
}

async fn renew(engine: &Engine, leases: &[Lease], length: Duration) {
    let sent = Instant::now();
    match engine.store.extend(leases.to_vec(), length).await {
        Ok(answers) => {
            tracing::debug!(count = leases.len(), "extend");
            engine.held.renewed(leases, length, sent);
            leases.iter().zip(answers).for_each(|(lease, answer)| heed(engine, *lease, answer));
        }
        Err(error) => {
            engine.held.not_renewed(leases, length, TRY_AGAIN);
            tracing::error!(error = %Causes(&error), "extend failed");
        }
    }
}

/// An attempt that has ended meanwhile is left alone: it may just have been settled, which ends the lease too.
fn heed(engine: &Engine, lease: Lease, answer: Extended) {
    match answer {
        Extended::Renewed => {}
        Extended::CancelRequested => {
            engine.held.abort(lease, Abort::CancelRequested);
        }
        Extended::LeaseLost => {
            engine.held.abort(lease, Abort::LeaseLost);
        }
    }
}
