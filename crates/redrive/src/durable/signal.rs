//! Waiting for signals from outside, and sending them.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use redrive_core::limits::HORIZON;
use redrive_core::steps::{Signal, Signalled, Step, StepKind};
use redrive_core::{Await, JobId, SignalName, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::history::{Place, unreadable};
use super::pause::Pause;
use super::race::Contender;
use super::select::Arm;
use crate::{Context, Error, JobError, Redrive, json};

impl Context {
    /// Waits for a signal by this name, without holding the worker. Signals that came before count; they are taken in the
    /// order in which they came, each once. A signal whose value is not a `T` is set aside: the job keeps waiting for a valid
    /// one, and its last error says so.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Task};
    /// # use std::time::Duration;
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Expense { euros: u64 }
    /// # impl Task for Expense { const KIND: &'static str = "expense"; type Output = bool; }
    /// async fn expense(expense: Expense, cx: Context) -> Result<bool, JobError> {
    ///     let week = Duration::from_secs(7 * 24 * 60 * 60);
    ///     let approved = cx.signal::<bool>("approved").timeout(week).await?;
    ///     Ok(approved.unwrap_or(false))
    /// }
    /// # async fn example(redrive: redrive::Redrive, job: redrive::JobId) -> Result<(), redrive::Error> {
    /// redrive.signal(job, "approved", &true).await?;
    /// # Ok(()) }
    /// ```
    pub fn signal<T: DeserializeOwned + Send>(&self, name: &str) -> AwaitSignal<'_, T> {
        AwaitSignal { cx: self, name: name.to_owned(), value: PhantomData }
    }

    /// Takes a signal at a place, or waits for it until `deadline`; none when that has passed. A signal that is no `T` is set
    /// aside.
    async fn take_signal<T: DeserializeOwned>(
        &self,
        place: &Place,
        contender: &Contender<'_>,
        name: &str,
        deadline: Option<Timestamp>,
    ) -> Result<Option<T>, JobError> {
        if let Some(step) = &place.before {
            return value(step);
        }
        let history = &*self.history;
        let busy = history.pauses.busy();
        let name = SignalName::new(name).map_err(JobError::reject)?;
        let names = [name];
        loop {
            let turn = contender.turn().await;
            if let Some(signal) = history.oldest_signal(&names).await? {
                match serde_json::from_slice::<T>(&signal.value) {
                    Ok(value) => {
                        let taken = history.take(place, &signal, StepKind::Signal, signal.value.clone());
                        if taken.await?.is_some() {
                            return Ok(Some(value));
                        }
                    }
                    Err(error) => history.set_aside(&signal, error).await?,
                }
                continue;
            }
            if deadline.is_some_and(|deadline| history.now().is_ok_and(|now| deadline <= now)) {
                history.keep(place, StepKind::Failed, b"no signal came in time".to_vec()).await?;
                return Ok(None);
            }
            turn.pass_on();
            let [name] = names;
            return history.pauses.pause(Pause { until: Some(Await::Signal(name)), deadline }, busy).await;
        }
    }
}

/// The value of a signal as it was remembered; none if it did not come in time.
fn value<T: DeserializeOwned>(step: &Step) -> Result<Option<T>, JobError> {
    match step.kind {
        StepKind::Failed => Ok(None),
        StepKind::Done
        | StepKind::Timer
        | StepKind::Children
        | StepKind::Signal
        | StepKind::Deadline
        | StepKind::Version
        | StepKind::Selected => {
            serde_json::from_slice(&step.value).map(Some).map_err(|error| unreadable(step, error))
        }
    }
}

/// A wait for a signal, however long; await it, or give it an end first.
#[must_use = "a signal is waited for when this is awaited"]
pub struct AwaitSignal<'a, T> {
    cx: &'a Context,
    name: String,
    value: PhantomData<fn() -> T>,
}

impl<'a, T: DeserializeOwned + Send + 'a> AwaitSignal<'a, T> {
    /// Gives up after `span`, a year at most, counted from when the handler first came here; none is the answer then.
    pub fn timeout(self, span: Duration) -> AwaitSignalUntil<'a, T> {
        AwaitSignalUntil { signal: self, span }
    }

    /// Makes it one of the things that [`Context::select`] waits for; `then` turns its value into what that returns.
    pub fn map<R>(self, then: impl FnOnce(T) -> R + Send + 'a) -> Arm<'a, R> {
        Arm::signal(self.name, then)
    }
}

impl<'a, T: DeserializeOwned + Send + 'a> IntoFuture for AwaitSignal<'a, T> {
    type Output = Result<T, JobError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let place = self.cx.history.enter(&self.name, &[StepKind::Signal]);
        let contender = self.cx.history.races.enter();
        Box::pin(async move {
            let value = self.cx.take_signal(&place?, &contender, &self.name, None).await?;
            value.ok_or_else(|| JobError::reject("a wait for a signal without an end was given up"))
        })
    }
}

/// A wait for a signal with an end.
#[must_use = "a signal is waited for when this is awaited"]
pub struct AwaitSignalUntil<'a, T> {
    signal: AwaitSignal<'a, T>,
    span: Duration,
}

impl<'a, T: DeserializeOwned + Send + 'a> IntoFuture for AwaitSignalUntil<'a, T> {
    type Output = Result<Option<T>, JobError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { signal: AwaitSignal { cx, name, .. }, span } = self;
        let deadline = cx.history.enter(&name, &[StepKind::Deadline]);
        let place = cx.history.enter(&name, &[StepKind::Signal, StepKind::Failed]);
        let contender = cx.history.races.enter();
        Box::pin(async move {
            let busy = cx.history.pauses.busy();
            if span > HORIZON {
                return Err(JobError::reject("a signal is waited for a year at most"));
            }
            let deadline = cx.deadline(&deadline?, StepKind::Deadline, span).await?;
            drop(busy);
            cx.take_signal(&place?, &contender, &name, Some(deadline)).await
        })
    }
}

impl Redrive {
    /// Sends a signal to a job that has not ended. A job that waits for it goes on; for one that does not yet, it is kept.
    pub async fn signal<V: Serialize + Sync>(
        &self,
        job: JobId,
        name: &str,
        value: &V,
    ) -> Result<Signalled, Error> {
        let value = json::catch_write("signal", value)?;
        let value = value.map_err(|source| Error::Payload { kind: "signal", source })?;
        self.send(Signal { job, id: Uuid::now_v7(), name: name.parse()?, value }).await
    }

    /// Sends a signal under an id of the caller's, which makes it repeatable.
    pub async fn send(&self, signal: Signal) -> Result<Signalled, Error> {
        let job = signal.job;
        let answer = self.backend().signal(vec![signal]).await?.pop();
        self.backend().resume(vec![job]).await?;
        Ok(answer.unwrap_or(Signalled::NotFound))
    }
}
