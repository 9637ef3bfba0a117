//! A new store with its clock, and short names for the calls that behaviours make.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redrive_core::records::{EVERY_QUEUE, PAUSED, Precondition, RecordWrite, WriteResult};
use redrive_core::store::{
    Backend, CancelResult, ClaimRequest, ClaimedJobs, EnqueueResult, Filter, PageRequest, ReclaimRequest,
    SettleResult, Settlement,
};
use redrive_core::{
    Attempt, AttemptReport, Epoch, IdempotencyKey, Invalid, Job, JobId, Kind, LEASE_COUNT_BITS, Lease,
    NewJob, PolicyName, PolicyRef, Priority, Queue, Reason, State, StoreError, Tenant, Timestamp, Verdict,
    Wait, WaitCondition, WorkerId,
};
use uuid::Builder;

use crate::clock::{ManualClock, START};

/// The duration of leases unless a behaviour sets another.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A new store and its clock.
pub(crate) struct StoreFixture {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) clock: ManualClock,
    next_id: AtomicU64,
}

impl StoreFixture {
    pub(crate) fn new(store: Arc<dyn Backend>, clock: ManualClock) -> Self {
        Self { store, clock, next_id: AtomicU64::new(0) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A job with default values and the next greater id.
    pub(crate) fn new_job(&self) -> NewJob {
        let id = job_id(self.next_id.fetch_add(1, Ordering::SeqCst));
        NewJob::new(id, kind("work"), policy("default"), b"payload".to_vec())
    }

    /// A job in a queue of its own, so that a claim of it takes no other job.
    pub(crate) fn own_job(&self) -> NewJob {
        let job = self.new_job();
        let queue = queue(&format!("own-{}", job.id));
        NewJob { queue, ..job }
    }

    pub(crate) async fn enqueue(&self, job: NewJob) -> JobId {
        let id = job.id;
        let answer = self.store.enqueue(vec![job]).await.expect("enqueue");
        assert_eq!(answer, [EnqueueResult::Created(id)]);
        id
    }

    pub(crate) async fn enqueue_some(&self, count: usize) -> Vec<JobId> {
        let jobs: Vec<NewJob> = (0..count).map(|_| self.new_job()).collect();
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let answer = self.store.enqueue(jobs).await.expect("enqueue");
        assert!(answer.iter().all(|each| matches!(each, EnqueueResult::Created(_))));
        ids
    }

    /// Claims with default settings and returns the jobs.
    pub(crate) async fn claim(&self, limit: usize) -> Vec<Job> {
        self.claim_by(claim_request(limit)).await.jobs
    }

    pub(crate) async fn claim_by(&self, request: ClaimRequest) -> ClaimedJobs {
        self.store.claim(request).await.expect("claim")
    }

    /// Claims a job that is alone in its queue.
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

    /// A new job that was brought into `state`.
    pub(crate) async fn in_state(&self, state: State) -> Job {
        let id = self.enqueue(self.own_job()).await;
        self.bring_to(id, state).await
    }

    /// Brings a pending job that is alone in its queue into `state`.
    pub(crate) async fn bring_to(&self, id: JobId, state: State) -> Job {
        match state {
            State::Pending => {}
            State::Running => drop(self.claim_own(id).await),
            State::Retrying => self.claim_and_settle(id, Verdict::Retry(Duration::ZERO)).await,
            State::Waiting => self.claim_and_settle(id, wait()).await,
            State::Succeeded => self.claim_and_settle(id, Verdict::Complete(None)).await,
            State::Dead => {
                self.claim_and_settle(id, Verdict::DeadLetter(Reason::AttemptsExhausted)).await;
            }
            State::Cancelled => assert_eq!(self.cancel(id).await, CancelResult::Done),
        }
        let job = self.job(id).await;
        assert_eq!(job.state, state);
        job
    }

    /// Brings a due job that is alone in its queue into `state`, unless it is in that state already.
    pub(crate) async fn bring_due_job_to(&self, id: JobId, state: State) {
        if self.job(id).await.state != state {
            self.bring_from_other_state(id, state).await;
        }
    }

    async fn bring_from_other_state(&self, id: JobId, state: State) {
        match state {
            State::Pending => self.claim_and_settle(id, Verdict::Release).await,
            State::Retrying
            | State::Running
            | State::Waiting
            | State::Succeeded
            | State::Dead
            | State::Cancelled => drop(self.bring_to(id, state).await),
        }
    }

    /// Claims and settles a job that is alone in its queue, with a log entry.
    pub(crate) async fn claim_and_settle(&self, id: JobId, verdict: Verdict) {
        let job = self.claim_own(id).await;
        let settlement = Settlement {
            entry: Some(entry(&job, outcome_text(&verdict))),
            ..settlement(job.lease(), verdict)
        };
        self.settle_by(settlement).await;
    }

    pub(crate) async fn settle(&self, lease: Lease, verdict: Verdict) -> SettleResult {
        self.settle_by(settlement(lease, verdict)).await
    }

    pub(crate) async fn settle_by(&self, settlement: Settlement) -> SettleResult {
        only(self.store.settle(vec![settlement]).await.expect("settle"))
    }

    pub(crate) async fn reclaim(&self, limit: usize) -> Vec<Job> {
        self.store.reclaim(reclaim_request(limit)).await.expect("reclaim").jobs
    }

    pub(crate) async fn cancel(&self, id: JobId) -> CancelResult {
        only(self.store.cancel(vec![id]).await.expect("cancel"))
    }

    pub(crate) async fn redrive(&self, id: JobId) {
        self.store.redrive(vec![id]).await.expect("redrive");
    }

    /// Pauses a queue, or all queues.
    pub(crate) async fn pause(&self, queue: Option<&Queue>) {
        self.set_paused(queue, Some(b"{}".to_vec())).await;
    }

    pub(crate) async fn resume(&self, queue: Option<&Queue>) {
        self.set_paused(queue, None).await;
    }

    async fn set_paused(&self, queue: Option<&Queue>, value: Option<Vec<u8>>) {
        let id = queue.map_or(EVERY_QUEUE, Queue::as_str);
        self.write(PAUSED, id, Precondition::Any, value).await;
    }

    pub(crate) async fn write(
        &self,
        kind: &str,
        id: &str,
        expect: Precondition,
        value: Option<Vec<u8>>,
    ) -> WriteResult {
        let change = RecordWrite { kind: kind.to_owned(), id: id.to_owned(), expect, value };
        self.store.write(change).await.expect("write")
    }

    pub(crate) async fn find(&self, id: JobId) -> Option<Job> {
        only(self.store.get(vec![id]).await.expect("get"))
    }

    pub(crate) async fn job(&self, id: JobId) -> Job {
        self.find(id).await.expect("the job is there")
    }

    /// The whole attempt log of a job, oldest attempt first.
    pub(crate) async fn log(&self, id: JobId) -> Vec<Attempt> {
        let page = self.store.attempts(id, PageRequest::first(1000)).await.expect("attempts");
        assert_eq!(page.next, None);
        page.items.into_iter().rev().collect()
    }

    /// All jobs with their logs, to prove that nothing changed.
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

/// Runs `count` calls concurrently and returns their results.
pub(crate) async fn concurrently<T, Fut>(count: usize, call: impl Fn(usize) -> Fut) -> Vec<T>
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

/// The error of a call that must be rejected as invalid.
pub(crate) fn rejected<T: Debug>(result: Result<T, StoreError>) -> Invalid {
    match result {
        Err(StoreError::Invalid(invalid)) => invalid,
        Err(other) => panic!("should be rejected as invalid, failed with {other:?}"),
        Ok(answer) => panic!("should be rejected as invalid, was accepted: {answer:?}"),
    }
}

/// The result of a batch of one.
pub(crate) fn only<T: Debug>(mut answers: Vec<T>) -> T {
    assert_eq!(answers.len(), 1, "one result for one item: {answers:?}");
    answers.remove(0)
}

pub(crate) fn ids(jobs: &[Job]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

/// The epoch of `after`, which must be the lease of a job that follows `before`.
pub(crate) fn next_epoch(before: &Job, after: &Job) -> Epoch {
    assert!(after.epoch > before.epoch, "the epoch went from {} to {}", before.epoch, after.epoch);
    assert_eq!(after.lease_count(), before.lease_count() + 1, "{} and {}", before.epoch, after.epoch);
    after.epoch
}

/// Leases that the store has not granted, with greater epochs than this one.
pub(crate) fn newer_leases(lease: Lease) -> [Lease; 2] {
    [1, 1 << LEASE_COUNT_BITS].map(|more| Lease { epoch: lease.epoch + more, ..lease })
}

/// The `n`-th id.
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

pub(crate) fn entry(job: &Job, outcome: &str) -> AttemptReport {
    AttemptReport {
        run: job.run,
        attempt: job.attempt,
        started_at: job.started_at.expect("a claimed job has started"),
        duration: ms(1_234),
        outcome: outcome.to_owned(),
        error: Some("it broke: häßlich 🦀".to_owned()),
        detail: Some(r#"{"status":503}"#.to_owned()),
    }
}

fn outcome_text(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Complete(_) => "done",
        Verdict::Retry(_) | Verdict::DeadLetter(_) => "failed",
        Verdict::Snooze(_) => "snoozed",
        Verdict::Hold(_) => "held",
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

/// A wait that only [`redrive_core::Steps::unpause`] ends.
pub(crate) fn wait() -> Verdict {
    Verdict::Wait(Wait::until(WaitCondition::Unpaused))
}
