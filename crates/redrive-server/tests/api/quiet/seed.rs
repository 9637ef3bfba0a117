//! Fills a store with a million tasks in every state. The rare ones are the oldest, where a search finds them last.

use std::time::Duration;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{Backend, PageRequest};
use redrive_core::transfer::{ImportResult, JobSnapshot};
use redrive_core::{
    Job, JobId, Kind, NewJob, PolicyRef, Queue, Reason, State, Tenant, Timestamp, WaitCondition, WorkerId,
    catalog,
};
use redrive_delivery::{Call, CallBody, KIND, Target};
use uuid::Uuid;

/// The number of tasks.
pub(crate) const TASKS: usize = 1_000_000;
/// Tasks with a number up to this one are rare or succeeded. A lower number means an older task.
const SUCCEEDED: usize = 600_000;
/// The number of the newest tasks, which have not ended. The tasks between them and the succeeded ones are dead.
const PENDING: usize = 300_000;
/// The number of rare tasks.
const RARE: usize = 12;
/// One in this many of the tasks that have not ended is running.
const RUNNING_EVERY: usize = 400;
/// The time between the creations of two tasks. All tasks are created within ten days.
const CREATION_INTERVAL_MS: usize = 800;

/// The facts about the seeded tasks that the test checks.
pub(crate) struct Seeded {
    /// A task in the middle of the list.
    pub(crate) middle: JobId,
    pub(crate) running: u64,
    pub(crate) cancelled: u64,
    pub(crate) rare: u64,
    /// An hour ago, in epoch ms.
    pub(crate) recently: i64,
}

/// Fills a store that has a default policy.
pub(crate) async fn seed(store: &dyn Backend) -> Seeded {
    let template = template(store).await;
    let now = store.stats().await.unwrap().now;
    let mut seeded =
        Seeded { middle: template.id, running: 0, cancelled: 0, rare: 0, recently: now.as_ms() - 3_600_000 };
    for batch in (1..TASKS).step_by(BATCH_ITEMS_MAX) {
        let numbers = batch..(batch + BATCH_ITEMS_MAX).min(TASKS);
        let snapshots: Vec<JobSnapshot> =
            numbers.map(|number| snapshot(&template, number, now, &mut seeded)).collect();
        let imported = store.import(snapshots).await.unwrap();
        assert!(imported.iter().all(|result| *result == ImportResult::Created));
    }
    let stats = store.stats().await.unwrap();
    assert_eq!(stats.counts.values().sum::<u64>(), TASKS as u64);
    seeded
}

/// Enqueues a task like those that the service creates. The other tasks are copies of it.
async fn template(store: &dyn Backend) -> Job {
    let mut call = Call::new(Target::parse("https://target-0.example/hook").unwrap());
    call.headers = vec![("content-type".into(), "application/json".into())];
    call.body = CallBody::Inline(br#"{"order": 7, "note": "about as large as most webhooks"}"#.repeat(4));
    let policy = PolicyRef::first(catalog::DEFAULT.parse().unwrap());
    let job = NewJob::new(JobId(Uuid::now_v7()), Kind::new(KIND).unwrap(), policy, call.encode());
    store.enqueue(vec![NewJob { target: Some(call.target.to_string()), ..job }]).await.unwrap();
    store.list(Default::default(), PageRequest::first(1)).await.unwrap().items.remove(0)
}

fn snapshot(template: &Job, number: usize, now: Timestamp, seeded: &mut Seeded) -> JobSnapshot {
    let back = Duration::from_millis(((TASKS - number) * CREATION_INTERVAL_MS) as u64);
    let created_at = now.before(back);
    let millis = u64::try_from(created_at.as_ms()).unwrap();
    let id = JobId(uuid::Builder::from_unix_timestamp_millis(millis, &random(number)).into_uuid());
    let job = Job {
        id,
        created_at,
        began_at: created_at,
        next_run_at: created_at,
        target: Some(format!("https://target-{}.example/hook", number % 50)),
        key: number.is_multiple_of(10).then(|| format!("key-{}", number / 10).parse().unwrap()),
        ..template.clone()
    };
    let job = match number {
        number if number <= RARE => rare(job, number, seeded),
        number if number <= SUCCEEDED => ended(job, State::Succeeded, now),
        number if number <= TASKS - PENDING => dead(job, number, now),
        number => not_ended(job, number, now, seeded),
    };
    if number == TASKS / 2 {
        seeded.middle = id;
    }
    let fingerprint = job.key.as_ref().map(|_| [7; 32]);
    JobSnapshot { job, fingerprint, unique: None, log: vec![], steps: vec![], signals: vec![] }
}

/// A task that is cancelled and of another tenant, or of another queue and kind.
fn rare(job: Job, number: usize, seeded: &mut Seeded) -> Job {
    let (at, tenant) = (job.created_at, Tenant::new("acme").unwrap());
    if number.is_multiple_of(2) {
        seeded.cancelled += 1;
        return Job { tenant, ..ended(job, State::Cancelled, at) };
    }
    seeded.rare += 1;
    let metadata = (number == 1).then(|| "a needle in a haystack".to_owned());
    let (queue, kind) = (Queue::new("rare").unwrap(), Kind::new("receipt").unwrap());
    Job { queue, kind, metadata, payload: b"{}".to_vec(), ..ended(job, State::Succeeded, at) }
}

fn ended(job: Job, state: State, now: Timestamp) -> Job {
    let finished_at = Some(job.created_at.after(Duration::from_secs(2)).min(now));
    Job { state, attempt: 1, epoch: 1, started_at: Some(job.created_at), finished_at, ..job }
}

/// A dead task. One in a hundred died a minute ago, and very few have the reason `body_lost`.
fn dead(job: Job, number: usize, now: Timestamp) -> Job {
    let reason = match number % 1_000 {
        0 if number.is_multiple_of(50_000) => Reason::BodyLost,
        0..300 => Reason::NotRetryable,
        300..600 => Reason::BudgetExceeded,
        _ => Reason::AttemptsExhausted,
    };
    let recent = number.is_multiple_of(100);
    let finished_at = if recent { now.before(Duration::from_secs(60)) } else { job.created_at };
    let job = ended(job, State::Dead, now);
    let last_error = Some("status 503: busy".to_owned());
    Job { reason: Some(reason), finished_at: Some(finished_at), last_error, last_status: Some(503), ..job }
}

/// A task that is running, paused, retrying or pending.
fn not_ended(job: Job, number: usize, now: Timestamp, seeded: &mut Seeded) -> Job {
    let later = now.after(Duration::from_secs(3_600));
    match number {
        number if number.is_multiple_of(RUNNING_EVERY) => {
            seeded.running += 1;
            let worker = WorkerId::new(format!("worker-{}", number % 7)).unwrap();
            let (lease_until, started_at) = (Some(later), Some(job.created_at));
            let state = State::Running;
            Job { state, attempt: 1, epoch: 1, worker: Some(worker), lease_until, started_at, ..job }
        }
        number if number.is_multiple_of(1_001) => {
            Job { state: State::Waiting, awaits: Some(WaitCondition::Unpaused), paused: true, ..job }
        }
        number if number.is_multiple_of(3) => {
            Job { state: State::Retrying, attempt: 2, epoch: 2, next_run_at: later, ..job }
        }
        _ => Job { next_run_at: later, ..job },
    }
}

/// Ten bytes that differ for each task and are the same in each run.
fn random(number: usize) -> [u8; 10] {
    let mut bytes = [0; 10];
    fastrand::Rng::with_seed(number as u64).fill(&mut bytes);
    bytes
}
