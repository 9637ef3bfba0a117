//! Steps run once, a changed order of steps is detected, and old runs finish with the old code.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::{
    Backoff, Context, Determinism, JobError, JobId, Policy, Reason, Redrive, RedriveResult, State, Task,
    presets,
};
use serde::{Deserialize, Serialize};

use crate::fixture::{job, open, output, work};

/// A job with a script: the names of its steps, attempt by attempt.
#[derive(Clone, Serialize, Deserialize)]
struct Script(Vec<Vec<String>>);

impl Task for Script {
    const KIND: &'static str = "script";
    type Output = Vec<u32>;
    fn policy() -> Policy {
        quick_policy(3)
    }
}

/// The same, but a handler that leaves out stored steps is rejected.
#[derive(Clone, Serialize, Deserialize)]
struct Strict(Vec<Vec<String>>);

impl Task for Strict {
    const KIND: &'static str = "strict";
    type Output = Vec<u32>;
    fn policy() -> Policy {
        quick_policy(3)
    }
    fn determinism() -> Determinism {
        Determinism::Strict
    }
}

/// The same, but steps are found by name.
#[derive(Clone, Serialize, Deserialize)]
struct Loose(Vec<Vec<String>>);

impl Task for Loose {
    const KIND: &'static str = "loose";
    type Output = Vec<u32>;
    fn policy() -> Policy {
        quick_policy(3)
    }
    fn determinism() -> Determinism {
        Determinism::BestEffort
    }
}

pub(crate) fn quick_policy(attempts: u32) -> Policy {
    let backoff = Backoff::fixed(Duration::from_millis(1)).unwrap();
    presets::once().with_max_attempts(attempts).unwrap().with_backoff(backoff)
}

/// Records the steps that run. The result of a step is the number of steps that have run.
#[derive(Default)]
struct Runs(Mutex<Vec<String>>);

impl Runs {
    fn run(&self, name: &str) -> u32 {
        let mut runs = self.0.lock().unwrap();
        runs.push(name.to_owned());
        runs.len() as u32
    }
}

/// Runs the steps of the attempt. Every attempt except the last fails at its end.
async fn run_script(script: Vec<Vec<String>>, cx: Context, runs: Arc<Runs>) -> Result<Vec<u32>, JobError> {
    let attempt = cx.job.attempt as usize;
    let mut values = Vec::new();
    for name in &script[attempt - 1] {
        values.push(cx.step(name, || async { Ok::<_, JobError>(runs.run(name)) }).await?);
    }
    if attempt < script.len() { Err(JobError::fail("not yet")) } else { Ok(values) }
}

/// Runs a job with this script, and returns the job and the steps that ran.
async fn check<T: Task<Output = Vec<u32>> + Clone>(
    new_task: fn(Vec<Vec<String>>) -> T,
    script_of: fn(T) -> Vec<Vec<String>>,
    script: &[&[&str]],
) -> (redrive::Job, Vec<String>) {
    let redrive = open().await;
    let script = script.iter().map(|names| names.iter().map(|name| name.to_string()).collect()).collect();
    let id = redrive.enqueue(new_task(script)).await.unwrap().id();
    let runs = Arc::new(Runs::default());
    let seen = runs.clone();
    let worker =
        redrive.worker().on(move |task: T, cx: Context| run_script(script_of(task), cx, runs.clone()));
    work(&redrive, worker, &[id]).await;
    let ran = seen.0.lock().unwrap().clone();
    (job(&redrive, id).await, ran)
}

#[tokio::test]
async fn a_stored_step_does_not_run_again() {
    let (job, ran) = check(Script, |task| task.0, &[&["a"], &["a", "b"], &["a", "b", "c"]]).await;
    assert_eq!((job.state, ran), (State::Succeeded, vec!["a".into(), "b".into(), "c".into()]));
    assert_eq!(job.output.as_deref(), Some(&b"[1,2,3]"[..]));
}

#[tokio::test]
async fn a_changed_order_is_an_error_that_names_the_steps() {
    let (job, _) = check(Script, |task| task.0, &[&["a", "b"], &["b", "a"], &["b", "a"]]).await;
    assert_eq!((job.state, job.reason), (State::Dead, Some(Reason::AttemptsExhausted)));
    let error = job.last_error.unwrap();
    assert!(error.contains("place 0") && error.contains("\"a\"") && error.contains("\"b\""), "{error}");
}

#[tokio::test]
async fn steps_that_are_left_out_are_ignored_unless_strict() {
    let script: &[&[&str]] = &[&["a", "b"], &["a"]];
    let (job, _) = check(Script, |task| task.0, script).await;
    assert_eq!(job.state, State::Succeeded);
    let (job, _) = check(Strict, |task| task.0, script).await;
    assert_eq!((job.state, job.reason, job.attempt), (State::Dead, Some(Reason::NotRetryable), 2));
    assert!(job.last_error.unwrap().contains("\"b\""));
}

#[tokio::test]
async fn best_effort_finds_steps_by_name_and_runs_the_rest() {
    let (job, ran) = check(Loose, |task| task.0, &[&["a", "b"], &["new", "b", "a"]]).await;
    assert_eq!(job.state, State::Succeeded);
    assert_eq!(
        ran,
        ["a", "b", "new", "b", "a"].map(String::from),
        "a step before the current place is not found again"
    );
    let (job, ran) = check(Loose, |task| task.0, &[&["a", "b"], &["b", "new"]]).await;
    assert_eq!((job.state, ran), (State::Succeeded, ["a", "b", "new"].map(String::from).to_vec()));
}

#[derive(Serialize, Deserialize)]
struct Saga;

impl Task for Saga {
    const KIND: &'static str = "saga";
    type Output = String;
    fn policy() -> Policy {
        quick_policy(5)
    }
}

#[tokio::test]
async fn a_rejection_is_stored_and_a_failure_is_not() {
    let redrive = open().await;
    let id = redrive.enqueue(Saga).await.unwrap().id();
    let calls = Arc::new([const { AtomicU32::new(0) }; 2]);
    let seen = calls.clone();
    let worker = redrive.worker().on(move |_: Saga, cx: Context| {
        let calls = calls.clone();
        async move {
            let refused: Result<(), JobError> = cx
                .step("card", || async {
                    calls[0].fetch_add(1, Ordering::SeqCst);
                    Err(JobError::reject("card refused"))
                })
                .await;
            let why = refused.unwrap_err().to_string();
            cx.step("invoice", || async {
                match calls[1].fetch_add(1, Ordering::SeqCst) {
                    0 | 1 => Err(JobError::fail("busy")),
                    _ => Ok(()),
                }
            })
            .await?;
            Ok(why)
        }
    });
    work(&redrive, worker, &[id]).await;
    assert_eq!(output(&redrive, id).await, "\"card refused\"");
    assert_eq!((seen[0].load(Ordering::SeqCst), seen[1].load(Ordering::SeqCst)), (1, 3));
}

#[tokio::test]
async fn an_oversized_result_is_rejected_with_the_name_of_its_step() {
    let redrive = open().await;
    let id = redrive.enqueue(Saga).await.unwrap().id();
    let worker = redrive.worker().on(|_: Saga, cx: Context| async move {
        cx.step("huge", || async { Ok::<_, JobError>("x".repeat(70_000)) }).await
    });
    work(&redrive, worker, &[id]).await;
    let job = job(&redrive, id).await;
    assert_eq!((job.state, job.attempt), (State::Dead, 1));
    assert!(job.last_error.unwrap().contains("huge"));
}

/// Runs a worker on one job with a handler of its own until it has ended.
async fn run<F, Fut>(redrive: &Redrive, id: JobId, handler: F)
where
    F: Fn(Saga, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<String, JobError>> + Send + 'static,
{
    work(redrive, redrive.worker().on(handler), &[id]).await;
}

async fn named_step(cx: &Context, name: &str) -> Result<String, JobError> {
    cx.step(name, || async { Ok::<_, JobError>(name.to_owned()) }).await
}

/// The code as it is after the change.
async fn run_changed_code(cx: &Context) -> Result<String, JobError> {
    if cx.version("reserve first", 1..=2).await? >= 2 {
        named_step(cx, "reserve").await?;
    }
    named_step(cx, "charge").await?;
    named_step(cx, "ship").await
}

#[tokio::test]
async fn an_old_run_uses_the_old_version_and_a_new_run_the_new_one() {
    let redrive = open().await;
    let old = redrive.enqueue(Saga).await.unwrap().id();
    run(&redrive, old, |_, cx| async move {
        named_step(&cx, "charge").await?;
        Err(JobError::reject("crashed here"))
    })
    .await;
    assert_eq!(redrive.redrive_job(old).await.unwrap(), RedriveResult::Done);
    let new = redrive.enqueue(Saga).await.unwrap().id();
    for id in [new, old] {
        run(&redrive, id, |_, cx| async move { run_changed_code(&cx).await }).await;
    }
    let names =
        |steps: Vec<redrive::Step>| steps.into_iter().map(|step| step.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(redrive.steps(old, 0, 9).await.unwrap()), ["charge", "ship"]);
    assert_eq!(
        names(redrive.steps(new, 0, 9).await.unwrap()),
        ["reserve first", "reserve", "charge", "ship"]
    );
}

#[tokio::test]
async fn a_version_that_is_no_longer_used_is_skipped_and_one_out_of_range_is_rejected() {
    let redrive = open().await;
    let ids = [redrive.enqueue(Saga).await.unwrap().id(), redrive.enqueue(Saga).await.unwrap().id()];
    for id in ids {
        run(&redrive, id, |_, cx| async move {
            cx.version("one", 1..=1).await?;
            named_step(&cx, "charge").await?;
            Err(JobError::reject("crashed here"))
        })
        .await;
        redrive.pause_job(id).await.unwrap();
    }
    redrive.redrive_job(ids[0]).await.unwrap();
    run(&redrive, ids[0], |_, cx| async move { named_step(&cx, "charge").await }).await;
    assert_eq!(output(&redrive, ids[0]).await, "\"charge\"");
    redrive.redrive_job(ids[1]).await.unwrap();
    run(&redrive, ids[1], |_, cx| async move { cx.version("one", 2..=3).await.map(|_| String::new()) }).await;
    let error = job(&redrive, ids[1]).await.last_error.unwrap();
    assert!(error.contains("version 1") && error.contains("2 to 3"), "{error}");
}

#[tokio::test]
async fn a_redrive_keeps_the_steps_and_a_redrive_from_start_runs_them_again() {
    let redrive = open().await;
    let id = redrive.enqueue(Saga).await.unwrap().id();
    let runs = Arc::new(Runs::default());
    for (from_start, ran) in [(None, 1), (Some(false), 1), (Some(true), 2)] {
        match from_start {
            None => {}
            Some(false) => assert_eq!(redrive.redrive_job(id).await.unwrap(), RedriveResult::Done),
            Some(true) => assert_eq!(redrive.redrive_from_start(id).await.unwrap(), RedriveResult::Done),
        }
        let runs_now = runs.clone();
        run(&redrive, id, move |_, cx| {
            let runs = runs_now.clone();
            async move {
                cx.step("charge", || async { Ok::<_, JobError>(runs.run("charge")) }).await?;
                Err(JobError::reject("always"))
            }
        })
        .await;
        assert_eq!(runs.0.lock().unwrap().len(), ran, "{from_start:?}");
    }
}
