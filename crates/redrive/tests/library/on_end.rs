//! The writes of an on_end closure are committed with the end of the job, however the job ends, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::{
    CancelResult, Context, EndedJob, Error, JobError, JobId, Policy, Redrive, Settings, SqliteTransaction,
    State, Task, TaskWorker, presets,
};
use redrive_core::store::{ClaimRequest, SettleResult, Settlement};
use redrive_core::{Kind, Verdict, WorkerId};
use redrive_testkit::servers::Postgres;
use serde::{Deserialize, Serialize};

use crate::fixture::{eventually, job, open, work};

/// How the attempts of a job end.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum AttemptEnd {
    Succeed,
    Fail,
    Hang,
    /// Succeeds once someone else has ended the job.
    SucceedLate,
}

#[derive(Debug, Serialize, Deserialize)]
struct Ship {
    order: i64,
    end_as: AttemptEnd,
}

impl Task for Ship {
    const KIND: &'static str = "ship";
    type Output = ();

    fn policy() -> Policy {
        presets::once().with_max_attempts(2).expect("two attempts are legal")
    }
}

/// A store with an application's table in it.
pub(crate) struct Fixture {
    pub(crate) redrive: Redrive,
    _server: Option<Postgres>,
}

const TABLE: &str = "CREATE TABLE ends (order_id BIGINT, state TEXT)";

impl Fixture {
    pub(crate) async fn sqlite() -> Self {
        let redrive = open().await;
        redrive.transact(|tx| Ok(tx.connection().execute_batch(TABLE)?)).await.unwrap();
        Self { redrive, _server: None }
    }

    pub(crate) async fn postgres() -> Self {
        let server = Postgres::start();
        server.run(TABLE);
        Self { redrive: Redrive::open(&server.address()).await.unwrap(), _server: Some(server) }
    }

    /// The orders that have ended, with their states.
    pub(crate) async fn ends(&self) -> Vec<(i64, String)> {
        const SQL: &str = "SELECT order_id, state FROM ends ORDER BY order_id";
        let read = |tx: &mut SqliteTransaction<'_, '_, '_>| {
            let mut statement = tx.connection().prepare(SQL)?;
            let rows = statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        };
        if self._server.is_none() {
            return self.redrive.transact(read).await.unwrap();
        }
        let read = self.redrive.transact_postgres(|tx| {
            Box::pin(async move {
                let rows = tx.client().query(SQL, &[]).await?;
                Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
            })
        });
        read.await.unwrap()
    }

    /// A worker whose on_end closure fails in its first `failures` calls, after its write.
    fn worker(&self, failures: u32) -> TaskWorker {
        let left = Arc::new(AtomicU32::new(failures));
        let fails = move || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        let fails_on_postgres = fails.clone();
        let short = Settings::default()
            .with_lease(Duration::from_millis(300))
            .with_reclaim_every(Duration::from_millis(50));
        self.redrive
            .worker()
            .settings(short)
            .on(handle)
            .on_end(move |tx: &mut SqliteTransaction<'_, '_, '_>, ship: &Ship, end: &EndedJob| {
                let sql = "INSERT INTO ends (order_id, state) VALUES (?1, ?2)";
                tx.connection().execute(sql, (ship.order, end.state.name()))?;
                fails().map_or(Ok(()), |_| Err(Error::refused("no room on the shelf")))
            })
            .on_end_postgres(move |tx, ship: &Ship, end| {
                let fails = fails_on_postgres();
                Box::pin(async move {
                    let sql = "INSERT INTO ends (order_id, state) VALUES ($1, $2)";
                    tx.client().execute(sql, &[&ship.order, &end.state.name()]).await?;
                    fails.map_or(Ok(()), |_| Err(Error::refused("no room on the shelf")))
                })
            })
    }

    async fn enqueue(&self, order: i64, end_as: AttemptEnd) -> JobId {
        self.redrive.enqueue(Ship { order, end_as }).await.unwrap().id()
    }

    /// Claims a job as a worker would, and never settles it.
    async fn claim_and_abandon(&self, lease: Duration) -> redrive::Job {
        let request = ClaimRequest {
            worker: WorkerId::new("dead").unwrap(),
            queues: Vec::new(),
            kinds: vec![Kind::new(Ship::KIND).unwrap()],
            limit: 1,
            lease,
        };
        self.redrive.backend().claim(request).await.unwrap().jobs.pop().expect("a job is due")
    }
}

async fn handle(ship: Ship, cx: Context) -> Result<(), JobError> {
    match ship.end_as {
        AttemptEnd::Succeed => Ok(()),
        AttemptEnd::Fail => Err(JobError::fail("the van broke down")),
        AttemptEnd::Hang => std::future::pending().await,
        AttemptEnd::SucceedLate => {
            let (redrive, id) = (cx.redrive(), cx.job.id);
            eventually("another worker ends the job", || async { job(redrive, id).await.state.is_final() })
                .await;
            Ok(())
        }
    }
}

pub(crate) fn ended(ends: &[(i64, &str)]) -> Vec<(i64, String)> {
    ends.iter().map(|(order, state)| (*order, (*state).to_owned())).collect()
}

async fn each_end_is_written_once(fixture: Fixture) {
    let mut jobs = Vec::new();
    for order in 0..40 {
        jobs.push(
            fixture.enqueue(order, if order % 2 == 0 { AttemptEnd::Succeed } else { AttemptEnd::Fail }).await,
        );
    }
    work(&fixture.redrive, fixture.worker(0), &jobs).await;
    let expected: Vec<_> = (0..40).map(|n| (n, if n % 2 == 0 { "succeeded" } else { "dead" })).collect();
    assert_eq!(fixture.ends().await, ended(&expected));
}

async fn a_crash_ends_a_job_like_any_failure(fixture: Fixture) {
    let id = fixture.enqueue(7, AttemptEnd::Succeed).await;
    for _ in 0..2 {
        fixture.claim_and_abandon(Duration::from_millis(1)).await;
        // The policy allows two claims: the worker that reclaims the second one ends the job.
        if job(&fixture.redrive, id).await.attempt == 1 {
            reclaim(&fixture).await;
        }
    }
    work(&fixture.redrive, fixture.worker(0), &[id]).await;
    assert_eq!(job(&fixture.redrive, id).await.state, State::Dead);
    assert_eq!(fixture.ends().await, ended(&[(7, "dead")]));
}

/// Reclaims an abandoned attempt, and settles it as a retry.
async fn reclaim(fixture: &Fixture) {
    let request = redrive_core::store::ReclaimRequest {
        kinds: vec![Kind::new(Ship::KIND).unwrap()],
        limit: 1,
        lease: Duration::from_secs(60),
        held: Vec::new(),
    };
    let backend = fixture.redrive.backend();
    let lost = loop {
        if let Some(lost) = backend.reclaim(request.clone()).await.unwrap().jobs.pop() {
            break lost;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    let retry = Settlement::new(lost.lease(), Verdict::Retry(Duration::ZERO));
    assert_eq!(backend.settle(vec![retry]).await.unwrap(), [SettleResult::Applied(State::Retrying)]);
}

async fn a_cancel_of_a_running_job_is_an_end(fixture: Fixture) {
    let id = fixture.enqueue(3, AttemptEnd::Hang).await;
    let cancel = async {
        eventually("the job runs", || async { job(&fixture.redrive, id).await.state == State::Running })
            .await;
        fixture.redrive.cancel(id).await.unwrap();
        std::future::pending::<()>().await
    };
    let jobs = [id];
    tokio::select! {
        _ = work(&fixture.redrive, fixture.worker(0), &jobs) => {}
        () = cancel => {}
    }
    assert_eq!(fixture.ends().await, ended(&[(3, "cancelled")]));
}

async fn a_closure_that_fails_writes_nothing_and_affects_no_other_job(fixture: Fixture) {
    let mut jobs = Vec::new();
    for order in 0..10 {
        jobs.push(fixture.enqueue(order, AttemptEnd::Succeed).await);
    }
    // Each failure rolls its whole batch back: jobs and rows still agree.
    work(&fixture.redrive, fixture.worker(3), &jobs).await;
    let states: Vec<State> = {
        let mut states = Vec::new();
        for id in &jobs {
            states.push(job(&fixture.redrive, *id).await.state);
        }
        states
    };
    let expected: Vec<(i64, &str)> = states.iter().enumerate().map(|(n, s)| (n as i64, s.name())).collect();
    assert_eq!(fixture.ends().await, ended(&expected));
}

async fn a_lost_lease_writes_nothing(fixture: Fixture) {
    let id = fixture.enqueue(5, AttemptEnd::SucceedLate).await;
    // No heartbeat is sent meanwhile, so only the settlement can detect the lost lease.
    let worker = fixture.worker(0).settings(Settings::default());
    let steal = async {
        eventually("the job runs", || async { job(&fixture.redrive, id).await.state == State::Running })
            .await;
        let end = Settlement::new(job(&fixture.redrive, id).await.lease(), Verdict::Complete(None));
        fixture.redrive.backend().settle(vec![end]).await.unwrap();
    };
    let summary = worker.run_until(steal).await.unwrap();
    assert_eq!((summary.lease_lost, fixture.ends().await), (1, ended(&[])), "{summary:?}");
}

async fn a_caller_writes_the_cancel_of_a_waiting_job_itself(fixture: Fixture) {
    let id = fixture.enqueue(9, AttemptEnd::Succeed).await;
    for fails in [true, false] {
        let wanted =
            move |answer: CancelResult| if fails { Err(Error::refused("not so")) } else { Ok(answer) };
        let cancelled = if fixture._server.is_none() {
            let cancel = fixture.redrive.transact(move |tx| {
                tx.connection().execute("INSERT INTO ends VALUES (9, 'cancelled')", ())?;
                wanted(tx.cancel(id)?)
            });
            cancel.await
        } else {
            let cancel = fixture.redrive.transact_postgres(move |tx| {
                Box::pin(async move {
                    tx.client().execute("INSERT INTO ends VALUES (9, 'cancelled')", &[]).await?;
                    wanted(tx.cancel(id).await?)
                })
            });
            cancel.await
        };
        let (state, ends) = (job(&fixture.redrive, id).await.state, fixture.ends().await);
        match cancelled {
            Err(_) => assert_eq!((state, ends), (State::Pending, ended(&[])), "a rollback undoes the cancel"),
            Ok(answer) => {
                assert_eq!((answer, state), (CancelResult::Done, State::Cancelled));
                assert_eq!(ends, ended(&[(9, "cancelled")]));
            }
        }
    }
}

macro_rules! on_both_stores {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Fixture::sqlite().await).await; })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Fixture::postgres().await).await; })*
        }
    };
}

pub(crate) use on_both_stores;

on_both_stores!(
    each_end_is_written_once,
    a_crash_ends_a_job_like_any_failure,
    a_cancel_of_a_running_job_is_an_end,
    a_closure_that_fails_writes_nothing_and_affects_no_other_job,
    a_lost_lease_writes_nothing,
    a_caller_writes_the_cancel_of_a_waiting_job_itself,
);

#[tokio::test]
async fn an_on_end_closure_that_would_never_be_called_is_rejected() {
    let fixture = Fixture::sqlite().await;
    let worker = fixture
        .redrive
        .worker()
        .on_end(|_: &mut SqliteTransaction<'_, '_, '_>, _: &Ship, _: &EndedJob| Ok(()));
    let error = worker.run_until(std::future::ready(())).await.unwrap_err().to_string();
    assert!(error.contains("needs a handler"), "{error}");
    let for_another_store =
        fixture.redrive.worker().on(handle).on_end_postgres(|_, _: &Ship, _| Box::pin(async { Ok(()) }));
    let error = for_another_store.run_until(std::future::ready(())).await.unwrap_err().to_string();
    assert!(error.contains("another store"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_transaction_on_postgres_is_an_error() {
    let fixture = Fixture::postgres().await;
    let aborted = fixture.redrive.transact_postgres(|tx| {
        Box::pin(async move {
            tx.client().execute("INSERT INTO ends VALUES (1, 'x')", &[]).await?;
            let _ = tx.client().execute("SELECT 1 / 0", &[]).await;
            Ok(())
        })
    });
    assert!(aborted.await.is_err());
    assert_eq!(fixture.ends().await, ended(&[]));
}
