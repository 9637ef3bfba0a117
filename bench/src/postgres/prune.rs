//! Measures how long claims take while a prune removes jobs and passes by many more that it must keep.

use std::time::{Duration, Instant};

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::{ClaimRequest, Retention, Store as _};
use redrive_core::{NewJob, Start, WorkerId};
use redrive_store_postgres::PostgresStore;

use super::{Run, probe};
use crate::comparison::figure;
use crate::figures::{Bar, Figure, Samples};
use crate::setup;

/// Ended jobs that a prune removes, for each job that it keeps.
const REMOVED_SHARE: usize = 5;
/// Claims of one job each, without the prune.
const CLAIMS: usize = 500;

/// Compares the slowest claim during a prune with the slowest one without it.
pub(super) fn figures(run: &Run<'_>) -> anyhow::Result<Vec<Figure>> {
    let (mut during, mut without) = (Vec::new(), Vec::new());
    for _ in 0..run.size.repeats {
        let (slowest_during, slowest_without) = slowest_claims_ms(run)?;
        during.push(slowest_during);
        without.push(slowest_without);
    }
    let name =
        format!("slowest claim during a prune that passes {} children of a live parent", run.size.children);
    let other = Some(("without the prune".to_owned(), Samples::of(without)));
    Ok(vec![
        figure(&name, "ms", &Samples::of(during.clone()), None, Some(Bar::AtMost(50.0))),
        figure(&name, "ms", &Samples::of(during), other, None),
    ])
}

fn slowest_claims_ms(run: &Run<'_>) -> anyhow::Result<(f64, f64)> {
    let database = run.server.database();
    setup::block_on(async {
        let (store, policy) = database.open().await?;
        setup::fill(&store, &policy, 20 * CLAIMS, Start::Now).await?;
        let parent = setup::job(&policy, Start::After(Duration::from_secs(3_600)))?;
        store.enqueue(vec![parent.clone()]).await?;
        let (children, others) = (run.size.children, run.size.children / REMOVED_SHARE);
        add_ended_jobs(&probe::connect(&database.address()).await?, &parent, children, others).await?;
        let without = claim_until(&store, |claims| claims == CLAIMS).await?;
        let pruning = tokio::spawn({
            let store = store.clone();
            async move { prune_all(&store, others).await }
        });
        let during = claim_until(&store, |_| pruning.is_finished()).await?;
        pruning.await??;
        Ok((during, without))
    })
}

/// Adds ended jobs whose retention is over. Most are children of a live parent, and must be kept.
async fn add_ended_jobs(
    client: &tokio_postgres::Client,
    parent: &NewJob,
    children: usize,
    others: usize,
) -> anyhow::Result<()> {
    let sql = format!(
        "CREATE TEMP TABLE added AS
         SELECT gen_random_uuid() AS id, n, CASE WHEN n <= {children} THEN '{}'::uuid END AS parent
         FROM generate_series(1, {children} + {others}) AS n;
         INSERT INTO redrive.jobs (id, lane, due, created_at, tenant, policy, payload, parent, branch)
         SELECT id, 1, 0, 0, '', 'default@1', 'x', parent, CASE WHEN parent IS NOT NULL THEN 0 END FROM added;
         INSERT INTO redrive.ended (id, epoch, finished_at, attempt, state) SELECT id, 65537, n, 1, 4 FROM added;
         INSERT INTO redrive.counts (lane, state, jobs) SELECT 1, 4, count(*) FROM added",
        parent.id
    );
    Ok(client.batch_execute(&sql).await?)
}

/// Prunes without a pause until all `others` are removed.
async fn prune_all(store: &PostgresStore, others: usize) -> anyhow::Result<()> {
    let retention = Retention { succeeded: Duration::ZERO, ..Retention::default() };
    let mut removed = 0;
    while removed < others {
        removed += store.prune(retention, BATCH_ITEMS_MAX).await?;
    }
    Ok(())
}

/// Claims one job after the other. Returns the duration of the slowest claim in milliseconds.
async fn claim_until(store: &PostgresStore, is_enough: impl Fn(usize) -> bool) -> anyhow::Result<f64> {
    let (mut claims, mut slowest) = (0, Duration::ZERO);
    while !is_enough(claims) {
        let request = ClaimRequest {
            worker: WorkerId::new("bench")?,
            queues: Vec::new(),
            kinds: Vec::new(),
            limit: 1,
            lease: Duration::from_secs(600),
        };
        let started = Instant::now();
        store.claim(request).await?;
        slowest = slowest.max(started.elapsed());
        claims += 1;
    }
    Ok(slowest.as_secs_f64() * 1000.0)
}
