//! Flaws of settle and extend.

use std::time::Duration;

use redrive_core::store::{Extended, Settled, Settlement};
use redrive_core::{Attempt, Lease, State, Store, StoreError};

use super::{Flaw, Mutant};
use crate::model::Model;

impl Mutant {
    pub(super) async fn flawed_settle(
        &self,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>, StoreError> {
        if self.flaw == Flaw::SettleUnfenced {
            return self.settle_unfenced(settlements);
        }
        if self.flaw == Flaw::SettleAgain {
            return self.settle_again(settlements);
        }
        if self.flaw == Flaw::SettleRefusesLate {
            return self.settle_unless_late(settlements);
        }
        if self.flaw == Flaw::DeathLeavesChildren {
            return self
                .store
                .step(|model, now| model.without_children(|model| model.settle(settlements, now)));
        }
        if self.flaw == Flaw::TurnLost {
            return self.store.step(|model, now| model.without_turns(|model| model.settle(settlements, now)));
        }
        if self.flaw == Flaw::FollowUpsLost {
            let alone = settlements.into_iter().map(|s| Settlement { follow_ups: Vec::new(), ..s });
            return self.store.settle(alone.collect()).await;
        }
        if self.flaw == Flaw::StatusLost {
            let numberless = settlements.into_iter().map(|s| Settlement { status: None, ..s });
            return self.store.settle(numberless.collect()).await;
        }
        if self.flaw == Flaw::LostLeaseFollowsUp {
            return self.settle_and_follow_up(settlements).await;
        }
        if self.flaw == Flaw::LogLost {
            let silent = settlements.into_iter().map(|s| Settlement { entry: None, ..s });
            return self.store.settle(silent.collect()).await;
        }
        if self.flaw == Flaw::LostLeaseLeavesError || self.flaw == Flaw::LostLeaseLeavesLog {
            return self.settle_with_traces(settlements).await;
        }
        if self.flaw == Flaw::RefundForgotten {
            return self.settle_without_refund(settlements).await;
        }
        self.store.settle(settlements).await
    }

    pub(super) async fn flawed_extend(
        &self,
        leases: Vec<Lease>,
        lease: Duration,
    ) -> Result<Vec<Extended>, StoreError> {
        let answers = self.store.extend(leases, lease).await?;
        let hidden = |answer| {
            (self.flaw == Flaw::ExtendUnfenced && answer == Extended::LeaseLost)
                || (self.flaw == Flaw::ExtendHidesCancel && answer == Extended::CancelRequested)
        };
        let shown = |answer| if hidden(answer) { Extended::Renewed } else { answer };
        Ok(answers.into_iter().map(shown).collect())
    }

    /// Settles under whatever epoch the row has.
    fn settle_unfenced(&self, mut settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        self.store.step(|model, now| {
            for settlement in &mut settlements {
                let lease = &mut settlement.lease;
                lease.epoch = model.job(lease.id).map_or(lease.epoch, |job| job.epoch);
            }
            model.settle(settlements, now)
        })
    }

    /// Settles what has ended too.
    fn settle_again(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
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

    fn settle_unless_late(&self, mut settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
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

    /// Leaves something behind under leases that were lost.
    async fn settle_with_traces(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        let answers = self.store.settle(settlements.clone()).await?;
        self.store.step(|model, _| {
            for (settlement, answer) in settlements.into_iter().zip(&answers) {
                if *answer == Settled::LeaseLost {
                    self.leave_trace(model, settlement);
                }
            }
            Ok(answers)
        })
    }

    async fn settle_and_follow_up(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        let answers = self.store.settle(settlements.clone()).await?;
        let follow_ups = settlements.into_iter().flat_map(|settlement| settlement.follow_ups);
        self.store.enqueue(follow_ups.collect()).await?;
        Ok(answers)
    }

    fn leave_trace(&self, model: &mut Model, settlement: Settlement) {
        let lease = settlement.lease;
        if self.flaw == Flaw::LostLeaseLeavesError {
            model.tamper(lease.id, |job| job.last_error = settlement.error.or(job.last_error.take()));
        } else if let (Some(entry), Some(job)) = (settlement.entry, model.job(lease.id)) {
            let (led_to, worker) = (job.state, job.worker.clone());
            let epoch = lease.epoch;
            model.forge_log(lease, Attempt { epoch, entry, worker, led_to, wait: None, next_run_at: None });
        }
    }

    async fn settle_without_refund(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        let refunds: Vec<_> = settlements.iter().map(|s| (s.lease.id, s.verdict.effect().refund)).collect();
        let answers = self.store.settle(settlements).await?;
        self.store.step(|model, _| {
            for ((id, refund), answer) in refunds.into_iter().zip(&answers) {
                if *answer != Settled::LeaseLost {
                    model.tamper(id, |job| job.attempt += refund);
                }
            }
            Ok(answers)
        })
    }
}
