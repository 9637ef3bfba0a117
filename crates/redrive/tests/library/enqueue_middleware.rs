//! Every kind of enqueue runs the enqueue middleware.

use redrive::{Context, EnqueuedJob, Error, NewJob, Priority, Redrive};

use crate::fixture::{Add, job, open, work};

/// Makes jobs urgent, and refuses those of the queue "closed".
fn guarded(redrive: &Redrive) -> Redrive {
    redrive
        .clone()
        .with_enqueue_middleware(|job: NewJob| Ok(NewJob { priority: Priority::MAX, ..job }))
        .with_enqueue_middleware(|job: NewJob| {
            assert_eq!(job.priority, Priority::MAX, "the middleware that was added first runs first");
            if job.queue.as_str() == "closed" { Err(Error::refused("closed for today")) } else { Ok(job) }
        })
}

#[tokio::test]
async fn a_job_is_changed_or_refused_and_other_handles_are_not_affected() {
    let redrive = open().await;
    let guarded = guarded(&redrive);
    let urgent = guarded.enqueue(Add { a: 1, b: 1 }).await.unwrap().id();
    let plain = redrive.enqueue(Add { a: 1, b: 1 }).queue("closed").await.unwrap().id();
    assert_eq!(job(&redrive, urgent).await.priority, Priority::MAX);
    assert_eq!(job(&redrive, plain).await.priority, Priority::default());
    let refused = guarded.enqueue(Add { a: 1, b: 1 }).queue("closed").await;
    match refused {
        Err(Error::Refused(why)) => assert_eq!(why, "closed for today"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_change_does_not_make_a_repeat_a_conflict() {
    let redrive = open().await;
    let first = redrive.enqueue(Add { a: 1, b: 1 }).key("k").await.unwrap();
    let again = guarded(&redrive).enqueue(Add { a: 1, b: 1 }).key("k").await.unwrap();
    assert_eq!(again, EnqueuedJob::Existing(first.id()));
}

#[tokio::test]
async fn an_enqueue_by_a_handler_runs_the_middleware_too() {
    let redrive = open().await;
    let id = redrive.enqueue(Add { a: 1, b: 1 }).await.unwrap().id();
    let worker = guarded(&redrive).worker().on(|add: Add, cx: Context| async move {
        cx.redrive().enqueue(Add { a: 7, b: 7 }).queue("later").key("more").await?;
        Ok(add.a)
    });
    work(&redrive, worker.queues(["default"]), &[id]).await;
    let more = redrive.enqueue(Add { a: 7, b: 7 }).queue("later").key("more").await.unwrap();
    assert!(matches!(more, EnqueuedJob::Existing(_)), "{more:?}");
    assert_eq!(job(&redrive, more.id()).await.priority, Priority::MAX);
}
