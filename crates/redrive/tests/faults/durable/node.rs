//! A process that enqueues, signals, cancels and works until it is killed, or until nothing is left to do.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redrive::{
    Bounds, Cancelled, Context, JobError, JobId, KeepLog, Missed, Queue, Quota, Redrive, Schedule, Settings,
    State, TaskWorker,
};
use redrive_core::store::{Filter, PageRequest};
use redrive_core::{Await, Clock as _};
use redrive_store_sqlite::SystemClock;
use redrive_testkit::{History, Recorded};

use crate::journal::{Journal, Note};
use crate::program;
use crate::tasks::{self, Child, Flow, Narrow, Only, Ordered, Parent, SIGNALS, Tick};

const MS: Duration = Duration::from_millis(1);
/// Leases are short, so that the jobs of a killed process come back while the test looks on.
pub(crate) const LEASE: Duration = Duration::from_millis(300);
/// How long the last process may take to finish what is left.
const DRAIN: Duration = Duration::from_secs(60);
/// How many jobs of the bounded queue may run at once.
pub(crate) const CROWD_MAX: u32 = 3;

pub(crate) fn main(arguments: &[String]) {
    let [mode, address, journal, seed] = arguments else { panic!("child MODE ADDRESS JOURNAL SEED") };
    let seed = seed.parse().expect("a number");
    program::runtime().block_on(async {
        let (redrive, journal) =
            (open(address, journal.as_ref()).await.0, Journal::open(&notes(journal.as_ref())));
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

fn notes(journal: &Path) -> std::path::PathBuf {
    journal.with_extension("notes")
}

/// Opens a store and notes down all that it answers.
pub(crate) async fn open(address: &str, journal: &Path) -> (Redrive, History) {
    let store = Redrive::open(address).await.expect("the store opens").backend().clone();
    let history = History::journalled(journal, SystemClock).expect("the journal opens");
    (Redrive::on(Arc::new(Recorded::new(store, history.clone()))), history)
}

async fn work(redrive: Redrive, journal: Journal, seed: u64) {
    let narrow = Queue::new("narrow").expect("legal");
    let per_key = Bounds { concurrency: Some(1), rate: None };
    let quota = Quota { concurrency: Some(CROWD_MAX), rate: None, per_key };
    redrive.limit(&narrow, quota).await.expect("bounded");
    let tick = redrive.schedule("tick", Schedule::every(100 * MS).expect("legal"), Tick {});
    tick.missed(Missed::All).await.expect("scheduled");
    tokio::select! {
        () = worker(&redrive, &journal, std::future::pending()) => {}
        () = disturb(&redrive, &journal, seed) => {}
        () = watch(&redrive, &journal) => {}
    }
}

/// Works until nothing is left to do; sends the signals that killed processes still owed.
async fn drain(redrive: Redrive, journal: Journal) {
    redrive.unschedule("tick").await.expect("unscheduled");
    let idle = async {
        let live = [State::Pending, State::Retrying, State::Running, State::Waiting];
        while { redrive.backend().stats().await.expect("stats") }
            .counts
            .keys()
            .any(|(_, state)| live.contains(state))
        {
            help(&redrive).await;
            tokio::time::sleep(10 * MS).await;
        }
    };
    worker(&redrive, &journal, idle).await;
}

/// Sends a signal to every flow that waits for one.
async fn help(redrive: &Redrive) {
    let filter = Filter { states: vec![State::Waiting], ..Filter::default() };
    for job in redrive.backend().list(filter, PageRequest::first(1_000)).await.expect("listed").items {
        if matches!(job.awaits, Some(Await::Signal(_))) {
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
        .with_log(KeepLog::All);
    let worker = handlers(redrive.worker().settings(settings), journal);
    worker.run_until(until).await.expect("it works");
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

/// Enqueues this and that, signals and cancels.
async fn disturb(redrive: &Redrive, journal: &Journal, seed: u64) {
    let mut chance = fastrand::Rng::with_seed(seed);
    loop {
        let flow = enqueued(redrive.enqueue(Flow {}).await);
        let parent = enqueued(redrive.enqueue(Parent {}).await);
        let key = format!("key-{}", chance.u32(..4));
        enqueued(redrive.enqueue(Only {}).unique(&key).metadata(format!("{{\"key\":\"{key}\"}}")).await);
        enqueued(redrive.enqueue(Narrow {}).queue("narrow").limit_key(&key).await);
        enqueued(redrive.enqueue(Ordered {}).in_order(&key).await);
        for value in 1..=SIGNALS {
            redrive.signal(flow, "go", &value).await.expect("signalled");
        }
        tokio::time::sleep(chance.u32(5..40) * MS).await;
        if chance.f32() < 0.2 {
            let unlucky = if chance.bool() { flow } else { parent };
            if redrive.cancel(unlucky).await.expect("cancelled") == Cancelled::Done {
                journal.note(Note::Cancelled(unlucky));
            }
        }
    }
}

fn enqueued(answer: Result<redrive::EnqueuedJob, redrive::Error>) -> JobId {
    answer.map_err(JobError::from).expect("enqueued").id()
}

/// Looks again and again how many jobs of the bounded queue run.
async fn watch(redrive: &Redrive, journal: &Journal) {
    let narrow = Queue::new("narrow").expect("legal");
    let mut most = 0;
    loop {
        let counts = redrive.backend().stats().await.expect("stats").counts;
        let running = counts.get(&(narrow.clone(), State::Running)).copied().unwrap_or(0);
        if running > most {
            most = running;
            journal.note(Note::Crowd(running));
        }
        tokio::time::sleep(3 * MS).await;
    }
}
