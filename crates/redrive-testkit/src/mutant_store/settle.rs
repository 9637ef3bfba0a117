//! Mutations of settle and extend.

use std::time::Duration;

use redrive_core::store::{ExtendResult, SettleResult, Settlement};
use redrive_core::{Attempt, Lease, State, Store, StoreError};

use super::{MutantStore, Mutation};
use crate::model::Model;

impl MutantStore {
    pub(super) async fn mutated_settle(
        &self,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<SettleResult>, StoreError> {
        if self.mutation == Mutation::SettleUnfenced {
            return self.settle_unfenced(settlements);
        }
        if self.mutation == Mutation::SettleAgain {
            return self.settle_again(settlements);
        }
        if self.mutation == Mutation::SettleRefusesLate {
            return self.settle_unless_late(settlements);
        }
        if self.mutation == Mutation::DeathLeavesChildren {
            return self
                .store
                .step(|model, now| model.without_children(|model| model.settle(settlements, now)));
        }
        if self.mutation == Mutation::FreeSlotLost {
            return self
                .store
                .step(|model, now| model.without_slot_waits(|model| model.settle(settlements, now)));
        }
        if self.mutation == Mutation::FollowUpsLost {
            let without_follow_ups =
                settlements.into_iter().map(|s| Settlement { follow_ups: Vec::new(), ..s });
            return self.store.settle(without_follow_ups.collect()).await;
        }
        if self.mutation == Mutation::StatusLost {
            let without_status = settlements.into_iter().map(|s| Settlement { status: None, ..s });
            return self.store.settle(without_status.collect()).await;
        }
        if self.mutation == Mutation::LostLeaseFollowsUp {
            return self.settle_and_follow_up(settlements).await;
        }
        if self.mutation == Mutation::LogLost {
            let without_log = settlements.into_iter().map(|s| Settlement { entry: None, ..s });
            return self.store.settle(without_log.collect()).await;
        }
        if self.mutation == Mutation::LostLeaseLeavesError || self.mutation == Mutation::LostLeaseLeavesLog {
            return self.settle_and_write_under_lost_leases(settlements).await;
        }
        if self.mutation == Mutation::RefundForgotten {
            return self.settle_without_refund(settlements).await;
        }
        self.store.settle(settlements).await
    }

    pub(super) async fn mutated_extend(
        &self,
        leases: Vec<Lease>,
        lease: Duration,
    ) -> Result<Vec<ExtendResult>, StoreError> {
        let answers = self.store.extend(leases, lease).await?;
        let is_hidden = |answer| {
            (self.mutation == Mutation::ExtendUnfenced && answer == ExtendResult::LeaseLost)
                || (self.mutation == Mutation::ExtendHidesCancel && answer == ExtendResult::CancelRequested)
        };
        let reported = |answer| if is_hidden(answer) { ExtendResult::Renewed } else { answer };
        Ok(answers.into_iter().map(reported).collect())
    }

    /// Settles under the current epoch of the row.
    fn settle_unfenced(&self, mut settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        self.store.step(|model, now| {
            for settlement in &mut settlements {
                let lease = &mut settlement.lease;
                lease.epoch = model.job(lease.id).map_or(lease.epoch, |job| job.epoch);
            }
            model.settle(settlements, now)
        })
    }

    /// Also settles jobs that have ended.
    fn settle_again(&self, settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        self.store.step(|model, now| {
            for Settlement { lease, .. } in &settlements {
                model.tamper(lease.id, |job| {
                    if job.state.is_final() {
                        job.state = State::Running;
                        job.finished_at = None;
                    }
                });
            }
            model.settle(settlements, now)
        })
    }

    fn settle_unless_late(&self, mut settlements: Vec<Settlement>) -> Result<Vec<SettleResult>, StoreError> {
        self.store.step(|model, now| {
            for settlement in &mut settlements {
                let until = model.job(settlement.lease.id).and_then(|job| job.lease_until);
                if until.is_some_and(|until| until <= now) {
                    settlement.lease.epoch += 1_000;
                }
            }
            model.settle(settlements, now)
        })
    }

    /// Also writes the error or the log entry of settlements whose lease was lost.
    async fn settle_and_write_under_lost_leases(
        &self,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<SettleResult>, StoreError> {
        let answers = self.store.settle(settlements.clone()).await?;
        self.store.step(|model, _| {
            for (settlement, answer) in settlements.into_iter().zip(&answers) {
                if *answer == SettleResult::LeaseLost {
                    self.write_under_lost_lease(model, settlement);
                }
            }
            Ok(answers)
        })
    }

    async fn settle_and_follow_up(
        &self,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<SettleResult>, StoreError> {
        let answers = self.store.settle(settlements.clone()).await?;
        let follow_ups = settlements.into_iter().flat_map(|settlement| settlement.follow_ups);
        self.store.enqueue(follow_ups.collect()).await?;
        Ok(answers)
    }

    fn write_under_lost_lease(&self, model: &mut Model, settlement: Settlement) {
        let lease = settlement.lease;
        if self.mutation == Mutation::LostLeaseLeavesError {
            model.tamper(lease.id, |job| job.last_error = settlement.error.or(job.last_error.take()));
        } else if let (Some(entry), Some(job)) = (settlement.entry, model.job(lease.id)) {
            let (led_to, worker) = (job.state, job.worker.clone());
            let epoch = lease.epoch;
            model.forge_log(lease, Attempt { epoch, entry, worker, led_to, wait: None, next_run_at: None });
        }
    }

    async fn settle_without_refund(
        &self,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<SettleResult>, StoreError> {
        let refunds: Vec<_> = settlements.iter().map(|s| (s.lease.id, s.verdict.effect().refund)).collect();
        let answers = self.store.settle(settlements).await?;
        self.store.step(|model, _| {
            for ((id, refund), answer) in refunds.into_iter().zip(&answers) {
                if *answer != SettleResult::LeaseLost {
                    model.tamper(id, |job| job.attempt += refund);
                }
            }
            Ok(answers)
        })
    }
}
