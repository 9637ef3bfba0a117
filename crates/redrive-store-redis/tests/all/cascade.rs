//! A job that ends early ends all its descendants: in large trees, in trees that grow at the same time, and after crashes.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redrive_core::limits::BATCH_ITEMS_MAX;
use redrive_core::policy::presets;
use redrive_core::steps::{NewStep, RememberResult, Step, StepKind, Steps, WaitCondition};
use redrive_core::store::{CancelResult, ClaimRequest, Filter, PageRequest, RedriveResult, Settlement};
use redrive_core::{
    IdempotencyKey, Job, JobId, Kind, Lease, NewJob, Parent, PolicyRef, Queue, Reason, State, StepName,
    Store, Transfer, Verdict, Wait, WorkerId, catalog,
};
use redrive_store_redis::{Options, RedisStore};
use redrive_testkit::servers::{Proxy, Redis};
use tokio::sync::Notify;
use uuid::Uuid;

/// The maximum number of jobs that one script may end.
const ENDS_MAX: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_cancelled_while_it_grows_keeps_no_live_job() {
    let server = Redis::start();
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(open(&server.address()).await);
    }
    let policy = policy(&stores[0]).await;
    for tree in 0..25 {
        let queue = Queue::new(format!("tree-{tree}")).expect("legal");
        let root = NewJob { queue: queue.clone(), ..new_job(&policy) };
        let growth = Arc::new(Growth { fan_outs_wanted: tree, ..Growth::default() });
        stores[0].enqueue(vec![root.clone()]).await.expect("enqueued");
        let growing: Vec<_> = stores[1..]
            .iter()
            .map(|store| tokio::spawn(growth.clone().grow(store.clone(), root.clone())))
            .collect();
        growth.is_enough.notified().await;
        assert_ne!(stores[0].cancel(vec![root.id]).await.expect("cancelled"), [CancelResult::NotFound]);
        growth.is_cancelled.store(true, Ordering::SeqCst);
        for grower in growing {
            grower.await.expect("no panic");
        }
        let mut running = Vec::new();
        for job in jobs(&stores[0], &queue).await {
            let is_asked_to_stop = job.state == State::Running && job.cancel_requested;
            assert!(job.state.is_final() || is_asked_to_stop, "tree {tree}: {job:?}");
            running.extend(
                is_asked_to_stop.then(|| Settlement::new(job.lease(), Verdict::Retry(Duration::ZERO))),
            );
        }
        stores[1].settle(running).await.expect("settled");
        let live = jobs(&stores[0], &queue).await.into_iter().find(|job| !job.state.is_final());
        assert_eq!(live, None, "tree {tree}");
    }
}

/// A tree that several growers add to until it is cancelled.
#[derive(Default)]
struct Growth {
    /// The number of fan-outs after which `is_enough` is notified.
    fan_outs_wanted: usize,
    fan_outs: AtomicUsize,
    is_enough: Notify,
    is_cancelled: AtomicBool,
}

impl Growth {
    /// Claims jobs of the tree, gives each two children, and lets every other one wait for them, until nothing is left to claim.
    async fn grow(self: Arc<Self>, store: RedisStore, like: NewJob) {
        loop {
            let is_cancelled = self.is_cancelled.load(Ordering::SeqCst);
            let claimed = claim(&store, &like.queue, 3).await;
            if claimed.is_empty() && is_cancelled {
                return;
            }
            for (n, job) in claimed.into_iter().enumerate() {
                let children = children(&like, job.id, 2);
                let new_step = NewStep { children, ..NewStep::new(job.lease(), step()) };
                let remembered = store.remember(vec![new_step]).await.expect("remembered").remove(0);
                let is_kept = matches!(remembered, RememberResult::Stored(_));
                assert!(!(is_kept && is_cancelled), "a job of a cancelled tree gets children");
                if n % 2 == 0 {
                    let until = WaitCondition::Children { branch: 0, failures_max: 0 };
                    settle(&store, job.lease(), Verdict::Wait(Wait::until(until))).await;
                }
                if self.fan_outs.fetch_add(1, Ordering::SeqCst) == self.fan_outs_wanted {
                    self.is_enough.notify_one();
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_script_ends_more_than_a_thousand_jobs_of_a_large_tree() {
    let server = Redis::start();
    let store = open(&server.address()).await;
    let root = new_job(&policy(&store).await);
    let first = children(&root, root.id, 999);
    enqueue(&store, std::slice::from_ref(&root)).await;
    enqueue(&store, &first).await;
    for child in &first[..9] {
        enqueue(&store, &children(&root, child.id, 1_000)).await;
    }
    let monitor = Monitor::start(&server);
    assert_eq!(store.cancel(vec![root.id]).await.expect("cancelled"), [CancelResult::Done]);
    let by_script = monitor.ended_by_script(&server);
    assert_eq!(store.stats().await.expect("stats").in_state(State::Cancelled), 10_000);
    assert_eq!(by_script.iter().sum::<usize>(), 10_000, "{by_script:?}");
    assert!(by_script.iter().all(|ended| *ended <= ENDS_MAX), "{by_script:?}");
}

/// Reads every command that a server runs, with MONITOR.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn start(server: &Redis) -> Self {
        let mut stream =
            TcpStream::connect(("127.0.0.1", server.port())).expect("the server accepts connections");
        stream.write_all(b"MONITOR\r\n").expect("the command can be sent");
        let mut monitor = Self(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut bytes = Vec::new();
        self.0.read_until(b'\n', &mut bytes).expect("the server sends a line");
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }

    /// How many jobs each script has cancelled, without scripts that cancelled none.
    fn ended_by_script(mut self, server: &Redis) -> Vec<usize> {
        server.run(&["ECHO", "the end"]);
        let (mut scripts, mut ended) = (Vec::new(), 0);
        loop {
            let line = self.line();
            if line.contains(" lua] \"HSET\"") {
                ended += usize::from(line.contains("\"state\" \"6\""));
            } else if !line.contains(" lua] ") && ended > 0 {
                scripts.push(std::mem::take(&mut ended));
            }
            if line.ends_with(r#""ECHO" "the end""#) {
                return scripts;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_ends_the_descendants_that_a_crash_left_live() {
    let server = Redis::start();
    let store = open(&server.address()).await;
    let (parent, children) = dead_with_live_children(&store).await;
    store.sweep(None, 100).await.expect("swept");
    assert_eq!(
        states(&store, &children).await,
        [(State::Pending, 3)].into(),
        "no mark says that they must end"
    );
    leave_mark(&server, parent);
    store.sweep(None, 100).await.expect("swept");
    assert_eq!(states(&store, &children).await, [(State::Cancelled, 3)].into());
    assert_eq!(server.run(&["KEYS", "*:closing"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mark_of_a_redriven_job_is_ignored() {
    let server = Redis::start();
    let store = open(&server.address()).await;
    let (parent, children) = dead_with_live_children(&store).await;
    leave_mark(&server, parent);
    assert_eq!(store.redrive(vec![parent]).await.expect("redriven"), [RedriveResult::Done]);
    store.sweep(None, 100).await.expect("swept");
    assert_eq!(states(&store, &children).await, [(State::Pending, 3)].into());
    assert_eq!(server.run(&["KEYS", "*:closing"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mark_of_a_discarded_job_stays_valid() {
    let server = Redis::start();
    let store = open(&server.address()).await;
    let (parent, children) = dead_with_live_children(&store).await;
    leave_mark(&server, parent);
    store.discard(vec![parent]).await.expect("discarded");
    store.sweep(None, 100).await.expect("swept");
    assert_eq!(states(&store, &children).await, [(State::Cancelled, 3)].into());
}

/// Marks are not exported, so marked descendants end before the export starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_first_ends_the_descendants_that_a_crash_left_live() {
    let server = Redis::start();
    let store = open(&server.address()).await;
    let (parent, _) = dead_with_live_children(&store).await;
    leave_mark(&server, parent);
    let exported = store.export(None, 100).await.expect("exported");
    let states: Vec<State> = exported.jobs.iter().map(|snapshot| snapshot.job.state).collect();
    assert_eq!(states, [State::Dead, State::Cancelled, State::Cancelled, State::Cancelled]);
}

/// A dead job with live children, as a crash leaves them between two scripts.
async fn dead_with_live_children(store: &RedisStore) -> (JobId, Vec<JobId>) {
    let parent = new_job(&policy(store).await);
    enqueue(store, std::slice::from_ref(&parent)).await;
    let lease = claim(store, &parent.queue, 1).await[0].lease();
    settle(store, lease, Verdict::DeadLetter(Reason::NotRetryable)).await;
    let children = children(&parent, parent.id, 3);
    enqueue(store, &children).await;
    (parent.id, ids(&children))
}

/// Writes the mark that the first of several scripts writes.
fn leave_mark(server: &Redis, id: JobId) {
    let id = id.0.simple().to_string();
    let key = server.run(&["KEYS", &format!("*:children:{id}")]);
    server.run(&["SADD", &key.replace(&format!("children:{id}"), "closing"), &id]);
}

/// The connection breaks after the first of several scripts. A sweep of another node does the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_finishes_a_cancel_whose_node_was_cut_off() {
    let server = Redis::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let (cut_off, other) =
        (open(&format!("redis://{}", proxy.address())).await, open(&server.address()).await);
    let parent = new_job(&policy(&cut_off).await);
    enqueue(&cut_off, std::slice::from_ref(&parent)).await;
    let children = children(&parent, parent.id, 2_500);
    enqueue(&cut_off, &children).await;
    // From here on the server has cached the script.
    cut_off.cancel(vec![JobId(Uuid::now_v7())]).await.expect("cancelled");
    proxy.cut_after_request(parent.id.0.simple().to_string().as_bytes());
    cut_off.cancel(vec![parent.id]).await.expect_err("the connection breaks");
    let after = states(&other, &ids(&children)).await;
    assert!(after[&State::Cancelled] < ENDS_MAX && after[&State::Pending] > 1_500, "{after:?}");
    other.sweep(None, 100).await.expect("swept");
    assert_eq!(states(&other, &ids(&children)).await, [(State::Cancelled, 2_500)].into());
}

/// The same for a parent that resumes because a child has failed: it does not resume before its other children have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_finishes_a_resume_whose_node_was_cut_off() {
    let server = Redis::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let (cut_off, other) =
        (open(&format!("redis://{}", proxy.address())).await, open(&server.address()).await);
    let parent = new_job(&policy(&cut_off).await);
    enqueue(&cut_off, std::slice::from_ref(&parent)).await;
    let lease = claim(&cut_off, &parent.queue, 1).await[0].lease();
    let children = children(&parent, parent.id, 2_500);
    enqueue(&cut_off, &children).await;
    let until = WaitCondition::Children { branch: 0, failures_max: 0 };
    settle(&cut_off, lease, Verdict::Wait(Wait::until(until))).await;
    assert_eq!(cut_off.resume(vec![parent.id]).await.expect("resumed"), [false]);
    let failed = claim(&cut_off, &parent.queue, 1).await[0].lease();
    settle(&cut_off, failed, Verdict::DeadLetter(Reason::NotRetryable)).await;
    proxy.cut_after_request(parent.id.0.simple().to_string().as_bytes());
    cut_off.resume(vec![parent.id]).await.expect_err("the connection breaks");
    let after = states(&other, &ids(&children)).await;
    assert_eq!((after[&State::Cancelled], after[&State::Dead]), (ENDS_MAX, 1), "{after:?}");
    assert_eq!(states(&other, &[parent.id]).await, [(State::Waiting, 1)].into());
    assert_eq!(other.sweep(None, 100).await.expect("swept").resumed, [parent.id]);
    let after = states(&other, &ids(&children)).await;
    assert_eq!(after, [(State::Cancelled, 2_499), (State::Dead, 1)].into());
    assert_eq!(
        claim(&other, &parent.queue, 9).await.iter().map(|job| job.id).collect::<Vec<_>>(),
        [parent.id]
    );
}

/// Even with `spread_by=key`, children are in the shard of their parent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_goes_to_the_shard_of_a_parent_in_the_same_batch() {
    let server = Redis::start();
    let store = open(&format!("{}?spread_by=key", server.address())).await;
    let policy = policy(&store).await;
    for n in 0..8 {
        let parent = new_job(&policy).with_key(IdempotencyKey::new(format!("p{n}")).expect("legal"));
        let child = NewJob { parent: Some(Parent::new(parent.id, 0)), ..new_job(&policy) };
        let grandchild = NewJob { parent: Some(Parent::new(child.id, 0)), ..new_job(&policy) };
        let tree = ids(&[parent.clone(), child.clone(), grandchild.clone()]);
        enqueue(&store, &[parent, child, grandchild]).await;
        store.cancel(vec![tree[0]]).await.expect("cancelled");
        assert_eq!(states(&store, &tree).await, [(State::Cancelled, 3)].into(), "tree {n}");
    }
}

/// Earlier versions also listed ended children among those that end with their parent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_children_that_an_earlier_version_listed_do_not_change() {
    let server = Redis::start();
    let store = open(&server.address()).await;
    let parent = new_job(&policy(&store).await);
    let children = children(&parent, parent.id, 2);
    enqueue(&store, &children).await;
    for job in claim(&store, &parent.queue, 2).await {
        settle(&store, job.lease(), Verdict::Complete(None)).await;
    }
    enqueue(&store, std::slice::from_ref(&parent)).await;
    let id = |job: &NewJob| job.id.0.simple().to_string();
    let key = server.run(&["KEYS", &format!("*:job:{}", id(&parent))]).replace(":job:", ":children:");
    server.run(&["SADD", &key, &id(&children[0]), &id(&children[1])]);
    store.cancel(vec![parent.id]).await.expect("cancelled");
    assert_eq!(states(&store, &ids(&children)).await, [(State::Succeeded, 2)].into());
    assert_eq!(server.run(&["EXISTS", &key]), "0");
}

async fn open(address: &str) -> RedisStore {
    RedisStore::open(address, Options::default()).await.expect("the store opens")
}

async fn policy(store: &RedisStore) -> PolicyRef {
    catalog::put_inline(store, &presets::once(), redrive_core::Timestamp::default()).await.expect("stored")
}

fn new_job(policy: &PolicyRef) -> NewJob {
    NewJob::new(JobId(Uuid::now_v7()), Kind::new("work").expect("legal"), policy.clone(), vec![])
}

fn children(like: &NewJob, parent: JobId, count: usize) -> Vec<NewJob> {
    let child = || NewJob { parent: Some(Parent::new(parent, 0)), id: JobId(Uuid::now_v7()), ..like.clone() };
    (0..count).map(|_| child()).collect()
}

fn ids(jobs: &[NewJob]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

fn step() -> Step {
    Step { place: 0, name: StepName::new("s").expect("legal"), kind: StepKind::Children, value: vec![] }
}

async fn enqueue(store: &RedisStore, jobs: &[NewJob]) {
    for some in jobs.chunks(BATCH_ITEMS_MAX) {
        store.enqueue(some.to_vec()).await.expect("enqueued");
    }
}

async fn claim(store: &RedisStore, queue: &Queue, limit: usize) -> Vec<Job> {
    let request = ClaimRequest {
        worker: WorkerId::new("w").expect("legal"),
        queues: vec![queue.clone()],
        kinds: vec![],
        limit,
        lease: Duration::from_secs(600),
    };
    store.claim(request).await.expect("claimed").jobs
}

async fn settle(store: &RedisStore, lease: Lease, verdict: Verdict) {
    store.settle(vec![Settlement::new(lease, verdict)]).await.expect("settled");
}

/// How many of these jobs are in each state.
async fn states(store: &RedisStore, ids: &[JobId]) -> BTreeMap<State, usize> {
    let mut states = BTreeMap::new();
    for some in ids.chunks(BATCH_ITEMS_MAX) {
        for job in store.get(some.to_vec()).await.expect("read") {
            *states.entry(job.expect("the job exists").state).or_default() += 1;
        }
    }
    states
}

/// Every job of a queue.
async fn jobs(store: &RedisStore, queue: &Queue) -> Vec<Job> {
    let filter = Filter { queue: Some(queue.clone()), ..Filter::default() };
    let (mut all, mut page) = (Vec::new(), PageRequest::first(500));
    loop {
        let mut listed = store.list(filter.clone(), page).await.expect("listed");
        all.append(&mut listed.items);
        match listed.next {
            Some(after) => page = PageRequest { after: Some(after), ..PageRequest::first(500) },
            None => return all,
        }
    }
}
