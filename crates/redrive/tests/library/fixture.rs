//! A store in memory, a task, and a worker that runs until given jobs have ended, for all tests.

use std::time::Duration;

use redrive::{Job, JobId, Redrive, State, Summary, Task, TaskWorker};
use serde::{Deserialize, Serialize};

/// Adds two numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Add {
    pub(crate) a: u32,
    pub(crate) b: u32,
}

impl Task for Add {
    const KIND: &'static str = "add";
    type Output = u32;
}

pub(crate) async fn open() -> Redrive {
    Redrive::open("sqlite::memory:").await.expect("a store in memory")
}

/// Runs `worker` until each of `jobs` has ended.
pub(crate) async fn work(redrive: &Redrive, worker: TaskWorker, jobs: &[JobId]) -> Summary {
    let ended = async {
        for id in jobs {
            eventually("the job ends", || async { job(redrive, *id).await.state.is_final() }).await;
        }
    };
    worker.run_until(ended).await.expect("the worker runs")
}

/// Waits until `check` returns true. Panics after 20 seconds, because a test must not hang.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &'static str, check: impl Fn() -> F) {
    let polls = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let limit = Duration::from_secs(20);
    assert!(tokio::time::timeout(limit, polls).await.is_ok(), "not within {limit:?}: {what}");
}

/// Reads a job, which must exist.
pub(crate) async fn job(redrive: &Redrive, id: JobId) -> Job {
    redrive.get(id).await.expect("the store answers").expect("the job exists")
}

/// Reads the output of a job, which must have succeeded.
pub(crate) async fn output(redrive: &Redrive, id: JobId) -> String {
    let job = job(redrive, id).await;
    assert_eq!(job.state, State::Succeeded, "{:?}", job.last_error);
    String::from_utf8(job.output.unwrap_or_default()).expect("JSON is text")
}
