//! Creates or replaces a schedule with its options.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use redrive_core::records::RecordEdit;
use redrive_core::{Invalid, Policy, Queue, Timestamp};
use uuid::Uuid;

use super::record::{JobTemplate, ScheduleRecord, schedules};
use super::{MissedRuns, Schedule};
use crate::{Enqueue, Error};

/// A schedule to create or replace. Set options, then await it. An invalid option is reported then. See
/// [`crate::Redrive::schedule`].
#[must_use = "the schedule is stored only when this is awaited"]
#[derive(Debug)]
pub struct ScheduleBuilder {
    name: String,
    schedule: Schedule,
    missed: MissedRuns,
    enqueue: Enqueue,
}

/// The result of setting a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleResult {
    /// No schedule had this name.
    Created,
    /// A different schedule had this name.
    Changed,
    /// The same schedule was stored before.
    Unchanged,
}

impl ScheduleBuilder {
    pub(crate) fn new(name: String, schedule: Schedule, enqueue: Enqueue) -> Self {
        Self { name, schedule, missed: MissedRuns::default(), enqueue }
    }

    /// Sets what happens to occurrences that were missed. The default is [`MissedRuns::Once`].
    pub fn missed(self, missed: MissedRuns) -> Self {
        Self { missed, ..self }
    }

    /// Sets the queue of its jobs. The default is "default".
    pub fn queue(self, queue: &str) -> Self {
        self.with(|enqueue| enqueue.queue(queue))
    }

    /// Sets the tenant of its jobs. The default is the empty tenant.
    pub fn tenant(self, tenant: &str) -> Self {
        self.with(|enqueue| enqueue.tenant(tenant))
    }

    /// Sets the priority of its jobs, from 0 to 9. Jobs with a higher priority are claimed first. The default is 5.
    pub fn priority(self, priority: u8) -> Self {
        self.with(|enqueue| enqueue.priority(priority))
    }

    /// Sets the longest time that an attempt of its jobs may take.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|enqueue| enqueue.timeout(timeout))
    }

    /// Stores a text with each of its jobs. redrive does not interpret it.
    pub fn metadata(self, metadata: impl Into<String>) -> Self {
        self.with(|enqueue| enqueue.metadata(metadata))
    }

    /// Sets the policy for retries of its jobs. The default is [`crate::Task::policy`].
    pub fn policy(self, policy: Policy) -> Self {
        self.with(|enqueue| enqueue.policy(policy))
    }

    fn with(self, set: impl FnOnce(Enqueue) -> Enqueue) -> Self {
        Self { enqueue: set(self.enqueue), ..self }
    }

    async fn store(self) -> Result<ScheduleResult, Error> {
        check_name(&self.name)?;
        let (redrive, job) = self.enqueue.draft_job().await?;
        let template = JobTemplate::of(job)?;
        let backend = &**redrive.backend();
        let now = backend.stats().await?.now;
        let edit = |stored: Option<ScheduleRecord>| {
            let record = record_to_store(stored.as_ref(), &self.schedule, self.missed, &template, now);
            Ok(match stored {
                None => RecordEdit::Put(record, ScheduleResult::Created),
                Some(stored) if stored == record => RecordEdit::Keep(ScheduleResult::Unchanged),
                Some(_) => RecordEdit::Put(record, ScheduleResult::Changed),
            })
        };
        schedules(backend).update(&self.name, edit).await
    }
}

/// The record to store. A program sets the same schedule at each start, which must change nothing. A new timing starts now: its
/// earlier occurrences do not count as missed.
fn record_to_store(
    stored: Option<&ScheduleRecord>,
    schedule: &Schedule,
    missed: MissedRuns,
    template: &JobTemplate,
    now: Timestamp,
) -> ScheduleRecord {
    let (generation, paused, last) = match stored {
        None => (Uuid::now_v7(), false, now),
        Some(record) if record.schedule == *schedule => (record.generation, record.paused, record.last),
        Some(record) => (record.generation, record.paused, now),
    };
    ScheduleRecord {
        schedule: schedule.clone(),
        missed,
        template: template.clone(),
        paused,
        generation,
        last,
    }
}

/// The name of a schedule follows the rules for the name of a queue.
fn check_name(name: &str) -> Result<(), Invalid> {
    let valid = name.parse::<Queue>();
    valid.map(drop).map_err(|invalid| Invalid::new("schedule", invalid.problem))
}

impl IntoFuture for ScheduleBuilder {
    type Output = Result<ScheduleResult, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.store())
    }
}
