//! Waits for several signals and sleeps at once: no signal is lost, and a replay makes the same choice.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redrive::{Context, JobError, JobId, Policy, Redrive, State, StepKind, Task, TaskWorker};
use serde::{Deserialize, Serialize};

use crate::fixture::{Add, eventually, job, open, output, work};
use crate::steps::quick_policy;
use crate::stores::on_every_store;

const MS: Duration = Duration::from_millis(1);

on_every_store!(
    select_returns_the_first_and_leaves_the_others,
    select_makes_the_same_choice_at_a_replay,
    select_ends_with_a_sleep,
    plain_select_chooses_the_same_at_each_replay,
    plain_select_of_a_fan_out_and_a_sleep_chooses_the_same_at_each_replay,
    join_waits_for_all_and_is_resumed_by_each,
    a_signal_that_cannot_be_read_is_skipped_and_reported,
);

#[derive(Serialize, Deserialize)]
struct Flow;

impl Task for Flow {
    const KIND: &'static str = "select-flow";
    type Output = String;
    fn policy() -> Policy {
        quick_policy(3)
    }
}

#[derive(Debug)]
#[allow(dead_code, reason = "the values are only read through Debug")]
enum Next {
    A(u32),
    B(String),
    Slept,
}

async fn select(cx: &Context, span: Duration) -> Result<Next, JobError> {
    cx.select([
        cx.signal::<u32>("a").map(Next::A),
        cx.signal::<String>("b").map(Next::B),
        cx.sleep(span).map(|()| Next::Slept),
    ])
    .await
}

async fn enqueue(redrive: &Redrive) -> JobId {
    redrive.enqueue(Flow).await.unwrap().id()
}

/// Waits until a job is in `state`.
async fn wait_for_state(redrive: &Redrive, id: JobId, state: State) {
    eventually("the job is in the state", || async { job(redrive, id).await.state == state }).await;
}

/// Waits until a job has a wait condition, or has ended: a busy machine may not see a short wait.
async fn wait_until_waiting(redrive: &Redrive, id: JobId) {
    eventually("the job waits", || async {
        let job = job(redrive, id).await;
        job.awaits.is_some() || job.state.is_final()
    })
    .await;
}

async fn select_returns_the_first_and_leaves_the_others(redrive: Redrive) {
    let id = enqueue(&redrive).await;
    let worker = redrive.worker().on(|_: Flow, cx: Context| async move {
        let first = select(&cx, 3_600_000 * MS).await?;
        let second = select(&cx, 3_600_000 * MS).await?;
        let third: String = cx.signal("b").await?;
        Ok(format!("{first:?} {second:?} {third}"))
    });
    let send = async {
        wait_until_waiting(&redrive, id).await;
        redrive.signal(id, "b", &"one").await.unwrap();
        eventually("one is selected", || async {
            redrive.steps(id, 0, 9).await.unwrap().iter().any(|step| step.kind == StepKind::Selected)
        })
        .await;
        wait_until_waiting(&redrive, id).await;
        redrive.signal(id, "a", &7).await.unwrap();
        redrive.signal(id, "b", &"two").await.unwrap();
    };
    tokio::join!(work(&redrive, worker, std::slice::from_ref(&id)), send);
    assert_eq!(output(&redrive, id).await, r#""B(\"one\") A(7) two""#);
}

/// The first attempt fails after the choice. Before the second one, the other signal arrives too.
async fn select_makes_the_same_choice_at_a_replay(redrive: Redrive) {
    let id = enqueue(&redrive).await;
    redrive.signal(id, "a", &1).await.unwrap();
    let sender = redrive.clone();
    let worker = redrive.worker().on(move |_: Flow, cx: Context| {
        let redrive = sender.clone();
        async move {
            let first = select(&cx, 3_600_000 * MS).await?;
            if cx.job.attempt == 1 {
                redrive.signal(cx.job.id, "b", &"late").await?;
                return Err(JobError::fail("after the choice"));
            }
            let left: String = cx.signal("b").await?;
            Ok(format!("{first:?} {left}"))
        }
    });
    work(&redrive, worker, &[id]).await;
    assert_eq!(output(&redrive, id).await, r#""A(1) late""#);
}

async fn select_ends_with_a_sleep(redrive: Redrive) {
    let id = enqueue(&redrive).await;
    let sender = redrive.clone();
    let worker = redrive.worker().on(move |_: Flow, cx: Context| {
        let redrive = sender.clone();
        async move {
            let first = select(&cx, 30 * MS).await?;
            if cx.job.attempt == 1 {
                redrive.signal(cx.job.id, "a", &1).await?;
                return Err(JobError::fail("after the choice"));
            }
            Ok(format!("{first:?}"))
        }
    });
    work(&redrive, worker, &[id]).await;
    assert_eq!(output(&redrive, id).await, "\"Slept\"");
}

/// `tokio::select!` polls its futures in random order. Here each attempt except the last fails after the choice, and by then
/// all other events have happened too.
async fn plain_select_chooses_the_same_at_each_replay(redrive: Redrive) {
    for round in 0..12 {
        let id = enqueue(&redrive).await;
        let sender = redrive.clone();
        let worker = redrive.worker().on(move |_: Flow, cx: Context| {
            let redrive = sender.clone();
            async move {
                let id = cx.job.id;
                let chosen = tokio::select! {
                    a = cx.signal::<u32>("a") => format!("a {}", a?),
                    b = cx.signal::<String>("b") => format!("b {}", b?),
                    slept = cx.sleep(20 * MS) => { slept?; "slept".to_owned() }
                };
                if cx.job.attempt < 3 {
                    redrive.signal(id, "a", &1).await?;
                    redrive.signal(id, "b", &"x").await?;
                    tokio::time::sleep(25 * MS).await;
                    return Err(JobError::fail("after the choice"));
                }
                // The signal that was not chosen is still pending.
                let (a, b) = tokio::join!(
                    cx.signal::<u32>("a").timeout(MS).into_future(),
                    cx.signal::<String>("b").timeout(MS).into_future(),
                );
                let left = usize::from(a?.is_some()) + usize::from(b?.is_some());
                Ok(format!("{chosen}, {left} left"))
            }
        });
        let send = async {
            if round % 3 != 0 {
                wait_until_waiting(&redrive, id).await;
                let name = if round % 3 == 1 { "a" } else { "b" };
                let value = if round % 3 == 1 { serde_json::json!(5) } else { serde_json::json!("y") };
                redrive.signal(id, name, &value).await.unwrap();
            }
        };
        tokio::join!(work(&redrive, worker, std::slice::from_ref(&id)), send);
        let output = output(&redrive, id).await;
        let steps = redrive.steps(id, 0, 99).await.unwrap();
        let taken = |name: &str| steps.iter().any(|step| step.name.as_str() == name && step.place < 3);
        assert!(!(taken("a") && taken("b")), "two signals were taken for one choice: {steps:?}");
        assert!(output.contains("left"), "{output}");
    }
}

async fn plain_select_of_a_fan_out_and_a_sleep_chooses_the_same_at_each_replay(redrive: Redrive) {
    for quick in [true, false] {
        let id = enqueue(&redrive).await;
        let (children, span) = if quick { (2, 3_600_000 * MS) } else { (1, 20 * MS) };
        let worker = redrive
            .worker()
            .on(move |_: Flow, cx: Context| async move {
                let delay = if quick { Duration::ZERO } else { 40 * MS };
                let sums =
                    cx.fan_out((0..children).map(|a| Add { a, b: 1 })).each(|child| child.delay(delay));
                let chosen = tokio::select! {
                    sums = sums => format!("{:?}", sums?),
                    slept = cx.sleep(span) => { slept?; "slept".to_owned() }
                };
                if cx.job.attempt < 3 {
                    // By the next attempt the children have ended in any case.
                    cx.step(&format!("attempt {}", cx.job.attempt), || async {
                        tokio::time::sleep(80 * MS).await;
                        Ok::<_, JobError>(())
                    })
                    .await?;
                    return Err(JobError::fail("after the choice"));
                }
                Ok(chosen)
            })
            .on(|add: Add, _: Context| async move { Ok(add.a + add.b) });
        work(&redrive, worker, &[id]).await;
        let expected = if quick { "\"[1, 2]\"" } else { "\"slept\"" };
        assert_eq!(output(&redrive, id).await, expected);
    }
}

async fn join_waits_for_all_and_is_resumed_by_each(redrive: Redrive) {
    let id = enqueue(&redrive).await;
    let worker = redrive
        .worker()
        .on(|_: Flow, cx: Context| async move {
            let (a, b, sum, slept) = tokio::join!(
                cx.signal::<u32>("a").into_future(),
                cx.signal::<String>("b").into_future(),
                cx.fan_out([Add { a: 1, b: 2 }]).into_future(),
                cx.sleep(10 * MS),
            );
            slept?;
            Ok(format!("{} {} {:?}", a?, b?, sum?))
        })
        .on(|add: Add, _: Context| async move { Ok(add.a + add.b) });
    let send = async {
        for (name, value) in [("b", serde_json::json!("x")), ("a", serde_json::json!(5))] {
            wait_until_waiting(&redrive, id).await;
            redrive.signal(id, name, &value).await.unwrap();
        }
    };
    let began = Instant::now();
    tokio::join!(work(&redrive, worker, std::slice::from_ref(&id)), send);
    assert_eq!(output(&redrive, id).await, r#""5 x [3]""#);
    assert!(
        began.elapsed() < 4_500 * MS,
        "a signal resumed the job, and not the sweep, which runs every five seconds"
    );
}

async fn a_signal_that_cannot_be_read_is_skipped_and_reported(redrive: Redrive) {
    for selects in [false, true] {
        let id = enqueue(&redrive).await;
        let worker = redrive.worker().on(move |_: Flow, cx: Context| async move {
            if selects {
                return Ok(format!("{:?}", select(&cx, 3_600_000 * MS).await?));
            }
            Ok(format!("A({})", cx.signal::<u32>("a").await?))
        });
        redrive.signal(id, "a", &"no number").await.unwrap();
        let send = async {
            wait_until_waiting(&redrive, id).await;
            let waiting = job(&redrive, id).await;
            let error = waiting.last_error.unwrap_or_default();
            assert!(error.contains("signal \"a\" was skipped") && error.contains("no number"), "{error}");
            assert_eq!(waiting.attempt, 0, "the signal costs no attempt");
            redrive.signal(id, "a", &8).await.unwrap();
        };
        tokio::join!(work(&redrive, worker, std::slice::from_ref(&id)), send);
        assert_eq!(output(&redrive, id).await, "\"A(8)\"");
    }
}

fn worker_with_long_name(redrive: &Redrive, kind: u32) -> TaskWorker {
    redrive.worker().on(move |_: Flow, cx: Context| async move {
        let long = "x".repeat(300);
        match kind {
            0 => cx.step(&long, || async { Ok::<_, JobError>(()) }).await?,
            1 => cx.signal::<()>(&long).await?,
            2 => drop(cx.version(&long, 1..=1).await?),
            3 => cx.select([cx.signal::<()>(&long).map(|()| ())]).await?,
            _ => drop(cx.fan_out([Add { a: 1, b: 1 }]).each(|child| child.queue(&"q".repeat(300))).await?),
        }
        Ok(String::new())
    })
}

#[tokio::test]
async fn a_name_that_is_too_long_is_rejected_at_once() {
    let redrive = open().await;
    for kind in 0..5 {
        let id = enqueue(&redrive).await;
        work(&redrive, worker_with_long_name(&redrive, kind), &[id]).await;
        let ended = job(&redrive, id).await;
        let error = ended.last_error.unwrap_or_default();
        assert_eq!((ended.state, ended.attempt), (State::Dead, 1), "{kind}: {error}");
        assert!(error.contains("128"), "{kind}: {error}");
    }
}

#[tokio::test]
async fn errors_name_steps_and_signals() {
    let redrive = open().await;
    let id = enqueue(&redrive).await;
    let runs = Arc::new(AtomicU32::new(0));
    let worker = redrive.worker().on(move |_: Flow, cx: Context| {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        async move {
            let name = if run == 0 { "charge" } else { "ship" };
            cx.step(name, || async { Ok::<_, JobError>(()) }).await?;
            Err(JobError::fail("not yet"))
        }
    });
    work(&redrive, worker, &[id]).await;
    let error = job(&redrive, id).await.last_error.unwrap_or_default();
    assert!(error.contains("step \"charge\"") && error.contains("calls \"ship\""), "{error}");
    assert!(!error.contains("StepName"), "{error}");
}

#[tokio::test]
async fn a_select_with_nothing_to_wait_for_is_rejected() {
    let redrive = open().await;
    let id = enqueue(&redrive).await;
    let worker = redrive.worker().on(|_: Flow, cx: Context| async move {
        cx.select(Vec::<redrive::SelectArm<'_, String>>::new()).await
    });
    work(&redrive, worker, &[id]).await;
    wait_for_state(&redrive, id, State::Dead).await;
    let error = job(&redrive, id).await.last_error.unwrap_or_default();
    assert!(error.contains("nothing to wait for"), "{error}");
}
