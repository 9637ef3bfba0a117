//! Unique keys: one job at a time, for a while, or the latest wish.

use std::time::Duration;

use redrive_core::store::{Enqueued, Retention};
use redrive_core::{Job, JobId, NewJob, Start, State, Unique, UniqueKey, UniqueRule};

use super::chapter;
use super::stage::{Stage, at_once, key, kind, ms, only, policy, refused, tenant};

chapter!("unique":
    finds_a_job_that_has_not_ended,
    makes_room_when_the_job_has_ended,
    never_holds_up_a_retry_or_a_redrive,
    holds_for_its_time_whatever_becomes_of_the_job,
    replaces_what_has_not_started,
    does_not_replace_what_has_started,
    is_of_its_tenant_and_kind,
    counts_within_a_batch,
    sixteen_at_once_make_one,
    is_not_combined_with_an_idempotency_key,
);

fn unique(job: NewJob, rule: UniqueRule) -> NewJob {
    let key = UniqueKey::new("only").expect("a legal name");
    NewJob { unique: Some(Unique { key, rule }), ..job }
}

impl Stage {
    async fn enqueue_unique(&self, rule: UniqueRule) -> Enqueued {
        only(self.store.enqueue(vec![unique(self.own_job(), rule)]).await.expect("enqueue"))
    }

    async fn created_unique(&self, rule: UniqueRule) -> JobId {
        match self.enqueue_unique(rule).await {
            Enqueued::Created(id) => id,
            other => panic!("{other:?}"),
        }
    }
}

async fn finds_a_job_that_has_not_ended(stage: Stage) {
    let id = stage.created_unique(UniqueRule::Live).await;
    for state in [State::Pending, State::Retrying, State::Waiting] {
        stage.lead_on(id, state).await;
        assert_eq!(stage.enqueue_unique(UniqueRule::Live).await, Enqueued::Existing(id), "{state}");
        stage.store.unhold(vec![id]).await.expect("unhold");
    }
    stage.claim_own(id).await;
    assert_eq!(stage.enqueue_unique(UniqueRule::Live).await, Enqueued::Existing(id));
}

async fn makes_room_when_the_job_has_ended(stage: Stage) {
    for state in State::ALL.into_iter().filter(|state| state.is_final()) {
        let id = stage.created_unique(UniqueRule::Live).await;
        stage.lead(id, state).await;
    }
    stage.created_unique(UniqueRule::Live).await;
}

async fn never_holds_up_a_retry_or_a_redrive(stage: Stage) {
    let first = stage.created_unique(UniqueRule::Live).await;
    stage.lead(first, State::Dead).await;
    let second = stage.created_unique(UniqueRule::Live).await;
    stage.redrive(first).await;
    assert_eq!(stage.claim_own(first).await.run, 2);
    assert_eq!(stage.enqueue_unique(UniqueRule::Live).await, Enqueued::Existing(second));
    stage.claim_and_settle(second, redrive_core::Verdict::Retry(ms(0))).await;
    assert_eq!(stage.claim_own(second).await.attempt, 2);
}

async fn holds_for_its_time_whatever_becomes_of_the_job(stage: Stage) {
    let rule = UniqueRule::For(ms(1_000));
    let id = stage.created_unique(rule).await;
    stage.lead(id, State::Succeeded).await;
    let at_once = Retention { succeeded: ms(0), dead: ms(0), cancelled: ms(0) };
    assert_eq!(stage.store.prune(at_once, 9).await.expect("prune"), 1);
    stage.clock.advance(ms(999));
    assert_eq!(stage.enqueue_unique(rule).await, Enqueued::Existing(id));
    stage.clock.advance(ms(1));
    let next = stage.created_unique(rule).await;
    assert_eq!(stage.enqueue_unique(rule).await, Enqueued::Existing(next));
}

async fn replaces_what_has_not_started(stage: Stage) {
    let id = stage.created_unique(UniqueRule::Replace).await;
    let before = stage.job(id).await;
    stage.clock.advance(ms(10));
    let new = NewJob {
        payload: b"newer".to_vec(),
        metadata: Some("m".to_owned()),
        subject: Some("s".to_owned()),
        policy: policy("strict"),
        timeout: Some(ms(77)),
        lease: Some(Duration::from_secs(60)),
        start: Start::After(ms(500)),
        ..stage.own_job()
    };
    let (ignored, due) = (new.id, stage.now().after(ms(500)));
    let answer = stage.store.enqueue(vec![unique(new, UniqueRule::Replace)]).await.expect("enqueue");
    assert_eq!(answer, [Enqueued::Replaced(id)]);
    let expected = Job {
        payload: b"newer".to_vec(),
        metadata: Some("m".to_owned()),
        subject: Some("s".to_owned()),
        policy: policy("strict"),
        timeout: Some(ms(77)),
        lease: Some(Duration::from_secs(60)),
        next_run_at: due,
        began_at: due,
        ..before
    };
    assert_eq!((stage.job(id).await, stage.find(ignored).await), (expected, None));
}

async fn does_not_replace_what_has_started(stage: Stage) {
    let first = stage.created_unique(UniqueRule::Replace).await;
    stage.lead(first, State::Retrying).await;
    let before = stage.job(first).await;
    let second = stage.created_unique(UniqueRule::Replace).await;
    assert_eq!(stage.job(first).await, before);
    assert_eq!(stage.enqueue_unique(UniqueRule::Replace).await, Enqueued::Replaced(second));
    stage.lead(second, State::Cancelled).await;
    stage.created_unique(UniqueRule::Replace).await;
}

async fn is_of_its_tenant_and_kind(stage: Stage) {
    stage.created_unique(UniqueRule::Live).await;
    let other_kind = NewJob { kind: kind("other"), ..stage.own_job() };
    let other_tenant = NewJob { tenant: tenant("acme"), ..stage.own_job() };
    for job in [other_kind, other_tenant] {
        stage.enqueue(unique(job, UniqueRule::Live)).await;
    }
}

async fn counts_within_a_batch(stage: Stage) {
    let jobs: Vec<NewJob> = (0..3).map(|_| unique(stage.own_job(), UniqueRule::Live)).collect();
    let first = jobs[0].id;
    let answers = stage.store.enqueue(jobs).await.expect("enqueue");
    assert_eq!(answers, [Enqueued::Created(first), Enqueued::Existing(first), Enqueued::Existing(first)]);
}

async fn sixteen_at_once_make_one(stage: Stage) {
    for rule in [UniqueRule::Live, UniqueRule::For(ms(1_000)), UniqueRule::Replace] {
        let jobs: Vec<NewJob> = (0..16)
            .map(|_| NewJob { tenant: tenant(&format!("{rule:?}")), ..unique(stage.own_job(), rule) })
            .collect();
        let answers = at_once(16, |n| {
            let (store, job) = (stage.store.clone(), jobs[n].clone());
            async move { only(store.enqueue(vec![job]).await.expect("enqueue")) }
        });
        let answers = answers.await;
        let created = answers.iter().filter(|answer| matches!(answer, Enqueued::Created(_))).count();
        assert_eq!(created, 1, "{answers:?}");
        let id = answers[0].id();
        assert!(answers.iter().all(|answer| answer.id() == id), "{answers:?}");
    }
}

async fn is_not_combined_with_an_idempotency_key(stage: Stage) {
    let job = unique(stage.own_job(), UniqueRule::Live).with_key(key("k"));
    assert_eq!(refused(stage.store.enqueue(vec![job]).await).field, "uniqueKey");
}
