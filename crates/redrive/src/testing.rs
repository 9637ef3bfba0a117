//! Tests of programs that use this crate: jobs run inline or are drained, on a clock that the test moves.

mod idle;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redrive_core::store::{Filter, PageRequest};
use redrive_core::{Job, JobId, Outcome, State};
use redrive_store_sqlite::{Options, SqliteStore};
use redrive_worker::{Pulse, Settings, Summary};

pub use redrive_core::ManualClock;

use crate::schedule::run::drive_all;
use crate::{Context, Next, Redrive, Task, TaskWorker};
use idle::Idle;

/// How often a worker of a harness looks for more: often, since a test waits for it.
const POLL: Duration = Duration::from_millis(2);

/// A store in memory on a manual clock, with the handlers under test. What a test cannot go on without panics.
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
/// // One attempt, inline.
/// let ran = harness.run(Welcome { user: 7 }).await;
/// assert_eq!(ran.output(), "hello 7");
///
/// // What it has enqueued, and when that is due.
/// harness.assert_enqueued::<Remind>(|job| job.user == 7).await;
/// assert_eq!(harness.drain("mail").await.succeeded, 0);
/// harness.advance(Duration::from_secs(7 * 24 * 60 * 60));
/// assert_eq!(harness.drain("mail").await.succeeded, 1);
/// harness.refute_enqueued::<Remind>(|_| true).await;
/// # }
/// ```
///
/// The store is one on SQLite: [`Redrive::transact`] and [`TaskWorker::ending`] work as in the program. The test makes the
/// application's tables first. A worker that is given [`TaskWorker::ending_postgres`] needs an `ending` for the harness as
/// well.
///
/// ```
/// use redrive::testing::Harness;
/// use redrive::{Context, End, Error, Redrive, SqliteTransaction, Task};
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
/// fn mark(tx: &mut SqliteTransaction<'_, '_, '_>, ship: &Ship, end: &End) -> Result<(), Error> {
///     let sql = "UPDATE orders SET state = ?2 WHERE id = ?1";
///     tx.connection().execute(sql, (ship.order, end.state.name()))?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let harness = Harness::new(|worker| worker.on(|_: Ship, _: Context| async { Ok(()) }).ending(mark));
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
    /// A harness whose workers are made by `setup`: give them handlers, state and middleware as in the program itself.
    pub fn new(setup: impl Fn(TaskWorker) -> TaskWorker + Send + Sync + 'static) -> Self {
        let clock = ManualClock::new();
        let options = Options::default().with_clock(clock.clone());
        let store = SqliteStore::open_in_memory_with(options).expect("a store in memory opens");
        Self { redrive: Redrive::on_sqlite(store), clock, setup: Box::new(setup) }
    }

    /// The same harness with enqueues through what `change` makes of its handle, such as one with enqueue middleware.
    pub fn with_redrive(mut self, change: impl FnOnce(Redrive) -> Redrive) -> Self {
        self.redrive = change(self.redrive);
        self
    }

    /// The handle, for the code under test.
    pub fn redrive(&self) -> &Redrive {
        &self.redrive
    }

    /// The clock that the store tells the time by.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Moves the clock on. What becomes due by it runs at the next [`Harness::drain`].
    pub fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    /// Makes one attempt at a task, through the real worker and in a queue of its own, and says what came of it. The job
    /// stays in the store: one that is to be retried or was snoozed is due again later, in [`Ran::job`]'s queue.
    pub async fn run<T: Task>(&self, task: T) -> Ran<T> {
        let queue = format!("inline-{}", uuid::Uuid::now_v7().simple());
        let enqueued = self.redrive.enqueue(task).queue(&queue).await;
        let id = enqueued.unwrap_or_else(|error| panic!("the task cannot be enqueued: {error}")).id();
        let outcome = Arc::new(Mutex::new(None));
        let worker = self.worker(&queue).outermost(once(outcome.clone()));
        self.work(worker).await;
        let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ran { job: self.job(id).await, outcome, task: std::marker::PhantomData }
    }

    /// Enqueues for schedules that are due, then claims and executes what is due in a queue, and what that enqueues there,
    /// until nothing is; says how much there was.
    pub async fn drain(&self, queue: &str) -> Summary {
        drive_all(&self.redrive).await.expect("the store in memory answers");
        self.work(self.worker(queue)).await
    }

    /// The tasks of a type that wait for their turn or their time, oldest first.
    pub async fn enqueued<T: Task>(&self) -> Vec<T> {
        let mut tasks = Vec::new();
        for job in self.waiting(T::KIND).await {
            let large = self.redrive.fetch(&job).await;
            let large = large.unwrap_or_else(|why| panic!("job {} cannot be read: {why:?}", job.id));
            let task = serde_json::from_slice(large.as_deref().unwrap_or(&job.payload));
            tasks.push(task.unwrap_or_else(|error| panic!("job {} is no {}: {error}", job.id, T::KIND)));
        }
        tasks
    }

    /// Panics unless a task of a type that `wanted` accepts waits for its turn or its time.
    pub async fn assert_enqueued<T: Task>(&self, wanted: impl Fn(&T) -> bool) {
        let found = self.enqueued::<T>().await;
        assert!(
            found.iter().any(wanted),
            "no {} that was asked for is enqueued; there are: {}",
            T::KIND,
            shown(&found)
        );
    }

    /// Panics if a task of a type that `unwanted` accepts waits for its turn or its time.
    pub async fn refute_enqueued<T: Task>(&self, unwanted: impl Fn(&T) -> bool) {
        let found: Vec<T> = self.enqueued::<T>().await.into_iter().filter(|task| unwanted(task)).collect();
        assert!(found.is_empty(), "{} is enqueued and should not be: {}", T::KIND, shown(&found));
    }

    fn worker(&self, queue: &str) -> TaskWorker {
        let worker = (self.setup)(self.redrive.worker());
        let quick = |settings: Settings| settings.with_poll(POLL).with_pulse(Pulse::Inline);
        worker.queues([queue]).without_schedules().adjust(quick)
    }

    async fn work(&self, worker: TaskWorker) -> Summary {
        let idle = Arc::new(Idle::default());
        let worker = worker.observe(idle.clone());
        let worked = worker.run_until(async move { idle.reached().await }).await;
        worked.unwrap_or_else(|error| panic!("the worker of this harness cannot work: {error}"))
    }

    async fn job(&self, id: JobId) -> Job {
        self.redrive.get(id).await.expect("the store in memory answers").expect("the job is there")
    }

    async fn waiting(&self, kind: &str) -> Vec<Job> {
        let states = vec![State::Pending, State::Retrying, State::Waiting];
        let kind = Some(kind.parse().expect("a task has a legal kind"));
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

/// What came of one attempt.
#[derive(Debug)]
pub struct Ran<T> {
    /// The job as it is afterwards: its state, its last error, when it is due again.
    pub job: Job,
    /// What the handler and its middleware returned; none if that panicked, or was dropped by a timeout.
    pub outcome: Option<Outcome>,
    task: std::marker::PhantomData<fn() -> T>,
}

impl<T: Task> Ran<T> {
    /// What a successful attempt returned; panics if it was none.
    pub fn output(&self) -> T::Output {
        let Job { state, last_error, output, .. } = &self.job;
        assert_eq!(*state, State::Succeeded, "the attempt did not succeed: {last_error:?}");
        let json = output.as_deref().unwrap_or(b"null");
        serde_json::from_slice(json).unwrap_or_else(|error| panic!("the output does not read: {error}"))
    }
}

/// Lets one attempt through and keeps its outcome. A job that is due again at once is put off until the clock moves.
fn once(kept: Arc<Mutex<Option<Outcome>>>) -> impl crate::Middleware {
    let begun = Arc::new(AtomicBool::new(false));
    move |cx: Context, next: Next| {
        let (kept, begun) = (kept.clone(), begun.clone());
        async move {
            if begun.swap(true, Ordering::SeqCst) {
                return Outcome::Snooze(Duration::from_millis(1));
            }
            let outcome = next.run(cx).await;
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome.clone());
            outcome
        }
    }
}

fn shown<T: Task>(tasks: &[T]) -> String {
    serde_json::to_string(tasks).unwrap_or_else(|error| format!("cannot be shown: {error}"))
}
