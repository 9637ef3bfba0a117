//! Generates calls. It uses few names and few times, so that calls often affect the same jobs.

use std::time::Duration;

use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest_state_machine::ReferenceStateMachine;
use redrive_core::limits::{HORIZON, LEASE_MIN};
use redrive_core::queue_limits::{Limits, QUEUE_LIMITS, Rate};
use redrive_core::records::{EVERY_QUEUE, PAUSED, Precondition, RecordWrite};
use redrive_core::steps::{NewStep, Signal, Step, StepKind};
use redrive_core::store::{ClaimRequest, Cursor, Filter, PageRequest, ReclaimRequest, Retention, Settlement};
use redrive_core::transfer::{BEING_FILLED, MOVED_AWAY, RecordSnapshot, SEALED};
use redrive_core::{
    AttemptReport, IdempotencyKey, JobId, Kind, Lease, NewJob, Order, Parent, Partition, PartitionKey,
    PolicyName, PolicyRef, Priority, Queue, QueueLimits, Reason, SignalName, Start, State, StepName, Tenant,
    Timestamp, Unique, UniqueKey, UniqueRule, Verdict, Wait, WaitCondition, WorkerId,
};
use uuid::Uuid;

use super::call::{Call, ModelRun};

/// Every kind of record that the calls write.
pub(super) const KINDS_OF_RECORDS: [&str; 4] = [PAUSED, QUEUE_LIMITS, SEALED, "setting"];

const JOBS: u128 = 12;
const QUEUES: [&str; 2] = ["default", "b"];

/// Generates calls from the state of the model.
pub(super) struct Machine;

impl ReferenceStateMachine for Machine {
    type State = ModelRun;
    type Transition = Call;

    fn init_state() -> BoxedStrategy<ModelRun> {
        Just(()).prop_map(|()| ModelRun::new()).boxed()
    }

    fn transitions(run: &ModelRun) -> BoxedStrategy<Call> {
        let leases = leases(run);
        let now = run.now;
        prop_oneof![
            6 => vec_of(new_job(now), 5).prop_map(Call::Enqueue),
            11 => claim().prop_map(Call::Claim),
            14 => vec_of(settlement(leases.clone(), now), 4).prop_map(Call::Settle),
            2 => (vec_of(select(leases.clone()), 4), span()).prop_map(|(leases, lease)| Call::Extend(leases, lease)),
            6 => reclaim(leases.clone()).prop_map(Call::Reclaim),
            3 => ids().prop_map(Call::Cancel),
            3 => ids().prop_map(Call::Redrive),
            2 => ids().prop_map(Call::RunNow),
            1 => ids().prop_map(Call::Discard),
            2 => vec_of(new_job(now), 4).prop_map(Call::Find),
            1 => ids().prop_map(Call::Get),
            6 => (filter(now), jobs_page()).prop_map(|(filter, page)| Call::List(filter, page)),
            3 => (filter(now), 1..5usize, 1..6usize).prop_map(|(filter, limit, most)| Call::Search(filter, limit, most)),
            8 => (select(logged(run)), attempts_page()).prop_map(|(id, page)| Call::Attempts(id, page)),
            3 => (retention(), 0..4usize).prop_map(|(retention, limit)| Call::Prune(retention, limit)),
            8 => vec_of(new_step(leases.clone(), now), 4).prop_map(Call::Remember),
            1 => (id(), 0..3u32, 0..4usize).prop_map(|(id, from, limit)| Call::Recall(id, from, limit)),
            5 => vec_of(signal(leases.clone()), 4).prop_map(Call::Signal),
            2 => pending_signals().prop_map(|(id, names, limit)| Call::PendingSignals(id, names, limit)),
            2 => (select(leases.clone()), vec_of(signal_id(), 3)).prop_map(|(lease, ids)| Call::SkipSignals(lease, ids)),
            7 => vec_of(select(waiting(run)), 3).prop_map(Call::Resume),
            2 => (option::of(id()), 0..6usize).prop_map(|(after, limit)| Call::Sweep(after, limit)),
            2 => ids().prop_map(Call::Pause),
            3 => ids().prop_map(Call::Unpause),
            1 => ids().prop_map(Call::Forget),
            3 => change().prop_map(Call::Write),
            1 => scan(),
            1 => Just(Call::Refill),
            2 => (id(), id()).prop_map(|(from, to)| Call::Copy(from, to)),
            1 => vec_of(record_snapshot(), 2).prop_map(Call::ImportRecords),
            6 => span().prop_map(Call::Advance),
            1 => span().prop_map(Call::SetBack),
        ]
        .boxed()
    }

    /// Ids are unique for ever, so no store promises what a reserved key means for a second job with the id of a
    /// removed one.
    fn preconditions(run: &ModelRun, call: &Call) -> bool {
        call.new_jobs().all(|job| !run.model.has_reserved_key_only(job.id))
    }

    fn apply(mut run: ModelRun, call: &Call) -> ModelRun {
        run.make(call);
        run
    }
}

/// Leases to choose from: held leases most often, but also older and newer ones, and those of ended and unknown jobs.
fn leases(run: &ModelRun) -> Vec<Lease> {
    let mut leases = vec![Lease { id: job_id(JOBS), epoch: 1 }];
    for job in run.model.jobs() {
        let lease = job.lease();
        leases.push(Lease { epoch: lease.epoch.saturating_sub(1), ..lease });
        leases.push(Lease { epoch: lease.epoch + 1, ..lease });
        let weight = if job.state == State::Running { 6 } else { 1 };
        leases.extend(vec![lease; weight]);
    }
    leases
}

/// Jobs to choose from that have a log, those with a long log more often, and a job that does not exist.
fn logged(run: &ModelRun) -> Vec<JobId> {
    let logged = run.model.jobs().flat_map(|job| run.model.log(job.id).map(|_| job.id));
    logged.chain([job_id(JOBS)]).collect()
}

/// Jobs to choose from that wait, those that wait for children more often, and a job that does not exist.
fn waiting(run: &ModelRun) -> Vec<JobId> {
    let waiting = run.model.jobs().filter_map(|job| job.awaits.as_ref().map(|awaits| (job.id, awaits)));
    let weight_of = |awaits: &WaitCondition| {
        let children =
            awaits.parts().iter().filter(|part| matches!(part, WaitCondition::Children { .. })).count();
        1 + 3 * children
    };
    waiting.flat_map(|(id, awaits)| vec![id; weight_of(awaits)]).chain([job_id(JOBS)]).collect()
}

fn new_job(now: Timestamp) -> impl Strategy<Value = NewJob> {
    let identity = (id(), name(["", "acme"]), queue(), kind(), 4..7u8, name(["default", "strict"]));
    let keys =
        (option::weighted(0.3, key()), option::weighted(0.3, unique()), option::weighted(0.6, parent()));
    let content = (select(vec![&b"a"[..], b"b", b"\0\xff"]), keys, start(now));
    let own_lease = option::weighted(0.2, select(vec![LEASE_MIN, 2 * LEASE_MIN]));
    let texts = (option::weighted(0.2, name(["", "meta 🦀"])), option::weighted(0.5, target()));
    let rest = (option::weighted(0.2, span()), own_lease, texts, option::weighted(0.4, partition()));
    (identity, content, rest).prop_map(
        |(
            identity,
            (payload, (key, unique, parent), start),
            (timeout, lease, (metadata, target), partition),
        )| {
            let (id, tenant, queue, kind, priority, policy) = identity;
            let policy = PolicyRef::first(PolicyName::new(policy).expect("a legal name"));
            let job = NewJob {
                tenant: Tenant::new(tenant).expect("a legal name"),
                queue,
                priority: Priority::new(priority).expect("a legal number"),
                start,
                timeout,
                lease,
                target,
                metadata: metadata.map(str::to_owned),
                unique: unique.filter(|_| key.is_none()),
                // A child has a greater id than its parent.
                parent: parent.filter(|parent| parent.id < id),
                partition,
                ..NewJob::new(id, kind, policy, payload.to_vec())
            };
            match key {
                Some(key) => job.with_key(key),
                None => job,
            }
        },
    )
}

fn start(now: Timestamp) -> impl Strategy<Value = Start> {
    prop_oneof![
        12 => Just(Start::Now),
        6 => span().prop_map(Start::After),
        3 => span().prop_map(move |ago| Start::At(now.before(ago))),
        1 => Just(Start::After(HORIZON + Duration::from_millis(1))),
    ]
}

fn claim() -> impl Strategy<Value = ClaimRequest> {
    let queues = subsequence(QUEUES.to_vec(), 0..=2);
    (worker(), queues, kinds(), 0..6usize, span()).prop_map(|(worker, queues, kinds, limit, lease)| {
        ClaimRequest {
            worker,
            queues: queues.into_iter().map(|name| Queue::new(name).expect("a legal name")).collect(),
            kinds,
            limit,
            lease,
        }
    })
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let names = subsequence(vec!["work", "mail"], 0..=2);
    names.prop_map(|names| names.into_iter().map(|name| Kind::new(name).expect("a legal name")).collect())
}

fn target() -> impl Strategy<Value = String> {
    name(["https://a/x", "https://a/y", "https://b/ü"]).prop_map(str::to_owned)
}

fn reclaim(leases: Vec<Lease>) -> impl Strategy<Value = ReclaimRequest> {
    let held = prop_oneof![1 => Just(Vec::new()), 1 => vec_of(select(leases), 4)];
    (kinds(), 0..5usize, span(), held).prop_map(|(kinds, limit, lease, held)| ReclaimRequest {
        kinds,
        limit,
        lease,
        held,
    })
}

fn settlement(leases: Vec<Lease>, now: Timestamp) -> impl Strategy<Value = Settlement> {
    let error = option::of(name(["boom", "bang 🦀"]).prop_map(str::to_owned));
    // Whether a follow-up or a waiting job gets the slot of the settled job is not promised.
    let follow_up = new_job(now).prop_map(|job| NewJob { partition: None, ..job });
    let follow_ups = prop_oneof![5 => Just(Vec::new()), 1 => vec_of(follow_up, 2)];
    let status = option::weighted(0.3, select(vec![200, 503]));
    (select(leases), verdict(), error, status, option::of(entry(now)), follow_ups).prop_map(
        |(lease, verdict, error, status, entry, follow_ups)| Settlement {
            lease,
            verdict,
            error,
            status,
            entry,
            follow_ups,
        },
    )
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        3 => option::of(select(vec![b"".to_vec(), b"ok".to_vec(), b"\0\xff".to_vec()])).prop_map(Verdict::Complete),
        5 => span().prop_map(Verdict::Retry),
        2 => span().prop_map(Verdict::Snooze),
        1 => span().prop_map(Verdict::Hold),
        6 => (awaits(), option::of(span())).prop_map(|(until, at_most)| Verdict::Wait(Wait { at_most, ..Wait::until(until) })),
        1 => Just(Verdict::Release),
        4 => select(Reason::ALL.to_vec()).prop_map(Verdict::DeadLetter),
        1 => Just(Verdict::Cancel),
    ]
}

fn awaits() -> impl Strategy<Value = WaitCondition> {
    prop_oneof![
        4 => signal_or_children(),
        3 => vec_of(signal_or_children(), 3).prop_map(|parts| WaitCondition::any(parts).unwrap_or(WaitCondition::Unpaused)),
        1 => Just(WaitCondition::Unpaused),
    ]
}

fn signal_or_children() -> impl Strategy<Value = WaitCondition> {
    prop_oneof![
        signal_name().prop_map(WaitCondition::Signal),
        (branch(), 0..2u32)
            .prop_map(|(branch, failures_max)| WaitCondition::Children { branch, failures_max }),
    ]
}

fn pending_signals() -> impl Strategy<Value = (JobId, Vec<SignalName>, usize)> {
    (id(), vec_of(signal_name(), 2), 0..4usize)
}

fn new_step(leases: Vec<Lease>, now: Timestamp) -> impl Strategy<Value = NewStep> {
    let children = prop_oneof![3 => Just(Vec::new()), 1 => vec_of(new_job(now), 2)];
    let takes = option::weighted(0.4, signal_id());
    (select(leases), step(), children, takes).prop_map(|(lease, step, children, takes)| NewStep {
        lease,
        step,
        children,
        takes,
    })
}

fn step() -> impl Strategy<Value = Step> {
    (0..8u32, name(["charge", "ship"]), select(StepKind::ALL.to_vec()), select(vec![&b"a"[..], b"\0\xff"]))
        .prop_map(|(place, name, kind, value)| Step {
            place,
            name: StepName::new(name).expect("a legal name"),
            kind,
            value: value.to_vec(),
        })
}

fn signal(leases: Vec<Lease>) -> impl Strategy<Value = Signal> {
    (select(leases), signal_id(), signal_name(), select(vec![&b"x"[..], b"y"]))
        .prop_map(|(lease, id, name, value)| Signal { job: lease.id, id, name, value: value.to_vec() })
}

fn signal_id() -> impl Strategy<Value = Uuid> {
    (0..6u128).prop_map(Uuid::from_u128)
}

fn entry(now: Timestamp) -> impl Strategy<Value = AttemptReport> {
    let texts = (option::of(name(["boom", ""])), option::of(name(["{}", r#"{"a":1}"#])));
    (1..3u32, 1..4u32, span(), name(["failed", "done"]), texts).prop_map(
        move |(run, attempt, duration, outcome, (error, detail))| AttemptReport {
            run,
            attempt,
            started_at: now.before(duration),
            duration,
            outcome: outcome.to_owned(),
            error: error.map(str::to_owned),
            detail: detail.map(str::to_owned),
        },
    )
}

fn filter(now: Timestamp) -> impl Strategy<Value = Filter> {
    let names = (
        option::weighted(0.2, name(["", "acme"])),
        option::weighted(0.2, queue()),
        option::weighted(0.2, kind()),
        option::weighted(0.2, key()),
    );
    let states = prop_oneof![Just(Vec::new()), subsequence(State::ALL.to_vec(), 1..4)];
    let created = (option::weighted(0.2, span()), option::weighted(0.2, span()));
    let finished = (option::weighted(0.1, span()), option::weighted(0.1, span()));
    let details = (
        option::weighted(0.2, name(["https://a/", "https://b/ü", ""])),
        option::weighted(0.2, select(Reason::ALL.to_vec())),
        option::weighted(0.2, name(["default", "strict", "def"])),
    );
    let parts = (states, names, details, created, finished);
    parts.prop_map(move |(states, (tenant, queue, kind, key), details, (from, before), finished)| Filter {
        states,
        tenant: tenant.map(|name| Tenant::new(name).expect("a legal name")),
        queue,
        kind,
        policy: None,
        policy_name: details.2.map(|name| PolicyName::new(name).expect("a legal name")),
        target: details.0.map(str::to_owned),
        reason: details.1,
        key,
        finished_from: finished.0.map(|ago| now.before(ago)),
        finished_before: finished.1.map(|ago| now.before(ago)),
        created_from: from.map(|ago| now.before(ago)),
        created_before: before.map(|ago| now.before(ago)),
    })
}

fn jobs_page() -> impl Strategy<Value = PageRequest> {
    let cursor = prop_oneof![9 => id().prop_map(Cursor::Job), 1 => Just(Cursor::Attempt(1))];
    (option::of(cursor), 0..5usize).prop_map(|(after, limit)| PageRequest { after, limit })
}

fn attempts_page() -> impl Strategy<Value = PageRequest> {
    let cursor = prop_oneof![9 => (0..4u64).prop_map(Cursor::Attempt), 1 => id().prop_map(Cursor::Job)];
    (option::weighted(0.3, cursor), 1..3usize).prop_map(|(after, limit)| PageRequest { after, limit })
}

fn retention() -> impl Strategy<Value = Retention> {
    (span(), span(), span()).prop_map(|(succeeded, dead, cancelled)| Retention { succeeded, dead, cancelled })
}

fn change() -> impl Strategy<Value = RecordWrite> {
    let value = option::of(select(vec![b"".to_vec(), b"{}".to_vec()]));
    // More seals are removed than written, because nothing is claimed from a sealed store.
    let seal = option::weighted(0.4, Just(Vec::new()));
    let place = prop_oneof![
        2 => (Just(SEALED), select(vec![MOVED_AWAY, BEING_FILLED]), seal),
        3 => (Just(PAUSED), select(vec![EVERY_QUEUE, "default", "b"]), value.clone()),
        3 => (Just("setting"), select(vec!["x", "y"]), value),
        3 => (Just(QUEUE_LIMITS), select(QUEUES.to_vec()), option::weighted(0.8, queue_limits())),
    ];
    let expect = prop_oneof![
        3 => Just(Precondition::Any),
        1 => Just(Precondition::Absent),
        1 => (0..4u64).prop_map(Precondition::Version),
    ];
    (place, expect).prop_map(|((kind, id, value), expect)| RecordWrite {
        kind: kind.to_owned(),
        id: id.to_owned(),
        expect,
        value,
    })
}

fn record_snapshot() -> impl Strategy<Value = RecordSnapshot> {
    (change(), 1..6u64).prop_map(|(change, version)| RecordSnapshot {
        kind: change.kind,
        id: change.id,
        version,
        value: change.value,
    })
}

fn scan() -> impl Strategy<Value = Call> {
    let after = option::of(name(["*", "default", "x", "z"]));
    (select(KINDS_OF_RECORDS.to_vec()), after, 0..3usize)
        .prop_map(|(kind, after, limit)| Call::Scan(kind.to_owned(), after.map(str::to_owned), limit))
}

/// Few durations, so that times coincide.
fn span() -> impl Strategy<Value = Duration> {
    select(vec![0, 1, 2, 10, 11, 100, 1_000]).prop_map(Duration::from_millis)
}

fn vec_of<T: std::fmt::Debug>(item: impl Strategy<Value = T>, most: usize) -> impl Strategy<Value = Vec<T>> {
    proptest::collection::vec(item, 1..=most)
}

fn ids() -> impl Strategy<Value = Vec<JobId>> {
    vec_of(id(), 6)
}

fn id() -> impl Strategy<Value = JobId> {
    (0..JOBS).prop_map(job_id)
}

fn job_id(n: u128) -> JobId {
    JobId(Uuid::from_u128(0x019b_76da_a800_7000_8000_0000_0000_0000 + n))
}

fn name<const N: usize>(names: [&'static str; N]) -> impl Strategy<Value = &'static str> + Clone {
    select(names.to_vec())
}

fn queue() -> impl Strategy<Value = Queue> {
    name(QUEUES).prop_map(|name| Queue::new(name).expect("a legal name"))
}

fn kind() -> impl Strategy<Value = Kind> {
    name(["work", "mail"]).prop_map(|name| Kind::new(name).expect("a legal name"))
}

fn key() -> impl Strategy<Value = IdempotencyKey> {
    name(["k1", "k2", "k3"]).prop_map(|name| IdempotencyKey::new(name).expect("a legal name"))
}

fn signal_name() -> impl Strategy<Value = SignalName> {
    name(["go", "stop"]).prop_map(|name| SignalName::new(name).expect("a legal name"))
}

fn unique() -> impl Strategy<Value = Unique> {
    let rule =
        prop_oneof![Just(UniqueRule::Live), span().prop_map(UniqueRule::For), Just(UniqueRule::Replace),];
    (name(["u1", "u2"]), rule)
        .prop_map(|(key, rule)| Unique { key: UniqueKey::new(key).expect("a legal name"), rule })
}

fn branch() -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(0), 1 => Just(1)]
}

/// Few parents, so that children have siblings.
fn parent() -> impl Strategy<Value = Parent> {
    let id = prop_oneof![3 => (0..3u128).prop_map(job_id), 1 => id()];
    (id, branch(), proptest::bool::weighted(0.2)).prop_map(|(id, branch, detached)| Parent {
        id,
        branch,
        detached,
    })
}

fn partition() -> impl Strategy<Value = Partition> {
    (name(["p1", "p2"]), select(vec![Order::Any, Order::Strict]))
        .prop_map(|(key, order)| Partition { key: PartitionKey::new(key).expect("a legal name"), order })
}

/// Limits that are reached often.
fn queue_limits() -> impl Strategy<Value = Vec<u8>> {
    (limits(), limits()).prop_map(|(whole, per_key)| {
        let limits = QueueLimits { concurrency: whole.concurrency, rate: whole.rate, per_key };
        serde_json::to_vec(&limits).expect("limits are JSON")
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let rate = (1..4u32, select(vec![1, 10, 100])).prop_map(|(count, per_ms)| Rate { count, per_ms });
    (option::of(1..4u32), option::weighted(0.4, rate))
        .prop_map(|(concurrency, rate)| Limits { concurrency, rate })
}

fn worker() -> impl Strategy<Value = WorkerId> {
    name(["w1", "w2"]).prop_map(|name| WorkerId::new(name).expect("a legal name"))
}
