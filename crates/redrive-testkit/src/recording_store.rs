//! A store that notes down its answers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redrive_core::records::{Change, Record, Written};
use redrive_core::steps::{Forgotten, Hold, Memory, Remembered, Signal, Signalled, Step, Swept};
use redrive_core::store::{
    Backend, Cancelled, ClaimRequest, Claimed, Discarded, Enqueued, Extended, Filter, Looked, Page,
    PageRequest, ReclaimRequest, Redriven, Retention, RunNow, Settled, Settlement, Stats, Wake,
};
use redrive_core::transfer::{Exported, Imported, Parcel, Promise, Slot};
use redrive_core::{
    Attempt, Job, JobId, Lease, NewJob, Records, SignalName, Steps, Store, StoreError, Transfer,
};
use uuid::Uuid;

use crate::history::{self, By, Happening, History, Leased};

/// Any store, with its answers noted down in a [`History`].
#[derive(Clone)]
pub struct Recorded {
    store: Arc<dyn Backend>,
    history: History,
}

impl Recorded {
    /// Notes the answers of `store` down in `history`.
    pub fn new(store: Arc<dyn Backend>, history: History) -> Self {
        Self { store, history }
    }

    fn leased(&self, jobs: &[Job], by: By) {
        for job in jobs {
            self.history.add(Happening::Leased(Leased {
                lease: job.lease(),
                by,
                worker: job.worker.clone(),
                run: job.run,
                attempt: job.attempt,
                policy: job.policy.clone(),
            }));
        }
    }
}

/// What is known of a settlement before its answer: the lease, what it refunds, and whether it has a log entry.
fn asked(settlement: &Settlement) -> (Lease, u32, bool) {
    (settlement.lease, settlement.verdict.effect().refund, settlement.entry.is_some())
}

/// Jobs without a key: one with a key may turn out to be another job.
fn without_key(jobs: &[NewJob]) -> Vec<JobId> {
    jobs.iter().filter(|job| job.idempotency.is_none() && job.unique.is_none()).map(|job| job.id).collect()
}

#[async_trait]
impl Store for Recorded {
    async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>, StoreError> {
        let answers = self.store.enqueue(jobs).await?;
        for answer in &answers {
            match answer {
                Enqueued::Created(id) | Enqueued::Existing(id) | Enqueued::Replaced(id) => {
                    self.history.add(Happening::Acknowledged(*id))
                }
                Enqueued::Conflict(_) => {}
            }
        }
        Ok(answers)
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed, StoreError> {
        let claimed = self.store.claim(request).await?;
        self.leased(&claimed.jobs, By::Claim);
        Ok(claimed)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        let asked: Vec<_> = settlements.iter().map(asked).collect();
        let follow_ups: Vec<Vec<JobId>> =
            settlements.iter().map(|settlement| without_key(&settlement.follow_ups)).collect();
        let answers = self.store.settle(settlements).await?;
        for (ids, answer) in follow_ups.into_iter().zip(&answers) {
            if matches!(answer, Settled::Applied(_)) {
                ids.into_iter().for_each(|id| self.history.add(Happening::Acknowledged(id)));
            }
        }
        for ((lease, refund, logged), answer) in asked.into_iter().zip(&answers) {
            self.history.add(match answer {
                Settled::Applied(led_to) => {
                    Happening::Settled(history::Settlement { lease, led_to: *led_to, refund, logged })
                }
                Settled::LeaseLost => Happening::ShutOut(lease),
            });
        }
        Ok(answers)
    }

    async fn extend(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Extended>, StoreError> {
        self.store.extend(leases, lease).await
    }

    async fn reclaim(&self, request: ReclaimRequest) -> Result<Claimed, StoreError> {
        let claimed = self.store.reclaim(request).await?;
        self.leased(&claimed.jobs, By::Reclaim);
        Ok(claimed)
    }

    async fn cancel(&self, ids: Vec<JobId>) -> Result<Vec<Cancelled>, StoreError> {
        let answers = self.store.cancel(ids.clone()).await?;
        for (id, answer) in ids.into_iter().zip(&answers) {
            match answer {
                Cancelled::Done => self.history.add(Happening::Cancelled(id)),
                Cancelled::Requested => self.history.add(Happening::CancelRequested(id)),
                Cancelled::Ended(_) | Cancelled::NotFound => {}
            }
        }
        Ok(answers)
    }

    async fn redrive(&self, ids: Vec<JobId>) -> Result<Vec<Redriven>, StoreError> {
        let answers = self.store.redrive(ids.clone()).await?;
        for (id, answer) in ids.into_iter().zip(&answers) {
            match answer {
                Redriven::Done => self.history.add(Happening::Redriven(id)),
                Redriven::NotDead(_) | Redriven::NotFound => {}
            }
        }
        Ok(answers)
    }

    async fn run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNow>, StoreError> {
        self.store.run_now(ids).await
    }

    async fn discard(&self, ids: Vec<JobId>) -> Result<Vec<Discarded>, StoreError> {
        let answers = self.store.discard(ids.clone()).await?;
        for (id, answer) in ids.into_iter().zip(&answers) {
            match answer {
                Discarded::Done => self.history.add(Happening::Discarded(id)),
                Discarded::NotDead(_) | Discarded::NotFound => {}
            }
        }
        Ok(answers)
    }

    async fn find(&self, jobs: Vec<NewJob>) -> Result<Vec<Option<Enqueued>>, StoreError> {
        self.store.find(jobs).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<Option<Job>>, StoreError> {
        self.store.get(ids).await
    }

    async fn list(&self, filter: Filter, page: PageRequest) -> Result<Page<Job>, StoreError> {
        self.store.list(filter, page).await
    }

    async fn look(&self, filter: Filter, page: PageRequest, most: usize) -> Result<Looked, StoreError> {
        self.store.look(filter, page, most).await
    }

    async fn attempts(&self, id: JobId, page: PageRequest) -> Result<Page<Attempt>, StoreError> {
        self.store.attempts(id, page).await
    }

    async fn prune(&self, retention: Retention, limit: usize) -> Result<usize, StoreError> {
        let count = self.store.prune(retention, limit).await?;
        if count > 0 {
            self.history.add(Happening::Pruned(count));
        }
        Ok(count)
    }

    async fn wait(&self, seen: Wake) {
        self.store.wait(seen).await;
    }

    async fn wait_for_cancel(&self, seen: Wake) -> Wake {
        self.store.wait_for_cancel(seen).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.store.stats().await
    }
}

#[async_trait]
impl Steps for Recorded {
    async fn recall(&self, id: JobId, from: u32, limit: usize) -> Result<Vec<Step>, StoreError> {
        self.store.recall(id, from, limit).await
    }

    async fn remember(&self, memories: Vec<Memory>) -> Result<Vec<Remembered>, StoreError> {
        let children: Vec<Vec<JobId>> = memories.iter().map(|memory| without_key(&memory.children)).collect();
        let answers = self.store.remember(memories).await?;
        for (ids, answer) in children.into_iter().zip(&answers) {
            if matches!(answer, Remembered::Kept(_)) {
                ids.into_iter().for_each(|id| self.history.add(Happening::Acknowledged(id)));
            }
        }
        Ok(answers)
    }

    async fn signal(&self, signals: Vec<Signal>) -> Result<Vec<Signalled>, StoreError> {
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

    async fn set_aside(&self, lease: Lease, signals: Vec<Uuid>) -> Result<bool, StoreError> {
        self.store.set_aside(lease, signals).await
    }

    async fn resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        self.store.resume(ids).await
    }

    async fn sweep(&self, after: Option<JobId>, limit: usize) -> Result<Swept, StoreError> {
        self.store.sweep(after, limit).await
    }

    async fn hold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.store.hold(ids).await
    }

    async fn unhold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        self.store.unhold(ids).await
    }

    async fn forget(&self, ids: Vec<JobId>) -> Result<Vec<Forgotten>, StoreError> {
        self.store.forget(ids).await
    }
}

#[async_trait]
impl Records for Recorded {
    async fn read(&self, kind: &str, id: &str) -> Result<Option<Record>, StoreError> {
        self.store.read(kind, id).await
    }

    async fn write(&self, change: Change) -> Result<Written, StoreError> {
        self.store.write(change).await
    }

    async fn scan(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.store.scan(kind, after, limit).await
    }
}

#[async_trait]
impl Transfer for Recorded {
    async fn export(&self, after: Option<JobId>, limit: usize) -> Result<Exported, StoreError> {
        self.store.export(after, limit).await
    }

    async fn import(&self, parcels: Vec<Parcel>) -> Result<Vec<Imported>, StoreError> {
        self.store.import(parcels).await
    }

    async fn export_records(
        &self,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<Slot>, StoreError> {
        self.store.export_records(after, limit).await
    }

    async fn import_records(&self, slots: Vec<Slot>) -> Result<Vec<bool>, StoreError> {
        self.store.import_records(slots).await
    }

    async fn export_promises(&self, after: Option<JobId>, limit: usize) -> Result<Vec<Promise>, StoreError> {
        self.store.export_promises(after, limit).await
    }

    async fn import_promises(&self, promises: Vec<Promise>) -> Result<Vec<bool>, StoreError> {
        self.store.import_promises(promises).await
    }
}
