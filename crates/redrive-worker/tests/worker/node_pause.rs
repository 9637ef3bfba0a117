//! A node with a problem of its own pauses its claims, charges no attempts, and resumes when the problem is over.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use redrive_core::{Deferral, Job, Outcome, State, Timestamp};
use redrive_worker::{Context, Observer};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::fixture::{Fixture, MS, RunningWorker, S};

/// Records the node's problems and the sizes of its claims.
#[derive(Default)]
struct RecordingObserver {
    problems: Mutex<Vec<Option<String>>>,
    claims: Mutex<Vec<usize>>,
}

impl Observer for RecordingObserver {
    fn claimed(&self, jobs: &[Arc<Job>], _now: Timestamp) {
        if !jobs.is_empty() {
            self.claims.lock().unwrap().push(jobs.len());
        }
    }

    fn node_problem(&self, problem: Option<&str>) {
        self.problems.lock().unwrap().push(problem.map(str::to_owned));
    }
}

/// A node that cannot make attempts while `broken`, and the times of its tries.
#[derive(Default, Clone)]
struct Node {
    broken: Arc<AtomicBool>,
    tries: Arc<Mutex<Vec<Instant>>>,
    observer: Arc<RecordingObserver>,
}

impl Node {
    fn start(&self, fixture: &Fixture) -> RunningWorker {
        let node = self.clone();
        let worker = fixture.worker(Fixture::settings(), move |_: Context| {
            node.tries.lock().unwrap().push(Instant::now());
            std::future::ready(match node.broken.load(Ordering::SeqCst) {
                true => Outcome::Defer(Deferral::of_node(S, "no file descriptors")),
                false => Outcome::Done(None),
            })
        });
        fixture.run(worker.observe(self.observer.clone()))
    }

    fn tries(&self) -> usize {
        self.tries.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_with_a_problem_claims_one_job_at_a_time_and_charges_no_attempts() {
    let fixture = Fixture::new().await;
    let node = Node::default();
    node.broken.store(true, Ordering::SeqCst);
    fixture.enqueue_many(50).await;
    let worker = node.start(&fixture);
    tokio::time::sleep(60 * S).await;
    // The first claim takes many jobs. After it the node claims one at a time, with pauses of 1, 2, 4, 8 and then 10 s.
    let claimed = node.observer.claims.lock().unwrap().clone();
    assert!(claimed.iter().skip_while(|jobs| **jobs > 1).all(|jobs| *jobs <= 1), "{claimed:?}");
    let probes = claimed.iter().filter(|jobs| **jobs == 1).count();
    assert!((5..=9).contains(&probes), "{probes} jobs in a minute: {claimed:?}");
    for n in 1..=50 {
        let job = fixture.job(n);
        assert_eq!((job.state, job.attempt), (State::Pending, 0), "{n}");
        assert_eq!(fixture.outcomes(n), [""; 0], "{n}");
    }
    assert!((1..=50).any(|n| fixture.job(n).last_error.as_deref() == Some("no file descriptors")));
    assert_eq!(
        *node.observer.problems.lock().unwrap(),
        [Some("no file descriptors".to_owned())],
        "reported once"
    );

    node.broken.store(false, Ordering::SeqCst);
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 50).await;
    assert_eq!(node.observer.problems.lock().unwrap().last(), Some(&None));
    let summary = worker.stop().await;
    assert_eq!((summary.succeeded, summary.retried, summary.dead), (50, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_node_works_at_full_speed_when_its_problem_is_over() {
    let fixture = Fixture::new().await;
    let node = Node::default();
    node.broken.store(true, Ordering::SeqCst);
    fixture.enqueue_many(1).await;
    let worker = node.start(&fixture);
    fixture.wait_until(|_| node.tries() == 4).await;
    node.broken.store(false, Ordering::SeqCst);
    fixture.wait_for_state(1, State::Succeeded).await;
    let before = Instant::now();
    fixture.enqueue((2..=200).map(|n| fixture.new_job(n))).await;
    fixture.wait_until(|fixture| fixture.count_in_state(State::Succeeded) == 200).await;
    assert!(before.elapsed() < 2 * S, "{:?}", before.elapsed());
    // The next problem starts with a short pause again.
    node.broken.store(true, Ordering::SeqCst);
    let tries = node.tries();
    fixture.enqueue([fixture.new_job(201)]).await;
    fixture.wait_until(|_| node.tries() >= tries + 2).await;
    let times = node.tries.lock().unwrap().clone();
    let pause = times[tries + 1] - times[tries];
    assert!((S..2 * S).contains(&pause), "{pause:?}");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_started_before_the_problem_does_not_end_the_pause() {
    let fixture = Fixture::new().await;
    let node = Node::default();
    let (finish, finished) = oneshot::channel::<()>();
    let finished = Arc::new(Mutex::new(Some(finished)));
    let (observer, count) = (node.observer.clone(), Arc::new(AtomicUsize::new(0)));
    let worker = fixture.worker(Fixture::settings(), move |cx: Context| {
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
    fixture.enqueue_many(2).await;
    let worker = fixture.run(worker.observe(observer.clone()));
    fixture.wait_until(|_| observer.problems.lock().unwrap().len() == 1).await;
    finish.send(()).unwrap();
    fixture.wait_for_state(1, State::Succeeded).await;
    tokio::time::sleep(30 * S).await;
    assert_eq!(*observer.problems.lock().unwrap(), [Some("no name server answers".to_owned())]);
    assert_eq!((fixture.job(2).state, fixture.job(2).attempt), (State::Pending, 0));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_with_a_problem_shuts_down_at_once() {
    let fixture = Fixture::new().await;
    let node = Node::default();
    node.broken.store(true, Ordering::SeqCst);
    fixture.enqueue_many(3).await;
    let worker = node.start(&fixture);
    fixture.wait_until(|_| node.tries() >= 3).await;
    let before = Instant::now();
    worker.stop().await;
    assert!(before.elapsed() < 500 * MS, "{:?}", before.elapsed());
}
