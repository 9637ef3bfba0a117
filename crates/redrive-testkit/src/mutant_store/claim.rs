//! Flaws of claim and reclaim.

use std::time::Duration;

use redrive_core::records::PAUSED;
use redrive_core::store::{ClaimRequest, Claimed, ReclaimRequest};
use redrive_core::transfer::SEALED;
use redrive_core::{Invalid, Job, State, Store, StoreError, Timestamp};

use super::{Flaw, Mutant};
use crate::model::Model;

const MS: Duration = Duration::from_millis(1);

impl Mutant {
    pub(super) async fn flawed_claim(&self, request: ClaimRequest) -> Result<Claimed, StoreError> {
        if self.flaw == Flaw::ClaimEarly {
            return self.store.step(|model, now| model.claim(&request, now.after(MS)));
        }
        if self.flaw == Flaw::PauseIgnored {
            return self.without_records(PAUSED, |model, now| model.claim(&request, now));
        }
        if self.flaw == Flaw::SealIgnored {
            return self.without_records(SEALED, |model, now| model.claim(&request, now));
        }
        if self.flaw == Flaw::ClaimOverLimit {
            let limit = request.limit + 1;
            return self.store.claim(ClaimRequest { limit, ..request }).await;
        }
        if self.flaw == Flaw::QuotaIgnored {
            return self.store.step(|model, now| model.without_quotas(|model| model.claim(&request, now)));
        }
        if self.flaw == Flaw::OrderIgnored {
            return self.store.step(|model, now| model.without_order(|model| model.claim(&request, now)));
        }
        let lease = request.lease;
        let mut claimed = self.store.claim(request).await?;
        if self.flaw == Flaw::OwnLeaseIgnored {
            let until = claimed.now.after(lease);
            return self.tamper_all(claimed, |job| job.lease_until = Some(until));
        }
        if self.flaw == Flaw::ClaimFree {
            return self.tamper_all(claimed, |job| job.attempt -= 1);
        }
        if self.flaw == Flaw::ClaimKeepsEpoch {
            return self.tamper_all(claimed, |job| job.epoch -= 1);
        }
        if self.flaw == Flaw::ClaimShared && self.tick().is_multiple_of(3) {
            return self.put_back(claimed);
        }
        if self.flaw == Flaw::ClaimUnordered {
            claimed.jobs.reverse();
        }
        if self.flaw == Flaw::NextDueForgotten {
            claimed.next_due = None;
        }
        Ok(claimed)
    }

    pub(super) async fn flawed_reclaim(&self, request: ReclaimRequest) -> Result<Claimed, StoreError> {
        if self.flaw == Flaw::ReclaimEarly {
            return self.store.step(|model, now| model.reclaim(&request, now.after(MS)));
        }
        if self.flaw == Flaw::ReclaimNever {
            return self.store.reclaim(ReclaimRequest { limit: 0, ..request }).await;
        }
        if self.flaw == Flaw::ReclaimAnyKind {
            return self.store.reclaim(ReclaimRequest { kinds: Vec::new(), ..request }).await;
        }
        if self.flaw == Flaw::ReclaimTakesOwn {
            return self.store.reclaim(ReclaimRequest { held: Vec::new(), ..request }).await;
        }
        if self.flaw == Flaw::ReclaimSparesLost {
            return self.store.step(|model, now| model.reclaim(&in_any_epoch(model, request), now));
        }
        if self.flaw == Flaw::SealLetsReclaim {
            return self.without_records(SEALED, |model, now| model.reclaim(&request, now));
        }
        let claimed = self.store.reclaim(request).await?;
        if self.flaw == Flaw::ReclaimKeepsEpoch {
            return self.tamper_all(claimed, |job| job.epoch -= 1);
        }
        if self.flaw == Flaw::ReclaimRenames {
            return self.tamper_all(claimed, |job| job.worker = None);
        }
        if self.flaw == Flaw::ReclaimCharges {
            return self.tamper_all(claimed, |job| job.attempt += 1);
        }
        Ok(claimed)
    }

    /// Changes the rows and the answer alike.
    fn tamper_all(&self, mut claimed: Claimed, change: impl Fn(&mut Job)) -> Result<Claimed, StoreError> {
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

    /// Leaves the jobs of a claim where they were.
    fn put_back(&self, claimed: Claimed) -> Result<Claimed, StoreError> {
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

    /// Leases as if there were no records of a kind.
    fn without_records(
        &self,
        kind: &str,
        lease: impl FnOnce(&mut Model, Timestamp) -> Result<Claimed, Invalid>,
    ) -> Result<Claimed, StoreError> {
        self.store.step(|model, now| {
            let mut open = model.clone();
            for record in model.scan(kind, None, usize::MAX) {
                open.forget_record(kind, &record.id);
            }
            let claimed = lease(&mut open, now)?;
            for job in &claimed.jobs {
                model.tamper(job.id, |row| *row = job.clone());
            }
            Ok(claimed)
        })
    }
}

/// The request with what its caller holds in the epochs that the jobs are in.
fn in_any_epoch(model: &Model, request: ReclaimRequest) -> ReclaimRequest {
    let held = request.held.iter().filter_map(|lease| model.job(lease.id)).map(Job::lease).collect();
    ReclaimRequest { held, ..request }
}
