//! Enqueues the occurrences of schedules that are due. Every worker runs it, and each occurrence is enqueued once.

use std::time::Duration;

use redrive_core::records::Record;
use redrive_core::store::{ClaimedJobs, EnqueueResult, ReclaimRequest, WakeToken};
use redrive_core::{JobId, NewJob, StoreError, Timestamp};
use tokio::time::{Instant, sleep, sleep_until};

use super::missed_runs::{DueOccurrences, MISSED_RUNS_MAX, due_occurrences};
use super::record::{ScheduleRecord, schedules};
use crate::{EnqueuedJob, Error, Redrive};

/// The longest time between two passes over the schedules, in case a wake-up is lost.
const PASS_EVERY_MAX: Duration = Duration::from_secs(5);
/// The wait before the next pass after an occurrence could not be enqueued.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Enqueues for all schedules of a store until it is dropped.
pub(crate) struct ScheduleDriver {
    redrive: Redrive,
    /// The shortest time between two passes that wake-ups cause. On a busy store there are very many wake-ups.
    poll: Duration,
}

/// The result of one pass over the schedules.
struct Pass {
    /// The store's time, which all nodes use to decide what is due.
    now: Timestamp,
    /// When that time was read.
    read_at: Instant,
    wake: WakeToken,
    /// The next time at which a schedule needs a pass.
    next: Option<Timestamp>,
}

impl ScheduleDriver {
    pub(crate) fn new(redrive: Redrive, poll: Duration) -> Self {
        Self { redrive, poll }
    }

    /// Enqueues what is due, sleeps until the next occurrence or a change, and so on. Never returns.
    pub(crate) async fn run(self) {
        loop {
            match self.enqueue_due().await {
                Ok(pass) => self.sleep_after(pass).await,
                Err(error) => {
                    tracing::warn!(%error, "schedules could not be read; trying again");
                    sleep(self.poll).await;
                }
            }
        }
    }

    /// Enqueues for every schedule that is due. Without schedules it only costs these two reads.
    async fn enqueue_due(&self) -> Result<Pass, StoreError> {
        let ClaimedJobs { now, wake, .. } = read_time(&self.redrive).await?;
        let read_at = Instant::now();
        let records = schedules(&**self.redrive.backend()).all("").await?;
        let mut next = None;
        for record in records.iter().filter(|record| !record.value.paused) {
            let due = handle_schedule(&self.redrive, record, now).await;
            next = [next, due].into_iter().flatten().min();
        }
        Ok(Pass { now, read_at, wake, next })
    }

    /// Sleeps until the next occurrence, or until the store reports a change.
    async fn sleep_after(&self, pass: Pass) {
        let due_in = pass.next.map_or(PASS_EVERY_MAX, |next| next.since(pass.now)).min(PASS_EVERY_MAX);
        let changed = async {
            self.redrive.backend().wait(pass.wake).await;
            sleep_until(pass.read_at + self.poll).await;
        };
        tokio::select! {
            () = sleep_until(pass.read_at + due_in) => {}
            () = changed => {}
        }
    }
}

/// Reads the store's time and its wake token, with a reclaim that takes no job.
async fn read_time(redrive: &Redrive) -> Result<ClaimedJobs, StoreError> {
    let nothing = ReclaimRequest { kinds: Vec::new(), limit: 0, lease: Duration::ZERO, held: Vec::new() };
    redrive.backend().reclaim(nothing).await
}

/// Enqueues once for every schedule of a store that is due.
#[cfg(any(test, feature = "testing"))]
pub(crate) async fn enqueue_all_due(redrive: &Redrive) -> Result<(), StoreError> {
    ScheduleDriver::new(redrive.clone(), Duration::ZERO).enqueue_due().await.map(drop)
}

/// Enqueues what is due for one schedule, and returns when it needs the next pass. After an error that pass tries again.
async fn handle_schedule(
    redrive: &Redrive,
    record: &Record<ScheduleRecord>,
    now: Timestamp,
) -> Option<Timestamp> {
    let ScheduleRecord { schedule, missed, last, .. } = &record.value;
    let Some(due) = due_occurrences(schedule, *missed, *last, now) else {
        return schedule.next_after(now.max(*last));
    };
    let handled = match enqueue(redrive, record, &due).await {
        Ok(()) => record_handled(redrive, record, &due).await,
        Err(error) => Err(error),
    };
    if let Err(error) = handled {
        tracing::warn!(schedule = record.id, %error, "an occurrence could not be enqueued; trying again");
        return Some(now.after(RETRY_AFTER));
    }
    // The next pass reads the record again, whether this node or another one has written it.
    schedule.next_after(now)
}

/// Enqueues one job for each occurrence, with its idempotency key. After a crash before [`record_handled`] the next pass repeats
/// this, and finds the existing jobs.
async fn enqueue(
    redrive: &Redrive,
    record: &Record<ScheduleRecord>,
    due: &DueOccurrences,
) -> Result<(), StoreError> {
    if due.truncated {
        tracing::warn!(
            schedule = record.id,
            limit = MISSED_RUNS_MAX,
            "too many occurrences were missed; the oldest ones are skipped"
        );
    }
    let mut jobs = Vec::with_capacity(due.enqueue.len());
    for occurrence in &due.enqueue {
        match prepare(redrive, record, *occurrence).await {
            Ok(job) => jobs.push(job),
            Err(Error::Store(error)) => return Err(error),
            // A repeat would fail too, so the schedule continues without this occurrence.
            Err(error) => {
                tracing::error!(schedule = record.id, %error, "an occurrence was skipped because its job was refused")
            }
        }
    }
    if jobs.is_empty() {
        return Ok(());
    }
    for result in redrive.backend().enqueue(jobs).await? {
        match result {
            EnqueueResult::Created(job) => {
                tracing::info!(schedule = record.id, %job, "an occurrence was enqueued")
            }
            // Another node enqueued the occurrence first, or it was enqueued before the schedule was changed.
            EnqueueResult::Existing(_) | EnqueueResult::Conflict(_) | EnqueueResult::Replaced(_) => {}
        }
    }
    Ok(())
}

/// Enqueues the task of a schedule for the time `at`. If the schedule has an occurrence at exactly that time, both are one job.
pub(super) async fn enqueue_once(
    redrive: &Redrive,
    record: &Record<ScheduleRecord>,
    at: Timestamp,
) -> Result<JobId, Error> {
    let job = prepare(redrive, record, at).await?;
    let result = redrive.backend().enqueue(vec![job.clone()]).await?.pop();
    let result = result.unwrap_or(EnqueueResult::Created(job.id));
    Ok(EnqueuedJob::of(result, &job)?.id())
}

async fn prepare(
    redrive: &Redrive,
    record: &Record<ScheduleRecord>,
    occurrence: Timestamp,
) -> Result<NewJob, Error> {
    redrive.prepare_job(record.value.job(&record.id, occurrence)?).await
}

/// Records the newest occurrence that is handled. If the record was written meanwhile, that write stays: another node has done the
/// same, or someone has changed the schedule.
async fn record_handled(
    redrive: &Redrive,
    record: &Record<ScheduleRecord>,
    due: &DueOccurrences,
) -> Result<(), StoreError> {
    let handled = ScheduleRecord { last: due.last, ..record.value.clone() };
    schedules(&**redrive.backend()).replace(&record.id, record.version, &handled).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::record::occurrence_of;
    use std::sync::Arc;

    use redrive_core::Job;
    use redrive_core::store::{Filter, PageRequest};
    use redrive_store_sqlite::{Options, SqliteStore};
    use redrive_testkit::ManualClock;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::schedule::{Schedule, ScheduleResult};
    use crate::{MissedRuns, Task};

    #[derive(Serialize, Deserialize)]
    struct Report {
        version: u32,
    }

    impl Task for Report {
        const KIND: &'static str = "report";
        type Output = ();
    }

    /// A store whose clock only the test moves.
    struct Fixture {
        clock: ManualClock,
        redrive: Redrive,
    }

    impl Fixture {
        fn new() -> Self {
            let clock = ManualClock::new();
            let options = Options::default().with_clock(clock.clone());
            let store = SqliteStore::open_in_memory_with(options).unwrap();
            Self { clock, redrive: Redrive::on(Arc::new(store)) }
        }

        async fn put(&self, step: u64, version: u32, missed: MissedRuns) -> ScheduleResult {
            let schedule = Schedule::every(Duration::from_secs(step)).unwrap();
            self.redrive.schedule("report", schedule, Report { version }).missed(missed).await.unwrap()
        }

        async fn record(&self) -> Record<ScheduleRecord> {
            schedules(&**self.redrive.backend()).get("report").await.unwrap().unwrap()
        }

        async fn advance_and_enqueue(&self, seconds: u64) {
            self.clock.advance(Duration::from_secs(seconds));
            enqueue_all_due(&self.redrive).await.unwrap();
        }

        /// The jobs, each as its payload and the minutes from the start to its occurrence, oldest first.
        async fn jobs(&self) -> Vec<(String, i64)> {
            let page = self.redrive.list(Filter::default(), PageRequest::first(1000)).await.unwrap();
            let start = redrive_testkit::clock::START;
            let shown = |job: &Job| {
                let occurrence = occurrence_of(job.key.as_ref().unwrap()).unwrap();
                let payload = String::from_utf8(job.payload.clone()).unwrap();
                (payload, (occurrence.as_ms() - start.as_ms()) / 60_000)
            };
            let mut jobs: Vec<_> = page.items.iter().map(shown).collect();
            jobs.sort_by_key(|(_, minute)| *minute);
            jobs
        }

        async fn minutes(&self) -> Vec<i64> {
            self.jobs().await.into_iter().map(|(_, minute)| minute).collect()
        }
    }

    #[tokio::test]
    async fn run_now_adds_a_job_and_changes_no_occurrence() {
        let fixture = Fixture::new();
        assert_eq!(fixture.redrive.run_schedule_now("report").await.unwrap(), None);
        fixture.put(60, 1, MissedRuns::Once).await;
        fixture.redrive.pause_schedule("report").await.unwrap();
        fixture.clock.advance(Duration::from_secs(30));
        let before = fixture.record().await.value;
        let job = fixture.redrive.run_schedule_now("report").await.unwrap().expect("a job");
        assert_eq!(fixture.record().await.value, before);
        assert_eq!(fixture.redrive.get(job).await.unwrap().unwrap().payload, b"{\"version\":1}");
        fixture.redrive.resume_schedule("report").await.unwrap();
        fixture.advance_and_enqueue(30).await;
        assert_eq!(fixture.minutes().await, [0, 1], "the occurrence is enqueued as usual");
    }

    #[tokio::test]
    async fn nodes_that_run_at_the_same_time_enqueue_once() {
        let fixture = Fixture::new();
        fixture.put(60, 1, MissedRuns::Once).await;
        enqueue_all_due(&fixture.redrive).await.unwrap();
        assert!(fixture.minutes().await.is_empty(), "nothing is due at the start");
        for _ in 0..3 {
            fixture.clock.advance(Duration::from_secs(60));
            let record = fixture.record().await;
            let now = fixture.clock.now();
            // Both nodes have read the record before either of them writes it.
            tokio::join!(
                handle_schedule(&fixture.redrive, &record, now),
                handle_schedule(&fixture.redrive, &record, now)
            );
            enqueue_all_due(&fixture.redrive).await.unwrap();
        }
        assert_eq!(fixture.minutes().await, [1, 2, 3]);
        assert_eq!(fixture.record().await.value.last, fixture.clock.now());
    }

    #[tokio::test]
    async fn a_crash_after_the_enqueue_repeats_nothing() {
        let fixture = Fixture::new();
        fixture.put(60, 1, MissedRuns::All).await;
        fixture.clock.advance(Duration::from_secs(125));
        let record = fixture.record().await;
        let due =
            due_occurrences(&record.value.schedule, MissedRuns::All, record.value.last, fixture.clock.now())
                .unwrap();
        enqueue(&fixture.redrive, &record, &due).await.unwrap();
        assert!(
            fixture.record().await.value.last < due.last,
            "this node crashed before it recorded the occurrence"
        );
        fixture.advance_and_enqueue(60).await;
        assert_eq!(fixture.minutes().await, [1, 2, 3]);
    }

    #[tokio::test]
    async fn an_occurrence_before_a_change_is_not_enqueued_again_after_it() {
        let fixture = Fixture::new();
        fixture.put(60, 1, MissedRuns::Once).await;
        fixture.clock.advance(Duration::from_secs(61));
        let record = fixture.record().await;
        let due =
            due_occurrences(&record.value.schedule, MissedRuns::Once, record.value.last, fixture.clock.now())
                .unwrap();
        enqueue(&fixture.redrive, &record, &due).await.unwrap();
        assert_eq!(fixture.put(60, 2, MissedRuns::Once).await, ScheduleResult::Changed);
        record_handled(&fixture.redrive, &record, &due).await.unwrap();
        assert_eq!(fixture.record().await.value.template.payload, r#"{"version":2}"#, "the change stays");
        fixture.advance_and_enqueue(0).await;
        fixture.advance_and_enqueue(60).await;
        let jobs = [(r#"{"version":1}"#.to_owned(), 1), (r#"{"version":2}"#.to_owned(), 2)];
        assert_eq!(fixture.jobs().await, jobs);
    }

    #[tokio::test]
    async fn missed_occurrences_are_skipped_or_enqueued_as_set() {
        for (missed, minutes) in
            [(MissedRuns::Skip, vec![]), (MissedRuns::Once, vec![5]), (MissedRuns::All, vec![1, 2, 3, 4, 5])]
        {
            let fixture = Fixture::new();
            fixture.put(60, 1, missed).await;
            fixture.advance_and_enqueue(5 * 60 + 30).await;
            assert_eq!(fixture.minutes().await, minutes, "{missed:?}");
            enqueue_all_due(&fixture.redrive).await.unwrap();
            fixture.advance_and_enqueue(30).await;
            let then: Vec<i64> = minutes.into_iter().chain([6]).collect();
            assert_eq!(fixture.minutes().await, then, "{missed:?}: later occurrences are enqueued as usual");
        }
    }

    #[tokio::test]
    async fn the_same_schedule_again_changes_nothing_and_a_new_timing_starts_now() {
        let fixture = Fixture::new();
        assert_eq!(fixture.put(3600, 1, MissedRuns::All).await, ScheduleResult::Created);
        let before = fixture.record().await;
        fixture.clock.advance(Duration::from_secs(30 * 60 + 1));
        assert_eq!(fixture.put(3600, 1, MissedRuns::All).await, ScheduleResult::Unchanged);
        assert_eq!(fixture.record().await.version, before.version);
        assert_eq!(fixture.put(60, 1, MissedRuns::All).await, ScheduleResult::Changed);
        fixture.advance_and_enqueue(60).await;
        assert_eq!(fixture.minutes().await, [31], "the half hour before the change was not missed");
    }

    #[tokio::test]
    async fn a_paused_or_removed_schedule_enqueues_nothing() {
        let fixture = Fixture::new();
        fixture.put(60, 1, MissedRuns::All).await;
        assert!(fixture.redrive.pause_schedule("report").await.unwrap());
        fixture.advance_and_enqueue(150).await;
        assert!(fixture.redrive.schedules().await.unwrap()[0].paused);
        assert!(fixture.redrive.resume_schedule("report").await.unwrap());
        fixture.advance_and_enqueue(0).await;
        assert!(fixture.minutes().await.is_empty());
        fixture.advance_and_enqueue(30).await;
        assert_eq!(fixture.minutes().await, [3]);
        assert!(fixture.redrive.unschedule("report").await.unwrap());
        fixture.advance_and_enqueue(60).await;
        assert_eq!(fixture.minutes().await, [3]);
        for absent in
            [fixture.redrive.unschedule("report").await, fixture.redrive.pause_schedule("report").await]
        {
            assert!(!absent.unwrap());
        }
        // Another schedule with the same name is a new schedule, with occurrences of its own.
        fixture.clock.set(redrive_testkit::clock::START.after(Duration::from_secs(170)));
        fixture.put(60, 1, MissedRuns::All).await;
        fixture.advance_and_enqueue(10).await;
        assert_eq!(fixture.minutes().await, [3, 3]);
    }

    #[tokio::test]
    async fn an_occurrence_that_the_middleware_refuses_is_skipped() {
        let fixture = Fixture::new();
        fixture.put(60, 1, MissedRuns::All).await;
        let closed = fixture.redrive.clone().with_enqueue_middleware(|_| Err(Error::refused("closed")));
        fixture.clock.advance(Duration::from_secs(60));
        enqueue_all_due(&closed).await.unwrap();
        fixture.advance_and_enqueue(60).await;
        assert_eq!(fixture.minutes().await, [2]);
    }

    #[test]
    fn only_the_keys_of_scheduled_jobs_name_an_occurrence() {
        for (key, occurrence) in
            [("schedule/a/b/c/17", Some(17)), ("schedule/a/b/", None), ("order/17", None), ("schedule", None)]
        {
            let found = occurrence_of(&key.parse().unwrap());
            assert_eq!(found.map(Timestamp::as_ms), occurrence, "{key}");
        }
    }
}
