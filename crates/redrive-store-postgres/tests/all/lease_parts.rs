//! The jobs of one claim can be renewed, settled and reclaimed separately, by any process.

use std::time::Duration;

use redrive_core::store::{ExtendResult, ReclaimRequest, SettleResult, Settlement};
use redrive_core::{Job, JobId, Lease, State, Store, Verdict};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::ManualClock;

use crate::harness::{Cluster, DIFFERENCE, claim, reclaim, settle};

const LEASE: Duration = Duration::from_secs(30);

/// A server whose time a test sets, with two nodes.
struct Fixture {
    cluster: Cluster,
    clock: ManualClock,
    other: PostgresStore,
}

impl Fixture {
    async fn open() -> Self {
        let clock = ManualClock::new();
        let options = || Options::default().with_clock(clock.clone());
        let cluster = Cluster::open_with(&[], options()).await;
        let other = PostgresStore::open(&cluster.server.address(), options()).await.expect("the store opens");
        Self { cluster, clock, other }
    }

    /// Three jobs that one claim leases.
    async fn claim_three(&self) -> [Job; 3] {
        self.cluster.enqueue(3).await;
        let jobs = claim(&self.cluster.store, 3, LEASE).await;
        assert_eq!(self.claims(), "1", "one row for the claim");
        jobs.try_into().expect("three jobs")
    }

    fn claims(&self) -> String {
        self.cluster.server.run("SELECT count(*) FROM redrive.claims")
    }
}

fn ids(jobs: &[&Job]) -> Vec<JobId> {
    let mut ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    ids.sort();
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reclaim_takes_the_jobs_that_were_not_renewed() {
    let fixture = Fixture::open().await;
    for by_other in [false, true] {
        let [first, second, third] = fixture.claim_three().await;
        let holder = &fixture.cluster.store;
        let renewing = if by_other { &fixture.other } else { holder };
        fixture.clock.advance(LEASE / 2);
        let renewed = renewing.extend(vec![second.lease()], LEASE).await.expect("extended");
        assert_eq!(renewed, [ExtendResult::Renewed]);
        assert_eq!(reclaim(&fixture.other).await, [], "no lease has run out");
        fixture.clock.advance(LEASE / 2);
        assert_eq!(reclaim(&fixture.other).await, ids(&[&first, &third]), "by another node: {by_other}");
        assert_eq!(reclaim(&fixture.other).await, []);
        for lost in [&first, &third] {
            assert_eq!(settle(holder, lost, Verdict::Complete(None)).await, SettleResult::LeaseLost);
            let extended = holder.extend(vec![lost.lease()], LEASE).await.expect("extended");
            assert_eq!(extended, [ExtendResult::LeaseLost]);
        }
        let settled = settle(holder, &second, Verdict::Complete(None)).await;
        assert_eq!(settled, SettleResult::Applied(State::Succeeded));
        // The reclaimed jobs end where they were reclaimed, or are reclaimed again.
        fixture.clock.advance(crate::harness::TIMEOUT);
        assert_eq!(reclaim(holder).await, ids(&[&first, &third]));
        fixture.cluster.server.run("TRUNCATE redrive.jobs, redrive.claims, redrive.ended, redrive.progress");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_part_runs_out_in_its_turn() {
    let fixture = Fixture::open().await;
    let [first, second, third] = fixture.claim_three().await;
    fixture.clock.advance(LEASE / 3);
    let renewed = fixture.cluster.store.extend(vec![first.lease(), second.lease()], LEASE).await;
    assert_eq!(renewed.expect("extended"), [ExtendResult::Renewed; 2]);
    fixture.clock.advance(LEASE / 3);
    // A part is split again.
    let renewed = fixture.cluster.store.extend(vec![first.lease()], LEASE).await.expect("extended");
    assert_eq!(renewed, [ExtendResult::Renewed]);
    fixture.clock.advance(LEASE / 3);
    assert_eq!(reclaim(&fixture.other).await, ids(&[&third]));
    fixture.clock.advance(LEASE / 3);
    assert_eq!(reclaim(&fixture.other).await, ids(&[&second]));
    fixture.clock.advance(LEASE / 3);
    assert_eq!(reclaim(&fixture.other).await, ids(&[&first]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settled_jobs_of_a_claim_are_not_reclaimed() {
    let fixture = Fixture::open().await;
    let [first, second, third] = fixture.claim_three().await;
    let store = &fixture.cluster.store;
    let done = settle(store, &first, Verdict::Complete(None)).await;
    assert_eq!(done, SettleResult::Applied(State::Succeeded));
    let again = settle(store, &second, Verdict::Retry(10 * LEASE)).await;
    assert_eq!(again, SettleResult::Applied(State::Retrying));
    fixture.clock.advance(LEASE);
    assert_eq!(reclaim(&fixture.other).await, ids(&[&third]));
    assert_eq!(settle(store, &third, Verdict::Complete(None)).await, SettleResult::LeaseLost);
    let states = "SELECT string_agg(state_name, ' ' ORDER BY id) FROM redrive.all_jobs";
    assert_eq!(fixture.cluster.server.run(states), "succeeded retrying running");
    assert_eq!(fixture.cluster.server.run(DIFFERENCE), "0", "a late settlement changes no counts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_settles_jobs_of_a_claim() {
    let fixture = Fixture::open().await;
    let [first, second, third] = fixture.claim_three().await;
    let store = &fixture.cluster.store;
    let succeeded = SettleResult::Applied(State::Succeeded);
    assert_eq!(settle(&fixture.other, &first, Verdict::Complete(None)).await, succeeded);
    assert_eq!(settle(store, &first, Verdict::Complete(None)).await, SettleResult::LeaseLost);
    assert_eq!(settle(store, &second, Verdict::Complete(None)).await, succeeded);
    assert_eq!(settle(&fixture.other, &second, Verdict::Complete(None)).await, SettleResult::LeaseLost);
    let retrying = settle(&fixture.other, &third, Verdict::Retry(10 * LEASE)).await;
    assert_eq!(retrying, SettleResult::Applied(State::Retrying));
    // Nobody knows that the claim has no job left, until its lease runs out.
    fixture.clock.advance(LEASE);
    assert_eq!(reclaim(&fixture.other).await, []);
    assert_eq!(fixture.claims(), "0");
}

/// The claim is removed with its last job, and a wrong lease settles none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_under_another_lease_leaves_the_claim() {
    let fixture = Fixture::open().await;
    let [first, second, third] = fixture.claim_three().await;
    let store = &fixture.cluster.store;
    let wrong = Lease { epoch: third.epoch + 1, ..third.lease() };
    let complete = |lease| Settlement::new(lease, Verdict::Retry(LEASE));
    let settlements = [first.lease(), second.lease(), wrong].map(complete).to_vec();
    let settled = store.settle(settlements).await.expect("settled");
    let applied = SettleResult::Applied(State::Retrying);
    assert_eq!(settled, [applied, applied, SettleResult::LeaseLost]);
    let extended = store.extend(vec![third.lease()], LEASE).await.expect("extended");
    assert_eq!(extended, [ExtendResult::Renewed]);
    assert_eq!(settle(store, &third, Verdict::Complete(None)).await, SettleResult::Applied(State::Succeeded));
    assert_eq!(fixture.claims(), "0");
}

/// A lease that ends at once is taken over once in a call, not again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reclaim_takes_each_job_once_however_short_the_new_lease_is() {
    let fixture = Fixture::open().await;
    let [first, second, third] = fixture.claim_three().await;
    fixture.clock.advance(LEASE);
    let request = ReclaimRequest { kinds: vec![], limit: 100, lease: Duration::ZERO, held: vec![] };
    let reclaimed = fixture.other.reclaim(request).await.expect("reclaimed").jobs;
    assert_eq!(ids(&reclaimed.iter().collect::<Vec<_>>()), ids(&[&first, &second, &third]));
}

/// A settlement whose snapshot is older than a change of its claim sees the change through the lock on the claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_waited_for_a_change_of_its_claim_leaves_the_list() {
    let fixture = Fixture::open().await;
    let [first, second, third] = fixture.claim_three().await;
    let session = fixture.cluster.session().await;
    session.batch_execute("BEGIN; SELECT FROM redrive.claims FOR UPDATE").await.expect("locked");
    session.batch_execute("UPDATE redrive.claims SET whole = false").await.expect("changed");
    let store = fixture.cluster.store.clone();
    let lease = first.lease();
    let settling = tokio::spawn(async move {
        store.settle(vec![Settlement::new(lease, Verdict::Retry(10 * LEASE))]).await.expect("settled")
    });
    fixture.cluster.wait_for_blocked_session().await;
    session.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(settling.await.expect("no panic"), [SettleResult::Applied(State::Retrying)]);
    fixture.clock.advance(LEASE);
    assert_eq!(reclaim(&fixture.other).await, ids(&[&second, &third]), "the first job does not run");
}

/// A heartbeat for some jobs of a claim does not make a concurrent settlement of these jobs fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_next_to_a_partial_heartbeat_is_applied() {
    const ROUNDS: usize = 300;
    let fixture = Fixture::open().await;
    for round in 0..ROUNDS {
        fixture.cluster.enqueue(3).await;
        let jobs = claim(&fixture.cluster.store, 3, LEASE).await;
        // The other node does not know the claim, so it renews the job alone.
        let renewing = fixture.other.extend(vec![jobs[0].lease()], LEASE);
        let settling = settle(&fixture.cluster.store, &jobs[0], Verdict::Complete(None));
        let (renewed, settled) = tokio::join!(renewing, settling);
        renewed.expect("extended");
        assert_eq!(settled, SettleResult::Applied(State::Succeeded), "round {round}");
        for job in &jobs[1..] {
            let settled = settle(&fixture.cluster.store, job, Verdict::Complete(None)).await;
            assert_eq!(settled, SettleResult::Applied(State::Succeeded), "round {round}");
        }
    }
}
