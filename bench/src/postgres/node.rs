//! A node: a process that runs due jobs until its standard input closes.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use redrive_core::Start;
use redrive_store_postgres::{Options, PostgresStore};
use redrive_worker::Settings;

use super::server::PrivateServer;
use crate::{drain, setup};

/// Runs a worker until standard input closes.
pub fn run_node(address: &str) -> anyhow::Result<()> {
    setup::block_on(async {
        let store = PostgresStore::open(address, Options::default()).await?;
        let settings = Settings::default().with_concurrency(drain::CONCURRENCY);
        let (stop, task) = setup::work(&store, settings, |_| {})?;
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
        stop.cancel();
        task.await?
    })
}

/// The jobs per second that `nodes` nodes drain together.
pub(super) fn rate(server: &PrivateServer, nodes: usize, jobs: usize) -> anyhow::Result<f64> {
    let database = server.database();
    setup::block_on(async {
        let (store, policy) = database.open().await?;
        setup::fill(&store, &policy, jobs, Start::Now).await?;
        let mut running = Vec::new();
        let started = Instant::now();
        for _ in 0..nodes {
            running.push(Node::start(&database.address())?);
        }
        setup::until_succeeded(&store, jobs as u64).await?;
        let rate = jobs as f64 / started.elapsed().as_secs_f64();
        running.into_iter().try_for_each(Node::end)?;
        Ok(rate)
    })
}

struct Node(Child);

impl Node {
    fn start(address: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        Ok(Self(command.args(["postgres-node", address]).stdin(Stdio::piped()).spawn()?))
    }

    fn end(mut self) -> anyhow::Result<()> {
        drop(self.0.stdin.take());
        anyhow::ensure!(self.0.wait()?.success(), "a node failed");
        Ok(())
    }
}
