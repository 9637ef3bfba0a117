//! A harness for tests of programs that use this crate. It runs jobs on a clock that the test controls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_core::store::{Filter, PageRequest, SettleResult, Settlement};
use redrive_core::{Job, JobId, Outcome, State, Timestamp};
use redrive_store_sqlite::{Options, SqliteStore};
use redrive_worker::{HeartbeatSource, Observer, Settings, Summary};
use tokio::sync::Notify;
use tokio::time::Instant;

pub use redrive_core::ManualClock;

use crate::schedule::driver::enqueue_all_due;
use crate::{Context, Next, Redrive, Task, TaskWorker};

/// How often the worker of a harness claims. Short, because the test waits for it.
const POLL: Duration = Duration::from_millis(2);

/// A store in memory on a manual clock, with the handlers under test. Its methods panic where a test could not continue.
///
/// ```
/// use std::time::Duration;
///
/// use redrive::testing::Harness;
/// use redrive::{Context, JobError, State, Task};
/// # use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Welcome { user: u32 }
/// impl Task for Welcome { const KIND: &'static str = "welcome"; type Output = String; }
///
/// #[derive(Serialize, Deserialize)]
/// struct Remind { user: u32 }
/// impl Task for Remind { const KIND: &'static str = "remind"; type Output = (); }
///
/// async fn welcome(job: Welcome, cx: Context) -> Result<String, JobError> {
///     let week = Duration::from_secs(7 * 24 * 60 * 60);
///     cx.redrive().enqueue(Remind { user: job.user }).queue("mail").delay(week).await?;
///     Ok(format!("hello {}", job.user))
/// }
///
/// async fn remind(_: Remind, _: Context) -> Result<(), JobError> {
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let harness = Harness::new(|worker| worker.on(welcome).on(remind));
///
/// // Runs one attempt.
/// let result = harness.run(Welcome { user: 7 }).await;
/// assert_eq!(result.output(), "hello 7");
///
/// // The handler has enqueued a job that is due in a week.
/// harness.assert_enqueued::<Remind>(|job| job.user == 7).await;
/// assert_eq!(harness.drain("mail").await.succeeded, 0);
/// harness.advance(Duration::from_secs(7 * 24 * 60 * 60));
/// assert_eq!(harness.drain("mail").await.succeeded, 1);
/// harness.refute_enqueued::<Remind>(|_| true).await;
/// # }
/// ```
///
/// The store is on SQLite, so [`Redrive::transact`] and [`TaskWorker::on_end`] work. The test creates the application's tables
/// first. A worker with [`TaskWorker::on_end_postgres`] also needs an `on_end` for the harness.
///
/// ```
/// use redrive::testing::Harness;
/// use redrive::{Context, EndedJob, Error, Redrive, SqliteTransaction, Task};
/// # use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Ship { order: i64 }
/// impl Task for Ship { const KIND: &'static str = "ship"; type Output = (); }
///
/// // The code under test.
/// async fn place(redrive: &Redrive, order: i64) -> Result<(), Error> {
///     let ship = redrive.enqueue(Ship { order }).prepare().await?;
///     let placed = redrive.transact(move |tx| {
///         tx.connection().execute("INSERT INTO orders (id, state) VALUES (?1, 'placed')", [order])?;
///         tx.enqueue(&ship)
///     });
///     placed.await.map(drop)
/// }
///
/// fn mark(tx: &mut SqliteTransaction<'_, '_, '_>, ship: &Ship, ended: &EndedJob) -> Result<(), Error> {
///     let sql = "UPDATE orders SET state = ?2 WHERE id = ?1";
///     tx.connection().execute(sql, (ship.order, ended.state.name()))?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let harness = Harness::new(|worker| worker.on(|_: Ship, _: Context| async { Ok(()) }).on_end(mark));
/// let table = "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)";
/// harness.redrive().transact(move |tx| Ok(tx.connection().execute_batch(table)?)).await?;
///
/// place(harness.redrive(), 7).await?;
/// assert_eq!(harness.drain("default").await.succeeded, 1);
///
/// let state = harness.redrive().transact(|tx| {
///     let sql = "SELECT state FROM orders WHERE id = 7";
///     Ok(tx.connection().query_row(sql, (), |row| row.get::<_, String>(0))?)
/// });
/// assert_eq!(state.await?, "succeeded");
/// # Ok(()) }
/// ```
pub struct Harness {
    redrive: Redrive,
    clock: ManualClock,
    setup: Box<dyn Fn(TaskWorker) -> TaskWorker + Send + Sync>,
}

impl Harness {
    /// A harness whose workers are set up by `setup`. Add the same handlers, state and middleware as in the program.
    pub fn new(setup: impl Fn(TaskWorker) -> TaskWorker + Send + Sync + 'static) -> Self {
        let clock = ManualClock::new();
        let options = Options::default().with_clock(clock.clone());
        let store = SqliteStore::open_in_memory_with(options).expect("a store in memory opens");
        Self { redrive: Redrive::on_sqlite(store), clock, setup: Box::new(setup) }
    }

    /// Replaces the handle of the harness with the result of `change`, for example to add enqueue middleware.
    pub fn with_redrive(mut self, change: impl FnOnce(Redrive) -> Redrive) -> Self {
        self.redrive = change(self.redrive);
        self
    }

    /// The handle, for the code under test.
    pub fn redrive(&self) -> &Redrive {
        &self.redrive
    }

    /// The clock of the store.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Moves the clock forward. Jobs that become due run at the next [`Harness::drain`].
    pub fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    /// Enqueues a task in a queue of its own, and runs one attempt with the real worker. The job stays in the store: if it is
    /// retried or snoozed, it is due again later, in the queue of [`AttemptResult::job`].
    pub async fn run<T: Task>(&self, task: T) -> AttemptResult<T> {
        let queue = format!("inline-{}", uuid::Uuid::now_v7().simple());
        let enqueued = self.redrive.enqueue(task).queue(&queue).await;
        let id = enqueued.unwrap_or_else(|error| panic!("the task cannot be enqueued: {error}")).id();
        let outcome = Arc::new(Mutex::new(None));
        let worker = self.worker(&queue).outermost_middleware(run_once(outcome.clone()));
        self.work(worker).await;
        let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        AttemptResult { job: self.job(id).await, outcome, task: std::marker::PhantomData }
    }

    /// Enqueues jobs for the schedules that are due. Then runs the due jobs of a queue until there are none, including those that
    /// the handlers enqueue. Returns how many attempts ended in which way.
    pub async fn drain(&self, queue: &str) -> Summary {
        enqueue_all_due(&self.redrive).await.expect("the store in memory answers");
        self.work(self.worker(queue)).await
    }

    /// The tasks of type `T` whose jobs have not ended and are not running, oldest first.
    pub async fn enqueued<T: Task>(&self) -> Vec<T> {
        let mut tasks = Vec::new();
        for job in self.live_idle_jobs(T::KIND).await {
            let large = self.redrive.fetch_payload(&job).await;
            let large = large.unwrap_or_else(|why| panic!("job {} cannot be read: {why:?}", job.id));
            let task = serde_json::from_slice(large.as_deref().unwrap_or(&job.payload));
            tasks.push(
                task.unwrap_or_else(|error| {
                    panic!("job {} cannot be read as a {}: {error}", job.id, T::KIND)
                }),
            );
        }
        tasks
    }

    /// Panics unless a task that `wanted` accepts is enqueued.
    pub async fn assert_enqueued<T: Task>(&self, wanted: impl Fn(&T) -> bool) {
        let found = self.enqueued::<T>().await;
        assert!(
            found.iter().any(wanted),
            "no enqueued {} matches; the enqueued ones are: {}",
            T::KIND,
            to_json(&found)
        );
    }

    /// Panics if a task that `unwanted` accepts is enqueued.
    pub async fn refute_enqueued<T: Task>(&self, unwanted: impl Fn(&T) -> bool) {
        let found: Vec<T> = self.enqueued::<T>().await.into_iter().filter(|task| unwanted(task)).collect();
        assert!(found.is_empty(), "{} is enqueued and should not be: {}", T::KIND, to_json(&found));
    }

    fn worker(&self, queue: &str) -> TaskWorker {
        let worker = (self.setup)(self.redrive.worker());
        let quick =
            |settings: Settings| settings.with_poll(POLL).with_heartbeat_source(HeartbeatSource::Inline);
        worker.queues([queue]).without_schedules().change_settings(quick)
    }

    async fn work(&self, worker: TaskWorker) -> Summary {
        let idle = Arc::new(IdleObserver::default());
        let worker = worker.observe(idle.clone());
        let summary = worker.run_until(async move { idle.wait_until_idle().await }).await;
        summary.unwrap_or_else(|error| panic!("the worker of this harness failed: {error}"))
    }

    async fn job(&self, id: JobId) -> Job {
        self.redrive.get(id).await.expect("the store in memory answers").expect("the job is there")
    }

    async fn live_idle_jobs(&self, kind: &str) -> Vec<Job> {
        let states = vec![State::Pending, State::Retrying, State::Waiting];
        let kind = Some(kind.parse().expect("the kind of a task is valid"));
        let filter = Filter { states, kind, ..Filter::default() };
        let mut jobs = Vec::new();
        let mut page = PageRequest::first(redrive_core::limits::PAGE_ITEMS_MAX);
        loop {
            let found = self.redrive.list(filter.clone(), page).await.expect("the store in memory answers");
            jobs.extend(found.items);
            match found.next {
                Some(end) => page.after = Some(end),
                None => break,
            }
        }
        jobs.reverse();
        jobs
    }
}

/// The result of one attempt. See [`Harness::run`].
#[derive(Debug)]
pub struct AttemptResult<T> {
    /// The job after the attempt, with its state, last error and next due time.
    pub job: Job,
    /// The outcome that the handler and its middleware returned. None if they panicked or timed out.
    pub outcome: Option<Outcome>,
    task: std::marker::PhantomData<fn() -> T>,
}

impl<T: Task> AttemptResult<T> {
    /// The output of a successful attempt. Panics if the attempt did not succeed.
    pub fn output(&self) -> T::Output {
        let Job { state, last_error, output, .. } = &self.job;
        assert_eq!(*state, State::Succeeded, "the attempt did not succeed: {last_error:?}");
        let json = output.as_deref().unwrap_or(b"null");
        serde_json::from_slice(json).unwrap_or_else(|error| panic!("the output cannot be read: {error}"))
    }
}

/// A middleware that runs one attempt and keeps its outcome. It snoozes further attempts, so a job that is due again at once waits
/// until the clock moves.
fn run_once(kept: Arc<Mutex<Option<Outcome>>>) -> impl crate::Middleware {
    let started = Arc::new(AtomicBool::new(false));
    move |cx: Context, next: Next| {
        let (kept, started) = (kept.clone(), started.clone());
        async move {
            if started.swap(true, Ordering::SeqCst) {
                return Outcome::Snooze(Duration::from_millis(1));
            }
            let outcome = next.run(cx).await;
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome.clone());
            outcome
        }
    }
}

fn to_json<T: Task>(tasks: &[T]) -> String {
    serde_json::to_string(tasks).unwrap_or_else(|error| format!("cannot be shown: {error}"))
}

/// Reports when a worker is idle: it runs nothing, and a claim that began after its last settlement found nothing.
#[derive(Default)]
struct IdleObserver {
    running: Mutex<RunningAttempts>,
    became_idle: Notify,
}

#[derive(Default)]
struct RunningAttempts {
    count: usize,
    /// When the last attempt was settled.
    settled_at: Option<Instant>,
}

impl IdleObserver {
    async fn wait_until_idle(&self) {
        self.became_idle.notified().await;
    }

    fn with<T>(&self, call: impl FnOnce(&mut RunningAttempts) -> T) -> T {
        call(&mut self.running.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for IdleObserver {
    fn claimed(&self, jobs: &[Arc<Job>], _now: Timestamp) {
        self.with(|running| running.count += jobs.len());
    }

    fn settled(&self, _job: &Job, _settlement: &Settlement, _result: SettleResult) {
        self.with(|running| {
            running.count = running.count.saturating_sub(1);
            running.settled_at = Some(Instant::now());
        });
    }

    fn store_call(&self, verb: &'static str, items: usize, took: Duration, ok: bool) {
        let is_idle = |running: &mut RunningAttempts| {
            let since = running.settled_at.map(|settled_at| settled_at.elapsed());
            running.count == 0 && since.is_none_or(|since| since >= took)
        };
        if verb == "claim" && items == 0 && ok && self.with(is_idle) {
            self.became_idle.notify_one();
        }
    }
}
