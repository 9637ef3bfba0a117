//! A worker that is paused for longer than its lease, heartbeats and all, wakes up and finds itself shut out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redrive_core::{JobId, Kind, Lease, NewJob, Outcome, State, Store, WorkerId, catalog};
use redrive_testkit::checks::{End, check_all};
use redrive_testkit::history::Happening;
use redrive_testkit::{History, Recorded};
use redrive_worker::{Context, Pulse, Settings, Worker};
use tokio_util::sync::CancellationToken;

use crate::child;
use crate::victim::work::{self, LEASE};

pub(crate) fn paused_worker() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, history) = child::open(folder.path());
    let id = runtime().block_on(enqueue_one(&store));
    let stop = CancellationToken::new();
    let frozen = std::thread::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        move || runtime().block_on(work(store, "frozen", freeze_once(), stop))
    });
    let awake = std::thread::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        move || {
            // The other one is to have the job first.
            std::thread::sleep(LEASE / 2);
            runtime().block_on(work(store, "awake", |_: Context| take_time(), stop));
        }
    });
    let first = Lease { id, epoch: 1 };
    let shut_out = wait_for(&history, |happening| *happening == Happening::ShutOut(first));
    wait_for(
        &history,
        |happening| matches!(happening, Happening::Settled(settled) if settled.led_to.is_final()),
    );
    stop.cancel();
    frozen.join().expect("the frozen worker ends in good order");
    awake.join().expect("the other worker ends in good order");
    assert!(
        shut_out,
        "STALE-SHUT-OUT: the worker that was paused was not shut out\n{:?}",
        history.of_job(id)
    );
    runtime().block_on(check(&store, &history, id));
}

/// One thread for everything: a handler that blocks it pauses the worker whole, as a stopped process would be.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn enqueue_one(store: &Recorded) -> JobId {
    let policy = catalog::put_inline(store, &work::policy()).await.expect("stored");
    let id = JobId(uuid::Uuid::now_v7());
    let job = NewJob::new(id, Kind::new("stale").expect("legal"), policy, vec![]);
    store.enqueue(vec![job]).await.expect("enqueued");
    id
}

async fn work<F, Fut>(store: Recorded, name: &str, handler: F, stop: CancellationToken)
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send,
{
    let settings = Settings::default()
        .with_worker(WorkerId::new(name).expect("legal"))
        .with_pulse(Pulse::Inline)
        .with_lease(LEASE)
        .with_reclaim_every(Duration::from_millis(20));
    let worker = Worker::new(Arc::new(store), settings).expect("legal settings");
    let worker = worker.on(Kind::new("stale").expect("legal"), handler);
    worker.run_until(stop.cancelled()).await.expect("it works");
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

/// Holds the job for long enough that the other one wakes up and finds it running, under another lease.
async fn take_time() -> Outcome {
    tokio::time::sleep(LEASE * 5).await;
    done_by("awake")
}

fn done_by(name: &str) -> Outcome {
    Outcome::Done(Some(name.as_bytes().to_vec()))
}

fn wait_for(history: &History, wanted: impl Fn(&Happening) -> bool) -> bool {
    (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        history.all().iter().any(|(_, happening)| wanted(happening))
    })
}

async fn check(store: &Recorded, history: &History, id: JobId) {
    let end = End::of(store, history).await.expect("the store can be read");
    check_all(history, &end, Duration::ZERO)
        .unwrap_or_else(|violation| panic!("{violation}\n{:?}", history.of_job(id)));
    let job = &end.jobs[&id];
    assert_eq!((job.state, job.output.as_deref()), (State::Succeeded, Some(&b"awake"[..])), "{job:?}");
}
