//! The handle on a store: enqueue, operate, work.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use redrive_core::records::{Change, EVERY_QUEUE, Expect, PAUSED};
use redrive_core::steps::{Hold, RACE_PLACES, Step};
use redrive_core::store::{Backend, Cancelled, Discarded, PageRequest};
use redrive_core::{Attempt, Job, JobId, Policy, PolicyRef, Queue, catalog};

#[cfg(feature = "postgres")]
use redrive_store_postgres::{Options as PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
use redrive_store_redis::{Options as RedisOptions, RedisStore};
#[cfg(feature = "sqlite")]
use redrive_store_sqlite::SqliteStore;

use crate::open::{self, Place};
use crate::trace::Trace;
use crate::{Enqueue, EnqueueMiddleware, Error, Task, TaskWorker};

/// A handle on a store; cheap to clone.
#[derive(Clone)]
pub struct Redrive {
    inner: Arc<Inner>,
    /// What jobs pass on their way in.
    pub(crate) gates: Arc<[Arc<dyn EnqueueMiddleware>]>,
    /// Where large payloads are kept.
    #[cfg(feature = "bodies")]
    pub(crate) bodies: Option<redrive_bodies::Bodies>,
    /// The trace that enqueues belong to, in a handler.
    pub(crate) trace: Option<Trace>,
}

struct Inner {
    backend: Arc<dyn Backend>,
    /// The same store again, if it can work inside transactions of others.
    #[cfg(feature = "postgres")]
    postgres: Option<PostgresStore>,
    /// The same store again, if it can run transactions for others.
    #[cfg(feature = "sqlite")]
    sqlite: Option<SqliteStore>,
    /// Policies that are known to be in the store, so that each is written once in a process.
    stored: Mutex<HashSet<PolicyRef>>,
}

impl Redrive {
    /// Opens the store at `address`: `sqlite:FILE`, `sqlite::memory:` for one that is gone with the process, or
    /// `postgres://USER:PASSWORD@HOST/DATABASE` for one that several nodes share, or `redis://USER:PASSWORD@HOST` and
    /// `redis-cluster://USER:PASSWORD@HOST` for high volume.
    ///
    /// ```
    /// # use redrive::Redrive;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let redrive = Redrive::open("sqlite::memory:").await?;
    /// let error = Redrive::open("mysql://db.example/jobs").await.unwrap_err();
    /// println!("{error}"); // names the addresses that this build knows
    /// # Ok(()) }
    /// ```
    pub async fn open(address: &str) -> Result<Self, Error> {
        match Place::of(address)? {
            #[cfg(feature = "sqlite")]
            Place::Sqlite(path) => Ok(Self::on_sqlite(open::sqlite(path).await?)),
            #[cfg(not(feature = "sqlite"))]
            Place::Sqlite(_) => Err(open::lacks("sqlite")),
            #[cfg(feature = "postgres")]
            Place::Postgres(address) => {
                Ok(Self::on_postgres(PostgresStore::open(address, PostgresOptions::default()).await?))
            }
            #[cfg(not(feature = "postgres"))]
            Place::Postgres(_) => Err(open::lacks("postgres")),
            #[cfg(feature = "redis")]
            Place::Redis(address) => {
                Ok(Self::on(Arc::new(RedisStore::open(address, RedisOptions::default()).await?)))
            }
            #[cfg(not(feature = "redis"))]
            Place::Redis(_) => Err(open::lacks("redis")),
        }
    }

    /// Opens a store that several nodes can share, without changing it: one of an older release, or none at all, is refused.
    pub async fn open_unchanged(address: &str) -> Result<Self, Error> {
        match Place::of(address)? {
            #[cfg(feature = "postgres")]
            Place::Postgres(address) => {
                let options = PostgresOptions { migrate: false, ..PostgresOptions::default() };
                Ok(Self::on_postgres(PostgresStore::open(address, options).await?))
            }
            #[cfg(not(feature = "postgres"))]
            Place::Postgres(_) => Err(open::lacks("postgres")),
            #[cfg(feature = "redis")]
            Place::Redis(address) => {
                let options = RedisOptions { create: false, ..RedisOptions::default() };
                Ok(Self::on(Arc::new(RedisStore::open(address, options).await?)))
            }
            #[cfg(not(feature = "redis"))]
            Place::Redis(_) => Err(open::lacks("redis")),
            Place::Sqlite(_) => Err(Error::Address(
                "a SQLite file cannot be opened without bringing it up to date".to_owned(),
            )),
        }
    }

    /// A handle on a store that is open already.
    pub fn on(backend: Arc<dyn Backend>) -> Self {
        Self::of(Inner {
            backend,
            #[cfg(feature = "postgres")]
            postgres: None,
            #[cfg(feature = "sqlite")]
            sqlite: None,
            stored: Mutex::default(),
        })
    }

    /// A handle on a SQLite store, which can run transactions for others.
    ///
    /// ```
    /// use redrive::{Redrive, SqliteOptions, SqliteStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = SqliteStore::open_in_memory_with(SqliteOptions::default())?;
    /// let redrive = Redrive::on_sqlite(store);
    /// # redrive.backend().stats().await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "sqlite")]
    pub fn on_sqlite(store: SqliteStore) -> Self {
        Self::of(Inner {
            backend: Arc::new(store.clone()),
            #[cfg(feature = "postgres")]
            postgres: None,
            sqlite: Some(store),
            stored: Mutex::default(),
        })
    }

    /// A handle on a Postgres store, which can enqueue inside transactions of others.
    #[cfg(feature = "postgres")]
    pub fn on_postgres(store: PostgresStore) -> Self {
        Self::of(Inner {
            backend: Arc::new(store.clone()),
            postgres: Some(store),
            #[cfg(feature = "sqlite")]
            sqlite: None,
            stored: Mutex::default(),
        })
    }

    fn of(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
            gates: Arc::new([]),
            #[cfg(feature = "bodies")]
            bodies: None,
            trace: None,
        }
    }

    /// Enqueues a task: await it, or set options first.
    ///
    /// ```
    /// # use redrive::{Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Welcome;
    /// # impl Task for Welcome { const KIND: &'static str = "welcome"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let day = std::time::Duration::from_secs(24 * 60 * 60);
    /// let first = redrive.enqueue(Welcome).key("user-7").delay(day).await?;
    /// let again = redrive.enqueue(Welcome).key("user-7").await?;
    /// assert_eq!(first.id(), again.id());
    /// # Ok(()) }
    /// ```
    pub fn enqueue<T: Task>(&self, task: T) -> Enqueue {
        Enqueue::new(self.clone(), &task)
    }

    /// A worker on this store; give it handlers and run it.
    ///
    /// ```
    /// # use redrive::{Context, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] #[task(output = String)] struct Welcome { user: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Welcome { user: 7 }).await?.id();
    /// let worker = redrive.worker().on(|job: Welcome, _cx: Context| async move {
    ///     Ok(format!("hello {}", job.user))
    /// });
    /// // A program runs until `redrive::shutdown_signal()`; this one until the job has ended.
    /// worker.run_until(async { assert_eq!(redrive.result::<Welcome>(id).await.unwrap(), "hello 7") }).await?;
    /// # Ok(()) }
    /// ```
    pub fn worker(&self) -> TaskWorker {
        TaskWorker::new(self.clone())
    }

    /// A job as it is now.
    ///
    /// ```
    /// # use redrive::{Redrive, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Welcome).queue("mail").await?.id();
    /// let job = redrive.get(id).await?.expect("it was just enqueued");
    /// assert_eq!((job.state, job.queue.as_str()), (State::Pending, "mail"));
    /// # Ok(()) }
    /// ```
    pub async fn get(&self, id: JobId) -> Result<Option<Job>, Error> {
        Ok(self.backend().get(vec![id]).await?.pop().flatten())
    }

    /// The first `limit` attempts in a job's log, oldest first.
    ///
    /// Workers log the attempts that failed, timed out, panicked or were lost, of all runs. A successful attempt is not in the log
    /// unless the worker has [`crate::KeepLog::All`] in its [`crate::Settings`]. The log is removed with the job.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Print;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// # let id = redrive.enqueue(Print).await?.id();
    /// # let ended = async { redrive.result::<Print>(id).await.unwrap_err(); };
    /// let worker = redrive.worker().on(|_: Print, _: Context| async { Err(JobError::reject("no paper")) });
    /// # worker.run_until(ended).await?;
    /// // Once the job has ended:
    /// let attempts = redrive.attempts(id, 100).await?;
    /// assert_eq!(attempts[0].entry.error.as_deref(), Some("no paper"));
    /// # Ok(()) }
    /// ```
    pub async fn attempts(&self, id: JobId, limit: usize) -> Result<Vec<Attempt>, Error> {
        Ok(self.backend().attempts(id, PageRequest::first(limit)).await?.items)
    }

    /// Ends a job that waits; asks for the end of one that runs. Everything below it goes with it: children and theirs.
    ///
    /// ```
    /// # use redrive::{Cancelled, Redrive, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Welcome).await?.id();
    /// assert_eq!(redrive.cancel(id).await?, Cancelled::Done);
    /// assert_eq!(redrive.cancel(id).await?, Cancelled::Ended(State::Cancelled));
    /// # Ok(()) }
    /// ```
    pub async fn cancel(&self, id: JobId) -> Result<Cancelled, Error> {
        let answer = self.backend().cancel(vec![id]).await?.pop().unwrap_or(Cancelled::NotFound);
        if answer == Cancelled::Done
            && let Some(parent) = self.get(id).await?.and_then(|job| job.parent)
        {
            self.backend().resume(vec![parent.id]).await?;
        }
        Ok(answer)
    }

    /// The steps that a job has remembered, from place `from` on.
    ///
    /// ```
    /// # use redrive::{Context, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Order;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// # let id = redrive.enqueue(Order).await?.id();
    /// let worker = redrive.worker().on(|_: Order, cx: Context| async move {
    ///     cx.step("charge", || async { Ok::<u32, std::io::Error>(1) }).await?;
    ///     Ok(())
    /// });
    /// # worker.run_until(async { redrive.result::<Order>(id).await.unwrap() }).await?;
    /// // Once the job has ended:
    /// let steps = redrive.steps(id, 0, 100).await?;
    /// assert_eq!(steps[0].name.as_str(), "charge");
    /// # Ok(()) }
    /// ```
    pub async fn steps(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, Error> {
        let steps = self.backend().recall(id, from, limit).await?;
        // The marks of races behind them are of no use to anyone but a replay.
        Ok(steps.into_iter().filter(|step| step.place < RACE_PLACES).collect())
    }

    /// Pauses a job: one that waits for its time is set aside at once, one that runs makes no further attempt.
    ///
    /// ```
    /// # use redrive::{Hold, Redrive, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Welcome).await?.id();
    /// assert_eq!(redrive.pause_job(id).await?, Hold::Done(State::Waiting));
    /// assert_eq!(redrive.resume_job(id).await?, Hold::Done(State::Pending));
    /// # Ok(()) }
    /// ```
    pub async fn pause_job(&self, id: JobId) -> Result<Hold, Error> {
        Ok(self.backend().hold(vec![id]).await?.pop().unwrap_or(Hold::NotFound))
    }

    /// Lets a paused job go on.
    pub async fn resume_job(&self, id: JobId) -> Result<Hold, Error> {
        Ok(self.backend().unhold(vec![id]).await?.pop().unwrap_or(Hold::NotFound))
    }

    /// Removes a dead job with its log.
    ///
    /// ```
    /// # use redrive::{Discarded, Redrive, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Welcome).await?.id();
    /// assert_eq!(redrive.discard(id).await?, Discarded::NotDead(State::Pending));
    /// # Ok(()) }
    /// ```
    pub async fn discard(&self, id: JobId) -> Result<Discarded, Error> {
        let answer = self.backend().discard(vec![id]).await?.pop();
        Ok(answer.unwrap_or(Discarded::NotFound))
    }

    /// Stops claims from a queue, or from all; what is running goes on.
    ///
    /// ```
    /// # use redrive::{Queue, Redrive};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let mail = Queue::new("mail")?;
    /// redrive.pause(Some(&mail)).await?;
    /// // While it is paused, jobs may be enqueued, and none is claimed.
    /// redrive.resume(Some(&mail)).await?;
    /// # Ok(()) }
    /// ```
    pub async fn pause(&self, queue: Option<&Queue>) -> Result<(), Error> {
        self.set_paused(queue, Some(Vec::new())).await
    }

    /// Allows claims again.
    pub async fn resume(&self, queue: Option<&Queue>) -> Result<(), Error> {
        self.set_paused(queue, None).await
    }

    /// The store itself.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// Lets the store prepare for a job that will come in a transaction.
    pub(crate) async fn expect(&self, job: &redrive_core::NewJob) -> Result<(), Error> {
        #[cfg(feature = "postgres")]
        if let Some(store) = &self.inner.postgres {
            store.expect(std::slice::from_ref(job)).await?;
        }
        let _ = job;
        Ok(())
    }

    /// The store as one on Postgres.
    #[cfg(feature = "postgres")]
    pub(crate) fn postgres(&self) -> Result<&PostgresStore, Error> {
        let other =
            || Error::Address("only a store on Postgres works inside transactions of others".to_owned());
        self.inner.postgres.as_ref().ok_or_else(other)
    }

    /// The store as one on SQLite.
    #[cfg(feature = "sqlite")]
    pub(crate) fn sqlite(&self) -> Result<&SqliteStore, Error> {
        let other = || Error::Address("only a store on SQLite runs transactions for others".to_owned());
        self.inner.sqlite.as_ref().ok_or_else(other)
    }

    async fn set_paused(&self, queue: Option<&Queue>, value: Option<Vec<u8>>) -> Result<(), Error> {
        let id = queue.map_or(EVERY_QUEUE, Queue::as_str).to_owned();
        self.backend().write(Change { kind: PAUSED.to_owned(), id, expect: Expect::Any, value }).await?;
        Ok(())
    }

    /// The reference of a policy, which is in the store when this returns.
    pub(crate) async fn store_policy(&self, policy: &Policy) -> Result<PolicyRef, Error> {
        let reference = PolicyRef::inline(policy);
        if !self.stored().contains(&reference) {
            catalog::put_inline(&**self.backend(), policy).await?;
            self.stored().insert(reference.clone());
        }
        Ok(reference)
    }

    fn stored(&self) -> std::sync::MutexGuard<'_, HashSet<PolicyRef>> {
        self.inner.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Redrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redrive").finish_non_exhaustive()
    }
}
