//! What a node asks of the server when there is nothing to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_core::Store;
use redrive_worker::Settings;
use tokio_util::sync::CancellationToken;

use crate::scene::{self, Scene};
use crate::victim::{program, work};

/// How long it is watched: two rounds of reclaim.
const WATCH: Duration = Duration::from_secs(10);
const STATEMENTS_PER_SECOND_MAX: f64 = 2.0;

pub(crate) fn an_idle_node_makes_at_most_two_statements_a_second() {
    program::runtime().block_on(async {
        let scene = Scene::open(&[("log_statement", "all")]).await;
        let (store, history) = scene.local("idle").await;
        let policy = scene::policy(&store).await;
        store.enqueue(vec![work::job(&policy, "ok")]).await.expect("enqueued");
        let stop = CancellationToken::new();
        let worker = work::worker(Arc::new(store.clone()), history, Settings::default());
        let working = tokio::spawn(worker.run_until(stop.clone().cancelled_owned()));
        scene.ended(&store).await;
        tokio::time::sleep(Duration::from_secs(1)).await;

        let (before, began) = (scene.server.log().len(), Instant::now());
        tokio::time::sleep(WATCH).await;
        let (log, watched) = (scene.server.log().split_off(before), began.elapsed());
        let rate = statements(&log) as f64 / watched.as_secs_f64();
        stop.cancel();
        working.await.expect("no panic").expect("it ends in good order");
        println!("  {rate:.2} statements a second");
        assert!(rate > 0.0, "none was counted: the log has another form");
        assert!(rate <= STATEMENTS_PER_SECOND_MAX, "{rate:.2} statements a second:\n{log}");
    });
}

/// How many statements there are in a log of the server.
fn statements(log: &str) -> usize {
    log.lines().filter(|line| line.contains(" LOG:  execute ") || line.contains(" LOG:  statement: ")).count()
}
