//! Enqueue: adds each job once, and a batch as a whole or not at all.

use std::time::Duration;

use redrive_core::limits::{
    BATCH_ITEMS_MAX, HORIZON, LEASE_MAX, LEASE_MIN, PAYLOAD_BYTES_MAX, TARGET_BYTES_MAX,
};
use redrive_core::store::{EnqueueResult, Retention};
use redrive_core::{Job, NewJob, Start, State};

use super::chapter;
use super::fixture::{
    StoreFixture, concurrently, job_id, key, kind, ms, only, priority, queue, rejected, tenant,
};

chapter!("enqueue":
    a_new_job_has_the_requested_fields,
    the_start_decides_when_a_job_is_due,
    a_fraction_of_a_millisecond_never_runs_early,
    unusual_bytes_and_names_are_stored_unchanged,
    an_empty_value_is_not_absent,
    the_same_id_is_added_once,
    the_same_key_finds_the_first_job,
    the_same_key_with_another_request_is_a_conflict,
    keys_belong_to_their_tenant,
    the_id_is_compared_before_the_key,
    repeats_within_a_batch_are_found,
    a_find_returns_what_an_enqueue_would,
    a_find_adds_no_job_and_reserves_no_key,
    a_key_is_in_use_in_every_state,
    a_discard_frees_key_and_id,
    a_prune_frees_key_and_id,
    one_key_from_64_callers_creates_one_job,
    one_id_from_64_callers_creates_one_job,
    an_invalid_job_rejects_the_whole_batch,
    size_limits_are_exact_and_name_the_field,
    an_empty_batch_succeeds,
);

async fn a_new_job_has_the_requested_fields(fixture: StoreFixture) {
    let new = NewJob {
        tenant: tenant("acme"),
        queue: queue("mail"),
        kind: kind("send"),
        priority: priority(9),
        policy: "strict@7".parse().expect("a reference"),
        payload: b"hello".to_vec(),
        start: Start::After(ms(1_500)),
        timeout: Some(ms(2_500)),
        metadata: Some("{\"trace\":1}".to_owned()),
        target: Some("https://example.test/ü?q=🦀".to_owned()),
        lease: Some(Duration::from_millis(1_500)),
        ..fixture.new_job()
    }
    .with_key(key("order-1"));
    let id = fixture.enqueue(new.clone()).await;
    assert_eq!(fixture.job(id).await, expected(&fixture, new));
}

async fn the_start_decides_when_a_job_is_due(fixture: StoreFixture) {
    let past = fixture.now().before(ms(5_000));
    let cases = [
        (Start::Now, fixture.now()),
        (Start::After(ms(1)), fixture.now().after(ms(1))),
        (Start::At(past), past),
        (Start::At(fixture.now().after(HORIZON)), fixture.now().after(HORIZON)),
    ];
    for (start, due) in cases {
        let id = fixture.enqueue(NewJob { start, ..fixture.new_job() }).await;
        let job = fixture.job(id).await;
        assert_eq!((job.next_run_at, job.began_at), (due, due), "{start:?}");
        assert_eq!(job.created_at, fixture.now(), "{start:?}");
    }
}

async fn a_fraction_of_a_millisecond_never_runs_early(fixture: StoreFixture) {
    let start = Start::After(Duration::from_micros(1_001));
    let id = fixture.enqueue(NewJob { start, ..fixture.new_job() }).await;
    assert_eq!(fixture.job(id).await.next_run_at, fixture.now().after(ms(2)));
}

async fn unusual_bytes_and_names_are_stored_unchanged(fixture: StoreFixture) {
    let bytes: Vec<u8> = (0..=255).chain([0, 0, 255, 254, 0]).collect();
    let new = NewJob {
        tenant: tenant("Ünïcode 🦀 '; DROP TABLE jobs; --"),
        queue: queue("очередь \"q\" %_*"),
        kind: kind("種類\\{}:/"),
        payload: bytes,
        metadata: Some("line\nbreak\ttab 'quote' \"double\" \\ 🦀 \u{feff}".to_owned()),
        ..fixture.new_job()
    }
    .with_key(key("clé=🔑&?"));
    let id = fixture.enqueue(new.clone()).await;
    assert_eq!(fixture.job(id).await, expected(&fixture, new.clone()));
    let again = NewJob { id: job_id(99), ..new };
    assert_eq!(only(fixture.store.enqueue(vec![again]).await.expect("enqueue")), EnqueueResult::Existing(id));
}

async fn an_empty_value_is_not_absent(fixture: StoreFixture) {
    for metadata in [None, Some(String::new())] {
        let new = NewJob { payload: Vec::new(), metadata, ..fixture.new_job() };
        let id = fixture.enqueue(new.clone()).await;
        assert_eq!(fixture.job(id).await, expected(&fixture, new));
    }
}

async fn the_same_id_is_added_once(fixture: StoreFixture) {
    let first = fixture.new_job();
    let id = fixture.enqueue(first.clone()).await;
    let repeat = NewJob { payload: b"other".to_vec(), queue: queue("other"), ..first.clone() };
    fixture.clock.advance(ms(10));
    for again in [first.clone(), repeat] {
        assert_eq!(add(&fixture, again).await, EnqueueResult::Existing(id));
    }
    fixture.clock.set(crate::clock::START);
    assert_eq!(fixture.job(id).await, expected(&fixture, first));
    assert_eq!(fixture.content().await.len(), 1);
}

async fn the_same_key_finds_the_first_job(fixture: StoreFixture) {
    let id = fixture.enqueue(fixture.new_job().with_key(key("k"))).await;
    let before = fixture.content().await;
    let later = NewJob {
        start: Start::After(ms(50)),
        metadata: Some("not part of the request".to_owned()),
        ..fixture.new_job()
    };
    assert_eq!(add(&fixture, later.with_key(key("k"))).await, EnqueueResult::Existing(id));
    assert_eq!(fixture.content().await, before);
}

async fn the_same_key_with_another_request_is_a_conflict(fixture: StoreFixture) {
    let id = fixture.enqueue(fixture.new_job().with_key(key("k"))).await;
    let before = fixture.content().await;
    let other = NewJob { payload: b"other".to_vec(), ..fixture.new_job() };
    assert_eq!(add(&fixture, other.with_key(key("k"))).await, EnqueueResult::Conflict(id));
    assert_eq!(fixture.content().await, before);
}

async fn keys_belong_to_their_tenant(fixture: StoreFixture) {
    let of = |name: &str| NewJob { tenant: tenant(name), ..fixture.new_job() };
    let first_tenant = fixture.enqueue(of("a").with_key(key("k"))).await;
    let second_tenant = fixture.enqueue(of("b").with_key(key("k"))).await;
    fixture.enqueue(of("a").with_key(key("K"))).await;
    assert_eq!(add(&fixture, of("a").with_key(key("k"))).await, EnqueueResult::Existing(first_tenant));
    assert_eq!(add(&fixture, of("b").with_key(key("k"))).await, EnqueueResult::Existing(second_tenant));
}

async fn the_id_is_compared_before_the_key(fixture: StoreFixture) {
    let plain = fixture.enqueue(fixture.new_job()).await;
    fixture.enqueue(fixture.new_job().with_key(key("k"))).await;
    let both = NewJob { id: plain, ..fixture.new_job() };
    assert_eq!(add(&fixture, both.with_key(key("k"))).await, EnqueueResult::Existing(plain));
}

async fn repeats_within_a_batch_are_found(fixture: StoreFixture) {
    let plain = fixture.new_job();
    let keyed = fixture.new_job().with_key(key("k"));
    let same = fixture.new_job().with_key(key("k"));
    let other = NewJob { kind: kind("other"), ..fixture.new_job() }.with_key(key("k"));
    let last = fixture.new_job();
    let batch = vec![plain.clone(), keyed.clone(), plain.clone(), same, other, last.clone()];
    let answers = fixture.store.enqueue(batch).await.expect("enqueue");
    let expected = [
        EnqueueResult::Created(plain.id),
        EnqueueResult::Created(keyed.id),
        EnqueueResult::Existing(plain.id),
        EnqueueResult::Existing(keyed.id),
        EnqueueResult::Conflict(keyed.id),
        EnqueueResult::Created(last.id),
    ];
    assert_eq!(answers, expected);
    assert_eq!(fixture.content().await.len(), 3);
}

async fn a_find_returns_what_an_enqueue_would(fixture: StoreFixture) {
    let of = |name: &str| NewJob { tenant: tenant(name), ..fixture.new_job() };
    let held = fixture.enqueue(of("a").with_key(key("k"))).await;
    let plain = fixture.new_job();
    let known = fixture.enqueue(plain.clone()).await;
    let other = NewJob { payload: b"other".to_vec(), ..of("a") };
    let cases = [
        (of("a").with_key(key("k")), Some(EnqueueResult::Existing(held))),
        (other.with_key(key("k")), Some(EnqueueResult::Conflict(held))),
        (of("b").with_key(key("k")), None),
        (of("a").with_key(key("K")), None),
        (of("a"), None),
        (plain, Some(EnqueueResult::Existing(known))),
        // The store compares the fingerprint of the request, not the payload.
        (NewJob { payload: Vec::new(), ..of("a").with_key(key("k")) }, Some(EnqueueResult::Existing(held))),
    ];
    let (jobs, answers): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    assert_eq!(fixture.store.find(jobs.clone()).await.expect("find"), answers);
    for (job, answer) in jobs.into_iter().zip(answers).take(2) {
        assert_eq!(Some(add(&fixture, job).await), answer, "an enqueue returns the same");
    }
    assert_eq!(fixture.store.find(Vec::new()).await.expect("find"), []);
    let many = (0..=BATCH_ITEMS_MAX).map(|_| fixture.new_job()).collect();
    assert_eq!(rejected(fixture.store.find(many).await).field, "batch");
}

async fn a_find_adds_no_job_and_reserves_no_key(fixture: StoreFixture) {
    let first = fixture.new_job().with_key(key("k"));
    let before = fixture.content().await;
    for _ in 0..2 {
        assert_eq!(only(fixture.store.find(vec![first.clone()]).await.expect("find")), None);
    }
    assert_eq!(fixture.content().await, before);
    let id = first.id;
    assert_eq!(add(&fixture, first).await, EnqueueResult::Created(id));
}

async fn a_key_is_in_use_in_every_state(fixture: StoreFixture) {
    for state in State::ALL {
        let new = fixture.own_job().with_key(key(state.name()));
        let id = fixture.enqueue(new.clone()).await;
        fixture.bring_to(id, state).await;
        let again = NewJob { id: fixture.new_job().id, ..new };
        assert_eq!(add(&fixture, again).await, EnqueueResult::Existing(id), "{state}");
    }
}

async fn a_discard_frees_key_and_id(fixture: StoreFixture) {
    let new = fixture.own_job().with_key(key("k"));
    let id = fixture.enqueue(new.clone()).await;
    fixture.bring_to(id, State::Dead).await;
    fixture.store.discard(vec![id]).await.expect("discard");
    fixture.enqueue(new.clone()).await;
    assert_eq!(fixture.content().await, [(expected(&fixture, new), Vec::new())]);
}

async fn a_prune_frees_key_and_id(fixture: StoreFixture) {
    let new = fixture.own_job().with_key(key("k"));
    let id = fixture.enqueue(new.clone()).await;
    fixture.bring_to(id, State::Succeeded).await;
    let no_retention = Retention { succeeded: Duration::ZERO, ..Retention::default() };
    assert_eq!(fixture.store.prune(no_retention, 10).await.expect("prune"), 1);
    fixture.enqueue(new.clone()).await;
    assert_eq!(fixture.content().await, [(expected(&fixture, new), Vec::new())]);
}

async fn one_key_from_64_callers_creates_one_job(fixture: StoreFixture) {
    let answers = concurrently(64, |_| {
        let (store, new) = (fixture.store.clone(), fixture.new_job().with_key(key("k")));
        async move { only(store.enqueue(vec![new]).await.expect("enqueue")) }
    })
    .await;
    assert_one_created(&answers);
    assert_eq!(fixture.content().await.len(), 1);
}

async fn one_id_from_64_callers_creates_one_job(fixture: StoreFixture) {
    let new = fixture.new_job();
    let answers = concurrently(64, |_| {
        let (store, new) = (fixture.store.clone(), new.clone());
        async move { only(store.enqueue(vec![new]).await.expect("enqueue")) }
    })
    .await;
    assert_one_created(&answers);
    assert_eq!(fixture.content().await.len(), 1);
}

async fn an_invalid_job_rejects_the_whole_batch(fixture: StoreFixture) {
    let cases = [
        ("payload", NewJob { payload: vec![0; PAYLOAD_BYTES_MAX + 1], ..fixture.new_job() }),
        ("target", NewJob { target: Some("x".repeat(TARGET_BYTES_MAX + 1)), ..fixture.new_job() }),
        ("lease", NewJob { lease: Some(LEASE_MIN - Duration::from_millis(1)), ..fixture.new_job() }),
        ("lease", NewJob { lease: Some(LEASE_MAX + Duration::from_millis(1)), ..fixture.new_job() }),
        ("metadata", NewJob { metadata: Some("x".repeat(PAYLOAD_BYTES_MAX + 1)), ..fixture.new_job() }),
        ("metadata", NewJob { metadata: Some("a\0b".to_owned()), ..fixture.new_job() }),
        ("target", NewJob { target: Some("a\0b".to_owned()), ..fixture.new_job() }),
        ("runAt", NewJob { start: Start::After(HORIZON + ms(1)), ..fixture.new_job() }),
        ("runAt", NewJob { start: Start::At(fixture.now().after(HORIZON + ms(1))), ..fixture.new_job() }),
    ];
    for (field, illegal) in cases {
        let batch = vec![fixture.new_job(), illegal, fixture.new_job()];
        assert_eq!(rejected(fixture.store.enqueue(batch).await).field, field);
        assert_eq!(fixture.content().await, [], "{field}");
    }
}

async fn size_limits_are_exact_and_name_the_field(fixture: StoreFixture) {
    let largest = NewJob {
        payload: vec![1; PAYLOAD_BYTES_MAX],
        metadata: Some("x".repeat(PAYLOAD_BYTES_MAX)),
        target: Some("x".repeat(TARGET_BYTES_MAX)),
        lease: Some(LEASE_MAX),
        ..fixture.new_job()
    };
    let id = fixture.enqueue(largest.clone()).await;
    assert_eq!(fixture.job(id).await, expected(&fixture, largest));
    let many = |count: usize| (0..count).map(|_| fixture.new_job()).collect::<Vec<_>>();
    let too_many = many(BATCH_ITEMS_MAX + 1);
    assert_eq!(rejected(fixture.store.enqueue(too_many).await).field, "batch");
    let most = fixture.store.enqueue(many(BATCH_ITEMS_MAX)).await.expect("a full batch");
    assert_eq!(most.len(), BATCH_ITEMS_MAX);
}

async fn an_empty_batch_succeeds(fixture: StoreFixture) {
    assert_eq!(fixture.store.enqueue(Vec::new()).await.expect("enqueue"), []);
}

async fn add(fixture: &StoreFixture, new: NewJob) -> EnqueueResult {
    only(fixture.store.enqueue(vec![new]).await.expect("enqueue"))
}

fn assert_one_created(answers: &[EnqueueResult]) {
    let created: Vec<&EnqueueResult> =
        answers.iter().filter(|a| matches!(a, EnqueueResult::Created(_))).collect();
    assert_eq!(created.len(), 1, "{answers:?}");
    let id = created[0].id();
    let repeats = answers.iter().filter(|a| **a == EnqueueResult::Existing(id)).count();
    assert_eq!(repeats, answers.len() - 1, "{answers:?}");
}

/// The job that a new job becomes.
fn expected(fixture: &StoreFixture, new: NewJob) -> Job {
    let due = new.start.resolve(fixture.now()).expect("a legal start");
    Job {
        id: new.id,
        tenant: new.tenant,
        queue: new.queue,
        kind: new.kind,
        state: State::Pending,
        priority: new.priority,
        policy: new.policy,
        payload: new.payload,
        key: new.idempotency.map(|idempotency| idempotency.key),
        target: new.target,
        metadata: new.metadata,
        timeout: new.timeout,
        lease: new.lease,
        partition: new.partition,
        parent: new.parent,
        awaits: None,
        paused: false,
        run: 1,
        attempt: 0,
        epoch: 0,
        created_at: fixture.now(),
        began_at: due,
        next_run_at: due,
        started_at: None,
        lease_until: None,
        worker: None,
        wait: None,
        cancel_requested: false,
        finished_at: None,
        output: None,
        last_error: None,
        last_status: None,
        reason: None,
    }
}
