//! A private server with default durable settings, and a database of its own for each measurement.

use std::sync::atomic::{AtomicU32, Ordering};

use redrive_core::{Policy, PolicyRef, catalog};
use redrive_store_postgres::{Options, PostgresStore};
use redrive_testkit::servers::Postgres;

/// The server that all of a run is measured on.
pub struct Scene {
    server: Postgres,
    made: AtomicU32,
}

/// A database that goes with this.
pub struct Database<'a> {
    scene: &'a Scene,
    name: String,
}

impl Scene {
    /// Starts the server, with the memory that Postgres has by default.
    pub fn start() -> Self {
        Self { server: Postgres::start_with(&[("shared_buffers", "128MB")]), made: AtomicU32::new(0) }
    }

    /// An empty database, on a server that has nothing left to write from earlier ones.
    pub fn database(&self) -> Database<'_> {
        let name = format!("bench_{}", self.made.fetch_add(1, Ordering::Relaxed));
        self.server.create_database(&name);
        self.server.run("CHECKPOINT");
        Database { scene: self, name }
    }
}

impl Database<'_> {
    /// Its address.
    pub fn address(&self) -> String {
        self.scene.server.address_of(&self.name)
    }

    /// A store in it, with the default policy.
    pub async fn open(&self) -> anyhow::Result<(PostgresStore, PolicyRef)> {
        let store = PostgresStore::open(&self.address(), Options::default()).await?;
        let policy = catalog::put_inline(&store, &Policy::default()).await?;
        Ok((store, policy))
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        self.scene.server.run(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}
