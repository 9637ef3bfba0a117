//! Mutations of steps, signals and waits.

use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, WaitCondition,
};
use redrive_core::{JobId, Lease, State, Steps, StoreError};
use uuid::Uuid;

use super::{MutantStore, Mutation};

impl MutantStore {
    pub(super) async fn mutated_remember(
        &self,
        mut new_steps: Vec<NewStep>,
    ) -> Result<Vec<RememberResult>, StoreError> {
        for new_step in &mut new_steps {
            self.mutate_step(new_step)?;
        }
        if self.mutation == Mutation::ChildrenDespiteCancel {
            self.store.step(|model, _| {
                new_steps
                    .iter()
                    .for_each(|new_step| model.tamper(new_step.lease.id, |job| job.cancel_requested = false));
                Ok(())
            })?;
        }
        let answers = self.store.remember(new_steps.clone()).await?;
        if self.mutation == Mutation::SignalTakenTwice {
            self.store.step(|model, _| {
                new_steps.iter().for_each(|new_step| model.restore_signals(new_step.lease.id));
                Ok(())
            })?;
        }
        Ok(answers)
    }

    fn mutate_step(&self, new_step: &mut NewStep) -> Result<(), StoreError> {
        let id = new_step.lease.id;
        if self.mutation == Mutation::ChildrenLost {
            new_step.children.clear();
        }
        if self.mutation == Mutation::StepUnfenced {
            let epoch = self.store.inspect(|model| model.job(id).map(|job| job.epoch));
            new_step.lease.epoch = epoch.unwrap_or(new_step.lease.epoch);
        }
        if self.mutation == Mutation::StepOverwritten {
            self.store.step(|model, _| {
                model.forget_step(new_step.lease, new_step.step.place);
                Ok(())
            })?;
        }
        Ok(())
    }

    pub(super) async fn mutated_signal(
        &self,
        mut signals: Vec<Signal>,
    ) -> Result<Vec<SignalResult>, StoreError> {
        if self.mutation == Mutation::SignalRepeats {
            signals.iter_mut().for_each(|signal| signal.id = Uuid::from_u128(u128::from(self.tick()) << 64));
        }
        self.store.signal(signals).await
    }

    pub(super) async fn mutated_skip_signals(
        &self,
        mut lease: Lease,
        signals: Vec<Uuid>,
    ) -> Result<bool, StoreError> {
        if self.mutation == Mutation::SkipSignalsUnfenced {
            let epoch = self.store.inspect(|model| model.job(lease.id).map(|job| job.epoch));
            lease.epoch = epoch.unwrap_or(lease.epoch);
        }
        self.store.skip_signals(lease, signals).await
    }

    pub(super) async fn mutated_resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        if self.mutation == Mutation::ResumeEarly {
            self.store.step(|model, _| {
                for id in &ids {
                    model.tamper(*id, |job| {
                        if job.awaits.is_some() {
                            (job.awaits, job.paused) = (Some(WaitCondition::Unpaused), false);
                        }
                    });
                }
                Ok(())
            })?;
        }
        match self.mutation {
            Mutation::FailureLeavesSiblings => {
                return self
                    .store
                    .step(|model, now| model.with_detached(true, |model| model.resume(&ids, now)));
            }
            Mutation::ParentBehindChildren => {
                return self.store.step(|model, now| {
                    let answers = model.resume(&ids, now)?;
                    ids.iter().for_each(|id| model.tamper(*id, |job| job.next_run_at = now));
                    Ok(answers)
                });
            }
            Mutation::OnlyFirstAwaited => self.store.step(|model, _| {
                for id in &ids {
                    model.tamper(*id, |job| {
                        job.awaits = job.awaits.take().map(|awaits| awaits.parts()[0].clone())
                    });
                }
                Ok(())
            })?,
            _ => {}
        }
        if self.mutation == Mutation::ResumeNever {
            return Ok(vec![false; ids.len()]);
        }
        self.store.resume(ids).await
    }

    pub(super) async fn mutated_pause(&self, ids: Vec<JobId>) -> Result<Vec<PauseResult>, StoreError> {
        if self.mutation == Mutation::PausePretends {
            return Ok(vec![PauseResult::Done(State::Waiting); ids.len()]);
        }
        self.store.pause(ids).await
    }

    pub(super) async fn mutated_forget(&self, ids: Vec<JobId>) -> Result<Vec<ForgetResult>, StoreError> {
        if self.mutation == Mutation::ForgetPretends {
            return Ok(vec![ForgetResult::Done; ids.len()]);
        }
        self.store.forget(ids).await
    }
}
