//! Batches return results in order, and run the same middleware as single enqueues.

use redrive::{EnqueuedJob, Error, NewJob, Priority};

use crate::fixture::{Add, job, open};

#[tokio::test]
async fn results_are_in_order_across_several_batches() {
    let redrive = open().await;
    let known = redrive.enqueue(Add { a: 1500, b: 0 }).key("1500").await.unwrap().id();
    let tasks = (0..2500).map(|a| redrive.enqueue(Add { a, b: 0 }).key(&a.to_string()));
    let answers = redrive.enqueue_all(tasks).await.unwrap();
    assert_eq!(answers.len(), 2500);
    for (at, answer) in answers.iter().enumerate() {
        let found = job(&redrive, answer.id()).await;
        assert_eq!(found.payload, format!(r#"{{"a":{at},"b":0}}"#).into_bytes());
        assert_eq!(*answer == EnqueuedJob::Existing(known), at == 1500);
    }
    assert!(redrive.enqueue_all(Vec::<Add>::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn an_invalid_task_rejects_its_batch_but_not_earlier_ones() {
    let redrive = open().await;
    let tasks = (0..1500).map(|a| {
        let enqueue = redrive.enqueue(Add { a, b: 0 });
        if a == 1200 { enqueue.priority(10) } else { enqueue }
    });
    match redrive.enqueue_all(tasks).await {
        Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, "priority"),
        other => panic!("{other:?}"),
    }
    let stats = redrive.backend().stats().await.unwrap();
    assert_eq!(stats.counts.values().sum::<u64>(), 1000);
}

#[tokio::test]
async fn every_job_of_a_batch_runs_the_middleware_of_its_handle() {
    let redrive = open().await;
    let urgent =
        redrive.clone().with_enqueue_middleware(|job: NewJob| Ok(NewJob { priority: Priority::MAX, ..job }));
    // One handle creates the enqueue and another one sends it: the middleware of the other one runs.
    let answers = urgent.enqueue_all([redrive.enqueue(Add { a: 1, b: 1 })]).await.unwrap();
    let tasks = urgent.enqueue_all([Add { a: 1, b: 1 }, Add { a: 2, b: 2 }]).await.unwrap();
    for answer in answers.iter().chain(&tasks) {
        assert_eq!(job(&redrive, answer.id()).await.priority, Priority::MAX);
    }
}
