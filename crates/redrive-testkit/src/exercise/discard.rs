//! Discard: deletes a dead job with everything that belongs to it, and nothing else.

use redrive_core::State;
use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::DiscardResult;

use super::chapter;
use super::fixture::{StoreFixture, concurrently, job_id, only, rejected};

chapter!("discard":
    removes_a_dead_job_with_its_log,
    removes_nothing_that_is_not_dead,
    sixteen_concurrent_discards_remove_it_once,
    a_batch_returns_one_result_per_item,
    an_oversized_batch_is_rejected,
);

async fn removes_a_dead_job_with_its_log(fixture: StoreFixture) {
    let (dead, other) = (fixture.in_state(State::Dead).await, fixture.in_state(State::Dead).await);
    assert_eq!(discard(&fixture, dead.id).await, DiscardResult::Done);
    assert_eq!(fixture.find(dead.id).await, None);
    assert_eq!(fixture.log(dead.id).await, []);
    assert_eq!(fixture.log(other.id).await.len(), 1);
    assert_eq!(discard(&fixture, dead.id).await, DiscardResult::NotFound);
    assert_eq!(fixture.content().await.len(), 1);
}

async fn removes_nothing_that_is_not_dead(fixture: StoreFixture) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Dead) {
        let before = fixture.in_state(state).await;
        assert_eq!(discard(&fixture, before.id).await, DiscardResult::NotDead(state));
        assert_eq!(fixture.job(before.id).await, before);
    }
}

async fn sixteen_concurrent_discards_remove_it_once(fixture: StoreFixture) {
    let dead = fixture.in_state(State::Dead).await;
    let answers = concurrently(16, |_| {
        let (store, id) = (fixture.store.clone(), dead.id);
        async move { only(store.discard(vec![id]).await.expect("discard")) }
    })
    .await;
    let done = answers.iter().filter(|answer| **answer == DiscardResult::Done).count();
    let gone = answers.iter().filter(|answer| **answer == DiscardResult::NotFound).count();
    assert_eq!((done, gone), (1, 15), "{answers:?}");
}

async fn a_batch_returns_one_result_per_item(fixture: StoreFixture) {
    let (dead, running) = (fixture.in_state(State::Dead).await, fixture.running().await);
    let batch = vec![running.id, dead.id, job_id(99), dead.id];
    let expected = [
        DiscardResult::NotDead(State::Running),
        DiscardResult::Done,
        DiscardResult::NotFound,
        DiscardResult::NotFound,
    ];
    assert_eq!(fixture.store.discard(batch).await.expect("discard"), expected);
}

async fn an_oversized_batch_is_rejected(fixture: StoreFixture) {
    let dead = fixture.in_state(State::Dead).await;
    let batch = vec![dead.id; BATCH_ITEMS_MAX + 1];
    assert_eq!(rejected(fixture.store.discard(batch).await).field, "batch");
    assert_eq!(fixture.job(dead.id).await, dead);
}

async fn discard(fixture: &StoreFixture, id: redrive_core::JobId) -> DiscardResult {
    only(fixture.store.discard(vec![id]).await.expect("discard"))
}
