//! Tests of `redrive move`: everything is moved once, even if the move is killed or a store fails.

mod fixtures;
mod redis;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive_core::store::{Backend, Retention};
use redrive_core::{Idempotency, IdempotencyKey, JobId, Kind, NewJob, Outcome, Policy, State, catalog};
use redrive_testkit::servers::{Postgres, Proxy};
use redrive_worker::{Context, Settings, Worker};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::fixtures::{
    Content, Folder, assert_same, claim_request, fill, open, read_content, run, start, stderr, stdout,
};

const JOBS: u128 = 3000;

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_moved_to_postgres_and_back_to_sqlite() {
    let (folder, server) = (Folder::new(), Postgres::start());
    let (first, second, third) = (folder.store("first.db"), server.address(), folder.store("third.db"));
    fill(&first, JOBS).await;
    let expected = read_content(&*open(&first).await).await;
    let states: Vec<State> = expected.jobs.values().map(|snapshot| snapshot.job.state).collect();
    assert!(State::ALL.iter().all(|state| states.contains(state)), "the store lacks a state");
    assert_eq!(expected.reserved_keys.len(), 1);

    let text = stdout(&run(&first, &second, &[]));
    assert!(text.contains(&format!("{JOBS} jobs and ")) && text.contains("stays sealed"), "{text}");
    assert_same(&expected, &read_content(&*open(&second).await).await);

    let json: Value = serde_json::from_str(&stdout(&run(&second, &third, &["--json"]))).expect("JSON");
    assert_eq!((&json["jobs"], &json["repeated"]), (&Value::from(JOBS as u64), &Value::from(false)));
    let store = open(&third).await;
    assert_same(&expected, &read_content(&*store).await);
    let counted: u64 = store.stats().await.expect("stats").counts.values().sum();
    assert_eq!(counted, JOBS as u64);
    assert!(!store.claim(claim_request(10, Duration::from_secs(30))).await.expect("claim").jobs.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_killed_continues_and_nothing_is_lost_or_doubled() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (folder, server) = (Folder::new(), Postgres::start());
    let file = folder.store("source.db");
    fill(&file, JOBS).await;
    let expected = read_content(&*open(&file).await).await;
    server.create_database("back");
    let legs = [(file, server.address()), (server.address(), server.address_of("back"))];
    for (from, to) in legs {
        check_killed_move(&mut rng, &from, &to, &expected).await;
    }
    assert!(
        !open(&server.address_of("back"))
            .await
            .claim(claim_request(9, Duration::ZERO))
            .await
            .expect("claim")
            .jobs
            .is_empty()
    );
}

/// Starts a move and kills it at a random moment, again and again, until one ends by itself. Then compares the stores.
async fn check_killed_move(rng: &mut fastrand::Rng, from: &str, to: &str, expected: &Content) {
    let mut kills = 0;
    let ended = loop {
        let mut child = start(from, to);
        // The kills come later and later, so that a move ends at some point.
        let lifetime = Duration::from_millis(rng.u64(5..120 + 60 * kills));
        if !ends_within(&mut child, lifetime) {
            child.kill().expect("the move is killed");
            child.wait().expect("the move has ended");
            kills += 1;
            continue;
        }
        break child.wait_with_output().expect("the move has ended");
    };
    stdout(&ended);
    println!("{kills} kills between {from} and {to}");
    let (source, target) = (open(from).await, open(to).await);
    assert_same(expected, &read_content(&*target).await);
    assert_eq!(source.claim(claim_request(10, Duration::from_secs(1))).await.expect("claim").jobs, []);
    // A repeated move moves nothing and changes nothing.
    drop((source, target));
    assert!(stdout(&run(from, to, &[])).starts_with("0 jobs that were enqueued"));
    assert_same(expected, &read_content(&*open(to).await).await);
}

fn ends_within(child: &mut std::process::Child, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        if child.try_wait().expect("the status can be read").is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.try_wait().expect("the status can be read").is_some()
}

/// How often each job has run, at the source or at the target.
type RunCounts = Arc<Mutex<BTreeMap<JobId, u32>>>;

/// Starts a worker whose jobs take 20 ms each.
fn start_worker(
    store: Arc<dyn Backend>,
    runs: &RunCounts,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let (stop, runs) = (CancellationToken::new(), runs.clone());
    let settings = Settings { concurrency: 8, ..Settings::default() };
    let handler = move |cx: Context| {
        *runs.lock().expect("no panic").entry(cx.job.id).or_default() += 1;
        async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Outcome::Done(None)
        }
    };
    let worker = Worker::new(store, settings).expect("valid").on(Kind::new("work").expect("valid"), handler);
    let ended = stop.clone();
    let task = tokio::spawn(async move {
        worker.run_until(ended.cancelled_owned()).await.expect("the worker ends cleanly");
    });
    (stop, task)
}

async fn enqueue(store: &dyn Backend, ids: std::ops::Range<u128>) {
    let jobs = new_jobs(store, ids).await;
    store.enqueue(jobs).await.expect("enqueue");
}

/// Enqueues jobs with the idempotency keys 0, 1, 2, …
async fn enqueue_with_keys(store: &dyn Backend, ids: std::ops::Range<u128>) {
    let mut jobs = new_jobs(store, ids).await;
    for (number, job) in jobs.iter_mut().enumerate() {
        let key = IdempotencyKey::new(number.to_string()).expect("valid");
        job.idempotency = Some(Idempotency { key, fingerprint: [0; 32] });
    }
    store.enqueue(jobs).await.expect("enqueue");
}

async fn new_jobs(store: &dyn Backend, ids: std::ops::Range<u128>) -> Vec<NewJob> {
    let policy = catalog::put_inline(store, &Policy::default(), redrive_core::Timestamp::default())
        .await
        .expect("a policy");
    let new = |n| {
        NewJob::new(JobId(Uuid::from_u128(n)), Kind::new("work").expect("valid"), policy.clone(), vec![1])
    };
    ids.map(new).collect()
}

async fn wait_for_count(store: &dyn Backend, state: State, count: u64) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while store.stats().await.expect("stats").in_state(state) < count {
        assert!(Instant::now() < deadline, "{:?}", store.stats().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_at_the_source_runs_no_job_that_was_moved() {
    let (folder, server) = (Folder::new(), Postgres::start());
    let (from, to) = (server.address(), folder.store("target.db"));
    let (source, runs) = (open(&from).await, RunCounts::default());
    enqueue(&*source, 0..900).await;
    let (stop, at_source) = start_worker(source.clone(), &runs);
    wait_for_count(&*source, State::Succeeded, 50).await;
    // The move waits for running jobs, then copies. Meanwhile the worker tries to claim, and jobs are enqueued.
    let moving = {
        let (from, to) = (from.clone(), to.clone());
        tokio::task::spawn_blocking(move || run(&from, &to, &[]))
    };
    enqueue(&*source, 10_000..10_100).await;
    stdout(&moving.await.expect("the move ends"));
    let ran_at_source = runs.lock().expect("no panic").len();
    assert!(ran_at_source < 1000, "every job ran at the source before the move");
    enqueue(&*source, 20_000..20_050).await;
    stdout(&run(&from, &to, &[]));

    let target = open(&to).await;
    let (stop_target, at_target) = start_worker(target.clone(), &runs);
    wait_for_count(&*target, State::Succeeded, 1050).await;
    for (stop, task) in [(stop, at_source), (stop_target, at_target)] {
        stop.cancel();
        task.await.expect("the worker ends cleanly");
    }
    let runs = runs.lock().expect("no panic");
    assert_eq!((runs.len(), runs.values().max()), (1050, Some(&1)), "a job did not run, or ran twice");
}

/// Completes the due jobs of a store and prunes them at once.
async fn complete_and_prune(store: &dyn Backend, jobs: usize) {
    let claimed = store.claim(claim_request(jobs, Duration::from_secs(9))).await.expect("claim").jobs;
    let completed = |job: &redrive_core::Job| {
        redrive_core::store::Settlement::new(job.lease(), redrive_core::Verdict::Complete(None))
    };
    store.settle(claimed.iter().map(completed).collect()).await.expect("settle");
    let at_once = Retention { succeeded: Duration::ZERO, dead: Duration::ZERO, cancelled: Duration::ZERO };
    assert_eq!(store.prune(at_once, jobs).await.expect("prune"), jobs);
}

/// Repeats a move, and returns the number of jobs that it moved.
fn move_late_jobs(from: &str, to: &str) -> u64 {
    let printed = stdout(&run(from, to, &["--json"]));
    let moved: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(moved["repeated"], Value::from(true), "{printed}");
    moved["jobs"].as_u64().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_move_does_not_bring_back_jobs_that_the_target_has_pruned() {
    let folder = Folder::new();
    let (from, to) = (folder.store("source.db"), folder.store("target.db"));
    enqueue(&*open(&from).await, 0..10).await;
    stdout(&run(&from, &to, &[]));
    complete_and_prune(&*open(&to).await, 10).await;
    enqueue(&*open(&from).await, 50..53).await;
    assert_eq!(move_late_jobs(&from, &to), 3);
    assert_eq!(move_late_jobs(&from, &to), 0);
    assert_eq!(open(&to).await.stats().await.expect("stats").in_state(State::Pending), 3);
}

/// Jobs whose idempotency key exists at the target stay at the source. A batch that has only such jobs must not make a later move
/// forget which jobs were moved.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_move_remembers_moved_jobs_after_a_batch_of_conflicts() {
    let folder = Folder::new();
    let (from, to) = (folder.store("source.db"), folder.store("target.db"));
    enqueue(&*open(&from).await, 0..1).await;
    stdout(&run(&from, &to, &[]));
    complete_and_prune(&*open(&to).await, 1).await;
    enqueue_with_keys(&*open(&from).await, 1_000..1_400).await;
    enqueue_with_keys(&*open(&to).await, 2_000..2_400).await;
    enqueue(&*open(&from).await, 3_000..3_010).await;
    assert_eq!(move_late_jobs(&from, &to), 10);
    for late in [500..505, 600..605] {
        enqueue(&*open(&from).await, late).await;
        assert_eq!(move_late_jobs(&from, &to), 5);
    }
    complete_and_prune(&*open(&to).await, 420).await;
    enqueue_with_keys(&*open(&to).await, 2_000..2_400).await;
    assert_eq!(move_late_jobs(&from, &to), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_whose_target_fails_can_be_repeated() {
    let (folder, server) = (Folder::new(), Postgres::start());
    let from = folder.store("source.db");
    fill(&from, 600).await;
    let expected = read_content(&*open(&from).await).await;
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let to = server.address().replace(&server.port().to_string(), &proxy.address().port().to_string());
    // The connection is cut after the request, so the move does not know whether the server has executed it.
    for statement in [
        "WHERE records.version < excluded.version",
        "INSERT INTO redrive.jobs",
        "INSERT INTO redrive.attempts",
    ] {
        let faults = proxy.requests_cut();
        proxy.cut_after_request(statement.as_bytes());
        let error = stderr(&run(&from, &to, &[]));
        assert!(error.contains("run the same command again"), "{error}");
        assert_eq!(proxy.requests_cut(), faults + 1);
    }
    stdout(&run(&from, &to, &[]));
    assert_same(&expected, &read_content(&*open(&to).await).await);
}

fn doctor(store: &str) -> String {
    let mut redrive = Command::new(env!("CARGO_BIN_EXE_redrive"));
    stdout(&redrive.args(["doctor", "--store", store]).output().expect("the command starts"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_would_mix_stores_is_rejected_and_says_what_to_do() {
    let (folder, server) = (Folder::new(), Postgres::start());
    let [a, b, c] = ["a.db", "b.db", "c.db"].map(|name| folder.store(name));
    enqueue(&*open(&a).await, 0..3).await;
    enqueue(&*open(&b).await, 3..5).await;
    assert!(stderr(&run(&a, &a, &[])).contains("the same store"));
    let (one, other) = (server.address(), server.address().replace("127.0.0.1", "localhost"));
    enqueue(&*open(&one).await, 0..2).await;
    assert!(stderr(&run(&one, &other, &["--merge"])).contains("the same store"));
    assert_eq!(
        open(&one).await.claim(claim_request(9, Duration::ZERO)).await.expect("claim").jobs.len(),
        2,
        "a rejected move must not seal the store"
    );

    let error = stderr(&run(&a, &b, &[]));
    assert!(error.contains("already has 2 jobs") && error.contains("--merge"), "{error}");
    assert!(stdout(&run(&a, &b, &["--merge"])).contains("3 jobs and "));
    assert_eq!(open(&b).await.stats().await.expect("stats").in_state(State::Pending), 5);
    let error = stderr(&run(&a, &c, &[]));
    assert!(error.contains(&b) && error.contains("--lift"), "{error}");
    assert!(stderr(&run(&c, &a, &[])).contains("still has its old jobs"));

    let found = doctor(&a);
    assert!(found.contains(&format!("was moved to {b}")) && found.contains("redrive move --lift"), "{found}");
    let mut lift = Command::new(env!("CARGO_BIN_EXE_redrive"));
    assert!(
        stdout(&lift.args(["move", "--lift", &a]).output().expect("the command starts"))
            .contains("no longer sealed")
    );
    assert!(!doctor(&a).contains("seal"));
    assert_eq!(open(&a).await.claim(claim_request(9, Duration::ZERO)).await.expect("claim").jobs.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_rows_are_named_and_stay_behind_only_with_leave_behind() {
    let (folder, server) = (Folder::new(), Postgres::start());
    let (from, to) = (server.address(), folder.store("target.db"));
    enqueue(&*open(&from).await, 0..5).await;
    let damaged = Uuid::from_u128(3);
    server.run(&format!("UPDATE redrive.jobs SET policy = 'no policy' WHERE id = '{damaged}'"));
    let error = stderr(&run(&from, &to, &[]));
    assert!(error.contains(&damaged.to_string()) && error.contains("--leave-behind"), "{error}");
    assert_eq!(
        open(&to).await.claim(claim_request(9, Duration::ZERO)).await.expect("claim").jobs,
        [],
        "the target must stay sealed"
    );
    let text = stdout(&run(&from, &to, &["--leave-behind"]));
    assert!(text.contains(&format!("left behind: job {damaged}")) && text.contains("4 jobs and "), "{text}");
    assert_eq!(open(&to).await.claim(claim_request(9, Duration::ZERO)).await.expect("claim").jobs.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_on_a_store_that_was_moved_logs_the_new_store() {
    let folder = Folder::new();
    let (from, to) = (folder.store("source.db"), folder.store("target.db"));
    enqueue(&*open(&from).await, 0..1).await;
    stdout(&run(&from, &to, &[]));
    let mut serve = Command::new(env!("CARGO_BIN_EXE_redrive"));
    serve.args(["serve", "--listen", "127.0.0.1:0", "--store", &from]).current_dir(folder.path("."));
    let mut serve = serve.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the service starts");
    let log = BufReader::new(serve.stderr.take().expect("standard error is piped"));
    let line = log.lines().map_while(Result::ok).find(|line| line.contains("was moved to"));
    serve.kill().expect("the service is killed");
    serve.wait().expect("the service has ended");
    let line = line.expect("the service logs the new store");
    assert!(line.contains(&to) && line.contains("--lift"), "{line}");
}
