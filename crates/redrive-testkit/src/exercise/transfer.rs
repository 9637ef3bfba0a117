//! Transfer: all of a store's content out and in, and the seal that stops work meanwhile.

use std::sync::Arc;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::quota::{Order, Partition};
use redrive_core::records::Expect;
use redrive_core::steps::{Memory, Signalled};
use redrive_core::store::{ClaimRequest, Enqueued, Settlement, Stats};
use redrive_core::transfer::{
    BEING_FILLED, EXPORT_BYTES_MAX, Exported, Held, Imported, MOVED_AWAY, Parcel, Promise, Received, SEALED,
    Slot,
};
use redrive_core::{
    Await, Entry, Job, JobId, NewJob, Parent, PartitionKey, Reason, Start, State, Unique, UniqueKey,
    UniqueRule, Verdict, Wait,
};
use uuid::Uuid;

use super::chapter;
use super::signals::{named, taking};
use super::stage::{
    LEASE, Stage, at_once, claim_request, entry, ids, job_id, key, ms, only, priority, queue, refused,
    settlement, tenant,
};
use super::steps::step;
use crate::model_store::ModelStore;

chapter!("transfer":
    an_export_has_all_that_a_job_is,
    a_job_comes_out_as_it_went_in,
    what_was_imported_goes_on_as_before,
    an_export_goes_by_id_and_pages,
    an_export_ends_early_when_it_is_large,
    an_open_store_keeps_what_it_has,
    a_store_that_is_filled_takes_the_parcel,
    an_import_is_claimed_at_once,
    sixteen_imports_at_once_add_it_once,
    a_taken_idempotency_key_is_a_conflict_of_its_own,
    a_unique_key_in_force_is_a_conflict_of_its_own,
    a_repeat_under_an_imported_key_is_known,
    too_many_at_once_are_refused,
);

impl Stage {
    async fn export_all(&self) -> Vec<Parcel> {
        let mut parcels = Vec::new();
        let mut after = None;
        loop {
            let Exported { parcels: more, unreadable, last } =
                self.store.export(after, 1000).await.expect("export");
            assert_eq!(unreadable, []);
            parcels.extend(more);
            match last {
                Some(last) => after = Some(last),
                None => return parcels,
            }
        }
    }

    pub(super) async fn parcel(&self, id: JobId) -> Parcel {
        let found = self.export_all().await.into_iter().find(|parcel| parcel.job.id == id);
        found.expect("the job is exported")
    }

    async fn import(&self, parcels: Vec<Parcel>) -> Vec<Imported> {
        self.store.import(parcels).await.expect("import")
    }

    async fn import_one(&self, parcel: Parcel) -> Imported {
        only(self.import(vec![parcel]).await)
    }

    pub(super) async fn slots(&self) -> Vec<Slot> {
        self.store.export_records(None, 1000).await.expect("export records")
    }

    pub(super) async fn promises(&self) -> Vec<Promise> {
        self.store.export_promises(None, 1000).await.expect("export promises")
    }

    pub(super) async fn seal(&self, id: &str) {
        self.write(SEALED, id, Expect::Any, Some(b"{}".to_vec())).await;
    }

    pub(super) async fn unseal(&self, id: &str) {
        self.write(SEALED, id, Expect::Any, None).await;
    }

    /// Another store, of which everything is known, that lives by the same clock.
    pub(super) fn model(&self) -> Stage {
        Stage::new(Arc::new(ModelStore::new(self.clock.clone())), self.clock.clone())
    }

    /// A job with everything a job can have, and jobs in every state beside it.
    async fn fill(&self) -> Job {
        let everything = self.everything().await;
        for state in State::ALL {
            let job = self.in_state(state).await;
            if state == State::Running {
                self.cancel(job.id).await;
            }
        }
        self.branches(everything.id).await;
        everything
    }

    /// A job that was tried, driven again, has remembered, was signalled, and waits.
    async fn everything(&self) -> Job {
        let id = self.enqueue(full(self.own_job())).await;
        self.claim_and_settle(id, Verdict::Retry(ms(1_500))).await;
        self.clock.advance(ms(1_500));
        self.claim_and_settle(id, Verdict::DeadLetter(Reason::BudgetExceeded)).await;
        self.redrive(id).await;
        let job = self.claim_own(id).await;
        for (n, name) in [(9, "go"), (3, "go"), (7, "stop")] {
            assert_eq!(self.signal(id, n, name, &[n as u8; 3]).await, Signalled::Kept);
        }
        self.store.remember(vec![Memory::new(job.lease(), step(0, b"\0done"))]).await.expect("remember");
        let go = self.pending(id, &["go"]).await;
        self.store.remember(vec![taking(job.lease(), 1, &go[0])]).await.expect("remember");
        let waiting = Verdict::Wait(Wait::until(Await::Signal(named("later"))));
        let said = Settlement {
            error: Some("it broke".to_owned()),
            status: Some(503),
            entry: Some(Entry { error: None, detail: None, ..entry(&job, "waiting") }),
            ..settlement(job.lease(), waiting)
        };
        self.settle_by(said).await;
        self.store.hold(vec![id]).await.expect("hold");
        self.job(id).await
    }

    /// A parent that waits for children, one that waits for its turn, one with an output, and one of a unique key.
    async fn branches(&self, parent: JobId) {
        let of = Some(Parent::new(parent, 4));
        self.enqueue(NewJob { parent: of, ..self.own_job() }).await;
        let children = Verdict::Wait(Wait::until(Await::Children { branch: 4, failures_max: 2 }));
        let waits = self.enqueue(self.own_job()).await;
        self.claim_and_settle(waits, children).await;
        let several = [Await::Signal(named("go")), Await::Children { branch: 4, failures_max: 2 }];
        let several = Verdict::Wait(Wait::until(Await::any(several).expect("a legal wait")));
        let selects = self.enqueue(self.own_job()).await;
        self.claim_and_settle(selects, several).await;
        let partition = Partition { key: PartitionKey::new("p").expect("legal"), order: Order::Strict };
        for _ in 0..2 {
            let queue = queue("ordered");
            self.enqueue(NewJob { queue, partition: Some(partition.clone()), ..self.new_job() }).await;
        }
        let of_queue = ClaimRequest { queues: vec![queue("ordered")], ..claim_request(9) };
        assert_eq!(self.claim_by(of_queue).await.jobs.len(), 1);
        let ended = self.enqueue(self.own_job()).await;
        self.claim_and_settle(ended, Verdict::Complete(Some(vec![0, 255]))).await;
        self.enqueue(unique(self.own_job(), "one", UniqueRule::Live)).await;
        self.enqueue(unique(self.own_job(), "two", UniqueRule::For(LEASE * 9))).await;
    }
}

/// A job with everything that a caller can ask for.
fn full(job: NewJob) -> NewJob {
    let job = NewJob {
        tenant: tenant("acme"),
        priority: priority(9),
        payload: vec![0, 159, 146, 150],
        parent: Some(Parent { detached: true, ..Parent::new(job_id(77), 3) }),
        timeout: Some(ms(1_001)),
        lease: Some(ms(60_500)),
        subject: Some("ä.example".to_owned()),
        metadata: Some(r#"{"k":"🦀"}"#.to_owned()),
        ..job
    };
    job.with_key(key("once"))
}

pub(super) fn unique(job: NewJob, name: &str, rule: UniqueRule) -> NewJob {
    let key = UniqueKey::new(name).expect("a legal key");
    NewJob { unique: Some(Unique { key, rule }), ..job }
}

async fn an_export_has_all_that_a_job_is(stage: Stage) {
    let job = stage.fill().await;
    let parcel = stage.parcel(job.id).await;
    assert_eq!(parcel.job, stage.job(job.id).await);
    assert!(parcel.job.held && parcel.job.run == 2 && parcel.job.epoch == 3, "{:?}", parcel.job);
    assert_eq!(parcel.fingerprint, full(stage.own_job()).idempotency.map(|_| fingerprint(&job)));
    assert_eq!(parcel.log, stage.log(job.id).await);
    assert_eq!((parcel.log.len(), parcel.steps.len()), (3, 2));
    assert_eq!(parcel.steps, stage.recall(job.lease()).await);
    let received = |id: u128, name: &str, value: &[u8], taken| Received {
        id: Uuid::from_u128(id),
        name: named(name),
        value: value.to_vec(),
        taken,
    };
    let signals = [
        received(9, "go", b"", true),
        received(3, "go", &[3; 3], false),
        received(7, "stop", &[7; 3], false),
    ];
    assert_eq!(parcel.signals, signals);
    let held: Vec<Held> = stage.export_all().await.into_iter().filter_map(|parcel| parcel.unique).collect();
    let until = |until| move |key: &str| Held { key: UniqueKey::new(key).expect("legal"), until };
    assert_eq!(held, [until(None)("one"), until(Some(stage.now().after(LEASE * 9)))("two")]);
}

/// What a repeat of the full job would be known by.
fn fingerprint(job: &Job) -> [u8; 32] {
    let new = NewJob::new(job.id, job.kind.clone(), job.policy.clone(), job.payload.clone());
    let new = NewJob { queue: job.queue.clone(), priority: job.priority, ..new };
    new.with_key(key("once")).idempotency.expect("it has a key").fingerprint
}

async fn a_job_comes_out_as_it_went_in(stage: Stage) {
    let model = stage.model();
    model.fill().await;
    let parcels = model.export_all().await;
    let states: Vec<State> = parcels.iter().map(|parcel| parcel.job.state).collect();
    assert!(State::ALL.iter().all(|state| states.contains(state)), "{states:?}");
    let answers = stage.import(parcels.clone()).await;
    assert!(answers.iter().all(|answer| *answer == Imported::Created), "{answers:?}");
    for (was, is) in parcels.iter().zip(stage.export_all().await) {
        assert_eq!(is, *was);
    }
    assert_eq!(stage.content().await, model.content().await);
    let counts = |stats: Stats| (stats.counts, stats.oldest_due);
    let stats = stage.store.stats().await.expect("stats");
    assert_eq!(counts(stats), counts(model.store.stats().await.expect("stats")));
}

async fn what_was_imported_goes_on_as_before(stage: Stage) {
    let model = stage.model();
    let job = model.fill().await;
    stage.import(model.export_all().await).await;
    stage.clock.advance(LEASE);
    for side in [&stage, &model] {
        side.store.unhold(vec![job.id]).await.expect("unhold");
        assert_eq!(side.signal(job.id, 9, "later", b"a repeat").await, Signalled::Kept);
        assert_eq!(side.store.resume(vec![job.id]).await.expect("resume"), [false]);
        assert_eq!(side.signal(job.id, 10, "later", b"new").await, Signalled::Kept);
        assert_eq!(side.store.resume(vec![job.id]).await.expect("resume"), [true]);
    }
    for _ in 0..3 {
        let claims = (stage.claim(1000).await, model.claim(1000).await);
        assert!(!claims.1.is_empty());
        assert_eq!(claims.0, claims.1);
        settle_all(&stage, &claims.0).await;
        settle_all(&model, &claims.1).await;
        assert_eq!(stage.reclaim(1000).await, model.reclaim(1000).await);
        stage.clock.advance(LEASE);
        for side in [&stage, &model] {
            side.store.sweep(None, 1000).await.expect("sweep");
        }
        assert_eq!(stage.content().await, model.content().await);
        stage.enqueue_both(&model).await;
    }
    assert_eq!(stage.export_all().await, model.export_all().await);
}

impl Stage {
    async fn enqueue_both(&self, other: &Stage) {
        let job = other.new_job();
        assert_eq!(self.enqueue(job.clone()).await, other.enqueue(job).await);
    }
}

async fn settle_all(stage: &Stage, jobs: &[Job]) {
    for (n, job) in jobs.iter().enumerate() {
        let verdict = if n % 2 == 0 { Verdict::Complete(None) } else { Verdict::Retry(ms(10)) };
        stage.settle(job.lease(), verdict).await;
    }
}

async fn an_export_goes_by_id_and_pages(stage: Stage) {
    let made = stage.enqueue_some(7).await;
    let mut seen = Vec::new();
    let mut after = None;
    for expected in [3, 3, 1, 0] {
        let exported = stage.store.export(after, 3).await.expect("export");
        assert_eq!(exported.parcels.len(), expected);
        assert_eq!(exported.last, exported.parcels.last().map(|parcel| parcel.job.id));
        seen.extend(exported.parcels.into_iter().map(|parcel| parcel.job.id));
        after = exported.last.or(after);
    }
    assert_eq!(seen, made);
}

async fn an_export_ends_early_when_it_is_large(stage: Stage) {
    let large = EXPORT_BYTES_MAX / 3 / 64 / 1024 + 1;
    for _ in 0..8 {
        let lease = stage.running().await.lease();
        for place in 0..large as u32 {
            let memory = Memory::new(lease, step(place, &[place as u8; 64 * 1024]));
            stage.store.remember(vec![memory]).await.expect("remember");
        }
    }
    let mut sizes = Vec::new();
    let mut after = None;
    while let Some(last) = stage
        .store
        .export(after, 1000)
        .await
        .map(|exported| {
            sizes.push(exported.parcels.len());
            assert!(exported.parcels.iter().all(|parcel| parcel.steps.len() == large), "a parcel is whole");
            exported.last
        })
        .expect("export")
    {
        after = Some(last);
    }
    assert_eq!(sizes, [3, 3, 2, 0]);
}

async fn an_open_store_keeps_what_it_has(stage: Stage) {
    let job = stage.everything().await;
    let parcel = stage.parcel(job.id).await;
    let other = Parcel {
        job: Job {
            state: State::Pending,
            awaits: None,
            epoch: 99,
            payload: b"other".to_vec(),
            ..job.clone()
        },
        log: Vec::new(),
        steps: Vec::new(),
        signals: Vec::new(),
        ..parcel.clone()
    };
    assert_eq!(stage.import(vec![parcel.clone(), other]).await, [Imported::Kept, Imported::Kept]);
    assert_eq!(stage.parcel(job.id).await, parcel);
    stage.seal(MOVED_AWAY).await;
    assert_eq!(stage.import_one(parcel).await, Imported::Kept);
}

async fn a_store_that_is_filled_takes_the_parcel(stage: Stage) {
    let model = stage.model();
    let job = model.fill().await;
    let parcels = model.export_all().await;
    stage.import(parcels.clone()).await;
    for id in [job.id, parcels[4].job.id] {
        stage.signal(id, 88, "go", b"in the way").await;
    }
    stage.seal(BEING_FILLED).await;
    let moved = Job {
        queue: queue("elsewhere"),
        priority: priority(1),
        state: State::Dead,
        awaits: None,
        key: None,
        finished_at: Some(stage.now()),
        reason: Some(Reason::NotRetryable),
        ..job.clone()
    };
    let bare = Parcel {
        job: moved,
        fingerprint: None,
        unique: None,
        log: Vec::new(),
        steps: Vec::new(),
        signals: Vec::new(),
    };
    assert_eq!(stage.import_one(bare.clone()).await, Imported::Replaced);
    assert_eq!(stage.parcel(job.id).await, bare);
    let answers = stage.import(parcels.clone()).await;
    assert!(answers.iter().all(|answer| *answer == Imported::Replaced), "{answers:?}");
    assert_eq!(stage.export_all().await, parcels);
    let stats = stage.store.stats().await.expect("stats");
    assert_eq!(stats.counts, model.store.stats().await.expect("stats").counts);
    stage.unseal(BEING_FILLED).await;
    assert_eq!(stage.import_one(bare).await, Imported::Kept);
}

async fn an_import_is_claimed_at_once(stage: Stage) {
    let wake = stage.claim_by(claim_request(1)).await.wake;
    let model = stage.model();
    let id = model.enqueue(model.new_job()).await;
    stage.import(model.export_all().await).await;
    stage.store.wait(wake).await;
    assert_eq!(ids(&stage.claim(10).await), [id]);
}

async fn sixteen_imports_at_once_add_it_once(stage: Stage) {
    let model = stage.model();
    let id = model.everything().await.id;
    let parcels = model.export_all().await;
    let answers = at_once(16, |_| {
        let (store, parcels) = (stage.store.clone(), parcels.clone());
        async move { only(store.import(parcels).await.expect("import")) }
    })
    .await;
    let created = answers.iter().filter(|answer| **answer == Imported::Created).count();
    assert_eq!((created, answers.len()), (1, 16), "{answers:?}");
    assert_eq!(stage.parcel(id).await, parcels[0]);
}

async fn a_taken_idempotency_key_is_a_conflict_of_its_own(stage: Stage) {
    let model = stage.model();
    let jobs = [stage.new_job(), stage.new_job().with_key(key("k")), stage.new_job()];
    for job in jobs.clone() {
        model.enqueue(job).await;
    }
    let here = stage.enqueue(stage.new_job().with_key(key("k"))).await;
    stage.seal(BEING_FILLED).await;
    let answers = stage.import(model.export_all().await).await;
    assert_eq!(answers, [Imported::Created, Imported::Conflict(here), Imported::Created]);
    assert_eq!(stage.find(jobs[1].id).await, None);
    let elsewhere = Parcel {
        job: Job { tenant: tenant("other"), ..model.job(jobs[1].id).await },
        ..model.parcel(jobs[1].id).await
    };
    assert_eq!(stage.import_one(elsewhere).await, Imported::Created);
}

async fn a_unique_key_in_force_is_a_conflict_of_its_own(stage: Stage) {
    let model = stage.model();
    let job = unique(stage.new_job(), "u", UniqueRule::Live);
    let id = model.enqueue(job).await;
    let here = stage.enqueue(unique(stage.own_job(), "u", UniqueRule::Live)).await;
    let parcel = model.parcel(id).await;
    assert_eq!(stage.import_one(parcel.clone()).await, Imported::Conflict(here));
    assert_eq!(stage.find(id).await, None);
    stage.lead(here, State::Succeeded).await;
    assert_eq!(stage.import_one(parcel.clone()).await, Imported::Created);
    assert_eq!(stage.parcel(id).await, parcel);
    assert_eq!(stage.parcel(here).await.unique, None);
}

async fn a_repeat_under_an_imported_key_is_known(stage: Stage) {
    let model = stage.model();
    let first = model.enqueue(stage.new_job().with_key(key("k"))).await;
    let only_one = model.enqueue(unique(stage.new_job(), "u", UniqueRule::Live)).await;
    stage.import(model.export_all().await).await;
    let again = vec![
        stage.new_job().with_key(key("k")),
        NewJob { payload: b"other".to_vec(), ..stage.new_job() }.with_key(key("k")),
        unique(stage.new_job(), "u", UniqueRule::Live),
    ];
    let answers = stage.store.enqueue(again).await.expect("enqueue");
    let expected = [Enqueued::Existing(first), Enqueued::Conflict(first), Enqueued::Existing(only_one)];
    assert_eq!(answers, expected);
}

async fn too_many_at_once_are_refused(stage: Stage) {
    let id = stage.enqueue(NewJob { start: Start::After(LEASE), ..stage.new_job() }).await;
    let many = vec![stage.parcel(id).await; BATCH_ITEMS_MAX + 1];
    assert_eq!(refused(stage.store.import(many).await).field, "batch");
    assert_eq!(refused(stage.store.export(None, BATCH_ITEMS_MAX + 1).await).field, "batch");
    let illegal = Slot { kind: String::new(), id: "x".to_owned(), version: 1, value: None };
    assert_eq!(refused(stage.store.import_records(vec![illegal]).await).field, "kind");
}
