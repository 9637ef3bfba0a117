//! A worker that stops for longer than its lease, including its heartbeats, cannot settle its job afterwards.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive_core::{JobId, Kind, Lease, NewJob, Outcome, State, Store, WorkerId, catalog, lease_count};
use redrive_testkit::checks::{FinalState, check_all};
use redrive_testkit::history::HistoryEvent;
use redrive_testkit::{History, RecordingStore};
use redrive_worker::{Context, HeartbeatSource, Settings, Worker};
use tokio_util::sync::CancellationToken;

use super::child;
use crate::workload::{self, LEASE};

/// How long a worker may take for one step on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn paused_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, history) = child::open(folder.path());
    let id = runtime().block_on(enqueue_one(&store));
    let (stop, shut_out) = (CancellationToken::new(), CancellationToken::new());
    let (frozen_started, wait_for_frozen) = channel();
    let (other_started, wait_for_other) = channel();
    let frozen = std::thread::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        let handler = freeze_until(frozen_started, wait_for_other);
        move || runtime().block_on(work(store, "frozen", LEASE, handler, stop))
    });
    let other = std::thread::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        let handler = run_until(other_started, shut_out.clone());
        move || {
            // The frozen worker must claim the job first.
            wait_for_frozen.recv_timeout(TIMEOUT).expect("the frozen worker claims the job");
            // Its own lease must not expire on a busy machine.
            runtime().block_on(work(store, "other", TIMEOUT, handler, stop));
        }
    });
    let is_first = |lease: &Lease| lease.id == id && lease_count(lease.epoch) == 1;
    let was_shut_out =
        wait_for(&history, |event| matches!(event, HistoryEvent::LeaseLost(lease) if is_first(lease)));
    shut_out.cancel();
    wait_for(&history, |event| matches!(event, HistoryEvent::Settled(settled) if settled.led_to.is_final()));
    stop.cancel();
    frozen.join().expect("the frozen worker shuts down cleanly");
    other.join().expect("the other worker shuts down cleanly");
    assert!(
        was_shut_out,
        "STALE-SHUT-OUT: the paused worker was not shut out\n{:?}",
        history.describe_job(id)
    );
    runtime().block_on(check(&store, &history, id));
}

/// A runtime with one thread: a handler that blocks the thread stops the whole worker, like a stopped process.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn enqueue_one(store: &RecordingStore) -> JobId {
    let policy = catalog::put_inline(store, &workload::policy(), redrive_core::Timestamp::default())
        .await
        .expect("stored");
    let id = JobId(uuid::Uuid::now_v7());
    let job = NewJob::new(id, Kind::new("stale").expect("legal"), policy, vec![]);
    store.enqueue(vec![job]).await.expect("enqueued");
    id
}

async fn work<F, Fut>(store: RecordingStore, name: &str, lease: Duration, handler: F, stop: CancellationToken)
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send,
{
    let settings = Settings::default()
        .with_worker(WorkerId::new(name).expect("legal"))
        .with_heartbeat_source(HeartbeatSource::Inline)
        .with_lease(lease)
        .with_reclaim_every(Duration::from_millis(20));
    let worker = Worker::new(Arc::new(store), settings).expect("legal settings");
    let worker = worker.on(Kind::new("stale").expect("legal"), handler);
    worker.run_until(stop.cancelled()).await.expect("the worker runs");
}

/// Blocks its thread until the other worker runs the job.
fn freeze_until(
    started: Sender<()>,
    other_started: Receiver<()>,
) -> impl Fn(Context) -> std::future::Ready<Outcome> + Send + Sync {
    let other_started = Mutex::new(other_started);
    move |_| {
        let _ = started.send(());
        let _ = other_started.lock().expect("no panic").recv_timeout(TIMEOUT);
        std::future::ready(done_by("frozen"))
    }
}

/// Runs until the frozen worker has tried to settle the job.
fn run_until(
    started: Sender<()>,
    shut_out: CancellationToken,
) -> impl Fn(Context) -> std::pin::Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync {
    move |_| {
        let _ = started.send(());
        let shut_out = shut_out.clone();
        Box::pin(async move {
            shut_out.cancelled().await;
            done_by("other")
        })
    }
}

fn done_by(name: &str) -> Outcome {
    Outcome::Done(Some(name.as_bytes().to_vec()))
}

fn wait_for(history: &History, wanted: impl Fn(&HistoryEvent) -> bool) -> bool {
    let end = Instant::now() + TIMEOUT;
    while Instant::now() < end {
        if history.all().iter().any(|(_, event)| wanted(event)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

async fn check(store: &RecordingStore, history: &History, id: JobId) {
    let end = FinalState::read(store, history).await.expect("the store can be read");
    check_all(history, &end, Duration::ZERO)
        .unwrap_or_else(|violation| panic!("{violation}\n{:?}", history.describe_job(id)));
    let job = &end.jobs[&id];
    assert_eq!((job.state, job.output.as_deref()), (State::Succeeded, Some(&b"other"[..])), "{job:?}");
}
