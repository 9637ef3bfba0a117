//! Applies verdicts under leases, and renews leases.

use std::time::Duration;

use redrive_core::lifecycle::Event;
use redrive_core::store::{Extended, Settled, Settlement, check_batch};
use redrive_core::verdict::Effect;
use redrive_core::{Attempt, Entry, Invalid, Job, Lease, State, Timestamp, Verdict};

use super::{Model, Row, advance, whole_ms};

impl Model {
    /// See [`redrive_core::Store::settle`].
    pub fn settle(&mut self, settlements: Vec<Settlement>, now: Timestamp) -> Result<Vec<Settled>, Invalid> {
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
    ) -> Result<Vec<Extended>, Invalid> {
        check_batch(leases.len())?;
        let until = now.after(lease);
        Ok(leases.iter().map(|held| self.extend_one(*held, until)).collect())
    }

    fn settle_one(&mut self, mut settlement: Settlement, now: Timestamp) -> Result<Settled, Invalid> {
        if self.held(settlement.lease).is_none() {
            return Ok(Settled::LeaseLost);
        }
        let id = settlement.lease.id;
        let follow_ups = std::mem::take(&mut settlement.follow_ups);
        let state = self.change(id, |row| apply(row, settlement, now));
        if state.is_claimable() {
            self.wake_up();
        }
        self.pass_on_after(id, now);
        if matches!(state, State::Dead | State::Cancelled) {
            self.end_below(id, now);
        }
        for job in follow_ups {
            self.add(job, now)?;
        }
        Ok(Settled::Applied(state))
    }

    fn extend_one(&mut self, lease: Lease, until: Timestamp) -> Extended {
        if self.held(lease).is_none() {
            return Extended::LeaseLost;
        }
        self.change(lease.id, |row| {
            row.job.lease_until = Some(until);
            if row.job.cancel_requested { Extended::CancelRequested } else { Extended::Renewed }
        })
    }
}

/// Writes a verdict and its log entry onto a row whose lease was checked.
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
    note(job, settlement.verdict);
    if let Some(entry) = settlement.entry {
        row.log.insert(job.epoch, attempt(job, entry, &effect));
    }
    job.state
}

/// What goes on ends instead when a cancel was requested meanwhile.
fn event(job: &Job, verdict: &Verdict, effect: &Effect) -> Event {
    if job.cancel_requested && effect.state_if_cancelling != effect.state {
        Event::Cancel
    } else {
        verdict.event()
    }
}

/// Keeps what the verdict carries, where the state it led to has a place for it.
fn note(job: &mut Job, verdict: Verdict) {
    match verdict {
        Verdict::Complete(output) => job.output = output,
        Verdict::DeadLetter(reason) => job.reason = Some(reason),
        Verdict::Retry(wait) if job.state.is_claimable() => job.wait = Some(whole_ms(wait)),
        Verdict::Retry(_)
        | Verdict::Snooze(_)
        | Verdict::Park(_)
        | Verdict::Wait(_)
        | Verdict::Release
        | Verdict::Cancel => {}
    }
}

fn attempt(job: &Job, entry: Entry, effect: &Effect) -> Attempt {
    let goes_on = job.state.is_claimable();
    Attempt {
        epoch: job.epoch,
        entry: Entry { duration: whole_ms(entry.duration), ..entry },
        worker: job.worker.clone(),
        led_to: job.state,
        wait: effect.wait.filter(|_| goes_on).map(whole_ms),
        next_run_at: goes_on.then_some(job.next_run_at),
    }
}
