//! Discard: a dead job goes with all that belongs to it, and nothing else goes.

use redrive_core::State;
use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::store::Discarded;

use super::chapter;
use super::stage::{Stage, at_once, job_id, only, refused};

chapter!("discard":
    removes_a_dead_job_with_its_log,
    removes_nothing_that_is_not_dead,
    sixteen_at_once_remove_it_once,
    a_batch_answers_item_by_item,
    a_batch_that_is_too_large_is_refused,
);

async fn removes_a_dead_job_with_its_log(stage: Stage) {
    let (dead, other) = (stage.in_state(State::Dead).await, stage.in_state(State::Dead).await);
    assert_eq!(discard(&stage, dead.id).await, Discarded::Done);
    assert_eq!(stage.find(dead.id).await, None);
    assert_eq!(stage.log(dead.id).await, []);
    assert_eq!(stage.log(other.id).await.len(), 1);
    assert_eq!(discard(&stage, dead.id).await, Discarded::NotFound);
    assert_eq!(stage.content().await.len(), 1);
}

async fn removes_nothing_that_is_not_dead(stage: Stage) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Dead) {
        let before = stage.in_state(state).await;
        assert_eq!(discard(&stage, before.id).await, Discarded::NotDead(state));
        assert_eq!(stage.job(before.id).await, before);
    }
}

async fn sixteen_at_once_remove_it_once(stage: Stage) {
    let dead = stage.in_state(State::Dead).await;
    let answers = at_once(16, |_| {
        let (store, id) = (stage.store.clone(), dead.id);
        async move { only(store.discard(vec![id]).await.expect("discard")) }
    })
    .await;
    let done = answers.iter().filter(|answer| **answer == Discarded::Done).count();
    let gone = answers.iter().filter(|answer| **answer == Discarded::NotFound).count();
    assert_eq!((done, gone), (1, 15), "{answers:?}");
}

async fn a_batch_answers_item_by_item(stage: Stage) {
    let (dead, running) = (stage.in_state(State::Dead).await, stage.running().await);
    let batch = vec![running.id, dead.id, job_id(99), dead.id];
    let expected =
        [Discarded::NotDead(State::Running), Discarded::Done, Discarded::NotFound, Discarded::NotFound];
    assert_eq!(stage.store.discard(batch).await.expect("discard"), expected);
}

async fn a_batch_that_is_too_large_is_refused(stage: Stage) {
    let dead = stage.in_state(State::Dead).await;
    let batch = vec![dead.id; BATCH_ITEMS_MAX + 1];
    assert_eq!(refused(stage.store.discard(batch).await).field, "batch");
    assert_eq!(stage.job(dead.id).await, dead);
}

async fn discard(stage: &Stage, id: redrive_core::JobId) -> Discarded {
    only(stage.store.discard(vec![id]).await.expect("discard"))
}
