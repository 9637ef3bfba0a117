//! `redrive migrate` converts a database of 0.1.0: every job is as before, and all of it drains.

use std::time::Duration;

use redrive_core::steps::Signal;
use redrive_core::store::{ClaimRequest, ReclaimRequest, Settlement, Store as _};
use redrive_core::{JobId, SignalName, State, Steps as _, StoreError, Timestamp, Verdict, WorkerId};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::ManualClock;
use redrive_testkit::servers::Postgres;
use uuid::Uuid;

/// The tables of 0.1.0.
const SCHEMA_6: [&str; 7] = [
    include_str!("../../migrations/0000_schema.sql"),
    include_str!("../../migrations/0001_jobs.sql"),
    include_str!("../../migrations/0002_enqueue.sql"),
    include_str!("../../migrations/0003_steps.sql"),
    include_str!("../../migrations/0004_default_policy.sql"),
    include_str!("../../migrations/0005_trees.sql"),
    include_str!("../../migrations/0006_record_floors.sql"),
];

/// The columns of a job in 0.1.0, and the same in the view of today.
const BEFORE: &str = "id, lane, state, next_run_at, run, attempt, epoch, created_at, began_at, started_at, lease_until, finished_at, \
    wait_ms, timeout_ms, lease_ms, cancel_requested, last_status, tenant, policy, worker, key, fingerprint, reason, subject, \
    last_error, metadata, payload, output, parent, branch, awaits, awaits_name, awaits_branch, awaits_failures, held, partition, \
    strict, detached";

/// After the time of the fixture.
const NOW: Timestamp = Timestamp::from_ms(1_800_000_100_000);

/// A server with the fixture: 100,000 jobs in the tables of 0.1.0.
fn server_of_0_1_0() -> Postgres {
    let server = Postgres::start_with(&[("fsync", "off"), ("synchronous_commit", "off")]);
    for sql in SCHEMA_6 {
        server.run(sql);
    }
    server.run(
        "INSERT INTO redrive.schema (version, compatible_since) SELECT n, 3 FROM generate_series(1, 6) AS n",
    );
    server.run(include_str!("../fixtures/schema_6_jobs.sql"));
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_0_1_0_is_converted_and_drains() {
    let server = server_of_0_1_0();
    server.run(&format!("CREATE TABLE public.before AS SELECT {BEFORE} FROM redrive.jobs"));

    let refused = PostgresStore::open(&server.address(), Options::default()).await.expect_err("old tables");
    assert!(matches!(&refused, StoreError::Refused(text) if text.contains("redrive migrate")), "{refused}");

    assert_eq!(PostgresStore::migrate(&server.address()).await.expect("migrated"), 7);
    let now = BEFORE.replace("subject", "target").replace("held", "paused");
    for (one, other) in [("public.before", "redrive.all_jobs"), ("redrive.all_jobs", "public.before")] {
        let (columns, others) = if one == "public.before" { (BEFORE, &*now) } else { (&*now, BEFORE) };
        let differing = format!(
            "SELECT count(*) FROM (SELECT {columns} FROM {one} EXCEPT SELECT {others} FROM {other}) AS d"
        );
        assert_eq!(server.run(&differing).trim(), "0", "every job is as before");
    }
    let wrong_counts = "SELECT count(*) FROM (
        SELECT lane, state, sum(jobs) AS jobs FROM redrive.counts GROUP BY lane, state
        EXCEPT SELECT lane, state, count(*) FROM public.before GROUP BY lane, state) AS d";
    assert_eq!(server.run(wrong_counts).trim(), "0");

    let clock = ManualClock::new();
    clock.set(NOW);
    let store = PostgresStore::open(&server.address(), Options::default().with_clock(clock.clone())).await;
    drain(&store.expect("the store opens"), &clock, &server).await;
}

/// Lets every job end: signals and unpauses those that wait, reclaims the leases of 0.1.0, and completes what it claims.
async fn drain(store: &PostgresStore, clock: &ManualClock, server: &Postgres) {
    let ids = |sql: &str| -> Vec<JobId> {
        let lines = server.run(sql);
        lines.split_whitespace().map(|id| JobId(id.parse::<Uuid>().expect("an id"))).collect()
    };
    for waiting in ids("SELECT id FROM redrive.waiting WHERE awaits IN (0, 4)").chunks(500) {
        let signal = |job: &JobId| Signal {
            job: *job,
            id: Uuid::from_u128(job.0.as_u128() + 1),
            name: SignalName::new("go").expect("a name"),
            value: b"1".to_vec(),
        };
        store.signal(waiting.iter().map(signal).collect()).await.expect("signalled");
        store.resume(waiting.to_vec()).await.expect("resumed");
    }
    for paused in ids("SELECT id FROM redrive.progress WHERE paused").chunks(500) {
        store.unpause(paused.to_vec()).await.expect("unpaused");
    }
    let lease = Duration::from_secs(30);
    for _ in 0..10_000 {
        let held = ReclaimRequest { kinds: vec![], limit: 1_000, lease, held: vec![] };
        let orphans = store.reclaim(held).await.expect("reclaimed").jobs;
        let worker = WorkerId::new("drain").expect("a name");
        let request = ClaimRequest { worker, queues: vec![], kinds: vec![], limit: 1_000, lease };
        let claimed = store.claim(request).await.expect("claimed").jobs;
        let done = orphans.iter().chain(&claimed);
        let settlements: Vec<Settlement> =
            done.map(|job| Settlement::new(job.lease(), Verdict::Complete(None))).collect();
        if settlements.is_empty() {
            let mut after = None;
            loop {
                let swept = store.sweep(after, 1_000).await.expect("swept");
                after = swept.last;
                if after.is_none() {
                    break;
                }
            }
            let live = server.run("SELECT count(*) FROM redrive.all_jobs WHERE state < 4");
            if live.trim() == "0" {
                break;
            }
            clock.advance(Duration::from_secs(3_600));
            continue;
        }
        for batch in settlements.chunks(1_000) {
            store.settle(batch.to_vec()).await.expect("settled");
        }
    }
    let stats = store.stats().await.expect("counted");
    let live = [State::Pending, State::Retrying, State::Running, State::Waiting];
    assert_eq!(live.map(|state| stats.in_state(state)), [0; 4], "all of it has ended");
    let left = "SELECT (SELECT count(*) FROM redrive.ready) + (SELECT count(*) FROM redrive.waiting)
        + (SELECT count(*) FROM redrive.slots) + (SELECT count(*) FROM redrive.ordered)
        + (SELECT count(*) FROM redrive.children WHERE stage < 2)";
    assert_eq!(server.run(left).trim(), "0");
}
