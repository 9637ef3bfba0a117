//! Schedules run on several workers at once, each occurrence once, and are edited while they run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use redrive::schedule::Placed;
use redrive::{Context, Filter, Job, PageRequest, Redrive, Schedule, TaskWorker};
use redrive_testkit::FaultyStore;
use redrive_testkit::faulty::{Faults, Weather};

use crate::stage::{Add, open};

const STEP: Duration = Duration::from_millis(200);

fn steps() -> Schedule {
    Schedule::every(STEP).unwrap()
}

/// How often each occurrence was run for, in milliseconds.
type Runs = Arc<Mutex<BTreeMap<i64, u32>>>;

fn worker(redrive: &Redrive, runs: &Runs) -> TaskWorker {
    let runs = runs.clone();
    redrive.worker().on(move |add: Add, cx: Context| {
        let occurrence = cx.occurrence().expect("it was scheduled");
        *runs.lock().unwrap().entry(occurrence.as_ms()).or_default() += 1;
        async move { Ok(add.a) }
    })
}

/// Checks that there is one job for each step, from the first one to the last, and says how many.
async fn check_each_once(redrive: &Redrive) -> usize {
    let page = redrive.list(Filter::default(), PageRequest::first(1000)).await.unwrap();
    let key = |job: &Job| job.key.as_ref().unwrap().as_str().to_owned();
    let occurrence = |job: &Job| key(job).rsplit_once('/').unwrap().1.parse::<i64>().unwrap();
    let mut found: Vec<i64> = page.items.iter().map(occurrence).collect();
    found.sort_unstable();
    for (one, next) in found.iter().zip(found.iter().skip(1)) {
        assert_eq!(next - one, 200, "an occurrence is missing or double: {found:?}");
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
    assert!(check_each_once(&redrive).await >= 5, "about ten steps fit in");
    let runs = runs.lock().unwrap();
    assert!(runs.len() >= 5 && runs.values().all(|count| *count == 1), "{runs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_now_and_then_loses_and_doubles_nothing() {
    let redrive = open().await;
    redrive.schedule("steps", steps(), Add { a: 1, b: 1 }).await.unwrap();
    let weather = Arc::new(Weather::default());
    let faults = Faults { before: 0.15, after: 0.15, ..Faults::NONE };
    let node = |seed| {
        let rng = Rng::with_seed(seed);
        let faulty = FaultyStore::new(redrive.backend().clone(), faults, weather.clone(), rng);
        let settings = redrive::Settings::default().with_poll(Duration::from_millis(50));
        // Without handlers: what is looked at is what was enqueued.
        let worker = Redrive::on(Arc::new(faulty)).worker().settings(settings);
        worker.run_until(tokio::time::sleep(Duration::from_millis(2_500)))
    };
    let (one, two) = tokio::join!(node(1), node(2));
    assert!(one.is_ok() && two.is_ok());
    weather.calm_down();
    assert!(weather.faults() > 10, "the weather was bad");
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
        assert_eq!(other.schedule("job", steps(), Add { a: 2, b: 2 }).await.unwrap(), Placed::Changed);
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let after_edit = seen();
        assert!(after_edit >= 2, "{after_edit}");
        other.pause_schedule("job").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        let after_pause = seen();
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(seen(), after_pause, "it stands still");
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
async fn schedules_are_listed_and_looked_ahead() {
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
    let ahead = redrive.upcoming("a", 3).await.unwrap().unwrap();
    assert_eq!(ahead[2].since(ahead[0]), 2 * STEP);
    assert!(redrive.upcoming("none", 3).await.unwrap().is_none());
    let runs = Runs::default();
    let one_ran = async {
        while runs.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    worker(&redrive, &runs).run_until(one_ran).await.unwrap();
    let page = redrive.list(Filter::default(), PageRequest::first(10)).await.unwrap();
    let job = page.items.first().expect("one was due");
    assert_eq!((job.priority.get(), job.metadata.as_deref(), job.timeout), (7, Some("m"), Some(STEP)));
    assert_eq!((job.queue.as_str(), job.tenant.as_str()), ("reports", "acme"));
    for wrong in ["", "a\nb"] {
        let refused = redrive.schedule(wrong, steps(), Add { a: 1, b: 1 }).await.unwrap_err();
        assert!(refused.to_string().starts_with("schedule:"), "{refused}");
    }
}
