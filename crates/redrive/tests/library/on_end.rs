//! What is written with the end of a job is there with it, on every way to an end, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redrive::{
    Cancelled, Context, End, Error, JobError, JobId, Policy, Redrive, Settings, SqliteTransaction, State,
    Task, TaskWorker, presets,
};
use redrive_core::store::{ClaimRequest, Settled, Settlement};
use redrive_core::{Kind, Verdict, WorkerId};
use redrive_testkit::servers::Postgres;
use serde::{Deserialize, Serialize};

use crate::stage::{job, open, work};

/// What an attempt of it is to come to.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Way {
    Succeed,
    Fail,
    Hang,
    /// Succeeds once someone else has ended the job.
    ComeLate,
}

#[derive(Debug, Serialize, Deserialize)]
struct Ship {
    order: i64,
    way: Way,
}

impl Task for Ship {
    const KIND: &'static str = "ship";
    type Output = ();

    fn policy() -> Policy {
        presets::once().with_max_attempts(2).expect("two attempts are legal")
    }
}

/// A store with an application's table in it.
pub(crate) struct Stage {
    pub(crate) redrive: Redrive,
    _server: Option<Postgres>,
}

const TABLE: &str = "CREATE TABLE ends (order_id BIGINT, state TEXT)";

impl Stage {
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

    /// The orders that have ended, with how.
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

    /// A worker whose first `failures` endings fail after their write.
    fn worker(&self, failures: u32) -> TaskWorker {
        let left = Arc::new(AtomicU32::new(failures));
        let fails = move || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        let also = fails.clone();
        let short = Settings::default()
            .with_lease(Duration::from_millis(300))
            .with_reclaim_every(Duration::from_millis(50));
        self.redrive
            .worker()
            .settings(short)
            .on(handle)
            .ending(move |tx: &mut SqliteTransaction<'_, '_, '_>, ship: &Ship, end: &End| {
                let sql = "INSERT INTO ends (order_id, state) VALUES (?1, ?2)";
                tx.connection().execute(sql, (ship.order, end.state.name()))?;
                fails().map_or(Ok(()), |_| Err(Error::refused("no room on the shelf")))
            })
            .ending_postgres(move |tx, ship: &Ship, end| {
                let fails = also();
                Box::pin(async move {
                    let sql = "INSERT INTO ends (order_id, state) VALUES ($1, $2)";
                    tx.client().execute(sql, &[&ship.order, &end.state.name()]).await?;
                    fails.map_or(Ok(()), |_| Err(Error::refused("no room on the shelf")))
                })
            })
    }

    async fn enqueue(&self, order: i64, way: Way) -> JobId {
        self.redrive.enqueue(Ship { order, way }).await.unwrap().id()
    }

    /// Takes a job as a worker would, and falls silent.
    async fn claim_and_die(&self, lease: Duration) -> redrive::Job {
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
    match ship.way {
        Way::Succeed => Ok(()),
        Way::Fail => Err(JobError::fail("the van broke down")),
        Way::Hang => std::future::pending().await,
        Way::ComeLate => {
            while !job(cx.redrive(), cx.job.id).await.state.is_final() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok(())
        }
    }
}

pub(crate) fn ended(ends: &[(i64, &str)]) -> Vec<(i64, String)> {
    ends.iter().map(|(order, state)| (*order, (*state).to_owned())).collect()
}

async fn each_end_is_written_once(stage: Stage) {
    let mut jobs = Vec::new();
    for order in 0..40 {
        jobs.push(stage.enqueue(order, if order % 2 == 0 { Way::Succeed } else { Way::Fail }).await);
    }
    work(&stage.redrive, stage.worker(0), &jobs).await;
    let expected: Vec<_> = (0..40).map(|n| (n, if n % 2 == 0 { "succeeded" } else { "dead" })).collect();
    assert_eq!(stage.ends().await, ended(&expected));
}

async fn a_crash_ends_it_like_any_failure(stage: Stage) {
    let id = stage.enqueue(7, Way::Succeed).await;
    for _ in 0..2 {
        stage.claim_and_die(Duration::from_millis(1)).await;
        // Two claims are all that the policy allows: whoever takes the second over ends the job.
        if job(&stage.redrive, id).await.attempt == 1 {
            reclaim(&stage).await;
        }
    }
    work(&stage.redrive, stage.worker(0), &[id]).await;
    assert_eq!(job(&stage.redrive, id).await.state, State::Dead);
    assert_eq!(stage.ends().await, ended(&[(7, "dead")]));
}

/// Takes a lost attempt over by hand and lets the job go on.
async fn reclaim(stage: &Stage) {
    let request = redrive_core::store::ReclaimRequest {
        kinds: vec![Kind::new(Ship::KIND).unwrap()],
        limit: 1,
        lease: Duration::from_secs(60),
        held: Vec::new(),
    };
    let backend = stage.redrive.backend();
    let lost = loop {
        if let Some(lost) = backend.reclaim(request.clone()).await.unwrap().jobs.pop() {
            break lost;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    let retry = Settlement::new(lost.lease(), Verdict::Retry(Duration::ZERO));
    assert_eq!(backend.settle(vec![retry]).await.unwrap(), [Settled::Applied(State::Retrying)]);
}

async fn a_cancel_of_what_runs_is_an_end(stage: Stage) {
    let id = stage.enqueue(3, Way::Hang).await;
    let cancel = async {
        while job(&stage.redrive, id).await.state != State::Running {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stage.redrive.cancel(id).await.unwrap();
        std::future::pending::<()>().await
    };
    let jobs = [id];
    tokio::select! {
        _ = work(&stage.redrive, stage.worker(0), &jobs) => {}
        () = cancel => {}
    }
    assert_eq!(stage.ends().await, ended(&[(3, "cancelled")]));
}

async fn one_that_fails_leaves_nothing_and_spoils_no_other(stage: Stage) {
    let mut jobs = Vec::new();
    for order in 0..10 {
        jobs.push(stage.enqueue(order, Way::Succeed).await);
    }
    // Each failure rolls its whole batch back: jobs and rows still agree.
    work(&stage.redrive, stage.worker(3), &jobs).await;
    let states: Vec<State> = {
        let mut states = Vec::new();
        for id in &jobs {
            states.push(job(&stage.redrive, *id).await.state);
        }
        states
    };
    let expected: Vec<(i64, &str)> = states.iter().enumerate().map(|(n, s)| (n as i64, s.name())).collect();
    assert_eq!(stage.ends().await, ended(&expected));
}

async fn a_lost_lease_writes_nothing(stage: Stage) {
    let id = stage.enqueue(5, Way::ComeLate).await;
    // No heartbeat comes in between: only the settlement can notice.
    let worker = stage.worker(0).settings(Settings::default());
    let steal = async {
        while job(&stage.redrive, id).await.state != State::Running {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let end = Settlement::new(job(&stage.redrive, id).await.lease(), Verdict::Complete(None));
        stage.redrive.backend().settle(vec![end]).await.unwrap();
    };
    let summary = worker.run_until(steal).await.unwrap();
    assert_eq!((summary.lease_lost, stage.ends().await), (1, ended(&[])), "{summary:?}");
}

async fn a_cancel_of_what_waits_is_the_callers_to_write(stage: Stage) {
    let id = stage.enqueue(9, Way::Succeed).await;
    for fails in [true, false] {
        let wanted = move |answer: Cancelled| if fails { Err(Error::refused("not so")) } else { Ok(answer) };
        let cancelled = if stage._server.is_none() {
            let cancel = stage.redrive.transact(move |tx| {
                tx.connection().execute("INSERT INTO ends VALUES (9, 'cancelled')", ())?;
                wanted(tx.cancel(id)?)
            });
            cancel.await
        } else {
            let cancel = stage.redrive.transact_postgres(move |tx| {
                Box::pin(async move {
                    tx.client().execute("INSERT INTO ends VALUES (9, 'cancelled')", &[]).await?;
                    wanted(tx.cancel(id).await?)
                })
            });
            cancel.await
        };
        let (state, ends) = (job(&stage.redrive, id).await.state, stage.ends().await);
        match cancelled {
            Err(_) => assert_eq!((state, ends), (State::Pending, ended(&[])), "rolled back, it never was"),
            Ok(answer) => {
                assert_eq!((answer, state), (Cancelled::Done, State::Cancelled));
                assert_eq!(ends, ended(&[(9, "cancelled")]));
            }
        }
    }
}

macro_rules! on_both_stores {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Stage::sqlite().await).await; })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Stage::postgres().await).await; })*
        }
    };
}

pub(crate) use on_both_stores;

on_both_stores!(
    each_end_is_written_once,
    a_crash_ends_it_like_any_failure,
    a_cancel_of_what_runs_is_an_end,
    one_that_fails_leaves_nothing_and_spoils_no_other,
    a_lost_lease_writes_nothing,
    a_cancel_of_what_waits_is_the_callers_to_write,
);

#[tokio::test]
async fn an_ending_that_would_never_be_written_is_refused() {
    let stage = Stage::sqlite().await;
    let worker =
        stage.redrive.worker().ending(|_: &mut SqliteTransaction<'_, '_, '_>, _: &Ship, _: &End| Ok(()));
    let error = worker.run_until(std::future::ready(())).await.unwrap_err().to_string();
    assert!(error.contains("needs a handler"), "{error}");
    let elsewhere =
        stage.redrive.worker().on(handle).ending_postgres(|_, _: &Ship, _| Box::pin(async { Ok(()) }));
    let error = elsewhere.run_until(std::future::ready(())).await.unwrap_err().to_string();
    assert!(error.contains("another store"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spoilt_transaction_on_postgres_is_never_taken_for_committed() {
    let stage = Stage::postgres().await;
    let spoilt = stage.redrive.transact_postgres(|tx| {
        Box::pin(async move {
            tx.client().execute("INSERT INTO ends VALUES (1, 'x')", &[]).await?;
            let _ = tx.client().execute("SELECT 1 / 0", &[]).await;
            Ok(())
        })
    });
    assert!(spoilt.await.is_err());
    assert_eq!(stage.ends().await, ended(&[]));
}
