//! Schedules, which enqueue a job at each time of a cron expression or interval. The store keeps the schedules, and every worker
//! enqueues their jobs. Each occurrence is enqueued once.

mod builder;
mod cron;
pub(crate) mod driver;
mod missed_runs;
pub(crate) mod record;
mod times;

use redrive_core::records::{Record, RecordEdit};
use redrive_core::{JobId, Kind, Queue, Tenant, Timestamp};

pub use builder::{ScheduleBuilder, ScheduleResult};
pub use missed_runs::{MISSED_RUNS_MAX, MissedRuns, ON_TIME_TOLERANCE};
pub use times::{INTERVAL_MIN, Schedule};

use crate::{Error, Redrive, Task};
use record::{ScheduleRecord, schedules};

/// A stored schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleInfo {
    /// Its name, which is unique in the store.
    pub name: String,
    /// When its jobs are due.
    pub schedule: Schedule,
    /// What happens to occurrences that were missed.
    pub missed: MissedRuns,
    /// Whether it is paused.
    pub paused: bool,
    /// The kind of its jobs.
    pub kind: Kind,
    /// The queue of its jobs.
    pub queue: Queue,
    /// The tenant of its jobs.
    pub tenant: Tenant,
    /// Occurrences up to this time have been enqueued or skipped.
    pub handled_until: Timestamp,
    /// Changes whenever someone changes, pauses or resumes the schedule. Occurrences do not change it.
    pub version: String,
}

/// The result of a conditional change of a schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum ScheduleChange {
    /// The schedule after the change.
    Done(Box<ScheduleInfo>),
    /// The condition did not hold.
    Refused,
    /// There is no such schedule.
    NotFound,
}

impl Redrive {
    /// Creates or replaces the schedule with this name. Await the result, or set options first.
    ///
    /// The workers on the store, on all nodes, enqueue `task` once for each occurrence. They do not need a handler for it. A change
    /// takes effect on every node within about [`crate::Settings::poll`], a second by default, or within 5 s if a wake-up of the
    /// store is lost. Setting the same schedule again changes nothing, so a program can do it at each start. Another timing or
    /// another task applies from now on.
    ///
    /// ```
    /// # use redrive::{Redrive, Schedule, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Report { days: u32 }
    /// # impl Task for Report { const KIND: &'static str = "report"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let nightly = Schedule::cron("0 3 * * *", "Europe/Berlin")?;
    /// redrive.schedule("nightly", nightly, Report { days: 1 }).queue("reports").await?;
    /// println!("next: {:?}", redrive.upcoming_occurrences("nightly", 3).await?);
    /// # assert_eq!(redrive.upcoming_occurrences("nightly", 3).await?.unwrap().len(), 3);
    /// # Ok(()) }
    /// ```
    pub fn schedule<T: Task>(&self, name: &str, schedule: Schedule, task: T) -> ScheduleBuilder {
        // Its jobs do not join the trace of the handler that creates it.
        let mut redrive = self.clone();
        redrive.trace = None;
        ScheduleBuilder::new(name.to_owned(), schedule, redrive.enqueue(task))
    }

    /// Removes a schedule, and returns whether there was one. The jobs that it has enqueued stay.
    pub async fn unschedule(&self, name: &str) -> Result<bool, Error> {
        let remove = |stored: Option<ScheduleRecord>| Ok(RecordEdit::Remove(stored.is_some()));
        schedules(&**self.backend()).update(name, remove).await
    }

    /// Reads all schedules, in the order of their names.
    pub async fn schedules(&self) -> Result<Vec<ScheduleInfo>, Error> {
        let records = schedules(&**self.backend()).all("").await?;
        Ok(records.into_iter().map(ScheduleInfo::of).collect())
    }

    /// Reads one schedule.
    pub async fn find_schedule(&self, name: &str) -> Result<Option<ScheduleInfo>, Error> {
        Ok(schedules(&**self.backend()).get(name).await?.map(ScheduleInfo::of))
    }

    /// Pauses a schedule, and returns whether there is one. It enqueues nothing until it is resumed.
    pub async fn pause_schedule(&self, name: &str) -> Result<bool, Error> {
        let change = self.set_schedule_paused_if(name, true, |_| true).await?;
        Ok(matches!(change, ScheduleChange::Done(_)))
    }

    /// Resumes a paused schedule, and returns whether there is one. Occurrences during the pause do not count as missed.
    pub async fn resume_schedule(&self, name: &str) -> Result<bool, Error> {
        let change = self.set_schedule_paused_if(name, false, |_| true).await?;
        Ok(matches!(change, ScheduleChange::Done(_)))
    }

    /// Enqueues the task of a schedule once, due now, even if the schedule is paused. Returns none if there is no such schedule.
    /// The occurrences of the schedule do not change.
    ///
    /// ```
    /// # use redrive::{Redrive, Schedule, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Report { days: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// redrive.schedule("nightly", Schedule::daily(3, 0, "Europe/Berlin")?, Report { days: 1 }).await?;
    /// redrive.pause_schedule("nightly").await?;
    /// let job = redrive.run_schedule_now("nightly").await?;
    /// assert!(job.is_some());
    /// for schedule in redrive.schedules().await? {
    ///     println!("{}: paused {}", schedule.name, schedule.paused);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn run_schedule_now(&self, name: &str) -> Result<Option<JobId>, Error> {
        let Some(record) = schedules(&**self.backend()).get(name).await? else { return Ok(None) };
        let now = self.backend().stats().await?.now;
        driver::enqueue_once(self, &record, now).await.map(Some)
    }

    /// The next `count` occurrences of a schedule by the store's clock, as if it were not paused. Returns none if there is no such
    /// schedule. [`Schedule::upcoming`] needs no store.
    pub async fn upcoming_occurrences(
        &self,
        name: &str,
        count: usize,
    ) -> Result<Option<Vec<Timestamp>>, Error> {
        let Some(record) = schedules(&**self.backend()).get(name).await? else { return Ok(None) };
        let now = self.backend().stats().await?.now;
        Ok(Some(record.value.schedule.upcoming(now.max(record.value.last), count)))
    }

    /// Pauses or resumes a schedule, if `may_change` accepts the schedule before the change. The check and the change are one
    /// step: no other change comes between them.
    pub async fn set_schedule_paused_if(
        &self,
        name: &str,
        paused: bool,
        may_change: impl Fn(&ScheduleInfo) -> bool + Send,
    ) -> Result<ScheduleChange, Error> {
        let backend = &**self.backend();
        let now = backend.stats().await?.now;
        let edit = |stored: Option<ScheduleRecord>| {
            let Some(entry) = stored else { return Ok(RecordEdit::Keep(ScheduleChange::NotFound)) };
            let before = ScheduleInfo::new(name.to_owned(), entry.clone());
            if !may_change(&before) {
                return Ok(RecordEdit::Keep(ScheduleChange::Refused));
            }
            if entry.paused == paused {
                return Ok(RecordEdit::Keep(ScheduleChange::Done(Box::new(before))));
            }
            let last = if paused { entry.last } else { now.max(entry.last) };
            let entry = ScheduleRecord { paused, last, ..entry };
            let after = ScheduleInfo::new(name.to_owned(), entry.clone());
            Ok(RecordEdit::Put(entry, ScheduleChange::Done(Box::new(after))))
        };
        schedules(backend).update(name, edit).await
    }
}

impl ScheduleInfo {
    fn of(Record { id: name, value: entry, .. }: Record<ScheduleRecord>) -> Self {
        Self::new(name, entry)
    }

    fn new(name: String, entry: ScheduleRecord) -> Self {
        Self {
            name,
            version: entry.version(),
            schedule: entry.schedule,
            missed: entry.missed,
            paused: entry.paused,
            kind: entry.template.kind,
            queue: entry.template.queue,
            tenant: entry.template.tenant,
            handled_until: entry.last,
        }
    }
}
