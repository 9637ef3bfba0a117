//! What may happen to the candidates of a claim under limits before the claim takes them.

use std::time::Duration;

use redrive_core::records::{Precondition, RecordStore, RecordWrite};
use redrive_core::transfer::{MOVED_AWAY, SEALED};
use redrive_core::{JobId, Order, State};
use tokio::time::{sleep, timeout};

use super::{Fixture, TIMEOUT, claim_ids, limits, slots};
use crate::sql;

/// After a claim has read a candidate, its row may be gone, and another job's row may be at the same position.
#[tokio::test]
async fn a_claim_takes_no_job_at_the_position_of_another() {
    let fixture = Fixture::open().await;
    let [wanted, other] = [(); 2].map(|()| fixture.job(Some("key"), Order::Any));
    let (wanted, other) = (fixture.enqueue(vec![wanted]).await[0], fixture.enqueue(vec![other]).await[0]);
    let apply = |position: &JobId| {
        let position =
            fixture.server.run(&format!("SELECT ctid FROM redrive.ready WHERE id = '{}'", position.0));
        let jobs = format!("{}, '{{{}}}', '{{\"{}\"}}'", 32_503_680_000_000_i64, wanted.0, position.trim());
        fixture.server.run(&format!(
            "PREPARE apply AS {}; EXECUTE apply ({jobs}, '{{}}', '{{}}', '{{}}', '{{}}', 'w', 30000)",
            sql::LIMITS.statement("apply_claim").text()
        ))
    };
    apply(&other);
    assert_eq!((fixture.state(wanted).await, fixture.state(other).await), (State::Pending, State::Pending));
    apply(&wanted);
    assert_eq!((fixture.state(wanted).await, fixture.state(other).await), (State::Running, State::Pending));
}

/// A claim decides about its candidates together. It leaves out one that a session has locked, and decides about the others again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_candidate_stops_no_claim_of_others() {
    let fixture = Fixture::open().await;
    fixture.set_limits(Some(limits(10, slots(1)))).await;
    let ids = fixture.enqueue(["a", "b", "c"].map(|key| fixture.job(Some(key), Order::Any)).to_vec()).await;
    let session = fixture.session().await;
    let lock = format!("BEGIN; SELECT FROM redrive.ready WHERE id = '{}' FOR UPDATE", ids[0].0);
    session.batch_execute(&lock).await.expect("locked");
    let others = timeout(TIMEOUT / 4, claim_ids(&fixture.here, 10)).await.expect("the claim does not wait");
    assert_eq!(others, ids[1..]);
    session.batch_execute("ROLLBACK").await.expect("unlocked");
    assert_eq!(claim_ids(&fixture.here, 10).await, ids[..1]);
}

/// A move seals the store and then compares it with the new one, so nothing may be leased here afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waited_for_its_locks_leases_nothing_from_a_sealed_store() {
    let fixture = Fixture::open().await;
    fixture.set_limits(Some(limits(10, slots(1)))).await;
    fixture.enqueue(vec![fixture.job(Some("a"), Order::Any)]).await;
    let session = fixture.session().await;
    let all_locks =
        "SELECT pg_advisory_lock(x'72656472'::integer, stripe) FROM generate_series(0, 511) AS stripe";
    session.batch_execute(all_locks).await.expect("locked");
    let here = fixture.here.clone();
    let claiming = tokio::spawn(async move { claim_ids(&here, 10).await });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'";
    while fixture.server.run(waiting) == "0" {
        sleep(Duration::from_millis(5)).await;
    }
    let (expect, value) = (Precondition::Any, Some(b"{}".to_vec()));
    let seal = RecordWrite { kind: SEALED.to_owned(), id: MOVED_AWAY.to_owned(), expect, value };
    fixture.there.write(seal).await.expect("sealed");
    session.batch_execute("SELECT pg_advisory_unlock_all()").await.expect("unlocked");
    assert_eq!(timeout(TIMEOUT, claiming).await.expect("the claim ends").expect("no panic"), []);
}
