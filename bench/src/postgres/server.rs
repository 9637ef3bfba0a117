//! A private server with default durable settings, and a database of its own for each measurement.

use std::sync::atomic::{AtomicU32, Ordering};

use redrive_core::{Policy, PolicyRef, catalog};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;

use crate::service::cpu;

/// The private server of a run.
pub struct PrivateServer {
    server: Postgres,
    pid: u32,
    databases: AtomicU32,
}

/// A database. Dropping this removes it.
pub struct Database<'a> {
    server: &'a PrivateServer,
    name: String,
}

impl PrivateServer {
    /// Starts the server with the memory and the time between checkpoints that Postgres has by default.
    pub fn start() -> Self {
        let server = Postgres::start_with(&[("shared_buffers", "128MB"), ("max_wal_size", "1GB")]);
        let pid = server.run("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)");
        let pid = pid.trim().parse().expect("the first line of postmaster.pid is a process id");
        Self { server, pid, databases: AtomicU32::new(0) }
    }

    /// The CPU time of all processes of the server since its start.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        cpu::seconds_with_children(self.pid)
    }

    /// Creates an empty database, after a checkpoint, so that earlier writes do not influence the measurement.
    pub fn database(&self) -> Database<'_> {
        let name = format!("bench_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.server.create_database(&name);
        self.server.run("CHECKPOINT");
        Database { server: self, name }
    }
}

impl Database<'_> {
    /// The address of the database.
    pub fn address(&self) -> String {
        self.server.server.address_of(&self.name)
    }

    /// Opens a store in the database, with the default policy.
    pub async fn open(&self) -> anyhow::Result<(PostgresStore, PolicyRef)> {
        let store = PostgresStore::open(&self.address(), Options::default()).await?;
        let policy =
            catalog::put_inline(&store, &Policy::default(), redrive_core::Timestamp::default()).await?;
        Ok((store, policy))
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        self.server.server.run(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}
