//! Tests of the test harness.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::testing::Harness;
use redrive::{
    Backoff, Context, EndedJob, Error, Jitter, JobError, NewJob, Outcome, Policy, Priority, Schedule,
    SqliteTransaction, State, Task,
};
use serde::{Deserialize, Serialize};

use crate::fixture::Add;

/// What the handler does.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Try {
    Work,
    Fail,
    Panic,
    Snooze,
    More(u32),
}

impl Task for Try {
    const KIND: &'static str = "try";
    type Output = u32;

    fn policy() -> Policy {
        let backoff = Backoff::fixed(Duration::ZERO).unwrap();
        Policy { backoff, jitter: Jitter::None, ..Policy::default() }
    }
}

/// A harness that counts the attempts of its handler.
fn harness() -> (Harness, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let harness = Harness::new(move |worker| {
        let count = count.clone();
        worker.on(move |what: Try, cx: Context| {
            let calls = count.fetch_add(1, Ordering::SeqCst);
            async move {
                match what {
                    Try::Work => Ok(7),
                    Try::Fail => Err(JobError::fail("no")),
                    Try::Panic => panic!("what now"),
                    Try::Snooze if calls == 0 => Err(JobError::snooze(Duration::from_secs(86_400))),
                    Try::Snooze => Ok(8),
                    Try::More(0) => Ok(0),
                    Try::More(n) => {
                        // Meanwhile the worker claims again and finds no job.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        cx.redrive().enqueue(Try::More(n - 1)).queue("more").await?;
                        Ok(n)
                    }
                }
            }
        })
    });
    (harness, calls)
}

#[tokio::test]
async fn run_makes_one_attempt_and_returns_its_result() {
    let (harness, calls) = harness();
    let ran = harness.run(Try::Work).await;
    assert_eq!((ran.output(), ran.job.attempt), (7, 1));
    assert_eq!(ran.outcome, Some(Outcome::Done(Some(b"7".to_vec()))));
    // The job is due again at once, but the handler is called only once.
    let ran = harness.run(Try::Fail).await;
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!((ran.outcome, ran.job.attempt), (Some(Outcome::fail("no")), 1));
    assert_eq!(ran.job.last_error.as_deref(), Some("no"));
    assert!(!ran.job.state.is_final());
    let ran = harness.run(Try::Panic).await;
    assert_eq!(ran.outcome, None);
    assert_eq!(ran.job.last_error.as_deref(), Some("handler panicked: what now"));
}

#[tokio::test]
async fn a_drain_runs_the_jobs_of_one_queue_and_those_that_they_enqueue() {
    let (harness, calls) = harness();
    for queue in ["more", "other"] {
        harness.redrive().enqueue(Try::More(5)).queue(queue).await.unwrap();
    }
    harness.redrive().enqueue(Add { a: 1, b: 1 }).queue("more").await.unwrap();
    let summary = harness.drain("more").await;
    assert_eq!((summary.succeeded, calls.load(Ordering::SeqCst)), (6, 6));
    harness.assert_enqueued::<Try>(|task| matches!(task, Try::More(5))).await;
    harness.assert_enqueued::<Add>(|add| add.a == 1).await;
    assert_eq!(harness.drain("more").await.claimed, 0, "no job is left, and the drain ends");
}

#[tokio::test]
async fn a_snoozed_job_runs_when_the_clock_reaches_its_due_time() {
    let (harness, calls) = harness();
    let id = harness.redrive().enqueue(Try::Snooze).await.unwrap().id();
    harness.drain("default").await;
    harness.advance(Duration::from_secs(86_399));
    harness.drain("default").await;
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    harness.advance(Duration::from_secs(1));
    harness.drain("default").await;
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    let job = harness.redrive().get(id).await.unwrap().unwrap();
    assert_eq!((job.state, job.attempt), (State::Succeeded, 1));
}

#[tokio::test]
async fn schedules_follow_the_clock_too() {
    let (harness, calls) = harness();
    let hourly = Schedule::every(Duration::from_secs(3600)).unwrap();
    harness.redrive().schedule("hourly", hourly, Try::Work).await.unwrap();
    for hours in [0, 1, 2, 3] {
        harness.drain("default").await;
        assert_eq!(calls.load(Ordering::SeqCst), hours);
        harness.advance(Duration::from_secs(3600));
    }
}

#[tokio::test]
async fn enqueued_tasks_are_listed_oldest_first_and_run_the_middleware() {
    let (harness, _) = harness();
    let urgent = |job: NewJob| Ok(NewJob { priority: Priority::MAX, ..job });
    let harness = harness.with_redrive(|redrive| redrive.with_enqueue_middleware(urgent));
    let adds = [Add { a: 1, b: 0 }, Add { a: 2, b: 0 }];
    harness.redrive().enqueue_all(adds.clone()).await.unwrap();
    assert_eq!(harness.enqueued::<Add>().await, adds);
    harness.refute_enqueued::<Add>(|add| add.a == 3).await;
    harness.refute_enqueued::<Try>(|_| true).await;
}

#[tokio::test]
#[should_panic(expected = r#"no enqueued add matches; the enqueued ones are: [{"a":1,"b":0}]"#)]
async fn a_failed_assertion_lists_the_enqueued_tasks() {
    let (harness, _) = harness();
    harness.redrive().enqueue(Add { a: 1, b: 0 }).await.unwrap();
    harness.assert_enqueued::<Add>(|add| add.a == 2).await;
}

#[tokio::test]
#[should_panic(expected = r#"add is enqueued and should not be: [{"a":1,"b":0}]"#)]
async fn a_failed_refutation_lists_the_enqueued_tasks() {
    let (harness, _) = harness();
    harness.redrive().enqueue(Add { a: 1, b: 0 }).await.unwrap();
    harness.refute_enqueued::<Add>(|add| add.a == 1).await;
}

/// A harness whose on_end closure inserts a row for each task, which fails if the row exists.
async fn harness_with_on_end() -> Harness {
    let harness = Harness::new(|worker| {
        let write =
            |tx: &mut SqliteTransaction<'_, '_, '_>, task: &Try, end: &EndedJob| -> Result<(), Error> {
                let row = (format!("{task:?}"), end.state.name());
                tx.connection().execute("INSERT INTO ends (task, state) VALUES (?1, ?2)", row)?;
                Ok(())
            };
        let handle = |task: Try, _: Context| async move {
            match task {
                Try::Work => Ok(7),
                _ => Err(JobError::reject("no")),
            }
        };
        worker.on(handle).on_end(write)
    });
    let table = "CREATE TABLE ends (task TEXT PRIMARY KEY, state TEXT)";
    harness.redrive().transact(move |tx| Ok(tx.connection().execute_batch(table)?)).await.unwrap();
    harness
}

async fn ends(harness: &Harness) -> Vec<(String, String)> {
    let read = |tx: &mut SqliteTransaction<'_, '_, '_>| {
        let mut statement = tx.connection().prepare("SELECT task, state FROM ends ORDER BY task")?;
        let rows = statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    };
    harness.redrive().transact(read).await.unwrap()
}

#[tokio::test]
async fn transactions_and_on_end_closures_work_as_in_the_program() {
    let harness = harness_with_on_end().await;
    let task = harness.redrive().enqueue(Try::Work).queue("later").prepare().await.unwrap();
    harness.redrive().transact(move |tx| tx.enqueue(&task)).await.unwrap();
    harness.assert_enqueued::<Try>(|task| matches!(task, Try::Work)).await;
    assert_eq!(harness.drain("later").await.succeeded, 1);
    let ran = harness.run(Try::Fail).await;
    assert_eq!(ran.job.state, State::Dead);
    let rows =
        [("Fail", "dead"), ("Work", "succeeded")].map(|(task, state)| (task.to_owned(), state.to_owned()));
    assert_eq!(ends(&harness).await, rows);
}

#[tokio::test]
async fn an_on_end_closure_that_fails_fails_the_attempt_and_the_harness_continues() {
    let harness = harness_with_on_end().await;
    harness.run(Try::Work).await;
    // The row exists already.
    let ran = harness.run(Try::Work).await;
    assert!(!ran.job.state.is_final() && ran.job.attempt == 1, "{:?}", ran.job);
    let error = ran.job.last_error.unwrap();
    assert!(
        error.starts_with("the end of the job could not be written: ") && error.contains("UNIQUE"),
        "{error}"
    );
    harness.redrive().transact(|tx| Ok(tx.connection().execute_batch("DELETE FROM ends")?)).await.unwrap();
    harness.advance(Duration::from_secs(1));
    assert_eq!(harness.drain(ran.job.queue.as_str()).await.succeeded, 1);
}
