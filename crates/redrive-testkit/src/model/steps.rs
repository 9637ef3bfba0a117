//! Remembers steps, keeps signals, and resumes what waits for them.

use redrive_core::lifecycle::Event;
use redrive_core::steps::{Await, Forgotten, Hold, Memory, Remembered, Signal, Signalled, Step, Swept};
use redrive_core::store::check_batch;
use redrive_core::transfer::Received;
use redrive_core::{Invalid, Job, JobId, State, Timestamp};

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
        let Memory { lease, mut step, children, takes } = memory;
        if self.held(lease).is_none() {
            return Ok(Remembered::LeaseLost);
        }
        let row = self.row(lease.id);
        if let Some(before) = row.steps.get(&step.place) {
            return Ok(Remembered::Before(before.clone()));
        }
        if let Some(name) = takes {
            let mut waiting = row.signals.iter_mut().filter(|each| !each.taken && each.name == name);
            let Some(oldest) = waiting.next() else { return Ok(Remembered::NoSignal) };
            oldest.taken = true;
            step.value = std::mem::take(&mut oldest.value);
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
        if !self.has_come(id, &awaits, now) {
            return false;
        }
        self.change(id, |row| go_on(&mut row.job, &awaits, now));
        self.wake_up();
        true
    }

    /// Whether what a job waits for is there.
    fn has_come(&self, id: JobId, awaits: &Await, now: Timestamp) -> bool {
        match awaits {
            Await::Signal(name) => {
                self.rows[&id].signals.iter().any(|each| !each.taken && each.name == *name)
            }
            Await::Children { branch, failures_max } => {
                let children: Vec<State> = self.branch(id, *branch).map(|child| child.state).collect();
                let failed = children.iter().filter(|state| matches!(state, State::Dead | State::Cancelled));
                children.iter().all(|state| state.is_final()) || failed.count() > *failures_max as usize
            }
            Await::Unhold => !self.rows[&id].job.held,
            Await::Turn => self.is_its_turn(id, now),
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

/// Makes a job due. The time it has waited moves its budget on; a hold does not bring forward what is due later, and a
/// wait for a turn changes neither its time nor its budget.
fn go_on(job: &mut Job, awaits: &Await, now: Timestamp) {
    let waited = now.as_ms() - job.next_run_at.as_ms();
    let waited = match awaits {
        Await::Signal(_) | Await::Children { .. } => waited,
        Await::Unhold => waited.max(0),
        Await::Turn => 0,
    };
    job.next_run_at = Timestamp::from_ms(job.next_run_at.as_ms() + waited);
    job.began_at = Timestamp::from_ms(job.began_at.as_ms() + waited);
    job.awaits = None;
    if job.state == State::Waiting {
        advance(job, Event::Resume);
    }
}
