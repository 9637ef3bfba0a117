//! An enqueue with its options.

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
use crate::bodies::Confirmations;
use crate::trace::{Trace, enqueue_span};
use crate::{EnqueuedJob, Error, Redrive, Task, json};

/// A task on its way into the store; awaiting it enqueues. What is illegal is reported then, by name.
#[must_use = "a task is enqueued when this is awaited"]
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

    /// The same enqueue through another handle.
    pub(crate) fn through(self, redrive: &Redrive) -> Self {
        Self { redrive: redrive.clone(), ..self }
    }

    /// Puts it into a queue; "default" otherwise.
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

    /// Files it under a tenant.
    pub fn tenant(self, tenant: &str) -> Self {
        self.set(tenant.parse(), |draft, tenant| draft.tenant = tenant)
    }

    /// From 0 to 9, higher ones first; 5 otherwise.
    pub fn priority(self, priority: u8) -> Self {
        self.set(Priority::new(priority), |draft, priority| draft.priority = priority)
    }

    /// Makes the enqueue repeatable: as long as the job is kept, the same task under the same key finds it again. A different
    /// task, queue, priority or policy under the same key is an [`Error::Conflict`], and is not enqueued.
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

    /// Makes it the only job of its kind under `key` that has not ended: as long as there is one, that is the answer.
    /// Retries and redrives are never held up by it.
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

    /// For `span` from the first enqueue on, the same kind under the same key finds the first job, whatever became of it.
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

    /// Replaces the job of its kind under `key` as long as that has not started: its payload, and when it is due.
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

    /// Runs once `quiet` has passed without another enqueue of its kind under `key`; the last payload counts.
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

    /// Runs it no earlier than after `delay`.
    pub fn delay(self, delay: Duration) -> Self {
        self.set(Ok(Start::After(delay)), |draft, start| draft.start = start)
    }

    /// Runs it no earlier than at `instant`.
    ///
    /// ```
    /// # use redrive::{Redrive, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// // The clock of the store counts: it may be another machine's.
    /// let now = redrive.backend().stats().await?.now;
    /// let in_an_hour = now.after(std::time::Duration::from_secs(60 * 60));
    /// redrive.enqueue(Welcome).run_at(in_an_hour).await?;
    /// # Ok(()) }
    /// ```
    pub fn run_at(self, instant: Timestamp) -> Self {
        self.set(Ok(Start::At(instant)), |draft, start| draft.start = start)
    }

    /// Ends each attempt after `timeout`.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.set(Ok(timeout), |draft, timeout| draft.timeout = Some(timeout))
    }

    /// Keeps a text beside the payload.
    pub fn metadata(self, metadata: impl Into<String>) -> Self {
        self.set(Ok(metadata.into()), |draft, metadata| draft.metadata = Some(metadata))
    }

    /// Makes it part of a trace, given as a W3C `traceparent`: the spans around its enqueue and its handler name that
    /// trace's id.
    ///
    /// It is carried in the metadata, as the member `traceparent` of a JSON object; what else is in that object stays as
    /// it is, and metadata of another form is refused. A member of that name that the caller has put there itself counts
    /// as well. Otherwise a job belongs to the trace of the handler whose [`crate::Context::redrive`] enqueued it, or to
    /// one of its own, whose id is the job's.
    pub fn traceparent(self, traceparent: &str) -> Self {
        self.set(Trace::parse(traceparent), |draft, trace| draft.trace = Some(trace))
    }

    /// Tries again by `policy` instead of the task's own.
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Whether it has an idempotency key or a unique key.
    pub(crate) fn has_key(&self) -> bool {
        self.draft.as_ref().is_ok_and(|draft| draft.key.is_some() || draft.unique.is_some())
    }

    /// Puts a legal value into the draft; the first illegal one is kept for when this is awaited.
    pub(crate) fn set<V>(mut self, value: Result<V, Invalid>, put: impl FnOnce(&mut Draft, V)) -> Self {
        match (&mut self.draft, value) {
            (Ok(draft), Ok(value)) => put(draft, value),
            (Ok(_), Err(invalid)) => self.draft = Err(invalid.into()),
            (Err(_), _) => {}
        }
        self
    }

    /// Enqueues it inside a transaction of tokio-postgres' on the store's database: with its commit it is there, and
    /// rolled back it never was.
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
        let enqueued =
            redrive.postgres()?.enqueue_in(transaction, vec![job.clone()]).instrument(span).await?;
        redrive.confirm_before_commit(&job, only(enqueued)?).await
    }

    /// Enqueues it inside a transaction of sqlx's on the store's database; pass `&mut *transaction`.
    #[cfg(feature = "sqlx")]
    pub async fn enqueue_in_sqlx(
        self,
        transaction: &mut redrive_store_postgres::PgConnection,
    ) -> Result<EnqueuedJob, Error> {
        let (redrive, job) = self.job().await?;
        let span = enqueue_span(&job);
        let enqueued =
            redrive.postgres()?.enqueue_in_sqlx(transaction, vec![job.clone()]).instrument(span).await?;
        redrive.confirm_before_commit(&job, only(enqueued)?).await
    }

    async fn send(self) -> Result<EnqueuedJob, Error> {
        let (redrive, job) = self.draft_job().await?;
        let job = redrive.pass_middleware(job).await?;
        let span = enqueue_span(&job);
        Ok(only(redrive.add(vec![job]).instrument(span).await?)??)
    }

    /// The job as it was admitted, whose policy is in the store when this returns.
    pub(crate) async fn job(self) -> Result<(Redrive, NewJob), Error> {
        let (redrive, job) = self.draft_job().await?;
        let job = redrive.admit(job).await?;
        Ok((redrive, job))
    }

    /// The job before anyone could change or refuse it.
    pub(crate) async fn draft_job(self) -> Result<(Redrive, NewJob), Error> {
        let mut draft = self.draft?;
        draft.join(self.redrive.trace)?;
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
    /// Notes which job has the large payload of an enqueue in a transaction that someone else will commit. Rolled back, that
    /// job does not name the payload, which is removed then.
    #[cfg(feature = "postgres")]
    async fn confirm_before_commit(
        &self,
        job: &NewJob,
        answer: store::Enqueued,
    ) -> Result<EnqueuedJob, Error> {
        let mut bodies = Confirmations::default();
        bodies.note(job, answer);
        self.confirm(bodies).await;
        Ok(EnqueuedJob::of(answer, job)?)
    }
}

fn only<A>(mut answers: Vec<A>) -> Result<A, Error> {
    answers.pop().ok_or_else(|| StoreError::Failed("the store gave no answer to an enqueue".into()).into())
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

    /// Makes it part of the trace that it was given, or else of the one that it comes from: that one is left out where
    /// the caller keeps metadata of its own.
    fn join(&mut self, origin: Option<Trace>) -> Result<(), Invalid> {
        let origin = origin.filter(|_| self.metadata.is_none());
        if let Some(trace) = self.trace.or(origin) {
            self.metadata = Some(trace.carry(self.metadata.take())?);
        }
        Ok(())
    }
}

impl IntoFuture for Enqueue {
    type Output = Result<EnqueuedJob, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
