//! A store whose epochs are counts of leases, so that it can be compared with the model.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::records::{Record, RecordWrite, WriteResult};
use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, Step, SweepResult,
};
use redrive_core::store::{
    Backend, CancelResult, ClaimRequest, ClaimedJobs, Cursor, DiscardResult, EnqueueResult, ExtendResult,
    Filter, Page, PageRequest, ReclaimRequest, RedriveResult, Retention, RunNowResult, SearchPage,
    SettleResult, Settlement, Stats, UnreadableJob, WakeToken,
};
use redrive_core::transfer::{ExportPage, ImportResult, JobSnapshot, RecordSnapshot, ReservedKey};
use redrive_core::{
    Attempt, Epoch, Job, JobId, Lease, NewJob, RecordStore, SignalName, Steps, Store, StoreError, Transfer,
    lease_count,
};
use uuid::Uuid;

/// Wraps a store. Its answers have counts of leases instead of epochs, and calls name leases by these counts.
///
/// The model counts leases, while a store may put more into its epochs. Behind this wrapper the two agree, and one call with one
/// lease can be made on both.
pub(crate) struct EpochTranslator {
    store: Arc<dyn Backend>,
    epochs: Mutex<KnownEpochs>,
}

impl EpochTranslator {
    pub(crate) fn new(store: Arc<dyn Backend>) -> Self {
        Self { store, epochs: Mutex::default() }
    }

    fn epochs(&self) -> MutexGuard<'_, KnownEpochs> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_leases(&self, mut claimed: ClaimedJobs) -> ClaimedJobs {
        let mut epochs = self.epochs();
        for job in &mut claimed.jobs {
            epochs.record(job.lease());
            job.epoch = epochs.count(job.id, job.epoch);
        }
        for UnreadableJob { lease, .. } in &mut claimed.unreadable {
            epochs.record(*lease);
            lease.epoch = epochs.count(lease.id, lease.epoch);
        }
        claimed
    }
}

/// The epochs of each job that the store has granted or imported, by count of leases.
#[derive(Default)]
struct KnownEpochs(BTreeMap<JobId, BTreeMap<Epoch, Epoch>>);

impl KnownEpochs {
    /// Records a new lease. Panics if the epoch of the job has not grown.
    fn record(&mut self, lease: Lease) {
        let known = self.0.entry(lease.id).or_default();
        let count = Epoch::from(lease_count(lease.epoch));
        // The job was deleted, and another one has its id. Its count starts again.
        known.split_off(&count);
        if let Some((_, before)) = known.last_key_value() {
            assert!(lease.epoch > *before, "the epoch of {} went from {before} to {}", lease.id, lease.epoch);
        }
        known.insert(count, lease.epoch);
    }

    /// Forgets the epochs of a job and records those of its import.
    fn replace(&mut self, id: JobId, epochs: Vec<Epoch>) {
        let by_count = epochs.into_iter().map(|epoch| (Epoch::from(lease_count(epoch)), epoch));
        self.0.insert(id, by_count.collect());
    }

    fn find(&self, id: JobId, count: Epoch) -> Option<Epoch> {
        if count == 0 { Some(0) } else { self.0.get(&id)?.get(&count).copied() }
    }

    /// The count of leases in an epoch of the store. An unknown epoch stays unchanged, so that a comparison with the model fails.
    fn count(&self, id: JobId, epoch: Epoch) -> Epoch {
        let count = Epoch::from(lease_count(epoch));
        if self.find(id, count) == Some(epoch) { count } else { epoch }
    }

    fn count_all<'a>(&self, jobs: impl IntoIterator<Item = &'a mut Job>) {
        jobs.into_iter().for_each(|job| job.epoch = self.count(job.id, job.epoch));
    }

    fn count_log(&self, id: JobId, log: &mut [Attempt]) {
        log.iter_mut().for_each(|attempt| attempt.epoch = self.count(id, attempt.epoch));
    }

    /// Replaces a count by the epoch of the store. An unknown count stays unchanged, because the store has no such lease.
    fn restore(&self, lease: &mut Lease) {
        lease.epoch = self.find(lease.id, lease.epoch).unwrap_or(lease.epoch);
    }

    fn restore_all<'a>(&self, leases: impl IntoIterator<Item = &'a mut Lease>) {
        leases.into_iter().for_each(|lease| self.restore(lease));
    }

    /// The cursor that separates the same attempts in the log of the store as `after` does in the log of the model.
    fn restore_cursor(&self, id: JobId, after: Epoch) -> Epoch {
        let Some(known) = self.0.get(&id) else { return after };
        let newer = known.range(after..).next().map(|(_, epoch)| *epoch);
        newer.or_else(|| known.last_key_value().map(|(_, newest)| newest + 1)).unwrap_or(after)
    }

    /// Replaces all counts of a snapshot, or none: the log of another job under this id may have leases that this one never had.
    fn restore_snapshot(&self, snapshot: &mut JobSnapshot) {
        let id = snapshot.job.id;
        if epochs_of(snapshot).into_iter().all(|count| self.find(id, count).is_some()) {
            let restore = |epoch: &mut Epoch| *epoch = self.find(id, *epoch).unwrap_or(*epoch);
            restore(&mut snapshot.job.epoch);
            snapshot.log.iter_mut().for_each(|attempt| restore(&mut attempt.epoch));
        }
    }
}

/// The epochs of the job and its log.
fn epochs_of(snapshot: &JobSnapshot) -> Vec<Epoch> {
    snapshot.log.iter().map(|attempt| attempt.epoch).chain([snapshot.job.epoch]).collect()
}

#[async_trait]
impl Store for EpochTranslator {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<EnqueueResult>, StoreError> {
        self.store.enqueue(jobs).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError> {
        Ok(self.record_leases(self.store.claim(request).await?))
    }

    async fn settle(&self, mut settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        self.epochs().restore_all(settlements.iter_mut().map(|settlement| &mut settlement.lease));
        self.store.settle(settlements).await
    }

    async fn extend(&self, mut leases: Vec<Lease>, lease: Duration) -> Result<Vec<ExtendResult>, StoreError> {
        self.epochs().restore_all(&mut leases);
        self.store.extend(leases, lease).await
    }

    async fn reclaim(&self, mut request: ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
        self.epochs().restore_all(&mut request.held);
        Ok(self.record_leases(self.store.reclaim(request).await?))
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError> {
        self.store.cancel(ids).await
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError> {
        self.store.redrive(ids).await
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError> {
        self.store.run_now(ids).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError> {
        self.store.discard(ids).await
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<EnqueueResult>>, StoreError> {
        self.store.find(jobs).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        let mut jobs = self.store.get(ids).await?;
        self.epochs().count_all(jobs.iter_mut().flatten());
        Ok(jobs)
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        let mut jobs = self.store.list(filter, page).await?;
        self.epochs().count_all(&mut jobs.items);
        Ok(jobs)
    }

    async fn search(
        &self,
        filter: Filter,
        page: PageRequest,
        examined_max: usize,
    ) -> Result<SearchPage, StoreError> {
        let mut result = self.store.search(filter, page, examined_max).await?;
        self.epochs().count_all(&mut result.page.items);
        Ok(result)
    }

    async fn attempts(&self, id: JobId, mut page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        if let Some(Cursor::Attempt(after)) = &mut page.after {
            *after = self.epochs().restore_cursor(id, *after);
        }
        let mut attempts = self.store.attempts(id, page).await?;
        let epochs = self.epochs();
        epochs.count_log(id, &mut attempts.items);
        if let Some(Cursor::Attempt(next)) = &mut attempts.next {
            *next = epochs.count(id, *next);
        }
        Ok(attempts)
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        self.store.prune(retention, limit).await
    }

    async fn wait(&self, seen: WakeToken) {
        self.store.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: WakeToken) -> WakeToken {
        self.store.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.store.stats().await
    }
}

#[async_trait]
impl Steps for EpochTranslator {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.store.recall(id, from, limit).await
    }

    async fn remember(&self, mut new_steps: Vec<NewStep>) -> Result<Vec<RememberResult>, StoreError> {
        self.epochs().restore_all(new_steps.iter_mut().map(|new_step| &mut new_step.lease));
        self.store.remember(new_steps).await
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, StoreError> {
        self.store.signal(signals).await
    }

    async fn pending_signals(
        &self,
        job: JobId,
        names: Vec<SignalName>,
        limit: usize,
    ) -> Result<Vec<Signal>, StoreError> {
        self.store.pending_signals(job, names, limit).await
    }

    async fn skip_signals(&self, mut lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        self.epochs().restore(&mut lease);
        self.store.skip_signals(lease, signals).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.store.resume(ids).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<SweepResult, StoreError> {
        self.store.sweep(after, limit).await
    }

    async fn pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.store.pause(ids).await
    }

    async fn unpause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        self.store.unpause(ids).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError> {
        self.store.forget(ids).await
    }
}

#[async_trait]
impl RecordStore for EpochTranslator {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.store.read(kind, id).await
    }

    async fn write(&self, change: RecordWrite) -> Result<WriteResult, StoreError> {
        self.store.write(change).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.store.scan(kind, after, limit).await
    }
}

#[async_trait]
impl Transfer for EpochTranslator {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<ExportPage, StoreError> {
        let mut page = self.store.export(after, limit).await?;
        let epochs = self.epochs();
        for snapshot in &mut page.jobs {
            epochs.count_log(snapshot.job.id, &mut snapshot.log);
            epochs.count_all([&mut snapshot.job]);
        }
        for UnreadableJob { lease, .. } in &mut page.unreadable {
            lease.epoch = epochs.count(lease.id, lease.epoch);
        }
        Ok(page)
    }

    async fn import(&self, mut snapshots: Vec<JobSnapshot>) -> Result<Vec<ImportResult>, StoreError> {
        snapshots.iter_mut().for_each(|snapshot| self.epochs().restore_snapshot(snapshot));
        let imported: Vec<_> =
            snapshots.iter().map(|snapshot| (snapshot.job.id, epochs_of(snapshot))).collect();
        let answers = self.store.import(snapshots).await?;
        for ((id, epochs), answer) in imported.into_iter().zip(&answers) {
            if matches!(answer, ImportResult::Created | ImportResult::Replaced) {
                self.epochs().replace(id, epochs);
            }
        }
        Ok(answers)
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<RecordSnapshot>, StoreError> {
        self.store.export_records(after, limit).await
    }

    async fn import_records(&self, records: Vec<RecordSnapshot>) -> Result<Vec<bool>, StoreError> {
        self.store.import_records(records).await
    }

    async fn export_reserved_keys(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<ReservedKey>, StoreError> {
        self.store.export_reserved_keys(after, limit).await
    }

    async fn import_reserved_keys(&self, keys: Vec<ReservedKey>) -> Result<Vec<bool>, StoreError> {
        self.store.import_reserved_keys(keys).await
    }
}
