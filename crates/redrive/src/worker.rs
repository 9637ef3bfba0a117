//! `TaskWorker`: a worker whose handlers take tasks instead of bytes.

mod event;
mod handler;
mod middleware;
mod on_end;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use redrive_core::policy::presets;
use redrive_core::{Invalid, Kind, Policy, Queue, catalog};
use redrive_worker::{Observer, Settings, Settler, Summary, Worker};

#[cfg(feature = "sqlite")]
use crate::SqliteTransaction;
use crate::context::States;
use crate::schedule::driver::ScheduleDriver;
use crate::{Context, Error, JobError, Redrive, Task};
#[cfg(feature = "postgres")]
use crate::{PostgresTransaction, TransactionFuture};
use event::EventHook;
use handler::{HandlerShared, TaskHandler};
use on_end::BuildSettler;
#[cfg(feature = "postgres")]
use on_end::PostgresSettler;
#[cfg(feature = "sqlite")]
use on_end::SqliteSettler;

pub use event::Event;
pub use middleware::{Middleware, Next};
pub use on_end::EndedJob;

/// A worker on a store. Add handlers and settings, then run it. See [`Redrive::worker`].
pub struct TaskWorker {
    redrive: Redrive,
    settings: Result<Settings, Invalid>,
    states: States,
    middleware: Vec<Arc<dyn Middleware>>,
    observers: Vec<Arc<dyn Observer>>,
    runs_schedules: bool,
    handled_kinds: BTreeSet<&'static str>,
    on_end: Vec<(&'static str, BuildSettler)>,
    handlers: Vec<RegisterHandler>,
}

type RegisterHandler = Box<dyn FnOnce(Worker, &Arc<HandlerShared>) -> Result<Worker, Invalid> + Send>;

impl TaskWorker {
    pub(crate) fn new(redrive: Redrive) -> Self {
        Self {
            redrive,
            settings: Ok(Settings::default()),
            states: States::default(),
            middleware: Vec::new(),
            observers: Vec::new(),
            runs_schedules: true,
            handled_kinds: BTreeSet::new(),
            on_end: Vec::new(),
            handlers: Vec::new(),
        }
    }

    /// Sets all settings at once, and replaces those that were set before.
    ///
    /// ```
    /// use redrive::{AttemptLogging, Retention, Settings};
    /// use std::time::Duration;
    ///
    /// # fn example(redrive: redrive::Redrive) {
    /// let retention = Retention { succeeded: Duration::from_secs(60 * 60), ..Retention::default() };
    /// let settings = Settings::default().with_retention(retention).with_log(AttemptLogging::All);
    /// let worker = redrive.worker().settings(settings);
    /// # }
    /// ```
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings: Ok(settings), ..self }
    }

    /// Sets how many attempts run at once. The default is 64.
    pub fn concurrency(self, attempts: usize) -> Self {
        self.set(|settings| Ok(settings.with_concurrency(attempts)))
    }

    /// Claims jobs from these queues only. The default is all queues.
    ///
    /// ```
    /// # fn example(redrive: redrive::Redrive) {
    /// let worker = redrive.worker().queues(["mail", "reports"]).concurrency(8);
    /// # }
    /// ```
    pub fn queues<Q: AsRef<str>>(self, queues: impl IntoIterator<Item = Q>) -> Self {
        let queues: Result<Vec<Queue>, _> = queues.into_iter().map(|queue| queue.as_ref().parse()).collect();
        self.set(|settings| Ok(settings.with_queues(queues?)))
    }

    /// Sets the policy by which the worker retries its own writes to the store (settle, extend, reclaim, prune) when the store
    /// fails temporarily. It does not affect the policies of jobs, and handlers never see these retries.
    ///
    /// The default is [`crate::presets::storage`]: 5 attempts, from 100 ms doubling up to 5 s, with 10 % jitter.
    pub fn storage_retry(self, policy: Policy) -> Self {
        self.set(|settings| Ok(settings.with_storage_retry(policy)))
    }

    /// Sets the policy by which the worker retries claims when the store fails temporarily.
    ///
    /// The default is [`crate::presets::dequeue`]: 3 attempts, from 500 ms doubling up to 10 s, with 20 % jitter.
    pub fn dequeue_retry(self, policy: Policy) -> Self {
        self.set(|settings| Ok(settings.with_dequeue_retry(policy)))
    }

    /// Sets how many attempts a write to the store gets, including the first. The waits are those of
    /// [`crate::presets::storage`]. Retries of claims do not change.
    pub fn retry_attempts(self, attempts: u32) -> Self {
        self.set(|settings| settings.with_storage_retry(presets::storage()).with_retry_attempts(attempts))
    }

    /// Disables the retries of writes and claims: each call to the store is made once.
    pub fn disable_retry(self) -> Self {
        self.set(|settings| Ok(settings.disable_retry()))
    }

    /// Adds `middleware` outside all other middleware of the worker.
    #[cfg(feature = "testing")]
    pub(crate) fn outermost_middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.insert(0, Arc::new(middleware));
        self
    }

    /// Changes the settings to other valid ones.
    #[cfg(feature = "testing")]
    pub(crate) fn change_settings(self, change: impl FnOnce(Settings) -> Settings) -> Self {
        self.set(|settings| Ok(change(settings)))
    }

    /// Changes the settings. [`TaskWorker::run_until`] reports the first invalid value.
    fn set(self, change: impl FnOnce(Settings) -> Result<Settings, Invalid>) -> Self {
        Self { settings: self.settings.and_then(change), ..self }
    }

    /// Adds a value of any type, which handlers get with [`Context::state`]. It replaces a value of the same type.
    pub fn state<S: Send + Sync + 'static>(mut self, value: S) -> Self {
        self.states.put(value);
        self
    }

    /// Runs `middleware` around every attempt of every task. The middleware that was added first is the outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Calls `hook` for each event of a job on this worker. A worker can have several hooks and observers. The hook runs on the
    /// worker's own tasks, so it must be quick and must not block. A panic in it is logged, and the worker continues.
    ///
    /// ```
    /// use redrive::Event;
    ///
    /// # fn example(redrive: redrive::Redrive) {
    /// let worker = redrive.worker().on_event(|event: &Event<'_>| {
    ///     if let Event::Dead { job, reason, .. } = event {
    ///         eprintln!("{} {} is dead: {reason}", job.kind, job.id);
    ///     }
    /// });
    /// # }
    /// ```
    pub fn on_event(self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.observe(Arc::new(EventHook(hook)))
    }

    /// Adds an observer of the engine. A worker can have several observers and hooks.
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Does not enqueue jobs for schedules. Other workers on the store do. See [`Redrive::schedule`].
    pub fn without_schedules(self) -> Self {
        Self { runs_schedules: false, ..self }
    }

    /// Adds the handler for a type of task. A job whose payload cannot be parsed is dead at once, because no retry can help.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome { user: u64 }
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Remind { user: u64 }
    /// async fn welcome(job: Welcome, _cx: Context) -> Result<(), JobError> {
    ///     println!("hello {}", job.user);
    ///     Ok(())
    /// }
    ///
    /// # fn example(redrive: Redrive) {
    /// let worker = redrive.worker().on(welcome).on(|job: Remind, _cx: Context| async move {
    ///     println!("do not forget, {}", job.user);
    ///     Ok(())
    /// });
    /// # }
    /// ```
    pub fn on<T, F, Fut>(mut self, handler: F) -> Self
    where
        T: Task,
        F: Fn(T, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T::Output, JobError>> + Send + 'static,
    {
        self.handled_kinds.insert(T::KIND);
        self.handlers.push(Box::new(|worker, shared| {
            Ok(worker.on(Kind::new(T::KIND)?, TaskHandler::new(shared.clone(), handler)))
        }));
        self
    }

    /// Calls `write` in the transaction that ends a job of type `T` as succeeded, dead or cancelled. The closure can write to the
    /// application's tables in the store's SQLite file: its writes and the end of the job are committed together. The closure
    /// also runs if a job ends because its worker crashed. A worker that has lost its lease writes nothing.
    ///
    /// If the closure fails or panics, the transaction is rolled back. A temporary error of the store is retried. After any other
    /// error, and after a panic, the attempt has failed: the job's last error and its attempt log name the cause, and the policy
    /// decides whether another attempt follows. A job never succeeds without its closure. If the closure fails for a job that ends
    /// as dead or cancelled, the job ends without it, and its last error says so.
    ///
    /// All other writes to the file wait while the closure runs. It is not called for a job that is cancelled while it is not
    /// running, because no worker ends such a job; see [`SqliteTransaction::cancel`]. It is also not called for a job whose payload
    /// cannot be read.
    ///
    /// ```
    /// # use redrive::{Context, EndedJob, Error, Redrive, SqliteTransaction, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Ship { order: i64 }
    /// # impl Task for Ship { const KIND: &'static str = "ship"; type Output = (); }
    /// # fn example(redrive: Redrive) {
    /// let worker = redrive.worker().on(|_: Ship, _: Context| async { Ok(()) }).on_end(
    ///     |tx: &mut SqliteTransaction<'_, '_, '_>, ship: &Ship, ended: &EndedJob| {
    ///         let shipped = ended.state == State::Succeeded;
    ///         let sql = "UPDATE orders SET shipped = ?2 WHERE id = ?1";
    ///         tx.connection().execute(sql, (ship.order, shipped))?;
    ///         Ok(())
    ///     },
    /// );
    /// # }
    /// ```
    #[cfg(feature = "sqlite")]
    pub fn on_end<T, F>(mut self, write: F) -> Self
    where
        T: Task,
        F: Fn(&mut SqliteTransaction<'_, '_, '_>, &T, &EndedJob) -> Result<(), Error> + Send + Sync + 'static,
    {
        self.on_end.push((
            T::KIND,
            Box::new(move |redrive| {
                let store = redrive.sqlite().ok()?.clone();
                let (redrive, write) = (redrive.clone(), Arc::new(write));
                Some(Arc::new(SqliteSettler { redrive, store, write, task: PhantomData::<fn(T)> }))
            }),
        ));
        self
    }

    /// Calls `write` in the transaction that ends a job of type `T`, like [`TaskWorker::on_end`], on Postgres. If a worker has
    /// both, it uses the one for its store.
    ///
    /// ```
    /// # use redrive::{Context, Redrive, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Ship { order: i64 }
    /// # impl Task for Ship { const KIND: &'static str = "ship"; type Output = (); }
    /// # fn example(redrive: Redrive) {
    /// let worker = redrive.worker().on(|_: Ship, _: Context| async { Ok(()) }).on_end_postgres(|tx, ship: &Ship, ended| {
    ///     Box::pin(async move {
    ///         let shipped = ended.state == State::Succeeded;
    ///         let sql = "UPDATE orders SET shipped = $2 WHERE id = $1";
    ///         tx.client().execute(sql, &[&ship.order, &shipped]).await?;
    ///         Ok(())
    ///     })
    /// });
    /// # }
    /// ```
    #[cfg(feature = "postgres")]
    pub fn on_end_postgres<T, F>(mut self, write: F) -> Self
    where
        T: Task + Sync,
        F: for<'a> Fn(&'a PostgresTransaction<'a>, &'a T, &'a EndedJob) -> TransactionFuture<'a, (), Error>
            + Send
            + Sync
            + 'static,
    {
        self.on_end.push((
            T::KIND,
            Box::new(move |redrive| {
                let store = redrive.postgres().ok()?.clone();
                let (redrive, write) = (redrive.clone(), Arc::new(write));
                Some(Arc::new(PostgresSettler { redrive, store, write, task: PhantomData::<fn(T)> }))
            }),
        ));
        self
    }

    /// The settlers of the kinds with an on_end closure. Fails if such a closure would never be called.
    fn settlers(&mut self) -> Result<BTreeMap<&'static str, Arc<dyn Settler>>, Invalid> {
        let kinds: BTreeSet<&str> = self.on_end.iter().map(|(kind, _)| *kind).collect();
        let settlers = self.on_end.drain(..).filter_map(|(kind, build)| Some((kind, build(&self.redrive)?)));
        let settlers: BTreeMap<_, _> = settlers.collect();
        for kind in kinds {
            if !settlers.contains_key(kind) {
                return Err(Invalid::new(
                    "on_end",
                    format!(
                        "of kind {kind:?} is for another store; use on_end with SQLite, on_end_postgres with Postgres"
                    ),
                ));
            }
            if !self.handled_kinds.contains(kind) {
                return Err(Invalid::new(
                    "on_end",
                    format!("of kind {kind:?} needs a handler of that kind; add one with TaskWorker::on"),
                ));
            }
        }
        Ok(settlers)
    }

    /// Runs the worker until `shutdown` is ready, then waits for running attempts and hands the rest back to the store. Fails if
    /// a setting is invalid.
    ///
    /// ```
    /// # use redrive::{Context, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// # let id = redrive.enqueue(Welcome).await?.id();
    /// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    /// let worker = redrive.worker().on(|_: Welcome, _: Context| async { Ok(()) });
    /// # let stop = async { redrive.result::<Welcome>(id).await.unwrap(); drop(stop); };
    /// let run = worker.run_until(async { drop(stopped.await) });
    /// # let (summary, ()) = tokio::join!(run, stop);
    /// # let run = std::future::ready(summary);
    /// let summary = run.await?;
    /// assert_eq!(summary.succeeded, 1);
    /// # Ok(()) }
    /// ```
    pub async fn run_until(mut self, shutdown: impl Future<Output = ()> + Send) -> Result<Summary, Error> {
        let settlers = self.settlers()?;
        let settings = self.settings?;
        let poll = settings.poll;
        // Programs that enqueue without this crate, for example in SQL, use the default policy if they name none.
        if let Err(error) = catalog::default(&**self.redrive.backend()).await {
            tracing::warn!(%error, "the default policy could not be registered");
        }
        let mut worker = Worker::new(self.redrive.backend().clone(), settings)?;
        for observer in self.observers {
            worker = worker.observe(observer);
        }
        let shared = Arc::new(HandlerShared {
            redrive: self.redrive,
            states: Arc::new(self.states),
            middleware: self.middleware.into(),
            settlers,
        });
        for register in self.handlers {
            worker = register(worker, &shared)?;
        }
        let redrive = shared.redrive.clone();
        // From here on only the worker holds the shared parts, and drops them when it has ended.
        drop(shared);
        let schedules = self.runs_schedules.then(|| ScheduleDriver::new(redrive.clone(), poll));
        Ok(worker.run_until(run_background_until(redrive, schedules, shutdown)).await?)
    }
}

/// Enqueues for schedules and removes unused bodies and policies until `shutdown` is ready. All of this stops before the worker
/// waits for its running attempts.
async fn run_background_until(
    redrive: Redrive,
    schedules: Option<ScheduleDriver>,
    shutdown: impl Future<Output = ()>,
) {
    let schedules = async {
        match schedules {
            Some(driver) => driver.run().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = schedules => {}
        () = redrive.collect_bodies_hourly() => {}
        () = redrive.collect_policies_daily() => {}
        () = shutdown => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Set = fn(TaskWorker) -> TaskWorker;

    async fn settings(set: Set) -> Result<Settings, Invalid> {
        set(Redrive::open("sqlite::memory:").await.unwrap().worker()).settings
    }

    #[tokio::test]
    async fn each_retry_setting_changes_one_policy_only() {
        let (storage, dequeue, other) = (presets::storage(), presets::dequeue(), presets::upload());
        let ten = storage.clone().with_max_attempts(10).unwrap();
        let cases: [(Set, &Policy, &Policy); 6] = [
            (|worker| worker, &storage, &dequeue),
            (|worker| worker.storage_retry(presets::upload()), &other, &dequeue),
            (|worker| worker.dequeue_retry(presets::upload()), &storage, &other),
            (|worker| worker.retry_attempts(10), &ten, &dequeue),
            (|worker| worker.storage_retry(presets::upload()).retry_attempts(10), &ten, &dequeue),
            (|worker| worker.dequeue_retry(presets::upload()).retry_attempts(10), &ten, &other),
        ];
        for (at, (set, storage, dequeue)) in cases.into_iter().enumerate() {
            let settings = settings(set).await.unwrap();
            assert_eq!((&settings.storage_retry, &settings.dequeue_retry), (storage, dequeue), "case {at}");
        }
        let off = settings(TaskWorker::disable_retry).await.unwrap();
        assert_eq!((off.storage_retry.max_attempts.get(), off.dequeue_retry.max_attempts.get()), (1, 1));
    }

    #[tokio::test]
    async fn an_invalid_setting_is_reported_with_its_name_when_the_worker_runs() {
        let cases: [(Set, &str); 3] = [
            (|worker| worker.retry_attempts(0).concurrency(3), "maxAttempts"),
            (|worker| worker.queues(["fine", ""]), "queue"),
            (|worker| worker.concurrency(0), "concurrency"),
        ];
        for (set, field) in cases {
            let worker = set(Redrive::open("sqlite::memory:").await.unwrap().worker());
            match worker.run_until(std::future::ready(())).await {
                Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
                other => panic!("{field}: {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn queues_and_concurrency_are_set() {
        let settings = settings(|worker| worker.queues(["a", "b"]).concurrency(3)).await.unwrap();
        assert_eq!(settings.queues.iter().map(Queue::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(settings.concurrency, 3);
    }
}
