//! Mutations of cancel, redrive, run now and discard.

use redrive_core::store::{CancelResult, DiscardResult, RedriveResult, RunNowResult};
use redrive_core::{JobId, State, Store, StoreError};

use super::{MutantStore, Mutation};

impl MutantStore {
    pub(super) async fn mutated_cancel(&self, ids: Vec<JobId>) -> Result<Vec<CancelResult>, StoreError> {
        if self.mutation == Mutation::CancelPretends {
            let mut copy = self.store.inspect(Clone::clone);
            return self.store.step(|_, now| copy.cancel(&ids, now));
        }
        if self.mutation == Mutation::DetachedEnded {
            return self.store.step(|model, now| model.with_detached(false, |model| model.cancel(&ids, now)));
        }
        if self.mutation == Mutation::CancelLeavesChildren {
            return self.store.step(|model, now| model.without_children(|model| model.cancel(&ids, now)));
        }
        let answers = self.store.cancel(ids.clone()).await?;
        if self.mutation == Mutation::CancelForgotten {
            self.store.step(|model, _| {
                for id in ids {
                    model.tamper(id, |job| job.cancel_requested = false);
                }
                Ok(())
            })?;
        }
        Ok(answers)
    }

    pub(super) async fn mutated_redrive(&self, ids: Vec<JobId>) -> Result<Vec<RedriveResult>, StoreError> {
        let attempts: Vec<u32> = self
            .store
            .inspect(|model| ids.iter().map(|id| model.job(*id).map_or(0, |job| job.attempt)).collect());
        let mut answers = self.store.redrive(ids.clone()).await?;
        self.store.step(|model, _| {
            for ((id, attempt), answer) in ids.into_iter().zip(attempts).zip(&mut answers) {
                let done = *answer == RedriveResult::Done;
                if self.mutation == Mutation::RedriveTwice
                    && *answer == RedriveResult::NotDead(State::Pending)
                {
                    model.tamper(id, |job| job.run += 1);
                    *answer = RedriveResult::Done;
                }
                if self.mutation == Mutation::RedriveKeepsAttempts && done {
                    model.tamper(id, |job| job.attempt = attempt);
                }
                if self.mutation == Mutation::RedriveForgetsLog && done {
                    model.forget_log(id);
                }
            }
            Ok(answers)
        })
    }

    pub(super) async fn mutated_run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNowResult>, StoreError> {
        if self.mutation == Mutation::RunNowPretends {
            let mut copy = self.store.inspect(Clone::clone);
            return self.store.step(|_, now| copy.run_now(&ids, now));
        }
        let began: Vec<_> =
            self.store.inspect(|model| ids.iter().map(|id| model.job(*id).map(|job| job.began_at)).collect());
        let answers = self.store.run_now(ids.clone()).await?;
        if self.mutation == Mutation::RunNowKeepsBudget {
            self.store.step(|model, _| {
                for (id, began_at) in ids.into_iter().zip(began) {
                    model.tamper(id, |job| job.began_at = began_at.unwrap_or(job.began_at));
                }
                Ok(())
            })?;
        }
        Ok(answers)
    }

    pub(super) async fn mutated_discard(&self, ids: Vec<JobId>) -> Result<Vec<DiscardResult>, StoreError> {
        if self.mutation == Mutation::DiscardAnything {
            self.store.step(|model, _| {
                for id in &ids {
                    model.tamper(*id, |job| job.state = State::Dead);
                }
                Ok(())
            })?;
        }
        self.store.discard(ids).await
    }
}
