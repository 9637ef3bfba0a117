//! The work of a process that is killed: jobs with every kind of outcome, claimed and settled as fast as they come.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::store::Backend;
use redrive_core::{Backoff, IdempotencyKey, JobId, Kind, NewJob, Outcome, Policy, PolicyRef, State, Store};
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
const SCRIPTS: [&str; 6] = ["ok", "ok", "fail", "flaky", "take 75", "snooze"];

/// Every job's policy: few attempts, soon.
pub(crate) fn policy() -> Policy {
    let backoff = Backoff::fixed(Duration::from_millis(5)).expect("legal");
    presets::once().with_max_attempts(ATTEMPTS).expect("legal").with_backoff(backoff)
}

/// Some jobs to enqueue at once.
pub(crate) fn jobs(policy: &PolicyRef, chance: &mut fastrand::Rng) -> Vec<NewJob> {
    let scripts: Vec<&str> =
        (0..chance.usize(1..8)).map(|_| SCRIPTS[chance.usize(..SCRIPTS.len())]).collect();
    scripts.into_iter().map(|script| keyed_or_not(job(policy, script), chance)).collect()
}

/// A job that does what `script` says.
pub(crate) fn job(policy: &PolicyRef, script: &str) -> NewJob {
    NewJob::new(JobId(uuid::Uuid::now_v7()), kind(), policy.clone(), script.as_bytes().to_vec())
}

/// Some jobs have a key, few enough that they meet.
fn keyed_or_not(job: NewJob, chance: &mut fastrand::Rng) -> NewJob {
    if job.payload == b"ok" && chance.f32() < 0.2 {
        job.with_key(IdempotencyKey::new(format!("key-{}", chance.u32(..100))).expect("legal"))
    } else {
        job
    }
}

fn kind() -> Kind {
    Kind::new("victim").expect("legal")
}

/// The settings of a worker in a hurry.
pub(crate) fn hurried() -> Settings {
    Settings::default()
        .with_concurrency(16)
        .with_lease(LEASE)
        .with_reclaim_every(Duration::from_millis(50))
        .with_poll(Duration::from_millis(100))
        .with_log(KeepLog::All)
}

/// A worker that notes down what it starts.
pub(crate) fn worker(store: Arc<dyn Backend>, history: History, settings: Settings) -> Worker {
    let handler = move |cx: Context| {
        history.add(Happening::Started(cx.job.lease()));
        perform(cx)
    };
    Worker::new(store, settings).expect("legal settings").on(kind(), handler)
}

async fn perform(cx: Context) -> Outcome {
    match cx.job.payload.as_slice() {
        b"poison" => std::process::abort(),
        b"fail" => Outcome::fail("always fails"),
        b"flaky" if cx.job.attempt < ATTEMPTS => Outcome::fail("fails until the last attempt"),
        b"hang" if cx.job.attempt == 1 => std::future::pending().await,
        b"snooze" if cx.job.epoch < 3 => Outcome::Snooze(Duration::from_millis(10)),
        script => {
            if let Some(ms) = script.strip_prefix(b"take ") {
                let ms = std::str::from_utf8(ms).ok().and_then(|ms| ms.parse().ok());
                tokio::time::sleep(Duration::from_millis(ms.expect("take MILLISECONDS"))).await;
            }
            Outcome::Done(None)
        }
    }
}

/// Works until nothing is left to do.
pub(crate) async fn drain(store: Recorded, history: History) {
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
    let work = worker(Arc::new(store), history, hurried()).run_until(idle);
    match tokio::time::timeout(DRAIN, work).await {
        Ok(done) => drop(done.expect("it drains")),
        Err(_) => std::process::exit(NO_END),
    }
}
