//! What a job has done so far, and the places that its handler has asked for in this attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::steps::{Memory, RACE_PLACES, Remembered, Signal, Step, StepKind};
use redrive_core::store::Backend;
use redrive_core::{Lease, NewJob, Outcome, SignalName, StepName, StoreError, Timestamp};

use super::race::{Contender, Races};
use super::{Determinism, Pauses};
use crate::JobError;

/// How much of a signal's value a problem shows.
const SHOWN_CHARS: usize = 200;

/// The memory of one attempt.
pub(crate) struct History {
    attempt: redrive_worker::Context,
    determinism: Determinism,
    known: Mutex<Known>,
    pub(crate) pauses: Pauses,
    pub(crate) races: Races,
}

/// What is remembered, and how far the handler has come.
#[derive(Default)]
struct Known {
    steps: BTreeMap<u32, Step>,
    /// Where the handler's next step stands.
    next: u32,
    /// Places whose wait completed while others could have.
    won: BTreeSet<u32>,
}

/// The place of a step that the handler has asked for.
pub(crate) struct Place {
    pub(crate) at: u32,
    name: StepName,
    /// What is remembered there.
    pub(crate) before: Option<Step>,
}

impl Place {
    /// The name of the step.
    pub(crate) fn name(&self) -> &StepName {
        &self.name
    }
}

impl History {
    /// Reads what the job has done in earlier attempts. Before the first there is nothing to read.
    pub(crate) async fn load(
        attempt: redrive_worker::Context,
        determinism: Determinism,
    ) -> Result<Self, StoreError> {
        let mut known = Known::default();
        if let Some(store) = attempt.store().filter(|_| attempt.job.epoch > 1) {
            let mut from = 0;
            loop {
                let page = store.recall(attempt.job.id, from, PAGE_ITEMS_MAX).await?;
                let full = page.len() == PAGE_ITEMS_MAX;
                from = page.last().map_or(from, |step| step.place + 1);
                page.into_iter().for_each(|step| known.add(step));
                if !full {
                    break;
                }
            }
        }
        Ok(Self {
            attempt,
            determinism,
            known: Mutex::new(known),
            pauses: Pauses::default(),
            races: Races::default(),
        })
    }

    /// Takes the next place for a step, `kinds` of which would be it. Code that has changed its order is noticed here.
    pub(crate) fn enter(&self, name: &str, kinds: &[StepKind]) -> Result<Place, JobError> {
        let name = StepName::new(name).map_err(JobError::reject)?;
        let mut known = self.lock();
        let at = match self.determinism {
            Determinism::Explicit | Determinism::Strict => known.next_place(),
            Determinism::BestEffort => known.place_of(&name, kinds),
        };
        let before = known.steps.get(&at).cloned();
        if let Some(step) = &before
            && (step.name != name || !kinds.contains(&step.kind))
        {
            return Err(changed(at, &step.name, &name));
        }
        known.next = at + 1;
        Ok(Place { at, name, before })
    }

    /// Takes the next place for the version of a change, which no mode finds elsewhere.
    pub(crate) fn enter_version(&self, change: &str) -> Result<Place, JobError> {
        let name = StepName::new(change).map_err(JobError::reject)?;
        let mut known = self.lock();
        let (at, before) = (known.next, known.steps.get(&known.next).cloned());
        known.next += 1;
        Ok(Place { at, name, before })
    }

    /// What is remembered at the handler's next place.
    pub(crate) fn peek(&self) -> Option<Step> {
        let known = self.lock();
        known.steps.get(&known.next).cloned()
    }

    /// Whether something is remembered from the handler's next place on.
    pub(crate) fn goes_on(&self) -> bool {
        let known = self.lock();
        known.steps.range(known.next..).next().is_some()
    }

    /// Remembers what came of the step at a place.
    pub(crate) async fn keep(&self, place: &Place, kind: StepKind, value: Vec<u8>) -> Result<Step, JobError> {
        self.keep_with(place, kind, value, Vec::new()).await
    }

    /// Remembers a step and enqueues its children with it.
    pub(crate) async fn keep_with(
        &self,
        place: &Place,
        kind: StepKind,
        value: Vec<u8>,
        children: Vec<NewJob>,
    ) -> Result<Step, JobError> {
        let step = Step { place: place.at, name: place.name.clone(), kind, value };
        let kept = self.remember(Memory { children, ..Memory::new(self.lease(), step) }).await?;
        kept.ok_or_else(|| {
            JobError::fail("the store did not remember a step, for want of a signal it did not need")
        })
    }

    /// Whether the wait at a place has completed while others could have.
    pub(crate) fn has_won(&self, place: &Place) -> bool {
        self.lock().won.contains(&place.at)
    }

    /// Remembers that the wait at a place has completed, if others could have completed instead.
    pub(crate) async fn win(&self, place: &Place, contender: &Contender<'_>) -> Result<(), JobError> {
        if !contender.has_rivals() || self.has_won(place) {
            return Ok(());
        }
        let step = Step {
            place: place.at | RACE_PLACES,
            name: place.name.clone(),
            kind: StepKind::Selected,
            value: Vec::new(),
        };
        self.remember(Memory::new(self.lease(), step)).await.map(drop)
    }

    /// The oldest signal by any of these names that no step has taken.
    pub(crate) async fn oldest_signal(&self, names: &[SignalName]) -> Result<Option<Signal>, JobError> {
        let job = self.attempt.job.id;
        let found = self.store()?.pending_signals(job, names.to_vec(), 1).await;
        let found = found
            .map_err(|error| JobError::fail(format_args!("the job's signals cannot be read: {error}")))?;
        Ok(found.into_iter().next())
    }

    /// Takes a signal as the step at a place; none if it is gone.
    pub(crate) async fn take(
        &self,
        place: &Place,
        signal: &Signal,
        kind: StepKind,
        value: Vec<u8>,
    ) -> Result<Option<Step>, JobError> {
        let step = Step { place: place.at, name: place.name.clone(), kind, value };
        self.remember(Memory { takes: Some(signal.id), ..Memory::new(self.lease(), step) }).await
    }

    /// Sets a signal aside that the handler cannot read, and reports it. The handler goes on waiting for another one.
    pub(crate) async fn set_aside(
        &self,
        signal: &Signal,
        error: impl std::fmt::Display,
    ) -> Result<(), JobError> {
        let Signal { name, value, .. } = signal;
        let shown: String = String::from_utf8_lossy(value).chars().take(SHOWN_CHARS).collect();
        let problem =
            format!("signal \"{name}\" was set aside, its value cannot be read: {error}; it was {shown}");
        match self.store()?.set_aside(self.lease(), vec![signal.id]).await {
            Ok(true) => {
                tracing::warn!(job = %self.attempt.job.id, problem);
                self.pauses.report(problem);
                Ok(())
            }
            Ok(false) => std::future::pending().await,
            Err(error) => Err(JobError::fail(format_args!("signal \"{name}\" was not set aside: {error}"))),
        }
    }

    /// Returns when the handler can only wait: what its attempt comes to.
    pub(crate) async fn paused(&self) -> Outcome {
        self.pauses.wanted(|| self.now().unwrap_or_default()).await
    }

    async fn remember(&self, memory: Memory) -> Result<Option<Step>, JobError> {
        let name = memory.step.name.clone();
        let answer = match self.store()?.remember(vec![memory]).await {
            Ok(answers) => answers.into_iter().next(),
            Err(StoreError::Invalid(invalid)) => return Err(JobError::reject(invalid)),
            Err(error) => {
                return Err(JobError::fail(format_args!("step \"{name}\" was not remembered: {error}")));
            }
        };
        match answer {
            Some(Remembered::Kept(step) | Remembered::Before(step)) => {
                self.lock().add(step.clone());
                Ok(Some(step))
            }
            Some(Remembered::NoSignal) => Ok(None),
            Some(Remembered::CancelRequested) => Err(JobError::cancelled()),
            // Someone else goes on with the job: nothing that this handler does counts any more.
            Some(Remembered::LeaseLost) => std::future::pending().await,
            None => Err(JobError::fail("the store gave no answer about a step")),
        }
    }

    /// What was remembered and not asked for, for a handler that has succeeded.
    pub(crate) fn left_over(&self) -> Option<JobError> {
        let known = self.lock();
        let mut left = known.steps.range(known.next..).map(|(_, step)| step);
        let first = left.next().filter(|_| self.determinism == Determinism::Strict)?;
        let (at, name, count) = (first.place, &first.name, left.count() + 1);
        Some(JobError::reject(format_args!(
            "the code has changed: {count} remembered steps were not asked for, the first is \"{name}\" at place {at}"
        )))
    }

    /// The worker's store.
    pub(crate) fn store(&self) -> Result<&Arc<dyn Backend>, JobError> {
        self.attempt.store().ok_or_else(without_worker)
    }

    /// The store's time.
    pub(crate) fn now(&self) -> Result<Timestamp, JobError> {
        self.attempt.now().ok_or_else(without_worker)
    }

    /// The lease of the attempt.
    pub(crate) fn lease(&self) -> Lease {
        self.attempt.job.lease()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn add(&mut self, step: Step) {
        if step.place >= RACE_PLACES {
            self.won.insert(step.place - RACE_PLACES);
        } else {
            self.steps.insert(step.place, step);
        }
    }

    /// The next place; a version that the code no longer asks for is passed over.
    fn next_place(&self) -> u32 {
        let versions = self.steps.range(self.next..).take_while(|(_, step)| step.kind == StepKind::Version);
        self.next + versions.count() as u32
    }

    /// The first place from here on with that step, or one behind everything.
    fn place_of(&self, name: &StepName, kinds: &[StepKind]) -> u32 {
        let found =
            self.steps.range(self.next..).find(|(_, step)| step.name == *name && kinds.contains(&step.kind));
        let behind = self.steps.last_key_value().map_or(0, |(place, _)| place + 1).max(self.next);
        found.map_or(behind, |(place, _)| *place)
    }
}

fn changed(at: u32, remembered: &StepName, asked: &StepName) -> JobError {
    JobError::fail(format_args!(
        "the code has changed: place {at} is remembered as step \"{remembered}\", the handler asks for \"{asked}\"; \
         keep the order of steps, or tell old runs from new ones with cx.version"
    ))
}

fn without_worker() -> JobError {
    JobError::reject("steps need a worker: this context has none")
}

/// What was remembered cannot be read as what the code expects now.
pub(crate) fn unreadable(step: &Step, error: impl std::fmt::Display) -> JobError {
    JobError::reject(format_args!("the result of step \"{}\" cannot be read: {error}", step.name))
}
