//! Jobs that come back: by cron, daily or in equal steps, kept in the store and driven by every worker, each occurrence
//! once.

mod cron;
mod draft;
pub(crate) mod entry;
mod missed;
pub(crate) mod run;
mod timing;

use redrive_core::{JobId, Kind, Queue, StoreError, Tenant, Timestamp};

pub use draft::{Placed, Scheduling};
pub use missed::{MISSED_MAX, Missed, ON_TIME};
pub use timing::{EVERY_MIN, Schedule};

use crate::{Error, Redrive, Task};
use entry::{Entry, Kept};

/// A schedule as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct Scheduled {
    /// Its name.
    pub name: String,
    /// When its jobs are due.
    pub schedule: Schedule,
    /// What to do about occurrences that were missed.
    pub missed: Missed,
    /// Whether it stands still.
    pub paused: bool,
    /// The kind of its jobs.
    pub kind: Kind,
    /// The queue of its jobs.
    pub queue: Queue,
    /// Whose its jobs are.
    pub tenant: Tenant,
    /// Everything that was due until then is settled.
    pub settled_until: Timestamp,
}

impl Redrive {
    /// Keeps a schedule under a name, in place of one that is there: await it, or set options first.
    ///
    /// Any worker on the store, on any node, enqueues `task` once for each occurrence; there need not be a handler for it
    /// on that worker. A change takes effect on every node within about [`crate::Settings::poll`], a second by default, or
    /// within 5 s where the store's wake-ups do not arrive. Saying the same schedule again changes nothing, so a program
    /// may do it at each start. Other times, or another task, take over from now on.
    ///
    /// ```
    /// # use redrive::{Redrive, Schedule, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Report { days: u32 }
    /// # impl Task for Report { const KIND: &'static str = "report"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redrive::Error> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// let nightly = Schedule::cron("0 3 * * *", "Europe/Berlin")?;
    /// redrive.schedule("nightly", nightly, Report { days: 1 }).queue("reports").await?;
    /// println!("next: {:?}", redrive.upcoming("nightly", 3).await?);
    /// # assert_eq!(redrive.upcoming("nightly", 3).await?.unwrap().len(), 3);
    /// # Ok(()) }
    /// ```
    pub fn schedule<T: Task>(&self, name: &str, schedule: Schedule, task: T) -> Scheduling {
        // Its jobs are not part of the trace of whoever made it.
        let mut redrive = self.clone();
        redrive.trace = None;
        Scheduling::new(name.to_owned(), schedule, redrive.enqueue(task))
    }

    /// Removes a schedule; says whether there was one. Jobs that it has enqueued stay.
    pub async fn unschedule(&self, name: &str) -> Result<bool, Error> {
        let there = entry::read(&**self.backend(), name).await?.is_some();
        if there {
            entry::remove(&**self.backend(), name).await?;
        }
        Ok(there)
    }

    /// Every schedule, in the order of names.
    pub async fn schedules(&self) -> Result<Vec<Scheduled>, Error> {
        let records = entry::scan(&**self.backend()).await?;
        let parsed: Result<Vec<Kept>, StoreError> = records.into_iter().map(Kept::parse).collect();
        Ok(parsed?.into_iter().map(Scheduled::of).collect())
    }

    /// Lets a schedule stand still until it is resumed; says whether there is one.
    pub async fn pause_schedule(&self, name: &str) -> Result<bool, Error> {
        self.set_schedule_paused(name, true).await
    }

    /// Lets a schedule go on; says whether there is one. What would have been due while it stood still was not missed.
    pub async fn resume_schedule(&self, name: &str) -> Result<bool, Error> {
        self.set_schedule_paused(name, false).await
    }

    /// Enqueues the task of a schedule once more, due at once, whether the schedule is paused or not; none if there is no such
    /// schedule. Its occurrences stay what they are; the job is one of its own, for this very instant.
    ///
    /// ```
    /// # use redrive::{Redrive, Schedule, Task};
    /// # #[derive(serde::Serialize, serde::Deserialize, Task)] struct Report { days: u32 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let redrive = Redrive::open("sqlite::memory:").await?;
    /// redrive.schedule("nightly", Schedule::daily(3, 0, "Europe/Berlin")?, Report { days: 1 }).await?;
    /// redrive.pause_schedule("nightly").await?;
    /// let job = redrive.run_schedule("nightly").await?;
    /// assert!(job.is_some());
    /// for schedule in redrive.schedules().await? {
    ///     println!("{}: paused {}", schedule.name, schedule.paused);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn run_schedule(&self, name: &str) -> Result<Option<JobId>, Error> {
        let Some(kept) = entry::read(&**self.backend(), name).await? else { return Ok(None) };
        let now = self.backend().stats().await?.now;
        run::enqueue_one(self, &kept, now).await.map(Some)
    }

    /// The next `count` occurrences of a schedule by the store's clock, as if it were not paused; none if there is no such
    /// schedule. [`Schedule::upcoming`] says the same without a store.
    pub async fn upcoming(&self, name: &str, count: usize) -> Result<Option<Vec<Timestamp>>, Error> {
        let Some(kept) = entry::read(&**self.backend(), name).await? else { return Ok(None) };
        let now = self.backend().stats().await?.now;
        Ok(Some(kept.entry.schedule.upcoming(now.max(kept.entry.last), count)))
    }

    async fn set_schedule_paused(&self, name: &str, paused: bool) -> Result<bool, Error> {
        let backend = &**self.backend();
        loop {
            let Some(kept) = entry::read(backend, name).await? else { return Ok(false) };
            if kept.entry.paused == paused {
                return Ok(true);
            }
            let now = backend.stats().await?.now;
            let last = if paused { kept.entry.last } else { now.max(kept.entry.last) };
            if kept.replace(backend, &Entry { paused, last, ..kept.entry.clone() }).await? {
                return Ok(true);
            }
        }
    }
}

impl Scheduled {
    fn of(Kept { name, entry, .. }: Kept) -> Self {
        Self {
            name,
            schedule: entry.schedule,
            missed: entry.missed,
            paused: entry.paused,
            kind: entry.template.kind,
            queue: entry.template.queue,
            tenant: entry.template.tenant,
            settled_until: entry.last,
        }
    }
}
