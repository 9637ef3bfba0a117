//! The stored steps of a job, and how far the handler has come through them in this attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redrive_core::limits::PAGE_ITEMS_MAX;
use redrive_core::steps::{NewStep, RACE_PLACES, RememberResult, Signal, Step, StepKind};
use redrive_core::store::Backend;
use redrive_core::{Lease, NewJob, Outcome, SignalName, StepName, StoreError, Timestamp};

use super::race::{Contender, Races};
use super::{Determinism, Suspensions};
use crate::JobError;

/// How many characters of a signal's value an error message shows.
const SHOWN_CHARS: usize = 200;

/// The stored steps of a job, during one attempt.
pub(crate) struct History {
    attempt: redrive_worker::Context,
    determinism: Determinism,
    progress: Mutex<ReplayProgress>,
    pub(crate) suspensions: Suspensions,
    pub(crate) races: Races,
}

/// The stored steps, and the place that the handler has reached.
#[derive(Default)]
struct ReplayProgress {
    steps: BTreeMap<u32, Step>,
    /// The place of the handler's next step.
    next: u32,
    /// Places whose wait completed while other waits could have completed instead.
    completed: BTreeSet<u32>,
}

/// The place of a step that the handler has called.
pub(crate) struct StepPlace {
    pub(crate) at: u32,
    name: StepName,
    /// The step that an earlier attempt stored there.
    pub(crate) stored: Option<Step>,
}

impl StepPlace {
    /// The name of the step.
    pub(crate) fn name(&self) -> &StepName {
        &self.name
    }
}

impl History {
    /// Reads the steps that earlier attempts have stored. The first attempt reads nothing.
    pub(crate) async fn load(
        attempt: redrive_worker::Context,
        determinism: Determinism,
    ) -> Result<Self, StoreError> {
        let mut progress = ReplayProgress::default();
        if let Some(store) = attempt.store().filter(|_| attempt.job.lease_count() > 1) {
            let mut from = 0;
            loop {
                let page = store.recall(attempt.job.id, from, PAGE_ITEMS_MAX).await?;
                let full = page.len() == PAGE_ITEMS_MAX;
                from = page.last().map_or(from, |step| step.place + 1);
                page.into_iter().for_each(|step| progress.add(step));
                if !full {
                    break;
                }
            }
        }
        Ok(Self {
            attempt,
            determinism,
            progress: Mutex::new(progress),
            suspensions: Suspensions::default(),
            races: Races::default(),
        })
    }

    /// Takes the place of the handler's next step. Fails if an earlier attempt stored a step there with another name, or of a
    /// kind that is not one of `kinds`: the code has changed.
    pub(crate) fn next_step(&self, name: &str, kinds: &[StepKind]) -> Result<StepPlace, JobError> {
        let name = StepName::new(name).map_err(JobError::reject)?;
        let mut progress = self.lock();
        let at = match self.determinism {
            Determinism::Explicit | Determinism::Strict => progress.next_place(),
            Determinism::BestEffort => progress.place_of(&name, kinds),
        };
        let stored = progress.steps.get(&at).cloned();
        if let Some(step) = &stored
            && (step.name != name || !kinds.contains(&step.kind))
        {
            return Err(code_changed(at, &step.name, &name));
        }
        progress.next = at + 1;
        Ok(StepPlace { at, name, stored })
    }

    /// Takes the next place for a version. Unlike a step, a version is never found at another place.
    pub(crate) fn next_version(&self, change: &str) -> Result<StepPlace, JobError> {
        let name = StepName::new(change).map_err(JobError::reject)?;
        let mut progress = self.lock();
        let (at, stored) = (progress.next, progress.steps.get(&progress.next).cloned());
        progress.next += 1;
        Ok(StepPlace { at, name, stored })
    }

    /// The stored step at the handler's next place.
    pub(crate) fn peek(&self) -> Option<Step> {
        let progress = self.lock();
        progress.steps.get(&progress.next).cloned()
    }

    /// Whether a step is stored at the handler's next place or after it.
    pub(crate) fn has_more_steps(&self) -> bool {
        let progress = self.lock();
        progress.steps.range(progress.next..).next().is_some()
    }

    /// Stores the result of the step at a place.
    pub(crate) async fn store_step(
        &self,
        place: &StepPlace,
        kind: StepKind,
        value: Vec<u8>,
    ) -> Result<Step, JobError> {
        self.store_with_children(place, kind, value, Vec::new()).await
    }

    /// Stores a step and enqueues its children in the same transaction.
    pub(crate) async fn store_with_children(
        &self,
        place: &StepPlace,
        kind: StepKind,
        value: Vec<u8>,
        children: Vec<NewJob>,
    ) -> Result<Step, JobError> {
        let step = Step { place: place.at, name: place.name.clone(), kind, value };
        let stored = self.remember(NewStep { children, ..NewStep::new(self.lease(), step) }).await?;
        stored.ok_or_else(|| {
            JobError::fail(
                "the store did not store a step because a signal is missing, but the step needs none",
            )
        })
    }

    /// Whether an earlier attempt recorded that the wait at a place completed before its rivals.
    pub(crate) fn has_completed(&self, place: &StepPlace) -> bool {
        self.lock().completed.contains(&place.at)
    }

    /// Records that the wait at a place has completed, if another wait could have completed instead.
    pub(crate) async fn record_completion(
        &self,
        place: &StepPlace,
        contender: &Contender<'_>,
    ) -> Result<(), JobError> {
        if !contender.has_rivals() || self.has_completed(place) {
            return Ok(());
        }
        let step = Step {
            place: place.at | RACE_PLACES,
            name: place.name.clone(),
            kind: StepKind::Selected,
            value: Vec::new(),
        };
        self.remember(NewStep::new(self.lease(), step)).await.map(drop)
    }

    /// The oldest signal with one of these names that no step has taken.
    pub(crate) async fn oldest_signal(&self, names: &[SignalName]) -> Result<Option<Signal>, JobError> {
        let job = self.attempt.job.id;
        let found = self.store()?.pending_signals(job, names.to_vec(), 1).await;
        let found = found
            .map_err(|error| JobError::fail(format_args!("the job's signals cannot be read: {error}")))?;
        Ok(found.into_iter().next())
    }

    /// Takes a signal and stores it as the step at a place. Returns none if the signal is gone.
    pub(crate) async fn take_signal(
        &self,
        place: &StepPlace,
        signal: &Signal,
        kind: StepKind,
        value: Vec<u8>,
    ) -> Result<Option<Step>, JobError> {
        let step = Step { place: place.at, name: place.name.clone(), kind, value };
        self.remember(NewStep { takes: Some(signal.id), ..NewStep::new(self.lease(), step) }).await
    }

    /// Skips a signal that the handler cannot read, and reports it. The handler keeps waiting for another signal.
    pub(crate) async fn skip_signal(
        &self,
        signal: &Signal,
        error: impl std::fmt::Display,
    ) -> Result<(), JobError> {
        let Signal { name, value, .. } = signal;
        let shown: String = String::from_utf8_lossy(value).chars().take(SHOWN_CHARS).collect();
        let problem = format!(
            "signal \"{name}\" was skipped because its value cannot be read: {error}; the value is {shown}"
        );
        match self.store()?.skip_signals(self.lease(), vec![signal.id]).await {
            Ok(true) => {
                tracing::warn!(job = %self.attempt.job.id, problem);
                self.suspensions.report(problem);
                Ok(())
            }
            Ok(false) => std::future::pending().await,
            Err(error) => {
                Err(JobError::fail(format_args!("signal \"{name}\" could not be skipped: {error}")))
            }
        }
    }

    /// Returns once the handler is suspended: it waits, and none of its code runs. The result is the outcome of its attempt.
    pub(crate) async fn suspended(&self) -> Outcome {
        self.suspensions.outcome(|| self.now().unwrap_or_default()).await
    }

    async fn remember(&self, new_step: NewStep) -> Result<Option<Step>, JobError> {
        let name = new_step.step.name.clone();
        let result = match self.store()?.remember(vec![new_step]).await {
            Ok(results) => results.into_iter().next(),
            Err(StoreError::Invalid(invalid)) => return Err(JobError::reject(invalid)),
            Err(error) => {
                return Err(JobError::fail(format_args!("step \"{name}\" could not be stored: {error}")));
            }
        };
        match result {
            Some(RememberResult::Stored(step) | RememberResult::AlreadyStored(step)) => {
                self.lock().add(step.clone());
                Ok(Some(step))
            }
            Some(RememberResult::NoSignal) => Ok(None),
            Some(RememberResult::CancelRequested) => Err(JobError::cancelled()),
            // Another worker has the job now. Nothing that this handler does takes effect any more.
            Some(RememberResult::LeaseLost) => std::future::pending().await,
            None => Err(JobError::fail("the store returned no result for a step")),
        }
    }

    /// Under [`Determinism::Strict`], rejects a handler that has succeeded without calling every stored step.
    pub(crate) fn check_all_replayed(&self) -> Result<(), JobError> {
        let progress = self.lock();
        let mut skipped = progress.steps.range(progress.next..).map(|(_, step)| step);
        let Some(first) = skipped.next().filter(|_| self.determinism == Determinism::Strict) else {
            return Ok(());
        };
        let (at, name, count) = (first.place, &first.name, skipped.count() + 1);
        Err(JobError::reject(format_args!(
            "the code has changed: the handler did not call {count} of the stored steps; the first is \"{name}\" at place {at}"
        )))
    }

    /// The worker's store.
    pub(crate) fn store(&self) -> Result<&Arc<dyn Backend>, JobError> {
        self.attempt.store().ok_or_else(no_worker)
    }

    /// The store's time.
    pub(crate) fn now(&self) -> Result<Timestamp, JobError> {
        self.attempt.now().ok_or_else(no_worker)
    }

    /// The lease of the attempt.
    pub(crate) fn lease(&self) -> Lease {
        self.attempt.job.lease()
    }

    fn lock(&self) -> MutexGuard<'_, ReplayProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReplayProgress {
    fn add(&mut self, step: Step) {
        if step.place >= RACE_PLACES {
            self.completed.insert(step.place - RACE_PLACES);
        } else {
            self.steps.insert(step.place, step);
        }
    }

    /// The next place. Skips versions that the code no longer asks for.
    fn next_place(&self) -> u32 {
        let versions = self.steps.range(self.next..).take_while(|(_, step)| step.kind == StepKind::Version);
        self.next + versions.count() as u32
    }

    /// The next place at which that step is stored, or else a new place after all stored steps.
    fn place_of(&self, name: &StepName, kinds: &[StepKind]) -> u32 {
        let found =
            self.steps.range(self.next..).find(|(_, step)| step.name == *name && kinds.contains(&step.kind));
        let new = self.steps.last_key_value().map_or(0, |(place, _)| place + 1).max(self.next);
        found.map_or(new, |(place, _)| *place)
    }
}

fn code_changed(at: u32, stored: &StepName, called: &StepName) -> JobError {
    JobError::fail(format_args!(
        "the code has changed: step \"{stored}\" is stored at place {at}, but the handler calls \"{called}\" there; \
         keep the order of the steps, or separate old runs from new ones with cx.version"
    ))
}

fn no_worker() -> JobError {
    JobError::reject("steps need a worker, and this context has none")
}

/// The error for a stored value that the code cannot read any more.
pub(crate) fn unreadable(step: &Step, error: impl std::fmt::Display) -> JobError {
    JobError::reject(format_args!("the result of step \"{}\" cannot be read: {error}", step.name))
}
