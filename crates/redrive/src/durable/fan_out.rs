//! `cx.fan_out`: enqueues child jobs and waits for them without occupying the worker.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::steps::{Step, StepKind};
use redrive_core::{Job, JobId, NewJob, Parent, Reason, State, WaitCondition};
use uuid::Uuid;

use super::history::StepPlace;
use super::race::Contender;
use super::suspend::{BusyGuard, Suspension};
use crate::{Context, Enqueue, Error, JobError, Task};

impl Context {
    /// Enqueues a child job for each task and waits until all of them have ended, without occupying the worker. The results are
    /// in the order of the tasks.
    ///
    /// If a child is dead or cancelled, the fan-out fails: the other children are cancelled, and the job is rejected. Use
    /// [`FanOut::collect_all`] or [`FanOut::threshold`] to accept failed children.
    ///
    /// Children end with their parent: if it is cancelled or dead before they have ended, they are cancelled too, unless they
    /// are detached with [`FanOut::detach`]. A job whose cancel was requested gets no more children.
    ///
    /// ```
    /// # use redrive::{Context, JobError, Task};
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Serialize, Deserialize)]
    /// struct Resize { image: String, width: u32 }
    /// impl Task for Resize { const KIND: &'static str = "resize"; type Output = String; }
    ///
    /// # #[derive(Serialize, Deserialize)] struct Publish { image: String }
    /// # impl Task for Publish { const KIND: &'static str = "publish"; type Output = Vec<String>; }
    /// async fn publish(job: Publish, cx: Context) -> Result<Vec<String>, JobError> {
    ///     let sizes = [320, 640, 1280].map(|width| Resize { image: job.image.clone(), width });
    ///     cx.fan_out(sizes).await
    /// }
    /// ```
    pub fn fan_out<T: Task>(&self, tasks: impl IntoIterator<Item = T>) -> FanOut<'_, T> {
        let children = tasks.into_iter().map(|task| self.redrive().enqueue(task)).collect();
        FanOut { cx: self, children, detached: false, task: PhantomData }
    }
}

/// A fan-out in which every child must succeed. Await it, or set options first. See [`Context::fan_out`].
#[must_use = "children are enqueued only when this is awaited"]
pub struct FanOut<'a, T> {
    cx: &'a Context,
    children: Vec<Enqueue>,
    detached: bool,
    task: PhantomData<fn() -> T>,
}

impl<'a, T: Task> FanOut<'a, T> {
    /// Sets options for the enqueue of each child, for example its queue, priority or policy.
    ///
    /// A child cannot have an idempotency key or a unique key. A fan-out with such a child is rejected before anything is stored:
    /// it enqueues each child exactly once anyway, and a key could return a job that is not its child.
    pub fn each(self, change: impl FnMut(Enqueue) -> Enqueue) -> Self {
        let children = self.children.into_iter().map(change).collect();
        Self { children, ..self }
    }

    /// Lets the children continue when the parent is cancelled or dead, or when the fan-out fails.
    pub fn detach(self) -> Self {
        Self { detached: true, ..self }
    }

    /// Waits for every child and returns the result of each, failed or not.
    pub fn collect_all(self) -> CollectAll<'a, T> {
        CollectAll { fan_out: self, needed: 0 }
    }

    /// Waits for every child. Fails as soon as fewer than `needed` can succeed, and cancels the rest.
    pub fn threshold(self, needed: usize) -> CollectAll<'a, T> {
        CollectAll { fan_out: self, needed }
    }
}

impl<'a, T: Task> IntoFuture for FanOut<'a, T> {
    type Output = Result<Vec<T::Output>, JobError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let needed = self.children.len();
        let running = RunningFanOut::start(self, needed);
        Box::pin(async move {
            let results = running?.run::<T>().await?;
            results.into_iter().map(|result| result.map_err(JobError::reject)).collect()
        })
    }
}

/// A fan-out in which some children may fail. See [`FanOut::collect_all`] and [`FanOut::threshold`].
#[must_use = "children are enqueued only when this is awaited"]
pub struct CollectAll<'a, T> {
    fan_out: FanOut<'a, T>,
    needed: usize,
}

impl<'a, T: Task> IntoFuture for CollectAll<'a, T> {
    type Output = Result<Vec<Result<T::Output, ChildError>>, JobError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let running = RunningFanOut::start(self.fan_out, self.needed);
        Box::pin(async move { running?.run::<T>().await })
    }
}

/// Why a child has no result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChildError {
    /// It is dead.
    #[error("child {id} is dead ({reason}): {error}")]
    Dead {
        /// The child.
        id: JobId,
        /// Why it is dead.
        reason: Reason,
        /// The error of its last failed attempt.
        error: String,
    },
    /// It was cancelled, or discarded.
    #[error("child {0} was cancelled")]
    Cancelled(JobId),
    /// It had not ended when too many others had failed.
    #[error("child {0} had not ended when the fan-out failed")]
    Unfinished(JobId),
    /// Its output does not have the type that the parent expects.
    #[error("the output of child {id} cannot be read: {error}")]
    Unreadable {
        /// The child.
        id: JobId,
        /// The error of the deserializer.
        error: String,
    },
}

/// A running fan-out. It has one step for each thousand children.
struct RunningFanOut<'a> {
    cx: &'a Context,
    contender: Contender<'a>,
    children: Vec<Enqueue>,
    places: Vec<StepPlace>,
    detached: bool,
    failures_max: usize,
}

impl<'a> RunningFanOut<'a> {
    /// Takes a place for each thousand children.
    fn start<T: Task>(fan_out: FanOut<'a, T>, needed: usize) -> Result<Self, JobError> {
        let FanOut { cx, children, detached, .. } = fan_out;
        let contender = cx.history.races.enter();
        let name = format!("fan out {} {}", children.len(), T::KIND);
        let places = (0..children.len().div_ceil(BATCH_ITEMS_MAX))
            .map(|_| cx.history.next_step(&name, &[StepKind::Children]));
        let places = places.collect::<Result<_, _>>()?;
        children.iter().try_for_each(|child| refuse_keys(child.has_key()))?;
        let failures_max = children.len().checked_sub(needed);
        let failures_max = failures_max.ok_or_else(|| {
            JobError::reject(format_args!(
                "the threshold of the fan-out is {needed}, but it has only {} children",
                children.len()
            ))
        })?;
        Ok(Self { cx, contender, children, places, detached, failures_max })
    }

    async fn run<T: Task>(mut self) -> Result<Vec<Result<T::Output, ChildError>>, JobError> {
        let Some(first) = self.places.first() else { return Ok(Vec::new()) };
        let (cx, branch) = (self.cx, first.at);
        if cx.history.has_completed(first) {
            self.contender.mark_recorded();
        }
        let busy = cx.history.suspensions.busy();
        let (ids, has_new) = self.enqueue_missing(branch).await?;
        if has_new {
            // If all of them end before the wait begins, the store resumes the job at once.
            return self.wait(branch, busy).await;
        }
        let children = read_children(cx, &ids).await?;
        let failed = children.iter().filter(|child| has_failed(child.as_ref())).count();
        let has_failed = failed > self.failures_max;
        if !has_failed && children.iter().flatten().any(|child| !child.state.is_final()) {
            return self.wait(branch, busy).await;
        }
        let _permit = self.contender.permit().await;
        if let Some(first) = self.places.first() {
            cx.history.record_completion(first, &self.contender).await?;
        }
        if has_failed {
            return Err(self.fail::<T>(&ids, children).await);
        }
        Ok(ids.iter().zip(children).map(|(id, child)| result::<T>(*id, child)).collect())
    }

    /// Enqueues the children that no earlier attempt has enqueued. Returns the ids of all children, and whether some are new.
    async fn enqueue_missing(&mut self, branch: u32) -> Result<(Vec<JobId>, bool), JobError> {
        let parent = Parent { detached: self.detached, ..Parent::new(self.cx.job.id, branch) };
        let (mut ids, mut has_new) = (Vec::new(), false);
        let mut children = std::mem::take(&mut self.children).into_iter();
        for place in &self.places {
            let chunk: Vec<Enqueue> = children.by_ref().take(BATCH_ITEMS_MAX).collect();
            let step = match &place.stored {
                Some(step) => step.clone(),
                None => {
                    has_new = true;
                    enqueue(self.cx, place, chunk, parent).await?
                }
            };
            ids.extend(read_ids(&step));
        }
        Ok((ids, has_new))
    }

    async fn wait<T>(&mut self, branch: u32, busy: BusyGuard<'_>) -> T {
        // A child that was redriven has to end again.
        self.contender.unmark_recorded();
        let failures_max = u32::try_from(self.failures_max).unwrap_or(u32::MAX);
        let until = Some(WaitCondition::Children { branch, failures_max });
        self.cx.history.suspensions.suspend(Suspension { until, deadline: None }, busy).await
    }

    /// Cancels the remaining children of a failed fan-out, unless they are detached. Returns why the fan-out has failed.
    async fn fail<T: Task>(&self, ids: &[JobId], children: Vec<Option<Job>>) -> JobError {
        // When the store resumed this job, it cancelled most of the children and requested the cancel of the running ones.
        let must_cancel = |child: &&Job| !child.state.is_final() && !child.cancel_requested;
        let live = children.iter().flatten().filter(|child| !self.detached && must_cancel(child));
        let live: Vec<JobId> = live.map(|child| child.id).collect();
        for batch in live.chunks(BATCH_ITEMS_MAX) {
            if let Err(error) = self.cx.redrive().backend().cancel(batch.to_vec()).await {
                return JobError::from(error);
            }
        }
        let results = ids.iter().zip(children).map(|(id, child)| result::<T>(*id, child));
        why_failed(ids.len(), &results.filter_map(Result::err).collect::<Vec<_>>())
    }
}

/// Why a fan-out has failed. Names a dead child if there is one: cancelled children may only have been cancelled because of it.
fn why_failed(children: usize, errors: &[ChildError]) -> JobError {
    let count = |which: fn(&ChildError) -> bool| errors.iter().filter(|error| which(error)).count();
    let is_dead = |error: &ChildError| matches!(error, ChildError::Dead { .. });
    let is_cancelled = |error: &ChildError| matches!(error, ChildError::Cancelled(_));
    let (failed, first) = match errors.iter().find(|error| is_dead(error)) {
        Some(first) => (count(is_dead), Some(first)),
        None => (count(is_cancelled), errors.iter().find(|error| is_cancelled(error))),
    };
    let first = first.map_or(String::new(), |first| format!(": {first}"));
    JobError::reject(format_args!("{failed} of {children} children failed{first}"))
}

async fn enqueue(
    cx: &Context,
    place: &StepPlace,
    chunk: Vec<Enqueue>,
    parent: Parent,
) -> Result<Step, JobError> {
    let mut jobs = Vec::with_capacity(chunk.len());
    for enqueue in chunk {
        let (_, job) = enqueue.job().await.map_err(enqueue_error)?;
        // A middleware may have added a key.
        refuse_keys(job.unique.is_some() || job.idempotency.is_some())?;
        jobs.push(NewJob { parent: Some(parent), ..job });
    }
    let ids = jobs.iter().flat_map(|job| job.id.0.into_bytes()).collect();
    cx.history.store_with_children(place, StepKind::Children, ids, jobs).await
}

/// An invalid value is invalid in every attempt, so it is rejected. Other errors may pass.
fn enqueue_error(error: Error) -> JobError {
    match error {
        Error::Invalid(invalid) => JobError::reject(invalid),
        error => error.into(),
    }
}

fn refuse_keys(has_key: bool) -> Result<(), JobError> {
    if has_key {
        return Err(JobError::reject(
            "a child of a fan-out cannot have an idempotency key or a unique key: it is enqueued once anyway, and a key \
             could return a job that is not a child; remove the key, or enqueue the job in a step of its own",
        ));
    }
    Ok(())
}

fn read_ids(step: &Step) -> impl Iterator<Item = JobId> {
    step.value.chunks_exact(16).filter_map(|bytes| Uuid::from_slice(bytes).ok()).map(JobId)
}

async fn read_children(cx: &Context, ids: &[JobId]) -> Result<Vec<Option<Job>>, JobError> {
    let mut children = Vec::with_capacity(ids.len());
    for batch in ids.chunks(BATCH_ITEMS_MAX) {
        children.extend(cx.history.store()?.get(batch.to_vec()).await?);
    }
    Ok(children)
}

fn has_failed(child: Option<&Job>) -> bool {
    child.is_none_or(|child| matches!(child.state, State::Dead | State::Cancelled))
}

fn result<T: Task>(id: JobId, child: Option<Job>) -> Result<T::Output, ChildError> {
    let Some(child) = child else { return Err(ChildError::Cancelled(id)) };
    match child.state {
        State::Succeeded => {
            let output = child.output.as_deref().unwrap_or(b"null");
            serde_json::from_slice(output)
                .map_err(|error| ChildError::Unreadable { id, error: error.to_string() })
        }
        State::Dead => Err(ChildError::Dead {
            id,
            reason: child.reason.unwrap_or(Reason::NotRetryable),
            error: child.last_error.unwrap_or_default(),
        }),
        State::Cancelled => Err(ChildError::Cancelled(id)),
        State::Pending | State::Retrying | State::Running | State::Waiting => Err(ChildError::Unfinished(id)),
    }
}
