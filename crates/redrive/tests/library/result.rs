//! Waits for results, and reports each reason why a job has none.

use std::time::Duration;

use redrive::{Context, JobError, JobId, Reason, ResultError, Task};
use serde::{Deserialize, Serialize};

use crate::fixture::{Add, open, work};

/// The same kind as [`Add`] in a later version, whose output is a text.
#[derive(Serialize, Deserialize)]
struct AddLater {}

impl Task for AddLater {
    const KIND: &'static str = Add::KIND;
    type Output = String;
}

#[derive(Serialize, Deserialize)]
struct Silent {}

impl Task for Silent {
    const KIND: &'static str = "silent";
    type Output = ();
}

#[tokio::test]
async fn a_result_is_returned_once_the_job_has_ended() {
    let redrive = open().await;
    let soon = Duration::from_millis(60);
    let id = redrive.enqueue(Add { a: 40, b: 2 }).delay(soon).await.unwrap().id();
    let silent = redrive.enqueue(Silent {}).await.unwrap().id();
    assert!(redrive.output::<Add>(id).await.unwrap().is_none());
    let worker = redrive
        .worker()
        .on(|add: Add, _: Context| async move { Ok(add.a + add.b) })
        .on(|_: Silent, _: Context| async { Ok(()) });
    let wait = async {
        assert_eq!(redrive.result::<Add>(id).await.unwrap(), 42);
        redrive.result::<Silent>(silent).await.unwrap();
    };
    worker.run_until(wait).await.unwrap();
    assert_eq!(redrive.output::<Add>(id).await.unwrap(), Some(42));
}

#[tokio::test]
async fn each_reason_for_a_missing_result_is_reported() {
    let redrive = open().await;
    let id = redrive.enqueue(Add { a: 1, b: 1 }).await.unwrap().id();
    let dead = redrive.enqueue(Add { a: 0, b: 0 }).await.unwrap().id();
    let worker = redrive.worker().on(|add: Add, _: Context| async move {
        if add.a == 0 { Err(JobError::reject("nothing to add")) } else { Ok(add.a + add.b) }
    });
    work(&redrive, worker, &[id, dead]).await;
    let cancelled = redrive.enqueue(Add { a: 1, b: 1 }).await.unwrap().id();
    redrive.cancel(cancelled).await.unwrap();

    let error = redrive.result::<AddLater>(id).await.unwrap_err();
    assert!(matches!(error, ResultError::Unreadable { kind: "add", .. }), "{error:?}");
    let error = redrive.result::<Silent>(id).await.unwrap_err();
    assert!(matches!(error, ResultError::WrongKind { expected: "silent", .. }), "{error:?}");
    match redrive.result::<Add>(dead).await.unwrap_err() {
        ResultError::Dead { reason, last_error } => {
            assert_eq!((reason, last_error.as_deref()), (Reason::NotRetryable, Some("nothing to add")));
        }
        other => panic!("{other:?}"),
    }
    let error = redrive.result::<Add>(cancelled).await.unwrap_err();
    assert!(matches!(error, ResultError::Cancelled), "{error:?}");
    let nobody = JobId(uuid::Uuid::now_v7());
    let error = redrive.result::<Add>(nobody).await.unwrap_err();
    assert!(matches!(error, ResultError::NotFound(id) if id == nobody), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_timeout_and_the_job_continues() {
    let redrive = open().await;
    let id = redrive.enqueue(Add { a: 1, b: 1 }).await.unwrap().id();
    let began = tokio::time::Instant::now();
    let timeout = Duration::from_secs(3);
    let error = redrive.result::<Add>(id).timeout(timeout).await.unwrap_err();
    assert!(matches!(error, ResultError::TimedOut), "{error:?}");
    assert_eq!(began.elapsed(), timeout);
    assert_eq!(redrive.output::<Add>(id).await.unwrap(), None);
}
