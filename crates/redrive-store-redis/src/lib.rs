//! The store for high volume: Redis or Redis Cluster.
//!
//! Jobs are divided into shards. All keys of a shard have one hash tag, so they are on one server, and every operation on a shard is
//! one atomic Lua script that uses the server's clock. The scripts are in `lua/`. They move and count jobs; core decides what the
//! limits allow.

mod connection;
mod doctor;
mod durability;
mod entries;
mod error;
mod inner;
mod lifecycle;
mod limits;
mod notifications;
mod open;
mod operate;
mod read;
mod records;
mod row;
mod schema;
mod script;
mod settings;
mod shards;
mod steps;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, Step, Steps, SweepResult,
};
use redrive_core::store::{
    CancelResult, ClaimRequest, ClaimedJobs, Cursor, DiscardResult, EnqueueResult, ExtendResult, Filter,
    Page, PageRequest, ReclaimRequest, RedriveResult, Retention, RunNowResult, SearchPage, SettleResult,
    Settlement, Stats, Store, StoreError, WakeToken, check_batch, search_by_listing,
};
use redrive_core::{Attempt, Job, JobId, Lease, NewJob, SignalName};
use uuid::Uuid;

use lifecycle::{claim, enqueue, prune, reclaim, settle};
pub use open::Options;
pub use schema::{SHARDS, SHARDS_MAX, SpreadBy};

/// The Redis store. Clones share its connections, which close when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct RedisStore {
    inner: Arc<inner::Inner>,
}

#[async_trait]
impl Store for RedisStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        check_batch(jobs.len())?;
        jobs.iter().try_for_each(NewJob::check)?;
        let results = enqueue::enqueue(&self.inner, &jobs).await?;
        self.inner.wake_if(results.iter().any(enqueue::is_claimable));
        Ok(results)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError> {
        check_batch(request.limit)?;
        claim::claim(&self.inner, &request).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        check_batch(settlements.len())?;
        settlements.iter().try_for_each(Settlement::check)?;
        settle::settle(&self.inner, &settlements).await
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<ExtendResult>, StoreError> {
        check_batch(leases.len())?;
        settle::extend(&self.inner, &leases, lease).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
        check_batch(request.limit)?;
        reclaim::reclaim(&self.inner, &request).await
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError> {
        check_batch(ids.len())?;
        operate::cancel(&self.inner, &ids).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError> {
        check_batch(ids.len())?;
        let results = operate::redrive(&self.inner, &ids).await?;
        self.inner.wake_if(results.contains(&RedriveResult::Done));
        Ok(results)
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError> {
        check_batch(ids.len())?;
        let results = operate::run_now(&self.inner, &ids).await?;
        self.inner.wake_if(results.contains(&RunNowResult::Done));
        Ok(results)
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError> {
        check_batch(ids.len())?;
        operate::discard(&self.inner, &ids).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
        check_batch(jobs.len())?;
        enqueue::find(&self.inner, &jobs).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        check_batch(ids.len())?;
        read::get(&self.inner, &ids).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        page.check()?;
        let after = page.after.map(Cursor::job).transpose()?;
        read::list(&self.inner, &filter, after, page.limit).await
    }

    async fn search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError> {
        search_by_listing(self, &filter, page, examined_max).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        page.check()?;
        let after = page.after.map(Cursor::attempt).transpose()?;
        read::attempts(&self.inner, id, after, page.limit).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        check_batch(limit)?;
        prune::prune(&self.inner, retention, limit).await
    }

    async fn wait(&self, seen: WakeToken) {
        self.inner.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        self.inner.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        read::stats(&self.inner).await
    }
}

#[async_trait]
impl Steps for RedisStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        steps::recall(&self.inner, id, from, limit).await
    }

    async fn remember(&self, new_steps: Vec<NewStep>) -> Result<Vec<RememberResult>, StoreError> {
        NewStep::check_all(&new_steps)?;
        let results = steps::remember(&self.inner, &new_steps).await?;
        self.inner.wake_if(new_steps.iter().any(|new| !new.children.is_empty()));
        Ok(results)
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, StoreError> {
        Signal::check_all(&signals)?;
        steps::signal(&self.inner, &signals).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        steps::pending_signals(&self.inner, job, &names, limit).await
    }

    async fn skip_signals(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        check_batch(signals.len())?;
        steps::skip_signals(&self.inner, lease, &signals).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        check_batch(ids.len())?;
        steps::resume(&self.inner, &ids).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<SweepResult, StoreError> {
        check_batch(limit)?;
        steps::sweep(&self.inner, after, limit).await
    }

    async fn pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        check_batch(ids.len())?;
        operate::pause(&self.inner, &ids).await
    }

    async fn unpause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        check_batch(ids.len())?;
        operate::unpause(&self.inner, &ids).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError> {
        check_batch(ids.len())?;
        steps::forget(&self.inner, &ids).await
    }
}
