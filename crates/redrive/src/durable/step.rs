//! Steps that run once.

use std::future::Future;

use redrive_core::steps::{Step, StepKind};
use redrive_core::{Failure, Fault, Outcome};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::unreadable;
use crate::durable::history::Place;
use crate::durable::race::Contender;
use crate::{Context, JobError, json};

impl Context {
    /// Runs a step once and remembers what it came to: on a retry, and after a crash, it is given back instead.
    ///
    /// A failure that another attempt may cure is not remembered, so that the next attempt tries the step again; a
    /// [`JobError::reject`] is, and comes back as one. Between the end of a step and its being remembered lies a commit: a
    /// crash in between runs it again, as with anything that acts on the world outside.
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
    /// Steps may run side by side, with `tokio::join!` or `tokio::select!` for instance. Their order is the one in which this
    /// is called, and `select!` chooses the same one at each replay.
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
        let place = self.history.enter(name, &[StepKind::Done, StepKind::Failed]);
        let contender = self.history.races.enter();
        async move {
            let place = place?;
            match &place.before {
                Some(step) => replay(step),
                None => self.run_step(&place, &contender, run).await,
            }
        }
    }

    async fn run_step<T, E, F, Fut>(
        &self,
        place: &Place,
        contender: &Contender<'_>,
        run: F,
    ) -> Result<T, JobError>
    where
        T: Serialize + DeserializeOwned,
        E: Into<JobError>,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let _running = self.history.pauses.busy();
        let (kind, value) = match run().await.map_err(Into::into) {
            Ok(value) => (StepKind::Done, write(place, &value)?),
            Err(JobError(Outcome::Reject(failure))) => (StepKind::Failed, failure.message.into_bytes()),
            Err(passing) => return Err(passing),
        };
        let _turn = contender.turn().await;
        let step = self.history.keep(place, kind, value).await?;
        replay(&step)
    }
}

/// The result of a step as JSON. One whose Serialize panics may do better in the next attempt.
fn write<T: Serialize>(place: &Place, value: &T) -> Result<Vec<u8>, JobError> {
    let kind = format_args!("result of step \"{}\"", place.name()).to_string();
    let panicked = |panic| JobError(Outcome::Fail(Failure::new(Fault::Panic, panic)));
    json::catch_write(kind, value).map_err(panicked)?.map_err(JobError::reject)
}

/// What a step has come to, as it was remembered.
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
