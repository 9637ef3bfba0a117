//! Applies verdicts under leases, and renews leases.

use std::time::Duration;

use redrive_core::lifecycle::Event;
use redrive_core::store::{ExtendResult, SettleResult, Settlement, check_batch};
use redrive_core::verdict::Effect;
use redrive_core::{Attempt, AttemptReport, Invalid, Job, Lease, State, Timestamp, Verdict};

use super::{Model, Row, advance, whole_ms};

impl Model {
    /// See [`redrive_core::Store::settle`].
    pub fn settle(
        &mut self,
        settlements: Vec<Settlement>,
        now: Timestamp,
    ) -> Result<Vec<SettleResult>, Invalid> {
        check_batch(settlements.len())?;
        for settlement in &settlements {
            settlement.check()?;
            settlement.follow_ups.iter().try_for_each(|job| job.start.resolve(now).map(drop))?;
        }
        settlements.into_iter().map(|settlement| self.settle_one(settlement, now)).collect()
    }

    /// See [`redrive_core::Store::extend`].
    pub fn extend(
        &mut self,
        leases: &[Lease],
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<ExtendResult>, Invalid> {
        check_batch(leases.len())?;
        let until = now.after(lease);
        Ok(leases.iter().map(|held| self.extend_one(*held, until)).collect())
    }

    fn settle_one(&mut self, mut settlement: Settlement, now: Timestamp) -> Result<SettleResult, Invalid> {
        if self.leased_job(settlement.lease).is_none() {
            return Ok(SettleResult::LeaseLost);
        }
        let id = settlement.lease.id;
        let follow_ups = std::mem::take(&mut settlement.follow_ups);
        let state = self.change(id, |row| apply(row, settlement, now));
        if state.is_claimable() {
            self.wake_up();
        }
        self.offer_free_slots_after(id, now);
        if matches!(state, State::Dead | State::Cancelled) {
            self.end_children(id, now);
        }
        for job in follow_ups {
            self.add(job, now)?;
        }
        Ok(SettleResult::Applied(state))
    }

    fn extend_one(&mut self, lease: Lease, until: Timestamp) -> ExtendResult {
        if self.leased_job(lease).is_none() {
            return ExtendResult::LeaseLost;
        }
        self.change(lease.id, |row| {
            row.job.lease_until = Some(until);
            if row.job.cancel_requested { ExtendResult::CancelRequested } else { ExtendResult::Renewed }
        })
    }
}

/// Applies a verdict and its log entry to a row whose lease was checked.
fn apply(row: &mut Row, settlement: Settlement, now: Timestamp) -> State {
    let effect = settlement.verdict.effect();
    let job = &mut row.job;
    advance(job, event(job, &settlement.verdict, &effect));
    job.lease_until = None;
    job.attempt = job.attempt.saturating_sub(effect.refund);
    job.began_at = job.began_at.after(effect.budget_pause);
    job.finished_at = job.state.is_final().then_some(now);
    job.last_error = settlement.error.or(job.last_error.take());
    job.last_status = settlement.status.or(job.last_status);
    if !job.state.is_final() {
        job.next_run_at = now.after(effect.wait.unwrap_or_default());
    }
    job.awaits = settlement.verdict.awaits().filter(|_| !job.state.is_final()).cloned();
    store_values(job, settlement.verdict);
    if let Some(entry) = settlement.entry {
        row.log.insert(job.epoch, attempt(job, entry, &effect));
    }
    job.state
}

/// The event of a verdict. A job that would continue ends if a cancel was requested meanwhile.
fn event(job: &Job, verdict: &Verdict, effect: &Effect) -> Event {
    if job.cancel_requested && effect.state_if_cancelling != effect.state {
        Event::Cancel
    } else {
        verdict.event()
    }
}

/// Stores the values of the verdict that belong to the new state.
fn store_values(job: &mut Job, verdict: Verdict) {
    match verdict {
        Verdict::Complete(output) => job.output = output,
        Verdict::DeadLetter(reason) => job.reason = Some(reason),
        Verdict::Retry(wait) if job.state.is_claimable() => job.wait = Some(whole_ms(wait)),
        Verdict::Retry(_)
        | Verdict::Snooze(_)
        | Verdict::Hold(_)
        | Verdict::Wait(_)
        | Verdict::Release
        | Verdict::Cancel => {}
    }
}

fn attempt(job: &Job, entry: AttemptReport, effect: &Effect) -> Attempt {
    let is_claimable = job.state.is_claimable();
    Attempt {
        epoch: job.epoch,
        entry: AttemptReport { duration: whole_ms(entry.duration), ..entry },
        worker: job.worker.clone(),
        led_to: job.state,
        wait: effect.wait.filter(|_| is_claimable).map(whole_ms),
        next_run_at: is_claimable.then_some(job.next_run_at),
    }
}
