//! The measured service: a process with a folder of its own, and a connection to set it up.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use tokio::time::Instant;

use super::child::Child;
use super::client::Connection;
use super::request;
use crate::setup;

/// The time in which the last tasks must be settled after everything has arrived.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running service.
pub struct RunningService {
    /// The process.
    pub child: Child,
    connection: Connection,
    folder: tempfile::TempDir,
}

impl RunningService {
    /// Starts the service in an empty folder.
    pub async fn start(program: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        let folder = setup::folder()?;
        let child = Child::serve(program, folder.path(), flags).await?;
        Ok(Self { connection: Connection::open(child.address()).await?, child, folder })
    }

    /// Pauses deliveries.
    pub async fn pause(&mut self) -> anyhow::Result<()> {
        self.post("/v1/queues/default/pause", Bytes::new(), StatusCode::NO_CONTENT).await.map(drop)
    }

    /// Resumes deliveries.
    pub async fn resume(&mut self) -> anyhow::Result<()> {
        self.post("/v1/queues/default/resume", Bytes::new(), StatusCode::NO_CONTENT).await.map(drop)
    }

    /// Creates `tasks` tasks in batches. `make` returns the JSON of one by its number.
    pub async fn fill(&mut self, tasks: usize, make: impl Fn(usize) -> String) -> anyhow::Result<()> {
        for first in (0..tasks).step_by(setup::BATCH) {
            let last = tasks.min(first + setup::BATCH);
            let batch = request::batch((first..last).map(&make));
            let answer = self.post("/v1/tasks/batch", batch, StatusCode::OK).await?;
            let answer: serde_json::Value = serde_json::from_slice(&answer)?;
            let items = answer["items"].as_array().context("the answer to a batch has no items")?;
            let rejected = items.iter().find(|item| item["status"] != 201);
            anyhow::ensure!(rejected.is_none(), "a task was not created: {rejected:?}");
            anyhow::ensure!(items.len() == last - first, "the answer to a batch is incomplete");
        }
        Ok(())
    }

    /// Waits until the service counts `tasks` succeeded tasks and no others.
    pub async fn until_succeeded(&mut self, tasks: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let queues = Uri::from_static("/v1/queues");
            let answer = self.connection.call(Method::GET, &queues, Bytes::new(), StatusCode::OK).await?;
            let answer: serde_json::Value = serde_json::from_slice(&answer)?;
            let jobs = &answer["items"][0]["jobs"];
            let counts = jobs.as_object().context("the service reports no counts")?;
            let others = counts.iter().any(|(state, count)| state != "succeeded" && *count != 0);
            if jobs["succeeded"] == tasks && !others {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "not all of {tasks} tasks have succeeded: {jobs}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops the service and removes its files.
    pub async fn end(self) -> anyhow::Result<()> {
        drop(self.connection);
        self.child.end().await?;
        Ok(self.folder.close()?)
    }

    async fn post(&mut self, path: &'static str, body: Bytes, expected: StatusCode) -> anyhow::Result<Bytes> {
        self.connection.call(Method::POST, &Uri::from_static(path), body, expected).await
    }
}
