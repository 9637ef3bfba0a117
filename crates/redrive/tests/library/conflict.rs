//! A key that belongs to a different task is an error, in every kind of enqueue.

use std::time::Duration;

use redrive::{Conflict, EnqueuedJob, Error, JobId, Redrive, Schedule};
use redrive_store_sqlite::{Options, SqliteStore};
use redrive_testkit::ManualClock;
use redrive_testkit::servers::{Postgres, Redis};
use tokio_postgres::NoTls;

use crate::fixture::{Add, open};

const FIRST: Add = Add { a: 1, b: 1 };
const OTHER: Add = Add { a: 2, b: 2 };

fn conflict(key: &str, existing: JobId) -> Conflict {
    Conflict { key: key.to_owned(), existing }
}

fn assert_conflict(answer: Result<EnqueuedJob, Error>, key: &str, existing: JobId) {
    match answer {
        Err(Error::Conflict(found)) => assert_eq!(found, conflict(key, existing)),
        other => panic!("{other:?} is not a conflict"),
    }
}

async fn jobs(redrive: &Redrive) -> u64 {
    redrive.backend().stats().await.unwrap().counts.values().sum()
}

/// Enqueues a task, the same task again, and another task with its key: each alone, and in a batch.
async fn a_conflict_is_an_error(redrive: &Redrive) {
    let first = redrive.enqueue(FIRST).key("k").await.unwrap();
    assert!(first.is_new());
    let again = redrive.enqueue(FIRST).key("k").await.unwrap();
    assert_eq!(again, EnqueuedJob::Existing(first.id()));
    assert_conflict(redrive.enqueue(OTHER).key("k").await, "k", first.id());
    assert_conflict(redrive.enqueue(FIRST).priority(9).key("k").await, "k", first.id());
    assert_eq!(jobs(redrive).await, 1, "nothing was enqueued");

    let batch = [
        redrive.enqueue(OTHER).key("k"),
        redrive.enqueue(OTHER).key("new"),
        redrive.enqueue(FIRST).key("k"),
        redrive.enqueue(FIRST).key("new"),
    ];
    let error = redrive.enqueue_all(batch).await.unwrap_err();
    let Error::BatchConflict(batch) = error else { panic!("{error:?}") };
    let new = batch.results[1].as_ref().unwrap().id();
    let conflicts: Vec<_> = batch.conflicts().map(|(position, found)| (position, found.clone())).collect();
    assert_eq!(conflicts, [(0, conflict("k", first.id())), (3, conflict("new", new))]);
    assert_eq!(batch.results[1], Ok(EnqueuedJob::Created(new)));
    assert_eq!(batch.results[2], Ok(EnqueuedJob::Existing(first.id())));
    assert_eq!(jobs(redrive).await, 2, "all others were enqueued");
}

#[tokio::test]
async fn a_conflict_is_an_error_on_sqlite() {
    a_conflict_is_an_error(&open().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_is_an_error_on_postgres() {
    let server = Postgres::start_with(&[("fsync", "off")]);
    a_conflict_is_an_error(&Redrive::open(&server.address()).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_is_an_error_on_redis() {
    let server = Redis::start();
    a_conflict_is_an_error(&Redrive::open(&server.address()).await.unwrap()).await;
}

#[tokio::test]
async fn the_message_names_the_key_and_the_job_and_says_what_to_do() {
    let redrive = open().await;
    let first = redrive.enqueue(FIRST).key("order-7").await.unwrap().id();
    let single = redrive.enqueue(OTHER).key("order-7").await.unwrap_err().to_string();
    assert_eq!(
        single,
        format!(
            "the idempotency key \"order-7\" belongs to job {first}, which was enqueued with a different task, queue, \
             priority or policy; use another key, or send exactly the same request"
        )
    );
    let batch = [redrive.enqueue(FIRST), redrive.enqueue(OTHER).key("order-7")];
    let batch = redrive.enqueue_all(batch).await.unwrap_err().to_string();
    let opening = "1 of 2 tasks were not enqueued, and all others were; the first conflict is task 1: ";
    assert_eq!(batch, format!("{opening}{single}"));
}

#[tokio::test]
async fn a_conflict_does_not_stop_later_batches() {
    let redrive = open().await;
    redrive.enqueue(OTHER).key("500").await.unwrap();
    let tasks = (0..2500).map(|a| redrive.enqueue(Add { a, b: 0 }).key(&a.to_string()));
    let Err(Error::BatchConflict(batch)) = redrive.enqueue_all(tasks).await else { panic!("no conflict") };
    assert_eq!(batch.results.len(), 2500);
    assert_eq!(batch.conflicts().map(|(position, _)| position).collect::<Vec<_>>(), [500]);
    assert_eq!(jobs(&redrive).await, 2500);
}

#[tokio::test]
async fn a_conflict_rolls_a_transaction_back_unless_it_is_handled_on_sqlite() {
    let redrive = open().await;
    let first = redrive.enqueue(FIRST).key("k").await.unwrap().id();
    let another = redrive.enqueue(OTHER).prepare().await.unwrap();
    let conflicting = redrive.enqueue(OTHER).key("k").prepare().await.unwrap();
    let (one, two) = (another.clone(), conflicting.clone());
    let rolled_back = redrive.transact(move |tx| {
        tx.enqueue(&one)?;
        tx.enqueue(&two)
    });
    assert_conflict(rolled_back.await, "k", first);
    assert_eq!(jobs(&redrive).await, 1);
    let handled = redrive.transact(move |tx| {
        tx.enqueue(&conflicting).unwrap_err();
        tx.enqueue(&another)
    });
    assert!(handled.await.unwrap().is_new());
    assert_eq!(jobs(&redrive).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_rolls_a_transaction_back_unless_it_is_handled_on_postgres() {
    let server = Postgres::start_with(&[("fsync", "off")]);
    let redrive = Redrive::open(&server.address()).await.unwrap();
    let first = redrive.enqueue(FIRST).key("k").await.unwrap().id();
    let another = redrive.enqueue(OTHER).prepare().await.unwrap();
    let conflicting = redrive.enqueue(OTHER).key("k").prepare().await.unwrap();
    let rolled_back = redrive.transact_postgres(move |tx| {
        Box::pin(async move {
            tx.enqueue(&another).await?;
            tx.enqueue(&conflicting).await
        })
    });
    assert_conflict(rolled_back.await, "k", first);
    assert_eq!(jobs(&redrive).await, 1);

    let (mut client, connection) = tokio_postgres::connect(&server.address(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut transaction = client.transaction().await.unwrap();
    assert_conflict(redrive.enqueue(OTHER).key("k").enqueue_in(&mut transaction).await, "k", first);
    redrive.enqueue(OTHER).enqueue_in(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(jobs(&redrive).await, 2, "the transaction continues after a conflict");
}

#[tokio::test]
async fn a_run_of_a_schedule_at_the_instant_of_another_task_is_a_conflict() {
    let store = SqliteStore::open_in_memory_with(Options::default().with_clock(ManualClock::new())).unwrap();
    let redrive = Redrive::on_sqlite(store);
    let hourly = Schedule::every(Duration::from_secs(3600)).unwrap();
    redrive.schedule("report", hourly.clone(), FIRST).await.unwrap();
    let first = redrive.run_schedule_now("report").await.unwrap().unwrap();
    assert_eq!(redrive.run_schedule_now("report").await.unwrap(), Some(first), "the same task again");
    redrive.schedule("report", hourly, OTHER).await.unwrap();
    match redrive.run_schedule_now("report").await {
        Err(Error::Conflict(conflict)) => assert_eq!(conflict.existing, first),
        other => panic!("{other:?} is not a conflict"),
    }
}
