//! What the tests share: a store in memory, a task, and a worker that ends with its jobs.

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
            while !job(redrive, *id).await.state.is_final() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    };
    let limit = Duration::from_secs(20);
    let run = worker.run_until(async { tokio::time::timeout(limit, ended).await.expect("the jobs end") });
    run.await.expect("the worker works")
}

/// A job that must be there.
pub(crate) async fn job(redrive: &Redrive, id: JobId) -> Job {
    redrive.get(id).await.expect("the store answers").expect("the job is there")
}

/// A job that must have succeeded, as its output.
pub(crate) async fn output(redrive: &Redrive, id: JobId) -> String {
    let job = job(redrive, id).await;
    assert_eq!(job.state, State::Succeeded, "{:?}", job.last_error);
    String::from_utf8(job.output.unwrap_or_default()).expect("JSON is text")
}
