//! Settlements that fail since another session is in the way, and are made all the same.

use std::sync::Arc;
use std::time::Instant;

use redrive_core::store::{ClaimRequest, Settled, Settlement};
use redrive_core::{Job, JobId, State, Store, StoreError, WorkerId};
use redrive_testkit::Recorded;
use redrive_testkit::history::Happening;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::node::calm;
use crate::scene::{self, PATIENCE, Scene};
use crate::victim::work;

/// How many statements of nodes wait for a lock.
const WAITING: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'redrive' AND wait_event_type = 'Lock'";

/// First a bare settlement, whose error can be looked at, then a worker's.
pub(crate) fn deadlock_ridden_out() {
    runtime().block_on(async {
        let scene = Scene::open(&[]).await;
        let (store, _) = scene.local("bare").await;
        let jobs = claimed(&store).await;
        let session = hold(&scene, jobs[1].id).await;
        let (error, ()) = tokio::join!(store.settle(settlements(&jobs)), cross(&scene, &session, jobs[0].id));
        assert!(matches!(error, Err(StoreError::Busy(_))), "{error:?}");
        assert_eq!(deadlocks(&scene), 1);
        let settled = store.settle(settlements(&jobs)).await.expect("nobody is in the way");
        assert_eq!(settled, [Settled::Applied(State::Succeeded); 2]);

        let worked = work_on(&scene, async |[first, second]| {
            let session = hold(&scene, second).await;
            cross(&scene, &session, first).await;
        });
        worked.await;
        assert_eq!(deadlocks(&scene), 2, "the worker met no deadlock");
    });
}

/// The same with limits of time, as an operator sets them for a role.
pub(crate) fn lock_timeout_ridden_out() {
    runtime().block_on(async {
        for (limit, message) in [
            ("lock_timeout", "canceling statement due to lock timeout"),
            ("statement_timeout", "canceling statement due to statement timeout"),
        ] {
            let scene = Scene::open(&[]).await;
            scene.server.run(&format!("ALTER ROLE redrive SET {limit} = '300ms'"));
            let seen = || scene.server.log().matches(message).count();
            let (store, _) = scene.local("bare").await;
            let jobs = claimed(&store).await;
            let session = hold(&scene, jobs[0].id).await;
            let error = store.settle(settlements(&jobs)).await.expect_err("somebody is in the way");
            assert!(matches!(error, StoreError::Busy(_)), "{error:?}");
            assert_eq!(seen(), 1, "{limit}");
            session.batch_execute("COMMIT").await.expect("released");
            store.settle(settlements(&jobs)).await.expect("nobody is in the way");

            let worked = work_on(&scene, async |[first, _]| {
                let session = hold(&scene, first).await;
                let began = Instant::now();
                while seen() < 2 {
                    assert!(began.elapsed() < PATIENCE, "the worker met no {limit}");
                    tokio::task::yield_now().await;
                }
                session.batch_execute("COMMIT").await.expect("released");
            });
            worked.await;
        }
    });
}

/// Lets a worker run two jobs that end at the same moment, with `trouble` from before that moment on. Each must have
/// ended with its first attempt.
async fn work_on(scene: &Scene, trouble: impl AsyncFnOnce([JobId; 2])) {
    let (store, history) = scene.local("worker").await;
    let policy = scene::policy(&store).await;
    let jobs = [(); 2].map(|()| work::job(&policy, "take 700"));
    let ids = [jobs[0].id, jobs[1].id];
    store.enqueue(jobs.to_vec()).await.expect("enqueued");
    let stop = CancellationToken::new();
    let worker = work::worker(Arc::new(store.clone()), history, calm("worker", PATIENCE));
    let working = tokio::spawn(worker.run_until(stop.clone().cancelled_owned()));
    scene
        .happened(
            "the jobs start",
            2,
            |happening| matches!(happening, Happening::Started(lease) if ids.contains(&lease.id)),
        )
        .await;
    trouble(ids).await;
    scene.ended(&store).await;
    stop.cancel();
    let summary = working.await.expect("no panic").expect("it ends in good order");
    assert_eq!((summary.succeeded, summary.dropped), (2, 0), "{summary:?}");
    let (end, history) = scene.check().await;
    for id in ids {
        let job = &end.jobs[&id];
        assert_eq!((job.state, job.epoch, job.attempt), (State::Succeeded, 1, 1), "{job:?}");
        assert_eq!(end.logs[&id].len(), 1, "{:?}", history.of_job(id));
    }
}

/// A session of somebody else's with this row locked; it is not the one that gives way in a deadlock.
async fn hold(scene: &Scene, id: JobId) -> Client {
    let session = scene.session().await;
    session.batch_execute("BEGIN; SET LOCAL deadlock_timeout = '1h'").await.expect("begun");
    session.batch_execute(&lock(id)).await.expect("locked");
    session
}

/// Once a node waits for what the session holds, the session asks for what the node holds.
async fn cross(scene: &Scene, session: &Client, id: JobId) {
    let watcher = scene.session().await;
    let began = Instant::now();
    while watcher.query_one(WAITING, &[]).await.expect("it answers").get::<_, i64>(0) == 0 {
        assert!(began.elapsed() < PATIENCE, "no node waits");
        tokio::task::yield_now().await;
    }
    session.batch_execute(&format!("{}; COMMIT", lock(id))).await.expect("the node gives way");
}

fn lock(id: JobId) -> String {
    format!("SELECT FROM redrive.jobs WHERE id = '{id}' FOR UPDATE")
}

fn deadlocks(scene: &Scene) -> usize {
    scene.server.log().matches("deadlock detected").count()
}

/// Two jobs under lease, the smaller id first.
async fn claimed(store: &Recorded) -> Vec<Job> {
    let policy = scene::policy(store).await;
    let jobs = [(); 2].map(|()| work::job(&policy, "ok"));
    store.enqueue(jobs.to_vec()).await.expect("enqueued");
    let worker = WorkerId::new("bare").expect("legal");
    let request = ClaimRequest { worker, queues: vec![], kinds: vec![], limit: 2, lease: PATIENCE };
    let claimed = store.claim(request).await.expect("claimed").jobs;
    assert_eq!(claimed.iter().map(|job| job.id).collect::<Vec<_>>(), jobs.map(|job| job.id));
    claimed
}

fn settlements(jobs: &[Job]) -> Vec<Settlement> {
    jobs.iter().map(scene::done).collect()
}

/// One thread: jobs that end at the same moment are settled together.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
