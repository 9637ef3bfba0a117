//! Brings a file's tables up to date, one numbered migration after the other.

use redrive_core::StoreError;
use rusqlite::Connection;

use crate::error::Sorted;

/// The migrations; the number of each is its place, from 1.
const MIGRATIONS: [&str; 4] = [
    include_str!("../migrations/0001_jobs.sql"),
    include_str!("../migrations/0002_deliveries.sql"),
    include_str!("../migrations/0003_steps.sql"),
    include_str!("../migrations/0004_trees.sql"),
];

/// The schema that this version makes and understands.
pub(crate) const SCHEMA: u32 = MIGRATIONS.len() as u32;

/// Applies what is missing. A file from a newer redrive is refused, because this one would not understand it.
pub(crate) fn migrate(conn: &Connection) -> Result<(), StoreError> {
    // A file that cannot be written is noticed now, before anything is accepted for it.
    conn.execute_batch("BEGIN IMMEDIATE; COMMIT").sorted()?;
    conn.execute_batch("CREATE TABLE IF NOT EXISTS redrive_schema (version INTEGER NOT NULL) STRICT")
        .sorted()?;
    let found: Option<u32> =
        conn.query_row("SELECT max(version) FROM redrive_schema", (), |row| row.get(0)).sorted()?;
    let found = found.unwrap_or(0) as usize;
    if found > MIGRATIONS.len() {
        return Err(StoreError::Refused(format!(
            "the database has schema {found}, this redrive knows schemas up to {}; upgrade redrive or restore an older backup",
            MIGRATIONS.len()
        )));
    }
    for (version, migration) in MIGRATIONS.iter().enumerate().skip(found).map(|(at, sql)| (at + 1, sql)) {
        conn.execute_batch(&format!(
            "BEGIN IMMEDIATE; {migration}; INSERT INTO redrive_schema VALUES ({version}); COMMIT"
        ))
        .sorted()?;
    }
    Ok(())
}
