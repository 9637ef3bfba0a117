//! Enqueues a task with its options.

mod batch;
mod middleware;
mod result;

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use redrive_core::panics::catch;
#[cfg(feature = "postgres")]
use redrive_core::store;
use redrive_core::{
    IdempotencyKey, Invalid, JobId, Kind, NewJob, Partition, Policy, Priority, Queue, Start, StoreError,
    Tenant, Timestamp, Unique, UniqueRule,
};

use tracing::Instrument as _;

#[cfg(feature = "postgres")]
use crate::bodies::BodyConfirmations;
use crate::trace::{Trace, enqueue_span};
use crate::{Error, Redrive, Task, json};

pub use batch::IntoEnqueue;
pub use middleware::EnqueueMiddleware;
pub use result::{BatchConflict, Conflict, EnqueuedJob};

/// An enqueue of a task. Set options, then await it. An invalid option is reported then. See [`Redrive::enqueue`].
#[must_use = "the task is enqueued only when this is awaited"]
#[derive(Debug)]
pub struct Enqueue {
    redrive: Redrive,
    policy: Policy,
    draft: Result<Draft, Error>,
}

#[derive(Debug)]
pub(crate) struct Draft {
    kind: Kind,
    payload: Vec<u8>,
    queue: Queue,
    tenant: Tenant,
    priority: Priority,
    key: Option<IdempotencyKey>,
    unique: Option<Unique>,
    pub(crate) partition: Option<Partition>,
    start: Start,
    timeout: Option<Duration>,
    metadata: Option<String>,
    trace: Option<Trace>,
}

impl Enqueue {
    pub(crate) fn new<T: Task>(redrive: Redrive, task: &T) -> Self {
        match catch(format_args!("the policy of a {}", T::KIND), T::policy) {
            Ok(policy) => Self { redrive, policy, draft: Draft::new(task) },
            Err(panic) => Self { redrive, policy: Policy::default(), draft: Err(panic.into()) },
        }
    }

    /// The same enqueue with another handle.
    pub(crate) fn with_handle(self, redrive: &Redrive) -> Self {
        Self { redrive: redrive.clone(), ..self }
    }

    /// Sets the queue. The default is "default".
    ///
    /// ```
    /// # use redrive::{Policy, Priority, Redrive, Task};
    /// # use std::time::Duration;
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let patient = Policy::default().with_max_attempts(20)?;
    /// let welcome = redrive.enqueue(Welcome).queue("mail").priority(9).policy(patient).timeout(Duration::from_secs(30));
    /// let id = welcome.await?.id();
    /// # let job = redrive.get(id).await?.unwrap();
    /// # assert_eq!((job.queue.as_str(), job.priority), ("mail", Priority::new(9)?));
    /// # Ok(()) }
    /// ```
    pub fn queue(self, queue: &str) -> Self {
        self.set(queue.parse(), |draft, queue| draft.queue = queue)
    }

    /// Sets the tenant. The default is the empty tenant.
    pub fn tenant(self, tenant: &str) -> Self {
        self.set(tenant.parse(), |draft, tenant| draft.tenant = tenant)
    }

    /// Sets the priority, from 0 to 9. Jobs with a higher priority are claimed first. The default is 5.
    pub fn priority(self, priority: u8) -> Self {
        self.set(Priority::new(priority), |draft, priority| draft.priority = priority)
    }

    /// Sets the idempotency key, which makes it safe to repeat the enqueue: while the job is kept, enqueuing the same task with
    /// the same key returns the same job. If the task, queue, priority or policy differs, nothing is enqueued and the result is an
    /// [`Error::Conflict`].
    ///
    /// ```
    /// # use redrive::{EnqueuedJob, Error, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Charge { cents: u64 }
    /// # impl Task for Charge { const KIND: &'static str = "charge"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let first = redrive.enqueue(Charge { cents: 500 }).key("order-7").await?;
    /// let again = redrive.enqueue(Charge { cents: 500 }).key("order-7").await?;
    /// assert_eq!(again, EnqueuedJob::Existing(first.id()));
    ///
    /// match redrive.enqueue(Charge { cents: 900 }).key("order-7").await {
    ///     Err(Error::Conflict(conflict)) => assert_eq!(conflict.existing, first.id()),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn key(self, key: &str) -> Self {
        self.set(key.parse(), |draft, key| draft.key = Some(key))
    }

    /// Sets a unique key: at most one live job of this kind has the key. Until that job has ended, an enqueue with the key returns
    /// it. Retries and redrives ignore the key.
    ///
    /// ```
    /// # use redrive::{EnqueuedJob, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Sync { account: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let first = redrive.enqueue(Sync { account: 7 }).unique("7").await?;
    /// let again = redrive.enqueue(Sync { account: 7 }).unique("7").await?;
    /// assert_eq!(again, EnqueuedJob::Existing(first.id()));
    /// # redrive.cancel(first.id()).await?;
    /// // Once the first job has ended, there may be another:
    /// assert!(redrive.enqueue(Sync { account: 7 }).unique("7").await?.is_new());
    /// # Ok(()) }
    /// ```
    pub fn unique(self, key: &str) -> Self {
        self.unique_by(key, UniqueRule::Live)
    }

    /// Sets a unique key for a time: within `span` of the first enqueue, an enqueue of this kind with this key returns the first
    /// job, even if it has ended.
    ///
    /// ```
    /// # use redrive::{EnqueuedJob, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Digest { user: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let day = std::time::Duration::from_secs(24 * 60 * 60);
    /// let first = redrive.enqueue(Digest { user: 7 }).unique_for("7", day).await?;
    /// # redrive.cancel(first.id()).await?;
    /// let again = redrive.enqueue(Digest { user: 7 }).unique_for("7", day).await?;
    /// assert_eq!(again, EnqueuedJob::Existing(first.id()));
    /// # Ok(()) }
    /// ```
    pub fn unique_for(self, key: &str, span: Duration) -> Self {
        self.unique_by(key, UniqueRule::For(span))
    }

    /// Sets a unique key with replacement: if a job of this kind with this key has not started yet, the enqueue replaces its
    /// payload and due time.
    ///
    /// ```
    /// # use redrive::{EnqueuedJob, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Remind { text: String }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let hour = std::time::Duration::from_secs(60 * 60);
    /// let remind = |text: &str| redrive.enqueue(Remind { text: text.to_owned() }).replace("user-7").delay(hour);
    /// let first = remind("at nine").await?;
    /// assert_eq!(remind("at ten").await?, EnqueuedJob::Replaced(first.id()));
    /// # Ok(()) }
    /// ```
    pub fn replace(self, key: &str) -> Self {
        self.unique_by(key, UniqueRule::Replace)
    }

    /// Runs the job once `quiet` has passed without another enqueue of this kind with this key. Each enqueue replaces the payload.
    ///
    /// ```
    /// # use redrive::{EnqueuedJob, Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Index { document: u64, text: String }
    /// # impl Task for Index { const KIND: &'static str = "index"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let quiet = std::time::Duration::from_secs(5);
    /// let index = |text: &str| Index { document: 7, text: text.to_owned() };
    /// let first = redrive.enqueue(index("a")).debounce("7", quiet).await?;
    /// let again = redrive.enqueue(index("ab")).debounce("7", quiet).await?;
    /// assert_eq!(again, EnqueuedJob::Replaced(first.id()));
    /// # Ok(()) }
    /// ```
    pub fn debounce(self, key: &str, quiet: Duration) -> Self {
        self.replace(key).delay(quiet)
    }

    fn unique_by(self, key: &str, rule: UniqueRule) -> Self {
        self.set(key.parse(), |draft, key| draft.unique = Some(Unique { key, rule }))
    }

    /// Makes the job due after `delay`.
    pub fn delay(self, delay: Duration) -> Self {
        self.set(Ok(Start::After(delay)), |draft, start| draft.start = start)
    }

    /// Makes the job due at `instant`, by the clock of the store.
    ///
    /// ```
    /// # use redrive::{Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// // The store may be on another machine, so use its clock.
    /// let now = redrive.backend().stats().await?.now;
    /// let in_an_hour = now.after(std::time::Duration::from_secs(60 * 60));
    /// redrive.enqueue(Welcome).run_at(in_an_hour).await?;
    /// # Ok(()) }
    /// ```
    pub fn run_at(self, instant: Timestamp) -> Self {
        self.set(Ok(Start::At(instant)), |draft, start| draft.start = start)
    }

    /// Sets the longest time that an attempt may take.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set(Ok(timeout), |draft, timeout| draft.timeout = Some(timeout))
    }

    /// Stores a text with the job. redrive does not interpret it, except for [`Enqueue::traceparent`].
    pub fn metadata(self, metadata: impl Into<String>) -> Self {
        self.set(Ok(metadata.into()), |draft, metadata| draft.metadata = Some(metadata))
    }

    /// Adds the job to a trace, given as a W3C `traceparent`. The spans of its enqueue and its handler have the id of that trace.
    ///
    /// The trace is stored in the metadata, as the member `traceparent` of a JSON object. Other members stay, and metadata that is
    /// not a JSON object is rejected. The caller may also put this member into the metadata directly. Without it a job joins the
    /// trace of the handler whose [`crate::Context::redrive`] enqueued it, or else starts a trace whose id is the id of the job.
    pub fn traceparent(self, traceparent: &str) -> Self {
        self.set(Trace::parse(traceparent), |draft, trace| draft.trace = Some(trace))
    }

    /// Sets the policy for retries. The default is [`Task::policy`].
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Whether the task has an idempotency key or a unique key.
    pub(crate) fn has_key(&self) -> bool {
        self.draft.as_ref().is_ok_and(|draft| draft.key.is_some() || draft.unique.is_some())
    }

    /// Sets a valid value. Keeps the error for the first invalid one, to report it when this is awaited.
    pub(crate) fn set<V>(mut self, value: Result<V, Invalid>, put: impl FnOnce(&mut Draft, V)) -> Self {
        match (&mut self.draft, value) {
            (Ok(draft), Ok(value)) => put(draft, value),
            (Ok(_), Err(invalid)) => self.draft = Err(invalid.into()),
            (Err(_), _) => {}
        }
        self
    }

    /// Enqueues the task inside a transaction of `tokio-postgres` on the store's database. The job exists once the transaction is
    /// committed.
    ///
    /// ```no_run
    /// # use redrive::{Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Ship { order: i32 }
    /// # impl Task for Ship { const KIND: &'static str = "ship"; type Output = (); }
    /// # async fn example(redrive: Redrive, mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = client.transaction().await?;
    /// transaction.execute("INSERT INTO orders (id) VALUES (7)", &[]).await?;
    /// redrive.enqueue(Ship { order: 7 }).key("order-7").enqueue_in(&mut transaction).await?;
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "postgres")]
    pub async fn enqueue_in(
        self,
        transaction: &mut redrive_store_postgres::Transaction<'_>,
    ) -> Result<EnqueuedJob, Error> {
        let (redrive, job) = self.job().await?;
        let span = enqueue_span(&job);
        let results = redrive.postgres()?.enqueue_in(transaction, vec![job.clone()]).instrument(span).await?;
        redrive.confirm_before_commit(&job, single(results)?).await
    }

    /// Enqueues the task inside a transaction of `sqlx` on the store's database. Pass `&mut *transaction`.
    #[cfg(feature = "sqlx")]
    pub async fn enqueue_in_sqlx(
        self,
        transaction: &mut redrive_store_postgres::PgConnection,
    ) -> Result<EnqueuedJob, Error> {
        let (redrive, job) = self.job().await?;
        let span = enqueue_span(&job);
        let results =
            redrive.postgres()?.enqueue_in_sqlx(transaction, vec![job.clone()]).instrument(span).await?;
        redrive.confirm_before_commit(&job, single(results)?).await
    }

    async fn run(self) -> Result<EnqueuedJob, Error> {
        let (redrive, job) = self.draft_job().await?;
        let job = redrive.run_enqueue_middleware(job).await?;
        let span = enqueue_span(&job);
        Ok(single(redrive.enqueue_jobs(vec![job]).instrument(span).await?)??)
    }

    /// The job after the enqueue middleware, with its policy and large payload stored.
    pub(crate) async fn job(self) -> Result<(Redrive, NewJob), Error> {
        let (redrive, job) = self.draft_job().await?;
        let job = redrive.prepare_job(job).await?;
        Ok((redrive, job))
    }

    /// The job before the enqueue middleware, with its policy stored.
    pub(crate) async fn draft_job(self) -> Result<(Redrive, NewJob), Error> {
        let mut draft = self.draft?;
        draft.add_trace(self.redrive.trace)?;
        let policy = self.redrive.store_policy(&self.policy).await?;
        let mut job = NewJob {
            queue: draft.queue,
            tenant: draft.tenant,
            priority: draft.priority,
            start: draft.start,
            unique: draft.unique,
            partition: draft.partition,
            timeout: draft.timeout,
            metadata: draft.metadata,
            ..NewJob::new(JobId(uuid::Uuid::now_v7()), draft.kind, policy, draft.payload)
        };
        if let Some(key) = draft.key {
            job = job.with_key(key);
        }
        Ok((self.redrive, job))
    }
}

impl Redrive {
    /// Records which job uses the large payload of an enqueue in a transaction that the caller commits. If the caller rolls it
    /// back, no job refers to the payload, and the collector deletes it.
    #[cfg(feature = "postgres")]
    async fn confirm_before_commit(
        &self,
        job: &NewJob,
        result: store::EnqueueResult,
    ) -> Result<EnqueuedJob, Error> {
        let mut bodies = BodyConfirmations::default();
        bodies.add(job, result);
        self.confirm_bodies(bodies).await;
        Ok(EnqueuedJob::of(result, job)?)
    }
}

/// The result of the only job in a batch.
fn single<R>(mut results: Vec<R>) -> Result<R, Error> {
    results
        .pop()
        .ok_or_else(|| StoreError::Failed("the store returned no result for an enqueue".into()).into())
}

impl Draft {
    fn new<T: Task>(task: &T) -> Result<Self, Error> {
        let payload = json::catch_write(T::KIND, task)?;
        let payload = payload.map_err(|source| Error::Payload { kind: T::KIND, source })?;
        Ok(Self {
            kind: T::KIND.parse()?,
            payload,
            queue: Queue::default(),
            tenant: Tenant::default(),
            priority: Priority::default(),
            key: None,
            unique: None,
            partition: None,
            start: Start::Now,
            timeout: None,
            metadata: None,
            trace: None,
        })
    }

    /// Adds the trace that the caller set, or else the trace of the handler that enqueues the job. The latter is left out if the
    /// caller set metadata.
    fn add_trace(&mut self, handler: Option<Trace>) -> Result<(), Invalid> {
        let handler = handler.filter(|_| self.metadata.is_none());
        if let Some(trace) = self.trace.or(handler) {
            self.metadata = Some(trace.add_to(self.metadata.take())?);
        }
        Ok(())
    }
}

impl IntoFuture for Enqueue {
    type Output = Result<EnqueuedJob, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
