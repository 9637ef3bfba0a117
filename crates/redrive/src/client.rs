//! `Redrive`, the handle on a store: opens it, enqueues tasks, starts workers, reads jobs.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use redrive_core::catalog::InlinePolicyCache;
use redrive_core::steps::{RACE_PLACES, Step};
use redrive_core::store::{Backend, PageRequest};
use redrive_core::{Attempt, Job, JobId, Policy, PolicyRef, State, Timestamp};

#[cfg(feature = "postgres")]
use redrive_store_postgres::{Options as PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
use redrive_store_redis::{Options as RedisOptions, RedisStore};
#[cfg(feature = "sqlite")]
use redrive_store_sqlite::SqliteStore;

use crate::address::{self, StoreAddress};
use crate::trace::Trace;
use crate::{Enqueue, EnqueueMiddleware, Error, Task, TaskWorker};

/// A handle on a store. Clones are cheap and share the store.
#[derive(Clone)]
pub struct Redrive {
    inner: Arc<Inner>,
    /// Sees every job before it is enqueued.
    pub(crate) enqueue_middleware: Arc<[Arc<dyn EnqueueMiddleware>]>,
    /// The object store for large payloads.
    #[cfg(feature = "bodies")]
    pub(crate) bodies: Option<redrive_bodies::Bodies>,
    /// The trace of the job whose handler has this handle. Jobs that the handler enqueues join it. None outside handlers.
    pub(crate) trace: Option<Trace>,
}

struct Inner {
    backend: Arc<dyn Backend>,
    /// The same store, if it is on Postgres: it can enqueue inside a transaction of the caller.
    #[cfg(feature = "postgres")]
    postgres: Option<PostgresStore>,
    /// The same store, if it is on SQLite: it can run transactions for the caller.
    #[cfg(feature = "sqlite")]
    sqlite: Option<SqliteStore>,
    /// Avoids a second write of an inline policy that this handle stored a short time ago.
    inline_policies: InlinePolicyCache,
}

impl Redrive {
    /// Opens the store at `address`, and creates or migrates its tables if needed. An address is one of
    ///
    /// - `sqlite:FILE`,
    /// - `sqlite::memory:`, which ends with the process,
    /// - `postgres://USER:PASSWORD@HOST/DATABASE`, which several nodes can share,
    /// - `redis://USER:PASSWORD@HOST` or `redis-cluster://USER:PASSWORD@HOST`, for high volume.
    ///
    /// ```
    /// # use redrive::Redrive;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let redrive = Redrive::open("sqlite::memory:").await?;
    /// let error = Redrive::open("mysql://db.example/jobs").await.unwrap_err();
    /// println!("{error}"); // lists the possible addresses
    /// # Ok(()) }
    /// ```
    pub async fn open(address: &str) -> Result<Self, Error> {
        match StoreAddress::parse(address)? {
            #[cfg(feature = "sqlite")]
            StoreAddress::Sqlite(path) => Ok(Self::on_sqlite(address::open_sqlite(path).await?)),
            #[cfg(not(feature = "sqlite"))]
            StoreAddress::Sqlite(_) => Err(address::missing_feature("sqlite")),
            #[cfg(feature = "postgres")]
            StoreAddress::Postgres(address) => {
                Ok(Self::on_postgres(PostgresStore::open(address, PostgresOptions::default()).await?))
            }
            #[cfg(not(feature = "postgres"))]
            StoreAddress::Postgres(_) => Err(address::missing_feature("postgres")),
            #[cfg(feature = "redis")]
            StoreAddress::Redis(address) => {
                Ok(Self::on(Arc::new(RedisStore::open(address, RedisOptions::default()).await?)))
            }
            #[cfg(not(feature = "redis"))]
            StoreAddress::Redis(_) => Err(address::missing_feature("redis")),
        }
    }

    /// Opens a store on Postgres or Redis without creating or migrating its tables. Fails if they are missing or older than this
    /// release.
    pub async fn open_without_migrating(address: &str) -> Result<Self, Error> {
        match StoreAddress::parse(address)? {
            #[cfg(feature = "postgres")]
            StoreAddress::Postgres(address) => {
                let options = PostgresOptions { migrate: false, ..PostgresOptions::default() };
                Ok(Self::on_postgres(PostgresStore::open(address, options).await?))
            }
            #[cfg(not(feature = "postgres"))]
            StoreAddress::Postgres(_) => Err(address::missing_feature("postgres")),
            #[cfg(feature = "redis")]
            StoreAddress::Redis(address) => {
                let options = RedisOptions { create: false, ..RedisOptions::default() };
                Ok(Self::on(Arc::new(RedisStore::open(address, options).await?)))
            }
            #[cfg(not(feature = "redis"))]
            StoreAddress::Redis(_) => Err(address::missing_feature("redis")),
            StoreAddress::Sqlite(_) => Err(Error::Address(
                "a SQLite file cannot be opened without migrating it; use Redrive::open".to_owned(),
            )),
        }
    }

    /// A handle on a store that the caller has opened.
    pub fn on(backend: Arc<dyn Backend>) -> Self {
        Self::of(Inner {
            backend,
            #[cfg(feature = "postgres")]
            postgres: None,
            #[cfg(feature = "sqlite")]
            sqlite: None,
            inline_policies: InlinePolicyCache::default(),
        })
    }

    /// A handle on a SQLite store that the caller has opened. [`Redrive::transact`] works with it.
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
            inline_policies: InlinePolicyCache::default(),
        })
    }

    /// A handle on a Postgres store that the caller has opened. [`Enqueue::enqueue_in`] and [`Redrive::transact_postgres`] work
    /// with it.
    #[cfg(feature = "postgres")]
    pub fn on_postgres(store: PostgresStore) -> Self {
        Self::of(Inner {
            backend: Arc::new(store.clone()),
            postgres: Some(store),
            #[cfg(feature = "sqlite")]
            sqlite: None,
            inline_policies: InlinePolicyCache::default(),
        })
    }

    fn of(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
            enqueue_middleware: Arc::new([]),
            #[cfg(feature = "bodies")]
            bodies: None,
            trace: None,
        }
    }

    /// Enqueues a task. Await the result, or set options first.
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

    /// A worker on this store. Add handlers, then run it.
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
    /// // A program usually runs until `redrive::shutdown_signal()`. This one runs until the job has ended.
    /// worker.run_until(async { assert_eq!(redrive.result::<Welcome>(id).await.unwrap(), "hello 7") }).await?;
    /// # Ok(()) }
    /// ```
    pub fn worker(&self) -> TaskWorker {
        TaskWorker::new(self.clone())
    }

    /// Reads a job. Returns none if there is no job with this id.
    ///
    /// A job that sleeps, or waits for a signal or its children, is [`State::Waiting`]. [`Job::awaits`] says for what it waits.
    ///
    /// ```
    /// # use redrive::{Redrive, State, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Welcome).queue("mail").await?.id();
    /// let job = redrive.get(id).await?.expect("the job was just enqueued");
    /// assert_eq!((job.state, job.queue.as_str()), (State::Pending, "mail"));
    /// # Ok(()) }
    /// ```
    pub async fn get(&self, id: JobId) -> Result<Option<Job>, Error> {
        let mut job = self.backend().get(vec![id]).await?.pop().flatten();
        self.show_states(job.as_mut_slice()).await?;
        Ok(job)
    }

    /// Replaces the stored states of jobs by the states to show.
    pub(crate) async fn show_states(&self, jobs: &mut [Job]) -> Result<(), Error> {
        // Only jobs that have been attempted can have timers. Without such a job, the store's time makes no difference.
        let may_sleep = |job: &Job| job.state == State::Pending && job.started_at.is_some();
        let now =
            if jobs.iter().any(may_sleep) { self.backend().stats().await?.now } else { Timestamp::default() };
        for job in jobs {
            job.state = job.shown_state(now);
        }
        Ok(())
    }

    /// Reads the last `limit` entries of a job's attempt log, oldest first.
    ///
    /// Workers log attempts that failed, timed out, panicked or lost their lease, in every run. They log successful attempts only
    /// with [`crate::AttemptLogging::All`] in their [`crate::Settings`]. The log is removed with the job.
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
        let newest_first = self.backend().attempts(id, PageRequest::first(limit)).await?.items;
        Ok(newest_first.into_iter().rev().collect())
    }

    /// Reads up to `limit` stored steps of a job, starting at place `from`.
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
        // Only a replay needs the records of completed races.
        Ok(steps.into_iter().filter(|step| step.place < RACE_PLACES).collect())
    }

    /// The store itself.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// Lets the store prepare for a job that a transaction is about to enqueue.
    pub(crate) async fn prepare_store_for(&self, job: &redrive_core::NewJob) -> Result<(), Error> {
        #[cfg(feature = "postgres")]
        if let Some(store) = &self.inner.postgres {
            store.register_lanes(std::slice::from_ref(job)).await?;
        }
        let _ = job;
        Ok(())
    }

    /// The store, if it is on Postgres.
    #[cfg(feature = "postgres")]
    pub(crate) fn postgres(&self) -> Result<&PostgresStore, Error> {
        let other =
            || Error::Address("this call needs a store on Postgres; open one with postgres://…".to_owned());
        self.inner.postgres.as_ref().ok_or_else(other)
    }

    /// The store, if it is on SQLite.
    #[cfg(feature = "sqlite")]
    pub(crate) fn sqlite(&self) -> Result<&SqliteStore, Error> {
        let other =
            || Error::Address("this call needs a store on SQLite; open one with sqlite:FILE".to_owned());
        self.inner.sqlite.as_ref().ok_or_else(other)
    }

    /// Writes a policy to the store, unless it is already there, and returns its reference.
    pub(crate) async fn store_policy(&self, policy: &Policy) -> Result<PolicyRef, Error> {
        Ok(self.inner.inline_policies.put(&**self.backend(), policy, wall_clock()).await?)
    }
}

/// The time of this machine. Its callers tolerate an error of some hours.
pub(crate) fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

impl fmt::Debug for Redrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redrive").finish_non_exhaustive()
    }
}
