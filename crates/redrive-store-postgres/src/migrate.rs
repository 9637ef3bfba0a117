//! Brings the tables up to date, one numbered migration after the other, under a lock that all nodes share.
//!
//! During a rolling deploy nodes of two versions run side by side: a migration says since which schema a node can work
//! with what it makes, and a node refuses a newer schema only when it is older than that.

use redrive_core::StoreError;
use std::time::Duration;
use tokio_postgres::Client;

use crate::error::Sorted;
use crate::pool::Pool;

/// The migrations; the number of each is its place, from 1.
const MIGRATIONS: [Migration; 5] = [
    Migration { sql: include_str!("../migrations/0001_jobs.sql"), compatible_since: 1 },
    Migration { sql: include_str!("../migrations/0002_enqueue.sql"), compatible_since: 1 },
    Migration { sql: include_str!("../migrations/0003_steps.sql"), compatible_since: 3 },
    Migration { sql: include_str!("../migrations/0004_default_policy.sql"), compatible_since: 3 },
    Migration { sql: include_str!("../migrations/0005_trees.sql"), compatible_since: 3 },
];

/// The schema that this version makes.
pub(crate) const SCHEMA: u32 = MIGRATIONS.len() as u32;

/// Any number will do, if nobody else takes it.
const LOCK: i64 = 0x7265_6472_6976_6501;

/// How long a node waits for another that migrates.
const PATIENCE: Duration = Duration::from_secs(600);

struct Migration {
    sql: &'static str,
    /// The oldest schema whose nodes still work after this migration.
    compatible_since: u32,
}

/// The schema that a database has.
pub(crate) struct Found {
    pub(crate) version: u32,
    /// The oldest schema whose nodes still work with it.
    pub(crate) compatible_since: u32,
}

/// Applies what is missing; says at which schema the tables are.
pub(crate) async fn migrate(pool: &Pool) -> Result<u32, StoreError> {
    pool.with_patience(PATIENCE, async |client| {
        let found = found(client).await?;
        if found.version >= SCHEMA {
            return accept(&found);
        }
        client.batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK})")).await.sorted()?;
        let migrated = apply(client).await;
        let end = if migrated.is_ok() { "COMMIT" } else { "ROLLBACK" };
        client.batch_execute(end).await.sorted()?;
        migrated
    })
    .await
}

/// Refuses a database that lacks something.
pub(crate) async fn check(pool: &Pool) -> Result<u32, StoreError> {
    let found = pool.with_patience(PATIENCE, async |client| found(client).await).await?;
    if found.version < SCHEMA {
        return Err(StoreError::Refused(format!(
            "the database has schema {}, this redrive needs {SCHEMA}; run `redrive migrate`",
            found.version
        )));
    }
    accept(&found)
}

fn accept(found: &Found) -> Result<u32, StoreError> {
    if found.compatible_since > SCHEMA {
        return Err(StoreError::Refused(format!(
            "the database has schema {}, which needs a redrive that knows schema {}, this one knows {SCHEMA}; upgrade redrive",
            found.version, found.compatible_since
        )));
    }
    Ok(found.version)
}

/// Under the lock: another node may have been faster.
async fn apply(client: &Client) -> Result<u32, StoreError> {
    client.batch_execute(include_str!("../migrations/0000_schema.sql")).await.sorted()?;
    let found = found(client).await?;
    for (version, migration) in (1..).zip(&MIGRATIONS).skip(found.version as usize) {
        client.batch_execute(migration.sql).await.sorted()?;
        let since = migration.compatible_since;
        let note =
            format!("INSERT INTO redrive.schema (version, compatible_since) VALUES ({version}, {since})");
        client.batch_execute(&note).await.sorted()?;
    }
    accept(&self::found(client).await?)
}

/// Which schema the tables are at, 0 without any.
pub(crate) async fn found(client: &Client) -> Result<Found, StoreError> {
    let there = client.query_typed("SELECT to_regclass('redrive.schema') IS NOT NULL", &[]).await.sorted()?;
    let nothing = Found { version: 0, compatible_since: 0 };
    if !there.first().is_some_and(|row| row.get(0)) {
        return Ok(nothing);
    }
    let sql = "SELECT version, compatible_since FROM redrive.schema ORDER BY version DESC LIMIT 1";
    let rows = client.query_typed(sql, &[]).await.sorted()?;
    let number = |row: &tokio_postgres::Row, index| row.get::<_, i32>(index).unsigned_abs();
    let found = rows.first().map(|row| Found { version: number(row, 0), compatible_since: number(row, 1) });
    Ok(found.unwrap_or(nothing))
}
