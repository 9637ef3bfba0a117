//! The store for several nodes: one Postgres database that workers and services share, with no leader.
//!
//! Each verb is one statement, so that it is one transaction and one round trip; the statements are in `sql/`, one file for
//! each. Only what must see the effects of its own first half is a transaction of several: steps with children or signals,
//! follow-ups with unique keys, imports, and claims that have to keep to limits, which count under locks (`claim_bounded.rs`).
//! What is below a job that ends early ends in further transactions, which a mark makes sure of (`trees.rs`). The server's
//! clock rules leases, so nodes with skewed clocks agree. A store drives its connections on a thread of its own: nothing that the
//! program's runtime is busy with keeps a heartbeat from going out.

mod address;
mod attempts;
mod awaits;
mod cancel;
mod claim;
mod claim_bounded;
mod columns;
mod discard;
mod doctor;
mod enqueue;
mod error;
mod export;
mod extend;
mod floors;
mod forget;
mod found;
mod full_look;
mod gather;
mod get;
mod hold;
mod import;
mod import_columns;
mod lanes;
mod leases;
mod list;
mod listen;
mod locks;
mod look;
mod migrate;
mod open;
mod pool;
mod prune;
mod recall;
mod reclaim;
mod records;
mod redrive;
mod remember;
mod resume;
mod row;
mod run_now;
mod settle;
mod settle_columns;
mod signal;
#[cfg(feature = "sqlx")]
mod sqlx;
mod stats;
mod steps;
mod sweep;
mod tls;
mod transact;
mod transaction;
mod transfer;
mod trees;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::store::{
    Cancelled, ClaimRequest, Claimed, Cursor, Discarded, Enqueued, Extended, Filter, Looked, Page,
    PageRequest, ReclaimRequest, Redriven, Retention, RunNow, Settled, Settlement, Stats, Store, StoreError,
    Wake, check_batch,
};
use redrive_core::{Attempt, Job, JobId, Lease, NewJob};

pub use address::{CONNECTIONS, CONNECTIONS_MAX};
pub use doctor::Thresholds;
pub use error::sort;
pub use open::Options;
#[cfg(feature = "sqlx")]
pub use sqlx_postgres::PgConnection;
pub use tokio_postgres;
pub use tokio_postgres::Transaction;
pub use transact::{OpenTransaction, Work};

/// The Postgres store. Cloning it is cheap; its connections close when the last clone goes.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    inner: Arc<open::Inner>,
}

#[async_trait]
impl Store for PostgresStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        check_batch(jobs.len())?;
        enqueue::check(&jobs)?;
        let enqueued = gather::together(&self.inner, jobs).await?;
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
        let (settled, made_room) = settle::settle(&self.inner, &settlements).await?;
        let follow_ups = settlements.iter().any(|settlement| !settlement.follow_ups.is_empty());
        self.inner.wake_if(
            follow_ups
                || made_room
                || settled.iter().any(|each| matches!(each, Settled::Applied(state) if state.is_claimable())),
        );
        Ok(settled)
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
        let (cancelled, made_room) = cancel::cancel(&self.inner, &ids).await?;
        self.inner.wake_if(made_room);
        Ok(cancelled)
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<Redriven>, StoreError> {
        check_batch(ids.len())?;
        let redriven = redrive::redrive(&self.inner, &ids).await?;
        self.inner.wake_if(redriven.contains(&Redriven::Done));
        Ok(redriven)
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNow>, StoreError> {
        check_batch(ids.len())?;
        let hurried = run_now::run_now(&self.inner, &ids).await?;
        self.inner.wake_if(hurried.contains(&RunNow::Done));
        Ok(hurried)
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
        page.check()?;
        let after = page.after.map(Cursor::job).transpose()?;
        look::look(&self.inner, &filter, after, page.limit, most.max(1)).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        page.check()?;
        let after = page.after.map(Cursor::attempt).transpose()?;
        attempts::attempts(&self.inner, id, after, page.limit).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        check_batch(limit)?;
        prune::prune(&self.inner, &retention, limit).await
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
