//! Panics in transactions of the application.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use redrive::{Context, Error, JobId, Redrive, State};

use super::super::on_end::{Fixture, ended};
use crate::fixture::{Add, job, open, work};

/// Writes a row, enqueues a job, and panics if asked to.
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
    let fixture = Fixture::sqlite().await;
    let error = order(&fixture.redrive, 7, true).await.unwrap_err();
    assert!(matches!(error, Error::Panicked(_)), "{error:?}");
    assert_eq!(error.to_string(), "the closure passed to transact panicked: no stock for order 7");
    assert_eq!(fixture.ends().await, ended(&[]));
    assert_eq!(fixture.redrive.backend().stats().await.unwrap().in_state(State::Pending), 0);
    let id = order(&fixture.redrive, 8, false).await.unwrap();
    assert_eq!(fixture.ends().await, ended(&[(8, "ordered")]));
    let worker = fixture.redrive.worker().on(|add: Add, _: Context| async move { Ok(add.a + add.b) });
    work(&fixture.redrive, worker, &[id]).await;
}

#[tokio::test]
async fn a_closure_that_panics_is_called_once_and_affects_no_other_write() {
    let fixture = Fixture::sqlite().await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let never = fixture.redrive.transact(move |_| -> Result<(), Error> {
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("never")
    });
    assert!(never.await.is_err());
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let mut orders = tokio::task::JoinSet::new();
    for n in 0..40 {
        let redrive = fixture.redrive.clone();
        orders.spawn(async move { order(&redrive, n, n % 2 == 0).await.is_ok() });
    }
    let succeeded = orders.join_all().await.into_iter().filter(|succeeded| *succeeded).count();
    let jobs = fixture.redrive.backend().stats().await.unwrap().in_state(State::Pending);
    assert_eq!((succeeded, fixture.ends().await.len(), jobs), (20, 20, 20));
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
    assert_eq!(kept.await.unwrap(), 7, "the transaction is committed");
    // The caller is dropped before the value is returned, so the writer drops the value.
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let mut caller = Box::pin(redrive.transact(move |_| {
        receiver.recv().expect("the test sends a message after it has dropped the caller");
        Ok(Bomb)
    }));
    assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(caller.as_mut().poll(cx).is_pending())).await);
    drop(caller);
    sender.send(()).expect("the writer waits for the message");
    let id = redrive.enqueue(Add { a: 1, b: 2 }).await.expect("the store is open").id();
    assert_eq!(job(&redrive, id).await.state, State::Pending);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_transact_postgres_rolls_back_and_the_next_transaction_works() {
    let fixture = Fixture::postgres().await;
    let add = fixture.redrive.enqueue(Add { a: 1, b: 2 }).prepare().await.unwrap();
    let id = add.id();
    let before_the_future = fixture.redrive.transact_postgres::<(), _>(|_| panic!("at once"));
    let error = before_the_future.await.unwrap_err();
    assert_eq!(error.to_string(), "the closure passed to transact_postgres panicked: at once");
    for panics in [true, false] {
        let add = add.clone();
        let ordered = fixture.redrive.transact_postgres(move |tx| {
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
                assert_eq!(
                    (fixture.ends().await, fixture.redrive.get(id).await.unwrap()),
                    (ended(&[]), None)
                );
            }
            Ok(()) => assert_eq!(fixture.ends().await, ended(&[(7, "ordered")])),
        }
    }
    assert_eq!(job(&fixture.redrive, id).await.state, State::Pending);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_on_postgres_that_panics_when_it_times_out_is_an_error() {
    use redrive::{PostgresOptions, PostgresStore};
    let server = redrive_testkit::servers::Postgres::start();
    let options = PostgresOptions::default().with_call_timeout(std::time::Duration::from_millis(500));
    let store = PostgresStore::open(&server.address(), options).await.unwrap();
    let redrive = Redrive::on_postgres(store);
    let hangs = redrive.transact_postgres::<(), _>(|_| {
        Box::pin(async {
            let _bomb = Bomb;
            std::future::pending().await
        })
    });
    let error = hangs.await.unwrap_err();
    assert!(matches!(&error, Error::Store(error) if error.is_transient()), "{error:?}");
    redrive.enqueue(Add { a: 1, b: 2 }).await.expect("the store continues");
}
