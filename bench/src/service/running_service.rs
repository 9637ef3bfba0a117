//! The service under measurement: a process on a folder of its own, and a connection to prepare it by.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use tokio::time::Instant;

use super::child::Child;
use super::client::Connection;
use super::request;
use crate::scene;

/// How long the last results may take to be settled once everything has arrived.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// A running service.
pub struct Running {
    /// Its process.
    pub child: Child,
    connection: Connection,
    folder: tempfile::TempDir,
}

impl Running {
    /// Starts it on an empty folder.
    pub async fn start(program: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        let folder = scene::folder()?;
        let child = Child::serve(program, folder.path(), flags).await?;
        Ok(Self { connection: Connection::open(child.address()).await?, child, folder })
    }

    /// Nothing is delivered from now on.
    pub async fn pause(&mut self) -> anyhow::Result<()> {
        self.post("/queues/default/pause", Bytes::new(), StatusCode::NO_CONTENT).await.map(drop)
    }

    /// Deliveries go on.
    pub async fn resume(&mut self) -> anyhow::Result<()> {
        self.post("/queues/default/resume", Bytes::new(), StatusCode::NO_CONTENT).await.map(drop)
    }

    /// Creates `tasks` tasks in batches; `make` makes the JSON of one from its number.
    pub async fn fill(&mut self, tasks: usize, make: impl Fn(usize) -> String) -> anyhow::Result<()> {
        for first in (0..tasks).step_by(scene::BATCH) {
            let last = tasks.min(first + scene::BATCH);
            let batch = request::batch((first..last).map(&make));
            let answer = self.post("/retry-tasks/batch", batch, StatusCode::OK).await?;
            let answer: serde_json::Value = serde_json::from_slice(&answer)?;
            let items = answer["items"].as_array().context("a batch was not answered item by item")?;
            let refused = items.iter().find(|item| item["status"] != 201);
            anyhow::ensure!(refused.is_none(), "a task was not created: {refused:?}");
            anyhow::ensure!(items.len() == last - first, "a batch was answered in part");
        }
        Ok(())
    }

    /// Waits until the store says that `tasks` have succeeded, and no other is left.
    pub async fn until_succeeded(&mut self, tasks: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + SETTLES_WITHIN;
        loop {
            let queues = Uri::from_static("/queues");
            let answer = self.connection.call(Method::GET, &queues, Bytes::new(), StatusCode::OK).await?;
            let answer: serde_json::Value = serde_json::from_slice(&answer)?;
            let jobs = &answer["items"][0]["jobs"];
            let counts = jobs.as_object().context("the service does not count its tasks")?;
            let others = counts.iter().any(|(state, count)| state != "succeeded" && *count != 0);
            if jobs["succeeded"] == tasks && !others {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "not all of {tasks} tasks have succeeded: {jobs}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it, and removes its files.
    pub async fn end(self) -> anyhow::Result<()> {
        drop(self.connection);
        self.child.end().await?;
        Ok(self.folder.close()?)
    }

    async fn post(&mut self, path: &'static str, body: Bytes, expected: StatusCode) -> anyhow::Result<Bytes> {
        self.connection.call(Method::POST, &Uri::from_static(path), body, expected).await
    }
}
