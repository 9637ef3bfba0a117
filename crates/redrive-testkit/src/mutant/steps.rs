//! Flaws of steps, signals and waits.

use redrive_core::steps::{Await, Forgotten, Hold, Memory, Remembered, Signal, Signalled};
use redrive_core::{JobId, Lease, State, Steps, StoreError};
use uuid::Uuid;

use super::{Flaw, Mutant};

impl Mutant {
    pub(super) async fn flawed_remember(
        &self,
        mut memories: Vec<Memory>,
    ) -> Result<Vec<Remembered>, StoreError> {
        for memory in &mut memories {
            self.spoil(memory)?;
        }
        if self.flaw == Flaw::ChildrenDespiteCancel {
            self.store.step(|model, _| {
                memories
                    .iter()
                    .for_each(|memory| model.tamper(memory.lease.id, |job| job.cancel_requested = false));
                Ok(())
            })?;
        }
        let answers = self.store.remember(memories.clone()).await?;
        if self.flaw == Flaw::SignalTakenTwice {
            self.store.step(|model, _| {
                memories.iter().for_each(|memory| model.untake(memory.lease.id));
                Ok(())
            })?;
        }
        Ok(answers)
    }

    fn spoil(&self, memory: &mut Memory) -> Result<(), StoreError> {
        let id = memory.lease.id;
        if self.flaw == Flaw::ChildrenLost {
            memory.children.clear();
        }
        if self.flaw == Flaw::StepUnfenced {
            let epoch = self.store.inspect(|model| model.job(id).map(|job| job.epoch));
            memory.lease.epoch = epoch.unwrap_or(memory.lease.epoch);
        }
        if self.flaw == Flaw::StepOverwritten {
            self.store.step(|model, _| {
                model.forget_step(memory.lease, memory.step.place);
                Ok(())
            })?;
        }
        Ok(())
    }

    pub(super) async fn flawed_signal(&self, mut signals: Vec<Signal>) -> Result<Vec<Signalled>, StoreError> {
        if self.flaw == Flaw::SignalRepeats {
            signals.iter_mut().for_each(|signal| signal.id = Uuid::from_u128(u128::from(self.tick()) << 64));
        }
        self.store.signal(signals).await
    }

    pub(super) async fn flawed_set_aside(
        &self,
        mut lease: Lease,
        signals: Vec<Uuid>,
    ) -> Result<bool, StoreError> {
        if self.flaw == Flaw::SetAsideUnfenced {
            let epoch = self.store.inspect(|model| model.job(lease.id).map(|job| job.epoch));
            lease.epoch = epoch.unwrap_or(lease.epoch);
        }
        self.store.set_aside(lease, signals).await
    }

    pub(super) async fn flawed_resume(&self, ids: Vec<JobId>) -> Result<Vec<bool>, StoreError> {
        if self.flaw == Flaw::ResumeEarly {
            self.store.step(|model, _| {
                for id in &ids {
                    model.tamper(*id, |job| {
                        if job.awaits.is_some() {
                            (job.awaits, job.held) = (Some(Await::Unhold), false);
                        }
                    });
                }
                Ok(())
            })?;
        }
        match self.flaw {
            Flaw::FailureLeavesSiblings => {
                return self
                    .store
                    .step(|model, now| model.with_detached(true, |model| model.resume(&ids, now)));
            }
            Flaw::ParentBehindChildren => {
                return self.store.step(|model, now| {
                    let answers = model.resume(&ids, now)?;
                    ids.iter().for_each(|id| model.tamper(*id, |job| job.next_run_at = now));
                    Ok(answers)
                });
            }
            Flaw::OnlyFirstAwaited => self.store.step(|model, _| {
                for id in &ids {
                    model.tamper(*id, |job| {
                        job.awaits = job.awaits.take().map(|awaits| awaits.parts()[0].clone())
                    });
                }
                Ok(())
            })?,
            _ => {}
        }
        if self.flaw == Flaw::ResumeNever {
            return Ok(vec![false; ids.len()]);
        }
        self.store.resume(ids).await
    }

    pub(super) async fn flawed_hold(&self, ids: Vec<JobId>) -> Result<Vec<Hold>, StoreError> {
        if self.flaw == Flaw::HoldPretends {
            return Ok(vec![Hold::Done(State::Waiting); ids.len()]);
        }
        self.store.hold(ids).await
    }

    pub(super) async fn flawed_forget(&self, ids: Vec<JobId>) -> Result<Vec<Forgotten>, StoreError> {
        if self.flaw == Flaw::ForgetPretends {
            return Ok(vec![Forgotten::Done; ids.len()]);
        }
        self.store.forget(ids).await
    }
}
