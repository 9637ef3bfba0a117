//! Steps, signals, and the end of waits.

use std::time::Duration;

use redrive_core::lifecycle::Event;
use redrive_core::steps::{
    ForgetResult, NewStep, PauseResult, RememberResult, Signal, SignalResult, Step, SweepResult,
    WaitCondition,
};
use redrive_core::store::check_batch;
use redrive_core::transfer::StoredSignal;
use redrive_core::{Invalid, Job, JobId, Lease, SignalName, State, Timestamp};
use uuid::Uuid;

use super::{Model, Row, advance};

impl Model {
    /// See [`redrive_core::Steps::recall`].
    pub fn recall(&self, id: JobId, from: u32, limit: usize) -> Vec<Step> {
        let steps = self.rows.get(&id).into_iter().flat_map(|row| row.steps.range(from..));
        steps.take(limit).map(|(_, step)| step.clone()).collect()
    }

    /// See [`redrive_core::Steps::remember`].
    pub fn remember(
        &mut self,
        new_steps: Vec<NewStep>,
        now: Timestamp,
    ) -> Result<Vec<RememberResult>, Invalid> {
        NewStep::check_all(&new_steps)?;
        for new_step in &new_steps {
            new_step.children.iter().try_for_each(|job| job.start.resolve(now).map(drop))?;
        }
        new_steps.into_iter().map(|new_step| self.remember_one(new_step, now)).collect()
    }

    /// See [`redrive_core::Steps::signal`].
    pub fn signal(&mut self, signals: Vec<Signal>) -> Result<Vec<SignalResult>, Invalid> {
        Signal::check_all(&signals)?;
        Ok(signals.into_iter().map(|signal| self.signal_one(signal)).collect())
    }

    /// See [`redrive_core::Steps::pending_signals`].
    pub fn pending_signals(&self, job: JobId, names: &[SignalName], limit: usize) -> Vec<Signal> {
        let signals = self.rows.get(&job).into_iter().flat_map(|row| &row.signals);
        let pending = signals.filter(|each| !each.taken && names.contains(&each.name)).cloned();
        pending
            .map(|StoredSignal { id, name, value, .. }| Signal { job, id, name, value })
            .take(limit)
            .collect()
    }

    /// See [`redrive_core::Steps::skip_signals`].
    pub fn skip_signals(&mut self, lease: Lease, signals: &[Uuid]) -> Result<bool, Invalid> {
        check_batch(signals.len())?;
        if self.leased_job(lease).is_none() {
            return Ok(false);
        }
        let row = self.row(lease.id);
        for signal in signals {
            take(row, *signal);
        }
        Ok(true)
    }

    /// See [`redrive_core::Steps::resume`].
    pub fn resume(&mut self, ids: &[JobId], now: Timestamp) -> Result<Vec<bool>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.resume_one(*id, now)).collect())
    }

    /// See [`redrive_core::Steps::sweep`].
    pub fn sweep(
        &mut self,
        after: Option<JobId>,
        limit: usize,
        now: Timestamp,
    ) -> Result<SweepResult, Invalid> {
        check_batch(limit)?;
        let waiting =
            self.jobs().filter(|job| job.awaits.is_some() && after.is_none_or(|after| job.id > after));
        let examined: Vec<JobId> = waiting.map(|job| job.id).take(limit).collect();
        let last = examined.last().copied();
        let resumed = examined.into_iter().filter(|id| self.resume_one(*id, now)).collect();
        Ok(SweepResult { resumed, last })
    }

    /// See [`redrive_core::Steps::pause`].
    pub fn pause(&mut self, ids: &[JobId]) -> Result<Vec<PauseResult>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.pause_one(*id)).collect())
    }

    /// See [`redrive_core::Steps::unpause`].
    pub fn unpause(&mut self, ids: &[JobId], now: Timestamp) -> Result<Vec<PauseResult>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.unpause_one(*id, now)).collect())
    }

    /// See [`redrive_core::Steps::forget`].
    pub fn forget(&mut self, ids: &[JobId]) -> Result<Vec<ForgetResult>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.forget_one(*id)).collect())
    }

    fn remember_one(&mut self, new_step: NewStep, now: Timestamp) -> Result<RememberResult, Invalid> {
        let NewStep { lease, step, children, takes } = new_step;
        let Some(cancelling) = self.leased_job(lease).map(|job| job.cancel_requested) else {
            return Ok(RememberResult::LeaseLost);
        };
        let row = self.row(lease.id);
        if let Some(before) = row.steps.get(&step.place) {
            return Ok(RememberResult::AlreadyStored(before.clone()));
        }
        if cancelling && !children.is_empty() {
            return Ok(RememberResult::CancelRequested);
        }
        if let Some(signal) = takes
            && !take(row, signal)
        {
            return Ok(RememberResult::NoSignal);
        }
        row.steps.insert(step.place, step.clone());
        for child in children {
            self.add(child, now)?;
        }
        Ok(RememberResult::Stored(step))
    }

    fn signal_one(&mut self, signal: Signal) -> SignalResult {
        match self.job(signal.job).map(|job| job.state) {
            None => SignalResult::NotFound,
            Some(state) if state.is_final() => SignalResult::Ended(state),
            Some(_) => {
                let row = self.row(signal.job);
                if row.signals.iter().all(|known| known.id != signal.id) {
                    let Signal { job: _, id, name, value } = signal;
                    row.signals.push(StoredSignal { id, name, value, taken: false });
                }
                SignalResult::Stored
            }
        }
    }

    pub(super) fn resume_one(&mut self, id: JobId, now: Timestamp) -> bool {
        let Some(awaits) = self.job(id).and_then(|job| job.awaits.clone()) else { return false };
        if !awaits.parts().iter().any(|part| self.is_met(id, part, now)) {
            return false;
        }
        for part in awaits.parts() {
            if let WaitCondition::Children { branch, failures_max } = part
                && self.has_failed(id, *branch, *failures_max)
            {
                self.end_branch(id, *branch, now);
            }
        }
        let before_children = awaits.parts().iter().any(|part| self.has_live_children(id, part));
        self.change(id, |row| make_due(&mut row.job, &awaits, before_children, now));
        self.wake_up();
        true
    }

    /// Whether more children of a fan-out have failed than the parent allows.
    fn has_failed(&self, id: JobId, branch: u32, failures_max: u32) -> bool {
        let failed =
            self.branch(id, branch).filter(|job| matches!(job.state, State::Dead | State::Cancelled));
        failed.count() > failures_max as usize
    }

    fn has_live_children(&self, id: JobId, awaits: &WaitCondition) -> bool {
        match awaits {
            WaitCondition::Children { branch, .. } => {
                self.branch(id, *branch).any(|child| !child.state.is_final())
            }
            WaitCondition::Signal(_)
            | WaitCondition::Unpaused
            | WaitCondition::FreeSlot
            | WaitCondition::Any(_) => false,
        }
    }

    /// Whether one part of a wait condition holds.
    fn is_met(&self, id: JobId, awaits: &WaitCondition, now: Timestamp) -> bool {
        match awaits {
            WaitCondition::Signal(name) => {
                self.rows[&id].signals.iter().any(|each| !each.taken && each.name == *name)
            }
            WaitCondition::Children { branch, failures_max } => {
                !self.has_live_children(id, awaits) || self.has_failed(id, *branch, *failures_max)
            }
            WaitCondition::Unpaused => !self.rows[&id].job.paused,
            WaitCondition::FreeSlot => self.has_free_slot(id, now),
            WaitCondition::Any(parts) => parts.iter().any(|part| self.is_met(id, part, now)),
        }
    }

    fn branch(&self, id: JobId, branch: u32) -> impl Iterator<Item = &Job> {
        let children = self.children.get(&id).into_iter().flatten().filter_map(|child| self.job(*child));
        children.filter(move |child| child.parent.is_some_and(|parent| parent.branch == branch))
    }

    fn pause_one(&mut self, id: JobId) -> PauseResult {
        match self.job(id).map(|job| job.state) {
            None => PauseResult::NotFound,
            Some(state) if state.is_final() => PauseResult::Ended(state),
            Some(state) => PauseResult::Done(self.change(id, |row| {
                row.job.paused = true;
                // A job that already waits for something else is paused after that wait.
                if state.is_claimable() && row.job.awaits.is_none() {
                    advance(&mut row.job, Event::Pause);
                    row.job.awaits = Some(WaitCondition::Unpaused);
                }
                row.job.state
            })),
        }
    }

    fn unpause_one(&mut self, id: JobId, now: Timestamp) -> PauseResult {
        match self.job(id).map(|job| job.state) {
            None => PauseResult::NotFound,
            Some(state) if state.is_final() => PauseResult::Ended(state),
            Some(_) => {
                self.change(id, |row| row.job.paused = false);
                self.resume_one(id, now);
                PauseResult::Done(self.rows[&id].job.state)
            }
        }
    }

    fn forget_one(&mut self, id: JobId) -> ForgetResult {
        match self.job(id).map(|job| job.state) {
            None => ForgetResult::NotFound,
            Some(State::Dead) => {
                self.row(id).steps.clear();
                ForgetResult::Done
            }
            Some(state) => ForgetResult::NotDead(state),
        }
    }

    fn row(&mut self, id: JobId) -> &mut Row {
        self.rows.get_mut(&id).expect("the caller has checked that the row exists")
    }
}

/// Marks a signal as taken and removes its value; false if it does not exist or was taken before.
fn take(row: &mut Row, signal: Uuid) -> bool {
    let Some(found) = row.signals.iter_mut().find(|each| each.id == signal && !each.taken) else {
        return false;
    };
    found.taken = true;
    found.value.clear();
    true
}

/// Makes a job due, with `before_children` before its live children. The time of the wait does not count against the
/// time budget. The end of a pause does not bring forward a later due time, and a wait for a slot changes neither due
/// time nor budget.
fn make_due(job: &mut Job, awaits: &WaitCondition, before_children: bool, now: Timestamp) {
    let waited = now.as_ms() - job.next_run_at.as_ms();
    let waited = match awaits {
        WaitCondition::Signal(_) | WaitCondition::Children { .. } | WaitCondition::Any(_) => waited,
        WaitCondition::Unpaused => waited.max(0),
        WaitCondition::FreeSlot => 0,
    };
    job.next_run_at = Timestamp::from_ms(job.next_run_at.as_ms() + waited);
    job.began_at = Timestamp::from_ms(job.began_at.as_ms() + waited);
    if before_children && let Some(started) = job.started_at {
        job.next_run_at = job.next_run_at.min(started.before(Duration::from_millis(1)));
    }
    job.awaits = None;
    if job.state == State::Waiting {
        advance(job, Event::Resume);
    }
}
