//! A worker that stops for longer than its lease, including its heartbeats, cannot settle its job afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redrive_core::{JobId, Kind, Lease, NewJob, Outcome, State, Store, WorkerId, catalog};
use redrive_testkit::checks::{FinalState, check_all};
use redrive_testkit::history::HistoryEvent;
use redrive_testkit::{History, RecordingStore};
use redrive_worker::{Context, HeartbeatSource, Settings, Worker};
use tokio_util::sync::CancellationToken;

use super::child;
use crate::workload::{self, LEASE};

pub(crate) fn paused_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, history) = child::open(folder.path());
    let id = runtime().block_on(enqueue_one(&store));
    let stop = CancellationToken::new();
    let frozen = std::thread::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        move || runtime().block_on(work(store, "frozen", freeze_once(), stop))
    });
    let other = std::thread::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        move || {
            // The frozen worker must claim the job first.
            std::thread::sleep(LEASE / 2);
            runtime().block_on(work(store, "other", |_: Context| take_time(), stop));
        }
    });
    let first = Lease { id, epoch: 1 };
    let shut_out = wait_for(&history, |event| *event == HistoryEvent::LeaseLost(first));
    wait_for(&history, |event| matches!(event, HistoryEvent::Settled(settled) if settled.led_to.is_final()));
    stop.cancel();
    frozen.join().expect("the frozen worker shuts down cleanly");
    other.join().expect("the other worker shuts down cleanly");
    assert!(shut_out, "STALE-SHUT-OUT: the paused worker was not shut out\n{:?}", history.describe_job(id));
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

async fn work<F, Fut>(store: RecordingStore, name: &str, handler: F, stop: CancellationToken)
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send,
{
    let settings = Settings::default()
        .with_worker(WorkerId::new(name).expect("legal"))
        .with_heartbeat_source(HeartbeatSource::Inline)
        .with_lease(LEASE)
        .with_reclaim_every(Duration::from_millis(20));
    let worker = Worker::new(Arc::new(store), settings).expect("legal settings");
    let worker = worker.on(Kind::new("stale").expect("legal"), handler);
    worker.run_until(stop.cancelled()).await.expect("the worker runs");
}

/// Blocks its thread for three leases the first time it is called.
fn freeze_once() -> impl Fn(Context) -> std::future::Ready<Outcome> + Send + Sync {
    let first = AtomicBool::new(true);
    move |_| {
        if first.swap(false, Ordering::Relaxed) {
            std::thread::sleep(LEASE * 3);
        }
        std::future::ready(done_by("frozen"))
    }
}

/// Runs long enough that the frozen worker continues while this one holds the lease.
async fn take_time() -> Outcome {
    tokio::time::sleep(LEASE * 5).await;
    done_by("other")
}

fn done_by(name: &str) -> Outcome {
    Outcome::Done(Some(name.as_bytes().to_vec()))
}

fn wait_for(history: &History, wanted: impl Fn(&HistoryEvent) -> bool) -> bool {
    (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        history.all().iter().any(|(_, event)| wanted(event))
    })
}

async fn check(store: &RecordingStore, history: &History, id: JobId) {
    let end = FinalState::read(store, history).await.expect("the store can be read");
    check_all(history, &end, Duration::ZERO)
        .unwrap_or_else(|violation| panic!("{violation}\n{:?}", history.describe_job(id)));
    let job = &end.jobs[&id];
    assert_eq!((job.state, job.output.as_deref()), (State::Succeeded, Some(&b"other"[..])), "{job:?}");
}
