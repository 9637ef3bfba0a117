//! Signals: `cx.signal` waits for one, `redrive.signal` sends one.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use redrive_core::limits::HORIZON;
use redrive_core::steps::{Signal, SignalResult, Step, StepKind};
use redrive_core::{JobId, SignalName, Timestamp, WaitCondition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::history::{StepPlace, unreadable};
use super::race::Contender;
use super::select::SelectArm;
use super::suspend::Suspension;
use crate::{Context, Error, JobError, Redrive, json};

impl Context {
    /// Waits for a signal with this name, without occupying the worker. Signals that arrived earlier count. They are taken in
    /// the order of their arrival, each once. A signal whose value is not a `T` is skipped: the job keeps waiting for a valid
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

    /// Takes a signal at a place, or waits for one until `deadline`. Returns none after the deadline. A signal whose value is
    /// not a `T` is skipped.
    async fn take_signal<T: DeserializeOwned>(
        &self,
        place: &StepPlace,
        contender: &Contender<'_>,
        name: &str,
        deadline: Option<Timestamp>,
    ) -> Result<Option<T>, JobError> {
        if let Some(step) = &place.stored {
            return value(step);
        }
        let history = &*self.history;
        let busy = history.suspensions.busy();
        let name = SignalName::new(name).map_err(JobError::reject)?;
        let names = [name];
        loop {
            let permit = contender.permit().await;
            if let Some(signal) = history.oldest_signal(&names).await? {
                match serde_json::from_slice::<T>(&signal.value) {
                    Ok(value) => {
                        let taken =
                            history.take_signal(place, &signal, StepKind::Signal, signal.value.clone());
                        if taken.await?.is_some() {
                            return Ok(Some(value));
                        }
                    }
                    Err(error) => history.skip_signal(&signal, error).await?,
                }
                continue;
            }
            if deadline.is_some_and(|deadline| history.now().is_ok_and(|now| deadline <= now)) {
                history.store_step(place, StepKind::Failed, b"no signal came in time".to_vec()).await?;
                return Ok(None);
            }
            permit.release();
            let [name] = names;
            let until = Some(WaitCondition::Signal(name));
            return history.suspensions.suspend(Suspension { until, deadline }, busy).await;
        }
    }
}

/// The value of a signal from its stored step. None if the signal did not come in time.
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

/// A wait for a signal. Await it, or set an [`AwaitSignal::timeout`] first. See [`Context::signal`].
#[must_use = "the handler waits only when this is awaited"]
pub struct AwaitSignal<'a, T> {
    cx: &'a Context,
    name: String,
    value: PhantomData<fn() -> T>,
}

impl<'a, T: DeserializeOwned + Send + 'a> AwaitSignal<'a, T> {
    /// Stops waiting after `span`, at most a year, and returns none. The time counts from the first attempt that got here.
    pub fn timeout(self, span: Duration) -> AwaitSignalUntil<'a, T> {
        AwaitSignalUntil { signal: self, span }
    }

    /// Makes it an arm of [`Context::select`]. `then` turns the value of the signal into the result of the select.
    pub fn map<R>(self, then: impl FnOnce(T) -> R + Send + 'a) -> SelectArm<'a, R> {
        SelectArm::signal(self.name, then)
    }
}

impl<'a, T: DeserializeOwned + Send + 'a> IntoFuture for AwaitSignal<'a, T> {
    type Output = Result<T, JobError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let place = self.cx.history.next_step(&self.name, &[StepKind::Signal]);
        let contender = self.cx.history.races.enter();
        Box::pin(async move {
            let value = self.cx.take_signal(&place?, &contender, &self.name, None).await?;
            value.ok_or_else(|| JobError::reject("a wait for a signal without a timeout has timed out"))
        })
    }
}

/// A wait for a signal, with a timeout. See [`AwaitSignal::timeout`].
#[must_use = "the handler waits only when this is awaited"]
pub struct AwaitSignalUntil<'a, T> {
    signal: AwaitSignal<'a, T>,
    span: Duration,
}

impl<'a, T: DeserializeOwned + Send + 'a> IntoFuture for AwaitSignalUntil<'a, T> {
    type Output = Result<Option<T>, JobError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { signal: AwaitSignal { cx, name, .. }, span } = self;
        let deadline = cx.history.next_step(&name, &[StepKind::Deadline]);
        let place = cx.history.next_step(&name, &[StepKind::Signal, StepKind::Failed]);
        let contender = cx.history.races.enter();
        Box::pin(async move {
            let busy = cx.history.suspensions.busy();
            if span > HORIZON {
                return Err(JobError::reject(
                    "the timeout of a signal is longer than a year; use a shorter one",
                ));
            }
            let deadline = cx.deadline(&deadline?, StepKind::Deadline, span).await?;
            drop(busy);
            cx.take_signal(&place?, &contender, &name, Some(deadline)).await
        })
    }
}

impl Redrive {
    /// Sends a signal to a job that has not ended. A job that waits for the signal continues. Otherwise the signal is kept until
    /// the job asks for it.
    ///
    /// ```
    /// # use redrive::{Redrive, SignalResult, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Expense { euros: u64 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let id = redrive.enqueue(Expense { euros: 42 }).await?.id();
    /// redrive.signal(id, "approved", &true).await?;
    /// # Ok(()) }
    /// ```
    pub async fn signal<V: Serialize + Sync>(
        &self,
        job: JobId,
        name: &str,
        value: &V,
    ) -> Result<SignalResult, Error> {
        let value = json::catch_write("signal", value)?;
        let value = value.map_err(|source| Error::Payload { kind: "signal", source })?;
        self.send_signal(Signal { job, id: Uuid::now_v7(), name: name.parse()?, value }).await
    }

    /// Sends a signal with an id that the caller chose. Sending it again with the same id changes nothing.
    pub async fn send_signal(&self, signal: Signal) -> Result<SignalResult, Error> {
        let job = signal.job;
        let result = self.backend().signal(vec![signal]).await?.pop();
        self.backend().resume(vec![job]).await?;
        Ok(result.unwrap_or(SignalResult::NotFound))
    }
}
