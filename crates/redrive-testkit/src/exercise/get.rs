//! Get: returns jobs in the order of the request.

use redrive_core::limits::BATCH_ITEMS_MAX;

use super::chapter;
use super::fixture::{StoreFixture, job_id, rejected};

chapter!("get":
    returns_jobs_in_the_requested_order,
    a_full_batch_is_read_and_a_larger_one_rejected,
);

async fn returns_jobs_in_the_requested_order(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_some(3).await;
    let requested = vec![enqueued[2], job_id(99), enqueued[0], enqueued[2]];
    let found = fixture.store.get(requested).await.expect("get");
    let found: Vec<_> = found.into_iter().map(|job| job.map(|job| job.id)).collect();
    assert_eq!(found, [Some(enqueued[2]), None, Some(enqueued[0]), Some(enqueued[2])]);
}

async fn a_full_batch_is_read_and_a_larger_one_rejected(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_some(BATCH_ITEMS_MAX).await;
    let found = fixture.store.get(enqueued.clone()).await.expect("get");
    assert!(found.iter().zip(&enqueued).all(|(job, id)| job.as_ref().is_some_and(|job| job.id == *id)));
    let more: Vec<_> = enqueued.into_iter().chain([job_id(1)]).collect();
    assert_eq!(rejected(fixture.store.get(more).await).field, "batch");
}
