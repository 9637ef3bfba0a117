//! A handler gets its job, a handle on the store, and the state of the worker.

use std::future::{Future, IntoFuture as _};

use redrive::{Context, EnqueuedJob, JobError, Policy, State};

use crate::fixture::{Add, job, open, output, work};

struct Offset(u32);
struct Factor(u32);

#[tokio::test]
async fn a_handler_sees_its_job_and_the_states_of_its_worker() {
    let redrive = open().await;
    let id = redrive.enqueue(Add { a: 1, b: 2 }).await.unwrap().id();
    let worker = redrive.worker().state(Offset(40)).state(Factor(2)).on(|add: Add, cx: Context| async move {
        assert_eq!((cx.job.attempt, cx.timeout, cx.is_cancelled()), (1, None, false));
        Ok((add.a + add.b) * cx.state::<Factor>()?.0 + cx.state::<Offset>()?.0)
    });
    work(&redrive, worker, &[id]).await;
    assert_eq!(output(&redrive, id).await, "46");
}

#[tokio::test]
async fn a_missing_state_fails_the_attempt_with_an_error_that_names_it() {
    let redrive = open().await;
    let once = Policy::default().with_max_attempts(1).unwrap();
    let id = redrive.enqueue(Add { a: 1, b: 2 }).policy(once).await.unwrap().id();
    let worker = redrive.worker().state(Factor(2)).on(|_: Add, cx: Context| async move {
        let offset = cx.state::<Offset>()?;
        Ok(offset.0)
    });
    work(&redrive, worker, &[id]).await;
    let dead = job(&redrive, id).await;
    let error = dead.last_error.unwrap_or_default();
    assert_eq!(dead.state, State::Dead);
    assert!(error.contains("context::Offset") && error.contains("TaskWorker::state"), "{error}");
    assert_eq!(dead.reason, Some(redrive::Reason::AttemptsExhausted), "another worker may have the state");
}

#[tokio::test]
async fn a_handler_enqueues_more_through_its_context() {
    let redrive = open().await;
    let first = redrive.enqueue(Add { a: 1, b: 0 }).await.unwrap().id();
    let worker = redrive.worker().on(|add: Add, cx: Context| async move {
        if add.a == 1 {
            cx.redrive().enqueue(Add { a: 2, b: 5 }).key("second").await?;
        }
        Ok::<_, JobError>(add.a + add.b)
    });
    work(&redrive, worker, &[first]).await;
    let again = redrive.enqueue(Add { a: 2, b: 5 }).key("second").await.unwrap();
    assert!(matches!(again, EnqueuedJob::Existing(_)), "{again:?}");
}

/// A future that a program spawns must be `Send`.
#[tokio::test]
async fn the_futures_of_the_library_can_be_spawned() {
    fn spawnable(_: impl Future + Send) {}
    let redrive = open().await;
    let hourly = redrive::Schedule::every(std::time::Duration::from_secs(3600)).unwrap();
    let worker = redrive.worker().on(|add: Add, _: Context| async move { Ok(add.a) });
    spawnable(worker.run_until(std::future::ready(())));
    spawnable(redrive.enqueue_all([Add { a: 1, b: 1 }]));
    spawnable(redrive.enqueue_all(vec![redrive.enqueue(Add { a: 1, b: 1 })]));
    spawnable(redrive.redrive_all(redrive::Filter::default()));
    spawnable(redrive.schedule("hourly", hourly, Add { a: 1, b: 1 }).into_future());
    spawnable(redrive.result::<Add>(redrive::JobId(uuid::Uuid::nil())).into_future());
}
