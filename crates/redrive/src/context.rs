//! The context of a handler: its attempt, a handle on the store, and the state of its worker.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use redrive_core::Timestamp;

use crate::durable::History;
use crate::schedule::record::occurrence_of;
use crate::trace::Trace;
use crate::{JobError, Redrive};

/// The context of an attempt, which each handler receives. It derefs to the context of the engine, with `cx.job`, `cx.timeout`,
/// `cx.note(…)`, `cx.cancelled()` and `cx.is_cancelled()`.
///
/// Clones are cheap. A handler can pass one to a task that it spawns.
#[derive(Clone)]
pub struct Context {
    attempt: redrive_worker::Context,
    redrive: Redrive,
    states: Arc<States>,
    /// The steps that earlier attempts have stored.
    pub(crate) history: Arc<History>,
}

impl Context {
    pub(crate) fn new(
        attempt: redrive_worker::Context,
        mut redrive: Redrive,
        states: Arc<States>,
        history: History,
    ) -> Self {
        let job = &attempt.job;
        redrive.trace = Some(Trace::of(job.id, job.metadata.as_deref()));
        Self { attempt, redrive, states, history: Arc::new(history) }
    }

    /// A handle on the store of the job. Jobs that are enqueued with it join the trace of this job.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Welcome { user: u64 }
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Remind { user: u64 }
    /// async fn welcome(job: Welcome, cx: Context) -> Result<(), JobError> {
    ///     let day = std::time::Duration::from_secs(24 * 60 * 60);
    ///     let key = format!("remind-{}", job.user);
    ///     // The key makes it one job, even if the handler runs several times.
    ///     cx.redrive().enqueue(Remind { user: job.user }).key(&key).delay(day).await?;
    ///     Ok(())
    /// }
    /// ```
    pub fn redrive(&self) -> &Redrive {
        &self.redrive
    }

    /// The time at which the schedule of this job was due. None if no schedule enqueued the job.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Report;
    /// async fn report(_: Report, cx: Context) -> Result<(), JobError> {
    ///     if let Some(due) = cx.occurrence() {
    ///         println!("the report of {}", due.as_ms());
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn occurrence(&self) -> Option<Timestamp> {
        self.job.key.as_ref().and_then(occurrence_of)
    }

    /// The trace of the job as a W3C `traceparent`, to send with calls to other services.
    pub fn traceparent(&self) -> String {
        Trace::of(self.job.id, self.job.metadata.as_deref()).to_string()
    }

    /// The value of type `S` that [`crate::TaskWorker::state`] gave to the worker.
    ///
    /// If the worker has none, the error fails the attempt. It is retried, and another worker may have the value.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct SendReceipt { order: u64 }
    /// # impl Task for SendReceipt { const KIND: &'static str = "send_receipt"; type Output = (); }
    /// struct Mailer { from: String }
    ///
    /// async fn send(job: SendReceipt, cx: Context) -> Result<(), JobError> {
    ///     let mailer = cx.state::<Mailer>()?;
    ///     println!("{} sends the receipt for order {}", mailer.from, job.order);
    ///     Ok(())
    /// }
    ///
    /// # async fn example(redrive: redrive::Redrive) {
    /// let worker = redrive.worker().state(Mailer { from: "shop".to_owned() }).on(send);
    /// # }
    /// ```
    pub fn state<S: Send + Sync + 'static>(&self) -> Result<Arc<S>, JobError> {
        self.states.get().ok_or_else(|| {
            JobError::fail(format_args!(
                "this worker has no state of type {}; add it with TaskWorker::state",
                type_name::<S>()
            ))
        })
    }
}

impl Deref for Context {
    type Target = redrive_worker::Context;
    fn deref(&self) -> &Self::Target {
        &self.attempt
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.attempt.fmt(f)
    }
}

/// One value for each type.
#[derive(Clone, Default)]
pub(crate) struct States(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    /// Adds a value, or replaces the value of the same type.
    pub(crate) fn put<S: Send + Sync + 'static>(&mut self, value: S) {
        self.0.insert(TypeId::of::<S>(), Arc::new(value));
    }

    fn get<S: Send + Sync + 'static>(&self) -> Option<Arc<S>> {
        self.0.get(&TypeId::of::<S>())?.clone().downcast().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_each_type_is_kept() {
        let mut states = States::default();
        states.put(1_u8);
        states.put("text");
        states.put(2_u8);
        assert_eq!(states.get::<u8>().as_deref(), Some(&2));
        assert_eq!(states.get::<&str>().as_deref(), Some(&"text"));
        assert!(states.get::<u16>().is_none());
    }
}
