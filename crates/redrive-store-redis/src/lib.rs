//! The store for high volume: Redis, or a Redis Cluster as it is.
//!
//! Jobs are spread over partitions, each under one hash tag; within a partition every verb is one Lua script, atomic, by the
//! server's clock. The scripts are in `lua/`, one file for each verb. They move jobs and count them; whether there is room, and
//! whose turn it is, is decided in core (`claim_bounded.rs`, `turns.rs`).

mod address;
mod answer;
mod arguments;
mod attempts;
mod cancel;
mod claim;
mod claim_bounded;
mod discard;
mod doctor;
mod durability;
mod enqueue;
mod error;
mod extend;
mod forget;
mod get;
mod hold;
mod homes;
mod link;
mod list;
mod listen;
mod open;
mod prune;
mod recall;
mod reclaim;
mod records;
mod redrive;
mod remember;
mod resume;
mod row;
mod run_now;
mod script;
mod settings;
mod settle;
mod signal;
mod stats;
mod steps;
mod sweep;
mod transfer;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::store::{
    Cancelled, ClaimRequest, Claimed, Cursor, Discarded, Enqueued, Extended, Filter, Looked, Page,
    PageRequest, ReclaimRequest, Redriven, Retention, RunNow, Settled, Settlement, Stats, Store, StoreError,
    Wake, check_batch, look_by_lists,
};
use redrive_core::{Attempt, Job, JobId, Lease, NewJob};

pub use address::{PARTITIONS, PARTITIONS_MAX, SpreadBy};
pub use open::Options;

/// The Redis store. Cloning it is cheap; its connections close when the last clone goes.
#[derive(Clone, Debug)]
pub struct RedisStore {
    inner: Arc<open::Inner>,
}

#[async_trait]
impl Store for RedisStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        check_batch(jobs.len())?;
        jobs.iter().try_for_each(NewJob::check)?;
        let enqueued = enqueue::enqueue(&self.inner, &jobs).await?;
        self.inner.wake_if(enqueued.iter().any(enqueue::wakes));
        Ok(enqueued)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, StoreError> {
        check_batch(request.limit)?;
        claim::claim(&self.inner, &request).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        check_batch(settlements.len())?;
        settlements.iter().try_for_each(Settlement::check)?;
        settle::settle(&self.inner, &settlements).await
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Extended>, StoreError> {
        check_batch(leases.len())?;
        extend::extend(&self.inner, &leases, lease).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<Claimed, StoreError> {
        check_batch(request.limit)?;
        reclaim::reclaim(&self.inner, &request).await
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<Cancelled>, StoreError> {
        check_batch(ids.len())?;
        cancel::cancel(&self.inner, &ids).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<Redriven>, StoreError> {
        check_batch(ids.len())?;
        let redriven = redrive::redrive(&self.inner, &ids).await?;
        self.inner.wake_if(redriven.contains(&Redriven::Done));
        Ok(redriven)
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNow>, StoreError> {
        check_batch(ids.len())?;
        let answers = run_now::run_now(&self.inner, &ids).await?;
        self.inner.wake_if(answers.contains(&RunNow::Done));
        Ok(answers)
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<Discarded>, StoreError> {
        check_batch(ids.len())?;
        discard::discard(&self.inner, &ids).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<Enqueued>>, StoreError> {
        check_batch(jobs.len())?;
        enqueue::find(&self.inner, &jobs).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        check_batch(ids.len())?;
        get::get(&self.inner, &ids).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        page.check()?;
        let after = page.after.map(Cursor::job).transpose()?;
        list::list(&self.inner, &filter, after, page.limit).await
    }

    async fn look(&self, filter: Filter, page: PageRequest, most: usize) -> Result<Looked, StoreError> {
        look_by_lists(self, &filter, page, most).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        page.check()?;
        let after = page.after.map(Cursor::attempt).transpose()?;
        attempts::attempts(&self.inner, id, after, page.limit).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        check_batch(limit)?;
        prune::prune(&self.inner, retention, limit).await
    }

    async fn wait(&self, seen: Wake) {
        self.inner.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: Wake) -> Wake {
        self.inner.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        stats::stats(&self.inner).await
    }
}
