//! Schedules with several workers: each occurrence is enqueued once, and schedules change while they run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use redrive::schedule::ScheduleResult;
use redrive::{Context, Filter, Job, PageRequest, Redrive, Schedule, TaskWorker};
use redrive_testkit::FaultyStore;
use redrive_testkit::faulty_store::{FaultRates, FaultSwitch};

use crate::fixture::{Add, eventually, open};

const STEP: Duration = Duration::from_millis(200);

fn steps() -> Schedule {
    Schedule::every(STEP).unwrap()
}

/// The number of runs for each occurrence, which is in milliseconds.
type Runs = Arc<Mutex<BTreeMap<i64, u32>>>;

fn worker(redrive: &Redrive, runs: &Runs) -> TaskWorker {
    let runs = runs.clone();
    redrive.worker().on(move |add: Add, cx: Context| {
        let occurrence = cx.occurrence().expect("the job was scheduled");
        *runs.lock().unwrap().entry(occurrence.as_ms()).or_default() += 1;
        async move { Ok(add.a) }
    })
}

/// Checks that each occurrence from the first one to the last has one job, and returns their number.
async fn check_each_once(redrive: &Redrive) -> usize {
    let page = redrive.list(Filter::default(), PageRequest::first(1000)).await.unwrap();
    let key = |job: &Job| job.key.as_ref().unwrap().as_str().to_owned();
    let occurrence = |job: &Job| key(job).rsplit_once('/').unwrap().1.parse::<i64>().unwrap();
    let mut found: Vec<i64> = page.items.iter().map(occurrence).collect();
    found.sort_unstable();
    for (one, next) in found.iter().zip(found.iter().skip(1)) {
        assert_eq!(next - one, 200, "an occurrence is missing or has two jobs: {found:?}");
    }
    found.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_run_each_occurrence_once() {
    let redrive = open().await;
    let runs = Runs::default();
    redrive.schedule("steps", steps(), Add { a: 1, b: 1 }).await.unwrap();
    let other = Redrive::on(redrive.backend().clone());
    let end = || tokio::time::sleep(Duration::from_millis(2_100));
    let (one, two) = (worker(&redrive, &runs).run_until(end()), worker(&other, &runs).run_until(end()));
    let (one, two) = tokio::join!(one, two);
    assert!(one.is_ok() && two.is_ok());
    assert!(check_each_once(&redrive).await >= 5, "about ten occurrences are due in this time");
    let runs = runs.lock().unwrap();
    assert!(runs.len() >= 5 && runs.values().all(|count| *count == 1), "{runs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_occurrence_is_lost_or_repeated_on_a_store_with_faults() {
    let redrive = open().await;
    redrive.schedule("steps", steps(), Add { a: 1, b: 1 }).await.unwrap();
    let switch = Arc::new(FaultSwitch::default());
    let faults = FaultRates { fail_before: 0.15, fail_after: 0.15, ..FaultRates::NONE };
    let node = |seed| {
        let rng = Rng::with_seed(seed);
        let faulty = FaultyStore::new(redrive.backend().clone(), faults, switch.clone(), rng);
        let settings = redrive::Settings::default().with_poll(Duration::from_millis(50));
        // Without handlers, because the test only checks which jobs were enqueued.
        let worker = Redrive::on(Arc::new(faulty)).worker().settings(settings);
        worker.run_until(tokio::time::sleep(Duration::from_millis(2_500)))
    };
    let (one, two) = tokio::join!(node(1), node(2));
    assert!(one.is_ok() && two.is_ok());
    switch.stop_faults();
    assert!(switch.faults() > 10, "too few faults were injected");
    assert!(check_each_once(&redrive).await >= 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_takes_effect_within_about_a_second() {
    let redrive = open().await;
    let nightly = Schedule::daily(3, 0, "Europe/Berlin").unwrap();
    redrive.schedule("job", nightly, Add { a: 1, b: 1 }).await.unwrap();
    let runs = Runs::default();
    let edit = async {
        let seen = || runs.lock().unwrap().len();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(seen(), 0);
        let other = Redrive::on(redrive.backend().clone());
        assert_eq!(
            other.schedule("job", steps(), Add { a: 2, b: 2 }).await.unwrap(),
            ScheduleResult::Changed
        );
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let after_edit = seen();
        assert!(after_edit >= 2, "{after_edit}");
        other.pause_schedule("job").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        let after_pause = seen();
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(seen(), after_pause, "a paused schedule enqueues nothing");
    };
    worker(&redrive, &runs).run_until(edit).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_may_leave_schedules_to_others() {
    let redrive = open().await;
    redrive.schedule("steps", steps(), Add { a: 1, b: 1 }).await.unwrap();
    let runs = Runs::default();
    let end = tokio::time::sleep(Duration::from_millis(700));
    worker(&redrive, &runs).without_schedules().run_until(end).await.unwrap();
    assert_eq!(check_each_once(&redrive).await, 0);
}

#[tokio::test]
async fn schedules_are_listed_with_their_upcoming_occurrences() {
    let redrive = open().await;
    for name in ["b", "a"] {
        let enqueue = redrive.schedule(name, steps(), Add { a: 1, b: 1 }).queue("reports").tenant("acme");
        enqueue.priority(7).metadata("m").timeout(STEP).await.unwrap();
    }
    let listed = redrive.schedules().await.unwrap();
    assert_eq!(listed.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let first = &listed[0];
    assert_eq!(
        (first.kind.as_str(), first.queue.as_str(), first.tenant.as_str()),
        ("add", "reports", "acme")
    );
    assert!(!first.paused && first.schedule == steps());
    let ahead = redrive.upcoming_occurrences("a", 3).await.unwrap().unwrap();
    assert_eq!(ahead[2].since(ahead[0]), 2 * STEP);
    assert!(redrive.upcoming_occurrences("none", 3).await.unwrap().is_none());
    let runs = Runs::default();
    let one_ran = eventually("one has run", || async { !runs.lock().unwrap().is_empty() });
    worker(&redrive, &runs).run_until(one_ran).await.unwrap();
    let page = redrive.list(Filter::default(), PageRequest::first(10)).await.unwrap();
    let job = page.items.first().expect("an occurrence was due");
    assert_eq!((job.priority.get(), job.metadata.as_deref(), job.timeout), (7, Some("m"), Some(STEP)));
    assert_eq!((job.queue.as_str(), job.tenant.as_str()), ("reports", "acme"));
    for wrong in ["", "a\nb"] {
        let refused = redrive.schedule(wrong, steps(), Add { a: 1, b: 1 }).await.unwrap_err();
        assert!(refused.to_string().starts_with("schedule:"), "{refused}");
    }
}
