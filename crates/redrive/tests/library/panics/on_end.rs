//! Panics in on_end closures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::{
    Context, EndedJob, JobError, JobId, Policy, Reason, Settings, SqliteTransaction, State, Task, TaskWorker,
};
use serde::{Deserialize, Serialize};

use super::super::on_end::{Fixture, ended, on_both_stores};
use super::{failures, panicked, quick_policy, work_beside};
use crate::fixture::{eventually, job};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Ship {
    order: i64,
    hangs: bool,
}

impl Task for Ship {
    const KIND: &'static str = "ship";
    type Output = ();

    fn policy() -> Policy {
        quick_policy()
    }
}

/// A worker whose on_end closure panics in its first `panics` calls, after its write.
fn worker(fixture: &Fixture, panics: u32) -> TaskWorker {
    let left = Arc::new(AtomicU32::new(panics));
    let fails = move || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    let fails_on_postgres = fails.clone();
    let handle = |ship: Ship, _: Context| async move {
        if ship.hangs {
            std::future::pending::<()>().await;
        }
        Ok::<_, JobError>(())
    };
    fixture
        .redrive
        .worker()
        // A cancel reaches the handler with the next heartbeat.
        .settings(Settings::default().with_lease(Duration::from_secs(3)))
        .on(handle)
        .on_end(move |tx: &mut SqliteTransaction<'_, '_, '_>, ship: &Ship, end: &EndedJob| {
            let sql = "INSERT INTO ends (order_id, state) VALUES (?1, ?2)";
            tx.connection().execute(sql, (ship.order, end.state.name()))?;
            assert!(fails().is_err(), "no room on the shelf");
            Ok(())
        })
        .on_end_postgres(move |tx, ship: &Ship, end| {
            let fails = fails_on_postgres();
            // Panics before the future is created, or inside it.
            assert!(fails.is_err() || ship.order % 2 == 0, "no room on the shelf");
            Box::pin(async move {
                let sql = "INSERT INTO ends (order_id, state) VALUES ($1, $2)";
                tx.client().execute(sql, &[&ship.order, &end.state.name()]).await?;
                assert!(fails.is_err(), "no room on the shelf");
                Ok(())
            })
        })
}

async fn enqueue(fixture: &Fixture, order: i64, hangs: bool) -> JobId {
    fixture.redrive.enqueue(Ship { order, hangs }).await.unwrap().id()
}

const UNWRITTEN: &str = "the end of the job could not be written: the on_end closure of a ship job panicked: no room on the shelf";

async fn a_panic_in_an_on_end_closure_is_a_failed_attempt(fixture: Fixture) {
    for order in [6, 7] {
        let id = enqueue(&fixture, order, false).await;
        work_beside(&fixture.redrive, worker(&fixture, 1), &[id]).await;
        let job = job(&fixture.redrive, id).await;
        assert_eq!((job.state, job.attempt), (State::Succeeded, 2));
        assert_eq!(failures(&fixture.redrive, id).await, [panicked(UNWRITTEN)]);
    }
    assert_eq!(
        fixture.ends().await,
        ended(&[(6, "succeeded"), (7, "succeeded")]),
        "each closure is called once"
    );
}

async fn a_closure_that_always_panics_leads_to_a_dead_job_with_its_error(fixture: Fixture) {
    let id = enqueue(&fixture, 6, false).await;
    work_beside(&fixture.redrive, worker(&fixture, u32::MAX), &[id]).await;
    let job = job(&fixture.redrive, id).await;
    assert_eq!((job.state, job.reason, job.attempt), (State::Dead, Some(Reason::AttemptsExhausted), 3));
    let last = format!("{UNWRITTEN}; the job ended without this write");
    assert_eq!(job.last_error.as_deref(), Some(last.as_str()));
    let log = [panicked(UNWRITTEN), panicked(UNWRITTEN), panicked(&last)];
    assert_eq!(failures(&fixture.redrive, id).await, log);
    assert_eq!(fixture.ends().await, ended(&[]));
}

async fn a_panic_in_the_closure_of_a_cancelled_job_does_not_keep_it_running(fixture: Fixture) {
    let id = enqueue(&fixture, 6, true).await;
    let cancel = async {
        eventually("the job runs", || async { job(&fixture.redrive, id).await.state == State::Running })
            .await;
        fixture.redrive.cancel(id).await.unwrap();
        std::future::pending::<()>().await
    };
    let jobs = [id];
    tokio::select! {
        () = work_beside(&fixture.redrive, worker(&fixture, u32::MAX), &jobs) => {}
        () = cancel => {}
    }
    let job = job(&fixture.redrive, id).await;
    assert_eq!(job.state, State::Cancelled);
    let last = format!("{UNWRITTEN}; the job ended without this write");
    assert_eq!((job.last_error.as_deref(), fixture.ends().await), (Some(last.as_str()), ended(&[])));
}

on_both_stores!(
    a_panic_in_an_on_end_closure_is_a_failed_attempt,
    a_closure_that_always_panics_leads_to_a_dead_job_with_its_error,
    a_panic_in_the_closure_of_a_cancelled_job_does_not_keep_it_running,
);
