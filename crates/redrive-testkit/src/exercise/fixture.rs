//! A fresh store with its clock, and short words for what behaviours do with it.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redrive_core::records::{Change, EVERY_QUEUE, Expect, PAUSED, Written};
use redrive_core::store::{
    Backend, Cancelled, ClaimRequest, Claimed, Enqueued, Filter, PageRequest, ReclaimRequest, Settled,
    Settlement,
};
use redrive_core::{
    Attempt, Await, Entry, IdempotencyKey, Invalid, Job, JobId, Kind, Lease, NewJob, PolicyName, PolicyRef,
    Priority, Queue, Reason, State, StoreError, Tenant, Timestamp, Verdict, Wait, WorkerId,
};
use uuid::Builder;

use crate::clock::{ManualClock, START};

/// How long leases last unless a behaviour says otherwise.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A fresh store and its clock.
pub(crate) struct Stage {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) clock: ManualClock,
    made: AtomicU64,
}

impl Stage {
    pub(crate) fn new(store: Arc<dyn Backend>, clock: ManualClock) -> Self {
        Self { store, clock, made: AtomicU64::new(0) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A job like any other, with the next greater id.
    pub(crate) fn new_job(&self) -> NewJob {
        let id = job_id(self.made.fetch_add(1, Ordering::SeqCst));
        NewJob::new(id, kind("work"), policy("default"), b"payload".to_vec())
    }

    /// A job in a queue of its own, so that it can be claimed without touching others.
    pub(crate) fn own_job(&self) -> NewJob {
        let job = self.new_job();
        let queue = queue(&format!("own-{}", job.id));
        NewJob { queue, ..job }
    }

    pub(crate) async fn enqueue(&self, job: NewJob) -> JobId {
        let id = job.id;
        let answer = self.store.enqueue(vec![job]).await.expect("enqueue");
        assert_eq!(answer, [Enqueued::Created(id)]);
        id
    }

    pub(crate) async fn enqueue_some(&self, count: usize) -> Vec<JobId> {
        let jobs: Vec<NewJob> = (0..count).map(|_| self.new_job()).collect();
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let answer = self.store.enqueue(jobs).await.expect("enqueue");
        assert!(answer.iter().all(|each| matches!(each, Enqueued::Created(_))));
        ids
    }

    /// Claims by default settings and returns the jobs.
    pub(crate) async fn claim(&self, limit: usize) -> Vec<Job> {
        self.claim_by(claim_request(limit)).await.jobs
    }

    pub(crate) async fn claim_by(&self, request: ClaimRequest) -> Claimed {
        self.store.claim(request).await.expect("claim")
    }

    /// Claims the one job of a queue of its own.
    pub(crate) async fn claim_own(&self, id: JobId) -> Job {
        let queues = vec![self.job(id).await.queue];
        let mut jobs = self.claim_by(ClaimRequest { queues, ..claim_request(1) }).await.jobs;
        let job = jobs.pop().expect("the job is due");
        assert_eq!(job.id, id);
        job
    }

    pub(crate) async fn running(&self) -> Job {
        let id = self.enqueue(self.own_job()).await;
        self.claim_own(id).await
    }

    /// Leads a fresh job into `state`.
    pub(crate) async fn in_state(&self, state: State) -> Job {
        let id = self.enqueue(self.own_job()).await;
        self.lead(id, state).await
    }

    /// Leads a job in a queue of its own from pending into `state`.
    pub(crate) async fn lead(&self, id: JobId, state: State) -> Job {
        match state {
            State::Pending => {}
            State::Running => drop(self.claim_own(id).await),
            State::Retrying => self.claim_and_settle(id, Verdict::Retry(Duration::ZERO)).await,
            State::Waiting => self.claim_and_settle(id, wait()).await,
            State::Succeeded => self.claim_and_settle(id, Verdict::Complete(None)).await,
            State::Dead => {
                self.claim_and_settle(id, Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
            }
            State::Cancelled => assert_eq!(self.cancel(id).await, Cancelled::Done),
        }
        let job = self.job(id).await;
        assert_eq!(job.state, state);
        job
    }

    /// Leads a job in a queue of its own that is due into `state`, by way of pending if need be.
    pub(crate) async fn lead_on(&self, id: JobId, state: State) {
        if self.job(id).await.state != state {
            self.lead_again(id, state).await;
        }
    }

    async fn lead_again(&self, id: JobId, state: State) {
        match state {
            State::Pending => self.claim_and_settle(id, Verdict::Release).await,
            State::Retrying
            | State::Running
            | State::Waiting
            | State::Succeeded
            | State::Dead
            | State::Cancelled => drop(self.lead(id, state).await),
        }
    }

    /// Takes a job in a queue of its own through one attempt, with a log entry.
    pub(crate) async fn claim_and_settle(&self, id: JobId, verdict: Verdict) {
        let job = self.claim_own(id).await;
        let settlement = Settlement {
            entry: Some(entry(&job, verdict_word(&verdict))),
            ..settlement(job.lease(), verdict)
        };
        self.settle_by(settlement).await;
    }

    pub(crate) async fn settle(&self, lease: Lease, verdict: Verdict) -> Settled {
        self.settle_by(settlement(lease, verdict)).await
    }

    pub(crate) async fn settle_by(&self, settlement: Settlement) -> Settled {
        only(self.store.settle(vec![settlement]).await.expect("settle"))
    }

    pub(crate) async fn reclaim(&self, limit: usize) -> Vec<Job> {
        self.store.reclaim(reclaim_request(limit)).await.expect("reclaim").jobs
    }

    pub(crate) async fn cancel(&self, id: JobId) -> Cancelled {
        only(self.store.cancel(vec![id]).await.expect("cancel"))
    }

    pub(crate) async fn redrive(&self, id: JobId) {
        self.store.redrive(vec![id]).await.expect("redrive");
    }

    /// Pauses a queue, or every one.
    pub(crate) async fn pause(&self, queue: Option<&Queue>) {
        self.set_paused(queue, Some(b"{}".to_vec())).await;
    }

    pub(crate) async fn resume(&self, queue: Option<&Queue>) {
        self.set_paused(queue, None).await;
    }

    async fn set_paused(&self, queue: Option<&Queue>, value: Option<Vec<u8>>) {
        let id = queue.map_or(EVERY_QUEUE, Queue::as_str);
        self.write(PAUSED, id, Expect::Any, value).await;
    }

    pub(crate) async fn write(
        &self,
        kind: &str,
        id: &str,
        expect: Expect,
        value: Option<Vec<u8>>,
    ) -> Written {
        let change = Change { kind: kind.to_owned(), id: id.to_owned(), expect, value };
        self.store.write(change).await.expect("write")
    }

    pub(crate) async fn find(&self, id: JobId) -> Option<Job> {
        only(self.store.get(vec![id]).await.expect("get"))
    }

    pub(crate) async fn job(&self, id: JobId) -> Job {
        self.find(id).await.expect("the job is there")
    }

    pub(crate) async fn log(&self, id: JobId) -> Vec<Attempt> {
        let page = self.store.attempts(id, PageRequest::first(1000)).await.expect("attempts");
        assert_eq!(page.next, None);
        page.items
    }

    /// Everything there is to see, to prove that nothing changed.
    pub(crate) async fn content(&self) -> Vec<(Job, Vec<Attempt>)> {
        let page = self.store.list(Filter::default(), PageRequest::first(1000)).await.expect("list");
        let mut content = Vec::new();
        for job in page.items {
            let log = self.log(job.id).await;
            content.push((job, log));
        }
        content
    }
}

/// Runs `count` calls at once and returns their answers.
pub(crate) async fn at_once<T, Fut>(count: usize, call: impl Fn(usize) -> Fut) -> Vec<T>
where
    Fut: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let calls: Vec<_> = (0..count).map(|n| tokio::spawn(call(n))).collect();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.expect("a concurrent call"));
    }
    answers
}

/// The refusal, which must be one that names a field.
pub(crate) fn refused<T: Debug>(result: Result<T, StoreError>) -> Invalid {
    match result {
        Err(StoreError::Invalid(invalid)) => invalid,
        Err(other) => panic!("should be refused as invalid, failed with {other:?}"),
        Ok(answer) => panic!("should be refused as invalid, was accepted: {answer:?}"),
    }
}

/// The answer to a batch of one.
pub(crate) fn only<T: Debug>(mut answers: Vec<T>) -> T {
    assert_eq!(answers.len(), 1, "one answer to one question: {answers:?}");
    answers.remove(0)
}

pub(crate) fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

/// The `n`-th id that a caller would make.
pub(crate) fn job_id(n: u64) -> JobId {
    let ms = u64::try_from(START.as_ms()).unwrap_or(0) + n;
    JobId(Builder::from_unix_timestamp_millis(ms, &[7; 10]).into_uuid())
}

pub(crate) fn claim_request(limit: usize) -> ClaimRequest {
    ClaimRequest { worker: worker("claimer"), queues: Vec::new(), kinds: Vec::new(), limit, lease: LEASE }
}

pub(crate) fn reclaim_request(limit: usize) -> ReclaimRequest {
    ReclaimRequest { kinds: Vec::new(), limit, lease: LEASE, held: Vec::new() }
}

pub(crate) fn settlement(lease: Lease, verdict: Verdict) -> Settlement {
    Settlement::new(lease, verdict)
}

pub(crate) fn entry(job: &Job, outcome: &str) -> Entry {
    Entry {
        run: job.run,
        attempt: job.attempt,
        started_at: job.started_at.expect("a claimed job has started"),
        duration: ms(1_234),
        outcome: outcome.to_owned(),
        error: Some("it broke: häßlich 🦀".to_owned()),
        detail: Some(r#"{"status":503}"#.to_owned()),
    }
}

fn verdict_word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Complete(_) => "done",
        Verdict::Retry(_) | Verdict::DeadLetter(_) => "failed",
        Verdict::Snooze(_) => "snoozed",
        Verdict::Park(_) => "parked",
        Verdict::Wait(_) => "waiting",
        Verdict::Release => "released",
        Verdict::Cancel => "cancelled",
    }
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn queue(name: &str) -> Queue {
    Queue::new(name).expect("a legal queue")
}

pub(crate) fn kind(name: &str) -> Kind {
    Kind::new(name).expect("a legal kind")
}

pub(crate) fn tenant(name: &str) -> Tenant {
    Tenant::new(name).expect("a legal tenant")
}

pub(crate) fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a legal worker")
}

pub(crate) fn key(name: &str) -> IdempotencyKey {
    IdempotencyKey::new(name).expect("a legal key")
}

pub(crate) fn policy(name: &str) -> PolicyRef {
    PolicyRef::first(PolicyName::new(name).expect("a legal policy name"))
}

pub(crate) fn priority(n: u8) -> Priority {
    Priority::new(n).expect("a legal priority")
}

/// A wait that only [`redrive_core::Steps::unhold`] ends.
pub(crate) fn wait() -> Verdict {
    Verdict::Wait(Wait::until(Await::Unhold))
}
