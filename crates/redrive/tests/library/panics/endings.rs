//! What is written with the end of a job.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::{
    Context, End, JobError, JobId, Policy, Reason, Settings, SqliteTransaction, State, Task, TaskWorker,
};
use serde::{Deserialize, Serialize};

use super::super::ending::{Stage, ended, on_both_stores};
use super::{failures, panicked, quick, work_beside};
use crate::stage::job;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Ship {
    order: i64,
    hangs: bool,
}

impl Task for Ship {
    const KIND: &'static str = "ship";
    type Output = ();

    fn policy() -> Policy {
        quick()
    }
}

/// A worker whose first `panics` endings panic after their write.
fn worker(stage: &Stage, panics: u32) -> TaskWorker {
    let left = Arc::new(AtomicU32::new(panics));
    let fails = move || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    let also = fails.clone();
    let handle = |ship: Ship, _: Context| async move {
        if ship.hangs {
            std::future::pending::<()>().await;
        }
        Ok::<_, JobError>(())
    };
    stage
        .redrive
        .worker()
        // A cancel reaches the handler with the next heartbeat.
        .settings(Settings::default().with_lease(Duration::from_secs(3)))
        .on(handle)
        .ending(move |tx: &mut SqliteTransaction<'_, '_, '_>, ship: &Ship, end: &End| {
            let sql = "INSERT INTO ends (order_id, state) VALUES (?1, ?2)";
            tx.connection().execute(sql, (ship.order, end.state.name()))?;
            assert!(fails().is_err(), "no room on the shelf");
            Ok(())
        })
        .ending_postgres(move |tx, ship: &Ship, end| {
            let fails = also();
            // Before the future is made, and within it.
            assert!(fails.is_err() || ship.order % 2 == 0, "no room on the shelf");
            Box::pin(async move {
                let sql = "INSERT INTO ends (order_id, state) VALUES ($1, $2)";
                tx.client().execute(sql, &[&ship.order, &end.state.name()]).await?;
                assert!(fails.is_err(), "no room on the shelf");
                Ok(())
            })
        })
}

async fn enqueue(stage: &Stage, order: i64, hangs: bool) -> JobId {
    stage.redrive.enqueue(Ship { order, hangs }).await.unwrap().id()
}

const UNWRITTEN: &str =
    "the end of the job could not be written: the ending of a ship job panicked: no room on the shelf";

async fn a_panic_in_an_ending_is_a_failed_attempt(stage: Stage) {
    for order in [6, 7] {
        let id = enqueue(&stage, order, false).await;
        work_beside(&stage.redrive, worker(&stage, 1), &[id]).await;
        let job = job(&stage.redrive, id).await;
        assert_eq!((job.state, job.attempt), (State::Succeeded, 2));
        assert_eq!(failures(&stage.redrive, id).await, [panicked(UNWRITTEN)]);
    }
    assert_eq!(stage.ends().await, ended(&[(6, "succeeded"), (7, "succeeded")]), "each once");
}

async fn an_ending_that_always_panics_leaves_a_dead_job_that_says_so(stage: Stage) {
    let id = enqueue(&stage, 6, false).await;
    work_beside(&stage.redrive, worker(&stage, u32::MAX), &[id]).await;
    let job = job(&stage.redrive, id).await;
    assert_eq!((job.state, job.reason, job.attempt), (State::Dead, Some(Reason::AttemptsExhausted), 3));
    let last = format!("{UNWRITTEN}; the job ended without it");
    assert_eq!(job.last_error.as_deref(), Some(last.as_str()));
    let log = [panicked(UNWRITTEN), panicked(UNWRITTEN), panicked(&last)];
    assert_eq!(failures(&stage.redrive, id).await, log);
    assert_eq!(stage.ends().await, ended(&[]));
}

async fn a_panic_in_the_ending_of_a_cancelled_job_does_not_keep_it_running(stage: Stage) {
    let id = enqueue(&stage, 6, true).await;
    let cancel = async {
        while job(&stage.redrive, id).await.state != State::Running {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stage.redrive.cancel(id).await.unwrap();
        std::future::pending::<()>().await
    };
    let jobs = [id];
    tokio::select! {
        () = work_beside(&stage.redrive, worker(&stage, u32::MAX), &jobs) => {}
        () = cancel => {}
    }
    let job = job(&stage.redrive, id).await;
    assert_eq!(job.state, State::Cancelled);
    let last = format!("{UNWRITTEN}; the job ended without it");
    assert_eq!((job.last_error.as_deref(), stage.ends().await), (Some(last.as_str()), ended(&[])));
}

on_both_stores!(
    a_panic_in_an_ending_is_a_failed_attempt,
    an_ending_that_always_panics_leaves_a_dead_job_that_says_so,
    a_panic_in_the_ending_of_a_cancelled_job_does_not_keep_it_running,
);
