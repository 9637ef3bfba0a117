//! Stores full of jobs, and the command that moves them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use redrive::{Redrive, Schedule, Task};
use redrive_core::records::{Change, Expect};
use redrive_core::steps::{Memory, Signal, Step, StepKind};
use redrive_core::store::{Backend, ClaimRequest, Enqueued, Retention, Settlement};
use redrive_core::transfer::{Exported, Parcel, Promise, Slot};
use redrive_core::{
    Await, Entry, IdempotencyKey, Job, JobId, Kind, NewJob, Order, Partition, PartitionKey, Policy, Priority,
    Queue, Reason, SignalName, Start, StepName, Tenant, Unique, UniqueKey, UniqueRule, Verdict, Wait,
    WorkerId, catalog,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    /// The address of a file in it.
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

/// What it prints when it works.
pub(crate) fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What it says when it does not.
pub(crate) fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) async fn open(address: &str) -> Arc<dyn Backend> {
    Redrive::open(address).await.expect("the store opens").backend().clone()
}

/// Everything that a store has, but what moves keep about themselves.
#[derive(Debug, PartialEq)]
pub(crate) struct Content {
    pub(crate) parcels: BTreeMap<JobId, Parcel>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) promises: Vec<Promise>,
}

pub(crate) async fn content(store: &dyn Backend) -> Content {
    let mut parcels = BTreeMap::new();
    let mut after = None;
    loop {
        let Exported { parcels: more, unreadable, last } = store.export(after, 500).await.expect("export");
        assert_eq!(unreadable, []);
        parcels.extend(more.into_iter().map(|parcel| (parcel.job.id, parcel)));
        match last {
            Some(last) => after = Some(last),
            None => break,
        }
    }
    let own = ["sealed", "move", "moved"];
    let slots = store.export_records(None, 10_000).await.expect("export records");
    let slots = slots.into_iter().filter(|slot| !own.contains(&slot.kind.as_str())).collect();
    Content { parcels, slots, promises: store.export_promises(None, 1000).await.expect("export promises") }
}

/// Panics with what differs and nothing else.
pub(crate) fn same(was: &Content, is: &Content) {
    for (id, parcel) in &was.parcels {
        assert_eq!(is.parcels.get(id), Some(parcel), "job {id}");
    }
    assert_eq!(is.parcels.len(), was.parcels.len(), "jobs that were not there before");
    assert_eq!(is.slots, was.slots);
    assert_eq!(is.promises, was.promises);
}

pub(crate) fn request(limit: usize, lease: Duration) -> ClaimRequest {
    let worker = WorkerId::new("worker").expect("legal");
    ClaimRequest { worker, queues: Vec::new(), kinds: Vec::new(), limit, lease }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Tick;

impl Task for Tick {
    const KIND: &'static str = "tick";
    type Output = ();
}

/// Fills a store with jobs of every sort and in every state, and with records, removed ones among them.
pub(crate) async fn fill(address: &str, jobs: u128) {
    let redrive = Redrive::open(address).await.expect("the store opens");
    let store = redrive.backend().clone();
    redrive
        .schedule("hourly", Schedule::every(Duration::from_secs(3600)).expect("legal"), Tick)
        .await
        .expect("a schedule");
    let policy = catalog::put_inline(&*store, &Policy::default()).await.expect("a policy");
    promise(&*store, &policy).await;
    let made: Vec<NewJob> = (0..jobs).map(|n| sort_of_job(n, &policy)).collect();
    for some in made.chunks(500) {
        let answers = store.enqueue(some.to_vec()).await.expect("enqueue");
        assert!(answers.iter().all(|answer| matches!(answer, Enqueued::Created(_))));
    }
    records(&*store).await;
    for _ in 0..3 {
        // Some leases have run out by the time of the move; nobody takes them over.
        let claimed = store.claim(request(1000, Duration::from_millis(1))).await.expect("claim");
        work(&*store, &claimed.jobs).await;
    }
    let ids: Vec<JobId> = made.iter().map(|job| job.id).collect();
    let every = |nth: usize| ids.iter().copied().skip(nth).step_by(23).take(500).collect::<Vec<_>>();
    store.cancel(every(5)).await.expect("cancel");
    store.hold(every(7)).await.expect("hold");
    store.redrive(every(11)).await.expect("redrive");
    signal(&*store, &every(13)).await;
}

/// A unique key that is promised for longer than its job is kept.
async fn promise(store: &dyn Backend, policy: &redrive_core::PolicyRef) {
    let rule = UniqueRule::For(Duration::from_secs(3600));
    let unique = Some(Unique { key: UniqueKey::new("promised").expect("legal"), rule });
    let kind = Kind::new("mail").expect("legal");
    let job = NewJob { unique, ..NewJob::new(JobId(Uuid::max()), kind, policy.clone(), Vec::new()) };
    store.enqueue(vec![job]).await.expect("enqueue");
    let claimed = store.claim(request(1, Duration::from_secs(9))).await.expect("claim").jobs;
    store.settle(vec![Settlement::new(claimed[0].lease(), Verdict::Complete(None))]).await.expect("settle");
    let at_once = Retention { succeeded: Duration::ZERO, dead: Duration::ZERO, cancelled: Duration::ZERO };
    assert_eq!(store.prune(at_once, 1).await.expect("prune"), 1);
}

fn sort_of_job(n: u128, policy: &redrive_core::PolicyRef) -> NewJob {
    let name = |sort: &str| format!("{sort}-{n}");
    let kind = Kind::new(["mail", "report", "charge"][n as usize % 3]).expect("legal");
    // Spread over the range of ids, not in the order of their creation.
    let id = JobId(Uuid::from_u128(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)));
    let job = NewJob {
        queue: Queue::new(["default", "slow"][n as usize % 2]).expect("legal"),
        tenant: Tenant::new(["", "acme"][n as usize / 2 % 2]).expect("legal"),
        priority: Priority::new((n % 10) as u8).expect("legal"),
        metadata: n.is_multiple_of(4).then(|| format!(r#"{{"n":{n}}}"#)),
        subject: n.is_multiple_of(6).then(|| name("subject")),
        ..NewJob::new(id, kind, policy.clone(), vec![n as u8; (n % 2048) as usize])
    };
    match n % 8 {
        0 => job.with_key(IdempotencyKey::new(name("key")).expect("legal")),
        1 => NewJob {
            unique: Some(Unique { key: UniqueKey::new(name("one")).expect("legal"), rule: rule(n) }),
            ..job
        },
        2 => NewJob {
            partition: Some(Partition {
                key: PartitionKey::new(format!("p{}", n % 40)).expect("legal"),
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

fn rule(n: u128) -> UniqueRule {
    if n % 16 == 1 { UniqueRule::Live } else { UniqueRule::For(Duration::from_secs(3600)) }
}

async fn records(store: &dyn Backend) {
    let put = async |kind: &str, id: String, value: Option<Vec<u8>>| {
        let change = Change { kind: kind.to_owned(), id, expect: Expect::Any, value };
        store.write(change).await.expect("write");
    };
    for n in 0..250_u8 {
        put("setting", format!("s{n}"), Some(vec![n; 40])).await;
    }
    put("setting", "s7".to_owned(), None).await;
    put("paused", "asleep".to_owned(), Some(b"{}".to_vec())).await;
    put("quota", "slow".to_owned(), Some(br#"{"concurrency":5000}"#.to_vec())).await;
}

/// Ends attempts in every way, and leaves some running.
async fn work(store: &dyn Backend, jobs: &[Job]) {
    for (n, job) in jobs.iter().enumerate() {
        let verdict = match n % 7 {
            0 => Verdict::Complete(Some(vec![n as u8; 9])),
            1 => Verdict::Retry(Duration::from_millis(1)),
            2 => Verdict::DeadLetter(Reason::AttemptsExhausted),
            3 => Verdict::Wait(Wait::until(Await::Signal(SignalName::new("go").expect("legal")))),
            4 => Verdict::Snooze(Duration::from_secs(600)),
            5 => Verdict::Complete(None),
            _ => continue,
        };
        if n % 3 == 0 {
            remember(store, job).await;
        }
        let entry = Entry {
            run: job.run,
            attempt: job.attempt,
            started_at: job.started_at.expect("it has started"),
            duration: Duration::from_millis(12),
            outcome: "failed".to_owned(),
            error: Some(format!("attempt {n} broke: häßlich")),
            detail: Some(r#"{"status":503}"#.to_owned()),
        };
        let settlement = Settlement {
            error: Some("it broke".to_owned()),
            status: Some(503),
            entry: Some(entry),
            ..Settlement::new(job.lease(), verdict)
        };
        store.settle(vec![settlement]).await.expect("settle");
    }
}

async fn remember(store: &dyn Backend, job: &Job) {
    for place in 0..3 {
        let name = StepName::new(format!("step {place}")).expect("legal");
        let step = Step { place, name, kind: StepKind::Done, value: vec![place as u8; 100] };
        store.remember(vec![Memory::new(job.lease(), step)]).await.expect("remember");
    }
}

async fn signal(store: &dyn Backend, ids: &[JobId]) {
    let name = |name: &str| SignalName::new(name).expect("legal");
    for (n, job) in ids.iter().enumerate() {
        let id = Uuid::from_u128(n as u128);
        let signal = Signal { job: *job, id, name: name("note"), value: vec![1, 2, 3] };
        store.signal(vec![signal]).await.expect("signal");
    }
}
