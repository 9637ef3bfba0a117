//! The embedded default store: one SQLite file, one writer with group commit, readers beside it.
//!
//! Every acknowledged write is on disk (WAL, `synchronous = FULL`). Calls that arrive while a commit is under way share
//! the next one, so that many small writers cost few fsyncs. The statements are in `sql/`, one file for each verb.

mod attempts;
mod awaits;
mod cancel;
mod checkpoint;
mod claim;
mod discard;
mod doctor;
mod enqueue;
mod error;
mod export;
mod extend;
mod forget;
mod get;
mod hold;
mod import;
mod lanes;
mod leases;
mod list;
mod look;
mod migrate;
mod open;
mod prune;
mod quotas;
mod readers;
mod recall;
mod reclaim;
mod records;
mod redrive;
mod remember;
mod resume;
mod row;
mod run_now;
mod runs;
mod settle;
mod signal;
mod stats;
mod steps;
mod tally;
mod transaction;
mod transfer;
mod turns;
mod unique;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::store::{
    Cancelled, ClaimRequest, Claimed, Discarded, Enqueued, Extended, Filter, Looked, Page, PageRequest,
    ReclaimRequest, Redriven, Retention, RunNow, Settled, Settlement, Stats, Store, StoreError, Wake,
    check_batch,
};
use redrive_core::{Attempt, Job, JobId, Lease, NewJob};

pub use error::sort;
pub use open::{Options, SystemClock};
pub use rusqlite;
pub use transaction::Transaction;

/// The SQLite store. Cloning it is cheap; the file is closed when the last clone goes.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use redrive_core::Store;
/// use redrive_store_sqlite::SqliteStore;
///
/// let store = SqliteStore::open_in_memory()?;
/// assert_eq!(store.stats().await?.oldest_due, None);
/// # Ok::<(), redrive_core::StoreError>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct SqliteStore {
    inner: Arc<open::Inner>,
}

#[async_trait]
impl Store for SqliteStore {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        check_batch(jobs.len())?;
        jobs.iter().try_for_each(NewJob::check)?;
        self.inner.write(move |tx| enqueue::enqueue(tx, &jobs)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, StoreError> {
        check_batch(request.limit)?;
        self.inner.write(move |tx| claim::claim(tx, &request)).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        check_batch(settlements.len())?;
        settlements.iter().try_for_each(Settlement::check)?;
        self.inner.write(move |tx| settle::settle(tx, &settlements)).await
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Extended>, StoreError> {
        check_batch(leases.len())?;
        self.inner.write(move |tx| extend::extend(tx, &leases, lease)).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<Claimed, StoreError> {
        check_batch(request.limit)?;
        self.inner.write(move |tx| reclaim::reclaim(tx, &request)).await
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<Cancelled>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| cancel::cancel(tx, &ids)).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<Redriven>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| redrive::redrive(tx, &ids)).await
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNow>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| run_now::run_now(tx, &ids)).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<Discarded>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| discard::discard(tx, &ids)).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<Enqueued>>, StoreError> {
        check_batch(jobs.len())?;
        self.inner.read(move |conn, _| enqueue::find(conn, &jobs)).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        check_batch(ids.len())?;
        self.inner.read(move |conn, lanes| get::get(conn, lanes, &ids)).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        page.check()?;
        let after = page.after.map(redrive_core::store::Cursor::job).transpose()?;
        self.inner.read(move |conn, lanes| list::list(conn, lanes, &filter, after, page.limit)).await
    }

    async fn look(&self, filter: Filter, page: PageRequest, most: usize) -> Result<Looked, StoreError> {
        page.check()?;
        let after = page.after.map(redrive_core::store::Cursor::job).transpose()?;
        self.inner
            .read(move |conn, lanes| look::look(conn, lanes, &filter, after, page.limit, most.max(1)))
            .await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        page.check()?;
        let after = page.after.map(redrive_core::store::Cursor::attempt).transpose()?;
        self.inner.read(move |conn, _| attempts::attempts(conn, id, after, page.limit)).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        check_batch(limit)?;
        self.inner.write(move |tx| prune::prune(tx, &retention, limit)).await
    }

    async fn wait(&self, seen: Wake) {
        self.inner.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: Wake) -> Wake {
        self.inner.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let now = self.inner.now();
        self.inner.read(move |conn, lanes| stats::stats(conn, lanes, now)).await
    }
}
