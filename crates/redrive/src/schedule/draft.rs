//! A schedule with its options, on its way into the store.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use redrive_core::{Invalid, Policy, Queue, Timestamp};
use uuid::Uuid;

use super::entry::{self, Entry, Kept, Template};
use super::{Missed, Schedule};
use crate::{Enqueue, Error};

/// A schedule on its way into the store; awaiting it puts it there. What is illegal is reported then, by name.
#[must_use = "a schedule is kept when this is awaited"]
#[derive(Debug)]
pub struct Scheduling {
    name: String,
    schedule: Schedule,
    missed: Missed,
    enqueue: Enqueue,
}

/// What came of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// There was none of that name.
    Created,
    /// There was another one of that name.
    Changed,
    /// It was there just like this.
    Unchanged,
}

impl Scheduling {
    pub(crate) fn new(name: String, schedule: Schedule, enqueue: Enqueue) -> Self {
        Self { name, schedule, missed: Missed::default(), enqueue }
    }

    /// What to do about occurrences that were missed; [`Missed::Once`] otherwise.
    pub fn missed(self, missed: Missed) -> Self {
        Self { missed, ..self }
    }

    /// Puts its jobs into a queue; "default" otherwise.
    pub fn queue(self, queue: &str) -> Self {
        self.with(|enqueue| enqueue.queue(queue))
    }

    /// Files its jobs under a tenant.
    pub fn tenant(self, tenant: &str) -> Self {
        self.with(|enqueue| enqueue.tenant(tenant))
    }

    /// From 0 to 9, higher ones first; 5 otherwise.
    pub fn priority(self, priority: u8) -> Self {
        self.with(|enqueue| enqueue.priority(priority))
    }

    /// Ends each attempt after `timeout`.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|enqueue| enqueue.timeout(timeout))
    }

    /// Keeps a text beside the payload of each job.
    pub fn metadata(self, metadata: impl Into<String>) -> Self {
        self.with(|enqueue| enqueue.metadata(metadata))
    }

    /// Tries its jobs again by `policy` instead of the task's own.
    pub fn policy(self, policy: Policy) -> Self {
        self.with(|enqueue| enqueue.policy(policy))
    }

    fn with(self, set: impl FnOnce(Enqueue) -> Enqueue) -> Self {
        Self { enqueue: set(self.enqueue), ..self }
    }

    async fn put(self) -> Result<Placed, Error> {
        check_name(&self.name)?;
        let (redrive, job) = self.enqueue.draft_job().await?;
        let template = Template::of(job)?;
        let backend = &**redrive.backend();
        loop {
            let kept = entry::read(backend, &self.name).await?;
            let now = backend.stats().await?.now;
            let wanted = wanted(kept.as_ref(), &self.schedule, self.missed, &template, now);
            let (placed, written) = match &kept {
                None => (Placed::Created, entry::create(backend, &self.name, &wanted).await?),
                Some(kept) if kept.entry == wanted => (Placed::Unchanged, true),
                Some(kept) => (Placed::Changed, kept.replace(backend, &wanted).await?),
            };
            if written {
                return Ok(placed);
            }
        }
    }
}

/// The entry as it shall be. A program says the same schedule at each start: that must change nothing. Other times start
/// from now, since what they would have made due before was never missed.
fn wanted(
    kept: Option<&Kept>,
    schedule: &Schedule,
    missed: Missed,
    template: &Template,
    now: Timestamp,
) -> Entry {
    let (generation, paused, last) = match kept.map(|kept| &kept.entry) {
        None => (Uuid::now_v7(), false, now),
        Some(entry) if entry.schedule == *schedule => (entry.generation, entry.paused, entry.last),
        Some(entry) => (entry.generation, entry.paused, now),
    };
    Entry { schedule: schedule.clone(), missed, template: template.clone(), paused, generation, last }
}

/// As long and as printable as the name of a queue.
fn check_name(name: &str) -> Result<(), Invalid> {
    let legal = name.parse::<Queue>();
    legal.map(drop).map_err(|invalid| Invalid::new("schedule", invalid.problem))
}

impl IntoFuture for Scheduling {
    type Output = Result<Placed, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.put())
    }
}
