//! The jobs of the processes that are killed, with every kind of outcome, and their worker.

use std::sync::Arc;
use std::time::Duration;

use redrive_core::policy::presets;
use redrive_core::store::Backend;
use redrive_core::{Backoff, IdempotencyKey, JobId, Kind, NewJob, Outcome, Policy, PolicyRef, State, Store};
use redrive_testkit::history::HistoryEvent;
use redrive_testkit::{History, RecordingStore};
use redrive_worker::{AttemptLogging, Context, Settings, Worker};

/// The lease. It is short, so that the jobs of a killed process are reclaimed during the test.
pub(crate) const LEASE: Duration = Duration::from_millis(300);
/// The attempts of every job, including those that kill their process.
pub(crate) const ATTEMPTS: u32 = 3;

/// How long a process may take to finish the remaining jobs.
const DRAIN: Duration = Duration::from_secs(20);
/// The exit code of a process that could not finish them.
pub(crate) const DRAIN_FAILED: i32 = 3;

/// The payloads of the jobs: each says what its handler does.
const SCRIPTS: [&str; 6] = ["ok", "ok", "fail", "flaky", "take 75", "snooze"];

/// The policy of every job: few attempts with short waits.
pub(crate) fn policy() -> Policy {
    let backoff = Backoff::fixed(Duration::from_millis(5)).expect("legal");
    presets::once().with_max_attempts(ATTEMPTS).expect("legal").with_backoff(backoff)
}

/// A batch of random jobs.
pub(crate) fn jobs(policy: &PolicyRef, rng: &mut fastrand::Rng) -> Vec<NewJob> {
    let scripts: Vec<&str> = (0..rng.usize(1..8)).map(|_| SCRIPTS[rng.usize(..SCRIPTS.len())]).collect();
    scripts.into_iter().map(|script| with_random_key(job(policy, script), rng)).collect()
}

/// A job that does what `script` says.
pub(crate) fn job(policy: &PolicyRef, script: &str) -> NewJob {
    NewJob::new(JobId(uuid::Uuid::now_v7()), kind(), policy.clone(), script.as_bytes().to_vec())
}

/// Gives some jobs a key. There are few keys, so that several jobs get the same one.
fn with_random_key(job: NewJob, rng: &mut fastrand::Rng) -> NewJob {
    if job.payload == b"ok" && rng.f32() < 0.2 {
        job.with_key(IdempotencyKey::new(format!("key-{}", rng.u32(..100))).expect("legal"))
    } else {
        job
    }
}

fn kind() -> Kind {
    Kind::new("workload").expect("legal")
}

/// Settings of a worker with short intervals.
pub(crate) fn quick_settings() -> Settings {
    Settings::default()
        .with_concurrency(16)
        .with_lease(LEASE)
        .with_reclaim_every(Duration::from_millis(50))
        .with_poll(Duration::from_millis(100))
        .with_log(AttemptLogging::All)
}

/// A worker that records each attempt that it starts.
pub(crate) fn worker(store: Arc<dyn Backend>, history: History, settings: Settings) -> Worker {
    let handler = move |cx: Context| {
        history.add(HistoryEvent::Started(cx.job.lease()));
        run_script(cx)
    };
    Worker::new(store, settings).expect("legal settings").on(kind(), handler)
}

async fn run_script(cx: Context) -> Outcome {
    match cx.job.payload.as_slice() {
        b"poison" => std::process::abort(),
        b"fail" => Outcome::fail("always fails"),
        b"flaky" if cx.job.attempt < ATTEMPTS => Outcome::fail("fails until the last attempt"),
        b"hang" if cx.job.attempt == 1 => std::future::pending().await,
        b"snooze" if cx.job.lease_count() < 3 => Outcome::Snooze(Duration::from_millis(10)),
        script => {
            if let Some(ms) = script.strip_prefix(b"take ") {
                let ms = std::str::from_utf8(ms).ok().and_then(|ms| ms.parse().ok());
                tokio::time::sleep(Duration::from_millis(ms.expect("take MILLISECONDS"))).await;
            }
            Outcome::Done(None)
        }
    }
}

/// Works until all jobs have ended.
pub(crate) async fn drain(store: RecordingStore, history: History) {
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
    let work = worker(Arc::new(store), history, quick_settings()).run_until(idle);
    match tokio::time::timeout(DRAIN, work).await {
        Ok(done) => drop(done.expect("the worker shuts down cleanly")),
        Err(_) => std::process::exit(DRAIN_FAILED),
    }
}
