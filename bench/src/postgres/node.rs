//! A node: a process that runs due jobs until its standard input closes.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};

use redrive_store_postgres::{Options, PostgresStore};
use redrive_worker::Settings;

use crate::waiting::memory_mib;
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

/// A node in a process of its own.
pub(super) struct Node(Child);

impl Node {
    pub(super) fn start(address: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        Ok(Self(command.args(["postgres-node", address]).stdin(Stdio::piped()).spawn()?))
    }

    /// The largest memory that the process has used so far.
    pub(super) fn peak_memory_mib(&self) -> anyhow::Result<f64> {
        memory_mib(self.0.id(), "VmHWM")
    }

    /// Ends the process.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        drop(self.0.stdin.take());
        anyhow::ensure!(self.0.wait()?.success(), "a node failed");
        Ok(())
    }
}
