//! Transfer of jobs: export, import, and the seal that stops claims meanwhile.

use std::sync::Arc;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::queue_limits::{Order, Partition};
use redrive_core::records::Precondition;
use redrive_core::steps::{NewStep, SignalResult};
use redrive_core::store::{ClaimRequest, EnqueueResult, SettleResult, Settlement, Stats};
use redrive_core::transfer::{
    BEING_FILLED, EXPORT_BYTES_MAX, ExportPage, HeldUniqueKey, ImportResult, JobSnapshot, MOVED_AWAY,
    RecordSnapshot, ReservedKey, SEALED, StoredSignal,
};
use redrive_core::{
    AttemptReport, Job, JobId, NewJob, Parent, PartitionKey, Reason, Start, State, Unique, UniqueKey,
    UniqueRule, Verdict, Wait, WaitCondition,
};
use uuid::Uuid;

use super::chapter;
use super::fixture::{
    LEASE, StoreFixture, claim_request, concurrently, entry, ids, job_id, key, ms, next_epoch, only,
    priority, queue, rejected, settlement, tenant,
};
use super::signals::{signal_name, step_taking};
use super::steps::step;
use crate::epoch_translator::EpochTranslator;
use crate::model_store::ModelStore;

chapter!("transfer":
    an_export_has_everything_of_a_job,
    an_imported_job_is_exported_unchanged,
    an_imported_job_continues_as_before,
    the_next_lease_of_an_imported_job_has_a_greater_epoch,
    an_export_is_paged_by_id,
    an_export_ends_early_when_it_is_large,
    an_unsealed_store_keeps_its_jobs,
    a_store_that_is_being_filled_replaces_its_jobs,
    an_import_is_claimed_at_once,
    sixteen_concurrent_imports_add_it_once,
    an_idempotency_key_in_use_is_a_conflict,
    a_unique_key_in_use_is_a_conflict,
    an_imported_key_is_recognised,
    an_oversized_batch_is_rejected,
);

impl StoreFixture {
    async fn export_all(&self) -> Vec<JobSnapshot> {
        let mut snapshots = Vec::new();
        let mut after = None;
        loop {
            let ExportPage { jobs: more, unreadable, last } =
                self.store.export(after, 1000).await.expect("export");
            assert_eq!(unreadable, []);
            snapshots.extend(more);
            match last {
                Some(last) => after = Some(last),
                None => return snapshots,
            }
        }
    }

    pub(super) async fn snapshot(&self, id: JobId) -> JobSnapshot {
        let found = self.export_all().await.into_iter().find(|snapshot| snapshot.job.id == id);
        found.expect("the job is exported")
    }

    async fn import(&self, snapshots: Vec<JobSnapshot>) -> Vec<ImportResult> {
        self.store.import(snapshots).await.expect("import")
    }

    async fn import_one(&self, snapshot: JobSnapshot) -> ImportResult {
        only(self.import(vec![snapshot]).await)
    }

    pub(super) async fn export_records(&self) -> Vec<RecordSnapshot> {
        self.store.export_records(None, 1000).await.expect("export records")
    }

    pub(super) async fn reserved_keys(&self) -> Vec<ReservedKey> {
        self.store.export_reserved_keys(None, 1000).await.expect("export reserved keys")
    }

    pub(super) async fn seal(&self, id: &str) {
        self.write(SEALED, id, Precondition::Any, Some(b"{}".to_vec())).await;
    }

    pub(super) async fn unseal(&self, id: &str) {
        self.write(SEALED, id, Precondition::Any, None).await;
    }

    /// A model store with the same clock.
    pub(super) fn model(&self) -> StoreFixture {
        StoreFixture::new(Arc::new(ModelStore::new(self.clock.clone())), self.clock.clone())
    }

    /// Fills the store with jobs in every state, and returns a job that uses every field.
    async fn fill(&self) -> Job {
        let everything = self.job_with_all_content().await;
        for state in State::ALL {
            let job = self.in_state(state).await;
            if state == State::Running {
                self.cancel(job.id).await;
            }
        }
        self.enqueue_variants(everything.id).await;
        everything
    }

    /// A job that was attempted and redriven, has steps and signals, and waits.
    async fn job_with_all_content(&self) -> Job {
        let id = self.enqueue(with_every_field(self.own_job())).await;
        self.claim_and_settle(id, Verdict::Retry(ms(1_500))).await;
        self.clock.advance(ms(1_500));
        self.claim_and_settle(id, Verdict::DeadLetter(Reason::BudgetExceeded)).await;
        self.redrive(id).await;
        let job = self.claim_own(id).await;
        for (n, name) in [(9, "go"), (3, "go"), (7, "stop")] {
            assert_eq!(self.signal(id, n, name, &[n as u8; 3]).await, SignalResult::Stored);
        }
        self.store.remember(vec![NewStep::new(job.lease(), step(0, b"\0done"))]).await.expect("remember");
        let go = self.pending(id, &["go"]).await;
        self.store.remember(vec![step_taking(job.lease(), 1, &go[0])]).await.expect("remember");
        let waiting = Verdict::Wait(Wait::until(WaitCondition::Signal(signal_name("later"))));
        let settlement_with_error = Settlement {
            error: Some("it broke".to_owned()),
            status: Some(503),
            entry: Some(AttemptReport { error: None, detail: None, ..entry(&job, "waiting") }),
            ..settlement(job.lease(), waiting)
        };
        self.settle_by(settlement_with_error).await;
        self.store.pause(vec![id]).await.expect("pause");
        self.job(id).await
    }

    /// Enqueues a parent that waits for children, a job that waits for a slot, one with an output, and jobs with a unique key.
    async fn enqueue_variants(&self, parent: JobId) {
        let of = Some(Parent::new(parent, 4));
        self.enqueue(NewJob { parent: of, ..self.own_job() }).await;
        let children = Verdict::Wait(Wait::until(WaitCondition::Children { branch: 4, failures_max: 2 }));
        let waits = self.enqueue(self.own_job()).await;
        self.claim_and_settle(waits, children).await;
        let several = [
            WaitCondition::Signal(signal_name("go")),
            WaitCondition::Children { branch: 4, failures_max: 2 },
        ];
        let several = Verdict::Wait(Wait::until(WaitCondition::any(several).expect("a legal wait")));
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

/// A new job with every field set.
fn with_every_field(job: NewJob) -> NewJob {
    let job = NewJob {
        tenant: tenant("acme"),
        priority: priority(9),
        payload: vec![0, 159, 146, 150],
        parent: Some(Parent { detached: true, ..Parent::new(job_id(77), 3) }),
        timeout: Some(ms(1_001)),
        lease: Some(ms(60_500)),
        target: Some("ä.example".to_owned()),
        metadata: Some(r#"{"k":"🦀"}"#.to_owned()),
        ..job
    };
    job.with_key(key("once"))
}

pub(super) fn unique(job: NewJob, name: &str, rule: UniqueRule) -> NewJob {
    let key = UniqueKey::new(name).expect("a legal key");
    NewJob { unique: Some(Unique { key, rule }), ..job }
}

async fn an_export_has_everything_of_a_job(fixture: StoreFixture) {
    let job = fixture.fill().await;
    let snapshot = fixture.snapshot(job.id).await;
    assert_eq!(snapshot.job, fixture.job(job.id).await);
    assert!(snapshot.job.paused && snapshot.job.run == 2, "{:?}", snapshot.job);
    assert_eq!(snapshot.job.lease_count(), 3);
    assert_eq!(
        snapshot.fingerprint,
        with_every_field(fixture.own_job()).idempotency.map(|_| fingerprint(&job))
    );
    assert_eq!(snapshot.log, fixture.log(job.id).await);
    assert_eq!((snapshot.log.len(), snapshot.steps.len()), (3, 2));
    assert_eq!(snapshot.steps, fixture.recall(job.lease()).await);
    let stored = |id: u128, name: &str, value: &[u8], taken| StoredSignal {
        id: Uuid::from_u128(id),
        name: signal_name(name),
        value: value.to_vec(),
        taken,
    };
    let signals =
        [stored(9, "go", b"", true), stored(3, "go", &[3; 3], false), stored(7, "stop", &[7; 3], false)];
    assert_eq!(snapshot.signals, signals);
    let held: Vec<HeldUniqueKey> =
        fixture.export_all().await.into_iter().filter_map(|snapshot| snapshot.unique).collect();
    let until = |until| move |key: &str| HeldUniqueKey { key: UniqueKey::new(key).expect("legal"), until };
    assert_eq!(held, [until(None)("one"), until(Some(fixture.now().after(LEASE * 9)))("two")]);
}

/// The fingerprint of the request that created `job`, a job that [`with_every_field`] built.
fn fingerprint(job: &Job) -> [u8; 32] {
    let new = NewJob::new(job.id, job.kind.clone(), job.policy.clone(), job.payload.clone());
    let new = NewJob { queue: job.queue.clone(), priority: job.priority, ..new };
    new.with_key(key("once")).idempotency.expect("the job has a key").fingerprint
}

async fn an_imported_job_is_exported_unchanged(fixture: StoreFixture) {
    let model = fixture.model();
    model.fill().await;
    let snapshots = model.export_all().await;
    let states: Vec<State> = snapshots.iter().map(|snapshot| snapshot.job.state).collect();
    assert!(State::ALL.iter().all(|state| states.contains(state)), "{states:?}");
    let answers = fixture.import(snapshots.clone()).await;
    assert!(answers.iter().all(|answer| *answer == ImportResult::Created), "{answers:?}");
    for (original, imported) in snapshots.iter().zip(fixture.export_all().await) {
        assert_eq!(imported, *original);
    }
    assert_eq!(fixture.content().await, model.content().await);
    let counts = |stats: Stats| (stats.counts, stats.oldest_due);
    let stats = fixture.store.stats().await.expect("stats");
    assert_eq!(counts(stats), counts(model.store.stats().await.expect("stats")));
}

async fn an_imported_job_continues_as_before(fixture: StoreFixture) {
    // The model counts leases, and the store may not.
    let store = Arc::new(EpochTranslator::new(fixture.store.clone()));
    let fixture = StoreFixture::new(store, fixture.clock.clone());
    let model = fixture.model();
    let job = model.fill().await;
    fixture.import(model.export_all().await).await;
    fixture.clock.advance(LEASE);
    for side in [&fixture, &model] {
        side.store.unpause(vec![job.id]).await.expect("unpause");
        assert_eq!(side.signal(job.id, 9, "later", b"a repeat").await, SignalResult::Stored);
        assert_eq!(side.store.resume(vec![job.id]).await.expect("resume"), [false]);
        assert_eq!(side.signal(job.id, 10, "later", b"new").await, SignalResult::Stored);
        assert_eq!(side.store.resume(vec![job.id]).await.expect("resume"), [true]);
    }
    for _ in 0..3 {
        let claims = (fixture.claim(1000).await, model.claim(1000).await);
        assert!(!claims.1.is_empty());
        assert_eq!(claims.0, claims.1);
        settle_all(&fixture, &claims.0).await;
        settle_all(&model, &claims.1).await;
        assert_eq!(fixture.reclaim(1000).await, model.reclaim(1000).await);
        fixture.clock.advance(LEASE);
        for side in [&fixture, &model] {
            side.store.sweep(None, 1000).await.expect("sweep");
        }
        assert_eq!(fixture.content().await, model.content().await);
        fixture.enqueue_both(&model).await;
    }
    assert_eq!(fixture.export_all().await, model.export_all().await);
}

/// The jobs may come from a store that has put greater numbers into its epochs than this one has so far.
async fn the_next_lease_of_an_imported_job_has_a_greater_epoch(fixture: StoreFixture) {
    let model = fixture.model();
    for state in [State::Retrying, State::Running] {
        let id = model.in_state(state).await.id;
        let mut snapshot = model.snapshot(id).await;
        snapshot.job.epoch += 1 << 40;
        snapshot.log.iter_mut().for_each(|attempt| attempt.epoch += 1 << 40);
        assert_eq!(fixture.import_one(snapshot.clone()).await, ImportResult::Created);
        assert_eq!(fixture.snapshot(id).await, snapshot);
        fixture.clock.advance(LEASE);
        let next = if state == State::Running {
            only(fixture.reclaim(1).await)
        } else {
            fixture.claim_own(id).await
        };
        next_epoch(&snapshot.job, &next);
        let late = fixture.settle(snapshot.job.lease(), Verdict::Complete(None)).await;
        assert_eq!(late, SettleResult::LeaseLost);
        let settled = fixture.settle(next.lease(), Verdict::Complete(None)).await;
        assert_eq!(settled, SettleResult::Applied(State::Succeeded));
    }
}

impl StoreFixture {
    async fn enqueue_both(&self, other: &StoreFixture) {
        let job = other.new_job();
        assert_eq!(self.enqueue(job.clone()).await, other.enqueue(job).await);
    }
}

async fn settle_all(fixture: &StoreFixture, jobs: &[Job]) {
    for (n, job) in jobs.iter().enumerate() {
        let verdict = if n % 2 == 0 { Verdict::Complete(None) } else { Verdict::Retry(ms(10)) };
        fixture.settle(job.lease(), verdict).await;
    }
}

async fn an_export_is_paged_by_id(fixture: StoreFixture) {
    let enqueued = fixture.enqueue_some(7).await;
    let mut seen = Vec::new();
    let mut after = None;
    for expected in [3, 3, 1, 0] {
        let exported = fixture.store.export(after, 3).await.expect("export");
        assert_eq!(exported.jobs.len(), expected);
        assert_eq!(exported.last, exported.jobs.last().map(|snapshot| snapshot.job.id));
        seen.extend(exported.jobs.into_iter().map(|snapshot| snapshot.job.id));
        after = exported.last.or(after);
    }
    assert_eq!(seen, enqueued);
}

async fn an_export_ends_early_when_it_is_large(fixture: StoreFixture) {
    let large = EXPORT_BYTES_MAX / 3 / 64 / 1024 + 1;
    for _ in 0..8 {
        let lease = fixture.running().await.lease();
        for place in 0..large as u32 {
            let new_step = NewStep::new(lease, step(place, &[place as u8; 64 * 1024]));
            fixture.store.remember(vec![new_step]).await.expect("remember");
        }
    }
    let mut sizes = Vec::new();
    let mut after = None;
    while let Some(last) = fixture
        .store
        .export(after, 1000)
        .await
        .map(|exported| {
            sizes.push(exported.jobs.len());
            assert!(
                exported.jobs.iter().all(|snapshot| snapshot.steps.len() == large),
                "a snapshot is complete"
            );
            exported.last
        })
        .expect("export")
    {
        after = Some(last);
    }
    assert_eq!(sizes, [3, 3, 2, 0]);
}

async fn an_unsealed_store_keeps_its_jobs(fixture: StoreFixture) {
    let job = fixture.job_with_all_content().await;
    let snapshot = fixture.snapshot(job.id).await;
    let other = JobSnapshot {
        job: Job {
            state: State::Pending,
            awaits: None,
            epoch: job.epoch + 96,
            payload: b"other".to_vec(),
            ..job.clone()
        },
        log: Vec::new(),
        steps: Vec::new(),
        signals: Vec::new(),
        ..snapshot.clone()
    };
    assert_eq!(fixture.import(vec![snapshot.clone(), other]).await, [ImportResult::Kept, ImportResult::Kept]);
    assert_eq!(fixture.snapshot(job.id).await, snapshot);
    fixture.seal(MOVED_AWAY).await;
    assert_eq!(fixture.import_one(snapshot).await, ImportResult::Kept);
}

async fn a_store_that_is_being_filled_replaces_its_jobs(fixture: StoreFixture) {
    let model = fixture.model();
    let job = model.fill().await;
    let snapshots = model.export_all().await;
    fixture.import(snapshots.clone()).await;
    for id in [job.id, snapshots[4].job.id] {
        fixture.signal(id, 88, "go", b"in the way").await;
    }
    fixture.seal(BEING_FILLED).await;
    let moved = Job {
        queue: queue("elsewhere"),
        priority: priority(1),
        state: State::Dead,
        awaits: None,
        key: None,
        finished_at: Some(fixture.now()),
        reason: Some(Reason::NotRetryable),
        ..job.clone()
    };
    let bare = JobSnapshot {
        job: moved,
        fingerprint: None,
        unique: None,
        log: Vec::new(),
        steps: Vec::new(),
        signals: Vec::new(),
    };
    assert_eq!(fixture.import_one(bare.clone()).await, ImportResult::Replaced);
    assert_eq!(fixture.snapshot(job.id).await, bare);
    let answers = fixture.import(snapshots.clone()).await;
    assert!(answers.iter().all(|answer| *answer == ImportResult::Replaced), "{answers:?}");
    assert_eq!(fixture.export_all().await, snapshots);
    let stats = fixture.store.stats().await.expect("stats");
    assert_eq!(stats.counts, model.store.stats().await.expect("stats").counts);
    fixture.unseal(BEING_FILLED).await;
    assert_eq!(fixture.import_one(bare).await, ImportResult::Kept);
}

async fn an_import_is_claimed_at_once(fixture: StoreFixture) {
    let wake = fixture.claim_by(claim_request(1)).await.wake;
    let model = fixture.model();
    let id = model.enqueue(model.new_job()).await;
    fixture.import(model.export_all().await).await;
    fixture.store.wait(wake).await;
    assert_eq!(ids(&fixture.claim(10).await), [id]);
}

async fn sixteen_concurrent_imports_add_it_once(fixture: StoreFixture) {
    let model = fixture.model();
    let id = model.job_with_all_content().await.id;
    let snapshots = model.export_all().await;
    let answers = concurrently(16, |_| {
        let (store, snapshots) = (fixture.store.clone(), snapshots.clone());
        async move { only(store.import(snapshots).await.expect("import")) }
    })
    .await;
    let created = answers.iter().filter(|answer| **answer == ImportResult::Created).count();
    assert_eq!((created, answers.len()), (1, 16), "{answers:?}");
    assert_eq!(fixture.snapshot(id).await, snapshots[0]);
}

async fn an_idempotency_key_in_use_is_a_conflict(fixture: StoreFixture) {
    let model = fixture.model();
    let jobs = [fixture.new_job(), fixture.new_job().with_key(key("k")), fixture.new_job()];
    for job in jobs.clone() {
        model.enqueue(job).await;
    }
    let here = fixture.enqueue(fixture.new_job().with_key(key("k"))).await;
    fixture.seal(BEING_FILLED).await;
    let answers = fixture.import(model.export_all().await).await;
    assert_eq!(answers, [ImportResult::Created, ImportResult::Conflict(here), ImportResult::Created]);
    assert_eq!(fixture.find(jobs[1].id).await, None);
    let elsewhere = JobSnapshot {
        job: Job { tenant: tenant("other"), ..model.job(jobs[1].id).await },
        ..model.snapshot(jobs[1].id).await
    };
    assert_eq!(fixture.import_one(elsewhere).await, ImportResult::Created);
}

async fn a_unique_key_in_use_is_a_conflict(fixture: StoreFixture) {
    let model = fixture.model();
    let job = unique(fixture.new_job(), "u", UniqueRule::Live);
    let id = model.enqueue(job).await;
    let here = fixture.enqueue(unique(fixture.own_job(), "u", UniqueRule::Live)).await;
    let snapshot = model.snapshot(id).await;
    assert_eq!(fixture.import_one(snapshot.clone()).await, ImportResult::Conflict(here));
    assert_eq!(fixture.find(id).await, None);
    fixture.bring_to(here, State::Succeeded).await;
    assert_eq!(fixture.import_one(snapshot.clone()).await, ImportResult::Created);
    assert_eq!(fixture.snapshot(id).await, snapshot);
    assert_eq!(fixture.snapshot(here).await.unique, None);
}

async fn an_imported_key_is_recognised(fixture: StoreFixture) {
    let model = fixture.model();
    let first = model.enqueue(fixture.new_job().with_key(key("k"))).await;
    let only_one = model.enqueue(unique(fixture.new_job(), "u", UniqueRule::Live)).await;
    fixture.import(model.export_all().await).await;
    let again = vec![
        fixture.new_job().with_key(key("k")),
        NewJob { payload: b"other".to_vec(), ..fixture.new_job() }.with_key(key("k")),
        unique(fixture.new_job(), "u", UniqueRule::Live),
    ];
    let answers = fixture.store.enqueue(again).await.expect("enqueue");
    let expected =
        [EnqueueResult::Existing(first), EnqueueResult::Conflict(first), EnqueueResult::Existing(only_one)];
    assert_eq!(answers, expected);
}

async fn an_oversized_batch_is_rejected(fixture: StoreFixture) {
    let id = fixture.enqueue(NewJob { start: Start::After(LEASE), ..fixture.new_job() }).await;
    let many = vec![fixture.snapshot(id).await; BATCH_ITEMS_MAX + 1];
    assert_eq!(rejected(fixture.store.import(many).await).field, "batch");
    assert_eq!(rejected(fixture.store.export(None, BATCH_ITEMS_MAX + 1).await).field, "batch");
    let illegal = RecordSnapshot { kind: String::new(), id: "x".to_owned(), version: 1, value: None };
    assert_eq!(rejected(fixture.store.import_records(vec![illegal]).await).field, "kind");
}
