//! Enqueue: durable, once, and all or nothing.

use std::time::Duration;

use redrive_core::limits::{
    BATCH_ITEMS_MAX, HORIZON, LEASE_MAX, LEASE_MIN, PAYLOAD_BYTES_MAX, SUBJECT_BYTES_MAX,
};
use redrive_core::store::{Enqueued, Retention};
use redrive_core::{Job, NewJob, Start, State};

use super::chapter;
use super::stage::{Stage, at_once, job_id, key, kind, ms, only, priority, queue, refused, tenant};

chapter!("enqueue":
    a_new_job_has_every_column_as_asked,
    a_start_decides_when_it_is_due,
    a_fraction_of_a_millisecond_never_runs_early,
    odd_bytes_and_names_come_back_unchanged,
    empty_is_not_absent,
    the_same_id_is_added_once,
    the_same_key_finds_the_first_job,
    the_same_key_with_another_request_is_a_conflict,
    keys_belong_to_their_tenant,
    the_id_is_looked_at_before_the_key,
    repeats_within_a_batch_are_found,
    a_find_answers_as_an_enqueue_would,
    a_find_adds_nothing_and_takes_no_key,
    a_key_is_taken_in_every_state,
    a_discard_frees_key_and_id,
    a_prune_frees_key_and_id,
    one_key_from_64_callers_makes_one_job,
    one_id_from_64_callers_makes_one_job,
    an_illegal_job_refuses_the_whole_batch,
    limits_are_exact_and_named,
    an_empty_batch_is_no_error,
);

async fn a_new_job_has_every_column_as_asked(stage: Stage) {
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
        subject: Some("https://example.test/ü?q=🦀".to_owned()),
        lease: Some(Duration::from_millis(1_500)),
        ..stage.new_job()
    }
    .with_key(key("order-1"));
    let id = stage.enqueue(new.clone()).await;
    assert_eq!(stage.job(id).await, expected(&stage, new));
}

async fn a_start_decides_when_it_is_due(stage: Stage) {
    let past = stage.now().before(ms(5_000));
    let cases = [
        (Start::Now, stage.now()),
        (Start::After(ms(1)), stage.now().after(ms(1))),
        (Start::At(past), past),
        (Start::At(stage.now().after(HORIZON)), stage.now().after(HORIZON)),
    ];
    for (start, due) in cases {
        let id = stage.enqueue(NewJob { start, ..stage.new_job() }).await;
        let job = stage.job(id).await;
        assert_eq!((job.next_run_at, job.began_at), (due, due), "{start:?}");
        assert_eq!(job.created_at, stage.now(), "{start:?}");
    }
}

async fn a_fraction_of_a_millisecond_never_runs_early(stage: Stage) {
    let start = Start::After(Duration::from_micros(1_001));
    let id = stage.enqueue(NewJob { start, ..stage.new_job() }).await;
    assert_eq!(stage.job(id).await.next_run_at, stage.now().after(ms(2)));
}

async fn odd_bytes_and_names_come_back_unchanged(stage: Stage) {
    let bytes: Vec<u8> = (0..=255).chain([0, 0, 255, 254, 0]).collect();
    let new = NewJob {
        tenant: tenant("Ünïcode 🦀 '; DROP TABLE jobs; --"),
        queue: queue("очередь \"q\" %_*"),
        kind: kind("種類\\{}:/"),
        payload: bytes,
        metadata: Some("line\nbreak\ttab 'quote' \"double\" \\ 🦀 \u{feff}".to_owned()),
        ..stage.new_job()
    }
    .with_key(key("clé=🔑&?"));
    let id = stage.enqueue(new.clone()).await;
    assert_eq!(stage.job(id).await, expected(&stage, new.clone()));
    let again = NewJob { id: job_id(99), ..new };
    assert_eq!(only(stage.store.enqueue(vec![again]).await.expect("enqueue")), Enqueued::Existing(id));
}

async fn empty_is_not_absent(stage: Stage) {
    for metadata in [None, Some(String::new())] {
        let new = NewJob { payload: Vec::new(), metadata, ..stage.new_job() };
        let id = stage.enqueue(new.clone()).await;
        assert_eq!(stage.job(id).await, expected(&stage, new));
    }
}

async fn the_same_id_is_added_once(stage: Stage) {
    let first = stage.new_job();
    let id = stage.enqueue(first.clone()).await;
    let repeat = NewJob { payload: b"other".to_vec(), queue: queue("other"), ..first.clone() };
    stage.clock.advance(ms(10));
    for again in [first.clone(), repeat] {
        assert_eq!(add(&stage, again).await, Enqueued::Existing(id));
    }
    stage.clock.set(crate::clock::START);
    assert_eq!(stage.job(id).await, expected(&stage, first));
    assert_eq!(stage.content().await.len(), 1);
}

async fn the_same_key_finds_the_first_job(stage: Stage) {
    let id = stage.enqueue(stage.new_job().with_key(key("k"))).await;
    let before = stage.content().await;
    let later = NewJob {
        start: Start::After(ms(50)),
        metadata: Some("not part of the request".to_owned()),
        ..stage.new_job()
    };
    assert_eq!(add(&stage, later.with_key(key("k"))).await, Enqueued::Existing(id));
    assert_eq!(stage.content().await, before);
}

async fn the_same_key_with_another_request_is_a_conflict(stage: Stage) {
    let id = stage.enqueue(stage.new_job().with_key(key("k"))).await;
    let before = stage.content().await;
    let other = NewJob { payload: b"other".to_vec(), ..stage.new_job() };
    assert_eq!(add(&stage, other.with_key(key("k"))).await, Enqueued::Conflict(id));
    assert_eq!(stage.content().await, before);
}

async fn keys_belong_to_their_tenant(stage: Stage) {
    let of = |name: &str| NewJob { tenant: tenant(name), ..stage.new_job() };
    let ours = stage.enqueue(of("a").with_key(key("k"))).await;
    let theirs = stage.enqueue(of("b").with_key(key("k"))).await;
    stage.enqueue(of("a").with_key(key("K"))).await;
    assert_eq!(add(&stage, of("a").with_key(key("k"))).await, Enqueued::Existing(ours));
    assert_eq!(add(&stage, of("b").with_key(key("k"))).await, Enqueued::Existing(theirs));
}

async fn the_id_is_looked_at_before_the_key(stage: Stage) {
    let plain = stage.enqueue(stage.new_job()).await;
    stage.enqueue(stage.new_job().with_key(key("k"))).await;
    let both = NewJob { id: plain, ..stage.new_job() };
    assert_eq!(add(&stage, both.with_key(key("k"))).await, Enqueued::Existing(plain));
}

async fn repeats_within_a_batch_are_found(stage: Stage) {
    let plain = stage.new_job();
    let keyed = stage.new_job().with_key(key("k"));
    let same = stage.new_job().with_key(key("k"));
    let other = NewJob { kind: kind("other"), ..stage.new_job() }.with_key(key("k"));
    let last = stage.new_job();
    let batch = vec![plain.clone(), keyed.clone(), plain.clone(), same, other, last.clone()];
    let answers = stage.store.enqueue(batch).await.expect("enqueue");
    let expected = [
        Enqueued::Created(plain.id),
        Enqueued::Created(keyed.id),
        Enqueued::Existing(plain.id),
        Enqueued::Existing(keyed.id),
        Enqueued::Conflict(keyed.id),
        Enqueued::Created(last.id),
    ];
    assert_eq!(answers, expected);
    assert_eq!(stage.content().await.len(), 3);
}

async fn a_find_answers_as_an_enqueue_would(stage: Stage) {
    let of = |name: &str| NewJob { tenant: tenant(name), ..stage.new_job() };
    let held = stage.enqueue(of("a").with_key(key("k"))).await;
    let plain = stage.new_job();
    let known = stage.enqueue(plain.clone()).await;
    let other = NewJob { payload: b"other".to_vec(), ..of("a") };
    let asked = [
        (of("a").with_key(key("k")), Some(Enqueued::Existing(held))),
        (other.with_key(key("k")), Some(Enqueued::Conflict(held))),
        (of("b").with_key(key("k")), None),
        (of("a").with_key(key("K")), None),
        (of("a"), None),
        (plain, Some(Enqueued::Existing(known))),
        // A payload is not looked at, only what was asked for under the key.
        (NewJob { payload: Vec::new(), ..of("a").with_key(key("k")) }, Some(Enqueued::Existing(held))),
    ];
    let (jobs, answers): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    assert_eq!(stage.store.find(jobs.clone()).await.expect("find"), answers);
    for (job, answer) in jobs.into_iter().zip(answers).take(2) {
        assert_eq!(Some(add(&stage, job).await), answer, "an enqueue says the same");
    }
    assert_eq!(stage.store.find(Vec::new()).await.expect("find"), []);
    let many = (0..=BATCH_ITEMS_MAX).map(|_| stage.new_job()).collect();
    assert_eq!(refused(stage.store.find(many).await).field, "batch");
}

async fn a_find_adds_nothing_and_takes_no_key(stage: Stage) {
    let first = stage.new_job().with_key(key("k"));
    let before = stage.content().await;
    for _ in 0..2 {
        assert_eq!(only(stage.store.find(vec![first.clone()]).await.expect("find")), None);
    }
    assert_eq!(stage.content().await, before);
    let id = first.id;
    assert_eq!(add(&stage, first).await, Enqueued::Created(id));
}

async fn a_key_is_taken_in_every_state(stage: Stage) {
    for state in State::ALL {
        let new = stage.own_job().with_key(key(state.name()));
        let id = stage.enqueue(new.clone()).await;
        stage.lead(id, state).await;
        let again = NewJob { id: stage.new_job().id, ..new };
        assert_eq!(add(&stage, again).await, Enqueued::Existing(id), "{state}");
    }
}

async fn a_discard_frees_key_and_id(stage: Stage) {
    let new = stage.own_job().with_key(key("k"));
    let id = stage.enqueue(new.clone()).await;
    stage.lead(id, State::Dead).await;
    stage.store.discard(vec![id]).await.expect("discard");
    stage.enqueue(new.clone()).await;
    assert_eq!(stage.content().await, [(expected(&stage, new), Vec::new())]);
}

async fn a_prune_frees_key_and_id(stage: Stage) {
    let new = stage.own_job().with_key(key("k"));
    let id = stage.enqueue(new.clone()).await;
    stage.lead(id, State::Succeeded).await;
    let at_once = Retention { succeeded: Duration::ZERO, ..Retention::default() };
    assert_eq!(stage.store.prune(at_once, 10).await.expect("prune"), 1);
    stage.enqueue(new.clone()).await;
    assert_eq!(stage.content().await, [(expected(&stage, new), Vec::new())]);
}

async fn one_key_from_64_callers_makes_one_job(stage: Stage) {
    let answers = at_once(64, |_| {
        let (store, new) = (stage.store.clone(), stage.new_job().with_key(key("k")));
        async move { only(store.enqueue(vec![new]).await.expect("enqueue")) }
    })
    .await;
    one_created(&answers);
    assert_eq!(stage.content().await.len(), 1);
}

async fn one_id_from_64_callers_makes_one_job(stage: Stage) {
    let new = stage.new_job();
    let answers = at_once(64, |_| {
        let (store, new) = (stage.store.clone(), new.clone());
        async move { only(store.enqueue(vec![new]).await.expect("enqueue")) }
    })
    .await;
    one_created(&answers);
    assert_eq!(stage.content().await.len(), 1);
}

async fn an_illegal_job_refuses_the_whole_batch(stage: Stage) {
    let cases = [
        ("payload", NewJob { payload: vec![0; PAYLOAD_BYTES_MAX + 1], ..stage.new_job() }),
        ("subject", NewJob { subject: Some("x".repeat(SUBJECT_BYTES_MAX + 1)), ..stage.new_job() }),
        ("lease", NewJob { lease: Some(LEASE_MIN - Duration::from_millis(1)), ..stage.new_job() }),
        ("lease", NewJob { lease: Some(LEASE_MAX + Duration::from_millis(1)), ..stage.new_job() }),
        ("metadata", NewJob { metadata: Some("x".repeat(PAYLOAD_BYTES_MAX + 1)), ..stage.new_job() }),
        ("metadata", NewJob { metadata: Some("a\0b".to_owned()), ..stage.new_job() }),
        ("subject", NewJob { subject: Some("a\0b".to_owned()), ..stage.new_job() }),
        ("runAt", NewJob { start: Start::After(HORIZON + ms(1)), ..stage.new_job() }),
        ("runAt", NewJob { start: Start::At(stage.now().after(HORIZON + ms(1))), ..stage.new_job() }),
    ];
    for (field, illegal) in cases {
        let batch = vec![stage.new_job(), illegal, stage.new_job()];
        assert_eq!(refused(stage.store.enqueue(batch).await).field, field);
        assert_eq!(stage.content().await, [], "{field}");
    }
}

async fn limits_are_exact_and_named(stage: Stage) {
    let largest = NewJob {
        payload: vec![1; PAYLOAD_BYTES_MAX],
        metadata: Some("x".repeat(PAYLOAD_BYTES_MAX)),
        subject: Some("x".repeat(SUBJECT_BYTES_MAX)),
        lease: Some(LEASE_MAX),
        ..stage.new_job()
    };
    let id = stage.enqueue(largest.clone()).await;
    assert_eq!(stage.job(id).await, expected(&stage, largest));
    let many = |count: usize| (0..count).map(|_| stage.new_job()).collect::<Vec<_>>();
    let too_many = many(BATCH_ITEMS_MAX + 1);
    assert_eq!(refused(stage.store.enqueue(too_many).await).field, "batch");
    let most = stage.store.enqueue(many(BATCH_ITEMS_MAX)).await.expect("a full batch");
    assert_eq!(most.len(), BATCH_ITEMS_MAX);
}

async fn an_empty_batch_is_no_error(stage: Stage) {
    assert_eq!(stage.store.enqueue(Vec::new()).await.expect("enqueue"), []);
}

async fn add(stage: &Stage, new: NewJob) -> Enqueued {
    only(stage.store.enqueue(vec![new]).await.expect("enqueue"))
}

fn one_created(answers: &[Enqueued]) {
    let created: Vec<&Enqueued> = answers.iter().filter(|a| matches!(a, Enqueued::Created(_))).collect();
    assert_eq!(created.len(), 1, "{answers:?}");
    let id = created[0].id();
    let repeats = answers.iter().filter(|a| **a == Enqueued::Existing(id)).count();
    assert_eq!(repeats, answers.len() - 1, "{answers:?}");
}

/// The row that a new job becomes.
fn expected(stage: &Stage, new: NewJob) -> Job {
    let due = new.start.resolve(stage.now()).expect("a legal start");
    Job {
        id: new.id,
        tenant: new.tenant,
        queue: new.queue,
        kind: new.kind,
        state: State::Pending,
        priority: new.priority,
        policy: new.policy,
        payload: new.payload,
        key: new.idempotency.map(|asked| asked.key),
        subject: new.subject,
        metadata: new.metadata,
        timeout: new.timeout,
        lease: new.lease,
        partition: new.partition,
        parent: new.parent,
        awaits: None,
        held: false,
        run: 1,
        attempt: 0,
        epoch: 0,
        created_at: stage.now(),
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
