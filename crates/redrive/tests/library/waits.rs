//! Timers, signals and children: the handler stops, costs nothing, and goes on once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redrive::{ChildError, Context, Hold, JobError, Policy, Redrive, Signalled, State, Task, TaskWorker};
use serde::{Deserialize, Serialize};

use crate::stage::{Add, job, open, output, work};
use crate::steps::soon;

const MS: Duration = Duration::from_millis(1);

#[derive(Serialize, Deserialize)]
struct Flow;

impl Task for Flow {
    const KIND: &'static str = "flow";
    type Output = String;
    fn policy() -> Policy {
        soon(2)
    }
}

#[tokio::test]
async fn a_sleep_holds_no_worker_and_costs_no_attempt() {
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
    assert!(took >= 1_500 * MS && took < 3_000 * MS, "one after the other: {took:?}");
    for id in ids {
        assert_eq!(output(&redrive, id).await, "\"attempt 1\"");
        assert_eq!(job(&redrive, id).await.epoch, 3);
    }
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
async fn signals_are_taken_in_their_order_once_each_and_a_timeout_is_none() {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id()];
    let id = ids[0];
    assert_eq!(redrive.signal(id, "approved", &1).await.unwrap(), Signalled::Kept);
    let later = async {
        tokio::time::sleep(50 * MS).await;
        redrive.signal(id, "approved", &2).await.unwrap()
    };
    let (summary, sent) = tokio::join!(work(&redrive, approvals(&redrive), &ids), later);
    assert_eq!((output(&redrive, id).await.as_str(), sent), ("\"1 Some(2) None\"", Signalled::Kept));
    assert_eq!(summary.succeeded, 1);
    assert_eq!(job(&redrive, id).await.attempt, 1);
    assert_eq!(redrive.signal(id, "approved", &3).await.unwrap(), Signalled::Ended(State::Succeeded));
}

#[tokio::test]
async fn a_wait_for_a_signal_shows_as_waiting_and_can_be_cancelled() {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id()];
    let id = ids[0];
    let cancel = async {
        while job(&redrive, id).await.state != State::Waiting {
            tokio::time::sleep(MS).await;
        }
        redrive.cancel(id).await.unwrap();
    };
    tokio::join!(work(&redrive, approvals(&redrive), &ids), cancel);
    assert_eq!(job(&redrive, id).await.state, State::Cancelled);
}

/// How a fan-out over numbers is joined.
#[derive(Clone, Copy)]
enum Way {
    FailFast,
    CollectAll,
    Threshold(usize),
}

/// Fans out over numbers from 0; those below `bad` are rejected.
async fn fan_out(count: u32, bad: u32, way: Way) -> (Redrive, redrive::Job) {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id()];
    let id = ids[0];
    let worker = redrive
        .worker()
        .concurrency(4)
        .on(move |_: Flow, cx: Context| async move {
            let fan_out =
                cx.fan_out((0..count).map(|a| Add { a, b: 1 })).each(|child| child.queue("children"));
            let sum = match way {
                Way::FailFast => fan_out.await?.into_iter().map(u64::from).sum::<u64>(),
                Way::CollectAll => sum(fan_out.collect_all().await?),
                Way::Threshold(needed) => sum(fan_out.threshold(needed).await?),
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
async fn children_give_their_results_in_order_and_their_parent_goes_on_once() {
    let (_, parent) = fan_out(2_500, 0, Way::FailFast).await;
    assert_eq!(parent.output.as_deref(), Some(&b"\"3126250\""[..]), "{:?}", parent.last_error);
    assert_eq!((parent.epoch, parent.attempt), (2, 1));
}

#[tokio::test]
async fn the_first_failure_fails_fast_and_cancels_the_rest() {
    let (redrive, parent) = fan_out(300, 1, Way::FailFast).await;
    assert_eq!((parent.state, parent.attempt), (State::Dead, 1));
    let error = parent.last_error.unwrap();
    assert!(error.contains("1 of 300 children failed") && error.contains("bad number"), "{error}");
    let stats = redrive.backend().stats().await.unwrap();
    let open = [State::Pending, State::Retrying].into_iter().map(|state| stats.in_state(state)).sum::<u64>();
    assert_eq!(open, 0);
}

#[tokio::test]
async fn all_are_collected_or_as_many_as_are_needed() {
    let (_, parent) = fan_out(10, 3, Way::CollectAll).await;
    assert_eq!(parent.output.as_deref(), Some(&b"\"49\""[..]));
    let (_, parent) = fan_out(10, 3, Way::Threshold(7)).await;
    assert_eq!(parent.output.as_deref(), Some(&b"\"49\""[..]));
    let (_, parent) = fan_out(10, 3, Way::Threshold(8)).await;
    assert_eq!(parent.state, State::Dead);
    let (_, parent) = fan_out(0, 0, Way::CollectAll).await;
    assert_eq!(parent.output.as_deref(), Some(&b"\"0\""[..]));
}

#[tokio::test]
async fn a_cancelled_child_lets_its_parent_go_on() {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id()];
    let id = ids[0];
    let worker = redrive.worker().on(|_: Flow, cx: Context| async move {
        let children = cx.fan_out([Add { a: 1, b: 1 }]).each(|child| child.delay(3_600_000 * MS));
        Ok(format!("{:?}", children.collect_all().await?[0].is_err()))
    });
    let cancel = async {
        while job(&redrive, id).await.state != State::Waiting {
            tokio::time::sleep(MS).await;
        }
        let steps = redrive.steps(id, 0, 1).await.unwrap();
        let child = redrive::JobId(uuid::Uuid::from_slice(&steps[0].value).unwrap());
        redrive.cancel(child).await.unwrap();
    };
    let began = Instant::now();
    tokio::join!(work(&redrive, worker, &ids), cancel);
    assert_eq!(output(&redrive, id).await, "\"true\"");
    assert!(began.elapsed() < 3_000 * MS, "it was resumed, not found by a sweep: {:?}", began.elapsed());
}

#[tokio::test]
async fn a_paused_job_waits_until_it_is_resumed() {
    let redrive = open().await;
    let ids = [redrive.enqueue(Flow).await.unwrap().id()];
    let id = ids[0];
    assert_eq!(redrive.pause_job(id).await.unwrap(), Hold::Done(State::Waiting));
    let resume = async {
        tokio::time::sleep(50 * MS).await;
        assert_eq!(job(&redrive, id).await.state, State::Waiting);
        assert_eq!(redrive.resume_job(id).await.unwrap(), Hold::Done(State::Pending));
    };
    let worker = redrive.worker().on(|_: Flow, _: Context| async { Ok(String::new()) });
    tokio::join!(work(&redrive, worker, &ids), resume);
    assert_eq!(job(&redrive, id).await.state, State::Succeeded);
}
