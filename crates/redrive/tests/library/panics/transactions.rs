//! Transactions of the application's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use redrive::{Context, Error, JobId, Redrive, State};

use super::super::ending::{Stage, ended};
use crate::stage::{Add, job, open, work};

/// Writes a row, enqueues a job and panics if it is told to.
async fn order(redrive: &Redrive, order: i64, panics: bool) -> Result<JobId, Error> {
    let add = redrive.enqueue(Add { a: 1, b: 2 }).prepare().await?;
    let id = add.id();
    let ordered = redrive.transact(move |tx| {
        tx.connection().execute("INSERT INTO ends VALUES (?1, 'ordered')", [order])?;
        tx.enqueue(&add)?;
        assert!(!panics, "no stock for order {order}");
        Ok(())
    });
    ordered.await.map(|()| id)
}

#[tokio::test]
async fn a_panic_in_transact_rolls_back_and_the_next_write_works() {
    let stage = Stage::sqlite().await;
    let error = order(&stage.redrive, 7, true).await.unwrap_err();
    assert!(matches!(error, Error::Panicked(_)), "{error:?}");
    assert_eq!(error.to_string(), "the closure passed to transact panicked: no stock for order 7");
    assert_eq!(stage.ends().await, ended(&[]));
    assert_eq!(stage.redrive.backend().stats().await.unwrap().in_state(State::Pending), 0);
    let id = order(&stage.redrive, 8, false).await.unwrap();
    assert_eq!(stage.ends().await, ended(&[(8, "ordered")]));
    let worker = stage.redrive.worker().on(|add: Add, _: Context| async move { Ok(add.a + add.b) });
    work(&stage.redrive, worker, &[id]).await;
}

#[tokio::test]
async fn a_closure_that_panics_is_called_once_and_takes_no_other_write_with_it() {
    let stage = Stage::sqlite().await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let never = stage.redrive.transact(move |_| -> Result<(), Error> {
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("never")
    });
    assert!(never.await.is_err());
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let mut orders = tokio::task::JoinSet::new();
    for n in 0..40 {
        let redrive = stage.redrive.clone();
        orders.spawn(async move { order(&redrive, n, n % 2 == 0).await.is_ok() });
    }
    let well = orders.join_all().await.into_iter().filter(|well| *well).count();
    let jobs = stage.redrive.backend().stats().await.unwrap().in_state(State::Pending);
    assert_eq!((well, stage.ends().await.len(), jobs), (20, 20, 20));
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[tokio::test]
async fn a_closure_and_a_value_that_panic_when_dropped_leave_the_store_open() {
    let redrive = open().await;
    let bomb = Bomb;
    let kept = redrive.transact(move |_| {
        let _ = &bomb;
        Ok(7)
    });
    assert_eq!(kept.await.unwrap(), 7, "it is committed");
    // Nobody is there any more to take the value: the writer drops it.
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let mut gone = Box::pin(redrive.transact(move |_| {
        gate.recv().expect("the caller opens the gate once it has gone");
        Ok(Bomb)
    }));
    assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(gone.as_mut().poll(cx).is_pending())).await);
    drop(gone);
    go.send(()).expect("the writer waits at the gate");
    let id = redrive.enqueue(Add { a: 1, b: 2 }).await.expect("the store is open").id();
    assert_eq!(job(&redrive, id).await.state, State::Pending);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_transact_postgres_rolls_back_and_the_next_transaction_works() {
    let stage = Stage::postgres().await;
    let add = stage.redrive.enqueue(Add { a: 1, b: 2 }).prepare().await.unwrap();
    let id = add.id();
    let before_the_future = stage.redrive.transact_postgres::<(), _>(|_| panic!("at once"));
    let error = before_the_future.await.unwrap_err();
    assert_eq!(error.to_string(), "the closure passed to transact_postgres panicked: at once");
    for panics in [true, false] {
        let add = add.clone();
        let ordered = stage.redrive.transact_postgres(move |tx| {
            Box::pin(async move {
                tx.client().execute("INSERT INTO ends VALUES (7, 'ordered')", &[]).await?;
                tx.enqueue(&add).await?;
                assert!(!panics, "no stock");
                Ok(())
            })
        });
        match ordered.await {
            Err(error) => {
                assert!(matches!(error, Error::Panicked(_)), "{error:?}");
                assert_eq!(error.to_string(), "the closure passed to transact_postgres panicked: no stock");
                assert_eq!((stage.ends().await, stage.redrive.get(id).await.unwrap()), (ended(&[]), None));
            }
            Ok(()) => assert_eq!(stage.ends().await, ended(&[(7, "ordered")])),
        }
    }
    assert_eq!(job(&stage.redrive, id).await.state, State::Pending);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_on_postgres_that_panics_when_it_is_given_up_is_an_error() {
    use redrive::{PostgresOptions, PostgresStore};
    let server = redrive_testkit::servers::Postgres::start();
    let options = PostgresOptions::default().with_patience(std::time::Duration::from_millis(500));
    let store = PostgresStore::open(&server.address(), options).await.unwrap();
    let redrive = Redrive::on_postgres(store);
    let hangs = redrive.transact_postgres::<(), _>(|_| {
        Box::pin(async {
            let _bomb = Bomb;
            std::future::pending().await
        })
    });
    let error = hangs.await.unwrap_err();
    assert!(matches!(&error, Error::Store(error) if error.may_pass()), "{error:?}");
    redrive.enqueue(Add { a: 1, b: 2 }).await.expect("the store continues");
}
