//! Unique keys: one live job, one job per time span, or the latest job replaces the one before.

use std::time::Duration;

use redrive_core::store::{EnqueueResult, Retention};
use redrive_core::{Job, JobId, NewJob, Start, State, Unique, UniqueKey, UniqueRule};

use super::chapter;
use super::fixture::{StoreFixture, concurrently, key, kind, ms, only, policy, rejected, tenant};

chapter!("unique":
    finds_a_job_that_has_not_ended,
    frees_the_key_when_the_job_has_ended,
    never_prevents_a_retry_or_a_redrive,
    is_reserved_for_its_time_even_if_the_job_ends,
    replaces_a_job_that_has_not_started,
    does_not_replace_a_job_that_has_started,
    belongs_to_its_tenant_and_kind,
    counts_within_a_batch,
    sixteen_concurrent_enqueues_create_one_job,
    is_not_combined_with_an_idempotency_key,
);

fn unique(job: NewJob, rule: UniqueRule) -> NewJob {
    let key = UniqueKey::new("only").expect("a legal name");
    NewJob { unique: Some(Unique { key, rule }), ..job }
}

impl StoreFixture {
    async fn enqueue_unique(&self, rule: UniqueRule) -> EnqueueResult {
        only(self.store.enqueue(vec![unique(self.own_job(), rule)]).await.expect("enqueue"))
    }

    async fn create_unique(&self, rule: UniqueRule) -> JobId {
        match self.enqueue_unique(rule).await {
            EnqueueResult::Created(id) => id,
            other => panic!("{other:?}"),
        }
    }
}

async fn finds_a_job_that_has_not_ended(fixture: StoreFixture) {
    let id = fixture.create_unique(UniqueRule::Live).await;
    for state in [State::Pending, State::Retrying, State::Waiting] {
        fixture.bring_due_job_to(id, state).await;
        assert_eq!(fixture.enqueue_unique(UniqueRule::Live).await, EnqueueResult::Existing(id), "{state}");
        fixture.store.unpause(vec![id]).await.expect("unpause");
    }
    fixture.claim_own(id).await;
    assert_eq!(fixture.enqueue_unique(UniqueRule::Live).await, EnqueueResult::Existing(id));
}

async fn frees_the_key_when_the_job_has_ended(fixture: StoreFixture) {
    for state in State::ALL.into_iter().filter(|state| state.is_final()) {
        let id = fixture.create_unique(UniqueRule::Live).await;
        fixture.bring_to(id, state).await;
    }
    fixture.create_unique(UniqueRule::Live).await;
}

async fn never_prevents_a_retry_or_a_redrive(fixture: StoreFixture) {
    let first = fixture.create_unique(UniqueRule::Live).await;
    fixture.bring_to(first, State::Dead).await;
    let second = fixture.create_unique(UniqueRule::Live).await;
    fixture.redrive(first).await;
    assert_eq!(fixture.claim_own(first).await.run, 2);
    assert_eq!(fixture.enqueue_unique(UniqueRule::Live).await, EnqueueResult::Existing(second));
    fixture.claim_and_settle(second, redrive_core::Verdict::Retry(ms(0))).await;
    assert_eq!(fixture.claim_own(second).await.attempt, 2);
}

async fn is_reserved_for_its_time_even_if_the_job_ends(fixture: StoreFixture) {
    let rule = UniqueRule::For(ms(1_000));
    let id = fixture.create_unique(rule).await;
    fixture.bring_to(id, State::Succeeded).await;
    let no_retention = Retention { succeeded: ms(0), dead: ms(0), cancelled: ms(0) };
    assert_eq!(fixture.store.prune(no_retention, 9).await.expect("prune"), 1);
    fixture.clock.advance(ms(999));
    assert_eq!(fixture.enqueue_unique(rule).await, EnqueueResult::Existing(id));
    fixture.clock.advance(ms(1));
    let next = fixture.create_unique(rule).await;
    assert_eq!(fixture.enqueue_unique(rule).await, EnqueueResult::Existing(next));
}

async fn replaces_a_job_that_has_not_started(fixture: StoreFixture) {
    let id = fixture.create_unique(UniqueRule::Replace).await;
    let before = fixture.job(id).await;
    fixture.clock.advance(ms(10));
    let new = NewJob {
        payload: b"newer".to_vec(),
        metadata: Some("m".to_owned()),
        target: Some("s".to_owned()),
        policy: policy("strict"),
        timeout: Some(ms(77)),
        lease: Some(Duration::from_secs(60)),
        start: Start::After(ms(500)),
        ..fixture.own_job()
    };
    let (ignored, due) = (new.id, fixture.now().after(ms(500)));
    let answer = fixture.store.enqueue(vec![unique(new, UniqueRule::Replace)]).await.expect("enqueue");
    assert_eq!(answer, [EnqueueResult::Replaced(id)]);
    let expected = Job {
        payload: b"newer".to_vec(),
        metadata: Some("m".to_owned()),
        target: Some("s".to_owned()),
        policy: policy("strict"),
        timeout: Some(ms(77)),
        lease: Some(Duration::from_secs(60)),
        next_run_at: due,
        began_at: due,
        ..before
    };
    assert_eq!((fixture.job(id).await, fixture.find(ignored).await), (expected, None));
}

async fn does_not_replace_a_job_that_has_started(fixture: StoreFixture) {
    let first = fixture.create_unique(UniqueRule::Replace).await;
    fixture.bring_to(first, State::Retrying).await;
    let before = fixture.job(first).await;
    let second = fixture.create_unique(UniqueRule::Replace).await;
    assert_eq!(fixture.job(first).await, before);
    assert_eq!(fixture.enqueue_unique(UniqueRule::Replace).await, EnqueueResult::Replaced(second));
    fixture.bring_to(second, State::Cancelled).await;
    fixture.create_unique(UniqueRule::Replace).await;
}

async fn belongs_to_its_tenant_and_kind(fixture: StoreFixture) {
    fixture.create_unique(UniqueRule::Live).await;
    let other_kind = NewJob { kind: kind("other"), ..fixture.own_job() };
    let other_tenant = NewJob { tenant: tenant("acme"), ..fixture.own_job() };
    for job in [other_kind, other_tenant] {
        fixture.enqueue(unique(job, UniqueRule::Live)).await;
    }
}

async fn counts_within_a_batch(fixture: StoreFixture) {
    let jobs: Vec<NewJob> = (0..3).map(|_| unique(fixture.own_job(), UniqueRule::Live)).collect();
    let first = jobs[0].id;
    let answers = fixture.store.enqueue(jobs).await.expect("enqueue");
    assert_eq!(
        answers,
        [EnqueueResult::Created(first), EnqueueResult::Existing(first), EnqueueResult::Existing(first)]
    );
}

async fn sixteen_concurrent_enqueues_create_one_job(fixture: StoreFixture) {
    for rule in [UniqueRule::Live, UniqueRule::For(ms(1_000)), UniqueRule::Replace] {
        let jobs: Vec<NewJob> = (0..16)
            .map(|_| NewJob { tenant: tenant(&format!("{rule:?}")), ..unique(fixture.own_job(), rule) })
            .collect();
        let answers = concurrently(16, |n| {
            let (store, job) = (fixture.store.clone(), jobs[n].clone());
            async move { only(store.enqueue(vec![job]).await.expect("enqueue")) }
        });
        let answers = answers.await;
        let created = answers.iter().filter(|answer| matches!(answer, EnqueueResult::Created(_))).count();
        assert_eq!(created, 1, "{answers:?}");
        let id = answers[0].id();
        assert!(answers.iter().all(|answer| answer.id() == id), "{answers:?}");
    }
}

async fn is_not_combined_with_an_idempotency_key(fixture: StoreFixture) {
    let job = unique(fixture.own_job(), UniqueRule::Live).with_key(key("k"));
    assert_eq!(rejected(fixture.store.enqueue(vec![job]).await).field, "uniqueKey");
}
