//! Brings the tables of a file up to date, one numbered migration after the other.

use redrive_core::StoreError;
use rusqlite::Connection;

use crate::error::Result;

/// The migrations. The first one has the number 1.
const MIGRATIONS: [&str; 6] = [
    include_str!("../migrations/0001_jobs.sql"),
    include_str!("../migrations/0002_deliveries.sql"),
    include_str!("../migrations/0003_steps.sql"),
    include_str!("../migrations/0004_trees.sql"),
    include_str!("../migrations/0005_record_floors.sql"),
    include_str!("../migrations/0006_lease_ranges.sql"),
];

/// The schema version that this redrive creates and understands.
pub(crate) const SCHEMA: u32 = MIGRATIONS.len() as u32;

/// Applies the migrations that the file lacks. Rejects a file from a newer redrive, because this one would not
/// understand it.
pub(crate) fn migrate(conn: &Connection) -> Result<()> {
    // Detects a file that cannot be written now, before the store accepts any job for it.
    conn.execute_batch("BEGIN IMMEDIATE; COMMIT")?;
    conn.execute_batch("CREATE TABLE IF NOT EXISTS redrive_schema (version INTEGER NOT NULL) STRICT")?;
    let found: Option<u32> =
        conn.query_row("SELECT max(version) FROM redrive_schema", (), |row| row.get(0))?;
    let found = found.unwrap_or(0) as usize;
    if found > MIGRATIONS.len() {
        return Err(StoreError::Refused(format!(
            "the database has schema {found}, this redrive knows schemas up to {}; upgrade redrive or restore an older backup",
            MIGRATIONS.len()
        ))
        .into());
    }
    for (index, migration) in MIGRATIONS.iter().enumerate().skip(found) {
        let version = index + 1;
        conn.execute_batch(&format!(
            "BEGIN IMMEDIATE; {migration}; INSERT INTO redrive_schema VALUES ({version}); COMMIT"
        ))?;
    }
    Ok(())
}
