//! Remembers steps, keeps signals, and resumes what waits for them.

use std::time::Duration;

use redrive_core::lifecycle::Event;
use redrive_core::steps::{Await, Forgotten, Hold, Memory, Remembered, Signal, Signalled, Step, Swept};
use redrive_core::store::check_batch;
use redrive_core::transfer::Received;
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
    pub fn remember(&mut self, memories: Vec<Memory>, now: Timestamp) -> Result<Vec<Remembered>, Invalid> {
        Memory::check_all(&memories)?;
        for memory in &memories {
            memory.children.iter().try_for_each(|job| job.start.resolve(now).map(drop))?;
        }
        memories.into_iter().map(|memory| self.remember_one(memory, now)).collect()
    }

    /// See [`redrive_core::Steps::signal`].
    pub fn signal(&mut self, signals: Vec<Signal>) -> Result<Vec<Signalled>, Invalid> {
        Signal::check_all(&signals)?;
        Ok(signals.into_iter().map(|signal| self.signal_one(signal)).collect())
    }

    /// See [`redrive_core::Steps::pending_signals`].
    pub fn pending_signals(&self, job: JobId, names: &[SignalName], limit: usize) -> Vec<Signal> {
        let signals = self.rows.get(&job).into_iter().flat_map(|row| &row.signals);
        let pending = signals.filter(|each| !each.taken && names.contains(&each.name)).cloned();
        pending.map(|Received { id, name, value, .. }| Signal { job, id, name, value }).take(limit).collect()
    }

    /// See [`redrive_core::Steps::set_aside`].
    pub fn set_aside(&mut self, lease: Lease, signals: &[Uuid]) -> Result<bool, Invalid> {
        check_batch(signals.len())?;
        if self.held(lease).is_none() {
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
    pub fn sweep(&mut self, after: Option<JobId>, limit: usize, now: Timestamp) -> Result<Swept, Invalid> {
        check_batch(limit)?;
        let waiting =
            self.jobs().filter(|job| job.awaits.is_some() && after.is_none_or(|after| job.id > after));
        let looked_at: Vec<JobId> = waiting.map(|job| job.id).take(limit).collect();
        let last = looked_at.last().copied();
        let resumed = looked_at.into_iter().filter(|id| self.resume_one(*id, now)).collect();
        Ok(Swept { resumed, last })
    }

    /// See [`redrive_core::Steps::hold`].
    pub fn hold(&mut self, ids: &[JobId]) -> Result<Vec<Hold>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.hold_one(*id)).collect())
    }

    /// See [`redrive_core::Steps::unhold`].
    pub fn unhold(&mut self, ids: &[JobId], now: Timestamp) -> Result<Vec<Hold>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.unhold_one(*id, now)).collect())
    }

    /// See [`redrive_core::Steps::forget`].
    pub fn forget(&mut self, ids: &[JobId]) -> Result<Vec<Forgotten>, Invalid> {
        check_batch(ids.len())?;
        Ok(ids.iter().map(|id| self.forget_one(*id)).collect())
    }

    fn remember_one(&mut self, memory: Memory, now: Timestamp) -> Result<Remembered, Invalid> {
        let Memory { lease, step, children, takes } = memory;
        let Some(cancelling) = self.held(lease).map(|job| job.cancel_requested) else {
            return Ok(Remembered::LeaseLost);
        };
        let row = self.row(lease.id);
        if let Some(before) = row.steps.get(&step.place) {
            return Ok(Remembered::Before(before.clone()));
        }
        if cancelling && !children.is_empty() {
            return Ok(Remembered::CancelRequested);
        }
        if let Some(signal) = takes
            && !take(row, signal)
        {
            return Ok(Remembered::NoSignal);
        }
        row.steps.insert(step.place, step.clone());
        for child in children {
            self.add(child, now)?;
        }
        Ok(Remembered::Kept(step))
    }

    fn signal_one(&mut self, signal: Signal) -> Signalled {
        match self.job(signal.job).map(|job| job.state) {
            None => Signalled::NotFound,
            Some(state) if state.is_final() => Signalled::Ended(state),
            Some(_) => {
                let row = self.row(signal.job);
                if row.signals.iter().all(|known| known.id != signal.id) {
                    let Signal { job: _, id, name, value } = signal;
                    row.signals.push(Received { id, name, value, taken: false });
                }
                Signalled::Kept
            }
        }
    }

    pub(super) fn resume_one(&mut self, id: JobId, now: Timestamp) -> bool {
        let Some(awaits) = self.job(id).and_then(|job| job.awaits.clone()) else { return false };
        if !awaits.parts().iter().any(|part| self.has_come(id, part, now)) {
            return false;
        }
        for part in awaits.parts() {
            if let Await::Children { branch, failures_max } = part
                && self.has_failed(id, *branch, *failures_max)
            {
                self.end_branch(id, *branch, now);
            }
        }
        let ahead = awaits.parts().iter().any(|part| self.has_live_children(id, part));
        self.change(id, |row| go_on(&mut row.job, &awaits, ahead, now));
        self.wake_up();
        true
    }

    /// Whether more children of a fan-out have failed than may.
    fn has_failed(&self, id: JobId, branch: u32, failures_max: u32) -> bool {
        let failed =
            self.branch(id, branch).filter(|job| matches!(job.state, State::Dead | State::Cancelled));
        failed.count() > failures_max as usize
    }

    fn has_live_children(&self, id: JobId, awaits: &Await) -> bool {
        match awaits {
            Await::Children { branch, .. } => self.branch(id, *branch).any(|child| !child.state.is_final()),
            Await::Signal(_) | Await::Unhold | Await::Turn | Await::Any(_) => false,
        }
    }

    /// Whether one of the things that a job waits for is there.
    fn has_come(&self, id: JobId, awaits: &Await, now: Timestamp) -> bool {
        match awaits {
            Await::Signal(name) => {
                self.rows[&id].signals.iter().any(|each| !each.taken && each.name == *name)
            }
            Await::Children { branch, failures_max } => {
                !self.has_live_children(id, awaits) || self.has_failed(id, *branch, *failures_max)
            }
            Await::Unhold => !self.rows[&id].job.held,
            Await::Turn => self.is_its_turn(id, now),
            Await::Any(parts) => parts.iter().any(|part| self.has_come(id, part, now)),
        }
    }

    fn branch(&self, id: JobId, branch: u32) -> impl Iterator<Item = &Job> {
        let children = self.children.get(&id).into_iter().flatten().filter_map(|child| self.job(*child));
        children.filter(move |child| child.parent.is_some_and(|parent| parent.branch == branch))
    }

    fn hold_one(&mut self, id: JobId) -> Hold {
        match self.job(id).map(|job| job.state) {
            None => Hold::NotFound,
            Some(state) if state.is_final() => Hold::Ended(state),
            Some(state) => Hold::Done(self.change(id, |row| {
                row.job.held = true;
                // What waits for something else already is held when that has come.
                if state.is_claimable() && row.job.awaits.is_none() {
                    advance(&mut row.job, Event::Hold);
                    row.job.awaits = Some(Await::Unhold);
                }
                row.job.state
            })),
        }
    }

    fn unhold_one(&mut self, id: JobId, now: Timestamp) -> Hold {
        match self.job(id).map(|job| job.state) {
            None => Hold::NotFound,
            Some(state) if state.is_final() => Hold::Ended(state),
            Some(_) => {
                self.change(id, |row| row.job.held = false);
                self.resume_one(id, now);
                Hold::Done(self.rows[&id].job.state)
            }
        }
    }

    fn forget_one(&mut self, id: JobId) -> Forgotten {
        match self.job(id).map(|job| job.state) {
            None => Forgotten::NotFound,
            Some(State::Dead) => {
                self.row(id).steps.clear();
                Forgotten::Done
            }
            Some(state) => Forgotten::NotDead(state),
        }
    }

    fn row(&mut self, id: JobId) -> &mut Row {
        self.rows.get_mut(&id).expect("only rows that exist are looked at")
    }
}

/// Marks a signal as taken and empties it; false if it is gone or was taken before.
fn take(row: &mut Row, signal: Uuid) -> bool {
    let Some(found) = row.signals.iter_mut().find(|each| each.id == signal && !each.taken) else {
        return false;
    };
    found.taken = true;
    found.value.clear();
    true
}

/// Makes a job due, if `ahead` before its children that have not ended. The time it has waited moves its budget on; a hold
/// does not bring forward what is due later, and a wait for a turn changes neither its time nor its budget.
fn go_on(job: &mut Job, awaits: &Await, ahead: bool, now: Timestamp) {
    let waited = now.as_ms() - job.next_run_at.as_ms();
    let waited = match awaits {
        Await::Signal(_) | Await::Children { .. } | Await::Any(_) => waited,
        Await::Unhold => waited.max(0),
        Await::Turn => 0,
    };
    job.next_run_at = Timestamp::from_ms(job.next_run_at.as_ms() + waited);
    job.began_at = Timestamp::from_ms(job.began_at.as_ms() + waited);
    if ahead && let Some(started) = job.started_at {
        job.next_run_at = job.next_run_at.min(started.before(Duration::from_millis(1)));
    }
    job.awaits = None;
    if job.state == State::Waiting {
        advance(job, Event::Resume);
    }
}
