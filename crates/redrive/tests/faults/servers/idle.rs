//! The statements of an idle node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_core::Store;
use redrive_worker::Settings;
use tokio_util::sync::CancellationToken;

use super::fixture::{self, Fixture};
use crate::{runner, workload};

/// How long the node is observed: two reclaim intervals.
const OBSERVED_FOR: Duration = Duration::from_secs(10);
const STATEMENTS_PER_SECOND_MAX: f64 = 2.0;

pub(crate) fn an_idle_node_makes_at_most_two_statements_a_second() {
    runner::runtime().block_on(async {
        let fixture = Fixture::open(&[("log_statement", "all")]).await;
        let (store, history) = fixture.local("idle").await;
        let policy = fixture::policy(&store).await;
        store.enqueue(vec![workload::job(&policy, "ok")]).await.expect("enqueued");
        let stop = CancellationToken::new();
        let worker = workload::worker(Arc::new(store.clone()), history, Settings::default());
        let working = tokio::spawn(worker.run_until(stop.clone().cancelled_owned()));
        fixture.wait_until_ended(&store).await;
        tokio::time::sleep(Duration::from_secs(1)).await;

        let (before, began) = (fixture.server.log().len(), Instant::now());
        tokio::time::sleep(OBSERVED_FOR).await;
        let (log, watched) = (fixture.server.log().split_off(before), began.elapsed());
        let rate = statements(&log) as f64 / watched.as_secs_f64();
        stop.cancel();
        working.await.expect("no panic").expect("the worker shuts down cleanly");
        println!("  {rate:.2} statements a second");
        assert!(rate > 0.0, "no statement was counted: the log has another format");
        assert!(rate <= STATEMENTS_PER_SECOND_MAX, "{rate:.2} statements a second:\n{log}");
    });
}

/// How many statements there are in a log of the server.
fn statements(log: &str) -> usize {
    log.lines().filter(|line| line.contains(" LOG:  execute ") || line.contains(" LOG:  statement: ")).count()
}
