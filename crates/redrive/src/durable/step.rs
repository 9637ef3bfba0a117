//! `cx.step`: runs a part of a handler once.

use std::future::Future;

use redrive_core::steps::{Step, StepKind};
use redrive_core::{Failure, FailureKind, Outcome};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::unreadable;
use crate::durable::history::StepPlace;
use crate::durable::race::Contender;
use crate::{Context, JobError, json};

impl Context {
    /// Runs a step once and stores its result. After a retry or a crash the handler gets the stored result, and the step does
    /// not run again.
    ///
    /// A failed step is not stored, so the next attempt runs it again. A [`JobError::reject`] is stored and returned again. If
    /// the process crashes after the step has ended and before its result is committed, the step runs again: make its effects
    /// idempotent.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Order { id: u64 }
    /// # impl Task for Order { const KIND: &'static str = "order"; type Output = String; }
    /// # async fn charge(order: u64) -> Result<String, std::io::Error> { Ok(format!("receipt {order}")) }
    /// # async fn ship(order: u64) -> Result<(), std::io::Error> { Ok(()) }
    /// async fn fulfil(order: Order, cx: Context) -> Result<String, JobError> {
    ///     let receipt = cx.step("charge", || charge(order.id)).await?;
    ///     cx.step("ship", || ship(order.id)).await?;
    ///     Ok(receipt)
    /// }
    /// ```
    ///
    /// Steps may run concurrently, for example with `tokio::join!` or `tokio::select!`. Their order is the order of the calls to
    /// this method. `select!` chooses the same step at each replay.
    pub fn step<T, E, F, Fut>(
        &self,
        name: &str,
        run: F,
    ) -> impl Future<Output = Result<T, JobError>> + Send + use<'_, T, E, F, Fut>
    where
        T: Serialize + DeserializeOwned + Send,
        E: Into<JobError>,
        F: FnOnce() -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        let place = self.history.next_step(name, &[StepKind::Done, StepKind::Failed]);
        let contender = self.history.races.enter();
        async move {
            let place = place?;
            match &place.stored {
                Some(step) => replay(step),
                None => self.run_step(&place, &contender, run).await,
            }
        }
    }

    async fn run_step<T, E, F, Fut>(
        &self,
        place: &StepPlace,
        contender: &Contender<'_>,
        run: F,
    ) -> Result<T, JobError>
    where
        T: Serialize + DeserializeOwned,
        E: Into<JobError>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let _running = self.history.suspensions.busy();
        let (kind, value) = match run().await.map_err(Into::into) {
            Ok(value) => (StepKind::Done, write(place, &value)?),
            Err(JobError(Outcome::Reject(failure))) => (StepKind::Failed, failure.message.into_bytes()),
            Err(retryable) => return Err(retryable),
        };
        let _permit = contender.permit().await;
        let step = self.history.store_step(place, kind, value).await?;
        replay(&step)
    }
}

/// The result of a step as JSON. A panic in its Serialize fails the attempt, and the next attempt runs the step again.
fn write<T: Serialize>(place: &StepPlace, value: &T) -> Result<Vec<u8>, JobError> {
    let kind = format_args!("result of step \"{}\"", place.name()).to_string();
    let panicked = |panic| JobError(Outcome::Fail(Failure::new(FailureKind::Panic, panic)));
    json::catch_write(kind, value).map_err(panicked)?.map_err(JobError::reject)
}

/// The result of a stored step.
fn replay<T: DeserializeOwned>(step: &Step) -> Result<T, JobError> {
    match step.kind {
        StepKind::Failed => Err(JobError::reject(String::from_utf8_lossy(&step.value))),
        StepKind::Done
        | StepKind::Timer
        | StepKind::Children
        | StepKind::Signal
        | StepKind::Deadline
        | StepKind::Version
        | StepKind::Selected => serde_json::from_slice(&step.value).map_err(|error| unreadable(step, error)),
    }
}
