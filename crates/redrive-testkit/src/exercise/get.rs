//! Get: what was asked, in that order.

use redrive_core::limits::BATCH_ITEMS_MAX;

use super::chapter;
use super::stage::{Stage, job_id, refused};

chapter!("get":
    answers_in_the_order_asked,
    a_full_batch_is_answered_and_more_refused,
);

async fn answers_in_the_order_asked(stage: Stage) {
    let made = stage.enqueue_some(3).await;
    let asked = vec![made[2], job_id(99), made[0], made[2]];
    let found = stage.store.get(asked).await.expect("get");
    let found: Vec<_> = found.into_iter().map(|job| job.map(|job| job.id)).collect();
    assert_eq!(found, [Some(made[2]), None, Some(made[0]), Some(made[2])]);
}

async fn a_full_batch_is_answered_and_more_refused(stage: Stage) {
    let made = stage.enqueue_some(BATCH_ITEMS_MAX).await;
    let found = stage.store.get(made.clone()).await.expect("get");
    assert!(found.iter().zip(&made).all(|(job, id)| job.as_ref().is_some_and(|job| job.id == *id)));
    let more: Vec<_> = made.into_iter().chain([job_id(1)]).collect();
    assert_eq!(refused(stage.store.get(more).await).field, "batch");
}
