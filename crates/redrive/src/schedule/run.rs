//! Enqueues for what is due: on every worker at once, and once for each occurrence.

use std::collections::HashMap;
use std::time::Duration;

use redrive_core::records::Record;
use redrive_core::store::{Claimed, Enqueued, ReclaimRequest, Wake};
use redrive_core::{JobId, NewJob, StoreError, Timestamp};
use tokio::time::{Instant, sleep, sleep_until};

use super::entry::{self, Entry, Kept};
use super::missed::{MISSED_MAX, Plan, plan};
use crate::{EnqueuedJob, Error, Redrive};

/// How long a change may go unnoticed that nobody tells of.
const UNTOLD: Duration = Duration::from_secs(5);
/// How soon an occurrence is looked after again whose enqueue has failed.
const AGAIN: Duration = Duration::from_millis(500);

/// Drives every schedule of a store until it is dropped.
pub(crate) struct Driver {
    redrive: Redrive,
    /// The time from one look to the next that a wake-up may cause: on a busy store there are very many.
    poll: Duration,
    /// What was read before, so that a record that has not changed is not parsed again.
    known: HashMap<String, Kept>,
}

/// What a look has brought.
struct Look {
    /// The store's time, by which all nodes agree on what is due, and when it was read.
    now: Timestamp,
    read_at: Instant,
    wake: Wake,
    /// When there is more to do.
    next: Option<Timestamp>,
}

impl Driver {
    pub(crate) fn new(redrive: Redrive, poll: Duration) -> Self {
        Self { redrive, poll, known: HashMap::new() }
    }

    /// Looks, enqueues, and sleeps until something is due or may have been changed.
    pub(crate) async fn run(mut self) {
        loop {
            match self.look().await {
                Ok(look) => self.rest(look).await,
                Err(error) => {
                    tracing::warn!(%error, "schedules could not be looked after, trying again");
                    sleep(self.poll).await;
                }
            }
        }
    }

    /// Enqueues for everything that is due. A store without schedules costs this look now and then, and nothing more.
    async fn look(&mut self) -> Result<Look, StoreError> {
        let Claimed { now, wake, .. } = ask_for_time(&self.redrive).await?;
        let read_at = Instant::now();
        let records = entry::scan(&**self.redrive.backend()).await?;
        self.learn(records);
        let mut next = None;
        for kept in self.known.values().filter(|kept| !kept.entry.paused) {
            let due = drive(&self.redrive, kept, now).await;
            next = [next, due].into_iter().flatten().min();
        }
        Ok(Look { now, read_at, wake, next })
    }

    /// Sleeps until the next occurrence, or a change that the store tells of.
    async fn rest(&self, look: Look) {
        let due_in = look.next.map_or(UNTOLD, |next| next.since(look.now)).min(UNTOLD);
        let told = async {
            self.redrive.backend().wait(look.wake).await;
            sleep_until(look.read_at + self.poll).await;
        };
        tokio::select! {
            () = sleep_until(look.read_at + due_in) => {}
            () = told => {}
        }
    }

    fn learn(&mut self, records: Vec<Record>) {
        let mut known = HashMap::with_capacity(records.len());
        for record in records {
            let kept = match self.known.remove(&record.id) {
                Some(kept) if kept.version == record.version => Ok(kept),
                Some(_) | None => Kept::parse(record),
            };
            match kept {
                Ok(kept) => drop(known.insert(kept.name.clone(), kept)),
                // One damaged record must not stop the others.
                Err(error) => tracing::error!(%error, "a schedule cannot be read and is left alone"),
            }
        }
        self.known = known;
    }
}

/// The store's time and how far its wake-ups have come: a request for no lease at all brings both.
async fn ask_for_time(redrive: &Redrive) -> Result<Claimed, StoreError> {
    let nothing = ReclaimRequest { kinds: Vec::new(), limit: 0, lease: Duration::ZERO, held: Vec::new() };
    redrive.backend().reclaim(nothing).await
}

/// Looks after every schedule of a store once, at its time.
#[cfg(any(test, feature = "testing"))]
pub(crate) async fn drive_all(redrive: &Redrive) -> Result<(), StoreError> {
    Driver::new(redrive.clone(), Duration::ZERO).look().await.map(drop)
}

/// Does what is due for one schedule, and says when to look again. What fails is done at the next look.
async fn drive(redrive: &Redrive, kept: &Kept, now: Timestamp) -> Option<Timestamp> {
    let Entry { schedule, missed, last, .. } = &kept.entry;
    let Some(plan) = plan(schedule, *missed, *last, now) else { return schedule.next_after(now.max(*last)) };
    let settled = match enqueue(redrive, kept, &plan).await {
        Ok(()) => settle(redrive, kept, &plan).await,
        Err(error) => Err(error),
    };
    if let Err(error) = settled {
        tracing::warn!(schedule = kept.name, %error, "an occurrence is put off until the store answers");
        return Some(now.after(AGAIN));
    }
    // What this node has written is read again, and so is what another one was faster to write.
    schedule.next_after(now)
}

/// Enqueues one job for each occurrence, under its key: after a crash before [`settle`] it is all done again, and finds
/// the jobs that are there.
async fn enqueue(redrive: &Redrive, kept: &Kept, plan: &Plan) -> Result<(), StoreError> {
    if plan.cut {
        tracing::warn!(
            schedule = kept.name,
            limit = MISSED_MAX,
            "the oldest missed occurrences are left out"
        );
    }
    let mut jobs = Vec::with_capacity(plan.run.len());
    for occurrence in &plan.run {
        match admit(redrive, kept, *occurrence).await {
            Ok(job) => jobs.push(job),
            Err(Error::Store(error)) => return Err(error),
            // It would be refused at every look; the schedule goes on without it.
            Err(error) => tracing::error!(schedule = kept.name, %error, "an occurrence was refused"),
        }
    }
    if jobs.is_empty() {
        return Ok(());
    }
    for answer in redrive.backend().enqueue(jobs).await? {
        match answer {
            Enqueued::Created(job) => {
                tracing::info!(schedule = kept.name, %job, "an occurrence was enqueued")
            }
            // Another node was faster, or the schedule was edited after it.
            Enqueued::Existing(_) | Enqueued::Conflict(_) | Enqueued::Replaced(_) => {}
        }
    }
    Ok(())
}

/// Enqueues for an instant that is none of the schedule's: one that happens to be gets one job.
pub(super) async fn enqueue_one(redrive: &Redrive, kept: &Kept, at: Timestamp) -> Result<JobId, Error> {
    let job = admit(redrive, kept, at).await?;
    let answer = redrive.backend().enqueue(vec![job.clone()]).await?.pop();
    let answer = answer.unwrap_or(Enqueued::Created(job.id));
    Ok(EnqueuedJob::of(answer, &job)?.id())
}

async fn admit(redrive: &Redrive, kept: &Kept, occurrence: Timestamp) -> Result<NewJob, Error> {
    redrive.admit(kept.entry.job(&kept.name, occurrence)?).await
}

/// Notes what was done. When someone else has written meanwhile, theirs counts: it is the same, or an edit.
async fn settle(redrive: &Redrive, kept: &Kept, plan: &Plan) -> Result<(), StoreError> {
    let settled = Entry { last: plan.last, ..kept.entry.clone() };
    kept.replace(&**redrive.backend(), &settled).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use redrive_core::Job;
    use redrive_core::store::{Filter, PageRequest};
    use redrive_store_sqlite::{Options, SqliteStore};
    use redrive_testkit::ManualClock;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::schedule::{Placed, Schedule};
    use crate::{Missed, Task};

    #[derive(Serialize, Deserialize)]
    struct Report {
        version: u32,
    }

    impl Task for Report {
        const KIND: &'static str = "report";
        type Output = ();
    }

    /// A store whose clock stands still, and what every test does with it.
    struct Stage {
        clock: ManualClock,
        redrive: Redrive,
    }

    impl Stage {
        fn new() -> Self {
            let clock = ManualClock::new();
            let options = Options::default().with_clock(clock.clone());
            let store = SqliteStore::open_in_memory_with(options).unwrap();
            Self { clock, redrive: Redrive::on(Arc::new(store)) }
        }

        async fn put(&self, step: u64, version: u32, missed: Missed) -> Placed {
            let schedule = Schedule::every(Duration::from_secs(step)).unwrap();
            self.redrive.schedule("report", schedule, Report { version }).missed(missed).await.unwrap()
        }

        async fn kept(&self) -> Kept {
            entry::read(&**self.redrive.backend(), "report").await.unwrap().unwrap()
        }

        async fn advance_and_drive(&self, seconds: u64) {
            self.clock.advance(Duration::from_secs(seconds));
            drive_all(&self.redrive).await.unwrap();
        }

        /// The jobs, each as its payload and the minutes from the start to its occurrence, oldest first.
        async fn jobs(&self) -> Vec<(String, i64)> {
            let page = self.redrive.list(Filter::default(), PageRequest::first(1000)).await.unwrap();
            let start = redrive_testkit::clock::START;
            let shown = |job: &Job| {
                let occurrence = entry::occurrence_of(job.key.as_ref().unwrap()).unwrap();
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
    async fn a_run_out_of_turn_is_one_more_and_moves_nothing() {
        let stage = Stage::new();
        assert_eq!(stage.redrive.run_schedule("report").await.unwrap(), None);
        stage.put(60, 1, Missed::Once).await;
        stage.redrive.pause_schedule("report").await.unwrap();
        stage.clock.advance(Duration::from_secs(30));
        let before = stage.kept().await.entry;
        let job = stage.redrive.run_schedule("report").await.unwrap().expect("a job");
        assert_eq!(stage.kept().await.entry, before);
        assert_eq!(stage.redrive.get(job).await.unwrap().unwrap().payload, b"{\"version\":1}");
        stage.redrive.resume_schedule("report").await.unwrap();
        stage.advance_and_drive(30).await;
        assert_eq!(stage.minutes().await, [0, 1], "the occurrence comes as ever");
    }

    #[tokio::test]
    async fn nodes_that_look_at_the_same_time_enqueue_once() {
        let stage = Stage::new();
        stage.put(60, 1, Missed::Once).await;
        drive_all(&stage.redrive).await.unwrap();
        assert!(stage.minutes().await.is_empty(), "nothing is due at the start");
        for _ in 0..3 {
            stage.clock.advance(Duration::from_secs(60));
            let kept = stage.kept().await;
            let now = stage.clock.now();
            // Both have read the record before either has written.
            tokio::join!(drive(&stage.redrive, &kept, now), drive(&stage.redrive, &kept, now));
            drive_all(&stage.redrive).await.unwrap();
        }
        assert_eq!(stage.minutes().await, [1, 2, 3]);
        assert_eq!(stage.kept().await.entry.last, stage.clock.now());
    }

    #[tokio::test]
    async fn a_crash_between_the_enqueue_and_its_note_is_made_good() {
        let stage = Stage::new();
        stage.put(60, 1, Missed::All).await;
        stage.clock.advance(Duration::from_secs(125));
        let kept = stage.kept().await;
        let due = plan(&kept.entry.schedule, Missed::All, kept.entry.last, stage.clock.now()).unwrap();
        enqueue(&stage.redrive, &kept, &due).await.unwrap();
        assert!(stage.kept().await.entry.last < due.last, "this node died before it could note it");
        stage.advance_and_drive(60).await;
        assert_eq!(stage.minutes().await, [1, 2, 3]);
    }

    #[tokio::test]
    async fn an_occurrence_before_an_edit_is_not_repeated_after_it() {
        let stage = Stage::new();
        stage.put(60, 1, Missed::Once).await;
        stage.clock.advance(Duration::from_secs(61));
        let kept = stage.kept().await;
        let due = plan(&kept.entry.schedule, Missed::Once, kept.entry.last, stage.clock.now()).unwrap();
        enqueue(&stage.redrive, &kept, &due).await.unwrap();
        assert_eq!(stage.put(60, 2, Missed::Once).await, Placed::Changed);
        settle(&stage.redrive, &kept, &due).await.unwrap();
        assert_eq!(stage.kept().await.entry.template.payload, r#"{"version":2}"#, "the edit stays");
        stage.advance_and_drive(0).await;
        stage.advance_and_drive(60).await;
        let jobs = [(r#"{"version":1}"#.to_owned(), 1), (r#"{"version":2}"#.to_owned(), 2)];
        assert_eq!(stage.jobs().await, jobs);
    }

    #[tokio::test]
    async fn what_was_missed_is_treated_as_the_schedule_says() {
        for (missed, minutes) in
            [(Missed::Skip, vec![]), (Missed::Once, vec![5]), (Missed::All, vec![1, 2, 3, 4, 5])]
        {
            let stage = Stage::new();
            stage.put(60, 1, missed).await;
            stage.advance_and_drive(5 * 60 + 30).await;
            assert_eq!(stage.minutes().await, minutes, "{missed:?}");
            drive_all(&stage.redrive).await.unwrap();
            stage.advance_and_drive(30).await;
            let then: Vec<i64> = minutes.into_iter().chain([6]).collect();
            assert_eq!(stage.minutes().await, then, "{missed:?}: it goes on from there");
        }
    }

    #[tokio::test]
    async fn the_same_schedule_again_changes_nothing_and_other_times_start_now() {
        let stage = Stage::new();
        assert_eq!(stage.put(3600, 1, Missed::All).await, Placed::Created);
        let before = stage.kept().await;
        stage.clock.advance(Duration::from_secs(30 * 60 + 1));
        assert_eq!(stage.put(3600, 1, Missed::All).await, Placed::Unchanged);
        assert_eq!(stage.kept().await.version, before.version);
        assert_eq!(stage.put(60, 1, Missed::All).await, Placed::Changed);
        stage.advance_and_drive(60).await;
        assert_eq!(stage.minutes().await, [31], "the half hour before was never missed");
    }

    #[tokio::test]
    async fn a_schedule_stands_still_while_it_is_paused_and_is_gone_when_it_is_removed() {
        let stage = Stage::new();
        stage.put(60, 1, Missed::All).await;
        assert!(stage.redrive.pause_schedule("report").await.unwrap());
        stage.advance_and_drive(150).await;
        assert!(stage.redrive.schedules().await.unwrap()[0].paused);
        assert!(stage.redrive.resume_schedule("report").await.unwrap());
        stage.advance_and_drive(0).await;
        assert!(stage.minutes().await.is_empty());
        stage.advance_and_drive(30).await;
        assert_eq!(stage.minutes().await, [3]);
        assert!(stage.redrive.unschedule("report").await.unwrap());
        stage.advance_and_drive(60).await;
        assert_eq!(stage.minutes().await, [3]);
        for absent in [stage.redrive.unschedule("report").await, stage.redrive.pause_schedule("report").await]
        {
            assert!(!absent.unwrap());
        }
        // Another one of that name is another one: its occurrences are its own.
        stage.clock.set(redrive_testkit::clock::START.after(Duration::from_secs(170)));
        stage.put(60, 1, Missed::All).await;
        stage.advance_and_drive(10).await;
        assert_eq!(stage.minutes().await, [3, 3]);
    }

    #[tokio::test]
    async fn what_the_middleware_refuses_does_not_hold_the_schedule_up() {
        let stage = Stage::new();
        stage.put(60, 1, Missed::All).await;
        let closed = stage.redrive.clone().with_enqueue(|_| Err(Error::refused("closed")));
        stage.clock.advance(Duration::from_secs(60));
        drive_all(&closed).await.unwrap();
        stage.advance_and_drive(60).await;
        assert_eq!(stage.minutes().await, [2]);
    }

    #[test]
    fn a_key_of_another_make_is_no_occurrence() {
        for (key, occurrence) in
            [("schedule/a/b/c/17", Some(17)), ("schedule/a/b/", None), ("order/17", None), ("schedule", None)]
        {
            let found = entry::occurrence_of(&key.parse().unwrap());
            assert_eq!(found.map(Timestamp::as_ms), occurrence, "{key}");
        }
    }
}
