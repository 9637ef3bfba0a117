//! A pool with every connection taken by a statement that hangs, while leases go on being renewed.

use std::time::{Duration, Instant};

use redrive_core::store::ReclaimRequest;
use redrive_core::{State, Store};
use redrive_testkit::history::Happening;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::node::calm;
use crate::scene::{self, PATIENCE, Scene};
use crate::victim::{program, work};

const LEASE: Duration = Duration::from_secs(1);
/// For so long the connections are taken.
const HOLD: Duration = Duration::from_secs(4);

/// How many of the node's statements wait for a lock.
const WAITING: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'busy' AND wait_event_type = 'Lock'";

pub(crate) fn pool_exhausted() {
    program::runtime().block_on(async {
        let scene = Scene::open(&[]).await;
        let address = format!("{}?connections=2&application_name=busy", scene.server.address());
        let (store, history) = scene.local_at(&address, "busy").await;
        let (other, _) = scene.local("other").await;
        let policy = scene::policy(&store).await;
        store.enqueue(vec![work::job(&policy, "take 6000")]).await.expect("enqueued");
        let stop = CancellationToken::new();
        let worker = work::worker(std::sync::Arc::new(store.clone()), history, calm("busy", LEASE));
        let working = tokio::spawn(worker.run_until(stop.clone().cancelled_owned()));
        scene.happened("the job starts", 1, |happening| matches!(happening, Happening::Started(_))).await;

        // Everything but a renewal writes counts.
        let session = scene.session().await;
        session.batch_execute("BEGIN; LOCK TABLE redrive.counts").await.expect("locked");
        let began = Instant::now();
        let mut hung = JoinSet::new();
        for _ in 0..4 {
            let (store, job) = (store.clone(), work::job(&policy, "ok"));
            hung.spawn(async move { store.enqueue(vec![job]).await });
        }
        while scene.server.run(WAITING) != "2" {
            assert!(began.elapsed() < PATIENCE, "the connections are not taken");
        }
        while began.elapsed() < HOLD {
            let taken = other.reclaim(request()).await.expect("reclaimed").jobs;
            assert!(taken.is_empty(), "a lease was not renewed while the pool was exhausted: {taken:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!((scene.server.run(WAITING).as_str(), hung.try_join_next().is_none()), ("2", true));
        session.batch_execute("COMMIT").await.expect("unlocked");

        while let Some(enqueued) = hung.join_next().await {
            enqueued.expect("no panic").expect("what hung is done in the end");
        }
        scene.ended(&store).await;
        stop.cancel();
        working.await.expect("no panic").expect("it ends in good order");
        let (end, _) = scene.check().await;
        for job in end.jobs.values() {
            assert_eq!((job.state, job.epoch, job.attempt), (State::Succeeded, 1, 1), "{job:?}");
        }
    });
}

fn request() -> ReclaimRequest {
    ReclaimRequest { kinds: vec![], limit: 10, lease: PATIENCE, held: vec![] }
}
