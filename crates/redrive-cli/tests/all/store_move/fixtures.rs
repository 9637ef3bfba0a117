//! Stores with jobs of every kind and state, and the command that moves them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use redrive::{Redrive, Schedule, Task};
use redrive_core::records::{Precondition, RecordWrite};
use redrive_core::steps::{NewStep, Signal, Step, StepKind};
use redrive_core::store::{Backend, ClaimRequest, EnqueueResult, Retention, Settlement};
use redrive_core::transfer::{ExportPage, JobSnapshot, RecordSnapshot, ReservedKey};
use redrive_core::{
    AttemptReport, IdempotencyKey, Job, JobId, Kind, NewJob, Order, Partition, PartitionKey, Policy,
    Priority, Queue, Reason, SignalName, Start, StepName, Tenant, Unique, UniqueKey, UniqueRule, Verdict,
    Wait, WaitCondition, WorkerId, catalog,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    /// The address of a SQLite store in this folder.
    pub(crate) fn store(&self, name: &str) -> String {
        format!("sqlite:{}", self.path(name).display())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        Path::new(self.0.path()).join(name)
    }
}

pub(crate) fn command(from: &str, to: &str, more: &[&str]) -> Command {
    let mut redrive = Command::new(env!("CARGO_BIN_EXE_redrive"));
    redrive.args(["move", "--from", from, "--to", to]).args(more);
    redrive
}

pub(crate) fn run(from: &str, to: &str, more: &[&str]) -> Output {
    command(from, to, more).output().expect("the command starts")
}

pub(crate) fn start(from: &str, to: &str) -> Child {
    let mut redrive = command(from, to, &[]);
    redrive.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts")
}

/// The standard output of a command that succeeded.
pub(crate) fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The standard error of a command that failed.
pub(crate) fn stderr(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) async fn open(address: &str) -> Arc<dyn Backend> {
    Redrive::open(address).await.expect("the store opens").backend().clone()
}

/// Everything in a store, except the records of moves.
#[derive(Debug, PartialEq)]
pub(crate) struct Content {
    pub(crate) jobs: BTreeMap<JobId, JobSnapshot>,
    pub(crate) records: Vec<RecordSnapshot>,
    pub(crate) reserved_keys: Vec<ReservedKey>,
}

pub(crate) async fn read_content(store: &dyn Backend) -> Content {
    let mut jobs = BTreeMap::new();
    let mut after = None;
    loop {
        let ExportPage { jobs: page, unreadable, last } = store.export(after, 500).await.expect("export");
        assert_eq!(unreadable, []);
        jobs.extend(page.into_iter().map(|snapshot| (snapshot.job.id, snapshot)));
        match last {
            Some(last) => after = Some(last),
            None => break,
        }
    }
    let kinds_of_moves = ["sealed", "move", "moved"];
    let records = store.export_records(None, 10_000).await.expect("export records");
    let records =
        records.into_iter().filter(|record| !kinds_of_moves.contains(&record.kind.as_str())).collect();
    Content {
        jobs,
        records,
        reserved_keys: store.export_reserved_keys(None, 1000).await.expect("export reserved keys"),
    }
}

/// Compares two stores. Panics with the first difference only.
pub(crate) fn assert_same(expected: &Content, actual: &Content) {
    for (id, job) in &expected.jobs {
        assert_eq!(actual.jobs.get(id), Some(job), "job {id}");
    }
    assert_eq!(actual.jobs.len(), expected.jobs.len(), "the store has further jobs");
    assert_eq!(actual.records, expected.records);
    assert_eq!(actual.reserved_keys, expected.reserved_keys);
}

pub(crate) fn claim_request(limit: usize, lease: Duration) -> ClaimRequest {
    let worker = WorkerId::new("worker").expect("valid");
    ClaimRequest { worker, queues: Vec::new(), kinds: Vec::new(), limit, lease }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Tick;

impl Task for Tick {
    const KIND: &'static str = "tick";
    type Output = ();
}

/// Fills a store with jobs of several kinds in every state, and with records. One record is removed again.
pub(crate) async fn fill(address: &str, jobs: u128) {
    let redrive = Redrive::open(address).await.expect("the store opens");
    let store = redrive.backend().clone();
    redrive
        .schedule("hourly", Schedule::every(Duration::from_secs(3600)).expect("valid"), Tick)
        .await
        .expect("a schedule");
    let policy = catalog::put_inline(&*store, &Policy::default(), redrive_core::Timestamp::default())
        .await
        .expect("a policy");
    reserve_key(&*store, &policy).await;
    let new_jobs: Vec<NewJob> = (0..jobs).map(|n| new_job(n, &policy)).collect();
    for batch in new_jobs.chunks(500) {
        let results = store.enqueue(batch.to_vec()).await.expect("enqueue");
        assert!(results.iter().all(|result| matches!(result, EnqueueResult::Created(_))));
    }
    write_records(&*store).await;
    for _ in 0..3 {
        // Some leases have expired by the time of the move. No worker reclaims them.
        let claimed = store.claim(claim_request(1000, Duration::from_millis(1))).await.expect("claim");
        settle(&*store, &claimed.jobs).await;
    }
    let ids: Vec<JobId> = new_jobs.iter().map(|job| job.id).collect();
    let some_of = |offset: usize| ids.iter().copied().skip(offset).step_by(23).take(500).collect::<Vec<_>>();
    store.cancel(some_of(5)).await.expect("cancel");
    store.pause(some_of(7)).await.expect("pause");
    store.redrive(some_of(11)).await.expect("redrive");
    send_signals(&*store, &some_of(13)).await;
}

/// Reserves a unique key whose job is pruned before the reservation ends.
async fn reserve_key(store: &dyn Backend, policy: &redrive_core::PolicyRef) {
    let rule = UniqueRule::For(Duration::from_secs(3600));
    let unique = Some(Unique { key: UniqueKey::new("reserved").expect("valid"), rule });
    let kind = Kind::new("mail").expect("valid");
    let job = NewJob { unique, ..NewJob::new(JobId(Uuid::max()), kind, policy.clone(), Vec::new()) };
    store.enqueue(vec![job]).await.expect("enqueue");
    let claimed = store.claim(claim_request(1, Duration::from_secs(9))).await.expect("claim").jobs;
    store.settle(vec![Settlement::new(claimed[0].lease(), Verdict::Complete(None))]).await.expect("settle");
    let at_once = Retention { succeeded: Duration::ZERO, dead: Duration::ZERO, cancelled: Duration::ZERO };
    assert_eq!(store.prune(at_once, 1).await.expect("prune"), 1);
}

/// A new job. Its number decides its fields.
fn new_job(n: u128, policy: &redrive_core::PolicyRef) -> NewJob {
    let name = |prefix: &str| format!("{prefix}-{n}");
    let kind = Kind::new(["mail", "report", "charge"][n as usize % 3]).expect("valid");
    // The ids are spread over their whole range, and not in the order of creation.
    let id = JobId(Uuid::from_u128(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)));
    let job = NewJob {
        queue: Queue::new(["default", "slow"][n as usize % 2]).expect("valid"),
        tenant: Tenant::new(["", "acme"][n as usize / 2 % 2]).expect("valid"),
        priority: Priority::new((n % 10) as u8).expect("valid"),
        metadata: n.is_multiple_of(4).then(|| format!(r#"{{"n":{n}}}"#)),
        target: n.is_multiple_of(6).then(|| name("target")),
        ..NewJob::new(id, kind, policy.clone(), vec![n as u8; (n % 2048) as usize])
    };
    match n % 8 {
        0 => job.with_key(IdempotencyKey::new(name("key")).expect("valid")),
        1 => NewJob {
            unique: Some(Unique { key: UniqueKey::new(name("one")).expect("valid"), rule: unique_rule(n) }),
            ..job
        },
        2 => NewJob {
            partition: Some(Partition {
                key: PartitionKey::new(format!("p{}", n % 40)).expect("valid"),
                order: if n % 16 == 2 { Order::Strict } else { Order::Any },
            }),
            ..job
        },
        3 => NewJob {
            start: Start::After(Duration::from_secs(3600)),
            timeout: Some(Duration::from_secs(9)),
            ..job
        },
        _ => job,
    }
}

fn unique_rule(n: u128) -> UniqueRule {
    if n % 16 == 1 { UniqueRule::Live } else { UniqueRule::For(Duration::from_secs(3600)) }
}

async fn write_records(store: &dyn Backend) {
    let put = async |kind: &str, id: String, value: Option<Vec<u8>>| {
        let change = RecordWrite { kind: kind.to_owned(), id, expect: Precondition::Any, value };
        store.write(change).await.expect("write");
    };
    for n in 0..250_u8 {
        put("setting", format!("s{n}"), Some(vec![n; 40])).await;
    }
    put("setting", "s7".to_owned(), None).await;
    put("paused", "asleep".to_owned(), Some(b"{}".to_vec())).await;
    put("quota", "slow".to_owned(), Some(br#"{"concurrency":5000}"#.to_vec())).await;
}

/// Settles the claimed jobs with different verdicts, and leaves some of them running.
async fn settle(store: &dyn Backend, jobs: &[Job]) {
    for (n, job) in jobs.iter().enumerate() {
        let verdict = match n % 7 {
            0 => Verdict::Complete(Some(vec![n as u8; 9])),
            1 => Verdict::Retry(Duration::from_millis(1)),
            2 => Verdict::DeadLetter(Reason::AttemptsExhausted),
            3 => Verdict::Wait(Wait::until(WaitCondition::Signal(SignalName::new("go").expect("valid")))),
            4 => Verdict::Snooze(Duration::from_secs(600)),
            5 => Verdict::Complete(None),
            _ => continue,
        };
        if n % 3 == 0 {
            store_steps(store, job).await;
        }
        let entry = AttemptReport {
            run: job.run,
            attempt: job.attempt,
            started_at: job.started_at.expect("a claimed job has started"),
            duration: Duration::from_millis(12),
            outcome: "failed".to_owned(),
            error: Some(format!("attempt {n} failed: häßlich")),
            detail: Some(r#"{"status":503}"#.to_owned()),
        };
        let settlement = Settlement {
            error: Some("the attempt failed".to_owned()),
            status: Some(503),
            entry: Some(entry),
            ..Settlement::new(job.lease(), verdict)
        };
        store.settle(vec![settlement]).await.expect("settle");
    }
}

async fn store_steps(store: &dyn Backend, job: &Job) {
    for place in 0..3 {
        let name = StepName::new(format!("step {place}")).expect("valid");
        let step = Step { place, name, kind: StepKind::Done, value: vec![place as u8; 100] };
        store.remember(vec![NewStep::new(job.lease(), step)]).await.expect("remember");
    }
}

async fn send_signals(store: &dyn Backend, ids: &[JobId]) {
    let name = |name: &str| SignalName::new(name).expect("valid");
    for (n, job) in ids.iter().enumerate() {
        let id = Uuid::from_u128(n as u128);
        let signal = Signal { job: *job, id, name: name("note"), value: vec![1, 2, 3] };
        store.signal(vec![signal]).await.expect("signal");
    }
}
