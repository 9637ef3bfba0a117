//! The store for several nodes: one Postgres database that workers and services share, without a leader.
//!
//! Most operations are one statement, and so one transaction and one round trip. The statements are in `sql/`, in one file per
//! concern, named like the modules. An operation is a transaction of several statements only if a later statement must see what an
//! earlier one did: steps with children or signals, follow-ups with unique keys, imports, and claims under limits, which count
//! under locks (`limits/claim.rs`). If a job ends early, further transactions end its descendants; a mark that the first transaction
//! writes makes sure of that (`lifecycle/job_tree.rs`). Leases use the server's clock, so that nodes with skewed clocks agree. A store
//! drives the connection of its heartbeats on a thread of its own, so that a busy runtime of the program cannot delay them.

mod call_batcher;
mod doctor;
mod error;
mod lanes;
mod lifecycle;
mod limits;
mod notifications;
mod open;
mod operate;
mod planned_function;
mod pool;
mod read;
mod records;
mod row;
mod schema;
mod sql;
mod steps;
mod transactions;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::store::{
    CancelResult, ClaimRequest, ClaimedJobs, Cursor, DiscardResult, EnqueueResult, ExtendResult, Filter,
    Page, PageRequest, ReclaimRequest, RedriveResult, Retention, RunNowResult, SearchPage, SettleResult,
    Settlement, Stats, Store, StoreError, WakeToken, check_batch,
};
use redrive_core::{Attempt, Job, JobId, Lease, NewJob};

use crate::lifecycle::{claim, enqueue, extend, prune, reclaim, settle};

pub use doctor::Thresholds;
pub use error::store_error;
pub use open::Options;
pub use open::address::{CONNECTIONS, CONNECTIONS_MAX};
#[cfg(feature = "sqlx")]
pub use sqlx_postgres::PgConnection;
pub use tokio_postgres;
pub use tokio_postgres::Transaction;
pub use transactions::{OpenTransaction, TransactionFuture};

/// The Postgres store. Clones share its connections, which close when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    inner: Arc<open::Inner>,
}

#[async_trait]
impl Store for PostgresStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        check_batch(jobs.len())?;
        enqueue::check(&jobs)?;
        let enqueued = call_batcher::run_batched(&self.inner, jobs).await?;
        self.inner.wake_if(enqueued.iter().any(enqueue::wakes));
        Ok(enqueued)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError> {
        check_batch(request.limit)?;
        Ok(claim::claim(&self.inner, &request).await?)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        check_batch(settlements.len())?;
        settlements.iter().try_for_each(Settlement::check)?;
        let (settled, slot_freed) = settle::settle(&self.inner, &settlements).await?;
        let follow_ups = settlements.iter().any(|settlement| !settlement.follow_ups.is_empty());
        self.inner.wake_if(follow_ups || slot_freed || settled.iter().any(settle::is_claimable));
        Ok(settled)
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<ExtendResult>, StoreError> {
        check_batch(leases.len())?;
        Ok(extend::extend(&self.inner, &leases, lease).await?)
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
        check_batch(request.limit)?;
        Ok(reclaim::reclaim(&self.inner, &request).await?)
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError> {
        check_batch(ids.len())?;
        let (cancelled, slot_given) = operate::cancel(&self.inner, &ids).await?;
        self.inner.wake_if(slot_given);
        Ok(cancelled)
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError> {
        check_batch(ids.len())?;
        let redriven = operate::redrive(&self.inner, &ids).await?;
        self.inner.wake_if(redriven.contains(&RedriveResult::Done));
        Ok(redriven)
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError> {
        check_batch(ids.len())?;
        let made_due = operate::run_now(&self.inner, &ids).await?;
        self.inner.wake_if(made_due.contains(&RunNowResult::Done));
        Ok(made_due)
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError> {
        check_batch(ids.len())?;
        Ok(operate::discard(&self.inner, &ids).await?)
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
        check_batch(jobs.len())?;
        Ok(enqueue::find(&self.inner, &jobs).await?)
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        check_batch(ids.len())?;
        Ok(read::get(&self.inner, &ids).await?)
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        page.check()?;
        let after = page.after.map(Cursor::job).transpose()?;
        Ok(read::list::list(&self.inner, &filter, after, page.limit).await?)
    }

    async fn search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError> {
        page.check()?;
        let after = page.after.map(Cursor::job).transpose()?;
        Ok(read::search::search(&self.inner, &filter, after, page.limit, examined_max.max(1)).await?)
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        page.check()?;
        let after = page.after.map(Cursor::attempt).transpose()?;
        Ok(read::attempts(&self.inner, id, after, page.limit).await?)
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        check_batch(limit)?;
        Ok(prune::prune(&self.inner, &retention, limit).await?)
    }

    async fn wait(&self, seen: WakeToken) {
        self.inner.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        self.inner.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        Ok(read::stats(&self.inner).await?)
    }
}
