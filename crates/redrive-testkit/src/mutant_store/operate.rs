//! Flaws of cancel, redrive, run now and discard.

use redrive_core::store::{Cancelled, Discarded, Redriven, RunNow};
use redrive_core::{JobId, State, Store, StoreError};

use super::{Flaw, Mutant};

impl Mutant {
    pub(super) async fn flawed_cancel(&self, ids: Vec<JobId>) -> Result<Vec<Cancelled>, StoreError> {
        if self.flaw == Flaw::CancelPretends {
            let mut aside = self.store.inspect(Clone::clone);
            return self.store.step(|_, now| aside.cancel(&ids, now));
        }
        if self.flaw == Flaw::DetachedEnded {
            return self.store.step(|model, now| model.with_detached(false, |model| model.cancel(&ids, now)));
        }
        if self.flaw == Flaw::CancelLeavesChildren {
            return self.store.step(|model, now| model.without_children(|model| model.cancel(&ids, now)));
        }
        let answers = self.store.cancel(ids.clone()).await?;
        if self.flaw == Flaw::CancelForgotten {
            self.store.step(|model, _| {
                for id in ids {
                    model.tamper(id, |job| job.cancel_requested = false);
                }
                Ok(())
            })?;
        }
        Ok(answers)
    }

    pub(super) async fn flawed_redrive(&self, ids: Vec<JobId>) -> Result<Vec<Redriven>, StoreError> {
        let attempts: Vec<u32> = self
            .store
            .inspect(|model| ids.iter().map(|id| model.job(*id).map_or(0, |job| job.attempt)).collect());
        let mut answers = self.store.redrive(ids.clone()).await?;
        self.store.step(|model, _| {
            for ((id, attempt), answer) in ids.into_iter().zip(attempts).zip(&mut answers) {
                let done = *answer == Redriven::Done;
                if self.flaw == Flaw::RedriveTwice && *answer == Redriven::NotDead(State::Pending) {
                    model.tamper(id, |job| job.run += 1);
                    *answer = Redriven::Done;
                }
                if self.flaw == Flaw::RedriveKeepsAttempts && done {
                    model.tamper(id, |job| job.attempt = attempt);
                }
                if self.flaw == Flaw::RedriveForgetsLog && done {
                    model.forget_log(id);
                }
            }
            Ok(answers)
        })
    }

    pub(super) async fn flawed_run_now(&self, ids: Vec<JobId>) -> Result<Vec<RunNow>, StoreError> {
        if self.flaw == Flaw::RunNowPretends {
            let mut aside = self.store.inspect(Clone::clone);
            return self.store.step(|_, now| aside.run_now(&ids, now));
        }
        let began: Vec<_> =
            self.store.inspect(|model| ids.iter().map(|id| model.job(*id).map(|job| job.began_at)).collect());
        let answers = self.store.run_now(ids.clone()).await?;
        if self.flaw == Flaw::RunNowKeepsBudget {
            self.store.step(|model, _| {
                for (id, began_at) in ids.into_iter().zip(began) {
                    model.tamper(id, |job| job.began_at = began_at.unwrap_or(job.began_at));
                }
                Ok(())
            })?;
        }
        Ok(answers)
    }

    pub(super) async fn flawed_discard(&self, ids: Vec<JobId>) -> Result<Vec<Discarded>, StoreError> {
        if self.flaw == Flaw::DiscardAnything {
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
