//! `redrive move` as a user runs it: everything comes over once, whatever happens on the way.

mod redis;
mod stage;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redrive_core::store::{Backend, Retention};
use redrive_core::{JobId, Kind, NewJob, Outcome, Policy, State, catalog};
use redrive_testkit::servers::{Postgres, Proxy};
use redrive_worker::{Context, Settings, Worker};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use stage::{Content, Folder, complaint, content, fill, open, printed, request, run, same, start};

const JOBS: u128 = 3000;

#[tokio::test(flavor = "multi_thread")]
async fn everything_comes_over_to_a_server_and_back_into_a_file() {
    let (folder, server) = (Folder::new(), Postgres::start());
    let (first, second, third) = (folder.store("first.db"), server.address(), folder.store("third.db"));
    fill(&first, JOBS).await;
    let was = content(&*open(&first).await).await;
    let states: Vec<State> = was.parcels.values().map(|parcel| parcel.job.state).collect();
    assert!(State::ALL.iter().all(|state| states.contains(state)), "every state is there");
    assert_eq!(was.promises.len(), 1);

    let text = printed(&run(&first, &second, &[]));
    assert!(text.contains(&format!("{JOBS} jobs and ")) && text.contains("stays sealed"), "{text}");
    same(&was, &content(&*open(&second).await).await);

    let json: Value = serde_json::from_str(&printed(&run(&second, &third, &["--json"]))).expect("JSON");
    assert_eq!((&json["jobs"], &json["again"]), (&Value::from(JOBS as u64), &Value::from(false)));
    let store = open(&third).await;
    same(&was, &content(&*store).await);
    let counted: u64 = store.stats().await.expect("stats").counts.values().sum();
    assert_eq!(counted, JOBS as u64);
    assert!(!store.claim(request(10, Duration::from_secs(30))).await.expect("claim").jobs.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_it_goes_on_and_nothing_is_lost_or_doubled() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (folder, server) = (Folder::new(), Postgres::start());
    let file = folder.store("source.db");
    fill(&file, JOBS).await;
    let was = content(&*open(&file).await).await;
    server.create_database("back");
    let legs = [(file, server.address()), (server.address(), server.address_of("back"))];
    for (from, to) in legs {
        survives_kills(&mut rng, &from, &to, &was).await;
    }
    assert!(
        !open(&server.address_of("back"))
            .await
            .claim(request(9, Duration::ZERO))
            .await
            .expect("claim")
            .jobs
            .is_empty()
    );
}

/// Kills the move between two stores at random moments until one comes to its end.
async fn survives_kills(rng: &mut fastrand::Rng, from: &str, to: &str, was: &Content) {
    let mut kills = 0;
    let ended = loop {
        let mut child = start(from, to);
        // At first early ones, then later ones, so that it comes to its end sometime.
        let patience = Duration::from_millis(rng.u64(5..120 + 60 * kills));
        if !ends_within(&mut child, patience) {
            child.kill().expect("it is killed");
            child.wait().expect("it is gone");
            kills += 1;
            continue;
        }
        break child.wait_with_output().expect("it has ended");
    };
    printed(&ended);
    println!("{kills} kills between {from} and {to}");
    let (source, target) = (open(from).await, open(to).await);
    same(was, &content(&*target).await);
    assert_eq!(source.claim(request(10, Duration::from_secs(1))).await.expect("claim").jobs, []);
    // Once more after the end brings nothing and changes nothing.
    drop((source, target));
    assert!(printed(&run(from, to, &[])).starts_with("0 jobs that were enqueued"));
    same(was, &content(&*open(to).await).await);
}

fn ends_within(child: &mut std::process::Child, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while Instant::now() < until {
        if child.try_wait().expect("it can be asked").is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.try_wait().expect("it can be asked").is_some()
}

/// How often each job has run, wherever.
type Runs = Arc<Mutex<BTreeMap<JobId, u32>>>;

/// A worker that takes a while for each job.
fn worker(store: Arc<dyn Backend>, runs: &Runs) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let (stop, runs) = (CancellationToken::new(), runs.clone());
    let settings = Settings { concurrency: 8, ..Settings::default() };
    let handler = move |cx: Context| {
        *runs.lock().expect("no panic").entry(cx.job.id).or_default() += 1;
        async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Outcome::Done(None)
        }
    };
    let worker = Worker::new(store, settings).expect("legal").on(Kind::new("work").expect("legal"), handler);
    let ended = stop.clone();
    let task = tokio::spawn(async move {
        worker.run_until(ended.cancelled_owned()).await.expect("it works");
    });
    (stop, task)
}

async fn enqueue(store: &dyn Backend, ids: std::ops::Range<u128>) {
    let policy = catalog::put_inline(store, &Policy::default()).await.expect("a policy");
    let new = |n| {
        NewJob::new(JobId(Uuid::from_u128(n)), Kind::new("work").expect("legal"), policy.clone(), vec![1])
    };
    store.enqueue(ids.map(new).collect()).await.expect("enqueue");
}

async fn until(store: &dyn Backend, state: State, count: u64) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while store.stats().await.expect("stats").in_state(state) < count {
        assert!(Instant::now() < deadline, "{:?}", store.stats().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_live_at_the_source_run_nothing_that_was_moved() {
    let (folder, server) = (Folder::new(), Postgres::start());
    let (from, to) = (server.address(), folder.store("target.db"));
    let (source, runs) = (open(&from).await, Runs::default());
    enqueue(&*source, 0..900).await;
    let (stop, at_source) = worker(source.clone(), &runs);
    until(&*source, State::Succeeded, 50).await;
    // It waits for what runs, then copies, while the worker goes on asking and others enqueue.
    let moving = {
        let (from, to) = (from.clone(), to.clone());
        tokio::task::spawn_blocking(move || run(&from, &to, &[]))
    };
    enqueue(&*source, 10_000..10_100).await;
    printed(&moving.await.expect("it ends"));
    let at_source_ran = runs.lock().expect("no panic").len();
    assert!(at_source_ran < 1000, "the source was still at work when it was moved");
    enqueue(&*source, 20_000..20_050).await;
    printed(&run(&from, &to, &[]));

    let target = open(&to).await;
    let (stop_target, at_target) = worker(target.clone(), &runs);
    until(&*target, State::Succeeded, 1050).await;
    for (stop, task) in [(stop, at_source), (stop_target, at_target)] {
        stop.cancel();
        task.await.expect("it ends in good order");
    }
    let runs = runs.lock().expect("no panic");
    assert_eq!((runs.len(), runs.values().max()), (1050, Some(&1)), "each job ran once, at one of the two");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_and_gone_at_the_target_does_not_come_again() {
    let folder = Folder::new();
    let (from, to) = (folder.store("source.db"), folder.store("target.db"));
    enqueue(&*open(&from).await, 0..10).await;
    printed(&run(&from, &to, &[]));
    let target = open(&to).await;
    let claimed = target.claim(request(10, Duration::from_secs(9))).await.expect("claim").jobs;
    let done = |job: &redrive_core::Job| {
        redrive_core::store::Settlement::new(job.lease(), redrive_core::Verdict::Complete(None))
    };
    target.settle(claimed.iter().map(done).collect()).await.expect("settle");
    let at_once = Retention { succeeded: Duration::ZERO, dead: Duration::ZERO, cancelled: Duration::ZERO };
    assert_eq!(target.prune(at_once, 100).await.expect("prune"), 10);
    drop(target);
    enqueue(&*open(&from).await, 50..53).await;
    assert!(printed(&run(&from, &to, &[])).contains("3 jobs that were enqueued"));
    assert!(printed(&run(&from, &to, &[])).contains("0 jobs that were enqueued"));
    assert_eq!(open(&to).await.stats().await.expect("stats").in_state(State::Pending), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_fails_says_to_run_it_again() {
    let (folder, server) = (Folder::new(), Postgres::start());
    let from = folder.store("source.db");
    fill(&from, 600).await;
    let was = content(&*open(&from).await).await;
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let to = server.address().replace(&server.port().to_string(), &proxy.address().port().to_string());
    // Whether what was asked for was done or not, nobody on this side knows.
    for asked in
        ["Writes records with their versions", "Adds jobs exactly as they were", "Adds the logs of jobs"]
    {
        let faults = proxy.faults();
        proxy.cut_after_request(asked.as_bytes());
        let said = complaint(&run(&from, &to, &[]));
        assert!(said.contains("run the same command again"), "{said}");
        assert_eq!(proxy.faults(), faults + 1);
    }
    printed(&run(&from, &to, &[]));
    same(&was, &content(&*open(&to).await).await);
}

fn doctor(store: &str) -> String {
    let mut redrive = Command::new(env!("CARGO_BIN_EXE_redrive"));
    printed(&redrive.args(["doctor", "--store", store]).output().expect("it starts"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_would_mix_stores_up_is_refused_and_says_what_to_do() {
    let (folder, server) = (Folder::new(), Postgres::start());
    let [a, b, c] = ["a.db", "b.db", "c.db"].map(|name| folder.store(name));
    enqueue(&*open(&a).await, 0..3).await;
    enqueue(&*open(&b).await, 3..5).await;
    assert!(complaint(&run(&a, &a, &[])).contains("the same store"));
    let (one, other) = (server.address(), server.address().replace("127.0.0.1", "localhost"));
    enqueue(&*open(&one).await, 0..2).await;
    assert!(complaint(&run(&one, &other, &["--merge"])).contains("the same store"));
    assert_eq!(
        open(&one).await.claim(request(9, Duration::ZERO)).await.expect("claim").jobs.len(),
        2,
        "and is not sealed"
    );

    let said = complaint(&run(&a, &b, &[]));
    assert!(said.contains("has 2 jobs already") && said.contains("--merge"), "{said}");
    assert!(printed(&run(&a, &b, &["--merge"])).contains("3 jobs and "));
    assert_eq!(open(&b).await.stats().await.expect("stats").in_state(State::Pending), 5);
    let said = complaint(&run(&a, &c, &[]));
    assert!(said.contains(&b) && said.contains("--lift"), "{said}");
    assert!(complaint(&run(&c, &a, &[])).contains("was itself moved"));

    let found = doctor(&a);
    assert!(found.contains(&format!("was moved to {b}")) && found.contains("redrive move --lift"), "{found}");
    let mut lift = Command::new(env!("CARGO_BIN_EXE_redrive"));
    assert!(
        printed(&lift.args(["move", "--lift", &a]).output().expect("it starts"))
            .contains("open for work again")
    );
    assert!(!doctor(&a).contains("seal"));
    assert_eq!(open(&a).await.claim(request(9, Duration::ZERO)).await.expect("claim").jobs.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_cannot_be_read_are_named_and_left_behind_only_when_told_so() {
    let (folder, server) = (Folder::new(), Postgres::start());
    let (from, to) = (server.address(), folder.store("target.db"));
    enqueue(&*open(&from).await, 0..5).await;
    let damaged = Uuid::from_u128(3);
    server.run(&format!("UPDATE redrive.jobs SET policy = 'no policy' WHERE id = '{damaged}'"));
    let said = complaint(&run(&from, &to, &[]));
    assert!(said.contains(&damaged.to_string()) && said.contains("--leave-behind"), "{said}");
    assert_eq!(
        open(&to).await.claim(request(9, Duration::ZERO)).await.expect("claim").jobs,
        [],
        "it stays closed"
    );
    let text = printed(&run(&from, &to, &["--leave-behind"]));
    assert!(text.contains(&format!("left behind: job {damaged}")) && text.contains("4 jobs and "), "{text}");
    assert_eq!(open(&to).await.claim(request(9, Duration::ZERO)).await.expect("claim").jobs.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_on_a_store_that_was_moved_says_where_it_went() {
    let folder = Folder::new();
    let (from, to) = (folder.store("source.db"), folder.store("target.db"));
    enqueue(&*open(&from).await, 0..1).await;
    printed(&run(&from, &to, &[]));
    let mut serve = Command::new(env!("CARGO_BIN_EXE_redrive"));
    serve.args(["serve", "--listen", "127.0.0.1:0", "--store", &from]).current_dir(folder.path("."));
    let mut serve = serve.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let log = BufReader::new(serve.stderr.take().expect("a log"));
    let said = log.lines().map_while(Result::ok).find(|line| line.contains("was moved to"));
    serve.kill().expect("it is killed");
    serve.wait().expect("it is gone");
    let said = said.expect("it says so before it ends");
    assert!(said.contains(&to) && said.contains("--lift"), "{said}");
}
