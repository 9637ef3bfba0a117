//! A panic in the caller's code is an error or a failed attempt, and the store and the worker continue.

mod drops;
mod hooks;
mod on_end;
mod serializers;
mod transactions;

use std::time::Duration;

use redrive::{Backoff, Context, Jitter, JobId, Policy, Redrive, State, TaskWorker};

use crate::fixture::{Add, job, work};

/// Three attempts, one right after the other.
fn quick_policy() -> Policy {
    let backoff = Backoff::fixed(Duration::ZERO).unwrap();
    Policy { backoff, jitter: Jitter::None, ..Policy::default() }.with_max_attempts(3).unwrap()
}

/// The failed attempts of a job, each as its outcome and its error.
async fn failures(redrive: &Redrive, id: JobId) -> Vec<(String, String)> {
    let attempts = redrive.attempts(id, 10).await.unwrap();
    let failure = |entry: redrive_core::AttemptReport| (entry.outcome, entry.error.unwrap_or_default());
    attempts.into_iter().map(|attempt| failure(attempt.entry)).collect()
}

fn panicked(error: &str) -> (String, String) {
    ("panic".to_owned(), error.to_owned())
}

/// Runs one more job beside `others`, which shows that the worker survives their panics.
async fn work_beside(redrive: &Redrive, worker: TaskWorker, others: &[JobId]) {
    let sound = redrive.enqueue(Add { a: 1, b: 2 }).await.unwrap().id();
    let worker = worker.on(|add: Add, _: Context| async move { Ok(add.a + add.b) });
    let all: Vec<JobId> = others.iter().copied().chain([sound]).collect();
    work(redrive, worker, &all).await;
    assert_eq!(job(redrive, sound).await.state, State::Succeeded);
}
