//! A worker whose handlers take tasks instead of bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use redrive_core::policy::presets;
use redrive_core::{Invalid, Kind, Policy, Queue, catalog};
use redrive_worker::{Observer, Settings, Settler, Summary, Worker};

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::End;
#[cfg(feature = "sqlite")]
use crate::SqliteTransaction;
use crate::context::States;
#[cfg(feature = "postgres")]
use crate::ending::InPostgres;
#[cfg(feature = "sqlite")]
use crate::ending::InSqlite;
use crate::ending::Make;
use crate::event::Hook;
use crate::handle::{Handle, Shared};
use crate::schedule::run::Driver;
use crate::{Context, Error, Event, JobError, Middleware, Redrive, Task};
#[cfg(feature = "postgres")]
use crate::{PostgresTransaction, Work};

/// A worker under construction.
pub struct TaskWorker {
    redrive: Redrive,
    settings: Result<Settings, Invalid>,
    states: States,
    around: Vec<Arc<dyn Middleware>>,
    observers: Vec<Arc<dyn Observer>>,
    schedules: bool,
    handled: BTreeSet<&'static str>,
    endings: Vec<(&'static str, Make)>,
    register: Vec<Register>,
}

type Register = Box<dyn FnOnce(Worker, &Arc<Shared>) -> Result<Worker, Invalid> + Send>;

impl TaskWorker {
    pub(crate) fn new(redrive: Redrive) -> Self {
        Self {
            redrive,
            settings: Ok(Settings::default()),
            states: States::default(),
            around: Vec::new(),
            observers: Vec::new(),
            schedules: true,
            handled: BTreeSet::new(),
            endings: Vec::new(),
            register: Vec::new(),
        }
    }

    /// Works under `settings`, in place of all that was set before.
    ///
    /// ```
    /// use redrive::{KeepLog, Retention, Settings};
    /// use std::time::Duration;
    ///
    /// # fn example(redrive: redrive::Redrive) {
    /// let retention = Retention { succeeded: Duration::from_secs(60 * 60), ..Retention::default() };
    /// let settings = Settings::default().with_retention(retention).with_log(KeepLog::All);
    /// let worker = redrive.worker().settings(settings);
    /// # }
    /// ```
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings: Ok(settings), ..self }
    }

    /// Runs at most `attempts` at once; 64 otherwise.
    pub fn concurrency(self, attempts: usize) -> Self {
        self.set(|settings| Ok(settings.with_concurrency(attempts)))
    }

    /// Claims from these queues only; from all otherwise.
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

    /// Retries what modifies a job after its claim (settle, extend, reclaim, prune) by `policy`, when the store fails in
    /// a way that may pass. It has nothing to do with the jobs' own policies, and handlers never see it.
    ///
    /// [`crate::presets::storage`] otherwise: 5 attempts, 100 ms doubling up to 5 s, give or take 10 %.
    pub fn storage_retry(self, policy: Policy) -> Self {
        self.set(|settings| Ok(settings.with_storage_retry(policy)))
    }

    /// Retries claims by `policy`, when the store fails in a way that may pass.
    ///
    /// [`crate::presets::dequeue`] otherwise: 3 attempts, 500 ms doubling up to 10 s, give or take 20 %.
    pub fn dequeue_retry(self, policy: Policy) -> Self {
        self.set(|settings| Ok(settings.with_dequeue_retry(policy)))
    }

    /// Tries storage operations up to `attempts` times, the first included. All else about storage retry is as
    /// [`crate::presets::storage`] has it, and claims are retried as before.
    pub fn retry_attempts(self, attempts: u32) -> Self {
        self.set(|settings| settings.with_storage_retry(presets::storage()).with_retry_attempts(attempts))
    }

    /// Tries every operation of the store exactly once, claims too.
    pub fn disable_retry(self) -> Self {
        self.set(|settings| Ok(settings.disable_retry()))
    }

    /// Runs `middleware` around all that was added before.
    #[cfg(feature = "testing")]
    pub(crate) fn outermost(mut self, middleware: impl Middleware) -> Self {
        self.around.insert(0, Arc::new(middleware));
        self
    }

    /// Changes the settings in ways that are always legal.
    #[cfg(feature = "testing")]
    pub(crate) fn adjust(self, change: impl FnOnce(Settings) -> Settings) -> Self {
        self.set(|settings| Ok(change(settings)))
    }

    /// Changes the settings; the first illegal value is kept for [`TaskWorker::run_until`] to report.
    fn set(self, change: impl FnOnce(Settings) -> Result<Settings, Invalid>) -> Self {
        Self { settings: self.settings.and_then(change), ..self }
    }

    /// Gives handlers a value of any type: [`Context::state`] finds it by that. The last one of a type counts.
    pub fn state<S: Send + Sync + 'static>(mut self, value: S) -> Self {
        self.states.put(value);
        self
    }

    /// Runs `middleware` around every attempt, whatever its task. The first one added is the outermost.
    pub fn around(mut self, middleware: impl Middleware) -> Self {
        self.around.push(Arc::new(middleware));
        self
    }

    /// Calls `hook` with what happens to jobs on this worker, beside other hooks and observers. It is called on the
    /// worker's own tasks: it must be quick and must not block. A panic in it is logged, and the worker continues.
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
        self.observe(Arc::new(Hook(hook)))
    }

    /// Tells `observer` what the engine does, beside other observers and hooks.
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Leaves schedules to other workers; see [`Redrive::schedule`].
    pub fn without_schedules(self) -> Self {
        Self { schedules: false, ..self }
    }

    /// Runs tasks of a type with `handler`. A payload that does not parse is dead at once: no retry would mend it.
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
        self.handled.insert(T::KIND);
        self.register.push(Box::new(|worker, shared| {
            Ok(worker.on(Kind::new(T::KIND)?, Handle::new(shared.clone(), handler)))
        }));
        self
    }

    /// Writes into the store's SQLite file with the end of each job of a type: in the transaction that makes it
    /// succeeded, dead or cancelled, or not at all. That goes for the end of a job too whose last worker crashed, and
    /// under a lost lease nothing is written.
    ///
    /// If the closure fails or panics, the transaction is rolled back. An error of the store that may pass is retried. After
    /// any other error, and after a panic, the attempt has failed: the job's last error and its attempt log name the cause,
    /// and the policy decides whether another attempt follows. A job never succeeds without this closure. If the closure
    /// fails for a job that is to end as dead or cancelled, the job ends without it, and its last error says so.
    ///
    /// The closure holds up every other write while it runs. It is not called for a job that is cancelled while nobody
    /// works on it, since no worker ends that: see [`SqliteTransaction::cancel`]. Nor is it for one whose payload cannot be
    /// read.
    ///
    /// ```
    /// # use redrive::{Context, End, Error, Redrive, SqliteTransaction, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Ship { order: i64 }
    /// # impl Task for Ship { const KIND: &'static str = "ship"; type Output = (); }
    /// # fn example(redrive: Redrive) {
    /// let worker = redrive.worker().on(|_: Ship, _: Context| async { Ok(()) }).ending(
    ///     |tx: &mut SqliteTransaction<'_, '_, '_>, ship: &Ship, end: &End| {
    ///         let shipped = end.state == State::Succeeded;
    ///         let sql = "UPDATE orders SET shipped = ?2 WHERE id = ?1";
    ///         tx.connection().execute(sql, (ship.order, shipped))?;
    ///         Ok(())
    ///     },
    /// );
    /// # }
    /// ```
    #[cfg(feature = "sqlite")]
    pub fn ending<T, F>(mut self, write: F) -> Self
    where
        T: Task,
        F: Fn(&mut SqliteTransaction<'_, '_, '_>, &T, &End) -> Result<(), Error> + Send + Sync + 'static,
    {
        self.endings.push((
            T::KIND,
            Box::new(move |redrive| {
                let store = redrive.sqlite().ok()?.clone();
                let (redrive, write) = (redrive.clone(), Arc::new(write));
                Some(Arc::new(InSqlite { redrive, store, write, task: PhantomData::<fn(T)> }))
            }),
        ));
        self
    }

    /// Writes into the store's Postgres database with the end of each job of a type, as [`TaskWorker::ending`] does on
    /// SQLite. A worker may be given both: the one for its store counts.
    ///
    /// ```
    /// # use redrive::{Context, Redrive, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Ship { order: i64 }
    /// # impl Task for Ship { const KIND: &'static str = "ship"; type Output = (); }
    /// # fn example(redrive: Redrive) {
    /// let worker = redrive.worker().on(|_: Ship, _: Context| async { Ok(()) }).ending_postgres(|tx, ship: &Ship, end| {
    ///     Box::pin(async move {
    ///         let shipped = end.state == State::Succeeded;
    ///         let sql = "UPDATE orders SET shipped = $2 WHERE id = $1";
    ///         tx.client().execute(sql, &[&ship.order, &shipped]).await?;
    ///         Ok(())
    ///     })
    /// });
    /// # }
    /// ```
    #[cfg(feature = "postgres")]
    pub fn ending_postgres<T, F>(mut self, write: F) -> Self
    where
        T: Task + Sync,
        F: for<'a> Fn(&'a PostgresTransaction<'a>, &'a T, &'a End) -> Work<'a, (), Error>
            + Send
            + Sync
            + 'static,
    {
        self.endings.push((
            T::KIND,
            Box::new(move |redrive| {
                let store = redrive.postgres().ok()?.clone();
                let (redrive, write) = (redrive.clone(), Arc::new(write));
                Some(Arc::new(InPostgres { redrive, store, write, task: PhantomData::<fn(T)> }))
            }),
        ));
        self
    }

    /// What settles jobs of some kinds in the store's place. An ending that would never be written is refused.
    fn settlers(&mut self) -> Result<BTreeMap<&'static str, Arc<dyn Settler>>, Invalid> {
        let asked: BTreeSet<&str> = self.endings.iter().map(|(kind, _)| *kind).collect();
        let made = self.endings.drain(..).filter_map(|(kind, make)| Some((kind, make(&self.redrive)?)));
        let made: BTreeMap<_, _> = made.collect();
        for kind in asked {
            if !made.contains_key(kind) {
                return Err(Invalid::new(
                    "ending",
                    format!("of {kind:?} is for another store than this one"),
                ));
            }
            if !self.handled.contains(kind) {
                return Err(Invalid::new("ending", format!("of {kind:?} needs a handler of that kind")));
            }
        }
        Ok(made)
    }

    /// Works until `shutdown` is ready, then drains and releases. Settings that are illegal are refused here, by name.
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
        let endings = self.settlers()?;
        let settings = self.settings?;
        let poll = settings.poll;
        // For those who enqueue by other means than this crate and name no policy.
        if let Err(error) = catalog::default(&**self.redrive.backend()).await {
            tracing::warn!(%error, "the default policy could not be registered");
        }
        let mut worker = Worker::new(self.redrive.backend().clone(), settings)?;
        for observer in self.observers {
            worker = worker.observe(observer);
        }
        let shared = Arc::new(Shared {
            redrive: self.redrive,
            states: Arc::new(self.states),
            around: self.around.into(),
            endings,
        });
        for register in self.register {
            worker = register(worker, &shared)?;
        }
        let redrive = shared.redrive.clone();
        // The worker owns all that belongs to its handlers, and drops it when it has ended.
        drop(shared);
        let schedules = self.schedules.then(|| Driver::new(redrive.clone(), poll));
        Ok(worker.run_until(tend_until(redrive, schedules, shutdown)).await?)
    }
}

/// Drives schedules and removes bodies until `shutdown` is ready: what begins then is not their doing.
async fn tend_until(redrive: Redrive, schedules: Option<Driver>, shutdown: impl Future<Output = ()>) {
    let schedules = async {
        match schedules {
            Some(driver) => driver.run().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = schedules => {}
        () = redrive.collect_bodies_hourly() => {}
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
    async fn each_retry_setting_changes_what_it_names_and_nothing_else() {
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
    async fn an_illegal_setting_is_refused_by_name_when_the_worker_runs() {
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
    async fn queues_and_concurrency_are_taken_by_name() {
        let settings = settings(|worker| worker.queues(["a", "b"]).concurrency(3)).await.unwrap();
        assert_eq!(settings.queues.iter().map(Queue::as_str).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(settings.concurrency, 3);
    }
}
