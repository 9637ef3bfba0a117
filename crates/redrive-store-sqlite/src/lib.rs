//! The embedded default store: one SQLite file, one writer that groups commits, and read-only connections next to it.
//!
//! Every acknowledged write is on disk (WAL, `synchronous = FULL`). Calls that arrive during a commit share the next
//! one, so that many small writes cost few fsyncs. The statements are in `sql/`, one file for each group of operations.

mod checkpoint;
mod counts;
mod doctor;
mod error;
mod lanes;
mod lifecycle;
mod limits;
mod open;
mod operate;
mod read;
mod readers;
mod records;
mod row;
mod schema;
mod sql;
mod steps;
mod transaction;
mod transfer;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::records::{Record, RecordStore, RecordWrite, WriteResult};
use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, Step, SweepResult,
};
use redrive_core::store::{
    CancelResult, ClaimRequest, ClaimedJobs, Cursor, DiscardResult, EnqueueResult, ExtendResult, Filter,
    Page, PageRequest, ReclaimRequest, RedriveResult, Retention, RunNowResult, SearchPage, SettleResult,
    Settlement, Stats, Store, StoreError, WakeToken, check_batch,
};
use redrive_core::transfer::{ExportPage, ImportResult, JobSnapshot, RecordSnapshot, ReservedKey};
use redrive_core::{Attempt, Job, JobId, Lease, NewJob, SignalName, Steps, Transfer};
use uuid::Uuid;

use lifecycle::{claim, enqueue, prune, reclaim, settle};
use read::search;

pub use error::store_error;
pub use open::{Options, SystemClock};
pub use rusqlite;
pub use transaction::Transaction;

/// The SQLite store. Clones are cheap and share one file, which is closed when the last clone is dropped.
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
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        check_batch(jobs.len())?;
        jobs.iter().try_for_each(NewJob::check)?;
        self.inner.write(move |tx| enqueue::enqueue(tx, &jobs)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError> {
        check_batch(request.limit)?;
        let claim = self.inner.write(move |tx| claim::claim(tx, &request)).await?;
        self.inner.read_claimed(claim).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        check_batch(settlements.len())?;
        settlements.iter().try_for_each(Settlement::check)?;
        self.inner.write(move |tx| settle::settle(tx, &settlements)).await
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<ExtendResult>, StoreError> {
        check_batch(leases.len())?;
        self.inner.write(move |tx| settle::extend(tx, &leases, lease)).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
        check_batch(request.limit)?;
        self.inner.write(move |tx| reclaim::reclaim(tx, &request)).await
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| operate::cancel(tx, &ids)).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| operate::redrive(tx, &ids)).await
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| operate::run_now(tx, &ids)).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| operate::discard(tx, &ids)).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
        check_batch(jobs.len())?;
        self.inner.read(move |conn, _| enqueue::find(conn, &jobs)).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        check_batch(ids.len())?;
        self.inner.read(move |conn, lanes| read::get(conn, lanes, &ids)).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        page.check()?;
        let after = page.after.map(Cursor::job).transpose()?;
        self.inner.read(move |conn, lanes| read::list(conn, lanes, &filter, after, page.limit)).await
    }

    async fn search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError> {
        page.check()?;
        let after = page.after.map(Cursor::job).transpose()?;
        self.inner
            .read(move |conn, lanes| {
                search::search(conn, lanes, &filter, after, page.limit, examined_max.max(1))
            })
            .await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        page.check()?;
        let after = page.after.map(Cursor::attempt).transpose()?;
        self.inner.read(move |conn, _| read::attempts(conn, id, after, page.limit)).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        check_batch(limit)?;
        self.inner.write(move |tx| prune::prune(tx, &retention, limit)).await
    }

    async fn wait(&self, seen: WakeToken) {
        self.inner.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        self.inner.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let now = self.inner.now();
        self.inner.read(move |conn, lanes| read::stats(conn, lanes, now)).await
    }
}

#[async_trait]
impl Steps for SqliteStore {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.inner.read(move |conn, _| steps::recall(conn, id, from, limit)).await
    }

    async fn remember(&self, steps: Vec<NewStep>) -> Result<Vec<RememberResult>, StoreError> {
        NewStep::check_all(&steps)?;
        self.inner.write(move |tx| steps::remember(tx, &steps)).await
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, StoreError> {
        Signal::check_all(&signals)?;
        self.inner.write(move |tx| steps::signal(tx, &signals)).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        self.inner.read(move |conn, _| steps::pending_signals(conn, job, &names, limit)).await
    }

    async fn skip_signals(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        check_batch(signals.len())?;
        self.inner.write(move |tx| steps::skip_signals(tx, lease, &signals)).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| steps::resume(tx, &ids)).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<SweepResult, StoreError> {
        check_batch(limit)?;
        self.inner.write(move |tx| steps::sweep(tx, after, limit)).await
    }

    async fn pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| operate::pause(tx, &ids)).await
    }

    async fn unpause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| operate::unpause(tx, &ids)).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError> {
        check_batch(ids.len())?;
        self.inner.write(move |tx| steps::forget(tx, &ids)).await
    }
}

#[async_trait]
impl RecordStore for SqliteStore {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        let (kind, id) = (kind.to_owned(), id.to_owned());
        self.inner.read(move |conn, _| records::read(conn, &kind, &id)).await
    }

    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError> {
        change.check()?;
        self.inner.write(move |tx| records::write(tx, &change)).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        let (kind, after) = (kind.to_owned(), after.unwrap_or_default().to_owned());
        self.inner.read(move |conn, _| records::scan(conn, &kind, &after, limit)).await
    }
}

#[async_trait]
impl Transfer for SqliteStore {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, StoreError> {
        check_batch(limit)?;
        self.inner.read(move |conn, lanes| transfer::export(conn, lanes, after, limit)).await
    }

    async fn import(&self, snapshots: Vec<JobSnapshot>) -> Result<Vec<ImportResult>, StoreError> {
        JobSnapshot::check_all(&snapshots)?;
        self.inner.write(move |tx| transfer::import(tx, &snapshots)).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError> {
        let (kind, id) = after.unwrap_or_default();
        let after = (kind.to_owned(), id.to_owned());
        self.inner.read(move |conn, _| records::export(conn, &after, limit)).await
    }

    async fn import_records(&self, snapshots: Vec<RecordSnapshot>) -> Result<Vec<bool>, StoreError> {
        RecordSnapshot::check_all(&snapshots)?;
        self.inner.write(move |tx| records::import(tx, &snapshots)).await
    }

    async fn export_reserved_keys(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<ReservedKey>, StoreError> {
        let now = self.inner.now();
        self.inner.read(move |conn, _| transfer::export_reserved_keys(conn, now, after, limit)).await
    }

    async fn import_reserved_keys(&self, keys: Vec<ReservedKey>) -> Result<Vec<bool>, StoreError> {
        check_batch(keys.len())?;
        self.inner.write(move |tx| transfer::import_reserved_keys(tx, &keys)).await
    }
}
