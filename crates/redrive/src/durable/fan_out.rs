//! Children: many jobs at once, and one that waits for them without holding a worker.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::steps::{Step, StepKind};
use redrive_core::{Await, Job, JobId, NewJob, Parent, Reason, State};
use uuid::Uuid;

use super::history::Place;
use super::pause::{BusyGuard, Pause};
use super::race::Contender;
use crate::{Context, Enqueue, Error, JobError, Task};

impl Context {
    /// Enqueues a child for each task and waits until they have ended, without holding the worker. The results stand in
    /// the order of the tasks.
    ///
    /// The first child that is dead or cancelled fails it: the others are cancelled, and the error cannot be cured by
    /// another attempt. See [`FanOut::collect_all`] and [`FanOut::threshold`] for other ways.
    ///
    /// Children end with the job: if it is cancelled or dead before they have ended, they are cancelled too, except with
    /// [`FanOut::detach`]. A job whose cancel was requested gets no more children.
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

/// Children to be; await it for all of them to succeed, or choose another way first.
#[must_use = "children are enqueued when this is awaited"]
pub struct FanOut<'a, T> {
    cx: &'a Context,
    children: Vec<Enqueue>,
    detached: bool,
    task: PhantomData<fn() -> T>,
}

impl<'a, T: Task> FanOut<'a, T> {
    /// Changes how each child is enqueued: its queue, its priority, its policy.
    ///
    /// A child cannot have an idempotency key or a unique key: the fan-out is rejected before anything is stored. It enqueues
    /// each child once by itself, and a key might lead to a job that is not its child.
    pub fn each(self, change: impl FnMut(Enqueue) -> Enqueue) -> Self {
        let children = self.children.into_iter().map(change).collect();
        Self { children, ..self }
    }

    /// Lets the children go on when the job is cancelled or dead, or when the fan-out has failed.
    pub fn detach(self) -> Self {
        Self { detached: true, ..self }
    }

    /// Waits for every child, whatever becomes of it.
    pub fn collect_all(self) -> CollectAll<'a, T> {
        CollectAll { fan_out: self, needed: 0 }
    }

    /// Waits for every child, and fails as soon as fewer than `needed` can succeed: the rest is cancelled then.
    pub fn threshold(self, needed: usize) -> CollectAll<'a, T> {
        CollectAll { fan_out: self, needed }
    }
}

impl<'a, T: Task> IntoFuture for FanOut<'a, T> {
    type Output = Result<Vec<T::Output>, JobError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let needed = self.children.len();
        let join = Join::enter(self, needed);
        Box::pin(async move {
            let results = join?.run::<T>().await?;
            results.into_iter().map(|result| result.map_err(JobError::reject)).collect()
        })
    }
}

/// Children of which some may fail.
#[must_use = "children are enqueued when this is awaited"]
pub struct CollectAll<'a, T> {
    fan_out: FanOut<'a, T>,
    needed: usize,
}

impl<'a, T: Task> IntoFuture for CollectAll<'a, T> {
    type Output = Result<Vec<Result<T::Output, ChildError>>, JobError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let join = Join::enter(self.fan_out, self.needed);
        Box::pin(async move { join?.run::<T>().await })
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
        /// Its last failure.
        error: String,
    },
    /// It was cancelled, or discarded.
    #[error("child {0} was cancelled")]
    Cancelled(JobId),
    /// It had not ended when too many others had failed.
    #[error("child {0} was given up")]
    GivenUp(JobId),
    /// What it returned is not what the parent expects.
    #[error("what child {id} returned cannot be read: {error}")]
    Unreadable {
        /// The child.
        id: JobId,
        /// Why.
        error: String,
    },
}

/// A fan-out on its way: the places of its steps, a thousand children each.
struct Join<'a> {
    cx: &'a Context,
    contender: Contender<'a>,
    children: Vec<Enqueue>,
    places: Vec<Place>,
    detached: bool,
    failures_max: usize,
}

impl<'a> Join<'a> {
    /// Takes a place for each thousand children.
    fn enter<T: Task>(fan_out: FanOut<'a, T>, needed: usize) -> Result<Self, JobError> {
        let FanOut { cx, children, detached, .. } = fan_out;
        let contender = cx.history.races.enter();
        let name = format!("fan out {} {}", children.len(), T::KIND);
        let places = (0..children.len().div_ceil(BATCH_ITEMS_MAX))
            .map(|_| cx.history.enter(&name, &[StepKind::Children]));
        let places = places.collect::<Result<_, _>>()?;
        children.iter().try_for_each(|child| refuse_keys(child.has_key()))?;
        let failures_max = children.len().checked_sub(needed);
        let failures_max = failures_max.ok_or_else(|| {
            JobError::reject(format_args!("{needed} of {} children cannot succeed", children.len()))
        })?;
        Ok(Self { cx, contender, children, places, detached, failures_max })
    }

    async fn run<T: Task>(mut self) -> Result<Vec<Result<T::Output, ChildError>>, JobError> {
        let Some(first) = self.places.first() else { return Ok(Vec::new()) };
        let (cx, branch) = (self.cx, first.at);
        if cx.history.has_won(first) {
            self.contender.decide();
        }
        let busy = cx.history.pauses.busy();
        let (ids, spawned) = self.spawn(branch).await?;
        if spawned {
            // Nothing can have ended yet that resume would not notice.
            return self.wait(branch, busy).await;
        }
        let children = look(cx, &ids).await?;
        let failed = children.iter().filter(|child| has_failed(child.as_ref())).count();
        let has_failed = failed > self.failures_max;
        if !has_failed && children.iter().flatten().any(|child| !child.state.is_final()) {
            return self.wait(branch, busy).await;
        }
        let _turn = self.contender.turn().await;
        if let Some(first) = self.places.first() {
            cx.history.win(first, &self.contender).await?;
        }
        if has_failed {
            return Err(self.give_up::<T>(&ids, children).await);
        }
        Ok(ids.iter().zip(children).map(|(id, child)| result::<T>(*id, child)).collect())
    }

    /// Enqueues the children that are not there yet; says which there are, and whether some are new.
    async fn spawn(&mut self, branch: u32) -> Result<(Vec<JobId>, bool), JobError> {
        let parent = Parent { detached: self.detached, ..Parent::new(self.cx.job.id, branch) };
        let (mut ids, mut spawned) = (Vec::new(), false);
        let mut children = std::mem::take(&mut self.children).into_iter();
        for place in &self.places {
            let chunk: Vec<Enqueue> = children.by_ref().take(BATCH_ITEMS_MAX).collect();
            let step = match &place.before {
                Some(step) => step.clone(),
                None => {
                    spawned = true;
                    add(self.cx, place, chunk, parent).await?
                }
            };
            ids.extend(read_ids(&step));
        }
        Ok((ids, spawned))
    }

    async fn wait<T>(&mut self, branch: u32, busy: BusyGuard<'_>) -> T {
        // A child that was given a fresh run is waited for again.
        self.contender.undecide();
        let failures_max = u32::try_from(self.failures_max).unwrap_or(u32::MAX);
        let until = Some(Await::Children { branch, failures_max });
        self.cx.history.pauses.pause(Pause { until, deadline: None }, busy).await
    }

    /// Cancels what is left of a fan-out that has failed, unless it is detached, and says why it has failed.
    async fn give_up<T: Task>(&self, ids: &[JobId], children: Vec<Option<Job>>) -> JobError {
        // Whoever resumed the job has ended most of them, and has requested the end of those that run.
        let goes_on = |child: &&Job| !child.state.is_final() && !child.cancel_requested;
        let live = children.iter().flatten().filter(|child| !self.detached && goes_on(child));
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

/// Says why a fan-out has failed. Those that failed of themselves say more than those that were cancelled because of them.
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

async fn add(cx: &Context, place: &Place, chunk: Vec<Enqueue>, parent: Parent) -> Result<Step, JobError> {
    let mut jobs = Vec::with_capacity(chunk.len());
    for enqueue in chunk {
        let (_, job) = enqueue.job().await.map_err(refused)?;
        // A middleware may have given it one.
        refuse_keys(job.unique.is_some() || job.idempotency.is_some())?;
        jobs.push(NewJob { parent: Some(parent), ..job });
    }
    let ids = jobs.iter().flat_map(|job| job.id.0.into_bytes()).collect();
    cx.history.keep_with(place, StepKind::Children, ids, jobs).await
}

/// A value that is not legal stays so in every attempt; anything else may pass.
fn refused(error: Error) -> JobError {
    match error {
        Error::Invalid(invalid) => JobError::reject(invalid),
        error => error.into(),
    }
}

fn refuse_keys(has_key: bool) -> Result<(), JobError> {
    if has_key {
        return Err(JobError::reject(
            "a child of a fan-out cannot have an idempotency key or a unique key: it is enqueued once anyway, and a key \
             might lead to a job that is not a child; leave the key out, or enqueue the job in a step of its own",
        ));
    }
    Ok(())
}

fn read_ids(step: &Step) -> impl Iterator<Item = JobId> {
    step.value.chunks_exact(16).filter_map(|bytes| Uuid::from_slice(bytes).ok()).map(JobId)
}

async fn look(cx: &Context, ids: &[JobId]) -> Result<Vec<Option<Job>>, JobError> {
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
        State::Pending | State::Retrying | State::Running | State::Waiting => Err(ChildError::GivenUp(id)),
    }
}
