//! A node with a problem of its own stops claiming, charges nobody, and finds out by itself when it works again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use redrive_core::{Deferral, Job, Outcome, State, Timestamp};
use redrive_worker::{Context, Observer};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::stage::{MS, Running, S, Stage};

/// What an observer of a node is told.
#[derive(Default)]
struct Problems(Mutex<Vec<Option<String>>>, Mutex<Vec<usize>>);

impl Observer for Problems {
    fn claimed(&self, jobs: &[Arc<Job>], _now: Timestamp) {
        if !jobs.is_empty() {
            self.1.lock().unwrap().push(jobs.len());
        }
    }

    fn node_problem(&self, problem: Option<&str>) {
        self.0.lock().unwrap().push(problem.map(str::to_owned));
    }
}

/// A node that cannot make attempts while `broken`, and the times at which it tried.
#[derive(Default, Clone)]
struct Node {
    broken: Arc<AtomicBool>,
    tries: Arc<Mutex<Vec<Instant>>>,
    problems: Arc<Problems>,
}

impl Node {
    fn start(&self, stage: &Stage) -> Running {
        let node = self.clone();
        let worker = stage.worker(Stage::settings(), move |_: Context| {
            node.tries.lock().unwrap().push(Instant::now());
            std::future::ready(match node.broken.load(Ordering::SeqCst) {
                true => Outcome::Defer(Deferral::of_node(S, "no file descriptors")),
                false => Outcome::Done(None),
            })
        });
        stage.run(worker.observe(self.problems.clone()))
    }

    fn tries(&self) -> usize {
        self.tries.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_work_takes_no_work_and_charges_nobody() {
    let stage = Stage::new().await;
    let node = Node::default();
    node.broken.store(true, Ordering::SeqCst);
    stage.enqueue_many(50).await;
    let worker = node.start(&stage);
    tokio::time::sleep(60 * S).await;
    // The first claim takes many; after it there is one job at a time, with pauses of 1, 2, 4, 8 and then 10 s.
    let claimed = node.problems.1.lock().unwrap().clone();
    assert!(claimed.iter().skip_while(|jobs| **jobs > 1).all(|jobs| *jobs <= 1), "{claimed:?}");
    let probes = claimed.iter().filter(|jobs| **jobs == 1).count();
    assert!((5..=9).contains(&probes), "{probes} jobs in a minute: {claimed:?}");
    for n in 1..=50 {
        let job = stage.job(n);
        assert_eq!((job.state, job.attempt), (State::Pending, 0), "{n}");
        assert_eq!(stage.outcomes(n), [""; 0], "{n}");
    }
    assert!((1..=50).any(|n| stage.job(n).last_error.as_deref() == Some("no file descriptors")));
    assert_eq!(*node.problems.0.lock().unwrap(), [Some("no file descriptors".to_owned())], "told once");

    node.broken.store(false, Ordering::SeqCst);
    stage.when(|stage| stage.in_state(State::Succeeded) == 50).await;
    assert_eq!(node.problems.0.lock().unwrap().last(), Some(&None));
    let summary = worker.stop().await;
    assert_eq!((summary.succeeded, summary.retried, summary.dead), (50, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_works_again_is_as_fast_as_before() {
    let stage = Stage::new().await;
    let node = Node::default();
    node.broken.store(true, Ordering::SeqCst);
    stage.enqueue_many(1).await;
    let worker = node.start(&stage);
    stage.when(|_| node.tries() == 4).await;
    node.broken.store(false, Ordering::SeqCst);
    stage.until(1, State::Succeeded).await;
    let before = Instant::now();
    stage.enqueue((2..=200).map(|n| stage.new_job(n))).await;
    stage.when(|stage| stage.in_state(State::Succeeded) == 200).await;
    assert!(before.elapsed() < 2 * S, "{:?}", before.elapsed());
    // The next problem begins with a short pause again.
    node.broken.store(true, Ordering::SeqCst);
    let tries = node.tries();
    stage.enqueue([stage.new_job(201)]).await;
    stage.when(|_| node.tries() >= tries + 2).await;
    let times = node.tries.lock().unwrap().clone();
    let pause = times[tries + 1] - times[tries];
    assert!((S..2 * S).contains(&pause), "{pause:?}");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_from_before_the_problem_does_not_end_it() {
    let stage = Stage::new().await;
    let node = Node::default();
    let (finish, finished) = oneshot::channel::<()>();
    let finished = Arc::new(Mutex::new(Some(finished)));
    let (problems, count) = (node.problems.clone(), Arc::new(AtomicUsize::new(0)));
    let worker = stage.worker(Stage::settings(), move |cx: Context| {
        let (finished, count) = (finished.clone(), count.clone());
        async move {
            if cx.job.payload[0] == 1 {
                let wait = finished.lock().unwrap().take();
                if let Some(wait) = wait {
                    wait.await.unwrap();
                }
                return Outcome::Done(None);
            }
            tokio::time::sleep(MS).await;
            count.fetch_add(1, Ordering::SeqCst);
            Outcome::Defer(Deferral::of_node(S, "no name server answers"))
        }
    });
    stage.enqueue_many(2).await;
    let worker = stage.run(worker.observe(problems.clone()));
    stage.when(|_| problems.0.lock().unwrap().len() == 1).await;
    finish.send(()).unwrap();
    stage.until(1, State::Succeeded).await;
    tokio::time::sleep(30 * S).await;
    assert_eq!(*problems.0.lock().unwrap(), [Some("no name server answers".to_owned())]);
    assert_eq!((stage.job(2).state, stage.job(2).attempt), (State::Pending, 0));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_with_a_problem_shuts_down_at_once() {
    let stage = Stage::new().await;
    let node = Node::default();
    node.broken.store(true, Ordering::SeqCst);
    stage.enqueue_many(3).await;
    let worker = node.start(&stage);
    stage.when(|_| node.tries() >= 3).await;
    let before = Instant::now();
    worker.stop().await;
    assert!(before.elapsed() < 500 * MS, "{:?}", before.elapsed());
}
