//! Mutations of claim and reclaim.

use std::time::Duration;

use redrive_core::records::PAUSED;
use redrive_core::store::{ClaimRequest, ClaimedJobs, ReclaimRequest};
use redrive_core::transfer::SEALED;
use redrive_core::{Invalid, Job, State, Store, StoreError, Timestamp};

use super::{MutantStore, Mutation};
use crate::model::Model;

const MS: Duration = Duration::from_millis(1);

impl MutantStore {
    pub(super) async fn mutated_claim(&self, request: ClaimRequest) -> Result<ClaimedJobs, StoreError> {
        if self.mutation == Mutation::ClaimEarly {
            return self.store.step(|model, now| model.claim(&request, now.after(MS)));
        }
        if self.mutation == Mutation::PauseIgnored {
            return self.without_records(PAUSED, |model, now| model.claim(&request, now));
        }
        if self.mutation == Mutation::SealIgnored {
            return self.without_records(SEALED, |model, now| model.claim(&request, now));
        }
        if self.mutation == Mutation::ClaimOverLimit {
            let limit = request.limit + 1;
            return self.store.claim(ClaimRequest { limit, ..request }).await;
        }
        if self.mutation == Mutation::LimitsIgnored {
            return self.store.step(|model, now| model.without_limits(|model| model.claim(&request, now)));
        }
        if self.mutation == Mutation::OrderIgnored {
            return self.store.step(|model, now| model.without_order(|model| model.claim(&request, now)));
        }
        let lease = request.lease;
        let mut claimed = self.store.claim(request).await?;
        if self.mutation == Mutation::OwnLeaseIgnored {
            let until = claimed.now.after(lease);
            return self.tamper_all(claimed, |job| job.lease_until = Some(until));
        }
        if self.mutation == Mutation::ClaimFree {
            return self.tamper_all(claimed, |job| job.attempt -= 1);
        }
        if self.mutation == Mutation::ClaimKeepsEpoch {
            return self.tamper_all(claimed, |job| job.epoch -= 1);
        }
        if self.mutation == Mutation::ClaimShared && self.tick().is_multiple_of(3) {
            return self.put_back(claimed);
        }
        if self.mutation == Mutation::ClaimUnordered {
            claimed.jobs.reverse();
        }
        if self.mutation == Mutation::NextDueForgotten {
            claimed.next_due = None;
        }
        Ok(claimed)
    }

    pub(super) async fn mutated_reclaim(&self, request: ReclaimRequest) -> Result<ClaimedJobs, StoreError> {
        if self.mutation == Mutation::ReclaimEarly {
            return self.store.step(|model, now| model.reclaim(&request, now.after(MS)));
        }
        if self.mutation == Mutation::ReclaimNever {
            return self.store.reclaim(ReclaimRequest { limit: 0, ..request }).await;
        }
        if self.mutation == Mutation::ReclaimAnyKind {
            return self.store.reclaim(ReclaimRequest { kinds: Vec::new(), ..request }).await;
        }
        if self.mutation == Mutation::ReclaimTakesOwn {
            return self.store.reclaim(ReclaimRequest { held: Vec::new(), ..request }).await;
        }
        if self.mutation == Mutation::ReclaimSparesLost {
            return self.store.step(|model, now| model.reclaim(&with_current_epochs(model, request), now));
        }
        if self.mutation == Mutation::SealLetsReclaim {
            return self.without_records(SEALED, |model, now| model.reclaim(&request, now));
        }
        let claimed = self.store.reclaim(request).await?;
        if self.mutation == Mutation::ReclaimKeepsEpoch {
            return self.tamper_all(claimed, |job| job.epoch -= 1);
        }
        if self.mutation == Mutation::ReclaimRenames {
            return self.tamper_all(claimed, |job| job.worker = None);
        }
        if self.mutation == Mutation::ReclaimCharges {
            return self.tamper_all(claimed, |job| job.attempt += 1);
        }
        Ok(claimed)
    }

    /// Changes the rows and the result in the same way.
    fn tamper_all(
        &self,
        mut claimed: ClaimedJobs,
        change: impl Fn(&mut Job),
    ) -> Result<ClaimedJobs, StoreError> {
        for job in &mut claimed.jobs {
            change(job);
        }
        self.store.step(|model, _| {
            for job in &claimed.jobs {
                model.tamper(job.id, &change);
            }
            Ok(claimed)
        })
    }

    /// Leaves the claimed jobs claimable.
    fn put_back(&self, claimed: ClaimedJobs) -> Result<ClaimedJobs, StoreError> {
        self.store.step(|model, _| {
            for job in &claimed.jobs {
                model.tamper(job.id, |job| {
                    job.state = State::Pending;
                    job.lease_until = None;
                    job.epoch -= 1;
                });
            }
            Ok(claimed)
        })
    }

    /// Claims as if there were no records of a kind.
    fn without_records(
        &self,
        kind: &str,
        lease: impl FnOnce(&mut Model, Timestamp) -> Result<ClaimedJobs, Invalid>,
    ) -> Result<ClaimedJobs, StoreError> {
        self.store.step(|model, now| {
            let mut copy = model.clone();
            for record in model.scan(kind, None, usize::MAX) {
                copy.forget_record(kind, &record.id);
            }
            let claimed = lease(&mut copy, now)?;
            for job in &claimed.jobs {
                model.tamper(job.id, |row| *row = job.clone());
            }
            Ok(claimed)
        })
    }
}

/// The request, with the current epochs of the jobs that its caller holds.
fn with_current_epochs(model: &Model, request: ReclaimRequest) -> ReclaimRequest {
    let held = request.held.iter().filter_map(|lease| model.job(lease.id)).map(Job::lease).collect();
    ReclaimRequest { held, ..request }
}
