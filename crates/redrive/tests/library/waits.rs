//! Sleeps, signals and children: a handler that waits costs nothing, and continues once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redrive::{
    ChildError, Context, Filter, JobError, PageRequest, PauseResult, Policy, Redrive, SignalResult, State,
    Task, TaskWorker,
};
use serde::{Deserialize, Serialize};

use crate::fixture::{Add, eventually, job, open, output, work};
use crate::steps::quick_policy;

const MS: Duration = Duration::from_millis(1);

#[derive(Serialize, Deserialize)]
struct Flow;

impl Task for Flow {
    const KIND: &'static str = "flow";
    type Output = String;
    fn policy() -> Policy {
        quick_policy(2)
    }
}

#[tokio::test]
async fn a_sleep_occupies_no_worker_and_costs_no_attempt() {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id(), redrive.enqueue(Flow).await.unwrap().id()];
    let began = Instant::now();
    let worker = redrive.worker().concurrency(1).on(|_: Flow, cx: Context| async move {
        cx.sleep(1_000 * MS).await?;
        cx.sleep(500 * MS).await?;
        Ok(format!("attempt {}", cx.job.attempt))
    });
    work(&redrive, worker, &ids).await;
    let took = began.elapsed();
    assert!(took >= 1_500 * MS && took < 3_000 * MS, "the sleeps follow each other: {took:?}");
    for id in ids {
        assert_eq!(output(&redrive, id).await, "\"attempt 1\"");
        assert_eq!(job(&redrive, id).await.lease_count(), 3);
    }
}

/// The store keeps such jobs as pending, because their due time ends the wait.
#[tokio::test]
async fn a_job_that_sleeps_or_waits_with_a_timeout_is_shown_as_waiting() {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let redrive = open().await;
    let sleeper = redrive.enqueue(Flow).await.unwrap().id();
    let approval = redrive.enqueue(Add { a: 1, b: 2 }).await.unwrap().id();
    let worker = redrive
        .worker()
        .on(|_: Flow, cx: Context| async move {
            cx.sleep(DAY).await?;
            Ok(String::new())
        })
        .on(
            |_: Add, cx: Context| async move { Ok(cx.signal::<u32>("sum").timeout(DAY).await?.unwrap_or(0)) },
        );
    let waits = eventually("both jobs wait", || async {
        let (sleeper, approval) = (job(&redrive, sleeper).await, job(&redrive, approval).await);
        sleeper.state == State::Waiting && approval.awaits.is_some()
    });
    worker.run_until(waits).await.unwrap();
    let untouched = redrive.enqueue(Flow).delay(DAY).await.unwrap().id();
    let listed = async |states: Vec<State>| {
        let page =
            redrive.list(Filter { states, ..Filter::default() }, PageRequest::first(10)).await.unwrap();
        page.items.into_iter().map(|job| (job.id, job.state)).collect::<Vec<_>>()
    };
    assert_eq!(listed(vec![State::Waiting]).await, [(approval, State::Waiting), (sleeper, State::Waiting)]);
    assert_eq!(listed(vec![State::Pending]).await, [(untouched, State::Pending)]);
    assert_eq!(listed(Vec::new()).await.len(), 3);
}

#[tokio::test]
async fn a_step_beside_a_sleep_ends_before_the_handler_stops() {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id()];
    let id = ids[0];
    let runs = Arc::new(AtomicU32::new(0));
    let seen = runs.clone();
    let worker = redrive.worker().on(move |_: Flow, cx: Context| {
        let runs = runs.clone();
        async move {
            let slow = cx.step("slow", || async {
                tokio::time::sleep(50 * MS).await;
                Ok::<_, JobError>(runs.fetch_add(1, Ordering::SeqCst))
            });
            let (slow, slept) = tokio::join!(slow, cx.sleep(100 * MS));
            slept?;
            slow.map(|_| String::new())
        }
    });
    work(&redrive, worker, &ids).await;
    assert_eq!((job(&redrive, id).await.state, seen.load(Ordering::SeqCst)), (State::Succeeded, 1));
}

fn approvals(redrive: &Redrive) -> TaskWorker {
    redrive.worker().on(|_: Flow, cx: Context| async move {
        let first: u32 = cx.signal("approved").await?;
        let second: Option<u32> = cx.signal("approved").timeout(5_000 * MS).await?;
        let never: Option<u32> = cx.signal("never").timeout(30 * MS).await?;
        Ok(format!("{first} {second:?} {never:?}"))
    })
}

#[tokio::test]
async fn signals_are_taken_in_order_once_each_and_a_timeout_returns_none() {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id()];
    let id = ids[0];
    assert_eq!(redrive.signal(id, "approved", &1).await.unwrap(), SignalResult::Stored);
    let later = async {
        tokio::time::sleep(50 * MS).await;
        redrive.signal(id, "approved", &2).await.unwrap()
    };
    let (summary, sent) = tokio::join!(work(&redrive, approvals(&redrive), &ids), later);
    assert_eq!((output(&redrive, id).await.as_str(), sent), ("\"1 Some(2) None\"", SignalResult::Stored));
    assert_eq!(summary.succeeded, 1);
    assert_eq!(job(&redrive, id).await.attempt, 1);
    assert_eq!(redrive.signal(id, "approved", &3).await.unwrap(), SignalResult::Ended(State::Succeeded));
}

#[tokio::test]
async fn a_wait_for_a_signal_shows_as_waiting_and_can_be_cancelled() {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id()];
    let id = ids[0];
    let cancel = async {
        eventually("the job waits", || async { job(&redrive, id).await.state == State::Waiting }).await;
        redrive.cancel(id).await.unwrap();
    };
    tokio::join!(work(&redrive, approvals(&redrive), &ids), cancel);
    assert_eq!(job(&redrive, id).await.state, State::Cancelled);
}

/// How a parent waits for its children.
#[derive(Clone, Copy)]
enum JoinMode {
    FailFast,
    CollectAll,
    Threshold(usize),
}

/// Runs a fan-out over the numbers from 0. The children below `bad` are rejected.
async fn fan_out(count: u32, bad: u32, mode: JoinMode) -> (Redrive, redrive::Job) {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id()];
    let id = ids[0];
    let worker = redrive
        .worker()
        .concurrency(4)
        .on(move |_: Flow, cx: Context| async move {
            let fan_out =
                cx.fan_out((0..count).map(|a| Add { a, b: 1 })).each(|child| child.queue("children"));
            let sum = match mode {
                JoinMode::FailFast => fan_out.await?.into_iter().map(u64::from).sum::<u64>(),
                JoinMode::CollectAll => sum(fan_out.collect_all().await?),
                JoinMode::Threshold(needed) => sum(fan_out.threshold(needed).await?),
            };
            Ok(format!("{sum}"))
        })
        .on(move |add: Add, _: Context| async move {
            if add.a < bad { Err(JobError::reject("bad number")) } else { Ok(add.a + add.b) }
        });
    work(&redrive, worker, &ids).await;
    let parent = job(&redrive, id).await;
    (redrive, parent)
}

fn sum(results: Vec<Result<u32, ChildError>>) -> u64 {
    results.into_iter().flatten().map(u64::from).sum()
}

#[tokio::test]
async fn children_return_results_in_order_and_their_parent_resumes_once() {
    let (_, parent) = fan_out(2_500, 0, JoinMode::FailFast).await;
    assert_eq!(parent.output.as_deref(), Some(&b"\"3126250\""[..]), "{:?}", parent.last_error);
    assert_eq!((parent.lease_count(), parent.attempt), (2, 1));
}

#[tokio::test]
async fn the_first_failure_fails_the_fan_out_and_cancels_the_rest() {
    let (redrive, parent) = fan_out(300, 1, JoinMode::FailFast).await;
    assert_eq!((parent.state, parent.attempt), (State::Dead, 1));
    let error = parent.last_error.unwrap();
    assert!(error.contains("1 of 300 children failed") && error.contains("bad number"), "{error}");
    let stats = redrive.backend().stats().await.unwrap();
    let open = [State::Pending, State::Retrying].into_iter().map(|state| stats.in_state(state)).sum::<u64>();
    assert_eq!(open, 0);
}

#[tokio::test]
async fn all_results_are_collected_or_as_many_as_the_threshold_needs() {
    let (_, parent) = fan_out(10, 3, JoinMode::CollectAll).await;
    assert_eq!(parent.output.as_deref(), Some(&b"\"49\""[..]));
    let (_, parent) = fan_out(10, 3, JoinMode::Threshold(7)).await;
    assert_eq!(parent.output.as_deref(), Some(&b"\"49\""[..]));
    let (_, parent) = fan_out(10, 3, JoinMode::Threshold(8)).await;
    assert_eq!(parent.state, State::Dead);
    let (_, parent) = fan_out(0, 0, JoinMode::CollectAll).await;
    assert_eq!(parent.output.as_deref(), Some(&b"\"0\""[..]));
}

#[tokio::test]
async fn a_cancelled_child_resumes_its_parent() {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id()];
    let id = ids[0];
    let worker = redrive.worker().on(|_: Flow, cx: Context| async move {
        let children = cx.fan_out([Add { a: 1, b: 1 }]).each(|child| child.delay(3_600_000 * MS));
        Ok(format!("{:?}", children.collect_all().await?[0].is_err()))
    });
    let cancel = async {
        eventually("the job waits", || async { job(&redrive, id).await.state == State::Waiting }).await;
        let steps = redrive.steps(id, 0, 1).await.unwrap();
        let child = redrive::JobId(uuid::Uuid::from_slice(&steps[0].value).unwrap());
        redrive.cancel(child).await.unwrap();
    };
    let began = Instant::now();
    tokio::join!(work(&redrive, worker, &ids), cancel);
    assert_eq!(output(&redrive, id).await, "\"true\"");
    assert!(
        began.elapsed() < 3_000 * MS,
        "the child resumed the parent, and not the sweep: {:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn a_paused_job_waits_until_it_is_resumed() {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id()];
    let id = ids[0];
    assert_eq!(redrive.pause_job(id).await.unwrap(), PauseResult::Done(State::Waiting));
    let resume = async {
        tokio::time::sleep(50 * MS).await;
        assert_eq!(job(&redrive, id).await.state, State::Waiting);
        assert_eq!(redrive.resume_job(id).await.unwrap(), PauseResult::Done(State::Pending));
    };
    let worker = redrive.worker().on(|_: Flow, _: Context| async { Ok(String::new()) });
    tokio::join!(work(&redrive, worker, &ids), resume);
    assert_eq!(job(&redrive, id).await.state, State::Succeeded);
}
