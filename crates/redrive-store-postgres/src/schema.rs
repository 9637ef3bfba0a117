//! Creates and updates the tables, one numbered migration after the other, under a lock that all nodes share.
//!
//! During a rolling deploy, nodes of two versions run side by side. Each migration names the oldest schema version whose nodes can
//! work with its tables. A node refuses a newer schema only if it is older than that.
//!
//! A migration that converts jobs may take long, and no older node can run meanwhile. A node that starts does not apply it to a database
//! that has jobs: an operator does, with `redrive migrate`.

use redrive_core::StoreError;
use std::time::Duration;
use tokio_postgres::Client;

use crate::error::{Error, Result};
use crate::planned_function;
use crate::pool::{BEGIN, Pool};

/// The migrations; the number of each is its place, from 1.
const MIGRATIONS: [Migration; 7] = [
    Migration { sql: include_str!("../migrations/0001_jobs.sql"), compatible_since: 1, converts: false },
    Migration { sql: include_str!("../migrations/0002_enqueue.sql"), compatible_since: 1, converts: false },
    Migration { sql: include_str!("../migrations/0003_steps.sql"), compatible_since: 3, converts: false },
    Migration {
        sql: include_str!("../migrations/0004_default_policy.sql"),
        compatible_since: 3,
        converts: false,
    },
    Migration { sql: include_str!("../migrations/0005_trees.sql"), compatible_since: 3, converts: false },
    // Nodes before this version create records without reading the floor: a record that is removed and created again during a rolling
    // deploy may start from version 1. Only a compare-and-set that was begun before the removal could notice.
    Migration {
        sql: include_str!("../migrations/0006_record_floors.sql"),
        compatible_since: 3,
        converts: false,
    },
    Migration { sql: include_str!("../migrations/0007_write_once.sql"), compatible_since: 7, converts: true },
];

/// The schema version that this program creates.
pub(crate) const SCHEMA: u32 = MIGRATIONS.len() as u32;

/// The key of the lock. Any number that no other program uses.
const LOCK: i64 = 0x7265_6472_6976_6501;

/// How long a migration may take, or the wait for another node that migrates. Converting many millions of jobs takes hours.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(12 * 60 * 60);

struct Migration {
    sql: &'static str,
    /// The oldest version whose nodes can work with the tables after this migration.
    compatible_since: u32,
    /// Whether it converts the jobs of earlier versions.
    converts: bool,
}

/// The schema version of a database.
pub(crate) struct SchemaVersion {
    pub(crate) version: u32,
    /// The oldest version whose nodes can work with it.
    pub(crate) compatible_since: u32,
}

/// Applies the missing migrations when a node starts, and returns the schema version. Fails if one of them converts jobs.
pub(crate) async fn migrate_at_start(pool: &Pool) -> Result<u32> {
    let found = pool.with_timeout(MIGRATION_TIMEOUT, async |client| read_version(client).await).await?;
    if found.version > 0 && MIGRATIONS.iter().skip(found.version as usize).any(|missing| missing.converts) {
        return Err(Error(StoreError::Refused(format!(
            "the database has the tables of an earlier redrive (schema version {}, this one needs {SCHEMA}); stop every node, run `redrive migrate`, and start again",
            found.version
        ))));
    }
    migrate(pool).await
}

/// Applies the missing migrations, and returns the schema version. Creates the functions of this build.
pub(crate) async fn migrate(pool: &Pool) -> Result<u32> {
    pool.with_timeout(MIGRATION_TIMEOUT, async |client| {
        let found = read_version(client).await?;
        let version = match found.version {
            0..SCHEMA => under_lock(client, async || apply(client).await).await?,
            _ => accept(&found)?,
        };
        if let Err(error) = create_functions(client).await {
            tracing::info!(
                error = error.explain(),
                "could not create redrive's functions, so each claim takes a little longer; run `redrive migrate` as the owner of the schema"
            );
        }
        Ok(version)
    })
    .await
}

/// Runs a part of the migration as one transaction, while no other node migrates.
async fn under_lock<T>(client: &Client, call: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let called = match client.batch_execute(&format!("{BEGIN}; SELECT pg_advisory_xact_lock({LOCK})")).await {
        Ok(()) => call().await,
        Err(error) => Err(error.into()),
    };
    let end = if called.is_ok() { "COMMIT" } else { "ROLLBACK" };
    client.batch_execute(end).await?;
    called
}

/// Creates the functions of this build that are missing.
async fn create_functions(client: &Client) -> Result<()> {
    if planned_function::are_usable(client).await? {
        return Ok(());
    }
    under_lock(client, async || planned_function::create_missing(client).await).await
}

/// Fails if the database lacks a migration.
pub(crate) async fn check(pool: &Pool) -> Result<u32> {
    let found = pool.with_timeout(MIGRATION_TIMEOUT, async |client| read_version(client).await).await?;
    if found.version < SCHEMA {
        return Err(Error(StoreError::Refused(format!(
            "the database has schema version {}, but this redrive needs {SCHEMA}; run `redrive migrate`",
            found.version
        ))));
    }
    accept(&found)
}

fn accept(found: &SchemaVersion) -> Result<u32> {
    if found.compatible_since > SCHEMA {
        return Err(Error(StoreError::Refused(format!(
            "the database has schema version {}, which needs a redrive with schema version {} or newer, but this one has {SCHEMA}; upgrade redrive",
            found.version, found.compatible_since
        ))));
    }
    Ok(found.version)
}

/// Applies the missing migrations under the lock. Another node may have applied them meanwhile.
async fn apply(client: &Client) -> Result<u32> {
    client.batch_execute(include_str!("../migrations/0000_schema.sql")).await?;
    let found = read_version(client).await?;
    for (version, migration) in (1..).zip(&MIGRATIONS).skip(found.version as usize) {
        client.batch_execute(migration.sql).await?;
        let since = migration.compatible_since;
        let record =
            format!("INSERT INTO redrive.schema (version, compatible_since) VALUES ({version}, {since})");
        client.batch_execute(&record).await?;
    }
    accept(&read_version(client).await?)
}

/// Reads the schema version; 0 without tables.
pub(crate) async fn read_version(client: &Client) -> Result<SchemaVersion> {
    let exists = client.query_typed("SELECT to_regclass('redrive.schema') IS NOT NULL", &[]).await?;
    let none = SchemaVersion { version: 0, compatible_since: 0 };
    if !exists.first().is_some_and(|row| row.get(0)) {
        return Ok(none);
    }
    let sql = "SELECT version, compatible_since FROM redrive.schema ORDER BY version DESC LIMIT 1";
    let rows = client.query_typed(sql, &[]).await?;
    let number = |row: &tokio_postgres::Row, index| row.get::<_, i32>(index).unsigned_abs();
    let found =
        rows.first().map(|row| SchemaVersion { version: number(row, 0), compatible_since: number(row, 1) });
    Ok(found.unwrap_or(none))
}
