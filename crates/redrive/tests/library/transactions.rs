//! The application's writes and its enqueues are committed together, or not at all.

use redrive::{Context, EnqueuedJob, Error, Redrive, State};

use crate::fixture::{Add, job, open, work};

async fn with_table() -> Redrive {
    let redrive = open().await;
    let made = redrive.transact(|tx| {
        tx.connection().execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)").map_err(Error::refused)
    });
    made.await.unwrap();
    redrive
}

async fn orders(redrive: &Redrive) -> i64 {
    let counted = redrive.transact(|tx| {
        let count = tx.connection().query_row("SELECT count(*) FROM orders", (), |row| row.get(0));
        count.map_err(Error::refused)
    });
    counted.await.unwrap()
}

/// Adds an order and a job, and then fails if `fails` is set.
async fn order(redrive: &Redrive, id: i64, fails: bool) -> Result<EnqueuedJob, Error> {
    let add = redrive.enqueue(Add { a: 1, b: 2 }).queue("orders").prepare().await?;
    let ordered = redrive.transact(move |tx| {
        tx.connection().execute("INSERT INTO orders (id) VALUES (?1)", [id]).map_err(Error::refused)?;
        let enqueued = tx.enqueue(&add)?;
        if fails { Err(Error::refused("no stock")) } else { Ok(enqueued) }
    });
    ordered.await
}

#[tokio::test]
async fn the_order_and_the_job_are_committed_together_or_not_at_all() {
    let redrive = with_table().await;
    let error = order(&redrive, 1, true).await.unwrap_err();
    assert!(error.to_string().contains("no stock"), "{error}");
    assert_eq!((orders(&redrive).await, redrive.backend().stats().await.unwrap().counts.len()), (0, 0));
    let id = order(&redrive, 1, false).await.unwrap().id();
    assert_eq!(orders(&redrive).await, 1);
    let worker = redrive.worker().on(|add: Add, _: Context| async move { Ok(add.a + add.b) });
    work(&redrive, worker, &[id]).await;
    assert_eq!(job(&redrive, id).await.state, State::Succeeded);
}

#[tokio::test]
async fn a_transaction_that_fails_does_not_affect_others() {
    let redrive = with_table().await;
    let mut calls = tokio::task::JoinSet::new();
    for id in 0..40 {
        let redrive = redrive.clone();
        calls.spawn(async move { order(&redrive, id, id % 2 == 0).await.is_ok() });
    }
    let succeeded = calls.join_all().await.into_iter().filter(|succeeded| *succeeded).count();
    let stats = redrive.backend().stats().await.unwrap();
    assert_eq!((succeeded, orders(&redrive).await, stats.in_state(State::Pending)), (20, 20, 20));
}
