//! A process that enqueues, signals, cancels and works until it is killed, or until nothing is left to do.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redrive::{
    AttemptLogging, CancelResult, Context, JobError, JobId, Limits, MissedRuns, Queue, QueueLimits, Redrive,
    Schedule, Settings, State, TaskWorker,
};
use redrive_core::store::{Filter, PageRequest};
use redrive_core::{Clock as _, WaitCondition};
use redrive_store_sqlite::SystemClock;
use redrive_testkit::{History, RecordingStore};

use super::journal::{JobEvent, Journal};
use super::tasks::{self, Child, Flow, Narrow, Only, Ordered, Parent, SIGNALS, Tick};
use crate::runner;

const MS: Duration = Duration::from_millis(1);
/// The lease. It is short, so that the jobs of a killed process are reclaimed during the test.
pub(crate) const LEASE: Duration = Duration::from_millis(300);
/// How long the last process may take to finish the remaining jobs.
const DRAIN: Duration = Duration::from_secs(60);
/// How many jobs of the queue with limits may run at once.
pub(crate) const RUNNING_MAX: u32 = 3;

pub(crate) fn main(arguments: &[String]) {
    let [mode, address, journal, seed] = arguments else { panic!("child MODE ADDRESS JOURNAL SEED") };
    let seed = seed.parse().expect("a number");
    runner::runtime().block_on(async {
        let (redrive, journal) =
            (open(address, journal.as_ref()).await.0, Journal::open(&events_path(journal.as_ref())));
        match mode.as_str() {
            "work" => work(redrive, journal, seed).await,
            "drain" => match tokio::time::timeout(DRAIN, drain(redrive, journal)).await {
                Ok(()) => {}
                Err(_) => std::process::exit(1),
            },
            other => panic!("no such mode: {other}"),
        }
    });
}

fn events_path(journal: &Path) -> std::path::PathBuf {
    journal.with_extension("events")
}

/// Opens the store, and records all its results in a journal.
pub(crate) async fn open(address: &str, journal: &Path) -> (Redrive, History) {
    let store = Redrive::open(address).await.expect("the store opens").backend().clone();
    let history = History::with_journal(journal, SystemClock).expect("the journal opens");
    (Redrive::on(Arc::new(RecordingStore::new(store, history.clone()))), history)
}

async fn work(redrive: Redrive, journal: Journal, seed: u64) {
    let narrow = Queue::new("narrow").expect("legal");
    let per_key = Limits { concurrency: Some(1), rate: None };
    let limits = QueueLimits { concurrency: Some(RUNNING_MAX), rate: None, per_key };
    redrive.set_limits(&narrow, limits).await.expect("the limits are set");
    let tick = redrive.schedule("tick", Schedule::every(100 * MS).expect("legal"), Tick {});
    tick.missed(MissedRuns::All).await.expect("scheduled");
    tokio::select! {
        () = worker(&redrive, &journal, std::future::pending()) => {}
        () = generate_load(&redrive, &journal, seed) => {}
        () = record_running_jobs(&redrive, &journal) => {}
    }
}

/// Works until all jobs have ended, and sends the signals that killed processes did not send.
async fn drain(redrive: Redrive, journal: Journal) {
    redrive.unschedule("tick").await.expect("unscheduled");
    let idle = async {
        let live = [State::Pending, State::Retrying, State::Running, State::Waiting];
        while { redrive.backend().stats().await.expect("stats") }
            .counts
            .keys()
            .any(|(_, state)| live.contains(state))
        {
            send_missing_signals(&redrive).await;
            tokio::time::sleep(10 * MS).await;
        }
    };
    worker(&redrive, &journal, idle).await;
}

/// Sends a signal to every flow that waits for one.
async fn send_missing_signals(redrive: &Redrive) {
    let filter = Filter { states: vec![State::Waiting], ..Filter::default() };
    for job in redrive.backend().list(filter, PageRequest::first(1_000)).await.expect("listed").items {
        if matches!(job.awaits, Some(WaitCondition::Signal(_))) {
            let late = SystemClock.now().as_ms().unsigned_abs();
            redrive.signal(job.id, "go", &late).await.expect("signalled");
        }
    }
}

async fn worker(redrive: &Redrive, journal: &Journal, until: impl Future<Output = ()> + Send) {
    let settings = Settings::default()
        .with_concurrency(24)
        .with_lease(LEASE)
        .with_reclaim_every(50 * MS)
        .with_poll(50 * MS)
        .with_log(AttemptLogging::All);
    let worker = handlers(redrive.worker().settings(settings), journal);
    worker.run_until(until).await.expect("the worker runs");
}

fn handlers(worker: TaskWorker, journal: &Journal) -> TaskWorker {
    let [a, b, c, d, e, f] = [(); 6].map(|()| journal.clone());
    worker
        .on(move |_: Flow, cx: Context| tasks::flow(cx, a.clone()))
        .on(move |_: Parent, cx: Context| tasks::parent(cx, b.clone()))
        .on(|child: Child, _: Context| tasks::child(child))
        .on(move |_: Only, cx: Context| tasks::busy(cx, c.clone()))
        .on(move |_: Narrow, cx: Context| tasks::busy(cx, d.clone()))
        .on(move |_: Ordered, cx: Context| tasks::busy(cx, e.clone()))
        .on(move |_: Tick, cx: Context| tasks::tick(cx, f.clone()))
}

/// Enqueues all kinds of tasks, sends signals and cancels jobs.
async fn generate_load(redrive: &Redrive, journal: &Journal, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    loop {
        let flow = enqueued(redrive.enqueue(Flow {}).await);
        let parent = enqueued(redrive.enqueue(Parent {}).await);
        let key = format!("key-{}", rng.u32(..4));
        enqueued(redrive.enqueue(Only {}).unique(&key).metadata(format!("{{\"key\":\"{key}\"}}")).await);
        enqueued(redrive.enqueue(Narrow {}).queue("narrow").partition_key(&key).await);
        enqueued(redrive.enqueue(Ordered {}).in_order(&key).await);
        for value in 1..=SIGNALS {
            redrive.signal(flow, "go", &value).await.expect("signalled");
        }
        tokio::time::sleep(rng.u32(5..40) * MS).await;
        if rng.f32() < 0.2 {
            let unlucky = if rng.bool() { flow } else { parent };
            if redrive.cancel(unlucky).await.expect("cancelled") == CancelResult::Done {
                journal.add(JobEvent::Cancelled(unlucky));
            }
        }
    }
}

fn enqueued(answer: Result<redrive::EnqueuedJob, redrive::Error>) -> JobId {
    answer.map_err(JobError::from).expect("enqueued").id()
}

/// Repeatedly counts the running jobs of the queue with limits.
async fn record_running_jobs(redrive: &Redrive, journal: &Journal) {
    let narrow = Queue::new("narrow").expect("legal");
    let mut most = 0;
    loop {
        let counts = redrive.backend().stats().await.expect("stats").counts;
        let running = counts.get(&(narrow.clone(), State::Running)).copied().unwrap_or(0);
        if running > most {
            most = running;
            journal.add(JobEvent::RunningAtOnce(running));
        }
        tokio::time::sleep(3 * MS).await;
    }
}
