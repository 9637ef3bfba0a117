//! The process that is killed: it enqueues, claims and settles as fast as it can.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::store::Backend;
use redrive_core::{
    Backoff, IdempotencyKey, JobId, Kind, NewJob, Outcome, Policy, PolicyRef, State, Store, catalog,
};
use redrive_store_sqlite::{Options, SqliteStore, SystemClock};
use redrive_testkit::history::Happening;
use redrive_testkit::{History, Recorded};
use redrive_worker::{Context, KeepLog, Settings, Worker};

/// Leases are short, so that a killed process's jobs come back while the test looks on.
pub(crate) const LEASE: Duration = Duration::from_millis(300);
/// Attempts of every job; a job that kills its process gets no more.
pub(crate) const ATTEMPTS: u32 = 3;

/// How long a process may take to finish what is left.
const DRAIN: Duration = Duration::from_secs(20);
/// The exit code of a process that could not finish it.
pub(crate) const NO_END: i32 = 3;

/// What a job does, as its payload says.
const SCRIPTS: [&str; 6] = ["ok", "ok", "fail", "flaky", "slow", "snooze"];

pub(crate) fn main(arguments: &[String]) {
    let [mode, folder, seed] = arguments else { panic!("child MODE FOLDER SEED") };
    let (folder, seed) = (PathBuf::from(folder), seed.parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        match mode.as_str() {
            "work" => work(&folder, seed).await,
            "drain" => drain(&folder).await,
            "fill" => crate::full::fill(&folder).await,
            other => panic!("no such mode: {other}"),
        }
    });
}

/// Opens the store and notes down all that it answers in the folder's journal.
pub(crate) fn open(folder: &Path) -> (Recorded, History) {
    let store = SqliteStore::open(folder.join("redrive.db"), Options::default()).expect("the store opens");
    let history = History::journalled(&folder.join("journal"), SystemClock).expect("the journal opens");
    (Recorded::new(Arc::new(store), history.clone()), history)
}

/// Every job's policy: few attempts, soon.
pub(crate) fn policy() -> Policy {
    let backoff = Backoff::fixed(Duration::from_millis(5)).expect("legal");
    presets::once().with_max_attempts(ATTEMPTS).expect("legal").with_backoff(backoff)
}

async fn work(folder: &Path, seed: u64) {
    let (store, history) = open(folder);
    let policy = catalog::put_inline(&store, &policy()).await.expect("the policy is stored");
    let enqueuer = tokio::spawn(enqueue_for_ever(store.clone(), policy, seed));
    let worker = worker(Arc::new(store), history);
    worker.run_until(std::future::pending()).await.expect("it works until it is killed");
    enqueuer.abort();
}

/// Works until nothing is left to do.
async fn drain(folder: &Path) {
    let (store, history) = open(folder);
    let idle = {
        let store = store.clone();
        async move {
            let live = [State::Pending, State::Retrying, State::Running, State::Waiting];
            loop {
                let stats = store.stats().await.expect("stats");
                if live.iter().all(|state| stats.in_state(*state) == 0) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let work = worker(Arc::new(store), history).run_until(idle);
    match tokio::time::timeout(DRAIN, work).await {
        Ok(done) => drop(done.expect("it drains")),
        Err(_) => std::process::exit(NO_END),
    }
}

fn worker(store: Arc<dyn Backend>, history: History) -> Worker {
    let settings = Settings::default()
        .with_concurrency(16)
        .with_lease(LEASE)
        .with_reclaim_every(Duration::from_millis(50))
        .with_poll(Duration::from_millis(100))
        .with_log(KeepLog::All);
    let handler = move |cx: Context| {
        history.add(Happening::Started(cx.job.lease()));
        perform(cx)
    };
    Worker::new(store, settings).expect("legal settings").on(Kind::new("crash").expect("legal"), handler)
}

async fn perform(cx: Context) -> Outcome {
    match cx.job.payload.as_slice() {
        b"poison" => std::process::abort(),
        b"fail" => Outcome::fail("always fails"),
        b"flaky" if cx.job.attempt < ATTEMPTS => Outcome::fail("fails until the last attempt"),
        b"snooze" if cx.job.epoch < 3 => Outcome::Snooze(Duration::from_millis(10)),
        b"slow" => {
            tokio::time::sleep(LEASE / 4).await;
            Outcome::Done(None)
        }
        _ => Outcome::Done(None),
    }
}

async fn enqueue_for_ever(store: Recorded, policy: PolicyRef, seed: u64) {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut poisoned = false;
    loop {
        let jobs = (0..chance.usize(1..8)).map(|_| {
            let script = if !poisoned && chance.f32() < 0.02 {
                "poison"
            } else {
                SCRIPTS[chance.usize(..SCRIPTS.len())]
            };
            poisoned |= script == "poison";
            job(&policy, script, &mut chance)
        });
        store.enqueue(jobs.collect()).await.expect("enqueued");
        tokio::time::sleep(Duration::from_millis(chance.u64(0..4))).await;
    }
}

/// Some jobs have a key, few enough that they meet.
fn job(policy: &PolicyRef, script: &str, chance: &mut fastrand::Rng) -> NewJob {
    let kind = Kind::new("crash").expect("legal");
    let job = NewJob::new(JobId(uuid::Uuid::now_v7()), kind, policy.clone(), script.as_bytes().to_vec());
    if script == "ok" && chance.f32() < 0.2 {
        job.with_key(IdempotencyKey::new(format!("key-{}", chance.u32(..100))).expect("legal"))
    } else {
        job
    }
}
